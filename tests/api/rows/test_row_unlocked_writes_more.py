"""Writes without the row's lock: what decides about them where a first answer tells little."""

from __future__ import annotations

import time

import pytest
from pynamodb.attributes import (
    ListAttribute,
    NumberAttribute,
    NumberSetAttribute,
    UnicodeSetAttribute,
    VersionAttribute,
)
from pynamodb.connection import Connection
from pynamodb.exceptions import TransactWriteError
from pynamodb.transactions import TransactWrite
from row_scene import TRANSACT, Account, RowScene, save, update

from dev.faultproxy import drop_answer, fault_proxy, refuse, through


@pytest.mark.real
def test_own_save_is_recognised_by_all_that_it_wrote(row_scene: RowScene) -> None:
    class Full(row_scene.here):
        class Meta(row_scene.here.Meta):
            pass

        words = UnicodeSetAttribute(null=True)
        numbers = NumberSetAttribute(null=True)
        things = ListAttribute(null=True)
        weight = NumberAttribute(null=True)
        revision = VersionAttribute()

    row = Full(
        row_scene.key,
        words={"b", "a", "c"},
        numbers={3, 1.5, 20},
        things=["x", 2, {"y": [3.0]}],
        weight=1e2,
    )
    row_scene.proxy.next(drop_answer(), op="PutItem")
    save(row)  # without being recognised it would be refused by its own revision
    assert row.revision == 1
    assert row_scene.applied("PutItem") == [True, False]
    stored = Full.get(row_scene.key, consistent_read=True)
    assert (stored.words, stored.numbers, stored.weight) == ({"a", "b", "c"}, {1.5, 3, 20}, 100)


def test_save_that_another_outran_in_the_same_place_is_not_its_own(row_scene: RowScene) -> None:
    class Listed(row_scene.here):
        class Meta(row_scene.here.Meta):
            pass

        things = ListAttribute(null=True)
        revision = VersionAttribute()

    mine, theirs = (Listed(row_scene.key, things=things) for things in (["x", 1], ["x", 2]))

    def outrun() -> None:
        row_scene.old(row_scene.key).delete()
        theirs.save()

    row_scene.proxy.next(drop_answer(then=outrun), op="PutItem")
    with pytest.raises(Exception, match="PutItem refused"):
        save(mine)
    assert Listed.get(row_scene.key, consistent_read=True).things == ["x", 2]


def test_client_that_knows_no_server_time_yet_learns_that_a_claim_is_dead(
    row_scene: RowScene,
) -> None:
    row_scene.taken(auto_renew=False)
    row_scene.expire()
    with fault_proxy(row_scene.engine) as proxy:
        fresh = through(proxy, row_scene.there)
        with TransactWrite(connection=Connection(host=proxy.url)) as transaction:
            # a save would read the row first
            transaction.update(fresh(row_scene.key), [fresh.balance.set(7)])
        applied = [seen.applied for seen in proxy.of(TRANSACT)]
        assert applied[0] is False
        assert applied[-1] is True
    assert row_scene.row.balance == 7
    assert row_scene.is_free


def test_save_that_is_not_enforced_still_takes_the_next_token(row_scene: RowScene) -> None:
    class Advisory(row_scene.here):
        class Meta(row_scene.here.Meta):
            pass

        lock_enforced = False

    ahead = int(time.time() * 1000) + 3_600_000
    row_scene.set_claim(row_scene.there.lock_version.set(ahead))
    save(Advisory(row_scene.key))
    assert row_scene.version == ahead + 1
    assert row_scene.applied("PutItem") == [False, True]


def test_conflict_next_to_a_refusal_shows_nothing_yet(row_scene: RowScene) -> None:
    reasons = [{"Code": "ConditionalCheckFailed"}, {"Code": "TransactionConflict"}]
    fault = refuse("TransactionCanceledException", CancellationReasons=reasons)
    with row_scene.lock() as row:
        row_scene.proxy.next(fault, op=TRANSACT)
        with row.row_lock.transaction() as transaction:
            transaction.update(row, [type(row).balance.add(1)])
            transaction.save(row_scene.here(f"{row_scene.key}-2"))
        assert row_scene.applied(TRANSACT) == [False, True]
    assert row_scene.row.balance == 1


def test_condition_of_a_plain_write_next_to_a_lock_table_is_pynamodbs_error(
    table_scene: RowScene,
) -> None:
    class Advisory(table_scene.here):
        class Meta(table_scene.here.Meta):
            pass

        lock_enforced = False

    with pytest.raises(Exception, match="UpdateItem") as raised:
        update(Advisory(table_scene.key), condition=Account.balance == 99)
    assert raised.value.cause_response_code == "ConditionalCheckFailedException"
    assert table_scene.proxy.kinds() == ["UpdateItem"]


@pytest.mark.real
def test_transactions_without_rows_that_can_be_locked_are_pynamodbs_own(
    row_scene: RowScene,
) -> None:
    old = row_scene.old
    with TransactWrite(connection=Connection()) as transaction:
        transaction.save(old(f"{row_scene.key}-plain"))
    assert old.count(f"{row_scene.key}-plain") == 1
    with (
        pytest.raises(TransactWriteError),
        TransactWrite(connection=Connection()) as transaction,
    ):
        transaction.save(old(row_scene.key), condition=old.balance == 99)


def test_an_update_needs_actions(row_scene: RowScene) -> None:
    for actions in ([], None, ()):
        with pytest.raises(TypeError, match="non-empty list"):
            row_scene.here(row_scene.key).update(actions)
