"""Region and credentials: errors that say what to set if they are missing, and credentials in Meta that are replaced."""

import asyncio
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import NoCredentialsError, NoRegionError, PartialCredentialsError
from hearing import until
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import GetError, ScanError, TableError
from row_tables import LOCKABLE, created, made
from stores import store_for

from dev.faultproxy import through
from pynamodb_mutex import InvalidTicketError, LockItem, Mutex, Semaphore
from pynamodb_mutex._operations.attach import Ticket
from pynamodb_mutex.aio import AsyncMutex

# what is signed with is not the engine's concern
pytestmark = pytest.mark.real("embedded")

GIVE_CREDENTIALS = "Give credentials as boto3 finds them: by AWS_ACCESS_KEY_ID"


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment that names neither region nor credentials."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def lock_table():
    """A model that no test has used yet."""
    return made({}, (LockItem,))


def row_model():
    return made({"name": UnicodeAttribute(hash_key=True)}, LOCKABLE)


def attach(model, table):
    ticket = Ticket(table.Meta.table_name, "eu-west-1", "a", "t", 1, 1.0, 30.0, None)
    return Mutex.attach(ticket.write(), model=model)


CALLS = {
    "acquire": lambda table: Mutex.for_key("a", model=table).acquire(),
    "try": lambda table: Mutex.for_key("a", model=table).acquire(blocking=False),
    "locked": lambda table: Mutex.for_key("a", model=table).locked(),
    "keys": lambda table: Mutex.for_keys(["a", "b"], model=table).acquire(),
    "any of": lambda table: Mutex.any_of(["a", "b"], model=table).acquire(),
    "permit": lambda table: Semaphore.for_key("a", permits=2, model=table).acquire(),
    "task": lambda table: asyncio.run(AsyncMutex.for_key("a", model=table).acquire()),
    "attach": lambda table: attach(table, table),
    "row": lambda _: row_model().locked("a").acquire(),
    "rows": lambda _: row_model().locked_all(["a", "b"]).acquire(),
    "held": lambda table: list(table.held()),
    "force": lambda table: table.force_release("a"),
    "create_table": lambda table: table.create_table(),
}
ERRORS = {"held": ScanError, "create_table": TableError}
"""What calls raise; the others GetError."""

REGION = {"AWS_DEFAULT_REGION": "eu-west-1"}
HALF = REGION | {"AWS_ACCESS_KEY_ID": "half"}
NO_URL = REGION | {"AWS_ENDPOINT_URL_DYNAMODB": "nonsense"}


PLACES = [
    ({}, NoRegionError, "Set the region: by `region` in the model's Meta, by AWS_DEFAULT_REGION"),
    (REGION, NoCredentialsError, GIVE_CREDENTIALS),
    (HALF, PartialCredentialsError, GIVE_CREDENTIALS),
    (NO_URL, ValueError, "Invalid endpoint: nonsense"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", CALLS)
def test_process_that_is_not_configured_raises_at_once_what_to_set(bare, caplog, place, what):
    environment, cause, message = place
    for variable, value in environment.items():
        bare.setenv(variable, value)
    kind = ERRORS.get(what, GetError)
    with pytest.raises(kind) as raised:
        CALLS[what](lock_table())
    error = raised.value
    assert type(error) is kind
    assert error.__cause__ is error.cause
    assert isinstance(error.cause, cause)
    assert message in str(error)
    assert "to be retried" not in caplog.text
    # nor is a row known to be free, or a ticket for another table taken
    assert row_model()("a", lock_expires_at=1.0).is_locked
    another = lock_table()
    with pytest.raises(InvalidTicketError, match=another.Meta.table_name):
        attach(lock_table(), another)


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


@pytest.fixture
def named(proxy):
    """A lock table, behind a proxy, whose Meta names credentials."""
    model = through(proxy, created(lock_table()))
    name(model, "first")
    return model


def name(model, who):
    """Let a model name somebody's credentials; those of the environment with None."""
    for part in ("access_key_id", "secret_access_key", "session_token"):
        setattr(model.Meta, f"aws_{part}", who)


def signer(seen):
    (who,) = re.findall("Credential=([^/]+)/", seen.headers["Authorization"])
    return who, seen.headers.get("X-Amz-Security-Token")


@pytest.mark.parametrize("is_of_rows", [False, True])
def test_fresh_credentials_are_used_from_the_next_request_on(proxy, named, is_of_rows):
    model, mutex = named, Mutex.for_key("a", model=named)
    if is_of_rows:
        model = through(proxy, created(row_model()))
        model("a").save()
        name(model, "first")
        mutex = model.locked("a")
    mutex.acquire()
    store = store_for(model)
    name(model, "second")
    mutex.renew()
    mutex.release()
    signers = [signer(seen) for seen in proxy.of("acquire", "renew", "release")]
    assert signers == [("first", "first"), ("second", "second"), ("second", "second")]
    # those of the environment again
    name(model, None)
    assert mutex.acquire()
    mutex.release()
    assert signer(proxy.of("release")[-1])[1] not in {"first", "second"}
    assert store_for(model) is store


def test_lock_that_is_held_is_renewed_with_fresh_credentials(proxy, named, clock):
    with Mutex.for_key("a", model=named) as mutex:
        clock.advance(10)
        until(lambda: mutex.remaining > 25)
        named.Meta.aws_session_token = "fresh"
        clock.advance(10)
        renewals = proxy.wait(2, "renew")
    assert signer(renewals[-1]) == ("first", "fresh")


def test_waiter_keeps_its_place_when_credentials_are_replaced(proxy, named):
    mutex = Mutex.for_key("a", model=named)
    mutex.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Mutex.for_key("a", model=named).acquire)
        proxy.wait(1, "GetItem")
        named.Meta.aws_access_key_id = "second"
        # handed over within the process, by who knows only the new credentials
        mutex.release()
        assert waiting.result(60)
    assert [signer(seen)[0] for seen in proxy.of("hand_over")] == ["second"]


def test_threads_make_one_connection_for_fresh_credentials(named, monkeypatch):
    mutex = Mutex.for_key("a", model=named)
    mutex.locked()
    name(named, "second")
    connection = store_for(named).connection
    connected, is_new = connection._connected, connection._has_new_credentials
    compared, made = threading.Barrier(4, timeout=60), []

    def compare():
        found = is_new()
        compared.wait()
        return found

    def connect(credentials):
        made.append(credentials)
        return connected(credentials)

    monkeypatch.setattr(connection, "_has_new_credentials", compare)
    monkeypatch.setattr(connection, "_connected", connect)
    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(mutex.locked) for _ in range(4)]
        assert [look.result(60) for look in looks] == [False] * 4
    assert made == [("second", "second", "second")]
