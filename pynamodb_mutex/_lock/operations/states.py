"""The states of a claim of ours, from its acquisition to its end, and what changes them: one table.

`held` keeps the state of each claim and computes from it, with the clock, what users see. The operations that send requests
report what became of these by a `Change`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pynamodb_mutex._lock.protocol.claim import Claim
    from pynamodb_mutex.exceptions import Loss


class State(enum.Enum):
    """The state of a claim of ours.

    The end of the lease is not a state, because nothing happens at that instant: the clock is compared with it at
    each query. Once an operation notices it, the state becomes LOST.
    """

    CONFIRMED = "confirmed by DynamoDB, and not handed out yet: nobody believes in it"
    HELD = "held"
    ENDING = "a write that releases it is under way"
    IN_DOUBT = "a write whose answer was lost may have released it"
    LOST = "lost"
    LOST_IN_DOUBT = "lost, while a write that may still release it had no answer"
    RELEASED = "released, handed over or detached"

    __hash__ = object.__hash__  # Enum's is a call of Python's, at each change of each lock


class Change(enum.Enum):
    """What changes the state of a claim."""

    BEGIN = "it is handed out to whoever asked for it"
    RELEASE = "its holder releases it, hands it over or detaches it"
    UNLOCKING = "a write that releases it is sent"
    UNLOCKED = "that write was applied"
    NOT_UNLOCKED = "that write was not applied"
    UNANSWERED = "that write may have been applied"
    WRITTEN = "a later guarded write was applied, so that one was not, and comes too late now"
    LOSS = "its lease ended, or a row shows that it is not ours any more"
    WON_BACK = "a renewal was applied after its lease had ended, and nobody had taken it"

    __hash__ = object.__hash__


TRANSITIONS: dict[tuple[State, Change], State] = {
    (State.CONFIRMED, Change.BEGIN): State.HELD,
    (State.CONFIRMED, Change.RELEASE): State.RELEASED,
    # No caller has this claim yet, so the loss is not reported (see `HeldClaim._note_loss`). Only a row that is not
    # ours causes it here, never the end of the lease (see `EXPIRING`).
    (State.CONFIRMED, Change.LOSS): State.LOST,
    (State.HELD, Change.RELEASE): State.RELEASED,
    (State.IN_DOUBT, Change.RELEASE): State.RELEASED,
    # Suppose a signal handler, or another thread, releases while a write that releases is under way. Without this, if
    # the write is refused by a condition of the caller's, it ends with NOT_UNLOCKED, and its thread would hold what
    # was released.
    (State.ENDING, Change.RELEASE): State.RELEASED,
    # Suppose one of several claims is lost, and with it all are LOST: the claims of the others may still be in their
    # rows, and nobody else can take those locks until they are released there or expire.
    (State.LOST, Change.RELEASE): State.RELEASED,
    (State.LOST_IN_DOUBT, Change.RELEASE): State.RELEASED,
    # The belief ends when the write is sent, not when it is answered. Suppose the write is applied, another process
    # acquires the lock, and only then our answer arrives: until then two would believe.
    (State.HELD, Change.UNLOCKING): State.ENDING,
    (State.IN_DOUBT, Change.UNLOCKING): State.ENDING,
    (State.ENDING, Change.UNLOCKED): State.RELEASED,
    # A later request shows it: the row does not carry our claim any more.
    (State.IN_DOUBT, Change.UNLOCKED): State.RELEASED,
    # Suppose that of several claims another one was lost while the write was under way, and then the write turns out
    # to be applied.
    (State.LOST_IN_DOUBT, Change.UNLOCKED): State.RELEASED,
    (State.LOST_IN_DOUBT, Change.NOT_UNLOCKED): State.LOST,
    (State.ENDING, Change.NOT_UNLOCKED): State.HELD,
    (State.ENDING, Change.UNANSWERED): State.IN_DOUBT,
    # Each guarded write requires the number of the one before it. Suppose the unanswered write says "known 4,
    # next 5"; a later one is applied as "known 4, next 6". From then on no copy of the unanswered one can be applied.
    (State.IN_DOUBT, Change.WRITTEN): State.HELD,
    (State.HELD, Change.LOSS): State.LOST,
    (State.ENDING, Change.LOSS): State.LOST_IN_DOUBT,
    (State.IN_DOUBT, Change.LOSS): State.LOST_IN_DOUBT,
    (State.LOST_IN_DOUBT, Change.LOSS): State.LOST_IN_DOUBT,
    # A row may show a better cause than the clock did: EXPIRED first, then TAKEN.
    (State.LOST, Change.LOSS): State.LOST,
    # Not LOST_IN_DOUBT. Schedule: a renewal is applied, this thread believes again, the write that releases arrives
    # and is applied, and another process acquires the lock.
    (State.LOST, Change.WON_BACK): State.HELD,
}
"""The next state, by state and change. A pair that is missing changes nothing, such as a loss after the release."""

STANDING = frozenset({State.CONFIRMED, State.HELD, State.ENDING, State.IN_DOUBT})
"""The states in which our claim may be in its row, as far as is known."""

EXPIRING = frozenset({State.HELD, State.IN_DOUBT})
"""The states in which the end of the lease is a loss.

CONFIRMED is none of them. The answer to an acquiring write may be so late that the lease has ended. Before the lock is given
to the caller, a renewal finds out whether it is still ours; until then nobody has lost anything. Nor is ENDING: the write that
is under way may have released the lock before the end, and by its outcome it is known whether anything was lost.
"""


class Belief:
    """The state of a claim, with the cause of a loss. Immutable: replaced as a whole.

    Attributes:
        state: State of the claim.
        loss: Why the lock was lost, kept if it is released after that; None if it was not lost.
        taker: Claim that was seen in the row in place of ours; None if none was.
    """

    __slots__ = ("loss", "state", "taker")

    def __init__(self, state: State, loss: Loss | None = None, taker: Claim | None = None) -> None:
        self.state = state
        self.loss = loss
        self.taker = taker
