/* The instruction set that CPU kernels use. See cpu.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdatomic.h>

#include "kernels/cpu/cpu.h"

#if TD_X86
#include <cpuid.h>
#endif

static const char *const isa_names[TD_ISA_COUNT] = {"c", "avx2", "avx512-vnni"};
static atomic_int isa_in_use = -1;

static td_isa best_isa(void)
{
#if TD_X86
    unsigned a, b, c = 0, d;
    __builtin_cpu_init();
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C) || !__builtin_cpu_supports("avx2") ||
        !__builtin_cpu_supports("fma"))
        return TD_ISA_C;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vnni"))
        return TD_ISA_AVX2;
    return TD_ISA_AVX512;
#else
    return TD_ISA_C;
#endif
}

td_isa td_cpu_isa_level(void)
{
    int level = atomic_load_explicit(&isa_in_use, memory_order_relaxed);
    if (level < 0) {
        level = (int)best_isa();
        atomic_store_explicit(&isa_in_use, level, memory_order_relaxed);
    }
    return (td_isa)level;
}

const char *td_cpu_isa(void)
{
    return isa_names[td_cpu_isa_level()];
}

bool td_cpu_isa_force(const char *name)
{
    const int best = (int)best_isa();
    int level = name ? 0 : best;
    while (name && level < TD_ISA_COUNT && strcmp(name, isa_names[level]) != 0)
        level++;
    if (level > best)
        return false;
    atomic_store_explicit(&isa_in_use, level, memory_order_relaxed);
    return true;
}
