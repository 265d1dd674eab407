"""Calls that cannot work: refused at once, with an error that names the mistake, and nothing is sent; and the exceptions."""

import asyncio
import copy
import math
import pickle
from functools import partial

import pytest
from accounts import Account
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import PynamoDBException, UpdateError
from row_tables import PLAIN, made

import pynamodb_mutex
from pynamodb_mutex import LockItem, Loss, Mutex, RowLock, Semaphore, aio, exceptions, synchronized
from pynamodb_mutex.exceptions import InvalidKeyError, MutexError, MutexLostError, MutexNotHeldError
from pynamodb_mutex.groups import AnyOf, MutexGroup, RowLocks

CENTURY = 100 * 365.25 * 86400


pytestmark = pytest.mark.usefixtures("silence")


def test_key_that_dynamodb_would_not_take_is_refused():
    for key, message in (
        ("", "1 to 2048 bytes"),
        ("k" * 2049, "2049"),
        ("é" * 1025, "2050"),
        ("🔒" * 513, "2052"),
        ("a\ud800b", "UTF-8"),
        (b"a", "not bytes"),
        (None, "not NoneType"),
        (7, "not int"),
        (["a"], "not list"),
    ):
        for call in (Mutex.for_key, LockItem.force_release):
            with pytest.raises(InvalidKeyError, match=message) as caught:
                call(key)
            assert caught.value.key == (key if isinstance(key, str) else None)


@pytest.mark.parametrize(
    ("make", "allowed"),
    [(Mutex.for_keys, "1 to 100 locks can be taken at once"), (Mutex.any_of, "1 to 100 keys")],
)
def test_keys_that_cannot_be_locked_by_one_object_are_refused(make, allowed):
    for wrong in ("abc", Mutex.for_key("a"), 7, None):
        with pytest.raises(TypeError, match="several"):
            make(wrong)
    for count in (0, 101):
        with pytest.raises(ValueError, match=f"{allowed}, not {count}"):
            make([str(number) for number in range(count)])
    assert len(make(map(str, range(100))).keys) == 100
    assert make(["a", "b", "a"]).keys == ("a", "b")
    for key in ("", 7, "x" * 2049):
        with pytest.raises(InvalidKeyError):
            make(["a", key])
    with pytest.raises(ValueError, match="lease"):
        make(["a"], lease=0.1)


def test_semaphore_that_cannot_be_is_refused():
    def gpu(permits, key="gpu", **options):
        return Semaphore.for_key(key, permits=permits, **options)

    for permits in (1.0, "2", None, True):
        with pytest.raises(TypeError, match="permits must be an int"):
            gpu(permits)
    for permits in (0, -1, 101):
        with pytest.raises(ValueError, match=f"1 to 100 permits, not {permits}"):
            gpu(permits)
    with pytest.raises(ValueError, match="lease"):
        gpu(1, lease=0.1)
    # the key must leave room for the permit's name
    assert len(gpu(100, "x" + "é" * 1018).keys[-1].encode()) == 2048
    for key in ("x" * 2038, "é" * 1019, "", 7):
        with pytest.raises(InvalidKeyError):
            gpu(1, key)


def test_model_that_is_no_lock_table_is_refused():
    plain = made({"key": UnicodeAttribute(hash_key=True)}, PLAIN)
    for model in (plain, LockItem("a"), "LockItem", None, int):
        with pytest.raises(TypeError, match="model must be LockItem or a subclass"):
            Mutex.for_key("a", model=model)

    class Ranged(LockItem):
        class Meta(LockItem.Meta):
            table_name = "ranged"

        kind = UnicodeAttribute(range_key=True)

    with pytest.raises(InvalidKeyError, match=r"Ranged\.kind .* default"):
        Mutex.for_key("a", model=Ranged)


@pytest.mark.parametrize(
    ("error", "option", "values"),
    [
        (ValueError, "lease", [0, -1, 0.49, math.nan, math.inf, -math.inf]),
        (ValueError, "lease", [CENTURY + 1, 1e12, 10**400]),
        (ValueError, "timeout", [-2, -0.1, math.nan, math.inf, CENTURY + 1, 10**400, -(10**400)]),
        (ValueError, "max_hold", [0, -1, math.nan, math.inf, 1e12]),
        (ValueError, "owner", ["", "me\ud800"]),
        (ValueError, "poll", [(0, 1), (-1, 1), (2, 1), (0.1, math.inf), (math.nan, 1), (1, 1e12)]),
        (ValueError, "data", [math.nan, [math.inf], {"a": -math.inf}]),
        (TypeError, "lease", [None, "30", True, [1], 1j]),
        (TypeError, "timeout", ["1", False]),
        (TypeError, "max_hold", ["1", True]),
        (TypeError, "owner", [7, b"me", ["me"]]),
        (TypeError, "on_lost", ["print", 7]),
        (TypeError, "poll", [0.1, [0.1, 1.0], (0.1,), (0.1, 1, 2), None, "ab"]),
        (TypeError, "poll", [("a", "b"), (True, 1)]),
        (TypeError, "data", [object(), {1, 2}, b"x", {"a": object()}, [1j]]),
    ],
)
def test_value_that_no_option_can_have_is_refused(error, option, values):
    for value in values:
        with pytest.raises(error, match="JSON" if option == "data" else option):
            Mutex.for_key("a", **{option: value})


def test_value_that_an_option_can_have_is_taken():
    for options in (
        *[{"lease": lease} for lease in (0.5, 1, 86400)],
        *[{"timeout": timeout} for timeout in (-1, -1.0, 0)],
        *[{"poll": poll} for poll in ((0.001, 0.001), (1, 60))],
        {"lease": CENTURY, "timeout": CENTURY, "max_hold": CENTURY, "poll": (CENTURY, CENTURY)},
        {"max_hold": 0.1, "on_lost": print},
        {"on_lost": None, "owner": None, "max_hold": None, "data": None},
    ):
        assert not Mutex.for_key("a", **options).held
    assert Mutex.for_key("a", data={"NaN": "Infinity"})._options.data == '{"NaN": "Infinity"}'
    # no timeout is as if none were given
    semaphore = partial(Semaphore.for_key, permits=2)
    for kind, keys in (
        *[(Mutex.for_key, "a"), (Mutex.for_keys, ["a", "b"])],
        *[(Mutex.any_of, ["a", "b"]), (semaphore, "a")],
    ):
        make = partial(kind, keys)
        assert make(timeout=None)._options == make()._options == make(timeout=-1)._options
    own = Mutex.for_key("a", timeout=0)._options
    assert own.patience(blocking=True, timeout=None) == 0
    assert own.patience(blocking=True, timeout=-1) == math.inf


def test_retention_that_no_row_can_have_is_refused():
    for retention in (-1, math.nan, CENTURY + 1):
        with pytest.raises(ValueError, match="retention"):
            type("Kept", (LockItem,), {"retention": retention})
    with pytest.raises(TypeError, match="retention"):
        type("Kept", (LockItem,), {"retention": "7 days"})


def test_lock_is_not_copied_and_the_error_says_how_to_make_it():
    with pytest.raises(TypeError, match=r"Mutex\.for_key\('a'\)"):
        copy.copy(Mutex.for_key("a"))
    with pytest.raises(TypeError, match=r"Account\.locked\(") as caught:
        copy.copy(Account.locked("a"))
    assert "for_key" not in str(caught.value)


class Special(Mutex):
    """A subclass of a user's own."""


def attached(lock, *args, **options):
    """Attach, also where that is awaited; nothing is sent before the mistake is seen."""
    result = lock.attach(*args, **options)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


CALLS = {
    "for_key": lambda kind, **options: kind.for_key("x", **options),
    "for_row": lambda kind, **options: kind.for_row(Account, "a", **options),
    "for_keys": lambda kind, **options: kind.for_keys(["x", "y"], **options),
    "any_of": lambda kind, **options: kind.any_of(["x", "y"], **options),
    "attach": lambda kind, **options: attached(kind, "{}", **options),
}


@pytest.mark.parametrize(
    ("kind", "instead", "makers"),
    [
        (Mutex, "Mutex.for_key(...)", set(CALLS)),
        (Special, "Special.for_key(...)", set(CALLS)),
        (Semaphore, "Semaphore.for_key(...)", {"for_key"}),
        (AnyOf, "Mutex.any_of([...])", {"any_of"}),
        (MutexGroup, "Mutex.for_keys([...])", set(CALLS)),
        (RowLock, "locked(...) of the row's model", {"attach"}),
        (RowLocks, "locked_all([...]) of the rows' model", set(CALLS)),
        (aio.AsyncMutex, "AsyncMutex.for_key(...)", set(CALLS)),
        (aio.AsyncSemaphore, "AsyncSemaphore.for_key(...)", {"for_key"}),
        (aio.AsyncMutexGroup, "AsyncMutex.for_keys([...])", set(CALLS)),
        (aio.AsyncRowLock, "pynamodb_mutex.aio.locked(Model, ...)", {"attach"}),
        (aio.AsyncRowLocks, "pynamodb_mutex.aio.locked_all(Model, [...])", set(CALLS)),
    ],
)
def test_what_makes_no_object_of_a_class_names_what_does(kind, instead, makers):
    name = kind.__name__
    for args, options in (((), {}), (("x",), {}), (("x", 3), {}), ((), {"key": "x", "lease": 3})):
        with pytest.raises(TypeError) as raised:
            kind(*args, **options)
        assert str(raised.value) == f"{name}(...) makes no lock: call {instead}"
    # the methods that it inherits, if any
    base = "AsyncMutex" if issubclass(kind, aio.AsyncMutex) else "Mutex"
    for method in set(CALLS) - makers:
        with pytest.raises(TypeError) as raised:
            CALLS[method](kind)
        assert str(raised.value) == (
            f"{name}.{method}() makes no {name}: call {instead} for one, or {base}.{method}(...)"
        )


def test_method_makes_an_object_of_its_class():
    assert type(Special.for_key("x")) is type(Special.for_row(Account, "a")) is Special
    assert type(AnyOf.any_of(["x", "y"])) is AnyOf
    for kind in (Semaphore, aio.AsyncSemaphore):
        assert type(kind.for_key("x", permits=3)) is kind
    with pytest.raises(TypeError):
        Mutex.for_key("a", LockItem)


@pytest.mark.parametrize(
    ("called", "call"),
    [
        *[
            (f"{kind.__name__}.{name}", partial(call, kind))
            for kind in (Mutex, Special, aio.AsyncMutex)
            for name, call in CALLS.items()
            if (kind, name) != (Special, "for_key")  # Python names the class that has it
        ],
        ("AnyOf.any_of", partial(CALLS["any_of"], AnyOf)),
        ("Semaphore.for_key", partial(CALLS["for_key"], Semaphore, permits=2)),
        ("AsyncSemaphore.for_key", partial(CALLS["for_key"], aio.AsyncSemaphore, permits=2)),
        ("RowLock.attach", partial(CALLS["attach"], RowLock, model=Account)),
        ("AsyncRowLock.attach", partial(CALLS["attach"], aio.AsyncRowLock, model=Account)),
        ("Account.locked", partial(Account.locked, "a")),
        ("Account.locked_all", partial(Account.locked_all, ["a", "b"])),
        ("Account.locked_all", partial(Account.locked_all, [Account.locked("a")])),
        ("Mutex.for_keys", partial(Mutex.for_keys, [Mutex.for_key("a")])),
        ("locked", partial(aio.locked, Account, "a")),
        ("locked_all", partial(aio.locked_all, Account, ["a", "b"])),
        ("synchronized", partial(synchronized, "x")),
    ],
)
def test_unknown_option_names_the_function_that_was_called(called, call):
    with pytest.raises(TypeError) as raised:
        call(lease=3, lese=3)
    message = f"{called}() got an unexpected keyword argument 'lese'"
    # Python 3.13 adds "Did you mean 'lease'?" to its own
    assert str(raised.value).partition(". Did you")[0] == message


def test_table_of_a_row_is_no_option():
    for locked_by in (Account.locked, Account.locked_all):
        with pytest.raises(TypeError, match=r"Account\.\w+\(\) got .* 'model'"):
            locked_by("a", model=LockItem)


# -- exceptions -------------------------------------------------------------------------------------

BASES = {
    MutexError: {PynamoDBException},
    exceptions.MutexTimeoutError: {MutexError, TimeoutError},
    MutexNotHeldError: {MutexError, RuntimeError},
    MutexLostError: {MutexNotHeldError},
    exceptions.MutexAlreadyHeldError: {MutexError, RuntimeError},
    exceptions.RowLockedError: {MutexError},
    exceptions.InvalidKeyError: {MutexError, ValueError},
    exceptions.InvalidRowError: {MutexError},
    exceptions.InvalidTicketError: {MutexError, ValueError},
}


def test_all_names_are_public():
    assert set(exceptions.__all__) == {kind.__name__ for kind in BASES} | {"Loss"}
    assert set(exceptions.__all__) <= set(pynamodb_mutex.__all__)


@pytest.mark.parametrize("kind", BASES)
def test_each_has_its_bases_and_survives_pickling_and_copying_but_for_its_cause(kind):
    assert set(kind.__bases__) == BASES[kind]
    assert getattr(pynamodb_mutex, kind.__name__) is kind
    empty = kind()
    assert (empty.key, empty.owner, empty.expires_at, empty.cause) == (None, None, None, None)
    assert str(empty) == empty.msg == "Mutex error"
    cause = ValueError("why")
    error = kind("what: é", cause, key="a", owner="me", expires_at=7.5)
    assert str(error) == error.msg == "what: é"
    assert (error.key, error.owner, error.expires_at, error.cause) == ("a", "me", 7.5, cause)
    error.extra = [1]
    if kind is MutexLostError:
        error.loss, error.applied = Loss.TAKEN, None
    if kind is exceptions.InvalidRowError:
        error.attribute = "version"
    pickled = [pickle.dumps(error, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for copied in (*map(pickle.loads, pickled), copy.copy(error)):
        assert type(copied) is kind
        assert (str(copied), copied.args) == (str(error), error.args)
        assert copied.__dict__ == {**error.__dict__, "cause": None}


class OwnError(MutexError):
    def __init__(self, message, number):
        super().__init__(message, key="own")
        self.number = number


def test_subclass_and_cause_that_cannot_be_pickled_survive_too():
    copied = pickle.loads(pickle.dumps(OwnError("what", 7)))
    assert (type(copied), copied.number, copied.key) == (OwnError, 7, "own")
    error = MutexLostError("what", UpdateError("no", ValueError(lambda: 0)), key="a")
    assert pickle.loads(pickle.dumps(error)).key == "a"


def test_lost_error_says_how_and_whether_the_write_was_applied():
    error = MutexLostError("what")
    assert (error.loss, error.applied) == (Loss.EXPIRED, False)
    error = MutexLostError("what", loss=Loss.FORCED, applied=None)
    assert (error.loss, error.applied) == (Loss.FORCED, None)
    names = {loss.name for loss in Loss}
    assert names == {"EXPIRED", "TAKEN", "FORCED", "DELETED", "UNREACHABLE"}
    # each reads as the end of a sentence
    for loss in Loss:
        assert loss.value[0].islower() or loss.value.startswith("DynamoDB")
        assert not loss.value.endswith(".")


def test_holder_is_described_with_its_end_in_words():
    described = exceptions.describe_holder("me", 1700000000.25)
    assert "held by 'me' until 2023-11-14T22:13:20.250+00:00" in described
    assert "an unnamed owner" in exceptions.describe_holder(None, 1.0)
    assert exceptions.describe_holder("me", None) == "its holder is not known"
    # milliseconds, written into the row by hand: an end that no calendar has does not hide the error
    assert "held by 'me'" in exceptions.describe_holder("me", 1.7e12)
