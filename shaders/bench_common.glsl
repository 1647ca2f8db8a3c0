/* What `tandem bench handover` writes and checks around a job. A row has 32 channels of fp16: four uvec4.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * gather: Q's row r is 8 times the Hadamard code of a random index j(r, frame), K's row j that code, V's random. So
 *         softmax(Q K^T) V is exactly V's row j(r, frame), and every element of O can be checked bit for bit.
 * random: everything is random; O is checked on some rows against attention in float32.
 * Each writer also fills O with NaN.
 */
#include "bench_shared.h"

layout(constant_id = 0) const uint MODE = 0;
layout(local_size_x = TD_BENCH_GROUP) in;
layout(std430, set = 0, binding = 0) buffer In { uvec4 data_in[]; };
layout(std430, set = 0, binding = 1) buffer Out { uvec4 data_out[]; };
layout(std430, set = 0, binding = 2) buffer Result {
    uint errors, first, checked, reserved;
    uvec2 clock;
} result;
layout(push_constant) uniform Push { td_bench_push push; };

shared float scores[TD_BENCH_KEYS];
shared float partial[TD_BENCH_GROUP];

uint hash(uint x)
{
    x = x * 747796405u + 2891336453u;
    x = ((x >> ((x >> 28) + 4u)) ^ x) * 277803737u;
    return (x >> 22) ^ x;
}

uint index_of(uint row)
{
    return hash(row * 2654435761u + push.frame * 40503u) & 31u;
}

/* In [-1, 1), exact in fp16. */
float random_value(uint i)
{
    return float(int(hash(i ^ hash(push.frame)) & 2047u) - 1024) / 1024.0;
}

float code(uint j, uint channel)
{
    return (bitCount(j & channel) & 1) == 0 ? 1.0 : -1.0;
}

/* Eight values from channel 8 * part on of a row of codes, or from element `first` on of random values. */
uvec4 pack_code(uint j, uint part, float gain)
{
    uvec4 words;
    for (uint i = 0; i < 4; i++) {
        const uint c = part * 8 + 2 * i;
        words[i] = packHalf2x16(gain * vec2(code(j, c), code(j, c + 1)));
    }
    return words;
}

uvec4 pack_random(uint at, float gain)
{
    uvec4 words;
    for (uint i = 0; i < 4; i++)
        words[i] = packHalf2x16(gain * vec2(random_value(8 * at + 2 * i), random_value(8 * at + 2 * i + 1)));
    return words;
}

float element(uvec4 words, uint i)
{
    return unpackHalf2x16(words[i / 2])[i & 1u];
}

void wrong(uint at)
{
    atomicAdd(result.errors, 1);
    atomicMin(result.first, at);
}

/* Equal as numbers, so that -0 is 0 and NaN is nothing. */
bool same(uvec4 a, uvec4 b)
{
    for (uint i = 0; i < 4; i++)
        if (any(notEqual(unpackHalf2x16(a[i]), unpackHalf2x16(b[i]))))
            return false;
    return true;
}

void write(uint at)
{
    if (at < push.in_vectors) {
        if (MODE == TD_BENCH_WRITE_RANDOM)
            data_in[at] = pack_random(at, at < push.k_at ? TD_BENCH_GAIN : 1.0);
        else if (at < push.k_at)
            data_in[at] = pack_code(index_of(at / 4), at & 3u, 8.0);
        else if (at < push.v_at)
            data_in[at] = pack_code((at - push.k_at) / 4, at & 3u, 1.0);
        else
            data_in[at] = pack_random(at - push.v_at, 1.0);
    }
    if (at < push.out_vectors)
        data_out[at] = uvec4(0xffffffffu);
}

/* The same transform by Vulkan alone: the index from the signs of five channels of Q. */
void gather(uint at)
{
    if (at >= push.out_vectors)
        return;
    const uint row = at & ~3u;
    const uvec4 low = data_in[row], middle = data_in[row + 1], high = data_in[row + 2];
    const uint j = (low.x >> 31) | (low.y >> 15 & 1u) << 1 | (low.z >> 15 & 1u) << 2 | (middle.x >> 15 & 1u) << 3 |
                   (high.x >> 15 & 1u) << 4;
    data_out[at] = data_in[push.v_at + 4 * j + (at & 3u)];
}

void check(uint at)
{
    if (at >= push.out_vectors)
        return;
    const uvec4 got = data_out[at];
    bool ok = true;
    if (MODE == TD_BENCH_CHECK_GATHER) {
        ok = same(got, pack_random(4 * index_of(at / 4) + (at & 3u), 1.0));
    } else if (MODE == TD_BENCH_CHECK_COPY) {
        ok = same(got, pack_random(at, TD_BENCH_GAIN));
    } else {
        for (uint i = 0; i < 8; i++)
            ok = ok && abs(element(got, i)) <= 1.25; /* V is below 1; false for NaN */
    }
    if (!ok)
        wrong(at);
}

float reduce(uint thread, float x, bool adds)
{
    partial[thread] = x;
    barrier();
    for (uint half_size = TD_BENCH_GROUP / 2; half_size > 0; half_size /= 2) {
        if (thread < half_size)
            partial[thread] = adds ? partial[thread] + partial[thread + half_size]
                                   : max(partial[thread], partial[thread + half_size]);
        barrier();
    }
    const float all = partial[0];
    barrier();
    return all;
}

/* One row of O a group, against attention in float32. */
void check_row(uint group, uint thread)
{
    const uint batch = hash(group * 7u + push.frame) % push.batch, row = hash(group * 13u + push.frame) % push.q_len;
    const uint q = (batch * push.q_len + row) * 4, k = push.k_at + batch * push.kv_len * 4,
               v = push.v_at + batch * push.kv_len * 4;
    float most = -3.0e38, sum = 0;
    for (uint j = thread; j < push.kv_len; j += TD_BENCH_GROUP) {
        float dot_product = 0;
        for (uint i = 0; i < 32; i++)
            dot_product += element(data_in[q + i / 8], i & 7u) * element(data_in[k + 4 * j + i / 8], i & 7u);
        scores[j] = dot_product * push.scale;
        most = max(most, scores[j]);
    }
    most = reduce(thread, most, false);
    for (uint j = thread; j < push.kv_len; j += TD_BENCH_GROUP) {
        scores[j] = exp(scores[j] - most);
        sum += scores[j];
    }
    sum = reduce(thread, sum, true);
    const uint channel = thread & 31u, parts = TD_BENCH_GROUP / 32;
    float o = 0;
    for (uint j = thread / 32; j < push.kv_len; j += parts)
        o += scores[j] * element(data_in[v + 4 * j + channel / 8], channel & 7u);
    partial[thread] = o;
    barrier();
    if (thread < 32) {
        for (uint i = 1; i < parts; i++)
            o += partial[thread + 32 * i];
        if (!(abs(element(data_out[q + channel / 8], channel & 7u) - o / sum) <= push.tolerance))
            wrong(q);
    }
}

void main()
{
    const uint at = gl_GlobalInvocationID.x, thread = gl_LocalInvocationIndex;
    const bool checks = MODE >= TD_BENCH_CHECK_GATHER;
#ifdef TD_BENCH_CLOCK
    if (checks && at == 0 && MODE != TD_BENCH_CHECK_ROWS)
        result.clock = clockRealtime2x32EXT();
#endif
    if (MODE == TD_BENCH_WRITE_GATHER || MODE == TD_BENCH_WRITE_RANDOM)
        write(at);
    else if (MODE == TD_BENCH_GATHER)
        gather(at);
    else if (MODE == TD_BENCH_COPY && at < push.out_vectors)
        data_out[at] = data_in[at];
    else if (MODE == TD_BENCH_CHECK_ROWS)
        check_row(gl_WorkGroupID.x, thread);
    else if (checks)
        check(at);
    if (checks && thread == 0)
        atomicAdd(result.checked, 1);
}
