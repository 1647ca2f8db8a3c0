/* A character that talks in a terminal, with nothing but Tandem's public headers: copy what you
 * need.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * usage: npc MODEL.gguf [PERSONA] < LINES
 *
 *     cc npc.c $(pkg-config --cflags --libs tandem)
 *     ./a.out "$(tandem fetch smollm2)" "You are Brom, a blacksmith. Answer in one sentence."
 *
 * Each line is said to the character; its answer is shown as it comes. The loop is a game's: it
 * never waits for the answer, and would draw a frame where it sleeps.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <tandem/npc.h>

typedef struct world {
    tandem_session *session;
    tandem_language *language;
    tandem_npc *npc;
} world;

static int fail(const world *w, const char *what)
{
    char why[600] = "";

    tandem_error_text(w->session, why, sizeof why);
    fprintf(stderr, "%s: %s\n", what, why);
    return 1;
}

/* A session where compute happens, a model's file on it, and a character of that. */
static int begin(world *w, const char *path, const char *persona)
{
    const tandem_session_desc session = TANDEM_INIT(tandem_session_desc);
    const tandem_language_desc language = TANDEM_INIT(tandem_language_desc, .path = path);
    const tandem_npc_desc npc = TANDEM_INIT(tandem_npc_desc, .persona = persona);

    if (tandem_session_create(&session, &w->session))
        return fail(w, "session");
    if (tandem_language_create(w->session, &language, &w->language))
        return fail(w, path);
    if (tandem_npc_create(w->language, &npc, &w->npc))
        return fail(w, "character");
    return 0;
}

static void end(world *w)
{
    if (w->npc)
        tandem_npc_destroy(&w->npc);
    if (w->language)
        tandem_language_destroy(&w->language);
    if (w->session)
        tandem_session_destroy(&w->session);
}

static void draw_a_frame(void)
{
    const struct timespec frame = {.tv_nsec = 1000000};

    nanosleep(&frame, NULL);
}

/* Frame by frame, until the answer is over. */
static int answer(world *w, const char *line)
{
    const tandem_sampling sampling =
        TANDEM_INIT(tandem_sampling, .temperature = 0.7f, .min_p = 0.1f, .repetition = 1.1f, .seed = 1);
    const tandem_say say =
        TANDEM_INIT(tandem_say, .text = line, .most_tokens = 60, .sampling = &sampling);
    tandem_npc_news news = TANDEM_INIT(tandem_npc_news);

    if (tandem_npc_say(w->npc, &say))
        return fail(w, "say");
    do {
        if (tandem_npc_poll(w->npc, &news))
            return fail(w, "answer");
        fputs(news.text, stdout);
        fflush(stdout);
        draw_a_frame();
    } while (news.state != TANDEM_NPC_IDLE);
    putchar('\n');
    return 0;
}

int main(int argc, char **argv)
{
    world w = {0};
    char line[1000];
    int failed;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: npc MODEL.gguf [PERSONA]\n");
        return 2;
    }
    failed = begin(&w, argv[1], argc > 2 ? argv[2] : "You are a villager. Answer in one sentence.");
    while (!failed && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (*line)
            failed = answer(&w, line);
    }
    end(&w);
    return failed;
}
