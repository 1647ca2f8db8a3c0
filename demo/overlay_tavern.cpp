/* Names, speech bubbles and the visitor's own words, over the picture of a scene with figures.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <algorithm>
#include <cstring>
#include <vector>

#include "demo/pen.h"

namespace overlay {

namespace {

constexpr ImU32 PAPER = IM_COL32(250, 245, 232, 244);
constexpr ImU32 INK = IM_COL32(38, 28, 20, 255);
constexpr ImU32 DEED = IM_COL32(24, 104, 62, 255);
constexpr ImU32 REFUSAL = IM_COL32(168, 44, 28, 255);
constexpr ImU32 PLATE = IM_COL32(8, 10, 12, 205);

bool has(const char *text)
{
    return text && *text;
}

/* What is drawn already, so that nothing comes to lie on it. */
struct Places {
    demo_rect within;
    std::vector<demo_rect> taken;

    bool is_free(const demo_rect &r) const
    {
        if (r.x < within.x || r.y < within.y || r.x + r.width > within.x + within.width ||
            r.y + r.height > within.y + within.height)
            return false;
        for (const demo_rect &t : taken)
            if (r.x < t.x + t.width && t.x < r.x + r.width && r.y < t.y + t.height &&
                t.y < r.y + r.height)
                return false;
        return true;
    }
};

struct Spot {
    const demo_shown_figure *figure;
    float x, y; /* above its head, in pixels */
    demo_rect name;
    std::string text;
};

float middle_of(const demo_rect &r)
{
    return r.x + r.width / 2;
}

bool speaks(const Spot &spot)
{
    return has(spot.figure->said) || has(spot.figure->did) || spot.figure->thinks;
}

/* Over the head, in few words or further up where that is taken. False: there is no room. */
bool place_name(const Pen &pen, Places &places, Spot &spot)
{
    const float tall = 24 * pen.unit;
    const demo_rect &in = places.within;
    const std::string whole = format("%s, %s", spot.figure->name, spot.figure->trade);
    for (float up = 0; up < 4; up++)
        for (int brief = in.width < 420 * pen.unit; brief < 2; brief++) {
            spot.text = brief ? spot.figure->name : whole;
            const float wide = pen.measure(sans, SMALL, spot.text.c_str()) + 14 * pen.unit;
            demo_rect r = {spot.x - wide / 2,
                           std::fmax(in.y, spot.y - tall) - up * (tall + 2 * pen.unit), wide, tall};
            r.x = std::fmax(in.x, std::fmin(r.x, in.x + in.width - wide));
            if (!places.is_free(r))
                continue;
            spot.name = r;
            places.taken.push_back(r);
            return true;
        }
    return false;
}

void draw_name(const Pen &pen, const Spot &spot)
{
    const demo_rect &r = spot.name;
    pen.list->AddRectFilled(ImVec2(r.x, r.y), ImVec2(r.x + r.width, r.y + r.height), PLATE,
                            5 * pen.unit);
    pen.put(sans, SMALL, r.x + 7 * pen.unit, r.y + 3 * pen.unit, spot.figure->with ? HEADING : TEXT,
            spot.text.c_str());
}

float height_of(const Pen &pen, float size, const char *text, float wrap)
{
    return *text ? sans->CalcTextSizeA(pen.size_of(size), 1e9f, wrap, text).y : 0;
}

float width_of(const Pen &pen, float size, const char *text, float wrap)
{
    return *text ? sans->CalcTextSizeA(pen.size_of(size), 1e9f, wrap, text).x : 0;
}

/* The end of a text, which is what was said last, of at most so many pixels. */
std::string tail_of(const Pen &pen, const char *text, float wrap, float most)
{
    std::string all = text;
    while (height_of(pen, NORMAL, all.c_str(), wrap) > most) {
        const size_t space = all.find(' ', std::strncmp(all.c_str(), "... ", 4) ? 0 : 4);
        if (space == std::string::npos)
            return "";
        all = "... " + all.substr(space + 1);
    }
    return all;
}

/* Between two edges over its name, or further up. */
bool place_bubble(const Places &places, const Spot &spot, float unit, float left, float right,
                  demo_rect &r)
{
    r.x = std::fmax(left, std::fmin(middle_of(spot.name) - r.width / 2, right - r.width));
    for (float up = 9; up < 200; up += 12) {
        r.y = spot.name.y - up * unit - r.height;
        if (places.is_free(r))
            return true;
    }
    return false;
}

/* As much of what was said as has room, its end rather than its beginning. */
void bubble(const Pen &pen, Places &places, const Spot &spot, float left, float right,
            float most_lines)
{
    const demo_shown_figure &f = *spot.figure;
    const float unit = pen.unit, inset = 10 * unit, line = height_of(pen, NORMAL, "x", 0);
    const float wrap = std::fmin(right - left, (f.with ? 420 : 260) * unit) - 2 * inset - 1;
    const std::string deed = has(f.did) ? std::string("* ") + f.did : "";
    for (float lines = most_lines; lines >= 1; lines--) {
        const std::string said =
            f.thinks ? "..." : tail_of(pen, has(f.said) ? f.said : "", wrap, lines * line + 1);
        const float wide = std::fmax(width_of(pen, NORMAL, said.c_str(), wrap),
                                     width_of(pen, SMALL, deed.c_str(), wrap));
        const float above = height_of(pen, NORMAL, said.c_str(), wrap);
        const float below =
            deed.empty() ? 0
                         : height_of(pen, SMALL, deed.c_str(), wrap) + (above > 0 ? 3 * unit : 0);
        demo_rect r = {0, 0, std::floor(wide + 2 * inset + 1),
                       std::floor(above + below + 1.4f * inset + 1)};
        if (above + below <= 0 || !place_bubble(places, spot, unit, left, right, r))
            continue;
        const float low = r.y + r.height - 1;
        const float stem =
            std::fmax(r.x + 14 * unit, std::fmin(middle_of(spot.name), r.x + r.width - 14 * unit));
        pen.list->AddTriangleFilled(ImVec2(stem - 8 * unit, low),
                                    ImVec2(middle_of(spot.name), spot.name.y),
                                    ImVec2(stem + 8 * unit, low), PAPER);
        pen.list->AddRectFilled(ImVec2(r.x, r.y), ImVec2(r.x + r.width, r.y + r.height), PAPER,
                                9 * unit);
        if (!said.empty())
            pen.put(sans, NORMAL, r.x + inset, r.y + 0.7f * inset, INK, said.c_str(), wrap);
        if (!deed.empty())
            pen.put(sans, SMALL, r.x + inset,
                    r.y + 0.7f * inset + above + (above > 0 ? 3 * unit : 0),
                    f.refuses ? REFUSAL : DEED, deed.c_str(), wrap);
        places.taken.push_back(r);
        return;
    }
}

/* From left to right, each up to the middle between its neighbours. */
void bubbles(const Pen &pen, Places &places, std::vector<Spot> &spots)
{
    const demo_rect &in = places.within;
    std::vector<const Spot *> row;
    for (const Spot &spot : spots) {
        if (!speaks(spot))
            continue;
        if (spot.figure->with)
            bubble(pen, places, spot, in.x, in.x + in.width, 7);
        else
            row.push_back(&spot);
    }
    std::sort(row.begin(), row.end(),
              [](const Spot *a, const Spot *b) { return middle_of(a->name) < middle_of(b->name); });
    for (size_t i = 0; i < row.size(); i++) {
        const float here = middle_of(row[i]->name), gap = 2 * pen.unit;
        const float left = i ? (middle_of(row[i - 1]->name) + here) / 2 + gap : in.x;
        const float right =
            i + 1 < row.size() ? (here + middle_of(row[i + 1]->name)) / 2 - gap : in.x + in.width;
        if (right - left > 70 * pen.unit)
            bubble(pen, places, *row[i], left, right, 7);
    }
}

/* What is typed, or what one may do. Returns how many pixels it took at the bottom. */
float bottom_line(ImDrawList *list, float unit, const demo_rect *p, const demo_shown *s)
{
    const Pen pen = {list, unit, 0, 0, 0};
    const float inset = 8 * unit, room = p->width - 2 * inset, tall = 30 * unit;
    const float y = p->y + p->height - inset - tall, x = p->x + inset;
    if (!s->with) {
        const std::string near =
            s->near_ ? format("Enter or click: talk to %s", s->near_) : "click somebody to talk";
        const std::string hints[] = {near + "   arrows: walk   H: help", near + "   H: help", near,
                                     "H: help"};
        for (const std::string &hint : hints)
            if (chip_width(unit, hint.c_str()) <= room) {
                chip(list, unit, p->x + p->width - inset, y + 2 * unit, true, hint.c_str());
                break;
            }
        return tall + inset;
    }
    list->AddRectFilled(ImVec2(x, y), ImVec2(x + room, y + tall), PLATE, 5 * unit);
    list->AddRect(ImVec2(x, y), ImVec2(x + room, y + tall), HEADING, 5 * unit, 0, unit);
    const std::string label = format("You to %s: ", s->with);
    const char *hint =
        has(s->input) ? "Enter: say it   Esc: leave" : "type, then Enter   Esc: leave";
    float left = x + 9 * unit, right = x + room - 9 * unit;
    const float label_wide = pen.measure(sans, NORMAL, label.c_str()),
                hint_wide = pen.measure(sans, SMALL, hint);
    if (label_wide + hint_wide + 180 * unit < room) {
        pen.put(sans, SMALL, right - hint_wide, y + 6 * unit, DIM, hint);
        right -= hint_wide + 12 * unit;
    }
    if (label_wide + 80 * unit < room) {
        pen.put(sans, NORMAL, left, y + 5 * unit, HEADING, label.c_str());
        left += label_wide;
    }
    /* The end of it, where the cursor is. */
    std::string typed = std::string(s->input) + "_";
    while (typed.size() > 1 && pen.measure(sans, NORMAL, typed.c_str()) > right - left)
        do
            typed.erase(0, 1);
        while (typed.size() > 1 && ((unsigned char)typed[0] & 0xc0) == 0x80);
    pen.put(sans, NORMAL, left, y + 5 * unit, TEXT, typed.c_str());
    return tall + inset;
}

} // namespace

void tavern_labels(ImDrawList *list, float unit, const demo_rect *p, const demo_shown *s)
{
    const Pen pen = {list, unit, 0, 0, 0};
    const float inset = 8 * unit;
    float low = bottom_line(list, unit, p, s) + inset;
    const std::string asked = s->with && has(s->asked) ? std::string("You: ") + s->asked : "";
    const char *below = s->note ? s->note : asked.c_str();
    const float wrap = p->width - 2 * inset - 16 * unit, room = 0.4f * p->height - low;
    float tall = height_of(pen, NORMAL, below, wrap);
    const std::string shown = tall + 10 * unit > room ? pen.fit(sans, NORMAL, below, wrap) : below;
    tall = height_of(pen, NORMAL, shown.c_str(), 0) + 10 * unit;
    if (*below && tall < room) {
        tall = height_of(pen, NORMAL, shown.c_str(), wrap) + 10 * unit;
        chip_wrapped(list, unit, p->x + inset, p->y + p->height - low, wrap + 16 * unit,
                     shown.c_str(),
                     !s->note   ? TEXT
                     : s->warns ? WARNING
                                : HEADING);
        low += tall + inset;
    }
    Places places = {{p->x + inset, p->y + inset, p->width - 2 * inset, p->height - inset - low},
                     {}};
    std::vector<Spot> spots;
    for (int round = 0; round < 2; round++) /* whom one talks to is never in others' way */
        for (const demo_shown_figure &f : s->figures) {
            Spot spot = {
                &f, p->x + (f.x + 1) / 2 * p->width, p->y + (1 - f.y) / 2 * p->height, {}, ""};
            if (f.visible && f.with == (round == 0) && place_name(pen, places, spot))
                spots.push_back(spot);
        }
    bubbles(pen, places, spots);
    for (const Spot &spot : spots)
        draw_name(pen, spot);
}

static std::string milliseconds(double value)
{
    return value < 10 ? format("%.2f", value) : format("%.1f", value);
}

static std::string mib(double value)
{
    return value < 10 ? format("%.1f", value) : format("%.0f", value);
}

void panel_tavern(Pen &pen, const demo_shown *s, bool brief)
{
    if (!pen.heading(brief ? "Who talks" : "Who talks, and what it takes"))
        return;
    if (!s->model) {
        pen.row("Model", "none", WARNING);
        return;
    }
    pen.row("Model", s->model);
    pen.row("Now",
            s->talking ? format("%u of %d talk", s->talking, DEMO_FIGURES).c_str() : "nobody talks",
            s->talking ? GOOD : TEXT);
    std::string speed =
        s->tokens_per_s >= 0.5 ? format("%.0f tokens a second", s->tokens_per_s) : "";
    if (s->first_ms > 0 && (!brief || speed.empty()))
        speed += format("%s after %.*f s", speed.empty() ? "the first token" : ", the first",
                        s->first_ms < 1000 ? 2 : 1, 1e-3 * s->first_ms);
    speed = speed.empty() ? "-" : speed;
    pen.row("Speed", speed.c_str());
    if (!s->budget_us)
        pen.row("Budget", "none: this model has no pages");
    else if (s->spent_us > 0)
        pen.row("Budget",
                format(brief ? "%.0f of %u \xc2\xb5s" : "%.0f of %u \xc2\xb5s a frame (p99)",
                       s->spent_us, s->budget_us)
                    .c_str(),
                s->spent_us <= 1.1 * s->budget_us ? GOOD : WARNING);
    else
        pen.row("Budget", format("%u \xc2\xb5s a frame", s->budget_us).c_str());
    if (s->quiet_frames && s->talking_frames)
        pen.row("Frames", format(brief ? "%s, talk %s ms" : "%s ms, with talk %s ms (p99)",
                                 milliseconds(s->quiet_ms.p99).c_str(),
                                 milliseconds(s->talking_ms.p99).c_str())
                              .c_str());
    if (!s->pages || brief)
        return;
    pen.row("Caches",
            format("%u of %u pages, %u slots, %s", s->pages_held, s->pages, s->slots, s->cache)
                .c_str());
    pen.row("Memory", format("%s MiB (8-bit: %s, 4-bit: %s)", mib(s->all_mib[0]).c_str(),
                             mib(s->all_mib[1]).c_str(), mib(s->all_mib[2]).c_str())
                          .c_str());
}

} // namespace overlay
