/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/wire/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* What td_wire_check() is at. The checks below are true, or write why not. */
typedef struct check {
    const td_wire_rules *rules;
    const char *message;
    td_wire_road road;
    char *why;
    size_t why_bytes;
} check;

static bool refuse(const check *c, const char *field, const char *format, ...) __attribute__((format(TD_PRINTF, 3, 4)));

static bool refuse(const check *c, const char *field, const char *format, ...)
{
    char text[240];
    va_list args;

    va_start(args, format);
    td_text_list(text, sizeof text, format, args);
    va_end(args);
    td_fail(c->why, c->why_bytes, TANDEM_ERROR_PROTOCOL, "%s.%s %s", c->message, field, text);
    return false;
}

static bool number(const check *c, const char *field, uint64_t value, uint64_t least, uint64_t most)
{
    if (value >= least && value <= most)
        return true;
    if (least == most)
        return refuse(c, field, "is %" PRIu64 ", must be %" PRIu64, value, most);
    return refuse(c, field, "is %" PRIu64 ", must be %" PRIu64 " to %" PRIu64, value, least, most);
}

static bool zeros(const check *c, const char *field, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (((const uint8_t *)bytes)[i])
            return refuse(c, field, "has %u in byte %zu, must be 0", ((const uint8_t *)bytes)[i], i);
    return true;
}

static bool status_word(const check *c, int32_t status)
{
    if (status < TANDEM_OK && status >= TANDEM_ERROR_BUSY)
        return true;
    return refuse(c, "status", "is %" PRId32 ", must be %d to -1", status, TANDEM_ERROR_BUSY);
}

/* How many bytes the character at `s` has; 0 if it is none that people can read. */
static size_t character(const uint8_t *s, size_t left)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t bytes = s[0] < 0x80 ? 1 : s[0] >> 5 == 6 ? 2 : s[0] >> 4 == 14 ? 3 : s[0] >> 3 == 30 ? 4 : 0;
    uint32_t code = bytes == 1 ? s[0] : s[0] & (0xffu >> (bytes + 1));

    if (!bytes || bytes > left)
        return 0;
    for (size_t i = 1; i < bytes; i++) {
        if (s[i] >> 6 != 2)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    if (code < least[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return 0;
    return code < 0x20 || (code >= 0x7f && code < 0xa0) ? 0 : bytes;
}

static bool text(const check *c, const char *field, const char *chars, size_t size)
{
    const uint8_t *s = (const uint8_t *)chars;
    size_t i = 0, n;

    for (; i < size && s[i]; i += n) {
        n = character(s + i, size - i);
        if (!n)
            return refuse(c, field, "has 0x%02x in byte %zu, which is no character", s[i], i);
    }
    if (i == size)
        return refuse(c, field, "has no end within its %zu bytes", size);
    for (; i < size; i++)
        if (s[i])
            return refuse(c, field, "has 0x%02x in byte %zu, behind its end", s[i], i);
    return true;
}

static bool id(const check *c, const char *field, uint64_t value, td_wire_kind kind)
{
    static const char *const names[TD_WIRE_KINDS] = {"", "mem", "timeline", "model", "instance"};
    const td_wire_rules *rules = c->rules;
    const uint32_t slots[TD_WIRE_KINDS] = {0, rules->mems, rules->timelines, rules->models, rules->instances};

    if (td_wire_id_kind(value) == (uint32_t)kind && td_wire_id_generation(value) && td_wire_id_slot(value) < slots[kind])
        return true;
    return refuse(c, field, "is 0x%" PRIx64 ", which cannot be the id of %s %s", value,
                  kind == TD_WIRE_KIND_INSTANCE ? "an" : "a", names[kind]);
}

static bool point(const check *c, const char *timeline, const char *value, const tandem_point *at)
{
    return at->timeline ? id(c, timeline, at->timeline, TD_WIRE_KIND_TIMELINE) : number(c, value, at->value, 0, 0);
}

static bool view_words(const check *c, const char *name, const tandem_view *view)
{
    const td_dtype of = td_dtype_of(view->dtype);
    const int64_t strides[3] = {view->stride_batch, view->stride_head, view->stride_row};
    static const char *const names[3] = {"stride_batch", "stride_head", "stride_row"};
    char field[48];

    snprintf(field, sizeof field, "%s.mem", name);
    if (!id(c, field, view->mem, TD_WIRE_KIND_MEM))
        return false;
    snprintf(field, sizeof field, "%s.dtype", name);
    if (!number(c, field, view->dtype, TANDEM_DTYPE_F16, TANDEM_DTYPE_Q5_K_TILES))
        return false;
    snprintf(field, sizeof field, "%s.reserved", name);
    if (!number(c, field, view->reserved, 0, 0))
        return false;
    snprintf(field, sizeof field, "%s.offset_bytes", name);
    if (view->offset_bytes % of.alignment)
        return refuse(c, field, "is %" PRIu64 ", must be a multiple of %u", view->offset_bytes, of.alignment);
    for (int i = 0; i < 3; i++) {
        snprintf(field, sizeof field, "%s.%s", name, names[i]);
        if (strides[i] < 0)
            return refuse(c, field, "is %" PRId64 ", must not be negative", strides[i]);
    }
    return true;
}

static bool view(const check *c, const char *name, const tandem_view *v, const uint32_t shape[4])
{
    uint64_t end = UINT64_MAX;

    if (!view_words(c, name, v))
        return false;
    if (td_view_end_bytes(v, shape, &end) && end <= c->rules->mem_bytes)
        return true;
    return refuse(c, name,
                  "with offset_bytes %" PRIu64 " and strides %" PRId64 ", %" PRId64 ", %" PRId64
                  " ends beyond the largest allocation's %" PRIu64 " bytes",
                  v->offset_bytes, v->stride_batch, v->stride_head, v->stride_row, c->rules->mem_bytes);
}

static bool shares(const check *c)
{
    return c->rules->share != TD_WIRE_SHARE_NONE || refuse(c, "header.type", "needs a share that is not NONE (0)");
}

static const td_wire_sizes any_sizes = {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX};

static bool check_size(const check *c, const char *field, uint32_t bytes, uint32_t least, uint32_t most)
{
    return number(c, field, bytes, least, most) &&
           (bytes % 8 == 0 || refuse(c, field, "is %" PRIu32 ", must be a multiple of 8", bytes));
}

/* Nobody has less than the first peers had, nor is told of more than it has. */
static bool check_sizes(const check *c, const td_wire_sizes *sizes, const td_wire_sizes *most)
{
    return check_size(c, "slot_bytes", sizes->slot_bytes, TD_WIRE_FIRST_SLOT_BYTES, most->slot_bytes) &&
           check_size(c, "job_bytes", sizes->job_bytes, TD_WIRE_FIRST_JOB_BYTES,
                      most->job_bytes < sizes->slot_bytes ? most->job_bytes : sizes->slot_bytes) &&
           check_size(c, "report_bytes", sizes->report_bytes, TD_WIRE_FIRST_REPORT_BYTES, most->report_bytes) &&
           number(c, "ring_bytes", sizes->ring_bytes, td_wire_ring_bytes(sizes), td_wire_ring_bytes(sizes));
}

/* What a client of version 1 does not know is 0; one newer than this knows what is reserved here. */
static bool check_from_version_2(const check *c, const td_wire_hello *m)
{
    if (m->version_max == 1)
        return zeros(c, "reserved", &m->most, sizeof *m - offsetof(td_wire_hello, most));
    return check_sizes(c, &m->most, &any_sizes) &&
           (m->version_max > TD_WIRE_VERSION || zeros(c, "reserved", m->reserved, sizeof m->reserved));
}

static bool check_hello(const check *c, const void *bytes)
{
    const td_wire_hello *m = bytes;

    return number(c, "magic", m->magic, TD_WIRE_MAGIC, TD_WIRE_MAGIC) &&
           number(c, "version_min", m->version_min, 1, m->version_max) && check_sizes(c, &m->sizes, &any_sizes) &&
           number(c, "share", m->share, TD_WIRE_SHARE_NONE, TD_WIRE_SHARE_OPAQUE) &&
           number(c, "backend", m->backend, TD_WIRE_BACKEND_AUTO, TD_WIRE_BACKEND_CPU) &&
           number(c, "frames_in_flight", m->frames_in_flight, 0, TD_WIRE_MAX_FRAMES) &&
           number(c, "timing", m->timing, 0, 1) &&
           number(c, "wait_bound_ns", m->wait_bound_ns, 0, TD_WIRE_MAX_WAIT_NS) &&
           text(c, "name", m->name, sizeof m->name) &&
           number(c, "job_class", m->job_class, TD_WIRE_CLASS_FRAME, TD_WIRE_CLASS_BACKGROUND) &&
           check_from_version_2(c, m);
}

static bool check_welcome(const check *c, const void *bytes)
{
    const td_wire_welcome *m = bytes;
    const td_wire_sizes most = td_wire_sizes_here();

    return number(c, "magic", m->magic, TD_WIRE_MAGIC, TD_WIRE_MAGIC) &&
           number(c, "version", m->version, 1, TD_WIRE_VERSION) && check_sizes(c, &m->sizes, &most) &&
           number(c, "reserved0", m->reserved0, 0, 0) &&
           (!(m->features & ~TD_WIRE_FEATURES) ||
            refuse(c, "features", "is 0x%" PRIx64 ", not all known", m->features)) &&
           number(c, "share", m->share, c->rules->share, c->rules->share) &&
           number(c, "frames_in_flight", m->frames_in_flight, 1, TD_WIRE_MAX_FRAMES) &&
           number(c, "mems", m->mems, 0, TD_WIRE_MAX_SLOTS) &&
           number(c, "timelines", m->timelines, 0, TD_WIRE_MAX_SLOTS) &&
           number(c, "models", m->models, 0, TD_WIRE_MAX_SLOTS) && number(c, "requests", m->requests, 1, UINT32_MAX) &&
           number(c, "mem_bytes", m->mem_bytes, 0, INT64_MAX) &&
           number(c, "rung", m->rung, TD_WIRE_RUNG_FIRST, TD_WIRE_RUNG_LAST) &&
           number(c, "reserved1", m->reserved1, 0, 0) && text(c, "name", m->name, sizeof m->name) &&
           number(c, "instances", m->instances, 0, m->features & TD_WIRE_NETWORKS ? TD_WIRE_MAX_SLOTS : 0) &&
           (m->version > 1 || zeros(c, "operations", m->operations, sizeof m->operations));
}

static bool check_mem_create(const check *c, const void *bytes)
{
    const td_wire_mem_create *m = bytes;
    const bool opaque = m->kind == TD_WIRE_MEM_OPAQUE;
    uint64_t end;

    if (!shares(c) ||
        !number(c, "kind", m->kind, TD_WIRE_MEM_MEMFD,
                c->rules->share == TD_WIRE_SHARE_OPAQUE ? TD_WIRE_MEM_OPAQUE : TD_WIRE_MEM_MEMFD) ||
        !number(c, "dedicated", m->dedicated, 0, opaque ? 1 : 0) ||
        !number(c, "allocation_bytes", m->allocation_bytes, 1, c->rules->mem_bytes) ||
        !number(c, "bytes", m->bytes, 1, m->allocation_bytes) ||
        !zeros(c, "reserved", m->reserved, sizeof m->reserved))
        return false;
    if (!opaque && m->allocation_bytes % TD_WIRE_PAGE_BYTES)
        return refuse(c, "allocation_bytes", "is %" PRIu64 ", must be a multiple of %d", m->allocation_bytes,
                      TD_WIRE_PAGE_BYTES);
    if (!opaque && m->offset_bytes % TD_WIRE_PAGE_BYTES)
        return refuse(c, "offset_bytes", "is %" PRIu64 ", must be a multiple of %d", m->offset_bytes,
                      TD_WIRE_PAGE_BYTES);
    if (!td_add_u64(m->offset_bytes, m->bytes, &end) || end > m->allocation_bytes)
        return refuse(c, "offset_bytes", "is %" PRIu64 ": its %" PRIu64 " bytes end beyond the allocation's %" PRIu64,
                      m->offset_bytes, m->bytes, m->allocation_bytes);
    return true;
}

static bool check_timeline_create(const check *c, const void *bytes)
{
    const td_wire_timeline_create *m = bytes;

    return shares(c) &&
           number(c, "kind", m->kind,
                  c->rules->share == TD_WIRE_SHARE_OPAQUE ? TD_WIRE_TIMELINE_OPAQUE : TD_WIRE_TIMELINE_FUTEX,
                  TD_WIRE_TIMELINE_FUTEX) &&
           number(c, "signaller", m->signaller, 0, 1) && zeros(c, "reserved", m->reserved, sizeof m->reserved);
}

static bool check_mem_destroy(const check *c, const void *bytes)
{
    return id(c, "id", ((const td_wire_object *)bytes)->id, TD_WIRE_KIND_MEM);
}

static bool check_timeline_destroy(const check *c, const void *bytes)
{
    return id(c, "id", ((const td_wire_object *)bytes)->id, TD_WIRE_KIND_TIMELINE);
}

/* MODEL_DESTROY, MODEL_GRAPH. */
static bool check_model(const check *c, const void *bytes)
{
    return id(c, "id", ((const td_wire_object *)bytes)->id, TD_WIRE_KIND_MODEL);
}

static bool check_instance_destroy(const check *c, const void *bytes)
{
    return id(c, "id", ((const td_wire_object *)bytes)->id, TD_WIRE_KIND_INSTANCE);
}

static bool check_done(const check *c, const void *bytes)
{
    const uint64_t created = ((const td_wire_object *)bytes)->id;
    const uint32_t kind = td_wire_id_kind(created);

    return !created || id(c, "id", created, kind && kind < TD_WIRE_KINDS ? (td_wire_kind)kind : TD_WIRE_KIND_MEM);
}

static bool check_path(const check *c, const char path[TD_WIRE_PATH_BYTES])
{
    const char *at = path;

    if (!text(c, "path", path, TD_WIRE_PATH_BYTES))
        return false;
    if (!*at)
        return refuse(c, "path", "is empty");
    for (;; at++) {
        const size_t component = strcspn(at, "/");

        if (component == 2 && at[0] == '.' && at[1] == '.')
            return refuse(c, "path", "has a component '..'");
        at += component;
        if (!*at)
            return true;
    }
}

static bool check_model_load(const check *c, const void *bytes)
{
    return check_path(c, ((const td_wire_model_load *)bytes)->path);
}

/* What the file and its sizes allow besides, who opens it knows. */
static bool check_model_create(const check *c, const void *bytes)
{
    const td_wire_model_create *m = bytes;

    return check_path(c, m->path) && number(c, "language.cache", m->language.cache, TANDEM_CACHE_F16, TANDEM_CACHE_F32) &&
           number(c, "language.hidden", m->language.hidden, 0, 1) &&
           number(c, "language.tops", m->language.tops, 0, TD_WIRE_TOPS) &&
           zeros(c, "reserved", m->reserved, sizeof m->reserved);
}

static bool check_model_tensor(const check *c, const void *bytes)
{
    const td_wire_model_tensor *m = bytes;

    return id(c, "model", m->model, TD_WIRE_KIND_MODEL) && text(c, "name", m->name, sizeof m->name);
}

static bool check_tensor(const check *c, const void *bytes)
{
    const td_wire_tensor *m = bytes;
    uint32_t shape[4];
    uint64_t end;

    for (int i = 0; i < 4; i++) {
        if (!number(c, "shape", m->shape[i], 1, INT32_MAX))
            return false;
        shape[i] = (uint32_t)m->shape[i];
    }
    return view_words(c, "view", &m->view) &&
           (td_view_end_bytes(&m->view, shape, &end) ||
            refuse(c, "view", "with offset_bytes %" PRIu64 " ends beyond 2^63 bytes", m->view.offset_bytes));
}

static bool check_graph(const check *c, const void *bytes)
{
    const td_wire_graph *m = bytes;

    return number(c, "bytes", m->bytes, 1, INT64_MAX) && number(c, "reserved", m->reserved, 0, 0);
}

static bool check_model_instance(const check *c, const void *bytes)
{
    const td_wire_model_instance *m = bytes;

    return id(c, "model", m->model, TD_WIRE_KIND_MODEL) &&
           number(c, "precision", m->precision, TANDEM_PRECISION_AUTO, TANDEM_PRECISION_4B) &&
           number(c, "deadlines", m->deadlines, 0, 1) && number(c, "reserved", m->reserved, 0, 0);
}

/* Of a network: whether it is 1 to its most the daemon knows. */
static bool numbers_of(const check *c, const uint32_t *numbers, uint32_t count)
{
    return number(c, "number_count", count, 0, TD_WIRE_NUMBERS) &&
           zeros(c, "numbers", numbers + count, (TD_WIRE_NUMBERS - count) * sizeof *numbers);
}

static bool share_of(const check *c, const char *field, float value, double most)
{
    return (value >= 0 && (double)value <= most) || refuse(c, field, "is %g, must be 0 to %g", (double)value, most);
}

static bool check_layers(const check *c, const td_wire_layers *m)
{
    if (!share_of(c, "layers.min_similarity", m->min_similarity, 1) ||
        !share_of(c, "layers.max_us", m->max_us, 1e30) || !number(c, "layers.sample_all", m->sample_all, 0, 1) ||
        !number(c, "layers.node_count", m->node_count, 0, TD_WIRE_NODES))
        return false;
    for (uint32_t node = m->node_count; node < TD_WIRE_NODES; node++)
        if (td_wire_plan_at(m, node))
            return refuse(c, "layers.precisions", "has %" PRIu32 " for node %" PRIu32 ", of %" PRIu32, td_wire_plan_at(m, node), node,
                          m->node_count);
    return true;
}

static bool check_instance_create(const check *c, const void *bytes)
{
    const td_wire_instance_create *m = bytes;

    return id(c, "model", m->model, TD_WIRE_KIND_MODEL) &&
           number(c, "precision", m->precision, TANDEM_PRECISION_AUTO, TANDEM_PRECISION_4B) &&
           number(c, "deadlines", m->deadlines, 0, 1) && check_layers(c, &m->layers) && number(c, "reserved", m->reserved, 0, 0);
}

static bool check_instance_layer(const check *c, const void *bytes)
{
    const td_wire_instance_layer *m = bytes;

    return id(c, "instance", m->instance, TD_WIRE_KIND_INSTANCE) && number(c, "index", m->index, 0, TD_WIRE_NODES - 1) &&
           numbers_of(c, m->numbers, m->number_count);
}

/* How long its state is the daemon knows. */
static bool check_instance_state(const check *c, const void *bytes)
{
    const td_wire_instance_state *m = bytes;
    const td_wire_range *r = m->ranges;

    if (!shares(c) || !id(c, "instance", m->instance, TD_WIRE_KIND_INSTANCE) || !id(c, "mem", m->mem, TD_WIRE_KIND_MEM) ||
        !number(c, "writes", m->writes, 0, 1) || !number(c, "range_count", m->range_count, 1, TD_WIRE_RANGES))
        return false;
    for (uint32_t i = 0; i < m->range_count; i++)
        if (!number(c, "ranges.bytes", r[i].bytes, 1, TD_WIRE_STATE_BYTES) || !number(c, "ranges.reserved", r[i].reserved, 0, 0) ||
            !number(c, "ranges.offset_bytes", r[i].offset_bytes, 0, INT64_MAX - r[i].bytes))
            return false;
    const uint64_t all = td_wire_state_bytes(m);
    if (all > TD_WIRE_STATE_BYTES)
        return refuse(c, "ranges", "have %" PRIu64 " bytes together, must have at most %d", all, TD_WIRE_STATE_BYTES);
    return number(c, "offset_bytes", m->offset_bytes, 0, c->rules->mem_bytes < all ? 0 : c->rules->mem_bytes - all) &&
           zeros(c, "ranges", r + m->range_count, (TD_WIRE_RANGES - m->range_count) * sizeof *r);
}

static bool check_layer(const check *c, const void *bytes)
{
    const td_wire_layer *m = bytes;

    return number(c, "node", m->node, 0, TD_WIRE_NODES - 1) &&
           number(c, "precision", m->precision, TANDEM_PRECISION_F16, TANDEM_PRECISION_4B) &&
           number(c, "pending", m->pending, 0, 1);
}

static bool check_model_prepare(const check *c, const void *bytes)
{
    const td_wire_model_prepare *m = bytes;

    return id(c, "instance", m->instance, TD_WIRE_KIND_INSTANCE) && number(c, "reserved", m->reserved, 0, 0) &&
           numbers_of(c, m->numbers, m->number_count);
}

static bool check_prepared(const check *c, const void *bytes)
{
    const td_wire_prepared *m = bytes;

    return number(c, "uniform_bytes", m->uniform_bytes, 0, TD_WIRE_UNIFORM_BYTES) &&
           number(c, "layer_count", m->layer_count, 0, c->rules->features & TD_WIRE_LAYERS ? TD_WIRE_NODES : 0) &&
           number(c, "reserved", m->reserved, 0, 0);
}

static bool check_info(const check *c, const void *bytes)
{
    const td_wire_info *m = bytes;

    return number(c, "backend", m->backend, TD_WIRE_BACKEND_CUDA, TD_WIRE_BACKEND_CPU) &&
           number(c, "rung", m->rung, TD_WIRE_RUNG_FIRST, TD_WIRE_RUNG_LAST) &&
           text(c, "rung_reason", m->rung_reason, sizeof m->rung_reason) &&
           text(c, "device", m->device, sizeof m->device) && text(c, "isa", m->isa, sizeof m->isa);
}

static bool check_stats(const check *c, const void *bytes)
{
    return number(c, "reserved", ((const td_wire_stats *)bytes)->reserved, 0, 0);
}

static bool check_stats_reply(const check *c, const void *bytes)
{
    const td_wire_stats_reply *m = bytes;

    if (!number(c, "count", m->count, 0, TD_WIRE_ROWS) || !number(c, "reserved", m->reserved, 0, 0) ||
        !number(c, "first", m->first, 0, UINT32_MAX - TD_WIRE_ROWS) ||
        (m->count && !number(c, "total", m->total, m->first + m->count, UINT32_MAX)))
        return false;
    for (uint32_t i = 0; i < m->count; i++)
        if (!number(c, "rows.job_class", m->rows[i].job_class, TD_WIRE_CLASS_FRAME, TD_WIRE_CLASS_BACKGROUND) ||
            !text(c, "rows.name", m->rows[i].name, sizeof m->rows[i].name))
            return false;
    return zeros(c, "rows", m->rows + m->count, (TD_WIRE_ROWS - m->count) * sizeof *m->rows);
}

static bool check_ticket(const check *c, const char *field, uint64_t ticket)
{
    return ticket < c->rules->next_ticket ||
           refuse(c, field, "is %" PRIu64 ", but the next job is %" PRIu64, ticket, c->rules->next_ticket);
}

static bool check_error(const check *c, const void *bytes)
{
    const td_wire_error *m = bytes;

    return status_word(c, m->status) && number(c, "reserved", m->reserved, 0, 0) &&
           (m->header.serial ? number(c, "ticket", m->ticket, 0, 0) : check_ticket(c, "ticket", m->ticket)) &&
           text(c, "text", m->text, sizeof m->text);
}

static bool check_reset(const check *c, const void *bytes)
{
    const td_wire_reset *m = bytes;

    return number(c, "epoch", m->epoch, 1, UINT32_MAX) && status_word(c, m->status) &&
           check_ticket(c, "last_ticket", m->last_ticket) && text(c, "text", m->text, sizeof m->text);
}

static bool check_bye(const check *c, const void *bytes)
{
    const td_wire_bye *m = bytes;

    return number(c, "reason", m->reason, TD_WIRE_BYE_DONE,
                  c->road == TD_WIRE_TO_DAEMON ? TD_WIRE_BYE_DONE : TD_WIRE_BYE_UNREAD) &&
           number(c, "reserved", m->reserved, 0, 0);
}

/* Its views: that each can be one of the connection's mems. What else its numbers have to be is not the wire's to know: the
 * daemon checks it, and such a job fails. */
static bool check_operands(const check *c, const td_operation_layout *layout, const tandem_operands *op)
{
    char field[48];

    for (uint32_t i = 0; i < layout->view_count; i++) {
        const char *name = layout->views[i].name;
        const tandem_view *v = td_view_in(layout, op, i);
        uint32_t shape[4];

        if (!td_view_is_there(layout, op, i)) {
            if (!zeros(c, name, v, sizeof *v))
                return false;
            continue;
        }
        layout->shape(op, i, shape);
        for (int axis = 0; axis < 4; axis++) {
            snprintf(field, sizeof field, "%s.shape[%d]", name, axis);
            if (!number(c, field, shape[axis], 1, TD_MOST_DIMENSION))
                return false;
        }
        if (!view(c, name, v, shape))
            return false;
    }
    return zeros(c, "op", (const char *)op + layout->bytes, sizeof *op - layout->bytes);
}

static bool check_job(const check *c, const void *bytes)
{
    const td_wire_job *m = bytes;
    const td_operation_layout *layout = c->rules->operation ? c->rules->operation(m->job.operation) : NULL;
    const uint32_t job_bytes = m->header.bytes - offsetof(td_wire_job, job);

    if (c->rules->more_bytes)
        return refuse(c, "ticket", "is %" PRIu64 ", of which %" PRIu32 " bytes of uniforms came", m->ticket,
                      c->rules->more_bytes);
    return shares(c) && number(c, "ticket", m->ticket, c->rules->next_ticket, c->rules->next_ticket) &&
           number(c, "struct_bytes", m->job.struct_bytes, job_bytes, job_bytes) &&
           (layout || refuse(c, "operation", "is %" PRIu32 ", which is none that is known here", m->job.operation)) &&
           point(c, "wait.timeline", "wait.value", &m->job.wait) &&
           point(c, "signal.timeline", "signal.value", &m->job.signal) && check_operands(c, layout, &m->job.op);
}

static bool check_bindings(const check *c, const td_wire_binding *bindings, uint32_t count)
{
    char field[48];

    if (!number(c, "binding_count", count, 0, TD_WIRE_BINDINGS))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const td_wire_binding *binding = &bindings[i];

        snprintf(field, sizeof field, "bindings[%" PRIu32 "].mem", i);
        if (!id(c, field, binding->mem, TD_WIRE_KIND_MEM))
            return false;
        snprintf(field, sizeof field, "bindings[%" PRIu32 "].offset_bytes", i);
        if (!number(c, field, binding->offset_bytes, 0, c->rules->mem_bytes))
            return false;
        snprintf(field, sizeof field, "bindings[%" PRIu32 "].dtype", i);
        if (!number(c, field, binding->dtype, TANDEM_DTYPE_F16, TANDEM_DTYPE_Q5_K_TILES))
            return false;
        snprintf(field, sizeof field, "bindings[%" PRIu32 "].reserved", i);
        if (!number(c, field, binding->reserved, 0, 0))
            return false;
    }
    return zeros(c, "bindings", bindings + count, (TD_WIRE_BINDINGS - count) * sizeof *bindings);
}

static bool check_uniforms_of_run(const check *c, const td_wire_run *m)
{
    const uint32_t here = m->uniform_bytes < TD_WIRE_RUN_BYTES ? m->uniform_bytes : (uint32_t)TD_WIRE_RUN_BYTES;

    if (!number(c, "uniform_bytes", m->uniform_bytes, 0, TD_WIRE_UNIFORM_BYTES))
        return false;
    if (m->uniform_bytes - here != c->rules->more_bytes)
        return refuse(c, "uniform_bytes", "is %" PRIu32 ", but %" PRIu32 " came before it, and %d at most are in it",
                      m->uniform_bytes, c->rules->more_bytes, TD_WIRE_RUN_BYTES);
    return zeros(c, "uniforms", m->uniforms + here, TD_WIRE_RUN_BYTES - here);
}

static bool check_run(const check *c, const void *bytes)
{
    const td_wire_run *m = bytes;

    return shares(c) && number(c, "ticket", m->ticket, c->rules->next_ticket, c->rules->next_ticket) &&
           point(c, "wait.timeline", "wait.value", &m->wait) &&
           point(c, "signal.timeline", "signal.value", &m->signal) &&
           id(c, "instance", m->instance, TD_WIRE_KIND_INSTANCE) && number(c, "reserved", m->reserved, 0, 0) &&
           numbers_of(c, m->numbers, m->number_count) && check_bindings(c, m->bindings, m->binding_count) &&
           check_uniforms_of_run(c, m);
}

static bool check_uniforms(const check *c, const void *bytes)
{
    const td_wire_uniforms *m = bytes;
    const uint32_t came = c->rules->more_bytes, room = TD_WIRE_UNIFORM_BYTES - TD_WIRE_RUN_BYTES - came;

    return shares(c) && number(c, "ticket", m->ticket, c->rules->next_ticket, c->rules->next_ticket) &&
           number(c, "first", m->first, came, came) &&
           number(c, "bytes", m->bytes, 1, room < TD_WIRE_MORE_BYTES ? room : (uint32_t)TD_WIRE_MORE_BYTES) &&
           zeros(c, "uniforms", m->uniforms + m->bytes, TD_WIRE_MORE_BYTES - m->bytes);
}

static bool check_submitted(const check *c, const void *bytes)
{
    return id(c, "timeline", ((const td_wire_submitted *)bytes)->timeline, TD_WIRE_KIND_TIMELINE);
}

static bool check_cancel(const check *c, const void *bytes)
{
    const uint64_t ticket = ((const td_wire_cancel *)bytes)->ticket;

    return (ticket || refuse(c, "ticket", "is 0")) && check_ticket(c, "ticket", ticket);
}

typedef enum serial_rule { EVENT, REQUEST, ANSWER, EITHER } serial_rule;

static const struct entry {
    const char *name;
    uint16_t type, bytes;
    uint8_t fds, before, after; /* the roads on which it may come before WELCOME, and behind it */
    uint8_t serial;             /* serial_rule */
    uint8_t feature;
    bool (*check)(const check *c, const void *bytes);
} entries[] = {
    {"HELLO", TD_WIRE_HELLO, sizeof(td_wire_hello), 0, TD_WIRE_TO_DAEMON, 0, REQUEST, 0, check_hello},
    {"PING", TD_WIRE_PING, sizeof(td_wire_header), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, 0, NULL},
    {"INFO", TD_WIRE_INFO, sizeof(td_wire_header), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, 0, NULL},
    {"MEM_CREATE", TD_WIRE_MEM_CREATE, sizeof(td_wire_mem_create), 1, 0, TD_WIRE_TO_DAEMON, REQUEST, 0,
     check_mem_create},
    {"MEM_DESTROY", TD_WIRE_MEM_DESTROY, sizeof(td_wire_object), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, 0,
     check_mem_destroy},
    {"TIMELINE_CREATE", TD_WIRE_TIMELINE_CREATE, sizeof(td_wire_timeline_create), 1, 0, TD_WIRE_TO_DAEMON, REQUEST, 0,
     check_timeline_create},
    {"TIMELINE_DESTROY", TD_WIRE_TIMELINE_DESTROY, sizeof(td_wire_object), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, 0,
     check_timeline_destroy},
    {"MODEL_LOAD", TD_WIRE_MODEL_LOAD, sizeof(td_wire_model_load), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, TD_WIRE_MODELS,
     check_model_load},
    {"MODEL_TENSOR", TD_WIRE_MODEL_TENSOR, sizeof(td_wire_model_tensor), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_MODELS, check_model_tensor},
    {"MODEL_DESTROY", TD_WIRE_MODEL_DESTROY, sizeof(td_wire_object), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, TD_WIRE_MODELS,
     check_model},
    {"STATS", TD_WIRE_STATS, sizeof(td_wire_stats), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, TD_WIRE_STATISTICS, check_stats},
    {"MODEL_GRAPH", TD_WIRE_MODEL_GRAPH, sizeof(td_wire_object), 0, 0, TD_WIRE_TO_DAEMON, REQUEST, TD_WIRE_NETWORKS,
     check_model},
    {"MODEL_INSTANCE", TD_WIRE_MODEL_INSTANCE, sizeof(td_wire_model_instance), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_NETWORKS, check_model_instance},
    {"MODEL_PREPARE", TD_WIRE_MODEL_PREPARE, sizeof(td_wire_model_prepare), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_NETWORKS, check_model_prepare},
    {"INSTANCE_DESTROY", TD_WIRE_INSTANCE_DESTROY, sizeof(td_wire_object), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_NETWORKS, check_instance_destroy},
    {"MODEL_CREATE", TD_WIRE_MODEL_CREATE, sizeof(td_wire_model_create), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_LANGUAGES, check_model_create},
    {"INSTANCE_CREATE", TD_WIRE_INSTANCE_CREATE, sizeof(td_wire_instance_create), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_LAYERS, check_instance_create},
    {"INSTANCE_LAYER", TD_WIRE_INSTANCE_LAYER, sizeof(td_wire_instance_layer), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_LAYERS, check_instance_layer},
    {"INSTANCE_STATE", TD_WIRE_INSTANCE_STATE, sizeof(td_wire_instance_state), 0, 0, TD_WIRE_TO_DAEMON, REQUEST,
     TD_WIRE_STATES, check_instance_state},
    {"JOB", TD_WIRE_JOB, sizeof(td_wire_job), 0, 0, TD_WIRE_RING, EVENT, 0, check_job},
    {"SUBMITTED", TD_WIRE_SUBMITTED, sizeof(td_wire_submitted), 0, 0, TD_WIRE_RING, EVENT, 0, check_submitted},
    {"CANCEL", TD_WIRE_CANCEL, sizeof(td_wire_cancel), 0, 0, TD_WIRE_RING, EVENT, 0, check_cancel},
    {"RUN", TD_WIRE_RUN, sizeof(td_wire_run), 0, 0, TD_WIRE_RING, EVENT, TD_WIRE_NETWORKS, check_run},
    {"UNIFORMS", TD_WIRE_UNIFORMS, sizeof(td_wire_uniforms), 0, 0, TD_WIRE_RING, EVENT, TD_WIRE_NETWORKS,
     check_uniforms},
    {"WELCOME", TD_WIRE_WELCOME, sizeof(td_wire_welcome), 1, TD_WIRE_TO_CLIENT, 0, ANSWER, 0, check_welcome},
    {"DONE", TD_WIRE_DONE, sizeof(td_wire_object), 0, 0, TD_WIRE_TO_CLIENT, ANSWER, 0, check_done},
    {"ERROR", TD_WIRE_ERROR, sizeof(td_wire_error), 0, TD_WIRE_TO_CLIENT, TD_WIRE_TO_CLIENT, EITHER, 0, check_error},
    {"INFO_REPLY", TD_WIRE_INFO_REPLY, sizeof(td_wire_info), 0, 0, TD_WIRE_TO_CLIENT, ANSWER, 0, check_info},
    {"TENSOR", TD_WIRE_TENSOR, sizeof(td_wire_tensor), 0, 0, TD_WIRE_TO_CLIENT, ANSWER, TD_WIRE_MODELS, check_tensor},
    {"STATS_REPLY", TD_WIRE_STATS_REPLY, sizeof(td_wire_stats_reply), 0, 0, TD_WIRE_TO_CLIENT, ANSWER,
     TD_WIRE_STATISTICS, check_stats_reply},
    {"RESET", TD_WIRE_RESET, sizeof(td_wire_reset), 0, 0, TD_WIRE_TO_CLIENT, EVENT, 0, check_reset},
    {"BYE", TD_WIRE_BYE, sizeof(td_wire_bye), 0, TD_WIRE_TO_CLIENT, TD_WIRE_TO_CLIENT | TD_WIRE_TO_DAEMON, EVENT, 0,
     check_bye},
    {"GRAPH", TD_WIRE_GRAPH, sizeof(td_wire_graph), 1, 0, TD_WIRE_TO_CLIENT, ANSWER, TD_WIRE_NETWORKS, check_graph},
    {"PREPARED", TD_WIRE_PREPARED, sizeof(td_wire_prepared), 0, 0, TD_WIRE_TO_CLIENT, ANSWER, TD_WIRE_NETWORKS,
     check_prepared},
    {"LAYER", TD_WIRE_LAYER, sizeof(td_wire_layer), 0, 0, TD_WIRE_TO_CLIENT, ANSWER, TD_WIRE_LAYERS, check_layer},
};

static const struct entry *find(uint32_t type)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (entries[i].type == type)
            return &entries[i];
    return NULL;
}

/* What may come before the version is known has one size in all of them; others grow. */
static bool check_bytes(const check *c, const struct entry *entry, const td_wire_header *h, size_t length)
{
    const uint32_t first = entry->type == TD_WIRE_JOB ? TD_WIRE_FIRST_JOB_BYTES : entry->bytes;

    if (!number(c, "header.bytes", h->bytes, first, entry->before ? entry->bytes : UINT32_MAX))
        return false;
    if (c->road == TD_WIRE_RING ? length >= h->bytes : length == h->bytes)
        return true;
    return refuse(c, "header.bytes", "is %" PRIu32 ", but %zu bytes came", h->bytes, length);
}

static bool check_unknown(const check *c, const struct entry *entry, const td_wire_header *h)
{
    const size_t at = td_first_not_zero(h, entry->bytes, h->bytes);

    return at == h->bytes ||
           refuse(c, "header.bytes", "is %" PRIu32 ", of which %u are known here, but the byte at offset %zu is %u, not 0",
                  h->bytes, entry->bytes, at, ((const uint8_t *)h)[at]);
}

static bool check_header(const check *c, const struct entry *entry, const td_wire_header *h, size_t length,
                         uint32_t fds)
{
    const td_wire_rules *rules = c->rules;
    const bool answer = h->serial && h->serial < rules->next_serial;

    if (!((rules->ready ? entry->after : entry->before) & c->road))
        return refuse(c, "header.type", "is %u, which may not come %s%s", h->type,
                      rules->ready ? "behind WELCOME " : "before WELCOME ",
                      c->road == TD_WIRE_RING        ? "in the ring"
                      : c->road == TD_WIRE_TO_DAEMON ? "to the daemon"
                                                     : "to the client");
    if (entry->feature && !(entry->feature & rules->features))
        return refuse(c, "header.type", "is %u, which needs feature %u", h->type, entry->feature);
    if (!check_bytes(c, entry, h, length) || !number(c, "header.fds", h->fds, entry->fds, entry->fds) ||
        !number(c, "header.reserved", h->reserved, 0, 0) || !check_unknown(c, entry, h))
        return false;
    if (fds != h->fds)
        return refuse(c, "header.fds", "is %u, but %" PRIu32 " came", h->fds, fds);
    switch ((serial_rule)entry->serial) {
    case EVENT:
        return number(c, "header.serial", h->serial, 0, 0);
    case REQUEST:
        return (h->serial && h->serial == rules->next_serial) ||
               refuse(c, "header.serial", "is %" PRIu32 ", must be %" PRIu32, h->serial, rules->next_serial);
    case ANSWER:
        return answer || refuse(c, "header.serial", "is %" PRIu32 ", which is no request's", h->serial);
    case EITHER:
        break;
    }
    return !h->serial || answer || refuse(c, "header.serial", "is %" PRIu32 ", which is no request's", h->serial);
}

tandem_status td_wire_check(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length,
                            uint32_t fds, char *why, size_t why_bytes)
{
    check c = {rules, "message", road, why, why_bytes};
    const td_wire_header *h = bytes;
    const struct entry *entry;
    td_wire_message whole;

    if (length < sizeof *h) {
        refuse(&c, "header", "needs 16 bytes, but %zu came", length);
        return TANDEM_ERROR_PROTOCOL;
    }
    entry = find(h->type);
    if (!entry) {
        refuse(&c, "header.type", "is %u, which there is not", h->type);
        return TANDEM_ERROR_PROTOCOL;
    }
    c.message = entry->name;
    if (!check_header(&c, entry, h, length, fds))
        return TANDEM_ERROR_PROTOCOL;
    if (h->bytes < entry->bytes) {
        memset(&whole, 0, sizeof whole);
        bytes = memcpy(&whole, bytes, h->bytes);
    }
    return !entry->check || entry->check(&c, bytes) ? TANDEM_OK : TANDEM_ERROR_PROTOCOL;
}

tandem_status td_wire_cut(td_wire_message *message, uint32_t most, char *why, size_t why_bytes)
{
    const uint32_t bytes = message->header.bytes;
    const size_t unknown = td_first_not_zero(message, most, bytes);

    if (bytes <= most)
        return TANDEM_OK;
    if (unknown < bytes)
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                       "the other side knows %" PRIu32 " bytes of %s, but the byte at offset %zu is not 0", most,
                       td_wire_name(message->header.type), unknown);
    message->header.bytes = most;
    if (message->header.type == TD_WIRE_JOB)
        message->job.job.struct_bytes = most - offsetof(td_wire_job, job);
    return TANDEM_OK;
}

void td_wire_took(td_wire_rules *rules, td_wire_road road, const void *message)
{
    const td_wire_header *h = message;

    if (road == TD_WIRE_TO_DAEMON && h->type == TD_WIRE_HELLO)
        rules->share = ((const td_wire_hello *)message)->share;
    if (road == TD_WIRE_TO_DAEMON && h->serial)
        rules->next_serial++; /* used up, it is 0, which no request has */
    if (road == TD_WIRE_RING && h->type == TD_WIRE_UNIFORMS)
        rules->more_bytes += ((const td_wire_uniforms *)message)->bytes;
    if (road == TD_WIRE_RING && (h->type == TD_WIRE_JOB || h->type == TD_WIRE_RUN)) {
        rules->next_ticket++;
        rules->more_bytes = 0;
    }
}

td_wire_rules td_wire_rules_new(const td_operation_layout *(*operation)(uint32_t number))
{
    return (td_wire_rules){.operation = operation, .next_serial = 1, .next_ticket = 1};
}

void td_wire_rules_welcome(td_wire_rules *rules, const td_wire_welcome *welcome)
{
    rules->ready = true;
    rules->share = welcome->share;
    rules->features = welcome->features;
    rules->sizes = welcome->sizes;
    memcpy(rules->operations, welcome->operations, sizeof rules->operations);
    if (welcome->version == 1)
        td_wire_operations_first(rules->operations);
    rules->mems = welcome->mems;
    rules->timelines = welcome->timelines;
    rules->models = welcome->models;
    rules->instances = welcome->instances;
    rules->mem_bytes = welcome->mem_bytes;
}

td_wire_message td_wire_new(td_wire_type type, uint32_t serial)
{
    const struct entry *entry = find(type);
    td_wire_message m;

    memset(&m, 0, sizeof m);
    m.header = (td_wire_header){
        .bytes = entry ? entry->bytes : 0, .type = (uint16_t)type, .fds = entry ? entry->fds : 0, .serial = serial};
    if (type == TD_WIRE_HELLO) {
        m.hello.magic = TD_WIRE_MAGIC;
        m.hello.version_min = 1;
        m.hello.version_max = TD_WIRE_VERSION;
        m.hello.sizes = td_wire_sizes_first();
        m.hello.most = td_wire_sizes_here();
    } else if (type == TD_WIRE_WELCOME) {
        m.welcome.magic = TD_WIRE_MAGIC;
        m.welcome.version = TD_WIRE_VERSION;
        m.welcome.sizes = td_wire_sizes_here();
    }
    return m;
}

uint32_t td_wire_bytes(uint32_t type)
{
    const struct entry *entry = find(type);

    return entry ? entry->bytes : 0;
}

const char *td_wire_name(uint32_t type)
{
    const struct entry *entry = find(type);

    return entry ? entry->name : "unknown";
}

void td_wire_text(char *field, size_t bytes, const char *from)
{
    const uint8_t *s = (const uint8_t *)from;
    size_t at = 0, left = strlen(from);

    while (left) {
        const size_t n = character(s, left), room = n ? n : 1;

        if (at + room >= bytes)
            break;
        if (n)
            memcpy(field + at, s, n);
        else
            field[at] = '?';
        at += room;
        s += room;
        left -= room;
    }
    memset(field + at, 0, bytes - at);
}

void td_wire_sentence(char *field, size_t bytes, const char *from)
{
    char fits[TD_WIRE_TEXT_BYTES];

    td_text(fits, bytes < sizeof fits ? bytes : sizeof fits, "%s", from);
    td_wire_text(field, bytes, fits);
}

uint64_t td_wire_report_pack(const td_wire_report *report)
{
    return (uint64_t)report->ticket << 32 | (uint64_t)(uint16_t)report->status << 16 |
           (uint64_t)report->client_signals << 15 | (uint64_t)(report->precision & 0x7f) << 8 | (report->state & 0xff);
}

tandem_status td_wire_report_unpack(uint64_t word, td_wire_report *report, char *why, size_t why_bytes)
{
    report->ticket = (uint32_t)(word >> 32);
    report->status = (int16_t)(word >> 16);
    report->client_signals = word >> 15 & 1;
    report->precision = word >> 8 & 0x7f;
    report->state = word & 0xff;
    if (report->state > TANDEM_JOB_FAILED || report->precision > TANDEM_PRECISION_4B ||
        report->status > TANDEM_OK || report->status < TANDEM_ERROR_BUSY)
        return td_fail(why, why_bytes, TANDEM_ERROR_PROTOCOL,
                       "report.word is 0x%" PRIx64 ": state %" PRIu32 ", precision %" PRIu32 ", status %" PRId32, word,
                       report->state, report->precision, report->status);
    return TANDEM_OK;
}
