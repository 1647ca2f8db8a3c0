/* Tandem for engines that open it at run time: one symbol, one table.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     tandem_get_api_fn get = (tandem_get_api_fn)dlsym(dlopen("libtandem.so.0", RTLD_NOW), "tandem_get_api");
 *     const tandem_api *t = get(TANDEM_VERSION);
 */
#ifndef TANDEM_PLUGIN_H
#define TANDEM_PLUGIN_H

#include "tandem/npc.h"
#include "tandem/vulkan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The same functions as in tandem.h, vulkan.h and npc.h. New ones come at the end: struct_bytes says how many there are. */
typedef struct tandem_api {
    uint32_t struct_bytes;
    uint32_t version; /* TANDEM_VERSION of the library */
    uint32_t (*version_number)(void);
    const char *(*status_text)(tandem_status);
    tandem_status (*session_create)(const tandem_session_desc *, tandem_session **);
    tandem_status (*session_destroy)(tandem_session **);
    tandem_status (*session_info)(tandem_session *, tandem_info *);
    tandem_status (*error_text)(tandem_session *, char *, size_t);
    tandem_status (*mem_create)(tandem_session *, const tandem_mem_desc *, tandem_mem *);
    tandem_status (*mem_destroy)(tandem_session *, tandem_mem);
    tandem_status (*mem_host)(tandem_session *, tandem_mem, void **);
    tandem_status (*timeline_create)(tandem_session *, const tandem_timeline_desc *, tandem_timeline *);
    tandem_status (*timeline_destroy)(tandem_session *, tandem_timeline);
    tandem_status (*timeline_value)(tandem_session *, tandem_timeline, uint64_t *);
    tandem_status (*timeline_signal)(tandem_session *, tandem_timeline, uint64_t);
    tandem_status (*point_wait)(tandem_session *, tandem_point, uint64_t);
    tandem_status (*submit)(tandem_session *, const tandem_job *, tandem_ticket *);
    tandem_status (*poll)(tandem_session *, tandem_ticket, tandem_job_report *);
    tandem_status (*wait)(tandem_session *, tandem_ticket, uint64_t, tandem_job_report *);
    tandem_status (*cancel)(tandem_session *, tandem_ticket);
    tandem_status (*model_load)(tandem_session *, const char *, tandem_model *);
    tandem_status (*model_tensor)(tandem_session *, tandem_model, const char *, tandem_view *, uint64_t[4]);
    tandem_status (*model_destroy)(tandem_session *, tandem_model);
    tandem_status (*vulkan_requirements)(PFN_vkGetInstanceProcAddr, VkInstance, VkPhysicalDevice, uint32_t *,
                                         tandem_requirement *);
    tandem_status (*mem_get_vulkan)(tandem_session *, tandem_mem, tandem_mem_vulkan *);
    tandem_status (*timeline_get_vulkan)(tandem_session *, tandem_timeline, VkSemaphore *);
    tandem_status (*record_release)(tandem_session *, VkCommandBuffer, tandem_mem, VkPipelineStageFlags, VkAccessFlags);
    tandem_status (*record_acquire)(tandem_session *, VkCommandBuffer, tandem_mem, VkPipelineStageFlags, VkAccessFlags);
    tandem_status (*pack_tiles)(tandem_session *, const tandem_pack *, uint32_t *, uint32_t *);
    tandem_status (*record_pack)(tandem_session *, VkCommandBuffer, const tandem_pack *);
    tandem_status (*record_unpack)(tandem_session *, VkCommandBuffer, const tandem_pack *);
    tandem_status (*timeline_submitted)(tandem_session *, tandem_timeline, uint64_t);
    tandem_status (*point_fd)(tandem_session *, tandem_point, int *);
    tandem_status (*record)(tandem_session *, const tandem_job *, VkCommandBuffer, tandem_ticket *);
    tandem_status (*record_pack_images)(tandem_session *, VkCommandBuffer, const tandem_pack_image *, uint32_t);
    tandem_status (*record_unpack_images)(tandem_session *, VkCommandBuffer, const tandem_pack_image *, uint32_t);
    tandem_status (*model_info)(tandem_session *, tandem_model, tandem_network *);
    tandem_status (*model_number)(tandem_session *, tandem_model, uint32_t, tandem_network_number *);
    tandem_status (*model_binding)(tandem_session *, tandem_model, const uint32_t *, uint32_t, uint32_t,
                                   tandem_network_tensor *);
    tandem_status (*model_uniform)(tandem_session *, tandem_model, const uint32_t *, uint32_t, uint32_t,
                                   tandem_network_tensor *);
    tandem_status (*model_instance)(tandem_session *, tandem_model, const tandem_instance_desc *, tandem_instance *);
    tandem_status (*instance_destroy)(tandem_session *, tandem_instance);
    tandem_status (*model_prepare)(tandem_session *, tandem_instance, const uint32_t *, uint32_t);
    tandem_status (*model_prepared)(tandem_session *, tandem_instance, const uint32_t *, uint32_t, tandem_prepared *);
    tandem_status (*supported)(tandem_session *, const tandem_job *, uint64_t *, char *, size_t);
    tandem_status (*model_create)(tandem_session *, const tandem_model_desc *, tandem_model *);
    tandem_status (*retire)(tandem_session *, uint64_t);
    tandem_status (*devices)(uint32_t *, tandem_device *);
    tandem_status (*vulkan_device)(PFN_vkGetInstanceProcAddr, VkInstance, VkPhysicalDevice, tandem_device *);
    tandem_status (*language_create)(tandem_session *, const tandem_language_desc *, tandem_language **);
    tandem_status (*language_destroy)(tandem_language **);
    tandem_status (*language_get_info)(tandem_language *, tandem_language_info *);
    tandem_status (*npc_create)(tandem_language *, const tandem_npc_desc *, tandem_npc **);
    tandem_status (*npc_destroy)(tandem_npc **);
    tandem_status (*npc_say)(tandem_npc *, const tandem_say *);
    tandem_status (*npc_poll)(tandem_npc *, tandem_npc_news *);
    tandem_status (*npc_wait)(tandem_npc *, uint64_t, tandem_npc_news *);
    tandem_status (*npc_cancel)(tandem_npc *);
    tandem_status (*npc_get_reply)(tandem_npc *, uint32_t, tandem_npc_reply *);
    tandem_status (*npc_choose)(tandem_npc *, uint32_t);
    tandem_status (*npc_set_history)(tandem_npc *, const tandem_turn *, uint32_t);
    tandem_status (*npc_get_history)(tandem_npc *, uint32_t *, tandem_turn *);
    tandem_status (*npc_save)(tandem_npc *, void *, uint64_t *);
    tandem_status (*npc_restore)(tandem_npc *, const void *, uint64_t);
    tandem_status (*language_frame)(tandem_language *, uint32_t, tandem_language_spent *);
    tandem_status (*embedder_create)(tandem_language *, const tandem_embedder_desc *, tandem_embedder **);
    tandem_status (*embedder_destroy)(tandem_embedder **);
    tandem_status (*embedder_begin)(tandem_embedder *, const char *);
    tandem_status (*embedder_poll)(tandem_embedder *, tandem_embedding *);
    tandem_status (*embedder_wait)(tandem_embedder *, uint64_t, tandem_embedding *);
    tandem_status (*npc_get_token)(tandem_npc *, uint32_t, uint32_t, tandem_npc_token *);
    tandem_status (*model_layer)(tandem_session *, tandem_instance, const uint32_t *, uint32_t, uint32_t, tandem_layer *);
} tandem_api;

typedef const tandem_api *(*tandem_get_api_fn)(uint32_t version);

/* The table, for a caller built against `version` (TANDEM_VERSION).
 * Returns: the table; NULL if the library is too old or of another major version.
 * Owner: the library; valid while it is loaded.
 * Threads: any.
 * Blocks: never. */
TANDEM_API const tandem_api *tandem_get_api(uint32_t version);

#ifdef __cplusplus
}
#endif
#endif
