/* The Vulkan side: requirements, memory, timelines, barriers, pack and unpack, all under the validation layer.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * TANDEM_EXPECT_GPU=1: memory and timelines must be exportable. TANDEM_EXPECT_VALIDATION=1: the layer must be there.
 */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <fcntl.h>

#include <cmocka.h>

#include "tests/vk_util.h"

#define STORAGE                                                                                                        \
    (VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT)
#define SHADER VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT
#define READ_WRITE (VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT)

static vku gpu;
static td_vk *vk;
static const td_vk_caps *caps;
static char why[512];

static bool asked(const char *variable)
{
    const char *value = getenv(variable);

    return value && *value && strcmp(value, "0") != 0;
}

#define assert_ok(call)                                                                                                \
    do {                                                                                                               \
        tandem_status ok_status = (call);                                                                              \
        if (ok_status != TANDEM_OK)                                                                                    \
            fail_msg("%s: %d %s", #call, (int)ok_status, why);                                                         \
    } while (0)
#define assert_vk(call) assert_int_equal(call, VK_SUCCESS)

/* The call must answer `status` and name `word` in its text. */
#define assert_fails(call, status, word)                                                                               \
    do {                                                                                                               \
        why[0] = 0;                                                                                                    \
        assert_int_equal(call, status);                                                                                \
        if (!strstr(why, word))                                                                                        \
            fail_msg("\"%s\" does not name %s", why, word);                                                            \
    } while (0)

/* A device whose functions fail on demand. */

static struct {
    const char *fails, *hidden; /* one Vulkan function each, or NULL */
    VkResult result;
    PFN_vkGetDeviceProcAddr real;
} fault;

static VkResult fail_now(void)
{
    return fault.result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fault_device(VkDevice device, const char *name)
{
    if (fault.hidden && strcmp(name, fault.hidden) == 0)
        return NULL;
    /* Every function that is made to fail returns a VkResult; its arguments are not looked at. */
    if (fault.fails && strcmp(name, fault.fails) == 0)
        return (PFN_vkVoidFunction)fail_now;
    return fault.real(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL fault_instance(VkInstance instance, const char *name)
{
    if (fault.hidden && strcmp(name, fault.hidden) == 0)
        return NULL;
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        fault.real = (PFN_vkGetDeviceProcAddr)gpu.gipa(instance, name);
        return (PFN_vkVoidFunction)fault_device;
    }
    return gpu.gipa(instance, name);
}

static td_vk *open_faulty(const char *fails, VkResult result)
{
    td_vk_desc desc = vku_desc(&gpu);
    td_vk *faulty = NULL;

    fault.fails = fails;
    fault.hidden = NULL;
    fault.result = result;
    desc.get_instance_proc_addr = fault_instance;
    assert_ok(td_vk_open(&desc, NULL, &faulty, why, sizeof why));
    return faulty;
}

/* Requirements */

static void test_requirements(void **state)
{
    td_vk_requirement before[8], list[16], one[1];
    uint32_t count, all;
    bool feature = false;

    (void)state;
    assert_int_equal(td_vk_requirements(NULL, NULL, NULL, 8, before), 0);
    assert_int_equal(td_vk_requirements(gpu.gipa, NULL, NULL, 8, NULL), 0);
    count = td_vk_requirements(gpu.gipa, NULL, NULL, 8, before);
    assert_in_range(count, 1, 8);
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(before[i].kind, 0);
    /* Without a physical device there is no more to say, and no crash. */
    assert_int_equal(td_vk_requirements(gpu.gipa, gpu.instance, NULL, 8, before), count);
    all = td_vk_requirements(gpu.gipa, gpu.instance, gpu.physical_device, 0, NULL);
    assert_true(all > count && all <= 16);
    memset(one, 0, sizeof one);
    assert_int_equal(td_vk_requirements(gpu.gipa, gpu.instance, gpu.physical_device, 1, one), all);
    assert_string_equal(one[0].name, before[0].name);
    assert_int_equal(td_vk_requirements(gpu.gipa, gpu.instance, gpu.physical_device, 16, list), all);
    for (uint32_t i = 0; i < all; i++) {
        assert_non_null(list[i].name);
        assert_true(list[i].buys && strlen(list[i].buys) > 10);
        assert_true(list[i].kind <= 2);
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(list[i].name, list[j].name);
        if (list[i].kind == 2) {
            if (strcmp(list[i].name, "bufferDeviceAddress") == 0) {
                assert_false(list[i].required);
                assert_int_equal(list[i].feature_struct,
                                 VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES);
                assert_int_equal(list[i].feature_offset,
                                 offsetof(VkPhysicalDeviceBufferDeviceAddressFeatures, bufferDeviceAddress));
                continue;
            }
            feature = true;
            assert_string_equal(list[i].name, "timelineSemaphore");
            assert_true(!list[i].required && list[i].available);
            assert_int_equal(list[i].feature_struct, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES);
            assert_int_equal(list[i].feature_offset,
                             offsetof(VkPhysicalDeviceTimelineSemaphoreFeatures, timelineSemaphore));
        }
    }
    assert_true(feature);
}

/* Opening */

static void test_open_refuses(void **state)
{
    const char *holes[] = {"VK_KHR_external_memory_fd", NULL};
    td_vk_desc good = vku_desc(&gpu), bad;
    td_vk *out = (td_vk *)&good;

    (void)state;
    assert_fails(td_vk_open(NULL, NULL, &out, why, sizeof why), TANDEM_ERROR_ARG, "desc");
    assert_null(out);
    assert_fails(td_vk_open(&good, NULL, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_int_equal(td_vk_open(NULL, NULL, &out, NULL, 0), TANDEM_ERROR_ARG);
#define REFUSES(change, status, word)                                                                                  \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change;                                                                                                        \
        assert_fails(td_vk_open(&bad, NULL, &out, why, sizeof why), status, word);                                     \
        assert_null(out);                                                                                              \
    } while (0)
    REFUSES(bad.get_instance_proc_addr = NULL, TANDEM_ERROR_ARG, "get_instance_proc_addr");
    REFUSES(bad.instance = VK_NULL_HANDLE, TANDEM_ERROR_ARG, "instance");
    REFUSES(bad.physical_device = VK_NULL_HANDLE, TANDEM_ERROR_ARG, "physical_device");
    REFUSES(bad.device = VK_NULL_HANDLE, TANDEM_ERROR_ARG, "device");
    REFUSES(bad.queue_family = 77, TANDEM_ERROR_ARG, "77");
    REFUSES(bad.enabled_extensions = NULL, TANDEM_ERROR_ARG, "enabled_extensions");
    REFUSES((bad.enabled_extensions = holes, bad.enabled_extension_count = 2), TANDEM_ERROR_ARG,
            "enabled_extensions[1]");
    REFUSES(bad.enabled_features = (const VkPhysicalDeviceFeatures2 *)&gpu.timeline, TANDEM_ERROR_ARG, "sType");
    REFUSES(bad.api_version = 0, TANDEM_ERROR_UNSUPPORTED, "api_version");
    REFUSES(bad.api_version = VK_API_VERSION_1_0, TANDEM_ERROR_UNSUPPORTED, "1.0");
    fault.fails = NULL;
    fault.hidden = "vkCmdDispatch";
    REFUSES(bad.get_instance_proc_addr = fault_instance, TANDEM_ERROR_UNSUPPORTED, "vkCmdDispatch");
    fault.hidden = "vkWaitSemaphores";
    REFUSES(bad.get_instance_proc_addr = fault_instance, TANDEM_ERROR_UNSUPPORTED, "vkWaitSemaphores");
    fault.hidden = "vkGetPhysicalDeviceProperties2";
    REFUSES(bad.get_instance_proc_addr = fault_instance, TANDEM_ERROR_UNSUPPORTED, "vkGetPhysicalDeviceProperties2");
    fault.hidden = NULL;
}

static void test_open_says_what_is_missing(void **state)
{
    VkPhysicalDeviceVulkan12Features features12 = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
                                                   .timelineSemaphore = VK_TRUE};
    VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &features12};
    td_vk_desc desc = vku_desc(&gpu);
    td_vk *out = NULL;
    td_vk_mem mem;
    VkSemaphore semaphore;
    uint64_t a, b;

    (void)state;
    desc.enabled_extension_count = 0;
    desc.enabled_extensions = NULL;
    desc.enabled_features = &features; /* as another engine would have said it */
    assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
    assert_false(td_vk_get_caps(out)->export_memory);
    assert_false(td_vk_get_caps(out)->export_timeline);
    assert_false(td_vk_get_caps(out)->import_host);
    assert_false(td_vk_get_caps(out)->push_descriptor);
    assert_false(td_vk_get_caps(out)->calibrated);
    assert_non_null(strstr(td_vk_get_caps(out)->missing, "VK_KHR_external_memory_fd"));
    assert_non_null(strstr(td_vk_get_caps(out)->missing, "VK_KHR_external_semaphore_fd"));
    assert_fails(td_vk_mem_create_export(out, 4096, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_KHR_external_memory_fd");
    assert_fails(td_vk_mem_create_host(out, 4096, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_EXT_external_memory_host");
    assert_fails(td_vk_timeline_create(out, 0, true, &semaphore, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_KHR_external_semaphore_fd");
    assert_int_equal(td_vk_calibrate(out, &a, &b), TANDEM_ERROR_UNSUPPORTED);
    td_vk_close(&out);
    assert_null(out);

    desc.enabled_features = NULL;
    assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
    td_vk_close(&out);

    /* An extension that was enabled and whose function is not there is as good as not enabled. */
    desc = vku_desc(&gpu);
    desc.get_instance_proc_addr = fault_instance;
    fault.hidden = "vkGetMemoryFdKHR";
    assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
    assert_false(td_vk_get_caps(out)->export_memory);
    td_vk_close(&out);
    fault.hidden = NULL;
}

/* Without the feature, or the extension that it takes below 1.2, there are no timelines, and all the rest. */
static void test_open_without_timelines(void **state)
{
    const VkPhysicalDeviceFeatures2 off = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
    td_vk_desc desc;
    VkSemaphore semaphore;
    td_vk *out;

    (void)state;
    for (int i = 0; i < 2; i++) {
        desc = vku_desc(&gpu);
        if (i)
            desc.api_version = VK_API_VERSION_1_1;
        else
            desc.enabled_features = &off;
        assert_ok(td_vk_open(&desc, NULL, &out, why, sizeof why));
        assert_false(td_vk_get_caps(out)->timeline || td_vk_get_caps(out)->export_timeline);
        assert_true(td_vk_get_caps(out)->export_memory == caps->export_memory);
        assert_non_null(strstr(td_vk_get_caps(out)->missing, "timelineSemaphore"));
        assert_fails(td_vk_timeline_create(out, 0, false, &semaphore, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     "timelineSemaphore");
        td_vk_close(&out);
    }
}

static void keep_line(void *user, int level, const char *text)
{
    (void)level;
    snprintf(user, 512, "%s", text);
}

static void test_log(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    char line[512] = "";
    td_log log = {keep_line, line};
    td_vk *out;

    (void)state;
    assert_ok(td_vk_open(&desc, &log, &out, why, sizeof why));
    assert_non_null(strstr(line, caps->name));
    assert_non_null(strstr(line, caps->missing));
    td_vk_close(&out);
}

static unsigned ends;

static bool over(td_vk_left *left)
{
    (void)left;
    ends++;
    return true;
}

static bool hangs(td_vk_left *left)
{
    (void)left;
    ends++;
    return false;
}

static void test_left_behind(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    td_vk_left first = {.end = over}, second = {.end = hangs}, third = {.end = over};
    char line[512] = "";
    td_log log = {keep_line, line};
    td_vk *out;

    (void)state;
    assert_ok(td_vk_open(&desc, &log, &out, why, sizeof why));
    td_vk_leave(out, &first);
    td_vk_leave(out, &second);
    td_vk_leave(out, &third);
    ends = 0;
    line[0] = 0;
    td_vk_close(&out);
    assert_int_equal(ends, 3);
    assert_non_null(strstr(line, "never freed"));
}

static void test_caps(void **state)
{
    (void)state;
    print_message("%s: memory fd %d, timeline fd %d, host import %d, push descriptors %d, calibrated %d, labels %d; "
                  "missing: %s\n",
                  caps->name, caps->export_memory, caps->export_timeline, caps->import_host, caps->push_descriptor,
                  caps->calibrated, caps->debug_utils, caps->missing);
    assert_string_equal(caps->name, gpu.name);
    assert_int_equal(caps->export_memory && caps->export_timeline, caps->missing[0] == 0);
    assert_true(caps->max_storage_range >= 1 << 27);
    assert_true(caps->timestamp_period > 0);
    if (caps->import_host)
        assert_true(caps->host_alignment >= 4096 && (caps->host_alignment & (caps->host_alignment - 1)) == 0);
    if (gpu.validated)
        assert_true(caps->debug_utils);
    if (asked("TANDEM_EXPECT_GPU")) {
        assert_true(caps->export_memory);
        assert_true(caps->export_timeline);
        assert_true(caps->import_host);
        assert_true(caps->push_descriptor);
    }
}

static void test_vulkan_1_1(void **state)
{
    vku_options options = {.validation = true, .api_version = VK_API_VERSION_1_1};
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .width = 2,
                       .height = 2,
                       .tile_width = 2,
                       .tile_height = 2,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 1,
                       .tiles_y = 1,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_row = 4};
    const float texels[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    VkSemaphore semaphore;
    VkCommandBuffer commands;
    vku_image image;
    uint64_t value;
    td_vk_mem mem;
    td_vk_desc desc;
    td_vk *old;
    vku v;

    (void)state;
    assert_int_equal(vku_open(&v, &options), VKU_OK);
    desc = vku_desc(&v);
    assert_ok(td_vk_open(&desc, NULL, &old, why, sizeof why));
    assert_ok(td_vk_timeline_create(old, 3, false, &semaphore, why, sizeof why));
    assert_ok(td_vk_timeline_signal(old, semaphore, 4));
    assert_ok(td_vk_timeline_wait(old, semaphore, 4, 0));
    assert_ok(td_vk_timeline_value(old, semaphore, &value));
    assert_int_equal(value, 4);
    td_vk_timeline_destroy(old, &semaphore);
    assert_vk(vku_image_create(&v, VK_FORMAT_R32G32B32A32_SFLOAT, 2, 2, VK_IMAGE_USAGE_SAMPLED_BIT, &image));
    assert_vk(vku_image_upload(&v, &image, texels, VK_IMAGE_LAYOUT_GENERAL));
    assert_ok(td_vk_mem_create_host(old, sizeof texels, STORAGE, &mem, why, sizeof why));
    pack.images[0] = image.view;
    commands = vku_begin(&v);
    assert_ok(td_vk_record_pack(old, commands, &mem, &pack, why, sizeof why));
    td_vk_record_release(old, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&v, commands));
    assert_memory_equal(mem.host, texels, sizeof texels);
    td_vk_mem_free(old, &mem);
    vku_image_destroy(&v, &image);
    td_vk_close(&old);
    vku_close(&v);
    assert_int_equal(v.errors, 0);
}

/* Memory */

/* Bytes travel mem -> staging and staging -> mem by the device, with the barriers that a session records. */
static void check_round_trip(td_vk_mem *mem, bool external)
{
    uint32_t words = (uint32_t)(mem->bytes / 4);
    VkBufferCopy copy = {.size = words * 4ull};
    VkCommandBuffer commands;
    vku_buffer staging;
    uint32_t *out;

    assert_vk(vku_buffer_create(&gpu, copy.size, VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
                                &staging));
    out = staging.host;
    for (uint32_t i = 0; i < words; i++)
        out[i] = i * 2654435761u + 17;
    commands = vku_begin(&gpu);
    gpu.CmdCopyBuffer(commands, staging.buffer, mem->buffer, 1, &copy);
    td_vk_record_release(vk, commands, mem, external, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    if (mem->host) {
        uint32_t *host = mem->host;

        for (uint32_t i = 0; i < words; i++)
            assert_int_equal(host[i], i * 2654435761u + 17);
        for (uint32_t i = 0; i < words; i++)
            host[i] = ~host[i];
    }
    memset(out, 0, copy.size);
    commands = vku_begin(&gpu);
    td_vk_record_acquire(vk, commands, mem, external, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
    gpu.CmdCopyBuffer(commands, mem->buffer, staging.buffer, 1, &copy);
    vku_full_barrier(&gpu, commands);
    assert_vk(vku_run(&gpu, commands));
    for (uint32_t i = 0; i < words; i++)
        assert_int_equal(out[i], mem->host ? ~(i * 2654435761u + 17) : i * 2654435761u + 17);
    vku_buffer_destroy(&gpu, &staging);
}

static void test_host_memory(void **state)
{
    const uint64_t sizes[] = {4, 4096, 4100, 1 << 20};
    struct stat stat;
    td_vk_mem mem;

    (void)state;
    if (!caps->import_host)
        skip();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *second;

        assert_ok(td_vk_mem_create_host(vk, sizes[i], STORAGE, &mem, why, sizeof why));
        assert_int_equal(mem.bytes, sizes[i]);
        assert_true(mem.owned && mem.host && mem.memfd > 2 && mem.offset == 0);
        assert_true(mem.allocation_bytes >= sizes[i] && mem.allocation_bytes % caps->host_alignment == 0);
        check_round_trip(&mem, false);
        /* Nobody can cut the file under us, the creator included. */
        assert_int_equal(fstat(mem.memfd, &stat), 0);
        assert_int_equal(stat.st_size, mem.allocation_bytes);
        assert_true(ftruncate(mem.memfd, 0) < 0);
        assert_true(ftruncate(mem.memfd, (off_t)mem.allocation_bytes + 4096) < 0);
        assert_int_equal(fcntl(mem.memfd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        /* Another mapping of the fd, as another process would make it, shows the same bytes. */
        second = mmap(NULL, mem.allocation_bytes, PROT_READ, MAP_SHARED, mem.memfd, 0);
        assert_ptr_not_equal(second, MAP_FAILED);
        assert_memory_equal(second, mem.host, mem.bytes);
        munmap(second, mem.allocation_bytes);
        td_vk_mem_free(vk, &mem);
        assert_true(!mem.buffer && !mem.memory && !mem.host);
    }
}

static void test_import_host(void **state)
{
    uint64_t page, bytes;
    unsigned char *block;
    td_vk_mem mem;
    int fd;

    (void)state;
    if (!caps->import_host)
        skip();
    page = caps->host_alignment;
    bytes = 16 * page;
    block = aligned_alloc(page, bytes + page);
    assert_non_null(block);
    memset(block, 0x5a, bytes + page);
    assert_ok(td_vk_mem_import_host(vk, block, bytes, STORAGE, &mem, why, sizeof why));
    assert_ptr_equal(mem.host, block);
    check_round_trip(&mem, false);
    assert_fails(td_vk_mem_export_fd(vk, &mem, &fd, why, sizeof why), TANDEM_ERROR_ARG, "OPAQUE_FD");
    td_vk_mem_free(vk, &mem);
    assert_int_equal(block[bytes], 0x5a);
    block[0] = 1; /* still ours */

    memset(&mem, 0x77, sizeof mem);
    assert_fails(td_vk_mem_import_host(vk, NULL, bytes, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "host");
    assert_fails(td_vk_mem_import_host(vk, block + 64, bytes, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG,
                 "host");
    assert_fails(td_vk_mem_import_host(vk, block, bytes - 4, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG,
                 "bytes");
    assert_fails(td_vk_mem_import_host(vk, block, 0, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_import_host(vk, block, bytes, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG, "usage");
    assert_fails(td_vk_mem_import_host(vk, block, bytes, STORAGE, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_import_host(NULL, block, bytes, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_int_equal(((unsigned char *)&mem)[0], 0x77); /* untouched on failure */
    free(block);
}

static void test_exported_memory(void **state)
{
    td_vk_mem mem, view;
    struct stat stat;
    int fds[2];

    (void)state;
    if (!caps->export_memory)
        skip();
    assert_ok(td_vk_mem_create_export(vk, 1 << 20, STORAGE, &mem, why, sizeof why));
    assert_true(mem.owned && mem.memory && mem.allocation_bytes >= mem.bytes && mem.offset == 0 && mem.memfd <= 0);
    check_round_trip(&mem, true);
    for (int i = 0; i < 2; i++) {
        assert_ok(td_vk_mem_export_fd(vk, &mem, &fds[i], why, sizeof why));
        assert_int_equal(fstat(fds[i], &stat), 0);
    }
    assert_int_not_equal(fds[0], fds[1]);
    close(fds[0]);

    /* The other fd is imported again: the same bytes, through another VkDeviceMemory. */
    {
        VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                     .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
        VkBufferCreateInfo info = {
            .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &external, .size = mem.bytes, .usage = STORAGE};
        VkMemoryDedicatedAllocateInfo dedicated = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO};
        VkImportMemoryFdInfoKHR import = {.sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
                                          .pNext = mem.dedicated ? &dedicated : NULL,
                                          .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
                                          .fd = fds[1]};
        VkMemoryAllocateInfo allocate = {
            .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &import, .allocationSize = mem.allocation_bytes};
        VkMemoryRequirements needs;

        view = (td_vk_mem){.bytes = mem.bytes, .allocation_bytes = mem.allocation_bytes, .owned = true};
        assert_vk(gpu.CreateBuffer(gpu.device, &info, NULL, &view.buffer));
        dedicated.buffer = view.buffer;
        gpu.GetBufferMemoryRequirements(gpu.device, view.buffer, &needs);
        for (uint32_t i = 0; i < gpu.memory.memoryTypeCount; i++)
            if ((needs.memoryTypeBits >> i & 1) &&
                (gpu.memory.memoryTypes[i].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)) {
                allocate.memoryTypeIndex = i;
                break;
            }
        assert_vk(gpu.AllocateMemory(gpu.device, &allocate, NULL, &view.memory)); /* and Vulkan owns the fd */
        assert_vk(gpu.BindBufferMemory(gpu.device, view.buffer, view.memory, 0));
    }
    {
        VkCommandBuffer commands = vku_begin(&gpu);
        VkBufferCopy copy = {.size = mem.bytes};
        vku_buffer staging;

        assert_vk(vku_buffer_create(&gpu, mem.bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging));
        gpu.CmdFillBuffer(commands, mem.buffer, 0, VK_WHOLE_SIZE, 0xfeedbeef);
        td_vk_record_release(vk, commands, &mem, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT);
        assert_vk(vku_run(&gpu, commands));
        commands = vku_begin(&gpu);
        td_vk_record_acquire(vk, commands, &view, true, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        gpu.CmdCopyBuffer(commands, view.buffer, staging.buffer, 1, &copy);
        vku_full_barrier(&gpu, commands);
        assert_vk(vku_run(&gpu, commands));
        for (uint32_t i = 0; i < mem.bytes / 4; i++)
            assert_int_equal(((uint32_t *)staging.host)[i], 0xfeedbeef);
        vku_buffer_destroy(&gpu, &staging);
    }
    td_vk_mem_free(vk, &view);
    td_vk_mem_free(vk, &mem);
}

/* Memory as an engine allocates it: exportable, and not for one buffer alone. */
static VkDeviceMemory engine_memory(uint64_t bytes)
{
    VkExternalMemoryBufferCreateInfo external = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                 .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkBufferCreateInfo buffer_info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .pNext = &external, .size = bytes, .usage = STORAGE};
    VkExportMemoryAllocateInfo export = {.sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                         .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT};
    VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .pNext = &export, .allocationSize = bytes};
    VkMemoryRequirements needs;
    VkDeviceMemory memory;
    VkBuffer buffer;

    assert_vk(gpu.CreateBuffer(gpu.device, &buffer_info, NULL, &buffer));
    gpu.GetBufferMemoryRequirements(gpu.device, buffer, &needs);
    gpu.DestroyBuffer(gpu.device, buffer, NULL);
    while (!(needs.memoryTypeBits >> info.memoryTypeIndex & 1))
        info.memoryTypeIndex++;
    assert_vk(gpu.AllocateMemory(gpu.device, &info, NULL, &memory));
    return memory;
}

static void test_wrapped_memory(void **state)
{
    const uint64_t part = 65536, all = 4 * part;
    VkDeviceMemory memory;
    td_vk_mem first, second;

    (void)state;
    if (!caps->export_memory)
        skip();
    memory = engine_memory(all);
    assert_ok(td_vk_mem_wrap(vk, memory, all, 0, part, false, &first, why, sizeof why));
    assert_ok(td_vk_mem_wrap(vk, memory, all, 2 * part, 2 * part, false, &second, why, sizeof why));
    assert_true(second.buffer && second.memory == memory && !second.owned && second.offset == 2 * part);
    check_round_trip(&first, true);
    check_round_trip(&second, true);
    td_vk_mem_free(vk, &second);
    check_round_trip(&first, true); /* the engine's memory outlives a wrapping */
    td_vk_mem_free(vk, &first);
    /* No other buffer may be bound to dedicated memory: there is none. */
    assert_ok(td_vk_mem_wrap(vk, memory, all, 0, all, true, &first, why, sizeof why));
    assert_true(first.buffer == VK_NULL_HANDLE && first.memory == memory && !first.owned && first.dedicated);
    td_vk_mem_free(vk, &first);

    assert_fails(td_vk_mem_wrap(vk, memory, all, 1, part, false, &first, why, sizeof why), TANDEM_ERROR_ARG, "offset");
    assert_fails(td_vk_mem_wrap(vk, VK_NULL_HANDLE, all, 0, all, false, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "memory");
    assert_fails(td_vk_mem_wrap(vk, memory, all, all, 4, false, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "allocation_bytes");
    assert_fails(td_vk_mem_wrap(vk, memory, all, UINT64_MAX - 3, 4, false, &first, why, sizeof why), TANDEM_ERROR_ARG,
                 "offset");
    assert_fails(td_vk_mem_wrap(vk, memory, all, 0, 0, false, &first, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_wrap(vk, memory, all, 0, 4, false, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_wrap(NULL, memory, all, 0, 4, false, &first, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    gpu.FreeMemory(gpu.device, memory, NULL);
}

static void test_memory_refuses(void **state)
{
    const uint64_t huge[] = {1ull << 50, UINT64_MAX, UINT64_MAX - 4095, (uint64_t)INT64_MAX + 1};
    int fds = vku_open_fds(), zero = fcntl(0, F_GETFD), fd = 5;
    td_vk_mem mem = {0};

    (void)state;
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        char number[32];

        snprintf(number, sizeof number, "%llu", (unsigned long long)huge[i]);
        if (caps->export_memory)
            assert_fails(td_vk_mem_create_export(vk, huge[i], STORAGE, &mem, why, sizeof why), TANDEM_ERROR_NOMEM,
                         number);
        if (caps->import_host)
            assert_fails(td_vk_mem_create_host(vk, huge[i], STORAGE, &mem, why, sizeof why), TANDEM_ERROR_NOMEM,
                         number);
    }
    assert_fails(td_vk_mem_create_export(NULL, 64, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_fails(td_vk_mem_create_export(vk, 0, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_create_export(vk, 64, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG, "usage");
    assert_fails(td_vk_mem_create_export(vk, 64, STORAGE, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_create_host(NULL, 64, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_fails(td_vk_mem_create_host(vk, 0, STORAGE, &mem, why, sizeof why), TANDEM_ERROR_ARG, "bytes");
    assert_fails(td_vk_mem_create_host(vk, 64, 0, &mem, why, sizeof why), TANDEM_ERROR_ARG, "usage");
    assert_fails(td_vk_mem_create_host(vk, 64, STORAGE, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_mem_export_fd(vk, &mem, NULL, why, sizeof why), TANDEM_ERROR_ARG, "fd");
    assert_fails(td_vk_mem_export_fd(vk, &mem, &fd, why, sizeof why), TANDEM_ERROR_ARG, "mem");
    assert_int_equal(fd, -1);
    assert_fails(td_vk_mem_export_fd(vk, NULL, &fd, why, sizeof why), TANDEM_ERROR_ARG, "mem");
    assert_fails(td_vk_mem_export_fd(NULL, &mem, &fd, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    /* Text may be left out. */
    assert_int_equal(td_vk_mem_create_host(vk, 0, STORAGE, &mem, NULL, 0), TANDEM_ERROR_ARG);
    /* Zeroed and half-made mems; 0 is not taken for a file. */
    td_vk_mem_free(vk, NULL);
    td_vk_mem_free(vk, &mem);
    td_vk_mem_free(NULL, &mem);
    td_vk_mem_free(vk, &mem);
    fd = memfd_create("half", MFD_CLOEXEC);
    mem = (td_vk_mem){.memfd = td_fd_dup(fd), .owned = true, .allocation_bytes = 4096};
    close(fd);
    td_vk_mem_free(vk, &mem);
    assert_int_equal(vku_open_fds(), fds);
    assert_int_equal(fcntl(0, F_GETFD), zero);
}

/* Timelines */

static void test_timeline_on_the_host(void **state)
{
    VkSemaphore semaphore = VK_NULL_HANDLE;
    uint64_t value = 0, before;

    (void)state;
    assert_ok(td_vk_timeline_create(vk, 41, false, &semaphore, why, sizeof why));
    td_vk_name(vk, VK_OBJECT_TYPE_SEMAPHORE, (uint64_t)semaphore, "host timeline");
    assert_ok(td_vk_timeline_value(vk, semaphore, &value));
    assert_int_equal(value, 41);
    assert_ok(td_vk_timeline_wait(vk, semaphore, 41, 0));
    assert_int_equal(td_vk_timeline_wait(vk, semaphore, 42, 0), TANDEM_ERROR_BUSY);
    before = td_now_ns();
    assert_int_equal(td_vk_timeline_wait(vk, semaphore, 42, 50000000), TANDEM_ERROR_BUSY);
    assert_in_range(td_now_ns() - before, 45000000, 5000000000);
    assert_ok(td_vk_timeline_signal(vk, semaphore, 45));
    assert_ok(td_vk_timeline_wait(vk, semaphore, 42, VKU_TIMEOUT_NS));
    assert_ok(td_vk_timeline_value(vk, semaphore, &value));
    assert_int_equal(value, 45);
    /* It only rises, and not by more than the device can tell apart. */
    assert_int_equal(td_vk_timeline_signal(vk, semaphore, 45), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_signal(vk, semaphore, 1), TANDEM_ERROR_ARG);
    td_vk_timeline_destroy(vk, &semaphore);
    assert_true(semaphore == VK_NULL_HANDLE);

    td_vk_timeline_destroy(vk, &semaphore);
    td_vk_timeline_destroy(vk, NULL);
    td_vk_timeline_destroy(NULL, &semaphore);
    assert_int_equal(td_vk_timeline_value(vk, VK_NULL_HANDLE, &value), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_value(NULL, VK_NULL_HANDLE, NULL), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_signal(vk, VK_NULL_HANDLE, 1), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_wait(vk, VK_NULL_HANDLE, 1, 0), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_timeline_wait(NULL, VK_NULL_HANDLE, 1, 0), TANDEM_ERROR_ARG);
    assert_fails(td_vk_timeline_create(vk, 0, false, NULL, why, sizeof why), TANDEM_ERROR_ARG, "out");
    assert_fails(td_vk_timeline_create(NULL, 0, false, &semaphore, why, sizeof why), TANDEM_ERROR_ARG, "vk");
}

static void test_timeline_wait_before_signal(void **state)
{
    VkSemaphore to_queue, from_queue;
    vku_point wait, signal;
    uint64_t value;

    (void)state;
    assert_ok(td_vk_timeline_create(vk, 0, false, &to_queue, why, sizeof why));
    assert_ok(td_vk_timeline_create(vk, 0, false, &from_queue, why, sizeof why));
    for (uint64_t frame = 1; frame <= 5; frame++) {
        wait = (vku_point){to_queue, frame};
        signal = (vku_point){from_queue, frame};
        assert_vk(vku_submit(&gpu, VK_NULL_HANDLE, wait, signal, VK_NULL_HANDLE));
        assert_int_equal(td_vk_timeline_wait(vk, from_queue, frame, 2000000), TANDEM_ERROR_BUSY);
        assert_ok(td_vk_timeline_value(vk, from_queue, &value));
        assert_int_equal(value, frame - 1);
        assert_ok(td_vk_timeline_signal(vk, to_queue, frame));
        assert_ok(td_vk_timeline_wait(vk, from_queue, frame, VKU_TIMEOUT_NS));
    }
    assert_vk(gpu.DeviceWaitIdle(gpu.device));
    td_vk_timeline_destroy(vk, &to_queue);
    td_vk_timeline_destroy(vk, &from_queue);
}

static void test_exported_timeline(void **state)
{
    PFN_vkImportSemaphoreFdKHR import_fd;
    VkSemaphore semaphore, second;
    VkImportSemaphoreFdInfoKHR import = {.sType = VK_STRUCTURE_TYPE_IMPORT_SEMAPHORE_FD_INFO_KHR,
                                         .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT};
    uint64_t value;
    int fd = 5;

    (void)state;
    if (!caps->export_timeline) {
        assert_fails(td_vk_timeline_create(vk, 0, true, &semaphore, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     "VK_KHR_external_semaphore_fd");
        assert_ok(td_vk_timeline_create(vk, 0, false, &semaphore, why, sizeof why));
        assert_fails(td_vk_timeline_export_fd(vk, semaphore, &fd, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     "VK_KHR_external_semaphore_fd");
        assert_int_equal(fd, -1);
        td_vk_timeline_destroy(vk, &semaphore);
        skip();
    }
    import_fd = (PFN_vkImportSemaphoreFdKHR)gpu.GetDeviceProcAddr(gpu.device, "vkImportSemaphoreFdKHR");
    assert_non_null(import_fd);
    assert_ok(td_vk_timeline_create(vk, 7, true, &semaphore, why, sizeof why));
    assert_ok(td_vk_timeline_create(vk, 0, false, &second, why, sizeof why));
    assert_ok(td_vk_timeline_export_fd(vk, semaphore, &fd, why, sizeof why));
    assert_true(fcntl(fd, F_GETFD) >= 0);
    import.semaphore = second;
    import.fd = fd;
    assert_vk(import_fd(gpu.device, &import)); /* and Vulkan owns the fd */
    assert_ok(td_vk_timeline_value(vk, second, &value));
    assert_int_equal(value, 7);
    assert_ok(td_vk_timeline_signal(vk, semaphore, 9));
    assert_ok(td_vk_timeline_wait(vk, second, 9, VKU_TIMEOUT_NS));
    td_vk_timeline_destroy(vk, &semaphore);
    assert_ok(td_vk_timeline_value(vk, second, &value));
    assert_int_equal(value, 9);
    td_vk_timeline_destroy(vk, &second);
    assert_fails(td_vk_timeline_export_fd(vk, VK_NULL_HANDLE, &fd, why, sizeof why), TANDEM_ERROR_ARG, "semaphore");
    assert_fails(td_vk_timeline_export_fd(vk, semaphore, NULL, why, sizeof why), TANDEM_ERROR_ARG, "fd");
}

static void test_calibrate(void **state)
{
    uint64_t device[2], host[2], before, after;

    (void)state;
    assert_int_equal(td_vk_calibrate(NULL, device, host), TANDEM_ERROR_ARG);
    assert_int_equal(td_vk_calibrate(vk, NULL, host), TANDEM_ERROR_ARG);
    if (!caps->calibrated) {
        assert_int_equal(td_vk_calibrate(vk, device, host), TANDEM_ERROR_UNSUPPORTED);
        skip();
    }
    before = td_now_ns();
    assert_ok(td_vk_calibrate(vk, &device[0], &host[0]));
    usleep(20000);
    assert_ok(td_vk_calibrate(vk, &device[1], &host[1]));
    after = td_now_ns();
    assert_in_range(host[0], before, after);
    assert_in_range(host[1], host[0], after);
    /* Both clocks saw the same time pass, within a millisecond. */
    assert_in_range(device[1] - device[0] + 1000000 - (host[1] - host[0]), 0, 2000000);
}

/* Pack and unpack */

typedef struct shape {
    uint32_t width, height, tile_width, tile_height, shift_x, shift_y, halo;
    uint32_t images, channels, view_channels, dtype;
    uint32_t first, pad_row, pad_batch; /* in elements */
    bool interleaved;                   /* the batches of a row lie side by side */
    VkFormat format;
} shape;

static const shape packs[] = {
    {1, 1, 1, 1, 0, 0, 0, 1, 1, 1, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {1, 1, 4, 4, 3, 2, 1, 1, 3, 3, TANDEM_DTYPE_F16, 2, 1, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {17, 9, 8, 4, 0, 0, 0, 1, 4, 4, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {17, 9, 8, 4, 5, 3, 2, 2, 7, 9, TANDEM_DTYPE_F16, 6, 1, 4, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 6, 4, 3, 3, 11, 32, TANDEM_DTYPE_F16, 1000, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 1, 0, 1, 4, 16, 16, TANDEM_DTYPE_F32, 3, 5, 7, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {64, 36, 16, 12, 8, 6, 0, 4, 13, 15, TANDEM_DTYPE_F16, 0, 3, 2, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {20, 12, 8, 8, 0, 4, 0, 2, 8, 8, TANDEM_DTYPE_F32, 64, 2, 0, true, VK_FORMAT_R32G32B32A32_SFLOAT},
    {20, 12, 8, 8, 2, 4, 5, 1, 2, 5, TANDEM_DTYPE_F16, 4, 1, 0, true, VK_FORMAT_R32G32B32A32_SFLOAT},
    {33, 5, 64, 64, 0, 0, 0, 1, 1, 2, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32_SFLOAT},
    {19, 21, 8, 8, 7, 7, 1, 1, 4, 6, TANDEM_DTYPE_F16, 0, 0, 0, false, VK_FORMAT_R16G16B16A16_SFLOAT},
};

static uint32_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return random_state >> 8;
}

/* Ordinary numbers, and those where rounding to half precision goes wrong first. */
static float sample(void)
{
    static const float special[] = {0.0f,
                                    -0.0f,
                                    1.0f,
                                    65504.0f,
                                    65519.99f,
                                    65520.0f,
                                    -65520.0f,
                                    1e30f,
                                    INFINITY,
                                    -INFINITY,
                                    NAN,
                                    0x1p-14f,
                                    0x1.ffcp-15f,
                                    0x1.ffep-15f,
                                    0x1.fffp-15f,
                                    0x1p-24f,
                                    0x1p-25f,
                                    0x1.000002p-25f,
                                    0x1.8p-24f,
                                    0x1.8p-25f,
                                    -0x1p-26f,
                                    1.0f + 0x1p-11f,
                                    1.0f + 0x1.8p-10f,
                                    1.0f + 0x1.8p-11f,
                                    0x1.002p0f,
                                    2047.5f,
                                    2048.5f,
                                    2049.0f,
                                    -2051.0f};
    uint32_t r = random_bits();

    if (r % 8 == 0)
        return special[random_bits() % (sizeof special / sizeof *special)];
    if (r % 8 == 1)
        return ldexpf((float)(random_bits() & 0xffffff) / 16777216.0f - 0.5f, (int)(random_bits() % 20) - 26);
    return ((float)(random_bits() & 0xffffff) / 16777216.0f - 0.5f) * 8.0f;
}

static float as_half(float x)
{
    return (float)(_Float16)x;
}

static uint32_t float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static bool same_float(float a, float b)
{
    return (isnan(a) && isnan(b)) || float_bits(a) == float_bits(b);
}

static td_vk_pack pack_of(const shape *s, bool unpack)
{
    uint32_t even = s->dtype == TANDEM_DTYPE_F16 ? 1 : 0;
    uint32_t width = unpack ? s->channels : s->view_channels;
    td_vk_pack p = {.image_count = s->images,
                    .layout = VK_IMAGE_LAYOUT_GENERAL,
                    .format = s->format,
                    .width = s->width,
                    .height = s->height,
                    .tile_width = s->tile_width,
                    .tile_height = s->tile_height,
                    .shift_x = s->shift_x,
                    .shift_y = s->shift_y,
                    .halo = s->halo,
                    .channels = s->channels,
                    .view_channels = s->view_channels,
                    .dtype = s->dtype,
                    .first_element = s->first};
    uint32_t rows = (s->tile_width + 2 * s->halo) * (s->tile_height + 2 * s->halo), batches;

    p.tiles_x = (s->width + s->shift_x + s->tile_width - 1) / s->tile_width;
    p.tiles_y = (s->height + s->shift_y + s->tile_height - 1) / s->tile_height;
    batches = p.tiles_x * p.tiles_y;
    if (s->interleaved) {
        p.stride_batch = (int64_t)((width + s->pad_row + even) & ~even);
        p.stride_row = p.stride_batch * (int64_t)batches;
    } else {
        p.stride_row = (int64_t)((width + s->pad_row + even) & ~even);
        p.stride_batch = (int64_t)((rows * (uint64_t)p.stride_row + s->pad_batch + even) & ~(uint64_t)even);
    }
    return p;
}

static uint64_t view_elements(const td_vk_pack *p, uint32_t width)
{
    uint64_t rows = (p->tile_width + 2ull * p->halo) * (p->tile_height + 2ull * p->halo);
    uint64_t batches = (uint64_t)p->tiles_x * p->tiles_y;

    return p->first_element + (batches - 1) * (uint64_t)p->stride_batch + (rows - 1) * (uint64_t)p->stride_row + width;
}

static vku_image make_image(const shape *s, float *texels, VkImageUsageFlags usage, VkImageLayout layout)
{
    size_t values = (size_t)s->width * s->height * 4;
    _Float16 *halves;
    vku_image image;

    assert_vk(vku_image_create(&gpu, s->format, s->width, s->height, usage, &image));
    if (s->format == VK_FORMAT_R16G16B16A16_SFLOAT) {
        halves = malloc(values * sizeof *halves);
        assert_non_null(halves);
        for (size_t i = 0; i < values; i++) {
            halves[i] = (_Float16)texels[i];
            texels[i] = (float)halves[i];
        }
        assert_vk(vku_image_upload(&gpu, &image, halves, layout));
        free(halves);
    } else if (s->format == VK_FORMAT_R32_SFLOAT) {
        float *packed = malloc(values);

        assert_non_null(packed);
        for (size_t i = 0; i < values / 4; i++) {
            packed[i] = texels[4 * i];
            texels[4 * i + 1] = texels[4 * i + 2] = 0;
            texels[4 * i + 3] = 1;
        }
        assert_vk(vku_image_upload(&gpu, &image, packed, layout));
        free(packed);
    } else {
        assert_vk(vku_image_upload(&gpu, &image, texels, layout));
    }
    return image;
}

static int32_t clamp_to(int32_t x, uint32_t size)
{
    return x < 0 ? 0 : x >= (int32_t)size ? (int32_t)size - 1 : x;
}

static void check_packed(const shape *s, const td_vk_pack *p, float *const texels[4], const void *bytes, size_t size,
                         unsigned char fill)
{
    uint32_t row_width = s->tile_width + 2 * s->halo, rows = row_width * (s->tile_height + 2 * s->halo);
    unsigned char *touched = calloc(size, 1);
    size_t element = s->dtype == TANDEM_DTYPE_F16 ? 2 : 4;

    assert_non_null(touched);
    for (uint32_t b = 0; b < p->tiles_x * p->tiles_y; b++)
        for (uint32_t r = 0; r < rows; r++) {
            int32_t x = (int32_t)(b % p->tiles_x * s->tile_width + r % row_width) - (int32_t)(s->shift_x + s->halo);
            int32_t y = (int32_t)(b / p->tiles_x * s->tile_height + r / row_width) - (int32_t)(s->shift_y + s->halo);
            size_t pixel = (size_t)clamp_to(y, s->height) * s->width + (size_t)clamp_to(x, s->width);

            for (uint32_t c = 0; c < s->view_channels; c++) {
                float want = c < s->channels ? texels[c / 4][4 * pixel + c % 4] : 0, got;
                size_t at = s->first + b * (size_t)p->stride_batch + r * (size_t)p->stride_row + c;

                if (element == 2) {
                    _Float16 half;

                    memcpy(&half, (const char *)bytes + 2 * at, 2);
                    got = (float)half;
                    want = as_half(want);
                } else {
                    memcpy(&got, (const char *)bytes + 4 * at, 4);
                }
                if (!same_float(want, got))
                    fail_msg("batch %u row %u channel %u: %a, not %a", b, r, c, (double)got, (double)want);
                memset(touched + at * element, 1, element);
            }
        }
    /* What lies between the rows belongs to somebody else. */
    for (size_t i = 0; i < size; i++)
        if (!touched[i] && ((const unsigned char *)bytes)[i] != fill)
            fail_msg("byte %zu was overwritten", i);
    free(touched);
}

static void run_pack(const shape *s, bool device_memory)
{
    VkImageLayout layout = s->width % 2 ? VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL : VK_IMAGE_LAYOUT_GENERAL;
    td_vk_pack pack = pack_of(s, false);
    uint64_t size = view_elements(&pack, s->view_channels) * (s->dtype == TANDEM_DTYPE_F16 ? 2 : 4);
    float *texels[4] = {NULL, NULL, NULL, NULL};
    VkCommandBuffer commands;
    vku_image images[4];
    vku_buffer staging;
    VkBufferCopy copy;
    td_vk_mem mem;

    size = td_align_up(size, 4) + 64;
    for (uint32_t i = 0; i < s->images; i++) {
        texels[i] = malloc((size_t)s->width * s->height * 4 * sizeof(float));
        assert_non_null(texels[i]);
        for (size_t j = 0; j < (size_t)s->width * s->height * 4; j++)
            texels[i][j] = sample();
        images[i] = make_image(s, texels[i], VK_IMAGE_USAGE_SAMPLED_BIT, layout);
        pack.images[i] = images[i].view;
    }
    pack.layout = layout;
    if (device_memory)
        assert_ok(td_vk_mem_create_export(vk, size, STORAGE, &mem, why, sizeof why));
    else
        assert_ok(td_vk_mem_create_host(vk, size, STORAGE, &mem, why, sizeof why));
    assert_vk(vku_buffer_create(&gpu, size, VK_BUFFER_USAGE_TRANSFER_DST_BIT, &staging));
    copy = (VkBufferCopy){.size = size};
    commands = vku_begin(&gpu);
    gpu.CmdFillBuffer(commands, mem.buffer, 0, VK_WHOLE_SIZE, 0xabababab);
    vku_full_barrier(&gpu, commands);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &pack, why, sizeof why));
    if (device_memory) {
        vku_full_barrier(&gpu, commands);
        gpu.CmdCopyBuffer(commands, mem.buffer, staging.buffer, 1, &copy);
        vku_full_barrier(&gpu, commands);
    } else {
        td_vk_record_release(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    }
    assert_vk(vku_run(&gpu, commands));
    check_packed(s, &pack, texels, device_memory ? staging.host : mem.host, size, 0xab);
    vku_buffer_destroy(&gpu, &staging);
    td_vk_mem_free(vk, &mem);
    for (uint32_t i = 0; i < s->images; i++) {
        vku_image_destroy(&gpu, &images[i]);
        free(texels[i]);
    }
}

static bool can_pack(void)
{
    return caps->push_descriptor && caps->import_host;
}

static void test_pack(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    for (size_t i = 0; i < sizeof packs / sizeof *packs; i++)
        run_pack(&packs[i], false);
}

static void test_pack_into_exported_memory(void **state)
{
    (void)state;
    if (!can_pack() || !caps->export_memory)
        skip();
    run_pack(&packs[3], true);
    run_pack(&packs[5], true);
}

static void test_pack_normalised(void **state)
{
    unsigned char texels[16 * 16 * 4];
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .width = 16,
                       .height = 16,
                       .tile_width = 16,
                       .tile_height = 16,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 1,
                       .tiles_y = 1,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_row = 4};
    VkCommandBuffer commands;
    vku_image image;
    td_vk_mem mem;

    (void)state;
    if (!can_pack())
        skip();
    for (size_t i = 0; i < sizeof texels; i++)
        texels[i] = (unsigned char)(i & 255);
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R8G8B8A8_UNORM, 16, 16, VK_IMAGE_USAGE_SAMPLED_BIT, &image));
    assert_vk(vku_image_upload(&gpu, &image, texels, VK_IMAGE_LAYOUT_GENERAL));
    assert_ok(td_vk_mem_create_host(vk, sizeof texels * 4, STORAGE, &mem, why, sizeof why));
    pack.images[0] = image.view;
    commands = vku_begin(&gpu);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &pack, why, sizeof why));
    td_vk_record_release(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    for (size_t i = 0; i < sizeof texels; i++)
        assert_true(fabsf(((float *)mem.host)[i] - (float)texels[i] / 255.0f) < 1e-6f);
    td_vk_mem_free(vk, &mem);
    vku_image_destroy(&gpu, &image);
}

/* More tiles than one dimension of a grid may have groups. */
static void test_pack_many_tiles(void **state)
{
    const uint32_t width = 3840, height = 2160, tile = 8, columns = width / tile, pixels = width * height;
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .width = width,
                       .height = height,
                       .tile_width = tile,
                       .tile_height = tile,
                       .channels = 1,
                       .view_channels = 1,
                       .tiles_x = columns,
                       .tiles_y = height / tile,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_batch = 64,
                       .stride_row = 1};
    float *texels = malloc(pixels * sizeof *texels);
    VkCommandBuffer commands;
    vku_image image;
    td_vk_mem mem;

    (void)state;
    if (!can_pack()) {
        free(texels);
        skip();
    }
    assert_non_null(texels);
    for (uint32_t i = 0; i < pixels; i++)
        texels[i] = (float)i;
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R32_SFLOAT, width, height, VK_IMAGE_USAGE_SAMPLED_BIT, &image));
    assert_vk(vku_image_upload(&gpu, &image, texels, VK_IMAGE_LAYOUT_GENERAL));
    assert_ok(td_vk_mem_create_host(vk, pixels * 4ull, STORAGE, &mem, why, sizeof why));
    pack.images[0] = image.view;
    commands = vku_begin(&gpu);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &pack, why, sizeof why));
    td_vk_record_release(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    assert_vk(vku_run(&gpu, commands));
    for (uint32_t i = 0; i < pixels; i++) {
        uint32_t batch = i / 64, row = i % 64;
        uint32_t want = (batch / columns * tile + row / tile) * width + batch % columns * tile + row % tile;

        if (((float *)mem.host)[i] != (float)want)
            fail_msg("element %u: %f, not %u", i, (double)((float *)mem.host)[i], want);
    }
    td_vk_mem_free(vk, &mem);
    vku_image_destroy(&gpu, &image);
    free(texels);
}

static const shape unpacks[] = {
    {1, 1, 1, 1, 0, 0, 0, 1, 1, 1, TANDEM_DTYPE_F32, 0, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {17, 9, 8, 4, 5, 3, 0, 1, 3, 3, TANDEM_DTYPE_F16, 2, 1, 2, false, VK_FORMAT_R16G16B16A16_SFLOAT},
    {17, 9, 8, 4, 5, 3, 0, 1, 3, 3, TANDEM_DTYPE_F16, 6, 0, 0, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 6, 4, 0, 1, 4, 4, TANDEM_DTYPE_F32, 1001, 3, 1, false, VK_FORMAT_R32G32B32A32_SFLOAT},
    {31, 23, 7, 5, 1, 0, 0, 1, 2, 2, TANDEM_DTYPE_F32, 3, 5, 7, false, VK_FORMAT_R16G16B16A16_SFLOAT},
    {20, 12, 8, 8, 2, 4, 0, 1, 4, 4, TANDEM_DTYPE_F16, 4, 2, 0, true, VK_FORMAT_R16G16B16A16_SFLOAT},
};

static void test_unpack(void **state)
{
    (void)state;
    if (!can_pack())
        skip();
    for (size_t n = 0; n < 2 * sizeof unpacks / sizeof *unpacks; n++) {
        const shape *s = &unpacks[n / 2];
        td_vk_pack unpack = pack_of(s, true);
        size_t size_of = s->dtype == TANDEM_DTYPE_F16 ? 2 : 4, elements, pixels = (size_t)s->width * s->height;
        float *texels = malloc(pixels * 16), *source;
        VkCommandBuffer commands;
        vku_image image;
        td_vk_mem mem;

        /* The second time, every tile reads the same tokens. */
        if (n % 2)
            unpack.stride_batch = 0;
        elements = view_elements(&unpack, s->channels);
        source = malloc(elements * sizeof *source);
        assert_true(texels && source);
        for (size_t i = 0; i < 4 * pixels; i++)
            texels[i] = -7;
        image = make_image(s, texels, VK_IMAGE_USAGE_STORAGE_BIT, VK_IMAGE_LAYOUT_GENERAL);
        assert_ok(td_vk_mem_create_host(vk, td_align_up(elements * size_of, 4), STORAGE, &mem, why, sizeof why));
        for (size_t i = 0; i < elements; i++) {
            source[i] = sample();
            if (size_of == 2) {
                ((_Float16 *)mem.host)[i] = (_Float16)source[i];
                source[i] = as_half(source[i]);
            } else {
                ((float *)mem.host)[i] = source[i];
            }
        }
        unpack.images[0] = image.view;
        commands = vku_begin(&gpu);
        td_vk_record_acquire(vk, commands, &mem, false, SHADER, VK_ACCESS_SHADER_READ_BIT);
        assert_ok(td_vk_record_unpack(vk, commands, &mem, &unpack, why, sizeof why));
        assert_vk(vku_run(&gpu, commands));
        assert_vk(vku_image_readback(&gpu, &image, texels));
        for (size_t i = 0; i < 4 * pixels; i++) {
            uint32_t c = (uint32_t)(i % 4), x = (uint32_t)(i / 4 % s->width), y = (uint32_t)(i / 4 / s->width);
            uint32_t tile_x = (x + s->shift_x) / s->tile_width, tile_y = (y + s->shift_y) / s->tile_height;
            uint32_t row = (y + s->shift_y) % s->tile_height * s->tile_width + (x + s->shift_x) % s->tile_width;
            size_t at = s->first + (tile_y * unpack.tiles_x + tile_x) * (size_t)unpack.stride_batch +
                        row * (size_t)unpack.stride_row + c;
            float want = c < s->channels ? source[at] : 1, got;

            if (s->format == VK_FORMAT_R16G16B16A16_SFLOAT) {
                got = (float)((_Float16 *)texels)[i];
                want = as_half(want);
            } else {
                got = texels[i];
            }
            if (!same_float(want, got))
                fail_msg("shape %zu pixel %u %u channel %u: %a, not %a", n, x, y, c, (double)got, (double)want);
        }
        td_vk_mem_free(vk, &mem);
        vku_image_destroy(&gpu, &image);
        free(texels);
        free(source);
    }
}

/* Views longer than maxStorageBufferRange are bound piece by piece. */
static void test_pack_in_small_ranges(void **state)
{
    td_vk_caps *lowered = (td_vk_caps *)td_vk_get_caps(vk);
    uint64_t range = lowered->max_storage_range;

    if (!can_pack())
        skip();
    lowered->max_storage_range = 33 << 10; /* a little more than the largest tile */
    test_pack(state);
    test_unpack(state);
    test_pack_many_tiles(state);
    lowered->max_storage_range = range;
}

static void test_pack_refuses(void **state)
{
    td_vk_pack good = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .format = VK_FORMAT_R32G32B32A32_SFLOAT,
                       .width = 16,
                       .height = 16,
                       .tile_width = 8,
                       .tile_height = 8,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 2,
                       .tiles_y = 2,
                       .dtype = TANDEM_DTYPE_F16,
                       .stride_batch = 256,
                       .stride_row = 4};
    td_vk_mem mem, none = {0};
    VkCommandBuffer commands;
    td_vk_pack bad;
    vku_image image;
    td_vk *bare;
    td_vk_desc desc = vku_desc(&gpu);

    (void)state;
    if (!can_pack())
        skip();
    assert_vk(
        vku_image_create(&gpu, good.format, 16, 16, VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT, &image));
    good.images[0] = image.view;
    assert_ok(td_vk_mem_create_host(vk, 16 * 16 * 4 * 2, STORAGE, &mem, why, sizeof why));
    commands = vku_begin(&gpu);
#define REFUSED(function, change, status, word)                                                                        \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        change;                                                                                                        \
        assert_fails(function(vk, commands, &mem, &bad, why, sizeof why), status, word);                               \
    } while (0)
#define BOTH_REFUSE(change, word)                                                                                      \
    REFUSED(td_vk_record_pack, change, TANDEM_ERROR_ARG, word);                                                        \
    REFUSED(td_vk_record_unpack, change, TANDEM_ERROR_ARG, word)
    BOTH_REFUSE(bad.image_count = 0, "image_count is 0");
    BOTH_REFUSE(bad.image_count = 5, "image_count is 5");
    BOTH_REFUSE(bad.images[0] = VK_NULL_HANDLE, "images[0]");
    BOTH_REFUSE(bad.layout = VK_IMAGE_LAYOUT_UNDEFINED, "layout");
    BOTH_REFUSE(bad.width = 0, "width is 0");
    BOTH_REFUSE(bad.height = UINT32_MAX, "height is 4294967295");
    BOTH_REFUSE(bad.tile_width = 0, "tile_width");
    BOTH_REFUSE(bad.tile_height = 1u << 31, "tile_height");
    BOTH_REFUSE(bad.shift_x = 8, "shift_x is 8");
    BOTH_REFUSE(bad.shift_y = UINT32_MAX, "shift_y");
    BOTH_REFUSE(bad.halo = UINT32_MAX, "halo");
    BOTH_REFUSE(bad.channels = 0, "channels is 0");
    BOTH_REFUSE(bad.channels = 5, "channels is 5");
    BOTH_REFUSE(bad.tiles_x = 0, "tiles_x");
    BOTH_REFUSE(bad.tiles_y = UINT32_MAX, "tiles_y");
    BOTH_REFUSE((bad.tile_width = 1u << 20, bad.tiles_x = 1u << 20), "too many");
    BOTH_REFUSE(bad.dtype = TANDEM_DTYPE_NONE, "dtype");
    BOTH_REFUSE(bad.dtype = TANDEM_DTYPE_BF16, "dtype");
    BOTH_REFUSE(bad.stride_row = -4, "stride_row is -4");
    BOTH_REFUSE(bad.stride_batch = INT64_MIN, "stride_batch");
    BOTH_REFUSE(bad.stride_row = 5, "must be even");
    BOTH_REFUSE(bad.stride_batch = 257, "must be even");
    BOTH_REFUSE(bad.first_element = 1, "must be even");
    BOTH_REFUSE(bad.first_element = 2, "the mem at 2048");
    BOTH_REFUSE(bad.first_element = UINT64_MAX - 1, "overflow");
    BOTH_REFUSE(bad.stride_batch = INT64_MAX - 1, "overflow");
    BOTH_REFUSE(bad.dtype = TANDEM_DTYPE_F32, "byte 4096");
    REFUSED(td_vk_record_pack, bad.view_channels = 3, TANDEM_ERROR_ARG, "view_channels is 3");
    REFUSED(td_vk_record_pack, bad.view_channels = UINT32_MAX, TANDEM_ERROR_ARG, "view");
    REFUSED(td_vk_record_pack, bad.image_count = 2, TANDEM_ERROR_ARG, "images[1]");
    REFUSED(td_vk_record_pack, bad.stride_row = 2, TANDEM_ERROR_ARG, "overlap");
    REFUSED(td_vk_record_pack, bad.stride_batch = 128, TANDEM_ERROR_ARG, "overlap");
    REFUSED(td_vk_record_pack, bad.stride_batch = 0, TANDEM_ERROR_ARG, "overlap");
    REFUSED(td_vk_record_unpack, bad.layout = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL, TANDEM_ERROR_ARG, "layout");
    REFUSED(td_vk_record_unpack, bad.format = VK_FORMAT_R8G8B8A8_UNORM, TANDEM_ERROR_ARG, "format");
    REFUSED(td_vk_record_unpack, bad.halo = 1, TANDEM_ERROR_ARG, "halo");
    assert_fails(td_vk_record_pack(NULL, commands, &mem, &good, why, sizeof why), TANDEM_ERROR_ARG, "vk");
    assert_fails(td_vk_record_pack(vk, NULL, &mem, &good, why, sizeof why), TANDEM_ERROR_ARG, "commands");
    assert_fails(td_vk_record_pack(vk, commands, NULL, &good, why, sizeof why), TANDEM_ERROR_ARG, "mem");
    assert_fails(td_vk_record_pack(vk, commands, &mem, NULL, why, sizeof why), TANDEM_ERROR_ARG, "pack");
    assert_fails(td_vk_record_unpack(vk, commands, &none, &good, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VkBuffer");
    {
        /* A tile longer than one binding may be. */
        td_vk_mem long_mem = mem;
        char number[32];

        long_mem.bytes = UINT64_MAX / 4;
        snprintf(number, sizeof number, "%llu", (unsigned long long)caps->max_storage_range);
        bad = good;
        bad.stride_row = (int64_t)caps->max_storage_range + 2 - (int64_t)caps->max_storage_range % 2;
        bad.stride_batch = bad.stride_row * 64;
        assert_fails(td_vk_record_pack(vk, commands, &long_mem, &bad, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                     number);
    }
    desc.enabled_extension_count = 0;
    assert_ok(td_vk_open(&desc, NULL, &bare, why, sizeof why));
    assert_fails(td_vk_record_pack(bare, commands, &mem, &good, why, sizeof why), TANDEM_ERROR_UNSUPPORTED,
                 "VK_KHR_push_descriptor");
    td_vk_close(&bare);
    /* And the one that they all differ from is accepted. */
    vku_image_barrier(&gpu, commands, &image, VK_IMAGE_LAYOUT_GENERAL);
    assert_ok(td_vk_record_pack(vk, commands, &mem, &good, why, sizeof why));
    assert_vk(vku_run(&gpu, commands));
    td_vk_mem_free(vk, &mem);
    vku_image_destroy(&gpu, &image);
}

/* Two threads ask for pipelines that nobody has built yet. */
static struct {
    td_vk *vk;
    vku_image image;
    td_vk_mem mem;
    int failed[2];
} race;

static void *race_thread(void *which)
{
    int index = *(int *)which;
    td_vk_pack pack = {.image_count = 1,
                       .images = {race.image.view},
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .format = VK_FORMAT_R32G32B32A32_SFLOAT,
                       .width = 4,
                       .height = 4,
                       .tile_width = 4,
                       .tile_height = 4,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 1,
                       .tiles_y = 1,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_row = 4};
    VkCommandPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .queueFamilyIndex = gpu.queue_family};
    VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                            .commandBufferCount = 1};
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    VkCommandBuffer commands;

    race.failed[index] = 1;
    if (gpu.CreateCommandPool(gpu.device, &info, NULL, &allocate.commandPool) != VK_SUCCESS)
        return NULL;
    if (gpu.AllocateCommandBuffers(gpu.device, &allocate, &commands) == VK_SUCCESS &&
        gpu.BeginCommandBuffer(commands, &begin) == VK_SUCCESS &&
        td_vk_record_pack(race.vk, commands, &race.mem, &pack, NULL, 0) == TANDEM_OK) {
        vku_full_barrier(&gpu, commands);
        race.failed[index] = td_vk_record_unpack(race.vk, commands, &race.mem, &pack, NULL, 0) != TANDEM_OK;
    }
    gpu.DestroyCommandPool(gpu.device, allocate.commandPool, NULL);
    return NULL;
}

static void test_pipelines_from_two_threads(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    int indices[2] = {0, 1};
    pthread_t threads[2];

    (void)state;
    if (!can_pack())
        skip();
    assert_ok(td_vk_open(&desc, NULL, &race.vk, why, sizeof why));
    assert_vk(vku_image_create(&gpu, VK_FORMAT_R32G32B32A32_SFLOAT, 4, 4,
                               VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT, &race.image));
    assert_ok(td_vk_mem_create_host(race.vk, 4096, STORAGE, &race.mem, why, sizeof why));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_thread, &indices[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(race.failed[0] + race.failed[1], 0);
    td_vk_mem_free(race.vk, &race.mem);
    vku_image_destroy(&gpu, &race.image);
    td_vk_close(&race.vk);
}

/* Drivers that fail */

static void test_failing_calls(void **state)
{
    static const struct {
        VkResult result;
        tandem_status status;
        const char *text;
    } results[] = {
        {VK_ERROR_OUT_OF_DEVICE_MEMORY, TANDEM_ERROR_NOMEM, "VK_ERROR_OUT_OF_DEVICE_MEMORY"},
        {VK_ERROR_OUT_OF_HOST_MEMORY, TANDEM_ERROR_NOMEM, "VK_ERROR_OUT_OF_HOST_MEMORY"},
        {VK_ERROR_DEVICE_LOST, TANDEM_ERROR_LOST, "VK_ERROR_DEVICE_LOST"},
        {VK_ERROR_UNKNOWN, TANDEM_ERROR_DEVICE, "VK_ERROR_UNKNOWN"},
        {(VkResult)-987654, TANDEM_ERROR_DEVICE, "-987654"},
    };
    static const char *const of_host[] = {"vkCreateBuffer", "vkAllocateMemory", "vkBindBufferMemory",
                                          "vkGetMemoryHostPointerPropertiesEXT"};
    static const char *const of_export[] = {"vkCreateBuffer", "vkAllocateMemory", "vkBindBufferMemory"};
    static const char *const of_pack[] = {"vkCreateDescriptorSetLayout", "vkCreatePipelineLayout",
                                          "vkCreateShaderModule", "vkCreateComputePipelines"};
    td_vk_pack pack = {.image_count = 1,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .format = VK_FORMAT_R32G32B32A32_SFLOAT,
                       .width = 4,
                       .height = 4,
                       .tile_width = 4,
                       .tile_height = 4,
                       .channels = 4,
                       .view_channels = 4,
                       .tiles_x = 1,
                       .tiles_y = 1,
                       .dtype = TANDEM_DTYPE_F32,
                       .stride_row = 4};
    int fds = vku_open_fds(), fd;
    VkCommandBuffer commands;
    VkSemaphore semaphore;
    td_vk_mem mem, out;
    vku_image image;
    uint64_t a, b;
    td_vk *faulty;

    (void)state;
    for (size_t r = 0; r < sizeof results / sizeof *results; r++) {
        tandem_status status = results[r].status;
        const char *text = results[r].text;

        for (size_t i = 0; caps->import_host && i < sizeof of_host / sizeof *of_host; i++) {
            faulty = open_faulty(of_host[i], results[r].result);
            assert_fails(td_vk_mem_create_host(faulty, 4096, STORAGE, &out, why, sizeof why), status, text);
            assert_non_null(strstr(why, of_host[i]));
            td_vk_close(&faulty);
        }
        for (size_t i = 0; caps->export_memory && i < sizeof of_export / sizeof *of_export; i++) {
            faulty = open_faulty(of_export[i], results[r].result);
            assert_fails(td_vk_mem_create_export(faulty, 4096, STORAGE, &out, why, sizeof why), status, text);
            assert_non_null(strstr(why, of_export[i]));
            td_vk_close(&faulty);
        }
        if (caps->export_memory) {
            assert_ok(td_vk_mem_create_export(vk, 65536, STORAGE, &mem, why, sizeof why));
            faulty = open_faulty("vkGetMemoryFdKHR", results[r].result);
            assert_fails(td_vk_mem_export_fd(faulty, &mem, &fd, why, sizeof why), status, "vkGetMemoryFdKHR");
            assert_int_equal(fd, -1);
            td_vk_close(&faulty);
            faulty = open_faulty("vkBindBufferMemory", results[r].result);
            if (!mem.dedicated)
                assert_fails(
                    td_vk_mem_wrap(faulty, mem.memory, mem.allocation_bytes, 0, 65536, false, &out, why, sizeof why),
                    status, text);
            td_vk_close(&faulty);
            td_vk_mem_free(vk, &mem);
        }
        if (can_pack()) {
            assert_vk(vku_image_create(&gpu, pack.format, 4, 4, VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_STORAGE_BIT,
                                       &image));
            pack.images[0] = image.view;
            assert_ok(td_vk_mem_create_host(vk, 4096, STORAGE, &mem, why, sizeof why));
            commands = vku_begin(&gpu);
            for (size_t i = 0; i < sizeof of_pack / sizeof *of_pack; i++) {
                faulty = open_faulty(of_pack[i], results[r].result);
                /* Twice: what was half built the first time must not be in the way. */
                for (int twice = 0; twice < 2; twice++) {
                    assert_fails(td_vk_record_pack(faulty, commands, &mem, &pack, why, sizeof why), status, of_pack[i]);
                    assert_fails(td_vk_record_unpack(faulty, commands, &mem, &pack, why, sizeof why), status, text);
                }
                td_vk_close(&faulty);
            }
            assert_vk(vku_run(&gpu, commands));
            td_vk_mem_free(vk, &mem);
            vku_image_destroy(&gpu, &image);
        }
        faulty = open_faulty("vkCreateSemaphore", results[r].result);
        assert_fails(td_vk_timeline_create(faulty, 0, false, &semaphore, why, sizeof why), status, text);
        assert_true(semaphore == VK_NULL_HANDLE);
        td_vk_close(&faulty);
        assert_ok(td_vk_timeline_create(vk, 0, false, &semaphore, why, sizeof why));
        faulty = open_faulty("vkWaitSemaphores", results[r].result);
        assert_int_equal(td_vk_timeline_wait(faulty, semaphore, 1, 0), status);
        td_vk_close(&faulty);
        faulty = open_faulty("vkSignalSemaphore", results[r].result);
        assert_int_equal(td_vk_timeline_signal(faulty, semaphore, 1), status);
        td_vk_close(&faulty);
        faulty = open_faulty("vkGetSemaphoreCounterValue", results[r].result);
        assert_int_equal(td_vk_timeline_value(faulty, semaphore, &a), status);
        assert_int_equal(td_vk_timeline_signal(faulty, semaphore, 1), status);
        td_vk_close(&faulty);
        td_vk_timeline_destroy(vk, &semaphore);
        if (caps->calibrated) {
            faulty = open_faulty("vkGetCalibratedTimestampsEXT", results[r].result);
            assert_int_equal(td_vk_calibrate(faulty, &a, &b), status);
            td_vk_close(&faulty);
        }
    }
    fault.fails = NULL;
    assert_int_equal(vku_open_fds(), fds);
}

/* How many mappings of ours this process has. */
static int open_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1024];
    int count = 0;

    assert_non_null(maps);
    while (fgets(line, sizeof line, maps))
        count += strstr(line, "memfd:tandem") != NULL;
    fclose(maps);
    return count;
}

static void test_nothing_leaks(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);
    int fds = 0;

    (void)state;
    for (int cycle = 0; cycle < 60; cycle++) {
        VkSemaphore semaphore, exported = VK_NULL_HANDLE;
        td_vk_mem host = {0}, shared = {0};
        td_vk *own;
        int fd = -1;

        if (cycle == 1) /* the first cycle may open what stays */
            fds = vku_open_fds();
        assert_ok(td_vk_open(&desc, NULL, &own, why, sizeof why));
        assert_ok(td_vk_timeline_create(own, 0, false, &semaphore, why, sizeof why));
        if (caps->import_host) {
            assert_ok(td_vk_mem_create_host(own, 1 << 16, STORAGE, &host, why, sizeof why));
            assert_int_equal(open_mappings(), 1);
        }
        if (caps->export_memory) {
            assert_ok(td_vk_mem_create_export(own, 1 << 16, STORAGE, &shared, why, sizeof why));
            assert_ok(td_vk_mem_export_fd(own, &shared, &fd, why, sizeof why));
            td_fd_close(&fd);
        }
        if (caps->export_timeline) {
            assert_ok(td_vk_timeline_create(own, 0, true, &exported, why, sizeof why));
            assert_ok(td_vk_timeline_export_fd(own, exported, &fd, why, sizeof why));
            td_fd_close(&fd);
        }
        td_vk_timeline_destroy(own, &exported);
        td_vk_timeline_destroy(own, &semaphore);
        td_vk_mem_free(own, &shared);
        td_vk_mem_free(own, &host);
        td_vk_close(&own);
    }
    assert_int_equal(open_mappings(), 0);
    assert_int_equal(vku_open_fds(), fds);
}

static void test_null(void **state)
{
    td_vk *none = NULL;
    td_vk_mem mem = {0};

    (void)state;
    td_vk_close(NULL);
    td_vk_close(&none);
    assert_null(td_vk_get_caps(NULL));
    td_vk_name(NULL, VK_OBJECT_TYPE_BUFFER, 1, "x");
    td_vk_name(vk, VK_OBJECT_TYPE_BUFFER, 0, "x");
    td_vk_label_begin(NULL, NULL, "x");
    td_vk_label_begin(vk, NULL, NULL);
    td_vk_label_end(NULL, NULL);
    td_vk_record_release(NULL, NULL, NULL, true, 0, 0);
    td_vk_record_release(vk, NULL, &mem, true, 0, 0);
    td_vk_record_acquire(NULL, NULL, NULL, false, 0, 0);
    td_vk_record_acquire(vk, NULL, &mem, false, 0, 0);
}

/* Barriers without a stage, and both kinds in one command buffer with labels around them. */
static void test_barriers(void **state)
{
    VkCommandBuffer commands;
    td_vk_mem mem;

    (void)state;
    if (!caps->import_host)
        skip();
    assert_ok(td_vk_mem_create_host(vk, 4096, STORAGE, &mem, why, sizeof why));
    commands = vku_begin(&gpu);
    td_vk_label_begin(vk, commands, "outer");
    td_vk_record_release(vk, commands, &mem, false, 0, 0);
    td_vk_record_acquire(vk, commands, &mem, false, 0, 0);
    td_vk_record_acquire(vk, commands, &mem, true, SHADER, READ_WRITE);
    td_vk_record_release(vk, commands, &mem, true, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
    td_vk_label_end(vk, commands);
    assert_vk(vku_run(&gpu, commands));
    td_vk_mem_free(vk, &mem);
}

/* What silence means: each kind of fault is reported where it is made on purpose. */

typedef struct faults {
    vku v;
    td_vk *vk;
    td_vk_mem mem;
    vku_image image;
    td_vk_pack pack;
} faults;

static faults wrong;

static bool faults_open(void)
{
    vku_options options = {.validation = true};
    td_vk_desc desc;

    if (!gpu.validated || !can_pack())
        return false;
    assert_int_equal(vku_open(&wrong.v, &options), VKU_OK);
    assert_true(wrong.v.validated);
    wrong.v.quiet = true;
    desc = vku_desc(&wrong.v);
    assert_ok(td_vk_open(&desc, NULL, &wrong.vk, why, sizeof why));
    assert_ok(td_vk_mem_create_host(wrong.vk, 4096, STORAGE, &wrong.mem, why, sizeof why));
    assert_vk(
        vku_image_create(&wrong.v, VK_FORMAT_R32G32B32A32_SFLOAT, 4, 4, VK_IMAGE_USAGE_SAMPLED_BIT, &wrong.image));
    wrong.pack = (td_vk_pack){.image_count = 1,
                              .images = {wrong.image.view},
                              .layout = VK_IMAGE_LAYOUT_GENERAL,
                              .width = 4,
                              .height = 4,
                              .tile_width = 4,
                              .tile_height = 4,
                              .channels = 4,
                              .view_channels = 4,
                              .tiles_x = 1,
                              .tiles_y = 1,
                              .dtype = TANDEM_DTYPE_F32,
                              .stride_row = 4};
    assert_int_equal(wrong.v.errors, 0);
    return true;
}

/* Closes cleanly, except for what was reported; returns how many errors closing added. */
static unsigned faults_close(void)
{
    unsigned before = wrong.v.errors;

    td_vk_mem_free(wrong.vk, &wrong.mem);
    vku_image_destroy(&wrong.v, &wrong.image);
    td_vk_close(&wrong.vk);
    vku_close(&wrong.v);
    return wrong.v.errors - before;
}

static void test_catches_invalid_usage(void **state)
{
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = 64};
    VkBuffer buffer = VK_NULL_HANDLE;

    (void)state;
    if (!faults_open())
        skip();
    if (wrong.v.CreateBuffer(wrong.v.device, &info, NULL, &buffer) == VK_SUCCESS)
        wrong.v.DestroyBuffer(wrong.v.device, buffer, NULL);
    assert_int_equal(wrong.v.errors, 1);
    assert_non_null(strstr(wrong.v.last_text, "VUID-VkBufferCreateInfo-usage-requiredbitmask"));
    assert_int_equal(faults_close(), 0);
}

static void test_catches_missing_barrier(void **state)
{
    (void)state;
    if (!faults_open())
        skip();
    for (int missing = 0; missing < 2; missing++) {
        VkCommandBuffer commands = vku_begin(&wrong.v);

        vku_image_barrier(&wrong.v, commands, &wrong.image, VK_IMAGE_LAYOUT_GENERAL);
        assert_ok(td_vk_record_pack(wrong.vk, commands, &wrong.mem, &wrong.pack, why, sizeof why));
        if (!missing)
            vku_full_barrier(&wrong.v, commands);
        /* Two dispatches would not do: the layer takes it that shaders write different parts of what is bound. */
        wrong.v.CmdFillBuffer(commands, wrong.mem.buffer, 0, VK_WHOLE_SIZE, 0);
        assert_vk(vku_run(&wrong.v, commands));
        assert_int_equal(wrong.v.errors > 0, missing);
    }
    assert_non_null(strstr(wrong.v.last_text, "SYNC-HAZARD-WRITE-AFTER-WRITE"));
    assert_int_equal(faults_close(), 0);
}

/* The barriers of release and acquire are themselves what keeps the layer silent. */
static void test_catches_missing_release(void **state)
{
    VkBufferCopy copy = {.size = 256, .dstOffset = 1024};

    (void)state;
    if (!faults_open())
        skip();
    for (int missing = 0; missing < 2; missing++) {
        VkCommandBuffer commands = vku_begin(&wrong.v);

        vku_image_barrier(&wrong.v, commands, &wrong.image, VK_IMAGE_LAYOUT_GENERAL);
        assert_ok(td_vk_record_pack(wrong.vk, commands, &wrong.mem, &wrong.pack, why, sizeof why));
        if (!missing) {
            td_vk_record_release(wrong.vk, commands, &wrong.mem, false, SHADER, VK_ACCESS_SHADER_WRITE_BIT);
            td_vk_record_acquire(wrong.vk, commands, &wrong.mem, false, VK_PIPELINE_STAGE_TRANSFER_BIT,
                                 VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT);
        }
        wrong.v.CmdCopyBuffer(commands, wrong.mem.buffer, wrong.mem.buffer, 1, &copy);
        assert_vk(vku_run(&wrong.v, commands));
        assert_int_equal(wrong.v.errors > 0, missing);
    }
    assert_non_null(strstr(wrong.v.last_text, "SYNC-HAZARD-READ-AFTER-WRITE"));
    assert_int_equal(faults_close(), 0);
}

static void test_catches_wrong_layout(void **state)
{
    VkCommandBuffer commands;

    (void)state;
    if (!faults_open())
        skip();
    commands = vku_begin(&wrong.v);
    vku_image_barrier(&wrong.v, commands, &wrong.image, VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL);
    assert_ok(td_vk_record_pack(wrong.vk, commands, &wrong.mem, &wrong.pack, why, sizeof why));
    assert_vk(vku_run(&wrong.v, commands));
    assert_true(wrong.v.errors > 0);
    assert_non_null(strstr(wrong.v.last_text, "ayout"));
    assert_int_equal(faults_close(), 0);
}

/* Of LeakSanitizer, where the program is built with it: this leak is made on purpose. */
void __lsan_disable(void) __attribute__((weak));
void __lsan_enable(void) __attribute__((weak));

static void test_catches_leak(void **state)
{
    VkSemaphore semaphore;

    (void)state;
    if (!faults_open())
        skip();
    if (__lsan_disable)
        __lsan_disable();
    assert_ok(td_vk_timeline_create(wrong.vk, 0, false, &semaphore, why, sizeof why));
    if (__lsan_enable)
        __lsan_enable();
    assert_int_equal(wrong.v.errors, 0);
    assert_int_equal(faults_close(), 1);
    assert_non_null(strstr(wrong.v.last_text, "VkSemaphore"));
}

static int each_is_silent(void **state)
{
    static unsigned before;
    unsigned errors = gpu.errors - before;

    (void)state;
    before = gpu.errors;
    if (errors)
        print_error("%u validation errors, the last: %s\n", errors, gpu.last_text);
    return errors ? -1 : 0;
}

static int open_all(void **state)
{
    td_vk_desc desc = vku_desc(&gpu);

    (void)state;
    if (td_vk_open(&desc, NULL, &vk, why, sizeof why) != TANDEM_OK) {
        print_error("td_vk_open: %s\n", why);
        return -1;
    }
    caps = td_vk_get_caps(vk);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    td_vk_close(&vk);
    vku_close(&gpu);
    if (gpu.errors)
        print_error("%u validation errors in all, the last: %s\n", gpu.errors, gpu.last_text);
    return gpu.errors ? -1 : 0;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_teardown(name, each_is_silent)
    const struct CMUnitTest tests[] = {
        TEST(test_requirements),
        TEST(test_open_refuses),
        TEST(test_open_says_what_is_missing),
        TEST(test_open_without_timelines),
        TEST(test_caps),
        TEST(test_log),
        TEST(test_left_behind),
        TEST(test_vulkan_1_1),
        TEST(test_host_memory),
        TEST(test_import_host),
        TEST(test_exported_memory),
        TEST(test_wrapped_memory),
        TEST(test_memory_refuses),
        TEST(test_timeline_on_the_host),
        TEST(test_timeline_wait_before_signal),
        TEST(test_exported_timeline),
        TEST(test_calibrate),
        TEST(test_barriers),
        TEST(test_pack),
        TEST(test_pack_into_exported_memory),
        TEST(test_pack_normalised),
        TEST(test_pack_many_tiles),
        TEST(test_unpack),
        TEST(test_pack_in_small_ranges),
        TEST(test_pack_refuses),
        TEST(test_pipelines_from_two_threads),
        TEST(test_failing_calls),
        TEST(test_nothing_leaks),
        TEST(test_null),
        TEST(test_catches_invalid_usage),
        TEST(test_catches_missing_barrier),
        TEST(test_catches_missing_release),
        TEST(test_catches_wrong_layout),
        TEST(test_catches_leak),
    };
    vku_options options = {.validation = true};
    vku_found found = vku_open(&gpu, &options);

    if (found == VKU_NO_VULKAN && !asked("TANDEM_EXPECT_GPU") && !asked("TANDEM_EXPECT_VALIDATION")) {
        print_message("no Vulkan device: skipped\n");
        return 77;
    }
    if (found != VKU_OK) {
        print_error("no Vulkan device could be opened (%d)\n", (int)found);
        return 1;
    }
    if (!gpu.validated) {
        print_message("VK_LAYER_KHRONOS_validation is not installed: its tests are skipped\n");
        if (asked("TANDEM_EXPECT_VALIDATION"))
            return 1;
    }
    return cmocka_run_group_tests(tests, open_all, close_all);
}
