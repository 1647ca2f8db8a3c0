/* What is drawn over and around the picture.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Everything is laid out in units, which are pixels of a window of 1280x720, on one draw list: nothing scrolls, what has no
 * room is left out, and a screenshot looks like the window.
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
#include "demo/pen.h"

using namespace overlay;

namespace {

/* One colour a stage, far enough apart to be told apart in a thin bar. */
constexpr ImU32 STAGE_COLORS[DEMO_STAGES] = {IM_COL32(86, 156, 230, 255),  IM_COL32(122, 208, 196, 255),
                                             IM_COL32(230, 214, 96, 255),  IM_COL32(240, 128, 64, 255),
                                             IM_COL32(196, 152, 68, 255),  IM_COL32(160, 126, 222, 255),
                                             IM_COL32(226, 120, 176, 255)};

constexpr float FULL_WIDTH = 420, COMPACT_WIDTH = 300; /* of the panel */
constexpr float LEAST_MAP = 60, LEAST_GRAPH = 150;     /* height of an error map beside the graph; its width */

VkDescriptorPool pool;
bool created;
ImVec2 mouse;

std::string ms(double value)
{
    return value < 10 ? format("%.2f", value) : format("%.1f", value);
}

const char *sharing_text(uint32_t rung)
{
    switch (rung) {
    case TANDEM_RUNG_INLINE: return "CUDA kernels run within the engine's own commands, one submit a frame.";
    case TANDEM_RUNG_TIMELINE: return "CUDA runs on shared memory; the GPU waits and signals.";
    case TANDEM_RUNG_HOST: return "CUDA runs on shared memory; the CPU signals.";
    case TANDEM_RUNG_COPY: return "Nothing is shared: copied there and back.";
    default: return "The CPU computes, in shared memory.";
    }
}

std::string way_text(const tandem_info *info)
{
    char why[400];
    demo_why_not_faster(info, why, sizeof why);
    return std::string(sharing_text(info->rung)) + (why[0] ? " " : "") + why;
}

/* All rungs in a row, the one in use on a plate. */
void ladder(Pen &pen, uint32_t current, bool labelled)
{
    static const char *const names[] = {"inline", "timeline", "host", "copy", "cpu"};
    const float unit = pen.unit;
    float x = pen.x + (labelled ? pen.column : 5) * unit;
    if (!pen.has_room(20))
        return;
    if (labelled)
        pen.put(sans, SMALL, pen.x, pen.y, DIM, "Rung");
    for (uint32_t i = 0; i < 5; i++) {
        const float wide = pen.measure(sans, SMALL, names[i]);
        const bool here = i + 1 == current;
        if (here)
            pen.list->AddRectFilled(ImVec2(std::floor(x - 5 * unit), pen.y - unit),
                                    ImVec2(std::floor(x + wide + 5 * unit), pen.y + 18 * unit), HEADING, 4 * unit);
        pen.put(sans, SMALL, x, pen.y, here ? PANEL : DIM, names[i]);
        x += wide + (labelled ? 15 : 14) * unit;
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

const char *precision_short(uint32_t precision)
{
    switch (precision) {
    case TANDEM_PRECISION_F16: return "16-bit";
    case TANDEM_PRECISION_8B: return "8-bit";
    case TANDEM_PRECISION_4B: return "4-bit";
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

bool is_network(const demo_overlay_data *d)
{
    return d->effect == DEMO_EFFECT_DENOISE;
}

const char *stage_label(const demo_overlay_data *d, int stage)
{
    if (stage == DEMO_BACK && d->has_exact)
        return "exact job, hand back";
    if (is_network(d) && stage == DEMO_PACK)
        return "write what it reads";
    return is_network(d) && stage == DEMO_ATTENTION ? "trained network" : stage_labels[stage];
}

std::string milliseconds_a_frame(const demo_overlay_data *d)
{
    return d->frame.p50 > 0 ? ms(d->frame.p50) + " ms a frame" : "";
}

std::string error_text(const demo_overlay_data *d)
{
    return d->accuracy.elements ? format("%.2f %%", 100 * demo_accuracy_rel_l1(&d->accuracy)) : "-";
}

/* All figures where there is no panel. */
std::string facts_text(const demo_overlay_data *d)
{
    const std::string time = milliseconds_a_frame(d);
    if (is_network(d))
        return time;
    return time.empty() || !d->accuracy.elements ? time : time + ", error " + error_text(d);
}

std::string hand_over_text(const demo_overlay_data *d)
{
    /* Which part of a few microseconds is which, two clocks cannot tell; their sum is exact. */
    const double there = d->stages[DEMO_TO].p50, back = d->stages[DEMO_BACK].p50;
    return d->info->rung == TANDEM_RUNG_INLINE ? gap(there + back) + ", there and back"
                                               : gap(there) + " there, " + gap(back) + " back";
}

/* Stages that have room, and the whole; `columns` of p50, p95 and p99, from the left. */
void panel_timing(Pen &pen, const demo_overlay_data *d, int columns)
{
    static const char *const names[] = {"p50", "p95", "p99"};
    const float unit = pen.unit, pitch = 72 * unit, first = pen.x + pen.width - pitch * (float)(columns - 1);
    if (!pen.heading(columns > 1 ? "Time of a frame, milliseconds" : "Time of a frame, ms"))
        return;
    pen.y -= 22 * unit;
    for (int c = 0; c < columns; c++)
        pen.right(sans, SMALL, first + pitch * (float)c, DIM, columns > 1 ? names[c] : "median");
    pen.y += 22 * unit;
    for (int i = 0; i <= DEMO_STAGES; i++) {
        const bool total = i == DEMO_STAGES;
        const demo_percentiles &p = total ? d->frame : d->stages[i];
        const ImU32 color = total ? HEADING : TEXT;
        if (!pen.has_room(20))
            return;
        if (!total) {
            const float top = pen.y + 4 * unit;
            pen.list->AddRectFilled(ImVec2(pen.x, top), ImVec2(pen.x + 12 * unit, top + 12 * unit), STAGE_COLORS[i],
                                    2 * unit);
        }
        pen.put(sans, SMALL, pen.x + 20 * unit, pen.y, color, total ? "whole frame" : stage_label(d, i));
        const double values[] = {p.p50, p.p95, p.p99};
        for (int c = 0; c < columns; c++)
            pen.right(mono, SMALL, first + pitch * (float)c, color, ms(values[c]).c_str());
        pen.y += 20 * unit;
    }
}

/* How many frames the picture is made of. */
std::string history_text(const demo_overlay_data *d, bool brief)
{
    if (d->in_history < 2)
        return brief ? "this frame" : "this frame alone, so far";
    const std::string frames = d->in_history > 32 ? "some 32" : format("%u", d->in_history - 1);
    return brief ? "this and " + frames + " before" : "this frame and " + frames + " before it";
}

const char *name_of(const char *path)
{
    const char *slash = std::strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void panel_network(Pen &pen, const demo_overlay_data *d)
{
    pen.heading("What cleans the picture");
    pen.row("Now", d->denoised ? "a network, trained on made-up scenes" : "nothing: the picture is not cleaned",
            d->denoised ? GOOD : WARNING);
    pen.row("Uses", history_text(d, false).c_str());
    pen.row("Weights", d->model ? name_of(d->model) : "-");
    if (d->preset)
        pen.row("Preset", d->next_preset ? format("%s  (M: %s)", d->preset, d->next_preset).c_str() : d->preset);
    pen.row("Key N", "shows the filter that needs no training");
}

void panel_quality(Pen &pen, const demo_overlay_data *d)
{
    const demo_quality *q = &d->quality;
    if (d->result_db <= 0 ||
        !pen.heading(format("Quality of the picture (PSNR to %u samples)", d->reference_samples).c_str()))
        return;
    pen.row("Input", format("%.1f dB  (1 sample a pixel)", d->noisy_db).c_str());
    if (d->box_db > 0)
        pen.row("Box filter", format("%.1f dB  (the best of six)", d->box_db).c_str());
    if (!is_network(d)) {
        pen.row("Attention", format("%.1f dB", d->result_db).c_str(), GOOD);
        return;
    }
    if (q->oidn && q->oidn_db > 0)
        pen.row("OIDN", format("%.1f dB  (%.1f ms; %s)", q->oidn_db, q->oidn_ms, q->oidn).c_str());
    if (q->single_db > 0)
        pen.row("One frame", format("%.1f dB  (nothing from before)", q->single_db).c_str());
    pen.row("Network", format("%.1f dB", d->result_db).c_str(), GOOD);
}

/* What a small window has room for. */
void panel_compact(Pen &pen, const demo_overlay_data *d)
{
    pen.column = 84;
    if (pen.heading("Where it runs")) {
        pen.row(is_network(d) ? "Network" : "Attention", d->info->device);
        ladder(pen, d->info->rung, false);
    }
    if (d->shown) {
        panel_tavern(pen, d->shown, true);
    } else if (is_network(d)) {
        if (pen.heading("What cleans the picture")) {
            const std::string network = d->preset ? std::string("trained network, ") + d->preset : "a trained network";
            pen.row("By", d->denoised ? network.c_str() : "nothing: no result", d->denoised ? TEXT : WARNING);
            pen.row("Uses", history_text(d, true).c_str());
        }
    } else if (pen.heading("Precision")) {
        pen.row("In use", !d->denoised ? "none: not filtered" : precision_short(d->precision_used),
                d->denoised ? TEXT : WARNING);
        pen.row("Error", error_text(d).c_str());
    }
    panel_timing(pen, d, 1);
}

void panel_full(Pen &pen, const demo_view *view, const demo_overlay_data *d)
{
    pen.heading("Where it runs");
    const bool cuda = d->info->backend == TANDEM_BACKEND_CUDA;
    pen.row(is_network(d) ? "Network" : "Attention", format(cuda ? "CUDA, %s, %s" : "%s, %s", d->info->device, d->info->isa).c_str());
    pen.row("Renderer", d->vulkan_device);
    ladder(pen, d->info->rung, true);
    pen.row("Hand-over", hand_over_text(d).c_str(), GOOD);
    pen.paragraph(way_text(d->info).c_str(), DIM, 2);

    if (d->shown) {
        panel_tavern(pen, d->shown, false);
        panel_quality(pen, d);
        panel_timing(pen, d, 3);
        return;
    }
    if (is_network(d)) {
        panel_network(pen, d);
        panel_quality(pen, d);
        panel_timing(pen, d, 3);
        return;
    }

    pen.heading("Precision");
    const bool automatic = view->precision == TANDEM_PRECISION_AUTO;
    pen.row(automatic ? "Automatic" : "Asked for", automatic ? d->why ? d->why : "-" : precision_text(view->precision));
    const bool fell_back = !d->denoised;
    pen.row("In use", fell_back ? "none: the picture is not filtered" : precision_text(d->precision_used),
            fell_back ? WARNING : TEXT);
    pen.row("Smoothing", d->precision_used == TANDEM_PRECISION_F16 ? "not needed at this precision"
                                                                   : smoothing_text(view->smooth).c_str());

    const bool known = d->accuracy.elements;
    pen.heading("Error of the attention, against float64");
    pen.row("Mean error", known ? (error_text(d) + "  (relative L1)").c_str() : "-");
    pen.row("RMSE", known ? format("%.5f", demo_accuracy_rmse(&d->accuracy)).c_str() : "-");
    pen.row("Cosine", known ? format("%.5f", demo_accuracy_cos(&d->accuracy)).c_str() : "-");
    panel_quality(pen, d);
    panel_timing(pen, d, 3);
}

void panel(ImDrawList *list, float unit, const demo_rect *r, bool compact, const demo_view *view,
           const demo_overlay_data *d)
{
    list->AddRectFilled(ImVec2(r->x, r->y), ImVec2(r->x + r->width, r->y + r->height), PANEL, 6 * unit);
    Pen pen = {list, unit, r->x + 14 * unit, r->y + 10 * unit, r->width - 28 * unit};
    pen.bottom = r->y + r->height - 4 * unit;
    pen.put(sans, TITLE, pen.x, pen.y, TEXT, "Tandem");
    std::string rate = milliseconds_a_frame(d);
    if (!compact && d->frames_per_second > 0)
        rate += format(", %.*f shown a second", d->frames_per_second < 20 ? 1 : 0, d->frames_per_second);
    pen.y += 7 * unit;
    pen.right(sans, SMALL, pen.x + pen.width, DIM, rate.c_str());
    pen.y += 21 * unit;
    if (compact)
        panel_compact(pen, d);
    else
        panel_full(pen, view, d);
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
    const std::string title = format("Frame time, last %u frames", d->history_count);
    pen.put(sans, SMALL, pen.x, pen.y, HEADING, pen.fit(sans, SMALL, title.c_str(), pen.width).c_str());
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

/* One chip in each upper corner; short where both would not fit. */
void upper_labels(ImDrawList *list, float unit, const demo_rect *p, const char *const left[2], const char *const right[2])
{
    const float inset = 8 * unit, room = p->width - 3 * inset;
    const int which = chip_width(unit, left[0]) + chip_width(unit, right[0]) > room;
    chip(list, unit, p->x + inset, p->y + inset, false, left[which]);
    if (right[which][0] && chip_width(unit, left[which]) + chip_width(unit, right[which]) <= room)
        chip(list, unit, p->x + p->width - inset, p->y + inset, true, right[which]);
}

/* Below the labels in the upper corners, and above a notice. */
void tavern_labels(ImDrawList *list, float unit, const demo_rect *p, const demo_view *view, const demo_overlay_data *d)
{
    demo_rect left = *p;
    if (view->wipe != DEMO_WIPE_NONE) {
        left.y += 36 * unit;
        left.height -= 36 * unit;
    }
    if (d->notice) {
        const float wrap = p->width - 32 * unit;
        left.height -= sans->CalcTextSizeA(std::floor(NORMAL * unit + 0.5f), 1e9f, wrap, d->notice).y + 18 * unit;
    }
    overlay::tavern_labels(list, unit, &left, d->shown);
}

void picture_labels(ImDrawList *list, float unit, const demo_rect *p, const demo_view *view, const demo_overlay_data *d,
                    bool facts)
{
    static const char *const noisy[2] = {"input: 1 sample a pixel", "input"}, *const exact[2] = {"exact (16-bit)", "exact"},
                      *const nothing[2] = {"", ""};
    const float inset = 8 * unit, bottom = p->y + p->height - inset, room = p->width - 2 * inset;
    const char *const result = !d->denoised ? is_network(d) ? "not cleaned" : "not filtered"
                               : is_network(d) ? "cleaned by the trained network" : "cleaned by the filter";
    const char *const filtered[2] = {result, d->denoised ? "result" : "-"};
    const std::string samples =
        d->reference_samples ? format("reference: %u samples a pixel", d->reference_samples) : "reference: hold still";
    const char *const reference[2] = {samples.c_str(), "reference"};
    const char *const box[2] = {"box filter: 5x5 pixels", "box"};
    const std::string took = "Open Image Denoise: " + ms(d->quality.oidn_ms) + " ms";
    const char *const oidn[2] = {took.c_str(), "OIDN"};
    const std::string now = format("orange: light of this frame, %.0f %%", 100 * d->light_now),
                      before = format("blue: of the frames before, %.0f %%", 100 * d->light_before),
                      brief = format("now %.0f %%", 100 * d->light_now), brief_before = format("before %.0f %%", 100 * d->light_before);
    const char *const of_now[2] = {now.c_str(), brief.c_str()}, *const of_before[2] = {before.c_str(), brief_before.c_str()};
    const char *const precision[2] = {precision_text(d->precision_used), precision_short(d->precision_used)};
    if (d->shown && view->wipe == DEMO_WIPE_NONE)
        ; /* who talks has that place */
    else if (view->wipe == DEMO_WIPE_NOISY)
        upper_labels(list, unit, p, noisy, filtered);
    else if (view->wipe == DEMO_WIPE_REFERENCE)
        upper_labels(list, unit, p, reference, filtered);
    else if (view->wipe == DEMO_WIPE_MAP)
        upper_labels(list, unit, p, of_now, of_before);
    else if (view->wipe == DEMO_WIPE_BOX)
        upper_labels(list, unit, p, box, filtered);
    else if (view->wipe == DEMO_WIPE_OIDN)
        upper_labels(list, unit, p, oidn, filtered);
    else if (view->wipe == DEMO_WIPE_EXACT)
        upper_labels(list, unit, p, exact, precision);
    else
        upper_labels(list, unit, p, filtered, nothing);
    if (d->notice)
        chip_wrapped(list, unit, p->x + inset, bottom, room, d->notice, d->warns ? WARNING : GOOD);
    if (d->shown)
        tavern_labels(list, unit, p, view, d);
    if (d->notice || d->shown)
        return;
    const bool map = view->wipe == DEMO_WIPE_MAP;
    const std::string left = map ? "half as bright: a tenth of the weight"
                             : view->paused ? "paused: space goes on" : facts ? facts_text(d) : "";
    float used = 0;
    if (!left.empty() && chip_width(unit, left.c_str()) <= room) {
        chip(list, unit, p->x + inset, bottom - 28 * unit, false, left.c_str());
        used = chip_width(unit, left.c_str()) + inset;
    }
    const char *const hints[] = {!d->has_denoiser || view->wipe == DEMO_WIPE_NONE ? ""
                                 : is_network(d) ? "mouse: move the line   S: next scene   R: reference   H: help"
                                                 : "mouse: move the line   N: trained network   R: reference   H: help",
                                 view->wipe == DEMO_WIPE_NONE ? "L: next rung   H: help"
                                                              : "mouse: move the line   L: next rung   H: help",
                                 "L: next rung   H: help", "H: help"};
    const char *const map_hints[] = {"where the marked pixel's light comes from   click: another pixel   Esc: back", "click: another pixel   Esc: back", "Esc: back", ""};
    for (const char *hint : map ? map_hints : hints)
        if (hint[0] && chip_width(unit, hint) <= room - used) {
            chip(list, unit, p->x + p->width - inset, bottom - 28 * unit, true, hint);
            break;
        }
}

void help(ImDrawList *list, float unit, float width, float height, bool tavern, bool oidn)
{
    static const char *const talk[][2] = {{"click", "walk up to somebody, and talk"},
                                          {"Enter", "talk to who is near; say what was typed"},
                                          {"Esc", "leave who is talked to; else quit"},
                                          {"arrows", "walk, turn"}};
    const char *const lines[][2] = {{"N", "trained network, or the filter without training"},
                                           {"M", "network: its next preset: fast, balanced, high"},
                                           {"A", "wipe: input against result, on or off"},
                                           {"R", "hold still: wipe against many samples, on or off"},
                                           {"S", "next scene"},
                                           {"right click", "where that pixel's light comes from"},
                                           {"X", "wipe: a box filter"},
                                           {"O", oidn ? "wipe: Open Image Denoise" : "Open Image Denoise: --oidn F names it"},
                                           {"mouse, left, right", "move the wipe"},
                                           {"1  2  3", "filter's precision: automatic, 16-bit, 8-bit"},
                                           {"K  Q  V", "filter: smooth keys, queries, values, or not"},
                                           {"B", "filter, wipe: exact against quantised, on or off"},
                                           {"E", "filter: map of its error, on or off"},
                                           {"L", "one rung down, from the lowest to the best"},
                                           {"space", "pause"},
                                           {"P or F12", "screenshot: a PNG, and says where"},
                                           {"Tab", "figures on or off"},
                                           {"H or F1", "this help"},
                                           {"Esc", "quit"}};
    constexpr int COUNT = sizeof lines / sizeof *lines;
    const float wide = 560 * unit, tall = (float)(COUNT * 26 + 60 + (tavern ? 1 * 26 : 0)) * unit;
    const float x = (width - wide) / 2, y = (height - tall) / 2;
    list->AddRectFilled(ImVec2(x, y), ImVec2(x + wide, y + tall), IM_COL32(12, 14, 18, 252), 8 * unit);
    list->AddRect(ImVec2(x, y), ImVec2(x + wide, y + tall), LINE, 8 * unit, 0, unit);
    Pen pen = {list, unit, x + 22 * unit, y + 16 * unit, wide - 44 * unit};
    pen.put(sans, NORMAL, pen.x, pen.y, HEADING, "Keys");
    pen.y += 32 * unit;
    const auto put = [&](const char *const line[2]) {
        pen.put(sans, NORMAL, pen.x, pen.y, TEXT, line[0]);
        pen.put(sans, NORMAL, pen.x + 160 * unit, pen.y, DIM, line[1]);
        pen.y += 26 * unit;
    };
    for (const auto &line : talk)
        if (tavern)
            put(line);
    for (const auto &line : lines)
        if (!tavern || (std::strcmp(line[0], "S") != 0 && std::strncmp(line[0], "mouse", 5) != 0 && std::strcmp(line[0], "Esc") != 0))
            put(line);
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

/* Everything; what a small window has room for; or nothing but the picture. */
enum Kind { FULL, COMPACT, PICTURE };

struct Layout {
    Kind kind;
    float unit, panel_width;
};

float between(float least, float x, float most)
{
    return x < least ? least : x > most ? most : x;
}

Layout layout_of(float w, float h, bool hide_panel)
{
    const float full = std::fmin(h / 720, w / 1000), compact = between(0.75f, std::fmin(h / 450, w / 800), 1);
    if (hide_panel)
        return {PICTURE, h >= 720 ? full : between(0.75f, full, 1), 0};
    if (full >= 0.8f)
        return {FULL, full, FULL_WIDTH * full};
    if (w >= 2 * COMPACT_WIDTH * compact && h >= 240 * compact)
        return {COMPACT, compact, COMPACT_WIDTH * compact};
    return {PICTURE, 0.75f, 0};
}

constexpr char MAP_TITLE[] = "Error against exact, \xc3\x97 20";

/* A framed map at the right end of `place`, which keeps the rest. Without room for one: nothing, of no size. */
demo_rect map_panel(ImDrawList *list, float unit, demo_rect *place, const demo_overlay_data *d)
{
    const float inset = 12 * unit, top = 34 * unit;
    const demo_rect map = fit_picture(0, 0, 0.42f * place->width, place->height - top - 8 * unit, d);
    const float box = map.width + 2 * inset, x = place->x + place->width - box;
    const Pen pen = {list, unit, 0, 0, 0};
    if (map.height < LEAST_MAP * unit || place->width - box - MARGIN * unit < LEAST_GRAPH * unit || pen.measure(sans, SMALL, "Error \xc3\x97 20") > map.width)
        return {0, 0, 0, 0};
    /* The map is drawn beneath the overlay: the panel is a frame around it. */
    const ImVec2 in(std::floor(x + inset), std::floor(place->y + top)), out(in.x + map.width, in.y + map.height);
    const float bottom = place->y + place->height;
    list->AddRectFilled(ImVec2(x, place->y), ImVec2(x + box, in.y), PANEL, 6 * unit, ImDrawFlags_RoundCornersTop);
    list->AddRectFilled(ImVec2(x, out.y), ImVec2(x + box, bottom), PANEL, 6 * unit, ImDrawFlags_RoundCornersBottom);
    list->AddRectFilled(ImVec2(x, in.y), ImVec2(in.x, out.y), PANEL);
    list->AddRectFilled(ImVec2(out.x, in.y), ImVec2(x + box, out.y), PANEL);
    const bool whole = pen.measure(sans, SMALL, MAP_TITLE) <= map.width;
    pen.put(sans, SMALL, x + inset, place->y + 8 * unit, HEADING, whole ? MAP_TITLE : "Error \xc3\x97 20");
    place->width -= box + MARGIN * unit;
    return {in.x, in.y, map.width, map.height};
}

/* A map on the picture, with its caption above. */
demo_rect map_inset(ImDrawList *list, float unit, const demo_rect *picture)
{
    const float wide = std::floor(picture->width / 3), tall = std::floor(picture->height / 3), inset = 8 * unit;
    const demo_rect map = {std::floor(picture->x + picture->width - wide - inset),
                           std::floor(picture->y + (picture->height - tall) / 2 + 14 * unit), wide, tall};
    const Pen pen = {list, unit, 0, 0, 0};
    const char *title = pen.measure(sans, NORMAL, MAP_TITLE) + 16 * unit <= picture->width ? MAP_TITLE : "Error \xc3\x97 20";
    chip(list, unit, map.x + wide, map.y - 30 * unit, true, title);
    return map;
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
    if (held && view->wipe != DEMO_WIPE_NONE && view->wipe != DEMO_WIPE_MAP && picture->width > 0) {
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

    ImDrawList *list = ImGui::GetBackgroundDrawList(), *front = ImGui::GetForegroundDrawList();
    const float w = (float)width, h = (float)height;
    const Layout layout = layout_of(w, h, view->hide_panel);
    const float unit = layout.unit, margin = MARGIN * unit;
    *error_map = demo_rect{0, 0, 0, 0};
    if (layout.kind == PICTURE) {
        *picture = fit_picture(0, 0, w, h, data);
        picture->y = std::floor((h - picture->height) / 2);
    } else {
        const demo_rect all = {w - layout.panel_width - margin, margin, layout.panel_width, h - 2 * margin};
        const float left_width = w - layout.panel_width - 3 * margin;
        const float below_least = layout.kind == FULL ? 150 * unit : 110 * unit;
        *picture = fit_picture(margin, margin, left_width, h - 3 * margin - below_least, data);
        const float below = picture->y + picture->height + margin;
        demo_rect graph_place = {margin, below, left_width, h - below - margin};
        if (view->error_map)
            *error_map = map_panel(list, unit, &graph_place, data);
        graph(list, unit, graph_place.x, graph_place.y, graph_place.width, graph_place.height, data);
        panel(list, unit, &all, layout.kind == COMPACT, view, data);
    }
    picture_labels(front, unit, picture, view, data, layout.kind == PICTURE && !view->hide_panel);
    if (view->error_map && error_map->width <= 0)
        *error_map = map_inset(front, unit, picture);
    if (view->help) {
        const float fits = std::fmin(w / 600, h / (data->shown ? 600.0f : 560.0f));
        help(front, unit < fits ? unit : fits, w, h, data->shown, data->has_oidn);
    }
    ImGui::Render();
}

void demo_overlay_watch(demo_text_watcher *on_text, void *user)
{
    watcher = on_text;
    watcher_user = user;
}

demo_view demo_first_view(uint32_t precision)
{
    demo_view view = {};
    view.precision = precision;
    view.smooth = TANDEM_SMOOTH_K;
    view.wipe = DEMO_WIPE_NOISY;
    view.wipe_at = 0.5f;
    return view;
}

void demo_overlay_record(VkCommandBuffer commands)
{
    ImGui_ImplVulkan_RenderDrawData(ImGui::GetDrawData(), commands);
}
