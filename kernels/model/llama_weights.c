/* Weights of language models of Llama's architecture, as their graphs want them. See llama.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/model/llama.h"

uint64_t td_llama_part_bytes(const td_llama_weight *weight, const td_gguf_tensor *part)
{
    const td_dtype have = td_dtype_of(part->dtype), want = td_dtype_of(weight->dtype);

    return part->bytes / have.bytes * have.elements / want.elements * want.bytes;
}

/* cos, sin of each pair of channels, for each position: `count` of these floats from `first` on. */
static void make_rotation(const td_llama *model, uint64_t first, uint64_t count, float *to)
{
    const uint32_t pairs = model->sizes.rotated_channels / 2;
    double frequency[TD_LLAMA_MOST_HEAD_DIM / 2];

    for (uint32_t pair = 0; pair < pairs; pair++)
        frequency[pair] = pow((double)model->sizes.frequency_base, -(double)pair / pairs);
    for (uint64_t i = first; i < first + count; i++) {
        const double angle = (double)(i / 2 / pairs) * frequency[i / 2 % pairs];

        *to++ = (float)(i % 2 ? sin(angle) : cos(angle));
    }
}

/* `bytes` of what a tensor of the file is as `dtype`, from byte `from` on. */
static void convert(const td_gguf_tensor *of, uint32_t dtype, uint64_t from, uint64_t bytes,
                    char *to)
{
    const uint32_t element = td_dtype_of(dtype).bytes; /* that of blocks is never asked for */

    if (of->dtype == dtype) {
        memcpy(to, (const char *)of->data + from, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes / element; i++) {
        float x;

        td_to_floats(&x, of->data, of->dtype, (int64_t)(from / element + i), 1);
        td_from_floats(to, dtype, (int64_t)i, &x, 1);
    }
}

void td_llama_read_weight(const td_llama *model, uint32_t i, uint64_t from, uint64_t bytes,
                          void *to)
{
    const td_llama_weight *weight = &model->weights[i];
    uint64_t begin = 0; /* of a part */
    char *at = to;

    if (!weight->parts[0]) {
        make_rotation(model, from / sizeof(float), bytes / sizeof(float), to);
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
        convert(weight->parts[part], weight->dtype, skipped, end - skipped, at);
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
