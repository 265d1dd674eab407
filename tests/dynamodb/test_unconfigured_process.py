"""A process without a region, or without credentials: it is told what to set, at once and by PynamoDB's errors."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest
from botocore.exceptions import NoCredentialsError, NoRegionError, PartialCredentialsError
from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import GetError, PynamoDBException, ScanError, TableError
from pynamodb.models import Model

from pynamodb_mutex import InvalidTicketError, LockItem, Mutex, RowLockMixin, Semaphore
from pynamodb_mutex._operations.attach import Ticket
from pynamodb_mutex.aio import AsyncMutex

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
    class Row(RowLockMixin, Model):
        class Meta:
            table_name = f"rows-{uuid.uuid4().hex}"

        name = UnicodeAttribute(hash_key=True)

    return Row


def attach(model):
    table = model.Meta.table_name
    return Mutex.attach(
        Ticket(table, "eu-west-1", "a", "t", 1, 1.0, 30.0, None).write(), model=model
    )


CALLS = {
    "acquire": (lambda: Mutex.for_key("a", model=lock_table()).acquire(), GetError),
    "try": (lambda: Mutex.for_key("a", model=lock_table()).acquire(blocking=False), GetError),
    "with": (lambda: Mutex.for_key("a", model=lock_table()).__enter__(), GetError),
    "keys": (lambda: Mutex.for_keys(["a", "b"], model=lock_table()).acquire(), GetError),
    "any of": (lambda: Mutex.any_of(["a", "b"], model=lock_table()).acquire(), GetError),
    "permit": (
        lambda: Semaphore.for_key("a", permits=2, model=lock_table()).acquire(),
        GetError,
    ),
    "task": (
        lambda: asyncio.run(AsyncMutex.for_key("a", model=lock_table()).acquire()),
        GetError,
    ),
    "attach": (lambda: attach(lock_table()), GetError),
    "row": (lambda: row_model().locked("a").acquire(), GetError),
    "rows": (lambda: row_model().locked_all(["a", "b"]).acquire(), GetError),
    "locked": (lambda: Mutex.for_key("a", model=lock_table()).locked(), GetError),
    "held": (lambda: list(lock_table().held()), ScanError),
    "force": (lambda: lock_table().force_release("a"), GetError),
    "create_table": (lambda: lock_table().create_table(), TableError),
}

each_call = pytest.mark.parametrize(("call", "kind"), CALLS.values(), ids=CALLS)


def failure(call, kind, caplog):
    """Return the error of a call that was not repeated."""
    with caplog.at_level(logging.WARNING, "pynamodb_mutex"), pytest.raises(kind) as raised:
        call()
    assert type(raised.value) is kind
    assert isinstance(raised.value, PynamoDBException)
    assert raised.value.__cause__ is raised.value.cause
    assert not [record for record in caplog.records if "repeated" in record.getMessage()]
    return raised.value


@each_call
def test_process_without_a_region_is_asked_to_set_one(bare, caplog, call, kind):
    error = failure(call, kind, caplog)
    assert isinstance(error.cause, NoRegionError)
    assert SET_A_REGION in str(error)


@each_call
def test_process_without_credentials_is_asked_to_give_some(bare, caplog, call, kind):
    bare.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    error = failure(call, kind, caplog)
    assert isinstance(error.cause, NoCredentialsError)
    assert GIVE_CREDENTIALS in str(error)


def test_half_of_the_credentials_is_none(bare, caplog):
    bare.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    bare.setenv("AWS_ACCESS_KEY_ID", "half")
    error = failure(*CALLS["acquire"], caplog)
    assert isinstance(error.cause, PartialCredentialsError)
    assert GIVE_CREDENTIALS in str(error)


@each_call
def test_endpoint_that_is_no_url_is_named(bare, caplog, call, kind):
    bare.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    bare.setenv("AWS_ENDPOINT_URL_DYNAMODB", "nonsense")
    error = failure(call, kind, caplog)
    assert isinstance(error.cause, ValueError)
    assert "Invalid endpoint: nonsense" in str(error)


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
