#!/bin/sh
# Installs into an empty prefix, moves it, and builds a program against it by pkg-config and by find_package.
# usage: test_install.sh BUILD
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

cmake --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
mv "$work/first" "$work/moved"
prefix=$work/moved
for file in include/tandem/types.h include/tandem/tandem.h include/tandem/vulkan.h include/tandem/plugin.h; do
    [ -f "$prefix/$file" ] || {
        echo "not installed: $file"
        exit 1
    }
done
library=$(find "$prefix" -name libtandem.so)
libdir=${library%/*}
[ -n "$library" ] && [ -e "$libdir/libtandem.so.0" ] && [ -f "$libdir/libtandem.so.0.1.0" ]
[ -z "$(find "$prefix" -name '*.a')" ]
if grep -rIl -e "$build" -e "$work/first" "$prefix"; then
    echo "these name the folder of the build"
    exit 1
fi

mkdir "$work/user"
cat >"$work/user/user.c" <<'END'
#include <stdio.h>
#include <string.h>
#include <tandem/tandem.h>

int main(void)
{
    tandem_session *session = NULL;
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU};
    if (tandem_version() != TANDEM_VERSION || tandem_session_create(&desc, &session) != TANDEM_OK)
        return 1;
    tandem_info info = {.struct_bytes = sizeof info};
    if (tandem_session_info(session, &info) != TANDEM_OK || info.backend != TANDEM_BACKEND_CPU)
        return 2;
    printf("%s, %s\n", info.device, tandem_status_text(TANDEM_OK));
    return tandem_session_destroy(&session) == TANDEM_OK ? 0 : 3;
}
END
export PKG_CONFIG_PATH="$libdir/pkgconfig"
[ "$(pkg-config --modversion tandem)" = 0.1.0 ]
# shellcheck disable=SC2046
gcc -std=c17 -Wall -Wextra -Werror "$work/user/user.c" -o "$work/by_pkg_config" $(pkg-config --cflags --libs tandem)
LD_LIBRARY_PATH=$libdir "$work/by_pkg_config"

cat >"$work/user/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(Tandem 0.1 REQUIRED)
add_executable(user user.c)
target_link_libraries(user PRIVATE Tandem::tandem)
END
# With what the build itself was made by: a machine may have ninja alone.
generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build/CMakeCache.txt")
if ! { cmake -G "$generator" -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$prefix" && cmake --build "$work/user/build"; } \
    >"$work/log" 2>&1; then
    cat "$work/log"
    exit 1
fi
"$work/user/build/user"
