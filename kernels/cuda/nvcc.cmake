# Compiles SOURCE into IMAGE, ".../NAME.sm_<arch>.cubin" or ".../NAME.compute_<arch>.ptx", and packs it as IMAGE.zst. What it
# includes goes to IMAGE.d; what ptxas says to IMAGE.log, and behind it PTX's entries and the image's size. KEEP: the image
# itself stays as well. PTX: SOURCE's for 8.0, of which IMAGE is made where its code is the same; it has the IMAGE.d of both.
# SPDX-License-Identifier: Apache-2.0
#
# cmake -D NVCC=... -D ROOT=<project> -D SOURCE=<below ROOT> -D IMAGE=... -D KEEP=ON [-D PTX=...] -P nvcc.cmake
cmake_minimum_required(VERSION 3.25)
get_filename_component(arch ${IMAGE} NAME_WLE)
string(REGEX REPLACE "^.*\\." "" arch ${arch})
if(IMAGE MATCHES "\\.ptx$")
    set(kind -ptx)
else()
    set(kind -cubin -Xptxas -v)
endif()
if(PTX AND arch STREQUAL "sm_89") # which has e4m3: what asks for that, or which it is, is compiled for it
    file(READ ${PTX}.d made_of)
    string(REPLACE "${ROOT}/" "" made_of "${made_of}")
    string(REGEX MATCHALL "kernels/[^ \\\n]+[.](cuh?|h)" made_of "${made_of}")
    list(REMOVE_ITEM made_of kernels/cuda/ptx.cuh) # it adds functions alone
    foreach(file IN LISTS made_of)
        file(STRINGS ${ROOT}/${file} asks REGEX "TD_HAVE_E4M3|__CUDA_ARCH__ *[<=>!]+ *8")
        if(asks)
            set(PTX "")
        endif()
    endforeach()
endif()
if(PTX)
    set(from ${PTX})
else()
    set(from -std=c++17 -I${ROOT} -I${ROOT}/interop/include -MMD -MF ${IMAGE}.d -MT ${IMAGE}.zst ${ROOT}/${SOURCE})
endif()
execute_process(
    COMMAND ${NVCC} ${kind} -arch=${arch} -O3 -Werror all-warnings ${from} -o ${IMAGE}
    WORKING_DIRECTORY ${ROOT} RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
file(WRITE ${IMAGE}.log "${text}")
if(result)
    file(REMOVE ${IMAGE})
    message(FATAL_ERROR "nvcc failed for ${SOURCE}, ${arch}:\n${text}")
endif()
if(IMAGE MATCHES "\\.ptx$")
    file(STRINGS ${IMAGE} entries REGEX "\\.entry ")
    list(JOIN entries "\n" entries)
    file(APPEND ${IMAGE}.log "${entries}\n")
endif()
file(SIZE ${IMAGE} bytes)
file(APPEND ${IMAGE}.log "image of ${bytes} bytes\n")
execute_process(COMMAND zstd -q -19 --check -f ${IMAGE} -o ${IMAGE}.zst COMMAND_ERROR_IS_FATAL ANY)
if(NOT KEEP)
    file(REMOVE ${IMAGE})
endif()
