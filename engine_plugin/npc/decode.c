/* Tokens as a text. See tokenizer.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/utf8.h"
#include "engine_plugin/npc/vocabulary.h"

td_decoder td_decoder_begin(const td_tokenizer *t, bool special)
{
    return (td_decoder){.tokenizer = t, .special = special};
}

size_t td_decoder_room(const td_tokenizer *t)
{
    return (size_t)TD_UTF8_REPLACEMENT_BYTES * (TD_UTF8_MOST_BYTES + t->longest);
}

/* One byte more: what is held becomes a character, is broken, or is held on. */
static size_t add_byte(td_decoder *d, char byte, char *to)
{
    size_t written = 0, length;

    d->held[d->held_bytes++] = byte;
    while (d->held_bytes) {
        const td_utf8_state state = td_utf8_next(d->held, d->held_bytes, &length);
        const bool whole = state == TD_UTF8_WHOLE;
        const size_t put = whole ? length : TD_UTF8_REPLACEMENT_BYTES;

        if (state == TD_UTF8_CUT)
            break;
        memcpy(to + written, whole ? d->held : TD_UTF8_REPLACEMENT, put);
        written += put;
        d->held_bytes -= (uint32_t)length;
        memmove(d->held, d->held + length, d->held_bytes);
    }
    return written;
}

size_t td_decoder_add(td_decoder *d, uint32_t token, char *to)
{
    const td_tokenizer *t = d->tokenizer;
    const bool is_special = td_tokenizer_is_special(t, token);
    td_gguf_string piece = td_tokenizer_piece(t, token);
    size_t written = 0;

    if (is_special && !d->special)
        return 0;
    /* The space that encoding put before the text. */
    if (!is_special && !d->begun && t->space_first && piece.length && piece.bytes[0] == ' ')
        piece.bytes++, piece.length--;
    d->begun = true;
    for (uint64_t i = 0; i < piece.length; i++)
        written += add_byte(d, piece.bytes[i], to + written);
    return written;
}

size_t td_decoder_end(td_decoder *d, char *to)
{
    const size_t written = d->held_bytes ? TD_UTF8_REPLACEMENT_BYTES : 0;

    memcpy(to, TD_UTF8_REPLACEMENT, written);
    d->held_bytes = 0;
    return written;
}
