/* Texts that end a reply. See stops.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/npc/stops.h"

#include <stdlib.h>
#include <string.h>

/* The bytes at `at` that a text begins with, of those that are there. */
static size_t begins(const char *text, const char *at, size_t bytes)
{
    size_t same = 0;

    while (same < bytes && text[same] && text[same] == at[same])
        same++;
    return same;
}

/* Where a stop begins, or what may yet become one; `bytes`: nowhere. */
static size_t find(td_stops *s)
{
    for (size_t at = 0; at < s->held_bytes; at++)
        for (size_t i = 0; i < s->count; i++) {
            const size_t same = begins(s->texts[i], s->held + at, s->held_bytes - at);

            s->found = s->found || !s->texts[i][same];
            if (s->found || at + same == s->held_bytes)
                return at;
        }
    return s->held_bytes;
}

tandem_status td_stops_add(td_stops *s, const char *text, size_t bytes, const char **out,
                           size_t *out_bytes)
{
    *out = "";
    *out_bytes = 0;
    if (s->found)
        return TANDEM_OK;
    if (s->held_bytes + bytes > s->room) {
        const size_t room = 2 * (s->held_bytes + bytes);
        char *more = realloc(s->held, 2 * room); /* the second half is for what is shown */

        if (!more)
            return TANDEM_ERROR_NOMEM;
        s->held = more;
        s->room = room;
    }
    if (bytes)
        memcpy(s->held + s->held_bytes, text, bytes);
    s->held_bytes += bytes;
    if (!s->held_bytes)
        return TANDEM_OK;
    const size_t shown = find(s);
    char *shows = s->held + s->room;
    memcpy(shows, s->held, shown);
    s->held_bytes -= shown;
    memmove(s->held, s->held + shown, s->held_bytes);
    *out = shows;
    *out_bytes = shown;
    return TANDEM_OK;
}

void td_stops_end(td_stops *s, const char **out, size_t *out_bytes)
{
    *out = s->held_bytes && !s->found ? s->held : "";
    *out_bytes = s->found ? 0 : s->held_bytes;
    s->held_bytes = 0;
}

void td_stops_free(td_stops *s)
{
    free(s->held);
    s->held = NULL;
    s->held_bytes = s->room = 0;
}
