/* What a process gives up on Windows: little, so far.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "engine_plugin/daemon/confine.h"

/* A crash is told by how the process ends: no window has to be closed before. */
void td_confine_process(void)
{
    SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX);
}

void td_confine_files(const char *socket_path)
{
    (void)socket_path;
}

static tandem_status none(char *why, size_t why_bytes)
{
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "there is no such filter for Windows");
}

tandem_status td_confine_broker(char *why, size_t why_bytes)
{
    return none(why, why_bytes);
}

tandem_status td_confine_launcher(char *why, size_t why_bytes)
{
    return none(why, why_bytes);
}

tandem_status td_confine_worker(char *why, size_t why_bytes)
{
    return none(why, why_bytes);
}
