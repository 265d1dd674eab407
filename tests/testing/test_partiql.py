"""Updates in PartiQL: the embedded engine and the table in memory answer them as DynamoDB Local does."""

import pytest
from tables import INVALID, n, s, schema

REFUSED = {"Code": "ConditionalCheckFailed", "Message": "The conditional request failed"}
BY_KEY = 'SET "n"=? WHERE "k"=?'
VALUES = {}

of_engines = pytest.mark.parametrize("store", ["embedded", "local"], indirect=True)
only_embedded = pytest.mark.parametrize("store", ["embedded"], indirect=True)


def fill(store):
    """Two tables with a hash key, and one with a range key too."""
    for table, keys in ("", "k"), ("_2", "k"), ("_r", "k r"):
        named = {"TableName": store.name + table}
        store("CreateTable", **named, **schema(keys, dict.fromkeys(keys.split(), "S")))


def typed(values):
    kinds = {str: s, dict: dict}
    return {name: kinds.get(type(each), n)(each) for name, each in values.items()}


def put(store, k="row", **values):
    item = typed({"k": k, **values})
    store("PutItem", TableName=store.name + "_r" * ("r" in item), Item=item)
    return item


def stands(store, item):
    """Return the row with the key of an item as it stands."""
    key = {name: item[name] for name in "kr" if name in item}
    return store("GetItem", TableName=store.name + "_r" * ("r" in key), Key=key).get("Item")


def update(store, text, *parameters, table="", report=None):
    """A statement that updates: what follows the table's name."""
    statement = {"Statement": f'UPDATE "{store.name}{table}" {text}'}
    statement["Parameters"] = [*typed(dict(enumerate(parameters))).values()]
    return statement | ({"ReturnValuesOnConditionCheckFailure": report} if report else {})


def batch(store, *statements):
    """Answer a batch; if it is refused as a whole, the message."""
    if store("BatchExecuteStatement", Statements=[*statements]) == (INVALID, None):
        return store.message
    return store.answer["Responses"]


def run(store, text, *parameters, table="", report=None):
    """Answer one statement, but for the table's name."""
    (answer,) = batch(store, update(store, text, *parameters, table=table, report=report))
    named, code = answer.pop("TableName", None), answer.get("Error", REFUSED)["Code"]
    assert named == store.name + table or (named is None and code != REFUSED["Code"])
    return answer


def invalid(store, text, *parameters, **options):
    """The message for a statement that is not run."""
    error = run(store, text, *parameters, **options)["Error"]
    assert error.keys() == {"Code", "Message"}
    assert error["Code"] == "ValidationError", text
    return error["Message"]


def test_renewal_reports_what_it_set_and_a_refused_one_the_row(store):
    renewal = (
        'SET "expires_at"=? SET "lease"=? SET "ttl"=? WHERE "k"=? AND "token"=? AND "version"=? '
        'AND "expires_at"<? RETURNING MODIFIED NEW *'
    )
    row = put(store, token=7, version="v", expires_at=1700000000.125, lease=30, owner="me")
    # the lease as it was is reported, too
    new = {"expires_at": 1700000030.125, "lease": 30, "ttl": 1700003600}
    for wrong in ((8, "v", 9e9), (7, "w", 9e9), (7, "v", 1)):
        answer = run(store, renewal, *new.values(), "row", *wrong, report="ALL_OLD")
        assert answer == {"Error": {**REFUSED, "Item": row}}
        assert stands(store, row) == row
    answer = run(store, renewal, *new.values(), "row", 7, "v", 9e9, report="ALL_OLD")
    assert answer == {"Item": typed(new)}
    assert stands(store, row) == {**row, **typed(new)}


def test_refusal_carries_no_row_that_nobody_asked_for_and_makes_none(store):
    put(store, n=1)
    for report in (None, "NONE"):
        assert run(store, f'{BY_KEY} AND "n"=?', 5, "row", 2, report=report) == {"Error": REFUSED}
    for more, *parameters in ("",), (' AND "n"=?', 1), (' AND "n"<>?', 1):
        answer = run(store, BY_KEY + more, 5, "missing", *parameters, report="ALL_OLD")
        assert answer == {"Error": REFUSED}
    assert stands(store, {"k": s("missing")}) is None


def test_comparisons(store):
    holds = {"=": [10], "<>": [9, 11, None], "<": [9], "<=": [9, 10], ">": [11], ">=": [10, 11]}
    for sign, expected in holds.items():
        rows = {at: put(store, str(at), **({"n": at} if at else {})) for at in (9, 10, 11, None)}
        text = f'SET "s"=? WHERE "k"=? AND "n"{sign}?'
        answers = batch(store, *(update(store, text, "y", str(at), 10) for at in rows))
        found = zip(rows, answers, strict=True)
        assert [at for at, answer in found if "Error" not in answer] == expected
        assert [at for at, row in rows.items() if "s" in stands(store, row)] == expected


def test_what_is_returned(store):
    for clause, expected in {
        "": {},
        "RETURNING ALL OLD *": {"k": "row", "n": 1, "o": "o", "same": 2},
        "RETURNING ALL NEW *": {"k": "row", "n": 5, "o": "o", "same": 2, "new": "x"},
        "RETURNING MODIFIED OLD *": {"n": 1, "same": 2},
        "returning modified new*": {"n": 5, "same": 2, "new": "x"},
    }.items():
        put(store, n=1, o="o", same=2)
        text = f'SET "n"=? SET "same"=? SET "new"=? WHERE "k"=? {clause}'
        answer = run(store, text, 5, 2, "x", "row")
        assert answer == ({"Item": typed(expected)} if expected else {})
    put(store)  # with nothing old
    assert run(store, f"{BY_KEY} RETURNING MODIFIED OLD *", 1, "row") == {}


def test_range_key(store):
    row, second = put(store, r="1", n=1), put(store, r="2", n=1)
    text = 'SET "n"=? WHERE "r"=? AND "n"<? AND "k"=? RETURNING ALL NEW *'
    assert run(store, text, 5, "1", 2, "row", table="_r") == {"Item": {**row, "n": n(5)}}
    assert stands(store, second) == second
    assert run(store, f'{BY_KEY} AND "r"=?', 5, "row", "3", table="_r") == {"Error": REFUSED}


def test_more_conditions_on_the_key(store):
    row, text = put(store, n=1), f'{BY_KEY} AND "k"{{}}?'
    message = invalid(store, text.format("="), 5, "row", "another")
    assert message.startswith("Multiple conditions on same key k.")
    assert run(store, text.format("="), 2, "row", "row") == {}
    refused = {"Error": {**REFUSED, "Item": {**row, "n": n(2)}}}
    assert run(store, text.format(">"), 4, "row", "row", report="ALL_OLD") == refused
    assert run(store, text.format(">="), 3, "row", "row") == {}
    assert stands(store, row)["n"] == n(3)


@of_engines
def test_names_and_ways_to_write_a_statement(store):
    quoted = (('"q""r"', 'q"r'), ('"""q"', '"q'), ('"a.b c,=?"', "a.b c,=?"), ('"WHERE"', "WHERE"))
    for written, name in (*quoted, ("n1_$", "n1_$"), ("_N", "_N")):
        put(store, **{name: 1})
        text = f"SET {written}=? WHERE {written}=? AND k=? RETURNING MODIFIED NEW *"
        assert run(store, text, 2, 1, "row") == {"Item": {name: n(2)}}
    new = dict.fromkeys("nsu", n(7))
    for text in (
        'UPDATE {0} SET "n"=?, "s"=? SET u=? WHERE k=? RETURNING ALL NEW *',
        '\n update"{0}"set n=?,s=?set"u" = ?where k\t=\n?returning all new*\n',
    ):
        row, statement = put(store, o=0), text.format(store.name)
        parameters = [*new.values(), row["k"]]
        (answer,) = batch(store, {"Statement": statement, "Parameters": parameters})
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


@of_engines
def test_malformed(store):
    row = put(store, n=1)
    for text in MALFORMED:
        assert invalid(store, text, 2, "row", "row", "row")
    texts = ["no PartiQL at all", "UPDATE{0} SET n=? WHERE k=?", "UPDATE"]
    texts += ["UPDATE {0}SET n=? WHERE k=?", "UPDATE '{0}' SET n=? WHERE k=?"]
    texts = [text.format(store.name) for text in texts]
    answers = batch(store, *({"Statement": text, "Parameters": [n(2), s("row")]} for text in texts))
    codes = [answer["Error"]["Code"] for answer in answers]
    assert codes[:2] == ["ValidationError"] * 2
    assert {*codes[2:]} <= {"ValidationError", "ResourceNotFound"}
    assert stands(store, row) == row


@only_embedded
def test_what_is_not_understood_is_refused(store):
    row = put(store, n=1)
    for text in NOT_UNDERSTOOD:
        assert invalid(store, text, 2, "row")
    assert stands(store, row) == row


RUN = [
    ("SET n=? WHERE k=? AND attribute_exists(n)", 2, "row"),
    ("SET n=? WHERE k=? AND (st=? OR n=?)", 2, "row", "", 1),
    ("SET n=? WHERE k=? AND NOT begins_with(st, ?)", 2, "row", "x"),
    ("SET n=n+? REMOVE st WHERE k=?", 2, "row"),
    ('SET n=?, "new"=? WHERE k=? AND gone<>?', 2, 2, "row", 1),
]
NOT_RUN = [
    ("SET n=? WHERE k=? OR n=?", 2, "row", 1), ("SET n=? WHERE k=?", 2, 1), (BY_KEY, 2, ""), (BY_KEY, 2),
    ("SET n=gone WHERE k=?", "row"), ("SET n=? WHERE k=? AND attribute_exists n", 2, "row"),
    ("SET n=? WHERE k=? AND n<?", 2, "row", {"BOOL": True}), ("nonsense",),
    ("SET st=? WHERE k=?", "x" * 400 * 1024, "row"),
]  # fmt: skip


@pytest.mark.parametrize("store", ["memory", "local"], indirect=True)
def test_what_the_embedded_engine_does_not_understand(store):
    for text, *parameters in RUN:
        row = put(store, n=1, st="text")
        assert run(store, text, *parameters) == {}, text
        assert stands(store, row) != row
    row = put(store, n=1, st="text")
    for text, *parameters in NOT_RUN:
        assert invalid(store, text, *parameters), text
    # a value that is none refuses all
    others = (update(store, BY_KEY, each, key) for each, key in ((7, "row"), ({"N": "x"}, "other")))
    assert isinstance(batch(store, *others), str)
    assert stands(store, row) == row


def test_the_whole_key_is_given_and_not_changed_and_no_attribute_set_twice(store):
    row = put(store, n=1)
    message = "Where clause does not contain a mandatory equality on all key attributes"
    for where, *parameters, table in (
        ('"n"=?', "a", ""),
        ('"k"<=?', "a", ""),
        ('"k"=?', "a", "_r"),
        ('"r"=?', "a", "_r"),
        ('"k"=? AND "r">=?', "a", "b", "_r"),
    ):
        assert invalid(store, f'SET "n"=? WHERE {where}', 1, *parameters, table=table) == message
    key = "Cannot update attribute k. This attribute is part of the key"
    assert key in invalid(store, 'SET "k"=? WHERE "k"=?', "b", "row")
    assert invalid(store, 'SET "n"=? SET "n"=? WHERE "k"=?', "b", "b", "row")
    assert stands(store, row) == row


@of_engines
def test_what_is_missing_or_left_over(store):
    row = put(store, n=1)
    overlap = "Two document paths overlap with each other"
    assert overlap in invalid(store, 'SET "n"=? SET "n"=? WHERE "k"=?', "b", "b", "row")
    message = "Number of parameters in request and statement don't match."
    assert invalid(store, BY_KEY, 2) == invalid(store, BY_KEY) == message
    (answer,) = batch(store, {"Statement": f'UPDATE "{store.name}" {BY_KEY}'})
    assert answer["Error"] == {"Code": "ValidationError", "Message": message}
    assert invalid(store, BY_KEY, 2, table="missing") == message
    missing = "Cannot do operations on a non-existent table"
    answer = {"Error": {"Code": "ResourceNotFound", "Message": missing}}
    assert run(store, BY_KEY, 2, "row", table="_missing") == answer
    assert stands(store, row) == row
    assert run(store, BY_KEY, 2, "row", 3) == {}
    assert stands(store, row)["n"] == n(2)


def test_each_statement_has_its_own_answer(store):
    held, lost, last = put(store, "held", n=1), put(store, "lost", n=2), put(store, r="r")
    guarded = f'{BY_KEY} AND "n"=?'
    answers = batch(
        store,
        update(store, guarded, 5, "held", 1, report="ALL_OLD"),
        update(store, guarded, 5, "lost", 1, report="ALL_OLD"),
        update(store, BY_KEY, 5, "held", table="_missing"),
        update(store, "SET", 5),
        update(store, f'{BY_KEY} AND "r"=?', 5, "row", "r", table="_r"),
        update(store, BY_KEY, 6, "in two tables", table="_2"),
        update(store, BY_KEY, 7, "in two tables"),
    )
    plain, second, ranged = ({"TableName": store.name + table} for table in ("", "_2", "_r"))
    assert [answer.pop("Error")["Code"] for answer in answers[2:4]] == [
        *("ResourceNotFound", "ValidationError")
    ]
    assert answers == [
        *(plain, plain | {"Error": {**REFUSED, "Item": lost}}, {}, {}, ranged),
        *(each | {"Error": REFUSED} for each in (second, plain)),
    ]
    assert [stands(store, row)["n"] for row in (held, lost, last)] == [n(5), n(2), n(5)]


@of_engines
def test_25_statements_are_run_and_26_refused(store):
    rows = [put(store, str(number)) for number in range(26)]
    text = f"{BY_KEY} RETURNING MODIFIED NEW *"
    statements = [update(store, text, number, str(number)) for number in range(26)]
    assert batch(store, *statements) == "BatchWriteItem cannot write more than 25 items"
    assert stands(store, rows[0]) == rows[0]
    assert [answer["Item"]["n"] for answer in batch(store, *statements[:25])] == [
        *map(n, range(25))
    ]


@of_engines
def test_batches_that_are_refused_as_a_whole(store):
    row, missing = put(store, n=1), {"Statement": f"select * FROM {store.name} WHERE k = ?"}
    one, select = update(store, BY_KEY, 2, "row"), missing | {"Parameters": [s("row")]}
    for statements in ([], [one, {"Statement": ""}], [one, {}]):
        assert batch(store, *statements) == "The statement was empty."
    message = "Read and write requests together in the same batch is not supported."
    assert batch(store, one, select) == message
    assert batch(store, select) == [{"TableName": store.name, "Item": row}]


def test_row_is_updated_once_however_its_statements_are_written(store):
    put(store, n=1)
    put(store, r="r")
    first = update(store, 'SET "n"=? WHERE "k"=? AND "n"=?', 2, "row", 1)
    second = update(store, 'SET "n"=? WHERE "k"=? AND "n"<>?', 2, "row", 1)
    third = update(store, 'SET "n"=? WHERE "n"=? AND "k"=?', 2, 7, "row")
    kr = update(store, 'SET "n"=? WHERE "k"=? AND "r"=?', 1, "row", "r", table="_r")
    rk = update(store, 'SET "n"=? WHERE "r"=? AND "k"=?', 1, "r", "row", table="_r")
    for twice in ((first, third), (second, third), (kr, rk)):
        assert batch(store, *twice) == "Provided list of item keys contains duplicates"


@pytest.mark.parametrize("store", ["memory", "embedded"], indirect=True)
def test_batch_that_is_refused_writes_nothing(store):
    """DynamoDB Local says of duplicates only when it has written them."""
    row, one = put(store, n=1), update(store, BY_KEY, 2, "row")
    for statements in ([one, one], []):
        assert isinstance(batch(store, *statements), str)
    assert stands(store, row) == row


@only_embedded
def test_delete_next_to_an_update_is_refused(store):
    put(store)
    kept = put(store, "kept")
    delete = {"Statement": f'DELETE FROM "{store.name}" WHERE "k"=?', "Parameters": [s("kept")]}
    updated, deleted = batch(store, update(store, BY_KEY, 2, "row"), delete)
    assert updated == {"TableName": store.name}
    assert deleted["Error"]["Code"] == "ValidationError"
    assert stands(store, kept) == kept
