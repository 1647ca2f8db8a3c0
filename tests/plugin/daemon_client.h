/* A tandemd that a test starts and ends, clients that speak its wire, and jobs of theirs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TANDEM_TESTS_DAEMON_CLIENT_H
#define TANDEM_TESTS_DAEMON_CLIENT_H

#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "interop/os/descriptor.h"
#include "interop/wire/conn.h"
#include "interop/wire/ring.h"
#include "kernels/operation.h"
#include "tandem/tandem.h"
#include "tests/limits.h"
#include "tests/plugin/daemon_util.h"

#define MS 1000000ull
#define PATIENCE LIMITS_PATIENCE_NS

extern char folder[64], socket_path[96], config_path[96], log_path[96], program[4096];
extern pid_t daemon_pid;
void sleep_ms(unsigned ms);

/* The daemon. */

void write_config(const char *text);
void show_log(void);
/* Each daemon's of its own, to be looked at afterwards. */
void next_log(void);
void exec_daemon(void);
void await_log(const char *text);
/* For one whose log goes elsewhere: until it can be connected to. */
void await_socket(void);
void launch_daemon(const char *config);
/* On the CPU, whatever there is. */
void start_daemon(const char *config);
/* The exit status; -1 if it does not end in time. */
int end_daemon(int signal_number, uint64_t within_ns);
pid_t parent_of(pid_t pid, char *name, size_t name_bytes);
/* The daemon's worker, or 0. */
pid_t find_worker(void);
pid_t await_worker(pid_t other_than);
/* -1 where only root may see it: the broker lets nobody look into itself. */
int count_fds(pid_t pid);
/* A number of a process's: "VmRSS" is its memory, "RssShmem" what it shares of it, both in KiB. */
long status_of(pid_t pid, const char *what);
/* A port that is free now. */
int free_port(void);
/* Until the broker has as few descriptors, and the worker as little shared memory, as before. */
void await_clean(int fds, long shared_kib);
/* A daemon for the tests of a group, or for one; and the end of whatever daemon there is. */
int set_up_daemon(void **state);
int tear_down_daemon(void **state);

/* A client. */

typedef struct client {
    td_conn conn;
    td_wire_rules rules;
    td_wire_welcome welcome;
    td_ring ring;
    uint64_t last_ticket;
    td_wire_message event; /* the last one: RESET, ERROR of a job, BYE */
    uint32_t resets, job_errors, byes;
} client;

tandem_status client_connect(client *c);
tandem_status client_take(client *c, td_wire_message *m, int *fd, uint64_t timeout_ns);
void note_event(client *c, const td_wire_message *m);
/* Events that are there. LOST once the daemon has closed. */
tandem_status client_events(client *c, uint64_t timeout_ns);
tandem_status client_ask(client *c, td_wire_message *m, const int *fd, td_wire_message *answer, int *answer_fd);
td_wire_message hello(uint32_t share, const char *name);
tandem_status client_hello(client *c, td_wire_message *m);
void client_open_as(client *c, const char *name, tandem_class job_class);
void client_open(client *c, const char *name);
void client_close(client *c);
/* The id; 0 and c->event for an ERROR. */
uint64_t client_create(client *c, td_wire_message *m, int fd);
/* ERROR's status, or OK. */
tandem_status client_object(client *c, td_wire_type type, uint64_t id);
uint64_t client_mem(client *c, int fd, uint64_t bytes, uint64_t allocation_bytes);
uint64_t client_share_timeline(client *c, int fd, bool by_daemon, uint64_t value);
uint64_t client_timeline(client *c, td_shared_timeline *timeline, bool by_daemon, uint64_t value);
tandem_status client_put(client *c, td_wire_message *m);
uint64_t client_job(client *c, const tandem_job *job);
td_wire_report client_report(client *c, uint64_t ticket, uint64_t timeout_ns);
uint64_t point_value(td_shared_timeline *timeline);
bool await_point(td_shared_timeline *timeline, uint64_t value);

/* Work: q, k, v and o in one buffer, and what a session in this process makes of it. */

typedef struct shape {
    uint32_t heads, rows, keys, dim, precision, causal;
} shape;
extern const shape small;
extern const shape eight;
extern const shape large; /* takes a while */

typedef struct task {
    shape of;
    uint64_t q_bytes, k_bytes, o_at, bytes;
    int fd;
    float *data;
    uint64_t mem;
} task;

void task_make(task *t, const shape *of, uint32_t seed);
void task_free(task *t);
void task_share(task *t, client *c);
tandem_job job_of(const task *t);
void clear_output(task *t);
bool is_untouched(const task *t);
/* The output of the same job in this process, which the caller frees. */
void *in_process(const task *t, uint32_t backend);
void check_output(const task *t);
/* A whole round: a client can still do everything. */
void check_serves(void);
tandem_status load_model(client *c, const char *path, uint64_t *model);
td_wire_row row_of(client *c, const char *name);
td_wire_report run_job(client *c, const task *t);

/* A program's. */

/* The daemon's is this one, which lies beside the test's. */
bool use_program(const char *daemon);
/* And a folder for what the daemons leave. */
bool begin_tests(const char *daemon);
/* The exit status. */
int end_tests(int failed);

#endif
