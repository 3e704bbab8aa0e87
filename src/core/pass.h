// The two passes of an operator.
#ifndef ATTNOPS_SRC_CORE_PASS_H_
#define ATTNOPS_SRC_CORE_PASS_H_

namespace attnops {

enum class Pass { kForward, kBackward };

}  // namespace attnops

#endif  // ATTNOPS_SRC_CORE_PASS_H_
