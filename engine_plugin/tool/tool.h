/* What the parts of the `tandem` command share.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef TD_TOOL_H
#define TD_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "interop/os/clock.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/tuning.h"
#include "kernels/target.h"

enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* What main() is. */
int tool_main(int argc, char **argv);

/* One line on stderr, "tandem COMMAND: ..."; each returns its exit status. Control characters are shown as '?'. */
int tool_usage(const char *command, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));
int tool_fail(const char *command, const char *format, ...) __attribute__((format(TD_PRINTF, 2, 3)));

/* One option of a command. `value`: NULL for a switch. */
typedef struct tool_option {
    const char *name;   /* with its dashes; "": the argument that is no option */
    const char **value; /* where the value goes; NULL: a switch */
    bool *given;        /* set for switches */
} tool_option;

/* Reads `--name value`, `--name=value`, switches, and the argument that is none of those. Returns TOOL_OK, or TOOL_USAGE
 * after a line that names what is wrong. */
int tool_parse(const char *command, int argc, char **argv, const tool_option *options, size_t count);

/* Index of `value` in a NULL-terminated list; -1 if it is not there. */
int tool_word(const char *value, const char *const *words);
/* Checks an option's comma-separated list. Returns TOOL_OK, or TOOL_USAGE after a line that names the word that is none of
 * `words`, or is there twice. */
int tool_words(const char *command, const char *option, const char *list, const char *const *words);
/* Whether a comma-separated list has that word. NULL has them all. */
bool tool_has(const char *list, const char *word);
bool tool_number(const char *value, uint64_t least, uint64_t most, uint64_t *out);
/* A decimal number, whatever the locale. NULL: *out stays. */
bool tool_decimal(const char *value, double least, double most, double *out);

/* JSON on stdout: a quoted string, with everything escaped that has to be. */
void tool_json_string(const char *text);

/* A tensor to be written. `dtype` as safetensors spells it; `data` is the list's own. */
typedef struct tool_tensor {
    const char *name, *dtype;
    uint32_t rank;
    uint64_t shape[4], bytes;
    void *data;
} tool_tensor;

enum { TOOL_TENSORS = 64, TOOL_PAIRS = 24 };
typedef struct tool_list {
    uint32_t count;
    tool_tensor tensors[TOOL_TENSORS];
    uint32_t pair_count;
    char keys[TOOL_PAIRS][32], values[TOOL_PAIRS][256]; /* metadata */
} tool_list;

/* Adds a tensor of that shape, uninitialised. NULL when memory is short. */
void *tool_add(tool_list *list, const char *name, const char *dtype, uint32_t rank, uint64_t a, uint64_t b, uint64_t c,
               uint64_t d);
void tool_pair(tool_list *list, const char *key, const char *format, ...) __attribute__((format(TD_PRINTF, 3, 4)));
void tool_list_free(tool_list *list);

/* A tensor of a file that was opened; `data` lives as long as the file. */
typedef struct tool_input {
    uint32_t dtype, rank; /* tandem_dtype */
    uint64_t shape[4];
    const void *data;
} tool_input;
typedef struct tool_file tool_file;

/* NULL, and the reason in `why`, if the file cannot be read or does not keep to its format. */
tool_file *tool_open(const char *path, char *why, size_t why_bytes);
/* False, and the reason, if there is no such tensor, or it is not F16, BF16 or F32 of rank 4. */
bool tool_find(tool_file *file, const char *name, tool_input *out, char *why, size_t why_bytes);
void tool_close(tool_file *file);
/* Before the work: could the result be written there? False, and the reason, which names the option, if not. */
bool tool_can_save(const char *option, const char *path, char *why, size_t why_bytes);
/* The same of a file that is written in place, which may be a pipe or a device. */
bool tool_can_write(const char *option, const char *path, char *why, size_t why_bytes);
/* Writes under a temporary name beside `path`, then renames. */
bool tool_save(const char *path, const tool_list *list, char *why, size_t why_bytes);

/* False, and the reason, where the plan's kernel reads Q, K and V as they are, so that nothing is in its scratch. */
bool tool_has_codes(const td_plan *plan, const td_attention_layout *layout, char *why, size_t why_bytes);
/* Adds the arrays that a plan left in its scratch (`scratch`: a copy on the host) and the metadata that names the
 * arithmetic. False when memory is short. */
bool tool_codes(const tandem_attention *op, const td_plan *plan, const td_attention_layout *layout,
                const unsigned char *scratch, tool_list *out);
/* Metadata that goes with any result of a plan: precision, smoothing, granularity. */
void tool_arithmetic(const tandem_attention *op, const td_plan *plan, const td_attention_layout *layout,
                     tool_list *out);

/* A plan on the first CUDA device. */
typedef struct tool_cuda tool_cuda;
typedef struct tool_ran {
    td_plan plan;
    td_attention_layout layout;
    double ms; /* the kernels alone, where the device measured them */
} tool_ran;
/* NULL, and the reason, if there is none that can be used. */
tool_cuda *tool_cuda_open(char *why, size_t why_bytes);
const char *tool_cuda_name(const tool_cuda *cuda);
uint32_t tool_cuda_sm(const tool_cuda *cuda);
/* Runs `op`, whose views are dense and begin at 0, on copies of host memory. `lse` may be NULL where op has none;
 * *scratch, where it is asked for, is a copy for td_aligned_free(); fails where the plan leaves no codes in it. */
bool tool_cuda_run(tool_cuda *cuda, const tandem_attention *op, const void *const inputs[3], void *o, float *lse,
                   unsigned char **scratch, tool_ran *ran, char *why, size_t why_bytes);
void tool_cuda_close(tool_cuda *cuda);

/* A program of ours, beside this one or where installations have it: "tandem-bench", "tandemd". False if it is in neither. */
bool tool_program(const char *name, char *path, size_t bytes);
/* Runs a program from the PATH that has nothing to read; what it says goes to two descriptors, -1: nowhere. Its exit status,
 * 128 and its signal, or -1 and errno where it could not be started. */
int tool_run_program(const char *const *argv, int out, int err);
/* Becomes that program, with these words behind its name; `first`, if it is not NULL, before them. Returns after a line that says
 * why not. */
int tool_become(const char *command, const char *name, int argc, char **argv, const char *first);

/* Reads a table that `tandem tune` wrote, as text that the caller frees, or parsed. False, and the reason, if it is none. */
bool tool_tuning_text(const char *path, char **text, size_t *bytes, char *why, size_t why_bytes);
bool tool_tuning(const char *path, td_tuning_table *out, char *why, size_t why_bytes);

/* What there is help on: a command, or a part of one ("bench attention"), in the order in which they are listed. */
typedef struct tool_topic {
    const char *name, *summary;
    const char *const *help;
} tool_topic;
/* NULL behind the last. */
const tool_topic *tool_topic_at(size_t index);
/* How often and what is told of exit statuses. */
extern const char *const tool_exit_status;

/* Made from the texts of help: a man page in roff, and scripts that complete command lines. */
void tool_print_man(const tool_topic *topic); /* NULL: of the tool itself */
void tool_print_bash_completion(void);
void tool_print_zsh_completion(void);
void tool_print_fish_completion(void);

int tool_sample_qkv(int argc, char **argv);
int tool_accuracy(int argc, char **argv); /* this and the next start tandem-bench */
int tool_bench(int argc, char **argv);
int tool_calibrate(int argc, char **argv);
int tool_attend(int argc, char **argv);
int tool_info(int argc, char **argv);
int tool_probe(int argc, char **argv);
int tool_tune(int argc, char **argv);
int tool_plan(int argc, char **argv);
int tool_run(int argc, char **argv);
int tool_denoise(int argc, char **argv);
int tool_gi(int argc, char **argv);
int tool_eval(int argc, char **argv); /* starts tandem-bench, too */
int tool_fetch(int argc, char **argv);
int tool_tokenize(int argc, char **argv);
int tool_generate(int argc, char **argv);
int tool_logits(int argc, char **argv);
int tool_perplexity(int argc, char **argv);
int tool_npc(int argc, char **argv);
int tool_serve(int argc, char **argv);
int tool_conform(int argc, char **argv);
int tool_doctor(int argc, char **argv);
int tool_top(int argc, char **argv);
int tool_layer(int argc, char **argv);
extern const char *const tool_sample_qkv_help, *const tool_attend_help, *const tool_accuracy_help;
extern const char *const tool_calibrate_help, *const tool_info_help, *const tool_doctor_help, *const tool_top_help;
extern const char *const tool_probe_help, *const tool_tune_help, *const tool_bench_help, *const tool_plan_help;
extern const char *const tool_fetch_help, *const tool_tokenize_help, *const tool_generate_help, *const tool_run_help;
extern const char *const tool_logits_help, *const tool_perplexity_help, *const tool_denoise_help, *const tool_serve_help;
extern const char *const tool_eval_help, *const tool_npc_help, *const tool_gi_help;
extern const char *const tool_conform_help;
extern const char *const tool_layer_help;
extern const char *const tool_bench_handover_help, *const tool_bench_attention_help,
    *const tool_bench_linear_help, *const tool_bench_daemon_help, *const tool_bench_npc_help,
    *const tool_bench_effect_help;

const char *tool_backend_name(uint32_t backend);      /* "cpu", "cuda" */
extern const char *const tool_precisions[];          /* by tandem_precision; NULL behind the last */
/* Reads --rung, and a precision of attention, as sessions and instances take them; false after a line that says what is wrong. */
bool tool_rung(const char *command, const char *value, uint32_t *rung);
bool tool_precision(const char *command, const char *option, const char *value, uint32_t *precision);
/* Reads --kv, as models take it; `precision` of attention is that of fp16 caches alone. Likewise. */
bool tool_cache(const char *command, const char *value, uint32_t precision, uint32_t *cache);

/* Of a graph's numbers, which one has that name; their count: none. */
struct td_graph;
uint32_t tool_find_number(const struct td_graph *graph, const char *name, size_t length);
/* --set LIST, as "tokens=128,batch=1", into `numbers`; those that it does not name stay. NULL: none. */
int tool_read_sizes(const char *command, const char *set, const struct td_graph *graph, uint32_t *numbers);

#endif
