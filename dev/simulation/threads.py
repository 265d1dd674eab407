"""What stands for `threading` and asyncio's loop in a simulated world, and putting it in their place.

Only what the library uses of them, and only while it is `installed`. Locks stay real ones: a thread of a world
is never exchanged for another while it holds one, and `Condition` sees to that.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import types
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from pynamodb.connection import Connection

from dev.simulation import network
from dev.simulation.network import Client
from dev.simulation.world import Clock, MainThread, Process
from pynamodb_mutex._dynamodb import create_table
from pynamodb_mutex._runtime import callers, notifications, run_on_thread, threads
from pynamodb_mutex._runtime import process as of_runtime
from pynamodb_mutex._runtime.clock import local_clock, replace_local_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from dev.simulation.world import Thread, World


@contextmanager
def installed(world: World) -> Iterator[None]:
    """Let the library run in a world."""
    stand_in = _threading(world)
    with ExitStack() as stack:
        process = of_runtime.current_process()
        clock = replace_local_clock(Clock(world))
        stack.callback(setattr, of_runtime, "_process", process)
        stack.callback(replace_local_clock, clock)
        for module in (threads, run_on_thread, notifications, callers):
            stack.enter_context(patch.object(module, "threading", stand_in))
        stack.enter_context(patch.object(callers, "_thread", _ThreadLocal(world)))
        pause = types.SimpleNamespace(sleep=world.sleep, monotonic=lambda: local_clock().now())
        stack.enter_context(patch.object(create_table, "time", pause))
        stack.enter_context(patch.object(Connection, "client", property(_client_of)))
        network.worlds.append(world)
        stack.callback(network.worlds.remove, world)
        stack.callback(world.end)
        yield


def _client_of(connection: Any) -> Client:
    client = connection._client
    if not isinstance(client, Client):
        client = connection._client = Client(connection)
    return client


@contextmanager
def acting_as(world: World, process: Process) -> Iterator[MainThread]:
    """Let the caller itself be a thread of a process: while it blocks, the rest of the world goes on."""
    thread = MainThread(process)
    before, world.thread = world.thread, thread
    try:
        with world.inside(process):
            yield thread
    finally:
        world.thread = before


def _threading(world: World) -> Any:
    class Started(_Started):
        _world = world

    def condition() -> Condition:
        return Condition(world)

    return types.SimpleNamespace(
        Thread=Started,
        Condition=condition,
        Lock=threading.Lock,
        RLock=threading.RLock,
        current_thread=lambda: world.running,
    )


class Condition:
    """Stands for `threading.Condition`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Callable[..., None]] = []
        self._is_held = False

    def __enter__(self) -> None:
        assert not self._is_held, "a thread blocked inside a condition"
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is notified, or so many seconds are over."""
        thread = self._world.running
        wake = thread.waker()
        self._waiting.append(wake)
        self._is_held = False
        try:
            until = math.inf if timeout is None else thread.process.clock() + timeout
            return bool(thread.park(until))
        finally:
            self._is_held = True
            if wake in self._waiting:
                self._waiting.remove(wake)

    def notify(self, count: int = 1) -> None:
        """Let some of those that wait go on."""
        for wake in self._waiting[:count]:
            wake(True)
        del self._waiting[:count]

    def notify_all(self) -> None:
        """Let all that wait go on."""
        self.notify(len(self._waiting))


class _Started:
    """Stands for `threading.Thread`, as the library starts its own."""

    _world: World

    def __init__(
        self, *, target: Callable[..., object], args: Any = (), name: str, daemon: bool
    ) -> None:
        assert daemon, "a program would never end"
        self._call = lambda: target(*args)
        self._name = name

    def start(self) -> None:
        """Start it, if the system lets it."""
        process = self._world.running.process
        if process.refuses_threads:
            raise RuntimeError("can't start new thread")
        process.start_thread(self._name.removeprefix("pynamodb-mutex-"), self._call)


class _ThreadLocal:
    """Stands for what the library keeps for each thread of those that call it."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def number(self) -> int:
        """A number that no other thread has."""
        kept = self._world.running.locals
        if "number" not in kept:
            kept["number"] = next(callers._serial)
        number: int = kept["number"]
        return number

    @property
    def acts_as(self) -> Any:
        """For whom the thread delivers events."""
        return self._world.running.locals.get("acts_as")

    @acts_as.setter
    def acts_as(self, caller: Any) -> None:
        self._world.running.locals["acts_as"] = caller


# -- asyncio ---------------------------------------------------------------------------------------


class Loop(asyncio.BaseEventLoop):
    """An event loop in virtual time, run by one simulated thread."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._thread: Thread = world.running
        self._selector = self
        self._wake: Callable[..., None] | None = None
        self._woken = False

    def time(self) -> float:
        """Return the local time of the process."""
        return self._thread.process.clock()

    def select(self, timeout: float | None) -> list[Any]:
        """Block until something is to be done."""
        if self._woken or timeout == 0:
            self._woken = False
            return []
        self._wake = self._thread.waker()
        events = asyncio.events
        events._set_running_loop(None)
        try:
            self._thread.park(math.inf if timeout is None else self.time() + timeout)
        finally:
            events._set_running_loop(self)
            self._wake, self._woken = None, False
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Let `select` return: called by other threads."""
        self._woken = True
        if self._wake is not None:
            self._wake()


def run_tasks(world: World, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on an event loop of its own, in the thread that runs; as `asyncio.run` does."""
    loop = Loop(world)
    loop.set_task_factory(_make_task)
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            # the world has ended: the garbage collector would do it at any time
            with suppress(BaseException):
                task.get_coro().close()
        loop._ready.clear()
        loop.close()


def _make_task(loop: Any, main: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(main, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task
