"""Row locks on models of every kind that PynamoDB knows: nothing of a row is lost or changed.

And keys of rows: what cannot be one is refused at once; each row has one name, and no two the same.
"""

import datetime as dt
import itertools
import json
import math
from functools import partial
from unittest.mock import patch

import pytest
from pynamodb import attributes as types
from pynamodb.attributes import (
    MapAttribute,
    NumberAttribute,
    UnicodeAttribute,
    UTCDateTimeAttribute,
    VersionAttribute,
)
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError, TransactWriteError, UpdateError
from pynamodb.indexes import AllProjection, GlobalSecondaryIndex
from pynamodb.models import Model
from row_models import (
    LOCKABLE,
    PLAIN,
    binary,
    content,
    created,
    delete,
    hashed,
    key_of,
    keyed,
    legacy_binary,
    lock_names,
    made,
    meta,
    own,
    save,
    save_or_update,
    stored,
    update,
)

from dev.faultproxy import drop_answer
from pynamodb_mutex import InvalidKeyError, LockItem, Mutex, MutexError, RowLockMixin


def exercise(attributes, values, changes=(), more=()):
    """Go through the life of a row whose model gained the mixin after the row was written; return the row.

    `attributes` makes those of the model; `more` came with the mixin; `changes` are written under the lock.
    """
    old = created(made(attributes(), PLAIN))
    new = made({**attributes(), **dict(more)}, LOCKABLE, old.Meta.table_name)
    written = old(**values)
    written.save()
    before = own(written)
    key = key_of(written)
    with new.locked(*key) as row:
        assert type(row) is new
        assert content(row) == content(written)
        assert own(row) == before
        assert row.is_locked
        for name, value in dict(changes).items():
            setattr(row, name, value)
        row.save()
        assert own(row) == content(row)
        row.update(actions=[new.note.set("updated")])
        assert row.note == "updated"
        assert own(row) == content(row)
        row.note = "unlocking"
        row.save(unlock=True)
        assert not new.locked(*key).locked()
    assert content(old.get(*key, consistent_read=True)) == content(row) == own(row)
    row.refresh()
    row.note = None
    row.save()
    row.update(actions=[new.note.set("free")])
    assert own(row) == content(row)
    with new.locked(*key) as row:
        assert row.note == "free"
        row.delete()
    assert stored(row) == {}
    row = new(**values)
    row.save()
    assert own(row) == content(row)
    return row


# -- keys and names -------------------------------------------------------------------------------


def test_key_may_be_of_any_kind(engine):
    time = dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone.utc)
    for kinds, key in (
        ((UnicodeAttribute,), ("a/b?c#d %41 é🔒",)),
        ((UnicodeAttribute, UnicodeAttribute), ("a", "b/c")),
        ((UnicodeAttribute, NumberAttribute), ("a", -1.5)),
        ((NumberAttribute,), (0,)),
        ((NumberAttribute, NumberAttribute), (10**37, 0.1)),
        ((binary,), (b"\x00\xff/%",)),
        ((legacy_binary,), (b"\x00\xff/%",)),
        ((binary, legacy_binary), (b"\x01", b"\x02")),
        ((UTCDateTimeAttribute,), (time,)),
    ):
        exercise(keyed(*kinds), {**dict(zip(("pk", "sk"), key, strict=False)), "note": "first"})


def renamed():
    return {
        "pk": UnicodeAttribute(hash_key=True, attr_name="p"),
        "sk": NumberAttribute(range_key=True, attr_name="s"),
        "note": UnicodeAttribute(null=True, attr_name="n"),
        # each is stored under the python name of another
        "left": UnicodeAttribute(attr_name="right"),
        "right": UnicodeAttribute(attr_name="pk"),
    }


def test_attributes_may_have_other_names(engine):
    row = exercise(renamed, {"pk": "a", "sk": 1, "left": "l", "right": "r"}, {"left": "L"})
    assert {"p", "s", "right", "pk"} <= set(stored(row))
    new = {
        name: type(attribute)(null=True, attr_name=name.replace("lock_", "l_"))
        for name, attribute in RowLockMixin.get_attributes().items()
    }
    row = exercise(hashed(), {"pk": "a", "note": "n"}, more=new)
    with type(row).locked("a", owner="me") as row:
        raw = stored(row)
        assert set(raw) == {"pk", "note"} | lock_names(type(row))
        assert raw["l_token"] == {"S": row.row_lock.token} == {"S": row.lock_token}
    assert not {"lock_token", "lock_owner"} & set(stored(row))


PROTOCOLS = [
    *["key", "version", "token", "owner", "lease", "expires_at", "writes", "abandoned_by", "ttl"],
    *["data", "retention", "end", "seed", "now_low", "mine", "seen", "seen_until", "known", "next"],
    *["new_version", "value", "row", "store", "hold", "locks", "lock"],
]


def test_attributes_may_have_the_names_of_the_protocols_own(engine):
    names = hashed(**dict.fromkeys(PROTOCOLS, UnicodeAttribute))
    theirs = {name: f"their {name}" for name in PROTOCOLS}
    row = exercise(names, {"pk": "a", **theirs})
    with type(row).locked("a", owner="me", lease=20) as row:
        assert {name: getattr(row, name) for name in PROTOCOLS} == theirs
        assert {name: stored(row)[name]["S"] for name in PROTOCOLS} == theirs
        assert row.lock_owner == "me"


# -- attributes ---------------------------------------------------------------------------------


class Inner(MapAttribute):
    zone = UnicodeAttribute(attr_name="z")


class Outer(MapAttribute):
    inner = Inner()
    owner = UnicodeAttribute()


MANY = partial(types.BinarySetAttribute, legacy_encoding=False)
ONE, OTHER = Outer(owner="o", inner=Inner(zone="z")), Outer(owner="p", inner=Inner(zone="y"))
OF_EVERY_TYPE = [  # its name, its type, its value, and perhaps what is written under the lock
    ("where", Outer, ONE, OTHER),
    ("any", MapAttribute, {"n": 1, "s": "x", "deep": {"l": [1, "2", None, True]}}),
    ("places", partial(types.ListAttribute, of=Inner), [Inner(zone="1"), Inner(zone="2")]),
    ("mixed", types.ListAttribute, [1, "two", [3], {"four": 4}, None, False], []),
    ("names", types.UnicodeSetAttribute, {"x", "y", "z"}, {"q"}),
    ("numbers", types.NumberSetAttribute, {1, 2.5, -3}, {10**20, 0.25}),
    ("blobs", MANY, {b"\x00", b"\xff"}, {b"z"}),
    ("blob", binary, b"\x00\x01", b"\x02"),
    ("json", types.JSONAttribute, {"a": [1, {"b": None}], "c": "é"}, []),
    ("flag", types.BooleanAttribute, False, True),
    ("when", UTCDateTimeAttribute, dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc)),
    ("number", NumberAttribute, 1e-5),
    ("empty", UnicodeAttribute, ""),
    ("absent", partial(UnicodeAttribute, null=True), None, ""),
    ("made", partial(NumberAttribute, default=7), 7, 8),
]


@pytest.mark.real("simulated", "local")
def test_attributes_may_be_of_every_type(engine):
    rich = hashed(**{name: make for name, make, *_ in OF_EVERY_TYPE})
    values = {name: value for name, _, value, *_ in OF_EVERY_TYPE}
    changes = {name: new[0] for name, _, _, *new in OF_EVERY_TYPE if new}
    exercise(rich, {"pk": "a", **values}, changes)


def test_null_that_is_forbidden_is_so_under_the_lock(engine):
    model = created(made(hashed(must=UnicodeAttribute)(), LOCKABLE))
    model("a", must="x").save()
    with model.locked("a") as row:
        row.must = None
        with pytest.raises(ValueError, match="must"):
            row.save()
        row.must = "y"
        row.save()
    assert model.get("a").must == "y"


def test_ttl_of_the_models_own_is_not_touched(engine):
    until = dt.datetime(2031, 2, 3, tzinfo=dt.timezone.utc)
    expiring = hashed(until=lambda: types.TTLAttribute(null=True))
    row = exercise(expiring, {"pk": "a", "until": until})
    for kept in (until, None):
        with type(row).locked("a") as row:
            row.until = kept
            row.save()
            row.row_lock.renew()
            assert type(row).get("a").until == kept
    assert "until" not in stored(row)


def test_version_of_the_models_own_counts_its_writes_alone(engine):
    row = exercise(hashed(edition=VersionAttribute), {"pk": "a"})
    model, edition = type(row), row.edition
    with model.locked("a") as row:
        row.row_lock.renew()
        assert model.get("a").edition == edition
        row.save()
        row.update(actions=[model.note.set("m")])
        assert row.edition == model.get("a").edition == edition + 2
        row.save(unlock=True)
    assert row.edition == model.get("a").edition == edition + 3


@pytest.mark.parametrize("lock_model", [None, LockItem])
def test_version_that_is_out_of_date_is_refused_under_the_lock_too(table, lock_model):
    attributes = {**hashed(edition=VersionAttribute)(), "lock_model": lock_model}
    model = created(made(attributes, LOCKABLE))
    model("a").save()
    with model.locked("a") as row:
        row.edition = 7
        with pytest.raises(PutError if lock_model is None else TransactWriteError):
            row.save()
        with pytest.raises(UpdateError if lock_model is None else TransactWriteError):
            row.update(actions=[model.note.set("m")])
        assert row.row_lock.held
        row.save(add_version_condition=False)
    assert model.get("a").edition == 8


# -- indexes ------------------------------------------------------------------------------------


class ByTeam(GlobalSecondaryIndex):
    class Meta:
        index_name = "by-team"
        projection = AllProjection()

    team = UnicodeAttribute(hash_key=True)
    rank = NumberAttribute(range_key=True)


@pytest.mark.real("local")
def test_index_follows_what_is_written_under_the_lock(engine):
    team, rank = UnicodeAttribute(null=True), NumberAttribute()
    own = {**hashed()(), "team": team, "rank": rank, "by_team": ByTeam()}
    model = created(made(own, LOCKABLE))

    def ranked():
        return [(row.pk, row.rank, row.is_locked) for row in model.by_team.query("red")]

    for place, name in enumerate(("x", "y"), 1):
        model(name, team="red", rank=place).save()
    with model.locked("x") as row:
        assert ranked() == [("x", 1, True), ("y", 2, False)]
        row.rank = 3
        row.save()
        assert ranked() == [("y", 2, False), ("x", 3, True)]
        row.update(actions=[model.team.remove()], unlock=True)
    assert ranked() == [("y", 2, False)]


# -- what an instance shows of itself -------------------------------------------------------------


class Nowhere(RowLockMixin, Model):
    """A model of no table, in no region."""

    class Meta:
        table_name = "nowhere"
        region = ""

    pk = UnicodeAttribute(hash_key=True)
    note = UnicodeAttribute(null=True)


def test_serialized_row_has_no_lock_and_needs_no_region():
    row = Nowhere("a", note="n")
    for _ in range(2):
        assert row.serialize() == {"pk": {"S": "a"}, "note": {"S": "n"}}
    with pytest.raises(ValueError, match="pk"):
        Nowhere().serialize(null_check=True)


@pytest.mark.parametrize("lock_model", [None, LockItem])
def test_instance_shows_its_lock_only_if_asked_for(table, lock_model):
    attributes = {**hashed()(), "photo": binary(null=True), "lock_model": lock_model}
    model = created(made(attributes, LOCKABLE))
    model("a", note="n", photo=b"\x00").save()
    with model.locked("a", owner="me") as row:
        typed = {"pk": {"S": "a"}, "note": {"S": "n"}}
        of_the_lock = lock_names(model) if lock_model is None else set()
        for show, options, expected in (
            (row.serialize, {}, typed | {"photo": {"B": b"\x00"}}),
            (row.to_dynamodb_dict, {}, typed | {"photo": {"B": "AA=="}}),
            (row.to_simple_dict, {"force": True}, {"pk": "a", "note": "n", "photo": "AA=="}),
        ):
            assert show(**options) == expected
            with_lock = show(**options, with_lock=True)
            assert set(with_lock) == set(expected) | of_the_lock
            if lock_model is None:
                assert row.row_lock.token in json.dumps(with_lock["lock_token"])


# -- what a write returns -------------------------------------------------------------------------


@pytest.mark.real
def test_write_returns_what_pynamodb_returns(any_scene):
    here, old = any_scene.here, any_scene.old
    for write in (save, update, delete):
        expected = write(old(f"{any_scene.key}-plain"))
        without = write(here(f"{any_scene.key}-without"))
        with any_scene.lock() as row:
            under_lock = write(row)
        for returned in (without, under_lock):
            assert ("Attributes" in returned) is (write is update)
            if any_scene.in_table:
                # what the transaction used; the embedded engine says of none
                of_tables = {used["TableName"] for used in returned["ConsumedCapacity"]}
                assert old.Meta.table_name in of_tables or any_scene.engine.name != "local"
            else:
                assert set(returned) == set(expected) >= {"ConsumedCapacity"}
                assert returned["ConsumedCapacity"]["TableName"] == old.Meta.table_name
        if write is update:
            assert without["Attributes"]["balance"] == expected["Attributes"]["balance"]


@save_or_update
def test_write_whose_answer_was_lost_returns_what_is_known(row_scene, write):
    with row_scene.lock() as row:
        row_scene.proxy.next(drop_answer(), op=row_scene.op(write.__name__))
        returned = write(row)
        assert "ConsumedCapacity" not in returned
        if write is update:
            assert returned["Attributes"] == row_scene.raw
            assert row.balance == 1


def test_answer_that_a_test_of_a_user_made_up_is_one():
    row = Nowhere("a")
    for answer in ({}, None):
        with patch.object(Connection, "_make_api_call", return_value=answer) as call:
            assert not row.save()
            assert not row.delete()
            operations = [each.args[0] for each in call.call_args_list]
            assert operations == ["GetItem", "PutItem", "DeleteItem"]
    answer = {"Attributes": {"pk": {"S": "a"}, "note": {"S": "made up"}}}
    with patch.object(Connection, "_make_api_call", return_value=answer):
        assert row.update([Nowhere.note.set("n")]) == answer
    # an update takes over the row
    assert row.note == "made up"


# -- what may be a key, and what it is called --------------------------------------------------


def model_of(*kinds):
    return made(keyed(*kinds)(), LOCKABLE)


TEXT = model_of(UnicodeAttribute)
NUMBER = model_of(NumberAttribute)
BINARY = model_of(binary)
LEGACY = model_of(legacy_binary)
TIME = model_of(UTCDateTimeAttribute)
PAIR = model_of(UnicodeAttribute, UnicodeAttribute)
MIXED = model_of(UnicodeAttribute, NumberAttribute)


def name_of(model, *key):
    return Mutex.for_row(model, *key).key


@pytest.mark.parametrize(
    ("model", "key", "message"),
    [
        (TEXT, (None,), "None"),
        (TEXT, ("",), "1 to 2048 bytes, not the 0"),
        (TEXT, ("k" * 2049,), "2049"),
        (TEXT, ("é" * 1025,), "2050"),
        (TEXT, ("a\ud800b",), "surrogate"),
        (TEXT, (7,), "cannot be 7"),
        (TEXT, (b"a",), "cannot be b'a'"),
        (TEXT, (["a"],), "cannot be"),
        (TEXT, ("a", "b"), "has no range key, but one was given: 'b'"),
        (NUMBER, (None,), "None"),
        (NUMBER, ("7",), "cannot be '7'"),
        (NUMBER, (b"7",), "cannot be b'7'"),
        (NUMBER, (True,), "cannot be True"),
        (NUMBER, ([7],), "cannot be"),
        (NUMBER, (math.nan,), "cannot be nan"),
        (NUMBER, (math.inf,), "cannot be inf"),
        (NUMBER, (-math.inf,), "cannot be -inf"),
        (BINARY, (b"",), "not the 0"),
        (BINARY, (b"k" * 2049,), "2049"),
        (BINARY, ("a",), "cannot be 'a'"),
        (BINARY, (None,), "None"),
        (LEGACY, (b"",), "not the 0"),
        (LEGACY, (b"k" * 1537,), "2052"),
        (LEGACY, ("a",), "cannot be 'a'"),
        (TIME, ("2026",), "cannot be '2026'"),
        (TIME, (7,), "cannot be 7"),
        (PAIR, ("a",), r"Row\.sk is None, but"),
        (PAIR, ("a", ""), "1 to 1024 bytes, not the 0"),
        (PAIR, ("a", "k" * 1025), "1025"),
        (PAIR, ("a", 7), r"Row\.sk cannot be 7"),
        (PAIR, (None, "a"), r"Row\.pk is None, but"),
        (MIXED, ("a", math.nan), r"Row\.sk cannot be nan"),
    ],
    ids=lambda value: None if isinstance(value, type) else repr(value)[:30],
)
def test_key_that_a_row_cannot_have_is_refused(silence, model, key, message):
    for call in (model.locked, lambda *key: name_of(model, *key), lambda *k: model.locked_all([k])):
        with pytest.raises(InvalidKeyError, match=message) as caught:
            call(*key)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, MutexError)


def test_option_of_a_row_is_checked(silence):
    for lock_model in (TEXT, "LockItem", None):
        with pytest.raises(TypeError, match="model must be LockItem or a subclass"):
            Mutex.for_row(TEXT, "a", lock_model=lock_model)
    for call in (TEXT.locked, lambda *key, **options: Mutex.for_row(TEXT, *key, **options)):
        with pytest.raises(ValueError, match="lease"):
            call("a", lease=0.1)


SLASHES = ["a", "a/b", "a%2Fb", "a%", "%", "/", "//", "a/", "/a", "a b", "a\x00", "é", "a%252Fb"]
LONGEST = [("k" * 2047 + last, "r" * 1024) for last in "ab"] + [("k" * 2048, "r" * 1023)]


def test_no_two_rows_have_one_name(silence):
    blobs = [
        bytes(blob) for n in (1, 2) for blob in itertools.product(b"\x00/+%\xfe\xff", repeat=n)
    ]
    numbers = [0, 1, -1, 10, 0.1, 10**37, 10**37 + 1, 10**37 + 2, 1e-37, -(10**37) - 1, 1.5]
    rows = [(model, key) for model, keys in ((TEXT, SLASHES), (BINARY, blobs)) for key in keys]
    rows += [(NUMBER, number) for number in numbers]
    rows += [(PAIR, *pair) for pair in [*itertools.product(SLASHES, SLASHES), *LONGEST]]
    assert len({name_of(*row) for row in rows}) == len(rows)


def test_one_row_has_one_name_however_its_key_is_written(silence):
    for same in ([1, 1.0], [0, 0.0, -0.0], [100, 1e2], [10**30, 1e30], [0.1, 1e-1], [-5, -5.0]):
        assert len({name_of(NUMBER, number) for number in same}) == 1
        assert len({name_of(MIXED, "a", number) for number in same}) == 1
    utc = dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone.utc)
    assert name_of(TIME, utc) == name_of(TIME, utc.astimezone(dt.timezone(dt.timedelta(hours=5))))
    # it begins with the table, and can be read
    kinds = (UnicodeAttribute,), (UnicodeAttribute, NumberAttribute)
    text, mixed = (made(keyed(*each)(), PLAIN, "accounts") for each in kinds)
    assert name_of(text, "acct-1") == "accounts/acct-1"
    assert name_of(text, "tenant:7 @x") == "accounts/tenant:7 @x"
    assert name_of(mixed, "x", 2.50) == "accounts/x/2.5"


def test_messages_name_a_row_as_its_owner_writes_its_key(silence):
    for key in ("ORDER#9", "größe {a|b}?", "50%", "a/b"):
        assert name_of(TEXT, key) == f"{TEXT.Meta.table_name}/{key}"
        assert name_of(PAIR, "ORDER#9", key) == f"{PAIR.Meta.table_name}/ORDER#9/{key}"
    with pytest.raises(TypeError, match=r"the lock of '\S+/a\\nb' stands in the row itself"):
        TEXT.locked("a\nb", fair=True)


def test_name_of_a_very_long_key_is_short(silence):
    for key in LONGEST:
        assert name_of(PAIR, *key).startswith(f"{PAIR.Meta.table_name}:")
        assert len(name_of(PAIR, *key).encode()) <= 2048
    name = name_of(TEXT, "é" * 1024)
    hashed = name.removeprefix(TEXT.Meta.table_name)
    assert len(hashed) < 100
    # nor can a short key be chosen so that it gets that name
    assert name not in {name_of(TEXT, hashed), name_of(TEXT, hashed.lstrip(":"))}


def test_row_of_a_mutex_need_not_exist(table):
    nowhere = made({"pk": UnicodeAttribute(hash_key=True)}, PLAIN, "nowhere")
    with Mutex.for_row(nowhere, "a", owner="me", data=[1]) as mutex:
        assert type(mutex) is Mutex
        assert mutex.data == [1]
        assert table.get("nowhere/a").owner == "me"
        assert not Mutex.for_row(nowhere, "a").acquire(blocking=False)
        assert not Mutex.for_key("nowhere/a").acquire(blocking=False)


def test_mutex_for_a_row_is_its_lock_if_its_locks_are_in_that_table(table):
    class Other(LockItem):
        Meta = meta()

    Other.create_table()
    for lock_model in (LockItem, Other):
        row = created(model_of(UnicodeAttribute, NumberAttribute))
        row.lock_model = lock_model
        row("a/%", 1).save()
        mutex = Mutex.for_row(row, "a/%", 1.0, lock_model=lock_model)
        with row.locked("a/%", 1) as locked:
            assert locked.row_lock.key == mutex.key
            assert mutex.locked()
            assert not mutex.acquire(blocking=False)
        with mutex:
            assert not row.locked("a/%", 1).acquire(blocking=False)
            assert row.locked("a/%", 2).acquire(blocking=False)


@pytest.mark.real("simulated", "local")
def test_rows_with_the_longest_keys_are_locked(table):
    for kinds, *keys in (
        ((UnicodeAttribute, UnicodeAttribute), *LONGEST[1:]),
        ((binary,), (b"\xff" * 2048,), (b"\xff" * 2047,)),
        ((NumberAttribute,), (10**37 + 1,), (10**37,)),
    ):
        model = created(model_of(*kinds))
        key, other = keys
        for each in keys:
            model(*each).save()
        with model.locked(*key) as row, model.locked(*other, timeout=0):
            row.save()
            with Mutex.for_row(model, *key), Mutex.for_row(model, *other, timeout=0):
                row.save(unlock=True)
