/* See control.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/layer/control.h"

#include <stdio.h>
#include <string.h>

#include "engine_plugin/layer/settings.h"
#include "interop/base.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/os/thread.h"

/* How long somebody who has connected may say nothing. */
static const uint64_t PATIENCE_NS = 2000000000, SLEEP_NS = 3600ull * 1000000000;

static td_listener listener = {.fd = -1, .lock = -1, .spare = -1};

/* A request is words of printable characters, and lines. */
static bool is_text(const char *message, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)message[i] < 32 && message[i] != '\n')
            return false;
    return true;
}

static void answer_to(const char *request, char *answer, size_t bytes)
{
    static const char set[] = "set\n";
    char why[300];

    if (!strcmp(request, "status")) {
        snprintf(answer, bytes, "ok\n");
        layer_status_text(answer + 3, bytes - 3);
    } else if (!strcmp(request, "toggle") || !strcmp(request, "toggle\nhud")) {
        layer_settings_toggle(request[6] != 0);
        snprintf(answer, bytes, "ok\n");
    } else if (!strncmp(request, set, strlen(set)) && request[strlen(set)]) {
        if (layer_settings_set(request + strlen(set), why, sizeof why))
            snprintf(answer, bytes, "ok\n");
        else
            snprintf(answer, bytes, "error\n%s\n", why);
    } else
        snprintf(answer, bytes, "error\nthe request is none of status, toggle and set\n");
}

static void serve(int channel)
{
    static char request[LAYER_MESSAGE_BYTES + 1], answer[LAYER_MESSAGE_BYTES];
    const uint64_t until = td_now_ns() + PATIENCE_NS;
    td_channel_got got = {0};
    char why[200];
    uint32_t ready;
    tandem_status status = TANDEM_ERROR_BUSY;

    while (status == TANDEM_ERROR_BUSY) {
        const uint64_t now = td_now_ns();
        if (now >= until ||
            td_channel_wait(channel, false, -1, until - now, &ready, why, sizeof why) != TANDEM_OK)
            return;
        status = td_channel_receive(channel, request, LAYER_MESSAGE_BYTES, NULL, 0, &got, why,
                                    sizeof why);
    }
    if (status != TANDEM_OK || !got.bytes)
        return;
    request[got.bytes] = 0;
    if (got.is_longer || got.fds || got.lost_fds || !is_text(request, got.bytes))
        snprintf(answer, sizeof answer, "error\nthe request is no text, or too long\n");
    else
        answer_to(request, answer, sizeof answer);
    td_channel_send(channel, answer, (uint32_t)strlen(answer), NULL, 0, why, sizeof why);
}

static void *listen_for_good(void *unused)
{
    char why[200];
    uint32_t ready;

    (void)unused;
    td_thread_name("tandem-layer");
    for (;;) {
        int channel = -1;
        if (td_channel_wait(listener.fd, false, -1, SLEEP_NS, &ready, why, sizeof why) != TANDEM_OK)
            return NULL;
        const tandem_status status = td_listener_next(&listener, &channel, why, sizeof why);
        if (status == TANDEM_OK)
            serve(channel);
        else if (status != TANDEM_ERROR_BUSY)
            td_sleep_ns(PATIENCE_NS); /* no descriptor is left: the program's own affair */
        td_fd_close(&channel);
    }
}

static bool listen_somewhere(void)
{
    char path[TD_CHANNEL_PATH_BYTES], why[200];

    for (int i = 0; i < LAYER_PLACES; i++) {
        if (layer_control_place(i, path, why, sizeof why) != TANDEM_OK)
            return false;
        const tandem_status status = td_listener_open(&listener, path, why, sizeof why);
        if (status == TANDEM_OK)
            return true;
        if (status != TANDEM_ERROR_BUSY)
            return false;
    }
    return false;
}

void layer_control_begin(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static bool begun;
    pthread_t thread;

    pthread_mutex_lock(&lock);
    if (!begun) {
        if (listen_somewhere() && td_thread_start(&thread, listen_for_good, NULL))
            pthread_detach(thread);
        else
            td_listener_close(&listener);
    }
    begun = true;
    pthread_mutex_unlock(&lock);
}
