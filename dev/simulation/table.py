"""DynamoDB in memory, for virtual time: it evaluates the very requests that the library sends.

No thread, no I/O: `Tables.apply` takes an operation and its parameters as botocore's client would, and
returns the answer, or raises `Refusal`. One call is one instant: what is evaluated together is written
together. Delays, lost answers, hosts with clocks of their own and reads that are late belong to the network
around it.

Where DynamoDB and its emulators differ, this follows DynamoDB Local, but for what Amazon's documentation says
otherwise: numbers are brought into one form by PartiQL, too; a transaction or a batch that names a row twice is
refused before anything in it is looked at; an update in a transaction that does not fit its row cancels the
transaction, with a reason for each part; and an update cannot give an index's key another type.

What it does not know it refuses loudly, with NotImplementedError: to guess would be to test a guess. Items are
limited in size, requests and answers but for pages are not; see `expressions` for what else is not checked.
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
from dev.simulation.partiql import Statement, statement_of
from dev.simulation.storage import Key, Table
from dev.simulation.values import (
    LARGEST_ITEM,
    Item,
    Refusal,
    UnfitError,
    canonical,
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
"""Seconds within which the repetition of a transaction is recognised."""


class _Change(NamedTuple):
    """What a write would do to one row."""

    table: Table
    key: Key
    old: Item | None
    new: Item | None
    paths: Sequence[Path]  # that an update names


class _Executed(NamedTuple):
    """What a statement in PartiQL comes to."""

    answer: dict[str, Any]
    row: tuple[str, Key] | None  # that it names
    change: _Change | None  # None if it was refused


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
    "BatchExecuteStatement": {"Statements", "ReturnConsumedCapacity"},
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
    """Copy the dicts and lists of a request, of which the caller may make another one."""
    if isinstance(part, dict):
        return {name: _copied(each) for name, each in part.items()}
    return [_copied(each) for each in part] if isinstance(part, list) else part


class Tables:
    """The tables of one account in one region.

    Answers hold copies: what a caller does with them changes no row.

    Args:
        versions: Of each row, so many versions are kept for reads that are late.
        clock: Seconds of the server's time, by which the tokens of transactions are forgotten.

    Attributes:
        clock: The same.
        writes: How many writes were applied so far, over all tables. A read that is not consistent may be
            answered as of any of these numbers: see `apply`.
        watch: Called for each row that changes: with its table and key, and what it was before and is now.
        batch_limit: How many rows a batch reads or writes before it leaves the others unprocessed, as
            DynamoDB does when it is busy: one at least. None if it never is.
    """

    def __init__(self, *, versions: int = 16, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.writes = 0
        self.watch: Callable[[str, Any, Item, Item], object] = lambda *_: None
        self.batch_limit: int | None = None
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
            "BatchExecuteStatement": self._batch_execute,
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
            operation: Such as UpdateItem.
            kwargs: Its parameters, as botocore's client takes them.
            as_of: For a read that is not consistent: it shows no write after this number of `writes`.

        Raises:
            Refusal: DynamoDB refuses it; nothing was written.
            NotImplementedError: It has parameters, or is an operation, that is not known here.
        """
        if operation in self._reads:
            return self._reads[operation](kwargs, as_of)
        if operation not in self._others:
            raise NotImplementedError(f"{operation} is not known")
        return self._others[operation](kwargs)

    def row(self, table: str, key: tuple[Any, ...]) -> Item | None:
        """Return a row as it stands; not to be changed."""
        return self._table(table).read(key)

    def rows(self, table: str) -> list[Item]:
        """Return the rows of a table as they are, in the order in which they were made.

        For observers: they are no copies, and must not be changed. A row that was not written since is the
        same object.
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
        """Accept it: who plays DynamoDB deletes what has expired, early or late as it pleases."""
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
        """Read several rows at one instant."""
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
        unprocessed: dict[str, dict[str, Any]] = {}
        count = 0
        for name, asked in request["RequestItems"].items():
            _check_understood("BatchGetItem of a table", asked)
            expressions, _ = expressions_of(asked)
            table = self._table(name)
            late = None if asked.get("ConsistentRead") else as_of
            keys = [table.key_of(key) for key in asked["Keys"]]
            if len(set(keys)) < len(keys):
                raise invalid(_DUPLICATES)
            read = self._most_of(len(keys), count)
            count += len(keys)
            rows = (table.read(key, late) for key in keys[:read])
            found[name] = [shown(item, expressions) for item in rows if item is not None]
            if read < len(keys):
                unprocessed[name] = {**asked, "Keys": asked["Keys"][read:]}
        if count > _MOST_READ:
            raise invalid("Too many items requested for the BatchGetItem call")
        return {"Responses": found, "UnprocessedKeys": unprocessed}

    def _most_of(self, asked: int, processed: int) -> int:
        """Return how many of the rows that a batch asks for are processed, after some of it were."""
        if self.batch_limit is None:
            return asked
        return min(asked, max(0, self.batch_limit - processed))

    # -- writes ---------------------------------------------------------------------------------

    def _write(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a write of one row, a Put, Delete or Update."""
        returned = request.get("ReturnValues", "NONE")
        if returned not in _RETURNED[kind]:
            raise invalid("Return values set to invalid value")
        change = self._evaluate(kind, request)
        self._apply([change])
        if returned == "NONE":
            return {}
        item = (change.old if returned.endswith("OLD") else change.new) or {}
        if returned.startswith("UPDATED"):
            # the whole attribute, also where the update names but a part of it that is there
            names = {path[0] for path in change.paths if value_at(path, item) is not None}
            item = {name: value for name, value in item.items() if name in names}
        return {"Attributes": copy_item(item)} if item else {}

    def _evaluate(self, kind: str, request: Mapping[str, Any]) -> _Change:
        """Return what a write would do; nothing is written.

        Raises:
            Refusal: It is invalid, or its condition does not hold.
        """
        _check_understood(kind, request)
        table = self._table(request["TableName"])
        is_put = kind == "Put"
        given = canonical_item(request["Item"]) if is_put else request["Key"]
        key = table.key_of(given, whole=is_put)
        # What is wrong with an expression is found before any condition is looked at.
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
        """Write what was evaluated. It counts as one write: no read shows a part of it."""
        self.writes += 1
        for change in changes:
            # the delete of a row that is not there changes nothing, nor does a check
            if change.new is not change.old:
                change.table.write(change.key, change.new, self.writes)
                self.watch(change.table.name, change.key, change.old or {}, change.new or {})

    def _transact_write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Write several rows, all or none."""
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
                # it has been applied: that is the answer, whatever has become of the rows since
                return {}
        parts = [part for item in items for part in item.items()]
        self._check_distinct(parts)
        self._apply(self._evaluate_together(parts))
        if token is not None:
            # a transaction that was cancelled leaves no token: its repetition is looked at anew
            self._transactions[token] = _copied(items), self.clock()
        return {}

    def _evaluate_together(self, parts: list[tuple[str, Mapping[str, Any]]]) -> list[_Change]:
        """Return what the parts of a transaction would do, or refuse all with a reason for each."""
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
        rows = []
        for kind, part in parts:
            table = self._table(part["TableName"])
            is_put = kind == "Put"
            try:
                key = table.key_of(part["Item" if is_put else "Key"], whole=is_put)
            except UnfitError:
                # this part will cancel the transaction
                continue
            rows.append((table.name, key))
        if len(set(rows)) < len(rows):
            raise invalid(_TWICE)

    def _batch_write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put and delete rows, each for itself and on no condition."""
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
        written = self._most_of(len(changes), 0)
        for change in changes[:written]:
            self._apply([change])
        unprocessed: dict[str, list[Any]] = {}
        for name, write in parts[written:]:
            unprocessed.setdefault(name, []).append(write)
        return {"UnprocessedItems": unprocessed}

    # -- PartiQL --------------------------------------------------------------------------------

    def _batch_execute(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run updates in PartiQL, each with a condition and an outcome of its own."""
        _check_understood("BatchExecuteStatement", request)
        statements = request["Statements"]
        if not 0 < len(statements) <= _MOST_WRITTEN:
            raise invalid("Member must have length less than or equal to 25, and not be empty")
        executed = [self._execute(each) for each in statements]
        rows = [each.row for each in executed if each.row is not None]
        if len(set(rows)) < len(rows):
            raise invalid(_DUPLICATES)
        for each in executed:
            if each.change is not None:
                self._apply([each.change])
        return {"Responses": [each.answer for each in executed]}

    def _execute(self, given: Mapping[str, Any]) -> _Executed:
        """Return what a statement would do, and the answer to it; nothing is written."""
        parameters = [canonical(value) for value in given.get("Parameters", ())]
        values = {f":{at}": value for at, value in enumerate(parameters)}
        try:
            statement = statement_of(
                given["Statement"], tuple([kind for value in parameters for kind in value])
            )
            if statement.parameters != len(parameters):
                raise invalid("Number of parameters in request and statement don't match.")
            table = self._table(statement.table)
            named = _key_of(statement, table, values)
        except Refusal as refusal:
            return _Executed(_failed(refusal), None, None)
        answer: dict[str, Any] = {"TableName": table.name}
        row = None
        try:
            key = table.key_of(named)
            row = (table.name, key)
            _check_keeps_key(statement.update, table)
            old = table.read(key)
            # an UPDATE makes no row
            _check_condition(statement.condition, old, values, given, makes=False)
            new = _after_update(table, key, old, statement.update, values)
        except Refusal as refusal:
            return _Executed(answer | _failed(refusal), row, None)
        item = ((old if statement.when == "OLD" else new) or {}) if statement.when else {}
        if statement.which == "MODIFIED":
            names = statement.update.names
            item = {name: value for name, value in item.items() if name in names}
        if item:
            answer["Item"] = copy_item(item)
        return _Executed(answer, row, _Change(table, key, old, new, statement.update.paths))


# -- what writes have in common -----------------------------------------------------------------


def _check_keeps_key(update: Update, table: Table) -> None:
    if not update.names.isdisjoint(table.key):
        name = min(update.names.intersection(table.key))
        raise UnfitError(
            f"One or more parameter values were invalid: Cannot update attribute {name}. "
            "This attribute is part of the key"
        )


def _check_condition(
    condition: Condition | None,
    old: Item | None,
    values: Values,
    request: Mapping[str, Any],
    *,
    makes: bool = True,
) -> None:
    """Refuse a write if its condition does not hold.

    Args:
        condition: Its condition.
        old: The row, if there is one.
        values: Of the placeholders.
        request: Whether it asks for the row that refuses.
        makes: Whether the write makes a row that is not there.
    """
    if old is None and not makes:
        holds = False
    else:
        holds = condition is None or condition.holds(old or {}, values)
    if not holds:
        asked = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
        item = copy_item(old) if asked and old is not None else None
        raise Refusal("ConditionalCheckFailedException", "The conditional request failed", item)


def _after_update(table: Table, key: Key, old: Item | None, update: Update, values: Values) -> Item:
    """Return a row after an update; of a row that is not there it makes one."""
    new = updated(table.named(key) if old is None else old, update, values)
    if size_of_item(new) > LARGEST_ITEM:
        raise UnfitError("Item size to update has exceeded the maximum allowed size")
    table.check_indexed(new)
    return new


def _key_of(statement: Statement, table: Table, values: Values) -> Item:
    """Return the key of the row that a statement names: its other comparisons are its condition."""
    named: Item = {}
    equal = statement.equalities()
    for name, kind in table.key.items():
        given = [values[placeholder] for placeholder in equal.get(name, ())]
        if not given:
            raise invalid(
                "Where clause does not contain a mandatory equality on all key attributes"
            )
        if any(value != given[0] for value in given):
            raise invalid(f"Multiple conditions on same key {name}.")
        if kind not in given[0]:
            raise invalid(
                "Key attribute's data type should match its data type in table's schema: "
                f"Key {name}"
            )
        named[name] = given[0]
    return named


_CODES = {
    "ConditionalCheckFailedException": "ConditionalCheckFailed",
    "ResourceNotFoundException": "ResourceNotFound",
    "ValidationException": "ValidationError",
}


def _failed(refusal: Refusal) -> dict[str, Any]:
    """Return the answer to a statement that was refused."""
    old = {} if refusal.item is None else {"Item": refusal.item}
    return {"Error": {"Code": _CODES[refusal.code], "Message": refusal.message, **old}}
