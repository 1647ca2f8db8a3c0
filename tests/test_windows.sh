#!/bin/sh
# Builds for Windows with warnings as errors, runs by Wine what runs there, compares the tool's results with Linux's to the last
# bit, and looks into the archive. usage: test_windows.sh BUILD_FOLDER
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
build=$1
windows=$root/build-windows
PATH=$PATH:/usr/lib/wine

skip() {
    printf 'test_windows: skipped: %s\n' "$1"
    exit 77
}
command -v x86_64-w64-mingw32-gcc-posix >/dev/null || skip "no mingw-w64"
command -v wine64 >/dev/null || command -v wine >/dev/null || skip "no Wine"
command -v xvfb-run >/dev/null || skip "no Xvfb, for Wine's Vulkan"
[ -e "$windows/libraries/made_by" ] || skip "demo/setup-windows.sh was not run"
[ -x "$build/tandem" ] || skip "the tool for Linux is not built"

cd "$root"
images= # of the GPU kernels, if Linux's build has some
[ ! -e "$build/kernels/cuda/norm.sm_80.cubin.zst" ] || images=$build
cmake --preset windows -G Ninja -DTANDEM_CUDA_IMAGES="$images" >"$windows/configure.log" 2>&1 || { cat "$windows/configure.log"; exit 1; }
cmake --build "$windows" >"$windows/build.log" 2>&1 || { tail -n 60 "$windows/build.log"; exit 1; }
ctest --test-dir "$windows" --output-on-failure --no-tests=error -j2

# The same bits.
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
tandem() { sh "$root/tests/windows/wine.sh" "$windows" "$windows/tandem.exe" "$@" 2>"$out/said"; }
"$build/tandem" sample-qkv --out "$out/linux" --batch 1 --heads 4 >/dev/null
tandem sample-qkv --out "$out/windows" --batch 1 --heads 4 >/dev/null
cmp "$out/linux" "$out/windows"
same=1
for precision in f16 8b 4b; do
    for isa in $("$build/tandem" info | sed -n 's/^cpu: avx512-vnni.*/c avx2 avx512-vnni/p; s/^cpu: avx2.*/c avx2/p; s/^cpu: c\b.*/c/p'); do
        for causal in "" --causal; do
            "$build/tandem" attend --in "$out/linux" --out "$out/a" --precision $precision --isa "$isa" --codes $causal >/dev/null
            tandem attend --in "$out/linux" --out "$out/b" --precision $precision --isa "$isa" --codes $causal >/dev/null
            cmp "$out/a" "$out/b"
            same=$((same + 1))
        done
    done
done
[ $same -gt 3 ]
[ "$(tandem info | tr -d '\r' | grep '^build: ')" = "$("$build/tandem" info | grep '^build: ')" ] # the same kernels
# What characters say, from a file in a folder whose name is no ASCII.
mkdir "$out/tät"
cp "$root/demo/assets/npc.gguf" "$out/tät/m.gguf"
for run in "$build/tandem" tandem; do
    printf 'Who are you?\nWhat do you sell?\n' | $run npc --seed 3 --json --model "$out/tät/m.gguf" | sed 's/, "ms":.*//' >"$out/npc.${run##*/}.$same"
    same=$((same + 1))
done
cmp "$out"/npc.*
[ -s "$out/npc.tandem.$((same - 1))" ]
# What is not there says so, and fails.
for command in accuracy bench conform doctor eval fetch serve tune; do
    if tandem $command; then
        echo "tandem.exe $command did not fail"
        exit 1
    fi
    grep -q "^tandem $command: not on Windows: " "$out/said" || { cat "$out/said"; exit 1; }
done

# The archive has all that an engine programmer needs, and nothing in it needs what Windows has not.
(cd "$windows" && cpack -G ZIP >cpack.log)
archive=$(ls "$windows"/packages/tandem-*-windows-x86_64.zip)
(cd "$out" && cmake -E tar xf "$archive")
tree=$(ls -d "$out"/tandem-*)
for file in bin/libtandem.dll bin/tandem.exe bin/tandemd.exe bin/VkLayer_tandem_effect.dll bin/VkLayer_tandem_effect.json \
    lib/libtandem.dll.a lib/cmake/Tandem/TandemConfig.cmake \
    include/tandem/tandem.h include/tandem/types.h include/tandem/vulkan.h include/tandem/npc.h include/tandem/plugin.h \
    share/doc/tandem/LICENSE share/doc/tandem/engine_plugin/WINDOWS.md; do
    [ -s "$tree/$file" ] || { echo "the archive lacks $file"; exit 1; }
done
for file in bin/libtandem.dll bin/tandem.exe bin/tandemd.exe bin/VkLayer_tandem_effect.dll; do
    strange=$(x86_64-w64-mingw32-objdump -p "$tree/$file" | sed -n 's/.*DLL Name: //p' | grep -viE '^(advapi32|kernel32|msvcrt|ntdll|user32|api-ms-win-.*)\.dll$' || :)
    [ -z "$strange" ] || { echo "$file needs $strange"; exit 1; }
done
exports=$(x86_64-w64-mingw32-objdump -p "$tree/bin/libtandem.dll" | sed -n '/\[Ordinal\/Name/,$ s/.*\] \(tandem_[a-z_0-9]*\)$/\1/p' | sort)
[ "$exports" = "$(sed -n 's/^        \(tandem_[a-z_0-9]*\);.*/\1/p' "$root/engine_plugin/package/tandem.map" | sort)" ]
exports=$(x86_64-w64-mingw32-objdump -p "$tree/bin/VkLayer_tandem_effect.dll" | sed -n '/\[Ordinal\/Name/,$ s/^\t\[ *[0-9]*\] \([^ ]*\)$/\1/p')
[ "$exports" = vkNegotiateLoaderLayerInterfaceVersion ] || { echo "the layer exports $exports"; exit 1; }
x86_64-w64-mingw32-gcc-posix "$root/engine_plugin/examples/hello.c" -I "$tree/include" -L "$tree/lib" -ltandem -o "$tree/bin/hello.exe"
sh "$root/tests/windows/wine.sh" "$windows" "$tree/bin/hello.exe" | grep -q "^done, "
# The daemon of the archive: another PROGRAM of the same name cannot be meant, and what is wrong in its configuration is named.
daemon() { sh "$root/tests/windows/wine.sh" "$windows" "$tree/bin/tandemd.exe" "$@" 2>"$out/said"; }
daemon --version | grep -q "^tandemd [0-9]"
daemon --help | grep -q '[\\]pipe[\\]NAME'
printf 'metrics = 9000\n' >"$out/wrong.conf"
if daemon --socket '\\.\pipe\tandem-test-archive' --config "$out/wrong.conf"; then
    echo "tandemd.exe took metrics"
    exit 1
fi
grep -q "metrics is 9000: must be 0 on Windows" "$out/said" || { cat "$out/said"; exit 1; }
if daemon --socket /tmp/tandem-0; then
    echo "tandemd.exe took a path of Linux"
    exit 1
fi
grep -q "socket path '/tmp/tandem-0' must be of a pipe" "$out/said" || { cat "$out/said"; exit 1; }
printf 'test_windows: %d results of the tool are those of Linux; the archive has %d KiB\n' "$same" "$(($(stat -c %s "$archive") / 1024))"
