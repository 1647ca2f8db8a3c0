/* Whatever is in a GGUF file: it is refused with a reason, or all that it has lies within it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One entry for libFuzzer (TANDEM_LIBFUZZER) and for the mutator of fuzz_util.c, which any compiler
 * can build: fuzz_gguf CORPUS [runs] starts from the corpus, the same each time; fuzz_gguf --make
 * CORPUS writes the corpus.
 *
 * Input: 2 bytes that nothing depends on, then the file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/model/gguf.h"
#include "kernels/model/llama.h"
#include "tests/fuzz_util.h"
#include "tests/kernels/gguf_util.h"

enum { HOW_BYTES = 2 };

static void must(bool promise, const char *what)
{
    if (!promise) {
        fprintf(stderr, "fuzz_gguf: broken promise: %s\n", what);
        abort();
    }
}

/* Reads each byte, so that a sanitizer sees one that lies beyond the file. */
static uint64_t sum_of(const void *bytes, uint64_t count)
{
    uint64_t sum = 0;

    for (uint64_t i = 0; i < count; i++)
        sum += ((const uint8_t *)bytes)[i];
    return sum;
}

static uint64_t check_value(const td_gguf *file, const td_gguf_value *v)
{
    uint64_t sum = 0;
    uint32_t integer;
    float real;
    bool boolean;
    td_gguf_string text;

    must(td_gguf_find(file, v->key) == v, "a key that is not found");
    must(v->is_array || v->count == 1, "more than one value without an array");
    must(!v->strings == (v->type != TD_GGUF_STRING), "strings that are none");
    for (uint64_t i = 0; i < v->count; i++)
        sum += v->strings ? sum_of(v->strings[i].bytes, v->strings[i].length)
                          : (uint64_t)(td_gguf_number(v, i) != 0);
    sum += td_gguf_u32(file, v->key, &integer, NULL, 0) == TANDEM_OK && integer;
    sum += td_gguf_f32(file, v->key, &real, NULL, 0) == TANDEM_OK && real != 0;
    sum += td_gguf_bool(file, v->key, &boolean, NULL, 0) == TANDEM_OK && boolean;
    sum += td_gguf_text(file, v->key, &text, NULL, 0) == TANDEM_OK && text.length;
    return sum;
}

static uint64_t check_tensor(const td_gguf *file, const td_gguf_tensor *t)
{
    const td_gguf_tensor *found = NULL;
    const tandem_status status = td_gguf_weights(file, t->name, t->shape, &found, NULL, 0);

    must(td_gguf_find_tensor(file, t->name) == t, "a tensor that is not found");
    must(status == (t->dtype ? TANDEM_OK : TANDEM_ERROR_UNSUPPORTED), "weights that are refused");
    must(t->offset % 8 == 0 && file->alignment % 8 == 0, "a tensor that is not aligned");
    return sum_of(t->data, t->bytes);
}

/* Whatever its metadata say it is refused with a reason, or its weights can be read. */
static uint64_t check_model(const td_gguf *file)
{
    char why[400] = "", bytes[64] = "";
    uint64_t sum = 0;
    td_llama model;

    for (uint32_t i = 0; i < 4 * (TANDEM_CACHE_F32 + 1); i++) { /* each format, in a pool, for a GPU */
        const td_llama_desc desc = {
            .slots = 1, .cache = i / 4, .pages = i % 2 ? 2 : 0, .tiles = i / 2 % 2};
        if (td_llama_open(file, &desc, &model, why, sizeof why) != TANDEM_OK) {
            must(*why && !model.graph, "a model's refusal without its reason");
            continue;
        }
        for (uint32_t w = 0; w < model.weight_count; w++) {
            td_llama_read_weight(&model, w, 0, sizeof bytes, bytes);
            sum += sum_of(bytes, sizeof bytes);
        }
        td_llama_close(&model);
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static volatile uint64_t used;
    char why[400] = "";
    td_gguf file;

    if (size < HOW_BYTES)
        return 0;
    data += HOW_BYTES, size -= HOW_BYTES;
    uint8_t *exact = malloc(size ? size : 1);
    must(exact != NULL, "no memory");
    memcpy(exact, data, size);
    if (td_gguf_read(exact, size, &file, why, sizeof why) == TANDEM_OK) {
        for (uint32_t i = 0; i < file.value_count; i++)
            used += check_value(&file, &file.values[i]);
        for (uint32_t i = 0; i < file.tensor_count; i++)
            used += check_tensor(&file, &file.tensors[i]);
        used += check_model(&file);
    } else {
        must(*why && !file.bytes, "a refusal without its reason");
    }
    td_gguf_close(&file);
    free(exact);
    return 0;
}

#ifndef TANDEM_LIBFUZZER
/* A value of each width, strings, tensors of some types. */
static bool make_corpus(const char *folder)
{
    static const uint32_t types[] = {TD_GGUF_U8, TD_GGUF_U16, TD_GGUF_F32, TD_GGUF_F64};
    static const struct {
        const char *name;
        uint64_t columns, rows;
        uint32_t type;
    } tensors[] = {{"f32", 4, 2, 0}, {"q4_0", 32, 1, 2}, {"q8_0", 64, 2, 8}, {"bf16", 5, 1, 30}};
    gguf_writer w = {0};
    uint64_t offset = 0;

    gguf_put(&w, "\0\0", HOW_BYTES);
    gguf_put_header(&w, 4, 7);
    for (uint32_t i = 0; i < 4; i++) {
        gguf_put_key(&w, (char[]){(char)('a' + i), 0}, types[i]);
        gguf_put(&w, "\1\0\0\0\0\0\0", (size_t)(i ? 2 << (i - 1) : 1));
    }
    gguf_put_key(&w, "text", TD_GGUF_STRING), gguf_put_string(&w, "one");
    gguf_put_array(&w, "texts", TD_GGUF_STRING, 2);
    gguf_put_string(&w, "two"), gguf_put_string(&w, "");
    gguf_put_array(&w, "ids", TD_GGUF_I32, 3);
    for (uint32_t i = 0; i < 3; i++)
        gguf_put_u32(&w, i);
    for (int i = 0; i < 4; i++, offset += 160)
        gguf_put_tensor(&w, tensors[i].name, tensors[i].columns, tensors[i].rows, tensors[i].type,
                        offset);
    while ((w.size - HOW_BYTES) % 32)
        gguf_put(&w, "", 1);
    for (uint64_t i = 0; i < offset; i++)
        gguf_put(&w, "\x55", 1);
    const bool ok = fuzz_write(folder, "values_and_tensors", w.bytes, w.size) &&
                    fuzz_write(folder, "empty", "\0\0GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
                               26);
    gguf_free(&w);
    return ok;
}

int main(int argc, char **argv)
{
    return fuzz_main(argc, argv, "fuzz_gguf", 200000, make_corpus);
}
#endif
