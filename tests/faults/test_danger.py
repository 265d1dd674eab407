"""A lock that may soon be lost is reported before it is, once for each danger: `on_danger`, the signal and the log."""

import time
from email.utils import formatdate

import pytest
from kinds_of_locks import SUBJECTS, of
from pynamodb.exceptions import PutError
from signal_receivers import OnLost, hearing
from two_clients import held
from waits import until

from dev.faultproxy import after, server_error, set_date, stall, through
from pynamodb_mutex import Loss, Mutex
from pynamodb_mutex.signals import danger


def renews_in_vain(subject):
    subject.proxy.always(server_error(), **subject.on("renew"))


@of(*SUBJECTS)
def test_danger_is_reported_once_before_the_loss_when_renewals_fail(subject, clock, caplog):
    in_danger, on_lost = OnLost(), OnLost()
    with hearing(subject.scene.key) as heard:
        lock = subject.held(on_danger=in_danger, on_lost=on_lost)
        renews_in_vain(subject)
        clock.advance(11)
        until(lambda: subject.of("renew"))
        assert not in_danger.calls
        clock.advance(9)
        reported, loss, thread, _ = in_danger.wait()
        assert (loss, thread.name, lock.held) == (None, "pynamodb-mutex-on-danger", True)
        assert reported.key in [part.key for part in subject.parts(lock)]
        heard.wait("danger")
        (event,) = [each for each in heard.of("danger") if each["token"] == reported.token]
        assert 9 < event["remaining"] < 10.1
        assert event["owner"] == reported.owner
        parts = len(subject.parts(lock))
        until(lambda: caplog.text.count("may be lost: ") == parts)
        assert not on_lost.calls
        assert not in_danger.came.acquire(timeout=0.2)
        clock.advance(5)
        clock.advance(7)
        assert on_lost.wait()[1] is Loss.UNREACHABLE
    assert len(in_danger.calls) == 1
    tokens = [each["token"] for each in heard.of("danger")]
    assert len(tokens) == len(set(tokens)) == parts


@of("one lock", "several keys", "any of", "row", "task")
def test_danger_is_reported_again_after_a_renewal_that_was_applied(subject, clock, caplog):
    in_danger = OnLost()
    lock = subject.held(auto_renew=False, on_danger=in_danger)
    for count in (1, 2):
        clock.advance(19)
        assert not in_danger.came.acquire(timeout=0.2)
        clock.advance(2)
        in_danger.wait()
        lock.renew()
        assert lock.remaining > 28
        assert len(in_danger.calls) == count
    lock.release()
    clock.advance(60)
    assert not in_danger.came.acquire(timeout=0.2)
    until(lambda: caplog.text.count("may be lost") == 2 * len(subject.parts(lock)))


def test_no_danger_is_reported_while_renewals_are_applied(scene, clock, caplog):
    in_danger = OnLost()
    with scene.mutex(on_danger=in_danger) as mutex:
        for count in range(1, 5):
            clock.advance(11)
            until(lambda n=count: scene.applied("renew") == [True] * n and mutex.remaining > 25)
    assert not in_danger.calls
    assert "may be lost" not in caplog.text


@pytest.mark.parametrize("late", [1, 19, 20])
def test_renewal_ends_the_danger_unless_its_answer_is_too_late_to_help(scene, clock, late):
    mutex = held(scene.mutex(auto_renew=False, on_danger=OnLost()))
    clock.advance(21)
    mutex._options.on_danger.wait()
    claim = mutex._latest
    assert claim.due() > claim.process.now  # or the loop would handle it again and again
    proposal = claim.propose_renewal()
    claim.process.now += late
    claim.extend(proposal)
    # after 20 s it would be reported at once, for a second time, of the same danger
    assert claim.in_danger is (late == 20)


@pytest.mark.parametrize(("lease", "later"), [(2.0, 0.5), (1.0, 0.1)])
def test_lease_that_comes_out_short_is_not_in_danger_before_its_first_renewal(
    proxy, here, clock, lease, later
):
    date = time.time()
    proxy.always(set_date(lambda _: formatdate(date, usegmt=True)))
    in_danger = OnLost()
    mutex = held(Mutex.for_key("k", model=here, lease=lease, on_danger=in_danger))
    date += 1  # the first answers came at the end of a second
    assert not Mutex.for_key("another", model=here).locked()
    assert lease - 1.1 < mutex.remaining < lease - 0.5
    clock.advance(later)
    proxy.wait(1, "renew")
    until(lambda: not mutex._latest.renewals_under_way)
    assert not in_danger.calls


def test_danger_at_the_end_of_max_hold_is_reported(scene, clock):
    in_danger = OnLost()
    held(scene.mutex(max_hold=5, on_danger=in_danger))
    clock.advance(11)
    clock.advance(10)
    lock, *_ = in_danger.wait()
    assert (lock.held, len(scene.applied("renew"))) == (True, 0)


def test_receiver_of_the_signal_alone_is_told_of_a_lock_that_is_not_renewed(scene, clock):
    with hearing(scene.key) as heard:
        mutex = held(scene.mutex(auto_renew=False))
        clock.advance(21)
        assert heard.the("danger")["token"] == mutex.token
    assert not danger.receivers


def test_danger_is_reported_of_a_lock_only_while_no_write_may_have_released_it(row_scene, clock):
    in_danger = OnLost()
    row = row_scene.locked(auto_renew=False, on_danger=in_danger)
    row_scene.proxy.next(after(lambda: clock.advance(21)), op="PutItem")
    with pytest.raises(PutError):
        row.save(type(row).last == "nobody", unlock=True)
    # it was not applied: the lock is held as before, and the danger of it is reported now
    lock, *_ = in_danger.wait()
    assert lock.held
    row_scene.proxy.next(after(lambda: clock.advance(7)), op="PutItem")
    row.save(unlock=True)
    assert len(in_danger.calls) == 1
    in_danger = OnLost()
    row = row_scene.locked(auto_renew=False, on_danger=in_danger)
    row_scene.proxy.next(after(lambda: clock.advance(25)), op="PutItem")
    row.save(unlock=True)
    assert not in_danger.came.acquire(timeout=0.2)


def test_danger_of_a_group_is_none_of_a_row_that_a_write_may_have_released(rows, clock):
    told = []

    def hears(_, *, key, remaining, **__):
        told.append((key, remaining > 0))

    def hang():
        clock.advance(21)
        until(lambda: len(told) >= 2)

    with danger.connected_to(hears), rows.locks(auto_renew=False) as (first, *others):
        rows.scene.proxy.next(after(hang), op=rows.scene.op("save"))
        first.save(unlock=True)
        assert told == [(row.row_lock.key, True) for row in others]


def test_lock_that_nobody_renews_or_listens_to_is_not_scheduled_for_a_danger(scene, clock, caplog):
    on_lost = OnLost()
    mutex = held(scene.mutex(auto_renew=False, on_lost=on_lost))
    assert mutex._latest.due() == mutex._latest.ends
    clock.advance(31)
    on_lost.wait()
    assert "may be lost" not in caplog.text


def test_process_that_stood_still_until_the_end_learns_of_the_loss_alone(scene, clock, caplog):
    in_danger, on_lost = OnLost(), OnLost()
    held(scene.mutex(auto_renew=False, on_danger=in_danger, on_lost=on_lost))
    clock.advance(40)
    on_lost.wait()
    assert not in_danger.calls
    assert "may be lost" not in caplog.text


def test_hanging_renewals_do_not_delay_the_report(table, proxy, clock):
    in_danger = OnLost()
    proxy.always(stall(), op="renew")
    here = through(proxy, table, read_timeout=100)
    mutex = held(Mutex.for_key("hangs", model=here, on_danger=in_danger))
    clock.advance(11)
    proxy.wait(1, "renew")
    clock.advance(10)
    assert in_danger.wait()[0] is mutex


@of("several keys")
def test_group_of_mutexes_with_options_of_their_own_is_warned_once(subject, clock):
    in_danger, own = OnLost(), OnLost()
    keys = [part.key for part in subject.parts(subject.lock())]
    here = subject.scene.here
    members = [Mutex.for_key(key, model=here, on_danger=own) for key in keys[:1]]
    group = held(Mutex.for_keys([*members, *keys[1:]], model=here, on_danger=in_danger))
    renews_in_vain(subject)
    clock.advance(21)
    in_danger.wait()
    assert own.wait()[0] is members[0]
    assert (len(in_danger.calls), len(own.calls), group.held) == (1, 1, True)


def test_error_in_on_danger_is_logged(scene, clock, caplog):
    def fail(_):
        raise ZeroDivisionError

    mutex = held(scene.mutex(auto_renew=False, on_danger=fail))
    clock.advance(21)
    until(lambda: f"on_danger of '{mutex.key}' failed" in caplog.text)


def test_on_danger_must_be_callable():
    with pytest.raises(TypeError, match="on_danger must be callable, not 'mail'"):
        Mutex.for_key("k", on_danger="mail")
