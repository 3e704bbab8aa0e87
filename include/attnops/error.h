// The one exception of the library.
#ifndef ATTNOPS_ERROR_H_
#define ATTNOPS_ERROR_H_

#include <stdexcept>

#pragma GCC visibility push(default)
namespace attnops {

// A bad argument. The message names the operator, the argument, what it must be
// and what it was. Thrown before anything is written.
class Error : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace attnops
#pragma GCC visibility pop

#endif  // ATTNOPS_ERROR_H_
