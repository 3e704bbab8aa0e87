#!/usr/bin/env bash
# Builds the library against the Highway of other Debian releases and runs the C++ tests.
#   test_highway.sh RELEASE...
# What a release needs is unpacked into build/debs/RELEASE. Its libhwy may need newer C and C++
# libraries than the system's, so these come with it and the tests run under its loader.
set -uo pipefail
cd "$(dirname "$0")/.."
architecture=$(dpkg --print-architecture 2>/dev/null) || {
  echo 'attnops: not a Debian system; other versions of Highway are taken from Debian' >&2
  exit 2
}

version_of() {
  awk '/#define HWY_(MAJOR|MINOR|PATCH) / { v = v (v == "" ? "" : ".") $3 } END { print v }' \
    "$1"/usr/include/hwy/{highway,base}.h
}

# Builds and tests with what is in a folder.
test_with() {
  local folder=$1 build=$2 loader libraries
  loader=$(find "$folder" -name 'ld-linux*.so.*' -type f | head -n 1)
  libraries=$(dirname "$(find "$folder" -name 'libc.so.6' | head -n 1)")
  libraries+=:$(dirname "$(find "$folder" -name 'libhwy.so' | head -n 1)")
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DATTNOPS_BENCH=OFF \
    -DATTNOPS_EVERY_TARGET_TEST=ON -Dhwy_DIR="$(dirname "$(find "$folder" -name hwy-config.cmake)")" \
    -DCMAKE_EXE_LINKER_FLAGS=-Wl,--allow-shlib-undefined \
    -DCMAKE_CROSSCOMPILING_EMULATOR="$loader;--library-path;$libraries" >"$build.log" &&
    cmake --build "$build" &&
    OMP_WAIT_POLICY=passive ctest --test-dir "$build" --output-on-failure -LE exhaustive \
      -j "${CMAKE_BUILD_PARALLEL_LEVEL:-2}"
}

status=0
tested=()
report=()
for release in "$@"; do
  folder=$PWD/build/debs/$release
  if ! scripts/unpack_debs.sh "$folder" "$release" "$architecture" libhwy-dev 'libhwy1|libhwy1t64' \
    libc6 libgcc-s1 libstdc++6; then
    report+=("$release: could not be had")
    continue
  fi
  version=$(version_of "$folder")
  if [[ " ${tested[*]-} " == *" $version "* ]]; then
    report+=("$release: Highway $version, as above")
    continue
  fi
  tested+=("$version")
  echo "Highway $version of $release"
  if test_with "$folder" "build/highway-$release"; then
    report+=("$release: Highway $version, passed")
  else
    report+=("$release: Highway $version, FAILED")
    status=1
  fi
done
printf '%s\n' "${report[@]}"
((${#tested[@]})) || status=3
exit "$status"
