"""Releasing a claim, or a group.

A release is conditional on the claim being ours, so it cannot end another holder's claim. `protocol.outcome` decides what a
refusal means: that an earlier attempt was applied, or that the lock had been lost. The next waiter of this process takes the
lock over in `hand_over`.

How a claim of ours ends, and what it is called:

==============  ===================================================================================================
release         its holder ends it, by requests that are repeated until it is known that it has ended
leave           the holder leaves one level of a reentrant acquisition; leaving the last one begins the release
forget          no caller has it: it counts for nothing from now on, and no request is sent
disown          forget it, and end it by its token, by one request: it may be in its row or not
take back       release it if a caller may count on it; else disown it
==============  ===================================================================================================
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

from pynamodb.constants import ALL_NEW, RETURN_VALUES
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.operations.retry import Attempts, retrying
from pynamodb_mutex._lock.protocol.outcome import is_mine, shows_release, was_lost_before_release
from pynamodb_mutex._lock.protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex.exceptions import Loss, MutexLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.store import Request, Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex._lock.protocol.claim import Claim


def release(
    held: Held, *, at_least: bool = True, data: str | None = None, by: float | None = None
) -> Operation[None]:
    """Release a claim, or hand the lock over to the next waiter of this process; or release a group.

    Args:
        held: What to release.
        at_least: Whether ``hold_at_least`` counts: not for claims that no caller has.
        data: Serialised payload to write with the release of a single claim; None to leave the stored one.
        by: Local time by which `release_all` gives up: then the acquisition ends however often it was entered, and is not
            handed over. None if the holder releases it.

    Raises:
        MutexLostError: If a claim had been lost. The others are released.
        MutexNotHeldError: If a claim is not held here.
        PynamoDBException: If DynamoDB refuses or cannot be reached. The claims then expire with their leases.
    """
    claims = held.unreleased
    if not claims:
        # another thread has released them since the caller checked, or a receiver of `acquired` has
        raise held.claims[0].not_held_error("release")
    lost = held.loss_before_release()
    endings: dict[HeldClaim, Ending] = {}
    runs_until = held.ends
    if by is not None:
        runs_until = min(runs_until, by)
        _make_last(held)
    for claim in claims:
        # Before `leave`, which replaces the state: that shows whether a write that unlocks is under way, or had no answer. Such
        # a write may have released the lock, and another process may have acquired it by now. The release below is then
        # refused at its first attempt, and that is no loss.
        ending = Ending(claim, runs_until, at_least=at_least, data=data)
        if leave(claim, "release"):
            endings[claim] = ending
    # A hand-over promises the lock to a waiter, and the waiter waits until the promise is kept or withdrawn. If anything
    # raises from here on, `_note_released` withdraws the promise, by `leave_queue`.
    try:
        is_ended = not endings
        if endings and lost is None:
            is_ended = yield from held.end(endings, hands_over=by is None)
        for ending in [] if is_ended else endings.values():
            try:
                yield from ending.send(ending.request)
            except MutexLostError as error:
                lost = lost or error
    except BaseException as error:
        failed: BaseException | None = error
        try:
            failed = yield from _after_interruption(error, held, endings)
        finally:
            _note_released(endings.values(), failed)
        raise
    _note_released(endings.values(), None)
    if lost is not None:
        raise lost


def _after_interruption(
    error: BaseException, held: Held, endings: dict[HeldClaim, Ending]
) -> Operation[BaseException | None]:
    """End claims if their release was interrupted, by Ctrl-C or a signal handler's time limit; return None if they have ended.

    Otherwise nobody would release the lock any more, and the key would be blocked until its lease ends. If the handler has
    forked, the child does nothing: the parent goes on with its release.

    Args:
        error: What the release failed with; returned if the claims may not have ended.
        held: What was to be released: a reader leaves its claim, and does not end it for others.
        endings: The endings of its claims.
    """
    is_to_end = endings and not isinstance(error, PynamoDBException)
    if is_to_end and not any(ending.claim.process.inherited for ending in endings.values()):
        with suppress(PynamoDBException):
            if not (yield from held.end(endings, hands_over=False)):
                for ending in endings.values():
                    yield from ending.send(ending.request)
            return None
    return error


def _make_last(held: Held) -> None:
    """Let the release that follows end an acquisition, however often it was entered."""
    # The holder, on another thread perhaps, does not know of the release. Its next save of the row must be refused: without a
    # guard it would undo what the next holder writes.
    held.whole.is_unaware |= not held.whole.open_blocks
    for claim in held.unreleased:
        claim.depth = 1


def leave(claim: HeldClaim, what: str) -> bool:
    """Leave one level of a reentrant acquisition; return whether it is to be released; raise if it was released before."""
    if claim.is_released:
        raise claim.not_held_error(what)
    # The depth may be 0 already: the user released one lock of a lost group by itself, and `release` raised the loss, and sent
    # nothing. Below 0, the release of the group would leave out that lock, and nobody could acquire it until its claim expires.
    claim.depth = max(0, claim.depth - 1)
    if claim.depth:
        return False
    # The belief ends before the releasing request is sent: as soon as DynamoDB applies it, before its answer arrives, another
    # process may hold the lock.
    claim.change("release")
    claim.whole.stop()
    return True


def _note_released(endings: Collection[Ending], error: BaseException | None) -> None:
    """Wake the waiters of this process for locks that were released, and emit events.

    If the release failed with an ``error``, the claims may still be in their rows.
    """
    for ending in endings:
        ending.claim.leave_queue()
    for ending in endings:
        claim = ending.claim
        if claim.belief.loss is not None:
            continue  # ``lost`` was emitted as its end
        if (
            ending.data
            and error is None
            and not (ending.successor and ending.successor.options.data)
        ):
            claim.item = claim.store.layout.with_data(claim.item, ending.data["data"])
        if ending.successor is not None:
            claim.emit_handed_over(ending.successor)
        elif error is not None or claim.process.hears("released"):
            claim.emit("released", held_for=claim.held_for, error=error)


class Ending:
    """Ends a claim, by a request that is retried until it is known that the claim has ended.

    Args:
        claim: The claim, not yet changed by `leave`.
        runs_until: Local time until which its lease runs: after that it need not be ended.
        at_least: Whether ``hold_at_least`` counts.
        data: Serialised payload to write with it; None to leave the stored one.

    Attributes:
        attempts: Attempts at ending it. A write that unlocks and whose outcome is unknown counts as the first.
        until: Local time until which failures are retried.
        reserved_until: Local time before which a reserved claim, which nobody holds, takes the place of this one.
        data: The payload by the name of its slot; empty if there is none.
        reserved_as: Token of the reserved claim, the same for all attempts; empty if there is none.
        successor: The claim of the next holder, if the lock was handed over.
    """

    def __init__(
        self, claim: HeldClaim, runs_until: float, *, at_least: bool, data: str | None
    ) -> None:
        self.claim = claim
        self.attempts = Attempts(maybe_applied=claim.may_be_unlocked)
        self.until = min(runs_until, claim.process.now + RELEASE_PATIENCE)
        self.successor: HeldClaim | None = None
        self.data = {} if data is None else {"data": data}
        self._deletes = claim.options.delete_on_release
        self.reserved_until, self.reserved_as = -math.inf, ""
        if at_least and claim.options.hold_at_least is not None:
            self.reserved_until = claim.since + claim.options.hold_at_least
            self.reserved_as = claim.process.new_token(claim.store)

    def request(self) -> Request:
        """Return the request that releases the claim or, before ``reserved_until``, puts a reserved claim in its place."""
        claim, now = self.claim, self.claim.process.now
        row, own, rest = claim.options.row, claim.own, self.reserved_until - now
        if rest > 0:
            return claim.store.end(row, own, {"token": self.reserved_as, **self.data}, now, rest)
        if self._deletes:
            return claim.store.delete(row, own)
        request = claim.store.end(row, own, self.data, now, 0.0)
        if claim.contender.on_freed is not None:
            request.kwargs[RETURN_VALUES] = ALL_NEW  # shows who stands in line
        return request

    def send(
        self,
        build: Callable[[], Request],
        is_done: Callable[[Answer], bool] | None = None,
    ) -> Operation[Answer]:
        """Send a request that ends the claim.

        Args:
            build: Makes the request.
            is_done: Returns whether an answer shows that the request was applied; None for the check of a release.

        Raises:
            MutexLostError: If the claim had ended before.
            PynamoDBException: If DynamoDB refuses or cannot be reached.
        """
        claim = self.claim
        is_done = is_done or self._is_released
        answer = yield from retrying(
            claim.process, build, self.until, about=claim, attempts=self.attempts
        )
        if answer.claim.waiting and is_mine(claim.own, answer.claim) and not is_done(answer):
            # The row was to be deleted, but waiters stand in its line, and it must be kept for them. This sends again only
            # once: DynamoDB does not refuse an update because of waiters while the claim is ours.
            self._deletes = False
            return (yield from self.send(build, is_done))
        if not is_done(answer) and was_lost_before_release(
            claim.own, answer.claim, maybe_applied=self.attempts.maybe_applied
        ):
            raise claim.lost_at_release(answer.claim)
        # After it was applied: a waiter that is called sooner is refused, and nobody would call it again.
        on_freed = claim.contender.on_freed
        if on_freed is not None and answer.claim.expires_at is None:
            on_freed(claim.process, answer.claim)
        return answer

    def _is_released(self, answer: Answer) -> bool:
        own, deletes = self.claim.own, self._deletes
        return answer.applied or shows_release(own, answer.claim, self.reserved_as, deletes=deletes)


def note_broken(
    process: ProcessState, store: Store, row_name: str, seen: Claim, row: Claim
) -> None:
    """Let the holder in this process, or the readers, know that their claim was broken by force.

    ``seen`` is the claim that was broken, and ``row`` the claim that has taken its place.
    """
    # The holder learns it now, not when its next renewal is refused. With ``row``, so that an error names this key, even if
    # other locks of a group are lost with it.
    for claim in process.holders(store, row_name):
        if claim.claim.token == seen.token:
            claim.lose(Loss.FORCED, row)
