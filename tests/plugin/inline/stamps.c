/* The stamps that benches have within a recorded job, which the library knows nothing of: where they lie among what it
 * records, which stays as it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/record_stamps.h"
#include "tests/plugin/inline/rig.h"

#define QUERIES ((VkQueryPool)(uintptr_t)16) /* nobody's: a stamp gets no further than here */
enum { FIRST = 3 };

/* What comes to the driver: b a barrier, k a kernel, t a stamp at the top, e one at the bottom. */
static char came[256];
static PFN_vkGetInstanceProcAddr real_get;
static PFN_vkGetDeviceProcAddr real_get_of_device;
static PFN_vkCmdPipelineBarrier real_barrier;
static PFN_vkCmdCuLaunchKernelNVX real_launch;

static void note(char what)
{
    const size_t at = strlen(came);

    assert_true(at + 1 < sizeof came);
    came[at] = what;
}

static VKAPI_ATTR void VKAPI_CALL see_barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkPipelineStageFlags to,
                                              VkDependencyFlags flags, uint32_t memory_count, const VkMemoryBarrier *memory,
                                              uint32_t buffer_count, const VkBufferMemoryBarrier *buffers,
                                              uint32_t image_count, const VkImageMemoryBarrier *images)
{
    note('b');
    real_barrier(commands, from, to, flags, memory_count, memory, buffer_count, buffers, image_count, images);
}

static VKAPI_ATTR void VKAPI_CALL see_launch(VkCommandBuffer commands, const VkCuLaunchInfoNVX *info)
{
    note('k');
    real_launch(commands, info);
}

static VKAPI_ATTR void VKAPI_CALL see_stamp(VkCommandBuffer commands, VkPipelineStageFlagBits stage, VkQueryPool queries,
                                            uint32_t query)
{
    const bool top = stage == VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT;

    assert_non_null(commands);
    assert_true(top || stage == VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT);
    assert_true(queries == QUERIES);
    assert_int_equal(query, FIRST + !top);
    note(top ? 't' : 'e');
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL see_device(VkDevice device, const char *name)
{
    const PFN_vkVoidFunction found = real_get_of_device(device, name);

    if (!strcmp(name, "vkCmdWriteTimestamp"))
        return (PFN_vkVoidFunction)see_stamp;
    if (!strcmp(name, "vkCmdPipelineBarrier")) {
        real_barrier = (PFN_vkCmdPipelineBarrier)found;
        return (PFN_vkVoidFunction)see_barrier;
    }
    if (!strcmp(name, "vkCmdCuLaunchKernelNVX")) {
        real_launch = (PFN_vkCmdCuLaunchKernelNVX)found;
        return (PFN_vkVoidFunction)see_launch;
    }
    return found;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL see_instance(VkInstance instance, const char *name)
{
    const PFN_vkVoidFunction found = real_get(instance, name);

    if (strcmp(name, "vkGetDeviceProcAddr"))
        return found;
    real_get_of_device = (PFN_vkGetDeviceProcAddr)found;
    return (PFN_vkVoidFunction)see_device;
}

/* What a job becomes; out: how many of its barriers are for data. */
static const char *record_job(flight *f, bool stamped, unsigned *data_barriers)
{
    const tandem_job job = job_on(f->mem);

    begin_commands(f->commands[0]);
    memset(came, 0, sizeof came);
    F.data_barriers = 0;
    if (stamped)
        record_stamps_begin(QUERIES, FIRST);
    OK(tandem_record(w.s, &job, f->commands[0], &f->ticket));
    *data_barriers = F.data_barriers;
    assert_int_equal(record_stamps_end(), stamped);
    assert_int_equal(gpu.EndCommandBuffer(f->commands[0]), VK_SUCCESS);
    return came;
}

static void test_stamps_lie_within(void **state)
{
    PFN_vkGetInstanceProcAddr before = gpu.gipa;
    char plain[sizeof came], wanted[sizeof came + 2];
    unsigned data_barriers, data_barriers_stamped;
    const char *first;
    size_t head;

    (void)state;
    real_get = before;
    gpu.gipa = record_stamps_wrap(see_instance);
    enter();
    strcpy(plain, record_job(&w.flights[0], false, &data_barriers));
    first = strchr(plain, 'k');
    assert_true(first && strlen(first) > 3); /* it does something between its first and its last launch, */
    assert_string_equal(plain + strlen(plain) - 2, "bk");
    head = (size_t)(first - plain) + 1;
    snprintf(wanted, sizeof wanted, "%.*st%.*sebk", (int)head, plain, (int)(strlen(plain) - head - 2), plain + head);
    assert_string_equal(record_job(&w.flights[1], true, &data_barriers_stamped), wanted); /* the rest is as it was */
    assert_int_equal(data_barriers_stamped, data_barriers);
    assert_string_equal(record_job(&w.flights[2], false, &data_barriers), plain);
    leave();
    gpu.gipa = before;
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_stamps_lie_within),
};
const test_cases inline_stamps_cases = TEST_CASES(cases);
