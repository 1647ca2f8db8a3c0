/* A network as large as one that is used, through tandemd: the encoder of all-MiniLM-L6-v2 with weights that are made up. The
 * daemon, and the client, know the graph from the file alone; the bits are those of its program.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/kernels/minilm_util.h"

#include <stdlib.h>
#include <string.h>

#include "tests/plugin/daemon_util.h"

static void run_both(const minilm *model, const minilm_batch *batch, void *user)
{
    minilm_batch again = *batch;
    const size_t bytes = (size_t)batch->count * MINILM_DIM * sizeof(float);

    again.embeddings = minilm_memory(bytes);
    minilm_run_cpu(model, batch, NULL);
    minilm_run_session(model, &again, user);
    assert_memory_equal(batch->embeddings, again.embeddings, bytes);
    free(again.embeddings);
}

static void test_same_bits(void **state)
{
    tandem_session_desc desc = {.struct_bytes = sizeof desc, .backend = TANDEM_BACKEND_CPU};
    const td_target cpu = td_target_for_sm(0);
    minilm_sentences some = minilm_read_sentences(), all = some;
    minilm model = minilm_open("f16", NULL);
    char here[500], file[600], config[600];
    minilm_session session;
    group_daemon daemon;
    float *embeddings;

    (void)state;
    assert_non_null(getcwd(here, sizeof here));
    snprintf(config, sizeof config, "backend = cpu\nmodel_dir = %s\n", here);
    snprintf(file, sizeof file, "%s/minilm_daemon_%d.safetensors", here, (int)getpid());
    minilm_write(&model, "f16", file);
    assert_int_equal(group_daemon_begin(&daemon, "minilm", config), 0);
    desc.socket = daemon.socket_path;
    session = minilm_session_open(&desc, file);
    unlink(file); /* who has opened it has it */
    some.count = getenv("TANDEM_SANITIZED") ? 4 : 20;
    embeddings = minilm_memory((uint64_t)some.count * MINILM_DIM * sizeof(float));
    for (uint32_t batch = 1; batch <= 8; batch += 7)
        minilm_embed(&model, &some, batch, &cpu, run_both, &session, embeddings);
    minilm_session_close(&session);
    assert_int_equal(group_daemon_end(&daemon), 0);
    minilm_close(&model);
    minilm_free_sentences(&all);
    free(embeddings);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
