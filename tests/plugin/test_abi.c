/* Programs that were built with other versions of the headers, or speak other versions of the wire, work with this library.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   abi/structs.c, abi/npc_structs.c   structs that are shorter and longer than ours, in and out (by abi/growth.c)
 *   abi/layout.c    what the first headers had is where it was: as it is compiled
 *   abi/wire.c      an old client with the tandemd of today, and the reverse
 *   abi/91e7f33     the first headers and their wire, as they were, and a game that is built with them
 */
#include "tests/plugin/abi/rig.h"

group_daemon served;
static char models[] = "/tmp/tandem-models-XXXXXX";

/* Runs the game, in this machine's tandemd or by itself. */
static int play(const char *socket)
{
    const char *build = getenv("TANDEM_BUILD");
    char program[4096];
    int status;
    pid_t pid;

    snprintf(program, sizeof program, "%s/game_91e7f33", build ? build : ".");
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        execl(program, "game", models, socket, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_game(void **state)
{
    (void)state;
    assert_int_equal(play(NULL), 0);
}

static void test_game_in_tandemd(void **state)
{
    (void)state;
    assert_int_equal(play(served.socket_path), 0);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_game),
    cmocka_unit_test(test_game_in_tandemd),
};
static const test_cases games = TEST_CASES(cases);

static int set_up(void **state)
{
    char config[128];

    (void)state;
    if (!mkdtemp(models))
        return 1;
    snprintf(config, sizeof config, "backend = cpu\nthreads = 2\nmodel_dir = %s\n", models);
    return group_daemon_begin(&served, "abi", config);
}

static int tear_down(void **state)
{
    char path[128];

    (void)state;
    snprintf(path, sizeof path, "%s/game.safetensors", models);
    unlink(path);
    rmdir(models);
    return group_daemon_end(&served);
}

int main(void)
{
    const test_cases *const parts[] = {&abi_structs_cases, &abi_npc_structs_cases, &games, &abi_wire_cases};

    return run_cases("tests", parts, sizeof parts / sizeof *parts, set_up, tear_down);
}
