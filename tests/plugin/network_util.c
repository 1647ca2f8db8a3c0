/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/plugin/network_util.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/model/graph_file.h"

#define TENSOR(name, role, dtype, shape)                                                           \
    "\"" name "\": {\"role\": \"" role "\", \"dtype\": \"" dtype "\", \"shape\": [" shape "]}"

const char network_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 64}, \"tensors\": {"
    TENSOR("x", "input", "F32", "\"rows\", 8") ","
    TENSOR("length", "uniform", "I32", "1") ","
    TENSOR("w", "weight", "F32", "1, 8") ","
    TENSOR("total", "state", "F32", "1, 8") ","
    TENSOR("mean", "temporary", "F32", "1, 8") ","
    TENSOR("y", "output", "F32", "\"rows\", 8") ","
    TENSOR("sum", "output", "F32", "1, 8") "}, \"nodes\": ["
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 8,"
    " \"kind\": 1, \"views\": {\"a\": \"x\", \"b\": {\"tensor\": \"w\", \"strides\": [0, 0, 0]},"
    " \"y\": \"y\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": \"rows\", \"channels\": 8,"
    " \"views\": {\"x\": \"y\", \"length\": \"length\", \"y\": \"mean\"}},"
    "{\"operation\": \"binary\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 8,"
    " \"views\": {\"a\": \"total\", \"b\": \"mean\", \"y\": \"total\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 8,"
    " \"views\": {\"x\": \"total\", \"y\": \"sum\"}}]}";

static char path[60];

const char *network_file(const char *text)
{
    static float w[NETWORK_CHANNELS];
    const td_safetensors_item items[] = {{"other", "F16", 1, {NETWORK_CHANNELS}, w},
                                         {"w", "F32", 2, {1, NETWORK_CHANNELS}, w}};
    const td_safetensors_text graph = {TD_GRAPH_KEY, text};
    char why[400] = "";

    for (int i = 0; i < NETWORK_CHANNELS; i++)
        w[i] = 1;
    snprintf(path, sizeof path, "/tmp/tandem_network_%d.safetensors", (int)getpid());
    if (td_safetensors_write_texts(path, &graph, text != NULL, items, 2, why, sizeof why))
        fail_msg("%s", why);
    return path;
}

void network_file_remove(void)
{
    unlink(path);
}
