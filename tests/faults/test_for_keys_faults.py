"""Several keys over a bad network, and what the loss of one of them is."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from driving import Driven
from group_scene import TRANSACT, Keys, conflict, kinds, that
from hearing import until
from pynamodb.exceptions import TransactWriteError
from scene import Lose, lost_in_two_ways
from worker import forked, workers

from dev.faultproxy import (
    Exchange,
    Fault,
    after,
    deny,
    drop_answer,
    drop_request,
    late,
    refuse,
    server_error,
    throttle,
)
from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError, MutexNotHeldError
from pynamodb_mutex._operations.effects import Operation, Wait
from pynamodb_mutex._operations.held import HeldClaim
from pynamodb_mutex._operations.renew import renew_in_background
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.testing import FakeClock


class Told:
    """Whom the loss was told to."""

    def __init__(self) -> None:
        self.mutexes: list[Mutex] = []
        self.came = threading.Event()

    def __call__(self, mutex: Mutex) -> None:
        self.mutexes.append(mutex)
        self.came.set()


# -- lost answers ----------------------------------------------------------------------------------


@lost_in_two_ways
def test_lost_answers_are_harmless(keys: Keys, lose: Lose) -> None:
    proxy, group = keys.scene.proxy, keys.group(lease=20)
    proxy.next(lose(), when=that("acquire"))
    assert group.acquire()
    tokens = group.fencing_tokens
    assert kinds(proxy) == ["3 acquire"] * 2
    assert [row.version for row in keys.rows] == list(tokens.values())
    proxy.next(lose(), when=that("renew"))
    group.renew()
    assert group.held
    assert max(keys.ends) - min(keys.ends) < 1
    proxy.next(lose(), when=that("release"))
    group.release()
    assert all(keys.free())
    assert not group.lost


def test_taking_that_is_given_up_leaves_nothing_held(keys: Keys) -> None:
    keys.scene.proxy.next(drop_answer(), deny(), op=TRANSACT)
    group = keys.group()
    with pytest.raises(TransactWriteError):
        group.acquire()
    assert not group.held
    assert all(keys.free())


@pytest.mark.parametrize("fault", [throttle, conflict, drop_request])
def test_what_passes_is_repeated(keys: Keys, fault: Any) -> None:
    proxy, group = keys.scene.proxy, keys.group(lease=20)
    for kind in ("acquire", "renew", "release"):
        proxy.next(fault(), when=that(kind))
    with group:
        group.renew()
    assert keys.scene.applied(TRANSACT) == [False, True] * 3
    assert all(keys.free())


# -- late duplicates -------------------------------------------------------------------------------


@pytest.mark.real
def test_late_requests_change_nothing(keys: Keys) -> None:
    proxy, group = keys.scene.proxy, keys.group(lease=20)
    kept = late()
    proxy.next(kept, when=that("acquire"))
    assert group.acquire()
    group.renew()
    group.release()
    taken, renewed, released = proxy.of(TRANSACT)

    def nothing_changes() -> None:
        before = [row.to_simple_dict() for row in keys.rows]
        kept.kept.apply("late")
        for seen in (taken, renewed, released):
            # as after the ten minutes for which DynamoDB remembers
            proxy.replay(seen, ClientRequestToken=f"late-{time.monotonic_ns()}")
        assert [row.to_simple_dict() for row in keys.rows] == before

    nothing_changes()
    with keys.group() as again:
        nothing_changes()
        assert again.held
    other = keys.taken(1)
    nothing_changes()
    other.release()


@pytest.mark.real
def test_renewal_that_arrives_twice_is_applied_once(keys: Keys) -> None:
    proxy = keys.scene.proxy

    def twice(exchange: Exchange) -> None:
        exchange.apply("twice")
        # by an engine that does not remember the first
        reply = proxy.replay(proxy.of(TRANSACT)[-1], ClientRequestToken="another")
        assert reply.error == "TransactionCanceledException"
        exchange.answer(reply)

    with keys.group(lease=20) as group:
        proxy.next(Fault("twice", twice), when=that("renew"))
        group.renew(60)
        assert group.remaining > 50
        assert kinds(proxy) == ["3 acquire", "3 renew"]


# -- renewal ---------------------------------------------------------------------------------------


def test_renewed_in_the_background_by_one_request(keys: Keys) -> None:
    with FakeClock() as clock, keys.group() as group:
        ends = keys.ends
        for _ in range(2):
            clock.advance(10.5)
            until(lambda: group.remaining > 25)
        assert all(later > end for later, end in zip(keys.ends, ends, strict=True))
    assert set(kinds(keys.scene.proxy)[1:-1]) == {"3 renew"}


def test_renewal_that_meets_a_later_end_goes_beyond_it(keys: Keys) -> None:
    there = keys.scene.there
    with keys.group(lease=20, auto_renew=False) as group:
        far = keys.ends[1] + 100
        there._get_connection().update_item(keys.keys[1], actions=[there.expires_at.set(far)])
        group.renew()
        assert kinds(keys.scene.proxy)[1:] == ["3 renew", "3 renew"]
        assert keys.ends[1] > far
        assert not group.lost


def test_claims_that_one_is_not_to_renew_are_not_renewed(keys: Keys) -> None:
    first = Mutex.for_key(keys.keys[0], model=keys.scene.here, auto_renew=False, lease=10)
    told = Told()
    with FakeClock() as clock:
        group = Mutex.for_keys([first, *keys.keys[1:]], model=keys.scene.here, on_lost=told)
        assert group.acquire()
        clock.advance(11)
        assert told.came.wait(60)
        assert group.loss is Loss.EXPIRED
        assert kinds(keys.scene.proxy) == ["3 acquire"]
        assert told.mutexes == [group.members[1]]
        with pytest.raises(MutexLostError):
            group.release()


def test_held_for_too_long_is_not_renewed(keys: Keys) -> None:
    told = Told()
    with FakeClock() as clock:
        group = keys.group(lease=30, max_hold=5, on_lost=told)
        assert group.acquire()
        clock.advance(11)
        until(lambda: group._latest.due() > clock.now() + 10)  # not to be renewed any more
        clock.advance(20)
        assert told.came.wait(60)
        assert kinds(keys.scene.proxy) == ["3 acquire"]
        assert told.mutexes[0].loss is Loss.EXPIRED
        assert "lost: its lease ended, for it was held for longer than max_hold, 5 s" in repr(group)
        with pytest.raises(MutexLostError, match="longer than max_hold, 5 s"):
            group.release()


def test_no_answer_until_the_lease_ends_is_a_loss(keys: Keys) -> None:
    told = Told()
    with FakeClock() as clock:
        group = keys.group(on_lost=told)
        assert group.acquire()
        keys.scene.proxy.always(server_error(), when=that("renew"))
        clock.advance(11)
        keys.scene.proxy.wait(2, TRANSACT)
        clock.advance(20)
        assert told.came.wait(60)
        assert {mutex.loss for mutex in group.members} == {Loss.UNREACHABLE}
    time.sleep(0.1)
    assert len(told.mutexes) == 1


def test_leases_that_ended_are_won_back_together(keys: Keys) -> None:
    told = Told()
    with FakeClock() as clock:
        group = keys.group(auto_renew=False, on_lost=told)
        assert group.acquire()
        clock.advance(31)
        assert group.loss is Loss.EXPIRED
        group.renew()
        assert group.held
        assert not group.lost
        clock.advance(31)
        assert group.lost
        keys.forced_and_taken(1).release()
        with pytest.raises(MutexLostError) as raised:
            group.renew()
        assert raised.value.loss is Loss.TAKEN
        assert not any(mutex.held for mutex in group.members)
        with pytest.raises(MutexLostError):
            group.renew()


# -- losses ----------------------------------------------------------------------------------------


def test_loss_of_one_is_loss_of_all(keys: Keys) -> None:
    told, told_too = Told(), Told()
    last = Mutex.for_key(keys.keys[2], model=keys.scene.here, on_lost=told_too)
    group = Mutex.for_keys([*keys.keys[:2], last], model=keys.scene.here, on_lost=told)
    assert group.acquire()
    other = keys.forced_and_taken(1)
    with pytest.raises(MutexLostError) as raised:
        group.renew()
    assert (raised.value.loss, raised.value.key) == (Loss.TAKEN, other.key)
    assert raised.value.owner == "other"
    assert {mutex.loss for mutex in group.members} == {Loss.TAKEN}
    assert not group.held
    assert "lost" in repr(group)
    # what still stands is released, not before
    assert keys.free() == [False] * 3
    with pytest.raises(MutexLostError):
        group.release()
    assert keys.free() == [True, False, True]
    assert other.held
    assert told.came.wait(60)
    assert told_too.came.wait(60)
    time.sleep(0.1)
    assert (told.mutexes, told_too.mutexes) == ([group.members[1]], [last])
    other.release()


def test_loss_is_reported_at_the_end_of_a_clean_body(keys: Keys) -> None:
    with pytest.raises(MutexLostError), keys.group(auto_renew=False):
        keys.force(2)
    assert all(keys.free())


def test_noticed_at_the_same_instant_the_loss_is_reported_once(keys: Keys) -> None:
    told = Told()
    group = keys.group(lease=20, on_lost=told)
    assert group.acquire()
    process = current_process()

    def losing(claim: HeldClaim) -> Operation[None]:
        yield Wait(0.0)
        claim.lose(Loss.TAKEN)

    threads = [
        threading.Thread(target=run, args=(process, losing(claim)))
        for claim in group._current("test").claims
    ]
    with process.monitor:
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join()
    assert told.came.wait(60)
    time.sleep(0.1)
    assert len(told.mutexes) == 1


def test_renewal_that_begins_after_their_release_sends_nothing(keys: Keys) -> None:
    group = keys.group(lease=20)
    assert group.acquire()
    together = group._latest
    sent = len(kinds(keys.scene.proxy))
    renewal = Driven(renew_in_background(current_process(), [together]))
    group.release()
    assert renewal.until_it_waits() is None
    assert kinds(keys.scene.proxy)[sent:] == ["3 release"]
    assert together.is_released


def test_renewal_that_meets_a_release_is_no_loss(keys: Keys) -> None:
    told = Told()
    group = keys.group(lease=20, on_lost=told)
    assert group.acquire()
    keys.scene.proxy.next(after(group.members[1].release), when=that("renew"))
    renewing = threading.Thread(target=group.renew)
    renewing.start()
    renewing.join(60)
    assert kinds(keys.scene.proxy)[1:] == ["release", "3 renew", "2 renew"]
    assert group.members[0].held
    group.release()
    assert told.mutexes == []


# -- processes -------------------------------------------------------------------------------------


@pytest.mark.real("embedded")
def test_forked_child_holds_nothing(keys: Keys) -> None:
    with keys.group(lease=20) as group:

        def child() -> bool:
            for call in (group.release, group.renew):
                with pytest.raises(MutexNotHeldError, match="parent"):
                    call()
            return group.held or keys.group().acquire(blocking=False)

        assert forked(child) is False
        assert group.held
    assert all(keys.free())


@pytest.mark.real
def test_locks_of_a_killed_process_are_taken_over(table: type[LockItem]) -> None:
    with workers(0.0) as (dies,):
        dies.ask("m = Mutex.for_keys(['a', 'b'], lease=6, owner='the late')")
        assert dies.ask("m.acquire()")
        before = dies.ask("m.fencing_tokens")
        assert not Mutex.for_keys(["b", "c"]).acquire(blocking=False)
        dies.kill()
    with Mutex.for_keys(["b", "a"], timeout=60) as group:
        assert all(group.fencing_tokens[key] > before[key] for key in "ab")


@pytest.mark.parametrize("options", [{"blocking": False}, {"timeout": 0}])
def test_refusal_without_a_visible_reason_ends_with_the_callers_patience(
    keys: Keys, options: dict
) -> None:
    free = {"key": {"S": keys.keys[0]}, "token": {"S": "theirs"}, "version": {"N": "1"}}
    reasons = [{"Code": "ConditionalCheckFailed", "Item": free}, {"Code": "None"}, {"Code": "None"}]
    canceled = refuse("TransactionCanceledException", CancellationReasons=reasons)
    keys.scene.proxy.always(canceled, op=TRANSACT)
    assert not keys.group().acquire(**options)
    # once more after the first, for that may have shown what was not known
    assert kinds(keys.scene.proxy) == ["3 acquire"] * 2
    keys.scene.proxy.clear()
    assert keys.group().acquire(**options)
