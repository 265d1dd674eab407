"""Guarded writes: applied only under the claim, once, and in the order in which they were made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._store import Transient, persist

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._store import Answer


def guarded(hold: Hold, send: Callable[[dict[str, Any]], Answer | None], what: str) -> None:
    """Make one guarded write; another thread's under the same claim waits its turn.

    Args:
        hold: The acquisition.
        send: Sends the write with the values of the guard; returns None if it was applied, and the
            answer if the guard refused it.
        what: For messages.

    Raises:
        MutexLostError: If the claim is not ours any more; ``applied`` is None if an attempt whose
            answer was lost may have been applied before.
        PynamoDBException: If DynamoDB cannot be reached; the outcome is unknown.
    """
    hold.check(what)
    tenure = hold.tenure
    with hold.writing:
        number = tenure.next_write()
        may_be_applied = False

        def attempt() -> Answer | None:
            nonlocal may_be_applied
            try:
                return send(hold.mine() | {"known": str(tenure.writes), "next": str(number)})
            except Transient as failure:
                may_be_applied = may_be_applied or failure.maybe_applied
                raise

        while True:
            refused = persist(attempt, local_clock().now() + hold.remaining)
            if refused is None:
                break
            if not tenure.is_mine(refused.claim):
                hold.lose(tenure.loss(refused.claim), refused.claim)
                raise hold.lost_error(what, applied=None if may_be_applied else False)
            # the number that stands there is that of this write, applied by an earlier attempt, or
            # of one before it whose answer never came
            tenure.writes = refused.claim.writes
            if tenure.writes == number:
                break
        tenure.writes = number


def save_data(hold: Hold, data: Any) -> None:
    """Write the caller's payload into the row, or with None take it out, guarded."""
    store = hold.store
    serialized = store.rows.serialize_data(data)

    def send(values: dict[str, Any]) -> Answer | None:
        template = store.rows.clear_data if serialized is None else store.rows.save_data
        answer = store.write(template, hold.terms.row, values | {"data": serialized})
        return None if answer.applied else answer

    guarded(hold, send, "save_data")
    hold.item = {**hold.item, **store.rows.raw_data(serialized)}
