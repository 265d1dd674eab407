"""Breaks a claim by force, when a person decides so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb_mutex._admin import requests
from pynamodb_mutex._lock.dynamodb.keys import lock_name
from pynamodb_mutex._lock.dynamodb.layout import room_attributes
from pynamodb_mutex._lock.operations.release import note_broken
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.claim import FORCED_MARK
from pynamodb_mutex._lock.protocol.schedule import RELEASE_PATIENCE

if TYPE_CHECKING:
    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request, Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.process_state import ProcessState


def force(process: ProcessState, store: Store, row: RawItem, key: str) -> Operation[bool]:
    """Break the claim that is in a row now, and no later one; return whether there was one.

    Raises:
        InvalidRowError: If the row is not a lock's.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    until = process.now + RELEASE_PATIENCE
    seen = yield from retrying(process, lambda: store.read(row, consistent=True), until)
    # a row with a fault shows no end either, but must be put right
    if seen.claim.fault is None and seen.claim.expires_at is None:
        return False
    return (yield from break_seen(process, store, row, key, seen.item)) is None


def break_seen(
    process: ProcessState, store: Store, row: RawItem, key: str, item: RawItem
) -> Operation[Answer | None]:
    """Break the claim that was seen in a row, however long ago, and no later one.

    If a row's lock attributes cannot be right, and are still exactly as they were seen, this makes the row a tombstone.

    Returns:
        None if this broke the claim. Otherwise it had ended before, and the answer shows the row as it is now.

    Raises:
        InvalidRowError: If the row is not a lock's.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    seen = store.layout.claim(item)
    broken_by = FORCED_MARK + process.new_token(store)
    # Raises for another application's row: force would add a TTL to it, and DynamoDB would delete it. Also for a row of `once`:
    # it may have a result, or a run of unknown outcome, which only a call of `forget` may remove.
    if room_attributes(store.model) or not store.layout.was_a_locks(item):
        seen.check()

    def build() -> Request:
        if seen.fault is not None:
            return requests.put_right(store, row, item, broken_by, process.now)
        return requests.force(store, row, seen, broken_by, process.now)

    answer = yield from retrying(process, build, process.now + RELEASE_PATIENCE)
    # if it was refused, but the row has the token of this call, an earlier attempt was applied, and its answer was lost
    if not answer.applied and answer.claim.token != broken_by:
        return answer
    note_broken(process, store, lock_name(store.model, key, row), seen, answer.claim)
    if seen.waiting:
        from pynamodb_mutex._fair.listener import call_first  # noqa: PLC0415 - seldom needed

        call_first(process, seen)
    return None
