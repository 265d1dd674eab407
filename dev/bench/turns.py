"""Processes that want one lock: each acquires, holds and releases it whenever the parent says so.

`run_agent` is what such a process runs. A `Crowd` of them holds the lock in turn: a process that has released it begins to
wait again when the next one holds it. So there are always one holder and the same number of waiters, and each release lets
another process acquire the lock.
"""

from __future__ import annotations

import math
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection, wait
from statistics import median
from typing import Any, NamedTuple

import boto3

from dev.bench import FAIR, HINTED, LATENCY, OURS, table_of
from dev.bench.children import PATIENCE, Child, ChildError
from dev.bench.libraries import made
from dev.bench.wire import wired
from dev.simulation.values import size_of_item
from pynamodb_mutex.testing import Engine

_STAGGER = 0.01
"""Seconds from the time at which one process begins to wait to that of the next one."""


class Run(NamedTuple):
    """A run of processes that want one lock.

    Attributes:
        library: Name of the library.
        waiters: Number of processes that wait, while one more holds the lock.
        section: Seconds for which each holds the lock.
        vary: Seconds for which it holds the lock longer, at most.
    """

    library: str
    waiters: int
    section: float
    vary: float = 0.0


class Line:
    """The order in which processes began to wait, to count those that acquire the lock out of order."""

    def __init__(self) -> None:
        self._waiting: list[int] = []

    def see(self, waiting: Iterable[int]) -> None:
        """Add processes that wait: those that are new have joined in this order, after all that are known."""
        self._waiting += [each for each in waiting if each not in self._waiting]

    def take(self, who: int) -> int:
        """Remove a process that has acquired the lock; return how many waiters it overtook.

        A process that was never seen waiting has joined after all that were, and so has overtaken all of them.
        """
        if who not in self._waiting:
            return len(self._waiting)
        passed = self._waiting.index(who)
        del self._waiting[passed]
        return passed


def run_agent(
    pipe: Connection,
    name: str,
    key: str,
    *,
    lease: float | None = None,
    section: Run | None = None,
    threads: int = 1,
) -> None:
    """In a child: acquire, hold and release the lock each time the parent sends something; report both times.

    The clock is one that all processes of the machine share.

    Args:
        pipe: The child's end of the pipe.
        name: Name of the library.
        key: Key of the lock.
        lease: Lease in seconds; None for the library's default.
        section: Says how long to hold the lock; None until the parent sends something more.
        threads: Number of threads that wait; all but one only do that.
    """
    library = made(name, lease)
    library.release(library.take(f"{key}-own-{os.getpid()}"))  # opens the connection
    pipe.send(None)
    while True:
        pipe.recv()
        for _ in range(threads - 1):
            threading.Thread(target=library.take, args=(key,), daemon=True).start()
        called, lock, errors = time.monotonic(), None, 0
        while lock is None:
            try:
                lock = library.take(key)
            except Exception:  # dynamodblock raises one if another process was faster
                errors += 1
        pipe.send((time.monotonic(), called, errors))
        if section is None:
            pipe.recv()
        else:
            time.sleep(section.section + random.uniform(0, section.vary))
        library.release(lock)
        pipe.send((time.monotonic(),))


def agents(stack: ExitStack, engine: Engine, count: int, *of: str, **options: Any) -> list[Child]:
    """Start processes that run `run_agent`, for the length of a block."""
    run = partial(run_agent, **options)
    children = [stack.enter_context(Child(engine, run, *of)) for _ in range(count)]
    for child in children:
        child.hear()
    return children


class Crowd:
    """The processes of a run, and what they have reported.

    The order of fair waiters is that in which DynamoDB applied their joins, as the row shows it. The row is read
    after each acquisition, around the proxy, which would count the read. If at least two processes wait, an entry that
    joins after a read is not the first in line, so it is still there at the next read: none is missed.
    """

    def __init__(self, run: Run, engine_url: str, key: str) -> None:
        self._fair = run.library in (FAIR, HINTED)
        self._client = boto3.client("dynamodb", endpoint_url=engine_url)
        self._key = key
        self._holder: Child | None = None
        self._line = Line()
        # of those who wait: since when
        self.began: dict[Child, float] = {}
        # of each acquisition: when its process began to wait and held the lock, how many it overtook, and the errors
        self.turns: list[tuple[float, float, int, int]] = []
        self.released: list[float] = []
        self.sizes: list[int] = []

    def send(self, child: Child) -> None:
        """Let a process begin to wait."""
        self.began[child] = time.monotonic()
        if not self._fair:
            self._line.see([child.pid])
        child.send(None)

    def attend(self, children: list[Child], seconds: float, least: int = 0) -> None:
        """Record what the processes report, for some seconds and until there were so many acquisitions."""
        until, least = time.monotonic() + seconds, len(self.turns) + least
        while (left := until - time.monotonic()) > 0 or len(self.turns) < least:
            said = [
                (child.hear(), child) for child in wait(children, left if left > 0 else PATIENCE)
            ]
            if left <= 0 and not said:
                raise ChildError("nobody acquired the lock after another")
            # in the order of their times, so that a release comes before the acquisition that follows it
            for (at, *more), child in sorted(said, key=lambda each: each[0]):
                if more:
                    self._taken(child, at, *more)
                else:
                    self.released.append(at)
            if self._fair and said:
                key = {"key": {"S": self._key}}
                read = self._client.get_item(TableName=table_of(OURS), Key=key, ConsistentRead=True)
                entries = read["Item"].get("waiting", {"L": []})["L"]
                # a waiter's entry has its label, which begins with the process id: see `libraries.Ours`
                self._line.see(int(re.split(r"[|@]", entry["S"])[1]) for entry in entries)
                self.sizes.append(size_of_item(read["Item"]))

    def _taken(self, child: Child, at: float, called: float, errors: int) -> None:
        """Record an acquisition, and let the previous holder begin to wait again."""
        self.began.pop(child)
        self.turns.append((called, at, self._line.take(child.pid), errors))
        previous, self._holder = self._holder, child
        if previous is not None:
            self.send(previous)


def measure(run: Run, settle: float, seconds: float, engine_url: str) -> dict[str, Any]:
    """Let processes hold a lock in turn; return the figures of some seconds, after some others.

    Args:
        run: The run.
        settle: Seconds until the steady state.
        seconds: Seconds of the steady state that are measured, at least.
        engine_url: URL of the engine.
    """
    load, key = os.getloadavg()[0], uuid.uuid4().hex
    with ExitStack() as stack:
        wire = stack.enter_context(wired(engine_url, LATENCY))
        children = agents(stack, wire.engine, run.waiters + 1, run.library, key, section=run)
        crowd = Crowd(run, engine_url, key)
        for child in children:
            crowd.send(child)
            time.sleep(_STAGGER)
        crowd.attend(children, settle)
        wire.counted()
        since = time.monotonic()
        crowd.attend(children, seconds, least=2)
        counts, until = wire.counted(), time.monotonic()
    turns = [turn for turn in crowd.turns if since <= turn[1] <= until]
    idle = sorted(
        turn[1] - released
        for turn, released in zip(crowd.turns[1:], crowd.released, strict=False)
        if turn in turns
    )
    called, taken, passed, errors = zip(*turns, strict=True)
    # Waits that have not ended count as well: without them, a process that never gets the lock would not show.
    waits = [at - began for began, at in zip(called, taken, strict=True)]
    waits += [until - began for began in crowd.began.values()]
    # A write is charged for each KB of the row, to which each waiter adds, and a read for each 4 KB. The proxy has
    # counted all rows as smaller than 1 KB.
    size = median(crowd.sizes) if crowd.sizes else 1
    wcu, rcu = counts.wcu * math.ceil(size / 1024), counts.rcu * math.ceil(size / 4096)
    charged = counts._replace(wcu=wcu, rcu=rcu)
    return {
        "takes": len(turns),
        "inversions": sum(passed),
        "errors": sum(errors),
        "idle": idle,
        "longest_wait": max(waits),
        "row_bytes": size if crowd.sizes else None,
        "each_take": charged.per(len(turns)),
        "counted_s": seconds,
        "load": load,
    }
