/* What sessions plan by: how many multiprocessors their GPU has, and where its memory is, whatever kernels it takes there.
 * On a fake CUDA, which notes what it is asked to launch; nothing computes there but the CPU.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine_plugin/client/client.h"
#include "kernels/attention/params.h"
#include "tests/interop/fake_cuda.h"
#include "tests/interop/fake_image.h"
#include "tests/interop/faults.h"
#include "tests/limits.h"

#define PATIENCE_NS LIMITS_PATIENCE_NS
enum { BYTES = 72 << 20, MOST_ENTRIES = 90 };

typedef enum ground { ON_GRAPHS, ON_WORKER, ON_CPU, GROUNDS } ground;
static const char *const ground_names[GROUNDS] = {"a session", "a session of the worker's", "the CPU"};

static td_cubin_entry entries[MOST_ENTRIES] = {{.entry = "stamp", .registers = 16}};
static uint32_t entry_count = 1;
static td_image image = {.entries = entries};
static const td_cubin cubin = {.sm = 90, .images = &image, .image_count = 1};

static tandem_attention shape_of(uint32_t heads, uint32_t n, uint32_t dim, uint32_t dtype, uint32_t precision)
{
    const tandem_view view = {
        .dtype = dtype, .stride_row = dim, .stride_head = (int64_t)n * dim, .stride_batch = (int64_t)heads * n * dim};

    return (tandem_attention){.q = view,
                              .k = view,
                              .v = view,
                              .o = view,
                              .batch = 1,
                              .heads = heads,
                              .kv_heads = heads,
                              .q_len = n,
                              .kv_len = n,
                              .head_dim = dim,
                              .precision = precision};
}

static void add_entry(const char *entry)
{
    for (uint32_t i = 0; i < entry_count; i++)
        if (!strcmp(entries[i].entry, entry))
            return;
    assert_true(entry_count < MOST_ENTRIES);
    entries[entry_count++] = (td_cubin_entry){.entry = entry, .registers = 32};
}

/* The kernels of all plans that are tried here, wherever their views are. */
static int find_kernels(void **state)
{
    static td_plan plan;

    (void)state;
    for (uint32_t i = 0; i < 3 * 2 * 2 * 2 * 2 * 5; i++) {
        tandem_attention op = shape_of(4, i % 3 ? i % 3 * 2048 : 64, i / 3 % 2 ? 128 : 64, 1 + i / 6 % 2, 1 + i / 12 % 2);
        const td_attention_options options = {.rows = i / 48};
        td_target target = td_target_for_stream(90);
        char why[256] = "";

        op.q.offset_bytes = i / 24 % 2;
        target.twin = true;
        target.multiprocessors = 4;
        target.attention = &options;
        if (td_plan_attention(&op, &target, &plan, NULL, why, sizeof why) != TANDEM_OK)
            fail_msg("%s", why);
        for (uint32_t r = 0; r < plan.record_count; r++)
            add_entry(plan.records[r].kernel->entry);
    }
    fault_cuda(FAULT_FAKE_CUDA);
    fake_image(&image, false);
    image.entry_count = entry_count;
    fault_kernels(&cubin);
    fake_cuda_driver.device_count = 1;
    return 0;
}

static tandem_session *new_session(ground on)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = on == ON_CPU ? TANDEM_BACKEND_CPU : TANDEM_BACKEND_CUDA};
    tandem_session *s = NULL;

    assert_int_equal(on == ON_WORKER ? td_worker_session_create(&desc, false, &s) : tandem_session_create(&desc, &s),
                     TANDEM_OK);
    return s;
}

static tandem_mem new_mem(tandem_session *s)
{
    tandem_mem mem = 0;

    assert_int_equal(tandem_mem_create(s, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = BYTES}, &mem),
                     TANDEM_OK);
    return mem;
}

static void run(tandem_session *s, const tandem_attention *op)
{
    const tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION, .op.attention = *op};
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_ticket ticket;
    char text[400] = "";

    if (tandem_submit(s, &job, &ticket) != TANDEM_OK) {
        tandem_error_text(s, text, sizeof text);
        fail_msg("%s", text);
    }
    assert_int_equal(tandem_wait(s, ticket, PATIENCE_NS, &report), TANDEM_OK);
    assert_int_equal(report.state, TANDEM_JOB_DONE);
}

/* Four views, one behind the other. */
static void place(tandem_attention *op, tandem_mem mem, uint64_t each)
{
    tandem_view *const views[] = {&op->q, &op->k, &op->v, &op->o};

    for (uint32_t i = 0; i < 4; i++) {
        views[i]->mem = mem;
        views[i]->offset_bytes = i * each;
    }
}

/* --- How many multiprocessors --- */

/* Many heads without a mask: 8B's blocks walk, one a multiprocessor. */
static void sessions_ask_their_device(void **state)
{
    static const int sizes[] = {58, 78, 114, 132, 144};

    (void)state;
    for (ground on = ON_GRAPHS; on <= ON_WORKER; on++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            tandem_attention op = shape_of(128, 1024, 64, TANDEM_DTYPE_F16, TANDEM_PRECISION_8B);
            tandem_session *s;

            fake_cuda_driver.multiprocessors = sizes[i];
            s = new_session(on);
            place(&op, new_mem(s), BYTES / 4);
            atomic_store(&fake_cuda_launched, 0);
            run(s, &op);
            assert_int_equal(atomic_load(&fake_cuda_launched), 2);
            assert_string_equal(fake_cuda_launches[1].entry, "attn_8b_wgmma_walk_d64");
            assert_int_equal(fake_cuda_launches[1].grid[0], sizes[i]);
            assert_int_equal(s->target.multiprocessors, sizes[i]);
            assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
        }
    fake_cuda_driver.multiprocessors = 0;
}

/* A driver that says what cannot be is refused, with its words. */
static void odd_devices_are_refused(void **state)
{
    static const int sizes[] = {-1, INT32_MIN, INT32_MAX};
    char why[256] = "";
    td_cu_info info;

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char said[40];

        fake_cuda_driver.multiprocessors = sizes[i];
        snprintf(said, sizeof said, "(multiprocessors) says %d", sizes[i]);
        assert_int_equal(td_cu_device_query(NULL, &info, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, said));
    }
    fake_cuda_driver.multiprocessors = 0;
}

/* --- Where the memory is --- */

static bool reads_16_bytes(const char *entry)
{
    return strstr(entry, "f16_wgmma") || !strncmp(entry, "prepare", 7);
}

/* That no kernel of 16-byte loads is given an address that is none for them; how many such kernels there were. */
static uint32_t check_launches(void)
{
    const uint32_t count = atomic_load(&fake_cuda_launched);
    uint32_t wide = 0;

    assert_true(count > 0 && count <= FAKE_CUDA_LAUNCHES);
    for (uint32_t i = 0; i < count; i++) {
        const fake_cuda_launch *l = &fake_cuda_launches[i];
        uint64_t q, k, v;

        if (!reads_16_bytes(l->entry))
            continue;
        wide++;
        if (!strncmp(l->entry, "prepare", 7)) {
            td_params_prepare p;

            memcpy(&p, l->params, sizeof p);
            q = (uintptr_t)p.q, k = (uintptr_t)p.k, v = (uintptr_t)p.v;
        } else {
            td_params_attention_f16 p;

            memcpy(&p, l->params, sizeof p);
            q = (uintptr_t)p.q.data, k = (uintptr_t)p.k.data, v = (uintptr_t)p.v.data;
        }
        if ((q | k | v) % 16)
            fail_msg("%s reads 16 bytes at a time from 0x%llx, 0x%llx, 0x%llx", l->entry, (unsigned long long)q,
                     (unsigned long long)k, (unsigned long long)v);
    }
    return wide;
}

/* A mem that begins so far behind a page of what was exported, as a driver maps it. */
static tandem_mem import_at(tandem_session *s, uint64_t offset)
{
    const int fd = memfd_create("exported", MFD_CLOEXEC);
    tandem_mem mem = 0;

    assert_true(fd >= 0 && !ftruncate(fd, BYTES + 4096));
    assert_int_equal(td_worker_session_import_mem(s, fd, BYTES + 4096, false, offset, BYTES, &mem), TANDEM_OK);
    close(fd);
    return mem;
}

static void narrow_kernels_where_mems_begin_anywhere(void **state)
{
    static const uint64_t offsets[] = {0, 2, 8, 14, 16, 18, 256};

    (void)state;
    for (ground on = ON_GRAPHS; on <= ON_WORKER; on++)
        for (uint32_t i = 0; i < 7 * 3 * 4 * 2; i++) {
            const uint64_t offset = offsets[i % 7];
            const uint32_t precision = i / 7 % 3, dim = i / 21 % 2 ? 128 : 64, n = i / 42 % 2 ? 512 : 4096;
            const uint32_t dtype = i / 84 ? TANDEM_DTYPE_BF16 : TANDEM_DTYPE_F16;
            tandem_attention op = shape_of(4, n, dim, dtype, precision);
            tandem_session *s = new_session(on);

            place(&op, import_at(s, offset), BYTES / 4);
            atomic_store(&fake_cuda_launched, 0);
            run(s, &op);
            if ((check_launches() > 0) != (offset % 16 == 0))
                fail_msg("%s, %llu behind a page: %s kernels", ground_names[on], (unsigned long long)offset,
                         offset % 16 ? "wide" : "narrow");
            /* A view that makes up for its mem is as good as any. */
            if (offset % 16) {
                for (tandem_view *const views[] = {&op.q, &op.k, &op.v}, *const *v = views; v < views + 3; v++)
                    (*v)->offset_bytes += 16 - offset % 16;
                atomic_store(&fake_cuda_launched, 0);
                run(s, &op);
                assert_true(check_launches() > 0);
            }
            assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
        }
}

/* AUTO's precision is one for a whole job and its pieces, and the one that its own plan would have. */
static void auto_knows_where_mems_begin(void **state)
{
    tandem_session *s = new_session(ON_WORKER);

    (void)state;
    for (uint64_t offset = 0; offset <= 16; offset += 2)
        for (uint32_t n = 300; n <= 4096; n += 211) {
            tandem_attention op = shape_of(4, n, 64, TANDEM_DTYPE_F16, TANDEM_PRECISION_AUTO);
            const tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
            tandem_job whole = job;
            tandem_job_report report = {.struct_bytes = sizeof report};
            tandem_ticket ticket;
            tandem_mem mem = import_at(s, offset);

            place(&op, mem, BYTES / 4);
            whole.op.attention = op;
            assert_int_equal(tandem_submit(s, &whole, &ticket), TANDEM_OK);
            assert_int_equal(tandem_wait(s, ticket, PATIENCE_NS, &report), TANDEM_OK);
            assert_int_equal(td_worker_session_precision(s, td_operation_find(whole.operation), &whole.op), report.precision);
            assert_int_equal(tandem_mem_destroy(s, mem), TANDEM_OK);
        }
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
}

/* Elements that no kernel can read are refused with their address, codes among them. */
static void elements_are_aligned(void **state)
{
    static const struct {
        uint32_t dtype;
        uint64_t offset, element;
    } cases[] = {{TANDEM_DTYPE_F16, 1, 2}, {TANDEM_DTYPE_BF16, 3, 2}, {TANDEM_DTYPE_F32, 2, 4}, {TANDEM_DTYPE_F32, 5, 4}};
    char text[400], said[60];

    (void)state;
    for (ground on = ON_GRAPHS; on <= ON_WORKER; on++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            tandem_session *s = new_session(on);
            tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
            tandem_ticket ticket;

            job.op.attention = shape_of(4, 64, 64, cases[i].dtype, TANDEM_PRECISION_8B);
            place(&job.op.attention, import_at(s, cases[i].offset), BYTES / 4);
            assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_ERROR_ARG);
            tandem_error_text(s, text, sizeof text);
            snprintf(said, sizeof said, "not a multiple of %u", (unsigned)cases[i].element);
            assert_true(strstr(text, "q is at address 0x") && strstr(text, said));
            assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
        }
    tandem_session *s = new_session(ON_WORKER);
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    tandem_attention *op = &job.op.attention;
    tandem_ticket ticket;

    *op = shape_of(4, 128, 64, TANDEM_DTYPE_CODES_INT8, TANDEM_PRECISION_8B);
    op->v.dtype = TANDEM_DTYPE_CODES_E4M3;
    op->v.stride_row = 128;
    op->o = shape_of(4, 128, 64, TANDEM_DTYPE_F16, 0).o;
    place(op, import_at(s, 8), BYTES / 4);
    assert_int_equal(tandem_submit(s, &job, &ticket), TANDEM_ERROR_ARG);
    tandem_error_text(s, text, sizeof text);
    assert_non_null(strstr(text, "not a multiple of 16"));
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
}

/* The CPU reads any address that its elements can be at: the same bits wherever the host's memory begins. */
static void the_cpu_reads_anywhere(void **state)
{
    enum { N = 96, D = 64, EACH = 4 * N * D * 2, ALL = 4 * EACH };
    static const uint64_t offsets[] = {0, 2, 6, 14};
    unsigned char *memory = aligned_alloc(64, ALL + 64), *first = malloc(EACH);
    tandem_session *s = new_session(ON_CPU);

    (void)state;
    assert_true(memory && first);
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
        for (uint32_t precision = TANDEM_PRECISION_F16; precision <= TANDEM_PRECISION_8B; precision++) {
            tandem_attention op = shape_of(4, N, D, TANDEM_DTYPE_F16, precision);
            const tandem_mem_desc desc = {.struct_bytes = sizeof desc,
                                          .source = TANDEM_MEM_HOST,
                                          .host = memory + offsets[i],
                                          .bytes = ALL};
            uint16_t *values = (uint16_t *)(void *)(memory + offsets[i]);
            tandem_mem mem;

            for (uint32_t n = 0; n < ALL / 2; n++)
                values[n] = (uint16_t)((n * 7919u % 2 << 15) | (0x3000 + n * 104729u % 0xc00));
            assert_int_equal(tandem_mem_create(s, &desc, &mem), TANDEM_OK);
            place(&op, mem, EACH);
            run(s, &op);
            if (!i && precision == TANDEM_PRECISION_8B)
                memcpy(first, memory + 3 * EACH, EACH);
            else if (precision == TANDEM_PRECISION_8B)
                assert_memory_equal(first, memory + offsets[i] + 3 * EACH, EACH);
            assert_int_equal(tandem_mem_destroy(s, mem), TANDEM_OK);
        }
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
    free(first);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_ask_their_device),
        cmocka_unit_test(odd_devices_are_refused),
        cmocka_unit_test(narrow_kernels_where_mems_begin_anywhere),
        cmocka_unit_test(auto_knows_where_mems_begin),
        cmocka_unit_test(elements_are_aligned),
        cmocka_unit_test(the_cpu_reads_anywhere),
    };

    return cmocka_run_group_tests_name("placement", tests, find_kernels, NULL);
}
