/* The public headers as C17: sizes are part of the ABI, and versioned structs only grow at the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <tandem/npc.h>
#include <tandem/plugin.h>
#include <tandem/tandem.h>
#include <tandem/types.h>
#include <tandem/vulkan.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " changed its size")
#define AT(type, member, bytes) _Static_assert(offsetof(type, member) == (bytes), #type "." #member " moved")

SIZE(tandem_status, 4);
SIZE(tandem_mem, 8);
SIZE(tandem_point, 16);
SIZE(tandem_view, 48);
SIZE(tandem_attention, 592);
SIZE(tandem_operands, 1024);
SIZE(tandem_job, 1072);
SIZE(tandem_job_report, 40);
SIZE(tandem_session_desc, 136);
SIZE(tandem_info, 808);
SIZE(tandem_mem_desc, 96);
SIZE(tandem_timeline_desc, 24);
SIZE(tandem_vulkan, 128);
SIZE(tandem_requirement, 48);
SIZE(tandem_mem_vulkan, 40);
SIZE(tandem_pack, 136);
SIZE(tandem_pack_image, 160);
SIZE(tandem_run, 64);
SIZE(tandem_network, 32);
SIZE(tandem_network_number, 264);
SIZE(tandem_network_tensor, 304);
SIZE(tandem_instance_desc, 48);
SIZE(tandem_layer, 316);
SIZE(tandem_model_desc, 40);
SIZE(tandem_prepared, 32);
SIZE(tandem_api, 568);
SIZE(tandem_device, 464);
SIZE(tandem_language_desc, 48);
SIZE(tandem_language_info, 104);
SIZE(tandem_language_spent, 32);
SIZE(tandem_turn, 16);
SIZE(tandem_npc_desc, 16);
SIZE(tandem_sampling, 96);
SIZE(tandem_say, 80);
SIZE(tandem_npc_news, 48);
SIZE(tandem_npc_reply, 32);
SIZE(tandem_token_logprob, 24);
SIZE(tandem_npc_token, 48);
SIZE(tandem_embedder_desc, 24);
SIZE(tandem_embedding, 24);
AT(tandem_job, struct_bytes, 0);
AT(tandem_job, op, 48);
AT(tandem_job_report, struct_bytes, 0);
AT(tandem_session_desc, struct_bytes, 0);
AT(tandem_session_desc, tuning, 104);
AT(tandem_info, struct_bytes, 0);
AT(tandem_info, tuning, 544);
AT(tandem_mem_desc, struct_bytes, 0);
AT(tandem_timeline_desc, struct_bytes, 0);
AT(tandem_vulkan, struct_bytes, 0);
AT(tandem_requirement, buys, 32);
AT(tandem_requirement, feature_struct_bytes, 40);
AT(tandem_pack, struct_bytes, 0);
AT(tandem_api, struct_bytes, 0);
AT(tandem_api, version_number, 8);
AT(tandem_api, record_unpack, 232);
AT(tandem_api, record, 256);
AT(tandem_api, record_pack_images, 264);
AT(tandem_pack_image, struct_bytes, 0);
AT(tandem_pack_image, tensor, 104);
_Static_assert(TANDEM_OK == 0 && TANDEM_ERROR_BUSY == -8, "status codes are part of the ABI");
_Static_assert(TANDEM_VERSION == 0x2000, "0.2.0");

extern const size_t td_sizes_c[18];
const size_t td_sizes_c[18] = {
    sizeof(tandem_point),         sizeof(tandem_view),          sizeof(tandem_attention),    sizeof(tandem_job),
    sizeof(tandem_job_report),    sizeof(tandem_session_desc),  sizeof(tandem_info),         sizeof(tandem_mem_desc),
    sizeof(tandem_timeline_desc), sizeof(struct tandem_vulkan), sizeof(tandem_requirement),  sizeof(tandem_mem_vulkan),
    sizeof(tandem_pack),          sizeof(tandem_api),           offsetof(tandem_info, isa),  offsetof(tandem_pack, view),
    sizeof(tandem_pack_image),    offsetof(tandem_pack_image, tensor),
};

/* TANDEM_INIT() with a type alone, with members, as an argument and as a value: 0 where each is as it was asked for. */
static int bytes_of(const tandem_mem_desc *desc)
{
    return (int)desc->struct_bytes;
}

int td_inits_c(void);
int td_inits_c(void)
{
    const tandem_session_desc plain = TANDEM_INIT(tandem_session_desc);
    tandem_job job = TANDEM_INIT(tandem_job, .wait = {1, 2}, .deadline_ns = 3);
    const tandem_requirement list[2] = {TANDEM_INIT(tandem_requirement)};
    int wrong = plain.struct_bytes != sizeof plain || plain.cpu_threads || plain.vulkan;

    wrong |= job.struct_bytes != sizeof job || job.wait.timeline != 1 || job.wait.value != 2 || job.deadline_ns != 3;
    job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_NORM);
    wrong |= job.operation != TANDEM_OPERATION_NORM || job.deadline_ns || job.struct_bytes != sizeof job;
    wrong |= bytes_of(&TANDEM_INIT(tandem_mem_desc, .bytes = 4096)) != sizeof(tandem_mem_desc);
    return wrong | (list[0].struct_bytes != sizeof *list) | (list[1].struct_bytes != 0);
}
