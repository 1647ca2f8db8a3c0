/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "engine_plugin/daemon/loader.h"
#include "engine_plugin/daemon/worker_message.h"
#include "interop/os/descriptor.h"
#include "interop/os/file.h"
#include "interop/os/thread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert((int)TD_TEXT_BYTES >= (int)TD_WHY_BYTES, "the client writes its reasons into the daemon's texts");

typedef struct load {
    td_worker_message message, end; /* end: its kind is 0 unless it was given up */
    int fd;                         /* until it has begun */
    tandem_model model; /* that is to be destroyed; 0: one is to be loaded */
    bool begun;
    td_model_load reading;
    struct load *next;
} load;

struct td_loader {
    tandem_session *session;
    _Atomic uint32_t *at; /* or NULL */
    td_loaded loaded;
    void *user;
    pthread_mutex_t lock; /* holds the list, and `end` of those in it */
    pthread_cond_t more;
    load *loads;
};

static tandem_status begin_reading(td_loader *loader, load *l, char *why)
{
    const td_wire_language *of = &l->message.network.language;
    char path[TD_FILE_PATH_BYTES];
    const tandem_model_desc desc = {.path = path,
                                    .sequences = of->sequences,
                                    .context = of->context,
                                    .cache = of->cache,
                                    .pages = of->pages,
                                    .hidden = of->hidden,
                                    .tops = of->tops};
    const tandem_status status = td_file_path(l->fd, path, why, TD_WHY_BYTES);

    return status == TANDEM_OK ? td_model_load_begin(loader->session, &desc, &l->reading, why) : status;
}

/* BUSY: there is more to read. */
static tandem_status step(td_loader *loader, load *l, char *why)
{
    tandem_status status = TANDEM_OK;

    if (l->model) {
        status = tandem_model_destroy(loader->session, l->model);
        return status == TANDEM_ERROR_BUSY ? TANDEM_ERROR_LOST : status; /* a job uses it for good */
    }
    if (!l->begun) {
        l->begun = true;
        status = begin_reading(loader, l, why);
        td_fd_close(&l->fd);
    }
    return status == TANDEM_OK ? td_model_load_step(&l->reading, why) : status;
}

static void remove_load(td_loader *loader, load *l)
{
    load **at = &loader->loads;

    while (*at != l)
        at = &(*at)->next;
    *at = l->next;
}

/* Until here it may be given up; from here on the model is there. */
static void end_load(td_loader *loader, load *l, tandem_status status, const char *why)
{
    tandem_model model = 0;
    bool given_up;

    if (status == TANDEM_OK && l->begun)
        status = td_model_load_enter(&l->reading, &model, l->message.text);
    else if (status != TANDEM_OK)
        snprintf(l->message.text, sizeof l->message.text, "%s", why);
    l->message.status = status;
    if (l->begun)
        td_model_load_end(&l->reading);
    td_fd_close(&l->fd);
    pthread_mutex_lock(&loader->lock);
    given_up = l->end.kind;
    if (!given_up)
        loader->loaded(loader->user, &l->message, model);
    remove_load(loader, l);
    pthread_mutex_unlock(&loader->lock);
    if (given_up) {
        if (model)
            tandem_model_destroy(loader->session, model);
        l->message.status = TANDEM_ERROR_LOST;
        loader->loaded(loader->user, &l->message, 0);
        loader->loaded(loader->user, &l->end, 0);
    }
    free(l);
}

/* The next in turn, which goes behind all others. */
static load *take_turn(td_loader *loader, bool *given_up)
{
    load *first, **last = &loader->loads;

    pthread_mutex_lock(&loader->lock);
    while (!loader->loads)
        pthread_cond_wait(&loader->more, &loader->lock);
    first = loader->loads;
    loader->loads = first->next;
    first->next = NULL;
    while (*last)
        last = &(*last)->next;
    *last = first;
    *given_up = first->end.kind;
    pthread_mutex_unlock(&loader->lock);
    return first;
}

static void *load_main(void *user)
{
    td_loader *loader = user;

    td_thread_name("tandemd loader");
    for (;;) {
        char why[TD_WHY_BYTES] = "";
        tandem_status status = TANDEM_ERROR_LOST;
        bool given_up;
        load *l = take_turn(loader, &given_up);

        if (loader->at)
            atomic_store(loader->at, l->message.serial);
        if (!given_up)
            status = step(loader, l, why);
        if (status != TANDEM_ERROR_BUSY)
            end_load(loader, l, status, why);
        if (loader->at)
            atomic_store(loader->at, 0);
    }
    return NULL;
}

td_loader *td_loader_start(tandem_session *session, _Atomic uint32_t *at, td_loaded loaded, void *user)
{
    td_loader *made = calloc(1, sizeof *made);
    pthread_t thread;

    if (!made)
        return NULL;
    made->session = session;
    made->at = at;
    made->loaded = loaded;
    made->user = user;
    if (!pthread_mutex_init(&made->lock, NULL) && !pthread_cond_init(&made->more, NULL) &&
        !pthread_create(&thread, NULL, load_main, made)) {
        pthread_detach(thread);
        return made;
    }
    free(made);
    return NULL;
}

bool td_loader_add(td_loader *loader, const td_worker_message *message, int fd, tandem_model model)
{
    load *made = calloc(1, sizeof *made), **last = &loader->loads;

    if (!made) {
        td_fd_close(&fd);
        return false;
    }
    made->message = *message;
    made->fd = fd;
    made->model = model;
    made->reading.file.fd = -1;
    pthread_mutex_lock(&loader->lock);
    while (*last)
        last = &(*last)->next;
    *last = made;
    pthread_cond_signal(&loader->more);
    pthread_mutex_unlock(&loader->lock);
    return true;
}

bool td_loader_end(td_loader *loader, const td_worker_message *end)
{
    bool found = false;

    pthread_mutex_lock(&loader->lock);
    for (load *l = loader->loads; l; l = l->next)
        if (!l->model && l->message.number == end->number) {
            l->end = *end;
            found = true;
        }
    pthread_mutex_unlock(&loader->lock);
    return found;
}
