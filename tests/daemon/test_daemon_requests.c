/* What tandemd's worker is asked for besides jobs: models that take long to load, and requests that end it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "interop/os/memory.h"
#include "tests/plugin/daemon_client.h"
#include "tests/plugin/network_util.h"

#define LARGE_BYTES (1ull << 30)
enum { GROWN_KIB = 64 * 1024 };

static char fault_path[96];

/* A model of nothing but zeros, which takes no room on the disk and seconds to load; K for jobs of the shape `small`. */
static void make_model(const char *name, uint64_t bytes)
{
    char path[200], header[200], padded[256] = "";
    uint64_t length;
    FILE *file;

    snprintf(path, sizeof path, "%s/models", folder);
    assert_true(!mkdir(path, 0700) || errno == EEXIST);
    snprintf(path, sizeof path, "%s/models/%s", folder, name);
    snprintf(header, sizeof header, "{\"k\":{\"dtype\":\"F32\",\"shape\":[%" PRIu64 ",32],\"data_offsets\":[0,%" PRIu64 "]}}",
             bytes / 128, bytes);
    snprintf(padded, sizeof padded, "%-*s", 248, header);
    length = strlen(padded);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    assert_true(fputs(padded, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(truncate(path, (off_t)(8 + length + bytes)), 0);
}

static void start_with_models(const char *more)
{
    char config[300];

    make_model("large", LARGE_BYTES);
    make_model("little", 1 << 16);
    snprintf(config, sizeof config, "model_dir = %s/models\nlog = debug\n%s", folder, more);
    start_daemon(config);
}

/* Asks, and does not wait; returns the serial. */
static uint32_t ask(client *c, td_wire_message *m)
{
    char why[300] = "";

    m->header.serial = c->rules.next_serial;
    assert_int_equal(td_conn_send(&c->conn, m, NULL, why, sizeof why), TANDEM_OK);
    td_wire_took(&c->rules, TD_WIRE_TO_DAEMON, m);
    return m->header.serial;
}

static uint32_t ask_for_model(client *c, const char *name)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_LOAD, 0);

    td_wire_text(m.model_load.path, sizeof m.model_load.path, name);
    return ask(c, &m);
}

/* False: it has not come within that time. */
static bool take_answer(client *c, uint32_t serial, uint64_t timeout_ns, td_wire_message *answer)
{
    int fd;

    while (client_take(c, answer, &fd, timeout_ns) == TANDEM_OK) {
        if (answer->header.serial == serial)
            return true;
        note_event(c, answer);
    }
    return false;
}

static td_wire_message await_answer(client *c, uint32_t serial)
{
    td_wire_message answer;

    assert_true(take_answer(c, serial, PATIENCE, &answer));
    return answer;
}

static td_wire_message ask_tensor(client *c, uint64_t model)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_TENSOR, c->rules.next_serial), answer;

    m.model_tensor.model = model;
    td_wire_text(m.model_tensor.name, sizeof m.model_tensor.name, "k");
    assert_int_equal(client_ask(c, &m, NULL, &answer, NULL), TANDEM_OK);
    return answer;
}

static long memory_of(pid_t pid)
{
    return status_of(pid, "RssAnon");
}

/* The large model is on its way into the worker. */
static void await_loading(pid_t worker, long before_kib)
{
    const uint64_t begin = td_now_ns();

    while (memory_of(worker) < before_kib + GROWN_KIB) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(1);
    }
}

static int look_for_lines(const char *text)
{
    char line[1000];
    FILE *file = fopen(log_path, "r");
    int count = 0;

    assert_non_null(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, text) != NULL;
    fclose(file);
    return count;
}

/* How many there are, once there may be so many. */
static int count_lines(const char *text, int least)
{
    const uint64_t begin = td_now_ns();

    while (look_for_lines(text) < least && td_now_ns() - begin < 5000 * MS)
        sleep_ms(2);
    return look_for_lines(text);
}

static uint64_t since(uint64_t *begin)
{
    const uint64_t now = td_now_ns(), took = now - *begin;

    *begin = now;
    return took;
}

/* Everything that another client may want, but models unless `models`; returns how long it waited for what took longest. */
static uint64_t use_all(client *old, const task *old_task, bool models)
{
    uint64_t longest[6] = {0}, begin = td_now_ns(), most = 0;
    td_wire_message m, answer;
    uint64_t model;
    client c;
    task t;

    client_open(&c, "another");
    longest[0] = since(&begin);
    task_make(&t, &small, 5);
    since(&begin);
    task_share(&t, &c);
    longest[1] = since(&begin);
    m = td_wire_new(TD_WIRE_INFO, c.rules.next_serial);
    assert_int_equal(client_ask(&c, &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_INFO_REPLY);
    longest[2] = since(&begin);
    assert_int_equal(run_job(old, old_task).state, TANDEM_JOB_DONE);
    longest[3] = since(&begin);
    assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, t.mem), TANDEM_OK);
    longest[4] = since(&begin);
    if (models) {
        assert_int_equal(load_model(&c, "little", &model), TANDEM_OK);
        assert_int_equal(ask_tensor(&c, model).header.type, TD_WIRE_TENSOR);
    }
    longest[5] = since(&begin);
    client_close(&c);
    task_free(&t);
    for (int i = 0; i < 6; i++)
        most = longest[i] > most ? longest[i] : most;
    return most;
}

static uint64_t longest_of(client *old, const task *t, int rounds)
{
    uint64_t longest = 0;

    for (int i = 0; i < rounds; i++) {
        const uint64_t one = use_all(old, t, true);

        longest = one > longest ? one : longest;
    }
    return longest;
}

static uint64_t cpu_ns_of(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &t), 0);
    return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

static void a_load_holds_nobody_up(void **state)
{
    enum { MOST_ROUNDS = 65536 };
    static uint64_t waits[MOST_ROUNDS];
    uint64_t begin, took, quiet, longest = 0, rounds = 0, prompt = 0, model, cpu;
    td_wire_message answer;
    client loads, old;
    uint32_t serial;
    task t;

    (void)state;
    start_with_models("");
    client_open(&loads, "loads");
    client_open(&old, "there before");
    task_make(&t, &small, 1);
    task_share(&t, &old);
    use_all(&old, &t, true);
    quiet = longest_of(&old, &t, 5);
    const pid_t worker = await_worker(0);
    cpu = cpu_ns_of(worker);
    begin = td_now_ns();
    serial = ask_for_model(&loads, "large");
    while (!take_answer(&loads, serial, 0, &answer)) {
        assert_true(td_now_ns() - begin < 2 * PATIENCE);
        assert_true(rounds < MOST_ROUNDS);
        waits[rounds] = use_all(&old, &t, true);
        longest = waits[rounds] > longest ? waits[rounds] : longest;
        rounds++;
    }
    took = td_now_ns() - begin;
    cpu = cpu_ns_of(worker) - cpu;
    /* What the machine takes without a load, and what a load may add: 50 ms, longer by as much as the load takes longer than its CPU
     * time, as beside busy processes. */
    const uint64_t most = quiet + (took > cpu ? 50 * took / (cpu / MS) : 50 * MS);
    for (uint64_t i = 0; i < rounds; i++)
        prompt += waits[i] < most;
    print_message("  the load took %" PRIu64 " ms; meanwhile %" PRIu64 " rounds of others, who waited %.1f ms at most; %.0f are allowed\n",
                  (uint64_t)(took / MS), rounds, (double)longest / 1e6, (double)most / 1e6);
    assert_int_equal(answer.header.type, TD_WIRE_DONE);
    model = answer.object.id;
    assert_true(rounds >= 10);
    assert_true(longest < took / 4); /* before, they waited as long as the load took */
    assert_true(2 * prompt > rounds); /* the others are what the machine does besides */
    /* Nor does its end: a GiB that goes back to the system. */
    assert_int_equal(ask_tensor(&loads, model).header.type, TD_WIRE_TENSOR);
    assert_int_equal(client_object(&loads, TD_WIRE_MODEL_DESTROY, model), TANDEM_OK);
    longest = prompt = 0;
    for (int i = 0; i < 10; i++) {
        const uint64_t one = use_all(&old, &t, true);

        longest = one > longest ? one : longest;
        prompt += one < most;
    }
    print_message("  while it went they waited %.1f ms at most\n", (double)longest / 1e6);
    assert_true(longest < took / 4 && prompt > 5);
    client_close(&loads);
    client_close(&old);
    task_free(&t);
}

/* A cache of a GiB, as language models' are, of which nothing was written yet. */
static const char cache_text[] =
    "{\"version\": 1, \"numbers\": {\"rows\": 64}, \"tensors\": {"
    "\"x\": {\"role\": \"input\", \"dtype\": \"F32\", \"shape\": [\"rows\", 8]},"
    "\"position\": {\"role\": \"uniform\", \"dtype\": \"I32\", \"shape\": [1]},"
    "\"kept\": {\"role\": \"cache\", \"dtype\": \"F32\", \"shape\": [33554432, 8]},"
    "\"sum\": {\"role\": \"output\", \"dtype\": \"F32\", \"shape\": [1, 8]}}, \"nodes\": ["
    "{\"operation\": \"scatter\", \"batch\": 1, \"heads\": 1, \"rows\": 1, \"channels\": 8, \"entries\": 33554432,"
    " \"views\": {\"x\": {\"tensor\": \"x\", \"offset\": 0}, \"position\": \"position\", \"y\": \"kept\"}},"
    "{\"operation\": \"pool\", \"batch\": 1, \"heads\": 1, \"rows\": 4, \"channels\": 8,"
    " \"views\": {\"x\": {\"tensor\": \"kept\", \"offset\": 0}, \"y\": \"sum\"}}]}";

static uint32_t ask_for_instance(client *c, uint64_t model)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_INSTANCE, 0);

    m.model_instance.model = model;
    return ask(c, &m);
}

static uint32_t ask_to_prepare(client *c, uint64_t instance)
{
    td_wire_message m = td_wire_new(TD_WIRE_MODEL_PREPARE, 0);

    m.model_prepare.instance = instance;
    m.model_prepare.number_count = 1;
    m.model_prepare.numbers[0] = 64;
    return ask(c, &m);
}

/* Its state takes no time, and no memory, before runs write it. A sanitizer writes as it is allocated what it knows of it. */
static void an_instance_holds_nobody_up(void **state)
{
    enum { ROUNDS = 40, PROMPT = 4 /* the others are what the machine does besides */ };
    const bool sanitized = getenv("TANDEM_SANITIZED") != NULL;
    uint64_t most, least = UINT64_MAX, prompt = 0, model, instance;
    td_wire_message answer;
    client makes, old;
    char path[200];
    pid_t worker;
    long before;
    task t;

    (void)state;
    start_with_models("");
    worker = await_worker(0);
    snprintf(path, sizeof path, "%s/models/cache", folder);
    assert_int_equal(rename(network_file(cache_text), path), 0);
    client_open(&makes, "makes");
    client_open(&old, "there before");
    task_make(&t, &small, 1);
    task_share(&t, &old);
    assert_int_equal(load_model(&makes, "cache", &model), TANDEM_OK);
    use_all(&old, &t, true);
    most = longest_of(&old, &t, 5) + 50 * MS;
    before = memory_of(worker);
    for (int i = 0; i < ROUNDS && prompt < PROMPT && !(i && sanitized); i++) {
        const uint32_t made = ask_for_instance(&makes, model);
        uint64_t one = use_all(&old, &t, true), other;

        answer = await_answer(&makes, made);
        assert_int_equal(answer.header.type, TD_WIRE_DONE);
        instance = answer.object.id;
        const uint32_t prepared = ask_to_prepare(&makes, instance);
        other = use_all(&old, &t, true);
        answer = await_answer(&makes, prepared);
        if (answer.header.type != TD_WIRE_PREPARED)
            fail_msg("%s", answer.error.text);
        assert_true(memory_of(worker) < before + GROWN_KIB);
        one = one > other ? one : other;
        least = one < least ? one : least;
        prompt += one < most;
        assert_int_equal(client_object(&makes, TD_WIRE_INSTANCE_DESTROY, instance), TANDEM_OK);
    }
    print_message("  others waited %.1f ms\n", (double)least / 1e6);
    assert_true(prompt == PROMPT || sanitized);
    client_close(&makes);
    client_close(&old);
    task_free(&t);
}

/* Who asked for it goes away: so does what was read of it, and at once. */
static void a_load_ends_with_its_client(void **state)
{
    int fds, worker_fds;
    uint64_t begin;
    client c;
    pid_t worker;
    long before;

    (void)state;
    start_with_models("");
    worker = await_worker(0);
    check_serves();
    fds = count_fds(daemon_pid);
    worker_fds = count_fds(worker);
    before = memory_of(worker);
    client_open(&c, "impatient");
    ask_for_model(&c, "large");
    await_loading(worker, before);
    client_close(&c);
    begin = td_now_ns();
    while (memory_of(worker) > before + GROWN_KIB / 2 || count_fds(daemon_pid) > fds || count_fds(worker) > worker_fds) {
        assert_true(td_now_ns() - begin < PATIENCE);
        sleep_ms(2);
    }
    check_serves();
    assert_int_equal(find_worker(), worker);
}

static void a_load_does_not_keep_it_from_stopping(void **state)
{
    client c;
    long before;

    (void)state;
    start_with_models("");
    before = memory_of(await_worker(0));
    client_open(&c, "late");
    ask_for_model(&c, "large");
    await_loading(await_worker(0), before);
    assert_int_equal(end_daemon(SIGTERM, 10000 * MS), 0);
    client_close(&c);
}

/* Has a load end its worker by that signal; returns the answer. */
static td_wire_message load_that_kills(client *c, int with)
{
    const pid_t worker = await_worker(0);
    const long before = memory_of(worker);
    const uint32_t serial = ask_for_model(c, "large");

    await_loading(worker, before);
    kill(worker, with);
    return await_answer(c, serial);
}

/* As the kernel does where memory runs out. The load is answered and no other worker gets it; others lose nothing; who asks
 * for it again and again is not let in again. */
static void a_load_that_kills_its_worker_is_not_repeated(void **state)
{
    td_wire_message answer;
    client guilty, waits, other;
    tandem_job job;
    uint64_t ticket;
    td_shared_timeline in;
    task t;

    (void)state;
    start_with_models("");
    client_open(&guilty, "guilty");
    client_open(&waits, "patient");
    client_open(&other, "innocent");
    task_make(&t, &small, 2);
    task_share(&t, &waits);
    job = job_of(&t);
    job.wait = (tandem_point){client_timeline(&waits, &in, false, 0), 1};
    ticket = client_job(&waits, &job);
    for (int i = 1; i <= 3; i++) {
        answer = load_that_kills(&guilty, i == 2 ? SIGSEGV : SIGKILL);
        assert_int_equal(answer.header.type, TD_WIRE_ERROR);
        assert_int_equal(answer.error.status, i == 2 ? TANDEM_ERROR_DEVICE : TANDEM_ERROR_NOMEM);
        assert_non_null(strstr(answer.error.text, "loading a model of 1073742080 bytes"));
        task_share(&t, &other); /* behind it */
        clear_output(&t);
        assert_int_equal(run_job(&other, &t).state, TANDEM_JOB_DONE);
        check_output(&t);
        assert_int_equal(count_lines(") is gone: ", i), i);
    }
    assert_int_equal(count_lines("'guilty') has ended the worker", 3), 3);
    assert_int_equal(count_lines("'innocent') has ended the worker", 0), 0);
    while (client_events(&guilty, 1000 * MS) == TANDEM_ERROR_BUSY)
        ;
    assert_int_equal(guilty.event.error.status, TANDEM_ERROR_DEVICE);
    assert_true(has_logged(log_path, "ended three workers"));
    td_shared_timeline_raise(&in, 1);
    assert_int_equal(client_report(&waits, ticket, PATIENCE).state, TANDEM_JOB_DONE);
    client_close(&guilty);
    client_close(&waits);
    client_close(&other);
    td_shared_timeline_close(&in);
    task_free(&t);
}

/* And so is one that a new worker loads again. */
static void a_model_that_kills_its_next_worker_is_given_up(void **state)
{
    td_wire_message answer;
    uint64_t model, little;
    tandem_job job;
    client c, other;
    pid_t worker;
    long before;
    task t;

    (void)state;
    start_with_models("");
    worker = await_worker(0);
    before = memory_of(worker);
    client_open(&c, "has two");
    client_open(&other, "has none");
    task_make(&t, &small, 3);
    assert_int_equal(load_model(&c, "large", &model), TANDEM_OK);
    assert_int_equal(load_model(&c, "little", &little), TANDEM_OK);
    answer = ask_tensor(&c, model);
    assert_int_equal(answer.header.type, TD_WIRE_TENSOR);
    kill(worker, SIGKILL);
    worker = await_worker(worker);
    await_loading(worker, before);
    kill(worker, SIGKILL);
    worker = await_worker(worker);
    task_share(&t, &other);
    clear_output(&t);
    assert_int_equal(run_job(&other, &t).state, TANDEM_JOB_DONE);
    check_output(&t);
    task_share(&t, &c);
    job = job_of(&t);
    job.op.attention.k = answer.tensor.view;
    job.op.attention.k.stride_batch = job.op.attention.k.stride_head = 0;
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(ask_tensor(&c, model).error.status, TANDEM_ERROR_NOMEM);
    assert_int_equal(ask_tensor(&c, little).header.type, TD_WIRE_TENSOR);
    assert_int_equal(row_of(&c, "has two").model_bytes, (1 << 16) + 256);
    assert_true(memory_of(worker) < before + GROWN_KIB);
    assert_int_equal(count_lines(") is gone: ", 2), 2);
    assert_int_equal(count_lines("'has two') has ended the worker", 1), 1);
    client_close(&c);
    client_close(&other);
    task_free(&t);
}

/* Memory whose import kills the worker, each worker, on a driver that is none (tests/daemon/tandemd_faulty.c). */

/* With a pid: of that worker alone. */
static void kill_at(const char *call, uint64_t value, pid_t pid)
{
    char next[120];
    FILE *file;

    snprintf(next, sizeof next, "%s.next", fault_path);
    file = fopen(next, "w");
    assert_non_null(file);
    fprintf(file, "kill %s %" PRIu64 " %d\n", call, value, (int)pid);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(rename(next, fault_path), 0);
}

static int set_up_faulty(void **state)
{
    (void)state;
    unlink(fault_path);
    if (!use_program("tandemd_faulty"))
        return 1;
    launch_daemon("backend = cuda\nlog = debug\n");
    await_log("computes on");
    return 0;
}

static int tear_down(void **state)
{
    return tear_down_daemon(state) || !use_program("tandemd");
}

static void hold_loader_in(const char *call)
{
    FILE *file = fopen(fault_path, "w");

    assert_non_null(file);
    assert_true(fprintf(file, "hold %s\n", call) > 0);
    assert_int_equal(fclose(file), 0);
}

static void use_while_held(client *old, const task *old_task, const char *call)
{
    char text[80];

    snprintf(text, sizeof text, "the loader is held in %s", call);
    await_log(text);
    for (int i = 0; i < 3; i++)
        use_all(old, old_task, false);
}

/* Whatever the machine does beside it: while the loader stands still within a slice of 1 MiB, and as it frees what it has loaded,
 * everything is answered that needs no model. So nobody waits for any of it; who loads, too, waits for a slice of each load. */
static void nobody_waits_for_the_loader(void **state)
{
    td_wire_message answer;
    client loads, old;
    char config[300];
    uint32_t serial;
    task t;

    (void)state;
    unlink(fault_path);
    make_model("slices", 4 << 20);
    make_model("little", 1 << 16);
    assert_true(use_program("tandemd_faulty"));
    snprintf(config, sizeof config, "backend = cuda\nlog = debug\nmodel_dir = %s/models\n", folder);
    launch_daemon(config);
    await_log("computes on");
    client_open(&loads, "loads");
    client_open(&old, "there before");
    task_make(&t, &small, 1);
    task_share(&t, &old);
    use_all(&old, &t, true);
    hold_loader_in("cuMemcpyHtoD");
    serial = ask_for_model(&loads, "slices");
    use_while_held(&old, &t, "cuMemcpyHtoD");
    assert_false(take_answer(&loads, serial, 0, &answer));
    assert_int_equal(unlink(fault_path), 0);
    answer = await_answer(&loads, serial);
    assert_int_equal(answer.header.type, TD_WIRE_DONE);
    assert_int_equal(ask_tensor(&loads, answer.object.id).header.type, TD_WIRE_TENSOR);
    hold_loader_in("cuMemFree");
    assert_int_equal(client_object(&loads, TD_WIRE_MODEL_DESTROY, answer.object.id), TANDEM_OK);
    use_while_held(&old, &t, "cuMemFree");
    assert_int_equal(unlink(fault_path), 0);
    use_all(&old, &t, true);
    client_close(&loads);
    client_close(&old);
    task_free(&t);
}

static uint64_t share_buffer(client *c, uint64_t bytes)
{
    char why[300] = "";
    uint64_t mem;
    int fd;

    assert_int_equal(td_memfd_make("tandem-test-buffer", bytes, false, &fd, why, sizeof why), TANDEM_OK);
    mem = client_mem(c, fd, bytes, bytes);
    td_fd_close(&fd);
    return mem;
}

static void a_mem_that_kills_its_worker_is_refused(void **state)
{
    const uint64_t deadly = 5 * 4096, harmless = 3 * 4096;
    client guilty, other;

    (void)state;
    client_open(&guilty, "guilty");
    client_open(&other, "innocent");
    assert_true(share_buffer(&other, harmless) != 0);
    kill_at("cuMemHostRegister", deadly, 0);
    for (int i = 1; i <= 2; i++) {
        assert_int_equal(share_buffer(&guilty, deadly), 0);
        assert_int_equal(guilty.event.header.type, TD_WIRE_ERROR);
        assert_int_equal(guilty.event.error.status, TANDEM_ERROR_NOMEM);
        assert_non_null(strstr(guilty.event.error.text, "taking a mem of 20480 bytes"));
        assert_true(share_buffer(&other, harmless) != 0);
        assert_true(share_buffer(&guilty, harmless) != 0);
        assert_int_equal(count_lines(") is gone: ", i), i);
    }
    assert_int_equal(count_lines("'guilty') has ended the worker", 2), 2);
    assert_int_equal(share_buffer(&guilty, deadly), 0);
    while (client_events(&guilty, 1000 * MS) == TANDEM_ERROR_BUSY)
        ;
    assert_true(has_logged(log_path, "ended three workers"));
    assert_true(share_buffer(&other, harmless) != 0);
    client_close(&guilty);
    client_close(&other);
}

/* It did no harm when it was made. */
static void a_mem_that_kills_its_next_worker_is_given_up(void **state)
{
    const uint64_t deadly = 5 * 4096, harmless = 3 * 4096;
    tandem_job job = {.struct_bytes = sizeof job, .operation = TANDEM_OPERATION_ATTENTION};
    client c, other;
    uint64_t mem;

    (void)state;
    client_open(&c, "guilty");
    client_open(&other, "innocent");
    mem = share_buffer(&c, deadly);
    assert_true(mem != 0);
    assert_true(share_buffer(&other, harmless) != 0);
    kill_at("cuMemHostRegister", deadly, 0);
    kill(await_worker(0), SIGKILL);
    await_log("'guilty') has ended the worker");
    assert_true(share_buffer(&other, harmless) != 0);
    assert_int_equal(count_lines(") is gone: ", 2), 2);
    {
        const tandem_view view = {.mem = mem, .dtype = TANDEM_DTYPE_F32, .stride_row = 32};

        job.op.attention = (tandem_attention){.q = view, .k = view, .v = view, .o = view, .batch = 1, .heads = 1,
                                              .kv_heads = 1, .q_len = 16, .kv_len = 16, .head_dim = 32,
                                              .precision = TANDEM_PRECISION_F16};
        job.op.attention.o.offset_bytes = 8192;
    }
    assert_int_equal(client_report(&c, client_job(&c, &job), PATIENCE).status, TANDEM_ERROR_NOMEM);
    assert_int_equal(client_object(&c, TD_WIRE_MEM_DESTROY, mem), TANDEM_OK);
    assert_int_equal(count_lines(") is gone: ", 2), 2);
    client_close(&c);
    client_close(&other);
}

/* What takes next to no memory is done once more: who killed the worker may have meant nobody in particular. */
static void who_comes_as_a_worker_dies_is_served_by_the_next(void **state)
{
    client c;

    (void)state;
    kill_at("cuStreamCreateWithPriority", 1, await_worker(0));
    client_open(&c, "newcomer");
    assert_true(share_buffer(&c, 4096) != 0);
    assert_int_equal(count_lines(") is gone: ", 1), 1);
    assert_int_equal(count_lines("'newcomer') has ended the worker", 0), 0);
    client_close(&c);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(a_load_holds_nobody_up, tear_down),
        cmocka_unit_test_teardown(an_instance_holds_nobody_up, tear_down),
        cmocka_unit_test_teardown(a_load_ends_with_its_client, tear_down),
        cmocka_unit_test_teardown(a_load_does_not_keep_it_from_stopping, tear_down),
        cmocka_unit_test_teardown(a_load_that_kills_its_worker_is_not_repeated, tear_down),
        cmocka_unit_test_teardown(a_model_that_kills_its_next_worker_is_given_up, tear_down),
        cmocka_unit_test_teardown(nobody_waits_for_the_loader, tear_down),
        cmocka_unit_test_setup_teardown(a_mem_that_kills_its_worker_is_refused, set_up_faulty, tear_down),
        cmocka_unit_test_setup_teardown(a_mem_that_kills_its_next_worker_is_given_up, set_up_faulty, tear_down),
        cmocka_unit_test_setup_teardown(who_comes_as_a_worker_dies_is_served_by_the_next, set_up_faulty, tear_down),
    };

    if (!begin_tests("tandemd"))
        return 1;
    snprintf(fault_path, sizeof fault_path, "%s/fault", folder);
    setenv("TANDEM_TEST_FAULT", fault_path, 1);
    setenv("TANDEM_TEST_FAKE_CUDA", "1", 1);
    return end_tests(cmocka_run_group_tests_name("what the worker is asked for", tests, NULL, NULL));
}
