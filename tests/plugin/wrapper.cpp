/* tandem/tandem.hpp and tandem/vulkan.hpp at work: what is made goes, in any order; what fails throws, with the library's text.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <tandem/vulkan.hpp>

#include <cstdio>
#include <cstring>
#include <thread>
#include <type_traits>

static_assert(!std::is_copy_constructible<tandem::mem>::value && std::is_nothrow_move_constructible<tandem::mem>::value, "");
static_assert(!std::is_copy_constructible<tandem::session>::value && std::is_nothrow_move_assignable<tandem::model>::value, "");

static int wrong;

#define EXPECT(what)                                                             \
    do {                                                                         \
        if (!(what)) {                                                           \
            std::printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #what);       \
            wrong++;                                                             \
        }                                                                        \
    } while (0)

/* What `call` throws: its status and text have to be these. */
template <class Error, class Call> static void expect_error(int line, tandem_status status, const char *text, Call call)
{
    try {
        call();
    } catch (const Error &e) {
        if (e.status() == status && std::strstr(e.what(), text))
            return;
        std::printf("line %d: %d, '%s'\n", line, e.status(), e.what());
        wrong++;
        return;
    }
    std::printf("line %d: nothing is thrown\n", line);
    wrong++;
}

static tandem::mem new_mem(const tandem::session &session, std::uint64_t bytes)
{
    auto desc = tandem::make<tandem_mem_desc>();

    desc.bytes = bytes;
    return tandem::mem(session, desc);
}

static tandem_job sum_on(const tandem::mem &mem, std::uint32_t rows)
{
    auto job = tandem::make<tandem_job>();
    tandem_binary &op = job.op.binary;

    job.operation = TANDEM_OPERATION_BINARY;
    op.a = op.b = tandem_view_dense(mem, 0, TANDEM_DTYPE_F32, 1, rows, 1);
    op.y = tandem_view_dense(mem, rows * sizeof(float), TANDEM_DTYPE_F32, 1, rows, 1);
    op.batch = op.heads = op.channels = 1;
    op.rows = rows;
    return job;
}

static void jobs_compute()
{
    const tandem::session session;
    const tandem::mem mem = new_mem(session, 64);
    float *const x = static_cast<float *>(mem.host());
    tandem_job job = sum_on(mem, 8);

    for (int i = 0; i < 8; i++)
        x[i] = static_cast<float>(i);
    EXPECT(session.supported(job));
    EXPECT(session.wait(session.submit(job), 10000000000u).state == TANDEM_JOB_DONE);
    EXPECT(x[15] == 14.0f);
    job.op.binary.rows = 0;
    const tandem::support no = session.supported(job);
    EXPECT(!no && no.status == TANDEM_ERROR_ARG && no.why.find("rows") != std::string::npos);
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_ARG, "rows", [&] { session.submit(job); });
    EXPECT(session.error_text().find("rows") != std::string::npos);
    EXPECT(session.info().jobs_done == 1);
}

static void what_is_not_yet_is_busy()
{
    const tandem::session session;
    auto desc = tandem::make<tandem_timeline_desc>();
    const tandem::timeline from_engine(session, desc);
    const tandem::mem mem = new_mem(session, 64);
    tandem_job job = sum_on(mem, 8);
    const tandem_point point = {from_engine, 1};

    job.wait = point;
    EXPECT(!session.try_point_wait(point, 0));
    expect_error<tandem::busy>(__LINE__, TANDEM_ERROR_BUSY, "", [&] { session.point_wait(point, 0); });
    std::optional<tandem_ticket> first = session.try_submit(job);
    EXPECT(first);
    EXPECT(!session.try_wait(*first, 1000000));
    EXPECT(session.try_submit(job) && session.try_submit(job) && !session.try_submit(job)); /* three in flight */
    from_engine.signal(1);
    EXPECT(from_engine.value() == 1);
    EXPECT(session.try_wait(*first, 10000000000u)->state == TANDEM_JOB_DONE);
    job.op.binary.batch = 0;
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_ARG, "batch", [&] { session.try_submit(job); });
}

/* The session that they are on lives until the last of them has gone, and takes nothing twice. */
static void any_order()
{
    tandem::mem kept;
    std::uint64_t before = 0;
    {
        tandem::session session;

        before = session.info().host_bytes;
        kept = new_mem(session, 1 << 20);
        EXPECT(session.info().host_bytes >= before + (1 << 20));
        tandem::mem moved = std::move(kept);
        EXPECT(moved && !kept);
        kept = std::move(moved);
        {
            const tandem::mem gone = new_mem(session, 1 << 20);
        }
        EXPECT(session.info().host_bytes < before + (2 << 20));
        tandem::mem retired = new_mem(session, 4096);
        retired.retire();
        EXPECT(!retired);
        expect_error<tandem::error>(__LINE__, TANDEM_ERROR_ARG, "", [&] { retired.destroy(); });
        tandem::session other = std::move(session);
        EXPECT(other.get() && !session.get());
    }
    std::memset(kept.host(), 1, 1 << 20);
    kept.destroy();
    EXPECT(!kept);
}

static void errors_name_what_is_wrong()
{
    auto desc = tandem::make<tandem_session_desc>();
    const tandem::session session;
    auto model = tandem::make<tandem_model_desc>();
    auto language = tandem::make<tandem_language_desc>();
    char text[100] = "";

    desc.rung = 77;
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_ARG, "desc.rung is 77", [&] { tandem::session none(desc); });
    model.path = language.path = "/none";
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_IO, "/none", [&] { tandem::model none(session, model); });
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_IO, "/none", [&] { tandem::model none(session, "/none"); });
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_IO, "/none", [&] { tandem::language none(session, language); });
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_ARG, "", [&] { tandem::mem().host(); });
    /* Each thread has its own last error. */
    std::thread([&] { EXPECT(tandem_error_text(nullptr, text, sizeof text) == TANDEM_OK && !*text); }).join();
}

static void arrays()
{
    const std::vector<tandem_device> devices = tandem::devices();

    EXPECT(!devices.empty() && devices.back().backend == TANDEM_BACKEND_CPU && devices.back().struct_bytes == sizeof devices[0]);
    EXPECT(tandem::list<int>({1, 2, 3}).size() == 3 && tandem::list<int>().data() == nullptr);
    const auto four = [](void *to, std::uint64_t *bytes) { /* as functions that fill bytes do */
        const bool fits = !to || *bytes >= 4;

        if (to && fits)
            std::memcpy(to, "four", 4);
        *bytes = 4;
        return fits ? TANDEM_OK : TANDEM_ERROR_BUSY;
    };
    EXPECT(tandem::fetch_bytes(four) == std::vector<unsigned char>({'f', 'o', 'u', 'r'}));
    EXPECT(tandem::version() == TANDEM_VERSION && !std::strcmp(tandem::status_text(TANDEM_OK), tandem_status_text(TANDEM_OK)));
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_ARG, "get_instance_proc_addr",
                                [] { tandem::vulkan_requirements(nullptr, nullptr, nullptr); });
    const tandem::session session;
    const tandem::mem mem = new_mem(session, 64);
    expect_error<tandem::error>(__LINE__, TANDEM_ERROR_UNSUPPORTED, "", [&] { tandem::mem_get_vulkan(session, mem); });
}

int main()
{
    jobs_compute();
    what_is_not_yet_is_busy();
    any_order();
    errors_name_what_is_wrong();
    arrays();
    return wrong != 0;
}
