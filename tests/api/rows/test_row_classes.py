"""Classes that gain row locks: which may, and what of a lock stands in their rows."""

import time

import pytest
from pynamodb.attributes import (
    BooleanAttribute,
    DiscriminatorAttribute,
    NumberAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
)
from pynamodb.exceptions import UpdateError
from pynamodb.models import Model
from row_models import (
    LOCKABLE,
    PLAIN,
    Account,
    Ledger,
    balance,
    changed,
    created,
    hashed,
    lock_names,
    made,
    meta,
    stored,
)

from pynamodb_mutex import InvalidRowError, LockItem, Mutex, RowLockMixin

LOCKS_OWN = sorted(RowLockMixin.get_attributes())
RESERVED = ["held", "locked", "locked_all", "row_lock", "is_locked", "lock_model", "lock_enforced"]


def with_own(name, **options):
    """Return attributes of a model, of which one has the name and type of the lock's."""
    return {**hashed()(), name: type(getattr(RowLockMixin, name))(null=True, **options)}


# -- bases -----------------------------------------------------------------------------------------


def family(base, first):
    """Return a polymorphic base, made of these bases, and two subclasses of it."""

    class Animal(*base):
        Meta = meta()

        name = UnicodeAttribute(hash_key=True)
        kind = DiscriminatorAttribute(attr_name="k")
        note = UnicodeAttribute(null=True)

    class Cat(*first, Animal, discriminator="cat"):
        lives = NumberAttribute(default=9)

    class Dog(Animal, discriminator="dog"):
        tricks = UnicodeSetAttribute(null=True)

    return created(Animal), Cat, Dog


@pytest.mark.parametrize("lock_model", [None, LockItem])
def test_row_locked_through_the_base_is_of_its_subclass(table, lock_model):
    animal, cat, dog = family(LOCKABLE, ())
    for model in (animal, cat, dog):
        model.lock_model = lock_model
    cat("tom", lives=7).save()
    dog("rex", tricks={"sit"}).save()
    with animal.locked("tom") as tom, animal.locked("rex") as rex:
        assert (type(tom), type(rex)) == (cat, dog)
        assert not cat.locked("tom").acquire(blocking=False)
        tom.lives -= 1
        tom.save()
        rex.update(actions=[dog.tricks.add({"roll"})])
        assert rex.tricks == {"sit", "roll"}
    with cat.locked("tom") as tom:
        assert tom.lives == 6
    assert stored(tom)["k"] == {"S": "cat"}
    with pytest.raises(ValueError, match="Cat"), cat.locked("rex"):
        pass
    assert not animal.locked("rex").locked()


def test_one_subclass_of_several_may_be_lockable(engine):
    animal, cat, dog = family(PLAIN, (RowLockMixin,))
    cat("tom").save()
    dog("rex").save()
    assert set(stored(dog("rex"))) == {"name", "k"}
    with cat.locked("tom") as tom:
        seen = animal.get("tom")
        assert (type(seen), seen.is_locked) == (cat, True)
        tom.note = "n"
        tom.save(unlock=True)
    assert animal.get("tom").note == "n"
    assert not hasattr(animal, "locked")


def test_abstract_base_may_bring_the_locks(engine):
    class Base(RowLockMixin):
        pk = UnicodeAttribute(hash_key=True)

    models = [created(made({}, bases)) for bases in ((Base,), (Base, Model))]
    for model in models:
        model("a").save()
        with model.locked("a", timeout=0) as row:
            assert type(row) is model


# -- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_name_is_refused_with_the_way_out(name):
    taken = {name: UnicodeAttribute(null=True)}
    base, between = made(taken, PLAIN), type("Between", (RowLockMixin,), {})
    for attributes, bases in (
        (taken, LOCKABLE),
        (taken, (RowLockMixin,)),
        ({}, (RowLockMixin, base)),
        ({}, (between, base)),
    ):
        with pytest.raises(TypeError, match=rf"Row\.{name}: .* attr_name='{name}'"):
            made(hashed()() | attributes, bases)
    free = made({**hashed()(), "other": UnicodeAttribute(null=True, attr_name=name)}, LOCKABLE)
    assert free.get_attributes()["other"].attr_name == name


@pytest.mark.parametrize("name", LOCKS_OWN)
def test_attribute_of_the_lock_is_not_taken_over_by_one_of_the_models_own(name):
    plain, renamed = made(with_own(name), PLAIN), made(with_own(name, attr_name="o"), PLAIN)
    belongs = rf"Row\.{name} belongs to the lock"
    hidden = f"Row: the lock's {name} hides that of Row: put RowLockMixin after it"
    for attributes, bases, message in (
        (with_own(name), LOCKABLE, f"{belongs}: .*attr_name"),
        ({**hashed()(), name: BooleanAttribute()}, LOCKABLE, f"{belongs}.*another type"),
        ({}, (plain, RowLockMixin), belongs),
        ({}, (RowLockMixin, plain), hidden),
        ({}, (RowLockMixin, renamed), hidden),
        ({"lock_model": LockItem}, (RowLockMixin, plain), hidden),
    ):
        with pytest.raises(TypeError, match=message):
            made(attributes, bases)


@pytest.mark.parametrize("name", LOCKS_OWN)
def test_attribute_of_the_lock_may_be_stored_under_another_name(name):
    base = made(with_own(name, attr_name="l"), LOCKABLE)
    again = made({name: type(getattr(base, name))(null=True, attr_name="m")}, (base,))
    beneath = made({}, (made(with_own(name, attr_name="n"), PLAIN), RowLockMixin))
    models = (base, made({}, (base,)), again, beneath)
    assert [model.get_attributes()[name].attr_name for model in models] == ["l", "l", "m", "n"]
    # the name in the row is free for an attribute of the model's own then
    made({"other": UnicodeAttribute(null=True, attr_name=name)}, (base,))


def test_model_that_cannot_work_is_refused():
    twice, wrong = "other.* both stored as", r"Row\.lock_model must be LockItem or a subclass"
    for message, attributes, bases in (
        *[(twice, {"other": UnicodeAttribute(attr_name=n)}, LOCKABLE) for n in LOCKS_OWN],
        (twice, {"other": UnicodeAttribute(attr_name="note")}, LOCKABLE),
        *[(wrong, {"lock_model": m}, LOCKABLE) for m in (Model, Mutex, "LockItem", LockItem("a"))],
        ("MRO", {}, (Model, RowLockMixin)),  # Python refuses bases in the wrong order
    ):
        with pytest.raises(TypeError, match=message):
            made(hashed()() | attributes, bases)


# -- what stands in a row --------------------------------------------------------------------------


def test_claim_in_a_row_is_written_by_the_protocol_alone(table):
    model = created(made(hashed()(), LOCKABLE))
    fields, until = {"pk", "note"}, time.time() + 1000
    said = {"lock_token": "t", "lock_owner": "you", "lock_lease": 30, "lock_expires_at": until}
    said["lock_version"] = 10**30  # no lock can have it
    model("a", note="n", **said).save()
    assert set(stored(model("a"))) == fields | {"lock_version"}
    with model.locked("a", owner="me", lease=20, timeout=0) as row:
        for name, value in said.items():
            setattr(row, name, value)
        for write in (row.row_lock.renew, row.save):
            write()
            raw = stored(row)
            assert set(raw) == fields | lock_names(model)
            assert raw["lock_owner"] == {"S": "me"}
            assert raw["lock_token"] == {"S": row.row_lock.token}
            assert raw["lock_version"] == {"N": row.row_lock.fencing_token}
            assert float(raw["lock_expires_at"]["N"]) == pytest.approx(time.time() + 20, abs=10)
    left = {"lock_token", "lock_version", "lock_writes", "lock_abandoned_by"}
    assert set(stored(row)) == fields | left
    with model.locked("a") as row:
        row.save(unlock=True)
    assert set(stored(row)) == fields | left
    lock = row.row_lock
    row.refresh()
    row.save()
    assert set(stored(row)) == fields | {"lock_version"}
    assert stored(row)["lock_version"]["N"] >= lock.fencing_token
    # what is left goes when its locks move to the lock table
    with model.locked("a"):
        pass
    moved = made({**hashed()(), "lock_model": table}, LOCKABLE, model.Meta.table_name)
    with moved.locked("a") as row:
        row.save()
    assert stored(row) == {"pk": {"S": "a"}, "note": {"S": "n"}}


def test_lock_in_the_lock_table_leaves_the_row_and_its_names_alone(table):
    state = UnicodeAttribute(attr_name="lock_token")
    own = {**hashed()(), "lock_owner": NumberAttribute(), "state": state, "lock_model": table}
    model = created(made(own, LOCKABLE))
    model("a", lock_owner=7, state="new").save()
    expected = {"pk": {"S": "a"}, "lock_owner": {"N": 7}, "lock_token": {"S": "new"}}
    assert stored(model("a")) == expected
    with model.locked("a", owner="me") as row:
        assert (row.lock_owner, stored(row)) == (7, expected)
        row.lock_owner = 8
        row.save()
        expected["lock_owner"] = {"N": 8}
        assert stored(row) == expected
        row.update(actions=[model.state.set("old")])
        expected["lock_token"] = {"S": "old"}
        assert stored(row) == expected
        assert row.to_simple_dict() == {"pk": "a", "lock_owner": 8, "lock_token": "old"}
        row.save(unlock=True)
    assert stored(row) == expected
    row.refresh()
    row.save()
    row.update(actions=[model.note.remove()])
    assert stored(row) == expected
    assert [item.is_held for item in table.scan()] == [False]


# -- lock attributes that cannot be right ----------------------------------------------------------

FAR = {"N": "4102444800"}  # the year 2100
CLAIM = {
    "lock_token": {"S": "theirs"},
    "lock_version": {"N": "7"},
    "lock_owner": {"S": "they"},
    "lock_lease": {"N": "30"},
    "lock_expires_at": FAR,
    "lock_writes": {"N": "0"},
    "lock_abandoned_by": {"S": ""},
}
EVERY, SAVE = ("save", "update", "delete"), ("save",)
WRONG = [
    ("lock_expires_at", {**CLAIM, "lock_expires_at": {"S": "soon"}}, EVERY),
    ("lock_expires_at", {**CLAIM, "lock_expires_at": {"NULL": True}}, EVERY),
    ("lock_token", {"lock_expires_at": FAR, "lock_version": {"N": "7"}}, EVERY),
    ("lock_version", {"lock_expires_at": FAR, "lock_token": {"S": "x"}}, SAVE),
    ("lock_version", {"lock_version": {"S": "7"}}, SAVE),
    ("lock_version", {"lock_version": {"N": "1" + "0" * 30}}, SAVE),
    ("lock_version", {**CLAIM, "lock_version": {"N": "7.5"}}, ()),
    ("lock_owner", {**CLAIM, "lock_owner": {"N": "1"}, "lock_expires_at": {"N": "1"}}, ()),
]


def put(row, attributes):
    """Put a row with attributes that its model knows nothing of; return it as it then stands."""
    item = row.serialize() | {"note": {"S": "mine"}} | attributes
    client = row._get_connection().connection.client
    client.put_item(TableName=row.Meta.table_name, Item=item)
    return stored(row)


@pytest.mark.parametrize(("attribute", "attributes", "writes"), WRONG)
def test_row_whose_lock_cannot_be_is_refused_until_it_is_forced(
    accounts, sent, attribute, attributes, writes
):
    Account("b").save()
    row = Account.get("a")
    before = put(Account("a", balance=5), attributes)
    sent.clear()
    calls = {"save": row.save, "update": lambda: changed(row), "delete": row.delete}
    for call in (
        Account.locked("a").acquire,
        Account.locked("a").locked,
        *[Account.locked_all(["a", "b"], timeout=timeout).acquire for timeout in (0, 60)],
        *[calls[write] for write in writes],
    ):
        with pytest.raises(InvalidRowError) as caught:
            call()
        error = caught.value
        assert (error.key, error.attribute) == (f"{Account.Meta.table_name}/a", attribute)
        assert repr(attribute) in str(error)
    assert sent[:2] == ["UpdateItem", "GetItem"]
    assert stored(Account("a")) == before
    assert not Account.locked("b").locked()
    assert Account.locked("a").force_release()
    row = stored(Account("a"))
    assert row.keys() == {"name", "balance", "note", "lock_token", "lock_version"}
    assert not Account.locked("a").force_release()
    with Account.locked("a", timeout=0) as locked:
        assert locked.balance == 5
        assert locked.row_lock.fencing_token == int(row["lock_version"]["N"]) + 1


def test_advisory_write_is_refused_for_its_fencing_token_alone(accounts, monkeypatch):
    monkeypatch.setattr(Account, "lock_enforced", False)
    row = Account.get("a")
    before = put(row, {"lock_version": {"N": "1" + "0" * 30}})
    with pytest.raises(InvalidRowError):
        row.save()
    # that its own condition fails is PynamoDB's error
    with pytest.raises(UpdateError) as caught:
        row.update(actions=[Account.balance.add(1)], condition=Account.balance == 99)
    assert caught.value.cause_response_code == "ConditionalCheckFailedException"
    assert stored(Account("a")) == before
    changed(row)
    put(row, {**CLAIM, "lock_expires_at": {"S": "soon"}})
    row.save()
    assert "lock_expires_at" not in stored(Account("a"))


def test_row_needs_no_lock_and_may_have_what_it_likes(accounts):
    own = {"token": {"N": "1"}, "expires_at": {"S": "x"}, "recordVersionNumber": {"S": "x"}}
    for attributes in ({}, own, {"lock_version": {"N": "7"}}):
        before = put(Account("a", balance=5), attributes)
        assert not Account.locked("a").force_release()
        assert stored(Account("a")) == before
        with Account.locked("a", timeout=0) as row:
            changed(row)
        assert balance(Account) == 6


def test_row_of_the_lock_table_that_is_no_locks_is_refused(ledger):
    key = f"{Ledger.Meta.table_name}/a"
    put(LockItem(key), {"expires_at": FAR})
    for write in (Ledger.locked("a").acquire, Ledger.get("a").save):
        with pytest.raises(InvalidRowError, match=key):
            write()
