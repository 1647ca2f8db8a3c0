# Carries in lib/ the shared libraries that the machine with the GPU may lack. Everything linked here looks in $ORIGIN/lib
# (RUNPATH, so LD_LIBRARY_PATH goes first).
# SPDX-License-Identifier: Apache-2.0
set(carried)
foreach(name cmocka jansson pcre2-8 png16 stb vulkan zstd)
    find_library(TANDEM_CARRY_${name} NAMES ${name})
    if(TANDEM_CARRY_${name})
        list(APPEND carried ${TANDEM_CARRY_${name}})
    endif()
endforeach()
foreach(library IN LISTS carried)
    # libX.so is a link for the linker; programs ask for the name in its SONAME.
    execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${library} OUTPUT_VARIABLE headers)
    string(REGEX MATCH "SONAME +([^ \n]+)" found "${headers}")
    set(soname ${CMAKE_MATCH_1})
    get_filename_component(real ${library} REALPATH)
    configure_file(${real} ${PROJECT_BINARY_DIR}/lib/${soname} COPYONLY)
endforeach()

get_property(targets DIRECTORY ${PROJECT_SOURCE_DIR} PROPERTY BUILDSYSTEM_TARGETS)
get_property(folders DIRECTORY ${PROJECT_SOURCE_DIR} PROPERTY SUBDIRECTORIES)
foreach(folder IN LISTS folders)
    get_property(more DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
    list(APPEND targets ${more})
endforeach()
set(linked)
foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY")
        target_link_options(${target} PRIVATE -s -Wl,--enable-new-dtags)
        get_target_property(excluded ${target} EXCLUDE_FROM_ALL)
        if(NOT excluded)
            list(APPEND linked ${target})
        endif()
    endif()
endforeach()

# Behind all else: a tree that has become too large to be carried is none.
add_custom_target(tandem_tree_size ALL sh ${PROJECT_SOURCE_DIR}/engine_plugin/package/tree_size.sh ${PROJECT_BINARY_DIR} 40
    COMMENT "Weighing the tree" VERBATIM)
add_dependencies(tandem_tree_size ${linked})
