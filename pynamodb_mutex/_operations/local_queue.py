"""The queue of this process's waiters for one key, and the one that holds it.

Threads and tasks that want the same key queue up here, first come first served, and only the first of
them polls. A release hands the lock over to the next in line, in one request instead of three.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb_mutex._protocol.schedule import LONGEST_SILENCE, MOST_HAND_OVERS, next_wait

if TYPE_CHECKING:
    from pynamodb_mutex._operations.effects import Wakeup
    from pynamodb_mutex._protocol.claim import Claim
    from pynamodb_mutex._protocol.schedule import Uniform

H = TypeVar("H")
"""A held claim."""

C = TypeVar("C")
"""A contender."""


class LocalQueue(Generic[H, C]):
    """Local waiters for one key, and its local holder.

    Attributes:
        turns: Places in line, first come first served.
        watchers: Wake-ups of those who wait for this key and others together, first come first served.
        holder: Who holds the key, if it is somebody of this process.
        in_the_way: The claim of another process that somebody in line saw last; None if nobody in line
            has seen one.
        rests_until: Local time before which nobody in line polls, for others are due a chance.
    """

    __slots__ = (
        "_hand_overs",
        "_place",
        "_queues",
        "holder",
        "in_the_way",
        "rests_until",
        "turns",
        "watchers",
    )

    def __init__(self, queues: dict[Any, Any], place: object) -> None:
        """Make a queue.

        Args:
            queues: Where it is kept while somebody waits in it, or holds the key: who only asks leaves nothing.
            place: Under which it is kept there.
        """
        self._queues = queues
        self._place = place
        # lists, for there is a queue for each lock that is held, and an empty deque takes 0.7 KB
        self.turns: list[Turn[H, C]] = []
        self.watchers: list[Wakeup] = []
        self.holder: H | None = None
        self.in_the_way: Claim | None = None
        self._hand_overs = 0
        self.rests_until = -math.inf

    @property
    def is_idle(self) -> bool:
        """Whether nobody of this process holds the key or waits for it."""
        return self.holder is None and not self.turns and not self.watchers

    def _check_idle(self) -> None:
        """Be forgotten if it is idle."""
        if self.is_idle:
            self._queues.pop(self._place, None)

    @property
    def known_taken(self) -> bool:
        """Whether those in line know that the lock is held: by this process, or as an answer showed."""
        return self.holder is not None or self.in_the_way is not None

    def acquired_by(self, claim: H) -> None:
        """Note that somebody of this process holds the key now."""
        if not self.known_taken:
            self._wake_all()
        self.holder = claim
        self._queues[self._place] = self

    def saw(self, claim: Claim) -> None:
        """Note a claim of another process that somebody in line saw."""
        if not self.known_taken:
            self._wake_all()
        self.in_the_way = claim

    def _wake_all(self) -> None:
        """Let all in line report what they wait for, now that it is known."""
        for turn in self.turns:
            turn.wakeup.ring()

    def released_by(self, claim: H) -> None:
        """Note that a holder does not hold the key any more; the first in line polls at once."""
        for turn in self.turns:
            # an exception came before the hand-over began
            if turn.promised_by is claim:
                turn.end_promise()
        if self.forget(claim):
            if self.turns:
                self.turns[0].polls_at = -math.inf
                self.turns[0].wakeup.ring()
            if self.watchers:
                self.watchers[0].ring()
            self._check_idle()

    def forget(self, claim: H) -> bool:
        """Forget a holder; return whether the key is now held by nobody here."""
        if self.holder is not claim:
            return False
        self.holder = None
        return True

    def next_in_line(
        self, holder: H, poll: tuple[float, float], now: float, uniform: Uniform
    ) -> Turn[H, C] | None:
        """Return whom to hand the lock over to: None if nobody waits, or others are due a chance.

        The turn that is returned stays in line until `Turn.grant` or `Turn.end_promise`.
        """
        turn = next((turn for turn in self.turns if turn.promised_by is None), None)
        if turn is None or self._hand_overs >= MOST_HAND_OVERS:
            if turn is not None:
                # The first in line would poll at the instant of the release, a round trip before any other
                # process can see it, and get the lock each time. So it waits for one poll.
                self.rests_until = now + next_wait(0.0, poll, uniform)
            self._hand_overs = 0
            return None
        self._hand_overs += 1
        turn.promised_by = holder
        return turn

    def leads(self, turn: Turn[H, C]) -> bool:
        """Say whether a turn is the one that polls."""
        return bool(self.turns) and self.turns[0] is turn and turn.promised_by is None

    def ahead_of(self, turn: Turn[H, C]) -> list[C]:
        """Return those who stand in line before a turn."""
        if turn not in self.turns or self.turns[0] is turn:
            return []
        return [other.contender for other in self.turns[: self.turns.index(turn)]]

    def polls_at(self, turn: Turn[H, C]) -> float:
        """Return the local time from which a turn should poll."""
        return max(self.rests_until, turn.polls_at) if self.leads(turn) else math.inf

    def remove(self, turn: Turn[H, C]) -> None:
        """Take a turn out of the line; if it was the first, the next one leads."""
        was_first = self.turns[0] is turn
        self.turns.remove(turn)
        if not self.turns:
            # who comes now finds out for itself, and does not pause for anybody
            self.in_the_way, self.rests_until = None, -math.inf
            self._check_idle()
        elif was_first:
            # It starts a wait of its own, unless nobody knows whether there is anything to wait for: the
            # one before it may have left by an error, or have acquired one of several permits.
            self.turns[0].polls_at = math.inf if self.known_taken else -math.inf
            self.turns[0].wakeup.ring()

    def watch(self, wakeup: Wakeup) -> None:
        """Let a wake-up ring when this process releases the key and nobody in line is next."""
        self.watchers.append(wakeup)
        self._queues[self._place] = self

    def unwatch(self, wakeup: Wakeup) -> None:
        """Let it ring no more."""
        was_first = self.watchers[0] is wakeup
        self.watchers.remove(wakeup)
        if was_first and self.watchers and self.holder is None:
            # who leaves may have been woken, and has left the lock to the next
            self.watchers[0].ring()
        self._check_idle()


class Turn(Generic[H, C]):
    """A place in line.

    Attributes:
        contender: Who waits.
        wakeup: Ends its waits.
        promised_by: The holder that is just handing the lock over to it.
        granted: The lock, once it was handed over.
        polls_at: Local time at which it polls; infinity if that is not planned.
        asks_at: Local time at which it asks though it is not first, for the first one has had no answer.
    """

    __slots__ = (
        "_waited",
        "asks_at",
        "contender",
        "granted",
        "polls_at",
        "promised_by",
        "queue",
        "wakeup",
    )

    def __init__(self, queue: LocalQueue[H, C], contender: C, wakeup: Wakeup) -> None:
        self.queue = queue
        self.contender = contender
        self.wakeup = wakeup
        self.promised_by: H | None = None
        self.granted: H | None = None
        self.polls_at = math.inf
        self.asks_at = math.inf
        self._waited = 0.0

    def enter(self, now: float, *, polls_first: bool) -> None:
        """Stand in line.

        Args:
            now: Local time.
            polls_first: Whether to poll at once if nobody is before it, though a local holder is known.
        """
        queue = self.queue
        if not queue.turns and (polls_first or queue.holder is None):
            self.polls_at = -math.inf
        self.asks_at = now + LONGEST_SILENCE
        queue.turns.append(self)
        queue._queues[queue._place] = queue

    def leave(self) -> H | None:
        """Leave the line, if it still stands there; return the lock if it was handed over."""
        if self in self.queue.turns:
            self.queue.remove(self)
        granted, self.granted = self.granted, None
        return granted

    def grant(self, claim: H) -> bool:
        """Hand the lock over; return whether the waiter is still there."""
        self.promised_by = None
        self.queue.acquired_by(claim)
        self.wakeup.ring()
        if self not in self.queue.turns:
            return False
        self.granted = claim
        self.queue.remove(self)
        return True

    def end_promise(self) -> None:
        """Take back the promise of a hand-over that failed."""
        self.promised_by = None
        self.wakeup.ring()

    def is_due(self, now: float, deadline: float) -> bool:
        """Say whether to poll now. If so, the next poll is not planned yet."""
        if now < self._due(deadline):
            return False
        self.polls_at = self.asks_at = math.inf
        return True

    def _due(self, deadline: float) -> float:
        """Return the local time at which to poll, as far as it is planned.

        The one place for it. Were it later here than where the wait ends, a waiter would wake, find
        nothing to do, and wait for the same past instant again and again.
        """
        due = min(self.queue.polls_at(self), self._asks_in_silence(deadline))
        # the first in line makes a last poll, for what a local holder cannot know: that it was broken
        return min(due, deadline) if self.queue.leads(self) else due

    def _asks_in_silence(self, deadline: float) -> float:
        """Return when to poll though it is not this turn that leads.

        The first in line may have no answer, for its request hangs, or DynamoDB cannot be reached. The
        others would then learn neither that the lock is free nor, at their deadlines, that it is held.
        """
        if self.queue.known_taken or self.promised_by is not None:
            return math.inf
        return min(self.asks_at, deadline)

    def waits_until(
        self,
        now: float,
        poll: tuple[float, float],
        deadline: float,
        end: float,
        uniform: Uniform,
    ) -> float:
        """Return the local time until which there is nothing to do, as far as is known.

        Args:
            now: Local time.
            poll: Shortest and longest wait between two polls, in seconds.
            deadline: Local time at which to give up.
            end: When to poll for the end of the present holder's claim.
            uniform: Randomness.
        """
        queue = self.queue
        # A plan stays until it is due. A wait may return an instant early: who then planned anew,
        # from that instant, would be early again, and with a clock that always is would never poll.
        if self.polls_at == math.inf:
            self._waited = next_wait(self._waited, poll, uniform)
            # a holder in this process hands over: polling only serves to see a forced release
            wait = self._waited if queue.holder is None else poll[1]
            self.polls_at = min(now + wait, end)
        return min(self._due(deadline), deadline)
