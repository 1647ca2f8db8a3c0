# Writes TABLE, a C file with td_cubins(): what IMAGE.log says about the entries of each of IMAGES (NAME.ARCH.cubin,
# NAME.ARCH.ptx), and where the bytes of IMAGE.zst are (CMakeLists.txt), declared with HIDDEN. ON_DEMAND: names of those that executors load when
# they are needed.
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D "IMAGES=a;b" -D "ON_DEMAND=a" -D TABLE=... -D HIDDEN=... -P table.cmake
cmake_minimum_required(VERSION 3.25)
set(blobs "")
set(entries "")
set(archs "")
foreach(image IN LISTS IMAGES)
    get_filename_component(image_name ${image} NAME_WE)
    get_filename_component(arch ${image} NAME_WLE)
    string(REGEX REPLACE "^.*\\." "" arch ${arch})
    list(APPEND archs ${arch})
    set(id ${image_name}_${arch})
    string(APPEND blobs "extern const unsigned char blob_${id}[]${HIDDEN};\n")
    string(APPEND entries "static const td_cubin_entry entries_${id}[] = {\n")
    set(entry_count 0)
    if(image MATCHES "\\.ptx$") # registers are known once the driver has compiled it
        set(ptx_${arch} true)
        file(STRINGS ${image}.log lines REGEX "\\.entry ")
        foreach(line IN LISTS lines)
            string(REGEX REPLACE ".*\\.entry ([A-Za-z0-9_]+).*" "\\1" name "${line}")
            string(APPEND entries "    {\"${name}\", 0, 0, 0},\n")
            math(EXPR entry_count "${entry_count} + 1")
        endforeach()
    else()
        set(ptx_${arch} false)
        set(local 0)
        file(STRINGS ${image}.log lines)
        foreach(line IN LISTS lines)
            if(line MATCHES "Compiling entry function '([A-Za-z0-9_]+)'")
                set(name ${CMAKE_MATCH_1})
            elseif(line MATCHES "Stack size for entry function '[A-Za-z0-9_]+' cannot be statically determined")
                # Then nothing says what a launch needs, and in a command buffer one that needs more loses the device.
                message(FATAL_ERROR "${image}: a kernel is recursive: ${line}")
            elseif(line MATCHES "([0-9]+) bytes stack frame")
                set(local ${CMAKE_MATCH_1})
            elseif(line MATCHES "Used ([0-9]+) registers")
                set(registers ${CMAKE_MATCH_1})
                set(shared 0)
                if(line MATCHES "([0-9]+) bytes smem")
                    set(shared ${CMAKE_MATCH_1})
                endif()
                string(APPEND entries "    {\"${name}\", ${registers}, ${shared}, ${local}},\n")
                math(EXPR entry_count "${entry_count} + 1")
            endif()
        endforeach()
    endif()
    if(entry_count EQUAL 0)
        message(FATAL_ERROR "no kernel is named in ${image} or its log")
    endif()
    string(APPEND entries "};\n")
    file(STRINGS ${image}.log image_bytes REGEX "^image of [0-9]+ bytes$")
    string(REGEX REPLACE "[^0-9]" "" image_bytes "${image_bytes}")
    file(SIZE ${image}.zst bytes)
    set(when false)
    if(image_name IN_LIST ON_DEMAND)
        set(when true)
    endif()
    string(APPEND images_${arch}
        "    {\"${image_name}\", ${when}, blob_${id}, ${bytes}, ${image_bytes}, entries_${id}, ${entry_count}},\n")
    math(EXPR image_count_${arch} "0${image_count_${arch}} + 1")
endforeach()
set(images "")
set(rows "")
list(REMOVE_DUPLICATES archs)
foreach(arch IN LISTS archs)
    string(REGEX REPLACE "[^0-9]" "" sm ${arch})
    string(APPEND images "static const td_image images_${arch}[] = {\n${images_${arch}}};\n")
    string(APPEND rows "        {${sm}, ${ptx_${arch}}, images_${arch}, ${image_count_${arch}}},\n")
endforeach()

set(text [=[
/* Made by kernels/cuda/table.cmake. */
#include "kernels/target.h"

@blobs@
@entries@
@images@
__attribute__((visibility("default"))) const td_cubin *td_cubins(uint32_t *count)
{
    static const td_cubin table[] = {
@rows@    };

    *count = sizeof table / sizeof table[0];
    return table;
}
]=])
string(CONFIGURE "${text}" text @ONLY)
file(WRITE ${TABLE} "${text}")
