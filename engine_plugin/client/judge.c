/* How good layers are, by what runs with samples have left, and which precision they have next. See network.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * That is looked at by a thread of the session's, which tells td_quality_step(). Where a precision changes the thread plans both
 * programs anew, and puts them in the old ones' place: runs that were submitted keep their plan, those behind have the new one, and
 * state, uniforms and numbers stay. No submit plans or waits, and no run has two plans.
 * The thread leaves processors to others by a low priority and by resting for most of the time. The lowest would not do: the end
 * of an instance and of a model wait for a look that is under way, which then may take seconds where all processors are busy.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine_plugin/client/local.h"
#include "engine_plugin/client/network.h"
#include "interop/os/clock.h"
#include "kernels/cpu/cpu.h"

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

/* By itself, or with its model. */
static bool goes(const td_instance *instance)
{
    return td_object_goes(&instance->object) || td_object_goes(&instance->model->object);
}

/* An instance with a sample that nobody has looked at, and what it is of. */
static td_instance *find_sample_locked(tandem_session *s, td_prepared **prepared)
{
    for (uint32_t i = 1; i <= s->instances.capacity; i++) { /* the one that was looked at last is the last in turn */
        const uint32_t at = (s->judged + i) % s->instances.capacity;
        td_instance *instance = (td_instance *)s->instances.slots[at];

        for (int p = 0; instance && !goes(instance) && p < TD_PREPARED; p++) {
            td_layers *layers = instance->prepared[p].layers;

            if (!layers || layers->stage != TD_LAYERS_THERE)
                continue;
            *prepared = &instance->prepared[p];
            s->judged = at;
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

/* So that this takes a quarter of a thread at most. */
static void rest_locked(tandem_session *s, uint64_t since_ns)
{
    const uint64_t now = td_now_ns(), until = now + 3 * (now - since_ns);

    while (!s->judge_ends && td_now_ns() < until)
        td_cond_wait_until(s, &s->judge, until);
}

static void *judge_samples(void *session)
{
    tandem_session *s = session;

    td_thread_prepare("tandem judge");
    td_thread_set_low();
    pthread_mutex_lock(&s->lock);
    while (!s->judge_ends) {
        const uint64_t begin_ns = td_now_ns();
        td_prepared *prepared;
        td_instance *instance = find_sample_locked(s, &prepared);

        if (instance) {
            look_locked(s, instance, prepared);
            rest_locked(s, begin_ns);
        } else {
            td_cond_wait_until(s, &s->judge, UINT64_MAX);
        }
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
