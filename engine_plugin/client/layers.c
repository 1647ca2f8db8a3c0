/* Layers of an instance that are sampled: how good they are, and which precision they have next. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One run in so many is of the program that samples its layers (kernels/program.h). What such a run has left is compared by a
 * thread of the session's, at the system's lowest priority, which tells td_quality_step(). Where a precision changes the thread
 * plans both programs anew, and puts them in the old ones' place: runs that were submitted keep their plan, those behind have the
 * new one, and state, uniforms and numbers stay. No submit plans or waits, and no run has two plans.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine_plugin/client/local.h"
#include "engine_plugin/client/network.h"
#include "kernels/cpu/cpu.h"
#include "kernels/model/precision_plan.h"

enum { EVERY = 16, ROWS = 64 }; /* where the instance does not say */

/* --- Made and freed --- */

bool td_instance_samples(const tandem_instance_desc *desc)
{
    return desc->min_similarity > 0 || desc->max_us > 0 || desc->sample_every || desc->sample_rows || desc->sample_all;
}

tandem_status td_layers_check_desc(const tandem_session *s, const tandem_instance_desc *desc, char *why)
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
    if (s->ops->no_samples || td_is_inline(s))
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                       "desc asks for samples of layers (min_similarity %g, max_us %g, sample_every %u): %s",
                       (double)desc->min_similarity, (double)desc->max_us, desc->sample_every,
                       s->ops->no_samples ? s->ops->no_samples
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
    td_quality_begin(&made->quality, &target, controls, count);
    made->mem = td_mem_new(s, sampled->sample_bytes, why);
    return made->mem ? td_mem_make_filled(s, made->mem, why) : TANDEM_ERROR_NOMEM;
}

void td_layers_free(tandem_session *s, td_layers *layers)
{
    if (!layers)
        return;
    if (layers->mem)
        td_mem_free(s, layers->mem);
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

void td_layers_ended_locked(tandem_session *s, const td_job *job, const tandem_job_report *report)
{
    td_layers *layers = job->prepared ? job->prepared->layers : NULL;
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

/* --- What samples say --- */

/* Of a vector against the exact one. */
typedef struct sums {
    double dot, mine, exact, error, size;
} sums;

static void add(sums *to, double mine, double exact)
{
    if (!isfinite(exact)) /* nobody could do better */
        return;
    to->dot += mine * exact;
    to->mine += mine * mine;
    to->exact += exact * exact;
    to->error += fabs(mine - exact);
    to->size += fabs(exact);
}

static void add_all(sums *to, const sums *more)
{
    to->dot += more->dot;
    to->mine += more->mine;
    to->exact += more->exact;
    to->error += more->error;
    to->size += more->size;
}

/* cosine * (1 - relative L1), at least 0; what is not finite is 0. */
static double similarity_of(const sums *s, double *cosine, double *relative_l1)
{
    const double norms = sqrt(s->mine) * sqrt(s->exact);

    *cosine = norms > 0 ? s->dot / norms : s->error > 0 ? 0 : 1;
    *relative_l1 = s->size > 0 ? s->error / s->size : s->error > 0 ? 1 : 0;
    const double similarity = *cosine * (1 - *relative_l1);
    return similarity >= 0 ? similarity : 0;
}

static double element(const char *from, uint32_t dtype, uint64_t at)
{
    uint16_t bits;
    float value;

    if (dtype == TANDEM_DTYPE_F32) {
        memcpy(&value, from + at * sizeof value, sizeof value);
        return (double)value;
    }
    memcpy(&bits, from + at * sizeof bits, sizeof bits);
    return (double)(dtype == TANDEM_DTYPE_F16 ? td_from_f16(bits) : td_from_bf16(bits));
}

/* How far rows are from the exact ones: all heads as one vector, and which head is worst. */
typedef struct judged {
    double cosine, relative_l1, similarity, worst;
    uint32_t worst_head;
} judged;

static judged compare(const td_layers *layers, const td_program_sample *of, uint32_t which)
{
    const char *mine = (const char *)layers->mem->host + of->offset[which];
    const char *exact = (const char *)layers->mem->host + of->offset[TD_SAMPLE_EXACT];
    const uint32_t dtype = which == TD_SAMPLE_OWN ? (uint32_t)TANDEM_DTYPE_F32 : of->dtype;
    const uint32_t elements = of->rows * of->channels;
    const double scale = which == TD_SAMPLE_OWN ? 0.5 : 1;
    judged out = {.worst = 2};
    double cosine, relative_l1;
    sums all = {0};

    for (uint32_t head = 0; head < of->heads; head++) {
        sums one = {0};

        for (uint64_t batch = 0; batch < of->batch; batch++)
            for (uint32_t e = 0; e < elements; e++) {
                const uint64_t at = (batch * of->heads + head) * elements + e;

                add(&one, scale * element(mine, dtype, at), element(exact, of->dtype, at));
            }
        const double similarity = similarity_of(&one, &cosine, &relative_l1);
        if (similarity < out.worst) {
            out.worst = similarity;
            out.worst_head = head;
        }
        add_all(&all, &one);
    }
    out.similarity = similarity_of(&all, &out.cosine, &out.relative_l1);
    return out;
}

/* A layer's sample becomes part of what is known of it; *seen is for the control. */
static void judge(const td_layers *layers, const td_program_sample *of, const td_layer_control *control, td_layer *layer,
                  td_layer_sample *seen)
{
    const uint32_t cheaper = td_quality_cheaper(control);
    const judged own = compare(layers, of, TD_SAMPLE_OWN);

    *seen = (td_layer_sample){own.similarity, -1};
    layer->cosine += own.cosine;
    layer->relative_l1 += own.relative_l1;
    if (!layer->count || own.worst < layer->worst) {
        layer->worst = own.worst;
        layer->worst_head = own.worst_head;
    }
    layer->count++;
    for (uint32_t p = TANDEM_PRECISION_F16; p < TD_SAMPLES; p++) {
        const bool is_own = p == control->precision;

        if (!is_own && of->offset[p] == UINT64_MAX)
            continue;
        const double similarity = is_own ? own.similarity : compare(layers, of, p).similarity;
        layer->similarity[p] += similarity;
        layer->measured |= 1u << p;
        if (p == cheaper)
            seen->cheaper = similarity;
    }
}

/* The median of what runs took lately; 0: none did. */
static double usual_us(const td_layers *layers)
{
    const uint32_t count = layers->us_count < TD_LAYERS_TIMES ? layers->us_count : (uint32_t)TD_LAYERS_TIMES;
    double sorted[TD_LAYERS_TIMES];

    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = i;

        for (; at && sorted[at - 1] > layers->us[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = layers->us[i];
    }
    return count ? sorted[count / 2] : 0;
}

/* --- The thread --- */

/* An instance with a sample that nobody has looked at, and what it is of. */
static td_instance *find_sample_locked(tandem_session *s, td_prepared **prepared)
{
    for (uint32_t i = 0; i < s->instances.capacity; i++) {
        td_instance *instance = (td_instance *)s->instances.slots[i];

        for (int p = 0; instance && !instance->object.closing && !instance->object.retired && p < TD_PREPARED; p++) {
            td_layers *layers = instance->prepared[p].layers;

            if (!layers || layers->stage != TD_LAYERS_THERE)
                continue;
            *prepared = &instance->prepared[p];
            return instance;
        }
    }
    return NULL;
}

/* Precisions as the control wants them, for the next programs; what a layer was before is forgotten where it changes. */
static void take_precisions(td_layers *layers, const td_program *sampled)
{
    for (uint32_t i = 0; i < layers->count; i++) {
        uint8_t *precision = &layers->precisions[sampled->samples[i].node];
        td_layer *layer = &layers->drafts[i];

        if (layers->quality.layers[i].precision == sampled->samples[i].precision)
            continue;
        *precision = (uint8_t)layers->quality.layers[i].precision;
        *layer = (td_layer){.changes = layer->changes + 1};
    }
}

/* No program could be made: layers stay as they are, and nobody asks again for what was asked. */
static void give_up(td_layers *layers, const td_program *sampled)
{
    for (uint32_t i = 0; i < layers->count; i++) {
        td_layer_control *control = &layers->quality.layers[i];

        if (control->precision != sampled->samples[i].precision)
            control->can &= ~(1u << control->precision);
        control->precision = sampled->samples[i].precision;
        layers->precisions[sampled->samples[i].node] = (uint8_t)control->precision;
    }
}

/* What a sample says, and new programs where that is wanted; without the lock. True: they are in *made. */
static bool look(tandem_session *s, const td_instance *instance, const td_prepared *prepared, const td_program *sampled,
                 double run_us, td_prepared *made)
{
    td_layers *layers = prepared->layers;
    char why[TD_WHY_BYTES] = "";

    memcpy(layers->drafts, layers->layers, layers->count * sizeof *layers->drafts);
    for (uint32_t i = 0; i < layers->count; i++)
        judge(layers, &sampled->samples[i], &layers->quality.layers[i], &layers->drafts[i], &layers->samples[i]);
    if (!td_quality_step(&layers->quality, layers->samples, run_us))
        return false;
    take_precisions(layers, sampled);
    if (td_instance_replan(s, instance, prepared, made, why) == TANDEM_OK)
        return true;
    give_up(layers, sampled);
    td_logf(&s->log, TD_LOG_WARN, "layers keep their precision: %s", why);
    return false;
}

/* The same with the lock, which it lets go meanwhile; then runs have what was made. */
static void look_locked(tandem_session *s, td_instance *instance, td_prepared *prepared)
{
    td_layers *layers = prepared->layers;
    const td_program *sampled = td_program_use(prepared->sampled);
    td_mem *const held[] = {instance->model->mem, instance->state, prepared->uniforms};
    const double run_us = usual_us(layers);
    td_prepared made = {0};

    for (int i = 0; i < 3; i++)
        held[i]->object.uses++;
    layers->stage = TD_LAYERS_AT_WORK;
    pthread_mutex_unlock(&s->lock);
    const bool changed = look(s, instance, prepared, sampled, run_us, &made);
    pthread_mutex_lock(&s->lock);
    memcpy(layers->layers, layers->drafts, layers->count * sizeof *layers->layers);
    if (changed) {
        td_prepared_swap_locked(prepared, &made);
        layers->us_count = 0;
    }
    layers->stage = TD_LAYERS_IDLE;
    for (int i = 0; i < 3; i++)
        td_object_release_locked(s, &held[i]->object);
    pthread_mutex_unlock(&s->lock);
    td_program_drop(&made.program);
    td_program_drop(&made.sampled);
    td_program_drop(&sampled);
    pthread_mutex_lock(&s->lock);
}

static void *judge_samples(void *session)
{
    tandem_session *s = session;

    td_thread_prepare("tandem judge");
    td_thread_set_idle();
    pthread_mutex_lock(&s->lock);
    while (!s->judge_ends) {
        td_prepared *prepared;
        td_instance *instance = find_sample_locked(s, &prepared);

        if (instance)
            look_locked(s, instance, prepared);
        else
            td_cond_wait_until(s, &s->judge, UINT64_MAX);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

tandem_status td_judge_start(tandem_session *s, char *why)
{
    pthread_mutex_lock(&s->lock);
    if (!s->has_judge)
        s->has_judge = td_thread_start(&s->judging, judge_samples, s);
    pthread_mutex_unlock(&s->lock);
    return s->has_judge ? TANDEM_OK : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no thread could be started");
}

void td_judge_stop(tandem_session *s)
{
    if (!s->has_judge)
        return;
    pthread_mutex_lock(&s->lock);
    s->judge_ends = true;
    pthread_cond_signal(&s->judge);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->judging, NULL);
    s->has_judge = false;
}

/* --- What callers ask --- */

static void describe(const td_instance *instance, const td_prepared *prepared, uint32_t index, tandem_layer *out)
{
    const td_program_sample *sample = &prepared->sampled->samples[index];
    const td_layer *layer = &prepared->layers->layers[index];
    const double count = layer->count ? layer->count : 1;

    *out = (tandem_layer){.node = sample->node,
                          .precision = sample->precision,
                          .samples = layer->count,
                          .changes = layer->changes,
                          .pending = prepared->layers->stage != TD_LAYERS_IDLE,
                          .heads = sample->heads,
                          .worst_head = layer->worst_head,
                          .worst_similarity = (float)layer->worst,
                          .cosine = (float)(layer->cosine / count),
                          .relative_l1 = (float)(layer->relative_l1 / count)};
    for (uint32_t p = 0; p < TD_SAMPLES; p++)
        out->similarity[p] = layer->measured >> p & 1 ? (float)(layer->similarity[p] / count) : -1;
    td_text(out->name, sizeof out->name, "%s", td_graph_layer_name(instance->model->network->graph, sample->node));
}

tandem_status tandem_model_layer(tandem_session *session, tandem_instance instance, const uint32_t *numbers,
                                 uint32_t number_count, uint32_t index, tandem_layer *layer)
{
    char why[TD_WHY_BYTES] = "";
    tandem_layer known = {0};
    tandem_status status;
    td_instance *found;

    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!layer)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "layer is NULL");
    status = TD_STRUCT_CHECK("layer", layer, why, sizeof why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    pthread_mutex_lock(&session->lock);
    td_jobs_advance_locked(session);
    found = td_instance_find_locked(session, instance, "instance", why);
    status = found ? td_network_check_numbers(found->model->network, numbers, number_count, "", why) : TANDEM_ERROR_ARG;
    const td_prepared *of = status == TANDEM_OK ? td_instance_find_prepared(found, numbers) : NULL;
    const uint32_t count = of && of->layers ? of->layers->count : 0;
    if (status == TANDEM_OK && !of)
        status = td_instance_not_prepared(found, numbers, "", why);
    else if (status == TANDEM_OK && index >= count)
        status = td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "index is %" PRIu32 "; %" PRIu32 " layers are sampled", index, count);
    if (status == TANDEM_OK)
        describe(found, of, index, &known);
    pthread_mutex_unlock(&session->lock);
    TD_STRUCT_OUT(layer, &known);
    return td_session_fail(session, __func__, status, why);
}
