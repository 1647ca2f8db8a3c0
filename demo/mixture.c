/* Where a pixel's light comes from. See mixture.h; the arithmetic of gathers is tandem_gather's in types.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "demo/mixture.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "interop/base.h"
#include "kernels/model/safetensors.h"

enum { MOST_TENSORS = 64, MOST_GATHERS = 32, MOST_KEYS = 128, NONE = -1 };

/* A binding, and what of the pixel that is asked about comes out of each of its pixels: a weight, and one for each of red, green and
 * blue, which differ by what light is multiplied with. */
typedef struct tensor {
    char name[256];
    uint32_t role, dtype, height, width, channels;
    tandem_mem mem;
    void *host;
    double (*shares)[4]; /* NULL: it has no part in it */
    bool mixed;          /* a gather makes it */
} tensor;

typedef struct view {
    int tensor; /* or NONE */
    uint32_t offset;
} view;

typedef struct gather {
    view q, k, v, factor, k_coarse, v_coarse, k_before, v_before, o;
    int radius, coarse_radius, step;
    uint32_t dim, keys;
    float bias[MOST_KEYS];
} gather;

struct demo_mixture {
    tandem_session *session;
    tandem_model model;
    tandem_instance instance;
    uint32_t numbers[3], number_count, width, height, tensor_count, gather_count;
    tensor tensors[MOST_TENSORS];
    gather gathers[MOST_GATHERS]; /* in the order in which they run */
    int out, light, seen;
};

static const char *const gather_views[] = {"q", "k", "v", "factor", "k_coarse", "v_coarse", "k_before", "v_before", "o"};
enum { GATHER_VIEWS = sizeof gather_views / sizeof *gather_views };

static bool fails(const char *format, ...) __attribute__((format(printf, 1, 2)));
static bool fails(const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return demo_fail("the network's attention cannot be followed: %s", text);
}

/* --- The graph with more outputs --- */

static const char *view_name(const json_t *of)
{
    return json_is_string(of) ? json_string_value(of) : json_string_value(json_object_get(of, "tensor"));
}

static bool is_gather(const json_t *node)
{
    const char *operation = json_string_value(json_object_get(node, "operation"));
    return operation && !strcmp(operation, "gather");
}

/* Whatever a gather reads or writes becomes an output. */
static void show_all(json_t *graph)
{
    json_t *tensors = json_object_get(graph, "tensors"), *node;
    size_t i;
    json_array_foreach(json_object_get(graph, "nodes"), i, node)
        for (int v = 0; is_gather(node) && v < GATHER_VIEWS; v++) {
            const char *name = view_name(json_object_get(json_object_get(node, "views"), gather_views[v]));
            json_t *of = name ? json_object_get(tensors, name) : NULL;
            const char *role = json_string_value(json_object_get(of, "role"));
            if (role && !strcmp(role, "temporary"))
                json_object_set_new(of, "role", json_string("output"));
        }
}

/* The file's weights, with another graph, in a file that only this program knows. */
static bool write_copy(const td_safetensors *file, const json_t *graph, char *path, size_t path_bytes)
{
    const char *folder = getenv("TMPDIR");
    char why[300] = "", *text = json_dumps(graph, JSON_COMPACT);
    td_safetensors_item *items = calloc(file->count + 1, sizeof *items);
    void **data = calloc(file->count + 1, sizeof *data);
    const int length = snprintf(path, path_bytes, "%s/tandem-demo-XXXXXX", folder && *folder ? folder : "/tmp");
    const int fd = length > 0 && (size_t)length < path_bytes ? mkstemp(path) : -1;
    bool ok = text && items && data && fd >= 0;
    if (fd >= 0)
        close(fd);
    else
        path[0] = 0;
    for (uint32_t i = 0; ok && i < file->count; i++) {
        const td_safetensor *t = &file->tensors[i];
        data[i] = malloc(t->bytes + 1);
        ok = data[i] && td_safetensors_read(file, t, data[i], why, sizeof why) == TANDEM_OK;
        items[i] = (td_safetensors_item){.name = t->name, .dtype = t->dtype_name, .dimensions = t->dimensions, .data = data[i]};
        memcpy(items[i].shape, t->shape, sizeof items[i].shape);
    }
    const td_safetensors_text texts[] = {{"tandem.graph", text}};
    ok = ok && td_safetensors_write_texts(path, texts, 1, items, file->count, why, sizeof why) == TANDEM_OK;
    for (uint32_t i = 0; data && i < file->count; i++)
        free(data[i]);
    free(data);
    free(items);
    free(text);
    return ok || fails("no copy of it can be written: %s", why[0] ? why : "no memory, or no folder for it");
}

/* --- What is in it --- */

static int find_tensor(const demo_mixture *m, const char *name)
{
    for (uint32_t i = 0; name && i < m->tensor_count; i++)
        if (!strcmp(m->tensors[i].name, name))
            return (int)i;
    return NONE;
}

static bool find_bindings(demo_mixture *m)
{
    tandem_network info = TANDEM_INIT(tandem_network);
    if (tandem_model_info(m->session, m->model, &info) != TANDEM_OK || info.binding_count > MOST_TENSORS || info.number_count < 2 ||
        info.number_count > sizeof m->numbers / sizeof *m->numbers)
        return fails("it has other numbers than height, width and edges, or more than %d tensors", MOST_TENSORS);
    m->number_count = info.number_count;
    for (uint32_t i = 0; i < m->number_count; i++) {
        tandem_network_number number = TANDEM_INIT(tandem_network_number);
        if (tandem_model_number(m->session, m->model, i, &number) != TANDEM_OK)
            return fails("its numbers are not known");
        m->numbers[i] = !strcmp(number.name, "width") ? m->width : !strcmp(number.name, "height") ? m->height : 1;
    }
    for (uint32_t i = 0; i < info.binding_count; i++) {
        tandem_network_tensor t = TANDEM_INIT(tandem_network_tensor);
        tensor *to = &m->tensors[m->tensor_count++];
        if (tandem_model_binding(m->session, m->model, m->numbers, m->number_count, i, &t) != TANDEM_OK || t.dimensions != 3)
            return fails("its tensors have other dimensions than height, width, channels");
        *to = (tensor){.role = t.role, .dtype = t.dtype, .height = t.shape[1], .width = t.shape[2], .channels = t.shape[3]};
        memcpy(to->name, t.name, sizeof to->name);
        const tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc, .fd = -1, .bytes = t.bytes);
        if (tandem_mem_create(m->session, &desc, &to->mem) != TANDEM_OK || tandem_mem_host(m->session, to->mem, &to->host) != TANDEM_OK)
            return fails("no memory for %s", t.name);
        memset(to->host, 0, t.bytes);
    }
    return true;
}

static bool read_view(const demo_mixture *m, const json_t *of, uint32_t channels, uint32_t dtype, view *out)
{
    *out = (view){NONE, 0};
    if (!of)
        return true;
    const json_t *offset = json_object_get(of, "offset");
    const json_t *stride = json_array_get(json_object_get(of, "strides"), 2);
    out->tensor = find_tensor(m, view_name(of));
    if (out->tensor == NONE)
        return fails("it has a tensor that no binding shows");
    const tensor *t = &m->tensors[out->tensor];
    out->offset = (uint32_t)json_integer_value(offset);
    /* Pixels lie one behind the other; a part of their channels is meant. */
    if ((offset && !json_is_integer(offset)) || (stride && json_integer_value(stride) != (json_int_t)t->channels) ||
        (uint64_t)out->offset + channels > t->channels || t->dtype != dtype)
        return fails("it reads %s in a way that is not known", t->name);
    return true;
}

/* Of two rows the first, which are of smooth edges. */
static bool read_bias(const td_safetensors *file, const json_t *of, gather *g)
{
    char why[200] = "";
    const char *name = view_name(of);
    const td_safetensor *t = name ? td_safetensors_find(file, name) : NULL;
    if (!of)
        return true;
    const uint64_t row = g->keys * sizeof(float);
    return (t && t->dtype == TANDEM_DTYPE_F32 && (t->bytes == row || t->bytes == 2 * row) && t->bytes <= sizeof g->bias &&
            td_safetensors_read(file, t, g->bias, why, sizeof why) == TANDEM_OK) ||
           fails("its bias %s is not that of its keys", name ? name : "");
}

static bool read_gather(demo_mixture *m, const td_safetensors *file, const json_t *node, gather *g)
{
    const json_t *views = json_object_get(node, "views");
    const json_t *numbers[4] = {json_object_get(node, "radius"), json_object_get(node, "coarse_radius"), json_object_get(node, "step"),
                                json_object_get(node, "dim")};
    for (int i = 0; i < 4; i++)
        if (numbers[i] && (!json_is_integer(numbers[i]) || json_integer_value(numbers[i]) < 0 || json_integer_value(numbers[i]) > 16))
            return fails("a gather has numbers that are not known");
    g->radius = (int)json_integer_value(numbers[0]);
    g->coarse_radius = (int)json_integer_value(numbers[1]);
    g->step = json_integer_value(numbers[2]) ? (int)json_integer_value(numbers[2]) : 1;
    g->dim = (uint32_t)json_integer_value(numbers[3]);
    view *const to[GATHER_VIEWS] = {&g->q, &g->k, &g->v, &g->factor, &g->k_coarse, &g->v_coarse, &g->k_before, &g->v_before, &g->o};
    for (int i = 0; i < GATHER_VIEWS; i++) {
        const char kind = gather_views[i][0];
        const bool key = kind == 'q' || kind == 'k';
        if (!read_view(m, json_object_get(views, gather_views[i]), key ? g->dim : kind == 'v' ? 4 : 3,
                       key ? TANDEM_DTYPE_F16 : TANDEM_DTYPE_F32, to[i]))
            return false;
    }
    const uint32_t edge = g->step == 2 ? 2 * (uint32_t)g->radius : 2 * (uint32_t)g->radius + 1, near = 2 * (uint32_t)g->coarse_radius + 1;
    g->keys = edge * edge + (g->k_coarse.tensor != NONE ? near * near : 0) + (g->k_before.tensor != NONE);
    if (g->q.tensor == NONE || g->k.tensor == NONE || g->v.tensor == NONE || g->o.tensor == NONE || g->keys > MOST_KEYS ||
        (g->k_coarse.tensor == NONE) != (g->v_coarse.tensor == NONE) || (g->k_before.tensor == NONE) != (g->v_before.tensor == NONE))
        return fails("a gather has not all its views, or more than %d keys", MOST_KEYS);
    m->tensors[g->o.tensor].mixed = true;
    return read_bias(file, json_object_get(views, "bias"), g);
}

static bool read_gathers(demo_mixture *m, const td_safetensors *file, const json_t *graph)
{
    const json_t *node;
    size_t i;
    json_array_foreach(json_object_get(graph, "nodes"), i, node) {
        if (!is_gather(node))
            continue;
        if (m->gather_count == MOST_GATHERS)
            return fails("it has more than %d gathers", MOST_GATHERS);
        if (!read_gather(m, file, node, &m->gathers[m->gather_count++]))
            return false;
    }
    m->out = find_tensor(m, "out");
    m->light = find_tensor(m, "light");
    m->seen = find_tensor(m, "seen");
    if (m->out == NONE || m->light == NONE || !m->tensors[m->out].mixed)
        return fails("it does not mix \"light\" to \"out\"");
    for (uint32_t i2 = 0; i2 < m->tensor_count; i2++) {
        tensor *t = &m->tensors[i2];
        if (t->dtype == TANDEM_DTYPE_F32 && t->channels >= 3 && !(t->shares = calloc((size_t)t->width * t->height, sizeof *t->shares)))
            return fails("out of memory");
    }
    return true;
}

static bool open_model(demo_mixture *m, const char *model)
{
    char path[4200], why[400] = "";
    td_safetensors file;
    json_t *graph = NULL;
    if (td_safetensors_open(model, &file, why, sizeof why) != TANDEM_OK)
        return fails("%s: %s", model, why);
    const char *text = td_safetensors_find_text(&file, "tandem.graph");
    graph = text ? json_loads(text, 0, NULL) : NULL;
    bool ok = graph || fails("there is no graph in %s", model);
    if (ok) {
        show_all(graph);
        ok = write_copy(&file, graph, path, sizeof path);
        if (ok && tandem_model_load(m->session, path, &m->model) != TANDEM_OK) {
            tandem_error_text(m->session, why, sizeof why);
            ok = fails("%s", why);
        }
        if (path[0])
            unlink(path);
    }
    ok = ok && find_bindings(m) && read_gathers(m, &file, graph);
    if (ok && (tandem_model_instance(m->session, m->model, &TANDEM_INIT(tandem_instance_desc), &m->instance) != TANDEM_OK ||
               tandem_model_prepare(m->session, m->instance, m->numbers, m->number_count) != TANDEM_OK)) {
        tandem_error_text(m->session, why, sizeof why);
        ok = fails("%s", why);
    }
    json_decref(graph);
    td_safetensors_close(&file);
    return ok;
}

demo_mixture *demo_mixture_open(const demo_pipeline *p, uint32_t preset)
{
    char why[400] = "";
    demo_mixture *m = calloc(1, sizeof *m);
    const tandem_session_desc desc = TANDEM_INIT(tandem_session_desc,
                                                 .backend = TANDEM_BACKEND_CPU,
                                                 .cpu_threads = p->options.threads,
                                                 .error_text = why,
                                                 .error_text_bytes = sizeof why);
    if (m) {
        m->width = p->options.width;
        m->height = p->options.height;
    }
    if (m && tandem_session_create(&desc, &m->session) == TANDEM_OK && open_model(m, p->options.models[preset]))
        return m;
    if (!m || !m->session)
        fails("%s", why[0] ? why : "out of memory");
    demo_mixture_close(m);
    return NULL;
}

void demo_mixture_close(demo_mixture *m)
{
    if (!m)
        return;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        free(m->tensors[i].shares);
    if (m->session)
        tandem_session_destroy(&m->session);
    free(m);
}

/* --- A frame --- */

/* By name, from memory in which they lie as the denoiser has them; `suffix` is what the network adds to their names. */
static void fill(demo_mixture *m, const demo_denoiser *d, const char *const *names, const char *suffix, const char *from)
{
    for (; *names; names++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", *names, suffix);
        const int i = find_tensor(m, name);
        if (i == NONE)
            continue;
        const tensor *t = &m->tensors[i];
        memcpy(t->host, from + demo_denoiser_offset(d, *names), (size_t)t->width * t->height * t->channels * sizeof(float));
    }
}

static bool run(demo_mixture *m)
{
    tandem_view views[MOST_TENSORS];
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_RUN);
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    tandem_ticket ticket;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        views[i] = (tandem_view){.mem = m->tensors[i].mem, .dtype = m->tensors[i].dtype};
    job.op.run = (tandem_run){.instance = m->instance,
                              .bindings = views,
                              .binding_count = m->tensor_count,
                              .numbers = m->numbers,
                              .number_count = m->number_count};
    return tandem_submit(m->session, &job, &ticket) == TANDEM_OK && tandem_wait(m->session, ticket, UINT64_MAX, &report) == TANDEM_OK &&
           report.state == TANDEM_JOB_DONE;
}

bool demo_mixture_frame(demo_mixture *m, demo_pipeline *p, demo_slot *slot)
{
    static const char *const given[] = {"color", "albedo", "motion", "valid", NULL}, *const kept[] = {"normal", "depth", NULL},
                             *const before[] = {"normal", "depth", "history", NULL};
    demo_station *st = slot->station ? slot->station : p->station;
    demo_denoiser *d = &st->denoiser;
    const uint64_t input = demo_denoiser_input_bytes(m->width, m->height), of_kept = demo_denoiser_kept_bytes(m->width, m->height);
    char *bytes = calloc(1, input > of_kept ? input : of_kept);
    bool ok = bytes && slot->outcome.denoised && slot->outcome.effect == DEMO_EFFECT_DENOISE &&
              demo_slot_read(p, slot, slot->job->input, 0, input, bytes);
    if (ok)
        fill(m, d, given, "", bytes);
    ok = ok && demo_denoiser_read(d, p->engine, &st->tandem, 0, bytes);
    if (ok)
        fill(m, d, kept, "", bytes);
    ok = ok && (slot->outcome.cut || demo_denoiser_read(d, p->engine, &st->tandem, 1, bytes));
    if (ok && slot->outcome.cut)
        memset(bytes, 0, of_kept);
    if (ok)
        fill(m, d, before, "_before", bytes);
    free(bytes);
    return (ok && run(m)) || fails("the frame's tensors cannot be read");
}

/* --- A pixel --- */

static const float *floats_at(const demo_mixture *m, view v, int y, int x)
{
    const tensor *t = &m->tensors[v.tensor];
    return (const float *)t->host + ((size_t)y * t->width + (size_t)x) * t->channels + v.offset;
}

static double score(const demo_mixture *m, const gather *g, const uint16_t *q, view k, int y, int x)
{
    const tensor *t = &m->tensors[k.tensor];
    const uint16_t *key = (const uint16_t *)t->host + ((size_t)y * t->width + (size_t)x) * t->channels + k.offset;
    double sum = 0;
    for (uint32_t i = 0; i < g->dim; i++)
        sum += (double)demo_half_to_float(q[i]) * (double)demo_half_to_float(key[i]);
    return sum;
}

/* The keys that a query meets: whose value, where, and how much it counts. */
typedef struct met {
    view v;
    int y, x;
    double weight;
} met;

static int meet(const demo_mixture *m, const gather *g, const uint16_t *q, view k, view v, int y, int x, int before, int edge, int bias,
                met *out, int count)
{
    const tensor *t = &m->tensors[v.tensor];
    for (int i = 0; i < edge * edge; i++) {
        const int at_y = y - before + i / edge, at_x = x - before + i % edge;
        if (at_y >= 0 && at_x >= 0 && at_y < (int)t->height && at_x < (int)t->width)
            out[count++] = (met){v, at_y, at_x, score(m, g, q, k, at_y, at_x) + (double)g->bias[bias + i]};
    }
    return count;
}

/* Softmax, then as often as each value counts. */
static void settle(const demo_mixture *m, met *all, int count)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < count; i++)
        most = all[i].weight > most ? all[i].weight : most;
    for (int i = 0; i < count; i++) {
        const float times = floats_at(m, all[i].v, all[i].y, all[i].x)[3];
        all[i].weight = times > 0 ? exp(all[i].weight - most) * (double)times : 0;
        sum += all[i].weight;
    }
    for (int i = 0; i < count; i++)
        all[i].weight = sum > 0 ? all[i].weight / sum : 0;
}

static bool is_final(const gather *g)
{
    return g->factor.tensor != NONE;
}

/* Hands a pixel's shares on to what it is a mean of. */
static void hand_on(demo_mixture *m, const gather *g, int y, int x, const double shares[4])
{
    met all[MOST_KEYS];
    const tensor *t = &m->tensors[g->q.tensor];
    const uint16_t *q = (const uint16_t *)t->host + ((size_t)y * t->width + (size_t)x) * t->channels + g->q.offset;
    const int edge = g->step == 2 ? 2 * g->radius : 2 * g->radius + 1, near = 2 * g->coarse_radius + 1;
    int count = meet(m, g, q, g->k, g->v, g->step * y, g->step * x, g->step == 2 ? g->radius - 1 : g->radius, edge, 0, all, 0);
    if (g->k_coarse.tensor != NONE)
        count = meet(m, g, q, g->k_coarse, g->v_coarse, y / 2, x / 2, g->coarse_radius, near, edge * edge, all, count);
    if (g->k_before.tensor != NONE)
        count = meet(m, g, q, g->k_before, g->v_before, y, x, 0, 1, (int)g->keys - 1, all, count);
    settle(m, all, count);
    for (int i = 0; i < count; i++) {
        const tensor *v = &m->tensors[all[i].v.tensor];
        const float *factor = is_final(g) ? floats_at(m, g->factor, all[i].y, all[i].x) : NULL;
        double *to = v->shares[(size_t)all[i].y * v->width + (size_t)all[i].x];
        for (int c = 0; c < 4; c++)
            to[c] += shares[c] * all[i].weight * (factor && c < 3 ? (double)factor[c] : 1.0);
    }
}

/* What is left of a pixel in what was measured. */
static double collect(const demo_mixture *m, int which, float *map, double mixed[3])
{
    const tensor *t = &m->tensors[which];
    double sum = 0;
    for (size_t i = 0; i < (size_t)t->width * t->height; i++) {
        map[i] = (float)t->shares[i][3];
        sum += t->shares[i][3];
        for (size_t c = 0; c < 3; c++)
            mixed[c] += t->shares[i][c] > 0 ? t->shares[i][c] * (double)((const float *)t->host)[i * t->channels + c] : 0;
    }
    return sum;
}

static double farthest(const float *map, const float *other, uint32_t width, uint32_t height, uint32_t x, uint32_t y)
{
    double most = 0, far = 0;
    for (size_t i = 0; i < (size_t)width * height; i++)
        most = fmax(most, (double)(map[i] + other[i]));
    for (size_t i = 0; i < (size_t)width * height; i++)
        if ((double)(map[i] + other[i]) >= 1e-3 * most)
            far = fmax(far, hypot((double)(i % width) - (double)x, (double)(i / width) - (double)y));
    return far;
}

bool demo_mixture_at(demo_mixture *m, uint32_t x, uint32_t y, float *now, float *before, demo_mixture_sum *sum)
{
    *sum = (demo_mixture_sum){0};
    if (x >= m->width || y >= m->height)
        return false;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (m->tensors[i].shares)
            memset(m->tensors[i].shares, 0, (size_t)m->tensors[i].width * m->tensors[i].height * sizeof *m->tensors[i].shares);
    double *const begin = m->tensors[m->out].shares[(size_t)y * m->width + x];
    for (int c = 0; c < 4; c++)
        begin[c] = 1;
    for (uint32_t i = m->gather_count; i-- > 0;) {
        const gather *g = &m->gathers[i];
        const tensor *o = &m->tensors[g->o.tensor];
        for (size_t at = 0; o->shares && at < (size_t)o->width * o->height; at++)
            if (o->shares[at][3] > 0)
                hand_on(m, g, (int)(at / o->width), (int)(at % o->width), o->shares[at]);
    }
    sum->now = collect(m, m->light, now, sum->mixed);
    memset(before, 0, (size_t)m->width * m->height * sizeof *before);
    sum->before = m->seen == NONE ? 0 : collect(m, m->seen, before, sum->mixed);
    for (int c = 0; c < 3; c++)
        sum->network[c] = (double)floats_at(m, (view){m->out, 0}, (int)y, (int)x)[c];
    sum->farthest = farthest(now, before, m->width, m->height, x, y);
    return true;
}

/* --- To look at --- */

/* 1 for what counts most, 0 for a ten-thousandth of that. */
static float heat(float weight, float most)
{
    const float x = weight > 0 && most > 0 ? 1.0f + log10f(weight / most) / 4.0f : 0.0f;
    return x > 0 ? x : 0.0f;
}

enum { AROUND = 16 }; /* pixels that are shown larger, each way */

/* A square of one pixel's width, its upper left corner at (x, y). */
static void frame(float *out, uint32_t width, uint32_t height, long x, long y, long edge)
{
    for (long v = y; v < y + edge; v++)
        for (long u = x; u < x + edge; u++) {
            const bool rim = v == y || u == x || v == y + edge - 1 || u == x + edge - 1;
            for (size_t c = 0; rim && u >= 0 && v >= 0 && u < (long)width && v < (long)height && c < 3; c++)
                out[4 * ((size_t)v * width + (size_t)u) + c] = 2.5f;
        }
}

/* The surroundings of a pixel, at the side that is farther from it. */
static void enlarge(float *out, uint32_t width, uint32_t height, uint32_t x, uint32_t y)
{
    enum { EDGE = 2 * AROUND + 1 };
    static float part[EDGE * EDGE][4];
    const long times = (long)(height < width ? height : width) * 3 / 5 / EDGE, edge = times * EDGE, margin = (long)height / 40;
    const long left = 2 * x < width ? (long)width - edge - margin : margin, top = ((long)height - edge) / 2;
    if (times < 2)
        return;
    for (long i = 0; i < (long)EDGE * EDGE; i++) {
        const long u = (long)x - AROUND + i % EDGE, v = (long)y - AROUND + i / EDGE;
        const bool inside = u >= 0 && v >= 0 && u < (long)width && v < (long)height;
        for (size_t c = 0; c < 4; c++)
            part[i][c] = inside ? out[4 * ((size_t)v * width + (size_t)u) + c] : 0.0f;
    }
    for (long v = 0; v < edge; v++)
        for (long u = 0; u < edge; u++)
            memcpy(out + 4 * ((size_t)(top + v) * width + (size_t)(left + u)), part[v / times * EDGE + u / times], sizeof *part);
    frame(out, width, height, left, top, edge);
    frame(out, width, height, left + AROUND * times - 1, top + AROUND * times - 1, times + 2);
}

void demo_mixture_paint(const float *picture, const float *now, const float *before, uint32_t width, uint32_t height, uint32_t x,
                        uint32_t y, float *out)
{
    static const float orange[3] = {3.2f, 0.85f, 0.06f}, blue[3] = {0.04f, 0.7f, 3.6f};
    float most = 0;
    for (size_t i = 0; i < (size_t)width * height; i++)
        most = fmaxf(most, fmaxf(now[i], before[i]));
    for (size_t i = 0; i < (size_t)width * height; i++) {
        const float a = heat(now[i], most), b = heat(before[i], most), cover = fminf(1.0f, 0.35f * (a + b > 0) + fmaxf(a, b));
        const float grey = 0.3f * (0.2126f * picture[4 * i] + 0.7152f * picture[4 * i + 1] + 0.0722f * picture[4 * i + 2]);
        for (size_t c = 0; c < 3; c++)
            out[4 * i + c] = (1.0f - 0.85f * cover) * grey + a * a * orange[c] + b * b * blue[c];
        out[4 * i + 3] = 1.0f;
    }
    enlarge(out, width, height, x, y);
    frame(out, width, height, (long)x - AROUND, (long)y - AROUND, 2 * AROUND + 1);
}
