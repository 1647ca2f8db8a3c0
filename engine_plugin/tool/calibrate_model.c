/* `tandem calibrate --model`: which precision each layer of a network needs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A session samples all layers in all precisions, input after input; so it is on any device, by what a session does live. A
 * layer's score is CosSim * (1 - relative L1) against exact attention, the mean over inputs.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/calibrate.h"
#include "engine_plugin/tool/network.h"
#include "engine_plugin/tool/tool.h"
#include "kernels/model/precision_plan.h"

enum { RUNS = 9 }; /* whose median is how long a run takes */

typedef struct scored {
    char name[256];
    uint32_t node, precision, worst_head;
    uint32_t counts[TD_SAMPLES];
    double similarity[TD_SAMPLES]; /* sums */
    double worst;
} scored;

typedef struct calibration {
    tool_network n;
    scored *layers;
    uint32_t count;
    double target, at_most_ms, ms;
    uint64_t rows;
} calibration;

/* --- Scores --- */

static bool add_layers(calibration *c, uint32_t count)
{
    tandem_layer layer;

    if (!c->layers && count)
        c->layers = calloc(count, sizeof *c->layers);
    if (!count)
        return tool_network_fails(&c->n, "--model: has no layer of attention whose precision could be chosen");
    if (!c->layers || (c->count && c->count != count))
        return tool_network_fails(&c->n, c->layers ? "--in: for these sizes other layers are there" : "out of memory");
    c->count = count;
    for (uint32_t i = 0; i < count; i++) {
        scored *to = &c->layers[i];

        if (!tool_network_layer(&c->n, i, &layer))
            return false;
        if (!to->name[0])
            to->worst = 2;
        memcpy(to->name, layer.name, sizeof to->name);
        to->node = layer.node;
        if ((double)layer.worst_similarity < to->worst) {
            to->worst = (double)layer.worst_similarity;
            to->worst_head = layer.worst_head;
        }
        for (uint32_t p = TANDEM_PRECISION_F16; p < TD_SAMPLES; p++)
            if (layer.similarity[p] >= 0) {
                to->similarity[p] += (double)layer.similarity[p];
                to->counts[p]++;
            }
    }
    return true;
}

static double score_of(const scored *layer, uint32_t precision)
{
    return layer->counts[precision] ? layer->similarity[precision] / layer->counts[precision] : -1;
}

/* The next cheaper precision that was measured; AUTO: there is none. */
static uint32_t cheaper(const scored *layer)
{
    for (uint32_t p = layer->precision + 1; p < TD_SAMPLES; p++)
        if (layer->counts[p])
            return p;
    return TANDEM_PRECISION_AUTO;
}

/* --- Plans --- */

static json_t *plan_of(const calibration *c)
{
    json_t *layers = json_array();

    for (uint32_t i = 0; i < c->count; i++)
        json_array_append_new(layers, json_pack("{s:i, s:s, s:s, s:f}", "node", (int)c->layers[i].node, "output", c->layers[i].name,
                                                "precision", tool_precisions[c->layers[i].precision], "similarity",
                                                score_of(&c->layers[i], c->layers[i].precision)));
    json_t *plan = json_pack("{s:s, s:i, s:o}", "tandem", TD_PRECISION_PLAN_KIND, "version", TD_PRECISION_PLAN_VERSION, "layers", layers);
    if (c->target > 0)
        json_object_set_new(plan, "min_similarity", json_real(c->target));
    if (c->at_most_ms > 0) {
        json_object_set_new(plan, "at_most_ms", json_real(c->at_most_ms));
        json_object_set_new(plan, "ms", json_real(c->ms));
    }
    return plan;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* How long a run of the last input takes as it is planned now. */
static bool measure(calibration *c)
{
    json_t *plan = plan_of(c);
    char *text = json_dumps(plan, JSON_COMPACT);
    const tandem_instance_desc desc = TANDEM_INIT(tandem_instance_desc, .plan = text);
    double ms[RUNS];
    bool done = text ? tool_network_instance(&c->n, &desc) : tool_network_fails(&c->n, "out of memory");

    for (int i = 0; i < RUNS && done; i++)
        done = tool_network_run(&c->n, &ms[i]);
    if (done) {
        qsort(ms, RUNS, sizeof *ms, by_size);
        c->ms = ms[RUNS / 2];
    }
    free(text);
    json_decref(plan);
    return done;
}

/* The layer that loses least by its next cheaper precision, which is good enough; NULL: there is none. */
static scored *find_cheapest(const calibration *c)
{
    scored *best = NULL;
    double most = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        scored *layer = &c->layers[i];
        const uint32_t to = cheaper(layer);

        if (to == TANDEM_PRECISION_AUTO || score_of(layer, to) < c->target || (best && score_of(layer, to) <= most))
            continue;
        best = layer;
        most = score_of(layer, to);
    }
    return best;
}

/* As cheap as the target lets each layer be; where there is a time, no cheaper than that needs. */
static bool choose(calibration *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        c->layers[i].precision = TANDEM_PRECISION_F16;
    for (;;) {
        if (c->at_most_ms > 0 && !measure(c))
            return false;
        if (c->at_most_ms > 0 && c->ms <= c->at_most_ms)
            return true;
        scored *layer = find_cheapest(c);
        if (layer)
            layer->precision = cheaper(layer);
        else if (c->at_most_ms > 0)
            return tool_network_fails(&c->n, "--at-most-ms %g: a run takes %.3f ms, and no layer can be cheaper%s", c->at_most_ms, c->ms,
                                      c->target > 0 ? " and keep --target" : "");
        else
            return true;
    }
}

static void print_plan(const calibration *c)
{
    printf("%5s  %-24s %-9s %9s %9s %9s  %s\n", "node", "layer", "precision", "f16", "8b", "4b", "worst head, as the model says");
    for (uint32_t i = 0; i < c->count; i++) {
        const scored *layer = &c->layers[i];

        printf("%5" PRIu32 "  %-24s %-9s", layer->node, layer->name, tool_precisions[layer->precision]);
        for (uint32_t p = TANDEM_PRECISION_F16; p < TD_SAMPLES; p++)
            if (layer->counts[p])
                printf(" %9.6f", score_of(layer, p));
            else
                printf(" %9s", "-");
        printf("  %" PRIu32 ": %.6f\n", layer->worst_head, layer->worst);
    }
    if (c->at_most_ms > 0)
        printf("a run takes %.3f ms\n", c->ms);
}

/* --- The command --- */

static int read_asked(const tool_calibration *a, calibration *c)
{
    c->target = a->target || a->at_most ? 0 : 0.999;
    if (!tool_decimal(a->target, 0, 1, &c->target))
        return tool_usage("calibrate", "--target \"%s\" must be a number from 0 to 1", a->target);
    if (!tool_decimal(a->at_most, 0, 1e6, &c->at_most_ms) || (a->at_most && !(c->at_most_ms > 0)))
        return tool_usage("calibrate", "--at-most-ms \"%s\" must be a number of milliseconds above 0, up to 1000000", a->at_most);
    c->rows = 1024;
    if (a->rows && !tool_number(a->rows, 1, 1u << 30, &c->rows))
        return tool_usage("calibrate", "--rows \"%s\" must be a number from 1 to %u", a->rows, 1u << 30);
    if (!a->out)
        return tool_usage("calibrate", "--out is missing; `tandem help calibrate` explains it");
    return TOOL_OK;
}

static bool score(calibration *c)
{
    const tandem_instance_desc desc =
        TANDEM_INIT(tandem_instance_desc, .sample_every = 1, .sample_rows = (uint32_t)c->rows, .sample_all = 1);
    uint32_t layers = 0;
    double ms;

    return tool_network_instance(&c->n, &desc) && tool_network_bind(&c->n) && tool_network_run(&c->n, &ms) &&
           tool_network_judged(&c->n, &layers) && add_layers(c, layers);
}

static int compute(calibration *c, const tool_calibration *a)
{
    tool_network *n = &c->n;
    int status = read_asked(a, c);

    if (status != TOOL_OK)
        return status;
    if (!tool_can_write("--out", a->out, n->why, sizeof n->why) || !tool_network_graph(n, a->model) ||
        !tool_network_open(n, a->model, a->rung_value, NULL))
        return tool_fail("calibrate", "%s", n->why);
    for (uint32_t i = 0; i < a->file_count; i++) {
        if (!tool_network_input(n, a->files[i]))
            return tool_fail("calibrate", "%s", n->why);
        status = tool_network_sizes(n, a->set);
        if (status != TOOL_OK)
            return status;
        if (!score(c))
            return tool_fail("calibrate", "\"%s\": %s", a->files[i], n->why);
    }
    if (!choose(c))
        return tool_fail("calibrate", "%s", n->why);
    print_plan(c);
    json_t *plan = plan_of(c);
    const bool written = json_dump_file(plan, a->out, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) == 0;
    json_decref(plan);
    return written ? TOOL_OK : tool_fail("calibrate", "--out \"%s\" could not be written", a->out);
}

int tool_calibrate_model(const tool_calibration *asked)
{
    calibration *c = calloc(1, sizeof *c);

    if (!c)
        return tool_fail("calibrate", "out of memory");
    c->n.command = "calibrate";
    c->n.in.fd = -1;
    const int status = compute(c, asked);
    tool_network_close(&c->n);
    free(c->layers);
    free(c);
    return status;
}
