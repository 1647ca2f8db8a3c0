/* How a text of help is read, and written as a man page.
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

void man_text(const char *text)
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

void man_line(const char *text)
{
    man_text(text);
    putchar('\n');
}

static void put_option(const char *line)
{
    const help_option o = help_cut_option(line);
    fputs(".TP\n\\fB", stdout);
    man_text(o.name);
    fputs("\\fR", stdout);
    if (o.value[0]) {
        fputs(" \\fI", stdout);
        man_text(o.value);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    if (o.text[0])
        man_line(o.text);
}

/* Each line by what the one before it was. */
void man_body(const char *text, bool behind_heading)
{
    enum { NOTHING, PARAGRAPH, OPTION, AS_IS } now = NOTHING;
    char line[HELP_LINE_BYTES];
    while ((text = help_next_line(text, line))) {
        const size_t indent = help_indent(line);
        if (now == OPTION && indent > 4 && line[indent]) {
            if (strstr(line + indent, "  ")) /* a list within */
                fputs(".br\n", stdout);
            man_line(line + indent);
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
            man_line(line);
            now = AS_IS;
        } else {
            if (now != PARAGRAPH && !behind_heading)
                fputs(".PP\n", stdout);
            man_line(line);
            now = PARAGRAPH;
        }
        behind_heading = behind_heading && now == NOTHING;
    }
    if (now == AS_IS)
        fputs(".fi\n", stdout);
}

const char *man_synopsis(const char *text)
{
    char line[HELP_LINE_BYTES];
    fputs(".nf\n", stdout);
    while ((text = help_next_line(text, line)) && line[0])
        man_line(line + strlen("usage: "));
    fputs(".fi\n", stdout);
    return text ? text : "";
}

void man_begin(const char *name, const char *summary)
{
    char title[64];
    snprintf(title, sizeof title, "%s", name);
    for (char *c = title; *c; c++)
        *c = (char)toupper((unsigned char)*c);
    fputs(".TH ", stdout);
    man_text(title);
    printf(" 1 \"2026-11-23\" \"Tandem %d.%d.%d\" \"Tandem\"\n.SH NAME\n", TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR,
           TANDEM_VERSION_PATCH);
    man_text(name);
    fputs(" \\- ", stdout);
    man_line(summary);
}
