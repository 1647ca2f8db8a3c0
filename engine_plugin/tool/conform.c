/* `tandem conform`: somebody's program under a checking layer, engine_plugin/conform.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_plugin/tool/tool.h"

/* clang-format off */
const char *const tool_conform_help =
    "usage: tandem conform [--report F] -- PROGRAM [ARGUMENTS]\n"
    "\n"
    "Runs a program that uses Tandem, linked or opened at run time, and says on stderr where it breaks the\n"
    "API's rules. A rule is told where it can be proven by what the program calls; a program of which nothing\n"
    "is said may still be wrong. Vulkan's own rules are the validation layers'.\n"
    "\n"
    "  --report F  the lines go to this file, too\n"
    "\n"
    "  fd-leak         a descriptor of tandem_point_fd(), or one lent by TANDEM_MEM_FD, is open at the end\n"
    "  double-close    such a descriptor is closed twice\n"
    "  ownership       a mem is acquired or unpacked, or a job works on it, and a release or an acquisition is\n"
    "                  missing before\n"
    "  unbounded-wait  tandem_wait(), tandem_point_wait() or tandem_npc_wait() with UINT64_MAX, or\n"
    "                  vkWaitSemaphores() so on the session's semaphore\n"
    "  wrong-stage     a release or an acquisition with an access that its stage has not, or a submit that waits\n"
    "                  for a job at another stage than the one that reads\n"
    "  reuse           commands touch a mem, and nothing waits for the job on it\n"
    "  stale           a result is read, by commands or by the host, although the program was told that its job\n"
    "                  ended without one\n"
    "  lost-point      a submit waits for a point of the session's that no job was taken for\n"
    "\n"
    "Commands count in the order in which they are submitted. What programs start is checked as well. A\n"
    "program that is ended by a signal, or by _exit(), is not checked for what it leaves open.\n"
    "\n"
    "exit status: 1 if a rule is broken, 2 for a wrong command line, else the program's own (128 and the\n"
    "signal that ended it)\n";
/* clang-format on */

extern char **environ;

/* How many lines the layer has written, each of them a rule that is broken. */
static int count_lines(const char *path)
{
    FILE *file = fopen(path, "r");
    int lines = 0;

    for (int c; file && (c = fgetc(file)) != EOF;)
        lines += c == '\n';
    if (file)
        fclose(file);
    return lines;
}

static bool prepare(const char *layer, const char *report)
{
    const char *others = getenv("LD_PRELOAD");
    char list[8192];

    if ((size_t)snprintf(list, sizeof list, "%s%s%s", layer, others && *others ? ":" : "", others ? others : "") >= sizeof list)
        return false;
    return !setenv("LD_PRELOAD", list, 1) && !setenv("TANDEM_CONFORM_REPORT", report, 1);
}

static int run(char **words, const char *report)
{
    int status = 0;
    pid_t pid;
    const int error = posix_spawnp(&pid, words[0], NULL, NULL, words, environ);

    if (error)
        return tool_fail("conform", "%s: %s", words[0], strerror(error));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return tool_fail("conform", "%s: %s", words[0], strerror(errno));
    const int broken = count_lines(report);
    if (WIFSIGNALED(status))
        fprintf(stderr, "tandem conform: %s was ended by signal %d: what it left open was not looked at\n", words[0], WTERMSIG(status));
    fprintf(stderr, "tandem conform: %s: %d broken rule%s\n", words[0], broken, broken == 1 ? "" : "s");
    return broken ? TOOL_FAILED : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int tool_conform(int argc, char **argv)
{
    char layer[4096], own[] = "/tmp/tandem-conform-XXXXXX";
    const char *report = NULL;
    const tool_option options[] = {{"--report", &report, NULL}};
    int first = 0, fd;

    while (first < argc && strcmp(argv[first], "--"))
        first++;
    if (tool_parse("conform", first, argv, options, sizeof options / sizeof *options) != TOOL_OK)
        return TOOL_USAGE;
    if (first + 1 >= argc)
        return tool_usage("conform", "behind -- a program is missing; `tandem help conform` explains it");
    if (!tool_program("libtandem_conform.so", layer, sizeof layer))
        return tool_fail("conform", "libtandem_conform.so, which does this, is not installed");
    if (report) {
        FILE *file = fopen(report, "w");
        if (!file)
            return tool_fail("conform", "--report \"%s\": %s", report, strerror(errno));
        fclose(file);
    } else {
        fd = mkstemp(own);
        if (fd < 0)
            return tool_fail("conform", "%s: %s", own, strerror(errno));
        close(fd);
    }
    char *path = realpath(report ? report : own, NULL); /* the program may go to another folder */
    const int status = path && prepare(layer, path) ? run(argv + first + 1, path) : tool_fail("conform", "out of memory");
    free(path);
    if (!report)
        remove(own);
    return status;
}
