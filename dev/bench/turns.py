"""Processes that hold one lock in turn: in which order, how soon after each other, and at what cost.

A process that has released the lock begins to wait again when the next one holds it. So there are always one
holder and the same number of waiters, and each release lets another process acquire the lock. This is a part of the
scenario `waiting`. The order is kept by `Line`, what the processes report by `_Crowd`.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import wait
from statistics import median
from typing import Any, NamedTuple

import boto3

from dev.bench import FAIR, HINTED, OURS, failure, table_of
from dev.bench.children import Child, ChildError
from dev.bench.libraries import made
from dev.bench.tables import Table, number
from dev.bench.wire import Counts, Wire, wired
from dev.simulation.values import size_of_item

LATENCY = 0.005
"""Seconds that the proxy adds to each request."""

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


class Turn(NamedTuple):
    """One acquisition. Times are in seconds by the monotonic clock, which all processes of the machine share.

    Attributes:
        called: Time at which the process began to wait.
        taken: Time at which it held the lock.
        passed: Number of waiters that it overtook.
        errors: Number of calls in which the library raised an error meanwhile, and was called again.
    """

    called: float
    taken: float
    passed: int
    errors: int


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

    Attributes:
        run: The run.
        children: The processes.
        failed: Entry for the results if a process failed; None if none did.
    """

    def __init__(self, run: Run, wire: Wire) -> None:
        self.run = run
        self._key = f"turns-{run.library}-{run.waiters}-{run.section:g}"
        arguments = run.library, self._key, run.section
        self.children = [
            Child(wire.engine, _take_turns, *arguments) for _ in range(run.waiters + 1)
        ]
        self.failed: dict[str, str] | None = None
        self._holder: Child | None = None
        self._pids: dict[Child, int] = {}
        self._began: dict[int, float] = {}
        self._line = Line()
        self._turns: list[Turn] = []
        self._released: list[float] = []
        self._sizes: list[int] = []

    def start(self) -> None:
        """Let one process acquire the lock, and the others wait for it one after another."""
        for child in self.children:
            self._pids[child] = child.hear()
        for child in self.children:
            self._send(child)
            time.sleep(_STAGGER)

    def _send(self, child: Child) -> None:
        """Let a process begin to wait."""
        pid = self._pids[child]
        self._began[pid] = _now()
        if self.run.library not in (FAIR, HINTED):
            self._line.see([pid])
        child.send()

    def released(self, at: float) -> None:
        """Record that the lock was released at a time."""
        self._released.append(at)

    def taken(self, child: Child, at: float, called: float, errors: int) -> None:
        """Record an acquisition, and let the previous holder begin to wait again.

        Args:
            child: The process.
            at: Time at which it held the lock.
            called: Time at which it began to wait.
            errors: Number of errors that the library raised meanwhile.
        """
        pid = self._pids[child]
        self._began.pop(pid)
        self._turns.append(Turn(called, at, self._line.take(pid), errors))
        previous, self._holder = self._holder, child
        if previous is not None:
            self._send(previous)

    def observe(self, client: Any) -> None:
        """Record the waiters and the size of the row, if the library is fair."""
        if self.run.library not in (FAIR, HINTED):
            return
        key = {"key": {"S": self._key}}
        row = client.get_item(TableName=table_of(OURS), Key=key, ConsistentRead=True)["Item"]
        entries = [entry["S"] for entry in row.get("waiting", {"L": []})["L"]]
        self._line.see(_pid_of(entry) for entry in entries)
        self._sizes.append(size_of_item(row))

    def found(self, counts: Counts, since: float, until: float) -> dict[str, Any]:
        """Return the figures between two times.

        Args:
            counts: What passed through the proxy between them.
            since: Beginning.
            until: End.
        """
        turns = [turn for turn in self._turns if since <= turn.taken <= until]
        idle = sorted(
            turn.taken - released
            for turn, released in zip(self._turns[1:], self._released, strict=False)
            if turn in turns
        )
        if not idle:
            return failure(ValueError("nobody acquired the lock after another"))
        # Waits that have not ended count as well: without them, a process that never gets the lock would not show.
        waits = [turn.taken - turn.called for turn in turns]
        waits += [until - began for began in self._began.values()]
        # A write is charged for each KB of the row, to which each waiter adds, and a read for each 4 KB. The proxy has
        # counted all rows as smaller than 1 KB.
        size = median(self._sizes) if self._sizes else 1
        charged = replace(
            counts,
            wcu=counts.wcu * math.ceil(size / 1024),
            rcu=counts.rcu * math.ceil(size / 4096),
        )
        minutes = (until - since) / 60
        return {
            "takes": len(turns),
            "inversions": sum(turn.passed for turn in turns),
            "errors": sum(turn.errors for turn in turns),
            "idle": {"median": median(idle), "p99": idle[math.ceil(0.99 * len(idle)) - 1]},
            "longest_wait": max(waits),
            "row_bytes": size if self._sizes else None,
            "each_minute": charged.per(self.run.waiters * minutes),
            "each_take": charged.per(len(turns)),
        }


def _pid_of(entry: str) -> int:
    """Return the process id in an entry of the line: see `libraries.OursFair`."""
    return int(entry.partition("|")[2].partition("@")[0])


def _now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _take_turns(pipe: Any, name: str, key: str, section: float) -> None:
    """Acquire, hold and release the lock each time the parent sends something; report both times."""
    library = made(name)
    library.release(library.take(f"{key}-own-{os.getpid()}"))  # opens the connection
    pipe.say(os.getpid())
    while True:
        pipe.wait()
        called, lock, errors = _now(), None, 0
        while lock is None:
            try:
                lock = library.take(key)
            except Exception:  # dynamodblock raises one if another process was faster
                errors += 1
        pipe.say((_now(), called, errors))
        time.sleep(section)
        library.release(lock)
        pipe.say((_now(),))


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
    try:
        measured = _measured(runs, settle, seconds, engine_url)
    except Exception as error:
        return [each | failure(error) for each in found]
    return [each | more for each, more in zip(found, measured, strict=True)]


def _measured(
    runs: list[Run], settle: float, seconds: float, engine_url: str
) -> list[dict[str, Any]]:
    with ExitStack() as stack:
        wires = [stack.enter_context(wired(engine_url, LATENCY)) for _ in runs]
        crowds = []
        for run, wire in zip(runs, wires, strict=True):
            crowds.append(_Crowd(run, wire))
            stack.callback(lambda crowd=crowds[-1]: [child.kill() for child in crowd.children])
        client = boto3.client("dynamodb", endpoint_url=engine_url)
        for crowd in crowds:
            crowd.start()
        _attend(crowds, client, settle)
        for wire in wires:
            wire.counted()
        since = _now()
        _attend(crowds, client, seconds)
        until = _now()
        counts = [wire.counted() for wire in wires]
    return [
        crowd.failed or crowd.found(each, since, until)
        for crowd, each in zip(crowds, counts, strict=True)
    ]


def _attend(crowds: list[_Crowd], client: Any, seconds: float) -> None:
    """Record for some seconds what the processes report."""
    until = _now() + seconds
    while (left := until - _now()) > 0:
        crowd_of = {
            child: crowd for crowd in crowds if not crowd.failed for child in crowd.children
        }
        said = []
        for child in wait(list(crowd_of), left):
            try:
                said.append((child.hear(), child))
            except ChildError as error:
                crowd_of[child].failed = failure(error)
        taken = set()
        # Several may have reported since: in the order of their times, so that a release comes before the acquisition
        # that follows it.
        for (at, *more), child in sorted(said, key=lambda each: each[0]):
            crowd = crowd_of[child]
            if more:
                crowd.taken(child, at, *more)
                taken.add(crowd)
            else:
                crowd.released(at)
        for crowd in taken:
            crowd.observe(client)


def tables(runs: list[dict[str, Any]]) -> list[Table]:
    """Return two tables: the order and the times of the acquisitions, and their cost."""
    runs = sorted(runs, key=lambda run: (run["section"], run["waiters"]))
    start = ["Library", "Waiters", "Section, s"]
    times = [
        "Acquisitions", "Inversions", "Idle: median, s", "p99, s", "Longest wait, s",
    ]  # fmt: skip
    costs = [
        "Requests each, a minute", "WCU each", "RCU each", "Requests an acquisition", "WCU", "RCU",
    ]  # fmt: skip
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
        Table(
            "One holds the lock, others wait, in turn: the order",
            start + times,
            _rows(runs, _times, len(times)),
            "Each waiter is a process; whoever has released the lock waits again when the next one holds it."
            " An inversion is a waiter overtaken in one acquisition: of fair waiters in the order in which"
            " DynamoDB applied their joins, of others in that in which they began to wait. Idle is the lock from"
            " the end of a release to the end of the next acquisition. p99 of fewer than 100 is the longest."
            " A wait that had not ended counts too, and none could be longer than the run."
            f"{errors} Other programs used the processors too: the load average before a run, which has the"
            f" run before it in it, was {min(loads):.1f} to {max(loads):.1f}.",
        ),
        Table(
            "One holds the lock, others wait, in turn: the cost",
            start + costs,
            _rows(runs, _costs, len(costs)),
            f"Default settings, {1000 * LATENCY:g} ms, all requests of holder and waiters, counted for"
            f" {min(counted):g} to {max(counted):g} s. A row of fair waiters grows with their number, and so do"
            f" its units: it had {max(row_bytes, default=0):,.0f} bytes at most here.",
        ),
    ]


def _rows(runs: list[dict[str, Any]], cells: Any, columns: int) -> list[list[str]]:
    return [
        [run["library"], str(run["waiters"]), f"{run['section']:g}"]
        + ([f"failed: {run['failed']}", *[""] * (columns - 1)] if "failed" in run else cells(run))
        for run in runs
    ]


def _times(run: dict[str, Any]) -> list[str]:
    idle = run["idle"]
    seconds = [number(each) for each in (idle["median"], idle["p99"], run["longest_wait"])]
    return [str(run["takes"]), f"{run['inversions']:,}", *seconds]


def _costs(run: dict[str, Any]) -> list[str]:
    return [
        number(run[per][what])
        for per in ("each_minute", "each_take")
        for what in ("requests", "wcu", "rcu")
    ]
