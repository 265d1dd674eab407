"""What the simulated DynamoDB answered is what DynamoDB Local answers to the same requests."""

import time
from contextlib import suppress
from functools import partial

import pytest
from kinds_of_locks import LOSSES
from pynamodb import attributes as of
from pynamodb.connection import Connection
from pynamodb.exceptions import PutError, TransactWriteError
from pynamodb.indexes import GlobalSecondaryIndex, IncludeProjection
from pynamodb.models import Model
from pynamodb.transactions import TransactGet, TransactWrite
from row_models import created, meta
from tables import SCHEMA
from two_clients import held

from dev.simulation.recording import recorded
from dev.simulation.replay import client_of, expected, replay, replay_schedule
from dev.simulation.schedule import Size
from dev.simulation.table import Tables
from dev.simulation.values import Refusal
from pynamodb_mutex import LockItem, Mutex, MutexError, MutexLostError, RowLockedError


@pytest.fixture(scope="module")
def client(local_engine):
    return client_of(local_engine.endpoint_url)


@pytest.fixture
def requests(client):
    """Record what is sent in the simulated world of the test, and then let DynamoDB Local answer it."""
    with recorded() as requests:
        yield requests
    replay(client, requests)


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


@pytest.mark.local
def test_locks_of_every_kind_are_answered_as_by_dynamodb_local(requests, subject):
    for loss, _ in LOSSES:
        lock = subject.held(auto_renew=False)
        lock.renew()
        assert not subject.other().acquire(blocking=False)
        other = getattr(subject, loss)()
        with pytest.raises(MutexLostError):
            lock.renew()
        with suppress(MutexError):
            lock.release()
        if "taken" in loss:
            other.release()
    assert len(requests) > 30


@pytest.mark.local
def test_writes_in_every_way_are_answered_as_by_dynamodb_local(requests, written):
    written.acquire()
    written.write()
    if not written.deletes:
        written.cycle_of_another()
        with pytest.raises(MutexLostError):
            written.write()
    assert len(requests) > 10


@pytest.mark.local
def test_writes_without_the_lock_are_answered_as_by_dynamodb_local(requests, any_scene):
    model = any_scene.there
    row = model(any_scene.key, balance=1)
    update = partial(row.update, actions=[model.balance.add(1)])
    row.save()
    update()
    locked = any_scene.locked()
    for write in (row.save, row.delete, update):
        with pytest.raises(RowLockedError):
            write()
    locked.save(unlock=True)
    row.delete()
    assert len(requests) > 10


@pytest.mark.local
def test_losses_and_tickets_are_answered_as_by_dynamodb_local(requests, table, pool):
    def work(_):
        for _ in range(3):
            with Mutex.for_key("a", data="x", delete_on_release=True):
                time.sleep(0.01)

    list(pool.map(work, range(3)))
    mutexes = [held(Mutex.for_key(f"key {number}")) for number in range(4)]
    # by hand: what this library does would be noticed in this process
    rows = table._get_connection()
    rows.update_item("key 1", actions=[table.token.set("another's")])
    rows.delete_item("key 2")
    assert {item.key for item in LockItem.held()} == {"key 0", "key 1", "key 3"}
    time.sleep(25)
    assert [mutex.held for mutex in mutexes] == [True, False, False, True]
    attached = Mutex.attach(mutexes[0].detach())
    attached.save_data({"n": [1.5, None]})
    attached.release()
    assert {"DeleteItem", "Scan", "UpdateItem"} <= {each.operation for each in requests}


class ByKind(GlobalSecondaryIndex):
    class Meta:
        index_name = "by-kind"
        projection = IncludeProjection(["raw"])

    kind = of.UnicodeAttribute(hash_key=True)
    value = of.NumberAttribute(range_key=True)


class Reading(Model):
    Meta = meta("readings")

    place = of.UnicodeAttribute(hash_key=True)
    at = of.NumberAttribute(range_key=True)
    kind = of.UnicodeAttribute(null=True)
    value = of.NumberAttribute(null=True)
    raw = of.BinaryAttribute(null=True, legacy_encoding=False)
    tags = of.UnicodeSetAttribute(null=True)
    about = of.MapAttribute(null=True)
    version = of.VersionAttribute()
    by_kind = ByKind()


@pytest.mark.local
def test_models_are_answered_as_by_dynamodb_local(requests, engine):
    created(Reading)
    with Reading.batch_write() as batch:
        for at in range(1, 6):
            more = {"kind": "heat" if at % 2 else None, "about": {"by": "me", "depth": {"of": at}}}
            batch.save(Reading("attic", at, value=at / 4, raw=bytes([at]), tags={"a"}, **more))
    found = list(Reading.query("attic", Reading.at > 2, scan_index_forward=False, page_size=2))
    shown = [(each.at, each.raw, each.about["depth"]) for each in found]
    assert shown == [(at, bytes([at]), {"of": at}) for at in (5, 4, 3)]
    filtered = Reading.query("attic", filter_condition=Reading.value.between(0.5, 1), limit=1)
    assert [each.at for each in filtered] == [2]
    assert Reading.count("attic", Reading.at.between(2, 4)) == 3
    by_kind = Reading.by_kind.query("heat", ByKind.value <= 1, rate_limit=1000)
    assert [each.value for each in by_kind] == [0.25, 0.75]
    parts = list(Reading.query("attic", attributes_to_get=["value", "about.by"]))
    assert {each.about["by"] for each in parts} == {"me"}
    assert len(list(Reading.scan(Reading.tags.contains("a"), rate_limit=1000))) == 5

    first, *_, last = found
    actions = [Reading.value.add(2), Reading.tags.add({"b"}), Reading.about["by"].remove()]
    actions.append(Reading.kind.set(Reading.kind | "none"))
    first.update(actions=actions, condition=Reading.about["depth"].exists())
    assert (first.value, first.tags) == (3.25, {"a", "b"})
    with pytest.raises(PutError):
        Reading("attic", 1).save(Reading.value.does_not_exist())
    last.delete(Reading.raw == bytes([3]))
    connection = Connection(host=Reading.Meta.host, region="us-east-1")
    with TransactWrite(connection=connection, client_request_token="token") as transaction:
        transaction.condition_check(Reading, "attic", 1, condition=Reading.value < 1)
        transaction.update(first, actions=[Reading.value.set(7)], return_values="ALL_OLD")
        transaction.save(Reading("loft", 2))
    transaction = TransactWrite(connection=connection)
    transaction.delete(Reading("attic", 1), condition=Reading.value > 100)
    with pytest.raises(TransactWriteError), transaction:
        pass
    with TransactGet(connection=connection) as transaction:
        there, gone = (transaction.get(Reading, "loft", at) for at in (2, 3))
    assert there.get().at == 2
    with pytest.raises(Reading.DoesNotExist):
        gone.get()
    keys = [("loft", 2), ("attic", 1), ("attic", 3)]
    got = Reading.batch_get(keys, consistent_read=True, attributes_to_get=["place", "at"])
    assert {(each.place, each.at) for each in got} == {("loft", 2), ("attic", 1)}


@pytest.mark.local
def test_replay_compares_all_but_what_need_not_be_equal(client):
    """Some requests of each kind that is compared in a way of its own."""
    tables, name = Tables(), {"TableName": "rows"}
    keys = [{"kk": {"S": f"row {number}"}} for number in range(3)]
    everything = {"RequestItems": {"rows": {"Keys": keys, "ConsistentRead": True}}}
    unfit = {**name, "Key": keys[0], "UpdateExpression": "SET aa = gone"}
    item = {"kk": {"S": "binary"}, "bb": {"B": b"x"}, "ss": {"BS": [b"y", b"x"]}}
    with recorded() as requests:
        tables.apply("CreateTable", {**name, **SCHEMA})
        writes = [{"PutRequest": {"Item": key}} for key in keys]
        tables.apply("BatchWriteItem", {"RequestItems": {"rows": writes}})
        tables.apply("BatchGetItem", everything)
        tables.apply("Scan", name, 0)
        tables.apply("Scan", {**name, "Limit": 1})
        with pytest.raises(Refusal):
            tables.apply("TransactWriteItems", {"TransactItems": [{"Update": unfit}]})
        tables.apply("PutItem", {**name, "Item": item})
        tables.apply("GetItem", {**name, "Key": keys[1]})
    assert len(requests) == 8
    replay(client, requests)
    requests[-1] = requests[-1]._replace(outcome={})
    with pytest.raises(AssertionError, match="GetItem"):
        replay(client, requests)


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
