/* Networks: graphs of models, and instances of them with what is prepared for runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 *   network.c    a model's graph: where its weights lie, and what callers ask about it
 *   instance.c   instances, and what they have for some numbers: program, uniforms, scratch
 *   run.c        a job that runs one
 *   prepared.c   what is prepared: programs, uniforms, scratch
 *   layers.c     layers that are sampled, and runs that do so
 *   judge.c      how good layers are, and which precision they have next
 *
 * What tandemd's worker has besides is in worker_networks.c, and what a session of tandemd's has in
 * remote_networks.c.
 *
 * A job of a network has the views of its program's plan: weights, state and uniforms, whose mems
 * are the session's own, then the caller's bindings. A mem in use stands for what it belongs to:
 * the model, the instance, what was prepared.
 */
#ifndef TANDEM_CLIENT_NETWORK_H
#define TANDEM_CLIENT_NETWORK_H

#include "engine_plugin/client/client.h"
#include "engine_plugin/run/quality.h"
#include "kernels/graph.h"

enum { TD_PREPARED = 8, TD_BINDING_NAME_BYTES = 80 };

/* A model's graph, from its load to its end. */
struct td_network {
    td_graph *graph;
    td_program_tensor *tensors; /* the graph's, of which weights and state are known */
    uint64_t weight_bytes, state_bytes;
    uint32_t binding_count, uniform_count;
    char binding_names[TD_GRAPH_BINDINGS][TD_BINDING_NAME_BYTES]; /* as texts call them */
};

/* What is known of a layer since it was prepared, or since its precision changed: sums over `count` samples. */
typedef struct td_layer {
    double cosine, relative_l1, similarity[TD_SAMPLES]; /* by tandem_precision */
    double worst;                                       /* the least similarity of a head */
    uint32_t worst_head, measured /* a bit each: which precisions */, count, changes;
} td_layer;

typedef enum td_layers_stage {
    TD_LAYERS_IDLE = 0,
    TD_LAYERS_UNDER_WAY = 1, /* a run with samples was submitted, */
    TD_LAYERS_THERE = 2,     /* and is done; */
    TD_LAYERS_AT_WORK = 3    /* the thread looks at them, which has all that follows but for runs and times */
} td_layers_stage;

/* Layers that are sampled, of what an instance has for some numbers. */
enum { TD_LAYERS_TIMES = 15 };
typedef struct td_layers {
    td_layers_stage stage;
    uint32_t count, node_count;
    uint32_t every, runs; /* one run in so many; since the last one */
    double us[TD_LAYERS_TIMES]; /* that others took lately */
    uint32_t us_count;
    td_mem *mem;                  /* where samples go */
    td_layer *layers, *drafts;    /* what callers are told, and what it is going to be */
    td_layer_sample *samples;
    td_quality quality;
    uint8_t *precisions; /* of each node of the graph */
} td_layers;

/* What an instance has for some numbers. Where tandemd computes, the program is what checks go by. */
struct td_prepared {
    const td_program *program; /* NULL: nothing */
    const td_program *sampled; /* the same with samples of its layers, or NULL */
    td_layers *layers;         /* these; NULL: none is sampled */
    uint32_t numbers[TD_GRAPH_NUMBERS];
    uint64_t used;    /* when last, by the instance's count */
    bool recorded;    /* in commands that the engine may submit again: stays with the instance */
    bool forgotten;   /* by tandemd, which computes: of no use to runs any more */
    td_mem *uniforms; /* a copy for each slot, slot_bytes each */
    uint64_t slot_bytes;
    uint64_t uniform_bytes; /* that a run brings */
    tandem_prepared as;     /* what tandem_model_prepared() says */
};

struct td_instance {
    td_object object;
    td_model *model;
    td_mem *state; /* with at least a byte: there, too, where the network has none */
    tandem_instance_desc desc;
    uint8_t *precisions; /* of each node, by its plan; NULL: it has none */
    uint32_t node_count; /* of the model's graph, which may be gone before precisions are freed */
    uint64_t remote_id; /* what it is in the daemon, */
    uint32_t connection, worker; /* as long as these last */
    td_prepared prepared[TD_PREPARED];
    uint64_t uses; /* how often one was prepared, or a run of one is DONE */
    td_pace pace; /* of its runs, where a CPU computes them */
};

/* network.c. make: of a graph, which it takes; *graph is NULL then. read: of a file that has a
 * graph, else *out is NULL; PROTOCOL, saying where it is wrong. weight: where a tensor of the
 * file's lies in the model's mem, if it is one of the graph's weights. */
tandem_status td_network_make(tandem_session *s, td_graph **graph, td_network **out, char *why);
tandem_status td_network_read(tandem_session *s, const td_safetensors *file, td_network **out,
                              char *why);
void td_network_free(tandem_session *s, td_network *network);
bool td_network_weight(const td_network *network, const char *name, uint64_t *offset);
/* ARG, beginning with `where` (as "run."), unless these are numbers of the network, as many as it
 * has. */
tandem_status td_network_check_numbers(const td_network *network, const uint32_t *numbers,
                                       uint32_t count, const char *where, char *why);
/* A live model that has a network; NULL and the status otherwise. */
td_model *td_network_find_locked(tandem_session *s, tandem_model model, tandem_status *status,
                                 char *why);

/* A plan of precisions as it comes over the wire; NULL: there is none. */
struct td_wire_layers;

/* instance.c. make: as tandem_model_instance(). find: NULL and the reason, naming `what`. check: LOST, likewise. find_prepared: NULL
 * where these numbers are not, or not any more; then the reason is not_prepared. */
tandem_status td_instance_make(tandem_session *s, tandem_model model, const tandem_instance_desc *desc,
                               const struct td_wire_layers *plan, tandem_instance *out, char *why);
td_instance *td_instance_find_locked(tandem_session *s, tandem_instance instance, const char *what,
                                     char *why);
tandem_status td_instance_check_locked(const tandem_session *s, const td_instance *instance,
                                       const char *what, char *why);
td_prepared *td_instance_find_prepared(td_instance *instance, const uint32_t *numbers);
tandem_status td_instance_not_prepared(const td_instance *instance, const uint32_t *numbers,
                                       const char *where, char *why);
/* As tandem_model_prepare(). All that is prepared for the instance takes no more than `most_bytes`;
 * NOMEM otherwise. */
tandem_status td_instance_prepare(tandem_session *s, tandem_instance instance,
                                  const uint32_t *numbers, uint32_t number_count,
                                  uint64_t most_bytes, char *why);
/* prepared.c. make: all of it, for numbers that the network can have; what a failure leaves in *made is the caller's to free.
 * replan: programs as prepared->layers want them, in *made; and in the place of the old ones, which are in *made then. */
tandem_status td_instance_make_prepared(tandem_session *s, td_instance *instance, const uint32_t *numbers, td_prepared *made,
                                        char *why);
tandem_status td_instance_replan(tandem_session *s, const td_instance *instance, const td_prepared *prepared,
                                 td_prepared *made, char *why);
void td_prepared_swap_locked(td_prepared *prepared, td_prepared *made);
/* What it holds: memory of the host's, too. */
uint64_t td_prepared_bytes(const td_prepared *prepared);
/* The uniforms of each slot of the session's. */
tandem_status td_prepared_make_uniforms(tandem_session *s, td_prepared *prepared, char *why);
/* Whose model is destroyed: one each call, which nobody finds any more; NULL: there is none. free:
 * of one that no job uses; not locked. */
td_instance *td_instance_take_locked(tandem_session *s, const td_model *model);
void td_instance_free(tandem_session *s, td_instance *instance);
/* The same of one that was the session's: who computes is told. */
void td_instance_end(tandem_session *s, td_instance *instance);

/* instance_state.c. Bytes of tensors that an instance keeps, to or from the host's memory, while no
 * run of it is under way: BUSY where tandemd has one. ARG where a tensor has no such bytes; UNSUPPORTED
 * where the host cannot see them; LOST. no_copies: why they are copied of no instance; NULL: they are. */
typedef struct td_state_copy {
    const char *tensor;
    uint64_t offset, bytes;
    void *host;
    uint64_t at; /* where in the instance's state that is: td_instance_copy() finds it */
} td_state_copy;
tandem_status td_instance_copy(tandem_session *s, tandem_instance instance, td_state_copy *copies,
                               uint32_t count, bool to_instance, char *why);
const char *td_instance_no_copies(tandem_session *s);

/* Runs of an instance are computed until then, and stand still from then on; 0: at any time again.
 * seen_ns: when one was computed last. False: nothing here can stand still. */
bool td_instance_pace(tandem_session *s, tandem_instance instance, uint64_t until_ns, uint64_t *seen_ns);

/* run.c. bind: what a run names becomes the job's, its program the job's plan; the uniforms of slot
 * `slot` are its own. take: the values of its uniforms go there. note: it is in the engine's
 * commands. */
tandem_status td_run_bind_locked(tandem_session *s, td_job *job, uint32_t slot,
                                 const tandem_run *run, char *why);
void td_run_take_uniforms_locked(td_job *job, const tandem_run *run);
void td_run_note_recorded_locked(tandem_session *s, const tandem_run *run);

/* layers.c. samples: whether an instance is to; rows: of each head, 0: none. check_desc: of what is said of that. */
bool td_instance_samples(const tandem_instance_desc *desc);
uint32_t td_instance_sample_rows(const tandem_instance_desc *desc);
tandem_status td_layers_check_desc(tandem_session *s, const tandem_instance_desc *desc, char *why);
/* free: accepts NULL; not locked. */
tandem_status td_layers_make(tandem_session *s, const td_instance *instance, const td_program *sampled, td_layers **out,
                             char *why);
void td_layers_free(tandem_session *s, td_layers *layers);
/* Whether the next run is one with samples. */
bool td_layers_sample_next_locked(const td_prepared *prepared);
/* judge.c. The thread that looks at samples; stop accepts a session without one. */
tandem_status td_judge_start(tandem_session *s, char *why);

/* Those of td_backend_local that are here, in instance.c and instance_state.c. */
tandem_status td_local_instance_make(tandem_session *s, td_instance *instance, char *why);
tandem_status td_local_prepare(tandem_session *s, td_instance *instance, td_prepared *prepared,
                               char *why);
tandem_status td_local_state_copy(tandem_session *s, const td_instance *instance, const struct td_state_copy *copies,
                                  uint32_t count, bool to_instance, char *why);
bool td_local_instance_is_lost_locked(const tandem_session *s, const td_instance *instance);

#endif
