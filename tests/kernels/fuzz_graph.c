/* Whatever a graph's text says: it is refused with a reason, or becomes a program that stays within
 * its views and scratch, as planned for each device and as computed on the CPU, whatever is in its
 * weights, uniforms and bindings.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One entry for libFuzzer (TANDEM_LIBFUZZER) and for the mutator of fuzz_util.c, which any compiler
 * can build: fuzz_graph CORPUS [runs]        starts from the corpus, the same each time fuzz_graph
 * --make CORPUS        writes the corpus: a graph for each kind of operation
 *
 * Input: how (1 byte: bits 0-2 the device; 8: the target commits; 16: a text follows), numbers (1
 * byte); then that text, or which of the graphs below (1 byte) and changes to it (3 bytes each:
 * place, place, what), each of a number, a name or a member for another of its kind, so that most
 * are still texts of graphs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/exec/exec.h"
#include "kernels/model/graph_file.h"
#include "tests/fuzz_util.h"

enum {
    HOW_COMMIT = 8,
    HOW_TEXT = 16,
    MOST_BYTES = 1 << 18,
    MOST_BLOCKS = 4096,
    TEXT_BYTES = 1 << 16,
    LONGEST_WORD = 32,
    CHANGES = 4 /* that inputs of the corpus have room for */
};
static const double most_mflop = 4;

static const char *const words[] = {
    "\"version\": 1",
    "\"numbers\": {",
    "\"tensors\": {",
    "\"nodes\": [",
    "\"role\": \"input\"",
    "\"role\": \"output\"",
    "\"role\": \"weight\"",
    "\"role\": \"state\"",
    "\"role\": \"uniform\"",
    "\"role\": \"temporary\"",
    "\"role\": \"cache\"",
    "\"dtype\": \"F16\"",
    "\"dtype\": \"BF16\"",
    "\"dtype\": \"F32\"",
    "\"dtype\": \"I32\"",
    "\"dtype\": \"I8\"",
    "\"dtype\": \"Q8_0\"",
    "\"dtype\": \"Q4_K\"",
    "\"dtype\": \"CODES_INT8\"",
    "\"dtype\": \"CODES_E4M3\"",
    "\"shape\": [",
    "\"operation\": \"linear\"",
    "\"operation\": \"attention\"",
    "\"operation\": \"norm\"",
    "\"operation\": \"embed\"",
    "\"operation\": \"binary\"",
    "\"operation\": \"pool\"",
    "\"operation\": \"scatter\"",
    "\"operation\": \"cache_append\"",
    "\"operation\": \"cache_attention\"",
    "\"views\": {",
    "{\"tensor\": ",
    "\"offset\": ",
    "\"strides\": [",
    "\"batch\": ",
    "\"heads\": ",
    "\"kv_heads\": ",
    "\"q_len\": ",
    "\"kv_len\": ",
    "\"head_dim\": ",
    "\"scale\": ",
    "\"causal\": ",
    "\"precision\": ",
    "\"smooth\": ",
    "\"granularity\": ",
    "\"rows\": ",
    "\"channels\": ",
    "\"kind\": ",
    "\"epsilon\": ",
    "\"ins\": ",
    "\"outs\": ",
    "\"activation\": ",
    "\"gate\": ",
    "\"positions\": ",
    "\"rotated_channels\": ",
    "\"rotated_heads\": ",
    "\"entries\": ",
    "\"types\": ",
    "\"b_channels\": ",
    "\"normalise\": ",
    "\"table\": ",
    "\"id\": ",
    "\"length\": ",
    "\"x\": ",
    "\"w\": ",
    "\"y\": ",
    "\"q\": ",
    "\"k\": ",
    "\"v\": ",
    "\"o\": ",
    "\"lse\": ",
    "\"residual\": ",
    "\"weight\": ",
    "\"bias\": ",
    "\"sum\": ",
    "\"rotation\": ",
    "\"position\": ",
    "\"n\"",
    "\"n * 32\"",
    "\"ceil_div(n, 2)\"",
    "\"m\"",
    "\"a\"",
    "\"b\"",
    "\"c\"",
    "\"d\"",
    "64",
    "32",
    "128",
    "1073741824",
    "9223372036854775807",
};
enum { WORDS = sizeof words / sizeof *words };

static const struct {
    const char *name, *text;
} graphs[] = {
    {"norm", "{\"version\": 1, \"numbers\": {\"n\": 100, \"m\": 8}, \"tensors\": {"
             "\"a\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"n\", 64]},"
             "\"b\": {\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [64]},"
             "\"c\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"n\", 64]},"
             "\"d\": {\"role\": \"state\", \"dtype\": \"F16\", \"shape\": [1, 64]},"
             "\"e\": {\"role\": \"output\", \"dtype\": \"F16\", \"shape\": [64]}},"
             "\"nodes\": [{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": "
             "\"n\", \"channels\": 64, \"epsilon\": 1e-6,"
             "\"views\": {\"x\": \"a\", \"weight\": \"b\", \"y\": \"c\"}},"
             "{\"operation\": \"norm\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": "
             "64, \"kind\": 1,"
             "\"views\": {\"x\": {\"tensor\": \"a\", \"offset\": \"(n - 1) * 64\"}, "
             "\"residual\": \"d\", \"sum\": \"d\", \"y\": \"e\"}}]}"},
    {"linear", "{\"version\": 1, \"numbers\": {\"n\": 100}, \"tensors\": {"
               "\"a\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"n\", 64]},"
               "\"b\": {\"role\": \"weight\", \"dtype\": \"F16\", \"shape\": [32, 64]},"
               "\"t\": {\"role\": \"weight\", \"dtype\": \"F32\", \"shape\": [128, 32]},"
               "\"p\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"n\"]},"
               "\"c\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"n\", 32]},"
               "\"d\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"n\", 32]}},"
               "\"nodes\": [{\"operation\": \"linear\", \"rows\": \"n\", \"ins\": 64, "
               "\"outs\": 32, \"positions\": 128, \"head_dim\": 32,"
               "\"rotated_channels\": 32, \"rotated_heads\": 1, \"views\": {\"x\": \"a\", "
               "\"w\": \"b\", \"rotation\": \"t\","
               "\"position\": \"p\", \"y\": \"c\"}},"
               "{\"operation\": \"linear\", \"rows\": \"n\", \"ins\": 32, \"outs\": 32, "
               "\"activation\": 2, \"views\": {"
               "\"x\": \"c\", \"w\": {\"tensor\": \"b\", \"strides\": [0, 0, 64]}, "
               "\"residual\": \"c\", \"y\": \"d\"}}]}"},
    {"blocks", "{\"version\": 1, \"tensors\": {"
               "\"a\": {\"role\": \"input\", \"dtype\": \"BF16\", \"shape\": [5, 256]},"
               "\"b\": {\"role\": \"weight\", \"dtype\": \"Q4_K\", \"shape\": [8, 256]},"
               "\"c\": {\"role\": \"weight\", \"dtype\": \"Q8_0\", \"shape\": [8, 256]},"
               "\"d\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [5, 8]},"
               "\"e\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [5, 4]}},"
               "\"nodes\": [{\"operation\": \"linear\", \"rows\": 5, \"ins\": 256, \"outs\": "
               "8, \"views\": {"
               "\"x\": \"a\", \"w\": \"b\", \"y\": \"d\"}},"
               "{\"operation\": \"linear\", \"rows\": 5, \"ins\": 256, \"outs\": 4, \"gate\": "
               "1, \"activation\": 3, \"views\": {"
               "\"x\": \"a\", \"w\": \"c\", \"y\": \"e\"}}]}"},
    {"attention",
     "{\"version\": 1, \"numbers\": {\"n\": 100, \"m\": 4}, \"tensors\": {"
     "\"a\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"m * n\", 192]},"
     "\"b\": {\"role\": \"output\", \"dtype\": \"F16\", \"shape\": [\"m * n\", 64]},"
     "\"c\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"m\", 2, \"n\", 1]}},"
     "\"nodes\": [{\"operation\": \"attention\", \"batch\": \"m\", \"heads\": 2, \"kv_heads\": "
     "2, \"q_len\": \"n\", \"kv_len\": \"n\","
     "\"head_dim\": 32, \"precision\": 1, \"causal\": 1, \"scale\": 0.125, \"views\": {"
     "\"q\": {\"tensor\": \"a\", \"strides\": [\"n * 192\", 32, 192]},"
     "\"k\": {\"tensor\": \"a\", \"offset\": 64, \"strides\": [\"n * 192\", 32, 192]},"
     "\"v\": {\"tensor\": \"a\", \"offset\": 128, \"strides\": [\"n * 192\", 32, 192]},"
     "\"o\": {\"tensor\": \"b\", \"strides\": [\"n * 64\", 32, 64]}, \"lse\": \"c\"}}]}"},
    {"codes",
     "{\"version\": 1, \"numbers\": {\"n\": 100}, \"tensors\": {"
     "\"a\": {\"role\": \"input\", \"dtype\": \"CODES_INT8\", \"shape\": [1, 2, \"n\", 64]},"
     "\"b\": {\"role\": \"input\", \"dtype\": \"CODES_E4M3\", \"shape\": [1, 2, \"n\", 64]},"
     "\"c\": {\"role\": \"output\", \"dtype\": \"F16\", \"shape\": [1, 2, \"n\", 64]}},"
     "\"nodes\": [{\"operation\": \"attention\", \"batch\": 1, \"heads\": 2, \"kv_heads\": 2, "
     "\"q_len\": \"n\", \"kv_len\": \"n\","
     "\"head_dim\": 64, \"precision\": 2, \"views\": {\"q\": \"a\", \"k\": \"a\", \"v\": "
     "\"b\", \"o\": \"c\"}}]}"},
    {"embed",
     "{\"version\": 1, \"numbers\": {\"n\": 60, \"m\": 4}, \"tensors\": {"
     "\"a\": {\"role\": \"input\", \"dtype\": \"I32\", \"shape\": [\"m\", \"n\"]},"
     "\"b\": {\"role\": \"weight\", \"dtype\": \"Q8_0\", \"shape\": [9, 64]},"
     "\"c\": {\"role\": \"temporary\", \"dtype\": \"F16\", \"shape\": [\"m * n\", 64]},"
     "\"d\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"m\"]},"
     "\"e\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"m\", 64]},"
     "\"n\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"m\", 64]}},"
     "\"nodes\": [{\"operation\": \"embed\", \"batch\": \"m\", \"rows\": \"n\", \"channels\": 64,"
     "\"entries\": 9, \"scale\": 2, \"views\": {\"table\": \"b\", \"id\": \"a\", \"y\": \"c\"}},"
     "{\"operation\": \"pool\", \"batch\": \"m\", \"heads\": 1, \"rows\": \"n\", \"channels\": 64,"
     "\"normalise\": 1, \"views\": {\"x\": \"c\", \"length\": \"d\", \"y\": \"e\"}},"
     "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": \"m\", \"channels\": 64,"
     "\"b_channels\": 1, \"kind\": 1, \"views\": {\"a\": \"e\", \"b\": {\"tensor\": \"c\","
     "\"strides\": [0, 0, 64]}, \"y\": \"n\"}}]}"},
    {"scatter",
     "{\"version\": 1, \"numbers\": {\"n\": 8}, \"tensors\": {"
     "\"a\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"n\", 64]},"
     "\"b\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"n\"]},"
     "\"c\": {\"role\": \"cache\", \"dtype\": \"F16\", \"shape\": [2, 16, 32]},"
     "\"d\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"n\", 32]}},"
     "\"nodes\": [{\"operation\": \"scatter\", \"batch\": 1, \"heads\": 2, \"rows\": \"n\","
     "\"channels\": 32, \"entries\": 16, \"views\": {\"x\": {\"tensor\": \"a\","
     "\"strides\": [0, 32, 64]}, \"position\": \"b\", \"y\": \"c\"}},"
     "{\"operation\": \"attention\", \"batch\": 1, \"heads\": 1, \"kv_heads\": 1,"
     "\"q_len\": \"n\", \"kv_len\": 16, \"head_dim\": 32, \"views\": {"
     "\"q\": {\"tensor\": \"a\", \"strides\": [0, 32, 64]},"
     "\"k\": {\"tensor\": \"c\", \"strides\": [0, 512, 32]},"
     "\"v\": {\"tensor\": \"c\", \"offset\": 512, \"strides\": [0, 512, 32]},"
     "\"position\": \"b\", \"o\": \"d\"}}]}"},
    {"cache", /* of 130 positions: 512 + 256 * 64 + 2 * 100 * 64 bytes a plane */
     "{\"version\": 1, \"numbers\": {\"n\": 8}, \"tensors\": {"
     "\"a\": {\"role\": \"input\", \"dtype\": \"F16\", \"shape\": [\"n\", 256]},"
     "\"b\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [\"n\"]},"
     "\"c\": {\"role\": \"cache\", \"dtype\": \"U8\", \"shape\": [1, 1, 1, 29696]},"
     "\"d\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [\"n\", 128]}},"
     "\"nodes\": [{\"operation\": \"cache_append\", \"batch\": 1, \"kv_heads\": 1,"
     "\"rows\": \"n\", \"head_dim\": 64, \"entries\": 130, \"format\": 2, \"views\": {"
     "\"k\": {\"tensor\": \"a\", \"offset\": 128, \"strides\": [0, 0, 256]},"
     "\"v\": {\"tensor\": \"a\", \"offset\": 192, \"strides\": [0, 0, 256]},"
     "\"position\": \"b\", \"cache\": \"c\"}},"
     "{\"operation\": \"cache_attention\", \"batch\": 1, \"heads\": 2, \"kv_heads\": 1,"
     "\"rows\": \"n\", \"head_dim\": 64, \"entries\": 130, \"format\": 2, \"views\": {"
     "\"q\": {\"tensor\": \"a\", \"strides\": [0, 64, 256]}, \"position\": \"b\","
     "\"cache\": \"c\", \"o\": {\"tensor\": \"d\", \"strides\": [0, 64, 128]}}}]}"},
};
enum { GRAPHS = sizeof graphs / sizeof *graphs };

static void broken(const char *what)
{
    fprintf(stderr, "fuzz_graph: broken promise: %s\n", what);
    abort();
}

static void must(bool promise, const char *what)
{
    if (!promise)
        broken(what);
}

/* --- What a program promises --- */

static uint64_t bytes_of(const td_program *p, uint32_t view)
{
    const uint64_t blocks[] = {p->weight_bytes, p->state_bytes, p->uniform_bytes};

    return view < TD_PROGRAM_BINDINGS ? blocks[view]
                                      : p->tensors[p->bindings[view - TD_PROGRAM_BINDINGS]].bytes;
}

static bool is_within(const td_program *p, uint32_t base, uint32_t view, uint64_t begin,
                      uint64_t end)
{
    if (base == TD_BASE_CONTROL)
        return true;
    if (base == TD_BASE_VIEW && view >= p->plan->view_count)
        return false;
    return begin < end &&
           end <= (base == TD_BASE_SCRATCH ? p->plan->scratch_bytes : bytes_of(p, view));
}

static void check_program(const td_program *p)
{
    uint32_t patches = 0;

    must(td_plan_check(p->plan, NULL, 0) == TANDEM_OK, "a plan that executors refuse");
    for (uint32_t i = 0; i < p->plan->record_count; i++) {
        const td_record *r = &p->plan->records[i];

        for (uint32_t j = 0; j < r->reloc_count; j++) {
            const td_reloc *reloc = &r->relocs[j];

            must(is_within(p, reloc->base, reloc->view, reloc->addend, reloc->addend + 1),
                 "a pointer that leads nowhere");
            patches += reloc->base == TD_BASE_VIEW;
        }
        for (uint32_t j = 0; j < r->read_count + r->write_count; j++) {
            const td_range *range =
                j < r->read_count ? &r->reads[j] : &r->writes[j - r->read_count];

            must(is_within(p, range->base, range->view, range->begin_bytes, range->end_bytes),
                 "a range that leads nowhere");
            must(j < r->read_count || range->base != TD_BASE_VIEW ||
                     range->view == TD_PROGRAM_STATE || range->view >= TD_PROGRAM_BINDINGS,
                 "weights or uniforms are written");
        }
    }
    must(patches == p->patch_count, "pointers without a patch");
}

/* --- Runs --- */

static bool is_small(const td_program *p)
{
    uint64_t bytes = p->plan->scratch_bytes;
    double mflop = 0;

    for (uint32_t i = 0; i < p->plan->view_count; i++)
        if (!td_add_u64(bytes, bytes_of(p, i), &bytes))
            return false;
    for (uint32_t i = 0; i < p->node_count; i++)
        mflop += p->nodes[i].mflop;
    for (uint32_t i = 0; i < p->plan->record_count; i++)
        if (p->plan->records[i].grid[0] > MOST_BLOCKS)
            return false;
    return bytes <= MOST_BYTES && mflop <= most_mflop;
}

/* Exactly as large as it says, with anything in it. */
static unsigned char *new_memory(uint64_t bytes, uint32_t *seed)
{
    unsigned char *memory = aligned_alloc(256, (size_t)td_align_up(bytes + 1, 256));

    must(memory != NULL, "no memory");
    for (uint64_t i = 0; i < bytes; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        memory[i] = (unsigned char)(*seed >> 24);
    }
    memset(memory + bytes, 0xa5, (size_t)(td_align_up(bytes + 1, 256) - bytes));
    return memory;
}

static void end_memory(unsigned char *memory, uint64_t bytes)
{
    for (uint64_t i = bytes; i < td_align_up(bytes + 1, 256); i++)
        must(memory[i] == 0xa5, "a write beyond a view or scratch");
    free(memory);
}

static void run_program(const td_program *p)
{
    unsigned char *memory[TD_PROGRAM_VIEWS], *scratch;
    uint64_t views[TD_PROGRAM_VIEWS];
    uint32_t seed = p->plan->record_count;

    for (uint32_t i = 0; i < p->plan->view_count; i++)
        views[i] = (uintptr_t)(memory[i] = new_memory(bytes_of(p, i), &seed));
    scratch = new_memory(p->plan->scratch_bytes, &seed);
    must(td_exec_cpu_run(p->plan, views, (uintptr_t)scratch, 1, NULL) == TANDEM_OK,
         "a program that does not run");
    for (uint32_t i = 0; i < p->plan->view_count; i++)
        end_memory(memory[i], bytes_of(p, i));
    end_memory(scratch, p->plan->scratch_bytes);
}

/* --- Inputs --- */

/* A graph's text as bytes: a word of those above is one, from 128 on. */
static size_t shrink(const char *text, uint8_t to[TEXT_BYTES])
{
    size_t length = 0;

    while (*text) {
        int best = -1;

        for (int i = 0; i < WORDS; i++)
            if (!strncmp(text, words[i], strlen(words[i])) &&
                (best < 0 || strlen(words[i]) > strlen(words[best])))
                best = i;
        to[length++] = best < 0 ? (uint8_t)*text : (uint8_t)(128 + best);
        text += best < 0 ? 1 : strlen(words[best]);
    }
    return length;
}

static size_t expand(const uint8_t *data, size_t size, char text[TEXT_BYTES])
{
    size_t length = 0;

    for (size_t i = 0; i < size && length + LONGEST_WORD < TEXT_BYTES; i++) {
        const char letter[2] = {(char)data[i], 0},
                   *word = data[i] < 128 ? letter : words[data[i] - 128];

        while (*word)
            text[length++] = *word++;
    }
    return length;
}

/* What a word may stand in place of: a member with its value of that member, else what begins and
 * ends alike. */
static bool is_alike(const char *a, const char *b)
{
    const size_t name = strcspn(a, ":");

    if (a[name] && a[strlen(a) - 1] != ' ')
        return !strncmp(a, b, name + 1);
    return a[0] == b[0] && a[strlen(a) - 1] == b[strlen(b) - 1] && !a[name] == !strchr(b, ':');
}

static uint8_t changed(uint8_t from, uint8_t what)
{
    static const char names[] = "abcdenm";

    if (from >= '0' && from <= '9')
        return (uint8_t)('0' + what % 10);
    if (from >= 'a' && from <= 'z')
        return (uint8_t)names[what % (sizeof names - 1)];
    if (from < 128)
        return from;
    for (int i = 0; i < WORDS; i++)
        if (is_alike(words[from - 128], words[(what + i) % WORDS]))
            return (uint8_t)(128 + (what + i) % WORDS);
    return from;
}

/* The text of an input, from its third byte on. */
static size_t text_of(const uint8_t *data, size_t size, bool is_text, char text[TEXT_BYTES])
{
    static uint8_t bytes[TEXT_BYTES];

    if (is_text || !size) {
        size = size < TEXT_BYTES ? size : TEXT_BYTES;
        memcpy(text, data, size);
        return size;
    }
    const size_t length = shrink(graphs[data[0] % GRAPHS].text, bytes);
    for (size_t i = 1; i + 3 <= size; i += 3) {
        uint8_t *at = &bytes[(data[i] | data[i + 1] << 8) % length];

        *at = changed(*at, data[i + 2]);
    }
    return expand(bytes, length, text);
}

static void check_graph(const td_graph *graph, uint8_t how, uint8_t size)
{
    static const uint32_t sms[8] = {0, 0, 0, 80, 86, 89, 90, 120};
    uint32_t numbers[TD_GRAPH_NUMBERS];
    td_target target = td_target_for_stream(sms[how & 7]);
    const td_program *program;
    char why[400] = "";

    target.twin = true;
    target.commit = how & HOW_COMMIT;
    for (uint32_t i = 0; i < graph->number_count; i++)
        numbers[i] = 1 + (uint32_t)((uint64_t)size * (i + 1) % graph->numbers[i].most);
    const tandem_status status =
        td_program_build(graph, numbers, &target, &program, why, sizeof why);
    if (status != TANDEM_OK) {
        must((status == TANDEM_ERROR_ARG || status == TANDEM_ERROR_UNSUPPORTED) && *why && !program,
             "a refusal without its reason");
        return;
    }
    check_program(program);
    if (!target.sm && is_small(program))
        run_program(program);
    td_program_drop(&program);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[TEXT_BYTES];
    char why[400] = "", *exact;
    td_graph *graph;

    if (size < 2)
        return 0;
    const size_t length = text_of(data + 2, size - 2, data[0] & HOW_TEXT, text);
    exact = calloc(length ? length : 1, 1); /* a byte read beyond it is seen */
    must(exact != NULL, "no memory");
    memcpy(exact, text, length);
    const tandem_status status = td_graph_read(exact, length, &graph, why, sizeof why);
    if (status == TANDEM_OK)
        check_graph(graph, data[0], data[1]);
    else
        must(status == TANDEM_ERROR_PROTOCOL && *why && !graph, "a refusal without its reason");
    td_graph_destroy(&graph);
    free(exact);
    return 0;
}

#ifndef TANDEM_LIBFUZZER
static bool make_corpus(const char *folder)
{
    bool ok = true;

    for (int i = 0; i < GRAPHS; i++)
        for (int is_text = 0; is_text < 2; is_text++) {
            const size_t length = is_text ? strlen(graphs[i].text) : 1;
            uint8_t bytes[4096] = {is_text ? HOW_TEXT + 3 + i % 5
                                   : i % 2 ? 0
                                           : HOW_COMMIT,
                                   9, (uint8_t)i};
            char name[64];

            if (is_text)
                memcpy(bytes + 2, graphs[i].text, length);
            snprintf(name, sizeof name, "%s%s", graphs[i].name, is_text ? "_text" : "");
            ok = ok && fuzz_write(folder, name, bytes, length + 2 + (is_text ? 0 : 3 * CHANGES));
        }
    return ok;
}

int main(int argc, char **argv)
{
    return fuzz_main(argc, argv, "fuzz_graph", 50000, make_corpus);
}
#endif
