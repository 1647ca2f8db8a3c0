/* Models that are loaded while a daemon dies and the next one takes its place: that one has them, too.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <limits.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interop/base.h"
#include "tests/daemon/remote/rig.h"
#include "tests/plugin/network_util.h"
#include "tests/plugin/relay.h"
#include "tests/plugin/session_must.h"

/* A load that stands still at one of its allocations, when there is nothing that it waits for, until it is let go on. */
typedef struct held_load {
    tandem_session *s;
    tandem_model model;
    tandem_status status;
    unsigned allocations, held_at;
    sem_t stands, goes_on; /* stands: or it has ended, without */
    pthread_t thread;
} held_load;

static _Thread_local held_load *own_load; /* of a thread that loads */

static void *allocate(void *user, size_t bytes, size_t alignment)
{
    (void)user;
    if (own_load && ++own_load->allocations == own_load->held_at) {
        sem_post(&own_load->stands);
        sem_wait(&own_load->goes_on);
    }
    return aligned_alloc(alignment, td_align_up(bytes, alignment));
}

static void release(void *user, void *pointer)
{
    (void)user;
    free(pointer);
}

static void *load_held(void *user)
{
    held_load *l = own_load = user;

    l->status = tandem_model_load(l->s, model_path, &l->model);
    sem_post(&l->stands);
    return NULL;
}

static void begin_load(held_load *l, tandem_session *s, unsigned held_at)
{
    *l = (held_load){.s = s, .held_at = held_at};
    assert_int_equal(sem_init(&l->stands, 0, 0), 0);
    assert_int_equal(sem_init(&l->goes_on, 0, 0), 0);
    assert_int_equal(pthread_create(&l->thread, NULL, load_held, l), 0);
    while (sem_wait(&l->stands))
        ;
}

static void end_load(held_load *l)
{
    sem_post(&l->goes_on);
    pthread_join(l->thread, NULL);
    session_must(l->s, l->status);
    sem_destroy(&l->stands);
    sem_destroy(&l->goes_on);
}

/* A session of held loads, with a model: its tables have room for more. */
static void open_held(side *x, const char *socket, tandem_model *model)
{
    const tandem_session_desc desc = {.struct_bytes = sizeof desc,
                                      .backend = TANDEM_BACKEND_CPU,
                                      .allocate = allocate,
                                      .release = release,
                                      .socket = socket};

    memset(x, 0, sizeof *x);
    assert_int_equal(tandem_session_create(&desc, &x->s), TANDEM_OK);
    x->ours = new_timeline(x, TANDEM_SIGNALLER_SESSION);
    session_must(x->s, tandem_model_load(x->s, model_path, model));
}

static void await_daemon(side *x)
{
    uint64_t in, bytes;
    void *host;
    tandem_job job;

    job_of(&shapes[0], 1, &in, &bytes);
    job = job_of(&shapes[0], new_mem(x, bytes, &host), &in, &bytes);
    fill(host, in, bytes, shapes[0].dtype);
    await_return(x, &job);
    assert_int_equal(tandem_mem_destroy(x->s, job.op.attention.q.mem), TANDEM_OK);
}

/* The daemon that there is now has it, and plans its network. */
static void check_is_there(side *x, tandem_model model)
{
    const uint32_t rows = 16;
    tandem_instance instance;
    tandem_view view;
    uint64_t shape_of[4];

    session_must(x->s, tandem_model_tensor(x->s, model, "w", &view, shape_of));
    session_must(x->s, tandem_model_instance(x->s, model, &TANDEM_INIT(tandem_instance_desc), &instance));
    session_must(x->s, tandem_model_prepare(x->s, instance, &rows, 1));
}

static void begin_with_models(char config[200])
{
    assert_int_equal(rename(network_file(network_text), model_path), 0);
    snprintf(config, 200, "threads = 1\nmodel_dir = %s\n", folder);
    end_daemon(SIGTERM);
    start_daemon(config);
}

static void end_with_models(side *x)
{
    close_side(x);
    end_daemon(SIGTERM);
    start_daemon("threads = 1\n");
}

/* A daemon takes another's place in the midst of a load, wherever that is: the session is up again before the model enters. */
static void test_loads_across_restarts(void **state)
{
    char config[200];
    bool stood = true;
    tandem_model model;
    side x;

    (void)state;
    begin_with_models(config);
    open_held(&x, socket_path, &model);
    for (unsigned at = 1; stood; at++) {
        held_load l;

        begin_load(&l, x.s, at);
        stood = l.allocations == at;
        if (stood) {
            end_daemon(SIGKILL);
            start_daemon(config);
            await_daemon(&x);
        }
        end_load(&l);
        check_is_there(&x, l.model);
        assert_true(stood || at > 3);
    }
    end_with_models(&x);
}

static sem_t is_told, has_entered;
static uint32_t first_load; /* its serial */

/* The daemon's answer to the first load comes once another model has entered. */
static void hold_answer(td_wire_message *m, int fd)
{
    (void)fd;
    if (m->header.type == TD_WIRE_MODEL_LOAD && !first_load) {
        first_load = m->header.serial;
    } else if (m->header.type == TD_WIRE_DONE && first_load && m->header.serial == first_load) {
        sem_post(&is_told);
        while (sem_wait(&has_entered))
            ;
    }
}

/* A model enters while the next daemon loads what the session has, in the place of one that was before all that. */
static void test_enters_amid_others(void **state)
{
    char config[200], path[80];
    held_load l;
    relay between;
    tandem_model gone, kept;
    side x;

    (void)state;
    begin_with_models(config);
    snprintf(path, sizeof path, "%s/amid", folder);
    first_load = 0;
    assert_int_equal(sem_init(&is_told, 0, 0), 0);
    assert_int_equal(sem_init(&has_entered, 0, 0), 0);
    relay_begin(&between, path, socket_path, 0, NULL);
    open_held(&x, path, &gone);
    session_must(x.s, tandem_model_load(x.s, model_path, &kept));
    session_must(x.s, tandem_model_destroy(x.s, gone));
    begin_load(&l, x.s, UINT_MAX);
    const unsigned last = l.allocations;
    end_load(&l);
    session_must(x.s, tandem_model_destroy(x.s, l.model));
    begin_load(&l, x.s, last);
    assert_int_equal(l.allocations, last);
    end_daemon(SIGKILL);
    relay_end(&between);
    start_daemon(config);
    relay_begin(&between, path, socket_path, 0, hold_answer);
    while (sem_wait(&is_told))
        ;
    end_load(&l);
    sem_post(&has_entered);
    await_daemon(&x);
    check_is_there(&x, l.model);
    check_is_there(&x, kept);
    end_with_models(&x);
    relay_end(&between);
    sem_destroy(&is_told);
    sem_destroy(&has_entered);
}

static const struct CMUnitTest cases[] = {
    cmocka_unit_test(test_loads_across_restarts),
    cmocka_unit_test(test_enters_amid_others),
};
const test_cases remote_reloads_cases = TEST_CASES(cases);
