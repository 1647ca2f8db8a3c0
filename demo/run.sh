#!/bin/sh
# Installs what is missing, builds, and runs the demo.
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)

usage() {
    cat <<'END'
usage: sh demo/run.sh [options]
Installs missing Debian packages (says which, asks nothing), builds the programs into build/, and runs the demo there.

  --headless            no window: write pictures and report.json, then end; by itself where there is no display
  --frames N            how many frames (headless: 60; window: until it is closed)
  --out DIR             where files go (default: out)
  --scene NAME          room, gallery, courtyard, clutter, tavern
                        (default: room; courtyard in a window on a GPU)
  --effect E            what cleans the picture: denoise, a trained network that also uses the frames before, or
                        filter, attention that nobody trained (default: denoise; filter where an option of its own
                        is given)
  --preset P            denoise: the network to begin with: fast, balanced, high, as far as their files are beside the
                        program (default: balanced)
  --model F             denoise: a network of your own, in place of them all
  --mode M              filter: precision: auto, f16, 8b (default: auto)
  --max-error X         filter: auto: relative L1 error of 8b above which f16 is used (default: 0.05)
  --backend B           auto, cuda, cpu (default: auto)
  --rung R              how compute meets the renderer: auto (best), inline, timeline, host, copy, cpu
  --ladder N            headless: one rung down every N frames; every frame is checked
  --width W --height H  size of a frame (default: 960x540 on a GPU, 320x180 without)
  --seed N              of the renderer's noise (default: 1)
  --threads N           most threads that the CPU backend uses (default: all cores)
  --in-flight N         frames under way at once: 1 or 2 (default: 2 on a GPU, 1 where the CPU computes)
  --samples N           headless: samples a pixel of the reference (default: 1024)
  --save-frames         headless: write the frames that quality is measured on, with their references, as
                        `tandem eval denoise --frames DIR` reads them: SCENE-FRAME.00.safetensors
  --oidn F              the library of Open Image Denoise, to compare with (default: where it is installed, if it is)
  --attention-at X,Y    headless, denoise: write where that pixel of the last frame has its light from: attention.png
  --npc-model F         tavern: what its people think with: any language model as GGUF (default: npc.gguf beside
                        the program)
  --npc-budget US       tavern: microseconds of each frame that they may take (default: 1000 on a GPU, else 30000)
  --npc-cache C         tavern: how they keep what was said: f16, k8v8, k4v8 (default: f16)
  --dump F.safetensors  headless, filter: write q, k, v and o of the last frame
  --trace F.json        write a trace of all frames, for ui.perfetto.dev
  --inject STAGE:MS     delay a stage: render, pack, to, attention, back, unpack, present
  --inject error:X      filter: raise the relative L1 error of the output that is measured by X
  --help                this
END
}

for argument in "$@"; do
    case $argument in
    -h | --help)
        usage
        exit 0
        ;;
    esac
done

. "$root/demo/setup.sh"
td_install
td_target=tandem_programs
td_build default build
exec "$root/build/tandem-demo" "$@"
