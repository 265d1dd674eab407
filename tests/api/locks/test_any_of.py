"""Mutex.any_of, whichever of several keys is free first; and semaphores, which are built on it."""

import time
from collections import defaultdict
from contextlib import ExitStack

import pytest
from processes import forked
from pynamodb.exceptions import GetError, UpdateError
from this_process import QueueFor, current_process
from two_clients import Elsewhere
from waits import until

from dev.faultproxy import after, apply_then_500, delay, drop_answer, no_date, throttle
from pynamodb_mutex import LockItem, Loss, Mutex, Semaphore, exceptions
from pynamodb_mutex._several.acquire_any import AcquisitionOfAny
from pynamodb_mutex.testing import expire, held_elsewhere

QUICK = (0.02, 0.1)


@pytest.fixture
def in_order(monkeypatch):
    """Keys are tried in the order in which they were given."""
    monkeypatch.setattr(AcquisitionOfAny, "_shuffled", lambda self: list(self._parts))


def keys(scene, count=3):
    return [f"{scene.key}-{letter}" for letter in "abc"[:count]]


def any_of(scene, count=3, **options):
    return Mutex.any_of(keys(scene, count), **{"model": scene.here, "poll": QUICK, **options})


def elsewhere(scene, *which):
    """Let others hold some of the keys."""
    held = ExitStack()
    for each in which:
        held.enter_context(held_elsewhere(keys(scene)[each], model=scene.there))
    return held


def queue_of(mutex):
    return QueueFor(mutex._options.model, frozenset(mutex.keys))


def wait_in_line(pool, mutex, count=1, **options):
    """Let a thread acquire, and wait until so many are in line for the same keys."""
    waiting = pool.submit(mutex.acquire, **options)
    until(lambda: len(queue_of(mutex).turns) == count)
    return waiting


@pytest.mark.real("simulated", "local")
@pytest.mark.usefixtures("in_order")
def test_one_request_acquires_and_three_if_the_first_key_is_held(scene):
    with any_of(scene, lease=20, data=[1]) as mutex:
        assert (mutex.key, mutex.data) == (keys(scene)[0], [1])
        row = scene.there.get(mutex.key)
        assert (row.token, row.version) == (mutex.token, mutex.fencing_token)
        mutex.save_data({"page": 1})
        mutex.renew(lease=40)
        with mutex.transaction():
            pass
        changed = scene.there.get(mutex.key)
        assert changed.data == {"page": 1}
        assert changed.expires_at > row.expires_at
    assert mutex.key == keys(scene)[0]
    requests = ["acquire", "save_data", "renew", "TransactWriteItems", "release"]
    assert [kind for kind in scene.proxy.kinds() if kind != "GetItem"] == requests
    with elsewhere(scene, 0, 1):
        scene.proxy.start_anew()
        assert mutex.acquire(blocking=False)
        assert mutex.key == keys(scene)[2]
        (read,) = scene.proxy.of("BatchGetItem")
        (asked,) = read.body["RequestItems"].values()
        assert asked["ConsistentRead"] is True
        assert [key["key"]["S"] for key in asked["Keys"]] == keys(scene)[1:]


@pytest.mark.usefixtures("in_order")
def test_requests_of_an_attempt(scene):
    for held, dead, count, got, kinds in (
        ((), None, 3, 0, ["acquire"]),
        ((0, 1), None, 3, 2, ["acquire", "BatchGetItem", "acquire"]),
        # all count as held only if the store said so of each
        ((0, 1, 2), None, 3, None, ["acquire", "BatchGetItem"]),
        ((0,), None, 1, None, ["acquire"]),
        ((0, 1, 2), 1, 3, 1, ["acquire", "BatchGetItem", "acquire"]),
        # the first contact with the endpoint begins with a read
        ((), None, 3, 0, ["GetItem", "acquire"]),
        ((0, 1), None, 3, 2, ["GetItem", "BatchGetItem", "acquire"]),
    ):
        with elsewhere(scene, *held), scene.fresh() as fresh:
            client = fresh if "GetItem" in kinds else scene
            if dead is not None:
                expire(keys(scene)[dead], scene.there)
            client.proxy.start_anew()
            mutex = any_of(client, count)
            assert mutex.acquire(blocking=False) is (got is not None)
            assert client.proxy.kinds() == kinds
            if got is not None:
                assert mutex.key == keys(scene)[got]
                assert mutex.abandoned_by == (None if dead is None else "elsewhere")
                mutex.release()


def test_each_key_is_tried_first_at_times_and_none_that_this_process_holds(scene):
    got = set()
    for _ in range(20):
        with any_of(scene, delete_on_release=True) as mutex:
            got.add(mutex.key)
    assert got == set(keys(scene))
    assert all(scene.there.count(key) == 0 for key in got)
    with any_of(scene) as one, any_of(scene) as two:
        for _ in range(5):
            scene.proxy.log.clear()
            with any_of(scene) as three:
                assert {one.key, two.key, three.key} == got
                assert scene.proxy.kinds() == ["acquire"]
                assert any_of(scene).acquire(blocking=False) is False


@pytest.mark.usefixtures("in_order")
def test_key_that_another_takes_first_is_left_to_it(scene):
    others = elsewhere(scene, 0)

    def take():
        others.enter_context(elsewhere(scene, 1))

    scene.proxy.next(drop_answer(), op="BatchGetItem")
    with others:
        # read as free, and taken before the write
        scene.proxy.next(after(take), op="acquire", when=lambda body: "-b" in str(body["Key"]))
        with any_of(scene) as mutex:
            assert mutex.key == keys(scene)[2]
        assert scene.applied("acquire") == [False, False, True]


def test_waiter_polls_all_keys_by_one_read_that_is_not_consistent(scene, pool):
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


def test_without_server_time_a_dead_holder_is_known_by_watching(scene, pool, monkeypatch):
    monkeypatch.setattr(current_process(), "uniform", lambda _, longest: longest)
    longer = held_elsewhere(keys(scene)[0], lease=200, model=scene.there)
    with longer, elsewhere(scene, 1, 2), scene.fresh() as fresh:
        fresh.proxy.always(no_date())
        mutex = any_of(fresh, poll=(10, 500))
        waiting = pool.submit(mutex.acquire, timeout=300)
        # it polls after 30 s, and then after 90 s more, but for the end of a lease of 30 s
        time.sleep(31)
        assert not waiting.done()
        assert fresh.proxy.kinds() == [*["GetItem"] * 3, "BatchGetItem", "BatchGetItem"]
        time.sleep(20)
        assert waiting.done()
        assert fresh.proxy.kinds()[5:] == ["BatchGetItem", "acquire"]
        assert mutex.held
        assert mutex.abandoned


def test_locked_says_whether_all_are_held(scene):
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


@pytest.mark.parametrize(("op", "kind"), [("BatchGetItem", GetError), ("acquire", UpdateError)])
def test_failure_is_retried_or_an_error_and_never_held_by_others(scene, op, kind):
    with elsewhere(scene, 0, 1):
        scene.proxy.next(throttle(), apply_then_500(), op="BatchGetItem")
        scene.proxy.next(throttle(), op="acquire")
        with any_of(scene, timeout=30) as mutex:
            assert mutex.key == keys(scene)[2]
    with elsewhere(scene, 0, 1, 2):
        scene.proxy.always(throttle(), op=op)
        with pytest.raises(kind, match="Throttling"):
            any_of(scene).acquire(blocking=False)


def test_lock_is_handed_over_in_one_request_to_the_next_waiter_for_the_same_keys(scene, pool):
    first = any_of(scene, owner="one")
    options = {"model": scene.here, "poll": (20, 20)}
    second = Mutex.any_of(reversed(keys(scene)), owner="two", lease=50, **options)
    with elsewhere(scene, 0, 1):
        first.acquire()
        waiting = pool.submit(second.acquire)
        until(lambda: queue_of(first).in_the_way)
        third = any_of(scene, poll=(20, 20))
        waiting_too = wait_in_line(pool, third, 2)
        reads = len(scene.proxy.of("BatchGetItem"))
        scene.proxy.log.clear()
        first.release()
        assert waiting.result(60)
        # nor does the next in line poll
        time.sleep(0.3)
        assert scene.proxy.kinds() == ["hand_over"]
        assert reads <= 3
        assert second.key == first.key == keys(scene)[2]
        assert second.fencing_token == first.fencing_token + 1
        assert 40 < second.remaining <= 50
        row = scene.there.get(second.key)
        assert (row.owner, row.token) == ("two", second.token)
        second.release()
        assert waiting_too.result(60)
        third.release()
    assert queue_of(first).is_idle


def test_key_that_is_handed_over_while_the_poll_acquires_another_is_released(scene, pool):
    holder, waiter = any_of(scene, 2), any_of(scene, 2)
    holder.acquire()
    (other,) = (at for at, key in enumerate(keys(scene, 2)) if key != holder.key)
    with elsewhere(scene, other) as others:
        waiting = pool.submit(waiter.acquire)
        scene.proxy.wait(1, "BatchGetItem")

        def release_both():
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


def test_waiter_whose_poll_acquires_a_key_does_not_wait_for_another_to_be_handed_over(scene, pool):
    lost, releasing, begun = [], [], time.monotonic()
    holder, waiter = any_of(scene, 2), any_of(scene, 2, lease=3, on_lost=lost.append)
    holder.acquire()
    (other,) = (at for at, key in enumerate(keys(scene, 2)) if key != holder.key)
    with elsewhere(scene, other) as others:
        waiting = pool.submit(waiter.acquire)
        scene.proxy.wait(1, "BatchGetItem")

        def release_both():
            releasing.append(pool.submit(holder.release))
            until(lambda: queue_of(holder).promises)
            others.close()

        # answered when the lease of the new claim has passed
        scene.proxy.next(delay(20), op="hand_over")
        scene.proxy.next(after(release_both), op="BatchGetItem")
        assert waiting.result(60)
    assert time.monotonic() < begun + 20
    assert releasing[0].result(60) is None
    assert time.monotonic() >= begun + 20
    time.sleep(0.3)
    assert (scene.applied("hand_over"), waiter.held, lost) == ([True], True, [])
    assert scene.there.get(holder.key).expires_at is None


def test_waiter_that_is_not_handed_the_key_polls_at_once_when_its_holder_has_ended(scene, pool):
    holder, same = any_of(scene, 2), any_of(scene, 2, poll=(50, 50))
    single = Mutex.for_key(keys(scene)[0], model=scene.here, poll=(50, 50))
    with elsewhere(scene, 1, 2):
        for waiter, waits_for, end in (
            (single, single.key, holder.release),
            (same, frozenset(same.keys), lambda: scene.here.force_release(holder.key)),
        ):
            holder.acquire()
            waiting = pool.submit(waiter.acquire, timeout=100)
            until(lambda: len(QueueFor(scene.here, waits_for).turns) == 1)  # noqa: B023 - called here
            ended = time.monotonic()
            end()
            assert waiting.result(100)
            assert time.monotonic() == ended
            waiter.release()
        with pytest.raises(exceptions.MutexLostError) as error:
            holder.release()
        assert (error.value.loss, error.value.key) == (Loss.FORCED, single.key)
        # one that waits for more keys than the holder goes on polling
        more = any_of(scene)
        holder.acquire()
        waiting = pool.submit(more.acquire)
        scene.proxy.wait(len(scene.proxy.of("BatchGetItem")) + 2, "BatchGetItem")
        holder.release()
        assert waiting.result(60)
        assert more.key == holder.key
        assert not scene.proxy.of("hand_over")
        more.release()


def test_attempt_that_does_not_wait_polls_though_others_wait(scene, pool):
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


def test_timeout_names_the_keys_and_the_holder_whose_lease_ends_first(scene, pool):
    def refused(count):
        with pytest.raises(exceptions.MutexTimeoutError) as error:
            any_of(scene, count, timeout=0.1).__enter__()
        return error.value.key, error.value.owner

    soon = held_elsewhere(keys(scene)[2], owner="soon", lease=9, model=scene.there)
    with elsewhere(scene, 0, 1), soon:
        assert refused(3) == ("any of " + ", ".join(keys(scene)), "soon")
    with any_of(scene, 1, owner="front"):
        waiting = wait_in_line(pool, any_of(scene, 1), timeout=3)
        # it was never the first in line
        assert refused(1) == ("any of " + keys(scene)[0], "front")
        assert waiting.result(60) is False


def test_key_describes_the_alternatives_until_one_is_held(table):
    mutex = Mutex.any_of(["a", "b", "a"])
    assert mutex.key == "any of a, b"
    assert Mutex.any_of(iter("abcde")).key == "any of a, b, c, ... (5 keys)"
    assert repr(mutex) == f"<AnyOf 'any of a, b' in {table.Meta.table_name}: not held>"
    with pytest.raises(exceptions.MutexNotHeldError, match="any of a, b"):
        mutex.release()
    with pytest.raises(TypeError, match=r"which of 'a', 'b'\? Use LockItem.force_release"):
        mutex.force_release()
    with mutex:
        assert f"<AnyOf {mutex.key!r} in" in repr(mutex)
    semaphore = gpu(2)
    assert (semaphore.key, semaphore.permit) == ("gpu", None)
    assert semaphore.keys == ("gpu#permit-1", "gpu#permit-2")
    assert repr(semaphore).startswith("<Semaphore 'gpu' in ")
    # a key that is named like a permit is a key like any other
    with Semaphore.for_key("a#permit-7", permits=1) as odd:
        assert odd.permit == 1


# -- semaphores -------------------------------------------------------------------------------------


def gpu(permits=3, **options):
    return Semaphore.for_key("gpu", permits=permits, **{"poll": QUICK, **options})


def held_together(count):
    """Acquire as many permits as there are, in the order of their numbers."""
    holders = [gpu(count) for _ in range(count)]
    assert all(holder.acquire(blocking=False) for holder in holders)
    return sorted(holders, key=lambda holder: holder.permit)


@pytest.mark.parametrize("clients", [[LockItem], [LockItem, Elsewhere]])
def test_no_more_hold_it_than_there_are_permits(table, pool, sent, clients):
    inside, most, tokens = set(), [], defaultdict(list)
    shared = [gpu(model=model) for model in clients]

    def work(number):
        client = number % len(clients)
        semaphore = shared[client] if number < 10 else gpu(model=clients[client])
        for _ in range(6):
            with semaphore:
                # each thread sees its own, also of a semaphore that it shares
                permit = semaphore.permit
                assert permit not in inside
                inside.add(permit)
                tokens[permit].append(semaphore.fencing_token)
                time.sleep(0.01)
                most.append(len(inside))
                assert semaphore.permit == permit
                inside.remove(permit)

    holders = held_together(3)
    working = [pool.submit(work, number) for number in range(20)]
    until(lambda: sum(len(queue_of(each).turns) for each in shared) == 20)
    sent.clear()
    for holder in holders:
        holder.release()
    for worker in working:
        worker.result(100)
    assert (len(most), max(most)) == (120, 3)
    assert all(each == sorted(set(each)) for each in tokens.values())
    if clients == [LockItem]:
        # about one request for each section
        assert len(sent) <= 1.3 * 120
    for semaphore in shared:
        assert not semaphore.locked()
        assert queue_of(semaphore).is_idle


@pytest.mark.real("simulated", "local")
def test_as_many_hold_it_as_there_are_permits(table):
    one, two, three = gpu(2), gpu(2), gpu(2, timeout=0)
    with one, two:
        assert {one.permit, two.permit} == {1, 2}
        assert {one.key, two.key} == {"gpu#permit-1", "gpu#permit-2"}
        assert LockItem.get(one.key).version == one.fencing_token
        assert three.locked()
        with pytest.raises(exceptions.MutexTimeoutError, match="'gpu' was not free") as error:
            three.__enter__()
        assert error.value.key == "gpu"
        two.release()
        assert three.acquire(timeout=30)
        assert not two.acquire(blocking=False)
        three.release()
        two.acquire()
    assert not three.locked()


def test_reentrant_semaphore_does_not_enter_the_mutex_of_its_key(table):
    with Mutex.for_key("gpu", reentrant=True), gpu(1, model=Elsewhere):
        assert not gpu(1, reentrant=True).acquire(blocking=False)


def test_more_permits_let_more_in_at_once(table):
    with gpu(1), gpu(3, model=Elsewhere), gpu(3):
        assert not gpu(1).acquire(blocking=False)
        assert not gpu(3).acquire(blocking=False)
        with gpu(4, timeout=0) as fourth:
            assert fourth.permit == 4
            assert not gpu(4, model=Elsewhere).acquire(blocking=False)


def test_fewer_permits_hold_when_the_holders_beyond_them_have_left(table, pool):
    first, second, third, fourth = held_together(4)
    # while two are held, nobody gets one of two
    third.release()
    fourth.release()
    assert not gpu(2).acquire(blocking=False)
    lowered = gpu(1)
    waiting = wait_in_line(pool, lowered, timeout=60)
    # a waiter for fewer is not handed a permit beyond them
    second.release()
    time.sleep(0.3)
    assert not waiting.done()
    with gpu(2, timeout=0) as again:
        assert again.permit == 2
        assert not gpu(2, model=Elsewhere).acquire(blocking=False)
    first.release()
    assert waiting.result(60)
    assert lowered.permit == 1
    lowered.release()


@pytest.mark.real("embedded")
def test_forked_child_takes_what_its_parent_does_not_hold(table):
    with Mutex.any_of(["a", "b"]) as mutex, gpu(2) as semaphore:

        def child():
            assert (mutex.held, semaphore.held) == (False, False)
            return [each.acquire(blocking=False) and each.key for each in (mutex, semaphore)]

        taken = {*forked(child), mutex.key, semaphore.key}
        assert taken == {*mutex.keys, *semaphore.keys}
        assert mutex.held
        assert semaphore.held
