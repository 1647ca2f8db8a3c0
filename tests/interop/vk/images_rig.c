/* The conversions are those of Vulkan's and the Khronos Data Format specification, in double, and share nothing with shaders/.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/interop/vk/images_rig.h"

const texel_format texel_formats[TEXEL_FORMATS] = {
#define FORMAT(name, ...) {VK_FORMAT_##name, #name, __VA_ARGS__}
    FORMAT(R8G8B8A8_UNORM, UNORM8, 4, false),
    FORMAT(B8G8R8A8_UNORM, UNORM8, 4, true),
    FORMAT(R8G8B8A8_SRGB, SRGB8, 4, false),
    FORMAT(B8G8R8A8_SRGB, SRGB8, 4, true),
    FORMAT(A2B10G10R10_UNORM_PACK32, UNORM10, 4, false),
    FORMAT(A2R10G10B10_UNORM_PACK32, UNORM10, 4, true),
    FORMAT(R16_SFLOAT, FLOAT16, 1, false),
    FORMAT(R16G16_SFLOAT, FLOAT16, 2, false),
    FORMAT(R16G16B16A16_SFLOAT, FLOAT16, 4, false),
    FORMAT(B10G11R11_UFLOAT_PACK32, FLOAT11, 3, false),
    FORMAT(R32_SFLOAT, FLOAT32, 1, false),
    FORMAT(R32G32B32A32_SFLOAT, FLOAT32, 4, false),
    FORMAT(D32_SFLOAT, FLOAT32, 1, false),
    FORMAT(D32_SFLOAT_S8_UINT, FLOAT32, 1, false),
    FORMAT(X8_D24_UNORM_PACK32, DEPTH24, 1, false),
    FORMAT(D24_UNORM_S8_UINT, DEPTH24, 1, false),
#undef FORMAT
};

bool is_normalised(const texel_format *format)
{
    return format->numbers == UNORM8 || format->numbers == UNORM10;
}

bool is_of_depth(const texel_format *format)
{
    return format >= &texel_formats[D32F];
}

bool device_takes(const texel_format *format, VkFormatFeatureFlags feature)
{
    VkFormatProperties properties;

    gpu.GetPhysicalDeviceFormatProperties(gpu.physical_device, format->format, &properties);
    return properties.optimalTilingFeatures & feature;
}

static float float_of(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Noise */

uint32_t noise_bits(void)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static bool coin(void)
{
    return noise_bits() & 1;
}

/* 0 to 1, 1 included. */
static float noise_unit(void)
{
    return (float)(noise_bits() >> 8) / 16777215.0f;
}

uint32_t noise_of(const texel_format *format, uint32_t component)
{
    (void)component;
    if (is_of_depth(format) && format->numbers == FLOAT32) /* other numbers are none of a depth */
        return bits_of(noise_unit());
    if (format->numbers == FLOAT32)
        return coin() ? noise_bits() : bits_of(ldexpf(noise_unit() - 0.25f, (int)(noise_bits() % 24) - 12));
    return noise_bits();
}

/* Texels */

/* An unsigned float with 5 bits of exponent. */
static double small_float(uint32_t bits, int mantissa_bits)
{
    const int exponent = (int)(bits >> mantissa_bits);
    const double mantissa = ldexp(bits & ((1u << mantissa_bits) - 1), -mantissa_bits);

    if (exponent == 31)
        return mantissa > 0 ? (double)NAN : (double)INFINITY;
    return exponent ? ldexp(1 + mantissa, exponent - 15) : ldexp(mantissa, -14);
}

static double half_value(uint32_t bits)
{
    const double magnitude = small_float(bits & 0x7fff, 10);

    return bits & 0x8000 ? -magnitude : magnitude;
}

/* Where a component lies in a texel of 32 bits. */
static void find_field(const texel_format *format, uint32_t component, uint32_t *shift, uint32_t *bits)
{
    const uint32_t place = format->swapped && component != 3 && component != 1 ? 2 - component : component;

    switch (format->numbers) {
    case UNORM10:
        *shift = 10 * place;
        *bits = component == 3 ? 2 : 10;
        return;
    case FLOAT11:
        *shift = 11 * place;
        *bits = component == 2 ? 10 : 11;
        return;
    case DEPTH24:
        *shift = 0;
        *bits = 24;
        return;
    default:
        *shift = 8 * place;
        *bits = 8;
    }
}

static bool is_fields(const texel_format *format)
{
    return format->numbers != FLOAT16 && format->numbers != FLOAT32;
}

static uint32_t get_component(const texel_format *format, const unsigned char *texel, uint32_t component)
{
    uint32_t word = 0, shift, bits;

    if (!is_fields(format)) {
        const size_t size = format->numbers == FLOAT16 ? 2 : 4;

        memcpy(&word, texel + component * size, size);
        return word;
    }
    find_field(format, component, &shift, &bits);
    memcpy(&word, texel, 4);
    return word >> shift & ((1u << bits) - 1);
}

static void put_component(const texel_format *format, unsigned char *texel, uint32_t component, uint32_t value)
{
    uint32_t word, shift, bits;

    if (!is_fields(format)) {
        const size_t size = format->numbers == FLOAT16 ? 2 : 4;

        memcpy(texel + component * size, &value, size);
        return;
    }
    find_field(format, component, &shift, &bits);
    memcpy(&word, texel, 4);
    word = (word & ~(((1u << bits) - 1) << shift)) | (value & ((1u << bits) - 1)) << shift;
    memcpy(texel, &word, 4);
}

static double most_of(const texel_format *format, uint32_t component)
{
    return format->numbers == DEPTH24 ? 16777215 : format->numbers != UNORM10 ? 255 : component == 3 ? 3 : 1023;
}

/* What a component is; of sRGB its code. */
static span value_of(const texel_format *format, uint32_t component, uint32_t bits)
{
    double value;

    switch (format->numbers) {
    case SRGB8:
    case UNORM8:
    case UNORM10:
        value = bits / most_of(format, component);
        break;
    case DEPTH24: /* divided by the device, which may be off by a last place */
        value = bits / most_of(format, component);
        return (span){(double)nextafterf((float)value, 0), (double)nextafterf((float)value, 1)};
    case FLOAT16:
        value = half_value(bits);
        break;
    case FLOAT11:
        value = small_float(bits, component == 2 ? 5 : 6);
        break;
    default:
        value = (double)float_of(bits);
        break;
    }
    return (span){value, value};
}

/* Numbers of a device's: what Vulkan's appendix on the precision of SPIR-V instructions allows. */

static span wider(span x, double ulps)
{
    const double largest = fmax(fmax(fabs(x.lo), fabs(x.hi)), 0x1p-126), ulp = ldexp(1, ilogb(largest) - 23);

    return (span){x.lo - ulps * ulp, x.hi + ulps * ulp};
}

static span constant(double x)
{
    return wider((span){x, x}, 0.5);
}

static span add(span a, span b)
{
    return wider((span){a.lo + b.lo, a.hi + b.hi}, 1);
}

static span negative(span a)
{
    return (span){-a.hi, -a.lo};
}

static span multiply(span a, span b)
{
    const double p[4] = {a.lo * b.lo, a.lo * b.hi, a.hi * b.lo, a.hi * b.hi};

    return wider((span){fmin(fmin(p[0], p[1]), fmin(p[2], p[3])), fmax(fmax(p[0], p[1]), fmax(p[2], p[3]))}, 1);
}

/* b is above 0. */
static span divide(span a, span b)
{
    const double p[4] = {a.lo / b.lo, a.lo / b.hi, a.hi / b.lo, a.hi / b.hi};

    return wider((span){fmin(fmin(p[0], p[1]), fmin(p[2], p[3])), fmax(fmax(p[0], p[1]), fmax(p[2], p[3]))}, 2.5);
}

static span at_least_0(span a)
{
    return (span){fmax(a.lo, 0), fmax(a.hi, 0)};
}

/* pow(x, y) is exp2(y * log2(x)): log2 3 ULP, or 2^-21 between 0.5 and 2; exp2(x) 3 + 2 |x| ULP. */
static span power(span x, double y)
{
    span l = {x.lo > 0 ? log2(x.lo) : -INFINITY, x.hi > 0 ? log2(x.hi) : -INFINITY}, e;
    double ulps;

    if (x.hi <= 0)
        return (span){0, 0x1p-126};
    if (x.hi > 0.5 && x.lo < 2)
        l = (span){l.lo - 0x1p-21, l.hi + 0x1p-21};
    if (x.hi > 2 || x.lo < 0.5)
        l = (span){isinf(l.lo) ? l.lo : wider((span){l.lo, l.lo}, 3).lo, wider((span){l.hi, l.hi}, 3).hi};
    e = isinf(l.lo) ? (span){-INFINITY, multiply((span){l.hi, l.hi}, constant(y)).hi} : multiply(l, constant(y));
    ulps = 3 + 2 * fmax(isinf(e.lo) ? 0 : fabs(e.lo), fabs(e.hi));
    return (span){fmax(isinf(e.lo) ? 0 : wider((span){exp2(e.lo), exp2(e.lo)}, ulps).lo, 0),
                  wider((span){exp2(e.hi), exp2(e.hi)}, ulps).hi};
}

static span to_linear(double x, uint32_t transfer)
{
    const span exact = {x, x};

    if (transfer == SRGB && x <= (double)0.04045f)
        return divide(exact, constant(12.92));
    if (transfer == SRGB)
        return power(divide(add(exact, constant(0.055)), constant(1.055)), 2.4);
    if (transfer == PQ) {
        const span p = power(at_least_0(exact), 1 / 78.84375);
        const span above = at_least_0(add(p, constant(-0.8359375)));

        return power(divide(above, add(constant(18.8515625), negative(multiply(constant(18.6875), p)))), 1 / 0.1593017578125);
    }
    return exact;
}

static span from_linear(double x, uint32_t transfer)
{
    const span exact = {x, x};

    if (transfer == SRGB && x <= (double)0.0031308f)
        return multiply(exact, constant(12.92));
    if (transfer == SRGB)
        return add(multiply(constant(1.055), power(exact, 1 / 2.4)), constant(-0.055));
    if (transfer == PQ) {
        const span p = power(at_least_0(exact), 0.1593017578125);

        return power(divide(add(constant(0.8359375), multiply(constant(18.8515625), p)),
                            add(constant(1), multiply(constant(18.6875), p))),
                     78.84375);
    }
    return exact;
}

/* A device may take numbers below 2^-126 for 0. */
static span flushed(span x)
{
    if (x.lo != 0 && fabs(x.lo) < 0x1p-126 && fabs(x.hi) < 0x1p-126)
        return (span){fmin(x.lo, 0), fmax(x.hi, 0)};
    return x;
}

static span expose(span x, float exposure)
{
    const double product = (double)((float)x.lo * exposure);

    if (exposure == 0 || exposure == 1)
        return x;
    return flushed(x.lo == x.hi || isnan(x.lo) ? (span){product, product} : multiply(x, (span){(double)exposure, (double)exposure}));
}

/* A handful of operations on numbers up to 1, or divided by no less than 0.57. */
static span nearly(double x)
{
    return (span){x - 0x1p-20, x + 0x1p-20};
}

static void octahedral_to_normal(const double p[2], span n[3])
{
    double z = 1 - fabs(p[0]) - fabs(p[1]), x = p[0], y = p[1], length;

    if (z < 0) {
        x = copysign(1 - fabs(p[1]), p[0]);
        y = copysign(1 - fabs(p[0]), p[1]);
    }
    length = sqrt(x * x + y * y + z * z);
    n[0] = nearly(x / length);
    n[1] = nearly(y / length);
    n[2] = nearly(z / length);
}

static void normal_to_octahedral(const double n[3], span p[2])
{
    const double sum = fabs(n[0]) + fabs(n[1]) + fabs(n[2]), x = n[0] / sum, y = n[1] / sum;

    if (sum == 0) {
        p[0] = p[1] = (span){0, 0};
    } else if (n[2] < 0) {
        p[0] = nearly(x < 0 ? fabs(y) - 1 : 1 - fabs(y));
        p[1] = nearly(y < 0 ? fabs(x) - 1 : 1 - fabs(x));
    } else {
        p[0] = nearly(x);
        p[1] = nearly(y);
    }
}

/* What is packed from a texel, and what is stored for elements. */

static void expect_packed(const image_case *c, const unsigned char *texel, span want[4])
{
    const uint32_t transfer = c->format->numbers == SRGB8 ? SRGB : c->transfer;

    for (uint32_t i = 0; i < c->format->channels; i++) {
        want[i] = flushed(value_of(c->format, i, get_component(c->format, texel, i)));
        if (c->encoding && is_normalised(c->format) && i < 3)
            want[i].lo = want[i].hi = (double)(2 * (float)want[i].lo - 1);
        if (transfer && i < 3)
            want[i] = to_linear((double)(float)want[i].lo, transfer);
        if (!c->encoding && !is_of_depth(c->format) && i < 3)
            want[i] = expose(transfer ? want[i] : (span){(double)(float)want[i].lo, (double)(float)want[i].hi}, c->exposure);
    }
    if (c->encoding == OCTAHEDRAL) {
        const double p[2] = {(double)(float)want[0].lo, (double)(float)want[1].lo};

        octahedral_to_normal(p, want);
    }
}

static void expect_texel(const image_case *c, const float *elements, span want[4])
{
    for (uint32_t i = 0; i < 4; i++) {
        const double value = i < c->channels ? (double)elements[i] : i == 3;

        want[i] = flushed((span){value, value});
        if (!c->encoding && i < 3)
            want[i] = expose(want[i], c->exposure);
        if (c->transfer && i < 3)
            want[i] = from_linear(want[i].lo, c->transfer);
    }
    if (c->encoding == OCTAHEDRAL) {
        const double n[3] = {(double)elements[0], (double)elements[1], (double)elements[2]};

        normal_to_octahedral(n, want);
        want[2] = (span){0, 0};
        want[3] = (span){1, 1};
    }
    for (uint32_t i = 0; c->encoding && is_normalised(c->format) && i < 3; i++) {
        want[i].lo = (double)(0.5f * (float)want[i].lo + 0.5f);
        want[i].hi = (double)(0.5f * (float)want[i].hi + 0.5f);
    }
}

static double to_small_float(double x, int mantissa_bits)
{
    const double largest = ldexp(2 - ldexp(1, -mantissa_bits), 15);
    double step, rounded;

    if (isnan(x) || x == (double)INFINITY)
        return x;
    if (x <= 0)
        return 0;
    step = ldexp(1, (x < 0x1p-14 ? -14 : ilogb(x)) - mantissa_bits);
    rounded = nearbyint(x / step) * step;
    return rounded > largest ? largest : rounded;
}

/* The number of the format's that is stored for one. */
static double stored(const texel_format *format, uint32_t component, double x)
{
    switch (format->numbers) {
    case UNORM8:
    case UNORM10: {
        const float most = (float)most_of(format, component), inside = x > 0 ? (float)fmin(x, 1) : 0;

        return (double)rintf(inside * most) / (double)most;
    }
    case FLOAT16:
        return (double)(float)(_Float16)(float)x;
    case FLOAT11:
        return to_small_float((double)(float)x, component == 2 ? 5 : 6);
    default:
        return (double)(float)x;
    }
}

static bool is_within(double got, double lo, double hi)
{
    if (isnan(lo) || isnan(hi))
        return isnan(got);
    if (lo == hi && (signbit(lo) != 0) == (signbit(hi) != 0))
        return got == lo && (signbit(got) != 0) == (signbit(lo) != 0);
    return got >= lo && got <= hi;
}

/* A case with its image and its mem. */
enum { BEFORE_MEM = 192 };

typedef struct made {
    vku_image image;
    unsigned char *texels; /* of the whole image */
    td_vk_mem mem, outer; /* the mem is in a larger buffer, behind BEFORE_MEM bytes of others */
    uint64_t elements; /* of the mem */
    uint32_t element_bytes;
} made;

static uint64_t stride_texel(const image_case *c)
{
    return c->channels + c->pad_texel;
}

static uint64_t stride_line(const image_case *c)
{
    return c->width * stride_texel(c) + c->pad_line;
}

static uint64_t element_at(const image_case *c, uint32_t x, uint32_t y)
{
    return c->first + y * stride_line(c) + x * stride_texel(c);
}

static unsigned char *texel_at(const made *m, uint32_t x, uint32_t y)
{
    return m->texels + ((size_t)y * m->image.width + x) * m->image.texel_bytes;
}

static made make(const image_case *c, VkImageUsageFlags usage)
{
    made m = {.element_bytes = c->dtype == TANDEM_DTYPE_F16 ? 2 : 4};

    if (c->layout_after == VK_IMAGE_LAYOUT_COLOR_ATTACHMENT_OPTIMAL)
        usage |= VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT;
    if (c->layout_after && is_of_depth(c->format))
        usage |= VK_IMAGE_USAGE_DEPTH_STENCIL_ATTACHMENT_BIT;
    assert_vk(vku_image_create(&gpu, c->format->format, c->width + c->more_width, c->height + c->more_height, usage, &m.image));
    m.texels = calloc((size_t)m.image.width * m.image.height, m.image.texel_bytes);
    assert_non_null(m.texels);
    m.elements = (td_align_up(element_at(c, c->width - 1, c->height - 1) + c->channels, 2) + 16);
    assert_ok(td_vk_mem_create_host(vk, BEFORE_MEM + m.elements * m.element_bytes, STORAGE, &m.outer, why, sizeof why));
    memset(m.outer.host, 0xab, m.outer.bytes);
    m.mem = mem_within(&m.outer, BEFORE_MEM);
    return m;
}

static void unmake(made *m)
{
    for (int i = 0; i < BEFORE_MEM; i++)
        assert_int_equal(((unsigned char *)m->outer.host)[i], 0xab);
    td_vk_mem_free(vk, &m->outer);
    vku_image_destroy(&gpu, &m->image);
    free(m->texels);
}

static td_vk_image describe(const image_case *c, const made *m, VkImageUsageFlags usage)
{
    return (td_vk_image){
        .image = m->image.image,
        .view = m->image.view,
        .format = c->format->format,
        .usage = usage,
        .image_extent = {m->image.width, m->image.height},
        .extent = {c->width, c->height},
        .layout_before = m->image.layout,
        .layout_after = c->layout_after,
        .src_stage = VK_PIPELINE_STAGE_TRANSFER_BIT,
        .src_access = VK_ACCESS_TRANSFER_WRITE_BIT,
        .dst_stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
        .dst_access = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT,
        .channels = c->channels,
        .encoding = c->encoding,
        .transfer = c->transfer,
        .exposure = c->exposure,
        .mem = &m->mem,
        .dtype = c->dtype,
        .offset_bytes = (uint64_t)c->first * m->element_bytes,
        .stride_line = (int64_t)stride_line(c),
        .stride_texel = (int64_t)stride_texel(c),
    };
}

static void check_tensor(const image_case *c, const made *m)
{
    unsigned char *touched = calloc(m->mem.bytes, 1);

    assert_non_null(touched);
    for (uint32_t y = 0; y < c->height; y++)
        for (uint32_t x = 0; x < c->width; x++) {
            const uint64_t at = element_at(c, x, y);
            span want[4];

            expect_packed(c, texel_at(m, x, y), want);
            for (uint32_t i = 0; i < c->channels; i++) {
                const bool half = c->dtype == TANDEM_DTYPE_F16;
                const double got = half ? half_value(((uint16_t *)m->mem.host)[at + i]) : (double)((float *)m->mem.host)[at + i];
                const double lo = half ? (double)(float)(_Float16)(float)want[i].lo : (double)(float)want[i].lo;
                const double hi = half ? (double)(float)(_Float16)(float)want[i].hi : (double)(float)want[i].hi;

                if (!is_within(got, lo, hi))
                    fail_msg("%s%s encoding %u transfer %u, texel %u %u channel %u: %a, not %a to %a", c->format->name,
                             half ? " to f16" : "", c->encoding, c->transfer, x, y, i, got, lo, hi);
            }
            memset(touched + at * m->element_bytes, 1, (size_t)c->channels * m->element_bytes);
        }
    /* What lies between belongs to somebody else. */
    for (uint64_t i = 0; i < m->mem.bytes; i++)
        if (!touched[i] && ((unsigned char *)m->mem.host)[i] != 0xab)
            fail_msg("%s: byte %llu was overwritten", c->format->name, (unsigned long long)i);
    free(touched);
}

void check_pack(const image_case *cases, uint32_t count)
{
    td_vk_image images[MAX_CASES];
    VkCommandBuffer commands;
    made all[MAX_CASES];

    for (uint32_t i = 0; i < count; i++) {
        const image_case *c = &cases[i];
        const VkImageUsageFlags usage = c->storage ? VK_IMAGE_USAGE_STORAGE_BIT : VK_IMAGE_USAGE_SAMPLED_BIT;

        all[i] = make(c, usage);
        for (uint32_t n = 0; n < all[i].image.width * all[i].image.height; n++)
            for (uint32_t j = 0; j < c->format->channels; j++)
                put_component(c->format, texel_at(&all[i], n, 0), j, c->bits ? c->bits(c, n, j) : noise_of(c->format, j));
        assert_vk(vku_image_upload(&gpu, &all[i].image, all[i].texels, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL));
        images[i] = describe(c, &all[i], usage);
    }
    commands = vku_begin(&gpu);
    assert_ok(td_vk_record_pack_images(vk, commands, images, count, why, sizeof why));
    for (uint32_t i = 0; i < count; i++)
        td_vk_record_release(vk, commands, &all[i].mem, TD_VK_PEER_HOST, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    for (uint32_t i = 0; i < count; i++) {
        check_tensor(&cases[i], &all[i]);
        unmake(&all[i]);
    }
}

static void check_texels(const image_case *c, const made *m, const float *elements, const unsigned char *before)
{
    for (uint32_t y = 0; y < m->image.height; y++)
        for (uint32_t x = 0; x < m->image.width; x++) {
            const unsigned char *texel = texel_at(m, x, y);
            span want[4];

            if (x >= c->width || y >= c->height) {
                if (memcmp(texel, before + (texel - m->texels), m->image.texel_bytes) != 0)
                    fail_msg("%s: texel %u %u was overwritten", c->format->name, x, y);
                continue;
            }
            expect_texel(c, elements + 4 * ((size_t)y * c->width + x), want);
            for (uint32_t i = 0; i < c->format->channels; i++) {
                const double got = value_of(c->format, i, get_component(c->format, texel, i)).lo;
                const double lo = stored(c->format, i, want[i].lo), hi = stored(c->format, i, want[i].hi);

                if (!is_within(got, lo, hi))
                    fail_msg("%s%s encoding %u transfer %u, texel %u %u component %u: %a, not %a to %a (of %a)", c->format->name,
                             c->dtype == TANDEM_DTYPE_F16 ? " from f16" : "", c->encoding, c->transfer, x, y, i, got, lo, hi,
                             (double)elements[4 * ((size_t)y * c->width + x) + i]);
            }
        }
}

void check_unpack(const image_case *cases, uint32_t count)
{
    unsigned char *before[MAX_CASES];
    float *elements[MAX_CASES]; /* four a texel */
    td_vk_image images[MAX_CASES];
    VkCommandBuffer commands;
    made all[MAX_CASES];

    for (uint32_t i = 0; i < count; i++) {
        const image_case *c = &cases[i];
        size_t bytes;

        all[i] = make(c, VK_IMAGE_USAGE_STORAGE_BIT);
        bytes = (size_t)all[i].image.width * all[i].image.height * all[i].image.texel_bytes;
        before[i] = malloc(bytes);
        elements[i] = calloc((size_t)c->width * c->height, 4 * sizeof(float));
        assert_true(before[i] && elements[i]);
        memset(all[i].texels, 0x3a, bytes);
        memcpy(before[i], all[i].texels, bytes);
        assert_vk(vku_image_upload(&gpu, &all[i].image, all[i].texels, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL));
        for (uint32_t n = 0; n < c->width * c->height; n++)
            for (uint32_t j = 0; j < c->channels; j++) {
                const uint32_t bits = c->bits(c, n, j);
                const uint64_t at = element_at(c, n % c->width, n / c->width) + j;

                if (c->dtype == TANDEM_DTYPE_F16)
                    ((uint16_t *)all[i].mem.host)[at] = (uint16_t)bits;
                else
                    ((uint32_t *)all[i].mem.host)[at] = bits;
                elements[i][4 * (size_t)n + j] = c->dtype == TANDEM_DTYPE_F16 ? (float)half_value(bits & 0xffff) : float_of(bits);
            }
        images[i] = describe(c, &all[i], VK_IMAGE_USAGE_STORAGE_BIT);
    }
    commands = vku_begin(&gpu);
    for (uint32_t i = 0; i < count; i++)
        td_vk_record_acquire(vk, commands, &all[i].mem, TD_VK_PEER_HOST, SHADER, VK_ACCESS_SHADER_READ_BIT);
    assert_ok(td_vk_record_unpack_images(vk, commands, images, count, why, sizeof why));
    assert_vk(vku_run(&gpu, commands));
    for (uint32_t i = 0; i < count; i++) {
        all[i].image.layout = cases[i].layout_after ? cases[i].layout_after : VK_IMAGE_LAYOUT_GENERAL;
        assert_vk(vku_image_readback(&gpu, &all[i].image, all[i].texels));
        check_texels(&cases[i], &all[i], elements[i], before[i]);
        unmake(&all[i]);
        free(before[i]);
        free(elements[i]);
    }
}
