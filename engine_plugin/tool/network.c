/* A network on a session. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/network.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "kernels/model/precision_plan.h"

#define LIMIT_NS 600000000000u /* the longest that a run may take */

/* --- Files and sizes --- */

bool tool_network_fails(tool_network *n, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(n->why, sizeof n->why, format, args);
    va_end(args);
    return false;
}

bool tool_network_done(tool_network *n, tandem_status status)
{
    if (status != TANDEM_OK)
        tandem_error_text(n->s, n->why, sizeof n->why);
    return status == TANDEM_OK;
}

bool tool_network_graph(tool_network *n, const char *model)
{
    td_safetensors file = {.fd = -1};
    char why[400] = "";

    const bool read = td_safetensors_open(model, &file, why, sizeof why) == TANDEM_OK &&
                      td_graph_file_read(&file, &n->graph, why, sizeof why) == TANDEM_OK;
    td_safetensors_close(&file);
    return read || tool_network_fails(n, "--model \"%s\": %s", model, why);
}

bool tool_network_input(tool_network *n, const char *in)
{
    char why[400] = "";

    td_safetensors_close(&n->in);
    return td_safetensors_open(in, &n->in, why, sizeof why) == TANDEM_OK || tool_network_fails(n, "--in \"%s\": %s", in, why);
}

static bool is_brought(uint32_t role)
{
    return role == TD_ROLE_INPUT || role == TD_ROLE_UNIFORM;
}

/* A shape that names a number says what it is, where a file's tensor has as many dimensions. That
 * all shapes agree is seen when tensors are read. */
static void deduce_sizes(tool_network *n)
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

int tool_network_sizes(tool_network *n, const char *set)
{
    memset(n->numbers, 0, sizeof n->numbers);
    if (tool_read_sizes(n->command, set, n->graph, n->numbers) != TOOL_OK)
        return TOOL_USAGE;
    deduce_sizes(n);
    for (uint32_t i = 0; i < n->graph->number_count; i++)
        if (!n->numbers[i])
            return tool_usage(n->command, "\"%s\" is not the size of any input: --set %s=N says it",
                              n->graph->numbers[i].name, n->graph->numbers[i].name);
    return TOOL_OK;
}

/* --- The network --- */

bool tool_network_open(tool_network *n, const char *model, uint32_t rung, const char *socket)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .rung = rung,
                                                 .timing = 1,
                                                 .socket = socket,
                                                 .error_text = n->why,
                                                 .error_text_bytes = sizeof n->why);

    n->info = TANDEM_INIT(tandem_network);
    return tool_session_create(&desc, &n->s, &n->engine) == TANDEM_OK &&
           tool_network_done(n, tandem_model_load(n->s, model, &n->model)) &&
           tool_network_done(n, tandem_model_info(n->s, n->model, &n->info));
}

bool tool_network_instance(tool_network *n, const tandem_instance_desc *desc)
{
    if (n->instance && !tool_network_done(n, tandem_instance_destroy(n->s, n->instance)))
        return false;
    n->instance = 0;
    return tool_network_done(n, tandem_model_instance(n->s, n->model, desc, &n->instance)) &&
           tool_network_done(n, tandem_model_prepare(n->s, n->instance, n->numbers, n->info.number_count));
}

const char *tool_network_dtype(uint32_t dtype)
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
static bool read_tensor(tool_network *n, const tandem_network_tensor *t, void *to)
{
    const td_safetensor *there = td_safetensors_find(&n->in, t->name);
    const char *dtype = tool_network_dtype(t->dtype);
    uint64_t shape[4];
    char is[100], wanted[100], why[400] = "";

    if (!there)
        return tool_network_fails(n, "--in has no tensor \"%s\"", t->name);
    if (strcmp(there->dtype_name, dtype ? dtype : "U8") != 0)
        return tool_network_fails(n, "--in: \"%s\" is %s; the network has %s", t->name, there->dtype_name,
                     dtype ? dtype : "U8");
    for (uint32_t d = 0; d < t->dimensions; d++)
        shape[d] = t->shape[4 - t->dimensions + d];
    const bool same = there->dimensions == t->dimensions &&
                      !memcmp(there->shape, shape, t->dimensions * sizeof *shape);
    print_shape(is, sizeof is, there->shape, there->dimensions);
    print_shape(wanted, sizeof wanted, shape, t->dimensions);
    if (dtype ? !same : there->bytes != t->bytes)
        return tool_network_fails(n,
                     "--in: \"%s\" is %s (%" PRIu64
                     " bytes); for these sizes it must be %s (%" PRIu64 " bytes)",
                     t->name, is, there->bytes, wanted, t->bytes);
    if (td_safetensors_read(&n->in, there, to, why, sizeof why) != TANDEM_OK)
        return tool_network_fails(n, "--in: \"%s\": %s", t->name, why);
    return true;
}

/* One mem for all inputs and outputs. */
static bool make_bindings(tool_network *n)
{
    uint64_t bytes = 0;

    td_host_mem_free(n->s, &n->mem);
    for (uint32_t i = 0; i < n->info.binding_count; i++) {
        n->bindings[i] = TANDEM_INIT(tandem_network_tensor);
        if (!tool_network_done(n, tandem_model_binding(n->s, n->model, n->numbers, n->info.number_count, i,
                                          &n->bindings[i])))
            return false;
        n->views[i] =
            (tandem_view){.offset_bytes = bytes, .dtype = n->bindings[i].dtype};
        bytes += td_align_up(n->bindings[i].bytes, 256);
    }
    if (!bytes)
        return true;
    if (!tool_network_done(n, td_host_mem_make(n->s, bytes, &n->mem)))
        return false;
    for (uint32_t i = 0; i < n->info.binding_count; i++) {
        n->views[i].mem = n->mem.mem;
        if (n->bindings[i].role == TANDEM_NETWORK_INPUT &&
            !read_tensor(n, &n->bindings[i], (char *)n->mem.host + n->views[i].offset_bytes))
            return false;
    }
    return true;
}

static bool make_uniforms(tool_network *n)
{
    tandem_network_tensor uniform = TANDEM_INIT(tandem_network_tensor);

    for (uint32_t i = 0; i < n->info.uniform_count; i++) {
        if (!tool_network_done(n, tandem_model_uniform(n->s, n->model, n->numbers, n->info.number_count, i,
                                          &uniform)))
            return false;
        const uint64_t end = uniform.offset_bytes + uniform.bytes;
        unsigned char *longer = realloc(n->uniforms, end);
        if (!longer)
            return tool_network_fails(n, "out of memory");
        memset(longer + n->uniform_bytes, 0, end - n->uniform_bytes);
        n->uniforms = longer;
        n->uniform_bytes = end;
        if (!read_tensor(n, &uniform, longer + uniform.offset_bytes))
            return false;
    }
    return true;
}

bool tool_network_run(tool_network *n, double *ms)
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
    if (!tool_network_done(n, tandem_submit(n->s, &job, &ticket)))
        return false;
    if (!tool_network_done(n, tandem_wait(n->s, ticket, LIMIT_NS, &report)))
        return false;
    *ms = report.end_ns > report.begin_ns ? (double)(report.end_ns - report.begin_ns) * 1e-6
                                          : (double)(td_now_ns() - begin) * 1e-6;
    if (report.state == TANDEM_JOB_DONE)
        return true;
    tandem_error_text(n->s, n->why, sizeof n->why);
    return n->why[0] ? false
                     : tool_network_fails(n, "the run ended in state %u: %s", report.state,
                             tandem_status_text(report.status));
}

bool tool_network_bind(tool_network *n)
{
    n->uniform_bytes = 0;
    return make_bindings(n) && make_uniforms(n);
}

bool tool_network_layer(tool_network *n, uint32_t index, tandem_layer *layer)
{
    *layer = TANDEM_INIT(tandem_layer);
    return tool_network_done(n, tandem_model_layer(n->s, n->instance, n->numbers, n->info.number_count, index, layer));
}

bool tool_network_judged(tool_network *n, uint32_t *layers)
{
    const uint64_t begin = td_now_ns();
    tandem_prepared prepared = TANDEM_INIT(tandem_prepared);
    tandem_layer layer;

    if (!tool_network_done(n, tandem_model_prepared(n->s, n->instance, n->numbers, n->info.number_count, &prepared)))
        return false;
    *layers = prepared.layer_count;
    if (!*layers)
        return true;
    do
        if (!tool_network_layer(n, 0, &layer))
            return false;
    while (layer.pending && td_now_ns() - begin < LIMIT_NS);
    return !layer.pending || tool_network_fails(n, "a sample was not looked at in time");
}

void tool_network_close(tool_network *n)
{
    td_host_mem_free(n->s, &n->mem);
    tool_session_destroy(&n->s, &n->engine);
    td_graph_destroy(&n->graph);
    td_safetensors_close(&n->in);
    free(n->uniforms);
    n->uniforms = NULL;
}

char *tool_plan_text(const char *path, char *why, size_t why_bytes)
{
    FILE *file = fopen(path, "rbe");
    char *text = file ? malloc(TD_PRECISION_PLAN_BYTES + 2) : NULL;
    const size_t bytes = text ? fread(text, 1, TD_PRECISION_PLAN_BYTES + 1, file) : 0;

    if (text && !ferror(file) && !memchr(text, 0, bytes)) {
        text[bytes] = 0;
    } else {
        snprintf(why, why_bytes, "--plan \"%s\": %s", path, text && !ferror(file) ? "has a 0 in it" : strerror(errno));
        free(text);
        text = NULL;
    }
    if (file)
        fclose(file);
    return text;
}
