#!/bin/sh
# Builds with gcc's --coverage into build-coverage/, runs the tests there, and prints how much of the host's code they ran.
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
least=85
case ${1-} in
--least)
    least=$2
    shift 2
    ;;
-h | --help)
    cat <<'END'
usage: sh tests/coverage.sh [--least PERCENT] [options of ctest]
False if a test fails, or if tests run less of the lines of interop, kernels, engine_plugin and demo than that: 85 if not given.
What only a GPU runs counts as not run. tests/coverage_lines.py build-coverage --lines FILE says which lines of a file they are.
END
    exit 0
    ;;
esac

. "$root/demo/setup.sh"
td_packages="$td_packages groff-base mandoc python3-pip vulkan-tools"
td_install
flags="--coverage -fprofile-update=atomic"
td_build default build-coverage -B "$root/build-coverage" -DTANDEM_CUDA=OFF -DTANDEM_CLANG=OFF "-DCMAKE_C_FLAGS=$flags" \
    -DCMAKE_EXE_LINKER_FLAGS=--coverage -DCMAKE_SHARED_LINKER_FLAGS=--coverage -DCMAKE_MODULE_LINKER_FLAGS=--coverage
find "$root/build-coverage" -name '*.gcda' -delete
result=0
export TANDEM_SANITIZED=1 # what counts is slow, and no process confines itself
# One test runs the tool as nobody, who could make no files here.
(umask 0 && "$root/build-coverage/tandem" --version >/dev/null)
# Not what says something of files alone: packages, pages, who includes whom.
ctest --test-dir "$root/build-coverage" --output-on-failure -j"$(nproc)" \
    -E 'test_(abidiff|docs|floors|growth|install|packages|portable|scripts|site|symbols)' "$@" || result=1
python3 -B "$root/tests/coverage_lines.py" "$root/build-coverage" --least "$least" || result=1
exit $result
