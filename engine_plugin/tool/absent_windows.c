/* The commands that are not there on Windows, and why: their names stay, so that who looks for one is told.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/tool.h"

#define ABSENT(name, why)                                                                      \
    const char *const tool_##name##_help = "usage: tandem " #name "\n\nNot on Windows: " why ".\n"; \
    ABSENT_BUT_HELP(name, why)
#define ABSENT_BUT_HELP(name, why)                    \
    int tool_##name(int argc, char **argv)             \
    {                                                  \
        (void)argc;                                    \
        (void)argv;                                    \
        return tool_fail(#name, "not on Windows: " why); \
    }

ABSENT(fetch, "it runs Python's pip; any GGUF file will do for --model")
ABSENT(conform, "it stands in front of a program's calls by LD_PRELOAD")
ABSENT(doctor, "`tandem info` says what the CPU and the GPUs are good for")
ABSENT(tune, "a table that was made for the same GPU elsewhere is read, by --tuning")
ABSENT(serve, "it is a program of its own, which is not built")
ABSENT_BUT_HELP(bench, "it is tandem-bench that does it, which is not built")
ABSENT_BUT_HELP(accuracy, "it is tandem-bench that does it, which is not built")
ABSENT_BUT_HELP(eval, "it is tandem-bench that does it, which is not built")
