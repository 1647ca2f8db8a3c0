# Debian packages of what is built: cpack -G DEB in the build folder. A component is a package:
#   libtandem0 (library), libtandem-dev (development), tandem-tools (tools), tandemd (daemon), python3-tandem (python),
#   tandem-layer (layer)
# and the source as one archive, which builds without a network: cpack --config CPackSourceConfig.cmake.
# SPDX-License-Identifier: Apache-2.0

# The date of what is packed, for a changelog that two builds of one commit have alike.
set(packages_out ${PROJECT_BINARY_DIR}/packages)
string(TIMESTAMP packages_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} log -1 --format=%cD
    OUTPUT_VARIABLE packages_commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE packages_no_git)
if(packages_no_git EQUAL 0 AND packages_commit)
    set(packages_date ${packages_commit})
endif()
set(packages_maintainer "The Tandem authors <tandem@tandem.invalid>")
set(packages_libtandem0 library)
set(packages_libtandem-dev development)
set(packages_tandem-tools tools)
set(packages_tandemd daemon)
set(packages_python3-tandem python)
set(packages_tandem-layer layer)
set(packages libtandem0 libtandem-dev tandem-tools tandemd python3-tandem)
if(TARGET tandem_layer)
    list(APPEND packages tandem-layer)
endif()
find_program(TANDEM_GZIP gzip)
set(packages_components)
foreach(package IN LISTS packages)
    list(APPEND packages_components ${packages_${package}})
    configure_file(${CMAKE_CURRENT_LIST_DIR}/changelog.in ${packages_out}/${package}/changelog @ONLY)
    if(TANDEM_GZIP)
        execute_process(COMMAND ${TANDEM_GZIP} -9nf ${packages_out}/${package}/changelog)
    endif()
    # Only packages have these: an installation into a prefix has LICENSE.
    install(FILES ${packages_out}/${package}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
        COMPONENT ${packages_${package}} EXCLUDE_FROM_ALL)
    install(FILES ${CMAKE_CURRENT_LIST_DIR}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
        COMPONENT ${packages_${package}} EXCLUDE_FROM_ALL)
endforeach()
td_install_documents(${CMAKE_INSTALL_DATADIR}/doc/libtandem-dev COMPONENT development EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine_plugin/python/tandem DESTINATION lib/python3/dist-packages
    COMPONENT python EXCLUDE_FROM_ALL FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
if(TARGET tandem_serve)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine_plugin/deploy DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tandem-tools/examples
        COMPONENT tools EXCLUDE_FROM_ALL PATTERN "__pycache__" EXCLUDE)
endif()
if(TARGET tandem_tool)
    foreach(component IN ITEMS tools daemon)
        install(CODE "
            if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
                file(GLOB pages \"\$ENV{DESTDIR}/usr/${CMAKE_INSTALL_MANDIR}/man1/*.1\")
                execute_process(COMMAND ${TANDEM_GZIP} -9n \${pages} COMMAND_ERROR_IS_FATAL ANY)
            endif()" COMPONENT ${component})
    endforeach()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tandem)
set(CPACK_PACKAGE_VENDOR Tandem)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "CUDA networks for Vulkan engines") # of all; what each is comes below it
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_DIRECTORY ${packages_out})
set(CPACK_SET_DESTDIR ON) # the unit of tandemd names the folder where the program will lie
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
# The mode of a folder is not the umask of who packs.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL ${packages_components})
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${packages_maintainer})
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}) # where tandem-layer's library is, before it is packed
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libtandem0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS_POLICY ">=")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS tandemd)
file(WRITE ${packages_out}/triggers "activate-noawait ldconfig\n")
set(packages_control ${packages_out}/triggers)
find_program(TANDEM_GENSYMBOLS dpkg-gensymbols)
if(TANDEM_GENSYMBOLS) # from which version on a package has each function: who uses old ones alone may keep an old library
    add_custom_command(OUTPUT ${packages_out}/symbols DEPENDS tandem_library ${CMAKE_CURRENT_LIST_DIR}/libtandem0.symbols VERBATIM
        COMMAND ${TANDEM_GENSYMBOLS} -c4 -plibtandem0 -v${PROJECT_VERSION} -e$<TARGET_FILE:tandem_library>
            -I${CMAKE_CURRENT_LIST_DIR}/libtandem0.symbols -O${packages_out}/symbols)
    add_custom_target(tandem_symbols ALL DEPENDS ${packages_out}/symbols)
    list(APPEND packages_control ${packages_out}/symbols)
endif()
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${packages_control}")
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION
"The library. It shares a Vulkan engine's memory and timelines with CUDA, and
runs quantised attention, networks and language models between the passes of
a frame. On a machine without such a GPU the same calls compute on the CPU.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtandem-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libtandem0 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "libvulkan-dev, pkg-config, tandem-tools")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION
"What is needed to build a program with the library: C headers, which C++ takes
as well, files for pkg-config and CMake, and how to get into an engine.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME tandem-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SUGGESTS tandemd)
set(CPACK_COMPONENT_TOOLS_DESCRIPTION
"The command line tool. It says what a machine can do and why not more, runs
networks and language models on files, serves a model to programs that know
OpenAI's interface, and measures speed and accuracy beside those of others.")

set(CPACK_DEBIAN_DAEMON_PACKAGE_NAME tandemd)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION utils)
set(CPACK_COMPONENT_DAEMON_DESCRIPTION
"The daemon. One process of a user computes for all of that user's engines:
frames before what may wait, within what each may have, and whoever dies takes
nobody along. It is started by systemctl --user enable --now tandemd.socket.")

set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-tandem)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "libtandem0 (>= ${PROJECT_VERSION}), python3:any")
set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS "python3-numpy")
set(CPACK_COMPONENT_PYTHON_DESCRIPTION
"The library for Python: attention, networks, denoisers and characters, on the
memory of numpy's arrays and torch's tensors.")

set(CPACK_DEBIAN_LAYER_PACKAGE_NAME tandem-layer)
set(CPACK_DEBIAN_LAYER_PACKAGE_SECTION graphics)
set(CPACK_DEBIAN_LAYER_PACKAGE_DEPENDS "libtandem0 (= ${PROJECT_VERSION})")
set(CPACK_DEBIAN_LAYER_PACKAGE_SUGGESTS tandem-tools)
set(CPACK_COMPONENT_LAYER_DESCRIPTION
"A Vulkan layer. It runs an effect on each picture that a program presents,
where TANDEM_LAYER=1 asks for it: nothing of it is loaded otherwise.")

set(CPACK_SOURCE_GENERATOR TXZ)
set(CPACK_SOURCE_PACKAGE_FILE_NAME tandem-${PROJECT_VERSION})
set(CPACK_SOURCE_IGNORE_FILES "/\\.git(/|$)" "/\\.ci/" "/build[^/]*/" "/out[^/]*/" "/__pycache__/" "\\.o$")
include(CPack)
