"""DynamoDB in memory: it evaluates the requests that the library sends, without threads and I/O.

`Tables.apply` takes an operation and its parameters as botocore's client does, and returns the answer or raises
`Refusal`. A call is one instant: all that a request changes is written at once. Delays, lost answers, the clocks of
DynamoDB's hosts and late reads are up to `network`.

Where DynamoDB and its emulators differ, this follows DynamoDB Local, with three exceptions for which it follows Amazon's
documentation. A transaction or a batch that names a row twice is refused before any part of it is evaluated. An update
in a transaction that does not fit its row cancels the transaction, with a reason for each part. And an update cannot
give a key attribute of an index another type.

Operations and parameters that are not supported raise NotImplementedError, because a guess would make the tests prove
the guess. The size of items is limited, that of requests and of answers other than pages is not. `expressions` says
what else is not checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dev.simulation.documents import Path, value_at
from dev.simulation.expressions import (
    Condition,
    Update,
    Values,
    expressions_of,
    shown,
    updated,
)
from dev.simulation.pages import query, scan
from dev.simulation.storage import Key, Table
from dev.simulation.values import (
    LARGEST_ITEM,
    Item,
    Refusal,
    UnfitError,
    canonical_item,
    check_known,
    copy_item,
    invalid,
    size_of_item,
)

__all__ = ["Refusal", "Tables"]

_MOST_IN_TRANSACTION = 100
_MOST_READ = 100
_MOST_WRITTEN = 25

_REQUEST_TOKENS_LAST = 600.0
"""Seconds for which the ClientRequestToken of a transaction is remembered."""


class _Change(NamedTuple):
    """The change that a write would make to one row.

    Attributes:
        table: The table.
        key: The row's key.
        old: The row before; None if there is none.
        new: The row after; None if it is deleted.
        paths: The paths that an update changes; empty for other writes.
    """

    table: Table
    key: Key
    old: Item | None
    new: Item | None
    paths: Sequence[Path]


_ALWAYS = {"TableName", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics"}
_PLACEHOLDERS = {"ExpressionAttributeNames", "ExpressionAttributeValues"}
_CONDITIONAL = (
    _ALWAYS
    | _PLACEHOLDERS
    | {"ConditionExpression", "ReturnValues", "ReturnValuesOnConditionCheckFailure"}
)
_PROJECTED = {"ExpressionAttributeNames", "ProjectionExpression"}
_DESCRIBED = {
    "AttributeDefinitions",
    "BillingMode",
    "GlobalSecondaryIndexes",
    "KeySchema",
    "LocalSecondaryIndexes",
    "ProvisionedThroughput",
    "StreamSpecification",
    "TableName",
    "Tags",
}
_UNDERSTOOD = {
    "BatchGetItem": {"RequestItems", "ReturnConsumedCapacity"},
    "BatchGetItem of a table": {"Keys", "ConsistentRead"} | _PROJECTED,
    "BatchWriteItem": {"RequestItems", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics"},
    "ConditionCheck": _CONDITIONAL | {"Key"},
    "CreateTable": _DESCRIBED,
    "Delete": _CONDITIONAL | {"Key"},
    "GetItem": _ALWAYS | _PROJECTED | {"Key", "ConsistentRead"},
    "Get": _PROJECTED | {"Key", "TableName"},
    "Put": _CONDITIONAL | {"Item"},
    "TransactGetItems": {"ReturnConsumedCapacity", "TransactItems"},
    "TransactWriteItems": {
        "ClientRequestToken",
        "ReturnConsumedCapacity",
        "ReturnItemCollectionMetrics",
        "TransactItems",
    },
    "Update": _CONDITIONAL | {"Key", "UpdateExpression"},
    "UpdateTable": {"BillingMode", "ProvisionedThroughput", "TableName"},
}
_RETURNED = {
    "Delete": {"NONE", "ALL_OLD"},
    "Put": {"NONE", "ALL_OLD"},
    "Update": {"NONE", "ALL_OLD", "ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"},
}
_DUPLICATES = "Provided list of item keys contains duplicates"
_TWICE = "Transaction request cannot include multiple operations on one item"


def _check_understood(operation: str, request: Mapping[str, Any]) -> None:
    check_known(operation, request, _UNDERSTOOD[operation])


def _copied(part: Any) -> Any:
    """Return a deep copy of a part of a request, which the caller may change into its next request."""
    if isinstance(part, dict):
        return {name: _copied(each) for name, each in part.items()}
    return [_copied(each) for each in part] if isinstance(part, list) else part


class Tables:
    """The tables of one account in one region.

    Answers contain copies, so a caller that changes an answer changes no row.

    Args:
        versions: Number of versions of each row to keep for late reads.
        clock: Returns server time in seconds; it decides when the tokens of transactions are forgotten.

    Attributes:
        clock: The same function.
        writes: Number of writes that were applied so far, over all tables. An eventually consistent read may be
            answered as of any of these numbers: see `apply`.
        watch: Called for each row that changes, with the table's name, the key, and the row before and after, where an
            empty one stands for none.
    """

    def __init__(self, *, versions: int = 16, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.writes = 0
        self.watch: Callable[[str, Any, Item, Item], object] = lambda *_: None
        self._kept = versions
        self.clock = clock
        self._tables: dict[str, Table] = {}
        self._transactions: dict[str, tuple[Any, float]] = {}
        self._reads: dict[str, Callable[[Any, int | None], dict[str, Any]]] = {
            "BatchGetItem": self._batch_get,
            "GetItem": self._get,
            "Query": lambda request, as_of: query(
                self._table(request["TableName"]), request, as_of
            ),
            "Scan": lambda request, as_of: scan(self._table(request["TableName"]), request, as_of),
        }
        self._others: dict[str, Callable[[Any], dict[str, Any]]] = {
            "BatchWriteItem": self._batch_write,
            "CreateTable": self._create_table,
            "DeleteItem": functools.partial(self._write, "Delete"),
            "DeleteTable": self._delete_table,
            "DescribeTable": self._describe_table,
            "DescribeTimeToLive": self._describe_time_to_live,
            "ListTables": self._list_tables,
            "PutItem": functools.partial(self._write, "Put"),
            "TransactGetItems": self._transact_get,
            "TransactWriteItems": self._transact_write,
            "UpdateItem": functools.partial(self._write, "Update"),
            "UpdateTable": self._update_table,
            "UpdateTimeToLive": self._update_time_to_live,
        }

    def apply(
        self, operation: str, kwargs: Mapping[str, Any], as_of: int | None = None
    ) -> dict[str, Any]:
        """Evaluate a request, and return its answer without ResponseMetadata.

        Args:
            operation: The operation, such as UpdateItem.
            kwargs: Its parameters, as botocore's client takes them.
            as_of: Number of `writes` as of which an eventually consistent read is answered; None for all. Ignored for
                other requests.

        Raises:
            Refusal: If DynamoDB refuses the request; nothing was written.
            NotImplementedError: If the operation or a parameter is not supported here.
        """
        if operation in self._reads:
            return self._reads[operation](kwargs, as_of)
        if operation not in self._others:
            raise NotImplementedError(f"{operation} is not known")
        return self._others[operation](kwargs)

    def row(self, table: str, key: tuple[Any, ...]) -> Item | None:
        """Return a row as it is now, or None. It is no copy, and must not be changed."""
        return self._table(table).read(key)

    def rows(self, table: str) -> list[Item]:
        """Return the rows of a table as they are now, in the order in which they were created.

        They are no copies, and must not be changed. A row that was not written between two calls is the same object.
        """
        return [*self._table(table).rows.values()]

    # -- tables ---------------------------------------------------------------------------------

    def _table(self, name: str) -> Table:
        table = self._tables.get(name)
        if table is None:
            raise Refusal("ResourceNotFoundException", "Requested resource not found")
        return table

    def _create_table(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _check_understood("CreateTable", request)
        table = Table(request, self._kept)
        if table.name in self._tables:
            raise Refusal("ResourceInUseException", f"Table already exists: {table.name}")
        self._tables[table.name] = table
        return {"TableDescription": {**table.description}}

    def _delete_table(self, request: Mapping[str, Any]) -> dict[str, Any]:
        description = self._table(request["TableName"]).description
        del self._tables[request["TableName"]]
        return {"TableDescription": {**description}}

    def _describe_table(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"Table": {**self._table(request["TableName"]).description}}

    def _list_tables(self, request: Mapping[str, Any]) -> dict[str, Any]:
        start, limit = request.get("ExclusiveStartTableName", ""), request.get("Limit", 100)
        names = sorted(name for name in self._tables if name > start)
        last = {"LastEvaluatedTableName": names[limit - 1]} if len(names) > limit else {}
        return {"TableNames": names[:limit], **last}

    def _update_table(self, request: Mapping[str, Any]) -> dict[str, Any]:
        _check_understood("UpdateTable", request)
        description = self._table(request["TableName"]).description
        if "BillingMode" in request:
            description["BillingModeSummary"] = {"BillingMode": request["BillingMode"]}
        if "ProvisionedThroughput" in request:
            description["ProvisionedThroughput"] = {**request["ProvisionedThroughput"]}
        return {"TableDescription": {**description}}

    def _update_time_to_live(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Store the setting. It deletes nothing: the schedule or test deletes expired rows when it likes."""
        given = request["TimeToLiveSpecification"]
        table = self._table(request["TableName"])
        if bool(table.time_to_live.get("Enabled")) == bool(given["Enabled"]):
            state = "enabled" if given["Enabled"] else "disabled"
            raise invalid(f"TimeToLive is already {state}")
        table.time_to_live = given
        return {"TimeToLiveSpecification": given}

    def _describe_time_to_live(self, request: Mapping[str, Any]) -> dict[str, Any]:
        given = self._table(request["TableName"]).time_to_live
        if not given.get("Enabled"):
            return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
        status = {"TimeToLiveStatus": "ENABLED", "AttributeName": given["AttributeName"]}
        return {"TimeToLiveDescription": status}

    # -- reads of rows by their keys ------------------------------------------------------------

    def _get(self, request: Mapping[str, Any], as_of: int | None) -> dict[str, Any]:
        _check_understood("GetItem", request)
        expressions, _ = expressions_of(request)
        table = self._table(request["TableName"])
        late = None if request.get("ConsistentRead") else as_of
        item = table.read(table.key_of(request["Key"]), late)
        return {} if item is None else {"Item": shown(item, expressions)}

    def _transact_get(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a TransactGetItems: several rows at one instant."""
        _check_understood("TransactGetItems", request)
        parts = [part["Get"] for part in request["TransactItems"]]
        if not 0 < len(parts) <= _MOST_IN_TRANSACTION:
            raise invalid("Member must have length less than or equal to 100, and not be empty")
        self._check_distinct([("Get", part) for part in parts])
        answers = []
        for part in parts:
            _check_understood("Get", part)
            expressions, _ = expressions_of(part)
            table = self._table(part["TableName"])
            item = table.read(table.key_of(part["Key"]))
            answers.append({} if item is None else {"Item": shown(item, expressions)})
        return {"Responses": answers}

    def _batch_get(self, request: Mapping[str, Any], as_of: int | None) -> dict[str, Any]:
        _check_understood("BatchGetItem", request)
        if not all(asked["Keys"] for asked in request["RequestItems"].values() or [{"Keys": ()}]):
            raise invalid("The list of keys in RequestItems for BatchGetItem is required")
        found: dict[str, list[Item]] = {}
        count = 0
        for name, asked in request["RequestItems"].items():
            _check_understood("BatchGetItem of a table", asked)
            expressions, _ = expressions_of(asked)
            table = self._table(name)
            late = None if asked.get("ConsistentRead") else as_of
            keys = [table.key_of(key) for key in asked["Keys"]]
            if len(set(keys)) < len(keys):
                raise invalid(_DUPLICATES)
            count += len(keys)
            rows = (table.read(key, late) for key in keys)
            found[name] = [shown(item, expressions) for item in rows if item is not None]
        if count > _MOST_READ:
            raise invalid("Too many items requested for the BatchGetItem call")
        return {"Responses": found, "UnprocessedKeys": {}}

    # -- writes ---------------------------------------------------------------------------------

    def _write(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a write of one row: a Put, Delete or Update."""
        returned = request.get("ReturnValues", "NONE")
        if returned not in _RETURNED[kind]:
            raise invalid("Return values set to invalid value")
        change = self._evaluate(kind, request)
        self._apply([change])
        if returned == "NONE":
            return {}
        item = (change.old if returned.endswith("OLD") else change.new) or {}
        if returned.startswith("UPDATED"):
            # each attribute as a whole, even if the update changes only a part of it; not if that part is absent
            names = {path[0] for path in change.paths if value_at(path, item) is not None}
            item = {name: value for name, value in item.items() if name in names}
        return {"Attributes": copy_item(item)} if item else {}

    def _evaluate(self, kind: str, request: Mapping[str, Any]) -> _Change:
        """Return the change that a write would make; nothing is written.

        Raises:
            Refusal: If it is invalid, or its condition does not hold.
        """
        _check_understood(kind, request)
        table = self._table(request["TableName"])
        is_put = kind == "Put"
        given = canonical_item(request["Item"]) if is_put else request["Key"]
        key = table.key_of(given, whole=is_put)
        # An invalid expression is refused before the condition is evaluated.
        expressions, values = expressions_of(request)
        if is_put:
            if size_of_item(given) > LARGEST_ITEM:
                raise invalid("Item size has exceeded the maximum allowed size")
            table.check_indexed(given)
        else:
            _check_keeps_key(expressions.update, table)
        old = table.read(key)
        _check_condition(expressions.condition, old, values, request)
        if is_put:
            return _Change(table, key, old, given, ())
        if kind == "Update":
            new = _after_update(table, key, old, expressions.update, values)
            return _Change(table, key, old, new, expressions.update.paths)
        return _Change(table, key, old, None if kind == "Delete" else old, ())

    def _apply(self, changes: Iterable[_Change]) -> None:
        """Apply changes that were evaluated. They count as one write: no late read shows only a part of them."""
        self.writes += 1
        for change in changes:
            # the deletion of a row that does not exist changes nothing, nor does a ConditionCheck
            if change.new is not change.old:
                change.table.write(change.key, change.new, self.writes)
                self.watch(change.table.name, change.key, change.old or {}, change.new or {})

    def _transact_write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a TransactWriteItems: write several rows, all or none."""
        _check_understood("TransactWriteItems", request)
        items = request["TransactItems"]
        if not 0 < len(items) <= _MOST_IN_TRANSACTION:
            raise invalid("Member must have length less than or equal to 100, and not be empty")
        token = request.get("ClientRequestToken")
        if token in self._transactions:
            applied, at = self._transactions[token]
            if self.clock() - at <= _REQUEST_TOKENS_LAST:
                if applied != items:
                    raise Refusal("IdempotentParameterMismatchException", "")
                # A repetition: the transaction has been applied. Its conditions are not evaluated again, though the
                # rows may have changed since.
                return {}
        parts = [part for item in items for part in item.items()]
        self._check_distinct(parts)
        self._apply(self._evaluate_together(parts))
        if token is not None:
            # only for a transaction that was applied: the repetition of a cancelled one is evaluated anew
            self._transactions[token] = _copied(items), self.clock()
        return {}

    def _evaluate_together(self, parts: list[tuple[str, Mapping[str, Any]]]) -> list[_Change]:
        """Return the changes of a transaction's parts, or refuse the whole with a reason for each part."""
        changes: list[_Change] = []
        reasons: list[dict[str, Any]] = []
        for kind, part in parts:
            reason: dict[str, Any] = {"Code": "None"}
            try:
                changes.append(self._evaluate(kind, part))
            except UnfitError as error:
                reason = {"Code": "ValidationError", "Message": error.message}
            except Refusal as error:
                if error.code != "ConditionalCheckFailedException":
                    raise
                reason = {"Code": "ConditionalCheckFailed", "Message": error.message}
                if error.item is not None:
                    reason["Item"] = error.item
            reasons.append(reason)
        if len(changes) < len(parts):
            codes = ", ".join(reason["Code"] for reason in reasons)
            raise Refusal(
                "TransactionCanceledException",
                "Transaction cancelled, please refer cancellation reasons for specific reasons "
                f"[{codes}]",
                reasons=reasons,
            )
        return changes

    def _check_distinct(self, parts: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Refuse a transaction that names a row twice."""
        rows = []
        for kind, part in parts:
            table = self._table(part["TableName"])
            is_put = kind == "Put"
            try:
                key = table.key_of(part["Item" if is_put else "Key"], whole=is_put)
            except UnfitError:
                # the key does not fit the table: this part cancels the transaction when it is evaluated
                continue
            rows.append((table.name, key))
        if len(set(rows)) < len(rows):
            raise invalid(_TWICE)

    def _batch_write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a BatchWriteItem: put and delete rows, each by itself and without a condition."""
        _check_understood("BatchWriteItem", request)
        parts = [
            (name, write) for name, writes in request["RequestItems"].items() for write in writes
        ]
        if not parts:
            raise invalid("BatchWriteItem cannot have a null or no requests set")
        if len(parts) > _MOST_WRITTEN:
            raise invalid("Too many items requested for the BatchWriteItem call")
        changes = [
            self._evaluate(kind.removesuffix("Request"), {"TableName": name, **part})
            for name, write in parts
            for kind, part in write.items()
        ]
        if len({(change.table.name, change.key) for change in changes}) < len(changes):
            raise invalid(_DUPLICATES)
        for change in changes:
            self._apply([change])
        return {"UnprocessedItems": {}}


# -- helpers of writes --------------------------------------------------------------------------


def _check_keeps_key(update: Update, table: Table) -> None:
    """Refuse an update that would change the row's key."""
    if not update.names.isdisjoint(table.key):
        name = min(update.names.intersection(table.key))
        raise UnfitError(
            f"One or more parameter values were invalid: Cannot update attribute {name}. "
            "This attribute is part of the key"
        )


def _check_condition(
    condition: Condition | None, old: Item | None, values: Values, request: Mapping[str, Any]
) -> None:
    """Refuse a write if its condition does not hold.

    Args:
        condition: The condition; None for none.
        old: The present row; None if there is none.
        values: Values of the placeholders.
        request: The request, which says whether the refusal is to carry the row.
    """
    if condition is not None and not condition.holds(old or {}, values):
        asked = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
        item = copy_item(old) if asked and old is not None else None
        raise Refusal("ConditionalCheckFailedException", "The conditional request failed", item)


def _after_update(table: Table, key: Key, old: Item | None, update: Update, values: Values) -> Item:
    """Return a row after an update, which creates a row that does not exist."""
    new = updated(table.named(key) if old is None else old, update, values)
    if size_of_item(new) > LARGEST_ITEM:
        raise UnfitError("Item size to update has exceeded the maximum allowed size")
    table.check_indexed(new)
    return new
