/* engine_plugin/examples/cuda_stream.c as it is, for test_cuda_program.c: its CUDA is the fake.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
int example_of_cuda(void);
#define main example_of_cuda
#include "engine_plugin/examples/cuda_stream.c"
