"""What a client has been told of a stream of server-sent events, in OpenAI's form.

SPDX-License-Identifier: Apache-2.0
"""
import collections
import json


class Gone(Exception):
    """A server that is not there, or is no more."""


class Told:
    """What a client has been told of a stream, so that it is told nothing twice."""

    def __init__(self):
        self.texts, self.ended, self.same = collections.defaultdict(str), set(), {}
        self.again()

    def again(self):
        """The stream begins anew."""
        self.buffer, self.at = b"", collections.Counter()

    def new(self, part):
        """Of bytes, the events that are new."""
        *events, self.buffer = (self.buffer + part).split(b"\n\n")
        return b"".join(event + b"\n\n" for event in map(self.new_of, events) if event)

    def new_of(self, line):
        if not line.startswith(b"data: {"):
            return line
        event = json.loads(line[6:])
        if "error" in event:
            raise Gone(event["error"].get("message"))
        self.same = self.same or {name: event[name] for name in ("id", "created") if name in event}
        event.update(self.same)
        for choice in event.get("choices", []):
            index, holder, name = choice["index"], *((choice["delta"], "content") if "delta" in choice else (choice, "text"))
            text, told, at = holder.get(name) or "", self.texts[index], self.at[index]
            known = told[at:at + len(text)]
            if not text.startswith(known):
                raise ValueError("another replica answers otherwise")
            self.at[index] += len(text)
            if index in self.ended or (at < len(told) or told and not text) and known == text and not choice["finish_reason"]:
                return None
            if known:
                holder[name] = text[len(known):]
            self.texts[index] += text[len(known):]
            if choice["finish_reason"]:
                self.ended.add(index)
        return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
