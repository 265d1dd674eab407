"""What stands for `threading` and asyncio's loop in a simulated world, and putting it in their place.

Only what the library and its tests use of them. The library gets it while a world is `installed`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import types
from collections import deque
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from botocore.client import BaseClient
from greenlet import GreenletExit
from pynamodb.connection import Connection

from dev.simulation import network
from dev.simulation.network import Client
from dev.simulation.world import Clock, MainThread, Process
from pynamodb_mutex._dynamodb import connection, create_table
from pynamodb_mutex._runtime import callers, notifications, run_on_thread, threads
from pynamodb_mutex._runtime import process as of_runtime
from pynamodb_mutex._runtime.clock import local_clock, replace_local_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from dev.simulation.world import Thread, World


@contextmanager
def installed(world: World) -> Iterator[Any]:
    """Let the library run in a world; yield what stands for its `threading`."""
    stand_in = threading_of(world)
    with ExitStack() as stack:
        process = of_runtime.current_process()
        clock = replace_local_clock(Clock(world))
        stack.callback(setattr, of_runtime, "_process", process)
        stack.callback(replace_local_clock, clock)
        for module in (threads, run_on_thread, notifications, callers):
            stack.enter_context(patch.object(module, "threading", stand_in))
        for module, name in ((callers, "_thread"), (connection, "_observed")):
            local = _ThreadLocal(world, type(getattr(module, name)))
            stack.enter_context(patch.object(module, name, local))
        pause = types.SimpleNamespace(sleep=world.sleep, monotonic=lambda: local_clock().now())
        stack.enter_context(patch.object(create_table, "time", pause))
        stack.enter_context(patch("pynamodb_mutex._async_handles.asyncio", AsyncIo(world)))
        stack.enter_context(patch.object(Connection, "client", property(_client_of)))
        stack.enter_context(patch.object(BaseClient, "_make_api_call", network.make_api_call))
        network.worlds.append(world)
        stack.callback(network.worlds.remove, world)
        stack.callback(world.end)
        yield stand_in


def _client_of(connection: Any) -> Client:
    client = connection._client
    if not isinstance(client, Client):
        client = connection._client = Client(connection)
    return client


@contextmanager
def acting_as(world: World, process: Process) -> Iterator[MainThread]:
    """Let the caller itself be a thread of a process: while it blocks, the rest of the world goes on."""
    thread = MainThread(process)
    before = world.thread, world.main
    world.thread = world.main = thread
    try:
        with world.inside(process):
            yield thread
    finally:
        world.thread, world.main = before


def of_world(world: World, kind: type[Any]) -> Any:
    """Return a stand-in for a world: the library, and tests, make it without naming one."""
    return type(kind.__name__, (kind,), {"_world": world})


def threading_of(world: World) -> Any:
    """Return what stands for the module `threading` in a world."""

    return types.SimpleNamespace(
        Thread=of_world(world, StartedThread),
        Timer=of_world(world, Timer),
        Condition=of_world(world, Condition),
        Event=of_world(world, Event),
        Semaphore=of_world(world, Semaphore),
        Barrier=of_world(world, Barrier),
        Lock=of_world(world, Lock),
        RLock=of_world(world, RLock),
        current_thread=lambda: world.running.locals.get("started_as", world.running),
        main_thread=lambda: world.main,
        get_ident=lambda: id(world.running),
        enumerate=lambda: [
            thread for process in world.processes for thread in process.threads_running
        ],
    )


class Lock:
    """Stands for `threading.Lock`."""

    _world: World

    def __init__(self) -> None:
        self._holder: Any = None
        self._waiting: list[Callable[..., None]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire it; outside of the world's threads only if it is free."""
        thread = self._world.thread
        until = math.inf if timeout < 0 or thread is None else thread.process.clock() + timeout
        while self._holder is not None:
            if not blocking or thread is None or thread.process.clock() >= until:
                return False
            self._waiting.append(thread.waker())
            thread.park(until)
        self._holder = thread or self._world
        return True

    def release(self) -> None:
        """Release it, on any thread."""
        if self._holder is None:
            raise RuntimeError("release unlocked lock")
        self._holder = None
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def locked(self) -> bool:
        """Say whether it is held."""
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """Stands for `threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire it, as the same thread may do again."""
        is_own = self.locked() and self._holder is (self._world.thread or self._world)
        if not is_own and not super().acquire(blocking, timeout):
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        """Release it once."""
        self._depth -= 1
        if self._depth == 0:
            super().release()


class Condition:
    """Stands for `threading.Condition`. It needs no lock: threads are exchanged only where they block."""

    _world: World

    def __init__(self) -> None:
        self._waiting: list[Callable[..., None]] = []

    def __enter__(self) -> None:
        """There is nothing to do."""

    def __exit__(self, *_: object) -> None:
        """There is nothing to do."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is notified, or so many seconds are over."""
        thread = self._world.running
        wake = thread.waker()
        self._waiting.append(wake)
        try:
            until = math.inf if timeout is None else thread.process.clock() + timeout
            return bool(thread.park(until))
        finally:
            if wake in self._waiting:
                self._waiting.remove(wake)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a predicate holds, or so many seconds are over."""
        clock = self._world.running.process.clock
        until = math.inf if timeout is None else clock() + timeout
        while not predicate() and clock() < until:
            self.wait(None if until == math.inf else until - clock())
        return predicate()

    def notify(self, count: int = 1) -> None:
        """Let some of those that wait go on."""
        for wake in self._waiting[:count]:
            wake(True)
        del self._waiting[:count]

    def notify_all(self) -> None:
        """Let all that wait go on."""
        self.notify(len(self._waiting))


class Event:
    """Stands for `threading.Event`."""

    _world: World

    def __init__(self) -> None:
        self._condition = of_world(self._world, Condition)()
        self._is_set = False

    def is_set(self) -> bool:
        """Say whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it."""
        self._is_set = True
        self._condition.notify_all()

    def clear(self) -> None:
        """Make it unset."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or so many seconds are over."""
        return bool(self._condition.wait_for(self.is_set, timeout))


class Semaphore:
    """Stands for `threading.Semaphore`."""

    _world: World

    def __init__(self, value: int = 1) -> None:
        self._condition = of_world(self._world, Condition)()
        self._left = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take one of those that are left, or wait for one."""
        if not self._condition.wait_for(lambda: self._left > 0, timeout if blocking else 0.0):
            return False
        self._left -= 1
        return True

    def release(self, n: int = 1) -> None:
        """Give so many more."""
        self._left += n
        self._condition.notify(n)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Barrier:
    """Stands for `threading.Barrier`."""

    _world: World

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self._passed = of_world(self._world, Event)()
        self._arrived = 0

    def wait(self, timeout: float | None = None) -> int:
        """Wait until so many threads wait."""
        place, passed = self._arrived, self._passed
        self._arrived += 1
        if self._arrived == self.parties:
            self._arrived, self._passed = 0, type(passed)()
            passed.set()
        elif not passed.wait(timeout):
            raise threading.BrokenBarrierError
        return place


class StartedThread:
    """Stands for `threading.Thread`."""

    _world: World

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._call = partial(target, *args, **(kwargs or {})) if target is not None else None
        self.name = name or "thread"
        self.daemon = daemon
        self._thread: Thread | None = None

    def run(self) -> None:
        """Make the call."""
        if self._call is not None:
            self._call()

    def start(self) -> None:
        """Start it, if the system lets it."""
        process = self._world.running.process
        if process.refuses_threads:
            raise RuntimeError("can't start new thread")
        self._thread = process.start_thread(self.name, self._run)
        self._thread.locals["started_as"] = self

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:
            self._world.fail(f"the thread {self.name} ended by {error!r}")
            raise

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, or so many seconds are over."""
        if self._thread is not None:
            self._thread.join(timeout)

    def is_alive(self) -> bool:
        """Say whether it was started, and has not ended."""
        return self._thread is not None and not self._thread.ended


class Timer(StartedThread):
    """Stands for `threading.Timer`."""

    def __init__(self, interval: float, function: Callable[..., object], args: Any = ()) -> None:
        super().__init__(target=function, args=args)
        self._interval = interval
        self._cancelled = False

    def run(self) -> None:
        """Make the call after the interval, unless it is cancelled."""
        self._world.sleep(self._interval)
        if not self._cancelled:
            super().run()

    def cancel(self) -> None:
        """Do not make the call."""
        self._cancelled = True


class Executor(futures.Executor):
    """Stands for `concurrent.futures.ThreadPoolExecutor`."""

    _world: World

    def __init__(
        self, max_workers: int | None = None, thread_name_prefix: str = "", **_: object
    ) -> None:
        self._most = max_workers or 32
        self._prefix = thread_name_prefix or "pool"
        self._threads: list[Thread] = []
        self._calls: deque[Callable[[], None]] = deque()
        self._idle = 0
        self._is_shut = False
        self._changed = of_world(self._world, Condition)()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Make a call on a thread."""
        future = Future(self._world)
        self._calls.append(partial(future.settle, partial(fn, *args, **kwargs)))
        self._changed.notify()
        if len(self._calls) > self._idle and len(self._threads) < self._most:
            name = f"{self._prefix}_{len(self._threads)}"
            process = self._world.running.process
            self._threads.append(process.start_thread(name, self._work))
        return future

    def _work(self) -> None:
        while True:
            while self._calls:
                self._calls.popleft()()
            if self._is_shut:
                return
            self._idle += 1
            self._changed.wait()
            self._idle -= 1

    def map(self, fn: Callable[..., Any], *iterables: Any, **_: Any) -> Any:
        """Make a call for each; return what they return, in order."""
        made = [self.submit(fn, *args) for args in zip(*iterables, strict=False)]
        return (future.result() for future in made)

    def shutdown(self, wait: bool = True, **_: object) -> None:
        """Let the threads end when all calls are made; wait for that."""
        self._is_shut = True
        self._changed.notify_all()
        if wait:
            for thread in self._threads:
                thread.join()


class Future(futures.Future[Any]):
    """A future on which a simulated thread can wait."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._done = of_world(world, Event)()

    def settle(self, call: Callable[[], Any]) -> None:
        """Make a call, and note what came of it."""
        try:
            self.set_result(call())
        except GreenletExit:
            raise
        except BaseException as error:
            self.set_exception(error)
        self._done.set()

    def result(self, timeout: float | None = None) -> Any:
        """Return what came of it."""
        if not self._done.wait(timeout):
            raise TimeoutError
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what it raised."""
        if not self._done.wait(timeout):
            raise TimeoutError
        return super().exception(0)


class _ThreadLocal:
    """Stands for a `threading.local` of the library, of some kind: each thread has one of its own."""

    def __init__(self, world: World, kind: type[Any]) -> None:
        vars(self).update(_world=world, _kind=kind)

    def _own(self) -> Any:
        kept = self._world.running.locals
        if self._kind not in kept:
            kept[self._kind] = self._kind()
        return kept[self._kind]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._own(), name, value)


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
        self.set_task_factory(_make_task)

    def time(self) -> float:
        """Return the local time of the process."""
        return self._thread.process.clock()

    def select(self, timeout: float | None) -> list[Any]:
        """Block until something is to be done."""
        if self._woken or timeout == 0:
            self._woken = False
            return []
        self._wake = self._thread.waker()
        try:
            self._thread.park(math.inf if timeout is None else self.time() + timeout)
        finally:
            self._wake, self._woken = None, False
        return []

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Make a call on a thread of its own."""
        future = self.create_future()

        def settle(call: Callable[..., None], value: Any) -> None:
            if not future.cancelled():
                call(value)

        def run() -> None:
            try:
                done = partial(settle, future.set_result, func(*args))
            except Exception as error:
                done = partial(settle, future.set_exception, error)
            self.call_soon_threadsafe(done)

        self._thread.process.start_thread("executor", run)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """Let `select` return: called by other threads."""
        self._woken = True
        if self._wake is not None:
            self._wake()


class AsyncIo:
    """Stands for the module `asyncio`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on an event loop of its own."""
        return run_tasks(self._world, main)

    def new_event_loop(self) -> Loop:
        """Return an event loop for the thread that runs."""
        return Loop(self._world)

    def run_coroutine_threadsafe(self, coroutine: Coroutine[Any, Any, Any], loop: Loop) -> Future:
        """Run a coroutine on a loop of another thread."""
        future = Future(self._world)

        def result(task: asyncio.Task[Any]) -> Any:
            if task.cancelled():
                raise futures.CancelledError
            return task.result()

        def begin() -> None:
            task = loop.create_task(coroutine)
            task.add_done_callback(lambda task: future.settle(partial(result, task)))

        loop.call_soon_threadsafe(begin)
        return future

    def __getattr__(self, name: str) -> Any:
        """Return what is the same in every world."""
        return getattr(asyncio, name)


def run_tasks(world: World, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on an event loop of its own, in the thread that runs; as `asyncio.run` does."""
    loop = Loop(world)
    try:
        try:
            return loop.run_until_complete(main)
        finally:
            # after Ctrl-C, or an error
            loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
    finally:
        for task in asyncio.all_tasks(loop):
            # the world has ended: the garbage collector would do it at any time
            with suppress(BaseException):
                task.get_coro().close()
        loop._ready.clear()
        loop.close()


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _make_task(loop: Any, main: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(main, loop=loop, **options)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    return task
