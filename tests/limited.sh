#!/bin/sh
# Runs a command whose every process may use so many seconds of CPU time: what spins for ever ends, on a busy machine as on a
# quiet one. What sleeps for ever is for ctest's limit, which is of the wall clock and much wider.
# usage: limited.sh SECONDS COMMAND...
# SPDX-License-Identifier: Apache-2.0
seconds=$1
shift
ulimit -S -t "$seconds" && ulimit -H -t $((seconds + 10)) && exec "$@"
