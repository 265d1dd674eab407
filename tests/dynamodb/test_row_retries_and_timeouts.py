"""Writes without a lock have the retries and timeouts that the model's Meta says; a lock's own have not."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import botocore.endpoint
import pytest
from pynamodb.attributes import UnicodeAttribute
from pynamodb.connection import Connection
from pynamodb.exceptions import (
    DeleteError,
    PutError,
    PynamoDBException,
    TransactWriteError,
    UpdateError,
)
from pynamodb.models import Model
from pynamodb.signals import pre_dynamodb_send
from pynamodb.transactions import TransactWrite
from row_scene import (
    TRANSACT,
    Account,
    RowScene,
    Write,
    delete,
    every_write,
    save,
    save_or_update,
    update,
)

from dev.faultproxy import (
    FaultProxy,
    delay_answer,
    drop_answer,
    drop_request,
    fault_proxy,
    page,
    refuse,
    server_error,
    throttle,
    through,
)
from pynamodb_mutex import RowLockedError, RowLockMixin
from pynamodb_mutex._dynamodb import connection as _store

ERRORS = {save: PutError, update: UpdateError, delete: DeleteError}


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let botocore repeat at once."""
    unhurried = types.SimpleNamespace(sleep=lambda _: None)
    monkeypatch.setattr(botocore.endpoint, "time", unhurried)


@contextmanager
def new_process(scene: RowScene, retries: int = 3) -> Iterator[tuple[type[Account], FaultProxy]]:
    """Make a client of a scene's row that has had no answer yet, whose Meta says how often to repeat."""
    with fault_proxy(scene.engine) as proxy:
        client = through(proxy, scene.there, read_timeout=30)
        client.Meta.max_retry_attempts = retries
        if scene.in_table:
            client.lock_model = through(proxy, scene.locks)
        yield client, proxy


def error_of(scene: RowScene, write: Write) -> type[PynamoDBException]:
    """Return the error of a write that fails without its lock."""
    return TransactWriteError if scene.in_table else ERRORS[write]


def attempts(scene: RowScene, proxy: FaultProxy, write: Write) -> list[bool]:
    """Say of each attempt at a write whether it was applied."""
    return [seen.applied for seen in proxy.of(scene.op(write.__name__))]


# -- how often --------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1, 6])
@pytest.mark.parametrize("fault", [throttle, server_error, drop_request])
@every_write
def test_write_is_repeated_as_often_as_meta_says(
    any_scene: RowScene, write: Write, fault: Callable[[], object], retries: int
) -> None:
    op = any_scene.op(write.__name__)
    with new_process(any_scene, retries) as (client, proxy):
        proxy.next(*[fault() for _ in range(retries)], op=op)
        write(client(any_scene.key))
        assert attempts(any_scene, proxy, write) == [False] * retries + [True]
    assert any_scene.gone if write is delete else any_scene.row.last == "mine"
    with new_process(any_scene, retries) as (client, proxy):
        proxy.always(fault(), op=op)
        with pytest.raises(error_of(any_scene, write)) as raised:
            write(client(any_scene.key))
        assert type(raised.value) is error_of(any_scene, write)
        assert attempts(any_scene, proxy, write) == [False] * (retries + 1)


@pytest.mark.real("local")
@pytest.mark.parametrize("retries", [0, 2])
@save_or_update
def test_transaction_is_repeated_as_often_as_its_connection_says(
    row_scene: RowScene, write: Write, retries: int
) -> None:
    with new_process(row_scene, retries=7) as (client, proxy):

        def transact() -> None:
            connection = Connection(host=proxy.url, max_retry_attempts=retries)
            row = client(row_scene.key)
            with TransactWrite(connection=connection) as transaction:
                if write is save:
                    transaction.save(row)
                else:
                    transaction.update(row, [client.balance.add(1)])

        proxy.next(*[throttle() for _ in range(retries)], op=TRANSACT)
        transact()
        assert [seen.applied for seen in proxy.of(TRANSACT)] == [False] * retries + [True]
        proxy.clear()
        proxy.start_anew()
        proxy.always(throttle(), op=TRANSACT)
        with pytest.raises(TransactWriteError):
            transact()
        assert len(proxy.of(TRANSACT)) == retries + 1


def test_first_save_of_a_process_has_metas_patience_for_its_read_too(row_scene: RowScene) -> None:
    with new_process(row_scene, retries=4) as (client, proxy):
        proxy.next(*[drop_request() for _ in range(4)], op="GetItem")
        proxy.next(*[throttle() for _ in range(4)], op="PutItem")
        save(client(row_scene.key))
        assert [seen.applied for seen in proxy.of("GetItem")] == [False] * 4 + [True]
        assert attempts(row_scene, proxy, save) == [False] * 4 + [True]


@pytest.mark.real
@every_write
def test_unreachable_endpoint_is_the_error_of_the_write(any_scene: RowScene, write: Write) -> None:
    with new_process(any_scene, retries=1) as (client, _):
        pass  # nothing listens there any more
    with pytest.raises(error_of(any_scene, write)) as raised:
        write(client(any_scene.key))
    assert type(raised.value) is error_of(any_scene, write)


@pytest.mark.parametrize(
    "fault",
    [
        lambda: refuse("TransactionConflictException"),
        lambda: refuse(
            "TransactionCanceledException",
            CancellationReasons=[{"Code": "TransactionConflict"}, {"Code": "None"}],
        ),
    ],
    ids=["alone", "together"],
)
@every_write
def test_write_that_meets_a_lock_on_its_way_is_repeated_whatever_meta_says(
    any_scene: RowScene, write: Write, fault: Callable[[], object]
) -> None:
    with new_process(any_scene, retries=0) as (client, proxy):
        proxy.next(fault(), fault(), op=any_scene.op(write.__name__))
        write(client(any_scene.key))
        assert attempts(any_scene, proxy, write) == [False, False, True]


def test_transaction_that_meets_a_lock_on_its_way_is_repeated_as_it_was(
    row_scene: RowScene,
) -> None:
    reasons = [{"Code": "TransactionConflict"}]
    fault = refuse("TransactionCanceledException", CancellationReasons=reasons)
    with new_process(row_scene) as (client, proxy):
        proxy.next(fault, fault, op=TRANSACT)
        connection = Connection(host=proxy.url, max_retry_attempts=0)
        with TransactWrite(connection=connection) as transaction:
            transaction.update(client(row_scene.key), [client.balance.add(1)])
        sent = proxy.of(TRANSACT)
        assert [seen.applied for seen in sent] == [False, False, True]
        # by its token DynamoDB knows it again
        assert sent[0].body == sent[1].body == sent[2].body
    assert row_scene.row.balance == 1


@every_write
def test_page_in_place_of_an_answer_is_no_answer(any_scene: RowScene, write: Write) -> None:
    with new_process(any_scene) as (client, proxy):
        proxy.next(page(200), op=any_scene.op(write.__name__))
        with pytest.raises(error_of(any_scene, write), match="not DynamoDB's"):
            write(client(any_scene.key))
    assert any_scene.row.last is None


# -- how long ---------------------------------------------------------------------------------------


@every_write
def test_late_answer_is_waited_for_as_long_as_meta_says(
    any_scene: RowScene, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "READ_TIMEOUT", 0.2)
    with new_process(any_scene) as (client, proxy):
        proxy.next(delay_answer(1.0), op="GetItem")
        proxy.next(delay_answer(1.0), op=any_scene.op(write.__name__))
        write(client(any_scene.key))
        assert attempts(any_scene, proxy, write) == [True]


def test_guarded_write_has_the_patience_of_its_lock(
    row_scene: RowScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_store, "READ_TIMEOUT", 0.5)
    with new_process(row_scene, retries=0) as (client, proxy), client.locked(row_scene.key) as row:
        proxy.next(throttle(), throttle(), delay_answer(5.0), op="PutItem")
        save(row)
        # it did not wait for the late one, and knew its own result again
        assert attempts(row_scene, proxy, save)[:4] == [False, False, True, False]
    assert row_scene.row.balance == 1


# -- what is known of attempts that botocore repeats ------------------------------------------------


def test_request_of_who_listens_to_pynamodbs_signals_is_distinguished(row_scene: RowScene) -> None:
    other = f"{row_scene.key}-other"
    with new_process(row_scene) as (client, proxy):
        client(other).save()

        def write_another(_: object, **__: object) -> None:
            pre_dynamodb_send.disconnect(write_another)
            row_scene.taken()
            proxy.next(drop_answer(), op="PutItem")
            client(other).save()

        pre_dynamodb_send.connect(write_another)
        with pytest.raises(RowLockedError) as raised:
            save(client(row_scene.key))
        assert raised.value.applied is False


def test_write_goes_by_the_models_own_connection(row_scene: RowScene) -> None:
    senders = []

    def note(sender: object, **_: object) -> None:
        senders.append(sender)

    with new_process(row_scene) as (client, _), pre_dynamodb_send.connected_to(note):
        for write in (save, update, delete):
            write(client(row_scene.key))
        assert senders == [client._get_connection().connection] * 4


def test_meta_of_a_subclass_counts() -> None:
    class Base(RowLockMixin, Model):
        class Meta:
            table_name = "rows"
            host = "http://127.0.0.1:1"

        pk = UnicodeAttribute(hash_key=True)

    base = Base._get_connection()

    class Same(Base):
        pass

    class Other(Base):
        class Meta(Base.Meta):
            table_name = "rows"
            host = "http://127.0.0.1:2"
            max_retry_attempts = 9

    assert Same._get_connection() is base
    other = Other._get_connection().connection
    assert (other.host, other._max_retry_attempts_exception) == ("http://127.0.0.1:2", 9)
