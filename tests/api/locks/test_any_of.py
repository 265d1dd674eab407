"""Mutex.any_of: whichever of several keys is free first."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from hearing import until
from pynamodb.exceptions import GetError, UpdateError
from scene import Lose, Scene, lost_in_two_ways
from stores import QueueFor
from worker import forked

from dev.faultproxy import after, apply_then_500, drop_answer, duplicate, late, no_date, throttle
from pynamodb_mutex import (
    InvalidKeyError,
    LockItem,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    MutexTimeoutError,
)
from pynamodb_mutex._operations.acquire_several import AcquisitionOfAny
from pynamodb_mutex._operations.local_queue import LocalQueue
from pynamodb_mutex._runtime.process import current_process, forget_everything
from pynamodb_mutex.groups import AnyOf
from pynamodb_mutex.testing import expire, held_elsewhere

QUICK = (0.02, 0.1)


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are tried in the order in which they were given."""
    monkeypatch.setattr(AcquisitionOfAny, "_shuffled", lambda self: list(self._attempts))


def keys(scene: Scene, count: int = 3) -> list[str]:
    return [f"{scene.key}-{letter}" for letter in "abcdefgh"[:count]]


def any_of(scene: Scene, count: int = 3, **options: Any) -> AnyOf:
    return Mutex.any_of(keys(scene, count), **{"model": scene.here, "poll": QUICK, **options})


def elsewhere(scene: Scene, *which: int) -> ExitStack:
    """Let others hold some of the keys."""
    held = ExitStack()
    for each in which:
        held.enter_context(held_elsewhere(keys(scene)[each], model=scene.there))
    return held


def queue_of(mutex: AnyOf) -> LocalQueue[Any, Any]:
    return QueueFor(mutex._options.model, frozenset(mutex.keys))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


# -- one of them ------------------------------------------------------------------------------------


@pytest.mark.real
def test_one_request_takes_it_and_one_gives_it_back(scene: Scene) -> None:
    mutex = any_of(scene)
    with mutex as entered:
        assert entered is mutex
        assert mutex.held
        assert mutex.key in keys(scene)
        assert scene.there.get(mutex.key).token == mutex.token
    assert scene.proxy.kinds() == ["acquire", "release"]
    assert not mutex.held


def test_each_key_is_tried_first_at_times(scene: Scene) -> None:
    got = set()
    for _ in range(40):
        with any_of(scene) as mutex:
            got.add(mutex.key)
    assert got == set(keys(scene))


def test_first_contact_with_the_endpoint_costs_one_read_more(scene: Scene) -> None:
    with scene.fresh() as fresh, any_of(fresh):
        assert fresh.proxy.kinds() == ["GetItem", "acquire"]


@pytest.mark.usefixtures("in_order")
def test_first_contact_finds_the_one_that_is_free(scene: Scene) -> None:
    with elsewhere(scene, 0, 1), scene.fresh() as fresh, any_of(fresh) as mutex:
        assert mutex.key == keys(scene)[2]
        assert fresh.proxy.kinds() == ["GetItem", "BatchGetItem", "acquire"]


@pytest.mark.real
@pytest.mark.usefixtures("in_order")
def test_the_one_that_is_free_is_found_in_three_requests(scene: Scene) -> None:
    with elsewhere(scene, 0, 1):
        mutex = any_of(scene)
        assert mutex.acquire(blocking=False)
        assert mutex.key == keys(scene)[2]
        assert scene.proxy.kinds() == ["acquire", "BatchGetItem", "acquire"]
        (read,) = scene.proxy.of("BatchGetItem")
        (asked,) = read.body["RequestItems"].values()
        assert asked["ConsistentRead"] is True
        assert [key["key"]["S"] for key in asked["Keys"]] == keys(scene)[1:]


@pytest.mark.usefixtures("in_order")
def test_not_free_only_if_the_store_said_so_of_each(scene: Scene) -> None:
    with elsewhere(scene, 0, 1, 2):
        assert any_of(scene).acquire(blocking=False) is False
        assert scene.proxy.kinds() == ["acquire", "BatchGetItem"]
        assert any_of(scene).acquire(timeout=0) is False


def test_a_single_key_will_do(scene: Scene) -> None:
    with elsewhere(scene, 0):
        assert any_of(scene, 1).acquire(blocking=False) is False
    assert scene.proxy.kinds() == ["acquire"]
    with any_of(scene, 1) as mutex:
        assert mutex.key == keys(scene)[0]


@pytest.mark.usefixtures("in_order")
def test_one_that_another_takes_first_is_left_to_it(scene: Scene) -> None:
    others = elsewhere(scene, 0)

    def take() -> None:
        others.enter_context(elsewhere(scene, 1))

    scene.proxy.next(drop_answer(), op="BatchGetItem")
    with others:
        # read as free, and taken before the write
        scene.proxy.next(after(take), op="acquire", when=lambda body: "-b" in str(body["Key"]))
        with any_of(scene) as mutex:
            assert mutex.key == keys(scene)[2]
        assert scene.applied("acquire") == [False, False, True]


def test_waits_by_reading_all_at_half_the_price(scene: Scene, pool: ThreadPoolExecutor) -> None:
    mutex = any_of(scene)
    held = elsewhere(scene, 0, 1)
    with held, elsewhere(scene, 2):
        waiting = pool.submit(mutex.acquire, timeout=60)
        reads = scene.proxy.wait(4, "BatchGetItem")
        for read in reads[1:]:
            (asked,) = read.body["RequestItems"].values()
            assert asked["ConsistentRead"] is False
            assert len(asked["Keys"]) == 3
        assert not waiting.done()
        assert len(scene.proxy.of("acquire")) == 1
        held.close()
        assert waiting.result(60)
        assert mutex.key in keys(scene)[:2]
    mutex.release()


@pytest.mark.usefixtures("in_order")
def test_a_dead_holders_key_is_taken_at_first_sight(scene: Scene) -> None:
    with elsewhere(scene, 0, 1, 2):
        expire(keys(scene)[1], scene.there)
        mutex = any_of(scene)
        assert mutex.acquire(blocking=False)
        assert mutex.key == keys(scene)[1]
        assert mutex.abandoned_by == "elsewhere"
        assert len(scene.proxy.log) == 3


def test_without_server_time_a_dead_holder_is_known_by_watching(
    scene: Scene, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(current_process(), "uniform", lambda _, longest: longest)
    with elsewhere(scene, 0, 1, 2), scene.fresh() as fresh:
        fresh.proxy.always(no_date())
        mutex = any_of(fresh, poll=(10, 500))
        waiting = pool.submit(mutex.acquire, timeout=300)
        # it polls after 30 s, and then after 90 s more, but for the end of a lease of 30 s
        time.sleep(31)
        assert not waiting.done()
        assert fresh.proxy.kinds() == ["GetItem", "BatchGetItem", "BatchGetItem"]
        time.sleep(20)
        assert waiting.done()
        assert fresh.proxy.kinds()[3:] == ["BatchGetItem", "acquire"]
        assert mutex.held
        assert mutex.abandoned


@pytest.mark.real
def test_what_is_done_under_it_is_done_to_the_key_that_it_got(scene: Scene) -> None:
    with any_of(scene, lease=20, data=[1]) as mutex:
        assert mutex.data == [1]
        mutex.save_data({"page": 1})
        row = scene.there.get(mutex.key)
        mutex.renew()
        mutex.ensure_held(at_least=5)
        assert scene.there.get(mutex.key).expires_at > row.expires_at
        assert (row.data, row.version) == ({"page": 1}, mutex.fencing_token)
        with mutex.transaction():
            pass
        key = mutex.key
    assert mutex.key == key
    assert scene.there.get(key).data == {"page": 1}


def test_rows_may_be_deleted_on_release(scene: Scene) -> None:
    with any_of(scene, 2, delete_on_release=True), any_of(scene, 2, delete_on_release=True):
        assert any_of(scene, 2).locked()
    assert all(scene.there.count(key) == 0 for key in keys(scene))


def test_loss_is_reported(scene: Scene) -> None:
    told: list[Any] = []
    seen = threading.Event()

    def on_lost(lost: Mutex) -> None:
        told.append((lost, lost.key))
        seen.set()

    mutex = any_of(scene, on_lost=on_lost)
    mutex.acquire()
    key = mutex.key
    assert scene.there.force_release(key)
    assert mutex.held
    with pytest.raises(MutexLostError):
        mutex.renew()
    with pytest.raises(MutexLostError) as error:
        mutex.release()
    assert (error.value.loss, error.value.key) == (Loss.FORCED, key)
    assert seen.wait(60)
    assert told == [(mutex, key)]
    assert (mutex.lost, mutex.loss) == (True, Loss.FORCED)


def test_a_claim_broken_by_this_process_is_lost_at_once(scene: Scene) -> None:
    mutex = any_of(scene)
    mutex.acquire()
    assert scene.here.force_release(mutex.key)
    assert mutex.loss is Loss.FORCED


def test_locked_says_whether_all_are_held(scene: Scene) -> None:
    mutex = any_of(scene)
    with elsewhere(scene, 0, 1):
        assert mutex.locked() is False
        with mutex:
            scene.proxy.start_anew()
            assert mutex.locked() is True
            assert scene.proxy.kinds() == ["BatchGetItem"]
            with scene.fresh() as fresh:
                fresh.proxy.always(no_date())
                assert any_of(fresh).locked() is True
            expire(keys(scene)[0], scene.there)
            assert mutex.locked() is False


# -- when the network is bad --------------------------------------------------------------------------


@lost_in_two_ways
def test_an_acquire_that_was_applied_is_recognised(scene: Scene, lose: Lose) -> None:
    scene.proxy.next(lose(), op="acquire")
    with any_of(scene) as mutex:
        assert scene.there.get(mutex.key).token == mutex.token
    # not one key more is left held
    assert sum(scene.there.count(key) for key in keys(scene)) == 1
    assert scene.proxy.kinds() == ["acquire", "acquire", "release"]


@lost_in_two_ways
@pytest.mark.usefixtures("in_order")
def test_an_acquire_after_the_look_that_was_applied_is_recognised(scene: Scene, lose: Lose) -> None:
    with elsewhere(scene, 0, 1):
        scene.proxy.next(lose(), op="acquire", when=lambda body: "-c" in str(body["Key"]))
        with any_of(scene) as mutex:
            assert mutex.key == keys(scene)[2]
        assert scene.applied("acquire") == [False, True, False]


@lost_in_two_ways
def test_a_release_that_was_applied_is_one(scene: Scene, lose: Lose) -> None:
    scene.proxy.next(lose(), op="release")
    with any_of(scene) as mutex:
        pass
    assert scene.there.get(mutex.key).expires_at is None
    assert not mutex.lost


@lost_in_two_ways
def test_a_hand_over_that_was_applied_is_recognised(
    scene: Scene, pool: ThreadPoolExecutor, lose: Lose
) -> None:
    first, second = any_of(scene), any_of(scene, poll=(20, 20))
    with elsewhere(scene, 0, 1):
        first.acquire()
        waiting = pool.submit(second.acquire)
        until(lambda: len(queue_of(first).turns) == 1)
        scene.proxy.next(lose(), op="hand_over")
        first.release()
        assert waiting.result(60)
        assert scene.applied("hand_over") == [True, False]
        assert second.held
        assert scene.there.get(second.key).token == second.token
        second.release()


def test_requests_that_come_twice_do_nothing_more(scene: Scene) -> None:
    scene.proxy.next(duplicate("second"), op="acquire")
    scene.proxy.next(duplicate(), op="release")
    with any_of(scene) as mutex:
        token = mutex.fencing_token
    row = scene.there.get(mutex.key)
    assert (row.expires_at, row.version) == (None, token)
    assert scene.applied("acquire") == [True, False]


def test_an_acquire_that_comes_late_does_not_take_the_key_again(scene: Scene) -> None:
    kept = late()
    scene.proxy.next(kept, op="acquire")
    with any_of(scene) as mutex:
        pass
    assert kept.apply().status == 400
    assert scene.there.get(mutex.key).expires_at is None


@pytest.mark.usefixtures("in_order")
def test_what_passes_is_repeated(scene: Scene) -> None:
    with elsewhere(scene, 0, 1):
        scene.proxy.next(throttle(), apply_then_500(), op="BatchGetItem")
        scene.proxy.next(throttle(), op="acquire")
        with any_of(scene, timeout=30) as mutex:
            assert mutex.key == keys(scene)[2]


@pytest.mark.parametrize(("op", "kind"), [("BatchGetItem", GetError), ("acquire", UpdateError)])
def test_what_does_not_pass_is_an_error_never_not_free(
    scene: Scene, op: str, kind: type[Exception]
) -> None:
    with elsewhere(scene, 0, 1, 2):
        scene.proxy.always(throttle(), op=op)
        with pytest.raises(kind, match="Throttling"):
            any_of(scene).acquire(blocking=False)


# -- among threads ------------------------------------------------------------------------------------


def test_hands_over_to_who_waits_for_the_same_keys_in_one_request(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    first = any_of(scene, owner="one")
    second = Mutex.any_of(
        reversed(keys(scene)), model=scene.here, owner="two", lease=50, poll=(20, 20)
    )
    with elsewhere(scene, 0, 1):
        first.acquire()
        waiting = pool.submit(second.acquire)
        until(lambda: queue_of(first).in_the_way)
        third = any_of(scene, poll=(20, 20))
        waiting_too = pool.submit(third.acquire)
        until(lambda: len(queue_of(first).turns) == 2)
        reads = len(scene.proxy.of("BatchGetItem"))
        scene.proxy.log.clear()
        first.release()
        assert waiting.result(60)
        # nor does the next in line look for itself
        time.sleep(0.3)
        assert scene.proxy.kinds() == ["hand_over"]
        assert reads <= 3
        assert second.key == first.key == keys(scene)[2]
        assert second.fencing_token == first.fencing_token + 1
        assert 40 < second.remaining <= 50
        assert scene.there.get(second.key).owner == "two"
        second.release()
        assert waiting_too.result(60)
        third.release()
    assert queue_of(first).is_idle


def test_two_that_release_at_once_hand_over_to_two(scene: Scene, pool: ThreadPoolExecutor) -> None:
    holders = [any_of(scene, 2), any_of(scene, 2)]
    waiters = [any_of(scene, 2, poll=(30, 30)) for _ in range(2)]
    for holder in holders:
        holder.acquire()
    queue = queue_of(holders[0])
    waiting = []
    for waiter in waiters:
        waiting.append(pool.submit(waiter.acquire))
        until(lambda: len(queue.turns) == len(waiting))
    reached, may_go_on = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        assert may_go_on.wait(60)

    scene.proxy.next(after(stop), op="hand_over")
    releasing = pool.submit(holders[0].release)
    assert reached.wait(60)
    holders[1].release()
    # the first in line is spoken for
    assert waiting[1].result(60)
    assert waiters[1].key == holders[1].key
    assert not waiting[0].done()
    may_go_on.set()
    assert waiting[0].result(60)
    releasing.result(60)
    assert waiters[0].key == holders[0].key
    assert scene.applied("hand_over") == [True, True]
    assert not scene.proxy.of("release")
    for waiter in waiters:
        waiter.release()
    assert queue.is_idle


def test_key_that_is_handed_over_while_the_poll_acquires_another_is_released(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    holder, waiter = any_of(scene, 2), any_of(scene, 2)
    holder.acquire()
    (other,) = (at for at, key in enumerate(keys(scene, 2)) if key != holder.key)
    with elsewhere(scene, other) as others:
        waiting = pool.submit(waiter.acquire)
        scene.proxy.wait(1, "BatchGetItem")

        def release_both() -> None:
            pool.submit(holder.release).result(60)
            others.close()

        scene.proxy.next(after(release_both), op="BatchGetItem")
        assert waiting.result(60)
    assert scene.applied("hand_over") == [True]
    assert waiter.key == keys(scene)[other]
    assert waiter.held
    assert scene.there.get(holder.key).expires_at is None
    waiter.release()
    assert not [key for _, key in current_process().queues if waiter.key in key]


def test_other_keys_are_never_handed_over(scene: Scene, pool: ThreadPoolExecutor) -> None:
    first, second = any_of(scene, 1), any_of(scene, 2)
    with elsewhere(scene, 1):
        first.acquire()
        waiting = pool.submit(second.acquire)
        scene.proxy.wait(2, "BatchGetItem")
        first.release()
        assert waiting.result(60)
        assert second.key == first.key
        assert not scene.proxy.of("hand_over")
        second.release()


def test_who_waits_for_one_of_the_keys_alone_looks_when_it_is_released(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    mutex = any_of(scene, 1)
    alone = Mutex.for_key(keys(scene)[0], model=scene.here, poll=(50, 50))
    mutex.acquire()
    waiting = pool.submit(alone.acquire, timeout=100)
    queue = QueueFor(scene.here, keys(scene)[0])
    until(lambda: len(queue.turns) == 1)
    released = time.monotonic()
    mutex.release()
    assert waiting.result(100)
    assert time.monotonic() == released
    alone.release()


def test_who_waits_looks_when_a_holder_of_this_process_loses_its_key(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    holder, waiter = any_of(scene, 2), any_of(scene, 2, poll=(50, 50))
    with elsewhere(scene, 0):
        holder.acquire()
        waiting = pool.submit(waiter.acquire, timeout=100)
        until(lambda: len(queue_of(holder).turns) == 1)
        forced = time.monotonic()
        assert scene.here.force_release(holder.key)
        assert waiting.result(100)
        assert time.monotonic() == forced
        waiter.release()


def test_a_key_that_a_thread_of_this_process_holds_is_not_tried_first(scene: Scene) -> None:
    with any_of(scene), any_of(scene):
        scene.proxy.log.clear()
        with any_of(scene):
            assert scene.proxy.kinds() == ["acquire"]
            assert any_of(scene).acquire(blocking=False) is False


def test_who_does_not_wait_looks_though_others_do(scene: Scene, pool: ThreadPoolExecutor) -> None:
    holder, waiter = any_of(scene), any_of(scene, poll=(30, 30))
    with elsewhere(scene, 0, 1) as others:
        holder.acquire()
        waiting = pool.submit(waiter.acquire)
        until(lambda: queue_of(holder).in_the_way)
        writes = len(scene.proxy.of("acquire"))
        assert any_of(scene).acquire(blocking=False) is False
        assert len(scene.proxy.of("acquire")) == writes
        others.close()
        with any_of(scene, timeout=0) as quick:
            assert quick.key in keys(scene)[:2]
        holder.release()
        assert waiting.result(60)
        waiter.release()


def test_one_object_shared_by_threads_holds_a_key_for_each(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    mutex = any_of(scene)
    inside = threading.Barrier(3)

    def work() -> tuple[str, bool]:
        with mutex:
            inside.wait(60)
            held = mutex.held, mutex.key
            assert mutex.token == scene.there.get(mutex.key).token
            inside.wait(60)
        return held[1], held[0]

    working = [pool.submit(work) for _ in range(3)]
    assert {each.result(60) for each in working} == {(key, True) for key in keys(scene)}


def test_twice_in_one_thread_needs_another_object(scene: Scene) -> None:
    mutex = any_of(scene)
    with mutex:
        with pytest.raises(MutexAlreadyHeldError):
            mutex.acquire()
        with any_of(scene) as other:
            assert other.key != mutex.key
    again = any_of(scene, reentrant=True)
    with again:
        token = again.token
        with again:
            assert again.token == token
        assert again.held
    assert not again.held


def test_a_decorated_function_takes_one_for_each_call(scene: Scene) -> None:
    decorating = any_of(scene, 2)

    @decorating
    def held() -> int:
        return sum(Mutex.for_key(key, model=scene.there).locked() for key in keys(scene))

    assert held() == 1
    with any_of(scene, 2):
        assert held() == 2
    assert not decorating.held


@pytest.mark.real("embedded")
def test_after_a_fork_the_child_holds_nothing(scene: Scene) -> None:
    mutex = any_of(scene, 2)
    with mutex:

        def child() -> list[Any]:
            with pytest.raises(MutexNotHeldError):
                mutex.release()
            held = mutex.held
            with mutex:
                return [held, mutex.key, mutex.held]

        held, key, held_then = forked(child)
        assert (held, held_then) == (False, True)
        assert {key, mutex.key} == set(keys(scene, 2))
        assert mutex.held


def test_who_waits_when_the_engine_is_left_is_reported(table: type[LockItem]) -> None:
    waiter = Mutex.any_of(["a", "b"], poll=(0.1, 0.1))
    with held_elsewhere("a"), held_elsewhere("b"), ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.acquire)
        until(lambda: len(queue_of(waiter).turns) == 1)
        forget_everything()
        with pytest.raises(MutexError, match="forked, or its engine left"):
            waiting.result(60)


# -- what it says -------------------------------------------------------------------------------------


def test_timeout_names_the_keys_and_the_holder_who_ends_first(scene: Scene) -> None:
    soon = held_elsewhere(keys(scene)[2], owner="soon", lease=9, model=scene.there)
    with elsewhere(scene, 0, 1), soon:
        with pytest.raises(MutexTimeoutError) as error:
            any_of(scene, timeout=0.1).__enter__()
        assert error.value.owner == "soon"
        assert error.value.key == "any of " + ", ".join(keys(scene))


def test_who_was_not_first_in_line_learns_a_holder_too(
    scene: Scene, pool: ThreadPoolExecutor
) -> None:
    with any_of(scene, 1, owner="front") as holder:
        waiting = pool.submit(any_of(scene, 1).acquire, timeout=3)
        until(lambda: len(queue_of(holder).turns) == 1)
        with pytest.raises(MutexTimeoutError) as error:
            any_of(scene, 1, timeout=0.1).__enter__()
        assert error.value.owner == "front"
        assert waiting.result(60) is False


def test_before_it_holds_the_key_describes_the_alternatives(table: type[LockItem]) -> None:
    mutex = Mutex.any_of(["a", "b", "a"])
    assert mutex.keys == ("a", "b")
    assert mutex.key == "any of a, b"
    assert Mutex.any_of(iter("abcde")).key == "any of a, b, c, ... (5 keys)"
    assert repr(mutex) == f"<AnyOf 'any of a, b' in {table.Meta.table_name}: not held>"
    with pytest.raises(MutexNotHeldError, match="any of a, b"):
        mutex.release()
    with mutex:
        assert f"<AnyOf {mutex.key!r} in" in repr(mutex)


def test_what_cannot_work_is_refused() -> None:
    for wrong in ("abc", 7, None, Mutex.for_key("a")):
        with pytest.raises(TypeError, match="several keys"):
            Mutex.any_of(wrong)  # type: ignore[arg-type]
    for count in (0, 101):
        with pytest.raises(ValueError, match=f"1 to 100 keys, not {count}"):
            Mutex.any_of([str(number) for number in range(count)])
    assert len(Mutex.any_of(map(str, range(100))).keys) == 100
    for key in ("", 7, "x" * 2049):
        with pytest.raises(InvalidKeyError):
            Mutex.any_of(["a", key])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="lease"):
        Mutex.any_of(["a"], lease=0.1)
    with pytest.raises(TypeError, match=r"which of 'a', 'b'\? Use LockItem.force_release"):
        Mutex.any_of(["a", "b"]).force_release()
    with pytest.raises(TypeError, match="AnyOf cannot be pickled"):
        pickle.dumps(Mutex.any_of(["a"]))
