"""What the tests of the tool share: the tool, a folder for its files, inputs, and how it is run.

SPDX-License-Identifier: Apache-2.0
"""
import json
import pathlib
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    sys.exit("test_tool: numpy is missing; on Debian: apt-get install python3-numpy")
import limits
import oracle as R

if len(sys.argv) < 2:
    sys.exit("usage: test_tool.py BUILD_FOLDER [unittest arguments]")
TOOL = str(pathlib.Path(sys.argv[1]).resolve() / "tandem")
SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
folder = tempfile.TemporaryDirectory(prefix="tandem-test-")
FOLDER = pathlib.Path(folder.name)
f32 = np.float32


def tool(*args, **more):
    return limits.run(
        [TOOL, *map(str, args)], capture_output=True, text=True, seconds=120, errors="replace", **more
    )


def inputs(seed, b, h, hk, n, nk, d, spread=1.0):
    r = np.random.default_rng(seed)
    return [(spread * r.standard_normal(s)).astype(f32) for s in ((b, h, n, d), (b, hk, nk, d), (b, hk, nk, d))]


def write(arrays, dtypes):
    """Writes q, k, v; returns their values after the rounding to each dtype."""
    dtypes = [dtypes] * 3 if isinstance(dtypes, str) else dtypes
    coded = [R.encode(x, t) for x, t in zip(arrays, dtypes)]
    R.save(FOLDER / "in.safetensors", {n: (t, x) for n, t, x in zip("qkv", dtypes, coded)})
    return [R.decode(x, t) for x, t in zip(coded, dtypes)]


class Done:
    pass


def attend(arrays, dtypes, precision, *options):
    """Runs the tool; what it wrote, and the values that it read."""
    done = Done()
    done.q, done.k, done.v = write(arrays, dtypes)
    out = FOLDER / "out.safetensors"
    out.unlink(missing_ok=True)
    run = tool("attend", "--in", FOLDER / "in.safetensors", "--out", out, "--precision", precision, "--json", *options)
    if run.returncode and "--codes" in options and "so there are no codes to write" in run.stderr:
        if out.exists():
            raise AssertionError("there are no codes, and yet a file")
        done = attend(arrays, dtypes, precision, *(o for o in options if o != "--codes"))
        if not done.metadata["kernel"].startswith(("attn_f16_wgmma", "attn_bf16_wgmma")):
            raise AssertionError(f"{precision} {options}: no codes by {done.metadata['kernel']}")
        return done
    if run.returncode:
        raise AssertionError(f"{precision} {options}: exit {run.returncode}: {run.stderr}")
    done.report = json.loads(run.stdout)
    tensors, done.metadata = R.load(out)
    done.dtypes = {name: t for name, (t, _) in tensors.items()}
    done.codes = {name: x for name, (_, x) in tensors.items()}
    if "--codes" in options and "q_codes" not in tensors:
        raise AssertionError(f"{precision} {options}: exit 0, and no codes")
    done.o = R.decode(*reversed(tensors["o"]))
    done.lse = done.codes["lse"]
    return done


def same_bits(a, b):
    """Equal bit for bit; any NaN equals any other."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "f":
        a, b = np.where(np.isnan(a), a.dtype.type(np.nan), a), np.where(np.isnan(b), b.dtype.type(np.nan), b)
    return a.tobytes() == b.tobytes()
