/* Texts that grow. See serve.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "engine_plugin/serve/serve.h"

/* What has no memory is left out: an answer that is cut is no JSON, and no client takes it for it.
 */
void serve_put(serve_text *to, const char *text, size_t bytes)
{
    if (to->bytes + bytes + 1 > to->room) {
        const size_t room = 2 * (to->bytes + bytes) + 256;
        char *more = realloc(to->text, room);

        if (!more)
            return;
        to->text = more;
        to->room = room;
    }
    if (bytes)
        memcpy(to->text + to->bytes, text, bytes);
    to->bytes += bytes;
    to->text[to->bytes] = 0;
}

void serve_put_json(serve_text *to, json_t *json)
{
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    if (text)
        serve_put(to, text, strlen(text));
    free(text);
    json_decref(json);
}
