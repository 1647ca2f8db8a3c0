"""How many characters are spread over nodes that each run `tandem serve`, and where it breaks: a simulation with measured figures.

SPDX-License-Identifier: Apache-2.0

    sim_fleet.py --npc NPC.json [options]          the figures of a node, as `tandem bench npc --json NPC.json` writes them
    sim_fleet.py --read R --speak 1:S,8:S [...]    or as said: tokens a second of prompts, and of so many answers at once, in all

Each character thinks, says something, waits for its answer, and thinks again. Its requests go to a node as those of
engine_plugin/deploy do: by a ring of hashes, and on to the next node where one has twice its slots to do. A node has slots; a
character that still has one has what it has read, others read anew what is not the world that all share. What is read is read one
after the other, in a part of the node's time while others speak; those who speak share the rest, at the speed that so many have.

For each number of nodes it says how long the first token takes (half and 99 % of all turns), how busy nodes are, and how uneven; at
the end with how many nodes 99 % of all turns begin within --limit-ms. --json and --png write that down.
"""
import argparse
import bisect
import collections
import hashlib
import heapq
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "bench"))
import figures

VNODES, FALLBACKS = 100, 2  # Ray's own


class Node:
    """Reads and speaks, for those that have a slot."""

    def __init__(self, o):
        self.o, self.at, self.changes, self.busy, self.characters = o, 0.0, 0, 0.0, set()
        self.waiting, self.reading = collections.deque(), collections.deque()
        self.speaking, self.spoken = [], 0.0  # heap of (spoken when it ends, turn); tokens of one who would speak always
        self.cached = collections.OrderedDict()  # those with a slot, the one used last at the end

    def count(self):
        return len(self.waiting) + len(self.reading) + len(self.speaking)

    def rates(self):
        """Tokens a second: of what is read, and of each who speaks."""
        if not self.speaking:
            return self.o.read, 0.0
        one = speed(self.o.speak, len(self.speaking)) / len(self.speaking)
        return (self.o.read * self.o.read_share, one * (1 - self.o.read_share)) if self.reading else (0.0, one)

    def advance(self, now):
        passed = now - self.at
        if self.reading or self.speaking:
            read, speak = self.rates()
            if self.reading:
                self.reading[0].left -= passed * read
            self.spoken += passed * speak
            self.busy += passed
        self.at = now

    def next(self):
        """When something ends, if nothing comes."""
        read, speak = self.rates()
        ends = [self.at + max(0, self.reading[0].left) / read] if self.reading else []
        ends += [self.at + max(0, self.speaking[0][0] - self.spoken) / speak] if self.speaking else []
        return min(ends, default=None)

    def begin(self):
        """Who waits gets a slot, if one is free."""
        while self.waiting and len(self.reading) + len(self.speaking) < self.o.slots:
            turn = self.waiting.popleft()
            known = self.cached.pop(turn.who, None) is not None
            turn.left = self.o.said + (0 if known else self.o.persona - self.o.world + turn.history)
            self.cached[turn.who] = True
            if len(self.cached) > self.o.slots:
                self.cached.popitem(last=False)
            self.reading.append(turn)


class Turn:
    __slots__ = ("who", "since", "left", "history")

    def __init__(self, who, since, history):
        self.who, self.since, self.left, self.history = who, since, 0, history

    def __lt__(self, other):
        return self.who < other.who


def speed(table, count):
    """Tokens a second of so many, between what was measured; beyond it no more."""
    i = bisect.bisect_left(table, (count, 0))
    if i == len(table) or i == 0:
        return table[min(i, len(table) - 1)][1]
    (a, low), (b, high) = table[i - 1], table[i]
    return low + (high - low) * (count - a) / (b - a)


def point(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def ring_of(nodes):
    return sorted((point(f"{node}:{i}"), node) for node in range(nodes) for i in range(VNODES))


def homes(ring, who):
    """The nodes of a character, the first one first."""
    found, at = [], bisect.bisect(ring, (point(str(who)), 0))
    for i in range(len(ring)):
        node = ring[(at + i) % len(ring)][1]
        if node not in found:
            found.append(node)
        if len(found) > FALLBACKS:
            break
    return found


def simulate(o, count):
    """What `count` nodes make of it."""
    dice, ring, nodes = random.Random(o.seed), ring_of(count), [Node(o) for _ in range(count)]
    home, history = [homes(ring, who) for who in range(o.characters)], [0] * o.characters
    events = [(dice.expovariate(1 / o.think), 0, who, None) for who in range(o.characters)]
    heapq.heapify(events)
    firsts, turns, warm, end = [], 0, o.seconds / 4, o.seconds

    def plan(number):
        node = nodes[number]
        node.changes += 1
        if (when := node.next()) is not None:
            heapq.heappush(events, (when, 1, number, node.changes))

    while events and events[0][0] < end:
        now, kind, number, change = heapq.heappop(events)
        if kind == 0:  # somebody says something
            candidates = home[number]
            place = next((n for n in candidates if nodes[n].count() < 2 * o.slots), candidates[0])
            nodes[place].advance(now)
            nodes[place].waiting.append(Turn(number, now, history[number]))
            nodes[place].characters.add(number)
            nodes[place].begin()
            plan(place)
            continue
        node = nodes[number]
        if change != node.changes:
            continue  # something came in between
        node.advance(now)
        while node.reading and node.reading[0].left < 1e-6:
            turn = node.reading.popleft()
            heapq.heappush(node.speaking, (node.spoken + o.reply, turn))
            if turn.since >= warm:  # the first token is there when it has been computed, too
                firsts.append(now - turn.since + len(node.speaking) / speed(o.speak, len(node.speaking)))
        while node.speaking and node.speaking[0][0] - node.spoken < 1e-6:
            turn = heapq.heappop(node.speaking)[1]
            history[turn.who] = min(o.context, history[turn.who] + o.said + o.reply)
            turns += now >= warm
            heapq.heappush(events, (now + dice.expovariate(1 / o.think), 0, turn.who, None))
        node.begin()
        plan(number)

    late = [end - turn.since for node in nodes for turn in (*node.waiting, *node.reading) if turn.since >= warm]
    firsts = sorted(firsts + late)  # who still waits has waited at least so long
    busiest = max(len(node.characters) for node in nodes)
    return {"nodes": count, "first_ms": {"median": of(firsts, 0.5), "p99": of(firsts, 0.99), "count": len(firsts)},
            "turns_per_s": turns / (end - warm), "busy": sum(min(node.busy, end) for node in nodes) / count / end,
            "busiest_of_mean": busiest / (sum(len(node.characters) for node in nodes) / count)}


def of(values, part):
    return 1e3 * values[min(len(values) - 1, int(part * len(values)))] if values else float("inf")


def plot(rows, limit_ms, path, characters):
    """The first token's time against nodes, both by powers."""
    import math
    picture = figures.Picture()
    rows = [row for row in rows if row["first_ms"]["count"]]
    times = [row["first_ms"][name] for row in rows for name in ("median", "p99")] + [limit_ms]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)) + 1e-9)
    at = figures.axes(picture, f"first token of {characters} characters in ms by nodes", low, high, lambda v: f"{10 ** v:.0f}")
    wide = (figures.WIDTH - figures.LEFT - figures.RIGHT - 40) / max(1e-9, math.log(rows[-1]["nodes"] / rows[0]["nodes"]))

    def across(nodes):
        return figures.LEFT + 10 + wide * math.log(nodes / rows[0]["nodes"])
    end = -100
    for row in rows:
        if across(row["nodes"]) - end > 10:
            picture.text(across(row["nodes"]) - 6, figures.HEIGHT - 44, str(row["nodes"]))
            end = across(row["nodes"]) - 6 + 12 * len(str(row["nodes"]))
    picture.line([(figures.LEFT, at(math.log10(limit_ms))), (figures.WIDTH - figures.RIGHT, at(math.log10(limit_ms)))], figures.BLACK)
    for name, colour in (("p99", figures.RED), ("median", figures.BLUE)):
        picture.line([(across(row["nodes"]), at(math.log10(row["first_ms"][name]))) for row in rows], colour)
    picture.text(figures.LEFT + 150, figures.HEIGHT - 22, "99% of turns", figures.RED)
    picture.text(figures.LEFT + 350, figures.HEIGHT - 22, "half of turns", figures.BLUE)
    picture.text(figures.LEFT + 550, figures.HEIGHT - 22, f"limit {limit_ms:.0f}")
    picture.save(path)


def table_of(text):
    try:
        table = sorted((int(count), float(rate)) for count, rate in (pair.split(":") for pair in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not like 1:700,32:9000") from None
    if not all(count >= 1 and rate > 0 for count, rate in table):
        raise argparse.ArgumentTypeError(f"{text!r}: counts and rates must be above 0")
    return table


def numbers(text):
    values = sorted({int(value) for value in text.split(",")})
    if values[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: nodes must be above 0")
    return values


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npc", type=pathlib.Path)
    parser.add_argument("--read", type=float, help="tokens a second of prompts")
    parser.add_argument("--speak", type=table_of, help="tokens a second, of so many answers at once in all of them: 1:754,8:3910")
    parser.add_argument("--nodes", type=numbers, help="such as 1,2,4,8; default: doubled until the limit is kept")
    for name, default, what in (("characters", 10000, "so many"), ("slots", 32, "of a node"), ("said", 24, "tokens of what is said"),
                                ("reply", 40, "tokens of an answer"), ("persona", 512, "tokens, with the world's"),
                                ("world", 384, "tokens at a persona's beginning that all share"),
                                ("context", 2048, "tokens of a dialogue at most"), ("seed", 1, "")):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what}; default: {default}")
    for name, default, what in (("think", 30, "seconds between an answer and what is said next"), ("seconds", 120, "that are simulated"),
                                ("limit-ms", 500, "for the first token"),
                                ("read-share", 0.5, "of the time is for reading while others speak")):
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{what}; default: {default}")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--png", type=pathlib.Path)
    o = parser.parse_args(words)
    if o.npc:
        said = json.loads(o.npc.read_text())
        o.read = o.read or said["tokens_per_s"]["prompt"]["median"]
        o.speak = o.speak or sorted((int(count), rates["median"]) for count, rates in (said.get("slots") or {}).items() if rates)
        o.speak = o.speak or [(1, said["tokens_per_s"]["decode"]["median"])]  # it was measured for one only
    if not o.read or not o.speak:
        parser.error("the figures of a node are missing: --npc, or --read and --speak")
    for name in ("characters", "slots", "said", "reply", "think", "seconds", "limit_ms", "read"):
        if not getattr(o, name) > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, not {getattr(o, name)}")
    if not 0 < o.read_share < 1:
        parser.error(f"--read-share must be between 0 and 1, not {o.read_share}")
    if not 0 <= o.world <= o.persona:
        parser.error(f"--world must be from 0 to --persona, not {o.world}")
    return o


def counts(o, rows):
    """The numbers of nodes that are tried: doubled until the limit is kept, then between the last two."""
    if o.nodes:
        yield from o.nodes
        return
    count = 1
    while not rows or rows[-1]["first_ms"]["p99"] > o.limit_ms:
        yield count
        count *= 2
        if count > o.characters:
            return
    good = count // 2
    bad = good // 2
    while good - bad > max(1, good // 16):
        yield (middle := (good + bad) // 2)
        good, bad = (middle, bad) if rows[-1]["first_ms"]["p99"] <= o.limit_ms else (good, middle)
    yield from (2 * good, 4 * good)


def main(words):
    o = arguments(words)
    rows = []
    print(f"{'nodes':>6} {'first token, half':>18} {'99 %':>11} {'turns/s':>9} {'busy':>5} {'busiest/mean':>13}")
    for count in counts(o, rows):
        rows.append(simulate(o, count))
        row = rows[-1]
        print(f"{count:6} {row['first_ms']['median']:15.1f} ms {row['first_ms']['p99']:8.1f} ms {row['turns_per_s']:9.1f} "
              f"{100 * row['busy']:4.0f}% {row['busiest_of_mean']:13.2f}", flush=True)
    rows.sort(key=lambda row: row["nodes"])
    enough = next((row["nodes"] for i, row in enumerate(rows) if all(r["first_ms"]["p99"] <= o.limit_ms for r in rows[i:])), None)
    print(f"{o.characters} characters: " +
          (f"{enough} nodes, {o.characters / enough:.0f} on each, keep {o.limit_ms:.0f} ms in 99 % of turns" if enough else
           f"{o.limit_ms:.0f} ms are not kept by any of these"))
    if o.json:
        how = {name: str(value) if isinstance(value, pathlib.Path) else value for name, value in vars(o).items()}
        o.json.write_text(json.dumps({"options": how, "rows": rows, "nodes": enough}, indent=1) + "\n")
    if o.png:
        plot(rows, o.limit_ms, o.png, o.characters)
    return rows, enough


if __name__ == "__main__":
    main(sys.argv[1:])
