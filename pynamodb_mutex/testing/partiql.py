"""PartiQL for the embedded DynamoDB: runs each UPDATE of a BatchExecuteStatement as an UpdateItem of moto's.

Statements are parsed here, and answers put together. Whether a condition holds, and what is written then, is left to
moto. Updates are understood that set attributes to values, on comparisons joined by AND; others are refused.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple

from moto.dynamodb.parsing.reserved_keywords import ReservedKeywords
from werkzeug.wrappers import Response

Send = Callable[[str, dict[str, Any]], Response]  # to moto: an operation and its content

_MOST_STATEMENTS = 25
_FLAGS = re.ASCII | re.IGNORECASE | re.VERBOSE
# moto lists more words than DynamoDB requires in quotes: no statement passes here that DynamoDB would refuse for them.
_RESERVED = "|".join(ReservedKeywords.get_reserved_keywords())
_NAME = rf'(?: "(?:[^"]|"")+" | (?!(?:{_RESERVED})(?![\w$])) [a-z_$][\w$]*(?![\w$]) )'
_SET = rf"({_NAME}) \s* = \s* \?"
_TEST = rf"({_NAME}) \s* (<> | [<>]=? | =) \s* \?"
_UPDATE = re.compile(
    rf"""\s* UPDATE\b \s* (?P<table>{_NAME}) \s*
    (?P<sets>(?: SET\b \s* {_SET} (?: \s* , \s* {_SET} )* \s* )+)
    WHERE\b \s* (?P<tests>{_TEST} (?: \s* AND\b \s* {_TEST} )*) \s*
    (?: RETURNING\b \s* (?P<which>ALL|MODIFIED) \s+ (?P<when>OLD|NEW) \s* \* \s* )?""",
    _FLAGS,
)
_BEGINS_UPDATE = re.compile(r"\s* UPDATE\b", _FLAGS)
_BEGINS_SELECT = re.compile(r"\s* SELECT\b", _FLAGS)


class RefusedError(Exception):
    """Raised for a request that DynamoDB refuses as a whole. The message is DynamoDB's."""


class _Update(NamedTuple):
    """An UPDATE statement, translated for moto."""

    request: dict[str, Any]  # for UpdateItem
    reported: list[str] | None  # the attributes that RETURNING names; None for all

    @property
    def row(self) -> str:
        return json.dumps([self.request["TableName"], self.request["Key"]], sort_keys=True)


def run_batch(statements: list[dict[str, Any]], send: Send) -> list[dict[str, Any]] | None:
    """Run the statements of a batch, and return an answer to each; None if it has no UPDATE and is left to moto.

    Raises:
        RefusedError: If the statements cannot be in one batch. Nothing is written.
    """
    texts = [statement.get("Statement") or "" for statement in statements]
    if not texts or "" in texts:
        raise RefusedError("The statement was empty.")
    if not any(map(_BEGINS_UPDATE.match, texts)):
        return None
    if any(map(_BEGINS_SELECT.match, texts)):
        raise RefusedError("Read and write requests together in the same batch is not supported.")
    if len(texts) > _MOST_STATEMENTS:
        raise RefusedError("BatchWriteItem cannot write more than 25 items")
    describe = functools.cache(lambda table: send("DescribeTable", {"TableName": table}))
    updates = [_translate(statement, describe) for statement in statements]
    rows = [update.row for update in updates if isinstance(update, _Update)]
    if len(set(rows)) < len(rows):  # DynamoDB Local says so only after it has written them
        raise RefusedError("Provided list of item keys contains duplicates")
    return [_run(update, send) if isinstance(update, _Update) else update for update in updates]


def _translate(
    statement: dict[str, Any], describe: Callable[[str], Response]
) -> _Update | dict[str, Any]:
    """Return the update that a statement describes; for one that cannot be run, the answer to it."""
    found = _UPDATE.fullmatch(statement["Statement"])
    if found is None:
        return _error(f"The embedded engine cannot read this, or not here: {statement}")
    table = _name(found["table"])
    sets = [_name(name) for name in re.findall(_SET, found["sets"], _FLAGS)]
    tests = [(_name(name), sign) for name, sign in re.findall(_TEST, found["tests"], _FLAGS)]
    parameters = statement.get("Parameters", [])
    if len(parameters) < len(sets) + len(tests):  # DynamoDB Local accepts more
        return _error("Number of parameters in request and statement don't match.")
    answer = describe(table)
    if answer.status_code != HTTPStatus.OK:
        return _error("Cannot do operations on a non-existent table", "ResourceNotFound")
    schema = json.loads(answer.data)["Table"]["KeySchema"]  # the hash key first
    keys = [part["AttributeName"] for part in schema]
    names = {"#k": keys[0]} | {f"#{at}": name for at, name in enumerate(sets)}
    values = {f":{at}": parameters[at] for at in range(len(sets))}
    conditions = ["attribute_exists(#k)"]  # an UPDATE makes no row
    key: dict[str, Any] = {}
    for at, (name, sign) in enumerate(tests, len(sets)):
        if name not in keys or sign != "=":
            names[f"#{at}"], values[f":{at}"] = name, parameters[at]
            conditions.append(f"#{at} {sign} :{at}")
        elif key.setdefault(name, parameters[at]) != parameters[at]:
            return _error(f"Multiple conditions on same key {name}.")
    if len(key) < len(keys):
        return _error("Where clause does not contain a mandatory equality on all key attributes")
    request = {
        "TableName": table,
        "Key": key,
        "UpdateExpression": "SET " + ", ".join(f"#{at} = :{at}" for at in range(len(sets))),
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
        # Never UPDATED_NEW, from which moto leaves out attributes that had the same value before.
        "ReturnValues": f"ALL_{found['when'].upper()}" if found["when"] else "NONE",
        "ReturnValuesOnConditionCheckFailure": statement.get("ReturnValuesOnConditionCheckFailure"),
    }
    return _Update(request, sets if (found["which"] or "").upper() == "MODIFIED" else None)


def _name(written: str) -> str:
    return written[1:-1].replace('""', '"') if written.startswith('"') else written


def _error(message: str, code: str = "ValidationError", **more: Any) -> dict[str, Any]:
    return {"Error": {"Code": code, "Message": message, **more}}


def _run(update: _Update, send: Send) -> dict[str, Any]:
    table = {"TableName": update.request["TableName"]}
    answer = send("UpdateItem", update.request)
    content = json.loads(answer.data)
    if answer.status_code != HTTPStatus.OK:
        kind = content["__type"].rpartition("#")[2].removesuffix("Exception")
        code = "ValidationError" if kind == "Validation" else kind
        old = {"Item": content["Item"]} if "Item" in content else {}
        return table | _error(content["message"], code, **old)
    item = content.get("Attributes", {})
    if update.reported is not None:
        item = {name: item[name] for name in update.reported if name in item}
    return table | ({"Item": item} if item else {})
