# The front door. Every target installs what it lacks; a second run skips what is done.

SHELL := /bin/bash
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell nproc)
BENCH_FLAGS ?=
export PYTHON
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

# Exact: without a pin pip may choose a build with gigabytes of GPU libraries.
TORCH := torch==2.13.0
# Exact: the formatter's output changes between versions.
RUFF := ruff==0.17.4
BUILD_DEBS := g++ cmake ninja-build libhwy-dev libgtest-dev libbenchmark-dev
# A browser, for the test of the report.
TEST_DEBS := chromium
# clang looks for omp.h in its own package.
LINT_DEBS := clang-format clang-tidy libomp-dev
CLANG_DEBS := clang libomp-dev
# To compile for 64-bit Arm and run it here, and what is linked there.
AARCH64_DEBS := g++-aarch64-linux-gnu qemu-user-static
AARCH64_LIBRARIES := libhwy-dev 'libhwy1|libhwy1t64' libgtest-dev
# Debian releases with other versions of Highway.
HIGHWAY_RELEASES ?= trixie forky sid

VENV_PYTHON := .venv/bin/python
ENVIRONMENT := .venv/.requirements-installed
LINTER := .venv/.linter-installed
PACKAGE := .venv/.attnops-installed
REPORTS := $(CURDIR)/build/reports
# On Arm test-cpp is that.
SUITES := test-cpp test-asan test-tsan $(if $(filter aarch64,$(shell uname -m)),,test-aarch64-short) \
          test-python

# Directories too, so that a deleted file is a change.
SOURCES := $(shell find src include python cmake -name __pycache__ -prune -o -print 2>/dev/null) \
           CMakeLists.txt pyproject.toml
CXX_FILES = $(shell find include src tests bench python examples -name '*.h' -o -name '*.cc')

# Idle OpenMP threads sleep instead of spinning against the other tests.
CTEST := OMP_WAIT_POLICY=passive ctest --output-on-failure -j $(JOBS)
# With much address space randomisation, g++ 12's thread sanitizer cannot map its shadow memory.
NO_ASLR = $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: bench
bench: build ## the operators against PyTorch on this machine (options in BENCH_FLAGS)
	@.venv/bin/attnops-bench $(BENCH_FLAGS)

.PHONY: test
test: build ## all tests, the sanitizer runs included, and their counts
	@rm -rf $(REPORTS)
	@failed=0; \
	for suite in $(SUITES); do $(MAKE) $$suite || failed=1; done; \
	$(VENV_PYTHON) scripts/test_summary.py $(SUITES:%=$(REPORTS)/%.xml) && exit $$failed

.PHONY: build
build: build-cpp $(PACKAGE) ## the C++ library in build/release, attnops installed in .venv

.PHONY: lint
lint: lint-debs build/release/build.ninja $(LINTER) ## clang-format, clang-tidy on the core, ruff
	@clang-format --dry-run -Werror $(CXX_FILES)
	@clang-tidy --quiet -p build/release src/core/*.cc 2> >(grep -v ' warnings\? generated' >&2)
	@.venv/bin/ruff check --quiet python tests/python scripts
	@.venv/bin/ruff format --check --quiet python tests/python scripts

.PHONY: sanitize
sanitize: test-asan sanitize-tsan ## the C++ tests under the address, undefined and thread sanitizers

.PHONY: clean
clean: ## remove what was built (distclean: the Python environment too)
	@rm -rf build .pytest_cache .ruff_cache .hypothesis

.PHONY: distclean
distclean: clean
	@rm -rf .venv

.PHONY: test-cpp
test-cpp: build-cpp | $(REPORTS) ## the C++ tests
	@$(CTEST) --preset release --output-junit $(REPORTS)/$@.xml

.PHONY: test-asan
test-asan: debs | $(REPORTS) ## the C++ tests under the address and undefined behaviour sanitizers
	@scripts/cmake_build.sh asan
	@$(CTEST) --preset asan -LE exhaustive --output-junit $(REPORTS)/$@.xml

# Calls nested on one thread, and changes of a target that this build has one of, are for the other
# suites; `make sanitize` runs them too.
TSAN_FILTER := -*NestedParallel*:TargetSwitch*

.PHONY: test-tsan
test-tsan: debs | $(REPORTS) ## several threads calling at once, under the thread sanitizer
	@scripts/cmake_build.sh tsan concurrency_test
	@$(NO_ASLR) "$$(find build/tsan -name concurrency_test -type f)" \
	  --gtest_filter='$(TSAN_FILTER)' --gtest_brief=1 --gtest_output=xml:$(REPORTS)/$@.xml

# All tests but the largest, and not all floats: qemu makes code ten times slower.
AARCH64_CTEST := ATTNOPS_EXHAUSTIVE_EVERY=8 GTEST_FILTER='-*InWaves*' $(CTEST) --preset aarch64

.PHONY: test-aarch64
test-aarch64: aarch64-debs | $(REPORTS) ## the C++ tests on 64-bit Arm, cross-compiled and under qemu
	@scripts/cmake_build.sh aarch64
	@$(AARCH64_CTEST) --output-junit $(REPORTS)/$@.xml

.PHONY: test-aarch64-short
test-aarch64-short: aarch64-debs | $(REPORTS) ## the vector functions and one operator of it
	@scripts/cmake_build.sh aarch64 simd_test gemm_test flao_test
	@$(AARCH64_CTEST) -R '^(simd|gemm|flao)_test$$' --output-junit $(REPORTS)/$@.xml

.PHONY: test-highway
test-highway: debs ## the C++ tests with the Highway of newer Debian releases (HIGHWAY_RELEASES)
	@scripts/test_highway.sh $(HIGHWAY_RELEASES)

.PHONY: test-clang
test-clang: | $(REPORTS) ## the C++ tests, compiled with clang
	@scripts/setup.sh debs $(BUILD_DEBS) $(CLANG_DEBS)
	@scripts/cmake_build.sh clang
	@$(CTEST) --preset clang -LE exhaustive --output-junit $(REPORTS)/$@.xml

.PHONY: test-python
test-python: build test-debs | $(REPORTS) ## the Python tests, the documentation's programs and the layering test
	@$(VENV_PYTHON) -m pytest tests/python -n $(JOBS) --dist worksteal --junitxml=$(REPORTS)/$@.xml

.PHONY: sanitize-tsan
sanitize-tsan: debs
	@scripts/cmake_build.sh tsan
	@$(NO_ASLR) env $(CTEST) --preset tsan -LE exhaustive

.PHONY: build-cpp
build-cpp: debs
	@scripts/cmake_build.sh release

$(REPORTS):
	@mkdir -p $@

build/release/build.ninja: | debs
	@cmake --preset release

.PHONY: debs
debs:
	@scripts/setup.sh debs $(BUILD_DEBS)

.PHONY: test-debs
test-debs:
	@scripts/setup.sh debs $(BUILD_DEBS) $(TEST_DEBS)

.PHONY: aarch64-debs
aarch64-debs:
	@scripts/setup.sh debs $(BUILD_DEBS) $(AARCH64_DEBS)
	@scripts/unpack_debs.sh build/debs/arm64 installed arm64 $(AARCH64_LIBRARIES)

.PHONY: lint-debs
lint-debs:
	@scripts/setup.sh debs $(BUILD_DEBS) $(LINT_DEBS)

$(VENV_PYTHON): | debs
	@scripts/setup.sh venv

$(ENVIRONMENT): pyproject.toml Makefile scripts/setup.sh | $(VENV_PYTHON)
	@scripts/setup.sh requirements '$(TORCH)'
	@touch $@

$(LINTER): Makefile | $(VENV_PYTHON)
	@scripts/setup.sh pip '$(RUFF)'
	@touch $@

# The wheel's own CMake tree is kept, so that a change compiles only what it touches, and takes the
# kernels from the C++ library.
$(PACKAGE): $(ENVIRONMENT) $(SOURCES) | build-cpp
	@echo 'installing attnops in .venv'
	@scripts/setup.sh pip --no-build-isolation --no-deps --force-reinstall \
	  --config-settings=build-dir=build/wheel \
	  --config-settings=cmake.define.ATTNOPS_PREBUILT=$(CURDIR)/build/release/libattnops.a .
	@touch $@
