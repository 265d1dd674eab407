"""Lock events, log records and calls of the caller's functions, as plain values.

An operation collects them inside the monitor, where no user code may run. The runner delivers them after each step,
outside the monitor, as signals and log records: see `runtime.notifications`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from pynamodb.models import Model

    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.protocol.claim import Claim, OwnClaim
    from pynamodb_mutex.exceptions import Loss

    class Contender(Protocol):
        """The part of a contender, who asks for a lock, that events need."""

        owner: str
        key: str
        options: LockOptions

        @property
        def model(self) -> type[Model]: ...
        @property
        def log_fields(self) -> dict[str, Any]: ...

    class HeldClaim(Protocol):
        """The part of an acquisition that events need.

        Attributes:
            own: The claim.
            events: Events that are not delivered yet, in the order in which they happened.
            delivery: Whether a thread is delivering its events, or is about to.
        """

        own: OwnClaim
        events: tuple[LockEvent, ...]
        delivery: Delivery

        @property
        def contender(self) -> Contender: ...
        @property
        def fencing_token(self) -> int | None: ...
        @property
        def log_fields(self) -> dict[str, Any]: ...
        def explain(self, loss: Loss) -> str: ...


WARNED = frozenset({"mismatched", "unknown", "not_recorded"})
"""Outcomes of a call of `once` that are logged as warnings."""


Delivery = Literal["reserved", "under way", "none"]
"""Who delivers the events of an acquisition: one thread at a time, so that receivers see them in order.

- ``reserved``: the thread that acquires will deliver, and has not begun
- ``under way``: a thread is delivering
- ``none``: there are no events
"""


class LockEvent:
    """Something that happened to a lock, emitted as the signal of that name and as a log record.

    Attributes:
        name: Name of the signal; see `pynamodb_mutex.signals`.
        contender: The caller that asks for the lock, or holds it.
        claim: The acquisition; None if the lock was not acquired.
        fields: Fields of the signal in addition to key, owner and tokens.
    """

    def __init__(
        self, name: str, contender: Contender, claim: HeldClaim | None, fields: dict[str, Any]
    ) -> None:
        self.name = name
        self.contender = contender
        self.claim = claim
        self.fields = fields


class NoLock:
    """Stands for the contender in an event that is about no lock, but about the endpoint of a model."""

    key = owner = ""
    attributes = None

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        self.options: Any = self
        self.log_fields: dict[str, Any] = {}


class Log:
    """A log record without a signal.

    Attributes:
        level: ``"warning"``; or ``"exception"``: an error, with the traceback if the first argument is an exception.
        message: The text, with a placeholder for each argument.
        args: The arguments.
        fields: The record's extra fields about the lock; None if it is about none.
    """

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


class Call:
    """A call of a user's function, to be made on a thread of its own.

    Attributes:
        name: The option by which the user gave it: ``"on_lost"`` or ``"on_danger"``.
        call: The function to call, without arguments.
    """

    def __init__(self, name: str, claim: HeldClaim, call: Callable[[], object]) -> None:
        self.name = name
        self.claim = claim
        self.call = call


class Do:
    """A function that the runner calls as soon as it has left the monitor; it must neither raise nor take time."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call


Event = LockEvent | Log | Call | Do


def contended(contender: Contender, holder: Claim | None) -> LockEvent:
    """Return the event for a lock that another holds; ``holder`` is its claim, None if it was not seen."""
    fields = {
        "holder": None if holder is None else holder.owner,
        "holder_token": None if holder is None else holder.token,
        "holder_fencing_token": None if holder is None else holder.version,
        "expires_at": None if holder is None else holder.ends,
    }
    return LockEvent("contended", contender, None, fields)


def not_acquired(
    contender: Contender, waited: float, attempts: int, error: BaseException | None
) -> LockEvent:
    """Return the event for an acquisition that failed.

    Args:
        contender: The caller that asked for the lock.
        waited: Seconds since the acquisition began.
        attempts: Number of requests that were sent for it.
        error: The error that it failed with; None if another holds the lock.
    """
    fields = {"waited": waited, "attempts": attempts, "error": error}
    return LockEvent("not_acquired", contender, None, fields)
