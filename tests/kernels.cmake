# Libraries that compile code of attnops for every SIMD target, for tests and micro-benchmarks.
include_guard(GLOBAL)

function(attnops_add_test_kernels name)
  add_library(${name} STATIC ${ARGN})
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_compile_options(${name} PRIVATE -Wall -Wextra -Werror)
  target_compile_definitions(${name} PRIVATE $<TARGET_PROPERTY:attnops_objects,COMPILE_DEFINITIONS>)
  target_include_directories(${name} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC attnops_static hwy::hwy)
endfunction()

attnops_add_test_kernels(simd_functions ${PROJECT_SOURCE_DIR}/tests/simd/functions.cc)
attnops_add_test_kernels(panel_product ${PROJECT_SOURCE_DIR}/tests/gemm/panel_product.cc)
