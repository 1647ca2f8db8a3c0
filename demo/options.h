/* The command line of tandem-demo.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_OPTIONS_H
#define TANDEM_DEMO_OPTIONS_H

#include "demo/frame.h"
#include "demo/talk.h"

typedef struct demo_options {
    demo_frame_options frame; /* width and height 0: by the device */
    bool headless, help, verbose, validate;
    uint32_t frames; /* 0 in a window: until it is closed */
    uint32_t effect; /* demo_effect */
    bool effect_given, scene_given, preset_given;
    uint32_t precision;
    uint32_t samples; /* of the reference */
    bool samples_given;
    bool save_frames; /* headless: those that are judged */
    bool attention_given;
    uint32_t attention[2]; /* x, y of the pixel whose weights are to be written */
    uint32_t ladder;  /* headless: step down after so many frames, and check every frame; 0: no */
    double max_error; /* relative L1 that `auto` takes from 8b */
    const char *filter_only; /* an option of the filter's alone that was given, or NULL */
    const char *out, *dump, *trace, *oidn; /* oidn: NULL: where libraries are, if it is there */
    demo_talk_options talk; /* path NULL: no model was asked for */
    const char *talk_only;  /* an option of characters that was given, or NULL */
} demo_options;

/* False after one line on stderr that names the option and the value. */
bool demo_options_parse(int argc, char **argv, demo_options *out);
void demo_options_help(void);

#endif
