"""Checks the shipped code in all interleavings of a small world: two clients, one lock of some kind, a few faults.

A lock that is shared has three: two readers, and a writer.

Requests take no time here. The requests and answers that are under way are delivered in every order. Each request also
meets each kind of fault, as long as the world may have another one. A timer may fire while something is under way; that
counts as a fault too, a slow delivery. Each sequence of choices is played in a new world, in depth-first order, until
there is none left.

A world that reaches a state in which an earlier one has been is played no further. The state consists of the time, the
rows, the requests and answers under way, the faults that were met and when, and everything that each client has received
and when.

The bounds are: the two clients and what they do, the number of faults, and one fixed value for each random wait. For
random schedules without these bounds see `schedule`.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from dev.simulation.judge import Judge, Watched
from dev.simulation.models import Account, Lock, Order, create_tables
from dev.simulation.network import Exchange, Fault, Network
from dev.simulation.shared_judge import SharedJudge
from dev.simulation.threads import installed
from dev.simulation.world import Process, ViolationError, World
from pynamodb_mutex import Mutex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS = ("lost_request", "lost_answer", "late")

HANGS = 3.0
"""Seconds after which a client gives up on a request."""

LEASE = 30.0
"""Lease of the clients, in seconds. Whoever waits about as long waits for a claim that nobody has ended."""


class Choices:
    """One path through the tree of all choices.

    Args:
        taken: The first choices of the path; each later one is the first alternative.
    """

    def __init__(self, taken: list[int]) -> None:
        self._taken = taken
        self._made: list[tuple[int, int]] = []

    def choose(self, count: int) -> int:
        """Return the choice among so many alternatives, from 0."""
        place = len(self._made)
        choice = self._taken[place] if place < len(self._taken) else 0
        self._made.append((choice, count))
        return choice

    @property
    def is_new(self) -> bool:
        """Whether no earlier world was in this place: all choices that were given have been made."""
        return len(self._made) >= len(self._taken)

    def next_path(self) -> list[int] | None:
        """Return the next path in depth-first order; None after the last one."""
        # back to the last choice that has another alternative, and take that
        made = self._made
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        return None if not made else [*(choice for choice, _ in made[:-1]), made[-1][0] + 1]


class SeenError(Exception):
    """The world has reached a state in which an earlier world has been."""


class SmallWorld(World):
    """A world in which a sequence of choices decides what happens next.

    Args:
        choices: The choices.
        faults: Largest number of faults in it.
        states: Hashes of the states in which worlds have been; those of this world are added.
        keep_trace: Whether to keep a trace.

    Attributes:
        faults_met: Number of requests that met a fault.
    """

    def __init__(
        self, choices: Choices, faults: int, states: set[int], *, keep_trace: bool = False
    ) -> None:
        super().__init__(keep_trace=keep_trace)
        self._states = states
        self._received: dict[str, int] = {}
        network = Network(self)
        self.jitter = network.latency = network.late_reads = 0.0
        network.script = self._choose_fault
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
        # Part of the state: a lost request ends in another error of the client than a lost answer, and the library
        # distinguishes the two, while rows and requests under way may be the same.
        met = (str(exchange.thread), exchange.operation, kind, self.now)
        self._received["faults"] = hash((self._received.get("faults"), met))
        return Fault(KINDS[kind - 1], seconds=HANGS)

    def deliver(self, seconds: float, call: Callable[[], object]) -> None:
        """Put a request or an answer under way: `step` chooses when it arrives; with a delay it counts as late."""
        (self._late if seconds else self._under_way).append(call)

    def step(self) -> None:
        """Choose one of the events that may be next, and process it.

        There is no choice as long as a process has something to do at this instant: in which order processes do so
        makes no difference, for nobody sees it before a request arrives.
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
        # a timer fires first: a fault if something was under way
        self._faults -= bool(self._under_way)
        super().step()

    def _hand_over(self, call: Any) -> None:
        if not isinstance(call.args[0], Exchange):
            # an answer: the client's state depends on all its answers and their times, so these are kept as one hash
            whose, what = _described(call)
            self._received[whose] = hash((self._received.get(whose), what, self.now))
        call()
        self.check()

    def _note_state(self) -> None:
        """Add the present state to those that were seen.

        Only to be called when the next choice is a new one. On the given part of a path each state was seen, of course,
        by the world before.

        Raises:
            SeenError: If an earlier world has been in this state.
        """
        state = hash((
            self.now,
            repr([self.tables.rows(table) for table in ("locks", "accounts", "orders")]),
            tuple(sorted(map(repr, map(_described, self._under_way)))),
            tuple(sorted(map(repr, map(_described, self._late)))),
            tuple(sorted(self._received.items())),
            self._faults,
        ))  # fmt: skip
        if state in self._states:
            raise SeenError
        self._states.add(state)

    def is_over(self, until: float) -> bool:
        """Return whether nothing is under way, and no event is due up to a true time."""
        return not self._under_way and not self._late and super().is_over(until)


class Explored(NamedTuple):
    """The outcome of an exploration.

    Attributes:
        violation: The first violation, in words; None if there was none.
        path: The choices that lead to it; empty if there was none.
        worlds: Number of worlds that were played.
        states: Number of different states in which there was a choice.
    """

    violation: str | None
    path: list[int]
    worlds: int
    states: int


def explore(faults: int, kind: str = "key") -> Explored:
    """Play all worlds with up to so many faults and a lock of a kind out of `LOCKS`; stop at the first violation."""
    path: list[int] | None = []
    worlds = 0
    states: set[int] = set()
    while path is not None:
        made = Choices(path)
        violation, _ = play(made, faults, states, kind)
        worlds += 1
        if violation is not None:
            return Explored(violation, [c for c, _ in made._made], worlds, len(states))
        path = made.next_path()
    return Explored(None, [], worlds, len(states))


def play(
    choices: Choices,
    faults: int,
    states: set[int],
    kind: str = "key",
    *,
    keep_trace: bool = False,
) -> tuple[str | None, list[str]]:
    """Play one world; return its violation or None, and its trace, which is empty if none is kept."""
    world = SmallWorld(choices, faults, states, keep_trace=keep_trace)
    create_tables(world.tables)
    is_shared = kind == "shared"
    watched = {"locks": Watched(""), "accounts": Watched("lock_")}
    (SharedJudge if is_shared else Judge)(world, watched)
    trace = [] if world.trace is None else world.trace
    with installed(world):
        for name in ("p0", "p1", *[_WRITER] * is_shared):
            process = Process(world, name, rate=1.0)
            # With one generator for both, what a process draws would depend on how often the other has drawn before,
            # and equal states would go on differently.
            process.uniform = _in_the_middle
            process.random_bits = partial(_next_bits, itertools.count(), name)
            make, work = LOCKS[kind]
            if is_shared:
                # one after the other, they learn server time
                world.after(float(name[1:]), partial(process.start_thread, "asks", _ask))
                if name != _WRITER:
                    make = partial(make, shared=True, owner=f"{name}/{LEASE}")
            client = partial(_client, world, name, make, work)
            world.after(5.0 * is_shared, partial(process.start_thread, "client", client))
        try:
            world.run(10 * LEASE)
            for process in world.processes:
                for thread in process.threads_running:
                    world.fail(f"{thread} never ended")
            world.check()
        except SeenError:
            # the threads are ended now, which may make them send something: that is not of this world any more
            world._faults = 0
        except ViolationError as error:
            return str(error), trace
    return None, trace


_WRITER = "p2"
"""Name of the process that waits for the readers of a lock that is shared."""


def _ask() -> None:
    Mutex.for_key("another", model=Lock).locked()


def _in_the_middle(low: float, high: float) -> float:
    return (low + high) / 2


def _next_bits(numbers: Iterator[int], name: str) -> str:
    return f"{next(numbers):022x}{name[1:]}"


def _described(call: Any) -> tuple[str, str]:
    """Return the thread whose request or answer a delivery is, and its contents, both as text."""
    first, *rest = call.args
    if isinstance(first, Exchange):
        return str(first.thread), f"{first.operation} {first.fault}"
    return str(call.func.__self__), repr(rest)


def _client(
    world: SmallWorld,
    name: str,
    make: Callable[..., Any],
    work: Callable[[SmallWorld, str, Any], None],
) -> None:
    """Acquire a lock, write under its guard, release it; report what breaks a promise."""
    options: dict[str, Any] = {"lease": LEASE, "auto_renew": False, "poll": (2.0, 8.0)}
    lock = make(**options)
    options["shared"] = "shared" in getattr(make, "keywords", {})
    world.judge.watch(lock, options)
    begun = world.now
    lock.acquire()
    # The other holds the lock for no time, so nobody waits long. But if a release and its repetition both fail, the
    # lock has to expire.
    allowed = LEASE / 2 if world.faults_met < 2 else LEASE * 1.1
    if world.now - begun > allowed:
        world.fail(
            f"I7: {name} waited for {world.now - begun:.0f} s, and nobody worked for so long"
        )
    try:
        work(world, name, lock)
    except PynamoDBException as error:
        world.fail(f"I8: {name} could not write: {error!r}")
    # With two faults it may not be answered in time: then the lock expires.
    try:
        lock.release()
    except PynamoDBException:
        return
    world.judge.section_ends(is_released=True)


def _save_twice(_: SmallWorld, name: str, mutex: Mutex) -> None:
    for number in range(2):
        mutex.save_data(f"{name}-{number}")


def _share(world: SmallWorld, name: str, mutex: Mutex) -> None:
    """Renew as a reader, when the writer has marked the row."""
    if name != _WRITER:
        world.sleep(3.0)
        mutex.renew()


def _write_row(_: SmallWorld, name: str, lock: Any) -> None:
    """Count in the row, by an update and by a save: the judge sees a write that is lost or applied twice."""
    row = lock.row
    row.update([Account.data.set(f"{name}-0"), Account.count.add(1)])
    row.count, row.data = int(row.count) + 1, f"{name}-1"
    row.save()


def _write_another(world: SmallWorld, name: str, group: Any) -> None:
    """Write a row without a lock in a transaction that both locks guard."""
    with group.transaction() as transaction:
        transaction.update(Order("r0"), [Order.data.set(name)])
    if (world.tables.row("orders", ("r0",)) or {}).get("data") != {"S": name}:
        world.fail(f"I2: the write of {name} was reported as applied, and is not there")


LOCKS: dict[str, tuple[Callable[..., Any], Callable[[SmallWorld, str, Any], None]]] = {
    "key": (partial(Mutex.for_key, "k", model=Lock), _save_twice),
    "row": (partial(Account.locked, "r0"), _write_row),
    "shared": (partial(Mutex.for_key, "k", model=Lock), _share),
    "keys": (partial(Mutex.for_keys, ["k", "l"], model=Lock), _write_another),
}
"""What the clients may lock: how they make the lock, and what they write under it."""
