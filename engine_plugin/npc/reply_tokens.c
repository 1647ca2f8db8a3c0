/* Tokens of replies, and how likely they were. See tandem/npc.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "engine_plugin/client/client.h"
#include "engine_plugin/npc/characters_parts.h"

static tandem_token_logprob logprob_of(const td_tokenizer *t, td_logprob of)
{
    /* Logits may be of more words than there are tokens, which stand for nothing. */
    const bool is_token = of.token < td_tokenizer_count(t);
    const td_gguf_string piece =
        is_token ? td_tokenizer_piece(t, of.token) : (td_gguf_string){"", 0};

    return (tandem_token_logprob){
        .token = of.token, .logprob = of.logprob, .text = piece.bytes, .text_bytes = piece.length};
}

static tandem_status check(const tandem_npc *n, uint32_t reply, uint32_t index, char *why)
{
    if (reply >= n->begun)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "reply is %" PRIu32 "; %" PRIu32 " have begun", reply, n->begun);
    if (!n->say.logprobs)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "nothing was kept: tandem_say.logprobs was 0");
    if (index >= n->said[reply].likely.count)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "index is %" PRIu32 "; reply %" PRIu32 " has %zu tokens", index, reply,
                       n->said[reply].likely.count);
    return TANDEM_OK;
}

tandem_status tandem_npc_get_token(tandem_npc *npc, uint32_t reply, uint32_t index,
                                   tandem_npc_token *token)
{
    char why[TD_WHY_BYTES] = "";
    tandem_npc_token ours = {0};
    tandem_status status;

    if (!npc)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, "npc is NULL");
    tandem_session *session = npc->language->session;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!token)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG, "token is NULL");
    status = TD_STRUCT_CHECK("token", token, why, sizeof why);
    if (status == TANDEM_OK)
        status = check(npc, reply, index, why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    const td_likely *likely = &npc->said[reply].likely.list[index];
    const td_tokenizer *t = npc->language->tokenizer;
    for (uint32_t i = 0; i < likely->top_count; i++)
        npc->tops[i] = logprob_of(t, likely->tops[i]);
    ours.top_count = likely->top_count;
    ours.is = logprob_of(t, likely->is);
    ours.top = npc->tops;
    ours.text_offset = likely->text_at;
    TD_STRUCT_OUT(token, &ours);
    return TANDEM_OK;
}
