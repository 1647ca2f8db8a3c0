#!/bin/sh
# The C example of README.md compiles without a warning and runs; and no example counts the bytes of its structs by hand.
# usage: test_example.sh BUILD
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# try FILE: compiles it as a user would, and runs it.
try() {
    gcc -std=c17 -Wall -Wextra -Werror -I"$root/interop/include" -I"$root/engine_plugin/include" "$1" -o "$work/example" \
        -L"$build" -ltandem -Wl,-rpath,"$build"
    timeout 60 "$work/example"
}

# by_hand FILE...: what is to be copied from leaves struct_bytes to TANDEM_INIT().
by_hand() {
    grep -rnE 'struct_bytes *= *(\(uint32_t\) *)?sizeof' "$@"
}

echo '    tandem_job job = {.struct_bytes = sizeof job};' >"$work/by_hand.c"
by_hand "$work/by_hand.c" >/dev/null || {
    echo "a struct_bytes that is set by hand is not found"
    exit 1
}
if by_hand "$root/tests/plugin/example.c" "$root/tests/plugin/test_install.sh" "$root/tests/plugin/test_integration.c" "$root/demo" \
    "$root/engine_plugin/tool" $(find "$root" -maxdepth 2 -name '*.md'); then
    echo "an example sets struct_bytes by hand: TANDEM_INIT() does"
    exit 1
fi

try "$root/tests/plugin/example.c"

# What engine programmers copy needs nothing but the public headers.
mkdir "$work/demo"
cp "$root/demo/integrate.c" "$root/demo/integrate.h" "$work/demo"
gcc -std=c17 -Wall -Wextra -Werror -I"$root/interop/include" -I"$root/engine_plugin/include" -I"$work" -c "$work/demo/integrate.c" \
    -o "$work/integrate.o"
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
' "$root/tests/plugin/test_integration.c" "$root/engine_plugin/INTEGRATION.md" || {
    echo "a C text of INTEGRATION.md is not in tests/plugin/test_integration.c"
    exit 1
}
