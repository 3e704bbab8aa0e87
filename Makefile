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
# An index to take torch from beside pip's own, such as PyTorch's of builds for CPUs.
TORCH_INDEX ?=
# Exact: the formatter's output changes between versions.
RUFF := ruff==0.17.4
# Exact: a newer one finds more.
MYPY := mypy==2.4.1
BUILD_DEBS := g++ cmake ninja-build libhwy-dev libgtest-dev libbenchmark-dev
# A browser, for the test of the report; another compiler and pkg-config, for those of the C++ package.
TEST_DEBS := chromium clang pkg-config
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
SUITES := test-cpp test-asan-short test-tsan-short \
          $(if $(filter aarch64,$(shell uname -m)),,test-aarch64-short) test-python

# Directories too, so that a deleted file is a change.
SOURCES := $(shell find src include python cmake -name __pycache__ -prune -o -print 2>/dev/null) \
           CMakeLists.txt pyproject.toml
CXX_FILES = $(shell find include src tests bench python examples -name "*.h" -o -name "*.cc" -o -name "*.c")

# Idle OpenMP threads sleep instead of spinning against the other tests.
SLEEPING := OMP_WAIT_POLICY=passive
CTEST := $(SLEEPING) ctest --output-on-failure -j $(JOBS)
# With much address space randomisation, g++ 12's thread sanitizer cannot map its shadow memory.
NO_ASLR = $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile

.PHONY: bench
bench: build ## the operators against PyTorch on this machine (options in BENCH_FLAGS)
	@.venv/bin/attnops-bench $(BENCH_FLAGS)

.PHONY: test
test: build ## all tests, with the sanitizers and 64-bit Arm in short, and their counts
	@rm -rf $(REPORTS)
	@failed=0; \
	for suite in $(SUITES); do $(MAKE) $$suite || failed=1; done; \
	$(VENV_PYTHON) scripts/test_summary.py $(SUITES:%=$(REPORTS)/%.xml) && exit $$failed

.PHONY: build
build: ## the C++ library in build/release, attnops installed in .venv
# Packages are fetched while the library is compiled.
	@$(MAKE) -j2 build-cpp $(ENVIRONMENT)
	@$(MAKE) $(PACKAGE)

.PHONY: lint
lint: lint-debs build/release/build.ninja $(ENVIRONMENT) $(LINTER) ## clang-format, clang-tidy on the core, ruff, mypy
	@clang-format --dry-run -Werror $(CXX_FILES)
	@clang-tidy --quiet -p build/release src/core/*.cc 2> >(grep -v ' warnings\? generated' >&2)
	@.venv/bin/ruff check --quiet python tests/python scripts
	@.venv/bin/ruff format --check --quiet python tests/python scripts
	@.venv/bin/mypy

.PHONY: soak
soak: sanitize test-aarch64 ## what takes too long for make test: sanitizers, Arm and all floats, whole
	@scripts/cmake_build.sh release exhaustive_test
	@ctest --preset release -L exhaustive

.PHONY: wheel
wheel: build ## a wheel for any Linux with torch, and the sdist, in dist/
	@$(VENV_PYTHON) -m build --no-isolation --sdist --outdir dist . >/dev/null
	@PATH=$(CURDIR)/.venv/bin:$$PATH auditwheel repair \
	  --exclude 'libtorch*.so' --exclude 'libc10*.so' --wheel-dir dist build/dist/attnops-*.whl
	@ls dist/*

.PHONY: docs
docs: build ## the documentation as a site, in build/site
	@$(VENV_PYTHON) scripts/site.py build/site

.PHONY: sanitize
sanitize: test-asan test-tsan ## the C++ tests under the address, undefined and thread sanitizers

.PHONY: clean
clean: ## remove what was built (distclean: the Python environment too)
	@rm -rf build .pytest_cache .ruff_cache .hypothesis

.PHONY: distclean
distclean: clean
	@rm -rf .venv

# Every fourth group of floats; `make soak` has all of them.
.PHONY: test-cpp
test-cpp: build-cpp | $(REPORTS) ## the C++ tests
	@ATTNOPS_EXHAUSTIVE_EVERY=4 $(CTEST) --preset release --output-junit $(REPORTS)/$@.xml

.PHONY: test-asan
test-asan: debs | $(REPORTS) ## the C++ tests under the address and undefined behaviour sanitizers
	@scripts/cmake_build.sh asan
	@$(CTEST) --preset asan -LE exhaustive --output-junit $(REPORTS)/$@.xml

.PHONY: test-tsan
test-tsan: debs | $(REPORTS) ## the C++ tests under the thread sanitizer
	@scripts/cmake_build.sh tsan
	@$(NO_ASLR) env $(CTEST) --preset tsan -LE exhaustive --output-junit $(REPORTS)/$@.xml

# All tests but the largest, and not all floats: qemu makes the references, which compute in double,
# thirty times slower.
LARGEST_TESTS := *InWaves* *OtherCalls* TargetSwitch.FlaoFal TargetSwitch.Encodings TargetSwitch.Tpa* \
  *EveryActivationType* *SameBitsFromAllSplits* *AnyNumberOfThreads* *LargeResultsAtAnyAlignment \
  BatchInvariance.MdLrpeCosine *LongSequence* *KeptStatesGiveTheSameGradients \
  *SameBitsWithAnyParallelFor LinearAttentionAccuracy.CommonSizes Rope.CosSinInPlaceOfTheta
empty :=
.PHONY: test-aarch64
test-aarch64: aarch64-debs | $(REPORTS) ## the C++ tests on 64-bit Arm, cross-compiled and under qemu
	@scripts/cmake_build.sh aarch64
	@ATTNOPS_EXHAUSTIVE_EVERY=8 GTEST_FILTER='-$(subst $(empty) ,:,$(strip $(LARGEST_TESTS)))' \
	  $(CTEST) --preset aarch64 \
	  --output-junit $(REPORTS)/$@.xml

# Short forms: the vector functions, the products and one operator (tests/short_test.cmake).
SHORT_CTEST = $(CTEST) -C Short -R '^short_test$$' --output-junit $(REPORTS)/$@.xml --preset

.PHONY: test-asan-short
test-asan-short: debs | $(REPORTS)
	@scripts/cmake_build.sh asan short_test
	@GTEST_FILTER='-*InWaves*' $(SHORT_CTEST) asan

.PHONY: test-tsan-short
test-tsan-short: debs | $(REPORTS)
	@scripts/cmake_build.sh tsan short_test
	@GTEST_FILTER='*Concurrency*:*UsesTheGivenParallelFor' $(NO_ASLR) env $(SHORT_CTEST) tsan

.PHONY: test-aarch64-short
test-aarch64-short: aarch64-debs | $(REPORTS)
	@scripts/cmake_build.sh aarch64 short_test
	@GTEST_FILTER='-*InWaves*:FlaoAccuracy.CommonSizes' $(SHORT_CTEST) aarch64

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
	@$(SLEEPING) $(VENV_PYTHON) -m pytest tests/python -n $(JOBS) --dist worksteal --junitxml=$(REPORTS)/$@.xml

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
	@scripts/setup.sh requirements '$(TORCH)' $(if $(TORCH_INDEX),--extra-index-url '$(TORCH_INDEX)')
	@touch $@

$(LINTER): Makefile | $(VENV_PYTHON)
	@scripts/setup.sh pip '$(RUFF)' '$(MYPY)'
	@touch $@

# The wheel's own CMake tree is kept, so that a change compiles only what it touches, and takes the
# kernels from the C++ library.
$(PACKAGE): $(ENVIRONMENT) $(SOURCES) | build-cpp
	@echo 'installing attnops in .venv'
	@rm -rf build/dist
	@scripts/setup.sh wheel --no-build-isolation --no-deps --wheel-dir build/dist \
	  --config-settings=build-dir=build/wheel \
	  --config-settings=cmake.define.ATTNOPS_PREBUILT=$(CURDIR)/build/release/libattnops.a .
	@scripts/setup.sh pip --no-deps --force-reinstall build/dist/attnops-*.whl
	@touch $@
