"""All interleavings of a small world: two clients, one key, a few faults. The shipped code is what is checked.

Requests take no time here. What is under way, requests and answers, is delivered in every order; each request
also meets each fault, as long as the world may have another one; and a timer may go off while something is under
way, which counts as a fault too: that delivery is slow. A world is played anew for each sequence of choices, the
next one in depth-first order, until none is left.

A world that comes to a state in which another one has been is not played on. The state is the time, the rows, what is
under way, and all that each client has received, and when: the library and its clients depend on nothing else.

Bounded are: the clients and what they do, the number of faults, and the random part of waits, which is fixed.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from dev.simulation.judge import Judge, Watched
from dev.simulation.network import Exchange, Fault
from dev.simulation.schedule import Lock, create_tables
from dev.simulation.threads import installed
from dev.simulation.world import Process, ViolationError, World
from pynamodb_mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = ("lost_request", "lost_answer", "late")

HANGS = 3.0
"""Seconds after which a client gives up on a request."""

LEASE = 30.0
"""Seconds. Whoever waits for so long waits for a claim that nobody ends."""


class Choices:
    """One path through the tree of all choices.

    Args:
        taken: The first ones; all others are the first of what there is.
    """

    def __init__(self, taken: list[int]) -> None:
        self._taken = taken
        self._made: list[tuple[int, int]] = []

    def choose(self, count: int) -> int:
        """Choose one of so many."""
        place = len(self._made)
        choice = self._taken[place] if place < len(self._taken) else 0
        self._made.append((choice, count))
        return choice

    @property
    def is_new(self) -> bool:
        """Whether no world has been played to here: the next choice is not given."""
        return len(self._made) >= len(self._taken)

    def next_path(self) -> list[int] | None:
        """Return the next path in depth-first order; None after the last one."""
        made = self._made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        return None if not made else [*(choice for choice, _ in made[:-1]), made[-1][0] + 1]


class SeenError(Exception):
    """The world has come to a state in which another one has been."""


class SmallWorld(World):
    """A world in which choices decide what happens next.

    Args:
        choices: They decide.
        faults: What may go wrong in it, at most.
        states: Those in which worlds have been.
        keep_trace: Whether to keep what happened.

    Attributes:
        faults_met: How many requests met a fault.
    """

    def __init__(
        self, choices: Choices, faults: int, states: set[int], *, keep_trace: bool = False
    ) -> None:
        super().__init__(keep_trace=keep_trace)
        self._states = states
        self._received: dict[str, int] = {}
        self.jitter = self.network.latency = self.network.late_reads = 0.0
        self.network.script = self._choose_fault
        self._choices = choices
        self._faults = faults
        self.faults_met = 0
        self._under_way: list[Callable[[], object]] = []
        self._late: list[Callable[[], object]] = []

    def _choose_fault(self, exchange: Exchange) -> Fault | None:
        kind = self._choices.choose(1 + len(KINDS)) if self._faults else 0
        if not kind:
            return None
        self._faults -= 1
        self.faults_met += 1
        return Fault(KINDS[kind - 1], seconds=HANGS)

    def deliver(self, seconds: float, call: Callable[[], object]) -> None:
        """Let a request or an answer be under way."""
        (self._late if seconds else self._under_way).append(call)

    def step(self) -> None:
        """Let one of the things happen that may be next.

        What a process does at once is no choice: nobody sees it before a request of it arrives.
        """
        if self._queue and self._queue[0][0] <= self.now:
            super().step()
            return
        may_time_pass = bool(self._queue) and (not self._under_way or self._faults > 0)
        count = len(self._under_way) + len(self._late) + may_time_pass
        if count > 1:
            if self._choices.is_new:
                self._note_state()
            choice = self._choices.choose(count)
        else:
            choice = 0
        for some in (self._under_way, self._late):
            if choice < len(some):
                self._hand_over(some.pop(choice))
                return
            choice -= len(some)
        self._faults -= bool(self._under_way)
        super().step()

    def _hand_over(self, call: Any) -> None:
        if not isinstance(call.args[0], Exchange):
            whose, what = _described(call)
            self._received[whose] = hash((self._received.get(whose), what, self.now))
        call()
        self.check()

    def _note_state(self) -> None:
        """Note the state.

        Raises:
            SeenError: If another world has been in it.
        """
        state = hash((
            self.now,
            repr(self.tables.rows("locks")),
            tuple(sorted(map(repr, map(_described, self._under_way)))),
            tuple(sorted(map(repr, map(_described, self._late)))),
            tuple(sorted(self._received.items())),
            self._faults,
        ))  # fmt: skip
        if state in self._states:
            raise SeenError
        self._states.add(state)

    def is_over(self, until: float) -> bool:
        """Say whether nothing more happens."""
        return not self._under_way and not self._late and super().is_over(until)


class Explored(NamedTuple):
    """What came of it.

    Attributes:
        violation: The first that was found.
        path: The choices that lead to it.
        worlds: How many were played.
        states: How many they came to in which there was a choice.
    """

    violation: str | None
    path: list[int]
    worlds: int
    states: int


def explore(faults: int) -> Explored:
    """Play all worlds with up to so many faults, until one has a violation."""
    path: list[int] | None = []
    worlds = 0
    states: set[int] = set()
    while path is not None:
        made = Choices(path)
        violation, _ = play(made, faults, states)
        worlds += 1
        if violation is not None:
            return Explored(violation, [c for c, _ in made._made], worlds, len(states))
        path = made.next_path()
    return Explored(None, [], worlds, len(states))


def play(
    choices: Choices, faults: int, states: set[int], *, keep_trace: bool = False
) -> tuple[str | None, list[str]]:
    """Play one world; return what went wrong, and its trace if that is kept."""
    world = SmallWorld(choices, faults, states, keep_trace=keep_trace)
    create_tables(world.tables)
    Judge(world, {"locks": Watched("")})
    trace = [] if world.trace is None else world.trace
    with installed(world):
        for name in ("p0", "p1"):
            process = Process(world, name, rate=1.0)
            # else what one process draws would depend on what the other has drawn
            process.uniform = _in_the_middle
            process.random_bits = partial(_next_bits, itertools.count(), name)
            process.start_thread("client", partial(_client, world, name))
        try:
            world.run(10 * LEASE)
            for process in world.processes:
                for thread in process.threads_running:
                    world.fail(f"{thread} never ended")
            world.check()
        except SeenError:
            pass
        except ViolationError as error:
            return str(error), trace
    return None, trace


def _in_the_middle(low: float, high: float) -> float:
    return (low + high) / 2


def _next_bits(numbers: Iterator[int], name: str) -> str:
    return f"{next(numbers):022x}{name}"


def _described(call: Any) -> tuple[str, str]:
    """Say whose request or answer this is, and what is in it."""
    first, *rest = call.args
    if isinstance(first, Exchange):
        return str(first.thread), f"{first.operation} {first.fault}"
    return str(call.func.__self__), repr(rest)


def _client(world: SmallWorld, name: str) -> None:
    """Acquire, write twice under the guard, release."""
    mutex = Mutex.for_key("k", model=Lock, lease=LEASE, auto_renew=False, poll=(2.0, 8.0))
    begun = world.now
    mutex.acquire()
    # a release whose request and repetition fail leaves the lock to expire
    allowed = LEASE / 2 if world.faults_met < 2 else LEASE * 1.1
    if world.now - begun > allowed:
        world.fail(
            f"I7: {name} waited for {world.now - begun:.0f} s, and nobody worked for so long"
        )
    try:
        for number in range(2):
            mutex.save_data(f"{name}-{number}")
    except PynamoDBException as error:
        world.fail(f"I8: {name} could not write: {error!r}")
    mutex.release()
    row = world.tables.row("locks", ("k",)) or {}
    # a late copy of the acquiring write may have made it anew, by the next number: nobody believes in that
    is_its = row.get("token", {}).get("S") == mutex.token
    if is_its and "expires_at" in row and int(row["version"]["N"]) == mutex.fencing_token:
        world.fail(f"I4: {name} released, and the row carries its claim")
