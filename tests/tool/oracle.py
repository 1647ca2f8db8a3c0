"""The arithmetic of Tandem once more, in numpy, from the paper and from the text of kernels/params.h.

SPDX-License-Identifier: Apache-2.0

Shares no code with the library: whatever `tandem attend --codes` writes can be recomputed here bit for bit.
float32 arrays stand for what the kernels compute in float32; every sum is taken in the order that params.h gives.
"""

import json
import struct

import numpy as np

f32, f64 = np.float32, np.float64
LOG2_E, LN_2, LOG2_448 = f32(1.4426950408889634), f32(0.6931471805599453), f32(8.8073549220576037)
V_TOP = f32(1.75)  # the largest code of V
LATE_LIMIT, HEADROOM = f32(7), f32(4)  # of a late base, as log2: what P may reach, how far below that it starts
TINY = f32(2.0**-100)
CHUNK, TILE = 128, 64


# ---------------------------------------------------------------- files

DTYPES = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "I32": np.dtype("<i4"),
    "BF16": np.dtype("<u2"),
}


def to_bf16(x):
    """Bits of x rounded to nearest even."""
    u = np.ascontiguousarray(x, f32).view(np.uint32).astype(np.uint64)
    out = ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), out)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(f32)


def encode(x, dtype):
    """float array -> array of that dtype (bits for BF16)."""
    with np.errstate(over="ignore"):
        return to_bf16(x) if dtype == "BF16" else np.asarray(x).astype(DTYPES[dtype])


def decode(x, dtype):
    """The float32 values of an array of that dtype."""
    return from_bf16(x) if dtype == "BF16" else x.astype(f32)


def header_bytes(entries):
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def save(path, tensors, metadata=None):
    """tensors: {name: (dtype, array)}."""
    entries, blobs, at = {}, [], 0
    if metadata:
        entries["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        blob = np.ascontiguousarray(array).tobytes()
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    with open(path, "wb") as f:
        f.write(header_bytes(entries) + b"".join(blobs))


def load(path):
    """-> {name: (dtype, array)}, metadata"""
    with open(path, "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    entries = json.loads(raw[8 : 8 + n])
    metadata = entries.pop("__metadata__", {})
    tensors, used = {}, 0
    for name, e in entries.items():
        a, b = e["data_offsets"]
        blob = raw[8 + n + a : 8 + n + b]
        array = np.frombuffer(blob, DTYPES[e["dtype"]]).reshape(e["shape"])
        tensors[name] = (e["dtype"], array)
        used += b - a
    if used != len(raw) - 8 - n:
        raise ValueError(f"{path}: {used} bytes described, {len(raw) - 8 - n} there")
    return tensors, metadata


# ---------------------------------------------------------------- numbers


def fma(a, b, c):
    """a * b + c in float32, rounded once: the product is exact in float64, the sum rounded to odd there."""
    p, c = np.asarray(a, f64) * np.asarray(b, f64), np.asarray(c, f64)
    p, c = np.broadcast_arrays(p, c)
    s = p + c
    t = s - p
    err = (p - (s - t)) + (c - t)
    even = (s.view(np.int64) & 1) == 0
    s = np.where((err != 0) & even, np.nextafter(s, np.where(err > 0, np.inf, -np.inf)), s)
    return s.astype(f32)


def _e4m3_table():
    codes = np.arange(256)
    e, m = codes >> 3 & 15, codes & 7
    x = np.where(e == 0, m * 2.0**-9, (8 + m) * 2.0 ** (e - 10.0))
    x[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -x, x).astype(f32)


E4M3 = _e4m3_table()


def e4m3_decode(codes):
    return E4M3[codes]


def e4m3_encode(x):
    """Nearest E4M3 code, ties to the even one, saturating at 448; found by search in the table of values."""
    x = np.asarray(x, f32)
    grid = E4M3[:127].astype(f64)
    a = np.minimum(np.abs(x).astype(f64), 448.0)
    hi = np.clip(np.searchsorted(grid, np.nan_to_num(a)), 0, 126)
    lo = np.maximum(hi - 1, 0)
    up, down = grid[hi] - a, a - grid[lo]
    code = np.where((up < down) | ((up == down) & (hi % 2 == 0)), hi, lo)
    code = np.where(np.isnan(x), 127, code)
    return (code | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


# ---------------------------------------------------------------- exact attention


def softmax_scale(scale, d):
    """The scale as the library holds it: a float32; 0 means 1 / sqrt(d)."""
    return f32(scale) if scale else f32(1 / np.sqrt(f64(d)))


def visible(n, n_kv, causal):
    """[n, n_kv]: may row i see key j? Aligned at the bottom right."""
    i, j = np.arange(n)[:, None], np.arange(n_kv)[None, :]
    return (j <= i + n_kv - n) if causal else np.ones((n, n_kv), bool)


def exact(q, k, v, causal=False, scale=0.0):
    """Float64 from the formula. -> o [b,h,n,d], lse [b,h,n]"""
    b, h, n, d = q.shape
    group = h // k.shape[1]
    q, k, v = (np.asarray(x, f64) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
    s = np.einsum("bhid,bhjd->bhij", q, k) * (f64(f32(scale)) if scale else 1 / np.sqrt(f64(d)))
    poisoned = ~np.isfinite(q).all(-1)[..., :, None] | ~(np.isfinite(k) & np.isfinite(v)).all(-1)[..., None, :]
    s = np.where(visible(n, k.shape[2], causal), np.where(poisoned, np.nan, s), -np.inf)
    m = s.max(-1, keepdims=True)
    m = np.where(np.isneginf(m), 0, m)
    p = np.exp(s - m)
    l = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        o = np.where(l == 0, 0, np.einsum("bhij,bhjd->bhid", p, v) / l)
        return o, (m + np.log(l))[..., 0]


# ---------------------------------------------------------------- quantisation


def bad_rows(x):
    return ~np.isfinite(x).all(-1)


def finite(x):
    return np.where(np.isfinite(x), x, f32(0)).astype(f32)


def column_sum(x):
    """Sum over rows (axis -2), row after row, in float32."""
    total = np.zeros(x.shape[:-2] + x.shape[-1:], f32)
    for r in range(x.shape[-2]):
        total = total + x[..., r, :]
    return total


def chunk_sum(x):
    """Of at most 128 rows: sums of those alike modulo 8, which are then added in pairs, the pairs in order."""
    s = [column_sum(x[..., i::8, :]) for i in range(8)]
    return (((s[0] + s[1]) + (s[2] + s[3])) + (s[4] + s[5])) + (s[6] + s[7])


def head_mean(x):
    """[b,h,d]: sums of chunks of 128 rows, added in order."""
    x = finite(x)
    total = np.zeros(x.shape[:-2] + x.shape[-1:], f32)
    for at in range(0, x.shape[-2], CHUNK):
        total = total + chunk_sum(x[..., at : at + CHUNK, :])
    return total / f32(x.shape[-2])


def block_mean(x):
    """[b,h,blocks,d]: the mean of each block of 128 rows (the last one: of the rows that exist)."""
    x = finite(x)
    parts = [x[..., at : at + CHUNK, :] for at in range(0, x.shape[-2], CHUNK)]
    return np.stack([column_sum(p) / f32(p.shape[-2]) for p in parts], -2)


def group_of_rows(n, granularity, is_k):
    """[n]: rows with the same number share a scale."""
    r = np.arange(n)
    if granularity == "tensor":
        return r * 0
    if granularity == "token":
        return r
    if granularity == "block":
        return r // 64 if is_k else r // 128
    if granularity == "warp":
        return r // 64 if is_k else r // 32
    if granularity == "thread-ada":
        return r // 64 * 4 + r % 8 // 2 if is_k else r // 32 * 8 + r % 8
    if granularity == "thread-hopper":
        return r // 128 * 4 + r % 8 // 2 if is_k else r // 16 * 8 + r % 8
    raise ValueError(granularity)


def centre(x, smooth, blockwise=False):
    """-> x minus its mean, the mean (or None)"""
    x = finite(x)
    if not smooth:
        return x, None
    if not blockwise:
        mean = head_mean(x)
        return x - mean[..., None, :], mean
    mean = block_mean(x)
    return x - np.repeat(mean, CHUNK, -2)[..., : x.shape[-2], :], mean


def int4_clip(d, granularity, is_k):
    """Part of the largest magnitude that INT4 codes reach where both Q and K are smoothed."""
    rows = {"tensor": (128, 128), "token": (1, 1), "block": (128, 64), "warp": (32, 64), "thread-ada": (4, 16),
            "thread-hopper": (2, 32)}[granularity][is_k]  # fmt: skip
    return f32(1 if rows * d <= 64 or d < 64 else 0.8125 if rows * d <= 256 or d < 96 else 0.75)


def quant_int(y, qmax, granularity, is_k, clip=f32(1)):
    """Codes int8 [b,h,n,d] and one scale a row [b,h,n]."""
    group = group_of_rows(y.shape[-2], granularity, is_k)
    amax = np.zeros(y.shape[:-1], f32)
    for g in np.unique(group):
        rows = np.nonzero(group == g)[0]
        amax[..., rows] = np.abs(y[..., rows, :]).max((-1, -2))[..., None] * clip
    zero = amax < TINY
    qmax = f32(qmax)
    with np.errstate(all="ignore"):
        factor = np.where(zero, f32(0), qmax / amax).astype(f32)
    codes = np.clip(np.rint(y * factor[..., None]), -qmax, qmax)
    codes = np.where(np.isnan(codes), -qmax, codes)
    return codes.astype(np.int8), np.where(zero, f32(0), amax / qmax).astype(f32)


def half_exponent(amax):
    """The least e >= 0 with 2^-e * amax <= 32768."""
    e = np.zeros(amax.shape, np.int64)
    while (np.ldexp(amax.astype(f64), -e) > 32768).any():
        e += np.ldexp(amax.astype(f64), -e) > 32768
    return e


def quant_half_rows(y):
    """fp16 codes and a power of two a row."""
    e = half_exponent(np.abs(y).max(-1))
    return np.ldexp(y, -e[..., None]).astype(np.float16), np.ldexp(f32(1), e).astype(f32)


def quant_v(y, bad, kind):
    """kind E4M3: uint8 codes; F16: fp16 codes; scale [b,h,d]. `bad`: elements that are not finite, code 0."""
    amax = np.abs(y).max(-2)
    if kind == "F16":
        e = half_exponent(amax)
        codes = np.ldexp(y, -e[..., None, :]).astype(np.float16)
        return np.where(bad, np.float16(0), codes), np.ldexp(f32(1), e).astype(f32)
    zero = amax < TINY
    with np.errstate(all="ignore"):
        factor = np.where(zero, f32(0), V_TOP / amax).astype(f32)
    codes = e4m3_encode(y * factor[..., None, :])
    return np.where(bad, np.uint8(0), codes), np.where(zero, f32(0), amax / V_TOP).astype(f32)


def quantise(q, k, v, precision, granularity, smooth, v_kind="E4M3"):
    """What a plan computes before the attention kernel. precision: f16, 8b, 4b; smooth: letters of qkv.
    -> the arrays of `tandem attend --codes`, under the same names"""
    out = {}
    qy, q_mean = centre(q, "q" in smooth, True)
    ky, k_mean = centre(k, "k" in smooth)
    vy, v_mean = centre(v, "v" in smooth)
    if precision == "f16":
        out["q_codes"], q_scale = quant_half_rows(qy)
        out["k_codes"], k_scale = quant_half_rows(ky)
        v_kind = "F16"
    else:
        qmax = 127 if precision == "8b" else 7
        clips = [f32(1)] * 2
        if precision == "4b" and "q" in smooth and "k" in smooth:
            clips = [int4_clip(q.shape[3], granularity, is_k) for is_k in (False, True)]
        out["q_codes"], q_scale = quant_int(qy, qmax, granularity, False, clips[0])
        out["k_codes"], k_scale = quant_int(ky, qmax, granularity, True, clips[1])
    out["q_scale"] = np.where(bad_rows(q), f32(np.nan), q_scale)
    out["k_scale"] = np.where(bad_rows(k) | bad_rows(v), f32(np.nan), k_scale)
    out["v_codes"], out["v_scale"] = quant_v(vy, ~np.isfinite(v), v_kind)
    for name, value in (("q_mean", q_mean), ("k_mean", k_mean), ("v_mean", v_mean)):
        if value is not None:
            out[name] = value
    if q_mean is not None:
        keys = np.repeat(ky, q.shape[1] // k.shape[1], 1)
        delta = np.zeros(q.shape[:2] + (q_mean.shape[2], k.shape[2]), f32)
        for c in range(q.shape[3]):
            delta = fma(q_mean[..., :, None, c], keys[..., None, :, c], delta)
        out["delta_s"] = delta
    return out


def attend_codes(codes, n, causal, scale, d, q=None, late=False, splits=1):
    """O and lse from the codes alone (float64 where params.h leaves the order open), in tiles of 64 keys, P rounded to
    what V's codes are. late: as attn_8b_wgmma rounds, whose base follows the maximum late and whose rows are divided by
    the sum of the rounded P. splits: so many share the keys, 128 at a time in turn, each with a base of its own. q: only
    for the lse when K was smoothed."""
    qc, kc, vc = codes["q_codes"], codes["k_codes"], codes["v_codes"]
    b, h = qc.shape[:2]
    group = h // kc.shape[1]
    kc, vc, ks = (np.repeat(x, group, 1) for x in (kc, vc, codes["k_scale"]))
    v_scale = np.repeat(codes["v_scale"], group, 1)
    e4m3 = vc.dtype == np.uint8
    vv = (e4m3_decode(vc) if e4m3 else vc).astype(f64)
    sl2 = softmax_scale(scale, d) * LOG2_E
    s = np.einsum("bhid,bhjd->bhij", qc.astype(f64), kc.astype(f64))
    s = s * ((codes["q_scale"] * sl2)[..., :, None] * ks[..., None, :]).astype(f64)
    if "delta_s" in codes:
        s = s + np.repeat(codes["delta_s"], CHUNK, 2)[:, :, :n].astype(f64) * f64(sl2)
    s = np.where(visible(n, kc.shape[2], causal), s.astype(f32), f32(-np.inf))
    bases = [np.full((b, h, n), -np.inf, f32) for _ in range(splits)]
    sums = [np.zeros((b, h, n)) for _ in range(splits)]
    outs = [np.zeros((b, h, n, d)) for _ in range(splits)]
    for at in range(0, kc.shape[2], TILE):
        part = at // 128 % splits
        m, l, o = bases[part], sums[part], outs[part]
        tile = s[..., at : at + TILE]
        here = np.fmax.reduce(tile, -1)
        m_new = np.where(here > m + LATE_LIMIT, here - (LATE_LIMIT - HEADROOM), m) if late else np.fmax(m, here)
        base = np.where(np.isneginf(m_new), f32(0), m_new)
        alpha = np.exp2(m.astype(f64) - base)
        p = np.exp2(((tile - base[..., None]) + (f32(0) if late else LOG2_448)).astype(f64)).astype(f32)
        code = e4m3_decode(e4m3_encode(p)) if e4m3 else p.astype(np.float16)
        l = l * alpha + (code if late else p).astype(f64).sum(-1)
        o = o * alpha[..., None] + np.einsum("bhij,bhjd->bhid", code.astype(f64), vv[:, :, at : at + TILE])
        bases[part], sums[part], outs[part] = m_new, l, o
    top = np.fmax.reduce(bases)
    base = np.where(np.isneginf(top), f32(0), top)
    factors = [np.exp2(m.astype(f64) - base) for m in bases]
    l = sum(l * by for l, by in zip(sums, factors))
    o = sum(o * by[..., None] for o, by in zip(outs, factors))
    with np.errstate(divide="ignore", invalid="ignore"):
        o = o / l[..., None] * v_scale[..., None, :].astype(f64)
        if "v_mean" in codes:
            o = o + np.repeat(codes["v_mean"], group, 1)[..., None, :]
        lse = (base + np.log2(l) - (0 if late else LOG2_448)) * f64(LN_2)
    empty = ~visible(n, kc.shape[2], causal).any(-1)
    o[..., empty, :], lse[..., empty] = 0, -np.inf
    if "k_mean" in codes and q is not None:
        mean = np.repeat(codes["k_mean"], group, 1).astype(f64)
        lse = lse + np.einsum("bhid,bhd->bhi", q.astype(f64), mean) * f64(softmax_scale(scale, d))
    return o, lse


# ---------------------------------------------------------------- measures


def rel_l1(o, exact_o):
    """Sum of absolute differences over the sum of absolute values, as the paper defines it."""
    return float(np.abs(o.astype(f64) - exact_o).sum() / max(np.abs(exact_o).sum(), 1e-300))


def cosine(o, exact_o):
    o = o.astype(f64)
    return float((o * exact_o).sum() / np.sqrt((o * o).sum() * (exact_o * exact_o).sum()))


def rmse(o, exact_o):
    return float(np.sqrt(((o.astype(f64) - exact_o) ** 2).mean()))
