"""Acquire here, release there: what giver and taker see when nothing fails."""

from __future__ import annotations

import json
import threading

import pytest
from accounts import Account, Ledger
from hearing import until
from pynamodb.attributes import BinaryAttribute, NumberAttribute, UnicodeAttribute
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


def detached(key="a", **options):
    mutex = Mutex.for_key(key, **options)
    assert mutex.acquire()
    return mutex, mutex.detach()


# -- the giver -------------------------------------------------------------------------------------


def test_who_detached_does_not_hold_it_and_the_lock_stays_taken(table):
    mutex, _ = detached()
    assert (mutex.held, mutex.lost, mutex.remaining) == (False, False, 0)
    for call in (mutex.release, mutex.renew, mutex.ensure_held, mutex.transaction, mutex.detach):
        with pytest.raises(MutexNotHeldError, match="detached") as raised:
            call()
        assert not isinstance(raised.value, MutexLostError)
    assert mutex.locked()
    assert not Mutex.for_key("a").acquire(blocking=False)


def test_leaving_the_block_neither_releases_nor_raises(table, sent):
    with Mutex.for_key("a") as mutex:
        mutex.detach()
        sent.clear()
    assert sent == []
    assert mutex.locked()


def test_a_detached_lock_is_not_renewed_and_its_end_is_not_reported_as_a_loss(table, sent):
    told = []
    with FakeClock() as clock:
        mutex, _ = detached(on_lost=told.append)
        sent.clear()
        clock.advance(20)
        clock.advance(20)
    assert (sent, told, mutex.lost) == ([], [], False)


def test_the_ticket_is_good_for_a_whole_lease_from_the_detaching(table):
    with FakeClock() as clock:
        mutex = Mutex.for_key("a", lease=10, auto_renew=False)
        mutex.acquire()
        before = table.get("a").expires_at
        clock.advance(5)
        ticket = json.loads(mutex.detach())
    row = table.get("a")
    assert row.expires_at == pytest.approx(before + 5, abs=1.5)
    assert (ticket["expires_at"], ticket["lease"]) == (row.expires_at, 10)


def test_a_ticket_may_be_good_for_longer(table):
    mutex = Mutex.for_key("a", lease=10)
    mutex.acquire()
    before = table.get("a").expires_at
    ticket = json.loads(mutex.detach(lease=3600))
    row = table.get("a")
    assert before + 3580 < row.expires_at == ticket["expires_at"]
    assert row.lease == pytest.approx(3600, abs=1)
    assert ticket["lease"] == 10


def test_a_lease_that_no_lock_can_have_changes_nothing(table):
    with Mutex.for_key("a") as mutex:
        with pytest.raises(ValueError, match="lease"):
            mutex.detach(lease=0.1)
        assert mutex.held


def test_a_ticket_is_short_plain_and_says_where_it_belongs(table):
    mutex, ticket = detached("Über " + "k" * 200)
    assert len(ticket) < 1024
    assert ticket.isascii()
    row = table.get(mutex.key)
    assert json.loads(ticket) == {
        "format": 1,
        "table": table.Meta.table_name,
        "region": "us-east-1",
        "key": mutex.key,
        "token": mutex.token,
        "version": mutex.fencing_token,
        "expires_at": row.expires_at,
        "lease": 30,
    }


def test_only_the_last_level_of_a_reentrant_mutex_detaches(table):
    with Mutex.for_key("a", reentrant=True) as mutex:
        with mutex:
            with pytest.raises(MutexAlreadyHeldError, match="2 times"):
                mutex.detach()
            assert mutex.held
        assert Mutex.attach(mutex.detach()).held


def test_what_was_never_taken_or_released_or_lost_cannot_be_detached(table):
    mutex = Mutex.for_key("a")
    with pytest.raises(MutexNotHeldError):
        mutex.detach()
    with mutex:
        pass
    with pytest.raises(MutexNotHeldError):
        mutex.detach()
    mutex.acquire()
    LockItem.force_release("a")
    with pytest.raises(MutexLostError) as raised:
        mutex.detach()
    assert raised.value.loss is Loss.FORCED


@pytest.mark.real("embedded")
def test_a_forked_child_cannot_detach_what_its_parent_holds(table):
    with Mutex.for_key("a") as mutex:

        def child():
            with pytest.raises(MutexNotHeldError, match="parent"):
                mutex.detach()
            return True

        assert forked(child)
        assert mutex.held


def test_a_thread_that_waits_looks_again_at_once(table):
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
def test_who_attaches_holds_it_under_a_new_token(table):
    giver, ticket = detached(lease=20, owner="giver")
    taker = Mutex.attach(ticket, owner="taker", data={"step": 2})
    assert taker.held
    assert (taker.key, taker.owner, taker.abandoned, taker.data) == (
        "a",
        "taker",
        False,
        {"step": 2},
    )
    assert taker.fencing_token == giver.fencing_token + 1
    row = table.get("a")
    assert (row.token, row.version, row.owner, row.lease, row.writes) == (
        taker.token,
        taker.fencing_token,
        "taker",
        20,
        0,
    )
    assert 15 < taker.remaining <= 20
    taker.save_data("done")
    taker.release()
    assert not taker.locked()


def test_the_payload_goes_with_the_lock_unless_another_is_given(table):
    _, ticket = detached(data={"step": 1})
    taker = Mutex.attach(ticket)
    assert taker.data == {"step": 1}
    taker.release()


def test_attaching_is_one_write_and_so_is_detaching(table, sent):
    mutex = Mutex.for_key("a")
    mutex.acquire()
    sent.clear()
    ticket = mutex.detach()
    assert sent == ["UpdateItem"]
    with Mutex.attach(ticket):
        assert sent == ["UpdateItem"] * 2
    assert sent == ["UpdateItem"] * 3


def test_the_lease_and_other_options_may_be_given(table):
    _, ticket = detached(lease=20)
    taker = Mutex.attach(ticket, lease=60, auto_renew=False, delete_on_release=True)
    assert taker.remaining > 50
    taker.release()
    assert list(table.scan()) == []


def test_an_attached_lock_is_renewed(table):
    _, ticket = detached()
    with FakeClock() as clock:
        taker = Mutex.attach(ticket)
        before = taker.deadline
        clock.advance(11)
        until(lambda: taker.deadline > before)
        taker.release()


def test_the_first_block_adopts_it_and_the_second_takes_it_anew(table):
    giver, ticket = detached()
    with Mutex.attach(ticket) as mutex:
        assert mutex.fencing_token == giver.fencing_token + 1
    assert not mutex.locked()
    with mutex:
        assert mutex.fencing_token == giver.fencing_token + 2


def test_a_block_after_its_release_takes_it_anew(table):
    mutex = Mutex.attach(detached()[1])
    first = mutex.token
    mutex.release()
    with mutex:
        assert mutex.token != first


def test_a_block_after_a_loss_says_so_instead_of_starting_anew(table):
    mutex = Mutex.attach(detached()[1])
    LockItem.force_release("a")
    with pytest.raises(MutexLostError), mutex:
        pytest.fail("it is not held")
    with mutex:  # once told, it is a mutex like any other
        assert mutex.held


def test_what_was_taken_anew_after_a_loss_is_not_the_block_s(table):
    mutex = Mutex.attach(detached()[1])
    LockItem.force_release("a")
    assert mutex.acquire()
    with pytest.raises(MutexAlreadyHeldError), mutex:
        pytest.fail("it is held by this thread")
    mutex.release()


def test_a_second_acquire_is_refused_as_ever(table):
    mutex = Mutex.attach(detached()[1])
    with pytest.raises(MutexAlreadyHeldError):
        mutex.acquire()
    mutex.release()


def test_the_thread_that_enters_may_enter_again(table):
    mutex = Mutex.attach(detached()[1], reentrant=True)

    def work():
        with mutex, Mutex.for_key("a", reentrant=True, timeout=0) as inner:
            assert inner.token == mutex.token
        done.append(mutex.held)

    done = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert done == [False]
    assert not mutex.locked()


def test_attach_detach_and_attach_again(table):
    mutex, ticket = detached()
    tokens = [mutex.fencing_token]
    for _ in range(3):
        mutex = Mutex.attach(ticket)
        tokens.append(mutex.fencing_token)
        ticket = mutex.detach()
    assert tokens == list(range(tokens[0], tokens[0] + 4))
    with Mutex.attach(ticket):
        pass
    assert not mutex.locked()


def test_no_fencing_token_is_needed(table):
    _, ticket = detached(delete_on_release=True)
    Mutex.attach(ticket, delete_on_release=True).release()
    assert list(table.scan()) == []


@pytest.mark.real
def test_two_processes_pass_it_on(table):
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


@pytest.mark.real
def test_of_two_processes_that_attach_at_once_one_wins(table):
    with workers(0, 0) as both:
        for process in both:  # warm, so that they meet
            process.ask("Mutex.for_key('warm').locked()")
        for _ in range(3):
            _, ticket = detached()
            code = f"attach({ticket!r})"
            for process in both:
                process.ask(
                    "def attach(ticket):\n"
                    "    global mutex\n"
                    "    try: mutex = Mutex.attach(ticket)\n"
                    "    except MutexLostError as error: return error.loss.name\n"
                    "    return 'won'"
                )
            for process in both:
                process.send(code)
            answers = [process.answer() for process in both]
            assert sorted(answers) == ["TAKEN", "won"]
            both[answers.index("won")].ask("mutex.release()")


# -- tickets that are not good ---------------------------------------------------------------------


@pytest.mark.real
def test_used_twice(table):
    _, ticket = detached()
    with Mutex.attach(ticket, owner="first") as first:
        with pytest.raises(MutexLostError) as raised:
            Mutex.attach(ticket)
        assert first.held
        error = raised.value
        assert (error.loss, error.key, error.owner) == (Loss.TAKEN, "a", "first")
        assert error.expires_at == table.get("a").expires_at
    with pytest.raises(MutexLostError) as raised:
        Mutex.attach(ticket)
    assert (raised.value.loss, raised.value.owner) == (Loss.TAKEN, None)


def _taken():
    expire("a")
    Mutex.for_key("a").acquire()


def _deleted():
    LockItem("a").delete(add_version_condition=False)


def _cleared():
    remove = [LockItem.expires_at.remove(), LockItem.owner.remove()]
    LockItem._get_connection().update_item("a", actions=remove)


@pytest.mark.parametrize(
    ("lose_it", "loss"),
    [
        (lambda: expire("a"), Loss.EXPIRED),
        (_taken, Loss.TAKEN),
        (lambda: LockItem.force_release("a"), Loss.FORCED),
        (_deleted, Loss.DELETED),
        (_cleared, Loss.FORCED),
    ],
)
def test_a_ticket_that_is_not_good_any_more_says_why(table, lose_it, loss):
    _, ticket = detached(owner="giver")
    lose_it()
    before = [item.to_simple_dict() for item in table.scan()]
    with pytest.raises(MutexLostError, match="ticket") as raised:
        Mutex.attach(ticket)
    assert (raised.value.loss, raised.value.key) == (loss, "a")
    assert raised.value.owner == ("giver" if loss is Loss.EXPIRED else raised.value.owner)
    assert [item.to_simple_dict() for item in table.scan()] == before


def test_who_comes_after_an_ended_ticket_knows_whose_it_was(table):
    detached(owner="giver")
    expire("a")
    with Mutex.for_key("a") as mutex:
        assert mutex.abandoned_by == "giver"


GOOD = {
    "format": 1,
    "table": "t",
    "key": "a",
    "token": "x",
    "version": 7,
    "expires_at": 1e9,
    "lease": 30,
}


@pytest.mark.parametrize(
    "ticket",
    [
        "",
        "{",
        "7",
        "[]",
        "null",
        "{}",
        None,
        pytest.param("[" * 100_000, id="deep"),
        json.dumps(GOOD | {"format": 2}),
        *(json.dumps({n: v for n, v in GOOD.items() if n != left}) for left in GOOD),
        *(json.dumps(GOOD | {name: {}}) for name in GOOD),
        json.dumps(GOOD | {"key": ""}),
        json.dumps(GOOD | {"region": 7}),
        json.dumps(GOOD | {"lease": 0.1}),
        json.dumps(GOOD | {"expires_at": float("nan")}),
        json.dumps(GOOD | {"version": True}),
        json.dumps(GOOD | {"version": 7.5}),
    ],
)
def test_what_is_no_ticket_is_refused_before_anything_is_sent(ticket):
    with pytest.raises(InvalidTicketError) as raised:
        Mutex.attach(ticket)
    assert isinstance(raised.value, ValueError)


def test_ticket_with_a_fraction_in_its_version_is_refused(table):
    _, ticket = detached()
    fields = json.loads(ticket)
    fields["version"] += 0.5
    with pytest.raises(InvalidTicketError, match="an int is expected"):
        Mutex.attach(json.dumps(fields))
    Mutex.attach(ticket).release()


def test_a_ticket_for_another_table_or_region_is_refused(table, sent):
    class Other(LockItem):
        class Meta:
            table_name = "other"

    _, ticket = detached()
    with pytest.raises(InvalidTicketError, match="other") as raised:
        Mutex.attach(ticket, model=Other)
    assert raised.value.key == "a"
    elsewhere = json.dumps(json.loads(ticket) | {"region": "eu-north-1"})
    with pytest.raises(InvalidTicketError, match="eu-north-1"):
        Mutex.attach(elsewhere)
    anywhere = {name: value for name, value in json.loads(ticket).items() if name != "region"}
    Mutex.attach(json.dumps(anywhere)).release()


def test_bad_options_are_refused_and_the_ticket_stays_good(table):
    _, ticket = detached()
    with pytest.raises(ValueError, match="lease"):
        Mutex.attach(ticket, lease=0.1)
    with pytest.raises(TypeError, match="model"):
        Mutex.attach(ticket, model=Account)
    Mutex.attach(ticket).release()


# -- row locks -------------------------------------------------------------------------------------


def test_a_row_goes_with_its_lock(model, sent):
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


def test_a_row_s_ticket_names_it(accounts):
    with Account.locked("a") as row:
        ticket = json.loads(row.row_lock.detach())
    assert ticket["row"] == {"name": {"S": "a"}}
    assert ticket["table"] == Account.Meta.table_name


def test_a_row_s_ticket_is_for_no_other_model_and_no_lock_table(accounts, table):
    with Account.locked("a") as row:
        ticket = row.row_lock.detach()
    with pytest.raises(InvalidTicketError, match="Ledger"):
        RowLock.attach(ticket, model=Ledger)
    with pytest.raises(InvalidTicketError, match=Account.Meta.table_name):
        Mutex.attach(ticket)
    RowLock.attach(ticket, model=Account).release()


@pytest.mark.parametrize("row", [None, {}, {"name": 7}, {"name": {"S": 7}}, {"name": {"N": "7"}}])
def test_a_ticket_without_its_row_is_refused(row):
    ticket = json.dumps(GOOD | {"row": row})
    with pytest.raises(InvalidTicketError, match="Account"):
        RowLock.attach(ticket, model=Account)


def test_keys_of_all_types(engine):
    class Page(RowLockMixin, Model):
        Meta = meta("pages")

        digest = BinaryAttribute(hash_key=True, legacy_encoding=False)
        number = NumberAttribute(range_key=True)
        text = UnicodeAttribute(null=True)

    created(Page)(b"\xff\x00", 7.5).save()
    with Page.locked(b"\xff\x00", 7.5) as page:
        ticket = page.row_lock.detach()
    for broken in ({"B": "%"}, {"B": 7}):
        row = json.loads(ticket)["row"] | {"digest": broken}
        with pytest.raises(InvalidTicketError):
            RowLock.attach(json.dumps(json.loads(ticket) | {"row": row}), model=Page)
    row = json.loads(ticket)["row"] | {"number": {"N": "seven"}}
    with pytest.raises(InvalidTicketError):
        RowLock.attach(json.dumps(json.loads(ticket) | {"row": row}), model=Page)
    with RowLock.attach(ticket, model=Page) as page:
        assert (page.digest, page.number) == (b"\xff\x00", 7.5)


def test_a_row_that_was_deleted_meanwhile(model):
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
