/* See settings.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/layer/settings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"
#include "interop/os/thread.h"
#include "tandem/tandem.h"

static const char *const effect_names[] = {"none", "denoise-film", "sharpen", "model"};

static const char *const rung_names[] = {[0] = "auto",
                                         [TANDEM_RUNG_INLINE] = "inline",
                                         [TANDEM_RUNG_TIMELINE] = "timeline",
                                         [TANDEM_RUNG_HOST] = "host",
                                         [TANDEM_RUNG_COPY] = "copy",
                                         [TANDEM_RUNG_CPU] = "cpu"};
enum { RUNGS = sizeof rung_names / sizeof *rung_names };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool begun;
static layer_settings now = {.on = true,
                             .hud = true,
                             .effect = LAYER_EFFECT_DENOISE_FILM,
                             .amount = 1,
                             .sigma = 5,
                             .generation = 1};
static layer_status shown;

const char *layer_effect_name(layer_effect effect)
{
    return effect_names[effect];
}

const char *layer_rung_name(uint32_t rung)
{
    return rung && rung < RUNGS ? rung_names[rung] : NULL;
}

/* --- Words --- */

static bool set_switch(const char *name, const char *value, bool *to, char *why, size_t why_bytes)
{
    const bool on = !strcmp(value, "1") || !strcmp(value, "on");

    if (!on && strcmp(value, "0") != 0 && strcmp(value, "off") != 0) {
        td_text(why, why_bytes, "%s is \"" TD_NAME "\", and must be on or off", name,
                TD_NAMED(value));
        return false;
    }
    *to = on;
    return true;
}

static bool set_number(const char *name, const char *value, float least, float most, float *to,
                       char *why, size_t why_bytes)
{
    /* Not strtof(): the program's locale may have a comma. */
    float number = 0, unit = 1;
    size_t digits = 0;
    const char *at = value;

    for (; *at >= '0' && *at <= '9' && digits < 9; at++, digits++)
        number = 10 * number + (float)(*at - '0');
    if (*at == '.')
        for (at++; *at >= '0' && *at <= '9' && digits < 9; at++, digits++)
            number += (float)(*at - '0') * (unit /= 10);
    if (!digits || *at || !(number >= least && number <= most)) {
        td_text(why, why_bytes, "%s is \"" TD_NAME "\", and must be a number from %g to %g", name,
                TD_NAMED(value), (double)least, (double)most);
        return false;
    }
    *to = number;
    return true;
}

static bool set_effect(layer_settings *s, const char *value, char *why, size_t why_bytes)
{
    static const char model[] = "model=";

    if (!strncmp(value, model, strlen(model))) {
        const char *path = value + strlen(model);
        if (!*path || strlen(path) >= sizeof s->model) {
            td_text(why, why_bytes,
                    "effect is a model whose path has %zu bytes, and must have 1 to %zu",
                    strlen(path), sizeof s->model - 1);
            return false;
        }
        memcpy(s->model, path, strlen(path) + 1);
        s->effect = LAYER_EFFECT_MODEL;
        return true;
    }
    for (int i = LAYER_EFFECT_NONE; i < LAYER_EFFECT_MODEL; i++)
        if (!strcmp(value, effect_names[i])) {
            s->effect = (layer_effect)i;
            return true;
        }
    td_text(why, why_bytes,
            "effect is \"" TD_NAME "\", and must be none, denoise-film, sharpen or model=FILE",
            TD_NAMED(value));
    return false;
}

static bool set_rung(layer_settings *s, const char *value, char *why, size_t why_bytes)
{
    for (uint32_t i = 0; i < RUNGS; i++)
        if (!strcmp(value, rung_names[i])) {
            s->rung = i;
            return true;
        }
    td_text(why, why_bytes,
            "rung is \"" TD_NAME "\", and must be auto, inline, timeline, host, copy or cpu",
            TD_NAMED(value));
    return false;
}

static bool set_one(layer_settings *s, const char *name, const char *value, char *why,
                    size_t why_bytes)
{
    if (!strcmp(name, "effect"))
        return set_effect(s, value, why, why_bytes);
    if (!strcmp(name, "rung"))
        return set_rung(s, value, why, why_bytes);
    if (!strcmp(name, "on"))
        return set_switch(name, value, &s->on, why, why_bytes);
    if (!strcmp(name, "hud"))
        return set_switch(name, value, &s->hud, why, why_bytes);
    if (!strcmp(name, "amount"))
        return set_number(name, value, 0, 2, &s->amount, why, why_bytes);
    if (!strcmp(name, "sigma"))
        return set_number(name, value, 1, 64, &s->sigma, why, why_bytes);
    td_text(why, why_bytes,
            "there is no setting \"" TD_NAME
            "\": there are effect, on, hud, amount, sigma and rung",
            TD_NAMED(name));
    return false;
}

/* --- The environment, once --- */

static void begin_locked(void)
{
    static const char *const variables[][2] = {{"TANDEM_LAYER_EFFECT", "effect"},
                                               {"TANDEM_LAYER_HUD", "hud"},
                                               {"TANDEM_LAYER_AMOUNT", "amount"},
                                               {"TANDEM_LAYER_SIGMA", "sigma"},
                                               {"TANDEM_LAYER_RUNG", "rung"}};
    char why[256];

    if (begun)
        return;
    begun = true;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *value = getenv(variables[i][0]);
        if (value && *value && !set_one(&now, variables[i][1], value, why, sizeof why))
            fprintf(stderr, "tandem: %s: %s; it is left as it was\n", variables[i][0], why);
    }
}

/* --- What others ask --- */

void layer_settings_get(layer_settings *out)
{
    pthread_mutex_lock(&lock);
    begin_locked();
    *out = now;
    pthread_mutex_unlock(&lock);
}

bool layer_settings_set(const char *lines, char *why, size_t why_bytes)
{
    layer_settings next;
    char line[LAYER_PATH_BYTES + 32];

    layer_settings_get(&next);
    for (const char *at = lines; *at;) {
        const size_t bytes = strcspn(at, "\n");
        if (bytes >= sizeof line) {
            td_text(why, why_bytes, "a setting has %zu bytes, and must have less than %zu", bytes,
                    sizeof line);
            return false;
        }
        memcpy(line, at, bytes);
        line[bytes] = 0;
        at += bytes + (at[bytes] == '\n');
        char *value = strchr(line, '=');
        if (!value) {
            td_text(why, why_bytes, "\"" TD_NAME "\" is no name=value", TD_NAMED(line));
            return false;
        }
        *value++ = 0;
        if (!set_one(&next, line, value, why, why_bytes))
            return false;
    }
    pthread_mutex_lock(&lock);
    next.generation = now.generation + 1;
    now = next;
    pthread_mutex_unlock(&lock);
    return true;
}

void layer_settings_toggle(bool hud)
{
    pthread_mutex_lock(&lock);
    begin_locked();
    if (hud)
        now.hud = !now.hud;
    else
        now.on = !now.on;
    pthread_mutex_unlock(&lock);
}

void layer_status_get(layer_status *out)
{
    pthread_mutex_lock(&lock);
    *out = shown;
    pthread_mutex_unlock(&lock);
}

void layer_status_set(const layer_status *status)
{
    pthread_mutex_lock(&lock);
    shown = *status;
    pthread_mutex_unlock(&lock);
}

typedef struct decimal {
    char text[32];
} decimal;

/* With a point, whatever the program's locale has. */
static decimal decimal_of(double x)
{
    const long long thousandths = x < 1e12 ? llround(x * 1000) : 0;
    decimal d;

    snprintf(d.text, sizeof d.text, "%lld.%03lld", thousandths / 1000, thousandths % 1000);
    return d;
}

void layer_status_text(char *text, size_t bytes)
{
    layer_settings s;
    layer_status r;

    layer_settings_get(&s);
    layer_status_get(&r);
    snprintf(
        text, bytes,
        "on %s\neffect %s%s%s\namount %s\nsigma %s\nhud %s\nrung %s\nsize %ux%u\npresented %llu\n"
        "changed %llu\nframe_ms %s\ncost_ms %s\nwhy %s\n",
        s.on ? "yes" : "no", effect_names[s.effect], s.effect == LAYER_EFFECT_MODEL ? "=" : "",
        s.effect == LAYER_EFFECT_MODEL ? s.model : "", decimal_of((double)s.amount).text,
        decimal_of((double)s.sigma).text, s.hud ? "yes" : "no", r.rung ? r.rung : "none", r.width,
        r.height, (unsigned long long)r.presented, (unsigned long long)r.changed,
        decimal_of(r.frame_ms).text, decimal_of(r.cost_ms).text, r.why[0] ? r.why : "-");
}
