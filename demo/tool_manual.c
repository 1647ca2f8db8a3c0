/* Man pages and the completion of command lines, both made from the texts that `tandem help` prints.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * What a text of help looks like: "usage:" and what follows it up to the first empty line. Then paragraphs that begin in
 * column 0; options, which begin with two spaces and "--", then a value's name or its words ("yes|no"), then after two
 * spaces or on the next lines what they do; and anything else that is indented, which stays as it is.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "demo/tool.h"
#include "tandem/tandem.h"

enum { LINE_BYTES = 256 };

/* A line of `text`, without its end. NULL behind the last. */
static const char *next_line(const char *text, char line[LINE_BYTES])
{
    if (!*text)
        return NULL;
    const size_t length = strcspn(text, "\n");
    snprintf(line, LINE_BYTES, "%.*s", (int)length, text);
    return text[length] ? text + length + 1 : text + length;
}

static size_t indent_of(const char *line)
{
    return strspn(line, " ");
}

static bool is_option(const char *line)
{
    return strncmp(line, "  --", 4) == 0;
}

/* An option's line, cut up. */
typedef struct option_line {
    char name[32], value[160]; /* value: its name or words; empty: a switch */
    const char *text;          /* what it does, if that begins on this line; else "" */
} option_line;

static option_line cut_option(const char *line)
{
    option_line o = {.text = ""};
    const char *name = line + 2, *end = strstr(name, "  ");
    const size_t length = end ? (size_t)(end - name) : strlen(name), first = strcspn(name, " ");
    snprintf(o.name, sizeof o.name, "%.*s", (int)first, name);
    if (first < length)
        snprintf(o.value, sizeof o.value, "%.*s", (int)(length - first - 1), name + first + 1);
    if (end)
        o.text = end + indent_of(end);
    return o;
}

/* --- roff --- */

static void put_roff(const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", stdout);
    for (; *text; text++)
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else if (*text == '\'')
            fputs("\\(aq", stdout);
        else if (*text == '`')
            fputs("\\(ga", stdout);
        else if (*text == '^')
            fputs("\\(ha", stdout);
        else if (*text == '~')
            fputs("\\(ti", stdout);
        else
            putchar(*text);
}

static void put_roff_line(const char *text)
{
    put_roff(text);
    putchar('\n');
}

static void put_option(const char *line)
{
    const option_line o = cut_option(line);
    fputs(".TP\n\\fB", stdout);
    put_roff(o.name);
    fputs("\\fR", stdout);
    if (o.value[0]) {
        fputs(" \\fI", stdout);
        put_roff(o.value);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    if (o.text[0])
        put_roff_line(o.text);
}

/* What follows the usage: each line by what the one before it was. */
static void put_body(const char *text)
{
    enum { NOTHING, PARAGRAPH, OPTION, AS_IS } now = NOTHING;
    char line[LINE_BYTES];
    while ((text = next_line(text, line))) {
        const size_t indent = indent_of(line);
        if (now == OPTION && indent > 4 && line[indent]) {
            if (strstr(line + indent, "  ")) /* a list within */
                fputs(".br\n", stdout);
            put_roff_line(line + indent);
            continue;
        }
        const bool as_is = indent && line[indent] && !is_option(line);
        if (now == AS_IS && !as_is)
            fputs(".fi\n", stdout);
        if (!line[indent]) {
            now = NOTHING;
        } else if (is_option(line)) {
            put_option(line);
            now = OPTION;
        } else if (as_is) {
            if (now != AS_IS)
                fputs(now == PARAGRAPH ? ".nf\n" : ".PP\n.nf\n", stdout);
            put_roff_line(line);
            now = AS_IS;
        } else {
            if (now != PARAGRAPH)
                fputs(".PP\n", stdout);
            put_roff_line(line);
            now = PARAGRAPH;
        }
    }
    if (now == AS_IS)
        fputs(".fi\n", stdout);
}

/* The lines of the usage, and behind them the rest of the text. */
static const char *put_synopsis(const char *text)
{
    char line[LINE_BYTES];
    fputs(".nf\n", stdout);
    while ((text = next_line(text, line)) && line[0])
        put_roff_line(line + strlen("usage: "));
    fputs(".fi\n", stdout);
    return text ? text : "";
}

static void put_title(const char *name, const char *summary)
{
    char title[64];
    snprintf(title, sizeof title, "TANDEM%s%s", name ? "-" : "", name ? name : "");
    for (char *c = title; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    fputs(".TH ", stdout);
    put_roff(title);
    printf(" 1 \"\" \"Tandem %u.%u.%u\" \"Tandem\"\n.SH NAME\ntandem%s", tandem_version() >> 22,
           tandem_version() >> 12 & 1023, tandem_version() & 4095, name ? "\\-" : "");
    put_roff(name ? name : "");
    fputs(" \\- ", stdout);
    put_roff_line(summary);
}

static bool is_part_of(const tool_topic *part, const tool_topic *whole)
{
    const size_t length = strlen(whole->name);
    return !strncmp(part->name, whole->name, length) && part->name[length] == ' ';
}

static void put_topic(const tool_topic *topic)
{
    put_title(topic->name, topic->summary);
    fputs(".SH SYNOPSIS\n", stdout);
    const char *body = put_synopsis(*topic->help);
    fputs(".SH DESCRIPTION\n", stdout);
    put_body(body);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (is_part_of(tool_topic_at(i), topic)) {
            fputs(".SH ", stdout);
            put_roff_line(tool_topic_at(i)->name);
            put_body(put_synopsis(*tool_topic_at(i)->help));
        }
    fputs(".SH EXIT STATUS\n", stdout);
    put_body(strchr(tool_exit_status, ' ') + 1 + strlen("status: "));
    fputs(".SH SEE ALSO\n.BR tandem (1)\n", stdout);
}

void tool_print_man(const tool_topic *topic)
{
    fputs(".\\\" Made from the texts of `tandem help`.\n", stdout);
    if (topic) {
        put_topic(topic);
        return;
    }
    put_title(NULL, "SageAttention2 on files, and what this machine can do");
    fputs(".SH SYNOPSIS\n.B tandem\n\\fICOMMAND\\fR [\\fIoptions\\fR]\n.SH COMMANDS\n", stdout);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (!strchr(tool_topic_at(i)->name, ' ')) {
            fputs(".TP\n\\fBtandem ", stdout);
            put_roff(tool_topic_at(i)->name);
            fputs("\\fR\n", stdout);
            put_roff_line(tool_topic_at(i)->summary);
        }
    fputs(".SH EXIT STATUS\n", stdout);
    put_body(strchr(tool_exit_status, ' ') + 1 + strlen("status: "));
    fputs(".SH SEE ALSO\n", stdout);
    const char *before = "";
    for (size_t i = 0; tool_topic_at(i); i++)
        if (!strchr(tool_topic_at(i)->name, ' ')) {
            printf("%s.BR tandem\\-", before);
            put_roff(tool_topic_at(i)->name);
            fputs(" (1)", stdout);
            before = ",\n";
        }
    putchar('\n');
}

/* --- bash --- */

/* The words of an option's value; "file" for a path; "" where nothing can be offered. */
static const char *words_of(const option_line *o, char words[160])
{
    static const char *const files[] = {"F", "F ...", "G", "FILE", "PATH", "PLAN", NULL};
    if (tool_word(o->value, files) >= 0)
        return "file";
    snprintf(words, 160, "%s", strchr(o->value, '|') ? o->value : "");
    for (char *c = words; (c = strchr(c, '|'));)
        *c = ' ';
    return words;
}

/* What may follow the topic in its usage ("handover|attention|daemon"), but for options: " handover attention daemon". */
static void put_parts(const tool_topic *topic)
{
    const char *after = *topic->help + strlen("usage: tandem ") + strlen(topic->name) + 1;
    if (!islower((unsigned char)*after))
        return;
    putchar(' ');
    for (; *after && *after != ' ' && *after != '\n'; after++)
        putchar(*after == '|' ? ' ' : *after);
}

/* One arm of the script's case: the topic's options, and what their values may be. */
static void put_arm(const tool_topic *topic)
{
    char line[LINE_BYTES], words[160];
    const char *text = *topic->help;
    printf("    '%s')\n        options='--help", topic->name);
    put_parts(topic);
    while ((text = next_line(text, line)))
        if (is_option(line))
            printf(" %s", cut_option(line).name);
    printf("'\n        case $option in\n");
    text = *topic->help;
    while ((text = next_line(text, line)))
        if (is_option(line)) {
            const option_line o = cut_option(line);
            if (o.value[0])
                printf("        %s) values='%s' ;;\n", o.name, words_of(&o, words));
        }
    printf("        esac ;;\n");
}

/* Names of topics: of commands, or of parts of them, which have a space within. */
static void put_names(bool parts, const char *before, const char *between, const char *after)
{
    bool first = true;
    for (size_t i = 0; tool_topic_at(i); i++)
        if (parts == (strchr(tool_topic_at(i)->name, ' ') != NULL)) {
            printf("%s%s%s%s", first ? "" : between, before, tool_topic_at(i)->name, after);
            first = false;
        }
}

void tool_print_bash_completion(void)
{
    fputs("# Completion of tandem's command lines for bash. Made from the texts of `tandem help`.\n"
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
    put_names(false, "", " ", "");
    fputs("' -- \"$word\"))\n"
          "        return\n"
          "    fi\n"
          "    case \"$topic $part\" in\n"
          "    ",
          stdout);
    put_names(true, "'", " | ", "'");
    fputs(") topic=\"$topic $part\" ;;\n"
          "    esac\n"
          "    case $topic in\n",
          stdout);
    for (size_t i = 0; tool_topic_at(i); i++)
        put_arm(tool_topic_at(i));
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
