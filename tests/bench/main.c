/* tandem-bench itself, without what tests call, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "interop/os/descriptor.h"
#include "tests/bench/bench.h"

int main(int argc, char **argv)
{
    if (!td_fd_standard())
        return TOOL_FAILED;
    const int status = bench_main(argc, argv);
    if (fflush(stdout) != 0 || ferror(stdout))
        return status ? status : tool_fail("bench", "standard output: %s", strerror(errno));
    return status;
}
