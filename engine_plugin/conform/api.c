/* Tandem's functions as a program calls them: by linking, by dlsym(), or by the table of tandem_get_api().
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "engine_plugin/conform/conform.h"

/* Of this thread: how many calls of the library it is within. */
static _Thread_local unsigned depth;

bool conform_within(void)
{
    return depth > 0;
}

/* --- Who is behind --- */

typedef void *(*dlsym_function)(void *library, const char *name);

static dlsym_function real_dlsym(void)
{
    static dlsym_function function;
    void *found = NULL;

    if (function)
        return function;
    for (const char *const *version = (const char *const[]){"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.0", NULL};
         *version && !found; version++)
        found = dlvsym(RTLD_NEXT, "dlsym", *version);
    memcpy(&function, &found, sizeof function);
    return function;
}

/* The libraries that programs open for themselves, too. */
static void *libraries[2];

void *conform_next(const char *name)
{
    static const char *const names[] = {"libtandem.so.0", "libvulkan.so.1"};
    const int which = strncmp(name, "tandem_", 7) ? 1 : 0;
    void *found = real_dlsym()(RTLD_NEXT, name);

    if (!found && !libraries[which])
        libraries[which] = dlopen(names[which], RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    if (!found && !libraries[which] && which)
        libraries[which] = dlopen(names[which], RTLD_NOW | RTLD_LOCAL);
    return found || !libraries[which] ? found : real_dlsym()(libraries[which], name);
}

void *dlsym(void *library, const char *name)
{
    void *found = real_dlsym()(library, name), *wrapper;

    if (!found || depth || library == RTLD_NEXT)
        return found;
    wrapper = conform_wrapper(name);
    if (wrapper && !strncmp(name, "tandem_", 7) && library != RTLD_DEFAULT)
        libraries[0] = library;
    else if (wrapper && library != RTLD_DEFAULT)
        libraries[1] = library;
    return wrapper ? wrapper : found;
}

#define REAL(name)                                       \
    static __typeof__(&(name)) real;                     \
    if (!real) {                                         \
        void *const symbol = conform_next(#name);        \
        memcpy(&real, &symbol, sizeof real);             \
    }

/* A function that is called as it is, and what is made of its status. */
#define WRAP(name, parameters, arguments, then)          \
    TANDEM_API tandem_status name parameters             \
    {                                                    \
        REAL(name)                                       \
        tandem_status status;                            \
                                                         \
        if (!real)                                       \
            return TANDEM_ERROR_UNSUPPORTED;             \
        depth++;                                         \
        status = real arguments;                         \
        depth--;                                         \
        if (!depth && status == TANDEM_OK) {             \
            then                                         \
        }                                                \
        return status;                                   \
    }

/* --- Sessions, mems, timelines --- */

TANDEM_API tandem_status tandem_session_create(const tandem_session_desc *desc, tandem_session **out)
{
    REAL(tandem_session_create)
    tandem_session_desc own;
    tandem_vulkan vulkan;
    tandem_status status;
    const size_t first = sizeof(uint32_t);

    if (!real)
        return TANDEM_ERROR_UNSUPPORTED;
    /* A program of another version may have less of both structs, or more, which then stays as it is. */
    if (desc && desc->struct_bytes <= sizeof own && desc->struct_bytes >= offsetof(tandem_session_desc, vulkan) + sizeof desc->vulkan &&
        desc->vulkan && desc->vulkan->struct_bytes <= sizeof vulkan && desc->vulkan->struct_bytes > first) {
        memcpy(&own, desc, desc->struct_bytes);
        memcpy(&vulkan, desc->vulkan, desc->vulkan->struct_bytes);
        vulkan.get_instance_proc_addr = conform_real_gipa(vulkan.get_instance_proc_addr);
        own.vulkan = &vulkan;
        desc = &own;
    }
    depth++;
    status = real(desc, out);
    depth--;
    return status;
}

TANDEM_API tandem_status tandem_session_destroy(tandem_session **session)
{
    REAL(tandem_session_destroy)
    tandem_session *const it = session ? *session : NULL;
    tandem_status status;

    if (!real)
        return TANDEM_ERROR_UNSUPPORTED;
    depth++;
    status = real(session);
    depth--;
    if (status == TANDEM_OK && it)
        rules_session_gone(it);
    return status;
}

static void mem_made(tandem_session *session, const tandem_mem_desc *desc, tandem_mem mem)
{
    rules_mem_made(session, mem, desc->bytes);
    if (desc->source == TANDEM_MEM_FD)
        conform_lend_fd(desc->fd, "which was lent by TANDEM_MEM_FD and stays the caller's");
    else if (desc->source == TANDEM_MEM_HOST)
        rules_mem_host(session, mem, desc->host);
}

WRAP(tandem_mem_create, (tandem_session * session, const tandem_mem_desc *desc, tandem_mem *mem), (session, desc, mem),
     mem_made(session, desc, *mem);)
WRAP(tandem_mem_host, (tandem_session * session, tandem_mem mem, void **host), (session, mem, host),
     rules_mem_host(session, mem, *host);)

/* Before the library has it: its memory may be freed. */
TANDEM_API tandem_status tandem_mem_destroy(tandem_session *session, tandem_mem mem)
{
    REAL(tandem_mem_destroy)
    tandem_status status;

    if (!real)
        return TANDEM_ERROR_UNSUPPORTED;
    if (!depth)
        rules_mem_gone(session, mem);
    depth++;
    status = real(session, mem);
    depth--;
    return status;
}

WRAP(tandem_timeline_create, (tandem_session * session, const tandem_timeline_desc *desc, tandem_timeline *timeline),
     (session, desc, timeline),
     rules_timeline_made(session, *timeline, desc->signaller == TANDEM_SIGNALLER_SESSION, desc->initial_value);
     if (desc->struct_bytes >= offsetof(tandem_timeline_desc, vulkan_semaphore) + 8 && desc->vulkan_semaphore)
         rules_timeline_semaphore(session, *timeline, (VkSemaphore)(uintptr_t)desc->vulkan_semaphore);)
WRAP(tandem_timeline_get_vulkan, (tandem_session * session, tandem_timeline timeline, VkSemaphore *out), (session, timeline, out),
     rules_timeline_semaphore(session, timeline, *out);)
WRAP(tandem_timeline_destroy, (tandem_session * session, tandem_timeline timeline), (session, timeline),
     rules_timeline_gone(session, timeline);)
WRAP(tandem_timeline_value, (tandem_session * session, tandem_timeline timeline, uint64_t *value), (session, timeline, value),
     rules_seen(session, timeline, *value);)
WRAP(tandem_timeline_signal, (tandem_session * session, tandem_timeline timeline, uint64_t value), (session, timeline, value),
     rules_host_signals(session, timeline, value);)
WRAP(tandem_point_fd, (tandem_session * session, tandem_point point, int *fd), (session, point, fd),
     conform_lend_fd(*fd, "which tandem_point_fd() gave to the caller");)

TANDEM_API tandem_status tandem_retire(tandem_session *session, uint64_t id)
{
    REAL(tandem_retire)
    tandem_status status;

    if (!real)
        return TANDEM_ERROR_UNSUPPORTED;
    if (!depth) {
        rules_mem_gone(session, id);
        rules_timeline_gone(session, id);
    }
    depth++;
    status = real(session, id);
    depth--;
    return status;
}

/* --- Waits --- */

#define BOUNDED(call, timeout_ns)                                                                                        \
    do {                                                                                                                 \
        if (!depth && (timeout_ns) == UINT64_MAX)                                                                        \
            conform_say(CONFORM_UNBOUNDED_WAIT, call " waits without a bound: where a device hangs, so does the caller"); \
    } while (0)

static tandem_status point_wait(tandem_session *session, tandem_point point, uint64_t timeout_ns)
{
    REAL(tandem_point_wait)

    return real ? real(session, point, timeout_ns) : TANDEM_ERROR_UNSUPPORTED;
}

TANDEM_API tandem_status tandem_point_wait(tandem_session *session, tandem_point point, uint64_t timeout_ns)
{
    tandem_status status;

    BOUNDED("tandem_point_wait()", timeout_ns);
    depth++;
    status = point_wait(session, point, timeout_ns);
    depth--;
    if (status == TANDEM_OK)
        rules_seen(session, point.timeline, point.value);
    return status;
}

TANDEM_API tandem_status tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns, tandem_job_report *report)
{
    REAL(tandem_wait)
    tandem_status status;

    if (!real)
        return TANDEM_ERROR_UNSUPPORTED;
    BOUNDED("tandem_wait()", timeout_ns);
    depth++;
    status = real(session, ticket, timeout_ns, report);
    depth--;
    if (!depth && status == TANDEM_OK && report)
        rules_told(session, ticket, report->state);
    return status;
}

TANDEM_API tandem_status tandem_npc_wait(tandem_npc *npc, uint64_t timeout_ns, tandem_npc_news *news)
{
    REAL(tandem_npc_wait)
    tandem_status status;

    if (!real)
        return TANDEM_ERROR_UNSUPPORTED;
    BOUNDED("tandem_npc_wait()", timeout_ns);
    depth++;
    status = real(npc, timeout_ns, news);
    depth--;
    return status;
}

WRAP(tandem_poll, (tandem_session * session, tandem_ticket ticket, tandem_job_report *report), (session, ticket, report),
     rules_told(session, ticket, report->state);)

/* --- Jobs --- */

enum { MOST_VIEWS = 64, MOST_INSTANCES = 256 };

static struct {
    tandem_session *session;
    tandem_instance id;
    tandem_model model;
} instances[MOST_INSTANCES];
static unsigned instance_next;

static void instance_made(tandem_session *session, tandem_model model, tandem_instance id)
{
    const unsigned at = __atomic_fetch_add(&instance_next, 1, __ATOMIC_RELAXED) % MOST_INSTANCES;

    instances[at].session = session;
    instances[at].model = model;
    instances[at].id = id;
}

WRAP(tandem_model_instance,
     (tandem_session * session, tandem_model model, const tandem_instance_desc *desc, tandem_instance *instance),
     (session, model, desc, instance), instance_made(session, model, *instance);)

/* The views of an operation's struct, and of those that are written how large they are: 0 is 1. */
#define AT(operation, field) offsetof(tandem_##operation, field)
static const struct operand {
    uint32_t operation;
    size_t view;
    bool written;
    size_t batch, heads, rows, channels; /* where the struct has them */
} operands[] = {
#define IN(OPERATION, operation, field) {TANDEM_OPERATION_##OPERATION, AT(operation, field), false, 0, 0, 0, 0},
#define OUT(OPERATION, operation, field, batch, heads, rows, channels) \
    {TANDEM_OPERATION_##OPERATION, AT(operation, field), true, batch, heads, rows, channels},
    /* clang-format off */
    IN(ATTENTION, attention, q) IN(ATTENTION, attention, k) IN(ATTENTION, attention, v) IN(ATTENTION, attention, length)
    IN(ATTENTION, attention, bias) IN(ATTENTION, attention, position)
    OUT(ATTENTION, attention, o, AT(attention, batch), AT(attention, heads), AT(attention, q_len), AT(attention, head_dim))
    OUT(ATTENTION, attention, lse, AT(attention, batch), AT(attention, heads), AT(attention, q_len), 0)
    IN(NORM, norm, x) IN(NORM, norm, residual) IN(NORM, norm, weight) IN(NORM, norm, bias)
    OUT(NORM, norm, y, AT(norm, batch), AT(norm, heads), AT(norm, rows), AT(norm, channels))
    OUT(NORM, norm, sum, AT(norm, batch), AT(norm, heads), AT(norm, rows), AT(norm, channels))
    IN(LINEAR, linear, x) IN(LINEAR, linear, w) IN(LINEAR, linear, scale) IN(LINEAR, linear, bias) IN(LINEAR, linear, residual)
    IN(LINEAR, linear, rotation) IN(LINEAR, linear, position) IN(LINEAR, linear, statistics)
    OUT(LINEAR, linear, y, 0, 0, AT(linear, rows), AT(linear, outs))
    IN(EMBED, embed, table) IN(EMBED, embed, position_table) IN(EMBED, embed, type_table) IN(EMBED, embed, id)
    IN(EMBED, embed, position) IN(EMBED, embed, type)
    OUT(EMBED, embed, y, AT(embed, batch), 0, AT(embed, rows), AT(embed, channels))
    IN(BINARY, binary, a) IN(BINARY, binary, b)
    OUT(BINARY, binary, y, AT(binary, batch), AT(binary, heads), AT(binary, rows), AT(binary, channels))
    IN(POOL, pool, x) IN(POOL, pool, length)
    OUT(POOL, pool, y, AT(pool, batch), AT(pool, heads), 0, AT(pool, channels))
    IN(TOP, top, x)
    IN(CONV, conv, x) IN(CONV, conv, coarse) IN(CONV, conv, w) IN(CONV, conv, bias)
    IN(GATHER, gather, q) IN(GATHER, gather, k) IN(GATHER, gather, v) IN(GATHER, gather, factor) IN(GATHER, gather, k_coarse)
    IN(GATHER, gather, v_coarse) IN(GATHER, gather, bias)
    IN(DEMODULATE, demodulate, color) IN(DEMODULATE, demodulate, albedo) IN(DEMODULATE, demodulate, normal)
    IN(DEMODULATE, demodulate, depth)
    /* Of these it is known that they are written, not how far. */
    {TANDEM_OPERATION_CONV, AT(conv, y), true, SIZE_MAX, 0, 0, 0},
    {TANDEM_OPERATION_GATHER, AT(gather, o), true, SIZE_MAX, 0, 0, 0},
    {TANDEM_OPERATION_DEMODULATE, AT(demodulate, light), true, SIZE_MAX, 0, 0, 0},
    {TANDEM_OPERATION_DEMODULATE, AT(demodulate, modulation), true, SIZE_MAX, 0, 0, 0},
    {TANDEM_OPERATION_DEMODULATE, AT(demodulate, tokens), true, SIZE_MAX, 0, 0, 0},
    {TANDEM_OPERATION_TOP, AT(top, y), true, SIZE_MAX, 0, 0, 0},
    /* clang-format on */
};

static uint64_t size_at(const void *op, size_t offset)
{
    uint32_t size = 1;

    if (offset)
        memcpy(&size, (const char *)op + offset, sizeof size);
    return size ? size : 1;
}

static uint64_t element_bytes(uint32_t dtype)
{
    return dtype == TANDEM_DTYPE_F32 || dtype == TANDEM_DTYPE_I32    ? 4
           : dtype == TANDEM_DTYPE_F16 || dtype == TANDEM_DTYPE_BF16 ? 2
                                                                      : 0;
}

static rules_view view_of(const struct operand *o, const void *op, const tandem_view *view)
{
    rules_view v = {.mem = view->mem, .begin = view->offset_bytes, .written = o->written};
    const uint64_t bytes = element_bytes(view->dtype);

    if (o->written && bytes && o->batch != SIZE_MAX && view->stride_batch >= 0 && view->stride_head >= 0 && view->stride_row >= 0)
        v.end = v.begin + bytes * ((size_at(op, o->batch) - 1) * (uint64_t)view->stride_batch +
                                   (size_at(op, o->heads) - 1) * (uint64_t)view->stride_head +
                                   (size_at(op, o->rows) - 1) * (uint64_t)view->stride_row + size_at(op, o->channels));
    return v;
}

static size_t views_of_run(tandem_session *session, const tandem_run *run, rules_view *views)
{
    REAL(tandem_model_binding)
    tandem_model model = 0;
    size_t count = 0;

    for (size_t i = 0; i < MOST_INSTANCES && !model; i++)
        if (instances[i].session == session && instances[i].id == run->instance)
            model = instances[i].model;
    for (uint32_t i = 0; i < run->binding_count && count < MOST_VIEWS; i++) {
        tandem_network_tensor tensor = TANDEM_INIT(tandem_network_tensor);
        rules_view *v = &views[count++];

        *v = (rules_view){.mem = run->bindings[i].mem, .begin = run->bindings[i].offset_bytes};
        if (model && real && real(session, model, run->numbers, run->number_count, i, &tensor) == TANDEM_OK &&
            tensor.role == TANDEM_NETWORK_OUTPUT) {
            v->written = true;
            v->end = v->begin + tensor.bytes;
        }
    }
    return count;
}

static size_t views_of(tandem_session *session, const tandem_job *job, rules_view *views)
{
    size_t count = 0;

    if (job->operation == TANDEM_OPERATION_RUN)
        return views_of_run(session, &job->op.run, views);
    for (size_t i = 0; i < sizeof operands / sizeof *operands; i++) {
        tandem_view view;

        if (operands[i].operation != job->operation)
            continue;
        memcpy(&view, (const char *)&job->op + operands[i].view, sizeof view);
        if (view.dtype != TANDEM_DTYPE_NONE && count < MOST_VIEWS)
            views[count++] = view_of(&operands[i], &job->op, &view);
    }
    return count;
}

TANDEM_API tandem_status tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket)
{
    REAL(tandem_submit)
    rules_view views[MOST_VIEWS];
    tandem_status status;
    size_t count;

    if (!real)
        return TANDEM_ERROR_UNSUPPORTED;
    depth++;
    status = real(session, job, ticket);
    if (status == TANDEM_OK && depth == 1 && job->struct_bytes >= sizeof *job) {
        count = views_of(session, job, views);
        rules_submitted(session, *ticket, job, views, count);
    }
    depth--;
    return status;
}

/* --- Commands --- */

WRAP(tandem_record_release,
     (tandem_session * session, VkCommandBuffer commands, tandem_mem mem, VkPipelineStageFlags stage, VkAccessFlags access),
     (session, commands, mem, stage, access), rules_recorded(commands, RULES_RELEASE, session, mem, stage, access);)
WRAP(tandem_record_acquire,
     (tandem_session * session, VkCommandBuffer commands, tandem_mem mem, VkPipelineStageFlags stage, VkAccessFlags access),
     (session, commands, mem, stage, access), rules_recorded(commands, RULES_ACQUIRE, session, mem, stage, access);)
WRAP(tandem_record_pack, (tandem_session * session, VkCommandBuffer commands, const tandem_pack *pack), (session, commands, pack),
     rules_recorded(commands, RULES_PACK, session, pack->view.mem, 0, 0);)
WRAP(tandem_record_unpack, (tandem_session * session, VkCommandBuffer commands, const tandem_pack *unpack),
     (session, commands, unpack), rules_recorded(commands, RULES_UNPACK, session, unpack->view.mem, 0, 0);)

static void recorded_images(VkCommandBuffer commands, rules_kind kind, tandem_session *session, const tandem_pack_image *images,
                            uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const tandem_pack_image *image = (const void *)((const char *)images + (size_t)i * images->struct_bytes);
        rules_recorded(commands, kind, session, image->tensor.mem, 0, 0);
    }
}

WRAP(tandem_record_pack_images,
     (tandem_session * session, VkCommandBuffer commands, const tandem_pack_image *images, uint32_t count),
     (session, commands, images, count), recorded_images(commands, RULES_PACK, session, images, count);)
WRAP(tandem_record_unpack_images,
     (tandem_session * session, VkCommandBuffer commands, const tandem_pack_image *images, uint32_t count),
     (session, commands, images, count), recorded_images(commands, RULES_UNPACK, session, images, count);)

/* --- The table, and names --- */

/* The library's, with those functions in it that are wrapped; as long as the library's is, which may be of another version. */
TANDEM_API const tandem_api *tandem_get_api(uint32_t version)
{
    REAL(tandem_get_api)
    static union {
        tandem_api api;
        unsigned char bytes[65536];
    } copy;
    const tandem_api *theirs = real ? real(version) : NULL;

    if (!theirs || theirs->struct_bytes > sizeof copy)
        return theirs;
    memcpy(&copy, theirs, theirs->struct_bytes);
#define PUT(function)                                                                              \
    if (theirs->struct_bytes >= offsetof(tandem_api, function) + sizeof theirs->function)          \
        copy.api.function = tandem_##function;
    PUT(session_create)
    PUT(session_destroy)
    PUT(mem_create)
    PUT(mem_host)
    PUT(mem_destroy)
    PUT(timeline_create)
    PUT(timeline_get_vulkan)
    PUT(timeline_destroy)
    PUT(timeline_value)
    PUT(timeline_signal)
    PUT(point_fd)
    PUT(retire)
    PUT(point_wait)
    PUT(wait)
    PUT(npc_wait)
    PUT(poll)
    PUT(model_instance)
    PUT(submit)
    PUT(record_release)
    PUT(record_acquire)
    PUT(record_pack)
    PUT(record_unpack)
    PUT(record_pack_images)
    PUT(record_unpack_images)
#undef PUT
    return &copy.api;
}

void *conform_wrapper(const char *name)
{
    static const struct {
        const char *name;
        void (*function)(void);
    } functions[] = {
#define NAME(function) {#function, (void (*)(void))function}
        NAME(tandem_session_create),   NAME(tandem_session_destroy),   NAME(tandem_mem_create),
        NAME(tandem_mem_host),         NAME(tandem_mem_destroy),       NAME(tandem_timeline_create),
        NAME(tandem_timeline_get_vulkan), NAME(tandem_timeline_destroy), NAME(tandem_timeline_value),
        NAME(tandem_timeline_signal),  NAME(tandem_point_fd),          NAME(tandem_retire),
        NAME(tandem_point_wait),       NAME(tandem_wait),              NAME(tandem_npc_wait),
        NAME(tandem_poll),             NAME(tandem_model_instance),    NAME(tandem_submit),
        NAME(tandem_record_release),   NAME(tandem_record_acquire),    NAME(tandem_record_pack),
        NAME(tandem_record_unpack),    NAME(tandem_record_pack_images), NAME(tandem_record_unpack_images),
        NAME(tandem_get_api),
#undef NAME
    };
    void *found = NULL;

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!strcmp(functions[i].name, name))
            memcpy(&found, &functions[i].function, sizeof found);
    return found ? found : conform_vulkan_wrapper(name);
}
