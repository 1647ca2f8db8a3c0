/* What a character's replies must be. See characters_parts.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>

#include "engine_plugin/client/client.h"
#include "engine_plugin/npc/characters_parts.h"
#include "engine_plugin/npc/schema.h"

void td_npc_free_grammar(tandem_npc *n)
{
    td_matcher_destroy(&n->matcher);
    td_grammar_destroy(&n->grammar);
    free(n->grammar_text);
    free(n->schema_text);
    n->grammar_text = n->schema_text = NULL;
}

/* A grammar's text; of a schema, or of a grammar with the schema as its rule `json` behind it, so
 * that lines are counted as the caller does. */
static tandem_status write_grammar(const char *grammar, const char *schema, char **out, char *why)
{
    char *json = NULL;
    tandem_status status = TANDEM_OK;

    *out = NULL;
    if (schema)
        status = td_schema_to_grammar(schema, strlen(schema), grammar ? "json" : "root", &json, why,
                                      TD_WHY_BYTES);
    if (status != TANDEM_OK || !grammar) {
        *out = json;
        return status;
    }
    const size_t bytes = strlen(grammar), json_bytes = json ? strlen(json) : 0;
    *out = malloc(bytes + json_bytes + 2);
    if (*out) {
        memcpy(*out, grammar, bytes);
        (*out)[bytes] = '\n';
        memcpy(*out + bytes + 1, json ? json : "", json_bytes + 1);
    }
    free(json);
    return *out ? status
                : td_fail(why, TD_WHY_BYTES, TANDEM_ERROR_NOMEM, "no memory for a grammar");
}

static char *copy_text(const char *text)
{
    const size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);

    return copy ? memcpy(copy, text, bytes) : NULL;
}

static bool is_same(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

tandem_status td_npc_take_grammar(tandem_npc *n, const char *grammar, const char *schema, char *why)
{
    char what[TD_WHY_BYTES], *text = NULL;
    bool is_grammar = false; /* that is wrong, if anything is */

    if (n->matcher && is_same(n->grammar_text, grammar) && is_same(n->schema_text, schema))
        return TANDEM_OK;
    td_npc_free_grammar(n);
    tandem_status status = write_grammar(grammar, schema, &text, what);
    if (status == TANDEM_OK) {
        is_grammar = grammar != NULL;
        status = td_grammar_create(text, strlen(text), &n->grammar, what, sizeof what);
    }
    free(text);
    if (status == TANDEM_OK)
        status = td_matcher_create(n->grammar, n->language->tree, &n->matcher, what, sizeof what);
    if (status == TANDEM_OK && ((grammar && !(n->grammar_text = copy_text(grammar))) ||
                                (schema && !(n->schema_text = copy_text(schema)))))
        status = td_fail(what, sizeof what, TANDEM_ERROR_NOMEM, "no memory for a grammar");
    if (status == TANDEM_OK)
        return status;
    td_npc_free_grammar(n);
    return td_fail(why, TD_WHY_BYTES, status, "say.%s: %s", is_grammar ? "grammar" : "json_schema",
                   what);
}
