/* GGUF files as networks: what they bring, logits as without a session, caches as state, and what is
 * refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/npc/speaker.h"
#include "tests/kernels/llama_file.h"
#include "tests/kernels/llama_util.h"
#include "tests/plugin/network/rig.h"

enum { TOKENS = 20, CONTEXT = 48, WORDS = 300, DIM = 256 };

static const lf_shape shape = {.layers = 2,
                               .dim = DIM,
                               .hidden = 512,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .rotated_channels = 64,
                               .words = WORDS,
                               .context = CONTEXT,
                               .dtype = TANDEM_DTYPE_Q4_1};

static char path[60];

static const char *name_file(void)
{
    snprintf(path, sizeof path, "/tmp/tandem_language_%d.gguf", (int)getpid());
    return path;
}

static const char *write_file(const void *bytes, uint64_t count)
{
    FILE *file = fopen(name_file(), "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
    return path;
}

/* A file of a shape, with a change or without (NULL): its path. */
static const char *language_file(const lf_shape *of, const lf_change *change)
{
    lf_write(name_file(), of, change);
    return path;
}

static void close_all(rig *r)
{
    close_rig(r);
    unlink(path);
}

static tandem_model_desc desc_of(uint32_t sequences, uint32_t context)
{
    return (tandem_model_desc){.struct_bytes = sizeof(tandem_model_desc),
                               .path = path,
                               .sequences = sequences,
                               .context = context};
}

/* What tandem.h says of such a network. */
static void test_what_it_brings(void **state)
{
    static const struct {
        const char *name;
        uint32_t most;
    } numbers[] = {{"batch", 2}, {"tokens", 40}, {"wanted", 80}};
    static const char *const uniforms[] = {"ids", "positions", "rows"};
    const uint32_t some[] = {2, 5, 3};
    rig r;

    (void)state;
    open_session(&r);
    language_file(&shape, NULL);
    const tandem_model_desc desc = desc_of(2, 40);
    must(&r, tandem_model_create(r.s, &desc, &r.model));
    tandem_network network = {.struct_bytes = sizeof network};
    must(&r, tandem_model_info(r.s, r.model, &network));
    assert_int_equal(network.number_count, 3);
    assert_int_equal(network.uniform_count, 3);
    assert_int_equal(network.binding_count, 1);
    assert_int_equal(network.state_bytes, 2 * 2 * 4 * 40 * 64 * 2); /* layers, slots, planes */
    for (uint32_t i = 0; i < 3; i++) {
        tandem_network_number number = {.struct_bytes = sizeof number};
        tandem_network_tensor uniform = {.struct_bytes = sizeof uniform};

        must(&r, tandem_model_number(r.s, r.model, i, &number));
        assert_string_equal(number.name, numbers[i].name);
        assert_int_equal(number.most, numbers[i].most);
        must(&r, tandem_model_uniform(r.s, r.model, some, 3, i, &uniform));
        assert_string_equal(uniform.name, uniforms[i]);
        assert_int_equal(uniform.dtype, TANDEM_DTYPE_I32);
        assert_int_equal(uniform.bytes, sizeof(int32_t) * (i == 2 ? 3 : 2 * 5));
    }
    tandem_network_tensor logits = {.struct_bytes = sizeof logits};
    must(&r, tandem_model_binding(r.s, r.model, some, 3, 0, &logits));
    assert_string_equal(logits.name, "logits");
    assert_int_equal(logits.bytes, 3 * WORDS * sizeof(float));
    close_all(&r);
}

/* Views of the file's tensors by their names there, also of those that are one with others: what a
 * job multiplies by them. */
static void test_tensors(void **state)
{
    static const struct {
        const char *name;
        uint32_t rows, channels, dtype;
    } tensors[] = {{"token_embd.weight", WORDS, DIM, TANDEM_DTYPE_Q4_1},
                   {"blk.1.attn_v.weight", 128, DIM, TANDEM_DTYPE_Q4_1},
                   {"blk.0.ffn_up.weight", 512, DIM, TANDEM_DTYPE_Q4_1},
                   {"blk.0.ffn_norm.weight", 1, DIM, TANDEM_DTYPE_F32}};
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = 1 << 16};
    uint64_t sizes[4], bytes;
    void *file = lf_make(&shape, NULL, &bytes), *host;
    td_gguf gguf;
    tandem_view w;
    tandem_mem mem;
    rig r;

    (void)state;
    open_session(&r);
    lu_must(td_gguf_read(file, bytes, &gguf, NULL, 0), "");
    must(&r, tandem_model_load(r.s, write_file(file, bytes), &r.model));
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        must(&r, tandem_model_tensor(r.s, r.model, tensors[i].name, &w, sizes));
        assert_int_equal(sizes[0] * sizes[1], 1);
        assert_int_equal(sizes[2], tensors[i].rows);
        assert_int_equal(sizes[3], tensors[i].channels);
        assert_int_equal(w.dtype, tensors[i].dtype);
    }
    REFUSED(&r, ARG, "which is not in the model",
            tandem_model_tensor(r.s, r.model, "rotation", &w, sizes));

    must(&r, tandem_mem_create(r.s, &desc, &mem));
    must(&r, tandem_mem_host(r.s, mem, &host));
    must(&r, tandem_model_tensor(r.s, r.model, "blk.1.attn_v.weight", &w, sizes));
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_LINEAR};
    job.op.linear = (tandem_linear){.rows = 1,
                                    .ins = DIM,
                                    .outs = 128,
                                    .x = tandem_view_dense(mem, 0, TANDEM_DTYPE_F16, 1, 1, DIM),
                                    .w = w,
                                    .y = tandem_view_dense(mem, 4096, TANDEM_DTYPE_F32, 1, 1, 128)};
    ((uint16_t *)host)[7] = 0x3c00; /* so it is column 7 */
    run(&r, &job);
    double *exact = malloc(128 * DIM * sizeof *exact);
    assert_non_null(exact);
    lf_read(td_gguf_find_tensor(&gguf, "blk.1.attn_v.weight"), exact);
    for (int i = 0; i < 128; i++)
        assert_float_equal(((float *)host)[1024 + i], exact[i * DIM + 7], 1e-3);
    free(exact);
    td_gguf_close(&gguf);
    free(file);
    close_all(&r);
}

/* Bit by bit what the CPU computes without a session; in parts, too, and over again. */
static void compare(const lf_shape *of)
{
    enum { HALF = 11 };
    uint32_t ids[TOKENS];
    int32_t same[TOKENS];
    float *expected = malloc(TOKENS * WORDS * sizeof *expected);
    td_speaker speaker;
    rig r;

    assert_non_null(expected);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (uint32_t)(same[i] = i * 37 % WORDS);
    language_file(of, NULL);
    lu_model model = lu_open(path, NULL, 0, 1, 40);
    lu_instance it = lu_begin(&model, td_target_for_sm(0), lu_run_cpu, NULL);
    lu_compute_sequence(&it, same, 0, TOKENS, TOKENS, expected);
    open_session(&r);
    must(&r, td_speaker_open(
                 r.s, &(td_speaker_desc){.path = path, .context = 40, .all_logits = true}, &speaker));
    assert_int_equal(speaker.words, WORDS);
    assert_int_equal(speaker.context, 40);
    for (int again = 0; again < 2; again++) {
        must(&r, td_speaker_compute(&speaker, ids, 0, HALF, HALF));
        assert_memory_equal(speaker.logits, expected, HALF * WORDS * sizeof *expected);
        must(&r, td_speaker_compute(&speaker, ids + HALF, HALF, TOKENS - HALF, 2));
        assert_memory_equal(speaker.logits, expected + (TOKENS - 2) * WORDS,
                            2 * WORDS * sizeof *expected);
    }
    must(&r, td_speaker_read(&speaker, ids, 0, TOKENS - 1));
    must(&r, td_speaker_read(&speaker, ids + TOKENS - 1, TOKENS - 1, 1));
    assert_memory_equal(speaker.logits, expected + (TOKENS - 1) * WORDS,
                        WORDS * sizeof *expected);
    td_speaker_close(&speaker);
    lu_end(&it);
    lu_close(&model);
    close_all(&r);
    free(expected);
}

static void test_logits(void **state)
{
    lf_shape other = shape;

    (void)state;
    compare(&shape);
    other.dtype = TANDEM_DTYPE_BF16; /* which becomes F16 */
    other.value_dtype = TANDEM_DTYPE_Q8_0;
    compare(&other);
    other.dtype = TANDEM_DTYPE_Q6_K;
    other.value_dtype = TANDEM_DTYPE_F32;
    compare(&other);
}

/* The first of the largest, one after the other. */
static void check_tops(const float *logits, const float *tops, int count)
{
    for (int i = 0; i < count; i++) {
        int best = -1;

        for (int word = 0; word < WORDS; word++) {
            const bool is_behind = !i || logits[word] < tops[i - 1] || (logits[word] == tops[i - 1] && word > tops[count + i - 1]);

            if (is_behind && (best < 0 || logits[word] > logits[best]))
                best = word;
        }
        assert_true(tops[i] == logits[best] && tops[count + i] == (float)best);
    }
}

/* What logits are computed of, and the largest of them, as further outputs: with logits that have the same bits as without, and that are
 * the product of the former with the words' rows. */
static void test_further_outputs(void **state)
{
    enum { ROWS = 3, TOPS = 40, LOGITS_BYTES = ROWS * WORDS * sizeof(float), TOPS_AT = LOGITS_BYTES + ROWS * DIM * sizeof(float) };
    const uint32_t numbers[] = {1, TOKENS, ROWS};
    const tandem_mem_desc desc = {.struct_bytes = sizeof desc, .bytes = TOPS_AT + ROWS * 2 * TOPS * sizeof(float)};
    tandem_network network = {.struct_bytes = sizeof network};
    tandem_network_tensor hidden = {.struct_bytes = sizeof hidden};
    int32_t uniforms[512] = {0};
    uint32_t ids[TOKENS];
    double *words = malloc(WORDS * DIM * sizeof *words);
    td_speaker speaker;
    tandem_mem mem;
    void *host;
    td_gguf gguf;
    rig r;

    (void)state;
    assert_non_null(words);
    open_session(&r);
    language_file(&shape, NULL);
    must(&r, td_speaker_open(r.s, &(td_speaker_desc){.path = path, .all_logits = true}, &speaker));
    tandem_model_desc wanted = desc_of(1, 0);
    wanted.hidden = 1;
    wanted.tops = TOPS;
    must(&r, tandem_model_create(r.s, &wanted, &r.model));
    must(&r, tandem_model_info(r.s, r.model, &network));
    assert_int_equal(network.binding_count, 3);
    must(&r, tandem_model_binding(r.s, r.model, numbers, 3, 1, &hidden));
    assert_string_equal(hidden.name, "hidden");
    assert_int_equal(hidden.bytes, ROWS * DIM * sizeof(float));
    must(&r, tandem_model_binding(r.s, r.model, numbers, 3, 2, &hidden));
    assert_string_equal(hidden.name, "top");
    assert_int_equal(hidden.bytes, ROWS * 2 * TOPS * sizeof(float));
    must(&r, tandem_model_instance(r.s, r.model, &(tandem_instance_desc){.struct_bytes = sizeof(tandem_instance_desc)},
                                   &r.instance));
    must(&r, tandem_model_prepare(r.s, r.instance, numbers, 3));
    must(&r, tandem_mem_create(r.s, &desc, &mem));
    must(&r, tandem_mem_host(r.s, mem, &host));
    for (uint32_t which = 0; which < 3; which++) {
        tandem_network_tensor uniform = {.struct_bytes = sizeof uniform};

        must(&r, tandem_model_uniform(r.s, r.model, numbers, 3, which, &uniform));
        for (int32_t i = 0; i < (which == 2 ? ROWS : TOKENS); i++)
            uniforms[uniform.offset_bytes / 4 + (uint64_t)i] = which == 0   ? (int32_t)(ids[i] = (uint32_t)i * 37 % WORDS)
                                                               : which == 1 ? i
                                                                            : TOKENS - ROWS + i;
        network.state_bytes = uniform.offset_bytes + uniform.bytes;
    }
    const tandem_view views[] = {{.mem = mem, .dtype = TANDEM_DTYPE_F32},
                                 {.mem = mem, .dtype = TANDEM_DTYPE_F32, .offset_bytes = LOGITS_BYTES},
                                 {.mem = mem, .dtype = TANDEM_DTYPE_F32, .offset_bytes = TOPS_AT}};
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_RUN};
    job.op.run = (tandem_run){.instance = r.instance, .bindings = views, .binding_count = 3, .numbers = numbers,
                              .number_count = 3, .uniforms = uniforms, .uniform_bytes = network.state_bytes};
    run(&r, &job);
    must(&r, td_speaker_compute(&speaker, ids, 0, TOKENS, ROWS));
    assert_memory_equal(speaker.logits, host, LOGITS_BYTES);
    const float *rows = (const float *)host + ROWS * WORDS;
    lu_must(td_gguf_open(path, &gguf, NULL, 0), "");
    lf_read(td_gguf_find_tensor(&gguf, "token_embd.weight"), words);
    for (int row = 0; row < ROWS; row++)
        for (int word = 0; word < WORDS; word++) {
            double product = 0;

            for (int i = 0; i < DIM; i++)
                product += (double)rows[row * DIM + i] * words[word * DIM + i];
            assert_float_equal(product, speaker.logits[row * WORDS + word], 0.02);
        }
    for (int row = 0; row < ROWS; row++)
        check_tops(speaker.logits + row * WORDS, (const float *)host + TOPS_AT / sizeof(float) + row * 2 * TOPS, TOPS);
    td_gguf_close(&gguf);
    td_speaker_close(&speaker);
    close_all(&r);
    free(words);
}

/* Two instances have caches of their own. */
static void test_instances(void **state)
{
    const uint32_t ids[3] = {5, 6, 7}, others[3] = {8, 9, 7};
    td_speaker a, b;
    float kept[WORDS];
    rig r;

    (void)state;
    open_session(&r);
    language_file(&shape, NULL);
    must(&r, td_speaker_open(r.s, &(td_speaker_desc){.path = path}, &a));
    assert_int_equal(a.context, CONTEXT);
    b = a;
    b.uniforms = NULL, b.tokens = 0;
    must(&r, tandem_model_instance(
                 r.s, a.model, &(tandem_instance_desc){.struct_bytes = sizeof(tandem_instance_desc)},
                 &b.instance));
    must(&r, td_speaker_read(&a, ids, 0, 3));
    memcpy(kept, a.logits, sizeof kept);
    must(&r, td_speaker_read(&a, ids, 0, 2));
    must(&r, td_speaker_read(&b, others, 0, 3));
    assert_memory_not_equal(b.logits, kept, sizeof kept);
    must(&r, td_speaker_read(&a, ids + 2, 2, 1));
    assert_memory_equal(a.logits, kept, sizeof kept);
    free(b.uniforms);
    td_speaker_close(&a);
    close_all(&r);
}

static void test_refusals_of_files(void **state)
{
    static const struct {
        lf_change change;
        tandem_status status;
        const char *says;
    } kinds[] = {
        {{.key = "general.architecture", .text = "mamba"}, TANDEM_ERROR_UNSUPPORTED, "\"mamba\""},
        {{.lacks = "llama.block_count"}, TANDEM_ERROR_PROTOCOL, "llama.block_count"},
        {{.lacks = "blk.1.attn_v.weight"}, TANDEM_ERROR_PROTOCOL, "blk.1.attn_v.weight"},
    };
    tandem_model_desc desc;
    tandem_model model = 1;
    rig r;

    (void)state;
    open_session(&r);
    const int live = atomic_load(&r.live);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const unsigned before = errors_of(&r);

        language_file(&shape, &kinds[i].change);
        check_refusal(&r, before, kinds[i].status, kinds[i].says,
                      tandem_model_load(r.s, path, &model), __LINE__);
        assert_non_null(strstr(r.last, path));
        assert_int_equal(model, 0);
        assert_int_equal(atomic_load(&r.live), live);
    }
    language_file(&shape, NULL);
    desc = desc_of(1, CONTEXT + 1);
    REFUSED(&r, ARG, "context is 49; the model was trained for 48",
            tandem_model_create(r.s, &desc, &model));
    assert_int_equal(truncate(path, 70000), 0);
    REFUSED(&r, PROTOCOL, "(byte ", tandem_model_load(r.s, path, &model));
    write_file("GGUF", 4);
    REFUSED(&r, PROTOCOL, path, tandem_model_load(r.s, path, &model));
    assert_int_equal(atomic_load(&r.live), live);
    close_all(&r);
}

static void test_refusals_of_calls(void **state)
{
    tandem_model model;
    tandem_model_desc desc;
    rig r;

    (void)state;
    open_session(&r);
    language_file(&shape, NULL);
    desc = desc_of(0, 0);
    REFUSED(&r, ARG, "desc is NULL", tandem_model_create(r.s, NULL, &model));
    REFUSED(&r, ARG, "model is NULL", tandem_model_create(r.s, &desc, NULL));
    desc.struct_bytes--;
    REFUSED(&r, ARG, "desc.struct_bytes is", tandem_model_create(r.s, &desc, &model));
    desc = desc_of(0, 0);
    desc.cache = 4;
    REFUSED(&r, ARG, "cache is 4; it must be 0 (f16), 1 (k8v8), 2 (k4v8) or 3 (f32)",
            tandem_model_create(r.s, &desc, &model));
    desc = desc_of(0, 0);
    desc.hidden = 2;
    REFUSED(&r, ARG, "desc.hidden is 2, not 0 or 1", tandem_model_create(r.s, &desc, &model));
    desc = desc_of(0, 0);
    desc.tops = 65;
    REFUSED(&r, ARG, "desc.tops is 65; it must be at most 64", tandem_model_create(r.s, &desc, &model));
    desc = desc_of(0, 0);
    desc.reserved = 3;
    REFUSED(&r, ARG, "desc.reserved is 3; it must be 0", tandem_model_create(r.s, &desc, &model));
    desc = desc_of(0, 0);
    desc.path = NULL;
    REFUSED(&r, ARG, "desc.path is NULL", tandem_model_create(r.s, &desc, &model));
    desc = desc_of(0, 5);
    desc.path = network_file(NULL);
    REFUSED(&r, ARG, "desc.sequences is 0, desc.context 5 and desc.cache 0; all must be 0",
            tandem_model_create(r.s, &desc, &model));
    desc = desc_of(0, 0);
    desc.pages = 2;
    desc.path = network_file(NULL);
    REFUSED(&r, ARG, "as must desc.pages", tandem_model_create(r.s, &desc, &model));
    close_all(&r);
}

/* Without memory, each time one allocation later. */
static void test_no_memory(void **state)
{
    tandem_status status = TANDEM_ERROR_NOMEM;
    tandem_model model;
    rig r;

    (void)state;
    open_session(&r);
    language_file(&shape, NULL);
    must(&r, tandem_model_load(r.s, path, &model)); /* the session's tables stay */
    must(&r, tandem_model_destroy(r.s, model));
    const int live = atomic_load(&r.live);
    for (int left = 0; status != TANDEM_OK; left++) {
        atomic_store(&r.left, left);
        status = tandem_model_load(r.s, path, &model);
        atomic_store(&r.left, -1);
        if (status != TANDEM_OK)
            assert_int_equal(status, TANDEM_ERROR_NOMEM);
        if (status != TANDEM_OK)
            assert_int_equal(atomic_load(&r.live), live);
        assert_true(left < 100);
    }
    must(&r, tandem_model_destroy(r.s, model));
    assert_int_equal(atomic_load(&r.live), live);
    close_all(&r);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_what_it_brings),   cmocka_unit_test(test_tensors),
    cmocka_unit_test(test_logits),
    cmocka_unit_test(test_further_outputs),           cmocka_unit_test(test_instances),
    cmocka_unit_test(test_refusals_of_files), cmocka_unit_test(test_refusals_of_calls),
    cmocka_unit_test(test_no_memory),
};
const test_cases network_language_cases = TEST_CASES(tests);
