"""TransactWrite under a lock: several rows or tables, written only while it is held."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pynamodb.constants import (
    TRANSACT_CONDITION_CHECK,
    TRANSACT_DELETE,
    TRANSACT_PUT,
    TRANSACT_UPDATE,
)
from pynamodb.transactions import TransactWrite

from pynamodb_mutex._guard import guarded

if TYPE_CHECKING:
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._store import Answer


class GuardedTransactWrite(TransactWrite):
    """A PynamoDB TransactWrite with a guard on the lock's row in it.

    The guard counts the write as well as checking the claim, at the price of a ConditionCheck: so a
    late duplicate is refused for ever, not for the ten minutes for which DynamoDB remembers a
    ClientRequestToken, and a write that was given up cannot land after the next one.
    """

    def __init__(self, hold: Hold) -> None:
        self._store = hold.wanted.store
        super().__init__(connection=self._store.connection.connection)
        self._hold = hold

    def _commit(self) -> None:
        request_token, known = "", ""

        def send(values: dict[str, Any]) -> Answer | None:
            nonlocal request_token, known
            if known != values["known"]:
                # one token per set of parameters: DynamoDB refuses it with others
                request_token, known = str(uuid.uuid4()), values["known"]
            guard = self._store.rows.guard.fill(self._hold.wanted.terms.row, values)
            return self._store.transact([{TRANSACT_UPDATE: guard}, *self._items()], request_token)

        guarded(self._hold, send, "transaction")
        for model in self._models_for_version_attribute_update:
            model.update_local_version_attribute()

    def _items(self) -> list[dict[str, Any]]:
        kinds = {
            TRANSACT_CONDITION_CHECK: self._condition_check_items,
            TRANSACT_DELETE: self._delete_items,
            TRANSACT_PUT: self._put_items,
            TRANSACT_UPDATE: self._update_items,
        }
        return [{kind: item} for kind, items in kinds.items() for item in items]
