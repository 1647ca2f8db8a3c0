/* Whether a CUDA stream has anything left to do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/exec/cu_stream.h"

enum { LOOK_NS = 50000 }; /* between two looks at what wakes nobody */

/* Nothing runs any more in a context that failed, or is gone. Any other error says nothing of what runs. */
static bool is_over(tandem_status status)
{
    return status == TANDEM_OK || status == TANDEM_ERROR_DEVICE || status == TANDEM_ERROR_LOST;
}

static bool is_idle(td_cuda_stream *stream, td_cu_stream one)
{
    const td_cu_result result = one ? TD_CU(stream->device, cuStreamQuery, one) : TD_CU_SUCCESS;

    return result != TD_CU_ERROR_NOT_READY && is_over(td_cu_check(stream->device, result, NULL, 0, "a stream"));
}

static bool is_drained(td_cuda_stream *stream)
{
    const tandem_status status = td_cu_enter(stream->device, NULL, 0);
    bool idle;

    if (status)
        return is_over(status);
    idle = is_idle(stream, stream->in) && is_idle(stream, stream->stream) && is_idle(stream, stream->out);
    td_cu_leave(stream->device);
    return idle;
}

bool td_cuda_drain(td_stream *base, uint64_t timeout_ns)
{
    td_cuda_stream *stream = (td_cuda_stream *)base;
    const uint64_t begin = td_now_ns();
    bool drained;

    while (!(drained = is_drained(stream)) && td_now_ns() - begin < timeout_ns)
        td_sleep_ns(LOOK_NS);
    return drained;
}
