"""Generated requests: the table in memory answers as DynamoDB Local does.

On that engine alone, for moto differs from DynamoDB in many of them: in what UPDATED_NEW shows, in paths into
what is not there, in comparisons of different types, and in numbers.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_stores import SCHEMA

from dev.simulation.answers import answer_of, answer_of_engine, comparable, documented
from dev.simulation.table import Tables
from pynamodb_mutex.testing import Engine, use

Draw = Callable[[st.SearchStrategy[Any]], Any]

PATHS = [
    "aa", "bb", "ll", "mm", "ss", "ll[0]", "ll[1]", "ll[7]",
    "mm.xx", "mm.yy", "mm.xx.zz", "gone.xx", "gone",
]  # fmt: skip
NUMBERS = st.sampled_from(["0", "1", "1.50", "-2", "1E2", "0.10", "12345678901234567890"])
numbers = NUMBERS.map(lambda text: {"N": text})
strings = st.sampled_from(["", "x", "xy", "é", "\U0001f600"]).map(lambda text: {"S": text})
binaries = st.sampled_from([b"x", b"xy"]).map(lambda content: {"B": content})
string_sets = st.sets(st.sampled_from("xyz"), min_size=1).map(lambda some: {"SS": sorted(some)})
number_sets = st.sets(st.sampled_from(["1", "2", "3.5"]), min_size=1).map(
    lambda some: {"NS": sorted(some)}
)
others = st.sampled_from([{"BOOL": True}, {"BOOL": False}, {"NULL": True}])
scalars = numbers | strings | binaries
flat = scalars | others | string_sets | number_sets
lists = st.lists(flat, max_size=3).map(lambda some: {"L": some})
# none is empty, for DynamoDB Local leaves out of an empty map in a list that it is one, in answers to PartiQL
maps = st.dictionaries(st.sampled_from(["xx", "yy"]), flat, min_size=1, max_size=2).map(
    lambda some: {"M": some}
)
values = flat | lists | maps
ATTRIBUTES = {
    "aa": values,
    "bb": numbers | strings,
    "ll": st.lists(values, max_size=3).map(lambda some: {"L": some}),
    "mm": st.dictionaries(st.sampled_from(["xx", "yy"]), values).map(lambda some: {"M": some}),
    "ss": string_sets | number_sets,
}
full = st.fixed_dictionaries(ATTRIBUTES)
items = full | st.fixed_dictionaries({}, optional=ATTRIBUTES)
paths = st.sampled_from(PATHS)
equality = st.sampled_from(["=", "<>"])
signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


class Builder:
    """Writes expressions, and collects the values in them."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.values: dict[str, Any] = {}

    def value(self, strategy: st.SearchStrategy[Any]) -> str:
        placeholder = f":v{len(self.values)}"
        self.values[placeholder] = self.draw(strategy)
        return placeholder

    # -- conditions ------------------------------------------------------------------------------

    def condition(self, depth: int = 2) -> str:
        forms = [
            "{}",
            "{} AND {}",
            "{} OR {}",
            "NOT {} AND {}",
            "({} OR {}) AND {}",
            "NOT ({} OR {})",
        ]
        form = self.draw(st.sampled_from(forms)) if depth else "{}"
        return form.format(
            *(
                self.simple() if form == "{}" else self.condition(depth - 1)
                for _ in range(form.count("{}"))
            )
        )

    def simple(self) -> str:
        path, other = self.draw(st.lists(paths, min_size=2, max_size=2))
        exists = st.sampled_from(["attribute_exists", "attribute_not_exists"])
        types = st.sampled_from(["S", "N", "B", "BOOL", "NULL", "L", "M", "SS", "NS", "BS"]).map(
            lambda name: {"S": name}
        )
        bounds = st.sampled_from([("0", "1.5"), ("-2", "0"), ("1", "1.0"), ("5", "1E3")])
        forms: list[Callable[[], str]] = [
            lambda: f"{path} {self.draw(equality)} {self.value(values)}",
            lambda: f"{path} {self.draw(signs)} {self.value(scalars)}",
            lambda: f"{path} {self.draw(signs)} {self.value(values)}",
            lambda: f"{path} {self.draw(signs)} {other}",
            lambda: f"{self.draw(exists)}({path})",
            lambda: f"attribute_type({path}, {self.value(types)})",
            lambda: f"begins_with({path}, {self.value(flat)})",
            lambda: f"contains({path}, {self.value(flat)})",
            lambda: f"size({path}) {self.draw(signs)} {self.value(scalars)}",
            lambda: f"{path} BETWEEN {' AND '.join(self.numbers(self.draw(bounds)))}",
            lambda: f"{path} IN ({self.value(values)}, {self.value(values)})",
        ]
        return self.draw(st.sampled_from(forms))()

    def numbers(self, texts: Iterable[str]) -> list[str]:
        return [self.value(st.just({"N": text})) for text in texts]

    # -- updates ----------------------------------------------------------------------------------

    def update(self) -> str:
        sections: dict[str, list[str]] = {}
        for path in self.draw(st.lists(paths, min_size=1, max_size=4)):
            section = self.draw(st.sampled_from(["SET", "SET", "SET", "REMOVE", "ADD", "DELETE"]))
            action = path + getattr(self, section.lower())()
            sections.setdefault(section, []).append(action)
        return " ".join(f"{section} {', '.join(actions)}" for section, actions in sections.items())

    def remove(self) -> str:
        return ""

    def add(self) -> str:
        return f" {self.value(numbers | string_sets | number_sets | others)}"

    def delete(self) -> str:
        return f" {self.value(string_sets | number_sets | others)}"

    def set(self) -> str:
        other = self.draw(paths)
        forms: list[Callable[[], str]] = [
            lambda: f" = {other}",
            lambda: f" = {self.value(values)}",
            lambda: f" = {other} {self.draw(st.sampled_from('+-'))} {self.value(scalars)}",
            lambda: f" = if_not_exists({other}, {self.value(values)})",
            lambda: f" = if_not_exists({other}, {self.value(numbers)}) + {self.value(numbers)}",
            lambda: f" = list_append({other}, {self.value(lists | numbers)})",
        ]
        return self.draw(st.sampled_from(forms))()


KEYS = ["one", "two", "three"]
conditional = st.sampled_from([False, False, True])


def single(draw: Draw, kinds: str, key: str, *, alone: bool) -> tuple[str, dict[str, Any]]:
    """A write of one row, or a check."""
    kind = draw(st.sampled_from(kinds.split()))
    builder = Builder(draw)
    request: dict[str, Any] = {}
    if kind == "Put":
        request["Item"] = {"kk": {"S": key}, **draw(items)}
    else:
        request["Key"] = {"kk": {"S": key}}
    if kind == "ConditionCheck" or draw(conditional):
        request["ConditionExpression"] = builder.condition()
        request["ReturnValuesOnConditionCheckFailure"] = draw(st.sampled_from(["ALL_OLD", "NONE"]))
    if kind == "Update" and (not alone or draw(st.integers(0, 9))):
        request["UpdateExpression"] = builder.update()
    if alone:
        returned = ["NONE", "ALL_OLD"]
        if kind == "Update":
            returned += ["ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"]
        request["ReturnValues"] = draw(st.sampled_from(returned))
    if builder.values:
        request["ExpressionAttributeValues"] = builder.values
    return kind, request


def statement(draw: Draw, key: str) -> dict[str, Any]:
    """An update in PartiQL."""
    name = st.sampled_from(["aa", "bb", "gone"])
    changed = draw(
        st.lists(st.sampled_from(["aa", "bb", "cc"]), min_size=1, max_size=2, unique=True)
    )
    changes = [draw(st.sampled_from([f'SET "{each}" = ?', f'REMOVE "{each}"'])) for each in changed]
    forms: list[Callable[[], str]] = [
        lambda: f'"{draw(name)}" {draw(signs)} ?',
        lambda: f'NOT "{draw(name)}" {draw(signs)} ?',
        lambda: f'("{draw(name)}" {draw(signs)} ? OR attribute_exists("{draw(name)}"))',
        lambda: f'begins_with("{draw(name)}", ?)',
        lambda: f'attribute_not_exists("{draw(name)}")',
    ]
    tests = [draw(st.sampled_from(forms))() for _ in range(draw(st.integers(0, 2)))]
    returning = draw(
        st.sampled_from(
            ["", " RETURNING MODIFIED NEW *", " RETURNING ALL OLD *", " RETURNING ALL NEW *"]
        )
    )
    before, after = " ".join(changes), " AND ".join(tests)
    parameters = [draw(numbers | strings) for _ in range(before.count("?"))]
    parameters += [{"S": key}, *(draw(numbers | strings) for _ in range(after.count("?")))]
    where = " AND ".join(['"kk" = ?', *tests])
    return {
        "Statement": f'UPDATE "TABLE" {before} WHERE {where}{returning}',
        "Parameters": parameters,
        "ReturnValuesOnConditionCheckFailure": draw(st.sampled_from(["ALL_OLD", "NONE"])),
    }


@st.composite
def requests(draw: Draw) -> tuple[str, dict[str, Any]]:
    """A request; TABLE stands for the table's name."""
    key = st.sampled_from(KEYS)
    several = st.lists(key, min_size=1, max_size=3, unique=True)
    kind = draw(st.sampled_from(["single"] * 4 + ["transaction", "batch", "read", "read all"]))
    if kind == "single":
        name, request = single(draw, "Put Update Update Update Delete", draw(key), alone=True)
        return f"{name}Item", {"TableName": "TABLE", **request}
    if kind == "transaction":
        parts = [
            single(draw, "Put Update Delete ConditionCheck", each, alone=False)
            for each in draw(several)
        ]
        together = [{name: {"TableName": "TABLE", **part}} for name, part in parts]
        return "TransactWriteItems", {"TransactItems": together}
    if kind == "batch":
        return "BatchExecuteStatement", {
            "Statements": [statement(draw, each) for each in draw(several)]
        }
    if kind == "read":
        return "GetItem", {
            "TableName": "TABLE",
            "Key": {"kk": {"S": draw(key)}},
            "ConsistentRead": True,
        }
    keys = [{"kk": {"S": each}} for each in draw(several)]
    return "BatchGetItem", {"RequestItems": {"TABLE": {"Keys": keys, "ConsistentRead": True}}}


# -- the comparison -------------------------------------------------------------------------------

numbered = itertools.count()
TABLE, RANGED_TABLE = (f"generated-{uuid.uuid4().hex}" for _ in range(2))


@pytest.fixture(scope="module")
def client(local_engine: Engine) -> Iterator[Any]:
    """A client of DynamoDB Local with a table, and with one that has a range key."""
    with use(local_engine) as engine:
        client = boto3.client("dynamodb", endpoint_url=engine.endpoint_url)
        client.create_table(TableName=TABLE, **SCHEMA)
        client.create_table(TableName=RANGED_TABLE, **RANGED)
        yield client


def renamed(request: Any, table: str, number: int) -> Any:
    """Return a request about this table, and about rows that no example before has used."""
    if isinstance(request, list):
        return [renamed(each, table, number) for each in request]
    if isinstance(request, dict):
        return {
            table if name == "TABLE" else name: renamed(each, table, number)
            for name, each in request.items()
        }
    if request in KEYS:
        return f"{request} {number}"
    return request.replace("TABLE", table) if isinstance(request, str) else request


@pytest.mark.local
@settings(max_examples=300)
@given(full, st.lists(requests(), min_size=1, max_size=6))
def test_generated_requests_are_answered_as_by_dynamodb_local(client, item, sequence) -> None:
    number = next(numbered)
    tables = Tables()
    tables.apply("CreateTable", {"TableName": TABLE, **SCHEMA})
    first = {"TableName": "TABLE", "Item": {"kk": {"S": "one"}, **item}}
    for operation, request in [("PutItem", first), *sequence]:
        kwargs = renamed(request, TABLE, number)
        expected = answer_of_engine(client, operation, kwargs)
        found = answer_of(tables, operation, kwargs)
        if operation == "TransactWriteItems" and found != expected:
            found = documented(found)
        assert found == expected, f"{operation} {kwargs}"


# -- queries --------------------------------------------------------------------------------------

RANGED = {
    "KeySchema": [*SCHEMA["KeySchema"], {"AttributeName": "rr", "KeyType": "RANGE"}],
    "AttributeDefinitions": [
        *SCHEMA["AttributeDefinitions"],
        {"AttributeName": "rr", "AttributeType": "S"},
        {"AttributeName": "nn", "AttributeType": "N"},
    ],
    "LocalSecondaryIndexes": [
        {
            "IndexName": "by-number",
            "KeySchema": [*SCHEMA["KeySchema"], {"AttributeName": "nn", "KeyType": "RANGE"}],
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        }
    ],
    "BillingMode": "PAY_PER_REQUEST",
}
ranges = st.sampled_from(["a", "ab", "b", "B", "é", "\U0001f600", "\uffee", "1", "10", "2"])
# no number twice: which row of an equal one comes first is DynamoDB's secret
rows = st.lists(
    st.tuples(ranges, st.none() | NUMBERS),
    max_size=8,
    unique_by=(lambda row: row[0], lambda row: row[1] or object()),
)


@st.composite
def queries(draw: Draw) -> dict[str, Any]:
    """A query of the rows of one key; KEY stands for it."""
    by_number = draw(st.booleans())
    name, kind = ("nn", numbers) if by_number else ("rr", ranges.map(lambda text: {"S": text}))
    forms = ["", *(f" AND {name} {sign} :r" for sign in ("=", "<", "<=", ">", ">="))]
    if not by_number:
        forms.append(" AND begins_with(rr, :r)")
    form = draw(st.sampled_from(forms))
    request: dict[str, Any] = {
        "TableName": "TABLE",
        "KeyConditionExpression": f"kk = :k{form}",
        "ExpressionAttributeValues": {":k": {"S": "one"}},
        "ScanIndexForward": draw(st.booleans()),
        "ConsistentRead": True,
    }
    if form:
        request["ExpressionAttributeValues"][":r"] = draw(kind)
    if by_number:
        request["IndexName"] = "by-number"
    if draw(st.booleans()):
        request["Limit"] = draw(st.integers(1, 3))
    return request


@pytest.mark.local
@settings(max_examples=100)
@given(rows, st.lists(queries(), min_size=1, max_size=4))
def test_generated_queries_are_answered_as_by_dynamodb_local(client, made, asked) -> None:
    number = next(numbered)
    tables = Tables()
    tables.apply("CreateTable", {"TableName": RANGED_TABLE, **RANGED})
    for text, value in made:
        item = {"kk": {"S": f"one {number}"}, "rr": {"S": text}}
        if value is not None:
            item["nn"] = {"N": value}
        request = {"TableName": RANGED_TABLE, "Item": item}
        assert answer_of(tables, "PutItem", request) == answer_of_engine(client, "PutItem", request)
    for query in asked:
        kwargs = renamed(query, RANGED_TABLE, number)
        while kwargs is not None:
            expected = client._make_api_call("Query", kwargs)
            found = tables.apply("Query", kwargs)
            assert comparable({"L": found["Items"]}) == comparable({"L": expected["Items"]}), kwargs
            last = expected.get("LastEvaluatedKey")
            if last is None and "LastEvaluatedKey" in found:
                # a full page need not have an end if nothing follows
                kwargs["ExclusiveStartKey"] = found.pop("LastEvaluatedKey")
                assert not tables.apply("Query", kwargs)["Items"]
            assert found.get("LastEvaluatedKey") == last
            kwargs = None if last is None else {**kwargs, "ExclusiveStartKey": last}
