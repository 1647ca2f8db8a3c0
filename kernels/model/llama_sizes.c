/* What the metadata of a language model say: see llama.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>

#include "kernels/model/llama_maker.h"

enum { MOST_LAYERS = 256, NAME_BYTES = 64 };

#define FAIL(...) TD_MAKER_FAIL(m, __VA_ARGS__)

typedef td_maker_text text;

/* What an architecture is apart from its sizes. */
typedef struct architecture {
    const char *name;
    td_llama_sizes habits;
    uint32_t window_unless_said;
    bool scales_embedding; /* by the root of the dimension */
} architecture;

#define GEMMA .activation = TANDEM_ACTIVATION_GELU_TANH, .halves = true
static const architecture architectures[] = {
    {.name = "llama", .habits = {.activation = TANDEM_ACTIVATION_SILU}},
    {.name = "qwen2", .habits = {.activation = TANDEM_ACTIVATION_SILU, .halves = true}},
    {.name = "qwen3",
     .habits = {.activation = TANDEM_ACTIVATION_SILU, .halves = true, .head_norms = true}},
    {.name = "gemma", .habits = {GEMMA}, .scales_embedding = true},
    {.name = "gemma2",
     .habits = {GEMMA, .after_norms = true, .pattern = 2, .score_cap = 50, .logit_cap = 30},
     .window_unless_said = 4096,
     .scales_embedding = true},
    {.name = "gemma3",
     .habits = {GEMMA, .after_norms = true, .head_norms = true, .pattern = 6},
     .scales_embedding = true},
};
enum { ARCHITECTURES = sizeof architectures / sizeof *architectures };

static text key_of(const td_maker *m, const char *name)
{
    return td_maker_format("%s.%s", m->model->sizes.architecture, name);
}

static bool has(const td_maker *m, const char *name)
{
    return td_gguf_find(m->file, key_of(m, name).bytes);
}

/* A whole number up to `most`; `otherwise` where the file does not say it, unless that is NONE. */
#define NONE UINT32_MAX
static uint32_t count_of(td_maker *m, const char *name, uint32_t otherwise, uint32_t least,
                         uint32_t most)
{
    const text key = key_of(m, name);
    uint32_t count = otherwise;
    char why[TD_WHY_OF_MAKER];

    if (otherwise == NONE || has(m, name)) {
        const tandem_status status = td_gguf_u32(m->file, key.bytes, &count, why, sizeof why);
        if (status != TANDEM_OK)
            FAIL(status, "%s", why);
    }
    if (!td_maker_failed(m) && (count < least || count > most))
        FAIL(TANDEM_ERROR_PROTOCOL, "%s is %" PRIu32 "; it must be %" PRIu32 " to %" PRIu32,
             key.bytes, count, least, most);
    return count;
}

/* A size of 1 to `most`. */
static uint32_t size_of(td_maker *m, const char *name, uint32_t otherwise, uint32_t most)
{
    return count_of(m, name, otherwise, 1, most);
}

/* A number above 0, `most` at most; `otherwise` where the file does not say it, unless that is 0.
 */
static float number_of(td_maker *m, const char *name, float otherwise, float most)
{
    const text key = key_of(m, name);
    float number = otherwise;
    char why[TD_WHY_OF_MAKER];

    if (otherwise <= 0 || has(m, name)) {
        const tandem_status status = td_gguf_f32(m->file, key.bytes, &number, why, sizeof why);
        if (status != TANDEM_OK)
            FAIL(status, "%s", why);
    }
    if (!td_maker_failed(m) && !(number > 0 && number <= most))
        FAIL(TANDEM_ERROR_PROTOCOL, "%s is %g; it must be above 0, and %g at most", key.bytes,
             (double)number, (double)most);
    return number;
}

/* The same where it may be missing: 0 then. Some files say so by 0, too. */
static float number_if_said(td_maker *m, const char *name, float otherwise, float most)
{
    float number = 0;

    if (!has(m, name))
        return otherwise;
    if (td_gguf_f32(m->file, key_of(m, name).bytes, &number, NULL, 0) == TANDEM_OK && number == 0)
        return 0;
    return number_of(m, name, 0, most);
}

/* "llama, qwen2 or qwen3" */
static void refuse_architecture(td_maker *m, td_gguf_string is)
{
    char known[TD_TEXT_OF_MAKER] = "";

    for (int i = 0; i < ARCHITECTURES; i++) {
        const size_t used = strlen(known);

        td_text(known + used, sizeof known - used, "%s%s",
                i == 0                  ? ""
                : i + 1 < ARCHITECTURES ? ", "
                                        : " or ",
                architectures[i].name);
    }
    FAIL(TANDEM_ERROR_UNSUPPORTED, "general.architecture is \"%.*s\"; it must be %s",
         (int)(is.length < NAME_BYTES ? is.length : NAME_BYTES), is.bytes, known);
}

static const architecture *find_architecture(td_maker *m)
{
    td_gguf_string is;
    char why[TD_WHY_OF_MAKER];
    const tandem_status status =
        td_gguf_text(m->file, "general.architecture", &is, why, sizeof why);

    if (status != TANDEM_OK) {
        FAIL(status, "%s", why);
        return NULL;
    }
    for (int i = 0; i < ARCHITECTURES; i++)
        if (td_gguf_string_is(is, architectures[i].name))
            return &architectures[i];
    refuse_architecture(m, is);
    return NULL;
}

/* --- How positions turn channels --- */

static void read_yarn(td_maker *m, td_llama_rotation *r)
{
    const float more = r->factor > 1 ? 1 + 0.1f * logf(r->factor) : 1;

    r->original =
        size_of(m, "rope.scaling.original_context_length", m->model->sizes.context, 1 << 24);
    r->fast = number_of(m, "rope.scaling.yarn_beta_fast", 32, 1e6f);
    r->slow = number_of(m, "rope.scaling.yarn_beta_slow", 1, 1e6f);
    r->magnitude = more * number_of(m, "rope.scaling.attn_factor", 1, 1e3f) *
                   number_of(m, "rope.scaling.yarn_attn_factor", 1, 1e3f);
    if (has(m, "rope.scaling.yarn_log_multiplier"))
        FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is there, which nothing here computes",
             key_of(m, "rope.scaling.yarn_log_multiplier").bytes);
}

/* Llama 3.1 and later have a tensor of divisors, and no key. */
static void read_scaling(td_maker *m, td_llama_rotation *r)
{
    const td_llama_sizes *s = &m->model->sizes;
    const text key = key_of(m, "rope.scaling.type");
    td_gguf_string kind = {"none", strlen("none")};
    char why[TD_WHY_OF_MAKER];

    if (td_gguf_find_tensor(m->file, "rope_freqs.weight"))
        r->divisors = td_maker_find(m, "rope_freqs.weight", 1, s->rotated_channels / 2);
    if (td_gguf_find(m->file, key.bytes)) {
        const tandem_status status = td_gguf_text(m->file, key.bytes, &kind, why, sizeof why);
        if (status != TANDEM_OK)
            FAIL(status, "%s", why);
    }
    if (td_maker_failed(m) || td_gguf_string_is(kind, "none"))
        return;
    if (!td_gguf_string_is(kind, "linear") && !td_gguf_string_is(kind, "yarn")) {
        FAIL(TANDEM_ERROR_UNSUPPORTED,
             "%s is \"%.*s\"; it must be none, linear or yarn, or Llama 3's, which is in "
             "rope_freqs.weight",
             key.bytes, (int)(kind.length < NAME_BYTES ? kind.length : NAME_BYTES), kind.bytes);
        return;
    }
    r->factor = number_of(m, "rope.scaling.factor", 1, 1e6f);
    if (td_gguf_string_is(kind, "yarn"))
        read_yarn(m, r);
}

/* Gemma 3 has one base for layers with a window, and another, with what scales it, for the others.
 */
static void read_rotations(td_maker *m)
{
    td_llama_sizes *s = &m->model->sizes;
    const bool apart = !strcmp(s->architecture, "gemma3") || has(m, "rope.freq_base_swa");
    td_llama_rotation *const all = &s->rotations[TD_LLAMA_ALL], *const window =
                                                                    &s->rotations[TD_LLAMA_WINDOW];

    *all = (td_llama_rotation){
        .base = number_of(m, "rope.freq_base", 10000, 1e12f), .factor = 1, .magnitude = 1};
    *window = *all;
    if (!td_maker_failed(m))
        read_scaling(m, all);
    if (apart)
        window->base = number_of(m, "rope.freq_base_swa", 10000, 1e12f);
    else
        *window = *all;
}

/* --- All --- */

static void read_windows(td_maker *m, uint32_t unless_said)
{
    td_llama_sizes *s = &m->model->sizes;

    s->window = count_of(m, "attention.sliding_window", unless_said, 0, 1 << 30);
    if (!has(m, "attention.sliding_window_pattern"))
        return;
    s->pattern = size_of(m, "attention.sliding_window_pattern", NONE, 1 << 16);
    if (s->pattern == 1) /* each layer is one that sees all */
        s->window = 0;
}

/* What would change what is computed, in a way that is not known here. Unknown tensors are found
 * later. */
static void refuse_others(td_maker *m)
{
    static const char *const numbers[] = {"attention.clamp_kqv", "attention.max_alibi_bias",
                                          "logit_scale", "residual_scale", "embedding_scale"};

    if (count_of(m, "expert_count", 0, 0, UINT32_MAX))
        FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is there, which nothing here computes",
             key_of(m, "expert_count").bytes);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (number_if_said(m, numbers[i], 0, 1e30f) > 0)
            FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is there, which nothing here computes",
                 key_of(m, numbers[i]).bytes);
}

static void read_words(td_maker *m)
{
    const td_gguf_tensor *words = td_gguf_find_tensor(m->file, "token_embd.weight");

    if (!words)
        FAIL(TANDEM_ERROR_PROTOCOL, "token_embd.weight: there is no such tensor");
    else if (words->shape[1] < 1 || words->shape[1] > TD_MOST_DIMENSION)
        FAIL(TANDEM_ERROR_PROTOCOL, "token_embd.weight has %" PRIu64 " rows; it must be 1 to %d",
             words->shape[1], TD_MOST_DIMENSION);
    else
        m->model->sizes.words = (uint32_t)words->shape[1];
}

static void check_heads(td_maker *m, uint32_t value_dim)
{
    const td_llama_sizes *s = &m->model->sizes;

    if (value_dim != s->head_dim)
        FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is %" PRIu32 "; it must be that of keys, %" PRIu32,
             key_of(m, "attention.value_length").bytes, value_dim, s->head_dim);
    if (s->heads % s->kv_heads)
        FAIL(TANDEM_ERROR_PROTOCOL,
             "%s is %" PRIu32
             "; it must be a multiple of attention.head_count_kv, which is %" PRIu32,
             key_of(m, "attention.head_count").bytes, s->heads, s->kv_heads);
    if (s->rotated_channels % 8)
        FAIL(TANDEM_ERROR_UNSUPPORTED, "%s is %" PRIu32 "; it must be a multiple of 8",
             key_of(m, "rope.dimension_count").bytes, s->rotated_channels);
}

/* Gemma's of 27 billion weights are told by nothing else. */
static float scale_of_size(const td_llama_sizes *s)
{
    const bool is_large = (!strcmp(s->architecture, "gemma2") && s->layers == 46) ||
                          (!strcmp(s->architecture, "gemma3") && s->layers == 62);

    return is_large ? 1 / sqrtf((float)s->dim / (float)s->heads) : 0;
}

void td_llama_read_sizes(td_maker *m)
{
    td_llama_sizes *s = &m->model->sizes;
    const architecture *is = find_architecture(m);

    if (!is)
        return;
    *s = is->habits;
    s->architecture = is->name;
    refuse_others(m);
    if (td_gguf_find(m->file, "tandem.rope.halves") && !td_maker_failed(m)) /* of folders alone */
        td_gguf_bool(m->file, "tandem.rope.halves", &s->halves, NULL, 0);
    s->layers = size_of(m, "block_count", NONE, MOST_LAYERS);
    s->dim = size_of(m, "embedding_length", NONE, 1 << 20);
    s->hidden = size_of(m, "feed_forward_length", NONE, 1 << 22);
    s->heads = size_of(m, "attention.head_count", NONE, 1 << 12);
    s->context = size_of(m, "context_length", NONE, 1 << 24);
    if (td_maker_failed(m))
        return;
    s->kv_heads = size_of(m, "attention.head_count_kv", s->heads, s->heads);
    s->head_dim = size_of(m, "attention.key_length", s->dim / s->heads, TD_LLAMA_MOST_HEAD_DIM);
    const uint32_t value_dim =
        size_of(m, "attention.value_length", s->head_dim, TD_LLAMA_MOST_HEAD_DIM);
    s->rotated_channels = size_of(m, "rope.dimension_count", s->head_dim, s->head_dim);
    s->epsilon = number_of(m, "attention.layer_norm_rms_epsilon", 0, 0.1f);
    s->scale = number_if_said(m, "attention.scale", scale_of_size(s), 1e3f);
    s->score_cap = number_if_said(m, "attn_logit_softcapping", s->score_cap, 1e6f);
    s->logit_cap = number_if_said(m, "final_logit_softcapping", s->logit_cap, 1e6f);
    if (is->scales_embedding)
        s->embedding_scale = sqrtf((float)s->dim);
    read_windows(m, is->window_unless_said);
    read_words(m);
    if (!td_maker_failed(m))
        check_heads(m, value_dim);
    if (!td_maker_failed(m))
        read_rotations(m);
}
