"""Renewal of leases: of one claim, and of a group.

A renewal moves the end of a claim in its row later, on condition that the row still carries our claim. The holder calls the
first section; the second is the loop that renews in the background.

When a renewal is due is decided in `held` and `protocol.schedule`, what an answer says about a renewal in
`protocol.outcome`. The thread of the loop, and those that send its renewals, are in `runtime`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.dynamodb.answers import Failure
from pynamodb_mutex._lock.operations.effects import Send, Start, Wait
from pynamodb_mutex._lock.operations.events import Log
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.claim import TOO_SHORT
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex.exceptions import MutexNotHeldError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim, Proposal
    from pynamodb_mutex._lock.operations.planning import Held
    from pynamodb_mutex._lock.operations.process_state import ProcessState

# -- renewal by the holder -------------------------------------------------------------------------


def renew(held: Held, lease: float | None = None) -> Operation[None]:
    """Renew now, and emit ``renewed``. If the lease has ended and nobody has taken the lock since, win it back.

    Args:
        held: What to renew; for a claim of a group, the whole group is renewed.
        lease: Seconds; None for each lock's own.

    Raises:
        MutexNotHeldError: If it is not held here; MutexLostError if it is lost.
        PynamoDBException: If DynamoDB refuses the request, or cannot be reached until the lease ends.
    """
    if held.is_released:
        # else the other claims of its group would be renewed, as if this one were held
        raise held.claims[0].not_held_error("renew")
    renewed, won_back = yield from renew_quietly(held.whole, lease)
    for claim in renewed:
        if claim not in won_back:
            claim.emit_renewed()
    if held.is_released:
        # another thread released it while the request was under way
        raise held.claims[0].not_held_error("renew")


def renew_quietly(
    held: Held, lease: float | None, patience: float = math.inf
) -> Operation[tuple[Sequence[HeldClaim], Sequence[HeldClaim]]]:
    """Renew as `renew` does, but emit ``renewed`` only for claims that were won back; the caller emits it for the others.

    Args:
        held: What to renew.
        lease: Seconds; None for each lock's own.
        patience: Seconds for which a failure is retried, at most.

    Returns:
        The claims that this request has renewed, and the claims that were won back. A claim can be in the second list alone:
        if a renewal that was sent later was applied first, it refused this one, and has itself extended the lease.
    """
    process = held.process
    for claim in held.unreleased:
        # If the lease has ended, report the loss first, even if this renewal wins the lock back: the holder has not held it in
        # between.
        claim.note_end()
        claim.check_renewable()
    until = min(max(held.ends, process.now), process.now + patience)
    try:
        renewed = yield from _renew_once(held, lease, until)
        if renewed and held.ends - process.now < TOO_SHORT * (lease or held.lease):
            # The process was idle, or its local clock stood still, so the proposed end was counted from bounds
            # of server time that were far behind. The answer has corrected them: a second renewal proposes an
            # end that is a whole lease ahead.
            renewed = yield from _renew_once(held, lease, until)
    except PynamoDBException as error:
        _emit_failed(held, error)
        raise
    lost = [claim for claim in held.unreleased if claim.is_over]
    # Nothing is won back if the answer came so late that the new lease has ended, too, or if this request or another
    # one has seen meanwhile that a claim is not in its row: all are lost, or won back, together.
    can_win = held.ends > process.now and all(claim.can_be_won_back for claim in lost)
    won_back = [claim for claim in lost if can_win and claim.change("won back")]
    for claim in won_back:
        claim.emit_renewed(won_back=True)
        claim.begin()
    if lost:
        # the loss took the lock out of the schedule
        held.start(process.now)
    process.schedule.refresh(held)
    for claim in held.unreleased:
        claim.note_end()
        if claim.belief.loss is not None:
            raise claim.lost_error("renew")
        if claim.belief.state == "confirmed" and claim.ends <= process.now:
            # It is not lost, because no caller has it yet. But if each answer comes later than the lease, as in a process
            # that stands still at every request, it cannot be used either, and no row shows another holder.
            msg = f"{shown(claim.key)} was acquired, but DynamoDB's answers came after its lease had ended"
            raise held.error_class(msg)
    return renewed, won_back


def ensure_held(held: Held, at_least: float) -> Operation[None]:
    """Check that all locks are held, and renew them if less than ``at_least`` seconds are left of a lease.

    Raises:
        MutexNotHeldError: If it is not held here, or a write may have released it; MutexLostError if it is lost.
        PynamoDBException: As `renew`.
    """
    _check_held(held)
    if held.ends - held.process.now < at_least:
        yield from renew(held)
        # another thread may have released it while the request was under way
        _check_held(held)


def _check_held(held: Held) -> None:
    for claim in held.unreleased or held.claims:
        claim.check("ensure_held")
        if claim.belief.state != "held":
            msg = f"ensure_held: {shown(claim.key)} may have been released by a write without an answer yet"
            raise MutexNotHeldError(msg, key=claim.key)


def _renew_once(
    held: Held, lease: float | None, until: float | None
) -> Operation[Sequence[HeldClaim]]:
    """Send one renewal; if a row shows another claim, note the loss.

    It is sent again at once only if it met a later end in a row.

    Args:
        held: What to renew.
        lease: Seconds; None for each lock's own.
        until: Local time until which a failure is retried; None for no retry.

    Returns:
        The claims that it has renewed: none if a claim was lost, or if a renewal sent later was applied first.

    Raises:
        PynamoDBException: If there was no answer that shows its outcome.
    """
    while True:
        claims = held.to_renew()
        if not claims:
            return ()
        proposals: dict[HeldClaim, Proposal] = {}

        # Each attempt proposes a later end than all before it. Suppose the first attempt is applied and its answer is lost:
        # with the same end, the retry would be refused by its own first attempt (the condition is that the stored end is
        # before the new one); with a later end it is applied. Only the last attempt's proposal counts, since only its answer
        # arrived: a holder never believes in an end that no answer has confirmed.
        def build() -> Request:
            if all(claim.depth < 1 for claim in held.claims):
                # Another thread has released it since the last attempt. DynamoDB did not answer that release either, or the
                # release raised that the lock is lost, and sent nothing: the claim is to expire. If a renewal were applied
                # now, it would keep the key locked for another lease.
                held.claims[0].check("renew")
            for claim in claims:  # noqa: B023 - built before the next round
                proposed = claim.propose_renewal(claim.lease if lease is None else lease)
                proposals[claim] = proposed  # noqa: B023 - as above
            return held.renewal(proposals)  # noqa: B023 - as above

        if until is None:
            answer: Answer | Failure = yield Send(build())
            if type(answer) is Failure:
                raise answer.error
        else:
            answer = yield from retrying(held.process, build, until, about=claims[0])
        held.failure = None
        renewal = held.note_renewal(proposals, answer)
        if renewal == "applied":
            return claims
        if renewal != "again":
            return ()


def _emit_failed(held: Held, error: BaseException) -> None:
    for claim in held.unreleased:
        claim.emit("renewal_failed", expires_at=claim.own.expires_at, error=error)


# -- renewal in the background ---------------------------------------------------------------------


LINGER = 5.0
"""Seconds without work after which the loop ends, and its thread with it. The next lock often comes before that."""

LONGEST_SLEEP = 1.0
"""Seconds for which the loop waits at a time, at most.

A suspension of the machine does not count for a thread's wait, but it does for the leases: after it the loop finds
what has become due within this time.
"""

SHORTEST_SLEEP = 0.01
"""Seconds from one handling of a scheduled lock to the next, at least, unless something happens to it in between.

Whatever time its `due` returns: a lock that is due again at once, over and over, would occupy a whole core.
"""


def renewal_loop(process: ProcessState) -> Operation[None]:
    """Handle each lock when it is due: start its renewal, or note that its lease has ended.

    It never waits for the network, since renewals are sent on other threads: a slow or hung request delays neither
    another lock's renewal nor the report of a loss.
    """
    schedule = process.schedule
    idle_since = process.now
    try:
        while True:
            # While the system refuses threads, this loop's thread asks for them again, for all work that waits for one: so it
            # stays even if no lock is scheduled.
            if not schedule.is_empty or process.waits_for_threads:
                idle_since = process.now
            elif process.now - idle_since >= LINGER:
                return
            held: Any = schedule.take_due(process.now)
            if held is None:
                # Set only for the wait: a lock that is due earlier rings the wake-up. While the loop runs, it finds what is
                # scheduled by itself.
                schedule.wakes_at = min(schedule.next_due(), process.now + LONGEST_SLEEP)
                yield Wait(schedule.wakes_at, schedule.wakeup)
                schedule.wakes_at = -math.inf
            elif _handle(held):
                place = held.claims[0].store.connection.place
                yield Start(renew_in_background(held), place)
    finally:
        # In the step that decides to end. If it came later, a lock scheduled right after that step would count on a loop that
        # ends, start no other, and expire.
        schedule.loop = None


def _handle(held: Held) -> bool:
    """Handle a lock that is due: plan what comes next; return whether the caller is to start a renewal."""
    process = held.process
    # If its handling raises, the lock is due again in a second. If it were due at once, the loop would spin; if never, the
    # lock would expire without a report.
    due = process.now + LONGEST_SLEEP
    is_to_be_renewed = False
    try:
        is_to_be_renewed = held.is_to_be_renewed()
        due = held.due()
    except Exception as error:  # noqa: BLE001 - the loop serves all locks, and must not end for one
        process.emit(Log("exception", "what was due could not be done: %r", (error,)))
    process.schedule.put_back(held, max(due, process.now + SHORTEST_SLEEP))
    return is_to_be_renewed


def renew_in_background(held: Held) -> Operation[None]:
    """Send one renewal, and plan the next; a lock whose renewal fails is due again soon."""
    held.is_queued = False
    held.renewals_under_way += 1
    try:
        # it may have been released or lost while this waited for a thread
        if held.stands_at(held.process.now):
            yield from _renew_and_plan(held)
    finally:
        held.renewals_under_way -= 1
        held.process.schedule.refresh(held)


def _renew_and_plan(held: Held) -> Operation[None]:
    sent = held.process.now
    try:
        renewed = yield from _renew_once(held, None, None)
    except PynamoDBException as error:
        # This is no loss: only a row with another claim, or the end of the lease, is a loss.
        held.plan_after_failure(error)
        _emit_failed(held, error)
        return
    held.plan_after_renewal(renewed, sent)
    for claim in renewed:
        claim.emit_renewed()
