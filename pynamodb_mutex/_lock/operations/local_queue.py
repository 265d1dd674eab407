"""The local queue: the waiters of this process for one key, and its holder in this process.

Threads and tasks that wait for the same key queue up here, first come first served, and only the first of them polls.
A release hands the lock over to the next in line, in one request instead of three. After a number of hand-overs in
a row, and some time, the lock is released instead, so that other processes get a chance.

Thousands may wait. So no loop goes over all of them when one joins, wakes or leaves.

The queue sends nothing and does not wait: `acquire` waits on a `Turn`, `release` hands over. Fair locks wait in a line
in the row instead, which knows the order of all processes: see `pynamodb_mutex._fair.acquire`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb_mutex._lock.protocol.schedule import (
    FEWEST_HAND_OVERS,
    LONGEST_SILENCE,
    SHORTEST_RUN,
    next_wait,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb_mutex._lock.operations.effects import Wakeup
    from pynamodb_mutex._lock.protocol.claim import Claim
    from pynamodb_mutex._lock.protocol.schedule import Uniform

H = TypeVar("H")
"""Type of a held claim."""

C = TypeVar("C", bound=Any)
"""Type of a contender."""


class LocalQueue(Generic[H, C]):
    """Local waiters for one key, and its local holder.

    Attributes:
        turns: Places in line, first come first served.
        promises: The turns to which a holder is handing the lock over, each with the holder's claim.
        watchers: Wake-ups of waiters that are not in line but want to be woken at a release, first come first served:
            waiters for all of several keys, and fair waiters.
        holder: The claim by which this process holds the key; None if it does not.
        in_the_way: The claim of another process that a waiter in line has seen last; None if none has been seen since
            the line was empty.
        doubts_at: Local time from which ``in_the_way`` is out of date, because a poll since then has had no answer.
        rests_until: Local time before which nobody in line polls, so that other processes get a chance.
    """

    __slots__ = (
        "_counts",
        "_hand_overs",
        "_place",
        "_queues",
        "_runs_until",
        "doubts_at",
        "holder",
        "in_the_way",
        "promises",
        "rests_until",
        "turns",
        "watchers",
    )

    def __init__(self, queues: dict[Any, Any], place: object) -> None:
        """Make a queue; ``queues`` keeps it at ``place`` only while somebody waits in it or holds the key."""
        self._queues = queues
        self._place = place
        # Lists, because there is a queue for each lock that is held, and an empty deque takes 0.7 KB.
        self.turns: list[Turn[H, C]] = []
        self.promises: dict[Turn[H, C], H] = {}
        # number of turns in line, by the number of the caller and by that of its thread: the two never coincide
        self._counts: dict[int, int] = {}
        self.watchers: list[Wakeup] = []
        self.holder: H | None = None
        self.in_the_way: Claim | None = None
        self.doubts_at = math.inf
        self._hand_overs = 0
        self._runs_until = self.rests_until = -math.inf

    def _check_idle(self) -> None:
        """Remove the queue from the mapping if nobody of this process holds the key or waits for it."""
        if self.holder is None and not self.turns and not self.watchers:
            self._queues.pop(self._place, None)

    @property
    def known_taken(self) -> bool:
        """Whether this process holds the lock, or an answer has shown that another process does."""
        return self.holder is not None or self.in_the_way is not None

    def acquired_by(self, claim: H) -> None:
        """Note the claim by which this process holds the key now."""
        if not self.known_taken:
            self._wake_all()
        self.holder = claim
        self._queues[self._place] = self

    def note_in_the_way(self, claim: Claim, polls_by: float) -> None:
        """Note the claim of another process that a waiter in line has seen, and by when the waiter polls again."""
        if not self.known_taken:
            self._wake_all()
        self.in_the_way, self.doubts_at = claim, polls_by + LONGEST_SILENCE

    def _wake_all(self) -> None:
        """Wake the waiters in line that have not emitted ``contended``, now that the holder is known."""
        for turn in self.turns:
            if not turn.sleeps:
                turn.wakeup.ring()

    def may_be_stalled(self, turn: Turn[H, C]) -> Iterable[Turn[H, C]]:
        """Return the turns that may get the lock before this one, and that the wait of this turn may stall then."""
        counts, waiter = self._counts, turn.contender
        if counts[waiter.caller] > 1 or (waiter.blocks and counts[waiter.thread] > 1):
            return self.turns[: self.turns.index(turn)]
        # Not this turn: it would count as a wait for itself.
        return [each for each in self.promises if each is not turn]

    def released_by(self, claim: H) -> None:
        """Note that a claim holds the key no longer; wake the first in line, to poll at once, and the first watcher."""
        for turn, giver in list(self.promises.items()):
            # Suppose a release promised its lock to a turn, and was interrupted before the hand-over began: as long as the
            # promise stands, that turn neither polls nor leaves.
            if giver is claim:
                turn.end_promise()
        # After a hand-over the successor is the holder already: wake nobody for a lock that is not free.
        if self.forget(claim):
            if self.turns or self.watchers:
                self.wake()
            else:
                self._check_idle()

    def wake(self) -> None:
        """Wake the first in line, to poll at once, and the first watcher."""
        if self.turns:
            self.turns[0].polls_at = -math.inf
            self.turns[0].wakeup.ring()
        if self.watchers:
            self.watchers[0].ring()

    def forget(self, claim: H) -> bool:
        """Forget a claim; return whether it was the holder's, so that this process no longer holds the key."""
        if self.holder is not claim:
            return False
        self.holder = None
        return True

    def next_in_line(
        self, holder: H, poll: tuple[float, float], now: float, uniform: Uniform
    ) -> Turn[H, C] | None:
        """Return the turn to hand the lock over to; None if nobody waits, or it is time to let other processes have the lock.

        The turn is promised the lock until `Turn.grant`, which also takes it out of the line, or `Turn.end_promise`.

        Args:
            holder: The claim that is being released.
            poll: Shortest and longest wait between two polls, in seconds.
            now: Local time.
            uniform: Source of randomness.
        """
        for turn in self.turns:
            if turn in self.promises:
                continue  # another hand-over is under way: for several keys there are several holders
            if self._hand_overs == 0:
                self._runs_until = now + SHORTEST_RUN
            if self._hand_overs < FEWEST_HAND_OVERS or now < self._runs_until:
                self._hand_overs += 1
                self.promises[turn] = holder
                return turn
            # If the first in line polled at the instant of the release, a round trip before any other process can see it, it
            # would get the lock each time. So it waits for one poll interval.
            self.rests_until = now + next_wait(0.0, poll, uniform)
            break
        self._hand_overs = 0
        return None

    def remove(self, turn: Turn[H, C]) -> None:
        """Take a turn out of the line; if it was the first, the next one leads."""
        was_first = self.turns[0] is turn
        self.turns.remove(turn)
        self.promises.pop(turn, None)
        for who in (turn.contender.caller, turn.contender.thread):
            self._counts[who] -= 1
            if not self._counts[who]:
                del self._counts[who]
        if not self.turns:
            # The next waiter finds out for itself who holds the lock, and does not pause for other processes.
            self.in_the_way, self.rests_until = None, -math.inf
            self._check_idle()
        elif was_first:
            # If the lock is known to be held, the next turn starts with a wait. Otherwise it polls at once, because the lock
            # may be free: the turn before it may have left by an error, or have acquired another key.
            self.turns[0].polls_at = math.inf if self.known_taken else -math.inf
            self.turns[0].wakeup.ring()

    def watch(self, wakeup: Wakeup) -> None:
        """Add a wake-up that rings when this process releases the key without a hand-over; earlier wake-ups ring first."""
        self.watchers.append(wakeup)
        self._queues[self._place] = self

    def unwatch(self, wakeup: Wakeup) -> None:
        was_first = self.watchers[0] is wakeup
        self.watchers.remove(wakeup)
        if was_first and self.watchers and self.holder is None:
            # Suppose a release woke the watcher that leaves, and it then gave up: no second release would wake the next
            # watcher.
            self.watchers[0].ring()
        self._check_idle()


class Turn(Generic[H, C]):
    """A place in line.

    Attributes:
        contender: The contender that waits.
        wakeup: Wake-up that ends its waits.
        given_by: The value of `ProcessState.runner` when the hand-over to this turn began.
        granted: The new claim, once the lock was handed over; None before that.
        settled: A claim that shows that the waiter does not get the lock; None if there is none.
        polls_at: Local time of its next poll, if it is first in line by then; infinity if none is planned.
        asks_at: Local time at which it polls though it is not first in line, because the first has had no answer.
        sleeps: Whether the queue lets its waiter sleep when the holder becomes known: it has emitted ``contended`` already.
    """

    def __init__(self, queue: LocalQueue[H, C], contender: C, wakeup: Wakeup) -> None:
        self.queue = queue
        self.contender = contender
        self.wakeup = wakeup
        self.given_by = (0, False)
        self.granted: H | None = None
        self.settled: Claim | None = None
        self.polls_at = math.inf
        self.asks_at = math.inf
        self.sleeps = False
        self._waited = 0.0

    @property
    def promised_by(self) -> H | None:
        """The claim of the holder that is handing the lock over to this turn; None if none is."""
        return self.queue.promises.get(self)

    def enter(self, now: float, *, polls_first: bool) -> None:
        """Join the end of the line.

        Args:
            now: Local time.
            polls_first: Whether to poll at once, if nobody is ahead, though a local holder is known.
        """
        queue = self.queue
        if not queue.turns and (polls_first or queue.holder is None):
            self.polls_at = -math.inf
        self.asks_at = now + LONGEST_SILENCE
        for who in (self.contender.caller, self.contender.thread):
            queue._counts[who] = queue._counts.get(who, 0) + 1
        queue.turns.append(self)
        queue._queues[queue._place] = queue

    def leave(self) -> H | None:
        """Leave the line, if this turn is still there; return the new claim if the lock was handed over."""
        # also after a grant: a signal may have interrupted `grant` before it took the turn out of the line
        if self in self.queue.turns:
            self.queue.remove(self)
        return self.granted

    def grant(self, claim: H) -> None:
        """Give the waiter, which is still in line, the claim that a hand-over has made."""
        self.queue.acquired_by(claim)
        self.granted = claim
        self.queue.remove(self)
        self.wakeup.ring()

    def settle(self, claim: Claim) -> None:
        """End the wait with a claim that shows that this waiter does not get the lock."""
        self.settled = claim
        self.wakeup.ring()

    def end_promise(self) -> None:
        """Withdraw the promise after a hand-over that failed, and wake the waiter."""
        self.queue.promises.pop(self, None)
        self.wakeup.ring()

    def is_due(self, now: float, deadline: float) -> bool:
        """Return whether to poll now. If so, clear the plan; `waits_until` makes the next one."""
        if now < self._due(deadline):
            return False
        self.polls_at = self.asks_at = math.inf
        return True

    def _due(self, deadline: float) -> float:
        """Return the local time of the next poll, as far as it is planned.

        `is_due` and `waits_until` both ask here. If a wait ended before the time at which the poll is due, the waiter
        would wake, find nothing to do, and wait for the same past instant, again and again.
        """
        queue = self.queue
        if not queue.turns or queue.turns[0] is not self or self.promised_by is not None:
            return self._asks_in_silence(deadline)
        due = max(queue.rests_until, self.polls_at)
        if due == -math.inf:
            return due
        # Unless the lock is promised to it, the first in line polls, and once more at its deadline: an operator may have broken
        # the claim of a local holder by force, and this process may not know that yet.
        return min(due, self._asks_in_silence(deadline), deadline)

    def _asks_in_silence(self, deadline: float) -> float:
        """Return when to poll although this turn is not first in line; infinity if the lock is known to be held.

        The first in line may have no answer, because its request hangs or DynamoDB cannot be reached. The others would
        then learn neither that the lock is free nor, at their deadlines, that it is held.
        """
        queue = self.queue
        if queue.holder is not None or self.promised_by is not None:
            return math.inf
        if queue.in_the_way is not None:
            # Suppose the first in line, without a deadline, has seen a claim, and since then DynamoDB cannot be reached. A
            # waiter that comes an hour later would report that another holds the lock, by a claim that ended long ago.
            return deadline if deadline >= queue.doubts_at else math.inf
        # Not during a rest. Suppose the lock was handed over so often that nobody has polled, and the next in line
        # has waited for longer than LONGEST_SILENCE: it would poll at the instant of the release, before any other
        # process can.
        return min(max(self.asks_at, queue.rests_until), deadline)

    def waits_until(
        self,
        now: float,
        poll: tuple[float, float],
        deadline: float,
        end: float,
        uniform: Uniform,
        *,
        longest: float,
    ) -> float:
        """Return the local time until which there is nothing to do, as far as is known; plan a poll if none is planned.

        Args:
            now: Local time.
            poll: Shortest and longest wait between two polls, in seconds.
            deadline: Local time at which to give up.
            end: Local time of a poll for the end of the present holder's claim.
            uniform: Source of randomness.
            longest: The wait while this process holds the lock, in seconds.
        """
        queue = self.queue
        # A plan stays until it is due. A wake-up, or the clock, may end a wait an instant before its time: if the waiter
        # planned anew each time, it would put off its poll again and again.
        if self.polls_at == math.inf:
            self._waited = next_wait(self._waited, poll, uniform)
            # A holder in this process hands the lock over: a poll can only show that force broke its claim. The holder's
            # renewals notice that, too.
            wait = self._waited if queue.holder is None else longest
            self.polls_at = min(now + wait, end)
        return min(self._due(deadline), deadline)
