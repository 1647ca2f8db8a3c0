/* The table of cubins of a build without nvcc: there are none.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/target.h"

const td_cubin *td_cubins(uint32_t *count)
{
    *count = 0;
    return NULL;
}
