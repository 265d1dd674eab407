"""Detach and attach while requests are lost, late, doubled, or refused.

Where requests of the detaching side meet faults it is the client with the bad network, else the attaching side is.
"""

import json
import threading
import time

import pytest
from hearing import until
from pynamodb.exceptions import GetError, UpdateError
from scene import held
from subjects import LOSSES, assert_changes_nothing, kept_from, of

from dev import faultproxy as net
from dev.faultproxy import apply_then_500, deny, drop_answer, drop_request, throttle
from pynamodb_mutex import Loss, Mutex, MutexLostError, MutexNotHeldError
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.testing import expire


def attach(scene, ticket, **options):
    """Attach by the client with the bad network."""
    return Mutex.attach(ticket, model=scene.here, **options)


def attach_there(scene, ticket):
    """Attach by the other client."""
    return Mutex.attach(ticket, model=scene.there)


@pytest.fixture
def giver(scene):
    """Held by the client with the bad network, to be detached."""
    return held(scene.mutex())


@pytest.fixture
def ticket(scene):
    """Detached by the other client."""
    return scene.taken().detach()


# -- detach ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lose", [drop_answer, apply_then_500])
def test_detach_whose_answer_is_lost_is_repeated(scene, giver, lose):
    # that one which is refused is a loss is in test_loss.py
    scene.proxy.next(lose(), op="renew")
    ticket = giver.detach()
    assert not giver.held
    assert scene.applied("renew") == [True, True]
    assert json.loads(ticket)["expires_at"] == scene.row.expires_at
    attach_there(scene, ticket).release()


@pytest.mark.parametrize("fault", [drop_request, throttle])
def test_detach_without_dynamodb_raises_while_it_is_still_held(scene, giver, fault, monkeypatch):
    monkeypatch.setattr("pynamodb_mutex._operations.attach.RELEASE_PATIENCE", 0.0)
    scene.proxy.always(fault(), op="renew")
    with pytest.raises(UpdateError):
        giver.detach()
    assert giver.held
    scene.proxy.clear()
    attach_there(scene, giver.detach()).release()


def test_detach_waits_for_a_write_under_way_and_later_writes_are_not_sent(scene, giver, pool):
    answered, meanwhile = threading.Event(), []
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
    assert attach_there(scene, detaching.result(60)).data == "written"
    assert isinstance(meanwhile[0].exception(60), MutexNotHeldError)
    assert scene.applied("save_data") == [True, False]


def test_detach_of_what_another_thread_releases_meanwhile(scene, giver, pool):
    acquired, releasing = giver._latest, []

    def meanwhile():
        releasing.append(pool.submit(run, current_process(), giver._releasing(acquired)))
        until(lambda: acquired.is_released)

    scene.proxy.next(net.after(meanwhile), op="renew")
    with pytest.raises(MutexNotHeldError):
        giver.detach()
    releasing[0].result(60)
    assert scene.row.expires_at is None


# -- nothing of the detaching side is applied any more ---------------------------------------------


@pytest.mark.parametrize("in_background", [True, False])
def test_late_renewal_does_not_touch_what_was_detached_attached_or_released(
    scene, clock, in_background
):
    with scene.fresh() as fresh:
        giver = held(fresh.mutex(lease=30))
        kept = kept_from(fresh.proxy, op="renew")
        if in_background:
            clock.advance(10)
            assert kept.caught.wait(60)
        ticket = giver.detach()
        assert_changes_nothing(scene, kept)  # the renewal by which it is detached went further
        taker = attach_there(scene, ticket)
        assert_changes_nothing(scene, kept)
        assert taker.held
        taker.release()
        assert_changes_nothing(scene, kept)
    assert scene.row.expires_at is None


def test_late_guarded_write_of_the_detaching_side_is_not_applied(scene, giver):
    kept = kept_from(scene.proxy, op="save_data")
    scene.proxy.always(deny(), op="save_data")
    with pytest.raises(UpdateError):
        giver.save_data("late")
    taker = attach_there(scene, giver.detach())
    assert_changes_nothing(scene, kept)
    taker.save_data("mine")
    assert_changes_nothing(scene, kept)
    assert scene.row.data == "mine"


# -- attach: what it has in common with acquire is in test_repeated_requests.py and test_errors.py -


@pytest.mark.real
def test_attach_that_is_doubled(scene, ticket):
    scene.proxy.next(net.duplicate("second"), op="attach")
    with attach(scene, ticket, data=[1]) as taker:
        assert taker.data == [1]
        taker.save_data(2)
    assert scene.row.expires_at is None


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


def test_attach_that_arrives_after_it_was_given_up_ends_with_its_lease(scene, ticket):
    scene.proxy.always(drop_request(), op="attach")
    kept = kept_from(scene.proxy, op="attach")
    with pytest.raises(UpdateError):
        attach(scene, ticket, timeout=0)
    assert kept.apply().status == 200  # as with acquire, one request cannot prevent this
    expire(scene.key, scene.there)
    assert scene.other().acquire(blocking=False)


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


# -- attach by a process that has had no answer yet ------------------------------------------------


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
    assert raised.value.loss is Loss.EXPIRED
    assert scene.everything == before
    with scene.fresh() as dateless:
        dateless.proxy.always(net.no_date())
        attach(dateless, ticket).release()


def test_attached_claim_that_ended_before_its_answer_came_is_not_believed(scene, ticket, clock):
    with scene.fresh() as fresh:
        fresh.proxy.always(deny(), op="renew")
        fresh.proxy.next(net.after(lambda: clock.advance(60)), op="attach")
        with pytest.raises(MutexLostError) as raised:
            attach(fresh, ticket, auto_renew=False)
        assert fresh.applied("attach", "renew", "disown") == [True, False, True]
    assert raised.value.loss is Loss.EXPIRED
    assert scene.row.expires_at is None


def test_attached_claim_that_came_out_short_is_renewed_before_it_is_handed_out(
    scene, ticket, clock
):
    with scene.fresh() as fresh:
        fresh.proxy.next(net.after(lambda: clock.advance(20)), op="attach")
        taker = attach(fresh, ticket, auto_renew=False)
        assert fresh.applied("attach", "renew") == [True, True]
        assert taker.remaining > 25
