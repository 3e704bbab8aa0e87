// The SIMD target: listing, forcing, and the environment variable.
#include "attnops/target.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

#include "attnops/error.h"
#include "tests/support/targets.h"

namespace attnops::testing {
namespace {

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

void ExpectNamesTheChoices(const std::string& message) {
  for (const std::string& name : SupportedTargets()) {
    EXPECT_TRUE(Contains(message, name)) << "no " << name << " in: " << message;
  }
}

TEST(Target, SupportedAreCompiledInTheSameOrder) {
  const std::vector<std::string> compiled = CompiledTargets();
  const std::vector<std::string> supported = SupportedTargets();
  ASSERT_FALSE(supported.empty());
  EXPECT_EQ(std::set<std::string>(compiled.begin(), compiled.end()).size(), compiled.size());
  auto at = compiled.begin();
  for (const std::string& name : supported) {
    at = std::find(at, compiled.end(), name);
    ASSERT_NE(at, compiled.end()) << name;
    EXPECT_FALSE(name.empty());
  }
}

TEST(Target, TheOneInUseIsSupported) {
  const std::vector<std::string> supported = SupportedTargets();
  EXPECT_NE(std::find(supported.begin(), supported.end(), GetTarget()), supported.end());
}

TEST(Target, EachCanBeForced) {
  const TargetRestorer restorer;
  const std::string before = GetTarget();
  const std::vector<std::string> supported = SupportedTargets();
  for (const std::string& name : supported) {
    SetTarget(name);
    EXPECT_EQ(GetTarget(), name);
    EXPECT_EQ(SupportedTargets(), supported);
  }
  SetTarget("");
  EXPECT_EQ(GetTarget(), before);
}

TEST(Target, UnknownNameIsAnError) {
  const TargetRestorer restorer;
  SetTarget(SupportedTargets().back());
  for (const std::string name : {"AVX9000", "avx9000 ", " ", "AVX2,SSE4"}) {
    try {
      SetTarget(name);
      ADD_FAILURE() << "no error for " << name;
    } catch (const Error& error) {
      EXPECT_TRUE(Contains(error.what(), name)) << error.what();
      ExpectNamesTheChoices(error.what());
    }
    EXPECT_EQ(GetTarget(), SupportedTargets().back());
  }
}

TEST(Target, CompiledButUnsupportedIsAnError) {
  const TargetRestorer restorer;
  const std::vector<std::string> supported = SupportedTargets();
  for (const std::string& name : CompiledTargets()) {
    if (std::find(supported.begin(), supported.end(), name) != supported.end()) continue;
    try {
      SetTarget(name);
      ADD_FAILURE() << "no error for " << name;
    } catch (const Error& error) {
      EXPECT_TRUE(Contains(error.what(), name)) << error.what();
      ExpectNamesTheChoices(error.what());
    }
  }
}

// What print_target prints in an environment like `ATTNOPS_TARGET=AVX2` or `-u ATTNOPS_TARGET`.
std::string PrintTarget(const std::string& environment, const std::string& command) {
  const std::string line = "env " + environment + " " ATTNOPS_PRINT_TARGET " " + command;
  FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) return "cannot run " + line;
  std::string output;
  char buffer[512];
  while (std::fgets(buffer, sizeof(buffer), pipe) != nullptr) output += buffer;
  EXPECT_EQ(pclose(pipe), 0) << line;
  if (!output.empty() && output.back() == '\n') output.pop_back();
  return output;
}

TEST(TargetEnvironment, UnsetOrEmptyIsTheBest) {
  for (const char* environment : {"-u ATTNOPS_TARGET", "ATTNOPS_TARGET="}) {
    EXPECT_EQ(PrintTarget(environment, "get"), SupportedTargets().front());
    EXPECT_EQ(PrintTarget(environment, "rotate"), SupportedTargets().front());
    EXPECT_EQ(PrintTarget(environment, "force"), SupportedTargets().back());
    EXPECT_EQ(PrintTarget(environment, "back"), SupportedTargets().front());
  }
}

TEST(TargetEnvironment, EachCanBeForced) {
  for (const std::string& name : SupportedTargets()) {
    const std::string environment = "ATTNOPS_TARGET=" + name;
    EXPECT_EQ(PrintTarget(environment, "get"), name);
    EXPECT_EQ(PrintTarget(environment, "rotate"), name);
    EXPECT_EQ(PrintTarget(environment, "force"), SupportedTargets().back());
    EXPECT_EQ(PrintTarget(environment, "back"), name);
  }
}

TEST(TargetEnvironment, UnknownNameIsAnErrorAtTheFirstUse) {
  for (const char* command : {"get", "rotate"}) {
    const std::string output = PrintTarget("ATTNOPS_TARGET=AVX9000", command);
    EXPECT_EQ(output.find("error: "), 0u) << output;
    EXPECT_TRUE(Contains(output, "ATTNOPS_TARGET")) << output;
    EXPECT_TRUE(Contains(output, "AVX9000")) << output;
    ExpectNamesTheChoices(output);
  }
  // A target that is forced in time makes the variable irrelevant.
  EXPECT_EQ(PrintTarget("ATTNOPS_TARGET=AVX9000", "force"), SupportedTargets().back());
}

}  // namespace
}  // namespace attnops::testing
