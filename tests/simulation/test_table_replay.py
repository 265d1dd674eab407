"""What the library sends to an engine, the table in memory answers as the engine did."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from accounts import Account, Elsewhere, Ledger, changed
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from pynamodb.attributes import (
    BinaryAttribute,
    BooleanAttribute,
    ListAttribute,
    MapAttribute,
    NumberAttribute,
    NumberSetAttribute,
    UnicodeAttribute,
    UnicodeSetAttribute,
    VersionAttribute,
)
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.expressions.condition import size
from pynamodb.indexes import (
    AllProjection,
    GlobalSecondaryIndex,
    IncludeProjection,
    LocalSecondaryIndex,
)
from pynamodb.models import Model
from pynamodb.transactions import TransactGet, TransactWrite

from dev.simulation.answers import answer_of, comparable
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

pytestmark = pytest.mark.real

ABOUT_TABLES = {
    "CreateTable",
    "DeleteTable",
    "DescribeTable",
    "DescribeTimeToLive",
    "ListTables",
    "UpdateTable",
    "UpdateTimeToLive",
}


class BySensor(LocalSecondaryIndex):
    """Readings of a place by their sensor."""

    class Meta:
        index_name = "by-sensor"
        projection = AllProjection()

    place = UnicodeAttribute(hash_key=True)
    sensor = UnicodeAttribute(range_key=True)


class ByKind(GlobalSecondaryIndex):
    """Readings of a kind by their value."""

    class Meta:
        index_name = "by-kind"
        projection = IncludeProjection(["sensor"])

    kind = UnicodeAttribute(hash_key=True)
    value = NumberAttribute(range_key=True)


class Reading(Model):
    """Rows with a range key, indexes, and attributes of each type."""

    class Meta(LockItem.Meta):
        pass

    place = UnicodeAttribute(hash_key=True)
    at = NumberAttribute(range_key=True)
    sensor = UnicodeAttribute(null=True)
    kind = UnicodeAttribute(null=True)
    value = NumberAttribute(null=True)
    raw = BinaryAttribute(null=True, legacy_encoding=False)
    valid = BooleanAttribute(default=True)
    tags = UnicodeSetAttribute(null=True)
    levels = NumberSetAttribute(null=True)
    notes = ListAttribute(null=True)
    about = MapAttribute(null=True)
    version = VersionAttribute()
    by_sensor = BySensor()
    by_kind = ByKind()


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


# -- what PynamoDB sends for models without locks -------------------------------------------------


@pytest.fixture
def readings(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> list[Reading]:
    """Rows in a table of their own."""
    monkeypatch.setattr(Reading.Meta, "table_name", f"readings-{uuid.uuid4().hex}", raising=False)
    Reading.create_table(billing_mode="PAY_PER_REQUEST", wait=True)
    made = [
        Reading(
            place,
            at,
            sensor=f"sensor {at % 3}",
            kind="heat" if at % 2 else None,
            value=at / 4,
            raw=bytes([at]),
            tags={"a", f"b{at}"},
            levels={1, at + 0.5},
            notes=["x", at],
            about={"by": "me", "depth": {"of": at}},
        )
        for place in ("attic", "cellar")
        for at in range(1, 6)
    ]
    for reading in made:
        reading.save()
    return made


def test_queries_of_pynamodb(recording: Recording, readings: list[Reading]) -> None:
    found = list(Reading.query("attic", Reading.at > 2, scan_index_forward=False, page_size=2))
    assert [reading.at for reading in found] == [5, 4, 3]
    assert found[0].tags == {"a", "b5"}
    assert found[0].about["depth"] == {"of": 5}
    filtered = Reading.query("attic", filter_condition=Reading.value.between(0.5, 1), limit=1)
    assert [reading.at for reading in filtered] == [2]
    assert Reading.count("attic", Reading.at.between(2, 4)) == 3
    assert [
        each.at for each in Reading.by_sensor.query("cellar", BySensor.sensor == "sensor 1")
    ] == [1, 4]
    ordered = Reading.by_kind.query("heat", ByKind.value <= 1, rate_limit=1000)
    assert [reading.value for reading in ordered] == [0.25, 0.25, 0.75, 0.75]
    names = list(Reading.query("attic", attributes_to_get=["value", "about.by"]))
    assert {reading.about["by"] for reading in names} == {"me"}
    assert "Query" in recording.operations()


def test_scans_of_pynamodb(recording: Recording, readings: list[Reading]) -> None:
    heat = list(
        Reading.scan((Reading.kind == "heat") & Reading.tags.contains("a"), rate_limit=1000)
    )
    assert len(heat) == 6
    segments = [list(Reading.scan(segment=number, total_segments=2)) for number in range(2)]
    assert len(segments[0] + segments[1]) == 10
    assert len(list(Reading.by_kind.scan())) == 6
    # the rows of a segment are DynamoDB's secret
    recording[:] = [each for each in recording if "Segment" not in each.kwargs]


def test_writes_of_pynamodb(recording: Recording, readings: list[Reading]) -> None:
    first, second, *_ = readings
    first.update(
        actions=[
            Reading.value.add(2),
            Reading.tags.delete({"a"}),
            Reading.levels.add({9}),
            Reading.notes.set(Reading.notes.append(["y"])),
            Reading.about["by"].remove(),
            Reading.kind.set(Reading.sensor | "none"),
            Reading.valid.set(False),
        ],
        condition=Reading.about["depth"].exists() & (size(Reading.notes) == 2),
    )
    first.update(actions=[Reading.notes[0].set("z"), Reading.notes[1].remove()])
    assert first.notes == ["z", "y"]
    with pytest.raises(PutError):
        Reading("attic", 1).save(Reading.value.does_not_exist())
    second.delete(Reading.raw == bytes([2]))
    with pytest.raises(Reading.DoesNotExist):
        second.refresh()
    with Reading.batch_write() as batch:
        batch.save(Reading("loft", 1))
        batch.delete(first)
    keys = [("loft", 1), ("attic", 1), ("attic", 3)]
    found = Reading.batch_get(keys, consistent_read=True, attributes_to_get=["place", "at"])
    assert {(reading.place, reading.at) for reading in found} == {("loft", 1), ("attic", 3)}
    assert recording.operations() >= {"BatchGetItem", "BatchWriteItem", "DeleteItem", "PutItem"}


def test_transactions_of_pynamodb(recording: Recording, readings: list[Reading]) -> None:
    connection = Connection(host=Reading.Meta.host, region="us-east-1")
    token = uuid.uuid4().hex
    first, second, third, *_ = readings
    with TransactWrite(connection=connection, client_request_token=token) as transaction:
        transaction.condition_check(Reading, "cellar", 1, condition=Reading.value < 1)
        transaction.update(first, actions=[Reading.value.set(7)], return_values="ALL_OLD")
        transaction.delete(second)
        transaction.save(Reading("loft", 2, notes=[None, {"x": b"y"}]))
    transaction = TransactWrite(connection=connection)
    transaction.save(Reading("loft", 3))
    transaction.delete(third, condition=Reading.value > 100)
    with pytest.raises(TransactWriteError), transaction:
        pass
    with TransactGet(connection=connection) as transaction:
        found = [transaction.get(Reading, "loft", at) for at in (2, 3)]
    assert found[0].get().notes[1]["x"] == b"y"
    with pytest.raises(Reading.DoesNotExist):
        found[1].get()
    assert recording.refusals() == 1


def test_tables_of_pynamodb(recording: Recording, readings: list[Reading]) -> None:
    assert Reading.exists()
    assert Reading.describe_table()["TableStatus"] == "ACTIVE"
    Reading.delete_table()
    assert not Reading.exists()
