/* `tandem probe fp22`: how the tensor cores of the GPU at hand round when they add, beside the twin's models of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine_plugin/exec/exec.h"
#include "engine_plugin/tool/tool.h"
#include "kernels/cpu/cpu.h"
#include "kernels/probe.h"

enum { LIMIT_MS = 60000, DEFAULT_TILES = 4096 };

/* clang-format off */
const char *const tool_probe_help =
    "usage: tandem probe fp22 [--json F] [--backend auto|cuda|cpu] [--tiles N] [--seed N]\n"
    "\n"
    "How many bits the tensor cores of this GPU keep when they add up: the paper found that those for FP8\n"
    "have sums of 22 bits (1 sign, 8 exponent, 13 mantissa) where float32 has 32. Three experiments on each\n"
    "unit: which mantissa bits of C survive D = A B + C with A = B = 0; from which C on products beside it\n"
    "are lost; and random tiles, whose D must be bit for bit that of the twin, the CPU's model of the unit.\n"
    "Without a GPU the models are shown alone, and it says so.\n"
    "\n"
    "  --json F     everything as JSON\n"
    "  --backend auto|cuda|cpu\n"
    "               auto (default): the GPU where there is one; cuda: an error where there is none; cpu: the\n"
    "               models alone\n"
    "  --tiles N    random tiles for each unit, 1 to 1048576; default 4096\n"
    "  --seed N     of the random tiles; default 1\n"
    "\n"
    "exit status: 1, too, if a unit that the GPU has did not run, or differs from the twin's model.\n";
/* clang-format on */

typedef struct gpu_side {
    td_cu_device *device;
    td_stream *stream;
    td_cubin const *cubin;
    char why[512]; /* why there is none */
} gpu_side;

/* A unit, and what came of the three experiments on it. */
typedef struct finding {
    uint32_t unit, sm; /* sm: of the GPU, or of the one that the model imitates */
    bool ran, measured, absent; /* absent: the GPU has no such unit */
    char why[256];                         /* it is not there */
    uint32_t kept;                         /* leading mantissa bits of C that survive with A = B = 0 */
    char bits[TD_PROBE_MANTISSA_BITS + 1]; /* '1': survives */
    float all_ones;                        /* what becomes of 1.111...1 */
    int one_seen, all_seen;                /* the largest n at which one, or k, products of 1 change C = 2^n, or -1 */
    float halves[TD_PROBE_POWERS], minus[TD_PROBE_POWERS]; /* D - C */
    uint64_t elements, unequal;
    uint32_t first[4]; /* of the first unequal element: tile, element, bits from the GPU, bits of the model */
} finding;

typedef struct arrays {
    void *at[TD_PROBE_VIEWS];
    float *model;
} arrays;

static const uint64_t tile_bytes[TD_PROBE_VIEWS] = {TD_PROBE_A_BYTES, TD_PROBE_B_BYTES,
                                                    TD_PROBE_ELEMENTS * sizeof(float),
                                                    TD_PROBE_ELEMENTS * sizeof(float)};

static bool make_arrays(arrays *it, uint32_t tiles)
{
    bool all = true;
    for (int i = 0; i < TD_PROBE_VIEWS; i++) {
        it->at[i] = calloc(tiles, tile_bytes[i]);
        all = all && it->at[i];
    }
    it->model = calloc(tiles, tile_bytes[TD_PROBE_D]);
    return all && it->model;
}

static void free_arrays(arrays *it)
{
    for (int i = 0; i < TD_PROBE_VIEWS; i++)
        free(it->at[i]);
    free(it->model);
}

static bool run_model(uint32_t unit, uint32_t tiles, uint32_t sm, const arrays *it, float *d, char *why,
                      size_t why_bytes)
{
    static td_plan plan;
    td_target target = td_target_for_sm(sm);
    target.twin = true;
    const tandem_status status = td_plan_probe(unit, tiles, &target, &plan, why, why_bytes);
    const uint64_t views[TD_PROBE_VIEWS] = {(uintptr_t)it->at[0], (uintptr_t)it->at[1], (uintptr_t)it->at[2],
                                            (uintptr_t)d};
    return status == TANDEM_OK && td_exec_cpu_run(&plan, views, 0, 4, NULL) == TANDEM_OK;
}

static tandem_status run_gpu(gpu_side *gpu, uint32_t unit, uint32_t tiles, const arrays *it, char *why, size_t why_bytes)
{
    static td_plan plan;
    const td_target target = td_exec_target(td_cu_device_info(gpu->device), false);
    td_cu_mem mems[TD_PROBE_VIEWS] = {{0}};
    uint64_t views[TD_PROBE_VIEWS], sequence = 0;
    bool signalled;
    tandem_status status = td_plan_probe(unit, tiles, &target, &plan, why, why_bytes);
    for (int i = 0; status == TANDEM_OK && i < TD_PROBE_VIEWS; i++) {
        status = td_cu_mem_alloc(gpu->device, tiles * tile_bytes[i], &mems[i], why, why_bytes);
        if (status == TANDEM_OK)
            status = td_cu_copy_to_device(gpu->device, mems[i].address, it->at[i], tiles * tile_bytes[i]);
        views[i] = mems[i].address;
    }
    const td_stream_submit submit = {.plan = &plan, .views = views, .label = "probe"};
    if (status == TANDEM_OK)
        status = td_stream_enqueue(gpu->stream, &submit, &sequence, &signalled, why, why_bytes);
    const uint64_t begin = td_now_ns();
    while (status == TANDEM_OK && td_stream_completed(gpu->stream) < sequence) {
        status = td_stream_status(gpu->stream, why, why_bytes);
        if (status == TANDEM_OK && td_now_ns() - begin > LIMIT_MS * UINT64_C(1000000))
            status = td_fail(why, why_bytes, TANDEM_ERROR_BUSY, "the GPU has not finished after %d s", LIMIT_MS / 1000);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    if (status == TANDEM_OK)
        status = td_cu_copy_to_host(gpu->device, it->at[TD_PROBE_D], mems[TD_PROBE_D].address,
                                    tiles * tile_bytes[TD_PROBE_D]);
    if (status != TANDEM_ERROR_BUSY)
        for (int i = 0; i < TD_PROBE_VIEWS; i++)
            td_cu_mem_free(gpu->device, &mems[i]);
    return status;
}

/* D of the tiles in `it`, measured or modelled. */
static bool run_unit(finding *f, gpu_side *gpu, uint32_t tiles, arrays *it)
{
    f->why[0] = 0;
    if (gpu) {
        const tandem_status status = run_gpu(gpu, f->unit, tiles, it, f->why, sizeof f->why);
        f->ran = status == TANDEM_OK;
        f->absent = status == TANDEM_ERROR_UNSUPPORTED;
    } else
        f->ran = run_model(f->unit, tiles, f->sm, it, it->at[TD_PROBE_D], f->why, sizeof f->why);
    return f->ran;
}

/* C alone, then products beside ever larger C. */
static void small_experiments(finding *f, gpu_side *gpu, arrays *it)
{
    const float *c = it->at[TD_PROBE_C], *d = it->at[TD_PROBE_D];
    td_probe_fill_bits(it->at[0], it->at[1], it->at[2]);
    if (!run_unit(f, gpu, 1, it))
        return;
    for (uint32_t i = 0; i < TD_PROBE_MANTISSA_BITS; i++)
        f->bits[i] = d[i] == c[i] ? '1' : '0';
    f->kept = (uint32_t)strspn(f->bits, "1");
    f->all_ones = d[TD_PROBE_MANTISSA_BITS];

    td_probe_fill_powers(f->unit, it->at[0], it->at[1], it->at[2]);
    if (!run_unit(f, gpu, TD_PROBE_POWERS, it))
        return;
    f->one_seen = f->all_seen = -1;
    for (int n = 0; n < TD_PROBE_POWERS; n++) {
        const float *tile = d + n * TD_PROBE_ELEMENTS, power = c[n * TD_PROBE_ELEMENTS];
        if (!isfinite(tile[0])) /* more than fp16 holds */
            break;
        if (tile[TD_PROBE_ROW_ONE * TD_PROBE_COLUMNS] != power)
            f->one_seen = n;
        if (tile[TD_PROBE_ROW_ALL * TD_PROBE_COLUMNS] != power)
            f->all_seen = n;
        f->halves[n] = tile[TD_PROBE_ROW_HALVES * TD_PROBE_COLUMNS] - power;
        f->minus[n] = tile[TD_PROBE_ROW_MINUS * TD_PROBE_COLUMNS] - power;
    }
}

static void random_experiment(finding *f, gpu_side *gpu, uint32_t tiles, uint64_t seed, arrays *it)
{
    td_probe_fill_random(f->unit, tiles, seed, it->at[0], it->at[1], it->at[2]);
    if (!run_unit(f, gpu, tiles, it))
        return;
    f->elements = (uint64_t)tiles * TD_PROBE_ELEMENTS;
    if (!gpu)
        return;
    f->ran = run_model(f->unit, tiles, f->sm, it, it->model, f->why, sizeof f->why);
    const float *d = it->at[TD_PROBE_D];
    for (uint64_t i = 0; f->ran && i < f->elements; i++)
        if (td_bits(d[i]) != td_bits(it->model[i]) && f->unequal++ == 0) {
            f->first[0] = (uint32_t)(i / TD_PROBE_ELEMENTS);
            f->first[1] = (uint32_t)(i % TD_PROBE_ELEMENTS);
            f->first[2] = td_bits(d[i]);
            f->first[3] = td_bits(it->model[i]);
        }
}

static bool truncates(const finding *f)
{
    const uint32_t lost = TD_PROBE_MANTISSA_BITS - f->kept;
    return td_bits(f->all_ones) == (0x3fffffffu >> lost << lost);
}

/* 1 sign, 8 exponent and 13 mantissa bits; what is below is cut off before anything is added up. */
static bool is_fp22(const finding *f)
{
    return f->ran && f->kept == 13 && truncates(f) && f->one_seen == 13 && f->all_seen == 13;
}

static const char *remark(const finding *f)
{
    if (f->unit == TD_PROBE_MMA_F16)
        return "for comparison: not an FP8 unit";
    if (f->unit == TD_PROBE_MMA_E4M3 && f->sm == 90)
        return "on sm_90 this instruction is carried out as FP16: e4m3 becomes fp16, two HMMA multiply, a float32 add "
               "follows. It says nothing about the FP8 tensor cores, which wgmma uses";
    if (f->unit == TD_PROBE_WGMMA_E4M3)
        return "the FP8 tensor cores of Hopper, which the paper measured";
    if (f->unit == TD_PROBE_WGMMA_E4M3_F16)
        return "the same with sums in fp16, as attn_8b_wgmma has them: rounded to nearest";
    return f->sm == 89 ? "the FP8 tensor cores of Ada, which the paper measured" : "FP8 tensor cores";
}

static void text_finding(const finding *f)
{
    printf("\n%s on sm_%u - %s\n", td_probe_name(f->unit), f->sm,
           f->measured ? "measured on this GPU" : "the twin's model, nothing measured");
    if (!f->ran) {
        printf("  not run: %s\n", f->why);
        return;
    }
    const uint32_t k = td_probe_k(f->unit);
    printf("  %s\n", remark(f));
    printf("  C alone (A, B = 0)    mantissa bits that survive: %s, the first %u of %d\n", f->bits, f->kept,
           TD_PROBE_MANTISSA_BITS);
    if (f->kept < TD_PROBE_MANTISSA_BITS)
        printf("                        all 23 set: 0x3fffffff becomes 0x%08x, the low %u are %s\n",
               td_bits(f->all_ones), TD_PROBE_MANTISSA_BITS - f->kept, truncates(f) ? "cut off" : "not simply cut off");
    printf("  products beside C     C = 2^n + one product of 1:  seen up to n = %d\n", f->one_seen);
    printf("                        C = 2^n + %u products of 1:  seen up to n = %d; %s\n", k, f->all_seen,
           f->all_seen <= f->one_seen ? "each is cut off by itself, before they are added up"
                                      : "they are added up before any is cut off");
    if (f->one_seen >= 0 && f->one_seen + 1 < TD_PROBE_POWERS)
        printf("                        2^%d + 1.5 adds %g; 2^%d - 1 adds %g\n", f->one_seen,
               (double)f->halves[f->one_seen], f->one_seen + 1, (double)f->minus[f->one_seen + 1]);
    if (!f->measured) {
        printf("  random tiles          %" PRIu64 " elements by the model; there is no GPU to compare them with\n",
               f->elements);
        return;
    }
    printf("  random tiles          %" PRIu64 " elements against the twin's model, bit by bit: %" PRIu64
           " equal, %" PRIu64 " unequal\n",
           f->elements, f->elements - f->unequal, f->unequal);
    if (f->unequal)
        printf("                        the first: tile %u, element %u is 0x%08x, the model's 0x%08x\n", f->first[0],
               f->first[1], f->first[2], f->first[3]);
}

static const char *conclusion(const finding *findings, uint32_t count, char *text, size_t text_bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        const finding *f = &findings[i];
        if (!f->measured || !f->ran || f->unit == TD_PROBE_MMA_F16 || f->unit == TD_PROBE_WGMMA_E4M3_F16 ||
            (f->unit == TD_PROBE_MMA_E4M3 && f->sm == 90))
            continue;
        if (is_fp22(f))
            snprintf(text, text_bytes,
                     "FP8 tensor cores (%s, sm_%u): FP22 as the paper says, 1 sign, 8 exponent and 13 mantissa bits; "
                     "small products beside a large C are cut off, too",
                     td_probe_name(f->unit), f->sm);
        else
            snprintf(text, text_bytes,
                     "FP8 tensor cores (%s, sm_%u): not the paper's FP22; %u mantissa bits of C survive",
                     td_probe_name(f->unit), f->sm, f->kept);
        return text;
    }
    snprintf(text, text_bytes, "no FP8 tensor core was measured");
    return text;
}

/* Whether every unit that the GPU has ran, and added up as the twin's model of it does, bit by bit. */
static bool all_as_modelled(const finding *findings, uint32_t count, char *why, size_t why_bytes)
{
    for (uint32_t i = 0; i < count; i++) {
        const finding *f = &findings[i];
        if (!f->ran && !f->absent)
            td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "%s was not run: %s", td_probe_name(f->unit), f->why);
        else if (f->ran && f->unequal)
            td_fail(why, why_bytes, TANDEM_ERROR_DEVICE, "%s differs from the twin's model in %" PRIu64 " of %" PRIu64
                    " elements", td_probe_name(f->unit), f->unequal, f->elements);
        else
            continue;
        return false;
    }
    return true;
}

static bool write_json(const char *path, const gpu_side *gpu, const finding *findings, uint32_t count,
                       const char *verdict, char *why, size_t why_bytes)
{
    json_t *root = json_object(), *units = json_array();
    json_object_set_new(root, "probe", json_string("fp22"));
    if (gpu->device) {
        const td_cu_info *info = td_cu_device_info(gpu->device);
        char image[32];
        snprintf(image, sizeof image, gpu->cubin->ptx ? "PTX compute_%u" : "sm_%u", gpu->cubin->sm);
        json_object_set_new(root, "gpu",
                            json_pack("{s:s, s:i, s:i, s:s}", "device", info->name, "sm", (int)info->sm,
                                      "driver_version", (int)info->driver_version, "kernels", image));
    } else {
        json_object_set_new(root, "gpu", json_null());
        json_object_set_new(root, "reason", json_string(gpu->why));
    }
    for (uint32_t i = 0; i < count; i++) {
        const finding *f = &findings[i];
        json_t *unit = json_pack("{s:s, s:i, s:s, s:b, s:s}", "unit", td_probe_name(f->unit), "sm", (int)f->sm,
                                 "source", f->measured ? "gpu" : "model", "ran", f->ran, "remark",
                                 f->ran ? remark(f) : f->why);
        if (f->ran) {
            char ones[16];
            snprintf(ones, sizeof ones, "0x%08x", td_bits(f->all_ones));
            json_object_update_new(
                unit, json_pack("{s:i, s:s, s:s, s:b, s:i, s:i, s:i, s:b}", "mantissa_bits_kept", (int)f->kept, "bits",
                                f->bits, "all_ones", ones, "truncates", truncates(f), "products",
                                (int)td_probe_k(f->unit), "one_product_seen_up_to", f->one_seen,
                                "all_products_seen_up_to", f->all_seen, "is_fp22", is_fp22(f)));
        }
        if (f->ran && f->measured)
            json_object_update_new(unit, json_pack("{s:I, s:I, s:I}", "elements", (json_int_t)f->elements, "equal",
                                                   (json_int_t)(f->elements - f->unequal), "unequal",
                                                   (json_int_t)f->unequal));
        json_array_append_new(units, unit);
    }
    json_object_set_new(root, "units", units);
    json_object_set_new(root, "conclusion", json_string(verdict));
    errno = 0;
    const bool done = json_dump_file(root, path, JSON_INDENT(1)) == 0;
    if (!done)
        snprintf(why, why_bytes, "--json \"%s\": %s", path, errno ? strerror(errno) : "cannot be written");
    json_decref(root);
    return done;
}

static bool open_gpu(gpu_side *gpu)
{
    const td_log quiet = {0};
    if (td_cu_device_open(NULL, &quiet, &gpu->device, gpu->why, sizeof gpu->why) != TANDEM_OK)
        return false;
    gpu->cubin = td_cubin_for_sm(td_cu_device_info(gpu->device)->sm, gpu->why, sizeof gpu->why);
    if (!gpu->cubin ||
        td_stream_create(gpu->device, &quiet, &gpu->stream, gpu->why, sizeof gpu->why) != TANDEM_OK) {
        td_cu_device_close(&gpu->device);
        return false;
    }
    return true;
}

static int probe(bool cuda, bool cpu, uint32_t tiles, uint64_t seed, const char *json)
{
    static const finding models[] = {{.unit = TD_PROBE_WGMMA_E4M3, .sm = 90},
                                     {.unit = TD_PROBE_WGMMA_E4M3_F16, .sm = 90},
                                     {.unit = TD_PROBE_MMA_E4M3, .sm = 89},
                                     {.unit = TD_PROBE_MMA_E4M3, .sm = 90},
                                     {.unit = TD_PROBE_MMA_E4M3, .sm = 120},
                                     {.unit = TD_PROBE_MMA_F16, .sm = 90}};
    finding findings[sizeof models / sizeof *models];
    const uint32_t room = tiles > TD_PROBE_POWERS ? tiles : TD_PROBE_POWERS;
    uint32_t count = 0;
    gpu_side gpu = {.why = "--backend cpu was asked for"};
    arrays it = {.model = NULL};
    char why[512] = "", verdict[256];
    int status = TOOL_OK;
    const bool measured = !cpu && open_gpu(&gpu);
    if (!measured && cuda)
        return tool_fail("probe", "%s", gpu.why);
    if (!make_arrays(&it, room)) {
        status = tool_fail("probe", "out of memory");
        goto done;
    }
    if (measured) {
        const uint32_t sm = td_cu_device_info(gpu.device)->sm;
        for (uint32_t unit = 0; unit < TD_PROBE_UNITS; unit++)
            findings[count++] = (finding){.unit = unit, .sm = sm, .measured = true};
        printf("%s, sm_%u, kernels %s_%u\n", td_cu_device_info(gpu.device)->name, sm,
               gpu.cubin->ptx ? "of PTX compute" : "sm", gpu.cubin->sm);
    } else {
        memcpy(findings, models, sizeof models);
        count = sizeof models / sizeof *models;
        printf("no GPU: %s\nWhat follows are the twin's models of the units alone; nothing was measured.\n", gpu.why);
    }
    for (uint32_t i = 0; i < count; i++) {
        small_experiments(&findings[i], measured ? &gpu : NULL, &it);
        if (findings[i].ran)
            random_experiment(&findings[i], measured ? &gpu : NULL, tiles, seed, &it);
        text_finding(&findings[i]);
    }
    conclusion(findings, count, verdict, sizeof verdict);
    printf("\n%s\n", verdict);
    if (measured && !all_as_modelled(findings, count, why, sizeof why))
        status = tool_fail("probe", "%s", why);
    if (json && !write_json(json, &gpu, findings, count, verdict, why, sizeof why))
        status = tool_fail("probe", "%s", why);
done:
    free_arrays(&it);
    td_stream_destroy(&gpu.stream, 1000000000u);
    td_cu_device_close(&gpu.device);
    return status;
}

int tool_probe(int argc, char **argv)
{
    static const char *const backends[] = {"auto", "cuda", "cpu", NULL};
    const char *json = NULL, *backend = NULL, *tiles_text = NULL, *seed_text = NULL;
    const tool_option options[] = {{"--json", &json, NULL},
                                   {"--backend", &backend, NULL},
                                   {"--tiles", &tiles_text, NULL},
                                   {"--seed", &seed_text, NULL}};
    uint64_t tiles = DEFAULT_TILES, seed = 1;
    if (argc < 1)
        return tool_usage("probe", "what to probe is missing; there is: fp22");
    if (strcmp(argv[0], "fp22") != 0)
        return tool_usage("probe", "\"%s\" cannot be probed; there is: fp22", argv[0]);
    if (tool_parse("probe", argc - 1, argv + 1, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    const int which = backend ? tool_word(backend, backends) : 0;
    if (which < 0)
        return tool_usage("probe", "--backend \"%s\" is none of auto, cuda, cpu", backend);
    if (tiles_text && !tool_number(tiles_text, 1, TD_PROBE_MOST_TILES, &tiles))
        return tool_usage("probe", "--tiles \"%s\" is not a number from 1 to %d", tiles_text, TD_PROBE_MOST_TILES);
    if (seed_text && !tool_number(seed_text, 0, UINT64_MAX, &seed))
        return tool_usage("probe", "--seed \"%s\" is not a number from 0 to 2^64 - 1", seed_text);
    char why[400] = "";
    if (json && !tool_can_write("--json", json, why, sizeof why))
        return tool_fail("probe", "%s", why);
    return probe(which == 1, which == 2, (uint32_t)tiles, seed, json);
}
