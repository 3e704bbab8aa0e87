// Assertions on contracts inside the library. Arguments of callers are not asserted but checked
// (checks.h).
#ifndef ATTNOPS_SRC_CORE_ASSERT_H_
#define ATTNOPS_SRC_CORE_ASSERT_H_

// On in debug and sanitizer builds, which define ATTNOPS_DASSERTS; else the condition is compiled
// but not evaluated.
#ifdef ATTNOPS_DASSERTS

#include <cstdio>
#include <cstdlib>

#define ATTNOPS_DASSERT(condition)                                                           \
  do {                                                                                       \
    if (!(condition)) {                                                                      \
      std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#else

#define ATTNOPS_DASSERT(condition) static_cast<void>(sizeof((condition) ? 1 : 0))

#endif

#endif  // ATTNOPS_SRC_CORE_ASSERT_H_
