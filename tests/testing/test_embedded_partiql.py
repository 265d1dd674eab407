"""Batches of PartiQL's UPDATE: the embedded engine answers them as DynamoDB Local does."""

import io
import itertools
import uuid

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError
from plain_tables import create_plain_table

from pynamodb_mutex.testing import Engine, use

REFUSED = {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"}
BY_KEY = 'SET "n"=? WHERE "k"=?'

only_here = pytest.mark.parametrize("tables", ["here"], indirect=True)


class Body(io.BytesIO):
    def stream(self):
        yield self.read()


def answer_here(client):
    """Have what the embedded engine runs in a process of its own run in this one, to be measured."""
    server = pytest.importorskip("pynamodb_mutex.testing.embedded_server")
    from werkzeug.test import EnvironBuilder
    from werkzeug.wrappers import Response

    app = server.DynamoDBRules(server.DomainDispatcherApplication(server.create_backend_app))

    def answer(request, **_):
        headers = {
            name: value.decode() if isinstance(value, bytes) else value
            for name, value in request.headers.items()
        }
        environ = EnvironBuilder(method="POST", headers=headers, data=request.body).get_environ()
        response = Response.from_app(app, environ, buffered=True)
        return AWSResponse(request.url, response.status_code, response.headers, Body(response.data))

    client.meta.events.register("before-send.dynamodb", answer)


class Tables:
    """Two tables with a hash key, and one with a range key too; rows are new for each test."""

    def __init__(self, client):
        self.client = client
        self.plain = self._create("k")
        self.another = self._create("k")
        self.ranged = self._create("k", "r")
        self._numbers = itertools.count()

    def _create(self, *keys):
        name = f"partiql_{uuid.uuid4().hex}"
        create_plain_table(self.client, name, dict.fromkeys(keys, "S"))
        return name

    def put(self, **attributes):
        item = {"k": {"S": f"row {next(self._numbers)}"}, **attributes}
        self.client.put_item(TableName=self.ranged if "r" in item else self.plain, Item=item)
        return item

    def get(self, item):
        table, key = self.plain, {"k": item["k"]}
        if "r" in item:
            table, key = self.ranged, {**key, "r": item["r"]}
        return self.client.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item")

    def update(self, text, *parameters, report=None, table=None):
        """A statement that updates: what follows the table's name."""
        statement = {"Statement": f'UPDATE "{table or self.plain}" {text}'}
        statement["Parameters"] = list(parameters)
        if report:
            statement["ReturnValuesOnConditionCheckFailure"] = report
        return statement

    def batch(self, *statements):
        return self.client.batch_execute_statement(Statements=statements)["Responses"]

    def refused(self, *statements):
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
        assert error["Code"] == "ValidationError"
        return error["Message"]


@pytest.fixture(scope="module", params=["here", "local"])
def tables(request):
    here = request.param == "here"
    nowhere = Engine("here", "http://127.0.0.1:9")
    with use(nowhere if here else request.getfixturevalue("local_engine")):
        client = boto3.client(
            "dynamodb", config=Config(retries={"total_max_attempts": 1}, parameter_validation=False)
        )
    if here:
        answer_here(client)
    tables = Tables(client)
    yield tables
    for name in (tables.plain, tables.another, tables.ranged):
        client.delete_table(TableName=name)
    client.close()


def n(number):
    return {"N": str(number)}


def s(text):
    return {"S": text}


RENEWAL = (
    'SET "expires_at"=? SET "lease"=? SET "ttl"=? '
    'WHERE "k"=? AND "token"=? AND "version"=? AND "expires_at"<? RETURNING MODIFIED NEW *'
)


def claim(tables):
    return tables.put(
        token=n(7), version=s("v"), expires_at=n("1700000000.125"), lease=n(30), owner=s("me")
    )


def test_a_renewal_reports_what_it_set(tables):
    row = claim(tables)
    # the lease as it was is reported, too
    new = {"expires_at": n("1700000030.125"), "lease": n(30), "ttl": n(1700003600)}
    answer = tables.run(
        RENEWAL, *new.values(), row["k"], n(7), s("v"), new["expires_at"], report="ALL_OLD"
    )
    assert answer == {"TableName": tables.plain, "Item": new}
    assert tables.get(row) == {**row, **new}


@pytest.mark.parametrize(
    "wrong", [(n(8), s("v"), n(9e9)), (n(7), s("w"), n(9e9)), (n(7), s("v"), n(1))]
)
def test_a_refused_renewal_carries_the_row(tables, wrong):
    row = claim(tables)
    answer = tables.run(RENEWAL, n(1), n(2), n(3), row["k"], *wrong, report="ALL_OLD")
    assert answer == {"TableName": tables.plain, "Error": {**REFUSED, "Item": row}}
    assert tables.get(row) == row


@pytest.mark.parametrize("report", [None, "NONE"])
def test_a_refusal_carries_no_row_that_nobody_asked_for(tables, report):
    row = tables.put(n=n(1))
    answer = tables.run(f'{BY_KEY} AND "n"=?', n(5), row["k"], n(2), report=report)
    assert answer == {"TableName": tables.plain, "Error": REFUSED}


@pytest.mark.parametrize(
    ("sign", "holds"),
    [
        ("=", [False, True, False]),
        ("<>", [True, False, True]),
        ("<", [True, False, False]),
        ("<=", [True, True, False]),
        (">", [False, False, True]),
        (">=", [False, True, True]),
    ],
)
def test_comparisons(tables, sign, holds):
    rows = [tables.put(n=n(number)) for number in (9, 10, 11)]
    answers = tables.batch(
        *(
            tables.update(f'SET "s"=? WHERE "k"=? AND "n"{sign}?', s("y"), row["k"], n(10))
            for row in rows
        )
    )
    assert ["Error" not in answer for answer in answers] == holds
    assert ["s" in tables.get(row) for row in rows] == holds


def test_attributes_that_are_missing(tables):
    row = tables.put()
    text = f'{BY_KEY} AND "gone"{{}}?'
    assert tables.run(text.format("="), n(1), row["k"], n(1))["Error"] == REFUSED
    assert tables.run(text.format("<"), n(1), row["k"], n(1))["Error"] == REFUSED
    assert tables.run(text.format("<>"), n(1), row["k"], n(1)) == {"TableName": tables.plain}


@pytest.mark.parametrize("more", ["", ' AND "n"=?', ' AND "n"<>?'])
def test_a_row_that_is_missing_is_not_made(tables, more):
    row = {"k": s("missing")}
    parameters = [n(1)] if more else []
    answer = tables.run(BY_KEY + more, n(5), row["k"], *parameters, report="ALL_OLD")
    assert answer == {"TableName": tables.plain, "Error": REFUSED}
    assert tables.get(row) is None


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("", {}),
        ("RETURNING ALL OLD *", {"n": n(1), "o": s("o"), "same": n(2)}),
        ("RETURNING ALL NEW *", {"n": n(5), "o": s("o"), "same": n(2), "new": s("x")}),
        ("RETURNING MODIFIED OLD *", {"n": n(1), "same": n(2)}),
        ("returning modified new*", {"n": n(5), "same": n(2), "new": s("x")}),
    ],
)
def test_what_is_returned(tables, clause, expected):
    row = tables.put(n=n(1), o=s("o"), same=n(2))
    if "ALL" in clause:
        expected = {**expected, "k": row["k"]}
    answer = tables.run(
        f'SET "n"=? SET "same"=? SET "new"=? WHERE "k"=? {clause}', n(5), n(2), s("x"), row["k"]
    )
    assert answer == {"TableName": tables.plain, **({"Item": expected} if expected else {})}
    empty = tables.put()  # nothing old to return
    answer = tables.run(f"{BY_KEY} RETURNING MODIFIED OLD *", n(1), empty["k"])
    assert answer == {"TableName": tables.plain}


def test_a_range_key(tables):
    row, other = tables.put(r=s("1"), n=n(1)), tables.put(r=s("2"))
    tables.client.put_item(TableName=tables.ranged, Item={**row, "r": s("2")})
    text = 'SET "n"=? WHERE "r"=? AND "n"<? AND "k"=? RETURNING ALL NEW *'
    answer = tables.run(text, n(5), s("1"), n(2), row["k"], table=tables.ranged)
    assert answer == {"TableName": tables.ranged, "Item": {**row, "n": n(5)}}
    assert tables.get({**row, "r": s("2")})["n"] == n(1)
    text = 'SET "n"=? WHERE "k"=? AND "r"=?'
    answer = tables.run(text, n(5), other["k"], s("1"), table=tables.ranged)
    assert answer["Error"] == REFUSED


@pytest.mark.parametrize(
    ("where", "ranged"),
    [
        ('"n"=?', False),
        ('"k"<=?', False),
        ('"k"=?', True),
        ('"r"=?', True),
        ('"k"=? AND "r">=?', True),
    ],
)
def test_the_whole_key_is_given(tables, where, ranged):
    table = tables.ranged if ranged else tables.plain
    message = tables.invalid(f'SET "n"=? WHERE {where}', n(1), s("a"), s("b"), table=table)
    assert message == "Where clause does not contain a mandatory equality on all key attributes"


def test_more_conditions_on_the_key(tables):
    row = tables.put(n=n(1))
    text = f'{BY_KEY} AND "k"{{}}?'
    assert "Error" not in tables.run(text.format("="), n(2), row["k"], row["k"])
    assert "Error" not in tables.run(text.format(">="), n(3), row["k"], row["k"])
    answer = tables.run(text.format(">"), n(4), row["k"], row["k"], report="ALL_OLD")
    assert answer["Error"] == {**REFUSED, "Item": {**row, "n": n(3)}}
    message = tables.invalid(text.format("="), n(5), row["k"], s("another"))
    assert message.startswith("Multiple conditions on same key k.")
    assert tables.get(row)["n"] == n(3)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('"q""r"', 'q"r'),
        ('"""q"', '"q'),
        ('"a.b c,=?"', "a.b c,=?"),
        ('"WHERE"', "WHERE"),
        ("n1_$", "n1_$"),
        ("_N", "_N"),
    ],
)
def test_names(tables, written, name):
    row = tables.put(**{name: n(1)})
    text = f"SET {written}=? WHERE {written}=? AND k=? RETURNING MODIFIED NEW *"
    answer = tables.run(text, n(2), n(1), row["k"])
    assert answer == {"TableName": tables.plain, "Item": {name: n(2)}}


@pytest.mark.parametrize(
    "text",
    [
        'UPDATE {0} SET "n"=?, "s"=? SET u=? WHERE k=? RETURNING ALL NEW *',
        '\n update"{0}"set n=?,s=?set"u" = ?where k\t=\n?returning all new*\n',
    ],
)
def test_ways_to_write_it(tables, text):
    row = tables.put(o=n(0))
    parameters = [n(1), n(2), n(3), row["k"]]
    (answer,) = tables.batch({"Statement": text.format(tables.plain), "Parameters": parameters})
    assert answer["Item"] == {**row, "n": n(1), "s": n(2), "u": n(3)}


MALFORMED = [
    'SET "n"=?',
    'SET "n"=? WHERE',
    'WHERE "k"=?',
    'WHERE "k"=? SET "n"=?',
    'SET "n"=?, SET "s"=? WHERE "k"=?',
    'SET "n"=?, WHERE "k"=?',
    'SET "n"=? "s"=? WHERE "k"=?',
    'SETn=? WHERE "k"=?',
    "SET n=? WHEREk=?",
    'SET ""=? WHERE "k"=?',
    'SET "n=? WHERE "k"=?',
    'SET 1n=? WHERE "k"=?',
    'SET a-b=? WHERE "k"=?',
    'SET key=? WHERE "k"=?',
    'SET where=? WHERE "k"=?',
    'SET "n"=? WHERE "k"==?',
    'SET "n"=? WHERE "k"=? AND',
    'SET "n"=? WHERE "k"=? "n"=?',
    'SET "n"=? WHERE "k"=? ANDn=?',
    'SET "n"=? WHERE "k"=? AND "n" < = ?',
    'SET "n"=? WHERE "k"=? OR "k"=?',
    'SET "n"=? WHERE "k"=? RETURNING *',
    'SET "n"=? WHERE "k"=? RETURNING ALL *',
    'SET "n"=? WHERE "k"=? RETURNING NEW *',
    'SET "n"=? WHERE "k"=? RETURNING ALL NEW',
    'SET "n"=? WHERE "k"=? RETURNING ALL NEW *, ALL OLD *',
    'SET "n"=? WHERE "k"=? RETURNING ALL NEW * x',
]


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_malformed(tables, text):
    row = tables.put(n=n(1))
    assert tables.invalid(text, n(2), row["k"], row["k"], row["k"])
    assert tables.get(row) == row


@pytest.mark.parametrize(
    "text", ["UPDATE", "UPDATE {0}SET n=? WHERE k=?", "UPDATE '{0}' SET n=? WHERE k=?"]
)
def test_no_table(tables, text):
    row = tables.put(n=n(1))
    statement = {"Statement": text.format(tables.plain), "Parameters": [n(2), row["k"]]}
    (answer,) = tables.batch(statement)
    assert answer["Error"]["Code"] in {"ValidationError", "ResourceNotFound"}
    assert tables.get(row) == row


@only_here
@pytest.mark.parametrize(
    "text",
    [
        'SET "n"=? WHERE "k"=\'a\'',
        'SET "n"=7 WHERE "k"=?',
        'SET "n"="n"+? WHERE "k"=?',
        'SET "n".x=? WHERE "k"=?',
        'SET "n"=? REMOVE "s" WHERE "k"=?',
        'SET "n"=? WHERE "k"=? AND attribute_exists("n")',
        'SET "n"=? WHERE ("k"=?)',
        'SET "n"=? WHERE "k"=?;',
        'SET token=? WHERE "k"=?',
    ],
)
def test_what_is_not_understood_is_refused(tables, text):
    row = tables.put(n=n(1))
    assert tables.invalid(text, n(2), row["k"])
    assert tables.get(row) == row


def test_parameters_are_missing_or_left_over(tables):
    row = tables.put(n=n(1))
    message = "Number of parameters in request and statement don't match."
    assert tables.invalid(BY_KEY, n(2)) == message
    assert tables.invalid(BY_KEY) == message
    (answer,) = tables.batch({"Statement": f'UPDATE "{tables.plain}" {BY_KEY}'})
    assert answer["Error"] == {"Code": "ValidationError", "Message": message}
    assert tables.invalid(BY_KEY, n(2), table="missing") == message
    assert tables.get(row) == row
    assert tables.run(BY_KEY, n(2), row["k"], n(3)) == {"TableName": tables.plain}
    assert tables.get(row)["n"] == n(2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('SET "k"=? WHERE "k"=?', "Cannot update attribute k. This attribute is part of the key"),
        ('SET "n"=? SET "n"=? WHERE "k"=?', "Two document paths overlap with each other"),
    ],
)
def test_what_update_item_refuses(tables, text, message):
    row = tables.put(n=n(1))
    parameters = [s("b")] * text.count("SET")
    assert message in tables.invalid(text, *parameters, row["k"])
    assert tables.get(row) == row


def test_each_statement_has_its_own_answer(tables):
    held, lost, last = tables.put(n=n(1)), tables.put(n=n(2)), tables.put(r=s("r"))
    guarded = f'{BY_KEY} AND "n"=?'
    answers = tables.batch(
        tables.update(guarded, n(5), held["k"], n(1), report="ALL_OLD"),
        tables.update(guarded, n(5), lost["k"], n(1), report="ALL_OLD"),
        tables.update(BY_KEY, n(5), held["k"], table="missing"),
        tables.update("SET", n(5)),
        {"Statement": "no PartiQL at all"},
        {"Statement": f"UPDATE{tables.plain} SET n=? WHERE k=?", "Parameters": [n(5), last["k"]]},
        tables.update(f'{BY_KEY} AND "r"=?', n(5), last["k"], last["r"], table=tables.ranged),
    )
    assert answers[:3] == [
        {"TableName": tables.plain},
        {"TableName": tables.plain, "Error": {**REFUSED, "Item": lost}},
        {
            "Error": {
                "Code": "ResourceNotFound",
                "Message": "Cannot do operations on a non-existent table",
            }
        },
    ]
    assert [answer["Error"]["Code"] for answer in answers[3:6]] == ["ValidationError"] * 3
    assert answers[6] == {"TableName": tables.ranged}
    assert [tables.get(row)["n"] for row in (held, lost, last)] == [n(5), n(2), n(5)]


def test_25_statements_are_run_and_26_refused(tables):
    rows = [tables.put() for _ in range(26)]
    statements = [
        tables.update(f"{BY_KEY} RETURNING MODIFIED NEW *", n(number), row["k"])
        for number, row in enumerate(rows)
    ]
    assert tables.refused(*statements) == "BatchWriteItem cannot write more than 25 items"
    assert tables.get(rows[0]) == rows[0]
    answers = tables.batch(*statements[:25])
    assert [answer["Item"]["n"] for answer in answers] == [n(number) for number in range(25)]


def test_what_is_empty(tables):
    row = tables.put(n=n(1))
    update = tables.update(BY_KEY, n(2), row["k"])
    for statements in ([], [update, {"Statement": ""}], [update, {}]):
        assert tables.refused(*statements) == "The statement was empty."
    assert tables.get(row) == row


def test_reads_go_alone(tables):
    row = tables.put(n=n(1))
    update = tables.update(BY_KEY, n(2), row["k"])
    select = {"Statement": f"select * FROM {tables.plain} WHERE k = ?", "Parameters": [row["k"]]}
    message = "Read and write requests together in the same batch is not supported."
    assert tables.refused(update, select) == message
    assert tables.batch(select) == [{"TableName": tables.plain, "Item": row}]


def test_a_row_is_updated_once_however_its_statements_are_written(tables):
    row, ranged = tables.put(n=n(1)), tables.put(r=s("r"))
    keys = {"k": ranged["k"], "r": ranged["r"]}
    first, second, third = (
        tables.update(f'SET "n"=? WHERE {where}', n(2), *values)
        for where, values in (
            ('"k"=? AND "n"=?', (row["k"], n(1))),
            ('"k"=? AND "n"<>?', (row["k"], n(1))),
            ('"n"=? AND "k"=?', (n(7), row["k"])),
        )
    )
    key, yek = (
        tables.update(
            f'SET "n"=? WHERE "{one}"=? AND "{two}"=?',
            n(1),
            keys[one],
            keys[two],
            table=tables.ranged,
        )
        for one, two in ("kr", "rk")
    )
    for twice in ((first, third), (second, third), (key, yek)):
        assert tables.refused(*twice) == "Provided list of item keys contains duplicates"


def test_the_same_key_in_two_tables(tables):
    row = tables.put()
    tables.client.put_item(TableName=tables.another, Item=row)
    answers = tables.batch(
        tables.update(BY_KEY, n(1), row["k"]),
        tables.update(BY_KEY, n(2), row["k"], table=tables.another),
    )
    assert answers == [{"TableName": tables.plain}, {"TableName": tables.another}]


@only_here
def test_what_is_refused_as_a_whole_writes_nothing(tables):
    row = tables.put(n=n(1))
    update = tables.update(BY_KEY, n(2), row["k"])
    assert tables.refused(update, update)
    assert tables.get(row) == row


@only_here
def test_deletes_next_to_an_update_are_refused(tables):
    row, kept = tables.put(n=n(1)), tables.put()
    delete = {"Statement": f'DELETE FROM "{tables.plain}" WHERE "k"=?', "Parameters": [kept["k"]]}
    updated, deleted = tables.batch(tables.update(BY_KEY, n(2), row["k"]), delete)
    assert updated == {"TableName": tables.plain}
    assert deleted["Error"]["Code"] == "ValidationError"
    assert tables.get(kept) == kept


def test_the_server_answers_batches(embedded_engine):
    with use(embedded_engine):
        tables = Tables(boto3.client("dynamodb"))
    row = tables.put(n=n(1))
    answer = tables.run(f'{BY_KEY} AND "n"=?', n(2), row["k"], n(3), report="ALL_OLD")
    assert answer == {"TableName": tables.plain, "Error": {**REFUSED, "Item": row}}
    tables.client.close()
