#!/bin/sh
# The C example of README.md compiles without a warning and runs.
# usage: test_example.sh BUILD
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# try FILE: compiles it as a user would, and runs it.
try() {
    gcc -std=c17 -Wall -Wextra -Werror -I"$root/interop/include" -I"$root/engine_plugin/include" "$1" -o "$work/example" \
        -L"$build" -ltandem -Wl,-rpath,"$build"
    timeout 60 "$work/example"
}

try "$root/tests/example.c"
[ -f "$root/README.md" ] || exit 0
awk '
    /^```c[ \t]*$/ { inside = 1; text = ""; next }
    /^```/ && inside { inside = 0; if (text ~ /int main\(/) { printf "%s", text; found++ } next }
    inside { text = text $0 "\n" }
    END { exit found != 1 }
' "$root/README.md" >"$work/readme.c" || {
    echo "README.md must hold exactly one C example with main()"
    exit 1
}
try "$work/readme.c"

# Each C text of INTEGRATION.md is, word for word, in the program that tries it.
awk '
    NR == FNR { program = program $0 "\n"; next }
    /^```c[ \t]*$/ { inside = 1; text = ""; next }
    /^```/ && inside { inside = 0; found++; if (!index(program, text)) { printf "not tried:\n%s", text; wrong = 1 } next }
    inside { text = text $0 "\n" }
    END { exit wrong || !found }
' "$root/tests/test_integration.c" "$root/engine_plugin/INTEGRATION.md" || {
    echo "a C text of INTEGRATION.md is not in tests/test_integration.c"
    exit 1
}
