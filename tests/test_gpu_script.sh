#!/bin/sh
# tests/gpu.sh on a machine whose GPU is a script, with a tree whose programs do as they are told: what it counts, what it fails
# for, and that nothing takes the time of what comes behind it.
# usage: test_gpu_script.sh BUILD
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

fail() {
    echo "test_gpu_script: $*"
    [ ! -f "$work/out" ] || cat "$work/out"
    exit 1
}

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
[ "$2" != "$(cat "$FAKE/slow")" ] || sleep 60
while [ ! -x "$1" ]; do
    shift
done
"$@"
[ -e "$FAKE/hazard" ] || exit 0
echo "========= Error: Race reported between Write access at straw_d64+0x10"
echo "=========     and Read access at straw_d64+0x20 [5 hazards]"
exit 9
END
# A program of tests: as many cases as it should have, or one less.
cat >"$work/program" <<'END'
#!/bin/sh
[ "$TANDEM_EXPECT_GPU" = 1 ] || exit 3
name=${0##*/}
echo "$name" "$@" >>"$FAKE/ran"
[ "$name" != "$(cat "$FAKE/slow")" ] || sleep 60
if [ "${1-}" = --each ]; then
    case $name in
    test_cuda) step=racecheck ;;
    *) step=racecheck-${name#test_} && step=${step%_gpu} ;;
    esac
    all=$(awk -v step="$step" '$1 == "sanitize" && $2 == step { print $3 }' "$FAKE/floors")
    lanes=${2#*/}
    echo "    $(((all - ${2%/*} + lanes - 1) / lanes)) of $all cases ran here, on sm_90"
    exit 0
fi
cases=$(awk -v name="$name" '$2 == name { print $3 }' "$FAKE/floors")
[ "${1-}" != --part ] || cases=$(((cases + 3 - $2) / 3))
[ "$name" != "$(cat "$FAKE/fewer")" ] || cases=$((cases - 1))
echo "[==========] Running $cases test(s)."
i=0
while [ $i -lt $cases ]; do
    i=$((i + 1))
    printf '[ RUN      ] case_%s\n[       OK ] case_%s\n' $i $i
done
[ ! -s "$FAKE/skips" ] || printf '[  SKIPPED ] %s\n' "$(cat "$FAKE/skips")"
echo "[==========] $cases test(s) run."
[ ! -s "$FAKE/skips" ] || printf '[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] %s\n' "$(cat "$FAKE/skips")"
[ "$name" != test_cuda ] || exit "$(cat "$FAKE/code")"
END
cat >"$work/tree/tandem-demo" <<'END'
#!/bin/sh
[ demo != "$(cat "$FAKE/slow")" ] || sleep 60
while [ $# -gt 1 ]; do
    [ "$1" != --out ] || out=$2
    shift
done
mkdir -p "$out"
printf '{"backend": "%s"}' "$(cat "$FAKE/backend")" >"$out/report.json"
echo picture >"$out/overlay.png"
END
cat >"$work/tree/tandem" <<'END'
#!/bin/sh
[ "${2-}" != "$(cat "$FAKE/slow")" ] || sleep 60
[ "$1" != "$(cat "$FAKE/breaks")" ] || exit 1
if [ "$1 ${2-}" = "bench $(cat "$FAKE/misses")" ]; then
    printf 'targets\n  met    a wait: 2 (at most 3)\n  MISSED a rate of straw: 0.1 (at least 0.7)\n'
    case $* in
    *--strict*) echo "tandem bench $2: --strict: 1 target was missed" >&2 && exit 1 ;;
    esac
fi
[ "$*" != info ] || cat "$FAKE/info"
echo "{}"
END
printf '#!/bin/sh\nexit 0\n' >"$work/tree/tandemd"
cp "$work/tree/tandemd" "$work/tree/soak"
printf '#!/bin/sh\necho 4\n' >"$work/bin/nproc"
# No numpy and no torch, until they are there.
cat >"$work/bin/python3" <<'END'
#!/bin/sh
[ -e "$FAKE/python" ] || exit 1
case $* in
*test_tool.py*) printf 'Ran 12 tests in 3.456s\n\nOK (skipped=2)\n' ;;
esac
END
chmod +x "$work"/bin/* "$work"/tree/*
cp "$root/tests/gpu_cases.txt" "$work/floors"
awk '$1 == "tests" { print $2 }' "$work/floors" >"$work/tree/gpu_tests.txt"
while read -r program; do
    cp "$work/program" "$work/tree/$program"
    chmod +x "$work/tree/$program"
done <"$work/tree/gpu_tests.txt"

# What the next run meets; then gpu.sh with these arguments. 25 times as fast: --limit 21.
told() {
    for word in slow fewer breaks misses; do
        echo nothing >"$work/$word"
    done
    : >"$work/skips"
    : >"$work/info"
    echo 0 >"$work/code"
    echo cuda >"$work/backend"
    rm -f "$work/ran" "$work/sanitizer" "$work/python" "$work/hazard"
    while [ $# -gt 0 ]; do
        echo "${1#*=}" >"$work/${1%%=*}"
        shift
    done
}
gpu() {
    FAKE=$work PATH=$work/bin:$PATH sh "$root/tests/gpu.sh" --build "$work/tree" --out "$work/gpu" "$@" >"$work/out" 2>&1
}
ends_with() {
    [ "$(tail -n 1 "$work/out")" = "$1" ] || fail "$2"
}
status_of() {
    python3 -c 'import json, sys
print(*(x["status"] for x in json.load(open(sys.argv[1]))["steps"] if x["name"] == sys.argv[2]))' "$work/gpu/summary.json" "$1"
}

# The tests, by default: each program, one of them by thirds, the demo twice each way, its tavern, and what it computed on, the tool twice, the soak twice.
told
gpu || fail "gpu.sh failed where everything passes"
cases=$(awk '$1 == "tests" { n += $3 } END { print n }' "$root/tests/gpu_cases.txt")
ends_with "28 passed, 0 failed, 1 skipped; $cases cases" "gpu.sh counts wrongly"
grep -q 'as numpy is not installed' "$work/out" || fail "gpu.sh does not say that numpy is missing"
if gpu --strict; then fail "--strict passed without numpy"; fi
told python=1
gpu --strict || fail "--strict failed where everything is there"
ends_with "29 passed, 0 failed, 0 skipped; $((cases + 10)) cases" "gpu.sh counts unittest's cases wrongly"
for file in summary.json overlay.png results.tar.gz demo/report.json; do
    [ -s "$work/gpu/$file" ] || fail "gpu.sh left no $file"
done
python3 -c 'import json, sys
s = json.load(open(sys.argv[1]))
assert (s["gpu"], s["driver"], s["part"]) == ("GPU of straw", "1.2.3", "tests"), s
assert (s["passed"], s["failed"], s["skipped"], s["cases"]) == (29, 0, 0, int(sys.argv[2])), s
steps = {x["name"]: x for x in s["steps"]}
assert len(steps) == len(s["steps"]) and all(x["seconds"] >= 0 for x in s["steps"]), s
assert steps["test_cuda"]["cases"] == 40 and steps["tool-on-cuda"]["cases_skipped"] == 2, s
names = list(steps)
assert names.index("demo-ladder") < names.index("test_cuda") < names.index("soak") < names.index("test_daemon_gpu"), names' \
    "$work/gpu/summary.json" $((cases + 10)) || fail "summary.json is wrong, or what loses a context does not come behind all else"
awk '{ print $1 }' "$work/ran" | sort >"$work/did"
{ cat "$work/tree/gpu_tests.txt" && printf 'test_faults\ntest_faults\n'; } | sort >"$work/should" # which runs by thirds
cmp -s "$work/should" "$work/did" || fail "programs that run at a time are not each run once: $(diff "$work/should" "$work/did")"
tar -tzf "$work/gpu/results.tar.gz" | grep -q 'results/logs/test_cuda.log' || fail "the logs are not in results.tar.gz"

# What it fails for.
told 'info=vulkan: none: the driver is of straw'
if gpu; then fail "a machine without Vulkan passed"; fi
grep -q 'no Vulkan: the driver is of straw\. .*libgl1' "$work/out" || fail "gpu.sh does not say why Vulkan is not there"
[ ! -e "$work/ran" ] || fail "gpu.sh ran tests without Vulkan"
told code=77
if gpu; then fail "a skip passed although there is a GPU"; fi
told code=1
if gpu; then fail "a failure passed"; fi
ends_with "27 passed, 1 failed, 1 skipped; $cases cases" "a failure is not counted"
told skips=test_something
if gpu; then fail "a skipped case passed although there is a GPU"; fi
for name in test_catches_leak test_fence_behind_point test_false_alarm; do
    told skips=$name python=1
    gpu --strict || fail "$name, which needs the validation layer, failed without it"
done
told fewer=test_inline
if gpu; then fail "a program that lost a case passed"; fi
grep -q '36 cases of test_inline ran; tests/gpu_cases.txt has 37' "$work/out" || fail "gpu.sh does not say what lost a case"
told breaks=accuracy
if gpu; then fail "accuracy failed, and gpu.sh passed"; fi
told backend=cpu
if gpu --only demo; then fail "the demo passed on the CPU"; fi
[ -e "$work/gpu/overlay.png" ] || fail "the demo's picture is not there"
told
mv "$work/tree/test_vk" "$work/test_vk"
if gpu; then fail "a program that is not there passed"; fi
[ "$(status_of test_vk)" = not-built ] || fail "gpu.sh does not say that a program is not there"
sed -i /test_vk/d "$work/tree/gpu_tests.txt"
if gpu; then fail "a program that is not listed passed"; fi
[ "$(status_of test_vk)" = missing ] || fail "gpu.sh does not say that a program is not listed"
mv "$work/test_vk" "$work/tree/test_vk"
echo test_vk >>"$work/tree/gpu_tests.txt"

# The sanitizers, by a process for each core.
told
gpu --only sanitize --strict || fail "--only sanitize failed"
sanitized=$(awk '$1 == "sanitize" { n += $3 } END { print n }' "$work/floors")
ends_with "20 passed, 0 failed, 0 skipped; $sanitized cases" "--only sanitize counts wrongly"
for tool in memcheck racecheck; do
    [ "$(grep -c -e "--tool $tool .*test_cuda --each [0-3]/4\$" "$work/sanitizer")" = 4 ] || fail "no $tool of all kernels"
    [ "$(grep -c -e "--tool $tool .*test_linear_gpu --each [0-3]/4\$" "$work/sanitizer")" = 4 ] || fail "no $tool of linear's kernels"
    grep -q -e "--tool $tool .*test_operations --each" "$work/sanitizer" || fail "no $tool of the other operations' kernels"
    grep -q -e "--tool $tool .*test_llama_gpu --each" "$work/sanitizer" || fail "no $tool of joined records' kernels"
done
grep -q ', 0 places$' "$work/out" || fail "gpu.sh does not say that the sanitizers found nothing"
[ ! -e "$work/gpu/overlay.png" ] || fail "an older overlay.png was left"
told hazard=1
if gpu --only sanitize; then fail "a race passed"; fi
grep -q '^ *20 Error: Race .* straw_d64' "$work/out" || fail "gpu.sh does not name the kernel that has a race"
told
kernels=$(awk '$1 == "sanitize" && $2 == "racecheck" { print $3 }' "$work/floors")
mkdir -p "$work/root/tests"
cp "$root/tests/gpu.sh" "$work/root/tests"
sed "s/ $kernels 90/ $((kernels + 1)) 90/" "$work/floors" >"$work/root/tests/gpu_cases.txt"
if FAKE=$work PATH=$work/bin:$PATH sh "$work/root/tests/gpu.sh" --build "$work/tree" --out "$work/gpu" --only sanitize >"$work/out" 2>&1
then
    fail "sanitizers that saw fewer kernels passed"
fi
grep -q "$kernels cases of racecheck ran" "$work/out" || fail "gpu.sh does not say that a kernel was not seen"
if [ ! -x /usr/local/cuda/bin/compute-sanitizer ]; then
    mv "$work/bin/compute-sanitizer" "$work/sanitizer-away"
    told
    if gpu --only sanitize --strict; then fail "--strict passed without compute-sanitizer"; fi
    grep -q 'as compute-sanitizer is not installed' "$work/out" || fail "gpu.sh does not say that compute-sanitizer is missing"
    ends_with "0 passed, 0 failed, 8 skipped; 0 cases" "a missing sanitizer is not counted"
    mv "$work/sanitizer-away" "$work/bin/compute-sanitizer"
fi

# The benches.
told
gpu --only bench || fail "--only bench failed"
ends_with "9 passed, 0 failed, 2 skipped; 40 cases" "--only bench counts wrongly"
if gpu --only bench --strict; then fail "--strict passed without torch"; fi
told misses=linear python=1
gpu --only bench || fail "a missed target failed without --strict"
grep -q '^    bench-linear: a rate of straw: 0.1 (at least 0.7)$' "$work/out" || fail "gpu.sh does not say which target was missed"
if gpu --only bench --strict; then fail "--strict passed with a missed target"; fi
[ "$(status_of bench-linear) $(status_of bench-daemon)" = "missed-targets passed" ] || fail "a missed target is not told from a failure"
grep -q '^    bench-linear: a rate of straw: ' "$work/out" || fail "--strict does not say which target was missed"
ends_with "10 passed, 0 failed, 1 missed targets, 0 skipped; 40 cases" "a missed target is not counted"
python3 -c 'import json, sys
s = json.load(open(sys.argv[1]))
assert (s["passed"], s["missed"], s["failed"], s["missed_targets"]) == (10, 1, 0, 1), s' "$work/gpu/summary.json" ||
    fail "summary.json does not tell missed targets from failures"
told breaks=bench python=1
if gpu --only bench; then fail "benches failed, and gpu.sh passed"; fi

# None takes the time of those behind it: of 21 seconds what hangs has its share.
told slow=demo python=1
if gpu --limit 21; then fail "a demo that hangs passed"; fi
[ "$(status_of demo)" = timed-out ] || fail "a demo that hangs is not timed out"
[ "$(status_of test_cuda)$(status_of test_daemon_gpu)$(status_of soak)" = passedpassedpassed ] || fail "the demo took the tests' time"
told slow=test_inline python=1
if gpu --limit 21; then fail "a test that hangs passed"; fi
[ "$(status_of test_inline)" = timed-out ] || fail "a test that hangs is not timed out"
[ "$(status_of test_daemon_gpu)$(status_of soak-vulkan)" = passedpassed ] || fail "a test took the time of those behind it"
told slow=daemon python=1
if gpu --limit 21 --only bench; then fail "a bench that hangs passed"; fi
[ "$(status_of bench-daemon)" = timed-out ] || fail "a bench that hangs is not timed out"
[ "$(status_of bench-attention)$(status_of bench-peers)" = passedpassed ] || fail "a bench took the time of those behind it"
told slow=racecheck
if gpu --limit 12 --only sanitize; then fail "a sanitizer that hangs passed"; fi
[ "$(status_of racecheck-0) $(status_of memcheck-3)" = "timed-out passed" ] || fail "racecheck took memcheck's time"
ends_with "10 passed, 10 failed, 0 skipped; $((sanitized / 2)) cases" "what hangs is not counted"

# Arguments, and a machine without a GPU.
if gpu --only nothing; then fail "--only nothing was taken"; fi
if gpu --limit soon; then fail "--limit soon was taken"; fi
if gpu --deps "$work/gpu"; then fail "--deps without .deb files was taken"; fi
if command -v dpkg-deb >/dev/null 2>&1; then
    mkdir -p "$work/straw/DEBIAN" "$work/straw/usr/lib/x86_64-linux-gnu" "$work/debs"
    printf 'Package: straw\nVersion: 1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: straw\n' \
        >"$work/straw/DEBIAN/control"
    echo straw >"$work/straw/usr/lib/x86_64-linux-gnu/libstraw.so.1"
    dpkg-deb --root-owner-group -b "$work/straw" "$work/debs/straw.deb" >/dev/null
    printf '#!/bin/sh\ngrep straw "${LD_LIBRARY_PATH%%%%:*}/libstraw.so.1" || exit 1\nexec "%s/test_plugin" --bench\n' "$work/tree" \
        >"$work/tree/test_cuda"
    told python=1
    gpu --only bench --deps "$work/debs" || fail "what --deps holds is not found"
fi
printf '#!/bin/sh\nexit 9\n' >"$work/bin/nvidia-smi"
if gpu; then fail "gpu.sh passed without a GPU"; fi
grep -q 'no NVIDIA GPU' "$work/out" || fail "gpu.sh does not say that there is no GPU"
echo "gpu.sh is sound"
