/* Kernels for a driver that is a fake: it takes any, an image with the names of all that a small plan can ask for.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_FAKE_KERNELS_H
#define TANDEM_TEST_FAKE_KERNELS_H

#include <stdbool.h>

#include "kernels/attention/attention.h"
#include "kernels/target.h"

/* As td_cubins(); `damaged`: the image is not as it was built. */
const td_cubin *fake_kernels(uint32_t *count, bool damaged);

/* Attention of one head, 64 rows by 64 keys, for plans that only a fake computes. */
tandem_attention fault_attention(uint32_t dtype, uint32_t head_dim, uint32_t precision);

#endif
