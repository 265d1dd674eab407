"""Processes that hold one lock in turn: in which order, how soon after each other, and at what cost.

A process that has released the lock begins to wait again when the next one holds it. So there are always one
holder and the same number of waiters, and each release lets another process acquire the lock. This is a part of the
scenario `waiting`. The order is kept by `Line`, what the processes report by `_Crowd`.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import wait
from statistics import median
from typing import Any, NamedTuple

import boto3

from dev.bench import FAIR, HINTED, LATENCY, OURS, failure, table_of
from dev.bench.children import Child
from dev.bench.libraries import made
from dev.bench.tables import Column, Table, number, table
from dev.bench.wire import Counts, Wire, wired
from dev.simulation.values import size_of_item

_STAGGER = 0.01
"""Seconds from the time at which one process begins to wait to that of the next one."""


class Run(NamedTuple):
    """A run of processes that want one lock.

    Attributes:
        library: Name of the library.
        waiters: Number of processes that wait, while one more holds the lock.
        section: Seconds for which each holds the lock.
    """

    library: str
    waiters: int
    section: float


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


class _Crowd:
    """The processes of a run, and what they have reported.

    The order of fair waiters is that in which DynamoDB applied their joins, as the row shows it. The row is read
    after each acquisition, around the proxy, which would count the read. If at least two processes wait, an entry that
    joins after a read is not the first in line, so it is still there at the next read: none is missed.
    """

    def __init__(self, run: Run, wire: Wire, engine_url: str) -> None:
        self._run, self._wire = run, wire
        self._client = boto3.client("dynamodb", endpoint_url=engine_url)
        self._fair = run.library in (FAIR, HINTED)
        self._key = f"turns-{run.library}-{run.waiters}-{run.section:g}"
        self.children = [
            Child(wire.engine, partial(take_turns, section=run.section), run.library, self._key)
            for _ in range(run.waiters + 1)
        ]
        self._holder: Child | None = None
        self._pids: dict[Child, int] = {}
        self._began: dict[int, float] = {}
        self._line = Line()
        # of each acquisition: when its process began to wait and held the lock, how many it overtook, and the errors
        self._turns: list[tuple[float, float, int, int]] = []
        self._released: list[float] = []
        self._sizes: list[int] = []

    def measured(self, settle: float, seconds: float) -> dict[str, Any]:
        """Let the processes take turns; return the figures of some seconds, after some others."""
        try:
            for child in self.children:
                self._pids[child] = child.hear()
            for child in self.children:
                self._send(child)
                time.sleep(_STAGGER)
            self._attend(settle)
            self._wire.counted()
            since = now()
            self._attend(seconds)
            return self._found(self._wire.counted(), since, now())
        except Exception as error:
            return failure(error)

    def _send(self, child: Child) -> None:
        """Let a process begin to wait."""
        pid = self._pids[child]
        self._began[pid] = now()
        if not self._fair:
            self._line.see([pid])
        child.send(None)

    def _attend(self, seconds: float) -> None:
        """Record for some seconds what the processes report."""
        until = now() + seconds
        while (left := until - now()) > 0:
            said = [(child.hear(), child) for child in wait(self.children, left)]
            # in the order of their times, so that a release comes before the acquisition that follows it
            for (at, *more), child in sorted(said, key=lambda each: each[0]):
                if more:
                    self._taken(child, at, *more)
                else:
                    self._released.append(at)
            if self._fair and any(more for (_, *more), _ in said):
                key = {"key": {"S": self._key}}
                read = self._client.get_item(TableName=table_of(OURS), Key=key, ConsistentRead=True)
                entries = read["Item"].get("waiting", {"L": []})["L"]
                # a waiter's entry has its label, which begins with the process id: see `libraries.Ours`
                self._line.see(int(re.split(r"[|@]", entry["S"])[1]) for entry in entries)
                self._sizes.append(size_of_item(read["Item"]))

    def _taken(self, child: Child, at: float, called: float, errors: int) -> None:
        """Record an acquisition, and let the previous holder begin to wait again."""
        pid = self._pids[child]
        self._began.pop(pid)
        self._turns.append((called, at, self._line.take(pid), errors))
        previous, self._holder = self._holder, child
        if previous is not None:
            self._send(previous)

    def _found(self, counts: Counts, since: float, until: float) -> dict[str, Any]:
        """Return the figures between two times, between which so much passed through the proxy."""
        turns = [turn for turn in self._turns if since <= turn[1] <= until]
        idle = sorted(
            turn[1] - released
            for turn, released in zip(self._turns[1:], self._released, strict=False)
            if turn in turns
        )
        if not idle:
            raise ValueError("nobody acquired the lock after another")
        called, taken, passed, errors = zip(*turns, strict=True)
        # Waits that have not ended count as well: without them, a process that never gets the lock would not show.
        waits = [at - began for began, at in zip(called, taken, strict=True)]
        waits += [until - began for began in self._began.values()]
        # A write is charged for each KB of the row, to which each waiter adds, and a read for each 4 KB. The proxy has
        # counted all rows as smaller than 1 KB.
        size = median(self._sizes) if self._sizes else 1
        wcu, rcu = counts.wcu * math.ceil(size / 1024), counts.rcu * math.ceil(size / 4096)
        charged = counts._replace(wcu=wcu, rcu=rcu)
        return {
            "takes": len(turns),
            "inversions": sum(passed),
            "errors": sum(errors),
            "idle": {"median": median(idle), "p99": idle[math.ceil(0.99 * len(idle)) - 1]},
            "longest_wait": max(waits),
            "row_bytes": size if self._sizes else None,
            "each_minute": charged.per(self._run.waiters * (until - since) / 60),
            "each_take": charged.per(len(turns)),
        }


def now() -> float:
    """Return the time of a clock that all processes of the machine share."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def take_turns(
    pipe: Any, name: str, key: str, *, lease: float | None = None, section: float | None = None
) -> None:
    """In a child: acquire, hold and release the lock each time the parent sends something; report both times.

    Args:
        pipe: The child's end of the pipe.
        name: Name of the library.
        key: Key of the lock.
        lease: Lease in seconds; None for the library's default.
        section: Seconds for which to hold the lock; None until the parent sends something more.
    """
    library = made(name, lease)
    library.release(library.take(f"{key}-own-{os.getpid()}"))  # opens the connection
    pipe.say(os.getpid())
    while True:
        pipe.wait()
        called, lock, errors = now(), None, 0
        while lock is None:
            try:
                lock = library.take(key)
            except Exception:  # dynamodblock raises one if another process was faster
                errors += 1
        pipe.say((now(), called, errors))
        if section is None:
            pipe.wait()
        else:
            time.sleep(section)
        library.release(lock)
        pipe.say((now(),))


def measure(
    runs: list[Run], settle: float, seconds: float, engine_url: str
) -> list[dict[str, Any]]:
    """Measure some runs at the same time, each with a key and a proxy of its own; return the figures of each.

    Args:
        runs: The runs.
        settle: Seconds until the steady state.
        seconds: Seconds of the steady state that are measured.
        engine_url: URL of the engine.
    """
    found = [run._asdict() | {"counted_s": seconds, "load": os.getloadavg()[0]} for run in runs]
    with ExitStack() as stack:
        wires = [stack.enter_context(wired(engine_url, LATENCY)) for _ in runs]
        crowds = [_Crowd(run, wire, engine_url) for run, wire in zip(runs, wires, strict=True)]
        for child in (child for crowd in crowds for child in crowd.children):
            stack.enter_context(child)
        pool = stack.enter_context(ThreadPoolExecutor(len(runs)))
        more = list(pool.map(lambda crowd: crowd.measured(settle, seconds), crowds))
    return [run | each for run, each in zip(found, more, strict=True)]


def tables(runs: list[dict[str, Any]]) -> list[Table]:
    """Return two tables: the order and the times of the acquisitions, and their cost."""
    runs = sorted(runs, key=lambda run: (run["section"], run["waiters"]))
    start = ["Library", "Waiters", "Section, s"]
    rows = [([run["library"], str(run["waiters"]), f"{run['section']:g}"], run) for run in runs]
    heads = [
        ("Requests each, a minute", "WCU each", "RCU each"), ("Requests an acquisition", "WCU", "RCU"),
    ]  # fmt: skip
    costs: list[Column] = [
        (head, lambda run, per=per, what=what: number(run[per][what]))
        for per, those in zip(("each_minute", "each_take"), heads, strict=True)
        for head, what in zip(those, ("requests", "wcu", "rcu"), strict=True)
    ]
    loads = [run["load"] for run in runs]
    raised: Counter[str] = Counter()
    for run in runs:
        raised[run["library"]] += run.get("errors", 0)
    errors = "".join(
        f" {name} raised {count:,} errors while it waited, and was called again."
        for name, count in raised.items()
        if count
    )
    counted = [run["counted_s"] for run in runs]
    row_bytes = [run["row_bytes"] for run in runs if run.get("row_bytes")]
    return [
        table(
            "One holds the lock, others wait, in turn: the order", start,
            [
                ("Acquisitions", lambda run: str(run["takes"])),
                ("Inversions", lambda run: f"{run['inversions']:,}"),
                ("Idle: median, s", lambda run: number(run["idle"]["median"])),
                ("p99, s", lambda run: number(run["idle"]["p99"])), ("Longest wait, s", "longest_wait"),
            ],
            rows,
            "Each waiter is a process; whoever has released the lock waits again when the next one holds it."
            " An inversion is a waiter overtaken in one acquisition: of fair waiters in the order in which"
            " DynamoDB applied their joins, of others in that in which they began to wait. Idle is the lock from"
            " the end of a release to the end of the next acquisition. p99 of fewer than 100 is the longest."
            " A wait that had not ended counts too, and none could be longer than the run."
            f"{errors} Other programs used the processors too: the load average before a run, which has the"
            f" run before it in it, was {min(loads):.1f} to {max(loads):.1f}.",
        ),
        table(
            "One holds the lock, others wait, in turn: the cost", start, costs, rows,
            f"Default settings, {1000 * LATENCY:g} ms, all requests of holder and waiters, counted for"
            f" {min(counted):g} to {max(counted):g} s. A row of fair waiters grows with their number, and so do"
            f" its units: it had {max(row_bytes, default=0):,.0f} bytes at most here.",
        ),
    ]  # fmt: skip
