/* For fuzzers that are built without libFuzzer: its entry, a corpus, a mutator that does the same each time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_FUZZ_UTIL_H
#define TD_FUZZ_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

bool fuzz_write(const char *folder, const char *name, const void *bytes, size_t count);
/* `NAME CORPUS [runs]`: each input of the corpus, then `runs` changed ones. `NAME --make CORPUS`: calls make(). */
int fuzz_main(int argc, char **argv, const char *name, uint64_t runs, bool (*make)(const char *folder));

#endif
