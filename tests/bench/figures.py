"""Draws the paper's figures 17 and 20 from our own data, as PNGs; needs nothing but Python.

SPDX-License-Identifier: Apache-2.0

usage: tandem accuracy --figures DATA.json [--in QKV.safetensors] && python3 figures.py DATA.json FOLDER

figure_17.png: what the running sum of one row of P times one channel of V loses on the 13-bit accumulator of FP8
products, as a part of the output: much where V has an offset (red), next to nothing where V is smoothed (blue).
figure_20.png: how often each INT4 code occurs in Q, without (red) and with smoothing (blue).
"""

import json
import pathlib
import struct
import sys
import zlib

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 500, 90, 20, 40, 50
WHITE, BLACK, GREY, RED, BLUE = (255, 255, 255), (20, 20, 20), (215, 215, 215), (200, 60, 50), (45, 95, 190)

# 5 x 7 letters: one number a row, the highest of five bits on the left.
FONT = {
    c: [int(x, 32) for x in rows]
    for c, rows in {
        "0": "ehjlphe", "1": "4c4444e", "2": "eh1248v", "3": "v2412he", "4": "26aiv22", "5": "vgu11he",
        "6": "68guhhe", "7": "v124888", "8": "ehhehhe", "9": "ehhf12c", ".": "00000cc", "-": "000v000", "%": "op248j3",
        " ": "0000000", "a": "00e1fhf", "b": "ggmphhu", "c": "00eggie", "d": "11djhhf", "e": "00ehvge", "f": "698s888",
        "g": "00fhf1e", "h": "ggmphhh", "i": "40c444e", "k": "ghikoki", "l": "c44444e", "m": "00qllhh", "n": "00mphhh",
        "o": "00ehhhe", "p": "00uhugg", "q": "00djf11", "r": "00mpggg", "s": "00ege1u", "t": "88s8896", "u": "00hhhjd",
        "v": "00hhha4", "w": "00hhlla", "x": "00ha4ah", "y": "00hhf1e", "z": "00v248v",
    }.items()
}  # fmt: skip


class Picture:
    def __init__(self):
        self.rows = [bytearray(bytes(WHITE) * WIDTH) for _ in range(HEIGHT)]

    def box(self, x0, y0, x1, y1, colour):
        x0, x1 = max(0, int(x0)), min(WIDTH, int(x1))
        for y in range(max(0, int(y0)), min(HEIGHT, int(y1))):
            if x1 > x0:
                self.rows[y][3 * x0 : 3 * x1] = bytes(colour) * (x1 - x0)

    def line(self, points, colour):
        for (xa, ya), (xb, yb) in zip(points, points[1:]):
            steps = int(max(abs(xb - xa), abs(yb - ya))) + 1
            for i in range(steps + 1):
                x, y = xa + (xb - xa) * i / steps, ya + (yb - ya) * i / steps
                self.box(x - 1, y - 1, x + 1, y + 1, colour)

    def text(self, x, y, words, colour=BLACK, scale=2):
        for c in words.lower():
            for r, bits in enumerate(FONT[c]):
                for b in range(5):
                    if bits >> (4 - b) & 1:
                        self.box(x + b * scale, y + r * scale, x + (b + 1) * scale, y + (r + 1) * scale, colour)
            x += 6 * scale

    def save(self, path):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        data = zlib.compress(b"".join(b"\0" + bytes(r) for r in self.rows), 9)
        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
        path.write_bytes(
            b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
        )


def axes(picture, title, low, high, label):
    """Five lines across, and the function from values to rows of the picture."""

    def at(value):
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    for i in range(5):
        value = low + (high - low) * i / 4
        picture.box(LEFT, at(value), WIDTH - RIGHT, at(value) + 1, GREY)
        picture.text(4, at(value) - 7, label(value))
    picture.text(LEFT, 10, title)
    return at


def figure_17(data, path):
    picture = Picture()
    low, high = min(map(min, data.values())), max(map(max, data.values()))
    edge = 0.05 * (high - low) or 1
    at = axes(picture, "what p v loses in fp22", low - edge, high + edge, lambda v: f"{100 * v:.1f}%")
    for name, colour in (("before", RED), ("after", BLUE)):
        wide = (WIDTH - LEFT - RIGHT) / max(1, len(data[name]) - 1)
        picture.line([(LEFT + i * wide, at(x)) for i, x in enumerate(data[name])], colour)
    keys = 32 * len(data["before"])
    picture.text(LEFT, HEIGHT - 36, "0")
    picture.text(WIDTH - RIGHT - 12 * len(f"{keys} keys"), HEIGHT - 36, f"{keys} keys")
    picture.text(LEFT + 150, HEIGHT - 36, "v as it is", RED)
    picture.text(LEFT + 330, HEIGHT - 36, "v smoothed", BLUE)
    picture.save(path)


def figure_20(data, path):
    picture = Picture()
    parts = {name: [n / sum(data[name]) for n in data[name]] for name in ("before", "after")}
    top = max(max(p) for p in parts.values())
    at = axes(picture, "int4 codes of q", 0, top, lambda v: f"{100 * v:.0f}%")
    wide = (WIDTH - LEFT - RIGHT) / 15
    for i in range(15):
        x = LEFT + i * wide
        picture.box(x + 4, at(parts["before"][i]), x + wide / 2, HEIGHT - BOTTOM, RED)
        picture.box(x + wide / 2, at(parts["after"][i]), x + wide - 4, HEIGHT - BOTTOM, BLUE)
        picture.text(x + wide / 2 - 6 * len(str(i - 7)), HEIGHT - 44, str(i - 7))
    picture.text(LEFT + 150, HEIGHT - 22, "q as it is", RED)
    picture.text(LEFT + 330, HEIGHT - 22, "q smoothed", BLUE)
    picture.save(path)


def main(argv):
    if len(argv) != 3:
        sys.exit(__doc__)
    data, folder = json.loads(pathlib.Path(argv[1]).read_text()), pathlib.Path(argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    figure_17(data["figure_17"], folder / "figure_17.png")
    figure_20(data["figure_20"], folder / "figure_20.png")


if __name__ == "__main__":
    main(sys.argv)
