/* The stream beside Vulkan: frames, what is new in each, and a peer that dies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/cuda/rig.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/builder.h"
#include "tests/interop/vk_util.h"

static vku gpu;
td_vk *vk;

meeting meeting_new(uint64_t initial)
{
    meeting it = {0};
    char why[256] = "";
    int fd = -1;

    must(td_vk_timeline_create(vk, initial, true, &it.vulkan, why, sizeof why), why);
    must(td_vk_timeline_export_fd(vk, it.vulkan, &fd, why, sizeof why), why);
    must(td_cu_timeline_import_fd(device, fd, &it.cuda, why, sizeof why), why);
    assert_true(fcntl(fd, F_GETFD) >= 0); /* the import took a duplicate */
    close(fd);
    return it;
}

void meeting_free(meeting *it)
{
    td_cu_timeline_free(device, &it->cuda);
    td_vk_timeline_destroy(vk, &it->vulkan);
}

static td_cu_mem import_mem(td_vk_mem *mem)
{
    td_cu_mem it;
    char why[256] = "";
    int fd = -1;

    must(td_vk_mem_export_fd(vk, mem, &fd, why, sizeof why), why);
    must(td_cu_mem_import_fd(device, fd, mem->allocation_bytes, mem->dedicated, mem->offset, mem->bytes, &it, why,
                             sizeof why),
         why);
    assert_true(fcntl(fd, F_GETFD) >= 0);
    close(fd);
    assert_int_equal(it.bytes, mem->bytes);
    return it;
}

/* The descriptors that stay open are the driver's own, and as many as before. */
void test_vulkan_leaks_nothing(void **state)
{
    int fds = 0;
    char why[256] = "";

    (void)state;
    if (!vk)
        skip();
    for (int i = 0; i < 60; i++) {
        meeting timeline = meeting_new((uint64_t)i);
        td_vk_mem shared;
        td_cu_mem mem;
        unsigned char byte = (unsigned char)i, back = 0;

        must(td_vk_mem_create_export(vk, 1 << 20, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT, &shared, why, sizeof why), why);
        mem = import_mem(&shared);
        must(td_cu_copy_to_device(device, mem.address + 12345, &byte, 1), "copy");
        must(td_cu_copy_to_host(device, &back, mem.address + 12345, 1), "copy");
        assert_int_equal(byte, back);
        td_cu_mem_free(device, &mem);
        td_vk_mem_free(vk, &shared);
        meeting_free(&timeline);
        if (i == 5)
            fds = count_fds();
        if (i > 5)
            assert_int_equal(count_fds(), fds);
    }
}

/* Vulkan writes Q, K, V and signals; CUDA waits, attends, signals; Vulkan waits and reads O. All in one shared mem. */
void test_vulkan_frames(void **state)
{
    enum { FRAMES = 20, PART = 1 << 18 };
    const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 800};
    td_target target = td_target_for_sm(td_cu_device_info(device)->sm);
    uint64_t sequence = 0, value = 0;
    td_cu_counts before, after;
    meeting in, out, done;
    vku_buffer staging;
    td_vk_mem shared;
    td_cu_mem mem;
    tu_case it;
    bool signalled;
    char why[256] = "";

    (void)state;
    if (!vk)
        skip();
    tu_case_init(&it, &shape);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    tu_tensor o = tu_tensor_like(&it.o);
    in = meeting_new(0);
    out = meeting_new(0);
    done = meeting_new(0);
    must(td_vk_mem_create_export(vk, 4 * PART + it.plan.scratch_bytes,
                                 VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                                     VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                 &shared, why, sizeof why),
         why);
    mem = import_mem(&shared);
    assert_int_equal(vku_buffer_create(&gpu, 4 * PART,
                                       VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging),
                     VK_SUCCESS);
    const tu_tensor *inputs[3] = {&it.q, &it.k, &it.v};
    uint64_t views[TU_VIEWS] = {0};
    for (uint64_t i = 0; i < 4; i++)
        views[i] = mem.address + i * PART;
    for (uint64_t frame = 1; frame <= FRAMES; frame++) {
        const td_stream_point wait = {.cu = &in.cuda, .value = frame}, signal = {.cu = &out.cuda, .value = frame};
        const td_stream_submit submit = {.plan = &it.plan,
                                         .views = views,
                                         .scratch = mem.address + 4 * PART,
                                         .wait = &wait,
                                         .signal = &signal,
                                         .label = "frame"};
        const VkBufferCopy all = {.size = 4 * PART},
                           back = {.srcOffset = 3 * PART, .dstOffset = 3 * PART, .size = PART};

        memset(staging.host, TU_POISON, 4 * PART);
        for (uint64_t i = 0; i < 3; i++)
            memcpy((char *)staging.host + i * PART, inputs[i]->data, inputs[i]->bytes);
        before = td_cu_device_counts(device);
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        assert_true(signalled);
        after = td_cu_device_counts(device);
        if (frame > 1) {
            assert_int_equal(after.copies - before.copies, 0);
            assert_int_equal(after.allocations - before.allocations, 0);
            assert_int_equal(after.host_waits - before.host_waits, 0);
            /* wait, signal, event, push, pop; and the launch of a graph, or stamps and records */
            assert_int_equal(after.all - before.all, graphs ? 6 : it.plan.record_count + 7);
        }
        usleep(2000);
        assert_true(td_stream_completed(stream) < sequence); /* it waits */
        must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
        assert_int_equal(value, frame - 1);

        VkCommandBuffer commands = vku_begin(&gpu);
        if (frame > 1)
            td_vk_record_acquire(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                 VK_ACCESS_TRANSFER_WRITE_BIT);
        gpu.CmdCopyBuffer(commands, staging.buffer, shared.buffer, 1, &all);
        td_vk_record_release(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
        assert_int_equal(vku_submit(&gpu, commands, (vku_point){0}, (vku_point){in.vulkan, frame}, VK_NULL_HANDLE),
                         VK_SUCCESS);
        commands = vku_begin(&gpu);
        td_vk_record_acquire(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        gpu.CmdCopyBuffer(commands, shared.buffer, staging.buffer, 1, &back);
        vku_full_barrier(&gpu, commands);
        td_vk_record_release(vk, commands, &shared, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        assert_int_equal(
            vku_submit(&gpu, commands, (vku_point){out.vulkan, frame}, (vku_point){done.vulkan, frame}, VK_NULL_HANDLE),
            VK_SUCCESS);
        must(td_vk_timeline_wait(vk, done.vulkan, frame, 5000000000u), "done");
        assert_int_equal(td_stream_completed(stream), sequence); /* the stamp comes before the signal */
        memcpy(o.data, (char *)staging.host + 3 * PART, o.bytes);
        assert_true(tu_distance(&o, &it.o) <= 1e-4);
    }
    vku_buffer_destroy(&gpu, &staging);
    td_cu_mem_free(device, &mem);
    td_vk_mem_free(vk, &shared);
    meeting_free(&in);
    meeting_free(&out);
    meeting_free(&done);
    tu_tensor_free(&o);
    tu_case_free(&it);
}

/* --- What is new in each frame --- */

enum { REPLAY_SHAPES = 3, REPLAY_SETS = 2 };

static void check_values(const tu_tensor *got, const tu_tensor *want, int frame)
{
    const double l1 = tu_distance(got, want);

    if (!(l1 <= 1e-4))
        fail_msg("frame %d: O is %g from the twin's", frame, l1);
}

/* Fresh data in the same buffers, shapes and addresses that change, with and without points: nothing may be left of an
 * earlier frame. */
void test_replay(void **state)
{
    static const tu_shape shapes[REPLAY_SHAPES] = {
        {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64},
        {.heads = 2, .q_len = 130, .kv_len = 200, .head_dim = 32, .causal = 1, .precision = TANDEM_PRECISION_F16},
        {.heads = 3, .q_len = 64, .kv_len = 300, .head_dim = 64, .precision = TANDEM_PRECISION_4B},
    };
    const size_t view_bytes = 1 << 18, scratch_bytes = 1 << 23;
    const int frames = quick ? 12 : 50;
    td_cu_mem views_of[REPLAY_SETS][TU_VIEWS], scratch[REPLAY_SETS];
    uint64_t random = 99, value = 0;
    meeting in = {0}, out = {0};
    char why[256] = "";

    (void)state;
    for (int set = 0; set < REPLAY_SETS; set++) {
        for (int i = 0; i < TU_VIEWS; i++)
            must(td_cu_mem_alloc(device, view_bytes, &views_of[set][i], why, sizeof why), why);
        must(td_cu_mem_alloc(device, scratch_bytes, &scratch[set], why, sizeof why), why);
    }
    if (vk) {
        in = meeting_new(0);
        out = meeting_new(0);
    }
    for (int frame = 0; frame < frames; frame++) {
        tu_shape shape = shapes[frame < frames / 2 ? 0 : (int)(tu_random(&random) % REPLAY_SHAPES)];
        const int set = frame < frames / 4 ? 0 : (int)(tu_random(&random) % REPLAY_SETS);
        const bool meets = vk && tu_random(&random) % 2;
        const td_target target = target_here();
        const td_stream_point wait = {.cu = &in.cuda, .value = value + 1 + tu_random(&random) % 5},
                              signal = {.cu = &out.cuda, .value = wait.value};
        td_stream_submit submit = {.scratch = scratch[set].address, .slot = (uint32_t)frame % 2};
        uint64_t views[TU_VIEWS] = {0}, sequence;
        bool signalled;
        tu_tensor o;
        tu_case it;

        shape.seed = 5000 + (uint64_t)frame;
        shape.lse = 1;
        tu_case_init(&it, &shape);
        must(tu_case_run(&it, &target, THREADS), "the twin");
        assert_true(it.plan.scratch_bytes <= scratch_bytes);
        o = tu_tensor_like(&it.o);
        tu_poison(&o);
        const tu_tensor *tensors[TU_VIEWS] = {&it.q, &it.k, &it.v, &o, &it.lse};
        for (int i = 0; i < TU_VIEWS; i++) {
            assert_true(tensors[i]->bytes + TU_GUARD_BYTES <= view_bytes);
            views[i] = views_of[set][i].address;
            must(td_cu_copy_to_device(device, views[i], tensors[i]->data, tensors[i]->bytes + TU_GUARD_BYTES), "copy");
        }
        submit.plan = &it.plan;
        submit.views = views;
        if (meets) {
            submit.wait = &wait;
            submit.signal = &signal;
        }
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        assert_int_equal(signalled, meets);
        if (meets) {
            usleep(1000);
            assert_false(td_stream_begun(stream, sequence));
            assert_int_equal(td_stream_progress(stream, sequence), 0);
            must(td_vk_timeline_signal(vk, in.vulkan, wait.value), "signal");
        }
        must(td_stream_wait(stream, sequence), "wait");
        assert_true(td_stream_begun(stream, sequence));
        assert_int_equal(td_stream_completed(stream), sequence);
        assert_int_equal(td_stream_progress(stream, sequence), it.plan.record_count);
        if (meets) {
            must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
            assert_int_equal(value, signal.value);
        }
        must(td_cu_copy_to_host(device, o.data, views[TD_VIEW_O], o.bytes + TU_GUARD_BYTES), "copy");
        assert_int_equal(tu_spoilt(&o), 0);
        check_values(&o, &it.o, frame);
        tu_tensor_free(&o);
        tu_case_free(&it);
    }
    for (int set = 0; set < REPLAY_SETS; set++) {
        for (int i = 0; i < TU_VIEWS; i++)
            td_cu_mem_free(device, &views_of[set][i]);
        td_cu_mem_free(device, &scratch[set]);
    }
    if (vk) {
        meeting_free(&in);
        meeting_free(&out);
    }
}

/* A submit that is given up while it waits writes nothing; the next of its slot does. */
void test_cancel(void **state)
{
    const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 900};
    const td_target target = target_here();
    uint64_t sequence, value = 0, begin;
    bool signalled;
    char why[256] = "";
    tu_tensor o, lse;
    gpu_case on_gpu;
    tu_case it;

    (void)state;
    if (!vk)
        skip();
    tu_case_init(&it, &shape);
    must(tu_case_run(&it, &target, THREADS), "the twin");
    o = tu_tensor_like(&it.o);
    lse = tu_tensor_like(&it.lse);
    gpu_case_run(&on_gpu, &it, &o, &lse);
    meeting in = meeting_new(0), out = meeting_new(0);
    for (uint64_t frame = 1; frame <= 10; frame++) {
        const bool cancelled = frame % 3 != 0;
        const td_stream_point wait = {.cu = &in.cuda, .value = frame}, signal = {.cu = &out.cuda, .value = frame};
        const td_stream_submit submit = {.plan = &it.plan,
                                         .views = on_gpu.views,
                                         .scratch = on_gpu.scratch.address,
                                         .wait = &wait,
                                         .signal = &signal};

        tu_poison(&o);
        must(td_cu_copy_to_device(device, on_gpu.views[TD_VIEW_O], o.data, o.bytes), "copy");
        must(td_stream_enqueue(stream, &submit, &sequence, &signalled, why, sizeof why), why);
        assert_int_equal(td_stream_control(stream, sequence)->cancel, 0);
        if (cancelled) {
            td_stream_cancel(stream, sequence);
            assert_int_equal(td_stream_control(stream, sequence)->cancel, 1);
            usleep(3000);
        }
        must(td_vk_timeline_signal(vk, in.vulkan, frame), "signal");
        must(td_stream_wait(stream, sequence), "wait");
        for (begin = td_now_ns(); value < frame;) { /* whatever became of it */
            assert_true(td_now_ns() - begin < run_limit_ns);
            must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
        }
        must(td_cu_copy_to_host(device, o.data, on_gpu.views[TD_VIEW_O], o.bytes), "copy");
        if (!cancelled)
            check_values(&o, &it.o, (int)frame);
        for (size_t i = 0; cancelled && i < o.bytes; i++)
            assert_int_equal(((unsigned char *)o.data)[i], TU_POISON);
        td_stream_cancel(stream, sequence); /* too late: nothing happens */
    }
    meeting_free(&in);
    meeting_free(&out);
    gpu_case_free(&on_gpu);
    tu_tensor_free(&o);
    tu_tensor_free(&lse);
    tu_case_free(&it);
}

/* Inputs from the host and outputs to it, three in flight, in device memory of one each or of all. */
void test_copies(void **state)
{
    enum { SLOTS = 3, CASES = 5, PART = 1 << 18 };
    const td_target target = target_here();
    const int frames = quick ? 12 : 60;
    td_cu_mem memory[SLOTS], host[SLOTS], scratch;
    uint64_t sequences[SLOTS] = {0};
    int case_of[SLOTS] = {0};
    tu_case cases[CASES];
    td_stream *own; /* once a stream has copied, it launches no graphs */
    char why[256] = "";

    (void)state;
    must((graphs ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
    for (int i = 0; i < CASES; i++) {
        const tu_shape shape = {.heads = 2, .q_len = 64, .kv_len = 300, .head_dim = 64, .seed = 950 + (uint64_t)i};

        tu_case_init(&cases[i], &shape);
        must(tu_case_run(&cases[i], &target, THREADS), "the twin");
        assert_true(cases[i].k.bytes <= PART);
    }
    must(td_cu_mem_alloc(device, cases[0].plan.scratch_bytes, &scratch, why, sizeof why), why);
    for (int i = 0; i < SLOTS; i++) {
        must(td_cu_mem_alloc(device, 4 * PART, &memory[i], why, sizeof why), why);
        must(td_cu_mem_alloc_host(device, 4 * PART, &host[i], why, sizeof why), why);
    }
    for (int frame = 0; frame < 2 * frames + SLOTS; frame++) {
        const int slot = frame % SLOTS, number = frame % CASES;
        const uint64_t address = memory[frame < frames ? 0 : slot].address;
        const tu_case *it = &cases[number];
        const tu_tensor *inputs[3] = {&it->q, &it->k, &it->v};
        td_stream_copy in[3], out = {address + 3 * PART, (char *)host[slot].host + 3 * PART, it->o.bytes};
        uint64_t views[TU_VIEWS] = {address, address + PART, address + 2 * PART, address + 3 * PART};
        const td_stream_submit submit = {.plan = &it->plan,
                                         .views = views,
                                         .scratch = scratch.address,
                                         .copies_in = in,
                                         .copies_out = &out,
                                         .copy_in_count = 3,
                                         .copy_out_count = 1,
                                         .slot = (uint32_t)slot};
        bool signalled;

        if (sequences[slot]) {
            tu_tensor o = cases[case_of[slot]].o;

            must(td_stream_wait(own, sequences[slot]), "wait");
            o.data = (char *)host[slot].host + 3 * PART;
            check_values(&o, &cases[case_of[slot]].o, frame - SLOTS);
        }
        if (frame >= 2 * frames)
            continue;
        case_of[slot] = number;
        memset((char *)host[slot].host + 3 * PART, TU_POISON, PART);
        for (int i = 0; i < 3; i++) {
            memcpy((char *)host[slot].host + i * PART, inputs[i]->data, inputs[i]->bytes);
            in[i] = (td_stream_copy){address + (uint64_t)i * PART, (char *)host[slot].host + i * PART, inputs[i]->bytes};
        }
        must(td_stream_enqueue(own, &submit, &sequences[slot], &signalled, why, sizeof why), why);
    }
    td_stream_destroy(&own, 1000000000u);
    for (int i = 0; i < SLOTS; i++) {
        td_cu_mem_free(device, &memory[i]);
        td_cu_mem_free(device, &host[i]);
    }
    td_cu_mem_free(device, &scratch);
    for (int i = 0; i < CASES; i++)
        tu_case_free(&cases[i]);
}

/* --- A peer that dies --- */

static int pass_fd(int socket, int *fd, bool sends)
{
    char byte = 0, control[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    if (sends) {
        memcpy(CMSG_DATA(header), fd, sizeof *fd);
        return sendmsg(socket, &message, 0) == 1 ? 0 : -1;
    }
    if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
        return -1;
    memcpy(fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *fd);
    return 0;
}

/* The other process: owns a timeline, gives it away, and waits for its end. */
int be_peer(int socket)
{
    VkSemaphore timeline;
    char why[256] = "";
    int fd;

    if (vku_open(&gpu, NULL) != VKU_OK)
        return 1;
    const td_vk_desc desc = vku_desc(&gpu);
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why) || td_vk_timeline_create(vk, 0, true, &timeline, why, sizeof why) ||
        td_vk_timeline_export_fd(vk, timeline, &fd, why, sizeof why) || pass_fd(socket, &fd, true)) {
        fprintf(stderr, "the peer: %s\n", why);
        return 1;
    }
    sleep(60);
    return 1;
}

/* The stream goes on waiting, without an error, until somebody else who holds the timeline signals it. */
void test_peer_dies(void **state)
{
    static const td_plan nothing;
    const uint64_t views[TU_VIEWS] = {0};
    const VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                            .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE};
    const VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VkSemaphore mine = VK_NULL_HANDLE;
    PFN_vkImportSemaphoreFdKHR import;
    int sockets[2], fd = -1, ended;
    td_cu_timeline theirs;
    char why[256] = "", number[12];
    uint64_t sequence, value = 99, begin;
    td_stream *own;
    bool signalled;
    pid_t peer;

    (void)state;
    if (!vk)
        skip();
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    snprintf(number, sizeof number, "%d", sockets[1]);
    fflush(NULL);
    peer = fork();
    assert_true(peer >= 0);
    if (!peer) {
        execl("/proc/self/exe", "test_cuda", "--peer", number, (char *)NULL);
        _exit(127);
    }
    close(sockets[1]);
    assert_int_equal(pass_fd(sockets[0], &fd, false), 0);
    must(td_cu_timeline_import_fd(device, fd, &theirs, why, sizeof why), why);
    must((graphs ? td_stream_create_graph : td_stream_create)(device, NULL, &own, why, sizeof why), why);
    const td_stream_point wait = {.cu = &theirs, .value = 7};
    const td_stream_submit submit = {.plan = &nothing, .views = views, .wait = &wait};
    must(td_stream_enqueue(own, &submit, &sequence, &signalled, why, sizeof why), why);
    usleep(20000);
    assert_int_equal(td_stream_completed(own), 0);
    assert_int_equal(kill(peer, SIGKILL), 0);
    assert_int_equal(waitpid(peer, &ended, 0), peer);
    usleep(300000);
    must(td_stream_status(own, why, sizeof why), why);
    assert_false(td_stream_begun(own, sequence));
    assert_false(td_stream_drain(own, 0));

    import = (PFN_vkImportSemaphoreFdKHR)gpu.GetDeviceProcAddr(gpu.device, "vkImportSemaphoreFdKHR");
    assert_non_null(import);
    assert_int_equal(gpu.CreateSemaphore(gpu.device, &info, NULL, &mine), VK_SUCCESS);
    const VkImportSemaphoreFdInfoKHR from = {.sType = VK_STRUCTURE_TYPE_IMPORT_SEMAPHORE_FD_INFO_KHR,
                                             .semaphore = mine,
                                             .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
                                             .fd = fd};
    assert_int_equal(import(gpu.device, &from), VK_SUCCESS); /* the fd is its own now */
    must(td_vk_timeline_value(vk, mine, &value), "value");
    assert_int_equal(value, 0);
    begin = td_now_ns();
    must(td_vk_timeline_signal(vk, mine, 7), "signal");
    must(td_stream_wait(own, sequence), "wait");
    print_message("    %.0f us after the timeline of a peer that died was signalled for it, the stream was free\n",
                  (double)(td_now_ns() - begin) / 1e3);
    assert_int_equal(td_stream_completed(own), sequence);
    td_stream_destroy(&own, 1000000000u);
    td_cu_timeline_free(device, &theirs);
    gpu.DestroySemaphore(gpu.device, mine, NULL);
    close(sockets[0]);
}

static unsigned warnings;

static void count_warnings(void *user, int level, const char *text)
{
    (void)user;
    warnings += level <= TD_LOG_WARN && strstr(text, "left behind");
}

/* A peer that never signals: nobody blocks, the queue has an end, and a stream can be given up. */
void test_stuck_stream(void **state)
{
    static td_plan plan; /* nothing but stamps */
    const uint64_t views[TU_VIEWS] = {0};
    const td_log log = {.fn = count_warnings};
    uint64_t sequence = 0, value, begin;
    td_stream *stuck;
    bool signalled;
    char why[256] = "";

    (void)state;
    if (!vk)
        skip();
    meeting never = meeting_new(0), out = meeting_new(0);
    const td_stream_point at7 = {.cu = &never.cuda, .value = 7}, at8 = {.cu = &never.cuda, .value = 8};
    const td_stream_submit waits = {.plan = &plan, .views = views, .wait = &at7};
    must((graphs ? td_stream_create_graph : td_stream_create)(device, &log, &stuck, why, sizeof why), why);
    begin = td_now_ns();
    for (uint64_t i = 1;; i++) {
        const td_stream_point signal = {.cu = &out.cuda, .value = i};
        td_stream_submit submit = waits;

        submit.signal = &signal;
        const tandem_status status = td_stream_enqueue(stuck, &submit, &sequence, &signalled, why, sizeof why);
        if (status == TANDEM_ERROR_BUSY) {
            assert_true(i > 8 && i < 100);
            assert_false(signalled);
            break;
        }
        must(status, why);
        assert_int_equal(sequence, i);
    }
    assert_true(td_now_ns() - begin < 1000000000u);
    assert_int_equal(td_stream_completed(stuck), 0);
    must(td_stream_status(stuck, why, sizeof why), why); /* waiting is no error */
    must(td_vk_timeline_signal(vk, never.vulkan, 7), "signal");
    for (begin = td_now_ns(); td_stream_completed(stuck) < sequence;)
        assert_true(td_now_ns() - begin < run_limit_ns);
    for (value = 0; value < sequence;) {
        assert_true(td_now_ns() - begin < run_limit_ns);
        must(td_vk_timeline_value(vk, out.vulkan, &value), "value");
    }
    assert_int_equal(value, sequence);

    const td_stream_submit again = {.plan = &plan, .views = views, .wait = &at8};
    must(td_stream_enqueue(stuck, &again, &sequence, &signalled, why, sizeof why), why);
    warnings = 0;
    begin = td_now_ns();
    td_stream_destroy(&stuck, 30000000);
    assert_null(stuck);
    assert_true(td_now_ns() - begin < 1000000000u);
    assert_int_equal(warnings, 1);
    must(td_vk_timeline_signal(vk, never.vulkan, 8), "signal"); /* lets it end after all */
    usleep(50000);
    meeting_free(&never);
    meeting_free(&out);
}

bool open_vulkan(void)
{
    char why[256] = "";

    if (vku_open(&gpu, NULL) != VKU_OK) {
        fprintf(stderr, "no Vulkan device\n");
        return false;
    }
    const td_vk_desc desc = vku_desc(&gpu);
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why)) {
        fprintf(stderr, "no Vulkan session: %s\n", why);
        return false;
    }
    if (memcmp(td_vk_get_caps(vk)->device_uuid, td_cu_device_info(device)->uuid, 16)) {
        fprintf(stderr, "%s is not the CUDA device\n", gpu.name);
        td_vk_close(&vk);
        return false;
    }
    return true;
}

void close_vulkan(void)
{
    td_vk_close(&vk);
    if (gpu.device)
        vku_close(&gpu);
}
