"""Handing a lock over to the next waiter of this process, in one request in place of release, poll and acquire.

`local_queue` decides whose turn is next; `release`, the holder's part, asks the turn to take the lock over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.operations.contender import Contender
from pynamodb_mutex._lock.operations.events import Log
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.local_queue import Turn
from pynamodb_mutex._lock.protocol.claim import OwnClaim
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.outcome import shows_acquisition
from pynamodb_mutex.exceptions import MutexLostError

if TYPE_CHECKING:
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.release import Ending


class WaitingTurn(Turn[HeldClaim, Contender]):
    """The place in line of a waiter to whom a holder of this process can hand the lock over."""

    def take_over(self, ending: Ending) -> Operation[bool]:
        """Take the lock over: one conditional write replaces the holder's claim with one of this waiter.

        Args:
            ending: The ending of the claim of the holder, which has promised this turn the lock.

        Returns:
            Whether the holder's claim has ended. If not, the holder must still release it: server time is not known well
            enough for a claim of the next holder, or the request has failed and was surely not applied, for example because
            DynamoDB refuses the values of the next holder.

        Raises:
            MutexLostError: If the lock had been lost.
            PynamoDBException: If the request has failed, and may have been applied.
        """
        self.given_by = ending.claim.process.runner
        claim = ending.claim
        process, store = claim.process, claim.store
        contender = self.contender.at(claim.contender.row_name)
        if store.bounds is not None and not store.knows_time(contender.options.lease, process.now):
            # Suppose a holder with a lease of a day sends no request for an hour, and a thread that has just begun to wait
            # wants the lock for 30 s. The bounds of server time have fallen behind by 36 s, so the end of the new claim would
            # have passed when it is made: the next holder would see a loss, and another process could take the lock. So the
            # lock is released, and the waiter's poll comes after an answer that shows the time.
            return False
        own = OwnClaim(process.new_token(store), contender.options.lease)
        # The next holder's lease counts from before the first attempt. Suppose the first attempt is applied and its answer is
        # lost: the row then has the end of the first attempt, however late the answer to a retry comes.
        first_sent = process.now

        def build() -> Request:
            end, lease = own.propose(process.now, store.bounds, contender.options.lease)
            # the next holder writes its own payload, if it has one
            values = {**ending.data, **contender.values(lease, end)}
            return store.hand_over(claim.options.row, claim.own, own, values)

        successor: HeldClaim | None = None
        try:
            # A refusal, too, may show that it was applied: by an earlier attempt.
            answer = yield from ending.send(
                build, lambda reply: shows_acquisition(own, reply.claim)
            )
            if shows_acquisition(own, answer.claim):
                if self in self.queue.turns:
                    successor = HeldClaim(contender, own, answer.claim, answer.item, first_sent)
                    successor.change("begin")
                    # Before `grant`: if Ctrl-C came in between, the waiter would have a lock that nobody renews.
                    process.note_holder(successor)
                    successor.start(first_sent)
                    self.grant(successor)
                    ending.successor = successor
                else:
                    # The waiter has left while the request was under way: it was interrupted, or has acquired another of its keys.
                    # Nobody else would end this claim. Nobody held it either: after a late answer its lease has passed, and a
                    # release would call the waiter's `on_lost`. The giver stays the local holder until the row is
                    # free: then it wakes the next in line.
                    yield from contender.disown(own)
        except BaseException as error:
            is_failure = isinstance(error, PynamoDBException) and not isinstance(
                error, MutexLostError
            )
            if is_failure and not ending.attempts.maybe_applied:
                text = "%s not handed over to %s: %s"
                values = (shown(claim.key), shown(contender.owner), one_line(error))
                process.emit(Log("warning", text, values, claim.log_fields))
                return False
            if ending.attempts.maybe_applied and self.granted is None:
                # There was no answer, or Ctrl-C came before it. The row may carry the next holder's claim, and nobody knows of
                # it: a release of ours would be refused and pass for done, and the waiter would wait for the end of its own
                # lease, perhaps for an hour.
                if successor is not None:
                    successor.forget()
                yield from contender.disown(own)
            raise
        return True
