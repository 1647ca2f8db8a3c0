/* The window: the only file that knows SDL2. Built as a shared object of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/window.h"

#include <SDL2/SDL.h>
#include <SDL2/SDL_vulkan.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_EXTENSIONS = 16 };

struct demo_window {
    SDL_Window *window;
    const char *extensions[MAX_EXTENSIONS];
    unsigned extension_count;
};

static void window_close(demo_window *w)
{
    if (!w)
        return;
    if (w->window)
        SDL_DestroyWindow(w->window);
    SDL_Quit();
    free(w);
}

static demo_window *fail_open(demo_window *w, char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "%s", SDL_GetError());
    window_close(w);
    return NULL;
}

static demo_window *window_open(const char *title, uint32_t width, uint32_t height, char *why, size_t why_bytes)
{
    demo_window *w = calloc(1, sizeof *w);
    SDL_DisplayMode mode;
    if (!w) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    SDL_SetHint(SDL_HINT_NO_SIGNAL_HANDLERS, "0");
    if (SDL_Init(SDL_INIT_VIDEO))
        return fail_open(w, why, why_bytes);
    if (!SDL_GetDesktopDisplayMode(0, &mode)) {
        width = (uint32_t)mode.w < width ? (uint32_t)mode.w : width;
        height = (uint32_t)mode.h < height ? (uint32_t)mode.h : height;
    }
    w->window = SDL_CreateWindow(title, SDL_WINDOWPOS_CENTERED, SDL_WINDOWPOS_CENTERED, (int)width, (int)height,
                                 SDL_WINDOW_VULKAN | SDL_WINDOW_RESIZABLE | SDL_WINDOW_ALLOW_HIGHDPI);
    if (!w->window)
        return fail_open(w, why, why_bytes);
    SDL_SetWindowMinimumSize(w->window, 320, 240);
    SDL_StartTextInput();
    w->extension_count = MAX_EXTENSIONS;
    if (!SDL_Vulkan_GetInstanceExtensions(w->window, &w->extension_count, w->extensions))
        return fail_open(w, why, why_bytes);
    return w;
}

static const char *const *window_extensions(demo_window *w, uint32_t *count)
{
    *count = w->extension_count;
    return w->extensions;
}

static PFN_vkGetInstanceProcAddr window_loader(demo_window *w)
{
    (void)w;
    return (PFN_vkGetInstanceProcAddr)SDL_Vulkan_GetVkGetInstanceProcAddr();
}

static bool window_surface(demo_window *w, VkInstance instance, VkSurfaceKHR *out, char *why, size_t why_bytes)
{
    if (SDL_Vulkan_CreateSurface(w->window, instance, out))
        return true;
    snprintf(why, why_bytes, "%s", SDL_GetError());
    return false;
}

static int32_t key_of(SDL_Keycode key)
{
    switch (key) {
    case SDLK_F1: return DEMO_KEY_F1;
    case SDLK_F12: return DEMO_KEY_F12;
    case SDLK_LEFT: return DEMO_KEY_LEFT;
    case SDLK_RIGHT: return DEMO_KEY_RIGHT;
    case SDLK_UP: return DEMO_KEY_UP;
    case SDLK_DOWN: return DEMO_KEY_DOWN;
    case SDLK_KP_ENTER: return DEMO_KEY_ENTER;
    case SDLK_KP_1: return '1';
    case SDLK_KP_2: return '2';
    case SDLK_KP_3: return '3';
    default: return key > 0 && key < 127 ? (int32_t)key : 0;
    }
}

static bool window_poll(demo_window *w, demo_event *event)
{
    SDL_Event e;
    int points_w, points_h, pixels_w, pixels_h;
    SDL_GetWindowSize(w->window, &points_w, &points_h);
    SDL_Vulkan_GetDrawableSize(w->window, &pixels_w, &pixels_h);
    const float scale_x = points_w > 0 ? (float)pixels_w / (float)points_w : 1.0f;
    const float scale_y = points_h > 0 ? (float)pixels_h / (float)points_h : 1.0f;
    while (SDL_PollEvent(&e)) {
        *event = (demo_event){0};
        switch (e.type) {
        case SDL_QUIT:
            event->type = DEMO_EVENT_QUIT;
            return true;
        case SDL_KEYDOWN:
        case SDL_KEYUP:
            event->type = DEMO_EVENT_KEY;
            event->key = key_of(e.key.keysym.sym);
            event->down = e.type == SDL_KEYDOWN;
            event->again = e.key.repeat != 0;
            return true;
        case SDL_TEXTINPUT:
            event->type = DEMO_EVENT_TEXT;
            snprintf(event->text, sizeof event->text, "%s", e.text.text);
            return true;
        case SDL_MOUSEMOTION:
            event->type = DEMO_EVENT_MOUSE_MOVE;
            event->x = (float)e.motion.x * scale_x;
            event->y = (float)e.motion.y * scale_y;
            return true;
        case SDL_MOUSEBUTTONDOWN:
        case SDL_MOUSEBUTTONUP:
            event->type = DEMO_EVENT_MOUSE_BUTTON;
            event->button = e.button.button == SDL_BUTTON_LEFT ? 0 : e.button.button == SDL_BUTTON_RIGHT ? 1 : 2;
            event->down = e.type == SDL_MOUSEBUTTONDOWN;
            return true;
        case SDL_MOUSEWHEEL:
            event->type = DEMO_EVENT_MOUSE_WHEEL;
            event->x = (float)e.wheel.x;
            event->y = (float)e.wheel.y;
            return true;
        default:
            break;
        }
    }
    return false;
}

static void window_size(demo_window *w, uint32_t *width, uint32_t *height)
{
    int x = 0, y = 0;
    if (!(SDL_GetWindowFlags(w->window) & SDL_WINDOW_MINIMIZED))
        SDL_Vulkan_GetDrawableSize(w->window, &x, &y);
    *width = x > 0 ? (uint32_t)x : 0;
    *height = y > 0 ? (uint32_t)y : 0;
}

static uint32_t window_refresh_hz(demo_window *w)
{
    SDL_DisplayMode mode;
    const int display = SDL_GetWindowDisplayIndex(w->window);
    if (display < 0 || SDL_GetCurrentDisplayMode(display, &mode) || mode.refresh_rate <= 0)
        return 60;
    return (uint32_t)mode.refresh_rate;
}

static void window_title(demo_window *w, const char *title)
{
    SDL_SetWindowTitle(w->window, title);
}

__attribute__((visibility("default"))) const demo_window_table *demo_window_get(void);

const demo_window_table *demo_window_get(void)
{
    static const demo_window_table table = {DEMO_WINDOW_VERSION, window_open, window_extensions, window_loader,
                                            window_surface,      window_poll, window_size,       window_refresh_hz,
                                            window_title,        window_close};
    return &table;
}
