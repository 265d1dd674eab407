"""Credentials in a model's Meta that are replaced, as temporary ones are, are used from then on."""

from __future__ import annotations

import itertools
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hearing import until
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model
from stores import store_for

from dev.faultproxy import FaultProxy, Seen, fault_proxy
from pynamodb_mutex import LockItem, Mutex, RowLockMixin
from pynamodb_mutex.testing import Engine, FakeClock

# what is signed with is not the engine's concern
pytestmark = pytest.mark.real("embedded")


def lock_table(proxy: FaultProxy) -> type[Model]:
    class Locks(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    Locks.create_table()
    return elsewhere(Locks, proxy)


def row_table(proxy: FaultProxy) -> type[Model]:
    class Row(RowLockMixin, Model):
        class Meta:
            table_name = f"rows-{uuid.uuid4().hex}"
            billing_mode = "PAY_PER_REQUEST"

        name = UnicodeAttribute(hash_key=True)

    Row.create_table(wait=True)
    Row("a").save()
    return elsewhere(Row, proxy)


def elsewhere(model: type[Any], proxy: FaultProxy) -> type[Model]:
    class Client(model):
        _connection = None

        class Meta(model.Meta):
            host = proxy.url

    name(Client, "first")
    return Client


def name(model: type[Model], who: str | None) -> None:
    """Let a model name somebody's credentials; those of the environment with None."""
    meta: Any = model.Meta
    meta.aws_access_key_id = who
    meta.aws_secret_access_key = who
    meta.aws_session_token = f"token-of-{who}" if who else None


def signer(seen: Seen) -> tuple[str, str | None]:
    found = re.search("Credential=([^/]+)/", seen.headers["Authorization"])
    assert found is not None
    return found[1], seen.headers.get("X-Amz-Security-Token")


MAKES = {
    "lock table": (lock_table, lambda model, **more: Mutex.for_key("a", model=model, **more)),
    "rows": (row_table, lambda model, **more: model.locked("a", **more)),
}


@pytest.mark.parametrize(("make", "lock"), MAKES.values(), ids=MAKES)
def test_fresh_credentials_are_used_from_the_next_request_on(
    engine: Engine, make: Callable[[FaultProxy], type[Model]], lock: Callable[..., Mutex]
) -> None:
    with fault_proxy(engine) as proxy:
        model = make(proxy)
        mutex = lock(model)
        mutex.acquire()
        store = store_for(model)
        name(model, "second")
        mutex.renew()
        mutex.release()
        assert [signer(seen) for seen in proxy.of("acquire", "renew", "release")] == [
            ("first", "token-of-first"),
            ("second", "token-of-second"),
            ("second", "token-of-second"),
        ]
        # those of the environment again
        name(model, None)
        assert mutex.acquire()
        mutex.release()
        assert signer(proxy.of("release")[-1]) not in {
            ("first", "token-of-first"),
            ("second", "token-of-second"),
        }
        assert store_for(model) is store


def test_lock_that_is_held_is_renewed_with_fresh_credentials(engine: Engine) -> None:
    with fault_proxy(engine) as proxy:
        model = lock_table(proxy)
        with FakeClock() as clock, Mutex.for_key("a", model=model) as mutex:
            clock.advance(10)
            until(lambda: mutex.remaining > 25)
            name(model, "second")
            clock.advance(10)
            renewals = proxy.wait(2, "renew")
        assert signer(renewals[-1]) == ("second", "token-of-second")


def test_waiter_keeps_its_place_when_credentials_are_replaced(engine: Engine) -> None:
    with fault_proxy(engine) as proxy:
        model = lock_table(proxy)
        mutex = Mutex.for_key("a", model=model)
        mutex.acquire()
        waiting = threading.Thread(target=lambda: Mutex.for_key("a", model=model).acquire())
        waiting.start()
        proxy.wait(1, "GetItem")
        name(model, "second")
        # handed over within the process, by who knows only the new credentials
        mutex.release()
        waiting.join(60)
        assert [signer(seen)[0] for seen in proxy.of("hand_over")] == ["second"]


def test_threads_make_one_connection_for_fresh_credentials(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fault_proxy(engine) as proxy:
        model = lock_table(proxy)
        Mutex.for_key("a", model=model).locked()
        name(model, "second")
        store = store_for(model)
        connection = store.connection
        connected, is_new = connection._connected, connection._has_new_credentials
        compared, made = itertools.count(1), []
        all_compared = threading.Event()

        def compare() -> Any:
            found = is_new()
            if next(compared) == 4:
                all_compared.set()
            return found

        def connect(credentials: Any) -> Any:
            assert all_compared.wait(60)
            made.append(credentials)
            return connected(credentials)

        monkeypatch.setattr(connection, "_has_new_credentials", compare)
        monkeypatch.setattr(connection, "_connected", connect)
        threads = [
            threading.Thread(target=Mutex.for_key("a", model=model).locked) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert made == [("second", "second", "token-of-second")]
