"""skip_tiles.py counts what a plain loop over rows and tiles does, and its bound holds.

SPDX-License-Identifier: Apache-2.0

usage: test_skip_tiles.py BUILD_FOLDER [unittest arguments]
Exits 77 without numpy.
"""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
try:
    import numpy as np
except ImportError:
    sys.exit(77)
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import skip_tiles


def by_hand(q, k, v, scale, causal, shape, eps):
    """(tiles, skipped, largest |O - O'|) in float64, as a kernel would go: tile after tile."""
    rows, keys = shape
    n, m, tiles, skipped, worst = len(q), len(k), 0, 0, 0.0
    for first in range(0, n, rows):
        group = range(first, min(n, first + rows))
        seen = min(m, group[-1] + 1) if causal else m
        scores = {r: [float(q[r] @ k[c]) * scale if not causal or c <= r else -np.inf for c in range(seen)] for r in group}
        best, kept = {r: -np.inf for r in group}, []
        for begin in range(0, seen, keys):
            tops = {r: max(scores[r][begin:begin + keys]) for r in group}
            tiles += 1
            if all(tops[r] < best[r] - np.log(m / eps) for r in group):
                skipped += 1
                continue
            kept += range(begin, min(seen, begin + keys))
            best = {r: max(best[r], tops[r]) for r in group}
        for r in group:
            p = np.exp(np.array(scores[r]) - max(scores[r]))
            o = p @ v[:seen] / p.sum()
            worst = max(worst, np.abs(o - p[kept] @ v[kept] / p[kept].sum()).max())
    return tiles, skipped, worst


class SkipTiles(unittest.TestCase):
    def test_counts_and_bound(self):
        random = np.random.default_rng(3)
        for causal, queries, keys in ((True, 300, 300), (False, 130, 500)):
            q, k, v = (random.standard_normal((count, 16)) for count in (queries, keys, keys))
            q, k[:, 0] = q * 0.5, random.standard_normal(keys)
            q[:, 0], k[:9, 0] = 2, 7  # keys that all rows look at
            q, k, v = (x.astype(np.float32) for x in (q, k, v))
            count = skip_tiles.Count(keys)
            o = skip_tiles.attend(q, k, v, 1.5, causal, count)
            any_skipped = 0
            for name, shape in skip_tiles.TILES.items():
                for eps in skip_tiles.EPSILONS:
                    tiles, skipped, worst = by_hand(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), 1.5, causal, shape, eps)
                    self.assertEqual((count.tiles[name], count.skipped[name, eps]), (tiles, skipped), (causal, name, eps))
                    bound = 2 * eps * float(np.abs(v).max())
                    self.assertLessEqual(worst, bound)
                    self.assertAlmostEqual(count.error[name, eps], worst / bound, delta=0.01 * worst / bound + 1e-6 / eps)
                    any_skipped += skipped
            self.assertGreater(any_skipped, 20)
            p = np.exp((q @ k.T * 1.5).astype(np.float64))
            p = np.tril(p) if causal else p
            self.assertLess(np.abs(o - p @ v / p.sum(1, keepdims=True)).max(), 1e-4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
