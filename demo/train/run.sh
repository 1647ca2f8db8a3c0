#!/bin/sh
# One run of the training, of at most so many minutes: makes frames, trains on, exports. Five of them make the weights.
# SPDX-License-Identifier: Apache-2.0
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P)
root=$(CDPATH='' cd -- "$here/../.." && pwd -P)

usage() {
    cat <<'END'
usage: sh demo/train/run.sh --run K [options]

Run K of --runs: renders frames of its own, from scene --first on, trains CHECKPOINT on them from where the run before left it,
and writes to the folder of --out: denoise.pt, denoise.safetensors, train.jsonl, frames.txt, and, with --held-out, judged.txt,
judged.json and judged.png.
Nothing but these need be kept from run to run. It needs no display, no network and no compiler: build/tandem-frames,
build/tandem and build/tandem-bench may come from elsewhere. Each run ends by --minutes, whatever is done by then.

  --run K          0 to --runs - 1
  --runs N         of all; default 5: the rate falls to 0 by the end of the last
  --minutes M      of a run; default 9
  --checkpoint F   that the run before left; default: denoise.pt in --out
  --weights F      a model to begin with where there is no checkpoint
  --out DIR        default: train-out
  --frames DIR     where frames go, some 5 MB a scene; default: a folder that is deleted. What is there already is trained on, too
  --beside DIR     --frames of a run that goes on at the same time, on another GPU: both train on the frames of both
  --render-share P percent of a run that is spent on frames; default 20
  --processes N    that render at once; default 1. A GPU has its fill with some twelve, each of which takes a core
  --first N        number of the first scene; default K * 1000000, and 50000 more for each GPU before --device
  --held-out DIR   frames of another renderer, as foreign.py makes them, that are only judged by
  --oidn F         Open Image Denoise's library, to judge beside; default: where libraries are, if it is there
  --build DIR      default: build
  --python P       one that has torch, numpy and safetensors; default: python3
  --device N       of several GPUs; default 0
  --size WxH       of frames; default 320x192
  --middle P       percent of scenes whose rays go through the middle of pixels; default 0
  --reference N    samples of references; default 512
  --options O      further ones of denoise.py, as one word: '--preset fast'
END
}

die() {
    printf '%s\n' "run.sh: $*" >&2
    exit 1
}

start=$(date +%s)
run='' runs=5 minutes=9 checkpoint='' out=train-out frames='' share=20 held_out='' build=$root/build python=python3 size=320x192
reference=512 middle=0 options='' oidn='' device=0 weights='' beside='' processes=1 first=''
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        usage
        exit 0
        ;;
    esac
    [ $# -ge 2 ] || die "$1 needs a value; see --help"
    case $1 in
    --run) run=$2 ;;
    --runs) runs=$2 ;;
    --minutes) minutes=$2 ;;
    --checkpoint) checkpoint=$2 ;;
    --out) out=$2 ;;
    --weights) weights=$2 ;;
    --frames) frames=$2 ;;
    --beside) beside=$2 ;;
    --processes) processes=$2 ;;
    --first) first=$2 ;;
    --render-share) share=$2 ;;
    --held-out) held_out=$2 ;;
    --build) build=$2 ;;
    --python) python=$2 ;;
    --device) device=$2 ;;
    --size) size=$2 ;;
    --reference) reference=$2 ;;
    --middle) middle=$2 ;;
    --options) options=$2 ;;
    --oidn) oidn="--oidn $2" ;;
    *) die "unknown option $1; see --help" ;;
    esac
    shift 2
done
for value in "$run" "$runs" "$minutes" "$share" "$reference" "$device" "$processes" "$middle"; do
    case $value in
    '' | *[!0-9]* | ?????*) die "--run, --runs, --minutes, --render-share, --reference, --device, --processes and --middle must be numbers; \"$value\" is none" ;;
    esac
done
[ -n "$first" ] || first=$((run * 1000000 + device * 50000))
case $first in
*[!0-9]* | ?????????*) die "--first $first: must be a number below 100000000" ;;
esac
{ [ "$processes" -gt 0 ] && [ "$processes" -le 25 ]; } || die "--processes $processes: must be 1 to 25"
[ "$middle" -le 100 ] || die "--middle $middle: must be at most 100"
[ "$run" -lt "$runs" ] || die "--run $run: must be less than --runs, $runs"
[ "$minutes" -gt 0 ] || die "--minutes $minutes: must be at least 1"
[ "$share" -lt 90 ] || die "--render-share $share: must be less than 90"
case $size in
*[!0-9x]* | *x*x* | x* | *x) die "--size $size: must be as 320x192" ;;
*x*) ;;
*) die "--size $size: must be as 320x192" ;;
esac
for program in tandem tandem-bench tandem-frames; do
    [ -x "$build/$program" ] || die "--build $build: has no $program"
done
[ -z "$weights" ] || [ -f "$weights" ] || die "--weights $weights: no such file"
[ -z "$beside" ] || [ -n "$frames" ] || die "--beside $beside: needs --frames, which the other run has as its --beside"
[ -z "$held_out" ] || [ -d "$held_out" ] || die "--held-out $held_out: no such folder"
"$python" -c 'import torch, numpy, safetensors' || die "--python $python: lacks torch, numpy or safetensors"
end=$((start + 60 * minutes))
mkdir -p "$out"
if [ -z "$frames" ]; then
    frames=$(mktemp -d)
    trap 'rm -rf "$frames"' EXIT
else
    mkdir -p "$frames"
    rm -f "$frames/done"
    trap ': >"$frames/done"' EXIT # whatever becomes of this, a run beside it waits no longer
fi
trap 'exit 130' INT TERM
[ -z "$checkpoint" ] || [ "$checkpoint" -ef "$out/denoise.pt" ] || cp "$checkpoint" "$out/denoise.pt"
[ "$run" -eq 0 ] || [ -f "$out/denoise.pt" ] || [ -n "$weights" ] || die "--run $run goes on from a checkpoint: --checkpoint, or $out/denoise.pt"

# CUDA's GPUs are in the order that Vulkan's are.
[ "$device" -eq 0 ] || export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES="$device"

# The driver's own description, where a container mounts it aside.
aside=/usr/local/nvidia/share/vulkan/icd.d/nvidia_icd.json
[ -n "${VK_DRIVER_FILES-}" ] || [ ! -f "$aside" ] || export VK_DRIVER_FILES="$aside"

# Half of the time for paths, half for copies of one frame: scenes differ. A reference costs the most by far, so a path has four.
width=${size%x*} height=${size#*x} each=$((60 * minutes * share / 200))
for kind in still path; do
    more='--samples 1,1,2,4,8'
    [ "$kind" = still ] || more='--length 4'
    process=0 ids=''
    while [ $process -lt "$processes" ]; do
        # shellcheck disable=SC2086
        "$build/tandem-frames" --out "$frames" --name $kind --first $((first + 2000 * process)) --count 2000 --seconds $((each > 0 ? each : 1)) \
            --device "$device" --width "$width" --height "$height" --reference "$reference" --middle "$middle" $more >"$out/frames.$process" &
        ids="$ids $!" process=$((process + 1))
    done
    made=0
    for id in $ids; do
        ! wait "$id" || made=$((made + 1))
    done
    [ $made -gt 0 ] || die "no frames were made"
    process=0
    while [ $process -lt "$processes" ]; do
        printf '%s from %s: ' $kind $((first + 2000 * process)) >>"$out/frames.txt"
        cat "$out/frames.$process" >>"$out/frames.txt"
        rm "$out/frames.$process"
        process=$((process + 1))
    done
    first=$((first + 500000))
done
tail -n $((2 * processes)) "$out/frames.txt"

# What another GPU made counts once it is whole.
if [ -n "$beside" ]; then
    : >"$frames/done"
    until [ -f "$beside/done" ] || [ "$(date +%s)" -ge $((start + 30 * minutes)) ]; do
        sleep 1
    done
    [ -f "$beside/done" ] || {
        printf '%s\n' "--beside $beside: not done in time; left out"
        beside=''
    }
fi

judging=15
[ -z "$held_out" ] || judging=$((15 + 6 * minutes))
# Should CUDA graphs fail, then without: what a run does is saved at its end.
train() {
    # shellcheck disable=SC2086
    "$python" "$here/denoise.py" "$out/denoise.pt" --frames "$frames" ${beside:+"$beside"} ${weights:+--weights "$weights"} \
        ${held_out:+--held-out "$held_out"} --log "$out/train.jsonl" --until $((end - judging)) \
        --total-minutes "$(awk "BEGIN { print $runs * ($minutes * (1 - $share / 100) - ($judging + 9) / 60) }")" $options "$@"
}
train || train --eager
"$python" "$here/export.py" "$out/denoise.pt" "$out/denoise.safetensors"
if [ -n "$held_out" ]; then
    left=$((end - $(date +%s)))
    # shellcheck disable=SC2086
    timeout $((left > 5 ? left : 5)) "$build/tandem" eval denoise --frames "$held_out" --model "$out/denoise.safetensors" \
        --sheet "$out/judged.png" --json "$out/judged.json" $oidn >"$out/judged.txt" || printf '%s\n' "not all was judged in time" >>"$out/judged.txt"
    cat "$out/judged.txt"
fi
printf '%s\n' "run $run of $runs: $(($(date +%s) - start)) s -> $out"
