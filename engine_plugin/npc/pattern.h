/* How texts are cut into words before a byte-level tokenizer merges bytes: each model has patterns
 * that it was trained with.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_PATTERN_H
#define TD_NPC_PATTERN_H

#include "interop/base.h"

typedef struct td_pattern td_pattern;

/* What goes with a model's patterns. */
typedef struct td_pattern_traits {
    bool whole_words; /* a word that is a token is never made of others */
    bool begins;      /* texts begin with a token for that, unless the file says otherwise */
} td_pattern_traits;

typedef struct td_pattern_text {
    const char *bytes;
    size_t length;
} td_pattern_text;

/* `name`: as the key tokenizer.ggml.pre has it, `bytes` long. UNSUPPORTED, naming it, where it is
 * none of those that are known; NOMEM. */
tandem_status td_pattern_create(const char *name, size_t bytes, td_pattern **out, char *why,
                                size_t why_bytes);
/* The same by regular expressions as tokenizer.json has them, each of which cuts what the one before
 * it left whole: UNSUPPORTED where PCRE2 does not take one. */
tandem_status td_pattern_create_of(const td_pattern_text *texts, uint64_t count,
                                   td_pattern_traits traits, td_pattern **out, char *why,
                                   size_t why_bytes);
void td_pattern_destroy(td_pattern **pattern);
td_pattern_traits td_pattern_traits_of(const td_pattern *pattern);

/* Calls word() with each word of a text of whole UTF-8, from left to right; together they are the
 * text. Stops where word() returns something else than OK, and returns that. */
typedef struct td_words {
    tandem_status (*word)(void *user, const char *text, size_t bytes);
    void *user;
} td_words;
tandem_status td_pattern_split(const td_pattern *pattern, const char *text, size_t bytes,
                               td_words words, char *why, size_t why_bytes);

#endif
