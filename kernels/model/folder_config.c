/* config.json as the metadata of a GGUF file. See folder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/graph.h"
#include "kernels/model/folder_maker.h"

enum { MOST_PAIRS = 1 << 12, MOST_LAYERS = 1 << 16 };

static const struct {
    const char *model_type, *architecture, *activation;
} kinds[] = {{"llama", "llama", "silu"},
             {"mistral", "llama", "silu"},
             {"qwen2", "qwen2", "silu"},
             {"qwen3", "qwen3", "silu"},
             {"gemma", "gemma", "gelu_pytorch_tanh"},
             {"gemma2", "gemma2", "gelu_pytorch_tanh"},
             {"gemma3_text", "gemma3", "gelu_pytorch_tanh"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

#define FAIL(status, ...) td_folder_fail(f, status, __VA_ARGS__)

/* --- What is in it --- */

/* A member that is there and not null; else 0. */
static uint32_t find(const td_folder *f, uint32_t of, const char *name)
{
    const uint32_t at = of == UINT32_MAX ? 0 : td_json_member(&f->config, of, name);

    return at && f->config.values[at].type != TD_JSON_NULL ? at : 0;
}

static const char *key_of(td_folder *f, const char *name)
{
    return td_folder_text(f, "%s.%s", f->architecture, name);
}

static bool number_at(td_folder *f, uint32_t at, float *to)
{
    const td_json_value *v = &f->config.values[at];

    if (v->type != TD_JSON_NUMBER || !td_graph_decimal(v->text, to))
        return FAIL(TANDEM_ERROR_PROTOCOL, "config.json: \"" TD_NAME "\" is no number",
                    TD_NAMED(v->name));
    return true;
}

static bool count_at(td_folder *f, uint32_t at, uint32_t *to)
{
    const td_json_value *v = &f->config.values[at];
    const bool digits = v->type == TD_JSON_NUMBER && !v->text[strspn(v->text, "0123456789")];
    const unsigned long long x = digits ? strtoull(v->text, NULL, 10) : 0;

    if (!digits || x > UINT32_MAX)
        return FAIL(TANDEM_ERROR_PROTOCOL,
                    "config.json: \"" TD_NAME "\" is no whole number of 32 bits",
                    TD_NAMED(v->name));
    *to = (uint32_t)x;
    return true;
}

/* Leaves *to as it is where it is not there. */
static bool read_number(td_folder *f, uint32_t of, const char *name, float *to)
{
    const uint32_t at = find(f, of, name);

    return !at || number_at(f, at, to);
}

static bool read_count(td_folder *f, uint32_t of, const char *name, uint32_t *to)
{
    const uint32_t at = find(f, of, name);

    return !at || count_at(f, at, to);
}

static const char *text_of(const td_folder *f, uint32_t of, const char *name)
{
    const uint32_t at = find(f, of, name);

    return at && f->config.values[at].type == TD_JSON_STRING ? f->config.values[at].text : NULL;
}

static bool is_true(const td_folder *f, const char *name, bool otherwise)
{
    const uint32_t at = find(f, f->root, name);

    return at ? f->config.values[at].type == TD_JSON_BOOL &&
                    !strcmp(f->config.values[at].text, "true")
              : otherwise;
}

static bool copy_count(td_folder *f, const char *from, const char *key)
{
    const uint32_t at = find(f, f->root, from);
    uint32_t count;

    return !at || (count_at(f, at, &count) && td_folder_put_u32(f, key_of(f, key), count));
}

static bool copy_number(td_folder *f, uint32_t of, const char *from, const char *key)
{
    const uint32_t at = find(f, of, from);
    float number;

    return !at || (number_at(f, at, &number) && td_folder_put_f32(f, key_of(f, key), number));
}

/* --- Rotations --- */

/* Frequencies whose waves are longer than the original context are divided by the factor, those
 * that are much shorter are not: what GGUF files have as a tensor. */
static bool put_llama3(td_folder *f, uint32_t rope, float base, uint32_t head_dim)
{
    float factor = 0, low = 0, high = 0, original = 0, divisors[MOST_PAIRS];
    const uint32_t pairs = head_dim / 2;

    if (!read_number(f, rope, "factor", &factor) ||
        !read_number(f, rope, "low_freq_factor", &low) ||
        !read_number(f, rope, "high_freq_factor", &high) ||
        !read_number(f, rope, "original_max_position_embeddings", &original))
        return false;
    if (!(factor > 0 && low > 0 && high > low && original > 0) || !pairs || pairs > MOST_PAIRS)
        return FAIL(TANDEM_ERROR_PROTOCOL,
                    "config.json: rotations are scaled as llama3's with factor %g, low_freq_factor "
                    "%g, high_freq_factor %g, original_max_position_embeddings %g; all must be "
                    "above 0, and the third above the second",
                    (double)factor, (double)low, (double)high, (double)original);
    for (uint32_t i = 0; i < pairs; i++) {
        const double turns =
            (double)original * pow((double)base, -(double)i / pairs) / (2 * 3.14159265358979323846);
        const double share = fmin(fmax((turns - (double)low) / ((double)high - (double)low), 0), 1);

        divisors[i] = (float)(1 / ((1 - share) / (double)factor + share));
    }
    return td_folder_add_vector(f, "rope_freqs.weight", divisors, pairs);
}

static bool put_yarn(td_folder *f, uint32_t rope, float factor)
{
    static const char *const unknown[] = {"mscale", "mscale_all_dim", "truncate"};
    uint32_t original = 0;
    float attention = 0;

    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (find(f, rope, unknown[i]))
            return FAIL(TANDEM_ERROR_UNSUPPORTED,
                        "config.json: yarn with \"%s\", which nothing here computes", unknown[i]);
    if (!read_count(f, f->root, "max_position_embeddings", &original) ||
        !read_count(f, rope, "original_max_position_embeddings", &original) ||
        !read_number(f, rope, "attention_factor", &attention))
        return false;
    if (attention > 0 && factor > 0)
        td_folder_put_f32(f, key_of(f, "rope.scaling.attn_factor"),
                          attention / (factor > 1 ? 1 + 0.1f * logf(factor) : 1));
    return td_folder_put_u32(f, key_of(f, "rope.scaling.original_context_length"), original) &&
           copy_number(f, rope, "beta_fast", "rope.scaling.yarn_beta_fast") &&
           copy_number(f, rope, "beta_slow", "rope.scaling.yarn_beta_slow");
}

/* Another kind's name is passed on, and refused by who computes. */
static bool put_scaling(td_folder *f, uint32_t rope, float base, uint32_t head_dim)
{
    const char *kind = text_of(f, rope, "rope_type");
    float factor = 1;

    kind = kind ? kind : text_of(f, rope, "type");
    if (!kind || !strcmp(kind, "default"))
        return true;
    if (!strcmp(kind, "llama3"))
        return put_llama3(f, rope, base, head_dim);
    if (!td_folder_put_text(f, key_of(f, "rope.scaling.type"), kind, strlen(kind)) ||
        !read_number(f, rope, "factor", &factor) ||
        !td_folder_put_f32(f, key_of(f, "rope.scaling.factor"), factor))
        return false;
    return strcmp(kind, "yarn") != 0 || put_yarn(f, rope, factor);
}

/* rope_parameters, which Gemma 3 has for each kind of layer, or as it was before: rope_theta and
 * rope_scaling. */
static bool put_rotations(td_folder *f, uint32_t head_dim)
{
    const uint32_t now = find(f, f->root, "rope_parameters"),
                   scaling = find(f, f->root, "rope_scaling");
    uint32_t all = now ? now : scaling, window = 0;
    float base = 10000, local = 0, part = 1;

    if (find(f, now, "full_attention")) {
        all = find(f, now, "full_attention");
        window = find(f, now, "sliding_attention");
    }
    all = all ? all : UINT32_MAX;
    window = window ? window : UINT32_MAX;
    if (!read_number(f, f->root, "rope_theta", &base) ||
        !read_number(f, all, "rope_theta", &base) ||
        !read_number(f, f->root, "rope_local_base_freq", &local) ||
        !read_number(f, window, "rope_theta", &local) ||
        !read_number(f, f->root, "partial_rotary_factor", &part) ||
        !read_number(f, all, "partial_rotary_factor", &part))
        return false;
    if (!(part > 0 && part <= 1))
        return FAIL(TANDEM_ERROR_PROTOCOL,
                    "config.json: partial_rotary_factor is %g; it must be above 0, and 1 at most",
                    (double)part);
    const uint32_t rotated = (uint32_t)(part * (float)head_dim);
    if (rotated < head_dim && !td_folder_put_u32(f, key_of(f, "rope.dimension_count"), rotated))
        return false;
    return td_folder_put_f32(f, key_of(f, "rope.freq_base"), base) &&
           (local <= 0 || td_folder_put_f32(f, key_of(f, "rope.freq_base_swa"), local)) &&
           put_scaling(f, all, base, rotated);
}

/* --- Windows --- */

/* Layers without a window have numbers, from 1 on, that are multiples of the first one's. */
static bool put_pattern(td_folder *f, uint32_t types)
{
    const td_json *json = &f->config;
    uint32_t layer = 0, pattern = 0;

    TD_JSON_EACH (json, types, i)
    {
        const td_json_value *v = &json->values[i];
        const bool full = v->type == TD_JSON_STRING && !strcmp(v->text, "full_attention");

        layer++;
        if (v->type != TD_JSON_STRING || (!full && strcmp(v->text, "sliding_attention") != 0))
            return FAIL(TANDEM_ERROR_UNSUPPORTED,
                        "config.json: layer_types[%" PRIu32
                        "] must be full_attention or sliding_attention",
                        layer - 1);
        pattern = full && !pattern ? layer : pattern;
        if (full != (pattern && layer % pattern == 0))
            return FAIL(TANDEM_ERROR_UNSUPPORTED,
                        "config.json: layer_types[%" PRIu32
                        "] breaks the pattern of those before it",
                        layer - 1);
    }
    return td_folder_put_u32(f, key_of(f, "attention.sliding_window_pattern"),
                             pattern ? pattern : MOST_LAYERS);
}

static bool put_windows(td_folder *f)
{
    const bool is_qwen = !strncmp(f->architecture, "qwen", strlen("qwen"));
    const uint32_t types = find(f, f->root, "layer_types");
    uint32_t window = 0, from = 0;

    if (!is_true(f, "use_sliding_window", !is_qwen))
        return true;
    if (!read_count(f, f->root, "sliding_window", &window) ||
        !td_folder_put_u32(f, key_of(f, "attention.sliding_window"), window))
        return false;
    if (types && f->config.values[types].type == TD_JSON_ARRAY)
        return put_pattern(f, types);
    if (!read_count(f, f->root, "max_window_layers", &from))
        return false;
    if (is_qwen && from)
        return FAIL(TANDEM_ERROR_UNSUPPORTED,
                    "config.json: max_window_layers is %" PRIu32 ", and there are no layer_types",
                    from);
    return copy_count(f, "sliding_window_pattern", "attention.sliding_window_pattern");
}

/* --- All --- */

/* The language model's part: of models that see, too, it is within another object. */
static bool find_kind(td_folder *f)
{
    const uint32_t text = find(f, 0, "text_config");
    char known[200] = "";

    f->root = text && f->config.values[text].type == TD_JSON_OBJECT ? text : 0;
    const char *type = text_of(f, f->root, "model_type");
    for (int i = 0; i < KINDS; i++) {
        if (type && !strcmp(type, kinds[i].model_type)) {
            const char *has = text_of(f, f->root, "hidden_activation");

            f->architecture = kinds[i].architecture;
            has = has ? has : text_of(f, f->root, "hidden_act");
            if (has && strcmp(has, kinds[i].activation) != 0 &&
                !(!strncmp(type, "gemma", 5) &&
                  !strcmp(has, "gelu"))) /* which means the same there */
                return FAIL(TANDEM_ERROR_UNSUPPORTED,
                            "config.json: hidden_act is \"" TD_NAME "\"; it must be %s",
                            TD_NAMED(has), kinds[i].activation);
            return true;
        }
        const size_t used = strlen(known);
        td_text(known + used, sizeof known - used, "%s%s", i ? ", " : "", kinds[i].model_type);
    }
    return FAIL(TANDEM_ERROR_UNSUPPORTED, "config.json: model_type is \"" TD_NAME "\", none of %s",
                TD_NAMED(type ? type : ""), known);
}

static bool put_sizes(td_folder *f)
{
    static const struct {
        const char *from, *key;
    } counts[] = {{"num_hidden_layers", "block_count"},
                  {"hidden_size", "embedding_length"},
                  {"intermediate_size", "feed_forward_length"},
                  {"num_attention_heads", "attention.head_count"},
                  {"num_key_value_heads", "attention.head_count_kv"},
                  {"max_position_embeddings", "context_length"},
                  {"head_dim", "attention.key_length"},
                  {"head_dim", "attention.value_length"}};
    static const struct {
        const char *from, *key;
    } numbers[] = {{"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
                   {"attn_logit_softcapping", "attn_logit_softcapping"},
                   {"final_logit_softcapping", "final_logit_softcapping"}};
    float scalar = 0;

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (!copy_count(f, counts[i].from, counts[i].key))
            return false;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!copy_number(f, f->root, numbers[i].from, numbers[i].key))
            return false;
    if (!strcmp(f->architecture,
                "gemma2")) /* what is not there has another meaning in its GGUF files */
        for (size_t i = 1; i < sizeof numbers / sizeof *numbers; i++)
            if (!find(f, f->root, numbers[i].from) &&
                !td_folder_put_f32(f, key_of(f, numbers[i].key), 0))
                return false;
    if (!read_number(f, f->root, "query_pre_attn_scalar", &scalar))
        return false;
    return scalar <= 0 || td_folder_put_f32(f, key_of(f, "attention.scale"), 1 / sqrtf(scalar));
}

bool td_folder_read_config(td_folder *f)
{
    uint32_t head_dim = 0, dim = 0, heads = 0;

    if (!td_folder_json(f, "config.json", &f->config))
        return f->status == TANDEM_OK ? FAIL(TANDEM_ERROR_IO, "config.json: there is no such file")
                                      : false;
    if (f->config.values->type != TD_JSON_OBJECT)
        return FAIL(TANDEM_ERROR_PROTOCOL, "config.json: it is no object");
    if (!find_kind(f))
        return false;
    if (find(f, 0, "quantization_config") || find(f, f->root, "quantization_config"))
        return FAIL(TANDEM_ERROR_UNSUPPORTED,
                    "config.json: it has a quantization_config; weights must be F32, F16 or BF16, "
                    "or in a GGUF file");
    if (!td_folder_put_text(f, "general.architecture", f->architecture, strlen(f->architecture)) ||
        !td_folder_put_bool(f, "tandem.rope.halves", true) || !put_sizes(f) ||
        !read_count(f, f->root, "hidden_size", &dim) ||
        !read_count(f, f->root, "num_attention_heads", &heads) ||
        !read_count(f, f->root, "head_dim", &head_dim))
        return false;
    if (!head_dim && heads)
        head_dim = dim / heads;
    return put_rotations(f, head_dim) && put_windows(f);
}
