/* Tests include this for what interop/os/channel.h is on Linux; here it is pipes.
 * SPDX-License-Identifier: Apache-2.0
 */
