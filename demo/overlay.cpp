/* What is drawn over and around the picture.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Everything is laid out in units of 1/720 of the height and at least one pixel, on one draw list: nothing scrolls,
 * nothing is clipped, and a screenshot looks like the window.
 */
#include "demo/overlay.h"

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>

#include <backends/imgui_impl_vulkan.h>
#include <imgui.h>

#include "demo/font.h"
#include "demo/output.h"

namespace {

constexpr ImU32 TEXT = IM_COL32(232, 236, 241, 255);
constexpr ImU32 DIM = IM_COL32(158, 168, 180, 255);
constexpr ImU32 HEADING = IM_COL32(255, 196, 84, 255);
constexpr ImU32 PANEL = IM_COL32(25, 29, 35, 255);
constexpr ImU32 LINE = IM_COL32(58, 66, 77, 255);
constexpr ImU32 WARNING = IM_COL32(255, 122, 92, 255);
constexpr ImU32 GOOD = IM_COL32(126, 211, 133, 255);

/* One colour a stage, far enough apart to be told apart in a thin bar. */
constexpr ImU32 STAGE_COLORS[DEMO_STAGES] = {IM_COL32(86, 156, 230, 255),  IM_COL32(122, 208, 196, 255),
                                             IM_COL32(230, 214, 96, 255),  IM_COL32(240, 128, 64, 255),
                                             IM_COL32(196, 152, 68, 255),  IM_COL32(160, 126, 222, 255),
                                             IM_COL32(226, 120, 176, 255)};

constexpr float MARGIN = 16, PANEL_WIDTH = 420, SMALL = 16, NORMAL = 17, TITLE = 24;

ImFont *sans, *mono;
VkDescriptorPool pool;
bool created;
ImVec2 mouse;

struct Pen {
    ImDrawList *list;
    float unit;
    float x, y, width;

    float size_of(float size) const { return std::floor(size * unit + 0.5f); }
    float measure(ImFont *font, float size, const char *text) const
    {
        return font->CalcTextSizeA(size_of(size), 1e9f, 0.0f, text).x;
    }
    void put(ImFont *font, float size, float at_x, float at_y, ImU32 color, const char *text, float wrap = 0) const
    {
        list->AddText(font, size_of(size), ImVec2(std::floor(at_x), std::floor(at_y)), color, text, nullptr, wrap);
    }
    /* Cut with an ellipsis where it would not fit. */
    std::string fit(ImFont *font, float size, const char *text, float room) const
    {
        std::string whole = text;
        if (measure(font, size, text) <= room)
            return whole;
        while (!whole.empty() && measure(font, size, (whole + "...").c_str()) > room)
            whole.pop_back();
        return whole + "...";
    }
    void heading(const char *text)
    {
        y += 7 * unit;
        list->AddLine(ImVec2(x, y), ImVec2(x + width, y), LINE, unit);
        y += 6 * unit;
        put(sans, SMALL, x, y, HEADING, text);
        y += 22 * unit;
    }
    void row(const char *label, const char *value, ImU32 color = TEXT)
    {
        const float column = 104 * unit;
        put(sans, SMALL, x, y, DIM, label);
        put(sans, SMALL, x + column, y, color, fit(sans, SMALL, value, width - column).c_str());
        y += 20 * unit;
    }
    void paragraph(const char *text, ImU32 color, int most_lines)
    {
        std::string shown = text;
        const float size = size_of(SMALL), line = sans->CalcTextSizeA(size, 1e9f, width, "x").y;
        while (sans->CalcTextSizeA(size, 1e9f, width, shown.c_str()).y > line * (float)most_lines + 1 &&
               shown.size() > 4) {
            shown.resize(shown.size() - 4);
            shown += "...";
        }
        put(sans, SMALL, x, y, color, shown.c_str(), width);
        y += sans->CalcTextSizeA(size, 1e9f, width, shown.c_str()).y + 2 * unit;
    }
    void right(ImFont *font, float size, float edge, ImU32 color, const char *text) const
    {
        put(font, size, edge - measure(font, size, text), y, color, text);
    }
};

std::string format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char *pattern, ...)
{
    char text[512];
    va_list list;
    va_start(list, pattern);
    vsnprintf(text, sizeof text, pattern, list);
    va_end(list);
    return text;
}

std::string ms(double value)
{
    return value < 10 ? format("%.2f", value) : format("%.1f", value);
}

const char *sharing_text(uint32_t rung)
{
    switch (rung) {
    case TANDEM_RUNG_INLINE: return "Inline: CUDA kernels within the engine's own commands, one submit a frame";
    case TANDEM_RUNG_TIMELINE: return "Timeline: shared memory, the GPU waits and signals";
    case TANDEM_RUNG_HOST: return "Host: shared memory, the host signals";
    case TANDEM_RUNG_COPY: return "Copy: copied there and back";
    default: return "Cpu: shared memory, the CPU computes";
    }
}

/* All rungs in a row, the one in use on a plate. */
void ladder(Pen &pen, uint32_t current)
{
    static const char *const names[] = {"inline", "timeline", "host", "copy", "cpu"};
    const float unit = pen.unit;
    float x = pen.x + 104 * unit;
    pen.put(sans, SMALL, pen.x, pen.y, DIM, "Rung");
    for (uint32_t i = 0; i < 5; i++) {
        const float wide = pen.measure(sans, SMALL, names[i]);
        const bool here = i + 1 == current;
        if (here)
            pen.list->AddRectFilled(ImVec2(std::floor(x - 5 * unit), pen.y - unit),
                                    ImVec2(std::floor(x + wide + 5 * unit), pen.y + 18 * unit), HEADING, 4 * unit);
        pen.put(sans, SMALL, x, pen.y, here ? PANEL : DIM, names[i]);
        x += wide + 15 * unit;
    }
    pen.y += 20 * unit;
}

std::string gap(double milliseconds)
{
    const double us = 1e3 * milliseconds;
    if (us >= 1000)
        return format("%.1f ms", milliseconds);
    return us < 10 ? format("%.1f \xc2\xb5s", us) : format("%.0f \xc2\xb5s", us);
}

const char *precision_text(uint32_t precision)
{
    switch (precision) {
    case TANDEM_PRECISION_F16: return "16-bit float (exact)";
    case TANDEM_PRECISION_8B: return "8-bit (INT8 scores, FP8 values)";
    case TANDEM_PRECISION_4B: return "4-bit (INT4 scores, FP8 values)";
    default: return "-";
    }
}

const char *const stage_labels[DEMO_STAGES] = {"render", "pack into tokens", "hand over to session", "attention",
                                               "hand back to engine", "unpack", "present"};

std::string smoothing_text(uint32_t smooth)
{
    std::string on;
    const struct {
        uint32_t bit;
        const char *name;
    } bits[] = {{TANDEM_SMOOTH_Q, "Q"}, {TANDEM_SMOOTH_K, "K"}, {TANDEM_SMOOTH_V, "V"}};
    for (const auto &b : bits)
        if (smooth & b.bit)
            on += (on.empty() ? "" : ", ") + std::string(b.name);
    if (on.empty())
        return "off";
    return on + (smooth == TANDEM_SMOOTH_K ? " (the mean of the keys is removed)" : " (means are removed)");
}

void panel_timing(Pen &pen, const demo_overlay_data *d)
{
    const float unit = pen.unit, third = pen.x + pen.width, second = third - 72 * unit, first = third - 144 * unit;
    pen.heading("Time of a frame, milliseconds");
    pen.y -= 22 * unit;
    pen.right(sans, SMALL, first, DIM, "p50");
    pen.right(sans, SMALL, second, DIM, "p95");
    pen.right(sans, SMALL, third, DIM, "p99");
    pen.y += 22 * unit;
    for (int i = 0; i <= DEMO_STAGES; i++) {
        const bool total = i == DEMO_STAGES;
        const demo_percentiles &p = total ? d->frame : d->stages[i];
        const ImU32 color = total ? HEADING : TEXT;
        if (!total) {
            const float top = pen.y + 4 * unit;
            pen.list->AddRectFilled(ImVec2(pen.x, top), ImVec2(pen.x + 12 * unit, top + 12 * unit), STAGE_COLORS[i],
                                    2 * unit);
        }
        pen.put(sans, SMALL, pen.x + 20 * unit, pen.y, color, total                            ? "whole frame"
                : i == DEMO_BACK && d->has_exact ? "exact job, hand back"
                                                 : stage_labels[i]);
        pen.right(mono, SMALL, first, color, ms(p.p50).c_str());
        pen.right(mono, SMALL, second, color, ms(p.p95).c_str());
        pen.right(mono, SMALL, third, color, ms(p.p99).c_str());
        pen.y += 20 * unit;
    }
}

void panel(ImDrawList *list, float unit, float x, float y, float width, float height, const demo_view *view,
           const demo_overlay_data *d)
{
    list->AddRectFilled(ImVec2(x, y), ImVec2(x + width, y + height), PANEL, 6 * unit);
    Pen pen = {list, unit, x + 14 * unit, y + 10 * unit, width - 28 * unit};
    pen.put(sans, TITLE, pen.x, pen.y, TEXT, "Tandem");
    const std::string rate =
        d->frames_per_second > 0 ? format("%.*f frames/s", d->frames_per_second < 20 ? 1 : 0,
                                          d->frames_per_second) : "";
    pen.y += 7 * unit;
    pen.right(sans, SMALL, pen.x + pen.width, DIM, rate.c_str());
    pen.y += 21 * unit;

    pen.heading("Where it runs");
    const bool cuda = d->info->backend == TANDEM_BACKEND_CUDA;
    pen.row("Attention", format(cuda ? "CUDA, %s, %s" : "%s, %s", d->info->device, d->info->isa).c_str());
    pen.row("Renderer", d->vulkan_device);
    ladder(pen, d->info->rung);
    /* Which part of a few microseconds is which, two clocks cannot tell; their sum is exact. */
    const double there = d->stages[DEMO_TO].p50, back = d->stages[DEMO_BACK].p50;
    pen.row("Hand-over",
            d->info->rung == TANDEM_RUNG_INLINE
                ? format("%s, there and back", gap(there + back).c_str()).c_str()
                : format("%s there, %s back", gap(there).c_str(), gap(back).c_str()).c_str(), GOOD);
    std::string how = sharing_text(d->info->rung);
    if (d->info->rung_reason[0])
        how += std::string("; not higher: ") + d->info->rung_reason;
    pen.paragraph(how.c_str(), DIM, 2);

    pen.heading("Precision");
    const bool automatic = view->precision == TANDEM_PRECISION_AUTO;
    pen.row(automatic ? "Automatic" : "Asked for", automatic ? d->why ? d->why : "-" : precision_text(view->precision));
    const bool fell_back = !d->denoised;
    pen.row("In use", fell_back ? "none: the picture is not filtered" : precision_text(d->precision_used),
            fell_back ? WARNING : TEXT);
    pen.row("Smoothing", d->precision_used == TANDEM_PRECISION_F16 ? "not needed at this precision"
                                                                   : smoothing_text(view->smooth).c_str());

    pen.heading("Accuracy, against float64");
    if (d->accuracy.elements) {
        pen.row("Cosine", format("%.5f", demo_accuracy_cos(&d->accuracy)).c_str());
        pen.row("Relative L1", format("%.2f %%", 100 * demo_accuracy_rel_l1(&d->accuracy)).c_str());
        pen.row("RMSE", format("%.5f", demo_accuracy_rmse(&d->accuracy)).c_str());
    } else {
        pen.row("Cosine", "-");
        pen.row("Relative L1", "-");
        pen.row("RMSE", "-");
    }
    if (d->result_db > 0) {
        pen.heading(format("PSNR of the picture, against %u samples", d->reference_samples).c_str());
        pen.row("Input", format("%.1f dB  (1 sample a pixel)", d->noisy_db).c_str());
        pen.row("Box filter", format("%.1f dB  (the best of six)", d->box_db).c_str());
        pen.row("Attention", format("%.1f dB", d->result_db).c_str(), GOOD);
    }
    panel_timing(pen, d);
}

/* A round step so that about four lines fit. */
double grid_step(double top)
{
    const double rough = top / 4, power = std::pow(10.0, std::floor(std::log10(rough)));
    for (double m : {1.0, 2.0, 5.0})
        if (m * power >= rough)
            return m * power;
    return 10 * power;
}

void graph(ImDrawList *list, float unit, float x, float y, float width, float height, const demo_overlay_data *d)
{
    double top = 0;
    list->AddRectFilled(ImVec2(x, y), ImVec2(x + width, y + height), PANEL, 6 * unit);
    Pen pen = {list, unit, x + 12 * unit, y + 8 * unit, width - 24 * unit};
    pen.put(sans, SMALL, pen.x, pen.y, HEADING, format("Frame time, last %u frames", d->history_count).c_str());
    for (uint32_t i = 0; i < d->history_count; i++) {
        double sum = 0;
        for (int j = 0; j < DEMO_STAGES; j++)
            sum += (double)d->history[i][j];
        top = sum > top ? sum : top;
    }
    if (top <= 0)
        return;
    /* One slow frame must not flatten all others: it is cut off. */
    top = top > 2.5 * d->frame.p50 && d->frame.p50 > 0 ? 2.5 * d->frame.p50 : top;
    const double step = grid_step(top);
    const float axis = 72 * unit, left = x + axis, right = x + width - 12 * unit, base = y + height - 14 * unit;
    const float ceiling = y + 40 * unit, scale = (base - ceiling) / (float)(top * 1.02);
    for (double v = 0; v <= top; v += step) {
        const float line = base - (float)v * scale;
        const std::string label = step < 1 ? format("%.1f ms", v) : format("%.0f ms", v);
        list->AddLine(ImVec2(left, line), ImVec2(right, line), LINE, unit);
        pen.put(sans, SMALL, left - 6 * unit - pen.measure(sans, SMALL, label.c_str()), line - 10 * unit, DIM,
                label.c_str());
    }
    const uint32_t columns = d->history_count > 40 ? DEMO_HISTORY : 40;
    const float pitch = (right - left) / (float)columns, gap = pitch > 4 ? 1.0f : 0.0f;
    for (uint32_t i = 0; i < d->history_count; i++) {
        float bottom = base;
        const float at = left + (float)i * pitch;
        for (int j = 0; j < DEMO_STAGES; j++) {
            float tall = d->history[i][j] * scale;
            tall = bottom - tall < ceiling ? bottom - ceiling : tall;
            if (tall > 0)
                list->AddRectFilled(ImVec2(at, bottom - tall), ImVec2(at + pitch - gap, bottom), STAGE_COLORS[j]);
            bottom -= tall;
        }
    }
}

void chip(ImDrawList *list, float unit, float x, float y, bool from_right, const char *text, ImU32 color = TEXT)
{
    const Pen pen = {list, unit, 0, 0, 0};
    const float wide = pen.measure(sans, NORMAL, text) + 16 * unit;
    const float left = from_right ? x - wide : x;
    list->AddRectFilled(ImVec2(left, y), ImVec2(left + wide, y + 28 * unit), IM_COL32(8, 10, 12, 205), 5 * unit);
    pen.put(sans, NORMAL, left + 8 * unit, y + 4 * unit, color, text);
}

void picture_labels(ImDrawList *list, float unit, const demo_rect *p, const demo_view *view, const demo_overlay_data *d)
{
    const float inset = 8 * unit, top = p->y + inset, right = p->x + p->width - inset;
    const char *filtered = d->denoised ? "after attention" : "not filtered";
    if (view->wipe == DEMO_WIPE_NOISY) {
        chip(list, unit, p->x + inset, top, false, "input: 1 sample a pixel");
        chip(list, unit, right, top, true, filtered);
    } else if (view->wipe == DEMO_WIPE_EXACT) {
        chip(list, unit, p->x + inset, top, false, "exact (16-bit)");
        chip(list, unit, right, top, true, precision_text(d->precision_used));
    } else {
        chip(list, unit, p->x + inset, top, false, filtered);
    }
    const float bottom = p->y + p->height - 36 * unit;
    if (d->notice)
        chip(list, unit, p->x + inset, bottom, false,
             Pen{list, unit, 0, 0, 0}.fit(sans, NORMAL, d->notice, p->width - 4 * inset - 16 * unit).c_str(), WARNING);
    else if (view->paused)
        chip(list, unit, p->x + inset, bottom, false, "paused: space goes on");
    if (!d->notice)
        chip(list, unit, right, bottom, true, "L: next rung   H: help");
}

void help(ImDrawList *list, float unit, float width, float height)
{
    static const char *const lines[][2] = {{"1  2  3", "precision: automatic, 16-bit, 8-bit"},
                                           {"K  Q  V", "smoothing of keys, queries, values on or off"},
                                           {"A", "wipe: input against result"},
                                           {"B", "wipe: exact against quantised"},
                                           {"mouse, left, right", "move the wipe"},
                                           {"E", "map of the error against exact"},
                                           {"L", "one rung down; from the lowest to the best"},
                                           {"space", "pause"},
                                           {"P or F12", "screenshot (PNG, in the output folder)"},
                                           {"Tab", "figures on or off"},
                                           {"H or F1", "this help"},
                                           {"Esc", "quit"}};
    constexpr int COUNT = sizeof lines / sizeof *lines;
    const float wide = 560 * unit, tall = (COUNT * 26 + 60) * unit;
    const float x = (width - wide) / 2, y = (height - tall) / 2;
    list->AddRectFilled(ImVec2(x, y), ImVec2(x + wide, y + tall), IM_COL32(12, 14, 18, 252), 8 * unit);
    list->AddRect(ImVec2(x, y), ImVec2(x + wide, y + tall), LINE, 8 * unit, 0, unit);
    Pen pen = {list, unit, x + 22 * unit, y + 16 * unit, wide - 44 * unit};
    pen.put(sans, NORMAL, pen.x, pen.y, HEADING, "Keys");
    pen.y += 32 * unit;
    for (const auto &line : lines) {
        pen.put(sans, NORMAL, pen.x, pen.y, TEXT, line[0]);
        pen.put(sans, NORMAL, pen.x + 160 * unit, pen.y, DIM, line[1]);
        pen.y += 26 * unit;
    }
}

demo_rect fit_picture(float x, float y, float width, float height, const demo_overlay_data *d)
{
    const float aspect = (float)d->width / (float)d->height;
    demo_rect r = {x, y, width, width / aspect};
    if (r.height > height) {
        r.height = height;
        r.width = height * aspect;
    }
    r.x = std::floor(x + (width - r.width) / 2);
    r.y = std::floor(r.y);
    r.width = std::floor(r.width);
    r.height = std::floor(r.height);
    return r;
}

} // namespace

bool demo_overlay_create(demo_engine *e, VkRenderPass pass, uint32_t image_count)
{
    ImFontConfig config;
    config.FontDataOwnedByAtlas = false;
    config.OversampleH = 3;
    ImGui::CreateContext();
    created = true;
    ImGuiIO &io = ImGui::GetIO();
    io.IniFilename = nullptr;
    io.LogFilename = nullptr;
    io.BackendFlags |= ImGuiBackendFlags_RendererHasVtxOffset;
    sans = io.Fonts->AddFontFromMemoryTTF(const_cast<unsigned char *>(tandem_font_sans), (int)tandem_font_sans_size,
                                          NORMAL, &config);
    mono = io.Fonts->AddFontFromMemoryTTF(const_cast<unsigned char *>(tandem_font_mono), (int)tandem_font_mono_size,
                                          SMALL, &config);
    if (!sans || !mono)
        return demo_fail("cannot read the built-in fonts");

    const VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER, 4};
    VkDescriptorPoolCreateInfo create = {};
    create.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO;
    create.flags = VK_DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT;
    create.maxSets = 4;
    create.poolSizeCount = 1;
    create.pPoolSizes = &size;
    if (!demo_vk(e, vkCreateDescriptorPool(e->device, &create, nullptr, &pool), "making a descriptor pool"))
        return false;
    ImGui_ImplVulkan_InitInfo init = {};
    init.Instance = e->instance;
    init.PhysicalDevice = e->physical;
    init.Device = e->device;
    init.QueueFamily = e->family;
    init.Queue = e->queue;
    init.DescriptorPool = pool;
    init.MinImageCount = 2;
    /* The backend keeps one vertex buffer a draw, in turn: as many as frames can be under way. */
    init.ImageCount = (image_count < 3 ? 3 : image_count) + 1;
    init.MSAASamples = VK_SAMPLE_COUNT_1_BIT;
    if (!ImGui_ImplVulkan_Init(&init, pass))
        return demo_fail("cannot set the overlay up");
    const bool uploaded = demo_once_begin(e) && ImGui_ImplVulkan_CreateFontsTexture(e->once) && demo_once_end(e);
    ImGui_ImplVulkan_DestroyFontUploadObjects();
    return uploaded || demo_fail("cannot upload the overlay's fonts");
}

void demo_overlay_destroy(demo_engine *e)
{
    if (!created)
        return;
    vkDeviceWaitIdle(e->device);
    if (ImGui::GetIO().BackendRendererUserData)
        ImGui_ImplVulkan_Shutdown();
    ImGui::DestroyContext();
    vkDestroyDescriptorPool(e->device, pool, nullptr);
    pool = VK_NULL_HANDLE;
    created = false;
}

bool demo_overlay_event(const demo_event *event, demo_view *view, const demo_rect *picture)
{
    ImGuiIO &io = ImGui::GetIO();
    switch (event->type) {
    case DEMO_EVENT_MOUSE_MOVE:
        mouse = ImVec2(event->x, event->y);
        io.MousePos = mouse;
        break;
    case DEMO_EVENT_MOUSE_BUTTON:
        io.MouseDown[event->button % 3] = event->down;
        break;
    case DEMO_EVENT_MOUSE_WHEEL:
        io.MouseWheel += event->y;
        break;
    default:
        return false;
    }
    const bool held = (event->type == DEMO_EVENT_MOUSE_BUTTON && event->button == 0 && event->down) ||
                      (event->type == DEMO_EVENT_MOUSE_MOVE && io.MouseDown[0]);
    if (held && view->wipe != DEMO_WIPE_NONE && picture->width > 0) {
        const float at = (mouse.x - picture->x) / picture->width;
        view->wipe_at = at < 0 ? 0 : at > 1 ? 1 : at;
        return true;
    }
    return false;
}

void demo_overlay_build(const demo_view *view, const demo_overlay_data *data, uint32_t width, uint32_t height,
                        double delta_seconds, demo_rect *picture, demo_rect *error_map)
{
    ImGuiIO &io = ImGui::GetIO();
    io.DisplaySize = ImVec2((float)width, (float)height);
    io.DeltaTime = delta_seconds > 1e-4 ? (float)delta_seconds : 1e-4f;
    ImGui_ImplVulkan_NewFrame();
    ImGui::NewFrame();

    ImDrawList *list = ImGui::GetBackgroundDrawList();
    const float w = (float)width, h = (float)height, unit = h >= 720 ? h / 720 : 1;
    const float margin = MARGIN * unit, panel_width = PANEL_WIDTH * unit;
    const bool figures = !view->hide_panel && w >= 2 * panel_width && h >= 700 * unit;
    *error_map = demo_rect{0, 0, 0, 0};
    if (figures) {
        const float left_width = w - panel_width - 3 * margin;
        *picture = fit_picture(margin, margin, left_width, h - 3 * margin - 150 * unit, data);
        const float below = picture->y + picture->height + margin, tall = h - below - margin;
        float graph_width = left_width;
        if (view->error_map) {
            const float room = tall - 42 * unit;
            demo_rect map = fit_picture(0, 0, 0.42f * left_width, room, data);
            const float box = map.width + 24 * unit;
            graph_width -= box + margin;
            const float x = margin + graph_width + margin;
            *error_map = demo_rect{std::floor(x + 12 * unit), std::floor(below + 34 * unit), map.width, map.height};
            /* The map is drawn beneath the overlay: the panel is a frame around it. */
            const ImVec2 in(error_map->x, error_map->y), out(in.x + map.width, in.y + map.height);
            list->AddRectFilled(ImVec2(x, below), ImVec2(x + box, in.y), PANEL, 6 * unit, ImDrawFlags_RoundCornersTop);
            list->AddRectFilled(ImVec2(x, out.y), ImVec2(x + box, below + tall), PANEL, 6 * unit,
                                ImDrawFlags_RoundCornersBottom);
            list->AddRectFilled(ImVec2(x, in.y), ImVec2(in.x, out.y), PANEL);
            list->AddRectFilled(ImVec2(out.x, in.y), ImVec2(x + box, out.y), PANEL);
            const Pen pen = {list, unit, 0, 0, 0};
            const std::string title = pen.fit(sans, SMALL, "Error against exact, \xc3\x97 20", box - 24 * unit);
            pen.put(sans, SMALL, x + 12 * unit, below + 8 * unit, HEADING, title.c_str());
        }
        graph(list, unit, margin, below, graph_width, tall, data);
        panel(list, unit, w - panel_width - margin, margin, panel_width, h - 2 * margin, view, data);
    } else {
        *picture = fit_picture(0, 0, w, h, data);
        picture->y = std::floor((h - picture->height) / 2);
        if (view->error_map) {
            const float wide = std::floor(picture->width / 3), tall = std::floor(picture->height / 3);
            *error_map = demo_rect{picture->x + picture->width - wide - 8 * unit, picture->y + 44 * unit, wide, tall};
        }
    }
    ImDrawList *front = ImGui::GetForegroundDrawList();
    picture_labels(front, unit, picture, view, data);
    if (view->help)
        help(front, unit < w / 600 ? unit : w / 600, w, h);
    ImGui::Render();
}

void demo_overlay_record(VkCommandBuffer commands)
{
    ImGui_ImplVulkan_RenderDrawData(ImGui::GetDrawData(), commands);
}
