/* The table for engines that open the library at run time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tandem/plugin.h"

static const tandem_api api = {
    .struct_bytes = sizeof api,
    .version = TANDEM_VERSION,
    .version_number = tandem_version,
    .status_text = tandem_status_text,
    .session_create = tandem_session_create,
    .session_destroy = tandem_session_destroy,
    .session_info = tandem_session_info,
    .error_text = tandem_error_text,
    .mem_create = tandem_mem_create,
    .mem_destroy = tandem_mem_destroy,
    .mem_host = tandem_mem_host,
    .timeline_create = tandem_timeline_create,
    .timeline_destroy = tandem_timeline_destroy,
    .timeline_value = tandem_timeline_value,
    .timeline_signal = tandem_timeline_signal,
    .point_wait = tandem_point_wait,
    .submit = tandem_submit,
    .poll = tandem_poll,
    .wait = tandem_wait,
    .cancel = tandem_cancel,
    .model_load = tandem_model_load,
    .model_tensor = tandem_model_tensor,
    .model_destroy = tandem_model_destroy,
    .vulkan_requirements = tandem_vulkan_requirements,
    .mem_get_vulkan = tandem_mem_get_vulkan,
    .timeline_get_vulkan = tandem_timeline_get_vulkan,
    .record_release = tandem_record_release,
    .record_acquire = tandem_record_acquire,
    .pack_tiles = tandem_pack_tiles,
    .record_pack = tandem_record_pack,
    .record_unpack = tandem_record_unpack,
    .timeline_submitted = tandem_timeline_submitted,
    .point_fd = tandem_point_fd,
    .record = tandem_record,
    .record_pack_images = tandem_record_pack_images,
    .record_unpack_images = tandem_record_unpack_images,
    .model_info = tandem_model_info,
    .model_number = tandem_model_number,
    .model_binding = tandem_model_binding,
    .model_uniform = tandem_model_uniform,
    .model_instance = tandem_model_instance,
    .instance_destroy = tandem_instance_destroy,
    .model_prepare = tandem_model_prepare,
    .model_prepared = tandem_model_prepared,
    .supported = tandem_supported,
    .model_create = tandem_model_create,
    .retire = tandem_retire,
    .devices = tandem_devices,
    .vulkan_device = tandem_vulkan_device,
    .language_create = tandem_language_create,
    .language_destroy = tandem_language_destroy,
    .language_get_info = tandem_language_get_info,
    .npc_create = tandem_npc_create,
    .npc_destroy = tandem_npc_destroy,
    .npc_say = tandem_npc_say,
    .npc_poll = tandem_npc_poll,
    .npc_wait = tandem_npc_wait,
    .npc_cancel = tandem_npc_cancel,
    .npc_get_reply = tandem_npc_get_reply,
    .npc_choose = tandem_npc_choose,
    .npc_set_history = tandem_npc_set_history,
    .npc_get_history = tandem_npc_get_history,
    .npc_save = tandem_npc_save,
    .npc_restore = tandem_npc_restore,
};

const tandem_api *tandem_get_api(uint32_t version)
{
    const uint32_t major = version >> 22, minor = version >> 12 & 0x3ff;

    return major == TANDEM_VERSION_MAJOR && minor <= TANDEM_VERSION_MINOR ? &api : NULL;
}
