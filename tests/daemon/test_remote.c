/* Sessions that compute in a real tandemd: the same bits, and what happens to them when it dies.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/daemon/remote/rig.h"

static int set_up(void **state)
{
    const char *build = getenv("TANDEM_BUILD");

    (void)state;
    strcpy(folder, "/tmp/tandem-remote-XXXXXX");
    if (!build || !mkdtemp(folder))
        return 1;
    snprintf(program, sizeof program, "%s/tandemd", build);
    snprintf(socket_path, sizeof socket_path, "%s/tandem-0", folder);
    snprintf(config_path, sizeof config_path, "%s/config", folder);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    snprintf(model_path, sizeof model_path, "%s/model.safetensors", folder);
    start_daemon("threads = 1\n");
    return 0;
}

static int tear_down(void **state)
{
    static const char *const left[] = {"tandem-0", "tandem-0.lock", "config", "log", "model.safetensors"};
    char path[128];

    (void)state;
    if (daemon_pid)
        end_daemon(SIGTERM);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, left[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(void)
{
    const test_cases *const parts[] = {
        &remote_results_cases, &remote_jobs_cases, &remote_restarts_cases, &remote_networks_cases,
        &remote_reloads_cases,
    };

    if (getenv("TANDEM_TEST_FILTER"))
        cmocka_set_test_filter(getenv("TANDEM_TEST_FILTER"));
    return run_cases("tests", parts, sizeof parts / sizeof *parts, set_up, tear_down);
}
