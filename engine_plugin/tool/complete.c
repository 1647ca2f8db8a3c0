/* Scripts that complete tandem's command lines in bash, zsh and fish, made from the texts that
 * `tandem help` prints.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/manual.h"
#include "engine_plugin/tool/tool.h"

static const char *const made_from = "Made from the texts of `tandem help`.";

/* The words of an option's value; "file" for a path; "" where nothing can be offered. */
static const char *words_of(const help_option *o, char words[160])
{
    static const char *const files[] = {"F", "F ...", "G", "FILE", "PATH", "PLAN", NULL};
    if (tool_word(o->value, files) >= 0)
        return "file";
    snprintf(words, 160, "%s", strchr(o->value, '|') ? o->value : "");
    for (char *c = words; (c = strchr(c, '|'));)
        *c = ' ';
    return words;
}

/* What may follow the topic in its usage ("handover|attention|daemon"), but for options: "handover
 * attention daemon". */
static const char *parts_of(const tool_topic *topic, char parts[160])
{
    const char *after = *topic->help + strlen("usage: tandem ") + strlen(topic->name) + 1;
    const size_t length = islower((unsigned char)*after) ? strcspn(after, " \n") : 0;
    snprintf(parts, 160, "%.*s", (int)length, after);
    for (char *c = parts; (c = strchr(c, '|'));)
        *c = ' ';
    return parts;
}

static bool is_part(const tool_topic *topic)
{
    return strchr(topic->name, ' ') != NULL;
}

/* Names of commands, or of parts of them. */
static void put_names(bool parts, const char *quote, const char *between)
{
    const char *before = "";
    for (size_t i = 0; tool_topic_at(i); i++)
        if (parts == is_part(tool_topic_at(i))) {
            printf("%s%s%s%s", before, quote, tool_topic_at(i)->name, quote);
            before = between;
        }
}

/* Up to its first full stop or semicolon, without what a shell or its completion would take for its
 * own. */
static void put_description(const char *text)
{
    for (const char *c = text; *c && *c != ';' && !(*c == '.' && (c[1] == ' ' || !c[1])); c++)
        if (*c == '\'')
            fputs("\xe2\x80\x99", stdout); /* the typographic one, which quotes nothing */
        else if (!strchr("`\"\\[]$", *c) && !(*c == ' ' && c[1] == ' '))
            putchar(*c);
}

/* What an option does: from its line, or the one below it. */
static const char *text_of(const help_option *o, const char *rest, char line[HELP_LINE_BYTES])
{
    if (o->text[0] || !help_next_line(rest, line))
        return o->text;
    return line + help_indent(line);
}

/* One arm of bash's case: the topic's options, and what their values may be. */
static void put_bash_arm(const tool_topic *topic)
{
    char line[HELP_LINE_BYTES], words[160];
    const char *text = *topic->help, *parts = parts_of(topic, words);
    printf("    '%s')\n        options='--help%s%s", topic->name, parts[0] ? " " : "", parts);
    while ((text = help_next_line(text, line)))
        if (help_is_option(line))
            printf(" %s", help_cut_option(line).name);
    printf("'\n        case $option in\n");
    text = *topic->help;
    while ((text = help_next_line(text, line)))
        if (help_is_option(line)) {
            const help_option o = help_cut_option(line);
            if (o.value[0])
                printf("        %s) values='%s' ;;\n", o.name, words_of(&o, words));
        }
    printf("        esac ;;\n");
}

void tool_print_bash_completion(void)
{
    printf("# Completion of tandem's command lines for bash. %s\n", made_from);
    fputs(
        "_tandem() {\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD-1]}\n"
        "    local topic=${COMP_WORDS[1]} part=${COMP_WORDS[2]} options= values=-\n"
        "    if [ \"$word\" = = ]; then\n"
        "        word=\n"
        "    elif [ \"$option\" = = ]; then\n"
        "        option=${COMP_WORDS[COMP_CWORD-2]}\n"
        "    fi\n"
        "    if [ \"$COMP_CWORD\" = 1 ] || [ \"$topic $COMP_CWORD${word%%[!-]*}\" = 'help 2' ]; then\n"
        "        COMPREPLY=($(compgen -W '",
        stdout);
    put_names(false, "", " ");
    fputs("' -- \"$word\"))\n"
          "        return\n"
          "    fi\n"
          "    case \"$topic $part\" in\n"
          "    ",
          stdout);
    put_names(true, "'", " | ");
    fputs(") topic=\"$topic $part\" ;;\n"
          "    esac\n"
          "    case $topic in\n",
          stdout);
    for (size_t i = 0; tool_topic_at(i); i++)
        put_bash_arm(tool_topic_at(i));
    fputs("    esac\n"
          "    case $values in\n"
          "    -) COMPREPLY=($(compgen -W \"$options\" -- \"$word\")) ;;\n"
          "    file) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
          "    *) COMPREPLY=($(compgen -W \"$values\" -- \"$word\")) ;;\n"
          "    esac\n"
          "}\n"
          "complete -o filenames -F _tandem tandem\n",
          stdout);
}

/* One arm of zsh's case: what _arguments is told of the topic's options. */
static void put_zsh_arm(const tool_topic *topic)
{
    char line[HELP_LINE_BYTES], below[HELP_LINE_BYTES], words[160];
    const char *text = *topic->help, *parts = parts_of(topic, words);
    printf("    '%s')\n        _arguments '--help[what this does]' '*: :(%s)'", topic->name, parts);
    while ((text = help_next_line(text, line)))
        if (help_is_option(line)) {
            const help_option o = help_cut_option(line);
            const char *values = words_of(&o, words);
            printf(" \\\n            '%s%s[", o.name, o.value[0] ? "=" : "");
            put_description(text_of(&o, text, below));
            printf("]");
            if (!strcmp(values, "file"))
                printf(":file:_files");
            else if (o.value[0])
                printf(":value:(%s)", values);
            printf("'");
        }
    printf(" ;;\n");
}

void tool_print_zsh_completion(void)
{
    printf("#compdef tandem\n# Completion of tandem's command lines for zsh. %s\n", made_from);
    fputs(
        "_tandem() {\n"
        "    local topic=$words[2]\n"
        "    if (( CURRENT == 2 )) || [[ $topic == help && CURRENT -eq 3 && $words[3] != -* ]]; then\n"
        "        local -a commands=(",
        stdout);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (!is_part(tool_topic_at(i))) {
            printf("\n            '%s:", tool_topic_at(i)->name);
            put_description(tool_topic_at(i)->summary);
            printf("'");
        }
    fputs(")\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    case \"$topic $words[3]\" in\n"
          "    ",
          stdout);
    put_names(true, "'", " | ");
    fputs(") topic=\"$topic $words[3]\" ;;\n"
          "    esac\n"
          "    case $topic in\n",
          stdout);
    for (size_t i = 0; tool_topic_at(i); i++)
        put_zsh_arm(tool_topic_at(i));
    fputs("    esac\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _tandem ]; then\n"
          "    _tandem \"$@\"\n"
          "else\n"
          "    compdef _tandem tandem\n"
          "fi\n",
          stdout);
}

/* When fish is on that topic: each word of its name has been typed. */
static void put_fish_condition(const tool_topic *topic)
{
    const size_t first = strcspn(topic->name, " ");
    printf("complete -c tandem -n '__fish_seen_subcommand_from %.*s", (int)first, topic->name);
    if (topic->name[first])
        printf("; and __fish_seen_subcommand_from %s", topic->name + first + 1);
    printf("' ");
}

static void put_fish_options(const tool_topic *topic)
{
    char line[HELP_LINE_BYTES], below[HELP_LINE_BYTES], words[160];
    const char *text = *topic->help, *parts = parts_of(topic, words);
    if (parts[0])
        printf(
            "complete -c tandem -n '__fish_seen_subcommand_from %s; and not __fish_seen_subcommand_from %s' -a '%s'\n",
            topic->name, parts, parts);
    while ((text = help_next_line(text, line)))
        if (help_is_option(line)) {
            const help_option o = help_cut_option(line);
            const char *values = words_of(&o, words);
            put_fish_condition(topic);
            printf("-l %s", o.name + 2);
            if (!strcmp(values, "file"))
                printf(" -r -F");
            else if (o.value[0])
                printf(" -x -a '%s'", values);
            printf(" -d '");
            put_description(text_of(&o, text, below));
            printf("'\n");
        }
}

void tool_print_fish_completion(void)
{
    printf(
        "# Completion of tandem's command lines for fish. %s\ncomplete -c tandem -f\ncomplete -c tandem -l help\n",
        made_from);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (!is_part(tool_topic_at(i))) {
            printf("complete -c tandem -n __fish_use_subcommand -a %s -d '",
                   tool_topic_at(i)->name);
            put_description(tool_topic_at(i)->summary);
            printf("'\n");
        }
    fputs("complete -c tandem -n '__fish_seen_subcommand_from help' -a '", stdout);
    put_names(false, "", " ");
    puts("'");
    for (size_t i = 0; tool_topic_at(i); i++)
        put_fish_options(tool_topic_at(i));
}
