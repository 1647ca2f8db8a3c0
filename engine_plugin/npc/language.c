/* A language model's file on a session. See language.h, and tandem/npc.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/language.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/client/backend.h"
#include "engine_plugin/client/client.h"
#include "engine_plugin/npc/blob.h"
#include "kernels/model/folder.h"
#include "kernels/model/llama.h"
#include "kernels/top/params.h"

enum { DEFAULT_SLOTS = 32, DEFAULT_TOKENS = 16384, MOST_TOKENS = 1 << 24, HASHED_BYTES = 4096 };

/* The form that was asked for, or the file's own. */
static tandem_status find_form(tandem_language *l, const td_gguf *file, const char *name, char *why)
{
    td_gguf_string program = {"", 0};
    char what[TD_WHY_BYTES] = "";

    if (td_gguf_find(file, "tokenizer.chat_template"))
        td_gguf_text(file, "tokenizer.chat_template", &program, what, sizeof what);
    const tandem_status status =
        td_chat_choose(name, program, &l->own_form, &l->form, what, sizeof what);
    if (status == TANDEM_ERROR_UNSUPPORTED)
        return td_fail(why, TD_WHY_BYTES, status, "desc.form is '" TD_NAME "': %s", TD_NAMED(name), what);
    return status == TANDEM_OK ? status : td_fail(why, TD_WHY_BYTES, status, "desc.form is no form: %s", what);
}

/* What tells it from other models: all but the most of its weights. */
static void hash_model(tandem_language *l, const td_gguf *file)
{
    uint64_t first = file->bytes ? file->size : 0; /* of a folder 0: there is nothing before its tensors */

    for (uint32_t i = 0; i < file->tensor_count && file->bytes; i++)
        first = file->tensors[i].offset < first ? file->tensors[i].offset : first;
    l->model_hash = td_blob_hash(TD_BLOB_HASH, file->bytes, first);
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        const td_gguf_tensor *t = &file->tensors[i];

        l->model_hash = td_blob_hash(l->model_hash, t->name, strlen(t->name));
        l->model_hash = td_blob_hash(l->model_hash, t->shape, sizeof t->shape);
        l->model_hash =
            td_blob_hash(l->model_hash, t->data, t->bytes < HASHED_BYTES ? t->bytes : HASHED_BYTES);
    }
}

/* Characters of a run whose uniforms take no more than `room` bytes: tokens, places, rows and tables of pages, each of
 * which begins on its own. */
static uint32_t rows_within(uint64_t room, uint32_t context)
{
    const uint64_t row_bytes = sizeof(int32_t) * (4 + (context + TD_PAGE_TOKENS - 1) / TD_PAGE_TOKENS),
                   part_bytes = 2 * sizeof(int32_t) * TD_PAGE_TOKENS + 4 * TD_PROGRAM_ALIGN;

    return room > part_bytes ? (uint32_t)((room - part_bytes) / row_bytes) : 0;
}

/* Why characters have no caches in common; NULL: they may. */
static const char *no_pages(tandem_language *l, const td_llama *model, const tandem_language_desc *desc)
{
    const char *no_languages = l->session->ops->no_languages ? l->session->ops->no_languages(l->session) : NULL;
    const uint64_t room = l->session->ops->uniform_bytes;

    l->rows = room ? rows_within(room, model->context) : 0;
    if (no_languages)
        return no_languages;
    if (!td_llama_takes_planes(model) || desc->cache == TANDEM_CACHE_F32 ||
        (desc->precision > TANDEM_PRECISION_F16 && !desc->cache))
        return "caches in common are for heads of 64 or 128 channels, scores without windows and caps, and attention of f16";
    return room && !l->rows ? "the context has more pages than tandemd takes with a run" : NULL;
}

/* How many slots and pages characters have in common. None where there are no kernels for a model's
 * heads or scores, and caches fp16; nor where a tandemd computes that is too old. */
static tandem_status find_pages(tandem_language *l, const td_gguf *file,
                                const tandem_language_desc *desc, char *why)
{
    td_llama_desc as = {.slots = 1, .context = desc->context, .cache = desc->cache};
    td_llama model;
    tandem_status status = td_llama_open(file, &as, &model, why, TD_WHY_BYTES);

    if (status != TANDEM_OK)
        return status;
    const uint32_t context = model.context, tokens = desc->tokens ? desc->tokens : DEFAULT_TOKENS;
    const char *lacks = no_pages(l, &model, desc);
    l->layers = model.sizes.layers;
    l->kv_heads = model.sizes.kv_heads;
    l->head_dim = model.sizes.head_dim;
    l->cache = desc->cache;
    td_llama_close(&model);
    hash_model(l, file);
    l->slots = 1;
    if (lacks)
        return !desc->slots && !desc->tokens
                   ? TANDEM_OK
                   : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_UNSUPPORTED,
                             "desc.slots is %" PRIu32 ", desc.tokens %" PRIu32 "; %s", desc->slots, desc->tokens, lacks);
    l->slots = desc->slots ? desc->slots : DEFAULT_SLOTS;
    l->tops = TD_TOP_MOST;
    l->pages = ((tokens > context ? tokens : context) + TD_PAGE_TOKENS - 1) / TD_PAGE_TOKENS;
    return TANDEM_OK;
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
        if (status == TANDEM_OK)
            status = find_pages(l, &file, desc, what);
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
        .struct_bytes = sizeof model,
        .path = desc->path,
        .context = desc->context,
        .cache = desc->cache,
        .sequences = l->pages ? l->slots : 0,
        .pages = l->pages,
        .hidden = desc->embeds,
        .tops = l->tops};
    tandem_network network = {.struct_bytes = sizeof network};
    tandem_network_number wanted = {.struct_bytes = sizeof wanted};
    tandem_network_tensor logits = {.struct_bytes = sizeof logits},
                          hidden = {.struct_bytes = sizeof hidden};
    const uint32_t one[] = {1, 1, 1};
    char what[TD_WHY_BYTES] = "", why[TD_WHY_BYTES] = "";
    tandem_status status = tandem_model_create(l->session, &model, &l->model);

    if (status == TANDEM_OK)
        status = tandem_model_info(l->session, l->model, &network);
    if (status == TANDEM_OK)
        status = tandem_model_number(l->session, l->model, 2, &wanted);
    if (status == TANDEM_OK)
        status = tandem_model_binding(l->session, l->model, one, 3, 0, &logits);
    if (status == TANDEM_OK && desc->embeds)
        status = tandem_model_binding(l->session, l->model, one, 3, 1, &hidden);
    l->hidden = hidden.shape[3];
    l->context = wanted.most / l->slots; /* of all tokens of all slots */
    l->words = logits.shape[3];
    l->npc_bytes = network.state_bytes;
    if (l->pages) /* of as many pages as a context has */
        l->npc_bytes = network.state_bytes / l->pages *
                       ((l->context + TD_PAGE_TOKENS - 1) / TD_PAGE_TOKENS);
    if (status != TANDEM_OK)
        return status;
    status = td_tokenizer_fits(l->tokenizer, l->words, what, sizeof what);
    if (status == TANDEM_OK)
        return status;
    td_fail(why, sizeof why, status, "'" TD_NAME "': %s", TD_NAMED(desc->path), what);
    return td_session_fail(l->session, "tandem_language_create", status, why);
}

td_stage_desc td_language_stage_desc(const tandem_language *l)
{
    return (td_stage_desc){.session = l->session,
                           .model = l->model,
                           .slots = l->slots,
                           .pages = l->pages,
                           .rows = l->rows,
                           .context = l->context,
                           .precision = l->precision,
                           .layers = l->layers,
                           .kv_heads = l->kv_heads,
                           .head_dim = l->head_dim,
                           .cache = l->cache,
                           .hidden = l->hidden,
                           .tops = l->tops};
}

tandem_status td_language_stage(tandem_language *l)
{
    const td_stage_desc desc = td_language_stage_desc(l);
    tandem_status status = TANDEM_OK;

    pthread_mutex_lock(&l->lock);
    if (!l->stage)
        status = td_stage_create(&desc, &l->stage);
    pthread_mutex_unlock(&l->lock);
    return status;
}

static void free_language(tandem_language *l)
{
    td_stage_destroy(&l->stage);
    pthread_mutex_destroy(&l->lock);
    td_token_tree_destroy(&l->tree);
    td_tokenizer_destroy(&l->tokenizer);
    td_chat_own_destroy(&l->own_form);
    td_session_drop(l->session);
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
    if (desc->cache > TANDEM_CACHE_K4V8)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.cache is %" PRIu32 "; it must be 0 (f16), 1 (k8v8) or 2 (k4v8)",
                       desc->cache);
    if (desc->slots > TD_STAGE_SLOTS)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.slots is %" PRIu32 "; it may be at most %d", desc->slots,
                       TD_STAGE_SLOTS);
    if (desc->tokens > MOST_TOKENS)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.tokens is %" PRIu32 "; it may be at most %d", desc->tokens,
                       MOST_TOKENS);
    if (desc->embeds > 1 || desc->reserved)
        return td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_ARG,
                       "desc.embeds is %" PRIu32 " and desc.reserved %" PRIu32
                       "; they must be 0 or 1, and 0",
                       desc->embeds, desc->reserved);
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
    if (l && pthread_mutex_init(&l->lock, NULL)) {
        free(l);
        l = NULL;
    }
    if (!l)
        return td_session_fail(session, __func__, TANDEM_ERROR_NOMEM, "no memory for a language");
    l->session = session;
    atomic_fetch_add(&session->holders, 1);
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
    const unsigned npcs = atomic_load(&l->npcs), embedders = atomic_load(&l->embedders);
    if (!td_session_is_here(l->session, __func__))
        return TANDEM_ERROR_ARG;
    const bool over = td_session_is_over(l->session); /* and its model with it */
    if (npcs || embedders) {
        td_text(why, sizeof why, "language has %u %s, which must be destroyed first",
                npcs ? npcs : embedders, npcs ? "characters" : "embedders");
        return over ? td_call_fail(__func__, TANDEM_ERROR_ARG, why) : td_session_fail(l->session, __func__, TANDEM_ERROR_ARG, why);
    }
    td_stage_destroy(&l->stage);
    const tandem_status status = over ? TANDEM_OK : tandem_model_destroy(l->session, l->model);
    if (status != TANDEM_OK)
        return status;
    free_language(l);
    *language = NULL;
    return TANDEM_OK;
}

/* What characters have in common, once the first of them was made. */
static void tell_stage(tandem_language *l, tandem_language_info *info)
{
    pthread_mutex_lock(&l->lock);
    td_stage *stage = l->stage;
    pthread_mutex_unlock(&l->lock);
    info->slots = l->pages ? l->slots : 0;
    info->pages = l->pages;
    if (!stage)
        return;
    const td_stage_counts counts = td_stage_count(stage);
    info->pages_held = counts.pages_held;
    info->pages_kept = counts.pages_kept;
    info->cache_bytes = counts.cache_bytes;
    info->tokens_computed = counts.tokens;
    info->runs = counts.runs;
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
    ours.embedding_count = language->hidden;
    tell_stage(language, &ours);
    if (language->form)
        snprintf(ours.form, sizeof ours.form, "%s", language->form->name);
    TD_STRUCT_OUT(info, &ours);
    return TANDEM_OK;
}

tandem_status tandem_language_frame(tandem_language *language, uint32_t budget_us,
                                    tandem_language_spent *spent)
{
    char why[TD_WHY_BYTES] = "";
    tandem_status status = TANDEM_OK;

    if (!language)
        return td_call_fail(__func__, TANDEM_ERROR_ARG, "language is NULL");
    if (!td_session_usable(language->session, __func__))
        return TANDEM_ERROR_ARG;
    if (spent)
        status = TD_STRUCT_CHECK("spent", spent, why, sizeof why);
    if (status == TANDEM_OK && !language->pages)
        status = td_fail(
            why, sizeof why, TANDEM_ERROR_UNSUPPORTED,
            "characters of this language have caches of their own, which have no budget in common");
    if (status != TANDEM_OK)
        return td_session_fail(language->session, __func__, status, why);
    status = td_language_stage(language);
    if (status != TANDEM_OK)
        return status;
    const td_stage_spent had = td_stage_frame(language->stage, (uint64_t)budget_us * 1000);
    const tandem_language_spent ours = {.spent_us = (uint32_t)(had.spent_ns / 1000),
                                        .late_us = (uint32_t)(had.late_ns / 1000),
                                        .waiting = had.waiting,
                                        .tokens = had.tokens,
                                        .tokens_per_s = (float)had.tokens_per_s};
    if (spent)
        TD_STRUCT_OUT(spent, &ours);
    return TANDEM_OK;
}
