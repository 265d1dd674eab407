"""I4: a request that was applied and whose answer was lost is harmless when it is repeated."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from hearing import until
from pynamodb.exceptions import UpdateError
from scene import Acquiring, Lose, Scene, lost_in_two_ways

from dev.faultproxy import apply_then_500, drop_answer, drop_request, late, no_date, throttle
from pynamodb_mutex import Mutex, MutexLostError, MutexTimeoutError
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex.exceptions import Loss
from pynamodb_mutex.testing import FakeClock, expire

# -- acquire ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lose", "times"), [(drop_answer, 1), (apply_then_500, 3)])
def test_acquire_that_was_applied_is_recognised(scene: Scene, lose: Lose, times: int) -> None:
    scene.proxy.next(*[lose() for _ in range(times)], op="acquire")
    mutex = scene.mutex()
    assert mutex.acquire(timeout=20)
    assert mutex.held
    assert scene.applied("acquire") == [True] + [False] * times
    assert (scene.row.token, scene.row.version) == (mutex.token, mutex.fencing_token)
    mutex.release()
    assert scene.row.expires_at is None


@lost_in_two_ways
def test_try_without_waiting_recognises_its_lost_answer(scene: Scene, lose: Lose) -> None:
    scene.proxy.next(lose(), op="acquire")
    assert scene.mutex().acquire(blocking=False)


def test_lease_counts_from_before_the_first_sending(scene: Scene) -> None:
    first_seen: list[float] = []

    def dawdle() -> None:
        first_seen.append(local_clock().now())
        time.sleep(1)

    # without server time nothing but that rule bounds the lease
    scene.proxy.always(no_date())
    scene.proxy.next(drop_answer(then=dawdle), op="acquire")
    mutex = scene.mutex(lease=10)
    assert mutex.acquire()
    assert local_clock().now() + mutex.remaining <= first_seen[0] + 10 * 0.99


def test_lease_does_not_count_from_attempts_that_were_surely_not_applied(scene: Scene) -> None:
    scene.proxy.always(no_date())
    scene.proxy.next(throttle(), throttle(), op="acquire")
    mutex = scene.mutex(lease=10)
    started = local_clock().now()
    assert mutex.acquire()
    waited = local_clock().now() - started
    assert mutex.remaining > 9.9 - waited


@pytest.mark.parametrize("take_over", [Scene.forced_and_taken, Scene.expired_and_taken])
def test_acquire_waits_if_another_took_over_before_the_repeat(
    scene: Scene,
    take_over: Callable[[Scene], Mutex],
) -> None:
    others: list[Mutex] = []
    scene.proxy.next(drop_answer(then=lambda: others.append(take_over(scene))), op="acquire")
    mutex = scene.mutex(owner="unlucky")
    acquiring = Acquiring(mutex)
    scene.proxy.wait(2, "acquire")
    scene.proxy.wait(1, "GetItem")
    (other,) = others
    assert acquiring.acquired is None
    assert not mutex.held
    assert scene.row.token == other.token
    assert other.abandoned_by == (None if take_over is Scene.forced_and_taken else "unlucky")
    other.release()
    acquiring.join(60)
    assert acquiring.acquired
    assert mutex.fencing_token > other.fencing_token


def test_acquire_whose_claim_was_broken_before_the_repeat_is_made_anew(scene: Scene) -> None:
    scene.proxy.next(drop_answer(then=scene.force), op="acquire")
    mutex = scene.mutex()
    assert mutex.acquire(timeout=20)
    assert mutex.held
    assert scene.applied("acquire") == [True, True]
    assert (scene.row.token, scene.row.version) == (mutex.token, mutex.fencing_token)


def test_acquire_whose_claim_another_acquired_and_released_before_the_repeat_is_made_anew(
    scene: Scene,
) -> None:
    others: list[int] = []

    def take_and_give_back() -> None:
        other = scene.expired_and_taken()
        others.append(other.fencing_token)
        other.release()

    scene.proxy.next(drop_answer(then=take_and_give_back), op="acquire")
    mutex = scene.mutex(lease=10)
    assert mutex.acquire(timeout=20)
    assert scene.applied("acquire") == [True, True]
    # the claim is the second, though it has the token of the first
    assert mutex.fencing_token > others[0]
    assert (scene.row.token, scene.row.version) == (mutex.token, mutex.fencing_token)
    assert mutex.held
    mutex.save_data({"done": 1})
    mutex.release()
    assert scene.row.expires_at is None


def test_taker_of_a_dead_holders_lock_knows_it_even_when_the_answer_was_lost(scene: Scene) -> None:
    scene.other(owner="dead", auto_renew=False).acquire()
    expire(scene.key, scene.there)
    scene.proxy.next(drop_answer(), op="acquire")
    mutex = scene.mutex()
    assert mutex.acquire(timeout=20)
    assert mutex.abandoned_by == "dead"


# -- acquire, outcome unknown ----------------------------------------------------------------------


@lost_in_two_ways
def test_acquire_of_unknown_outcome_is_never_held_and_disowned(scene: Scene, lose: Lose) -> None:
    scene.proxy.always(lose(), op="acquire")
    mutex = scene.mutex()
    with pytest.raises(UpdateError) as raised:
        mutex.acquire(timeout=0.2)
    assert raised.value.cause is not None
    assert not mutex.held
    assert scene.proxy.kinds()[-1] == "disown"
    assert scene.applied("disown") == [True]
    assert scene.row.expires_at is None
    assert scene.other().acquire(blocking=False)


def test_acquire_of_unknown_outcome_that_could_not_be_disowned_ends_by_itself(scene: Scene) -> None:
    scene.proxy.always(drop_answer(), op="acquire")
    scene.proxy.always(drop_request(), op="disown")
    mutex = scene.mutex(lease=1)
    with pytest.raises(UpdateError):
        mutex.acquire(timeout=0)
    assert scene.row.expires_at is not None
    assert not mutex.held
    other = scene.other()
    assert other.acquire(timeout=20)
    assert other.fencing_token > 0
    assert not mutex.held


def test_acquire_that_lands_after_it_was_given_up_is_believed_by_nobody_and_ends_by_itself(
    scene: Scene,
) -> None:
    kept = late()
    scene.proxy.next(kept, op="acquire")
    scene.proxy.always(drop_request(), op="acquire")
    mutex = scene.mutex(lease=1)
    with pytest.raises(UpdateError):
        mutex.acquire(timeout=0)
    assert scene.applied("disown") == [False]
    assert kept.apply().status == 200
    fence = scene.row.version
    assert scene.row.expires_at is not None
    assert not mutex.held
    other = scene.other()
    assert other.acquire(timeout=20)
    assert other.fencing_token == fence + 1
    assert not mutex.held


def test_with_statement_raises_the_error_and_never_runs_its_body_on_an_unknown_outcome(
    scene: Scene,
) -> None:
    scene.proxy.always(drop_answer(), op="acquire")
    entered = False
    with pytest.raises(UpdateError), scene.mutex(timeout=0):
        entered = True
    assert not entered


# -- renew -----------------------------------------------------------------------------------------


@lost_in_two_ways
def test_renewal_whose_answer_is_lost_is_repeated_and_only_ever_later(
    scene: Scene, lose: Lose
) -> None:
    with scene.mutex() as mutex:
        ends = [scene.row.expires_at]
        note = lambda: ends.append(scene.row.expires_at)  # noqa: E731 - used twice, named once
        scene.proxy.next(lose(then=note), lose(then=note), op="renew")
        mutex.renew()
        note()
        assert len(ends) == 4
        assert ends == sorted(set(ends))
        assert mutex.held
        assert scene.row.token == mutex.token


@pytest.mark.real
def test_renewal_is_a_loss_if_another_took_over_before_the_repeat(scene: Scene) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(drop_answer(then=scene.forced_and_taken), op="renew")
    with pytest.raises(MutexLostError) as raised:
        mutex.renew()
    assert raised.value.loss is mutex.loss is Loss.TAKEN
    assert raised.value.owner == "other"
    assert not mutex.held
    assert scene.row.owner == "other"


def test_renewal_is_a_loss_if_the_claim_was_broken_before_the_repeat(scene: Scene) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(drop_answer(then=scene.force), op="renew")
    with pytest.raises(MutexLostError) as raised:
        mutex.renew()
    assert raised.value.loss is Loss.FORCED
    assert scene.row.expires_at is None


def test_background_renewals_survive_lost_answers(scene: Scene) -> None:
    told = threading.Event()
    with FakeClock() as clock, scene.mutex(on_lost=lambda _: told.set()) as mutex:
        first = scene.row.expires_at
        scene.proxy.next(drop_answer(), drop_answer(), op="renew")
        # those that failed are repeated soon
        for count, pause in enumerate((11, 1, 1, 10.5), start=1):
            clock.advance(pause)
            scene.proxy.wait(count, "renew")
            until(lambda: not mutex._latest.together.renewals_under_way)
        assert mutex.remaining > 25
        assert scene.row.expires_at > first
    assert not told.is_set()
    assert not mutex.lost


def test_background_renewal_shows_that_another_took_over_before_the_repeat(scene: Scene) -> None:
    told = threading.Event()
    with FakeClock() as clock:
        mutex = scene.mutex(on_lost=lambda _: told.set())
        mutex.acquire()
        scene.proxy.next(drop_answer(then=scene.forced_and_taken), op="renew")
        clock.advance(11)
        scene.proxy.wait(1, "renew")
        until(lambda: not mutex._latest.together.renewals_under_way)
        clock.advance(1)
        assert told.wait(60)
        assert mutex.loss is Loss.TAKEN
        assert scene.row.owner == "other"


# -- release ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lose", "times"), [(drop_answer, 1), (apply_then_500, 3)])
def test_release_whose_answer_is_lost_is_a_release(scene: Scene, lose: Lose, times: int) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(*[lose() for _ in range(times)], op="release")
    mutex.release()
    assert not mutex.held
    assert not mutex.lost
    assert len(scene.proxy.of("release")) == times + 1
    assert scene.row.expires_at is None
    assert scene.row.version == mutex.fencing_token


def test_release_is_a_release_if_another_acquired_before_the_repeat(scene: Scene) -> None:
    other = scene.other(timeout=0)
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(drop_answer(then=other.acquire), op="release")
    mutex.release()
    assert scene.applied("release") == [True, False]
    assert other.held
    assert (scene.row.token, scene.row.version) == (other.token, other.fencing_token)
    other.release()


@pytest.mark.real
def test_release_that_deletes_is_a_release_when_its_answer_is_lost(scene: Scene) -> None:
    mutex = scene.mutex(delete_on_release=True)
    mutex.acquire()
    scene.proxy.next(drop_answer(), op="DeleteItem")
    mutex.release()
    assert scene.applied("DeleteItem") == [True, False]
    assert scene.gone


def test_release_that_deletes_leaves_the_row_of_another_who_acquired_before_the_repeat(
    scene: Scene,
) -> None:
    other = scene.other()
    mutex = scene.mutex(delete_on_release=True)
    mutex.acquire()
    scene.proxy.next(drop_answer(then=other.acquire), op="DeleteItem")
    mutex.release()
    assert scene.row.token == other.token
    other.release()


# -- hand-over within the process ------------------------------------------------------------------


@pytest.mark.parametrize(("lose", "times"), [(drop_answer, 1), (apply_then_500, 3)])
def test_hand_over_whose_answer_is_lost_is_recognised(scene: Scene, lose: Lose, times: int) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    waiter = scene.waiting()
    scene.proxy.next(*[lose() for _ in range(times)], op="hand_over")
    mutex.release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.held
    assert not mutex.held
    assert not mutex.lost
    assert scene.applied("hand_over") == [True] + [False] * times
    assert len(scene.proxy.of("acquire")) == 1
    assert scene.row.token == waiter.mutex.token
    assert scene.row.version == waiter.mutex.fencing_token == mutex.fencing_token + 1
    waiter.mutex.release()
    assert scene.row.expires_at is None


def test_hand_over_is_believed_by_neither_if_another_took_over_before_the_repeat(
    scene: Scene,
) -> None:
    others: list[Mutex] = []
    mutex = scene.mutex()
    mutex.acquire()
    waiter = scene.waiting()
    scene.proxy.next(
        drop_answer(then=lambda: others.append(scene.forced_and_taken())), op="hand_over"
    )
    mutex.release()
    polls = len(scene.proxy.of("GetItem"))
    scene.proxy.wait(polls + 2, "GetItem")
    assert waiter.acquired is None
    assert not waiter.mutex.held
    assert not mutex.held
    assert scene.row.token == others[0].token
    others[0].release()
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token > others[0].fencing_token
    waiter.mutex.release()


def test_hand_over_of_unknown_outcome_is_believed_by_neither_and_ends_by_itself(
    scene: Scene,
) -> None:
    mutex = scene.mutex(lease=3)
    mutex.acquire()
    waiter = scene.waiting(lease=3)
    versions: list[int] = []
    scene.proxy.always(drop_answer(then=lambda: versions.append(scene.row.version)), op="hand_over")
    with pytest.raises(UpdateError):
        mutex.release()
    assert not mutex.held
    handed_over = versions[0]
    assert handed_over == mutex.fencing_token + 1
    waiter.join(60)
    assert waiter.acquired
    assert waiter.mutex.fencing_token == handed_over + 1
    waiter.mutex.release()


# -- force -----------------------------------------------------------------------------------------


@pytest.mark.real
def test_force_release_whose_answer_is_lost_breaks_the_claim_once(scene: Scene) -> None:
    holder = scene.other()
    holder.acquire()
    scene.proxy.next(drop_answer(), op="force")
    assert scene.here.force_release(scene.key)
    assert scene.applied("force") == [True, False]
    assert scene.row.version == holder.fencing_token + 1
    assert scene.row.expires_at is None
    with pytest.raises(MutexLostError):
        holder.renew()


def test_force_release_leaves_the_claim_of_another_who_acquired_before_the_repeat(
    scene: Scene,
) -> None:
    holder, other = scene.other(), scene.other()
    holder.acquire()
    # the waiting other has its chance as soon as the claim is broken
    scene.proxy.next(drop_answer(then=lambda: other.acquire(timeout=10)), op="force")
    scene.here.force_release(scene.key)
    assert scene.applied("force") == [True, False]
    assert other.held
    assert scene.row.token == other.token
    other.release()


# -- what every request has in common ---------------------------------------------------------------


@pytest.mark.real
@lost_in_two_ways
def test_every_answer_of_a_whole_cycle_may_be_lost(scene: Scene, lose: Lose) -> None:
    kinds = ["acquire", "renew", "save_data", "release"]
    for kind in kinds:
        scene.proxy.next(lose(), op=kind)
    with scene.mutex() as mutex:
        mutex.renew()
        mutex.save_data({"n": 1})
    assert scene.proxy.kinds() == [kind for kind in kinds for _ in range(2)]
    item = scene.row
    assert (item.data, item.writes, item.version) == ({"n": 1}, 1, mutex.fencing_token)
    assert item.expires_at is None


@pytest.mark.real
def test_uncontended_cycle_takes_two_requests(scene: Scene) -> None:
    mutex = scene.mutex()
    for _ in range(3):
        with mutex:
            pass
    assert scene.proxy.kinds() == ["acquire", "release"] * 3


def test_first_cycle_of_a_process_takes_a_read_more(scene: Scene) -> None:
    with scene.fresh() as first:
        with first.mutex():
            pass
        assert first.proxy.kinds() == ["GetItem", "acquire", "release"]


def test_read_whose_answer_is_lost_is_repeated(scene: Scene) -> None:
    scene.taken(owner="somebody")
    with scene.fresh() as first:
        first.proxy.next(drop_answer(), drop_answer(), op="GetItem")
        assert not first.mutex().acquire(blocking=False)
        with pytest.raises(MutexTimeoutError, match="somebody"), first.mutex(timeout=0.2):
            pass
