// What the functions of a cache share.
#ifndef ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_POOL_H_
#define ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_POOL_H_

#include <cstdint>

#include "attnops/tpa_cache.h"

namespace attnops::tensor_product_attention {

// A known type and sizes of at least 1.
void CheckPool(const char* op, const TpaPool& pool);

// The bytes of a number.
std::int64_t NumberSize(TpaCacheType type);

}  // namespace attnops::tensor_product_attention

#endif  // ATTNOPS_SRC_OPS_TENSOR_PRODUCT_ATTENTION_POOL_H_
