#!/bin/sh
# tests/lint.sh finds a mistake of each kind that it looks for, and nothing in what has none.
# usage: test_lint.sh [BUILD]
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
for tool in cppcheck clang-tidy; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "$tool is missing"
        exit 77
    }
done
work=$(realpath "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fail() {
    echo "test_lint: $*"
    cat "$work/out"
    exit 1
}

cat >"$work/good.c" <<'END'
#include <string.h>
int same(const char *a, const char *b);
int same(const char *a, const char *b)
{
    return !strcmp(a, b);
}
END
cat >"$work/leak.c" <<'END'
#include <stdlib.h>
int leak(int n);
int leak(int n)
{
    int *list = malloc(sizeof *list * 4);
    if (!list)
        return -1;
    list[n & 3] = n;
    return list[0];
}
END
cat >"$work/beyond.c" <<'END'
int beyond(void);
int beyond(void)
{
    int list[4] = {0};
    return list[4];
}
END
cat >"$work/macro.c" <<'END'
#define TWICE(x) x + x
int macro(int a);
int macro(int a)
{
    return 3 * TWICE(a);
}
END
entries=
for file in good leak beyond macro; do
    entries="$entries${entries:+,}{\"directory\": \"$work\", \"command\": \"cc -c $work/$file.c\", \"file\": \"$work/$file.c\"}"
done
mkdir "$work/build"
printf '[%s]\n' "$entries" | sed 's/},{/},\n{/g' >"$work/build/compile_commands.json"
export TANDEM_BUILD="$work/build"

sh "$root/tests/lint.sh" "$work/good.c" >"$work/out" 2>&1 || fail "it finds something in what is right"
for found in 'leak:clang-analyzer-unix.Malloc' 'leak:memleak' 'beyond:arrayIndexOutOfBounds' 'macro:bugprone-macro-parentheses'; do
    if sh "$root/tests/lint.sh" "$work/good.c" "$work/${found%%:*}.c" >"$work/out" 2>&1; then
        fail "${found%%:*}.c passes"
    fi
    grep -qF "[${found#*:}]" "$work/out" || fail "it does not find ${found#*:}"
done
if sh "$root/tests/lint.sh" "$work/none.c" >"$work/out" 2>&1; then
    fail "a file that is not built passes"
fi
