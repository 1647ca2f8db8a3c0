/* The broker's main thread: what it listens to, and its end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "engine_plugin/daemon/accept.h"
#include "engine_plugin/daemon/answers.h"
#include "engine_plugin/daemon/broker.h"
#include "engine_plugin/daemon/clients.h"
#include "engine_plugin/daemon/confine.h"
#include "engine_plugin/daemon/descriptors.h"
#include "engine_plugin/daemon/http.h"
#include "engine_plugin/daemon/launcher.h"
#include "engine_plugin/daemon/log.h"
#include "engine_plugin/daemon/manager.h"
#include "engine_plugin/daemon/pass.h"
#include "engine_plugin/daemon/queue.h"
#include "engine_plugin/daemon/queue_dispatch.h"
#include "engine_plugin/daemon/queue_jobs.h"
#include "engine_plugin/daemon/replies.h"
#include "engine_plugin/daemon/state.h"
#include "engine_plugin/daemon/worker_process.h"
#include "engine_plugin/daemon/worker_requests.h"
#include "interop/os/clock.h"
#include "interop/os/descriptor.h"
#include "interop/os/memory.h"
#include "interop/os/poll.h"
#include "interop/os/process.h"
#include "interop/os/thread.h"

#define HELLO_NS TD_SECOND
#define DRAIN_NS 1500000000u      /* what running jobs get when the daemon is told to stop */
#define START_NS (60 * TD_SECOND) /* what a worker may take to say hello */
#define MOST_WAIT_NS TD_SECOND
enum { MOST_POLLED = 8 + TD_WEB_PEERS + 2 * (TD_MAX_CLIENTS + TD_MAX_NEW) };

/* The launcher. */

static void take_config(td_broker *b, const td_launcher_message *m)
{
    td_config made = m->config;

    if (m->status != TANDEM_OK) {
        td_say(TD_LOG_ERROR, "the configuration stays as it is: %s", m->text);
        return;
    }
    if (made.backend != b->config.backend || made.threads != b->config.threads ||
        made.metrics_port != b->config.metrics_port || strcmp(made.tuning, b->config.tuning))
        td_say(TD_LOG_WARN, "backend, threads, metrics and tuning stay as they were until the next start");
    made.backend = b->config.backend;
    made.threads = b->config.threads;
    made.metrics_port = b->config.metrics_port;
    memcpy(made.tuning, b->config.tuning, sizeof made.tuning);
    b->config = made;
    td_say_level = made.log_level;
    td_say(TD_LOG_INFO, "the configuration was read again");
}

static bool read_launcher(td_broker *b)
{
    static td_launcher_message m;

    for (;;) {
        int fds[2];
        const tandem_status status = td_fetch(b->launcher, &m, sizeof m, fds);

        m.text[sizeof m.text - 1] = 0;
        if (status == TANDEM_OK && m.kind == TD_LAUNCHER_SPAWNED) {
            b->worker_pid = m.pid;
            td_channel_given(b->worker, m.pid);
            if (m.status != TANDEM_OK)
                td_say(TD_LOG_ERROR, "no worker: %s", m.text); /* its socket closes */
        } else if (status == TANDEM_OK && m.kind == TD_LAUNCHER_ENDED) {
            b->ended_pid = m.pid;
            b->ended_status = m.status;
            if (m.status)
                td_say(TD_LOG_WARN, "process %d was ended by signal %d", m.pid, m.status);
        } else if (status == TANDEM_OK && m.kind == TD_LAUNCHER_OPENED) {
            td_client_opened(b, &m, &fds[0]);
        } else if (status == TANDEM_OK && m.kind == TD_LAUNCHER_CONFIG) {
            take_config(b, &m);
        }
        td_fd_close(&fds[0]);
        td_fd_close(&fds[1]);
        if (status != TANDEM_OK)
            return status != TANDEM_ERROR_LOST;
    }
}

/* The end. */

static void begin_stop(td_broker *b)
{
    if (b->stopping)
        return;
    td_say(TD_LOG_INFO, "stopping");
    td_manager_tell(b->notify, "STOPPING=1");
    for (td_client *c = b->clients; c; c = c->next) {
        if (c->state != TD_CLIENT_READY)
            continue;
        td_queue_take(b, c);
        for (uint32_t i = 0; i < c->count; i++)
            if (!c->order[i]->at_worker)
                td_queue_give_up(b, c->order[i], TANDEM_JOB_CANCELLED, TANDEM_OK);
        td_queue_retire_given_up(b, c);
    }
    td_listener_close(&b->listener);
    b->stopping = true;
    b->stop_ns = td_now_ns();
}

static bool has_stopped(td_broker *b)
{
    bool busy = false;

    for (int i = 0; i < TD_WORKER_SLOTS; i++)
        busy = busy || b->slot_works[i];
    if (!b->stopping || (busy && td_now_ns() - b->stop_ns < DRAIN_NS))
        return false;
    td_queue_lost(b, true);
    for (td_client *c = b->clients; c; c = c->next)
        td_client_end(b, c, TANDEM_OK, TD_WIRE_BYE_STOPPING, "the daemon stops");
    return true;
}

static void read_signals(td_broker *b)
{
    static td_launcher_message ask;
    td_asked asked;

    while ((asked = td_asked_next(b->signals)) != TD_ASKED_NOTHING) {
        if (asked == TD_ASKED_END) {
            begin_stop(b);
            continue;
        }
        ask = (td_launcher_message){.kind = TD_LAUNCHER_CONFIG, .device = b->listener.device, .inode = b->listener.inode};
        if (td_pass(b->launcher, &ask, sizeof ask, NULL, 0) != TANDEM_OK)
            td_say(TD_LOG_WARN, "the configuration cannot be read now");
    }
}

/* The loop. */

static void look_at_clients(td_broker *b, const td_polled *p)
{
    const uint64_t now = td_now_ns();
    char why[TD_TEXT_BYTES];

    for (td_client *c = b->clients, *next; c; c = next) {
        const td_polled *at = p + c->polled;

        next = c->next;
        if (c->state == TD_CLIENT_GONE || c->polled < 0)
            continue;
        if (at[0].found & TD_POLL_WRITES) {
            const tandem_status status = td_conn_flush(&c->conn, why, sizeof why);

            if (status != TANDEM_OK && status != TANDEM_ERROR_BUSY)
                td_client_end(b, c, TANDEM_ERROR_LOST, 0, why);
        }
        if ((at[0].found & ~TD_POLL_WRITES) || c->held)
            td_client_read(b, c);
        if (c->state != TD_CLIENT_GONE && at[1].found)
            td_client_end(b, c, TANDEM_ERROR_LOST, 0, "its process has ended");
        if (c->state == TD_CLIENT_NEW && !c->hello && now - c->since_ns > HELLO_NS)
            td_client_end(b, c, TANDEM_ERROR_PROTOCOL, 0, "no HELLO within 1 s");
    }
}

static void look_at_time(td_broker *b)
{
    const uint64_t now = td_now_ns();
    const td_worker_request *hung;

    if (b->worker < 0 && b->respawn_ns && now >= b->respawn_ns && !b->old_worker_queue && !b->stopping)
        td_worker_spawn(b);
    if (b->worker >= 0 && !b->worker_said && !b->killed_ns && td_now_ns() - b->spawned_ns > START_NS)
        td_worker_kill(b, "it has said nothing for 60 s");
    hung = b->worker >= 0 && b->worker_said && !b->killed_ns ? td_worker_request_hangs(b, now) : NULL;
    if (hung) {
        b->hung = hung->message.serial;
        td_worker_kill(b, "it does not answer");
    }
    if (b->worker >= 0 && b->killed_ns && now - b->killed_ns > TD_SECOND)
        td_worker_kill(b, NULL);
    if (b->watchdog_ns && now - b->watched_ns >= b->watchdog_ns / 2 && b->turns != b->watched_turns) {
        td_manager_tell(b->notify, "WATCHDOG=1");
        b->watched_ns = now;
        b->watched_turns = b->turns;
    }
}

static int sleep_ms(const td_broker *b)
{
    uint64_t ns = MOST_WAIT_NS;

    if (b->new_count || b->stopping || td_web_has_peers(b))
        ns = 50000000;
    if (b->accept_ns)
        ns = 5000000;
    for (const td_client *c = b->clients; c; c = c->next)
        if (c->held)
            ns = 5000000;
    if (b->worker < 0)
        ns = 5000000;
    if (b->watchdog_ns && b->watchdog_ns / 8 < ns)
        ns = b->watchdog_ns / 8;
    return (int)(ns / 1000000) + 1;
}

/* Those that were never let in, at once: thousands may knock. The second thread sleeps on nothing of theirs. */
static void free_strangers(td_broker *b)
{
    for (td_client *c = b->clients, *next; c; c = next) {
        next = c->next;
        if (c->state == TD_CLIENT_GONE && !c->works)
            td_client_free(b, c);
    }
}

int td_broker_turn(td_broker *b, int ms)
{
    static td_polled p[MOST_POLLED];
    int count = 5;

    p[0] = (td_polled){b->launcher, TD_POLL_READS, 0};
    p[1] = (td_polled){b->signals, TD_POLL_READS, 0};
    p[2] = (td_polled){b->worker, TD_POLL_READS, 0};
    p[3] = (td_polled){td_now_ns() < b->accept_ns ? -1 : b->listener.fd, TD_POLL_READS, 0};
    p[4] = (td_polled){b->metrics, TD_POLL_READS, 0};
    count += td_web_listen_to(b, p + count);
    for (td_client *c = b->clients; c; c = c->next) {
        c->polled = -1;
        if (c->state == TD_CLIENT_GONE || count + 2 > MOST_POLLED)
            continue;
        c->polled = count;
        p[count++] = (td_polled){
            c->conn.fd, (short)((c->held ? 0 : TD_POLL_READS) | (c->conn.queued_bytes ? TD_POLL_WRITES : 0)), 0};
        p[count++] = (td_polled){c->process, TD_POLL_READS, 0};
    }
    pthread_mutex_unlock(&b->lock);
    td_poll(p, (uint32_t)count, ms);
    pthread_mutex_lock(&b->lock);
    if (p[0].found && !read_launcher(b)) {
        td_say(TD_LOG_ERROR, "the launcher is gone");
        return 1;
    }
    if (p[1].found)
        read_signals(b);
    if (p[2].found && b->worker >= 0 && !td_worker_read(b))
        return 1;
    look_at_clients(b, p);
    if (p[3].found && b->listener.fd >= 0)
        td_clients_accept(b);
    free_strangers(b);
    td_web_turn(b, p + 5);
    if (p[4].found)
        td_web_accept(b);
    if (!td_worker_bury(b))
        return 1;
    td_worker_requests_send(b);
    look_at_time(b);
    return has_stopped(b) ? 0 : -1;
}

void td_broker_end(td_broker *b)
{
    b->end_thread = true;
    pthread_mutex_unlock(&b->lock);
    if (b->has_thread) {
        td_queue_wake(b);
        pthread_join(b->thread, NULL);
    }
    td_queue_lost(b, true);
    while (b->clients)
        td_client_free(b, b->clients);
    while (b->openings) {
        td_opening *next = b->openings->next;

        free(b->openings);
        b->openings = next;
    }
    while (b->worker_requests)
        td_worker_request_remove(b, b->worker_requests);
    if (b->worker_queue)
        td_unmap(b->worker_queue, TD_WORKER_QUEUE_BYTES);
    if (b->old_worker_queue)
        td_unmap(b->old_worker_queue, TD_WORKER_QUEUE_BYTES);
    free(b->numbers);
    td_web_end(b);
    td_fd_close(&b->worker);
    td_listener_close(&b->listener);
    pthread_mutex_destroy(&b->lock);
}

bool td_broker_begin(td_broker *b)
{
    b->worker = -1;
    if (!td_fds_begin(b))
        return false;
    b->numbers = calloc(TD_MAX_NUMBERS, 1);
    b->uid = td_process_user();
    td_wire_identify(&b->identity);
    if (!b->numbers || pthread_mutex_init(&b->lock, NULL) || pthread_barrier_init(&b->begun, NULL, 2)) {
        td_say(TD_LOG_ERROR, "no host memory");
        free(b->numbers);
        return false;
    }
    pthread_mutex_lock(&b->lock);
    td_worker_spawn(b);
    return true;
}

int td_broker_run(td_broker *b)
{
    char why[TD_TEXT_BYTES] = "";
    int result = 1;

    if (!td_broker_begin(b))
        return 1;
    td_confine_files(b->listener.path);
    b->has_thread = td_log_begin() && td_thread_start(&b->thread, td_queue_main, b);
    if (!b->has_thread) {
        td_say(TD_LOG_ERROR, "no thread could be started");
    } else {
        pthread_barrier_wait(&b->begun);
        if (td_confine_broker(why, sizeof why) != TANDEM_OK)
            td_say(TD_LOG_WARN, "system calls are not filtered: %s", why);
        do
            result = td_broker_turn(b, sleep_ms(b));
        while (result < 0);
    }
    td_broker_end(b);
    return result;
}
