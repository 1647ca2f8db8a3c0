/* `tandem calibrate`: which heads of tensors are worth INT8; and, in calibrate_model.c, which layers of a model.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Score of a head: CosSim * (1 - relative L1) of 4b against float64, averaged over the inputs (the batches of its
 * file). The lowest --percent of all heads get 8b, the others 4b.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/calibrate.h"
#include "engine_plugin/tool/samples.h"

typedef struct scored {
    uint32_t layer, head, inputs;
    double score, cosine, l1;
    bool needs_8b;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *const x = *(scored *const *)a, *const y = *(scored *const *)b;
    if (x->score != y->score)
        return x->score < y->score ? -1 : 1;
    return x < y ? -1 : 1;
}

/* Adds a sample's metrics to those of its head; *count grows where the head is new. */
static void add(scored *all, uint32_t *count, const tool_sample *s, tool_metrics m)
{
    uint32_t i = 0;
    while (i < *count && (all[i].layer != s->layer || all[i].head != s->head_of_file))
        i++;
    if (i == *count)
        all[(*count)++] = (scored){.layer = s->layer, .head = s->head_of_file};
    all[i].inputs++;
    all[i].score += m.cosine * (1 - m.l1);
    all[i].cosine += m.cosine;
    all[i].l1 += m.l1;
}

static bool score_all(const tool_samples *samples, scored *all, uint32_t *count, char *why, size_t why_bytes)
{
    for (uint32_t i = 0; i < samples->count; i++) {
        const tool_sample *s = &samples->items[i];
        const size_t n = (size_t)s->head.q_len * s->head.dim;
        float *o = malloc(n * sizeof *o);
        const bool done = o && tool_run_mode(&s->head, TANDEM_PRECISION_4B, 0, NULL, o, tool_cores(), why, why_bytes);
        if (done)
            add(all, count, s, tool_measure(o, s->exact, n));
        free(o);
        if (!done)
            return false;
    }
    for (uint32_t i = 0; i < *count; i++) {
        all[i].score /= all[i].inputs;
        all[i].cosine /= all[i].inputs;
        all[i].l1 /= all[i].inputs;
    }
    return true;
}

static json_t *plan_of(const scored *all, uint32_t count, char *const *files, uint32_t file_count, double percent)
{
    json_t *layers = json_array();
    for (uint32_t layer = 0; layer < file_count; layer++) {
        json_t *heads = json_array();
        for (uint32_t i = 0; i < count; i++)
            if (all[i].layer == layer)
                json_array_append_new(heads,
                                      json_pack("{s:i, s:s, s:f, s:f, s:f, s:i}", "head", (int)all[i].head, "precision",
                                                all[i].needs_8b ? "8b" : "4b", "score", all[i].score, "cosine",
                                                all[i].cosine, "relative_l1", all[i].l1, "inputs", (int)all[i].inputs));
        json_array_append_new(layers, json_pack("{s:s, s:o}", "file", files[layer], "heads", heads));
    }
    return json_pack("{s:s, s:f, s:o}", "tandem", "precision plan", "percent_8b", percent, "layers", layers);
}

int tool_calibrate(int argc, char **argv)
{
    const char *percent_text = NULL, *json_path = NULL;
    char why[512] = "", *files[1024], *rest[32];
    uint32_t file_count = 0, count = 0;
    int rest_count = 0, status = TOOL_OK;
    bool causal = false, list = false;
    tool_calibration asked = {.rung = "auto", .files = files};
    for (int i = 0; i < argc; i++) { /* every file after --in, up to the next option */
        const bool joined = strncmp(argv[i], "--in=", 5) == 0;
        if (strcmp(argv[i], "--in") == 0) {
            list = true;
        } else if (joined || (list && strncmp(argv[i], "--", 2) != 0)) {
            list = true;
            if (file_count == sizeof files / sizeof *files)
                return tool_usage("calibrate", "--in \"%s\": more than 1024 files", argv[i]);
            files[file_count++] = argv[i] + (joined ? 5 : 0);
        } else {
            list = false;
            if (rest_count == sizeof rest / sizeof *rest)
                return tool_usage("calibrate", "too many arguments, from \"%s\" on", argv[i]);
            rest[rest_count++] = argv[i];
            /* an option's value is not a file */
            if (strchr(argv[i], '=') == NULL && strcmp(argv[i], "--causal") != 0 && i + 1 < argc &&
                rest_count < (int)(sizeof rest / sizeof *rest))
                rest[rest_count++] = argv[++i];
        }
    }
    const tool_option options[] = {
        {"--percent", &percent_text, NULL}, {"--json", &json_path, NULL},     {"--causal", NULL, &causal},
        {"--model", &asked.model, NULL},    {"--set", &asked.set, NULL},       {"--rung", &asked.rung, NULL},
        {"--target", &asked.target, NULL},  {"--at-most-ms", &asked.at_most, NULL}, {"--rows", &asked.rows, NULL},
        {"--out", &asked.out, NULL}};
    if (tool_parse("calibrate", rest_count, rest, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!tool_rung("calibrate", asked.rung, &asked.rung_value))
        return TOOL_USAGE;
    if (!file_count)
        return tool_usage("calibrate", "--in is missing; `tandem help calibrate` explains it");
    asked.file_count = file_count;
    if (asked.model && (percent_text || json_path || causal))
        return tool_usage("calibrate", "%s goes without --model", percent_text ? "--percent" : json_path ? "--json" : "--causal");
    if (asked.model)
        return tool_calibrate_model(&asked);
    if (asked.set || asked.target || asked.at_most || asked.rows || asked.out)
        return tool_usage("calibrate", "--model is missing; `tandem help calibrate` explains it");
    char *end = NULL;
    const double percent = percent_text ? strtod(percent_text, &end) : 30;
    if (percent_text && (*end || end == percent_text || !(percent >= 0 && percent <= 100)))
        return tool_usage("calibrate", "--percent \"%s\" is not a number from 0 to 100", percent_text);

    tool_samples samples = {0};
    scored *all = NULL, **order = NULL;
    json_t *json = NULL;
    for (uint32_t i = 0; i < file_count && !status; i++)
        if (!tool_samples_read(&samples, files[i], i, causal, why, sizeof why))
            status = tool_fail("calibrate", "%s", why);
    if (!status && json_path && !tool_can_write("--json", json_path, why, sizeof why))
        status = tool_fail("calibrate", "%s", why);
    if (status)
        goto end;
    all = calloc(samples.count, sizeof *all);
    order = calloc(samples.count, sizeof *order);
    if (!all || !order || !tool_samples_exact(&samples, tool_cores(), why, sizeof why) ||
        !score_all(&samples, all, &count, why, sizeof why)) {
        status = tool_fail("calibrate", "%s", why[0] ? why : "out of memory");
        goto end;
    }
    for (uint32_t i = 0; i < count; i++)
        order[i] = &all[i];
    qsort(order, count, sizeof *order, by_score);
    const uint32_t wanted = (uint32_t)(percent / 100 * count + 0.5);
    printf("%-8s %5s %7s  %8s  %8s  %8s\n", "use", "layer", "head", "score", "CosSim", "L1");
    for (uint32_t i = 0; i < count; i++) {
        order[i]->needs_8b = i < wanted;
        printf("%-8s %5u %7u  %8.5f  %8.5f  %8.5f\n", i < wanted ? "8b" : "4b", order[i]->layer, order[i]->head,
               order[i]->score, order[i]->cosine, order[i]->l1);
    }
    json = plan_of(all, count, files, file_count, percent);
    if (json_path && json_dump_file(json, json_path, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) != 0)
        status = tool_fail("calibrate", "--json \"%s\" could not be written", json_path);
end:
    json_decref(json);
    free(order);
    free(all);
    tool_samples_free(&samples);
    return status;
}
