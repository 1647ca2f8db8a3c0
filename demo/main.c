/* tandem-demo: an engine renders a frame in Vulkan, Tandem takes the noise out of it, the engine shows the result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "demo/run.h"
#include "interop/base.h"
#include "interop/os/descriptor.h"

static void on_log(void *user, int level, const char *text)
{
    const demo_options *o = user;
    if (level <= TANDEM_LOG_WARN || o->verbose)
        fprintf(stderr, "tandem-demo: %s\n", text);
}

/* Opens the window's part from the program's own folder; NULL with the reason in `why`. */
static const demo_window_table *load_window(void **library, char *why, size_t why_bytes)
{
    char path[PATH_MAX + sizeof DEMO_WINDOW_FILE + 1];
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    char *slash;
    if (length <= 0) {
        snprintf(why, why_bytes, "/proc/self/exe cannot be read");
        return NULL;
    }
    path[length] = 0;
    slash = strrchr(path, '/');
    strcpy(slash ? slash + 1 : path, DEMO_WINDOW_FILE);
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*library) {
        snprintf(why, why_bytes, "%s", dlerror());
        return NULL;
    }
    const demo_window_table *(*get)(void) = (const demo_window_table *(*)(void))dlsym(*library, DEMO_WINDOW_SYMBOL);
    const demo_window_table *table = get ? get() : NULL;
    if (!table || table->version != DEMO_WINDOW_VERSION) {
        snprintf(why, why_bytes, "%.400s is of another version", path);
        return NULL;
    }
    return table;
}

/* The network was not asked for by name, and is not there: what needs no weights does it. */
static bool settle_effect(demo_options *o, const demo_pipeline *p)
{
    const char *model = o->frame.models[o->frame.preset], *file = model ? model : "";
    const char *why = model ? p->no_denoiser : "there is no denoise.safetensors beside the program";
    if (o->preset_given && !p->has_denoiser)
        return demo_fail("--preset %s: %s: %s", demo_presets[o->frame.preset], file, why);
    if (o->effect != DEMO_EFFECT_DENOISE || p->has_denoiser)
        return true;
    if (o->effect_given)
        return demo_fail("--effect denoise: %s%s%s", file, *file ? ": " : "", why);
    demo_fail("without the trained network, by the filter instead: %s%s%s", file, *file ? ": " : "", why);
    o->effect = DEMO_EFFECT_FILTER;
    return true;
}

/* Those whose files are there. False where the one that was asked for is not. */
static bool find_presets(demo_options *o)
{
    static char paths[DEMO_PRESETS][PATH_MAX];
    char list[64] = "";
    if (o->frame.model_asked)
        return true;
    for (int i = 0; i < DEMO_PRESETS; i++) {
        if (!demo_asset_find(demo_preset_files[i], paths[i], sizeof paths[i]))
            continue;
        o->frame.models[i] = paths[i];
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", demo_presets[i]);
    }
    return !o->preset_given || o->frame.models[o->frame.preset] ||
           demo_fail("--preset %s: there is no %s beside the program; presets that there are: %s", demo_presets[o->frame.preset],
                     demo_preset_files[o->frame.preset], *list ? list : "none");
}

/* What is compared with, where it is; false where it was asked for by name and is not. A window opens it when it is to be seen. */
static bool open_oidn(const demo_options *o, const demo_pipeline *p, demo_oidn **oidn)
{
    char why[400] = "";
    if (!o->headless)
        return !o->oidn || demo_oidn_is_there(o->oidn) || demo_fail("--oidn %s: there is no such library", o->oidn);
    *oidn = demo_oidn_open(o->oidn, p->info.backend == TANDEM_BACKEND_CUDA, o->frame.threads, p->options.width, p->options.height,
                           why, sizeof why);
    return *oidn || !o->oidn || demo_fail("--oidn %s: %s", o->oidn, why);
}

int main(int argc, char **argv)
{
    demo_options options;
    static demo_engine engine;
    static demo_pipeline pipeline;
    static char npc[PATH_MAX];
    demo_display display = {0};
    demo_oidn *oidn = NULL;
    void *library = NULL;
    char why[512] = "";
    int exit_status = 1;
    const char *const *extensions = NULL;
    uint32_t extension_count = 0;

    if (!td_fd_standard())
        return 1;
    if (!demo_options_parse(argc, argv, &options))
        return 2;
    if (options.help) {
        demo_options_help();
        return 0;
    }
    if (!find_presets(&options))
        return 2;
    if (!options.headless) {
        display.table = load_window(&library, why, sizeof why);
        if (display.table)
            display.window = display.table->open("Tandem", 1280, 720, why, sizeof why);
        if (!display.window) {
            fprintf(stderr, "tandem-demo: no window (%s): running headless\n", why);
            options.headless = true;
        }
    }
    if (!options.headless &&
        (options.dump || options.ladder || options.samples_given || options.save_frames || options.attention_given)) {
        demo_fail("%s: only with --headless", options.dump            ? "--dump"
                                              : options.ladder        ? "--ladder"
                                              : options.samples_given ? "--samples"
                                              : options.save_frames   ? "--save-frames"
                                                                      : "--attention-at");
        exit_status = 2;
        goto end;
    }
    if (display.window)
        extensions = display.table->extensions(display.window, &extension_count);
    if (!demo_engine_instance(&engine, extensions, extension_count, options.validate))
        goto end;
    if (display.window && !display.table->surface(display.window, engine.instance, &display.surface, why, sizeof why)) {
        demo_fail("cannot draw on the window: %s", why);
        goto end;
    }
    if (!demo_engine_device(&engine, display.surface))
        goto end;
    const bool gpu = !demo_engine_on_cpu(&engine);
    if (!options.headless && !options.scene_given && gpu) /* which has the time for it */
        options.frame.scene = demo_scene_find("courtyard");
    if (!options.frame.width)
        options.frame.width = gpu ? 960 : 320;
    if (!options.frame.height)
        options.frame.height = gpu ? 540 : 180;
    if (options.attention_given && (options.attention[0] >= options.frame.width || options.attention[1] >= options.frame.height)) {
        demo_fail("--attention-at %u,%u: the picture has %ux%u pixels", options.attention[0], options.attention[1], options.frame.width,
                  options.frame.height);
        exit_status = 2;
        goto end;
    }
    options.frame.log = on_log;
    options.frame.log_user = &options;
    options.talk.log = on_log;
    options.talk.user = &options;
    options.talk.backend = options.frame.backend;
    options.talk.threads = options.frame.threads;
    if (!options.talk.path && demo_asset_find("npc.gguf", npc, sizeof npc))
        options.talk.path = npc;
    if (!demo_pipeline_create(&pipeline, &engine, &options.frame) || !settle_effect(&options, &pipeline) ||
        !open_oidn(&options, &pipeline, &oidn))
        goto end;
    exit_status = options.headless ? demo_run_headless(&engine, &pipeline, &options, oidn)
                                   : demo_run_window(&engine, &pipeline, &options, &display);
end:
    demo_pipeline_destroy(&pipeline);
    if (display.surface)
        vkDestroySurfaceKHR(engine.instance, display.surface, NULL);
    const uint32_t complaints = demo_engine_destroy(&engine);
    if (complaints) {
        demo_fail("the validation layer had %u complaints", complaints);
        exit_status = exit_status ? exit_status : 1;
    }
    if (display.window)
        display.table->close(display.window);
    if (library)
        dlclose(library);
    return exit_status;
}
