/* Cubins lie gzipped in the library, a quarter of their size: what a driver is given is unpacked for it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <zlib.h>

#include "interop/base.h"
#include "kernels/ops.h"

static const int gzip_window = 16 + MAX_WBITS; /* zlib's way to ask for gzip's header and checksum */

tandem_status td_cubin_image(const td_cubin *cubin, void **image, char *why, size_t why_bytes)
{
    const char *kind = cubin->ptx ? "compute" : "sm";
    unsigned char *bytes = malloc(cubin->image_bytes + 1);
    z_stream z = {.next_in = (z_const Bytef *)cubin->data,
                  .avail_in = (uInt)cubin->data_bytes,
                  .next_out = bytes,
                  .avail_out = (uInt)cubin->image_bytes};
    int result = Z_MEM_ERROR;

    *image = NULL;
    if (bytes && (result = inflateInit2(&z, gzip_window)) == Z_OK) {
        result = inflate(&z, Z_FINISH);
        inflateEnd(&z);
    }
    if (result == Z_STREAM_END && !z.avail_in && !z.avail_out) {
        bytes[cubin->image_bytes] = 0;
        *image = bytes;
        return TANDEM_OK;
    }
    free(bytes);
    if (result == Z_MEM_ERROR)
        return td_fail(why, why_bytes, TANDEM_ERROR_NOMEM, "no %zu bytes of memory to unpack the kernels for %s_%u",
                       cubin->image_bytes + 1, kind, (unsigned)cubin->sm);
    return td_fail(why, why_bytes, TANDEM_ERROR_UNSUPPORTED,
                   "the kernels for %s_%u in this build are damaged: %lu of %zu bytes could be unpacked%s%s", kind,
                   (unsigned)cubin->sm, z.total_out, cubin->image_bytes, z.msg ? ": " : "", z.msg ? z.msg : "");
}
