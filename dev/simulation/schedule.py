"""One schedule: processes that lock at random, and what goes wrong meanwhile. All of it from one seed."""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from dev.simulation.judge import Judge, ViolationError
from dev.simulation.world import EPOCH, Faults, Process, World
from pynamodb_mutex import LockItem, Mutex, MutexLostError
from pynamodb_mutex._operations.acquire import Acquisition
from pynamodb_mutex._operations.acquire_several import (
    AcquisitionOfAny,
    AcquisitionOfSeveral,
    ContenderForAny,
)
from pynamodb_mutex._operations.attach import Attachment, detach, parse_ticket
from pynamodb_mutex._operations.contender import Caller, Contender
from pynamodb_mutex._operations.effects import Wait
from pynamodb_mutex._operations.guarded_write import payload, save_data
from pynamodb_mutex._operations.release import force, release, release_several
from pynamodb_mutex._operations.renew import ensure_held, renew_claim
from pynamodb_mutex.mutex import options_of_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import HeldClaim
    from pynamodb_mutex._operations.options import LockOptions

TABLE = "locks"

QUIET = 900.0
"""Seconds after the last fault within which everybody must have got on, and nothing be left."""


MOST_STEPS = 60_000
"""A schedule has about a thousand."""


class Lock(LockItem):
    """The lock table of the simulated processes."""

    class Meta:
        """Nothing is sent."""

        table_name = TABLE
        region = "simulated"
        host = "http://simulated"


class Schedule:
    """A schedule, ready to be played.

    Args:
        seed: Of all its chance.
        keep_trace: Whether to keep what happened, a line each.

    Attributes:
        world: In which it is played.
        judge: Watches it.
        counts: What the clients did.
    """

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        rng = self._rng = self.world.rng
        self.world.tables.apply(
            "CreateTable",
            {
                "TableName": TABLE,
                "KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}],
                "AttributeDefinitions": [{"AttributeName": "key", "AttributeType": "S"}],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )
        self.judge = Judge(self.world, TABLE)
        self.counts: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._names = itertools.count()
        self._tickets: list[str] = []
        self._told: dict[str, bool | None] = {}
        self._unfinished = 0
        self._keys = [f"k{number}" for number in range(rng.choice((1, 1, 2, 4)))]
        self._sections = rng.randrange(2, 8)
        self._length = rng.choice((20.0, 60.0, 200.0))
        self._faults = Faults.at_random(rng)
        self._is_rough = rng.random() < 0.7

    def play(self) -> None:
        """Play it to the end.

        Raises:
            ViolationError: If what must not happen has happened.
        """
        world, rng = self.world, self._rng
        for _ in range(rng.choice((1, 2, 2, 3, 5, 8))):
            world.after(rng.random() * 5, self._start_process)
        world.network.faults = self._faults
        if self._is_rough:
            for _ in range(rng.randrange(1, 6)):
                world.after(rng.random() * self._length, self._strike)
        self._run(self._length)
        world.network.faults = Faults()
        self._run(self._length + QUIET)
        self._check_end()

    def _run(self, until: float) -> None:
        if not self.world.run(until, most=MOST_STEPS):
            self.judge.fail(f"more than {MOST_STEPS} steps: something goes round and round")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # -- what happens to processes ------------------------------------------------------------------

    def _start_process(self) -> None:
        process = Process(self.world, f"p{next(self._names)}")
        self.world.note(process.name, "starts")
        for number in range(self._rng.choice((1, 1, 2, 3))):
            self._unfinished += 1
            process.start(
                f"t{number}", self._client(process, number), partial(self._ended, process)
            )

    def _ended(self, process: Process, result: Any) -> None:
        self._unfinished -= 1
        if isinstance(result, BaseException):
            self.judge.fail(f"a client of {process.name} ended by {result!r}")

    def _strike(self) -> None:
        world, rng = self.world, self._rng
        if not world.processes:
            return
        process = rng.choice(world.processes)
        what = rng.choice(
            ("crash", "stop", "stop", "freeze", "interrupt", "force", "delete", "expire")
        )
        self._count(what)
        if what == "crash":
            self._unfinished -= sum(".t" in thread.name for thread in process.threads)
            process.crash()
            world.after(rng.random() * 10, self._start_process)
        elif what in {"stop", "freeze"}:
            process.stop(rng.choice((0.5, 5.0, 40.0)) * rng.random(), freeze=what == "freeze")
        elif what == "interrupt":
            clients = [thread for thread in process.threads if ".t" in thread.name]
            if clients:
                rng.choice(clients).interrupt()
        elif what == "force":
            key = rng.choice(self._keys)
            operation = force(process, process.store(Lock), {"key": {"S": key}}, key)
            process.start("operator", operation)
        else:
            self._delete(rng.choice(self._keys), expired_only=what == "expire")

    def _delete(self, key: str, *, expired_only: bool) -> None:
        row = self.judge.rows().get(key, {})
        ttl = float(row.get("ttl", {"N": "inf"})["N"])
        if expired_only and EPOCH + self.world.now < ttl:
            return
        self.world.note("", f"deletes {key}")
        self.world.tables.apply("DeleteItem", {"TableName": TABLE, "Key": {"key": {"S": key}}})
        self.judge.changed_by_hand(key)

    # -- clients ------------------------------------------------------------------------------------

    def _client(self, process: Process, number: int) -> Operation[None]:
        """Lock and release, some times, in every way there is."""
        rng = self._rng
        caller = Caller(number, number, f"{process.name}.t{number}")
        for _ in range(self._sections):
            try:
                yield Wait(process.now + rng.random() * 2)
                way = rng.choice(
                    (self._one, self._one, self._one, self._several, self._any, self._attach)
                )
                yield from way(process, caller)
            except KeyboardInterrupt:
                self._count("interrupted")
            except MutexLostError:
                self._count("lost")
            except PynamoDBException:
                self._count("failed")

    def _options(self, key: str) -> LockOptions:
        rng = self._rng
        return Mutex.for_key(
            key,
            model=Lock,
            lease=rng.choice((1.0, 3.0, 10.0, 30.0)),
            timeout=rng.choice((0, 2.0, 30.0, 300.0)),
            auto_renew=rng.random() < 0.7,
            max_hold=rng.choice((None, None, None, 20.0)),
            poll=rng.choice(((0.05, 1.0), (0.2, 5.0))),
        )._options

    def _one(self, process: Process, caller: Caller) -> Operation[None]:
        options = self._options(self._rng.choice(self._keys))
        contender = self._contender(process, options, caller)
        patience = options.patience(blocking=True, timeout=None)
        attempt = Acquisition(contender, patience)
        claim = yield from attempt.run(partial(self.judge.believes, process))
        if claim is not None:
            yield from self._section(process, claim)

    def _contender(self, process: Process, options: LockOptions, caller: Caller) -> Contender:
        on_lost = (lambda: self._count("on_lost")) if self._rng.random() < 0.5 else None
        return Contender(process, process.store(Lock), options, caller, on_lost=on_lost)

    def _several(self, process: Process, caller: Caller) -> Operation[None]:
        each = [self._options(key) for key in self._keys]
        contenders = [self._contender(process, options, caller) for options in each]
        attempt = AcquisitionOfSeveral(contenders, self._rng.choice((0.0, 30.0)), (0.05, 1.0))

        def note(held: Any) -> None:
            for claim in held.claims:
                self.judge.believes(process, claim)

        held = yield from attempt.run(note)
        if held is None:
            return
        try:
            yield from self._work(process, held.claims)
        finally:
            if not held.is_released:
                yield from release_several(held)

    def _any(self, process: Process, caller: Caller) -> Operation[None]:
        common, each = options_of_any(self._keys, "any", Lock, {"lease": 10.0})
        contender = ContenderForAny(process, process.store(Lock), common, each, caller)
        attempt = AcquisitionOfAny(contender, self._rng.choice((0.0, 30.0)))
        claim = yield from attempt.run(partial(self.judge.believes, process))
        if claim is not None:
            yield from self._section(process, claim)

    def _attach(self, process: Process, caller: Caller) -> Operation[None]:
        if not self._tickets:
            return
        ticket = parse_ticket(self._tickets.pop(self._rng.randrange(len(self._tickets))))
        options = self._options(ticket.key)
        attachment = Attachment(self._contender(process, options, caller), ticket)
        claim = yield from attachment.attach(partial(self.judge.believes, process))
        self._count("attached")
        yield from self._section(process, claim)

    def _section(self, process: Process, claim: HeldClaim) -> Operation[None]:
        """Do something under a lock, and end it."""
        try:
            yield from self._work(process, [claim])
            if self._rng.random() < 0.15:
                self.judge.detached.add(claim.own.token)
                ticket = yield from detach(claim, None, None)
                self._tickets.append(ticket)
        finally:
            if not claim.is_released:
                yield from release(claim)
                self._check_released(claim)

    def _work(self, process: Process, claims: Sequence[HeldClaim]) -> Operation[None]:
        rng = self._rng
        for _ in range(rng.randrange(4)):
            claim = rng.choice(claims)
            what = rng.choice(("wait", "wait", "save", "renew", "ensure"))
            if what == "wait":
                yield Wait(process.now + rng.choice((0.05, 1.0, claim.lease)) * rng.random() * 1.5)
            elif what == "save":
                yield from self._save(claim)
            elif what == "renew":
                yield from renew_claim(claim, None)
            else:
                yield from ensure_held(claim, claim.lease * rng.random() * 0.9)

    def _save(self, claim: HeldClaim) -> Operation[None]:
        """Make a guarded write, and remember what was said of it."""
        serialized = payload(claim, next(self._numbers))
        assert serialized is not None
        self._told[serialized] = None
        try:
            yield from save_data(claim, serialized)
        except MutexLostError as error:
            self._told[serialized] = error.applied
            raise
        self._told[serialized] = True
        self._count("saved")

    # -- promises -----------------------------------------------------------------------------------

    def _check_released(self, claim: HeldClaim) -> None:
        """A release that returned has ended the claim in the row."""
        self._count("released")
        row = self.judge.rows().get(claim.key, {})
        # a late copy of the acquiring write may have made it anew, by the next number: nobody believes in that
        is_ours = row.get("token", {}).get("S") == claim.own.token
        if is_ours and int(row["version"]["N"]) == claim.own.version and "expires_at" in row:
            self.judge.fail(f"I4: {claim.key} was released, and its row carries the claim")

    def _check_end(self) -> None:
        """Everybody got on, nothing is left, and what was said of the writes is true."""
        world, judge = self.world, self.judge
        if self._unfinished:
            waiting = [thread.name for process in world.processes for thread in process.threads]
            judge.fail(f"{self._unfinished} clients never ended: {waiting}")
        for process in world.processes:
            left = {
                "queues": [
                    (key, queue.holder, queue.turns, queue.watchers)
                    for (_, key), queue in process.queues.items()
                ],
                "holders": process._holders,
                "schedule": [] if process.schedule.is_empty else ["renewals"],
                "threads": [thread.name for thread in process.threads],
            }
            for what, kept in left.items():
                if kept:
                    judge.fail(f"{process.name} has {what} left: {kept}")
        for written, applied in self._told.items():
            times = judge.guarded.get(written, 0)
            if applied is True and times != 1:
                judge.fail(f"I2: the write {written} was said to be applied, and was not")
            if applied is False and times:
                judge.fail(f"I2: the write {written} was said not to be applied, and was")


class Played(NamedTuple):
    """A schedule that was played.

    Attributes:
        violation: What happened that must not happen, if something did.
        requests: How many were sent.
        acquisitions: How many were handed out.
        seconds: Of virtual time.
        counts: What the clients did, and what was done to them.
        trace: What happened, a line each, if that was kept.
    """

    violation: str | None
    requests: int
    acquisitions: int
    seconds: float
    counts: dict[str, int]
    trace: list[str]


def play(seed: int, *, keep_trace: bool = False) -> Played:
    """Play the schedule of a seed."""
    schedule = Schedule(seed, keep_trace=keep_trace)
    violation = None
    try:
        schedule.play()
    except ViolationError as error:
        violation = str(error)
    world = schedule.world
    world.end()
    return Played(
        violation,
        world.network.requests,
        schedule.judge.acquisitions,
        world.now,
        schedule.counts,
        world.trace or [],
    )
