"""What `tandem logits` says of tokens, as logarithms of probabilities.

SPDX-License-Identifier: Apache-2.0
"""
import json
import math
import struct

import limits


def likely(tool, model, ids, out):
    """[position][word]; ids: "1,2,3"; out: a file to write to."""
    limits.run([tool, "logits", "--model", model, "--tokens", ids, "--out", out], check=True, capture_output=True, seconds=60)
    data = out.read_bytes()
    size, = struct.unpack_from("<Q", data)
    described = json.loads(data[8:8 + size])["logits"]
    rows, words = described["shape"][-2:]
    begin, end = described["data_offsets"]
    values = struct.unpack(f"<{rows * words}f", data[8 + size + begin:8 + size + end])
    found = []
    for row in range(rows):
        logits = values[row * words:(row + 1) * words]
        most = max(logits)
        total = most + math.log(sum(math.exp(x - most) for x in logits))
        found.append([x - total for x in logits])
    return found
