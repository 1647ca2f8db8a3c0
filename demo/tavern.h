/* The tavern as one lives it: a visitor who walks up to somebody and talks, and what that comes to.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     demo_tavern_step()    a moment passes: the visitor walks, figures follow, things change hands
 *     demo_tavern_poll()    anywhere in a frame: what characters say meanwhile
 *     demo_tavern_show()    all that there is to draw over the picture
 *
 * Without a model everything is there but the answers.
 */
#ifndef TANDEM_DEMO_TAVERN_H
#define TANDEM_DEMO_TAVERN_H

#include "demo/metrics.h"
#include "demo/shown.h"
#include "demo/talk.h"
#include "demo/window.h"

enum { DEMO_INPUT_BYTES = 160, DEMO_TAVERN_FRAMES = 1024 };

/* What was said and done, in order. */
typedef struct demo_told {
    int who;
    uint32_t frame;
    demo_reply reply;
} demo_told;
enum { DEMO_TOLD = 64 };

typedef struct demo_samples { /* the last so many */
    double values[DEMO_TAVERN_FRAMES];
    uint32_t count;
} demo_samples;
void demo_samples_add(demo_samples *s, double value);
demo_percentiles demo_samples_percentiles(const demo_samples *s); /* zeros of none */

typedef struct demo_tavern {
    demo_talk talk;
    demo_cast cast, at_first;
    double now; /* seconds */
    int with;   /* whom the visitor talks to; -1: nobody */
    char input[DEMO_INPUT_BYTES];
    bool keys[4];      /* held: forwards, backwards, left, right */
    float eye[3], yaw; /* of the visitor, who is on the way there */
    bool follows[DEMO_FIGURES];
    double refused[DEMO_FIGURES], spoke[DEMO_FIGURES]; /* when, last */
    bool given[DEMO_ITEMS];
    int taken[DEMO_ITEMS]; /* by whom, plus 1 */
    char said[DEMO_FIGURES][DEMO_SAID_BYTES], did[DEMO_FIGURES][96];
    char note[400]; /* why nobody talks */
    char model[160];
    demo_told told[DEMO_TOLD];
    uint32_t told_count;
    demo_samples quiet, talking; /* frames without talk and with it, ms */
    demo_samples spent;          /* what characters took of the latter, us */
    uint32_t script;             /* lines of it that were said */
    uint64_t frame;
    uint64_t tokens; /* of all replies that have ended */
    double talk_s;   /* how long anybody talked */
    uint64_t stepped_ns;
} demo_tavern;

/* Without a model nobody talks, and `note` says why. NULL after one line on stderr: there is no
 * memory, or a model that was asked for cannot be used. Blocks while it is read. */
demo_tavern *demo_tavern_open(const demo_talk_options *options);
void demo_tavern_close(demo_tavern *t); /* NULL: nothing */

/* A frame begins, `seconds` after the one before. */
void demo_tavern_step(demo_tavern *t, double seconds);
void demo_tavern_poll(demo_tavern *t);
/* A frame took so long, which began while somebody talked or not. */
void demo_tavern_took(demo_tavern *t, double frame_ms, bool talking);
bool demo_tavern_talking(const demo_tavern *t);

/* True: it was for the tavern. `x` and `y` of a click: -1 to 1 over the picture, upwards. */
bool demo_tavern_key(demo_tavern *t, int32_t key, bool down);
void demo_tavern_text(demo_tavern *t, const char *text);
bool demo_tavern_click(demo_tavern *t, float x, float y, float aspect);

/* The next lines of a conversation that was written down, for whoever is through with the last one.
 */
void demo_tavern_script(demo_tavern *t);
/* What is still being said is told, too, as far as it goes. */
void demo_tavern_finish(demo_tavern *t);

void demo_tavern_show(const demo_tavern *t, float aspect, demo_shown *out);
#endif
