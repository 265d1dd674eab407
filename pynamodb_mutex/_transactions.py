"""PynamoDB's TransactWrite, guarded by locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.transactions import TransactWrite

from pynamodb_mutex._dynamodb.pynamodb_private import replace_commit, update_local_versions
from pynamodb_mutex._operations.transaction import commit, send_through_own_connection
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import HeldClaim


def _commit(transaction: TransactWrite) -> Any:
    """Commit a `TransactWrite`, guarded if rows that can be locked are written in it."""
    send_through_own_connection(transaction)
    process = current_process()
    operation = commit(process, transaction)
    if operation is None:
        return _plain_commit(transaction)
    answer = run(process, operation)
    update_local_versions(transaction)
    return answer


_plain_commit = replace_commit(TransactWrite, _commit)


class GuardedTransactWrite(TransactWrite):
    """A PynamoDB TransactWrite that is applied only under the given locks.

    A guard counts the write as well as checking the claim, at the price of a ConditionCheck: so a
    late duplicate is refused for ever, not for the ten minutes for which DynamoDB remembers a
    ClientRequestToken, and a write that was given up cannot be applied after the next one.
    """

    def __init__(self, claims: Sequence[HeldClaim], *, unlock: bool = False) -> None:
        """Begin one.

        Raises:
            MutexNotHeldError: If one of the locks is not held here; MutexLostError if it is lost.
            MutexError: If one of them is used with ``delete_on_release``.
        """
        run(current_process(), _checking(claims))
        super().__init__(connection=claims[0].store.connection.pynamodb)
        self._claims = claims
        self._unlock = unlock

    def _commit(self) -> Any:
        answer = run(current_process(), self.committing())
        self.committed()
        return answer

    def committed(self) -> None:
        """Do what PynamoDB does after that."""
        update_local_versions(self)

    def committing(self) -> Operation[dict[str, Any]]:
        """Return the operation that commits it."""
        # there is always a guard, so it is never PynamoDB's to commit
        committing: Any = commit(current_process(), self, self._claims, unlock=self._unlock)
        operation: Operation[dict[str, Any]] = committing
        return operation


def _checking(claims: Sequence[HeldClaim]) -> Operation[None]:
    """Raise unless claims can guard a write."""
    for claim in claims:
        claim.check_guardable("transaction")
    return
    yield  # an operation without an effect
