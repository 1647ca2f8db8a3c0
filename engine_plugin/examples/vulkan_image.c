/* An effect in an engine's frame, on images, with two frames in flight: each frame's image is
 * packed to a tensor, a job halves it, and the result becomes an image again. Both ways to meet:
 *
 *     timeline   two submits a frame, and the job between them: the engine's timeline semaphore
 *                tells the job that the tensor is written, the session's tells the second submit
 *                that the job is over. This works on every rung
 *     inline     on the rung of that name the job is recorded into the frame's one command
 *                buffer, and the GPU changes nothing over
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     cc vulkan_image.c $(pkg-config --cflags --libs tandem) -lvulkan && ./a.out [RUNG]
 *
 * RUNG: 1 inline, 2 timeline, 3 host, 4 copy, 5 cpu; without it the best that there is.
 */
#include "vulkan_device.h"

enum { WIDTH = 64, HEIGHT = 48, CHANNELS = 3, TEXELS = WIDTH * HEIGHT };
enum { BYTES = TEXELS * CHANNELS * sizeof(float), FRAMES = 10, IN_FLIGHT = 2 };

static const VkFormat FORMAT = VK_FORMAT_R8G8B8A8_UNORM;
static const VkPipelineStageFlags COMPUTE = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                                  TRANSFER = VK_PIPELINE_STAGE_TRANSFER_BIT;

typedef struct image {
    VkImage image;
    VkDeviceMemory memory;
    VkImageView view;
} image;

/* Of a frame in flight: while the GPU works on one, the next one's are written. */
typedef struct slot {
    image input, output;
    tandem_mem x, y; /* of their own, so that each crosses to the job, or back, alone */
    VkCommandBuffer first, second;
    VkFence fence;
    readback result;
    tandem_ticket ticket;
    uint64_t frame; /* that was submitted with it; 0: none */
} slot;

typedef struct effect {
    tandem_session *session;
    uint32_t rung;
    tandem_timeline from_engine, from_session;
    VkSemaphore engine_semaphore, session_semaphore;
    slot slots[IN_FLIGHT];
} effect;

static image new_image(const engine *e, VkImageUsageFlags usage)
{
    const VkImageCreateInfo info = {.sType = VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO,
                                    .imageType = VK_IMAGE_TYPE_2D,
                                    .format = FORMAT,
                                    .extent = {WIDTH, HEIGHT, 1},
                                    .mipLevels = 1,
                                    .arrayLayers = 1,
                                    .samples = VK_SAMPLE_COUNT_1_BIT,
                                    .usage = usage};
    VkImageViewCreateInfo view = {.sType = VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO,
                                  .viewType = VK_IMAGE_VIEW_TYPE_2D,
                                  .format = FORMAT,
                                  .subresourceRange = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1}};
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    const VkDevice device = e->vulkan.device;
    VkMemoryRequirements needs;
    image i;

    check(vkCreateImage(device, &info, NULL, &i.image), "vkCreateImage");
    vkGetImageMemoryRequirements(device, i.image, &needs);
    memory.allocationSize = needs.size;
    memory.memoryTypeIndex = memory_type(e, needs.memoryTypeBits,
                                         VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    check(vkAllocateMemory(device, &memory, NULL, &i.memory), "vkAllocateMemory");
    check(vkBindImageMemory(device, i.image, i.memory, 0), "vkBindImageMemory");
    view.image = i.image;
    check(vkCreateImageView(device, &view, NULL, &i.view), "vkCreateImageView");
    return i;
}

static void free_image(const engine *e, image *i)
{
    vkDestroyImageView(e->vulkan.device, i->view, NULL);
    vkDestroyImage(e->vulkan.device, i->image, NULL);
    vkFreeMemory(e->vulkan.device, i->memory, NULL);
}

static void open_effect(effect *f, const engine *e, uint32_t rung)
{
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc, .vulkan = &e->vulkan,
                                                 .rung = rung, .frames_in_flight = IN_FLIGHT);
    const tandem_timeline_desc engines = TANDEM_INIT(tandem_timeline_desc,
                                                     .signaller = TANDEM_SIGNALLER_ENGINE);
    const tandem_timeline_desc sessions = TANDEM_INIT(tandem_timeline_desc,
                                                      .signaller = TANDEM_SIGNALLER_SESSION);
    const tandem_mem_desc mem = TANDEM_INIT(tandem_mem_desc, .bytes = BYTES);
    const VkFenceCreateInfo unsignalled = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    tandem_info info = TANDEM_INIT(tandem_info);

    check(tandem_session_create(&desc, &f->session), "tandem_session_create");
    check(tandem_session_info(f->session, &info), "tandem_session_info");
    f->rung = info.rung;
    printf("%s, rung %u %s\n", info.device, info.rung, info.rung_reason);
    check(tandem_timeline_create(f->session, &engines, &f->from_engine), "a timeline");
    check(tandem_timeline_create(f->session, &sessions, &f->from_session), "a timeline");
    check(tandem_timeline_get_vulkan(f->session, f->from_engine, &f->engine_semaphore),
          "a timeline's semaphore");
    check(tandem_timeline_get_vulkan(f->session, f->from_session, &f->session_semaphore),
          "a timeline's semaphore");
    for (int i = 0; i < IN_FLIGHT; i++) {
        slot *s = &f->slots[i];

        s->input = new_image(e, VK_IMAGE_USAGE_TRANSFER_DST_BIT | VK_IMAGE_USAGE_SAMPLED_BIT);
        s->output = new_image(e, VK_IMAGE_USAGE_STORAGE_BIT | VK_IMAGE_USAGE_TRANSFER_SRC_BIT);
        check(tandem_mem_create(f->session, &mem, &s->x), "tandem_mem_create");
        check(tandem_mem_create(f->session, &mem, &s->y), "tandem_mem_create");
        s->first = new_commands(e);
        s->second = new_commands(e);
        s->result = new_readback(e, TEXELS * 4);
        check(vkCreateFence(e->vulkan.device, &unsignalled, NULL, &s->fence), "vkCreateFence");
    }
}

/* The session first: it may still use what is the device's. */
static void close_effect(effect *f, const engine *e)
{
    check(tandem_session_destroy(&f->session), "tandem_session_destroy");
    for (int i = 0; i < IN_FLIGHT; i++) {
        free_image(e, &f->slots[i].input);
        free_image(e, &f->slots[i].output);
        free_readback(e, &f->slots[i].result);
        vkDestroyFence(e->vulkan.device, f->slots[i].fence, NULL);
    }
}

static uint8_t red_of(uint64_t frame)
{
    return (uint8_t)(20 * frame);
}

/* In place of a renderer: the image has one colour, another one each frame. */
static void draw(VkCommandBuffer commands, const slot *s, uint64_t frame)
{
    const VkClearColorValue colour = {.float32 = {red_of(frame) / 255.0f, 0.5f, 1, 1}};
    const VkImageSubresourceRange all = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 0, 1};
    const VkImageMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER,
                                          .dstAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                          .oldLayout = VK_IMAGE_LAYOUT_UNDEFINED,
                                          .newLayout = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL,
                                          .srcQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                          .dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED,
                                          .image = s->input.image,
                                          .subresourceRange = all};

    vkCmdPipelineBarrier(commands, COMPUTE | TRANSFER, TRANSFER, 0, 0, NULL, 0, NULL, 1, &barrier);
    vkCmdClearColorImage(commands, s->input.image, VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL, &colour, 1,
                         &all);
}

static tandem_view pixels(tandem_mem mem)
{
    return tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, HEIGHT, WIDTH, CHANNELS);
}

/* From what was drawn to the job's tensor. The barriers on images are Tandem's, by what is said of
 * their use. */
static void pack(const effect *f, VkCommandBuffer commands, const slot *s)
{
    const tandem_pack_image from = TANDEM_INIT(
        tandem_pack_image, .format = FORMAT, .image = s->input.image, .view = s->input.view,
        .usage = VK_IMAGE_USAGE_SAMPLED_BIT, .image_extent = {WIDTH, HEIGHT},
        .extent = {WIDTH, HEIGHT}, .layout_before = VK_IMAGE_LAYOUT_TRANSFER_DST_OPTIMAL,
        .layout_after = VK_IMAGE_LAYOUT_SHADER_READ_ONLY_OPTIMAL, .src_stage = TRANSFER,
        .src_access = VK_ACCESS_TRANSFER_WRITE_BIT, .channels = CHANNELS, .tensor = pixels(s->x));

    check(tandem_record_pack_images(f->session, commands, &from, 1), "tandem_record_pack_images");
    check(tandem_record_release(f->session, commands, s->x, COMPUTE, VK_ACCESS_SHADER_WRITE_BIT),
          "tandem_record_release");
    check(tandem_record_release(f->session, commands, s->y, COMPUTE, VK_ACCESS_SHADER_READ_BIT),
          "tandem_record_release");
}

/* From the job's result to an image; and in place of a screen, to a buffer that the host reads. */
static void unpack(const effect *f, VkCommandBuffer commands, const slot *s)
{
    const tandem_pack_image to = TANDEM_INIT(
        tandem_pack_image, .format = FORMAT, .image = s->output.image, .view = s->output.view,
        .usage = VK_IMAGE_USAGE_STORAGE_BIT, .image_extent = {WIDTH, HEIGHT},
        .extent = {WIDTH, HEIGHT}, .layout_before = VK_IMAGE_LAYOUT_UNDEFINED,
        .layout_after = VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL, .src_stage = TRANSFER,
        .dst_stage = TRANSFER, .dst_access = VK_ACCESS_TRANSFER_READ_BIT, .channels = CHANNELS,
        .tensor = pixels(s->y));
    const VkBufferImageCopy all = {.imageSubresource = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1},
                                   .imageExtent = {WIDTH, HEIGHT, 1}};

    check(tandem_record_acquire(f->session, commands, s->y, COMPUTE, VK_ACCESS_SHADER_READ_BIT),
          "tandem_record_acquire");
    check(tandem_record_acquire(f->session, commands, s->x, COMPUTE, VK_ACCESS_SHADER_WRITE_BIT),
          "tandem_record_acquire");
    check(tandem_record_unpack_images(f->session, commands, &to, 1), "tandem_record_unpack_images");
    vkCmdCopyImageToBuffer(commands, s->output.image, VK_IMAGE_LAYOUT_TRANSFER_SRC_OPTIMAL,
                           s->result.buffer, 1, &all);
    read_by_host(commands);
}

/* In place of a network: y = x - x / 2. */
static tandem_job job_of(const slot *s)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_BINARY);

    job.op.binary = (tandem_binary){.a = pixels(s->x),
                                    .b = pixels(s->x),
                                    .y = pixels(s->y),
                                    .batch = 1,
                                    .heads = HEIGHT,
                                    .rows = WIDTH,
                                    .channels = CHANNELS,
                                    .scale = -0.5f};
    return job;
}

static void inline_frame(const effect *f, const engine *e, slot *s)
{
    const tandem_job job = job_of(s);

    begin_commands(s->first);
    draw(s->first, s, s->frame);
    pack(f, s->first, s);
    check(tandem_record(f->session, &job, s->first, &s->ticket), "tandem_record");
    unpack(f, s->first, s);
    submit_commands(e, s->first, (moment){0}, (moment){0}, s->fence);
}

static void timeline_frame(const effect *f, const engine *e, slot *s)
{
    tandem_job job = job_of(s);

    begin_commands(s->first);
    draw(s->first, s, s->frame);
    pack(f, s->first, s);
    submit_commands(e, s->first, (moment){0}, (moment){f->engine_semaphore, s->frame},
                    VK_NULL_HANDLE);
    check(tandem_timeline_submitted(f->session, f->from_engine, s->frame),
          "tandem_timeline_submitted");
    job.wait = (tandem_point){f->from_engine, s->frame};
    job.signal = (tandem_point){f->from_session, s->frame};
    check(tandem_submit(f->session, &job, &s->ticket), "tandem_submit");
    begin_commands(s->second);
    unpack(f, s->second, s);
    submit_commands(e, s->second, (moment){f->session_semaphore, s->frame}, (moment){0}, s->fence);
}

/* Waits for the frame that had the slot before, and looks at its result. */
static void finish(const effect *f, const engine *e, const slot *s)
{
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    const uint8_t *texel = (const uint8_t *)s->result.host + 4 * (TEXELS - 1);

    if (!s->frame)
        return;
    check(vkWaitForFences(e->vulkan.device, 1, &s->fence, VK_TRUE, 60000000000u),
          "vkWaitForFences");
    check(vkResetFences(e->vulkan.device, 1, &s->fence), "vkResetFences");
    check(tandem_wait(f->session, s->ticket, 1000000000, &report),
          "tandem_wait");                              /* behind the fence: it has ended */
    check(report.state != TANDEM_JOB_DONE, "the job"); /* an engine shows its own image instead */
    printf("frame %u: red %u became %u\n", (unsigned)s->frame, red_of(s->frame), texel[0]);
    check(texel[0] != red_of(s->frame) / 2 || texel[2] < 127 || texel[2] > 128 || texel[3] != 255,
          "the result");
}

int main(int argc, char **argv)
{
    static engine e;
    effect f = {0};

    e.features.features.shaderStorageImageWriteWithoutFormat =
        VK_TRUE; /* what unpacking needs beside Tandem's own list */
    open_engine(&e);
    open_effect(&f, &e, argc > 1 ? (uint32_t)atoi(argv[1]) : 0);
    for (uint64_t frame = 1; frame <= FRAMES; frame++) {
        slot *s = &f.slots[frame % IN_FLIGHT];

        finish(&f, &e, s);
        s->frame = frame;
        if (f.rung == TANDEM_RUNG_INLINE)
            inline_frame(&f, &e, s);
        else
            timeline_frame(&f, &e, s);
    }
    for (int i = 1; i <= IN_FLIGHT; i++)
        finish(&f, &e, &f.slots[(FRAMES + i) % IN_FLIGHT]);
    close_effect(&f, &e);
    close_engine(&e);
    return 0;
}
