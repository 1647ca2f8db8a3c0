/* Live quality control. See quality.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/run/quality.h"

#include <stddef.h>

#define MARGIN 0.25 /* of what the target leaves to 1 */
#define SPARE 0.75  /* of the time that a run may take */

void td_quality_begin(td_quality *quality, const td_quality_target *target, td_layer_control *layers, uint32_t layer_count)
{
    *quality = (td_quality){.target = *target,
                            .spare_patience = TD_QUALITY_PATIENCE,
                            .spare_age = TD_QUALITY_MOST_PATIENCE,
                            .layer_count = layer_count,
                            .layers = layers};
    for (uint32_t i = 0; i < layer_count; i++)
        layers[i] = (td_layer_control){
            .precision = layers[i].precision, .can = layers[i].can, .patience = TD_QUALITY_PATIENCE};
}

uint32_t td_quality_cheaper(const td_layer_control *layer)
{
    for (uint32_t p = layer->precision + 1; p <= TANDEM_PRECISION_4B; p++)
        if (layer->can >> p & 1)
            return p;
    return TANDEM_PRECISION_AUTO;
}

uint32_t td_quality_finer(const td_layer_control *layer)
{
    for (uint32_t p = layer->precision - 1; p > TANDEM_PRECISION_AUTO; p--)
        if (layer->can >> p & 1)
            return p;
    return TANDEM_PRECISION_AUTO;
}

static uint32_t doubled(uint32_t patience)
{
    return patience < TD_QUALITY_MOST_PATIENCE ? 2 * patience : (uint32_t)TD_QUALITY_MOST_PATIENCE;
}

static bool change(td_layer_control *layer, uint32_t precision)
{
    if (precision == TANDEM_PRECISION_AUTO)
        return false;
    layer->lowered = precision > layer->precision;
    layer->precision = precision;
    layer->good = layer->age = 0;
    return true;
}

/* What is not good enough; a NaN is not. */
static bool is_bad(const td_quality *quality, double similarity)
{
    return quality->target.min_similarity > 0 && !(similarity >= quality->target.min_similarity);
}

/* Counts a sample; true: the layer has become more precise. */
static bool watch(td_quality *quality, td_layer_control *layer, const td_layer_sample *sample)
{
    const double least = quality->target.min_similarity;
    const bool again = layer->lowered && layer->age < TD_QUALITY_MOST_PATIENCE;

    layer->age += layer->age < TD_QUALITY_MOST_PATIENCE;
    if (is_bad(quality, sample->similarity)) {
        layer->good = 0;
        if (!change(layer, td_quality_finer(layer)))
            return false;
        layer->patience = again ? doubled(layer->patience) : (uint32_t)TD_QUALITY_PATIENCE;
        return true;
    }
    const bool good = td_quality_cheaper(layer) != TANDEM_PRECISION_AUTO && sample->cheaper >= 0 &&
                      sample->cheaper >= (least > 0 ? least + MARGIN * (1 - least) : 0);
    layer->good = good ? layer->good + (layer->good < TD_QUALITY_MOST_PATIENCE) : 0;
    return false;
}

/* Which is to be cheaper: of the layers that have been patient the one that loses least. Or finer: of those that could be the worst.
 * NULL: none. */
static td_layer_control *find(const td_quality *quality, const td_layer_sample *samples, bool cheaper)
{
    td_layer_control *best = NULL;
    double most = 0;

    for (uint32_t i = 0; i < quality->layer_count; i++) {
        td_layer_control *layer = &quality->layers[i];
        const bool may = cheaper ? layer->good >= layer->patience : td_quality_finer(layer) != TANDEM_PRECISION_AUTO;
        const double value = cheaper ? samples[i].cheaper : -samples[i].similarity;

        if (!may || (best && value <= most))
            continue;
        best = layer;
        most = value;
    }
    return best;
}

static bool keep_time(td_quality *quality, const td_layer_sample *samples, double run_us)
{
    const double most = quality->target.max_us;

    if (quality->spare_age < TD_QUALITY_MOST_PATIENCE && ++quality->spare_age == TD_QUALITY_MOST_PATIENCE)
        quality->spare_patience = TD_QUALITY_PATIENCE; /* it was well spent */
    if (run_us > most) {
        td_layer_control *layer = find(quality, samples, true);

        quality->spare = 0;
        if (!layer || !change(layer, td_quality_cheaper(layer)))
            return false;
        if (quality->spare_age < TD_QUALITY_MOST_PATIENCE) /* what was spent was too much */
            quality->spare_patience = doubled(quality->spare_patience);
        quality->spare_age = TD_QUALITY_MOST_PATIENCE;
        return true;
    }
    quality->spare = run_us > 0 && run_us < SPARE * most ? quality->spare + 1 : 0;
    td_layer_control *layer = quality->spare >= quality->spare_patience ? find(quality, samples, false) : NULL;
    if (!layer)
        return false;
    quality->spare = quality->spare_age = 0;
    change(layer, td_quality_finer(layer));
    layer->good = layer->patience; /* as before: where that takes too long, it is the first to go back */
    return true;
}

bool td_quality_step(td_quality *quality, const td_layer_sample *samples, double run_us)
{
    bool changed = false;

    for (uint32_t i = 0; i < quality->layer_count; i++)
        changed = watch(quality, &quality->layers[i], &samples[i]) || changed;
    if (changed) /* one thing at a time: what the run takes now is seen next time */
        return true;
    if (quality->target.max_us > 0)
        return keep_time(quality, samples, run_us);
    for (uint32_t i = 0; i < quality->layer_count && quality->target.min_similarity > 0; i++)
        if (quality->layers[i].good >= quality->layers[i].patience)
            changed = change(&quality->layers[i], td_quality_cheaper(&quality->layers[i])) || changed;
    return changed;
}
