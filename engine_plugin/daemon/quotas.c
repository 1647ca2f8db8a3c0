/* How much memory each client may hold, and all of them, and who holds it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/daemon/quotas.h"
#include "engine_plugin/daemon/state.h"

uint64_t td_scratch_held(const td_broker *b, const td_client *c)
{
    uint64_t pages = 0;

    for (int i = 0; i < TD_HOLDINGS && b->worker_queue; i++) {
        const uint64_t held = atomic_load_explicit(&b->worker_queue->held[i], memory_order_relaxed);

        if (!c || held >> 32 == c->session)
            pages += held & UINT32_MAX;
    }
    return pages * TD_WIRE_PAGE_BYTES;
}

bool td_client_fits(const td_broker *b, const td_client *c, uint64_t bytes)
{
    return bytes <= td_room_in(b->config.client_bytes, c->mem_bytes + td_scratch_held(b, c)) &&
           bytes <= td_room_in(b->config.total_bytes, b->mem_bytes + td_scratch_held(b, NULL));
}

static uint64_t held_by(const td_broker *b, const td_client *c, uint32_t kinds)
{
    return (kinds & TD_HELD_MEMS ? c->mem_bytes + td_scratch_held(b, c) : 0) + (kinds & TD_HELD_MODELS ? c->model_bytes : 0);
}

/* The three that hold most. */
static void add_holders(td_broker *b, const td_client *c, uint32_t kinds, char *text, size_t text_bytes)
{
    for (int i = 0; i < 3; i++) {
        const size_t at = strlen(text);
        td_client *most = NULL;
        uint64_t most_bytes = 0;

        for (td_client *o = b->clients; o; o = o->next)
            if (held_by(b, o, kinds) > most_bytes && !o->listed) {
                most = o;
                most_bytes = held_by(b, o, kinds);
            }
        if (!most)
            break;
        most->listed = true;
        snprintf(text + at, text_bytes - at, "%s %" PRIu64 " by '%.40s' (process %d)%s", i ? "," : ":", most_bytes,
                 most->name, (int)most->conn.pid, most == c ? ", yourself" : "");
    }
    for (td_client *o = b->clients; o; o = o->next)
        o->listed = false;
}

void td_quota_own_text(const td_broker *b, const td_client *c, const char *what, uint64_t asked, char *text,
                     size_t text_bytes)
{
    const uint64_t temp_output = c->temp_output ? c->temp_output->bytes : 0, scratch = td_scratch_held(b, c) + temp_output;
    const uint64_t shared = c->mem_bytes - temp_output;

    snprintf(text, text_bytes,
             "%s is %" PRIu64 ", and %" PRIu64 " of your %" PRIu64 " are held: %" PRIu64 " shared, %" PRIu64
             " scratch of your jobs",
             what, asked, shared + scratch, b->config.client_bytes, shared, scratch);
}

void td_quota_all_text(td_broker *b, const td_client *c, const char *what, uint64_t asked, uint32_t kinds, char *text,
                     size_t text_bytes)
{
    const bool models = kinds == TD_HELD_MODELS;

    snprintf(text, text_bytes, "%s is %" PRIu64 " bytes, and %" PRIu64 " of %" PRIu64 " are held", what, asked,
             models ? b->model_bytes : b->mem_bytes + td_scratch_held(b, NULL),
             models ? b->config.model_bytes : b->config.total_bytes);
    add_holders(b, c, kinds, text, text_bytes);
}

void td_client_lacks(td_broker *b, const td_client *c, const char *what, uint64_t lacks_bytes, char *text, size_t text_bytes)
{
    const size_t at = strlen(text);

    if (lacks_bytes > td_room_in(b->config.client_bytes, c->mem_bytes + td_scratch_held(b, c))) {
        td_quota_own_text(b, c, what, lacks_bytes, text, text_bytes);
    } else if (lacks_bytes) {
        td_quota_all_text(b, c, what, lacks_bytes, TD_HELD_MEMS, text, text_bytes);
    } else {
        snprintf(text + at, text_bytes - at, "; held");
        add_holders(b, c, TD_HELD_MEMS | TD_HELD_MODELS, text, text_bytes);
    }
}
