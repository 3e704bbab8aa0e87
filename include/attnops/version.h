// The version of the library.
#ifndef ATTNOPS_VERSION_H_
#define ATTNOPS_VERSION_H_

#pragma GCC visibility push(default)
namespace attnops {

// Such as "0.2.0".
const char* Version();

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_VERSION_H_
