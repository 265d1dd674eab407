"""Waiting: the schedule of polls, and the queue of this process's threads and tasks.

Those that want the same key queue up here, first come first served, and only the first of them
polls. A release gives the lock to the next in line in one request instead of three.

Whoever waits is a generator, which yields the local time until which there is nothing to do. So a
thread can wait, which sleeps meanwhile, and a task, which awaits.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Generic, TypeVar

from pynamodb_mutex._clock import local_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pynamodb_mutex._claim import Claim

MOST_HAND_OVERS = 16
"""Hand-overs within the process in a row, before other processes get a chance."""

LONGEST_SILENCE = 2.0
"""Seconds for which those in line rely on the first of them while it has no answer: then they ask, too."""

_SHORTEST_WAIT = 0.01

H = TypeVar("H")
W = TypeVar("W")
R = TypeVar("R")

Steps = Generator[float, None, R]
"""What is done in steps: yields the local time until which to wait, unless an alarm rings before.

Before its first yield it sends nothing, nor needs anything that takes time. So a task may do this first
step on the thread of its event loop: tasks take their places in line in the order of their calls.
"""

AT_ONCE = -math.inf
"""Yielded when there is nothing to wait for."""


class Alarm:
    """Wakes one who waits: a thread.

    Attributes:
        blocks: Whether nothing else runs meanwhile on the thread of the one who waits.
    """

    blocks = True

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self._rung = False

    def ring(self) -> None:
        """Let whoever waits look again; also if it is only about to wait."""
        with self.condition:
            self._rung = True
            self.condition.notify_all()

    def wait_until(self, until: float) -> None:
        """Wait until a local time, or until it rings."""
        clock = local_clock()
        with self.condition:
            ahead = until - clock.now()
            if ahead > 0 and not self._rung:
                clock.wait(self.condition, None if ahead == math.inf else ahead)
            self._rung = False


def all_steps(steps: Steps[R], alarm: Alarm) -> R:
    """Do all the steps on this thread."""
    try:
        until = next(steps)
        while True:
            alarm.wait_until(until)
            until = next(steps)
    except StopIteration as done:
        result: R = done.value
        return result
    finally:
        steps.close()


def next_wait(previous: float, poll: tuple[float, float]) -> float:
    """Return the seconds to wait before the next poll: decorrelated jitter.

    After M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The cap goes
    inside: clipped afterwards, waits would pile up at it.
    """
    base, cap = poll
    return random.uniform(base, min(cap, 3 * max(base, previous)))  # noqa: S311 - not a secret


class LocalQueue(Generic[W, H]):
    """Who of this process waits for one key, and the one that holds it.

    Attributes:
        watchers: Alarms of those who wait for this key and others together, first come first served.
        in_the_way: The claim of another process that somebody in line found last; None if nobody in line
            has found one.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        # lists, for there is a queue for each lock that is held, and an empty deque takes 0.7 KB
        self.turns: list[Turn[W, H]] = []
        self.watchers: list[Alarm] = []
        self.holder: H | None = None
        self.in_the_way: Claim | None = None
        self._hand_overs = 0
        self._rests_until = -math.inf

    @property
    def idle(self) -> bool:
        """Whether nobody of this process holds the key or waits for it alone."""
        return self.holder is None and not self.turns

    def took(self, holder: H) -> None:
        """Take note that somebody of this process holds the key now."""
        with self.lock:
            self.note(holder)

    def note(self, holder: H) -> None:
        """Take note of a holder. The lock is held."""
        if not self.known_taken:
            self._wake_all()
        self.holder = holder

    @property
    def known_taken(self) -> bool:
        """Whether those in line know that the lock is held: by this process, or as the store said."""
        return self.holder is not None or self.in_the_way is not None

    def found(self, claim: Claim) -> None:
        """Take note of a claim that somebody in line found."""
        with self.lock:
            if not self.known_taken:
                self._wake_all()
            self.in_the_way = claim

    def _wake_all(self) -> None:
        """Let all in line report what they wait for, now that it is known. The lock is held."""
        for turn in self.turns:
            turn.alarm.ring()

    def left(self, holder: H) -> None:
        """Take note that it does not any more; the first in line looks for itself at once."""
        with self.lock:
            for turn in self.turns:
                # an exception came before the hand-over began
                if turn.promised and turn.promised_by is holder:
                    turn.promised = False
                    turn.wake()
            if self.is_gone(holder):
                if self.turns:
                    self.turns[0].looks_at = -math.inf
                    self.turns[0].wake()
                if self.watchers:
                    self.watchers[0].ring()

    def is_gone(self, holder: H) -> bool:
        """Forget a holder; return whether the key is nobody's here now. The lock is held."""
        if self.holder is not holder:
            return False
        self.holder = None
        return True

    def next_in_line(self, holder: H, poll: tuple[float, float]) -> Turn[W, H] | None:
        """Return whom to hand the lock to: None if nobody waits, or others are due a chance.

        The turn that is returned stays in the queue until `Turn.grant` or `Turn.pass_over`.
        """
        with self.lock:
            turn = next((turn for turn in self.turns if not turn.promised), None)
            if turn is None or self._hand_overs >= MOST_HAND_OVERS:
                if turn is not None:
                    self._rests_until = local_clock().now() + next_wait(0.0, poll)
                self._hand_overs = 0
                return None
            self._hand_overs += 1
            turn.promised, turn.promised_by = True, holder
            return turn

    def leads(self, turn: Turn[W, H]) -> bool:
        """Say whether a turn is the one to look at the store. The lock is held."""
        return bool(self.turns) and self.turns[0] is turn and not turn.promised

    def ahead_of(self, turn: Turn[W, H]) -> list[W]:
        """Return what those want who stand in line before a turn."""
        with self.lock:
            if turn not in self.turns:
                return []
            return [other.wants for other in self.turns[: self.turns.index(turn)]]

    def looks_at(self, turn: Turn[W, H]) -> float:
        """Return the local time from which a turn should look. The lock is held."""
        return max(self._rests_until, turn.looks_at) if self.leads(turn) else math.inf

    def remove(self, turn: Turn[W, H]) -> None:
        """Take a turn out of the line; if it was the first, the next one leads. The lock is held."""
        was_first = self.turns[0] is turn
        self.turns.remove(turn)
        if not self.turns:
            # who comes now finds out for itself, and rests for nobody's sake
            self.in_the_way, self._rests_until = None, -math.inf
        elif was_first:
            # It starts a wait of its own, unless nobody knows whether there is anything to wait for: the
            # one before it may have left by an error, or have taken one of several permits.
            self.turns[0].looks_at = math.inf if self.known_taken else -math.inf
            self.turns[0].wake()


class Turn(Generic[W, H]):
    """A place in the queue, as a context manager."""

    def __init__(
        self,
        queue: LocalQueue[W, H],
        wants: W,
        give_back: Callable[[H], None],
        *,
        looks: bool,
        alarm: Alarm,
    ) -> None:
        """Make a turn, which is not in line yet.

        Args:
            queue: Where to wait.
            wants: What is asked for.
            give_back: Called with a lock that was handed over to one who does not wait any more.
            looks: Whether to look at once if nobody is before it, though the queue knows a holder.
            alarm: Wakes the one who waits.
        """
        self.queue = queue
        self.wants = wants
        self.alarm = alarm
        self.promised = False
        self.promised_by: H | None = None
        self.looks_at = math.inf
        self._asks_at = math.inf
        self._waited = 0.0
        self._looks = looks
        self._granted: H | None = None
        self._give_back = give_back
        self._promise_ended = threading.Condition(queue.lock)

    def __enter__(self) -> Turn[W, H]:
        with self.queue.lock:
            if not self.queue.turns and (self._looks or self.queue.holder is None):
                self.looks_at = -math.inf
            self._asks_at = local_clock().now() + LONGEST_SILENCE
            self.queue.turns.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        unclaimed = None
        try:
            unclaimed = self._settle()
        finally:
            with self.queue.lock:
                if self in self.queue.turns:
                    self.queue.remove(self)
        if unclaimed is not None:
            self._give_back(unclaimed)

    def _settle(self) -> H | None:
        """Wait for a hand-over that is under way, and return the lock if it was given to us."""
        with self.queue.lock:
            while self.promised:
                self._promise_ended.wait()
            granted, self._granted = self._granted, None
            return granted

    def wake(self) -> None:
        """Let the one who waits look again. The queue's lock is held."""
        self._promise_ended.notify_all()
        self.alarm.ring()

    def grant(self, hold: H) -> bool:
        """Give the lock to the one who waits; return whether it is still there."""
        with self.queue.lock:
            self.promised = False
            self.queue.note(hold)
            if self not in self.queue.turns:
                return False
            self._granted = hold
            self.queue.remove(self)
            self.wake()
            return True

    def pass_over(self) -> None:
        """Take back the promise: the hand-over did not come about."""
        with self.queue.lock:
            self.promised = False
            self.wake()

    def wait(
        self,
        look: Callable[[], Steps[H | None]],
        poll: tuple[float, float],
        *,
        deadline: float,
        frees_at: Callable[[], float],
        rests: Callable[[], None],
    ) -> Steps[H | None]:
        """Wait for the lock, in steps.

        Args:
            look: Tries to take it; called when it is this turn's to try.
            poll: Shortest and longest wait between two tries, in seconds.
            deadline: Local time at which to give up.
            frees_at: Returns the local time at which the present holder's claim ends.
            rests: Called before each wait.

        Returns:
            The lock, or None if the deadline came first.
        """
        clock = local_clock()
        while True:
            hold = yield from self._granted_or_seen(look, deadline)
            if hold is not None:
                return hold
            if clock.now() >= deadline:
                return self._settle()
            rests()
            until = self._rests_until(poll, deadline, frees_at)
            if until > clock.now():
                yield until

    def _granted_or_seen(
        self, look: Callable[[], Steps[H | None]], deadline: float
    ) -> Steps[H | None]:
        with self.queue.lock:
            looks_at = min(self.queue.looks_at(self), self._in_silence(deadline))
            if self.queue.leads(self):
                # a last look, for what a local holder cannot tell: that it was broken
                looks_at = min(looks_at, deadline)
            if self._granted is not None or local_clock().now() < looks_at:
                granted, self._granted = self._granted, None
                return granted
            self.looks_at = self._asks_at = math.inf
        return (yield from look())

    def _in_silence(self, deadline: float) -> float:
        """Return when to look though it is not this turn's to look. The lock is held.

        The first in line may have no answer, for its request hangs, or DynamoDB cannot be reached. The
        others would then learn neither that the lock is free nor, at their deadlines, that it is held.
        """
        if self.queue.known_taken or self.promised:
            return math.inf
        return min(self._asks_at, deadline)

    def _rests_until(
        self, poll: tuple[float, float], deadline: float, frees_at: Callable[[], float]
    ) -> float:
        """Return the local time until which there is nothing to do, as far as is known."""
        now = local_clock().now()
        end = frees_soon(now, frees_at(), poll)
        with self.queue.lock:
            if self._granted is not None:
                return now
            # A plan stands until it is due. A wait may return an instant early: who then planned anew,
            # from that instant, would be early again, and with a clock that always is would never poll.
            if self.looks_at == math.inf:
                self._waited = next_wait(self._waited, poll)
                # a holder in this process hands over: looking only serves to see a forced release
                wait = self._waited if self.queue.holder is None else poll[1]
                self.looks_at = min(now + wait, end)
            return min(self.queue.looks_at(self), self._in_silence(deadline), deadline)


def frees_soon(now: float, frees_at: float, poll: tuple[float, float]) -> float:
    """Return when to look at a claim that ends at ``frees_at``.

    Many wait for the same end: not all at that instant, nor again and again.
    """
    return max(now + _SHORTEST_WAIT, frees_at + random.uniform(0, poll[0]))  # noqa: S311 - jitter
