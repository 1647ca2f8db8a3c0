/* `tandem` itself, without what tests call, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/tool.h"

int main(int argc, char **argv)
{
    return tool_main(argc, argv);
}
