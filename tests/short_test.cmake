# The vector functions, the products and one operator, in a program that compiles nothing else: for
# compilers and emulators that are too slow for all of it in `make test`.
get_target_property(short_sources attnops_objects SOURCES)
list(FILTER short_sources EXCLUDE REGEX "src/(c|ops)/|/kernels/(causal|position_encoding|tensor_product|tpa)")
add_executable(short_test EXCLUDE_FROM_ALL
  ${short_sources}
  src/ops/linear_attention/arguments.cc
  src/ops/linear_attention/flao.cc
  src/ops/linear_attention/schedule.cc
  tests/gemm/multiply_test.cc
  tests/gemm/panel_product.cc
  tests/ops/case.cc
  tests/ops/flao_accuracy_test.cc
  tests/ops/flao_case.cc
  tests/ops/flao_concurrency_test.cc
  tests/ops/flao_errors_test.cc
  tests/ops/flao_nonfinite_test.cc
  tests/ops/flao_threads_test.cc
  tests/reference/flao.cc
  tests/simd/conversion_test.cc
  tests/simd/functions.cc
  tests/simd/math_test.cc
  tests/support/guarded_tensor.cc)
target_compile_definitions(short_test PRIVATE $<TARGET_PROPERTY:attnops_objects,COMPILE_DEFINITIONS>)
target_include_directories(short_test PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(short_test PRIVATE hwy::hwy GTest::gtest_main Threads::Threads)
if(ATTNOPS_OPENMP)
  target_link_libraries(short_test PRIVATE OpenMP::OpenMP_CXX)
endif()
# In a configuration of its own, since the other tests are run without it: `ctest -C Short`.
add_test(NAME short_test COMMAND short_test CONFIGURATIONS Short)
set_tests_properties(short_test PROPERTIES TIMEOUT 1500)
