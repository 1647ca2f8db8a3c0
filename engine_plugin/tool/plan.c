/* `tandem plan`: what a model becomes on a device: records, bytes, and how long it takes at least.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/network.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "kernels/model/precision_plan.h"

/* clang-format off */
const char *const tool_plan_help =
    "usage: tandem plan --model M.safetensors [options]\n"
    "\n"
    "Plans a model for a device and prints what comes of it: each node's records, how many of them wait\n"
    "for those before, floating-point operations, bytes of views, and what is never undercut: records\n"
    "that wait for each other, however little each does. Nothing is computed, and no device is needed.\n"
    "How a model is written: kernels/PROGRAM.md.\n"
    "\n"
    "  --model F        safetensors with a graph in its metadata\n"
    "  --set LIST       the model's sizes, as tokens=128,batch=1; default: the most of each\n"
    "  --device cpu|80|86|89|90|120\n"
    "                   the CPU, or a GPU of that compute capability; default 90\n"
    "  --inline         kernels that run in command buffers as well; default: those of a CUDA stream\n"
    "  --commit         for runs with a deadline, whose outputs are written wholly or not at all\n"
    "  --plan F         a precision for each layer, as `tandem calibrate` wrote it for this model; the table\n"
    "                   then says which each has\n"
    "  --dot            prints the graph for Graphviz instead: tandem plan --model M --dot | dot -Tsvg\n";
/* clang-format on */

typedef struct arguments {
    const char *model, *set, *device, *plan;
    bool is_inline, commit, dot;
} arguments;

typedef struct loaded {
    td_graph *graph;
    const td_program *program;
    uint32_t numbers[TD_GRAPH_NUMBERS];
    uint8_t *precisions;
} loaded;

/* --- What is asked for --- */

static int read_arguments(int argc, char **argv, arguments *a, td_target *target)
{
    static const char *const devices[] = {"cpu", "80", "86", "89", "90", "120", NULL};
    static const uint32_t sms[] = {0, 80, 86, 89, 90, 120};
    const tool_option options[] = {
        {"--model", &a->model, NULL},   {"--set", &a->set, NULL},
        {"--device", &a->device, NULL}, {"--inline", NULL, &a->is_inline},
        {"--commit", NULL, &a->commit}, {"--dot", NULL, &a->dot},
        {"--plan", &a->plan, NULL}};
    if (tool_parse("plan", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model)
        return tool_usage("plan", "--model is missing; `tandem help plan` explains it");
    const int device = tool_word(a->device, devices);
    if (device < 0)
        return tool_usage("plan", "--device \"%s\" is none of cpu, 80, 86, 89, 90, 120", a->device);
    *target = a->is_inline ? td_target_for_sm(sms[device]) : td_target_for_stream(sms[device]);
    target->commit = a->commit;
    target->twin = true; /* nothing is run, so kernels that this build lacks do not matter */
    return TOOL_OK;
}

/* --plan's precisions, of each node. */
static bool read_plan(const arguments *a, loaded *l, char *why, size_t why_bytes)
{
    char *text = tool_plan_text(a->plan, why, why_bytes), what[400] = "";

    l->precisions = text ? calloc(l->graph->node_count, 1) : NULL;
    const bool good = l->precisions && td_precision_plan_read(text, strlen(text), l->graph, l->precisions, what,
                                                              sizeof what) == TANDEM_OK;
    if (text && !good)
        snprintf(why, why_bytes, "--plan \"%s\": %s", a->plan, l->precisions ? what : "out of memory");
    free(text);
    return good;
}

static int load(const arguments *a, const td_target *on, loaded *l)
{
    td_safetensors file;
    td_target target = *on;
    char why[512] = "";
    tandem_status status = td_safetensors_open(a->model, &file, why, sizeof why);

    if (status == TANDEM_OK) {
        status = td_graph_file_read(&file, &l->graph, why, sizeof why);
        td_safetensors_close(&file);
    }
    if (status != TANDEM_OK)
        return tool_fail("plan", "--model '%s': %s", a->model, why);
    for (uint32_t i = 0; i < l->graph->number_count; i++)
        l->numbers[i] = l->graph->numbers[i].most;
    if (tool_read_sizes("plan", a->set, l->graph, l->numbers) != TOOL_OK)
        return TOOL_USAGE;
    if (a->plan && !read_plan(a, l, why, sizeof why))
        return tool_fail("plan", "%s", why);
    target.node_precisions = l->precisions;
    status = td_program_build(l->graph, l->numbers, &target, &l->program, why, sizeof why);
    return status == TANDEM_OK ? TOOL_OK : tool_fail("plan", "--model '%s': %s", a->model, why);
}

/* --- As a table --- */

/* Of so many records from `first` on, those that wait for one before. */
static uint32_t waiting(const td_program *program, uint32_t first, uint32_t count)
{
    uint32_t waits = 0;
    for (uint32_t i = first; i < first + count; i++)
        waits += program->plan->records[i].barrier != TD_BARRIER_NONE;
    return waits;
}

static void print_row(const td_program *p, const char *node, const char *operation, uint32_t first,
                      uint32_t count, double mflop, uint64_t bytes)
{
    printf("%6s  %-12s %8" PRIu32 " %8" PRIu32 " %12.3f %14" PRIu64 "\n", node, operation, count,
           waiting(p, first, count), mflop, bytes);
}

static void print_nodes(const td_program *p, bool planned)
{
    double mflop = 0;
    uint64_t bytes = 0;
    uint32_t end = 0; /* of the nodes' records */

    printf("%6s  %-12s %8s %8s %12s %14s\n", "node", "operation", "records", "wait", "Mflop",
           "bytes");
    if (p->nodes[0].first_record)
        print_row(p, "begin", "fetch", 0, p->nodes[0].first_record, 0, 0);
    for (uint32_t i = 0; i < p->node_count; i++) {
        const td_program_node *node = &p->nodes[i];
        char number[16], operation[40];

        snprintf(number, sizeof number, "%" PRIu32, i);
        const bool shown = planned && node->precision;
        snprintf(operation, sizeof operation, "%s%s%s", node->operation, shown ? " " : "",
                 shown ? tool_precisions[node->precision] : "");
        print_row(p, number, operation, node->first_record, node->record_count, node->mflop,
                  node->bytes);
        mflop += node->mflop;
        bytes += node->bytes;
        end = node->first_record + node->record_count;
    }
    if (p->claims)
        print_row(p, "end", "commit", end, p->plan->record_count - end, 0, 0);
    print_row(p, "all", "", 0, p->plan->record_count, mflop, bytes);
}

static void print_program(const arguments *a, const loaded *l)
{
    const td_program *p = l->program;

    printf("%s for %s%s", a->model, strcmp(a->device, "cpu") ? "compute capability " : "the ",
           strcmp(a->device, "cpu") ? a->device : "CPU");
    for (uint32_t i = 0; i < l->graph->number_count; i++)
        printf(", %s %" PRIu32, l->graph->numbers[i].name, l->numbers[i]);
    printf("\n\n");
    print_nodes(p, a->plan != NULL);
    printf("\nbytes: weights %" PRIu64 ", state %" PRIu64 ", uniforms %" PRIu64 ", scratch %" PRIu64
           "\n",
           p->weight_bytes, p->state_bytes, p->uniform_bytes, p->plan->scratch_bytes);
    for (uint32_t i = 0; i < p->binding_count; i++) {
        const td_program_tensor *t = &p->tensors[p->bindings[i]];
        printf("binding %" PRIu32 ": %s \"%s\", %" PRIu64 " bytes\n", i, td_role_names[t->role],
               t->name, t->bytes);
    }
    printf("at least %.0f us in a CUDA graph and %.0f us in a command buffer, as %" PRIu32
           " steps wait for each other\n",
           td_program_floor_us(p, true), td_program_floor_us(p, false), p->chain);
}

/* --- As a drawing --- */

static void put_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar((unsigned char)*text < 32 ? '?' : *text);
    }
}

static void put_shape(const td_program_tensor *t)
{
    for (uint32_t d = 4 - t->dimensions; d < 4; d++)
        printf("%s%" PRIu32, d > 4 - t->dimensions ? " x " : "", t->shape[d]);
}

/* What is no temporary, but for weights, of which there are too many to look at. */
static bool is_drawn(const td_program_tensor *t)
{
    return t->role != TD_ROLE_TEMPORARY && t->role != TD_ROLE_WEIGHT;
}

/* From what a node reads, and to what it writes; a temporary is an edge from its writer. */
static void draw_views(const loaded *l, uint32_t at)
{
    const td_graph_node *node = &l->graph->nodes[at];
    for (uint32_t i = 0; i < node->view_count; i++) {
        const uint32_t tensor = node->views[i].tensor, writer = l->graph->tensors[tensor].writer;
        const td_view_layout *view = &node->operation->layout.views[node->views[i].view];
        const td_program_tensor *t = &l->program->tensors[tensor];
        const bool from_node = writer < at;

        if (view->written && is_drawn(t))
            printf("  n%" PRIu32 " -> t%" PRIu32 " [label=\"%s\"];\n", at, tensor, view->name);
        else if (!view->written && (from_node || is_drawn(t))) {
            printf("  %c%" PRIu32 " -> n%" PRIu32 " [label=\"%s: ", from_node ? 'n' : 't',
                   from_node ? writer : tensor, at, view->name);
            put_shape(t);
            printf("\"];\n");
        }
    }
}

static void print_dot(const loaded *l)
{
    const td_program *p = l->program;

    printf("digraph model {\n"
           "  node [shape=box, fontname=\"sans-serif\"];\n"
           "  edge [fontname=\"sans-serif\", fontsize=10];\n");
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        if (!is_drawn(&p->tensors[i]))
            continue;
        printf("  t%" PRIu32 " [shape=ellipse, label=\"", i);
        put_text(p->tensors[i].name);
        printf("\\n%s ", td_role_names[p->tensors[i].role]);
        put_shape(&p->tensors[i]);
        printf("\"];\n");
    }
    for (uint32_t i = 0; i < p->node_count; i++) {
        const td_program_node *node = &p->nodes[i];
        const uint32_t waits = waiting(p, node->first_record, node->record_count);

        printf("  n%" PRIu32 " [label=\"%" PRIu32 " %s\\nrecords %" PRIu32 ", wait %" PRIu32
               "\"];\n",
               i, i, node->operation, node->record_count, waits);
        draw_views(l, i);
    }
    printf("}\n");
}

int tool_plan(int argc, char **argv)
{
    arguments a = {.device = "90"};
    loaded l = {0};
    td_target target;
    int status = read_arguments(argc, argv, &a, &target);

    if (status == TOOL_OK)
        status = load(&a, &target, &l);
    if (status == TOOL_OK && a.dot)
        print_dot(&l);
    else if (status == TOOL_OK)
        print_program(&a, &l);
    td_program_drop(&l.program);
    td_graph_destroy(&l.graph);
    free(l.precisions);
    return status;
}
