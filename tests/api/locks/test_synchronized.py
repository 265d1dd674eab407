"""`synchronized`, whose key is made from the call's arguments; and what any lock refuses to decorate."""

import asyncio
import datetime as dt
import functools
import inspect
import time
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace

import pytest
from pynamodb.attributes import UnicodeAttribute

from pynamodb_mutex import InvalidKeyError, LockItem, Mutex, exceptions, synchronized
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import held_elsewhere


def keys_of(table):
    return sorted(item.key for item in table.held())


def plain(order_id):
    pass


ORDER = SimpleNamespace(id=7, items=["x", "y"])


@pytest.mark.parametrize(
    ("template", "function", "call", "key"),
    [
        ("order-{order_id}", plain, ((7,), {}), "order-7"),
        ("order-{order_id}", plain, ((), {"order_id": 7}), "order-7"),
        ("order-{order_id}", lambda *, order_id: None, ((), {"order_id": 7}), "order-7"),
        ("order-{order_id}", lambda order_id, /: None, ((7,), {}), "order-7"),
        ("order-{order_id}", lambda order_id=7: None, ((), {}), "order-7"),
        ("{order_id.id}-{order_id.items[1]}", plain, ((ORDER,), {}), "7-y"),
        ("{order_id:%Y-%m-%d}", plain, ((dt.date(2026, 1, 2),), {}), "2026-01-02"),
        ("{order_id!r:>5}", plain, (("a",), {}), "  'a'"),
        ("{order_id[0]:{order_id[1]}}", plain, (((7, "03"),), {}), "007"),
        ("{self.id}/{order_id}", lambda self, order_id: None, ((ORDER, 8), {}), "7/8"),
        ("{args[0]}-{kwargs[order]}", lambda *args, **kwargs: None, ((1,), {"order": 2}), "1-2"),
        ("{kwargs[self]}", lambda **kwargs: None, ((), {"self": 3}), "3"),
        ("{{nightly}}", plain, ((7,), {}), "{nightly}"),
    ],
)
def test_key_is_made_from_the_arguments(table, template, function, call, key):
    args, kwargs = call
    work = functools.wraps(function)(lambda *_, **__: keys_of(table))  # keeps the signature
    assert synchronized(template)(work)(*args, **kwargs) == [key]
    assert keys_of(table) == []


def test_template_or_option_that_cannot_work_is_refused_when_decorating():
    for template in (
        *["order-{id}", "{order_id:{width}}", "{order_id[0]}-{id.order_id}", "{}", "{0}"],
        *["{order_id:{}}", "{order_id", "order_id}", "{order_id!z}", "{order_id.}"],
        *["{order_id[0}", "{order_id:{order_id:{order_id}}}"],
    ):
        decorate = synchronized(template)
        with pytest.raises(ValueError, match="no parameter 'id'" if "{id}" in template else None):
            decorate(plain)
    for template in (plain, None, 7):
        with pytest.raises(TypeError, match="template"):
            synchronized(template)
    for error, wrong in (
        (ValueError, [{"lease": 0.1}, {"on_locked": "wait a moment"}]),
        (TypeError, [{"lease": "30"}, {"leese": 30}, {"model": plain}]),
    ):
        for options in wrong:
            with pytest.raises(error):
                synchronized("a", **options)


def test_arguments_that_make_no_key_or_no_call(silence):
    for error, template, arguments in (
        (InvalidKeyError, "{order_id}", [""]),
        (InvalidKeyError, "{order_id.id}", [7]),
        (TypeError, "{order_id}", []),
    ):
        with pytest.raises(error, match="order_id" if not arguments else None):
            synchronized(template)(plain)(*arguments)


def test_function_that_would_run_without_its_lock_is_refused():
    def generator():
        yield

    async def async_generator():
        yield

    async def coroutine():
        pass

    def forms(function):
        """Return a function, a partial one, and an object that is called like it."""
        called = type("Called", (), {"__call__": function})()
        return function, functools.partial(function), called

    of_threads = [Mutex.for_key("a"), Mutex.for_keys(["a", "b"])]
    for decorate in (synchronized("a"), *of_threads):
        managers = contextmanager(generator), asynccontextmanager(async_generator)
        for function in (*forms(generator), async_generator, *managers):
            with pytest.raises(TypeError, match="inside the generator"):
                decorate(function)
        for kind in (classmethod, staticmethod):
            with pytest.raises(TypeError, match=f"@{kind.__name__} above"):
                decorate(kind(plain))
    for decorate in of_threads:
        for function in forms(coroutine):
            with pytest.raises(TypeError, match=r"async|event loop"):
                decorate(function)


def test_coroutine_that_another_decorator_has_hidden_does_not_run_outside_the_lock(table):
    async def work():
        raise AssertionError

    @functools.wraps(work)
    def logged():
        return work()

    for decorate in (synchronized("a"), Mutex.for_key("a")):
        for hidden in (logged, lambda: AsyncMutex.for_key("b").acquire()):
            with pytest.raises(TypeError, match="outside the lock"):
                decorate(hidden)()
    assert keys_of(table) == []


def test_methods_of_all_kinds_are_locked_and_look_like_themselves(table):
    class Orders:
        name = "shop"

        @synchronized("{self.name}-{order_id}")
        def ship(self, order_id):
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

        @Mutex.for_key("till")
        def put(self):
            return self, keys_of(table)

    orders = Orders()
    assert orders.ship(7) == ["shop-7"]
    assert Orders.ship_all() == ["shop-all"]
    assert Orders.bill(order_id=8) == ["static-8"]
    assert orders.put() == (orders, ["till"])
    assert (Orders.ship.__name__, Orders.ship.__doc__) == ("ship", "Ship it.")
    assert list(inspect.signature(Orders.ship).parameters) == ["self", "order_id"]
    assert keys_of(table) == []


@pytest.fixture(params=["function", "coroutine function"])
def decorate(request):
    """Decorate a function, or the coroutine function that does the same; return what calls it."""

    def decorate(work, *args, **options):
        if request.param == "function":
            return synchronized(*args, **options)(work)

        @functools.wraps(work)
        async def coroutine(*args, **kwargs):
            await asyncio.sleep(0)
            return work(*args, **kwargs)

        decorated = synchronized(*args, **options)(coroutine)
        assert inspect.iscoroutinefunction(decorated)
        return lambda *args, **kwargs: asyncio.run(decorated(*args, **kwargs))

    return decorate


def test_call_takes_the_lock_of_its_key_with_the_options_given(table, decorate):
    class TeamLock(LockItem):
        team = UnicodeAttribute(default="core")

    def work(order_id):
        item = TeamLock.get(f"order-{order_id}")
        return keys_of(table), (item.owner, item.data, item.team)

    options = {"timeout": 0, "model": TeamLock, "owner": "me", "data": [1]}
    call = decorate(work, "order-{order_id}", **options)
    with held_elsewhere("order-7"):
        assert call(8) == (["order-7", "order-8"], ("me", [1], "core"))
        with pytest.raises(exceptions.MutexTimeoutError) as raised:
            call(7)
    assert raised.value.owner == "elsewhere"
    assert call(order_id=7)[0] == ["order-7"]
    assert keys_of(table) == []


def test_exception_of_the_call_is_raised_and_a_loss_reported(table, decorate):
    def work(error):
        if error is not None:
            raise error
        table.force_release("a")

    call = decorate(work, "a", on_locked="skip")
    with pytest.raises(exceptions.MutexTimeoutError, match="own"):
        call(exceptions.MutexTimeoutError("of the body's own"))
    assert keys_of(table) == []
    with pytest.raises(exceptions.MutexLostError):
        call(None)


def test_call_is_skipped_while_another_holds_the_lock(table, decorate):
    options = {"on_locked": "skip", "poll": (0.02, 0.05)}
    for timeout, waits in (({}, 0), ({"timeout": None}, 0), ({"timeout": 20}, 20)):
        job = decorate(lambda day: f"done on {day}", "job-{day}", **options, **timeout)
        began = time.monotonic()
        with held_elsewhere("job-monday"):
            assert job("monday") is None
            assert time.monotonic() - began == pytest.approx(waits, abs=0.1)
            assert job("tuesday") == "done on tuesday"
        assert job("monday") == "done on monday"
    # a claim of the shortest lease ends soon
    with held_elsewhere("job-monday", lease=0.5):
        assert job("monday") == "done on monday"
