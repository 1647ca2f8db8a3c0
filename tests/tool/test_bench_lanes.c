/* The benches' routes beside a session that is full for a moment, as one through a daemon is whose word comes late; which
 * processors the bench of a small job takes; and what NVML is asked for joules.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine_plugin/tool/attention_times.h"
#include "engine_plugin/tool/routes.h"
#include "tests/bench/small.h"

static bench_vk vk;
static route one;
static payload made;
static char shape[160];
static tandem_ticket given[64], waited;
static unsigned tries, full_from, full_to; /* tries of tandem_submit() that find the session full */

tandem_status __real_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);
tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket);
tandem_status __real_tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns,
                                 tandem_job_report *report);
tandem_status __wrap_tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns,
                                 tandem_job_report *report);

tandem_status __wrap_tandem_submit(tandem_session *session, const tandem_job *job, tandem_ticket *ticket)
{
    tandem_status status;

    *ticket = 0;
    if (++tries >= full_from && tries < full_to)
        return TANDEM_ERROR_BUSY;
    status = __real_tandem_submit(session, job, ticket);
    memmove(given + 1, given, sizeof given - sizeof *given);
    given[0] = *ticket;
    return status;
}

tandem_status __wrap_tandem_wait(tandem_session *session, tandem_ticket ticket, uint64_t timeout_ns,
                                 tandem_job_report *report)
{
    waited = ticket;
    return __real_tandem_wait(session, ticket, timeout_ns, report);
}

static int open_route(void **state)
{
    char why[300] = "";

    (void)state;
    vk = (bench_vk){0};
    one = (route){.name = "one", .kind = ROUTE_SUBMITTED, .job_first = true, .rung = TANDEM_RUNG_CPU};
    if (!bench_vk_open(&vk, why, sizeof why)) {
        print_message("no Vulkan: %s\n", why);
        return 1;
    }
    route_open(&one, &vk);
    payload_make(&made, shape, "64 B", PAYLOAD_EMPTY, 64, 1, 1, 1, 1, TANDEM_PRECISION_F16, 1);
    if (!one.why[0])
        route_prepare(&one, &vk, &made);
    if (one.why[0])
        print_message("%s\n", one.why);
    return one.why[0] != 0;
}

static int close_route(void **state)
{
    (void)state;
    route_close(&one, &vk);
    bench_vk_close(&vk);
    return 0;
}

static void is_full(unsigned first, unsigned count)
{
    tries = 0;
    full_from = first;
    full_to = first + count;
}

/* It waits for the job that the slot had before, not for the last one: three are in flight. */
static void full_for_a_moment(void **state)
{
    (void)state;
    is_full(0, 0);
    assert_true(route_pipelined(&one, &vk, 2 * ROUTE_SLOTS));
    for (unsigned at = 1; at <= ROUTE_SLOTS; at++) {
        const tandem_ticket expected = given[ROUTE_SLOTS - at];

        is_full(at, 1);
        waited = 0;
        if (!route_pipelined(&one, &vk, ROUTE_SLOTS))
            fail_msg("try %u: %s", at, one.why);
        assert_int_equal(tries, ROUTE_SLOTS + 1);
        assert_int_equal(waited, expected);
    }
    assert_int_equal(one.wrong, 0);
}

static void full_for_good(void **state)
{
    (void)state;
    is_full(0, 0);
    assert_true(route_pipelined(&one, &vk, ROUTE_SLOTS));
    is_full(2, 1000);
    assert_false(route_pipelined(&one, &vk, ROUTE_SLOTS));
    assert_int_equal(tries, 3);
    assert_non_null(strstr(one.why, "tandem_submit"));
}

static void write_core(const char *folder, int cpu, const char *threads)
{
    char path[160], command[200];
    FILE *file;

    snprintf(path, sizeof path, "%s/cpu%d/topology", folder, cpu);
    snprintf(command, sizeof command, "mkdir -p %s", path);
    assert_int_equal(system(command), 0);
    strcat(path, "/thread_siblings_list");
    file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "%s\n", threads);
    fclose(file);
}

/* Threads of one core are not two, wherever they are in the list. */
static void cores_are_cores(void **state)
{
    static const struct {
        const char *threads[4]; /* "": the machine does not say */
        uint64_t may, two;      /* processors, as bits; two 0: there are none */
    } machines[] = {{{"0-1", "0-1", "2-3", "2-3"}, 15, 5}, {{"0,2", "1,3", "0,2", "1,3"}, 15, 3},
                    {{"0,2", "1,3", "0,2", "1,3"}, 5, 0}, {{"0-1", "0-1", "2-3", "2-3"}, 14, 6},
                    {{"", "", "", ""}, 12, 12},           {{"0", "1", "2", "3"}, 8, 0}};

    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        char folder[] = "/tmp/tandem-cores-XXXXXX", command[64];
        cpu_set_t may, two;

        assert_non_null(mkdtemp(folder));
        CPU_ZERO(&may);
        for (int cpu = 0; cpu < 4; cpu++) {
            if (machines[m].threads[cpu][0])
                write_core(folder, cpu, machines[m].threads[cpu]);
            if (machines[m].may >> cpu & 1)
                CPU_SET(cpu, &may);
        }
        assert_int_equal(bench_two_cores(&may, folder, &two), machines[m].two != 0);
        for (int cpu = 0; cpu < 4 && machines[m].two; cpu++)
            assert_int_equal(CPU_ISSET(cpu, &two) != 0, machines[m].two >> cpu & 1);
        snprintf(command, sizeof command, "rm -r %s", folder);
        assert_int_equal(system(command), 0);
    }
}

/* NVML as this process has it: a GPU that has used so much. */
static int nvml_library;
static bool has_nvml, has_energy;
static unsigned long long used_mj;
static char asked_for[64];

static int nvml_done(void)
{
    return 0;
}

static int nvml_find(const char *uuid, void **device)
{
    snprintf(asked_for, sizeof asked_for, "%s", uuid);
    *device = &nvml_library;
    return 0;
}

static int nvml_energy(void *device, unsigned long long *millijoules)
{
    assert_ptr_equal(device, &nvml_library);
    *millijoules = used_mj;
    return 0;
}

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);

void *__wrap_dlopen(const char *name, int flags)
{
    if (name && !strcmp(name, "libnvidia-ml.so.1"))
        return has_nvml ? &nvml_library : NULL;
    return __real_dlopen(name, flags);
}

void *__wrap_dlsym(void *library, const char *name)
{
    if (library != &nvml_library)
        return __real_dlsym(library, name);
    return !strcmp(name, "nvmlInit_v2") || !strcmp(name, "nvmlShutdown")         ? (void *)nvml_done
           : !strcmp(name, "nvmlDeviceGetHandleByUUID")                          ? (void *)nvml_find
           : has_energy && !strcmp(name, "nvmlDeviceGetTotalEnergyConsumption")  ? (void *)nvml_energy
                                                                                 : NULL;
}

static void joules_are_the_cards(void **state)
{
    const uint8_t uuid[16] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    times_row row = {0};
    uint64_t mj = 7;

    (void)state;
    has_nvml = has_energy = true;
    used_mj = 5000000000ull; /* beyond 32 bits */
    bench_nvml *nvml = bench_nvml_open(uuid);
    assert_non_null(nvml);
    assert_string_equal(asked_for, "GPU-01234567-89ab-cdef-1032-547698badcfe");
    assert_true(bench_nvml_energy(nvml, &mj));
    assert_int_equal(mj, 5000000000ull);
    bench_nvml_close(nvml);
    has_energy = false; /* a driver that does not count, */
    nvml = bench_nvml_open(uuid);
    mj = 7;
    assert_false(bench_nvml_energy(nvml, &mj));
    assert_int_equal(mj, 7);
    bench_nvml_close(nvml);
    has_nvml = false; /* and none at all */
    assert_null(bench_nvml_open(uuid));
    assert_false(bench_nvml_energy(NULL, &mj));

    assert_true(times_joules(NULL) != times_joules(NULL)); /* NAN */
    assert_true(times_joules(&row) != times_joules(&row));
    row.joules = 30;
    row.energy_calls = 120;
    assert_true(times_joules(&row) == 0.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(full_for_a_moment, open_route, close_route),
        cmocka_unit_test_setup_teardown(full_for_good, open_route, close_route),
        cmocka_unit_test(cores_are_cores),
        cmocka_unit_test(joules_are_the_cards),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
