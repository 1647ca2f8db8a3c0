/* The two ways to run the demo.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_RUN_H
#define TANDEM_DEMO_RUN_H

#include "demo/oidn.h"
#include "demo/options.h"
#include "demo/output.h"
#include "demo/screen.h"

/* Both return the program's exit status. headless: `oidn`: to compare with, its to close; or NULL. */
int demo_run_headless(demo_engine *e, demo_pipeline *p, const demo_options *o, demo_oidn *oidn);

/* In a line, for who has it not. */
#define DEMO_NO_OIDN "Open Image Denoise is not installed: get openimagedenoise.org's release, and say --oidn F of its library"

typedef struct demo_display {
    const demo_window_table *table;
    demo_window *window;
    VkSurfaceKHR surface;
} demo_display;
int demo_run_window(demo_engine *e, demo_pipeline *p, const demo_options *o, const demo_display *display);

/* Makes a folder and those above it; false after one line on stderr. */
bool demo_make_folder(const char *path);

#endif
