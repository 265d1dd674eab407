"""Semaphore: so many holders at a time, and no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hearing import until
from pynamodb.signals import pre_dynamodb_send
from stores import QueueFor
from worker import forked, workers

import pynamodb_mutex
from pynamodb_mutex import (
    InvalidKeyError,
    LockItem,
    Loss,
    Mutex,
    MutexAlreadyHeldError,
    MutexLostError,
    MutexTimeoutError,
    Semaphore,
    groups,
)
from pynamodb_mutex._protocol.schedule import MOST_HAND_OVERS
from pynamodb_mutex.testing import expire, held_elsewhere

QUICK = (0.02, 0.1)


class Elsewhere(LockItem):
    """The same table with another connection and another queue, as in another process."""

    class Meta(LockItem.Meta):
        pass


@pytest.fixture(autouse=True)
def elsewhere(table: type[LockItem], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elsewhere.Meta, "table_name", table.Meta.table_name)


def gpu(permits: int = 3, **options: Any) -> Semaphore:
    return Semaphore.for_key("gpu", permits=permits, **{"poll": QUICK, **options})


@contextmanager
def requests() -> Iterator[list[str]]:
    sent: list[str] = []

    def note(_sender: object, operation_name: str, **_: object) -> None:
        sent.append(operation_name)

    with pre_dynamodb_send.connected_to(note):
        yield sent


def queue_of(semaphore: Semaphore, model: type[LockItem] = LockItem) -> Any:
    keys = frozenset(semaphore.keys)
    return QueueFor(model, keys)


def most_at_once(sections: list[tuple[float, float]]) -> int:
    """Count how many sections there were at most at the same time."""
    events = [(since, 1) for since, _ in sections] + [(until, -1) for _, until in sections]
    return max(accumulate(step for _, step in sorted(events)))


# -- never more than so many --------------------------------------------------------------------------


COMPETE = """
from contextlib import suppress
import random
from pynamodb_mutex import MutexLostError, Semaphore

def compete_for_permits(times):
    sections = []
    for _ in range(times):
        semaphore = Semaphore.for_key("gpu", permits=3, lease=60, poll=(0.02, 0.2))
        with suppress(MutexLostError), semaphore:
            leaves = time.monotonic() + random.choice([0.05, 0.1, 0.2])
            since = until = now = time.monotonic()
            # the time is taken before the question: it was held at least until then
            while semaphore.held and until < leaves:
                until, now = now, time.monotonic()
                time.sleep(0.002)
            sections.append((since, until, semaphore.permit, semaphore.fencing_token))
    return sections

Semaphore.for_key("warm", permits=1).locked()  # the first contact takes longest: not in the contest
"""


@pytest.mark.real
def test_six_processes_hold_three_permits_at_most() -> None:
    with workers(*[0] * 6) as competing:
        for worker in competing:
            worker.ask(COMPETE)
        for worker in competing:
            worker.send("compete_for_permits(6)")
        by_worker = [worker.answer(100) for worker in competing]
    sections = [section for each in by_worker for section in each]
    assert len(sections) == 6 * 6
    assert most_at_once([(since, until) for since, until, _, _ in sections]) <= 3
    for permit in (1, 2, 3):
        # each permit for itself is a mutex, whose tokens grow
        of_permit = sorted(section for section in sections if section[2] == permit)
        assert all(one[1] <= other[0] for one, other in pairwise(of_permit))
        tokens = [token for *_, token in of_permit]
        assert tokens == sorted(set(tokens))


def test_overlaps_are_counted() -> None:
    assert most_at_once([(0, 1), (1, 2)]) == 1
    assert most_at_once([(0, 3), (1, 2), (1.5, 4), (3.5, 5)]) == 3


@pytest.mark.real("embedded")
def test_the_permit_of_a_killed_process_is_free_after_its_lease() -> None:
    with workers(0) as (worker,):
        taken = 'a = Semaphore.for_key("gpu", permits=1, lease=6); a.acquire()'
        worker.ask(f"from pynamodb_mutex import Semaphore; {taken}")
        other = gpu(1)
        assert other.acquire(blocking=False) is False
        worker.kill()
        assert other.acquire(timeout=30)
    assert other.permit == 1
    assert other.abandoned
    other.release()


def test_twenty_threads_cost_about_one_request_for_each_section() -> None:
    inside: list[int] = []
    most: list[int] = []
    one = Semaphore.for_key("gpu", permits=3)
    started = threading.Event()

    def work(shared: bool) -> None:
        semaphore = one if shared else Semaphore.for_key("gpu", permits=3)
        assert started.wait(60)
        for _ in range(6):
            with semaphore:
                inside.append(1)
                time.sleep(0.01)
                most.append(len(inside))
                inside.pop()

    with ThreadPoolExecutor(20) as pool, requests() as sent:
        holders = [gpu() for _ in range(3)]
        for holder in holders:
            holder.acquire()
        working = [pool.submit(work, number % 2 == 0) for number in range(20)]
        started.set()
        until(lambda: len(queue_of(one).turns) == 20)
        sent.clear()
        for holder in holders:
            holder.release()
        for worker in working:
            worker.result(100)
    assert len(most) == 120
    assert max(most) == 3
    assert len(sent) <= 1.3 * 120
    assert not one.locked()
    assert queue_of(one).is_idle


def test_after_some_hand_overs_another_process_gets_in() -> None:
    order = []

    def wait(model: type[LockItem], poll: tuple[float, float]) -> None:
        with gpu(1, model=model, poll=poll):
            order.append(model)

    with ThreadPoolExecutor(40) as pool:
        with gpu(1) as holder:
            queues = [queue_of(holder, model) for model in (LockItem, Elsewhere)]
            waiting = [pool.submit(wait, LockItem, (5.0, 5.0)) for _ in range(36)]
            waiting.append(pool.submit(wait, Elsewhere, (0.02, 0.05)))
            until(lambda: [len(queue.turns) for queue in queues] == [36, 1])
        for waiter in waiting:
            waiter.result(60)
    # handed over to so many, then released for real; the second time at the latest
    assert order.index(Elsewhere) in (MOST_HAND_OVERS, 2 * MOST_HAND_OVERS + 1)


# -- permits ------------------------------------------------------------------------------------------


@pytest.mark.real
def test_as_many_as_there_are_permits_and_one_object_for_each() -> None:
    one, two, three = gpu(2), gpu(2), gpu(2)
    with one, two:
        assert {one.permit, two.permit} == {1, 2}
        assert {one.key, two.key} == {"gpu#permit-1", "gpu#permit-2"}
        assert LockItem.get(one.key).version == one.fencing_token
        assert three.acquire(blocking=False) is False
        assert three.locked()
        with pytest.raises(MutexTimeoutError, match="'gpu' was not free") as error:
            gpu(2, timeout=0).__enter__()
        assert error.value.key == "gpu"
        with pytest.raises(MutexAlreadyHeldError):
            one.acquire()
        two.release()
        assert three.acquire(timeout=30)
        two.acquire(blocking=False)
        assert not two.held
        three.release()
        two.acquire()
    assert not three.locked()


def test_a_dead_holders_permit_is_free_at_first_sight() -> None:
    with held_elsewhere("gpu#permit-1"), held_elsewhere("gpu#permit-2", owner="dead"):
        assert gpu(2).acquire(timeout=0) is False
        expire("gpu#permit-2")
        with gpu(2, timeout=0) as semaphore:
            assert (semaphore.permit, semaphore.abandoned_by) == (2, "dead")


def test_a_raised_number_lets_more_in_at_once() -> None:
    with gpu(1), gpu(3, model=Elsewhere), gpu(3):
        assert gpu(3).acquire(blocking=False) is False
        assert gpu(1).acquire(blocking=False) is False
        with gpu(4, timeout=0) as fourth:
            assert fourth.permit == 4
            assert gpu(4, model=Elsewhere).acquire(blocking=False) is False


def test_a_lowered_number_holds_when_those_beyond_it_have_left() -> None:
    before = [gpu(4) for _ in range(4)]
    for each in before:
        assert each.acquire(blocking=False)
    by_permit = {each.permit: each for each in before}
    assert set(by_permit) == {1, 2, 3, 4}
    # two more leave room for nobody who wants two at most
    by_permit[3].release()
    by_permit[4].release()
    assert gpu(2).acquire(blocking=False) is False
    by_permit[2].release()
    with gpu(2, timeout=0) as second:
        assert second.permit == 2
        assert gpu(2, model=Elsewhere).acquire(blocking=False) is False
    by_permit[1].release()


def test_who_waits_for_fewer_is_not_handed_a_permit_beyond() -> None:
    holders = [gpu(2), gpu(2)]
    for holder in holders:
        holder.acquire()
    holders.sort(key=lambda holder: holder.permit or 0)
    lowered = gpu(1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lowered.acquire, timeout=60)
        until(lambda: len(queue_of(lowered).turns) == 1)
        holders[1].release()
        time.sleep(0.3)
        assert not waiting.done()
        holders[0].release()
        assert waiting.result(60)
    assert lowered.permit == 1
    lowered.release()


@pytest.mark.real
def test_a_permit_is_handed_over_in_one_request() -> None:
    holders, waiter = [gpu(2), gpu(2)], gpu(2, poll=(30, 30))
    for holder in holders:
        holder.acquire()
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waiter.acquire)
        until(lambda: queue_of(waiter).in_the_way)
        with requests() as sent:
            holders[0].release()
            assert waiting.result(60)
        assert sent == ["UpdateItem"]
    assert waiter.permit == holders[0].permit
    assert waiter.fencing_token == holders[0].fencing_token + 1
    waiter.release()
    holders[1].release()


def test_a_permit_is_lost_and_the_others_are_not() -> None:
    one, two = gpu(2), gpu(2)
    with two:
        one.acquire()
        assert Elsewhere.force_release(one.key)
        # with a timeout, or it would be refused: this thread is not known to have lost one of them
        with gpu(2, model=Elsewhere, timeout=30) as taker:
            assert taker.permit == one.permit
            with pytest.raises(MutexLostError) as error:
                one.renew()
            assert error.value.loss is Loss.TAKEN
            assert one.lost
            two.renew()
            assert two.held


def test_as_a_decorator_each_call_takes_a_permit() -> None:
    @gpu(2)
    def nested(depth: int) -> int:
        others = sum(Mutex.for_key(f"gpu#permit-{each}").locked() for each in (1, 2))
        return others if depth == 1 else nested(depth - 1)

    assert nested(1) == 1
    assert nested(2) == 2


@pytest.mark.real("embedded")
def test_a_forked_child_takes_a_permit_of_its_own() -> None:
    with gpu(2) as semaphore:

        def child() -> list[Any]:
            with semaphore:
                return [semaphore.permit, semaphore.locked()]

        permit, all_held = forked(child)
        assert {permit, semaphore.permit} == {1, 2}
        assert all_held
    assert not semaphore.locked()


# -- how it is made -----------------------------------------------------------------------------------


def test_it_is_public() -> None:
    assert groups.Semaphore is Semaphore
    assert "Semaphore" in pynamodb_mutex.__all__


def test_before_it_holds_it_has_no_permit() -> None:
    semaphore = gpu(2)
    assert (semaphore.key, semaphore.permit) == ("gpu", None)
    assert semaphore.keys == ("gpu#permit-1", "gpu#permit-2")
    assert repr(semaphore).startswith("<Semaphore 'gpu' in ")
    # a key that looks like a permit is one like any other
    with Semaphore.for_key("a#permit-7", permits=1) as odd:
        assert odd.permit == 1


@pytest.mark.parametrize("permits", [1.0, "2", None, True])
def test_permits_that_are_no_int_are_refused(permits: Any) -> None:
    with pytest.raises(TypeError, match="permits must be an int"):
        Semaphore.for_key("gpu", permits=permits)


@pytest.mark.parametrize("permits", [0, -1, 101])
def test_too_few_or_many_permits_are_refused(permits: int) -> None:
    with pytest.raises(ValueError, match=f"1 to 100 permits, not {permits}"):
        Semaphore.for_key("gpu", permits=permits)


def test_a_key_must_leave_room_for_the_permits_name() -> None:
    with Semaphore.for_key("é" * 1018, permits=100):
        pass
    for key in ("x" * 2038, "", 7):
        with pytest.raises(InvalidKeyError):
            Semaphore.for_key(key, permits=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lease"):
        gpu(lease=0.1)
