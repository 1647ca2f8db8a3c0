#!/usr/bin/env python3
# The demo from outside: its files, its numbers, its command line. Argument: the build folder.
# SPDX-License-Identifier: Apache-2.0
import ctypes
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import zlib

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import limits

build = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build")
program = os.path.join(build, "tandem-demo")
if not os.path.exists(program):
    print("SKIP: the demo was not built")
    sys.exit(77)
try:
    import numpy as np
except ImportError:
    print("SKIP: numpy is not installed")
    sys.exit(77)

folder = tempfile.mkdtemp(prefix="tandem-demo-")
failures = []
STAGES = ["render", "pack", "hand-over (to)", "attention", "hand-over (back)", "unpack", "present"]
NETWORK = ["--headless", "--width", "160", "--height", "90", "--samples", "16"]
SMALL = NETWORK + ["--effect", "filter"]


def check(condition, text):
    print(("ok    " if condition else "FAIL  ") + text, flush=True)
    if not condition:
        failures.append(text)


def run(arguments, environment=None, seconds=240, program=program):
    env = dict(os.environ)
    env.update(environment or {})
    env = {k: v for k, v in env.items() if v is not None}
    done = limits.run([program] + arguments, env=env, capture_output=True, text=True, seconds=seconds)
    return done.returncode, done.stdout, done.stderr


def report(name, *arguments, environment=None, base=SMALL):
    out = os.path.join(folder, name)
    code, text, errors = run(base + ["--out", out] + list(arguments), environment)
    check(code == 0, f"{name}: ends well (exit status {code}; {errors.strip()[:300]})")
    check("no CUDA here" not in text and "libcuda" not in text, f"{name}: says in plain words why nothing is faster")
    if code:
        finish()
    with open(os.path.join(out, "report.json")) as file:
        return out, json.load(file), errors


def png_size(path):
    with open(path, "rb") as file:
        data = file.read()
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        return None, 0
    width, height, depth, kind = struct.unpack(">IIBB", data[16:26])
    at, body = 8, b""
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        body += data[at + 8:at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    return (width, height), len(set(zlib.decompress(body)))


def safetensors(path):
    with open(path, "rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(length))
        data = file.read()
    result = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            result[name] = np.frombuffer(data[begin:end], {"F16": "<f2",
                                                           "F32": "<f4"}[entry["dtype"]]).reshape(entry["shape"])
    return result


def accuracy(tensors):
    q, k, v, o = (tensors[name].astype(np.float64) for name in "qkvo")
    exact = np.empty_like(o)
    for b in range(q.shape[0]):
        s = q[b, 0] @ k[b, 0].T / math.sqrt(q.shape[-1])
        p = np.exp(s - s.max(1, keepdims=True))
        exact[b, 0] = p @ v[b, 0] / p.sum(1, keepdims=True)
    error = o - exact
    return {"cos": (o * exact).sum() / math.sqrt((o * o).sum() * (exact * exact).sum()),
            "rel_l1": np.abs(error).sum() / np.abs(exact).sum(),
            "rmse": math.sqrt((error * error).mean())}


def finish():
    shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(failures)} failures")
    sys.exit(1 if failures else 0)


def check_files():
    dump, trace = os.path.join(folder, "last.safetensors"), os.path.join(folder, "trace.json")
    out, r, _ = report("plain", "--frames", "9", "--dump", dump, "--trace", trace, "--samples", "128",
                       base=["--headless"])
    check(list(r) == ["backend", "rung", "rung_reason", "device", "frames", "width", "height", "precision", "frame",
                      "stages",
                      "accuracy", "psnr", "seams", "effect", "model", "preset", "quality", "presets"],
          "the report has the members that it should have")
    check(r["backend"] in ("cuda", "cpu") and r["rung"] in ("inline", "timeline", "host", "copy", "cpu"),
          "backend and rung")
    check(r["rung"] == "inline" or r["rung_reason"], "the report says why the rung is not higher")
    check(r["frames"] == 9 and r["width"] >= 320 and r["height"] >= 180, "frames and size are those asked for")
    check(list(r["stages"]) == STAGES, "all stages are there")
    for name, p in list(r["stages"].items()) + [("frame", r["frame"])]:
        check(0 <= p["p50_ms"] <= p["p95_ms"] <= p["p99_ms"], f"{name}: percentiles rise")
    for name in ("first.png", "last.png", "reference.png"):
        size, values = png_size(os.path.join(out, name))
        check(size == (r["width"], r["height"]) and values > 64, f"{name} is a picture of a frame")
    size, values = png_size(os.path.join(out, "overlay.png"))
    check(size and size[0] >= 1280 and size[1] >= 720 and values > 64, "overlay.png is at least 1280x720")

    psnr = r["psnr"]
    print(f"      PSNR {psnr}, seams {r['seams']['ratio']:.3f}, accuracy {r['accuracy']}")
    check(psnr["result_db"] >= psnr["noisy_db"] + 9, "at least 9 dB above the input")
    check(psnr["result_db"] >= psnr["box_db"] + 2, "at least 2 dB above the best box filter")
    check(r["seams"]["ratio"] <= 1.3, "no seams")
    check(r["precision"] == "8b" and 0.001 < r["accuracy"]["rel_l1"] < 0.1, "quantisation is visible and small")

    tensors = safetensors(dump)
    outside = accuracy(tensors)
    for name in ("cos", "rel_l1", "rmse"):
        check(abs(outside[name] - r["accuracy"][name]) < 1e-3, f"{name} recomputed from the dump: {outside[name]:.6f}")
    k, q = tensors["k"].astype(np.float64), tensors["q"].astype(np.float64)
    gain = q[0, 0, 0, 14]
    check((q[..., 14] == gain).all() and np.abs(k[..., 14] + (k[..., :14] ** 2).sum(-1) / (2 * gain)).max() < 0.1,
          "scores fall with the distance between features")

    with open(trace) as file:
        events = json.load(file)["traceEvents"]
    frames = {}
    for event in events:
        if event["ph"] == "X":
            frames.setdefault(event["args"]["frame"], []).append(event)
    check(sorted(frames) == list(range(9)), "the trace has every frame")
    for number, list_ in sorted(frames.items()):
        begin, end = min(e["ts"] for e in list_), max(e["ts"] + e["dur"] for e in list_)
        in_order = all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in zip(list_, list_[1:]))
        total = sum(e["dur"] for e in list_)
        check(in_order and [e["name"] for e in list_] == STAGES and abs(total - (end - begin)) <= 0.1 * total,
              f"frame {number}: stages follow each other and sum to the frame")
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    check(len(lanes) == 3, "the trace names its lanes")


def check_network():
    """What the demo does when nothing is asked of it: the trained network, with its history."""
    out, r, errors = report("network", "--frames", "9", "--samples", "256", base=NETWORK)
    q = r["quality"]
    print(f"      {q}")
    check(r["effect"] == "denoise" and r["model"].endswith("denoise.safetensors") and "accuracy" not in r and not errors,
          "the trained network is the default")
    check(q["denoise_db"] == r["psnr"]["result_db"] and q["input_db"] == r["psnr"]["noisy_db"], "quality says the same")
    check(q["denoise_db"] >= q["input_db"] + 5, "the network: at least 5 dB above the input")
    check(q["denoise_db"] >= q["denoise_single_db"], "the frames before help")
    check(q["filter_db"] > q["input_db"] + 2, "the filter is measured on the same frames")
    for name in ("first.png", "last.png", "reference.png"):
        size, values = png_size(os.path.join(out, name))
        check(size == (160, 90) and values > 64, f"{name} is a picture of a frame")
    _, filtered, _ = report("filtered", "--frames", "2", "--samples", "256")
    check(filtered["effect"] == "filter" and filtered["quality"]["denoise_db"] is None and
          filtered["quality"]["denoise_single_db"] > filtered["quality"]["input_db"] + 5, "a run of the filter measures the network")
    for width, height in ((33, 57), (200, 64)):
        _, other, _ = report(f"network-{width}", "--frames", "2", "--width", str(width), "--height", str(height), base=NETWORK)
        check(other["quality"]["denoise_db"] > other["quality"]["input_db"] + 3, f"{width}x{height}")


def check_network_ladder():
    """Down the ladder with two frames under way: every pixel of each is what one session on the CPU makes of all frames."""
    _, r, errors = report("network-ladder", "--frames", "17", "--ladder", "4", "--in-flight", "2", "--width", "97", "--height", "66",
                          base=NETWORK, environment={"TANDEM_DEMO_VALIDATE": "1"})
    stays = r["ladder"]
    print("      " + ", ".join(f"{s['rung']} {s['ms']['frame']['p50_ms']:.1f} ms, {s['worst_rel_l1']:.6f}" for s in stays))
    check([s["frames"] for s in stays] == [4, 4, 4, 4, 1] and all(s["not_filtered"] == 0 for s in stays), "a step every four frames")
    check(all(s["worst_rel_l1"] < 0.01 for s in stays), "the network's ladder: every frame is right")
    check({"host", "copy", "cpu"} <= {s["rung"] for s in stays} and not errors,
          f"on the rungs that every machine has, without complaints: {errors.strip()[:200]}")
    for rung in ("copy", "cpu"):
        _, r, errors = report("network-" + rung, "--frames", "1", "--rung", rung, base=NETWORK)
        check(r["rung"] == rung and not errors, f"one frame of the network, --rung {rung}: {errors.strip()[:200]}")


def write_safetensors(path, cut=None):
    """A file that is whole, but of no network; or the network's own, cut off."""
    if cut:
        with open(os.path.join(build, "denoise.safetensors"), "rb") as file:
            data = file.read()[:cut]
    else:
        header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
        data = struct.pack("<Q", len(header)) + header + bytes(16)
    with open(path, "wb") as file:
        file.write(data)
    return path


def check_model_files():
    """A file that was asked for is used, or it is an error; without one that was not, the filter does it, and that is said."""
    alone = os.path.join(folder, "alone")
    os.mkdir(alone)
    lone = shutil.copy(program, alone)
    beside = os.path.join(alone, "denoise.safetensors")
    cases = [("no file", lambda: None, "beside the program"), ("no network", lambda: write_safetensors(beside), beside),
             ("a cut file", lambda: write_safetensors(beside, 300000), beside)]
    for name, prepare, words in cases:
        prepare()
        out = os.path.join(alone, "out")
        code, _, errors = run(NETWORK + ["--frames", "1", "--out", out], program=lone)
        check(code == 0 and errors.count("\n") == 1 and words in errors and "filter instead" in errors, f"{name}: {errors.strip()}")
        with open(os.path.join(out, "report.json")) as file:
            r = json.load(file)
        check(r["effect"] == "filter" and r["model"] is None and r["quality"]["denoise_single_db"] is None, f"{name}: the filter")
        code, _, errors = run(NETWORK + ["--effect", "denoise", "--out", out], program=lone)
        check(code == 1 and errors.count("\n") == 1 and words in errors, f"{name}, --effect denoise: {errors.strip()}")
    for path in (os.path.join(folder, "none"), folder, write_safetensors(os.path.join(folder, "no")), write_safetensors(os.path.join(folder, "cut"), 9)):
        code, _, errors = run(NETWORK + ["--model", path, "--out", folder])
        check(code == 1 and errors.count("\n") == 1 and f"--model {path}: " in errors and errors.count(path) == 1,
              f"--model: {errors.strip()}")
    shutil.copy(os.path.join(build, "denoise.safetensors"), os.path.join(folder, "mine"))
    _, r, _ = report("named", "--frames", "1", "--model", os.path.join(folder, "mine"), base=NETWORK)
    check(r["effect"] == "denoise" and r["model"] == os.path.join(folder, "mine"), "--model takes a file of somebody's own")


def check_presets():
    """Each by its name, with what it comes to and takes; one whose file is not there is refused, and with the file is there."""
    alone = os.path.join(folder, "presets")
    os.mkdir(alone)
    lone = shutil.copy(program, alone)
    for name in ("denoise-fast.safetensors", "denoise.safetensors"):
        shutil.copy(os.path.join(build, name), alone)
    reports = {}
    for name, more in (("balanced", []), ("fast", ["--preset", "fast"]), ("high", ["--preset=high"])):
        arguments = NETWORK + ["--frames", "4", "--out", os.path.join(alone, "out"), *more]
        if name == "high":
            code, _, errors = run(arguments, program=lone)
            check(code == 2 and errors.count("\n") == 1 and "--preset high: there is no denoise-high.safetensors" in errors and
                  errors.strip().endswith("fast, balanced"), f"--preset high without its file: {errors.strip()}")
            shutil.copy(os.path.join(build, "denoise.safetensors"), os.path.join(alone, "denoise-high.safetensors"))
        code, text, errors = run(arguments, program=lone)
        check(code == 0 and not errors and "MB of weights" in text, f"--preset {name}: {errors.strip()}")
        with open(os.path.join(alone, "out", "report.json")) as file:
            r = reports[name] = json.load(file)
        has = r["presets"]
        check(r["preset"] == name and os.path.basename(r["model"]) == has[name]["file"] and
              has[name]["denoise_single_db"] == r["quality"]["denoise_single_db"], f"{name} is the one in use")
        check(list(has) == ["fast", "balanced"] + ["high"] * (name == "high") and
              has["fast"]["weight_bytes"] < has["balanced"]["weight_bytes"] and all(p["scratch_bytes"] > 0 for p in has.values()),
              f"what each takes: {has}")
    dbs = [{name: p["denoise_single_db"] for name, p in r["presets"].items()} for r in reports.values()]
    check(all(abs(db["fast"] - dbs[0]["fast"]) < 1e-9 and db["balanced"] > r["quality"]["input_db"] + 5 and
              db["fast"] != db["balanced"] for db, r in zip(dbs, reports.values())), f"each preset is measured on single frames, whichever is in use: {dbs}")
    with open(os.path.join(alone, "denoise-fast.safetensors"), "r+b") as file:
        file.truncate(300000)
    code, _, errors = run(NETWORK + ["--preset", "fast", "--out", alone], program=lone)
    check(code == 1 and errors.count("\n") == 1 and "--preset fast: " in errors and "denoise-fast.safetensors" in errors,
          f"a preset's file that is cut off: {errors.strip()}")
    code, _, errors = run(NETWORK + ["--frames", "1", "--out", os.path.join(alone, "out")], program=lone)
    check(code == 0 and errors.count("\n") == 1 and "without the preset fast: " in errors,
          f"another's, which is left out: {errors.strip()}")
    _, r, _ = report("own", "--frames", "1", "--model", os.path.join(build, "denoise.safetensors"), base=NETWORK)
    check(r["preset"] is None and r["presets"] == {} and r["quality"]["denoise_single_db"] > 0,
          "a network of somebody's own is no preset")


def check_saved_frames():
    """Frames for other denoisers: `tandem eval denoise` has of them what the report says of the network."""
    out, r, errors = report("saved", "--frames", "4", "--save-frames", "--scene", "gallery", base=NETWORK)
    names = sorted(name for name in os.listdir(out) if name.endswith(".safetensors"))
    check(names == [f"gallery-{i:06}.00.safetensors" for i in (0, 1, 3)] and not errors, f"the frames that are judged: {names}")
    frames = [safetensors(os.path.join(out, name)) for name in names]
    check(all({name: x.shape for name, x in frame.items()} == {
        "color": (90, 160, 3), "albedo": (90, 160, 3), "normal": (90, 160, 3), "depth": (90, 160, 1), "reference": (90, 160, 3)}
        for frame in frames), "with all their tensors")
    check(all(np.isfinite(x).all() for frame in frames for x in frame.values()), "which are finite")
    lamps = [(frame, frame["depth"][..., 0] == 0) for frame in frames]
    check(all(lamp.any() and not frame["albedo"][lamp].any() and not frame["normal"][lamp].any() and
              frame["reference"][lamp].mean() > 1 for frame, lamp in lamps), "a lamp is light alone")
    result, models = os.path.join(folder, "eval.json"), [os.path.join(build, p["file"]) for p in r["presets"].values()]
    done = limits.run([os.path.join(build, "tandem"), "eval", "denoise", "--frames", out, "--no-oidn", "--json", result, "--model",
                       ",".join(models)], capture_output=True, text=True, seconds=120)
    check(done.returncode == 0, f"tandem eval denoise reads them: {done.stderr.strip()}")
    with open(result) as file:
        rows = {row["name"]: row["psnr_db"] for row in json.load(file)["rows"]}
    expected = {"input": r["psnr"]["noisy_db"], **{p["file"]: p["denoise_single_db"] for p in r["presets"].values()}}
    print(f"      {expected} {rows}")
    check(all(abs(rows[name] - db) < 0.02 for name, db in expected.items()), "and has of them what the report says")


def check_tavern():
    """Its people, without a model that thinks for them; and, where it is there, with the one that comes with the demo."""
    alone = os.path.join(folder, "nobody")
    os.mkdir(alone)
    lone = shutil.copy(program, alone)
    shutil.copy(os.path.join(build, "denoise.safetensors"), alone)
    small = ["--headless", "--scene", "tavern", "--width", "96", "--height", "54", "--samples", "4"]
    out = os.path.join(folder, "tavern")
    code, text, errors = run(small + ["--frames", "4", "--out", out], {"TANDEM_DEMO_VALIDATE": "1"}, program=lone)
    check(code == 0 and not errors and "Nobody talks" in text and "--npc-model" in text, f"a tavern without a model: {errors.strip()}")
    with open(os.path.join(out, "report.json")) as file:
        r = json.load(file)["tavern"]
    check(r["model"] is None and "tandem fetch" in r["note"] and r["told"] == [], "the report says why nobody talks")
    size, values = png_size(os.path.join(out, "overlay.png"))
    check(size == (1280, 720) and values > 64, "overlay.png of the tavern")
    path = os.path.join(folder, "none.gguf")
    code, _, errors = run(small + ["--npc-model", path, "--out", out])
    check(code == 1 and errors.count("\n") == 1 and f"--npc-model {path}: " in errors, f"--npc-model: {errors.strip()}")
    if not os.path.exists(os.path.join(build, "npc.gguf")):
        print("      there is no npc.gguf here")
        return
    code, text, errors = run(small + ["--frames", "120", "--npc-budget", "50000", "--out", out])
    with open(os.path.join(out, "report.json")) as file:
        r = json.load(file)["tavern"]
    print("      " + text[text.find("  to "):].replace("\n", "\n      "))
    ended = [t for t in r["told"] if t["end"] == "ended"]
    check(code == 0 and len({t["who"] for t in ended}) == 4, "all four answer")
    check(all(t["said"] and 0 < t["first_token_ms"] <= t["ms"] and t["tokens"] for t in ended), "what was said, and how soon")
    check({"give", "follow", "refuse"} <= {t["action"] for t in ended}, "somebody gives, somebody follows, somebody refuses")
    check(any("Lark Inn" in t["said"] for t in ended), "where they are is on their cards")
    check(r["frames"]["quiet"]["frames"] >= 30 and r["frames"]["talking"]["frames"] > 0 and r["budget_us"] == 50000 and
          r["tokens_per_s"] > 0 and r["cache_bytes"]["k4v8"] < r["cache_bytes"]["f16"], "what it took")


def check_errors_and_delays():
    _, plain, _ = report("quiet", "--frames", "7")
    _, again, _ = report("again", "--frames", "7")
    same = all(abs(plain["accuracy"][name] - again["accuracy"][name]) < 1e-9 for name in plain["accuracy"])
    check(same, "a seed gives the same frames")
    check(abs(plain["psnr"]["result_db"] - again["psnr"]["result_db"]) < 1e-9, "and the same quality")
    _, other, _ = report("other", "--frames", "7", "--seed", "7")
    check(abs(other["psnr"]["noisy_db"] - plain["psnr"]["noisy_db"]) > 1e-6, "another seed gives other frames")

    _, wrong, _ = report("error", "--frames", "7", "--inject", "error:0.05")
    check(abs(wrong["accuracy"]["rel_l1"] - plain["accuracy"]["rel_l1"] - 0.05) < 1e-3,
          "error:0.05 raises the error by 0.05")
    check(abs(wrong["psnr"]["result_db"] - plain["psnr"]["result_db"]) < 1e-9 and wrong["seams"] == plain["seams"],
          "and nothing else")

    _, stepped, _ = report("stepped", "--frames", "20", "--max-error", "0.002")
    check(stepped["precision"] == "f16" and list(stepped) == list(plain), "more than --max-error steps up to f16")
    _, kept, _ = report("kept", "--frames", "20", "--inject", "error:0.1")
    check(kept["precision"] == "8b", "an injected error moves the figure only")

    asked = {"render": "render", "pack": "pack", "hand-over (to)": "to", "attention": "attention",
             "hand-over (back)": "back",
             "unpack": "unpack", "present": "present"}
    for stage, name in asked.items():
        _, slow, _ = report("slow-" + name, "--frames", "5", "--inject", name + ":300")
        moved = {s: slow["stages"][s]["p50_ms"] - plain["stages"][s]["p50_ms"] for s in STAGES}
        # The machine may be busy: what was not delayed may move too, but never like what was.
        check(240 < moved[stage] < 600, f"{name}:300 delays {stage} ({moved[stage]:.1f} ms)")
        check(all(abs(moved[s]) < 120 for s in STAGES if s != stage), f"{name}:300 delays nothing else ({moved})")

    _, f16, _ = report("f16", "--frames", "2", "--mode", "f16")
    check(f16["precision"] == "f16" and f16["accuracy"]["rel_l1"] < 2e-3, "f16 is exact")
    _, gallery, _ = report("gallery", "--frames", "2", "--scene", "gallery", "--backend", "cpu", "--threads", "1")
    check(gallery["backend"] == "cpu" and gallery["psnr"]["noisy_db"] != plain["psnr"]["noisy_db"],
          "another scene, on the CPU")


def check_scenes():
    """Under a sky, and full of small things: what cleans them comes nearer to the reference than any box, and the validation
    layer is silent about what is compiled for their traits."""
    for scene in ("courtyard", "clutter"):
        _, r, errors = report(scene, "--frames", "2", "--scene", scene, environment={"TANDEM_DEMO_VALIDATE": "1"},
                              base=["--headless", "--width", "112", "--height", "63", "--samples", "24"])
        q = r["quality"]
        print(f"      {scene}: {q}")
        check(not errors, f"{scene}: nothing to complain about: {errors.strip()[:200]}")
        check(q["filter_db"] > q["input_db"] + 1.5, f"{scene}: the filter's codes are not spent on a sky")
        check(q["denoise_db"] > q["input_db"] + 3 and q["denoise_db"] > q["box_db"] and q["denoise_single_db"] > q["input_db"] + 3,
              f"{scene}: the network does better than the input and boxes")
        size, values = png_size(os.path.join(folder, scene, "last.png"))
        check(size == (112, 63) and values > 64, f"{scene}: a picture")


def check_attention():
    """What the network mixes a pixel from: weights that are 1 together, and by which it comes out as the network has it."""
    for name, frames, more, at in (("mixture", 4, [], (80, 45)), ("mixture-corner", 2, ["--scene", "gallery", "--rung", "copy"], (0, 89)),
                                   ("mixture-first", 1, ["--width", "97", "--height", "67"], (96, 30))):
        out, r, errors = report(name, "--frames", str(frames), "--attention-at", f"{at[0]},{at[1]}", *more, base=NETWORK)
        a = r["attention"]
        print(f"      {a}")
        check(a["pixel"] == list(at) and not errors, f"{name}: of that pixel")
        check(abs(a["this_frame"] + a["frames_before"] - 1) < 1e-9, f"{name}: all weights together are 1")
        check(all(abs(x - y) < 1e-4 * (1e-3 + abs(y)) for x, y in zip(a["mixed"], a["network"])), f"{name}: they give what the network gives")
        check(a["frames_before"] == 0 if frames == 1 else a["frames_before"] > 0.01, f"{name}: frames before count where there are some")
        last = pixels(os.path.join(out, "last.png"))[at[1], at[0], :3]
        shown = [255 * (x / (1 + x)) ** (1 / 2.2) for x in a["network"]]
        check(np.abs(last - shown).max() < 2, f"{name}: which is what is shown: {last} {shown}")
        check(png_size(os.path.join(out, "attention.png"))[0] == (r["width"], r["height"]), f"{name}: a picture of them")
    for arguments, words in ((["3"], ["3", "X,Y"]), (["3,"], ["--attention-at"]), (["-1,4"], ["-1"]), (["160,2"], ["160,2", "160x90"]),
                             (["2,90"], ["2,90", "160x90"]), (["1,1", "--effect", "filter"], ["--effect denoise"])):
        code, _, errors = run(NETWORK + ["--attention-at"] + arguments)
        check(code == 2 and errors.count("\n") == 1 and all(w in errors for w in words), f"--attention-at {arguments}: {errors.strip()}")


FAKE_OIDN = r"""
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static float *color, *output;
static size_t pixels;
static int failed;
static void tell(const char *file) { if (FAKE == 4) close(open(file, O_CREAT | O_WRONLY, 0600)); }
void *oidnNewDevice(int type)
{
    tell("opening");
    while (FAKE == 4 && access("opens", F_OK)) usleep(1000);
    return FAKE == 1 || type != 1 ? NULL : &pixels;
}
void oidnCommitDevice(void *d) { (void)d; }
void oidnReleaseDevice(void *d) { (void)d; }
int oidnGetDeviceError(void *d, const char **text) { *text = d ? "out of ink" : "no such device"; return d ? failed : 1; }
int oidnGetDeviceInt(void *d, const char *name) { (void)d; return strcmp(name, "versionMajor") ? 7 : 2; }
void *oidnNewFilter(void *d, const char *type) { (void)d; return strcmp(type, "RT") ? NULL : &failed; }
void oidnSetSharedFilterImage(void *f, const char *name, void *at, int format, size_t w, size_t h, size_t o, size_t p, size_t r)
{
    (void)f, (void)o, (void)p, (void)r;
    failed |= format != 3;
    pixels = w * h;
    if (!strcmp(name, "color")) color = at;
    if (!strcmp(name, "output")) output = at;
}
void oidnSetFilterBool(void *f, const char *name, bool value) { (void)f, (void)name, (void)value; }
void oidnCommitFilter(void *f) { (void)f; }
void oidnExecuteFilter(void *f) { (void)f; failed |= FAKE == 2; memcpy(output, color, pixels * 12); tell("cleaned"); }
#if FAKE != 3
void oidnReleaseFilter(void *f) { (void)f; }
#endif
"""


def find_oidn():
    """The library as PyPI's pyoidn brings it, or as it is installed."""
    for base in sys.path + [os.environ.get("TANDEM_TEST_SITE", "")]:
        path = os.path.join(base, "pyoidn", "oidn", "lib", "libOpenImageDenoise.so.2")
        if base and os.path.exists(path):
            return path
    return None


def make_oidn(kind):
    """A stand-in for its library, of which each kind fails otherwise; 4: not, but it takes its time."""
    source, library = os.path.join(folder, "fake.c"), os.path.join(folder, f"fake{kind}.so")
    with open(source, "w") as file:
        file.write(FAKE_OIDN)
    done = subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", f"-DFAKE={kind}", source, "-o", library], capture_output=True)
    check(done.returncode == 0, f"a stand-in compiles ({done.stderr.decode()[:200]})")
    return library


def check_oidn():
    """Beside Open Image Denoise: a stand-in that gives back what it was given measures as the input does, and what fails says so."""
    source, small = os.path.join(folder, "fake.c"), NETWORK + ["--frames", "1", "--out", os.path.join(folder, "fake")]
    fakes = [make_oidn(kind) for kind in range(4)]
    out, r, _ = report("beside", "--frames", "1", "--oidn", fakes[0], base=NETWORK)
    q = r["quality"]
    check(abs(q["oidn_db"] - q["input_db"]) < 1e-6 and q["oidn"] == "2.7, on the CPU" and q["oidn_ms"] >= 0, f"beside a stand-in: {q}")
    check(png_size(os.path.join(out, "oidn.png"))[0] == (160, 90), "and its picture")
    for library, words in ((fakes[1], ["no CPU device", "no such device"]), (fakes[2], ["out of ink"]), (fakes[3], ["no oidnReleaseFilter"]),
                           ("/none.so", ["/none.so"]), (source, [source, "ELF"])):
        code, _, errors = run(small + ["--oidn", library])
        check(code == 1 and errors.count("\n") == 1 and all(w in errors for w in words), f"--oidn {library}: {errors.strip()}")
    real = find_oidn()
    with open(program, "rb") as file:
        sanitized = b"__asan_init" in file.read()
    if not real or sanitized:
        print("      no Open Image Denoise to compare with: " +
              ("AddressSanitizer ends what opens libraries as its threads do" if real else "it is not here (PyPI: pyoidn)"))
        return
    _, r, _ = report("beside-real", "--frames", "2", "--oidn", real, "--samples", "256", base=NETWORK)
    q = r["quality"]
    print(f"      {q}")
    check(q["oidn_db"] > q["input_db"] + 5 and q["oidn_ms"] > 0, "Open Image Denoise itself does its work")


def check_ladder():
    """Down the ladder while frames are under way: none is lost, and every row of each is right."""
    for name, more, environment in (("ladder", [], None),
                                    ("ladder-2", ["--in-flight", "2", "--seed", "3"], {"TANDEM_DEMO_VALIDATE": "1"})):
        _, r, errors = report(name, "--frames", "14", "--ladder", "3", *more, environment=environment)
        stays = r["ladder"]
        print("      " + ", ".join(f"{s['rung']} {s['ms']['frame']['p50_ms']:.1f} ms, {s['worst_rel_l1']:.4f}"
                                   for s in stays))
        check([s["frames"] for s in stays] == [3, 3, 3, 3, 2] and
              [s["first"] for s in stays] == [0, 3, 6, 9, 12], f"{name}: a step every three frames")
        check(all(s["not_filtered"] == 0 and 1e-4 < s["worst_rel_l1"] < 0.05 for s in stays),
              f"{name}: every row of every frame is right")
        rungs = [s["rung"] for s in stays]
        check(all(a != b for a, b in zip(rungs, rungs[1:])) and rungs[0] == stays[0]["rung"], f"{name}: {rungs}")
        check({"host", "copy", "cpu"} <= set(rungs), f"{name}: the rungs that every machine has")
        check(not errors, f"{name}: nothing to complain about: {errors.strip()[:200]}")
    for rung in ("host", "copy", "cpu"):
        _, r, _ = report("on-" + rung, "--frames", "2", "--rung", rung)
        check(r["rung"] == rung and r["accuracy"]["rel_l1"] < 0.05, f"--rung {rung}")
    if not os.path.exists("/dev/nvidiactl"):
        code, _, errors = run(SMALL + ["--rung", "inline", "--out", folder])
        check(code == 1 and "inline" in errors, f"no inline rung: {errors.strip()[:200]}")


def check_surroundings():
    _, _, errors = report("validated", "--frames", "3", environment={"TANDEM_DEMO_VALIDATE": "1"})
    check("validation" not in errors, "the validation layer is silent")
    _, _, errors = report("libraries", "--frames", "1", environment={"LD_DEBUG": "files"})
    check("libvulkan" in errors and "SDL" not in errors and "tandem_window" not in errors,
          "headless does not load SDL2")
    nothing = {"DISPLAY": None, "WAYLAND_DISPLAY": None, "SDL_VIDEODRIVER": None}
    _, _, errors = report("no-display", "--frames", "1", environment=nothing, base=SMALL[1:])
    check("headless" in errors, "no display: says that it runs headless")
    if shutil.which("xvfb-run") and os.path.exists(os.path.join(build, "tandem_window.so")):
        out = os.path.join(folder, "window")
        done = limits.run(["xvfb-run", "-a", "-s", "-screen 0 1280x720x24", program, "--frames", "6", "--width",
                           "160",
                           "--height", "90", "--out", out], capture_output=True, text=True, seconds=120,
                          env=dict(os.environ, SDL_VIDEODRIVER="x11", TANDEM_DEMO_VALIDATE="1"))
        check(done.returncode == 0 and "validation" not in done.stderr and "headless" not in done.stderr,
              f"a window of six frames ({done.stderr.strip()[:300]})")
        for option, *value in (("--samples", "16"), ("--ladder", "2"), ("--dump", out), ("--save-frames",)):
            done = limits.run(["xvfb-run", "-a", program, option, *value], capture_output=True, text=True, seconds=120,
                              env=dict(os.environ, SDL_VIDEODRIVER="x11"))
            check(done.returncode == 2 and f"{option}: only with --headless" in done.stderr, f"a window has no {option}")


def pixels(path, most=4096):
    """An 8-bit PNG without interlacing, as an array; no more than so many rows of it."""
    with open(path, "rb") as file:
        data = file.read()
    width, height, _, kind = struct.unpack(">IIBB", data[16:26])
    at, body = 8, b""
    while at < len(data):
        length, name = struct.unpack(">I4s", data[at:at + 8])
        body += data[at + 8:at + 8 + length] if name == b"IDAT" else b""
        at += 12 + length
    channels = {2: 3, 6: 4}[kind]
    height = min(height, most)
    rows = np.frombuffer(zlib.decompress(body), np.uint8)[:height * (1 + width * channels)].reshape(height, 1 + width * channels)
    out = np.zeros((height, width, channels), np.int32)
    before = np.zeros((width, channels), np.int32)
    for y, row in enumerate(rows):
        line = row[1:].reshape(width, channels).astype(np.int32)
        now = np.zeros((width, channels), np.int32)
        for x in range(width):
            left, up = now[x - 1] if x else 0, before[x]
            corner = before[x - 1] if x else 0
            if row[0] == 4:
                guess = left + up - corner
                a, b, c = np.abs(guess - left), np.abs(guess - up), np.abs(guess - corner)
                predicted = np.where((a <= b) & (a <= c), left, np.where(b <= c, up, corner))
            else:
                predicted = (0, left, up, (left + up) // 2)[row[0]]
            now[x] = (line[x] + predicted) & 255
        out[y] = before = now
    return out


def press_key(number, key, title, deadline):
    """Presses a key in the window of that title on a display of Xvfb; False if there is no such window in time. "click X,Y": the right
    button there."""
    x11, xtst = ctypes.CDLL("libX11.so.6"), ctypes.CDLL("libXtst.so.6")
    for function, result in ((x11.XOpenDisplay, ctypes.c_void_p), (x11.XKeysymToKeycode, ctypes.c_ubyte)):
        function.restype = result
    display = ctypes.c_void_p(x11.XOpenDisplay(f":{number}".encode()))
    root, parent, child = ctypes.c_ulong(x11.XDefaultRootWindow(display)), ctypes.c_ulong(), ctypes.POINTER(ctypes.c_ulong)()
    count, name, found = ctypes.c_uint(), ctypes.c_char_p(), None
    while not found and time.monotonic() < deadline:
        x11.XQueryTree(display, root, ctypes.byref(ctypes.c_ulong()), ctypes.byref(parent), ctypes.byref(child),
                       ctypes.byref(count))
        for i in range(count.value):
            if x11.XFetchName(display, ctypes.c_ulong(child[i]), ctypes.byref(name)) and title in (name.value or b""):
                found = ctypes.c_ulong(child[i])
        time.sleep(0.1)
    if found:
        x11.XSetInputFocus(display, found, 1, ctypes.c_ulong(0))
        place = [int(x) for x in key[6:].split(",")] if key.startswith("click ") else None
        if place:
            xtst.XTestFakeMotionEvent(display, -1, *place, ctypes.c_ulong(0))
        code = 3 if place else x11.XKeysymToKeycode(display, ctypes.c_ulong(x11.XStringToKeysym(key.encode())))
        for down in (1, 0):
            x11.XSync(display, 0)
            time.sleep(0.3)
            (xtst.XTestFakeButtonEvent if place else xtst.XTestFakeKeyEvent)(display, code, down, ctypes.c_ulong(0))
        x11.XSync(display, 0)
    x11.XCloseDisplay(display)
    return bool(found)


def has_windows():
    """Whether keys can be pressed in one."""
    try:
        ctypes.CDLL("libXtst.so.6"), ctypes.CDLL("libX11.so.6")
    except OSError:
        print("SKIP  a key in a window: libXtst is missing; on Debian: apt-get install libxtst6")
        return False
    if not shutil.which("Xvfb") or not os.path.exists(os.path.join(build, "tandem_window.so")):
        print("SKIP  a key in a window: there is no Xvfb, or no window was built")
        return False
    return True


def begin_window(*more):
    """A display, its number, and the demo in a window there."""
    ready, tell = os.pipe()
    server = subprocess.Popen(["Xvfb", "-displayfd", str(tell), "-screen", "0", "1280x720x24", "-nolisten", "tcp"],
                              pass_fds=[tell], stderr=subprocess.DEVNULL)
    os.close(tell)
    number = os.read(ready, 16).decode().strip()
    demo = subprocess.Popen([program, "--width", "160", "--height", "90", "--frames", "100000", "--out", "pictures", *more],
                            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, DISPLAY=f":{number}", SDL_VIDEODRIVER="x11"))
    return server, number, demo


def end_window(server, demo):
    demo.terminate()
    told = demo.communicate(timeout=30 * limits.WALL)
    server.terminate()
    server.wait(timeout=30 * limits.WALL)
    return told


def check_window():
    """What somebody sees who starts the demo and presses P: the input beside the result, and where the picture went."""
    server, number, demo = begin_window()
    try:
        deadline = time.monotonic() + 60 * limits.WALL
        # The title has a rate once frames were shown.
        check(press_key(number, "p", b"shown a second", deadline), "the window's title says what is shown")
        path = os.path.join(folder, "pictures", "screenshot-001.png")
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(2)
        # From one preset to the next, and around.
        wider = os.path.exists(os.path.join(build, "denoise-high.safetensors"))
        for name in (b"balanced", *([b"high"] if wider else []), b"fast"):
            check(press_key(number, "m", b"trained denoiser " + name, deadline), f"M goes on from the preset {name.decode()}")
        # From the network to the filter, to the reference, and back.
        check(press_key(number, "n", b"trained denoiser balanced", deadline), "a window begins with the trained network")
        check(press_key(number, "r", b"8-bit", deadline), "N shows the filter")
        check(press_key(number, "n", b"Tandem", deadline) and press_key(number, "r", b"trained denoiser", deadline),
              "N shows the network again, from the resting reference too")
        time.sleep(1)
        check(press_key(number, "p", b"trained denoiser", deadline), "R rests")
        second, third = (os.path.join(folder, "pictures", f"screenshot-00{i}.png") for i in (2, 3))
        while not os.path.exists(second) and time.monotonic() < deadline:
            time.sleep(0.1)
        # From the resting picture to where a pixel's light comes from, back, and to the next scene.
        press_key(number, "click 300,200", b"Tandem", deadline)
        press_key(number, "p", b"Tandem", deadline)
        while not os.path.exists(third) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        press_key(number, "Escape", b"Tandem", deadline)
        press_key(number, "s", b"room", deadline)
        check(press_key(number, "x", b"gallery", deadline) and press_key(number, "o", b"gallery", deadline), "S goes to the next scene")
        time.sleep(1)
    finally:
        text, errors = end_window(server, demo)
    check(f"saved {os.path.realpath(path)}\n" in text, f"P says where the picture went: {text.strip()} {errors.strip()[:200]}")
    check("error" not in errors.lower() and not errors.strip(), f"nothing to complain about in a window: {errors.strip()[:300]}")
    if not all(os.path.exists(p) for p in (path, second, third)):
        return check(False, "three screenshots")
    map_ = pixels(third, 240)[60:, 30:810, :3]
    grey = np.abs(map_.max(2) - map_.min(2)) < 4
    check(0.7 < grey.mean() < 0.999, f"a right click shows where light comes from: {grey.mean():.3f} of the picture is grey")
    halves = pixels(second, 200)[60:, 30:810, :3]
    check(halves.shape == (140, 780, 3) and np.abs(np.diff(halves[:, :370].astype(int), axis=1)).mean() > 0,
          "and there is a picture of it")
    picture = pixels(path, 400)[60:, 30:810, :3]
    noise = np.abs(np.diff(picture.astype(int), axis=1)).mean((0, 2))
    check(picture.shape == (340, 780, 3) and noise[:370].mean() > 2 * noise[410:].mean(),
          f"a window begins with the input on the left, {noise[:370].mean():.2f}, and the result, {noise[410:].mean():.2f}")


def check_oidn_in_a_window():
    """It is not opened before somebody wants to see it, and frames go on while it is."""
    files = {name: os.path.join(folder, name) for name in ("opening", "opens", "cleaned")}
    pictures = os.path.join(folder, "pictures")
    shutil.rmtree(pictures, ignore_errors=True)

    def waits_for(path):
        while not os.path.exists(path) and time.monotonic() < deadline:
            time.sleep(0.02)
        return os.path.exists(path)

    server, number, demo = begin_window("--oidn", make_oidn(4))
    try:
        deadline = time.monotonic() + 30 * limits.WALL
        press_key(number, "p", b"shown a second", deadline)
        check(waits_for(os.path.join(pictures, "screenshot-001.png")) and not os.path.exists(files["opening"]),
              "Open Image Denoise is not opened for who does not ask for it")
        press_key(number, "o", b"Tandem", deadline)
        check(waits_for(files["opening"]), "O opens it")
        press_key(number, "p", b"Tandem", deadline)
        check(waits_for(os.path.join(pictures, "screenshot-002.png")) and not os.path.exists(files["cleaned"]),
              "frames are shown while it is being opened")
        open(files["opens"], "w").close()
        check(waits_for(files["cleaned"]), "and then it cleans them")
    finally:
        _, errors = end_window(server, demo)
    check(not errors.strip(), f"nothing to complain about beside it: {errors.strip()[:300]}")
    server, number, demo = begin_window("--oidn", "/none.so")
    try:
        code = demo.wait(timeout=30 * limits.WALL)
    finally:
        _, errors = end_window(server, demo)
    check(code == 1 and "--oidn /none.so: there is no such library" in errors, f"a window without what it was told of: {errors.strip()[:300]}")


def check_starved():
    """A machine that has no time for the demo, here for longer than a job waits for a GPU: it goes on where it was."""
    out = os.path.join(folder, "starved")
    demo = subprocess.Popen([program, "--headless", "--scene", "courtyard", "--width", "384", "--height", "216", "--samples", "1", "--frames",
                             "1", "--out", out], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=limits.cpu(240))

    def drawing():
        """How many threads, of those that began later, have had a tenth of a second: they draw the first frame."""
        return sum(thread != str(demo.pid) and cpu_ticks(f"/proc/{demo.pid}/task/{thread}/stat") >= os.sysconf("SC_CLK_TCK") // 10
                   for thread in os.listdir(f"/proc/{demo.pid}/task"))

    while demo.poll() is None and not drawing():
        time.sleep(0.01)
    check(demo.poll() is None, "starved: its first frame is seen")
    demo.send_signal(signal.SIGSTOP)
    time.sleep(31)
    demo.send_signal(signal.SIGCONT)
    _, errors = demo.communicate(timeout=240 * limits.WALL)
    check(demo.returncode == 0 and os.path.exists(os.path.join(out, "last.png")), f"starved: ends well ({errors.strip()[:300]})")


def cpu_ticks(path):
    try:
        with open(path) as file:
            return int(file.read().rpartition(")")[2].split()[11])
    except OSError:
        return 0  # it has just ended


def check_command_line():
    for arguments, words in [
            (["--scene", "cellar"], ["--scene", "cellar", "room", "gallery"]),
            (["--frames", "0"], ["--frames", "0"]), (["--frames", "many"], ["--frames", "many"]),
            (["--frames", "-3"], ["--frames", "-3"]), (["--frames"], ["--frames", "value"]),
            (["--mode", "2b"], ["--mode", "2b", "f16", "8b"]), (["--backend", "tpu"], ["--backend", "tpu", "cuda",
                                                                                       "cpu"]),
            (["--width", "7"], ["--width", "7"]), (["--height", "99999"], ["--height", "99999"]),
            (["--seed", "1.5"], ["--seed", "1.5"]), (["--threads", "9999999"], ["--threads"]),
            (["--inject", "lunch:3"], ["lunch"]), (["--inject", "render"], ["--inject", "render"]),
            (["--inject", "render:-1"], ["-1"]), (["--inject", "error:nan"], ["nan"]), (["--frobnicate"],
                                                                                        ["--frobnicate"]),
            (["--effect", "blur"], ["--effect", "blur", "filter", "denoise"]), (["--model", ""], ["--model"]),
            (["--effect", "denoise", "--mode", "8b"], ["--mode", "--effect filter"]),
            (["--inject", "error:0.1", "--model", "m"], ["--inject error", "--effect filter"]),
            (["--preset", "huge"], ["--preset", "huge", "fast", "balanced", "high"]),
            (["--preset", "fast", "--model", "m"], ["--preset fast", "--model m"]),
            (["--preset", "fast", "--mode", "8b"], ["--mode", "--effect filter"]),
            (["--rung", "sofa"], ["--rung", "sofa", "inline", "timeline", "host", "copy", "cpu"]),
            (["--ladder", "1"], ["--ladder", "1"]),
            (["--out", ""], ["--out"]), (["--headless=yes"], ["--headless"]), (["--save-frames=a"], ["--save-frames"])]:
        code, _, errors = run(["--headless"] + arguments)
        check(code == 2 and errors.count("\n") == 1 and all(w in errors for w in words),
              f"{' '.join(arguments)}: {errors.strip()}")
    code, text, _ = run(["--help"])
    check(code == 0 and "--headless" in text and "room, gallery, courtyard, clutter, tavern" in text, "--help")
    file = os.path.join(folder, "file")
    open(file, "w").close()
    for arguments in (["--out", file], ["--out", folder, "--trace", folder + "/none/t.json"]):
        code, _, errors = run(SMALL + ["--frames", "1"] + arguments)
        check(code == 1 and errors.count("\n") == 1, f"{arguments[-1]} cannot be written: {errors.strip()}")
    if not os.path.exists("/dev/nvidiactl"):
        code, _, errors = run(SMALL + ["--backend", "cuda", "--out", folder])
        check(code == 1 and "CUDA" in errors, f"no CUDA: {errors.strip()[:200]}")


check_command_line()
check_network()
check_network_ladder()
check_model_files()
check_presets()
check_saved_frames()
check_files()
check_tavern()
check_errors_and_delays()
check_scenes()
check_oidn()
check_attention()
check_ladder()
check_surroundings()
check_starved()
if has_windows():
    check_window()
    check_oidn_in_a_window()
finish()
