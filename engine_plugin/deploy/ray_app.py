"""A fleet of `tandem serve` as a Ray Serve application. README.md says how it is started.

SPDX-License-Identifier: Apache-2.0

A client's request comes to a Door, which asks a Replica, which asks its own `tandem serve` on loopback. Ray runs both, checks and
replaces them. Ray also routes, by consistent hashes of a key that stands for a character: so it comes to the replica that has read
its persona. A replica that dies in the middle of an answer costs the client nothing: the next one is asked the same, with the same
seed, and what the client has is left out.
"""
import asyncio
import collections
import hashlib
import json
import logging
import random
import shlex
import time

import aiohttp
import pydantic
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from told import Gone, Told

BODY_BYTES = 1 << 20  # as `tandem serve` takes
START_S, DOWN_S = 600, 30  # how long a model may load; how long a server may be down before Ray is to replace its replica
GATHER_S = 0.02  # tokens that come within this time go on together: a message between Ray's processes costs as much as many
HEALTH_S = 1  # how long /health looks for a replica that answers
IDLE_S, KEPT = 600, 100_000  # after so long a character has no replica any more; so many have one
PASSED = ("authorization", "content-type", "origin")  # headers that are for `tandem serve`
log = logging.getLogger("ray.serve")


class Fleet(pydantic.BaseModel, extra="forbid"):
    """What `serve run ray_app:app` is told, as NAME=VALUE."""

    model: str  # a path on each machine
    replicas: int = pydantic.Field(3, ge=1)
    slots: int = pydantic.Field(4, ge=1, le=32)  # of a replica
    options: str = ""  # more for `tandem serve`
    tandem: str = "tandem"  # the program
    cpus: float = pydantic.Field(1, ge=0)  # that a replica takes of its machine's
    gpus: float = pydantic.Field(0, ge=0)
    doors: int = pydantic.Field(1, ge=1)
    patience_s: float = pydantic.Field(60, gt=0)  # how long an answer is tried for, from a death on

    @pydantic.field_validator("options")
    @classmethod
    def are_not_ours(cls, options):
        for word in shlex.split(options):
            if word.partition("=")[0] in ("--model", "--port", "--listen", "--slots"):
                raise ValueError(f"{word} is not for `options`: the fleet says it")
        return options


class Sticky(ConsistentHashRouter):
    """A key keeps its replica, also when a new one comes to where the key would go."""

    def initialize_state(self, **kwargs):
        super().initialize_state(**kwargs)
        self.kept = collections.OrderedDict()  # key -> (replica, when), the one that was used last at the end

    async def choose_replicas(self, candidate_replicas, pending_request=None):
        ranks = await super().choose_replicas(candidate_replicas, pending_request)
        key = pending_request.metadata.session_id if pending_request else None
        if not ranks or not key:
            return ranks
        replica, when = self.kept.pop(key, (None, 0))
        mine = self.curr_replicas.get(replica)
        if mine and time.monotonic() - when < IDLE_S:
            ranks = [[mine]] + [rank for rank in ranks if rank != [mine]]
        self.kept[key] = ranks[0][0].replica_id, time.monotonic()
        if len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return ranks


@serve.deployment(health_check_period_s=2, health_check_timeout_s=10, graceful_shutdown_timeout_s=20, max_constructor_retry_count=3,
                  request_router_config=RequestRouterConfig(request_router_class=Sticky))
class Replica:
    """Has a `tandem serve`: starts it, and starts it again when it dies."""

    async def __init__(self, command):
        self.command, self.url, self.why, self.down_since = command, None, "it has not begun", time.monotonic()
        self.name = serve.get_replica_context().replica_id.unique_id
        self.client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(sock_connect=5))
        await self.start()
        self.keeper = asyncio.create_task(self.keep())

    async def start(self):
        # It does not outlive this process, even if that is killed.
        self.process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "TERM", "--", *self.command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        line = (await asyncio.wait_for(self.process.stdout.readline(), START_S)).decode()
        if " on http://127.0.0.1:" not in line:
            raise Gone((await self.process.communicate())[1].decode().strip() or f"it said {line!r} and ended")
        self.url = "http://127.0.0.1:" + line.rsplit(":", 1)[1].strip()

    async def keep(self):
        pause = 0.1
        while True:
            if self.url:
                async for line in self.process.stderr:
                    log.warning("tandem serve: %s", line.decode(errors="replace").rstrip())
                self.url, self.why, self.down_since = None, f"it ended ({await self.process.wait()})", time.monotonic()
                log.warning("tandem serve: %s", self.why)
            try:
                await self.start()
                pause = 0.1
            except (Gone, OSError, asyncio.TimeoutError) as error:
                self.why = str(error) or f"it has not begun within {START_S} s"
                log.warning("tandem serve: %s", self.why)
                await asyncio.sleep(pause := min(10, 2 * pause))

    async def check_health(self):
        """Ray asks; who raises often enough is replaced."""
        if not self.url:
            if time.monotonic() - self.down_since > DOWN_S:
                raise Gone(self.why)
            return
        try:
            async with self.client.get(self.url + "/health", timeout=aiohttp.ClientTimeout(5)) as answer:
                answer.raise_for_status()
        except asyncio.TimeoutError:  # it hangs
            self.process.kill()
        except aiohttp.ClientError:
            pass  # it has just ended, which keep() sees

    async def ask(self, method, path, headers, body):
        """Yields an answer's status and headers, then its bytes as they come."""
        if not self.url:
            raise Gone(self.why)
        try:
            async with self.client.request(method, self.url + path, headers=headers, data=body) as answer:
                if answer.status == 503:  # it ends, or has too much to do
                    raise Gone(await answer.text())
                yield answer.status, {"X-Tandem-Replica": self.name, "Content-Type": answer.headers.get("Content-Type", "text/plain")}
                pause = GATHER_S if answer.content_type == "text/event-stream" else 0
                async for part in answer.content.iter_any():
                    yield part
                    await asyncio.sleep(pause)
        except aiohttp.ClientError as error:
            raise Gone(f"it broke off: {error}") from None

    async def metrics(self, headers):
        return b"".join([part async for part in self.ask("GET", "/metrics", headers, None)][1:]).decode()


def key_of(asked):
    """What stands for a character: its name, else what it is told first."""
    if name := asked.get("prompt_cache_key") or asked.get("user"):
        first = name
    elif isinstance(messages := asked.get("messages"), list):
        roles = [message.get("role") if isinstance(message, dict) else None for message in messages]
        persona = next((i for i, role in enumerate(roles) if role not in ("system", "developer")), len(roles))
        first = messages[: max(persona, 1)]
    else:
        first = str(asked.get("prompt", random.random()))[:256]
    return hashlib.blake2b(json.dumps(first).encode(), digest_size=16).hexdigest()


@serve.deployment(max_ongoing_requests=10_000)
class Door:
    """What clients see."""

    def __init__(self, fleet, patience_s):
        self.fleet, self.patience_s, self.again = fleet, patience_s, 0

    async def parts(self, key, patience_s, *what):
        """As Replica.ask() yields them, but None where all begins anew, because a replica is gone."""
        until, tries = 0, 0
        while True:
            # Where the key's own replica lives, but has no server now, another is chosen.
            answer = self.fleet.options(stream=True, session_id=f"{key}/{tries}" if tries else key).ask.remote(*what)
            try:
                async for part in answer:
                    until, tries = 0, 0
                    yield part
                return
            except (RayError, RayServeException, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and is_cancelled():
                    raise  # the client has gone
                until = until or time.monotonic() + patience_s
                if time.monotonic() > until:
                    raise Gone(why_of(error)) from None
            finally:
                answer.cancel()
            tries, self.again = tries + 1, self.again + 1
            await asyncio.sleep(min(1, 0.05 * tries))
            yield None

    async def whole(self, parts, *got):
        got = list(got)
        async for part in parts:
            got = [] if part is None else [*got, part]
        (status, headers), *body = got
        return Response(b"".join(body), status, headers)

    async def stream(self, parts):
        told = Told()
        try:
            async for part in parts:
                if part is None:
                    told.again()
                elif isinstance(part, bytes) and (events := told.new(part)):
                    yield events
        except (Gone, ValueError) as error:
            yield b"data: " + json.dumps(error_of(f"the answer broke off: {error}")).encode() + b"\n\n"

    async def metrics(self, headers):
        """The sum of all that answer."""
        answers = await self.fleet.broadcast("metrics", headers).results_async(timeout_s=5, return_exceptions=True)
        sums = collections.Counter({"tandem_fleet_replicas": 0, "tandem_fleet_tries_again_total": self.again})
        for answer in answers:
            lines = answer.splitlines() if isinstance(answer, str) else []
            values = dict(line.split() for line in lines if line and line[0] not in "#{")
            sums.update({name: int(value) for name, value in values.items()}, tandem_fleet_replicas=bool(values))
        return PlainTextResponse("".join(f"{name} {value}\n" for name, value in sums.items()))

    async def __call__(self, request: Request):
        headers = {name: request.headers[name] for name in PASSED if name in request.headers}
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > BODY_BYTES:
                return JSONResponse(error_of(f"the body has more than {BODY_BYTES} bytes", "invalid_request_error"), 413)
        path = request.url.path
        if path == "/metrics":
            return await self.metrics(headers)
        try:
            asked = json.loads(body)
        except ValueError:
            asked = None  # of which `tandem serve` says what is wrong
        asked = asked if isinstance(asked, dict) else {}
        streams = asked.get("stream") is True
        more = {"seed": random.getrandbits(31)} if streams and asked.get("seed") is None else {}
        body = json.dumps({**asked, **more}).encode() if more else body
        patience_s = HEALTH_S if path == "/health" else self.patience_s
        parts = self.parts(key_of(asked), patience_s, request.method, path, headers, body or None)
        try:
            async for head in parts:
                if streams and head and head[0] == 200:
                    return StreamingResponse(self.stream(parts), headers=head[1])
                if head:
                    return await self.whole(parts, head)
        except Gone as error:
            return JSONResponse(error_of(f"no replica answers: {error}"), 503, {"Retry-After": "1"})


def is_cancelled():
    """Whether the task at hand is to end: what it waited for may have been cancelled alone, as a replica's tasks are that ends. Before
    Python 3.11 nobody knows, and it is."""
    return getattr(asyncio.current_task(), "cancelling", lambda: 1)() > 0


def why_of(error):
    """Ray's errors are pages, with ours within."""
    cause = getattr(error, "cause", None)
    return str(cause) if isinstance(cause, Gone) else type(error).__name__


def error_of(message, kind="server_error"):
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def app(fleet: Fleet):
    """For `serve run`, and for a cluster's configuration."""
    command = [fleet.tandem, "serve", "--model", fleet.model, "--port", "0", "--slots", str(fleet.slots), *shlex.split(fleet.options)]
    replicas = Replica.options(num_replicas=fleet.replicas, max_ongoing_requests=2 * fleet.slots,
                               ray_actor_options={"num_cpus": fleet.cpus, "num_gpus": fleet.gpus})
    return Door.options(num_replicas=fleet.doors).bind(replicas.bind(command), fleet.patience_s)
