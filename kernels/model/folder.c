/* Folders of language models: their weights. See folder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/model/folder.h"

#include <inttypes.h>
#include <stdlib.h>

#include "interop/os/file.h"
#include "interop/os/memory.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/folder_maker.h"
#include "kernels/model/safetensors.h"

enum { MOST_FILES = 1000, NAME_BYTES = 96 };

#define FAIL(status, ...) td_folder_fail(f, status, __VA_ARGS__)

/* --- Tensors --- */

/* Behind "model.layers.N." */
static const struct {
    const char *from, *to, *with_after_norms;
} names[] = {{"self_attn.q_proj", "attn_q", NULL},
             {"self_attn.k_proj", "attn_k", NULL},
             {"self_attn.v_proj", "attn_v", NULL},
             {"self_attn.o_proj", "attn_output", NULL},
             {"self_attn.q_norm", "attn_q_norm", NULL},
             {"self_attn.k_norm", "attn_k_norm", NULL},
             {"mlp.gate_proj", "ffn_gate", NULL},
             {"mlp.up_proj", "ffn_up", NULL},
             {"mlp.down_proj", "ffn_down", NULL},
             {"input_layernorm", "attn_norm", NULL},
             {"post_attention_layernorm", "ffn_norm", "post_attention_norm"},
             {"pre_feedforward_layernorm", "ffn_norm", NULL},
             {"post_feedforward_layernorm", "post_ffw_norm", NULL}};
enum { NAMES = sizeof names / sizeof *names };

static const char *behind(const char *name, const char *prefix)
{
    const size_t length = strlen(prefix);

    return strncmp(name, prefix, length) == 0 ? name + length : NULL;
}

/* What a layer calls it, ".weight" or ".bias" included; else as it is, which nobody knows. */
static void name_in_layer(const td_folder *f, const char *name, char to[NAME_BYTES])
{
    const bool after_norms =
        !strcmp(f->architecture, "gemma2") || !strcmp(f->architecture, "gemma3");
    const char *dot = strchr(name, '.'), *rest;

    for (int i = 0; dot && i < NAMES; i++) {
        rest = behind(dot + 1, names[i].from);
        if (!rest || *rest != '.')
            continue;
        td_text(to, NAME_BYTES, "blk.%.*s.%s%s", (int)(dot - name), name,
                after_norms && names[i].with_after_norms ? names[i].with_after_norms : names[i].to,
                rest);
        return;
    }
    td_text(to, NAME_BYTES, "model.layers.%s", name);
}

/* As GGUF files name it; false: it is not the language model's, or not needed. */
static bool translate(const td_folder *f, const char *name, bool tied, char to[NAME_BYTES])
{
    static const char *const others[] = {"vision_tower.", "multi_modal_projector.",
                                         "model.vision_tower.", "model.multi_modal_projector."};
    static const struct {
        const char *from, *to;
    } whole[] = {{"model.embed_tokens.weight", "token_embd.weight"},
                 {"model.norm.weight", "output_norm.weight"},
                 {"lm_head.weight", "output.weight"}};
    char of_text[NAME_BYTES + 16];
    const char *rest = behind(name, "language_model."),
               *inner = behind(name, "model.language_model.");

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (behind(name, others[i]))
            return false;
    if (inner) {
        td_text(of_text, sizeof of_text, "model.%s", inner);
        rest = of_text;
    }
    name = rest ? rest : name;
    if (strstr(name, "rotary_emb.inv_freq") || (tied && !strcmp(name, "lm_head.weight")))
        return false;
    td_text(to, NAME_BYTES, "%s", name);
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i].from))
            td_text(to, NAME_BYTES, "%s", whole[i].to);
    if ((rest = behind(name, "model.layers.")))
        name_in_layer(f, rest, to);
    return true;
}

/* Gemma's norms multiply by 1 more than their weights, which GGUF files have in these. */
static bool add_one(td_folder *f, td_gguf_tensor *t)
{
    const uint64_t count = t->shape[0];
    float *copy = td_folder_take(f, count, sizeof *copy);

    if (!copy)
        return false;
    td_to_floats(copy, t->data, t->dtype, 0, (uint32_t)count);
    for (uint64_t i = 0; i < count; i++)
        copy[i] += 1;
    t->data = copy;
    t->dtype = TANDEM_DTYPE_F32;
    t->type_name = "F32";
    t->bytes = count * sizeof *copy;
    return true;
}

/* Kernels' helpers read elements where these are aligned. */
static bool align(td_folder *f, td_gguf_tensor *t, uint32_t element_bytes)
{
    if ((uintptr_t)t->data % element_bytes == 0)
        return true;
    void *copy = td_folder_take(f, t->bytes, 1);
    if (!copy)
        return false;
    memcpy(copy, t->data, t->bytes);
    t->data = copy;
    return true;
}

static bool take_tensor(td_folder *f, const char *file, const td_safetensor *from,
                        const uint8_t *bytes, bool tied)
{
    td_gguf_tensor t = {.type_name = from->dtype_name,
                        .dtype = from->dtype,
                        .dimensions = from->dimensions,
                        .shape = {1, 1, 1, 1},
                        .data = bytes + from->offset,
                        .offset = from->offset,
                        .described = from->offset,
                        .bytes = from->bytes};
    char name[NAME_BYTES];

    if (!translate(f, from->name, tied, name))
        return true;
    if (from->dimensions < 1 || from->dimensions > TD_GGUF_DIMENSIONS || !from->bytes)
        return FAIL(TANDEM_ERROR_PROTOCOL,
                    "%s: tensor \"" TD_NAME "\" has %" PRIu32 " dimensions, or no elements", file,
                    TD_NAMED(from->name), from->dimensions);
    for (uint32_t d = 0; d < from->dimensions; d++)
        t.shape[d] = from->shape[from->dimensions - 1 - d];
    t.name = td_folder_text(f, "%s", name);
    if (from->dtype != TANDEM_DTYPE_F32 && from->dtype != TANDEM_DTYPE_F16 &&
        from->dtype != TANDEM_DTYPE_BF16)
        t.dtype = TANDEM_DTYPE_NONE;
    const size_t length = strlen(name);
    const bool is_norm = length > 11 && !strcmp(name + length - 11, "norm.weight");
    if (!align(f, &t, from->element_bytes))
        return false;
    if (is_norm && !strncmp(f->architecture, "gemma", 5) && t.dtype && t.shape[0] < 1u << 30 &&
        t.shape[1] == 1 && !add_one(f, &t))
        return false;
    return td_folder_add_tensor(f, t);
}

static bool read_file(td_folder *f, const char *name, bool tied)
{
    char path[TD_FOLDER_PATH_BYTES], why[300] = "";
    td_gguf_map map = {0};
    td_safetensors file;

    if (!td_folder_path(f, name, path))
        return false;
    tandem_status status = td_safetensors_open(path, &file, why, sizeof why);
    if (status != TANDEM_OK)
        return FAIL(status, "%s: %s", name, why);
    status = td_file_map(path, &map.at, &map.bytes, why, sizeof why);
    if (status == TANDEM_OK && map.bytes != file.file_bytes)
        status = td_fail(why, sizeof why, TANDEM_ERROR_IO, "it has changed meanwhile");
    td_gguf_map *maps = td_arena_grow(&f->out->arena, f->out->maps, f->out->map_count, sizeof *maps,
                                      _Alignof(td_gguf_map));
    if (maps && map.at) {
        f->out->maps = maps;
        maps[f->out->map_count++] = map;
    } else if (map.at) {
        td_unmap(map.at, map.bytes);
        status = td_fail(why, sizeof why, TANDEM_ERROR_NOMEM, "no memory for its place");
    }
    if (status != TANDEM_OK)
        FAIL(status, "%s: %s", name, why);
    for (uint32_t i = 0; i < file.count && f->status == TANDEM_OK; i++)
        take_tensor(f, name, &file.tensors[i], map.at, tied);
    td_safetensors_close(&file);
    return f->status == TANDEM_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Each file that the index names, once. */
static bool read_files(td_folder *f, const td_json *index, bool tied)
{
    const uint32_t map = td_json_member(index, 0, "weight_map");
    const char **files;
    uint32_t count = 0;

    if (!map || index->values[map].type != TD_JSON_OBJECT || !index->values[map].count)
        return FAIL(TANDEM_ERROR_PROTOCOL,
                    "model.safetensors.index.json: it has no \"weight_map\" of files");
    files = calloc(index->values[map].count, sizeof *files);
    if (!files)
        return FAIL(TANDEM_ERROR_NOMEM, "no memory for the names of files");
    TD_JSON_EACH (index, map, i)
    {
        const td_json_value *v = &index->values[i];

        if (v->type != TD_JSON_STRING || !*v->text || *v->text == '.' || strchr(v->text, '/'))
            FAIL(TANDEM_ERROR_PROTOCOL,
                 "model.safetensors.index.json: \"" TD_NAME "\" is in no file of the folder",
                 TD_NAMED(v->name));
        else
            files[count++] = v->text;
    }
    qsort(files, count, sizeof *files, compare_texts);
    for (uint32_t i = 0, read = 0; i < count && f->status == TANDEM_OK; i++) {
        if (i && !strcmp(files[i - 1], files[i]))
            continue;
        if (++read > MOST_FILES)
            FAIL(TANDEM_ERROR_PROTOCOL, "model.safetensors.index.json: more than %d files",
                 MOST_FILES);
        else
            read_file(f, files[i], tied);
    }
    free(files);
    return f->status == TANDEM_OK;
}

static bool read_weights(td_folder *f)
{
    const uint32_t tie = td_json_member(&f->config, f->root, "tie_word_embeddings");
    const bool gemma = !strncmp(f->architecture, "gemma", 5),
               tied = tie ? f->config.values[tie].type == TD_JSON_BOOL &&
                                !strcmp(f->config.values[tie].text, "true")
                          : gemma;
    td_json index;

    if (!td_folder_json(f, "model.safetensors.index.json", &index))
        return f->status == TANDEM_OK && read_file(f, "model.safetensors", tied);
    const bool read = read_files(f, &index, tied);
    td_json_free(&index);
    return read;
}

/* --- The whole --- */

tandem_status td_folder_open(const char *path, td_gguf *out, char *why, size_t why_bytes)
{
    td_folder it = {.out = out, .path = path, .why = why, .why_bytes = why_bytes}, *const f = &it;

    *out = (td_gguf){.alignment = 1};
    if (td_folder_read_config(f) && read_weights(f))
        td_folder_read_tokenizer(f);
    td_json_free(&f->config);
    const char *twice = f->status == TANDEM_OK ? td_gguf_sort(out) : NULL;
    if (twice)
        FAIL(TANDEM_ERROR_PROTOCOL, "\"" TD_NAME "\" is there twice", TD_NAMED(twice));
    if (f->status != TANDEM_OK)
        td_gguf_close(out);
    return f->status;
}

tandem_status td_checkpoint_open(const char *path, td_gguf *out, char *why, size_t why_bytes)
{
    return td_folder_is(path) ? td_folder_open(path, out, why, why_bytes)
                              : td_gguf_open(path, out, why, why_bytes);
}
