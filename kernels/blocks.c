/* GGUF's blocks of quantised weights: see blocks.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/blocks.h"

#include "kernels/cpu/cpu.h"

static float half_at(const uint8_t *p)
{
    return td_from_f16((uint16_t)(p[0] | p[1] << 8));
}

/* Stores x and says what is stored. */
static float put_half(uint8_t *p, float x)
{
    const uint16_t h = td_to_f16(x);
    p[0] = (uint8_t)h, p[1] = (uint8_t)(h >> 8);
    return td_from_f16(h);
}

/* Q4_K's and Q5_K's six bits of scale and minimum of sub-block j. */
static void get_pair(const uint8_t *s, uint32_t j, uint32_t *scale, uint32_t *minimum)
{
    *scale = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
    *minimum = j < 4 ? s[j + 4] & 63u : (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
}

static void put_pair(uint8_t *s, uint32_t j, uint32_t scale, uint32_t minimum)
{
    if (j < 4) {
        s[j] = (uint8_t)((s[j] & 0xc0) | scale);
        s[j + 4] = (uint8_t)((s[j + 4] & 0xc0) | minimum);
    } else {
        s[j + 4] = (uint8_t)((scale & 15) | (minimum & 15) << 4);
        s[j - 4] = (uint8_t)((s[j - 4] & 0x3f) | scale >> 4 << 6);
        s[j] = (uint8_t)((s[j] & 0x3f) | minimum >> 4 << 6);
    }
}

static void decode_q4_k(float *restrict to, const uint8_t *restrict block)
{
    const float d = half_at(block), m = half_at(block + 2);
    for (uint32_t j = 0; j < 8; j++) {
        const uint8_t *codes = block + 16 + j / 2 * 32;
        uint32_t scale, minimum;
        get_pair(block + 4, j, &scale, &minimum);
        const float step = d * (float)scale, offset = m * (float)minimum;
        for (uint32_t i = 0; i < 32; i++)
            to[32 * j + i] = step * (float)(codes[i] >> j % 2 * 4 & 15) - offset;
    }
}

static void decode_q5_k(float *restrict to, const uint8_t *restrict block)
{
    const float d = half_at(block), m = half_at(block + 2);
    for (uint32_t j = 0; j < 8; j++) {
        const uint8_t *codes = block + 48 + j / 2 * 32, *high = block + 16;
        uint32_t scale, minimum;
        get_pair(block + 4, j, &scale, &minimum);
        const float step = d * (float)scale, offset = m * (float)minimum;
        for (uint32_t i = 0; i < 32; i++)
            to[32 * j + i] = step * (float)((codes[i] >> j % 2 * 4 & 15) | (high[i] >> j & 1) << 4) - offset;
    }
}

/* Where weight i of a block of Q6_K has its low four bits and its high two. */
typedef struct place {
    uint32_t low, low_shift, high, high_shift;
} place;

static place place_q6_k(uint32_t i)
{
    const uint32_t half = i / 128, part = i % 128 / 32, l = i % 32;
    return (place){half * 64 + part % 2 * 32 + l, part / 2 * 4, 128 + half * 32 + l, part * 2};
}

static void decode_q6_k(float *restrict to, const uint8_t *restrict block)
{
    const float d = half_at(block + 208);
    for (uint32_t j = 0; j < 16; j++) {
        const float step = d * (float)(int8_t)block[192 + j];
        const place at = place_q6_k(16 * j); /* the others lie behind it */
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t low = block[at.low + i] >> at.low_shift & 15u, high = block[at.high + i] >> at.high_shift & 3u;
            to[16 * j + i] = step * (float)((int32_t)(low | high << 4) - 32);
        }
    }
}

static void decode_q8_0(float *restrict to, const uint8_t *restrict block)
{
    const float d = half_at(block);
    for (uint32_t i = 0; i < 32; i++)
        to[i] = d * (float)(int8_t)block[2 + i];
}

static void decode_q4_0(float *restrict to, const uint8_t *restrict block)
{
    const float d = half_at(block);
    for (uint32_t i = 0; i < 16; i++) {
        to[i] = d * (float)((int32_t)(block[2 + i] & 15) - 8);
        to[16 + i] = d * (float)((int32_t)(block[2 + i] >> 4) - 8);
    }
}

static void decode_q4_1(float *restrict to, const uint8_t *restrict block)
{
    const float d = half_at(block), m = half_at(block + 2);
    for (uint32_t i = 0; i < 16; i++) {
        to[i] = d * (float)(block[4 + i] & 15) + m;
        to[16 + i] = d * (float)(block[4 + i] >> 4) + m;
    }
}

void td_block_decode(uint32_t dtype, float *to, const uint8_t *block)
{
    if (dtype == TANDEM_DTYPE_Q8_0)
        decode_q8_0(to, block);
    else if (dtype == TANDEM_DTYPE_Q4_0)
        decode_q4_0(to, block);
    else if (dtype == TANDEM_DTYPE_Q4_1)
        decode_q4_1(to, block);
    else if (dtype == TANDEM_DTYPE_Q4_K)
        decode_q4_k(to, block);
    else if (dtype == TANDEM_DTYPE_Q5_K)
        decode_q5_k(to, block);
    else if (dtype == TANDEM_DTYPE_Q6_K)
        decode_q6_k(to, block);
}

static int32_t nearest(float x, float scale, int32_t least, int32_t most)
{
    const float code = scale != 0 ? rintf(x / scale) : 0;
    return code < (float)least ? least : code > (float)most ? most : (int32_t)code;
}

typedef struct range {
    float least, most, amax;
} range;

static range range_of(const float *x, uint32_t count)
{
    range r = {x[0], x[0], 0};
    for (uint32_t i = 0; i < count; i++) {
        r.least = fminf(r.least, x[i]), r.most = fmaxf(r.most, x[i]);
        r.amax = fmaxf(r.amax, fabsf(x[i]));
    }
    return r;
}

/* Eight sub-blocks of 32, of codes up to `most`: x = scale * code - minimum, with a minimum that is not negative. Q5_K has the fifth
 * bits of all before the other four. */
static void encode_shifted(uint8_t *block, const float *from, int32_t most)
{
    uint8_t *const high = block + 16, *const low = most > 15 ? high + 32 : high;
    float scales[8], minima[8];
    for (uint32_t j = 0; j < 8; j++) {
        const range r = range_of(from + 32 * j, 32);
        minima[j] = fmaxf(-r.least, 0);
        scales[j] = fmaxf(r.most + minima[j], 0) / (float)most;
    }
    const float d = put_half(block, range_of(scales, 8).amax / 63), m = put_half(block + 2, range_of(minima, 8).amax / 63);
    for (uint32_t j = 0; j < 8; j++)
        put_pair(block + 4, j, (uint32_t)nearest(scales[j], d, 0, 63), (uint32_t)nearest(minima[j], m, 0, 63));
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t scale, minimum;
        get_pair(block + 4, i / 32, &scale, &minimum);
        const int32_t code = nearest(from[i] + m * (float)minimum, d * (float)scale, 0, most);
        low[i / 64 * 32 + i % 32] |= (uint8_t)((code & 15) << i / 32 % 2 * 4);
        if (most > 15)
            high[i % 32] |= (uint8_t)(code >> 4 << i / 32);
    }
}

/* Sixteen sub-blocks of 16, of codes from -32 to 31. */
static void encode_q6_k(uint8_t *block, const float *from)
{
    float scales[16];
    for (uint32_t j = 0; j < 16; j++)
        scales[j] = range_of(from + 16 * j, 16).amax / 31;
    const float d = put_half(block + 208, range_of(scales, 16).amax / 127);
    for (uint32_t j = 0; j < 16; j++)
        block[192 + j] = (uint8_t)nearest(scales[j], d, 0, 127);
    for (uint32_t i = 0; i < 256; i++) {
        const place at = place_q6_k(i);
        const uint32_t code = (uint32_t)(nearest(from[i], d * (float)block[192 + i / 16], -32, 31) + 32);
        block[at.low] |= (uint8_t)((code & 15) << at.low_shift);
        block[at.high] |= (uint8_t)(code >> 4 << at.high_shift);
    }
}

void td_block_encode(uint32_t dtype, uint8_t *block, const float *from)
{
    const range r = range_of(from, 32);
    memset(block, 0, td_dtype_of(dtype).bytes);
    if (dtype == TANDEM_DTYPE_Q4_K)
        encode_shifted(block, from, 15);
    else if (dtype == TANDEM_DTYPE_Q5_K)
        encode_shifted(block, from, 31);
    else if (dtype == TANDEM_DTYPE_Q6_K)
        encode_q6_k(block, from);
    else if (dtype == TANDEM_DTYPE_Q8_0) {
        const float d = put_half(block, r.amax / 127);
        for (uint32_t i = 0; i < 32; i++)
            block[2 + i] = (uint8_t)nearest(from[i], d, -127, 127);
    } else if (dtype == TANDEM_DTYPE_Q4_0) {
        const float d = put_half(block, r.amax / 7);
        for (uint32_t i = 0; i < 32; i++)
            block[2 + i % 16] |= (uint8_t)((nearest(from[i], d, -8, 7) + 8) << i / 16 * 4);
    } else if (dtype == TANDEM_DTYPE_Q4_1) {
        const float d = put_half(block, (r.most - r.least) / 15), m = put_half(block + 2, r.least);
        for (uint32_t i = 0; i < 32; i++)
            block[4 + i % 16] |= (uint8_t)(nearest(from[i] - m, d, 0, 15) << i / 16 * 4);
    }
}
