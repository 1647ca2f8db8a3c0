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
        self.texts, self.calls = collections.defaultdict(str), collections.defaultdict(list)
        self.begun, self.ended, self.same, self.anew = set(), set(), {}, -1
        self.again()

    def again(self):
        """The stream begins anew."""
        self.buffer, self.at, self.calls_at = b"", collections.Counter(), collections.Counter()
        self.anew += 1

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
            begins = choice["index"] not in self.begun
            says, calls = self.says(choice), self.calls_something(choice)
            likely = choice.get("logprobs") and not self.anew  # of what says nothing yet
            if choice["index"] in self.ended or not (begins or says or calls or likely or choice["finish_reason"]):
                return None
            if not begins:
                choice.get("delta", {}).pop("role", None)
            self.begun.add(choice["index"])
            if choice["finish_reason"]:
                self.ended.add(choice["index"])
        return b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()

    def says(self, choice):
        """Leaves of its text what is new; whether there is some."""
        index, holder, name = choice["index"], *((choice["delta"], "content") if "delta" in choice else (choice, "text"))
        text, told, at = holder.get(name) or "", self.texts[index], self.at[index]
        known = told[at:at + len(text)]
        if not text.startswith(known):
            raise ValueError("another replica answers otherwise")
        self.at[index] += len(text)
        self.texts[index] += text[len(known):]
        if known:
            holder[name] = text[len(known):]
        return len(text) > len(known)

    def calls_something(self, choice):
        """The same of pieces of calls, but for their ids, which each server has of its own."""
        index, new = choice["index"], []
        for call in choice.get("delta", {}).get("tool_calls", ()):
            told, at = self.calls[index], self.calls_at[index]
            piece = {name: value for name, value in call.items() if name != "id"}
            if at < len(told) and told[at] != piece:
                raise ValueError("another replica calls otherwise")
            if at == len(told):
                told.append(piece)
                new.append(call)
            self.calls_at[index] += 1
        if new:
            choice["delta"]["tool_calls"] = new
        else:
            choice.get("delta", {}).pop("tool_calls", None)
        return bool(new)
