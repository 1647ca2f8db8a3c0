#!/bin/sh
# cppcheck and clang-tidy over the C of what ships; false if they have something to say.
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
case ${1-} in
-h | --help)
    cat <<'END'
usage: sh tests/lint.sh [FILE...]
Checks these files, or else all C files of interop, kernels, engine_plugin and demo, on all processors: minutes then. Needs
cppcheck, clang-tidy and a tree that was configured: build/, or $TANDEM_BUILD. What is checked for is in .clang-tidy.
END
    exit 0
    ;;
esac
build=${TANDEM_BUILD:-$root/build}
for tool in cppcheck clang-tidy; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "lint: $tool is missing: apt-get install cppcheck clang-tidy" >&2
        exit 77
    }
done
[ -f "$build/compile_commands.json" ] || {
    echo "lint: $build was not configured: cmake --preset default" >&2
    exit 2
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

if [ $# -gt 0 ]; then
    printf '%s\n' "$@" >"$work/asked"
else
    (cd "$root" && find interop kernels engine_plugin demo -name '*.c') | sort | sed "s,^,$root/," >"$work/asked"
fi
# Those that are compiled here: the others' headers may be missing.
: >"$work/files"
while read -r file; do
    path=$(realpath "$file")
    if grep -qF "\"file\": \"$path\"" "$build/compile_commands.json"; then
        printf '%s\n' "$path" >>"$work/files"
    else
        echo "lint: not built, and left out: $file"
    fi
done <"$work/asked"
[ -s "$work/files" ] || {
    echo "lint: none of these is built in $build" >&2
    exit 2
}

jobs=$(nproc 2>/dev/null || echo 2)
# Not its opinion of NaN, by which it takes log(0) for a mistake.
cppcheck --std=c11 --enable=warning,performance --inline-suppr --quiet -j "$jobs" --error-exitcode=1 --library=posix \
    "--library=$root/tests/lint.cfg" --suppress=invalidFunctionArg --suppress=nullPointer "-I$root" "-I$root/interop/include" \
    "-I$root/engine_plugin/include" "-I$build" "-I$build/shaders" --template='{file}:{line}: {message} [{id}]' \
    --file-list="$work/files" >"$work/cppcheck" 2>&1 || :
xargs -P "$jobs" -n 1 clang-tidy --quiet -p "$build" "--config-file=$root/.clang-tidy" <"$work/files" >"$work/tidy" 2>"$work/errors" || :
sed "s,$root/,," "$work/cppcheck" | grep ' \[[a-zA-Z_]*\]$' | sort -u >"$work/said" || :
sed "s,$root/,," "$work/tidy" | grep -E ': (warning|error): ' | sort -u >>"$work/said" || :
cat "$work/said"
count=$(wc -l <"$work/said")
echo "lint: $(wc -l <"$work/files") files, $count to mend"
[ "$count" = 0 ]
