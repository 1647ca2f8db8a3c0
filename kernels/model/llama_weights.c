/* Weights of language models of Llama's kind, as their graphs want them. See llama.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/model/llama.h"
#include "kernels/tiles.h"

uint64_t td_llama_part_bytes(const td_llama_weight *weight, const td_gguf_tensor *part)
{
    const td_dtype have = td_dtype_of(part->dtype), want = td_dtype_of(weight->dtype);

    return part->bytes / have.bytes * have.elements / want.elements * want.bytes;
}

/* Of a pair's frequency: 0 where it is divided by the factor, 1 where it is not. Which pair turns
 * so often within the original context is solved for it, and rounded outwards. */
static double own_share(const td_llama_rotation *r, uint32_t pair, uint32_t pairs)
{
    const double most = 2.0 * pairs - 1, pairs_of_base = pairs / log((double)r->base);
    const double turn = (double)r->original / (2 * 3.14159265358979323846);
    const double low = fmax(floor(pairs_of_base * log(turn / (double)r->fast)), 0),
                 high = fmin(ceil(pairs_of_base * log(turn / (double)r->slow)), most);
    const double ramp = (pair - low) / fmax(high - low, 0.001);

    return 1 - fmin(fmax(ramp, 0), 1);
}

static void make_frequencies(const td_llama *model, const td_llama_rotation *r, double *to)
{
    const uint32_t pairs = model->sizes.rotated_channels / 2;

    for (uint32_t pair = 0; pair < pairs; pair++) {
        const double own = pow((double)r->base, -(double)pair / pairs),
                     share = r->original ? own_share(r, pair, pairs) : 0;
        float divisor = 1;

        if (r->divisors)
            td_to_floats(&divisor, r->divisors->data, r->divisors->dtype, pair, 1);
        to[pair] = (own / (double)r->factor * (1 - share) + own * share) / (double)divisor;
    }
}

/* cos, sin of each pair of channels, for each position: `count` of these floats from `first` on. */
static void make_rotation(const td_llama *model, const td_llama_rotation *r, uint64_t first,
                          uint64_t count, float *to)
{
    const uint32_t pairs = model->sizes.rotated_channels / 2;
    double frequency[TD_LLAMA_MOST_HEAD_DIM / 2];

    make_frequencies(model, r, frequency);
    for (uint64_t i = first; i < first + count; i++) {
        const double angle = (double)(i / 2 / pairs) * frequency[i / 2 % pairs];

        *to++ = (float)((double)r->magnitude * (i % 2 ? sin(angle) : cos(angle)));
    }
}

/* `bytes` of what a tensor of the file is as `dtype`, from byte `from` on. */
static void convert(const td_gguf_tensor *of, uint32_t dtype, float scale, uint64_t from,
                    uint64_t bytes, char *to)
{
    const uint32_t element = td_dtype_of(dtype).bytes; /* that of blocks is never asked for */

    if (of->dtype == dtype && scale == 0) {
        memcpy(to, (const char *)of->data + from, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes / element; i++) {
        float x;

        td_to_floats(&x, of->data, of->dtype, (int64_t)(from / element + i), 1);
        x *= scale == 0 ? 1 : scale;
        td_from_floats(to, dtype, (int64_t)i, &x, 1);
    }
}

/* Which row of the file is row `row` here, where channels that turn together are neighbours. */
static uint64_t row_in_file(const td_llama_sizes *s, uint64_t row)
{
    const uint64_t channel = row % s->head_dim, half = s->rotated_channels / 2;

    if (channel >= s->rotated_channels)
        return row;
    return row - channel + channel % 2 * half + channel / 2;
}

/* The same of a tensor whose rows, or elements, come in another order. */
static void convert_rows(const td_llama *model, const td_llama_weight *weight,
                         const td_gguf_tensor *of, uint64_t from, uint64_t bytes, char *to)
{
    const uint64_t rows = of->shape[1] > 1 ? of->shape[1] : of->shape[0],
                   row_bytes = td_llama_part_bytes(weight, of) / rows;

    for (uint64_t end = from + bytes, n; from < end; from += n, to += n) {
        const uint64_t row = from / row_bytes, in = from % row_bytes;

        n = row_bytes - in < end - from ? row_bytes - in : end - from;
        convert(of, weight->dtype, weight->scale, row_in_file(&model->sizes, row) * row_bytes + in,
                n, to);
    }
}

/* The same in tiles, chunk by chunk. */
static void pack_rows(const td_llama *model, const td_llama_weight *weight, bool reorders,
                      const td_gguf_tensor *of, uint64_t from, uint64_t bytes, char *to)
{
    const td_dtype tiles = td_dtype_of(weight->dtype);
    const uint64_t chunks = of->shape[0] / tiles.elements, chunk_bytes = TD_WEIGHT_ROWS * tiles.bytes,
                   row_bytes = chunks * tiles.bytes;
    uint8_t chunk[TD_MOST_CHUNK_BYTES];

    for (uint64_t end = from + bytes, n; from < end; from += n, to += n) {
        const uint64_t index = from / chunk_bytes, in = from % chunk_bytes;
        const uint8_t *rows[TD_WEIGHT_ROWS];

        n = chunk_bytes - in < end - from ? chunk_bytes - in : end - from;
        for (uint64_t r = 0; r < TD_WEIGHT_ROWS; r++) {
            const uint64_t row = index / chunks * TD_WEIGHT_ROWS + r;

            rows[r] = (const uint8_t *)of->data + index % chunks * tiles.bytes +
                      (reorders ? row_in_file(&model->sizes, row) : row) * row_bytes;
        }
        td_tiles_pack(weight->dtype, rows, n == chunk_bytes ? (uint8_t *)to : chunk);
        if (n < chunk_bytes)
            memcpy(to, chunk + in, n);
    }
}

void td_llama_read_weight(const td_llama *model, uint32_t i, uint64_t from, uint64_t bytes,
                          void *to)
{
    const td_llama_weight *weight = &model->weights[i];
    uint64_t begin = 0; /* of a part */
    char *at = to;

    if (!weight->parts[0]) {
        make_rotation(model, &model->sizes.rotations[weight->rotation], from / sizeof(float),
                      bytes / sizeof(float), to);
        return;
    }
    for (int part = 0; part < TD_LLAMA_PARTS && weight->parts[part]; part++) {
        const uint64_t all = td_llama_part_bytes(weight, weight->parts[part]);
        const uint64_t skipped = from > begin ? from - begin : 0,
                       until = from + bytes > begin ? from + bytes - begin : 0,
                       end = until < all ? until : all;

        begin += all;
        if (skipped >= end)
            continue;
        if (td_dtype_is_tiles(weight->dtype))
            pack_rows(model, weight, weight->reorders[part], weight->parts[part], skipped,
                      end - skipped, at);
        else if (weight->reorders[part])
            convert_rows(model, weight, weight->parts[part], skipped, end - skipped, at);
        else
            convert(weight->parts[part], weight->dtype, weight->scale, skipped, end - skipped, at);
        at += end - skipped;
    }
}

void td_llama_read_weights(const td_llama *model, const td_program *program, void *weights)
{
    for (uint32_t i = 0; i < model->weight_count; i++) {
        const td_program_tensor *tensor = &program->tensors[model->weights[i].tensor];

        td_llama_read_weight(model, i, 0, tensor->bytes, (char *)weights + tensor->offset);
    }
}
