/* What all that a session consists of stands on: its own memory, the texts of failures, ids and who uses what they name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "interop/os/machine.h"
#include "interop/os/memory.h"

enum { MANY_BYTES = 64 << 20 }; /* such blocks are mapped by themselves */

/* Memory. */

static bool is_large(uint64_t bytes)
{
    return bytes >= 2 * TD_LARGE_PAGE_BYTES;
}

static void *alloc_pages(uint64_t bytes, size_t alignment)
{
    const bool large = is_large(bytes);
    const size_t to = large && alignment < TD_LARGE_PAGE_BYTES ? TD_LARGE_PAGE_BYTES : alignment;
    void *pointer = td_aligned_alloc(to, (size_t)td_align_up(bytes, to));

    if (pointer && large)
        td_prefer_large_pages(pointer, bytes);
    return pointer;
}

void *td_session_alloc_dirty(tandem_session *s, uint64_t bytes, size_t alignment)
{
    void *pointer;

    if (bytes > SIZE_MAX - alignment - TD_LARGE_PAGE_BYTES)
        return NULL;
    if (s->allocate)
        pointer = s->allocate(s->user, (size_t)bytes, alignment);
    else if (bytes > td_machine_bytes()) /* all of it may be touched, whatever the allocator promises */
        pointer = NULL;
    else
        pointer = alloc_pages(bytes, alignment);
    if (pointer)
        atomic_fetch_add(&s->block_bytes, bytes);
    return pointer;
}

void *td_session_alloc(tandem_session *s, uint64_t bytes, size_t alignment)
{
    void *pointer = td_session_alloc_dirty(s, bytes, alignment);

    if (pointer && is_large(bytes) && !s->allocate)
        td_zero_pages(pointer, bytes);
    else if (pointer)
        memset(pointer, 0, (size_t)bytes);
    return pointer;
}

void td_session_free(tandem_session *s, void *pointer, uint64_t bytes)
{
    if (!pointer)
        return;
    atomic_fetch_sub(&s->block_bytes, bytes);
    if (s->release) {
        s->release(s->user, pointer);
        return;
    }
    if (bytes > MANY_BYTES)
        td_drop_pages(pointer, bytes);
    td_aligned_free(pointer);
}

/* Failures. */

const char *tandem_status_text(tandem_status status)
{
    switch (status) {
    case TANDEM_OK: return "ok";
    case TANDEM_ERROR_ARG: return "wrong argument";
    case TANDEM_ERROR_UNSUPPORTED: return "not supported here";
    case TANDEM_ERROR_NOMEM: return "out of memory";
    case TANDEM_ERROR_DEVICE: return "device error";
    case TANDEM_ERROR_LOST: return "device or peer lost";
    case TANDEM_ERROR_IO: return "input or output error";
    case TANDEM_ERROR_PROTOCOL: return "malformed file or message";
    case TANDEM_ERROR_BUSY: return "busy";
    }
    return "unknown status";
}

void td_session_keep_error_locked(tandem_session *s, const char *text)
{
    td_text(s->error, sizeof s->error, "%s", text);
}

tandem_status td_session_fail(tandem_session *s, const char *call, tandem_status status, const char *why)
{
    char text[sizeof s->error];
    bool quiet;

    if (status == TANDEM_OK)
        return status;
    td_text(text, sizeof text, "%s: %s", call, why);
    td_call_keep(call, why);
    pthread_mutex_lock(&s->lock);
    td_session_keep_error_locked(s, text);
    quiet = status == TANDEM_ERROR_BUSY || (status == TANDEM_ERROR_LOST && s->ops->loss_is_told && !s->broken);
    pthread_mutex_unlock(&s->lock);
    td_logf(&s->log, quiet ? TD_LOG_DEBUG : TD_LOG_ERROR, "%s", text);
    return status;
}

/* Ids. */

static const char *kind_name(uint64_t kind)
{
    static const char *const names[] = {"a mem", "a timeline", "a model", "a ticket", "an instance"};

    return kind >= TD_KIND_MEM && kind <= TD_KIND_INSTANCE ? names[kind - 1] : NULL;
}

tandem_status td_table_add_locked(tandem_session *s, td_table *table, td_kind kind, td_object *object, char *why)
{
    uint32_t slot = 0;

    while (slot < table->capacity && table->slots[slot])
        slot++;
    if (slot == table->capacity) {
        uint32_t capacity = table->capacity ? table->capacity * 2 : 16;
        td_object **slots = td_session_alloc(s, capacity * sizeof *slots, 64);
        uint32_t *generations = td_session_alloc(s, capacity * sizeof *generations, 64);

        if (!slots || !generations || capacity > 0x800000) {
            td_session_free(s, slots, capacity * sizeof *slots);
            td_session_free(s, generations, capacity * sizeof *generations);
            return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %u ids", capacity);
        }
        if (table->capacity) {
            memcpy(slots, table->slots, table->capacity * sizeof *slots);
            memcpy(generations, table->generations, table->capacity * sizeof *generations);
        }
        td_session_free(s, table->slots, table->capacity * sizeof *slots);
        td_session_free(s, table->generations, table->capacity * sizeof *generations);
        table->slots = slots;
        table->generations = generations;
        table->capacity = capacity;
    }
    table->generations[slot] = (table->generations[slot] + 1) & 0xffffff;
    table->slots[slot] = object;
    object->id = (uint64_t)kind << 60 | (uint64_t)s->salt << 48 | (uint64_t)table->generations[slot] << 24 | (slot + 1);
    return TANDEM_OK;
}

void td_table_remove_locked(td_table *table, td_object *object)
{
    table->slots[(object->id & 0xffffff) - 1] = NULL;
}

td_object *td_table_find_locked(tandem_session *s, td_kind kind, uint64_t id, const char *what, char *why)
{
    const td_table *table = kind == TD_KIND_MEM        ? &s->mems
                            : kind == TD_KIND_TIMELINE ? &s->timelines
                            : kind == TD_KIND_MODEL    ? &s->models
                                                       : &s->instances;
    const uint64_t slot = (id & 0xffffff) - 1;
    const char *is = "is not one of this session";

    if (!id)
        is = "names none";
    else if (id >> 60 != (uint64_t)kind && kind_name(id >> 60)) {
        td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s is 0x%" PRIx64 ", which is %s, not %s", what, id,
                kind_name(id >> 60), kind_name(kind));
        return NULL;
    } else if (id >> 60 == (uint64_t)kind && (id >> 48 & 0xfff) == s->salt && (id & 0xffffff) &&
               slot < table->capacity) {
        td_object *object = table->slots[slot];

        if (object && object->id == id && !td_object_goes(object))
            return object;
        is = "was destroyed";
    }
    td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "%s is 0x%" PRIx64 ", which %s", what, id, is);
    return NULL;
}

void td_object_release_locked(tandem_session *s, td_object *object)
{
    object->uses--;
    if (object->closing)
        pthread_cond_broadcast(&s->changed);
    if (object->retired)
        pthread_cond_signal(&s->reap);
}

/* Time. */

void td_cond_wait_until(tandem_session *s, pthread_cond_t *cond, uint64_t until_ns)
{
    td_cond_wait(cond, &s->lock, until_ns);
}
