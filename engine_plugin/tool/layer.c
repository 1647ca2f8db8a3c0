/* `tandem layer`: asks the Vulkan layer in running programs, and tells it what to do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/layer/control.h"
#include "engine_plugin/tool/tool.h"
#include "interop/os/descriptor.h"
#include "interop/os/file.h"

/* clang-format off */
const char *const tool_layer_help =
    "usage: tandem layer status|toggle|set [hud] [NAME=VALUE ...] [--program N]\n"
    "\n"
    "What VK_LAYER_TANDEM_effect does in the programs that run with TANDEM_LAYER=1, and what it is to do from\n"
    "now on, without their knowing.\n"
    "  status           what is set, then of what was presented last: rung, size, how many images were\n"
    "                   presented and changed, milliseconds from one to the next and what the layer adds, and\n"
    "                   why nothing is changed, where that is so\n"
    "  toggle           the effect off, or on again; `toggle hud`: the letters in the corner\n"
    "  set effect=E     none, denoise-film, sharpen, or model=FILE: a network of the user's with an input\n"
    "                   `color` and an output `out`, as for `tandem denoise`\n"
    "  set amount=A     how much of it, 0 to 2; default 1. Not of a model\n"
    "  set sigma=S      what is noise, in steps of 8-bit colours, 1 to 64; default 5. Not of a model\n"
    "  set rung=R       how compute meets the program's device: auto, inline, timeline, host, copy or cpu\n"
    "  set on=on|off    the effect; `hud=on|off`: the letters\n"
    "\n"
    "  --program N      the program with that process id alone; default: all\n";
/* clang-format on */

#define LIMIT_NS 10000000000u /* how long a program may take to answer */
/* NOBODY is there, or another program; GONE: on a busy machine it has lost patience before it was
 * asked. */
enum { NOBODY = -1, GONE = -2, TRIES = 3 };

/* A request and its answer: TOOL_OK; TOOL_FAILED or GONE, and why. */
static int converse(int channel, const char *request, char answer[LAYER_MESSAGE_BYTES + 1],
                    char *why, size_t why_bytes)
{
    const uint64_t until = td_now_ns() + LIMIT_NS;
    td_channel_got got = {0};
    uint32_t ready;
    tandem_status status =
        td_channel_send(channel, request, (uint32_t)strlen(request), NULL, 0, why, why_bytes);

    while (status == TANDEM_OK || status == TANDEM_ERROR_BUSY) {
        const uint64_t now = td_now_ns();
        if (now >= until)
            return TOOL_FAILED;
        status = td_channel_wait(channel, false, -1, until - now, &ready, why, why_bytes);
        if (status != TANDEM_OK)
            break;
        status = td_channel_receive(channel, answer, LAYER_MESSAGE_BYTES, NULL, 0, &got, why,
                                    why_bytes);
        if (status == TANDEM_OK && !got.bytes)
            status = TANDEM_ERROR_LOST;
        else if (status == TANDEM_OK) {
            answer[got.bytes] = 0;
            return TOOL_OK;
        }
    }
    return status == TANDEM_ERROR_LOST ? GONE : TOOL_FAILED;
}

/* Asks the program at a place. */
static int ask(const char *path, const char *request, int64_t only, int32_t *process,
               char answer[LAYER_MESSAGE_BYTES + 1], char *why, size_t why_bytes)
{
    td_channel_peer peer = {0};
    int channel = -1, result = NOBODY;

    if (td_channel_connect(path, &channel, why, why_bytes) != TANDEM_OK)
        return NOBODY;
    if (td_channel_peer_of(channel, &peer, why, why_bytes) == TANDEM_OK &&
        (only < 0 || only == peer.process)) {
        *process = peer.process;
        snprintf(why, why_bytes, "program %" PRId32 " does not answer", peer.process);
        result = converse(channel, request, answer, why, why_bytes);
    }
    td_fd_close(&channel);
    return result;
}

/* Sends it to each. */
static int ask_all(const char *request, int64_t only)
{
    const bool is_status = !strcmp(request, "status");
    char answer[LAYER_MESSAGE_BYTES + 1] = "", path[TD_CHANNEL_PATH_BYTES], why[300] = "";
    int found = 0, result = TOOL_OK;

    for (int i = 0; i < LAYER_PLACES; i++) {
        int32_t process = 0;
        if (layer_control_place(i, path, why, sizeof why) != TANDEM_OK)
            return tool_fail("layer", "there is no place where programs listen: %s", why);
        int asked = ask(path, request, only, &process, answer, why, sizeof why);
        for (int again = 1; asked == GONE && again < TRIES; again++)
            asked = ask(path, request, only, &process, answer, why, sizeof why);
        if (asked == NOBODY)
            continue;
        found++;
        char *text = strchr(answer, '\n');
        if (asked != TOOL_OK)
            result = tool_fail("layer", "%s", why);
        else if (strncmp(answer, "ok\n", 3) != 0) {
            text = text ? text + 1 : answer;
            text[strcspn(text, "\n")] = 0;
            result = tool_fail("layer", "%s", text);
        } else if (is_status)
            printf("program %" PRId32 "\n%s", process, text + 1);
    }
    if (!found && only >= 0)
        return tool_fail("layer", "program %" PRId64 " does not run with the layer", only);
    return found ? result
                 : tool_fail("layer",
                             "no program runs with the layer: start one with TANDEM_LAYER=1");
}

/* A line for a setting; the path of a model is as seen from here, the program's folder may be
 * another. */
static bool add_line(char *request, size_t bytes, const char *word)
{
    static const char model[] = "effect=model=";
    char *whole =
        !strncmp(word, model, strlen(model)) ? td_file_whole_path(word + strlen(model)) : NULL;
    const size_t used = strlen(request);
    const int length = whole ? snprintf(request + used, bytes - used, "\n%s%s", model, whole)
                             : snprintf(request + used, bytes - used, "\n%s", word);

    free(whole);
    return length > 0 && (size_t)length < bytes - used && !strchr(request + used + 1, '\n');
}

int tool_layer(int argc, char **argv)
{
    const char *program = NULL;
    const tool_option options[] = {{"--program", &program, NULL}};
    char request[LAYER_MESSAGE_BYTES] = "", **others = calloc((size_t)argc + 1, sizeof *others);
    int other_count = 0, words = 0, status = TOOL_OK;
    uint64_t number = 0;

    if (!others)
        return tool_fail("layer", "out of memory");
    for (int i = 0; i < argc && status == TOOL_OK; i++) {
        if (!strncmp(argv[i], "--", 2)) {
            others[other_count++] = argv[i];
            if (!strcmp(argv[i], "--program") && i + 1 < argc)
                others[other_count++] = argv[++i];
        } else if (!words++)
            snprintf(request, sizeof request, "%s", argv[i]);
        else if (!add_line(request, sizeof request, argv[i]))
            status = tool_usage("layer", "\"%.100s\" is too long, or of two lines", argv[i]);
    }
    if (status == TOOL_OK)
        status =
            tool_parse("layer", other_count, others, options, sizeof options / sizeof *options);
    free(others);
    if (status != TOOL_OK)
        return status;
    if (program && !tool_number(program, 1, INT32_MAX, &number))
        return tool_usage("layer", "--program is \"%s\", and must be a process id", program);
    const bool known = !strcmp(request, "status") || !strcmp(request, "toggle") ||
                       !strcmp(request, "toggle\nhud") ||
                       (!strncmp(request, "set\n", 4) && words > 1);
    if (!known)
        return tool_usage("layer", "status, toggle [hud], or set NAME=VALUE ... says what to do; "
                                   "`tandem help layer` explains them");
    return ask_all(request, program ? (int64_t)number : -1);
}
