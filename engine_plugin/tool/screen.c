/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_plugin/tool/screen.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "interop/os/clock.h"

bool tool_screen_is_there(void)
{
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

static volatile sig_atomic_t ends;
static struct termios as_it_was;

static void on_signal(int number)
{
    (void)number;
    ends = 1;
}

void tool_screen_enter(void)
{
    const struct sigaction end = {.sa_handler = on_signal};
    struct termios raw;
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGHUP, &end, NULL);
    tcgetattr(STDIN_FILENO, &as_it_was);
    raw = as_it_was;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    printf("\033[?1049h\033[?25l");
}

void tool_screen_leave(void)
{
    printf("\033[?25h\033[?1049l");
    tcsetattr(STDIN_FILENO, TCSANOW, &as_it_was);
}

void tool_screen_size(int *columns, int *rows)
{
    struct winsize size = {0};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    *columns = size.ws_col ? size.ws_col : 80;
    *rows = size.ws_row ? size.ws_row : 24;
}

bool tool_screen_wait(uint64_t ns)
{
    const uint64_t until = td_now_ns() + ns;
    bool listens = true;
    while (!ends && td_now_ns() < until) {
        struct pollfd p = {listens ? STDIN_FILENO : -1, POLLIN, 0};
        char key;
        if (poll(&p, 1, (int)((until - td_now_ns()) / 1000000) + 1) <= 0)
            continue;
        if (read(STDIN_FILENO, &key, 1) != 1)
            listens = false;
        else if (key == 'q' || key == 'Q' || key == 3)
            return true;
        else
            return false; /* any other key: look now */
    }
    return ends;
}
