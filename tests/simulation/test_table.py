"""The table in memory, feature by feature. Those that are DynamoDB's are run on DynamoDB Local, too."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from table_stores import INVALID, KEY, REFUSED, SCHEMA, InMemory, Store, n, s

from dev.simulation.answers import comparable
from dev.simulation.table import Refusal, Tables

RANGED = {
    "KeySchema": [*SCHEMA["KeySchema"], {"AttributeName": "rr", "KeyType": "RANGE"}],
    "AttributeDefinitions": [
        *SCHEMA["AttributeDefinitions"],
        {"AttributeName": "rr", "AttributeType": "N"},
    ],
    "BillingMode": "PAY_PER_REQUEST",
}
ITEM = {
    **KEY,
    "nn": {"N": "1.50"},
    "st": {"S": "text"},
    "bi": {"B": b"bytes"},
    "yes": {"BOOL": True},
    "nil": {"NULL": True},
    "ss": {"SS": ["y", "x"]},
    "ns": {"NS": ["1.0", "2"]},
    "ll": {"L": [{"N": "1"}, {"S": "two"}, {"M": {"xx": {"N": "3"}}}]},
    "mm": {"M": {"xx": {"N": "1"}, "ll": {"L": [{"S": "in"}]}}},
}


def created(store: Any) -> Any:
    """Make a table in which the item stands, and one with a range key."""
    store("CreateTable", TableName=store.name, **SCHEMA)
    store("CreateTable", TableName=f"{store.name}.ranged", **RANGED)
    store("PutItem", TableName=store.name, Item=ITEM)
    return store


def get(store: Store, key: Any = KEY, **more: Any) -> Any:
    return store("GetItem", TableName=store.name, Key=key, ConsistentRead=True, **more).get("Item")


def update(store: Store, text: str | None, condition: str | None = None, **more: Any) -> Any:
    """Update the item; values are given by name, and in the end what else a request has."""
    values = {f":{name}": more.pop(name) for name in [*more] if name[0].islower()}
    request = {"TableName": store.name, "Key": KEY, "ReturnValues": "ALL_NEW", **more}
    if text is not None:
        request["UpdateExpression"] = text
    if condition is not None:
        request["ConditionExpression"] = condition
    if values:
        request["ExpressionAttributeValues"] = values
    return store("UpdateItem", **request)


# -- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition",
    [
        "nn = :n",
        "NOT nn <> :n",
        "nn >= :n AND nn <= :n",
        "st <> :n",
        "gone <> :n",
        "NOT gone = :n",
        "NOT gone < :n",
        "NOT st < :n",
        "size(nn) <> :n",
        "size(st) > :n AND NOT size(gone) > :n",
        "size(ll) > :n AND size(mm) > :n AND size(ss) > :n AND size(bi) > :n",
        "nn IN (:n) AND NOT gone IN (:n)",
        ":n BETWEEN :n AND nn",
        "nn BETWEEN :n AND :n AND st <> :n",
        "attribute_exists(kk) AND attribute_not_exists(gone) AND nn = :n",
        "attribute_exists(ll[2].xx) AND attribute_not_exists(ll[3]) AND nn = :n",
        "attribute_exists(mm.ll[0]) AND attribute_not_exists(mm.gone.xx) AND nn = :n",
        "attribute_not_exists(st.xx) AND attribute_not_exists(mm[0]) AND nn = :n",
        "ll[0] < :n AND mm.xx < :n",
        "gone = :n OR NOT st = :n AND nn = :n",
        "gone = :n AND st = :n OR nn = :n",
        "(gone = :n OR nn = :n) AND NOT (gone = :n OR st = :n)",
        "yes <> nil AND nn = :n",
        "nn<:n OR nn>=:n",
        "not nn = :n or nn = :n And nn In (:n) and nn between :n and :n",
    ],
)
def test_conditions_that_hold(store: Store, condition: str) -> None:
    number = n(1.5)
    assert "Attributes" in update(store, None, condition, n=number)
    assert update(store, None, f"NOT ({condition})", n=number)[0] == REFUSED


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("begins_with(st, :v)", s("te")),
        ("begins_with(st, :v)", s("")),
        ("begins_with(bi, :v)", {"B": b"by"}),
        ("contains(st, :v)", s("ex")),
        ("contains(bi, :v)", {"B": b"te"}),
        ("contains(ss, :v)", s("x")),
        ("contains(ns, :v)", n("1")),
        ("contains(ll, :v)", n("1.0")),
        ("contains(ll, :v)", {"M": {"xx": n("3.0")}}),
        ("attribute_type(st, :v)", s("S")),
        ("attribute_type(nil, :v)", s("NULL")),
        ("ss = :v", {"SS": ["x", "y"]}),
        ("ns = :v", {"NS": ["2.0", "1"]}),
        ("mm = :v", {"M": {"ll": {"L": [s("in")]}, "xx": n("1.00")}}),
        ("yes = :v", {"BOOL": True}),
        ("bi < :v", {"B": b"c"}),
        ("st < :v", s("textual")),
    ],
)
def test_conditions_on_values_of_each_type(store: Store, condition: str, value: Any) -> None:
    assert "Attributes" in update(store, None, condition, v=value)
    assert update(store, None, f"NOT {condition}", v=value)[0] == REFUSED


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ("begins_with(nn, :v)", s("1")),
        ("begins_with(gone, :v)", s("")),
        ("contains(st, :v)", n(1)),
        ("contains(nn, :v)", n(1)),
        ("contains(ss, :v)", s("xy")),
        ("contains(gone, :v)", s("")),
        ("attribute_type(gone, :v)", s("S")),
        ("attribute_type(st, :v)", s("N")),
        ("nn = :v", s("1.5")),
        ("nn < :v", s("2")),
    ],
)
def test_conditions_that_do_not_hold(store: Store, condition: str, value: Any) -> None:
    assert update(store, None, condition, v=value)[0] == REFUSED


def test_names_may_be_placeholders(store: Store) -> None:
    names = {"#a": "and", "#b": "with.dots"}
    answer = update(store, "SET #a = :v, #b = :v", v=n(1), ExpressionAttributeNames=names)
    assert answer["Attributes"]["with.dots"] == n(1)
    condition = "#a = #b AND mm.xx = #a"
    assert "Attributes" in update(store, None, condition, ExpressionAttributeNames=names)


def test_refusal_shows_the_row_if_asked(store: Store) -> None:
    refused = update(store, None, "nn = :v", v=n(7))
    assert refused == (REFUSED, None)
    more = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    assert update(store, None, "nn = :v", v=n(7), **more)[1]["nn"] == n(1.5)
    request = {"TableName": store.name, "Key": {"kk": s("none")}, **more}
    assert store("DeleteItem", ConditionExpression="attribute_exists(kk)", **request) == (
        REFUSED,
        None,
    )


# -- updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("SET nn = nn + :n, was = nn", {"nn": n(3.5), "was": n(1.5)}),
        ("SET nn = :n - nn", {"nn": n(0.5)}),
        ("SET fresh = if_not_exists(gone, :n) + :n", {"fresh": n(4)}),
        ("SET fresh = if_not_exists(nn, :n)", {"fresh": n(1.5)}),
        ("SET ll = list_append(ll, mm.ll), ss = :n", {"ll": {"L": [*ITEM["ll"]["L"], s("in")]}, "ss": n(2)}),
        ("SET ll[0] = :n, ll[9] = st, ll[7] = :n", {"ll": {"L": [n(2), *ITEM["ll"]["L"][1:], n(2), s("text")]}}),
        ("SET ll[2].xx = :n REMOVE ll[0]", {"ll": {"L": [s("two"), {"M": {"xx": n(2)}}]}}),
        ("SET mm.yy = :n REMOVE ll[0], ll[1], ll[5]", {"ll": {"L": ITEM["ll"]["L"][2:]}, "mm": {"M": {**ITEM["mm"]["M"], "yy": n(2)}}}),
        ("REMOVE gone, st, mm.gone SET nn = :n", {"st": None, "nn": n(2)}),
        ("ADD nn :n, gone :n", {"nn": n(3.5), "gone": n(2)}),
        ("ADD mm.xx :n", {"mm": {"M": {**ITEM["mm"]["M"], "xx": n(3)}}}),
        ("set nn = (nn + :n)", {"nn": n(3.5)}),
    ],
)  # fmt: skip
def test_updates(store: Store, text: str, changed: dict[str, Any]) -> None:
    expected = {name: value for name, value in {**ITEM, **changed}.items() if value is not None}
    answer = update(store, text, n=n(2))
    assert comparable(answer) == comparable({"Attributes": expected})
    assert comparable({"Item": get(store)}) == comparable({"Item": expected})


def test_sets_grow_and_shrink(store: Store) -> None:
    answer = update(store, "ADD ss :v, fresh :v", v={"SS": ["z", "x"]})["Attributes"]
    assert sorted(answer["ss"]["SS"]) == ["x", "y", "z"]
    assert sorted(answer["fresh"]["SS"]) == ["x", "z"]
    answer = update(store, "DELETE ss :v, gone :v", v={"SS": ["z", "y", "other"]})["Attributes"]
    assert answer["ss"] == {"SS": ["x"]}
    assert "ss" not in update(store, "DELETE ss :v", v={"SS": ["x"]})["Attributes"]


def test_elements_of_lists_are_those_before_the_update(store: Store) -> None:
    elements = [{"SS": ["x"]}, n(1), n(2), n(3)]
    store("PutItem", TableName=store.name, Item={**KEY, "ll": {"L": elements}})
    text = "DELETE ll[0] :v REMOVE ll[1] SET ll[2] = ll[3]"
    answer = update(store, text, v={"SS": ["x"]})
    assert answer["Attributes"]["ll"] == {"L": [n(3), n(3)]}


@pytest.mark.parametrize(
    "text",
    [
        "SET nn = gone",
        "SET nn = gone + :v",
        "SET nn = st + :v",
        "SET nn = if_not_exists(gone, gone2), nn2 = :v",
        "SET ll = list_append(ll, st), nn = :v",
        "SET gone.xx = :v",
        "SET st.xx = :v",
        "SET ll.xx = :v",
        "SET mm[0] = :v",
        "REMOVE gone.xx",
        "REMOVE nn[0]",
        "ADD st :v",
        "DELETE nn :v",
        "SET nn = :v REMOVE nn",
        "SET mm.xx = :v REMOVE mm",
        "SET mm.xx = :v, mm[0] = :v",
        "SET nn = :v SET st = :v",
        "SET kk = :v",
        "REMOVE kk",
        "SET nn = :undefined",
        "SET #undefined = :v",
        "SET nn",
        "SET nn = :v,",
        "SET nn = :v nonsense",
        "SET nn = :v + :v + :v",
        "SET ll[x] = :v",
        "SET nn = nosuch(st)",
        "SET nn = ; st",
        "",
    ],
)
def test_updates_that_are_invalid_change_nothing(store: Store, text: str) -> None:
    values = {"v": n(2)} if ":v" in text else {}
    assert update(store, text, **values) == (INVALID, None)
    assert comparable({"Item": get(store)}) == comparable({"Item": ITEM})


@pytest.mark.parametrize(
    "text", ["nn", "nn =", "nn = :v)", "(nn = :v", "nn ! :v", "nn IN :v", "size(nn", "f(nn)"]
)
def test_conditions_that_are_no_conditions(store: Store, text: str) -> None:
    values = {"v": n(2)} if ":v" in text else {}
    assert update(store, None, text, **values) == (INVALID, None)


def test_refusal_comes_before_an_update_that_does_not_fit(store: Store) -> None:
    assert update(store, "SET nn = st + :v", "nn = :v", v=n(2)) == (REFUSED, None)
    assert update(store, "SET nn = :v, nn = :v", "nn = :v", v=n(2)) == (INVALID, None)


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ("NONE", None),
        ("ALL_OLD", ITEM),
        ("UPDATED_OLD", {"nn": n(1.5), "mm": ITEM["mm"]}),
        ("UPDATED_NEW", {"nn": n(2), "fresh": n(2)}),
    ],
)
def test_return_values(store: Store, which: str, expected: Any) -> None:
    answer = update(store, "SET nn = :v, fresh = :v REMOVE mm.xx", v=n(2), ReturnValues=which)
    assert comparable(answer) == comparable({} if expected is None else {"Attributes": expected})


def test_update_makes_a_row(store: Store) -> None:
    store("DeleteItem", TableName=store.name, Key=KEY)
    assert update(store, "SET nn = :v", "attribute_exists(kk)", v=n(2)) == (REFUSED, None)
    assert get(store) is None
    assert update(store, "REMOVE nn", ReturnValues="UPDATED_NEW") == {}
    assert get(store) == KEY


# -- single rows ----------------------------------------------------------------------------------


def test_put_and_delete_return_the_row_that_was_there(store: Store) -> None:
    request = {"TableName": store.name, "ReturnValues": "ALL_OLD"}
    old = store("PutItem", Item={**KEY, "nn": n(2)}, **request)["Attributes"]
    assert comparable({"Item": old}) == comparable({"Item": ITEM})
    assert store("DeleteItem", Key=KEY, **request) == {"Attributes": {**KEY, "nn": n(2)}}
    assert store("DeleteItem", Key=KEY, **request) == {}
    assert store("PutItem", Item=KEY, **{**request, "ReturnValues": "ALL_NEW"}) == (INVALID, None)


def test_numbers_are_written_in_one_form(store: Store) -> None:
    for text, written in [
        ("1.500", "1.5"), ("1E+2", "100"), ("-0.0", "0"), ("007", "7"), ("1e-3", "0.001"),
        ("12345678901234567890123456789012345678", "12345678901234567890123456789012345678"),
    ]:  # fmt: skip
        store("PutItem", TableName=store.name, Item={**KEY, "nn": n(text)})
        assert get(store)["nn"] == n(written)


@pytest.mark.parametrize(
    "value",
    [
        n("1" * 39), n("abc"), n("NaN"), n("1E126"), {"SS": []}, {"SS": ["x", "x"]}, {"NS": ["1", "1.0"]},
        {"L": [{"SS": []}]},
    ],
)  # fmt: skip
def test_values_that_are_none(store: Store, value: Any) -> None:
    assert store("PutItem", TableName=store.name, Item={**KEY, "vv": value}) == (INVALID, None)


@pytest.mark.parametrize(
    "key", [{}, {"xx": s("key")}, {"kk": n(1)}, {"kk": s("")}, {**KEY, "xx": n(1)}]
)
def test_keys_that_are_none(store: Store, key: Any) -> None:
    assert store("GetItem", TableName=store.name, Key=key) == (INVALID, None)
    assert store("GetItem", TableName="no-such-table", Key=key)[0] == "ResourceNotFoundException"


def test_range_keys(store: Store) -> None:
    table = f"{store.name}.ranged"
    for number in ("10", "9", "1.0"):
        store("PutItem", TableName=table, Item={**KEY, "rr": n(number)})
    assert store("GetItem", TableName=table, Key={**KEY, "rr": n("1")})["Item"]["rr"] == n(1)
    assert store("GetItem", TableName=table, Key=KEY) == (INVALID, None)
    found = store("Scan", TableName=table, ConsistentRead=True)
    assert [item["rr"]["N"] for item in found["Items"]] == ["1", "9", "10"]


# -- several rows ---------------------------------------------------------------------------------


def put(store: Store, key: str, **more: Any) -> dict[str, Any]:
    return {"Put": {"TableName": store.name, "Item": {"kk": s(key)}, **more}}


def part(store: Store, kind: str, key: str, **more: Any) -> dict[str, Any]:
    return {kind: {"TableName": store.name, "Key": {"kk": s(key)}, **more}}


THERE = {"ConditionExpression": "attribute_exists(kk)"}
NOT_THERE = {"ConditionExpression": "attribute_not_exists(kk)"}


def test_transactions_write_all(store: Store) -> None:
    items = [
        put(store, "a", **NOT_THERE),
        part(store, "Update", "b", UpdateExpression="REMOVE xx"),
        part(store, "Delete", "key", **THERE),
        part(store, "ConditionCheck", "c", **NOT_THERE),
    ]
    assert store("TransactWriteItems", TransactItems=items) == {}
    keys = [{"kk": s(key)} for key in ("a", "b", "c", "key")]
    request = {store.name: {"Keys": keys, "ConsistentRead": True}}
    found = comparable(store("BatchGetItem", RequestItems=request))
    assert len(found["Responses"][store.name]) == 2


def test_transactions_write_nothing_if_one_part_is_refused(store: Store) -> None:
    items = [
        put(store, "a"),
        part(store, "Delete", "key", **NOT_THERE),
        part(store, "Update", "b", UpdateExpression="REMOVE xx"),
    ]
    refused = store("TransactWriteItems", TransactItems=items)
    assert refused == ("TransactionCanceledException", ["None", "ConditionalCheckFailed", "None"])
    assert get(store, {"kk": s("a")}) is None
    assert get(store, {"kk": s("b")}) is None


def test_cancelled_transactions_show_the_rows_if_asked(memory: InMemory) -> None:
    asked = {**NOT_THERE, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    items = [put(memory, "key", **asked), part(memory, "Delete", "gone", **THERE)]
    with pytest.raises(Refusal) as raised:
        memory.tables.apply("TransactWriteItems", {"TransactItems": items})
    reasons = raised.value.reasons
    assert reasons is not None
    assert reasons[0]["Item"]["st"] == s("text")
    assert "Item" not in reasons[1]


def test_transactions_name_each_row_once(store: Store) -> None:
    items = [put(store, "a"), part(store, "Delete", "a")]
    assert store("TransactWriteItems", TransactItems=items) == (INVALID, None)
    items = [put(store, f"row {n}") for n in range(101)]
    assert store("TransactWriteItems", TransactItems=items) == (INVALID, None)


def test_transactions_are_applied_once_for_each_token(store: Store) -> None:
    adding = part(
        store, "Update", "key", UpdateExpression="ADD nn :v", ExpressionAttributeValues={":v": n(1)}
    )
    request = {"TransactItems": [adding], "ClientRequestToken": uuid.uuid4().hex}
    for _ in range(2):
        assert store("TransactWriteItems", **request) == {}
    assert get(store)["nn"] == n(2.5)
    other = {**request, "TransactItems": [put(store, "a")]}
    assert store("TransactWriteItems", **other)[0] == "IdempotentParameterMismatchException"
    # one that was cancelled is looked at anew
    later = {"TransactItems": [put(store, "a", **THERE)], "ClientRequestToken": uuid.uuid4().hex}
    assert store("TransactWriteItems", **later)[0] == "TransactionCanceledException"
    store("PutItem", TableName=store.name, Item={"kk": s("a"), "nn": n(1)})
    assert store("TransactWriteItems", **later) == {}
    assert get(store, {"kk": s("a")}) == {"kk": s("a")}


def test_transaction_tokens_are_forgotten_after_ten_minutes(memory: InMemory) -> None:
    adding = part(
        memory,
        "Update",
        "key",
        UpdateExpression="ADD nn :v",
        ExpressionAttributeValues={":v": n(1)},
    )
    now = 0.0
    memory.tables = Tables(clock=lambda: now)
    created(memory)
    for minute, number in ((0, 2.5), (10, 2.5), (11, 3.5)):
        now = 60.0 * minute
        assert memory("TransactWriteItems", TransactItems=[adding], ClientRequestToken="t") == {}
        assert get(memory)["nn"] == n(number)


def test_updates_that_do_not_fit_cancel_a_transaction(memory: InMemory) -> None:
    """DynamoDB Local refuses the request, but Amazon documents a reason for each part."""
    items = [put(memory, "a"), part(memory, "Update", "key", UpdateExpression="SET nn = gone")]
    refused = memory("TransactWriteItems", TransactItems=items)
    assert refused == ("TransactionCanceledException", ["None", "ValidationError"])


def test_batches_name_each_row_once(store: Store) -> None:
    request = {store.name: {"Keys": [KEY, KEY]}}
    assert store("BatchGetItem", RequestItems=request) == (INVALID, None)
    writes = [{"DeleteRequest": {"Key": KEY}}, {"PutRequest": {"Item": KEY}}]
    assert store("BatchWriteItem", RequestItems={store.name: writes}) == (INVALID, None)


def test_batches_write_each_row_for_itself(store: Store) -> None:
    writes = [{"DeleteRequest": {"Key": KEY}}, {"PutRequest": {"Item": {"kk": s("a")}}}]
    assert store("BatchWriteItem", RequestItems={store.name: writes}) == {"UnprocessedItems": {}}
    assert get(store) is None
    assert get(store, {"kk": s("a")}) == {"kk": s("a")}


def test_scans_read_page_by_page(store: Store) -> None:
    for number in range(5):
        store("PutItem", TableName=store.name, Item={"kk": s(f"row {number}"), "nn": n(number)})
    request = {
        "TableName": store.name,
        "FilterExpression": "nn > :v",
        "ExpressionAttributeValues": {":v": n(2)},
        "Limit": 2,
    }
    pages = [store("Scan", **request)]
    while "LastEvaluatedKey" in pages[-1]:
        pages.append(store("Scan", **request, ExclusiveStartKey=pages[-1]["LastEvaluatedKey"]))
    # a page that is full has an end, even if nothing follows
    assert [page["ScannedCount"] for page in pages] == [2, 2, 2, 0]
    found = [item["kk"]["S"] for page in pages for item in page["Items"]]
    assert sorted(found) == ["row 3", "row 4"]
    assert sum(page["Count"] for page in pages) == 2


# -- PartiQL --------------------------------------------------------------------------------------


def execute(store: Store, *statements: tuple[str, list[Any]]) -> Any:
    """Run statements that begin with the table; all ask for the row that refuses."""
    answer = store(
        "BatchExecuteStatement",
        Statements=[
            {
                "Statement": f'UPDATE "{store.name}" {text}',
                "Parameters": parameters,
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
            for text, parameters in statements
        ],
    )
    return comparable(answer)["Responses"] if isinstance(answer, dict) else answer


SETTING = (
    'SET "nn" = ? SET "new" = ? WHERE "kk" = ? AND "st" = ? AND "nn" < ? RETURNING MODIFIED NEW *'
)


def test_statements_have_outcomes_of_their_own(store: Store) -> None:
    def setting(key: str, below: int) -> tuple[str, list[Any]]:
        return SETTING, [n(2), s("x"), s(key), s("text"), n(below)]

    answers = execute(store, setting("key", 2), setting("none", 2))
    name = {"TableName": store.name}
    failed = {"Error": {"Code": "ConditionalCheckFailed"}}
    assert answers == [{**name, "Item": {"nn": n(2), "new": s("x")}}, {**name, **failed}]
    (refused,) = execute(store, setting("key", 2))
    assert refused["Error"]["Item"]["new"] == s("x")
    assert get(store)["nn"] == n(2)
    assert get(store, {"kk": s("none")}) is None


@pytest.mark.parametrize(
    ("returning", "names"),
    [("", None), ("RETURNING MODIFIED OLD *", {"nn"}), ("RETURNING ALL NEW *", {*ITEM, "new"})],
)
def test_statements_return_what_they_are_asked_for(
    store: Store, returning: str, names: Any
) -> None:
    text = f'SET "nn" = ?, "new" = ? WHERE "kk" = ? AND "gone" <> ? {returning}'
    (answer,) = execute(store, (text, [n(2), n(2), KEY["kk"], n(1)]))
    assert set(answer.get("Item", {})) == (names or set())


def test_statements_that_cannot_be_run(store: Store) -> None:
    cases = [
        ('SET "nn" = ? WHERE "kk" = ?', [n(1)]),
        ('SET "nn" = ? WHERE "st" = ?', [n(1), s("text")]),
        ('SET "kk" = ? WHERE "kk" = ?', [s("new"), s("key")]),
    ]
    for case in cases:
        (answer,) = execute(store, case)
        assert answer["Error"]["Code"] == "ValidationError"
    text = 'UPDATE "no-such-table" SET "nn" = ? WHERE "kk" = ?'
    request = [{"Statement": text, "Parameters": [n(1), s("x")]}]
    (answer,) = store("BatchExecuteStatement", Statements=request)["Responses"]
    assert answer["Error"]["Code"] == "ResourceNotFound"


def test_statements_name_each_row_once(memory: InMemory) -> None:
    """DynamoDB Local says so only when it has written them."""
    statement = (SETTING, [n(2), s("x"), s("key"), s("text"), n(2)])
    assert execute(memory, statement, statement) == (INVALID, None)
    assert get(memory)["nn"] == n(1.5)
    assert execute(memory) == (INVALID, None)


# -- what DynamoDB has not ------------------------------------------------------------------------


def test_reads_may_be_late(memory: InMemory) -> None:
    seen = []
    for number in range(3):
        seen.append(memory.tables.writes)
        update(memory, "SET nn = :v", v=n(number))
    request = {"TableName": memory.name, "Key": KEY}

    def read(as_of: int, **more: Any) -> Any:
        return memory.tables.apply("GetItem", {**request, **more}, as_of).get("Item", {}).get("nn")

    assert [read(as_of) for as_of in [0, *seen, memory.tables.writes]] == [
        None,
        n(1.5),
        n(0),
        n(1),
        n(2),
    ]
    assert read(seen[0], ConsistentRead=True) == n(2)
    together = {"RequestItems": {memory.name: {"Keys": [KEY]}}}
    (row,) = memory.tables.apply("BatchGetItem", together, seen[1])["Responses"][memory.name]
    assert row["nn"] == n(0)
    (row,) = memory.tables.apply("Scan", {"TableName": memory.name}, seen[1])["Items"]
    assert row["nn"] == n(0)
    memory("DeleteItem", **request)
    assert memory.tables.apply("Scan", {"TableName": memory.name})["Items"] == []
    assert read(memory.tables.writes - 1) == n(2)


def test_only_some_versions_are_kept(memory: InMemory) -> None:
    memory.tables = Tables(versions=2)
    created(memory)
    for number in range(5):
        update(memory, "SET nn = :v", v=n(number))
    row = memory.tables.apply("GetItem", {"TableName": memory.name, "Key": KEY}, 0)["Item"]
    assert row["nn"] == n(3)


def test_answers_and_requests_are_no_doors_to_the_rows(memory: InMemory) -> None:
    item = {**KEY, "ll": {"L": [{"M": {}}]}, "ss": {"SS": ["x"]}}
    memory("PutItem", TableName=memory.name, Item=item)
    item["ll"]["L"].clear()
    for found in (get(memory), update(memory, "SET l2 = ll", ReturnValues="ALL_NEW")["Attributes"]):
        found["ll"]["L"][0]["M"]["xx"] = n(1)
        found["ss"]["SS"].append("y")
    update(memory, "SET l2[0].xx = :v", v=n(2))
    assert get(memory) == {
        **KEY,
        "ll": {"L": [{"M": {}}]},
        "l2": {"L": [{"M": {"xx": n(2)}}]},
        "ss": {"SS": ["x"]},
    }


@pytest.mark.parametrize(
    ("operation", "kwargs"),
    [
        ("ExecuteStatement", {}),
        ("Query", {"TableName": "table", "KeyConditions": {}}),
        ("Scan", {"TableName": "table", "ScanFilter": {}}),
        ("GetItem", {"TableName": "table", "Key": KEY, "AttributesToGet": ["kk"]}),
        ("UpdateItem", {"TableName": "table", "Key": KEY, "AttributeUpdates": {}}),
        ("BatchGetItem", {"RequestItems": {"table": {"Keys": [KEY], "AttributesToGet": ["kk"]}}}),
        ("BatchExecuteStatement", {"Statements": [{"Statement": "DELETE FROM x"}]}),
        *(
            ("BatchExecuteStatement", {"Statements": [{"Statement": f"UPDATE x SET {text}"}]})
            for text in ("a = 'b' WHERE c = ?", "a = 1 WHERE c = ?", "a = ? WHERE c IS MISSING")
        ),
    ],
)
def test_what_is_not_known_is_no_refusal_of_dynamodbs(
    memory: InMemory, operation: str, kwargs: Any
) -> None:
    with pytest.raises(NotImplementedError):
        memory(operation, **kwargs)


def test_tables_are_described(memory: InMemory) -> None:
    assert memory("DescribeTable", TableName=memory.name)["Table"]["TableStatus"] == "ACTIVE"
    ttl = {"Enabled": True, "AttributeName": "ttl"}

    def status() -> Any:
        return memory("DescribeTimeToLive", TableName=memory.name)["TimeToLiveDescription"]

    assert status() == {"TimeToLiveStatus": "DISABLED"}
    memory("UpdateTimeToLive", TableName=memory.name, TimeToLiveSpecification=ttl)
    assert status() == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}


def test_limits_of_batches(memory: InMemory) -> None:
    keys = [{"kk": s(f"row {number}")} for number in range(101)]
    assert memory("BatchGetItem", RequestItems={memory.name: {"Keys": keys}}) == (INVALID, None)
    writes = [{"DeleteRequest": {"Key": key}} for key in keys[:26]]
    assert memory("BatchWriteItem", RequestItems={memory.name: writes}) == (INVALID, None)
