/* `tandem serve`: tandem-serve, a program of its own (engine_plugin/serve), as few need it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine_plugin/tool/tool.h"

/* clang-format off */
const char *const tool_serve_help =
    "usage: tandem serve --model F [options]\n"
    "\n"
    "An endpoint that speaks the HTTP of OpenAI's, for tools that know it. It says on a line where it\n"
    "listens, and goes on until SIGINT or SIGTERM.\n"
    "\n"
    "  --model F          a GGUF file, as `tandem fetch` brings one, or a folder as transformers has\n"
    "  --listen A         an address of this machine; default: 127.0.0.1, which no other machine reaches\n"
    "  --port N           default: 8080; 0: any that is free\n"
    "  --token-file F     who asks must have the token in this file's first line: Authorization: Bearer T\n"
    "  --slots N          so many answers at once, which are computed together; default: 4\n"
    "  --queue N          so many wait for a slot, others are told to come later; default: 64\n"
    "  --connections N    at most; default: 1000\n"
    "  --timeout S        a connection on which nothing happens is closed after S seconds; default: 60\n"
    "  --context N        tokens of a dialogue; default: as many as the model was trained for\n"
    "  --attention auto|f16|8b|4b\n"
    "                     the precision of attention; default: auto, which is f16\n"
    "  --kv f16|k8v8|k4v8\n"
    "                     how keys and values are kept; default: f16\n"
    "  --rung auto|inline|timeline|host|copy|cpu\n"
    "                     the way of computing; default: auto, the best that there is\n"
    "  --socket PATH      compute in the tandemd that listens there, which opens the model itself: beneath a\n"
    "                     model_dir of its own; games' frames go first there\n"
    "  --form F           the form of dialogues, as `tandem help generate` says; default: the file's own\n"
    "  --threads N        threads that a CPU computes on; default: all cores\n"
    "\n"
    "  POST /v1/chat/completions   messages, temperature, top_p, max_tokens, n, stop, seed, stream,\n"
    "                              stream_options, presence_penalty, frequency_penalty, logit_bias,\n"
    "                              response_format (json_object, json_schema), logprobs, top_logprobs,\n"
    "                              tools, tool_choice, parallel_tool_calls, user, prompt_cache_key; and\n"
    "                              top_k, min_p, typical_p, repetition_penalty, grammar (GBNF)\n"
    "  POST /v1/completions        prompt, and the same but for tools\n"
    "  POST /v1/embeddings         input, encoding_format: vectors by the model itself, one text at a time\n"
    "  GET /v1/models, /v1/models/NAME, /health, /metrics\n"
    "\n"
    "A `prompt_cache_key`, or else a `user`, keeps a slot while there are enough: of a dialogue that\n"
    "goes on only what is new is read. Of `tools` the model is told as many were trained to be, and what\n"
    "it calls is JSON of the function's schema, whatever the model is.\n"
    "Where a dialogue is longer than the context, its oldest messages are left out, but system messages\n"
    "that it begins with. A body has at most 1 MiB. A client that goes away ends its answer, as does one\n"
    "that leaves 4 MiB of it unread. Without a token, requests of pages in browsers are refused.\n";
/* clang-format on */

int tool_serve(int argc, char **argv)
{
    return tool_become("serve", "tandem-serve", argc, argv, NULL);
}
