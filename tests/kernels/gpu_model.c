/* A GPU like the H200. See gpu_model.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/gpu_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention/params.h"

/* By head dim 64, 80, 96, 128: a step of 128 keys for 64 rows of F16's blocks, of those whose warpgroups share keys; of 8B's
 * of most warpgroups, of fewer, of those that share. */
static const double f16_step[] = {0.4848, 0.642, 0.6507, 0.7656}, f16_shared[] = {0.6429, 1.045, 0.8611, 1.119},
                    coded_step[] = {0.3684, 0.4458, 0.454, 0.4889}, coded_fewer[] = {0.39, 0.5713, 0.5816, 0.5699},
                    coded_shared[] = {0.4358, 0.5637, 0.5664, 0.5754};
/* What a tile takes besides, and of that what is left where an 8B block begins the next one meanwhile. */
static const double f16_begin = 3.301, f16_row = 0.691, f16_shared_begin = 2.689, f16_teams_begin = 3.622;
static const double coded_begin = 1.493, coded_row = 0.7114, coded_masked = 0.677, coded_walks = 0.8379,
                    coded_shared_begin = 1.138, coded_shared_row = 0.9664;
/* A team's time where the other has no tile; steps of what shares where few multiprocessors are busy, of all else. */
static const double team_alone = 0.938, few_busy_shared = 0.8511, few_busy = 0.86, few_busy_coded = 0.9585;
static const double walks_meet = 0.9848; /* blocks that walk run apart, and so meet less at memory */
static const double launch_us = 2.237, memory_rate = 3.779e6, first_memory_us = 4.105;

enum { H200 = 132 };

static uint32_t dim_index(uint32_t dim)
{
    return dim <= 64 ? 0 : dim <= 80 ? 1 : dim <= 96 ? 2 : 3;
}

/* The tiles of a plan's attention kernel: their rows, how many warpgroups share them, the keys of one of their steps. */
typedef struct model {
    const tandem_attention *op;
    bool smooth;
    uint32_t multiprocessors, rows, row_tiles;
    uint64_t planes, tiles;
    double begin, step, keys, empty;
} model;

static double tile_us(const model *m, uint64_t tile)
{
    const tandem_attention *op = m->op;
    const double end = fmin(((double)tile + 1) * m->rows, op->q_len);
    const double keys = op->causal ? fmin(op->kv_len, end + op->kv_len - op->q_len) : op->kv_len;

    return keys > 0 ? m->begin + m->step * ceil(keys / m->keys) * m->keys / 128 : m->empty;
}

/* When the last of the jobs ends, each being taken by the multiprocessor that is the first to be done. */
static double last_end(const model *m, const double *jobs, uint64_t count)
{
    double *ends = calloc(m->multiprocessors, sizeof *ends), last = 0, sum = 0, longest = 0; /* a heap */

    for (uint64_t i = 0; ends && i < count; i++) {
        const double end = ends[0] + jobs[i];
        uint32_t at = 0;

        for (uint32_t child = 1; child < m->multiprocessors; child = 2 * at + 1) {
            child += child + 1 < m->multiprocessors && ends[child + 1] < ends[child];
            if (ends[child] >= end)
                break;
            ends[at] = ends[child];
            at = child;
        }
        ends[at] = end;
        last = fmax(last, end);
        sum += jobs[i];
        longest = fmax(longest, jobs[i]);
    }
    free(ends);
    return m->smooth ? fmax(longest, sum / m->multiprocessors) : last;
}

/* F16's blocks of a tile whose warpgroups share its keys: with a mask the longest of all heads first. */
static void shared_f16(const model *m, double *jobs)
{
    for (uint64_t work = 0; work < m->tiles; work++)
        jobs[work] = tile_us(m, m->op->causal ? m->row_tiles - 1 - work / m->planes : work % m->row_tiles);
}

/* F16's blocks that walk, each of one or two teams: f16_next() and f16_row_tile(). */
static void walking_f16(const model *m, const td_params_attention_f16 *p, double *jobs)
{
    const uint64_t grid = p->blocks / p->walkers;

    for (uint64_t x = 0; x < grid; x++) {
        double team[2] = {0};

        for (uint64_t t = 0; t < p->walkers; t++)
            for (uint64_t work = (x + t * grid) * p->pair; work < m->tiles;) {
                const uint64_t i = work % m->row_tiles;
                const bool paired = p->pair == 2;

                team[t] += tile_us(m, !m->op->causal         ? i
                                      : paired && i % 2      ? i / 2
                                      : paired               ? m->row_tiles - 1 - i / 2
                                                             : m->row_tiles - 1 - i);
                work += !paired ? p->blocks : work % 2 ? 2 * (uint64_t)p->blocks - 1 : 1;
            }
        jobs[x] = p->walkers == 1 ? team[0] : fmin(team[0], team[1]) + fabs(team[0] - team[1]) * team_alone;
    }
}

/* The tile of a number in the order of 8B's blocks that walk: walk_tile(), and split_row_tile() where warpgroups share. */
static uint64_t walked_tile(const model *m, const td_params_attention *p, uint64_t number)
{
    if (!m->op->causal)
        return number % m->row_tiles;
    if (p->splits > 1)
        return m->row_tiles - 1 - number / m->planes;
    const uint64_t each = p->chunk_planes, chunk = number / (each * m->row_tiles), first = chunk * each;
    const uint64_t here = m->planes - first < each ? m->planes - first : each, chunks = (m->planes + each - 1) / each;
    const uint64_t whole = (number - first * m->row_tiles) / here;

    return (chunks - chunk) % 2 ? m->row_tiles - 1 - whole : whole;
}

static uint64_t coded_jobs(const model *m, const td_params_attention *p, double *jobs)
{
    if (!p->walkers) { /* a block a tile; of a head the longest first, or of all heads where warpgroups share */
        for (uint64_t i = 0; i < m->tiles; i++)
            jobs[i] = tile_us(m, p->splits > 1 ? walked_tile(m, p, i)
                                 : m->op->causal ? m->row_tiles - 1 - i % m->row_tiles
                                                 : i % m->row_tiles);
        return m->tiles;
    }
    for (uint64_t x = 0; x < p->walkers; x++) {
        jobs[x] = 0;
        for (uint64_t n = 0;; n++) {
            const bool back = n % 2 && (m->op->causal || p->splits > 1);
            const uint64_t number = n * p->walkers + (back ? p->walkers - 1 - x : x);

            if (number >= m->tiles)
                break;
            jobs[x] += tile_us(m, walked_tile(m, p, number));
        }
    }
    return p->walkers;
}

static model new_model(const gpu_model *gpu, const tandem_attention *op, uint32_t rows, double code_bytes)
{
    model m = {.op = op,
               .smooth = gpu->smooth,
               .multiprocessors = gpu->multiprocessors ? gpu->multiprocessors : H200,
               .rows = rows,
               .row_tiles = (op->q_len + rows - 1) / rows,
               .planes = (uint64_t)op->batch * op->heads,
               .keys = 128};

    m.tiles = m.planes * m.row_tiles;
    m.empty = 0.8 + (code_bytes + 2) * rows * op->head_dim / (memory_rate / m.multiprocessors);
    return m;
}

static double *new_jobs(uint64_t count)
{
    double *jobs = calloc(count, sizeof *jobs);

    if (!jobs)
        abort();
    return jobs;
}

static double f16_us(const gpu_model *gpu, const tandem_attention *op, const td_record *record)
{
    td_params_attention_f16 p;

    memcpy(&p, record->params, sizeof p);
    model m = new_model(gpu, op, p.tile_rows, 2);
    double *jobs = new_jobs(m.tiles + p.blocks), us;
    const double rows = p.tile_rows / 64.0, busy = fmin(1, (double)m.tiles / p.walkers / m.multiprocessors);
    const uint32_t i = dim_index(op->head_dim);

    if (p.teams > 1) {
        m.begin = f16_shared_begin + rows * f16_row;
        m.step = rows * (p.teams == 4 ? f16_shared[i] * (few_busy_shared + (1 - few_busy_shared) * busy)
                                      : 0.9577 * f16_step[i] * (few_busy + (1 - few_busy) * busy));
        m.keys = p.step_keys * p.teams;
        shared_f16(&m, jobs);
        us = last_end(&m, jobs, m.tiles);
    } else {
        m.begin = p.walkers > 1 ? f16_teams_begin : f16_begin + rows * f16_row;
        m.step = rows * p.walkers * f16_step[i] * (few_busy + (1 - few_busy) * busy);
        m.empty += (p.walkers - 1) * (m.empty - 0.8);
        walking_f16(&m, &p, jobs);
        us = last_end(&m, jobs, p.blocks / p.walkers);
    }
    free(jobs);
    return us;
}

static double coded_us(const gpu_model *gpu, const tandem_attention *op, const td_record *record)
{
    td_params_attention p;

    memcpy(&p, record->params, sizeof p);
    model m = new_model(gpu, op, p.tile_rows, 1);
    double *jobs = new_jobs(m.tiles + p.walkers);
    const double rows = p.tile_rows / 64.0, masked = op->causal || op->kv_len % 128 ? rows * coded_masked : 0;
    const bool most = record->block[0] == TD_HOPPER_THREADS(TD_HOPPER_GROUPS(op->head_dim)), shares = p.splits > 1;
    const double *step = shares ? coded_shared : most ? coded_step : coded_fewer;

    m.step = rows * step[dim_index(op->head_dim)] *
             (few_busy_coded + (1 - few_busy_coded) * fmin(1, (double)m.tiles / m.multiprocessors));
    m.begin = (shares ? coded_shared_begin + rows * coded_shared_row : coded_begin + rows * coded_row) + masked;
    if (shares)
        m.keys = 128.0 * p.splits;
    else if (p.walkers)
        m.begin *= coded_walks;
    const double us = last_end(&m, jobs, coded_jobs(&m, &p, jobs)) * (p.walkers ? walks_meet : 1);
    free(jobs);
    return us;
}

static double random_part(uint64_t state)
{
    for (int i = 0; i < 2; i++)
        state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

double gpu_model_kernel_us(const gpu_model *gpu, const tandem_attention *op, bool coded)
{
    static td_plan plan;
    td_target target = td_target_for_stream(90);
    tandem_attention asked = *op;
    char why[200] = "";

    asked.precision = coded ? TANDEM_PRECISION_8B : TANDEM_PRECISION_F16;
    target.twin = true;
    target.multiprocessors = gpu->planned_for ? gpu->planned_for : gpu->multiprocessors ? gpu->multiprocessors : H200;
    if (td_plan_attention(&asked, &target, &plan, NULL, why, sizeof why) != TANDEM_OK) {
        fprintf(stderr, "tests/kernels/gpu_model.c: %s\n", why);
        abort();
    }
    const td_record *record = &plan.records[plan.record_count - 1];
    const double us = (coded ? coded_us : f16_us)(gpu, &asked, record);
    const double rows = 2.0 * op->batch * op->heads * op->q_len, keys = 2.0 * op->batch * op->kv_heads * op->kv_len;
    const double memory = (rows * 2 + keys * (coded ? 1 : 2)) * op->head_dim / memory_rate;
    const uint64_t seed = ((op->batch * 31u + op->heads) * 31u + op->q_len) * 31u + op->kv_len + coded * 17u + op->causal;

    return (launch_us + fmax(memory + fmin(memory, first_memory_us), us)) * (1 + gpu->noise * (2 * random_part(seed) - 1));
}

/* Clusters of one head, as many as sixteen multiprocessors hold; without them K and V are looked at twice. */
double gpu_model_prologue_us(const tandem_attention *op)
{
    static const double rate[] = {3.393, 2.357, 2.531, 3.228}, long_rate[] = {2.5, 2.32, 2.5, 3.136};
    const td_target target = td_target_for_stream(90);
    const td_tiles t = td_attention_tiles(op, &target, TANDEM_PRECISION_8B);
    const uint32_t d = op->head_dim, bytes = 2 * d + (d == 80 ? 96 : d), i = dim_index(d);
    const double q = (double)op->batch * op->heads * op->q_len, kv = 2.0 * op->batch * op->kv_heads * op->kv_len;

    if (!t.cluster)
        return 11.16 + (0.636 * q + kv) * bytes / long_rate[i] / 1e6;
    const uint32_t places = 16 * 1024 / t.cluster_threads, used = places / t.cluster * t.cluster;
    return 1.92 + 0.0103 * d + (q + kv) * bytes / rate[i] / 1e6 * (0.3 + 0.7 * places / used);
}
