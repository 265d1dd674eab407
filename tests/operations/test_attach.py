"""Acquire here, release there: what giver and taker see when nothing fails."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from accounts import Account, Ledger
from hearing import until
from lock_items import Elsewhere
from pynamodb.attributes import BinaryAttribute, NumberAttribute
from pynamodb.exceptions import DoesNotExist
from pynamodb.models import Model
from row_tables import created, meta
from worker import forked, workers

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
from pynamodb_mutex.testing import FakeClock, expire


def detached(key="a", detach_lease=None, **options):
    mutex = Mutex.for_key(key, **options)
    assert mutex.acquire()
    return mutex, mutex.detach(lease=detach_lease)


def attached(**options):
    return Mutex.attach(detached()[1], **options)


# -- the giver -------------------------------------------------------------------------------------


def test_mutex_that_detached_does_not_hold_the_lock_and_it_stays_taken(table, sent):
    told = []
    with FakeClock() as clock:
        mutex, _ = detached(on_lost=told.append)
        assert (mutex.held, mutex.lost, mutex.remaining) == (False, False, 0)
        for call in (
            mutex.release,
            mutex.renew,
            mutex.ensure_held,
            mutex.transaction,
            mutex.detach,
        ):
            with pytest.raises(MutexNotHeldError, match="detached") as raised:
                call()
            assert not isinstance(raised.value, MutexLostError)
        assert mutex.locked()
        assert not Mutex.for_key("a").acquire(blocking=False)
        # it is not renewed, and its end is no loss
        sent.clear()
        clock.advance(20)
        clock.advance(20)
    assert (sent, told, mutex.lost) == ([], [], False)


@pytest.mark.parametrize("longer", [None, 3600])
def test_ticket_is_good_for_a_whole_lease_from_the_detaching_or_longer(table, longer):
    with FakeClock() as clock:
        mutex = Mutex.for_key("a", lease=10, auto_renew=False)
        mutex.acquire()
        before = table.get("a").expires_at
        clock.advance(5)
        with pytest.raises(ValueError, match="lease"):
            mutex.detach(lease=0.1)
        assert mutex.held
        ticket = json.loads(mutex.detach(lease=longer))
    row = table.get("a")
    assert row.expires_at == pytest.approx(before + 5 + (longer or 10) - 10, abs=1.5)
    assert row.lease == pytest.approx(longer or 10, abs=1)
    assert (ticket["expires_at"], ticket["lease"]) == (row.expires_at, 10)


def test_ticket_is_short_plain_and_says_where_it_belongs(table):
    mutex, ticket = detached("Über " + "k" * 200)
    assert len(ticket) < 1024
    assert ticket.isascii()
    assert json.loads(ticket) == {
        "format": 1,
        "table": table.Meta.table_name,
        "region": "us-east-1",
        "key": mutex.key,
        "token": mutex.token,
        "version": mutex.fencing_token,
        "expires_at": table.get(mutex.key).expires_at,
        "lease": 30,
    }


def test_only_the_last_level_of_a_reentrant_mutex_detaches(table):
    with Mutex.for_key("a", reentrant=True) as mutex:
        with mutex:
            with pytest.raises(MutexAlreadyHeldError, match="2 times"):
                mutex.detach()
            assert mutex.held
        assert Mutex.attach(mutex.detach()).held


def test_lock_that_was_never_acquired_or_released_or_lost_cannot_be_detached(table):
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


@pytest.mark.real("embedded")
def test_forked_child_cannot_detach_the_lock_of_its_parent(table):
    with Mutex.for_key("a") as mutex:

        def child():
            with pytest.raises(MutexNotHeldError, match="parent"):
                mutex.detach()
            return True

        assert forked(child)
        assert mutex.held


def test_waiting_thread_polls_at_once_after_detach(table):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    waiting = Mutex.for_key("a", poll=(30, 60))
    thread = threading.Thread(target=waiting.acquire, daemon=True)
    thread.start()
    queue = mutex._latest.contender.queue
    until(lambda: queue.turns)
    ticket = mutex.detach()
    # nobody of this process holds it now, as far as the queue is concerned
    assert queue.holder is None
    Mutex.attach(ticket).release()
    thread.join(60)
    assert waiting.held
    waiting.release()


def test_one_of_several_locks_taken_together_is_not_detached_alone(accounts):
    Account("b").save()
    with Account.locked_all(["a", "b"]) as rows:
        with pytest.raises(MutexError, match="together"):
            rows[0].row_lock.detach()
        assert rows[0].row_lock.held


# -- the taker -------------------------------------------------------------------------------------


@pytest.mark.real
def test_taker_holds_it_under_a_new_token_and_the_ticket_is_used_up(table):
    giver, ticket = detached(lease=20, owner="giver", data={"step": 1})
    taker = Mutex.attach(ticket, owner="taker", data={"step": 2})
    assert taker.held
    assert (taker.key, taker.owner, taker.abandoned) == ("a", "taker", False)
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


def test_detach_and_attach_are_one_write_each_and_a_detached_block_ends_without_one(table, sent):
    with Mutex.for_key("a") as mutex:
        sent.clear()
        ticket = mutex.detach()
    assert sent == ["UpdateItem"]
    assert mutex.locked()
    sent.clear()
    with Mutex.attach(ticket):
        assert sent == ["UpdateItem"]
    assert sent == ["UpdateItem"] * 2


@pytest.mark.parametrize("keeps_row", [True, False])
def test_lease_and_other_options_may_be_given_to_attach(table, keeps_row):
    _, ticket = detached(lease=20, delete_on_release=not keeps_row)
    taker = Mutex.attach(ticket, lease=60, auto_renew=False, delete_on_release=True)
    assert taker.remaining > 50
    taker.release()
    assert list(table.scan()) == []


def test_attached_lock_is_renewed(table):
    _, ticket = detached()
    with FakeClock() as clock:
        taker = Mutex.attach(ticket)
        before = taker.deadline
        clock.advance(11)
        until(lambda: taker.deadline > before)
        taker.release()


def test_first_block_adopts_it_and_the_next_acquires_it_anew(table):
    giver, ticket = detached()
    with Mutex.attach(ticket) as mutex:
        assert mutex.fencing_token == giver.fencing_token + 1
    assert not mutex.locked()
    with mutex:
        assert mutex.fencing_token == giver.fencing_token + 2
    # also if it was released without a block
    mutex = attached()
    first = mutex.token
    mutex.release()
    with mutex:
        assert mutex.token != first


def test_block_adopts_neither_what_was_lost_nor_what_was_acquired_anew(table):
    mutex = attached()
    with pytest.raises(MutexAlreadyHeldError):
        mutex.acquire()
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
    mutex.release()


def test_thread_that_enters_may_enter_again(table):
    mutex = attached(reentrant=True)

    def work():
        with mutex, Mutex.for_key("a", reentrant=True, timeout=0) as inner:
            assert inner.token == mutex.token
        return mutex.held

    with ThreadPoolExecutor() as pool:
        assert pool.submit(work).result(60) is False
    assert not mutex.locked()


def test_attach_detach_and_attach_again(table):
    mutex, ticket = detached(data={"step": 1})
    tokens = [mutex.fencing_token]
    for _ in range(3):
        mutex = Mutex.attach(ticket)
        assert mutex.data == {"step": 1}
        tokens.append(mutex.fencing_token)
        ticket = mutex.detach()
    assert tokens == list(range(tokens[0], tokens[0] + 4))
    with Mutex.attach(ticket):
        pass
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


@pytest.mark.real("local")
def test_of_two_clients_that_attach_at_once_one_wins(table):
    start = threading.Barrier(2)

    def attach(model, ticket):
        start.wait(60)
        try:
            return Mutex.attach(ticket, model=model)
        except MutexLostError as error:
            return error.loss

    for model in (LockItem, Elsewhere):  # warm, so that they meet
        Mutex.for_key("warm", model=model).locked()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            _, ticket = detached()
            answers = [pool.submit(attach, model, ticket) for model in (LockItem, Elsewhere)]
            answers = [answer.result(60) for answer in answers]
            (won,) = [answer for answer in answers if isinstance(answer, Mutex)]
            assert Loss.TAKEN in answers
            won.release()


# -- tickets that are not good ---------------------------------------------------------------------


def _taken():
    expire("a")
    Mutex.for_key("a").acquire()


def _cleared():
    remove = [LockItem.expires_at.remove(), LockItem.owner.remove()]
    LockItem._get_connection().update_item("a", actions=remove)


@pytest.mark.parametrize(
    ("lose_it", "loss"),
    [
        (lambda: expire("a"), Loss.EXPIRED),
        (_taken, Loss.TAKEN),
        (lambda: LockItem.force_release("a"), Loss.FORCED),
        (lambda: LockItem("a").delete(add_version_condition=False), Loss.DELETED),
        (_cleared, Loss.FORCED),
    ],
)
def test_ticket_that_is_not_good_any_more_is_refused_with_the_cause(table, lose_it, loss):
    _, ticket = detached(owner="giver")
    lose_it()
    before = [item.to_simple_dict() for item in table.scan()]
    with pytest.raises(MutexLostError, match="ticket") as raised:
        Mutex.attach(ticket)
    assert (raised.value.loss, raised.value.key) == (loss, "a")
    assert [item.to_simple_dict() for item in table.scan()] == before
    if loss is Loss.EXPIRED:
        assert raised.value.owner == "giver"
        with Mutex.for_key("a") as next_one:
            assert next_one.abandoned_by == "giver"


GOOD = {"format": 1, "table": "t", "key": "a", "token": "x"}
GOOD |= {"version": 7, "expires_at": 1e9, "lease": 30}


@pytest.mark.parametrize(
    "ticket",
    [
        *("", "{", "7", "[]", "null", "{}", None),
        pytest.param("[" * 100_000, id="deep"),
        *(json.dumps({n: v for n, v in GOOD.items() if n != left}) for left in GOOD),
        *(json.dumps(GOOD | {name: {}}) for name in GOOD),
        *(
            json.dumps(GOOD | wrong)
            for wrong in (
                {"format": 2},
                {"key": ""},
                {"region": 7},
                {"lease": 0.1},
                {"expires_at": float("nan")},
                {"version": True},
                {"version": 7.5},
            )
        ),
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
    sent.clear()
    with pytest.raises(InvalidTicketError, match="other") as raised:
        Mutex.attach(ticket, model=Other)
    assert raised.value.key == "a"
    with pytest.raises(InvalidTicketError, match="eu-north-1"):
        Mutex.attach(json.dumps(fields | {"region": "eu-north-1"}))
    with pytest.raises(InvalidTicketError, match="an int is expected"):
        Mutex.attach(json.dumps(fields | {"version": fields["version"] + 0.5}))
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
    RowLock.attach(ticket, model=Account).release()


@pytest.mark.parametrize("row", [None, {}, {"name": 7}, {"name": {"S": 7}}, {"name": {"N": "7"}}])
def test_ticket_without_its_row_is_refused(row):
    with pytest.raises(InvalidTicketError, match="Account"):
        RowLock.attach(json.dumps(GOOD | {"row": row}), model=Account)


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
    if model is Ledger:  # its lock stands elsewhere
        with pytest.raises(DoesNotExist), RowLock.attach(ticket, model=model):
            pytest.fail("there is no row")
    else:
        with pytest.raises(MutexLostError) as raised:
            RowLock.attach(ticket, model=model)
        assert raised.value.loss is Loss.DELETED
