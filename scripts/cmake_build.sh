#!/usr/bin/env bash
# Configures the tree of a preset if it is not there, and builds it or the given targets; says
# nothing when all of it is up to date.
#   cmake_build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift

[[ -f build/$preset/build.ninja ]] || cmake --preset "$preset"
if [[ $(ninja -C "build/$preset" -n "$@" | tail -n 1) != *'no work to do.' ]]; then
  cmake --build "build/$preset" ${1:+--target "$@"}
fi
