/* The rungs of a GPU on Windows: memory and timelines as OPAQUE_WIN32 from Vulkan to CUDA, each handle closed exactly once,
 * however far it came. There is no GPU here: Vulkan is lavapipe behind handles/shim.h, CUDA the fake of nvcuda.h, loaded as
 * nvcuda.dll. They say that the right things are asked for, not that a driver does them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>
#include <windows.h>

#include <vulkan/vulkan_core.h>
#include <vulkan/vulkan_win32.h>

#include "engine_plugin/client/ladder.h"
#include "interop/os/opaque.h"
#include "interop/vk/table.h"
#include "tandem/vulkan.h"
#include "tests/interop/fake_kernels.h"
#include "tests/windows/handles/section.h"
#include "tests/windows/handles/shim.h"
#include "tests/windows/nvcuda.h"

#define LONG_NS 60000000000ull
enum {
    BYTES = 1 << 16,
    USAGE = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT
};

static nvcuda *cuda;
static vku v;
static td_vk_table semaphores;
static td_vk *vk;
static td_cu_device *device;
static char why[600];

const td_cubin *__wrap_td_cubins(uint32_t *count);
const td_cubin *__wrap_td_cubins(uint32_t *count)
{
    return fake_kernels(count, false);
}

#define assert_ok(call) assert_status(call, TANDEM_OK, #call)
static void assert_status(int is, int wanted, const char *what)
{
    if (is != wanted)
        fail_msg("%s is %d, not %d: %s", what, is, wanted, why);
}

static void assert_says(const char *text)
{
    if (!strstr(why, text))
        fail_msg("'%s' is not in '%s'", text, why);
}

/* A device whose Vulkan and CUDA are one: the same UUID and adapter. */
static bool open_engine(void)
{
    td_vk_caps caps = {0};

    cuda->driver->vulkan = NULL;
    if (!vku_try(&v, &(vku_options){.wrap = shim_wrap}))
        return false;
    assert_ok(td_vk_identify(v.gipa, v.instance, v.physical_device, &caps, why, sizeof why));
    memcpy(cuda->driver->uuids[0], caps.device_uuid, sizeof caps.device_uuid);
    semaphores.GetSemaphoreCounterValue =
        (PFN_vkGetSemaphoreCounterValue)v.GetDeviceProcAddr(v.device, "vkGetSemaphoreCounterValue");
    semaphores.SignalSemaphore = (PFN_vkSignalSemaphore)v.GetDeviceProcAddr(v.device, "vkSignalSemaphore");
    cuda->driver->vulkan = &semaphores;
    cuda->driver->device = v.device;
    cuda->calls = cuda->fails = shim.calls = shim.fails = 0;
    cuda->failed = shim.failed = NULL;
    return true;
}

/* Nothing is left: no object of either, no handle, none closed twice. */
static void assert_clean(void)
{
    cuda->fails = shim.fails = 0;
    assert_int_equal(shim_open_handles(), 0);
    assert_int_equal(shim.wrong_closes, 0);
    assert_int_equal(shim.live, 0);
    assert_int_equal(cuda->driver->live, 0);
    assert_int_equal(cuda->strange, 0);
    if (shim.flaw[0])
        fail_msg("%s", shim.flaw);
}

static void close_engine(void)
{
    vku_close(&v);
    assert_int_equal(v.errors, 0);
    assert_clean();
}

static int setup(void **state)
{
    const td_adapter one = {.known = true, .luid = {0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88}, .node_mask = 1};

    (void)state;
    shim = (shim_state){.adapter = one};
    cuda->driver->adapter = one;
    cuda->memories = cuda->semaphores = 0;
    return 0;
}

/* Between the two, without a session. */
static bool open_both(void)
{
    td_vk_desc desc;

    if (!open_engine())
        return false;
    desc = vku_desc(&v);
    assert_ok(td_vk_open(&desc, NULL, &vk, why, sizeof why));
    assert_ok(td_cu_device_open(td_vk_get_caps(vk)->device_uuid, NULL, &device, why, sizeof why));
    return true;
}

static void close_both(void)
{
    td_cu_device_close(&device);
    td_vk_close(&vk);
    close_engine();
}

/* Numbers and names are those of the headers. */
static void test_words(void **state)
{
    (void)state;
    assert_string_equal(td_library_cuda, "nvcuda.dll");
    assert_string_equal(td_opaque_memory_extension, VK_KHR_EXTERNAL_MEMORY_WIN32_EXTENSION_NAME);
    assert_string_equal(td_opaque_semaphore_extension, VK_KHR_EXTERNAL_SEMAPHORE_WIN32_EXTENSION_NAME);
    assert_int_equal(td_opaque.get_memory_struct, VK_STRUCTURE_TYPE_MEMORY_GET_WIN32_HANDLE_INFO_KHR);
    assert_int_equal(td_opaque.get_semaphore_struct, VK_STRUCTURE_TYPE_SEMAPHORE_GET_WIN32_HANDLE_INFO_KHR);
    assert_int_equal(td_opaque.memory_type, VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT);
    assert_int_equal(td_opaque.semaphore_type, VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_WIN32_BIT);
    assert_int_equal(sizeof(td_vk_handle_info), sizeof(VkMemoryGetWin32HandleInfoKHR));
    assert_int_equal(offsetof(td_vk_handle_info, object), offsetof(VkMemoryGetWin32HandleInfoKHR, memory));
    assert_int_equal(offsetof(td_vk_handle_info, type), offsetof(VkMemoryGetWin32HandleInfoKHR, handleType));
    assert_int_equal(sizeof(td_vk_handle_info), sizeof(VkSemaphoreGetWin32HandleInfoKHR));
    assert_int_equal(offsetof(td_vk_handle_info, object), offsetof(VkSemaphoreGetWin32HandleInfoKHR, semaphore));
    assert_int_equal(offsetof(td_vk_handle_info, type), offsetof(VkSemaphoreGetWin32HandleInfoKHR, handleType));
    assert_int_equal(td_opaque_fd((td_opaque_handle){.win32 = NULL}), -1);
    assert_int_equal(td_opaque_fd((td_opaque_handle){.win32 = INVALID_HANDLE_VALUE}), -1);
    assert_int_equal(td_opaque_fd((td_opaque_handle){.win32 = (void *)0x100000004}), -1);
    assert_int_equal(td_opaque_fd((td_opaque_handle){.win32 = (void *)0x44}), 0x44);
    assert_ptr_equal(td_opaque_of(0x44).win32, (void *)0x44);
    assert_null(td_opaque_of(-1).win32);
}

/* What an engine is told to enable. */
static void test_requirements(void **state)
{
    tandem_requirement list[32] = {{.struct_bytes = sizeof *list}};
    uint32_t count = 32, found = 0;

    (void)state;
    if (!open_engine())
        skip();
    assert_ok(tandem_vulkan_requirements(v.gipa, v.instance, v.physical_device, &count, list));
    for (uint32_t i = 0; i < count; i++) {
        assert_string_not_equal(list[i].name, "VK_KHR_external_memory_fd");
        assert_string_not_equal(list[i].name, "VK_KHR_external_semaphore_fd");
        if (strcmp(list[i].name, td_opaque_memory_extension) && strcmp(list[i].name, td_opaque_semaphore_extension))
            continue;
        assert_int_equal(list[i].kind, TANDEM_REQUIREMENT_DEVICE_EXTENSION);
        assert_true(list[i].available);
        found++;
    }
    assert_int_equal(found, 2);
    close_engine();
}

static void import_and_free(td_vk_mem *mem, bool dedicated)
{
    td_cu_mem theirs;
    int fd;

    assert_ok(td_vk_mem_export_fd(vk, mem, &fd, why, sizeof why));
    assert_ok(td_cu_mem_import_fd(device, fd, mem->allocation_bytes, mem->dedicated, mem->offset, mem->bytes, &theirs, why,
                                  sizeof why));
    assert_int_equal(cuda->memory.type, 2); /* CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32 */
    assert_non_null(cuda->memory.handle.win32.handle);
    assert_null(cuda->memory.handle.win32.name);
    assert_int_equal(cuda->memory.size, mem->allocation_bytes);
    assert_int_equal(cuda->memory.flags, dedicated ? 1 : 0); /* CUDA_EXTERNAL_MEMORY_DEDICATED */
    td_fd_close(&fd);
    td_cu_mem_free(device, &theirs);
}

static void test_memory(void **state)
{
    td_vk_mem mem, parts[2];

    (void)state;
    for (int dedicated = 0; dedicated < 2; dedicated++) {
        shim.dedicated = dedicated;
        shim.gets = 0;
        if (!open_both())
            skip();
        assert_ok(td_vk_mem_create_export(vk, BYTES, USAGE, &mem, why, sizeof why));
        import_and_free(&mem, dedicated);
        import_and_free(&mem, dedicated); /* of a memory Vulkan gives one handle, ever */
        assert_int_equal(shim.gets, 1);
        /* Parts of a block of the engine's, one after the other and side by side, also of another session. */
        if (!dedicated) {
            td_vk_desc desc = vku_desc(&v);
            td_vk *other;
            td_vk_mem theirs;
            int fd;

            for (int i = 0; i < 2; i++)
                assert_ok(td_vk_mem_wrap(vk, mem.memory, mem.allocation_bytes, 0, 4096, false, &parts[i], why, sizeof why));
            import_and_free(&parts[0], false);
            td_vk_mem_free(vk, &parts[0]);
            import_and_free(&parts[1], false);
            assert_ok(td_vk_open(&desc, NULL, &other, why, sizeof why));
            assert_ok(td_vk_mem_wrap(other, mem.memory, mem.allocation_bytes, 0, 4096, false, &theirs, why, sizeof why));
            import_and_free(&parts[1], false);
            assert_ok(td_vk_mem_export_fd(other, &theirs, &fd, why, sizeof why));
            td_fd_close(&fd);
            td_vk_mem_free(vk, &parts[1]);
            td_vk_mem_free(other, &theirs);
            td_vk_close(&other);
        }
        assert_int_equal(shim.gets, 1);
        td_vk_mem_free(vk, &mem);
        assert_int_equal(shim_open_handles(), 0); /* not only once Tandem goes: another's handle may have the same value */
        close_both();
    }
}

static void test_timelines(void **state)
{
    VkSemaphore semaphore;
    td_cu_timeline theirs;
    int fd;

    (void)state;
    if (!open_both())
        skip();
    assert_ok(td_vk_timeline_create(vk, 0, true, &semaphore, why, sizeof why));
    for (int i = 0; i < 2; i++) {
        assert_ok(td_vk_timeline_export_fd(vk, semaphore, &fd, why, sizeof why));
        assert_ok(td_cu_timeline_import_fd(device, fd, &theirs, why, sizeof why));
        assert_int_equal(cuda->semaphore.type, 10); /* CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_WIN32 */
        assert_non_null(cuda->semaphore.handle.win32.handle);
        assert_null(cuda->semaphore.handle.win32.name);
        assert_int_equal(cuda->semaphore.flags, 0);
        td_fd_close(&fd);
        td_cu_timeline_free(device, &theirs);
    }
    assert_int_equal(shim.gets, 1);
    td_vk_timeline_destroy(vk, &semaphore);
    /* What the next one is exported as is its own, though its handle may have the same value. */
    assert_ok(td_vk_timeline_create(vk, 0, true, &semaphore, why, sizeof why));
    assert_ok(td_vk_timeline_export_fd(vk, semaphore, &fd, why, sizeof why));
    td_fd_close(&fd);
    assert_int_equal(shim.gets, 2);
    td_vk_timeline_destroy(vk, &semaphore);
    assert_int_equal(shim_open_handles(), 0);
    close_both();
}

/* Sessions. */

enum { ROWS = 64, DIM = 32, VIEW_BYTES = ROWS * DIM * 4 };

/* The engine's memory, two blocks that are allocated for export: of the second it has taken the handle. */
typedef struct engine {
    VkDeviceMemory memory[2];
    HANDLE handle;
} engine;

static void make_engine(engine *e)
{
    const VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                               .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT};
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &export, .allocationSize = BYTES};
    const PFN_vkGetMemoryWin32HandleKHR get =
        (PFN_vkGetMemoryWin32HandleKHR)v.GetDeviceProcAddr(v.device, "vkGetMemoryWin32HandleKHR");
    VkMemoryGetWin32HandleInfoKHR ask = {.sType = VK_STRUCTURE_TYPE_MEMORY_GET_WIN32_HANDLE_INFO_KHR,
                                         .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32_BIT};

    for (int i = 0; i < 2; i++)
        assert_int_equal(v.AllocateMemory(v.device, &info, NULL, &e->memory[i]), VK_SUCCESS);
    ask.memory = e->memory[1];
    assert_int_equal(get(v.device, &ask, &e->handle), VK_SUCCESS);
}

static void drop_engine(engine *e)
{
    assert_true(CloseHandle(e->handle)); /* it stayed the engine's */
    for (int i = 0; i < 2; i++)
        v.FreeMemory(v.device, e->memory[i], NULL);
}

typedef struct frame {
    tandem_session *s;
    tandem_mem mem, lent, block[2];
    tandem_timeline engines, ours;
    tandem_info info;
} frame;

static tandem_status begin(frame *f, uint32_t rung)
{
    const tandem_vulkan vulkan = vku_engine(&v);
    tandem_status status;

    *f = (frame){.info = {.struct_bytes = sizeof f->info}};
    why[0] = 0;
    status = tandem_session_create(&TANDEM_INIT(tandem_session_desc, .backend = rung ? TANDEM_BACKEND_CUDA : TANDEM_BACKEND_AUTO,
                                                .rung = rung, .vulkan = &vulkan, .cpu_threads = 1,
                                                .error_text = why, .error_text_bytes = sizeof why),
                                   &f->s);
    return status == TANDEM_OK ? tandem_session_info(f->s, &f->info) : status;
}

static tandem_mem_desc lend(const engine *e)
{
    return TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_FD, .handle_type = TANDEM_HANDLE_WIN32, .bytes = 4096,
                       .allocation_bytes = BYTES, .win32_handle = e->handle);
}

static tandem_view view_of(const frame *f, uint64_t offset)
{
    return tandem_view_dense(f->mem, offset, TANDEM_DTYPE_F32, 1, ROWS, DIM);
}

/* All that a session shares, and a job from the engine's point to its own. */
static tandem_status use(frame *f, const engine *e)
{
    const tandem_mem_desc create = TANDEM_INIT(tandem_mem_desc, .bytes = 2 * VIEW_BYTES), lent = lend(e);
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION);
    VkSemaphore semaphore;
    tandem_ticket ticket;
    tandem_status status = tandem_mem_create(f->s, &create, &f->mem);

    if (status == TANDEM_OK && f->info.rung != TANDEM_RUNG_COPY)
        status = tandem_mem_create(f->s, &lent, &f->lent);
    for (int i = 0; i < 2 && status == TANDEM_OK; i++)
        status = tandem_mem_create(f->s,
                                   &TANDEM_INIT(tandem_mem_desc, .source = TANDEM_MEM_VULKAN, .bytes = 4096,
                                                .vulkan_memory = (uint64_t)e->memory[0], .allocation_bytes = BYTES,
                                                .offset_bytes = (uint64_t)i * 16384),
                                   &f->block[i]);
    if (status == TANDEM_OK)
        status = tandem_timeline_create(f->s, &TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_ENGINE), &f->engines);
    if (status == TANDEM_OK)
        status = tandem_timeline_create(f->s, &TANDEM_INIT(tandem_timeline_desc, .signaller = TANDEM_SIGNALLER_SESSION), &f->ours);
    if (status == TANDEM_OK)
        status = tandem_timeline_get_vulkan(f->s, f->engines, &semaphore);
    if (status != TANDEM_OK)
        return status;
    job.wait = (tandem_point){f->engines, 1};
    job.signal = (tandem_point){f->ours, 1};
    job.op.attention = fault_attention(TANDEM_DTYPE_F32, DIM, TANDEM_PRECISION_F16);
    job.op.attention.q = job.op.attention.k = job.op.attention.v = view_of(f, 0);
    job.op.attention.o = view_of(f, VIEW_BYTES);
    assert_int_equal(vku_submit(&v, VK_NULL_HANDLE, (vku_point){0}, (vku_point){semaphore, 1}, VK_NULL_HANDLE), VK_SUCCESS);
    status = tandem_submit(f->s, &job, &ticket);
    if (status == TANDEM_OK)
        status = tandem_wait(f->s, ticket, LONG_NS, &report);
    return status == TANDEM_OK ? report.status : status;
}

/* A session that failed ends as a whole: until its stream is drained, nobody knows what it uses. */
static void end(frame *f, tandem_status status)
{
    if (!f->s)
        return;
    tandem_error_text(f->s, why, sizeof why);
    for (int i = 0; i < 2 && status == TANDEM_OK; i++)
        if (f->block[i])
            assert_ok(tandem_mem_destroy(f->s, f->block[i]));
    assert_ok(tandem_session_destroy(&f->s)); /* with what is left in it */
}

/* Each rung that computes on the GPU, and what is shared on it. */
static void test_rungs(void **state)
{
    static const struct {
        uint32_t rung;
        unsigned memories, semaphores, gets; /* CREATE, FD and two parts of a block; two timelines; and the engine's handle */
    } wanted[] = {{TANDEM_RUNG_TIMELINE, 4, 2, 5}, {TANDEM_RUNG_HOST, 4, 0, 3}, {TANDEM_RUNG_COPY, 0, 0, 1}};
    engine e;
    frame f;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        setup(state);
        shim.no_semaphores = wanted[i].rung == TANDEM_RUNG_HOST;
        if (!open_engine())
            skip();
        make_engine(&e);
        assert_ok(begin(&f, wanted[i].rung == TANDEM_RUNG_COPY ? TANDEM_RUNG_COPY : 0));
        if (f.info.rung != wanted[i].rung)
            fail_msg("on rung %u, not %u: %s", f.info.rung, wanted[i].rung, f.info.rung_reason);
        assert_int_equal(f.info.backend, TANDEM_BACKEND_CUDA);
        if (shim.no_semaphores)
            assert_non_null(strstr(f.info.rung_reason, "VK_KHR_external_semaphore_win32 is not offered by the driver"));
        assert_ok(use(&f, &e));
        assert_int_equal(cuda->memories, wanted[i].memories);
        assert_int_equal(cuda->semaphores, wanted[i].semaphores);
        assert_int_equal(shim.gets, wanted[i].gets);
        end(&f, TANDEM_OK);
        drop_engine(&e);
        close_engine();
    }
}

/* A GPU of the same UUID on another adapter, or other nodes of it, is none of this engine's. */
static void test_adapters(void **state)
{
    frame f;

    (void)state;
    for (int i = 0; i < 2; i++) {
        cuda->driver->adapter = shim.adapter;
        if (i == 0)
            cuda->driver->adapter.luid[0] = 0x99;
        else
            cuda->driver->adapter.node_mask = 2;
        if (!open_engine())
            skip();
        assert_status(begin(&f, TANDEM_RUNG_TIMELINE), TANDEM_ERROR_UNSUPPORTED, "a session across adapters");
        assert_says("LUID 88776655-44332211, node mask 0x1");
        assert_says(i == 0 ? "LUID 88776655-44332299, node mask 0x1" : "LUID 88776655-44332211, node mask 0x2");
        assert_ok(begin(&f, 0)); /* the CPU will do */
        assert_int_equal(f.info.backend, TANDEM_BACKEND_CPU);
        assert_non_null(strstr(f.info.rung_reason, "LUID"));
        end(&f, TANDEM_OK);
        close_engine();
    }
    /* One that says nothing goes by its UUID alone. */
    cuda->driver->adapter = (td_adapter){0};
    if (!open_engine())
        skip();
    assert_ok(begin(&f, TANDEM_RUNG_TIMELINE));
    end(&f, TANDEM_OK);
    close_engine();
}

static void refuse(frame *f, tandem_mem_desc desc, tandem_status status, const char *text)
{
    tandem_mem mem;

    assert_int_equal(tandem_mem_create(f->s, &desc, &mem), status);
    tandem_error_text(f->s, why, sizeof why);
    assert_says(text);
}

static void test_refused(void **state)
{
    tandem_mem_desc desc;
    engine e;
    frame f;

    (void)state;
    if (!open_engine())
        skip();
    make_engine(&e);
    assert_ok(begin(&f, TANDEM_RUNG_TIMELINE));
#define REFUSE(status, text, ...) (desc = lend(&e), __VA_ARGS__, refuse(&f, desc, TANDEM_ERROR_##status, text))
    REFUSE(UNSUPPORTED, "desc.handle_type is 0 (OPAQUE_FD): this system has Windows' handles", desc.handle_type = 0);
    REFUSE(ARG, "desc.handle_type is 3;", desc.handle_type = 3);
    REFUSE(ARG, "desc.win32_handle is 0x0:", desc.win32_handle = NULL);
    REFUSE(ARG, "desc.win32_handle is 0xffffffffffffffff:", desc.win32_handle = INVALID_HANDLE_VALUE);
    REFUSE(ARG, "desc.win32_handle is 0x100000004:", desc.win32_handle = (void *)0x100000004);
    REFUSE(ARG, "desc.win32_handle is 0x7ffffff0:", desc.win32_handle = (void *)0x7ffffff0);
    REFUSE(ARG, "desc.allocation_bytes is 131072, but desc.win32_handle", desc.allocation_bytes = 2 * BYTES);
    REFUSE(UNSUPPORTED, "desc.handle_type is 1 (DMA_BUF)", (desc.handle_type = 1, desc.fd = (int)(intptr_t)e.handle));
    assert_int_equal(cuda->memories, 0);
    end(&f, TANDEM_OK);
    drop_engine(&e);
    close_engine();
}

/* Each call on the way fails once. What was made before is given back, each handle once, and the engine's stays. */
static void fail_each(uint32_t rung, bool of_cuda)
{
    unsigned n, failures = 0;
    engine e;
    frame f;

    shim.no_semaphores = rung == TANDEM_RUNG_HOST;
    if (!open_engine())
        skip();
    for (n = 1;; n++) {
        tandem_status status;
        const char *failed;

        make_engine(&e);
        cuda->calls = shim.calls = 0;
        cuda->failed = shim.failed = NULL;
        *(of_cuda ? &cuda->fails : &shim.fails) = n;
        status = begin(&f, rung);
        if (status == TANDEM_OK)
            status = use(&f, &e);
        end(&f, status);
        failed = of_cuda ? cuda->failed : shim.failed;
        cuda->fails = shim.fails = 0;
        failures += status != TANDEM_OK;
        drop_engine(&e);
        assert_int_equal(shim_open_handles(), 0);
        assert_int_equal(cuda->driver->live, 0);
        assert_int_equal(shim.live, 0);
        if (!failed)
            break;
        if (!strncmp(failed, "vk", 2) || !strcmp(failed, "DuplicateHandle") || !strncmp(failed, "cuImport", 8))
            if (status == TANDEM_OK)
                fail_msg("%s failed, and nobody has said so", failed);
    }
    printf("rung %u, %s: %u calls failed one by one, %u frames with them\n", rung, of_cuda ? "CUDA" : "Vulkan and the system", n - 1,
           failures);
    assert_true(n > 10 && failures > 5);
    close_engine();
}

static void test_failures_of_cuda(void **state)
{
    fail_each(TANDEM_RUNG_TIMELINE, true);
    setup(state);
    fail_each(TANDEM_RUNG_HOST, true);
}

static void test_failures_of_vulkan(void **state)
{
    fail_each(TANDEM_RUNG_TIMELINE, false);
    setup(state);
    fail_each(TANDEM_RUNG_HOST, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_words, setup),
        cmocka_unit_test_setup(test_requirements, setup),
        cmocka_unit_test_setup(test_memory, setup),
        cmocka_unit_test_setup(test_timelines, setup),
        cmocka_unit_test_setup(test_rungs, setup),
        cmocka_unit_test_setup(test_adapters, setup),
        cmocka_unit_test_setup(test_refused, setup),
        cmocka_unit_test_setup(test_failures_of_cuda, setup),
        cmocka_unit_test_setup(test_failures_of_vulkan, setup),
    };
    td_library *library;

    if (td_library_open(td_library_cuda, &library, why, sizeof why) != TANDEM_OK ||
        !(cuda = td_library_symbol(library, "nvcuda_of_tests"))) {
        printf("nvcuda.dll: %s\n", why);
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
