// How far a float32 kernel may be from the reference, for what the operators with a fused
// activation have in common.
#ifndef ATTNOPS_TESTS_OPS_ACTIVATION_BOUNDS_H_
#define ATTNOPS_TESTS_OPS_ACTIVATION_BOUNDS_H_

#include <vector>

#include "attnops/types.h"
#include "tests/reference/activation.h"

namespace attnops::testing {

// The absolute error of every y = f(x).
std::vector<double> ActivationErrors(const reference::TensorActivation& act,
                                     const std::vector<double>& x, const std::vector<double>& y);

// The bound of dx, where `scale` bounds |dy| and `dy_errors` the error of dy: dy_errors · |f'(x)|
// and, for the activation, scale·s (sigmoid), scale·s(1+|x|) (silu) and p·(scale + Σ p⊙scale)
// (softmax).
std::vector<double> ActivationGradientBound(const reference::TensorActivation& act,
                                            const std::vector<double>& x,
                                            const std::vector<double>& scale,
                                            const std::vector<double>& dy_errors);

// `bound` with one rounding of the value to the stored type.
std::vector<double> WithStorageError(DType dtype, const std::vector<double>& value,
                                     std::vector<double> bound);

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_OPS_ACTIVATION_BOUNDS_H_
