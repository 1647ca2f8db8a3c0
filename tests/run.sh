#!/bin/sh
# Installs what is missing, builds with and without sanitizers, and runs every test of both.
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)

for argument in "$@"; do
    case $argument in
    -h | --help)
        cat <<'END'
usage: sh tests/run.sh [options of ctest]
Installs missing Debian packages (says which, asks nothing), builds build/ and build-asan/ (address and
undefined-behaviour sanitizers), and runs ctest in both; fails if any test fails. A second run builds only what changed.
  sh tests/run.sh -R cpu      only the tests with "cpu" in their names
END
        exit 0
        ;;
    esac
done

. "$root/demo/setup.sh"
td_packages="$td_packages clang libclang-rt-14-dev" # libFuzzer
td_install
td_build default build
td_build asan build-asan

result=0
for tree in build build-asan; do
    td_say "tests of $tree"
    ctest --test-dir "$root/$tree" --output-on-failure --no-tests=error -j2 "$@" || result=1
done
exit $result
