/* `tandem run`: a network on the tensors of a file, by a session.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/npc/host_mem.h"
#include "engine_plugin/tool/session.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "kernels/model/graph_file.h"
#include "tandem/tandem.h"

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
    "  --runs N         1 to 1000000, one after the other: the network's state goes on from run to run, and\n"
    "                   outputs are those of the last; default 1\n"
    "\n"
    "Of several runs it prints the least time and the median, loading not included.\n";
/* clang-format on */

#define LIMIT_NS 600000000000u /* the longest that a run may take */

typedef struct arguments {
    const char *model, *in, *out, *set, *rung, *precision, *runs, *socket;
    uint32_t rung_value, precision_value;
    uint64_t run_count;
} arguments;

/* What a run is made of. */
typedef struct network {
    td_safetensors model_file, in;
    td_graph *graph;
    uint32_t numbers[TD_GRAPH_NUMBERS]; /* 0: not known yet */
    tandem_session *s;
    tool_engine *engine;
    tandem_model model;
    tandem_instance instance;
    tandem_network info;
    tandem_network_tensor bindings[TD_GRAPH_BINDINGS];
    tandem_view views[TD_GRAPH_BINDINGS];
    td_host_mem mem; /* that all bindings are in */
    unsigned char *uniforms;
    uint64_t uniform_bytes;
    double *ms; /* of each run */
    tool_list result;
    char why[600];
} network;

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
                                   {"--socket", &a->socket, NULL}};
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
    return TOOL_OK;
}

/* --- Files and sizes --- */

static bool fails(network *n, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fails(network *n, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(n->why, sizeof n->why, format, args);
    va_end(args);
    return false;
}

/* A call of the session's: what it said. */
static bool done(network *n, tandem_status status)
{
    if (status != TANDEM_OK)
        tandem_error_text(n->s, n->why, sizeof n->why);
    return status == TANDEM_OK;
}

static bool open_files(network *n, const arguments *a)
{
    char why[400] = "";

    if (td_safetensors_open(a->model, &n->model_file, why, sizeof why) != TANDEM_OK ||
        td_graph_file_read(&n->model_file, &n->graph, why, sizeof why) != TANDEM_OK)
        return fails(n, "--model \"%s\": %s", a->model, why);
    if (td_safetensors_open(a->in, &n->in, why, sizeof why) != TANDEM_OK)
        return fails(n, "--in \"%s\": %s", a->in, why);
    return true;
}

static bool is_brought(uint32_t role)
{
    return role == TD_ROLE_INPUT || role == TD_ROLE_UNIFORM;
}

/* A shape that names a number says what it is, where a file's tensor has as many dimensions. That
 * all shapes agree is seen when tensors are read. */
static void deduce_sizes(network *n)
{
    for (uint32_t i = 0; i < n->graph->tensor_count; i++) {
        const td_graph_tensor *of = &n->graph->tensors[i];
        const td_safetensor *tensor =
            is_brought(of->role) ? td_safetensors_find(&n->in, of->name) : NULL;

        for (uint32_t d = 0; tensor && tensor->dimensions == of->dimensions && d < of->dimensions;
             d++) {
            const uint32_t which = tool_find_number(n->graph, of->shape[d], strlen(of->shape[d]));

            if (which < n->graph->number_count && !n->numbers[which] &&
                tensor->shape[d] <= n->graph->numbers[which].most)
                n->numbers[which] = (uint32_t)tensor->shape[d];
        }
    }
}

/* --set, before what is deduced. */
static int read_sizes(network *n, const char *set)
{
    if (tool_read_sizes("run", set, n->graph, n->numbers) != TOOL_OK)
        return TOOL_USAGE;
    deduce_sizes(n);
    for (uint32_t i = 0; i < n->graph->number_count; i++)
        if (!n->numbers[i])
            return tool_usage("run", "\"%s\" is not the size of any input: --set %s=N says it",
                              n->graph->numbers[i].name, n->graph->numbers[i].name);
    return TOOL_OK;
}

/* --- The network --- */

static bool open_network(network *n, const arguments *a)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .rung = a->rung_value,
                                                 .timing = 1,
                                                 .socket = a->socket,
                                                 .error_text = n->why,
                                                 .error_text_bytes = sizeof n->why);
    const tandem_instance_desc instance = TANDEM_INIT(tandem_instance_desc, .precision = a->precision_value);

    n->info = TANDEM_INIT(tandem_network);
    return tool_session_create(&desc, &n->s, &n->engine) == TANDEM_OK &&
           done(n, tandem_model_load(n->s, a->model, &n->model)) &&
           done(n, tandem_model_info(n->s, n->model, &n->info)) &&
           done(n, tandem_model_instance(n->s, n->model, &instance, &n->instance)) &&
           done(n, tandem_model_prepare(n->s, n->instance, n->numbers, n->info.number_count));
}

/* Blocks and codes, which safetensors have no name for, are bytes there. */
static const char *dtype_name(uint32_t dtype)
{
    static const char *const names[] = {[TANDEM_DTYPE_F16] = "F16", [TANDEM_DTYPE_BF16] = "BF16",
                                        [TANDEM_DTYPE_F32] = "F32", [TANDEM_DTYPE_I32] = "I32",
                                        [TANDEM_DTYPE_U8] = "U8",   [TANDEM_DTYPE_I8] = "I8"};

    return dtype < sizeof names / sizeof *names ? names[dtype] : NULL;
}

static void print_shape(char *text, size_t bytes, const uint64_t *shape, uint32_t dimensions)
{
    text[0] = 0;
    for (uint32_t d = 0; d < dimensions; d++)
        snprintf(text + strlen(text), bytes - strlen(text), "%s%" PRIu64, d ? " x " : "", shape[d]);
}

/* Reads a tensor of --in, which must be just that one. */
static bool read_tensor(network *n, const tandem_network_tensor *t, void *to)
{
    const td_safetensor *there = td_safetensors_find(&n->in, t->name);
    const char *dtype = dtype_name(t->dtype);
    uint64_t shape[4];
    char is[100], wanted[100], why[400] = "";

    if (!there)
        return fails(n, "--in has no tensor \"%s\"", t->name);
    if (strcmp(there->dtype_name, dtype ? dtype : "U8") != 0)
        return fails(n, "--in: \"%s\" is %s; the network has %s", t->name, there->dtype_name,
                     dtype ? dtype : "U8");
    for (uint32_t d = 0; d < t->dimensions; d++)
        shape[d] = t->shape[4 - t->dimensions + d];
    const bool same = there->dimensions == t->dimensions &&
                      !memcmp(there->shape, shape, t->dimensions * sizeof *shape);
    print_shape(is, sizeof is, there->shape, there->dimensions);
    print_shape(wanted, sizeof wanted, shape, t->dimensions);
    if (dtype ? !same : there->bytes != t->bytes)
        return fails(n,
                     "--in: \"%s\" is %s (%" PRIu64
                     " bytes); for these sizes it must be %s (%" PRIu64 " bytes)",
                     t->name, is, there->bytes, wanted, t->bytes);
    if (td_safetensors_read(&n->in, there, to, why, sizeof why) != TANDEM_OK)
        return fails(n, "--in: \"%s\": %s", t->name, why);
    return true;
}

/* One mem for all inputs and outputs. */
static bool make_bindings(network *n)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < n->info.binding_count; i++) {
        n->bindings[i] = TANDEM_INIT(tandem_network_tensor);
        if (!done(n, tandem_model_binding(n->s, n->model, n->numbers, n->info.number_count, i,
                                          &n->bindings[i])))
            return false;
        n->views[i] =
            (tandem_view){.offset_bytes = bytes, .dtype = n->bindings[i].dtype};
        bytes += td_align_up(n->bindings[i].bytes, 256);
    }
    if (!bytes)
        return true;
    if (!done(n, td_host_mem_make(n->s, bytes, &n->mem)))
        return false;
    for (uint32_t i = 0; i < n->info.binding_count; i++) {
        n->views[i].mem = n->mem.mem;
        if (n->bindings[i].role == TANDEM_NETWORK_INPUT &&
            !read_tensor(n, &n->bindings[i], (char *)n->mem.host + n->views[i].offset_bytes))
            return false;
    }
    return true;
}

static bool make_uniforms(network *n)
{
    tandem_network_tensor uniform = TANDEM_INIT(tandem_network_tensor);

    for (uint32_t i = 0; i < n->info.uniform_count; i++) {
        if (!done(n, tandem_model_uniform(n->s, n->model, n->numbers, n->info.number_count, i,
                                          &uniform)))
            return false;
        const uint64_t end = uniform.offset_bytes + uniform.bytes;
        unsigned char *longer = realloc(n->uniforms, end);
        if (!longer)
            return fails(n, "out of memory");
        memset(longer + n->uniform_bytes, 0, end - n->uniform_bytes);
        n->uniforms = longer;
        n->uniform_bytes = end;
        if (!read_tensor(n, &uniform, longer + uniform.offset_bytes))
            return false;
    }
    return true;
}

static bool run_once(network *n, double *ms)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    const uint64_t begin = td_now_ns();
    tandem_ticket ticket;

    job.op.run = (tandem_run){.instance = n->instance,
                              .bindings = n->views,
                              .binding_count = n->info.binding_count,
                              .numbers = n->numbers,
                              .number_count = n->info.number_count,
                              .uniforms = n->uniforms,
                              .uniform_bytes = n->uniform_bytes};
    if (!done(n, tandem_submit(n->s, &job, &ticket)))
        return false;
    if (!done(n, tandem_wait(n->s, ticket, LIMIT_NS, &report)))
        return false;
    *ms = report.end_ns > report.begin_ns ? (double)(report.end_ns - report.begin_ns) * 1e-6
                                          : (double)(td_now_ns() - begin) * 1e-6;
    if (report.state == TANDEM_JOB_DONE)
        return true;
    tandem_error_text(n->s, n->why, sizeof n->why);
    return n->why[0] ? false
                     : fails(n, "the run ended in state %u: %s", report.state,
                             tandem_status_text(report.status));
}

static bool run_all(network *n, uint64_t count)
{
    n->ms = malloc(count * sizeof *n->ms);
    if (!n->ms)
        return fails(n, "out of memory");
    for (uint64_t i = 0; i < count; i++)
        if (!run_once(n, &n->ms[i]))
            return false;
    return true;
}

static bool write_outputs(network *n, const arguments *a)
{
    for (uint32_t i = 0; i < n->info.binding_count; i++) {
        const tandem_network_tensor *t = &n->bindings[i];
        const char *dtype = dtype_name(t->dtype);
        uint64_t shape[4] = {t->bytes, 1, 1, 1};

        if (t->role != TANDEM_NETWORK_OUTPUT)
            continue;
        for (uint32_t d = 0; dtype && d < t->dimensions; d++)
            shape[d] = t->shape[4 - t->dimensions + d];
        void *to = tool_add(&n->result, t->name, dtype ? dtype : "U8", dtype ? t->dimensions : 1,
                            shape[0], shape[1], shape[2], shape[3]);
        if (!to)
            return fails(n, "out of memory");
        memcpy(to, (char *)n->mem.host + n->views[i].offset_bytes, t->bytes);
    }
    return tool_save(a->out, &n->result, n->why, sizeof n->why);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void print_report(const network *n, const arguments *a)
{
    tandem_info info = TANDEM_INIT(tandem_info);
    tandem_prepared prepared = TANDEM_INIT(tandem_prepared);

    tandem_session_info(n->s, &info);
    tandem_model_prepared(n->s, n->instance, n->numbers, n->info.number_count, &prepared);
    printf("%s on %s (%s)", a->model, tool_backend_name(info.backend),
           info.backend == TANDEM_BACKEND_CPU ? info.isa : info.device);
    for (uint32_t i = 0; i < n->info.number_count; i++)
        printf(", %s %" PRIu32, n->graph->numbers[i].name, n->numbers[i]);
    printf(": %" PRIu32 " records, ", prepared.record_count);
    qsort(n->ms, a->run_count, sizeof *n->ms, by_size);
    if (a->run_count > 1)
        printf("%" PRIu64 " runs, least %.3f ms, median ", a->run_count, n->ms[0]);
    printf("%.3f ms -> %s\n", n->ms[a->run_count / 2], a->out);
}

static int compute(network *n, const arguments *a)
{
    int status = TOOL_OK;

    if (!tool_can_save("--out", a->out, n->why, sizeof n->why) || !open_files(n, a))
        return tool_fail("run", "%s", n->why);
    status = read_sizes(n, a->set);
    if (status != TOOL_OK)
        return status;
    if (!open_network(n, a) || !make_bindings(n) || !make_uniforms(n) || !run_all(n, a->run_count) ||
        !write_outputs(n, a))
        return tool_fail("run", "%s", n->why[0] ? n->why : "failed");
    print_report(n, a);
    return TOOL_OK;
}

int tool_run(int argc, char **argv)
{
    arguments a = {.rung = "auto", .precision = "auto", .runs = "1"};
    network *n = calloc(1, sizeof *n);

    if (!n)
        return tool_fail("run", "out of memory");
    n->model_file.fd = n->in.fd = -1;
    int status = read_arguments(argc, argv, &a);
    if (status == TOOL_OK)
        status = compute(n, &a);
    td_host_mem_free(n->s, &n->mem);
    tool_session_destroy(&n->s, &n->engine);
    tool_list_free(&n->result);
    td_graph_destroy(&n->graph);
    td_safetensors_close(&n->model_file);
    td_safetensors_close(&n->in);
    free(n->uniforms);
    free(n->ms);
    free(n);
    return status;
}
