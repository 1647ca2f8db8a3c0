/* The words of a command line, and what is said of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/ladder.h"
#include "engine_plugin/tool/tool.h"
#include "kernels/graph.h"
#include "tandem/tandem.h"

static void complain(const char *command, const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
    fflush(stdout); /* where both go to one file this comes last */
    fprintf(stderr, "tandem%s%s: %s\n", command ? " " : "", command ? command : "", text);
}

int tool_usage(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(command, format, args);
    va_end(args);
    return TOOL_USAGE;
}

int tool_fail(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(command, format, args);
    va_end(args);
    return TOOL_FAILED;
}

int tool_parse(const char *command, int argc, char **argv, const tool_option *options, size_t count)
{
    for (int i = 0; i < argc; i++) {
        const bool is_option = argv[i][0] == '-' && argv[i][1];
        const char *equals = is_option ? strchr(argv[i], '=') : NULL;
        const size_t length = !is_option ? 0 : equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const tool_option *option = NULL;
        for (size_t o = 0; o < count && !option; o++)
            if (strlen(options[o].name) == length && memcmp(options[o].name, argv[i], length) == 0)
                option = &options[o];
        if (!option || (!is_option && *option->value))
            return tool_usage(command, argv[i][0] == '-' ? "unknown option \"%s\"" : "unexpected argument \"%s\"",
                              argv[i]);
        if (!is_option) {
            *option->value = argv[i];
            continue;
        }
        if (!option->value) {
            if (equals)
                return tool_usage(command, "%s takes no value, got \"%s\"", option->name, equals + 1);
            *option->given = true;
        } else if (equals) {
            *option->value = equals + 1;
        } else if (i + 1 < argc) {
            *option->value = argv[++i];
        } else {
            return tool_usage(command, "%s needs a value", option->name);
        }
        if (option->value && !**option->value)
            return tool_usage(command, "%s needs a value, got \"\"", option->name);
    }
    return TOOL_OK;
}

int tool_word(const char *value, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    return -1;
}

int tool_words(const char *command, const char *option, const char *list, const char *const *words)
{
    uint64_t seen = 0;
    for (const char *at = list, *end; at; at = *end ? end + 1 : NULL) {
        char word[32], legal[200] = "";
        end = at + strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)(end - at), at);
        const int which = (size_t)(end - at) < sizeof word ? tool_word(word, words) : -1;
        for (int i = 0; words[i]; i++)
            snprintf(legal + strlen(legal), sizeof legal - strlen(legal), "%s%s", i ? ", " : "", words[i]);
        if (which < 0)
            return tool_usage(command, "%s \"%s\": \"%.*s\" is none of %s", option, list, (int)(end - at), at, legal);
        if (seen >> which & 1)
            return tool_usage(command, "%s \"%s\": %s is there twice", option, list, word);
        seen |= UINT64_C(1) << which;
    }
    return TOOL_OK;
}

bool tool_has(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; at && *at;) {
        const char *comma = strchr(at, ',');
        const size_t part = comma ? (size_t)(comma - at) : strlen(at);
        if (part == length && !memcmp(at, word, length))
            return true;
        at = comma ? comma + 1 : NULL;
    }
    return !list;
}

bool tool_number(const char *value, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(value, &end, 10);
    return *value >= '0' && *value <= '9' && !*end && errno == 0 && *out >= least && *out <= most;
}

bool tool_decimal(const char *value, double least, double most, double *out)
{
    char text[64];
    float number;

    if (!value)
        return true;
    snprintf(text, sizeof text, "%s%s", *value == '.' ? "0" : "", value); /* people write .999 */
    if (strlen(value) + 1 >= sizeof text || !td_graph_decimal(text, &number))
        return false;
    *out = (double)number;
    return *out >= least && *out <= most;
}

void tool_json_string(const char *text)
{
    putchar('"');
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if ((unsigned char)*c < 32)
            printf("\\u%04x", (unsigned)(unsigned char)*c);
        else
            putchar(*c);
    }
    putchar('"');
}

const char *tool_backend_name(uint32_t backend)
{
    return backend == TANDEM_BACKEND_CUDA ? "cuda" : backend == TANDEM_BACKEND_CPU ? "cpu" : "auto";
}

bool tool_rung(const char *command, const char *value, uint32_t *rung)
{
    char legal[80] = "auto";

    *rung = 0;
    for (uint32_t r = TANDEM_RUNG_INLINE; r <= TANDEM_RUNG_CPU; r++) {
        snprintf(legal + strlen(legal), sizeof legal - strlen(legal), ", %s", td_rung_name(r));
        if (!strcmp(value, td_rung_name(r)))
            *rung = r;
    }
    if (*rung || !strcmp(value, "auto"))
        return true;
    tool_usage(command, "--rung \"%s\" is none of %s", value, legal);
    return false;
}

const char *const tool_precisions[] = {[TANDEM_PRECISION_AUTO] = "auto",
                                       [TANDEM_PRECISION_F16] = "f16",
                                       [TANDEM_PRECISION_8B] = "8b",
                                       [TANDEM_PRECISION_4B] = "4b",
                                       NULL};

bool tool_precision(const char *command, const char *option, const char *value, uint32_t *precision)
{
    const int index = tool_word(value, tool_precisions);

    if (index < 0)
        tool_usage(command, "%s \"%s\" is none of auto, f16, 8b, 4b", option, value);
    *precision = index < 0 ? 0 : (uint32_t)index;
    return index >= 0;
}

bool tool_cache(const char *command, const char *value, uint32_t precision, uint32_t *cache)
{
    static const char *const formats[] = {"f16", "k8v8", "k4v8", "f32", NULL};
    const int index = tool_word(value, formats);

    if (index < 0)
        tool_usage(command, "--kv \"%s\" is none of f16, k8v8, k4v8, f32", value);
    else if (index && precision > TANDEM_PRECISION_F16)
        tool_usage(command, "--kv %s: attention on it is f16, so --attention must be f16 or auto", value);
    *cache = index < 0 ? 0 : (uint32_t)index;
    return index == 0 || (index > 0 && precision <= TANDEM_PRECISION_F16);
}
