"""Draws what is in tests/measured as SVG: nothing is in a plot that is not in a JSON there.

SPDX-License-Identifier: Apache-2.0

usage: plots.py DIR     writes each plot of PLOTS as DIR/NAME.svg
"""
import html
import json
import math
import pathlib
import sys

MEASURED = pathlib.Path(__file__).resolve().parent.parent / "measured"
# Told apart by people who see colours otherwise, too (Okabe and Ito); others' and floors are grey.
OURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#cc79a7")
OTHERS = ("#8c8c8c", "#b4b4b4", "#6a6a6a", "#d0d0d0")
INK, FAINT, LINE = "#222222", "#666666", "#dddddd"
WIDTH, LETTER = 820, 6.6  # of a letter of 12 px, on average


def read(name):
    return json.loads((MEASURED / f"{name}.json").read_text())


def median(of):
    return of["median"] if isinstance(of, dict) else of


def short(value):
    """With three digits, as a reader compares."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.{2 - int(math.floor(math.log10(value)))}f}" if value > 0 else "0"


class Svg:
    def __init__(self, title, height):
        self.title, self.height, self.parts = title, height, []

    def add(self, name, content=None, **attributes):
        text = "".join(f' {key.replace("_", "-")}="{value if isinstance(value, str) else f"{value:.1f}"}"'
                       for key, value in attributes.items())
        self.parts.append(f"<{name}{text}/>" if content is None else f"<{name}{text}>{html.escape(content)}</{name}>")

    def text(self, x, y, content, anchor="start", size=12, color=INK, **more):
        self.add("text", content, x=x, y=y, text_anchor=anchor, font_size=size, fill=color, **more)

    def __str__(self):
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height:.0f}" width="{WIDTH}" '
                f'height="{self.height:.0f}" role="img" font-family="DejaVu Sans, Arial, sans-serif">\n'
                f'<title>{html.escape(self.title)}</title>\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
                + "\n".join(self.parts) + "\n</svg>\n")


def legend(svg, names, colors, top, left=16.0):
    """In as many lines as they need; returns where what follows begins."""
    x = left
    for name, color in zip(names, colors):
        wide = 30 + LETTER * len(name)
        if x + wide > WIDTH - 10 and x > left:
            x, top = left, top + 20
        svg.add("rect", x=x, y=top, width=12, height=12, rx=2, fill=color)
        svg.text(x + 18, top + 10.5, name)
        x += wide + 8
    return top + 30


def steps(most):
    """Round numbers from 0 to beyond `most`."""
    step = 10 ** math.floor(math.log10(most))
    step = next(step * f for f in (0.2, 0.25, 0.5, 1, 2) if most / (step * f) <= 6)
    return [step * i for i in range(math.ceil(most / step) + 1)]


def bars(title, unit, series, groups, colors=None):
    """Each group has a bar of each series, one below the other; None: there is none."""
    colors = colors or OURS
    thick, gap = (16, 20) if len(series) < 4 else (13, 22)
    left = 24 + LETTER * max(len(label) for label, _ in groups)
    right = WIDTH - 60
    svg = Svg(title, 0)
    top = legend(svg, series, colors, 14) if len(series) > 1 else 16
    ticks = steps(max(v for _, values in groups for v in values if v is not None))
    bottom = top + sum(len([v for v in values if v is not None]) * thick + gap for _, values in groups)

    def at(value):
        return left + (right - left) * value / ticks[-1]

    for tick in ticks:
        svg.add("line", x1=at(tick), x2=at(tick), y1=top, y2=bottom, stroke=LINE, stroke_width=1)
        svg.text(at(tick), bottom + 16, f"{tick:g}", "middle", 11, FAINT)
    svg.text((left + right) / 2, bottom + 34, unit, "middle", 12, FAINT)
    y = top
    for label, values in groups:
        shown = [(value, color) for value, color in zip(values, colors) if value is not None]
        y += gap / 2
        svg.text(left - 10, y + len(shown) * thick / 2 + 4, label, "end")
        for value, color in shown:
            svg.add("rect", x=left, y=y + 1, width=max(at(value) - left, 1), height=thick - 2, fill=color)
            svg.text(at(value) + 5, y + thick / 2 + 4, short(value), size=11)
            y += thick
        y += gap / 2
    svg.add("line", x1=left, x2=left, y1=top, y2=bottom, stroke=INK, stroke_width=1)
    svg.height = bottom + 46
    return str(svg)


def lines(title, x_label, y_label, series, x_names, floors=()):
    """series: (name, a y for each of x_names, None: there is none); the y are logarithmic. Floors are dashed, behind the others."""
    colors = OURS[:1] + OURS[3:4] + OURS[2:3] + OURS[4:] + OURS[1:2]
    colors = colors[:len(series)] + OTHERS[:len(floors)]
    series = [*series, *floors]
    svg = Svg(title, 0)
    left, right = 80.0, WIDTH - 40.0
    top = legend(svg, [name for name, _ in series], colors, 14) + 6
    bottom = top + 320
    all_y = [y for _, ys in series for y in ys if y is not None]
    low, high = 10.0 ** math.floor(math.log10(min(all_y))), 1.5 * max(all_y)
    ticks = [10.0 ** i for i in range(round(math.log10(low)), math.floor(math.log10(high)) + 1)]

    def down(y):
        return bottom - (bottom - top) * math.log10(y / low) / math.log10(high / low)

    def across(i):
        return left + (right - left) * (i + 0.5) / len(x_names)

    for tick in ticks:
        svg.add("line", x1=left, x2=right, y1=down(tick), y2=down(tick), stroke=LINE, stroke_width=1)
        svg.text(left - 8, down(tick) + 4, f"{tick:,.0f}" if tick >= 1 else f"{tick:g}", "end", 11, FAINT)
    for i, name in enumerate(x_names):
        svg.text(across(i), bottom + 18, name, "middle", 11, FAINT)
    svg.text((left + right) / 2, bottom + 38, x_label, "middle", 12, FAINT)
    svg.text(20, (top + bottom) / 2, y_label, "middle", 12, FAINT, transform=f"rotate(-90 20 {(top + bottom) / 2:.0f})")
    for name, ys, color in sorted(((name, ys, color) for (name, ys), color in zip(series, colors)),
                                  key=lambda one: one[2] not in OTHERS):
        points = [(across(i), down(y)) for i, y in enumerate(ys) if y is not None]
        dashes = {"stroke_dasharray": "6 4"} if color in OTHERS else {}
        svg.add("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), fill="none", stroke=color, stroke_width="2.2",
                stroke_linejoin="round", **dashes)
        for x, y in points:
            svg.add("circle", cx=x, cy=y, r="3.4", fill=color)
    svg.height = bottom + 50
    return str(svg)


# --- The plots: each returns its SVG, and what it is made of.

def attention(causal):
    of = read("h200-attention-peers")
    names = {"ours_8b_kernel": "8b, kernel", "ours_8b_e2e": "8b, from fp16 to fp16", "ours_f16": "f16",
             "fa3_fp8": "FlashAttention-3 fp8", "cudnn_fp8": "cuDNN fp8", "fa3_fp16": "FlashAttention-3 fp16",
             "cudnn_fp16": "cuDNN fp16"}
    groups = [(f"d {row['d']}, {row['n']}", [row["tflops"][key] for key in names])
              for row in sorted(of["rows"], key=lambda r: (r["d"], r["n"])) if row["causal"] == causal and row["n"] >= 4096]
    return bars("Attention" + (", causal" if causal else ""), "TFLOPS (more is better)", list(names.values()), groups,
                OURS[:3] + ("#6a6a6a", "#8c8c8c", "#b4b4b4", "#d0d0d0"))


def handover():
    of = read("h200-handover")
    wanted = ("inline, recorded", "timeline", "host", "copy", "cpu", "floor: bare timelines", "floor: Vulkan alone")
    found = {lane: [None] * len(of["payloads"]) for lane in wanted}
    for i, payload in enumerate(of["payloads"]):
        for lane in payload["lanes"]:
            if lane["lane"] in found and lane["round_trip_us"]:
                found[lane["lane"]][i] = median(lane["round_trip_us"])
    return lines("Hand-over", "what the job works on", "microseconds a frame, one at a time", list(found.items())[:5],
                 [payload["payload"] for payload in of["payloads"]], list(found.items())[5:])


def effect():
    of = read("h200-effect")
    rungs = {rung["rung"]: {(row["width"], row["height"]): median(row["gpu_ms"]) for row in rung["rows"]} for rung in of["rungs"]}
    sizes = sorted({size for rows in rungs.values() for size in rows})
    return bars("The denoiser", "milliseconds of the GPU a frame (less is better)", list(rungs),
                [(f"{w} x {h}", [rows.get((w, h)) for rows in rungs.values()]) for w, h in sizes])


def language():
    models = (("0.5b", "Qwen 2.5 0.5B's shape"), ("1b", "Llama 3.2 1B's shape"), ("8b", "Llama 3 8B's shape"))
    of = {label: read(f"h200-npc-{name}")["slots"] for name, label in models}
    counts = sorted({int(n) for slots in of.values() for n in slots})
    return lines("Characters at once", "characters who speak at once", "tokens a second, of all together",
                 [(label, [median(slots[str(n)]) if str(n) in slots else None for n in counts]) for label, slots in of.items()],
                 [str(n) for n in counts])


def denoiser_quality():
    still, path = ({row["name"]: row for row in read(f"cpu-denoise-{name}")["rows"]} for name in ("still", "path"))
    names = {"denoise.safetensors": "Tandem", "denoise.safetensors + history": "Tandem, with the frames before",
             "OIDN fast": "OIDN fast", "OIDN high": "OIDN high", "OIDN prefiltered": "OIDN prefiltered",
             "a-trous": "a-trous", "joint bilateral": "joint bilateral", "box 5x5": "box 5 x 5", "input": "nothing done"}
    return bars("Denoisers' quality", "PSNR in dB (more is better)", ["frames alone", "along a path"],
                [(shown, [still[name]["psnr_db"] if "history" not in name else None, path[name]["psnr_db"]])
                 for name, shown in names.items()])


def tavern():
    frames = read("h200-tavern")["tavern"]["frames"]
    return bars("Frames of the tavern", "milliseconds a frame, 960 x 540 (less is better)", ["nobody talks", "people talk"],
                [(name, [frames["quiet"][key], frames["talking"][key]])
                 for key, name in (("p50_ms", "half of them"), ("p95_ms", "95 of 100"), ("p99_ms", "99 of 100"))])


# name: (heading, the plot, the JSON that it is of, what is to be said of it)
PLOTS = {
    "attention": ("Attention", lambda: attention(False), ["h200-attention-peers"],
                  "Batch 4, 32 heads, each contender in turn in one process, with its own clock. What `8b` is, and at which sizes it "
                  "falls short, is in [NOTES.md](kernels/attention/NOTES.md)."),
    "attention-causal": ("Causal attention", lambda: attention(True), ["h200-attention-peers"], "The same, with a mask."),
    "handover": ("The hand-over", handover, ["h200-handover"],
                 "A frame in which a renderer hands a job over and takes it back, with the job itself; the sizes are what the job "
                 "reads and writes. Dashed are floors: without a session, and without CUDA."),
    "effect": ("The denoiser in a frame", effect, ["h200-effect"], "The weights of [demo/assets](demo/assets/README.md)."),
    "denoisers": ("The denoiser's quality", denoiser_quality, ["cpu-denoise-still", "cpu-denoise-path"],
                  "Frames of another renderer's with one sample a pixel, which it never saw: eight alone, and along two paths, where it "
                  "has the frames before. OIDN is Open Image Denoise; what prefilters takes the time of several."),
    "language": ("Language models", language, ["h200-npc-0.5b", "h200-npc-1b", "h200-npc-8b"],
                 "Random weights of Q8_0 in the shapes of known models."),
    "tavern": ("Characters in a frame", tavern, ["h200-tavern"], "The demo's tavern, with a budget of 1 ms for those who talk."),
}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, draw, _, _) in PLOTS.items():
        (folder / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
