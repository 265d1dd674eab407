"""The options of Mutex.for_key: what cannot work is refused at once, and nothing is sent."""

from __future__ import annotations

import math

import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model
from pynamodb.signals import pre_dynamodb_send

from pynamodb_mutex import InvalidKeyError, LockItem, Mutex, MutexError, Semaphore

CENTURY = 100 * 365.25 * 86400


@pytest.fixture(autouse=True)
def silence():
    """Fail a test in which anything was sent."""
    sent = []

    def note(_sender, operation_name, **_):
        sent.append(operation_name)

    with pre_dynamodb_send.connected_to(note):
        yield
    assert not sent


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "1 to 2048 bytes"),
        ("k" * 2049, "2049"),
        ("é" * 1025, "2050"),
        ("🔒" * 513, "2052"),
        ("a\ud800b", "UTF-8"),
        (b"a", "not bytes"),
        (None, "not NoneType"),
        (7, "not int"),
        (["a"], "not list"),
    ],
    ids=["empty", "2049", "2050", "2052", "surrogate", "bytes", "None", "int", "list"],
)
def test_keys_that_dynamodb_would_not_take(key, message):
    for call in (Mutex.for_key, LockItem.force_release):
        with pytest.raises(InvalidKeyError, match=message) as caught:
            call(key)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, MutexError)
        assert caught.value.key == (key if isinstance(key, str) else None)


class Elsewhere(Model):
    class Meta:
        table_name = "elsewhere"

    key = UnicodeAttribute(hash_key=True)


@pytest.mark.parametrize("model", [Elsewhere, LockItem("a"), "LockItem", None, int], ids=repr)
def test_a_model_that_is_no_lock_table(model):
    with pytest.raises(TypeError, match="model must be LockItem or a subclass"):
        Mutex.for_key("a", model=model)


def test_a_range_key_without_a_default():
    class Ranged(LockItem):
        class Meta(LockItem.Meta):
            table_name = "ranged"

        kind = UnicodeAttribute(range_key=True)

    with pytest.raises(InvalidKeyError, match=r"Ranged\.kind .* default"):
        Mutex.for_key("a", model=Ranged)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("lease", [0, -1, 0.49, math.nan, math.inf, -math.inf]),
        ("lease", [CENTURY + 1, 1e12, 10**400]),
        ("timeout", [-2, -0.1, math.nan, math.inf, CENTURY + 1, 10**400, -(10**400)]),
        ("max_hold", [0, -1, math.nan, math.inf, 1e12]),
        ("owner", [""]),
        ("poll", [(0, 1), (-1, 1), (2, 1), (0.1, math.inf), (math.nan, 1), (1, 1e12)]),
    ],
)
def test_values_that_no_lock_can_have(option, values):
    for value in values:
        with pytest.raises(ValueError, match=option):
            Mutex.for_key("a", **{option: value})


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("lease", [None, "30", True, [1], 1j]),
        ("timeout", ["1", False]),
        ("max_hold", ["1", True]),
        ("owner", [7, b"me", ["me"]]),
        ("on_lost", ["print", 7]),
        ("poll", [0.1, [0.1, 1.0], (0.1,), (0.1, 1, 2), None, "ab", ("a", "b"), (True, 1)]),
    ],
)
def test_values_of_a_wrong_type(option, values):
    for value in values:
        with pytest.raises(TypeError, match=option):
            Mutex.for_key("a", **{option: value})


def test_no_timeout_is_as_if_none_were_given():
    for make in (
        lambda **options: Mutex.for_key("a", **options),
        lambda **options: Mutex.for_keys(["a", "b"], **options),
        lambda **options: Mutex.any_of(["a", "b"], **options),
        lambda **options: Semaphore.for_key("a", permits=2, **options),
    ):
        assert make(timeout=None)._options == make()._options == make(timeout=-1)._options
    own = Mutex.for_key("a", timeout=0)._options
    assert own.patience(blocking=True, timeout=None) == 0
    assert own.patience(blocking=True, timeout=-1) == math.inf


@pytest.mark.parametrize("data", [math.nan, [math.inf], {"a": -math.inf}])
def test_data_that_json_has_no_name_for(data):
    with pytest.raises(ValueError, match="JSON"):
        Mutex.for_key("a", data=data)
    assert Mutex.for_key("a", data={"NaN": "Infinity"})._options.data == '{"NaN": "Infinity"}'


@pytest.mark.parametrize(
    ("retention", "error"),
    [(-1, ValueError), (math.nan, ValueError), (CENTURY + 1, ValueError), ("7 days", TypeError)],
)
def test_retention_that_no_row_can_have(retention, error):
    with pytest.raises(error, match="retention"):
        type("Kept", (LockItem,), {"retention": retention})


@pytest.mark.parametrize("data", [object(), {1, 2}, b"x", {"a": object()}, [1j]])
def test_data_that_is_no_json(data):
    with pytest.raises(TypeError, match="JSON"):
        Mutex.for_key("a", data=data)


def test_an_owner_with_lone_surrogates():
    with pytest.raises(ValueError, match="owner"):
        Mutex.for_key("a", owner="me\ud800")


def test_options_are_keywords_and_known():
    with pytest.raises(TypeError):
        Mutex.for_key("a", LockItem)
    with pytest.raises(TypeError, match=r"Mutex\.for_key\(\) got .* 'leese'"):
        Mutex.for_key("a", leese=3)


@pytest.mark.parametrize(
    "options",
    [
        {"lease": 0.5},
        {"lease": 1},
        {"lease": 86400},
        {"lease": CENTURY, "timeout": CENTURY, "max_hold": CENTURY, "poll": (CENTURY, CENTURY)},
        {"timeout": -1},
        {"timeout": -1.0},
        {"timeout": 0},
        {"max_hold": 0.1},
        {"poll": (0.001, 0.001)},
        {"poll": (1, 60)},
        {"on_lost": print},
        {"on_lost": None, "owner": None, "max_hold": None, "data": None},
    ],
    ids=repr,
)
def test_what_can_work_is_taken(options):
    assert not Mutex.for_key("a", **options).held


@pytest.mark.parametrize("lease", [0, 0.4, -1, math.nan, math.inf, CENTURY + 1, 10**400])
def test_a_lease_to_renew_for_is_checked_first(lease):
    with pytest.raises(ValueError, match="lease"):
        Mutex.for_key("a").renew(lease)


@pytest.mark.parametrize("at_least", [-1, 30, 31, math.nan, math.inf])
def test_more_than_a_lease_is_never_left(at_least):
    with pytest.raises(ValueError, match="at_least"):
        Mutex.for_key("a", lease=30).ensure_held(at_least)


@pytest.mark.parametrize("wrong", ["1", True, None])
def test_durations_of_a_wrong_type(wrong):
    mutex = Mutex.for_key("a")
    with pytest.raises(TypeError, match="at_least"):
        mutex.ensure_held(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match="lease"):
            mutex.renew(wrong)
