/* Executor `cu_graph`: each submit is one launch of a CUDA graph, kept by slot.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A graph is a chain made node by node, so that nothing can be missing from it as from a capture:
 *     wait -> stamp -> record -> ... -> record -> stamp -> signal
 * A record that waits for the one before itself (TD_RECORD_PDL) has an edge by which it may start early.
 * While a slot's plan keeps its shape (kernels, grids, blocks, shared memory, points or none), only the values of its
 * points and the parameters that changed are set anew; stamps, control and cancel word are at the slot's place, and do not
 * change. A slot keeps graphs of a few shapes, as networks and sizes take turns; for another one that which was launched
 * longest ago is made again.
 *
 * Each call of the driver counts: on an H200, with a wait, a signal and 20 records, 7.9 us of CPU to enqueue, where a launch
 * each took 97 us; with both stamps set anew each time it was 10.5, where that took 80.
 *
 * What cannot go this way - copies, a slot whose last submit is not finished, a graph that the driver refuses - is
 * launched kernel by kernel, on the same stream.
 */
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/cu_stream.h"
#include "kernels/program.h"

enum { MOST_REFUSALS = 3, SLOT_GRAPHS = 4 };

/* A kernel node as the graph has it, beside its record. */
typedef struct kernel_node {
    td_cu_graph_node node;
    td_cu_function function;
    bool overlaps; /* the end of the one before; it waits for that itself */
} kernel_node;

/* One of a slot's. */
typedef struct graph_slot {
    uint64_t used; /* the last submit that it was for */
    td_cu_graph graph;
    td_cu_graph_exec exec; /* NULL: to be made */
    td_cu_graph_node wait, signal;
    td_cu_external_semaphore waits_for, signals; /* or NULL */
    td_plan bound; /* what the graph holds: records with the parameters that their kernels get */
    kernel_node begin, *kernels, end; /* kernels: of each record, in that plan's memory */
    const td_plan *plan; /* that they were bound from last, if it is one that can be kept; and to what: */
    uint64_t scratch, views[TD_PROGRAM_VIEWS];
    td_cuda_function **functions;     /* of the submit at hand, */
    uint32_t function_room;           /* so many at most */
} graph_slot;

/* A submit, with the addresses of its place. */
typedef struct binding {
    const td_stream_submit *submit;
    uint64_t control, cancel;
    bool known; /* the slot's graph has its launches */
} binding;

typedef struct graph_stream {
    td_cuda_stream cuda;
    graph_slot *slots[TD_STREAM_PENDING][SLOT_GRAPHS];
    unsigned refusals;
} graph_stream;

static void clear_slot(graph_stream *stream, graph_slot *slot)
{
    td_cu_device *device = stream->cuda.device;

    if (slot->exec)
        TD_CU(device, cuGraphExecDestroy, slot->exec);
    if (slot->graph)
        TD_CU(device, cuGraphDestroy, slot->graph);
    slot->exec = NULL;
    slot->graph = NULL;
    td_plan_drop(&slot->plan);
}

static void free_slot(graph_slot *slot)
{
    if (slot) {
        td_plan_free(&slot->bound);
        td_plan_drop(&slot->plan);
        free(slot->functions);
    }
    free(slot);
}

static void destroy(td_stream *base, bool drained)
{
    graph_stream *stream = (graph_stream *)base;
    char why[160];

    if (drained && td_cu_enter(stream->cuda.device, why, sizeof why)) {
        td_logf(&base->log, TD_LOG_WARN, "graphs are left behind: %s", why);
    } else if (drained) {
        for (int i = 0; i < TD_STREAM_PENDING * SLOT_GRAPHS; i++)
            if (stream->slots[i / SLOT_GRAPHS][i % SLOT_GRAPHS])
                clear_slot(stream, stream->slots[i / SLOT_GRAPHS][i % SLOT_GRAPHS]);
        td_cu_leave(stream->cuda.device);
    }
    for (int i = 0; i < TD_STREAM_PENDING * SLOT_GRAPHS; i++)
        free_slot(stream->slots[i / SLOT_GRAPHS][i % SLOT_GRAPHS]);
    td_cuda_destroy(base, drained);
}

static uint32_t cluster_of(const td_record *record)
{
    return record->flags & TD_RECORD_CLUSTER ? record->cluster : 0;
}

static bool overlaps(const graph_stream *stream, const td_record *record, uint32_t at)
{
    return record->flags & TD_RECORD_PDL && at && stream->cuda.device->table.cuGraphAddDependencies_v2;
}

/* But for functions, which a driver may have loaded anew. */
static bool has_launches(const graph_slot *slot, const td_stream_submit *submit)
{
    const td_plan *plan = submit->plan;

    if (!slot->exec || slot->bound.record_count != plan->record_count || !slot->waits_for != !submit->wait ||
        !slot->signals != !submit->signal)
        return false;
    for (uint32_t i = 0; i < plan->record_count; i++) {
        const td_record *a = &slot->bound.records[i], *b = &plan->records[i];

        if (a->kernel != b->kernel || memcmp(a->grid, b->grid, sizeof a->grid) ||
            memcmp(a->block, b->block, sizeof a->block) || a->shared_bytes != b->shared_bytes || a->flags != b->flags ||
            cluster_of(a) != cluster_of(b) || a->param_bytes != b->param_bytes)
            return false;
    }
    return true;
}

static bool has_functions(const graph_slot *slot)
{
    for (uint32_t i = 0; i < slot->bound.record_count; i++)
        if (slot->kernels[i].function != slot->functions[i]->kernel.handle)
            return false;
    return true;
}

/* The slot's graph with these launches (*known), else a place for one. NULL: no memory. */
static graph_slot *find_graph(graph_stream *stream, const td_stream_submit *submit, bool *known)
{
    graph_slot **all = stream->slots[submit->slot], *oldest = NULL;

    *known = false;
    for (int i = 0; i < SLOT_GRAPHS; i++) {
        if (!all[i])
            return all[i] = calloc(1, sizeof **all);
        *known = has_launches(all[i], submit);
        if (*known)
            return all[i];
        if (!oldest || all[i]->used < oldest->used)
            oldest = all[i];
    }
    return oldest;
}

static tandem_status bind(graph_stream *stream, const binding *b, uint32_t at, void *params, char *why, size_t why_bytes)
{
    return td_cuda_bind(&stream->cuda, &b->submit->plan->records[at], b->submit, b->control, b->cancel, params, why, why_bytes);
}

static tandem_status set_kernel(graph_stream *stream, graph_slot *slot, const binding *b, uint32_t at, char *why,
                                size_t why_bytes)
{
    const td_record *record = &b->submit->plan->records[at];
    td_record *bound = td_plan_append_launch(&slot->bound, record);

    if (!bound)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a graph of %u kernels",
                       (unsigned)b->submit->plan->record_count);
    slot->kernels[at] = (kernel_node){.function = slot->functions[at]->kernel.handle, .overlaps = overlaps(stream, record, at)};
    return bind(stream, b, at, bound->params, why, why_bytes);
}

static tandem_status set_kernels(graph_stream *stream, graph_slot *slot, const binding *b, char *why, size_t why_bytes)
{
    const uint32_t count = b->submit->plan->record_count;
    tandem_status status = TANDEM_OK;

    td_plan_reset(&slot->bound);
    slot->kernels = td_arena_take(&slot->bound.memory, count * sizeof *slot->kernels, _Alignof(kernel_node));
    if (!slot->kernels)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a graph of %u kernels", (unsigned)count);
    for (uint32_t i = 0; !status && i < count; i++)
        status = set_kernel(stream, slot, b, i, why, why_bytes);
    return status;
}

/* What a call of the driver needs to know of a kernel; it copies the parameters. */
typedef struct kernel_call {
    td_cu_kernel_node node;
    size_t param_bytes;
    void *extra[5], *only;
} kernel_call;

static const td_cu_kernel_node *kernel_of(td_cu_function function, const td_record *of, kernel_call *call)
{
    const bool maps = of->flags & TD_RECORD_TENSOR_MAPS;

    call->param_bytes = of->param_bytes;
    call->extra[0] = TD_CU_LAUNCH_BUFFER;
    call->extra[1] = of->params;
    call->extra[2] = TD_CU_LAUNCH_BYTES;
    call->extra[3] = &call->param_bytes;
    call->extra[4] = TD_CU_LAUNCH_END;
    call->only = call->extra[1];
    call->node = (td_cu_kernel_node){.function = function,
                                     .grid = {of->grid[0], of->grid[1], of->grid[2]},
                                     .block = {of->block[0], of->block[1], of->block[2]},
                                     .shared_bytes = of->shared_bytes,
                                     .params = maps ? &call->only : NULL,
                                     .extra = maps ? NULL : call->extra};
    return &call->node;
}

/* Behind `last`, or first where that is NULL. */
static tandem_status add_kernel(td_cu_device *device, graph_slot *slot, kernel_node *kernel, const td_record *record,
                                const td_cu_graph_node *last, char *why, size_t why_bytes)
{
    static const td_cu_graph_edge early = {.from_port = TD_CU_GRAPH_OVERLAPS, .type = TD_CU_GRAPH_OVERLAPS};
    const bool follows = last && !kernel->overlaps;
    kernel_call call;
    tandem_status status;

    status = td_cu_check(device,
                         TD_CU(device, cuGraphAddKernelNode, &kernel->node, slot->graph, follows ? last : NULL, follows,
                               kernel_of(kernel->function, record, &call)),
                         why, why_bytes, "cuGraphAddKernelNode");
    if (!status && kernel->overlaps)
        status = td_cu_check(
            device, TD_CU(device, cuGraphAddDependencies_v2, slot->graph, last, &kernel->node, &early, 1), why, why_bytes,
            "cuGraphAddDependencies_v2");
    if (!status && cluster_of(record)) {
        const td_cu_launch_value value = {.cluster = {cluster_of(record), 1, 1}};

        status = td_cu_check(
            device, TD_CU(device, cuGraphKernelNodeSetAttribute, kernel->node, TD_CU_LAUNCH_CLUSTER, &value), why,
            why_bytes, "cuGraphKernelNodeSetAttribute");
    }
    return status;
}

static tandem_status add_stamp(graph_stream *stream, graph_slot *slot, kernel_node *kernel, uint32_t number, bool end,
                               const td_cu_graph_node *last, char *why, size_t why_bytes)
{
    td_params_stamp params = td_stream_stamp(&stream->cuda.base, TD_STREAM_NUMBERS + number, end);
    const td_record record = {
        .grid = {1, 1, 1}, .block = {1, 1, 1}, .param_bytes = sizeof params, .params = (unsigned char *)&params};

    *kernel = (kernel_node){.function = stream->cuda.stamp};
    return add_kernel(stream->cuda.device, slot, kernel, &record, last, why, why_bytes);
}

static tandem_status make_graph(graph_stream *stream, graph_slot *slot, const binding *b, char *why, size_t why_bytes)
{
    const td_stream_submit *submit = b->submit;
    const td_cu_semaphore_value waits = {.value = submit->wait ? submit->wait->value : 0};
    const td_cu_semaphore_value signals = {.value = submit->signal ? submit->signal->value : 0};
    td_cu_device *device = stream->cuda.device;
    const td_cu_graph_node *last = NULL;
    tandem_status status;

    clear_slot(stream, slot);
    slot->waits_for = submit->wait ? submit->wait->cu->external : NULL;
    slot->signals = submit->signal ? submit->signal->cu->external : NULL;
    status = set_kernels(stream, slot, b, why, why_bytes);
    if (!status)
        status = td_cu_check(device, TD_CU(device, cuGraphCreate, &slot->graph, 0), why, why_bytes, "cuGraphCreate");
    if (!status && slot->waits_for) {
        const td_cu_semaphore_node node = {&slot->waits_for, &waits, 1};

        status = td_cu_check(
            device, TD_CU(device, cuGraphAddExternalSemaphoresWaitNode, &slot->wait, slot->graph, last, 0, &node), why,
            why_bytes, "cuGraphAddExternalSemaphoresWaitNode");
        last = &slot->wait;
    }
    if (!status)
        status = add_stamp(stream, slot, &slot->begin, submit->slot, false, last, why, why_bytes);
    last = &slot->begin.node;
    for (uint32_t i = 0; !status && i < slot->bound.record_count; i++) {
        status = add_kernel(device, slot, &slot->kernels[i], &slot->bound.records[i], last, why, why_bytes);
        last = &slot->kernels[i].node;
    }
    if (!status)
        status = add_stamp(stream, slot, &slot->end, submit->slot, true, last, why, why_bytes);
    if (!status && slot->signals) {
        const td_cu_semaphore_node node = {&slot->signals, &signals, 1};

        status = td_cu_check(device,
                             TD_CU(device, cuGraphAddExternalSemaphoresSignalNode, &slot->signal, slot->graph,
                                   &slot->end.node, 1, &node),
                             why, why_bytes, "cuGraphAddExternalSemaphoresSignalNode");
    }
    if (!status)
        status = td_cu_check(device, TD_CU(device, cuGraphInstantiateWithFlags, &slot->exec, slot->graph, 0), why,
                             why_bytes, "cuGraphInstantiateWithFlags");
    if (status)
        clear_slot(stream, slot);
    else
        td_logf(&stream->cuda.base.log, TD_LOG_DEBUG, "a graph of %u kernels for slot %u", (unsigned)slot->bound.record_count + 2,
                (unsigned)submit->slot);
    return status;
}

/* Whether a record of slot->plan has what it gets already: all that its pointers lead to is where it was. Binding one takes a
 * tenth of a microsecond, and of each tensor map in it a call of the driver. */
static bool is_bound(const graph_slot *slot, const td_stream_submit *submit, const td_record *record)
{
    for (uint32_t i = 0; i < record->reloc_count; i++) {
        const td_reloc *reloc = &record->relocs[i];

        if (reloc->base == TD_BASE_SCRATCH && slot->scratch != submit->scratch)
            return false;
        if (reloc->base == TD_BASE_VIEW &&
            (reloc->view >= TD_PROGRAM_VIEWS || slot->views[reloc->view] != submit->views[reloc->view]))
            return false;
    }
    return true;
}

/* The slot's graph is as this submit wants it. */
static void note_bound(graph_slot *slot, const td_stream_submit *submit)
{
    const td_plan *plan = submit->plan;

    if (slot->plan != plan) {
        td_plan_drop(&slot->plan);
        slot->plan = __atomic_load_n(&plan->users, __ATOMIC_RELAXED) ? td_plan_use(plan) : NULL;
    }
    slot->scratch = submit->scratch;
    for (uint32_t i = 0; i < plan->record_count; i++)
        for (uint32_t j = 0; j < plan->records[i].reloc_count; j++) {
            const td_reloc *reloc = &plan->records[i].relocs[j];

            if (reloc->base == TD_BASE_VIEW && reloc->view < TD_PROGRAM_VIEWS)
                slot->views[reloc->view] = submit->views[reloc->view];
        }
}

static tandem_status update_graph(graph_stream *stream, graph_slot *slot, const binding *b, char *why, size_t why_bytes)
{
    const td_stream_submit *submit = b->submit;
    td_cu_device *device = stream->cuda.device;
    tandem_status status = TANDEM_OK;

    if (submit->wait) {
        const td_cu_semaphore_value value = {.value = submit->wait->value};
        const td_cu_semaphore_node node = {&slot->waits_for, &value, 1};

        slot->waits_for = submit->wait->cu->external;
        status = td_cu_check(
            device, TD_CU(device, cuGraphExecExternalSemaphoresWaitNodeSetParams, slot->exec, slot->wait, &node), why,
            why_bytes, "cuGraphExecExternalSemaphoresWaitNodeSetParams");
    }
    for (uint32_t i = 0; !status && i < slot->bound.record_count; i++) {
        _Alignas(TD_PARAM_ALIGN) unsigned char params[TD_PARAM_BYTES];
        const kernel_node *kernel = &slot->kernels[i];
        const td_record *bound = &slot->bound.records[i];
        kernel_call call;

        if (slot->plan == submit->plan && is_bound(slot, submit, &submit->plan->records[i]))
            continue;
        status = bind(stream, b, i, params, why, why_bytes);
        if (status || !memcmp(bound->params, params, bound->param_bytes))
            continue;
        memcpy(bound->params, params, bound->param_bytes);
        status = td_cu_check(
            device, TD_CU(device, cuGraphExecKernelNodeSetParams, slot->exec, kernel->node,
                          kernel_of(kernel->function, bound, &call)),
            why, why_bytes, "cuGraphExecKernelNodeSetParams");
    }
    if (!status && submit->signal) {
        const td_cu_semaphore_value value = {.value = submit->signal->value};
        const td_cu_semaphore_node node = {&slot->signals, &value, 1};

        slot->signals = submit->signal->cu->external;
        status = td_cu_check(
            device, TD_CU(device, cuGraphExecExternalSemaphoresSignalNodeSetParams, slot->exec, slot->signal, &node),
            why, why_bytes, "cuGraphExecExternalSemaphoresSignalNodeSetParams");
    }
    if (status)
        clear_slot(stream, slot); /* half of it is new */
    return status;
}

/* The slot's graph, launched; nothing was enqueued if that fails. */
static tandem_status launch_graph(graph_stream *stream, graph_slot *slot, const binding *b, char *why, size_t why_bytes)
{
    td_cu_device *device = stream->cuda.device;
    tandem_status status;

    status = (b->known && has_functions(slot) ? update_graph : make_graph)(stream, slot, b, why, why_bytes);
    if (status)
        return status;
    note_bound(slot, b->submit);
    status = td_cu_check(device, TD_CU(device, cuGraphLaunch, slot->exec, stream->cuda.stream), why, why_bytes,
                         "cuGraphLaunch");
    if (status)
        clear_slot(stream, slot);
    return status;
}

/* What a submit needs before its graph. */
static tandem_status prepare(graph_stream *stream, graph_slot *slot, uint64_t sequence, binding *b, char *why,
                             size_t why_bytes)
{
    const uint32_t place = TD_STREAM_NUMBERS + b->submit->slot;
    const td_plan *plan = b->submit->plan;
    tandem_status status =
        td_cuda_functions_of(&stream->cuda, plan, &slot->functions, &slot->function_room, why, why_bytes);

    if (!status)
        status = td_cuda_take_word(&stream->cuda, place, sequence, &b->cancel, why, why_bytes);
    if (!status)
        status = td_cuda_after_callers(&stream->cuda, stream->cuda.stream, why, why_bytes);
    b->control = td_stream_control_address(&stream->cuda.base, place);
    return status;
}

/* Whether it goes as the slot's graph. */
static bool by_slot(const td_stream *base, const td_stream_submit *submit)
{
    const graph_stream *stream = (const graph_stream *)base;

    return !submit->copy_in_count && !submit->copy_out_count && !stream->cuda.copies &&
           stream->refusals < MOST_REFUSALS && base->last[submit->slot] <= td_stream_completed(base);
}

static tandem_status enqueue(td_stream *base, const td_stream_submit *submit, uint64_t sequence, bool *signalled,
                             char *why, size_t why_bytes)
{
    graph_stream *stream = (graph_stream *)base;
    const bool kept = td_stream_place(base, sequence) >= TD_STREAM_NUMBERS;
    binding b = {.submit = submit};
    graph_slot *slot = kept ? find_graph(stream, submit, &b.known) : NULL;
    tandem_status status;
    bool refused;

    if (!slot)
        return td_cuda_enqueue(base, submit, sequence, signalled, why, why_bytes);
    slot->used = sequence;
    status = td_cu_enter(stream->cuda.device, why, why_bytes);
    if (status)
        return status;
    status = prepare(stream, slot, sequence, &b, why, why_bytes);
    if (status) {
        td_cu_leave(stream->cuda.device);
        return status;
    }
    status = launch_graph(stream, slot, &b, why, why_bytes);
    refused = status != TANDEM_OK;
    if (!refused) {
        *signalled = submit->signal != NULL;
        base->submitted = sequence;
        status = td_cuda_mark_done(&stream->cuda, stream->cuda.stream, sequence, why, why_bytes);
    }
    td_cu_leave(stream->cuda.device);
    if (refused) {
        td_logf(&base->log, TD_LOG_WARN, "kernels are launched one by one: %s", why);
        stream->refusals++;
        return td_cuda_enqueue(base, submit, sequence, signalled, why, why_bytes);
    }
    return status && status != TANDEM_ERROR_LOST ? TANDEM_ERROR_DEVICE : status;
}

tandem_status td_stream_create_graph(td_cu_device *device, const td_log *log, td_stream **out, char *why,
                                     size_t why_bytes)
{
    static const td_stream_ops ops = {.prepare = td_cuda_prepare,
                                      .enqueue = enqueue,
                                      .by_slot = by_slot,
                                      .fenced = true,
                                      .wait = td_cuda_wait,
                                      .cancel = td_cuda_cancel,
                                      .release = td_cuda_release,
                                      .status = td_cuda_status,
                                      .drain = td_cuda_drain,
                                      .destroy = destroy};
    const td_cu_table *table = &device->table;
    graph_stream *stream;
    tandem_status status;

    *out = NULL;
    if (!table->cuGraphCreate || !table->cuGraphDestroy || !table->cuGraphAddKernelNode ||
        !table->cuGraphKernelNodeSetAttribute ||
        !table->cuGraphAddExternalSemaphoresWaitNode || !table->cuGraphAddExternalSemaphoresSignalNode ||
        !table->cuGraphInstantiateWithFlags || !table->cuGraphExecDestroy || !table->cuGraphExecKernelNodeSetParams ||
        !table->cuGraphExecExternalSemaphoresWaitNodeSetParams ||
        !table->cuGraphExecExternalSemaphoresSignalNodeSetParams || !table->cuGraphLaunch) {
        td_logf(log, TD_LOG_INFO, "kernels are launched one by one: the CUDA driver, %u, is too old for graphs",
                (unsigned)device->info.driver_version);
        return td_stream_create(device, log, out, why, why_bytes);
    }
    stream = calloc(1, sizeof *stream);
    if (!stream)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for a stream");
    *out = &stream->cuda.base;
    status = td_cuda_init(&stream->cuda, &ops, device, NULL, log, why, why_bytes);
    if (status)
        td_stream_destroy(out, 2000000000u);
    return status;
}
