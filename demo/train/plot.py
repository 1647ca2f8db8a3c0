#!/usr/bin/env python3
"""Draws the loss of a training log, lines of JSON as denoise.py, gi.py and npc.py write them, as SVG; needs nothing but Python. Where lines
have a share of facts that were right, that is drawn, too, up to 1 at the top.

    plot.py LOG.jsonl OUT.svg

SPDX-License-Identifier: Apache-2.0
"""
import json
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 60, 20, 20, 45


def main():
    log, out = map(pathlib.Path, sys.argv[1:])
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    facts = [(row["step"], row["facts_asked"]) for row in rows if "facts_asked" in row]
    points = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    points = [(b, loss) for (a, _), (b, loss) in zip([(0, 0), *points], points) if b - a == points[0][0]]  # means of as many steps
    last, most, least = points[-1][0], max(loss for _, loss in points), min(0, *(loss for _, loss in points))

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(loss):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (loss - least) / (1.1 * (most - least))
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for i in range(6):
        loss, step = least + (most - least) * i / 5, last * i / 5
        lines.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>')
        lines.append(f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.3f}</text>')
        lines.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step:.0f}</text>')
    lines.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>')
    path = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in points)
    lines.append(f'<polyline points="{path}" fill="none" stroke="#2d5fbe" stroke-width="1.5"/>')
    if facts:
        path = " ".join(f"{x(min(step, last)):.1f},{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share:.1f}" for step, share in facts)
        lines.append(f'<polyline points="{path}" fill="none" stroke="#2e8b57" stroke-width="1.5"/>')
        lines.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM - 10}" text-anchor="end" fill="#2e8b57">facts right: {facts[-1][1]:.3f}</text>')
    out.write_text("\n".join([*lines, "</svg>", ""]))


if __name__ == "__main__":
    main()
