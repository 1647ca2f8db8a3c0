/* Clients that speak the wire and run networks: what a hostile one names is refused, and costs nobody else anything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interop/os/memory.h"
#include "kernels/model/graph_file.h"
#include "tests/daemon/daemon/parts.h"
#include "tests/plugin/network_util.h"

enum { ROWS = 5, MEM_BYTES = 4096, Y_AT = 1024, SUM_AT = 2048 };

/* A client with an instance of the network that is prepared for ROWS. */
typedef struct guest {
    client c;
    uint64_t model, instance, mem;
    int fd;
    float *data;
} guest;

static char model_file[128];

static void begin(tandem_class job_class, guest *g, const char *name)
{
    td_wire_message m, answer;
    char why[300] = "";

    memset(g, 0, sizeof *g);
    client_open_as(&g->c, name, job_class);
    assert_int_equal(load_model(&g->c, "network.safetensors", &g->model), TANDEM_OK);
    m = td_wire_new(TD_WIRE_MODEL_INSTANCE, 0);
    m.model_instance.model = g->model;
    g->instance = client_create(&g->c, &m, -1);
    assert_true(g->instance);
    m = td_wire_new(TD_WIRE_MODEL_PREPARE, g->c.rules.next_serial);
    m.model_prepare.instance = g->instance;
    m.model_prepare.number_count = 1;
    m.model_prepare.numbers[0] = ROWS;
    assert_int_equal(client_ask(&g->c, &m, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_PREPARED);
    assert_int_equal(answer.prepared.uniform_bytes, sizeof(int32_t));
    assert_int_equal(td_memfd_make("test", MEM_BYTES, false, &g->fd, why, sizeof why), TANDEM_OK);
    g->data = mmap(NULL, MEM_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, g->fd, 0);
    assert_true(g->data != MAP_FAILED);
    g->mem = client_mem(&g->c, g->fd, MEM_BYTES, MEM_BYTES);
    assert_true(g->mem);
    for (int i = 0; i < ROWS * NETWORK_CHANNELS; i++)
        g->data[i] = 1;
}

static void end(guest *g)
{
    client_close(&g->c);
    munmap(g->data, MEM_BYTES);
    close(g->fd);
}

static td_wire_message right_run(const guest *g)
{
    static const uint64_t at[NETWORK_BINDINGS] = {[NETWORK_Y] = Y_AT, [NETWORK_SUM] = SUM_AT};
    const int32_t length = ROWS;
    td_wire_message m = td_wire_new(TD_WIRE_RUN, 0);

    m.run.ticket = g->c.rules.next_ticket;
    m.run.submit_ns = td_now_ns();
    m.run.instance = g->instance;
    m.run.binding_count = NETWORK_BINDINGS;
    for (int i = 0; i < NETWORK_BINDINGS; i++)
        m.run.bindings[i] = (td_wire_binding){.mem = g->mem, .offset_bytes = at[i], .dtype = TANDEM_DTYPE_F32};
    m.run.number_count = 1;
    m.run.numbers[0] = ROWS;
    m.run.uniform_bytes = sizeof length;
    memcpy(m.run.uniforms, &length, sizeof length);
    return m;
}

static td_wire_report put(guest *g, td_wire_message *m)
{
    const uint64_t ticket = m->run.ticket;

    assert_int_equal(client_put(&g->c, m), TANDEM_OK);
    return client_report(&g->c, ticket, PATIENCE);
}

/* A right run, the sum-th of the instance's. */
static void check_runs(guest *g, float sum)
{
    td_wire_message m = right_run(g);

    assert_int_equal(put(g, &m).state, TANDEM_JOB_DONE);
    for (int i = 0; i < NETWORK_CHANNELS; i++)
        assert_true(g->data[SUM_AT / 4 + i] == sum);
}

static void check_refused(guest *g, td_wire_message m, tandem_status status, const char *words)
{
    const uint32_t before = g->c.job_errors;
    const td_wire_report report = put(g, &m);
    const uint64_t begin_ns = td_now_ns();

    while (g->c.job_errors == before && td_now_ns() - begin_ns < PATIENCE)
        client_events(&g->c, 10 * MS);
    if (report.state != TANDEM_JOB_FAILED || report.status != status || !strstr(g->c.event.error.text, words))
        fail_msg("state %u, status %d: '%s' does not say '%s'", report.state, report.status, g->c.event.error.text, words);
}

static void refuse_bindings(guest *g, const guest *other)
{
    td_wire_message m = right_run(g), t = td_wire_new(TD_WIRE_MODEL_TENSOR, g->c.rules.next_serial);

    m.run.bindings[NETWORK_X].offset_bytes = MEM_BYTES;
    check_refused(g, m, TANDEM_ERROR_ARG, "go beyond");
    m = right_run(g);
    m.run.bindings[NETWORK_Y].offset_bytes = MEM_BYTES - 16; /* begins within */
    check_refused(g, m, TANDEM_ERROR_ARG, "go beyond");
    m = right_run(g);
    m.run.bindings[NETWORK_X].offset_bytes = MEM_BYTES + 4096;
    check_refused(g, m, TANDEM_ERROR_ARG, "beyond the 4096 bytes");
    m = right_run(g);
    m.run.bindings[NETWORK_X].offset_bytes = 4;
    check_refused(g, m, TANDEM_ERROR_ARG, "not a multiple of 16");
    m = right_run(g);
    m.run.bindings[NETWORK_X].dtype = TANDEM_DTYPE_F16;
    check_refused(g, m, TANDEM_ERROR_ARG, "dtype");
    m = right_run(g);
    m.run.bindings[NETWORK_Y].offset_bytes = 0; /* over x */
    check_refused(g, m, TANDEM_ERROR_ARG, "overlaps");
    m = right_run(g);
    m.run.bindings[NETWORK_X].mem = other->mem + 1; /* in another slot than its own, which are as many as its mems */
    check_refused(g, m, TANDEM_ERROR_ARG, "was destroyed");
    m = right_run(g);
    m.run.binding_count = 2;
    m.run.bindings[2] = (td_wire_binding){0};
    check_refused(g, m, TANDEM_ERROR_ARG, "binding_count");
    t.model_tensor.model = g->model;
    strcpy(t.model_tensor.name, "w");
    assert_int_equal(client_ask(&g->c, &t, NULL, &t, NULL), TANDEM_OK);
    assert_int_equal(t.header.type, TD_WIRE_TENSOR);
    m = right_run(g);
    m.run.bindings[NETWORK_SUM].mem = t.tensor.view.mem; /* weights that others read */
    m.run.bindings[NETWORK_SUM].offset_bytes = 0;
    check_refused(g, m, TANDEM_ERROR_ARG, "belongs to a model");
}

static void refuse_numbers(guest *g)
{
    static const uint32_t wrong[] = {0, 65, UINT32_MAX};
    td_wire_message m;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        m = right_run(g);
        m.run.numbers[0] = wrong[i];
        check_refused(g, m, TANDEM_ERROR_ARG, "must be 1 to 64");
    }
    m = right_run(g);
    m.run.numbers[0] = ROWS + 1;
    check_refused(g, m, TANDEM_ERROR_UNSUPPORTED, "not prepared");
    m = right_run(g);
    m.run.numbers[1] = 1;
    m.run.number_count = 2;
    check_refused(g, m, TANDEM_ERROR_ARG, "number_count");
    m = right_run(g);
    m.run.uniform_bytes = TD_WIRE_RUN_BYTES;
    check_refused(g, m, TANDEM_ERROR_ARG, "uniform_bytes");
    m = right_run(g);
    memset(m.run.uniforms, 0, sizeof m.run.uniforms);
    m.run.uniform_bytes = 0;
    check_refused(g, m, TANDEM_ERROR_ARG, "uniform_bytes");
    m = right_run(g);
    m.run.deadline_ns = 1000000000; /* which the instance was not made for */
    check_refused(g, m, TANDEM_ERROR_UNSUPPORTED, "deadlines");
}

static void refuse_instances(guest *g, const guest *other)
{
    td_wire_message m = right_run(g), p = td_wire_new(TD_WIRE_MODEL_PREPARE, g->c.rules.next_serial), answer;

    m.run.instance = other->instance + 1; /* a slot further: ids of the others are in slots of their own */
    check_refused(g, m, TANDEM_ERROR_ARG, "was destroyed");
    m = right_run(g);
    m.run.instance += 1ull << 24; /* of another generation */
    check_refused(g, m, TANDEM_ERROR_ARG, "was destroyed");
    p.model_prepare.instance = m.run.instance;
    assert_int_equal(client_ask(&g->c, &p, NULL, &answer, NULL), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_ERROR);
    assert_int_equal(client_object(&g->c, TD_WIRE_INSTANCE_DESTROY, m.run.instance), TANDEM_ERROR_ARG);
}

static td_wire_message ask_instance(guest *g, uint32_t node_count, uint32_t node, uint32_t precision)
{
    td_wire_message m = td_wire_new(TD_WIRE_INSTANCE_CREATE, g->c.rules.next_serial), answer;
    td_wire_layers *layers = &m.instance_create.layers;

    m.instance_create.model = g->model;
    layers->node_count = node_count;
    td_wire_plan_put(layers, node, precision);
    assert_int_equal(client_ask(&g->c, &m, NULL, &answer, NULL), TANDEM_OK);
    return answer;
}

/* Plans that are none of the graph's, samples without end, and layers that nobody has. */
static void refuse_layers(guest *g)
{
    td_wire_message m, answer = ask_instance(g, 2, 0, 0);

    assert_true(answer.header.type == TD_WIRE_ERROR && answer.error.status == TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(answer.error.text, "the plan is of 2 nodes, the graph has "));
    const uint32_t nodes = (uint32_t)atoi(strrchr(answer.error.text, ' '));
    answer = ask_instance(g, nodes, 0, TANDEM_PRECISION_8B);
    assert_true(answer.header.type == TD_WIRE_ERROR && answer.error.status == TANDEM_ERROR_PROTOCOL);
    assert_non_null(strstr(answer.error.text, "has precision 2 for node 0, which has none"));
    assert_int_equal(ask_instance(g, nodes, 0, 0).header.type, TD_WIRE_DONE);

    m = td_wire_new(TD_WIRE_INSTANCE_CREATE, 0);
    m.instance_create.model = g->model;
    m.instance_create.layers.min_similarity = 1;
    m.instance_create.layers.sample_rows = m.instance_create.layers.sample_every = UINT32_MAX;
    const uint64_t sampled = client_create(&g->c, &m, -1);
    assert_true(sampled);
    for (int i = 0; i < 3; i++) { /* not prepared, no layer, no instance */
        m = td_wire_new(TD_WIRE_INSTANCE_LAYER, g->c.rules.next_serial);
        m.instance_layer.instance = i == 0 ? sampled : g->instance + (i == 2);
        m.instance_layer.index = i ? TD_WIRE_NODES - 1 : 0;
        m.instance_layer.number_count = 1;
        m.instance_layer.numbers[0] = ROWS;
        assert_int_equal(client_ask(&g->c, &m, NULL, &answer, NULL), TANDEM_OK);
        assert_int_equal(answer.header.type, TD_WIRE_ERROR);
        assert_int_equal(answer.error.status, i ? TANDEM_ERROR_ARG : TANDEM_ERROR_UNSUPPORTED);
    }
}

/* Of the first bytes that the instance keeps, from or to behind what its runs use of the mem. */
enum { STATE_AT = 3072, STATE_BYTES = NETWORK_CHANNELS * sizeof(float) };

static td_wire_message state_of(const guest *g, bool writes)
{
    td_wire_message m = td_wire_new(TD_WIRE_INSTANCE_STATE, 0);

    m.instance_state.instance = g->instance;
    m.instance_state.mem = g->mem;
    m.instance_state.offset_bytes = STATE_AT;
    m.instance_state.writes = writes;
    m.instance_state.range_count = 1;
    m.instance_state.ranges[0].bytes = STATE_BYTES;
    return m;
}

static td_wire_message copy_state(guest *g, td_wire_message m)
{
    td_wire_message answer;

    m.header.serial = g->c.rules.next_serial;
    assert_int_equal(client_ask(&g->c, &m, NULL, &answer, NULL), TANDEM_OK);
    return answer;
}

static void refuse_state(guest *g, td_wire_message m, tandem_status status, const char *words)
{
    for (uint32_t writes = 0; writes < 2; writes++) {
        m.instance_state.writes = writes;
        const td_wire_message answer = copy_state(g, m);

        if (answer.header.type != TD_WIRE_ERROR || answer.error.status != status || !strstr(answer.error.text, words))
            fail_msg("type %u, status %d: '%s' does not say '%s'", answer.header.type, answer.error.status, answer.error.text,
                     words);
    }
}

/* What the instance has added up so far is read, and is what is written there. */
static void check_state(guest *g, float sum)
{
    float *at = g->data + STATE_AT / 4;

    memset(at, 0xff, STATE_BYTES);
    assert_int_equal(copy_state(g, state_of(g, false)).header.type, TD_WIRE_DONE);
    for (int i = 0; i < NETWORK_CHANNELS; i++)
        assert_true(at[i] == sum);
    for (int i = 0; i < NETWORK_CHANNELS; i++)
        at[i] = sum + 40;
    assert_int_equal(copy_state(g, state_of(g, true)).header.type, TD_WIRE_DONE);
    check_runs(g, sum + 41);
    for (int i = 0; i < NETWORK_CHANNELS; i++) /* in two pieces, the latter half first */
        at[i] = sum;
    td_wire_message m = state_of(g, true);
    m.instance_state.range_count = 2;
    m.instance_state.ranges[0] = (td_wire_range){STATE_BYTES / 2, STATE_BYTES / 2, 0};
    m.instance_state.ranges[1] = (td_wire_range){0, STATE_BYTES / 2, 0};
    assert_int_equal(copy_state(g, m).header.type, TD_WIRE_DONE);
}

/* While a run is queued nothing is copied, nor while something is already; a run that is put meanwhile waits. */
static void check_state_order(guest *g, float sum)
{
    enum { REQUESTS = 4 };
    td_shared_timeline timeline;
    td_wire_message m = right_run(g), answer;
    char why[300] = "";
    uint32_t first;
    int fd = -1;

    m.run.wait = (tandem_point){client_timeline(&g->c, &timeline, false, 0), 1};
    assert_true(m.run.wait.timeline);
    uint64_t ticket = m.run.ticket;
    assert_int_equal(client_put(&g->c, &m), TANDEM_OK);
    refuse_state(g, state_of(g, false), TANDEM_ERROR_BUSY, "of which a run has not ended");
    td_shared_timeline_raise(&timeline, 1);
    assert_int_equal(client_report(&g->c, ticket, PATIENCE).state, TANDEM_JOB_DONE);
    assert_int_equal(copy_state(g, state_of(g, false)).header.type, TD_WIRE_DONE);

    const pid_t worker = find_worker();
    stop_process(worker);
    first = g->c.rules.next_serial;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        m = state_of(g, false);
        m.header.serial = g->c.rules.next_serial;
        assert_int_equal(td_conn_send(&g->c.conn, &m, NULL, why, sizeof why), TANDEM_OK);
        td_wire_took(&g->c.rules, TD_WIRE_TO_DAEMON, &m);
    }
    for (uint32_t i = 1; i < REQUESTS; i++) { /* the first is under way */
        assert_int_equal(client_take(&g->c, &answer, &fd, PATIENCE), TANDEM_OK);
        assert_int_equal(answer.header.serial, first + i);
        assert_true(answer.header.type == TD_WIRE_ERROR && answer.error.status == TANDEM_ERROR_BUSY);
    }
    m = right_run(g);
    ticket = m.run.ticket;
    assert_int_equal(client_put(&g->c, &m), TANDEM_OK);
    assert_int_equal(client_report(&g->c, ticket, 50 * MS).state, TANDEM_JOB_PENDING); /* the worker does not have it */
    assert_int_equal(kill(worker, SIGCONT), 0);
    assert_int_equal(client_take(&g->c, &answer, &fd, PATIENCE), TANDEM_OK);
    assert_true(answer.header.serial == first && answer.header.type == TD_WIRE_DONE);
    assert_true(g->data[STATE_AT / 4] == sum + 1);
    assert_int_equal(client_report(&g->c, ticket, PATIENCE).state, TANDEM_JOB_DONE);
    assert_true(g->data[SUM_AT / 4] == sum + 2);
    td_shared_timeline_close(&timeline);
}

/* What others keep, or what is nobody's, and what lies in what is not the client's own. */
static void refuse_states(guest *g, const guest *other)
{
    td_wire_message m = state_of(g, false), t;

    m.instance_state.instance = other->instance + 8; /* a slot further than any of its own */
    refuse_state(g, m, TANDEM_ERROR_ARG, "was destroyed");
    m = state_of(g, false);
    m.instance_state.instance += 1ull << 24; /* of another generation */
    refuse_state(g, m, TANDEM_ERROR_ARG, "was destroyed");
    m = state_of(g, false);
    m.instance_state.mem = other->mem + 8;
    refuse_state(g, m, TANDEM_ERROR_ARG, "was destroyed");
    m = state_of(g, false);
    m.instance_state.offset_bytes = MEM_BYTES - STATE_BYTES + 1;
    refuse_state(g, m, TANDEM_ERROR_ARG, "end beyond the 4096 of mem");
    m.instance_state.offset_bytes = MEM_BYTES + 1;
    refuse_state(g, m, TANDEM_ERROR_ARG, "end beyond the 4096 of mem");
    m = state_of(g, false);
    m.instance_state.ranges[0].bytes = MEM_BYTES;
    refuse_state(g, m, TANDEM_ERROR_ARG, "end beyond the 4096 of mem");
    m = state_of(g, false);
    m.instance_state.ranges[0].bytes = MEM_BYTES - STATE_AT;
    refuse_state(g, m, TANDEM_ERROR_ARG, "ranges[0] is bytes 0 to 1024, beyond the");
    m = state_of(g, false);
    m.instance_state.ranges[0].offset_bytes = INT64_MAX - STATE_BYTES;
    refuse_state(g, m, TANDEM_ERROR_ARG, "ranges[0] is bytes 9223372036854775775 to 9223372036854775807, beyond the");
    m = state_of(g, false);
    m.instance_state.range_count = 2;
    m.instance_state.ranges[1] = (td_wire_range){4096, 4, 0};
    refuse_state(g, m, TANDEM_ERROR_ARG, "ranges[1] is bytes 4096 to 4100, beyond the");
    t = td_wire_new(TD_WIRE_MODEL_TENSOR, g->c.rules.next_serial);
    t.model_tensor.model = g->model;
    strcpy(t.model_tensor.name, "w");
    assert_int_equal(client_ask(&g->c, &t, NULL, &t, NULL), TANDEM_OK);
    assert_int_equal(t.header.type, TD_WIRE_TENSOR);
    m = state_of(g, false);
    m.instance_state.mem = t.tensor.view.mem; /* weights that others read */
    m.instance_state.offset_bytes = 0;
    refuse_state(g, m, TANDEM_ERROR_ARG, "belongs to a model");
}

/* Of either class, whose instances are in sessions of their own in the worker. */
static void test_hostile_runs(void **state)
{
    char config[200];

    (void)state;
    snprintf(model_file, sizeof model_file, "%s/network.safetensors", folder);
    assert_int_equal(rename(network_file(network_text), model_file), 0);
    snprintf(config, sizeof config, "model_dir = %s\n", folder);
    start_daemon(config);
    for (int i = 0; i < 2; i++) {
        guest good, bad;
        float sum = 0;

        begin(TANDEM_CLASS_FRAME, &good, "good");
        begin(i ? TANDEM_CLASS_BACKGROUND : TANDEM_CLASS_FRAME, &bad, "bad");
        check_runs(&good, ++sum);
        check_runs(&bad, 1);
        refuse_bindings(&bad, &good);
        check_runs(&good, ++sum);
        refuse_numbers(&bad);
        check_runs(&good, ++sum);
        refuse_instances(&bad, &good);
        refuse_layers(&bad);
        refuse_states(&bad, &good);
        check_state(&good, sum); /* and none but its own */
        check_runs(&good, ++sum);
        check_state_order(&good, sum);
        sum += 2;
        check_runs(&bad, 2); /* what was refused has left it as it was */
        assert_int_equal(client_object(&bad.c, TD_WIRE_MODEL_DESTROY, bad.model), TANDEM_OK);
        check_runs(&bad, 3); /* weights stay as long as it does */
        assert_int_equal(client_object(&bad.c, TD_WIRE_INSTANCE_DESTROY, bad.instance), TANDEM_OK);
        check_refused(&bad, right_run(&bad), TANDEM_ERROR_ARG, "was destroyed");
        check_runs(&good, ++sum);
        end(&bad);
        end(&good);
    }
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    unlink(model_file);
}

static void write_large_model(void)
{
    static float weights[1 << 18];
    const td_safetensors_item items[] = {{"w", "F32", 2, {1, NETWORK_CHANNELS}, weights}, {"other", "F32", 1, {1 << 18}, weights}};
    const td_safetensors_text graph = {TD_GRAPH_KEY, network_text};
    char why[400] = "";

    if (td_safetensors_write_texts(model_file, &graph, 1, items, 2, why, sizeof why) != TANDEM_OK)
        fail_msg("%s", why);
}

/* Who maps what tells of a network and reads all of it has the daemon hold no more than before. */
static void test_touched_graph(void **state)
{
    char config[200];
    td_wire_message m, answer;
    volatile const char *map;
    struct stat before, after;
    guest g;
    int fd;

    (void)state;
    snprintf(model_file, sizeof model_file, "%s/network.safetensors", folder);
    write_large_model();
    snprintf(config, sizeof config, "model_dir = %s\n", folder);
    start_daemon(config);
    begin(TANDEM_CLASS_FRAME, &g, "touches");
    m = td_wire_new(TD_WIRE_MODEL_GRAPH, g.c.rules.next_serial);
    m.object.id = g.model;
    assert_int_equal(client_ask(&g.c, &m, NULL, &answer, &fd), TANDEM_OK);
    assert_int_equal(answer.header.type, TD_WIRE_GRAPH);
    assert_int_equal(fstat(fd, &before), 0);
    map = mmap(NULL, (size_t)before.st_size, PROT_READ, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    for (off_t at = 0; at < before.st_size; at += 4096)
        (void)map[at];
    assert_int_equal(fstat(fd, &after), 0);
    assert_int_equal(after.st_blocks, before.st_blocks);
    assert_int_equal(stat(model_file, &after), 0);
    assert_int_equal(answer.graph.bytes, after.st_size);
    assert_true(before.st_size < after.st_size);
    munmap((void *)(uintptr_t)map, (size_t)before.st_size);
    close(fd);
    end(&g);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    unlink(model_file);
}

/* What breaks the protocol ends the connection, and nobody else's. */
static void test_broken_runs(void **state)
{
    char config[200];
    guest good;

    (void)state;
    snprintf(model_file, sizeof model_file, "%s/network.safetensors", folder);
    assert_int_equal(rename(network_file(network_text), model_file), 0);
    snprintf(config, sizeof config, "model_dir = %s\n", folder);
    start_daemon(config);
    begin(TANDEM_CLASS_FRAME, &good, "good");
    for (int i = 0; i < 6; i++) {
        guest bad;
        td_wire_message m;

        begin(TANDEM_CLASS_FRAME, &bad, "bad");
        m = right_run(&bad);
        m.run.binding_count = i == 0 ? 65 : i == 1 ? UINT32_MAX : NETWORK_BINDINGS;
        m.run.number_count = i == 2 ? 33 : 1;
        m.run.uniform_bytes = i == 3 ? TD_WIRE_UNIFORM_BYTES + 1 : i == 4 ? TD_WIRE_RUN_BYTES + 1 : sizeof(int32_t);
        m.run.instance = i == 5 ? bad.mem : bad.instance;
        assert_int_equal(client_put(&bad.c, &m), TANDEM_OK);
        while (client_events(&bad.c, PATIENCE) != TANDEM_ERROR_LOST)
            assert_true(td_now_ns() - m.run.submit_ns < PATIENCE);
        assert_int_equal(bad.c.event.error.status, TANDEM_ERROR_PROTOCOL);
        check_runs(&good, (float)i + 1);
        end(&bad);
    }
    end(&good);
    assert_int_equal(end_daemon(SIGTERM, PATIENCE), 0);
    unlink(model_file);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_hostile_runs),
    cmocka_unit_test(test_touched_graph),
    cmocka_unit_test(test_broken_runs),
};
const test_cases daemon_networks_cases = TEST_CASES(cases);
