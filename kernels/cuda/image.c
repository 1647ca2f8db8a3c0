/* Images lie in the library packed by zstd, a tenth of their size: what a driver is given is unpacked for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "interop/base.h"
#include "kernels/target.h"

uint32_t td_cubin_entry_count(const td_cubin *cubin)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < cubin->image_count; i++)
        count += cubin->images[i].entry_count;
    return count;
}

const td_cubin_entry *td_cubin_find(const td_cubin *cubin, const char *entry)
{
    for (uint32_t i = 0; i < cubin->image_count; i++) {
        const td_image *image = &cubin->images[i];

        for (uint32_t at = 0; at < image->entry_count; at++)
            if (!strcmp(image->entries[at].entry, entry))
                return &image->entries[at];
    }
    return NULL;
}

tandem_status td_cubin_image(const td_cubin *cubin, const td_image *image, void **out, char *why, size_t why_bytes)
{
    const char *kind = cubin->ptx ? "compute" : "sm";
    unsigned char *bytes = malloc(image->image_bytes + 1);
    size_t result = bytes ? ZSTD_decompress(bytes, image->image_bytes, image->data, image->data_bytes) : 0;

    *out = NULL;
    if (bytes && result == image->image_bytes) {
        bytes[result] = 0;
        *out = bytes;
        return TANDEM_OK;
    }
    free(bytes);
    if (!bytes || ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no %zu bytes of memory to unpack the kernels %s for %s_%u",
                       image->image_bytes + 1, image->name, kind, (unsigned)cubin->sm);
    if (ZSTD_isError(result))
        return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED, "the kernels %s for %s_%u in this build are damaged: %s",
                       image->name, kind, (unsigned)cubin->sm, ZSTD_getErrorName(result));
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                   "the kernels %s for %s_%u in this build are damaged: they have %zu bytes, not %zu", image->name, kind,
                   (unsigned)cubin->sm, result, image->image_bytes);
}
