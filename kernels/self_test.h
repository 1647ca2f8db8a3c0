/* A small job to try an executor with: several records with barriers between them, on data whose result the CPU knows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_KERNELS_SELF_TEST_H
#define TANDEM_KERNELS_SELF_TEST_H

#include "kernels/target.h"

/* All that its views are in. */
enum { TD_SELF_TEST_BYTES = 98304 };

/* Its plan for a device, without a stream's shared memory. */
tandem_status td_self_test_plan(uint32_t sm, td_plan *plan, char *why, size_t why_bytes);
/* Where its views are, of data that begins at an address. */
void td_self_test_views(uint64_t data, uint64_t views[TD_MAX_VIEWS]);
/* Fills in what is read, and poison where results go. The same seed, the same data. */
void td_self_test_fill(void *data, uint32_t seed);
/* Whether both have the same results, but for what devices may differ in; UNSUPPORTED with how far they are apart. */
tandem_status td_self_test_compare(const void *expected, const void *got, char *why, size_t why_bytes);

#endif
