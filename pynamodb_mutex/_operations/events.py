"""What happens to locks, as plain records. The runner delivers them, by signals and in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from pynamodb.models import Model

    from pynamodb_mutex._protocol.claim import Claim, Loss, OwnClaim

    class Contender(Protocol):
        """Who asks for a lock, as far as it is reported."""

        owner: str

        @property
        def key(self) -> str: ...
        @property
        def model(self) -> type[Model]: ...
        @property
        def log_fields(self) -> dict[str, Any]: ...

    class HeldClaim(Protocol):
        """An acquisition, as far as it is reported.

        Attributes:
            events: Not delivered yet, in the order in which they happened.
            delivering: Whether a thread is at it.
        """

        own: OwnClaim
        events: tuple[ClaimEvent, ...]
        delivering: bool
        abandoned_by: str

        @property
        def contender(self) -> Contender: ...
        @property
        def fencing_token(self) -> int | None: ...
        @property
        def lease(self) -> float: ...
        @property
        def log_fields(self) -> dict[str, Any]: ...


class Log(NamedTuple):
    """A record for the log and nothing else.

    Attributes:
        level: As `logging` names it.
        message: With its ``%s``.
        args: For them.
        fields: What the record says of the lock.
    """

    level: str
    message: str
    args: tuple[object, ...]
    fields: dict[str, Any] | None = None


class Contended(NamedTuple):
    """A lock that is asked for is held; once for each acquisition.

    Attributes:
        contender: Who asks for it.
        holder: The claim that was seen, if any was.
    """

    contender: Contender
    holder: Claim | None


class NotAcquired(NamedTuple):
    """An acquisition failed.

    Attributes:
        contender: Who asked for the lock.
        waited: Seconds.
        attempts: Requests that were sent for it.
        error: What it failed with; None if another holds the lock.
    """

    contender: Contender
    waited: float
    attempts: int
    error: BaseException | None


class Acquired(NamedTuple):
    """A lock was acquired; nothing else is reported of the acquisition before this.

    Attributes:
        claim: The acquisition.
        expires_at: End of the claim, in server time.
        waited: Seconds.
        attempts: Requests that were sent for it.
    """

    claim: HeldClaim
    expires_at: float
    waited: float
    attempts: int


class Renewed(NamedTuple):
    """A claim was renewed.

    Attributes:
        claim: The acquisition.
        expires_at: Its new end, in server time.
        won_back: Whether it had been lost.
    """

    claim: HeldClaim
    expires_at: float
    won_back: bool = False


class RenewalFailed(NamedTuple):
    """A renewal failed; the lock is not lost by that.

    Attributes:
        claim: The acquisition.
        expires_at: The end of its claim, in server time.
        error: What it failed with.
    """

    claim: HeldClaim
    expires_at: float
    error: BaseException


class Lost(NamedTuple):
    """A lock was lost.

    Attributes:
        claim: The acquisition.
        loss: Why.
        why: The same in words.
        taker: Owner label of the holder that took it, if that is known.
        held_for: Seconds.
    """

    claim: HeldClaim
    loss: Loss
    why: str
    taker: str | None
    held_for: float


class Released(NamedTuple):
    """A lock was released.

    Attributes:
        claim: The acquisition.
        held_for: Seconds.
        error: Why DynamoDB may not know: then the lock expires with its lease.
    """

    claim: HeldClaim
    held_for: float
    error: BaseException | None = None


class HandedOver(NamedTuple):
    """A lock goes on with another holder.

    Attributes:
        claim: The acquisition.
        held_for: Seconds.
        successor: The next holder; None if that is whoever has the ticket.
    """

    claim: HeldClaim
    held_for: float
    successor: HeldClaim | None = None


class CallOnLost(NamedTuple):
    """A caller's ``on_lost`` is to be called, on a thread of its own.

    Attributes:
        claim: The acquisition that was lost.
        call: What to call.
    """

    claim: HeldClaim
    call: Callable[[], object]


ClaimEvent = Acquired | Renewed | RenewalFailed | Lost | Released | HandedOver
"""Events of one acquisition, which are delivered in the order in which they happened."""

Event = Log | Contended | NotAcquired | CallOnLost | ClaimEvent
