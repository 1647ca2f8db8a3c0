/* Texts that become vectors: what is asked, and what is answered. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

enum { MOST_INPUTS = 2048 };

/* --- What is asked --- */

static void read_input(serve_reader *r, const json_t *input)
{
    const char *text = json_string_value(input);
    char name[40];

    snprintf(name, sizeof name, json_is_array(serve_member(r, "input")) ? "input[%u]" : "input",
             (unsigned)r->ask->input_count);
    if (!text || !*text)
        serve_refuse(r, name, input, "it must be a text that is not empty; tokens are not taken");
    r->ask->inputs[r->ask->input_count++] = text;
}

static void read_inputs(serve_reader *r)
{
    const json_t *input = serve_member(r, "input"), *each;
    size_t i;

    if (!json_is_string(input) && !json_is_array(input)) {
        serve_refuse(r, "input", input, "it must be a text, or a list of texts");
        return;
    }
    if (json_is_array(input) && (!json_array_size(input) || json_array_size(input) > MOST_INPUTS)) {
        serve_refuse(r, "input", input, "it must be a list of 1 to %d texts", MOST_INPUTS);
        return;
    }
    r->ask->inputs = calloc(json_array_size(input) + 1, sizeof *r->ask->inputs);
    if (!r->ask->inputs)
        serve_refuse_memory(r, "input");
    else if (json_is_string(input))
        read_input(r, input);
    else
        json_array_foreach(input, i, each) read_input(r, each);
}

void serve_read_embed(serve_reader *r)
{
    const char *format = serve_read_text(r, "encoding_format");

    r->ask->base64 = format && !strcmp(format, "base64");
    if (format && !r->ask->base64 && strcmp(format, "float"))
        serve_refuse(r, "encoding_format", serve_member(r, "encoding_format"),
                     "it must be float or base64");
    r->ask->dimensions = serve_read_count(r, "dimensions", 0, 1, UINT32_MAX);
    serve_read_text(r, "model");
    serve_read_text(r, "user");
    read_inputs(r);
}

/* --- What is answered --- */

static void put(exchange *e, const char *text)
{
    serve_put(&e->out, text, strlen(text));
}

/* Numbers as they lie in memory, the least byte first. */
static void put_base64(exchange *e, const float *values, uint32_t count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *bytes = (const unsigned char *)values;
    const size_t all = (size_t)count * sizeof *values;

    put(e, "\"");
    for (size_t at = 0; at < all; at += 3) {
        const size_t left = all - at;
        const uint32_t three = (uint32_t)bytes[at] << 16 |
                               (left > 1 ? (uint32_t)bytes[at + 1] << 8 : 0) |
                               (left > 2 ? bytes[at + 2] : 0);
        const char four[4] = {digits[three >> 18], digits[three >> 12 & 63],
                              left > 1 ? digits[three >> 6 & 63] : '=',
                              left > 2 ? digits[three & 63] : '='};

        serve_put(&e->out, four, sizeof four);
    }
    put(e, "\"");
}

static void put_numbers(exchange *e, const float *values, uint32_t count)
{
    char text[32];

    for (uint32_t i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s%.9g", i ? "," : "[", (double)values[i]);
        put(e, text);
    }
    put(e, "]");
}

void serve_tell_embedding(exchange *e, const tandem_embedding *embedding)
{
    char text[100];

    snprintf(text, sizeof text, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":",
             e->embedded ? "," : "{\"object\":\"list\",\"data\":[", (unsigned)e->embedded);
    put(e, text);
    (e->ask.base64 ? put_base64 : put_numbers)(e, embedding->values, embedding->count);
    put(e, "}");
    e->embedded++;
    e->tokens += embedding->tokens;
}

void serve_tell_embedded(exchange *e, const char *model)
{
    put(e, "],\"model\":");
    serve_put_json(&e->out, json_string(model));
    put(e, ",\"usage\":");
    serve_put_json(&e->out, json_pack("{s:I, s:I}", "prompt_tokens", (json_int_t)e->tokens,
                                      "total_tokens", (json_int_t)e->tokens));
    put(e, "}");
}
