/* A request's JSON, checked. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Members that are not known are left alone, as clients send many; those that are known and ask for
 * what is not here are refused.
 */
#include <math.h>
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

enum { MOST_STOPS = 16, MOST_TURNS = 4096, MOST_BIASES = 1024, MOST_TOKENS = 1 << 20 };

typedef struct reader {
    serve_ask *ask;
    char *why;
    size_t why_bytes;
    bool ok; /* once it is not, nothing more is read */
} reader;

static void refuse(reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void refuse(reader *r, const char *format, ...)
{
    va_list args;

    if (!r->ok)
        return;
    va_start(args, format);
    td_text_list(r->why, r->why_bytes, format, args);
    va_end(args);
    r->ok = false;
}

/* --- Members --- */

/* NULL: it is not there, or null. */
static json_t *member(const reader *r, const char *name)
{
    json_t *value = json_object_get(r->ask->root, name);

    return json_is_null(value) ? NULL : value;
}

static float number(reader *r, const char *name, float otherwise, double least, double most)
{
    const json_t *value = member(r, name);

    if (!value)
        return otherwise;
    if (!json_is_number(value) || !(json_number_value(value) >= least) ||
        !(json_number_value(value) <= most))
        refuse(r, "'%s' must be a number from %g to %g", name, least, most);
    return (float)json_number_value(value);
}

static uint32_t count(reader *r, const char *name, uint32_t otherwise, uint32_t least,
                      uint32_t most)
{
    const json_t *value = member(r, name);

    if (!value)
        return otherwise;
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > most)
        refuse(r, "'%s' must be a whole number from %u to %u", name, (unsigned)least,
               (unsigned)most);
    return (uint32_t)json_integer_value(value);
}

static bool flag(reader *r, const char *name)
{
    const json_t *value = member(r, name);

    if (value && !json_is_boolean(value))
        refuse(r, "'%s' must be true or false", name);
    return json_is_true(value);
}

static const char *text(reader *r, const char *name)
{
    const json_t *value = member(r, name);

    if (value && !json_is_string(value))
        refuse(r, "'%s' must be a string", name);
    return json_string_value(value);
}

/* --- Sampling --- */

static void read_bias(reader *r)
{
    json_t *biases = member(r, "logit_bias"), *value;
    const char *name;
    uint32_t n = 0;

    if (biases && (!json_is_object(biases) || json_object_size(biases) > MOST_BIASES))
        refuse(r, "'logit_bias' must be an object of at most %d tokens", MOST_BIASES);
    if (!biases || !r->ok)
        return;
    r->ask->bias_tokens = calloc(json_object_size(biases) + 1, sizeof(uint32_t));
    r->ask->biases = calloc(json_object_size(biases) + 1, sizeof(float));
    if (!r->ask->bias_tokens || !r->ask->biases) {
        refuse(r, "no memory for 'logit_bias'");
        return;
    }
    json_object_foreach(biases, name, value)
    {
        char *end;
        const unsigned long token = strtoul(name, &end, 10);

        if (*name < '0' || *name > '9' || *end || token > UINT32_MAX || !json_is_number(value))
            refuse(r, "'logit_bias' must have numbers by tokens");
        r->ask->bias_tokens[n] = (uint32_t)token;
        /* -100 means never, here as there. */
        r->ask->biases[n++] =
            json_number_value(value) <= -100 ? -INFINITY : (float)json_number_value(value);
    }
    r->ask->sampling.bias_count = n;
    r->ask->sampling.bias_tokens = r->ask->bias_tokens;
    r->ask->sampling.biases = r->ask->biases;
}

static void read_sampling(reader *r)
{
    const json_t *seed = member(r, "seed");
    tandem_sampling *s = &r->ask->sampling;

    *s = TANDEM_INIT(tandem_sampling);
    if (seed && !json_is_integer(seed))
        refuse(r, "'seed' must be a whole number");
    s->seed = seed ? (uint64_t)json_integer_value(seed) : td_now_ns();
    s->temperature = number(r, "temperature", 1, 0, 2);
    s->top_p = number(r, "top_p", 0, 0, 1);
    s->top_k = count(r, "top_k", 0, 0, INT32_MAX);
    s->min_p = number(r, "min_p", 0, 0, 1);
    s->typical_p = number(r, "typical_p", 0, 0, 1);
    s->repetition = number(r, "repetition_penalty", 0, 0, 1000);
    s->frequency = number(r, "frequency_penalty", 0, -2, 2);
    s->presence = number(r, "presence_penalty", 0, -2, 2);
    read_bias(r);
}

/* --- What a reply must be --- */

static void add_stop(reader *r, const json_t *stop)
{
    if (!json_is_string(stop) || !json_string_length(stop))
        refuse(r, "'stop' must be texts");
    else
        r->ask->stops[r->ask->say.stop_count++] = json_string_value(stop);
}

static void read_stops(reader *r)
{
    const json_t *stop = member(r, "stop"), *each;
    size_t i;

    if (!stop)
        return;
    if (json_array_size(stop) > MOST_STOPS) {
        refuse(r, "'stop' must be at most %d texts", MOST_STOPS);
        return;
    }
    r->ask->stops = calloc(MOST_STOPS, sizeof *r->ask->stops);
    if (!r->ask->stops)
        refuse(r, "no memory for 'stop'");
    else if (!json_is_array(stop))
        add_stop(r, stop);
    else
        json_array_foreach(stop, i, each) add_stop(r, each);
    r->ask->say.stops = r->ask->stops;
}

static void read_format(reader *r)
{
    const json_t *format = member(r, "response_format"), *type = json_object_get(format, "type");
    const json_t *schema = json_object_get(json_object_get(format, "json_schema"), "schema");
    const char *name = json_string_value(type) ? json_string_value(type) : "";

    r->ask->say.grammar = text(r, "grammar");
    if (!format || !strcmp(name, "text"))
        return;
    if (r->ask->say.grammar)
        refuse(r, "'grammar' and 'response_format' go alone");
    else if (!strcmp(name, "json_object"))
        r->ask->schema = strdup("{\"type\": \"object\"}");
    else if (!strcmp(name, "json_schema") && schema)
        r->ask->schema = json_dumps(schema, JSON_ENCODE_ANY);
    else
        refuse(r, "'response_format' must be of type text, json_object, or json_schema with "
                  "json_schema.schema");
    if (r->ok && !r->ask->schema)
        refuse(r, "no memory for 'response_format'");
    r->ask->say.json_schema = r->ask->schema;
}

/* --- Messages --- */

static bool find_role(const char *name, uint32_t *role)
{
    static const struct {
        const char *name;
        uint32_t role;
    } roles[] = {{"system", TANDEM_ROLE_SYSTEM},
                 {"developer", TANDEM_ROLE_SYSTEM},
                 {"user", TANDEM_ROLE_USER},
                 {"assistant", TANDEM_ROLE_NPC}};

    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!strcmp(roles[i].name, name)) {
            *role = roles[i].role;
            return true;
        }
    return false;
}

/* A text, or parts of one, which become one. */
static const char *read_content(reader *r, json_t *message)
{
    json_t *content = json_object_get(message, "content"), *part;
    serve_text whole = {0};
    size_t i;

    if (!json_is_array(content))
        return json_string_value(content);
    json_array_foreach(content, i, part)
    {
        const json_t *piece = json_object_get(part, "text");

        if (!json_is_string(piece)) {
            free(whole.text);
            return NULL;
        }
        serve_put(&whole, json_string_value(piece), json_string_length(piece));
    }
    content = json_stringn(whole.text ? whole.text : "", whole.bytes);
    free(whole.text);
    if (!content || json_object_set_new(message, "content", content))
        refuse(r, "no memory for 'messages'");
    return json_string_value(json_object_get(message, "content"));
}

static void read_messages(reader *r)
{
    json_t *messages = member(r, "messages"), *message;
    size_t i;

    if (!json_is_array(messages) || !json_array_size(messages) ||
        json_array_size(messages) > MOST_TURNS) {
        refuse(r, "'messages' must be a list of 1 to %d", MOST_TURNS);
        return;
    }
    r->ask->turns = calloc(json_array_size(messages), sizeof *r->ask->turns);
    if (!r->ask->turns)
        refuse(r, "no memory for 'messages'");
    json_array_foreach(messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        uint32_t of = 0;

        if (!r->ok)
            return;
        if (!role || !find_role(role, &of))
            refuse(r, "'messages[%zu].role' must be system, developer, user or assistant", i);
        const char *content = r->ok ? read_content(r, message) : NULL;
        if (!content)
            refuse(r, "'messages[%zu].content' must be a string, or parts of type text", i);
        r->ask->turns[i] = TANDEM_INIT(tandem_turn, .role = of, .text = content);
        r->ask->turn_count = (uint32_t)i + 1;
    }
}

static void read_prompt(reader *r)
{
    const json_t *prompt = member(r, "prompt");

    if (json_is_array(prompt) && json_array_size(prompt) == 1)
        prompt = json_array_get(prompt, 0);
    if (!json_is_string(prompt))
        refuse(r, "'prompt' must be a string");
    r->ask->prompt = r->ask->say.text = json_string_value(prompt);
}

/* --- The whole --- */

/* What is known and is not here. */
static void refuse_what_lacks(reader *r)
{
    static const char *const lacks[] = {"tools", "functions", "logprobs", "top_logprobs",
                                        "echo",  "suffix",    "audio"};

    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++) {
        const json_t *value = member(r, lacks[i]);
        const bool is_nothing = !value || json_is_false(value) ||
                                (json_is_array(value) && !json_array_size(value)) ||
                                (json_is_string(value) && !json_string_length(value)) ||
                                (json_is_integer(value) && !json_integer_value(value));

        if (!is_nothing)
            refuse(r, "'%s' is not supported here", lacks[i]);
    }
}

static void read_all(reader *r)
{
    serve_ask *a = r->ask;
    const uint32_t most = count(r, "max_tokens", a->chat ? 256 : 16, 1, MOST_TOKENS);

    refuse_what_lacks(r);
    a->say = TANDEM_INIT(tandem_say);
    a->say.most_tokens = count(r, "max_completion_tokens", most, 1, MOST_TOKENS);
    a->say.replies = count(r, "n", 1, 1, 16);
    a->say.sampling = &a->sampling;
    a->stream = flag(r, "stream");
    a->usage = json_is_true(json_object_get(member(r, "stream_options"), "include_usage"));
    a->user = text(r, "user");
    text(r, "model");
    read_sampling(r);
    read_stops(r);
    read_format(r);
    if (a->chat)
        read_messages(r);
    else
        read_prompt(r);
}

bool serve_ask_read(serve_ask *ask, bool chat, const char *body, size_t bytes, char *why,
                    size_t why_bytes)
{
    reader r = {.ask = ask, .why = why, .why_bytes = why_bytes, .ok = true};
    json_error_t error;

    *ask = (serve_ask){.chat = chat};
    ask->root = json_loadb(body ? body : "", bytes, JSON_REJECT_DUPLICATES, &error);
    if (!ask->root)
        refuse(&r, "the body is no JSON: line %d: %s", error.line, error.text);
    else if (!json_is_object(ask->root))
        refuse(&r, "the body must be a JSON object");
    else
        read_all(&r);
    return r.ok;
}

void serve_ask_free(serve_ask *ask)
{
    json_decref(ask->root);
    free(ask->turns);
    free(ask->stops);
    free(ask->bias_tokens);
    free(ask->biases);
    free(ask->schema);
    *ask = (serve_ask){0};
}
