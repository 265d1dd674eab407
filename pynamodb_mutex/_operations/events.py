"""What happens to locks, as plain records. The runner delivers them, by signals and in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
        events: tuple[LockEvent, ...]
        delivering: bool

        @property
        def contender(self) -> Contender: ...
        @property
        def fencing_token(self) -> int | None: ...
        @property
        def log_fields(self) -> dict[str, Any]: ...
        def explain(self, loss: Loss) -> str: ...


class LockEvent:
    """Something that happened to a lock: reported by the signal of that name, and in the log.

    Attributes:
        name: Of the signal; see `pynamodb_mutex.signals`.
        contender: Who asks for the lock, or holds it.
        claim: The acquisition; None where there is none.
        fields: What the signal carries besides key, owner and tokens.
    """

    __slots__ = ("claim", "contender", "fields", "name")

    def __init__(
        self, name: str, contender: Contender, claim: HeldClaim | None, fields: dict[str, Any]
    ) -> None:
        self.name = name
        self.contender = contender
        self.claim = claim
        self.fields = fields


class Log:
    """A record for the log and nothing else.

    Attributes:
        level: As `logging` names it.
        message: With its ``%s``.
        args: For them.
        fields: What the record says of the lock.
    """

    __slots__ = ("args", "fields", "level", "message")

    def __init__(
        self,
        level: str,
        message: str,
        args: tuple[object, ...],
        fields: dict[str, Any] | None = None,
    ) -> None:
        self.level = level
        self.message = message
        self.args = args
        self.fields = fields


class CallOnLost:
    """A caller's ``on_lost`` is to be called, on a thread of its own.

    Attributes:
        claim: The acquisition that was lost.
        call: What to call.
    """

    __slots__ = ("call", "claim")

    def __init__(self, claim: HeldClaim, call: Callable[[], object]) -> None:
        self.claim = claim
        self.call = call


Event = LockEvent | Log | CallOnLost


def contended(contender: Contender, holder: Claim | None) -> LockEvent:
    """Return the event of a lock that is asked for, and is held.

    Args:
        contender: Who asks for it.
        holder: The claim that was seen, if any was.
    """
    fields = {
        "holder": None if holder is None else holder.owner,
        "holder_token": None if holder is None else holder.token,
        "holder_fencing_token": None if holder is None else holder.version,
        "expires_at": None if holder is None else holder.expires_at,
    }
    return LockEvent("contended", contender, None, fields)


def not_acquired(
    contender: Contender, waited: float, attempts: int, error: BaseException | None
) -> LockEvent:
    """Return the event of an acquisition that failed.

    Args:
        contender: Who asked for the lock.
        waited: Seconds.
        attempts: Requests that were sent for it.
        error: What it failed with; None if another holds the lock.
    """
    fields = {"waited": waited, "attempts": attempts, "error": error}
    return LockEvent("not_acquired", contender, None, fields)
