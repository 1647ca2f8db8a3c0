/* Today's headers have all that the first ones had, where it was, and nothing that could be lost at a struct's end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <tandem/plugin.h>

#include "tests/plugin/abi/layout.inc"

/* A field that comes after the last one makes the struct longer: there is no padding that it would fit into. */
#define LAST(type, member) \
    _Static_assert(offsetof(type, member) + sizeof(((type *)0)->member) == sizeof(type), #type " ends behind " #member)

LAST(tandem_point, value);
LAST(tandem_view, stride_row);
LAST(tandem_attention, kv_total);
LAST(tandem_norm, rotated_channels);
LAST(tandem_linear, reserved);
LAST(tandem_embed, reserved);
LAST(tandem_binary, reserved);
LAST(tandem_pool, reserved);
LAST(tandem_scatter, reserved);
LAST(tandem_cache_append, pages);
LAST(tandem_cache_attention, pages);
LAST(tandem_conv, reserved);
LAST(tandem_gather, v_before);
LAST(tandem_demodulate, history);
LAST(tandem_reproject, reserved);
LAST(tandem_top, reserved);
LAST(tandem_run, reserved);
LAST(tandem_operands, reserved);
LAST(tandem_job, op);
LAST(tandem_job_report, end_ns);
LAST(tandem_session_desc, cuda_stream);
LAST(tandem_info, tuning_reason);
LAST(tandem_mem_desc, win32_handle);
LAST(tandem_timeline_desc, vulkan_semaphore);
LAST(tandem_model_desc, reserved);
LAST(tandem_network, state_bytes);
LAST(tandem_network_number, name);
LAST(tandem_network_tensor, name);
LAST(tandem_instance_desc, reserved2);
LAST(tandem_layer, name);
LAST(tandem_prepared, uniform_bytes);
LAST(tandem_vulkan, further_families);
LAST(tandem_requirement, reserved);
LAST(tandem_mem_vulkan, bytes);
LAST(tandem_device, why);
LAST(tandem_pack, view);
LAST(tandem_pack_image, reserved2);
LAST(tandem_language_desc, reserved);
LAST(tandem_language_info, reserved);
LAST(tandem_language_spent, reserved);
LAST(tandem_turn, text);
LAST(tandem_npc_desc, persona);
LAST(tandem_sampling, biases);
LAST(tandem_say, top_logprobs);
LAST(tandem_npc_news, forgotten);
LAST(tandem_npc_reply, score);
LAST(tandem_token_logprob, text_bytes);
LAST(tandem_npc_token, text_offset);
LAST(tandem_embedder_desc, behind);
LAST(tandem_embedding, tokens);
LAST(tandem_api, model_layer);
_Static_assert(sizeof(tandem_operands) == 1024, "operations to come have room in a job, and nothing comes behind them");
