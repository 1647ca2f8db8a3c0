/* A game that was built with the first headers (beside this file, as they were), and runs with whatever library there is.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     game FOLDER [SOCKET]      on host memory, and on a Vulkan device where there is one; in the tandemd at SOCKET
 *
 * It calls each function that those headers have, as they say; its model it writes into FOLDER. Whatever it does not get
 * stops it with a line on stderr.
 */
#include <dlfcn.h>
#include <math.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tandem/plugin.h>

#include "../layout.inc"

_Static_assert(sizeof(tandem_job) == 336 && sizeof(tandem_requirement) == 40 && sizeof(tandem_api) == 264,
               "these are not the headers that this game was built with");

enum { HEADS = 2, ROWS = 48, DIM = 64, PLANE = ROWS * DIM, VALUES = HEADS * PLANE, BYTES = VALUES * 4 };
#define SECOND ((uint64_t)1000000000)

#define WANT(condition)                                                                          \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            char text[512] = "";                                                                 \
            tandem_error_text(session, text, sizeof text);                                       \
            fprintf(stderr, "game: line %d: %s is not so; last error: %s\n", __LINE__, #condition, text); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)
#define OK(call) WANT((call) == TANDEM_OK)

static tandem_session *session; /* the one that WANT asks */
static const tandem_api *api;
static unsigned lines;

static void log_line(void *user, int level, const char *text)
{
    (void)user, (void)text;
    lines += level == TANDEM_LOG_INFO;
}

/* --- One attention --- */

static float value(uint32_t i)
{
    return (float)(i * 2654435761u >> 8 & 0xffff) / 32768 - 1;
}

static tandem_view dense(tandem_mem mem, uint64_t offset)
{
    return (tandem_view){.mem = mem, .offset_bytes = offset, .dtype = TANDEM_DTYPE_F32, .stride_batch = VALUES,
                         .stride_head = PLANE, .stride_row = DIM};
}

static tandem_job attention(tandem_mem mem)
{
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};

    job.op.attention = (tandem_attention){.q = dense(mem, 0), .k = dense(mem, BYTES), .v = dense(mem, 2 * BYTES),
                                          .o = dense(mem, 3 * BYTES), .batch = 1, .heads = HEADS, .kv_heads = HEADS,
                                          .q_len = ROWS, .kv_len = ROWS, .head_dim = DIM, .causal = 1,
                                          .precision = TANDEM_PRECISION_F16};
    return job;
}

static void fill(float *host)
{
    for (uint32_t i = 0; i < 3 * VALUES; i++)
        host[i] = value(i);
    memset(host + 3 * VALUES, 0, BYTES);
}

static void compare(const float *q)
{
    const float *k = q + VALUES, *v = k + VALUES, *o = v + VALUES;

    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < ROWS; i++) {
            double scores[ROWS], sum = 0, most = -INFINITY;

            for (int j = 0; j <= i; j++) {
                scores[j] = 0;
                for (int c = 0; c < DIM; c++)
                    scores[j] += (double)q[h * PLANE + i * DIM + c] * k[h * PLANE + j * DIM + c] / 8;
                most = scores[j] > most ? scores[j] : most;
            }
            for (int j = 0; j <= i; j++)
                sum += scores[j] = exp(scores[j] - most);
            for (int c = 0; c < DIM; c++) {
                double wanted = 0;

                for (int j = 0; j <= i; j++)
                    wanted += scores[j] / sum * v[h * PLANE + j * DIM + c];
                WANT(fabs(wanted - o[h * PLANE + i * DIM + c]) < 5e-3);
            }
        }
}

/* --- The calls, by the table as a plugin would, and by their names --- */

static void run_jobs(tandem_mem mem, tandem_timeline engines, tandem_timeline ours)
{
    tandem_job_report report = {.struct_bytes = sizeof report};
    tandem_job job = attention(mem);
    tandem_ticket ticket;
    struct pollfd p = {.events = POLLIN};
    uint64_t reached = 0;
    void *host;

    OK(tandem_mem_host(session, mem, &host));
    fill(host);
    OK(tandem_submit(session, &job, &ticket));
    OK(tandem_wait(session, ticket, 20 * SECOND, &report));
    WANT(report.struct_bytes == sizeof report && report.state == TANDEM_JOB_DONE && report.status == TANDEM_OK);
    WANT(report.precision == TANDEM_PRECISION_F16 && report.submit_ns && report.end_ns >= report.begin_ns && report.begin_ns);
    compare(host);

    /* With points, and a deadline that is far. */
    fill(host);
    job.wait = (tandem_point){engines, 1};
    job.signal = (tandem_point){ours, 1};
    job.deadline_ns = 60 * SECOND;
    OK(api->submit(session, &job, &ticket));
    OK(tandem_poll(session, ticket, &report));
    WANT(report.state == TANDEM_JOB_PENDING);
    OK(tandem_point_fd(session, job.signal, &p.fd));
    OK(tandem_timeline_signal(session, engines, 1));
    OK(tandem_timeline_submitted(session, engines, 1));
    OK(tandem_point_wait(session, job.signal, 20 * SECOND));
    WANT(poll(&p, 1, 20000) == 1);
    close(p.fd);
    OK(tandem_timeline_value(session, ours, &reached));
    WANT(reached == 1);
    OK(tandem_wait(session, ticket, 20 * SECOND, NULL));
    OK(api->poll(session, ticket, &report));
    WANT(report.state == TANDEM_JOB_DONE);
    compare(host);

    /* One that is given up. */
    job.wait.value = job.signal.value = 2;
    OK(tandem_submit(session, &job, &ticket));
    OK(tandem_cancel(session, ticket));
    OK(tandem_timeline_signal(session, engines, 2));
    OK(tandem_wait(session, ticket, 20 * SECOND, &report));
    WANT(report.state == TANDEM_JOB_CANCELLED);
    OK(tandem_point_wait(session, job.signal, 20 * SECOND));

    /* And refused. */
    job.struct_bytes = 0;
    WANT(tandem_submit(session, &job, &ticket) == TANDEM_ERROR_ARG);
    job = attention(mem);
    job.op.attention.head_dim = 63;
    WANT(tandem_submit(session, &job, &ticket) == TANDEM_ERROR_ARG);
}

static void read_model(const char *folder)
{
    static const char header[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}     ";
    const uint64_t bytes = sizeof header - 1;
    const float values[6] = {1, 2, 3, 4, 5, 6};
    tandem_model model;
    tandem_view view;
    uint64_t shape[4];
    char path[512];
    FILE *file;

    snprintf(path, sizeof path, "%s/game.safetensors", folder);
    file = fopen(path, "wb");
    WANT(file && fwrite(&bytes, 8, 1, file) == 1 && fwrite(header, bytes, 1, file) == 1 &&
         fwrite(values, sizeof values, 1, file) == 1 && !fclose(file));
    OK(tandem_model_load(session, path, &model));
    OK(tandem_model_tensor(session, model, "w", &view, shape));
    WANT(view.dtype == TANDEM_DTYPE_F32 && view.stride_row == 3 && shape[0] == 1 && shape[2] == 2 && shape[3] == 3);
    OK(tandem_model_destroy(session, model));
    WANT(tandem_model_load(session, "/nonexistent", &model) != TANDEM_OK);
}

static void use_session(const tandem_session_desc *desc, const char *folder)
{
    tandem_info info = {.struct_bytes = sizeof info};
    tandem_timeline engines, ours;
    static _Alignas(4096) char page[4096 * ((4 * BYTES + 4095) / 4096)];
    tandem_mem mem, mapped;

    OK(tandem_session_create(desc, &session));
    OK(tandem_session_info(session, &info));
    WANT(info.struct_bytes == sizeof info && info.rung >= TANDEM_RUNG_INLINE && info.rung <= TANDEM_RUNG_CPU);
    WANT(info.device[0] && info.cpu_threads && info.jobs_submitted == 0);
    OK(tandem_mem_create(session, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = 4 * BYTES}, &mem));
    OK(tandem_mem_create(session,
                         &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .source = TANDEM_MEM_HOST,
                                            .bytes = sizeof page, .host = page},
                         &mapped));
    OK(tandem_timeline_create(session, &(tandem_timeline_desc){.struct_bytes = sizeof(tandem_timeline_desc)}, &engines));
    OK(tandem_timeline_create(session,
                              &(tandem_timeline_desc){.struct_bytes = sizeof(tandem_timeline_desc),
                                                      .signaller = TANDEM_SIGNALLER_SESSION},
                              &ours));
    run_jobs(mem, engines, ours);
    read_model(folder);
    OK(tandem_session_info(session, &info));
    WANT(info.jobs_done == 2 && info.jobs_cancelled == 1);
    OK(tandem_timeline_destroy(session, engines));
    OK(tandem_timeline_destroy(session, ours));
    OK(tandem_mem_destroy(session, mapped));
    OK(tandem_mem_destroy(session, mem));
    WANT(tandem_mem_destroy(session, mem) == TANDEM_ERROR_ARG);
}

/* --- On a Vulkan device, as the requirements say it is to be made --- */

#define VK(name) const PFN_##name name = (PFN_##name)gipa(instance, #name)

static bool has_feature(const tandem_requirement *list, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (list[i].kind == TANDEM_REQUIREMENT_FEATURE && !strcmp(list[i].name, name))
            return list[i].available;
    return false;
}

/* Records what a frame would; nothing is submitted. */
static void record(VkDevice device, PFN_vkGetInstanceProcAddr gipa, VkInstance instance)
{
    VK(vkCreateCommandPool);
    VK(vkDestroyCommandPool);
    VK(vkAllocateCommandBuffers);
    VK(vkBeginCommandBuffer);
    VK(vkEndCommandBuffer);
    tandem_pack pack = {.struct_bytes = sizeof pack, .width = 100, .height = 60, .tile_width = 16, .tile_height = 16};
    tandem_mem_vulkan vulkan = {.struct_bytes = sizeof vulkan};
    tandem_timeline timeline;
    VkCommandBuffer commands;
    VkSemaphore semaphore;
    VkCommandPool pool;
    uint32_t x, y;
    tandem_mem mem;
    tandem_job job;
    tandem_ticket ticket;

    WANT(vkCreateCommandPool(device, &(VkCommandPoolCreateInfo){.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO}, NULL,
                             &pool) == VK_SUCCESS);
    WANT(vkAllocateCommandBuffers(device,
                                  &(VkCommandBufferAllocateInfo){.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                                                 .commandPool = pool, .commandBufferCount = 1},
                                  &commands) == VK_SUCCESS);
    WANT(vkBeginCommandBuffer(commands,
                              &(VkCommandBufferBeginInfo){.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO}) == VK_SUCCESS);
    OK(tandem_mem_create(session, &(tandem_mem_desc){.struct_bytes = sizeof(tandem_mem_desc), .bytes = 1 << 20}, &mem));
    OK(tandem_mem_get_vulkan(session, mem, &vulkan));
    WANT(vulkan.struct_bytes == sizeof vulkan && vulkan.buffer && vulkan.memory && vulkan.bytes == 1 << 20);
    OK(tandem_timeline_create(session, &(tandem_timeline_desc){.struct_bytes = sizeof(tandem_timeline_desc)}, &timeline));
    OK(tandem_timeline_get_vulkan(session, timeline, &semaphore));
    OK(tandem_record_release(session, commands, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT));
    OK(tandem_record_acquire(session, commands, mem, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT));
    OK(tandem_pack_tiles(session, &pack, &x, &y));
    WANT(x == 7 && y == 4);
    WANT(tandem_record_pack(session, commands, &pack) == TANDEM_ERROR_ARG); /* without images */
    WANT(tandem_record_unpack(session, commands, &pack) == TANDEM_ERROR_ARG);
    job = attention(mem);
    job.wait = (tandem_point){timeline, 1};
    WANT(tandem_record(session, &job, commands, &ticket) != TANDEM_OK); /* which has points, or no such rung */
    WANT(vkEndCommandBuffer(commands) == VK_SUCCESS);
    OK(tandem_timeline_destroy(session, timeline));
    OK(tandem_mem_destroy(session, mem));
    vkDestroyCommandPool(device, pool, NULL);
}

static void use_vulkan(const tandem_session_desc *desc)
{
    const char *extensions[32];
    tandem_requirement list[32] = {{.struct_bytes = sizeof *list}};
    void *const library = dlopen("libvulkan.so.1", RTLD_NOW);
    const PFN_vkGetInstanceProcAddr gipa =
        library ? (PFN_vkGetInstanceProcAddr)dlsym(library, "vkGetInstanceProcAddr") : NULL;
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES, .timelineSemaphore = VK_TRUE};
    const VkPhysicalDeviceFeatures2 features = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &timeline};
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO, .apiVersion = VK_API_VERSION_1_2};
    VkInstance instance = VK_NULL_HANDLE;
    VkPhysicalDevice physical;
    VkDevice device;
    uint32_t count = 32, devices = 1, extension_count = 0;

    if (!gipa || ((PFN_vkCreateInstance)gipa(NULL, "vkCreateInstance"))(
                     &(VkInstanceCreateInfo){.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO, .pApplicationInfo = &application},
                     NULL, &instance) != VK_SUCCESS) {
        puts("no Vulkan here");
        return;
    }
    VK(vkEnumeratePhysicalDevices);
    VK(vkCreateDevice);
    VK(vkGetDeviceQueue);
    VK(vkDestroyDevice);
    VK(vkDestroyInstance);
    if (vkEnumeratePhysicalDevices(instance, &devices, &physical) < 0 || !devices) {
        puts("no Vulkan device here");
        vkDestroyInstance(instance, NULL);
        return;
    }
    OK(tandem_vulkan_requirements(gipa, instance, physical, &count, list));
    for (uint32_t i = 0; i < count; i++) {
        WANT(list[i].struct_bytes == sizeof *list && list[i].name[0] && list[i].buys[0]);
        if (list[i].kind == TANDEM_REQUIREMENT_DEVICE_EXTENSION && list[i].available)
            extensions[extension_count++] = list[i].name;
    }
    WANT(has_feature(list, count, "timelineSemaphore"));
    WANT(vkCreateDevice(physical,
                        &(VkDeviceCreateInfo){
                            .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &features, .queueCreateInfoCount = 1,
                            .pQueueCreateInfos = &(VkDeviceQueueCreateInfo){.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                                                            .queueCount = 1, .pQueuePriorities = &(float){1}},
                            .enabledExtensionCount = extension_count, .ppEnabledExtensionNames = extensions},
                        NULL, &device) == VK_SUCCESS);
    tandem_vulkan vulkan = {.struct_bytes = sizeof vulkan, .api_version = VK_API_VERSION_1_2, .get_instance_proc_addr = gipa,
                            .instance = instance, .physical_device = physical, .device = device,
                            .enabled_extension_count = extension_count, .enabled_extensions = extensions,
                            .enabled_features = &features};
    tandem_session_desc on_vulkan = *desc;
    vkGetDeviceQueue(device, 0, 0, &vulkan.queue);
    on_vulkan.vulkan = &vulkan;
    OK(tandem_session_create(&on_vulkan, &session));
    record(device, gipa, instance);
    OK(tandem_session_destroy(&session));
    vkDestroyDevice(device, NULL);
    vkDestroyInstance(instance, NULL);
}

static void check_library(void)
{
    const tandem_get_api_fn get = (tandem_get_api_fn)dlsym(RTLD_DEFAULT, "tandem_get_api");

    WANT(get);
    api = get(TANDEM_VERSION);
    WANT(api && api->struct_bytes >= sizeof *api && api->version >= TANDEM_VERSION);
    WANT(tandem_version() >= TANDEM_VERSION && api->version_number() == tandem_version());
    WANT(!strcmp(tandem_status_text(TANDEM_ERROR_BUSY), api->status_text(TANDEM_ERROR_BUSY)));
    for (size_t at = offsetof(tandem_api, version_number); at < sizeof *api; at += sizeof(void *))
        WANT(*(void *const *)(const void *)((const char *)api + at));
}

int main(int argc, char **argv)
{
    char error[256] = "";
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .log = log_line, .timing = 1, .cpu_threads = 2,
                                .error_text = error, .error_text_bytes = sizeof error,
                                .socket = argc > 2 ? argv[2] : NULL};

    if (argc < 2)
        return 2;
    check_library();
    use_session(&desc, argv[1]);
    OK(tandem_session_destroy(&session));
    WANT(!session && lines);
    desc.rung = 99;
    WANT(tandem_session_create(&desc, &session) == TANDEM_ERROR_ARG && !session && strstr(error, "desc.rung is 99"));
    desc.rung = 0;
    use_vulkan(&desc);
    puts("the game runs");
    return 0;
}
