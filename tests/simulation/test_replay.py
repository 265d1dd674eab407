"""What the simulated DynamoDB answered is what DynamoDB Local answers to the same requests."""

import threading
import time

import pytest
from accounts import Account, Elsewhere, Ledger, changed
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
from row_tables import created, meta
from table_stores import SCHEMA

from dev.simulation.recording import recorded
from dev.simulation.replay import Client, expected, replay, replay_schedule
from dev.simulation.schedule import Size
from dev.simulation.table import Tables
from dev.simulation.values import Refusal
from pynamodb_mutex import LockItem, Mutex, MutexLostError, RowLockedError, Semaphore
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture(scope="module")
def client(local_engine):
    """A client of DynamoDB Local."""
    return Client(local_engine.endpoint_url)


# -- schedules ------------------------------------------------------------------------------------


@pytest.mark.local
@pytest.mark.parametrize("seed", range(4))
def test_schedules_are_answered_as_by_dynamodb_local(client, seed):
    """`.ci/run` replays more."""
    assert replay_schedule(client, seed) > 10


@pytest.mark.local
@pytest.mark.parametrize("strikes", [0, 6])
def test_waiting_in_line_is_answered_as_by_dynamodb_local(client, strikes):
    """Lists in rows: entries at places, appended and removed."""
    ways, faults = ("lock_fair", "lock_one"), {"lost_answer": 0.05}
    assert replay_schedule(client, 0, Size(8, 2, 6, 1, 1, ways, faults, strikes, 60.0)) > 300


# -- what the library sends -----------------------------------------------------------------------


class Another(LockItem):
    """The same table with another connection and another queue, as in another process."""

    class Meta(LockItem.Meta):
        pass


@pytest.fixture(params=["simulated", "local"])
def requests(request):
    """Record what is sent in the simulated world of the test, and then let DynamoDB Local answer it."""
    client = request.getfixturevalue("client") if request.param == "local" else None
    with recorded() as requests:
        yield requests
    if client is not None:
        replay(client, requests)


@pytest.fixture
def sent(requests, table, accounts, ledger, monkeypatch):
    """Return the operations so far; the creation of the tables is recorded, too."""
    monkeypatch.setattr(Another.Meta, "table_name", table.Meta.table_name)
    return lambda: {each.operation for each in requests}


def take(key):
    """Make a lock another's, by hand: what this library does would be noticed in this process."""
    Another._get_connection().update_item(key, actions=[Another.token.set("another's")])


def test_locks_are_answered_as_by_dynamodb_local(sent):
    for _ in range(2):
        with Mutex.for_key("a", data={"n": 1}) as mutex:
            mutex.renew()
            mutex.renew(lease=20)
            mutex.save_data({"n": [1.5, None]})
            mutex.save_data(None)
            assert not Mutex.for_key("a", model=Another).acquire(timeout=0.3)
        with Mutex.for_key("b", delete_on_release=True, owner="somebody"):
            assert Mutex.for_key("b", model=Another).locked()
            assert {item.key for item in LockItem.held()} == {"b"}
    with held_elsewhere("b"):
        assert not Mutex.for_key("b").acquire(blocking=False)
    first = Mutex.for_key("a", auto_renew=False)
    assert first.acquire()
    expire("a")
    second = Mutex.for_key("a", model=Another)
    assert second.acquire(timeout=20)
    with pytest.raises(MutexLostError):
        first.renew()
    third = Mutex.attach(second.detach())
    third.save_data(2)
    assert LockItem.force_release("a")
    assert not LockItem.force_release("a")
    with pytest.raises(MutexLostError):
        third.save_data(1)
    assert sent() >= {"DeleteItem", "GetItem", "Scan", "UpdateItem"}


def test_hand_over_and_renewals_are_answered_as_by_dynamodb_local(sent):
    def work():
        for _ in range(3):
            with Mutex.for_key("a", data="x"):
                time.sleep(0.01)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mutexes = [Mutex.for_key(f"key {n}") for n in range(4)]
    assert all(mutex.acquire() for mutex in mutexes)
    take("key 1")
    Another._get_connection().delete_item("key 2")
    time.sleep(25)
    assert [mutex.held for mutex in mutexes] == [True, False, False, True]
    assert "BatchExecuteStatement" in sent()


def test_several_locks_are_answered_as_by_dynamodb_local(sent):
    with Mutex.for_keys(["a", "b", "c"], data=1) as mutex:
        mutex.renew()
        with mutex.transaction() as transaction:
            transaction.save(Account("x", balance=7))
            transaction.update(Account("a"), actions=[Account.balance.add(4)])
        with mutex.transaction() as transaction:
            transaction.delete(Account("x"))
        assert not Mutex.for_keys(["c", "d"], model=Another).acquire(blocking=False)
    single = Mutex.for_key("e")
    assert single.acquire()
    take("e")
    transaction = single.transaction()
    transaction.save(Account("never"))
    with pytest.raises(MutexLostError), transaction:
        pass
    poll = {"poll": (0.02, 0.05)}
    with Mutex.any_of(["c", "d"], **poll), Mutex.any_of(["c", "d"], model=Another, **poll):
        assert not Mutex.any_of(["c", "d"], **poll).acquire(timeout=0.3)
    with Semaphore.for_key("s", permits=2), Semaphore.for_key("s", permits=2, model=Another):
        assert not Semaphore.for_key("s", permits=2).acquire(blocking=False)
    assert sent() >= {"TransactWriteItems", "BatchGetItem"}


@pytest.mark.parametrize("model", [Account, Ledger])
def test_rows_are_answered_as_by_dynamodb_local(sent, model):
    with model.locked("a") as row:
        row.balance += 1
        row.save()
        changed(row)
        row.update(actions=[model.balance.set(7)], condition=model.balance == 2)
        row.row_lock.renew()
        row.save(unlock=True)
    with model.locked("a") as row:
        row.delete()
    row.save()
    changed(row)  # without the lock, which nobody holds
    row.delete()
    for name in "abc":
        model(name).save()
    with model.locked_all(["a", "b", "c"]) as rows:
        with rows.transaction(unlock=False) as transaction:
            for row in rows:
                transaction.update(row, actions=[model.balance.add(1)])
        rows[0].save(unlock=True)
    assert sent() >= {"BatchGetItem", "TransactWriteItems"}


def test_rows_that_another_holds_are_answered_as_by_dynamodb_local(sent):
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


# -- what PynamoDB sends for models without locks -------------------------------------------------


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

    Meta = meta("readings")

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


@pytest.fixture
def readings(requests, engine):
    """Rows in a table of their own."""
    created(Reading)
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


def test_reads_of_pynamodb(readings):
    found = list(Reading.query("attic", Reading.at > 2, scan_index_forward=False, page_size=2))
    assert [reading.at for reading in found] == [5, 4, 3]
    assert found[0].tags == {"a", "b5"}
    assert found[0].about["depth"] == {"of": 5}
    filtered = Reading.query("attic", filter_condition=Reading.value.between(0.5, 1), limit=1)
    assert [reading.at for reading in filtered] == [2]
    assert Reading.count("attic", Reading.at.between(2, 4)) == 3
    by_sensor = Reading.by_sensor.query("cellar", BySensor.sensor == "sensor 1")
    assert [reading.at for reading in by_sensor] == [1, 4]
    ordered = Reading.by_kind.query("heat", ByKind.value <= 1, rate_limit=1000)
    assert [reading.value for reading in ordered] == [0.25, 0.25, 0.75, 0.75]
    names = list(Reading.query("attic", attributes_to_get=["value", "about.by"]))
    assert {reading.about["by"] for reading in names} == {"me"}
    warm = (Reading.kind == "heat") & Reading.tags.contains("a")
    assert len(list(Reading.scan(warm, rate_limit=1000))) == 6
    segments = [list(Reading.scan(segment=number, total_segments=2)) for number in range(2)]
    assert len(segments[0] + segments[1]) == 10
    assert len(list(Reading.by_kind.scan())) == 6


def test_writes_of_pynamodb(readings):
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


def test_transactions_of_pynamodb(readings):
    connection = Connection(host=Reading.Meta.host, region="us-east-1")
    first, second, third, *_ = readings
    with TransactWrite(connection=connection, client_request_token="token") as transaction:
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
    assert Reading.describe_table()["TableStatus"] == "ACTIVE"


# -- the replay itself ----------------------------------------------------------------------------


@pytest.fixture
def some():
    """Some requests of each kind that is compared in a way of its own."""
    tables = Tables()
    keys = [{"kk": {"S": f"row {number}"}} for number in range(3)]
    everything = {"rows": {"Keys": keys, "ConsistentRead": True}}
    with recorded() as requests:
        tables.apply("CreateTable", {"TableName": "rows", **SCHEMA})
        tables.batch_limit = 2
        writes = [{"PutRequest": {"Item": key}} for key in keys]
        tables.apply("BatchWriteItem", {"RequestItems": {"rows": writes}})
        tables.apply("BatchGetItem", {"RequestItems": everything})
        tables.batch_limit = None
        tables.apply("BatchGetItem", {"RequestItems": everything})
        tables.apply("Scan", {"TableName": "rows"}, 0)
        tables.apply("Scan", {"TableName": "rows", "Limit": 1})
        unfit = {"TableName": "rows", "Key": keys[0], "UpdateExpression": "SET aa = gone"}
        with pytest.raises(Refusal):
            tables.apply("TransactWriteItems", {"TransactItems": [{"Update": unfit}]})
        item = {"kk": {"S": "binary"}, "bb": {"B": b"x"}, "ss": {"BS": [b"y", b"x"]}}
        tables.apply("PutItem", {"TableName": "rows", "Item": item})
        statement = 'UPDATE "rows" SET "nn" = ? WHERE "kk" = ? RETURNING ALL NEW *'
        updating = {"Statement": statement, "Parameters": [{"N": "1"}, {"S": "binary"}]}
        tables.apply("BatchExecuteStatement", {"Statements": [updating]})
        tables.apply("GetItem", {"TableName": "rows", "Key": keys[1]})
    return requests


@pytest.mark.local
def test_replay_compares_all_but_what_need_not_be_equal(client, some):
    assert len(some) == 10
    replay(client, some)
    some[-1] = some[-1]._replace(outcome={})
    with pytest.raises(AssertionError, match="GetItem"):
        replay(client, some)


def test_recording_has_refusals_and_times():
    now = 0.0
    tables = Tables(clock=lambda: now)
    with recorded() as requests:
        tables.apply("CreateTable", {"TableName": "rows", **SCHEMA})
        now = 7.0
        with pytest.raises(Refusal):
            tables.apply("GetItem", {"TableName": "rows", "Key": {}}, 3)
    tables.apply("DescribeTable", {"TableName": "rows"})
    _, refused = requests
    assert refused[:5] == (tables, "GetItem", {"TableName": "rows", "Key": {}}, 3, 7.0)
    assert expected(refused) == {"Error": {"Code": "ValidationException"}}
