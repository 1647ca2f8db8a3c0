# What is installed, as one archive for Windows: cpack -G ZIP in the build folder.
# SPDX-License-Identifier: Apache-2.0
set(CPACK_GENERATOR ZIP)
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_FILE_NAME tandem-${PROJECT_VERSION}-windows-x86_64)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
include(CPack)
