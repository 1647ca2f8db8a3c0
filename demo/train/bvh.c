/* A tree of boxes over triangles, by the surface area heuristic in bins. See world.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "demo/train/world.h"

enum { BINS = 16, LEAF = 4, DEEPEST = 30 }; /* the shader's stack is deeper */

typedef struct box {
    float low[3], high[3];
} box;

typedef struct part { /* of a triangle */
    box around;
    float middle[3];
    uint32_t triangle;
} part;

static const box empty = {{INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}};

static void widen(box *b, const box *by)
{
    for (int i = 0; i < 3; i++) {
        b->low[i] = fminf(b->low[i], by->low[i]);
        b->high[i] = fmaxf(b->high[i], by->high[i]);
    }
}

static float area(const box *b)
{
    const float x = b->high[0] - b->low[0], y = b->high[1] - b->low[1], z = b->high[2] - b->low[2];
    return x < 0 ? 0 : x * y + y * z + z * x;
}

static part part_of(const struct td_train_triangle *t, uint32_t number)
{
    part p = {.around = empty, .triangle = number};

    for (int corner = 0; corner < 3; corner++) {
        box point;
        for (int i = 0; i < 3; i++)
            point.low[i] = point.high[i] = t->corner[i] + (corner == 1 ? t->edge1[i] : corner == 2 ? t->edge2[i] : 0);
        widen(&p.around, &point);
    }
    for (int i = 0; i < 3; i++)
        p.middle[i] = 0.5f * (p.around.low[i] + p.around.high[i]);
    return p;
}

static uint32_t bin_of(const part *p, int axis, float low, float scale)
{
    const float bin = (p->middle[axis] - low) * scale;
    return bin < BINS - 1 ? (uint32_t)bin : BINS - 1;
}

/* Where parts are best cut in two, along which axis: their order is changed. 0: nowhere. */
static uint32_t cut(part *parts, uint32_t count, const box *middles)
{
    float best = INFINITY, best_low = 0, best_scale = 0;
    int best_axis = -1;
    uint32_t best_bin = 0, first = 0;

    for (int axis = 0; axis < 3; axis++) {
        const float width = middles->high[axis] - middles->low[axis], scale = (float)BINS / width;
        box bins[BINS], right[BINS];
        uint32_t counts[BINS] = {0}, left_count = 0;
        box left = empty;
        if (!(width > 0) || !isfinite(scale))
            continue;
        for (int i = 0; i < BINS; i++)
            bins[i] = empty;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t bin = bin_of(&parts[i], axis, middles->low[axis], scale);
            counts[bin]++;
            widen(&bins[bin], &parts[i].around);
        }
        right[BINS - 1] = bins[BINS - 1];
        for (int i = BINS - 2; i >= 0; i--) {
            right[i] = bins[i];
            widen(&right[i], &right[i + 1]);
        }
        for (int i = 0; i < BINS - 1; i++) {
            widen(&left, &bins[i]);
            left_count += counts[i];
            const float cost = area(&left) * (float)left_count + area(&right[i + 1]) * (float)(count - left_count);
            if (left_count && left_count < count && cost < best) {
                best = cost, best_axis = axis, best_bin = (uint32_t)i;
                best_low = middles->low[axis], best_scale = scale;
            }
        }
    }
    for (uint32_t i = 0; i < count && best_axis >= 0; i++)
        if (bin_of(&parts[i], best_axis, best_low, best_scale) <= best_bin) {
            const part p = parts[i];
            parts[i] = parts[first];
            parts[first++] = p;
        }
    return first;
}

static void build(train_world *world, uint32_t node, part *parts, uint32_t first, uint32_t count, uint32_t depth)
{
    struct td_train_node *to = &world->nodes[node];
    box around = empty, middles = empty;

    for (uint32_t i = 0; i < count; i++) {
        box middle;
        memcpy(middle.low, parts[first + i].middle, sizeof middle.low);
        memcpy(middle.high, parts[first + i].middle, sizeof middle.high);
        widen(&around, &parts[first + i].around);
        widen(&middles, &middle);
    }
    memset(to, 0, sizeof *to);
    memcpy(to->low, around.low, sizeof around.low);
    memcpy(to->high, around.high, sizeof around.high);
    const uint32_t left = count > LEAF && depth < DEEPEST ? cut(parts + first, count, &middles) : 0;
    if (!left) {
        to->of[0] = first;
        to->of[1] = count;
        return;
    }
    const uint32_t children = world->node_count;
    to->of[0] = children;
    world->node_count += 2;
    build(world, children, parts, first, left, depth + 1);
    build(world, children + 1, parts, first + left, count - left, depth + 1);
}

bool train_bvh_build(train_world *world)
{
    const uint32_t count = world->triangle_count;
    part *parts = malloc(count * sizeof *parts);
    struct td_train_triangle *ordered = malloc(count * sizeof *ordered);

    free(world->nodes);
    world->node_count = 0;
    world->nodes = malloc(2 * (size_t)count * sizeof *world->nodes);
    if (parts && ordered && world->nodes && count) {
        for (uint32_t i = 0; i < count; i++)
            parts[i] = part_of(&world->triangles[i], i);
        world->node_count = 1;
        build(world, 0, parts, 0, count, 0);
        for (uint32_t i = 0; i < count; i++)
            ordered[i] = world->triangles[parts[i].triangle];
        memcpy(world->triangles, ordered, count * sizeof *ordered);
    }
    free(parts);
    free(ordered);
    return world->node_count > 0;
}
