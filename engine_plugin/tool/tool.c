/* `tandem`: attention and networks on files, and what this machine can do. Its main() is main.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Linked with the objects of libtandem, not with the shared library: `attend --codes` reads the scratch of a plan.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/system.h"
#include "engine_plugin/tool/tool.h"
#include "interop/base.h"
#include "interop/os/descriptor.h"
#include "tandem/tandem.h"

static const char *const introduction =
    "tandem - SageAttention2 and networks on files, and what this machine can do\n"
    "\n"
    "usage: tandem COMMAND [options]\n"
    "       tandem help COMMAND\n"
    "\n";

static int version(int argc, char **argv)
{
    if (argc > 0)
        return tool_usage("version", "unexpected argument \"%s\"", argv[0]);
    printf("tandem %u.%u.%u\n", tandem_version() >> 22, tandem_version() >> 12 & 1023, tandem_version() & 4095);
    return TOOL_OK;
}

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} commands[] = {
    {"sample-qkv", tool_sample_qkv},
    {"attend", tool_attend},
    {"accuracy", tool_accuracy},
    {"calibrate", tool_calibrate},
    {"run", tool_run},
    {"plan", tool_plan},
    {"denoise", tool_denoise},
    {"gi", tool_gi},
    {"eval", tool_eval},
    {"fetch", tool_fetch},
    {"tokenize", tool_tokenize},
    {"generate", tool_generate},
    {"logits", tool_logits},
    {"perplexity", tool_perplexity},
    {"npc", tool_npc},
    {"serve", tool_serve},
    {"conform", tool_conform},
    {"doctor", tool_doctor},
    {"info", tool_info},
    {"top", tool_top},
    {"layer", tool_layer},
    {"bench", tool_bench},
    {"tune", tool_tune},
    {"probe", tool_probe},
    {"version", version},
};

/* The command, or with `part` the part of it, if there is one. */
static const tool_topic *find(const char *name, const char *part)
{
    const tool_topic *topic;
    char both[64];
    snprintf(both, sizeof both, part ? "%s %s" : "%s", name, part);
    for (size_t i = 0; (topic = tool_topic_at(i)); i++)
        if (strcmp(both, topic->name) == 0)
            return topic;
    return NULL;
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int print_overview(void)
{
    const tool_topic *topic;
    fputs(introduction, stdout);
    for (size_t i = 0; (topic = tool_topic_at(i)); i++)
        if (!strchr(topic->name, ' '))
            printf("  %-11s %s\n", topic->name, topic->summary);
    printf("\n%s", tool_exit_status);
    return TOOL_OK;
}

/* The help on a command, and on its parts. */
static int print_help(const tool_topic *about)
{
    const size_t length = strlen(about->name);
    const tool_topic *topic;
    fputs(*about->help, stdout);
    for (size_t i = 0; (topic = tool_topic_at(i)); i++)
        if (!strncmp(topic->name, about->name, length) && topic->name[length] == ' ')
            printf("\n%s", *topic->help);
    return TOOL_OK;
}

/* `tandem help ...` */
static int help(int argc, char **argv)
{
    static const struct {
        const char *option;
        void (*print)(void);
    } shells[] = {{"--bash", tool_print_bash_completion},
                  {"--zsh", tool_print_zsh_completion},
                  {"--fish", tool_print_fish_completion}};
    void (*script)(void) = NULL;
    const bool man = argc > 0 && !strcmp(argv[0], "--man");
    for (size_t i = 0; i < sizeof shells / sizeof *shells && argc > 0; i++)
        if (!strcmp(argv[0], shells[i].option))
            script = shells[i].print;
    char **const words = argv + (man || script);
    const int count = argc - (man || script);
    const tool_topic *about = count == 1   ? find(words[0], NULL)
                              : count == 2 ? find(words[0], words[1])
                                           : NULL;
    if (count > 0 && (!about || script))
        return tool_usage("help", "no help on \"%s\"", words[count - 1]);
    if (script)
        script();
    else if (man)
        tool_print_man(about);
    else
        return about ? print_help(about) : print_overview();
    return TOOL_OK;
}

static int run(int argc, char **argv)
{
    if (argc < 2)
        return tool_usage(NULL, "no command given; `tandem --help` lists them");
    if (asks_for_help(argv[1]) || (!strcmp(argv[1], "help") && !(argc == 3 && asks_for_help(argv[2]))))
        return help(argc - 2, argv + 2);
    const tool_topic *command = find(strcmp(argv[1], "--version") ? argv[1] : "version", NULL);
    if (!command)
        return tool_usage(NULL, "unknown command \"%s\"; `tandem --help` lists them", argv[1]);
    for (int i = 2; i < argc; i++)
        if (asks_for_help(argv[i])) {
            const tool_topic *part = find(argv[1], argv[2]);
            return print_help(part ? part : command);
        }
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(command->name, commands[i].name) == 0)
            return commands[i].run(argc - 2, argv + 2);
    return tool_usage(NULL, "unknown command \"%s\"; `tandem --help` lists them", argv[1]);
}

int tool_main(int argc, char **argv)
{
    if (!td_fd_standard())
        return TOOL_FAILED;
    tool_system_begin();
    const int status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return status ? status : tool_fail(NULL, "standard output: %s", strerror(errno));
    return status;
}
