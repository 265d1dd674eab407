"""`release_all`, the end of the interpreter, and locks that nobody can release any more."""

import gc
import re
import signal
import threading
import time
import warnings

import pytest
from kinds_of_locks import MAIN, PASSED_ON, SUBJECTS, of
from processes import refusing
from signal_receivers import OnLost
from this_process import current_process
from two_clients import held
from waits import until

from dev.faultproxy import deny, stall, throttle, through
from pynamodb_mutex import (
    Loss,
    Mutex,
    MutexError,
    MutexLostError,
    MutexNotHeldError,
    release_all,
)
from pynamodb_mutex._admin.release_all import release_at_exit
from pynamodb_mutex._lock.operations.effects import Wait
from pynamodb_mutex._lock.runtime.run_on_thread import execute

# -- release_all -----------------------------------------------------------------------------------


@of(*SUBJECTS)
def test_release_all_releases_each_kind_of_lock_without_an_error_in_its_block(subject):
    on_lost = OnLost()
    if subject.name not in {"task", *PASSED_ON}:
        with subject.lock(on_lost=on_lost):
            assert release_all() == []
    lock = subject.held(on_lost=on_lost)
    assert release_all(timeout=1.5) == []
    assert (lock.held, lock.lost, lock.loss) == (False, False, None)
    with pytest.raises(MutexNotHeldError):
        lock.release()
    assert not on_lost.calls
    assert release_all() == []


def test_locks_of_all_threads_end_however_often_they_were_entered(scene, pool):
    mutex = held(scene.mutex(reentrant=True))
    held(mutex)
    others = [Mutex.for_key(f"{scene.key}-{n}", model=scene.here) for n in range(20)]
    list(pool.map(held, others))
    assert release_all() == []
    assert not any(lock.held for lock in (mutex, *others))
    assert scene.row.expires_at is None
    assert len(scene.proxy.of("release")) == 21


def test_a_waiting_thread_is_not_handed_the_lock_and_may_acquire_it_next(scene, pool):
    mutex = held(scene.mutex())
    waiting = pool.submit(held, scene.mutex())
    until(lambda: mutex._latest.contender.queue.turns)
    assert release_all() == []
    next_one = waiting.result()
    assert "hand_over" not in scene.proxy.kinds()
    assert next_one.held
    next_one.release()


@pytest.mark.parametrize("in_block", [False, True])
def test_holder_of_a_row_that_does_not_know_of_it_writes_nothing(row_scene, in_block):
    lock = row_scene.here.locked(row_scene.key)
    row = lock.__enter__() if in_block else held(lock).row
    assert release_all() == []
    with pytest.raises(MutexNotHeldError):
        row.save()


@of(*MAIN)
def test_lock_that_was_lost_is_reported_with_its_loss_and_the_takers_stays(subject):
    lock = subject.held()
    subject.forced_and_taken()
    process = current_process()
    ours = [each for each in process.all_held() if lock._latest in (each, *each.claims)]
    assert len(ours) == 1
    report = release_all()
    assert {key for key, _ in report} == {part.key for part in subject.parts(lock)}
    for _, error in report:
        assert isinstance(error, MutexLostError)
        assert error.loss is Loss.TAKEN
    # it was lost before: not reported once more
    assert release_all() == []


@of("one lock", "several keys")
def test_failures_are_reported_and_the_others_are_released_all_the_same(subject):
    lock, other = subject.held(), Mutex.for_key("other", model=subject.scene.there)
    held(other)
    subject.proxy.always(deny(), **subject.on("release"))
    subject.proxy.always(deny(), op="release")
    report = release_all()
    assert [key for key, _ in report] == [part.key for part in subject.parts(lock)]
    assert all("AccessDenied" in str(error) for _, error in report)
    assert (lock.held, other.held, Mutex.for_key("other", model=subject.scene.there).locked()) == (
        False,
        False,
        False,
    )


def test_release_all_returns_in_time_if_requests_hang(table, proxy, clock):
    here = through(proxy, table, read_timeout=100)
    locks = [held(Mutex.for_key(f"k{n}", model=here)) for n in range(20)]
    proxy.always(stall(), op="release")
    report = []
    began = threading.Thread(target=lambda: report.extend(release_all(timeout=2)))
    began.start()
    until(lambda: len(proxy.of("release")) == 16)
    clock.advance(3)
    clock.advance(100)
    began.join()
    said = dict(report)
    assert set(said) == {lock.key for lock in locks}
    assert "not released within 2 s" in str(said["k19"])


def test_without_time_nothing_is_released_and_all_is_reported(scene):
    mutex = held(scene.mutex())
    ((key, error),) = release_all(timeout=0)
    assert (key, type(error), mutex.held) == (scene.key, MutexError, True)
    mutex.release()


def test_locks_that_have_expired_are_not_the_matter_of_release_all(scene, clock):
    held(scene.mutex(auto_renew=False))
    clock.advance(31)
    assert release_all() == []
    assert scene.proxy.of("release") == []


def test_lock_that_its_holder_releases_meanwhile_is_not_reported(scene):
    mutex = held(scene.mutex())
    process = current_process()
    all_held = process.all_held()
    mutex.release()
    process.all_held = lambda: all_held
    try:
        assert release_all() == []
    finally:
        del process.all_held


def test_release_all_works_where_the_system_refuses_threads(scene):
    others = [held(Mutex.for_key(f"{scene.key}-{n}", model=scene.here)) for n in range(3)]
    with refusing() as refusals:
        refusals.left = 1000
        assert release_all() == []
    assert "pynamodb-mutex-release" in refusals.refused
    assert not any(lock.held for lock in others)


def test_inside_a_step_locks_are_released_right_after_it_and_reported_as_not_released(scene):
    mutex, reports = held(scene.mutex(reentrant=True)), []
    mutex.acquire()
    began = time.monotonic()
    scene.proxy.always(throttle(), op="release", when=lambda _: time.monotonic() < began + 4)

    def interrupted():
        signal.raise_signal(signal.SIGUSR1)
        yield Wait(0.0)

    before = signal.signal(signal.SIGUSR1, lambda *_: reports.append(release_all()))
    try:
        execute(current_process(), interrupted())
    finally:
        signal.signal(signal.SIGUSR1, before)
    (((key, error),),) = reports
    said = "it is released as soon as the step of this library ends that was interrupted"
    assert (key, error.key, str(error)) == (scene.key, scene.key, said)
    assert (mutex.held, scene.row.expires_at) == (False, None)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), ("5", TypeError)])
def test_timeout_of_release_all_is_a_duration(timeout, error):
    with pytest.raises(error, match="timeout must"):
        release_all(timeout)


# -- the end of the interpreter --------------------------------------------------------------------


def test_what_is_held_and_renewed_at_the_end_is_released_with_a_warning(scene, caplog):
    mutex = held(scene.mutex())
    left = held(Mutex.for_key("left to expire", model=scene.here, auto_renew=False))
    scene.proxy.next(deny(), op="release")
    release_at_exit()
    released, not_released = caplog.messages[0], caplog.messages[-1]
    assert released == f"released at the end of the process, for nobody had: '{scene.key}'"
    assert re.match(f"'{scene.key}' was not released: .*AccessDenied", not_released)
    assert (mutex.held, left.held) == (False, True)
    caplog.clear()
    release_at_exit()
    assert not caplog.text
    left.release()


# -- locks that nobody can release any more --------------------------------------------------------


def lose_the_object(scene, **options):
    held(scene.mutex(**options))
    gc.collect()


def test_mutex_that_is_collected_while_it_is_held_is_a_warning_with_its_key(scene):
    said = f"'{scene.key}' is held, and the Mutex that acquired it is gone"
    with pytest.warns(ResourceWarning, match=said):
        lose_the_object(scene)


def test_each_key_of_a_group_that_is_collected_is_named_unless_its_mutex_is_kept(scene):
    kept = Mutex.for_key(f"{scene.key}-kept", model=scene.here)
    keys = [kept, f"{scene.key}-a", f"{scene.key}-b"]
    with pytest.warns(ResourceWarning) as warned:
        held(Mutex.for_keys(keys, model=scene.here))
    named = [str(each.message).split("'")[1] for each in warned]
    assert sorted(named) == [f"{scene.key}-a", f"{scene.key}-b"]


def detached(scene):
    return held(scene.mutex()).detach()


def released(scene):
    held(scene.mutex()).release()


def expired(scene):
    mutex = held(scene.mutex(auto_renew=False))
    mutex._latest.own.term = type(mutex._latest.own.term)()


def refused(scene):
    with pytest.raises(TypeError):
        scene.mutex(lease="1")


def generator(scene):
    mutex = scene.mutex()

    def inside():
        with mutex:
            yield

    # in one circle, in which the collector comes to the mutex first
    mutex.waits = inside()
    next(mutex.waits)


def entered_again(scene):
    outer = held(scene.mutex(reentrant=True))
    inner = held(scene.mutex(reentrant=True))
    inner.release()
    return outer


def at_the_end(scene):
    mutex = held(scene.mutex())
    mutex.__del__(_is_ending=lambda: True)
    mutex.release()


@pytest.mark.parametrize(
    "use", [detached, released, expired, refused, generator, entered_again, at_the_end]
)
def test_there_is_no_warning_for_what_can_or_need_not_be_released(scene, use):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept = use(scene)
        gc.collect()
    if isinstance(kept, Mutex):
        kept.release()


def warned(caplog):
    return [r.getMessage() for r in caplog.records if "stays held" in r.getMessage()]


def hold_on_a_thread(mutex):
    thread = threading.Thread(target=mutex.acquire)
    thread.start()
    thread.join()


ASKS = {
    "mutex": lambda scene, **options: scene.mutex(**options),
    "fair": lambda scene, **options: scene.mutex(fair=True, **options),
    "group": lambda scene, **options: Mutex.for_keys(
        [scene.key, f"{scene.key}-b"], model=scene.here, **options
    ),
    "any of": lambda scene, **options: Mutex.any_of([scene.key], model=scene.here, **options),
}


@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS)
def test_wait_for_a_lock_of_a_thread_that_has_ended_is_logged_once(scene, caplog, asks):
    mutex = scene.mutex(owner="ended")
    hold_on_a_thread(mutex)
    assert not asks(scene, timeout=5).acquire()
    (said,) = warned(caplog)
    assert said == (
        f"'{scene.key}' is held by 'ended', a thread or task of this process that has ended without "
        "releasing it: it stays held as long as it is renewed"
    )
    assert not asks(scene, timeout=0).acquire()
    assert len(warned(caplog)) == 1
    mutex.release()


def test_wait_for_a_lock_whose_mutex_is_gone_is_logged(scene, caplog, pool):
    pool.submit(lose_the_object, scene, owner="gone").result()
    assert not scene.mutex(timeout=5).acquire()
    (said,) = warned(caplog)
    assert "is held by 'gone', by a mutex of this process that is gone" in said


def test_waits_that_can_end_are_not_logged(scene, caplog, pool):
    # its thread lives; it is not renewed; its block is left elsewhere
    mutex = scene.mutex()
    pool.submit(mutex.acquire).result()
    assert not scene.mutex(timeout=2).acquire()
    mutex.release()
    hold_on_a_thread(mutex := scene.mutex(auto_renew=False))
    assert not scene.mutex(timeout=2).acquire()
    mutex.release()
    entered = scene.mutex()
    thread = threading.Thread(target=entered.__enter__)
    thread.start()
    thread.join()
    assert not scene.mutex(timeout=2).acquire()
    entered.__exit__(None, None, None)
    assert warned(caplog) == []
