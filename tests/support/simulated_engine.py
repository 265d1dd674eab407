"""The simulated engine: DynamoDB, the network, time and threads of a test, all in virtual time.

A test on it is the same code as on a real engine: while it runs, names such as ``threading`` and ``time`` in the modules of
the tests (except conftest.py) refer to those of a simulated world. So nothing takes time, and everything happens in the same
order in each run.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.parsers
import pytest
from botocore.awsrequest import HeadersDict
from botocore.exceptions import ClientError, ConnectionClosedError, ReadTimeoutError

from dev import faultproxy
from dev.faultproxy import Exchange, FaultProxy, Reply
from dev.simulation.network import Client, Network, _raiser, service_model, worlds
from dev.simulation.table import Refusal
from dev.simulation.threads import AsyncIo, Executor, acting_as, installed, of_world, threading_of
from dev.simulation.world import Process, World
from pynamodb_mutex._lock.runtime import process as of_runtime
from pynamodb_mutex._lock.runtime.clock import local_clock
from pynamodb_mutex.testing import Engine

ROOT = Path(__file__).parents[2]
_OURS = [ROOT / part for part in ("tests", "dev/faultproxy.py", "pynamodb_mutex/testing")]
_OF_TESTS = {"FakeClock", "forget_everything"}
_serial = itertools.count(1)


@contextmanager
def simulated_engine() -> Iterator[Engine]:
    """Let the calling test be the main thread of a process in a world of its own."""
    # what of a second is over is the same each time: DynamoDB shows its time in whole ones
    world = World(epoch=math.floor(time.time()) + 0.5)
    network = Network(world)
    network.latency = network.late_reads = world.jitter = 0.0
    with installed(world) as threading:
        process = Process(world, "test", rate=1.0)
        with acting_as(world, process), _stand_ins(world, threading):
            yield Engine("simulated", "http://us-east-1.simulated")


@contextmanager
def _stand_ins(world: World, threading: Any) -> Iterator[None]:
    stand_ins = {
        "threading": threading,
        "time": _Time(world),
        "asyncio": AsyncIo(world),
        "random": _Random(world),
        "ThreadPoolExecutor": of_world(world, Executor),
        "FakeClock": functools.partial(VirtualClock, world),
        "forget_everything": functools.partial(_forget_everything, world),
    }
    with pytest.MonkeyPatch.context() as patch:
        for module in _our_modules(len(sys.modules)):
            for name in stand_ins.keys() & vars(module).keys():
                if name not in _OF_TESTS or not module.__name__.startswith("pynamodb_mutex"):
                    patch.setattr(module, name, stand_ins[name])
        patch.setattr(faultproxy, "FaultProxy", functools.partial(SimulatedProxy, world))
        yield


@functools.cache  # there are a thousand others, and thousands of tests
def _our_modules(_: int) -> list[Any]:
    """Return the modules of the tests; another number of modules than before means that there are new ones."""
    return [
        module
        for module in sys.modules.values()
        if isinstance(file := getattr(module, "__file__", None), str)
        and module.__name__ not in {__name__, "conftest"}
        and any(Path(file).is_relative_to(folder) for folder in _OURS)
    ]


class _Time:
    """Stands for the module `time`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sleep = world.sleep

    def time(self) -> float:
        return self._world.epoch + self._world.now

    def monotonic(self) -> float:
        assert self._world.process is not None
        return self._world.process.clock()

    perf_counter = monotonic

    def clock_gettime(self, _: int) -> float:
        return self.monotonic()

    def gmtime(self, seconds: float | None = None) -> time.struct_time:
        return time.gmtime(self.time() if seconds is None else seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Random:
    """Stands for the module `random`: all chance is the world's."""

    def __init__(self, world: World) -> None:
        self._rng = world.rng

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name, None) or getattr(random, name)


class VirtualClock:
    """Stands for `FakeClock`: moves the local clock of the test's process, and nothing else."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def _process(self) -> Process:
        assert self._world.process is not None
        return self._world.process

    def __enter__(self) -> Any:
        local_clock().by_hand = True
        return self

    def __exit__(self, *_: object) -> None:
        """There is nothing to do."""

    def now(self) -> float:
        return self._process.clock()

    def advance(self, seconds: float) -> None:
        if seconds < math.inf:
            self._process.jump(seconds)


def _forget_everything(world: World) -> None:
    """Stand for the function of that name: the threads go on in a new process with the same clock."""
    of_runtime.forget_everything()
    left = world.process
    assert left is not None
    assert world.main is not None
    world.processes.remove(left)
    process = Process(world, left.name, rate=1.0)
    process.jump(left.clock() - process.clock())
    process.threads_running = left.threads_running
    for thread in (world.main, *process.threads_running):
        thread.process = process
    world.enter(process)


@contextmanager
def suspended(seconds: float) -> Iterator[None]:
    """Let the test act as another process inside the block, while its own is suspended, its clock included."""
    world = worlds[-1]
    world.running.process.stop(seconds, freeze=True)
    over = world.now + seconds
    with acting_as(world, Process(world, "other", rate=1.0)):
        yield
        world.sleep(over - world.now)


# -- the proxy -------------------------------------------------------------------------------------


def _decoded(value: dict[str, Any]) -> dict[str, Any]:
    """Decode the binary values of an answer."""
    match value:
        case {"B": str(content)}:
            return {"B": base64.b64decode(content)}
        case {"BS": [*members]}:
            return {"BS": [base64.b64decode(member) for member in members]}
    return value


class SimulatedProxy(FaultProxy):
    """A fault proxy without sockets: each request is met on a simulated thread of its own."""

    def __init__(self, world: World, engine_url: str) -> None:
        super().__init__(engine_url)
        self._world = world
        threading = threading_of(world)
        self.closing = threading.Event()
        self._rules, self._forwarding = threading.Lock(), threading.Lock()
        self._logged = threading.Condition()

    @contextmanager
    def serving(self) -> Iterator[SimulatedProxy]:
        """Listen."""
        self.url = f"http://proxy{next(_serial)}.simulated"
        proxies = self._world.network.proxies
        proxies[self.url] = self
        yield self
        del proxies[self.url]
        self.closing.set()
        self.check()

    def carry(self, client: Client, operation: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Carry a request of the thread that runs."""
        thread = self._world.running
        exchange = _Exchange(self, operation, kwargs, thread.waker())
        thread.process.start_thread("wire", functools.partial(self._met, exchange))
        outcome = thread.park(thread.process.clock() + client.reads_for)
        if outcome is None:
            raise ReadTimeoutError(endpoint_url=self.url)
        data: dict[str, Any] = outcome()
        return data

    def _met(self, exchange: _Exchange) -> None:
        try:
            self.meet(exchange)
        except Exception as error:
            self.errors.append(error)
            exchange.reset()

    def _ask(self, headers: dict[str, str], raw: bytes) -> Reply:
        operation = headers["X-Amz-Target"].rpartition(".")[2]
        kwargs = json.loads(raw, object_hook=_decoded)
        kwargs.pop("ReturnConsumedCapacity", None)
        date = formatdate(self._world.epoch + self._world.now, usegmt=True)
        headers = {"Content-Type": "application/x-amz-json-1.0", "x-amzn-RequestId": "SIMULATED"}
        try:
            body, status = self._world.tables.apply(operation, kwargs), 200
        except Refusal as refusal:
            kind = f"com.amazonaws.dynamodb.v20120810#{refusal.code}"
            body, status = {"__type": kind, "message": str(refusal)}, 400
            shown = {"Item": refusal.item, "CancellationReasons": refusal.reasons}
            body |= {name: value for name, value in shown.items() if value is not None}
        content = json.dumps(body, default=_encoded).encode()
        return Reply(status, content, (*headers.items(), ("Date", date)))


class _Exchange(Exchange):
    """One request under way, the answer to which wakes the thread that sent it."""

    def __init__(self, proxy: SimulatedProxy, op: str, kwargs: dict[str, Any], wake: Any) -> None:
        headers = {"X-Amz-Target": f"DynamoDB_20120810.{op}"}
        handler: Any = SimpleNamespace(headers=headers, server=SimpleNamespace(proxy=proxy))
        super().__init__(handler, op, json.dumps(kwargs, default=_encoded).encode())
        self._wake = wake

    def answer(self, reply: Reply) -> None:
        for edit in self.edits:
            reply = edit(reply)
        self._wake(functools.partial(_received, self.op, reply))

    def reset(self) -> None:
        self._wake(_raiser(ConnectionClosedError(endpoint_url=self.proxy.url)))


def _encoded(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value.value


@functools.cache
def _parser() -> Any:
    return botocore.parsers.create_parser(service_model().metadata["protocol"])


def _received(operation: str, reply: Reply) -> dict[str, Any]:
    """Return what botocore makes of an answer, or raise it."""
    model, parser = service_model(), _parser()
    response = {
        "headers": HeadersDict(reply.headers),
        "body": reply.content,
        "status_code": reply.status,
    }
    parsed: dict[str, Any] = parser.parse(response, model.operation_model(operation).output_shape)
    if reply.status >= 400:
        shape = model.shape_for_error_code(parsed.get("Error", {}).get("Code"))
        if shape is not None:
            parsed.update(parser.parse(response, shape))
    if reply.status >= 300:
        raise ClientError(parsed, operation)
    return parsed
