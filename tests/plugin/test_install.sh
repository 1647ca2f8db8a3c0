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
unit=$work/first/lib/systemd/user/tandemd.service
grep -qxF "ExecStart=\"$work/first/bin/tandemd\"" "$unit" || {
    echo "the unit does not start the daemon that was installed: $(grep ExecStart "$unit")"
    exit 1
}
if command -v systemd-analyze >/dev/null 2>&1; then
    XDG_RUNTIME_DIR=$work systemd-analyze --user verify "$unit" >"$work/log" 2>&1 || {
        cat "$work/log"
        exit 1
    }
fi
DESTDIR=$work/packed cmake --install "$build" --prefix "/opt/50%/tandem" >"$work/log" 2>&1
grep -qxF 'ExecStart="/opt/50%%/tandem/bin/tandemd"' "$work/packed/opt/50%/tandem/lib/systemd/user/tandemd.service" || {
    echo "the unit of a package does not start the daemon where the package will lie"
    exit 1
}
rm "$unit" # what is moved has to name its new place there
mv "$work/first" "$work/moved"
prefix=$work/moved
for file in include/tandem/types.h include/tandem/tandem.h include/tandem/vulkan.h include/tandem/npc.h include/tandem/plugin.h \
    include/tandem/tandem.hpp include/tandem/vulkan.hpp; do
    [ -f "$prefix/$file" ] || {
        echo "not installed: $file"
        exit 1
    }
done
# What README shows, and the pages of parts that are installed, for who has no sources.
source=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
for file in $(sed -n -e 's/^!\[.*](\([^)]*\))$/\1/p' -e 's/.*](\(engine_plugin\/layer[^)]*\|demo\/assets[^)#]*\)[)#].*/\1/p' "$source/README.md" "$source/demo/README.md" | sed 's/^\([a-z]*\.png\)$/demo\/\1/'); do
    [ -s "$prefix/share/doc/tandem/$file" ] || {
        echo "a README names $file, which is not installed"
        exit 1
    }
done
if [ -x "$build/tandem" ]; then
    for file in bin/tandem share/man/man1/tandem.1 share/man/man1/tandem-attend.1 share/man/man1/tandemd.1 share/bash-completion/completions/tandem \
        share/zsh/site-functions/_tandem share/fish/vendor_completions.d/tandem.fish share/tandem/npc.gguf share/tandem/cards/mira.txt; do
        [ -s "$prefix/$file" ] || {
            echo "not installed: $file"
            exit 1
        }
    done
    # A character that was installed with it.
    echo "What is your name?" | env -i "$prefix/bin/tandem" npc --temperature 0 --rung cpu >"$work/log" 2>&1 || [ $? = 1 ] || exit 1
    grep -q 'Brom Ulvarin' "$work/log" || {
        echo "tandem npc does not find its model: $(cat "$work/log")"
        exit 1
    }
    # What few need is a program of its own, which its user finds; its user says so where it was left out.
    if [ -x "$build/tandem-bench" ]; then
        env -i "$prefix/bin/tandem" bench attention --backend cpu --only lunch 2>"$work/log" || [ $? = 2 ] || exit 1
        grep -qx 'tandem bench attention: --only "lunch": must be large or small' "$work/log" || {
            echo "tandem does not find tandem-bench: $(cat "$work/log")"
            exit 1
        }
    fi
    if [ -x "$build/tandem-serve" ]; then
        env -i "$prefix/bin/tandem" serve --model none 2>"$work/log" || [ $? = 1 ] || exit 1
        grep -q '^tandem serve: --model: ' "$work/log" || {
            echo "tandem does not find tandem-serve: $(cat "$work/log")"
            exit 1
        }
    fi
    if [ -e "$build/libtandem_conform.so" ]; then
        env -i "$prefix/bin/tandem" conform -- /bin/true 2>"$work/log" || {
            echo "tandem does not find libtandem_conform.so: $(cat "$work/log")"
            exit 1
        }
    fi
    cp "$prefix/bin/tandem" "$work/alone"
    for command in bench accuracy; do
        "$work/alone" $command --quick 2>"$work/log" || [ $? = 1 ] || exit 1
        grep -qx "tandem $command: tandem-bench, which does this, is not installed: .*" "$work/log" || {
            echo "tandem $command does not say that it lacks tandem-bench: $(cat "$work/log")"
            exit 1
        }
        "$work/alone" $command --help >"$work/log"
    done
fi
# The layer is where its manifest says, seen from there, and finds the library; Vulkan's loader can open it.
if [ -e "$build/libVkLayer_tandem_effect.so" ]; then
    manifests=$prefix/share/vulkan/implicit_layer.d
    path=$(sed -n 's/.*"library_path": "\([^"]*\)".*/\1/p' "$manifests/VkLayer_tandem_effect.json")
    python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1]).vkNegotiateLoaderLayerInterfaceVersion' "$manifests/$path" || {
        echo "the layer is not where its manifest says, or lacks something: $path"
        exit 1
    }
fi
library=$(find "$prefix" -name libtandem.so)
libdir=${library%/*}
[ -n "$library" ] && [ -e "$libdir/libtandem.so.0" ] && [ -f "$libdir/libtandem.so.0.2.0" ]
[ -z "$(find "$prefix" -name '*.a')" ]
# Cubins of five architectures are packed in it: some 11 MB, of 120.
cp "$library" "$work/stripped"
strip "$work/stripped"
bytes=$(wc -c <"$work/stripped")
[ "$bytes" -le 13500000 ] || {
    echo "the stripped library has $bytes bytes, more than 13.5 million"
    exit 1
}
if grep -rIl -e "$build" -e "$work/first" "$prefix"; then
    echo "these name the folder of the build"
    exit 1
fi

# What lies beside the library is found without ldconfig or LD_LIBRARY_PATH, by the library and by the programs.
jansson=$(ldd "$library" | sed -n 's/.*libjansson.so.4 => \([^ ]*\).*/\1/p')
cp "$jansson" "$libdir/libjansson.so.4"
for file in "$library" "$prefix/bin/tandemd" "$prefix/bin/tandem" "$prefix"/libexec/tandem-bench*; do
    [ -e "$file" ] || continue
    [ "$(realpath "$(env -u LD_LIBRARY_PATH ldd "$file" | sed -n 's/.*libjansson.so.4 => \([^ ]*\).*/\1/p')")" = \
        "$(realpath "$libdir/libjansson.so.4")" ] || {
        echo "${file##*/} does not look beside the library"
        exit 1
    }
done
rm "$libdir/libjansson.so.4"
env -i "$prefix/bin/tandem" --help >"$work/log"
env -i "$prefix/bin/tandemd" --help >"$work/log"

# Whatever lies in the folder where somebody runs them is none of theirs.
mkdir "$work/here"
: >"$work/here/libjansson.so.4"
for program in "$build/tandem" "$build/tandemd" "$prefix/bin/tandem" "$prefix/bin/tandemd"; do
    (cd "$work/here" && "$program" --help >"$work/log")
done

# Where INSTALL.md says that it lies.
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
said=$(sed -n 's/.*`export PKG_CONFIG_PATH=\([^`]*\)`.*/\1/p' "$root/engine_plugin/INSTALL.md")
[ "$said" = "/opt/tandem${libdir#"$prefix"}/pkgconfig" ] || {
    echo "INSTALL.md says PKG_CONFIG_PATH=$said; a prefix has it in ${libdir#"$prefix/"}/pkgconfig"
    exit 1
}
export PKG_CONFIG_PATH="$libdir/pkgconfig"
[ "$(pkg-config --modversion tandem)" = 0.2.0 ]

# The examples, as who copies them builds them: by the line at the head of each, with pkg-config, ...
cp -r "$prefix/share/doc/tandem/engine_plugin/examples" "$work/user"
cd "$work/user"
for file in *.c *.cpp; do
    line=$(sed -n 's/^ [*]     \(cc .*\)/\1/p; s,^//     \(c++ .*\),\1,p' "$file")
    line=${line% [[]*}
    [ -n "$line" ] || {
        echo "$file does not say how it is built"
        exit 1
    }
    rm -f a.out
    LD_LIBRARY_PATH=$libdir timeout 60 sh -c "$line" >"$work/log" 2>&1 && [ -x a.out ] || {
        echo "$file: $line: $(cat "$work/log")"
        exit 1
    }
done
# ... into a prefix of one's own, ...
# shellcheck disable=SC2046
cc -std=c11 -pedantic -Wall -Wextra -Werror hello.c -o "$work/by_rpath" $(pkg-config --cflags --libs tandem) \
    "-Wl,-rpath,$(pkg-config --variable=libdir tandem)"
env -u LD_LIBRARY_PATH "$work/by_rpath"
# ... and by CMake, with the package that it finds for itself, or where that is missing with pkg-config's.
# With what the build itself was made by: a machine may have ninja alone.
generator=$(sed -n 's/^CMAKE_GENERATOR:INTERNAL=//p' "$build/CMakeCache.txt")
for way in package pkg-config; do
    set -- -DCMAKE_PREFIX_PATH="$prefix"
    [ $way = package ] || set -- -DCMAKE_DISABLE_FIND_PACKAGE_Tandem=ON
    if ! { cmake -G "$generator" -S . -B "$work/$way" "$@" && cmake --build "$work/$way"; } >"$work/log" 2>&1; then
        cat "$work/log"
        exit 1
    fi
    for program in hello hello_cpp vulkan_buffer vulkan_image; do
        timeout 60 "$work/$way/$program" >"$work/log" || {
            echo "$program by $way: $(cat "$work/log")"
            exit 1
        }
    done
    timeout 60 "$work/$way/dlopen" "$libdir/libtandem.so.0" >"$work/log"
done
