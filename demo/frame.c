/* A frame: render, pack, job, unpack, composite, with up to two frames in flight.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The host never sleeps on a value that CUDA signals: on the timeline rung the consumer's submit waits for it on the
 * GPU and the host waits for that submit's fence. On the rungs below, where one queue may carry everything, a submit
 * that waits would hold up what comes after it: there the consumer is submitted once the job has ended.
 */
#include "demo/frame.h"
#include "interop/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shaders/filter_shared.h"

const char *const demo_stage_names[DEMO_STAGES] = {"render", "pack", "hand-over (to)", "attention", "hand-over (back)",
                                                   "unpack", "present"};

const char *const demo_effects[DEMO_EFFECTS] = {"filter", "denoise"};
const char *const demo_rungs[] = {"auto",
                                  [TANDEM_RUNG_INLINE] = "inline",
                                  [TANDEM_RUNG_TIMELINE] = "timeline",
                                  [TANDEM_RUNG_HOST] = "host",
                                  [TANDEM_RUNG_COPY] = "copy",
                                  [TANDEM_RUNG_CPU] = "cpu"};
const char *const demo_precisions[] = {[TANDEM_PRECISION_AUTO] = "auto",
                                       [TANDEM_PRECISION_F16] = "f16",
                                       [TANDEM_PRECISION_8B] = "8b",
                                       [TANDEM_PRECISION_4B] = "4b"};
const char *const demo_backends[] = {[TANDEM_BACKEND_AUTO] = "auto",
                                     [TANDEM_BACKEND_CUDA] = "cuda",
                                     [TANDEM_BACKEND_CPU] = "cpu"};

static const uint64_t REPORT_NS = 1000000000ull, CLOSE_NS = 3ull * 1000000000ull;
enum { REFERENCE_CHUNK = 16, CHUNK_SAMPLES = 1 << 20, TOKEN_BYTES = TD_FILTER_HEAD_DIM * 2 };
enum { Q_LEN = TD_FILTER_TILE * TD_FILTER_TILE, KV_WIDTH = TD_FILTER_TILE + 2 * TD_FILTER_HALO,
       KV_LEN = KV_WIDTH * KV_WIDTH };
enum { PROBE_BYTES = (3 * Q_LEN + 2 * KV_LEN) * TOKEN_BYTES };

static const VkImageUsageFlags IMAGE_USAGE = VK_IMAGE_USAGE_STORAGE_BIT | VK_IMAGE_USAGE_SAMPLED_BIT |
                                             VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
static const VkPipelineStageFlags COMPUTE = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;

static const uint32_t scene_words[] = {
#include "shaders/scene.spv.inc"
};
static const uint32_t features_words[] = {
#include "shaders/features.spv.inc"
};
static const uint32_t composite_words[] = {
#include "shaders/composite.spv.inc"
};

typedef struct features_push {
    float middle[4];
    uint32_t size[2];
} features_push;

typedef struct composite_push {
    uint32_t size[2], has_filtered, has_exact;
} composite_push;

static void sleep_ms(double ms)
{
    struct timespec rest = {(time_t)(ms / 1e3), 0};
    rest.tv_nsec = (long)((ms - 1e3 * (double)rest.tv_sec) * 1e6);
    while (nanosleep(&rest, &rest)) {
    }
}

/* A frame stays noisy, with the reason in p->trouble; all that follow too where the session is of no more use. */
static void trouble(demo_pipeline *p, demo_station *station, tandem_status status, const char *what)
{
    char text[200] = "", line[sizeof p->trouble];
    tandem_error_text(station->tandem.session, text, sizeof text);
    const bool lost = status == TANDEM_ERROR_LOST || status == TANDEM_ERROR_DEVICE;
    snprintf(line, sizeof line, "%s%s: %s", lost ? "session lost, " : "", what,
             text[0] ? text : tandem_status_text(status));
    if (!station->lost && strcmp(line, p->trouble) != 0)
        demo_fail("the picture is not filtered: %s", line);
    if (!station->lost)
        memcpy(p->trouble, line, sizeof line);
    station->lost = station->lost || lost;
}

static bool create_images(demo_pipeline *p, demo_slot *s)
{
    struct {
        demo_image *image;
        VkFormat format;
        const char *name;
    } list[] = {
        {&s->radiance, VK_FORMAT_R32G32B32A32_SFLOAT, "radiance"},
        {&s->position, VK_FORMAT_R32G32B32A32_SFLOAT, "position"},
        {&s->albedo, VK_FORMAT_R16G16B16A16_SFLOAT, "albedo"},
        {&s->normal, VK_FORMAT_R16G16B16A16_SFLOAT, "normal"},
        {&s->features[0], VK_FORMAT_R16G16B16A16_SFLOAT, "features 0"},
        {&s->features[1], VK_FORMAT_R16G16B16A16_SFLOAT, "features 1"},
        {&s->features[2], VK_FORMAT_R16G16B16A16_SFLOAT, "features 2"},
        {&s->feature_k, VK_FORMAT_R16G16B16A16_SFLOAT, "features 3 of K"},
        {&s->feature_q, VK_FORMAT_R16G16B16A16_SFLOAT, "features 3 of Q"},
        {&s->value, VK_FORMAT_R16G16B16A16_SFLOAT, "values"},
        {&s->filtered, VK_FORMAT_R16G16B16A16_SFLOAT, "filtered"},
        {&s->filtered_exact, VK_FORMAT_R16G16B16A16_SFLOAT, "filtered exactly"},
        {&s->result, VK_FORMAT_R16G16B16A16_SFLOAT, "result"},
        {&s->result_exact, VK_FORMAT_R16G16B16A16_SFLOAT, "exact result"},
    };
    enum { COUNT = sizeof list / sizeof *list };
    const demo_image *images[COUNT];
    for (int i = 0; i < COUNT; i++) {
        if (!demo_image_create(p->engine, list[i].format, p->options.width, p->options.height, IMAGE_USAGE,
                               list[i].name, list[i].image))
            return false;
        images[i] = list[i].image;
    }
    return demo_image_to_general(p->engine, images, COUNT);
}

static bool create_slot(demo_pipeline *p, demo_slot *s)
{
    demo_engine *e = p->engine;
    const VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                          .queueFamilyIndex = e->family};
    const VkQueryPoolCreateInfo queries = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                           .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                           .queryCount = DEMO_TIMESTAMPS};
    const VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    if (!demo_vk(e, vkCreateCommandPool(e->device, &pool, NULL, &s->pool), "making a command pool"))
        return false;
    const VkCommandBufferAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                  .commandPool = s->pool,
                                                  .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                                  .commandBufferCount = DEMO_COMMANDS};
    return demo_vk(e, vkAllocateCommandBuffers(e->device, &allocate, s->commands), "making command buffers") &&
           demo_vk(e, vkCreateQueryPool(e->device, &queries, NULL, &s->queries), "making a query pool") &&
           demo_vk(e, vkCreateFence(e->device, &fence, NULL, &s->fence), "making a fence") && create_images(p, s) &&
           demo_buffer_create(e, DEMO_PROBE_TILES * PROBE_BYTES, VK_BUFFER_USAGE_TRANSFER_DST_BIT, true, "probe",
                              &s->probe) &&
           demo_buffer_create(e, sizeof(struct td_scene_block), VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT, false, "scene",
                              &s->scene_block) &&
           memcpy(s->scene_block.host, &p->first_block, sizeof p->first_block);
}

static void lock_queue(void *user)
{
    demo_queue_lock(user);
}

static void unlock_queue(void *user)
{
    demo_queue_unlock(user);
}

static void on_log(void *user, int level, const char *text)
{
    demo_pipeline *p = user;
    if (p->options.log && !p->trying)
        p->options.log(p->options.log_user, level, text);
}

/* On failure `text` says why, and the station is empty. */
static bool create_station(demo_pipeline *p, demo_station *st, uint32_t rung, char *text, size_t bytes)
{
    demo_engine *e = p->engine;
    const uint64_t tokens = p->q_bytes + p->k_bytes + p->v_bytes;
    const uint64_t input = demo_denoiser_input_bytes(p->options.width, p->options.height);
    const uint64_t output = demo_denoiser_output_bytes(p->options.width, p->options.height);
    const integration_desc desc = {.vulkan = TANDEM_INIT(tandem_vulkan,
                                                         .api_version = VK_API_VERSION_1_2,
                                                         .get_instance_proc_addr = vkGetInstanceProcAddr,
                                                         .instance = e->instance,
                                                         .physical_device = e->physical,
                                                         .device = e->device,
                                                         .queue_family = e->family,
                                                         .enabled_extension_count = e->enabled.extension_count,
                                                         .enabled_extensions = e->enabled.extensions,
                                                         .enabled_features = &e->enabled.features,
                                                         .queue = e->queue,
                                                         .lock_queue = lock_queue,
                                                         .unlock_queue = unlock_queue,
                                                         .user = e),
                                   .input_bytes = tokens > input ? tokens : input,
                                   .output_bytes = 2 * p->o_bytes > output ? 2 * p->o_bytes : output,
                                   .backend = p->options.backend,
                                   .rung = rung,
                                   .cpu_threads = p->options.threads,
                                   .wait_bound_ns = demo_engine_on_cpu(e) ? UINT64_MAX : 0, /* demo_wait() has a bound of its own */
                                   .log = on_log,
                                   .user = p};
    *st = (demo_station){0};
    return integrate_open(&st->tandem, &desc, text, bytes);
}

static void close_station(demo_station *st)
{
    integrate_close(&st->tandem);
    *st = (demo_station){0};
}

static bool open_denoiser(demo_pipeline *p, demo_station *st, char *text, size_t bytes)
{
    const bool trying = p->trying;
    p->trying = true; /* what is wrong is said once, here */
    const bool ok = demo_denoiser_open(&st->denoiser, p->engine, &st->tandem, p->options.models, p->options.preset,
                                       p->options.width, p->options.height, text, bytes);
    p->trying = trying;
    return ok;
}

/* A session that no frame uses any more. */
static void retire(demo_pipeline *p, demo_station *st)
{
    if (st != p->station && !st->frames)
        close_station(st);
}

static void leave_station(demo_pipeline *p, demo_slot *s)
{
    demo_station *st = s->station;
    s->station = NULL;
    if (st) {
        st->frames--;
        retire(p, st);
    }
}

/* On the CPU's backend nobody but the host signals, so that `host` is `cpu` by another name. */
static bool is_cpu_again(const tandem_info *info)
{
    return info->backend == TANDEM_BACKEND_CPU && info->rung == TANDEM_RUNG_HOST;
}

demo_switch demo_pipeline_step_down(demo_pipeline *p, bool skip_same, char *text, size_t bytes)
{
    demo_station *now = p->station, *next = &p->stations[now == &p->stations[0]];
    char why[400] = "";
    bool found = false;
    if (next->tandem.session)
        return DEMO_SWITCH_LATER;
    for (uint32_t i = 0; i < TANDEM_RUNG_CPU - 1 && !found; i++) {
        const uint32_t rung = (now->tandem.info.rung + i) % TANDEM_RUNG_CPU + 1;
        p->trying = true;
        found = create_station(p, next, rung, why, sizeof why) && next->tandem.info.rung == rung &&
                !(skip_same && is_cpu_again(&next->tandem.info)) &&
                (!p->has_denoiser || open_denoiser(p, next, why, sizeof why));
        p->trying = false;
        if (!found)
            close_station(next);
    }
    if (!found) {
        snprintf(text, bytes, "no other rung than %s here: %.200s", demo_rungs[now->tandem.info.rung], why);
        return DEMO_SWITCH_FAILED;
    }
    p->station = next;
    p->info = next->tandem.info;
    p->trouble[0] = 0;
    retire(p, now);
    snprintf(text, bytes, "rung %s", demo_rungs[p->info.rung]);
    return DEMO_SWITCHED;
}

/* What renders a scene: how many of everything there are is compiled in. */
static bool create_scene(demo_pipeline *p, int scene)
{
    static const VkDescriptorType image = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE;
    const VkDescriptorType types[5] = {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, image, image, image, image};
    uint32_t constants[DEMO_MAX_CONSTANTS];
    demo_cast cast;
    demo_scene_cast(&cast);
    demo_scene_build(scene, &cast, &p->first_block);
    p->last_block = p->first_block;
    memcpy(constants, p->first_block.counts, sizeof p->first_block.counts);
    constants[4] = p->first_block.traits[0];
    return demo_compute_create(p->engine, scene_words, sizeof scene_words, types, 5, sizeof(struct td_scene_push), constants,
                               DEMO_MAX_CONSTANTS, "scene", &p->scene);
}

bool demo_pipeline_create(demo_pipeline *p, demo_engine *e, const demo_frame_options *options)
{
    static const VkDescriptorType storage = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE;
    VkDescriptorType types[DEMO_MAX_BINDINGS];
    char why[400] = "";
    p->engine = e;
    p->options = *options;
    p->station = &p->stations[0];
    /* One tile more each way than the frame has: the tiles are shifted. */
    p->max_tiles = ((options->width + 2 * TD_FILTER_TILE - 2) / TD_FILTER_TILE) *
                   ((options->height + 2 * TD_FILTER_TILE - 2) / TD_FILTER_TILE);
    p->q_bytes = p->o_bytes = (uint64_t)p->max_tiles * Q_LEN * TOKEN_BYTES;
    p->k_bytes = p->v_bytes = (uint64_t)p->max_tiles * KV_LEN * TOKEN_BYTES;
    for (int i = 0; i < DEMO_MAX_BINDINGS; i++)
        types[i] = storage;
    if (!demo_compute_create(e, features_words, sizeof features_words, types, 10, sizeof(features_push), NULL, 0,
                             "features",
                             &p->features) ||
        !demo_compute_create(e, composite_words, sizeof composite_words, types, 6, sizeof(composite_push), NULL, 0,
                             "composite", &p->composite) ||
        !demo_denoiser_pipeline(e, &p->guides))
        return false;
    if (!create_scene(p, options->scene))
        return false;
    if (!create_station(p, p->station, options->rung, why, sizeof why))
        return demo_fail("no session on %s: %s", e->properties.deviceName, why);
    p->info = p->station->tandem.info;
    const char *model = options->models[options->preset];
    p->has_denoiser = model && open_denoiser(p, p->station, p->no_denoiser, sizeof p->no_denoiser);
    if (options->model_asked && !p->has_denoiser)
        return demo_fail("--model %s: %s", model, p->no_denoiser);
    /* The CPU rung computes on the cores that render: a second frame in flight would add delay and win nothing. */
    p->in_flight = options->in_flight ? options->in_flight : p->info.rung == TANDEM_RUNG_CPU ? 1 : DEMO_SLOTS;
    for (uint32_t i = 0; i < DEMO_SLOTS; i++) {
        p->slots[i].index = i;
        if (!create_slot(p, &p->slots[i]))
            return false;
    }
    return true;
}

bool demo_pipeline_scene(demo_pipeline *p, int scene)
{
    demo_engine *e = p->engine;
    if (!demo_vk(e, vkDeviceWaitIdle(e->device), "waiting for the GPU"))
        return false;
    demo_compute_destroy(e, &p->scene);
    memset(&p->scene, 0, sizeof p->scene);
    p->options.scene = scene;
    for (int i = 0; i < 2; i++)
        demo_denoiser_forget(&p->stations[i].denoiser);
    if (!create_scene(p, scene))
        return false;
    for (int i = 0; i < DEMO_SLOTS; i++)
        memcpy(p->slots[i].scene_block.host, &p->first_block, sizeof p->first_block);
    return true;
}

void demo_pipeline_destroy(demo_pipeline *p)
{
    demo_engine *e = p->engine;
    if (!e || !e->device)
        return;
    for (int i = 0; i < DEMO_SLOTS && !e->lost; i++)
        if (p->slots[i].consumed)
            vkWaitForFences(e->device, 1, &p->slots[i].fence, VK_TRUE, CLOSE_NS);
    /* Ends what runs and signals what is waited for, so that the queue empties. */
    for (int i = 0; i < DEMO_SLOTS; i++) {
        const demo_slot *s = &p->slots[i];
        if (s->begun && s->ticket && s->station && !s->recording)
            tandem_wait(s->station->tandem.session, s->ticket, CLOSE_NS, NULL);
    }
    vkDeviceWaitIdle(e->device);
    for (int i = 0; i < 2; i++)
        close_station(&p->stations[i]);
    for (int i = 0; i < DEMO_SLOTS; i++) {
        demo_slot *s = &p->slots[i];
        demo_image *images[] = {&s->radiance, &s->albedo,    &s->normal,   &s->position,       &s->features[0],
                                &s->features[1], &s->features[2], &s->feature_k, &s->feature_q, &s->value,
                                &s->filtered, &s->filtered_exact, &s->result, &s->result_exact};
        for (size_t j = 0; j < sizeof images / sizeof *images; j++)
            demo_image_destroy(e, images[j]);
        demo_buffer_destroy(e, &s->probe);
        demo_buffer_destroy(e, &s->scene_block);
        vkDestroyFence(e->device, s->fence, NULL);
        vkDestroyQueryPool(e->device, s->queries, NULL);
        vkDestroyCommandPool(e->device, s->pool, NULL);
    }
    demo_compute_destroy(e, &p->scene);
    demo_compute_destroy(e, &p->features);
    demo_compute_destroy(e, &p->composite);
    demo_compute_destroy(e, &p->guides);
    demo_image_destroy(e, &p->reference);
    memset(p, 0, sizeof *p);
}

static bool begin_commands(demo_engine *e, demo_slot *s)
{
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    return demo_vk(e, vkBeginCommandBuffer(s->commands[s->command], &begin), "beginning a command buffer");
}

typedef struct submit_points {
    VkSemaphore wait[2], signal[2];
    uint64_t wait_value[2], signal_value[2];
    uint32_t waits, signals;
} submit_points;

static bool submit_commands(demo_engine *e, demo_slot *s, const submit_points *points, VkFence fence)
{
    const VkPipelineStageFlags stages[2] = {VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT};
    const VkTimelineSemaphoreSubmitInfo values = {.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                  .waitSemaphoreValueCount = points->waits,
                                                  .pWaitSemaphoreValues = points->wait_value,
                                                  .signalSemaphoreValueCount = points->signals,
                                                  .pSignalSemaphoreValues = points->signal_value};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &values,
                                 .waitSemaphoreCount = points->waits,
                                 .pWaitSemaphores = points->wait,
                                 .pWaitDstStageMask = stages,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &s->commands[s->command],
                                 .signalSemaphoreCount = points->signals,
                                 .pSignalSemaphores = points->signal};
    if (!demo_vk(e, vkEndCommandBuffer(s->commands[s->command]), "ending a command buffer"))
        return false;
    s->command++;
    demo_queue_lock(e);
    const VkResult result = vkQueueSubmit(e->queue, 1, &submit, fence);
    demo_queue_unlock(e);
    return demo_vk(e, result, "submitting");
}

/* Runs what is recorded so far, waits for it, sleeps, and goes on in the next command buffer: the stage that has not
 * written its last timestamp yet takes so much longer. */
static bool pause_inside(demo_engine *e, demo_slot *s, double ms, submit_points *points)
{
    if (ms <= 0)
        return true;
    if (!demo_vk(e, vkResetFences(e->device, 1, &e->once_fence), "resetting a fence") ||
        !submit_commands(e, s, points, e->once_fence) || !demo_wait(e, e->once_fence, "waiting for the GPU"))
        return false;
    memset(points, 0, sizeof *points);
    sleep_ms(ms);
    return begin_commands(e, s);
}

/* `top`: when the commands before it let those behind begin, rather than when they have ended. */
static void stamp(demo_slot *s, uint32_t query, bool top)
{
    vkCmdWriteTimestamp(s->commands[s->command],
                        top ? VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT : VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, s->queries,
                        query);
}

/* From one shader's writes to the next one's reads and writes. */
static void shader_barrier(VkCommandBuffer commands)
{
    demo_memory_barrier(commands, COMPUTE, VK_ACCESS_SHADER_WRITE_BIT, COMPUTE,
                        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

/* No frame that reads the slot's scene is under way. */
static void set_scene(demo_pipeline *p, demo_slot *s, const demo_frame_request *at)
{
    struct td_scene_block block;
    demo_cast cast = at->cast;
    if (!demo_scene_moves(p->options.scene))
        return;
    cast.seconds = at->seconds;
    demo_scene_build(p->options.scene, &cast, &block);
    demo_scene_mark_moves(&p->last_block, &block);
    memcpy(s->scene_block.host, &block, sizeof block);
    p->last_block = block;
}

static void record_scene(demo_pipeline *p, VkCommandBuffer commands, demo_slot *s, const demo_image *to,
                         const demo_frame_request *at, uint32_t stream, uint32_t samples, uint32_t already)
{
    struct td_scene_push push = {0};
    demo_scene_camera(p->options.scene, &at->cast, at->seconds, p->options.width, p->options.height, &push);
    push.size[0] = p->options.width;
    push.size[1] = p->options.height;
    push.size[2] = samples;
    push.size[3] = already;
    push.random[0] = p->options.seed;
    push.random[1] = stream;
    push.random[2] = DEMO_BOUNCES;
    push.random[3] = at->jitter;
    const demo_binding bindings[] = {{.buffer = &s->scene_block}, {.image = to},           {.image = &s->albedo},
                                     {.image = &s->normal},       {.image = &s->position}};
    demo_compute_record(p->engine, commands, &p->scene, bindings, &push, p->options.width, p->options.height);
}

static void record_features(demo_pipeline *p, VkCommandBuffer commands, demo_slot *s)
{
    features_push push = {.size = {p->options.width, p->options.height}};
    demo_scene_middle(&p->first_block, push.middle);
    const demo_binding bindings[] = {{.image = &s->radiance},    {.image = &s->albedo},      {.image = &s->normal},
                                     {.image = &s->position},    {.image = &s->features[0]}, {.image = &s->features[1]},
                                     {.image = &s->features[2]}, {.image = &s->feature_k},   {.image = &s->feature_q},
                                     {.image = &s->value}};
    demo_compute_record(p->engine, commands, &p->features, bindings, &push, p->options.width, p->options.height);
}

/* What the network reads, in place of features and tokens. */
static tandem_status record_guides(demo_pipeline *p, VkCommandBuffer commands, demo_slot *s)
{
    const demo_guides guides = {&s->radiance, &s->albedo, &s->normal, &s->position};
    s->station->denoiser.preset = s->request.preset;
    struct td_scene_push camera = {0};
    demo_scene_camera(p->options.scene, &s->request.cast, s->request.seconds, p->options.width, p->options.height, &camera);
    return demo_denoiser_write(&s->station->denoiser, p->engine, &p->guides, &s->station->tandem, s->job, commands, &guides,
                               &camera, s->request.cut);
}

static tandem_view token_view(tandem_mem mem, uint64_t offset_bytes, uint32_t rows)
{
    return (tandem_view){.mem = mem,
                         .offset_bytes = offset_bytes,
                         .dtype = TANDEM_DTYPE_F16,
                         .stride_batch = (int64_t)rows * TD_FILTER_HEAD_DIM,
                         .stride_head = (int64_t)rows * TD_FILTER_HEAD_DIM,
                         .stride_row = TD_FILTER_HEAD_DIM};
}

/* The tiles' grid moves from frame to frame, as far as no further row or column of tiles is needed for it. */
static uint32_t shift_of(uint64_t index, uint32_t pixels, uint32_t step)
{
    const uint32_t spare = (TD_FILTER_TILE - pixels % TD_FILTER_TILE) % TD_FILTER_TILE;
    return (uint32_t)(index * step % ((spare ? spare : TD_FILTER_TILE - 1) + 1));
}

static tandem_pack pack_of(demo_pipeline *p, demo_slot *s)
{
    return TANDEM_INIT(tandem_pack,
                       .layout = VK_IMAGE_LAYOUT_GENERAL,
                       .width = p->options.width,
                       .height = p->options.height,
                       .tile_width = TD_FILTER_TILE,
                       .tile_height = TD_FILTER_TILE,
                       .shift_x = s->outcome.shift_x,
                       .shift_y = s->outcome.shift_y,
                       .view_channels = TD_FILTER_HEAD_DIM);
}

static tandem_status record_pack(demo_pipeline *p, VkCommandBuffer commands, demo_slot *s)
{
    tandem_pack q = pack_of(p, s), k, v;
    q.image_count = 4;
    q.channels = TD_FILTER_CHANNELS;
    for (int i = 0; i < 3; i++)
        q.images[i] = s->features[i].view;
    q.images[3] = s->feature_q.view;
    k = q;
    q.view = token_view(s->job->input, 0, Q_LEN);
    k.images[3] = s->feature_k.view;
    k.halo = TD_FILTER_HALO;
    k.view = token_view(s->job->input, p->q_bytes, KV_LEN);
    v = k;
    v.image_count = 1;
    v.channels = 4;
    v.images[0] = s->value.view;
    v.view = token_view(s->job->input, p->q_bytes + p->k_bytes, KV_LEN);
    tandem_session *session = s->station->tandem.session;
    tandem_status status = tandem_pack_tiles(session, &q, &s->tiles_x, &s->tiles_y);
    if (status == TANDEM_OK && s->tiles_x * s->tiles_y > p->max_tiles)
        status = TANDEM_ERROR_ARG;
    if (status == TANDEM_OK)
        status = tandem_record_pack(session, commands, &q);
    if (status == TANDEM_OK)
        status = tandem_record_pack(session, commands, &k);
    if (status == TANDEM_OK)
        status = tandem_record_pack(session, commands, &v);
    return status;
}

static tandem_status one_job(demo_pipeline *p, demo_slot *s, uint32_t precision, uint32_t smooth,
                             uint64_t output_offset, tandem_ticket *ticket)
{
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION);
    job.op.attention = (tandem_attention){.q = token_view(s->job->input, 0, Q_LEN),
                                          .k = token_view(s->job->input, p->q_bytes, KV_LEN),
                                          .v = token_view(s->job->input, p->q_bytes + p->k_bytes, KV_LEN),
                                          .o = token_view(s->job->output, output_offset, Q_LEN),
                                          .batch = s->tiles_x * s->tiles_y,
                                          .heads = 1,
                                          .kv_heads = 1,
                                          .q_len = Q_LEN,
                                          .kv_len = KV_LEN,
                                          .head_dim = TD_FILTER_HEAD_DIM,
                                          .scale = TD_FILTER_SCALE,
                                          .precision = precision,
                                          .smooth = smooth};
    return integrate_job(&s->station->tandem, s->job, &job, s->commands[s->command], ticket);
}

static tandem_status network_job(demo_slot *s)
{
    demo_denoiser *d = &s->station->denoiser;
    tandem_view views[DEMO_DENOISER_BINDINGS];
    tandem_job job;
    demo_denoiser_job(d, s->job, views, &job);
    const tandem_status status = integrate_job(&s->station->tandem, s->job, &job, s->commands[s->command], &s->ticket);
    demo_denoiser_go_on(d, status == TANDEM_OK);
    return status;
}

/* The frame's job, and the second one on the same tokens if there is one. */
static void give_jobs(demo_pipeline *p, demo_slot *s)
{
    const demo_frame_request *r = &s->request;
    const uint32_t smooth = r->precision == TANDEM_PRECISION_F16 ? TANDEM_SMOOTH_DEFAULT : r->smooth;
    s->outcome.submit_ns = td_now_ns();
    tandem_status status = r->effect == DEMO_EFFECT_DENOISE ? network_job(s) : one_job(p, s, r->precision, smooth, 0, &s->ticket);
    if (status == TANDEM_OK && r->exact)
        status = one_job(p, s, TANDEM_PRECISION_F16, TANDEM_SMOOTH_DEFAULT, p->o_bytes, &s->second_ticket);
    else if (status == TANDEM_OK && r->trial)
        status = one_job(p, s, TANDEM_PRECISION_8B, r->smooth, p->o_bytes, &s->second_ticket);
    if (status != TANDEM_OK)
        trouble(p, s->station, status, s->recording ? "recording a job" : "submitting a job");
    else if (!s->station->lost)
        p->trouble[0] = 0;
}

bool demo_frame_at_once(const demo_slot *s)
{
    return s->recording;
}

bool demo_frame_begin(demo_pipeline *p, demo_slot *s, const demo_frame_request *request)
{
    demo_engine *e = p->engine;
    demo_station *st = p->station;
    submit_points points = {0};
    leave_station(p, s);
    s->station = st;
    s->job = &st->tandem.slots[s->index];
    st->frames++;
    s->request = *request;
    const bool network = request->effect == DEMO_EFFECT_DENOISE;
    if (network) /* it has no tokens */
        s->request.exact = s->request.probe = s->request.trial = false;
    s->outcome = (demo_frame_result){
        .index = request->index, .rung = st->tandem.info.rung, .effect = request->effect, .preset = request->preset};
    s->outcome.shift_x = shift_of(request->index, p->options.width, 7);
    s->outcome.shift_y = shift_of(request->index, p->options.height, 5);
    s->ticket = s->second_ticket = 0;
    s->command = 0;
    s->slept_ms = 0;
    s->consumed = s->recording = false;
    if (!demo_vk(e, vkResetCommandPool(e->device, s->pool, 0), "resetting a command pool") || !begin_commands(e, s))
        return false;
    VkCommandBuffer commands = s->commands[s->command];
    vkCmdResetQueryPool(commands, s->queries, 0, DEMO_TIMESTAMPS);
    stamp(s, 0, false);
    demo_label(e, commands, "render");
    demo_memory_barrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, COMPUTE, 0);
    set_scene(p, s, request);
    record_scene(p, commands, s, &s->radiance, request, (uint32_t)request->index + 1, 1, 0);
    demo_label(e, commands, NULL);
    if (!pause_inside(e, s, p->options.inject_ms[DEMO_RENDER], &points))
        return false;
    commands = s->commands[s->command];
    shader_barrier(commands);
    stamp(s, 1, false);
    demo_label(e, commands, "pack");
    tandem_status status = TANDEM_ERROR_LOST;
    if (!network) {
        record_features(p, commands, s);
        shader_barrier(commands);
    }
    if (!st->lost)
        status = network ? record_guides(p, commands, s) : record_pack(p, commands, s);
    s->outcome.cut = network && st->denoiser.cut;
    demo_label(e, commands, NULL);
    if (!pause_inside(e, s, p->options.inject_ms[DEMO_PACK], &points))
        return false;
    stamp(s, 2, false);
    if (status == TANDEM_OK)
        status = integrate_give(&st->tandem, s->job, s->commands[s->command]);
    const bool packed = status == TANDEM_OK;
    if (!packed && !st->lost)
        trouble(p, st, status, "packing");
    s->begun = true;
    if (packed && integrate_records(&st->tandem)) {
        s->recording = true;
        if (!pause_inside(e, s, p->options.inject_ms[DEMO_TO], &points))
            return false;
        demo_label(e, s->commands[s->command], network ? "denoiser" : "attention");
        give_jobs(p, s);
        demo_label(e, s->commands[s->command], NULL);
        return true;
    }
    if (packed) {
        const integration_point given = integrate_given(&st->tandem);
        points = (submit_points){.signal = {given.semaphore}, .signal_value = {given.value}, .signals = 1};
    }
    VkFence fence = VK_NULL_HANDLE;
    if (p->options.inject_ms[DEMO_TO] > 0) {
        fence = e->once_fence;
        if (!demo_vk(e, vkResetFences(e->device, 1, &fence), "resetting a fence"))
            return false;
    }
    if (!submit_commands(e, s, &points, fence))
        return false;
    if (fence) {
        if (!demo_wait(e, fence, "waiting for the GPU"))
            return false;
        sleep_ms(p->options.inject_ms[DEMO_TO]);
    }
    if (!packed)
        return true;
    status = integrate_submitted(&st->tandem);
    if (status != TANDEM_OK)
        trouble(p, st, status, "announcing a submit");
    give_jobs(p, s);
    return true;
}

/* Waits until a job has ended; false if it did not end well. */
static bool job_done(demo_pipeline *p, demo_slot *s, tandem_ticket ticket)
{
    const integration *it = &s->station->tandem;
    demo_patience patience = demo_patience_begin(demo_engine_on_cpu(p->engine) || it->info.backend == TANDEM_BACKEND_CPU);
    tandem_status status;
    do
        status = integrate_wait(it, ticket, DEMO_PATIENCE_STEP_NS);
    while (status == TANDEM_ERROR_BUSY && demo_patience_lasts(&patience, clock()));
    if (status != TANDEM_OK)
        trouble(p, s->station, status, "a job");
    return status == TANDEM_OK;
}

static void record_probe_copies(demo_pipeline *p, VkCommandBuffer commands, demo_slot *s)
{
    tandem_mem_vulkan tokens = TANDEM_INIT(tandem_mem_vulkan), output = tokens;
    if (tandem_mem_get_vulkan(s->station->tandem.session, s->job->input, &tokens) != TANDEM_OK ||
        tandem_mem_get_vulkan(s->station->tandem.session, s->job->output, &output) != TANDEM_OK)
        return;
    for (uint32_t i = 0; i < DEMO_PROBE_TILES; i++) {
        const uint64_t tile = (s->request.index * 29 + i * 83 + 11) % (s->tiles_x * s->tiles_y);
        const VkDeviceSize at = (VkDeviceSize)i * PROBE_BYTES, q = (VkDeviceSize)Q_LEN * TOKEN_BYTES;
        const VkDeviceSize kv = (VkDeviceSize)KV_LEN * TOKEN_BYTES;
        const VkBufferCopy inputs[3] = {{tile * q, at, q},
                                        {p->q_bytes + tile * kv, at + q, kv},
                                        {p->q_bytes + p->k_bytes + tile * kv, at + q + kv, kv}};
        const VkBufferCopy results[2] = {{tile * q, at + q + 2 * kv, q},
                                         {p->o_bytes + tile * q, at + 2 * q + 2 * kv, q}};
        vkCmdCopyBuffer(commands, tokens.buffer, s->probe.buffer, 3, inputs);
        vkCmdCopyBuffer(commands, output.buffer, s->probe.buffer, s->outcome.tried ? 2 : 1, results);
    }
    demo_memory_barrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                        VK_PIPELINE_STAGE_HOST_BIT,
                        VK_ACCESS_HOST_READ_BIT);
    s->outcome.probed = true;
}

static void record_composite(demo_pipeline *p, VkCommandBuffer commands, demo_slot *s)
{
    const composite_push push = {.size = {p->options.width, p->options.height},
                                 .has_filtered = s->outcome.denoised ? 1 + (s->request.effect == DEMO_EFFECT_DENOISE) : 0,
                                 .has_exact = s->outcome.exact};
    const demo_binding bindings[] = {{.image = &s->radiance},       {.image = &s->albedo}, {.image = &s->filtered},
                                     {.image = &s->filtered_exact}, {.image = &s->result}, {.image = &s->result_exact}};
    demo_compute_record(p->engine, commands, &p->composite, bindings, &push, p->options.width, p->options.height);
}

/* Copied from only for the probe: a recorded job hands over to compute work alone at no cost. */
static tandem_status record_acquire(VkCommandBuffer commands, demo_slot *s, tandem_mem mem)
{
    const bool copied = s->request.probe;
    return integrate_take(&s->station->tandem, mem, commands,
                          COMPUTE | (copied ? VK_PIPELINE_STAGE_TRANSFER_BIT : 0),
                          VK_ACCESS_SHADER_READ_BIT | (copied ? VK_ACCESS_TRANSFER_READ_BIT : 0));
}

static tandem_status record_unpack(demo_pipeline *p, VkCommandBuffer commands, demo_slot *s)
{
    tandem_session *session = s->station->tandem.session;
    tandem_pack unpack = pack_of(p, s);
    unpack.image_count = 1;
    unpack.channels = 3;
    unpack.format = s->filtered.format;
    unpack.images[0] = s->filtered.view;
    unpack.view = token_view(s->job->output, 0, Q_LEN);
    if (s->request.effect == DEMO_EFFECT_DENOISE) { /* one tile */
        unpack.tile_width = unpack.width;
        unpack.tile_height = unpack.height;
        unpack.shift_x = unpack.shift_y = 0;
        unpack.view = demo_denoiser_out(&s->station->denoiser, s->job);
    }
    tandem_status status = tandem_record_unpack(session, commands, &unpack);
    if (status == TANDEM_OK && s->outcome.exact) {
        unpack.images[0] = s->filtered_exact.view;
        unpack.view = token_view(s->job->output, p->o_bytes, Q_LEN);
        status = tandem_record_unpack(session, commands, &unpack);
    }
    return status;
}

bool demo_frame_consume(demo_pipeline *p, demo_slot *s, const demo_present *present)
{
    demo_engine *e = p->engine;
    const double *inject = p->options.inject_ms;
    submit_points points = {0};
    const bool inject_job = inject[DEMO_ATTENTION] > 0 || inject[DEMO_BACK] > 0;
    /* An injected delay of attention or hand-over begins once the job has ended, on any rung. */
    const bool host_waits = !s->recording && (s->station->tandem.info.rung > TANDEM_RUNG_TIMELINE || inject_job);
    const bool goes_on = s->recording;
    s->outcome.denoised = s->ticket && (!host_waits || job_done(p, s, s->ticket));
    const bool second = s->outcome.denoised && s->second_ticket && (!host_waits || job_done(p, s, s->second_ticket));
    s->outcome.exact = second && s->request.exact;
    s->outcome.tried = second && !s->request.exact;
    s->recording = false;
    if (goes_on && inject_job && !pause_inside(e, s, 1e-3, &points))
        return false;
    if (s->outcome.denoised && inject[DEMO_ATTENTION] > 0) {
        const uint64_t from = td_now_ns();
        sleep_ms(inject[DEMO_ATTENTION]);
        s->slept_ms = (double)(td_now_ns() - from) * 1e-6;
    }
    sleep_ms(inject[DEMO_BACK]);

    if (!goes_on && !begin_commands(e, s))
        return false;
    VkCommandBuffer commands = s->commands[s->command];
    if (s->outcome.denoised) {
        if (!goes_on) {
            const integration_point done = integrate_done(&s->station->tandem, s->job);
            points = (submit_points){.wait = {done.semaphore}, .wait_value = {done.value}, .waits = 1};
        }
        const tandem_status status = record_acquire(commands, s, s->job->output);
        if (status != TANDEM_OK) {
            trouble(p, s->station, status, "taking the output back");
            s->outcome.denoised = s->outcome.exact = s->outcome.tried = false;
        }
    }
    stamp(s, 3, true);
    demo_label(e, commands, "unpack");
    if (s->outcome.denoised) {
        tandem_status status = record_unpack(p, commands, s);
        /* Behind what waits for the output: nobody reads them but the probe. */
        if (status == TANDEM_OK)
            status = record_acquire(commands, s, s->job->input);
        if (status != TANDEM_OK) {
            trouble(p, s->station, status, "unpacking");
            s->outcome.denoised = s->outcome.exact = s->outcome.tried = false;
        }
    }
    demo_label(e, commands, NULL);
    if (!pause_inside(e, s, inject[DEMO_UNPACK], &points))
        return false;
    commands = s->commands[s->command];
    shader_barrier(commands);
    stamp(s, 4, false);
    demo_label(e, commands, "present");
    record_composite(p, commands, s);
    demo_memory_barrier(commands, COMPUTE, VK_ACCESS_SHADER_WRITE_BIT,
                        VK_PIPELINE_STAGE_FRAGMENT_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
                        VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_TRANSFER_READ_BIT);
    if (present && present->record)
        present->record(present->user, commands, s);
    demo_label(e, commands, NULL);
    if (!pause_inside(e, s, inject[DEMO_PRESENT], &points))
        return false;
    commands = s->commands[s->command];
    stamp(s, 5, false);
    if (s->request.probe && s->outcome.denoised)
        record_probe_copies(p, commands, s);
    if (present && present->wait) {
        points.wait[points.waits] = present->wait;
        points.wait_value[points.waits++] = 0;
    }
    if (present && present->signal) {
        points.signal[points.signals] = present->signal;
        points.signal_value[points.signals++] = 0;
    }
    s->consumed = demo_vk(e, vkResetFences(e->device, 1, &s->fence), "resetting a fence") &&
                  submit_commands(e, s, &points, s->fence);
    return s->consumed;
}

bool demo_frame_redraw(demo_pipeline *p, demo_slot *s, const demo_present *present)
{
    demo_engine *e = p->engine;
    submit_points points = {0};
    s->command = 0;
    if (!demo_vk(e, vkResetCommandPool(e->device, s->pool, 0), "resetting a command pool") || !begin_commands(e, s))
        return false;
    present->record(present->user, s->commands[0], s);
    if (present->wait) {
        points.wait[points.waits++] = present->wait;
    }
    if (present->signal) {
        points.signal[points.signals++] = present->signal;
    }
    return demo_vk(e, vkResetFences(e->device, 1, &s->fence), "resetting a fence") &&
           submit_commands(e, s, &points, s->fence) && demo_wait(e, s->fence, "waiting for the GPU");
}

/* The GPU's stamps on CLOCK_MONOTONIC. Without calibrated clocks the last stamp is taken for the moment when the fence
 * was seen. */
static void map_clocks(demo_engine *e, const uint64_t ticks[DEMO_TIMESTAMPS], uint64_t seen_ns,
                       uint64_t out[DEMO_TIMESTAMPS])
{
    uint64_t base_ticks = ticks[DEMO_TIMESTAMPS - 1], base_ns = seen_ns;
    demo_clock_pair(e, &base_ticks, &base_ns);
    for (int i = 0; i < DEMO_TIMESTAMPS; i++) {
        const double ahead = (double)(int64_t)(ticks[i] - base_ticks) * (double)e->properties.limits.timestampPeriod;
        out[i] = base_ns + (uint64_t)(int64_t)ahead;
    }
}

static void read_probe(demo_pipeline *p, demo_slot *s)
{
    for (uint32_t i = 0; i < DEMO_PROBE_TILES; i++) {
        uint16_t *q = (uint16_t *)((char *)s->probe.host + (size_t)i * PROBE_BYTES);
        uint16_t *k = q + Q_LEN * TD_FILTER_HEAD_DIM;
        uint16_t *v = k + KV_LEN * TD_FILTER_HEAD_DIM, *o = v + KV_LEN * TD_FILTER_HEAD_DIM;
        const uint32_t step = Q_LEN / DEMO_PROBE_ROWS;
        demo_probe_rows(q, k, v, o, Q_LEN, KV_LEN, TD_FILTER_HEAD_DIM, TD_FILTER_SCALE,
                        (uint32_t)(s->request.index % step), step,
                        p->options.inject_error, &s->outcome.accuracy);
        if (s->outcome.tried)
            demo_probe_rows(q, k, v, o + Q_LEN * TD_FILTER_HEAD_DIM, Q_LEN, KV_LEN, TD_FILTER_HEAD_DIM,
                            TD_FILTER_SCALE, (uint32_t)(s->request.index % step), step, p->options.inject_error,
                            &s->outcome.trial);
    }
}

bool demo_frame_complete(demo_pipeline *p, demo_slot *s, demo_frame_result *out)
{
    demo_engine *e = p->engine;
    uint64_t ticks[DEMO_TIMESTAMPS], gpu[DEMO_TIMESTAMPS];
    demo_frame_result *r = &s->outcome;
    if (!demo_wait(e, s->fence, "waiting for a frame") ||
        !demo_vk(e, vkGetQueryPoolResults(e->device, s->queries, 0, DEMO_TIMESTAMPS, sizeof ticks, ticks, sizeof *ticks,
                                          VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
                 "reading timestamps"))
        return false;
    map_clocks(e, ticks, td_now_ns(), gpu);
    s->begun = s->consumed = false;

    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    uint64_t begin = gpu[2], end = gpu[2];
    /* The session may learn a moment after the GPU that the job has ended. */
    if (s->ticket && tandem_wait(s->station->tandem.session, s->ticket, REPORT_NS, &report) == TANDEM_OK) {
        r->precision = report.precision;
        if (report.state == TANDEM_JOB_DONE && report.begin_ns) {
            const uint64_t took = report.end_ns - report.begin_ns + (uint64_t)(s->slept_ms * 1e6);
            begin = report.begin_ns;
            /* Each clock is exact by itself, but they are a microsecond apart: the job lies between its stamps. */
            if (gpu[2] + took <= gpu[3])
                begin = begin < gpu[2] ? gpu[2] : begin + took > gpu[3] ? gpu[3] - took : begin;
            end = begin + took;
        } else if (report.state != TANDEM_JOB_DONE) {
            trouble(p, s->station, (tandem_status)report.status, "a job");
            demo_denoiser_forget(&s->station->denoiser);
            r->denoised = r->exact = false;
        }
    }
    const uint64_t moments[DEMO_STAGES + 1] = {gpu[0], gpu[1], gpu[2], begin, end, gpu[3], gpu[4], gpu[5]};
    for (int i = 0; i <= DEMO_STAGES; i++)
        r->at_ns[i] = i && moments[i] < r->at_ns[i - 1] ? r->at_ns[i - 1] : moments[i];
    for (int i = 0; i < DEMO_STAGES; i++)
        r->stage_ms[i] = (double)(r->at_ns[i + 1] - r->at_ns[i]) * 1e-6;
    r->frame_ms = (double)(ticks[DEMO_TIMESTAMPS - 1] - ticks[0]) * (double)e->properties.limits.timestampPeriod * 1e-6;
    r->probed = r->probed && r->denoised;
    report = TANDEM_INIT(tandem_job_report);
    r->tried = r->tried && r->probed &&
               tandem_wait(s->station->tandem.session, s->second_ticket, REPORT_NS, &report) == TANDEM_OK &&
               report.state == TANDEM_JOB_DONE;
    if (r->probed)
        read_probe(p, s);
    *out = *r;
    return true;
}

/* `already` samples are there; its surfaces are written to the slot's images where there are none yet. */
static bool add_samples(demo_pipeline *p, demo_slot *s, const demo_image *to, const demo_frame_request *at, uint32_t stream,
                        uint32_t samples, uint32_t already)
{
    demo_engine *e = p->engine;
    /* As many at once as a slow device renders in seconds, not in a minute. */
    const uint64_t pixels = (uint64_t)p->options.width * p->options.height * (p->first_block.traits[0] ? 4 : 1);
    const uint32_t fits = (uint32_t)(CHUNK_SAMPLES / pixels), chunk = fits < 1 ? 1 : fits < REFERENCE_CHUNK ? fits : REFERENCE_CHUNK;
    set_scene(p, s, at);
    for (uint32_t done = 0; done < samples;) {
        const uint32_t now = samples - done < chunk ? samples - done : chunk;
        if (!demo_once_begin(e))
            return false;
        shader_barrier(e->once);
        record_scene(p, e->once, s, to, at, stream, now, already + done);
        if (!demo_once_end(e))
            return false;
        done += now;
    }
    return true;
}

bool demo_render_reference(demo_pipeline *p, demo_slot *s, const demo_frame_request *at, uint32_t samples, uint32_t stream,
                           float *rgba)
{
    return add_samples(p, s, &s->radiance, at, stream, samples, 0) && demo_image_read(p->engine, &s->radiance, rgba);
}

bool demo_reference_add(demo_pipeline *p, demo_slot *s, uint32_t samples, bool first)
{
    const demo_image *image = &p->reference;
    if (!image->image && (!demo_image_create(p->engine, s->radiance.format, p->options.width, p->options.height, IMAGE_USAGE,
                                             "reference", &p->reference) ||
                          !demo_image_to_general(p->engine, &image, 1)))
        return false;
    const uint32_t already = first ? 0 : p->reference_samples;
    p->reference_samples = already + samples;
    return add_samples(p, s, image, &s->request, DEMO_REFERENCE_STREAM, samples, already);
}
