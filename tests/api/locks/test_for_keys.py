"""Several keys, all or none."""

import pytest
from pynamodb.attributes import UnicodeAttribute
from row_models import PLAIN, made
from sent_requests import kinds

from pynamodb_mutex import LockItem, Loss, Mutex
from pynamodb_mutex import exceptions as errors


def test_keys_and_options():
    group = Mutex.for_keys(["a", "b", Mutex.for_key("a"), "b"])
    assert group.keys == ("a", "b")
    assert [mutex.key for mutex in group.members] == ["a", "b"]
    with pytest.raises(errors.MutexNotHeldError, match="not held"):
        _ = group.fencing_tokens
    for second in (Mutex.for_key("a", lease=7), Mutex.for_key("a", data=1)):
        with pytest.raises(ValueError, match="'a' comes twice"):
            Mutex.for_keys(["a", second])
    with pytest.raises(ValueError, match="lease"):
        Mutex.for_keys([Mutex.for_key("a")], lease=0.1)


@pytest.mark.parametrize("what", ["region", "host"])
def test_tables_that_one_transaction_cannot_reach_are_refused(what):
    def at(place, name):
        meta = type("Meta", (LockItem.Meta,), {"table_name": name, what: place})
        return type(name, (LockItem,), {"Meta": meta})

    here, there = at("http://one", "here"), at("http://other", "there")
    keys = [Mutex.for_key("a", model=there), Mutex.for_key("a", model=at(None, "anywhere"))]
    Mutex.for_keys(keys, model=here)
    with pytest.raises(ValueError, match=f"{what} only, not .*there in .*here in"):
        Mutex.for_keys([*keys, "a"], model=here)


@pytest.mark.real("simulated", "local")
def test_locks_of_several_tables_are_taken_together(table, accounts):
    account = accounts.locked("a")
    other = Mutex.for_row(accounts, "b", lock_model=table)
    group = Mutex.for_keys(["a", account, other])
    with group:
        assert account.held
        assert not accounts.locked("a").acquire(blocking=False)
        assert not Mutex.for_row(accounts, "b").acquire(blocking=False)
        account.row.save()
        assert list(group.fencing_tokens) == ["a", account.key, other.key]
    assert not group.locked()


def test_one_key_of_two_tables_is_two_locks(keys):
    class Second(keys.scene.there):
        class Meta(keys.scene.there.Meta):
            table_name = f"{keys.scene.there.Meta.table_name}-2"

    Second.create_table()
    second = Mutex.for_key(keys.keys[0], model=Second)
    first = Mutex.for_key(keys.keys[0], model=keys.scene.there)
    with Mutex.for_keys([first, second]) as group:
        assert first.held
        assert second.held
        with pytest.raises(errors.MutexError, match="two tables"):
            _ = group.fencing_tokens
        # both are polled by one read
        more = Mutex.for_key(second.key, model=Second)
        waiting = Mutex.for_keys([keys.keys[0], more], model=keys.scene.here)
        assert not waiting.acquire(timeout=2.0)
        (poll, *_) = keys.scene.proxy.of("BatchGetItem")
        tables = {m.Meta.table_name for m in (keys.scene.there, Second)}
        assert set(poll.body["RequestItems"]) == tables
        assert not any(each["ConsistentRead"] for each in poll.body["RequestItems"].values())
    assert not second.locked()


@pytest.mark.real
def test_each_request_is_one_for_all_keys(keys):
    group = keys.group(lease=20, owner="me")
    assert not group.locked()
    keys.scene.proxy.start_anew()
    with group:
        assert [row.owner for row in keys.rows] == ["me"] * 3
        assert group.fencing_tokens == {row.key: row.version for row in keys.rows}
        assert group.locked()
        before = keys.ends
        group.renew(600)
        # a member's renewal is everybody's
        group.members[1].renew(900)
        assert group.remaining > 800
        assert all(old + 800 < new for old, new in zip(before, keys.ends, strict=True))
    requests = ["3 acquire", "BatchGetItem", "3 renew", "3 renew", "3 release"]
    assert kinds(keys.scene.proxy) == requests
    assert all(keys.free())
    before = group.fencing_tokens
    with group:
        assert all(group.fencing_tokens[key] > before[key] for key in group.keys)


def test_members_may_be_released_one_by_one(keys):
    with keys.group(lease=20) as group:
        group.members[1].release()
        assert keys.free() == [False, True, False]
        assert not group.held
        assert not group.lost
        group.renew()
        with pytest.raises(errors.MutexAlreadyHeldError):
            group.acquire()
        group.members[0].release()
        other = keys.taken(0)
    assert all(not each.lost for each in group.members)
    assert keys.free() == [False, True, True]
    assert kinds(keys.scene.proxy) == ["3 acquire", "release", "2 renew", "release", "1 release"]
    other.release()


def test_rows_are_deleted_on_release_if_asked_for(keys):
    group = keys.group(delete_on_release=True)
    with group:
        with pytest.raises(errors.MutexError, match="delete_on_release"):
            print(group.fencing_tokens)
        with pytest.raises(errors.MutexError, match=r"transaction: .* late copies"):
            group.transaction()
        assert group.held
    there = keys.scene.there
    assert there.count(keys.keys[0], consistent_read=True) == 0
    assert not group.lost
    # a claim that was cleared by hand is lost
    group.acquire()
    there._get_connection().update_item(keys.keys[1], actions=[there.expires_at.remove()])
    with pytest.raises(errors.MutexLostError):
        group.release()
    assert all(there.count(key, consistent_read=True) == 0 for key in keys.keys[::2])


def test_transaction_needs_all_the_locks(keys):
    note = made({"key": UnicodeAttribute(hash_key=True)}, PLAIN, keys.scene.there.Meta.table_name)
    group = keys.group(auto_renew=False)
    for place in (None, 0, 2):
        row = note(f"{keys.scene.key}-{place}")
        assert group.acquire()
        transaction = group.transaction()
        transaction.save(row)
        if place is None:
            transaction.__exit__(None, None, None)
            assert group.held
            group.release()
        else:
            keys.force(place)
            with pytest.raises(errors.MutexLostError):
                transaction.__exit__(None, None, None)
            assert group.loss is Loss.FORCED
            for call in (group.transaction, group.release):
                with pytest.raises(errors.MutexLostError):
                    call()
        assert note.count(row.key) == (place is None)


def test_thread_enters_again_all_or_none(keys):
    group = keys.group(reentrant=True)
    with group:
        with group, keys.group(2, 1, 0, reentrant=True) as same, group.members[1]:
            assert same.held
            assert list(same.fencing_tokens) == [mutex.key for mutex in same.members]
            with pytest.raises(errors.MutexAlreadyHeldError, match="all together"):
                keys.group(0, 1, reentrant=True).acquire()
        assert not any(keys.free())
        assert group.held
    assert all(keys.free())
    with group.members[0], pytest.raises(errors.MutexAlreadyHeldError, match="all together"):
        group.acquire()
    with keys.group(0) as other, pytest.raises(errors.MutexAlreadyHeldError, match="already held"):
        other.acquire()
