"""LockItem: what items and the table say of who holds what, and breaking a claim."""

import time
from datetime import datetime, timezone

import pytest
from lock_items import Elsewhere, Wire

from pynamodb_mutex import LockItem, Mutex, MutexLostError
from pynamodb_mutex._runtime.process import forget_everything
from pynamodb_mutex.testing import expire, held_elsewhere


@pytest.fixture
def wire(monkeypatch):
    return Wire(monkeypatch)


def keys(items):
    return sorted(item.key for item in items)


def test_item_says_whether_it_is_held_and_until_when(table):
    assert table("a", token="theirs", expires_at=time.time() + 20).since is None
    item = table("a")
    assert (item.is_held, item.remaining, item.expires) == (False, 0.0, None)
    with Mutex.for_key("a", lease=20, owner="me", auto_renew=False) as mutex:
        item = table.get("a")
        assert item.is_held
        assert item.owner == "me"
        # until it may be taken over: somewhat later than its holder stops to believe
        before = item.remaining
        assert mutex.remaining <= before <= 20 + 3
        assert item.expires == datetime.fromtimestamp(item.expires_at, tz=timezone.utc)
        # by the engine's clock, which is this machine's
        assert abs(time.time() - item.since.timestamp()) < 60
        for at in (item.expires, item.since):
            assert at.utcoffset().total_seconds() == 0
        time.sleep(10)
        assert item.remaining == pytest.approx(before - 10)
        mutex.renew()
        assert table.get("a").since == item.since
        assert item.is_held
        time.sleep(15)
        assert not item.is_held
    item.refresh()
    assert (item.is_held, item.remaining, item.expires, item.since) == (False, 0.0, None, None)
    assert item.owner is None
    with held_elsewhere("a"):
        expire("a")
        item = table.get("a")
        assert (item.is_held, item.remaining) == (False, 0.0)
        assert item.expires == datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)


def test_process_without_any_answer_yet_asks_for_the_time_once(table, wire):
    with held_elsewhere("a", lease=20):
        item = table.get("a")
        forget_everything()
        wire.sent.clear()
        assert 10 < item.remaining < 25
        assert item.is_held
        assert wire.sent == ["GetItem"]
        forget_everything()
        assert keys(table.held()) == ["a"]
        forget_everything()
        # without server time the lease is what is known
        wire.after["GetItem"] = lambda answer: answer["ResponseMetadata"]["HTTPHeaders"].pop("date")
        assert item.remaining == pytest.approx(20, abs=0.1)
        assert item.is_held
        wire.after.clear()
        expire("a")
        item = table.get("a")
        forget_everything()
        assert not item.is_held


def test_held_gives_what_is_held_now_page_by_page(table, wire):
    held = table.held()
    assert wire.sent == []
    assert list(held) == []
    assert wire.sent == ["Scan"]
    with Mutex.for_key("free"):
        pass
    # each page but the last one ends after a megabyte
    for number in range(3):
        Mutex.for_key(f"large{number}", data="x" * 390_000).acquire()
    wire.sent.clear()
    with Mutex.for_key("a", owner="me"), held_elsewhere("b", owner="they"), held_elsewhere("c"):
        expire("c")
        items = list(table.held())
        assert keys(items) == ["a", "b", "large0", "large1", "large2"]
        assert {item.owner for item in items} >= {"me", "they"}
        assert all(isinstance(item, table) and item.is_held for item in items)
    assert wire.sent.count("Scan") == 2


def test_force_release_breaks_a_claim_once_also_one_that_has_ended(table):
    mutex = Mutex.for_key("a", data={"page": 3})
    assert mutex.force_release() is LockItem.force_release("a") is False
    with mutex:
        pass
    for force_release in (mutex.force_release, lambda: LockItem.force_release("a")):
        for has_ended in (False, True):
            with held_elsewhere("a") as item:
                if has_ended:
                    expire("a")
                assert (force_release(), force_release()) == (True, False)
                assert not mutex.locked()
                broken = table.get("a")
                assert (broken.data, broken.version) == ({"page": 3}, item.version + 1)
                assert broken.expires_at is None
                assert has_ended or broken.ttl.timestamp() > time.time() + 3600
                with mutex:
                    assert mutex.fencing_token == item.version + 2
                    # the claim was given up, not abandoned
                    assert not mutex.abandoned


def test_force_release_of_an_old_claim_does_not_reach_a_newer_holder_of_this_process(table, wire):
    old, new = Mutex.for_key("a", model=Elsewhere), Mutex.for_key("a")
    old.acquire()

    def taken_over():
        expire("a")
        new.acquire(blocking=False)

    wire.before["UpdateItem"] = taken_over
    assert table.force_release("a") is False
    assert new.held
    new.release()
    with pytest.raises(MutexLostError):
        old.release()
    old.acquire()

    def taken_after_it(_answer):
        wire.after.clear()
        new.acquire(blocking=False)

    wire.after["UpdateItem"] = taken_after_it
    assert table.force_release("a") is True
    assert new.held


FAR = {"N": "4102444800"}  # the year 2100
CLAIM = {"token": {"S": "theirs"}, "version": {"N": "7"}, "expires_at": FAR, "lease": {"N": "30"}}
ODD = {
    "session": {"user": {"S": "Ann"}, "expires_at": FAR},
    "end": {**CLAIM, "expires_at": {"S": "soon"}},
    "fraction": {**CLAIM, "version": {"N": "7.5"}},
    "data": {**CLAIM, "data": {"S": "{no"}},
    "map": {**CLAIM, "data": {"M": {}}},
    "ttl": {**CLAIM, "ttl": {"N": "1" + "0" * 30}},
}


def put(table, key, attributes):
    client = table._get_connection().connection.client
    client.put_item(TableName=table.Meta.table_name, Item={"key": {"S": key}, **attributes})


def test_held_leaves_out_odd_rows_with_a_warning(table, caplog):
    for key, attributes in ODD.items():
        put(table, key, attributes)
    put(table, "theirs", CLAIM)
    with Mutex.for_key("a"):
        assert keys(table.held()) == ["a", "theirs"]
    warnings = [each for each in caplog.records if "left out of LockItem.held()" in each.message]
    assert sorted(record.lock_key for record in warnings) == sorted(ODD)
    for record in warnings:
        assert record.levelname == "WARNING"
        assert repr(record.lock_key) in record.message


def test_item_with_times_that_are_no_dates_shows_none(table):
    for end in (-1e15, -1.0, 253402300800.0, 4102444800e3, 1e30):
        put(table, "a", {**CLAIM, "expires_at": {"N": repr(end)}})
        item = table.get("a")
        assert item.expires is None
        # also where the row is read first for server time
        forget_everything()
        assert item.is_held == (end > 0)
    put(table, "a", {**CLAIM, "token": {"S": "f" * 12 + "7" + "0" * 20}})
    item = table.get("a")
    assert item.since is None
    assert item.expires.year == 2100
