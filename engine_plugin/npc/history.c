/* What was said to a character and by it. See history.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/history.h"

#include <stdlib.h>
#include <string.h>

void td_history_free(td_history *h)
{
    td_history_clear(h);
    free(h->turns);
    free(h->persona);
    *h = (td_history){0};
}

void td_history_clear(td_history *h)
{
    while (h->count)
        td_history_drop_last(h);
    h->forgotten = 0;
}

tandem_status td_history_add(td_history *h, td_chat_role role, const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);

    if (h->count == h->room && copy) {
        td_chat_turn *more = realloc(h->turns, (2 * h->room + 8) * sizeof *more);

        if (!more) {
            free(copy);
            return TANDEM_ERROR_NOMEM;
        }
        h->turns = more;
        h->room = 2 * h->room + 8;
    }
    if (!copy)
        return TANDEM_ERROR_NOMEM;
    if (bytes)
        memcpy(copy, text, bytes);
    copy[bytes] = 0;
    h->turns[h->count++] = (td_chat_turn){role, copy, bytes};
    /* cppcheck-suppress memleak ; it is the turn's now */
    return TANDEM_OK;
}

void td_history_drop_last(td_history *h)
{
    free((char *)h->turns[--h->count].text);
}

/* The system's turns at the beginning, which stay. */
static size_t count_kept(const td_history *h)
{
    size_t kept = 0;

    while (kept < h->count && h->turns[kept].role == TD_CHAT_SYSTEM)
        kept++;
    return kept;
}

/* Those behind what is kept, before `first`. */
static void forget(td_history *h, size_t kept, size_t first)
{
    for (size_t i = kept; i < first; i++)
        free((char *)h->turns[i].text);
    memmove(h->turns + kept, h->turns + first, (h->count - first) * sizeof *h->turns);
    h->count -= first - kept;
    h->forgotten += (uint32_t)(first - kept);
}

/* Persona, what is kept, and turns from `first` on; `turns` has room for all. */
static tandem_status encode_from(const td_history *h, size_t kept, size_t first,
                                 const td_tokenizer *t, const td_chat_form *form,
                                 td_chat_turn *turns, td_tokens *out, char *why, size_t why_bytes)
{
    size_t count = 0;

    out->count = 0;
    if (h->persona)
        turns[count++] = (td_chat_turn){TD_CHAT_SYSTEM, h->persona, strlen(h->persona)};
    if (kept)
        memcpy(turns + count, h->turns, kept * sizeof *turns);
    count += kept;
    if (h->count > first)
        memcpy(turns + count, h->turns + first, (h->count - first) * sizeof *turns);
    return td_chat_encode(t, form, turns, count + h->count - first, true, out, why, why_bytes);
}

/* A dialogue that is cut begins with what is said to the character. */
static size_t next_first(const td_history *h, size_t first)
{
    do
        first++;
    while (first + 1 < h->count && h->turns[first].role == TD_CHAT_REPLY);
    return first;
}

tandem_status td_history_encode(td_history *h, const td_tokenizer *t, const td_chat_form *form,
                                uint32_t context, uint32_t reply, td_tokens *out, char *why,
                                size_t why_bytes)
{
    td_chat_turn *turns = malloc((h->count + 1) * sizeof *turns);
    const size_t kept = count_kept(h);
    size_t first = kept, most = context > reply ? context - reply : 0;
    tandem_status status;

    if (!turns)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no memory for %zu turns", h->count);
    status = encode_from(h, kept, first, t, form, turns, out, why, why_bytes);
    while (status == TANDEM_OK && out->count > most && first + 1 < h->count) {
        first = next_first(h, first);
        most = context / 2;
        status = encode_from(h, kept, first, t, form, turns, out, why, why_bytes);
    }
    free(turns);
    if (status == TANDEM_OK && out->count >= context)
        status = td_fail(why, why_bytes, TANDEM_ERROR_ARG,
                         "persona and text have %zu tokens; the context has %u, with a reply",
                         out->count, (unsigned)context);
    if (status == TANDEM_OK)
        forget(h, kept, first);
    return status;
}
