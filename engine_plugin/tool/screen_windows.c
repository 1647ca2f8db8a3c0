/* Windows' console.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/screen.h"

#include <stdio.h>
#include <windows.h>

#include "interop/os/clock.h"

static DWORD in_as_it_was, out_as_it_was;

bool tool_screen_is_there(void)
{
    return GetConsoleMode(GetStdHandle(STD_INPUT_HANDLE), &in_as_it_was) &&
           GetConsoleMode(GetStdHandle(STD_OUTPUT_HANDLE), &out_as_it_was);
}

/* Ctrl-C is a key like others then. */
void tool_screen_enter(void)
{
    SetConsoleMode(GetStdHandle(STD_INPUT_HANDLE), 0);
    SetConsoleMode(GetStdHandle(STD_OUTPUT_HANDLE), out_as_it_was | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
    printf("\033[?1049h\033[?25l");
}

void tool_screen_leave(void)
{
    printf("\033[?25h\033[?1049l");
    fflush(stdout);
    SetConsoleMode(GetStdHandle(STD_INPUT_HANDLE), in_as_it_was);
    SetConsoleMode(GetStdHandle(STD_OUTPUT_HANDLE), out_as_it_was);
}

void tool_screen_size(int *columns, int *rows)
{
    CONSOLE_SCREEN_BUFFER_INFO info;
    const bool known = GetConsoleScreenBufferInfo(GetStdHandle(STD_OUTPUT_HANDLE), &info);
    *columns = known ? info.srWindow.Right - info.srWindow.Left + 1 : 80;
    *rows = known ? info.srWindow.Bottom - info.srWindow.Top + 1 : 24;
}

bool tool_screen_wait(uint64_t ns)
{
    const uint64_t until = td_now_ns() + ns;
    HANDLE keys = GetStdHandle(STD_INPUT_HANDLE);
    for (uint64_t now = td_now_ns(); now < until; now = td_now_ns()) {
        INPUT_RECORD record;
        DWORD got;
        if (WaitForSingleObject(keys, (DWORD)((until - now) / 1000000) + 1) != WAIT_OBJECT_0)
            continue;
        if (!ReadConsoleInputW(keys, &record, 1, &got))
            return true;
        if (record.EventType != KEY_EVENT || !record.Event.KeyEvent.bKeyDown || !record.Event.KeyEvent.uChar.UnicodeChar)
            continue;
        const wchar_t key = record.Event.KeyEvent.uChar.UnicodeChar;
        return key == L'q' || key == L'Q' || key == 3; /* any other key: look now */
    }
    return false;
}
