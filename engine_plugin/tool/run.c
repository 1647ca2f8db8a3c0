/* `tandem run`: a network on the tensors of a file, by a session.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/network.h"
#include "engine_plugin/tool/tool.h"

/* clang-format off */
const char *const tool_run_help =
    "usage: tandem run --model M.safetensors --in F.safetensors --out G.safetensors [options]\n"
    "\n"
    "Computes a network: inputs and uniforms are tensors of F with their names, dtypes and shapes, outputs\n"
    "become tensors of G. Its sizes are those of F's tensors. How a model is written: kernels/PROGRAM.md;\n"
    "what it becomes on a device: tandem plan.\n"
    "\n"
    "  --model F        safetensors with a graph in its metadata\n"
    "  --in F           tensors for all inputs and uniforms; others are left alone\n"
    "  --out F          where outputs go: written under a temporary name, then renamed\n"
    "  --set LIST       sizes that no shape of an input says by itself, as tokens=128,batch=1\n"
    "  --rung auto|inline|timeline|host|copy|cpu\n"
    "                   how compute meets memory; default auto: the GPU, or else the CPU\n"
    "  --socket PATH    compute in the tandemd that listens there, which opens the model itself: beneath a\n"
    "                   model_dir of its own\n"
    "  --precision auto|f16|8b|4b\n"
    "                   of its attention; default auto: as the model says\n"
    "  --plan F         a precision for each layer, as `tandem calibrate` has written it for this model; those that\n"
    "                   it does not name have --precision\n"
    "  --quality X      live quality control: in each run rows of each layer are recomputed exactly, and it has the\n"
    "                   cheapest precision whose similarity, cosine * (1 - relative L1), is at least X, up to 1.\n"
    "                   Prints what layers came to; 0: watches them only\n"
    "  --at-most-ms X   likewise: a run takes at most so long, by precisions that lose least\n"
    "  --runs N         1 to 1000000, one after the other: the network's state goes on from run to run, and\n"
    "                   outputs are those of the last; default 1\n"
    "\n"
    "Of several runs it prints the least time and the median, loading not included.\n";
/* clang-format on */

typedef struct arguments {
    const char *model, *in, *out, *set, *rung, *precision, *runs, *socket, *plan, *quality, *at_most;
    uint32_t rung_value, precision_value;
    double quality_value, at_most_ms;
    uint64_t run_count;
} arguments;

/* What is computed, and what comes of it. */
typedef struct running {
    tool_network n;
    double *ms; /* of each run */
    uint32_t layers; /* that are sampled */
    tool_list result;
} running;

/* --- What is asked for --- */

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {{"--model", &a->model, NULL},
                                   {"--in", &a->in, NULL},
                                   {"--out", &a->out, NULL},
                                   {"--set", &a->set, NULL},
                                   {"--rung", &a->rung, NULL},
                                   {"--precision", &a->precision, NULL},
                                   {"--runs", &a->runs, NULL},
                                   {"--socket", &a->socket, NULL},
                                   {"--plan", &a->plan, NULL},
                                   {"--quality", &a->quality, NULL},
                                   {"--at-most-ms", &a->at_most, NULL}};
    if (tool_parse("run", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model || !a->in || !a->out)
        return tool_usage("run", "%s is missing; `tandem help run` explains it",
                          !a->model ? "--model"
                          : !a->in  ? "--in"
                                    : "--out");
    if (!tool_rung("run", a->rung, &a->rung_value) || !tool_precision("run", "--precision", a->precision, &a->precision_value))
        return TOOL_USAGE;
    if (!tool_number(a->runs, 1, 1000000, &a->run_count))
        return tool_usage("run", "--runs \"%s\" must be a number from 1 to 1000000", a->runs);
    if (!tool_decimal(a->quality, 0, 1, &a->quality_value))
        return tool_usage("run", "--quality \"%s\" must be a number from 0 to 1", a->quality);
    if (!tool_decimal(a->at_most, 0, 1e6, &a->at_most_ms))
        return tool_usage("run", "--at-most-ms \"%s\" must be a number of milliseconds up to 1000000", a->at_most);
    return TOOL_OK;
}

/* --- Runs --- */

static bool open_instance(running *r, const arguments *a)
{
    char *plan = a->plan ? tool_plan_text(a->plan, r->n.why, sizeof r->n.why) : NULL;
    const tandem_instance_desc desc = TANDEM_INIT(tandem_instance_desc,
                                                  .precision = a->precision_value,
                                                  .plan = plan,
                                                  .min_similarity = (float)a->quality_value,
                                                  .max_us = (float)(a->at_most_ms * 1e3),
                                                  .sample_every = a->quality || a->at_most ? 1 + (a->at_most != NULL) : 0);
    const bool opened = (plan || !a->plan) && tool_network_instance(&r->n, &desc);

    free(plan);
    return opened;
}

/* With samples each run waits for what the one before comes to, so that the same inputs come to the same. */
static bool run_all(running *r, uint64_t count)
{
    r->ms = malloc(count * sizeof *r->ms);
    if (!r->ms)
        return tool_network_fails(&r->n, "out of memory");
    for (uint64_t i = 0; i < count; i++)
        if (!tool_network_run(&r->n, &r->ms[i]) || !tool_network_judged(&r->n, &r->layers))
            return false;
    return true;
}

static bool write_outputs(running *r, const arguments *a)
{
    tool_network *n = &r->n;

    for (uint32_t i = 0; i < n->info.binding_count; i++) {
        const tandem_network_tensor *t = &n->bindings[i];
        const char *dtype = tool_network_dtype(t->dtype);
        uint64_t shape[4] = {t->bytes, 1, 1, 1};

        if (t->role != TANDEM_NETWORK_OUTPUT)
            continue;
        for (uint32_t d = 0; dtype && d < t->dimensions; d++)
            shape[d] = t->shape[4 - t->dimensions + d];
        void *to = tool_add(&r->result, t->name, dtype ? dtype : "U8", dtype ? t->dimensions : 1,
                            shape[0], shape[1], shape[2], shape[3]);
        if (!to)
            return tool_network_fails(n, "out of memory");
        memcpy(to, (char *)n->mem.host + n->views[i].offset_bytes, t->bytes);
    }
    return tool_save(a->out, &r->result, n->why, sizeof n->why);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_report(const running *r, const arguments *a)
{
    const tool_network *n = &r->n;
    tandem_info info = TANDEM_INIT(tandem_info);
    tandem_prepared prepared = TANDEM_INIT(tandem_prepared);

    tandem_session_info(n->s, &info);
    tandem_model_prepared(n->s, n->instance, n->numbers, n->info.number_count, &prepared);
    printf("%s on %s (%s)", a->model, tool_backend_name(info.backend),
           info.backend == TANDEM_BACKEND_CPU ? info.isa : info.device);
    for (uint32_t i = 0; i < n->info.number_count; i++)
        printf(", %s %" PRIu32, n->graph->numbers[i].name, n->numbers[i]);
    printf(": %" PRIu32 " records, ", prepared.record_count);
    qsort(r->ms, a->run_count, sizeof *r->ms, by_size);
    if (a->run_count > 1)
        printf("%" PRIu64 " runs, least %.3f ms, median ", a->run_count, r->ms[0]);
    printf("%.3f ms -> %s\n", r->ms[a->run_count / 2], a->out);
}

static bool print_layers(running *r)
{
    tandem_layer layer;

    if (r->layers)
        printf("%5s  %-24s %-9s %7s %10s %9s %11s  %s\n", "node", "layer", "precision", "changes", "similarity", "cosine", "relative L1",
               "worst head");
    for (uint32_t i = 0; i < r->layers; i++) {
        if (!tool_network_layer(&r->n, i, &layer))
            return false;
        printf("%5" PRIu32 "  %-24s %-9s %7" PRIu32, layer.node, layer.name, tool_precisions[layer.precision], layer.changes);
        if (layer.samples)
            printf(" %10.6f %9.6f %11.6f  %" PRIu32 ": %.6f\n", (double)layer.similarity[layer.precision], (double)layer.cosine,
                   (double)layer.relative_l1, layer.worst_head, (double)layer.worst_similarity);
        else
            printf("  no run of that precision yet\n");
    }
    return true;
}

static int compute(running *r, const arguments *a)
{
    tool_network *n = &r->n;

    if (!tool_can_save("--out", a->out, n->why, sizeof n->why) || !tool_network_graph(n, a->model) || !tool_network_input(n, a->in))
        return tool_fail("run", "%s", n->why);
    const int status = tool_network_sizes(n, a->set);
    if (status != TOOL_OK)
        return status;
    if (!tool_network_open(n, a->model, a->rung_value, a->socket) || !open_instance(r, a) || !tool_network_bind(n) ||
        !run_all(r, a->run_count) || !write_outputs(r, a))
        return tool_fail("run", "%s", n->why[0] ? n->why : "failed");
    print_report(r, a);
    return print_layers(r) ? TOOL_OK : tool_fail("run", "%s", n->why);
}

int tool_run(int argc, char **argv)
{
    arguments a = {.rung = "auto", .precision = "auto", .runs = "1"};
    running *r = calloc(1, sizeof *r);

    if (!r)
        return tool_fail("run", "out of memory");
    r->n.command = "run";
    r->n.in.fd = -1;
    int status = read_arguments(argc, argv, &a);
    if (status == TOOL_OK)
        status = compute(r, &a);
    tool_network_close(&r->n);
    tool_list_free(&r->result);
    free(r->ms);
    free(r);
    return status;
}
