/* A request's JSON, checked. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Members that are not known are left alone, as clients send many; those that are known and ask for
 * what is not here are refused.
 */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

enum { MOST_STOPS = 16, MOST_BIASES = 1024, MOST_TOKENS = 1 << 20 };

typedef serve_reader reader;

/* --- Sampling --- */

static void read_bias(reader *r)
{
    json_t *biases = serve_member(r, "logit_bias"), *value;
    const char *name;
    uint32_t n = 0;

    serve_becomes(r, "logit_bias", "biases");
    if (biases && (!json_is_object(biases) || json_object_size(biases) > MOST_BIASES))
        serve_refuse(r, "logit_bias", biases, "it must be an object of at most %d tokens",
                     MOST_BIASES);
    if (!biases || !r->ok)
        return;
    r->ask->bias_tokens = calloc(json_object_size(biases) + 1, sizeof(uint32_t));
    r->ask->biases = calloc(json_object_size(biases) + 1, sizeof(float));
    if (!r->ask->bias_tokens || !r->ask->biases) {
        serve_refuse_memory(r, "logit_bias");
        return;
    }
    json_object_foreach(biases, name, value)
    {
        char *end;
        const unsigned long token = strtoul(name, &end, 10);

        if (*name < '0' || *name > '9' || *end || token > UINT32_MAX || !json_is_number(value) ||
            !(json_number_value(value) >= -100) || !(json_number_value(value) <= 100))
            serve_refuse(r, "logit_bias", biases,
                         "it must have numbers from -100 to 100 by tokens");
        r->ask->bias_tokens[n] = (uint32_t)token;
        /* -100 means never, here as there. */
        r->ask->biases[n++] =
            json_number_value(value) <= -100 ? -INFINITY : (float)json_number_value(value);
    }
    r->ask->sampling.bias_count = n;
    r->ask->sampling.bias_tokens = r->ask->bias_tokens;
    r->ask->sampling.biases = r->ask->biases;
}

static const struct {
    const char *member, *argument;
    size_t at;
    float otherwise;
    double least, most;
} numbers[] = {{"temperature", "temperature", offsetof(tandem_sampling, temperature), 1, 0, 2},
               {"top_p", "top_p", offsetof(tandem_sampling, top_p), 1, 0, 1},
               {"min_p", "min_p", offsetof(tandem_sampling, min_p), 0, 0, 1},
               {"typical_p", "typical_p", offsetof(tandem_sampling, typical_p), 0, 0, 1},
               {"repetition_penalty", "repetition", offsetof(tandem_sampling, repetition), 0, 0, 1000},
               {"frequency_penalty", "frequency", offsetof(tandem_sampling, frequency), 0, -2, 2},
               {"presence_penalty", "presence", offsetof(tandem_sampling, presence), 0, -2, 2}};

static void read_sampling(reader *r)
{
    const json_t *seed = serve_member(r, "seed");
    tandem_sampling *s = &r->ask->sampling;

    *s = TANDEM_INIT(tandem_sampling);
    if (seed && !json_is_integer(seed))
        serve_refuse(r, "seed", seed, "it must be a whole number");
    s->seed = seed ? (uint64_t)json_integer_value(seed) : td_now_ns();
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const float value =
            serve_read_number(r, numbers[i].member, numbers[i].otherwise, numbers[i].least, numbers[i].most);

        memcpy((char *)s + numbers[i].at, &value, sizeof value);
        serve_becomes(r, numbers[i].member, numbers[i].argument);
    }
    if (s->top_p <= 0) /* the most likely token alone; for the library 0 is that all may be */
        s->top_p = FLT_MIN;
    s->top_k = serve_read_count(r, "top_k", 0, 0, INT32_MAX);
    serve_becomes(r, "top_k", "top_k");
    read_bias(r);
}

/* --- What a reply must be --- */

static void add_stop(reader *r, const json_t *stop)
{
    if (!json_is_string(stop) || !json_string_length(stop))
        serve_refuse(r, "stop", stop, "it must be texts, none of them empty");
    else
        r->ask->stops[r->ask->say.stop_count++] = json_string_value(stop);
}

static void read_stops(reader *r)
{
    const json_t *stop = serve_member(r, "stop"), *each;
    size_t i;

    if (!stop)
        return;
    if (json_array_size(stop) > MOST_STOPS) {
        serve_refuse(r, "stop", stop, "it must be at most %d texts", MOST_STOPS);
        return;
    }
    r->ask->stops = calloc(MOST_STOPS, sizeof *r->ask->stops);
    if (!r->ask->stops)
        serve_refuse_memory(r, "stop");
    else if (!json_is_array(stop))
        add_stop(r, stop);
    else
        json_array_foreach(stop, i, each) add_stop(r, each);
    r->ask->say.stops = r->ask->stops;
    serve_becomes(r, "stop", "say.stops");
}

static void read_format(reader *r)
{
    const json_t *format = serve_member(r, "response_format"),
                 *type = json_object_get(format, "type");
    const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    const char *name = json_string_value(type) ? json_string_value(type) : "";

    r->ask->say.grammar = serve_read_text(r, "grammar");
    serve_becomes(r, "grammar", "say.grammar");
    if (!format || !strcmp(name, "text"))
        return;
    if (r->ask->say.grammar)
        serve_refuse(r, "grammar", serve_member(r, "grammar"),
                     "'response_format' asks for another form");
    else if (!strcmp(name, "json_object"))
        r->ask->schema = strdup("{\"type\": \"object\"}");
    else if (!strcmp(name, "json_schema") && schema)
        r->ask->schema = json_dumps(schema, JSON_ENCODE_ANY);
    else
        serve_refuse(r, "response_format", format,
                     "it must be of type text, json_object, or json_schema with "
                     "json_schema.schema");
    if (r->ok && !r->ask->schema)
        serve_refuse_memory(r, "response_format");
    r->ask->say.json_schema = r->ask->schema;
    serve_becomes(r, "response_format", "say.json_schema");
}

/* --- The whole --- */

static void read_prompt(reader *r)
{
    const json_t *prompt = serve_member(r, "prompt");

    if (json_is_array(prompt) && json_array_size(prompt) == 1)
        prompt = json_array_get(prompt, 0);
    if (!json_is_string(prompt))
        serve_refuse(r, "prompt", prompt, "it must be a string");
    r->ask->prompt = r->ask->say.text = json_string_value(prompt);
    serve_becomes(r, "prompt", "say.text");
}

/* What is known and is not here. */
static void refuse_what_lacks(reader *r)
{
    static const char *const lacks[] = {"functions", "function_call", "echo", "suffix", "audio"};

    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) {
        const json_t *value = serve_member(r, lacks[i]);
        const bool is_nothing = !value || json_is_false(value) ||
                                (json_is_array(value) && !json_array_size(value)) ||
                                (json_is_string(value) && !json_string_length(value)) ||
                                (json_is_integer(value) && !json_integer_value(value));

        if (!is_nothing)
            serve_refuse(r, lacks[i], value, "it is not supported here");
    }
}

static void read_stream_options(reader *r)
{
    const json_t *options = serve_member(r, "stream_options"),
                 *usage = json_object_get(options, "include_usage");

    if (options && (!json_is_object(options) || (usage && !json_is_boolean(usage))))
        serve_refuse(r, "stream_options", options,
                     "it must be an object, with include_usage true or false");
    else if (options && !r->ask->stream)
        serve_refuse(r, "stream_options", options, "it is for a 'stream' that is true");
    r->ask->usage = json_is_true(usage);
}

static void read_all(reader *r)
{
    serve_ask *a = r->ask;
    const bool chat = a->kind == SERVE_CHAT;
    const uint32_t most = serve_read_count(r, "max_tokens", chat ? 256 : 16, 1, MOST_TOKENS);

    refuse_what_lacks(r);
    a->say = TANDEM_INIT(tandem_say);
    a->say.most_tokens = serve_read_count(r, "max_completion_tokens", most, 1, MOST_TOKENS);
    a->say.replies = serve_read_count(r, "n", 1, 1, 16);
    serve_becomes(r, "n", "say.replies");
    if (!chat && serve_read_count(r, "best_of", a->say.replies, 1, 20) != a->say.replies)
        serve_refuse(r, "best_of", serve_member(r, "best_of"),
                     "all answers are told, so it must be as 'n'");
    a->say.sampling = &a->sampling;
    a->stream = serve_read_flag(r, "stream", false);
    read_stream_options(r);
    a->user = serve_read_text(r, "user");
    if (serve_read_text(r, "prompt_cache_key"))
        a->user = serve_read_text(r, "prompt_cache_key");
    serve_read_text(r, "model");
    read_sampling(r);
    read_stops(r);
    read_format(r);
    serve_read_logprobs(r);
    if (chat)
        serve_read_tools(r);
    if (chat)
        serve_read_messages(r);
    else
        read_prompt(r);
}

bool serve_ask_read(serve_ask *ask, serve_kind kind, const char *body, size_t bytes, char *why,
                    size_t why_bytes)
{
    reader r = {.ask = ask, .why = why, .why_bytes = why_bytes, .ok = true};
    json_error_t error;

    *ask = (serve_ask){.kind = kind};
    ask->root = json_loadb(body ? body : "", bytes, JSON_REJECT_DUPLICATES, &error);
    if (!ask->root)
        td_text(why, why_bytes, "the body is no JSON: line %d: %s", error.line, error.text);
    else if (!json_is_object(ask->root))
        td_text(why, why_bytes, "the body must be a JSON object");
    if (!json_is_object(ask->root))
        return false;
    (kind == SERVE_EMBED ? serve_read_embed : read_all)(&r);
    return r.ok;
}

void serve_ask_free(serve_ask *ask)
{
    json_decref(ask->root);
    free(ask->inputs);
    free(ask->turns);
    free(ask->stops);
    free(ask->bias_tokens);
    free(ask->biases);
    free(ask->schema);
    free(ask->grammar.text);
    free(ask->told_tools.text);
    json_decref(ask->texts);
    *ask = (serve_ask){0};
}
