"""Stand-ins for `threading`, `concurrent.futures` and asyncio's event loop in a simulated world.

`installed` puts them in place of the real ones inside the library, together with the clock of `world`, the client of
`network` and the sockets of `datagrams`; outside that block the library runs as usual. They offer only what the library and its tests use. They need
no locks of their own: simulated threads change only where one blocks.
"""

from __future__ import annotations

import asyncio
import math
import types
from collections import deque
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from botocore.client import BaseClient
from greenlet import GreenletExit
from pynamodb.connection import Connection

from dev.simulation import network
from dev.simulation.datagrams import socket_of
from dev.simulation.network import Client
from dev.simulation.world import Clock, MainThread, Process
from pynamodb_mutex._admin import create_table
from pynamodb_mutex._fair import listener
from pynamodb_mutex._lock.runtime import callers, run_on_thread, threads
from pynamodb_mutex._lock.runtime import process as of_runtime
from pynamodb_mutex._lock.runtime.clock import local_clock, replace_local_clock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from dev.simulation.world import Thread, World


@contextmanager
def installed(world: World) -> Iterator[Any]:
    """Make the library run in a world inside the block; yields the stand-in for `threading`."""
    stand_in = threading_of(world)
    with ExitStack() as stack:
        process = of_runtime.current_process()
        clock = replace_local_clock(Clock(world))
        stack.callback(setattr, of_runtime, "_process", process)
        stack.callback(replace_local_clock, clock)
        for module in (threads, run_on_thread, callers):
            stack.enter_context(patch.object(module, "threading", stand_in))
        local = _ThreadLocal(world, type(callers._thread))
        stack.enter_context(patch.object(callers, "_thread", local))
        stack.enter_context(patch.object(listener, "socket", socket_of(world)))
        pause = types.SimpleNamespace(sleep=world.sleep, monotonic=lambda: local_clock().now())
        stack.enter_context(patch.object(create_table, "time", pause))
        stack.enter_context(patch("pynamodb_mutex._tasks.handles.asyncio", AsyncIo(world)))
        stack.enter_context(patch.object(Connection, "client", property(_client_of)))
        stack.enter_context(patch.object(BaseClient, "_make_api_call", network.make_api_call))
        network.worlds.append(world)
        stack.callback(network.worlds.remove, world)
        # Last, so that it is undone first: threads that `end` unwinds run ``finally`` blocks of the library, which need
        # all of the above.
        stack.callback(world.end)
        yield stand_in


def _client_of(connection: Any) -> Client:
    """Return the simulated client of a PynamoDB connection; replaces the property that makes a real one."""
    client = connection._client
    if not isinstance(client, Client):
        client = connection._client = Client(connection)
    return client


@contextmanager
def acting_as(world: World, process: Process) -> Iterator[MainThread]:
    """Make the caller a thread of a process inside the block: while it blocks, the rest of the world goes on."""
    thread = MainThread(process)
    before = world.thread, world.main
    world.thread = world.main = thread
    try:
        with world.inside(process):
            yield thread
    finally:
        world.thread, world.main = before


def of_world(world: World, kind: type[Any]) -> Any:
    """Return a subclass of a stand-in that belongs to a world: the library instantiates it without naming one."""
    return type(kind.__name__, (kind,), {"_world": world})


def threading_of(world: World) -> Any:
    """Return the stand-in for the module `threading` in a world."""

    return types.SimpleNamespace(
        Thread=of_world(world, StartedThread),
        Timer=of_world(world, Timer),
        Condition=of_world(world, Condition),
        Event=of_world(world, Event),
        Semaphore=of_world(world, Semaphore),
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
    """Stand-in for `threading.Lock`."""

    _world: World

    def __init__(self) -> None:
        self._holder: Any = None
        self._waiting: list[Callable[..., None]] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; outside of simulated threads, which alone can wait, only if it is free."""
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
        """Release the lock; any thread may do so."""
        if self._holder is None:
            raise RuntimeError("release unlocked lock")
        self._holder = None
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def locked(self) -> bool:
        """Return whether the lock is held."""
        return self._holder is not None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """Stand-in for `threading.RLock`."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; its holder may do so again."""
        is_own = self.locked() and self._holder is (self._world.thread or self._world)
        if not is_own and not super().acquire(blocking, timeout):
            return False
        self._depth += 1
        return True

    def release(self) -> None:
        """Undo one `acquire`."""
        self._depth -= 1
        if self._depth == 0:
            super().release()


class Condition:
    """Stand-in for `threading.Condition`, without a lock: another thread runs only where this one blocks."""

    _world: World

    def __init__(self) -> None:
        self._waiting: list[Callable[..., None]] = []

    def __enter__(self) -> None:
        """Do nothing: there is no lock."""

    def __exit__(self, *_: object) -> None:
        """Do nothing: there is no lock."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until this is notified, or for so many seconds; return whether it was notified."""
        thread = self._world.running
        wake = thread.waker()
        self._waiting.append(wake)
        try:
            until = math.inf if timeout is None else thread.process.clock() + timeout
            return bool(thread.park(until))
        finally:
            # after a timeout or an interruption: a later `notify` must not be spent on a thread that waits no more
            if wake in self._waiting:
                self._waiting.remove(wake)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until a predicate holds, or for so many seconds; return whether it holds."""
        clock = self._world.running.process.clock
        until = math.inf if timeout is None else clock() + timeout
        while not predicate() and clock() < until:
            self.wait(None if until == math.inf else until - clock())
        return predicate()

    def notify(self, count: int = 1) -> None:
        """Wake so many of the threads that wait, those that have waited longest first."""
        for wake in self._waiting[:count]:
            wake(True)
        del self._waiting[:count]

    def notify_all(self) -> None:
        """Wake all threads that wait."""
        self.notify(len(self._waiting))


class Event:
    """Stand-in for `threading.Event`."""

    _world: World

    def __init__(self) -> None:
        self._condition = of_world(self._world, Condition)()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event, and wake all threads that wait for it."""
        self._is_set = True
        self._condition.notify_all()

    def clear(self) -> None:
        """Reset the event."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, or for so many seconds; return whether it is set."""
        return bool(self._condition.wait_for(self.is_set, timeout))


class Semaphore:
    """Stand-in for `threading.Semaphore`."""

    _world: World

    def __init__(self, value: int = 1) -> None:
        self._condition = of_world(self._world, Condition)()
        self._left = value

    def acquire(self, *, timeout: float | None = None) -> bool:
        """Take one of the permits that are left, or wait for one; return whether one was taken."""
        if not self._condition.wait_for(lambda: self._left > 0, timeout):
            return False
        self._left -= 1
        return True

    def release(self, n: int = 1) -> None:
        """Release so many permits."""
        self._left += n
        self._condition.notify(n)


class StartedThread:
    """Stand-in for `threading.Thread`."""

    _world: World

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Any = (),
        *,
        daemon: bool | None = None,
    ) -> None:
        self._call = partial(target, *args) if target is not None else None
        self.name = name or "thread"
        self.daemon = daemon
        self._thread: Thread | None = None

    def run(self) -> None:
        """Make the thread's call."""
        if self._call is not None:
            self._call()

    def start(self) -> None:
        """Start the thread in the process that runs; raises RuntimeError as Python does if that refuses threads."""
        process = self._world.running.process
        if process.refuses_threads:
            raise RuntimeError("can't start new thread")
        self._thread = process.start_thread(self.name, self.run)
        self._thread.locals["started_as"] = self

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread has ended, or for so many seconds."""
        if self._thread is not None:
            self._thread.join(timeout)

    def is_alive(self) -> bool:
        """Return whether the thread was started and has not ended."""
        return self._thread is not None and not self._thread.ended


class Timer(StartedThread):
    """Stand-in for `threading.Timer`."""

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
        """Prevent the call, if it was not made yet."""
        self._cancelled = True


class Executor(futures.Executor):
    """Stand-in for `concurrent.futures.ThreadPoolExecutor`."""

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
        """Make a call on a thread of the pool; return its future."""
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
        """Make a call for each set of arguments; return an iterator over the results, in order."""
        made = [self.submit(fn, *args) for args in zip(*iterables, strict=False)]
        return (future.result() for future in made)

    def shutdown(self, wait: bool = True, **_: object) -> None:
        """End the threads as soon as all calls are made; wait for that unless ``wait`` is false."""
        self._is_shut = True
        self._changed.notify_all()
        if wait:
            for thread in self._threads:
                thread.join()


class Future(futures.Future[Any]):
    """A future for whose result a simulated thread can wait."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._done = of_world(world, Event)()

    def settle(self, call: Callable[[], Any]) -> None:
        """Make a call, and set its result or its exception."""
        try:
            self.set_result(call())
        except GreenletExit:
            # the world has ended, which is no outcome of the call
            raise
        except BaseException as error:
            self.set_exception(error)
        self._done.set()

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, or raise the exception; wait for it for so many seconds, None for no limit."""
        if not self._done.wait(timeout):
            raise TimeoutError
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception or None; wait for it for so many seconds, None for no limit."""
        if not self._done.wait(timeout):
            raise TimeoutError
        return super().exception(0)


class _ThreadLocal:
    """Stand-in for a `threading.local` of the library: each simulated thread has an instance of its class.

    Args:
        world: The world, whose running thread decides which instance is used.
        kind: The library's class, which is instantiated at a thread's first use.
    """

    def __init__(self, world: World, kind: type[Any]) -> None:
        # not by assignment, which `__setattr__` passes on to the running thread's instance
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
    """An event loop in virtual time, run by one simulated thread.

    It is its own selector: nothing but timers and other threads wakes it.
    """

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._thread: Thread = world.running
        self._selector = self
        self._wake: Callable[..., None] | None = None
        self._woken = False
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], None] = WeakKeyDictionary()

    def create_task(self, main: Any, **options: Any) -> asyncio.Task[Any]:
        """Make a task; not by a task factory, after which Python 3.13.0 names each task None."""
        task: asyncio.Task[Any] = asyncio.Task(main, loop=self, **options)
        # tasks of a crashed process are dropped while they are pending, and asyncio would log an error for each
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # private
        self._tasks[task] = None
        return task

    @property
    def pending(self) -> list[asyncio.Task[Any]]:
        """Tasks of this loop that have not ended, in the order in which they began.

        `asyncio.all_tasks` returns a set, whose order is that of the tasks' addresses in memory: after Ctrl-C it would
        decide which task is cancelled first, and the same seed would have another trace elsewhere. A mapping keeps
        the order; it is weak, because a loop keeps no task alive either: what is lost must be noticed as lost.
        """
        return [task for task in self._tasks if not task.done()]

    def time(self) -> float:
        """Return the local time of the loop's process."""
        return self._thread.process.clock()

    def select(self, timeout: float | None) -> list[Any]:
        """Block the loop's thread for so many seconds, None for no limit, or until another thread wakes it."""
        # Another thread may have called `_write_to_self` after the loop had looked at its callbacks, and before this.
        # The loop must not sleep then: nobody would wake it for that callback.
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
        """Make a call on a new thread; return the future of its result. The executor is ignored."""
        future = self.create_future()

        def settle(call: Callable[..., None], value: Any) -> None:
            # the task that waited for the call may have been cancelled meanwhile
            if not future.cancelled():
                call(value)

        def run() -> None:
            try:
                done = partial(settle, future.set_result, func(*args))
            except Exception as error:
                done = partial(settle, future.set_exception, error)
            if not self.is_closed():  # it was, if Ctrl-C ended it meanwhile
                self.call_soon_threadsafe(done)

        self._thread.process.start_thread("executor", run)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: `select` returns no events."""

    def _write_to_self(self) -> None:
        """Make `select` return; other threads call this after they have added a callback."""
        self._woken = True
        if self._wake is not None:
            self._wake()


class AsyncIo:
    """Stand-in for the module `asyncio`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on a new event loop, and return its result."""
        return run_tasks(self._world, main)

    def new_event_loop(self) -> Loop:
        """Return a new event loop for the running thread."""
        return Loop(self._world)

    def run_coroutine_threadsafe(self, coroutine: Coroutine[Any, Any, Any], loop: Loop) -> Future:
        """Run a coroutine on the loop of another thread; return the future of its result."""
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
        """Return any other name of `asyncio`, which is the same in every world."""
        return getattr(asyncio, name)


def run_tasks(world: World, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on a new event loop in the running thread, as `asyncio.run` does; return its result."""
    loop = Loop(world)
    try:
        try:
            return loop.run_until_complete(main)
        finally:
            # After Ctrl-C or an error, tasks are left. They are cancelled, and may release their locks.
            loop.run_until_complete(_cancelled(loop.pending))
    finally:
        for task in loop.pending:
            # These did not end, because the world has ended. Otherwise the garbage collector would close their
            # coroutines, at any time, and their ``finally`` blocks would run in another world.
            with suppress(BaseException):
                task.get_coro().close()
        loop._ready.clear()
        loop.close()


async def _cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
