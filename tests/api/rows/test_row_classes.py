"""Classes that gain row locks: which may, and what else writes their rows."""

import time

import pytest
from pynamodb.attributes import (
    BooleanAttribute,
    DiscriminatorAttribute,
    NumberAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
    VersionAttribute,
)
from pynamodb.models import Model
from row_tables import LOCKABLE, PLAIN, created, hashed, lock_names, made, meta, stored

from pynamodb_mutex import LockItem, Mutex, MutexLostError, RowLockMixin


def family(base, first, table=None):
    """Return a polymorphic base, made of these bases, and two subclasses of it."""

    class Animal(*base):
        Meta = meta(table)

        name = UnicodeAttribute(hash_key=True)
        kind = DiscriminatorAttribute(attr_name="k")
        note = UnicodeAttribute(null=True)

    class Cat(*first, Animal, discriminator="cat"):
        lives = NumberAttribute(default=9)

    class Dog(Animal, discriminator="dog"):
        tricks = UnicodeSetAttribute(null=True)

    return Animal, Cat, Dog


@pytest.mark.parametrize("lock_model", [None, LockItem])
def test_locking_through_the_base_gives_the_subclass(table, lock_model):
    animal, cat, dog = family(LOCKABLE, ())
    for model in (animal, cat, dog):
        model.lock_model = lock_model
    created(animal)
    cat("tom", lives=7).save()
    dog("rex", tricks={"sit"}).save()
    with animal.locked("tom") as tom, animal.locked("rex") as rex:
        assert (type(tom), type(rex)) == (cat, dog)
        assert not cat.locked("tom").acquire(blocking=False)
        tom.lives -= 1
        tom.save()
        rex.update(actions=[dog.tricks.add({"roll"})])
        assert rex.tricks == {"sit", "roll"}
        rex.save(unlock=True)
        assert not dog.locked("rex").locked()
        assert tom.is_locked
    with cat.locked("tom") as tom:
        assert (tom.lives, tom.is_locked) == (6, True)
    assert {type(row) for row in animal.scan()} == {cat, dog}
    assert stored(tom)["k"] == {"S": "cat"}
    with pytest.raises(ValueError, match="Cat"), cat.locked("rex"):
        pass
    assert not animal.locked("rex").locked()


def test_one_subclass_of_several_may_be_lockable(engine):
    animal, cat, dog = family(PLAIN, (RowLockMixin,))
    created(animal)
    cat("tom").save()
    dog("rex").save()
    assert set(stored(dog("rex"))) == {"name", "k"}
    with cat.locked("tom") as tom:
        seen = animal.get("tom")
        assert type(seen) is cat
        assert seen.is_locked
        tom.note = "n"
        tom.save(unlock=True)
    assert animal.get("tom").note == "n"
    assert not hasattr(animal, "locked")


def test_abstract_base_may_bring_the_locks(engine):
    class Base(RowLockMixin):
        pk = UnicodeAttribute(hash_key=True)
        note = UnicodeAttribute(null=True)

    class One(Base):
        Meta = meta()

    class Two(Base, Model):
        Meta = meta()

    for model in (One, Two):
        created(model)("a", note=model.__name__).save()
    with One.locked("a") as one, Two.locked("a", timeout=0) as two:
        assert (one.note, two.note) == ("One", "Two")


RESERVED = ["locked", "locked_all", "row_lock", "is_locked", "lock_model", "lock_enforced"]


@pytest.mark.parametrize("name", RESERVED)
def test_attribute_in_the_way_is_refused_with_the_way_out(name):
    for bases in (LOCKABLE, (RowLockMixin,)):
        with pytest.raises(TypeError, match=rf"Row\.{name}: .* attr_name='{name}'"):
            made({**hashed()(), name: UnicodeAttribute(null=True)}, bases)
        free = made({**hashed()(), "other": UnicodeAttribute(null=True, attr_name=name)}, bases)
        assert free.get_attributes()["other"].attr_name == name


def test_attribute_in_the_way_may_come_from_a_base():
    taken = made({"locked": UnicodeAttribute(null=True)}, PLAIN)
    between = type("Between", (RowLockMixin,), {})
    for bases in ((RowLockMixin, taken), (between, taken)):
        with pytest.raises(TypeError, match=r"Row\.locked: .* attr_name='locked'"):
            made(hashed()(), bases)


def test_model_that_cannot_work_is_refused():
    for name in ("lock_token", "note"):
        with pytest.raises(TypeError, match=f"other.* both stored as '{name}'"):
            made({**hashed()(), "other": UnicodeAttribute(attr_name=name)}, LOCKABLE)
    for lock_model in (Model, Mutex, "LockItem", 7, LockItem("a")):
        with pytest.raises(TypeError, match=r"Row\.lock_model must be LockItem or a subclass"):
            made({**hashed()(), "lock_model": lock_model}, LOCKABLE)
    # Python refuses bases in the wrong order
    with pytest.raises(TypeError, match="MRO"):
        made(hashed()(), (Model, RowLockMixin))


def test_mixin_adds_attributes_that_may_all_be_absent():
    for name, attribute in RowLockMixin.get_attributes().items():
        assert name.startswith("lock_")
        assert attribute.null
        assert not isinstance(attribute, VersionAttribute)


def test_held_row_carries_the_claim_and_a_free_one_what_is_left_of_it(engine):
    model = created(made(hashed()(), LOCKABLE))
    model("a", note="n").save()
    fields = {"pk", "note"}
    assert set(stored(model("a"))) == fields | {"lock_version"}
    with model.locked("a", owner="me", lease=20) as row:
        raw = stored(row)
        assert set(raw) == fields | lock_names(model)
        assert raw["lock_owner"] == {"S": "me"}
        assert raw["lock_version"] == {"N": row.row_lock.fencing_token}
        assert float(raw["lock_expires_at"]["N"]) == pytest.approx(time.time() + 20, abs=10)
        row.save()
        assert set(stored(row)) == fields | lock_names(model)
    left = {"lock_token", "lock_version", "lock_writes", "lock_abandoned_by"}
    assert set(stored(row)) == fields | left
    with model.locked("a") as row:
        row.save(unlock=True)
    assert set(stored(row)) == fields | left - {"lock_abandoned_by"}


def test_fencing_token_grows_over_old_code_that_writes_over_a_locked_row(engine):
    old = created(made(hashed()(), PLAIN))
    new = made(hashed()(), LOCKABLE, old.Meta.table_name)
    old("a", note="first").save()
    lock = new.locked("a")
    lock.acquire()
    fence = lock.fencing_token
    old("a", note="theirs").save()
    with pytest.raises(MutexLostError):
        lock.row.save()
    # the fencing token went with the rest: the next counts from server time, known to a second
    time.sleep(1.5)
    with new.locked("a") as row:
        assert row.note == "theirs"
        assert row.row_lock.fencing_token > fence


@pytest.mark.parametrize("by_new_code", [True, False])
def test_locks_in_the_lock_table_leave_nothing_in_the_row(table, by_new_code):
    attributes = hashed(state=lambda: UnicodeAttribute(attr_name="lock_owner"))
    old = created(made(attributes(), PLAIN))
    new = made({**attributes(), "lock_model": table}, LOCKABLE, old.Meta.table_name)
    (new if by_new_code else old)("a", state="new").save()
    expected = {"pk": {"S": "a"}, "lock_owner": {"S": "new"}}
    assert stored(old("a")) == expected
    with new.locked("a", owner="me") as row:
        assert stored(row) == expected
        row.note = "n"
        row.save()
        expected["note"] = {"S": "n"}
        assert stored(row) == expected
        row.update(actions=[new.state.set("old")])
        expected["lock_owner"] = {"S": "old"}
        assert stored(row) == expected
        assert (row.state, row.note) == ("old", "n")
        row.save(unlock=True)
    assert stored(row) == expected
    row.save()
    row.update(actions=[new.note.remove()])
    del expected["note"]
    assert stored(row) == expected
    assert [item.is_held for item in table.scan()] == [False]


def test_row_whose_locks_move_to_the_lock_table_loses_what_is_left_of_them(table):
    before = created(made(hashed()(), LOCKABLE))
    after = made({**hashed()(), "lock_model": table}, LOCKABLE, before.Meta.table_name)
    before("a", note="n").save()
    with before.locked("a"):
        pass
    with after.locked("a") as row:
        row.save()
    assert stored(row) == {"pk": {"S": "a"}, "note": {"S": "n"}}


def test_what_an_instance_says_of_its_lock_is_not_written(engine):
    model = created(made(hashed()(), LOCKABLE))
    until = time.time() + 1000
    claim = {"lock_token": "t", "lock_owner": "me", "lock_lease": 30, "lock_expires_at": until}
    model("a", **claim).save()
    assert set(stored(model("a"))) == {"pk", "lock_version"}
    with model.locked("a", timeout=0) as row:
        token = row.row_lock.token
        for name, value in claim.items():
            setattr(row, name, value)
        row.lock_version = 1
        row.save()
        assert stored(row)["lock_token"] == {"S": token}
        assert stored(row)["lock_version"] == {"N": row.row_lock.fencing_token}
    row.save()
    assert set(stored(row)) == {"pk", "lock_version"}
    assert stored(row)["lock_version"]["N"] >= row.row_lock.fencing_token


LOCKS_OWN = sorted(RowLockMixin.get_attributes())


def fitting(name, **options):
    """Return an attribute of the type that the lock's of this name has."""
    return type(getattr(RowLockMixin, name))(null=True, **options)


@pytest.mark.parametrize("name", LOCKS_OWN)
def test_attribute_of_a_models_own_is_not_taken_over_by_the_lock(name):
    for attribute, why in (
        (fitting(name), ": .*attr_name"),
        (BooleanAttribute(), ".*another type"),
    ):
        with pytest.raises(TypeError, match=rf"Row\.{name} belongs to the lock{why}"):
            made({**hashed()(), name: attribute}, LOCKABLE)
    # whoever defined it
    base = made({**hashed()(), name: fitting(name)}, PLAIN)
    with pytest.raises(TypeError, match=rf"Row\.{name} belongs to the lock"):
        made({}, (base, RowLockMixin))
    for options in ({}, {"attr_name": "o"}):
        base = made({**hashed()(), name: fitting(name, **options)}, PLAIN)
        hidden = f"Row: the lock's {name} hides that of Row: put RowLockMixin after it"
        with pytest.raises(TypeError, match=hidden):
            made({}, (RowLockMixin, base))


@pytest.mark.parametrize("name", LOCKS_OWN)
def test_attribute_of_the_lock_may_be_stored_under_another_name(name):
    base = made({**hashed()(), name: fitting(name, attr_name="l")}, LOCKABLE)
    child = made({}, (base,))
    again = made({name: fitting(name, attr_name="m")}, (base,))
    beneath = made({}, (made({name: fitting(name, attr_name="n")}, PLAIN), RowLockMixin))
    stored_as = [model.get_attributes()[name].attr_name for model in (base, child, again, beneath)]
    assert stored_as == ["l", "l", "m", "n"]
    # the name in the row is free for an attribute of the model's own then
    other = made({"other": UnicodeAttribute(null=True, attr_name=name)}, (base,))
    assert other.get_attributes()["other"].attr_name == name


def test_models_own_attribute_is_its_own_with_a_lock_table(table):
    own = {**hashed()(), "lock_owner": NumberAttribute(), "lock_model": table}
    model = created(made(own, LOCKABLE))
    model("a", lock_owner=7).save()
    with model.locked("a", owner="me") as row:
        assert row.lock_owner == 7
        row.lock_owner = 8
        row.save()
    assert stored(row)["lock_owner"] == {"N": 8}
    assert row.to_simple_dict() == {"pk": "a", "lock_owner": 8}
    base = made({**hashed()(), "lock_owner": fitting("lock_owner")}, PLAIN)
    with pytest.raises(TypeError, match="hides that of Row"):
        made({"lock_model": table}, (RowLockMixin, base))
