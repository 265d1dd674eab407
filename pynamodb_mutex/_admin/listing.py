"""Listing locks: the rows of a table that carry claims, page by page."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb.expressions.operand import Path, Value
from pynamodb.models import Model

from pynamodb_mutex._lock.dynamodb.store import Request
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.schedule import SCAN_PATIENCE
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb.expressions.condition import Condition

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.process_state import ProcessState

M = TypeVar("M", bound=Model)

_log = logging.getLogger("pynamodb_mutex")


def scan(
    store: Store,
    start: RawItem | None = None,
    limit: int | None = None,
    hash_key: RawItem | None = None,
) -> Request:
    """Return the request that reads the rows for a listing, such as rows with a claim, from one page of the table.

    Args:
        store: Where the rows are.
        start: The ``LastEvaluatedKey`` of the previous page; None for the first page.
        limit: Number of rows to read at most, with or without a claim; None for as many as a page has.
        hash_key: The hash key of the rows to read, by a Query; None for all rows.
    """
    names: dict[str, str] = {}
    kwargs: dict[str, Any] = {
        "TableName": store.connection.table_name,
        "FilterExpression": store.layout.is_listed.serialize(names, {}),
        "ConsistentRead": True,
    }
    for name, value in (hash_key or {}).items():
        condition: Condition = Path([name]) == Value(value)
        values = kwargs["ExpressionAttributeValues"] = {}
        kwargs["KeyConditionExpression"] = condition.serialize(names, values)
    kwargs["ExpressionAttributeNames"] = {short: name for name, short in names.items()}
    if start is not None:
        kwargs["ExclusiveStartKey"] = start
    if limit is not None:
        kwargs["Limit"] = limit
    return Request(store, "Scan" if hash_key is None else "Query", kwargs)


def page_of_claims(
    process: ProcessState, store: Store, start: RawItem | None, hash_key: RawItem | None
) -> Operation[dict[str, Any]]:
    """Read the rows that carry a claim from one page, and return DynamoDB's answer: see `scan`.

    Args:
        process: State of the process.
        store: Where the rows are.
        start: The end of the page before; None for the first page.
        hash_key: The hash key of the rows; None for all rows of the table.

    Raises:
        PynamoDBException: If it cannot be read within SCAN_PATIENCE.
    """
    until = process.now + SCAN_PATIENCE
    answer = yield from retrying(process, lambda: scan(store, start, hash_key=hash_key), until)
    return answer.data


def held_rows(model: type[M], hash_key: RawItem | None = None) -> Iterator[M]:
    """Iterate over the rows of a model, or of one hash key, whose locks are held now: see `LockItem.held`."""
    process = current_process()
    store, start = process.store(model), None
    while True:
        page = execute(process, page_of_claims(process, store, start, hash_key))
        for raw in page["Items"]:
            if hash_key is None and not store.layout.is_the_models(raw):
                continue
            claim = store.layout.claim(raw)
            try:
                claim.check()
                row = model.from_raw_data(raw)
            except Exception as error:  # noqa: BLE001 - an attribute may raise anything for a foreign value
                key = store.layout.key(raw)
                _log.warning(
                    "%s left out of %s.held(): %s",
                    *(shown(key), model.__name__, one_line(error)),
                    extra={"lock_key": key, "lock_owner": claim.owner, "fencing_token": None},
                )
                continue
            if claim.is_held(process.read_clock(), store.bounds):
                yield row
        start = page.get("LastEvaluatedKey")
        if start is None:
            return
