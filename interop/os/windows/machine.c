/* SPDX-License-Identifier: Apache-2.0 */
#include "interop/os/machine.h"

#include <string.h>

#include "interop/os/windows/handle.h"

size_t td_machine_id(char *text, size_t bytes)
{
    DWORD room = (DWORD)bytes;

    if (RegGetValueA(HKEY_LOCAL_MACHINE, "SOFTWARE\\Microsoft\\Cryptography", "MachineGuid",
                     RRF_RT_REG_SZ | RRF_SUBKEY_WOW6464KEY, NULL, text, &room))
        text[0] = 0;
    return strlen(text);
}

size_t td_machine_boot_id(char *text, size_t bytes)
{
    (void)bytes;
    text[0] = 0;
    return 0;
}
