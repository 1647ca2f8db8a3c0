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

for script in demo/run.sh demo/setup.sh tests/run.sh tests/gpu.sh tests/test_*.sh; do
    case $script in
    *'*'*) continue ;;
    esac
    sh -n "$root/$script" || fail "$script does not parse"
done
bash -n "$root/.ci/run" || fail ".ci/run does not parse"
grep -q '^exec sh tests/run.sh$' "$root/.ci/run" || fail ".ci/run is more than tests/run.sh"

# --help and a wrong option come before any set-up: nothing to install or build with is on this PATH.
mkdir "$work/bare" "$work/bin"
for tool in cat dirname; do
    ln -s "$(command -v $tool)" "$work/bare/$tool"
done
sh=$(command -v sh)
for script in demo/run.sh tests/run.sh tests/gpu.sh; do
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
for package in gcc cmake glslc libvulkan-dev mesa-vulkan-drivers libimgui-dev libcmocka-dev libjansson-dev libpng-dev; do
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
if slow 1; then fail "a build that fails passes"; fi
grep -q 'building built failed' "$work/out" || fail "a build does not say that it failed"
rm "$work/bin/apt-get"
if install 0; then fail "went on without apt-get"; fi
grep -q 'no apt-get.* glslc libpng-dev' "$work/out" || fail "does not name what is missing"
printf '%s\n' $all >"$work/installed"
install 1000 || fail "needs apt-get with everything there"

# A machine with a GPU of our own making, and a tree whose programs do as they are told.
rm -rf "$work/bin"
mkdir "$work/bin" "$work/tree"
cat >"$work/bin/nvidia-smi" <<'END'
#!/bin/sh
case $1 in
*name*) echo "GPU of straw" ;;
*driver_version*) echo 1.2.3 ;;
*compute_cap*) echo 9.0 ;;
esac
END
cat >"$work/bin/compute-sanitizer" <<'END'
#!/bin/sh
echo "$*" >>"$FAKE/sanitizer"
[ -e "$FAKE/hazard" ] || exit 0
echo "========= Error: Race reported between Write access at straw_d64+0x10"
echo "=========     and Read access at straw_d64+0x20 [5 hazards]"
exit 9
END
cat >"$work/tree/test_cuda" <<'END'
#!/bin/sh
[ "$TANDEM_EXPECT_GPU" = 1 ] || exit 3
echo "test_cuda $*"
exit "$(cat "$FAKE/code")"
END
cat >"$work/tree/tandem-demo" <<'END'
#!/bin/sh
while [ $# -gt 1 ]; do
    [ "$1" != --out ] || out=$2
    shift
done
mkdir -p "$out"
printf '{"backend": "%s"}' "$(cat "$FAKE/backend")" >"$out/report.json"
echo picture >"$out/overlay.png"
END
printf '#!/bin/sh\necho "{}"\n' >"$work/tree/tandem"
printf '#!/bin/sh\necho 4\n' >"$work/bin/nproc"
printf '#!/bin/sh\nexit 1\n' >"$work/bin/python3" # no numpy here: a tool of straw has nothing to recompute
chmod +x "$work"/bin/* "$work"/tree/*
echo test_cuda >"$work/tree/gpu_tests.txt"

# The table of kernels: what ptxas says goes in; of a recursive kernel nobody could say what it needs.
table() {
    cmake -D "IMAGES=$work/sm_90a.cubin" -D "TABLE=$work/table.c" -P "$root/kernels/cuda/table.cmake" >"$work/out" 2>&1
}
echo cubin >"$work/sm_90a.cubin"
cat >"$work/sm_90a.cubin.log" <<'END'
ptxas info    : Compiling entry function 'straw' for 'sm_90a'
    40 bytes stack frame, 8 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 168 registers, 1024 bytes smem
END
table || fail "table.cmake failed"
grep -q '{"straw", 168, 1024, 40}' "$work/table.c" || fail "table.cmake does not tell what a kernel needs"
echo "ptxas warning : Stack size for entry function 'straw' cannot be statically determined" >>"$work/sm_90a.cubin.log"
if table; then fail "table.cmake took a recursive kernel"; fi
grep -q recursive "$work/out" || fail "table.cmake does not say that a kernel is recursive"

# gpu CODE BACKEND ARGUMENTS...: what the programs do, and how gpu.sh is called.
gpu() {
    echo "$1" >"$work/code"
    echo "$2" >"$work/backend"
    shift 2
    FAKE=$work PATH=$work/bin:$PATH sh "$root/tests/gpu.sh" --build "$work/tree" --out "$work/gpu" "$@" >"$work/out" 2>&1
}

gpu 0 cuda || fail "gpu.sh failed where everything passes"
tail -n 1 "$work/out" | grep -q '^17 passed, 0 failed$' || fail "gpu.sh counts wrongly"
for tool in memcheck racecheck; do
    [ "$(grep -c -e "--tool $tool .*test_cuda --each [0-3]/4\$" "$work/sanitizer")" = 4 ] || fail "no $tool of all kernels"
done
grep -q ', 0 places$' "$work/out" || fail "gpu.sh does not say that the sanitizers found nothing"
touch "$work/hazard"
if gpu 0 cuda --only sanitize; then fail "a race passed"; fi
grep -q '^ *8 Error: Race .* straw_d64' "$work/out" || fail "gpu.sh does not name the kernel that has a race"
rm "$work/hazard"
gpu 0 cuda || fail "gpu.sh failed where everything passes"
for file in summary.json overlay.png results.tar.gz demo/report.json; do
    [ -s "$work/gpu/$file" ] || fail "gpu.sh left no $file"
done
python3 -c 'import json, sys
s = json.load(open(sys.argv[1]))
assert (s["gpu"], s["driver"], s["passed"], s["failed"]) == ("GPU of straw", "1.2.3", 17, 0), s
assert [x["name"] for x in s["steps"]].count("test_cuda") == 1 and all(x["seconds"] >= 0 for x in s["steps"])' \
    "$work/gpu/summary.json" || fail "summary.json is wrong"
tar -tzf "$work/gpu/results.tar.gz" | grep -q 'results/logs/test_cuda.log' || fail "the logs are not in results.tar.gz"
gpu 0 cuda --only=tests || fail "--only tests failed"
tail -n 1 "$work/out" | grep -q '^3 passed, 0 failed$' || fail "--only tests does more"
[ ! -e "$work/gpu/overlay.png" ] || fail "an older overlay.png was left"
if gpu 77 cuda --only tests; then fail "a skip passed although there is a GPU"; fi
if gpu 1 cuda --only tests; then fail "a failure passed"; fi
tail -n 1 "$work/out" | grep -q '^2 passed, 1 failed$' || fail "a failure is not counted"
cp "$work/tree/test_cuda" "$work/tree/test_daemon_gpu"
printf 'test_daemon_gpu\ntest_cuda\n' >"$work/tree/gpu_tests.txt"
gpu 0 cuda || fail "gpu.sh failed with two programs"
python3 -c 'import json, sys
names = [x["name"] for x in json.load(open(sys.argv[1]))["steps"]]
assert names.index("demo-ladder") < names.index("test_cuda") < names.index("probe-fp22") < names.index("test_daemon_gpu"), names' \
    "$work/gpu/summary.json" || fail "what loses a context does not come behind what draws and all other programs"
rm "$work/tree/test_daemon_gpu"
for program in test_1 test_2 test_3 test_4 test_5 test_faults test_cuda; do
    [ -e "$work/tree/$program" ] || cp "$work/tree/test_cuda" "$work/tree/$program"
    echo $program
done >"$work/tree/gpu_tests.txt"
gpu 0 cuda --only tests || fail "gpu.sh failed with seven programs"
python3 -c 'import json, sys
names = [x["name"] for x in json.load(open(sys.argv[1]))["steps"]]
assert sorted(names[:7]) == ["test_1", "test_2", "test_3", "test_4", "test_5", "test_cuda", "test_faults"], names' \
    "$work/gpu/summary.json" || fail "programs that run at a time are not each run once"
rm "$work/tree"/test_[1-5] "$work/tree/test_faults"
echo test_cuda >"$work/tree/gpu_tests.txt"
if gpu 0 cpu --only demo; then fail "the demo passed on the CPU"; fi
if gpu 0 cuda --only nothing; then fail "--only nothing was taken"; fi
if gpu 0 cuda --deps "$work/gpu"; then fail "--deps without .deb files was taken"; fi
if command -v dpkg-deb >/dev/null 2>&1; then
    mkdir -p "$work/straw/DEBIAN" "$work/straw/usr/lib/x86_64-linux-gnu" "$work/debs"
    printf 'Package: straw\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: straw\n' \
        >"$work/straw/DEBIAN/control"
    echo straw >"$work/straw/usr/lib/x86_64-linux-gnu/libstraw.so.1"
    dpkg-deb --root-owner-group -b "$work/straw" "$work/debs/straw.deb" >/dev/null
    printf '#!/bin/sh\ngrep straw "${LD_LIBRARY_PATH%%%%:*}/libstraw.so.1"\n' >"$work/tree/test_cuda"
    gpu 0 cuda --only tests --deps "$work/debs" || fail "what --deps holds is not found"
fi
echo test_gone >>"$work/tree/gpu_tests.txt"
if gpu 0 cuda --only tests; then fail "a program that is not there passed"; fi
printf '#!/bin/sh\nexit 9\n' >"$work/bin/nvidia-smi"
if gpu 0 cuda; then fail "gpu.sh passed without a GPU"; fi
grep -q 'no NVIDIA GPU' "$work/out" || fail "gpu.sh does not say that there is no GPU"
echo "scripts are sound"
