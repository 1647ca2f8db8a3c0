/* Linear layers as an operation: tandem_linear in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "kernels/check.h"
#include "kernels/commit.h"
#include "kernels/linear/codes.h"
#include "kernels/linear/forms.h"
#include "kernels/linear/linear.h"
#include "kernels/tiles.h"

enum {
    X = TD_LINEAR_X,
    W = TD_LINEAR_W,
    SCALE = TD_LINEAR_SCALE,
    BIAS = TD_LINEAR_BIAS,
    RESIDUAL = TD_LINEAR_RESIDUAL,
    ROTATION = TD_LINEAR_ROTATION,
    POSITION = TD_LINEAR_POSITION,
    STATISTICS = TD_LINEAR_STATISTICS,
    Y = TD_LINEAR_Y,
    Q = TD_LINEAR_Q,
    K = TD_LINEAR_K,
    V = TD_LINEAR_V,
    NEXT_STATISTICS = TD_LINEAR_NEXT_STATISTICS,
    VIEWS = TD_LINEAR_VIEWS
};
#define AT(member) offsetof(td_params_linear, member)

/* --- What it is --- */

static void shape(const tandem_operands *op, uint32_t view, uint32_t shape[4])
{
    const tandem_linear *l = &op->linear;
    shape[0] = shape[1] = 1;
    shape[2] = l->rows;
    shape[3] = view == X ? l->ins : l->outs;
    if (view == W)
        shape[2] = td_linear_w_rows(l), shape[3] = l->ins;
    else if (view == SCALE || view == BIAS)
        shape[2] = 1, shape[3] = td_linear_w_rows(l);
    else if (view == ROTATION)
        shape[2] = l->positions, shape[3] = l->rotated_channels;
    else if (view == POSITION)
        shape[2] = 1, shape[3] = l->rows;
    else if (view == STATISTICS || view > Y) {
        shape[0] = l->batch;
        shape[1] = view == Q ? l->heads : l->kv_heads;
        shape[2] = view == STATISTICS || view == NEXT_STATISTICS ? 2 : l->batch ? l->rows / l->batch : 0;
        shape[3] = l->head_dim;
    }
}

static uint32_t dtypes_of(const tandem_linear *l, uint32_t view)
{
    switch (view) {
    case X: return td_linear_has_codes(l) ? TD_DTYPES_FLOAT & ~TD_DTYPES(TANDEM_DTYPE_F32) : TD_DTYPES_FLOAT;
    case W: return TD_DTYPES(l->x.dtype) | TD_DTYPES(TANDEM_DTYPE_I8) | TD_DTYPES_BLOCKS | TD_DTYPES_TILES;
    case SCALE: case ROTATION: case STATISTICS: case NEXT_STATISTICS: return TD_DTYPES(TANDEM_DTYPE_F32);
    case Q: case K: return TD_DTYPES(TANDEM_DTYPE_CODES_INT8);
    case V: return TD_DTYPES(TANDEM_DTYPE_CODES_E4M3);
    case POSITION: return TD_DTYPES(TANDEM_DTYPE_I32);
    default: return TD_DTYPES_FLOAT;
    }
}

/* Kernels read eight int8 weights at a time. */
static tandem_status check_int8(const tandem_linear *l, char *why, size_t why_bytes)
{
    const struct {
        const char *name;
        uint64_t value;
    } eights[] = {{"ins", l->ins}, {"w.stride_row", (uint64_t)l->w.stride_row}, {"w.offset_bytes", l->w.offset_bytes}};
    for (size_t i = 0; i < sizeof eights / sizeof *eights && l->w.dtype == TANDEM_DTYPE_I8; i++)
        if (eights[i].value % 8)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.%s is %" PRIu64 "; with weights of i8 it must be a multiple of 8",
                           eights[i].name, eights[i].value);
    if (l->scale.dtype != TANDEM_DTYPE_NONE && l->w.dtype != TANDEM_DTYPE_I8)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.scale.dtype is %" PRIu32 "; only weights of i8 have scales: it must be 0",
                       l->scale.dtype);
    return TANDEM_OK;
}

/* All of what a rotation takes, or nothing. */
static tandem_status check_rotation(const tandem_linear *l, char *why, size_t why_bytes)
{
    const bool there = l->rotation.dtype != TANDEM_DTYPE_NONE;
    const struct {
        const char *name;
        uint32_t value;
    } none[] = {{"position.dtype", l->position.dtype}, {"positions", l->positions}, {"rotated_channels", l->rotated_channels},
                {"rotated_heads", l->rotated_heads}, {"head_dim", l->head_dim}}; /* the last is of codes, too */
    for (size_t i = 0; i < sizeof none / sizeof *none - td_linear_has_codes(l); i++)
        if (there != (none[i].value != 0))
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.%s is %" PRIu32 "; with%s a rotation it must %sbe 0", none[i].name,
                           none[i].value, there ? "" : "out", there ? "not " : "");
    if (!there)
        return TANDEM_OK;
    if (l->gate || l->activation)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.%s is %" PRIu32 "; with a rotation it must be 0",
                       l->gate ? "gate" : "activation", l->gate ? l->gate : l->activation);
    if (!l->head_dim || l->head_dim % 8)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.head_dim is %" PRIu32 "; it must be a multiple of 8", l->head_dim);
    if (l->rotated_channels % 8 || l->rotated_channels > l->head_dim)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "linear.rotated_channels is %" PRIu32 "; it must be a multiple of 8, at most head_dim, which is %" PRIu32,
                       l->rotated_channels, l->head_dim);
    if (l->rotated_heads > l->outs / l->head_dim)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                       "linear.rotated_heads is %" PRIu32 "; outs is %" PRIu32 ", which is %" PRIu32 " heads of %" PRIu32,
                       l->rotated_heads, l->outs, l->outs / l->head_dim, l->head_dim);
    return td_check_size("linear", "positions", l->positions, why, why_bytes);
}

static tandem_status check(const tandem_operands *op, char *why, size_t why_bytes)
{
    const tandem_linear *l = &op->linear;
    const td_size sizes[] = {{"rows", l->rows}, {"ins", l->ins}, {"outs", l->outs}};
    tandem_status status = td_check_sizes("linear", sizes, sizeof sizes / sizeof *sizes, why, why_bytes);
    if (status == TANDEM_OK && l->activation > TANDEM_ACTIVATION_TANH)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                         "linear.activation is %" PRIu32 "; it must be 0 (none), 1 (GELU), 2 (GELU by tanh), 3 (SiLU) or 4 (tanh)",
                         l->activation);
    if (status == TANDEM_OK && l->gate > TANDEM_GATE_PAIRS)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                         "linear.gate is %" PRIu32 "; it must be 0 (none), 1 (halves) or 2 (pairs)", l->gate);
    for (int i = 0; i < 3 && status == TANDEM_OK; i++)
        if (l->reserved[i])
            status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "linear.reserved[%d] is %" PRIu32 "; it must be 0", i,
                             l->reserved[i]);
    if (status == TANDEM_OK)
        status = check_rotation(l, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_linear_check_codes(l, why, why_bytes);
    for (uint32_t i = 0; i < VIEWS && status == TANDEM_OK; i++)
        status = td_check_view(&td_operation_linear.layout, op, i, dtypes_of(l, i), why, why_bytes);
    if (status == TANDEM_OK && td_linear_has_codes(l))
        status = td_linear_check_places(op, why, why_bytes);
    if (status == TANDEM_OK)
        status = td_check_tiles(&td_operation_linear.layout, op, W, true, why, why_bytes);
    return status == TANDEM_OK ? check_int8(l, why, why_bytes) : status;
}

/* --- Which kernel --- */

/* How a kernel cuts y: blocks of so many rows, and columns as rows of w. */
typedef struct block_form {
    td_kernel kernels[2]; /* of F16 and BF16 */
    td_kernel normed;     /* of F16, behind a norm (kernels/join_params.h), or no kernel */
    uint16_t rows, columns, threads;
    bool maps;             /* fetches by tensor maps: on streams alone */
    bool few;              /* for every GPU, and a block has one tile; the others are Hopper's */
    uint32_t shared_bytes; /* dynamic */
    /* By what layers took on an H100: of a wave of tiles, and of 64 channels of them. */
    float tile_us, step_us;
    float finish_us; /* more, of a wave, where sums are not just cast and stored whole */
} block_form;

#define STREAM_BYTES(rows, columns, stages) ((stages) * ((rows) + (columns)) * 128u + (stages) * 16u)
#define INLINE_BYTES(rows, columns, channels, slots) ((slots) * ((rows) + (columns)) * 2u * (channels) + (slots) * 16u)
#define DIRECT_BYTES(columns, channels, slots) ((slots) * (columns) * 2u * (channels) + (slots) * 24u)
#define UP(bytes) (((bytes) + 1023u) / 1024u * 1024u)
static const block_form forms[] = {
    {TD_LINEAR_KERNELS("wgmma_128x256"), {0}, 128, 256, 384, true, false, UP(STREAM_BYTES(128, 256, 4)), 4.9f, 0.64f, 8.5f},
    {TD_LINEAR_KERNELS("wgmma_128x128"), {0}, 128, 128, 384, true, false, UP(STREAM_BYTES(128, 128, 6)), 2.0f, 0.33f, 4.0f},
    {TD_LINEAR_KERNELS("wgmma_64x64"), {0}, 64, 64, 160, true, false, UP(STREAM_BYTES(64, 64, 8)), 1.2f, 0.23f, 1.5f},
    {TD_LINEAR_KERNELS("direct_256x128"), {0}, 256, 128, 384, false, false, UP(DIRECT_BYTES(128, 32, 5)), 3.5f, 1.05f, 8.5f},
    {TD_LINEAR_KERNELS("direct_128x128"), {0}, 128, 128, 384, false, false, UP(DIRECT_BYTES(128, 32, 5)), 2.5f, 0.59f, 4.0f},
    {TD_LINEAR_KERNELS("inline_64x64"), {0}, 64, 64, 256, false, false, UP(INLINE_BYTES(64, 64, 32, 5)), 1.0f, 0.305f, 1.5f},
    {TD_LINEAR_KERNELS("few_16x32"), TD_LINEAR_KERNEL("linear_f16_few_normed_16x32"), 16, 32, 256, false, true, 0, 0.5f, 0.07f, 0.2f},
    {TD_LINEAR_KERNELS("few_32x32"), TD_LINEAR_KERNEL("linear_f16_few_normed_32x32"), 32, 32, 256, false, true, 0, 0.9f, 0.065f, 0.2f},
    {TD_LINEAR_KERNELS("few_32x64"), TD_LINEAR_KERNEL("linear_f16_few_normed_32x64"), 32, 64, 256, false, true, 0, 0.7f, 0.13f, 0.2f},
};
static const float launch_us = 1.5f;
/* With small tiles many blocks read the same, at most so much a microsecond from L2; and what does not stay there takes so many
 * times as long. */
static const double few_mb_a_us = 8, few_near_mb = 8, few_far = 3;
enum { FORMS = sizeof forms / sizeof *forms };
/* What to plan: which kernel is one of the forms, MMA, SKINNY, or AUTO. */
enum { MMA = FORMS, SKINNY = FORMS + 1, AUTO = UINT32_MAX };

const td_kernel *td_linear_few_normed_kernel(const td_record *record)
{
    for (uint32_t i = 0; i < FORMS; i++)
        if (forms[i].normed.entry && record->kernel == &forms[i].kernels[0])
            return &forms[i].normed;
    return NULL;
}

/* By td_linear_weights. */
static const td_kernel mma_kernels[TD_LINEAR_TILES][2] = {TD_LINEAR_KERNELS("mma_dense"), TD_LINEAR_KERNELS("mma_int8"), TD_LINEAR_KERNELS("mma_q8_0"),
                                                            TD_LINEAR_KERNELS("mma_q4_0"),  TD_LINEAR_KERNELS("mma_q4_1"), TD_LINEAR_KERNELS("mma_q4_k"),
                                                            TD_LINEAR_KERNELS("mma_q6_k"),  TD_LINEAR_KERNELS("mma_q5_k")};
/* Of weights in tiles, from TD_LINEAR_TILES on. */
static const td_kernel unpack_kernels[TD_LINEAR_WEIGHTS - TD_LINEAR_TILES][2] = {TD_LINEAR_KERNELS("unpack_q8_0"), TD_LINEAR_KERNELS("unpack_q4_0"),
                                                                                 TD_LINEAR_KERNELS("unpack_q4_1"), TD_LINEAR_KERNELS("unpack_q4_k"),
                                                                                 TD_LINEAR_KERNELS("unpack_q6_k"), TD_LINEAR_KERNELS("unpack_q5_k")};

/* Strides of tensor maps are below 2^40 bytes. */
static bool suits_wgmma(const tandem_linear *l)
{
    return l->w.dtype == l->x.dtype && td_linear_x_is_wide(l) && td_linear_is_aligned(&l->w, 16) && l->w.stride_row % 8 == 0 &&
           l->x.stride_row < INT64_C(1) << 38 && l->w.stride_row < INT64_C(1) << 38 && l->x.stride_row >= l->ins &&
           l->w.stride_row >= l->ins;
}

/* Bytes from row to row have 32 bits. */
static bool suits_few(const tandem_linear *l)
{
    return l->w.dtype == l->x.dtype && td_linear_x_is_wide(l) && td_linear_is_aligned(&l->w, 16) && l->w.stride_row % 8 == 0 && l->x.stride_row >= 0 &&
           l->w.stride_row >= 0 && l->x.stride_row < INT64_C(1) << 31 && l->w.stride_row < INT64_C(1) << 31;
}

static bool suits(const tandem_linear *l, const block_form *form)
{
    return form->few ? suits_few(l) : suits_wgmma(l);
}

static uint64_t tiles_of(const tandem_linear *l, uint32_t rows, uint32_t columns)
{
    return (((uint64_t)l->rows + rows - 1) / rows) * (((uint64_t)td_linear_w_rows(l) + columns - 1) / columns);
}

/* Whether a kernel's last step is a plain one: tiles of so many columns. */
static bool is_just_cast(const tandem_linear *l, uint32_t columns)
{
    return l->scale.dtype == TANDEM_DTYPE_NONE && l->bias.dtype == TANDEM_DTYPE_NONE && l->rotation.dtype == TANDEM_DTYPE_NONE &&
           l->residual.dtype == TANDEM_DTYPE_NONE && !l->activation && !l->gate && l->outs % columns == 0 && td_linear_is_aligned(&l->y, 16) && l->y.stride_row % 8 == 0;
}

/* Whether a target has it. */
static bool has_form(const td_target *target, uint32_t sm, const block_form *it)
{
    return (it->few || sm == 90) && (!it->maps || (target->tensor_maps && it->shared_bytes <= target->shared_bytes));
}

/* How long blocks of such tiles take. */
static double form_us(const block_form *it, const tandem_linear *l, const td_target *target)
{
    const uint64_t at_once = td_multiprocessors(target), tiles = tiles_of(l, it->rows, it->columns);
    const uint64_t waves = (tiles + at_once - 1) / at_once;
    const double steps = (l->ins + 63) / 64, finish = is_just_cast(l, it->columns) ? 0 : (double)it->finish_us;
    const double far = it->few && 2e-6 * td_linear_w_rows(l) * l->ins > few_near_mb ? few_far : 1;
    const double alone = (double)waves * ((double)it->tile_us + finish + far * steps * (double)it->step_us);
    const double fetched_mb = it->few ? (double)tiles * steps * (it->rows + it->columns) * 128e-6 : 0;
    const double together = (double)it->tile_us + finish + fetched_mb / few_mb_a_us;
    return (double)launch_us + (alone > together ? alone : together);
}

/* The fastest of those that the target has, for all rows of the whole operation, so that parts have its bits. MMA is for what
 * suits none, and elsewhere than on Hopper for large layers. */
static uint32_t best_form(const tandem_linear *whole, const td_target *target, uint32_t sm)
{
    static const block_form mma = {.rows = TD_LINEAR_MMA_ROWS, .columns = TD_LINEAR_MMA_ROWS, /* times by guess */
                                   .tile_us = 2.5f, .step_us = 1.2f, .finish_us = 4.0f};
    const bool has_mma = sm != 90 || !suits_wgmma(whole);
    double best_us = has_mma ? form_us(&mma, whole, target) : 0;
    uint32_t best = MMA;
    for (uint32_t i = 0; i < FORMS; i++) {
        const block_form *it = &forms[i];
        if (!has_form(target, sm, it) || !suits(whole, it))
            continue;
        if (whole->rows <= 64 && it->rows > 64) /* half of what they fetch would be for nothing */
            continue;
        const double us = form_us(it, whole, target);
        if (us < best_us || (best == MMA && !has_mma)) {
            best = i;
            best_us = us;
        }
    }
    return best;
}

/* --- Plans --- */

td_params_linear td_linear_params(const tandem_linear *l)
{
    return (td_params_linear){.x_stride = l->x.stride_row,
                              .residual_stride = l->residual.stride_row,
                              .y_stride = l->y.stride_row,
                              .w_stride = td_row_bytes(&l->w),
                              .rows = l->rows,
                              .ins = l->ins,
                              .outs = l->outs,
                              .dtype = (uint8_t)l->x.dtype,
                              .weights = (uint8_t)td_linear_weights_of(l->w.dtype),
                              .bias_dtype = (uint8_t)l->bias.dtype,
                              .residual_dtype = (uint8_t)l->residual.dtype,
                              .y_dtype = (uint8_t)l->y.dtype,
                              .activation = (uint8_t)l->activation,
                              .gate = (uint8_t)l->gate,
                              .rotation_stride = l->rotation.stride_row,
                              .positions = l->positions,
                              .head_dim = l->head_dim,
                              .rotated_channels = l->rotated_channels,
                              .rotated_columns = l->rotated_heads * l->head_dim};
}

/* w: where it is in scratch, or absent, then it is a view. */
static td_record *build_form(td_builder *at, const block_form *it, const td_target *target, const tandem_linear *l, td_place w,
                             const td_params_linear *p)
{
    const td_kernel *kernel = &it->kernels[p->dtype == TANDEM_DTYPE_BF16];
    const uint64_t tiles = tiles_of(l, it->rows, it->columns), at_once = td_multiprocessors(target);
    const bool walks = !it->few && tiles <= TD_MOST_BLOCKS; /* blocks have one tile after the other, else one */
    const uint64_t grid = walks && tiles > at_once ? at_once : tiles;
    td_params_linear_tma all = {.p = *p};
    td_record *record;
    if (it->maps) {
        all.x_map = (td_tensor_map){p->ins, p->rows, (uint64_t)p->x_stride * 2, 64, it->rows, p->dtype, {0}};
        all.w_map = (td_tensor_map){p->ins, td_linear_w_rows(l), (uint64_t)p->w_stride, 64, it->columns / TD_LINEAR_BOXES, p->dtype, {0}};
        record = td_build_record(at, kernel, grid, &all, sizeof all);
        td_build_map(at, record, offsetof(td_params_linear_tma, x_map), X);
        if (w.offset == TD_ABSENT)
            td_build_map(at, record, offsetof(td_params_linear_tma, w_map), W);
        else
            td_build_scratch_map(at, record, offsetof(td_params_linear_tma, w_map), w);
    } else {
        record = td_build_record(at, kernel, grid, p, sizeof *p);
    }
    record->block[0] = it->threads;
    record->shared_bytes = it->shared_bytes;
    return record;
}

/* Weights in tiles made dense, in scratch. */
static td_place build_unpacked(td_builder *at, const td_target *target, const tandem_linear *l)
{
    const uint32_t chunk = td_dtype_of(l->w.dtype).elements, chunks_a_block = TD_LINEAR_UNPACK_THREADS / 64;
    const uint64_t chunks = (uint64_t)td_linear_w_rows(l) / TD_WEIGHT_ROWS * (l->ins / chunk);
    const td_kernel *kernel = &unpack_kernels[td_linear_weights_of(l->w.dtype) - TD_LINEAR_TILES][l->x.dtype == TANDEM_DTYPE_BF16];
    const td_place dense = td_build_take(at, true, (unsigned __int128)td_linear_w_rows(l) * l->ins * 2);
    const td_params_linear_unpack params = {
        .w_rows = td_linear_w_rows(l), .ins = l->ins, .w_is_constant = target->constant_views >> W & 1};
    td_record *record = td_build_record(at, kernel, (chunks + chunks_a_block - 1) / chunks_a_block, &params, sizeof params);
    record->block[0] = TD_LINEAR_UNPACK_THREADS;
    if (at->overlaps)
        record->flags |= TD_RECORD_PDL;
    td_build_view(at, record, TD_READ, offsetof(td_params_linear_unpack, w), W);
    td_build_scratch(at, record, TD_WRITE, offsetof(td_params_linear_unpack, to), dense);
    return dense;
}

static td_record *build_mma(td_builder *at, const tandem_linear *l, const td_params_linear *p)
{
    const td_kernel *kernel = &mma_kernels[p->weights][p->dtype == TANDEM_DTYPE_BF16];
    td_record *record = td_build_record(at, kernel, tiles_of(l, TD_LINEAR_MMA_ROWS, TD_LINEAR_MMA_ROWS), p, sizeof *p);
    record->block[0] = TD_LINEAR_MMA_THREADS;
    record->shared_bytes = TD_LINEAR_MMA_SHARED_BYTES;
    return record;
}

static td_record *build_cpu(td_builder *at, const tandem_linear *l, const td_params_linear *p)
{
    static const td_kernel kernel = {.name = "linear", .cpu = td_cpu_linear, .cpu_local_bytes = TD_LINEAR_CPU_LOCAL_BYTES};
    const uint32_t columns = l->gate ? TD_LINEAR_CPU_COLUMNS / 2 : TD_LINEAR_CPU_COLUMNS;
    const uint64_t down = ((uint64_t)l->rows + TD_LINEAR_CPU_ROWS - 1) / TD_LINEAR_CPU_ROWS;
    return td_build_record(at, &kernel, down * (((uint64_t)l->outs + columns - 1) / columns), p, sizeof *p);
}

/* Weights in tiles are multiplied as they are with few rows, else made dense. */
static uint32_t choose(const tandem_linear *asked, const td_target *target, uint32_t sm)
{
    tandem_linear dense = *asked;
    const tandem_linear *whole = &dense;
    if (td_dtype_is_tiles(asked->w.dtype)) {
        if (td_linear_suits_few_rows(asked) && asked->rows <= TD_LINEAR_SKINNY_MOST)
            return SKINNY;
        dense.w = tandem_view_dense(0, 0, asked->x.dtype, 1, td_linear_w_rows(asked), asked->ins);
    }
    const bool streams = sm == 90 && suits_wgmma(whole) && target->tensor_maps;
    if (td_linear_suits_few_rows(whole) && whole->rows <= (streams ? TD_LINEAR_SKINNY_BEST : TD_LINEAR_SKINNY_MOST))
        return SKINNY;
    return best_form(whole, target, sm);
}

static tandem_status plan_form(const tandem_operands *op, const td_target *target, uint32_t form, td_plan *plan, char *why,
                               size_t why_bytes)
{
    const td_operation_layout *layout = &td_operation_linear.layout;
    tandem_operands with_y = *op;
    const tandem_linear *l = &with_y.linear;
    if (op->linear.y.dtype == TANDEM_DTYPE_NONE) /* then it is in scratch, for codes */
        with_y.linear.y = tandem_view_dense(0, 0, l->x.dtype, 1, l->rows, l->outs);
    tandem_linear whole = *l; /* a part is as the whole but for its rows, and where they are */
    td_builder at = td_build_begin(plan, target);
    td_place dense = {TD_ABSENT, 0};
    uint32_t sm;
    if (target->whole)
        whole.rows = target->whole->linear.rows;
    if (!td_target_kernels(target, &at.cubin, &sm, why, why_bytes))
        return TANDEM_ERROR_UNSUPPORTED;
    at.overlaps = at.is_gpu && sm >= 90;
    if (at.is_gpu && sm < 89 && td_linear_has_codes(l))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "linear.v.dtype is %" PRIu32 " (e4m3 codes), which no attention takes on compute capability %" PRIu32 ".%" PRIu32,
                       l->v.dtype, sm / 10, sm % 10);
    if (at.is_gpu && l->x.dtype == TANDEM_DTYPE_F32)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "linear.x.dtype is %" PRIu32 " (f32), which CPUs alone multiply; it must be 1 (f16) or 2 (bf16)", l->x.dtype);
    if (at.is_gpu && l->w.dtype == TANDEM_DTYPE_I8 && !td_linear_is_aligned(&l->w, 8))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "linear.w begins at an address that is %" PRIu64 " modulo 16; weights of i8 must begin at a multiple of 8",
                       l->w.offset_bytes % 16);
    tandem_status status = td_check_tiles(layout, op, W, at.is_gpu, why, why_bytes);
    if (status != TANDEM_OK)
        return status;
    td_build_extents(&at, layout, op);
    td_output outputs[1 + TD_LINEAR_CODES_OUTPUTS], y = td_build_output(&at, target, layout, op, Y);
    uint32_t count = 0;
    if (op->linear.y.dtype == TANDEM_DTYPE_NONE) {
        y.place = td_build_take(&at, true, td_view_extent_bytes(&l->y, 1, 1, l->rows, l->outs));
        y.at = td_strides_of(&l->y);
    }
    if (form == AUTO)
        form = choose(&whole, target, sm);
    if (td_dtype_is_tiles(l->w.dtype) && form != SKINNY) {
        dense = build_unpacked(&at, target, l);
        with_y.linear.w = tandem_view_dense(0, 0, l->x.dtype, 1, td_linear_w_rows(l), l->ins);
    }
    td_params_linear params = td_linear_params(l);
    params.y_stride = y.at.stride_row;
    params.w_is_constant = dense.offset == TD_ABSENT && target->constant_views >> W & 1;
    td_record *record = !at.is_gpu      ? build_cpu(&at, l, &params)
                        : form == SKINNY ? td_linear_build_few_rows(&at, target, l, &whole, &params)
                        : form == MMA    ? build_mma(&at, l, &params)
                                         : build_form(&at, &forms[form], target, l, dense, &params);
    if (at.overlaps)
        record->flags |= TD_RECORD_PDL;
    td_build_view(&at, record, TD_READ, AT(x), X);
    if (dense.offset == TD_ABSENT)
        td_build_view(&at, record, TD_READ, AT(w), W);
    else
        td_build_scratch(&at, record, TD_READ, AT(w), dense);
    td_build_view(&at, record, TD_READ, AT(scale), SCALE);
    td_build_view(&at, record, TD_READ, AT(bias), BIAS);
    td_build_view(&at, record, TD_READ, AT(residual), RESIDUAL);
    td_build_view(&at, record, TD_READ, AT(rotation), ROTATION);
    td_build_view(&at, record, TD_READ, AT(position), POSITION);
    td_build_write(&at, record, AT(y), &y);
    if (td_linear_has_codes(l))
        count = td_linear_build_codes(&at, target, sm, &with_y, &y, outputs);
    if (op->linear.y.dtype != TANDEM_DTYPE_NONE)
        outputs[count++] = y;
    td_build_outputs(&at, target, layout, op, outputs, count);
    return td_build_end_sized(&at, "linear.rows, ins, outs", (const uint32_t[3]){l->rows, l->ins, l->outs}, why, why_bytes);
}

static tandem_status plan_linear(const tandem_operands *op, const td_target *target, td_plan *plan, char *why, size_t why_bytes)
{
    return plan_form(op, target, AUTO, plan, why, why_bytes);
}

const char *td_linear_form(uint32_t form)
{
    return form < FORMS ? forms[form].kernels[0].name + strlen("linear_f16_")
           : form == MMA       ? "mma"
           : form == SKINNY    ? "skinny"
                               : NULL;
}

tandem_status td_linear_plan_form(const tandem_operands *op, const td_target *target, uint32_t form, td_plan *plan, char *why,
                                  size_t why_bytes)
{
    const tandem_linear *l = &op->linear;
    const block_form *it = form < FORMS ? &forms[form] : NULL;
    if (it && (!suits(l, it) || (!it->few && target->sm != 90)))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s is for %soperands that are aligned and dense", td_linear_form(form),
                       it->few ? "" : "Hopper, and ");
    if (it && !has_form(target, target->sm, it))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "%s needs tensor maps and %" PRIu32 " bytes of shared memory",
                       td_linear_form(form), it->shared_bytes);
    if (form == SKINNY && (l->rows > TD_LINEAR_SKINNY_MOST || !td_linear_suits_few_rows(l)))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "skinny is for 1 to %d rows, aligned", TD_LINEAR_SKINNY_MOST);
    return plan_form(op, target, form, plan, why, why_bytes);
}

/* --- For a daemon --- */

static td_cost cost(const tandem_operands *op, uint32_t position)
{
    const tandem_linear *l = &op->linear;
    const double weights = (double)td_linear_w_rows(l) * l->ins, mflop = 2e-6 * weights * l->rows;
    (void)position;
    const double codes = td_linear_has_codes(l) ? (double)l->rows * l->outs : 0;
    /* each weight is read and made a number once, however few rows there are */
    return (td_cost){mflop, mflop + 30e-6 * (weights + codes)};
}

/* Parts are whole tiles of rows, of every form. Codes are not cut: where scales lie depends on all rows. */
static uint32_t rows_each(const tandem_linear *l, uint32_t count)
{
    if (td_linear_has_codes(l))
        return l->rows;
    const uint32_t tiles = (l->rows + TD_LINEAR_MMA_ROWS - 1) / TD_LINEAR_MMA_ROWS;
    return (tiles / count + (tiles % count != 0)) * TD_LINEAR_MMA_ROWS;
}

static uint32_t split(const tandem_operands *op, uint32_t count)
{
    const uint32_t each = rows_each(&op->linear, count);
    return op->linear.rows / each + (op->linear.rows % each != 0);
}

static uint32_t part(const tandem_operands *op, uint32_t count, td_part_at *at, tandem_operands *part)
{
    const uint32_t each = rows_each(&op->linear, count), left = op->linear.rows - at->row;
    tandem_linear *l = &part->linear;
    tandem_view *const views[] = {&l->x, &l->residual, &l->y};
    *part = *op;
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        views[i]->offset_bytes += (uint64_t)at->row * (uint64_t)views[i]->stride_row * td_dtype_bytes(views[i]->dtype);
    l->position.offset_bytes += (uint64_t)at->row * sizeof(int32_t);
    l->rows = left < each ? left : each;
    at->row += each;
    return 0;
}

#define VIEW(member, is_written, is_optional) {#member, offsetof(tandem_linear, member), is_written, is_optional}
#define NUMBER(member) {#member, offsetof(tandem_linear, member), false}
const td_operation td_operation_linear = {
    .layout = {.name = "linear",
               .number = TANDEM_OPERATION_LINEAR,
               .bytes = sizeof(tandem_linear),
               .version = 1,
               .view_count = VIEWS,
               .views = {[X] = VIEW(x, false, false),
                         [W] = VIEW(w, false, false),
                         [SCALE] = VIEW(scale, false, true),
                         [BIAS] = VIEW(bias, false, true),
                         [RESIDUAL] = VIEW(residual, false, true),
                         [ROTATION] = VIEW(rotation, false, true),
                         [POSITION] = VIEW(position, false, true),
                         [STATISTICS] = VIEW(statistics, false, true),
                         [Y] = VIEW(y, true, true),
                         [Q] = VIEW(q, true, true),
                         [K] = VIEW(k, true, true),
                         [V] = VIEW(v, true, true),
                         [NEXT_STATISTICS] = VIEW(next_statistics, true, true)},
               .shape = shape},
    .fields = {NUMBER(rows), NUMBER(ins), NUMBER(outs), NUMBER(activation), NUMBER(gate),
               NUMBER(positions), NUMBER(head_dim), NUMBER(rotated_channels),
               NUMBER(rotated_heads), NUMBER(batch), NUMBER(heads), NUMBER(kv_heads), NUMBER(granularity)},
    .precision_at = TD_NO_PRECISION,
    .labels = {"tandem linear"},
    .check = check,
    .plan = plan_linear,
    .cost = cost,
    .split = split,
    .part = part,
};
