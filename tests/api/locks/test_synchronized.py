"""`synchronized`: a lock whose key the call's arguments make."""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from types import SimpleNamespace

import pytest

from pynamodb_mutex import (
    InvalidKeyError,
    LockItem,
    Mutex,
    MutexLostError,
    MutexTimeoutError,
    synchronized,
)
from pynamodb_mutex.testing import held_elsewhere


def keys_of(table):
    return sorted(item.key for item in table.held())


# -- the key ---------------------------------------------------------------------------------------


def _plain(order_id):
    pass


def _keyword_only(*, order_id):
    pass


def _positional_only(order_id, /):
    pass


def _default(order_id=7):
    pass


def _self(self, order_id):
    pass


def _various(*args, **kwargs):
    pass


ORDER = SimpleNamespace(id=7, items=["x", "y"])


@pytest.mark.parametrize(
    ("template", "function", "call", "key"),
    [
        ("order-{order_id}", _plain, ((7,), {}), "order-7"),
        ("order-{order_id}", _plain, ((), {"order_id": 7}), "order-7"),
        ("order-{order_id}", _keyword_only, ((), {"order_id": 7}), "order-7"),
        ("order-{order_id}", _positional_only, ((7,), {}), "order-7"),
        ("order-{order_id}", _default, ((), {}), "order-7"),
        ("{order_id.id}-{order_id.items[1]}", _plain, ((ORDER,), {}), "7-y"),
        ("{order_id:%Y-%m-%d}", _plain, ((dt.date(2026, 1, 2),), {}), "2026-01-02"),
        ("{order_id!r:>5}", _plain, (("a",), {}), "  'a'"),
        ("{order_id[0]:{order_id[1]}}", _plain, (((7, "03"),), {}), "007"),
        ("{self.id}/{order_id}", _self, ((ORDER, 8), {}), "7/8"),
        ("{args[0]}-{kwargs[order]}", _various, ((1,), {"order": 2}), "1-2"),
        ("{{nightly}}", _plain, ((7,), {}), "{nightly}"),
    ],
)
def test_the_key_is_made_from_the_arguments(table, template, function, call, key):
    args, kwargs = call
    seen = []

    @functools.wraps(function)  # keeps the signature
    def work(*_, **__):
        seen.extend(keys_of(table))
        return "result"

    assert synchronized(template)(work)(*args, **kwargs) == "result"
    assert seen == [key]
    assert keys_of(table) == []


@pytest.mark.parametrize(
    "template",
    [
        "order-{id}",
        "{order_id:{width}}",
        "{order_id[0]}-{id.order_id}",
        "{}",
        "{0}",
        "{order_id:{}}",
        "{order_id",
        "order_id}",
        "{order_id!z}",
        "{order_id.}",
        "{order_id[0}",
        "{order_id:{order_id:{order_id}}}",
    ],
)
def test_a_template_that_cannot_work_is_refused_when_decorating(template):
    decorate = synchronized(template)
    with pytest.raises(ValueError):
        decorate(_plain)


def test_what_is_no_parameter_is_named():
    with pytest.raises(ValueError, match="no parameter 'id'"):
        synchronized("order-{id}")(_plain)


@pytest.mark.parametrize("template", [_plain, None, 7])
def test_without_a_template_it_says_so(template):
    with pytest.raises(TypeError, match="template"):
        synchronized(template)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"lease": 0.1}, ValueError),
        ({"lease": "30"}, TypeError),
        ({"leese": 30}, TypeError),
        ({"model": _plain}, TypeError),
        ({"on_locked": "wait a moment"}, ValueError),
    ],
)
def test_bad_options_are_refused_when_decorating(options, error):
    with pytest.raises(error):
        synchronized("a", **options)


def test_arguments_that_make_no_key_or_no_call(table):
    work = synchronized("{order_id}")(_plain)
    with pytest.raises(InvalidKeyError):
        work("")
    with pytest.raises(AttributeError):
        synchronized("{order_id.id}")(_plain)(7)
    with pytest.raises(TypeError, match="order_id"):
        work()


# -- what is decorated -----------------------------------------------------------------------------


def _generator(order_id):
    yield


async def _async_generator(order_id):
    yield


class _GeneratorCallable:
    def __call__(self, order_id):
        yield


@pytest.mark.parametrize(
    "function",
    [_generator, _async_generator, functools.partial(_generator), _GeneratorCallable()],
)
@pytest.mark.parametrize("decorate", [synchronized("a"), Mutex.for_key("a")])
def test_generators_are_refused(decorate, function):
    with pytest.raises(TypeError, match="inside the generator"):
        decorate(function)


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
@pytest.mark.parametrize("decorate", [synchronized("a"), Mutex.for_key("a")])
def test_the_order_of_decorators_is_reported(decorate, kind):
    with pytest.raises(TypeError, match=f"@{kind.__name__} above"):
        decorate(kind(_plain))


def test_it_looks_like_the_function_and_locks_methods_of_all_kinds(table):
    class Orders:
        name = "shop"

        @synchronized("{self.name}-{order_id}")
        def ship(self, order_id: int) -> list[str]:
            """Ship it."""
            return keys_of(table)

        @classmethod
        @synchronized("{cls.name}-all")
        def ship_all(cls):
            return keys_of(table)

        @staticmethod
        @synchronized("static-{order_id}")
        def bill(order_id):
            return keys_of(table)

    assert Orders().ship(7) == ["shop-7"]
    assert Orders.ship_all() == ["shop-all"]
    assert Orders.bill(order_id=8) == ["static-8"]
    assert (Orders.ship.__name__, Orders.ship.__doc__) == ("ship", "Ship it.")
    assert list(inspect.signature(Orders.ship).parameters) == ["self", "order_id"]
    assert keys_of(table) == []


# -- the lock --------------------------------------------------------------------------------------


def test_another_key_is_another_lock(table):
    work = synchronized("order-{order_id}", timeout=0)(lambda order_id: order_id)
    with held_elsewhere("order-7"):
        assert work(8) == 8
        with pytest.raises(MutexTimeoutError) as raised:
            work(7)
    assert raised.value.owner == "elsewhere"
    assert work(7) == 7


def test_a_call_within_a_call_may_be_reentrant(table):
    @synchronized("a", reentrant=True)
    def count(n):
        return 0 if n == 0 else 1 + count(n - 1)

    assert count(2) == 2
    assert keys_of(table) == []


def test_what_the_call_raises_is_raised_and_the_lock_released(table):
    @synchronized("a", on_locked="skip")
    def work():
        raise MutexTimeoutError("of the body's own")

    with pytest.raises(MutexTimeoutError, match="own"):
        work()
    assert keys_of(table) == []


def test_a_loss_is_reported_after_a_clean_call(table):
    @synchronized("a")
    def work():
        table.force_release("a")

    with pytest.raises(MutexLostError):
        work()


@pytest.mark.parametrize("options", [{}, {"timeout": None}], ids=["", "None"])
def test_a_call_that_is_not_to_run_twice_is_skipped(table, options):
    ran = []

    @synchronized("job-{day}", on_locked="skip", **options)
    def job(day):
        ran.append(day)
        return "done"

    with held_elsewhere("job-monday"):
        assert job("monday") is None
        assert job("tuesday") == "done"
    assert job("monday") == "done"
    assert ran == ["tuesday", "monday"]


def test_skipping_may_wait_for_a_while(table):
    @synchronized("a", on_locked="skip", timeout=20, poll=(0.02, 0.05))
    def job():
        return "done"

    # a claim of the shortest lease ends soon
    with held_elsewhere("a", lease=0.5):
        assert job() == "done"


def test_another_table_and_options_are_passed_on(table):
    class Other(LockItem):
        class Meta(LockItem.Meta):
            pass

    @synchronized("a", model=Other, owner="me", data=[1])
    def work():
        return [(item.owner, item.data) for item in table.held()]

    assert work() == [("me", [1])]
