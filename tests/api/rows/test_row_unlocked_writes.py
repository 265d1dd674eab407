"""Writes without the lock: refused while another holds the row, and never bad for fencing tokens."""

import pickle
import random
import re
import time
from contextlib import suppress
from datetime import datetime, timezone
from itertools import product

import pytest
from pynamodb import attributes as types
from pynamodb.connection import Connection
from pynamodb.exceptions import GetError, PutError, TransactWriteError, UpdateError
from pynamodb.expressions.operand import Path
from pynamodb.transactions import TransactWrite
from row_models import Account, delete, every_write, save, save_or_update, update
from sent_requests import TRANSACT
from two_clients import held

from dev import faultproxy as net
from dev.faultproxy import after, apply_then_500, deny, drop_answer, drop_request, pass_on
from pynamodb_mutex import (
    InvalidRowError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    RowLockedError,
)

lost_in_two_ways = pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
"""The answer is lost: by a reset, or because an error comes in place of it."""


def subclass(model, **attributes):
    """Return a subclass of a client of the row, with the same table."""
    meta = type("Meta", (model.Meta,), {})
    return type("Sub", (model,), {"Meta": meta, **attributes})


def transact(row, *writes):
    """Make writes in PynamoDB's own transaction, on the way that a row's model goes."""
    with TransactWrite(connection=Connection(host=row.Meta.host)) as transaction:
        for write in writes:
            write(transaction)


def in_transaction(row, write):
    arguments = []
    if write is save:
        row.balance, row.last = row.balance + 1, "mine"
    elif write is update:
        arguments = [[type(row).balance.add(1), type(row).last.set("mine")]]
    transact(row, lambda t: getattr(t, write.__name__)(row, *arguments))


def alone(row, write):
    write(row)


def assert_locked(any_scene, write, *args):
    """See that a write is refused because another holds the row, and that nothing changes."""
    before, stored = any_scene.everything, float(any_scene.claim["expires_at"]["N"])
    ends = datetime.fromtimestamp(stored, tz=timezone.utc)
    key = any_scene.lock().key
    with pytest.raises(RowLockedError, match=f"{re.escape(key)}.*held by 'other' until") as raised:
        write(*args)
    error = raised.value
    assert (error.applied, error.owner, error.key, error.expires_at) == (False, "other", key, ends)
    assert any_scene.everything == before


# -- while another holds the row -------------------------------------------------------------------


@pytest.mark.real("simulated", "local")
def test_write_is_refused_while_another_holds_the_row(any_scene):
    here, key = any_scene.here, any_scene.key
    for way, write in product((alone, in_transaction), (save, update, delete)):
        any_scene.old(key).save()
        other = any_scene.taken()
        for row in (here(key), any_scene.row):
            assert_locked(any_scene, way, row, write)
        update(other.row, "other", unlock=True)
        way(any_scene.row, write)
        assert any_scene.gone if write is delete else any_scene.row.balance == 2
    # one locked row refuses a whole transaction
    any_scene.old(key).save()
    any_scene.taken()
    free, taken = here(f"{key}-free", balance=5), here(key)
    assert_locked(any_scene, transact, free, lambda t: t.save(free), lambda t: t.delete(taken))
    assert here.count(free.name) == 0


def test_write_that_cannot_be_is_not_sent(any_scene):
    row = any_scene.here(any_scene.key)
    for write in (save, update):
        with pytest.raises(MutexNotHeldError, match="not locked here"):
            write(row, unlock=True)
    for actions in ([], None, ()):
        with pytest.raises(TypeError, match="non-empty list"):
            row.update(actions)
    assert any_scene.proxy.kinds() == []


def throttled(then):
    return net.Fault("throttle", lambda exchange: (then(), net.throttle().meet(exchange)))


@every_write
# a lost request may still arrive; a transaction's token shows only that it has not been applied yet
@pytest.mark.parametrize(("fault", "applied"), [(drop_request, None), (throttled, False)])
def test_refused_after_an_attempt_that_failed(any_scene, write, fault, applied):
    any_scene.proxy.next(fault(then=any_scene.taken), op=any_scene.op(write.__name__))
    with pytest.raises(RowLockedError) as raised:
        write(any_scene.here(any_scene.key))
    assert any_scene.row.last is None
    assert raised.value.applied is applied


@lost_in_two_ways
@save_or_update
def test_refused_after_a_lost_answer(row_scene, write, lose):
    row_scene.proxy.next(lose(then=row_scene.taken), op=row_scene.op(write.__name__))
    with pytest.raises(RowLockedError, match="answer was lost") as raised:
        write(row_scene.here(row_scene.key))
    assert row_scene.row.last == "mine"
    assert raised.value.applied is None
    assert pickle.loads(pickle.dumps(raised.value)).applied is None


# -- dead holders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [alone, in_transaction])
@every_write
@pytest.mark.parametrize("late", [save, update, delete])
def test_dead_holder_stops_nobody_and_is_stopped_itself(any_scene, way, write, late):
    dead = any_scene.taken(auto_renew=False)
    row = dead.row
    any_scene.expire()
    way(any_scene.here(any_scene.key), write)
    before = any_scene.everything
    assert bool(before[0]) is (write is not delete)
    # it wakes, and believes that it holds the row
    assert dead.held
    with pytest.raises(MutexLostError) as raised:
        late(row)
    # a write that leaves the number of the last guarded one shows that this one was not applied
    leaves_number = any_scene.in_table or write is update
    assert raised.value.applied is (False if leaves_number else None)
    assert any_scene.everything == before


@every_write
def test_claim_that_is_renewed_just_before_the_write_stands(any_scene, write):
    lock = held(any_scene.other(lease=10, auto_renew=False))
    any_scene.expire()
    row = any_scene.here.get(any_scene.key)
    # with a lock table, the first transaction finds the claim, and the second one is to end it
    won_back = after(lock.renew)
    any_scene.proxy.next(
        *[pass_on()] * any_scene.in_table, won_back, op=any_scene.op(write.__name__)
    )
    with pytest.raises(RowLockedError):
        write(row)
    assert lock.held
    lock.row.save()
    assert not any_scene.is_free


def test_write_ends_no_other_dead_claim_than_it_has_seen(table_scene):
    """The first transaction finds a claim, the second one is to end it, and another holder has come and died before that."""
    scene = table_scene
    scene.taken(auto_renew=False)
    scene.expire()
    another = after(lambda: (scene.taken(auto_renew=False), scene.expire()))
    scene.proxy.next(pass_on(), another, op=TRANSACT)
    save(scene.here.get(scene.key))
    assert scene.applied(TRANSACT) == [False, False, True]
    assert scene.is_free


def test_claim_that_ends_just_now_is_waited_for_no_longer_than_server_time_needs(row_scene):
    row_scene.taken(auto_renew=False, lease=0.5)
    began = time.monotonic()
    while row_scene.row.last is None:
        time.sleep(0.02)
        with suppress(RowLockedError):
            update(row_scene.here(row_scene.key), "late")
    # the lease, what is not known of server time, and two of these pauses
    assert time.monotonic() - began <= 0.5 + 1.3 + 0.04
    assert row_scene.row.last == "late"
    assert row_scene.is_free


# -- lock_enforced = False -------------------------------------------------------------------------


@pytest.fixture
def advisory(any_scene):
    """The client with the bad network, whose locks bind only those who take them."""
    return subclass(any_scene.here, lock_enforced=False)


@every_write
def test_lock_that_is_not_enforced_stops_no_write(any_scene, advisory, write):
    other = any_scene.taken()
    write(advisory(any_scene.key))
    assert any_scene.gone if write is delete else any_scene.row.balance == 1
    if not any_scene.in_table and write is not update:
        # the claim ended with the row that carried it
        with pytest.raises(MutexLostError) as raised:
            save(other.row, "late")
        assert raised.value.applied is None
        assert write is delete or any_scene.version > other.fencing_token
        return
    assert any_scene.version >= other.fencing_token
    if write is update:
        # it leaves the claim alone
        update(other.row, "other")
        assert any_scene.row.balance == 2
    other.release()


@every_write
def test_guarded_writes_need_the_claim_also_if_it_is_not_enforced(any_scene, advisory, write):
    row = held(advisory.locked(any_scene.key)).row
    any_scene.forced_and_taken()
    with pytest.raises(MutexLostError):
        write(row)
    assert any_scene.row.balance == 0


# -- lost answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("meet", [after, drop_answer])
def test_save_that_meets_another_takes_the_next_token(row_scene, meet):
    """Also if it was applied, and written over before the repeat: without a lock the last one wins, as always."""
    row_scene.proxy.next(meet(lambda: save(row_scene.row, "other")), op="PutItem")
    save(row_scene.here(row_scene.key))
    assert row_scene.row.last == "mine"


@lost_in_two_ways
@save_or_update
def test_transaction_without_a_lock_whose_answer_is_lost_is_repeated_as_it_was(
    any_scene, lose, write
):
    """By its token DynamoDB knows it again, as it does PynamoDB's own; even if another has taken the lock since."""
    any_scene.proxy.next(lose(), lose(then=any_scene.taken), op=TRANSACT)
    in_transaction(any_scene.here(any_scene.key), write)
    first, *others = [seen.body for seen in any_scene.proxy.of(TRANSACT)]
    assert first["ClientRequestToken"]
    assert others == [first, first]
    assert (any_scene.row.balance, any_scene.row.last) == (1, "mine")


@save_or_update
@pytest.mark.parametrize("enforced", [True, False])
def test_condition_of_the_callers_own_is_pynamodbs_error(any_scene, write, enforced):
    model = subclass(any_scene.here, lock_enforced=enforced)
    with pytest.raises((PutError, UpdateError, TransactWriteError)) as raised:
        write(model(any_scene.key), condition=model.balance == 99)
    assert not isinstance(raised.value, MutexError)
    # next to a lock table too, a write that is not enforced is a plain one
    together = any_scene.in_table and enforced
    code = "TransactionCanceledException" if together else "ConditionalCheckFailedException"
    assert raised.value.cause_response_code == code
    assert (TRANSACT in any_scene.proxy.kinds()) is together
    assert any_scene.row.balance == 0


def test_update_that_cannot_be_read_again_says_that_it_was_applied(table_scene):
    row = table_scene.here(table_scene.key)
    table_scene.proxy.always(deny(), op="GetItem")
    with pytest.raises(GetError, match="was written"):
        update(row)
    table_scene.proxy.clear()
    assert table_scene.row.balance == 1
    assert row.balance == 0
    row.refresh()
    assert row.balance == 1


@pytest.mark.parametrize("name", ["lock_writes", "balance"])
def test_update_whose_row_cannot_be_read_says_that_it_was_applied(any_scene, name):
    row = any_scene.here(any_scene.key)
    any_scene.set_claim(Path(name).set(["odd"]))
    with pytest.raises(InvalidRowError, match=f"was written, but cannot be read: .*{name}"):
        row.update([Account.last.set("mine")])
    assert any_scene.raw["last"] == {"S": "mine"}
    assert (row.name, row.last) == (any_scene.key, None)


def test_refusal_that_does_not_show_the_row_of_the_lock_is_pynamodbs_error(table_scene):
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed"}]
    refused = net.refuse("TransactionCanceledException", CancellationReasons=reasons)
    table_scene.proxy.next(refused, op=TRANSACT)
    with pytest.raises(TransactWriteError):
        save(table_scene.here(table_scene.key))
    assert table_scene.row.balance == 0


def test_failure_that_does_not_pass_is_pynamodbs_error(row_scene):
    row_scene.proxy.next(deny(), op="PutItem")
    with pytest.raises(PutError):
        save(row_scene.here(row_scene.key))
    assert row_scene.row.balance == 0


# -- fencing tokens --------------------------------------------------------------------------------


def test_save_next_to_a_higher_token_takes_the_next_one(row_scene):
    # written by a host whose time is ahead
    ahead = 10**15
    row_scene.set_claim(row_scene.there.lock_version.set(ahead))
    save(row_scene.here(row_scene.key))
    assert row_scene.version == ahead + 1
    save(subclass(row_scene.here, lock_enforced=False)(row_scene.key))
    assert row_scene.version == ahead + 2
    assert row_scene.applied("PutItem") == [False, True] * 2
    assert row_scene.taken().fencing_token > ahead + 2


def test_token_grows_over_old_code_that_writes_over_a_locked_row(row_scene):
    row = row_scene.locked()
    row_scene.overwrite()
    # the fencing token went with the rest: the next counts from server time, known to a second
    time.sleep(1.5)
    assert row_scene.taken().fencing_token > row.row_lock.fencing_token


@pytest.mark.parametrize("seed", range(4))
def test_tokens_never_fall(row_scene, seed):
    """Whatever happens to the row, but for its deletion."""
    chance, seen, history, key = random.Random(seed), 0, [], row_scene.key
    for _ in range(25):
        holder = row_scene.claim.get("token")
        model = chance.choice([row_scene.here, row_scene.there])
        (what,) = chance.choices(["lock", "force", alone, in_transaction], weights=[8, 1, 2, 2])
        writes = chance.choices([save, update], k=chance.randrange(3))
        history.append((what, writes))
        if what == "force":
            model.locked(key).force_release()
        elif not row_scene.is_free:
            row_scene.expire()
        if what == "lock":
            row = held(model.locked(key, timeout=20, auto_renew=False, poll=(0.01, 0.02))).row
            for number, write in enumerate(writes, 1):
                write(row, unlock=number == len(writes) and chance.random() < 0.5)
        elif what != "force":
            for write in writes:
                what(model(key), write)
        claim = row_scene.claim
        version = int(claim.get("version", {"N": "0"})["N"])
        assert version >= seen, history
        assert version > seen or claim.get("token") in (None, holder), history
        seen = version


# -- what a first answer does not show ---------------------------------------------------------------


@lost_in_two_ways
def test_own_save_is_recognised_by_all_that_it_wrote(row_scene, lose):
    full = subclass(
        row_scene.here,
        words=types.UnicodeSetAttribute(null=True),
        numbers=types.NumberSetAttribute(null=True),
        things=types.ListAttribute(null=True),
        weight=types.NumberAttribute(null=True),
        revision=types.VersionAttribute(),
    )
    words, numbers, things = {"b", "a", "c"}, {3, 1.5, 20}, ["x", 2, {"y": [3.0]}]
    row = full(row_scene.key, words=words, numbers=numbers, things=things, weight=1e2)
    for revision in (1, 2):
        row_scene.proxy.next(*[lose() for _ in range(2 * revision - 1)], op="PutItem")
        save(row)  # without being recognised it would be refused by its own revision
        assert row.revision == full.get(row_scene.key, consistent_read=True).revision == revision
    assert row_scene.applied("PutItem") == [True, False, True, False, False, False]
    stored = full.get(row_scene.key, consistent_read=True)
    assert (stored.words, stored.numbers, stored.weight) == (words, numbers, 100)


def test_save_that_another_outran_in_the_same_place_is_not_its_own(row_scene):
    listed = subclass(
        row_scene.here, things=types.ListAttribute(null=True), revision=types.VersionAttribute()
    )
    mine, theirs = (listed(row_scene.key, things=things) for things in (["x", 1], ["x", 2]))

    def outrun():
        row_scene.old(row_scene.key).delete()
        theirs.save()

    row_scene.proxy.next(drop_answer(then=outrun), op="PutItem")
    with pytest.raises(Exception, match="PutItem refused"):
        save(mine)
    assert listed.get(row_scene.key, consistent_read=True).things == ["x", 2]


@pytest.mark.parametrize("together", [False, True])
def test_save_is_refused_by_a_row_that_another_made_equal_to_it(row_scene, together):
    """Two processes save the same new row in the same millisecond, as far as they know: one of them is refused."""
    key, is_new = f"{row_scene.key}-new", row_scene.here.name.does_not_exist()
    mine, theirs = row_scene.here(key), row_scene.there(key)
    if together:
        # a lost answer does not matter here: DynamoDB would know the transaction again by its token
        row_scene.proxy.next(drop_request(then=lambda: theirs.save(is_new)), op=TRANSACT)
        with pytest.raises(TransactWriteError, match="ConditionalCheckFailed"):
            transact(mine, lambda t: t.save(mine, is_new))
    else:
        theirs.save(is_new)
        with pytest.raises(PutError, match="PutItem refused"):
            mine.save(is_new)
        sent = row_scene.proxy.of("PutItem")[0]
        assert sent.body["Item"] == row_scene.there._get_connection().get_item(key)["Item"]


def test_client_that_knows_no_server_time_yet_learns_that_a_claim_is_dead(row_scene):
    row_scene.taken(auto_renew=False)
    row_scene.expire()
    with net.fault_proxy(row_scene.engine) as proxy:
        fresh = net.through(proxy, row_scene.there)
        row = fresh(row_scene.key)
        # a save would read the row first
        transact(row, lambda t: t.update(row, [fresh.balance.set(7)]))
        applied = [seen.applied for seen in proxy.of(TRANSACT)]
        assert (applied[0], applied[-1]) == (False, True)
    assert row_scene.row.balance == 7
    assert row_scene.is_free


def test_conflict_next_to_a_refusal_shows_nothing_yet(row_scene):
    reasons = [{"Code": "ConditionalCheckFailed"}, {"Code": "TransactionConflict"}]
    fault = net.refuse("TransactionCanceledException", CancellationReasons=reasons)
    with row_scene.lock() as row:
        row_scene.proxy.next(fault, op=TRANSACT)
        with row.row_lock.transaction() as transaction:
            transaction.update(row, [type(row).balance.add(1)])
            transaction.save(row_scene.here(f"{row_scene.key}-2"))
        assert row_scene.applied(TRANSACT) == [False, True]
    assert row_scene.row.balance == 1


def test_transaction_without_rows_that_can_be_locked_is_pynamodbs_own(row_scene):
    old, new = row_scene.old, row_scene.old(f"{row_scene.key}-plain")
    transact(row_scene.here, lambda t: t.save(new))
    assert old.count(new.name) == 1
    with pytest.raises(TransactWriteError):
        transact(row_scene.here, lambda t: t.save(new, condition=old.balance == 99))


# -- batches, which carry no conditions -------------------------------------------------------------


@pytest.mark.parametrize("what", ["save", "delete"])
def test_batch_refuses_a_row_that_is_locked_here_or_whose_lock_was_lost(any_scene, what):
    def batch(row):
        with any_scene.here.batch_write() as writes:
            getattr(writes, what)(row)

    with any_scene.lock() as row, pytest.raises(MutexError, match="batch") as raised:
        batch(row)
    assert raised.value.key == row.row_lock.key
    with pytest.raises(MutexNotHeldError, match=r"batch_write: .* at the end of its block"):
        batch(row)
    assert any_scene.proxy.of("BatchWriteItem") == []
    row.refresh()
    batch(row)
    assert any_scene.gone is (what == "delete")
    any_scene.overwrite()
    row = any_scene.locked()
    row.row_lock.release()
    batch(row)  # there was no block, after which it may not be written
    any_scene.overwrite()
    row = any_scene.locked()
    any_scene.forced_and_taken()
    for notice in (row.save, row.row_lock.release):
        with pytest.raises(MutexLostError):
            notice()
        with pytest.raises(MutexError, match="batch"):
            batch(row)


def test_batch_takes_no_claim_along(row_scene):
    with row_scene.lock():
        row = row_scene.row
    row.name = f"{row_scene.key}-copy"
    with row_scene.here.batch_write() as batch:
        batch.save(row)
    copied = row_scene.there._get_connection().get_item(row.name, consistent_read=True)["Item"]
    assert not any(key.startswith("lock_") for key in copied)
