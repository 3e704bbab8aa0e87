// Prints what a fresh process makes of ATTNOPS_TARGET. One argument:
//   get     the target in use
//   rotate  runs an operator and prints the target in use
//   force   forces the last supported target and prints it
//   back    forces it, goes back with an empty name, and prints the target in use
// An Error is printed as "error: " and its message.
#include <cstdio>
#include <string>

#include "attnops/attnops.h"

namespace {

std::string Run(const std::string& command) {
  if (command == "rotate") {
    const float x[2] = {1, 2};
    const float theta[1] = {1};
    float out[2];
    attnops::LrpeRotate({x, {1, 1, 2}}, {theta, {1, 1}}, {out, {1, 1, 2}});
  }
  if (command == "force" || command == "back") {
    attnops::SetTarget(attnops::SupportedTargets().back());
  }
  if (command == "back") attnops::SetTarget("");
  return attnops::GetTarget();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::puts(Run(argc > 1 ? argv[1] : "get").c_str());
  } catch (const attnops::Error& error) {
    std::printf("error: %s\n", error.what());
  }
  return 0;
}
