# Which of Highway's targets are compiled.

# SVE vectors have no fixed size and cannot be members of a struct; Arm CPUs with SVE run the NEON
# code. CPUs without SSE4, all from before 2010, run the scalar target.
set(attnops_unused_targets SVE SVE2 SVE_256 SVE2_128 SSSE3 SSE2)
# Each further target compiles every kernel once more, and the kernels make no use yet of the
# instructions that these targets add.
list(APPEND attnops_unused_targets NEON_BF16)
set(attnops_more_avx512 AVX3_DL AVX3_ZEN4 AVX3_SPR AVX10_2)

# Sets `result` to Highway's mask of the targets above and those in the further arguments. Names
# that this version of Highway does not know are left out: in an expression they would be errors.
function(attnops_disabled_targets result)
  get_target_property(folders hwy::hwy INTERFACE_INCLUDE_DIRECTORIES)
  find_file(header hwy/detect_targets.h PATHS ${folders} NO_DEFAULT_PATH NO_CACHE REQUIRED
            NO_CMAKE_FIND_ROOT_PATH)
  set(wanted ${attnops_unused_targets} ${ARGN})
  if(NOT ATTNOPS_ALL_AVX512)
    list(APPEND wanted ${attnops_more_avx512})
  endif()
  list(REMOVE_DUPLICATES wanted)
  set(mask)
  foreach(target IN LISTS wanted)
    file(STRINGS ${header} known REGEX "^#define HWY_${target} ")
    if(known)
      list(APPEND mask HWY_${target})
    endif()
  endforeach()
  list(JOIN mask "|" mask)
  set(${result} "${mask}" PARENT_SCOPE)
endfunction()
