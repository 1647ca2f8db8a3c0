/* A language model's file on a session. See language.h, and tandem/npc.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/language.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine_plugin/client/client.h"
#include "kernels/model/folder.h"

/* The form that was asked for, or the file's own. */
static tandem_status find_form(tandem_language *l, const td_gguf *file, const char *name, char *why)
{
    td_gguf_string program = {"", 0};
    char what[TD_WHY_BYTES] = "";

    if (td_gguf_find(file, "tokenizer.chat_template"))
        td_gguf_text(file, "tokenizer.chat_template", &program, what, sizeof what);
    const tandem_status status =
        td_chat_choose(name, program, &l->own_form, &l->form, what, sizeof what);
    return status == TANDEM_OK
               ? status
               : td_fail(why, TD_WHY_BYTES, status, "desc.form is %s%s",
                         status == TANDEM_ERROR_UNSUPPORTED ? "" : "no form: ", what);
}

static tandem_status read_vocabulary(tandem_language *l, const tandem_language_desc *desc,
                                     char *why)
{
    char what[TD_WHY_BYTES] = "";
    td_gguf file;
    tandem_status status = td_checkpoint_open(desc->path, &file, what, sizeof what);

    if (status == TANDEM_OK) {
        status = td_tokenizer_create(&file, &l->tokenizer, what, sizeof what);
        if (status == TANDEM_OK)
            status = find_form(l, &file, desc->form, what);
        td_gguf_close(&file);
    }
    if (status == TANDEM_OK && td_token_tree_create(l->tokenizer, &l->tree) != TANDEM_OK)
        status = td_fail(what, sizeof what, TANDEM_ERROR_NOMEM, "no memory for a vocabulary");
    return status == TANDEM_OK ? status
                               : td_fail(why, TD_WHY_BYTES, status, "'" TD_NAME "': %s",
                                         TD_NAMED(desc->path), what);
}

/* What the network says of itself; what goes wrong is in the session's text already. */
static tandem_status load_model(tandem_language *l, const tandem_language_desc *desc)
{
    const tandem_model_desc model = {
        .struct_bytes = sizeof model, .path = desc->path, .context = desc->context};
    tandem_network network = {.struct_bytes = sizeof network};
    tandem_network_number tokens = {.struct_bytes = sizeof tokens};
    tandem_status status = tandem_model_create(l->session, &model, &l->model);

    if (status == TANDEM_OK)
        status = tandem_model_info(l->session, l->model, &network);
    if (status == TANDEM_OK)
        status = tandem_model_number(l->session, l->model, 1, &tokens);
    l->context = tokens.most;
    l->npc_bytes = network.state_bytes;
    return status;
}

static void free_language(tandem_language *l)
{
    td_token_tree_destroy(&l->tree);
    td_tokenizer_destroy(&l->tokenizer);
    td_chat_own_destroy(&l->own_form);
    free(l);
}

static tandem_status check_desc(const tandem_language_desc *desc, char *why)
{
    if (!desc->path)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.path is NULL");
    if (desc->precision > TANDEM_PRECISION_4B)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.precision is %" PRIu32
                       "; it must be 0 (auto), 1 (f16), 2 (8b) or 3 (4b)",
                       desc->precision);
    if (desc->reserved)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG, "desc.reserved is %" PRIu32 ", not 0",
                       desc->reserved);
    return TANDEM_OK;
}

tandem_status tandem_language_create(tandem_session *session, const tandem_language_desc *desc,
                                     tandem_language **out)
{
    char why[TD_WHY_BYTES] = "";
    tandem_language_desc known;
    tandem_status status;

    if (out)
        *out = NULL;
    if (!td_session_usable(session, __func__))
        return TANDEM_ERROR_ARG;
    if (!desc || !out)
        return td_session_fail(session, __func__, TANDEM_ERROR_ARG,
                               desc ? "out is NULL" : "desc is NULL");
    status = TD_STRUCT_IN("desc", desc, &known, why, sizeof why);
    if (status == TANDEM_OK)
        status = check_desc(&known, why);
    if (status != TANDEM_OK)
        return td_session_fail(session, __func__, status, why);
    tandem_language *l = calloc(1, sizeof *l);
    if (!l)
        return td_session_fail(session, __func__, TANDEM_ERROR_NOMEM, "no memory for a language");
    l->session = session;
    l->precision = known.precision;
    status = read_vocabulary(l, &known, why);
    if (status != TANDEM_OK)
        td_session_fail(session, __func__, status, why);
    else
        status = load_model(l, &known);
    if (status == TANDEM_OK) {
        *out = l;
        return status;
    }
    if (l->model)
        tandem_model_destroy(session, l->model);
    free_language(l);
    return status;
}

tandem_status tandem_language_destroy(tandem_language **language)
{
    char why[TD_WHY_BYTES];

    if (!language || !*language)
        return td_call_fail(__func__, TANDEM_ERROR_ARG,
                            language ? "*language is NULL" : "language is NULL");
    tandem_language *l = *language;
    const unsigned npcs = atomic_load(&l->npcs);
    if (!td_session_usable(l->session, __func__))
        return TANDEM_ERROR_ARG;
    if (npcs) {
        td_text(why, sizeof why, "language has %u characters, which must be destroyed first", npcs);
        return td_session_fail(l->session, __func__, TANDEM_ERROR_ARG, why);
    }
    const tandem_status status = tandem_model_destroy(l->session, l->model);
    if (status != TANDEM_OK)
        return status;
    free_language(l);
    *language = NULL;
    return TANDEM_OK;
}

tandem_status tandem_language_get_info(tandem_language *language, tandem_language_info *info)
{
    char why[TD_WHY_BYTES] = "";
    tandem_language_info ours = {0};

    if (!language)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, "language is NULL");
    if (!td_session_usable(language->session, __func__))
        return TANDEM_ERROR_ARG;
    if (!info)
        return td_session_fail(language->session, __func__, TANDEM_ERROR_ARG, "info is NULL");
    const tandem_status status = TD_STRUCT_CHECK("info", info, why, sizeof why);
    if (status != TANDEM_OK)
        return td_session_fail(language->session, __func__, status, why);
    ours.context = language->context;
    ours.words = td_tokenizer_count(language->tokenizer);
    ours.npcs = atomic_load(&language->npcs);
    ours.npc_bytes = language->npc_bytes;
    if (language->form)
        snprintf(ours.form, sizeof ours.form, "%s", language->form->name);
    TD_STRUCT_OUT(info, &ours);
    return TANDEM_OK;
}
