"""Giving a lock back, or on to the next thread of this process in line."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex import _events
from pynamodb_mutex._claim import Loss, Tenure, forced_token, new_token
from pynamodb_mutex._clock import local_clock
from pynamodb_mutex._hold import Hold
from pynamodb_mutex._messages import one_line, shown
from pynamodb_mutex._process import current_process
from pynamodb_mutex._repeat import Transient, persist
from pynamodb_mutex.exceptions import MutexLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pynamodb_mutex._answers import Answer
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._store import Store
    from pynamodb_mutex._waiting import Turn
    from pynamodb_mutex._wanted import Wanted

_log = logging.getLogger("pynamodb_mutex")

_PATIENCE = 5.0
"""Seconds for which a release is repeated; after that the lock ends with its lease."""


def release(hold: Hold) -> None:
    """Give a lock back.

    Raises:
        MutexLostError: If it had been lost.
        MutexNotHeldError: If it is not held here.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    hold.check("release")
    runs_until = hold.ends
    if not hold.leave():
        return
    ending = Ending(hold, runs_until)
    with given_back([ending]):
        turn = hold.wanted.queue.next_in_line(hold, hold.terms.poll)
        if turn is None or not _hand_over(hold, ending, turn):
            ending.send(release_request(hold))


@contextmanager
def given_back(endings: Sequence[Ending]) -> Iterator[None]:
    """Tell what became of locks that are given back inside the block."""
    error: BaseException | None = None
    try:
        yield
    except BaseException as failure:
        error = failure
        raise
    finally:
        for ending in endings:
            ending.hold.wanted.queue.left(ending.hold)
        for ending in endings:
            if ending.heir is not None:
                _events.handed_over(ending.hold, ending.heir)
            else:
                _events.released(ending.hold, error)


def force(store: Store, row: RawItem, key: str) -> bool:
    """Break the claim that stands in a row now, and no later one; return whether there was one.

    Raises:
        InvalidRowError: If the row is not a lock's.
    """
    seen = persist(lambda: store.read(row, consistent=True), local_clock().now() + _PATIENCE)
    if seen.claim.fault is None and seen.claim.expires_at is None:
        return False
    return break_seen(store, row, key, seen.item) is None


def break_seen(store: Store, row: RawItem, key: str, item: RawItem) -> Answer | None:
    """Break the claim in a row that was seen, however long ago, and no later one.

    A row whose lock attributes cannot be right is put right: it must stand exactly as it was seen.

    Returns:
        None if this broke it. Else it had ended otherwise, and the answer shows what stands there now.

    Raises:
        InvalidRowError: If the row is not a lock's.
    """
    seen = store.rows.claim(item)
    broken_by = forced_token(store.server_now())
    if not store.rows.was_a_locks(item):
        seen.check()
    send = partial(store.force, row, seen, broken_by)
    if seen.fault is not None:
        send = partial(store.put_right, row, item, broken_by)
    answer = persist(send, local_clock().now() + _PATIENCE)
    if not answer.applied and answer.claim.token != broken_by:
        return answer
    local = current_process().queue(store, key).holder
    if local is not None and local.tenure.token == seen.token:
        local.lose(Loss.FORCED)
    return None


def release_request(hold: Hold) -> Callable[[], Answer]:
    """Return what sends the request that gives a lock back."""
    store, terms = hold.store, hold.terms
    if terms.delete_on_release:
        return lambda: store.delete(terms.row, hold.mine())
    values = {**hold.mine(), "ttl": store.ttl_from_now()}
    return lambda: store.write(store.rows.release, terms.row, values)


class Ending:
    """What ends a claim, sent until it is known to have ended.

    As long as no attempt may have been applied, a refusal tells that the lock was lost, whatever
    the lease says. Afterwards it may be that attempt's own doing: then the lock counts as released,
    for its lease was still running when the first was sent.

    Attributes:
        hold: The acquisition.
        until: Local time until which it is repeated.
        may_be_applied: Whether an attempt may have been applied.
        heir: Who holds the lock now, if it was handed over.
    """

    def __init__(self, hold: Hold, runs_until: float) -> None:
        self.hold = hold
        self.until = min(runs_until, local_clock().now() + _PATIENCE)
        self.may_be_applied = hold.may_have_ended
        self.heir: Hold | None = None

    def send(
        self,
        request: Callable[[], Answer],
        done: Callable[[Answer], bool] = attrgetter("applied"),
    ) -> Answer:
        """Send a request that ends the claim; raise if it had ended before."""

        def attempt() -> Answer:
            try:
                return request()
            except Transient as failure:
                self.may_be_applied = self.may_be_applied or failure.maybe_applied
                raise

        answer = persist(attempt, self.until, self.hold)
        if not done(answer):
            tenure = self.hold.tenure
            forced = tenure.loss(answer.claim) is Loss.FORCED
            # a force that came right after our claim found it standing
            broken = forced and answer.claim.version == tenure.version + 1
            if broken or not self.may_be_applied:
                raise self.hold.lost_at_release(answer.claim)
        return answer


def _hand_over(hold: Hold, ending: Ending, turn: Turn[Wanted, Hold]) -> bool:
    """Give a claim to the next in line with one conditional write.

    Returns:
        Whether the claim has ended; not if DynamoDB does not take what the next one wants to write.
    """
    wanted, store = turn.wants.at(hold.wanted), hold.store
    tenure = Tenure(new_token(store.server_now()), wanted.terms.lease)
    first_sent = local_clock().now()

    def request() -> Answer:
        now = local_clock().now()
        end, lease = tenure.propose(now, store.server.bounds, wanted.terms.lease)
        values = wanted.values(lease, end) | hold.mine() | {"token": tenure.token}
        template = store.rows.hand_over(data="data" in values)
        return store.write(template, hold.terms.row, values)

    def done(answer: Answer) -> bool:
        # also when refused: an earlier attempt had been applied
        return answer.claim.token == tenure.token and answer.claim.expires_at is not None

    granted = False
    try:
        answer = ending.send(request, done)
        if done(answer):
            new = Hold(wanted, tenure, answer.claim, answer.item, first_sent)
            granted = turn.grant(new)
            new.start()
            ending.heir = new if granted else None
            if not granted:
                # whom it was for has left by an exception
                release(new)
    except MutexLostError:
        raise
    except PynamoDBException as error:
        if ending.may_be_applied:
            raise
        _log.warning(
            "%s not handed over to %s: %s",
            *(shown(hold.terms.key), shown(wanted.owner), one_line(error)),
            extra=hold.log_fields,
        )
        return False
    finally:
        if not granted:
            turn.pass_over()
    return True
