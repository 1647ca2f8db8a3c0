/* An image of kernels for drivers that are fakes: some text, packed as the library holds its cubins.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TEST_FAKE_IMAGE_H
#define TANDEM_TEST_FAKE_IMAGE_H

#include "kernels/target.h"

/* What a driver must be given of it, with its 0. */
extern const char fake_image_text[12];

/* Fills in name, data, data_bytes and image_bytes; `damaged`: a bit of it is not as it was. */
void fake_image(td_image *image, bool damaged);

#endif
