"""Renewals of several locks by one request.

BatchExecuteStatement carries up to 25 statements in PartiQL, each with a condition and an outcome of its
own: what holds for single renewals holds for these. One costs the client little more than one update.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import PynamoDBException, UpdateError

from pynamodb_mutex._answers import Answer
from pynamodb_mutex._claim import Claim
from pynamodb_mutex._repeat import Transient

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._hold import Hold, Renewal

_log = logging.getLogger("pynamodb_mutex")

_REFUSED = "ConditionalCheckFailed"
_PASSING = frozenset({
    "InternalServerError",
    "ProvisionedThroughputExceeded",
    "RequestLimitExceeded",
    "ThrottlingError",
    "TransactionConflict",
})  # fmt: skip


def renew_together(holds: Sequence[Hold]) -> None:
    """Send one renewal for several acquisitions in one table, and note each one's outcome.

    An answer counts only if it shows the end that was asked for, or the row that refused it. Whatever
    else comes of it, such as an engine that knows no PartiQL, or a role that may not use it, is met by
    asking for each by itself.
    """
    # DynamoDB takes a row once: of two acquisitions of one lock, the first is lost
    last = {hold.terms.key: hold for hold in holds}
    _renew_rows(list(last.values()))
    for hold in holds:
        if hold is not last[hold.terms.key]:
            hold.renew_alone()


def _renew_rows(holds: Sequence[Hold]) -> None:
    store = holds[0].store
    renewals = [hold.propose_renewal(hold.terms.lease) for hold in holds]
    try:
        answers = _answers(holds, renewals)
    except Exception as error:  # noqa: BLE001 - engines that know no PartiQL fail in their own ways
        if not isinstance(error, Transient):
            store.batches = False
            if not isinstance(error, PynamoDBException):
                _log.exception("locks cannot be renewed by batches", extra=holds[0].log_fields)
        for hold in holds:
            hold.renewal_failed(error)
        return
    for hold, renewal, answer in zip(holds, renewals, answers, strict=True):
        applied = None if answer is None else hold.renewal_answered(renewal, answer)
        if applied is None:
            hold.renewal_failed(UpdateError("a batch did not tell what became of it"))
            continue
        hold.plan(renewal.sent)
        if applied:
            hold.tell_renewed(hold.holds)


def _answers(holds: Sequence[Hold], renewals: Sequence[Renewal]) -> list[Answer | None]:
    """Send the batch; return what it tells of each, and None where it tells nothing."""
    store = holds[0].store
    statement = store.rows.renew_in_batch
    request = [
        statement.fill(hold.terms.row, hold.mine() | renewal.values)
        for hold, renewal in zip(holds, renewals, strict=True)
    ]
    data, sent, received = store.call("BatchExecuteStatement", {"Statements": request})
    answers: list[Answer | None] = []
    for response, renewal in zip(data["Responses"], renewals, strict=True):
        error: dict[str, Any] = response.get("Error", {})
        code, item = error.get("Code"), error.get("Item") or response.get("Item") or {}
        # an applied statement shows what it changed, and not the row
        refused = code == _REFUSED
        claim = store.rows.claim(item) if refused else Claim(expires_at=store.rows.end(item))
        told = claim.token is not None if refused else claim.expires_at == renewal.end
        if not told and code not in {*_PASSING, _REFUSED}:
            store.batches = False
        answers.append(Answer(code is None, claim, item, sent, received) if told else None)
    return answers
