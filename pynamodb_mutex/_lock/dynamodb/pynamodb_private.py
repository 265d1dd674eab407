"""The private names of PynamoDB that this library uses, each behind a function that says what for.

PynamoDB may change them in any release. ``tests/dynamodb/test_pynamodb_private.py`` has a test for each: if one fails, only this
module needs a change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pynamodb.constants import (
    TRANSACT_CONDITION_CHECK,
    TRANSACT_DELETE,
    TRANSACT_PUT,
    TRANSACT_UPDATE,
)

if TYPE_CHECKING:
    from pynamodb.connection import Connection
    from pynamodb.connection.table import TableConnection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model
    from pynamodb.transactions import TransactWrite

# -- models ----------------------------------------------------------------------------------------


def hash_key_name(model: type[Model]) -> str:
    """Return the name of a model's hash key: the name of the Python attribute, not the stored name.

    The public way is to search all attributes for ``is_hash_key``, which is too slow: every lock does this.
    """
    return model._hash_keyname or ""


def range_key_name(model: type[Model]) -> str | None:
    """Return the name of a model's range key, as `hash_key_name` does; None if it has none."""
    return model._range_keyname


def schema_of(model: type[Model]) -> Any:
    """Return keys and indexes of a model's table. PynamoDB's ``create_table`` takes few of CreateTable's options."""
    return model._get_schema()


def connection_of(model: type[Model]) -> TableConnection:
    """Return a model's own connection, with the retries and timeouts of its Meta."""
    return model._get_connection()


def forget_connection(model: type[Model]) -> None:
    """Make a model build a new connection at its next request.

    A subclass needs this, because PynamoDB compares only the table's name and would use the parent's connection; and so does a
    forked child, because parent and child would read each other's answers from one socket.
    """
    model._connection = None


# -- connections -----------------------------------------------------------------------------------


def without_retry_modes(connection: TableConnection) -> None:
    """Make a connection ignore the retry mode in PynamoDB's settings, so that ``max_retry_attempts`` counts.

    That is 0 for the connections of locks: the library retries by itself, because it must know which attempt an answer belongs
    to.
    """
    connection.connection._retry_configuration = "LEGACY"


def credentials_of(client: Any) -> Any:
    """Return botocore's credentials, with which a client signs; None if it found none.

    PynamoDB reads them in the same place: at the next request it replaces a client without credentials.
    """
    return client._request_signer._credentials


def client_elsewhere(connection: Connection, host: str) -> Any:
    """Give a connection a new client, for another endpoint, and return that client."""
    connection.host, connection._client = host, None
    return connection.client


def access_key_of(connection: Connection) -> str | None:
    """Return the access key that the user gave a connection; None if it uses the environment's."""
    return connection._aws_access_key_id


# -- instances -------------------------------------------------------------------------------------


def version_condition(
    row: Model, attributes: dict[str, Any] | None, actions: list[Action] | None
) -> Condition | None:
    """Return the condition of a row's VersionAttribute, None if it has none; add its next value to the write.

    PynamoDB adds the value to ``attributes`` of a put, or to ``actions`` of an update.
    """
    return row._handle_version_attribute(attributes=attributes, actions=actions)


def serialized_key(row: Model) -> tuple[Any, Any]:
    """Return hash and range key of an instance as PynamoDB's requests take them."""
    return row._get_hash_range_key_serialized_values()


# -- transactions ----------------------------------------------------------------------------------


def connection_of_transaction(transaction: TransactWrite) -> Connection:
    """Return the connection that the user gave a transaction."""
    return transaction._connection


def request_token_of(transaction: TransactWrite) -> str | None:
    """Return the ClientRequestToken that the user gave a transaction, or None."""
    return transaction._client_request_token


def items_of(transaction: TransactWrite) -> list[tuple[str, dict[str, Any]]]:
    """Return the items of a transaction, each with its kind, in the order in which they are sent."""
    kinds = {
        TRANSACT_CONDITION_CHECK: transaction._condition_check_items,
        TRANSACT_DELETE: transaction._delete_items,
        TRANSACT_PUT: transaction._put_items,
        TRANSACT_UPDATE: transaction._update_items,
    }
    return [(kind, item) for kind, items in kinds.items() for item in items]


def options_of(transaction: TransactWrite) -> dict[str, str]:
    """Return the parameters by which a transaction requests capacity and metrics in its answer."""
    connection = transaction._connection
    options: dict[str, str] = {}
    if transaction._return_consumed_capacity is not None:
        options |= connection.get_consumed_capacity_map(transaction._return_consumed_capacity)
    if transaction._return_item_collection_metrics is not None:
        options |= connection.get_item_collection_map(transaction._return_item_collection_metrics)
    return options


def update_local_versions(transaction: TransactWrite) -> None:
    """Update the version attributes of the instances in an applied transaction, as PynamoDB does."""
    row: Model
    for row in transaction._models_for_version_attribute_update:
        row.update_local_version_attribute()  # type: ignore[no-untyped-call]  # PynamoDB's


def replace_commit(
    transactions: type[TransactWrite], commit: Callable[[TransactWrite], Any]
) -> Callable[[TransactWrite], Any]:
    """Replace the method that commits every transaction of this process, and return the previous one.

    There is no other way. A row notices only that the user puts it into a transaction, because PynamoDB calls its
    ``get_save_kwargs_from_instance``. But the protocol must learn how the transaction ended: which guard refused it, or that it
    was applied although its answer was lost. With a subclass of TransactWrite, the transactions of users who do not know it
    would have no guard; and rows put plain dicts into a transaction, which learn nothing of its outcome.
    """
    before: Callable[[TransactWrite], Any] = transactions._commit
    transactions._commit = commit  # type: ignore[method-assign, assignment]  # on purpose
    return before
