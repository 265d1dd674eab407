"""Requests that the table in memory and DynamoDB Local answer alike, with the answers; and what DynamoDB has not.

Sizes, and the words of a refusal, are those of DynamoDB as far as anybody reads them.
"""

import pytest
from tables import INVALID, KEY, REFUSED, SCHEMA, Store, n, s, valued

from dev.simulation.values import Refusal, canonical, size_of

LARGEST = 400 * 1024
NO_TABLE = "ResourceNotFoundException"
CANCELLED = "TransactionCanceledException"
ITEM = {
    **KEY,
    "nn": n(1.5),
    "st": s("text"),
    "bi": {"B": b"bytes"},
    "yes": {"BOOL": True},
    "nil": {"NULL": True},
    "ss": {"SS": ["x", "y"]},
    "ns": {"NS": ["1", "2"]},
    "ll": {"L": [n(1), s("two"), {"M": {"xx": n(3)}}]},
    "l4": {"L": [{"SS": ["x"]}, n(1), n(2), n(3)]},
    "mm": {"M": {"xx": n(1), "ll": {"L": [s("in")]}}},
}
VALUES = {
    "n": n("1.50"), "text1": s("1"), "text1_5": s("1.5"), "text2": s("2"),
    "empty": s(""), "true": {"BOOL": True}, "list": {"L": []}, "map": {"M": {"xx": n("3.0")}},
    "by": {"B": b"by"}, "te_b": {"B": b"te"}, "c_b": {"B": b"c"}, "ns": {"NS": ["2.0", "1"]},
    "mm": {"M": {"ll": {"L": [s("in")]}, "xx": n("1.00")}}, "large": s("x" * LARGEST),
    **{f"set_{text}": {"SS": [*text]} for text in ("x", "yx", "zx", "zyo")},
}  # fmt: skip


def fill(store):
    store("CreateTable", **SCHEMA)
    store("PutItem", Item=ITEM)


def get(store, key="key"):
    return store("GetItem", Key={"kk": s(key)}, ConsistentRead=True).get("Item")


def update(store, text=None, condition=None, **more):
    """Update the item; return what becomes of it."""
    given = {"UpdateExpression": text, "ConditionExpression": condition}
    request = {name: each for name, each in given.items() if each is not None}
    return store("UpdateItem", **{**request, "Key": KEY, "ReturnValues": "ALL_NEW", **more})


HOLD = [
    "nn = :n", "NOT nn <> :n", "nn >= :n AND nn <= :n", "st <> :n", "gone <> :n", "NOT gone = :n",
    "NOT gone < :n", "NOT st < :n", "size(nn) <> :n", "size(st) > :n AND NOT size(gone) > :n",
    "size(ll) > :n AND size(mm) > :n AND size(ss) > :n AND size(bi) > :n", "nn<:n OR nn>=:n",
    "nn IN (:n) AND NOT gone IN (:n)", "nn BETWEEN :n AND :n AND st <> :n", ":n BETWEEN :n AND nn",
    "attribute_exists(kk) AND attribute_not_exists(gone) AND nn = :n",
    "attribute_exists(ll[2].xx) AND attribute_not_exists(ll[3]) AND nn = :n",
    "attribute_exists(mm.ll[0]) AND attribute_not_exists(mm.gone.xx) AND nn = :n",
    "attribute_not_exists(st.xx) AND attribute_not_exists(mm[0]) AND nn = :n",
    "ll[0] < :n AND mm.xx < :n", "gone = :n OR NOT st = :n AND nn = :n",
    "gone = :n AND st = :n OR nn = :n", "(gone = :n OR nn = :n) AND NOT (gone = :n OR st = :n)",
    "yes <> nil AND nn = :n", "not nn = :n or nn = :n And nn In (:n) and nn between :n and :n",
    "begins_with(st, :te)", "begins_with(st, :empty)", "begins_with(bi, :by)", "contains(st, :ex)",
    "contains(bi, :te_b)", "contains(ss, :x)", "contains(ns, :1)", "contains(ll, :1)",
    "contains(ll, :map)", "attribute_type(st, :S)", "attribute_type(nil, :NULL)", "ss = :set_yx",
    "ns = :ns", "mm = :mm", "yes = :true", "bi < :c_b", "st < :textual",
]  # fmt: skip
DO_NOT_HOLD = [
    "begins_with(nn, :text1)", "begins_with(gone, :empty)", "contains(st, :1)", "contains(nn, :1)",
    "contains(ss, :xy)", "contains(gone, :empty)", "attribute_type(gone, :S)",
    "attribute_type(st, :N)", "nn = :text1_5", "nn < :text2",
]  # fmt: skip


def test_conditions(store):
    assert [each for each in HOLD if update(store, None, each) != {"Attributes": ITEM}] == []
    refusing = [*DO_NOT_HOLD, *(f"NOT ({each})" for each in HOLD)]
    assert [each for each in refusing if update(store, None, each) != (REFUSED, None)] == []


def test_names_may_be_placeholders(store):
    names = {"ExpressionAttributeNames": {"#a": "and", "#b": "with.dots"}}
    answer = update(store, "SET #a = :1, #b = :1", **names)
    assert answer == {"Attributes": ITEM | {"and": n(1), "with.dots": n(1)}}
    assert update(store, None, "#a = #b AND mm.xx = #a", **names) == answer


LL, MM = ITEM["ll"]["L"], ITEM["mm"]["M"]
UPDATES = {
    "SET nn = nn + :2, was = nn": {"nn": n(3.5), "was": n(1.5)},
    "SET nn = :2 - nn": {"nn": n(0.5)},
    "set nn = (nn + :2)": {"nn": n(3.5)},
    "SET fresh = if_not_exists(gone, :2) + :2": {"fresh": n(4)},
    "SET fresh = if_not_exists(nn, :2)": {"fresh": n(1.5)},
    "SET ll = list_append(ll, mm.ll), ss = :2": {"ll": {"L": [*LL, s("in")]}, "ss": n(2)},
    "SET ll[0] = :2, ll[9] = st, ll[7] = :2": {"ll": {"L": [n(2), *LL[1:], n(2), s("text")]}},
    "SET ll[2].xx = :2 REMOVE ll[0]": {"ll": {"L": [s("two"), {"M": {"xx": n(2)}}]}},
    "SET mm.yy = :2 REMOVE ll[0], ll[1], ll[5]": {"ll": {"L": LL[2:]}, "mm": {"M": MM | {"yy": n(2)}}},
    # elements are those before the update
    "DELETE l4[0] :set_x REMOVE l4[1] SET l4[2] = l4[3]": {"l4": {"L": [n(3), n(3)]}},
    "REMOVE gone, st, mm.gone SET nn = :2": {"st": None, "nn": n(2)},
    "ADD nn :2, gone :2": {"nn": n(3.5), "gone": n(2)},
    "ADD mm.xx :2": {"mm": {"M": MM | {"xx": n(3)}}},
    "ADD ss :set_zx, fresh :set_zx": {"ss": {"SS": ["x", "y", "z"]}, "fresh": {"SS": ["x", "z"]}},
    "DELETE ss :set_zyo, gone :set_x": {"ss": {"SS": ["x"]}},
    "DELETE ss :set_yx": {"ss": None},
}  # fmt: skip


def test_updates(store):
    for text, changed in UPDATES.items():
        store("PutItem", Item=ITEM)
        expected = {name: value for name, value in {**ITEM, **changed}.items() if value is not None}
        assert update(store, text) == {"Attributes": expected}, text
        assert get(store) == expected


INVALID_CONDITIONS = [
    "nn",
    "nn =",
    "nn = :n)",
    "(nn = :n",
    "nn ! :n",
    "nn IN :n",
    "size(nn",
    "f(nn)",
]
OF_KINDS_THAT_DO_NOT_COMPARE = [
    "nn < :true", "nn BETWEEN :true AND :1", "begins_with(st, :1)", "begins_with(:1, :x)",
    "attribute_type(nn, :1)", "size(:1) = :1", "nn < :true OR nn = :1",
]  # fmt: skip
INVALID_UPDATES = [
    "SET nn = gone + :2", "SET nn = if_not_exists(gone, gone2), nn2 = :2",
    "SET ll = list_append(ll, st), nn = :2", "SET st.xx = :2", "SET ll.xx = :2", "SET mm[0] = :2",
    "REMOVE gone.xx", "REMOVE nn[0]", "ADD st :2", "DELETE nn :2", "SET nn = :2 REMOVE nn",
    "SET mm.xx = :2 REMOVE mm", "SET mm.xx = :2, mm[0] = :2", "REMOVE kk", "SET nn = :undefined",
    "SET #undefined = :2", "SET nn", "SET nn = :2,", "SET nn = :2 nonsense",
    "SET nn = :2 + :2 + :2", "SET ll[x] = :2", "SET nn = nosuch(st)", "SET nn = ; st", "",
    # of kinds that cannot be combined
    "SET nn = nn + :x", "SET nn = if_not_exists(nn, :x) - :x", "SET ll = list_append(ll, :1)",
    "ADD nn :x", "ADD ll :list", "ADD nn st", "DELETE ss :1", "DELETE ss :list",
]  # fmt: skip


def test_invalid_expressions(store):
    conditions = [*INVALID_CONDITIONS, *OF_KINDS_THAT_DO_NOT_COMPARE]
    assert [each for each in conditions if update(store, None, each) != (INVALID, None)] == []
    for each in OF_KINDS_THAT_DO_NOT_COMPARE:
        update(store, None, each)
        assert store.message.startswith("Invalid ConditionExpression: Incorrect operand type")
    assert [each for each in INVALID_UPDATES if update(store, each) != (INVALID, None)] == []
    assert get(store) == ITEM
    # a refusal comes before an update that does not fit
    assert update(store, "SET nn = st + :2", "nn = :2") == (REFUSED, None)
    assert update(store, "SET nn = :2, nn = :2", "nn = :2") == (INVALID, None)


CONDITION, SET = "ConditionExpression", "UpdateExpression"
NAMES, SOME = "ExpressionAttributeNames", "ExpressionAttributeValues"
KEY_ATTRIBUTE = "The AttributeValue for a key attribute"
WORDS = [
    ({CONDITION: "nn = :7"}, "The conditional request failed"),
    ({CONDITION: "nn = :undefined"}, "Invalid ConditionExpression: An expression attribute value used in expression is not defined; attribute value: :undefined"),
    ({CONDITION: "#a = :n"}, "Invalid ConditionExpression: An expression attribute name used in the document path is not defined; attribute name: #a"),
    ({CONDITION: "nn = :a", SOME: {":a": n(1.5), ":b": n(1)}}, "Value provided in ExpressionAttributeValues unused in expressions: keys: {:b}"),
    ({CONDITION: "nn = :n", NAMES: {"#a": "nn"}}, "Value provided in ExpressionAttributeNames unused in expressions: keys: {#a}"),
    ({NAMES: {"#a": "nn"}}, "ExpressionAttributeNames can only be specified when using expressions"),
    ({CONDITION: "attribute_exists(nn)", NAMES: {}}, "ExpressionAttributeNames must not be empty"),
    ({CONDITION: "attribute_exists(nn)", SOME: {}}, "ExpressionAttributeValues must not be empty"),
    ({CONDITION: "attribute_exists(nn)", NAMES: {"a": "nn"}}, 'ExpressionAttributeNames contains invalid key: Syntax error; key: "a"'),
    ({CONDITION: ""}, "Invalid ConditionExpression: The expression can not be empty;"),
    ({CONDITION: "nn = nn"}, "Invalid ConditionExpression: The first operand must be distinct from the remaining operands for this operator or function; operator: =, first operand: [nn]"),
    ({SET: "SET kk = :1"}, "One or more parameter values were invalid: Cannot update attribute kk. This attribute is part of the key"),
    ({SET: "SET nn = gone"}, "The provided expression refers to an attribute that does not exist in the item"),
    ({SET: "SET nn = st + :1"}, "An operand in the update expression has an incorrect data type"),
    ({SET: "SET gone.xx = :1"}, "The document path provided in the update expression is invalid for update"),
    ({SET: "SET nn = :1 SET st = :1"}, 'Invalid UpdateExpression: The "SET" section can only be used once in an update expression;'),
    ({SET: "SET nn = :1, nn = :1"}, "Invalid UpdateExpression: Two document paths overlap with each other; must remove or rewrite one of these paths; path one: [nn], path two: [nn]"),
    ({SET: "SET st = :large"}, "Item size to update has exceeded the maximum allowed size"),
    ({"ReturnValues": "X"}, "Return values set to invalid value"),
    ({"Item": KEY, "ReturnValues": "ALL_NEW"}, "Return values set to invalid value"),
    ({"Item": {"kk": s("")}}, f"One or more parameter values are not valid. {KEY_ATTRIBUTE} cannot contain an empty string value. Key: kk"),
    ({"Item": {"kk": n(1)}}, "One or more parameter values were invalid: Type mismatch for key"),
    ({"Item": {"nn": n(1)}}, "One of the required keys was not given a value"),
    ({"Item": {**KEY, "vv": VALUES["large"]}}, "Item size has exceeded the maximum allowed size"),
    ({"Key": {"kk": s("x" * 2049)}}, "Hash primary key values must be under 2048 bytes, and range primary key values must be under 1024 bytes"),
]  # fmt: skip


def test_words_of_refusals(store):
    for request, message in WORDS:
        operation, key = ("PutItem", {}) if "Item" in request else ("UpdateItem", {"Key": KEY})
        assert store(operation, **{**key, **request}) in {(INVALID, None), (REFUSED, None)}
        assert store.message == message
    assert get(store) == ITEM


def test_numbers_are_written_in_one_form(store):
    for text, written in [
        ("1.500", "1.5"), ("1E+2", "100"), ("-0.0", "0"), ("007", "7"), ("1e-3", "0.001"),
        ("1E-130", f"{'0.':0<131}1"),
        ("12345678901234567890123456789012345678", "12345678901234567890123456789012345678"),
    ]:  # fmt: skip
        store("PutItem", Item={**KEY, "nn": n(text)})
        assert get(store)["nn"] == n(written)


def test_values_and_keys_that_are_none(store):
    for value in [
        n("1" * 39), n("abc"), n("NaN"), n("1E126"), n("1E-131"), {"SS": []}, {"SS": ["x", "x"]},
        {"NS": ["1", "1.0"]}, {"L": [{"SS": []}]},
    ]:  # fmt: skip
        assert store("PutItem", Item={**KEY, "vv": value}) == (INVALID, None), value
    for key in [{}, {"xx": s("key")}, {"kk": n(1)}, {"kk": s("")}, {**KEY, "xx": n(1)}]:
        assert store("GetItem", Key=key) == (INVALID, None), key
        assert store("GetItem", TableName="no-such-table", Key=key)[0] == NO_TABLE


def test_refusals_about_tables(store):
    name = {"TableName": "no-such-table"}
    for operation, request in {
        **dict.fromkeys(("DescribeTable", "DescribeTimeToLive", "DeleteTable"), name),
        "BatchGetItem": {"RequestItems": {"no-such-table": {"Keys": [KEY]}}},
        "TransactWriteItems": {"TransactItems": [{"Put": {**name, "Item": KEY}}]},
    }.items():
        assert store(operation, **request)[0] == NO_TABLE
    assert store("CreateTable", **SCHEMA)[0] == "ResourceInUseException"
    ttl = {"TimeToLiveSpecification": {"AttributeName": "ttl", "Enabled": True}}
    store("UpdateTimeToLive", **ttl)
    assert store("UpdateTimeToLive", **ttl) == (INVALID, None)
    assert store.message == "TimeToLive is already enabled"


def test_sizes_are_counted_as_by_dynamodb(store):
    for value in [
        *map(n, ("0", "1", "12", "123", "-1", "1.5", "100", "0.001", "-12345", "12345678901234567890")),
        s("é"), s(""), {"B": b"abc"}, {"BOOL": True}, {"NULL": True}, {"L": []}, {"L": [n(1), {"L": []}]},
        {"M": {}}, {"M": {"a": n(1), "é": s("")}}, {"SS": ["a", "bc"]}, {"NS": ["1", "20"]}, {"BS": [b"abc"]},
    ]:  # fmt: skip
        room = LARGEST - len("kk" + "key" + "vv" + "pp") - size_of(canonical(value))
        item = {**KEY, "vv": value}
        assert store("PutItem", Item={**item, "pp": s("x" * room)}) == {}, value
        assert store("PutItem", Item={**item, "pp": s("x" * (room + 1))}) == (INVALID, None), value


THERE = {"ConditionExpression": "attribute_exists(kk)"}
NOT_THERE = {"ConditionExpression": "attribute_not_exists(kk)"}


def part(store, kind, key, **more):
    """Return a part of a transaction."""
    target = {"Item" if kind == "Put" else "Key": {"kk": s(key)}}
    return {kind: valued({"TableName": store.name, **target, **more}, VALUES)}


def transact(store, *parts, **more):
    return store("TransactWriteItems", TransactItems=[*parts], **more)


def test_batches_write_each_row_for_itself(store):
    writes = [{"DeleteRequest": {"Key": KEY}}, {"PutRequest": {"Item": {"kk": s("a")}}}]
    assert store("BatchWriteItem", RequestItems={store.name: writes}) == {"UnprocessedItems": {}}
    assert (get(store), get(store, "a")) == (None, {"kk": s("a")})


def test_rows_named_twice_and_too_few_or_too_many(store):
    keys = [{"kk": s(f"row {number}")} for number in range(101)]
    twice = [{"DeleteRequest": {"Key": KEY}}, {"PutRequest": {"Item": KEY}}]
    for operation, requests in {
        "BatchGetItem": [{"Keys": []}, {"Keys": [KEY, KEY]}, {"Keys": keys}],
        "BatchWriteItem": [twice, [{"DeleteRequest": {"Key": key}} for key in keys[:26]]],
    }.items():
        for asked in ({}, *({store.name: request} for request in requests)):
            assert store(operation, RequestItems=asked) == (INVALID, None)
    twice = [part(store, "Put", "a"), part(store, "Delete", "a")]
    for parts in [twice, [part(store, "Put", key["kk"]["S"]) for key in keys]]:
        assert transact(store, *parts) == (INVALID, None)


# -- where DynamoDB Local differs from Amazon's documentation, and what cannot be seen there -------


def test_cancelled_transactions_say_why_and_show_the_rows_if_asked(memory):
    # DynamoDB Local refuses the request, but Amazon documents a reason for each part
    unfit = part(memory, "Update", "key", UpdateExpression="SET nn = gone")
    refused = transact(memory, part(memory, "Put", "a"), unfit)
    assert refused == (CANCELLED, ["None", "ValidationError"])
    no_key = {"Put": {"TableName": memory.name, "Item": {"kk": n(1)}}}
    refused = transact(memory, no_key, part(memory, "Delete", "key", **NOT_THERE))
    assert refused == (CANCELLED, ["ValidationError", "ConditionalCheckFailed"])
    assert transact(memory, part(memory, "Put", "a")) == {}
    asked = part(memory, "Put", "key", **NOT_THERE, ReturnValuesOnConditionCheckFailure="ALL_OLD")
    items = [asked, part(memory, "Delete", "gone", **THERE)]
    with pytest.raises(Refusal) as raised:
        memory.tables.apply("TransactWriteItems", {"TransactItems": items})
    assert [reason.get("Item") for reason in raised.value.reasons] == [ITEM, None]


def test_transaction_tokens_are_forgotten_after_ten_minutes(request):
    now = 0.0
    memory = Store(request.module, clock=lambda: now)
    adding = part(memory, "Update", "key", UpdateExpression="ADD nn :1")
    for minute, number in ((0, 2.5), (10, 2.5), (11, 3.5)):
        now = 60.0 * minute
        assert transact(memory, adding, ClientRequestToken="t") == {}
        assert get(memory)["nn"] == n(number)


def test_answers_and_requests_are_no_doors_to_the_rows(memory):
    item = {**KEY, "ll": {"L": [{"M": {}}]}, "ss": {"SS": ["x"]}}
    memory("PutItem", Item=item)
    item["ll"]["L"].clear()
    request = {"TableName": memory.name, "Key": KEY}
    setting = {**request, "UpdateExpression": "SET l2 = ll", "ReturnValues": "ALL_NEW"}
    shown = memory.tables.apply("UpdateItem", setting)["Attributes"]
    for found in (memory.tables.apply("GetItem", request)["Item"], shown):
        found["ll"]["L"][0]["M"]["xx"] = n(1)
        found["ss"]["SS"].append("y")
    update(memory, "SET l2[0].xx = :2")
    lists = {"ll": {"L": [{"M": {}}]}, "l2": {"L": [{"M": {"xx": n(2)}}]}}
    assert get(memory) == {**KEY, **lists, "ss": {"SS": ["x"]}}


def test_what_is_not_known_is_no_refusal_of_dynamodbs(memory):
    asked = {"table": {"Keys": [KEY], "AttributesToGet": ["kk"]}}
    for operation, request in [
        ("ExecuteStatement", {}),
        ("Query", {"KeyConditions": {}}),
        ("Scan", {"ScanFilter": {}}),
        ("GetItem", {"Key": KEY, "AttributesToGet": ["kk"]}),
        ("UpdateItem", {"Key": KEY, "AttributeUpdates": {}}),
        ("BatchGetItem", {"RequestItems": asked}),
    ]:
        with pytest.raises(NotImplementedError):
            memory(operation, **request)


def test_tables_are_listed_described_updated_and_deleted(memory):
    memory("DeleteTable")
    for name in ("one", "two", "three"):
        memory("CreateTable", TableName=name, **SCHEMA)
    page = memory("ListTables", Limit=2)
    assert page == {"TableNames": ["one", "three"], "LastEvaluatedTableName": "three"}
    assert memory("ListTables", ExclusiveStartTableName="three") == {"TableNames": ["two"]}
    one, billing = {"TableName": "one"}, {"BillingMode": "PROVISIONED"}
    units = {"ReadCapacityUnits": 2, "WriteCapacityUnits": 3}
    memory("UpdateTable", **one, **billing, ProvisionedThroughput=units)
    found = memory("DescribeTable", **one)["Table"]
    assert (found["TableStatus"], found["BillingModeSummary"]) == ("ACTIVE", billing)
    assert found["ProvisionedThroughput"] == units
    ttl = {"AttributeName": "ttl"}
    found = [memory("DescribeTimeToLive", **one)["TimeToLiveDescription"]]
    memory("UpdateTimeToLive", **one, TimeToLiveSpecification={"Enabled": True, **ttl})
    found.append(memory("DescribeTimeToLive", **one)["TimeToLiveDescription"])
    assert found == [{"TimeToLiveStatus": "DISABLED"}, {"TimeToLiveStatus": "ENABLED", **ttl}]
    memory("DeleteTable", **one)
    assert memory("DescribeTable", **one)[0] == NO_TABLE
