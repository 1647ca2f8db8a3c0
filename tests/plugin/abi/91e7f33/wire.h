/* The wire as commit 91e7f33 spoke it, version 1: what its client and its daemon need of it for a job on the CPU. Nothing of
 * this follows the wire of today.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_ABI_FIRST_WIRE_H
#define TANDEM_TESTS_ABI_FIRST_WIRE_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FIRST_HELLO = 1,
    FIRST_PING = 2,
    FIRST_INFO = 3,
    FIRST_MEM_CREATE = 4,
    FIRST_MEM_DESTROY = 5,
    FIRST_TIMELINE_CREATE = 6,
    FIRST_TIMELINE_DESTROY = 7,
    FIRST_JOB = 32,
    FIRST_SUBMITTED = 33,
    FIRST_CANCEL = 34,
    FIRST_WELCOME = 64,
    FIRST_DONE = 65,
    FIRST_ERROR = 66,
    FIRST_INFO_REPLY = 67,
    FIRST_BYE = 71
};
enum { FIRST_MAGIC = 0x4d444e54, FIRST_SHARE_HOST = 1, FIRST_SLAB = 1, FIRST_FUTEX = 2, FIRST_SLOTS = 64, FIRST_REPORTS = 256 };

typedef struct first_header {
    uint32_t bytes;
    uint16_t type, fds;
    uint32_t serial, reserved;
} first_header;
static_assert(sizeof(first_header) == 16, "");

typedef struct first_identity {
    uint8_t host_id[16], boot_id[16], device_uuid[16], driver_uuid[16];
    uint32_t driver_id, driver_version;
} first_identity;

typedef struct first_sizes {
    uint32_t job_bytes, slot_bytes, report_bytes, area_bytes;
} first_sizes;
static const first_sizes first_own_sizes = {368, 512, 32, 45056};

typedef struct first_hello {
    first_header header;
    uint32_t magic;
    uint16_t version_min, version_max;
    uint64_t features;
    first_sizes sizes;
    first_identity identity;
    uint32_t share, backend, frames_in_flight, timing;
    uint64_t wait_bound_ns;
    char name[64];
    uint32_t job_class;
    uint8_t reserved[44];
} first_hello;
static_assert(sizeof(first_hello) == 256 && offsetof(first_hello, reserved) == 212, "");

typedef struct first_welcome {
    first_header header;
    uint32_t magic;
    uint16_t version, reserved0;
    uint64_t features;
    first_sizes sizes;
    first_identity identity;
    uint32_t share, session, epoch, frames_in_flight;
    uint32_t mems, timelines, models, requests;
    uint64_t mem_bytes, quota_bytes;
    uint32_t rung, reserved1;
    char name[64];
    uint8_t reserved[16];
} first_welcome;
static_assert(sizeof(first_welcome) == 256 && offsetof(first_welcome, reserved) == 240, "");

typedef struct first_mem_create {
    first_header header;
    uint32_t kind, dedicated;
    uint64_t bytes, allocation_bytes, offset_bytes, reserved[2];
} first_mem_create;
static_assert(sizeof(first_mem_create) == 64, "");

typedef struct first_timeline_create {
    first_header header;
    uint32_t kind, signaller;
    uint64_t initial_value, reserved[2];
} first_timeline_create;
static_assert(sizeof(first_timeline_create) == 48, "");

typedef struct first_object {
    first_header header;
    uint64_t id;
} first_object;
static_assert(sizeof(first_object) == 24, "");

typedef struct first_info {
    first_header header;
    uint32_t backend, rung, sm, cuda_driver_version, cpu_threads, epoch;
    uint64_t numbers[11];
    uint8_t device_uuid[16];
    char rung_reason[256], device[128], isa[32];
} first_info;
static_assert(sizeof(first_info) == 560, "");

typedef struct first_error {
    first_header header;
    int32_t status;
    uint32_t reserved;
    uint64_t ticket;
    char text[400];
} first_error;
static_assert(sizeof(first_error) == 432, "");

typedef struct first_bye {
    first_header header;
    uint32_t reason, reserved;
} first_bye;
static_assert(sizeof(first_bye) == 24, "");

typedef struct first_view {
    uint64_t mem, offset_bytes;
    uint32_t dtype, reserved;
    int64_t stride_batch, stride_head, stride_row;
} first_view;

typedef struct first_job {
    first_header header;
    uint64_t ticket, submit_ns;
    uint32_t struct_bytes, operation;
    uint64_t wait_timeline, wait_value, signal_timeline, signal_value, deadline_ns;
    first_view q, k, v, o, lse;
    uint32_t batch, heads, kv_heads, q_len, kv_len, head_dim;
    float scale;
    uint32_t causal, precision, smooth, granularity, reserved;
} first_job;
static_assert(sizeof(first_job) == 368 && offsetof(first_job, q) == 80 && offsetof(first_job, batch) == 320, "");

typedef union first_message {
    first_header header;
    first_hello hello;
    first_welcome welcome;
    first_mem_create mem_create;
    first_timeline_create timeline_create;
    first_object object;
    first_info info;
    first_error error;
    first_bye bye;
    uint8_t bytes[2080];
} first_message;

typedef struct first_bell {
    _Atomic uint32_t count, waiters;
} first_bell;

typedef struct first_page {
    _Atomic uint64_t value;
    first_bell bell;
    uint8_t unused[4096 - 16];
} first_page;
static_assert(sizeof(first_page) == 4096, "");

typedef struct first_report {
    _Atomic uint64_t word, begin_ns, end_ns, reserved;
} first_report;

typedef struct first_area {
    _Atomic uint32_t tail;
    uint32_t unused0;
    first_bell to_daemon;
    uint8_t unused1[48];
    _Atomic uint32_t head;
    uint32_t unused2;
    first_bell to_client;
    uint8_t unused3[4096 - 80];
    uint8_t slots[FIRST_SLOTS][512];
    first_report reports[FIRST_REPORTS];
} first_area;
static_assert(sizeof(first_area) == 45056 && offsetof(first_area, slots) == 4096 && offsetof(first_area, reports) == 36864, "");

#endif
