/* The wire's messages, as interop/PROTOCOL.md draws them, and the checks that every one passes before it is used.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Messages are little-endian structs without padding, copied as they lie. Nothing here has side effects.
 */
#ifndef TANDEM_WIRE_H
#define TANDEM_WIRE_H

#include <assert.h>

#include "interop/operation.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire is little-endian, and its structs are copied as they lie"
#endif

enum {
    TD_WIRE_MAGIC = 0x4d444e54,
    TD_WIRE_VERSION = 2, /* the newest; all from 1 on are spoken */
    TD_WIRE_MAX_FDS = 1,
    TD_WIRE_MAX_SLOTS = (1 << 24) - 1, /* of a kind of object */
    TD_WIRE_MAX_FRAMES = 32,
    TD_WIRE_NAME_BYTES = 64,
    TD_WIRE_PATH_BYTES = 1024,
    TD_WIRE_TENSOR_BYTES = 256,
    TD_WIRE_TEXT_BYTES = 400,
    TD_WIRE_ROWS = 16,
    TD_WIRE_BINDINGS = 64, /* of a network, */
    TD_WIRE_NUMBERS = 32,
    TD_WIRE_NODES = 4096,
    TD_WIRE_PLAN_BYTES = TD_WIRE_NODES / 4, /* 2 bits for each */
    TD_WIRE_TOPS = 64, /* of a language model: how many of the largest logits, at most */
    TD_WIRE_RUN_BYTES = 288, /* of its uniforms: in RUN itself, */
    TD_WIRE_MORE_BYTES = 2016, /* in each UNIFORMS, */
    TD_WIRE_UNIFORM_BYTES = TD_WIRE_RUN_BYTES + 16 * TD_WIRE_MORE_BYTES, /* and at most */
    TD_WIRE_RANGES = 120, /* of an instance's state, and how much they may be together: what others wait for meanwhile */
    TD_WIRE_STATE_BYTES = 1 << 20,
    TD_WIRE_OPERATION_BYTES = 12, /* for those numbered 1 to 23: versions of 4 bits, the low ones first */
    TD_WIRE_PAGE_BYTES = 4096, /* mems begin on whole pages; the size of a shared timeline */
    TD_WIRE_SLOT_BYTES = 2048,
    TD_WIRE_SLOTS = 64,
    TD_WIRE_REPORT_BYTES = 32,
    TD_WIRE_REPORTS = 256,
    TD_WIRE_SLOTS_AT = 4096,
    TD_WIRE_REPORTS_AT = TD_WIRE_SLOTS_AT + TD_WIRE_SLOTS * TD_WIRE_SLOT_BYTES,
    TD_WIRE_RING_BYTES = TD_WIRE_REPORTS_AT + TD_WIRE_REPORTS * TD_WIRE_REPORT_BYTES,
    /* What the first peers of version 1 have, and everybody can use. */
    TD_WIRE_FIRST_JOB_BYTES = 368,
    TD_WIRE_FIRST_SLOT_BYTES = 512,
    TD_WIRE_FIRST_REPORT_BYTES = 32,
};
#define TD_WIRE_MAX_WAIT_NS 60000000000ull

/* What tandem/tandem.h, a floor above, calls tandem_backend, tandem_rung and tandem_class. */
enum { TD_WIRE_BACKEND_AUTO = 0, TD_WIRE_BACKEND_CUDA = 1, TD_WIRE_BACKEND_CPU = 2 };
enum { TD_WIRE_RUNG_FIRST = 1, TD_WIRE_RUNG_LAST = 5 };
enum { TD_WIRE_CLASS_FRAME = 0, TD_WIRE_CLASS_BACKGROUND = 1 };

typedef enum td_wire_type {
    TD_WIRE_HELLO = 1,
    TD_WIRE_PING = 2,
    TD_WIRE_INFO = 3,
    TD_WIRE_MEM_CREATE = 4,
    TD_WIRE_MEM_DESTROY = 5,
    TD_WIRE_TIMELINE_CREATE = 6,
    TD_WIRE_TIMELINE_DESTROY = 7,
    TD_WIRE_MODEL_LOAD = 8,
    TD_WIRE_MODEL_TENSOR = 9,
    TD_WIRE_MODEL_DESTROY = 10,
    TD_WIRE_STATS = 11,
    TD_WIRE_MODEL_GRAPH = 12,
    TD_WIRE_MODEL_INSTANCE = 13,
    TD_WIRE_MODEL_PREPARE = 14,
    TD_WIRE_INSTANCE_DESTROY = 15,
    TD_WIRE_MODEL_CREATE = 16,
    TD_WIRE_INSTANCE_CREATE = 17,
    TD_WIRE_INSTANCE_LAYER = 18,
    TD_WIRE_INSTANCE_STATE = 19,
    TD_WIRE_JOB = 32,
    TD_WIRE_SUBMITTED = 33,
    TD_WIRE_CANCEL = 34,
    TD_WIRE_RUN = 35,
    TD_WIRE_UNIFORMS = 36,
    TD_WIRE_WELCOME = 64,
    TD_WIRE_DONE = 65,
    TD_WIRE_ERROR = 66,
    TD_WIRE_INFO_REPLY = 67,
    TD_WIRE_TENSOR = 68,
    TD_WIRE_STATS_REPLY = 69,
    TD_WIRE_RESET = 70,
    TD_WIRE_BYE = 71,
    TD_WIRE_GRAPH = 72,
    TD_WIRE_PREPARED = 73,
    TD_WIRE_LAYER = 74
} td_wire_type;

typedef enum td_wire_feature {
    TD_WIRE_MODELS = 1,
    TD_WIRE_STATISTICS = 2,
    TD_WIRE_NETWORKS = 4,
    TD_WIRE_LANGUAGES = 8,
    TD_WIRE_LAYERS = 16,
    TD_WIRE_STATES = 32
} td_wire_feature;
#define TD_WIRE_FEATURES \
    ((uint64_t)(TD_WIRE_MODELS | TD_WIRE_STATISTICS | TD_WIRE_NETWORKS | TD_WIRE_LANGUAGES | TD_WIRE_LAYERS | \
                TD_WIRE_STATES))

typedef enum td_wire_share { TD_WIRE_SHARE_NONE = 0, TD_WIRE_SHARE_HOST = 1, TD_WIRE_SHARE_OPAQUE = 2 } td_wire_share;
typedef enum td_wire_mem_kind { TD_WIRE_MEM_MEMFD = 1, TD_WIRE_MEM_OPAQUE = 2 } td_wire_mem_kind;
typedef enum td_wire_timeline_kind { TD_WIRE_TIMELINE_OPAQUE = 1, TD_WIRE_TIMELINE_FUTEX = 2 } td_wire_timeline_kind;
typedef enum td_wire_reason {
    TD_WIRE_BYE_DONE = 1,
    TD_WIRE_BYE_STOPPING = 2,
    TD_WIRE_BYE_FULL = 3,
    TD_WIRE_BYE_UNREAD = 4
} td_wire_reason;
typedef enum td_wire_kind {
    TD_WIRE_KIND_MEM = 1,
    TD_WIRE_KIND_TIMELINE = 2,
    TD_WIRE_KIND_MODEL = 3,
    TD_WIRE_KIND_INSTANCE = 4
} td_wire_kind;
enum { TD_WIRE_KINDS = 5 }; /* and 0, which is none */

/* An id: kind:8, generation:32 (never 0), slot + 1:24. */
static inline uint64_t td_wire_id(td_wire_kind kind, uint32_t generation, uint32_t slot)
{
    return (uint64_t)kind << 56 | (uint64_t)generation << 24 | (slot + 1);
}
static inline uint32_t td_wire_id_kind(uint64_t id) { return (uint32_t)(id >> 56); }
static inline uint32_t td_wire_id_generation(uint64_t id) { return (uint32_t)(id >> 24); }
/* TD_WIRE_MAX_SLOTS or more for an id that never was one. */
static inline uint32_t td_wire_id_slot(uint64_t id) { return (uint32_t)(id & TD_WIRE_MAX_SLOTS) - 1; }

/* Each struct's size, and where each member lies. */
#define TD_WIRE_SIZE(type, size) static_assert(sizeof(type) == (size), #type)
#define TD_WIRE_AT(type, member, at) static_assert(offsetof(type, member) == (at), #type "." #member)

typedef struct td_wire_header {
    uint32_t bytes;
    uint16_t type, fds;
    uint32_t serial, reserved;
} td_wire_header;
TD_WIRE_SIZE(td_wire_header, 16);
TD_WIRE_AT(td_wire_header, type, 4);
TD_WIRE_AT(td_wire_header, fds, 6);
TD_WIRE_AT(td_wire_header, serial, 8);
TD_WIRE_AT(td_wire_header, reserved, 12);

typedef struct td_wire_identity {
    uint8_t host_id[16], boot_id[16], device_uuid[16], driver_uuid[16];
    uint32_t driver_id, driver_version;
} td_wire_identity;
TD_WIRE_SIZE(td_wire_identity, 72);
TD_WIRE_AT(td_wire_identity, boot_id, 16);
TD_WIRE_AT(td_wire_identity, device_uuid, 32);
TD_WIRE_AT(td_wire_identity, driver_uuid, 48);
TD_WIRE_AT(td_wire_identity, driver_id, 64);
TD_WIRE_AT(td_wire_identity, driver_version, 68);

/* What a peer has room for; a connection goes by the lesser of each. */
typedef struct td_wire_sizes {
    uint32_t job_bytes, slot_bytes, report_bytes;
    uint32_t ring_bytes; /* with such slots and reports */
} td_wire_sizes;
TD_WIRE_SIZE(td_wire_sizes, 16);
TD_WIRE_AT(td_wire_sizes, slot_bytes, 4);
TD_WIRE_AT(td_wire_sizes, report_bytes, 8);
TD_WIRE_AT(td_wire_sizes, ring_bytes, 12);

typedef struct td_wire_hello {
    td_wire_header header;
    uint32_t magic;
    uint16_t version_min, version_max;
    uint64_t features;
    td_wire_sizes sizes; /* a client that speaks version 2 says td_wire_sizes_first() here: daemons of version 1 compare */
    td_wire_identity identity;
    uint32_t share;   /* td_wire_share */
    uint32_t backend; /* tandem_backend */
    uint32_t frames_in_flight, timing;
    uint64_t wait_bound_ns;
    char name[TD_WIRE_NAME_BYTES];
    uint32_t job_class; /* tandem_class */
    /* From version 2 on, else 0. */
    td_wire_sizes most;
    uint8_t operations[TD_WIRE_OPERATION_BYTES];
    uint8_t reserved[16];
} td_wire_hello;
TD_WIRE_SIZE(td_wire_hello, 256);
TD_WIRE_AT(td_wire_hello, magic, 16);
TD_WIRE_AT(td_wire_hello, version_min, 20);
TD_WIRE_AT(td_wire_hello, version_max, 22);
TD_WIRE_AT(td_wire_hello, features, 24);
TD_WIRE_AT(td_wire_hello, sizes, 32);
TD_WIRE_AT(td_wire_hello, identity, 48);
TD_WIRE_AT(td_wire_hello, share, 120);
TD_WIRE_AT(td_wire_hello, backend, 124);
TD_WIRE_AT(td_wire_hello, frames_in_flight, 128);
TD_WIRE_AT(td_wire_hello, timing, 132);
TD_WIRE_AT(td_wire_hello, wait_bound_ns, 136);
TD_WIRE_AT(td_wire_hello, name, 144);
TD_WIRE_AT(td_wire_hello, job_class, 208);
TD_WIRE_AT(td_wire_hello, most, 212);
TD_WIRE_AT(td_wire_hello, operations, 228);
TD_WIRE_AT(td_wire_hello, reserved, 240);

typedef struct td_wire_welcome {
    td_wire_header header;
    uint32_t magic;
    uint16_t version, reserved0;
    uint64_t features;
    td_wire_sizes sizes; /* the connection's */
    td_wire_identity identity;
    uint32_t share, session, epoch, frames_in_flight;
    uint32_t mems, timelines, models, requests;
    uint64_t mem_bytes, quota_bytes;
    uint32_t rung; /* tandem_rung */
    uint32_t reserved1;
    char name[TD_WIRE_NAME_BYTES];
    /* From version 2 on, else 0. */
    uint32_t instances;
    uint8_t operations[TD_WIRE_OPERATION_BYTES];
} td_wire_welcome;
TD_WIRE_SIZE(td_wire_welcome, 256);
TD_WIRE_AT(td_wire_welcome, magic, 16);
TD_WIRE_AT(td_wire_welcome, version, 20);
TD_WIRE_AT(td_wire_welcome, reserved0, 22);
TD_WIRE_AT(td_wire_welcome, features, 24);
TD_WIRE_AT(td_wire_welcome, sizes, 32);
TD_WIRE_AT(td_wire_welcome, identity, 48);
TD_WIRE_AT(td_wire_welcome, share, 120);
TD_WIRE_AT(td_wire_welcome, session, 124);
TD_WIRE_AT(td_wire_welcome, epoch, 128);
TD_WIRE_AT(td_wire_welcome, frames_in_flight, 132);
TD_WIRE_AT(td_wire_welcome, mems, 136);
TD_WIRE_AT(td_wire_welcome, timelines, 140);
TD_WIRE_AT(td_wire_welcome, models, 144);
TD_WIRE_AT(td_wire_welcome, requests, 148);
TD_WIRE_AT(td_wire_welcome, mem_bytes, 152);
TD_WIRE_AT(td_wire_welcome, quota_bytes, 160);
TD_WIRE_AT(td_wire_welcome, rung, 168);
TD_WIRE_AT(td_wire_welcome, reserved1, 172);
TD_WIRE_AT(td_wire_welcome, name, 176);
TD_WIRE_AT(td_wire_welcome, instances, 240);
TD_WIRE_AT(td_wire_welcome, operations, 244);

typedef struct td_wire_mem_create {
    td_wire_header header;
    uint32_t kind; /* td_wire_mem_kind */
    uint32_t dedicated;
    uint64_t bytes, allocation_bytes, offset_bytes, reserved[2];
} td_wire_mem_create;
TD_WIRE_SIZE(td_wire_mem_create, 64);
TD_WIRE_AT(td_wire_mem_create, kind, 16);
TD_WIRE_AT(td_wire_mem_create, dedicated, 20);
TD_WIRE_AT(td_wire_mem_create, bytes, 24);
TD_WIRE_AT(td_wire_mem_create, allocation_bytes, 32);
TD_WIRE_AT(td_wire_mem_create, offset_bytes, 40);
TD_WIRE_AT(td_wire_mem_create, reserved, 48);

typedef struct td_wire_timeline_create {
    td_wire_header header;
    uint32_t kind;      /* td_wire_timeline_kind */
    uint32_t signaller; /* 0: the client's side, 1: the daemon */
    uint64_t initial_value, reserved[2];
} td_wire_timeline_create;
TD_WIRE_SIZE(td_wire_timeline_create, 48);
TD_WIRE_AT(td_wire_timeline_create, kind, 16);
TD_WIRE_AT(td_wire_timeline_create, signaller, 20);
TD_WIRE_AT(td_wire_timeline_create, initial_value, 24);
TD_WIRE_AT(td_wire_timeline_create, reserved, 32);

/* MEM_DESTROY, TIMELINE_DESTROY, MODEL_DESTROY, INSTANCE_DESTROY, MODEL_GRAPH, DONE. */
typedef struct td_wire_object {
    td_wire_header header;
    uint64_t id;
} td_wire_object;
TD_WIRE_SIZE(td_wire_object, 24);
TD_WIRE_AT(td_wire_object, id, 16);

typedef struct td_wire_model_load {
    td_wire_header header;
    char path[TD_WIRE_PATH_BYTES];
} td_wire_model_load;
TD_WIRE_SIZE(td_wire_model_load, 1040);
TD_WIRE_AT(td_wire_model_load, path, 16);

/* What is made of a language model's file, as tandem_model_desc has it; all 0: what MODEL_LOAD makes of it. */
typedef struct td_wire_language {
    uint32_t sequences, context;
    uint32_t cache; /* tandem_cache_format */
    uint32_t pages, hidden, tops;
} td_wire_language;
TD_WIRE_SIZE(td_wire_language, 24);
TD_WIRE_AT(td_wire_language, context, 4);
TD_WIRE_AT(td_wire_language, cache, 8);
TD_WIRE_AT(td_wire_language, pages, 12);
TD_WIRE_AT(td_wire_language, hidden, 16);
TD_WIRE_AT(td_wire_language, tops, 20);

typedef struct td_wire_model_create {
    td_wire_header header;
    char path[TD_WIRE_PATH_BYTES];
    td_wire_language language;
    uint32_t reserved[2];
} td_wire_model_create;
TD_WIRE_SIZE(td_wire_model_create, 1072);
TD_WIRE_AT(td_wire_model_create, path, 16);
TD_WIRE_AT(td_wire_model_create, language, 1040);
TD_WIRE_AT(td_wire_model_create, reserved, 1064);

typedef struct td_wire_model_tensor {
    td_wire_header header;
    uint64_t model;
    char name[TD_WIRE_TENSOR_BYTES];
} td_wire_model_tensor;
TD_WIRE_SIZE(td_wire_model_tensor, 280);
TD_WIRE_AT(td_wire_model_tensor, model, 16);
TD_WIRE_AT(td_wire_model_tensor, name, 24);

typedef struct td_wire_tensor {
    td_wire_header header;
    tandem_view view;
    uint64_t shape[4];
} td_wire_tensor;
TD_WIRE_SIZE(td_wire_tensor, 96);
TD_WIRE_AT(td_wire_tensor, view, 16);
TD_WIRE_AT(td_wire_tensor, shape, 64);

typedef struct td_wire_graph {
    td_wire_header header;
    uint64_t bytes; /* of what the descriptor names */
    uint64_t reserved;
} td_wire_graph;
TD_WIRE_SIZE(td_wire_graph, 32);
TD_WIRE_AT(td_wire_graph, bytes, 16);
TD_WIRE_AT(td_wire_graph, reserved, 24);

typedef struct td_wire_model_instance {
    td_wire_header header;
    uint64_t model;
    uint32_t precision; /* tandem_precision */
    uint32_t deadlines; /* 1: its runs may have one */
    uint64_t reserved;
} td_wire_model_instance;
TD_WIRE_SIZE(td_wire_model_instance, 40);
TD_WIRE_AT(td_wire_model_instance, model, 16);
TD_WIRE_AT(td_wire_model_instance, precision, 24);
TD_WIRE_AT(td_wire_model_instance, deadlines, 28);
TD_WIRE_AT(td_wire_model_instance, reserved, 32);

/* What is asked of an instance's layers, as tandem_instance_desc has it, and its plan: a tandem_precision of 2 bits for each of
 * the graph's nodes, the low ones first. */
typedef struct td_wire_layers {
    float min_similarity, max_us;
    uint32_t sample_every, sample_rows, sample_all;
    uint32_t node_count; /* 0: there is no plan */
    uint8_t precisions[TD_WIRE_PLAN_BYTES];
} td_wire_layers;
TD_WIRE_SIZE(td_wire_layers, 1048);
TD_WIRE_AT(td_wire_layers, max_us, 4);
TD_WIRE_AT(td_wire_layers, sample_every, 8);
TD_WIRE_AT(td_wire_layers, sample_rows, 12);
TD_WIRE_AT(td_wire_layers, sample_all, 16);
TD_WIRE_AT(td_wire_layers, node_count, 20);
TD_WIRE_AT(td_wire_layers, precisions, 24);
static inline uint32_t td_wire_plan_at(const td_wire_layers *layers, uint32_t node)
{
    return layers->precisions[node / 4] >> node % 4 * 2 & 3;
}
/* Of a plan that has nothing for that node yet. */
static inline void td_wire_plan_put(td_wire_layers *layers, uint32_t node, uint32_t precision)
{
    layers->precisions[node / 4] |= (uint8_t)(precision << node % 4 * 2);
}

typedef struct td_wire_instance_create {
    td_wire_header header;
    uint64_t model;
    uint32_t precision, deadlines; /* as in MODEL_INSTANCE */
    td_wire_layers layers;
    uint64_t reserved;
} td_wire_instance_create;
TD_WIRE_SIZE(td_wire_instance_create, 1088);
TD_WIRE_AT(td_wire_instance_create, model, 16);
TD_WIRE_AT(td_wire_instance_create, precision, 24);
TD_WIRE_AT(td_wire_instance_create, deadlines, 28);
TD_WIRE_AT(td_wire_instance_create, layers, 32);
TD_WIRE_AT(td_wire_instance_create, reserved, 1080);

typedef struct td_wire_instance_layer {
    td_wire_header header;
    uint64_t instance;
    uint32_t number_count, index;
    uint32_t numbers[TD_WIRE_NUMBERS];
} td_wire_instance_layer;
TD_WIRE_SIZE(td_wire_instance_layer, 160);
TD_WIRE_AT(td_wire_instance_layer, instance, 16);
TD_WIRE_AT(td_wire_instance_layer, number_count, 24);
TD_WIRE_AT(td_wire_instance_layer, index, 28);
TD_WIRE_AT(td_wire_instance_layer, numbers, 32);

/* Bytes of what an instance keeps from run to run. */
typedef struct td_wire_range {
    uint64_t offset_bytes; /* in its state */
    uint32_t bytes, reserved;
} td_wire_range;
TD_WIRE_SIZE(td_wire_range, 16);
TD_WIRE_AT(td_wire_range, bytes, 8);
TD_WIRE_AT(td_wire_range, reserved, 12);

typedef struct td_wire_instance_state {
    td_wire_header header;
    uint64_t instance;
    uint64_t mem, offset_bytes; /* where in a mem the ranges lie, one behind the other */
    uint32_t writes;            /* 1: from there to the instance; 0: from the instance to there */
    uint32_t range_count;
    td_wire_range ranges[TD_WIRE_RANGES];
} td_wire_instance_state;
TD_WIRE_SIZE(td_wire_instance_state, 1968);
TD_WIRE_AT(td_wire_instance_state, instance, 16);
TD_WIRE_AT(td_wire_instance_state, mem, 24);
TD_WIRE_AT(td_wire_instance_state, offset_bytes, 32);
TD_WIRE_AT(td_wire_instance_state, writes, 40);
TD_WIRE_AT(td_wire_instance_state, range_count, 44);
TD_WIRE_AT(td_wire_instance_state, ranges, 48);
/* All of its ranges together: of one that passed, at most TD_WIRE_STATE_BYTES. */
static inline uint64_t td_wire_state_bytes(const td_wire_instance_state *m)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < m->range_count && i < TD_WIRE_RANGES; i++)
        bytes += m->ranges[i].bytes;
    return bytes;
}

/* As tandem_layer, but for its name, which the graph has. */
typedef struct td_wire_layer {
    td_wire_header header;
    uint32_t node, precision, samples, changes, pending, heads, worst_head;
    float worst_similarity, cosine, relative_l1, similarity[4];
} td_wire_layer;
TD_WIRE_SIZE(td_wire_layer, 72);
TD_WIRE_AT(td_wire_layer, node, 16);
TD_WIRE_AT(td_wire_layer, precision, 20);
TD_WIRE_AT(td_wire_layer, samples, 24);
TD_WIRE_AT(td_wire_layer, changes, 28);
TD_WIRE_AT(td_wire_layer, pending, 32);
TD_WIRE_AT(td_wire_layer, heads, 36);
TD_WIRE_AT(td_wire_layer, worst_head, 40);
TD_WIRE_AT(td_wire_layer, worst_similarity, 44);
TD_WIRE_AT(td_wire_layer, cosine, 48);
TD_WIRE_AT(td_wire_layer, relative_l1, 52);
TD_WIRE_AT(td_wire_layer, similarity, 56);

typedef struct td_wire_model_prepare {
    td_wire_header header;
    uint64_t instance;
    uint32_t number_count, reserved;
    uint32_t numbers[TD_WIRE_NUMBERS];
} td_wire_model_prepare;
TD_WIRE_SIZE(td_wire_model_prepare, 160);
TD_WIRE_AT(td_wire_model_prepare, instance, 16);
TD_WIRE_AT(td_wire_model_prepare, number_count, 24);
TD_WIRE_AT(td_wire_model_prepare, reserved, 28);
TD_WIRE_AT(td_wire_model_prepare, numbers, 32);

typedef struct td_wire_prepared {
    td_wire_header header;
    uint32_t record_count, chain;
    uint64_t scratch_bytes, uniform_bytes;
    uint32_t layer_count; /* with LAYERS: that are sampled */
    uint32_t reserved;
} td_wire_prepared;
TD_WIRE_SIZE(td_wire_prepared, 48);
TD_WIRE_AT(td_wire_prepared, record_count, 16);
TD_WIRE_AT(td_wire_prepared, chain, 20);
TD_WIRE_AT(td_wire_prepared, scratch_bytes, 24);
TD_WIRE_AT(td_wire_prepared, uniform_bytes, 32);
TD_WIRE_AT(td_wire_prepared, layer_count, 40);
TD_WIRE_AT(td_wire_prepared, reserved, 44);

typedef struct td_wire_info {
    td_wire_header header;
    uint32_t backend, rung, sm, cuda_driver_version, cpu_threads, epoch;
    uint64_t host_bytes, device_bytes;
    uint64_t jobs_submitted, jobs_done, jobs_stale, jobs_cancelled, jobs_failed;
    uint64_t cuda_copies, cuda_allocations, cuda_host_waits, cuda_launches;
    uint8_t device_uuid[16];
    char rung_reason[256], device[128], isa[32];
} td_wire_info;
TD_WIRE_SIZE(td_wire_info, 560);
TD_WIRE_AT(td_wire_info, backend, 16);
TD_WIRE_AT(td_wire_info, rung, 20);
TD_WIRE_AT(td_wire_info, sm, 24);
TD_WIRE_AT(td_wire_info, cuda_driver_version, 28);
TD_WIRE_AT(td_wire_info, cpu_threads, 32);
TD_WIRE_AT(td_wire_info, epoch, 36);
TD_WIRE_AT(td_wire_info, host_bytes, 40);
TD_WIRE_AT(td_wire_info, device_bytes, 48);
TD_WIRE_AT(td_wire_info, jobs_submitted, 56);
TD_WIRE_AT(td_wire_info, jobs_done, 64);
TD_WIRE_AT(td_wire_info, jobs_stale, 72);
TD_WIRE_AT(td_wire_info, jobs_cancelled, 80);
TD_WIRE_AT(td_wire_info, jobs_failed, 88);
TD_WIRE_AT(td_wire_info, cuda_copies, 96);
TD_WIRE_AT(td_wire_info, cuda_allocations, 104);
TD_WIRE_AT(td_wire_info, cuda_host_waits, 112);
TD_WIRE_AT(td_wire_info, cuda_launches, 120);
TD_WIRE_AT(td_wire_info, device_uuid, 128);
TD_WIRE_AT(td_wire_info, rung_reason, 144);
TD_WIRE_AT(td_wire_info, device, 400);
TD_WIRE_AT(td_wire_info, isa, 528);

typedef struct td_wire_stats {
    td_wire_header header;
    uint32_t first, reserved;
} td_wire_stats;
TD_WIRE_SIZE(td_wire_stats, 24);
TD_WIRE_AT(td_wire_stats, first, 16);
TD_WIRE_AT(td_wire_stats, reserved, 20);

typedef struct td_wire_row {
    uint32_t session, pid, uid, queued, running;
    uint32_t job_class; /* tandem_class */
    char name[32];
    uint64_t jobs_done, jobs_stale, jobs_cancelled, jobs_failed;
    uint64_t gpu_ns, wait_ns, mem_bytes, model_bytes, connected_ns;
} td_wire_row;
TD_WIRE_SIZE(td_wire_row, 128);
TD_WIRE_AT(td_wire_row, pid, 4);
TD_WIRE_AT(td_wire_row, uid, 8);
TD_WIRE_AT(td_wire_row, queued, 12);
TD_WIRE_AT(td_wire_row, running, 16);
TD_WIRE_AT(td_wire_row, job_class, 20);
TD_WIRE_AT(td_wire_row, name, 24);
TD_WIRE_AT(td_wire_row, jobs_done, 56);
TD_WIRE_AT(td_wire_row, jobs_stale, 64);
TD_WIRE_AT(td_wire_row, jobs_cancelled, 72);
TD_WIRE_AT(td_wire_row, jobs_failed, 80);
TD_WIRE_AT(td_wire_row, gpu_ns, 88);
TD_WIRE_AT(td_wire_row, wait_ns, 96);
TD_WIRE_AT(td_wire_row, mem_bytes, 104);
TD_WIRE_AT(td_wire_row, model_bytes, 112);
TD_WIRE_AT(td_wire_row, connected_ns, 120);

typedef struct td_wire_stats_reply {
    td_wire_header header;
    uint32_t total, first, count, reserved;
    td_wire_row rows[TD_WIRE_ROWS];
} td_wire_stats_reply;
TD_WIRE_SIZE(td_wire_stats_reply, 2080);
TD_WIRE_AT(td_wire_stats_reply, total, 16);
TD_WIRE_AT(td_wire_stats_reply, first, 20);
TD_WIRE_AT(td_wire_stats_reply, count, 24);
TD_WIRE_AT(td_wire_stats_reply, reserved, 28);
TD_WIRE_AT(td_wire_stats_reply, rows, 32);

typedef struct td_wire_error {
    td_wire_header header;
    int32_t status; /* tandem_status */
    uint32_t reserved;
    uint64_t ticket;
    char text[TD_WIRE_TEXT_BYTES];
} td_wire_error;
TD_WIRE_SIZE(td_wire_error, 432);
TD_WIRE_AT(td_wire_error, status, 16);
TD_WIRE_AT(td_wire_error, reserved, 20);
TD_WIRE_AT(td_wire_error, ticket, 24);
TD_WIRE_AT(td_wire_error, text, 32);

typedef struct td_wire_reset {
    td_wire_header header;
    uint32_t epoch;
    int32_t status; /* tandem_status */
    uint64_t last_ticket;
    char text[240];
} td_wire_reset;
TD_WIRE_SIZE(td_wire_reset, 272);
TD_WIRE_AT(td_wire_reset, epoch, 16);
TD_WIRE_AT(td_wire_reset, status, 20);
TD_WIRE_AT(td_wire_reset, last_ticket, 24);
TD_WIRE_AT(td_wire_reset, text, 32);

typedef struct td_wire_bye {
    td_wire_header header;
    uint32_t reason; /* td_wire_reason */
    uint32_t reserved;
} td_wire_bye;
TD_WIRE_SIZE(td_wire_bye, 24);
TD_WIRE_AT(td_wire_bye, reason, 16);
TD_WIRE_AT(td_wire_bye, reserved, 20);

typedef struct td_wire_job {
    td_wire_header header;
    uint64_t ticket, submit_ns;
    tandem_job job;
} td_wire_job;
TD_WIRE_SIZE(td_wire_job, 1104);
TD_WIRE_AT(td_wire_job, ticket, 16);
TD_WIRE_AT(td_wire_job, submit_ns, 24);
TD_WIRE_AT(td_wire_job, job.struct_bytes, 32);
TD_WIRE_AT(td_wire_job, job.operation, 36);
TD_WIRE_AT(td_wire_job, job.wait.timeline, 40);
TD_WIRE_AT(td_wire_job, job.wait.value, 48);
TD_WIRE_AT(td_wire_job, job.signal.timeline, 56);
TD_WIRE_AT(td_wire_job, job.signal.value, 64);
TD_WIRE_AT(td_wire_job, job.deadline_ns, 72);
TD_WIRE_AT(td_wire_job, job.op, 80); /* whose operations say what lies where in it */
TD_WIRE_SIZE(tandem_view, 48);
TD_WIRE_AT(tandem_view, offset_bytes, 8);
TD_WIRE_AT(tandem_view, dtype, 16);
TD_WIRE_AT(tandem_view, reserved, 20);
TD_WIRE_AT(tandem_view, stride_batch, 24);
TD_WIRE_AT(tandem_view, stride_head, 32);
TD_WIRE_AT(tandem_view, stride_row, 40);
static_assert(sizeof(td_wire_job) <= TD_WIRE_SLOT_BYTES, "a job fits into a slot");

/* A tensor that lies dense in a mem. */
typedef struct td_wire_binding {
    uint64_t mem, offset_bytes;
    uint32_t dtype, reserved;
} td_wire_binding;
TD_WIRE_SIZE(td_wire_binding, 24);
TD_WIRE_AT(td_wire_binding, offset_bytes, 8);
TD_WIRE_AT(td_wire_binding, dtype, 16);
TD_WIRE_AT(td_wire_binding, reserved, 20);

typedef struct td_wire_run {
    td_wire_header header;
    uint64_t ticket, submit_ns;
    tandem_point wait, signal;
    uint64_t deadline_ns, instance;
    uint32_t binding_count, number_count, uniform_bytes, reserved;
    uint32_t numbers[TD_WIRE_NUMBERS];
    td_wire_binding bindings[TD_WIRE_BINDINGS];
    uint8_t uniforms[TD_WIRE_RUN_BYTES]; /* the first ones */
} td_wire_run;
TD_WIRE_SIZE(td_wire_run, 2048);
TD_WIRE_AT(td_wire_run, ticket, 16);
TD_WIRE_AT(td_wire_run, submit_ns, 24);
TD_WIRE_AT(td_wire_run, wait, 32);
TD_WIRE_AT(td_wire_run, signal, 48);
TD_WIRE_AT(td_wire_run, deadline_ns, 64);
TD_WIRE_AT(td_wire_run, instance, 72);
TD_WIRE_AT(td_wire_run, binding_count, 80);
TD_WIRE_AT(td_wire_run, number_count, 84);
TD_WIRE_AT(td_wire_run, uniform_bytes, 88);
TD_WIRE_AT(td_wire_run, reserved, 92);
TD_WIRE_AT(td_wire_run, numbers, 96);
TD_WIRE_AT(td_wire_run, bindings, 224);
TD_WIRE_AT(td_wire_run, uniforms, 1760);
static_assert(sizeof(td_wire_run) <= TD_WIRE_SLOT_BYTES, "a run fits into a slot");

typedef struct td_wire_uniforms {
    td_wire_header header;
    uint64_t ticket;       /* of the run to come */
    uint32_t first, bytes; /* first: how many of those that are not in RUN came before */
    uint8_t uniforms[TD_WIRE_MORE_BYTES];
} td_wire_uniforms;
TD_WIRE_SIZE(td_wire_uniforms, 2048);
TD_WIRE_AT(td_wire_uniforms, ticket, 16);
TD_WIRE_AT(td_wire_uniforms, first, 24);
TD_WIRE_AT(td_wire_uniforms, bytes, 28);
TD_WIRE_AT(td_wire_uniforms, uniforms, 32);
static_assert(sizeof(td_wire_uniforms) <= TD_WIRE_SLOT_BYTES, "so do more uniforms");

typedef struct td_wire_submitted {
    td_wire_header header;
    uint64_t timeline, value;
} td_wire_submitted;
TD_WIRE_SIZE(td_wire_submitted, 32);
TD_WIRE_AT(td_wire_submitted, timeline, 16);
TD_WIRE_AT(td_wire_submitted, value, 24);

typedef struct td_wire_cancel {
    td_wire_header header;
    uint64_t ticket;
} td_wire_cancel;
TD_WIRE_SIZE(td_wire_cancel, 24);
TD_WIRE_AT(td_wire_cancel, ticket, 16);

/* Room for any message; td_wire_check() has been through whatever a member is read of. */
typedef union td_wire_message {
    td_wire_header header;
    td_wire_hello hello;
    td_wire_welcome welcome;
    td_wire_mem_create mem_create;
    td_wire_timeline_create timeline_create;
    td_wire_object object;
    td_wire_model_load model_load;
    td_wire_model_create model_create;
    td_wire_model_tensor model_tensor;
    td_wire_tensor tensor;
    td_wire_graph graph;
    td_wire_model_instance model_instance;
    td_wire_instance_create instance_create;
    td_wire_instance_layer instance_layer;
    td_wire_instance_state instance_state;
    td_wire_layer layer;
    td_wire_model_prepare model_prepare;
    td_wire_prepared prepared;
    td_wire_info info;
    td_wire_stats stats;
    td_wire_stats_reply stats_reply;
    td_wire_error error;
    td_wire_reset reset;
    td_wire_bye bye;
    td_wire_job job;
    td_wire_run run;
    td_wire_uniforms uniforms;
    td_wire_submitted submitted;
    td_wire_cancel cancel;
} td_wire_message;
TD_WIRE_SIZE(td_wire_message, 2080);

/* Which road a message came on. */
typedef enum td_wire_road { TD_WIRE_TO_DAEMON = 1, TD_WIRE_TO_CLIENT = 2, TD_WIRE_RING = 4 } td_wire_road;

/* What a receiver knows about a connection, and what it lets the peer do. Begins as td_wire_rules_new() says; filled
 * from WELCOME on both sides; next_* rise as messages are taken, and as the client sends them: it calls td_wire_took() for
 * its own requests and jobs. */
typedef struct td_wire_rules {
    const td_operation_layout *(*operation)(uint32_t number); /* those that JOBs may name; NULL: there is none */
    bool ready;        /* WELCOME was sent, or has come */
    uint32_t share;    /* td_wire_share */
    uint64_t features; /* that both have */
    td_wire_sizes sizes;
    uint8_t operations[TD_WIRE_OPERATION_BYTES];
    uint32_t mems, timelines, models, instances;
    uint64_t mem_bytes;   /* the largest allocation, at most 2^63 - 1 */
    uint32_t next_serial; /* TO_DAEMON: the one request that may come; TO_CLIENT: answers are below it */
    uint64_t next_ticket; /* RING: the one job that may come; all others are below it */
    uint32_t more_bytes;  /* RING: of its uniforms that have come */
} td_wire_rules;
td_wire_rules td_wire_rules_new(const td_operation_layout *(*operation)(uint32_t number));
/* What holds from this WELCOME on. The counters stay as they are. */
void td_wire_rules_welcome(td_wire_rules *rules, const td_wire_welcome *welcome);

/* A new message of a type: its size, its number of descriptors, the rest 0. */
td_wire_message td_wire_new(td_wire_type type, uint32_t serial);
/* Its size; 0 for a type that there is not. */
uint32_t td_wire_bytes(uint32_t type);
/* Makes a message as short as a peer knows it, `most` bytes, if it is longer. UNSUPPORTED, with the first offset, if it says
 * something there. */
tandem_status td_wire_cut(td_wire_message *message, uint32_t most, char *why, size_t why_bytes);
/* As in PROTOCOL.md; "unknown" for a type that there is not. */
const char *td_wire_name(uint32_t type);
/* Copies a text into a field, cut to fit at a whole character; control characters become '?', the rest of the field 0. */
void td_wire_text(char *field, size_t bytes, const char *text);
/* The same for a text that people read: what does not fit is cut behind a word and ends in "...". */
void td_wire_sentence(char *field, size_t bytes, const char *text);

/* Whether `length` bytes, aligned to 8, are one message that may come on this road now, with `fds` descriptors. A peer may
 * know less of it, then the rest is 0, or more, if that is 0.
 * Returns OK, or PROTOCOL and a text that names message, field and value. */
tandem_status td_wire_check(const td_wire_rules *rules, td_wire_road road, const void *bytes, size_t length,
                            uint32_t fds, char *why, size_t why_bytes);
/* A message that passed is counted: next_serial, next_ticket. */
void td_wire_took(td_wire_rules *rules, td_wire_road road, const void *message);

/* This process's host id and boot id; all else is left. */
void td_wire_identify(td_wire_identity *identity);
/* Whether two sides may share in this way: OK, or UNSUPPORTED with a text that names what differs, and both values.
 * `theirs` is what the peer said. */
tandem_status td_wire_match(const td_wire_identity *mine, const td_wire_identity *theirs, uint32_t share, char *why,
                            size_t why_bytes);
/* The newest version that both speak, or 0. */
uint16_t td_wire_version(uint16_t min, uint16_t max);
/* The most that there is room for here; what version 1 began with; and what to go by with a client that passed. */
td_wire_sizes td_wire_sizes_here(void);
td_wire_sizes td_wire_sizes_first(void);
td_wire_sizes td_wire_sizes_with(const td_wire_hello *hello);
/* Which of the features that it would like are there with it. */
uint64_t td_wire_features_with(const td_wire_hello *hello);
/* How long a ring of such slots and reports is. */
uint64_t td_wire_ring_bytes(const td_wire_sizes *sizes);
/* What peers of version 1 have; the version of each operation that is known here, and of those of `theirs` that both know. */
void td_wire_operations_first(uint8_t operations[TD_WIRE_OPERATION_BYTES]);
void td_wire_operations_here(const td_wire_rules *rules, uint8_t operations[TD_WIRE_OPERATION_BYTES]);
void td_wire_operations_with(const td_wire_rules *rules, const uint8_t theirs[TD_WIRE_OPERATION_BYTES],
                             uint8_t operations[TD_WIRE_OPERATION_BYTES]);
/* Whether the daemon knows an operation, and all that these operands say: else UNSUPPORTED, with an offset in them. */
tandem_status td_wire_takes(const td_wire_rules *rules, const td_operation_layout *layout, const tandem_operands *op,
                            char *why, size_t why_bytes);

/* A report's word: in one 64-bit value, so that it is written and read whole. */
typedef struct td_wire_report {
    uint32_t ticket; /* its low half */
    uint32_t state, precision;
    int32_t status;
    bool client_signals; /* the daemon has not signalled the job's point, and will not: the client does */
    uint64_t begin_ns, end_ns;
} td_wire_report;
uint64_t td_wire_report_pack(const td_wire_report *report);
/* Returns OK, or PROTOCOL for a state, status or precision that there is not. */
tandem_status td_wire_report_unpack(uint64_t word, td_wire_report *report, char *why, size_t why_bytes);

#endif
