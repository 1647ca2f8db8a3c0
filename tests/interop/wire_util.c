/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/interop/wire_util.h"

#include <string.h>

const uint16_t wire_types[WIRE_TYPES] = {
    TD_WIRE_HELLO,       TD_WIRE_PING,        TD_WIRE_INFO,        TD_WIRE_MEM_CREATE,   TD_WIRE_MEM_DESTROY,
    TD_WIRE_TIMELINE_CREATE, TD_WIRE_TIMELINE_DESTROY, TD_WIRE_MODEL_LOAD, TD_WIRE_MODEL_TENSOR, TD_WIRE_MODEL_DESTROY,
    TD_WIRE_STATS,       TD_WIRE_JOB,         TD_WIRE_SUBMITTED,   TD_WIRE_CANCEL,       TD_WIRE_WELCOME,
    TD_WIRE_DONE,        TD_WIRE_ERROR,       TD_WIRE_INFO_REPLY,  TD_WIRE_TENSOR,       TD_WIRE_STATS_REPLY,
    TD_WIRE_RESET,       TD_WIRE_BYE,         TD_WIRE_MODEL_GRAPH, TD_WIRE_MODEL_INSTANCE, TD_WIRE_MODEL_PREPARE,
    TD_WIRE_INSTANCE_DESTROY, TD_WIRE_RUN,    TD_WIRE_UNIFORMS,    TD_WIRE_GRAPH,        TD_WIRE_PREPARED,
    TD_WIRE_MODEL_CREATE, TD_WIRE_INSTANCE_CREATE, TD_WIRE_INSTANCE_LAYER, TD_WIRE_LAYER,
    TD_WIRE_INSTANCE_STATE};

td_wire_road wire_road(uint32_t type)
{
    return type >= TD_WIRE_WELCOME ? TD_WIRE_TO_CLIENT : type >= TD_WIRE_JOB ? TD_WIRE_RING : TD_WIRE_TO_DAEMON;
}

td_wire_rules wire_rules(uint32_t type)
{
    return (td_wire_rules){.operation = td_operation_of_clients,
                           .ready = type != TD_WIRE_HELLO && type != TD_WIRE_WELCOME,
                           .share = TD_WIRE_SHARE_OPAQUE,
                           .features = TD_WIRE_FEATURES,
                           .mems = WIRE_MEMS,
                           .timelines = WIRE_TIMELINES,
                           .models = WIRE_MODELS,
                           .instances = WIRE_INSTANCES,
                           .mem_bytes = WIRE_MEM_BYTES,
                           .next_serial = WIRE_SERIAL,
                           .next_ticket = WIRE_TICKET};
}

static tandem_job sample_job(void)
{
    const tandem_view view = {.mem = td_wire_id(TD_WIRE_KIND_MEM, 3, 5),
                              .offset_bytes = 4096,
                              .dtype = TANDEM_DTYPE_F16,
                              .stride_batch = 65536,
                              .stride_head = 64,
                              .stride_row = 256};
    tandem_job job;

    memset(&job, 0, sizeof job);
    job.struct_bytes = sizeof job;
    job.operation = TANDEM_OPERATION_ATTENTION;
    job.wait = (tandem_point){td_wire_id(TD_WIRE_KIND_TIMELINE, 1, 0), 41};
    job.signal = (tandem_point){td_wire_id(TD_WIRE_KIND_TIMELINE, 1, 1), 42};
    job.deadline_ns = 4000000;
    job.op.attention.q = job.op.attention.k = job.op.attention.v = job.op.attention.o = job.op.attention.lse = view;
    job.op.attention.o.offset_bytes = 1 << 20;
    job.op.attention.lse.offset_bytes = 2 << 20;
    job.op.attention.lse.dtype = TANDEM_DTYPE_F32;
    job.op.attention.batch = 2;
    job.op.attention.heads = 4;
    job.op.attention.kv_heads = 2;
    job.op.attention.q_len = 100;
    job.op.attention.kv_len = 200;
    job.op.attention.head_dim = 64;
    job.op.attention.scale = 0.125f;
    job.op.attention.causal = 1;
    job.op.attention.precision = TANDEM_PRECISION_8B;
    job.op.attention.smooth = TANDEM_SMOOTH_K;
    job.op.attention.granularity = TANDEM_GRANULARITY_TOKEN;
    return job;
}

/* Of two bindings, a number, and uniforms that fit into it. */
static void fill_run(td_wire_run *m)
{
    m->ticket = WIRE_TICKET;
    m->submit_ns = 123456789;
    m->wait = (tandem_point){td_wire_id(TD_WIRE_KIND_TIMELINE, 1, 0), 41};
    m->signal = (tandem_point){td_wire_id(TD_WIRE_KIND_TIMELINE, 1, 1), 42};
    m->deadline_ns = 4000000;
    m->instance = td_wire_id(TD_WIRE_KIND_INSTANCE, 3, 2);
    m->binding_count = 2;
    m->number_count = 1;
    m->uniform_bytes = 12;
    m->numbers[0] = 128;
    for (uint32_t i = 0; i < m->binding_count; i++)
        m->bindings[i] = (td_wire_binding){
            .mem = td_wire_id(TD_WIRE_KIND_MEM, 3, 5), .offset_bytes = 4096 * i, .dtype = TANDEM_DTYPE_F16};
    memset(m->uniforms, 7, m->uniform_bytes);
}

td_wire_message wire_sample(uint32_t type)
{
    td_wire_message m = td_wire_new((td_wire_type)type, 0);

    switch ((td_wire_type)type) {
    case TD_WIRE_HELLO:
        m.hello.features = TD_WIRE_FEATURES;
        m.hello.share = TD_WIRE_SHARE_OPAQUE;
        m.hello.frames_in_flight = 3;
        m.hello.wait_bound_ns = 2000000000;
        td_wire_text(m.hello.name, sizeof m.hello.name, "a game");
        break;
    case TD_WIRE_MEM_CREATE:
        m.mem_create.kind = TD_WIRE_MEM_MEMFD;
        m.mem_create.bytes = 8192;
        m.mem_create.allocation_bytes = 65536;
        m.mem_create.offset_bytes = 4096;
        break;
    case TD_WIRE_MEM_DESTROY:
    case TD_WIRE_DONE:
        m.object.id = td_wire_id(TD_WIRE_KIND_MEM, 1, WIRE_MEMS - 1);
        break;
    case TD_WIRE_TIMELINE_CREATE:
        m.timeline_create.kind = TD_WIRE_TIMELINE_FUTEX;
        m.timeline_create.signaller = 1;
        m.timeline_create.initial_value = 10;
        break;
    case TD_WIRE_TIMELINE_DESTROY:
        m.object.id = td_wire_id(TD_WIRE_KIND_TIMELINE, 0xffffffff, 0);
        break;
    case TD_WIRE_MODEL_LOAD:
        td_wire_text(m.model_load.path, sizeof m.model_load.path, "npc/small..model.safetensors");
        break;
    case TD_WIRE_MODEL_CREATE:
        td_wire_text(m.model_create.path, sizeof m.model_create.path, "npc/small..model.gguf");
        m.model_create.language = (td_wire_language){32, 4096, TANDEM_CACHE_K4V8, 256, 1, TD_WIRE_TOPS};
        break;
    case TD_WIRE_MODEL_TENSOR:
        m.model_tensor.model = td_wire_id(TD_WIRE_KIND_MODEL, 2, 1);
        td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "blocks.0.q.weight");
        break;
    case TD_WIRE_MODEL_DESTROY:
    case TD_WIRE_MODEL_GRAPH:
        m.object.id = td_wire_id(TD_WIRE_KIND_MODEL, 2, 1);
        break;
    case TD_WIRE_MODEL_INSTANCE:
        m.model_instance.model = td_wire_id(TD_WIRE_KIND_MODEL, 2, 1);
        m.model_instance.precision = TANDEM_PRECISION_8B;
        m.model_instance.deadlines = 1;
        break;
    case TD_WIRE_INSTANCE_CREATE:
        m.instance_create.model = td_wire_id(TD_WIRE_KIND_MODEL, 2, 1);
        m.instance_create.deadlines = 1;
        m.instance_create.layers = (td_wire_layers){.min_similarity = 0.99f, .max_us = 800, .sample_every = 4, .sample_rows = 32, .node_count = 6};
        m.instance_create.layers.precisions[0] = TANDEM_PRECISION_F16 | TANDEM_PRECISION_4B << 4;
        m.instance_create.layers.precisions[1] = TANDEM_PRECISION_8B << 2;
        break;
    case TD_WIRE_INSTANCE_LAYER:
        m.instance_layer.instance = td_wire_id(TD_WIRE_KIND_INSTANCE, 1, WIRE_INSTANCES - 1);
        m.instance_layer.number_count = 1;
        m.instance_layer.numbers[0] = 128;
        m.instance_layer.index = 3;
        break;
    case TD_WIRE_INSTANCE_STATE:
        m.instance_state.instance = td_wire_id(TD_WIRE_KIND_INSTANCE, 1, WIRE_INSTANCES - 1);
        m.instance_state.mem = td_wire_id(TD_WIRE_KIND_MEM, 1, WIRE_MEMS - 1);
        m.instance_state.offset_bytes = 256;
        m.instance_state.writes = 1;
        m.instance_state.range_count = 2;
        m.instance_state.ranges[0] = (td_wire_range){4096, TD_WIRE_STATE_BYTES - 100, 0};
        m.instance_state.ranges[1] = (td_wire_range){0, 100, 0};
        break;
    case TD_WIRE_LAYER:
        m.layer.node = 7;
        m.layer.precision = TANDEM_PRECISION_8B;
        m.layer.samples = 3;
        m.layer.heads = 8;
        m.layer.cosine = 0.999f;
        break;
    case TD_WIRE_MODEL_PREPARE:
        m.model_prepare.instance = td_wire_id(TD_WIRE_KIND_INSTANCE, 1, WIRE_INSTANCES - 1);
        m.model_prepare.number_count = 2;
        m.model_prepare.numbers[0] = m.model_prepare.numbers[1] = 128;
        break;
    case TD_WIRE_INSTANCE_DESTROY:
        m.object.id = td_wire_id(TD_WIRE_KIND_INSTANCE, 1, 0);
        break;
    case TD_WIRE_RUN:
        fill_run(&m.run);
        break;
    case TD_WIRE_UNIFORMS:
        m.uniforms.ticket = WIRE_TICKET;
        m.uniforms.bytes = 100;
        memset(m.uniforms.uniforms, 8, m.uniforms.bytes);
        break;
    case TD_WIRE_GRAPH:
        m.graph.bytes = 65536;
        break;
    case TD_WIRE_PREPARED:
        m.prepared.record_count = 50;
        m.prepared.chain = 40;
        m.prepared.scratch_bytes = 1 << 20;
        m.prepared.uniform_bytes = TD_WIRE_UNIFORM_BYTES;
        break;
    case TD_WIRE_STATS:
        m.stats.first = 16;
        break;
    case TD_WIRE_JOB:
        m.job.ticket = WIRE_TICKET;
        m.job.submit_ns = 123456789;
        m.job.job = sample_job();
        break;
    case TD_WIRE_SUBMITTED:
        m.submitted.timeline = td_wire_id(TD_WIRE_KIND_TIMELINE, 1, 0);
        m.submitted.value = UINT64_MAX;
        break;
    case TD_WIRE_CANCEL:
        m.cancel.ticket = WIRE_TICKET - 1;
        break;
    case TD_WIRE_WELCOME:
        m.welcome.features = TD_WIRE_MODELS | TD_WIRE_NETWORKS;
        m.welcome.share = TD_WIRE_SHARE_OPAQUE;
        m.welcome.frames_in_flight = 3;
        m.welcome.mems = WIRE_MEMS;
        m.welcome.timelines = WIRE_TIMELINES;
        m.welcome.models = WIRE_MODELS;
        m.welcome.instances = WIRE_INSTANCES;
        m.welcome.requests = 32;
        m.welcome.mem_bytes = WIRE_MEM_BYTES;
        m.welcome.quota_bytes = 4 * WIRE_MEM_BYTES;
        m.welcome.rung = 2;
        td_wire_text(m.welcome.name, sizeof m.welcome.name, "tandemd 0.1.0");
        break;
    case TD_WIRE_ERROR:
        m.error.status = TANDEM_ERROR_NOMEM;
        td_wire_text(m.error.text, sizeof m.error.text, "device memory: 8192 bytes");
        break;
    case TD_WIRE_INFO_REPLY:
        m.info.backend = TD_WIRE_BACKEND_CPU;
        m.info.rung = TD_WIRE_RUNG_LAST;
        m.info.cpu_threads = 2;
        m.info.jobs_done = 77;
        td_wire_text(m.info.rung_reason, sizeof m.info.rung_reason, "no CUDA device has the engine's UUID");
        td_wire_text(m.info.device, sizeof m.info.device, "a processor");
        td_wire_text(m.info.isa, sizeof m.info.isa, "avx2");
        break;
    case TD_WIRE_TENSOR:
        m.tensor.view = sample_job().op.attention.q;
        for (int i = 0; i < 4; i++)
            m.tensor.shape[i] = i < 2 ? 1 : 512;
        break;
    case TD_WIRE_STATS_REPLY:
        m.stats_reply.total = 18;
        m.stats_reply.first = 16;
        m.stats_reply.count = 2;
        for (uint32_t i = 0; i < 2; i++) {
            m.stats_reply.rows[i] = (td_wire_row){.session = 17 + i, .pid = 100 + i, .jobs_done = 5, .mem_bytes = 8192};
            td_wire_text(m.stats_reply.rows[i].name, sizeof m.stats_reply.rows[i].name, "a game");
        }
        break;
    case TD_WIRE_RESET:
        m.reset.epoch = 1;
        m.reset.status = TANDEM_ERROR_DEVICE;
        m.reset.last_ticket = WIRE_TICKET - 1;
        td_wire_text(m.reset.text, sizeof m.reset.text, "an illegal address");
        break;
    case TD_WIRE_BYE:
        m.bye.reason = TD_WIRE_BYE_STOPPING;
        break;
    case TD_WIRE_PING:
    case TD_WIRE_INFO:
        break;
    }
    if (wire_road(type) == TD_WIRE_TO_DAEMON)
        m.header.serial = WIRE_SERIAL;
    else if (wire_road(type) == TD_WIRE_TO_CLIENT && type != TD_WIRE_RESET && type != TD_WIRE_BYE)
        m.header.serial = WIRE_SERIAL - 1;
    return m;
}

/* A second opinion on a view's end, by long double: exact below 2^63, and far off only where it does not matter. */
static bool ends_within(const tandem_view *v, uint32_t batch, uint32_t heads, uint32_t rows, uint32_t dim, uint64_t most)
{
    const long double elements = (long double)(batch - 1) * (long double)v->stride_batch +
                                 (long double)(heads - 1) * (long double)v->stride_head +
                                 (long double)(rows - 1) * (long double)v->stride_row + dim;

    if (v->dtype == TANDEM_DTYPE_CODES_INT8 || v->dtype == TANDEM_DTYPE_CODES_E4M3) { /* dense and padded, with scales */
        const long double rows_pad = (rows + 127ull) / 128 * 128, planes = (long double)batch * heads;
        const long double dim_pad = dim > 128 ? 256 : (dim + 31) / 32 * 32;
        const long double scales = v->dtype == TANDEM_DTYPE_CODES_INT8 ? rows_pad : dim_pad;

        return planes * (rows_pad * dim_pad + 4 * scales) + (long double)v->offset_bytes <= (long double)most;
    }
    switch (v->dtype) {
    case TANDEM_DTYPE_F16:
    case TANDEM_DTYPE_BF16: return elements * 2 + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_F32:
    case TANDEM_DTYPE_I32: return elements * 4 + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_U8:
    case TANDEM_DTYPE_I8: return elements + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_Q8_0:
    case TANDEM_DTYPE_Q8_0_TILES: return elements / 32 * 34 + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_Q4_0:
    case TANDEM_DTYPE_Q4_0_TILES: return elements / 32 * 18 + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_Q4_1:
    case TANDEM_DTYPE_Q4_1_TILES: return elements / 32 * 20 + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_Q4_K:
    case TANDEM_DTYPE_Q4_K_TILES: return elements / 256 * 144 + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_Q5_K:
    case TANDEM_DTYPE_Q5_K_TILES: return elements / 256 * 176 + (long double)v->offset_bytes <= (long double)most;
    case TANDEM_DTYPE_Q6_K:
    case TANDEM_DTYPE_Q6_K_TILES: return elements / 256 * 210 + (long double)v->offset_bytes <= (long double)most;
    default: return false;
    }
}

static bool is_id(uint64_t id, uint32_t kind, uint32_t slots)
{
    return id >> 56 == kind && (id >> 24 & 0xffffffff) != 0 && (id & 0xffffff) != 0 && (id & 0xffffff) <= slots;
}

static const char *run_promise(const td_wire_rules *rules, const td_wire_run *m)
{
    if (!is_id(m->instance, 4, rules->instances))
        return "instance";
    if (m->number_count > TD_WIRE_NUMBERS || m->binding_count > TD_WIRE_BINDINGS)
        return "count";
    if (m->uniform_bytes > (uint64_t)TD_WIRE_RUN_BYTES + rules->more_bytes)
        return "uniform_bytes";
    for (uint32_t i = 0; i < m->binding_count; i++)
        if (!is_id(m->bindings[i].mem, 1, rules->mems) || m->bindings[i].offset_bytes > rules->mem_bytes)
            return "binding";
    return m->wait.timeline && !is_id(m->wait.timeline, 2, rules->timelines) ? "wait" : NULL;
}

static const char *path_promise(const char path[TD_WIRE_PATH_BYTES])
{
    if (!memchr(path, 0, TD_WIRE_PATH_BYTES) || !*path || !strncmp(path, "../", 3) || strstr(path, "/../"))
        return "path";
    return strlen(path) < 3 || strcmp(path + strlen(path) - 3, "/..") ? NULL : "path";
}

const char *wire_promise(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length)
{
    const td_wire_header *h = bytes;

    if (h->bytes < (h->type == TD_WIRE_JOB ? 368 : td_wire_bytes(h->type)) || h->bytes > length ||
        (road != TD_WIRE_RING && h->bytes != length))
        return "bytes";
    for (uint32_t at = td_wire_bytes(h->type); at < h->bytes; at++)
        if (((const uint8_t *)bytes)[at])
            return "unknown bytes";
    if (h->fds > TD_WIRE_MAX_FDS || (h->fds && !rules->ready && h->type != TD_WIRE_WELCOME))
        return "fds";
    switch (h->type) {
    case TD_WIRE_HELLO:
        return memchr(((const td_wire_hello *)bytes)->name, 0, TD_WIRE_NAME_BYTES) ? NULL : "name";
    case TD_WIRE_MODEL_LOAD:
        return path_promise(((const td_wire_model_load *)bytes)->path);
    case TD_WIRE_MODEL_CREATE: {
        const td_wire_model_create *m = bytes;

        if (m->language.cache > TANDEM_CACHE_F32 || m->language.hidden > 1 || m->language.tops > TD_WIRE_TOPS)
            return "language";
        return path_promise(m->path);
    }
    case TD_WIRE_MEM_CREATE: {
        const td_wire_mem_create *m = bytes;

        return m->bytes && m->bytes <= m->allocation_bytes && m->allocation_bytes <= rules->mem_bytes &&
                       m->offset_bytes <= m->allocation_bytes - m->bytes
                   ? NULL
                   : "mem_create";
    }
    case TD_WIRE_INSTANCE_CREATE: {
        const td_wire_layers *m = &((const td_wire_instance_create *)bytes)->layers;

        return m->node_count <= TD_WIRE_NODES && m->min_similarity >= 0 && m->min_similarity <= 1 && m->max_us >= 0 && m->sample_all <= 1
                   ? NULL
                   : "layers";
    }
    case TD_WIRE_INSTANCE_STATE: {
        const td_wire_instance_state *m = bytes;
        uint64_t all = 0;

        if (m->writes > 1 || !m->range_count || m->range_count > TD_WIRE_RANGES)
            return "range_count";
        for (uint32_t i = 0; i < m->range_count; i++) {
            if (!m->ranges[i].bytes || m->ranges[i].offset_bytes > (uint64_t)INT64_MAX - m->ranges[i].bytes)
                return "range";
            all += m->ranges[i].bytes;
        }
        return is_id(m->instance, 4, rules->instances) && is_id(m->mem, 1, rules->mems) && all <= TD_WIRE_STATE_BYTES &&
                       all <= rules->mem_bytes && m->offset_bytes <= rules->mem_bytes - all
                   ? NULL
                   : "instance_state";
    }
    case TD_WIRE_LAYER:
        return ((const td_wire_layer *)bytes)->node < TD_WIRE_NODES ? NULL : "layer";
    case TD_WIRE_RUN:
        return run_promise(rules, bytes);
    case TD_WIRE_UNIFORMS: {
        const td_wire_uniforms *m = bytes;

        return m->bytes && m->bytes <= TD_WIRE_MORE_BYTES && m->first == rules->more_bytes &&
                       m->first + m->bytes <= TD_WIRE_UNIFORM_BYTES - TD_WIRE_RUN_BYTES
                   ? NULL
                   : "uniforms";
    }
    case TD_WIRE_MODEL_PREPARE:
        return ((const td_wire_model_prepare *)bytes)->number_count <= TD_WIRE_NUMBERS ? NULL : "number_count";
    case TD_WIRE_STATS_REPLY:
        return ((const td_wire_stats_reply *)bytes)->count <= TD_WIRE_ROWS ? NULL : "count";
    case TD_WIRE_ERROR:
        return memchr(((const td_wire_error *)bytes)->text, 0, TD_WIRE_TEXT_BYTES) ? NULL : "text";
    case TD_WIRE_SUBMITTED:
        return is_id(((const td_wire_submitted *)bytes)->timeline, 2, rules->timelines) ? NULL : "timeline";
    case TD_WIRE_JOB: {
        const td_wire_job *m = bytes;
        const tandem_attention *op = &m->job.op.attention;
        const tandem_view *views[5] = {&op->q, &op->k, &op->v, &op->o, &op->lse};

        if (!op->batch || !op->heads || !op->kv_heads || !op->q_len || !op->kv_len || !op->head_dim)
            return "shape";
        if (m->job.wait.timeline && !is_id(m->job.wait.timeline, 2, rules->timelines))
            return "wait";
        for (int i = 0; i < (op->lse.dtype ? 5 : 4); i++) {
            const bool kv = i == 1 || i == 2;

            if (!is_id(views[i]->mem, 1, rules->mems) || views[i]->stride_batch < 0 || views[i]->stride_head < 0 ||
                views[i]->stride_row < 0 ||
                !ends_within(views[i], op->batch, kv ? op->kv_heads : op->heads, kv ? op->kv_len : op->q_len,
                             i == 4 ? 1 : op->head_dim, rules->mem_bytes))
                return "view";
        }
        return NULL;
    }
    default:
        return NULL;
    }
}
