/* How texts, plates and rows are drawn on the overlay: C++, of the overlay's files alone.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_DEMO_PEN_H
#define TANDEM_DEMO_PEN_H

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <string>

#include <imgui.h>

#include "demo/overlay.h"

namespace overlay {

constexpr ImU32 TEXT = IM_COL32(232, 236, 241, 255);
constexpr ImU32 DIM = IM_COL32(158, 168, 180, 255);
constexpr ImU32 HEADING = IM_COL32(255, 196, 84, 255);
constexpr ImU32 PANEL = IM_COL32(25, 29, 35, 255);
constexpr ImU32 LINE = IM_COL32(58, 66, 77, 255);
constexpr ImU32 WARNING = IM_COL32(255, 122, 92, 255);
constexpr ImU32 GOOD = IM_COL32(126, 211, 133, 255);

constexpr float MARGIN = 16, SMALL = 16, NORMAL = 17, TITLE = 24;

inline ImFont *sans, *mono;
inline demo_text_watcher *watcher;
inline void *watcher_user;

struct Pen {
    ImDrawList *list;
    float unit;
    float x, y, width;
    float bottom = 1e9f, column = 104; /* column: of a row's value, in units */

    bool has_room(float units) const { return y + units * unit <= bottom; }

    float size_of(float size) const { return std::floor(size * unit + 0.5f); }
    float measure(ImFont *font, float size, const char *text) const
    {
        return font->CalcTextSizeA(size_of(size), 1e9f, 0.0f, text).x;
    }
    void put(ImFont *font, float size, float at_x, float at_y, ImU32 color, const char *text,
             float wrap = 0) const
    {
        const ImVec2 at(std::floor(at_x), std::floor(at_y));
        list->AddText(font, size_of(size), at, color, text, nullptr, wrap);
        if (watcher) {
            const ImVec2 extent = font->CalcTextSizeA(size_of(size), 1e9f, wrap, text);
            const demo_rect where = {at.x, at.y, extent.x, extent.y};
            watcher(watcher_user, text, &where);
        }
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
    /* False where neither it nor a row below it has room. */
    bool heading(const char *text)
    {
        if (!has_room(55)) {
            bottom = y; /* nor has what would come below */
            return false;
        }
        y += 7 * unit;
        list->AddLine(ImVec2(x, y), ImVec2(x + width, y), LINE, unit);
        y += 6 * unit;
        put(sans, SMALL, x, y, HEADING, fit(sans, SMALL, text, width).c_str());
        y += 22 * unit;
        return true;
    }
    void row(const char *label, const char *value, ImU32 color = TEXT)
    {
        if (!has_room(20))
            return;
        put(sans, SMALL, x, y, DIM, label);
        put(sans, SMALL, x + column * unit, y, color,
            fit(sans, SMALL, value, width - column * unit).c_str());
        y += 20 * unit;
    }
    void paragraph(const char *text, ImU32 color, int most_lines)
    {
        if (!has_room(20.0f * (float)most_lines))
            return;
        std::string shown = text;
        const float size = size_of(SMALL), line = sans->CalcTextSizeA(size, 1e9f, width, "x").y;
        while (sans->CalcTextSizeA(size, 1e9f, width, shown.c_str()).y >
                   line * (float)most_lines + 1 &&
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
inline std::string format(const char *pattern, ...)
{
    char text[512];
    va_list list;
    va_start(list, pattern);
    vsnprintf(text, sizeof text, pattern, list);
    va_end(list);
    return text;
}

inline float chip_width(float unit, const char *text)
{
    return Pen{nullptr, unit, 0, 0, 0}.measure(sans, NORMAL, text) + 16 * unit;
}

inline void chip(ImDrawList *list, float unit, float x, float y, bool from_right, const char *text,
                 ImU32 color = TEXT)
{
    const Pen pen = {list, unit, 0, 0, 0};
    const float wide = chip_width(unit, text), left = from_right ? x - wide : x;
    list->AddRectFilled(ImVec2(left, y), ImVec2(left + wide, y + 28 * unit),
                        IM_COL32(8, 10, 12, 205), 5 * unit);
    pen.put(sans, NORMAL, left + 8 * unit, y + 4 * unit, color, text);
}

/* A chip of as many lines as its text needs. */
inline void chip_wrapped(ImDrawList *list, float unit, float x, float bottom, float most_width,
                         const char *text, ImU32 color)
{
    const Pen pen = {list, unit, 0, 0, 0};
    const float wrap = most_width - 16 * unit;
    const ImVec2 size = sans->CalcTextSizeA(pen.size_of(NORMAL), 1e9f, wrap, text);
    const float top = bottom - size.y - 10 * unit;
    list->AddRectFilled(ImVec2(x, top), ImVec2(x + size.x + 16 * unit, bottom),
                        IM_COL32(8, 10, 12, 225), 5 * unit);
    pen.put(sans, NORMAL, x + 8 * unit, top + 4 * unit, color, text, wrap);
}

/* --- overlay_tavern.cpp --- */

/* Names, bubbles, and what the visitor types, over the picture at `p`. */
void tavern_labels(ImDrawList *list, float unit, const demo_rect *p, const demo_shown *shown);
/* The rows of the panel that are about characters. */
void panel_tavern(Pen &pen, const demo_shown *shown, bool brief);

} // namespace overlay

#endif
