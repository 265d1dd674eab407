"""Calls that cannot work: refused at once, with an error that names the mistake, and nothing is sent; and the exceptions."""

import asyncio
import copy
import math
import pickle
import re
from datetime import datetime, timedelta, timezone
from functools import partial
from importlib.metadata import version

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import PynamoDBException, UpdateError
from row_models import PLAIN, Account, made

import pynamodb_mutex
from pynamodb_mutex import LockItem, Loss, Mutex, RowLock, Semaphore, aio, exceptions, synchronized
from pynamodb_mutex._lock.protocol.claim import Claim
from pynamodb_mutex.exceptions import InvalidKeyError, MutexError, MutexLostError, MutexNotHeldError
from pynamodb_mutex.groups import AnyOf, MutexGroup, RowLocks

END = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
CENTURY = 100 * 365.25 * 86400
BOOLEANS = ("auto_renew", "reentrant", "delete_on_release", "fair", "must_exist", "shared")


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
    hundred = [str(number) for number in range(100)]
    for error, match, values in (
        (TypeError, "several", ["abc", Mutex.for_key("a"), 7, None]),
        (ValueError, f"{allowed}, not 0", [[]]),
        (ValueError, f"{allowed}, not 101", [[*hundred, "a"]]),
        (InvalidKeyError, None, [["a", ""], ["a", 7], ["a", "x" * 2049]]),
        ((TypeError, InvalidKeyError), "not .*Semaphore", [[Semaphore.for_key("a", permits=2)]]),
    ):
        for value in values:
            with pytest.raises(error, match=match):
                make(value)
    with pytest.raises(ValueError, match="lease"):
        make(["a"], lease=0.1)
    assert make(iter(hundred)).keys == tuple(hundred)
    assert make(["a", "b", "a"]).keys == ("a", "b")


@pytest.mark.parametrize("make", [Mutex.for_keys, Mutex.any_of, aio.AsyncMutex.for_keys])
def test_handles_that_wrap_a_lock_are_no_keys(make):
    """One of `any_of` or of a semaphore would pass for its first key."""
    handles = [
        aio.AsyncMutex.for_key("a"),
        aio.AsyncMutex.any_of(["a", "b"]),
        aio.AsyncSemaphore.for_key("a", permits=2),
    ]
    for handle in handles:
        with pytest.raises(InvalidKeyError, match=f"not {type(handle).__name__}"):
            make([handle, "c"])


def test_semaphore_that_cannot_be_is_refused():
    for error, match, values in (
        (TypeError, "permits must be an int", [("a", 1.0), ("a", "2"), ("a", None), ("a", True)]),
        *[(ValueError, f"1 to 100 permits, not {n}", [("a", n)]) for n in (0, -1, 101)],
        # the key must leave room for the permit's name
        (InvalidKeyError, None, [("x" * 2038, 1), ("é" * 1019, 1), ("", 1), (7, 1)]),
    ):
        for key, permits in values:
            with pytest.raises(error, match=match):
                Semaphore.for_key(key, permits=permits)
    with pytest.raises(ValueError, match="lease"):
        Semaphore.for_key("a", permits=1, lease=0.1)
    longest = Semaphore.for_key("x" + "é" * 1018, permits=100)
    assert len(longest.keys[-1].encode()) == 2048


def test_model_that_is_no_lock_table_is_refused():
    plain = made({"key": UnicodeAttribute(hash_key=True)}, PLAIN)
    for model in (plain, LockItem("a"), "LockItem", None, int):
        with pytest.raises(TypeError, match="model must be LockItem or a subclass"):
            Mutex.for_key("a", model=model)

    ranged = type("Ranged", (LockItem,), {"kind": UnicodeAttribute(range_key=True)})
    with pytest.raises(InvalidKeyError, match=r"Ranged\.kind .* default"):
        Mutex.for_key("a", model=ranged)


@pytest.mark.parametrize(
    ("error", "option", "values"),
    [
        (ValueError, "lease", [0, -1, 0.49, math.nan, math.inf, -math.inf]),
        (ValueError, "lease", [CENTURY + 1, 1e12, 10**400]),
        (ValueError, "timeout", [-2, -0.1, math.nan, math.inf, CENTURY + 1, 10**400, -(10**400)]),
        (ValueError, "max_hold", [0, -1, math.nan, math.inf, 1e12]),
        (ValueError, "owner", ["", "me\ud800"]),
        (ValueError, "poll", [(0, 1), (-1, 1), (2, 1), (0.1, math.inf), (math.nan, 1), (1, 1e12)]),
        (ValueError, "data", [math.nan, [math.inf], {"a": -math.inf}, "x" * 409_599]),
        *[(TypeError, name, ["no", "", 1, 0, None]) for name in BOOLEANS],
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
        for kind in (Mutex, aio.AsyncMutex):
            with pytest.raises(error, match="JSON" if option == "data" else option):
                kind.for_key("a", **{option: value})


def test_cancel_on_loss_must_be_a_bool():
    with pytest.raises(TypeError, match="cancel_on_loss must be True or False, not 'no'"):
        Account.alocked("a", cancel_on_loss="no")


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
    one, two = partial(Mutex.for_key, "a"), ["a", "b"]
    several, any_of = partial(Mutex.for_keys, two), partial(Mutex.any_of, two)
    for make in (one, several, any_of, partial(Semaphore.for_key, "a", permits=2)):
        waits = {
            make(**given)._options.timeout for given in ({}, {"timeout": None}, {"timeout": -1})
        }
        assert waits == {-1.0}
    wait = partial(one(timeout=0)._options.seconds_to_wait, blocking=True)
    assert (wait(timeout=None), wait(timeout=-1)) == (0, math.inf)


def test_retention_that_no_row_can_have_is_refused():
    for error, values in ((ValueError, (-1, math.nan, CENTURY + 1)), (TypeError, ("7 days",))):
        for retention in values:
            with pytest.raises(error, match="retention"):
                type("Kept", (LockItem,), {"retention": retention})


def test_lock_is_not_copied_and_the_error_says_how_to_make_it():
    with pytest.raises(TypeError, match=r"Mutex 'a' .* by Mutex\.for_key\("):
        copy.copy(Mutex.for_key("a"))
    with pytest.raises(TypeError, match=r"RowLock .* by locked\(") as caught:
        copy.copy(Account.locked("a"))
    assert "for_key" not in str(caught.value)


THREADS = {
    "a mutex": Mutex.for_key("a"),
    "any of some": Mutex.any_of(["a", "b"]),
    "a group": Mutex.for_keys(["a", "b"]),
    "a row": Account.locked("a"),
    "rows": Account.locked_all(["a", "b"]),
}
TASKS = {
    "a mutex": aio.AsyncMutex.for_key("a"),
    "a group": aio.AsyncMutex.for_keys(["a", "b"]),
    "a row": Account.alocked("a"),
    "rows": Account.alocked_all(["a", "b"]),
}


@pytest.mark.parametrize("lock", THREADS.values(), ids=THREADS)
def test_async_block_of_a_lock_for_threads_names_the_other_one(lock):
    async def block():
        async with lock:
            pass

    name = type(lock).__name__
    with pytest.raises(
        TypeError,
        match=f"^{name} is for threads: use 'with', or (an AsyncMutex|the model's alocked)",
    ):
        asyncio.run(block())


@pytest.mark.parametrize("lock", TASKS.values(), ids=TASKS)
def test_plain_block_of_a_lock_for_tasks_names_the_other_one(lock):
    name = type(lock).__name__
    with pytest.raises(
        TypeError, match=f"^{name} is for tasks: use 'async with', or (a Mutex|the model's locked)"
    ):
        lock.__class__.__enter__(lock)
    with pytest.raises(TypeError, match="is for tasks"), lock:
        pass


@pytest.mark.parametrize("call", ["acquire", "release", "renew", "locked", "save_data"])
def test_call_of_a_lock_for_tasks_without_asyncio_says_what_is_needed(call):
    """As in trio, which drives coroutines in the same way."""
    calling = getattr(aio.AsyncMutex.for_key("a"), call)
    with pytest.raises((RuntimeError, MutexNotHeldError), match=r"asyncio|is not held"):
        calling(*[1] if call == "save_data" else []).send(None)


@pytest.mark.parametrize("lock", [*THREADS.values(), *TASKS.values()])
def test_error_of_python_names_a_lock_and_not_what_the_library_calls_it_inside(lock):
    for name in ("acquire", "release", "renew", "ensure_held", "locked"):
        with pytest.raises(TypeError, match=r"^\w*\.\w*\(\)") as raised:
            getattr(lock, name)(1, 2, 3)
        assert "Handle" not in str(raised.value)
    with pytest.raises(TypeError, match=rf"^<{type(lock).__name__} .*has no truth value"):
        bool(lock)


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
        (aio.AsyncRowLock, "alocked(...) of the row's model", {"attach"}),
        (aio.AsyncRowLocks, "alocked_all([...]) of the rows' model", set(CALLS)),
    ],
)
def test_what_makes_no_object_of_a_class_names_what_does(kind, instead, makers):
    name = kind.__name__
    message = re.escape(f"{name} has no public constructor: call {instead}")
    for args, options in (((), {}), (("x",), {}), (("x", 3), {}), ((), {"key": "x", "lease": 3})):
        with pytest.raises(TypeError, match=f"^{message}$"):
            kind(*args, **options)
    # the methods that it inherits, if any
    base = "AsyncMutex" if issubclass(kind, aio.AsyncMutex) else "Mutex"
    for method in set(CALLS) - makers:
        message = (
            f"{name}.{method}() makes no {name}: call {instead} for one, or {base}.{method}(...)"
        )
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            CALLS[method](kind)


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
        ("Account.alocked", partial(Account.alocked, "a")),
        ("Account.alocked_all", partial(Account.alocked_all, ["a", "b"])),
        ("synchronized", partial(synchronized, "x")),
    ],
)
def test_unknown_option_names_the_function_that_was_called(called, call):
    message = re.escape(f"{called}() got an unexpected keyword argument 'lese'")
    # Python 3.13 adds to its own
    with pytest.raises(TypeError, match=rf"^{message}(\. Did you mean 'lease'\?)?$"):
        call(lease=3, lese=3)


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
    exceptions.PayloadMismatchError: {MutexError, ValueError},
    exceptions.OutcomeUnknownError: {MutexError},
    exceptions.NotRecordedError: {MutexLostError},
    exceptions.ResultUnavailableError: {MutexError},
}


def test_all_names_are_public():
    assert set(exceptions.__all__) == {kind.__name__ for kind in BASES} | {"Loss"}
    assert {getattr(pynamodb_mutex, kind.__name__) for kind in BASES} == set(BASES)
    assert set(exceptions.__all__) <= set(pynamodb_mutex.__all__)


def test_package_shows_its_names_and_version_and_nothing_else():
    assert set(dir(pynamodb_mutex)) == {*pynamodb_mutex.__all__, "__version__"}
    assert set(dir(aio)) == {*aio.__all__}
    assert pynamodb_mutex.__version__ == version("pynamodb-mutex")
    assert "`once`" in pynamodb_mutex.__doc__
    assert "`pynamodb_mutex.runs`" in pynamodb_mutex.__doc__


def test_timedeltas_are_durations_of_the_same_limits():
    for option, wrong in (("lease", 0.4), ("timeout", -2), ("hold_at_least", 0), ("max_hold", 0)):
        for value in (wrong, timedelta(seconds=wrong)):
            with pytest.raises(ValueError, match=option):
                Mutex.for_key("a", **{option: value})
    for poll in ((timedelta(0), 1.0), (2.0, timedelta(seconds=1))):
        with pytest.raises(ValueError, match="poll needs 0 < shortest <= longest"):
            Mutex.for_key("a", poll=poll)
    with pytest.raises(TypeError, match="poll is a tuple"):
        Mutex.for_key("a", poll=timedelta(seconds=1))


@pytest.mark.parametrize("kind", BASES)
def test_each_has_its_bases_and_survives_pickling_and_copying_but_for_its_cause(kind):
    assert set(kind.__bases__) == BASES[kind]
    empty = kind()
    assert (empty.key, empty.owner, empty.expires_at, empty.cause) == (None, None, None, None)
    assert str(empty) == empty.msg == "Mutex error"
    cause = ValueError("why")
    error = kind("what: é", cause, key="a", owner="me", expires_at=END)
    assert str(error) == error.msg == "what: é"
    assert (error.key, error.owner, error.expires_at, error.cause) == ("a", "me", END, cause)
    error.extra = [1]
    error.loss, error.applied, error.attribute = Loss.TAKEN, None, "version"
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


def test_holder_is_described_with_its_end_in_words():
    mine = Claim(owner="me", expires_at=1700000000.25)
    assert "held by 'me' until 2023-11-14T22:13:20.250+00:00" in mine.described
    kept = "held by nobody (released, and kept until 1970-01-01T00:00:01.000+00:00 (DynamoDB's time) by hold_at_least)"
    assert Claim(expires_at=1.0).described == kept
    assert Claim(owner="me").described == "its holder is not known"
    # milliseconds, written into the row by hand: an end that no calendar has does not hide the error
    assert "held by 'me' until 1700000000000.0 s" in mine._replace(expires_at=1.7e12).described
    readers = {"token": {"t1 the first": 1.0, "t2 second": 2.0}}
    shared = Claim("token", expires_at=3.0, owner="me", shared_by=readers).described
    assert "held by 2 reader(s): 'the first', 'second' until 1970-01-01T00:00:02" in shared
