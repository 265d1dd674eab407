"""Region and credentials: errors that say what to set if they are missing, and credentials in Meta that are replaced."""

import asyncio
import itertools
import logging
import re
import threading
import uuid

import pytest
from botocore.exceptions import NoCredentialsError, NoRegionError, PartialCredentialsError
from hearing import until
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import GetError, PynamoDBException, ScanError, TableError
from row_tables import LOCKABLE, created, made
from stores import store_for

from dev.faultproxy import fault_proxy
from pynamodb_mutex import InvalidTicketError, LockItem, Mutex, Semaphore
from pynamodb_mutex._operations.attach import Ticket
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import FakeClock

# what is signed with is not the engine's concern
pytestmark = pytest.mark.real("embedded")

SET_A_REGION = "Set the region: by `region` in the model's Meta, by AWS_DEFAULT_REGION"
GIVE_CREDENTIALS = "Give credentials as boto3 finds them: by AWS_ACCESS_KEY_ID"


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment that names neither region nor credentials."""
    for name in ("REGION", "DEFAULT_REGION", "PROFILE", "DEFAULT_PROFILE", "ENDPOINT_URL"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "ENDPOINT_URL_DYNAMODB"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def lock_table():
    """A model that no test has used yet."""

    class Fresh(LockItem):
        class Meta:
            table_name = f"locks-{uuid.uuid4().hex}"

    return Fresh


def row_model():
    return made({"name": UnicodeAttribute(hash_key=True)}, LOCKABLE)


def attach(model):
    table = model.Meta.table_name
    return Mutex.attach(
        Ticket(table, "eu-west-1", "a", "t", 1, 1.0, 30.0, None).write(), model=model
    )


def lock(**options):
    return Mutex.for_key("a", model=lock_table(), **options)


CALLS = {
    "acquire": (lambda: lock().acquire(), GetError),
    "try": (lambda: lock().acquire(blocking=False), GetError),
    "with": (lambda: lock().__enter__(), GetError),
    "locked": (lambda: lock().locked(), GetError),
    "keys": (lambda: Mutex.for_keys(["a", "b"], model=lock_table()).acquire(), GetError),
    "any of": (lambda: Mutex.any_of(["a", "b"], model=lock_table()).acquire(), GetError),
    "permit": (lambda: Semaphore.for_key("a", permits=2, model=lock_table()).acquire(), GetError),
    "task": (lambda: asyncio.run(AsyncMutex.for_key("a", model=lock_table()).acquire()), GetError),
    "attach": (lambda: attach(lock_table()), GetError),
    "row": (lambda: row_model().locked("a").acquire(), GetError),
    "rows": (lambda: row_model().locked_all(["a", "b"]).acquire(), GetError),
    "held": (lambda: list(lock_table().held()), ScanError),
    "force": (lambda: lock_table().force_release("a"), GetError),
    "create_table": (lambda: lock_table().create_table(), TableError),
}
REGION = {"AWS_DEFAULT_REGION": "eu-west-1"}
NO_URL = {"AWS_ENDPOINT_URL_DYNAMODB": "nonsense"}


PLACES = {
    "no region": ({}, NoRegionError, SET_A_REGION),
    "no credentials": (REGION, NoCredentialsError, GIVE_CREDENTIALS),
    "half": ({**REGION, "AWS_ACCESS_KEY_ID": "half"}, PartialCredentialsError, GIVE_CREDENTIALS),
    "no URL": (REGION | NO_URL, ValueError, "Invalid endpoint: nonsense"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", CALLS)
def test_process_that_is_not_configured_raises_at_once_what_to_set(bare, caplog, place, what):
    (environment, cause, message), (call, kind) = PLACES[place], CALLS[what]
    for name, value in environment.items():
        bare.setenv(name, value)
    with caplog.at_level(logging.WARNING, "pynamodb_mutex"), pytest.raises(kind) as raised:
        call()
    error = raised.value
    assert type(error) is kind
    assert isinstance(error, PynamoDBException)
    assert error.__cause__ is error.cause
    assert isinstance(error.cause, cause)
    assert message in str(error)
    assert "to be retried" not in caplog.text


def test_region_and_credentials_that_come_later_are_used(bare, embedded_engine):
    model = lock_table()
    mutex = Mutex.for_key("a", model=model)
    with pytest.raises(GetError, match="Set the region"):
        mutex.acquire()
    bare.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    bare.setenv("AWS_ENDPOINT_URL_DYNAMODB", embedded_engine.endpoint_url)
    with pytest.raises(GetError, match="Give credentials"):
        mutex.acquire()
    bare.setenv("AWS_ACCESS_KEY_ID", "now")
    bare.setenv("AWS_SECRET_ACCESS_KEY", "there")
    model.create_table()
    with mutex:
        assert mutex.held


def test_row_without_a_region_is_not_known_to_be_free(bare):
    row = row_model()("a", lock_expires_at=1.0)
    assert row.is_locked


def test_ticket_for_another_table_is_refused_without_a_region(bare):
    ticket = Ticket("another", "eu-west-1", "a", "t", 1, 1.0, 30.0, None).write()
    with pytest.raises(InvalidTicketError, match="another"):
        Mutex.attach(ticket, model=lock_table())


def lock_table_by(proxy):
    model = lock_table()
    model.create_table()
    return elsewhere(model, proxy)


def row_table_by(proxy):
    model = row_model()
    created(model)("a").save()
    return elsewhere(model, proxy)


def elsewhere(model, proxy):
    class Client(model):
        _connection = None

        class Meta(model.Meta):
            host = proxy.url

    name(Client, "first")
    return Client


def name(model, who):
    """Let a model name somebody's credentials; those of the environment with None."""
    meta = model.Meta
    meta.aws_access_key_id = who
    meta.aws_secret_access_key = who
    meta.aws_session_token = f"token-of-{who}" if who else None


def signer(seen):
    found = re.search("Credential=([^/]+)/", seen.headers["Authorization"])
    assert found is not None
    return found[1], seen.headers.get("X-Amz-Security-Token")


MAKES = {
    "lock table": (lock_table_by, lambda model, **more: Mutex.for_key("a", model=model, **more)),
    "rows": (row_table_by, lambda model, **more: model.locked("a", **more)),
}


@pytest.mark.parametrize(("make", "lock"), MAKES.values(), ids=MAKES)
def test_fresh_credentials_are_used_from_the_next_request_on(engine, make, lock):
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


def test_lock_that_is_held_is_renewed_with_fresh_credentials(engine):
    with fault_proxy(engine) as proxy:
        model = lock_table_by(proxy)
        with FakeClock() as clock, Mutex.for_key("a", model=model) as mutex:
            clock.advance(10)
            until(lambda: mutex.remaining > 25)
            name(model, "second")
            clock.advance(10)
            renewals = proxy.wait(2, "renew")
        assert signer(renewals[-1]) == ("second", "token-of-second")


def test_waiter_keeps_its_place_when_credentials_are_replaced(engine):
    with fault_proxy(engine) as proxy:
        model = lock_table_by(proxy)
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


def test_threads_make_one_connection_for_fresh_credentials(engine, monkeypatch):
    with fault_proxy(engine) as proxy:
        model = lock_table_by(proxy)
        Mutex.for_key("a", model=model).locked()
        name(model, "second")
        store = store_for(model)
        connection = store.connection
        connected, is_new = connection._connected, connection._has_new_credentials
        compared, made = itertools.count(1), []
        all_compared = threading.Event()

        def compare():
            found = is_new()
            if next(compared) == 4:
                all_compared.set()
            return found

        def connect(credentials):
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
