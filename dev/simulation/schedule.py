"""Random schedules: processes whose clients lock keys and rows, and faults meanwhile, all from one seed.

A schedule has two parts. For some time clients lock in random ways, while requests meet faults and processes crash,
stop, freeze, are interrupted or cut off. Then the faults end, and everybody must finish. The judge watches all of it,
and `Schedule` checks at the end that no lock, entry or renewal remains, and that what callers learned of their writes is true.

`play` plays a schedule, and `shrink` looks for a smaller one with the same violation. See `client` for what clients do,
`world` for how it is played, `judge` for the invariants, and `explore` for all schedules of a small world.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from pynamodb.exceptions import PynamoDBException

from dev.simulation.client import GAPS, WAYS, Client
from dev.simulation.judge import Judge, Watched
from dev.simulation.lines import line_of
from dev.simulation.models import ROWS, Lock, Shard, create_tables
from dev.simulation.network import Faults, Network
from dev.simulation.once import ONCE_WAYS, PREFIX, Receipt
from dev.simulation.once_judge import OnceJudge
from dev.simulation.shared import SHARED_WAYS, few_readers, ways_of
from dev.simulation.shared_judge import SharedJudge
from dev.simulation.threads import installed
from dev.simulation.world import EPOCH, Process, ViolationError, World
from pynamodb_mutex import LockItem, signals
from pynamodb_mutex._fair.hints import NEXT
from pynamodb_mutex._fair.waiting_line import address_of, id_of
from pynamodb_mutex._lock.dynamodb.store import SHORTEST_RETENTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dev.simulation.values import Item

QUIET = 900.0
"""Seconds after the last fault within which all clients must have finished. No lock, entry or renewal may remain then."""

HOUR, DAY = 3600.0, 86400.0

IDLE = 60.0
"""Seconds without a request after which nobody is at work."""


_CLOSE = (
    ("lock_shared",),  # two threads at one claim in doubt
    ("lock_several", "lock_one"),  # a group that is answered at its second attempt
    ("lock_fair", "lock_one"),  # a dead line that a plain taker meets
    ("lock_one", "lock_attached"),  # a stale ticket
    ("lock_otherwise",),
    ("lock_row", "lock_none"),
    ("lock_and_record", "lock_until_all_is_released"),
)
"""Ways that show rare coincidences where few meet at one lock."""

_DOUBTFUL = ("duplicated", "failed_after", "late", "lost_answer", "repeated", "undated")
"""Faults after which an answer may be older than the state, or a request is applied whose sender does not know it."""


KINDS = ("locks", "once", "shared")
"""What clients of a schedule use: locks, `once`, or shared locks."""


class Size(NamedTuple):
    """How much happens in a schedule.

    Attributes:
        processes: Number of processes at the beginning.
        threads: Largest number of client threads in a process.
        sections: Number of locks that each thread or task acquires, one after the other.
        keys: Number of keys that they lock.
        rows: Number of rows in each of the users' tables that they lock.
        ways: Ways in which they lock: names of methods of `Client`.
        faults: Share of requests that meets each kind of fault.
        strikes: Number of faults of processes and rows, such as crashes and deletions.
        seconds: Seconds during which there are faults.
        hints: Share of the processes whose fair waiters are called by hints; the others are as of an older version.
        astray: Share of the hints that meet a fault. If there are any, hints are forged, too.
        gap: Seconds after which all work again that have been idle since; 0 for no such time. The TTL deletes rows then.
        jumps: Number of jumps of local clocks.
        outages: Share of the sections in which a thread holds a key for long, mostly cut off from DynamoDB.
        dead: Number of waiters who have died in the line of the first key before the beginning.
    """

    processes: int
    threads: int
    sections: int
    keys: int
    rows: int
    ways: tuple[str, ...]
    faults: dict[str, float]
    strikes: int
    seconds: float
    hints: float = 0.0
    astray: float = 0.0
    gap: float = 0.0
    jumps: int = 0
    outages: float = 0.0
    dead: int = 0

    @property
    def is_of_once(self) -> bool:
        """Whether clients call `once`, in place of locking."""
        return not set(ONCE_WAYS).isdisjoint(self.ways)

    @property
    def is_shared(self) -> bool:
        """Whether clients share locks."""
        return not set(SHARED_WAYS).isdisjoint(self.ways)

    @classmethod
    def of(cls, seed: int, kind: str = "locks") -> Size:
        """Return the random size that a seed determines, for a schedule of one of the `KINDS`."""
        rng = random.Random(seed)
        if kind != "shared":
            return cls.at_random(rng, ONCE_WAYS if kind == "once" else ())
        drawn = cls.at_random(rng, SHARED_WAYS)
        keys = min(drawn.keys, 2)
        drawn = drawn._replace(ways=ways_of(rng), keys=keys, outages=0.0)
        return drawn._at_close_quarters() or drawn

    @classmethod
    def at_random(cls, rng: random.Random, ways: Sequence[str] = ()) -> Size:
        """Return a random size, in which clients lock in some of these ways; by default in all that there are."""
        # Often all clients lock in one or two ways. With all ways at once they rarely meet at the same lock.
        limited, ways = bool(ways), ways or WAYS
        ways = rng.sample(ways, rng.choice((1, 2, len(ways))))
        drawn = cls(
            processes=rng.choice((1, 2, 2, 3, 5, 8)),
            threads=rng.choice((1, 1, 2, 3)),
            sections=rng.randrange(2, 8),
            keys=rng.choice((1, 1, 2, 4)),
            rows=rng.choice((1, ROWS)),
            ways=tuple(ways),
            faults=Faults.at_random(rng).shares,
            strikes=rng.randrange(1, 6) if rng.random() < 0.7 else 0,
            seconds=rng.choice((20.0, 60.0, 200.0)),
            # last: all else is then as it was for a seed before there were hints
            hints=rng.choice((0.0, 0.0, 0.5, 1.0)),
            astray=rng.choice((0.0, 0.1, 0.5)),
            gap=rng.choice((0.0,) * 6 + (2 * HOUR, 10 * DAY)),
            jumps=rng.choice((0,) * 6 + (1, 3)),
            outages=0.0 if ways[0] in ONCE_WAYS else rng.choice((0.0,) * 8 + (0.5,)),
        )
        if (drawn.is_of_once or not limited) and (few := drawn._at_close_quarters()):
            return few
        # the order of waiters, and who counts as dead, shows where many wait in line for the same lock
        is_fair = not drawn.is_of_once and rng.random() > 0.85
        if not is_fair:
            return drawn
        return drawn._replace(ways=("lock_fair",), keys=1, dead=rng.choice((0, 0, 0, 2, 10, 40)))

    def _at_close_quarters(self) -> Size | None:
        """Return a size in which few meet at one lock and most answers are slow; None for nine in ten sizes.

        Each request is doubled, or requests are doubled and answers lost or late besides.
        """
        rng = random.Random(repr(self))
        if rng.random() >= 0.1:
            return None
        ways = self.ways[:2] if self.is_of_once or self.is_shared else rng.choice(_CLOSE)
        doubtful = dict.fromkeys(rng.sample(_DOUBTFUL, 2), 0.15)
        faults = rng.choice((doubtful | {"slow": 0.7}, {"slow_twice": 1.0}))
        fewer = self._replace(ways=ways, faults=faults, processes=2, threads=2, keys=1, rows=1)
        dead = rng.choice((0, 2, 10)) if "lock_fair" in ways else 0
        return fewer._replace(sections=10, dead=dead, gap=0.0, jumps=0, outages=0.0)

    def smaller(self) -> Iterator[Size]:
        """Return the sizes in which one value is smaller than here; roughly the much smaller ones first."""
        for name in ("processes", "threads", "sections", "keys", "rows"):
            count = getattr(self, name)
            for less in {1, count // 2, count - 1} - {0, count}:
                yield self._replace(**{name: less})
        for kind in self.faults:
            yield self._replace(faults={k: v for k, v in self.faults.items() if k != kind})
        for way in self.ways if len(self.ways) > 1 else ():
            yield self._replace(ways=tuple(each for each in self.ways if each != way))
        if self.seconds > 20:
            yield self._replace(seconds=20.0)
        for name in ("strikes", "hints", "astray", "gap", "jumps", "outages", "dead"):
            if getattr(self, name):
                yield self._replace(**{name: 0})


class Schedule:
    """A schedule that is ready to be played.

    Args:
        seed: Seed of all random choices.
        size: How much happens; by default a random size that the seed determines.
        keep_trace: Whether to keep a trace, one line for each event.

    Attributes:
        size: How much happens.
        world: The world in which it is played.
        judge: The judge that watches it.
        counts: Number of times that clients did each thing, and that each strike came.
    """

    def __init__(self, seed: int, size: Size | None = None, *, keep_trace: bool = False) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        Network(self.world)
        self._rng = self.world.rng
        # for options and conditions: a generator of its own, so that they change nothing else by being drawn
        self.chance = random.Random(f"{seed} options")
        create_tables(self.world.tables)
        # Drawn from a generator of its own. So a seed plays the same schedule whether its size is drawn here or handed
        # in, as when a violation is played again with the size that was printed for it.
        size = self.size = Size.of(seed) if size is None else size
        self._model: type[LockItem] = Receipt if size.is_of_once else Lock
        kind = SharedJudge if size.is_shared else Judge
        self.judge = (OnceJudge if size.is_of_once else kind)(
            self.world,
            {
                "locks": Watched(""),
                "shards": Watched(""),
                "accounts": Watched("lock_"),
                "ledger": Watched(None, ("locks", "ledger/")),
                "slots": Watched("lock_", is_enforced=False),
                "orders": Watched(None, ("locks", "order-")),
                "receipts": Watched(""),
            },
        )
        self.counts: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._names = itertools.count()
        self._tickets: list[str] = []
        # tickets of locks of any kind, with what takes them and what it takes, and how often each was good
        self.passes: list[tuple[Any, str, Any]] = []
        self.taken: Counter[str] = Counter()
        # one object for each process, which its threads share
        self.shared: dict[Process, Any] = {}
        self._reported: dict[str, bool | None] = {}
        self._keys = [f"{PREFIX * size.is_of_once}k{number}" for number in range(size.keys)]
        self._rows = [f"r{number}" for number in range(size.rows)]

    def play(self) -> None:
        """Play the schedule to its end, and check what is left.

        Raises:
            ViolationError: If the judge, or the check at the end, has reported a violation.
        """
        world, rng, size = self.world, self._rng, self.size
        for _ in range(size.processes):
            world.after(rng.random() * 5, self._start_process)
        world.network.faults = Faults(**size.faults)
        end = size.seconds + GAPS * size.gap
        for _ in range(size.strikes):
            world.after(rng.random() * size.seconds + self._some_gaps(), self._strike)
        for _ in range(size.jumps):
            world.after(rng.random() * size.seconds + self._some_gaps(), self._jump)
        for number in range(GAPS if size.gap else 0):
            # while nobody works yet, and when some do
            world.at((number + 1) * size.gap + rng.choice((0.0, 5.0)), self._expire_all)
        late = {"very_late", "redoubled"} & size.faults.keys()
        if size.is_of_once and not size.gap and not late:
            world.after(0.0, self._expire_early)
        world.network.datagrams.astray = size.astray
        if size.hints and size.astray:
            world.after(0.0, partial(self._forge, random.Random(f"{world.seed} forger")))
        if size.dead:
            self._let_die(size.dead)
        world.run(end)
        # From here on nothing goes wrong any more, so whoever does not finish would never finish. Outages end by
        # themselves; requests that are late still arrive.
        world.network.faults = Faults()
        world.network.datagrams.astray = 0.0
        world.network.partitioned.clear()
        for process in world.processes:
            self._allow_threads(process)
        world.run(end + QUIET)
        self._check_end()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def note_outcome(self, _: object, *, outcome: str, **__: object) -> None:
        """Count the outcome of a call of `once`, as its signal gives it."""
        self._count(f"once: {outcome}")

    # -- processes, and faults of processes and rows ------------------------------------------------

    def _start_process(self) -> None:
        process = Process(self.world, f"p{next(self._names)}")
        self.world.note(process.name, "starts")
        for number in range(self._rng.randint(1, self.size.threads)):
            client = Client(self, process)
            call = client.run_tasks if self._rng.random() < 0.2 else client.run
            process.start_thread(f"t{number}", call)

    def _let_die(self, waiters: int) -> None:
        """Let waiters stand in the line of the first key who have died."""
        table, key, tables = self._model.Meta.table_name, self._keys[0], self.world.tables
        row: Item = {"key": {"S": key}, "version": {"N": "1"}, "token": {"S": "t0"}}
        row["free_since"] = {"N": str(EPOCH)}
        row["waiting"] = {"L": [{"S": f"00000000{each:08x}|dead"} for each in range(waiters)]}
        with patch.object(tables, "watch", lambda *_: None):
            tables.apply("PutItem", {"TableName": table, "Item": row})
        dead = Process(self.world, "dead")
        dead.crash()
        self.judge.have_died(dead, (table, (key,)), row)

    def _some_gaps(self) -> float:
        """Return the time from the beginning to a random time at which all have been idle; 0 if they never are."""
        return self._rng.randint(0, GAPS) * self.size.gap if self.size.gap else 0.0

    def _jump(self) -> None:
        """Move the clock of a random process forward."""
        if self.world.processes:
            process = self._rng.choice(self.world.processes)
            self._count("jump")
            process.jump(self._rng.choice((0.5, 5.0, 60.0)) * self._rng.random())

    def _strike(self) -> None:
        """Cause one random fault of a random process, or of a row."""
        world, rng = self.world, self._rng
        if not world.processes:
            return
        process = rng.choice(world.processes)
        # By hand nobody deletes a row of `once`: then nothing is promised. And a key of it is no lock's, to be held.
        left_out = {"delete", "keep free"} if self.size.is_of_once else set()
        what = rng.choice([name for name in self._strikes if name not in left_out])
        self._count(what)
        self._strikes[what](self, process)

    def _crash(self, process: Process) -> None:
        process.crash()
        self.world.after(self._rng.random() * 10, self._start_process)

    def _stop(self, process: Process, *, freeze: bool = False) -> None:
        process.stop(self._rng.choice((0.5, 5.0, 40.0)) * self._rng.random(), freeze=freeze)

    def _interrupt(self, process: Process) -> None:
        clients = [thread for thread in process.threads_running if thread.name.startswith("t")]
        if clients:
            self.judge.interrupted(process)
            self._rng.choice(clients).interrupt(KeyboardInterrupt())

    def _force(self, process: Process) -> None:
        key = self._rng.choice(self._keys)
        process.start_thread("operator", partial(_quietly, partial(self._model.force_release, key)))

    def _keep_free(self, process: Process) -> None:
        """Let an operator hold a key, to keep work away from it, and give it back some time later."""
        key = self._rng.choice([*self._keys, "deleted"])
        model, part = self.chance.choice([(self._model, None)] * 4 + [(Shard, "a")])
        seconds = self._rng.random() * 30
        call = partial(Client(self, process).keep_free, key, model, part, seconds)
        # a name of its own: by it the judge knows whose signals are about which of them
        process.start_thread(f"operator{self.counts['keep free']}", call)

    def _delete(self, _: Process) -> None:
        self._delete_row(self._rng.choice(self._keys), "a person")

    def _expire(self, _: Process) -> None:
        """Delete a row as the TTL does, if its ``ttl`` has passed; DynamoDB may do so at once or much later."""
        self._expire_row(self._rng.choice(self._keys))

    def _expire_row(self, key: str, early: float = 0.0) -> None:
        row = self.judge.row(self._model.Meta.table_name, key)
        if EPOCH + self.world.now >= float(row.get("ttl", {"N": "inf"})["N"]) - early:
            self._count("expired")
            self._delete_row(key, "the TTL")

    def _expire_all(self) -> None:
        """Delete all rows whose ``ttl`` has passed."""
        for row in self.world.tables.rows(self._model.Meta.table_name):
            self._expire_row(row["key"]["S"])

    def _expire_early(self) -> None:
        """Delete rows of `once` as the TTL would if they were kept for half a minute, no hour, after their end.

        Not for less, and not where requests are late by minutes: a late copy of a request must not find a row that was
        made anew.
        """
        if {"very_late", "redoubled"}.isdisjoint(self.size.faults):
            for key in self._keys:
                self._expire_row(key, SHORTEST_RETENTION - 30)
            self.world.after(self._rng.random() * 10, self._expire_early)

    def _delete_row(self, key: str, who: str) -> None:
        self.world.note("", f"{who} deletes {key}")
        self.judge.deletes = who
        table = self._model.Meta.table_name
        self.world.tables.apply("DeleteItem", {"TableName": table, "Key": {"key": {"S": key}}})
        self.judge.deletes = None

    def has_hints(self, process: Process) -> bool:
        """Return whether a process is of a version that has hints, and uses them."""
        # a generator of its own for each: nothing else changes with it
        chance = random.Random(f"{self.world.seed} hints {process.name}")
        return chance.random() < self.size.hints

    def _forge(self, rng: random.Random) -> None:
        """Send hints to somebody who stands in line, as whoever can read the rows may do."""
        rows = (self.judge.row(self._model.Meta.table_name, key) for key in self._keys)
        entries = [entry for row in rows for entry in line_of(row) if address_of(entry)]
        if entries:
            entry, other = rng.choice(entries), rng.choice(entries)
            text = rng.choice((id_of(entry), id_of(entry) + NEXT, id_of(other), "\xff", ""))
            for _ in range(rng.choice((1, 1, 20))):
                self.world.network.datagrams.send(
                    text.encode("latin-1"), address_of(entry) or ("", 0), is_forged=True
                )
        if self.world.now < self.size.seconds:
            self.world.after(rng.random() * 2, partial(self._forge, rng))

    def cut_off(self, process: Process, longest: float = 30.0) -> None:
        """Cut a process off from DynamoDB, for so many seconds at most."""
        cut_off = self.world.network.partitioned
        cut_off.add(process)
        self.world.after(self._rng.random() * longest, partial(cut_off.discard, process))

    def _refuse_threads(self, process: Process) -> None:
        self.world.note(process.name, "refuses threads")
        process.refuses_threads = process.refused_threads = True
        self.world.after(self._rng.random() * 30, partial(self._allow_threads, process))

    def _allow_threads(self, process: Process) -> None:
        if process.refuses_threads:
            self.world.note(process.name, "starts threads again")
            process.refuses_threads = False
            self.judge.disturbed(process)

    _strikes: dict[str, Callable[[Schedule, Process], None]] = {  # noqa: RUF012 - never changed
        "crash": _crash,
        "stop": _stop,
        "freeze": partial(_stop, freeze=True),  # type: ignore[dict-item]  # mypy takes _stop for a method
        "interrupt": _interrupt,
        "force": _force,
        "keep free": _keep_free,
        "delete": _delete,
        "expire": _expire,
        "cut off": cut_off,
        "refuse threads": _refuse_threads,
    }

    # -- the end of a schedule ----------------------------------------------------------------------

    def _check_end(self) -> None:
        """Check that all clients have finished, nothing is left, and each write was reported as it was applied."""
        world, judge = self.world, self.judge
        for process in world.processes:
            left = {
                "threads": [thread.name for thread in process.threads_running],
                "queues": [
                    (key, queue.holder, queue.turns, queue.watchers)
                    for (_, key), queue in process.queues.items()
                ],
                "holders": [claim for claims in process._holders.values() for claim in claims],
                "renewals": [] if process.schedule.is_empty else [process.schedule._due],
            }
            for what, kept in left.items():
                if kept:
                    judge.fail(f"{process.name} has {what} left: {kept}")
        for key in self._keys:
            judge.check_left((self._model.Meta.table_name, (key,)))
        judge.check_signals()
        if isinstance(judge, OnceJudge):
            judge.check_end()
        # None is a write of unknown outcome, of which anything may be true. One without a lock, or to a
        # row that somebody has deleted since, that was reported as applied may have been applied twice, by a copy that
        # nothing recognises. And of a row that was deleted and made anew, nothing shows what was applied to the first.
        often = judge.unlocked | judge.forgotten
        for number, applied in self._reported.items():
            times = judge.writes.get(number, 0)
            if applied is True and ((times != 1 and number not in often) or not times):
                judge.fail(f"I2: the write {number} was reported as applied, and was not")
            if applied is False and times and number not in judge.forgotten:
                judge.fail(f"I2: the write {number} was reported as not applied, and was")
        # the judge's reports are raised where the world runs
        world.run(world.now)


def _quietly(call: Callable[[], object]) -> None:
    """Make a call; a failed request is no violation."""
    with suppress(PynamoDBException):
        call()


class Played(NamedTuple):
    """The outcome of a schedule.

    Attributes:
        size: How much happened.
        violation: The first violation, in words; None if there was none.
        requests: Number of requests that were sent.
        acquisitions: Number of acquisitions in which a process has believed.
        seconds: Virtual time from the first request to the last one, of which a longer pause than `IDLE` counts as that.
        counts: Number of times that clients did each thing, and that each strike came.
        asked: Number of times that the judge asked each rule.
        trace: One line for each event, if a trace was kept; else empty.
    """

    size: Size
    violation: str | None
    requests: int
    acquisitions: int
    seconds: float
    counts: dict[str, int]
    asked: dict[str, int]
    trace: list[str]


def play(seed: int, size: Size | None = None, *, keep_trace: bool = False) -> Played:
    """Play the schedule of a seed, and return its outcome; a violation is part of that, and not raised."""
    schedule = Schedule(seed, size, keep_trace=keep_trace)
    world = schedule.world
    trace = [] if world.trace is None else world.trace
    violation = None
    # a row is kept for at least an hour
    retention = 0.0 if 0 < schedule.size.gap < 7 * DAY else Lock.retention
    with (
        installed(world),
        patch.object(Lock, "retention", retention),
        few_readers(seed, schedule.size.ways),
        signals.once_called.connected_to(schedule.note_outcome),
        schedule.judge.receiving(),
    ):
        try:
            schedule.play()
        except ViolationError as error:
            violation = str(error)
    if isinstance(schedule.judge, OnceJudge):
        schedule.counts.update(schedule.judge.counts)
    return Played(
        schedule.size,
        violation,
        world.network.requests,
        schedule.judge.acquisitions,
        sum(min(after.sent - before.sent, IDLE) for before, after in pairwise(world.network.log)),
        schedule.counts,
        schedule.judge.asked,
        trace,
    )


def shrink(seed: int, size: Size, violation: str) -> tuple[int, Size]:
    """Return the seed and size of a smaller schedule with the same kind of violation; the same ones if none is found.

    A seed plays an entirely different schedule with another size, so a few seeds are tried with each.
    """
    kind = kind_of(violation)
    found = True
    while found:
        found = False
        for smaller, other in itertools.product(size.smaller(), range(_TRIES)):
            again = play(seed + other, smaller).violation
            if again is not None and kind_of(again) == kind:
                seed, size, found = seed + other, smaller, True
                break
    return seed, size


_TRIES = 10
"""Number of seeds that `shrink` tries with each smaller size."""


def kind_of(violation: str) -> str:
    """Return the kind of a violation: its text without names, numbers and times, which differ between schedules."""
    return re.sub(r"'[^']*'|0x\w+|[\d.]+|p\d+", "", violation.partition(": ")[2])[:40]
