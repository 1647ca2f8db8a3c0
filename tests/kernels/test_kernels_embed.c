/* Embeddings: the CPU's against the definition, and the CUDA kernel on the emulator, whose bits are the CPU's.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/blocks.h"
#include "kernels/embed/embed.h"
#include "kernels/tiles.h"
#include "tests/kernels/kernels_util.h"

enum { TABLE, POSITION_TABLE, TYPE_TABLE, ID, POSITION, TYPE, Y, TABLES = 3 };

static tu_tensor make_table(uint32_t dtype, tu_layout layout, uint32_t count, uint32_t channels, uint64_t seed)
{
    const td_dtype of = td_dtype_of(dtype);
    tu_tensor t = tu_tensor_new(dtype, layout, 1, 1, count, channels);
    if (of.elements == 1) {
        tu_fill_normal(&t, seed, 0);
        return t;
    }
    for (size_t at = 0; at < t.bytes; at += of.bytes) {
        float x[TD_MAX_BLOCK];
        for (uint32_t i = 0; i < of.elements; i++)
            x[i] = (float)tu_normal(&seed);
        td_block_encode(dtype, (uint8_t *)t.data + at, x);
    }
    return t;
}

/* One in four ids lies outside of the table. */
static tu_tensor make_ids(tu_layout layout, uint32_t batch, uint32_t rows, uint32_t count, uint64_t seed)
{
    static const int32_t beyond[] = {-1, INT32_MIN, INT32_MAX};
    tu_tensor t = tu_tensor_new(TANDEM_DTYPE_I32, layout, batch, 1, rows, 1);
    for (uint32_t b = 0; b < batch; b++)
        for (uint32_t r = 0; r < rows; r++) {
            const uint64_t n = tu_random(&seed);
            const double id = n % 16 == 12 ? (double)count : n % 4 == 0 ? (double)beyond[n % 16 / 4] : (double)(n / 16 % count);
            tu_set(&t, b, 0, r, 0, id);
        }
    return t;
}

/* Of `tables` tables; all dtypes come in turn. */
static ku_case make(uint32_t dtype, uint32_t channels, uint32_t tables, uint32_t n)
{
    const uint32_t batch = 1 + n % 3, rows = 1 + n * 5 % 17;
    const bool blocks = td_dtype_of(dtype).elements > 1;
    ku_case it = {.operation = &td_operation_embed,
                  .op.embed = {.batch = batch, .rows = rows, .channels = channels, .scale = n % 3 ? 0 : 1.7f}};
    uint32_t *const counts[TABLES] = {&it.op.embed.entries, &it.op.embed.positions, &it.op.embed.types};
    for (uint32_t i = 0; i < tables; i++) {
        const uint32_t count = 1 + (n + 3 * i) % 19, of = i ? 1 + (n + i) % 3 : dtype;
        const tu_layout layout = (tu_layout)(n % 4);
        *counts[i] = count;
        ku_put(&it, i, make_table(of, i || !blocks ? layout : TU_DENSE, count, channels, 10 * n + i));
        ku_put(&it, ID + i, make_ids(layout, batch, rows, count, 10 * n + 5 + i));
    }
    ku_put(&it, Y, tu_tensor_new(1 + n / 2 % 3, (tu_layout)(n / 3 % 4), batch, 1, rows, channels));
    return it;
}

static double entry(const tu_tensor *t, uint32_t row, uint32_t channel)
{
    const td_dtype of = td_dtype_of(t->view.dtype);
    float block[TD_MAX_BLOCK];
    if (of.elements == 1)
        return tu_get(t, 0, 0, row, channel);
    td_block_decode(t->view.dtype, block, (const uint8_t *)t->data + (row * t->dim + channel) / of.elements * of.bytes);
    return (double)block[channel % of.elements];
}

static void check_values(const ku_case *it)
{
    const tandem_embed *e = &it->op.embed;
    const uint32_t counts[TABLES] = {e->entries, e->positions, e->types};
    for (uint32_t b = 0; b < e->batch; b++)
        for (uint32_t r = 0; r < e->rows; r++)
            for (uint32_t c = 0; c < e->channels; c++) {
                double sum = 0;
                for (uint32_t i = 0; i < TABLES && counts[i]; i++) {
                    const double id = tu_get(&it->tensors[ID + i], b, 0, r, 0), last = counts[i] - 1;
                    const double x = entry(&it->tensors[i], (uint32_t)(id < 0 ? 0 : id > last ? last : id), c);
                    sum = i ? (double)(float)(sum + x) : (double)(float)(x * (e->scale != 0 ? (double)e->scale : 1));
                }
                assert_true(tu_get(&it->tensors[Y], b, 0, r, c) == ku_rounded(sum, e->y.dtype));
            }
}

static void test_everywhere(void **state)
{
    static const uint32_t channels[] = {1, 7, 8, 63, 64, 384, 1001, 2600}, whole[] = {256, 768, 2816};
    (void)state;
    for (uint32_t n = 0; n < 48; n++) {
        const uint32_t dtype = n % 2 ? TANDEM_DTYPE_F16 + n / 2 % 3 : TANDEM_DTYPE_Q8_0 + n / 2 % 5;
        ku_case it = make(dtype, n % 2 ? channels[n / 2 % 8] : whole[n / 2 % 3], 1 + n / 4 % 3, n);
        ku_run(&it, n, check_values);
        ku_free(&it);
    }
}

/* A table in tiles has the bits of its blocks; CPUs refuse it. */
static void test_tiles(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 6 * 4; n++) {
        const uint32_t dtype = TANDEM_DTYPE_Q8_0 + n % 6, tiles = td_tiles_of(dtype, TD_WEIGHT_ROWS, 256);
        ku_case it = make(dtype, n % 2 ? 256 : 1280, 1 + n % 3, n);
        tandem_embed *e = &it.op.embed;
        tu_tensor *table = &it.tensors[TABLE];
        e->entries = TD_WEIGHT_ROWS * (1 + n % 3);
        free(table->data);
        *table = make_table(dtype, TU_DENSE, e->entries, e->channels, n);
        e->table = table->view;
        it.views[TABLE] = (uintptr_t)table->data;
        ku_run_on(&it, NULL, td_target_for_sm(0), 1);
        check_values(&it);
        uint8_t *packed = aligned_alloc(64, (table->bytes + 127) / 64 * 64);
        assert_non_null(packed);
        td_tiles_pack_matrix(tiles, table->data, e->entries, e->channels, packed);
        e->table.dtype = tiles;
        it.views[TABLE] = (uintptr_t)packed;
        for (size_t m = 0; m < EM_MODULES; m++) {
            ku_run_on(&it, &em_modules[m], td_target_for_sm(em_modules[m].sm), 1);
            check_values(&it);
        }
        static td_plan plan;
        const td_target cpu = td_target_for_sm(0);
        char why[300] = "";
        assert_int_equal(td_operation_embed.plan(&it.op, &cpu, &plan, why, sizeof why), TANDEM_ERROR_UNSUPPORTED);
        assert_non_null(strstr(why, "weights in tiles"));
        free(packed);
        ku_free(&it);
    }
}

/* With a table that memory which nobody may read lies around, before or behind it. */
static void test_nothing_else_is_read(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)state;
    for (uint32_t n = 0; n < 16; n++) {
        const uint32_t dtype = n % 8 < 3 ? TANDEM_DTYPE_F16 + n % 8 : TANDEM_DTYPE_Q8_0 + n % 8 - 3;
        ku_case it = make(dtype, 256, 1, 12 + n);
        const size_t bytes = it.tensors[TABLE].bytes, room = (bytes + page - 1) / page * page;
        unsigned char *all = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        assert_true(all != MAP_FAILED && !mprotect(all + page, room, PROT_READ | PROT_WRITE));
        unsigned char *at = n < 8 ? all + page : all + page + (room - bytes);
        memcpy(at, it.tensors[TABLE].data, bytes);
        it.views[TABLE] = (uintptr_t)at;
        ku_run(&it, n, check_values);
        assert_int_equal(munmap(all, room + 2 * page), 0);
        ku_free(&it);
    }
}

static void test_refusals(void **state)
{
    ku_case it = make(TANDEM_DTYPE_Q4_K, 256, 3, 5);
    (void)state;
#define REFUSES(text, ...)                                \
    do {                                                  \
        tandem_operands op = it.op;                       \
        tandem_embed *e = &op.embed;                      \
        __VA_ARGS__;                                      \
        ku_refuses(&td_operation_embed, &op, text);       \
    } while (0)
    REFUSES("embed.rows is 0", e->rows = 0);
    REFUSES("embed.entries is 0", e->entries = 0);
    REFUSES("embed.positions is 1073741825", e->positions = (1u << 30) + 1);
    REFUSES("embed.scale is inf", e->scale = 1.0f / 0.0f);
    REFUSES("embed.reserved is 3", e->reserved = 3);
    REFUSES("embed.table has 264 channels; its dtype has blocks of 256", e->channels = 264);
    REFUSES("embed.table has 11 rows; weights in tiles have a multiple of 16", e->table.dtype = TANDEM_DTYPE_Q4_K_TILES, e->entries = 11);
    REFUSES("embed.table.stride_row is 512; of weights in tiles it must be the channels, 256", e->table.dtype = TANDEM_DTYPE_Q4_K_TILES,
            e->entries = 32, e->table.stride_row = 512);
    REFUSES("embed.table.dtype is 6", e->table.dtype = TANDEM_DTYPE_I32);
    REFUSES("embed.id.dtype is 3", e->id.dtype = TANDEM_DTYPE_F32);
    REFUSES("embed.position.dtype is 0; with position_table it must be 6", e->position.dtype = TANDEM_DTYPE_NONE);
    REFUSES("embed.type.dtype is 6; without type_table it must be 0", e->type_table.dtype = TANDEM_DTYPE_NONE, e->types = 0);
    REFUSES("without type_table it must be 0", e->type_table.dtype = TANDEM_DTYPE_NONE);
    REFUSES("embed.y.dtype is 12", e->y.dtype = TANDEM_DTYPE_Q4_K);
    REFUSES("embed.y.stride_row is 1; the output would overlap itself", e->y.stride_row = 1);
    ku_free(&it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_everywhere), cmocka_unit_test(test_tiles), cmocka_unit_test(test_nothing_else_is_read),
                                       cmocka_unit_test(test_refusals)};
    if (!em_open_all(TD_EMU_FOLDER))
        return 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
