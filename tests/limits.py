"""How long a program that a test runs may take, on a busy machine as on a quiet one: so many seconds of its CPU time and, for one
that sleeps for ever, WALL times as many by the clock. tests/limits.h has the same for C.

SPDX-License-Identifier: Apache-2.0
"""

import resource
import subprocess

WALL = 8


def cpu(seconds):
    """For Popen's preexec_fn: the program ends after so many seconds of CPU time, if it may have as many."""
    def limit():
        soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
        known = [x for x in (soft, hard, seconds) if x != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_CPU, (min(known), hard))

    return limit


def run(command, seconds, **more):
    """subprocess.run() within the limits."""
    return subprocess.run(command, timeout=seconds * WALL, preexec_fn=cpu(seconds), **more)
