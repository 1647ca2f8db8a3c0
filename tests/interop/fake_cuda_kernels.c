/* Modules, launches and graphs of the fake CUDA driver: kernels are noted, and compute nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "tests/interop/fake_cuda_parts.h"
#include "tests/interop/fake_image.h"

CALL(cuModuleLoadDataEx, td_cu_module *module, const void *data, unsigned count, int *options, void **values)
{
    (void)count;
    (void)options;
    (void)values;
    if (!data || memcmp(data, fake_image_text, sizeof fake_image_text))
        return INVALID_VALUE;
    *module = __real_calloc(1, sizeof **module);
    fake_add(OBJECT_MODULE, *module);
    return TD_CU_SUCCESS;
}

CALL(cuModuleUnload, td_cu_module module)
{
    if (!fake_take_out(OBJECT_MODULE, module))
        return INVALID_VALUE;
    __real_free(module);
    return TD_CU_SUCCESS;
}

CALL(cuModuleGetFunction, td_cu_function *function, td_cu_module module, const char *name)
{
    struct td_cu_function_st *f;
    uint32_t place = 0, tried = 0;

    if (strlen(name) >= sizeof f->name)
        return INVALID_VALUE;
    for (const char *c = name; *c; c++)
        place = place * 31 + (unsigned char)*c;
    /* Each session of some thousands asks for hundreds: they are hashed. */
    while ((f = &module->functions[place++ % FUNCTIONS])->name[0] && strcmp(f->name, name))
        if (++tried == FUNCTIONS)
            return INVALID_VALUE;
    strcpy(f->name, name);
    *function = f;
    return TD_CU_SUCCESS;
}

CALL(cuFuncGetAttribute, int *value, int attribute, td_cu_function function)
{
    (void)function;
    *value = attribute == TD_CU_FUNCTION_REGISTERS       ? 32
             : attribute == TD_CU_FUNCTION_STATIC_SHARED ? fake_cuda_driver.static_shared_bytes
                                                         : 0;
    return TD_CU_SUCCESS;
}

CALL(cuFuncSetAttribute, td_cu_function function, int attribute, int value)
{
    if (attribute == TD_CU_FUNCTION_WIDE_CLUSTERS) {
        function->wide_clusters = value;
        return TD_CU_SUCCESS;
    }
    if (attribute != TD_CU_FUNCTION_DYNAMIC_SHARED || value <= 0 ||
        value > SHARED_BYTES - fake_cuda_driver.static_shared_bytes)
        return INVALID_VALUE;
    function->dynamic_bytes = value;
    return TD_CU_SUCCESS;
}

/* More than 48 KB with what is static must have been allowed. */
static bool is_allowed(td_cu_function function, unsigned shared_bytes)
{
    const int plain = 48 * 1024 - fake_cuda_driver.static_shared_bytes;

    return shared_bytes <= (unsigned)(function->dynamic_bytes > plain ? function->dynamic_bytes : plain);
}

/* Grids are whole clusters; those of more than 8 blocks must have been allowed. */
static bool is_cluster(td_cu_function function, const unsigned *grid, const td_cu_launch_value *value)
{
    const unsigned blocks = value->cluster[0];

    return blocks && value->cluster[1] == 1 && value->cluster[2] == 1 && grid[0] % blocks == 0 &&
           blocks <= (function->wide_clusters ? 16 : 8);
}

static bool is_stamp(td_cu_function function)
{
    return !strcmp(function->name, "stamp");
}

atomic_uint fake_cuda_launched;
fake_cuda_launch fake_cuda_launches[FAKE_CUDA_LAUNCHES];

static void note_launch(td_cu_function function, const unsigned grid[3], const unsigned char *params)
{
    fake_cuda_launch *to = &fake_cuda_launches[atomic_fetch_add(&fake_cuda_launched, 1u) % FAKE_CUDA_LAUNCHES];

    snprintf(to->entry, sizeof to->entry, "%s", function->name);
    memcpy(to->grid, grid, sizeof to->grid);
    memcpy(to->params, params, sizeof to->params);
}

/* One way or the other. */
static bool has_params(void *const *params, void *const *extra)
{
    return params ? !extra : extra && extra[0] == TD_CU_LAUNCH_BUFFER;
}

/* Of a launch's {buffer, its size}: the parameters, and zeros. A pointer to a kernel's only parameter has no size: it has
 * FAKE_CUDA_ONLY_BYTES. */
static void copy_params(unsigned char to[TD_PARAM_BYTES], void *const *params, void *const *extra)
{
    const size_t bytes = params ? FAKE_CUDA_ONLY_BYTES : *(const size_t *)extra[3];

    memset(to, 0, TD_PARAM_BYTES);
    memcpy(to, params ? params[0] : extra[1], bytes < TD_PARAM_BYTES ? bytes : TD_PARAM_BYTES);
}

CALL(cuFuncLoad, td_cu_function function)
{
    return function ? TD_CU_SUCCESS : INVALID_VALUE;
}

CALL(cuLaunchKernel, td_cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
     unsigned bz, unsigned shared, td_cu_stream stream, void **params, void **extra)
{
    command c = {.kind = COMMAND_STAMP};

    if (!gx || !gy || !gz || !bx || !by || !bz || !has_params(params, extra) ||
        !is_allowed(function, shared))
        return INVALID_VALUE;
    if (!is_stamp(function)) {
        copy_params(c.params, params, extra);
        note_launch(function, (const unsigned[3]){gx, gy, gz}, c.params);
        c.kind = COMMAND_HOLD;
        return atomic_load(&fake_cuda_driver.holds) ? fake_enqueue(stream, &c) : TD_CU_SUCCESS;
    }
    memcpy(&c.stamp, extra[1], sizeof c.stamp);
    return fake_enqueue(stream, &c);
}

CALL(cuLaunchKernelEx, const td_cu_launch *launch, td_cu_function function, void **params, void **extra)
{
    for (unsigned i = 0; i < launch->attribute_count; i++)
        if (launch->attributes[i].id != TD_CU_LAUNCH_OVERLAPS &&
            (launch->attributes[i].id != TD_CU_LAUNCH_CLUSTER ||
             !is_cluster(function, launch->grid, &launch->attributes[i].value)))
            return INVALID_VALUE;
    return fake_cuLaunchKernel(function, launch->grid[0], launch->grid[1], launch->grid[2], launch->block[0],
                               launch->block[1], launch->block[2], launch->shared_bytes, launch->stream, params, extra);
}

static _Thread_local td_cu_graph building;

CALL(cuGraphCreate, td_cu_graph *out, unsigned flags)
{
    if (flags || fake_depth <= 0)
        return INVALID_VALUE;
    *out = building = __real_calloc(1, sizeof **out);
    fake_add(OBJECT_GRAPH, *out);
    return TD_CU_SUCCESS;
}

CALL(cuGraphDestroy, td_cu_graph graph)
{
    if (!fake_take_out(OBJECT_GRAPH, graph))
        return INVALID_VALUE;
    __real_free(graph);
    return TD_CU_SUCCESS;
}

static td_cu_graph_node node_of(size_t place)
{
    return (td_cu_graph_node)(uintptr_t)place;
}

/* Only chains: a node depends on the one before it. */
static td_cu_result add_node(td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after, size_t count,
                             const command *c)
{
    if (graph->count == NODES || graph->loose || count > (graph->count > 0) ||
        (count && after[0] != node_of(graph->count)))
        return INVALID_VALUE;
    graph->loose = graph->count && !count;
    graph->commands[graph->count++] = *c;
    *node = node_of(graph->count);
    return TD_CU_SUCCESS;
}

static td_cu_result set_node(td_cu_graph graph, td_cu_graph_node node, const command *c)
{
    const size_t place = (uintptr_t)node;

    if (!place || place > graph->count || graph->commands[place - 1].kind != c->kind)
        return INVALID_VALUE;
    graph->commands[place - 1] = *c;
    return TD_CU_SUCCESS;
}

/* A kernel that computes nothing is a copy of nothing. */
static td_cu_result kernel_command(const td_cu_kernel_node *params, command *c)
{
    *c = (command){.kind = COMMAND_COPY};
    if (!params->grid[0] || !params->block[0] || !has_params(params->params, params->extra) ||
        !is_allowed(params->function, params->shared_bytes))
        return INVALID_VALUE;
    c->function = params->function;
    memcpy(c->grid, params->grid, sizeof c->grid);
    copy_params(c->params, params->params, params->extra);
    if (is_stamp(params->function)) {
        c->kind = COMMAND_STAMP;
        memcpy(&c->stamp, params->extra[1], sizeof c->stamp);
    }
    return TD_CU_SUCCESS;
}

static command semaphore_command(command_kind kind, const td_cu_semaphore_node *params)
{
    return (command){.kind = kind, .semaphore = params->semaphores[0]->semaphore, .value = params->values[0].value};
}

CALL(cuGraphAddKernelNode, td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after, size_t count,
     const td_cu_kernel_node *params)
{
    command c;
    const td_cu_result result = kernel_command(params, &c);

    return result ? result : add_node(node, graph, after, count, &c);
}

/* What starts early is behind a kernel, and is one. */
CALL(cuGraphAddDependencies_v2, td_cu_graph graph, const td_cu_graph_node *from, const td_cu_graph_node *to,
     const td_cu_graph_edge *edge, size_t count)
{
    const size_t last = graph->count;

    if (count != 1 || !graph->loose || last < 2 || *to != node_of(last) || *from != node_of(last - 1) ||
        edge->from_port != 1 || edge->to_port || edge->type != 1 || !graph->commands[last - 1].function ||
        !graph->commands[last - 2].function)
        return INVALID_VALUE;
    graph->loose = false;
    return TD_CU_SUCCESS;
}

/* Nodes are places of whichever graph was made last: that is the one that is being built. */
CALL(cuGraphKernelNodeSetAttribute, td_cu_graph_node node, int attribute, const td_cu_launch_value *value)
{
    const size_t place = (uintptr_t)node;
    const command *c;

    if (attribute != TD_CU_LAUNCH_CLUSTER || !building || !place || place > building->count)
        return INVALID_VALUE;
    c = &building->commands[place - 1];
    return c->function && is_cluster(c->function, c->grid, value) ? TD_CU_SUCCESS : INVALID_VALUE;
}

CALL(cuGraphAddExternalSemaphoresWaitNode, td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after,
     size_t count, const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_WAIT, params);

    return add_node(node, graph, after, count, &c);
}

CALL(cuGraphAddExternalSemaphoresSignalNode, td_cu_graph_node *node, td_cu_graph graph, const td_cu_graph_node *after,
     size_t count, const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_SIGNAL, params);

    return add_node(node, graph, after, count, &c);
}

/* An executable graph is a copy of the graph. */
CALL(cuGraphInstantiateWithFlags, td_cu_graph_exec *out, td_cu_graph graph, unsigned long long flags)
{
    td_cu_graph copy;

    if (flags || graph->loose)
        return INVALID_VALUE;
    copy = __real_calloc(1, sizeof *copy);
    *copy = *graph;
    fake_add(OBJECT_GRAPH, copy);
    *out = (td_cu_graph_exec)(void *)copy;
    return TD_CU_SUCCESS;
}

CALL(cuGraphExecDestroy, td_cu_graph_exec exec)
{
    return fake_cuGraphDestroy((td_cu_graph)(void *)exec);
}

CALL(cuGraphExecKernelNodeSetParams, td_cu_graph_exec exec, td_cu_graph_node node, const td_cu_kernel_node *params)
{
    command c;
    const td_cu_result result = kernel_command(params, &c);

    return result ? result : set_node((td_cu_graph)(void *)exec, node, &c);
}

CALL(cuGraphExecExternalSemaphoresWaitNodeSetParams, td_cu_graph_exec exec, td_cu_graph_node node,
     const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_WAIT, params);

    return set_node((td_cu_graph)(void *)exec, node, &c);
}

CALL(cuGraphExecExternalSemaphoresSignalNodeSetParams, td_cu_graph_exec exec, td_cu_graph_node node,
     const td_cu_semaphore_node *params)
{
    const command c = semaphore_command(COMMAND_SIGNAL, params);

    return set_node((td_cu_graph)(void *)exec, node, &c);
}

CALL(cuGraphLaunch, td_cu_graph_exec exec, td_cu_stream stream)
{
    const struct td_cu_graph_st *graph = (const void *)exec;
    td_cu_result result = TD_CU_SUCCESS;

    for (size_t i = 0; !result && i < graph->count; i++) {
        const command *c = &graph->commands[i];

        if (c->kind != COMMAND_COPY)
            result = fake_enqueue(stream, c);
        else if (c->function)
            note_launch(c->function, c->grid, c->params);
    }
    return result;
}
