#!/bin/sh
# Builds what Tandem needs for Windows and Debian has for no Windows: from Debian's own sources, which apt checks as it does its
# packages, with mingw-w64, as static libraries.
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
case ${1-} in
-h | --help)
    cat <<'END'
usage: sh demo/setup-windows.sh [FOLDER]
Installs mingw-w64, and Wine to run what it makes, where they are missing (says so, asks nothing), and builds jansson, pcre2,
zstd, libpng and cmocka for Windows into FOLDER (build-windows/libraries). A second run has nothing to do. Then:
  cmake --preset windows && cmake --build build-windows
END
    exit 0
    ;;
esac
folder=${1-$root/build-windows/libraries}

. "$root/demo/setup.sh"
td_packages="gcc-mingw-w64-x86-64-posix g++-mingw-w64-x86-64-posix libz-mingw-w64-dev
wine64 xvfb xauth cmake ninja-build pkg-config glslc libvulkan-dev mesa-vulkan-drivers xz-utils"
td_install

# What of this file and of the packages makes a difference.
made_by=$(cat "$0" "$root/engine_plugin/package/mingw-w64.cmake" | sha256sum)
if [ "$(cat "$folder/made_by" 2>/dev/null)" = "$made_by" ]; then
    td_say "${folder##*/} is as it was built"
    exit 0
fi
rm -rf "$folder"
mkdir -p "$folder/include" "$folder/lib" "$folder/source"
folder=$(CDPATH='' cd -- "$folder" && pwd -P)
cd "$folder/source"

td_fetch_sources jansson pcre2 libzstd libpng1.6 cmocka musl

# build NAME FOLDER_OF_CMAKELISTS OPTIONS...
build() {
    mkdir "$1"
    tar xf "$1"_*.orig.tar.* --strip-components=1 -C "$1" 2>/dev/null || tar xf "$(ls "$1"_*.orig.tar.?z)" --strip-components=1 -C "$1"
    at=$1/$2
    name=$1
    shift 2
    td_say "building $name for Windows"
    if ! {
        cmake -S "$at" -B "$name/made" -G Ninja --toolchain "$root/engine_plugin/package/mingw-w64.cmake" \
            -DTANDEM_WINDOWS_LIBRARIES="$folder" -DCMAKE_INSTALL_PREFIX="$folder" -DCMAKE_BUILD_TYPE=Release \
            -DBUILD_SHARED_LIBS=OFF "$@" && cmake --build "$name/made" && cmake --install "$name/made"
    } >"$name.log" 2>&1; then
        tail -n 60 "$name.log" >&2
        td_die "building $name failed; all of it is in $PWD/$name.log"
    fi
}
build jansson . -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
build pcre2 . -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_JIT=OFF
sed -i 's/^Cflags:/& -DPCRE2_STATIC/' "$folder/lib/pkgconfig/libpcre2-8.pc" # or its functions were taken for those of a DLL
build libzstd build/cmake -DZSTD_BUILD_PROGRAMS=OFF -DZSTD_BUILD_SHARED=OFF -DZSTD_BUILD_TESTS=OFF -DZSTD_MULTITHREAD_SUPPORT=OFF
cat >"$folder/lib/pkgconfig/zlib.pc" <<END
Name: zlib
Description: of Debian's libz-mingw-w64-dev, which says nothing to pkg-config
Version: 1.2
Libs: -L$folder/lib -lz
END
cp /usr/x86_64-w64-mingw32/lib/libz.a "$folder/lib" # beside it lies one of a DLL, which would be taken
build libpng1.6 . -DPNG_SHARED=OFF -DPNG_TESTS=OFF -DPNG_EXECUTABLES=OFF
sed -i 's/^Requires.private:/Requires:/' "$folder/lib/pkgconfig/"libpng*.pc
build cmocka . -DWITH_EXAMPLES=OFF -DUNIT_TESTING=OFF
# It makes a DLL alone, of one file.
rm "$folder/lib/libcmocka.dll.a"
x86_64-w64-mingw32-ar rcs "$folder/lib/libcmocka.a" cmocka/made/src/CMakeFiles/cmocka.dir/cmocka.c.obj

# Functions of floats: MinGW's have other last bits than glibc's. musl's are the same code as glibc's, from Arm's routines.
td_say "building functions of musl for Windows"
mkdir musl musl/made musl/around
tar xf musl_*.orig.tar.gz --strip-components=1 -C musl
printf '#define __BYTE_ORDER 1234\n#define __LITTLE_ENDIAN 1234\n' >musl/around/endian.h
printf '#define weak\n#define hidden\n#define weak_alias(a, b)\n' >musl/around/features.h
for name in log2f log2f_data exp2f exp2f_data logf logf_data log log_data exp exp_data exp2 log2 log2_data pow pow_data fmaf \
    __math_divzero __math_divzerof __math_invalid __math_invalidf __math_oflow __math_oflowf __math_uflow __math_uflowf \
    __math_xflow __math_xflowf; do
    x86_64-w64-mingw32-gcc-posix -O2 -std=gnu99 -ffp-contract=off -frounding-math -w -include musl/around/features.h \
        -I musl/around -I musl/src/internal -I musl/arch/generic -c "musl/src/math/$name.c" -o "musl/made/$name.o"
done
x86_64-w64-mingw32-ar rcs "$folder/lib/libtandem_math.a" musl/made/*.o

# Vulkan: headers are the same everywhere, and the loader is Windows's: of vulkan-1.dll only the names are needed.
ln -sfn /usr/include/vulkan "$folder/include/vulkan"
ln -sfn /usr/include/vk_video "$folder/include/vk_video"
{
    printf 'LIBRARY vulkan-1.dll\nEXPORTS\n'
    sed -n 's/.*VKAPI_CALL \(vk[A-Za-z0-9]*\)(.*/\1/p' /usr/include/vulkan/vulkan_core.h | grep -v '[a-z0-9]\(AMD\|ARM\|EXT\|GOOGLE\|HUAWEI\|INTEL\|NV\|NVX\|QCOM\|VALVE\|QNX\|LUNARG\|SEC\)$'
} >vulkan-1.def
x86_64-w64-mingw32-dlltool -d vulkan-1.def -l "$folder/lib/libvulkan-1.dll.a"
cd "$folder"
rm -rf source
printf '%s\n' "$made_by" >made_by
td_say "built libraries for Windows into $folder"
