#!/bin/sh
# Runs a program of Windows under Wine: wine.sh BUILD_FOLDER PROGRAM ARGUMENTS...; without one, makes what Wine needs.
# SPDX-License-Identifier: Apache-2.0
build=$1
shift
PATH=$PATH:/usr/lib/wine
wine=$(command -v wine64 || command -v wine) || exit 77
command -v xvfb-run >/dev/null || exit 77
export WINEPREFIX="$build/wine" WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml="
icd=/usr/share/vulkan/icd.d/lvp_icd.$(uname -m).json
export VK_ICD_FILENAMES="$icd" VK_DRIVER_FILES="$icd"
export WINEPATH="$build" # where libtandem.dll is
[ $# -gt 0 ] || set -- wineboot --init # with a display, too: what it starts lives on, and where there was none makes no windows
# -a looks for a display that is free, and two that look at once find the same one, which ends with the first.
exec xvfb-run -a -n $((100 + $$ % 50000)) "$wine" "$@"
