/* The stream and the device.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void test_frame_counts(void **state)
{
    const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 700};
    td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    uint64_t sequence = 0, begin_ns, end_ns, last_end = 0;
    td_cu_counts before, after;
    tu_tensor o, lse;
    gpu_case gpu;
    tu_case it;
    bool signalled;
    char why[160];

    (void)state;
    tu_case_init(&it, &shape);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    o = tu_tensor_like(&it.o);
    lse = tu_tensor_like(&it.lse);
    gpu_case_run(&gpu, &it, &o, &lse); /* warms up */
    const td_stream_submit submit = {
        .plan = &it.plan, .views = gpu.views, .scratch = gpu.scratch.address, .label = "frame"};
    for (int i = 0; i < 300; i++) {
        const uint64_t previous = sequence, start = td_now_ns();

        before = td_cu_device_counts(device);
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        wait_for(sequence);
        assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
        after = td_cu_device_counts(device);
        assert_int_equal(after.copies, before.copies);
        assert_int_equal(after.allocations, before.allocations);
        assert_int_equal(after.host_waits, before.host_waits);
        /* And push, pop, the event. */
        assert_int_equal(after.launches - before.launches, graphs ? 1 : it.plan.record_count + 2);
        assert_int_equal(after.all - before.all, graphs ? 4 : it.plan.record_count + 5);
        assert_false(signalled);                                            /* nobody asked for a signal */
        if (previous)
            assert_int_equal(sequence, previous + 1);
        assert_true(begin_ns < end_ns);
        assert_true(begin_ns > last_end);
        last_end = end_ns;
        /* the clocks agree within 500 us: seven other programs may keep the host and the GPU busy */
        assert_true(begin_ns + 500000 > start && end_ns < td_now_ns() + 500000);
    }
    assert_true(td_stream_times(stream, sequence - 255, &begin_ns, &end_ns));
    assert_false(td_stream_times(stream, sequence - 256, &begin_ns, &end_ns));
    assert_false(td_stream_times(stream, sequence + 1, &begin_ns, &end_ns));
    assert_false(td_stream_times(stream, 0, &begin_ns, &end_ns));

    const int64_t offset = td_stream_clock_offset_ns(stream);
    assert_true(td_stream_times(stream, sequence, &begin_ns, &end_ns));
    td_stream_set_clock_offset_ns(stream, offset + 1000);
    assert_true(td_stream_times(stream, sequence, &last_end, &end_ns));
    assert_int_equal(last_end, begin_ns - 1000);
    td_stream_set_clock_offset_ns(stream, offset);
    gpu_case_free(&gpu);
    tu_tensor_free(&o);
    tu_tensor_free(&lse);
    tu_case_free(&it);
}

void test_refusals(void **state)
{
    static const td_kernel stranger = {.name = "stranger", .entry = "no_such_kernel"}, cpu_only = {.name = "cpu_only"},
                           known = {.name = "mean_final", .entry = "mean_final"};
    TU_PLAN(plan); /* a new one for each kind of stream */
    const uint64_t views[TU_VIEWS] = {0};
    const td_stream_submit submit = {.plan = &plan, .views = views, .label = "refused"};
    uint64_t sequence = 77, completed = td_stream_completed(stream);
    bool signalled = true;
    td_cu_counts before = td_cu_device_counts(device);
    char why[256] = "";

    (void)state;
    td_record *record = td_plan_add_record(&plan, 16);
    assert_non_null(record);
    record->kernel = &stranger;
    for (int i = 0; i < 3; i++)
        record->grid[i] = record->block[i] = 1;
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "no_such_kernel"));
    plan.records[0].kernel = &cpu_only;
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "cpu_only"));
    plan.records[0].kernel = &known;
    plan.records[0].shared_bytes = 1 << 20;
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(why, "1048576"));
    plan.records[0].shared_bytes = 0;
    plan.records[0].flags = 8; /* none that there is */
    assert_int_equal(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why),
                     TANDEM_ERROR_UNSUPPORTED);
    assert_false(signalled);
    assert_int_equal(sequence, 77);
    assert_int_equal(td_stream_completed(stream), completed);
    assert_int_equal(td_cu_device_counts(device).launches, before.launches);

    assert_null(td_cubin_for_sm(10, why, sizeof why));
    assert_non_null(strstr(why, "1.0"));
    assert_non_null(td_cubin_for_sm(td_cu_device_info(device)->sm, why, sizeof why));
}

int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* Imports of what no Vulkan device exported: refused, and nothing leaks. */
static void refuse_fds(td_cu_device *on)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC), fds = count_fds();
    int dead = dup(null);
    td_cu_timeline timeline;
    char why[256] = "";
    td_cu_mem mem;

    assert_true(null >= 0 && dead >= 0);
    close(dead);
    assert_int_equal(td_cu_mem_import_fd(on, dead, 4096, false, 0, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_non_null(strstr(why, strerror(EBADF)));
    assert_int_equal(mem.kind, 0);
    assert_int_equal(td_cu_timeline_import_fd(on, dead, &timeline, why, sizeof why), TANDEM_ERROR_ARG);
    assert_null(timeline.external);
    assert_int_equal(td_cu_mem_import_fd(on, -1, 4096, false, 0, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_int_equal(td_cu_mem_import_fd(on, null, 4096, false, 1, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_int_equal(td_cu_mem_import_fd(on, null, 4096, false, UINT64_MAX, 4096, &mem, why, sizeof why),
                     TANDEM_ERROR_ARG);
    assert_int_not_equal(td_cu_mem_import_fd(on, null, 4096, false, 0, 4096, &mem, why, sizeof why), TANDEM_OK);
    assert_non_null(strstr(why, "CUDA_ERROR_"));
    assert_int_equal(mem.kind, 0);
    assert_int_not_equal(td_cu_timeline_import_fd(on, null, &timeline, why, sizeof why), TANDEM_OK);
    assert_non_null(strstr(why, "CUDA_ERROR_"));
    assert_int_equal(count_fds(), fds);
    assert_true(fcntl(null, F_GETFD) >= 0);
    close(null);
}

void test_descriptors(void **state)
{
    (void)state;
    refuse_fds(device);
}

void test_memory(void **state)
{
    const uint64_t held = td_cu_device_allocated_bytes(device);
    unsigned char bytes[300], *page, back[300];
    td_cu_mem mem;
    char why[160];

    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7);
    must(td_cu_mem_alloc(device, sizeof bytes, &mem, why, sizeof why), why);
    assert_int_equal(td_cu_device_allocated_bytes(device), held + sizeof bytes);
    must(td_cu_copy_to_device(device, mem.address, bytes, sizeof bytes), "copy");
    must(td_cu_copy_to_host(device, back, mem.address, sizeof back), "copy");
    assert_memory_equal(bytes, back, sizeof bytes);
    td_cu_mem_free(device, &mem);
    td_cu_mem_free(device, &mem); /* zeroed: nothing more to do */
    assert_int_equal(td_cu_device_allocated_bytes(device), held);
    assert_int_equal(td_cu_mem_alloc(device, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    assert_int_equal(td_cu_mem_alloc(device, UINT64_C(1) << 60, &mem, why, sizeof why), TANDEM_ERROR_NOMEM);
    assert_int_equal(mem.kind, 0);

    page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(page != MAP_FAILED);
    memcpy(page, bytes, sizeof bytes);
    assert_int_equal(td_cu_mem_register(device, page + 1, 4096, &mem, why, sizeof why), TANDEM_ERROR_ARG);
    must(td_cu_mem_register(device, page, 8192, &mem, why, sizeof why), why);
    must(td_cu_copy_to_host(device, back, mem.address, sizeof back), "copy");
    assert_memory_equal(bytes, back, sizeof bytes);
    td_cu_mem_free(device, &mem);
    munmap(page, 8192);

    must(td_cu_mem_alloc_host(device, 4096, &mem, why, sizeof why), why);
    memcpy(mem.host, bytes, sizeof bytes);
    must(td_cu_copy_to_host(device, back, mem.address, sizeof back), "copy");
    assert_memory_equal(bytes, back, sizeof bytes);
    td_cu_mem_free(device, &mem);
}

void test_open_and_close(void **state)
{
    uint8_t foreign[16];
    td_cu_device *other;
    td_stream *second;
    int fds = 0;
    char why[256] = "";

    (void)state;
    memset(foreign, 0xab, sizeof foreign);
    assert_int_equal(td_cu_device_open(foreign, NULL, &other, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
    assert_null(other);
    assert_non_null(strstr(why, "abababab-abab-abab-abab-abababababab; there is "));
    for (int i = 0; i < (quick ? 3 : 60); i++) {
        must(td_cu_device_open(td_cu_device_info(device)->uuid, NULL, &other, why, sizeof why), why);
        assert_memory_equal(td_cu_device_info(other)->uuid, td_cu_device_info(device)->uuid, 16);
        if (i % 10 == 0) {
            must(td_stream_create(other, NULL, &second, why, sizeof why), why);
            td_stream_destroy(&second, 1000000000u);
            assert_null(second);
        }
        refuse_fds(other);
        td_cu_device_close(&other);
        assert_null(other);
        if (i == 0)
            fds = count_fds();
        else
            assert_int_equal(count_fds(), fds);
    }
}
