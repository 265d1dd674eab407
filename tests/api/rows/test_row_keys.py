"""Keys of rows: what cannot be one is refused at once; each row has one name, and no two the same."""

import datetime as dt
import itertools
import math

import pytest
from pynamodb.attributes import NumberAttribute, UnicodeAttribute, UTCDateTimeAttribute
from row_tables import LOCKABLE, PLAIN, binary, created, keyed, legacy_binary, made, meta

from pynamodb_mutex import InvalidKeyError, LockItem, Mutex, MutexError


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
        (PAIR, ("a",), r"Row\.sk cannot be None"),
        (PAIR, ("a", ""), "1 to 1024 bytes, not the 0"),
        (PAIR, ("a", "k" * 1025), "1025"),
        (PAIR, ("a", 7), r"Row\.sk cannot be 7"),
        (PAIR, (None, "a"), r"Row\.pk cannot be None"),
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


def test_name_of_a_very_long_key_is_short(silence):
    for key in LONGEST:
        assert name_of(PAIR, *key).startswith(f"{PAIR.Meta.table_name}/")
        assert len(name_of(PAIR, *key).encode()) <= 2048
    name = name_of(TEXT, "é" * 1024)
    hashed = name.removeprefix(f"{TEXT.Meta.table_name}/")
    assert len(hashed) < 100
    # nor can a short key be chosen so that it gets that name
    assert name not in {name_of(TEXT, hashed), name_of(TEXT, hashed.lstrip("/"))}


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
