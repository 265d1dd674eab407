"""Locks taken together: waiters for several keys, and what one member's loss or release means for the others."""

import time

import pytest
from operations_by_hand import interrupt_at, waiting
from pynamodb.exceptions import GetError
from sent_requests import kinds
from signal_receivers import OnLost, hearing
from this_process import QueueFor, current_process, scheduled
from two_clients import Keys, Scene, held
from waits import until

from dev.faultproxy import deny
from pynamodb_mutex import Loss, Mutex, MutexLostError
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.planning import Held


def watchers(group):
    return [list(QueueFor(m._options.model, m.key).watchers) for m in group.members]


def test_poll_is_one_request_for_the_keys_that_are_held(keys):
    others = [keys.taken(0), keys.taken(2)]
    assert not keys.group(poll=(0.1, 0.2)).acquire(timeout=3)
    assert set(kinds(keys.scene.proxy)[1:]) == {"BatchGetItem"}
    (tables,) = {len(seen.body["RequestItems"]) for seen in keys.scene.proxy.of("BatchGetItem")}
    assert tables == 1
    (read,) = keys.scene.proxy.of("BatchGetItem")[0].body["RequestItems"].values()
    assert read["ConsistentRead"] is False
    assert len(read["Keys"]) == 2
    for other in others:
        other.release()
    assert keys.group().acquire(blocking=False)


def test_release_in_the_process_wakes_the_waiter(keys, pool):
    holder, waiter = held(keys.group(1, 2)), keys.group(poll=(60, 60), timeout=100)
    acquired = pool.submit(lambda: waiter.acquire() and time.monotonic())
    time.sleep(5)
    released_at = time.monotonic()
    holder.release()
    # at once: it would poll 60 s after its last poll
    assert acquired.result(60) - released_at == pytest.approx(0, abs=0.01)
    assert waiter.held
    assert watchers(waiter) == [[]] * 3


@pytest.mark.parametrize("leaves", ["by its end", "by an error", "interrupted"])
def test_waiter_that_leaves_is_not_woken_any_more_but_the_next(keys, clock, leaves):
    keys.taken(0)
    group = keys.group()
    first, second = waiting(group, 10), waiting(group, 20)
    wakeups = [first.effect.wakeup, second.effect.wakeup]
    assert watchers(group) == [wakeups] * 3
    if leaves == "interrupted":
        first.interrupt()
    elif leaves == "by an error":
        keys.scene.proxy.always(deny())
        with pytest.raises(GetError):
            first.wake()
    else:
        clock.advance(11)
        assert first.wake() is first.result is None
    assert watchers(group) == [wakeups[1:]] * 3
    assert [wakeup.rung for wakeup in wakeups] == [False, True]
    second.interrupt()
    assert watchers(group) == [[]] * 3


def test_newcomer_lets_older_waiters_go_first(keys, clock):
    other = keys.taken(0)
    older = waiting(keys.group())
    other.release()
    keys.scene.proxy.start_anew()
    newcomer = waiting(keys.group(0, poll=(1, 1)))
    assert newcomer.effect.until > clock.now() + 0.5
    assert kinds(keys.scene.proxy) == []
    # one that does not wait need not let others go first
    assert keys.group(0).acquire(blocking=False)
    older.interrupt()
    newcomer.interrupt()


def test_lock_that_changes_hands_is_polled_often(keys, clock, monkeypatch):
    monkeypatch.setattr(current_process(), "uniform", lambda _, most: most)
    other = keys.taken(1)
    waiter = waiting(keys.group(poll=(1, 100)), 1000)

    def wait():
        return waiter.wake().until - clock.now()

    assert round((waiter.effect.until - clock.now()) / 3) == 1
    assert round(wait() / 3) == 3
    other.release()
    again = keys.taken(1)
    assert wait() <= 3
    assert 3 < wait() <= 9
    again.release()
    waiter.interrupt()


# -- losses and releases of one --------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """How often the renewal loop handled each that is scheduled."""
    count = {}
    handle = Held.is_to_be_renewed

    def counting(self, *args):
        count[id(self)] = count.get(id(self), 0) + 1
        return handle(self, *args)

    monkeypatch.setattr(Held, "is_to_be_renewed", counting)
    return lambda together: count.get(id(together), 0)


def assert_handled_no_more(together, calls, clock):
    assert together not in scheduled()
    clock.advance(100)
    assert calls(together) == 0


@pytest.mark.parametrize("lose", [Keys.force, Keys.forced_and_taken])
def test_loss_found_by_the_release_of_one_member_is_the_loss_of_all(keys, lose, calls, clock):
    """Forced without this process knowing, or taken as after a pause; reported of each, once."""
    on_lost = OnLost()
    with hearing(keys.scene.key) as heard:
        group = held(keys.group(lease=30, on_lost=on_lost))
        lose(keys, 0)
        with pytest.raises(MutexLostError):
            group.members[0].release()
        # else the others would be neither renewed nor lost, and due again and again
        assert [mutex.lost for mutex in group.members] == [True] * 3
        on_lost.wait()
        assert_handled_no_more(group._latest, calls, clock)
        heard.wait("lost", 3)
        assert {mutex.loss for mutex in group.members} == {group.loss}
        assert [fields["loss"] for fields in heard.of("lost")][:3] == [group.loss] * 3
        assert group.loss is (Loss.FORCED if lose is Keys.force else Loss.TAKEN)
        with pytest.raises(MutexLostError):
            group.release()
        here = [event for event in heard.events if event.sender is keys.scene.here]
        assert sorted(e.fields["key"] for e in here if e.name == "lost") == keys.keys
        assert "released" not in [event.name for event in here]
    assert len(on_lost.calls) == 1
    assert keys.free()[1:] == [True, True]


def test_release_of_all_releases_one_whose_own_release_has_raised_the_loss(keys):
    group = held(keys.group(lease=300))
    keys.force(0)
    for call in (group.renew, group.members[1].release, group.release):
        with pytest.raises(MutexLostError):
            call()
    assert keys.free() == [True] * 3


@pytest.mark.parametrize(
    ("kind", "name"), [(HeldClaim, "begin"), (Held, "start"), (HeldClaim, "emit_acquired")]
)
def test_acquire_interrupted_within_its_last_step_leaves_nothing(keys, monkeypatch, kind, name):
    """By Ctrl-C just when a call returns."""
    interrupt_at(monkeypatch, kind, name)
    with pytest.raises(KeyboardInterrupt):
        keys.group().acquire()
    assert (keys.group().locked(), current_process().queues, scheduled()) == (False, {}, [])


def test_others_are_renewed_after_one_member_was_released(keys, calls, clock):
    group = held(keys.group(lease=30))
    group.members[0].release()
    keys.taken(0, lease=600)
    for count in (1, 2, 3):
        before = calls(group._latest)
        clock.advance(10.5)
        keys.scene.proxy.wait(1 + count, "TransactWriteItems")
        until(lambda: not group._latest.is_unanswered)
        # once for the renewal, and perhaps once more for what its answer planned
        assert calls(group._latest) - before <= 3
    assert not group.lost
    assert group.members[1].held
    assert group.members[2].held


@pytest.mark.parametrize(
    ("end", "by"),
    [
        (Scene.force, Mutex.release),
        (Scene.forced_and_taken, Mutex.renew),
        (None, Mutex.detach),
        (None, Mutex.release),
    ],
)
def test_lock_that_ended_is_not_handled_by_the_renewal_loop_again(scene, calls, clock, end, by):
    mutex = held(scene.mutex(lease=30))
    if end is None:
        by(mutex)
    else:
        end(scene)
        with pytest.raises(MutexLostError):
            by(mutex)
    assert_handled_no_more(mutex._latest.whole, calls, clock)


def test_lease_that_ends_after_one_member_was_released_is_the_loss_of_the_others(keys, clock):
    on_lost = OnLost()
    group = held(keys.group(lease=30, auto_renew=False, on_lost=on_lost))
    group.members[1].release()
    clock.advance(31)
    on_lost.wait()
    assert [mutex.lost for mutex in group.members] == [True, False, True]
    assert group._latest not in scheduled()
    with pytest.raises(MutexLostError):
        group.release()
