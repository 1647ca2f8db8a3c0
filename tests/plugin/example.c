/* Attention on host memory, as an engine without Vulkan would call it. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include <tandem/tandem.h>

int main(void)
{
    tandem_session *session;
    if (tandem_session_create(&TANDEM_INIT(tandem_session_desc), &session))
        return 1;
    enum { N = 1024, D = 64, BYTES = N * D * sizeof(float) };
    tandem_mem mem;
    tandem_mem_create(session, &TANDEM_INIT(tandem_mem_desc, .bytes = 2 * BYTES), &mem);
    void *host;
    tandem_mem_host(session, mem, &host);
    for (int i = 0; i < N * D; i++)
        ((float *)host)[i] = (float)(i % 7) - 3;
    tandem_view x = {.mem = mem, .dtype = TANDEM_DTYPE_F32, .stride_row = D}, y = x;
    y.offset_bytes = BYTES;
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION);
    job.op.attention = (tandem_attention){.q = x, .k = x, .v = x, .o = y, .batch = 1, .heads = 1, .kv_heads = 1,
                                          .q_len = N, .kv_len = N, .head_dim = D};
    tandem_ticket ticket;
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    if (tandem_submit(session, &job, &ticket) || tandem_wait(session, ticket, 10000000000u, &report))
        return 1;
    printf("%s, o[0] = %f\n", report.state == TANDEM_JOB_DONE ? "done" : "not done", ((float *)host)[N * D]);
    tandem_session_destroy(&session);
    return report.state != TANDEM_JOB_DONE;
}
