"""Acquire here, release there: what giver and taker see, also when requests are lost, late, doubled or refused.

Where requests of the detaching side meet faults it is the client with the bad network, else the attaching side is.
"""

import json
import threading
import time

import pytest
from kinds_of_locks import LOSSES, of
from processes import workers
from pynamodb.attributes import BinaryAttribute, NumberAttribute
from pynamodb.exceptions import DoesNotExist, GetError, UpdateError
from pynamodb.models import Model
from row_models import Account, Ledger, created, meta
from sent_requests import assert_changes_nothing, kept_from
from two_clients import held

from dev import faultproxy as net
from dev.faultproxy import apply_then_500, deny, drop_answer, drop_request, throttle
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
    RowLockMixin,
)
from pynamodb_mutex.testing import expire

GOOD = {"format": 1, "table": "t", "key": "a", "token": "x"}
GOOD |= {"version": 7, "expires_at": 1e9, "lease": 30}


def attached(**options):
    return Mutex.attach(held(Mutex.for_key("a")).detach(), **options)


def test_mutex_that_detached_does_not_hold_the_lock_and_it_stays_taken(table, sent):
    told = []
    mutex = held(Mutex.for_key("a", on_lost=told.append))
    mutex.detach()
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


@pytest.mark.parametrize("given", [None, 3600, 2])
def test_ticket_is_good_for_a_whole_lease_from_the_detaching_or_for_the_one_given(table, given):
    mutex = held(Mutex.for_key("Über " + "k" * 200, lease=10, auto_renew=False))
    before = table.get(mutex.key).expires_at
    time.sleep(5)
    with pytest.raises(ValueError, match="lease"):
        mutex.detach(lease=0.1)
    assert mutex.held
    ticket = mutex.detach(lease=given)
    row = table.get(mutex.key)
    assert row.expires_at == pytest.approx(before + 5 + (given or 10) - 10, abs=1.5)
    assert row.lease == pytest.approx(given or 10, abs=1)
    # it is short and plain, and says where it belongs
    assert len(ticket) < 1024
    assert ticket.isascii()
    expected = GOOD | {"table": table.Meta.table_name, "region": "us-east-1", "key": mutex.key}
    expected |= {"token": mutex.token, "version": mutex.fencing_token, "lease": 10}
    assert json.loads(ticket) == expected | {"expires_at": row.expires_at}


def test_lock_is_detached_if_it_is_held_once_and_by_itself(table, accounts):
    with Mutex.for_key("a", reentrant=True) as mutex:
        with mutex:
            with pytest.raises(MutexAlreadyHeldError, match="2 times"):
                mutex.detach()
            assert mutex.held
        assert Mutex.attach(mutex.detach()).held
    mutex = Mutex.for_key("b")
    for _ in range(2):
        with pytest.raises(MutexNotHeldError):
            mutex.detach()
        held(mutex).release()
    with Account.locked_all(["a"]) as [row]:
        with pytest.raises(MutexError, match="together"):
            row.row_lock.detach()
        assert row.row_lock.held


def test_waiting_thread_polls_at_once_after_detach(table, sent, pool):
    mutex = held(Mutex.for_key("a"))
    waits = pool.submit(Mutex.for_key("a", poll=(30, 60)).acquire)
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
    giver = held(Mutex.for_key("a", lease=20, owner="giver", data={"step": 1}))
    ticket = giver.detach()
    taker = Mutex.attach(ticket, owner="taker", data={"step": 2})
    assert (taker.held, taker.key, taker.owner, taker.abandoned) == (True, "a", "taker", False)
    assert (taker.data, taker.fencing_token) == ({"step": 2}, giver.fencing_token + 1)
    row = table.get("a")
    assert (row.token, row.version) == (taker.token, taker.fencing_token)
    assert (row.owner, row.lease) == ("taker", 20)
    assert 15 < taker.remaining <= 20
    taker.save_data("done")
    for owner in ("taker", None):
        with pytest.raises(MutexLostError) as raised:
            Mutex.attach(ticket)
        error = raised.value
        assert (error.loss, error.key, error.owner) == (Loss.TAKEN, "a", owner)
        assert error.expires_at == table.get("a").expires
        if owner:
            assert taker.held
            taker.release()
            assert not taker.locked()


@pytest.mark.parametrize("keeps_row", [True, False])
def test_attached_lock_is_renewed_and_has_the_options_that_are_given(table, keeps_row):
    options = {"lease": 20, "delete_on_release": not keeps_row, "data": {"step": 1}}
    giver = held(Mutex.for_key("a", **options))
    # detached and attached again
    ticket = Mutex.attach(giver.detach()).detach()
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
        assert (sent, mutex.fencing_token) == (["UpdateItem"] * 2, first + 1)
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


def test_thread_that_enters_may_enter_again(table, pool):
    mutex = attached(reentrant=True)

    def work():
        with mutex, Mutex.for_key("a", reentrant=True, timeout=0) as inner:
            assert inner.token == mutex.token
        return mutex.held

    assert (pool.submit(work).result(60), mutex.locked()) == (False, False)


@pytest.mark.real("embedded")
def test_two_processes_with_wrong_clocks_pass_it_on(table):
    with workers(3600, -3600) as (giver, taker):
        giver.ask("mutex = Mutex.for_key('a', owner='giver', lease=20)")
        token, ticket = giver.ask("mutex.acquire() and (mutex.fencing_token, mutex.detach())")
        giver.end()
        taker.ask(f"mutex = Mutex.attach({ticket!r}, owner='taker')")
        assert taker.ask("mutex.held, mutex.fencing_token") == [True, token + 1]
        assert table.get("a").owner == "taker"
        taker.ask("mutex.release()")
    assert Mutex.for_key("a").acquire(blocking=False)


# -- tickets that are not good ---------------------------------------------------------------------


@pytest.mark.parametrize(("lose_it", "loss"), [*LOSSES, ("expire", Loss.EXPIRED)])
def test_ticket_that_is_not_good_any_more_is_refused_with_the_cause(scene, ticket, lose_it, loss):
    getattr(scene, lose_it)()
    before = scene.everything
    with pytest.raises(MutexLostError, match="ticket") as raised:
        Mutex.attach(ticket, model=scene.there)
    error = raised.value
    assert (error.loss, error.key, scene.everything) == (loss, scene.key, before)
    if loss is Loss.EXPIRED:
        assert error.owner == "other"
        with scene.mutex() as next_one:
            assert next_one.abandoned_by == "other"


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
    message = (
        r"a ticket(: give the text that detach\(\) returned \(| of format (2|\{\}); known here: 1$)"
    )
    with pytest.raises(InvalidTicketError, match=message) as raised:
        Mutex.attach(ticket)
    assert isinstance(raised.value, ValueError)


def test_ticket_for_another_place_or_with_wrong_options_is_refused_and_stays_good(table, sent):
    class Other(LockItem):
        class Meta:
            table_name = "other"

    fields = json.loads(held(Mutex.for_key("a")).detach())
    sent.clear()
    for error, match, changes, options in (
        (InvalidTicketError, "other", {}, {"model": Other}),
        (InvalidTicketError, "eu-north-1", {"region": "eu-north-1"}, {}),
        (InvalidTicketError, "an int is expected", {"version": fields["version"] + 0.5}, {}),
        (ValueError, "lease", {}, {"lease": 0.1}),
        (TypeError, "model", {}, {"model": Account}),
    ):
        with pytest.raises(error, match=match) as raised:
            Mutex.attach(json.dumps(fields | changes), **options)
        assert match != "other" or raised.value.key == "a"
    assert sent == []
    # a ticket need not name a region
    del fields["region"]
    Mutex.attach(json.dumps(fields)).release()


def test_row_goes_with_its_lock_unless_it_was_deleted_meanwhile(model, sent):
    lock = model.locked("a")
    with lock as row:
        row.update([model.balance.add(5)])
        ticket = lock.detach()
        with pytest.raises(MutexNotHeldError):
            row.save()
    with pytest.raises(MutexNotHeldError):
        row.save()
    assert (row.row_lock, row.is_locked) == (lock, False)
    sent.clear()
    attached = RowLock.attach(ticket, model=model)
    assert sent == ["UpdateItem"]
    with attached as taken:
        assert isinstance(attached, RowLock)
        assert taken.balance == 5
        taken.balance += 1
        taken.save(unlock=True)
    assert (model.get("a", consistent_read=True).balance, attached.locked()) == (6, False)
    with lock:
        ticket = lock.detach()
    model._get_connection().delete_item("a")
    # a lock in a lock table is still good
    refused = DoesNotExist if model is Ledger else MutexLostError
    with pytest.raises(refused) as raised, RowLock.attach(ticket, model=model):
        pytest.fail("there is no row")
    assert model is Ledger or raised.value.loss is Loss.DELETED


def test_ticket_of_a_row_names_it_and_is_for_no_other_model_and_no_lock_table(accounts, table):
    with Account.locked("a") as row:
        ticket = row.row_lock.detach()
    fields = json.loads(ticket)
    assert (fields["row"], fields["table"]) == ({"name": {"S": "a"}}, Account.Meta.table_name)
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


# -- detach by a client with a bad network ---------------------------------------------------------


@pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
def test_detach_whose_answer_is_lost_is_repeated(scene, lose):
    # that one which is refused is a loss is in test_loss.py
    giver = held(scene.mutex())
    scene.proxy.next(lose(), op="renew")
    ticket = giver.detach()
    assert (giver.held, scene.applied("renew")) == (False, [True, True])
    assert json.loads(ticket)["expires_at"] == scene.row.expires_at
    Mutex.attach(ticket, model=scene.there).release()


@pytest.mark.parametrize("fault", [drop_request, throttle])
def test_detach_without_dynamodb_raises_while_it_is_still_held(scene, fault, monkeypatch):
    monkeypatch.setattr("pynamodb_mutex._attach.attach.RELEASE_PATIENCE", 0.0)
    giver = held(scene.mutex())
    scene.proxy.always(fault(), op="renew")
    with pytest.raises(UpdateError):
        giver.detach()
    assert giver.held
    scene.proxy.clear()
    Mutex.attach(giver.detach(), model=scene.there).release()


def test_detach_waits_for_a_write_under_way_and_later_writes_are_not_sent(scene, pool):
    giver, answered, meanwhile = held(scene.mutex()), threading.Event(), []
    # applied, and answered only when the test says so
    scene.proxy.next(net.stall(answered, apply=True), op="save_data")
    writing = pool.submit(giver.save_data, "written")
    scene.proxy.wait(1, "save_data")

    def write():
        meanwhile.append(pool.submit(giver.save_data, "late"))
        time.sleep(0.3)

    scene.proxy.next(net.after(write), op="renew")
    detaching = pool.submit(giver.detach)
    with pytest.raises(TimeoutError):
        detaching.result(0.3)
    assert (giver.held, scene.proxy.of("renew")) == (True, [])
    answered.set()
    writing.result(60)
    assert Mutex.attach(detaching.result(60), model=scene.there).data == "written"
    assert isinstance(meanwhile[0].exception(60), MutexNotHeldError)
    assert scene.applied("save_data") == [True, False]


@pytest.mark.parametrize("fault", [drop_request, deny])
def test_ticket_with_a_shorter_lease_is_good_though_its_end_could_not_be_moved(scene, fault):
    giver, ends = held(scene.mutex()), scene.ends
    scene.proxy.next(net.pass_on(), fault(), op="renew")
    ticket = giver.detach(lease=2)
    assert scene.applied("renew") == [True, False]
    assert json.loads(ticket)["expires_at"] < ends[0] < scene.ends[0]
    time.sleep(10)
    Mutex.attach(ticket, model=scene.there).release()


def test_late_request_that_ends_the_claim_sooner_moves_no_end_of_others(scene):
    giver, kept = held(scene.mutex()), net.late()
    scene.proxy.next(net.pass_on(), kept, op="renew")
    taker = Mutex.attach(giver.detach(lease=2), model=scene.there)
    assert_changes_nothing(scene, kept)
    taker.release()
    assert_changes_nothing(scene, kept)


@pytest.mark.parametrize("by", ["renew", "renew in the background", "save_data"])
def test_late_request_of_the_detaching_side_is_not_applied_any_more(scene, clock, by):
    op = by.split()[0]
    with scene.fresh() as fresh:
        giver = held(fresh.mutex(lease=30))
        kept = kept_from(fresh.proxy, op=op)
        if by == "save_data":
            fresh.proxy.always(deny(), op=op)
            with pytest.raises(UpdateError):
                giver.save_data("late")
        elif by != "renew":
            clock.advance(10)
            assert kept.caught.wait(60)
        ticket = giver.detach()
        if op == "renew":  # the renewal by which it is detached went further
            assert_changes_nothing(scene, kept)
        taker = Mutex.attach(ticket, model=scene.there)
        assert_changes_nothing(scene, kept)
        taker.save_data("mine")
        assert_changes_nothing(scene, kept)
        assert taker.held
        taker.release()
        assert_changes_nothing(scene, kept)
    assert (scene.row.data, scene.row.expires_at) == ("mine", None)


# -- attach: what it has in common with acquire is in test_repeated_requests.py and test_errors.py ------


@pytest.fixture
def ticket(scene):
    """Detached by the client whose network is not bad."""
    return scene.taken().detach()


def attach(scene, ticket, **options):
    """Attach by the client with the bad network."""
    return Mutex.attach(ticket, model=scene.here, **options)


@of("ticket")
@pytest.mark.parametrize(("lose_it", "loss"), LOSSES)
def test_attach_whose_claim_is_lost_before_the_repeat(subject, lose_it, loss):
    subject.proxy.next(drop_answer(getattr(subject, lose_it)), op="attach")
    with pytest.raises(MutexLostError) as raised:
        subject.held()
    # cleared, the row has our token without a claim: somebody took it out by hand
    assert raised.value.loss is (Loss.TAKEN if lose_it == "clear" else loss)


@pytest.mark.parametrize(("fault", "error"), [(throttle, "Throttling"), (deny, "AccessDenied")])
def test_attach_that_was_surely_not_applied_leaves_the_ticket_good(scene, ticket, fault, error):
    scene.proxy.always(fault(), op="attach")
    with pytest.raises(UpdateError, match=error):
        attach(scene, ticket, timeout=0)
    assert scene.proxy.of("disown") == []
    assert fault is throttle or scene.proxy.kinds() == ["attach"]  # denied, it is not repeated
    scene.proxy.clear()
    attach(scene, ticket)


def test_attach_is_not_proved_by_an_answer_about_another_claim(scene, ticket):
    with scene.fresh() as other:
        attach(other, ticket).release()
        stale = other.proxy.of("attach")[0].reply
    scene.proxy.next(net.answer_with(stale), op="attach")
    attach(scene, scene.taken().detach()).release()
    assert scene.row.expires_at is None


def test_attach_is_not_repeated_for_longer_than_a_lease(scene):
    ticket = scene.taken(lease=0.5).detach()
    scene.proxy.always(throttle(), op="attach")
    with pytest.raises(UpdateError):
        attach(scene, ticket)


def test_first_attach_of_a_process_reads_first(scene, ticket):
    with scene.fresh() as fresh:
        fresh.proxy.always(drop_request(), op="GetItem")
        with pytest.raises(GetError):
            attach(fresh, ticket, timeout=0)
        fresh.proxy.start_anew()
        attach(fresh, ticket)  # it is still good
        assert fresh.proxy.kinds() == ["GetItem", "attach"]
        # an end that others can judge, should it die now
        assert scene.row.expires_at < 2 * json.loads(ticket)["expires_at"]


def test_first_attach_of_a_process_refuses_an_ended_ticket_unless_it_cannot_know(scene, ticket):
    expire(scene.key, scene.there)
    before = scene.everything
    with scene.fresh() as fresh, pytest.raises(MutexLostError) as raised:
        attach(fresh, ticket)
    assert (raised.value.loss, scene.everything) == (Loss.EXPIRED, before)
    with scene.fresh() as dateless:
        dateless.proxy.always(net.no_date())
        attach(dateless, ticket).release()


@pytest.mark.parametrize("is_lost", [False, True])
def test_attached_claim_that_ended_before_its_answer_came_is_not_believed(
    scene, ticket, clock, is_lost
):
    with scene.fresh() as fresh:
        fresh.proxy.next(net.after(scene.force) if is_lost else deny(), op="renew")
        fresh.proxy.next(net.after(lambda: clock.advance(60)), op="attach")
        with pytest.raises(MutexLostError if is_lost else UpdateError):
            attach(fresh, ticket, auto_renew=False)
        # a claim that is known to be lost is not ended
        assert fresh.applied("attach", "renew", "disown") == [True, False, True][: 3 - is_lost]
    assert scene.is_free


def test_attached_claim_that_came_short_is_renewed_before_it_is_handed_out(scene, ticket, clock):
    with scene.fresh() as fresh:
        fresh.proxy.next(net.after(lambda: clock.advance(20)), op="attach")
        taker = attach(fresh, ticket, auto_renew=False)
        assert fresh.applied("attach", "renew") == [True, True]
        assert taker.remaining > 25
