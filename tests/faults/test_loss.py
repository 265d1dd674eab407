"""I5 and I6: a lock touches no claim but its own, and reports a loss with its cause, whatever hangs."""

import re
import threading
import time
from email.utils import formatdate
from functools import partial
from unittest.mock import ANY

import pytest
from kinds_of_locks import DELETED, LOSSES, MAIN, OTHERS, SHARED, crossed, of, table
from pynamodb.exceptions import PynamoDBException
from signal_receivers import OnLost, hearing
from two_clients import held, on_thread
from waits import until

from dev.faultproxy import after, deny, drop_answer, page, server_error, set_date, stall, through
from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError, MutexNotHeldError

# -- another has broken, taken or deleted it -------------------------------------------------------

FOUND_BY = {
    "release": lambda lock: lock.release(),
    "end of the block": lambda lock: lock.__exit__(None, None, None),
    "renew": lambda lock: lock.renew(),
    "background": lambda lock: lock.ensure_held(),
    "ensure_held": lambda lock: lock.ensure_held(29.9),
    "detach": lambda lock: lock.detach(),
}

# A release cannot tell a claim that somebody removed by hand from one that an earlier copy of the request has ended.
LOST_BEFORE_RELEASE = [loss for loss in LOSSES if loss[0] != "clear"]


@table(
    "subject, found_by, lose_it, loss",
    [
        *crossed(MAIN, [(by, *loss) for by in list(FOUND_BY)[:2] for loss in LOST_BEFORE_RELEASE]),
        *crossed(MAIN, [(by, *loss) for by in list(FOUND_BY)[2:-1] for loss in LOSSES]),
        *crossed(OTHERS, [(by, *LOSSES[0]) for by in ("release", "renew", "background")]),
        *[("one lock", "detach", *loss) for loss in LOSSES],
        *[(DELETED, "release", *loss) for loss in LOST_BEFORE_RELEASE[1:]],
    ],
)
def test_lost_lock_is_reported_once_and_touches_nothing_of_others(
    subject, clock, found_by, lose_it, loss
):
    on_lost, taker = OnLost(), "other" if loss is Loss.TAKEN else None
    with hearing(subject.scene.key) as heard:
        lock = subject.lock(on_lost=on_lost)
        lock.__enter__() if found_by == "end of the block" else held(lock)
        locks = subject.parts(lock)
        token = locks[-1].token
        getattr(subject, lose_it)()
        assert lock.held  # it cannot know
        before = subject.everything
        if found_by == "background":
            clock.advance(11)
            on_lost.wait()
        with pytest.raises(MutexLostError) as raised:
            FOUND_BY[found_by](lock)
        error = raised.value
        assert (error.loss, error.owner, error.key) == (loss, taker, locks[-1].key)
        said = rf"(release|renew|ensure_held): '{error.key}' was lost: {loss.value}"
        assert re.fullmatch(said, str(error))
        assert (error.expires_at is None, error.__cause__) == (taker is None, None)
        assert (lock.loss, lock.held, lock.lost) == (loss, False, True)
        if found_by in ("release", "end of the block"):
            assert subject.everything[-1] == before[-1]
        else:
            assert {each.loss for each in locks} == {loss}
            with pytest.raises(MutexLostError):
                lock.renew()
            assert subject.everything == before
            assert len(subject.of("renew")) <= 2
            with pytest.raises(MutexLostError):
                lock.release()
            until(lambda: on_lost.calls)
            ((_, reported, thread, _),) = on_lost.calls
            assert reported is loss
            assert thread is not threading.current_thread()
        with pytest.raises(MutexNotHeldError):
            lock.release()
        # those of several that were not lost are released
        assert not any("expires_at" in claim for claim in subject.claims[:-1])
        heard.wait("lost")
    # not that of the other reader, which force has broken, too
    lost = [event for event in heard.events if event.name == "lost"]
    lost = [event for event in lost if event.fields["owner"] != "another"]
    reports = {event.fields["key"]: event for event in lost}
    assert len(reports) == len(lost)
    assert {event.fields["loss"] for event in reports.values()} == {loss}
    assert {event.thread.name for event in reports.values()} == {"pynamodb-mutex-lost"}
    last = reports[error.key]
    assert (last.fields["token"], last.fields["taker"]) == (token, taker)
    if not subject.is_together:
        # who releases learns it from the error
        assert len(on_lost.calls) == (found_by not in ("release", "end of the block"))
        mine = [event.name for event in heard.events if event.sender is last.sender]
        assert mine[-2:] == ["acquired", "lost"]


def test_loss_that_a_row_shows_does_not_name_an_earlier_failure(scene):
    mutex = held(scene.mutex())
    scene.proxy.always(server_error(), op="renew")
    scene.proxy.wait(1, "renew")
    scene.there.force_release(scene.key)
    with pytest.raises(MutexLostError) as raised:
        mutex.release()
    assert str(raised.value).endswith(f" was lost: {Loss.FORCED.value}")
    assert (raised.value.loss, raised.value.__cause__) == (Loss.FORCED, None)


def test_force_in_the_same_process_is_reported_at_once(table, on_lost):
    with hearing("k") as heard:
        mutex = held(Mutex.for_key("k", auto_renew=False, on_lost=on_lost))
        assert LockItem.force_release("k")
        assert not mutex.held
        assert on_lost.wait()[:2] == (mutex, Loss.FORCED)
        assert heard.the("lost")["loss"] is Loss.FORCED


@pytest.mark.parametrize("write", ["save", "update"])
def test_release_after_a_takeover_that_a_write_has_ended_reports_the_loss(row_scene, write):
    """What that write leaves must not pass for what a release leaves, of which a proxy has sent a copy."""
    lock = held(row_scene.lock(auto_renew=False))
    row_scene.expire()
    with row_scene.other() as taken:
        if write == "save":
            taken.save(unlock=True)
        else:
            taken.update([type(taken).balance.set(5)], unlock=True)
    with pytest.raises(MutexLostError) as raised:
        lock.release()
    assert raised.value.loss is Loss.TAKEN


@of("one lock")
@pytest.mark.parametrize("lose_it", [*dict(LOSSES), None])
def test_failed_release_never_replaces_what_the_body_raised(subject, lose_it):
    lose = getattr(subject, lose_it) if lose_it else partial(subject.proxy.always, deny())
    with pytest.raises(ZeroDivisionError), subject.lock(auto_renew=False, lease=1):
        raise ZeroDivisionError(lose())


# -- force -----------------------------------------------------------------------------------------


def test_force_in_the_process_that_holds_it_is_known_at_once(scene):
    mine = [on_thread(held, scene.mutex(shared=True)) for _ in range(2)]
    assert scene.here.force_release(scene.key)
    with scene.mutex():
        assert [(each.held, each.loss) for each in mine] == [(False, Loss.FORCED)] * 2


@pytest.mark.parametrize("renewed", [False, True])
def test_force_breaks_the_claim_that_it_saw(scene, renewed):
    other = scene.taken(data="kept")
    before = scene.everything
    assert not scene.mutex().acquire(blocking=False)
    assert scene.everything == before
    if renewed:
        scene.proxy.next(after(other.renew), op="force")
    assert scene.here.force_release(scene.key)
    assert scene.proxy.kinds()[-2:] == ["GetItem", "force"]
    row = scene.row
    assert row.expires_at is row.owner is row.lease is None
    assert row.token != other.token
    assert (row.version, row.data) == (other.fencing_token + 1, "kept")
    with pytest.raises(MutexLostError) as raised:
        other.release()
    assert raised.value.loss is Loss.FORCED
    assert scene.taken().fencing_token == other.fencing_token + 2


@pytest.mark.parametrize("taken_again", [False, True])
def test_force_breaks_nothing_when_the_claim_that_it_saw_was_released(scene, taken_again):
    first, second = scene.taken(), scene.other()
    scene.proxy.next(after(lambda: first.release() or (taken_again and held(second))), op="force")
    assert not scene.here.force_release(scene.key)
    assert scene.row.version == first.fencing_token + taken_again
    if taken_again:
        second.renew()
        second.release()
    # of a free one it writes nothing, whether it was ever held or not
    before = scene.everything
    scene.proxy.start_anew()
    assert not scene.here.force_release(scene.key)
    assert not scene.here.force_release(f"{scene.key}-never-held")
    assert scene.proxy.kinds() == ["GetItem"] * 2
    assert scene.everything == before


# -- its lease ended -------------------------------------------------------------------------------


def test_on_lost_comes_in_time_when_an_answer_brought_the_end_nearer(proxy, here, clock, on_lost):
    date = time.time()
    proxy.always(set_date(lambda _: formatdate(date, usegmt=True)))
    mutex = held(Mutex.for_key("k", model=here, lease=3.0, auto_renew=False, on_lost=on_lost))
    assert mutex.remaining > 2.9
    date += 1  # the first answers came at the end of a second
    assert not Mutex.for_key("another", model=here).locked()
    assert 2 < mutex.remaining < 2.5
    clock.advance(mutex.remaining + 0.001)
    assert not mutex.held
    on_lost.wait()


@of("one lock", "several keys")
def test_max_hold_ends_renewal_and_then_the_lock_is_free(subject, clock, on_lost, caplog):
    lock = subject.held(max_hold=25, on_lost=on_lost)
    for count in (1, 2):  # each third of the lease
        clock.advance(10.1)
        until(lambda n=count: len(subject.of("renew")) == n and lock.remaining > 25)
    clock.advance(10.1)
    whole = lock._latest.whole
    until(lambda: whole.ended_by_max_hold)
    assert lock.held
    clock.advance(20)
    assert on_lost.wait()[1] is Loss.EXPIRED
    assert len(subject.of("renew")) == 2
    # nobody shall suspect a slow network
    assert "its lease ended, for it was held for longer than max_hold, 25 s" in caplog.text
    assert "held for longer than max_hold, 25 s" in repr(lock)
    with pytest.raises(MutexLostError, match="held for longer than max_hold, 25 s"):
        lock.release()


@of("one lock", "several keys", *SHARED)
@pytest.mark.parametrize(("lose_it", "loss"), LOSSES)
def test_lease_that_ended_is_won_back_unless_the_lock_is_gone(
    subject, clock, on_lost, lose_it, loss
):
    lock = subject.held(auto_renew=False, on_lost=on_lost)
    for losses in (1, 2):
        clock.advance(31)
        assert on_lost.wait()[1] is Loss.EXPIRED
        assert (lock.held, lock.lost) == (False, True)
        lock.renew()
        assert (lock.held, lock.lost) == (True, False)
        assert subject.owns(lock)
        assert len(on_lost.calls) == losses  # the next loss is reported again
    clock.advance(31)
    on_lost.wait()
    getattr(subject, lose_it)()
    for _ in range(2):
        with pytest.raises(MutexLostError) as raised:
            lock.renew()
        assert (raised.value.loss, lock.held) == (loss, False)
    assert not on_lost.came.acquire(timeout=0.2)  # it was reported already


# -- DynamoDB is not reached, and what hangs -------------------------------------------------------


@table(
    "subject, fault, said",
    [
        ("one lock", server_error, "InternalServerError"),
        ("one lock", deny, "AccessDeniedException"),
        ("one lock", partial(page, 200), "the answer is not DynamoDB's"),
        ("several keys", server_error, "InternalServerError"),
    ],
)
def test_background_renewals_that_fail_until_the_lease_ends_are_a_loss_with_their_failure(
    subject, clock, on_lost, fault, said
):
    lock = subject.held(on_lost=on_lost)
    ends = subject.ends
    subject.proxy.always(fault(), **subject.on("renew"))
    clock.advance(11)
    until(lambda: subject.of("renew"))
    assert lock.held
    clock.advance(20)
    assert on_lost.wait()[1] is lock.loss is Loss.UNREACHABLE
    assert (lock.held, subject.ends) == (False, ends)
    with pytest.raises(MutexLostError, match=said) as raised:
        lock.release()
    assert not on_lost.came.acquire(timeout=0.2)
    cause = raised.value.__cause__
    assert f"until its lease ended: {cause}" in str(raised.value)
    # it is kept, and keeps no frames
    while cause is not None:
        assert cause.__traceback__ is None
        cause = cause.__cause__ or cause.__context__


@pytest.mark.parametrize("fault", [server_error, deny, drop_answer])
def test_background_renewals_that_fail_for_a_while_are_no_loss(scene, clock, fault):
    scene.proxy.next(fault(), fault(), op="renew")
    with scene.mutex() as mutex:
        end = scene.row.expires_at
        for count, pause in enumerate((11, 1, 1), start=1):  # those that failed are repeated soon
            clock.advance(pause)
            scene.proxy.wait(count, "renew")
            until(lambda: not mutex._latest.whole.renewals_under_way)
        assert mutex.remaining > 25
        assert scene.row.expires_at > end
    assert scene.applied("renew") == [fault is drop_answer] * 2 + [True]


def test_lease_that_ends_after_a_save_did_not_end_for_the_renewal_that_failed_before(
    row_scene, clock, on_lost
):
    row_scene.proxy.next(deny(), op="renew")
    row = row_scene.locked(on_lost=on_lost)
    clock.advance(11)
    row_scene.proxy.wait(1, "renew")
    until(lambda: not row.row_lock._latest.whole.renewals_under_way)
    row.save()
    clock.advance(31)
    assert on_lost.wait()[1] is Loss.EXPIRED


def test_renewal_that_cannot_be_sent_is_raised_when_the_lease_is_over(scene, clock):
    mutex = held(scene.mutex(lease=2, auto_renew=False))
    scene.proxy.always(server_error(), op="renew")
    with pytest.raises(PynamoDBException):
        mutex.renew()
    # its answers may have shown by now that the lease ends a little later than when it began
    assert mutex.remaining < 1
    clock.advance(mutex.remaining)
    assert not mutex.held


def test_hanging_renewal_delays_neither_its_own_loss_nor_another_lock(table, proxy, clock, on_lost):
    def key_is(key):
        return lambda body: body["Key"]["key"]["S"] == key

    proxy.always(stall(), op="renew", when=key_is("hangs"))
    # answers are waited for longer than anything here waits for other reasons
    here, of_hanging = through(proxy, table, read_timeout=100), OnLost()
    hangs = held(Mutex.for_key("hangs", model=here, on_lost=of_hanging))
    lives = held(Mutex.for_key("lives", model=here))
    proxy.next(stall(), op="renew", when=key_is("hangs once"))
    once = held(Mutex.for_key("hangs once", model=here))
    held(Mutex.for_key("dies", model=here, on_lost=on_lost))
    clock.advance(11)
    proxy.wait(4, "renew")
    until(lambda: lives.remaining > 25)
    table("dies").delete(add_version_condition=False)
    clock.advance(11)
    assert on_lost.wait()[1] is Loss.DELETED
    until(lambda: min(lives.remaining, once.remaining) > 25)
    clock.advance(hangs.remaining - 0.01)
    assert hangs.held
    clock.advance(0.02)
    assert of_hanging.wait()[1:] == (Loss.UNREACHABLE, ANY, clock.now())
    assert hangs.lost
    assert lives.held


def test_endpoint_that_hangs_costs_no_lock_at_another_one(table, proxy, clock):
    proxy.always(stall(), op="renew")
    here = through(proxy, table, read_timeout=100)
    hanging = [held(Mutex.for_key(f"hangs {number}", model=here)) for number in range(30)]
    lives = held(Mutex.for_key("lives", model=table))
    clock.advance(11)
    proxy.wait(8, "renew")
    until(lambda: lives.remaining > 25)
    clock.advance(20)
    until(lambda: lives.remaining > 25)
    assert {mutex.held for mutex in hanging} == {False}


def test_on_lost_that_blocks_or_raises_hurts_nothing(table, clock, on_lost, caplog):
    blocks = threading.Event()
    lives = held(Mutex.for_key("lives"))
    for name, callback in {
        "blocks": lambda _: blocks.wait(60),
        "fails": lambda _: 1 / 0,
        "dies": on_lost,
    }.items():
        held(Mutex.for_key(name, max_hold=0.01, on_lost=callback))
    for _ in range(2):
        clock.advance(11)
        until(lambda: lives.remaining > 25)
    clock.advance(9)
    assert on_lost.wait()[1] is Loss.EXPIRED
    until(lambda: "on_lost of 'fails' failed" in caplog.text)
    clock.advance(2)
    until(lambda: lives.remaining > 25)
    blocks.set()
    lives.release()
