#!/bin/sh
# Installs what is missing, builds, and runs the demo.
# SPDX-License-Identifier: Apache-2.0
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)

usage() {
    cat <<'END'
usage: sh demo/run.sh [options]
Installs missing Debian packages (says which, asks nothing), builds into build/, and runs the demo there.

  --headless          render offscreen and write pictures and report.json; by itself where there is no display
  --frames N          stop after N frames
  --out DIR           where pictures and report go
  --scene NAME        the scene
  --mode M            precision of the attention: auto, f16 or 8b
  --backend B         auto, cuda or cpu
  --width W --height H
  --seed N            of the noise
  --threads N         most CPU threads
  --dump F            write q, k, v and o of the last frame as safetensors
  --trace F           write a trace for Chrome's viewer
  --inject stage:MS, --inject error:X
                      make a stage slower or the result worse, to see the figures move
  --help
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
td_build default build
exec "$root/build/tandem-demo" "$@"
