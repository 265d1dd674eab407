"""Detaching and attaching while requests are lost, late, doubled, or refused.

The giver is the client with the bad network where its requests are spoilt, else the taker is.
"""

from __future__ import annotations

import json
import threading

import pytest
from hearing import until
from pynamodb.exceptions import GetError, UpdateError
from scene import Lose, Scene, losses, lost_in_two_ways
from test_late_duplicates import arrives_in_vain

from dev.faultproxy import (
    after,
    answer_with,
    deny,
    drop_answer,
    drop_request,
    duplicate,
    late,
    no_date,
    server_error,
    stall,
    throttle,
)
from pynamodb_mutex import Mutex, MutexLostError, MutexNotHeldError
from pynamodb_mutex._operations.held import Belief, State
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock, expire


def given(scene: Scene, **options) -> tuple[Mutex, str]:
    """Acquire and detach by the client with the bad network."""
    giver = scene.mutex(**options)
    assert giver.acquire(timeout=20)
    return giver, giver.detach()


def offered(scene: Scene, **options) -> str:
    """Acquire and detach by the other client."""
    return scene.taken(**options).detach()


def attach(scene: Scene, ticket: str, **options) -> Mutex:
    """Attach by the client with the bad network."""
    return Mutex.attach(ticket, model=scene.here, **options)


def attach_there(scene: Scene, ticket: str, **options) -> Mutex:
    """Attach by the other client."""
    return Mutex.attach(ticket, model=scene.there, **options)


# -- detach ----------------------------------------------------------------------------------------


@lost_in_two_ways
def test_detaching_whose_answer_is_lost(scene: Scene, lose: Lose) -> None:
    giver = scene.mutex()
    giver.acquire()
    scene.proxy.next(lose(), op="renew")
    ticket = giver.detach()
    assert not giver.held
    assert scene.applied("renew") == [True, True]
    assert json.loads(ticket)["expires_at"] == scene.row.expires_at
    attach_there(scene, ticket).release()


def test_detaching_that_is_refused_is_a_loss(scene: Scene) -> None:
    giver = scene.mutex()
    giver.acquire()
    other = scene.forced_and_taken()
    with pytest.raises(MutexLostError) as raised:
        giver.detach()
    assert (raised.value.loss, raised.value.owner) == (Loss.TAKEN, "other")
    assert other.held
    other.release()


@pytest.mark.parametrize("fault", [drop_request, throttle])
def test_detaching_without_dynamodb_raises_while_it_is_still_held(
    scene: Scene, fault: Lose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pynamodb_mutex._operations.attach.RELEASE_PATIENCE", 0.0)
    giver = scene.mutex()
    giver.acquire()
    scene.proxy.always(fault(), op="renew")
    with pytest.raises(UpdateError):
        giver.detach()
    assert giver.held
    scene.proxy.clear()
    attach_there(scene, giver.detach()).release()


def test_detaching_waits_for_a_guarded_write_under_way(scene: Scene) -> None:
    giver = scene.mutex()
    giver.acquire()
    answered = threading.Event()
    # applied, and answered only when the test says so
    scene.proxy.next(stall(answered, apply=True), op="save_data")
    writing = threading.Thread(target=giver.save_data, args=("written",), daemon=True)
    writing.start()
    scene.proxy.wait(1, "save_data")
    tickets = []
    detaching = threading.Thread(target=lambda: tickets.append(giver.detach()), daemon=True)
    detaching.start()
    detaching.join(0.3)
    assert (giver.held, scene.proxy.of("renew")) == (True, [])
    answered.set()
    writing.join(60)
    detaching.join(60)
    taker = attach_there(scene, tickets[0])
    assert taker.data == "written"
    taker.release()


def test_a_write_that_waited_for_the_detaching_is_not_sent(scene: Scene) -> None:
    giver = scene.mutex()
    giver.acquire()
    raised = []

    def write() -> None:
        with pytest.raises(MutexNotHeldError) as error:
            giver.save_data("too late")
        raised.append(error)

    writing = threading.Thread(target=write, daemon=True)

    def meanwhile() -> None:
        writing.start()
        writing.join(0.3)

    scene.proxy.next(after(meanwhile), op="renew")
    ticket = giver.detach()
    writing.join(60)
    assert raised
    assert scene.proxy.of("save_data") == []
    taker = attach_there(scene, ticket)
    assert taker.data is None
    taker.release()


def test_released_by_another_thread_while_it_is_detached(scene: Scene) -> None:
    giver = scene.mutex()
    giver.acquire()
    hold = giver._latest
    releasing = threading.Thread(
        target=lambda: run(current_process(), giver._releasing(hold)), daemon=True
    )

    def meanwhile() -> None:
        releasing.start()
        until(lambda: hold.is_released)

    scene.proxy.next(after(meanwhile), op="renew")
    with pytest.raises(MutexNotHeldError):
        giver.detach()
    releasing.join(60)
    assert scene.row.expires_at is None


def test_what_a_write_may_have_released_is_not_detached(scene: Scene) -> None:
    giver = scene.mutex()
    giver.acquire()
    giver._latest.belief = Belief(State.IN_DOUBT)
    with pytest.raises(MutexNotHeldError, match="unknown outcome"):
        giver.detach()
    assert scene.proxy.of("renew") == []
    giver.release()


# -- the giver is fenced ---------------------------------------------------------------------------


def test_a_late_background_renewal_does_not_touch_the_claim_of_the_taker(scene: Scene) -> None:
    kept = late()
    with scene.fresh() as fresh, FakeClock() as clock:
        giver = fresh.mutex(lease=30)
        giver.acquire()
        fresh.proxy.next(kept, op="renew")
        clock.advance(10)
        assert kept.caught.wait(60)
        ticket = giver.detach()
        arrives_in_vain(scene, kept)  # that of the detaching went further
        taker = attach_there(scene, ticket)
        arrives_in_vain(scene, kept)
    assert taker.held
    taker.release()


def test_a_late_renewal_of_the_detaching_neither_shortens_nor_revives(scene: Scene) -> None:
    kept = late()
    giver = scene.mutex()
    giver.acquire()
    scene.proxy.next(kept, op="renew")
    ticket = giver.detach()
    arrives_in_vain(scene, kept)  # its repeat went further
    taker = attach_there(scene, ticket)
    arrives_in_vain(scene, kept)
    taker.release()
    arrives_in_vain(scene, kept)
    assert scene.row.expires_at is None


def test_a_late_guarded_write_of_the_giver_is_not_applied(scene: Scene) -> None:
    kept = late()
    giver = scene.mutex()
    giver.acquire()
    scene.proxy.next(kept, op="save_data")
    scene.proxy.always(deny(), op="save_data")
    with pytest.raises(UpdateError):
        giver.save_data("late")
    taker = attach_there(scene, giver.detach())
    arrives_in_vain(scene, kept)
    taker.save_data("mine")
    arrives_in_vain(scene, kept)
    assert scene.row.data == "mine"
    taker.release()


def test_nothing_that_the_giver_could_still_send_is_applied(scene: Scene) -> None:
    # as if its process had been copied before it detached
    giver = scene.mutex()
    giver.acquire()
    giver.save_data(1)
    giver.renew()
    hold = giver._latest
    taker = attach_there(scene, giver.detach())
    before = scene.everything
    sent = {seen.kind: seen for seen in scene.proxy.log}
    store, mine = hold.store, hold.store.mine(hold.own)
    write = store.requests.release.fill(hold.options.row, {**mine, "ttl": "1"})
    bodies = [sent["renew"].body, sent["save_data"].body, write]
    values = mine | {"end": str(scene.row.expires_at + 60), "lease": "60", "ttl": "1"}
    bodies.append(store.requests.renew.fill(hold.options.row, values))
    values = mine | {"known": "1", "next": "2", "data": "{}"}
    bodies.append(store.requests.save_data.fill(hold.options.row, values))
    for body in bodies:
        reply = scene.proxy.replay(sent["renew"], **{"ExpressionAttributeValues": {}, **body})
        assert reply.error == "ConditionalCheckFailedException"
    assert scene.everything == before
    assert taker.held
    taker.release()


# -- attach ----------------------------------------------------------------------------------------


@lost_in_two_ways
def test_attaching_whose_answer_is_lost_is_recognised(scene: Scene, lose: Lose) -> None:
    ticket = offered(scene)
    scene.proxy.next(lose(), op="attach")
    with attach(scene, ticket, data=[1]) as taker:
        assert scene.applied("attach") == [True, False]
        assert scene.row.token == taker.token
        assert taker.data == [1]
        taker.save_data(2)
    assert scene.row.expires_at is None


@pytest.mark.real
def test_attaching_that_is_doubled(scene: Scene) -> None:
    ticket = offered(scene)
    scene.proxy.next(duplicate("second"), op="attach")
    attach(scene, ticket).release()
    assert scene.row.expires_at is None


def test_a_late_attaching_is_not_applied_after_its_repeat_or_release(scene: Scene) -> None:
    ticket = offered(scene)
    kept = late()
    scene.proxy.next(kept, op="attach")
    taker = attach(scene, ticket)
    arrives_in_vain(scene, kept)
    assert taker.held
    taker.release()
    arrives_in_vain(scene, kept)


@losses
def test_attaching_whose_claim_is_lost_before_the_repeat(scene: Scene, lose_it, loss: Loss) -> None:
    ticket = offered(scene)
    scene.proxy.next(drop_answer(lambda: lose_it(scene)), op="attach")
    with pytest.raises(MutexLostError) as raised:
        attach(scene, ticket)
    if lose_it is Scene.clear:
        # what stands there is our token, without a claim: somebody took it out by hand
        loss = Loss.TAKEN
    assert raised.value.loss is loss


def test_an_attaching_that_has_no_outcome_is_given_up(scene: Scene) -> None:
    ticket = offered(scene)
    scene.proxy.always(drop_answer(), op="attach")
    with pytest.raises(UpdateError):
        attach(scene, ticket, timeout=0)
    assert scene.applied("disown") == [True]
    assert scene.row.expires_at is None


def test_an_attaching_that_was_surely_not_applied_leaves_the_ticket_good(scene: Scene) -> None:
    ticket = offered(scene)
    scene.proxy.always(throttle(), op="attach")
    with pytest.raises(UpdateError):
        attach(scene, ticket, timeout=0)
    scene.proxy.clear()
    assert scene.proxy.of("disown") == []
    attach(scene, ticket).release()


def test_an_attaching_that_arrives_after_it_was_given_up_ends_with_its_lease(scene: Scene) -> None:
    ticket = offered(scene)
    kept = late()
    scene.proxy.always(drop_request(), op="attach")
    scene.proxy.next(kept, op="attach")
    with pytest.raises(UpdateError):
        attach(scene, ticket, timeout=0)
    assert kept.apply().status == 200  # as with acquire, one request cannot prevent this
    expire(scene.key, scene.there)
    assert scene.other().acquire(blocking=False)


def test_access_denied_is_raised_at_once(scene: Scene) -> None:
    ticket = offered(scene)
    scene.proxy.next(deny(), op="attach")
    with pytest.raises(UpdateError, match="AccessDenied"):
        attach(scene, ticket)
    assert scene.proxy.kinds() == ["attach"]
    attach(scene, ticket).release()


def test_an_answer_that_is_not_about_this_row_proves_nothing(scene: Scene) -> None:
    ticket = offered(scene)
    with scene.fresh() as other:
        attach(other, ticket).release()
        stale = other.proxy.of("attach")[0].reply
    ticket = offered(scene)
    scene.proxy.next(answer_with(stale), op="attach")
    attach(scene, ticket).release()
    assert scene.row.expires_at is None


def test_a_process_that_knows_no_time_yet_asks_first(scene: Scene) -> None:
    ticket = offered(scene)
    with scene.fresh() as fresh:
        taker = attach(fresh, ticket)
        assert fresh.proxy.kinds() == ["GetItem", "attach"]
        # an end that others can judge, should it die now
        assert scene.row.expires_at < 2 * json.loads(ticket)["expires_at"]
        taker.release()


def test_a_process_that_knows_no_time_yet_refuses_an_ended_ticket_too(scene: Scene) -> None:
    ticket = offered(scene)
    expire(scene.key, scene.there)
    before = scene.everything
    with scene.fresh() as fresh, pytest.raises(MutexLostError) as raised:
        attach(fresh, ticket)
    assert raised.value.loss is Loss.EXPIRED
    assert scene.everything == before


def test_first_contact_that_fails_leaves_the_ticket_good(scene: Scene) -> None:
    ticket = offered(scene)
    with scene.fresh() as fresh:
        fresh.proxy.always(server_error(), op="GetItem")
        with pytest.raises(GetError):
            attach(fresh, ticket, timeout=0)
    attach(scene, ticket).release()


def test_without_a_date_a_ticket_that_nobody_took_over_is_good(scene: Scene) -> None:
    ticket = offered(scene)
    expire(scene.key, scene.there)
    with scene.fresh() as fresh:
        fresh.proxy.always(no_date())
        attach(fresh, ticket).release()


def test_a_claim_that_ended_before_its_answer_came_is_not_believed(scene: Scene) -> None:
    ticket = offered(scene)
    with scene.fresh() as fresh, FakeClock() as clock:
        fresh.proxy.always(deny(), op="renew")
        fresh.proxy.next(after(lambda: clock.advance(60)), op="attach")
        with pytest.raises(MutexLostError) as raised:
            attach(fresh, ticket, auto_renew=False)
        assert fresh.applied("attach", "renew", "disown") == [True, False, True]
    assert raised.value.loss is Loss.EXPIRED
    assert scene.row.expires_at is None


def test_a_claim_that_came_out_short_is_renewed_before_it_is_handed_out(scene: Scene) -> None:
    ticket = offered(scene)
    with scene.fresh() as fresh, FakeClock() as clock:
        fresh.proxy.next(after(lambda: clock.advance(20)), op="attach")
        taker = attach(fresh, ticket, auto_renew=False)
        assert fresh.applied("attach", "renew") == [True, True]
        assert taker.remaining > 25
        taker.release()


def test_a_failing_dynamodb_is_asked_no_longer_than_a_lease(scene: Scene) -> None:
    ticket = offered(scene, lease=0.5)
    scene.proxy.always(throttle(), op="attach")
    with pytest.raises(UpdateError):
        attach(scene, ticket)
