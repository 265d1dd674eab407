"""Batches of PartiQL's UPDATE: the embedded engine answers them as DynamoDB Local does."""

import itertools
import uuid

import pytest
from botocore.exceptions import ClientError
from plain_tables import create_plain_table

REFUSED = {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"}
BY_KEY = 'SET "n"=? WHERE "k"=?'

only_embedded = pytest.mark.parametrize("dynamodb", ["embedded"], indirect=True)


def typed(value):
    if isinstance(value, dict):
        return value
    return {"S": value} if isinstance(value, str) else {"N": str(value)}


class Tables:
    """Two tables with a hash key, and one with a range key too; rows are new for each test."""

    def __init__(self, client):
        self.client = client
        self.plain, self.another = self._create("k"), self._create("k")
        self.ranged = self._create("k", "r")
        self._numbers = itertools.count()

    def _create(self, *keys):
        name = f"partiql_{uuid.uuid4().hex}"
        create_plain_table(self.client, name, dict.fromkeys(keys, "S"))
        return name

    def put(self, **values):
        item = {"k": f"row {next(self._numbers)}", **values}
        item = {name: typed(value) for name, value in item.items()}
        self.client.put_item(TableName=self.ranged if "r" in item else self.plain, Item=item)
        return item

    def get(self, item):
        table = self.ranged if "r" in item else self.plain
        key = {name: item[name] for name in "kr" if name in item}
        return self.client.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item")

    def update(self, text, *parameters, report=None, table=None):
        """A statement that updates: what follows the table's name."""
        statement = {"Statement": f'UPDATE "{table or self.plain}" {text}'}
        statement["Parameters"] = [typed(value) for value in parameters]
        if report:
            statement["ReturnValuesOnConditionCheckFailure"] = report
        return statement

    def batch(self, *statements):
        return self.client.batch_execute_statement(Statements=statements)["Responses"]

    def refused(self, *statements):
        """The message for a batch that is refused as a whole."""
        with pytest.raises(ClientError) as caught:
            self.batch(*statements)
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert caught.value.response["Error"]["Code"] == "ValidationException"
        return caught.value.response["Error"]["Message"]

    def run(self, text, *parameters, **options):
        (answer,) = self.batch(self.update(text, *parameters, **options))
        return answer

    def invalid(self, text, *parameters, **options):
        """The message for a statement that is not run."""
        error = self.run(text, *parameters, **options)["Error"]
        assert error.keys() == {"Code", "Message"}
        assert error["Code"] == "ValidationError", text
        return error["Message"]


@pytest.fixture(scope="module")
def tables(dynamodb):
    tables = Tables(dynamodb)
    yield tables
    for name in (tables.plain, tables.another, tables.ranged):
        dynamodb.delete_table(TableName=name)


# -- one statement ---------------------------------------------------------------------------------


def test_renewal_reports_what_it_set_and_a_refused_one_the_row(tables):
    renewal = (
        'SET "expires_at"=? SET "lease"=? SET "ttl"=? WHERE "k"=? AND "token"=? AND "version"=? '
        'AND "expires_at"<? RETURNING MODIFIED NEW *'
    )
    row = tables.put(token=7, version="v", expires_at=1700000000.125, lease=30, owner="me")
    # the lease as it was is reported, too
    new = {"expires_at": {"N": "1700000030.125"}, "lease": {"N": "30"}, "ttl": {"N": "1700003600"}}
    for wrong in ((8, "v", 9e9), (7, "w", 9e9), (7, "v", 1)):
        answer = tables.run(renewal, *new.values(), row["k"], *wrong, report="ALL_OLD")
        assert answer == {"TableName": tables.plain, "Error": {**REFUSED, "Item": row}}
        assert tables.get(row) == row
    answer = tables.run(renewal, *new.values(), row["k"], 7, "v", 9e9, report="ALL_OLD")
    assert answer == {"TableName": tables.plain, "Item": new}
    assert tables.get(row) == {**row, **new}


def test_refusal_carries_no_row_that_nobody_asked_for_and_makes_none(tables):
    row = tables.put(n=1)
    for report in (None, "NONE"):
        answer = tables.run(f'{BY_KEY} AND "n"=?', 5, row["k"], 2, report=report)
        assert answer == {"TableName": tables.plain, "Error": REFUSED}
    for more in ("", ' AND "n"=?', ' AND "n"<>?'):
        parameters = [1] if more else []
        answer = tables.run(BY_KEY + more, 5, "missing", *parameters, report="ALL_OLD")
        assert answer == {"TableName": tables.plain, "Error": REFUSED}
    assert tables.get({"k": {"S": "missing"}}) is None


def test_comparisons(tables):
    holds = {"=": [10], "<>": [9, 11, None], "<": [9], "<=": [9, 10], ">": [11], ">=": [10, 11]}
    for sign, expected in holds.items():
        rows = {number: tables.put(n=number) for number in (9, 10, 11)} | {None: tables.put()}
        text = f'SET "s"=? WHERE "k"=? AND "n"{sign}?'
        answers = tables.batch(*(tables.update(text, "y", row["k"], 10) for row in rows.values()))
        found = zip(rows, answers, strict=True)
        assert [number for number, answer in found if "Error" not in answer] == expected
        assert [number for number, row in rows.items() if "s" in tables.get(row)] == expected


def test_what_is_returned(tables):
    for clause, expected in {
        "": {},
        "RETURNING ALL OLD *": {"n": 1, "o": "o", "same": 2},
        "RETURNING ALL NEW *": {"n": 5, "o": "o", "same": 2, "new": "x"},
        "RETURNING MODIFIED OLD *": {"n": 1, "same": 2},
        "returning modified new*": {"n": 5, "same": 2, "new": "x"},
    }.items():
        row = tables.put(n=1, o="o", same=2)
        text = f'SET "n"=? SET "same"=? SET "new"=? WHERE "k"=? {clause}'
        item = {name: typed(value) for name, value in expected.items()}
        item |= {"k": row["k"]} if "ALL" in clause else {}
        answer = tables.run(text, 5, 2, "x", row["k"])
        assert answer == {"TableName": tables.plain, **({"Item": item} if item else {})}
    answer = tables.run(f"{BY_KEY} RETURNING MODIFIED OLD *", 1, tables.put()["k"])
    assert answer == {"TableName": tables.plain}  # it had nothing old


def test_range_key(tables):
    row = tables.put(r="1", n=1)
    second = tables.put(k=row["k"], r="2", n=1)
    text = 'SET "n"=? WHERE "r"=? AND "n"<? AND "k"=? RETURNING ALL NEW *'
    answer = tables.run(text, 5, "1", 2, row["k"], table=tables.ranged)
    assert answer == {"TableName": tables.ranged, "Item": {**row, "n": {"N": "5"}}}
    assert tables.get(second) == second
    answer = tables.run(f'{BY_KEY} AND "r"=?', 5, row["k"], "3", table=tables.ranged)
    assert answer["Error"] == REFUSED


def test_more_conditions_on_the_key(tables):
    row = tables.put(n=1)
    text = f'{BY_KEY} AND "k"{{}}?'
    assert "Error" not in tables.run(text.format("="), 2, row["k"], row["k"])
    assert "Error" not in tables.run(text.format(">="), 3, row["k"], row["k"])
    answer = tables.run(text.format(">"), 4, row["k"], row["k"], report="ALL_OLD")
    assert answer["Error"] == {**REFUSED, "Item": {**row, "n": {"N": "3"}}}
    message = tables.invalid(text.format("="), 5, row["k"], "another")
    assert message.startswith("Multiple conditions on same key k.")
    assert tables.get(row)["n"] == {"N": "3"}


def test_names(tables):
    quoted = (('"q""r"', 'q"r'), ('"""q"', '"q'), ('"a.b c,=?"', "a.b c,=?"), ('"WHERE"', "WHERE"))
    for written, name in (*quoted, ("n1_$", "n1_$"), ("_N", "_N")):
        row = tables.put(**{name: 1})
        text = f"SET {written}=? WHERE {written}=? AND k=? RETURNING MODIFIED NEW *"
        answer = tables.run(text, 2, 1, row["k"])
        assert answer == {"TableName": tables.plain, "Item": {name: {"N": "2"}}}


def test_ways_to_write_it(tables):
    for text in (
        'UPDATE {0} SET "n"=?, "s"=? SET u=? WHERE k=? RETURNING ALL NEW *',
        '\n update"{0}"set n=?,s=?set"u" = ?where k\t=\n?returning all new*\n',
    ):
        row, new = tables.put(o=0), {name: {"N": "7"} for name in "nsu"}
        parameters = [*new.values(), row["k"]]
        (answer,) = tables.batch({"Statement": text.format(tables.plain), "Parameters": parameters})
        assert answer["Item"] == row | new


# -- statements that are not run -------------------------------------------------------------------

MALFORMED = [
    *('SET "n"=?', 'SET "n"=? WHERE', 'WHERE "k"=?', 'WHERE "k"=? SET "n"=?'),
    *('SETn=? WHERE "k"=?', "SET n=? WHEREk=?", 'SET "n"=? WHERE "k"==?'),
    *(f'SET {name}=? WHERE "k"=?' for name in ('""', '"n', "1n", "a-b", "key", "where")),
    *(f'SET {sets} WHERE "k"=?' for sets in ('"n"=?, SET "s"=?', '"n"=?,', '"n"=? "s"=?')),
    *(f"{BY_KEY} {more}" for more in ("AND", '"n"=?', "ANDn=?", 'AND "n" < = ?', 'OR "k"=?')),
    *(f"{BY_KEY} RETURNING {what}" for what in ("*", "ALL *", "NEW *", "ALL NEW")),
    *(f"{BY_KEY} RETURNING ALL NEW *{more}" for more in (", ALL OLD *", " x")),
]
NOT_UNDERSTOOD = [
    *(f'SET {sets} WHERE "k"=?' for sets in ('"n"=7', '"n"="n"+?', '"n".x=?', '"n"=? REMOVE "s"')),
    *(f'SET "n"=? WHERE {where}' for where in ("\"k\"='a'", '("k"=?)', '"k"=?;')),
    *('SET "n"=? WHERE "k"=? AND attribute_exists("n")', 'SET token=? WHERE "k"=?'),
]


def test_malformed(tables):
    row = tables.put(n=1)
    for text in MALFORMED:
        assert tables.invalid(text, 2, row["k"], row["k"], row["k"])
    for text in ("UPDATE", "UPDATE {0}SET n=? WHERE k=?", "UPDATE '{0}' SET n=? WHERE k=?"):
        statement = {"Statement": text.format(tables.plain), "Parameters": [{"N": "2"}, row["k"]]}
        (answer,) = tables.batch(statement)
        assert answer["Error"]["Code"] in {"ValidationError", "ResourceNotFound"}, text
    assert tables.get(row) == row


@only_embedded
def test_what_is_not_understood_is_refused(tables):
    row = tables.put(n=1)
    for text in NOT_UNDERSTOOD:
        assert tables.invalid(text, 2, row["k"])
    assert tables.get(row) == row


def test_the_whole_key_is_given(tables):
    for where, table in (
        ('"n"=?', tables.plain),
        ('"k"<=?', tables.plain),
        ('"k"=?', tables.ranged),
        ('"r"=?', tables.ranged),
        ('"k"=? AND "r">=?', tables.ranged),
    ):
        message = tables.invalid(f'SET "n"=? WHERE {where}', 1, "a", "b", table=table)
        assert message == "Where clause does not contain a mandatory equality on all key attributes"


def test_parameters_are_missing_or_left_over(tables):
    row = tables.put(n=1)
    message = "Number of parameters in request and statement don't match."
    assert tables.invalid(BY_KEY, 2) == tables.invalid(BY_KEY) == message
    (answer,) = tables.batch({"Statement": f'UPDATE "{tables.plain}" {BY_KEY}'})
    assert answer["Error"] == {"Code": "ValidationError", "Message": message}
    assert tables.invalid(BY_KEY, 2, table="missing") == message
    assert tables.get(row) == row
    assert tables.run(BY_KEY, 2, row["k"], 3) == {"TableName": tables.plain}
    assert tables.get(row)["n"] == {"N": "2"}


def test_what_update_item_refuses(tables):
    row = tables.put(n=1)
    key = "Cannot update attribute k. This attribute is part of the key"
    assert key in tables.invalid('SET "k"=? WHERE "k"=?', "b", row["k"])
    overlap = "Two document paths overlap with each other"
    assert overlap in tables.invalid('SET "n"=? SET "n"=? WHERE "k"=?', "b", "b", row["k"])
    assert tables.get(row) == row


# -- several statements ----------------------------------------------------------------------------


def test_each_statement_has_its_own_answer(tables):
    held, lost, last = tables.put(n=1), tables.put(n=2), tables.put(r="r")
    guarded = f'{BY_KEY} AND "n"=?'
    answers = tables.batch(
        tables.update(guarded, 5, held["k"], 1, report="ALL_OLD"),
        tables.update(guarded, 5, lost["k"], 1, report="ALL_OLD"),
        tables.update(BY_KEY, 5, held["k"], table="missing"),
        tables.update("SET", 5),
        {"Statement": "no PartiQL at all"},
        {"Statement": f"UPDATE{tables.plain} SET n=? WHERE k=?", "Parameters": [last["k"]] * 2},
        tables.update(f'{BY_KEY} AND "r"=?', 5, last["k"], last["r"], table=tables.ranged),
        tables.update(BY_KEY, 6, "in two tables", table=tables.another),
        tables.update(BY_KEY, 7, "in two tables"),
    )
    missing = "Cannot do operations on a non-existent table"
    assert answers[:3] == [
        {"TableName": tables.plain},
        {"TableName": tables.plain, "Error": {**REFUSED, "Item": lost}},
        {"Error": {"Code": "ResourceNotFound", "Message": missing}},
    ]
    assert [answer["Error"]["Code"] for answer in answers[3:6]] == ["ValidationError"] * 3
    assert answers[6:] == [
        {"TableName": tables.ranged},
        {"TableName": tables.another, "Error": REFUSED},
        {"TableName": tables.plain, "Error": REFUSED},
    ]
    assert [tables.get(row)["n"]["N"] for row in (held, lost, last)] == ["5", "2", "5"]


def test_25_statements_are_run_and_26_refused(tables):
    rows = [tables.put() for _ in range(26)]
    text = f"{BY_KEY} RETURNING MODIFIED NEW *"
    statements = [tables.update(text, number, row["k"]) for number, row in enumerate(rows)]
    assert tables.refused(*statements) == "BatchWriteItem cannot write more than 25 items"
    assert tables.get(rows[0]) == rows[0]
    answers = tables.batch(*statements[:25])
    assert [answer["Item"]["n"]["N"] for answer in answers] == [str(each) for each in range(25)]


def test_batches_that_are_refused_as_a_whole(tables):
    row = tables.put(n=1)
    update = tables.update(BY_KEY, 2, row["k"])
    for statements in ([], [update, {"Statement": ""}], [update, {}]):
        assert tables.refused(*statements) == "The statement was empty."
    select = {"Statement": f"select * FROM {tables.plain} WHERE k = ?", "Parameters": [row["k"]]}
    message = "Read and write requests together in the same batch is not supported."
    assert tables.refused(update, select) == message
    assert tables.batch(select) == [{"TableName": tables.plain, "Item": row}]


def test_row_is_updated_once_however_its_statements_are_written(tables):
    k, ranged = tables.put(n=1)["k"], tables.put(r="r")
    first = tables.update('SET "n"=? WHERE "k"=? AND "n"=?', 2, k, 1)
    second = tables.update('SET "n"=? WHERE "k"=? AND "n"<>?', 2, k, 1)
    third = tables.update('SET "n"=? WHERE "n"=? AND "k"=?', 2, 7, k)
    kr, rk = (
        tables.update(
            f'SET "n"=? WHERE "{one}"=? AND "{two}"=?',
            *(1, ranged[one], ranged[two]),
            table=tables.ranged,
        )
        for one, two in ("kr", "rk")
    )
    for twice in ((first, third), (second, third), (kr, rk)):
        assert tables.refused(*twice) == "Provided list of item keys contains duplicates"


@only_embedded
def test_neither_duplicates_nor_deletes_next_to_an_update_write_anything(tables):
    row, kept = tables.put(n=1), tables.put()
    update = tables.update(BY_KEY, 2, row["k"])
    assert tables.refused(update, update)
    assert tables.get(row) == row
    delete = {"Statement": f'DELETE FROM "{tables.plain}" WHERE "k"=?', "Parameters": [kept["k"]]}
    updated, deleted = tables.batch(update, delete)
    assert updated == {"TableName": tables.plain}
    assert deleted["Error"]["Code"] == "ValidationError"
    assert tables.get(kept) == kept
