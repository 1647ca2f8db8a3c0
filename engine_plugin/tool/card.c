/* Cards of characters. See card.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/card.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/tool/system.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"

enum { CARD_BYTES = 1 << 14, LINE_BYTES = 1 << 10, GOODS = 64, MOST_PRICE = 99999 };

/* What a line may say, in its order within the help of `tandem npc`. */
enum { NAME, TRADE, PLACE, MOOD, SELLS, HAS, KNOWS, QUEST, KEYS };
static const char *const keys[] = {"name", "trade", "place", "mood", "sells",
                                   "has",  "knows", "quest", NULL};
static const char key_list[] = "name, trade, place, mood, sells, has, knows, quest";
static const char *const moods[] = {"cheerful", "calm", "kind",  "shy",   "weary", "gloomy",
                                    "grumpy",   "wary", "proud", "angry", NULL};
static const char mood_list[] =
    "cheerful, calm, kind, shy, weary, gloomy, grumpy, wary, proud, angry";
static const char *const states[] = {"open", "taken", "done", NULL};

typedef struct reader {
    char *goods[GOODS]; /* that it sells or has */
    uint32_t good_count, line;
    bool seen[KEYS];
    char *why;
    size_t why_bytes;
} reader;

static bool wrong(const reader *r, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
static bool wrong(const reader *r, const char *format, ...)
{
    char text[300];
    va_list list;

    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    snprintf(r->why, r->why_bytes, "line %u: %s", r->line, text);
    return false;
}

/* --- Lines --- */

static char *trimmed(char *text)
{
    size_t length;

    text += strspn(text, " \t");
    for (length = strlen(text); length && strchr(" \t\r", text[length - 1]); length--)
        continue;
    text[length] = 0;
    return text;
}

/* Its next element, and where the one behind it begins, or NULL. */
static char *next_of_list(char **rest)
{
    char *at = *rest, *comma = at ? strchr(at, ',') : NULL;

    if (comma)
        *comma = 0;
    *rest = comma ? comma + 1 : NULL;
    return at ? trimmed(at) : NULL;
}

/* "12 coins" */
static bool is_amount(char *text)
{
    char *space = strchr(text, ' ');
    uint64_t amount;

    if (space)
        *space = 0;
    return space && tool_number(text, 1, MOST_PRICE, &amount) &&
           (!strcmp(space + 1, "coins") || !strcmp(space + 1, "coin"));
}

static bool add_good(reader *r, const char *thing)
{
    if (!*thing)
        return wrong(r, "a thing has no name");
    if (r->good_count == GOODS)
        return wrong(r, "there are more than %d things", GOODS);
    r->goods[r->good_count] = strdup(thing);
    return r->goods[r->good_count++] != NULL || wrong(r, "no memory for it");
}

static bool read_sells(reader *r, char *value)
{
    for (char *thing; (thing = next_of_list(&value));) {
        char *price = NULL;

        for (char *at = thing; (at = strstr(at, " for ")); at++)
            price = at; /* the last: things may have that word in their names */
        if (price)
            *price = 0;
        if (!price || !is_amount(price + strlen(" for ")))
            return wrong(r, "\"%.60s\" is not sold as \"iron dagger for 12 coins\", 1 to %d", thing,
                         MOST_PRICE);
        if (!add_good(r, trimmed(thing)))
            return false;
    }
    return true;
}

static bool read_has(reader *r, char *value)
{
    for (char *thing; (thing = next_of_list(&value));)
        if (!add_good(r, thing))
            return false;
    return true;
}

static bool read_knows(reader *r, char *value)
{
    for (char *who; (who = next_of_list(&value));)
        if (!strchr(who, ' '))
            return wrong(r,
                         "\"%.60s\" is nobody as \"sister Mira\" or \"sister Mira in "
                         "Oak Hill\"",
                         who);
    return true;
}

static bool read_quest(reader *r, char *value)
{
    static const char bring[] = "bring ", reward[] = "reward ";
    char *thing = next_of_list(&value), *pays = next_of_list(&value), *state = next_of_list(&value);

    if (!state || value || strncmp(thing, bring, strlen(bring)) != 0 ||
        strncmp(pays, reward, strlen(reward)) != 0 || !is_amount(pays + strlen(reward)) ||
        tool_word(state, states) < 0)
        return wrong(r, "a quest is none, or as \"bring silver ring, reward 40 "
                        "coins, open\", with open, taken or done");
    return true;
}

/* What is wrong with a value, which it cuts into pieces. */
static bool check_value(reader *r, int key, char *value)
{
    static const char *const nothing[KEYS] = {
        [SELLS] = "nothing", [HAS] = "nothing", [KNOWS] = "nobody", [QUEST] = "none"};

    if (nothing[key] && !strcmp(value, nothing[key]))
        return true;
    switch (key) {
    case MOOD:
        return tool_word(value, moods) >= 0 ||
               wrong(r, "\"%.60s\" is no mood; there are %s", value, mood_list);
    case SELLS: return read_sells(r, value);
    case HAS: return read_has(r, value);
    case KNOWS: return read_knows(r, value);
    case QUEST: return read_quest(r, value);
    default: return true;
    }
}

static bool read_line(reader *r, char *line, FILE *persona, tool_card *card)
{
    char *key = trimmed(line), *colon = strchr(key, ':'), copy[LINE_BYTES];

    if (!*key || *key == '#')
        return true;
    if (colon)
        *colon = 0;
    const int which = tool_word(key, keys);
    char *value = colon ? trimmed(colon + 1) : NULL;
    if (!value || which < 0)
        return wrong(r, "\"%.60s\" is no key with a colon; there are %s", key, key_list);
    if (r->seen[which])
        return wrong(r, "\"%s\" is there twice", key);
    if (!*value)
        return wrong(r, "\"%s\" has no value", key);
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f || strchr("\"\\{}", *c))
            return wrong(r,
                         "\"%s\" has a character that cards do without: \" \\ { } or "
                         "one that is not shown",
                         key);
    r->seen[which] = true;
    if (which == NAME && !(card->name = strdup(value)))
        return wrong(r, "no memory for it");
    snprintf(copy, sizeof copy, "%s", value);
    fprintf(persona, "%s: %s\n", key, value);
    return check_value(r, which, copy);
}

/* --- What becomes of it --- */

static const char known[] = "You are this character.\n";
static const char told[] =
    "You play one person, who talks with a visitor. Answer as that person "
    "would, in one or two short sentences. Say nothing that "
    "the card does not tell. Where the person does something, that comes "
    "behind it, as JSON in a line of its own:\n"
    "Visitor: Come with me!\nGladly, lead the way.\n{\"action\":\"follow\"}\n"
    "Visitor: I will take the pie.\nHere is the pie, that makes 3 "
    "coins.\n{\"action\":\"give\",\"item\":\"pie\",\"price\":3}\n"
    "Visitor: Give me your sword.\nNo, the sword stays with "
    "me.\n{\"action\":\"refuse\"}\n"
    "Visitor: How are you?\nI am well, thank you.\n\nThe card:\n";

static char *grammar_of(const reader *r)
{
    tool_text text;
    FILE *out;

    tool_text_begin(&text);
    out = text.file;
    if (!out)
        return NULL;
    fprintf(out,
            "root ::= said (\"\\n\" action)?\n"
            "said ::= [^\\n{}]{1,300}\n"
            "action ::= \"{\\\"action\\\":\" (%stake | mood | quest | "
            "\"\\\"follow\\\"\" | \"\\\"stay\\\"\" | \"\\\"refuse\\\"\") \"}\"\n",
            r->good_count ? "give | " : "");
    for (uint32_t i = 0; i < r->good_count; i++)
        fprintf(out, "%s\"%s\"", i ? " | " : "give ::= \"\\\"give\\\",\\\"item\\\":\\\"\" (",
                r->goods[i]);
    if (r->good_count)
        fprintf(out, ") \"\\\",\\\"price\\\":\" number\n");
    fprintf(out, "take ::= \"\\\"take\\\",\\\"item\\\":\\\"\" "
                 "[^\\n\"\\\\{}]{1,60} \"\\\",\\\"pay\\\":\" number\n"
                 "quest ::= \"\\\"quest\\\",\\\"state\\\":\\\"\" (\"taken\" | "
                 "\"done\") \"\\\"\"\n"
                 "number ::= \"0\" | [1-9] [0-9]{0,4}\n");
    for (int i = 0; moods[i]; i++)
        fprintf(out, "%s\"%s\"", i ? " | " : "mood ::= \"\\\"mood\\\",\\\"mood\\\":\\\"\" (",
                moods[i]);
    fprintf(out, ") \"\\\"\"\n");
    return tool_text_end(&text);
}

static bool read_lines(reader *r, const char *text, size_t bytes, FILE *persona, tool_card *card)
{
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t length = end ? (size_t)(end - text) - at : bytes - at;
        char line[LINE_BYTES];

        r->line++;
        if (length >= sizeof line)
            return wrong(r, "it has more than %d bytes", LINE_BYTES - 1);
        memcpy(line, text + at, length);
        line[length] = 0;
        if (strlen(line) != length)
            return wrong(r, "it has a byte of 0");
        if (!read_line(r, line, persona, card))
            return false;
        at += length + 1;
    }
    if (card->name)
        return true;
    snprintf(r->why, r->why_bytes, "there is no line \"name: ...\"");
    return false;
}

bool tool_card_read(const char *text, size_t bytes, bool is_told, tool_card *card, char *why,
                    size_t why_bytes)
{
    reader r = {.why = why, .why_bytes = why_bytes};
    tool_text persona = {0};
    bool is_read = false;

    snprintf(why, why_bytes, "no memory for it");
    if (bytes > CARD_BYTES)
        snprintf(why, why_bytes, "it has more than %d bytes", CARD_BYTES);
    else
        tool_text_begin(&persona);
    if (persona.file) {
        fputs(is_told ? told : known, persona.file);
        is_read = read_lines(&r, text, bytes, persona.file, card);
        card->persona = tool_text_end(&persona);
    }
    if (is_read && card->persona) {
        card->persona[strlen(card->persona) - 1] = 0; /* the last line's end */
        card->grammar = grammar_of(&r);
    }
    for (uint32_t i = 0; i < r.good_count; i++)
        free(r.goods[i]);
    return is_read && card->grammar;
}

void tool_card_free(tool_card *card)
{
    free(card->name);
    free(card->persona);
    free(card->grammar);
    *card = (tool_card){0};
}
