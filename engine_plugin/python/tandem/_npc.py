"""Characters that talk.

SPDX-License-Identifier: Apache-2.0
"""
import ctypes
import time

from . import _api
from ._library import C, ArgumentError, Busy, check, encoded, make, values
from ._session import ns

SLICE_NS = 100_000_000  # so often ctrl-C is heard


class Language:
    """A language model's file: Language(session, path), with context, form and precision as tandem_language_desc has them."""

    depth = 1

    def __init__(self, session, path, **fields):
        self.session, self.handle = session, ctypes.c_void_p()
        desc = make(_api.tandem_language_desc, path=path, **fields)
        check(C.tandem_language_create(session._alive(), ctypes.byref(desc), ctypes.byref(self.handle)))
        session.adopt(self)

    def info(self):
        info = make(_api.tandem_language_info)
        check(C.tandem_language_get_info(self.handle, ctypes.byref(info)))
        return values(info)

    def npc(self, persona=None, **fields):
        return Npc(self, persona=persona, **fields)

    def embedder(self, **fields):
        return Embedder(self, **fields)

    def close(self):
        if self.handle and self.session.is_open:
            C.tandem_language_destroy(ctypes.byref(self.handle))

    __del__ = close


class Npc:
    """A character: a persona, and what was said."""

    depth = 2

    def __init__(self, language, **fields):
        self.language, self.handle, self._said = language, ctypes.c_void_p(), None
        if not language.handle:
            raise ArgumentError("the language is closed")
        desc = make(_api.tandem_npc_desc, **fields)
        check(C.tandem_npc_create(language.handle, ctypes.byref(desc), ctypes.byref(self.handle)))
        language.session.adopt(self)

    def _alive(self):
        if not self.handle:
            raise ArgumentError("the character is closed")
        return self.handle

    def begin(self, text=None, *, sampling=None, stops=(), bias=None, **fields):
        """tandem_npc_say(): poll() or wait() have what comes of it. sampling: a dict of tandem_sampling's fields; bias: of tokens."""
        if sampling is not None or bias:
            sampling = dict(sampling or {})
            if bias:
                sampling.update(bias_count=len(bias), bias_tokens=(ctypes.c_uint32 * len(bias))(*bias),
                                biases=(ctypes.c_float * len(bias))(*bias.values()))
            fields["sampling"] = ctypes.pointer(make(_api.tandem_sampling, **sampling))
        if isinstance(stops, str):
            stops = (stops,)
        if stops:
            fields["stops"], fields["stop_count"] = (ctypes.c_char_p * len(stops))(*(encoded("stops", s) for s in stops)), len(stops)
        say = make(_api.tandem_say, text=text, **fields)
        check(C.tandem_npc_say(self._alive(), ctypes.byref(say)))  # what it points to is copied

    def _news(self, function, *arguments):
        news = make(_api.tandem_npc_news)
        status = function(self._alive(), *arguments, ctypes.byref(news))
        if status != _api.Status.ERROR_BUSY:
            check(status)
        found = values(news)
        found["text"] = ctypes.string_at(news_text(news), news.text_bytes).decode(errors="replace") if news.text_bytes else ""
        found["state"], found["end"] = _api.NpcState(news.state), _api.ReplyEnd(news.end)
        return found

    def poll(self):
        """Once a frame: never waits; what the answer gained, as a dict."""
        return self._news(C.tandem_npc_poll)

    def wait(self, timeout):
        return self._news(C.tandem_npc_wait, ns(timeout))

    def stream(self, text=None, timeout=None, **fields):
        """Says something, and yields the answer piece by piece."""
        end = None if timeout is None else time.monotonic() + timeout
        self.begin(text, **fields)
        try:
            while True:
                news = self._news(C.tandem_npc_wait, SLICE_NS)
                if news["text"]:
                    yield news["text"]
                if news["state"] == _api.NpcState.IDLE:
                    return
                if end is not None and time.monotonic() > end:
                    raise Busy(f"the answer is not over after {timeout} s")
        finally:
            if self.handle:
                self.cancel()

    def say(self, text=None, **fields):
        """The whole answer; of several replies the one that the library has chosen."""
        whole = "".join(self.stream(text, **fields))
        return self.history[-1][1] if fields.get("replies", 1) > 1 else whole

    def cancel(self):
        check(C.tandem_npc_cancel(self._alive()))

    def reply(self, index):
        reply = make(_api.tandem_npc_reply)
        check(C.tandem_npc_get_reply(self._alive(), index, ctypes.byref(reply)))
        return values(reply)

    def tokens(self, reply=0):
        """Of a reply that was said with logprobs=1, of each token: its bytes, the logarithm of its probability, and as many of the
        likeliest in its place as top_logprobs says, [(bytes, logarithm)]."""
        token, found = make(_api.tandem_npc_token), []
        for index in range(self.reply(reply)["tokens"]):
            check(C.tandem_npc_get_token(self._alive(), reply, index, ctypes.byref(token)))
            found.append(logprob(getattr(token, "is")) + ([logprob(token.top[i]) for i in range(token.top_count)],))
        return found

    def choose(self, index):
        check(C.tandem_npc_choose(self._alive(), index))

    @property
    def history(self):
        """[(role, text)], role "system", "user" or "npc"; may be set, as of a saved game."""
        count = ctypes.c_uint32()
        check(C.tandem_npc_get_history(self._alive(), ctypes.byref(count), None))
        turns = (_api.tandem_turn * max(1, count.value))()
        turns[0].struct_bytes = ctypes.sizeof(_api.tandem_turn)
        check(C.tandem_npc_get_history(self._alive(), ctypes.byref(count), turns))
        return [(_api.Role(t.role).name.lower(), (t.text or b"").decode()) for t in turns[:count.value]]

    @history.setter
    def history(self, history):
        turns = [make(_api.tandem_turn, role=role, text=text) for role, text in history]
        check(C.tandem_npc_set_history(self._alive(), (_api.tandem_turn * max(1, len(turns)))(*turns), len(turns)))

    def close(self):
        if self.handle and self.language.session.is_open:
            C.tandem_npc_destroy(ctypes.byref(self.handle))

    __del__ = close


class Embedder:
    """Texts as vectors, of a language that was made with embeds=1."""

    depth = 2

    def __init__(self, language, **fields):
        self.language, self.handle = language, ctypes.c_void_p()
        if not language.handle:
            raise ArgumentError("the language is closed")
        desc = make(_api.tandem_embedder_desc, **fields)
        check(C.tandem_embedder_create(language.handle, ctypes.byref(desc), ctypes.byref(self.handle)))
        language.session.adopt(self)

    def _alive(self):
        if not self.handle:
            raise ArgumentError("the embedder is closed")
        return self.handle

    def begin(self, text):
        """poll() has its vector, in the end."""
        check(C.tandem_embedder_begin(self._alive(), None if text is None else encoded("text", text)))

    def _vector(self, function, *arguments):
        embedding = make(_api.tandem_embedding)
        status = function(self._alive(), *arguments, ctypes.byref(embedding))
        if status != _api.Status.ERROR_BUSY:
            check(status)
        return list(embedding.values[:embedding.count]) if embedding.ready else None

    def poll(self):
        """Once a frame: never waits; a list of numbers, or None while it is not there."""
        return self._vector(C.tandem_embedder_poll)

    def embed(self, text, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        self.begin(text)
        slice_ns = SLICE_NS if timeout is None else min(SLICE_NS, ns(timeout))
        while (vector := self._vector(C.tandem_embedder_wait, slice_ns)) is None:
            if end is not None and time.monotonic() > end:
                self.begin(None)
                raise Busy(f"the vector is not there after {timeout} s")
        return vector

    def close(self):
        if self.handle and self.language.session.is_open:
            C.tandem_embedder_destroy(ctypes.byref(self.handle))

    __del__ = close


def text_of(struct, kind):
    """Where its text begins, which may have zeros in it."""
    return ctypes.cast(ctypes.addressof(struct) + kind.text.offset, ctypes.POINTER(ctypes.c_void_p))[0]


def logprob(one):
    return (ctypes.string_at(text_of(one, _api.tandem_token_logprob), one.text_bytes) if one.text_bytes else b"", one.logprob)


def news_text(news):
    return text_of(news, _api.tandem_npc_news)
