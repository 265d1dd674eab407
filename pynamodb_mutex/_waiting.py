"""Waiting: the schedule of polls, and the queue of this process's threads.

Threads that want the same key queue up here, first come first served, and only the first of them
polls. A release gives the lock to the next in line in one request instead of three.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._lazy import load_tenacity

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import tenacity

MOST_HAND_OVERS = 16
"""Hand-overs within the process in a row, before other processes get a chance."""

_SHORTEST_WAIT = 0.01

H = TypeVar("H")
W = TypeVar("W")


def next_wait(previous: float, poll: tuple[float, float]) -> float:
    """Return the seconds to wait before the next poll: decorrelated jitter.

    After M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The cap goes
    inside: clipped afterwards, waits would pile up at it.
    """
    base, cap = poll
    return random.uniform(base, min(cap, 3 * max(base, previous)))  # noqa: S311 - not a secret


class LocalQueue(Generic[W, H]):
    """The threads of this process that wait for one key, and the one that holds it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.turns: deque[Turn[W, H]] = deque()
        self.holder: H | None = None
        self._hand_overs = 0
        self._rests_until = -math.inf

    @property
    def idle(self) -> bool:
        """Whether no thread of this process holds the key or waits for it."""
        return self.holder is None and not self.turns

    def took(self, holder: H) -> None:
        """Take note that a thread of this process holds the key now."""
        with self.lock:
            self.holder = holder

    def left(self, holder: H) -> None:
        """Take note that it does not any more; the first in line looks for itself at once."""
        with self.lock:
            if self.holder is holder:
                self.holder = None
                if self.turns:
                    self.turns[0].promised = False
                    self.turns[0].looks_at = -math.inf
                    self.turns[0].wake()

    def next_in_line(self, poll: tuple[float, float]) -> Turn[W, H] | None:
        """Return whom to hand the lock to: None if nobody waits, or others are due a chance.

        The turn that is returned stays in the queue until `Turn.grant` or `Turn.pass_over`.
        """
        with self.lock:
            turn = self.turns[0] if self.turns else None
            if turn is None or self._hand_overs >= MOST_HAND_OVERS:
                if turn is not None:
                    self._rests_until = local_clock().now() + next_wait(0.0, poll)
                self._hand_overs = 0
                return None
            self._hand_overs += 1
            turn.promised = True
            return turn

    def leads(self, turn: Turn[W, H]) -> bool:
        """Say whether a turn is the one to look at the store. The lock is held."""
        return bool(self.turns) and self.turns[0] is turn and not turn.promised

    def looks_at(self, turn: Turn[W, H]) -> float:
        """Return the local time from which a turn should look. The lock is held."""
        return max(self._rests_until, turn.looks_at) if self.leads(turn) else math.inf

    def advance(self) -> None:
        """Tell who is first in line now, to start a wait of its own. The lock is held."""
        if self.turns:
            self.turns[0].looks_at = math.inf
            self.turns[0].wake()


class Turn(Generic[W, H]):
    """A thread's place in the queue, as a context manager."""

    def __init__(
        self, queue: LocalQueue[W, H], wants: W, give_back: Callable[[H], None], *, looked: bool
    ) -> None:
        self.queue = queue
        self.wants = wants
        self.promised = False
        self.looks_at = math.inf
        self._looked = looked
        self._granted: H | None = None
        self._give_back = give_back
        self._woken = threading.Condition(queue.lock)

    def __enter__(self) -> Turn[W, H]:
        with self.queue.lock:
            if self.queue.idle and not self._looked:
                self.looks_at = -math.inf
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
                    first = self.queue.turns[0] is self
                    self.queue.turns.remove(self)
                    if first:
                        self.queue.advance()
        if unclaimed is not None:
            self._give_back(unclaimed)

    def _settle(self) -> H | None:
        """Wait for a hand-over that is under way, and return the lock if it was given to us."""
        with self.queue.lock:
            while self.promised:
                self._woken.wait()
            granted, self._granted = self._granted, None
            return granted

    def wake(self) -> None:
        """Let the waiting thread look again. The queue's lock is held."""
        self._woken.notify_all()

    def grant(self, hold: H) -> bool:
        """Give the lock to the waiting thread; return whether it is still there."""
        with self.queue.lock:
            self.promised = False
            self.queue.holder = hold
            if self not in self.queue.turns:
                return False
            self._granted = hold
            self.queue.turns.remove(self)
            self.wake()
            self.queue.advance()
            return True

    def pass_over(self) -> None:
        """Take back the promise: the hand-over did not come about."""
        with self.queue.lock:
            self.promised = False
            self.wake()

    def wait(
        self,
        look: Callable[[], H | None],
        poll: tuple[float, float],
        *,
        deadline: float,
        frees_at: Callable[[], float],
    ) -> H | None:
        """Wait for the lock.

        Args:
            look: Tries to take it; called when it is this turn's to try.
            poll: Shortest and longest wait between two tries, in seconds.
            deadline: Local time at which to give up.
            frees_at: Returns the local time at which the present holder's claim ends.

        Returns:
            The lock, or None if the deadline came first.
        """
        load_tenacity()
        import tenacity  # noqa: PLC0415 - not needed as long as nobody waits

        clock = local_clock()
        waited = 0.0

        def step() -> H | None:
            with self.queue.lock:
                looks_at = self.queue.looks_at(self)
                if self.queue.leads(self):
                    # a last look, for what a local holder cannot tell: that it was broken
                    looks_at = min(looks_at, deadline)
                if self._granted is not None or clock.now() < looks_at:
                    granted, self._granted = self._granted, None
                    return granted
                self.looks_at = math.inf
            return look()

        def wait(_: tenacity.RetryCallState) -> float:
            nonlocal waited
            waited = next_wait(waited, poll)
            return waited

        def sleep(duration: float) -> None:
            now = clock.now()
            # many wait for the same end: not all at that instant, nor again and again
            end = max(now + _SHORTEST_WAIT, frees_at() + random.uniform(0, poll[0]))  # noqa: S311 - jitter
            with self.queue.lock:
                if self._granted is None:
                    if self.queue.holder is not None:
                        # it hands over: looking only serves to see a forced release
                        duration = poll[1]
                    if self.looks_at != -math.inf:  # else told to look at once meanwhile
                        self.looks_at = min(now + duration, end)
                    until = min(self.queue.looks_at(self), deadline)
                    if until > now:
                        clock.wait(self._woken, None if until == math.inf else until - now)

        return tenacity.Retrying(
            sleep=sleep,
            wait=wait,
            stop=lambda _: clock.now() >= deadline,
            retry=tenacity.retry_if_result(lambda hold: hold is None),
            retry_error_callback=lambda _: self._settle(),
        )(step)
