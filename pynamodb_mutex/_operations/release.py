"""Release: of one claim, or of several; the hand-over to the next waiter of this process; and force."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pynamodb.constants import CLIENT_REQUEST_TOKEN, TRANSACT_DELETE, TRANSACT_UPDATE
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._operations.events import Log
from pynamodb_mutex._operations.held import Change, Held, HeldClaim, State
from pynamodb_mutex._operations.retry import Attempts, retrying
from pynamodb_mutex._protocol.claim import Loss, OwnClaim
from pynamodb_mutex._protocol.messages import one_line, shown
from pynamodb_mutex._protocol.outcome import (
    is_mine,
    shows_acquisition,
    was_lost_before_release,
)
from pynamodb_mutex._protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex.exceptions import MutexLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.store import Request, Store
    from pynamodb_mutex._operations.contender import Contender
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.local_queue import Turn
    from pynamodb_mutex._operations.shared import Shared


def release(claim: HeldClaim) -> Operation[None]:
    """Release one claim, or hand it over to the next waiter of this process.

    Raises:
        MutexLostError: If it had been lost.
        MutexNotHeldError: If it is not held here.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    claim.check("release")
    # Before `leave`, which ends the state: if a write that unlocks had no answer (IN_DOUBT), it may have
    # released the lock, and the row may be another's by now. The release below is then refused at its first
    # attempt, and that is no loss.
    ending = Ending(claim, claim.ends)
    if not leave(claim, "release"):
        return
    shared, options = claim.shared, claim.options
    try:
        turn = claim.contender.queue.next_in_line(claim, options.poll, shared.now, shared.uniform)
        if turn is None or not (yield from _hand_over(ending, turn)):
            yield from ending.send(ending.request)
    except BaseException as error:
        _note_released([ending], error)
        raise
    _note_released([ending], None)


def release_several(held: Held) -> Operation[None]:
    """Release claims that are held together, by one transaction as a rule.

    Raises:
        MutexLostError: If one had been lost; the others are released.
        MutexNotHeldError: If one is not held here.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    claims = held.unreleased
    lost: MutexLostError | None = None
    try:
        for claim in claims:
            claim.check("release")
    except MutexLostError as error:
        # with one all were lost, but claims of others may still stand in their rows
        lost = error
    runs_until = min(claim.ends for claim in claims)
    all_endings = [Ending(claim, runs_until) for claim in claims]
    endings = [ending for ending in all_endings if leave(ending.claim, "release")]
    try:
        if endings and (lost is not None or not (yield from _send_together(endings))):
            for ending in endings:
                try:
                    yield from ending.send(ending.request)
                except MutexLostError as error:
                    lost = lost or error
    except BaseException as error:
        _note_released(endings, error)
        raise
    _note_released(endings, None)
    if lost is not None:
        raise lost


def leave(claim: HeldClaim, what: str) -> bool:
    """Leave one level of a reentrant acquisition; return whether it is to be released.

    Raises:
        MutexNotHeldError: If it was released before.
    """
    if claim.is_released:
        raise claim.not_held_error(what)
    claim.depth -= 1
    if claim.depth:
        return False
    claim.change(Change.RELEASE)
    claim.together.stop()
    return True


def _note_released(endings: Sequence[Ending], error: BaseException | None) -> None:
    """Let others know of locks that were released: in this process, and by events.

    Args:
        endings: How they ended.
        error: Why DynamoDB may not know.
    """
    for ending in endings:
        ending.claim.leave_queue()
    for ending in endings:
        claim = ending.claim
        if claim.belief.loss is not None:
            continue  # that was its end
        if ending.successor is None:
            claim.emit("released", held_for=claim.held_for, error=error)
        else:
            claim.emit_handed_over(ending.successor)


class Ending:
    """The end of a claim: a request that is sent until it is known that the claim has ended.

    Attributes:
        claim: The claim.
        attempts: At ending it. A write of unknown outcome may have done so before.
        successor: Who holds the lock now, if it was handed over.
    """

    def __init__(self, claim: HeldClaim, runs_until: float) -> None:
        self.claim = claim
        self.attempts = Attempts(maybe_applied=claim.belief.state is State.IN_DOUBT)
        self.until = min(runs_until, claim.shared.now + RELEASE_PATIENCE)
        self.successor: HeldClaim | None = None
        self._keeps_row = False

    def request(self) -> Request:
        """Return the request that releases the claim."""
        claim = self.claim
        delete = claim.options.delete_on_release and not self._keeps_row
        return claim.store.release(claim.options.row, claim.own, claim.shared.now, delete=delete)

    def send(
        self,
        build: Callable[[], Request],
        is_done: Callable[[Answer], bool] = attrgetter("applied"),
    ) -> Operation[Answer]:
        """Send a request that ends the claim.

        Raises:
            MutexLostError: If the claim had ended before.
            PynamoDBException: If DynamoDB refuses or cannot be reached.
        """
        claim = self.claim
        answer = yield from retrying(
            claim.shared, build, self.until, about=claim, attempts=self.attempts
        )
        if answer.claim.waiting and is_mine(claim.own, answer.claim) and not is_done(answer):
            # It was to be deleted, and others wait in it. Ends: an update is not refused while the claim is ours.
            self._keeps_row = True
            return (yield from self.send(build, is_done))
        if not is_done(answer) and was_lost_before_release(
            claim.own, answer.claim, maybe_applied=self.attempts.maybe_applied
        ):
            raise claim.lost_at_release(answer.claim)
        return answer


def _send_together(endings: Sequence[Ending]) -> Operation[bool]:
    """Send the transaction that releases several claims; return whether it was applied."""
    shared, store = endings[0].claim.shared, endings[0].claim.store
    attempts = Attempts()

    def build() -> Request:
        items = []
        for ending in endings:
            delete = ending.claim.options.delete_on_release
            kind = TRANSACT_DELETE if delete else TRANSACT_UPDATE
            items.append({kind: ending.request().kwargs})
        return store.transact(items, {CLIENT_REQUEST_TOKEN: shared.new_request_token()})

    try:
        answer = yield from retrying(
            shared, build, endings[0].until, about=endings[0].claim, attempts=attempts
        )
    finally:
        for ending in endings:
            first = min(ending.attempts.first_sent, attempts.first_sent)
            ending.attempts.first_sent = first
    return answer.applied


def _hand_over(ending: Ending, turn: Turn[HeldClaim, Contender]) -> Operation[bool]:
    """Hand a claim over to the next in line, by one conditional write.

    Returns:
        Whether the claim has ended; not if DynamoDB refuses the values of the next holder.
    """
    claim = ending.claim
    shared, store = claim.shared, claim.store
    contender = turn.contender.at(claim.key)
    own = OwnClaim(shared.new_token(store), contender.options.lease)
    first_sent = shared.now

    def build() -> Request:
        end, lease = own.propose(shared.now, store.bounds, contender.options.lease)
        values: dict[str, Any] = contender.values(lease, end)
        values |= {**store.mine(claim.own), "token": own.token}
        template = store.requests.hand_over(data="data" in values)
        return store.update(template, claim.options.row, values)

    def is_done(answer: Answer) -> bool:
        # also when refused: an earlier attempt had been applied
        return shows_acquisition(own, answer.claim)

    granted = False
    try:
        answer = yield from ending.send(build, is_done)
        if is_done(answer):
            successor = HeldClaim(contender, own, answer.claim, answer.item, first_sent)
            held = Held((successor,), is_group=False)
            successor.change(Change.BEGIN)
            granted = turn.grant(successor)
            successor.note_holder()
            held.start(first_sent)
            if granted:
                ending.successor = successor
            else:
                # whom it was for has left by an exception
                yield from release(successor)
    except MutexLostError:
        raise
    except PynamoDBException as error:
        if ending.attempts.maybe_applied:
            raise
        text, values = "%s not handed over to %s: %s", (shown(claim.key), shown(contender.owner))
        shared.emit(Log("warning", text, (*values, one_line(error)), claim.log_fields))
        return False
    finally:
        if not granted:
            turn.end_promise()
    return True


# -- force -----------------------------------------------------------------------------------------


def force(shared: Shared, store: Store, row: RawItem, key: str) -> Operation[bool]:
    """Break the claim that is in a row now, and no later one; return whether there was one.

    Raises:
        InvalidRowError: If the row is not a lock's.
    """
    until = shared.now + RELEASE_PATIENCE
    seen = yield from retrying(shared, lambda: store.read(row, consistent=True), until)
    if seen.claim.fault is None and seen.claim.expires_at is None:
        return False
    return (yield from break_seen(shared, store, row, key, seen.item)) is None


def break_seen(
    shared: Shared, store: Store, row: RawItem, key: str, item: RawItem
) -> Operation[Answer | None]:
    """Break the claim in a row that was seen, however long ago, and no later one.

    A row whose lock attributes cannot be right is put right: it must be exactly as it was seen.

    Returns:
        None if this broke it. Else it had ended otherwise, and the answer shows what the row has now.

    Raises:
        InvalidRowError: If the row is not a lock's.
    """
    seen = store.layout.claim(item)
    broken_by = shared.forced_token(store)
    if not store.layout.was_a_locks(item):
        seen.check()

    def build() -> Request:
        if seen.fault is not None:
            return store.put_right(row, item, broken_by, shared.now)
        return store.force(row, seen, broken_by, shared.now)

    answer = yield from retrying(shared, build, shared.now + RELEASE_PATIENCE)
    if not answer.applied and answer.claim.token != broken_by:
        return answer
    claim: HeldClaim | None = shared.queue(store, key).holder
    if claim is not None and claim.own.token == seen.token:
        claim.lose(Loss.FORCED)
    return None
