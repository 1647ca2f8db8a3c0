/* How a test runs a kernel on the emulator: a module is a shared object that was built from kernels.cpp or broken.cpp.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TESTS_EMU_LAUNCH_H
#define TD_TESTS_EMU_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

typedef struct emu_launch {
    void *kernel;
    uint32_t grid, block;    /* of one dimension */
    uint32_t shared_bytes;   /* dynamic */
    uint32_t cluster;        /* blocks, 0 or 1: none */
    uint32_t together;       /* blocks that run side by side where there are no clusters */
    const void *params;      /* 640 bytes */
    uint64_t seed;
    void (*before)(void *user, uint32_t block); /* that block, or the first of those side by side, begins; or NULL */
    void *user;
    char *why; /* what went wrong: which warp waits for what, which bytes were missed */
    size_t why_bytes;
} emu_launch;

/* A module's symbol `emu_run`: 0 and all blocks have ended, or -1 and why. */
typedef int emu_run_fn(const emu_launch *launch);

#endif
