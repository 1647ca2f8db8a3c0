/* Layers of an instance that are sampled, and runs that do so. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One run in so many is of the program that samples its layers (kernels/program.h). What such a run has left is looked at by a
 * thread (judge.c).
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine_plugin/client/network.h"

enum { EVERY = 16, ROWS = 64 /* where the instance does not say */, MOST_SAMPLE_BYTES = 64 << 20 };

/* --- Made and freed --- */

bool td_instance_samples(const tandem_instance_desc *desc)
{
    return desc->min_similarity > 0 || desc->max_us > 0 || desc->sample_every || desc->sample_rows || desc->sample_all;
}

tandem_status td_layers_check_desc(tandem_session *s, const tandem_instance_desc *desc, char *why)
{
    if (!(desc->min_similarity >= 0 && desc->min_similarity <= 1))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.min_similarity is %g; it must be 0 (none) to 1",
                       (double)desc->min_similarity);
    if (!(desc->max_us >= 0 && isfinite(desc->max_us)))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.max_us is %g; it must be 0 (none) or more", (double)desc->max_us);
    if (desc->sample_all > 1)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.sample_all is %u, not 0 or 1", desc->sample_all);
    if (!td_instance_samples(desc))
        return TANDEM_OK;
    const char *no_layers = s->ops->no_layers ? s->ops->no_layers(s) : NULL;
    if (no_layers || td_is_inline(s))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc asks for samples of layers (min_similarity %g, max_us %g, sample_every %u): %s",
                       (double)desc->min_similarity, (double)desc->max_us, desc->sample_every,
                       no_layers ? no_layers
                                 : "on rung inline plans are in commands that the engine has recorded");
    if (desc->max_us > 0 && !s->timing)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.max_us is %g, but the session was made without tandem_session_desc.timing", (double)desc->max_us);
    return TANDEM_OK;
}

uint32_t td_instance_sample_rows(const tandem_instance_desc *desc)
{
    return !td_instance_samples(desc) ? 0 : desc->sample_rows ? desc->sample_rows : (uint32_t)ROWS;
}

/* One block: the struct, then its arrays. */
static size_t block_bytes(uint32_t layers, uint32_t nodes)
{
    return sizeof(td_layers) + layers * (2 * sizeof(td_layer) + sizeof(td_layer_control) + sizeof(td_layer_sample)) + nodes;
}

tandem_status td_layers_make(tandem_session *s, const td_instance *instance, const td_program *sampled, td_layers **out, char *why)
{
    const tandem_instance_desc *desc = &instance->desc;
    const td_quality_target target = {(double)desc->min_similarity, (double)desc->max_us};
    const uint32_t count = sampled->sample_count, nodes = sampled->node_count;
    td_layers *made = *out = td_session_alloc(s, block_bytes(count, nodes), 64);

    if (!made)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no host memory for %" PRIu32 " layers", count);
    made->every = made->runs = desc->sample_every ? desc->sample_every : (uint32_t)EVERY; /* from the first run on */
    made->count = count;
    made->node_count = nodes;
    made->layers = (td_layer *)(made + 1);
    made->drafts = made->layers + count;
    made->samples = (td_layer_sample *)(made->drafts + count);
    td_layer_control *controls = (td_layer_control *)(made->samples + count);
    made->precisions = (uint8_t *)(controls + count);
    if (instance->precisions)
        memcpy(made->precisions, instance->precisions, nodes);
    for (uint32_t i = 0; i < count; i++) {
        controls[i].precision = sampled->samples[i].precision;
        controls[i].can = sampled->samples[i].can;
    }
    if (s->of_worker && sampled->sample_bytes > MOST_SAMPLE_BYTES) /* whoever ends the instance waits for who looks at them */
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM,
                       "samples of layers take %" PRIu64 " bytes, and tandemd has %d for them: desc.sample_rows is to be less",
                       sampled->sample_bytes, MOST_SAMPLE_BYTES);
    td_quality_begin(&made->quality, &target, controls, count);
    made->mem = td_mem_new(s, sampled->sample_bytes, why);
    return made->mem ? td_mem_make_filled(s, made->mem, why) : TANDEM_ERROR_NOMEM;
}

void td_layers_free(tandem_session *s, td_layers *layers)
{
    if (!layers)
        return;
    if (layers->mem)
        td_mem_leave(s, layers->mem);
    td_session_free(s, layers, block_bytes(layers->count, layers->node_count));
}

/* --- Runs --- */

bool td_layers_sample_next_locked(const td_prepared *prepared)
{
    const td_layers *layers = prepared->layers;

    return layers && layers->stage == TD_LAYERS_IDLE && layers->runs >= layers->every;
}

void td_layers_submitted_locked(const td_job *job)
{
    td_layers *layers = job->prepared ? job->prepared->layers : NULL;

    if (!layers)
        return;
    layers->runs = job->sampled ? 1 : layers->runs + (layers->runs < UINT32_MAX);
    if (job->sampled)
        layers->stage = TD_LAYERS_UNDER_WAY;
}

static void end_layers(tandem_session *s, const td_job *job, const tandem_job_report *report)
{
    td_layers *layers = job->prepared->layers;
    const bool done = report->state == TANDEM_JOB_DONE;

    if (!layers)
        return;
    if (done && !job->sampled && report->end_ns > report->begin_ns)
        layers->us[layers->us_count++ % TD_LAYERS_TIMES] = (double)(report->end_ns - report->begin_ns) * 1e-3;
    if (!job->sampled)
        return;
    layers->stage = done ? TD_LAYERS_THERE : TD_LAYERS_IDLE;
    pthread_cond_signal(&s->judge);
}

/* A run that is DONE was computed by what is prepared, here and where tandemd has the same; whether others have come there nobody
 * can tell. As both count these alone, both forget the same when there is too much of it. */
void td_run_ended_locked(tandem_session *s, const td_job *job, const tandem_job_report *report)
{
    td_prepared *prepared = job->prepared;

    if (!prepared)
        return;
    if (report->state == TANDEM_JOB_DONE)
        prepared->used = ++job->instance->uses;
    if (s->ops->is_elsewhere && report->status == TANDEM_ERROR_UNSUPPORTED)
        prepared->forgotten = true;
    end_layers(s, job, report);
}
