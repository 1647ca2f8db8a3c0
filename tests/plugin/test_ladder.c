/* The table of what each way to compute needs: it alone decides, row by row, and says what is missing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/client.h"
#include "interop/os/opaque.h"

/* A machine that has everything. */
static td_vk_caps all_of_vulkan;
static td_grounds everything(void)
{
    all_of_vulkan = (td_vk_caps){.name = "a GPU", .computes = true};
    return (td_grounds){.vulkan = &all_of_vulkan, .has_queue = true, .cuda = {.name = "a GPU", .timelines = true}};
}

/* Takes away what a row stands for. False: that is Vulkan as a whole, or nothing that a session asks for. */
static bool take_away(td_grounds *g, const td_requirement *r)
{
    static const char lack[] = "is not enabled";
    const char *word = lack;

    if (r->lack)
        memcpy((char *)&all_of_vulkan + r->lack, &word, sizeof word);
    else if (!strcmp(r->name, "CUDA driver"))
        snprintf(g->no_driver, sizeof g->no_driver, "no driver");
    else if (!strcmp(r->name, "CUDA on the engine's GPU"))
        snprintf(g->no_gpu, sizeof g->no_gpu, "another GPU");
    else if (!strcmp(r->name, "kernels for that GPU"))
        snprintf(g->no_kernels, sizeof g->no_kernels, "no kernels");
    else if (!strcmp(r->name, "timelines in CUDA"))
        g->cuda.timelines = false;
    else if (!strcmp(r->name, "tandemd on the same GPU"))
        snprintf(g->no_elsewhere, sizeof g->no_elsewhere, "on another GPU");
    else if (!strcmp(r->name, "a queue that computes"))
        g->has_queue = false;
    else
        return false;
    return true;
}

/* Each row closes the ways that it says it closes, and no other, and is named in the reason. */
static void test_rows(void **state)
{
    char why[TD_WHY_BYTES];

    (void)state;
    for (uint32_t i = 0; i < td_requirement_count; i++) {
        const td_requirement *r = &td_requirements[i];
        td_grounds g = everything();

        assert_true(r->name && r->buys && r->advice && (!r->ways || r->probe) && (!r->vk || !strcmp(r->name, r->vk->name)));
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(r->name, td_requirements[j].name);
        if (!take_away(&g, r))
            continue;
        for (int w = 0; w < TD_WAYS; w++) {
            const bool open = td_way_is_open(td_ladder[w], &g, why);

            if (open != !(r->ways & td_way_bit(td_ladder[w])))
                fail_msg("without %s way %d is %s", r->name, w, open ? "open" : why);
            if (!open && r->vk)
                assert_non_null(strstr(why, r->name));
        }
    }
}

static void test_everything_and_nothing(void **state)
{
    static const char no_driver[] = "no CUDA here: no driver";
    td_grounds g = everything();
    char why[TD_WHY_BYTES], expected[TD_WHY_BYTES];
    uint32_t open = 0;

    (void)state;
    for (int w = 0; w < TD_WAYS; w++)
        assert_true(td_way_is_open(td_ladder[w], &g, why));
    /* Without Vulkan: host memory, and no GPU that signals. */
    g.vulkan = NULL;
    for (int w = 0; w < TD_WAYS; w++)
        open |= td_way_is_open(td_ladder[w], &g, why) ? td_way_bit(td_ladder[w]) : 0;
    assert_int_equal(open, td_way_bit((td_way){TD_DEVICE_CUDA, TD_SHARING_HOST}) |
                               td_way_bit((td_way){TD_DEVICE_CUDA, TD_SHARING_COPY}) |
                               td_way_bit((td_way){TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_HOST}) |
                               td_way_bit((td_way){TD_DEVICE_CPU, TD_SHARING_HOST}));
    /* Where exports of another process's Vulkan come in, the GPU signals, but in nobody's command buffers here. */
    g.imports = true;
    g.has_queue = false;
    assert_true(td_way_is_open((td_way){TD_DEVICE_CUDA, TD_SHARING_TIMELINE}, &g, why));
    assert_false(td_way_is_open((td_way){TD_DEVICE_CUDA, TD_SHARING_INLINE}, &g, why));
    /* What hangs on something else that is missing is not named besides it. */
    snprintf(g.no_driver, sizeof g.no_driver, "no driver");
    snprintf(g.no_gpu, sizeof g.no_gpu, "no driver");
    assert_false(td_way_is_open((td_way){TD_DEVICE_CUDA, TD_SHARING_COPY}, &g, why));
    assert_string_equal(why, no_driver);
    /* And all that is missing is. */
    g = everything();
    all_of_vulkan.lacks.memory_export = "is not enabled";
    all_of_vulkan.lacks.semaphore_export = "is not offered by the driver";
    assert_false(td_way_is_open((td_way){TD_DEVICE_CUDA, TD_SHARING_TIMELINE}, &g, why));
    snprintf(expected, sizeof expected,
             "'a GPU' cannot share its memory with CUDA: %s is not enabled, %s is not offered by the driver", td_opaque_memory_extension, td_opaque_semaphore_extension);
    assert_string_equal(why, expected);
}

/* Of two devices with one UUID, on adapters that both drivers know, only the same one will do. */
static void test_adapters(void **state)
{
    static const td_adapter here = {.known = true, .luid = {1, 2, 3, 4, 5, 6, 7, 8}, .node_mask = 1};
    static const struct {
        td_adapter vulkan, cuda;
        const char *says; /* NULL: they match */
    } cases[] = {
        {{0}, {0}, NULL},
        {here, {0}, NULL},
        {{0}, here, NULL},
        {here, here, NULL},
        {here, {.known = true, .luid = {1, 2, 3, 4, 5, 6, 7, 9}, .node_mask = 1},
         "Vulkan's device is the adapter of LUID 08070605-04030201, node mask 0x1, "
         "CUDA's that of LUID 09070605-04030201, node mask 0x1"},
        {here, {.known = true, .luid = {1, 2, 3, 4, 5, 6, 7, 8}, .node_mask = 2},
         "Vulkan's device is the adapter of LUID 08070605-04030201, node mask 0x1, "
         "CUDA's that of LUID 08070605-04030201, node mask 0x2"},
    };
    char why[TD_WHY_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_grounds g = everything();
        const td_cu_info cuda = {.name = "a GPU", .timelines = true, .adapter = cases[i].cuda};

        all_of_vulkan.adapter = cases[i].vulkan;
        td_grounds_with_cuda(&g, &cuda);
        g.no_kernels[0] = 0;
        for (int w = 0; w < TD_WAYS; w++) {
            const bool open = td_way_is_open(td_ladder[w], &g, why);

            assert_true(open == (!cases[i].says || td_ladder[w].device != TD_DEVICE_CUDA));
            if (!open)
                assert_non_null(strstr(why, cases[i].says));
        }
        /* Without Vulkan there is nobody to share with. */
        g.vulkan = NULL;
        td_grounds_with_cuda(&g, &cuda);
        assert_string_equal(g.no_gpu, "");
    }
}

/* One word for each way, and what is asked by that word. */
static void test_words(void **state)
{
    static const tandem_rung rungs[TD_WAYS] = {TANDEM_RUNG_INLINE, TANDEM_RUNG_TIMELINE, TANDEM_RUNG_HOST,
                                               TANDEM_RUNG_COPY,   TANDEM_RUNG_TIMELINE, TANDEM_RUNG_HOST,
                                               TANDEM_RUNG_COPY,   TANDEM_RUNG_CPU,      TANDEM_RUNG_COPY};
    const td_way cpu = {TD_DEVICE_CPU, TD_SHARING_HOST};

    (void)state;
    for (int w = 0; w < TD_WAYS; w++) {
        const td_way way = td_ladder[w];

        assert_int_equal(td_rung_of(way, 0), rungs[w]);
        assert_true(td_way_shares_memory(way) == (rungs[w] != TANDEM_RUNG_COPY));
        assert_true(td_way_gpu_signals(way) == (rungs[w] <= TANDEM_RUNG_TIMELINE));
        assert_true(!td_way_is_on_device(way) || td_way_shares_memory(way));
        assert_true(td_way_is_on_device(way) || !td_way_gpu_signals(way));
    }
    assert_int_equal(td_rung_of(cpu, TANDEM_RUNG_HOST), TANDEM_RUNG_HOST);
    assert_int_equal(td_rung_of(cpu, TANDEM_RUNG_CPU), TANDEM_RUNG_CPU);
    assert_true(td_ladder_has(TD_DEVICE_CPU, TANDEM_RUNG_HOST) && td_ladder_has(TD_DEVICE_CPU, 0));
    assert_false(td_ladder_has(TD_DEVICE_CPU, TANDEM_RUNG_TIMELINE) || td_ladder_has(TD_DEVICE_CUDA, TANDEM_RUNG_CPU) ||
                 td_ladder_has(TD_DEVICE_CUDA_ELSEWHERE, TANDEM_RUNG_INLINE));
}

/* The column `needs` of a rung's row. */
static const char *needs_of(char *text, const char *rung, char needs[400])
{
    char row[40];
    const char *at;

    snprintf(row, sizeof row, "\n| `%s` | ", rung);
    at = strstr(text, row);
    if (!at)
        fail_msg("INTEGRATION.md has no row of the rung %s", rung);
    at += strlen(row);
    snprintf(needs, 400, "%.*s", (int)strcspn(at, "|"), at);
    return needs;
}

static bool read_document(char *text, size_t bytes)
{
    const char *source = getenv("TANDEM_SOURCE");
    char path[1000];
    FILE *file;

    if (!source)
        return false;
    snprintf(path, sizeof path, "%s/engine_plugin/INTEGRATION.md", source);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_in_range(fread(text, 1, bytes - 1, file), 1, bytes - 2);
    fclose(file);
    return true;
}

/* INTEGRATION.md's ladder names for each rung what of Vulkan the table needs for it, and nothing else. */
static void test_document(void **state)
{
    static char text[1 << 17];
    char needs[400];

    (void)state;
    if (!read_document(text, sizeof text))
        skip();
    for (int w = 0; w < TD_WAYS; w++) {
        const td_way way = td_ladder[w];
        const char *rung = td_rung_name(td_rung_of(way, 0));

        if (way.device == TD_DEVICE_CUDA_ELSEWHERE || way.sharing == TD_SHARING_COPY)
            continue;
        needs_of(text, rung, needs);
        for (uint32_t i = 0; i < td_requirement_count; i++) {
            const td_requirement *r = &td_requirements[i];

            if (r->vk && !(r->ways & td_way_bit(way)) != !strstr(needs, r->name))
                fail_msg("%s: INTEGRATION.md and the table do not say the same of %s", rung, r->name);
        }
    }
    assert_non_null(strstr(needs_of(text, "copy", needs), "nothing beyond Vulkan 1.1"));
}

/* INTEGRATION.md's table of memory says what the library's does, cell by cell. */
static void test_memory_in_document(void **state)
{
    static const td_way columns[] = {{TD_DEVICE_CUDA, TD_SHARING_INLINE},           {TD_DEVICE_CUDA, TD_SHARING_TIMELINE},
                                     {TD_DEVICE_CUDA, TD_SHARING_HOST},             {TD_DEVICE_CUDA, TD_SHARING_COPY},
                                     {TD_DEVICE_CPU, TD_SHARING_HOST},              {TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_TIMELINE},
                                     {TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_HOST},   {TD_DEVICE_CUDA_ELSEWHERE, TD_SHARING_COPY}};
    static char text[1 << 17];
    char row[400];

    (void)state;
    if (!read_document(text, sizeof text))
        skip();
    for (uint32_t i = 0; i < td_memory_kind_count; i++) {
        const td_memory_kind *kind = &td_memory_kinds[i];
        int used = snprintf(row, sizeof row, "\n| `%s` |", kind->name);

        for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
            used += snprintf(row + used, sizeof row - (size_t)used, " %s |", kind->ways & td_way_bit(columns[c]) ? "yes" : "-");
        if (!strstr(text, row))
            fail_msg("INTEGRATION.md has no row%s", row);
    }
}

/* By the table a session on host memory takes what it says, and refuses all else by its name. */
static void test_memory_of_a_session(void **state)
{
    static unsigned char bytes[8192];
    const td_way way = {TD_DEVICE_CPU, TD_SHARING_HOST};
    tandem_session *s = NULL;
    char text[600];

    (void)state;
    assert_int_equal(tandem_session_create(&TANDEM_INIT(tandem_session_desc, .backend = TANDEM_BACKEND_CPU), &s), TANDEM_OK);
    for (uint32_t i = 0; i < td_memory_kind_count; i++) {
        const td_memory_kind *kind = &td_memory_kinds[i];
        const bool vulkan = !strncmp(kind->needs, "Vulkan", 6);
        const tandem_mem_desc desc = TANDEM_INIT(tandem_mem_desc, .source = kind->source, .handle_type = kind->handle, .bytes = 64,
                                                 .host = bytes, .fd = 0, .allocation_bytes = 64, .vulkan_memory = 1, .cuda_pointer = 64);
        tandem_mem mem = 0;
        const tandem_status status = tandem_mem_create(s, &desc, &mem);

        if (td_way_takes(way, kind->source, kind->handle) && !vulkan) {
            assert_int_equal(status, TANDEM_OK);
            continue;
        }
        if (status != TANDEM_ERROR_UNSUPPORTED && kind->source != TANDEM_MEM_FD) /* what this program's input is, nobody knows */
            fail_msg("%s: %d", kind->name, status);
        assert_int_equal(tandem_error_text(s, text, sizeof text), TANDEM_OK);
        assert_non_null(strstr(text, "desc."));
    }
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_everything_and_nothing),
        cmocka_unit_test(test_adapters),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_document),
        cmocka_unit_test(test_memory_in_document),
        cmocka_unit_test(test_memory_of_a_session),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
