// Rows that are normalised, from C++17: what is made goes by itself, and what fails throws.
//
// SPDX-License-Identifier: Apache-2.0
//
//     c++ -std=c++17 hello.cpp $(pkg-config --cflags --libs tandem) && ./a.out
#include <cstdio>

#include <tandem/tandem.hpp>

int main()
try {
    constexpr std::uint32_t rows = 512, channels = 64;
    constexpr std::uint64_t bytes = rows * channels * sizeof(float);
    const tandem::session session;
    auto desc = tandem::make<tandem_mem_desc>();
    desc.bytes = 2 * bytes; // x, and y behind it
    const tandem::mem mem(session, desc);
    auto *const x = static_cast<float *>(mem.host());
    const auto *const y = x + rows * channels;

    for (std::uint32_t i = 0; i < rows * channels; i++)
        x[i] = i % 2 ? 3.0f : -3.0f;

    auto job = tandem::make<tandem_job>();
    job.operation = TANDEM_OPERATION_NORM;
    job.op.norm.x = tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, 1, rows, channels);
    job.op.norm.y = tandem_view_dense(mem, bytes, TANDEM_DTYPE_F32, 1, rows, channels);
    job.op.norm.batch = job.op.norm.heads = 1;
    job.op.norm.rows = rows;
    job.op.norm.channels = channels;
    const tandem_job_report report = session.wait(session.submit(job), 10000000000u);
    std::printf("%s on %s, y[0] = %.3f, y[1] = %.3f\n",
                report.state == TANDEM_JOB_DONE ? "done" : "failed", session.info().device, y[0], y[1]);
    return report.state != TANDEM_JOB_DONE;
} catch (const tandem::error &e) {
    std::fprintf(stderr, "%s: %s\n", tandem::status_text(e.status()), e.what());
    return 1;
}
