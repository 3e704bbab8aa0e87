# What `cmake --install` puts where, for find_package and pkg-config, and the target `uninstall`.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(attnops_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attnops)
foreach(kind IN LISTS attnops_kinds)
  # An export for each, so that one may be there without the other.
  install(TARGETS attnops_${kind} EXPORT attnops-${kind})
  install(EXPORT attnops-${kind} NAMESPACE attnops:: DESTINATION ${attnops_package_dir})
endforeach()
install(DIRECTORY include/attnops DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

configure_package_config_file(cmake/attnops-config.cmake.in attnops-config.cmake
  INSTALL_DESTINATION ${attnops_package_dir})
write_basic_package_version_file(attnops-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attnops-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/attnops-config-version.cmake
        DESTINATION ${attnops_package_dir})

# A program that is linked with the static library needs what that one uses.
set(ATTNOPS_PC_PRIVATE -lstdc++ -lm)
foreach(library IN LISTS ATTNOPS_OPENMP_LIBRARIES)
  if(NOT IS_ABSOLUTE "${library}")
    string(PREPEND library -l)
  endif()
  list(APPEND ATTNOPS_PC_PRIVATE ${library})
endforeach()
if(ATTNOPS_LINK_HIGHWAY)
  list(APPEND ATTNOPS_PC_PRIVATE -lhwy)
endif()
list(JOIN ATTNOPS_PC_PRIVATE " " ATTNOPS_PC_PRIVATE)
set(ATTNOPS_PC_LIBS "-L\${libdir} -lattnops")
if(NOT shared IN_LIST attnops_kinds)
  string(APPEND ATTNOPS_PC_LIBS " ${ATTNOPS_PC_PRIVATE}")
endif()
# Relative to the file itself, so that the folder may be moved and --prefix obeyed.
file(RELATIVE_PATH ATTNOPS_PC_PREFIX
     ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/attnops.pc.in attnops.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attnops.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(PROJECT_IS_TOP_LEVEL)
  add_custom_target(uninstall
    COMMAND ${CMAKE_COMMAND} -DMANIFEST=${CMAKE_CURRENT_BINARY_DIR}/install_manifest.txt
            -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/uninstall.cmake
    COMMENT "Removing what the last installation put there" VERBATIM)
endif()
