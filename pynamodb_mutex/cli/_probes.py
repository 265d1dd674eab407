"""Permissions, tried by real requests that change nothing.

Each is one of the library's own, under the claim of a token that no acquisition ever had: its condition does
not hold, whatever stands in the row, and what DynamoDB says tells whether the role may send such a request.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._dynamodb.keys import key_of
from pynamodb_mutex._protocol.messages import one_line
from pynamodb_mutex.cli._asking import MISSING
from pynamodb_mutex.cli._findings import Finding, ok, problem, unchecked, warning
from pynamodb_mutex.cli._permissions import USES
from pynamodb_mutex.cli._place import IF_NO_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb_mutex.cli._asking import Asker, Reply
    from pynamodb_mutex.models import LockItem

_REFUSED = {"ConditionalCheckFailedException", "TransactionCanceledException"}
_NOT_UNDERSTOOD = {"UnknownOperationException", "ValidationException"}
_TRANSACTIONS = "transaction() and for_keys"
_CODES = {
    "AccessDenied": "AccessDeniedException",
    "ConditionalCheckFailed": "ConditionalCheckFailedException",
    "ValidationError": "ValidationException",
}
"""Codes that a statement in a batch is answered by, and a request by itself."""


class Probes:
    """The requests, about one key."""

    def __init__(self, model: type[LockItem], asker: Asker, key: str) -> None:
        """Make the requests.

        Args:
            model: Whose table it is.
            asker: Asks there.
            key: Of a row, which need not exist.

        Raises:
            InvalidKeyError: If the model can have no such key.
        """
        self._ask = asker.ask
        self._table = asker.table
        self._rows = asker.store.requests
        self._key = key_of(model, key)
        self._values = {"mine": uuid.uuid4().hex, "version": "0", "known": "0", "next": "1"}
        self._values |= {"ttl": "1", "end": "1", "lease": "1"}

    def findings(self) -> Iterator[Finding]:
        """Try each permission, and transactions."""
        for action, use in USES.items():
            reply = self._send(action)
            if reply.denied and use.vital:
                advice = (
                    f"allow dynamodb:{action}: pynamodb-mutex policy --role {use.role} prints it"
                )
                yield problem(
                    action, f"not allowed; for {use.by}: {one_line(reply.message)}", advice
                )
            elif reply.code == MISSING and use.vital:
                # a role that may not describe the table learns it here
                yield problem(action, "there is no such table", IF_NO_TABLE)
            elif reply.denied:
                advice = f"if you use that: pynamodb-mutex policy --role {use.role}"
                yield warning(action, f"not allowed; for {use.by}", advice)
            else:
                yield _told(action, use.by, reply)
        reply = self._transact({"Update": self._rows.guard.fill(self._key, self._values)})
        if reply.denied:
            what = f"UpdateItem is not allowed within them; for {_TRANSACTIONS}"
            advice = "look for the condition dynamodb:EnclosingOperation in the role's policies"
            yield warning("transactions", what, advice)
        else:
            yield _told("transactions", _TRANSACTIONS, reply)

    def _send(self, action: str) -> Reply:
        table, rows, key, values = self._table, self._rows, self._key, self._values
        if action == "ConditionCheckItem":
            return self._transact({"ConditionCheck": rows.delete.fill(key, values)})
        if action == "PartiQLUpdate":
            statement = rows.renew_in_batch.fill(key, values)
            return _alone(self._ask("BatchExecuteStatement", {"Statements": [statement]}))
        requests: dict[str, dict[str, Any]] = {
            "UpdateItem": rows.release.fill(key, values),
            "DeleteItem": rows.delete.fill(key, values),
            "GetItem": {"TableName": table, "Key": key},
            "BatchGetItem": {"RequestItems": {table: {"Keys": [key]}}},
            "Scan": {"TableName": table, "Limit": 1},
        }
        return self._ask(action, requests.get(action, {"TableName": table}))

    def _transact(self, item: dict[str, Any]) -> Reply:
        return self._ask("TransactWriteItems", {"TransactItems": [item]})


def _alone(reply: Reply) -> Reply:
    """Return what the only statement of a batch was told, as a request by itself is told it."""
    for statement in reply.data.get("Responses", ()):
        error = statement.get("Error", {})
        code = error.get("Code")
        return reply._replace(
            code=code and _CODES.get(code, code), message=error.get("Message", "")
        )
    return reply


def _told(check: str, by: str, reply: Reply) -> Finding:
    """Judge what was not denied."""
    if reply.code is None or reply.code in _REFUSED:
        return ok(check, f"allowed; for {by}")
    if reply.code in _NOT_UNDERSTOOD:
        return warning(check, f"not understood ({reply.told}); for {by}", "do without it here")
    return unchecked(check, reply.told)
