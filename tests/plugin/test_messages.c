/* What a caller is told: without a session, through the environment, and in texts that must name what is right.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "interop/base.h"
#include "tandem/vulkan.h"
#include "tests/interop/vk_util.h"
#include "tests/limits.h"

enum { HEADS = 3, ROWS = 40, KEYS = 56, DIM = 64, MEM_BYTES = 1 << 20 };

static void expect_in(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("'%s' is not in '%s'", words, text);
}

/* Texts that are cut. */

static void test_cut(void **state)
{
    static const char whole[] = "one two three four-five six \303\244\303\244\303\244 seven", dots[] = "...";
    char text[64];

    (void)state;
    for (size_t bytes = 1; bytes <= sizeof text; bytes++) {
        const size_t end = bytes > sizeof dots ? bytes - sizeof dots : 0;
        size_t kept;

        memset(text, 'x', sizeof text);
        td_text(text, bytes, "%s", whole);
        assert_true(strlen(text) < bytes);
        if (bytes > strlen(whole)) {
            assert_string_equal(text, whole);
            continue;
        }
        if (bytes <= sizeof dots) {
            assert_memory_equal(text, whole, bytes - 1);
            continue;
        }
        kept = strlen(text) - 3;
        assert_string_equal(text + kept, dots);
        assert_memory_equal(text, whole, kept);
        /* Behind a word, unless half of the room would be lost; never within a character. */
        if (whole[kept] != ' ' && memchr(whole + end / 2 + 1, ' ', end - end / 2))
            fail_msg("%zu bytes: '%s'", bytes, text);
        assert_int_not_equal((unsigned char)whole[kept] & 0xc0, 0x80);
    }
    td_text(text, 10, "%s", "\303\244\303\244\303\244\303\244\303\244\303\244");
    assert_string_equal(text, "\303\244\303\244\303\244...");
    assert_int_equal(td_fail(text, 12, TANDEM_ERROR_BUSY, "%s", "much too long for it"), TANDEM_ERROR_BUSY);
    assert_string_equal(text, "much too...");
}

/* Without a session. */

static const char *text_here(void)
{
    static _Thread_local char text[600];

    assert_int_equal(tandem_error_text(NULL, text, sizeof text), TANDEM_OK);
    return text;
}

static void *other_thread(void *user)
{
    bool *was_empty = user;
    tandem_session *s;

    *was_empty = !text_here()[0];
    tandem_session_create(NULL, &s);
    return NULL;
}

static void test_no_session(void **state)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .rung = 7};
    bool was_empty = false;
    tandem_session *s;
    pthread_t thread;

    (void)state;
    assert_int_equal(tandem_session_create(NULL, &s), TANDEM_ERROR_ARG);
    assert_string_equal(text_here(), "tandem_session_create: desc is NULL");
    assert_int_equal(tandem_session_create(&(tandem_session_desc){0}, &s), TANDEM_ERROR_ARG);
    expect_in(text_here(), "desc.struct_bytes is 0");
    assert_int_equal(tandem_session_create(&desc, NULL), TANDEM_ERROR_ARG);
    expect_in(text_here(), "out is NULL");
    assert_int_equal(tandem_session_create(&desc, &s), TANDEM_ERROR_ARG);
    expect_in(text_here(), "desc.rung is 7; it must be 0 (the best), 1 (inline)");
    assert_int_equal(tandem_submit(NULL, NULL, NULL), TANDEM_ERROR_ARG);
    assert_string_equal(text_here(), "tandem_submit: session is NULL");
    assert_int_equal(tandem_session_destroy(NULL), TANDEM_ERROR_ARG);
    assert_string_equal(text_here(), "tandem_session_destroy: session is NULL");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &was_empty), 0);
    pthread_join(thread, NULL);
    assert_true(was_empty);
    assert_string_equal(text_here(), "tandem_session_destroy: session is NULL");
}

/* As of a library whose list ended with `buys`. */
typedef struct first_requirement {
    uint32_t struct_bytes, kind;
    const char *name;
    uint32_t required, available;
    VkStructureType feature_struct;
    uint32_t feature_offset;
    const char *buys;
} first_requirement;

static void test_requirements(void **state)
{
    tandem_requirement list[64] = {{0}};
    first_requirement first[64] = {{.struct_bytes = sizeof *first}};
    uint32_t count = 64, more = 64, features = 0;
    vku vk;

    (void)state;
    if (vku_open(&vk, NULL) != VKU_OK)
        skip();
    assert_int_equal(tandem_vulkan_requirements(vk.gipa, vk.instance, vk.physical_device, &count, list),
                     TANDEM_ERROR_ARG);
    expect_in(text_here(), "tandem_vulkan_requirements: list[0].struct_bytes is 0, not 48");
    assert_int_equal(tandem_vulkan_requirements(vk.gipa, NULL, NULL, NULL, list), TANDEM_ERROR_ARG);
    expect_in(text_here(), "count is NULL");
    assert_int_equal(tandem_vulkan_requirements(NULL, NULL, NULL, &count, list), TANDEM_ERROR_ARG);
    expect_in(text_here(), "get_instance_proc_addr is NULL");
    list[0].struct_bytes = sizeof *list;
    count = 1;
    assert_int_equal(tandem_vulkan_requirements(vk.gipa, vk.instance, vk.physical_device, &count, list),
                     TANDEM_ERROR_BUSY);
    expect_in(text_here(), "*count is 1, and there are ");
    count = 64;
    assert_int_equal(tandem_vulkan_requirements(vk.gipa, vk.instance, vk.physical_device, &count, list), TANDEM_OK);
    assert_int_equal(tandem_vulkan_requirements(vk.gipa, vk.instance, vk.physical_device, &more, (void *)first),
                     TANDEM_OK);
    assert_int_equal(more, count);
    for (uint32_t i = 0; i < count; i++) {
        const bool is_feature = list[i].kind == TANDEM_REQUIREMENT_FEATURE;

        assert_string_equal(first[i].name, list[i].name);
        assert_string_equal(first[i].buys, list[i].buys);
        assert_int_equal(first[i].feature_offset, list[i].feature_offset);
        assert_int_equal(first[i].struct_bytes, sizeof *first);
        assert_int_equal(list[i].reserved, 0);
        if (is_feature)
            assert_true(list[i].feature_offset + sizeof(VkBool32) <= list[i].feature_struct_bytes);
        assert_int_equal(is_feature, list[i].feature_struct_bytes != 0);
        features += is_feature;
    }
    assert_int_equal(features, 2);
    assert_int_equal(first[count].struct_bytes, 0);
    vku_close(&vk);
}

/* TANDEM_LOG. */

static void make_and_fail(void)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 1};
    tandem_session *s;

    for (int i = 0; i < 2; i++) {
        if (tandem_session_create(&desc, &s) != TANDEM_OK)
            _exit(1);
        tandem_mem_destroy(s, 5);                              /* an error */
        tandem_point_wait(s, (tandem_point){0, 1}, 0);         /* another */
        tandem_session_destroy(&s);
    }
    tandem_mem_destroy(NULL, 5);
    tandem_vulkan_requirements(NULL, NULL, NULL, NULL, NULL);
}

static void hear_nothing(void *user, int level, const char *text)
{
    (void)level, (void)text;
    ++*(unsigned *)user;
}

static void make_and_hear(void)
{
    unsigned heard = 0;
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 1,
                                      .log = hear_nothing, .user = &heard};
    tandem_session *s;

    if (tandem_session_create(&desc, &s) != TANDEM_OK)
        _exit(1);
    tandem_mem_destroy(s, 5);
    tandem_session_destroy(&s);
    _exit(heard < 2);
}

/* What a process with this TANDEM_LOG (NULL: without) writes to stderr. */
static const char *written(const char *value, void (*does)(void))
{
    static char all[20000];
    size_t used = 0;
    ssize_t got;
    int ends[2], status;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        limits_begin(30);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (value)
            setenv("TANDEM_LOG", value, 1);
        else
            unsetenv("TANDEM_LOG");
        does();
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], all + used, sizeof all - 1 - used)) > 0)
        used += (size_t)got;
    all[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return all;
}

static unsigned count_of(const char *all, const char *words)
{
    unsigned count = 0;

    for (const char *at = all; (at = strstr(at, words)); at += strlen(words))
        count++;
    return count;
}

static void test_environment(void **state)
{
    const char *all;

    (void)state;
    assert_string_equal(written(NULL, make_and_fail), "");
    assert_string_equal(written("", make_and_fail), "");
    all = written("error", make_and_fail);
    assert_int_equal(count_of(all, "\n"), 6);
    assert_int_equal(count_of(all, "tandem: error: "), 6);
    expect_in(all, "tandem: error: tandem_mem_destroy: mem is 0x5, which is not one of this session\n");
    expect_in(all, "tandem: error: tandem_mem_destroy: session is NULL\n");
    expect_in(all, "tandem: error: tandem_vulkan_requirements: count is NULL\n");
    assert_int_equal(count_of(written("warning", make_and_fail), "\n"), 6);
    all = written("info", make_and_fail);
    assert_int_equal(count_of(all, "tandem: info: session on CPU"), 2);
    assert_int_equal(count_of(all, "tandem: error: "), 6);
    assert_true(count_of(written("debug", make_and_fail), "\n") >= count_of(all, "\n"));
    all = written("loud", make_and_fail);
    assert_string_equal(all, "tandem: error: TANDEM_LOG is 'loud'; it must be error, warning, info or debug\n");
    assert_string_equal(written("debug", make_and_hear), ""); /* the callback has it all */
}

/* Jobs. */

typedef struct rig {
    tandem_session *s;
    tandem_mem mem;
    tandem_job job;
} rig;

static tandem_view *view_of(rig *r, int index)
{
    tandem_attention *op = &r->job.op.attention;
    tandem_view *const views[] = {&op->q, &op->k, &op->v, &op->o, &op->lse};

    return views[index];
}
static const char *const names[] = {"q", "k", "v", "o", "lse"};
enum { VIEWS = 5 };

static void lay_out(rig *r)
{
    tandem_attention *op = &r->job.op.attention;
    const uint64_t q = HEADS * ROWS * DIM * 4, kv = HEADS * KEYS * DIM * 4;

    r->job = (tandem_job){.struct_bytes = sizeof r->job, .operation = TANDEM_OPERATION_ATTENTION};
    *op = (tandem_attention){.batch = 1, .heads = HEADS, .kv_heads = HEADS, .q_len = ROWS, .kv_len = KEYS,
                             .head_dim = DIM};
    op->q = tandem_view_dense(r->mem, 0, TANDEM_DTYPE_F32, HEADS, ROWS, DIM);
    op->k = tandem_view_dense(r->mem, q, TANDEM_DTYPE_F32, HEADS, KEYS, DIM);
    op->v = tandem_view_dense(r->mem, q + kv, TANDEM_DTYPE_F32, HEADS, KEYS, DIM);
    op->o = tandem_view_dense(r->mem, q + 2 * kv, TANDEM_DTYPE_F32, HEADS, ROWS, DIM);
    op->lse = tandem_view_dense(r->mem, 2 * q + 2 * kv, TANDEM_DTYPE_F32, HEADS, ROWS, 1);
}

static void open_rig(rig *r, uint64_t bytes)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU, .cpu_threads = 1};
    const tandem_mem_desc mem = {.struct_bytes = sizeof mem, .bytes = bytes};
    void *host;

    assert_int_equal(tandem_session_create(&desc, &r->s), TANDEM_OK);
    assert_int_equal(tandem_mem_create(r->s, &mem, &r->mem), TANDEM_OK);
    assert_int_equal(tandem_mem_host(r->s, r->mem, &host), TANDEM_OK);
    memset(host, 0, bytes);
    lay_out(r);
}

static const char *refused(rig *r)
{
    static char text[1200];
    tandem_ticket ticket;

    assert_int_equal(tandem_submit(r->s, &r->job, &ticket), TANDEM_ERROR_ARG);
    assert_int_equal(tandem_error_text(r->s, text, sizeof text), TANDEM_OK);
    return text;
}

static void in_bytes(tandem_view *v)
{
    v->stride_batch *= 4;
    v->stride_head *= 4;
    v->stride_row *= 4;
}

static uint64_t reach(const tandem_view *v, uint64_t rows, uint64_t dim)
{
    return v->offset_bytes + 4 * ((uint64_t)v->stride_head * (HEADS - 1) + (uint64_t)v->stride_row * (rows - 1) + dim);
}

/* Strides in bytes: beyond the mem where it is just long enough, onto others where there is room. */
static void test_strides(void **state)
{
    const uint64_t exact = 4 * (2ull * HEADS * ROWS * DIM + 2ull * HEADS * KEYS * DIM + HEADS * ROWS);
    char expected[100];
    tandem_ticket ticket;
    rig r;

    (void)state;
    for (int roomy = 0; roomy < 2; roomy++) {
        const uint64_t bytes = roomy ? MEM_BYTES : exact;

        open_rig(&r, bytes);
        assert_int_equal(tandem_submit(r.s, &r.job, &ticket), TANDEM_OK);
        assert_int_equal(tandem_wait(r.s, ticket, 20000000000u, NULL), TANDEM_OK);
        for (int i = 0; i < VIEWS; i++) {
            tandem_view *v = view_of(&r, i);
            const uint64_t rows = i == 1 || i == 2 ? KEYS : ROWS;
            const char *text;

            lay_out(&r);
            in_bytes(v);
            if (roomy && i == 4)
                continue; /* there it is a view like any other, behind all */
            text = refused(&r);
            snprintf(expected, sizeof expected, "%s reaches byte %llu of a mem of %llu bytes", names[i],
                     (unsigned long long)reach(v, rows, i == 4 ? 1 : DIM), (unsigned long long)bytes);
            expect_in(text, expected);
            expect_in(text, "strides count elements, not bytes");
        }
        lay_out(&r);
        r.job.op.attention.o.stride_row = 1;
        expect_in(refused(&r), "strides count elements, and it must be at least 64");
        assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
    }
}

static void test_dense(void **state)
{
    const tandem_view v = tandem_view_dense(9, 256, TANDEM_DTYPE_BF16, 5, 7, 96);
    rig r;

    (void)state;
    assert_int_equal(v.mem, 9);
    assert_int_equal(v.offset_bytes, 256);
    assert_int_equal(v.dtype, TANDEM_DTYPE_BF16);
    assert_int_equal(v.reserved, 0);
    assert_int_equal(v.stride_row, 96);
    assert_int_equal(v.stride_head, 7 * 96);
    assert_int_equal(v.stride_batch, 5 * 7 * 96);
    assert_int_equal(tandem_view_dense(1, 0, 1, UINT32_MAX, UINT32_MAX, UINT32_MAX).stride_head, INT64_MAX);
    assert_int_equal(tandem_view_dense(1, 0, 1, UINT32_MAX, 1u << 30, 256).stride_batch, INT64_MAX);
    assert_int_equal(tandem_view_dense(1, 0, 1, 0, 0, 0).stride_batch, 0);
    open_rig(&r, MEM_BYTES);
    r.job.op.attention.batch = 2;
    r.job.op.attention.q = tandem_view_dense(r.mem, 0, TANDEM_DTYPE_F32, UINT32_MAX, 1u << 30, 256);
    refused(&r);
    assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
}

static void test_legal_values(void **state)
{
    tandem_session_desc desc;
    tandem_session *none;
    uint64_t id;
    char text[600];
    rig r;

    (void)state;
    open_rig(&r, MEM_BYTES);
#define CREATE(field, value, words)                                                                                    \
    do {                                                                                                               \
        desc = (tandem_session_desc){.struct_bytes = sizeof desc, .field = value};                                    \
        assert_int_equal(tandem_session_create(&desc, &none), TANDEM_ERROR_ARG);                                      \
        expect_in(text_here(), "desc." #field " is " #value);                                                          \
        expect_in(text_here(), words);                                                                                 \
    } while (0)
    CREATE(backend, 3, "0 (auto), 1 (CUDA) or 2 (CPU)");
    CREATE(rung, 6, "0 (the best), 1 (inline), 2 (timeline), 3 (host), 4 (copy) or 5 (cpu)");
    CREATE(job_class, 2, "0 (frame) or 1 (background)");
    CREATE(timing, 2, "not 0 or 1");
    CREATE(frames_in_flight, 33, "more than 32");
#define JOB(field, value, words)                                                                                       \
    do {                                                                                                               \
        lay_out(&r);                                                                                                   \
        r.job.field = value;                                                                                           \
        snprintf(text, sizeof text, "%s", refused(&r));                                                                \
        expect_in(text, " is " #value);                                                                                \
        expect_in(text, words);                                                                                        \
    } while (0)
    JOB(operation, 99, "must be 1 (attention)");
    JOB(op.attention.precision, 4, "0 (auto), 1 (f16), 2 (8b) or 3 (4b)");
    JOB(op.attention.granularity, 7, "3 (token), 4 (warp), 5 (block) or 6 (tensor)");
    JOB(op.attention.smooth, 16, "1 (none), or a sum of 2 (Q), 4 (K) and 8 (V)");
    JOB(op.attention.causal, 2, "must be 0 or 1");
    JOB(op.attention.head_dim, 88, "32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192 or 256");
    JOB(op.attention.q.dtype, 8, "1 (f16), 2 (bf16), 3 (f32), 4 (int8 codes) or 5 (e4m3 codes)");
    JOB(op.attention.o.dtype, 4, "1 (f16), 2 (bf16) or 3 (f32)");
    JOB(op.attention.lse.dtype, 1, "must be 3 (f32), or 0 where it is not wanted");
    assert_int_equal(tandem_mem_create(r.s, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .source = 5}, &id),
                     TANDEM_ERROR_ARG);
    tandem_error_text(r.s, text, sizeof text);
    expect_in(text, "desc.source is 5; it must be 0 (CREATE), 1 (HOST), 2 (FD), 3 (VULKAN) or 4 (CUDA)");
    assert_int_equal(tandem_timeline_create(
                         r.s, &(tandem_timeline_desc){.struct_bytes = sizeof(tandem_timeline_desc), .signaller = 2}, &id),
                     TANDEM_ERROR_ARG);
    tandem_error_text(r.s, text, sizeof text);
    expect_in(text, "desc.signaller is 2; it must be 0 (the engine) or 1 (the session)");
    tandem_error_text(r.s, text, 30);
    assert_string_equal(text, "tandem_timeline_create:...");
    assert_int_equal(tandem_session_destroy(&r.s), TANDEM_OK);
}

/* A device whose name fills what a reason has room for. */

static const char long_name[] = "the Longest Name that a Device of Some Vendor has had So Far in a Driver of Theirs (of the "
                                "Year in which Names Grew Long and Longer, said the Engineers who had to Print Them All, "
                                "Each in a Field that is Fixed in Size, Word by Word, to the End)";
static PFN_vkGetInstanceProcAddr real_gipa;
static PFN_vkGetPhysicalDeviceProperties2 real_properties;

static VKAPI_ATTR void VKAPI_CALL long_properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *properties)
{
    real_properties(device, properties);
    strcpy(properties->properties.deviceName, long_name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL long_gipa(VkInstance instance, const char *name)
{
    const PFN_vkVoidFunction found = real_gipa(instance, name);

    if (!found || strcmp(name, "vkGetPhysicalDeviceProperties2"))
        return found;
    real_properties = (PFN_vkGetPhysicalDeviceProperties2)found;
    return (PFN_vkVoidFunction)long_properties;
}

static void keep_info(void *user, int level, const char *text)
{
    if (level == TANDEM_LOG_INFO && !strncmp(text, "session on", 10))
        snprintf(user, 1300, "%s", text);
}

static void test_rung_reason(void **state)
{
    const vku_options options = {.without = {"VK_EXT_external_memory_host"}};
    tandem_info info = {.struct_bytes = sizeof info};
    tandem_vulkan vulkan;
    tandem_session *s;
    char *kept, *end, line[1300] = "";
    vku vk;

    (void)state;
    _Static_assert(sizeof long_name <= VK_MAX_PHYSICAL_DEVICE_NAME_SIZE, "it is a name");
    if (vku_open(&vk, &options) != VKU_OK)
        skip();
    real_gipa = vk.gipa;
    vulkan = vku_engine(&vk);
    vulkan.get_instance_proc_addr = long_gipa;
    vulkan.queue = VK_NULL_HANDLE;
    assert_int_equal(tandem_session_create(&(tandem_session_desc){.struct_bytes = sizeof(tandem_session_desc),
                                                                  .backend = TANDEM_BACKEND_CPU, .vulkan = &vulkan,
                                                                  .log = keep_info, .user = line},
                                           &s),
                     TANDEM_OK);
    assert_int_equal(tandem_session_info(s, &info), TANDEM_OK);
    assert_int_equal(info.rung, TANDEM_RUNG_COPY);
    expect_in(line, "VK_EXT_external_memory_host is not enabled; the CPU was asked for)"); /* the log has room */
    expect_in(info.rung_reason, "cpu: the CPU cannot share memory with 'the Longest Name");
    kept = strchr(info.rung_reason, '\'') + 1;
    end = info.rung_reason + strlen(info.rung_reason) - 3;
    assert_string_equal(end, "...");
    *end = 0;
    assert_memory_equal(kept, long_name, strlen(kept)); /* what is left of the name ends where a word of it does */
    assert_int_equal(long_name[strlen(kept)], ' ');
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    vku_close(&vk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_environment), /* forks: before this process has threads */
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_no_session),
        cmocka_unit_test(test_requirements),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_legal_values),
        cmocka_unit_test(test_rung_reason),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
