# The one place of the version is pyproject.toml. Sets ATTNOPS_VERSION.
set(attnops_pyproject "${CMAKE_CURRENT_LIST_DIR}/../pyproject.toml")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${attnops_pyproject}")
file(STRINGS "${attnops_pyproject}" ATTNOPS_VERSION REGEX "^version = " LIMIT_COUNT 1)
string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" ATTNOPS_VERSION "${ATTNOPS_VERSION}")
