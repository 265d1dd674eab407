"""Generated requests: the table in memory answers as DynamoDB Local does.

On that engine alone, for moto differs from DynamoDB in many of them: in what UPDATED_NEW shows, in paths into
what is not there, in comparisons of different types, and in numbers.
"""

import re
import uuid

import boto3
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import SCHEMA

from dev.simulation.answers import answer_of_engine, comparable, documented, response_of
from dev.simulation.table import Refusal, Tables
from pynamodb_mutex.testing import use

TABLE = f"generated-{uuid.uuid4().hex}"
KEYS = ["one", "two", "three"]


def answer_of(tables, operation, request):
    """The answer or the refusal of the table in memory, in the form to compare."""
    try:
        return comparable(tables.apply(operation, request))
    except Refusal as refusal:
        return comparable(response_of(refusal))


def of_kind(kind, *contents):
    return st.sampled_from(contents).map(lambda content: {kind: content})


def sets(kind, *members):
    return st.sets(st.sampled_from(members), min_size=1).map(lambda some: {kind: sorted(some)})


def maps(of):
    names = st.sampled_from(["xx", "yy"])
    return st.dictionaries(names, of, max_size=2).map(lambda some: {"M": some})


def lists(of):
    return st.lists(of, max_size=3).map(lambda some: {"L": some})


numbers = of_kind("N", "0", "1", "1.50", "-2", "1E2", "0.10", "12345678901234567890")
strings = of_kind("S", "", "x", "xy", "é", "\U0001f600")
scalars = numbers | strings | of_kind("B", b"x", b"xy")
others = of_kind("BOOL", True, False) | of_kind("NULL", True)
some_sets = sets("SS", *"xyz") | sets("NS", "1", "2", "3.5")
flat = scalars | others | some_sets
values = flat | lists(flat) | maps(flat)
ATTRIBUTES = {"aa": values, "bb": numbers | strings, "ll": lists(values), "ss": some_sets}
ATTRIBUTES["mm"] = maps(values)
full = st.fixed_dictionaries(ATTRIBUTES)
items = full | st.fixed_dictionaries({}, optional=ATTRIBUTES)

# -- expressions: what stands in braces is drawn, from these forms or, for a placeholder, from these values ----

VALUES = {
    "values": values, "scalars": scalars, "flat": flat, "numbers": numbers,
    "lists": lists(flat) | numbers, "sets": some_sets | others,
    "addends": numbers | some_sets | others,
    "types": of_kind("S", "S", "N", "B", "BOOL", "NULL", "L", "M", "SS", "NS", "BS"),
    **{f"is {each}": of_kind("N", each) for each in ("0", "1.5", "-2", "1", "1.0", "5", "1E3")},
}  # fmt: skip
FORMS = {
    "path": [
        "aa", "bb", "ll", "mm", "ss", "ll[0]", "ll[1]", "ll[7]", "mm.xx", "mm.yy", "mm.xx.zz",
        "gone.xx", "gone",
    ],
    "equality": ["=", "<>"],
    "sign": ["=", "<>", "<", "<=", ">", ">="],
    "condition": [
        "{simple}", "{less} AND {less}", "{less} OR {less}", "NOT {less} AND {less}",
        "({less} OR {less}) AND {less}", "NOT ({less} OR {less})",
    ],
    "less": ["{simple}", "{simple} AND {simple}", "{simple} OR {simple}", "NOT ({simple} OR {simple})"],
    "simple": [
        "{path} {equality} {values}", "{path} {sign} {scalars}", "{path} {sign} {values}",
        "{path} {sign} {path}", "attribute_exists({path})", "attribute_not_exists({path})",
        "attribute_type({path}, {types})", "begins_with({path}, {flat})", "contains({path}, {flat})",
        "size({path}) {sign} {scalars}", "{path} BETWEEN {is 0} AND {is 1.5}",
        "{path} BETWEEN {is -2} AND {is 0}", "{path} BETWEEN {is 1} AND {is 1.0}",
        "{path} BETWEEN {is 5} AND {is 1E3}", "{path} IN ({values}, {values})",
    ],
    "SET": [
        "{path} = {path}", "{path} = {values}", "{path} = {path} + {scalars}",
        "{path} = {path} - {scalars}", "{path} = if_not_exists({path}, {values})",
        "{path} = if_not_exists({path}, {numbers}) + {numbers}", "{path} = list_append({path}, {lists})",
    ],
    "REMOVE": ["{path}"],
    "ADD": ["{path} {addends}"],
    "DELETE": ["{path} {sets}"],
}  # fmt: skip


def written(draw, form, used):
    """Draw an expression of a form; the values of its placeholders are added to those that are used."""

    def drawn(found):
        if found[1] in FORMS:
            return re.sub(r"\{(.+?)\}", drawn, draw(st.sampled_from(FORMS[found[1]])))
        used.append(draw(VALUES[found[1]]))
        return f":v{len(used) - 1}"

    return drawn({1: form})


def update(draw, used):
    kinds = st.sampled_from(["SET", "SET", "SET", "REMOVE", "ADD", "DELETE"])
    sections = {}
    for kind in draw(st.lists(kinds, min_size=1, max_size=4)):
        sections.setdefault(kind, []).append(written(draw, kind, used))
    return " ".join(f"{kind} {', '.join(actions)}" for kind, actions in sections.items())


shown = st.sampled_from(["ALL_OLD", "NONE"])


def single(draw, kinds, key, *, alone):
    """A write of one row, or a check."""
    kind, used = draw(st.sampled_from(kinds.split())), []
    key = {"kk": {"S": key}}
    request = {"TableName": TABLE}
    request |= {"Item": {**key, **draw(items)}} if kind == "Put" else {"Key": key}
    if kind == "ConditionCheck" or draw(st.sampled_from([False, False, True])):
        request["ConditionExpression"] = written(draw, "condition", used)
        request["ReturnValuesOnConditionCheckFailure"] = draw(shown)
    if kind == "Update" and (not alone or draw(st.integers(0, 9))):
        request["UpdateExpression"] = update(draw, used)
    if alone:
        of_updates = ["ALL_NEW", "UPDATED_OLD", "UPDATED_NEW"] if kind == "Update" else []
        request["ReturnValues"] = draw(st.sampled_from(["NONE", "ALL_OLD", *of_updates]))
    if used:
        request["ExpressionAttributeValues"] = {f":v{at}": each for at, each in enumerate(used)}
    return kind, request


@st.composite
def requests(draw):
    several = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True))
    keys = [{"kk": {"S": each}} for each in several]
    kind = draw(st.sampled_from(["single"] * 4 + ["transaction", "read", "read all"]))
    if kind == "single":
        name, request = single(draw, "Put Update Update Update Delete", several[0], alone=True)
        return f"{name}Item", request
    if kind == "transaction":
        kinds = "Put Update Delete ConditionCheck"
        parts = [dict([single(draw, kinds, each, alone=False)]) for each in several]
        return "TransactWriteItems", {"TransactItems": parts}
    if kind == "read":
        return "GetItem", {"TableName": TABLE, "Key": keys[0], "ConsistentRead": True}
    return "BatchGetItem", {"RequestItems": {TABLE: {"Keys": keys, "ConsistentRead": True}}}


@pytest.fixture(scope="module")
def client(local_engine):
    """A client of DynamoDB Local with the table."""
    with use(local_engine) as engine:
        client = boto3.client("dynamodb", endpoint_url=engine.endpoint_url)
        client.create_table(TableName=TABLE, **SCHEMA)
        yield client


@pytest.mark.local
@settings(max_examples=300)
@given(full, st.lists(requests(), min_size=1, max_size=6))
def test_generated_requests_are_answered_as_by_dynamodb_local(client, item, sequence):
    tables = Tables()
    tables.apply("CreateTable", {"TableName": TABLE, **SCHEMA})
    left = [{"DeleteRequest": {"Key": {"kk": {"S": key}}}} for key in KEYS]
    client.batch_write_item(RequestItems={TABLE: left})
    first = {"TableName": TABLE, "Item": {"kk": {"S": "one"}, **item}}
    for operation, request in [("PutItem", first), *sequence]:
        expected = answer_of_engine(client, operation, request)
        found = answer_of(tables, operation, request)
        if operation == "TransactWriteItems" and found != expected:
            found = documented(found)
        assert found == expected, f"{operation} {request}"
