/* Two records of a program that become one, as a kernel does both at once: fewer beginnings and ends, which are most of what small
 * records take. What is computed stays the same, bit by bit.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_JOIN_H
#define TANDEM_KERNELS_JOIN_H

#include "kernels/builder.h"

/* The last two records of at->plan, if there is a kernel for both. for_second: nobody but the second reads what the first writes, which
 * then is not there any more where that saves something. Whether it did. */
bool td_join_last(td_builder *at, const td_target *target, bool for_second);

#endif
