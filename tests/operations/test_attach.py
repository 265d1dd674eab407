"""Acquire here, release there: what giver and taker see when nothing fails."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from accounts import Account, Ledger
from pynamodb.attributes import BinaryAttribute, NumberAttribute
from pynamodb.exceptions import DoesNotExist
from pynamodb.models import Model
from row_tables import created, meta
from subjects import LOSSES
from worker import workers

from pynamodb_mutex import (
    InvalidTicketError,
    LockItem,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    RowLock,
    RowLockedError,
    RowLockMixin,
)


def detached(key="a", **options):
    mutex = Mutex.for_key(key, **options)
    assert mutex.acquire()
    return mutex, mutex.detach()


def attached(**options):
    return Mutex.attach(detached()[1], **options)


# -- the giver -------------------------------------------------------------------------------------


def test_mutex_that_detached_does_not_hold_the_lock_and_it_stays_taken(table, sent):
    told = []
    mutex, _ = detached(on_lost=told.append)
    assert (mutex.held, mutex.lost, mutex.remaining) == (False, False, 0)
    for name in ("release", "renew", "ensure_held", "transaction", "detach"):
        with pytest.raises(MutexNotHeldError, match="detached") as raised:
            getattr(mutex, name)()
        assert not isinstance(raised.value, MutexLostError)
    assert mutex.locked()
    assert not Mutex.for_key("a").acquire(blocking=False)
    # it is not renewed, and its end is no loss
    sent.clear()
    time.sleep(40)
    assert (sent, told, mutex.lost) == ([], [], False)


@pytest.mark.parametrize("longer", [None, 3600])
def test_ticket_is_good_for_a_whole_lease_from_the_detaching_or_longer(table, longer):
    mutex = Mutex.for_key("Über " + "k" * 200, lease=10, auto_renew=False)
    mutex.acquire()
    before = table.get(mutex.key).expires_at
    time.sleep(5)
    with pytest.raises(ValueError, match="lease"):
        mutex.detach(lease=0.1)
    assert mutex.held
    ticket = mutex.detach(lease=longer)
    row = table.get(mutex.key)
    assert row.expires_at == pytest.approx(before + 5 + (longer or 10) - 10, abs=1.5)
    assert row.lease == pytest.approx(longer or 10, abs=1)
    # it is short and plain, and says where it belongs
    assert len(ticket) < 1024
    assert ticket.isascii()
    assert json.loads(ticket) == {
        "format": 1,
        "table": table.Meta.table_name,
        "region": "us-east-1",
        "key": mutex.key,
        "token": mutex.token,
        "version": mutex.fencing_token,
        "expires_at": row.expires_at,
        "lease": 10,
    }


def test_only_the_last_level_of_a_reentrant_mutex_detaches(table):
    with Mutex.for_key("a", reentrant=True) as mutex:
        with mutex:
            with pytest.raises(MutexAlreadyHeldError, match="2 times"):
                mutex.detach()
            assert mutex.held
        assert Mutex.attach(mutex.detach()).held


def test_lock_that_is_not_held_or_was_taken_with_others_is_not_detached(table, accounts):
    mutex = Mutex.for_key("a")
    for _ in range(2):
        with pytest.raises(MutexNotHeldError):
            mutex.detach()
        mutex.acquire()
        mutex.release()
    mutex.acquire()
    LockItem.force_release("a")
    with pytest.raises(MutexLostError) as raised:
        mutex.detach()
    assert raised.value.loss is Loss.FORCED
    with Account.locked_all(["a"]) as [row]:
        with pytest.raises(MutexError, match="together"):
            row.row_lock.detach()
        assert row.row_lock.held


def test_waiting_thread_polls_at_once_after_detach(table, sent):
    mutex, waiting = Mutex.for_key("a"), Mutex.for_key("a", poll=(30, 60))
    mutex.acquire()
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(waiting.acquire)
        time.sleep(1)
        sent.clear()
        ticket = mutex.detach()
        time.sleep(0.1)
        assert sent == ["UpdateItem", "UpdateItem"]
        Mutex.attach(ticket).release()
        assert waits.result()


# -- the taker -------------------------------------------------------------------------------------


@pytest.mark.real
def test_taker_holds_it_under_a_new_token_and_the_ticket_is_used_up(table):
    giver, ticket = detached(lease=20, owner="giver", data={"step": 1})
    taker = Mutex.attach(ticket, owner="taker", data={"step": 2})
    assert (taker.held, taker.key, taker.owner, taker.abandoned) == (True, "a", "taker", False)
    assert taker.data == {"step": 2}
    assert taker.fencing_token == giver.fencing_token + 1
    row = table.get("a")
    assert (row.token, row.version) == (taker.token, taker.fencing_token)
    assert (row.owner, row.lease, row.writes) == ("taker", 20, 0)
    assert 15 < taker.remaining <= 20
    taker.save_data("done")
    with pytest.raises(MutexLostError) as raised:
        Mutex.attach(ticket)
    assert taker.held
    error = raised.value
    assert (error.loss, error.key, error.owner) == (Loss.TAKEN, "a", "taker")
    assert error.expires_at == table.get("a").expires_at
    taker.release()
    assert not taker.locked()
    with pytest.raises(MutexLostError) as raised:
        Mutex.attach(ticket)
    assert (raised.value.loss, raised.value.owner) == (Loss.TAKEN, None)


@pytest.mark.parametrize("keeps_row", [True, False])
def test_attached_lock_is_renewed_and_has_the_options_that_are_given(table, keeps_row):
    giver, ticket = detached(lease=20, delete_on_release=not keeps_row, data={"step": 1})
    # detached and attached again
    ticket = Mutex.attach(ticket).detach()
    taker = Mutex.attach(ticket, lease=60, delete_on_release=True)
    assert (taker.data, taker._latest.own.version) == ({"step": 1}, giver._latest.own.version + 2)
    time.sleep(100)
    assert taker.remaining > 35
    taker.release()
    assert list(table.scan()) == []


def test_first_block_adopts_it_and_the_next_acquires_it_anew(table, sent):
    with Mutex.for_key("a") as mutex:
        first = mutex.fencing_token
        sent.clear()
        ticket = mutex.detach()
    # the block of one that was detached ends without a request
    assert sent == ["UpdateItem"]
    with Mutex.attach(ticket) as mutex:
        assert sent == ["UpdateItem"] * 2
        assert mutex.fencing_token == first + 1
    assert not mutex.locked()
    with mutex:
        assert mutex.fencing_token == first + 2
    # also if it was released without a block
    mutex = attached()
    with pytest.raises(MutexAlreadyHeldError):
        mutex.acquire()
    first = mutex.token
    mutex.release()
    with mutex:
        assert mutex.token != first


def test_block_adopts_neither_what_was_lost_nor_what_was_acquired_anew(table):
    mutex = attached()
    LockItem.force_release("a")
    with pytest.raises(MutexLostError), mutex:
        pytest.fail("it is not held")
    with mutex:  # after that it is a mutex like any other
        assert mutex.held
    mutex = attached()
    LockItem.force_release("a")
    assert mutex.acquire()
    with pytest.raises(MutexAlreadyHeldError), mutex:
        pytest.fail("it is held by this thread")


def test_thread_that_enters_may_enter_again(table):
    mutex = attached(reentrant=True)

    def work():
        with mutex, Mutex.for_key("a", reentrant=True, timeout=0) as inner:
            assert inner.token == mutex.token
        return mutex.held

    with ThreadPoolExecutor() as pool:
        assert pool.submit(work).result(60) is False
    assert not mutex.locked()


@pytest.mark.real("embedded")
def test_two_processes_with_wrong_clocks_pass_it_on(table):
    with workers(3600, -3600) as (giver, taker):
        giver.ask("mutex = Mutex.for_key('a', owner='giver', lease=20)")
        giver.ask("mutex.acquire()")
        token = giver.ask("mutex.fencing_token")
        ticket = giver.ask("mutex.detach()")
        giver.end()
        taker.ask(f"mutex = Mutex.attach({ticket!r}, owner='taker')")
        assert taker.ask("mutex.held, mutex.fencing_token") == [True, token + 1]
        assert table.get("a").owner == "taker"
        taker.ask("mutex.release()")
    assert Mutex.for_key("a").acquire(blocking=False)


# -- tickets that are not good ---------------------------------------------------------------------


@pytest.mark.parametrize(("lose_it", "loss"), [*LOSSES, ("expire", Loss.EXPIRED)])
def test_ticket_that_is_not_good_any_more_is_refused_with_the_cause(scene, lose_it, loss):
    ticket = scene.taken().detach()
    getattr(scene, lose_it)()
    before = scene.everything
    with pytest.raises(MutexLostError, match="ticket") as raised:
        Mutex.attach(ticket, model=scene.there)
    assert (raised.value.loss, raised.value.key) == (loss, scene.key)
    assert scene.everything == before
    if loss is Loss.EXPIRED:
        assert raised.value.owner == "other"
        with scene.mutex() as next_one:
            assert next_one.abandoned_by == "other"


GOOD = {"format": 1, "table": "t", "key": "a", "token": "x"}
GOOD |= {"version": 7, "expires_at": 1e9, "lease": 30}
WRONG = [{"format": 2}, {"key": ""}, {"region": 7}, {"lease": 0.1}, {"expires_at": float("nan")}]
WRONG += [{"version": True}, {"version": 7.5}, *({name: {}} for name in GOOD)]


@pytest.mark.parametrize(
    "ticket",
    [
        *("", "{", "7", "[]", "null", "{}", None),
        pytest.param("[" * 100_000, id="deep"),
        *(json.dumps({n: v for n, v in GOOD.items() if n != left}) for left in GOOD),
        *(json.dumps(GOOD | wrong) for wrong in WRONG),
    ],
)
def test_text_that_is_no_ticket_is_refused_before_anything_is_sent(ticket):
    with pytest.raises(InvalidTicketError) as raised:
        Mutex.attach(ticket)
    assert isinstance(raised.value, ValueError)


def test_ticket_for_another_place_or_with_wrong_options_is_refused_and_stays_good(table, sent):
    class Other(LockItem):
        class Meta:
            table_name = "other"

    _, ticket = detached()
    fields = json.loads(ticket)
    altered = fields | {"version": fields["version"] + 0.5}
    sent.clear()
    with pytest.raises(InvalidTicketError, match="other") as raised:
        Mutex.attach(ticket, model=Other)
    assert raised.value.key == "a"
    with pytest.raises(InvalidTicketError, match="eu-north-1"):
        Mutex.attach(json.dumps(fields | {"region": "eu-north-1"}))
    with pytest.raises(InvalidTicketError, match="an int is expected"):
        Mutex.attach(json.dumps(altered))
    with pytest.raises(ValueError, match="lease"):
        Mutex.attach(ticket, lease=0.1)
    with pytest.raises(TypeError, match="model"):
        Mutex.attach(ticket, model=Account)
    assert sent == []
    # a ticket need not name a region
    del fields["region"]
    Mutex.attach(json.dumps(fields)).release()


# -- row locks -------------------------------------------------------------------------------------


def test_row_goes_with_its_lock(model, sent):
    lock = model.locked("a")
    with lock as row:
        row.update([model.balance.add(5)])
        ticket = lock.detach()
    with pytest.raises(RowLockedError):
        row.save()
    assert row.row_lock is lock
    assert not row.is_locked
    sent.clear()
    attached = RowLock.attach(ticket, model=model)
    assert sent == ["UpdateItem"]
    with attached as taken:
        assert isinstance(attached, RowLock)
        assert taken.balance == 5
        taken.balance += 1
        taken.save(unlock=True)
    assert model.get("a", consistent_read=True).balance == 6
    assert not attached.locked()


def test_ticket_of_a_row_names_it_and_is_for_no_other_model_and_no_lock_table(accounts, table):
    with Account.locked("a") as row:
        ticket = row.row_lock.detach()
    assert json.loads(ticket)["row"] == {"name": {"S": "a"}}
    assert json.loads(ticket)["table"] == Account.Meta.table_name
    with pytest.raises(InvalidTicketError, match="Ledger"):
        RowLock.attach(ticket, model=Ledger)
    with pytest.raises(InvalidTicketError, match=Account.Meta.table_name):
        Mutex.attach(ticket)
    for named in (None, {}, {"name": 7}, {"name": {"S": 7}}, {"name": {"N": "7"}}):
        with pytest.raises(InvalidTicketError, match="Account"):
            RowLock.attach(json.dumps(GOOD | {"row": named}), model=Account)
    RowLock.attach(ticket, model=Account).release()


def test_row_keys_of_all_types(engine):
    class Page(RowLockMixin, Model):
        Meta = meta("pages")

        digest = BinaryAttribute(hash_key=True, legacy_encoding=False)
        number = NumberAttribute(range_key=True)

    created(Page)(b"\xff\x00", 7.5).save()
    with Page.locked(b"\xff\x00", 7.5) as page:
        ticket = page.row_lock.detach()
    fields = json.loads(ticket)
    for broken in ({"digest": {"B": "%"}}, {"digest": {"B": 7}}, {"number": {"N": "seven"}}):
        with pytest.raises(InvalidTicketError):
            RowLock.attach(json.dumps(fields | {"row": fields["row"] | broken}), model=Page)
    with RowLock.attach(ticket, model=Page) as page:
        assert (page.digest, page.number) == (b"\xff\x00", 7.5)


def test_row_that_was_deleted_meanwhile(model):
    with model.locked("a") as row:
        ticket = row.row_lock.detach()
    model._get_connection().delete_item("a")
    # a lock in a lock table is still good
    refused = DoesNotExist if model is Ledger else MutexLostError
    with pytest.raises(refused) as raised, RowLock.attach(ticket, model=model):
        pytest.fail("there is no row")
    assert model is Ledger or raised.value.loss is Loss.DELETED
