#!/bin/sh
# Tests, sanitizer runs, the headless demo and benches on a machine with an NVIDIA GPU, without a package registry or a display.
# SPDX-License-Identifier: Apache-2.0
set -u
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)

usage() {
    cat <<'END'
usage: sh tests/gpu.sh [--only tests|sanitize|bench|demo] [--strict] [--build DIR] [--deps DIR] [--out DIR] [--limit S]

A part takes at most 9 minutes, plus the build, so that each fits a machine that gives a command 10:
  sh tests/gpu.sh                     the demo, headless, and the tests (this is --only tests)
  sh tests/gpu.sh --only sanitize     every kernel under compute-sanitizer's racecheck and memcheck
  sh tests/gpu.sh --only bench        the benches
  sh tests/gpu.sh --only demo         the demo alone

  --strict      what is left out, as compute-sanitizer, numpy or torch are missing, is a failure, and so is a target that a
                bench misses. Without the validation layer the cases that are about the layer itself may be left out:
                tests/run.sh has them
  --build DIR   a tree that was built before, as by `cmake --preset gpu && cmake --build --preset gpu`;
                default: build-gpu if there is one, else it is built for this machine's GPU alone
  --deps DIR    .deb files (the Vulkan loader, say) to unpack privately
  --out DIR     where summary.json, overlay.png, demo/ and results.tar.gz go; default: out-gpu
  --limit S     seconds for the part instead of 525
Fails if anything fails, runs out of time or is not there, if a GPU test is skipped although there is a GPU, or if fewer cases
ran than tests/gpu_cases.txt has.
END
}

die() {
    printf '%s\n' "gpu.sh: $*" >&2
    exit 1
}

build='' deps='' out=$root/out-gpu only=tests strict='' limit=525
while [ $# -gt 0 ]; do
    option=$1
    case $option in
    -h | --help)
        usage
        exit 0
        ;;
    --strict)
        strict=1
        shift
        continue
        ;;
    --*=*)
        value=${option#*=}
        option=${option%%=*}
        ;;
    --build | --deps | --out | --only | --limit)
        [ $# -ge 2 ] || die "$option needs a value"
        value=$2
        shift
        ;;
    esac
    shift
    case $option in
    --build) build=$value ;;
    --deps) deps=$value ;;
    --out) out=$value ;;
    --only) only=$value ;;
    --limit) limit=$value ;;
    *) die "unknown option $option; see --help" ;;
    esac
done
case $only in
tests | sanitize | demo | bench) ;;
*) die "--only $only: must be tests, sanitize, demo or bench" ;;
esac
case $limit in
'' | *[!0-9]* | ?????*) die "--limit $limit: must be a number of seconds" ;;
esac

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1)
[ -n "$gpu" ] || die "no NVIDIA GPU on this machine: nvidia-smi shows none"
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir -p "$out" "$work/results/logs" || die "cannot write to $out"
out=$(CDPATH='' cd -- "$out" && pwd -P)
rm -rf "$out/summary.json" "$out/overlay.png" "$out/results.tar.gz" "$out/demo"

# Everything from --deps goes into a folder of this run's own; the validation layer may be among it.
layers=
if [ -n "$deps" ]; then
    [ -d "$deps" ] || die "--deps $deps: no such folder"
    command -v dpkg >/dev/null || die "--deps needs dpkg"
    for package in "$deps"/*.deb; do
        [ -f "$package" ] || die "--deps $deps holds no .deb files"
        dpkg -x "$package" "$work/deps" || die "cannot unpack $package"
    done
    for folder in "$work/deps/usr/lib" "$work"/deps/lib/*-linux-gnu "$work"/deps/usr/lib/*-linux-gnu; do
        [ ! -d "$folder" ] || LD_LIBRARY_PATH=$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    done
    export LD_LIBRARY_PATH
    folder=$work/deps/usr/share/vulkan/explicit_layer.d
    if [ -d "$folder" ]; then
        layers=$folder
        export VK_LAYER_PATH="$layers" TANDEM_EXPECT_VALIDATION=1
    fi
fi

# The driver's own description, where a container mounts it aside.
if [ -z "${VK_DRIVER_FILES-}${VK_ICD_FILENAMES-}" ]; then
    icd=
    for file in /etc/vulkan/icd.d/nvidia*.json /usr/share/vulkan/icd.d/nvidia*.json /usr/local/share/vulkan/icd.d/nvidia*.json; do
        [ ! -f "$file" ] || icd=$file
    done
    aside=/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json
    [ -n "$icd" ] || [ ! -f "$aside" ] || icd=$aside
    # Named either way, so that no software driver beside it is picked.
    [ -z "$icd" ] || export VK_DRIVER_FILES="$icd" VK_ICD_FILENAMES="$icd"
fi

build_here() {
    missing=
    for tool in cmake gcc g++ glslc nvcc pkg-config; do
        command -v "$tool" >/dev/null 2>&1 || [ -x "/usr/local/cuda/bin/$tool" ] || missing="$missing $tool"
    done
    for header in vulkan/vulkan_core.h imgui/imgui.h cmocka.h jansson.h pcre2.h png.h cglm/cglm.h; do
        found=
        for folder in /usr/include /usr/local/include /usr/include/*-linux-gnu; do
            [ ! -f "$folder/$header" ] || found=1
        done
        [ -n "$found" ] || missing="$missing $header"
    done
    [ -z "$missing" ] || die "cannot build here, missing:$missing. Build on another machine (cmake --preset gpu) and give --build DIR"
    case $capability in
    90 | 100 | 103 | 120) arch=${capability}a ;;
    *) arch=$capability ;;
    esac
    [ "$capability" != 120 ] || arch=120
    printf '%s\n' "gpu.sh: building build-gpu for sm_$arch"
    { cmake -S "$root" -B "$root/build-gpu" --preset gpu "-DTANDEM_CUDA_ARCHS=$arch" &&
        cmake --build "$root/build-gpu" --parallel "$(nproc)"; } >"$work/results/logs/build.log" 2>&1 || {
        tail -n 60 "$work/results/logs/build.log" >&2
        die "the build failed"
    }
}
if [ -z "$build" ]; then
    build=$root/build-gpu
    [ -f "$build/gpu_tests.txt" ] && [ -x "$build/tandem-demo" ] || (cd "$root" && build_here) || exit 1
fi
[ -d "$build" ] || die "--build $build: no such folder"
build=$(CDPATH='' cd -- "$build" && pwd -P)
[ -f "$build/gpu_tests.txt" ] || die "$build is no tree of Tandem's: it has no gpu_tests.txt"

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)

begin=$(date +%s)
: >"$work/steps"
: >"$work/table"
: >"$work/missed"

# What each step of the part has for itself, in the order in which they come, of 525 seconds. One that needs less leaves the rest
# to those behind it; none takes what those behind it have.
case $only in
tests) shares='demo 45 demo-ladder 25 demo-validated 20 programs 280 soak 30 soak-vulkan 45 test_daemon_gpu 80' ;;
demo) shares='demo 300 demo-ladder 100 demo-validated 100' ;;
sanitize) shares='racecheck 325 memcheck 200' ;;
bench) shares='info 10 doctor 15 bench-kernels 40 bench-linear 30 bench-daemon 70 bench-handover 70 tune 60 tune-prove 40
    bench-attention 105 bench-peers 55 bench-minilm 30' ;;
esac

# later SHARE: the seconds that belong to those behind it.
later() {
    echo $shares | awk -v name="$1" -v limit="$limit" '{
        for (i = 1; i < NF; i += 2) {
            if (found) sum += $(i + 1)
            if ($i == name) found = 1
        }
        print int(sum * limit / 525)
    }'
}

# note NAME STATUS SECONDS [CASES SKIPPED]: from any of the shells that run at a time.
note() {
    printf '%s %s %s %s %s\n' "$1" "$2" "$3" "${4:-0}" "${5:-0}" >>"$work/steps"
    printf '%-34s %-10s %4s s  %s\n' "$1" "$2" "$3" "${4:+$4 cases}" | tee -a "$work/table"
}

# Cases that are about the validation layer itself; where it is there they run, and a skipped one is a failure like any other.
of_layer=' (test_catches_[a-z_]*|test_fence_behind_point|test_false_alarm)$'
[ -z "$layers" ] || of_layer='^$'

# tally LOG: how many cases a program ran, and how many it skipped: cmocka's, unittest's, or those of test_cuda --each. cmocka
# lists what failed or was skipped once more at the end.
tally() {
    awk '/^\[==========\].* Running / { over = 0 }
        /^\[==========\] .*test\(s\) run/ { over = 1 }
        !over && /^\[       OK \] / { ran++ }
        !over && /^\[  FAILED  \] [a-z]/ { ran++ }
        !over && /^\[  SKIPPED \] [a-z]/ { skipped++ }
        /^Ran [0-9]+ tests? in / { ran += $2 }
        /^(OK|FAILED) \(.*skipped=[0-9]+/ { sub(/.*skipped=/, ""); skipped += $0 + 0; ran -= $0 + 0 }
        /^    [0-9]+ of [0-9]+ cases ran here/ { ran = $1; exit }
        END { print ran + 0, skipped + 0 }' "$1"
}

# step [NAME/]SHARE COMMAND...: runs it until its time is over; its output goes to a log, and to the terminal if it failed. NAME is
# another name for one of several that have the share together.
step() {
    name=${1%/*}
    share=${1##*/}
    shift
    log=$work/results/logs/$name.log
    start=$(date +%s)
    left=$((limit - (start - begin) - $(later "$share")))
    if [ "$left" -lt 1 ]; then
        status=no-time
        note "$name" $status 0
        return 1
    fi
    (cd "$build" && exec timeout -k 5 "$left" "$@") >"$log" 2>&1
    code=$?
    # Within a program, too, nothing may be skipped where there is a GPU; only what the validation layer catches needs the layer.
    if [ $code = 0 ] && grep '^\[  SKIPPED \] [a-z]' "$log" | grep -qvE "$of_layer"; then
        code=77
    fi
    case $code in
    0) status=passed ;;
    77) status=was-skipped ;;
    124 | 137) status=timed-out ;;
    *)
        status=failed
        # All was measured, and right, but too slow: the last that a bench says.
        ! tail -n 1 "$log" | grep -qE -- ': --strict: [0-9]+ targets? (was|were) missed$' || status=missed-targets
        ;;
    esac
    sed -n "s/^  MISSED /    $name: /p" "$log" >>"$work/missed"
    # shellcheck disable=SC2046
    note "$name" $status $(($(date +%s) - start)) $(tally "$log")
    [ $code = 0 ] || [ $status = missed-targets ] || tail -n 40 "$log"
    return $code
}

# hazards LOG: of racecheck's and memcheck's findings, how many each place has; then in how many cases kernels ran.
hazards() {
    grep -E '^=+ +(Error:|Warning:|and |Invalid|Leaked|Program hit)' "$1" | sed 's/^=* *//; s/ \[[0-9]* hazards*\]//' |
        sort | uniq -c | sort -rn | head -n 40
    printf '%s cases under the sanitizers, %s places\n' "$(grep -c '^    [a-z].*_' "$1")" \
        "$(grep -cE '^=+ +(Error:|Warning:|Invalid|Leaked|Program hit)' "$1")"
}

export TANDEM_EXPECT_GPU=1 TANDEM_BUILD="$build" TANDEM_SOURCE="$root"
printf '%s\n' "$gpu, driver $driver, sm_$capability"

# Half of all steps need Vulkan: where it is not there, one line at once instead of as many failures as there are steps.
if [ "$only" != sanitize ] && [ -x "$build/tandem" ]; then
    reason=$("$build/tandem" info 2>/dev/null </dev/null | sed -n 's/^vulkan: none: //p')
    [ -z "$reason" ] || die "no Vulkan: $reason. Without a display NVIDIA's driver still loads what Debian 12 calls" \
        "libvulkan1 libgl1 libglx0 libegl1 libglvnd0 libx11-6 libxext6: install them, or give their files by --deps"
fi

# First: on driver 580.159 of an H200 an illegal access of any process makes all later draws, of any process, wait for ever,
# and test_daemon_gpu has kernels that do that.
if [ "$only" = demo ] || [ "$only" = tests ]; then
    if [ -x "$build/tandem-demo" ]; then
        # The filter's figures are MEASURED.md's. What hangs once is not tried again.
        step demo "$build/tandem-demo" --headless --width 960 --height 540 --frames 120 --out "$out/demo" &&
            step demo-filter "$build/tandem-demo" --headless --effect filter --width 960 --height 540 --frames 120 --out "$work/filter"
        for file in overlay.png report.json; do
            [ -s "$out/demo/$file" ] || note "demo-$file" missing 0
        done
        if [ -s "$out/demo/report.json" ]; then
            if grep -q '"backend": *"cuda"' "$out/demo/report.json"; then
                note demo-on-cuda passed 0
            else
                note demo-on-cuda failed 0
            fi
            cp "$out/demo/report.json" "$work/results/denoise-report.json"
        fi
        [ ! -s "$work/filter/report.json" ] || cp "$work/filter/report.json" "$work/results/"
        # Frames without talk, and with it.
        step demo-tavern/demo "$build/tandem-demo" --headless --scene tavern --width 960 --height 540 --frames 1200 --samples 16 \
            --out "$work/tavern"
        [ ! -s "$work/tavern/report.json" ] || cp "$work/tavern/report.json" "$work/results/tavern-report.json"
        step demo-ladder "$build/tandem-demo" --headless --frames 25 --ladder 5 --samples 16 --out "$work/ladder" &&
            step demo-ladder-filter "$build/tandem-demo" --headless --effect filter --frames 25 --ladder 5 --samples 16 --out "$work/ladder"
        [ -z "$layers" ] ||
            TANDEM_DEMO_VALIDATE=1 step demo-validated "$build/tandem-demo" --headless --frames 20 --samples 16 --out "$work/validated"
        [ ! -s "$out/demo/overlay.png" ] || cp "$out/demo/overlay.png" "$out/overlay.png"
    else
        note demo not-built 0
    fi
fi

# The first program in a file that no other shell has taken.
take() {
    while ! mkdir "$work/taking" 2>/dev/null; do
        sleep 0.1
    done
    sed -n 1p "$1"
    sed -i 1d "$1"
    rmdir "$work/taking"
}

# Runs programs of a file until all are taken.
lane() {
    while program=$(take "$1") && [ -n "$program" ]; do
        case $program in
        tool-on-cuda) set -- "$1" python3 "$root/tests/tool/test_tool.py" "$build" Cuda ;;
        probe-fp22) set -- "$1" "$build/tandem" probe fp22 --backend cuda ;;
        accuracy) set -- "$1" "$build/tandem" accuracy --quick --backend cuda ;;
        test_faults-*) set -- "$1" "$build/test_faults" --part "${program#*-}" ;;
        *) set -- "$1" "$build/$program" ;;
        esac
        if [ "$2" = python3 ] || [ -x "$2" ]; then
            list=$1
            shift
            step "$program/programs" "$@" </dev/null
            set -- "$list"
        else
            note "$program" not-built 0
        fi
    done
}

# needs WHAT STEP COMMAND...: whether the command works; else the step is said to be skipped.
needs() {
    what=$1
    missing=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    note "$missing" skipped 0
    echo "    as $what is not installed"
    return 1
}

if [ "$only" = tests ]; then
    [ -s "$build/gpu_tests.txt" ] || note tests none 0
    # Several at a time: most of their time is the driver's, for contexts and devices. The soaks are alone, as they look for
    # memory that the GPU has lost; what loses a context comes last. What takes longest is begun first.
    longest='test_session tool-on-cuda test_inline test_cuda test_faults-3 test_faults-2 test_faults-1 test_destroy_waits test_pitfalls
        test_linear_gpu test_rungs'
    sed 's/^test_faults$/test_faults-1\ntest_faults-2\ntest_faults-3/; /^test_daemon_gpu$/d' "$build/gpu_tests.txt" >"$work/all"
    if [ -x "$build/tandem" ]; then
        ! needs numpy tool-on-cuda python3 -c 'import numpy' || echo tool-on-cuda >>"$work/all"
        printf 'accuracy\nprobe-fp22\n' >>"$work/all"
    else
        note tool not-built 0
    fi
    : >"$work/programs"
    for program in $longest; do
        ! grep -x "$program" "$work/all" >>"$work/programs" || sed -i "/^$program\$/d" "$work/all"
    done
    cat "$work/all" >>"$work/programs"
    lanes=$(($(nproc) / 2))
    [ "$lanes" -ge 4 ] || lanes=4
    [ "$lanes" -le 6 ] || lanes=6 # more wait for the driver
    while [ "$lanes" -gt 0 ]; do
        lane "$work/programs" &
        lanes=$((lanes - 1))
    done
    wait
    if [ -x "$build/soak" ] && [ -x "$build/tandemd" ]; then
        step soak "$build/soak" --backend cuda --kills 12 --frames 2000
        step soak-vulkan "$build/soak" --backend cuda --vulkan --kills 12 --frames 2000
    else
        note soak not-built 0
    fi
    ! grep -qx test_daemon_gpu "$build/gpu_tests.txt" || step test_daemon_gpu "$build/test_daemon_gpu" </dev/null
fi

if [ "$only" = bench ]; then
    for program in tandem tandemd test_cuda; do
        [ -x "$build/$program" ] || die "$build has no $program"
    done
    step info "$build/tandem" info --json && cp "$log" "$work/results/info.json"
    step doctor "$build/tandem" doctor && cat "$log"
    step bench-kernels "$build/test_cuda" --bench && cat "$log"
    # bench NAME ARGUMENTS...: one of the tool's, all of whose text is worth reading, whether it meets its targets or not.
    bench() {
        name=$1
        shift
        step "bench-$name" "$build/tandem" bench "$name" --json "$work/results/$name.json" ${strict:+--strict} "$@" ||
            [ "$status" = missed-targets ] || return
        cat "$log"
    }
    bench linear
    bench daemon
    bench handover
    tuned=$work/results/tuning.json
    step tune "$build/tandem" tune --out "$tuned" && cat "$log"
    [ -s "$tuned" ] || tuned=
    step tune-prove "$build/tandem" tune --prove ${tuned:+--tuning "$tuned"} --json "$work/results/auto.json" &&
        tail -n 1 "$log"
    # cuDNN, where Python's packages hold one.
    beside=$(python3 -c 'import glob, nvidia, os
print(":".join(f for p in nvidia.__path__ for f in sorted(glob.glob(os.path.join(p, "*", "lib")))))' 2>/dev/null)
    LD_LIBRARY_PATH=$beside${beside:+${LD_LIBRARY_PATH:+:}}${LD_LIBRARY_PATH-} \
        bench attention --rounds 1 ${tuned:+--tuning "$tuned"} --n 256,512,1024,2048,4096,16384
    ! needs torch bench-peers python3 -c 'import torch' ||
        { step bench-peers python3 "$root/tests/bench/bench_peers.py" "$build" --json "$work/results/peers.json" && cat "$log"; }
    ! needs 'torch or numpy' bench-minilm python3 -c 'import numpy, torch' || {
        step bench-minilm python3 "$root/tests/bench/bench_minilm.py" "$build" --json "$work/results/minilm.json" \
            ${strict:+--strict} || [ "$status" = missed-targets ]
        [ ! -s "$log" ] || cat "$log"
    }
fi

if [ "$only" = sanitize ]; then
    for program in test_cuda test_linear_gpu test_llama_gpu test_operations; do
        [ -x "$build/$program" ] || die "$build has no $program"
    done
    # sanitize NAME PROGRAM [WHICH]: racecheck, then memcheck.
    sanitize() {
        step "racecheck$1/racecheck" "$sanitizer" --tool racecheck --print-limit 0 --show-backtrace no \
            --error-exitcode 9 "$build/$2" --each "$3"
        # The tests make the driver refuse on purpose; those answers are not errors here.
        step "memcheck$1/memcheck" "$sanitizer" --tool memcheck --leak-check full --report-api-errors no \
            --error-exitcode 9 "$build/$2" --each "$3"
    }
    if [ -z "$sanitizer" ]; then
        for name in racecheck memcheck racecheck-linear memcheck-linear racecheck-operations memcheck-operations racecheck-llama memcheck-llama; do
            needs compute-sanitizer $name false
        done
    else
        # Every kernel, by a process for each core: racecheck takes some 100 times as long as the kernels alone.
        lanes=$(nproc)
        [ "$lanes" -le 16 ] || lanes=16
        lane=0
        while [ "$lane" -lt "$lanes" ]; do
            sanitize -$lane test_cuda $lane/$lanes >"$work/sanitize-$lane" &
            lane=$((lane + 1))
        done
        for lane in 0 1 2 3; do
            sanitize -linear-$lane test_linear_gpu $lane/4 >"$work/sanitize-linear-$lane" &
        done
        sanitize -operations test_operations 0/1 >"$work/sanitize-operations" &
        sanitize -llama test_llama_gpu 0/1 >"$work/sanitize-llama" &
        wait
        cat "$work"/sanitize-*
        cat "$work"/results/logs/racecheck-*.log "$work"/results/logs/memcheck-*.log >"$work/sanitized" 2>/dev/null
        hazards "$work/sanitized"
    fi
fi

# No fewer cases than there once were, of what ended well: a list that lost some would pass else.
while read -r part name least sm; do
    [ "$part" = "$only" ] || continue
    [ "$sm" = - ] || [ "$sm" = "$capability" ] || continue
    # shellcheck disable=SC2046
    set -- $(awk -v name="$name" '$1 == name || $1 ~ "^" name "-[0-9]+$" { ran += $4; bad += $2 != "passed"; n++ }
        END { print ran + 0, bad + 0, n + 0 }' "$work/steps")
    if [ "$3" = 0 ]; then
        note "$name" missing 0
    elif [ "$2" = 0 ] && [ "$1" -lt "$least" ]; then
        note "$name" too-few 0
        echo "    $1 cases of $name ran; tests/gpu_cases.txt has $least"
    fi
done <"$root/tests/gpu_cases.txt"

passed=$(grep -c ' passed ' "$work/steps")
skipped=$(grep -c ' skipped ' "$work/steps")
missed=$(grep -c ' missed-targets ' "$work/steps")
failed=$(grep -cv -e ' passed ' -e ' skipped ' -e ' missed-targets ' "$work/steps")
targets=$(grep -c . "$work/missed")
ran=$(awk '{ n += $4 } END { print n + 0 }' "$work/steps")
steps=$(awk '{ printf "%s{\"name\": \"%s\", \"status\": \"%s\", \"seconds\": %s, \"cases\": %s, \"cases_skipped\": %s}", \
    (NR > 1 ? ",\n    " : ""), $1, $2, $3, $4, $5 }' "$work/steps")
cat >"$out/summary.json" <<END
{
  "gpu": "$gpu",
  "driver": "$driver",
  "sm": "$capability",
  "date": "$(date -u +%Y-%m-%dT%H:%M:%SZ)",
  "part": "$only",
  "seconds": $(($(date +%s) - begin)),
  "steps": [
    $steps
  ],
  "cases": $ran,
  "passed": $passed,
  "skipped": $skipped,
  "missed": $missed,
  "failed": $failed,
  "missed_targets": $targets
}
END
cp "$out/summary.json" "$work/table" "$work/results/"
tar -C "$work" -czf "$out/results.tar.gz" results
echo
cat "$work/table"
[ "$targets" = 0 ] || { echo "targets missed:" && cat "$work/missed"; }
[ "$missed" = 0 ] && also= || also=", $missed missed targets"
printf '%s\n' "$passed passed, $failed failed$also, $skipped skipped; $ran cases"
[ "$failed" = 0 ] && [ "$missed" = 0 ] && [ "$passed" -gt 0 ] && { [ -z "$strict" ] || [ "$skipped" = 0 ]; }
