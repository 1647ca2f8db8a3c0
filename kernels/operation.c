/* All operations. See operation.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/operation.h"

#include <inttypes.h>

#include "kernels/attention/attention.h"
#include "kernels/binary/binary.h"
#include "kernels/cache/cache.h"
#include "kernels/commit.h"
#include "kernels/conv/conv.h"
#include "kernels/demodulate/demodulate.h"
#include "kernels/embed/embed.h"
#include "kernels/gather/gather.h"
#include "kernels/linear/linear.h"
#include "kernels/norm/norm.h"
#include "kernels/pool/pool.h"
#include "kernels/reproject/reproject.h"
#include "kernels/scatter/scatter.h"
#include "kernels/top/top.h"

static const td_operation *const operations[] = {&td_operation_attention, &td_operation_norm, &td_operation_linear,
                                                 &td_operation_embed, &td_operation_binary, &td_operation_pool, &td_operation_scatter,
                                                 &td_operation_cache_append, &td_operation_cache_attention,
                                                 &td_operation_conv, &td_operation_gather, &td_operation_demodulate,
                                                 &td_operation_reproject, &td_operation_top,
                                                 &td_operation_commit};
enum { OPERATIONS = sizeof operations / sizeof *operations };

const td_operation *td_operation_find(uint32_t number)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (operations[i]->layout.number == number)
            return operations[i];
    return NULL;
}

const td_operation_layout *td_operation_of_clients(uint32_t number)
{
    const td_operation *operation = td_operation_find(number);
    return operation && !operation->internal ? &operation->layout : NULL;
}

const td_operation *td_operation_named(const char *name)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (!operations[i]->internal && !strcmp(operations[i]->layout.name, name))
            return operations[i];
    return NULL;
}

void td_operation_names(char *text, size_t bytes)
{
    size_t used = 0;
    for (int i = 0; i < OPERATIONS; i++) {
        if (operations[i]->internal)
            continue;
        td_text(text + used, bytes - used, "%s%" PRIu32 " (%s)", used ? ", " : "", operations[i]->layout.number,
                operations[i]->layout.name);
        used = strlen(text);
    }
}
