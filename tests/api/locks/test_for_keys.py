"""Several keys, all or none: the calls, and what the group says of itself."""

from __future__ import annotations

import pickle
import re
import threading
import time
from typing import Any

import pytest
from group_scene import Keys, kinds
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model

from pynamodb_mutex import (
    InvalidKeyError,
    LockItem,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
)
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex.testing import FakeClock

# -- which keys ------------------------------------------------------------------------------------


def test_one_key_twice_is_one_lock() -> None:
    group = Mutex.for_keys(["a", "b", Mutex.for_key("a"), "b"])
    assert group.keys == ("a", "b")
    assert [mutex.key for mutex in group.members] == ["a", "b"]


@pytest.mark.parametrize("second", [Mutex.for_key("a", lease=7), Mutex.for_key("a", data=1)])
def test_one_key_twice_with_different_options_is_refused(second: Mutex) -> None:
    with pytest.raises(ValueError, match="'a' comes twice"):
        Mutex.for_keys(["a", second])


@pytest.mark.parametrize("keys", [[], [str(n) for n in range(101)]])
def test_no_key_and_too_many_are_refused(keys: list[str]) -> None:
    with pytest.raises(ValueError, match="1 to 100"):
        Mutex.for_keys(keys)


@pytest.mark.parametrize("key", ["abc", Mutex.for_key("abc")])
def test_one_key_is_not_taken_for_several(key: Any) -> None:
    with pytest.raises(TypeError, match="several"):
        Mutex.for_keys(key)


def test_keys_and_options_are_checked() -> None:
    with pytest.raises(InvalidKeyError):
        Mutex.for_keys(["a", ""])
    with pytest.raises(ValueError, match="lease"):
        Mutex.for_keys([Mutex.for_key("a")], lease=0.1)


@pytest.mark.parametrize("what", ["region", "host"])
def test_tables_that_one_transaction_cannot_reach_are_refused(what: str) -> None:
    class Here(LockItem):
        class Meta(LockItem.Meta):
            table_name = "here"

    class There(LockItem):
        class Meta(LockItem.Meta):
            table_name = "there"

    class Anywhere(LockItem):
        class Meta(LockItem.Meta):
            table_name = "anywhere"

    for model, place in ((Here, "http://one"), (There, "http://other"), (Anywhere, None)):
        setattr(model.Meta, what, place)
    keys = [Mutex.for_key("a", model=There), Mutex.for_key("a", model=Anywhere)]
    Mutex.for_keys(keys, model=Here)
    with pytest.raises(ValueError, match=f"{what} only, not .*there in .*here in"):
        Mutex.for_keys([*keys, "a"], model=Here)


@pytest.mark.real
def test_locks_of_several_tables_are_taken_together(
    table: type[LockItem], accounts: type[Model]
) -> None:
    row: Any = accounts
    account = row.locked("a")
    other = Mutex.for_row(row, "b", lock_model=table)
    group = Mutex.for_keys(["a", account, other])
    with group:
        assert account.held
        assert not row.locked("a").acquire(blocking=False)
        assert not Mutex.for_row(row, "b").acquire(blocking=False)
        account.row.save()
        assert list(group.fencing_tokens) == ["a", account.key, other.key]
    assert not group.locked()


def test_one_key_of_two_tables_is_two_locks(keys: Keys) -> None:
    class Second(LockItem):
        class Meta(LockItem.Meta):
            table_name = f"{keys.scene.there.Meta.table_name}-2"

    Second.create_table()
    second = Mutex.for_key(keys.keys[0], model=Second)
    first = Mutex.for_key(keys.keys[0], model=keys.scene.there)
    with Mutex.for_keys([first, second]) as group:
        assert first.held
        assert second.held
        with pytest.raises(MutexError, match="two tables"):
            print(group.fencing_tokens)
        # looked at by one read
        more = Mutex.for_key(second.key, model=Second)
        waiting = Mutex.for_keys([keys.keys[0], more], model=keys.scene.here)
        assert not waiting.acquire(timeout=2.0)
        (look, *_) = keys.scene.proxy.of("BatchGetItem")
        assert set(look.body["RequestItems"]) == {
            m.Meta.table_name for m in (keys.scene.there, Second)
        }
        assert not any(each["ConsistentRead"] for each in look.body["RequestItems"].values())
    assert not second.locked()


# -- calls -----------------------------------------------------------------------------------------


@pytest.mark.real
def test_two_requests_acquire_and_release(keys: Keys) -> None:
    group = keys.group(lease=20, owner="me")
    assert not group.locked()
    keys.scene.proxy.start_anew()
    with group as entered:
        assert entered is group
        assert kinds(keys.scene.proxy) == ["3 acquire"]
        assert group.held
        assert 10 < group.remaining <= 20
        assert 10 < group.deadline - local_clock().now() <= 20
        assert [row.owner for row in keys.rows] == ["me"] * 3
        assert group.fencing_tokens == {row.key: row.version for row in keys.rows}
        assert group.locked()
        assert re.search(r"<MutexGroup .*-a', .*-b', .*-c': held, 1\d\.\d s left>", repr(group))
    assert kinds(keys.scene.proxy) == ["3 acquire", "BatchGetItem", "3 release"]
    assert not group.held
    assert not group.lost
    assert all(keys.free())
    before = group.fencing_tokens
    with group:
        assert all(group.fencing_tokens[key] > before[key] for key in group.keys)
    assert "not held" in repr(group)


def test_none_is_taken_if_one_is_held(keys: Keys) -> None:
    other = keys.taken(1, lease=20)
    assert not keys.group().acquire(blocking=False)
    with pytest.raises(MutexTimeoutError) as raised, keys.group(timeout=0.2):
        pass
    assert (raised.value.key, raised.value.owner) == (other.key, "other")
    assert raised.value.expires_at == keys.there(1).expires_at
    assert keys.free() == [True, False, True]
    other.release()
    with keys.group():
        assert not any(keys.free())


def test_what_is_not_held_says_so() -> None:
    group = Mutex.for_keys(["a", "b"])
    assert not group.held
    assert group.remaining == 0
    assert group.loss is None
    calls = (group.release, group.renew, group.ensure_held, group.transaction)
    for call in (*calls, lambda: group.deadline, lambda: group.fencing_tokens):
        with pytest.raises(MutexNotHeldError, match="not held"):
            call()
    with pytest.raises(TypeError, match=r"\.held"):
        bool(group)
    with pytest.raises(TypeError, match="make it where"):
        pickle.dumps(group)


@pytest.mark.real
def test_renewed_by_one_request(keys: Keys) -> None:
    with FakeClock() as clock, keys.group(lease=200, auto_renew=False) as group:
        clock.advance(100)
        group.ensure_held(50)
        before = keys.ends
        group.ensure_held(150)
        assert group.remaining > 150
        between = keys.ends
        group.renew(600)
        assert group.remaining > 500
        assert all(a < b < c for a, b, c in zip(before, between, keys.ends, strict=True))
        with pytest.raises(ValueError, match="lease"):
            group.renew(0.1)
        # a member's renewal is everybody's
        group.members[1].renew(900)
        assert group.remaining > 800
        assert kinds(keys.scene.proxy) == ["3 acquire", *["3 renew"] * 3]


def test_released_one_by_one(keys: Keys) -> None:
    with keys.group(lease=20) as group:
        group.members[1].release()
        assert keys.free() == [False, True, False]
        assert not group.held
        assert not group.lost
        group.renew()
        with pytest.raises(MutexAlreadyHeldError):
            group.acquire()
        group.members[0].release()
        other = keys.taken(0)
    assert all(not each.lost for each in group.members)
    assert keys.free() == [False, True, True]
    assert kinds(keys.scene.proxy) == ["3 acquire", "release", "2 renew", "release", "1 release"]
    other.release()


def test_rows_are_deleted_if_that_is_asked_for(keys: Keys) -> None:
    group = keys.group(delete_on_release=True)
    with group:
        with pytest.raises(MutexError, match="delete_on_release"):
            print(group.fencing_tokens)
        with pytest.raises(MutexError, match=r"transaction: .* late copies"):
            group.transaction()
        assert group.held
    assert keys.scene.there.count(keys.keys[0], consistent_read=True) == 0
    assert not group.lost
    # what somebody cleared by hand is a loss
    group.acquire()
    connection = keys.scene.there._get_connection()
    connection.update_item(keys.keys[1], actions=[keys.scene.there.expires_at.remove()])
    with pytest.raises(MutexLostError):
        group.release()
    assert all(keys.scene.there.count(key, consistent_read=True) == 0 for key in keys.keys[::2])


class Note(Model):
    """A row that nothing guards but a transaction."""

    class Meta:
        table_name = "set by the test"

    key = UnicodeAttribute(hash_key=True)


@pytest.mark.parametrize("place", [None, 0, 2])
def test_a_transaction_needs_all_the_locks(keys: Keys, place: int | None) -> None:
    class Mine(Note):
        class Meta:
            table_name = keys.scene.there.Meta.table_name

    group = keys.group(auto_renew=False)
    assert group.acquire()
    transaction = group.transaction()
    transaction.save(Mine(f"{keys.scene.key}-note"))
    if place is None:
        with transaction:
            pass
        assert group.held
        group.release()
    else:
        keys.force(place)
        with pytest.raises(MutexLostError), transaction:
            pass
        assert group.loss is Loss.FORCED
        with pytest.raises(MutexLostError):
            group.transaction()
    assert Mine.count(f"{keys.scene.key}-note") == (place is None)


def test_a_decorator_takes_a_fresh_group_for_each_call(keys: Keys) -> None:
    group = keys.group(reentrant=True)

    @group
    def count(left: int) -> int:
        """Count down."""
        assert not any(keys.free())
        return 1 + count(left - 1) if left else 0

    assert count(2) == 2
    assert count.__doc__ == "Count down."
    assert all(keys.free())
    assert kinds(keys.scene.proxy) == ["3 acquire", "3 release"]
    with pytest.raises(TypeError, match="async"):

        @group
        async def later() -> None:
            pass


# -- threads ---------------------------------------------------------------------------------------


def test_a_thread_enters_again_all_or_none(keys: Keys) -> None:
    group = keys.group(reentrant=True)
    with group:
        with group, keys.group(2, 1, 0, reentrant=True) as same, group.members[1]:
            assert same.held
            assert list(same.fencing_tokens) == [mutex.key for mutex in same.members]
            with pytest.raises(MutexAlreadyHeldError, match="all together"):
                keys.group(0, 1, reentrant=True).acquire()
        assert not any(keys.free())
        assert group.held
    assert all(keys.free())
    with group.members[0], pytest.raises(MutexAlreadyHeldError, match="all together"):
        group.acquire()
    with keys.group(0) as other, pytest.raises(MutexAlreadyHeldError, match="already held"):
        other.acquire()


def test_a_group_may_be_shared_by_threads(keys: Keys) -> None:
    group, most, inside = keys.group(lease=20, poll=(0.01, 0.05)), [], []

    def work() -> None:
        for _ in range(3):
            with group:
                inside.append(1)
                time.sleep(0.01)
                most.append(len(inside))
                assert group.held
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 9
    assert group._holds == {}


def test_a_block_may_be_left_on_another_thread(keys: Keys) -> None:
    group = keys.group()
    group.__enter__()
    leaving = threading.Thread(target=group.__exit__, args=(None, None, None))
    leaving.start()
    leaving.join(60)
    assert all(keys.free())


def test_what_the_body_raises_is_not_replaced(keys: Keys) -> None:
    with pytest.raises(ZeroDivisionError), keys.group(auto_renew=False):  # noqa: PT012 - the block is what is left
        keys.force(1)
        raise ZeroDivisionError
    assert all(keys.free())
