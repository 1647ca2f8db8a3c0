/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugin/token_util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/utf8.h"

/* --- JSON --- */

td_json token_read_json(const char *name)
{
    static char text[1 << 18];
    char path[400], why[200] = "";
    td_json json;

    snprintf(path, sizeof path, "%s/plugin/tokenizer/%s", TD_TESTS_FOLDER, name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is not there", path);
    const size_t bytes = fread(text, 1, sizeof text, file);
    fclose(file);
    assert_true(bytes < sizeof text);
    if (td_json_read(text, bytes, &json, why, sizeof why) != TANDEM_OK)
        fail_msg("%s: %s", path, why);
    return json;
}

uint32_t token_member(const td_json *json, uint32_t object, const char *name)
{
    TD_JSON_EACH (json, object, member)
        if (json->values[member].name && !strcmp(json->values[member].name, name))
            return member;
    return 0;
}

double token_number(const td_json *json, uint32_t value)
{
    return strtod(json->values[value].text, NULL);
}

/* --- Tokens --- */

static void show(const char *what, const td_tokens *tokens)
{
    print_message("%s:", what);
    for (size_t i = 0; i < tokens->count; i++)
        print_message(" %u", tokens->ids[i]);
    print_message("\n");
}

td_tokens token_read(const td_json *json, uint32_t ids)
{
    td_tokens tokens = {0};

    TD_JSON_EACH (json, ids, id)
        assert_int_equal(td_tokens_add(&tokens, (uint32_t)token_number(json, id)), TANDEM_OK);
    return tokens;
}

void token_must_be(const char *text, const td_tokens *tokens, const td_json *json, uint32_t ids)
{
    td_tokens expected = token_read(json, ids);
    const bool same = tokens->count == expected.count &&
                      (!tokens->count || !memcmp(tokens->ids, expected.ids,
                                                 tokens->count * sizeof *tokens->ids));
    if (!same) {
        show("here", tokens);
        show("there", &expected);
        fail_msg("other tokens of \"%s\"", text);
    }
    td_tokens_free(&expected);
}

td_tokens token_encode(const td_tokenizer *t, const char *text, size_t bytes, bool special)
{
    td_tokens tokens = {0};
    char why[200] = "";

    if (td_tokenizer_encode(t, &(td_text_part){text, bytes, special}, 1, &tokens, why,
                            sizeof why) != TANDEM_OK)
        fail_msg("\"%s\": %s", text, why);
    return tokens;
}

static void must_be_whole(const char *bytes, size_t count)
{
    size_t length;

    for (size_t at = 0; at < count; at += length)
        assert_int_equal(td_utf8_next(bytes + at, count - at, &length), TD_UTF8_WHOLE);
}

char *token_decode(const td_tokenizer *t, const td_tokens *tokens)
{
    const size_t room = td_decoder_room(t);
    td_decoder d = td_decoder_begin(t, true);
    char *text = malloc((tokens->count + 1) * room + 1);
    size_t bytes = 0;

    for (size_t i = 0; i <= tokens->count; i++) {
        const size_t added = i < tokens->count ? td_decoder_add(&d, tokens->ids[i], text + bytes)
                                               : td_decoder_end(&d, text + bytes);
        assert_true(added <= room);
        must_be_whole(text + bytes, added);
        bytes += added;
    }
    text[bytes] = 0;
    return text;
}

/* --- Tokenizers --- */

td_tokenizer *token_create(gguf_writer *w)
{
    char why[300] = "";
    td_gguf file;
    td_tokenizer *t;

    if (td_gguf_read(w->bytes, w->size, &file, why, sizeof why) != TANDEM_OK ||
        td_tokenizer_create(&file, &t, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    td_gguf_close(&file);
    gguf_free(w);
    return t;
}

void token_must_refuse(gguf_writer *w, tandem_status status, const char *says)
{
    char why[300] = "";
    td_gguf file;
    td_tokenizer *t;

    if (td_gguf_read(w->bytes, w->size, &file, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
    assert_int_equal(td_tokenizer_create(&file, &t, why, sizeof why), status);
    assert_null(t);
    if (!strstr(why, says))
        fail_msg("\"%s\" does not say \"%s\"", why, says);
    td_gguf_close(&file);
    gguf_free(w);
}

void token_put_strings(gguf_writer *w, const char *key, const td_json *json, uint32_t array)
{
    gguf_put_array(w, key, TD_GGUF_STRING, json->values[array].count);
    TD_JSON_EACH (json, array, i)
        gguf_put_string(w, json->values[i].text);
}

void token_put_floats(gguf_writer *w, const char *key, const td_json *json, uint32_t array)
{
    gguf_put_array(w, key, TD_GGUF_F32, json->values[array].count);
    TD_JSON_EACH (json, array, i) {
        const float x = (float)token_number(json, i);

        gguf_put(w, &x, sizeof x);
    }
}

void token_put_integers(gguf_writer *w, const char *key, const td_json *json, uint32_t array)
{
    gguf_put_array(w, key, TD_GGUF_I32, json->values[array].count);
    TD_JSON_EACH (json, array, i)
        gguf_put_u32(w, (uint32_t)(int32_t)token_number(json, i));
}
