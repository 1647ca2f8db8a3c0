/* Convolutions of images as an operation: tandem_conv in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/conv/conv.h"

enum { X, COARSE, W, BIAS, Y, VIEWS };
#define AT(member) offsetof(td_params_conv, member)

/* A stride, or a shuffle, before it is known to be one. */
static uint32_t one_or_two(uint32_t value)
{
    return value == 2 ? 2 : 1;
}

static uint32_t half(uint32_t length)
{
    return length / 2 + length % 2;
}

/* What it is before it is shuffled. */
static void out_size(const tandem_conv *c, uint32_t *height, uint32_t *width)
{
    *height = c->stride == 2 ? half(c->height) : c->height;
    *width = c->stride == 2 ? half(c->width) : c->width;
}

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_conv *c = &op->conv;
    const uint32_t shuffle = one_or_two(c->shuffle);

    shape[0] = c->batch, shape[1] = c->height, shape[2] = c->width, shape[3] = c->channels;
    if (view == COARSE) {
        shape[1] = half(c->height), shape[2] = half(c->width), shape[3] = c->coarse_channels;
    } else if (view == W || view == BIAS) {
        shape[0] = shape[1] = 1;
        shape[2] = view == W ? c->outs : 1;
        shape[3] = view == W ? c->size * c->size * (c->channels + c->coarse_channels) : c->outs;
    } else if (view == Y) {
        out_size(c, &shape[1], &shape[2]);
        shape[1] *= shuffle, shape[2] *= shuffle, shape[3] = c->outs / (shuffle * shuffle);
    }
}

static tandem_status check_numbers(const tandem_conv *c, char *why, size_t why_bytes)
{
    const td_size sizes[] = {{"channels", c->channels}, {"outs", c->outs}};
    const struct {
        const char *name;
        uint32_t value, multiple;
    } multiples[] = {{"channels", c->channels, 16}, {"coarse_channels", c->coarse_channels, 16}, {"outs", c->outs, c->shuffle == 2 ? 32 : 8}};
    tandem_status status = td_check_image("conv", c->batch, c->height, c->width, why, why_bytes);

    if (status == TANDEM_OK)
        status = td_check_sizes("conv", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    for (size_t i = 0; i < sizeof multiples / sizeof *multiples && status == TANDEM_OK; i++)
        if (multiples[i].value % multiples[i].multiple || multiples[i].value > 4096)
            status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.%s is %" PRIu32 "; it must be a multiple of %" PRIu32 ", at most 4096",
                             multiples[i].name, multiples[i].value, multiples[i].multiple);
    if (status == TANDEM_OK && c->size != 1 && c->size != 3)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.size is %" PRIu32 "; it must be 1 or 3", c->size);
    if (status == TANDEM_OK && c->stride > 2)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.stride is %" PRIu32 "; it must be 1 or 2", c->stride);
    if (status == TANDEM_OK && c->shuffle > 2)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.shuffle is %" PRIu32 "; it must be 1 or 2", c->shuffle);
    if (status == TANDEM_OK && c->relu > 1)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.relu is %" PRIu32 "; it must be 0 or 1", c->relu);
    if (status == TANDEM_OK && !c->coarse_channels != !c->coarse.dtype)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.coarse_channels is %" PRIu32 ", and conv.coarse is %s", c->coarse_channels,
                         c->coarse.dtype ? "there" : "not there");
    if (status == TANDEM_OK && (c->reserved[0] || c->reserved[1]))
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.reserved is not 0");
    return status;
}

/* On GPUs pixels are found by octets of channels, in 32 bits. */
static tandem_status check_reach(const tandem_conv *c, uint32_t view, const tandem_view *v, char *why, size_t why_bytes)
{
    const uint32_t height = view == X ? c->height : half(c->height), width = view == X ? c->width : half(c->width);
    const __int128 last = (__int128)v->stride_head * (height - 1) + (__int128)v->stride_row * (width - 1);

    return last / 8 <= INT32_MAX ? TANDEM_OK
                                 : td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                                           "conv.%s: an image reaches over more than 2^34 elements: its strides are %" PRId64 " and %" PRId64,
                                           view == X ? "x" : "coarse", v->stride_head, v->stride_row);
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_conv.layout;
    tandem_status status = check_numbers(&op->conv, why, why_bytes);

    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++) {
        const uint32_t f16 = TD_DTYPES(TANDEM_DTYPE_F16), f32 = TD_DTYPES(TANDEM_DTYPE_F32);
        status = td_check_view(layout, op, i, i == BIAS ? f32 : i == Y ? f16 | f32 : f16, why, why_bytes);
        if (status == TANDEM_OK && (i == X || i == COARSE) && td_view_is_there(layout, op, i))
            status = check_reach(&op->conv, i, td_view_in(layout, op, i), why, why_bytes);
        if (status == TANDEM_OK && i != BIAS && td_view_is_there(layout, op, i) && !td_is_wide(td_view_in(layout, op, i)))
            status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "conv.%s: offset_bytes must be a multiple of 16, strides of 8",
                             layout->views[i].name);
    }
    return status;
}

/* Outputs of a block: as many as it can have, or fewer where there were too few blocks to hide what each waits for. A sum is the
 * same by any number. */
static uint32_t tile_of(const tandem_conv *c, const td_params_conv *params, const td_target *target)
{
    enum { LEAST = 16, BLOCKS = 4 };
    const uint64_t places = (uint64_t)c->batch * params->rows * params->columns;
    const uint64_t wanted = (uint64_t)BLOCKS * td_multiprocessors(target);
    uint32_t tiles = (c->outs + TD_CONV_OUTS - 1) / TD_CONV_OUTS;

    while (places * tiles < wanted && c->outs / (tiles + 1) >= LEAST)
        tiles++;
    return (uint32_t)td_align_up((c->outs + tiles - 1) / tiles, 8);
}

/* Kernels by wgmma: what each has of outputs, and of tiles of 8 x 8 pixels for each of two warpgroups. */
typedef struct form {
    td_kernel kernel;
    uint32_t size, stride, outs, tiles;
} form;
#define FORM(size, stride, outs, tiles) \
    {{.name = "conv", .entry = "conv_wgmma_" #size "_" #stride "_" #outs "_" #tiles, .cpu = td_cpu_conv, .cpu_local_bytes = TD_CONV_CPU_LOCAL_BYTES}, \
     size, stride, outs, tiles}
#define FORMS(size, outs) FORM(size, 1, outs, 1), FORM(size, 1, outs, 2)
static const form forms[] = {FORMS(3, 32), FORMS(3, 48), FORMS(3, 64), FORM(3, 2, 32, 1), FORM(3, 2, 48, 1), FORM(3, 2, 64, 1),
                             FORMS(1, 24), FORMS(1, 64), FORMS(1, 80)};

static uint64_t parts_of(const tandem_conv *c, const td_params_conv *params, const form *it)
{
    const uint64_t rows = (params->out_height + 8 * it->tiles - 1) / (8 * it->tiles);

    return (uint64_t)c->batch * rows * params->columns * ((c->outs + it->outs - 1) / it->outs);
}

/* Clocks that a form takes: of each multiprocessor's blocks, one after the other, what their products read of shared memory or, if that is
 * longer, compute; and about how long a stage and a block take besides. */
static double clocks_of(const tandem_conv *c, const td_params_conv *params, const form *it, const td_target *target)
{
    enum { STAGE = 60, BLOCK = 2000 };
    const uint32_t stages = (c->channels + c->coarse_channels) / TD_CONV_CHUNK * c->size, each = td_multiprocessors(target);
    const double product = it->outs > 64 ? it->outs / 2.0 : 16 + it->outs / 4.0;
    const uint64_t waves = (parts_of(c, params, it) + each - 1) / each;

    return (double)waves * (stages * (2.0 * it->tiles * c->size * product + STAGE) + BLOCK + 20.0 * it->tiles * it->outs);
}

/* What those kernels find in 32 bits, by octets: y and w; check_reach() has looked at x and coarse. A stride of a single row or pixel may be
 * anything. */
static bool is_near(const tandem_conv *c, const td_params_conv *params)
{
    const td_strides *y = &params->y_at;
    const __int128 rows = (__int128)params->out_height * params->shuffle, columns = (__int128)params->out_width * params->shuffle;
    const int64_t strides[] = {params->x_at.stride_head, params->coarse_at.stride_head, y->stride_head, params->w_stride};

    for (size_t i = 0; i < sizeof strides / sizeof *strides; i++)
        if (strides[i] / 8 > INT32_MAX)
            return false;
    return (y->stride_head * rows + y->stride_row * columns) / 8 <= INT32_MAX && (__int128)params->w_stride * c->outs / 8 <= INT32_MAX;
}

/* NULL: by mma.sync, which all GPUs have. */
static const form *form_of(const tandem_conv *c, const td_params_conv *params, const td_target *target)
{
    const form *best = NULL;
    double least = 0;

    if (target->sm != 90 || !is_near(c, params) || (params->stride == 2 && c->coarse_channels))
        return NULL;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (forms[i].size != params->size || forms[i].stride != params->stride || parts_of(c, params, &forms[i]) > TD_MOST_BLOCKS)
            continue;
        const double clocks = clocks_of(c, params, &forms[i], target);
        if (!best || clocks < least)
            best = &forms[i], least = clocks;
    }
    return best;
}

static tandem_status plan_conv(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    static const td_kernel pack = {.name = "conv_pack", .cpu = td_cpu_conv_pack};
    static const td_kernel kernel = {.name = "conv", .entry = "conv", .cpu = td_cpu_conv, .cpu_local_bytes = TD_CONV_CPU_LOCAL_BYTES};
    const td_operation_layout *layout = &td_operation_conv.layout;
    const tandem_conv *c = &op->conv;
    td_builder at;
    const tandem_status status = td_build_operation(&at, plan, target, layout, op, why, why_bytes);

    if (status != TANDEM_OK)
        return status;
    const td_output y = td_build_output(&at, target, layout, op, Y);
    td_params_conv params = {.x_at = td_strides_of(&c->x),
                             .coarse_at = td_strides_of(&c->coarse),
                             .y_at = y.at,
                             .w_stride = c->w.stride_row,
                             .height = c->height,
                             .width = c->width,
                             .channels = c->channels,
                             .coarse_channels = c->coarse_channels,
                             .outs = c->outs,
                             .outs_pad = (c->outs + 15) / 16 * 16,
                             .size = (uint8_t)c->size,
                             .stride = (uint8_t)one_or_two(c->stride),
                             .shuffle = (uint8_t)one_or_two(c->shuffle),
                             .relu = c->relu != 0,
                             .y_dtype = c->y.dtype};
    out_size(c, &params.out_height, &params.out_width);
    params.columns = (params.out_width + TD_CONV_WIDTH - 1) / TD_CONV_WIDTH;
    const form *wgmma = form_of(c, &params, target);
    params.high = wgmma ? 8 * wgmma->tiles : TD_CONV_HEIGHT;
    params.rows = (params.out_height + params.high - 1) / params.high;
    params.tile = wgmma ? wgmma->outs : target->sm ? tile_of(c, &params, target) : TD_CONV_OUTS;
    params.tiles = (c->outs + params.tile - 1) / params.tile;
    if (wgmma) {
        params.total = c->channels + c->coarse_channels;
        params.each = c->outs / (params.shuffle * params.shuffle);
        params.x_row = (int32_t)(params.x_at.stride_head / 8), params.x_pixel = (int32_t)(params.x_at.stride_row / 8);
        params.coarse_row = (int32_t)(params.coarse_at.stride_head / 8), params.coarse_pixel = (int32_t)(params.coarse_at.stride_row / 8);
        params.y_row = (int32_t)(params.y_at.stride_head / 8), params.y_pixel = (int32_t)(params.y_at.stride_row / 8);
        params.w_row = (int32_t)(params.w_stride / 8);
    }
    const uint64_t weights = (uint64_t)c->size * c->size * (c->channels + c->coarse_channels) * params.outs_pad;
    const td_place packed = td_build_take(&at, !target->sm, weights * sizeof(float));
    if (!target->sm) {
        td_record *record = td_build_record(&at, &pack, params.outs_pad / 16, &params, sizeof params);
        td_build_view(&at, record, TD_READ, AT(w), W);
        td_build_scratch(&at, record, TD_WRITE, AT(packed), packed);
    }
    const unsigned __int128 parts = (unsigned __int128)c->batch * params.rows * params.columns * params.tiles;
    const uint64_t at_once = (uint64_t)TD_CONV_WGMMA_BLOCKS * td_multiprocessors(target);
    const unsigned __int128 grid = wgmma && parts > at_once ? at_once : parts;
    params.parts = (uint32_t)parts, params.blocks = (uint32_t)grid;
    td_record *record = td_build_record(&at, wgmma ? &wgmma->kernel : &kernel, grid, &params, sizeof params);
    record->shared_bytes = wgmma ? TD_CONV_WGMMA_SHARED(wgmma->size, wgmma->stride, wgmma->outs, wgmma->tiles)
                                : at.is_gpu ? TD_CONV_SHARED(params.size, params.stride, params.tile, c->coarse_channels) : 0;
    if (wgmma)
        record->block[0] = TD_CONV_WGMMA_THREADS;
    record->flags = at.overlaps ? TD_RECORD_PDL : 0;
    td_build_view(&at, record, TD_READ, AT(x), X);
    td_build_view(&at, record, TD_READ, AT(coarse), COARSE);
    td_build_view(&at, record, TD_READ, AT(w), W);
    td_build_view(&at, record, TD_READ, AT(bias), BIAS);
    td_build_scratch(&at, record, TD_READ, AT(packed), packed);
    td_build_write(&at, record, AT(y), &y);
    td_build_outputs(&at, target, layout, op, &y, 1);
    return td_build_end_sized(&at, "conv.batch, height, width", (const uint32_t[3]){c->batch, c->height, c->width}, why, why_bytes);
}

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const tandem_conv *c = &op->conv;
    uint32_t height, width;

    (void)position;
    out_size(c, &height, &width);
    const double pixels = (double)c->batch * height * width;
    const double mflop = 2e-6 * pixels * c->size * c->size * (c->channels + c->coarse_channels) * c->outs;
    return (td_cost){mflop, mflop + 20e-6 * pixels * (c->channels + c->coarse_channels + c->outs)};
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_conv, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_conv, member), false}
const td_operation td_operation_conv = {
    .layout = {.name = "conv",
               .number = TANDEM_OPERATION_CONV,
               .bytes = sizeof(tandem_conv),
               .version = 1,
               .view_count = VIEWS,
               .views = {[X] = VIEW(x, false, false),
                         [COARSE] = VIEW(coarse, false, true),
                         [W] = VIEW(w, false, false),
                         [BIAS] = VIEW(bias, false, true),
                         [Y] = VIEW(y, true, false)},
               .shape = shape},
    .fields = {NUMBER(batch), NUMBER(height), NUMBER(width), NUMBER(channels), NUMBER(coarse_channels), NUMBER(outs), NUMBER(size),
               NUMBER(stride), NUMBER(shuffle), NUMBER(relu)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem conv"},
    .check = check,
    .plan = plan_conv,
    .cost = cost,
};
