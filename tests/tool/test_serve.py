"""`tandem serve` from outside: by OpenAI's own client, and by clients that are none: malformed, hostile, slow, many, gone.

SPDX-License-Identifier: Apache-2.0

usage: test_serve.py BUILD_FOLDER [unittest arguments]

The client is fetched from PyPI into the build folder; without it what needs it is skipped.
"""
import concurrent.futures
import copy
import http.client
import json
import os
import pathlib
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits
from tool import logits_file, pypi, tiny_model

CLIENT = "openai==3.57.0"
PATIENCE = 60
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
ENDLESS = {"grammar": "root ::= [a-z ]{900}", "max_tokens": 900}
LETTERS = "root ::= [a-z ]{20}"
FOLDER = tempfile.TemporaryDirectory(prefix="tandem-serve-")
MODEL = pathlib.Path(FOLDER.name) / "tiny.gguf"
WIDE = pathlib.Path(FOLDER.name) / "wide.gguf"  # of heads whose caches have pages in common
TOOL = BUILD = None


def said(text="Hello.", role="user"):
    return {"role": role, "content": text}


def tool(name, **parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


GIVE = tool("give", type="object", properties={"item": {"$ref": "#/$defs/item"}, "count": {"type": "integer"}}, required=["item", "count"],
            additionalProperties=False, **{"$defs": {"item": {"enum": ["ring", "sword \"<tool_call>\" {", "bread"]}}})
LEAVE = {"type": "function", "function": {"name": "leave", "description": "Goes away.", "strict": True}}
ITEMS = GIVE["function"]["parameters"]["$defs"]["item"]["enum"]


def check_calls(test, calls):
    """They are what their schemas say."""
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        test.assertEqual(call["type"], "function")
        if call["function"]["name"] == "leave":
            test.assertEqual(arguments, {})
        else:
            test.assertEqual((call["function"]["name"], set(arguments)), ("give", {"item", "count"}))
            test.assertIn(arguments["item"], ITEMS)
            test.assertIsInstance(arguments["count"], int)
    test.assertEqual(len({call["id"] for call in calls}), len(calls))


class Server:
    """On a free port, until the end of a `with`."""

    def __init__(self, *options, model=MODEL):
        self.process = subprocess.Popen([TOOL, "serve", "--model", model, "--port", "0", "--threads", "1", *options],
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=limits.cpu(300))
        line = self.process.stdout.readline()
        if " on http://127.0.0.1:" not in line:
            raise AssertionError(f"{line!r} {self.process.communicate()[1]}")
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=PATIENCE * limits.WALL)
        if self.process.returncode or errors:
            raise AssertionError(f"{self.process.returncode}: {errors}")

    def ask(self, path, body=None, method=None, **headers):
        """(status, what the answer says): JSON, where it is."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE * limits.WALL)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        link.request(method or ("GET" if body is None else "POST"), path, data, headers)
        answer = link.getresponse()
        text = answer.read()
        link.close()
        return answer.status, json.loads(text) if answer.getheader("Content-Type") == "application/json" else text.decode()

    def chat(self, text="Hello.", **more):
        status, answer = self.ask(CHAT, {"messages": [said(text)], "max_tokens": 8, "grammar": LETTERS, **more})
        assert status == 200, answer
        return answer

    def metrics(self):
        lines = self.ask("/metrics")[1].splitlines()
        return {line.split()[0].removeprefix("tandem_serve_"): int(line.split()[1]) for line in lines if line[0] != "#"}

    def link(self, data=b"", room=None):
        """room: bytes that the client's side keeps unread."""
        link = socket.socket()
        link.settimeout(PATIENCE * limits.WALL)
        if room:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        link.connect(("127.0.0.1", self.port))
        link.sendall(data)
        return link

    def stream(self, room=None, **more):
        """A socket on which an answer has begun."""
        body = json.dumps({"messages": [said()], "stream": True, **ENDLESS, **more}).encode()
        link = self.link(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body, room)
        begun = b""
        while b"data: " not in begun:
            begun += link.recv(4096)
        return link

    def until(self, **wanted):
        end = time.monotonic() + PATIENCE
        while (now := self.metrics()) | wanted != now:
            if time.monotonic() > end:
                raise AssertionError(f"{now}, not {wanted}")
            time.sleep(0.005)


def answer_to(link):
    """All that comes until the other side closes."""
    text = b""
    try:
        while more := link.recv(65536):
            text += more
    except ConnectionResetError:
        pass
    return text


class Plain(unittest.TestCase):
    """What is told of itself, and what is refused."""

    def test_what_it_tells(self):
        with Server() as s:
            self.assertEqual(s.ask("/health"), (200, {"status": "ok"}))
            status, models = s.ask("/v1/models")
            self.assertEqual((status, [m["id"] for m in models["data"]]), (200, ["tiny"]))
            self.assertEqual(s.metrics()["slots"], 4)
            self.assertEqual(s.ask("/v1/models/tiny"), (200, models["data"][0]))
            for path, body, method, status, word in (
                ("/v1/models/none", None, None, 404, "there is no model of this name; /v1/models says"),
                ("/chat/completions", {}, None, 404, "nothing is at this path; /v1/chat/completions"),
                (CHAT, None, "GET", 405, "this path takes POST alone"),
                ("/health", {}, "POST", 405, "this path takes GET and HEAD alone"),
            ):
                told, answer = s.ask(path, body, method=method)
                self.assertEqual(told, status)
                self.assertIn(word, answer["error"]["message"])

    def test_what_is_asked_wrongly(self):
        messages = {"messages": [said()]}
        with Server() as s:
            for path, body, *words in (
                (CHAT, b"", "the body is no JSON: line 1"),
                (CHAT, b"{", "the body is no JSON: line 1"),
                (CHAT, b"[" * 100000, "the body is no JSON"),
                (CHAT, b'{"a": 1, "a": 2}', "the body is no JSON"),
                (CHAT, b'{"messages": "\xff"}', "the body is no JSON"),
                (CHAT, [], "must be a JSON object"),
                (CHAT, {}, "'messages' is missing; it must be a list"),
                (CHAT, {"messages": []}, "'messages' is []; it must be a list of 1 to"),
                (CHAT, {"messages": [1]}, "'messages[0].role' is missing; it must be"),
                (CHAT, {"messages": [said(), said(role="ghost")]}, "'messages[1].role' is \"ghost\"; it must be"),
                (CHAT, {"messages": [said(5)]}, "'messages[0].content' is 5; it must be"),
                (CHAT, {"messages": [said([{"type": "image_url"}])]}, "'messages[0].content' is [{\"type\":\"image_url\"}]; it must be"),
                (CHAT, messages | {"temperature": "hot"}, "'temperature' is \"hot\"; it must be a number from 0 to 2"),
                (CHAT, messages | {"temperature": 3}, "'temperature' is 3; it must be a number from 0 to 2"),
                (CHAT, messages | {"n": 17}, "'n' is 17; it must be a whole number from 1 to 16"),
                (CHAT, messages | {"max_tokens": 0}, "'max_tokens' is 0; it must be"),
                (CHAT, messages | {"max_tokens": 10 ** 18}, "'max_tokens' is 1000000000000000000; it must be"),
                (CHAT, messages | {"stream": "yes"}, "'stream' is \"yes\"; it must be true or false"),
                (CHAT, messages | {"stop": ["a"] * 17}, "it must be at most 16"),
                (CHAT, messages | {"stop": [""]}, "'stop' is \"\"; it must be texts"),
                (CHAT, messages | {"seed": 1.5}, "'seed' is 1.5; it must be"),
                (CHAT, messages | {"logit_bias": {"x": 1}}, "'logit_bias' is {\"x\":1}; it must have numbers from -100 to 100 by tokens"),
                (CHAT, messages | {"logit_bias": {"1": 101}}, "'logit_bias' is {\"1\":101}; it must"),
                (CHAT, messages | {"logit_bias": {"999": 1}}, "'logit_bias'[0] is 1 of token 999"),
                (CHAT, messages | {"tools": [{}]}, "'tools[0]' is {}; it must be of type function"),
                (CHAT, messages | {"tools": 5}, "'tools' is 5; it must be a list of at most 128"),
                (CHAT, messages | {"tools": [GIVE] * 129}, "it must be a list of at most 128"),
                (CHAT, messages | {"tools": [GIVE, GIVE]}, "'tools[1].function.name' is \"give\"; another one has that name"),
                (CHAT, messages | {"tools": [tool("gi ve")]}, "'tools[0].function.name' is \"gi ve\"; it must be 1 to 64 letters"),
                (CHAT, messages | {"tools": [tool("a" * 65)]}, "it must be 1 to 64 letters"),
                (CHAT, messages | {"tools": [tool("a", type="array")]}, "'tools[0].function.parameters' is {\"type\":\"array\"}; it must be a"),
                (CHAT, messages | {"tools": [tool("a", type="object", properties={"b": {"pattern": "c"}})]},
                 "'tools': schema at #/anyOf/0/properties/arguments/properties/b/pattern"),
                (CHAT, messages | {"tools": [tool("a", type="object", properties={
                    f"b{i}": {"type": "string", "minLength": 9999} for i in range(120)})]}, "'tools': ", "it has more than 1048576 elements"),
                (CHAT, messages | {"tool_choice": "auto"}, "'tool_choice' is \"auto\"; it is for 'tools', of which there are none"),
                (CHAT, messages | {"tools": [GIVE], "tool_choice": "any"}, "'tool_choice' is \"any\"; it must be none, auto, required"),
                (CHAT, messages | {"tools": [GIVE], "tool_choice": {"type": "function", "function": {"name": "take"}}},
                 "it must name one of 'tools'"),
                (CHAT, messages | {"tools": [GIVE], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}},
                 "it must allow one of 'tools'"),
                (CHAT, messages | {"tools": [GIVE], "grammar": "root ::= [a]"}, "they go without 'response_format' and 'grammar'"),
                (CHAT, messages | {"functions": [{}]}, "'functions' is [{}]; it is not supported"),
                (CHAT, {"messages": [said(), {"role": "tool", "tool_call_id": "x", "content": "y"}]},
                 "'messages[1].tool_call_id' is \"x\"; it must be the id of a call before it"),
                (CHAT, {"messages": [said(), {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
                 "'messages[1].tool_calls' is [{\"id\":\"a\"}]; each must have an id"),
                (CHAT, {"messages": [said(), {"role": "assistant", "content": None}]}, "'messages[1].content' is null; it must be a string"),
                (CHAT, messages | {"logprobs": 1}, "'logprobs' is 1; it must be true or false"),
                (CHAT, messages | {"logprobs": True, "top_logprobs": 21}, "'top_logprobs' is 21; it must be a whole number from 0 to 20"),
                (CHAT, messages | {"top_logprobs": 2}, "'top_logprobs' is 2; it is for 'logprobs' that is true"),
                (CHAT, messages | {"logprobs": True, "top_logprobs": 20, "n": 16, "max_tokens": 900},
                 "'logprobs' is true; with 16 replies of 900 tokens and 20 others it would have 302400 entries, of which 131072 are"),
                (TEXT, {"prompt": "a", "logprobs": 6}, "'logprobs' is 6; it must be a whole number from 0 to 5"),
                (TEXT, {"prompt": "a", "logprobs": True}, "'logprobs' is true; it must be"),
                (CHAT, messages | {"response_format": {"type": "xml"}}, "'response_format' is {\"type\":\"xml\"}; it must be"),
                (CHAT, messages | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": "a"}}}},
                 "'response_format': schema at #/pattern"),
                (CHAT, messages | {"grammar": "root ::= x"}, "'grammar': line 1: 'x' is defined nowhere"),
                (CHAT, {"messages": [said("x" * 2000)]}, "'messages' have 2", "the context has 1024"),
                (TEXT, {"prompt": "x" * 2000}, "'prompt' has 2", "the context has 1024"),
                (TEXT, {"prompt": "a", "best_of": 3}, "'best_of' is 3; all answers are told, so it must be as 'n'"),
                (TEXT, {}, "'prompt' is missing; it must be a string"),
                (TEXT, {"prompt": [1, 2]}, "'prompt' is [1,2]; it must be a string"),
                (TEXT, {"prompt": ""}, "what is said has no token"),
                (TEXT, {"prompt": "a", "echo": True}, "'echo' is true; it is not supported"),
                (CHAT, messages | {"user": "x" * 200, "seed": "y" * 200}, "yyyy...; it must be"),
                (CHAT, messages | {"stream_options": {"include_usage": True}}, "it is for a 'stream' that is true"),
                (CHAT, messages | {"stream": True, "stream_options": 5}, "'stream_options' is 5; it must be an object"),
                (EMBED, {}, "'input' is missing; it must be a text, or a list of texts"),
                (EMBED, {"input": ""}, "'input' is \"\"; it must be a text that is not empty"),
                (EMBED, {"input": []}, "'input' is []; it must be a list of 1 to 2048 texts"),
                (EMBED, {"input": ["a"] * 2049}, "it must be a list of 1 to 2048 texts"),
                (EMBED, {"input": ["a", 5]}, "'input[1]' is 5; it must be a text"),
                (EMBED, {"input": [1, 2]}, "'input[0]' is 1; it must be a text that is not empty; tokens are not taken"),
                (EMBED, {"input": "a", "encoding_format": "xml"}, "'encoding_format' is \"xml\"; it must be float or base64"),
                (EMBED, {"input": "a", "dimensions": 8}, "'dimensions' is 8; this model's vectors have 64"),
                (EMBED, {"input": ["a", "x" * 2000]}, "'input[1]': text has 2038 tokens, with those around it; the context has 1024"),
            ):
                status, answer = s.ask(path, body)
                self.assertEqual(status, 400, (body, answer))
                named = answer["error"]["message"].startswith("'")
                self.assertEqual(named, answer["error"]["param"] is not None and answer["error"]["param"] in answer["error"]["message"], answer)
                for word in words:
                    self.assertIn(word, answer["error"]["message"], body)
            self.assertEqual(s.metrics()["slots_busy"], 0)
            self.assertEqual(s.chat()["choices"][0]["finish_reason"], "length")

    def test_what_is_odd(self):
        """Right requests in which something is another value: answered or refused, with what is wrong named."""
        call = {"id": "a", "type": "function", "function": {"name": "give", "arguments": "{}"}}
        schema = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}
        right = [
            (CHAT, {"messages": [said(), {"role": "assistant", "content": None, "tool_calls": [call]},
                                 {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "d"}]}],
                    "tools": [GIVE, LEAVE], "tool_choice": {"type": "function", "function": {"name": "give"}}, "max_tokens": 3, "n": 2,
                    "stop": ["a"], "logprobs": True, "top_logprobs": 3, "seed": 1, "logit_bias": {"5": 1}, "user": "u"}),
            (CHAT, {"messages": [said()], "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True},
                    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}),
            (TEXT, {"prompt": "abc", "max_tokens": 2, "logprobs": 2, "stream": True, "top_p": 0}),
            (EMBED, {"input": ["a", "b"], "encoding_format": "base64", "dimensions": tiny_model.DIM}),
        ]
        odd = [None, True, 0, -1, 1, 1e308, 2 ** 63 - 1, "", "x", "\u20ac" * 300, "<tool_call>", [], {}, [[]], [{}], {"a": 1}, "required",
               {"type": "object"}, {"$ref": "#"}, "root ::= text"]
        dice = random.Random(7)

        def places(value):
            for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
                yield value, name
                yield from places(value[name])

        with Server("--slots", "2") as s:
            for _ in range(400):
                path, body = copy.deepcopy(dice.choice(right))
                for _ in range(dice.randint(1, 2)):
                    holder, name = dice.choice(list(places(body)))
                    holder[name] = copy.deepcopy(dice.choice(odd))
                status, answer = s.ask(path, body)
                self.assertIn(status, (200, 400), body)
                self.assertTrue(status == 200 or answer["error"]["message"], body)
            self.assertEqual(s.metrics()["slots_busy"], 0)

    def test_what_is_no_request(self):
        post = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\n"
        with Server("--timeout", "1") as s:
            for data in (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
                b"\r\n" * 1000,
                b"GET\r\n\r\n",
                b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
                b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 20000 + b"\r\n",
                b"GET /health HTTP/9.9\r\nHost: a\r\n\r\n",
                post + b"Content-Length: -1\r\n\r\n",
                post + b"Content-Length: 99999999999999999999999999\r\n\r\n",
                post + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
                post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
                post + b"Content-Length: 100\r\n\r\n{",  # and no more
                b"GET /hea",  # and no more
            ):
                link = s.link()
                try:
                    link.sendall(data)
                except (BrokenPipeError, ConnectionResetError):
                    pass
                answer = answer_to(link)
                self.assertFalse(answer.startswith(b"HTTP/1.1 200"), data[:80])
                link.close()
                self.assertEqual(s.ask("/health")[0], 200, data[:80])

    def test_bounded_bodies(self):
        body = json.dumps({"messages": [said("x")], "max_tokens": 1}).encode()
        with Server() as s:
            self.assertEqual(s.ask(CHAT, body.ljust(1 << 20))[0], 200)
            status, answer = s.ask(CHAT, body, **{"Content-Length": str((1 << 20) + 1)})
            self.assertEqual((status, answer["error"]["message"]), (413, "a body may have at most 1 MiB"))
            link = s.link(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            sent = 0
            with self.assertRaises(OSError):  # it is cut off, whatever is sent
                while sent < 1 << 26:
                    sent += link.send(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            link.close()
            self.assertEqual(s.ask("/health")[0], 200)

    def test_tokens_and_pages(self):
        token = pathlib.Path(FOLDER.name) / "token"
        token.write_text("s3cret\nmore\n")
        with Server("--token-file", token) as s:
            for headers in ({}, {"Authorization": "Bearer s3creT"}, {"Authorization": "Bearer s3cret1"}, {"Authorization": "s3cret"},
                            {"Authorization": "Basic s3cret"}, {"Authorization": "Bearer "}):
                for path, body in (("/v1/models", None), ("/metrics", None), (CHAT, {"messages": [said()]}), ("/nothing", None)):
                    status, answer = s.ask(path, body, **headers)
                    self.assertEqual((status, answer["error"]["type"]), (401, "authentication_error"), headers)
            self.assertEqual(s.ask("/health")[0], 200)
            self.assertEqual(s.ask("/v1/models", Authorization="Bearer s3cret", Origin="http://a")[0], 200)
        with Server() as s:
            self.assertEqual(s.ask("/v1/models", Origin="http://evil")[0], 403)
            self.assertEqual(s.ask(CHAT, {"messages": [said()]}, Origin="null")[0], 403)

    def test_options(self):
        long = pathlib.Path(FOLDER.name) / "long"
        long.write_text("x" * 300)
        for options, status, words in (
            ((), 2, "--model is missing"),
            (("--model", MODEL, "--port", "x"), 2, '--port "x" is not a number from 0 to 65535'),
            (("--model", MODEL, "--slots", "33"), 2, "from 1 to 32"),
            (("--model", MODEL, "--rung", "x"), 2, "--rung"),
            (("--model", MODEL, "--kv", "x"), 2, '--kv "x"'),
            (("--model", MODEL, "--kv", "k8v8"), 1, "32 channels"),
            (("--model", "/none"), 1, "/none"),
            (("--model", MODEL, "--listen", "nowhere"), 1, '--listen "nowhere"'),
            (("--model", MODEL, "--token-file", "/none"), 1, '--token-file "/none": No such file'),
            (("--model", MODEL, "--token-file", "/dev/null"), 1, '--token-file "/dev/null": it has no line'),
            (("--model", MODEL, "--token-file", long), 1, "its first line has more than"),
            (("--model", MODEL, "--listen", "192.0.2.1"), 1, "cannot listen on 192.0.2.1, port 8080: Cannot assign"),
        ):
            run = limits.run([TOOL, "serve", *options], capture_output=True, text=True, seconds=PATIENCE)
            self.assertEqual((run.returncode, run.stdout, run.stderr.count("\n")), (status, "", 1), run.stderr)
            self.assertIn(words, run.stderr)
        with Server() as s:  # whose port is taken
            run = limits.run([TOOL, "serve", "--model", MODEL, "--port", str(s.port)], capture_output=True, text=True, seconds=PATIENCE)
            self.assertEqual(run.returncode, 1)
            self.assertIn(f"cannot listen on 127.0.0.1, port {s.port}: Address already in use", run.stderr)


class Answers(unittest.TestCase):
    """What is answered, without a client of anybody's."""

    def test_the_same_each_time(self):
        with Server() as s:
            asked = {"temperature": 0.9, "seed": 7, "n": 2, "grammar": LETTERS}
            one, two = (s.chat(**asked) for _ in range(2))
            texts = [choice["message"]["content"] for choice in one["choices"]]
            self.assertEqual(texts, [choice["message"]["content"] for choice in two["choices"]])
            self.assertNotEqual(*texts)
            self.assertEqual({choice["finish_reason"] for choice in one["choices"]}, {"length"})
            self.assertEqual(one["usage"]["completion_tokens"], 16)
            streamed = s.ask(CHAT, {"messages": [said()], "max_tokens": 8, "stream": True, **asked})[1]
            events = [line.removeprefix("data: ") for line in streamed.split("\n\n") if line]
            self.assertEqual(events.pop(), "[DONE]")
            parts = ["", ""]
            for event in map(json.loads, events):
                choice, = event["choices"]
                parts[choice["index"]] += choice["delta"].get("content", "")
            self.assertEqual(parts, texts)

    def test_together(self):
        """What is answered does not depend on who else asks, and what all begin with is read once."""
        persona = said("A guard of the northern gate, who has seen it all. " * 6, "system")
        for kv in ("f16", "k8v8", "k4v8"):
            with Server("--slots", "8", "--kv", kv, model=WIDE) as s:
                def answer(i):
                    body = {"messages": [persona, said(f"I am number {i}.")], "max_tokens": 30, "grammar": LETTERS, "temperature": 0.9, "seed": i}
                    return s.ask(CHAT, body)[1]["choices"][0]["message"]["content"]
                alone = [answer(i) for i in range(8)]
                with concurrent.futures.ThreadPoolExecutor(8) as pool:
                    self.assertEqual(list(pool.map(answer, range(8))), alone)
                self.assertEqual(len(set(alone)), 8)
                counts = s.metrics()
                self.assertLess(counts["read_tokens_total"], counts["prompt_tokens_total"] / 2)

    def test_users_keep_what_was_read(self):
        with Server("--slots", "2") as s:
            dialogue = [said("You are a smith. " * 10, "system"), said()]
            for turn in range(3):
                for user in ("ann", "bob"):
                    before = s.metrics()["read_tokens_total"]
                    key = {"user": user} if user == "ann" else {"user": "ann", "prompt_cache_key": user}
                    answer = s.ask(CHAT, {"messages": dialogue, **key, "max_tokens": 4, "temperature": 0, "grammar": LETTERS})[1]
                    read = s.metrics()["read_tokens_total"] - before
                    self.assertTrue(read < 80 if turn else read == answer["usage"]["prompt_tokens"], (turn, user, read))
                dialogue += [said(answer["choices"][0]["message"]["content"], "assistant"), said("And then?")]

    def test_system_messages_stay(self):
        with Server() as s:
            dialogue = [said("A smith.", "system")] + [said(f"Question {i} is a long one?") for i in range(60)]
            answer = s.ask(CHAT, {"messages": dialogue, "max_tokens": 4})[1]
            self.assertLessEqual(answer["usage"]["prompt_tokens"], tiny_model.CONTEXT // 2)

    def test_names(self):
        """No two answers have the same, also of servers that began in the same second."""
        with Server() as one, Server() as two:
            self.assertEqual(len({s.chat()["id"] for s in (one, two) for _ in range(2)}), 4)

    def test_text(self):
        with Server() as s:
            answer = s.ask(TEXT, {"prompt": "Once", "temperature": 0, "max_tokens": 5, "grammar": "root ::= \"abc\" [x] [y] [z]"})[1]
            self.assertEqual((answer["object"], answer["choices"][0]["text"]), ("text_completion", "abcxy"))
            self.assertEqual(answer["usage"], {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9,
                                               "prompt_tokens_details": {"cached_tokens": 0}})


class Likely(unittest.TestCase):
    """How likely tokens are is what `tandem logits` says; streams say the same as whole answers."""

    def logits(self, tokens):
        return logits_file.likely(TOOL, MODEL, ",".join(map(str, tokens)), pathlib.Path(FOLDER.name) / "logits.safetensors")

    def streamed(self, s, path, body):
        lines = s.ask(path, body | {"stream": True})[1].split("\n\n")
        self.assertEqual(lines[-2:], ["data: [DONE]", ""])
        return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-2]]

    def test_text(self):
        prompt, body = "Once \u00fcp", {"prompt": "Once \u00fcp", "logprobs": 3, "temperature": 0.9, "seed": 4, "max_tokens": 12,
                                       "grammar": 'root ::= "\u20ac" [a-z]+'}
        with Server() as s:
            whole = s.ask(TEXT, body)[1]["choices"][0]
            told = whole["logprobs"]
            raw = whole["text"].encode()
            self.assertEqual(len(raw), 12)
            self.assertEqual(told["tokens"], ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xac"] + [chr(b) for b in raw[3:]])
            self.assertEqual(told["text_offset"], [len(prompt)] * 3 + [len(prompt) + 1 + i for i in range(9)])
            expected = self.logits(list(prompt.encode() + raw))[len(prompt.encode()) - 1:]
            for token, likely, tops, row in zip(raw, told["token_logprobs"], told["top_logprobs"], expected):
                self.assertAlmostEqual(likely, row[token], 4)
                self.assertTrue(3 <= len(tops) <= 4)
                for other, value in zip(sorted(tops.values(), reverse=True), sorted(row, reverse=True)[:3]):
                    self.assertAlmostEqual(other, value, 4)
            parts = self.streamed(s, TEXT, body)
            self.assertEqual("".join(part["text"] for part in parts), whole["text"])
            for name, values in told.items():
                self.assertEqual(sum((part["logprobs"][name] for part in parts if part["logprobs"]), []), values)
            without = s.ask(TEXT, body | {"logprobs": 0})[1]["choices"][0]["logprobs"]
            self.assertEqual((without["top_logprobs"], without["token_logprobs"]), (None, told["token_logprobs"]))

    def test_chat(self):
        body = {"messages": [said()], "logprobs": True, "top_logprobs": 2, "temperature": 0, "max_tokens": 12, "n": 2,
                "grammar": "root ::= [a-m]{4} [n-z]{8}", "stop": ["o", "p", "q", "r", "s", "t", "u", "v"]}
        prompt = [256, *b"user\nHello.", 257, *b"\n", 256, *b"assistant\n"]
        with Server() as s:
            choices = s.ask(CHAT, body)[1]["choices"]
            for choice in choices:
                told, text = choice["logprobs"]["content"], choice["message"]["content"].encode()
                self.assertEqual(bytes(b for one in told for b in one["bytes"]), text)  # without what stopped it
                for one, row, byte in zip(told, self.logits(prompt + list(text))[len(prompt) - 1:], text):
                    self.assertEqual(one["token"], chr(byte))
                    self.assertAlmostEqual(one["logprob"], row[byte], 4)
                    self.assertEqual(len(one["top_logprobs"]), 2)
                    for top, value in zip(one["top_logprobs"], sorted(row, reverse=True)):
                        self.assertAlmostEqual(top["logprob"], value, 4)
            parts = self.streamed(s, CHAT, body)
            for index, choice in enumerate(choices):
                mine = [part for part in parts if part["index"] == index]
                self.assertEqual(sum((part["logprobs"]["content"] for part in mine if part["logprobs"]), []), choice["logprobs"]["content"])
                self.assertEqual("".join(part["delta"].get("content") or "" for part in mine), choice["message"]["content"])
            self.assertIsNone(s.chat()["choices"][0]["logprobs"])


class Calls(unittest.TestCase):
    """Functions: what is called is what a schema says, and a stream of it the same as the whole."""

    def whole(self, s, **more):
        status, answer = s.ask(CHAT, {"messages": [said()], "tools": [GIVE, LEAVE], "max_tokens": 400, "temperature": 1, **more})
        self.assertEqual(status, 200, answer)
        return answer["choices"]

    def streamed(self, s, **more):
        """The same, put together of chunks as OpenAI says."""
        lines = s.ask(CHAT, {"messages": [said()], "tools": [GIVE, LEAVE], "max_tokens": 400, "temperature": 1, "stream": True, **more})[1]
        choices = {}
        for line in lines.split("\n\n")[:-2]:
            part, = json.loads(line.removeprefix("data: "))["choices"]
            choice = choices.setdefault(part["index"], {"content": "", "calls": [], "parts": 0})
            choice["content"] += part["delta"].get("content") or ""
            choice["end"] = part["finish_reason"]
            for call in part["delta"].get("tool_calls", ()):
                choice["parts"] += 1
                if call["index"] == len(choice["calls"]):
                    choice["calls"].append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
                else:
                    self.assertEqual(call["index"], len(choice["calls"]) - 1)
                    self.assertEqual(set(call), {"index", "function"})
                    choice["calls"][-1]["function"]["arguments"] += call["function"]["arguments"]
        return [choices[i] for i in range(len(choices))]

    def same(self, whole, streamed):
        for choice, parts in zip(whole, streamed, strict=True):
            calls = choice["message"].get("tool_calls", [])
            self.assertEqual([call["function"] for call in calls], [call["function"] for call in parts["calls"]])
            self.assertEqual((choice["message"]["content"] or "", choice["finish_reason"]), (parts["content"], parts["end"]))

    def test_required(self):
        names = set()
        with Server() as s:
            for seed in range(6):
                asked = {"tool_choice": "required", "seed": seed, "n": 2, "parallel_tool_calls": False}
                whole, streamed = self.whole(s, **asked), self.streamed(s, **asked)
                self.same(whole, streamed)
                for choice, parts in zip(whole, streamed):
                    call, = choice["message"]["tool_calls"]
                    self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None))
                    check_calls(self, [call])
                    names.add(call["function"]["name"])
                    self.assertTrue(parts["parts"] > 3 or call["function"]["name"] == "leave", parts)
            self.assertEqual(names, {"give", "leave"})

    def test_one_of_them(self):
        leave = {"type": "function", "function": {"name": "leave"}}
        with Server() as s:
            for choice in (leave, {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [leave]}}):
                calls = self.whole(s, tool_choice=choice, parallel_tool_calls=False)[0]["message"]["tool_calls"]
                self.assertEqual([call["function"] for call in calls], [{"name": "leave", "arguments": calls[0]["function"]["arguments"]}])
                check_calls(self, calls)

    def test_several(self):
        """As many as it calls; of one that is cut, what there is."""
        with Server() as s:
            asked = {"tool_choice": "required", "seed": 3, "logit_bias": {"257": -100}, "max_tokens": 300}
            whole, streamed = self.whole(s, **asked), self.streamed(s, **asked)
            self.same(whole, streamed)
            calls = whole[0]["message"]["tool_calls"]
            self.assertGreater(len(calls), 2)
            self.assertEqual(whole[0]["finish_reason"], "length")
            check_calls(self, calls[:-1])

    def test_auto(self):
        """Text is text, and never the beginning of a call that is none."""
        towards = {"60": 6, str(ord("t")): 3, str(ord("o")): 3, "257": -2}
        contents = set()
        with Server() as s:
            for seed in range(8):
                asked = {"seed": seed, "max_tokens": 250, "logit_bias": towards}
                whole = self.whole(s, **asked)
                self.same(whole, self.streamed(s, **asked))
                message = whole[0]["message"]
                self.assertNotIn("<tool_call>", message["content"] or "")
                contents.add(message["content"])
            none = self.whole(s, tool_choice="none", max_tokens=100, logit_bias=towards)[0]["message"]
            self.assertNotIn("tool_calls", none)
            self.assertNotIn("<tool_call>", none["content"])
        self.assertGreater(len(contents), 4)

    def test_history(self):
        """Calls and what came of them are read as the model writes them, and what was read stays."""
        call = {"id": "call_1", "type": "function", "function": {"name": "give", "arguments": '{"item": "ring", "count": 1}'}}
        results = [{"role": "tool", "tool_call_id": id, "content": "done"} for id in ("call_1", "call_2")]
        ask = [said("A smith.", "system"), said("A ring, please.")]
        with Server() as s:
            count = lambda messages, **more: s.ask(CHAT, {"messages": messages, "max_tokens": 1, **more})[1]["usage"]["prompt_tokens"]
            written = '<tool_call>\n{"name": "give", "arguments": {"item": "ring", "count": 1}}\n</tool_call>'
            answered = [said("<tool_response>\ndone\n</tool_response>\n<tool_response>\ndone\n</tool_response>")]
            calls = {"role": "assistant", "content": None, "tool_calls": [call, call | {"id": "call_2"}]}
            self.assertEqual(count(ask + [calls] + results), count(ask + [said(f"{written}\n{written}", "assistant")] + answered))
            self.assertEqual(count(ask + [calls | {"content": "Here."}]), count(ask + [said(f"Here.\n{written}\n{written}", "assistant")]))
            told, untold = count(ask, tools=[GIVE]), count(ask)
            self.assertGreater(told, untold + len(json.dumps(GIVE)))
            self.assertEqual(count(ask, tools=[GIVE], tool_choice="none"), untold)
            self.assertGreater(count(ask[1:], tools=[GIVE]), len(json.dumps(GIVE)))


class Crowds(unittest.TestCase):
    """Clients that are slow, many, or gone."""

    def test_gone_while_it_speaks(self):
        with Server("--slots", "1", "--timeout", "300") as s:
            s.stream().close()
            s.until(cancelled_total=1, slots_busy=0)
            made = s.metrics()["reply_tokens_total"]
            self.assertTrue(0 < made < ENDLESS["max_tokens"] / 2, f"{made} tokens for nobody")
            self.assertEqual(s.chat()["usage"]["completion_tokens"], 8)
            half = s.stream()  # closed for writing is closed
            half.shutdown(socket.SHUT_WR)
            s.until(cancelled_total=2, slots_busy=0)
            half.close()

    def test_gone_before_it_speaks(self):
        body = json.dumps({"messages": [said()], **ENDLESS}).encode()
        request = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body
        with Server("--slots", "1") as s:
            first = s.link(request)
            s.until(slots_busy=1)
            waiting = [s.link(request) for _ in range(3)]
            s.until(queue=3)
            for link in waiting:
                link.close()
            s.until(queue=0, cancelled_total=3)
            first.close()
            s.until(slots_busy=0, cancelled_total=4)

    def test_gone_while_it_embeds(self):
        body = json.dumps({"input": ["word " * 100] * 2000}).encode()
        with Server("--slots", "1") as s:
            link = s.link(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (EMBED.encode(), len(body)) + body)
            end = time.monotonic() + PATIENCE
            while not s.metrics()["embeddings_total"] and time.monotonic() < end:
                time.sleep(0.005)
            self.assertEqual(s.chat()["usage"]["completion_tokens"], 8)  # slots are not for embeddings, nor these for slots
            link.close()
            s.until(cancelled_total=1)
            self.assertLess(s.metrics()["embeddings_total"], 1900)
            self.assertEqual(len(s.ask(EMBED, {"input": "a"})[1]["data"]), 1)

    def test_embeddings_beside_answers(self):
        """Neither changes the other."""
        texts = [f"Memory number {i}, which is about {'a river ' * i}" for i in range(8)]
        with Server("--slots", "4", model=WIDE) as s:
            embed = lambda text: s.ask(EMBED, {"input": text})[1]["data"][0]["embedding"]
            answer = lambda i: s.chat(f"I am number {i}.", temperature=0.9, seed=i)["choices"]
            vectors, answers = [embed(text) for text in texts], [answer(i) for i in range(8)]
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                both = pool.map(embed, texts), pool.map(answer, range(8))
                self.assertEqual([list(found) for found in both], [vectors, answers])

    def test_a_queue_that_is_full(self):
        with Server("--slots", "1", "--queue", "0") as s:
            self.assertEqual(s.ask(CHAT, {"messages": [said()]})[0], 503)
        with Server("--slots", "1", "--queue", "1") as s:
            speaks = s.stream()
            body = json.dumps({"messages": [said()], "max_tokens": 1}).encode()
            waits = s.link(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
            s.until(queue=1)
            self.assertEqual(s.ask(CHAT, {"messages": [said()]})[0], 503)
            speaks.close()
            self.assertIn(b"HTTP/1.1 200", waits.recv(4096))
            waits.close()
            s.until(slots_busy=0)

    def test_slow_readers(self):
        """Who does not read keeps nobody waiting."""
        with Server("--slots", "4") as s:
            lazy = [s.stream(n=16) for _ in range(3)]
            for _ in range(5):
                self.assertEqual(s.chat()["usage"]["completion_tokens"], 8)
            for link in lazy:
                link.close()
            s.until(slots_busy=0)

    def test_readers_that_are_too_slow(self):
        """What is not read is not kept without end."""
        with Server("--slots", "1", "--timeout", "300") as s:
            lazy = s.stream(room=4096, n=9, logprobs=True, top_logprobs=14, max_tokens=900)
            s.until(cancelled_total=1, slots_busy=0)
            said_so = b""
            while not said_so.endswith(b"\r\n0\r\n\r\n"):  # then it may ask for something else
                said_so = said_so[-4000:] + lazy.recv(1 << 20)
            self.assertIn(b"the client has not read what was said", said_so)
            lazy.close()
            self.assertEqual(s.chat()["usage"]["completion_tokens"], 8)

    def test_many(self):
        many = 500
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard != resource.RLIM_INFINITY and hard < 2 * many:
            self.skipTest(f"at most {hard} files may be open")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * many), hard))
        with Server("--queue", str(many), "--connections", str(2 * many)) as s:
            idle = [s.link(b"GET /hea") for _ in range(many)]
            self.assertEqual(s.ask("/health")[0], 200)
            with concurrent.futures.ThreadPoolExecutor(many) as pool:
                answers = list(pool.map(lambda i: s.ask(CHAT, {"messages": [said(str(i))], "max_tokens": 1}), range(many - 20)))
            self.assertEqual({status for status, _ in answers}, {200})
            self.assertEqual(s.metrics()["answered_total"], many - 20)
            for link in idle:
                link.close()
            self.assertEqual(s.ask("/health")[0], 200)
        with Server("--connections", "5") as s:
            full = [s.link() for _ in range(8)]
            time.sleep(0.1)
            for link in full:
                link.close()
            s.until(slots_busy=0)

    def test_the_end(self):
        """Answers that go on are told so."""
        with Server("--slots", "1") as s:
            speaks = s.stream()
            body = json.dumps({"messages": [said()]}).encode()
            waits = s.link(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body)
            s.until(queue=1)
            s.process.send_signal(signal.SIGTERM)
            self.assertIn(b'"the server ends"', answer_to(speaks))
            self.assertIn(b"HTTP/1.1 503", answer_to(waits))
            speaks.close()
            waits.close()


def find_client():
    """The module; None: PyPI cannot be reached."""
    folder = pypi.folder_of(BUILD, CLIENT)
    if not folder:
        return None
    sys.path.insert(1, str(folder))
    import openai
    return openai


class Elsewhere(unittest.TestCase):
    """Computed by a tandemd."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tandem-serve-daemon-")
        self.addCleanup(self.folder.cleanup)
        folder = pathlib.Path(self.folder.name)
        self.socket = folder / "socket"
        (folder / "tandemd.conf").write_text(f"backend = cpu\nmodel_dir = {FOLDER.name}\n")
        self.log = open(folder / "log", "w+")
        self.addCleanup(self.log.close)
        self.daemon = subprocess.Popen([BUILD / "tandemd", "--socket", self.socket, "--config", folder / "tandemd.conf"],
                                       stderr=self.log, preexec_fn=limits.cpu(300))
        self.addCleanup(self.daemon.wait)
        self.addCleanup(self.daemon.terminate)
        for _ in range(PATIENCE * 100):
            if "computes on" in (folder / "log").read_text():
                break
            time.sleep(0.01)

    def test_the_same(self):
        """Vectors and words, of a model whose characters have pages in common and of one whose do not."""
        texts = ["The smith makes swords.", "?", "A ring of silver"]
        for model in (WIDE, MODEL):
            with Server(model=model) as here, Server("--socket", self.socket, model=model) as there:
                for body in ({"input": texts}, {"input": texts[0]}):
                    expected = here.ask(EMBED, body)
                    self.assertEqual(expected[0], 200, expected)
                    self.assertEqual(there.ask(EMBED, body), expected)
                said_here, said_there = (server.chat(temperature=0)["choices"] for server in (here, there))
                self.assertEqual(said_there, said_here)


class Client(unittest.TestCase):
    """OpenAI's own."""

    @classmethod
    def setUpClass(cls):
        cls.openai = find_client()
        if not cls.openai:
            raise unittest.SkipTest(f"{CLIENT} could not be fetched")

    def client(self, s, key="none"):
        return self.openai.OpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key=key, max_retries=0)

    def test_chat(self):
        schema = {"type": "object", "properties": {"do": {"enum": ["give", "refuse"]}, "count": {"type": "integer"}},
                  "required": ["do", "count"], "additionalProperties": False}
        with Server() as s, self.client(s) as client:
            asked = {"model": "tiny", "messages": [said("A smith.", "system"), said([{"type": "text", "text": "Hello."}])],
                     "seed": 3, "max_completion_tokens": 20, "extra_body": {"grammar": LETTERS + "[a-z]"}}
            whole = client.chat.completions.create(**asked)
            self.assertEqual((whole.choices[0].finish_reason, whole.usage.completion_tokens), ("length", 20))
            stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
            parts = list(stream)
            text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
            self.assertEqual(text, whole.choices[0].message.content)
            self.assertEqual([part.choices[0].delta.role for part in parts if part.choices], ["assistant"] + [None] * (len(parts) - 2))
            self.assertEqual([part.usage for part in parts[:-1]], [None] * (len(parts) - 1))
            ends = asked | {"extra_body": {"grammar": "root ::= [a-z]{9}"}}
            with client.chat.completions.stream(**ends) as stream:  # which puts the parts together itself
                put_together = stream.get_final_completion().choices[0]
            self.assertEqual((put_together.finish_reason, put_together.message.role), ("stop", "assistant"))
            self.assertEqual(put_together.message.content, client.chat.completions.create(**ends).choices[0].message.content)
            self.assertEqual(parts[-1].usage.completion_tokens, 20)
            action = client.chat.completions.create(
                model="tiny", messages=[said()], response_format={"type": "json_schema", "json_schema": {
                    "name": "action", "strict": True, "schema": schema}})
            done = json.loads(action.choices[0].message.content)
            self.assertIn(done["do"], ("give", "refuse"))
            self.assertIsInstance(done["count"], int)
            several = client.chat.completions.create(model="tiny", messages=[said()], n=3, max_tokens=3, stop=["q"])
            self.assertEqual([choice.index for choice in several.choices], [0, 1, 2])

    def test_the_rest(self):
        with Server() as s, self.client(s) as client:
            self.assertEqual([model.id for model in client.models.list()], ["tiny"])
            answer = client.completions.create(model="tiny", prompt="Once", max_tokens=4, extra_body={"grammar": LETTERS})
            self.assertEqual(len(answer.choices[0].text), 4)
            self.assertEqual(client.models.retrieve("tiny").owned_by, "tandem")
            with self.assertRaises(self.openai.BadRequestError) as caught:
                client.chat.completions.create(model="tiny", messages=[])
            self.assertIn("'messages' is []; it must be a list", str(caught.exception))
            self.assertEqual(caught.exception.param, "messages")

    def test_embeddings(self):
        texts = ["A smith.", "The river floods the fields.", "A smith."]
        with Server() as s, self.client(s) as client:
            whole = client.embeddings.create(model="tiny", input=texts)  # which asks for base64
            vectors = [one.embedding for one in whole.data]
            self.assertEqual([one.index for one in whole.data], [0, 1, 2])
            self.assertEqual({len(v) for v in vectors}, {tiny_model.DIM})
            for v in vectors:
                self.assertAlmostEqual(sum(x * x for x in v), 1, 5)
            self.assertEqual(vectors[0], vectors[2])
            self.assertNotEqual(vectors[0], vectors[1])
            self.assertEqual((whole.usage.prompt_tokens, whole.usage.total_tokens), (sum(map(len, texts)),) * 2)
            for text, vector in zip(texts, vectors):
                one = client.embeddings.create(model="tiny", input=text, encoding_format="float", dimensions=tiny_model.DIM, user="ann")
                self.assertEqual([struct.unpack("f", struct.pack("f", x))[0] for x in one.data[0].embedding], vector)
            self.assertEqual(s.metrics()["embeddings_total"], 6)

    def test_calls(self):
        with Server() as s, self.client(s) as client:
            asked = {"model": "tiny", "messages": [said("A ring, please.")], "tools": [GIVE, LEAVE], "tool_choice": "required", "seed": 5,
                     "max_tokens": 400, "parallel_tool_calls": False}
            whole = client.chat.completions.create(**asked).choices[0]
            call, = whole.message.tool_calls
            check_calls(self, [call.to_dict()])
            with client.chat.completions.stream(**asked) as stream:
                events = list(stream)
                got = stream.get_final_completion().choices[0]
            self.assertEqual(got.finish_reason, "tool_calls")
            self.assertEqual(got.message.tool_calls[0].function.arguments, call.function.arguments)
            self.assertIn("tool_calls.function.arguments.done", {event.type for event in events})
            dialogue = asked["messages"] + [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "done"}]
            client.chat.completions.create(model="tiny", messages=dialogue, max_tokens=2)
            likely = client.chat.completions.create(model="tiny", messages=[said()], logprobs=True, top_logprobs=2, max_tokens=3)
            self.assertEqual([len(one.top_logprobs) for one in likely.choices[0].logprobs.content], [2] * len(likely.choices[0].logprobs.content))

    def test_streams_that_are_left(self):
        with Server("--slots", "1") as s, self.client(s) as client:
            stream = client.chat.completions.create(model="tiny", messages=[said()], stream=True, max_tokens=900,
                                                    extra_body={"grammar": ENDLESS["grammar"]})
            next(iter(stream))
            stream.close()
            s.until(cancelled_total=1, slots_busy=0)

    def test_tokens(self):
        token = pathlib.Path(FOLDER.name) / "client_token"
        token.write_text("right")
        with Server("--token-file", token) as s:
            with self.client(s, "wrong") as client, self.assertRaises(self.openai.AuthenticationError):
                client.models.list()
            with self.client(s, "right") as client:
                self.assertEqual(len(list(client.models.list())), 1)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: test_serve.py BUILD_FOLDER [unittest arguments]")
    BUILD = pathlib.Path(sys.argv.pop(1)).resolve()
    TOOL = BUILD / "tandem"
    if not (BUILD / "tandem-serve").exists():
        print("test_serve: tandem-serve was not built: libmicrohttpd is missing", file=sys.stderr)
        sys.exit(pypi.SKIPPED)
    os.environ.pop("http_proxy", None)
    tiny_model.write(MODEL)
    with unittest.mock.patch.object(tiny_model, "HEAD_DIM", 64):
        tiny_model.write(WIDE)
    unittest.main()
