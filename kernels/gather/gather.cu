/* Attention of pixels over their neighbours: see params.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A thread has a query, or some that are neighbours in a row and share what they read. What a block's queries may meet comes into
 * shared memory once. A query goes over it once: where a row of keys has a larger score than those before, its sums shrink.
 * Scores are logarithms to the base of 2, and a weight is a part of its key's: what counts for nothing, or is beyond the image,
 * has minus infinity, so that no loop asks what is there.
 */
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tensor.cuh"
#include "kernels/gather/params.h"

namespace td {

/* What a kernel is for: windows of so many taps. Taps 0: all that there are, and a query a thread. */
template <uint32_t DimOf, uint32_t TapsOf, uint32_t CoarseTapsOf, uint32_t StepOf, uint32_t QueriesOf, bool MayHaveBefore,
          bool HasFactor>
struct GatherWindows {
    static constexpr uint32_t Dim = DimOf, Step = StepOf, Queries = QueriesOf;
    static constexpr uint32_t Threads = TD_GATHER_WIDTH * TD_GATHER_HEIGHT / Queries;
    /* Keys of a row that are met at a time. */
    static constexpr uint32_t Run = TapsOf ? TapsOf : 1, CoarseRun = CoarseTapsOf ? CoarseTapsOf : 1;
    static constexpr uint32_t Each = TapsOf ? Queries * Step : 1; /* columns between the first keys of two threads */
    static constexpr uint32_t Keys = TapsOf ? TapsOf * TapsOf + CoarseTapsOf * CoarseTapsOf + MayHaveBefore : TD_GATHER_KEYS;
    /* Pixels of a patch that a thread loads at a time: all, where it is known how many that is. */
    static constexpr uint32_t RowsAtOnce = Threads / TD_GATHER_SPAN(TD_GATHER_WIDTH, Step, Run);
    static constexpr uint32_t Pixels = TapsOf ? (TD_GATHER_SPAN(TD_GATHER_HEIGHT, Step, Run) + RowsAtOnce - 1) / RowsAtOnce : 1;

    const td_params_gather &p;

    __device__ __forceinline__ uint32_t taps() const
    {
        return TapsOf ? TapsOf : p.taps;
    }
    __device__ __forceinline__ uint32_t coarse_taps() const
    {
        return TapsOf ? CoarseTapsOf : p.coarse_taps;
    }
    __device__ __forceinline__ uint32_t step() const
    {
        return TapsOf ? Step : p.step;
    }
    __device__ __forceinline__ bool has_before() const
    {
        return MayHaveBefore && p.k_before;
    }
    __device__ __forceinline__ const float *factor() const
    {
        return HasFactor ? p.factor : nullptr;
    }
};

/* Keys and values of an image. */
struct GatherImage {
    uint32_t batch, height, width;
    const void *k;
    const td_strides &k_at;
    const float *v;
    const td_strides &v_at;
    const float *factor; /* or NULL */
    const td_strides &factor_at;
};

template <uint32_t Dim> struct GatherPixel {
    float4 value;
    float factor[3];
    Eight<__half> key[Dim / 8];

    /* One that is beyond the image is the nearest that is not, which all who meet the one meet as well; put() lets it count for
     * nothing. */
    __device__ __forceinline__ void load(const GatherImage &of, int row, int column)
    {
        const uint32_t y = uint32_t(min(max(row, 0), int(of.height) - 1)), x = uint32_t(min(max(column, 0), int(of.width) - 1));

        value = *reinterpret_cast<const float4 *>(of.v + row_at(of.v_at, of.batch, y, x));
#pragma unroll
        for (int c = 0; c < 3; c++)
            factor[c] = of.factor ? of.factor[row_at(of.factor_at, of.batch, y, x) + c] : 1.0f;
#pragma unroll
        for (uint32_t d = 0; d < Dim / 8; d++)
            key[d].template load<true>(static_cast<const __half *>(of.k) + row_at(of.k_at, of.batch, y, x) + 8 * d);
    }
};

/* A part of an image, from (top, left) on. Of Each columns those that leave the same rest lie together: neighbouring threads read
 * what is side by side. A thread has pixels of a column: one, and those that are a multiple of at_once() rows below it. */
template <uint32_t Dim, uint32_t Each, uint32_t Threads> struct GatherPatch {
    float4 *values; /* [height][Each][width / Each]: light, and the logarithm of its weight */
    uint4 *keys;    /* [Dim / 8] such planes */
    uint32_t height, width;
    int top, left;

    __device__ __forceinline__ uint8_t *place(uint8_t *memory, uint32_t rows, uint32_t columns)
    {
        height = rows, width = columns;
        values = reinterpret_cast<float4 *>(memory);
        keys = reinterpret_cast<uint4 *>(values + rows * columns);
        return reinterpret_cast<uint8_t *>(keys + rows * columns * (Dim / 8));
    }
    __device__ __forceinline__ uint32_t at_once() const
    {
        return Threads / width;
    }
    __device__ __forceinline__ void load(GatherPixel<Dim> &pixel, const GatherImage &of, uint32_t below) const
    {
        pixel.load(of, top + int(threadIdx.x / width + below), left + int(threadIdx.x % width));
    }
    __device__ __forceinline__ void put(const GatherPixel<Dim> &pixel, const GatherImage &of, uint32_t below) const
    {
        const uint32_t row = threadIdx.x / width + below, column = threadIdx.x % width, at = row * width + next(column);
        const bool is_there = uint32_t(top) + row < of.height && uint32_t(left) + column < of.width;
        const float *by = pixel.factor, weight = is_there ? fmaxf(pixel.value.w, 0.0f) : 0.0f;
        const float4 value = {pixel.value.x * by[0], pixel.value.y * by[1], pixel.value.z * by[2], __log2f(weight)};

        if (threadIdx.x >= at_once() * width || row >= height)
            return;
        values[at] = value;
#pragma unroll
        for (uint32_t d = 0; d < Dim / 8; d++)
            keys[d * height * width + at] = pixel.key[d].words[0];
    }

    /* Where a row's column is. */
    __device__ __forceinline__ uint32_t next(uint32_t column) const
    {
        return column % Each * (width / Each) + column / Each;
    }
    __device__ __forceinline__ void get(Eight<__half> (&key)[Dim / 8], float4 &value, uint32_t at) const
    {
        value = values[at];
#pragma unroll
        for (uint32_t d = 0; d < Dim / 8; d++)
            key[d].words[0] = keys[d * height * width + at];
    }
};

/* A query, and what it has met: lights times 2^(score - most), and those added up. */
template <uint32_t Dim> struct GatherQuery {
    float q[Dim], most, sums[4];

    __device__ __forceinline__ void begin(const Eight<__half> (&of)[Dim / 8])
    {
        most = -1e30f;
#pragma unroll
        for (uint32_t d = 0; d < Dim / 8; d++) {
            float eight[8];

            of[d].convert(eight);
#pragma unroll
            for (int i = 0; i < 8; i++)
                q[8 * d + i] = eight[i] * TD_LOG2_E;
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[c] = 0.0f;
    }
    __device__ __forceinline__ float score(const Eight<__half> (&key)[Dim / 8], float sum) const
    {
#pragma unroll
        for (uint32_t d = 0; d < Dim / 8; d++) {
            float eight[8];

            key[d].convert(eight);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += q[8 * d + i] * eight[i];
        }
        return sum;
    }
    template <uint32_t Count> __device__ __forceinline__ void meet(const float (&scores)[Count], const float4 *values)
    {
        const float before = most;

#pragma unroll
        for (uint32_t i = 0; i < Count; i++)
            most = fmaxf(most, scores[i]);
        const float shrink = ex2(before - most);
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[c] *= shrink;
#pragma unroll
        for (uint32_t i = 0; i < Count; i++) {
            const float weight = ex2(scores[i] - most);

            sums[0] += weight * values[i].x;
            sums[1] += weight * values[i].y;
            sums[2] += weight * values[i].z;
            sums[3] += weight;
        }
    }
    __device__ __forceinline__ float4 light(float before) const
    {
        const bool is_any = sums[3] > 0;
        const float share = __fdividef(1.0f, sums[3]);

        return make_float4(is_any ? sums[0] * share : 0.0f, is_any ? sums[1] * share : 0.0f, is_any ? sums[2] * share : 0.0f,
                           (is_any ? 1.0f : 0.0f) + before);
    }
};

/* Neighbours in as few stores as there can be. */
template <uint32_t Queries>
__device__ __forceinline__ void gather_store(const td_params_gather &p, float *to, uint32_t count, const float4 (&lights)[Queries])
{
    if (Queries == 2 && count > 1 && p.channels == 3 && p.o_at.stride_row == 3 && uint64_t(to) % 8 == 0) {
        const float4 &first = lights[0], &second = lights[Queries - 1];

        reinterpret_cast<float2 *>(to)[0] = make_float2(first.x, first.y);
        reinterpret_cast<float2 *>(to)[1] = make_float2(first.z, second.x);
        reinterpret_cast<float2 *>(to)[2] = make_float2(second.y, second.z);
        return;
    }
#pragma unroll
    for (uint32_t n = 0; n < Queries; n++) {
        if (n >= count)
            return;
        float *o = to + n * p.o_at.stride_row;
        if (p.channels == 4 && uint64_t(o) % 16 == 0) {
            *reinterpret_cast<float4 *>(o) = lights[n];
            continue;
        }
        o[0] = lights[n].x, o[1] = lights[n].y, o[2] = lights[n].z;
        if (p.channels == 4)
            o[3] = lights[n].w;
    }
}

/* A thread's queries meet a window each of `taps` a side: the first's begins at `at`, another's `Apart` columns further on. They
 * meet Run keys of a row at a time. */
template <uint32_t Run, uint32_t Apart, uint32_t Dim, uint32_t Each, uint32_t Threads, uint32_t Queries>
__device__ __forceinline__ void gather_window(const GatherPatch<Dim, Each, Threads> &patch, GatherQuery<Dim> (&queries)[Queries],
                                              uint32_t at, uint32_t taps, const float *biases)
{
#pragma unroll 1
    for (uint32_t i = 0; i < taps; i++)
        for (uint32_t first = 0; first < taps; first += Run) {
            constexpr uint32_t columns = Run + Apart * (Queries - 1);
            float scores[Queries][Run];
            float4 values[columns];

#pragma unroll
            for (uint32_t c = 0; c < columns; c++) {
                Eight<__half> key[Dim / 8];

                patch.get(key, values[c], at + i * patch.width + first + patch.next(c));
#pragma unroll
                for (uint32_t n = 0; n < Queries; n++)
                    if (c >= n * Apart && c - n * Apart < Run)
                        scores[n][c - n * Apart] = queries[n].score(key, biases[i * taps + first + c - n * Apart] + values[c].w);
            }
#pragma unroll
            for (uint32_t n = 0; n < Queries; n++)
                queries[n].meet(scores[n], values + n * Apart);
        }
}

template <class W> __device__ __forceinline__ void gather_block(const W &w)
{
    constexpr uint32_t dim = W::Dim, across = TD_GATHER_WIDTH / W::Queries;
    TD_DYNAMIC_SHARED(16, gather_bytes);
    __shared__ float biases[W::Keys];
    const td_params_gather &p = w.p;
    const uint32_t batch = blockIdx.x / p.columns / p.rows, top = blockIdx.x / p.columns % p.rows * TD_GATHER_HEIGHT;
    const uint32_t left = blockIdx.x % p.columns * TD_GATHER_WIDTH;
    const uint32_t row = threadIdx.x / across, column = threadIdx.x % across * W::Queries, y = top + row, x = left + column;
    const uint32_t taps = w.taps(), coarse_taps = w.coarse_taps(), step = w.step(), coarse_radius = coarse_taps / 2;
    const uint32_t in_window = taps * taps, in_both = in_window + coarse_taps * coarse_taps;
    const GatherImage of_fine = {batch, p.height, p.width, p.k, p.k_at, p.v, p.v_at, w.factor(), p.factor_at};
    const GatherImage of_coarse = {batch,      (p.height + 1) / 2, (p.width + 1) / 2, p.k_coarse, p.k_coarse_at,
                                   p.v_coarse, p.v_coarse_at,      nullptr,           p.factor_at};
    GatherPatch<dim, W::Each, W::Threads> fine;
    GatherPatch<dim, 1, W::Threads> coarse;
    Eight<__half> q[W::Queries][dim / 8], k_before[W::Queries][dim / 8];
    float4 before[W::Queries] = {};
    GatherPixel<dim> coarse_pixel;
    GatherQuery<dim> queries[W::Queries];
    uint8_t *memory =
        fine.place(gather_bytes, TD_GATHER_SPAN(TD_GATHER_HEIGHT, step, taps), TD_GATHER_SPAN(TD_GATHER_WIDTH, step, taps));

    coarse.place(memory, TD_GATHER_COARSE_SPAN(TD_GATHER_HEIGHT, coarse_radius),
                 TD_GATHER_COARSE_SPAN(TD_GATHER_WIDTH, coarse_radius));
    fine.top = int(top * step - p.before), fine.left = int(left * step - p.before);
    coarse.top = int(top / 2 - coarse_radius), coarse.left = int(left / 2 - coarse_radius);
    /* Loads are ahead of all that waits for one. */
    const bool has_bias = threadIdx.x < in_both + w.has_before();
    const float bias = has_bias && p.bias ? p.bias[threadIdx.x] : 0.0f;
#pragma unroll
    for (uint32_t n = 0; n < W::Queries; n++) {
        const uint32_t i = min(y, p.out_height - 1), j = min(x + n, p.out_width - 1);
        const __half *const q_at = static_cast<const __half *>(p.q) + row_at(p.q_at, batch, i, j);
        const __half *const k_at = static_cast<const __half *>(p.k_before) + row_at(p.k_before_at, batch, i, j);

#pragma unroll
        for (uint32_t d = 0; d < dim / 8; d++)
            q[n][d].template load<true>(q_at + 8 * d);
        if (!w.has_before())
            continue;
        before[n] = *reinterpret_cast<const float4 *>(p.v_before + row_at(p.v_before_at, batch, i, j));
#pragma unroll
        for (uint32_t d = 0; d < dim / 8; d++)
            k_before[n][d].template load<true>(k_at + 8 * d);
    }
    if (coarse_taps)
        coarse.load(coarse_pixel, of_coarse, 0);
    for (uint32_t below = 0; below < fine.height; below += W::Pixels * fine.at_once()) {
        GatherPixel<dim> pixels[W::Pixels];

#pragma unroll
        for (uint32_t i = 0; i < W::Pixels; i++)
            fine.load(pixels[i], of_fine, below + i * fine.at_once());
        __syncwarp(); /* else ptxas puts some of them off, to where they are needed */
#pragma unroll
        for (uint32_t i = 0; i < W::Pixels; i++)
            fine.put(pixels[i], of_fine, below + i * fine.at_once());
    }
    if (coarse_taps)
        coarse.put(coarse_pixel, of_coarse, 0);
    if (has_bias)
        biases[threadIdx.x] = bias * TD_LOG2_E;
    __syncthreads();

#pragma unroll
    for (uint32_t n = 0; n < W::Queries; n++) {
        queries[n].begin(q[n]);
        before[n].w = fmaxf(before[n].w, 0.0f);
        if (before[n].w > 0) { /* beside its neighbours' keys: its own pixel's of frames before */
            const float score[1] = {queries[n].score(k_before[n], biases[in_both] + __log2f(before[n].w))};
            queries[n].meet(score, &before[n]);
        }
    }
    gather_window<W::Run, W::Step>(fine, queries, row * step * fine.width + column * step / W::Each, taps, biases);
    if (coarse_taps)
        gather_window<W::CoarseRun, 0>(coarse, queries, row / 2 * coarse.width + column / 2, coarse_taps, biases + in_window);
    if (y >= p.out_height || x >= p.out_width)
        return;
    float4 lights[W::Queries];
#pragma unroll
    for (uint32_t n = 0; n < W::Queries; n++)
        lights[n] = queries[n].light(before[n].w);
    gather_store(p, p.o + row_at(p.o_at, batch, y, x), p.out_width - x, lights);
}

template <class W> __device__ __forceinline__ void gather_entry(const td_params_gather &p)
{
    wait_for_previous();
    launch_dependents();
    if (!cancelled(p.cancel))
        gather_block(W{p});
}

} // namespace td

extern "C" __global__ void __launch_bounds__(TD_BLOCK_THREADS, 6) gather(const __grid_constant__ td_params_gather p)
{
    if (p.dim == 8)
        td::gather_entry<td::GatherWindows<8, 0, 0, 0, 1, true, true>>(p);
    else
        td::gather_entry<td::GatherWindows<16, 0, 0, 0, 1, true, true>>(p);
}

#define TD_GATHER_ENTRY(entry, taps, coarse_taps, step, queries, before, factor)                                 \
    extern "C" __global__ void __launch_bounds__(TD_GATHER_WIDTH * TD_GATHER_HEIGHT / (queries), 6 * (queries))  \
        entry(const __grid_constant__ td_params_gather p)                                                        \
    {                                                                                                            \
        td::gather_entry<td::GatherWindows<8, taps, coarse_taps, step, queries, before, factor>>(p);             \
    }
TD_GATHER_KERNELS(TD_GATHER_ENTRY)
