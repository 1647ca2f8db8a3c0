#!/bin/sh
# Fails, and names the largest files, where a tree that is to be carried to another machine is too large for that.
# usage: tree_size.sh FOLDER MIB
# SPDX-License-Identifier: Apache-2.0
set -eu
kib=$(find "$1" -type f -printf '%s\n' | awk '{ bytes += $1 } END { print int((bytes + 1023) / 1024) }') # of files: folders weigh nothing
[ "$kib" -gt $(($2 * 1024)) ] || exit 0
echo "$1 has $((kib / 1024)) MiB; to be carried it must have at most $2. The largest files:" >&2
find "$1" -type f -printf '%s %P\n' | sort -rn | head -n 12 >&2
exit 1
