/* Tandem for characters that talk: language models that answer within a game's own loop.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * One sentence: a language is a model's file on a session; a character of it is given a persona, is told something, and
 * answers token by token while it is polled.
 *
 *     tandem_language_create()   once a file: weights, vocabulary, and how dialogues are written for it
 *     tandem_npc_create()        a character, with caches of its own; weights are the language's
 *     tandem_npc_say()           what the player says, and how it may be answered
 *     tandem_npc_poll()          once a frame: never waits; what the answer gained
 *
 * There is no thread behind this. Each poll looks whether the job that the last one submitted has ended, takes a token and
 * submits the next job, so a character that is polled 60 times a second says at most 60 tokens a second, and one that is
 * not polled costs nothing. Who has nothing else to do calls tandem_npc_wait(). Give the session
 * TANDEM_CLASS_BACKGROUND where tandemd computes frames, too; there each character is a job of its own, so it needs
 * frames_in_flight for as many as talk at once.
 *
 * What was read stays in caches: a character reads what is new alone, whatever the history is set to that begins alike. Characters
 * share weights, and pages of what they have read: a persona that many have is read once, and lies there once. Those who talk at
 * the same time are computed together, as many as were polled since the last run.
 *
 * An answer is the same each time for the same history, tandem_sampling and seed, on the same device, whoever else talks. One thread at a time
 * uses a character; different ones may be used by different threads. Texts are UTF-8; whatever comes out is whole characters.
 * The session's memory must have a host's address: sessions without Vulkan have.
 */
#ifndef TANDEM_NPC_H
#define TANDEM_NPC_H

#include "tandem/tandem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_language tandem_language;
typedef struct tandem_npc tandem_npc;
typedef struct tandem_embedder tandem_embedder;

/* What a language is made from. Zero is a good default for every field but struct_bytes and path. */
typedef struct tandem_language_desc {
    uint32_t struct_bytes; /* sizeof(tandem_language_desc) */
    uint32_t context;      /* tokens that a character remembers at most; 0: as many as the model was trained for */
    const char *path;      /* a GGUF file, or a folder with tokenizer.json: see tandem_model_create() */
    const char *form;      /* of dialogues: "chatml", "gemma", "llama2", "llama3", "mistral", "mistral-v3", "phi", "phi4" or "zephyr";
                              or what goes before and behind each turn, as JSON: {"user": ["USER: ", "\n"], "reply": ["NPC: ",
                              "\n"]}, with "system", too, if need be, "opening" of a reply, "system_in_user" and "trims", true or
                              false. NULL: as the file has it, if it is known */
    uint32_t precision;    /* tandem_precision of attention, where characters have no pages in common; AUTO: f16 */
    uint32_t cache;        /* tandem_cache_format of what characters keep of each token; 0: F16 */
    /* What characters have in common: caches of so many tokens, 0: 16384, at least a context's; and so many whose last page, of up
     * to 64 tokens, is at hand, 0: 32, at most 256. There may be more characters: who has rested longest reads again what was not
     * kept. Both 0 where characters have caches of their own: see tandem_language_info.pages. */
    uint32_t tokens, slots;
    uint32_t embeds;   /* 1: it makes embeddings, too, at the cost of a small kernel a run */
    uint32_t reserved; /* 0 */
} tandem_language_desc;

/* Loads a file onto a session.
 * Returns: OK; ARG; IO if it cannot be read; PROTOCOL if it does not keep to its format; UNSUPPORTED for a model, a
 *          vocabulary or a form that is not known here; NOMEM; DEVICE. *out is NULL on failure.
 * Owner: the caller, until tandem_language_destroy(), which should come before tandem_session_destroy(): see there.
 * Threads: any.
 * Blocks: while it reads the file. */
TANDEM_API tandem_status tandem_language_create(tandem_session *session, const tandem_language_desc *desc,
                                                tandem_language **out);

/* Frees a language, and sets *language NULL.
 * Returns: OK; ARG if language or *language is NULL, or while it has characters; BUSY as tandem_model_destroy().
 * Owner: takes it back.
 * Threads: no other call with it may run or follow.
 * Blocks: for a running job. */
TANDEM_API tandem_status tandem_language_destroy(tandem_language **language);

/* What a language has. */
typedef struct tandem_language_info {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t context;      /* tokens */
    uint32_t words;        /* of the vocabulary */
    uint32_t npcs;         /* characters that live */
    char form[32];         /* of dialogues; "": it has none that is known */
    uint64_t npc_bytes;    /* of a character's caches, at most */
    uint32_t slots, pages; /* that characters have in common, pages of 64 tokens; 0: each has caches of its own, as where the
                              model's heads have neither 64 nor 128 channels */
    uint32_t pages_held;   /* by characters; one that several share is one */
    uint32_t pages_kept;   /* by nobody, but not forgotten yet: who begins alike need not read them */
    uint64_t cache_bytes;  /* of all pages and slots */
    uint64_t tokens_computed, runs; /* since the first character: tokens that went through the model, and in how many runs */
    uint32_t embedding_count;       /* numbers of an embedding; 0: it makes none */
    uint32_t reserved;
} tandem_language_info;

/* Returns: OK; ARG.
 * Owner: the caller's struct is filled.
 * Threads: any.
 * Blocks: never. */
TANDEM_API tandem_status tandem_language_get_info(tandem_language *language, tandem_language_info *info);

/* What a frame had. */
typedef struct tandem_language_spent {
    uint32_t struct_bytes;   /* set by the caller */
    uint32_t spent_us;       /* the frame before computed for so long, */
    uint32_t late_us;        /* of which so much was beyond its budget */
    uint32_t waiting;        /* characters that have something to read, their own last word, too */
    uint64_t tokens;         /* computed since the first character */
    float tokens_per_s;      /* of late: what is left over for characters */
    uint32_t reserved;
} tandem_language_spent;

/* A frame of the engine begins, which may spend budget_us on all characters of a language. From then on it is by frames that they go
 * on, and polls tell what came of it. On the CPU rung, work stands still once a frame has had its budget, in the middle of a run, and
 * goes on in the next one; where GPUs compute only as much is begun as is expected to fit, and what took longer is taken off the next
 * frames: the session must have `timing` for that. Each goes by what frames have taken so far. 0 ends it: polls begin runs again; so
 * does a second without a frame.
 * Returns: OK; ARG; UNSUPPORTED where characters have no pages in common; NOMEM; DEVICE.
 * Owner: the caller's struct is filled, unless it is NULL.
 * Threads: any, one at a time.
 * Blocks: never on the device. */
TANDEM_API tandem_status tandem_language_frame(tandem_language *language, uint32_t budget_us, tandem_language_spent *spent);

/* Who speaks a turn of a dialogue. */
typedef enum tandem_role { TANDEM_ROLE_SYSTEM = 0, TANDEM_ROLE_USER = 1, TANDEM_ROLE_NPC = 2 } tandem_role;

typedef struct tandem_turn {
    uint32_t struct_bytes;
    uint32_t role;    /* tandem_role */
    const char *text; /* never read as the model's special tokens, whatever it says */
} tandem_turn;

/* A character. Zero is a good default for every field but struct_bytes. */
typedef struct tandem_npc_desc {
    uint32_t struct_bytes; /* sizeof(tandem_npc_desc) */
    uint32_t plain;        /* 1: there are no turns: answers go on with the text that is said, as it is */
    const char *persona;   /* who it is, and what its world is like; it never leaves the context. NULL: nothing */
} tandem_npc_desc;

/* Makes a character, which has read nothing yet.
 * Returns: OK; ARG; UNSUPPORTED with turns where the language has no form, or where memory has no host's address; NOMEM;
 *          DEVICE; LOST. *out is NULL on failure.
 * Owner: the caller, until tandem_npc_destroy(), before its language is destroyed.
 * Threads: any.
 * Blocks: for the driver. */
TANDEM_API tandem_status tandem_npc_create(tandem_language *language, const tandem_npc_desc *desc, tandem_npc **out);

/* Frees a character, and sets *npc NULL.
 * Returns: OK; ARG if npc or *npc is NULL.
 * Owner: takes it back.
 * Threads: no other call with it may run or follow.
 * Blocks: for a job of its that runs. */
TANDEM_API tandem_status tandem_npc_destroy(tandem_npc **npc);

/* How tokens are drawn. All zeros: always the most likely one. Steps come in this order, each is left out where its
 * numbers are 0: bias, penalties, DRY, top k, typical p, top p, min p, XTC, temperature. */
typedef struct tandem_sampling {
    uint32_t struct_bytes; /* sizeof(tandem_sampling) */
    float temperature;     /* divides logits; 0: nothing is drawn */
    uint64_t seed;
    uint32_t top_k;                       /* the k most likely tokens stay */
    float typical_p, top_p, min_p;        /* 0 to 1 */
    float xtc_probability, xtc_threshold; /* so probably all but the least of those at least so likely are taken out */
    uint32_t penalty_last;                /* at how many tokens the three look; 0: all */
    float repetition, frequency, presence;
    float dry_multiplier, dry_base;       /* off a token that would go on with a repetition of */
    uint32_t dry_length, dry_last;        /* so many tokens, among the last so many; 0: all */
    uint32_t bias_count;                  /* of the next two: added to logits; -INFINITY: never */
    uint32_t reserved;                    /* 0 */
    const uint32_t *bias_tokens;
    const float *biases;
} tandem_sampling;

/* What is said to a character, and how it answers. Zero is a good default for every field but struct_bytes. */
typedef struct tandem_say {
    uint32_t struct_bytes;           /* sizeof(tandem_say) */
    uint32_t most_tokens;            /* of a reply; 0: 256. Never more than the context has room for */
    const char *text;                /* NULL: it answers the history as it is */
    const tandem_sampling *sampling; /* NULL: always the most likely token */
    const char *const *stops;        /* texts that end a reply, and are no part of it */
    uint32_t stop_count;
    uint32_t replies;        /* so many, one after the other, of which one is chosen; 0: 1; at most 16 */
    const char *grammar;     /* what a reply must be, in GBNF; NULL: */
    const char *json_schema; /* or JSON of this schema; NULL: any text. With both a rule of the grammar, `json`, is that JSON, as in
                                "root ::= [^{]+ json", who speaks and then acts; names of further rules are in npc/schema.h */
    /* Called by tandem_npc_poll() and _wait() with what a reply gained, as they return it; it may call tandem_npc_cancel()
     * and nothing else of this character. */
    void (*on_text)(void *user, uint32_t reply, const char *text, size_t bytes);
    void *user;
    uint32_t logprobs;     /* 1: how likely each token was is kept: see tandem_npc_get_token(); */
    uint32_t top_logprobs; /* and as many of the likeliest in its place; at most 20 */
} tandem_say;

/* Adds a turn of the player's to the history, and begins to answer. Where history and reply have no room in the context, the
 * oldest turns are forgotten, half of the context at once, but never the persona, nor the system's turns that come first.
 * Returns: OK; ARG, also for a grammar or a schema that is wrong, with the place, and for a text alone that has no room;
 *          UNSUPPORTED for what a schema asks that is not known here; BUSY while it answers; NOMEM.
 * Owner: what `say` points to is copied.
 * Threads: one at a time for this character.
 * Blocks: never on the device; for a text's tokens and a grammar, microseconds to some ms. */
TANDEM_API tandem_status tandem_npc_say(tandem_npc *npc, const tandem_say *say);

typedef enum tandem_npc_state {
    TANDEM_NPC_IDLE = 0,    /* nothing is asked of it */
    TANDEM_NPC_READING = 1, /* what it has not read yet */
    TANDEM_NPC_TALKING = 2
} tandem_npc_state;

/* Why a reply ended. */
typedef enum tandem_reply_end {
    TANDEM_REPLY_OPEN = 0,     /* it has not */
    TANDEM_REPLY_ENDED = 1,    /* the model was through, or the grammar was */
    TANDEM_REPLY_STOPPED = 2,  /* one of the stops came */
    TANDEM_REPLY_FULL = 3,     /* it has most_tokens, or the context is full */
    TANDEM_REPLY_CANCELLED = 4,
    TANDEM_REPLY_FAILED = 5    /* the device did */
} tandem_reply_end;

typedef struct tandem_npc_news {
    uint32_t struct_bytes;  /* set by the caller */
    uint32_t state;         /* tandem_npc_state */
    uint32_t reply;         /* which of the replies */
    uint32_t end;           /* tandem_reply_end of that reply, in the news that have its last text */
    const char *text;       /* what the reply gained since the last news; with a 0 behind it; until the next call */
    uint64_t text_bytes;
    uint32_t prompt_tokens; /* of all that comes before the reply; */
    uint32_t read_tokens;   /* of these, those that were not in its caches */
    uint32_t reply_tokens;
    uint32_t forgotten;     /* turns, since its history was set */
} tandem_npc_news;

/* Goes on as far as it can without waiting, at most by a token.
 * Returns: OK, with or without news; ARG; UNSUPPORTED if a grammar can be read in too many ways at once; NOMEM; DEVICE or LOST:
 *          the reply is over then, as FAILED, and the character IDLE.
 * Owner: the caller's struct is filled; its text is the character's.
 * Threads: one at a time for this character.
 * Blocks: never on the device; the first time for some numbers of tokens, to plan. */
TANDEM_API tandem_status tandem_npc_poll(tandem_npc *npc, tandem_npc_news *news);

/* The same, but waits for news: more text, or an end.
 * Returns: as tandem_npc_poll(); BUSY when timeout_ns has passed, with news that have no text.
 * Owner, threads: as tandem_npc_poll().
 * Blocks: at most timeout_ns; not at all while the character is IDLE. */
TANDEM_API tandem_status tandem_npc_wait(tandem_npc *npc, uint64_t timeout_ns, tandem_npc_news *news);

/* Ends an answer where it is: no further token comes of it, and what was said stays in the history. Replies that have not
 * begun never will. Of an IDLE character nothing is ended.
 * Returns: OK; ARG.
 * Owner: nothing.
 * Threads: one at a time for this character.
 * Blocks: for microseconds. */
TANDEM_API tandem_status tandem_npc_cancel(tandem_npc *npc);

/* One of the replies to what was said last. */
typedef struct tandem_npc_reply {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t end;          /* tandem_reply_end */
    const char *text;      /* until the next tandem_npc_say(), or a history is set */
    uint64_t text_bytes;
    uint32_t tokens;
    /* The mean of the logarithm of how likely its tokens were: the nearer to 0, the surer the model was. 0 where there is
     * but one reply. */
    float score;
} tandem_npc_reply;

/* Reply `index`, which has begun.
 * Returns: OK; ARG.
 * Owner: the caller's struct is filled; its text is the character's.
 * Threads: one at a time for this character.
 * Blocks: never. */
TANDEM_API tandem_status tandem_npc_get_reply(tandem_npc *npc, uint32_t index, tandem_npc_reply *reply);

/* A token, and how likely it was. */
typedef struct tandem_token_logprob {
    uint32_t token;
    float logprob;       /* the logarithm of its probability */
    const char *text;    /* what it stands for, maybe a part of a character; the name of a special one; no 0 behind it */
    uint64_t text_bytes;
} tandem_token_logprob;

typedef struct tandem_npc_token {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t top_count;
    tandem_token_logprob is;
    const tandem_token_logprob *top; /* the likeliest in its place, in their order, itself too if it is among them; until this
                                        function is called again */
    uint64_t text_offset;            /* where in the reply's text its own begins; at or behind the end of a reply that a stop has
                                        ended: it is a part of that, and in no text */
} tandem_npc_token;

/* Token `index` of reply `reply`, which was said with logprobs. Probabilities are the model's own: the softmax of its logits, before
 * sampling or a grammar have changed any. All that tandem_npc_news.reply_tokens counts are there; the one that ends a turn is none.
 * Returns: OK; ARG.
 * Owner: the caller's struct is filled; texts are the language's.
 * Threads: one at a time for this character.
 * Blocks: never. */
TANDEM_API tandem_status tandem_npc_get_token(tandem_npc *npc, uint32_t reply, uint32_t index, tandem_npc_token *token);

/* Of several replies, the one that was said: it goes into the history in place of the one with the best score, which is
 * there once the last has ended.
 * Returns: OK; ARG; BUSY while it answers.
 * Owner: nothing.
 * Threads: one at a time for this character.
 * Blocks: never. */
TANDEM_API tandem_status tandem_npc_choose(tandem_npc *npc, uint32_t index);

/* Puts turns in place of the history, of which the persona is no part: as of a saved game.
 * Returns: OK; ARG; BUSY while it answers; NOMEM.
 * Owner: turns are copied.
 * Threads: one at a time for this character.
 * Blocks: never. */
TANDEM_API tandem_status tandem_npc_set_history(tandem_npc *npc, const tandem_turn *turns, uint32_t count);

/* Fills at most *count turns of the history, and sets *count to how many there are; turns may be NULL.
 * Returns: OK; ARG; BUSY if *count was too small.
 * Owner: the caller's array; its texts are the character's, until the history changes.
 * Threads: one at a time for this character.
 * Blocks: never. */
TANDEM_API tandem_status tandem_npc_get_history(tandem_npc *npc, uint32_t *count, tandem_turn *turns);

/* Writes a character as bytes, as for a saved game: its history, and what its caches have of it, but for the persona's own
 * pages. *bytes is how many `to` has room for, and then how many there are; to: NULL, to be told that alone.
 * Returns: OK; ARG; BUSY if *bytes was too small, or while it answers; UNSUPPORTED where the host cannot see caches
 *          that are in this process; NOMEM; DEVICE; LOST where tandemd's worker ended meanwhile, with what was read: saved again,
 *          it is the history alone. That is also all where tandemd is too old to let its caches be seen, or where characters have
 *          no pages in common.
 * Owner: the caller's bytes.
 * Threads: one at a time for this character.
 * Blocks: for a run of its language that is under way, and while caches are copied. */
TANDEM_API tandem_status tandem_npc_save(tandem_npc *npc, void *to, uint64_t *bytes);

/* Makes a character what it was when it was saved, in this process or another. It must be of the same model and persona, plain or
 * not, and its language's caches of the same format. What it had read then it does not read again, but for the persona, unless
 * others have read that; where characters have no pages in common, or tandemd is too old to be given caches, it reads all again. Bytes
 * may come from anywhere: they are checked, a checksum finds damage, and no other character is ever given what they say.
 * Returns: OK; ARG, also for bytes of another model, persona or format of caches; PROTOCOL for bytes that are none, damaged, or of
 *          a version that is not known here, saying what is wrong; BUSY while it answers; NOMEM. Where it fails nothing has changed.
 * Owner: bytes are copied.
 * Threads: one at a time for this character.
 * Blocks: while bytes are copied. */
TANDEM_API tandem_status tandem_npc_restore(tandem_npc *npc, const void *from, uint64_t bytes);

/* --- Embeddings, to search what characters remember --- */

/* A text as a vector: of two texts that are about the same, the product of their vectors (the sum of products of their numbers, from
 * -1 to 1) is larger than of others. The language model itself makes it, so that it is as good as the model is: it reads
 *
 *     This sentence: "TEXT" means in one word: "
 *
 * and what its last norm gives for the last token, from which it would say that word, less the same for no text at all, is brought to
 * length 1. Models that were trained to embed want something else around a text, of which nothing is taken off: see the description.
 * Vectors of different models have nothing to do with each other.
 *
 * An embedder makes them, one after the other, as a character reads: by polls, with the same pages, slots and frame budget, in the
 * same runs as the others, whose answers do not change by it; a text has the same bits each time, as answers have. */

/* An embedder. Zero is a good default for every field but struct_bytes. */
typedef struct tandem_embedder_desc {
    uint32_t struct_bytes;       /* sizeof(tandem_embedder_desc) */
    uint32_t reserved;           /* 0 */
    const char *before, *behind; /* a text, with names of special tokens, as "<|endoftext|>"; both NULL: what is said above */
} tandem_embedder_desc;

/* Of a language that was created with desc.embeds.
 * Returns: OK; ARG; UNSUPPORTED where it was not; NOMEM; DEVICE; LOST. *out is NULL on failure.
 * Owner: the caller, until tandem_embedder_destroy(), before its language is destroyed.
 * Threads: any.
 * Blocks: for the driver. */
TANDEM_API tandem_status tandem_embedder_create(tandem_language *language, const tandem_embedder_desc *desc,
                                                tandem_embedder **out);

/* Frees an embedder, and sets *embedder NULL.
 * Returns: OK; ARG if embedder or *embedder is NULL.
 * Owner: takes it back.
 * Threads: no other call with it may run or follow.
 * Blocks: for a job of its that runs. */
TANDEM_API tandem_status tandem_embedder_destroy(tandem_embedder **embedder);

/* Takes a text to be embedded. One that it had not ended is given up. NULL: nothing follows.
 * Returns: OK; ARG for a text that is empty, or has more tokens than the context, with how many; NOMEM.
 * Owner: the text is copied.
 * Threads: one at a time for this embedder.
 * Blocks: never on the device; for a text's tokens, microseconds. */
TANDEM_API tandem_status tandem_embedder_begin(tandem_embedder *embedder, const char *text);

/* An embedding, once it is there. */
typedef struct tandem_embedding {
    uint32_t struct_bytes; /* set by the caller */
    uint32_t ready;        /* 1: it is there; until then all that follows is 0 */
    const float *values;   /* until the next tandem_embedder_begin() */
    uint32_t count;        /* of these: tandem_language_info.embedding_count */
    uint32_t tokens;       /* of the text, without what stands around it */
} tandem_embedding;

/* Goes on as far as it can without waiting.
 * Returns: OK, whether it is ready or not; ARG; NOMEM; DEVICE or LOST: the text is given up then.
 * Owner: the caller's struct is filled; its values are the embedder's.
 * Threads: one at a time for this embedder.
 * Blocks: never on the device; the first time for some numbers of tokens, to plan. */
TANDEM_API tandem_status tandem_embedder_poll(tandem_embedder *embedder, tandem_embedding *embedding);

/* The same, but waits until it is ready.
 * Returns: as tandem_embedder_poll(); BUSY when timeout_ns has passed.
 * Owner, threads: as tandem_embedder_poll().
 * Blocks: at most timeout_ns; not at all where nothing was begun. */
TANDEM_API tandem_status tandem_embedder_wait(tandem_embedder *embedder, uint64_t timeout_ns, tandem_embedding *embedding);

#ifdef __cplusplus
}
#endif
#endif
