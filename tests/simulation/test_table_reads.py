"""Queries, scans, indexes and projections of the table in memory, and of DynamoDB Local."""

from __future__ import annotations

from typing import Any

import pytest
from table_stores import INVALID, InMemory, Store, n, s

from dev.simulation.table import Tables

NAMES = {"kk": "S", "rr": "N", "gg": "S", "hh": "N", "ll": "S"}


def keys(*names: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": name, "KeyType": kind}
        for name, kind in zip(names, ("HASH", "RANGE"), strict=False)
    ]


SCHEMA = {
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": kind} for name, kind in NAMES.items()
    ],
    "KeySchema": keys("kk", "rr"),
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "keys",
            "KeySchema": keys("gg", "hh"),
            "Projection": {"ProjectionType": "KEYS_ONLY"},
        },
        {
            "IndexName": "some",
            "KeySchema": keys("gg"),
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["vv"]},
        },
    ],
    "LocalSecondaryIndexes": [
        {
            "IndexName": "local",
            "KeySchema": keys("kk", "ll"),
            "Projection": {"ProjectionType": "ALL"},
        },
    ],
    "BillingMode": "PAY_PER_REQUEST",
}
DOCUMENT = {
    "nn": n(1),
    "mm": {"M": {"xx": n(1), "ll": {"L": [s("a"), s("b"), s("c")]}}},
    "ll": s("y"),
    "zz": {"L": [n(0), n(1), n(2)]},
}


def row(key: str, number: object, **more: Any) -> dict[str, Any]:
    return {"kk": s(key), "rr": n(number), **more}


ROWS = [
    row("one", 10, gg=s("g"), hh=n(3), ll=s("x"), vv=n(1), ww=n(1)),
    row("one", 9, gg=s("g"), hh=n(-1), ll=s("z"), vv=n(2), ww=n(1)),
    row("one", "9.5", gg=s("h"), hh=n(5), vv=n(3)),
    row("one", -3, ll=s("y"), vv=n(4), bb={"B": b"x"}),
    row("two", 1, gg=s("g"), hh=n("2.5"), vv=n(5)),
    row("three", 1, **DOCUMENT),
]


def created(store: Any) -> Any:
    store("CreateTable", TableName=store.name, **SCHEMA)
    for item in ROWS:
        store("PutItem", TableName=store.name, Item=item)
    return store


def query(store: Store, text: str, *values: Any, **more: Any) -> Any:
    """Query by values that are called :0, :1 and so on."""
    if values:
        more["ExpressionAttributeValues"] = {f":{at}": each for at, each in enumerate(values)}
    return store("Query", TableName=store.name, KeyConditionExpression=text, **more)


def numbers(answer: Any, name: str = "rr") -> list[str]:
    return [item[name]["N"] for item in answer["Items"]]


# -- queries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("kk = :0", [], ["-3", "9", "9.5", "10"]),
        ("kk = :0 AND rr = :1", [n("9.0")], ["9"]),
        ("kk = :0 AND rr < :1", [n(9)], ["-3"]),
        ("kk = :0 AND rr <= :1", [n(9)], ["-3", "9"]),
        ("kk = :0 AND rr > :1", [n(9)], ["9.5", "10"]),
        ("rr >= :1 AND :0 = kk", [n(9)], ["9", "9.5", "10"]),
        ("(kk = :0) AND (rr BETWEEN :1 AND :2)", [n(-3), n("9.1")], ["-3", "9"]),
    ],
)
def test_queries_by_range(store: Store, text: str, values: list[Any], expected: list[str]) -> None:
    assert numbers(query(store, text, s("one"), *values)) == expected
    backward = query(store, text, s("one"), *values, ScanIndexForward=False)
    assert numbers(backward) == expected[::-1]
    assert query(store, text, s("none"), *values)["Count"] == 0


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("index", [None, "keys", "local"])
def test_queries_read_page_by_page(store: Store, index: str | None, forward: bool) -> None:
    text, value = ("gg = :0", s("g")) if index == "keys" else ("kk = :0", s("one"))
    request: dict[str, Any] = {"ScanIndexForward": forward}
    if index is not None:
        request["IndexName"] = index
    whole = query(store, text, value, **request)
    pages = [query(store, text, value, **request, Limit=2)]
    while "LastEvaluatedKey" in pages[-1]:
        start = pages[-1]["LastEvaluatedKey"]
        pages.append(query(store, text, value, **request, Limit=2, ExclusiveStartKey=start))
    assert [item for page in pages for item in page["Items"]] == whole["Items"]
    assert len(pages) == len(whole["Items"]) // 2 + 1


def test_queries_of_indexes(store: Store) -> None:
    found = query(store, "gg = :0 AND hh > :1", s("g"), n(-1), IndexName="keys")
    assert [sorted(item) for item in found["Items"]] == [["gg", "hh", "kk", "rr"]] * 2
    assert numbers(found, "hh") == ["2.5", "3"]
    found = query(store, "gg = :0", s("h"), IndexName="some")
    assert found["Items"] == [row("one", "9.5", gg=s("h"), vv=n(3))]
    # rows without the index's keys are not in it
    found = query(store, "kk = :0", s("one"), IndexName="local", ConsistentRead=True)
    assert numbers(found) == ["10", "-3", "9"]
    found = query(store, "kk = :0 AND begins_with(ll, :1)", s("one"), s("y"), IndexName="local")
    assert found["Items"] == [ROWS[3]]


def test_last_key_of_an_index_is_that_of_both(store: Store) -> None:
    page = query(store, "gg = :0", s("g"), IndexName="keys", Limit=1)
    assert page["LastEvaluatedKey"] == row("one", 9, gg=s("g"), hh=n(-1))


def test_filters_come_after_the_limit(store: Store) -> None:
    found = query(store, "kk = :0", s("one"), n(3), FilterExpression="vv <= :1", Limit=3)
    assert (found["Count"], found["ScannedCount"]) == (2, 3)
    counted = query(store, "kk = :0", s("one"), n(3), FilterExpression="vv <= :1", Select="COUNT")
    assert counted == {"Count": 3, "ScannedCount": 4}


@pytest.mark.parametrize(
    ("text", "values", "more"),
    [
        ("rr = :0", [n(1)], {}),
        ("kk > :0", [s("one")], {}),
        ("begins_with(kk, :0)", [s("one")], {}),
        ("kk = :0 OR rr = :1", [s("one"), n(1)], {}),
        ("kk = :0 AND NOT rr = :1", [s("one"), n(1)], {}),
        ("kk = :0 AND rr <> :1", [s("one"), n(1)], {}),
        ("kk = :0 AND rr IN (:1)", [s("one"), n(1)], {}),
        ("kk = :0 AND vv = :1", [s("one"), n(1)], {}),
        ("kk = :0 AND attribute_exists(rr)", [s("one")], {}),
        ("kk = :0 AND size(rr) = :1", [s("one"), n(1)], {}),
        ("kk = :0 AND rr = :1 AND rr = :1", [s("one"), n(1)], {}),
        ("kk = :0", [n(1)], {}),
        ("kk = :0", [s("")], {}),
        ("kk = :0 AND begins_with(rr, :1)", [s("one"), s("1")], {}),
        ("kk = :0", [s("one")], {"IndexName": "none"}),
        ("kk = :0", [s("one")], {"IndexName": "keys"}),
        ("gg = :0", [s("one")], {"IndexName": "keys", "ConsistentRead": True}),
        ("kk = :0", [s("one")], {"FilterExpression": "rr = :0"}),
        ("kk = :0", [s("one")], {"Limit": 0}),
        ("kk = :0", [s("one")], {"ExclusiveStartKey": {"kk": s("one")}}),
        ("kk = :0", [s("one")], {"ExclusiveStartKey": row("one", 1, xx=n(1))}),
        ("kk = :0", [s("one"), n(1)], {}),
        ("kk = :0", [s("one")], {"ExpressionAttributeNames": {"#a": "b"}}),
        ("kk = :0", [s("one")], {"ProjectionExpression": ""}),
        ("kk = :0", [s("one")], {"ProjectionExpression": "mm, mm.xx"}),
        ("kk = :0", [s("one")], {"ProjectionExpression": "vv", "Select": "COUNT"}),
        ("kk = :0", [], {}),
    ],
)
def test_queries_that_are_none(
    store: Store, text: str, values: list[Any], more: dict[str, Any]
) -> None:
    assert query(store, text, *values, **more) == (INVALID, None)


# -- scans ----------------------------------------------------------------------------------------


def test_scans_of_indexes(store: Store) -> None:
    found = store("Scan", TableName=store.name, IndexName="keys")
    assert sorted(numbers(found, "hh")) == ["-1", "2.5", "3", "5"]
    assert store("Scan", TableName=store.name, IndexName="local", Select="COUNT")["Count"] == 4
    assert store("Scan", TableName=store.name, IndexName="none") == (INVALID, None)


@pytest.mark.parametrize("index", [{}, {"IndexName": "some"}])
def test_scans_read_all_page_by_page(store: Store, index: dict[str, str]) -> None:
    request = {"TableName": store.name, **index, "Limit": 1}
    pages = [store("Scan", **request)]
    while "LastEvaluatedKey" in pages[-1]:
        start = pages[-1]["LastEvaluatedKey"]
        pages.append(store("Scan", **request, ExclusiveStartKey=start))
    found = [item for page in pages for item in page["Items"]]
    assert len(found) == len({str(item) for item in found}) == (4 if index else 6)


def test_segments_have_each_row_once(store: Store) -> None:
    segments = [
        store("Scan", TableName=store.name, Segment=number, TotalSegments=3)["Items"]
        for number in range(3)
    ]
    found = [(item["kk"]["S"], item["rr"]["N"]) for items in segments for item in items]
    assert sorted(found) == sorted((item["kk"]["S"], item["rr"]["N"]) for item in ROWS)


def test_pages_end_at_a_megabyte(store: Store) -> None:
    for number in range(6):
        large = row("large", number, vv=s("x" * 300_000))
        store("PutItem", TableName=store.name, Item=large)
    page = query(store, "kk = :0", s("large"), Select="COUNT", ReturnConsumedCapacity="TOTAL")
    assert page["LastEvaluatedKey"]["kk"] == s("large")
    start = page["LastEvaluatedKey"]
    rest = query(store, "kk = :0", s("large"), Select="COUNT", ExclusiveStartKey=start)
    assert (page["Count"], rest["Count"]) == (4, 2)


def test_pages_say_what_they_cost(memory: InMemory) -> None:
    for consistent, units in ((False, 0.5), (True, 1.0)):
        page = query(
            memory, "kk = :0", s("one"), ConsistentRead=consistent, ReturnConsumedCapacity="TOTAL"
        )
        assert page["ConsumedCapacity"] == {"TableName": memory.name, "CapacityUnits": units}


# -- projections ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nn", {"nn": n(1)}),
        ("nn, ll", {"nn": n(1), "ll": s("y")}),
        ("mm.xx", {"mm": {"M": {"xx": n(1)}}}),
        ("mm.ll[1], nn", {"mm": {"M": {"ll": {"L": [s("b")]}}}, "nn": n(1)}),
        ("zz[2], zz[0]", {"zz": {"L": [n(0), n(2)]}}),
        (
            "mm.ll[2], mm.xx, mm.ll[0]",
            {"mm": {"M": {"ll": {"L": [s("a"), s("c")]}, "xx": n(1)}}},
        ),
        ("gone", {}),
        ("mm.gone", {}),
        ("nn.xx", {}),
        ("zz[9]", {}),
    ],
)
def test_projections(store: Store, text: str, expected: dict[str, Any]) -> None:
    key = {"kk": s("three"), "rr": n(1)}
    request = {"Key": key, "ProjectionExpression": text}
    assert store("GetItem", TableName=store.name, **request) == {"Item": expected}
    found = store("TransactGetItems", TransactItems=[{"Get": {"TableName": store.name, **request}}])
    assert found == {"Responses": [{"Item": expected}]}
    asked = {"Keys": [key], "ProjectionExpression": text}
    found = store("BatchGetItem", RequestItems={store.name: asked})["Responses"][store.name]
    assert found == [expected]
    assert query(store, "kk = :0", s("three"), ProjectionExpression=text)["Items"] == [expected]


def test_projections_by_other_names(store: Store) -> None:
    asked = {
        "Keys": [row("one", 10), row("one", 9)],
        "ProjectionExpression": "#v",
        "ExpressionAttributeNames": {"#v": "vv"},
    }
    found = store("BatchGetItem", RequestItems={store.name: asked})["Responses"][store.name]
    assert sorted(found, key=str) == [{"vv": n(1)}, {"vv": n(2)}]


# -- rows of indexes ------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [n(1), s(""), {"NULL": True}])
def test_rows_that_do_not_fit_an_index(store: Store, value: Any) -> None:
    item = row("new", 1, gg=value)
    assert store("PutItem", TableName=store.name, Item=item) == (INVALID, None)


def test_updates_that_do_not_fit_an_index(memory: InMemory) -> None:
    """DynamoDB Local accepts another type; Amazon's documentation does not."""
    request = {"Key": row("one", 9), "UpdateExpression": "SET gg = :v"}
    values = {"ExpressionAttributeValues": {":v": n(1)}}
    assert memory("UpdateItem", TableName=memory.name, **request, **values) == (INVALID, None)


def test_transactions_read_rows_at_one_instant(store: Store) -> None:
    parts = [
        {"Get": {"TableName": store.name, "Key": key}} for key in (row("one", 9), row("none", 9))
    ]
    assert store("TransactGetItems", TransactItems=parts) == {"Responses": [{"Item": ROWS[1]}, {}]}
    assert store("TransactGetItems", TransactItems=[parts[0]] * 2) == (INVALID, None)
    assert store("TransactGetItems", TransactItems=[]) == (INVALID, None)


def test_late_queries_show_rows_as_they_were(memory: InMemory) -> None:
    before = memory.tables.writes
    memory("DeleteItem", TableName=memory.name, Key=row("one", 9))
    request = {
        "TableName": memory.name,
        "KeyConditionExpression": "gg = :g",
        "ExpressionAttributeValues": {":g": s("g")},
        "IndexName": "keys",
    }
    assert memory.tables.apply("Query", request, before)["Count"] == 3
    assert memory.tables.apply("Query", request)["Count"] == 2


def test_rows_are_shown_to_who_looks_on() -> None:
    tables = Tables()
    tables.apply("CreateTable", {"TableName": "table", **SCHEMA})
    for item in ROWS[:2]:
        tables.apply("PutItem", {"TableName": "table", "Item": item})
    seen = tables.rows("table")
    assert seen == ROWS[:2]
    tables.apply("DeleteItem", {"TableName": "table", "Key": row("one", 10)})
    (left,) = tables.rows("table")
    assert left is seen[1]
