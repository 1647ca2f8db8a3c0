/* `tandem serve`: an endpoint that speaks the HTTP of OpenAI's, on characters of one language.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   main.c      options, and how it begins and ends
 *   http.c      connections: what is asked, by whom, and how answers leave
 *   slots.c     characters, and whose turn it is
 *   exchange.c  what goes from one to the other
 *   messages.c  those of a chat
 *   tools.c     functions that an answer may call
 *   calls.c     calls in what is said
 *   logprobs.c  how likely tokens were
 *   embed.c     texts that become vectors
 *   read.c      members of JSON, checked
 *   ask.c       a request's JSON, by these
 *   tell.c      an answer's JSON
 *   text.c      texts that grow
 *
 * Two threads: libmicrohttpd's has the connections, the other one the characters. What is between
 * them are exchanges, under one lock: a connection whose answer is not there yet is suspended.
 */
#ifndef TD_SERVE_H
#define TD_SERVE_H

#include <jansson.h>
#include <microhttpd.h>

#include "engine_plugin/tool/session.h"
#include "interop/base.h"
#include "interop/os/clock.h"
#include "interop/os/thread.h"
#include "tandem/npc.h"

enum {
    SERVE_BODY_BYTES = 1 << 20,   /* of a request, at most */
    SERVE_BEHIND_BYTES = 4 << 20, /* of a stream, that its client has not read */
    SERVE_WHY_BYTES = 600
};

typedef struct serve_options {
    const char *model, *listen, *token; /* token: NULL, none is asked for */
    uint16_t port;
    uint32_t slots, queue, connections, timeout_s, context;
} serve_options;

/* As models write a call, its JSON on a line of its own. */
#define SERVE_CALL_BEGINS "<tool_call>"
#define SERVE_CALL_ENDS "</tool_call>"
enum { SERVE_ID_BYTES = 40 };

/* Grows as it is written to. */
typedef struct serve_text {
    char *text;
    size_t bytes, room;
} serve_text;

/* text.c */
void serve_put(serve_text *to, const char *text, size_t bytes);
void serve_put_json(serve_text *to, json_t *json); /* which it takes */

/* --- What is asked --- */

typedef enum serve_kind {
    SERVE_TEXT, /* that is to be gone on with */
    SERVE_CHAT,
    SERVE_EMBED
} serve_kind;

/* An argument of the library's that a member of the request becomes. Both are literals. */
typedef struct serve_origin {
    const char *argument, *member;
} serve_origin;
enum { SERVE_ORIGINS = 24 };

typedef struct serve_ask {
    json_t *root; /* which texts are in */
    serve_origin origins[SERVE_ORIGINS];
    uint32_t origin_count;
    serve_kind kind;
    bool stream, usage;
    char param[64];      /* which member is wrong; "": no certain one */
    const char *user;    /* whose slot it is to be; NULL: any */
    const char **inputs; /* to be embedded */
    uint32_t input_count;
    bool base64;         /* so are vectors written */
    uint32_t dimensions; /* of these; 0: as many as there are */
    const char *prompt;
    tandem_turn *turns;
    uint32_t turn_count;
    tandem_sampling sampling;
    const char **stops;
    uint32_t *bias_tokens;
    float *biases;
    char *schema;                   /* as a text */
    serve_text grammar, told_tools; /* of functions: what a reply is, and what is said of them */
    bool calls;                     /* they may be called */
    json_t *texts;                  /* that are not in `root` as they are */
    tandem_say say;
} serve_ask;

/* From a request's body. False, and why. *ask is to be freed in any case. */
bool serve_ask_read(serve_ask *ask, serve_kind kind, const char *body, size_t bytes, char *why,
                    size_t why_bytes);
void serve_ask_free(serve_ask *ask);

/* read.c */
typedef struct serve_reader {
    serve_ask *ask;
    char *why;
    size_t why_bytes;
    bool ok; /* once it is not, nothing more is read */
} serve_reader;

/* Where `name`, a member of the request, is wrong: what it is, and what it must be. No memory for
 * what a member needs. The first refusal is the one that is told. */
void serve_refuse(serve_reader *r, const char *name, const json_t *value, const char *must, ...)
    __attribute__((format(printf, 4, 5)));
void serve_refuse_memory(serve_reader *r, const char *name);
/* What is made of `name` is what the library calls `argument`, whatever was so before. name_member:
 * in a refusal of the library's that begins with an argument the member takes its place, and is
 * what is wrong. */
void serve_becomes(serve_reader *r, const char *name, const char *argument);
void serve_name_member(serve_ask *ask, char *why, size_t why_bytes);
/* NULL: it is not there, or null. */
json_t *serve_member(const serve_reader *r, const char *name);
float serve_read_number(serve_reader *r, const char *name, float otherwise, double least,
                        double most);
uint32_t serve_read_count(serve_reader *r, const char *name, uint32_t otherwise, uint32_t least,
                          uint32_t most);
bool serve_read_flag(serve_reader *r, const char *name, bool otherwise);
const char *serve_read_text(serve_reader *r, const char *name);

/* tools.c: behind response_format; messages.c: behind tools; embed.c; logprobs.c: behind all else
 * that `say` has. */
void serve_read_tools(serve_reader *r);
void serve_read_messages(serve_reader *r);
void serve_read_embed(serve_reader *r);
void serve_read_logprobs(serve_reader *r);

/* --- What is answered --- */

/* Where a reply is that may have calls. Begins as zeros; freed by serve_calls_begin(). */
typedef struct serve_calls {
    serve_text held; /* what is not known yet to be text or a call */
    char id[SERVE_ID_BYTES];
    uint32_t reply, count; /* count: of calls that have begun */
    int state, depth;
    bool in_string, escaped;
} serve_calls;

/* What came of some text of it. */
typedef struct serve_said {
    serve_text content;
    json_t *calls; /* [{index, id, type, function: {name, arguments}}], of one that goes on index
                      and arguments alone */
} serve_said;

/* id: the answer's, of which those of calls are made. add: the reply goes on, or ends with that. */
void serve_calls_begin(serve_calls *c, const char *id, uint32_t reply);
void serve_calls_add(serve_calls *c, const char *text, size_t bytes, bool ends, serve_said *to);
void serve_said_free(serve_said *said);

/* How much of a stream's reply. */
typedef struct serve_told {
    bool begun;
    uint32_t reply, tokens;
    serve_calls calls;
} serve_told;

typedef struct exchange {
    struct MHD_Connection *connection; /* NULL: it is gone */
    bool suspended;
    bool asked; /* what follows is in use */
    serve_text body;
    serve_ask ask;
    unsigned status; /* of HTTP; 0: not known yet */
    serve_text out;
    size_t sent;
    uint32_t embedded, tokens; /* inputs so far */
    serve_told told;
    bool done;      /* nothing will be added to `out` */
    uint32_t users; /* connection, queue or slot */
    char id[SERVE_ID_BYTES];
    int64_t created;
    struct exchange *next; /* in the queue */
} exchange;

/* An error as OpenAI's are. param: NULL or "", none. */
void serve_tell_error(serve_text *to, unsigned status, const char *what, const char *param);
/* All of an answer: its replies, of which there are so many. */
void serve_tell_whole(exchange *e, const char *model, tandem_npc *npc, uint32_t replies,
                      const tandem_npc_news *last);
/* More of a stream: a reply's text, or its end. */
void serve_tell_part(exchange *e, const char *model, tandem_npc *npc, const tandem_npc_news *news);
/* A stream's end. */
void serve_tell_end(exchange *e, const char *model, const tandem_npc_news *last, uint32_t tokens);
/* logprobs.c: of a reply's tokens from *from on those whose text is shown, behind which it is then;
 * null where it was not asked. */
json_t *serve_logprobs(const exchange *e, tandem_npc *npc, uint32_t index, uint32_t *from);
void serve_tell_models(serve_text *to, const char *model, int64_t created);
void serve_tell_model(serve_text *to, const char *model, int64_t created);
/* embed.c: one more input's vector; and what comes behind the last one. */
void serve_tell_embedding(exchange *e, const tandem_embedding *embedding);
void serve_tell_embedded(exchange *e, const char *model);

/* --- The server --- */

typedef struct serve_counts {
    uint64_t requests, refused, answered, cancelled, failed;
    uint64_t prompt_tokens, read_tokens, reply_tokens, embedded, embedded_tokens;
} serve_counts;

typedef struct slot {
    tandem_npc *npc; /* NULL: not made yet */
    bool chat;
    char user[64]; /* the last one's; "": nobody's */
    uint64_t used; /* when, in turns */
    exchange *exchange;
    uint32_t tokens;         /* of replies that have ended */
    uint32_t reply, counted; /* the one that is made; its tokens that are in the counts */
} slot;

typedef struct server {
    serve_options options;
    tandem_session *session;
    tool_engine *engine; /* that it stands on */
    tandem_language *language;
    char model[128]; /* its name */
    int64_t begun;
    uint32_t instance; /* in names of answers, which no other server gives */

    pthread_mutex_t lock;
    pthread_cond_t work;
    exchange *queue;
    uint32_t queued, asked; /* asked: whose connection waits for an answer, or has one coming */
    uint64_t numbers;       /* of exchanges that were begun */
    bool stopping;
    serve_counts counts;

    slot *slots;
    uint64_t turns;
    tandem_embedder *embedder; /* NULL: not made yet */
    exchange *embeds;          /* what it is for now */
    bool lacks_embeddings;     /* where a tandemd computes that is too old for them */
    pthread_t thread;
    struct MHD_Daemon *daemon;
} server;

/* http.c. False after a line that says why not; *port is what it listens on. */
bool serve_http_begin(server *s, uint16_t *port);
void serve_http_end(server *s);

/* exchange.c, all with the lock. suspend: until it is woken nothing is done for its connection.
 * gone: its client reads no more. release: one of its users has no more use for it. */
void serve_suspend_locked(exchange *e);
void serve_wake_locked(exchange *e);
bool serve_is_gone_locked(const exchange *e);
void serve_release_locked(exchange *e);

/* slots.c. False where there is no memory or no thread. */
bool serve_slots_begin(server *s);
/* Ends what goes on, and the thread. */
void serve_slots_end(server *s);
/* False: the queue is full. */
bool serve_enqueue_locked(server *s, exchange *e);
uint32_t serve_busy_locked(const server *s);

#endif
