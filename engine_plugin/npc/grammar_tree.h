/* What reading a grammar and compiling it share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_NPC_GRAMMAR_TREE_H
#define TD_NPC_GRAMMAR_TREE_H

#include "engine_plugin/npc/grammar.h"
#include "kernels/arena.h"

enum {
    TD_MOST_CHARACTER = 0x10ffff,
    TD_RULE_HASHES = 4096,
    TD_FIRST_SURROGATE = 0xd800,
    TD_LAST_SURROGATE = 0xdfff
};
#define TD_NO_LIMIT UINT32_MAX

typedef enum td_grammar_kind {
    TD_GRAMMAR_TEXT,
    TD_GRAMMAR_SET,
    TD_GRAMMAR_RULE,
    TD_GRAMMAR_SEQUENCE,
    TD_GRAMMAR_CHOICE,
    TD_GRAMMAR_REPEAT
} td_grammar_kind;

typedef struct td_grammar_range {
    uint32_t first, last; /* characters */
} td_grammar_range;

typedef struct td_grammar_node {
    td_grammar_kind kind;
    const char *text;              /* TEXT */
    uint32_t count;                /* bytes, ranges or children */
    td_grammar_range *ranges;      /* SET: in rising order, none of which touch */
    struct td_grammar_node **kids; /* SEQUENCE, CHOICE; REPEAT has one */
    uint32_t rule;                 /* RULE */
    uint32_t least, most;          /* REPEAT; TD_NO_LIMIT */
} td_grammar_node;

typedef struct td_grammar_rule {
    const char *name;
    uint32_t bytes, line;  /* where it was first named */
    td_grammar_node *body; /* NULL: it was not defined yet */
    uint32_t next;         /* of those whose names have this one's hash */
} td_grammar_rule;

typedef struct td_grammar_parser {
    const char *at, *end;
    uint32_t line, depth;
    td_arena arena;
    td_grammar_rule *rules;
    uint32_t rule_count;
    uint32_t by_hash[TD_RULE_HASHES]; /* one more than the first rule's number; 0: none */
    td_grammar *made;
    uint32_t room, work; /* of steps; nodes that were compiled */
    char *why;
    size_t why_bytes;
    tandem_status status; /* once it is not OK, nothing more is read */
} td_grammar_parser;

void td_grammar_fail_at(td_grammar_parser *p, uint32_t line, const char *format, ...)
    __attribute__((format(TD_PRINTF, 3, 4)));
void td_grammar_no_memory(td_grammar_parser *p);

/* How many bytes a character has. */
uint32_t td_grammar_utf8(uint32_t c, uint8_t to[4]);

/* Makes p->made of p->rules, of which `root` is the one that texts begin with. */
void td_grammar_compile(td_grammar_parser *p, uint32_t root);

#endif
