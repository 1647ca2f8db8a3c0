/* What is to be done, as the environment said at first and `tandem layer` does since; and what is
 * done, for it to show.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_LAYER_SETTINGS_H
#define TANDEM_LAYER_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LAYER_PATH_BYTES = 1024 };

typedef enum layer_effect {
    LAYER_EFFECT_NONE,
    LAYER_EFFECT_DENOISE_FILM,
    LAYER_EFFECT_SHARPEN,
    LAYER_EFFECT_MODEL
} layer_effect;

typedef struct layer_settings {
    bool on; /* the effect */
    bool hud;
    layer_effect effect;
    float amount; /* of the effect: 0 to 2 */
    float sigma;  /* what is noise, in 8-bit codes: 1 to 64 */
    uint32_t rung; /* tandem_rung; 0: the best */
    char model[LAYER_PATH_BYTES];
    uint32_t generation; /* another number with each change of the effect */
} layer_settings;

/* Of what was presented last. */
typedef struct layer_status {
    uint64_t presented, changed; /* images of the program's, and those that the effect was run on */
    double frame_ms,
        cost_ms; /* from one present to the next, and what the layer adds to it; smoothed */
    uint32_t width, height;
    const char *rung; /* a literal; NULL: there is no session */
    char why[256];    /* why the effect is not run; "": it is, or need not be */
} layer_status;

/* All of these: any thread. */
void layer_settings_get(layer_settings *out);
/* Lines of `name=value`; all are taken, or none. False, and the reason, if one is wrong. */
bool layer_settings_set(const char *lines, char *why, size_t why_bytes);
void layer_settings_toggle(bool hud);
const char *layer_effect_name(layer_effect effect);
const char *layer_rung_name(uint32_t rung); /* a literal; NULL for none */

void layer_status_get(layer_status *out);
void layer_status_set(const layer_status *status);

/* What both are, a `name value` a line. */
void layer_status_text(char *text, size_t bytes);

#endif
