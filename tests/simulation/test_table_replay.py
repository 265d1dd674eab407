"""What the library sends to an engine, the table in memory answers as the engine did."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from accounts import Account, Elsewhere, Ledger, changed
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from pynamodb.attributes import NumberAttribute, UnicodeAttribute
from pynamodb.models import Model
from table_answers import answer_of, comparable

from dev.simulation.table import Tables
from pynamodb_mutex import (
    LockItem,
    Mutex,
    MutexLostError,
    MutexTimeoutError,
    RowLockedError,
    Semaphore,
)
from pynamodb_mutex.testing import FakeClock, expire, held_elsewhere

ABOUT_TABLES = {"CreateTable", "DescribeTable", "DescribeTimeToLive", "UpdateTimeToLive"}


class Another(LockItem):
    """The same table with another connection and another queue, as in another process."""

    class Meta(LockItem.Meta):
        pass


class OldAccount(Model):
    """The accounts as a program has them that knows nothing of locks."""

    Meta = Account.Meta

    name = UnicodeAttribute(hash_key=True)
    balance = NumberAttribute(default=0)


class Answered(NamedTuple):
    operation: str
    kwargs: dict[str, Any]
    answer: Any


class Recording(list[Answered]):
    """Requests in the order in which they were applied, with their answers."""

    def operations(self) -> set[str]:
        return {each.operation for each in self}

    def refusals(self) -> int:
        return sum("Failed" in repr(each.answer) for each in self)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    """Record what this process sends, and in the end replay it."""
    recorded = Recording()
    # one request at a time, or the order in which they are applied would not be known
    one_at_a_time = threading.Lock()
    original = BaseClient._make_api_call

    def record(client: BaseClient, operation: str, kwargs: dict[str, Any]) -> Any:
        sent = copy.deepcopy(kwargs)
        with one_at_a_time:
            try:
                response = original(client, operation, kwargs)
            except ClientError as error:
                recorded.append(Answered(operation, sent, comparable(error.response)))
                raise
            recorded.append(Answered(operation, sent, comparable(response)))
            return response

    monkeypatch.setattr(BaseClient, "_make_api_call", record)
    yield recorded
    monkeypatch.undo()
    replay(recorded)


def replay(recorded: Recording) -> None:
    tables = Tables()
    for number, (operation, kwargs, expected) in enumerate(recorded):
        found = answer_of(tables, operation, kwargs)
        if operation not in ABOUT_TABLES:
            assert found == expected, f"{number}: {operation} {kwargs}"


@pytest.fixture(autouse=True)
def tables(
    recording: Recording,
    table: type[LockItem],
    accounts: None,
    ledger: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables, whose creation is recorded, too."""
    monkeypatch.setattr(Another.Meta, "table_name", table.Meta.table_name)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def take(key: str) -> None:
    """Make a lock another's, by hand: what this library does would be noticed in this process."""
    Another._get_connection().update_item(key, actions=[Another.token.set("another's")])


def test_replay_notices_an_answer_that_differs(recording: Recording) -> None:
    with Mutex.for_key("a"):
        pass
    falsified = Recording(recording)
    operation, kwargs, _ = falsified.pop()
    falsified.append(Answered(operation, kwargs, {"Attributes": {}}))
    with pytest.raises(AssertionError, match="UpdateItem"):
        replay(falsified)


# -- locks ----------------------------------------------------------------------------------------


def test_acquiring_and_releasing(recording: Recording) -> None:
    for _ in range(3):
        with Mutex.for_key("a", data={"n": 1}) as mutex:
            mutex.renew()
            mutex.renew(lease=20)
            mutex.save_data({"n": [1.5, None]})
            mutex.save_data(None)
    with Mutex.for_key("b", owner="somebody"):
        assert Mutex.for_key("b", model=Another).locked()
    assert recording.operations() >= {"GetItem", "UpdateItem"}


def test_contention(recording: Recording) -> None:
    with Mutex.for_key("a"):
        other = Mutex.for_key("a", model=Another, poll=(0.02, 0.05))
        assert not other.acquire(timeout=0.3)
        with pytest.raises(MutexTimeoutError):
            Mutex.for_key("a", model=Another, timeout=0).__enter__()
    assert other.acquire(timeout=20)
    other.release()


def test_hand_over_between_threads(recording: Recording) -> None:
    def work() -> None:
        for _ in range(3):
            with Mutex.for_key("a", timeout=60, data="x"):
                time.sleep(0.01)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(recording) < 9 * 2 + 9, "nothing was handed over"


def test_expired_and_broken_locks(recording: Recording) -> None:
    first = Mutex.for_key("a", auto_renew=False)
    assert first.acquire()
    expire("a")
    second = Mutex.for_key("a", model=Another, auto_renew=False)
    assert second.acquire(timeout=20)
    with pytest.raises(MutexLostError):
        first.renew()
    assert LockItem.force_release("a")
    assert not LockItem.force_release("a")
    with pytest.raises(MutexLostError):
        second.save_data(1)
    with held_elsewhere("b"):
        assert not Mutex.for_key("b").acquire(blocking=False)
    assert recording.refusals() >= 2


def test_deleting_on_release(recording: Recording) -> None:
    for _ in range(2):
        with Mutex.for_key("a", delete_on_release=True):
            pass
    assert "DeleteItem" in recording.operations()


def test_tickets(recording: Recording) -> None:
    mutex = Mutex.for_key("a", data=1)
    assert mutex.acquire()
    taken = Mutex.attach(mutex.detach(), model=Another)
    taken.save_data(2)
    taken.release()
    assert recording.operations() == {*recording.operations(), "UpdateItem"}


def test_renewal_by_itself(recording: Recording, fake_clock: FakeClock) -> None:
    with Mutex.for_key("a") as mutex:
        for _ in range(2):
            begun = len(recording)
            fake_clock.advance(10)
            until(lambda: len(recording) > begun)  # noqa: B023 - called at once
            until(lambda: mutex.remaining > 25)


def test_batches_of_renewals(recording: Recording, fake_clock: FakeClock) -> None:
    mutexes = [Mutex.for_key(f"key {n}") for n in range(4)]
    for mutex in mutexes:
        assert mutex.acquire()
    take("key 1")
    Another._get_connection().delete_item("key 2")
    fake_clock.advance(10)
    until(lambda: "BatchExecuteStatement" in recording.operations())
    for mutex in (mutexes[0], mutexes[3]):
        mutex.release()
    assert recording.refusals()


# -- several --------------------------------------------------------------------------------------


def test_several_keys(recording: Recording) -> None:
    with Mutex.for_keys(["a", "b", "c"], data=1) as mutex:
        mutex.renew()
        with mutex.transaction() as transaction:
            transaction.save(Account("x"))
        assert not Mutex.for_keys(["c", "d"], model=Another).acquire(blocking=False)
    with Mutex.for_key("b", model=Another):
        assert not Mutex.for_keys(["a", "b"]).acquire(timeout=0.3)
    assert recording.operations() >= {"TransactWriteItems", "BatchGetItem"}
    assert recording.refusals()


def test_any_of_and_semaphores(recording: Recording) -> None:
    poll = (0.02, 0.05)
    with Mutex.any_of(["a", "b"], poll=poll), Mutex.any_of(["a", "b"], model=Another, poll=poll):
        assert not Mutex.any_of(["a", "b"], poll=poll).acquire(timeout=0.3)
    with Semaphore.for_key("s", permits=2), Semaphore.for_key("s", permits=2, model=Another):
        assert not Semaphore.for_key("s", permits=2).acquire(blocking=False)
    assert "BatchGetItem" in recording.operations()


def test_transactions(recording: Recording) -> None:
    plain = Account("kept", balance=1)
    plain.save()
    mutex = Mutex.for_key("a")
    assert mutex.acquire()
    with mutex.transaction() as transaction:
        transaction.save(Account("new", balance=7))
        transaction.update(plain, actions=[Account.balance.add(4)])
    with mutex.transaction() as transaction:
        transaction.delete(plain)
    with mutex.transaction():
        pass
    take("a")
    transaction = mutex.transaction()
    transaction.save(Account("never"))
    with pytest.raises(MutexLostError), transaction:
        pass
    assert "TransactWriteItems" in recording.operations()
    assert recording.refusals()


def test_listing_what_is_held(recording: Recording) -> None:
    with Mutex.for_key("a"), Mutex.for_key("b"):
        pass
    with Mutex.for_key("c"), Mutex.for_key("d"):
        assert {item.key for item in LockItem.held()} == {"c", "d"}
    assert "Scan" in recording.operations()


# -- rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [Account, Ledger])
def test_row_locks(recording: Recording, model: Any) -> None:
    model("a", balance=1).save()
    with model.locked("a") as row:
        row.balance += 1
        row.save()
        changed(row)
        row.update(actions=[model.balance.set(7)], condition=model.balance == 3)
        row.row_lock.renew()
        row.save(unlock=True)
    with model.locked("a") as row:
        row.delete()
    row.save()
    with model.locked("a") as row:
        row.save()
    row.balance = 5
    row.save()  # without the lock, which nobody holds
    changed(row)
    row.delete()
    assert recording.operations() >= {"UpdateItem"}


def test_rows_that_another_holds(recording: Recording) -> None:
    Account("a").save()
    with Account.locked("a"):
        with pytest.raises(RowLockedError):
            Elsewhere("a", balance=9).save()
        with pytest.raises(RowLockedError):
            changed(Elsewhere.get("a"))
        assert not Elsewhere.locked("a").acquire(blocking=False)
    lock = Account.locked("a", auto_renew=False)
    assert lock.acquire()
    assert Elsewhere.locked("a").force_release()
    with pytest.raises(MutexLostError):
        lock.row.save()
    assert recording.refusals() >= 2


@pytest.mark.parametrize("model", [Account, Ledger])
def test_several_rows(recording: Recording, model: Any) -> None:
    for name in "abc":
        model(name).save()
    with model.locked_all(["a", "b", "c"]) as rows:
        with rows.transaction(unlock=False) as transaction:
            for row in rows:
                transaction.update(row, actions=[model.balance.add(1)])
        rows[0].save(unlock=True)
    assert recording.operations() >= {"BatchGetItem", "TransactWriteItems"}


def test_unlocked_batches(recording: Recording) -> None:
    with OldAccount.batch_write() as batch:
        batch.save(OldAccount("b", balance=1))
        batch.delete(OldAccount("a"))
    assert [account.name for account in OldAccount.scan()] == ["b"]
