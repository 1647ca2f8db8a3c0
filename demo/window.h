/* The window is a part of its own, opened at run time: a headless run never loads SDL2.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_WINDOW_H
#define TANDEM_DEMO_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <vulkan/vulkan_core.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DEMO_WINDOW_FILE "tandem_window.so"
#define DEMO_WINDOW_SYMBOL "demo_window_get" /* const demo_window_table *(void) */
enum { DEMO_WINDOW_VERSION = 2 };

typedef enum demo_event_type {
    DEMO_EVENT_QUIT = 1,
    DEMO_EVENT_KEY,
    DEMO_EVENT_TEXT,
    DEMO_EVENT_MOUSE_MOVE,
    DEMO_EVENT_MOUSE_BUTTON,
    DEMO_EVENT_MOUSE_WHEEL
} demo_event_type;

/* Printable keys are their lower-case ASCII codes. */
enum {
    DEMO_KEY_ESCAPE = 27,
    DEMO_KEY_BACKSPACE = 8,
    DEMO_KEY_TAB = 9,
    DEMO_KEY_ENTER = 13,
    DEMO_KEY_F1 = 256,
    DEMO_KEY_F12,
    DEMO_KEY_LEFT,
    DEMO_KEY_RIGHT,
    DEMO_KEY_UP,
    DEMO_KEY_DOWN
};

typedef struct demo_event {
    uint32_t type; /* demo_event_type */
    int32_t key;   /* KEY; 0 for keys that have no name here */
    uint32_t button; /* MOUSE_BUTTON: 0 left, 1 right, 2 middle */
    bool down, again; /* again: the key repeats because it is held */
    float x, y;    /* MOUSE_MOVE: pixels; MOUSE_WHEEL: steps */
    char text[32]; /* TEXT: what was typed, UTF-8 */
} demo_event;

typedef struct demo_window demo_window;

typedef struct demo_window_table {
    uint32_t version;
    /* NULL with the reason in `why` if there is no display. */
    demo_window *(*open)(const char *title, uint32_t width, uint32_t height, char *why, size_t why_bytes);
    /* Instance extensions that a surface needs; the names live as long as the window. */
    const char *const *(*extensions)(demo_window *window, uint32_t *count);
    PFN_vkGetInstanceProcAddr (*loader)(demo_window *window);
    bool (*surface)(demo_window *window, VkInstance instance, VkSurfaceKHR *out, char *why, size_t why_bytes);
    bool (*poll)(demo_window *window, demo_event *event); /* false: no more events now */
    void (*size)(demo_window *window, uint32_t *width, uint32_t *height); /* of what can be drawn on; 0 if minimised */
    uint32_t (*refresh_hz)(demo_window *window);
    void (*title)(demo_window *window, const char *title);
    void (*close)(demo_window *window); /* after the surface is destroyed */
} demo_window_table;

#ifdef __cplusplus
}
#endif
#endif
