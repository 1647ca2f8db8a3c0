/* `tandem sample-qkv`: a first q, k and v for `tandem attend`.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine_plugin/tool/samples.h"
#include "interop/base.h"
#include "kernels/attention/cpu.h"
#include "tandem/tandem.h"

/* clang-format off */
const char *const tool_sample_qkv_help =
    "usage: tandem sample-qkv --out F.safetensors [options]\n"
    "\n"
    "Writes random q, k and v, each [batch, heads, n, d], as a first input for `tandem attend`:\n"
    "  tandem sample-qkv --out qkv.safetensors\n"
    "  tandem attend --in qkv.safetensors --out o.safetensors --precision 8b\n"
    "\n"
    "  --out F          where they go: written under a temporary name, then renamed\n"
    "  --kind normal|outliers|video\n"
    "                   normal (default): N(0,1). outliers: some channels of q and k far from 0 for all\n"
    "                   tokens, which is what smoothing is for. video: as most tables of `tandem accuracy`\n"
    "  --batch N        1 to 1024; default 1\n"
    "  --heads N        1 to 1024; default 8\n"
    "  --n N            rows of q, k and v, 1 to 1048576; default 1024\n"
    "  --d 32|40|48|64|72|80|96|112|128|160|192|256\n"
    "                   head dim; default 64\n"
    "  --dtype F16|BF16|F32\n"
    "                   default F16; the values are the same, rounded to fp16 before\n"
    "  --seed N         the same seed gives the same file; default 1\n";
/* clang-format on */

#define MOST_BYTES (UINT64_C(4) << 30) /* of a tensor */

typedef struct sample {
    const char *out, *kind, *dtype;
    const tool_family *family;
    uint64_t batch, heads, n, d, seed;
} sample;

static int read_number(const char *option, const char *text, uint64_t most, uint64_t *out)
{
    if (text && !tool_number(text, 1, most, out))
        return tool_usage("sample-qkv", "%s \"%s\": must be a number from 1 to %llu", option, text,
                          (unsigned long long)most);
    return TOOL_OK;
}

static int read_arguments(int argc, char **argv, sample *s)
{
    static const char *const kinds[] = {"normal", "outliers", "video", NULL};
    static const tool_family *const families[] = {&tool_family_normal, &tool_family_outlier,
                                                  &tool_family_video};
    static const char *const dtypes[] = {"F16", "BF16", "F32", NULL};
    static const char *const dims[] = {"32",  "40",  "48",  "64",  "72",  "80", "96",
                                       "112", "128", "160", "192", "256", NULL};
    const char *batch = NULL, *heads = NULL, *n = NULL, *d = "64", *seed = NULL;
    const tool_option options[] = {
        {"--out", &s->out, NULL},     {"--kind", &s->kind, NULL}, {"--batch", &batch, NULL},
        {"--heads", &heads, NULL},    {"--n", &n, NULL},          {"--d", &d, NULL},
        {"--dtype", &s->dtype, NULL}, {"--seed", &seed, NULL}};
    if (tool_parse("sample-qkv", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (!s->out)
        return tool_usage("sample-qkv", "--out is missing; `tandem help sample-qkv` explains it");
    const int kind = tool_word(s->kind, kinds);
    if (kind < 0)
        return tool_usage("sample-qkv", "--kind \"%s\" is none of normal, outliers, video",
                          s->kind);
    s->family = families[kind];
    const char *dtype = NULL;
    for (int i = 0; dtypes[i]; i++)
        if (!strcasecmp(s->dtype, dtypes[i]))
            dtype = dtypes[i];
    if (!dtype)
        return tool_usage("sample-qkv", "--dtype \"%s\" is none of F16, BF16, F32", s->dtype);
    s->dtype = dtype;
    if (tool_word(d, dims) < 0)
        return tool_usage("sample-qkv", "--d \"%s\" is none of 32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256", d);
    tool_number(d, 1, TD_MAX_DIM, &s->d);
    if (seed && !tool_number(seed, 0, UINT32_MAX, &s->seed))
        return tool_usage("sample-qkv", "--seed \"%s\": must be a number from 0 to %u", seed,
                          UINT32_MAX);
    if (read_number("--batch", batch, 1024, &s->batch) ||
        read_number("--heads", heads, 1024, &s->heads) || read_number("--n", n, 1 << 20, &s->n))
        return TOOL_USAGE;
    const uint64_t bytes = s->batch * s->heads * s->n * s->d * (strcmp(s->dtype, "F32") ? 2 : 4);
    if (bytes > MOST_BYTES)
        return tool_usage(
            "sample-qkv",
            "--batch %llu --heads %llu --n %llu --d %s: %llu bytes a tensor, at most %llu",
            (unsigned long long)s->batch, (unsigned long long)s->heads, (unsigned long long)s->n, d,
            (unsigned long long)bytes, (unsigned long long)MOST_BYTES);
    return TOOL_OK;
}

/* Values of one head, in the dtype of the file. */
static void put(const sample *s, void *tensor, uint64_t head, const float *values)
{
    const uint64_t count = s->n * s->d, first = head * count;
    for (uint64_t i = 0; i < count; i++)
        if (!strcmp(s->dtype, "F32"))
            ((float *)tensor)[first + i] = values[i];
        else
            ((uint16_t *)tensor)[first + i] =
                !strcmp(s->dtype, "F16") ? td_to_f16(values[i]) : td_to_bf16(values[i]);
}

static bool make(const sample *s, tool_list *list, char *why, size_t why_bytes)
{
    static const char *const names[] = {"q", "k", "v"};
    void *tensors[3];
    for (int i = 0; i < 3; i++)
        if (!(tensors[i] = tool_add(list, names[i], s->dtype, 4, s->batch, s->heads, s->n, s->d))) {
            td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "out of memory");
            return false;
        }
    for (uint64_t head = 0; head < s->batch * s->heads; head++) {
        tool_samples one = {0};
        const bool made = tool_samples_make(&one, s->family, 1, 1, (uint32_t)s->n, (uint32_t)s->n,
                                            (uint32_t)s->d, (s->seed << 20) + head, why, why_bytes);
        for (int i = 0; made && i < 3; i++)
            put(s, tensors[i], head,
                i == 0   ? one.items[0].q
                : i == 1 ? one.items[0].k
                         : one.items[0].v);
        tool_samples_free(&one);
        if (!made)
            return false;
    }
    tool_pair(list, "tandem", "%d.%d.%d", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR,
              TANDEM_VERSION_PATCH);
    tool_pair(list, "kind", "%s", s->kind);
    tool_pair(list, "seed", "%llu", (unsigned long long)s->seed);
    return true;
}

int tool_sample_qkv(int argc, char **argv)
{
    sample s = {
        .kind = "normal", .dtype = "F16", .batch = 1, .heads = 8, .n = 1024, .d = 64, .seed = 1};
    tool_list list = {0};
    char why[512] = "";
    int status = read_arguments(argc, argv, &s);
    if (status != TOOL_OK)
        return status;
    if (tool_can_save("--out", s.out, why, sizeof why) && make(&s, &list, why, sizeof why) &&
        tool_save(s.out, &list, why, sizeof why))
        printf("q, k and v [%llu,%llu,%llu,%llu] %s, %s -> %s\n"
               "next: tandem attend --in %s --out o.safetensors --precision 8b\n",
               (unsigned long long)s.batch, (unsigned long long)s.heads, (unsigned long long)s.n,
               (unsigned long long)s.d, s.dtype, s.kind, s.out, s.out);
    else
        status = tool_fail("sample-qkv", "%s", why);
    tool_list_free(&list);
    return status;
}
