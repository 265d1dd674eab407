"""DynamoDB in memory, for virtual time: it evaluates the very requests that the library sends.

No thread, no clock, no I/O: `Tables.apply` takes an operation and its parameters as botocore's client
would, and returns the answer, or raises `Refusal`. One call is one instant: what is evaluated together
is written together. Delays, lost answers, hosts with clocks of their own and reads that are late belong
to the network around it.

Where DynamoDB and its emulators differ, this follows DynamoDB Local, but for three things in which
Amazon's documentation says otherwise: numbers are brought into one form by PartiQL, too; a transaction or
a batch that names a row twice is refused before anything in it is looked at; and an update in a transaction
that does not fit its row cancels the transaction, with a reason for each part.

What it does not know it refuses loudly, with NotImplementedError: to guess would be to test a guess.
Sizes of items and requests are not limited; see `expressions` for what else is not checked.
"""

from __future__ import annotations

import functools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dev.simulation.expressions import (
    COMPARISONS,
    NO_UPDATE,
    Item,
    Path,
    Refusal,
    UnfitError,
    Value,
    canonical,
    canonical_item,
    canonical_number,
    condition_of,
    copy_item,
    decimal_of,
    invalid,
    names_of,
    update_of,
    updated,
    value_at,
    values_of,
)

__all__ = ["Refusal", "Tables"]

_MOST_IN_TRANSACTION = 100
_MOST_READ = 100
_MOST_WRITTEN = 25


# -- statements in PartiQL ----------------------------------------------------------------------

_NAME = r'(?:"(?:[^"]|"")+"|[A-Za-z_]\w*)'
_SET = rf"({_NAME})\s*=\s*\?"
_TEST = rf"({_NAME})\s*(<>|<=|>=|=|<|>)\s*\?"
_STATEMENT = re.compile(
    rf"""\s*UPDATE\s+(?P<table>{_NAME})\s+
    (?P<sets>(?:SET\s+{_SET}(?:\s*,\s*{_SET})*\s+)+)
    WHERE\s+(?P<tests>{_TEST}(?:\s+AND\s+{_TEST})*)\s*
    (?:RETURNING\s+(?P<which>ALL|MODIFIED)\s+(?P<when>OLD|NEW)\s*\*\s*)?""",
    re.IGNORECASE | re.VERBOSE,
)


class _Statement(NamedTuple):
    """An UPDATE that sets attributes, on comparisons that are joined by AND; parameters in order."""

    table: str
    sets: list[str]
    tests: list[tuple[str, str]]
    which: str
    when: str


@functools.lru_cache(maxsize=256)
def _statement(text: str) -> _Statement:
    found = _STATEMENT.fullmatch(text)
    if found is None:
        raise NotImplementedError(f"no PartiQL but UPDATE ... SET ... WHERE is known here: {text}")

    def name(written: str) -> str:
        return written[1:-1].replace('""', '"') if written.startswith('"') else written

    sets = [name(each) for each in re.findall(_SET, found["sets"])]
    tests = [(name(each), sign) for each, sign in re.findall(_TEST, found["tests"])]
    which, when = (found["which"] or "").upper(), (found["when"] or "").upper()
    return _Statement(name(found["table"]), sets, tests, which, when)


# -- tables -------------------------------------------------------------------------------------

_Key = tuple[Any, ...]


class _Row:
    """One key's versions, each with the number of the write that made it. The last one is the row."""

    def __init__(self, kept: int) -> None:
        self.versions: deque[tuple[int, Item | None]] = deque([(0, None)], maxlen=kept)

    def read(self, as_of: int | None) -> Item | None:
        if as_of is None:
            return self.versions[-1][1]
        known = (item for number, item in reversed(self.versions) if number <= as_of)
        return next(known, self.versions[0][1])


class _Table:
    def __init__(self, request: Mapping[str, Any], kept: int) -> None:
        self.name: str = request["TableName"]
        kinds = {
            each["AttributeName"]: each["AttributeType"] for each in request["AttributeDefinitions"]
        }
        # KeySchema names the hash key first
        self.key = {
            each["AttributeName"]: kinds[each["AttributeName"]] for each in request["KeySchema"]
        }
        self.description = {
            "TableName": self.name,
            "TableStatus": "ACTIVE",
            "KeySchema": request["KeySchema"],
            "AttributeDefinitions": request["AttributeDefinitions"],
        }
        self.time_to_live: dict[str, Any] = {}
        self._rows: dict[_Key, _Row] = {}
        self._kept = kept

    def key_of(self, key: Mapping[str, Value], *, whole: bool = False) -> _Key:
        """Return what a row is found by.

        Args:
            key: The key, or in a put the whole row.
            whole: It is the whole row.
        """
        if not whole and len(key) != len(self.key):
            raise invalid("The provided key element does not match the schema")
        found = []
        for name, kind in self.key.items():
            content = key.get(name, {}).get(kind)
            if content is None:
                raise invalid("The provided key element does not match the schema")
            if not content:
                raise invalid(
                    "One or more parameter values are not valid. The AttributeValue for a key attribute "
                    f"cannot contain an empty string value. Key: {name}"
                )
            found.append(canonical_number(content) if kind == "N" else content)
        return tuple(found)

    def named(self, key: _Key) -> Item:
        """Return a row's key as it stands in a request."""
        return {
            name: {kind: part} for (name, kind), part in zip(self.key.items(), key, strict=True)
        }

    def read(self, key: _Key, as_of: int | None = None) -> Item | None:
        row = self._rows.get(key)
        return None if row is None else row.read(as_of)

    def write(self, key: _Key, item: Item | None, number: int) -> None:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(self._kept)
        row.versions.append((number, item))

    def keys(self) -> list[_Key]:
        """Return the keys of all rows, in the order of their values."""
        return sorted(self._rows, key=self.order)

    def order(self, key: _Key) -> _Key:
        """Return what a key is sorted by."""
        kinds = self.key.values()
        return tuple(
            decimal_of(part) if kind == "N" else part for kind, part in zip(kinds, key, strict=True)
        )


class _Change(NamedTuple):
    """What a write would do to one row."""

    table: _Table
    key: _Key
    old: Item | None
    new: Item | None
    paths: list[Path]  # that an update names


_ALWAYS = {"TableName", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics"}
_CONDITIONAL = _ALWAYS | {
    "ConditionExpression",
    "ExpressionAttributeNames",
    "ExpressionAttributeValues",
    "ReturnValues",
    "ReturnValuesOnConditionCheckFailure",
}
_UNDERSTOOD = {
    "BatchExecuteStatement": {"Statements", "ReturnConsumedCapacity"},
    "BatchGetItem": {"RequestItems", "ReturnConsumedCapacity"},
    "BatchWriteItem": {"RequestItems", "ReturnConsumedCapacity", "ReturnItemCollectionMetrics"},
    "ConditionCheck": _CONDITIONAL | {"Key"},
    "Delete": _CONDITIONAL | {"Key"},
    "GetItem": _ALWAYS | {"Key", "ConsistentRead"},
    "Put": _CONDITIONAL | {"Item"},
    "Scan": _ALWAYS
    | {
        "ConsistentRead",
        "ExclusiveStartKey",
        "ExpressionAttributeNames",
        "ExpressionAttributeValues",
        "FilterExpression",
        "Limit",
    },
    "TransactWriteItems": {
        "ClientRequestToken",
        "ReturnConsumedCapacity",
        "ReturnItemCollectionMetrics",
        "TransactItems",
    },
    "Update": _CONDITIONAL | {"Key", "UpdateExpression"},
}
_DUPLICATES = "Provided list of item keys contains duplicates"


def _check_understood(operation: str, request: Mapping[str, Any]) -> None:
    if not request.keys() <= _UNDERSTOOD[operation]:
        strange = sorted(request.keys() - _UNDERSTOOD[operation])
        raise NotImplementedError(f"{operation} is not known with {', '.join(strange)}")


class Tables:
    """The tables of one account in one region.

    Answers hold copies: what a caller does with them changes no row.

    Args:
        versions: Of each row, so many versions are kept for reads that are late.

    Attributes:
        writes: How many writes were applied so far, over all tables. A read that is not consistent may be
            answered as of any of these numbers: see `apply`.
        watch: Called for each row that changes: with its table and key, and what it was before and is now.
    """

    def __init__(self, *, versions: int = 16) -> None:
        self.writes = 0
        self.watch: Callable[[str, _Key, Item, Item], object] = lambda *_: None
        self._kept = versions
        self._tables: dict[str, _Table] = {}
        self._transactions: dict[str, str] = {}
        self._reads: dict[str, Callable[[Any, int | None], dict[str, Any]]] = {
            "BatchGetItem": self._batch_get,
            "GetItem": self._get,
            "Scan": self._scan,
        }
        self._writes: dict[str, Callable[[Any], dict[str, Any]]] = {
            "BatchExecuteStatement": self._batch_execute,
            "BatchWriteItem": self._batch_write,
            "CreateTable": self._create_table,
            "DeleteItem": functools.partial(self._write, "Delete"),
            "DescribeTable": self._describe_table,
            "DescribeTimeToLive": self._describe_time_to_live,
            "PutItem": functools.partial(self._write, "Put"),
            "TransactWriteItems": self._transact,
            "UpdateItem": functools.partial(self._write, "Update"),
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
        if operation not in self._writes:
            raise NotImplementedError(f"{operation} is not known")
        return self._writes[operation](kwargs)

    def row(self, table: str, key: _Key) -> Item | None:
        """Return a row as it stands; not to be changed."""
        return self._table(table).read(key)

    def forget(self, request_token: str) -> None:
        """Forget a transaction's token, as DynamoDB does ten minutes after it was applied."""
        self._transactions.pop(request_token, None)

    # -- tables ---------------------------------------------------------------------------------

    def _table(self, name: str) -> _Table:
        table = self._tables.get(name)
        if table is None:
            raise Refusal("ResourceNotFoundException", "Requested resource not found")
        return table

    def _create_table(self, request: Mapping[str, Any]) -> dict[str, Any]:
        table = _Table(request, self._kept)
        if table.name in self._tables:
            raise Refusal("ResourceInUseException", f"Table already exists: {table.name}")
        self._tables[table.name] = table
        return {"TableDescription": table.description}

    def _describe_table(self, request: Mapping[str, Any]) -> dict[str, Any]:
        return {"Table": self._table(request["TableName"]).description}

    def _update_time_to_live(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Accept it: who plays DynamoDB deletes what has expired, early or late as it pleases."""
        given = request["TimeToLiveSpecification"]
        self._table(request["TableName"]).time_to_live = given
        return {"TimeToLiveSpecification": given}

    def _describe_time_to_live(self, request: Mapping[str, Any]) -> dict[str, Any]:
        given = self._table(request["TableName"]).time_to_live
        if not given.get("Enabled"):
            return {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}}
        status = {"TimeToLiveStatus": "ENABLED", "AttributeName": given["AttributeName"]}
        return {"TimeToLiveDescription": status}

    # -- reads ----------------------------------------------------------------------------------

    def _get(self, request: Mapping[str, Any], as_of: int | None) -> dict[str, Any]:
        _check_understood("GetItem", request)
        table = self._table(request["TableName"])
        late = None if request.get("ConsistentRead") else as_of
        item = table.read(table.key_of(request["Key"]), late)
        return {} if item is None else {"Item": copy_item(item)}

    def _batch_get(self, request: Mapping[str, Any], as_of: int | None) -> dict[str, Any]:
        _check_understood("BatchGetItem", request)
        found: dict[str, list[Item]] = {}
        count = 0
        for name, wanted in request["RequestItems"].items():
            if not wanted.keys() <= {"Keys", "ConsistentRead"}:
                raise NotImplementedError(f"BatchGetItem is not known with {[*wanted]}")
            table = self._table(name)
            late = None if wanted.get("ConsistentRead") else as_of
            keys = [table.key_of(key) for key in wanted["Keys"]]
            if len(set(keys)) < len(keys):
                raise invalid(_DUPLICATES)
            count += len(keys)
            rows = (table.read(key, late) for key in keys)
            found[name] = [copy_item(item) for item in rows if item is not None]
        if count > _MOST_READ:
            raise invalid("Too many items requested for the BatchGetItem call")
        return {"Responses": found, "UnprocessedKeys": {}}

    def _scan(self, request: Mapping[str, Any], as_of: int | None) -> dict[str, Any]:
        """Read rows in the order of their keys.

        As in DynamoDB, Limit counts rows before the filter, and a page that is full has an end to go on
        from, even if nothing follows.
        """
        _check_understood("Scan", request)
        table = self._table(request["TableName"])
        late = None if request.get("ConsistentRead") else as_of
        text, values = request.get("FilterExpression"), values_of(request)
        fits = None if text is None else condition_of(text, names_of(request))
        start, limit = request.get("ExclusiveStartKey"), request.get("Limit")
        keys: Iterator[_Key] = iter(table.keys())
        if start is not None:
            after = table.order(table.key_of(start))
            keys = (key for key in keys if table.order(key) > after)
        items: list[Item] = []
        scanned = 0
        answer: dict[str, Any] = {"Items": items}
        for key in keys:
            item = table.read(key, late)
            if item is None:
                continue
            scanned += 1
            if fits is None or fits(item, values):
                items.append(copy_item(item))
            if scanned == limit:
                answer["LastEvaluatedKey"] = table.named(key)
                break
        return answer | {"Count": len(items), "ScannedCount": scanned}

    # -- writes ---------------------------------------------------------------------------------

    def _write(self, kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a write of one row, a Put, Delete or Update."""
        returned = request.get("ReturnValues", "NONE")
        if kind != "Update" and returned not in {"NONE", "ALL_OLD"}:
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
        given = canonical_item(request["Item"]) if kind == "Put" else request["Key"]
        key = table.key_of(given, whole=kind == "Put")
        names, values = names_of(request), values_of(request)
        # What is wrong with an expression is found before any condition is looked at.
        text, update_text = request.get("ConditionExpression"), request.get("UpdateExpression")
        condition = None if text is None else condition_of(text, names)
        update = NO_UPDATE if update_text is None else update_of(update_text, names)
        for path in update.paths:
            if path[0] in table.key:
                raise UnfitError(
                    "One or more parameter values were invalid: "
                    f"Cannot update attribute {path[0]}. This attribute is part of the key"
                )
        old = table.read(key)
        if condition is not None and not condition(old or {}, values):
            asked = request.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
            item = copy_item(old) if asked and old is not None else None
            raise Refusal("ConditionalCheckFailedException", "The conditional request failed", item)
        new: Item | None
        if kind == "Put":
            new = given
        elif kind == "Update":
            # an update of a row that is not there makes it
            new = updated(canonical_item(given) if old is None else old, update, values)
        else:
            new = None if kind == "Delete" else old
        return _Change(table, key, old, new, update.paths)

    def _apply(self, changes: Iterable[_Change]) -> None:
        """Write what was evaluated. It counts as one write: no read shows a part of it."""
        self.writes += 1
        for change in changes:
            # the delete of a row that is not there changes nothing, nor does a check
            if change.new is not change.old:
                change.table.write(change.key, change.new, self.writes)
                self.watch(change.table.name, change.key, change.old or {}, change.new or {})

    def _transact(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Write several rows, all or none."""
        _check_understood("TransactWriteItems", request)
        items = request["TransactItems"]
        if not 0 < len(items) <= _MOST_IN_TRANSACTION:
            raise invalid("Member must have length less than or equal to 100, and not be empty")
        token, content = request.get("ClientRequestToken"), ""
        if token is not None:
            content = json.dumps(items, sort_keys=True, default=repr)
            applied = self._transactions.get(token, content)
            if applied != content:
                raise Refusal("IdempotentParameterMismatchException", "")
            if token in self._transactions:
                # it has been applied: that is the answer, whatever has become of the rows since
                return {}
        parts = [part for item in items for part in item.items()]
        self._check_distinct(parts)
        changes = self._evaluate_together(parts)
        self._apply(changes)
        if token is not None:
            # a transaction that was cancelled leaves no token: its repetition is looked at anew
            self._transactions[token] = content
        return {}

    def _evaluate_together(self, parts: list[tuple[str, dict[str, Any]]]) -> list[_Change]:
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

    def _check_distinct(self, parts: list[tuple[str, dict[str, Any]]]) -> None:
        rows = set()
        for kind, part in parts:
            table = self._table(part["TableName"])
            put = kind == "Put"
            rows.add((table.name, table.key_of(part["Item" if put else "Key"], whole=put)))
        if len(rows) < len(parts):
            raise invalid("Transaction request cannot include multiple operations on one item")

    def _batch_write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Put and delete rows, each for itself and on no condition."""
        _check_understood("BatchWriteItem", request)
        parts = [
            (kind.removesuffix("Request"), {"TableName": name, **part})
            for name, writes in request["RequestItems"].items()
            for write in writes
            for kind, part in write.items()
        ]
        if len(parts) > _MOST_WRITTEN:
            raise invalid("Too many items requested for the BatchWriteItem call")
        changes = [self._evaluate(kind, part) for kind, part in parts]
        if len({(change.table.name, change.key) for change in changes}) < len(changes):
            raise invalid(_DUPLICATES)
        for change in changes:
            self._apply([change])
        return {"UnprocessedItems": {}}

    # -- PartiQL --------------------------------------------------------------------------------

    def _batch_execute(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run updates in PartiQL, each with a condition and an outcome of its own."""
        _check_understood("BatchExecuteStatement", request)
        statements = request["Statements"]
        if not 0 < len(statements) <= _MOST_WRITTEN:
            raise invalid("Member must have length less than or equal to 25, and not be empty")
        read = [(_statement(each["Statement"]), each) for each in statements]
        evaluated = [self._evaluate_statement(statement, each) for statement, each in read]
        changes = [change for change in evaluated if isinstance(change, _Change)]
        rows = [(change.table.name, change.key) for change in changes]
        if len(set(rows)) < len(rows):
            raise invalid(_DUPLICATES)
        answers: list[dict[str, Any]] = []
        for (statement, given), change in zip(read, evaluated, strict=True):
            if not isinstance(change, _Change):
                answers.append(change)
                continue
            answers.append(
                {"TableName": statement.table, **self._outcome(statement, given, change)}
            )
        return {"Responses": answers}

    def _evaluate_statement(
        self, statement: _Statement, given: Mapping[str, Any]
    ) -> _Change | dict[str, Any]:
        """Return what a statement would write, new being None if its condition refuses it.

        A statement that cannot be run returns its answer.
        """
        table = self._tables.get(statement.table)
        if table is None:
            return _failed("ResourceNotFound", "Requested resource not found")
        parameters = [canonical(value) for value in given.get("Parameters", ())]
        if len(parameters) != len(statement.sets) + len(statement.tests):
            return _failed(
                "ValidationError", "Number of parameters in request and statement don't match."
            )
        sets = dict(zip(statement.sets, parameters, strict=False))
        tests = [*zip(statement.tests, parameters[len(sets) :], strict=True)]
        # comparisons with key attributes name the row, the others are its condition
        named = {name: value for (name, sign), value in tests if sign == "=" and name in table.key}
        try:
            key = table.key_of(named)
        except Refusal:
            return _failed(
                "ValidationError",
                "Where clause does not contain a mandatory equality on all key attributes",
            )
        if not table.key.keys().isdisjoint(sets):
            return _failed("ValidationError", "Cannot update an attribute that is part of the key")
        old = table.read(key)
        # an UPDATE makes no row
        holds = old is not None and all(
            COMPARISONS[sign](old.get(name), value) for (name, sign), value in tests
        )
        paths: list[Path] = [(name,) for name in sets]
        return _Change(table, key, old, {**(old or {}), **sets} if holds else None, paths)

    def _outcome(
        self, statement: _Statement, given: Mapping[str, Any], change: _Change
    ) -> dict[str, Any]:
        """Write what a statement came to, if its condition held, and return its answer."""
        if change.new is None:
            asked = given.get("ReturnValuesOnConditionCheckFailure") == "ALL_OLD"
            old = {"Item": copy_item(change.old)} if asked and change.old is not None else {}
            return _failed("ConditionalCheckFailed", "The conditional request failed", **old)
        self._apply([change])
        if not statement.when:
            return {}
        item = (change.old if statement.when == "OLD" else change.new) or {}
        if statement.which == "MODIFIED":
            item = {name: value for name, value in item.items() if name in statement.sets}
        return {"Item": copy_item(item)} if item else {}


def _failed(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"Error": {"Code": code, "Message": message, **more}}
