/* `tandem npc`: a conversation with a character, in a terminal.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine_plugin/tool/card.h"
#include "engine_plugin/tool/session.h"
#include "engine_plugin/tool/system.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "kernels/graph.h"
#include "kernels/model/folder.h"
#include "tandem/npc.h"

/* clang-format off */
const char *const tool_npc_help =
    "usage: tandem npc [--model F] [--card C] [options]\n"
    "\n"
    "A conversation with a character: each line of standard input is said to it, and its answer is written\n"
    "as it comes. Where something happens, that stands in a line of its own behind it, as\n"
    "  -> {\"action\":\"give\",\"item\":\"iron dagger\",\"price\":12}\n"
    "Actions are give, take (with what it pays), follow, stay, refuse, mood and quest (taken, done). A\n"
    "grammar sees to it that they are JSON, and that nothing is given that is not on the card.\n"
    "\n"
    "  --model F        a GGUF file, as `tandem fetch` brings one, or a folder as transformers has; default:\n"
    "                   npc.gguf beside the program or where installations have it, a model for cards alone\n"
    "  --card C         who it is, a file of lines as below; default: cards/brom.txt, where npc.gguf is\n"
    "  --tokens N       at most so many tokens of an answer; default: 96\n"
    "  --temperature T  how freely tokens are drawn, 1: as likely as the model says; 0: always the most\n"
    "                   likely one; default: 0.7\n"
    "  --seed N         of what is drawn; default: 0\n"
    "  --free           without the grammar\n"
    TOOL_LANGUAGE_HELP
    "  --threads N      threads that a CPU computes on; default: all cores\n"
    "  --json           answers as JSON, one a line: what was said, the answer, its action, how it ended,\n"
    "                   tokens and milliseconds\n"
    "\n"
    "A card has a line for each of these that there is something to tell of; only the name must be there.\n"
    "Lines that begin with # are for people.\n"
    "  name: Brom Ulvarin\n"
    "  trade: blacksmith\n"
    "  place: Hollow Ford\n"
    "  mood: grumpy               or cheerful, calm, kind, shy, weary, gloomy, wary, proud, angry\n"
    "  sells: iron dagger for 12 coins, horseshoe for 6 coins\n"
    "  has: rusty key, old map    what is not for sale\n"
    "  knows: sister Mira in Eastmoor, rival Tolan\n"
    "  quest: bring silver ring, reward 40 coins, open      or taken, done; or none\n";
/* clang-format on */

/* Of the model that reads cards as they are: general.name of its file. */
static const char own_name[] = "Tandem characters";

enum { MOST_TOKENS = 1 << 20, LINE_BYTES = 1 << 12, CARD_ROOM = 1 << 15 };

typedef struct arguments {
    const char *model, *card, *tokens, *temperature, *seed, *attention, *kv, *rung, *socket,
        *threads;
    bool free, json;
    uint32_t precision, cache, rung_value;
    uint64_t token_count, thread_count;
    tandem_sampling how;
    char found_model[PATH_MAX], found_card[PATH_MAX];
} arguments;

typedef struct conversation {
    const arguments *with;
    tool_card card;
    tandem_session *session;
    tool_engine *engine;
    tandem_language *language;
    tandem_npc *npc;
    char why[600];
} conversation;

/* --- Arguments --- */

/* A file that lies where the demo's lie: beside the program, or
 * where installations have it. */
static bool find_asset(const char *name, char path[PATH_MAX])
{
    static const char *const places[] = {".", "../demo/assets", "../share/tandem"};
    char program[PATH_MAX];
    const bool found = tool_program_folder(program, sizeof program);

    for (size_t i = 0; found && i < sizeof places / sizeof *places; i++) {
        const int written = snprintf(path, PATH_MAX, "%s/%s/%s", program, places[i], name);
        if (written > 0 && written < PATH_MAX && !access(path, R_OK))
            return true;
    }
    return false;
}

static int read_numbers(arguments *a)
{
    const struct {
        const char *name, *text;
        uint64_t least, most, *to;
    } counts[] = {{"--tokens", a->tokens, 1, MOST_TOKENS, &a->token_count},
                  {"--threads", a->threads, 1, 1024, &a->thread_count},
                  {"--seed", a->seed, 0, UINT64_MAX, &a->how.seed}};

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].text &&
            !tool_number(counts[i].text, counts[i].least, counts[i].most, counts[i].to))
            return tool_usage("npc", "%s \"%s\" is not a number from %" PRIu64 " to %" PRIu64,
                              counts[i].name, counts[i].text, counts[i].least, counts[i].most);
    if (a->temperature && !td_graph_decimal(a->temperature, &a->how.temperature))
        return tool_usage("npc", "--temperature \"%s\" is not a number", a->temperature);
    return TOOL_OK;
}

static int read_arguments(int argc, char **argv, arguments *a)
{
    const tool_option options[] = {
        {"--model", &a->model, NULL},         {"--card", &a->card, NULL},
        {"--tokens", &a->tokens, NULL},       {"--temperature", &a->temperature, NULL},
        {"--seed", &a->seed, NULL},           {"--free", NULL, &a->free},
        {"--attention", &a->attention, NULL}, {"--kv", &a->kv, NULL},
        {"--rung", &a->rung, NULL},           {"--socket", &a->socket, NULL},
        {"--threads", &a->threads, NULL},     {"--json", NULL, &a->json}};

    if (tool_parse("npc", argc, argv, options, sizeof options / sizeof *options) != TOOL_OK ||
        !tool_precision("npc", "--attention", a->attention, &a->precision) ||
        !tool_cache("npc", a->kv, a->precision, &a->cache) ||
        !tool_rung("npc", a->rung, &a->rung_value) || read_numbers(a) != TOOL_OK)
        return TOOL_USAGE;
    if (!a->model && !find_asset("npc.gguf", a->found_model))
        return tool_fail("npc",
                         "there is no npc.gguf beside the program; --model says another file");
    if (!a->card && !find_asset("cards/brom.txt", a->found_card))
        return tool_fail("npc", "there is no cards/brom.txt beside the program; "
                                "--card says another file");
    a->model = a->model ? a->model : a->found_model;
    a->card = a->card ? a->card : a->found_card;
    return TOOL_OK;
}

/* --- Who it is --- */

/* Whether the model reads cards as they are; *is_own is false where its file
 * has no name. */
static bool find_own(conversation *c, bool *is_own)
{
    td_gguf_string name = {"", 0};
    char why[400] = "";
    td_gguf file;

    *is_own = false;
    if (td_checkpoint_open(c->with->model, &file, why, sizeof why) != TANDEM_OK) {
        snprintf(c->why, sizeof c->why, "--model '%s': %s", c->with->model, why);
        return false;
    }
    if (td_gguf_text(&file, "general.name", &name, why, sizeof why) == TANDEM_OK)
        *is_own = name.length == strlen(own_name) && !memcmp(name.bytes, own_name, name.length);
    td_gguf_close(&file);
    return true;
}

static bool read_card(conversation *c)
{
    const char *path = c->with->card;
    FILE *file = fopen(path, "rb");
    char *text = file ? malloc(CARD_ROOM) : NULL, why[400] = "no memory for it";
    const size_t bytes = text ? fread(text, 1, CARD_ROOM, file) : 0;
    bool is_own, is_read = text && !ferror(file);

    if (!is_read && (!file || text))
        snprintf(why, sizeof why, "%s", strerror(errno));
    if (is_read && !find_own(c, &is_own)) {
        is_read = false;
    } else {
        is_read = is_read && tool_card_read(text, bytes, !is_own, &c->card, why, sizeof why);
        if (!is_read)
            snprintf(c->why, sizeof c->why, "--card '%s': %s", path, why);
    }
    free(text);
    if (file)
        fclose(file);
    return is_read;
}

static bool done(conversation *c, const char *what, tandem_status status)
{
    char text[500] = "";

    if (status == TANDEM_OK)
        return true;
    tandem_error_text(c->session, text, sizeof text);
    snprintf(c->why, sizeof c->why, "%s: %s", what, text[0] ? text : tandem_status_text(status));
    return false;
}

static bool begin(conversation *c)
{
    const arguments *a = c->with;
    const tandem_session_desc session =
        TANDEM_INIT(tandem_session_desc, .rung = a->rung_value,
                    .cpu_threads = (uint32_t)a->thread_count, .socket = a->socket);
    const tandem_language_desc language = TANDEM_INIT(tandem_language_desc, .path = a->model,
                                                      .precision = a->precision, .cache = a->cache);

    return read_card(c) &&
           done(c, "session", tool_session_create(&session, &c->session, &c->engine)) &&
           done(c, "--model", tandem_language_create(c->session, &language, &c->language)) &&
           done(c, "character",
                tandem_npc_create(c->language,
                                  &TANDEM_INIT(tandem_npc_desc, .persona = c->card.persona),
                                  &c->npc));
}

static void end(conversation *c)
{
    if (c->npc)
        tandem_npc_destroy(&c->npc);
    if (c->language)
        tandem_language_destroy(&c->language);
    tool_session_destroy(&c->session, &c->engine);
    tool_card_free(&c->card);
}

/* --- What is said --- */

/* As it comes, with what would steer a terminal as '?'; what stands behind the
 * first line is an action. */
static void show(const char *text, bool *in_action)
{
    for (; *text; text++)
        if (*text != '\n')
            putchar((unsigned char)*text < ' ' || *text == 0x7f ? '?' : *text);
        else if (*in_action)
            putchar(' ');
        else {
            fputs("\n-> ", stdout);
            *in_action = true;
        }
    fflush(stdout);
}

static void show_json(const conversation *c, const char *line, const tandem_npc_reply *reply,
                      const tandem_npc_news *news, double ms)
{
    static const char *const ends[] = {"open", "ended", "stopped", "full", "cancelled", "failed"};
    const char *newline = strchr(reply->text, '\n');
    const bool acts = newline && !c->with->free &&
                      reply->end == TANDEM_REPLY_ENDED; /* the grammar vouches for it */
    const size_t length = newline ? (size_t)(newline - reply->text) : strlen(reply->text);
    char *said = malloc(length + 1);

    if (said) {
        memcpy(said, reply->text, length);
        said[length] = 0;
    }

    fputs("{\"user\": ", stdout);
    tool_json_string(line);
    fputs(", \"reply\": ", stdout);
    tool_json_string(reply->text);
    fputs(", \"said\": ", stdout);
    tool_json_string(said ? said : "");
    printf(", \"action\": %s, \"end\": \"%s\", \"prompt_tokens\": %" PRIu32
           ", \"read_tokens\": %" PRIu32 ", \"reply_tokens\": %" PRIu32 ", \"ms\": %.3f}\n",
           acts ? newline + 1 : "null",
           ends[reply->end < sizeof ends / sizeof *ends ? reply->end : 0], news->prompt_tokens,
           news->read_tokens, reply->tokens, ms);
    fflush(stdout);
    free(said);
}

static bool answer(conversation *c, const char *line)
{
    const tandem_say say =
        TANDEM_INIT(tandem_say, .text = line, .most_tokens = (uint32_t)c->with->token_count,
                    .sampling = &c->with->how, .grammar = c->with->free ? NULL : c->card.grammar);
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);
    tandem_npc_reply reply = TANDEM_INIT(tandem_npc_reply);
    const uint64_t start = td_now_ns();
    bool in_action = false;

    if (!done(c, "what is said", tandem_npc_say(c->npc, &say)))
        return false;
    do {
        if (!done(c, "answer", tandem_npc_wait(c->npc, UINT64_MAX, &news)))
            return false;
        if (!c->with->json)
            show(news.text, &in_action);
    } while (news.state != TANDEM_NPC_IDLE);
    if (!done(c, "answer", tandem_npc_get_reply(c->npc, 0, &reply)))
        return false;
    if (c->with->json)
        show_json(c, line, &reply, &news, 1e-6 * (double)(td_now_ns() - start));
    else
        puts(reply.end == TANDEM_REPLY_FULL ? " ..." : "");
    return true;
}

static bool talk(conversation *c)
{
    const bool asks = isatty(STDIN_FILENO) && !c->with->json;
    char line[LINE_BYTES];

    if (asks)
        printf("You talk with %s; Ctrl-D ends.\n", c->card.name);
    while (!asks || (fputs("> ", stdout), fflush(stdout), true)) {
        if (!fgets(line, sizeof line, stdin))
            break;
        const size_t length = strlen(line);
        if (length + 1 == sizeof line && line[length - 1] != '\n') {
            snprintf(c->why, sizeof c->why, "a line has more than %d bytes", LINE_BYTES - 2);
            return false;
        }
        line[strcspn(line, "\r\n")] = 0;
        if (*line && !answer(c, line))
            return false;
    }
    if (asks)
        putchar('\n');
    return true;
}

int tool_npc(int argc, char **argv)
{
    arguments a = {.attention = "auto",
                   .kv = "f16",
                   .rung = "auto",
                   .token_count = 96,
                   .how = TANDEM_INIT(tandem_sampling, .temperature = 0.7f)};
    conversation c = {.with = &a};
    int status = read_arguments(argc, argv, &a);

    if (status != TOOL_OK)
        return status;
    if (!begin(&c) || !talk(&c))
        status = tool_fail("npc", "%s", c.why);
    end(&c);
    return status;
}
