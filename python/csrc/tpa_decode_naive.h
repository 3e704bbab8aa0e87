// tpa_decode as one would write it first, for the bench to compare with.
#ifndef ATTNOPS_PYTHON_CSRC_TPA_DECODE_NAIVE_H_
#define ATTNOPS_PYTHON_CSRC_TPA_DECODE_NAIVE_H_

#include "tensors.h"

namespace attnops::torch_binding {

// With the default scales. Builds K = ak ⊗ bk (B,H,M,D) and V = av ⊗ bv (B,H,M,E) in the tensors'
// type, then attends to them; loops that the compiler may vectorise, one task for each head.
Tensor TpaDecodeNaive(const Tensor& aq, const Tensor& ak, const Tensor& av, const Tensor& bq,
                      const Tensor& bk, const Tensor& bv);

}  // namespace attnops::torch_binding

#endif  // ATTNOPS_PYTHON_CSRC_TPA_DECODE_NAIVE_H_
