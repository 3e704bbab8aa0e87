# The one list of kernels: for each folder of src with a kernels-inl.h, or file name of another
# table, the template arguments that KernelsOf is compiled with. Each entry is a file of its own, compiled for every SIMD target.
set(ATTNOPS_TYPES float Float16 BFloat16)

# attnops_kernels(SOURCES TABLE NAMESPACE RESULT ARGUMENTS...): appends a generated file to the
# list SOURCES for each of the ARGUMENTS.
function(attnops_kernels sources KERNELS_TABLE KERNELS_NAMESPACE KERNELS_RESULT)
  if(NOT KERNELS_TABLE MATCHES "-inl\\.h$")
    string(APPEND KERNELS_TABLE "/kernels-inl.h")
  endif()
  foreach(KERNELS_ARGUMENTS IN LISTS ARGN)
    string(MAKE_C_IDENTIFIER "${KERNELS_ARGUMENTS}" name)
    string(TOLOWER "${name}" name)
    set(KERNELS_FILE "${PROJECT_BINARY_DIR}/kernels/${KERNELS_NAMESPACE}_${name}.cc")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/kernels.cc.in" "${KERNELS_FILE}" @ONLY)
    list(APPEND ${sources} "${KERNELS_FILE}")
  endforeach()
  set(${sources} ${${sources}} PARENT_SCOPE)
endfunction()

set(encodings)
foreach(encoding kRotate kCosine)
  foreach(type IN LISTS ATTNOPS_TYPES)
    list(APPEND encodings "Encoding::${encoding}, ${type}")
  endforeach()
endforeach()

set(ATTNOPS_KERNELS)
attnops_kernels(ATTNOPS_KERNELS ops/linear_attention linear_attention Kernels ${ATTNOPS_TYPES})
attnops_kernels(ATTNOPS_KERNELS ops/linear_attention/causal_kernels-inl.h causal Kernels
                ${ATTNOPS_TYPES})
attnops_kernels(ATTNOPS_KERNELS ops/position_encoding position_encoding Choice ${encodings})
attnops_kernels(ATTNOPS_KERNELS ops/tensor_product_attention tensor_product_attention Kernels
                ${ATTNOPS_TYPES})
attnops_kernels(ATTNOPS_KERNELS ops/tensor_product_attention/prefill_backward-inl.h tpa_prefill Kernels
                ${ATTNOPS_TYPES})
attnops_kernels(ATTNOPS_KERNELS gemm gemm Kernels BFloat16)
attnops_kernels(ATTNOPS_KERNELS positions positions Kernels ${ATTNOPS_TYPES})
attnops_kernels(ATTNOPS_KERNELS rowops rowops Kernels ${ATTNOPS_TYPES})

# The check of pointer arithmetic takes half of the time that a kernel compiles under the undefined
# behaviour sanitizer. Kernels of one type, which has every path, are enough to find an error.
if(CMAKE_CXX_FLAGS MATCHES "-fsanitize=[a-z,]*undefined")
  set(unchecked ${ATTNOPS_KERNELS})
  list(FILTER unchecked EXCLUDE REGEX "bfloat16")
  set_source_files_properties(${unchecked} PROPERTIES COMPILE_OPTIONS
                              -fno-sanitize=pointer-overflow)
endif()
