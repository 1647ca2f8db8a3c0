/* What a reply may be: grammars in GBNF, the form that other language-model tools use.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     root ::= "yes" | "no" (", because " reason)?
 *     reason ::= [a-z ]{1,40}    # a comment
 *
 * A rule is a name, "::=" and alternatives; it ends where the line does, but for lines that end
 * within ( ), behind ::= or |, or before |. A text begins with rule "root". An element is
 *     "text"          these characters
 *     [a-z], [^"\\]   one character of some ranges, or of all others
 *     .               any character
 *     name, ( ... )   what a rule says; alternatives
 * and behind it may stand ? * + {n} {n,} {n,m}. Characters may be written \n \r \t \\ \" \[ \] \xHH
 * \uHHHH \UHHHHHHHH. No rule may come back to itself before a character is read.
 *
 * It becomes a list of instructions that read bytes, of which a matcher (matcher.h) keeps stacks.
 */
#ifndef TD_NPC_GRAMMAR_H
#define TD_NPC_GRAMMAR_H

#include "interop/base.h"

enum {
    TD_GRAMMAR_BYTES = 1 << 20, /* of a text, at most; */
    TD_GRAMMAR_SIZE = 1 << 20,  /* instructions, with elements as often as they are repeated; */
    TD_GRAMMAR_DEPTH = 64       /* parentheses in each other */
};

typedef enum td_grammar_op {
    TD_GRAMMAR_BYTE,  /* one byte, low to high; goes on behind it */
    TD_GRAMMAR_SPLIT, /* goes on at both a and b */
    TD_GRAMMAR_JUMP,  /* at a */
    TD_GRAMMAR_CALL,  /* rule a, then behind it */
    TD_GRAMMAR_RETURN
} td_grammar_op;

typedef struct td_grammar_step {
    uint8_t op, low, high;
    uint32_t a, b;
} td_grammar_step;

typedef struct td_grammar {
    td_grammar_step *steps;
    uint32_t *rules; /* where each begins */
    uint32_t step_count, rule_count, root;
    uint8_t class_of[256]; /* bytes of one class are the same to all steps */
    uint32_t class_count;
} td_grammar;

/* ARG, saying in which line what is wrong; NOMEM. */
tandem_status td_grammar_create(const char *text, size_t bytes, td_grammar **out, char *why,
                                size_t why_bytes);
void td_grammar_destroy(td_grammar **grammar);

#endif
