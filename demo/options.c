/* The command line of tandem-demo.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void demo_options_help(void)
{
    printf("tandem-demo: a room is rendered in Vulkan and denoised by a network, frame after frame\n"
           "\n"
           "  --headless            no window: write pictures and report.json, then end\n"
           "  --frames N            how many frames (headless: 60; window: until it is closed)\n"
           "  --out DIR             where files go (default: out)\n"
           "  --scene NAME          ");
    for (int i = 0; demo_scene_name(i); i++)
        printf("%s%s", i ? ", " : "", demo_scene_name(i));
    printf("\n                        (default: %s; courtyard in a window on a GPU)\n", demo_scene_name(0));
    printf("  --effect E            what cleans the picture: denoise, a trained network that also uses the frames before, or\n"
           "                        filter, attention that nobody trained (default: denoise; filter where an option of its own\n"
           "                        is given)\n"
           "  --preset P            denoise: the network to begin with: fast, balanced, high, as far as their files are beside the\n"
           "                        program (default: balanced)\n"
           "  --model F             denoise: a network of your own, in place of them all\n"
           "  --mode M              filter: precision: auto, f16, 8b (default: auto)\n"
           "  --max-error X         filter: auto: relative L1 error of 8b above which f16 is used (default: 0.05)\n"
           "  --backend B           auto, cuda, cpu (default: auto)\n"
           "  --rung R              how compute meets the renderer: auto (best), inline, timeline, host, copy, cpu\n"
           "  --ladder N            headless: one rung down every N frames; every frame is checked\n"
           "  --width W --height H  size of a frame (default: 960x540 on a GPU, 320x180 without)\n"
           "  --seed N              of the renderer's noise (default: 1)\n"
           "  --threads N           most threads that the CPU backend uses (default: all cores)\n"
           "  --in-flight N         frames under way at once: 1 or 2 (default: 2 on a GPU, 1 where the CPU computes)\n"
           "  --samples N           headless: samples a pixel of the reference (default: 1024)\n"
           "  --save-frames         headless: write the frames that quality is measured on, with their references, as\n"
           "                        `tandem eval denoise --frames DIR` reads them: SCENE-FRAME.00.safetensors\n"
           "  --oidn F              the library of Open Image Denoise, to compare with (default: where it is installed, if it is)\n"
           "  --attention-at X,Y    headless, denoise: write where that pixel of the last frame has its light from: attention.png\n"
           "  --npc-model F         tavern: what its people think with: any language model as GGUF (default: npc.gguf beside\n"
           "                        the program)\n"
           "  --npc-budget US       tavern: microseconds of each frame that they may take (default: 1000 on a GPU, else 30000)\n"
           "  --npc-cache C         tavern: how they keep what was said: f16, k8v8, k4v8 (default: f16)\n"
           "  --dump F.safetensors  headless, filter: write q, k, v and o of the last frame\n"
           "  --trace F.json        write a trace of all frames, for ui.perfetto.dev\n"
           "  --inject STAGE:MS     delay a stage: render, pack, to, attention, back, unpack, present\n"
           "  --inject error:X      filter: raise the relative L1 error of the output that is measured by X\n"
           "  --help                this\n"
           "\n"
           "Keys: H in the window lists them; N goes from one effect to the other, M from one preset to the next.\n"
           "TANDEM_DEMO_VALIDATE=1 turns the Vulkan validation layer on, synchronisation included.\n");
}

static bool parse_u32(const char *option, const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (!*text || *text == '-' || *text == '+' || *text == ' ' || *end || errno || value < low || value > high)
        return demo_fail("%s %s: must be a whole number from %u to %u", option, text, low, high);
    *out = (uint32_t)value;
    return true;
}

/* X,Y */
static bool parse_pixel(const char *option, const char *text, uint32_t out[2])
{
    char first[16];
    const char *comma = strchr(text, ',');
    if (!comma || comma == text || (size_t)(comma - text) >= sizeof first)
        return demo_fail("%s %s: must be X,Y, a pixel", option, text);
    memcpy(first, text, (size_t)(comma - text));
    first[comma - text] = 0;
    return parse_u32(option, first, 0, 4095, &out[0]) && parse_u32(option, comma + 1, 0, 4095, &out[1]);
}

static bool parse_error(const char *option, const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (*text == ' ' || *end || !(*out > 0 && *out <= 10))
        return demo_fail("%s %s: must be a number above 0, at most 10", option, text);
    return true;
}

/* One of names[0] to names[last]. */
static bool parse_choice(const char *option, const char *text, const char *const *names, uint32_t last, uint32_t *out)
{
    char list[128] = "";
    for (uint32_t i = 0; i <= last; i++) {
        if (!strcmp(names[i], text)) {
            *out = i;
            return true;
        }
        strncat(list, i ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, names[i], sizeof list - strlen(list) - 1);
    }
    return demo_fail("%s %s: must be one of %s", option, text, list);
}

static bool parse_scene(const char *text, int *out)
{
    char list[256] = "";
    *out = demo_scene_find(text);
    for (int i = 0; *out < 0 && demo_scene_name(i); i++) {
        strncat(list, i ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, demo_scene_name(i), sizeof list - strlen(list) - 1);
    }
    return *out >= 0 || demo_fail("--scene %s: must be one of %s", text, list);
}

static void note_talk_option(demo_options *o, const char *name)
{
    if (!strncmp(name, "--npc-", 6))
        o->talk_only = !strcmp(name, "--npc-model") ? "--npc-model" : !strcmp(name, "--npc-cache") ? "--npc-cache" : "--npc-budget";
}

static int find_stage(const char *name)
{
    static const char *const short_names[DEMO_STAGES] = {[DEMO_TO] = "to", [DEMO_BACK] = "back"};
    static const char *const dashed[DEMO_STAGES] = {[DEMO_TO] = "hand-over-to", [DEMO_BACK] = "hand-over-back"};
    for (int i = 0; i < DEMO_STAGES; i++)
        if (!strcmp(name, demo_stage_names[i]) || (short_names[i] && !strcmp(name, short_names[i])) ||
            (dashed[i] && !strcmp(name, dashed[i])))
            return i;
    return -1;
}

static bool parse_inject(const char *text, demo_frame_options *out)
{
    char name[64], *end;
    const char *colon = strrchr(text, ':');
    const size_t length = colon ? (size_t)(colon - text) : 0;
    if (!colon || !length || length >= sizeof name || !colon[1])
        return demo_fail("--inject %s: must be STAGE:MS or error:X", text);
    memcpy(name, text, length);
    name[length] = 0;
    const double value = strtod(colon + 1, &end);
    const int stage = find_stage(name);
    const bool error = !strcmp(name, "error");
    if (stage < 0 && !error)
        return demo_fail("--inject %s: %s is none of render, pack, to, attention, back, unpack, present, error", text,
                         name);
    const double most = error ? 10.0 : 10000.0;
    if (*end || !isfinite(value) || value < 0 || value > most)
        return demo_fail("--inject %s: %s must be a number from 0 to %g", text, colon + 1, most);
    if (error)
        out->inject_error = value;
    else
        out->inject_ms[stage] = value;
    return true;
}

static void note_filter_option(demo_options *o, const char *name)
{
    static const char *const filters[] = {"--mode", "--max-error", "--dump"};
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (!strcmp(name, filters[i]))
            o->filter_only = filters[i];
    if (o->frame.inject_error > 0)
        o->filter_only = "--inject error";
}

bool demo_options_parse(int argc, char **argv, demo_options *o)
{
    static const char *const caches[] = {"f16", "k8v8", "k4v8"};
    const char *validate = getenv("TANDEM_DEMO_VALIDATE"), *model = NULL;
    *o = (demo_options){.samples = 1024, .max_error = 0.05, .out = "out", .frame = {.seed = 1, .preset = DEMO_PRESET_BALANCED}};
    o->validate = validate && *validate && strcmp(validate, "0") != 0;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value;
        char option[64];
        const char *equals = !strncmp(name, "--", 2) ? strchr(name, '=') : NULL;
        if (equals && (size_t)(equals - name) < sizeof option) {
            memcpy(option, name, (size_t)(equals - name));
            option[equals - name] = 0;
            name = option;
        }
        if (!strcmp(name, "--headless") || !strcmp(name, "--help") || !strcmp(name, "-h") || !strcmp(name, "--verbose") ||
            !strcmp(name, "--save-frames")) {
            if (equals)
                return demo_fail("%s takes no value", name);
            if (!strcmp(name, "--headless"))
                o->headless = true;
            else if (!strcmp(name, "--verbose"))
                o->verbose = true;
            else if (!strcmp(name, "--save-frames"))
                o->save_frames = true;
            else
                o->help = true;
            continue;
        }
        static const char *const known[] = {"--frames", "--out",  "--scene",   "--mode", "--backend", "--width",
                                            "--height",
                                            "--seed",   "--dump", "--threads", "--inject", "--trace",
                                            "--samples", "--in-flight", "--max-error", "--rung", "--ladder",
                                            "--effect", "--preset", "--model", "--oidn", "--attention-at", "--npc-model",
                                            "--npc-budget", "--npc-cache"};
        bool is_known = false;
        for (size_t j = 0; j < sizeof known / sizeof *known; j++)
            is_known = is_known || !strcmp(name, known[j]);
        if (!is_known)
            return demo_fail("%s is no option; --help lists them", name);
        if (equals)
            value = equals + 1;
        else if (i + 1 < argc)
            value = argv[++i];
        else
            return demo_fail("%s needs a value", name);
        if (!*value)
            return demo_fail("%s needs a value that is not empty", name);
        bool ok = true;
        if (!strcmp(name, "--frames"))
            ok = parse_u32(name, value, 1, 1000000, &o->frames);
        else if (!strcmp(name, "--out"))
            o->out = value;
        else if (!strcmp(name, "--scene"))
            o->scene_given = ok = parse_scene(value, &o->frame.scene);
        else if (!strcmp(name, "--effect"))
            o->effect_given = ok = parse_choice(name, value, demo_effects, DEMO_EFFECTS - 1, &o->effect);
        else if (!strcmp(name, "--model")) {
            model = value;
            o->frame.model_asked = true;
        } else if (!strcmp(name, "--preset"))
            o->preset_given = ok = parse_choice(name, value, demo_presets, DEMO_PRESETS - 1, &o->frame.preset);
        else if (!strcmp(name, "--mode"))
            ok = parse_choice(name, value, demo_precisions, TANDEM_PRECISION_8B, &o->precision);
        else if (!strcmp(name, "--backend"))
            ok = parse_choice(name, value, demo_backends, TANDEM_BACKEND_CPU, &o->frame.backend);
        else if (!strcmp(name, "--rung"))
            ok = parse_choice(name, value, demo_rungs, TANDEM_RUNG_CPU, &o->frame.rung);
        else if (!strcmp(name, "--ladder"))
            ok = parse_u32(name, value, 2, 1000000, &o->ladder);
        else if (!strcmp(name, "--width"))
            ok = parse_u32(name, value, 32, 4096, &o->frame.width);
        else if (!strcmp(name, "--height"))
            ok = parse_u32(name, value, 32, 4096, &o->frame.height);
        else if (!strcmp(name, "--seed"))
            ok = parse_u32(name, value, 0, UINT32_MAX, &o->frame.seed);
        else if (!strcmp(name, "--threads"))
            ok = parse_u32(name, value, 0, 1024, &o->frame.threads);
        else if (!strcmp(name, "--in-flight"))
            ok = parse_u32(name, value, 1, DEMO_SLOTS, &o->frame.in_flight);
        else if (!strcmp(name, "--samples"))
            o->samples_given = ok = parse_u32(name, value, 1, 1000000, &o->samples);
        else if (!strcmp(name, "--max-error"))
            ok = parse_error(name, value, &o->max_error);
        else if (!strcmp(name, "--dump"))
            o->dump = value;
        else if (!strcmp(name, "--oidn"))
            o->oidn = value;
        else if (!strcmp(name, "--attention-at"))
            o->attention_given = ok = parse_pixel(name, value, o->attention);
        else if (!strcmp(name, "--trace"))
            o->trace = value;
        else if (!strcmp(name, "--npc-model")) {
            o->talk.path = value;
            o->talk.asked = true;
        } else if (!strcmp(name, "--npc-budget"))
            ok = parse_u32(name, value, 50, 1000000, &o->talk.budget_us);
        else if (!strcmp(name, "--npc-cache"))
            ok = parse_choice(name, value, caches, TANDEM_CACHE_K4V8, &o->talk.cache);
        else
            ok = parse_inject(value, &o->frame);
        if (!ok)
            return false;
        note_filter_option(o, name);
        note_talk_option(o, name);
    }
    if (o->talk_only && !demo_scene_has_cast(o->frame.scene))
        return demo_fail("%s: is for --scene tavern", o->talk_only);
    if (o->preset_given && o->frame.model_asked)
        return demo_fail("--preset %s: there are none beside --model %s", demo_presets[o->frame.preset], model);
    o->frame.models[o->frame.preset] = model;
    if (!o->effect_given)
        o->effect = o->filter_only && !o->frame.model_asked && !o->preset_given ? DEMO_EFFECT_FILTER : DEMO_EFFECT_DENOISE;
    if (o->effect == DEMO_EFFECT_FILTER && o->attention_given)
        return demo_fail("--attention-at: is the trained network's, which --effect denoise asks for");
    if (o->effect == DEMO_EFFECT_DENOISE && o->filter_only)
        return demo_fail("%s: is the filter's, which --effect filter asks for", o->filter_only);
    return true;
}
