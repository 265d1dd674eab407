"""Queries, scans, indexes and projections of the table in memory, and of DynamoDB Local; and reads that are late."""

import pytest
from tables import INVALID, Store, index, n, s, schema, valued

SCHEMA = schema(
    "kk rr",
    {"kk": "S", "rr": "N", "gg": "S", "hh": "N", "ll": "S"},
    GlobalSecondaryIndexes=[
        index("keys", "gg hh", "KEYS_ONLY"),
        index("some", "gg", "INCLUDE", NonKeyAttributes=["vv"]),
    ],
    LocalSecondaryIndexes=[index("local", "kk ll", "ALL")],
)


def row(key, number, **more):
    return {"kk": s(key), "rr": n(number), **more}


ROWS = [
    row("one", 10, gg=s("g"), hh=n(3), ll=s("x"), vv=n(1), ww=n(1)),
    row("one", 9, gg=s("g"), hh=n(-1), ll=s("z"), vv=n(2), ww=n(1)),
    row("one", "9.5", gg=s("h"), hh=n(5), vv=n(3)),
    row("one", -3, ll=s("y"), vv=n(4), bb={"B": b"x"}),
    row("two", 1, gg=s("g"), hh=n("2.5"), vv=n(5)),
    row("three", 1, nn=n(1), mm={"M": {"xx": n(1), "ll": {"L": [s("a"), s("b"), s("c")]}}},
        ll=s("y"), zz={"L": [n(0), n(1), n(2)]}),
]  # fmt: skip
VALUES = {
    "9": n("9.0"), "9_1": n("9.1"), "minus1": n(-1), "minus3": n(-3), "text1": s("1"), "empty": s(""),
}  # fmt: skip


def fill(store):
    store("CreateTable", **SCHEMA)
    for item in ROWS:
        store("PutItem", Item=item)


def query(store, text, **more):
    return store("Query", KeyConditionExpression=text, **more)


def numbers(answer, name="rr"):
    return [item[name]["N"] for item in answer["Items"]]


def pages_of(store, operation, **request):
    """Read page by page, to the one that has no end; return the pages, and the items of all."""
    pages = [store(operation, **request)]
    while "LastEvaluatedKey" in pages[-1]:
        request["ExclusiveStartKey"] = pages[-1]["LastEvaluatedKey"]
        pages.append(store(operation, **request))
    return pages, [item for page in pages for item in page.get("Items", ())]


def test_queries_by_numbers(store):
    for text, expected in {
        "kk = :one": ["-3", "9", "9.5", "10"],
        "kk = :one AND rr = :9": ["9"],
        "kk = :one AND rr < :9": ["-3"],
        "kk = :one AND rr <= :9": ["-3", "9"],
        "kk = :one AND rr > :9": ["9.5", "10"],
        "rr >= :9 AND :one = kk": ["9", "9.5", "10"],
        "(kk = :one) AND (rr BETWEEN :minus3 AND :9_1)": ["-3", "9"],
    }.items():
        assert numbers(query(store, text)) == expected, text
        assert numbers(query(store, text, ScanIndexForward=False)) == expected[::-1]
        assert query(store, text.replace(":one", ":none"))["Count"] == 0


def test_queries_by_strings(store):
    strings = ["1", "10", "2", "B", "a", "ab", "b", "é", "\uffee", "\U0001f600"]
    for number, text in enumerate(sorted(strings, key=len)):
        store("PutItem", Item=row("large", number, ll=s(text)))
    for condition, expected in {
        "ll = :a": ["a"],
        "ll < :a": strings[:4],
        "ll <= :a": strings[:5],
        "ll > :a": strings[5:],
        "ll >= :a": strings[4:],
        "begins_with(ll, :a)": ["a", "ab"],
        "ll BETWEEN :text1 AND :a": strings[:5],
    }.items():
        found = query(store, f"kk = :large AND {condition}", IndexName="local")["Items"]
        assert [item["ll"]["S"] for item in found] == expected


@pytest.mark.parametrize("forward", [True, False])
def test_queries_read_page_by_page(store, forward):
    for of in ({}, {"IndexName": "keys"}, {"IndexName": "local"}):
        text = "gg = :g" if of == {"IndexName": "keys"} else "kk = :one"
        request = {"KeyConditionExpression": text, "ScanIndexForward": forward, **of}
        (_,), whole = pages_of(store, "Query", **request)
        for limit in (1, 2, 3):
            pages, items = pages_of(store, "Query", **request, Limit=limit)
            # a page that is full has an end, even if nothing follows
            assert (items, len(pages)) == (whole, len(whole) // limit + 1)


def test_queries_of_indexes(store):
    found = query(store, "gg = :g AND hh > :minus1", IndexName="keys")
    assert [sorted(item) for item in found["Items"]] == [["gg", "hh", "kk", "rr"]] * 2
    assert numbers(found, "hh") == ["2.5", "3"]
    found = query(store, "gg = :h", IndexName="some")
    assert found["Items"] == [row("one", "9.5", gg=s("h"), vv=n(3))]
    # rows without the index's keys are not in it
    found = query(store, "kk = :one", IndexName="local", ConsistentRead=True)
    assert numbers(found) == ["10", "-3", "9"]
    found = query(store, "kk = :one AND begins_with(ll, :y)", IndexName="local")
    assert found["Items"] == [ROWS[3]]
    # the last key is that of both
    page = query(store, "gg = :g", IndexName="keys", Limit=1)
    assert page["LastEvaluatedKey"] == row("one", 9, gg=s("g"), hh=n(-1))


def test_filters_come_after_the_limit(store):
    filtering = {"FilterExpression": "vv <= :3"}
    page = query(store, "kk = :one", **filtering, Limit=3)
    assert (page["Count"], page["ScannedCount"]) == (2, 3)
    counted = query(store, "kk = :one", **filtering, Select="COUNT")
    assert counted == {"Count": 3, "ScannedCount": 4}


NO_QUERIES = [
    "rr = :1", "kk > :one", "begins_with(kk, :one)", "kk = :one OR rr = :1", "kk = :undefined",
    "kk = :one AND NOT rr = :1", "kk = :one AND rr <> :1", "kk = :one AND rr IN (:1)",
    "kk = :one AND vv = :1", "kk = :one AND attribute_exists(rr)", "kk = :one AND size(rr) = :1",
    "kk = :one AND rr = :1 AND rr = :1", "kk = :1", "kk = :empty",
    "kk = :one AND begins_with(rr, :text1)",
]  # fmt: skip
NO_QUERIES_WITH = [
    {"IndexName": "none"}, {"IndexName": "keys"}, {"FilterExpression": "rr = :one"}, {"Limit": 0},
    {"ExclusiveStartKey": {"kk": s("one")}}, {"ExclusiveStartKey": row("one", 1, xx=n(1))},
    {"ExpressionAttributeValues": {":one": s("one"), ":unused": n(1)}},
    {"ExpressionAttributeNames": {"#a": "b"}}, {"ProjectionExpression": ""},
    {"ProjectionExpression": "mm, mm.xx"}, {"ProjectionExpression": "vv", "Select": "COUNT"},
]  # fmt: skip


def test_queries_that_are_none(store):
    asked = [(text, {}) for text in NO_QUERIES] + [("kk = :one", more) for more in NO_QUERIES_WITH]
    asked.append(("gg = :one", {"IndexName": "keys", "ConsistentRead": True}))
    answers = [(text, more, query(store, text, **more)) for text, more in asked]
    assert [each for each in answers if each[2] != (INVALID, None)] == []


def test_scans(store):
    found = store("Scan", ConsistentRead=True)["Items"]
    of_one = [item["rr"]["N"] for item in found if item["kk"] == s("one")]
    assert (len(found), of_one) == (6, ["-3", "9", "9.5", "10"])
    found = store("Scan", IndexName="keys")
    assert sorted(numbers(found, "hh")) == ["-1", "2.5", "3", "5"]
    assert store("Scan", IndexName="local", Select="COUNT")["Count"] == 4
    assert store("Scan", IndexName="none") == (INVALID, None)
    segments = (store("Scan", TotalSegments=3, Segment=at)["Items"] for at in range(3))
    assert sorted((item for each in segments for item in each), key=str) == sorted(ROWS, key=str)


def test_scans_read_page_by_page(store):
    for of, rows in (({}, 6), ({"IndexName": "some"}, 4)):
        _, found = pages_of(store, "Scan", **of, Limit=1)
        assert len(found) == len({str(item) for item in found}) == rows
    pages, found = pages_of(store, "Scan", FilterExpression="vv >= :3", Limit=2)
    assert [page["ScannedCount"] for page in pages] == [2, 2, 2, 0]
    assert sorted(item["vv"]["N"] for item in found) == ["3", "4", "5"]
    assert sum(page["Count"] for page in pages) == 3


def test_pages_end_at_a_megabyte(store):
    for number in range(6):
        store("PutItem", Item=row("large", number, vv=s("x" * 300_000)))
    pages, _ = pages_of(store, "Query", KeyConditionExpression="kk = :large", Select="COUNT")
    assert [page["Count"] for page in pages] == [4, 2]


PROJECTIONS = {
    "nn": {"nn": n(1)},
    "nn, ll": {"nn": n(1), "ll": s("y")},
    "mm.xx": {"mm": {"M": {"xx": n(1)}}},
    "mm.ll[1], nn": {"mm": {"M": {"ll": {"L": [s("b")]}}}, "nn": n(1)},
    "zz[2], zz[0]": {"zz": {"L": [n(0), n(2)]}},
    "mm.ll[2], mm.xx, mm.ll[0]": {"mm": {"M": {"ll": {"L": [s("a"), s("c")]}, "xx": n(1)}}},
    **{text: {} for text in ("gone", "mm.gone", "nn.xx", "zz[9]")},
}


def test_projections(store):
    table = {"TableName": store.name}
    for text, expected in PROJECTIONS.items():
        asked, key = {"ProjectionExpression": text}, row("three", 1)
        assert store("GetItem", Key=key, **asked) == {"Item": expected}
        found = store("TransactGetItems", TransactItems=[{"Get": {**table, "Key": key, **asked}}])
        assert found == {"Responses": [{"Item": expected}]}
        found = store("BatchGetItem", RequestItems={store.name: {"Keys": [key], **asked}})
        assert found["Responses"] == {store.name: [expected]}
        assert query(store, "kk = :three", **asked)["Items"] == [expected]
    names = {"ProjectionExpression": "#v", "ExpressionAttributeNames": {"#v": "vv"}}
    asked = {"Keys": [row("one", 10), row("one", "9.0")], **names}
    found = store("BatchGetItem", RequestItems={store.name: asked})["Responses"][store.name]
    assert sorted(found, key=str) == [{"vv": n(1)}, {"vv": n(2)}]
    assert store("GetItem", Key={"kk": s("one")}) == (INVALID, None)


def test_transactions_read_rows_at_one_instant(store):
    keys = row("one", 9), row("none", 9)
    there, gone = ({"Get": {"TableName": store.name, "Key": key}} for key in keys)
    answer = store("TransactGetItems", TransactItems=[there, gone])
    assert answer == {"Responses": [{"Item": ROWS[1]}, {}]}
    for parts in ([there, there], []):
        assert store("TransactGetItems", TransactItems=parts) == (INVALID, None)


def test_rows_that_do_not_fit_an_index(store):
    for value in (n(1), s(""), {"NULL": True}):
        assert store("PutItem", Item=row("new", 1, gg=value)) == (INVALID, None)


def test_updates_that_do_not_fit_an_index(memory):
    """DynamoDB Local accepts another type; Amazon's documentation does not."""
    updated = memory("UpdateItem", Key=row("one", 9), UpdateExpression="SET gg = :1")
    assert updated == (INVALID, None)


# -- what DynamoDB has not, or cannot be seen there ------------------------------------------------


def apply(memory, operation, as_of=None, **request):
    """Answer a read, as of some write if that is given, as the table does it."""
    request = {"TableName": memory.name, **valued(request, VALUES)}
    if operation == "BatchGetItem":
        request = {"RequestItems": {request.pop("TableName"): request}}
    return memory.tables.apply(operation, request, as_of)


def test_pages_say_what_they_cost(memory):
    asked = {"KeyConditionExpression": "kk = :one", "ReturnConsumedCapacity": "TOTAL"}
    for consistent, units in ((False, 0.5), (True, 1.0)):
        page = apply(memory, "Query", ConsistentRead=consistent, **asked)
        assert page["ConsumedCapacity"] == {"TableName": memory.name, "CapacityUnits": units}


def test_reads_may_be_late(memory):
    key, seen = row("two", 1), [4]
    for number in range(3):
        seen.append(memory.tables.writes)
        memory("PutItem", Item=row("two", 1, gg=s("g"), hh=n(1), vv=n(number)))

    def read(operation, as_of, **request):
        answer = apply(memory, operation, as_of, **request)
        rows = answer.get("Items", [answer.get("Item")])
        rows = answer.get("Responses", {memory.name: rows})[memory.name]
        return [item["vv"] for item in rows if item and item["kk"] == s("two")]

    found = [read("GetItem", as_of, Key=key) for as_of in [*seen, memory.tables.writes]]
    assert found == [[], [n(5)], [n(0)], [n(1)], [n(2)]]
    assert read("GetItem", seen[1], Key=key, ConsistentRead=True) == [n(2)]
    assert read("BatchGetItem", seen[2], Keys=[key]) == [n(0)]
    assert read("Scan", seen[2]) == [n(0)]
    memory("DeleteItem", Key=key)
    before = memory.tables.writes - 1
    assert (read("Scan", None), read("GetItem", before, Key=key)) == ([], [n(2)])
    asked = {"KeyConditionExpression": "gg = :g", "IndexName": "keys"}
    assert [apply(memory, "Query", as_of, **asked)["Count"] for as_of in (before, None)] == [3, 2]


def test_only_some_versions_are_kept(request):
    memory = Store(request.module, versions=2)
    for number in range(5):
        memory("PutItem", Item=row("one", 9, vv=n(number)))
    assert apply(memory, "GetItem", 0, Key=row("one", 9))["Item"]["vv"] == n(3)


def test_rows_are_shown_to_who_looks_on(memory):
    seen = memory.tables.rows(memory.name)
    memory("DeleteItem", Key=row("one", 10))
    left = memory.tables.rows(memory.name)
    assert (seen, left) == (ROWS, ROWS[1:])
    assert left[0] is seen[1]
