#include "demo/tool_bench.h"
int bench_handover(int argc, char **argv)
{
    (void)argc, (void)argv;
    return tool_fail("bench handover", "not built");
}
