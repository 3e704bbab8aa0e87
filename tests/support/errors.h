// Bad input must give a clear error.
#ifndef ATTNOPS_TESTS_SUPPORT_ERRORS_H_
#define ATTNOPS_TESTS_SUPPORT_ERRORS_H_

#include <gtest/gtest.h>

#include <functional>
#include <regex>
#include <string>

#include "attnops/error.h"

namespace attnops::testing {

// `run` throws an Error whose message is about the operator `op` and has `word`, a regular
// expression, as a whole word.
inline void ExpectErrorNaming(const std::string& op, const std::string& word,
                              const std::function<void()>& run) {
  try {
    run();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find(op + ": "), 0u) << message;
    EXPECT_TRUE(std::regex_search(message, std::regex("\\b(" + word + ")\\b")))
        << "no '" << word << "' in: " << message;
  }
}

}  // namespace attnops::testing

#endif  // ATTNOPS_TESTS_SUPPORT_ERRORS_H_
