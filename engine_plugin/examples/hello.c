/* Attention on host memory: the shortest whole program, for any machine.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *     cc hello.c $(pkg-config --cflags --libs tandem) && ./a.out
 */
#include <stdio.h>
#include <tandem/tandem.h>

static int fail(void)
{
    char why[600];

    tandem_error_text(NULL, why, sizeof why); /* of this thread's last call that failed */
    fprintf(stderr, "%s\n", why);
    return 1;
}

int main(void)
{
    enum { H = 8, N = 512, D = 64, BYTES = H * N * D * sizeof(float) };
    tandem_session *session;
    tandem_mem mem;
    void *host;

    if (tandem_session_create(&TANDEM_INIT(tandem_session_desc), &session) ||
        tandem_mem_create(session, &TANDEM_INIT(tandem_mem_desc, .bytes = 4 * BYTES), &mem) ||
        tandem_mem_host(session, mem, &host))
        return fail();
    for (int i = 0; i < 3 * H * N * D; i++)
        ((float *)host)[i] = (float)(i * 7919LL % 1000) / 500 - 1;

    /* q, k, v and o, one behind the other in the mem */
    tandem_view q = tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, H, N, D), k = q, v = q, o = q;
    k.offset_bytes = BYTES, v.offset_bytes = 2 * BYTES, o.offset_bytes = 3 * BYTES;
    tandem_job job = TANDEM_INIT(tandem_job, .operation = TANDEM_OPERATION_ATTENTION);
    job.op.attention = (tandem_attention){.q = q, .k = k, .v = v, .o = o};
    job.op.attention.batch = 1;
    job.op.attention.heads = job.op.attention.kv_heads = H;
    job.op.attention.q_len = job.op.attention.kv_len = N;
    job.op.attention.head_dim = D;
    job.op.attention.precision = TANDEM_PRECISION_8B;
    tandem_ticket ticket;
    tandem_job_report report = TANDEM_INIT(tandem_job_report);
    if (tandem_submit(session, &job, &ticket) ||
        tandem_wait(session, ticket, 10000000000u, &report))
        return fail();
    printf("%s, o[0] = %f\n", report.state == TANDEM_JOB_DONE ? "done" : "failed",
           ((float *)host)[3 * H * N * D]);
    return tandem_session_destroy(&session) != TANDEM_OK || report.state != TANDEM_JOB_DONE;
}
