/* Man pages of the tool, made from the texts that `tandem help` prints.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/manual.h"
#include "engine_plugin/tool/tool.h"

static bool is_part_of(const tool_topic *part, const tool_topic *whole)
{
    const size_t length = strlen(whole->name);
    return !strncmp(part->name, whole->name, length) && part->name[length] == ' ';
}

static void put_topic(const tool_topic *topic)
{
    char name[64];
    snprintf(name, sizeof name, "tandem-%s", topic->name);
    man_begin(name, topic->summary);
    fputs(".SH SYNOPSIS\n", stdout);
    const char *body = man_synopsis(*topic->help);
    fputs(".SH DESCRIPTION\n", stdout);
    man_body(body, true);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (is_part_of(tool_topic_at(i), topic)) {
            fputs(".SH ", stdout);
            man_line(tool_topic_at(i)->name);
            man_body(man_synopsis(*tool_topic_at(i)->help), false);
        }
    fputs(".SH EXIT STATUS\n", stdout);
    man_body(strchr(tool_exit_status, ' ') + 1 + strlen("status: "), true);
    fputs(".SH SEE ALSO\n.BR tandem (1)\n", stdout);
}

void tool_print_man(const tool_topic *topic)
{
    fputs(".\\\" Made from the texts of `tandem help`.\n", stdout);
    if (topic) {
        put_topic(topic);
        return;
    }
    man_begin("tandem", "SageAttention2 and networks on files, and what this machine can do");
    fputs(".SH SYNOPSIS\n.B tandem\n\\fICOMMAND\\fR [\\fIoptions\\fR]\n.SH COMMANDS\n", stdout);
    for (size_t i = 0; tool_topic_at(i); i++)
        if (!strchr(tool_topic_at(i)->name, ' ')) {
            fputs(".TP\n\\fBtandem ", stdout);
            man_text(tool_topic_at(i)->name);
            fputs("\\fR\n", stdout);
            man_line(tool_topic_at(i)->summary);
        }
    fputs(".SH EXIT STATUS\n", stdout);
    man_body(strchr(tool_exit_status, ' ') + 1 + strlen("status: "), true);
    fputs(".SH SEE ALSO\n", stdout);
    const char *before = "";
    for (size_t i = 0; tool_topic_at(i); i++)
        if (!strchr(tool_topic_at(i)->name, ' ')) {
            printf("%s.BR tandem\\-", before);
            man_text(tool_topic_at(i)->name);
            fputs(" (1)", stdout);
            before = ",\n";
        }
    fputs(",\n.BR tandemd (1)\n", stdout);
}
