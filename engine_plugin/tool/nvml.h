/* The GPU's clocks and power, by NVML.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_NVML_H
#define TD_TOOL_NVML_H

#include <stdbool.h>
#include <stdint.h>

/* NVML, where there is one: clocks and power of the GPU with this UUID (16 bytes). All calls accept NULL. */
typedef struct bench_nvml bench_nvml;
typedef struct bench_power {
    uint32_t sm_mhz, memory_mhz, milliwatts; /* 0: not known */
} bench_power;
bench_nvml *bench_nvml_open(const uint8_t *uuid);
void bench_nvml_close(bench_nvml *nvml);
bench_power bench_nvml_read(bench_nvml *nvml);
/* What the GPU has used since its driver was loaded, in millijoules, for differences. False where it does not count (before Volta). */
bool bench_nvml_energy(bench_nvml *nvml, uint64_t *millijoules);
const char *bench_nvml_driver(const bench_nvml *nvml); /* "" where it is not known */

#endif
