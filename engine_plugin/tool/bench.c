/* `tandem bench` and `tandem accuracy`: tandem-bench, a program of its own (tests/bench), as few need them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine_plugin/tool/tool.h"

/* TD_TO_LIBEXEC, TD_TO_BIN: where installations have programs that are not for the PATH, from those that are, and back. */
bool tool_program(const char *name, char *path, size_t bytes)
{
    static const char *const folders[] = {".", TD_TO_LIBEXEC, TD_TO_BIN};
    char self[2048];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = 0;
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    *slash = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if ((size_t)snprintf(path, bytes, "%s/%s/%s", self, folders[i], name) < bytes && !access(path, X_OK))
            return true;
    return false;
}

static void send_to(posix_spawn_file_actions_t *files, int fd, int to)
{
    if (to < 0)
        posix_spawn_file_actions_addopen(files, fd, "/dev/null", O_WRONLY, 0);
    else
        posix_spawn_file_actions_adddup2(files, to, fd);
}

int tool_run_program(const char *const *argv, int out, int err)
{
    posix_spawn_file_actions_t files;
    int status = -1;
    pid_t pid;

    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    send_to(&files, 1, out);
    send_to(&files, 2, err);
    const int error = posix_spawnp(&pid, argv[0], &files, NULL, (char **)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (error) {
        errno = error;
        return -1;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int tool_become(const char *command, const char *name, int argc, char **argv, const char *first)
{
    char path[4096];
    char **words = calloc((size_t)argc + 3, sizeof *words);
    int count = 0;
    if (!words)
        return tool_fail(command, "out of memory");
    words[count++] = (char *)name;
    if (first)
        words[count++] = (char *)first;
    memcpy(words + count, argv, (size_t)argc * sizeof *words);
    errno = ENOENT;
    if (tool_program(name, path, sizeof path))
        execv(path, words);
    const int error = errno;
    free(words);
    if (error == ENOENT)
        return tool_fail(command, "%s, which does this, is not installed: neither beside tandem nor in " TD_TO_LIBEXEC " from there",
                         name);
    return tool_fail(command, "%s: %s", path, strerror(error));
}

int tool_bench(int argc, char **argv)
{
    return tool_become("bench", "tandem-bench", argc, argv, NULL);
}

int tool_eval(int argc, char **argv)
{
    return tool_become("eval", "tandem-bench", argc, argv, "eval");
}

int tool_accuracy(int argc, char **argv)
{
    return tool_become("accuracy", "tandem-bench", argc, argv, "accuracy");
}
