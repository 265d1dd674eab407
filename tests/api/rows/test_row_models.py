"""Row locks on models of every kind that PynamoDB knows: nothing of a row is lost or changed."""

import datetime as dt
import json
from unittest.mock import patch

import pytest
from pynamodb.attributes import (
    BinarySetAttribute,
    BooleanAttribute,
    JSONAttribute,
    ListAttribute,
    MapAttribute,
    NumberAttribute,
    NumberSetAttribute,
    TTLAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
    UTCDateTimeAttribute,
    VersionAttribute,
)
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError, TransactWriteError, UpdateError
from pynamodb.indexes import (
    AllProjection,
    GlobalSecondaryIndex,
    KeysOnlyProjection,
    LocalSecondaryIndex,
)
from pynamodb.models import Model
from row_scene import delete, save, save_or_update, update
from row_tables import (
    LOCKABLE,
    PLAIN,
    binary,
    content,
    created,
    hashed,
    key_of,
    keyed,
    legacy_binary,
    lock_names,
    made,
    meta,
    own,
    stored,
)

from dev.faultproxy import drop_answer
from pynamodb_mutex import LockItem, RowLockMixin


def exercise(attributes, values, changes=(), more=()):
    """Go through the life of a row whose model gained the mixin after the row was written; return the row.

    `attributes` makes those of the model; `more` came with the mixin; `changes` are written under the lock.
    """
    changes = dict(changes)
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
        for name, value in changes.items():
            setattr(row, name, value)
        row.save()
        assert own(row) == content(row)
        row.update(actions=[new.note.set("updated")])
        assert row.note == "updated"
        assert own(row) == content(row)
        row.note = "unlocking"
        row.save(unlock=True)
        assert not new.locked(*key).locked()
    seen = old.get(*key, consistent_read=True)
    assert content(seen) == content(row) == own(row)
    for name, value in changes.items():
        expected = value.as_dict() if isinstance(value, MapAttribute) else value
        found = getattr(seen, name)
        assert (found.as_dict() if isinstance(found, MapAttribute) else found) == expected
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


# -- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attributes", "key"),
    [
        (keyed(UnicodeAttribute), ("a/b?c#d %41 é🔒",)),
        (keyed(UnicodeAttribute, UnicodeAttribute), ("a", "b/c")),
        (keyed(UnicodeAttribute, NumberAttribute), ("a", -1.5)),
        (keyed(NumberAttribute), (0,)),
        (keyed(NumberAttribute, NumberAttribute), (10**37, 0.1)),
        (keyed(binary), (b"\x00\xff/%",)),
        (keyed(legacy_binary), (b"\x00\xff/%",)),
        (keyed(binary, legacy_binary), (b"\x01", b"\x02")),
        (keyed(UTCDateTimeAttribute), (dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone.utc),)),
    ],
    ids=[
        *["text", "text and text", "text and number", "zero", "numbers", "binary"],
        *["legacy binary", "binary and legacy binary", "time"],
    ],
)
def test_any_key(engine, attributes, key):
    exercise(attributes, {**dict(zip(("pk", "sk"), key, strict=False)), "note": "first"})


def test_rows_of_one_hash_key_are_locked_apart(engine):
    model = created(made(keyed(UnicodeAttribute, NumberAttribute)(), LOCKABLE))
    for number in (1, 2):
        model("a", number).save()
    with model.locked("a", 1), model.locked("a", 2, timeout=0) as second:
        assert second.sk == 2
        assert model.locked("a", 1.0).acquire(blocking=False) is False


# -- names --------------------------------------------------------------------------------------


def renamed():
    return {
        "pk": UnicodeAttribute(hash_key=True, attr_name="p"),
        "sk": NumberAttribute(range_key=True, attr_name="s"),
        "note": UnicodeAttribute(null=True, attr_name="n"),
        # each is stored under the python name of another
        "left": UnicodeAttribute(attr_name="right"),
        "right": UnicodeAttribute(attr_name="pk"),
    }


def test_attributes_under_other_names(engine):
    row = exercise(renamed, {"pk": "a", "sk": 1, "left": "l", "right": "r"}, {"left": "L"})
    assert {"p", "s", "right", "pk"} <= set(stored(row))


def test_attributes_of_the_lock_under_other_names(engine):
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


def test_attributes_with_the_names_of_the_protocols_own(engine):
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
    none = UnicodeAttribute(null=True)


class Outer(MapAttribute):
    inner = Inner()
    owner = UnicodeAttribute()


@pytest.mark.real("simulated", "local")
def test_attributes_of_every_type(engine):
    rich = hashed(
        where=Outer,
        any=MapAttribute,
        places=lambda: ListAttribute(of=Inner),
        mixed=ListAttribute,
        names=UnicodeSetAttribute,
        numbers=NumberSetAttribute,
        blobs=lambda: BinarySetAttribute(legacy_encoding=False),
        blob=binary,
        json=JSONAttribute,
        flag=BooleanAttribute,
        when=UTCDateTimeAttribute,
        number=NumberAttribute,
        empty=UnicodeAttribute,
        absent=lambda: UnicodeAttribute(null=True),
        made=lambda: NumberAttribute(default=7),
    )
    values = {
        "pk": "a",
        "where": Outer(owner="o", inner=Inner(zone="z")),
        "any": {"n": 1, "s": "x", "deep": {"l": [1, "2", None, True]}},
        "places": [Inner(zone="1"), Inner(zone="2")],
        "mixed": [1, "two", [3], {"four": 4}, None, False],
        "names": {"x", "y", "z"},
        "numbers": {1, 2.5, -3},
        "blobs": {b"\x00", b"\xff"},
        "blob": b"\x00\x01",
        "json": {"a": [1, {"b": None}], "c": "é"},
        "flag": False,
        "when": dt.datetime(2026, 1, 2, tzinfo=dt.timezone.utc),
        "number": 1e-5,
        "empty": "",
    }
    changes = {
        "where": Outer(owner="p", inner=Inner(zone="y", none="some")),
        "names": {"q"},
        "numbers": {10**20, 0.25},
        "blobs": {b"z"},
        "json": [],
        "flag": True,
        "mixed": [],
        "absent": "",
        "blob": b"\x02",
        "made": 8,
    }
    exercise(rich, values, changes)


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
    expiring = hashed(until=lambda: TTLAttribute(null=True))
    row = exercise(expiring, {"pk": "a", "until": until})
    with type(row).locked("a") as row:
        row.row_lock.renew()
        row.save()
        assert row.until == type(row).get("a").until == until
    with type(row).locked("a") as row:
        row.until = None
        row.save()
        row.row_lock.renew()
        assert "until" not in stored(row)
    assert "until" not in stored(row)


def test_version_of_the_models_own_counts_its_writes_alone(engine):
    versioned = hashed(edition=VersionAttribute)
    row = exercise(versioned, {"pk": "a"})
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
    model = created(
        made({**hashed(edition=VersionAttribute)(), "lock_model": lock_model}, LOCKABLE)
    )
    model("a").save()
    with model.locked("a") as row:
        row.edition = 7
        for write, error in (
            (row.save, PutError),
            (lambda: row.update(actions=[model.note.set("m")]), UpdateError),
        ):
            with pytest.raises(error if lock_model is None else TransactWriteError):
                write()
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


class ByNote(GlobalSecondaryIndex):
    class Meta:
        index_name = "by-note"
        projection = KeysOnlyProjection()

    note = UnicodeAttribute(hash_key=True)


class ByRank(LocalSecondaryIndex):
    class Meta:
        index_name = "by-rank"
        projection = AllProjection()

    pk = UnicodeAttribute(hash_key=True)
    rank = NumberAttribute(range_key=True)


class Player(RowLockMixin):
    Meta = meta()

    pk = UnicodeAttribute(hash_key=True)
    sk = UnicodeAttribute(range_key=True)
    team = UnicodeAttribute()
    rank = NumberAttribute()
    note = UnicodeAttribute(null=True)
    by_team = ByTeam()
    by_note = ByNote()
    by_rank = ByRank()


@pytest.mark.real("local")
def test_indexes_follow_what_is_written_under_the_lock(engine, monkeypatch):
    monkeypatch.setattr(Player.Meta, "table_name", meta().table_name)
    created(Player)

    def ranked():
        by_team = [(row.sk, row.rank) for row in Player.by_team.query("red")]
        by_rank = [(row.sk, row.rank) for row in Player.by_rank.query("a", consistent_read=True)]
        return by_team, by_rank

    for place, name in enumerate(("x", "y"), 1):
        Player("a", name, team="red", rank=place).save()
    both = [("x", 1), ("y", 2)]
    with Player.locked("a", "x") as row:
        assert ranked() == (both, both)
        (seen,) = Player.by_rank.query("a", Player.rank == 1)
        assert seen.is_locked
        row.rank = 3
        row.save()
        assert ranked() == ([("y", 2), ("x", 3)],) * 2
        assert list(Player.by_note.query("n")) == []
        row.update(actions=[Player.note.set("n")], unlock=True)
    assert [found.sk for found in Player.by_note.query("n")] == ["x"]
    assert ranked() == ([("y", 2), ("x", 3)],) * 2


# -- what an instance shows of itself -------------------------------------------------------------


class Nowhere(RowLockMixin, Model):
    """A model of no table, in no region."""

    class Meta:
        table_name = "nowhere"
        region = ""

    pk = UnicodeAttribute(hash_key=True)
    note = UnicodeAttribute(null=True)


@pytest.fixture
def no_region(monkeypatch):
    """An environment that names no region."""
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)


def test_serialized_row_has_no_lock_and_needs_no_region(no_region):
    row = Nowhere("a", note="n")
    assert row.serialize() == {"pk": {"S": "a"}, "note": {"S": "n"}}
    assert row.serialize() == row.serialize()
    with pytest.raises(ValueError, match="pk"):
        Nowhere().serialize(null_check=True)


@pytest.mark.parametrize("lock_model", [None, LockItem])
def test_instance_shows_its_lock_only_if_asked_for(table, lock_model):
    own = {**hashed()(), "photo": binary(null=True), "lock_model": lock_model}
    model = created(made(own, LOCKABLE))
    model("a", note="n", photo=b"\x00").save()
    with model.locked("a", owner="me") as row:
        typed = {"pk": {"S": "a"}, "note": {"S": "n"}}
        assert row.serialize() == typed | {"photo": {"B": b"\x00"}}
        assert row.to_dynamodb_dict() == typed | {"photo": {"B": "AA=="}}
        assert row.to_simple_dict(force=True) == {"pk": "a", "note": "n", "photo": "AA=="}
        shown = [
            row.serialize(with_lock=True),
            row.to_dynamodb_dict(with_lock=True),
            row.to_simple_dict(force=True, with_lock=True),
        ]
        of_the_lock = lock_names(model) if lock_model is None else set()
        for each in shown:
            assert set(each) == {"pk", "note", "photo"} | of_the_lock
            if lock_model is None:
                assert row.row_lock.token in json.dumps(each["lock_token"])


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


# -- stand-ins for PynamoDB's connection ----------------------------------------------------------


def test_answer_that_a_test_made_up_is_one(no_region):
    for answer in ({}, None):
        with patch.object(Connection, "_make_api_call", return_value=answer) as call:
            assert not Nowhere("a").save()
            assert not Nowhere("a").delete()
            operations = [each.args[0] for each in call.call_args_list]
            assert operations == ["GetItem", "PutItem", "DeleteItem"]
    row = Nowhere("a")
    answer = {"Attributes": {"pk": {"S": "a"}, "note": {"S": "made up"}}}
    with patch.object(Connection, "_make_api_call", return_value=answer):
        assert row.update([Nowhere.note.set("n")]) == answer
    # an update takes over the row
    assert row.note == "made up"
