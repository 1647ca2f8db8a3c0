/* The same for the structs of tandem/npc.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <tandem/npc.h>

#include "tests/kernels/llama_file.h"
#include "tests/plugin/abi/rig.h"

#define WAIT_NS 20000000000u

static char path[60];
static tandem_language *language;
static tandem_npc *npc;
static tandem_embedder *embedder;

static tandem_status create_language(tandem_session *s, const void *given)
{
    tandem_language *made;
    const tandem_status status = tell(s, tandem_language_create(s, given, &made));

    if (status == TANDEM_OK)
        assert_int_equal(tandem_language_destroy(&made), TANDEM_OK);
    return status;
}

static tandem_status create_npc(tandem_session *s, const void *given)
{
    tandem_npc *made;
    const tandem_status status = tell(s, tandem_npc_create(language, given, &made));

    if (status == TANDEM_OK)
        assert_int_equal(tandem_npc_destroy(&made), TANDEM_OK);
    return status;
}

static tandem_status say(tandem_session *s, const void *given)
{
    const tandem_status status = tell(s, tandem_npc_say(npc, given));
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

    if (status == TANDEM_OK)
        do
            assert_int_equal(tandem_npc_wait(npc, WAIT_NS, &news), TANDEM_OK);
        while (news.state != TANDEM_NPC_IDLE);
    assert_int_equal(tandem_npc_cancel(npc), TANDEM_OK);
    return status;
}

static tandem_status sample(tandem_session *s, const void *given)
{
    return say(s, &TANDEM_INIT(tandem_say, .text = "a", .most_tokens = 1, .sampling = given));
}

static tandem_status set_history(tandem_session *s, const void *given)
{
    return tell(s, tandem_npc_set_history(npc, given, 1));
}

static tandem_status fill_info(tandem_session *s, void *out)
{
    (void)s;
    return tandem_language_get_info(language, out);
}

static tandem_status fill_spent(tandem_session *s, void *out)
{
    return tell(s, tandem_language_frame(language, 0, out));
}

static tandem_status fill_news(tandem_session *s, void *out)
{
    (void)s;
    return tandem_npc_poll(npc, out);
}

static tandem_status fill_news_later(tandem_session *s, void *out)
{
    (void)s;
    return tandem_npc_wait(npc, WAIT_NS, out);
}

static tandem_status fill_reply(tandem_session *s, void *out)
{
    (void)s;
    return tandem_npc_get_reply(npc, 0, out);
}

static tandem_status fill_token(tandem_session *s, void *out)
{
    return tell(s, tandem_npc_get_token(npc, 0, 0, out));
}

static tandem_status create_embedder(tandem_session *s, const void *given)
{
    tandem_embedder *made;
    const tandem_status status = tell(s, tandem_embedder_create(language, given, &made));

    if (status == TANDEM_OK)
        assert_int_equal(tandem_embedder_destroy(&made), TANDEM_OK);
    return status;
}

static tandem_status fill_embedding(tandem_session *s, void *out)
{
    return tell(s, tandem_embedder_poll(embedder, out));
}

static tandem_status fill_embedding_later(tandem_session *s, void *out)
{
    return tell(s, tandem_embedder_wait(embedder, WAIT_NS, out));
}

static tandem_status fill_history(uint32_t *count, void *list) { return tandem_npc_get_history(npc, count, list); }

/* A session with a language of made-up weights, and a character of it. */
static tandem_session *begin(void)
{
    static const lf_shape shape = {.layers = 1, .dim = 32, .hidden = 32, .heads = 1, .kv_heads = 1, .head_dim = 64,
                                   .rotated_channels = 64, .words = 300, .context = 96, .dtype = TANDEM_DTYPE_F16,
                                   .speaks = true};
    tandem_session *s;

    snprintf(path, sizeof path, "/tmp/tandem_abi_%d.gguf", (int)getpid());
    lf_write(path, &shape, NULL);
    assert_int_equal(tandem_session_create(&TANDEM_INIT(tandem_session_desc, .cpu_threads = 1, .rung = TANDEM_RUNG_CPU), &s),
                     TANDEM_OK);
    assert_int_equal(tell(s, tandem_language_create(s, &TANDEM_INIT(tandem_language_desc, .path = path, .embeds = 1), &language)),
                     TANDEM_OK);
    assert_int_equal(tell(s, tandem_embedder_create(language, &TANDEM_INIT(tandem_embedder_desc), &embedder)), TANDEM_OK);
    assert_int_equal(tell(s, tandem_npc_create(language, &TANDEM_INIT(tandem_npc_desc), &npc)), TANDEM_OK);
    return s;
}

static void end(tandem_session *s)
{
    unlink(path);
    assert_int_equal(tandem_embedder_destroy(&embedder), TANDEM_OK);
    assert_int_equal(tandem_npc_destroy(&npc), TANDEM_OK);
    assert_int_equal(tandem_language_destroy(&language), TANDEM_OK);
    assert_int_equal(tandem_session_destroy(&s), TANDEM_OK);
}

static void test_npc_in(void **state)
{
    tandem_session *s = begin();
    const tandem_language_desc of_file = TANDEM_INIT(tandem_language_desc, .path = path);
    const tandem_npc_desc nobody = TANDEM_INIT(tandem_npc_desc);
    const tandem_say hello = TANDEM_INIT(tandem_say, .text = "a", .most_tokens = 1);
    const tandem_sampling likely = TANDEM_INIT(tandem_sampling);
    const tandem_turn turn = {sizeof turn, TANDEM_ROLE_USER, "a"};

    (void)state;
    longer(s, "desc", &of_file, sizeof of_file, create_language, TANDEM_OK);
    longer(s, "desc", &nobody, sizeof nobody, create_npc, TANDEM_OK);
    longer(s, "say", &hello, sizeof hello, say, TANDEM_OK);
    longer(s, "say.sampling", &likely, sizeof likely, sample, TANDEM_OK);
    longer(s, "desc", &TANDEM_INIT(tandem_embedder_desc), sizeof(tandem_embedder_desc), create_embedder, TANDEM_OK);
    longer(s, "turns[0]", &turn, sizeof turn, set_history, TANDEM_OK);
    shorter(s, &of_file, sizeof of_file, offsetof(tandem_language_desc, form), create_language, TANDEM_OK);
    shorter(s, &nobody, sizeof nobody, 8, create_npc, TANDEM_OK);
    shorter(s, &hello, sizeof hello, offsetof(tandem_say, sampling), say, TANDEM_OK);
    shorter(s, &likely, sizeof likely, 8, sample, TANDEM_OK);
    shorter(s, &TANDEM_INIT(tandem_embedder_desc), sizeof(tandem_embedder_desc), 8, create_embedder, TANDEM_OK);
    shorter(s, &turn, sizeof turn, 8, set_history, TANDEM_ERROR_ARG); /* of no text */
    end(s);
}

static void test_npc_out(void **state)
{
    tandem_session *s = begin();

    (void)state;
    assert_int_equal(say(s, &TANDEM_INIT(tandem_say, .text = "a", .most_tokens = 1, .logprobs = 1, .top_logprobs = 3)), TANDEM_OK);
    out_of(s, sizeof(tandem_language_info), 8, fill_info, TANDEM_OK);
    out_of(s, sizeof(tandem_language_spent), 8, fill_spent, TANDEM_OK);
    out_of(s, sizeof(tandem_npc_news), 8, fill_news, TANDEM_OK);
    out_of(s, sizeof(tandem_npc_news), 8, fill_news_later, TANDEM_OK);
    out_of(s, sizeof(tandem_npc_reply), 8, fill_reply, TANDEM_OK);
    out_of(s, sizeof(tandem_npc_token), 8, fill_token, TANDEM_OK);
    assert_int_equal(tandem_embedder_begin(embedder, "a"), TANDEM_OK);
    out_of(s, sizeof(tandem_embedding), 8, fill_embedding_later, TANDEM_OK);
    out_of(s, sizeof(tandem_embedding), 8, fill_embedding, TANDEM_OK);
    list_of(sizeof(tandem_turn), fill_history);
    end(s);
}

static const struct CMUnitTest cases[] = {cmocka_unit_test(test_npc_in), cmocka_unit_test(test_npc_out)};
const test_cases abi_npc_structs_cases = TEST_CASES(cases);
