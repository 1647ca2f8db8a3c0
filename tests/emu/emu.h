/* An emulator of a GPU's blocks, for running the CUDA kernels where there is no GPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   the files of kernels/cuda as they are, compiled by the host's compiler: kernels.cpp, one module an architecture
 *   builtins.h, include/     what CUDA C++ has and C++ has not
 *   ptx.h                    the instructions, in place of kernels/cuda/ptx.cuh; their rounding is kernels/attention/cpu/twin.c's
 *   emu.h, emu.cpp, mma.cpp  threads, barriers, copies and products that are under way; products of a warp
 *   statics.h, switch.h      static shared memory; stacks
 *
 * A block's threads are fibres of one thread of the host, resumed in an order that a seed decides. They give way at every
 * instruction that synchronises. What a GPU does beside them is made as visible as PTX allows: what cp.async writes is
 * garbage from its start until it has been waited for, the registers of wgmma until its group has; what either reads is
 * read late, or early, as the seed has it. If nobody can go on, the run fails and says which warps wait for what.
 *
 * What it proves: that a kernel that gives the twin's bits under many seeds has its fragments, addresses, tiles, masks,
 * parities, counts of arrivals and waits right; that it does not rely on an order of warps; that it stays within the
 * dynamic shared memory of its launch (instructions always, plain accesses by guard bytes, or in the tree with
 * AddressSanitizer). What it does not: nothing about time. Nothing about memory between barriers: a write is seen by all
 * at once, so a fence (fence.proxy.async, fence.acq_rel, membar) that is missing is not missed. Launches follow one
 * another, so programmatic dependent launch overlaps nothing. ex2 and log2 are the host's, not the GPU's approximations,
 * the f16 and bf16 wgmma round otherwise than a GPU's, and the compiler is another.
 */
#pragma once

#include <stdint.h>
#include <string.h>

namespace emu {

struct Index {
    unsigned x, y, z;
};
extern Index threadIdx, blockIdx, blockDim, gridDim;

[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char *format, ...);

/* Another thread may go on first. poll(): this one goes round until somebody else has done something. */
void maybe_yield();
void poll(const char *what, uint64_t detail);
/* A clock, which a thread that polls reads. Where nobody can go on, and some read it, a minute passes (of 1000 at most): so waits that
 * are bounded by it end. */
uint64_t nanoseconds();
uint64_t random64();

/* Of a warp: each lane brings `mine`; the last one to come runs `all` on those of all lanes. */
void collective(const char *what, void *mine, void (*all)(void *const *lanes));

template <class T> T shuffle(T x, int from, const char *what)
{
    struct Lane {
        T x, got;
        int from;
    } mine = {x, x, from};
    collective(what, &mine, [](void *const *lanes) {
        for (int i = 0; i < 32; i++) {
            Lane *lane = static_cast<Lane *>(lanes[i]);
            lane->got = static_cast<Lane *>(lanes[lane->from])->x;
        }
    });
    return mine.got;
}
uint32_t vote(bool x);

/* Barrier `id` of a block, of `threads` threads, or of all that have not ended (0). */
struct Votes {
    bool any, all;
};
Votes barrier(unsigned id, unsigned threads, bool waits, bool x);

/* Shared memory: 32-bit addresses, which pointers can be made of and which bounds are checked of. */
void *dynamic_shared();
uint32_t shared_address(const void *p);
void *shared_pointer(uint32_t address, uint32_t bytes, uint32_t alignment, const char *what);

/* Copies that are under way: 16 bytes each, of which so many are read, then zeros. */
void copy_start(uint32_t to, const void *from, uint32_t bytes);
void copy_commit();
void copy_wait(unsigned pending);
void copy_arrive(uint32_t barrier); /* once all copies of this thread are there */

void mbarrier_init(uint32_t at, uint32_t arrivals);
void mbarrier_arrive(uint32_t at);
void mbarrier_expect(uint32_t at, uint32_t bytes); /* an arrival; the phase waits for so many bytes as well */
bool mbarrier_test(uint32_t at, uint32_t parity); /* for somebody who asks until it is true */
bool mbarrier_look(uint32_t at, uint32_t parity);

/* Products of a warp, D = A B + C: what each lane has of them, for collective(). mma.cpp, which is compiled for speed. */
struct MmaLane {
    void *c;
    uint32_t a[4], b[2];
};
void mma_s8(void *const *lanes);
void mma_s4(void *const *lanes);
void mma_f16(void *const *lanes);
void mma_bf16(void *const *lanes); /* rounded once, as no GPU does */
template <uint32_t Accumulator> void mma_e4m3(void *const *lanes);

/* Products that are under way: C (64 x n, 32 bits an element) = A B [+ C], k = 32 bytes of a row of A. */
enum class Type { s8, e4m3, e4m3_into_f16, f16, bf16 };
struct Product {
    Type type;
    int n;
    bool adds, b_by_k; /* b_by_k: a row of B in shared memory is a k, not a column */
    uint64_t a, b;     /* descriptors */
    const uint32_t *a_registers; /* or NULL */
    void *c;                     /* this lane's n / 2 numbers */
};
void wgmma_fence();
void wgmma_start(const Product &product);
void wgmma_commit();
void wgmma_wait(unsigned pending);

uint32_t cluster_rank();
uint32_t cluster_size();
void cluster_arrive();
void cluster_wait();
/* What another block of the cluster has where this one has `mine` in its shared memory. */
const void *cluster_pointer(const void *mine, uint32_t rank, uint32_t bytes);
/* To there, and its mbarrier where this block has `barrier` hears of it; both are in shared memory. */
void cluster_store(void *mine, uint32_t rank, const void *from, uint32_t bytes, const void *barrier);

} // namespace emu
