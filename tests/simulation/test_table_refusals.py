"""What the table in memory refuses, by the code and in the words of DynamoDB Local, as far as anybody reads them."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from table_stores import INVALID, KEY, SCHEMA, InMemory, Store, n, s

from dev.simulation.table import Refusal, Tables
from dev.simulation.values import canonical, size_of

ITEM = {**KEY, "nn": n(1), "st": s("text"), "ll": {"L": [n(0)]}, "mm": {"M": {}}, "ss": {"SS": ["x"]}}  # fmt: skip
LARGEST = 400 * 1024


def created(store: Any) -> Any:
    store("CreateTable", TableName=store.name, **SCHEMA)
    store("PutItem", TableName=store.name, Item=ITEM)
    return store


def write(store: Store, operation: str, **request: Any) -> Any:
    """Write the item; values are given by name."""
    values = {f":{name}": request.pop(name) for name in [*request] if name[0].islower()}
    if values:
        request["ExpressionAttributeValues"] = values
    target = {"Item": ITEM} if operation == "PutItem" else {"Key": KEY}
    return store(operation, **{"TableName": store.name, **target, **request})


# -- the words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "request_", "message"),
    [
        ("PutItem", {"ConditionExpression": "nn = :a", "a": n(7)},
         "The conditional request failed"),
        ("PutItem", {"ConditionExpression": "nn = :a"},
         "Invalid ConditionExpression: An expression attribute value used in expression is not defined; attribute value: :a"),
        ("PutItem", {"ConditionExpression": "#a = :a", "a": n(7)},
         "Invalid ConditionExpression: An expression attribute name used in the document path is not defined; attribute name: #a"),
        ("PutItem", {"ConditionExpression": "nn = :a", "a": n(1), "b": n(1)},
         "Value provided in ExpressionAttributeValues unused in expressions: keys: {:b}"),
        ("DeleteItem", {"ConditionExpression": "nn = :a", "a": n(1), "ExpressionAttributeNames": {"#a": "nn"}},
         "Value provided in ExpressionAttributeNames unused in expressions: keys: {#a}"),
        ("PutItem", {"ExpressionAttributeNames": {"#a": "nn"}},
         "ExpressionAttributeNames can only be specified when using expressions"),
        ("PutItem", {"ConditionExpression": "attribute_exists(nn)", "ExpressionAttributeNames": {}},
         "ExpressionAttributeNames must not be empty"),
        ("PutItem", {"ConditionExpression": "attribute_exists(nn)", "ExpressionAttributeValues": {}},
         "ExpressionAttributeValues must not be empty"),
        ("PutItem", {"ConditionExpression": "attribute_exists(nn)", "ExpressionAttributeNames": {"a": "nn"}},
         'ExpressionAttributeNames contains invalid key: Syntax error; key: "a"'),
        ("PutItem", {"ConditionExpression": ""},
         "Invalid ConditionExpression: The expression can not be empty;"),
        ("PutItem", {"ConditionExpression": "nn = nn"},
         "Invalid ConditionExpression: The first operand must be distinct from the remaining operands for this operator or function; operator: =, first operand: [nn]"),
        ("UpdateItem", {"UpdateExpression": "SET kk = :a", "a": n(1)},
         "One or more parameter values were invalid: Cannot update attribute kk. This attribute is part of the key"),
        ("UpdateItem", {"UpdateExpression": "SET nn = gone"},
         "The provided expression refers to an attribute that does not exist in the item"),
        ("UpdateItem", {"UpdateExpression": "SET nn = st + :a", "a": n(1)},
         "An operand in the update expression has an incorrect data type"),
        ("UpdateItem", {"UpdateExpression": "SET gone.xx = :a", "a": n(1)},
         "The document path provided in the update expression is invalid for update"),
        ("UpdateItem", {"UpdateExpression": "SET nn = :a SET st = :a", "a": n(1)},
         'Invalid UpdateExpression: The "SET" section can only be used once in an update expression;'),
        ("UpdateItem", {"UpdateExpression": "SET nn = :a, nn = :a", "a": n(1)},
         "Invalid UpdateExpression: Two document paths overlap with each other; must remove or rewrite one of these paths; path one: [nn], path two: [nn]"),
        ("UpdateItem", {"ReturnValues": "X"},
         "Return values set to invalid value"),
        ("PutItem", {"ReturnValues": "ALL_NEW"},
         "Return values set to invalid value"),
        ("PutItem", {"Item": {"kk": s("")}},
         "One or more parameter values are not valid. The AttributeValue for a key attribute cannot contain an empty string value. Key: kk"),
        ("PutItem", {"Item": {"kk": n(1)}},
         "One or more parameter values were invalid: Type mismatch for key"),
        ("PutItem", {"Item": {"nn": n(1)}},
         "One of the required keys was not given a value"),
        ("DeleteItem", {"Key": {"kk": s("x" * 2049)}},
         "Hash primary key values must be under 2048 bytes, and range primary key values must be under 1024 bytes"),
        ("PutItem", {"Item": {**KEY, "vv": s("x" * LARGEST)}},
         "Item size has exceeded the maximum allowed size"),
        ("UpdateItem", {"UpdateExpression": "SET st = :a", "a": s("x" * LARGEST)},
         "Item size to update has exceeded the maximum allowed size"),
    ],
)  # fmt: skip
def test_refusals_have_the_words_of_dynamodb(
    store: Store, operation: str, request_: dict[str, Any], message: str
) -> None:
    assert write(store, operation, **request_)[0] in {INVALID, "ConditionalCheckFailedException"}
    assert store.message == message


@pytest.mark.parametrize(
    "condition",
    [
        "nn < :true",
        "nn BETWEEN :true AND :one",
        "begins_with(st, :one)",
        "begins_with(:one, :text)",
        "attribute_type(nn, :one)",
        "size(:one) = :one",
        "nn < :true OR nn = :one",
    ],
)
def test_values_of_kinds_that_cannot_be_compared(store: Store, condition: str) -> None:
    known = {"true": {"BOOL": True}, "one": n(1), "text": s("x")}
    used = {name: value for name, value in known.items() if f":{name}" in condition}
    assert write(store, "PutItem", ConditionExpression=condition, **used) == (INVALID, None)
    assert store.message.startswith("Invalid ConditionExpression: Incorrect operand type")


@pytest.mark.parametrize(
    ("update", "value"),
    [
        ("SET nn = nn + :a", s("x")),
        ("SET nn = if_not_exists(nn, :a) - :a", s("x")),
        ("SET ll = list_append(ll, :a)", n(1)),
        ("ADD nn :a", s("x")),
        ("ADD ll :a", {"L": []}),
        ("ADD nn st", None),
        ("DELETE ss :a", n(1)),
        ("DELETE ss :a", {"L": []}),
    ],
)
def test_values_of_kinds_that_cannot_be_combined(store: Store, update: str, value: Any) -> None:
    values = {} if value is None else {"a": value}
    assert write(store, "UpdateItem", UpdateExpression=update, **values) == (INVALID, None)


def test_refusals_about_tables(store: Store) -> None:
    missing = "ResourceNotFoundException"
    for operation in ("DescribeTable", "DescribeTimeToLive", "DeleteTable"):
        assert store(operation, TableName="no-such-table")[0] == missing
    request = {"no-such-table": {"Keys": [KEY]}}
    assert store("BatchGetItem", RequestItems=request)[0] == missing
    part = {"Put": {"TableName": "no-such-table", "Item": KEY}}
    assert store("TransactWriteItems", TransactItems=[part])[0] == missing
    assert store("CreateTable", TableName=store.name, **SCHEMA)[0] == "ResourceInUseException"
    ttl = {"AttributeName": "ttl", "Enabled": True}
    store("UpdateTimeToLive", TableName=store.name, TimeToLiveSpecification=ttl)
    again = store("UpdateTimeToLive", TableName=store.name, TimeToLiveSpecification=ttl)
    assert again == (INVALID, None)
    assert store.message == "TimeToLive is already enabled"


def test_cancelled_transactions_say_why(store: Store) -> None:
    wrong = {"Put": {"TableName": store.name, "Item": {"kk": n(1)}}}
    failing = {"TableName": store.name, "Key": KEY, "ConditionExpression": "attribute_exists(xx)"}
    items = [wrong, {"Delete": failing}]
    refused = store("TransactWriteItems", TransactItems=items)
    codes = ["ValidationError", "ConditionalCheckFailed"]
    assert refused == ("TransactionCanceledException", codes)
    assert store.message == (
        "Transaction cancelled, please refer cancellation reasons for specific reasons "
        "[ValidationError, ConditionalCheckFailed]"
    )


def test_batches_of_nothing(store: Store) -> None:
    assert store("BatchGetItem", RequestItems={}) == (INVALID, None)
    assert store("BatchGetItem", RequestItems={store.name: {"Keys": []}}) == (INVALID, None)
    assert store("BatchWriteItem", RequestItems={}) == (INVALID, None)


# -- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        *map(n, ("0", "1", "12", "123", "-1", "1.5", "100", "0.001", "-12345", "12345678901234567890")),
        s("é"), s(""), {"B": b"abc"}, {"BOOL": True}, {"NULL": True}, {"L": []}, {"L": [n(1), {"L": []}]},
        {"M": {}}, {"M": {"a": n(1), "é": s("")}}, {"SS": ["a", "bc"]}, {"NS": ["1", "20"]}, {"BS": [b"abc"]},
    ],
)  # fmt: skip
def test_sizes_are_counted_as_by_dynamodb(store: Store, value: Any) -> None:
    room = LARGEST - len("kk" + "key" + "vv" + "pp") - size_of(canonical(value))
    item = {**KEY, "vv": value, "pp": s("x" * room)}
    assert store("PutItem", TableName=store.name, Item=item) == {}
    item["pp"] = s("x" * (room + 1))
    assert store("PutItem", TableName=store.name, Item=item) == (INVALID, None)


# -- PartiQL --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parameters", "code"),
    [
        ("SET nn = ? WHERE kk = ? AND attribute_exists(nn)", [n(2), s("key")], None),
        ("SET nn = ? WHERE kk = ? AND (st = ? OR nn = ?)", [n(2), s("key"), s(""), n(1)], None),
        ("SET nn = ? WHERE kk = ? AND NOT begins_with(st, ?)", [n(2), s("key"), s("x")], None),
        ("SET nn = nn + ? REMOVE ll WHERE kk = ?", [n(2), s("key")], None),
        ("SET nn = ? WHERE kk = ? AND kk = ?", [n(2), s("key"), s("key")], None),
        ("SET nn = ? WHERE kk = ? AND kk = ?", [n(2), s("key"), s("x")], "ValidationError"),
        ("SET nn = ? WHERE kk = ? OR nn = ?", [n(2), s("key"), n(1)], "ValidationError"),
        ("SET nn = ? WHERE kk = ?", [n(2), n(1)], "ValidationError"),
        ("SET nn = ? WHERE kk = ?", [n(2), s("")], "ValidationError"),
        ("SET nn = gone WHERE kk = ?", [s("key")], "ValidationError"),
        ("SET nn = ? SET nn = ? WHERE kk = ?", [n(1), n(2), s("key")], "ValidationError"),
        ("SET nn = ? WHERE kk = ? AND attribute_exists nn", [n(2), s("key")], "ValidationError"),
        ("SET nn = ? WHERE kk = ? AND nn < ?", [n(2), s("key"), {"BOOL": True}], "ValidationError"),
        ("nonsense", [], "ValidationError"),
        ("SET st = ? WHERE kk = ?", [s("x" * LARGEST), s("key")], "ValidationError"),
    ],
)  # fmt: skip
def test_statements(store: Store, text: str, parameters: list[Any], code: str | None) -> None:
    statement = {"Statement": f'UPDATE "{store.name}" {text}'}
    if parameters:
        statement["Parameters"] = parameters
    answer = store("BatchExecuteStatement", Statements=[statement])["Responses"][0]
    assert answer.get("Error", {}).get("Code") == code
    found = store("GetItem", TableName=store.name, Key=KEY, ConsistentRead=True)["Item"]
    assert (found != ITEM) is (code is None)


def test_values_that_are_none_refuse_all_statements(store: Store) -> None:
    text = f'UPDATE "{store.name}" SET nn = ? WHERE kk = ?'
    statements = [
        {"Statement": text, "Parameters": [n(number), s(key)]}
        for number, key in ((1, "key"), ("x", "other"))
    ]
    assert store("BatchExecuteStatement", Statements=statements) == (INVALID, None)


# -- what is left unprocessed ---------------------------------------------------------------------


def test_busy_tables_leave_parts_of_batches_unprocessed(memory: InMemory) -> None:
    rows = [{"kk": s(f"row {number}")} for number in range(3)]
    writes = [{"PutRequest": {"Item": row}} for row in rows]
    memory.tables.batch_limit = 2
    answer = memory("BatchWriteItem", RequestItems={memory.name: writes})
    assert answer == {"UnprocessedItems": {memory.name: writes[2:]}}
    asked = {"Keys": [KEY, *rows], "ConsistentRead": True}
    answer = memory("BatchGetItem", RequestItems={memory.name: asked})
    assert answer["Responses"] == {memory.name: [ITEM, rows[0]]}
    assert answer["UnprocessedKeys"] == {memory.name: {**asked, "Keys": rows[1:]}}
    memory.tables.batch_limit = 1
    memory("CreateTable", TableName="other", **SCHEMA)
    answer = memory("BatchGetItem", RequestItems={memory.name: {"Keys": [KEY]}, "other": asked})
    assert answer["Responses"] == {memory.name: [ITEM], "other": []}
    assert answer["UnprocessedKeys"] == {"other": asked}


# -- tables ---------------------------------------------------------------------------------------


def test_tables_are_listed_updated_and_deleted() -> None:
    tables = Tables()
    for name in ("one", "two", "three"):
        tables.apply("CreateTable", {"TableName": name, **SCHEMA})
    page = tables.apply("ListTables", {"Limit": 2})
    assert page == {"TableNames": ["one", "three"], "LastEvaluatedTableName": "three"}
    start = {"ExclusiveStartTableName": page["LastEvaluatedTableName"]}
    assert tables.apply("ListTables", start) == {"TableNames": ["two"]}
    units = {"ReadCapacityUnits": 2, "WriteCapacityUnits": 3}
    change = {"BillingMode": "PROVISIONED", "ProvisionedThroughput": units}
    tables.apply("UpdateTable", {"TableName": "one", **change})
    description = tables.apply("DescribeTable", {"TableName": "one"})["Table"]
    assert description["BillingModeSummary"] == {"BillingMode": "PROVISIONED"}
    assert description["ProvisionedThroughput"] == units
    tables.apply("DeleteTable", {"TableName": "one"})
    with pytest.raises(Refusal):
        tables.apply("DescribeTable", {"TableName": "one"})


def test_request_tokens_are_those_of_one_transaction(store: Store) -> None:
    item = {**KEY, "nn": n(2)}
    put: dict[str, Any] = {"Put": {"TableName": store.name, "Item": item}}
    request = {"TransactItems": [put], "ClientRequestToken": uuid.uuid4().hex}
    assert store("TransactWriteItems", **request) == {}
    # what is made of the request later is another one
    item["nn"] = n(3)
    code, _ = store("TransactWriteItems", **request)
    assert code == "IdempotentParameterMismatchException"
