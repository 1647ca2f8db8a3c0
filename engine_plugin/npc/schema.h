/* JSON Schema as grammars: what a reply is to be, as programs say it.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Known are
 *     type (one or a list), enum, const, anyOf, oneOf (as anyOf), allOf of one,
 *     $ref within the text
 *     objects: properties, required, additionalProperties
 *     arrays: items, minItems, maxItems
 *     strings: minLength, maxLength
 * and what says nothing about values: title, description, default, examples, format, $defs, ... Any
 * other word is refused, with where it is: nothing that a schema asks is left out silently.
 *
 * What comes out is one of the values that a schema allows, not any: an object has its properties
 * in the schema's order, those that are not required may be missing, and no others; one without
 * properties may have any. A number has at most 16 digits before its point and as many behind it.
 * Between values may be a space, or a line's end and up to 12 spaces.
 */
#ifndef TD_NPC_SCHEMA_H
#define TD_NPC_SCHEMA_H

#include "interop/base.h"

/* The grammar's text, in GBNF, which the caller frees: its first rule is `root`, others are space,
 * character, string, integer, number, boolean, null, member, object, array, value, and the letters
 * f, p, r and t with a number. PROTOCOL where it is no JSON, saying in
 * which line; UNSUPPORTED or ARG, saying at which JSON pointer; NOMEM. */
tandem_status td_schema_to_grammar(const char *text, size_t bytes, const char *root, char **grammar,
                                   char *why, size_t why_bytes);

#endif
