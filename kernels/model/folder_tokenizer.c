/* tokenizer.json and what is beside it as the metadata of a GGUF file. See folder.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdlib.h>

#include "interop/os/file.h"
#include "interop/os/memory.h"
#include "kernels/model/folder_maker.h"

enum { MOST_TOKENS = 1 << 22, MOST_PATTERNS = 8, MOST_TEMPLATE_BYTES = 1 << 20 };
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 }; /* as files number them */

#define FAIL(status, ...) td_folder_fail(f, status, __VA_ARGS__)

typedef struct reader {
    td_folder *f;
    td_json json, config; /* tokenizer.json; tokenizer_config.json, which may be empty */
    uint32_t model;
    uint32_t count;
    td_gguf_string *texts;
    int32_t *kinds;
    td_gguf_string patterns[MOST_PATTERNS];
    uint32_t pattern_count;
    bool bytewise, space_first;
} reader;

/* --- JSON --- */

static const char *text_at(const td_json *json, uint32_t at)
{
    return at && json->values[at].type == TD_JSON_STRING ? json->values[at].text : NULL;
}

static const char *text_of(const td_json *json, uint32_t of, const char *name)
{
    return json->count ? text_at(json, td_json_member(json, of, name)) : NULL;
}

static bool is_true(const td_json *json, uint32_t of, const char *name, bool otherwise)
{
    const uint32_t at = json->count ? td_json_member(json, of, name) : 0;

    return at && json->values[at].type == TD_JSON_BOOL ? !strcmp(json->values[at].text, "true")
                                                       : otherwise;
}

static bool is_kind(const td_json *json, uint32_t at, const char *kind)
{
    const char *type = text_of(json, at, "type");

    return type && !strcmp(type, kind);
}

/* A number of a token; TD_NO_... false where it is none. */
static bool id_at(const td_json *json, uint32_t at, uint32_t *id)
{
    const td_json_value *v = &json->values[at];

    if (!at || v->type != TD_JSON_NUMBER || v->text[strspn(v->text, "0123456789")] ||
        strlen(v->text) > 9)
        return false;
    *id = (uint32_t)strtoul(v->text, NULL, 10);
    return *id < MOST_TOKENS;
}

/* --- Tokens --- */

static uint32_t vocabulary_of(reader *r)
{
    return td_json_member(&r->json, r->model, "vocab");
}

/* How many there are: up to the largest number, and as many as the model has words. */
static bool count_tokens(reader *r)
{
    td_folder *f = r->f;
    const uint32_t vocab = vocabulary_of(r), added = td_json_member(&r->json, 0, "added_tokens");
    const td_gguf_tensor *words = NULL;
    uint32_t id;

    if (!vocab || r->json.values[vocab].type != TD_JSON_OBJECT)
        return FAIL(TANDEM_ERROR_PROTOCOL, "tokenizer.json: model has no \"vocab\"");
    TD_JSON_EACH (&r->json, vocab, i)
    {
        if (!id_at(&r->json, i, &id))
            return FAIL(TANDEM_ERROR_PROTOCOL,
                        "tokenizer.json: the number of token \"" TD_NAME "\" is none below %d",
                        TD_NAMED(r->json.values[i].name), MOST_TOKENS);
        r->count = id >= r->count ? id + 1 : r->count;
    }
    if (added && r->json.values[added].type == TD_JSON_ARRAY)
        TD_JSON_EACH (&r->json, added, i)
        {
            if (!id_at(&r->json, td_json_member(&r->json, i, "id"), &id))
                return FAIL(TANDEM_ERROR_PROTOCOL,
                            "tokenizer.json: one of added_tokens has no \"id\" below %d",
                            MOST_TOKENS);
            r->count = id >= r->count ? id + 1 : r->count;
        }
    for (uint32_t i = 0; i < f->out->tensor_count; i++)
        if (!strcmp(f->out->tensors[i].name, "token_embd.weight"))
            words = &f->out->tensors[i];
    if (words && words->shape[1] > r->count && words->shape[1] <= MOST_TOKENS)
        r->count = (uint32_t)words->shape[1];
    return r->count || FAIL(TANDEM_ERROR_PROTOCOL, "tokenizer.json: there are no tokens");
}

/* "<0x0A>" */
static bool is_byte(const char *text)
{
    return strlen(text) == 6 && !strncmp(text, "<0x", 3) && text[5] == '>';
}

static bool set_token(reader *r, uint32_t id, const char *text, int32_t kind)
{
    char *copy = td_arena_text(&r->f->out->arena, text, strlen(text));

    if (!copy)
        return td_folder_fail(r->f, TANDEM_ERROR_NOMEM, "no memory for a vocabulary");
    r->texts[id] = (td_gguf_string){copy, strlen(text)};
    r->kinds[id] = kind;
    return true;
}

static bool read_added(reader *r, uint32_t at)
{
    const char *text = text_of(&r->json, at, "content");
    uint32_t id = 0;

    id_at(&r->json, td_json_member(&r->json, at, "id"), &id);
    if (!text || !*text)
        return td_folder_fail(
            r->f, TANDEM_ERROR_PROTOCOL,
            "tokenizer.json: token %" PRIu32 " of added_tokens has no \"content\"", id);
    if (r->texts[id].bytes && !r->bytewise && r->kinds[id] == BYTE)
        return true;
    return set_token(r, id, text, is_true(&r->json, at, "special", false) ? CONTROL : USER_DEFINED);
}

/* Numbers that no token has are those of tokens that no text has. */
static bool read_tokens(reader *r)
{
    const uint32_t added = td_json_member(&r->json, 0, "added_tokens");
    uint32_t id = 0;

    r->texts = td_folder_take(r->f, r->count, sizeof *r->texts);
    r->kinds = td_folder_take(r->f, r->count, sizeof *r->kinds);
    if (!r->texts || !r->kinds)
        return false;
    memset(r->texts, 0, r->count * sizeof *r->texts);
    TD_JSON_EACH (&r->json, vocabulary_of(r), i)
    {
        const char *text = r->json.values[i].name;

        id_at(&r->json, i, &id);
        if (!set_token(r, id, text, !r->bytewise && is_byte(text) ? BYTE : NORMAL))
            return false;
    }
    if (added && r->json.values[added].type == TD_JSON_ARRAY)
        TD_JSON_EACH (&r->json, added, i)
    if (!read_added(r, i))
        return false;
    for (uint32_t i = 0; i < r->count; i++)
        if (!r->texts[i].bytes)
            set_token(r, i, td_folder_text(r->f, "[PAD%" PRIu32 "]", i), UNUSED);
    return r->f->status == TANDEM_OK;
}

static bool put_strings(td_folder *f, const char *key, const td_gguf_string *strings,
                        uint64_t count)
{
    return td_folder_put(f, (td_gguf_value){.key = key,
                                            .type = TD_GGUF_STRING,
                                            .is_array = true,
                                            .count = count,
                                            .strings = strings});
}

static bool put_tokens(reader *r)
{
    td_folder *f = r->f;
    float *scores = td_folder_take(f, r->count, sizeof *scores);

    if (!scores)
        return false;
    memset(scores, 0, r->count * sizeof *scores);
    return put_strings(f, "tokenizer.ggml.tokens", r->texts, r->count) &&
           td_folder_put(f, (td_gguf_value){.key = "tokenizer.ggml.token_type",
                                            .type = TD_GGUF_I32,
                                            .is_array = true,
                                            .count = r->count,
                                            .bytes = (const uint8_t *)r->kinds}) &&
           td_folder_put(f, (td_gguf_value){.key = "tokenizer.ggml.scores",
                                            .type = TD_GGUF_F32,
                                            .is_array = true,
                                            .count = r->count,
                                            .bytes = (const uint8_t *)scores});
}

/* "left right", or two strings. */
static bool put_merges(reader *r)
{
    td_folder *f = r->f;
    const uint32_t merges = td_json_member(&r->json, r->model, "merges");
    td_gguf_string *strings;
    uint64_t count = 0;

    if (!merges || r->json.values[merges].type != TD_JSON_ARRAY)
        return FAIL(TANDEM_ERROR_PROTOCOL, "tokenizer.json: model has no \"merges\"");
    strings = td_folder_take(f, r->json.values[merges].count, sizeof *strings);
    if (!strings)
        return false;
    TD_JSON_EACH (&r->json, merges, i)
    {
        const td_json_value *v = &r->json.values[i];
        const char *copy = NULL;

        if (v->type == TD_JSON_STRING)
            copy = td_arena_text(&f->out->arena, v->text, strlen(v->text));
        else if (v->type == TD_JSON_ARRAY && v->count == 2 && v[1].type == TD_JSON_STRING &&
                 v[2].type == TD_JSON_STRING && strlen(v[1].text) + strlen(v[2].text) < 500)
            copy = td_folder_text(f, "%s %s", v[1].text, v[2].text);
        if (!copy)
            return FAIL(TANDEM_ERROR_PROTOCOL,
                        "tokenizer.json: merge %" PRIu64 " is not of two strings", count);
        strings[count++] = (td_gguf_string){copy, strlen(copy)};
    }
    return put_strings(f, r->bytewise ? "tokenizer.ggml.merges" : "tandem.tokenizer.merges",
                       strings, count);
}

/* --- How texts are cut --- */

static bool add_pattern(reader *r, const char *pattern)
{
    td_folder *f = r->f;

    if (r->pattern_count == MOST_PATTERNS)
        return FAIL(TANDEM_ERROR_UNSUPPORTED, "tokenizer.json: texts are cut in more than %d steps",
                    MOST_PATTERNS);
    const char *copy = td_arena_text(&f->out->arena, pattern, strlen(pattern));
    if (!copy)
        return FAIL(TANDEM_ERROR_NOMEM, "no memory for a pattern");
    r->patterns[r->pattern_count++] = (td_gguf_string){copy, strlen(copy)};
    return true;
}

static bool read_split(reader *r, uint32_t at)
{
    td_folder *f = r->f;
    const uint32_t pattern = td_json_member(&r->json, at, "pattern");
    const char *regex = pattern ? text_of(&r->json, pattern, "Regex") : NULL,
               *behavior = text_of(&r->json, at, "behavior");

    if (!r->bytewise) /* of spaces, of which texts have none by then */
        return true;
    if (!regex || !behavior || is_true(&r->json, at, "invert", false) ||
        (strcmp(behavior, "Isolated") != 0 && strcmp(behavior, "isolated") != 0))
        return FAIL(
            TANDEM_ERROR_UNSUPPORTED,
            "tokenizer.json: a Split must have a \"Regex\", whose matches are \"Isolated\"");
    return add_pattern(r, regex);
}

/* A pre-tokenizer, or each of a sequence. */
static bool read_cutting(reader *r, uint32_t at, uint32_t depth)
{
    td_folder *f = r->f;
    const td_json *json = &r->json;
    const uint32_t parts = td_json_member(json, at, "pretokenizers");
    const char *type = text_of(json, at, "type");

    if (json->values[at].type == TD_JSON_NULL)
        return true;
    if (!type || depth > 2)
        return FAIL(TANDEM_ERROR_PROTOCOL, "tokenizer.json: a pre_tokenizer has no \"type\"");
    if (!strcmp(type, "Sequence") && parts && json->values[parts].type == TD_JSON_ARRAY) {
        TD_JSON_EACH (json, parts, i)
        if (!read_cutting(r, i, depth + 1))
            return false;
        return true;
    }
    if (!strcmp(type, "Split"))
        return read_split(r, at);
    if (!strcmp(type, "Digits"))
        return add_pattern(r, is_true(json, at, "individual_digits", false) ? "\\p{N}" : "\\p{N}+");
    if (!strcmp(type, "ByteLevel")) {
        if (is_true(json, at, "add_prefix_space", true))
            return FAIL(TANDEM_ERROR_UNSUPPORTED,
                        "tokenizer.json: ByteLevel puts a space before texts, which nothing here "
                        "does");
        return !is_true(json, at, "use_regex", true) ||
               add_pattern(r, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                              "|\\s+(?!\\S)|\\s+");
    }
    if (!strcmp(type, "Metaspace") && !r->bytewise) {
        const char *scheme = text_of(json, at, "prepend_scheme");

        r->space_first =
            scheme ? strcmp(scheme, "never") != 0 : is_true(json, at, "add_prefix_space", true);
        return true;
    }
    return FAIL(TANDEM_ERROR_UNSUPPORTED,
                "tokenizer.json: a pre_tokenizer is \"" TD_NAME "\"; it must be Split, Digits, "
                "ByteLevel or Metaspace",
                TD_NAMED(type));
}

/* Whether there is an object of that type, at any depth. */
static bool has_kind(const td_json *json, uint32_t at, const char *kind)
{
    if (!at)
        return false;
    for (uint32_t i = at; i < json->values[at].next; i++)
        if (json->values[i].type == TD_JSON_OBJECT && is_kind(json, i, kind))
            return true;
    return false;
}

static bool read_kind(reader *r)
{
    td_folder *f = r->f;
    const uint32_t cutting = td_json_member(&r->json, 0, "pre_tokenizer"),
                   normalizer = td_json_member(&r->json, 0, "normalizer");
    const char *type = text_of(&r->json, r->model, "type");

    if (type && strcmp(type, "BPE") != 0)
        return FAIL(TANDEM_ERROR_UNSUPPORTED,
                    "tokenizer.json: its model is \"" TD_NAME "\"; it must be BPE", TD_NAMED(type));
    r->bytewise = has_kind(&r->json, cutting, "ByteLevel") ||
                  has_kind(&r->json, td_json_member(&r->json, 0, "decoder"), "ByteLevel");
    if (!r->bytewise && !is_true(&r->json, r->model, "byte_fallback", false))
        return FAIL(TANDEM_ERROR_UNSUPPORTED,
                    "tokenizer.json: it is neither byte-level nor falls back to bytes");
    r->space_first = has_kind(&r->json, normalizer, "Prepend");
    if (cutting && !read_cutting(r, cutting, 0))
        return false;
    const char *const kind = r->bytewise ? "gpt2" : "llama";
    return td_folder_put_text(f, "tokenizer.ggml.model", kind, strlen(kind)) &&
           td_folder_put_bool(f, "tokenizer.ggml.add_space_prefix", r->space_first) &&
           td_folder_put_bool(f, "tandem.tokenizer.whole_words",
                              is_true(&r->json, r->model, "ignore_merges", false));
}

static bool put_patterns(reader *r)
{
    td_gguf_string *copy;

    if (!r->bytewise)
        return true;
    copy = td_folder_take(r->f, MOST_PATTERNS, sizeof *copy);
    if (!copy)
        return false;
    memcpy(copy, r->patterns, sizeof r->patterns);
    return put_strings(r->f, "tandem.tokenizer.patterns", copy, r->pattern_count);
}

/* --- What texts begin and end with --- */

/* A string, or an object with it as "content". */
static const char *name_of(const td_json *json, const char *member)
{
    const uint32_t at = json->count ? td_json_member(json, 0, member) : 0;
    const char *text = text_at(json, at);

    return text || !at ? text : text_of(json, at, "content");
}

static uint32_t find_token(const reader *r, const char *text)
{
    for (uint32_t i = 0; text && i < r->count; i++)
        if (r->texts[i].length == strlen(text) && !strcmp(r->texts[i].bytes, text))
            return i;
    return UINT32_MAX;
}

/* By its name in tokenizer_config.json, or its number, or the first of several, in config.json. */
static bool put_special(reader *r, const char *name, const char *number, const char *key,
                        uint32_t *id)
{
    td_folder *f = r->f;
    const td_json *config = &f->config;
    uint32_t at = td_json_member(config, f->root, number);

    at = at ? at : td_json_member(config, 0, number);
    if (at && config->values[at].type == TD_JSON_ARRAY)
        at = config->values[at].count ? at + 1 : 0;
    *id = find_token(r, name_of(&r->config, name));
    if (*id == UINT32_MAX && !id_at(config, at, id))
        *id = UINT32_MAX;
    return *id >= r->count || td_folder_put_u32(f, key, *id);
}

/* Whether what is done to tokens at last puts that one first. */
static bool begins_with(const reader *r, uint32_t begin)
{
    const uint32_t post = td_json_member(&r->json, 0, "post_processor");

    for (uint32_t i = post; post && begin < r->count && i < r->json.values[post].next; i++) {
        const uint32_t single = td_json_member(&r->json, i, "single");

        if (!single || r->json.values[single].type != TD_JSON_ARRAY ||
            !r->json.values[single].count)
            continue;
        const uint32_t special = td_json_member(&r->json, single + 1, "SpecialToken");
        const char *id = special ? text_of(&r->json, special, "id") : NULL;
        if (id && !strcmp(id, r->texts[begin].bytes))
            return true;
    }
    return false;
}

/* In a file of its own, or beside what is special. */
static bool put_template(reader *r)
{
    td_folder *f = r->f;
    char path[TD_FOLDER_PATH_BYTES];
    const char *text = text_of(&r->config, 0, "chat_template");
    uint64_t bytes;
    void *map;

    td_text(path, sizeof path, "%s/chat_template.jinja", f->path);
    if (td_file_map(path, &map, &bytes, NULL, 0) == TANDEM_OK && map) {
        const bool put = bytes > MOST_TEMPLATE_BYTES ||
                         td_folder_put_text(f, "tokenizer.chat_template", map, bytes);

        td_unmap(map, bytes);
        return put;
    }
    return !text || td_folder_put_text(f, "tokenizer.chat_template", text, strlen(text));
}

static bool put_specials(reader *r)
{
    td_folder *f = r->f;
    uint32_t begin, end, unknown = find_token(r, text_of(&r->json, r->model, "unk_token"));

    if (!put_special(r, "bos_token", "bos_token_id", "tokenizer.ggml.bos_token_id", &begin) ||
        !put_special(r, "eos_token", "eos_token_id", "tokenizer.ggml.eos_token_id", &end))
        return false;
    if (unknown < r->count && !td_folder_put_u32(f, "tokenizer.ggml.unknown_token_id", unknown))
        return false;
    return td_folder_put_bool(f, "tokenizer.ggml.add_bos_token",
                              begins_with(r, begin) ||
                                  is_true(&r->config, 0, "add_bos_token", false)) &&
           put_template(r);
}

/* A folder without a tokenizer is a model all the same, which reads numbers alone. */
bool td_folder_read_tokenizer(td_folder *f)
{
    reader it = {.f = f}, *const r = &it;
    bool read = td_folder_json(f, "tokenizer.json", &r->json);

    if (!read)
        return f->status == TANDEM_OK;
    td_folder_json(f, "tokenizer_config.json", &r->config);
    r->model = td_json_member(&r->json, 0, "model");
    read = f->status == TANDEM_OK &&
           (r->model || FAIL(TANDEM_ERROR_PROTOCOL, "tokenizer.json: it has no \"model\"")) &&
           read_kind(r) && count_tokens(r) && read_tokens(r) && put_tokens(r) && put_merges(r) &&
           put_patterns(r) && put_specials(r);
    td_json_free(&r->json);
    td_json_free(&r->config);
    return read;
}
