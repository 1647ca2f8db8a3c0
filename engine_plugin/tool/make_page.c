/* Makes the man page of a program that is not the tool from its text of help, as the build runs it:
 *
 *     tandemd --help | make_page tandemd SUMMARY SEE_ALSO > tandemd.1
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "engine_plugin/tool/manual.h"

int main(int argc, char **argv)
{
    static char text[65536];
    const size_t bytes = fread(text, 1, sizeof text - 1, stdin);

    if (argc != 4 || bytes == sizeof text - 1 || strncmp(text, "usage: ", 7) != 0) {
        fprintf(stderr, "make_page: NAME SUMMARY SEE_ALSO, and on stdin a text of help that begins with its usage\n");
        return 2;
    }
    char *status = strstr(text, "\nExit status: ");
    if (!status) {
        fprintf(stderr, "make_page: the text does not end with a line \"Exit status: \"\n");
        return 2;
    }
    *status++ = 0;
    printf(".\\\" Made from the text of `%s --help`.\n", argv[1]);
    man_begin(argv[1], argv[2]);
    fputs(".SH SYNOPSIS\n", stdout);
    const char *body = man_synopsis(text);
    fputs(".SH DESCRIPTION\n", stdout);
    man_body(body, true);
    fputs(".SH EXIT STATUS\n", stdout);
    man_body(status + strlen("Exit status: "), true);
    printf(".SH SEE ALSO\n.BR %s (1)\n", argv[3]);
    return 0;
}
