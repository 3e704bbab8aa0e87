# The static and the shared library, both of the objects of attnops_objects. attnops::attnops is the
# one that BUILD_SHARED_LIBS asks for. Where that is not set both are built, and the static one is it.
add_library(attnops_static STATIC)
add_library(attnops_shared SHARED)
set_target_properties(attnops_shared PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
foreach(kind static shared)
  target_sources(attnops_${kind} PRIVATE $<TARGET_OBJECTS:attnops_objects>)
  set_target_properties(attnops_${kind} PROPERTIES
    OUTPUT_NAME attnops EXPORT_NAME ${kind} LINKER_LANGUAGE CXX)
  target_compile_features(attnops_${kind} INTERFACE cxx_std_17)
  target_include_directories(attnops_${kind} INTERFACE
    $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_link_libraries(attnops_${kind} PRIVATE ${ATTNOPS_PREBUILT} ${ATTNOPS_OPENMP_LIBRARIES})
  if(ATTNOPS_LINK_HIGHWAY)
    target_link_libraries(attnops_${kind} PRIVATE hwy::hwy)
  endif()
endforeach()

set(attnops_kinds static)
if(BUILD_SHARED_LIBS)
  set(attnops_kinds shared)
elseif(PROJECT_IS_TOP_LEVEL AND NOT DEFINED BUILD_SHARED_LIBS)
  set(attnops_kinds static shared)
endif()
foreach(kind static shared)
  if(NOT kind IN_LIST attnops_kinds)
    set_target_properties(attnops_${kind} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endforeach()
list(GET attnops_kinds 0 kind)
add_library(attnops::attnops ALIAS attnops_${kind})
add_library(attnops ALIAS attnops_${kind})
