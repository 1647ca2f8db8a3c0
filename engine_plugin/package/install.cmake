# The shared library, the public headers, pkg-config and the CMake package; the tool where it was built. The components are the
# packages of packages.cmake.
# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tandem)
set(package_in ${PROJECT_SOURCE_DIR}/engine_plugin/package)
set(package_out ${PROJECT_BINARY_DIR}/package)

install(TARGETS tandem_library EXPORT TandemTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
    INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET tandem_tool)
    install(TARGETS tandem_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT tools)
    if(TARGET tandem_bench)
        install(TARGETS tandem_bench RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR} COMPONENT tools)
    endif()
    if(TARGET tandem_serve)
        install(TARGETS tandem_serve RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR} COMPONENT tools)
    endif()
    if(TARGET tandem_conform)
        install(TARGETS tandem_conform LIBRARY DESTINATION ${CMAKE_INSTALL_LIBEXECDIR} COMPONENT tools
            PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
    endif()
    file(RELATIVE_PATH to_libexec /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBEXECDIR})
    file(RELATIVE_PATH to_bin /prefix/${CMAKE_INSTALL_LIBEXECDIR} /prefix/${CMAKE_INSTALL_BINDIR})
    target_compile_definitions(tandem_tool_parts PRIVATE "TD_TO_LIBEXEC=\"${to_libexec}\"" "TD_TO_BIN=\"${to_bin}\"")
    install(FILES ${PROJECT_SOURCE_DIR}/demo/assets/npc.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem COMPONENT tools)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/demo/assets/cards DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem COMPONENT tools)
    if(NOT WIN32)
        install(DIRECTORY ${PROJECT_BINARY_DIR}/engine_plugin/tool/manual/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT tools
            FILES_MATCHING PATTERN "tandem.1" PATTERN "tandem-*.1")
        install(FILES ${PROJECT_BINARY_DIR}/engine_plugin/tool/manual/tandemd.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT daemon)
        set(manual_dir ${PROJECT_BINARY_DIR}/engine_plugin/tool/manual)
        install(FILES ${manual_dir}/tandem.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT tools
            RENAME tandem)
        install(FILES ${manual_dir}/tandem.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT tools RENAME _tandem)
        install(FILES ${manual_dir}/tandem.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT tools)
    endif()
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/interop/include/ ${PROJECT_SOURCE_DIR}/engine_plugin/include/
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

# Documents lie to each other as they do here, so that links hold.
function(td_install_documents destination)
    foreach(document IN ITEMS README.md MEASURED.md CHANGELOG.md engine_plugin/INSTALL.md engine_plugin/MODELS.md engine_plugin/INTEGRATION.md engine_plugin/WINDOWS.md engine_plugin/ENGINES.md
            engine_plugin/TROUBLESHOOTING.md engine_plugin/OPERATIONS.md engine_plugin/layer/README.md engine_plugin/python/README.md
            kernels/PROGRAM.md kernels/cache/NOTES.md kernels/conv/NOTES.md interop/PROTOCOL.md demo/overlay.png demo/courtyard.png demo/tavern.png
            demo/integrate.h demo/integrate.c demo/README.md demo/assets/README.md demo/train/README.md)
        cmake_path(GET document PARENT_PATH folder)
        install(FILES ${PROJECT_SOURCE_DIR}/${document} DESTINATION ${destination}/${folder} ${ARGN})
    endforeach()
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine_plugin/examples ${PROJECT_SOURCE_DIR}/engine_plugin/deploy
        DESTINATION ${destination}/engine_plugin ${ARGN} PATTERN "__pycache__" EXCLUDE)
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/engine_plugin/python/examples DESTINATION ${destination}/engine_plugin/python ${ARGN}
        PATTERN "__pycache__" EXCLUDE)
endfunction()
td_install_documents(${CMAKE_INSTALL_DOCDIR})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT TandemTargets NAMESPACE Tandem:: DESTINATION ${package_dir} COMPONENT development)
configure_package_config_file(${package_in}/TandemConfig.cmake.in ${package_out}/TandemConfig.cmake
    INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${package_out}/TandemConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${package_out}/TandemConfig.cmake ${package_out}/TandemConfigVersion.cmake DESTINATION ${package_dir}
    COMPONENT development)

# Relative, so that an installed tree can be moved.
file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(${package_in}/tandem.pc.in ${package_out}/tandem.pc @ONLY)
install(FILES ${package_out}/tandem.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# The daemon, with units for the user's service manager. What a unit starts has an absolute path, so it is written when the
# prefix is known for good.
if(TARGET tandemd)
    install(TARGETS tandemd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT daemon)
endif()
if(TARGET tandemd AND NOT WIN32)
    install(CODE "
        set(bindir \"${CMAKE_INSTALL_BINDIR}\")
        cmake_path(ABSOLUTE_PATH bindir BASE_DIRECTORY \"\${CMAKE_INSTALL_PREFIX}\" NORMALIZE)
        string(REPLACE % %% bindir \"\${bindir}\")
        configure_file(\"${package_in}/tandemd.service.in\" \"${package_out}/tandemd.service\" @ONLY)" COMPONENT daemon)
    install(FILES ${package_out}/tandemd.service ${package_in}/tandemd.socket DESTINATION lib/systemd/user COMPONENT daemon)
endif()

# Installed programs and the library find what lies beside the library, wherever that is. In the build folder they have the same
# path: else CMake keeps room for it by colons, each of which is the current folder to the loader. Below /usr, where packages
# put them, the loader looks by itself, and Debian wants no path.
file(RELATIVE_PATH bin_to_lib /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
file(RELATIVE_PATH libexec_to_lib /prefix/${CMAKE_INSTALL_LIBEXECDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
function(td_look_in target component folder path)
    if(TARGET ${target} AND NOT WIN32) # there they lie in one folder
        set_property(TARGET ${target} APPEND PROPERTY INSTALL_RPATH "${path}")
        set_property(TARGET ${target} PROPERTY BUILD_WITH_INSTALL_RPATH ON)
        install(CODE "
            if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
                file(RPATH_REMOVE FILE \"\$ENV{DESTDIR}/usr/${folder}/$<TARGET_FILE_NAME:${target}>\")
            endif()" COMPONENT ${component})
    endif()
endfunction()
td_look_in(tandem_library library ${CMAKE_INSTALL_LIBDIR} "$ORIGIN")
td_look_in(tandem_layer layer ${CMAKE_INSTALL_LIBDIR}/tandem "$ORIGIN;$ORIGIN/..") # built beside the library, installed below it
td_look_in(tandem_tool tools ${CMAKE_INSTALL_BINDIR} "$ORIGIN/${bin_to_lib}")
td_look_in(tandemd daemon ${CMAKE_INSTALL_BINDIR} "$ORIGIN/${bin_to_lib}")
td_look_in(tandem_bench tools ${CMAKE_INSTALL_LIBEXECDIR} "$ORIGIN/${libexec_to_lib}")
td_look_in(tandem_serve tools ${CMAKE_INSTALL_LIBEXECDIR} "$ORIGIN/${libexec_to_lib}")
