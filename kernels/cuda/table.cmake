# Writes TABLE, a C file with td_cubins(): the bytes of IMAGES, from IMAGE.gz, and what IMAGE.log says about each entry.
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D "IMAGES=a;b" -D TABLE=... -P table.cmake
cmake_minimum_required(VERSION 3.25)
set(blobs "")
set(entries "")
set(rows "")
foreach(image IN LISTS IMAGES)
    get_filename_component(arch ${image} NAME_WLE)
    string(REGEX REPLACE "[^0-9]" "" sm ${arch})
    string(APPEND blobs "BLOB(${arch}, \"${image}.gz\")\n")
    string(APPEND entries "static const td_cubin_entry entries_${arch}[] = {\n")
    set(entry_count 0)
    if(image MATCHES "\\.ptx$") # registers are known once the driver has compiled it
        set(ptx true)
        file(STRINGS ${image}.log lines REGEX "\\.entry ")
        foreach(line IN LISTS lines)
            string(REGEX REPLACE ".*\\.entry ([A-Za-z0-9_]+).*" "\\1" name "${line}")
            string(APPEND entries "    {\"${name}\", 0, 0, 0},\n")
            math(EXPR entry_count "${entry_count} + 1")
        endforeach()
    else()
        set(ptx false)
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
    file(SIZE ${image}.gz bytes)
    string(APPEND rows
        "        {${sm}, ${ptx}, blob_${arch}, ${bytes}, ${image_bytes}, entries_${arch}, ${entry_count}},\n")
endforeach()

set(text [=[
/* Made by kernels/cuda/table.cmake. */
#include "kernels/ops.h"

#define BLOB(name, path)                                                                                     \
    extern const unsigned char blob_##name[] __attribute__((visibility("hidden")));                          \
    __asm__(".pushsection .rodata\n.globl blob_" #name "\n.hidden blob_" #name "\nblob_" #name              \
            ":\n.incbin \"" path "\"\n.popsection");
@blobs@
@entries@
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
