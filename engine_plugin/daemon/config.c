/* The configuration file: `key = value` lines.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/daemon/config.h"
#include "engine_plugin/daemon/limits.h"
#include "engine_plugin/daemon/log.h"
#include "interop/os/file.h"

enum { LINE_BYTES = 8192, MOST_LINES = 10000 };

const char td_config_help[] =
    "  backend = auto          auto, cuda or cpu; auto takes the CPU where there is no CUDA device     (at start)\n"
    "  threads = 0             most threads that CPU kernels use; 0: all cores                         (at start)\n"
    "  metrics = 0             port of the Prometheus metrics at http://127.0.0.1:PORT/metrics; 0: none (at start)\n"
    "  tuning = PATH           what `tandem tune` wrote on this GPU, for AUTO to go by                 (at start)\n"
    "  log = info              error, warn, info or debug\n"
    "  clients = 32            sessions at a time, 1 to 48\n"
    "  mems = 1024             of a client, and so on; what it has stays as it is when these change\n"
    "  timelines = 256\n"
    "  models = 32\n"
    "  mem_bytes = 4G          the largest mem; K, M and G are powers of 1024\n"
    "  client_bytes = 8G       all mems of a client together, and scratch and temporary outputs of its jobs\n"
    "  total_bytes = 32G       the same of all clients together\n"
    "  model_bytes = 32G       all models together\n"
    "  share_window_us = 8000  how much compute one client may be ahead of another by earlier deadlines\n"
    "  job_ms = 60000          a job that runs longer hangs: its worker is replaced, and the job is LOST; 0: no bound\n"
    "  model_dir = PATH        models may be loaded from beneath it; up to 8 lines\n"
    "  allow_uid = N           this user may connect too; up to 16 lines\n";

td_config td_config_default(void)
{
    return (td_config){
        .clients = 32,
        .mems = 1024,
        .timelines = 256,
        .models = 32,
        .log_level = TD_LOG_INFO,
        .mem_bytes = 4ull << 30,
        .client_bytes = 8ull << 30,
        .total_bytes = 32ull << 30,
        .model_bytes = 32ull << 30,
        .share_window_ns = 8000000,
        .job_ns = 60 * TD_SECOND,
    };
}

typedef struct key {
    const char *name;
    size_t at;
    bool wide; /* 64 bits, with K, M, G */
    uint64_t least, most;
    const char *words[5]; /* instead of numbers */
} key;

#define AT(member) offsetof(td_config, member)
static const key keys[] = {
    {"backend", AT(backend), false, 0, 2, {"auto", "cuda", "cpu"}},
    {"threads", AT(threads), false, 0, 4096, {0}},
    {"metrics", AT(metrics_port), false, 0, 65535, {0}},
    {"log", AT(log_level), false, 0, 3, {"error", "warn", "info", "debug"}},
    {"clients", AT(clients), false, 1, TD_MAX_CLIENTS, {0}},
    {"mems", AT(mems), false, 1, 16384, {0}},
    {"timelines", AT(timelines), false, 1, 16384, {0}},
    {"models", AT(models), false, 1, 1024, {0}},
    {"mem_bytes", AT(mem_bytes), true, 4096, 1ull << 46, {0}},
    {"client_bytes", AT(client_bytes), true, 4096, 1ull << 46, {0}},
    {"total_bytes", AT(total_bytes), true, 4096, 1ull << 46, {0}},
    {"model_bytes", AT(model_bytes), true, 0, 1ull << 46, {0}},
    {"share_window_us", AT(share_window_ns), true, 0, 10000000, {0}},
    {"job_ms", AT(job_ns), true, 0, 86400000, {0}},
};

static bool number_of(const char *text, bool wide, uint64_t *out)
{
    static const char units[] = "KMG";
    const char *unit;
    char *end;

    if (!isdigit((unsigned char)*text))
        return false;
    errno = 0;
    *out = strtoull(text, &end, 10);
    if (errno)
        return false;
    unit = wide && *end ? strchr(units, *end) : NULL;
    if (unit) {
        const uint64_t factor = 1ull << 10 * (unit - units + 1);

        end++;
        if (!td_mul_u64(*out, factor, out))
            return false;
    }
    return !*end;
}

static tandem_status set_key(td_config *config, const key *k, const char *value, char *why, size_t why_bytes)
{
    uint64_t number = UINT64_MAX;

    for (uint64_t i = 0; k->words[0] && k->words[i]; i++)
        if (!strcmp(k->words[i], value))
            number = i;
    if (k->words[0] && number == UINT64_MAX) {
        char words[80] = "";
        int at = 0;

        for (int i = 0; k->words[i]; i++)
            at += snprintf(words + at, sizeof words - (size_t)at, "%s%s", i ? k->words[i + 1] ? ", " : " or " : "",
                           k->words[i]);
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s is '%.80s', must be %s", k->name, value, words);
    }
    if (!k->words[0] && !number_of(value, k->wide, &number))
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s is '%.80s', must be a number%s", k->name, value,
                       k->wide ? ", behind it K, M, G or nothing" : "");
    if (number < k->least || number > k->most)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s is %" PRIu64 ", must be %" PRIu64 " to %" PRIu64, k->name,
                       number, k->least, k->most);
    if (k->at == AT(share_window_ns))
        number *= 1000;
    if (k->at == AT(job_ns))
        number *= 1000000;
    if (k->wide)
        memcpy((char *)config + k->at, &number, sizeof number);
    else
        memcpy((char *)config + k->at, &(uint32_t){(uint32_t)number}, sizeof(uint32_t));
    return TANDEM_OK;
}

static tandem_status set(td_config *config, const char *name, const char *value, char *why, size_t why_bytes)
{
    uint64_t number;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(keys[i].name, name))
            return set_key(config, &keys[i], value, why, why_bytes);
    if (!strcmp(name, "model_dir")) {
        if (!td_file_is_from_root(value) || strlen(value) >= sizeof config->model_dirs[0])
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "model_dir is '%.80s', must be an absolute path of at most %zu bytes", value,
                           sizeof config->model_dirs[0] - 1);
        if (config->model_dir_count == TD_MAX_MODEL_DIRS)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "model_dir is there more than %d times",
                           TD_MAX_MODEL_DIRS);
        snprintf(config->model_dirs[config->model_dir_count++], sizeof config->model_dirs[0], "%s", value);
        return TANDEM_OK;
    }
    if (!strcmp(name, "tuning")) {
        if (!td_file_is_from_root(value) || strlen(value) >= sizeof config->tuning)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                           "tuning is '%.80s', must be an absolute path of at most %zu bytes", value,
                           sizeof config->tuning - 1);
        snprintf(config->tuning, sizeof config->tuning, "%s", value);
        return TANDEM_OK;
    }
    if (!strcmp(name, "allow_uid")) {
        if (!number_of(value, false, &number) || number >= UINT32_MAX)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "allow_uid is '%.80s', must be a user's number", value);
        if (config->allow_count == TD_MAX_ALLOWED)
            return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "allow_uid is there more than %d times", TD_MAX_ALLOWED);
        config->allow[config->allow_count++] = (uint32_t)number;
        return TANDEM_OK;
    }
    return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "'%.80s' is no key: see tandemd --help", name);
}

/* What may be right by the time that a model is loaded. */
static void warn(const td_config *config)
{
    for (uint32_t i = 0; i < config->model_dir_count; i++)
        if (access(config->model_dirs[i], R_OK | X_OK))
            td_say(TD_LOG_WARN, "model_dir is '%s': %s", config->model_dirs[i], strerror(errno));
}

/* Without the blanks on both sides. */
static char *trim(char *text)
{
    char *end = text + strlen(text);

    while (end > text && isspace((unsigned char)end[-1]))
        *--end = 0;
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

/* One line's setting. */
static tandem_status read_line(td_config *config, char *line, char *why, size_t why_bytes)
{
    char *name = trim(line), *value;

    if (!*name || *name == '#')
        return TANDEM_OK;
    value = strchr(name, '=');
    if (!value)
        return td_fail(why, why_bytes, TANDEM_ERROR_ARG, "'%.80s' has no '='", name);
    *value++ = 0;
    return set(config, trim(name), trim(value), why, why_bytes);
}

tandem_status td_config_read(const char *path, td_config *config, char *why, size_t why_bytes)
{
    td_config made = td_config_default();
    tandem_status status = TANDEM_OK;
    FILE *file = fopen(path, "re");
    char *line = malloc(LINE_BYTES), text[200];
    uint32_t number = 1;

    if (!file || !line) {
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s: %s", path, strerror(errno));
        goto out;
    }
    for (size_t length = 0; status == TANDEM_OK && number <= MOST_LINES; number++, length = 0) {
        int c;

        while ((c = getc(file)) > 0 && c != '\n' && length + 1 < LINE_BYTES)
            line[length++] = (char)c;
        line[length] = 0;
        if (c >= 0 && c != '\n')
            status = c ? td_fail(text, sizeof text, TANDEM_ERROR_ARG, "it has more than %d bytes", LINE_BYTES - 1)
                       : td_fail(text, sizeof text, TANDEM_ERROR_ARG, "byte %zu is 0: it is no text", length);
        else
            status = read_line(&made, line, text, sizeof text);
        if (status != TANDEM_OK)
            td_fail(why, why_bytes, status, "%s, line %u: %s", path, number, text);
        if (c < 0)
            break;
    }
    if (status == TANDEM_OK && ferror(file))
        status = td_fail(why, why_bytes, TANDEM_ERROR_IO, "%s cannot be read", path);
    else if (status == TANDEM_OK && number > MOST_LINES)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG, "%s has more than %d lines", path, MOST_LINES);
    if (status == TANDEM_OK) {
        *config = made;
        warn(config);
    }
out:
    free(line);
    if (file)
        fclose(file);
    return status;
}
