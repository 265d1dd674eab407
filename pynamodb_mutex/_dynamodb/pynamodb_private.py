"""The private names of PynamoDB that this library uses, each behind a function, with its reason.

PynamoDB may change them in any release. There is a test for each, so that a change is found there, and
mended here.
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
    """Return the name of a model's hash key: of the attribute, not as it is stored.

    The public way, to search all attributes for the one with ``is_hash_key``, costs more than a lock has.
    """
    return model._hash_keyname or ""


def range_key_name(model: type[Model]) -> str | None:
    """Return the name of a model's range key, if it has one: see `hash_key_name`."""
    return model._range_keyname


def schema_of(model: type[Model]) -> Any:
    """Return what CreateTable would be asked for. PynamoDB's ``create_table`` takes no other options."""
    return model._get_schema()


def connection_of(model: type[Model]) -> TableConnection:
    """Return a model's own connection: as its Meta has it, retries and timeouts included."""
    return model._get_connection()


def forget_connection(model: type[Model]) -> None:
    """Let a model make its connection anew.

    For a subclass, because PynamoDB compares only the table's name and would use its parent's connection; and
    in a forked child, where parent and child would read each other's answers from one socket.
    """
    model._connection = None


# -- connections -----------------------------------------------------------------------------------


def without_retry_modes(connection: TableConnection) -> None:
    """Let a connection not take botocore's own retry modes from PynamoDB's settings.

    The library retries: it must know which attempt an answer belongs to.
    """
    connection.connection._retry_configuration = "LEGACY"


def access_key_of(connection: Connection) -> str | None:
    """Return the access key that a connection was given, if it was."""
    return connection._aws_access_key_id


# -- instances -------------------------------------------------------------------------------------


def version_condition(
    row: Model, attributes: dict[str, Any] | None, actions: list[Action] | None
) -> Condition | None:
    """Return the condition of a row's VersionAttribute, if it has one, and write its next value.

    Args:
        row: The instance.
        attributes: What a put carries; the next version is put there.
        actions: What an update does; the action that sets the next version is added.
    """
    return row._handle_version_attribute(attributes=attributes, actions=actions)


def serialized_key(row: Model) -> tuple[Any, Any]:
    """Return hash and range key of an instance as PynamoDB's requests take them."""
    return row._get_hash_range_key_serialized_values()


# -- transactions ----------------------------------------------------------------------------------


def connection_of_transaction(transaction: TransactWrite) -> Connection:
    """Return the connection that a transaction was made with."""
    return transaction._connection


def request_token_of(transaction: TransactWrite) -> str | None:
    """Return the ClientRequestToken that a transaction was given."""
    return transaction._client_request_token


def items_of(transaction: TransactWrite) -> list[tuple[str, dict[str, Any]]]:
    """Return what a transaction was given, each with its kind, in the order in which it is sent."""
    kinds = {
        TRANSACT_CONDITION_CHECK: transaction._condition_check_items,
        TRANSACT_DELETE: transaction._delete_items,
        TRANSACT_PUT: transaction._put_items,
        TRANSACT_UPDATE: transaction._update_items,
    }
    return [(kind, item) for kind, items in kinds.items() for item in items]


def options_of(transaction: TransactWrite) -> dict[str, str]:
    """Return what the caller requests in the answer to a transaction."""
    connection = transaction._connection
    options: dict[str, str] = {}
    if transaction._return_consumed_capacity is not None:
        options |= connection.get_consumed_capacity_map(transaction._return_consumed_capacity)
    if transaction._return_item_collection_metrics is not None:
        options |= connection.get_item_collection_map(transaction._return_item_collection_metrics)
    return options


def update_local_versions(transaction: TransactWrite) -> None:
    """Do what PynamoDB does with the instances of an applied transaction."""
    row: Model
    for row in transaction._models_for_version_attribute_update:
        row.update_local_version_attribute()  # type: ignore[no-untyped-call]  # PynamoDB's


def replace_commit(
    transactions: type[TransactWrite], commit: Callable[[TransactWrite], Any]
) -> Callable[[TransactWrite], Any]:
    """Replace how each transaction of the process is committed; return how it was.

    There is no way around it. A row only sees that it is put into a transaction, as an instance
    whose ``get_save_kwargs_from_instance`` is called; but the protocol must hear how the transaction ended: which
    guard refused it, and that it was applied although its answer was lost. A subclass of TransactWrite would
    leave every transaction unguarded whose author does not know of it, and what rows put into the
    transaction are plain dicts, which hear of nothing.
    """
    before: Callable[[TransactWrite], Any] = transactions._commit
    transactions._commit = commit  # type: ignore[method-assign, assignment]  # on purpose
    return before
