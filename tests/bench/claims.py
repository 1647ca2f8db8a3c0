"""What the documents say was measured: sentences and rows of tables, with the expression of each figure.

SPDX-License-Identifier: Apache-2.0

A claim is (document, template). In a template {expression:format} is a figure: a Python expression of the names in FILES
and of the functions below. Outside figures a template is the document's text; lines may break elsewhere.
"""

import decimal

FILES = {
    "whole": "h200-attention-whole.json",
    "turns": "h200-attention.json",
    "peers": "h200-attention-peers.json",
    "torch": "h200-peers.json",
    "demo": "h200-demo.json",
    "runs": "h200.json",
    "handover": "h200-handover.json",
    "daemon": "h200-daemon.json",
    "lavapipe": "lavapipe.json",
    "accuracy": "cpu-accuracy.json",
    "linear": "h100-linear.json",
    "minilm": "h200-minilm.json",
    "cache": "cpu-cache.json",
    "skips": "cpu-skip-tiles.json",
    "account": "h200-account.json",
    "logits": "cpu-logits.json",
    "minilm_cpu": "cpu-minilm.json",
    "npc": "cpu-npc.json",
    "npc_half": "h200-npc-0.5b.json",
    "npc_one": "h200-npc-1b.json",
    "npc_eight": "h200-npc-8b.json",
    "npc_model": "cpu-npc-model.json",
    "tavern": "h200-tavern.json",
    "effect": "h200-effect.json",
    "effect_fast": "h200-effect-fast.json",
    "still": "cpu-denoise-still.json",
    "path": "cpu-denoise-path.json",
    "room": "cpu-denoise-room.json",
    "gallery": "cpu-denoise-gallery.json",
    "gi": "cpu-gi.json",
    "gi_effect": "h200-gi.json",
}

# Documents in which every figure must be a claim or no measurement.
COVERED = ["README.md", "MEASURED.md", "engine_plugin/MODELS.md", "demo/README.md"]

# What is no measurement, as regular expressions: versions, products, shapes, the paper's numbering. Each with the words around
# it, so that it passes where it stands and not as a figure of some other sentence.
NOT_MEASURED = [
    r"4096\s+and\s+16384\s+tokens", r"8192\s+and\s+32768\s+tokens",
    r"Debian(?: |\s)12", r"is 11\.8", r"NVIDIA 580", r"CUDA 13", r"Vulkan 1\.2, or 1\.1", r"driver 580\.159",
    r"\| compute capability 8\.0", r"\| 8\.6, 8\.7 ", r"\| 8\.9 ", r"\| 9\.0 ", r"\| 12\.0, 12\.1 ", r"from 8\.0", r"before 8\.0",
    r"on 9\.0", r"RTX \d+", r"C\+\+17", r"2 cores with AVX-512", r"16 cores", r"\(table \d\)",
    r"for d 256 in command buffers", r"\(d 64 to 128\)", r"\(256 queries x 784 keys a tile, d 32\)", r"batch 4, 32 heads, TFLOPS",
    r"\| d 128, 16384 tokens (?=\|)", r"\| d 64, 16384 (?=\|)", r"\| 4096 (?=\|)", r"\(8 heads, 4096 x 4096, d 128, N\(0,1\), every row\)",
    r"39 minutes of one H200", r"which took 9; both", r"270 seconds of one H200", r"frames of 320x180", r"max / 7", r"48 KB", r"256 KiB", r"at most 9 minutes", r"at most 40 MiB", r"cuDNN 9\.19", r"relative L1", r"p50 \(p99\)", r"\[0\.5B", r"Qwen 2\.5 0\.5B", r"Llama 3\.2 1B", r"Llama 3 8B", r"\| 1 character \| 4 at once \| 8 at once \| 32 at once",
]

SHAPES = [(d, n, causal) for d in (128, 64) for n in (16384, 4096) for causal in (False, True)]


def named(items, **keys):
    """The one of `items` that has these members."""
    found = [i for i in items if all(getattr(i, k) == v for k, v in keys.items())]
    if len(found) != 1:
        raise LookupError(f"{len(found)} of {keys}")
    return found[0]


def slots(report, count):
    """Tokens a second of so many characters, of `tandem bench npc`."""
    return vars(report.slots)[str(count)].median


def way(report, attention, kv, free=False):
    """Of the model of characters: what is right with this precision and cache, of `npc_eval.py`."""
    return [row for row in report.rows if (row.attention, row.kv) == (attention, kv)][-1 if free else 0]


def way_row(attention, kv, text):
    """A row of the table in demo/assets."""
    at = f"way(npc_model, '{attention}', '{kv}'"
    at += ", True)" if text else ")"
    share = "{100 * " + at
    row = f"| {attention} | {kv}{text} | " + f"{share}.facts_exact:.1f}} % of {{{at}.facts_asked}} | {share}.refusals_right:.1f}} % of {{{at}.refusals_asked}} | "
    row += f"{share}.actions_right:.1f}} % of {{{at}.actions_asked}} | {share}.actions_valid:.1f}} % of {{{at}.actions_made}} | "
    return row + ("| |" if text else f"{{{at}.perplexity:.4f}} | {{1e6 * {at}.kl:.0f}} |")


def light_row(name, text=None):
    """A row of the other table there, of `tandem eval gi`."""
    at = f"named(gi.rows, name='{name}')"
    return f"| {text or name} | {{{at}.psnr_db:.2f}} | {{{at}.ssim:.3f}} | {{{at}.rel_mse:.3f}} |"


def size(report, rung, width):
    """Frames of that width, of `tandem bench effect`."""
    return named(named(report.rungs, rung=rung).rows, width=width)


def shape(report, d, n, causal):
    """Batch 4, 32 heads, of `tandem bench attention`."""
    return named(report.shapes, batch=4, d=d, n=n, causal=causal)


def row(report, at, what, precision):
    return named(shape(report, *at).rows, what=what, precision=precision)


def peer_rates(peers, at):
    return named(peers.rows, d=at[0], n=at[1], causal=at[2]).tflops


def beside_fp8(peers):
    """8b's kernel to the best fp8 peer's, at 4096 and 16384 tokens."""
    rates = [r.tflops for r in peers.rows if r.n >= 4096]
    return [r.ours_8b_kernel / max(r.fa3_fp8, r.cudnn_fp8) for r in rates]


def beside_authors(peers):
    rates = [r.tflops for r in peers.rows if r.n >= 4096]
    return [r.ours_8b_kernel / max(r.sage_thread_kernel, r.sage_warp_kernel) for r in rates]


def lane(report, payload, name):
    return named(named(report.handover if hasattr(report, "handover") else report.payloads, payload=payload).lanes, lane=name)


def beyond_job(handover, payload, name):
    """What a command buffer's time has beyond the job itself."""
    at = lane(handover, payload, name)
    return at.between_us.median - at.job_us.median


def throughputs(handover):
    return [t.value for t in handover.targets
            if t.target.startswith("inline, recorded") and t.target.endswith("throughput by all-Vulkan's")]


def submitted_longer(handover):
    """Three in flight: a frame that submits jobs, beyond one that records them; where a payload is."""
    return [lane(handover, p.payload, "inline, submitted").in_flight_3_us.median -
            lane(handover, p.payload, "inline, recorded").in_flight_3_us.median for p in handover.payloads if p.bytes > 64]


def layer(report, rows, outs, ins, weights, what):
    """Microseconds of a linear layer, of `tandem bench linear`."""
    at = named(report.layers, rows=rows, outs=outs, ins=ins, weights=weights)
    return named(at.rows_of, what=what).us.median


def linear_row(rows, outs, ins, weights="f16"):
    at = f"layer(linear, {rows}, {outs}, {ins}, '{weights}', "
    peer = f"{{{at}'cublaslt'):.1f}}" if weights == "f16" else "-"
    return f"| {rows} x {outs} x {ins} {weights} | {{{at}'stream'):.1f}} | {{{at}'inline'):.1f}} | {peer} |"


def only(mapping):
    """The one run of a file of runs, or the one whose command has these words."""
    return next(iter(vars(mapping).values()))


def run_of(mapping, words):
    return next(v for k, v in vars(mapping).items() if words in k)


def short(value, digits):
    """.081 for 0.0805."""
    rounded = decimal.Decimal(repr(value)).quantize(decimal.Decimal(1).scaleb(-digits), decimal.ROUND_HALF_UP)
    return str(rounded).lstrip("0")


def l1(accuracy, table, name):
    return named(named(accuracy.report.tables, table=table).rows, name=name).average.relative_l1


def paper(accuracy, table, name):
    return named(named(accuracy.report.tables, table=table).rows, name=name).paper.relative_l1


def auto_by_own_time(report):
    """AUTO's own time to the best of ours, of each shape, the worst first."""
    out = []
    for s in report.shapes:
        whole = {r.precision: r.us.median for r in s.rows if r.what == "end to end" and r.us}
        out += [whole.pop("auto") / min(whole.values())] if "auto" in whole else []
    return sorted(out, reverse=True)


SKIPPED_INPUTS = [("SmolLM2, 1024 tokens, causal", "SmolLM2", 1024), ("SmolLM2, 4096 tokens, causal", "SmolLM2", 4096),
                  ("the demo's filter, 784 keys", "filter", 784), ("N(0,1), d64, 16384 keys, causal", "N(0,1) d64", 16384),
                  ("N(0,1), d128, 16384 keys, causal", "N(0,1) d128", 16384), ("N(0,1), d128, 4096 keys", "N(0,1) d128", 4096)]


def skipped(report, name, keys, tile, eps):
    """Percent of the tiles of keys of one input that could be skipped, of `skip_tiles.py`."""
    return 100 * named(named(report.inputs, name=name, keys=keys).rows, tile=tile, eps=eps).share


def skipped_row(label, name, keys):
    at = f"skipped(skips, '{name}', {keys}, "
    cells = [" ".join(f"{{{at}'{tile}', {eps}):.2f}}" for eps in ("1e-2", "1e-3", "1e-4")) for tile in ("16x64", "64x64", "64x128", "128x128")]
    return f"| {label} | " + " | ".join(cells) + " |"


def attention_row(label, figure, shapes=SHAPES):
    return f"| {label} | " + " | ".join("{" + figure.replace("AT", str(at)) + "}" for at in shapes) + " |"


def pair(table, name, digits=3):
    return (f"{{short(l1(accuracy, '{table}', '{name}'), {digits})}} / "
            f"{{short(paper(accuracy, '{table}', '{name}'), {digits})}}")


def handover_row(label, name):
    at = f"lane(handover, '960x540', '{name}')"
    return (f"| {label} | {{{at}.gap_in_us.median:.0f}}, {{{at}.gap_out_us.median:.0f}} | "
            f"{{{at}.round_trip_us.median:.0f}} | {{{at}.in_flight_3_us.median:.0f}} |")


INLINE = "lane(handover, '960x540', 'inline, recorded')"
VULKAN = "lane(handover, '960x540', 'floor: Vulkan alone')"
F16_RUN = "run_of(runs.runs, '--mode f16 --in-flight 1')"

OURS, BESIDE = "'denoise.safetensors'", "'denoise.safetensors + history'"
FAST, HIGH = "'OIDN fast'", "'OIDN high'"

README = [
    "`8b`'s kernel has {min(beside_fp8(peers)):.2f} to {max(beside_fp8(peers)):.2f} times the rate of the best fp8 kernel "
    "(FlashAttention-3's or cuDNN 9.19's) and {min(beside_authors(peers)):.2f} to {max(beside_authors(peers)):.2f} times that of "
    "the authors' kernel",
    f"the GPU rests {{{INLINE}.gap_in_us.median:.1f}} us before a job and {{{INLINE}.gap_out_us.median:.1f}} us behind it; by semaphores "
    "{lane(handover, '960x540', 'timeline').gap_in_us.median:.0f} and {lane(handover, '960x540', 'timeline').gap_out_us.median:.0f}",
    "960x540 in {size(effect, 'timeline', 960).gpu_ms.median:.2f} ms on a stream, {size(effect, 'inline', 960).gpu_ms.median:.2f} ms in a "
    f"command buffer; frames of another renderer's at {{named(still.rows, name={OURS}).psnr_db:.1f}} dB, where Open Image Denoise (fast) has "
    f"{{named(still.rows, name={FAST}).psnr_db:.1f}}",
    "8B Q8_0: {npc_eight.tokens_per_s.decode.median:.0f} tokens/s, as 32 characters {slots(npc_eight, 32):.0f}",
    "all-MiniLM-L6-v2 in {vars(minilm.ours)['f16 graphs'].median:.0f} us on an H200, PyTorch's CUDA graph in "
    "{min(turn.graph.median for turn in minilm.pytorch):.0f}",
    "whoever dies takes nobody along; {lane(daemon, '64 B', 'through tandemd').round_trip_us.median - "
    "lane(daemon, '64 B', 'in this process').round_trip_us.median:.0f} us a hand-over",
]

DEMO = [
    "On an H200 (960x540, `inline`, a budget of {tavern.tavern.budget_us / 1000:.0f} ms) 99 of 100 frames take at most "
    "{tavern.tavern.frames.quiet.p99_ms:.2f} ms while nobody talks, and {tavern.tavern.frames.talking.p99_ms:.2f} while people do",
]

MODELS = [
    "on {gi.frames} frames of scenes that it never saw its PSNR is {named(gi.rows, name='gi.safetensors 8b').psnr_db:.1f} dB, that of "
    "direct light alone {named(gi.rows, name='direct light alone').psnr_db:.1f}, with a constant ambient light "
    "{named(gi.rows, name='constant ambient').psnr_db:.1f}, with SSAO {named(gi.rows, name='ambient, SSAO').psnr_db:.1f}, with a bounce in screen "
    "space {named(gi.rows, name='screen-space bounce').psnr_db:.1f} (`tandem eval gi`)",
    "On an H200 it takes {size(gi_effect, 'timeline', 1280).gpu_ms.median:.2f} ms of 1280x720 on `timeline` and "
    "{size(gi_effect, 'inline', 1280).gpu_ms.median:.2f} on `inline`",
    f"on eight frames of Mitsuba's its PSNR is {{named(still.rows, name={OURS}).psnr_db:.1f}} dB, that of `fast` "
    f"{{named(still.rows, name='denoise-fast.safetensors').psnr_db:.1f}}, Open Image Denoise's {{named(still.rows, name={FAST}).psnr_db:.1f}} "
    f"(fast) and {{named(still.rows, name={HIGH}).psnr_db:.1f}} (high); its SSIM is {{named(still.rows, name={OURS}).ssim:.4f}}, Open Image "
    f"Denoise's {{named(still.rows, name={FAST}).ssim:.4f}} and {{named(still.rows, name={HIGH}).ssim:.4f}}, and its relMSE "
    f"{{named(still.rows, name={OURS}).rel_mse:.4f}}, Open Image Denoise's {{named(still.rows, name={FAST}).rel_mse:.4f}} "
    f"and {{named(still.rows, name={HIGH}).rel_mse:.4f}}. Along two paths its PSNR is {{named(path.rows, name={OURS}).psnr_db:.1f}} dB, with the "
    f"frames before {{named(path.rows, name={BESIDE}).psnr_db:.1f}}, Open Image Denoise's {{named(path.rows, name={FAST}).psnr_db:.1f}} and "
    f"{{named(path.rows, name={HIGH}).psnr_db:.1f}}; flicker is {{named(path.rows, name={BESIDE}).flicker:.1f}}, Open Image Denoise's "
    f"{{named(path.rows, name={FAST}).flicker:.1f}} and {{named(path.rows, name={HIGH}).flicker:.1f}}",
    f"On three frames each of the demo's room and gallery with rays through the middle its PSNR is {{named(room.rows, name={OURS}).psnr_db:.1f}} "
    f"and {{named(gallery.rows, name={OURS}).psnr_db:.1f}} dB, Open Image Denoise's {{named(room.rows, name={FAST}).psnr_db:.1f}} and "
    f"{{named(gallery.rows, name={FAST}).psnr_db:.1f}} (fast), with guides that were cleaned first "
    "{named(room.rows, name='OIDN prefiltered').psnr_db:.1f} and {named(gallery.rows, name='OIDN prefiltered').psnr_db:.1f}",
    "on those eight frames {named(still.rows, name='denoise.safetensors, 2x').psnr_db:.1f} dB of half as many rows and columns, by bicubic "
    "interpolation {named(still.rows, name='denoise.safetensors, 2x bicubic').psnr_db:.1f}, and "
    "{named(still.rows, name='denoise.safetensors, 1.5x').psnr_db:.1f} of two thirds, by bicubic interpolation "
    "{named(still.rows, name='denoise.safetensors, 1.5x bicubic').psnr_db:.1f}",
    "On an H200 its {minilm.tokens} tokens take {vars(minilm.ours)['f16 graphs'].median:.0f} us by a CUDA graph and "
    "{vars(minilm.ours)['f16 inline'].median:.0f} us in a Vulkan command buffer; PyTorch's fp16 takes "
    "{min(turn.graph.median for turn in minilm.pytorch):.0f} us by a CUDA graph and "
    "{min(turn.eager.median for turn in minilm.pytorch):.0f} us launch by launch",
    "On two CPU cores they take {minilm_cpu.shapes[0].ours.min / 1000:.0f} ms, in PyTorch's float32 "
    "{minilm_cpu.shapes[0].pytorch.min / 1000:.0f}; eight such texts of other lengths "
    "{minilm_cpu.shapes[1].ours.min / 1000:.0f} and {minilm_cpu.shapes[1].pytorch.min / 1000:.0f}.",
    "On two CPU cores SmolLM2 (Q4_1) reads a prompt at {npc.tokens_per_s.prompt.median:.0f} tokens a second and speaks at "
    "{npc.tokens_per_s.decode.median:.0f}; llama.cpp's own bench, in turn with it, at {npc.llama_cpp.prompt.median:.0f} and "
    "{npc.llama_cpp.decode.median:.0f} (`tandem bench npc`).",
    *(f"| {shape} | {{{of}.tokens_per_s.decode.median:.0f}} | " + " | ".join(f"{{slots({of}, {n}):.0f}}" for n in (1, 4, 8, 32)) + " |"
      for shape, of in (("Qwen 2.5 0.5B", "npc_half"), ("Llama 3.2 1B", "npc_one"), ("Llama 3 8B", "npc_eight"))),
    "The model that comes with it, of {npc_model.model_bytes / 1e6:.1f} MB, was made in 270 seconds of one H200 from text of a grammar "
    "([demo/train](../demo/train/README.md#training-the-model-of-characters)). About cards whose names, places and things it never saw, it "
    "tells {100 * way(npc_model, 'f16', 'f16').facts_exact:.1f} % of {way(npc_model, 'f16', 'f16').facts_asked} facts letter by letter, with "
    "K8V8 {100 * way(npc_model, 'f16', 'k8v8').facts_exact:.1f} and with K4V8 {100 * way(npc_model, 'f16', 'k4v8').facts_exact:.1f} %; "
    "{100 * way(npc_model, 'f16', 'f16').actions_valid:.0f} % of its actions are valid",
    "On an H200 it takes {size(effect, 'timeline', 960).gpu_ms.median:.2f} ms of 960x540 on `timeline` and "
    "{size(effect, 'inline', 960).gpu_ms.median:.2f} ms on `inline`, of 1920x1080 "
    "{size(effect, 'timeline', 1920).gpu_ms.median:.2f} and {size(effect, 'inline', 1920).gpu_ms.median:.2f} ms, `fast` "
    "{size(effect_fast, 'timeline', 960).gpu_ms.median:.2f} and {size(effect_fast, 'inline', 960).gpu_ms.median:.2f}, "
    "{size(effect_fast, 'timeline', 1920).gpu_ms.median:.2f} and {size(effect_fast, 'inline', 1920).gpu_ms.median:.2f}",
]

MEASURED = [
    "960x540, `inline`: {demo.frame.p50_ms:.2f} ms ({demo.frame.p99_ms:.2f}) | 320x180: "
    "{only(lavapipe.runs).frame.p50_ms:.0f} ms ({only(lavapipe.runs).frame.p99_ms:.0f}), tracing included |",
    "| of it: attention, 8b | {demo.stages.attention.p50_ms:.2f} ms (256 queries x 784 keys a tile, d 32) | "
    "{only(lavapipe.runs).stages.attention.p50_ms:.0f} ms |",
    "| of it: hand-over, there and back | {getattr(demo.stages, 'hand-over (to)').p50_ms + "
    "getattr(demo.stages, 'hand-over (back)').p50_ms:.3f} ms; `timeline` "
    "{lane(handover, '960x540', 'timeline').gap_in_us.median / 1000:.2f} + "
    "{lane(handover, '960x540', 'timeline').gap_out_us.median / 1000:.2f} ms | "
    "{getattr(only(lavapipe.runs).stages, 'hand-over (to)').p50_ms:.1f} + "
    "{getattr(only(lavapipe.runs).stages, 'hand-over (back)').p50_ms:.1f} ms |",
    "| input, best box filter, result (PSNR) | {demo.psnr.noisy_db:.1f}, {demo.psnr.box_db:.1f}, {demo.psnr.result_db:.1f} dB | "
    "{only(lavapipe.runs).psnr.noisy_db:.1f}, {only(lavapipe.runs).psnr.box_db:.1f}, {only(lavapipe.runs).psnr.result_db:.1f} dB |",
    f"| relative L1 of the last frame, every row | 8b {{demo.accuracy.rel_l1:.4f}}, f16 {{{F16_RUN}.accuracy.rel_l1:.4f}} | "
    "8b {only(lavapipe.runs).accuracy.rel_l1:.4f} |",
    f"| `inline`: kernels in the engine's command buffer | {{{INLINE}.gap_in_us.median:.1f}}, {{{INLINE}.gap_out_us.median:.1f}} | "
    f"{{{INLINE}.round_trip_us.median:.0f}} | {{{INLINE}.in_flight_3_us.median:.0f}} |",
    handover_row("`timeline`: shared memory and semaphores", "timeline"),
    handover_row("`host`: shared memory, points by the host", "host"),
    handover_row("`copy`: nothing shared", "copy"),
    handover_row("`cpu`: no CUDA, 16 cores", "cpu"),
    handover_row("floor: bare semaphores, no session, the command buffer's kernel", "floor: bare timelines"),
    "| floor: Vulkan alone, a dispatch in the job's place | "
    f"{{{VULKAN}.gap_in_us.median:.1f}}, {{{VULKAN}.gap_out_us.median:.1f}} | | |",
    "`inline` has {beyond_job(handover, '256 KiB', 'inline, recorded'):.1f} us more than the job at 256 KiB, Vulkan "
    "{beyond_job(handover, '256 KiB', 'floor: Vulkan alone'):.1f} more than its dispatch",
    "`inline` has {short(min(throughputs(handover)), 2)} to {short(max(throughputs(handover)), 3)} of the throughput",
    f"the job itself takes {{{INLINE}.job_us.median / 1000:.2f}} ms there and "
    "{lane(handover, '960x540', 'timeline').job_us.median / 1000:.2f} ms on a CUDA stream (in that run; "
    "{demo.stages.attention.p50_ms:.2f} ms in the demo's)",
    "(256 KiB: {lane(handover, '256 KiB', 'inline, recorded').in_flight_3_us.median:.0f} against "
    "{lane(handover, '256 KiB', 'timeline').in_flight_3_us.median:.0f} us a frame)",
    attention_row("`8b`, on operands that are quantised", "row(whole, AT, 'kernel', '8b').tflops:.0f"),
    attention_row("`8b`, from fp16 to fp16", "row(whole, AT, 'end to end', '8b').tflops:.0f"),
    attention_row("`f16`", "row(whole, AT, 'kernel', 'f16').tflops:.0f"),
    attention_row("cuDNN fp16", "row(whole, AT, 'cudnn', 'f16').tflops:.0f"),
    attention_row("clock of `8b`, MHz", "row(whole, AT, 'kernel', '8b').sm_mhz"),
    attention_row("clock of cuDNN, MHz", "row(whole, AT, 'cudnn', 'f16').sm_mhz"),
    attention_row("`8b` to cuDNN, each at its own clock", "row(whole, AT, 'kernel', '8b').times_cudnn:.2f"),
    attention_row("`8b` to cuDNN, at one clock", "row(turns, AT, 'kernel', '8b').times_cudnn:.2f"),
    "{min(s.sm_mhz for s in turns.shapes if s.batch == 4)} to {max(s.sm_mhz for s in turns.shapes if s.batch == 4)} MHz",
    "the same times within {max(abs(s.apart) for s in torch.shapes) * 100:.1f} %",
    "`8b`'s kernel has {min(beside_fp8(peers)):.2f} to {max(beside_fp8(peers)):.2f} times the rate of the best fp8 kernel "
    "(FlashAttention-3's or cuDNN 9.19's) and {min(beside_authors(peers)):.2f} to {max(beside_authors(peers)):.2f} times that of "
    "the authors' kernel",
    f"none {pair('4', 'None')} | Hadamard {pair('4', 'HadmdAttn')} | SmoothAttn {pair('4', 'SmoothAttn')} | K {pair('4', 'Smooth K')} "
    f"| Q {pair('4', 'Smooth Q')} | **Q+K {pair('4', 'Smooth Q+K')}** |",
    f"token {pair('6', 'Per token')} | **thread {pair('6', 'Per thread')}** | warp {pair('6', 'Per warp')} | "
    f"block {pair('6', 'Per block')} | tensor {pair('6', 'Per tensor')} |",
    f"INT8 {pair('7', 'INT8')} | E5M2 {pair('7', 'E5M2')} | **E4M3 {pair('7', 'E4M3')}** | FP16 {pair('7', 'FP16')} |",
    f"one level {pair('two-level', 'one level')} | **two "
    "{short(l1(accuracy, 'two-level', 'two levels, 64 keys'), 4)} / {short(paper(accuracy, 'two-level', 'two levels, 64 keys'), 3)}** |",
    f"SageAttention1 {pair('variants', 'SageAttention1')} | **8b {pair('variants', '8b')}** | 4b {pair('variants', '4b')} | "
    f"4b, Q as is {pair('variants', '4b without smooth Q')} |",
    "`8b` on the H200 {short(named(peers.relative_l1.tensors, of='N(0,1)').ours_8b, 4)}, theirs "
    "{short(named(peers.relative_l1.tensors, of='N(0,1)').sage, 4)}; on a CPU `8b` "
    "{short(l1(accuracy, 'normal', '8b'), 4)}, `4b` {short(l1(accuracy, 'normal', '4b'), 3)} "
    "({short(l1(accuracy, 'normal', '4b, scale max / 7'), 3)} with the paper's scale",
]

OPERATIONS = [
    "| H200: a frame with an empty job, one at a time | {lane(daemon, '64 B', 'in this process').round_trip_us.median:.0f} | "
    "{lane(daemon, '64 B', 'through tandemd').round_trip_us.median:.0f} |",
    "| H200: a frame with an 8 MiB job, one at a time, three in flight | "
    "{lane(daemon, '8 MiB', 'in this process').round_trip_us.median:.0f}, "
    "{lane(daemon, '8 MiB', 'in this process').in_flight_us.median:.0f} | "
    "{lane(daemon, '8 MiB', 'through tandemd').round_trip_us.median:.0f}, "
    "{lane(daemon, '8 MiB', 'through tandemd').in_flight_us.median:.0f} |",
    "{daemon.clients.worst_share * 100:.0f} % off at most, and all together as much done as one alone ({daemon.clients.total:.2f})",
    "a frame's job began {daemon.clients.frame_wait_quiet_us.median / 1000:.1f} ms after it was submitted "
    "({daemon.clients.frame_wait_quiet_us.p99 / 1000:.1f} ms at the 99th percentile), and with the long jobs in the background "
    "{daemon.clients.frame_wait_us.median / 1000:.1f} ms ({daemon.clients.frame_wait_us.p99 / 1000:.1f} ms)",
]

INTEGRATION = [
    "the queue rests some {lane(handover, '960x540', 'inline, submitted').gap_in_us.median:.0f} us before it and "
    "{lane(handover, '960x540', 'inline, submitted').gap_out_us.median:.0f} us behind it, and with three frames in flight a frame is "
    "{min(submitted_longer(handover)):.0f} to {max(submitted_longer(handover)):.0f} us longer",
]

WIDE = [(d, n, causal) for d in (128, 64) for n in (16384, 4096, 1024) for causal in (False, True)]
FEW = [(heads, n) for heads, lengths in ((4, (256, 512, 1024, 2048, 4096)), (8, (256, 512, 1024, 2048, 4096)),
                                         (16, (1024, 2048, 4096))) for n in lengths]


def few(report, d, heads, n, what, precision):
    """Batch 1, microseconds."""
    at = named(report.shapes, batch=1, d=d, heads=heads, n=n)
    return named(at.rows, what=what, precision=precision).us.median


def of_kernel(report, at, what):
    """8b by another way, of the kernel's rate."""
    return row(report, at, what, "8b").tflops / row(report, at, "kernel", "8b").tflops


def few_row(d):
    cells = [f"{{few(whole, {d}, {h}, {n}, 'end to end', '8b'):.1f}}, {{few(whole, {d}, {h}, {n}, 'end to end', 'auto'):.1f}} "
             f"({{few(whole, {d}, {h}, {n}, 'cudnn', 'f16'):.1f}})" for h, n in FEW]
    return f"| d{d} | " + " | ".join(cells) + " |"


def fa3_beside_f16(peers):
    return [r.tflops.fa3_fp16 / r.tflops.ours_f16 for r in peers.rows if r.d == 128]


def block_cycles(report, entry, d):
    """(cycles of a step of all that a multiprocessor holds, and of a block's begin and end), of times at 1024 and 4096 keys."""
    turns = {n: -(-128 * n // 64 // (report.multiprocessors * named(report.kernels, entry=entry, head_dim=d, planes=128, n=n, causal=0).resident))
             for n in (1024, 4096)}
    each = {n: named(report.kernels, entry=entry, head_dim=d, planes=128, n=n, causal=0).us * report.mhz / turns[n] for n in turns}
    step = (each[4096] - each[1024]) / 48
    return step, each[1024] - 16 * step


NOTES = [
    "by the account {account.within_10_percent} of {account.cases} times are within 10 %, {100 * account.mean_error:.0f} % off on average and "
    "{100 * account.worst_error:.0f} % at most",
    "at d128 F16's begin and end take as long as {block_cycles(account, 'attn_f16', 128)[1] / block_cycles(account, 'attn_f16', 128)[0]:.0f} steps",
    *(skipped_row(*it) for it in SKIPPED_INPUTS),
    "at most {100 * max(i.most_of_a_head for i in skips.inputs):.0f} % of a single head's at 64 x 64",
    "{max(r.error_of_bound for i in skips.inputs for r in i.rows):.4f} of the bound",
    attention_row("attn_8b_wgmma, TFLOPS", "row(whole, AT, 'kernel', '8b').tflops:.0f", WIDE),
    attention_row("MHz", "row(whole, AT, 'kernel', '8b').sm_mhz", WIDE),
    attention_row("times cuDNN fp16", "row(whole, AT, 'kernel', '8b').times_cudnn:.2f", WIDE),
    attention_row("end to end, of the kernel's rate", "of_kernel(whole, AT, 'end to end'):.2f", WIDE),
    attention_row("F16, of cuDNN", "row(whole, AT, 'kernel', 'f16').times_cudnn:.2f", WIDE),
    attention_row("in a command buffer, of the kernel's rate", "of_kernel(whole, AT, 'inline'):.2f", WIDE),
    attention_row("AUTO end to end, of cuDNN", "row(whole, AT, 'end to end', 'auto').times_cudnn:.2f", WIDE),
    few_row(64),
    few_row(128),
    "Of the bench's targets {sum(t.met for t in whole.targets)} were met and {sum(not t.met for t in whole.targets)} missed",
    "AUTO's own time was {auto_by_own_time(whole)[0] * 100 - 100:.1f}, {auto_by_own_time(whole)[1] * 100 - 100:.1f}, "
    "{auto_by_own_time(whole)[2] * 100 - 100:.1f} and {auto_by_own_time(whole)[3] * 100 - 100:.1f} % behind the best of ours at batch 1, "
    "n 4096 (d128 h16, d128 h8, d64 h16, d128 h4), elsewhere {auto_by_own_time(whole)[4] * 100 - 100:.1f} % at most",
    "which has {min(fa3_beside_f16(peers)):.2f} to {max(fa3_beside_f16(peers)):.2f} times its rate at d128",
]

LINEAR_LAYERS = [(4096, 4096, 4096), (512, 1024, 1024), (1024, 1024, 1024), (2048, 2048, 2048), (8192, 4096, 4096), (14400, 384, 128),
                 (14400, 128, 384), (128, 1536, 384), (128, 384, 1536), (1, 4096, 4096), (8, 4096, 4096), (16, 4096, 4096),
                 (64, 4096, 4096), (1, 14336, 4096), (1, 14336, 4096, "int8"), (1, 14336, 4096, "q8_0"), (1, 14336, 4096, "q4_0"),
                 (1, 14336, 4096, "q4_1"), (1, 14336, 4096, "q4_k"), (1, 14336, 4096, "q6_k")]
LINEAR = [linear_row(*at) for at in LINEAR_LAYERS] + [
    "Copying, read and written, had {linear.copy_tb_per_s:.2f} TB/s",
]



def of_f16(report, kv, member):
    return getattr(named(report.rows, kv=kv), member) / getattr(named(report.rows, kv="f16"), member)


CACHE = [
    "the perplexity of {cache.tokens} tokens of this project's own documents in parts of {cache.context}, on a CPU",
    "| `f16` | 1 | {named(cache.rows, kv='f16').perplexity:.2f} |",
] + [
    f"| `{kv}` | {{of_f16(cache, '{kv}', 'cache_bytes'):.3f}} | {{named(cache.rows, kv='{kv}').perplexity:.2f}} | "
    f"{{of_f16(cache, '{kv}', 'perplexity') * 100 - 100:.2f}} % |"
    for kv in ("k8v8", "k4v8")
] + [
    "INT4 had a perplexity {cache.tried.k4_mean_of_channels_scale_of_keys / cache.tried.f16 * 100 - 100:.1f} % higher than fp16's on the "
    "first {cache.tried.tokens} tokens of that text, with these {cache.tried.k4_minimum_and_scale_of_channels / cache.tried.f16 * 100 - 100:.1f} %.",
]
MODELS.append(
    "with {of_f16(cache, 'k8v8', 'cache_bytes'):.2f} and {of_f16(cache, 'k4v8', 'cache_bytes'):.2f} of fp16's bytes at {cache.context} tokens "
    "perplexity is {of_f16(cache, 'k8v8', 'perplexity') * 100 - 100:.2f} and {of_f16(cache, 'k4v8', 'perplexity') * 100 - 100:.2f} % higher"
)

MODELS.append(
    "With fp16 caches attention may be 8b or 4b (`--attention 8b`): of {named(logits.rows, attention='8b').tokens} tokens "
    "{named(logits.rows, attention='8b').same * 100:.1f} % then have the same most likely next one as in float32, where two are not about "
    "as likely {named(logits.rows, attention='8b').same_apart * 100:.1f} %, at a divergence of {named(logits.rows, attention='8b').kl:.4f}; "
    "with 4b {named(logits.rows, attention='4b').same * 100:.1f} %, and {named(logits.rows, attention='4b').kl:.3f}; with f16 "
    "{named(logits.rows, attention='f16').same * 100:.1f} % (`tests/bench/bench_logits.py`, on a CPU;"
)

ASSETS = [way_row(*of) for of in (("f16", "f16", ""), ("f16", "k8v8", ""), ("f16", "k4v8", ""), ("8b", "f16", ""), ("4b", "f16", ""),
                                  ("f16", "f16", ", no grammar"))]
ASSETS += [light_row(*of) for of in (("direct light alone",), ("constant ambient",), ("ambient, SSAO",), ("screen-space bounce",),
                                     ("constant ambient, best",), ("ambient, SSAO, best",), ("screen-space bounce, best",),
                                     ("gi.safetensors f16", "gi, f16"), ("gi.safetensors 8b", "gi, 8b"), ("gi.safetensors 4b", "gi, 4b"))]
ASSETS += ["{size(gi_effect, 'inline', 960).gpu_ms.median:.2f}, {size(gi_effect, 'inline', 1280).gpu_ms.median:.2f}, "
           "{size(gi_effect, 'inline', 1920).gpu_ms.median:.2f} and {size(gi_effect, 'inline', 2560).gpu_ms.median:.2f} ms of 960x540, 1280x720, "
           "1920x1080 and 2560x1440 on `inline`, {size(gi_effect, 'timeline', 960).gpu_ms.median:.2f}, "
           "{size(gi_effect, 'timeline', 1280).gpu_ms.median:.2f}, {size(gi_effect, 'timeline', 1920).gpu_ms.median:.2f} and "
           "{size(gi_effect, 'timeline', 2560).gpu_ms.median:.2f} on `timeline`"]

CLAIMS = (
    [("README.md", t) for t in README]
    + [("MEASURED.md", t) for t in MEASURED]
    + [("engine_plugin/MODELS.md", t) for t in MODELS]
    + [("demo/README.md", t) for t in DEMO]
    + [("engine_plugin/OPERATIONS.md", t) for t in OPERATIONS]
    + [("engine_plugin/INTEGRATION.md", t) for t in INTEGRATION]
    + [("kernels/attention/NOTES.md", t) for t in NOTES]
    + [("kernels/linear/NOTES.md", t) for t in LINEAR]
    + [("kernels/cache/NOTES.md", t) for t in CACHE]
    + [("demo/assets/README.md", t) for t in ASSETS]
)
