"""Errors that say what to set or to create: region, credentials, a table; and credentials in Meta that are replaced."""

import asyncio
import gc
import json
import os
import re
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest
from botocore.exceptions import NoCredentialsError, NoRegionError, PartialCredentialsError
from botocore.session import Session
from pynamodb.attributes import UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import DeleteError, GetError, ScanError, TableDoesNotExist, TableError
from pynamodb.transactions import TransactWrite
from row_models import LOCKABLE, PLAIN, created, made
from this_process import QueueFor, store_for
from waits import until

from dev.faultproxy import cut_off, deny, page, throttle, through
from pynamodb_mutex import InvalidTicketError, LockItem, Mutex, Semaphore
from pynamodb_mutex._attach.ticket import Ticket
from pynamodb_mutex.aio import AsyncMutex
from pynamodb_mutex.testing import Engine


def lock_table():
    """A model whose table is not there."""
    return made({}, (LockItem,))


def rows(locks=None):
    return made({"lock_model": locks, "name": UnicodeAttribute(hash_key=True)}, LOCKABLE)


def created_rows(locks=None):
    """A model of rows, and the row a in its table."""
    model = created(rows(locks))
    model._get_connection().put_item("a")
    return model


def attach(model, table):
    ticket = Ticket(table.Meta.table_name, "eu-west-1", "a", "t", 1, 1.0, 30.0, None)
    return Mutex.attach(ticket.write(), model=model)


OF_LOCKS = {
    "acquire": lambda table: Mutex.for_key("a", model=table).acquire(),
    "try": lambda table: Mutex.for_key("a", model=table).acquire(blocking=False),
    "locked": lambda table: Mutex.for_key("a", model=table).locked(),
    "keys": lambda table: Mutex.for_keys(["a", "b"], model=table).acquire(),
    "any of": lambda table: Mutex.any_of(["a", "b"], model=table).acquire(),
    "held": lambda table: list(table.held()),
    "force": lambda table: table.force_release("a"),
}
CALLS = OF_LOCKS | {
    "permit": lambda table: Semaphore.for_key("a", permits=2, model=table).acquire(),
    "task": lambda table: asyncio.run(AsyncMutex.for_key("a", model=table).acquire()),
    "attach": lambda table: attach(table, table),
    "row": lambda _: rows().locked("a").acquire(),
    "rows": lambda _: rows().locked_all(["a", "b"]).acquire(),
    "write": lambda _: rows()("a").delete(),
    "create_table": lambda table: table.create_table(),
}

# -- region and credentials: what is signed with is not the engine's concern -----------------------

ERRORS = {"held": ScanError, "write": DeleteError, "create_table": TableError}
"""What calls raise; the others GetError."""

GIVE_CREDENTIALS = "Give credentials as boto3 finds them: by AWS_ACCESS_KEY_ID"
REGION = {"AWS_DEFAULT_REGION": "eu-west-1"}
HALF = REGION | {"AWS_ACCESS_KEY_ID": "half"}
NO_URL = REGION | {"AWS_ENDPOINT_URL_DYNAMODB": "nonsense"}
NO_PORT = REGION | {"AWS_ENDPOINT_URL_DYNAMODB": "http://localhost:port"}


PLACES = [
    ({}, NoRegionError, "Set the region: by `region` in the model's Meta, by AWS_DEFAULT_REGION"),
    (REGION, NoCredentialsError, GIVE_CREDENTIALS),
    (HALF, PartialCredentialsError, GIVE_CREDENTIALS),
    (NO_URL, ValueError, "Invalid endpoint: nonsense"),
    (NO_PORT, ValueError, "Invalid endpoint: http://localhost:port"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", CALLS)
def test_process_that_is_not_configured_raises_at_once_what_to_set(
    monkeypatch, caplog, place, what
):
    environment, cause, message = place
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    kind = ERRORS.get(what, GetError)
    with pytest.raises(kind, match=re.escape(message)) as raised:
        CALLS[what](lock_table())
    error = raised.value
    assert type(error) is kind
    assert error.__cause__ is error.cause
    assert isinstance(error.cause, cause)
    assert "to be retried" not in caplog.text
    # nor is a row known to be free, or a ticket for another table taken
    assert rows()("a", lock_expires_at=1.0).is_locked
    another = lock_table()
    with pytest.raises(InvalidTicketError, match=another.Meta.table_name):
        attach(lock_table(), another)


def test_region_and_credentials_that_come_later_are_used(monkeypatch, embedded_engine):
    model = lock_table()
    mutex = Mutex.for_key("a", model=model)
    with pytest.raises(GetError, match="Set the region"):
        mutex.acquire()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", embedded_engine.endpoint_url)
    # an acquire would not begin with a read if an earlier test had learned the time of this engine
    with pytest.raises(GetError, match="Give credentials"):
        mutex.locked()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "now")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "there")
    model.create_table()
    with mutex:
        assert mutex.held


WITH_PASSWORD = (
    "http://me:secret@127.0.0.1:9",
    "http://me:sec/ret@127.0.0.1",
    "me:secret@127.0.0.1",
)


@pytest.mark.parametrize("url", WITH_PASSWORD)
@pytest.mark.parametrize("by", ["variable", "model"])
def test_password_in_the_url_of_the_endpoint_is_not_shown(monkeypatch, caplog, url, by):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    model = lock_table()
    if by == "variable":
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", url)
    else:
        model.Meta.host = url
    calls = [Mutex.for_key("a", model=model).locked, model.create_table]
    for call in calls:
        with pytest.raises((GetError, TableError), match=r"127\.0\.0\.1") as raised:
            call()
        trace = "".join(traceback.format_exception(raised.value))
        assert [part for part in ("me:", "sec", "ret@") if part in trace + caplog.text] == []


def test_host_of_the_account_is_named_once_requests_go_to_it(monkeypatch):
    """botocore sends to it if the credentials say which account they belong to."""
    account = "https://123456789012.ddb.eu-west-1.amazonaws.com"
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    named = {"AWS_ACCOUNT_ID": "123456789012"}
    nobody = {"https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    for variable, value in (REGION | keys | named | nobody).items():
        monkeypatch.setenv(variable, value)
    connection = store_for(lock_table()).connection
    connection.open()
    assert connection.where == "eu-west-1 at https://dynamodb.eu-west-1.amazonaws.com"
    reply = connection.send("GetItem", {"TableName": "a", "Key": {"key": {"S": "a"}}})
    assert f"not answered yet in eu-west-1 at {account} (" in str(reply.error)
    # another connection of the same client leads to the same place
    assert connection.elsewhere(Connection(region="eu-west-1")) == ""


@pytest.mark.skipif(os.name != "posix", reason="runs a shell")
def test_credentials_that_a_process_fails_to_refresh_once_delay_a_release(
    monkeypatch, embedded_engine, tmp_path, caplog
):
    # botocore refreshes what expires in less than 10 minutes at each request
    expiration = (datetime.now(timezone.utc) + timedelta(minutes=5)).isoformat()
    keys = {"AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "c"}
    (tmp_path / "keys").write_text(json.dumps({"Version": 1, **keys, "Expiration": expiration}))
    command = f"sh -c 'cd {tmp_path} && ! rm out 2>/dev/null && cat keys'"
    (tmp_path / "config").write_text(f"[default]\ncredential_process = {command}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", embedded_engine.endpoint_url)
    model = lock_table()
    (tmp_path / "out").touch()
    with pytest.raises(TableError, match="Error when retrieving credentials from custom-process"):
        model.create_table()
    model.create_table()
    with Mutex.for_key("a", model=model, auto_renew=False) as mutex:
        (tmp_path / "out").touch()
    assert not mutex.locked()
    assert caplog.text.count("from custom-process:; to be retried") == 1


@pytest.fixture
def named(proxy):
    """A lock table, behind a proxy, whose Meta names credentials."""
    return name(through(proxy, created(lock_table())), "first")


def name(model, who):
    """Let a model name somebody's credentials; those of the environment with None."""
    for part in ("access_key_id", "secret_access_key", "session_token"):
        setattr(model.Meta, f"aws_{part}", who)
    return model


def signer(seen):
    (who,) = re.findall("Credential=([^/]+)/", seen.headers["Authorization"])
    return who, seen.headers.get("X-Amz-Security-Token")


@pytest.mark.real("embedded")
@pytest.mark.parametrize("is_of_rows", [False, True])
def test_fresh_credentials_are_used_from_the_next_request_on(proxy, named, is_of_rows):
    model, mutex = named, Mutex.for_key("a", model=named)
    if is_of_rows:
        model = name(through(proxy, created_rows()), "first")
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


@pytest.mark.real("embedded")
def test_lock_that_is_held_is_renewed_with_fresh_credentials(proxy, named, clock):
    with Mutex.for_key("a", model=named) as mutex:
        for number, token in enumerate(("first", "fresh"), 1):
            named.Meta.aws_session_token = token
            clock.advance(10)
            assert signer(proxy.wait(number, "renew")[-1]) == ("first", token)
            until(lambda: mutex.remaining > 25)


@pytest.mark.real("embedded")
def test_waiter_keeps_its_place_when_credentials_are_replaced(proxy, named):
    mutex = Mutex.for_key("a", model=named)
    mutex.acquire()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(Mutex.for_key("a", model=named).acquire)
        until(lambda: QueueFor(named, "a").turns)
        named.Meta.aws_access_key_id = "second"
        # handed over within the process, by who knows only the new credentials
        mutex.release()
        assert waiting.result(60)
    assert [signer(seen)[0] for seen in proxy.of("hand_over")] == ["second"]


@pytest.mark.real("embedded")
def test_answers_are_checked_once_credentials_have_come_in_place_of_metas(
    proxy, named, monkeypatch
):
    mutex = Mutex.for_key("a", model=named, auto_renew=False)
    mutex.acquire()
    name(named, None)
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        with pytest.raises(GetError, match="Give credentials"):
            mutex.locked()
    proxy.next(cut_off())
    assert mutex.locked()


@pytest.mark.parametrize("collects", [True, False])
@pytest.mark.parametrize("environment", [REGION, NO_URL])
def test_nothing_is_collected_while_a_client_is_made(monkeypatch, collects, environment):
    """A full collection in it would cost a sixth of a process's start."""
    made = Session.create_client
    collected = []

    def make(*args, **kwargs):
        collected.append(gc.isenabled())
        return made(*args, **kwargs)

    monkeypatch.setattr(Session, "create_client", make)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    (gc.enable if collects else gc.disable)()
    try:
        with pytest.raises(GetError):
            Mutex.for_key("a", model=lock_table()).locked()
        assert gc.isenabled() is collects
    finally:
        gc.enable()
    assert collected[0] is False


@pytest.mark.real("embedded")
def test_threads_make_one_connection_for_fresh_credentials(named, monkeypatch):
    mutex = Mutex.for_key("a", model=named)
    mutex.locked()
    name(named, "second")
    connection = store_for(named).connection
    connected, prepared = connection._connected, connection._prepare
    compared, made = threading.Barrier(4, timeout=60), []

    def prepare():
        compared.wait()  # each has found that they are new
        prepared()

    def connect(credentials):
        made.append(credentials)
        return connected(credentials)

    monkeypatch.setattr(connection, "_prepare", prepare)
    monkeypatch.setattr(connection, "_connected", connect)
    with ThreadPoolExecutor(4) as pool:
        looks = [pool.submit(mutex.locked) for _ in range(4)]
        assert [look.result(60) for look in looks] == [False] * 4
    assert made == [("second", "second", "second")]


# -- a table that is not there is named with its place, whichever request finds it missing ---------


@contextmanager
def missing_named(engine, *models, hint="create_table()`"):
    """See that an error names these tables and no other, where they were sought, and what to do last."""
    with pytest.raises(TableDoesNotExist) as raised:
        yield
    error = raised.value
    assert type(error) is TableDoesNotExist
    # moto cancels a transaction for a table that it only checks
    codes = {"ResourceNotFoundException", "TransactionCanceledException"}
    assert error.cause_response_code in codes
    names = "` or `".join(model.Meta.table_name for model in models)
    assert str(error).startswith(
        f"Table does not exist: `{names}` in us-east-1 at {engine.endpoint_url}: wrong region or "
        "profile? If not, create it with `"
    )
    assert str(error).endswith(hint)


@pytest.mark.parametrize("what", OF_LOCKS)
def test_lock_table_that_is_missing_is_named(engine, what):
    missing = lock_table()
    with missing_named(engine, missing, hint=" `Row.create_table()`"):
        OF_LOCKS[what](missing)


@pytest.mark.real
@pytest.mark.parametrize("in_lock_table", [False, True])
def test_table_of_the_locks_of_rows_that_is_missing_is_named(engine, in_lock_table):
    missing = lock_table() if in_lock_table else rows()
    model = created_rows(missing) if in_lock_table else missing
    for lock in (model.locked("a"), model.locked_all(["a", "b"])):
        with missing_named(engine, missing, hint=" `Row.create_table()`"):
            lock.acquire()


@pytest.mark.real
@pytest.mark.parametrize("warm", [False, True])
def test_missing_one_of_two_lock_tables_is_named(engine, warm):
    for order in (1, -1):
        there, missing = created(lock_table()), lock_table()
        if warm:  # so that a transaction finds it, else a read
            assert not Mutex.for_key("b", model=there).locked()
        group = Mutex.for_keys([Mutex.for_key("a", model=m) for m in (there, missing)[::order]])
        for call in (group.acquire, group.locked):
            with missing_named(engine, missing):
                call()
        assert (group.held, Mutex.for_key("a", model=there).locked()) == (False, False)


def test_missing_tables_are_all_named(engine):
    tables = [lock_table(), created(lock_table()), lock_table()]
    with missing_named(engine, tables[0], tables[2]):
        Mutex.for_keys(Mutex.for_key("a", model=model) for model in tables).acquire()


@pytest.mark.real
def test_table_of_a_row_in_a_transaction_is_named(engine):
    missing = made({"name": UnicodeAttribute(hash_key=True)}, PLAIN)
    locks, model = created(lock_table()), created_rows()
    one, several = Mutex.for_key("a", model=locks), Mutex.for_keys(["b", "c"], model=locks)
    with model.locked("a") as row, one, several:
        of_row = TransactWrite(connection=Connection())
        of_row.save(row)
        for transaction in (of_row, one.transaction(), several.transaction()):
            transaction.save(missing("n"))
            with missing_named(engine, missing), transaction:
                pass
        # nothing was written
        assert [lock.held for lock in (row.row_lock, one, several)] == [True] * 3


@pytest.mark.real
def test_table_of_rows_whose_locks_are_elsewhere_is_named(engine):
    locks, missing = created(lock_table()), lock_table()
    model = rows(locks)
    with missing_named(engine, model), model.locked("a"):
        pass
    assert not list(locks.held())
    # both in one request
    with missing_named(engine, model):
        model("a").save()
    both = created_rows(locks).locked_all(["a", model.locked("a")])
    with missing_named(engine, model), both as found:
        found[0]
    assert not list(locks.held())
    # and the other way round
    with missing_named(engine, missing):
        created_rows(missing)("a").save()


@pytest.mark.parametrize("fault", [deny, throttle, lambda: page(200)])
def test_tables_are_all_named_where_it_cannot_be_found_out_which_is_missing(proxy, fault):
    tables = [
        through(proxy, model, read_timeout=2) for model in (created(lock_table()), lock_table())
    ]
    with Mutex.for_key("warm", model=tables[0]):
        pass
    proxy.always(fault(), op="GetItem")
    with missing_named(Engine("proxy", proxy.url), *tables):
        Mutex.for_keys([Mutex.for_key("a", model=model) for model in tables]).acquire()
