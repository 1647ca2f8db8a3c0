/* Man pages, made from the texts that `tandem help` prints.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/manual.h"
#include "tandem/tandem.h"

const char *help_next_line(const char *text, char line[HELP_LINE_BYTES])
{
    if (!*text)
        return NULL;
    const size_t length = strcspn(text, "\n");
    snprintf(line, HELP_LINE_BYTES, "%.*s", (int)length, text);
    return text[length] ? text + length + 1 : text + length;
}

size_t help_indent(const char *line)
{
    return strspn(line, " ");
}

bool help_is_option(const char *line)
{
    return strncmp(line, "  --", 4) == 0;
}

help_option help_cut_option(const char *line)
{
    help_option o = {.text = ""};
    const char *name = line + 2, *end = strstr(name, "  ");
    const size_t length = end ? (size_t)(end - name) : strlen(name), first = strcspn(name, " ");
    snprintf(o.name, sizeof o.name, "%.*s", (int)first, name);
    if (first < length)
        snprintf(o.value, sizeof o.value, "%.*s", (int)(length - first - 1), name + first + 1);
    if (end)
        o.text = end + help_indent(end);
    return o;
}

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
    const help_option o = help_cut_option(line);
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

/* What follows the usage: each line by what the one before it was. Behind a heading no paragraph has to be begun. */
static void put_body(const char *text, bool behind_heading)
{
    enum { NOTHING, PARAGRAPH, OPTION, AS_IS } now = NOTHING;
    char line[HELP_LINE_BYTES];
    while ((text = help_next_line(text, line))) {
        const size_t indent = help_indent(line);
        if (now == OPTION && indent > 4 && line[indent]) {
            if (strstr(line + indent, "  ")) /* a list within */
                fputs(".br\n", stdout);
            put_roff_line(line + indent);
            continue;
        }
        const bool as_is = indent && line[indent] && !help_is_option(line);
        if (now == AS_IS && !as_is)
            fputs(".fi\n", stdout);
        if (!line[indent]) {
            now = NOTHING;
        } else if (help_is_option(line)) {
            put_option(line);
            now = OPTION;
        } else if (as_is) {
            if (now != AS_IS)
                fputs(now == PARAGRAPH || behind_heading ? ".nf\n" : ".PP\n.nf\n", stdout);
            put_roff_line(line);
            now = AS_IS;
        } else {
            if (now != PARAGRAPH && !behind_heading)
                fputs(".PP\n", stdout);
            put_roff_line(line);
            now = PARAGRAPH;
        }
        behind_heading = behind_heading && now == NOTHING;
    }
    if (now == AS_IS)
        fputs(".fi\n", stdout);
}

/* The lines of the usage, and behind them the rest of the text. */
static const char *put_synopsis(const char *text)
{
    char line[HELP_LINE_BYTES];
    fputs(".nf\n", stdout);
    while ((text = help_next_line(text, line)) && line[0])
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
    printf(" 1 \"2026-11-23\" \"Tandem %u.%u.%u\" \"Tandem\"\n.SH NAME\ntandem%s", tandem_version() >> 22,
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
    put_body(body, true);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (is_part_of(tool_topic_at(i), topic)) {
            fputs(".SH ", stdout);
            put_roff_line(tool_topic_at(i)->name);
            put_body(put_synopsis(*tool_topic_at(i)->help), false);
        }
    fputs(".SH EXIT STATUS\n", stdout);
    put_body(strchr(tool_exit_status, ' ') + 1 + strlen("status: "), true);
    fputs(".SH SEE ALSO\n.BR tandem (1)\n", stdout);
}

void tool_print_man(const tool_topic *topic)
{
    fputs(".\\\" Made from the texts of `tandem help`.\n", stdout);
    if (topic) {
        put_topic(topic);
        return;
    }
    put_title(NULL, "SageAttention2 and networks on files, and what this machine can do");
    fputs(".SH SYNOPSIS\n.B tandem\n\\fICOMMAND\\fR [\\fIoptions\\fR]\n.SH COMMANDS\n", stdout);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (!strchr(tool_topic_at(i)->name, ' ')) {
            fputs(".TP\n\\fBtandem ", stdout);
            put_roff(tool_topic_at(i)->name);
            fputs("\\fR\n", stdout);
            put_roff_line(tool_topic_at(i)->summary);
        }
    fputs(".SH EXIT STATUS\n", stdout);
    put_body(strchr(tool_exit_status, ' ') + 1 + strlen("status: "), true);
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
