/* The denoiser's networks once more, on the CPU and without Vulkan. See recheck.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Normal and depth come from the renderer's images, since their tensors are the next job's by then; history is this session's
 * own, so that an error of any frame before shows as well.
 */
#include "demo/recheck.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"

struct demo_recheck {
    tandem_session *session;
    demo_denoiser denoiser;
    tandem_mem input, output;
};

demo_recheck *demo_recheck_open(const demo_pipeline *p)
{
    char why[400] = "";
    const char *models[DEMO_PRESETS];
    void *zeros;
    demo_recheck *r = calloc(1, sizeof *r);
    const uint32_t width = p->options.width, height = p->options.height;
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .backend = TANDEM_BACKEND_CPU,
                                                 .cpu_threads = p->options.threads,
                                                 .error_text = why,
                                                 .error_text_bytes = sizeof why);
    const tandem_mem_desc input = TANDEM_INIT(tandem_mem_desc, .fd = -1, .bytes = demo_denoiser_input_bytes(width, height));
    const tandem_mem_desc output = TANDEM_INIT(tandem_mem_desc, .fd = -1, .bytes = demo_denoiser_output_bytes(width, height));
    memcpy(models, p->options.models, sizeof models);
    if (!r || tandem_session_create(&desc, &r->session) != TANDEM_OK ||
        !demo_denoiser_load(&r->denoiser, r->session, models, p->options.preset, width, height, why, sizeof why) ||
        tandem_mem_create(r->session, &input, &r->input) != TANDEM_OK ||
        tandem_mem_create(r->session, &output, &r->output) != TANDEM_OK ||
        tandem_mem_host(r->session, r->denoiser.nothing, &zeros) != TANDEM_OK) {
        demo_fail("no session to check frames with: %s", why);
        demo_recheck_close(r);
        return NULL;
    }
    memset(zeros, 0, demo_denoiser_kept_bytes(width, height));
    return r;
}

void demo_recheck_close(demo_recheck *r)
{
    if (r && r->session)
        tandem_session_destroy(&r->session);
    free(r);
}

bool demo_recheck_frame(demo_recheck *r, demo_pipeline *p, demo_slot *slot, demo_accuracy *out)
{
    demo_denoiser *d = &r->denoiser;
    const tandem_mem kept = d->kept[d->turn % DEMO_DENOISER_KEPT];
    const size_t floats = (size_t)3 * p->options.width * p->options.height;
    const tandem_view picture = demo_denoiser_out(d, slot->job);
    const integration_slot own = {.input = r->input, .output = r->output};
    tandem_view views[DEMO_DENOISER_BINDINGS];
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_job job;
    tandem_ticket ticket;
    void *input, *tensors, *result;
    float *shown = NULL;
    bool ok = tandem_mem_host(r->session, r->input, &input) == TANDEM_OK &&
              tandem_mem_host(r->session, kept, &tensors) == TANDEM_OK &&
              tandem_mem_host(r->session, r->output, &result) == TANDEM_OK;
    if (!ok)
        return demo_fail("a frame could not be checked: no memory");
    float *normal = (float *)((char *)tensors + demo_denoiser_offset(d, "normal"));
    float *depth = (float *)((char *)tensors + demo_denoiser_offset(d, "depth"));
    d->preset = slot->outcome.preset;
    d->cut = slot->outcome.cut || !d->has_before;
    demo_denoiser_job(d, &own, views, &job);
    ok = demo_slot_read(p, slot, slot->job->input, 0, demo_denoiser_input_bytes(d->width, d->height), input) &&
         demo_surfaces_read(p, slot, NULL, normal, depth) && (shown = malloc(floats * sizeof *shown)) != NULL &&
         demo_slot_read(p, slot, slot->job->output, picture.offset_bytes, floats * sizeof *shown, shown) &&
         tandem_submit(r->session, &job, &ticket) == TANDEM_OK &&
         tandem_wait(r->session, ticket, UINT64_MAX, &report) == TANDEM_OK && report.state == TANDEM_JOB_DONE;
    demo_denoiser_go_on(d, ok);
    const float *exact = result;
    for (size_t i = 0; ok && i < floats; i++) {
        const double is = (double)shown[i], should = (double)exact[i];
        out->error_absolute += fabs(is - should);
        out->exact_absolute += fabs(should);
    }
    out->elements += ok ? floats : 0;
    free(shown);
    return ok || demo_fail("a frame could not be checked");
}
