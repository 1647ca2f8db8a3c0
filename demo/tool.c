/* `tandem`: attention on files, and what this machine can do. Made of demo/tool.c and demo/tool_*.c.
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
#include <unistd.h>

#include "demo/tool.h"
#include "tandem/tandem.h"

static const char *const overview =
    "tandem - SageAttention2 on files, and what this machine can do\n"
    "\n"
    "usage: tandem attend --in F.safetensors --out G.safetensors --precision 8b|4b|f16|ref [options]\n"
    "       tandem accuracy [--in F.safetensors] [--table T] [--json F] [--backend cpu|cuda] [--quick]\n"
    "       tandem calibrate --in F.safetensors ... [--percent X] [--json PLAN]\n"
    "       tandem info [--json] [--tuning F]\n"
    "       tandem doctor [--json] [--socket PATH]\n"
    "       tandem top [--socket PATH] [--once] [--json]\n"
    "       tandem probe fp22 [--json F] [--backend auto|cuda|cpu] [--tiles N] [--seed N]\n"
    "       tandem bench handover|attention|daemon [--json F] [options]\n"
    "       tandem tune [--out F] [--check F] [options]\n"
    "       tandem version\n"
    "       tandem help [attend|accuracy|calibrate|doctor|top|bench|tune]\n"
    "\n"
    "  attend     softmax(scale * Q K^T) V of the tensors in a file; `tandem help attend` documents every array\n"
    "  accuracy   the paper's tables of accuracy, on synthetic tensors or on a file's\n"
    "  calibrate  chooses 4b or 8b for each head of some files\n"
    "  info       version, build, CPU, CUDA and Vulkan devices: which rung of the ladder each reaches, and why\n"
    "  doctor     what works on this machine, what does not, and what to do about it\n"
    "  top        what the clients of tandemd have it do, live\n"
    "  probe      how many bits this GPU's tensor cores keep when they add, beside the twin's models of them\n"
    "  bench      what the hand-over costs on each rung, and through tandemd; attention beside cuDNN's\n"
    "  tune       measures what precision `auto` goes by on this GPU\n"
    "\n"
    "exit status: 0 done; 1 it could not be done; 2 the command line is wrong. Either leaves one line on stderr.\n";

static void complain(const char *command, const char *format, va_list args)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 32 || *c == 127)
            *c = '?';
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
        const char *equals = strchr(argv[i], '=');
        const size_t length = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const tool_option *option = NULL;
        for (size_t o = 0; o < count && !option; o++)
            if (strlen(options[o].name) == length && memcmp(options[o].name, argv[i], length) == 0)
                option = &options[o];
        if (!option)
            return tool_usage(command, argv[i][0] == '-' ? "unknown option \"%s\"" : "unexpected argument \"%s\"",
                              argv[i]);
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

/* Commands; `help` NULL: the overview says it all. */
static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *const *help;
} commands[] = {
    {"attend", tool_attend, &tool_attend_help},
    {"accuracy", tool_accuracy, &tool_accuracy_help},
    {"calibrate", tool_calibrate, &tool_calibrate_help},
    {"info", tool_info, NULL},
    {"doctor", tool_doctor, &tool_doctor_help},
    {"top", tool_top, &tool_top_help},
    {"probe", tool_probe, NULL},
    {"bench", tool_bench, &tool_bench_help},
    {"tune", tool_tune, &tool_tune_help},
    {"version", version, NULL},
    {"--version", version, NULL},
};

static const struct command *find(const char *name)
{
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(name, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

static bool asks_for_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int help(const struct command *about)
{
    fputs(about && about->help ? *about->help : overview, stdout);
    return TOOL_OK;
}

/* OpenMP's threads spin while they wait unless the environment says otherwise when the program is loaded, and would
 * keep the cores from whoever is measured: this starts the program again with that said. */
static void wait_passively(char **argv)
{
    if (!getenv("OMP_WAIT_POLICY") && !setenv("OMP_WAIT_POLICY", "passive", 1))
        execv("/proc/self/exe", argv);
}

static int run(int argc, char **argv)
{
    if (argc < 2)
        return tool_usage(NULL, "no command given; `tandem --help` lists them");
    const bool helps = asks_for_help(argv[1]) || strcmp(argv[1], "help") == 0;
    if (helps && argc == 2)
        return help(NULL);
    const struct command *command = find(argv[helps ? 2 : 1]);
    if (helps)
        return command && argc == 3 ? help(command) : tool_usage("help", "no help on \"%s\"", argv[argc - 1]);
    if (!command)
        return tool_usage(NULL, "unknown command \"%s\"; `tandem --help` lists them", argv[1]);
    for (int i = 2; i < argc; i++)
        if (asks_for_help(argv[i]))
            return help(command);
    if (command->run == tool_bench || command->run == tool_doctor)
        wait_passively(argv);
    return command->run(argc - 2, argv + 2);
}

int main(int argc, char **argv)
{
    const int status = run(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return status ? status : tool_fail(NULL, "standard output: %s", strerror(errno));
    return status;
}
