/* Patterns of byte-level tokenizers, matched by PCRE2. See pattern.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine_plugin/npc/pattern.h"

#include <pcre2.h>
#include <stdlib.h>

enum { STAGES = 8, MOST_PATTERN_BYTES = 1 << 12 };

/* Within brackets: Unicode's white space. PCRE2's own \s has U+180E as well, which is none. */
#define SPACES "\\t-\\r \\x{85}\\p{Z}"
#define SPACE "[" SPACES "]"
#define NO_SPACE "[^" SPACES "]"
#define LAST_SPACES SPACE "+(?!" NO_SPACE ")|" SPACE "+" /* but for one before a word */
#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"

/* GPT-2's: words and numbers take one space before them along. */
#define GPT2                                                                                       \
    CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" LAST_SPACES
/* GPT-4's and its kin's: words take any one character along; line breaks stay together. They differ
 * in how many digits are a word. */
#define NEWLINES SPACE "*[\\r\\n]+"
#define GPT4(digits)                                                                               \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" SPACES                   \
    "\\p{L}\\p{N}]+[\\r\\n]*|" NEWLINES "|" LAST_SPACES
/* GPT-4o's: a word also begins with each capital behind a small letter. */
#define CAPITALS "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define SMALLS "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define GPT4O(contractions, digits)                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[" CAPITALS "]*[" SMALLS "]+" contractions                              \
    "|[^\\r\\n\\p{L}\\p{N}]?[" CAPITALS "]+[" SMALLS "]*" contractions "|" digits                  \
    "| ?[^" SPACES "\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES "|" LAST_SPACES

/* Each stage cuts what the one before it left whole. */
static const struct model {
    const char *names; /* with a space behind each */
    const char *stages[STAGES];
    td_pattern_traits traits;
} models[] = {
    {"gpt-2 default phi-2 mpt olmo jais gigachat a.x-4.0 mellum ", {GPT2}, {false, false}},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b ", {"\\p{N}", GPT2}, {false, false}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ", {GPT4("\\p{N}{1,3}")}, {true, true}},
    {"dbrx smaug-bpe ", {GPT4("\\p{N}{1,3}")}, {false, false}},
    {"qwen2 deepseek-r1-qwen stablelm2 megrez kormo ", {GPT4("\\p{N}")}, {false, false}},
    {"tekken ", {GPT4O("", "\\p{N}")}, {true, true}},
    {"gpt-4o llama4 ", {GPT4O("(?i:" CONTRACTIONS ")?", "\\p{N}{1,3}")}, {false, false}},
};
enum { MODELS = sizeof models / sizeof *models };

struct td_pattern {
    pcre2_code *stages[STAGES]; /* NULL behind the last */
    td_pattern_traits traits;
};

static const struct model *find_model(const char *name, size_t bytes)
{
    for (int i = 0; i < MODELS; i++)
        for (const char *at = models[i].names, *end; (end = strchr(at, ' ')); at = end + 1)
            if ((size_t)(end - at) == bytes && !memcmp(at, name, bytes))
                return &models[i];
    return NULL;
}

static tandem_status compile(td_pattern *pattern, int stage, const char *text, size_t bytes,
                             tandem_status otherwise, char *why, size_t why_bytes)
{
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK;
    int error;
    size_t where;

    pattern->stages[stage] =
        pcre2_compile((PCRE2_SPTR)text, bytes, options, &error, &where, NULL);
    return pattern->stages[stage]
               ? TANDEM_OK
               : td_fail(why, why_bytes, otherwise,
                         "PCRE2 cannot compile a pattern: error %d at %zu", error, where);
}

tandem_status td_pattern_create(const char *name, size_t bytes, td_pattern **out, char *why,
                                size_t why_bytes)
{
    const struct model *model = find_model(name, bytes);
    tandem_status status = TANDEM_OK;

    *out = NULL;
    if (!model)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "tokenizer.ggml.pre is \"%.*s\", and how that cuts words is not known",
                       (int)(bytes < TD_NAME_MOST ? bytes : TD_NAME_MOST), name);
    td_pattern *pattern = calloc(1, sizeof *pattern);
    if (!pattern)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a pattern");
    pattern->traits = model->traits;
    for (int i = 0; i < STAGES && model->stages[i] && status == TANDEM_OK; i++)
        status = compile(pattern, i, model->stages[i], strlen(model->stages[i]),
                         TANDEM_ERROR_NOMEM, why, why_bytes);
    if (status == TANDEM_OK)
        *out = pattern;
    else
        td_pattern_destroy(&pattern);
    return status;
}

/* With \s and \S as Unicode has them; 0 where that is too long. */
static size_t with_spaces(const td_pattern_text *from, char to[MOST_PATTERN_BYTES])
{
    bool in_brackets = false;
    size_t count = 0;

    for (size_t i = 0; i < from->length; i++) {
        const bool escaped = from->bytes[i] == '\\' && i + 1 < from->length;
        const char c = from->bytes[escaped ? i + 1 : i];
        const char *put = NULL;

        if (escaped && c == 's')
            put = in_brackets ? SPACES : SPACE;
        else if (escaped && c == 'S' && !in_brackets)
            put = NO_SPACE;
        if (count + sizeof NO_SPACE + 2 > MOST_PATTERN_BYTES)
            return 0;
        if (put)
            memcpy(to + count, put, strlen(put));
        else
            memcpy(to + count, from->bytes + i, escaped ? 2 : 1);
        count += put ? strlen(put) : escaped ? 2 : 1;
        in_brackets = escaped ? in_brackets : c == '[' || (in_brackets && c != ']');
        i += escaped;
    }
    return count;
}

tandem_status td_pattern_create_of(const td_pattern_text *texts, uint64_t count,
                                   td_pattern_traits traits, td_pattern **out, char *why,
                                   size_t why_bytes)
{
    td_pattern *pattern = calloc(1, sizeof *pattern);
    tandem_status status = TANDEM_OK;

    *out = NULL;
    if (!pattern)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a pattern");
    pattern->traits = traits;
    for (uint64_t i = 0; i < count && status == TANDEM_OK; i++) {
        char text[MOST_PATTERN_BYTES];
        const size_t bytes = i < STAGES ? with_spaces(&texts[i], text) : 0;

        status = bytes ? compile(pattern, (int)i, text, bytes, TANDEM_ERROR_UNSUPPORTED, why,
                                 why_bytes)
                       : td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                                 "pattern %d is empty or has more than %d bytes, or is the %dth",
                                 (int)i, MOST_PATTERN_BYTES, STAGES + 1);
    }
    if (status == TANDEM_OK)
        *out = pattern;
    else
        td_pattern_destroy(&pattern);
    return status;
}

void td_pattern_destroy(td_pattern **pattern)
{
    if (!*pattern)
        return;
    for (int i = 0; i < STAGES; i++)
        pcre2_code_free((*pattern)->stages[i]);
    free(*pattern);
    *pattern = NULL;
}

td_pattern_traits td_pattern_traits_of(const td_pattern *pattern)
{
    return pattern->traits;
}

typedef struct splitter {
    const td_pattern *pattern;
    pcre2_match_data *match;
    td_words words;
    char *why;
    size_t why_bytes;
} splitter;

/* What a stage matches is a piece for the next one, and so is what lies between; the next one sees
 * nothing around its piece. */
static tandem_status split(splitter *s, int stage, const char *text, size_t bytes)
{
    tandem_status status = TANDEM_OK;

    if (stage == STAGES || !s->pattern->stages[stage])
        return s->words.word(s->words.user, text, bytes);
    for (size_t at = 0; at < bytes && status == TANDEM_OK;) {
        const int found = pcre2_match(s->pattern->stages[stage], (PCRE2_SPTR)text, bytes, at,
                                      PCRE2_NO_UTF_CHECK, s->match, NULL);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            return td_fail(s->why, s->why_bytes, TANDEM_ERROR_UNSUPPORTED,
                           "PCRE2 cannot cut a text of %zu bytes into words: error %d", bytes,
                           found);
        const size_t *ends = pcre2_get_ovector_pointer(s->match);
        const size_t begin = found < 0 ? bytes : ends[0], end = found < 0 ? bytes : ends[1];
        if (begin > at)
            status = split(s, stage + 1, text + at, begin - at);
        if (end > begin && status == TANDEM_OK)
            status = split(s, stage + 1, text + begin, end - begin);
        at = end;
    }
    return status;
}

tandem_status td_pattern_split(const td_pattern *pattern, const char *text, size_t bytes,
                               td_words words, char *why, size_t why_bytes)
{
    splitter s = {pattern, pcre2_match_data_create(1, NULL), words, why, why_bytes};

    if (!s.match)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory to cut a text into words");
    const tandem_status status = split(&s, 0, text, bytes);
    pcre2_match_data_free(s.match);
    return status;
}
