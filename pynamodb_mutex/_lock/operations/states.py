"""The states of a claim of ours, from its acquisition to its end, and the changes between them: one table.

`held` keeps the state of each claim and computes from it, with the clock, what users see. The operations that send requests
report the outcome of a request by a `Change`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pynamodb_mutex._lock.protocol.claim import Claim
    from pynamodb_mutex.exceptions import Loss


State = Literal["confirmed", "held", "ending", "in doubt", "lost", "lost in doubt", "released"]
"""The state of a claim of ours.

- ``confirmed``: DynamoDB has confirmed it, and no caller has it yet: nobody believes in it
- ``held``
- ``ending``: a write that releases it is under way
- ``in doubt``: a write whose answer was lost may have released it
- ``lost``
- ``lost in doubt``: lost, while a write that may still release it had no answer
- ``released``: released, handed over or detached

The end of the lease is not a state, because nothing happens at that instant: the clock is compared with it at
each query. Once an operation notices it, the state becomes ``lost``.
"""

Change = Literal[
    "begin", "release", "unlocking", "unlocked", "not unlocked", "unanswered", "written", "loss", "won back",
]  # fmt: skip
"""What changes the state of a claim.

- ``begin``: the caller that asked for it gets it
- ``release``: its holder releases it, hands it over or detaches it
- ``unlocking``: a write that releases it is sent
- ``unlocked``, ``not unlocked``, ``unanswered``: that write was applied, was not, or may have been
- ``written``: a later guarded write was applied: so the unanswered write was not, and can never be
- ``loss``: its lease ended, or a row shows that it is not ours any more
- ``won back``: a renewal was applied after its lease had ended, and nobody had taken it
"""

TRANSITIONS: dict[tuple[State, Change], State] = {
    ("confirmed", "begin"): "held",
    ("confirmed", "release"): "released",
    # No caller has this claim yet, so the loss is not reported (see `HeldClaim._note_loss`). Only a row with another claim
    # causes it here, never the end of the lease (see `EXPIRING`).
    ("confirmed", "loss"): "lost",
    ("held", "release"): "released",
    ("in doubt", "release"): "released",
    # Suppose a signal handler, or another thread, releases while a write that releases is under way, and a condition of the
    # caller's refuses that write: it ends with "not unlocked", and its thread would hold a released lock.
    ("ending", "release"): "released",
    # Suppose one claim of a group is lost, and so all are "lost": the others may still be in their rows, and nobody else can
    # take their locks until they are released there or expire.
    ("lost", "release"): "released",
    ("lost in doubt", "release"): "released",
    # The belief ends when the write is sent, not when it is answered. Suppose the write is applied, another process
    # acquires the lock, and only then our answer arrives: until then two would believe.
    ("held", "unlocking"): "ending",
    ("in doubt", "unlocking"): "ending",
    ("ending", "unlocked"): "released",
    # The answer to a later request shows that the row does not carry our claim any more.
    ("in doubt", "unlocked"): "released",
    # Suppose another claim of the group was lost while the write was under way, and then the write turns out to be applied.
    ("lost in doubt", "unlocked"): "released",
    ("lost in doubt", "not unlocked"): "lost",
    ("ending", "not unlocked"): "held",
    ("ending", "unanswered"): "in doubt",
    # Each guarded write requires the number of the write before it. Suppose the unanswered write says "known 4, next 5", and
    # a later one is applied as "known 4, next 6": from then on no copy of the unanswered write can be applied.
    ("in doubt", "written"): "held",
    ("held", "loss"): "lost",
    ("ending", "loss"): "lost in doubt",
    ("in doubt", "loss"): "lost in doubt",
    ("lost in doubt", "loss"): "lost in doubt",
    # A row may show a better cause than the clock did: EXPIRED first, then TAKEN.
    ("lost", "loss"): "lost",
    # There is no such change from "lost in doubt". Schedule: a renewal is applied, this thread believes again, the write that
    # releases arrives and is applied, and another process acquires the lock.
    ("lost", "won back"): "held",
}
"""The next state, by state and change. A pair that is missing changes nothing, such as a loss after the release."""

STANDING = frozenset({"confirmed", "held", "ending", "in doubt"})
"""The states in which our claim may be in its row, as far as is known."""

EXPIRING = frozenset({"held", "in doubt"})
"""The states in which the end of the lease is a loss.

Without ``confirmed``: the answer to an acquiring write may be so late that the lease has ended. Before the caller gets the
lock, a renewal finds out whether it is still ours; until then nobody has lost anything. Without ``ending``: the write that is
under way may have released the lock before the end, and its outcome shows whether anything was lost.
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
