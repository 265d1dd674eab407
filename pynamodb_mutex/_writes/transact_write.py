"""PynamoDB's TransactWrite, guarded by locks.

`GuardedTransactWrite` is what the ``transaction()`` of a lock returns. The import of this module also replaces the
commit of every other TransactWrite of the process, so that a locked row is guarded there as well:
`~pynamodb_mutex._lock.dynamodb.pynamodb_private.replace_commit` says why there is no other way.
`pynamodb_mutex._writes.transaction` decides what is sent, and what a refusal means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb.transactions import TransactWrite

from pynamodb_mutex._lock.dynamodb.pynamodb_private import replace_commit, update_local_versions
from pynamodb_mutex._lock.handles import refusing
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._writes.guarded_write import check_guardable
from pynamodb_mutex._writes.row_write import GuardOnly
from pynamodb_mutex._writes.transaction import commit, refuse_other_connection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim


def _commit(transaction: TransactWrite) -> Any:
    """Commit a `TransactWrite`: by the protocol if it writes rows of a `RowLockMixin` model, else as PynamoDB does."""
    refuse_other_connection(transaction)
    process = current_process()
    operation = commit(process, transaction)
    if operation is None:
        return _plain_commit(transaction)
    answer = execute(process, operation)
    update_local_versions(transaction)
    return answer


_plain_commit = replace_commit(TransactWrite, _commit)


class GuardedTransactWrite(TransactWrite):
    """A PynamoDB TransactWrite that is applied only while the given locks are held.

    The guard is an update that increments the claim's number of writes; it costs what a ConditionCheck
    costs. Suppose there were only a ConditionCheck: if the network delivers a copy of the transaction after the ten minutes for
    which DynamoDB remembers a ClientRequestToken, it would be applied a second time; and a transaction that the caller has given
    up could be applied after the next one. The number makes DynamoDB refuse both.
    """

    def __init__(self, claims: Sequence[HeldClaim], *, unlock: bool = False) -> None:
        """Check the locks, and begin the transaction.

        Args:
            claims: The claims that guard it, at least one.
            unlock: Whether the transaction also releases their locks.

        Raises:
            MutexNotHeldError: If one of the locks is not held here; MutexLostError if it is lost.
            MutexError: If one of them has ``delete_on_release``.
        """
        execute(current_process(), _checking(claims))
        super().__init__(connection=claims[0].store.connection.pynamodb)
        self._guards = [GuardOnly(claim, unlock=unlock) for claim in claims]

    def _commit(self) -> Any:
        return execute(current_process(), self.committing())

    def committing(self) -> Operation[dict[str, Any]]:
        """Commit the transaction, update the version attributes of the written instances, return DynamoDB's answer.

        One operation does all this: a task may be cancelled while the transaction is sent, and then nothing runs after it.
        """
        # never None: a transaction with a guard in it is not left to PynamoDB
        operation: Any = commit(current_process(), self, self._guards)
        answer: dict[str, Any] = yield from operation
        update_local_versions(self)
        return answer


# not in the class: see `~pynamodb_mutex._lock.handles.Lock`
GuardedTransactWrite.__aenter__ = GuardedTransactWrite.__aexit__ = refusing(  # type: ignore[attr-defined]  # see above
    "threads: use 'with', or the transaction() of an async lock"
)


def _checking(claims: Sequence[HeldClaim]) -> Operation[None]:
    """Raise unless the claims can guard a write.

    An operation, so that it runs inside the monitor: the check may find that a lease has ended, and then changes the
    claim's state.
    """
    for claim in claims:
        check_guardable(claim, "transaction")
    return
    yield  # an operation without an effect
