"""What the judge knows of claims: as a row has them, as a request names them, and as a handle speaks of its own."""

from __future__ import annotations

import asyncio
import math
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.runtime.callers import acting_as, caller

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dev.simulation.network import Exchange
    from dev.simulation.world import Process, World

    Place = tuple[str, Any]
    """A row: the name of its table, and its key."""


FORCED_MARK = "forced-"
"""What a token begins with that was written by force."""

FAR = 1e8
"""Seconds from now from which an end stands for none: a holder has written it that knew no server time."""


class Claim:
    """The claim in a row.

    Attributes:
        token: Token of the last acquisition; None if there was none.
        end: Server time at which the claim ends; None if the lock is free.
        version: Fencing token; 0 if there is none.
        lease: Seconds for which those that watch it wait.
        owner: Label of the holder; empty if there is none.
        is_reserved: Whether it is held by nobody: a release before ``hold_at_least`` has left it.
    """

    __slots__ = ("end", "is_reserved", "lease", "owner", "token", "version")

    def __init__(self, row: dict[str, Any], prefix: str) -> None:
        self.token: str | None = row.get(f"{prefix}token", {}).get("S")
        end = row.get(f"{prefix}expires_at")
        self.end = None if end is None else float(end["N"])
        self.owner: str = row.get(f"{prefix}owner", {}).get("S", "")
        self.is_reserved = end is not None and f"{prefix}owner" not in row
        self.version = int(row.get(f"{prefix}version", {"N": "0"})["N"])
        self.lease = float(row.get(f"{prefix}lease", {"N": "0"})["N"])


@dataclass
class Term:
    """How long the rows let somebody believe in an acquisition.

    Attributes:
        place: The row that carries its claim.
        process: The process that acquired it.
        owner: The thread or task of it, as the row names it.
        since: True time at which its claim was written.
        end: End of its claim in the row, in true time; infinity for a holder that knows no server time.
        watched: True time until which those that watch the row wait for it at least.
        renewed: True time at which the last request was sent whose answer has shown its process a later end, and that of
            the lease that this request asked for, less what the process may have misjudged of server time.
        broken_at: True time at which it was broken by force, or its row was deleted by hand; infinity if neither.
        broken_by: The request that did so; None if none did.
        known_at: True time at which an answer has shown that to its process; infinity if none has.
        abandoned_by: Label of the dead holder whose claim it has replaced; empty if there was none.
    """

    place: Place
    process: Process
    owner: str
    since: float
    end: float
    watched: float
    renewed: tuple[float, float] = (-math.inf, -math.inf)
    broken_at: float = math.inf
    broken_by: Exchange | None = None
    known_at: float = math.inf
    abandoned_by: str = ""


class Watch:
    """A handle that the judge asks, as the thread or task that uses it.

    Attributes:
        process: The process of that thread or task.
        thread: That thread, or the one of the task's event loop.
        name: The name of the thread or task.
        options: What was given when the handle was made.
        keys: The keys that it locks.
        is_single: Whether it locks one key alone.
        is_all: Whether it locks several keys together.
        is_timed: Whether it was checked that its acquire has ended in time.
        is_used: Whether its section goes on. It is asked until it is not held any more after that.
        tokens: Tokens of the acquisition in which it believes; empty if in none.
        last: Tokens of its latest acquisition.
        said: The payload in the row and the label of a dead holder before it, as each lock of that has said then.
        began: True time at which its section began.
        since: True time at which it has begun to believe in that; infinity if the system refused threads then.
        until: True time until which it believes, as it said last.
        is_in_doubt: Whether it has ceased to believe before that: a request that unlocks is under way, whose outcome decides.
        extended_at: True time at which that was found to be later than before.
        loss: Why it was lost, by the name of the cause; None if it was not.
        lost_at: True time by which the loss had come.
        losses: Number of calls of ``on_lost`` about this loss.
        helped_at: True time at which another thread has last begun to release it.
        danger: True time of the last call of ``on_danger``, and what was known then of its claim: see `Term.renewed`.
    """

    def __init__(self, handle: Any, world: World, options: Mapping[str, Any]) -> None:
        # Weak references, so that the judge keeps neither alive. Once the handle is gone, or the thread or task has ended,
        # nobody will release the lock, and the library has to find that out.
        self._handle, self._caller = weakref.ref(handle), weakref.ref(caller(labelled=False))
        self.process, self.thread = world.running.process, world.running
        task = asyncio.current_task() if asyncio._get_running_loop() else None
        self.name = self.thread.name if task is None else task.get_name()
        self.options = options
        parts = _parts_of(handle)
        lock = getattr(handle, "_lock", handle)  # of one for tasks
        self.is_single = not parts and not hasattr(lock, "keys")
        self.is_all = bool(parts)
        keys = tuple(map(_name_of, parts or (lock,))) if self.is_single or parts else lock.keys
        self.keys: tuple[str, ...] = keys
        self.is_used = True
        self.is_timed = False
        self.tokens: tuple[str, ...] = ()
        self.last: tuple[str, ...] = ()
        self.said: tuple[tuple[Any, str | None], ...] = ()
        self.began = self.since = self.until = self.extended_at = self.lost_at = -math.inf
        self.loss: str | None = None
        self.losses = 0
        self.helped_at = -math.inf
        self.is_in_doubt = False
        self.danger = (-math.inf, (0.0, 0.0))

    @property
    def is_own(self) -> bool:
        """Whether it is that of the running thread or task."""
        return self._caller() is caller(labelled=False)

    @property
    def caller(self) -> tuple[Process, int]:
        """The thread or task, by its process and the library's number for it; 0 if it has ended."""
        who = self._caller()
        return self.process, 0 if who is None else who.number

    def is_of(self, handle: Any) -> bool:
        """Return whether it is of this handle, or of a group that it belongs to."""
        own = self._handle()
        return handle is own or any(handle is each for each in _parts_of(own))

    def ask(self) -> float | None:
        """Ask the handle for how many seconds of the local clock it is held, and note the answer; None if it is gone."""
        handle, who, world = self._handle(), self._caller(), self.process.world
        if handle is None or who is None or not self.process.lives:
            return None
        before, world.thread = world.thread, self.thread
        # Asking must change nothing: a property of the library starts the threads that a system has refused.
        threads, self.process.threads = self.process.threads, _NO_THREADS
        try:
            with world.inside(self.process), acting_as(who):
                left: float = handle.remaining
                if (left or self.tokens) and handle.held is not (left > 0):
                    world.fail(f"I1: {handle!r} has {left} s left, and says {handle.held}")
                if left:
                    parts = _parts_of(handle) or (getattr(handle, "_lock", handle),)
                    tokens = tuple(part.token for part in parts)
                    if tokens != self.tokens:
                        self.said = tuple((part.data, part.abandoned_by) for part in parts)
                    self.tokens = tokens
                    until = self.process.true_time(self.process.clock() + left)
                    if until > self.until + 0.01:
                        self.extended_at = world.now
                    self.until, self.loss, self.is_in_doubt = until, None, False
                else:
                    self.is_in_doubt |= bool(self.tokens) and world.now < self.until
                    self.tokens = ()
                    if self.last:
                        loss = handle.loss
                        if loss is not None and self.loss is None:
                            self.lost_at = world.now
                        self.loss = None if loss is None else loss.name
        finally:
            world.thread, self.process.threads = before, threads
        return left


def _parts_of(handle: Any) -> Sequence[Any]:
    """Return the locks of a group, for threads or for tasks; empty for a single one."""
    parts: Sequence[Any] = getattr(getattr(handle, "_lock", handle), "_locks", ())
    return parts


def _name_of(handle: Any) -> str:
    """Return the key of a lock, with its range key if it has one."""
    range_key = getattr(handle, "range_key", None)
    return handle.key if range_key is None else f"{handle.key} {range_key}"


_NO_THREADS: Any = SimpleNamespace(waiting=())


def names_of(place: Place) -> set[str]:
    """Return the names by which handles know the lock of a row: in a lock table, or in a user's."""
    return {" ".join(place[1]), "/".join((place[0], *place[1]))}


def names_claim(exchange: Exchange, watch: Watch) -> bool:
    """Return whether a request names a claim of a handle."""
    return not values_on(exchange, None).isdisjoint(watch.last)


def parts_of(kwargs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a transaction; of any other request itself alone."""
    return [part for item in kwargs.get("TransactItems", ()) for part in item.values()] or [kwargs]


def values_on(exchange: Exchange, place: Place | None) -> set[Any]:
    """Return the values of a request's conditions and updates: strings, also those in lists, and numbers as floats.

    What names an attribute is no value: that is the token of a claim that readers share, which is one reader's, too. A reader's
    request names the token of its own entry.

    Args:
        exchange: The request.
        place: Of a transaction, the row whose part of it is meant; None for all.
    """
    kwargs = exchange.kwargs
    parts = parts_of(kwargs)
    if place is not None and "TransactItems" in kwargs:
        parts = [part for part in parts if place_of(part) == place]
    typed = [v for part in parts for v in part.get("ExpressionAttributeValues", {}).values()]
    typed = [each for v in typed for each in v.get("L", [v])]
    values = {float(each["N"]) if "N" in each else each.get("S") for each in typed}
    values -= {*kwargs.get("ExpressionAttributeNames", {}).values()}
    entry = reader_of(kwargs)
    return values if entry is None else values | {entry.partition(" ")[0]}


def reader_of(kwargs: Any) -> str | None:
    """Return the name of the entry that a reader's request makes, renews or removes as its own; None if it is none of these."""
    # the keys of the map, which have a space, come in this order: its own, and that of a dead reader
    names = kwargs.get("ExpressionAttributeNames", {}).values()
    return next((name for name in names if " " in name), None)


def place_of(part: dict[str, Any]) -> Place:
    """Return the row that a request, or a part of a transaction, is about."""
    # only users' rows are put, and their key is called so
    key = part.get("Key") or {"name": part["Item"]["name"]}
    return part["TableName"], tuple(value for typed in key.values() for value in typed.values())
