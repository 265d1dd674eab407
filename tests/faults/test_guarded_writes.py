"""I2: a guarded write is applied only under the claim, at most once, in order; and told truly."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from pynamodb.exceptions import UpdateError
from scene import Lose, Scene, losses, lost_in_two_ways

from dev.faultproxy import (
    Late,
    after,
    deny,
    drop_answer,
    drop_request,
    late,
    server_error,
    throttle,
)
from pynamodb_mutex import MutexLostError, MutexNotHeldError
from pynamodb_mutex.exceptions import Loss

# -- not applied -----------------------------------------------------------------------------------


@losses
def test_refused_at_the_first_attempt_is_not_applied(
    scene: Scene, lose_it: Callable[[Scene], object], loss: Loss
) -> None:
    mutex = scene.mutex(auto_renew=False)
    mutex.acquire()
    lose_it(scene)
    assert mutex.held  # it cannot know
    before = scene.everything
    with pytest.raises(MutexLostError) as raised:
        mutex.save_data("late")
    assert raised.value.applied is False
    assert raised.value.loss is mutex.loss is loss
    assert scene.everything == before
    assert not mutex.held


def test_write_of_a_holder_that_slept_through_anothers_whole_cycle_is_not_applied(
    scene: Scene,
) -> None:
    mutex = scene.mutex(auto_renew=False)
    mutex.acquire()
    other = scene.expired_and_taken()
    other.save_data("other")
    other.release()
    with pytest.raises(MutexLostError) as raised:
        mutex.save_data("late")
    assert raised.value.applied is False
    assert scene.row.data == "other"


@pytest.mark.parametrize("fault", [throttle, server_error])
def test_refused_after_an_attempt_that_was_throttled_is_reported_as_far_as_known(
    scene: Scene, fault: Lose
) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(fault(), after(scene.force), op="save_data")
    with pytest.raises(MutexLostError) as raised:
        mutex.save_data("late")
    # throttled is surely not applied; after a 500 nobody knows
    assert raised.value.applied is (False if fault is throttle else None)
    assert scene.row.data is None


def test_write_without_the_lock_is_not_sent(scene: Scene) -> None:
    mutex = scene.mutex()
    with pytest.raises(MutexNotHeldError):
        mutex.save_data(1)
    with mutex:
        pass
    with pytest.raises(MutexNotHeldError):
        mutex.save_data(1)
    assert scene.proxy.of("save_data") == []


# -- applied ---------------------------------------------------------------------------------------


@lost_in_two_ways
@pytest.mark.parametrize("times", [1, 3])
def test_write_whose_answer_is_lost_is_applied_once(scene: Scene, lose: Lose, times: int) -> None:
    with scene.mutex() as mutex:
        scene.proxy.next(*[lose() for _ in range(times)], op="save_data")
        mutex.save_data("first")
        assert mutex.data == "first"
        assert scene.applied("save_data") == [True] + [False] * times
        assert (scene.row.data, scene.row.writes) == ("first", 1)
        mutex.save_data("second")
        assert (scene.row.data, scene.row.writes) == ("second", 2)


@pytest.mark.real
def test_write_leaves_the_claim_alone(scene: Scene) -> None:
    with scene.mutex() as mutex:
        claim = {k: v for k, v in scene.everything.items() if k not in ("data", "writes")}
        mutex.save_data({"any": ["json", 1, None]})
        now = scene.everything
        assert {k: now[k] for k in claim} == claim


# -- unknown ---------------------------------------------------------------------------------------


@lost_in_two_ways
def test_applied_and_then_taken_over_before_the_repeat_is_unknown(scene: Scene, lose: Lose) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(lose(then=scene.forced_and_taken), op="save_data")
    with pytest.raises(MutexLostError) as raised:
        mutex.save_data("mine")
    assert raised.value.applied is None
    assert raised.value.loss is Loss.TAKEN
    assert raised.value.owner == "other"
    assert (scene.row.owner, scene.row.data) == ("other", "mine")


@pytest.mark.parametrize("take", [Scene.force, Scene.forced_and_taken, Scene.delete])
def test_not_applied_and_then_lost_before_the_repeat_is_unknown(
    scene: Scene, take: Callable[[Scene], object]
) -> None:
    mutex = scene.mutex()
    mutex.acquire()
    scene.proxy.next(drop_request(then=lambda: take(scene)), op="save_data")
    with pytest.raises(MutexLostError) as raised:
        mutex.save_data("mine")
    assert raised.value.applied is None
    assert scene.gone or scene.row.data is None


# -- earlier writes whose outcome nobody knows -------------------------------------------------------


def give_up_a_write(scene: Scene, fault: Lose | None, data: object) -> Late:
    """Let a guarded write fail for good; return its first attempt, kept by the network."""
    kept = late()
    scene.proxy.next(kept, (fault or drop_request)(), deny(), op="save_data")
    mutex = scene.mutex()
    mutex.acquire()
    with pytest.raises(UpdateError):
        mutex.save_data(data)
    assert mutex.held
    scene.given_up = mutex
    return kept


@lost_in_two_ways
def test_next_write_goes_through_after_one_that_was_applied_unknown_to_us(
    scene: Scene, lose: Lose
) -> None:
    kept = give_up_a_write(scene, lose, "first")
    mutex = scene.given_up
    assert scene.row.data == "first"
    mutex.save_data("second")
    assert scene.row.data == "second"
    assert kept.apply().error == "ConditionalCheckFailedException"
    assert scene.row.data == "second"
    mutex.release()


def test_next_write_goes_through_after_one_that_was_never_applied(scene: Scene) -> None:
    kept = give_up_a_write(scene, None, "first")
    mutex = scene.given_up
    mutex.save_data("second")
    assert scene.applied("save_data")[-1] is True
    assert kept.apply().error == "ConditionalCheckFailedException"
    assert scene.row.data == "second"
    mutex.release()


@pytest.mark.parametrize("between", [server_error, None])
def test_given_up_write_that_lands_during_the_next_one_keeps_its_place_before_it(
    scene: Scene, between: Lose | None
) -> None:
    kept = give_up_a_write(scene, None, "first")
    mutex = scene.given_up
    if between is not None:
        scene.proxy.next(between(), op="save_data")
    landed: list[int] = []
    scene.proxy.next(after(lambda: landed.append(kept.apply().status)), op="save_data")
    mutex.save_data("second")
    assert landed == [200]
    assert scene.row.data == "second"
    assert mutex.data == "second"
    mutex.save_data("third")
    assert scene.row.data == "third"
    mutex.release()


def test_given_up_write_that_lands_is_not_taken_for_the_next_one(scene: Scene) -> None:
    # the next write is applied too, its answer is lost, and the late one cannot undo it
    kept = give_up_a_write(scene, None, "first")
    mutex = scene.given_up
    scene.proxy.next(drop_answer(then=kept.apply), op="save_data")
    mutex.save_data("second")
    assert scene.row.data == "second"
    mutex.release()


# -- order -----------------------------------------------------------------------------------------


def test_threads_that_write_at_once_write_one_after_the_other(scene: Scene) -> None:
    with scene.mutex() as mutex:
        for _ in range(4):
            scene.proxy.next(drop_answer(), drop_request(), op="save_data")
        errors: list[BaseException] = []

        def write(name: str) -> None:
            try:
                for n in range(5):
                    mutex.save_data([name, n])
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert errors == []
        landed = [seen for seen in scene.proxy.of("save_data") if seen.applied]
        data = [seen.body["ExpressionAttributeValues"] for seen in landed]
        assert len(landed) == 15  # each once
        for name in "abc":
            mine = [str(values) for values in data if f'"{name}"' in str(values)]
            assert [f", {n}]" in text for n, text in enumerate(mine)] == [True] * 5
        assert scene.row.writes == 15
        assert scene.row.data == mutex.data


def test_renewals_do_not_wait_for_a_write(scene: Scene) -> None:
    with scene.mutex() as mutex:
        renewed: list[bool] = []

        def renew() -> None:
            thread = threading.Thread(target=mutex.renew)
            thread.start()
            thread.join(60)
            renewed.append(not thread.is_alive())

        scene.proxy.next(after(renew), op="save_data")
        mutex.save_data(1)
        assert renewed == [True]


def test_numbers_start_anew_with_each_claim(scene: Scene) -> None:
    for _ in range(2):
        with scene.mutex() as mutex:
            assert scene.row.writes == 0
            mutex.save_data(1)
            mutex.save_data(2)
            assert scene.row.writes == 2
