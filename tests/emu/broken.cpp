/* Small kernels, right ones and ones with a mistake that the emulator has to see. Each writes 128 words or more to `out`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/emu/builtins.h"
#include "tests/emu/ptx.h"

struct Params {
    const uint32_t *in;
    uint32_t *out;
    uint32_t mistake;
};

/* Two warps hand a word on by two mbarriers, eight times. Mistake 1: a parity that is off by one. */
extern "C" __global__ void ring(const __grid_constant__ Params p)
{
    __shared__ uint64_t full, empty;
    __shared__ uint32_t word[32];
    const uint32_t lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        td::mbarrier_init(td::shared_address(&full), 32);
        td::mbarrier_init(td::shared_address(&empty), 32);
    }
    __syncthreads();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 8; i++) {
        if (threadIdx.x < 32) {
            while (!td::mbarrier_try_wait(td::shared_address(&empty), (i + 1) & 1)) {
            }
            word[lane] = p.in[lane] + i;
            td::mbarrier_arrive(td::shared_address(&full));
        } else {
            while (!td::mbarrier_try_wait(td::shared_address(&full), (i + (p.mistake == 1 && i == 5)) & 1)) {
            }
            sum += word[lane ^ 1];
            td::mbarrier_arrive(td::shared_address(&empty));
        }
    }
    p.out[threadIdx.x] = sum;
}

/* 128 threads fetch, then read what others fetched. Mistakes: 1 no wait, 2 no barrier, 3 beyond the launch's shared
 * bytes, 4 half of the threads do not come to the barrier, 5 a lane takes another way than its warp. */
extern "C" __global__ void fetch(const __grid_constant__ Params p)
{
    TD_DYNAMIC_SHARED(16, shared);
    const uint32_t t = threadIdx.x, extra = p.mistake == 3 ? 16 : 0;

    td::cp_async_16(td::shared_address(shared) + t * 16 + extra, p.in + t * 4);
    td::cp_async_commit();
    if (p.mistake != 1)
        td::cp_async_wait<0>();
    if (p.mistake == 4 && t < 64)
        return;
    if (p.mistake == 4)
        td::bar_sync<128>(1);
    else if (p.mistake != 2)
        __syncthreads();
    const uint32_t word = reinterpret_cast<const uint32_t *>(shared)[(t ^ 64) * 4];
    p.out[t] = p.mistake == 5 && t == 7 ? word : __shfl_xor_sync(~0u, word, 1);
}

/* A product of 64 x 8, k = 32, B of ones. Mistakes: 1 no wait, 2 no fence, 3 B is written to while it is read, 4 A's
 * registers are. */
extern "C" __global__ void product(const __grid_constant__ Params p)
{
    __shared__ __align__(128) uint8_t b[256];
    uint32_t a[4];
    float c[4] = {1, 2, 3, 4};

    for (uint32_t i = threadIdx.x; i < 256; i += 128)
        b[i] = 0x38;
    for (uint32_t &x : a)
        x = p.in[threadIdx.x] & 0x3f3f3f3fu;
    td::fence_proxy_async();
    __syncthreads();
    if (p.mistake != 2)
        td::wgmma_fence();
    td::wgmma_m64n8k32_e4m3(c, a, td::shared_address(b) >> 4 | uint64_t(8) << 16 | uint64_t(16) << 32);
    td::wgmma_commit();
    if (p.mistake == 3)
        b[threadIdx.x] = 0;
    if (p.mistake == 4)
        a[1] = 0;
    if (p.mistake != 1)
        td::wgmma_wait<0>();
    for (int i = 0; i < 4; i++)
        p.out[threadIdx.x * 4 + i] = __float_as_uint(c[i]);
    td::wgmma_wait<0>();
}

/* Blocks of a cluster tell two others what they have. Mistakes: 1 they read before they wait, 2 nobody knows whether the others
 * have begun, 3 no wait, 4 more bytes come than are waited for. */
extern "C" __global__ void neighbours(const __grid_constant__ Params p)
{
    __shared__ float x[2][64];
    __shared__ uint64_t told;
    const uint32_t t = threadIdx.x, rank = td::cluster_rank(), size = td::cluster_size();
    const float mine[1] = {float(p.in[blockIdx.x * 64 + t] % 1000)};
    float sum = 0;

    if (t == 0) {
        td::mbarrier_init(td::shared_address(&told), 1);
        td::fence_mbarrier_init();
        td::mbarrier_expect(td::shared_address(&told), sizeof x - 4 * (p.mistake == 4));
    }
    if (p.mistake != 2) {
        td::cluster_arrive();
        td::cluster_wait();
    }
    td::st_async(&x[0][t ^ 1], (rank + 1) % size, mine, &told);
    td::st_async(&x[1][t], (rank + 2) % size, mine, &told);
    if (p.mistake == 1)
        sum = x[0][t] + x[1][t];
    while (p.mistake != 3 && !td::mbarrier_try_wait(td::shared_address(&told), 0)) {
    }
    if (p.mistake != 1)
        sum = x[0][t] + x[1][t];
    p.out[blockIdx.x * 64 + t] = uint32_t(sum);
}

/* What a block finds in static shared memory, of several pages: nothing of blocks before it, of those beside it, or of a run before; and
 * what it wrote stays there while others have their turn. 0 is written for each thread. */
extern "C" __global__ void leftovers(const __grid_constant__ Params p)
{
    __shared__ uint32_t x[4096];
    const uint32_t t = threadIdx.x, mine = 4096 * (blockIdx.x + 1);
    uint32_t wrong = 0;

    for (uint32_t i = t; i < 4096; i += 64)
        wrong |= ~x[i];
    __syncthreads();
    for (uint32_t i = t; i < 4096; i += 64) {
        x[i] = mine + i;
        if ((i - t) % 512 == 0)
            __syncwarp();
    }
    __syncthreads();
    for (uint32_t i = t; i < 4096; i += 64)
        wrong |= x[i ^ 32] ^ (mine + (i ^ 32));
    p.out[blockIdx.x * 64 + t] = wrong;
}
