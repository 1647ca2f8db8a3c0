/* Images lie gzipped in the library, a quarter of their size: what a driver is given is unpacked for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "interop/base.h"
#include "kernels/target.h"

static const int gzip_window = 16 + MAX_WBITS; /* zlib's way to ask for gzip's header and checksum */

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
    z_stream z = {.next_in = (z_const Bytef *)image->data,
                  .avail_in = (uInt)image->data_bytes,
                  .next_out = bytes,
                  .avail_out = (uInt)image->image_bytes};
    int result = Z_MEM_ERROR;

    *out = NULL;
    if (bytes && (result = inflateInit2(&z, gzip_window)) == Z_OK) {
        result = inflate(&z, Z_FINISH);
        inflateEnd(&z);
    }
    if (result == Z_STREAM_END && !z.avail_in && !z.avail_out) {
        bytes[image->image_bytes] = 0;
        *out = bytes;
        return TANDEM_OK;
    }
    free(bytes);
    if (result == Z_MEM_ERROR)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no %zu bytes of memory to unpack the kernels %s for %s_%u",
                       image->image_bytes + 1, image->name, kind, (unsigned)cubin->sm);
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                   "the kernels %s for %s_%u in this build are damaged: %lu of %zu bytes could be unpacked%s%s",
                   image->name, kind, (unsigned)cubin->sm, z.total_out, image->image_bytes, z.msg ? ": " : "", z.msg ? z.msg : "");
}
