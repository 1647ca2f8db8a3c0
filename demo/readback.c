/* What a finished frame's job read and wrote, brought to the host.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "demo/frame.h"
#include "interop/base.h"
#include "shaders/filter_shared.h"

enum { TOKEN_BYTES = TD_FILTER_HEAD_DIM * 2, Q_LEN = TD_FILTER_TILE * TD_FILTER_TILE,
       KV_WIDTH = TD_FILTER_TILE + 2 * TD_FILTER_HALO, KV_LEN = KV_WIDTH * KV_WIDTH };

bool demo_slot_read(demo_pipeline *p, const demo_slot *s, tandem_mem mem, uint64_t offset, uint64_t bytes, void *out)
{
    demo_engine *e = p->engine;
    tandem_mem_vulkan source = TANDEM_INIT(tandem_mem_vulkan);
    demo_buffer staging = {0};
    bool ok = tandem_mem_get_vulkan(s->station->tandem.session, mem, &source) == TANDEM_OK &&
              demo_buffer_create(e, bytes, VK_BUFFER_USAGE_TRANSFER_DST_BIT, true, "tensors read back", &staging) &&
              demo_once_begin(e);
    if (ok) {
        const VkBufferCopy copy = {offset, 0, bytes};
        demo_memory_barrier(e->once, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_WRITE_BIT,
                            VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT);
        vkCmdCopyBuffer(e->once, source.buffer, staging.buffer, 1, &copy);
        demo_memory_barrier(e->once, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_WRITE_BIT,
                            VK_PIPELINE_STAGE_HOST_BIT,
                            VK_ACCESS_HOST_READ_BIT);
        ok = demo_once_end(e);
    }
    if (ok)
        memcpy(out, staging.host, bytes);
    demo_buffer_destroy(e, &staging);
    return ok;
}

/* As shaders/guides.comp has it: of what shines there is nothing. */
bool demo_surfaces_read(demo_pipeline *p, const demo_slot *slot, float *albedo, float *normal, float *depth)
{
    const size_t pixels = (size_t)p->options.width * p->options.height;
    struct td_scene_push camera = {0};
    float *all = malloc(3 * 4 * pixels * sizeof *all);
    float *normals = all, *positions = all ? all + 4 * pixels : NULL, *surfaces = all ? all + 8 * pixels : NULL;
    const bool ok = all && demo_image_read(p->engine, &slot->normal, normals) &&
                    demo_image_read(p->engine, &slot->position, positions) &&
                    demo_image_read(p->engine, &slot->albedo, surfaces);
    demo_scene_camera(p->options.scene, &slot->request.cast, slot->request.seconds, p->options.width, p->options.height,
                      &camera);
    for (size_t i = 0; ok && i < pixels; i++) {
        const bool shines = surfaces[4 * i + 3] > 0.5f;
        depth[i] = 0;
        for (size_t c = 0; c < 3; c++) {
            if (albedo)
                albedo[3 * i + c] = shines ? 0 : surfaces[4 * i + c];
            normal[3 * i + c] = shines ? 0 : normals[4 * i + c];
            depth[i] += shines ? 0 : (positions[4 * i + c] - camera.eye[c]) * camera.forward[c];
        }
    }
    free(all);
    return ok;
}

static bool read_tokens(demo_pipeline *p, const demo_slot *s, tandem_mem mem, uint64_t offset, uint64_t bytes, uint16_t **out)
{
    *out = malloc(bytes);
    return *out && demo_slot_read(p, s, mem, offset, bytes, *out);
}

bool demo_tokens_read(demo_pipeline *p, demo_slot *s, demo_tokens *out)
{
    out->batch = s->tiles_x * s->tiles_y;
    out->q_len = Q_LEN;
    out->kv_len = KV_LEN;
    out->head_dim = TD_FILTER_HEAD_DIM;
    out->scale = TD_FILTER_SCALE;
    const uint64_t q_bytes = (uint64_t)out->batch * Q_LEN * TOKEN_BYTES;
    const uint64_t k_bytes = (uint64_t)out->batch * KV_LEN * TOKEN_BYTES;
    return read_tokens(p, s, s->job->input, 0, q_bytes, &out->q) &&
           read_tokens(p, s, s->job->input, p->q_bytes, k_bytes, &out->k) &&
           read_tokens(p, s, s->job->input, p->q_bytes + p->k_bytes, k_bytes, &out->v) &&
           read_tokens(p, s, s->job->output, 0, q_bytes, &out->o);
}

void demo_tokens_free(demo_tokens *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->o);
    memset(t, 0, sizeof *t);
}
