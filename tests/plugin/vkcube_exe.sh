#!/bin/sh
# Builds vkcube for Windows out of Debian's sources, for layer_programs.py to run under Wine.
# SPDX-License-Identifier: Apache-2.0
# usage: vkcube_exe.sh LIBRARIES OUT.exe      LIBRARIES as demo/setup-windows.sh makes them
set -eu
[ $# = 2 ] && [ -e "$1/include/vulkan" ] || {
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
}
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
. "$root/demo/setup.sh"
libraries=$(CDPATH='' cd -- "$1" && pwd -P)
out=$(CDPATH='' cd -- "$(dirname -- "$2")" && pwd -P)/$(basename -- "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
td_fetch_sources vulkan-tools
tar xf vulkan-tools_*.orig.tar.* --strip-components=1
for stage in vert frag; do
    glslc -mfmt=num -o "cube.$stage.inc" "cube/cube.$stage"
done
printf 'LIBRARY vulkan-1.dll\nEXPORTS\nvkCreateWin32SurfaceKHR\n' >surface.def # of no header that makes the other names
x86_64-w64-mingw32-dlltool -d surface.def -l libsurface.a
x86_64-w64-mingw32-gcc-posix -O1 -w -DVK_USE_PLATFORM_WIN32_KHR -I. -Icube -I"$libraries/include" -o "$out" cube/cube.c \
    -L"$libraries/lib" -lvulkan-1 -L. -lsurface -lgdi32 -mwindows
