/* Tables that `tandem tune` measured: tuning_ship.py adds one. See tuning.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/attention/tuning.h"

static const td_tuning_table tables[] = {
#include "kernels/attention/tuning_tables.inc"
    {.count = 0},
};

const td_tuning_table *td_tuning_shipped(uint32_t sm, const char *device)
{
    for (const td_tuning_table *table = tables; table->count; table++)
        if (td_tuning_fits(table, sm, device, NULL, 0))
            return table;
    return NULL;
}
