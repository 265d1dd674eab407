"""A group: claims that are acquired, renewed and released by transactions, and lost as one."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from pynamodb.constants import CLIENT_REQUEST_TOKEN, TRANSACT_DELETE, TRANSACT_UPDATE
from pynamodb.exceptions import TransactWriteError

from pynamodb_mutex._lock.operations.planning import Held
from pynamodb_mutex._lock.operations.retry import Attempts, retrying
from pynamodb_mutex._lock.protocol import outcome
from pynamodb_mutex._lock.protocol.outcome import Renewal
from pynamodb_mutex._lock.protocol.schedule import plan_after_failure, plan_renewal
from pynamodb_mutex.exceptions import MutexLostError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim, Proposal
    from pynamodb_mutex._lock.operations.release import Ending


class HeldGroup(Held):
    """1 to 100 claims that were acquired by one transaction."""

    __slots__ = ("_claims",)

    error_class = TransactWriteError

    def __init__(self, claims: Sequence[HeldClaim]) -> None:
        super().__init__(claims[0].process)
        self._claims = claims
        for claim in claims:
            claim.group = self

    @property
    def claims(self) -> Sequence[HeldClaim]:
        """All of the claims, including those that were released."""
        return self._claims

    # -- renewal ------------------------------------------------------------------------------------

    def to_renew(self) -> Sequence[HeldClaim]:
        """Return the claims that are not released, without those that a write under way releases."""
        # If DynamoDB applies that write first, its row would refuse the transaction, and the other claims would not be renewed;
        # the answer to the write shows the outcome for its claim. A claim that is in doubt is renewed: nothing else would renew
        # it, and if its row refuses that, it was released. A single claim is renewed even while such a write is under way: if
        # the write is refused, the claim is still held.
        return [claim for claim in self.unreleased if claim.belief.state != "ending"]

    def renewal(self, proposals: Mapping[HeldClaim, Proposal]) -> Request:
        """Return the transaction that renews claims, given a proposal for each."""
        items = [{TRANSACT_UPDATE: claim.renewal(proposals).kwargs} for claim in proposals]
        token, (first, *_) = self.process.new_request_token(), proposals
        return first.store.transact(items, {CLIENT_REQUEST_TOKEN: token})

    def note_renewal(self, proposals: Mapping[HeldClaim, Proposal], answer: Answer) -> Renewal:
        """Note the outcome of a renewal, and return it."""
        claims = list(proposals)
        rows = {claims[at]: item for at, item in answer.refused.items()}
        seen = {claim: claim.store.layout.claim(item) for claim, item in rows.items()}
        renewals = {
            claim: outcome.renewal(claim.own, proposals[claim].end, row, applied=False)
            for claim, row in seen.items()
        }
        # An end that only this request proposed, in one of the rows, shows that a copy of the request was applied; and a
        # transaction is applied as a whole.
        if answer.applied or "applied" in renewals.values():
            for claim, proposal in proposals.items():
                claim.extend(proposal)
            return "applied"
        for claim, renewal in renewals.items():
            if renewal == "lost":
                claim.note_refusal(seen[claim])
            else:
                # Sent again even if the later end is our own: a guarded save may have renewed the claim of this row alone, and
                # the claims of the other rows are not renewed yet.
                claim.own.outbid(seen[claim].expires_at)
        return "lost" if self.is_over else "again"

    def plan_after_renewal(self, renewed: Sequence[HeldClaim], sent: float) -> None:
        """Plan the renewal after one that was sent at a local time, and has renewed some of the claims."""
        process, ends = self.process, self.ends
        if len(renewed) < len(self.unreleased):
            # A write under way may release the claims that were left out. If it is refused, there must be time to renew them. But
            # there is always a pause: without one, a request would come after a third of the rest of their leases, then after a
            # third of that, and so on, without end.
            pause = plan_after_failure(process.now, ends, self.lease, process.uniform)
            self.plan = max(plan_renewal(sent, ends), pause, key=attrgetter("at"))
        else:
            self.plan_renewal(sent, ends)

    # -- release ------------------------------------------------------------------------------------

    def loss_before_release(self) -> MutexLostError | None:
        """Return the loss of one of the claims; None for no loss.

        If one lock is lost, all count as lost. But the other claims may still be in their rows, and keep waiters waiting. So they
        are released one by one, because the row of the lost claim would refuse a transaction.
        """
        try:
            for claim in self.unreleased:
                claim.check("release")
        except MutexLostError as error:
            return error
        return None

    def end(
        self,
        endings: Mapping[HeldClaim, Ending],
        *,
        hands_over: bool,  # noqa: ARG002 - nobody waits for all of them together
    ) -> Operation[bool]:
        """Send the transaction that releases several claims; return whether it was applied."""
        process, attempts = self.process, Attempts()
        first = next(iter(endings.values()))

        # Each attempt has a new ClientRequestToken: it writes other times, and DynamoDB refuses a ClientRequestToken that comes
        # again with other content. If the first attempt is applied and its answer lost, the second is refused, and each claim is
        # then released by itself. DynamoDB refuses that, too, and it is no loss.
        def build() -> Request:
            items = []
            for ending in endings.values():
                request = ending.request()
                kind = TRANSACT_DELETE if request.operation == "DeleteItem" else TRANSACT_UPDATE
                items.append({kind: request.kwargs})
            return first.claim.store.transact(
                items, {CLIENT_REQUEST_TOKEN: process.new_request_token()}
            )

        try:
            answer = yield from retrying(
                process, build, first.until, about=first.claim, attempts=attempts
            )
        finally:
            # The single releases that may follow count the transaction as an attempt: if a claim is missing then, the transaction
            # may have released it.
            for ending in endings.values():
                sent = min(ending.attempts.first_sent, attempts.first_sent)
                ending.attempts.first_sent = sent
        return answer.applied
