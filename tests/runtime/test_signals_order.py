"""Signals come in the order in which things happened, whatever threads and receivers do."""

import os
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from unittest.mock import Mock

import pytest
from operations_by_hand import Driven
from processes import refusing
from signal_receivers import OnLost, Slow, hearing
from this_process import current_process, forget_everything
from two_clients import held
from waits import until

from dev.faultproxy import Fault, after, refuse, throttle, through
from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError, MutexNotHeldError, signals
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.renew import renew
from pynamodb_mutex._lock.runtime import notifications, run_on_thread
from pynamodb_mutex._lock.runtime.notifications import deliver


def course(heard, key=""):
    """The signals of a key, without the renewals that may come at any time."""
    return [
        "won back" if event.fields.get("won_back") else event.name
        for event in heard.events
        if key in ("", event.fields["key"])
        and (event.name != "renewed" or event.fields["won_back"])
    ]


@pytest.fixture
def lost(scene, clock, heard):
    """A lock whose lease has ended, as was reported although nothing renews it."""
    mutex = held(scene.mutex(auto_renew=False))
    clock.advance(31)
    assert mutex.lost
    event = heard.wait("lost")
    assert event.thread.name == "pynamodb-mutex-lost"
    assert event.fields["loss"] is Loss.EXPIRED
    assert event.fields["held_for"] >= 0
    return mutex


@pytest.mark.parametrize("several", [False, True])
def test_win_back_is_reported_after_the_loss(keys, clock, heard, several):
    lock = held((keys.group if several else keys.scene.mutex)(auto_renew=False))
    with refusing() as refusals:
        # the threads that report losses start late
        refusals.all("mutex-lost")
        for _ in range(2):
            clock.advance(31)
            assert lock.lost
            lock.renew()
            assert lock.held
        assert refusals.refused
    lock.release()
    for key in keys.keys if several else [keys.scene.key]:
        until(lambda k=key: len(course(heard, k)) == 6)
        assert course(heard, key) == ["acquired", *["lost", "won back"] * 2, "released"]


def test_end_is_reported_after_a_loss_whose_receiver_is_slow(scene, clock, heard):
    slow = Slow(scene.key)
    other = Mutex.for_key(f"{scene.key}.other", model=scene.here, auto_renew=False)
    with signals.lost.connected_to(slow):
        mutex = held(scene.mutex(auto_renew=False))
        clock.advance(31)
        assert mutex.lost
        assert slow.come.wait(60)
        # the receiver delays only what happens to the same acquisition later
        with other:
            mutex.renew()
            mutex.release()
            assert not mutex.held
        assert heard.keys("released") == [other.key]
        slow.go.set()
        until(lambda: scene.key in heard.keys("released"))
    assert course(heard, scene.key) == ["acquired", "lost", "won back", "released"]


def test_win_back_by_a_renewal_that_was_overtaken_is_reported(lost, heard):
    held = lost._latest.whole
    earlier, later = Driven(renew(held)), Driven(renew(held))
    requests = [driven.step().request for driven in (earlier, later)]
    # the later one is applied first, and refuses the earlier one
    applied, refused = requests[1].send(), requests[0].send()
    later.step(applied)
    assert lost.held
    earlier.step(refused)
    heard.wait("renewed")
    assert course(heard) == ["acquired", "lost", "won back"]
    lost.release()


def test_interrupted_receiver_does_not_keep_back_what_comes_after_it(scene, lost, heard):
    slow = Slow(scene.key)

    def interrupted(sender, **fields):
        if fields["won_back"]:
            slow(sender, **fields)
            raise KeyboardInterrupt

    until(lambda: lost._latest.delivery == "none")
    with signals.renewed.connected_to(interrupted, scene.here), ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(lost.renew)
        assert slow.come.wait(60)
        lost.release()
        slow.go.set()
        assert isinstance(renewing.exception(60), KeyboardInterrupt)
    # receivers are called in no order: this one may have heard of the win-back before the other raised
    reported = [each for each in course(heard) if each != "won back"]
    assert reported == ["acquired", "lost", "released"]


@pytest.mark.parametrize("writes", [False, True])
def test_detach_that_wins_the_lock_back_reports_it(scene, heard, writes):
    """Also if a receiver writes under the lock, which must not hang."""

    def write(sender, **fields):
        if fields["key"] == scene.key:
            with suppress(MutexLostError):
                mutex.save_data("mine")

    # as the renewal of `detach` is under way, the lease ends
    mutex = held(scene.mutex(lease=3, auto_renew=False))
    scene.proxy.next(after(lambda: until(lambda: mutex.lost)), op="renew")
    with ExitStack() as stack:
        for signal in (signals.lost, signals.renewed) if writes else ():
            stack.enter_context(signal.connected_to(write))
        ticket = mutex.detach(lease=60)
        heard.wait("handed_over")
    assert course(heard) == ["acquired", "danger", "lost", "won back", "handed_over"]
    Mutex.attach(ticket, model=scene.here).release()


@pytest.mark.parametrize("several", [False, True])
def test_lease_that_ends_before_acquire_returns_is_no_reported_loss(keys, clock, heard, several):
    calls, scene = [], keys.scene
    make = keys.group if several else scene.mutex
    lock = make(auto_renew=False, on_lost=calls.append)
    assert not lock.locked()
    op = "TransactWriteItems" if several else "acquire"
    scene.proxy.next(after(lambda: clock.advance(31)), op=op)
    assert lock.acquire(blocking=False)
    assert (lock.held, lock.loss) == (True, None)
    lock.release()
    until(lambda: "released" in course(heard))
    assert set(course(heard)) == {"acquired", "released"}
    assert calls == []
    assert not [key for _, key in current_process()._holders if key.startswith(scene.key)]


# -- receivers -------------------------------------------------------------------------------------


def test_loss_before_acquired_is_emitted_is_reported_though_nobody_receives_that(
    scene, monkeypatch
):
    """As of a lock that is handed over, and lost before the thread that waited for it runs again."""
    losses, emit = [], HeldClaim.emit_acquired

    def lost_already(claim, *args):
        claim.lose(Loss.EXPIRED)
        emit(claim, *args)

    def receive(sender, **fields):
        losses.append(fields["loss"])

    monkeypatch.setattr(HeldClaim, "emit_acquired", lost_already)
    with signals.lost.connected_to(receive, scene.here):
        assert scene.mutex().acquire()
        until(lambda: losses == [Loss.EXPIRED])


def test_receiver_that_raises_hurts_neither_the_lock_nor_others_nor_threads(scene, heard, caplog):
    def failures():
        return [r for r in caplog.records if "a receiver of the signal" in r.getMessage()]

    # that would end a thread of the library's
    ends, fails = Mock(side_effect=SystemExit), Mock(side_effect=ValueError)
    failing = {"acquired": fails, "renewed": ends, "lost": ends, "released": fails}
    with ExitStack() as stack:
        for name, receiver in failing.items():
            stack.enter_context(getattr(signals, name).connected_to(receiver, scene.here))
        second = stack.enter_context(hearing(scene.key))
        with scene.mutex() as mutex:
            for count in (1, 2):
                mutex.renew()
                second.wait("renewed", count)
        with pytest.raises(MutexLostError), mutex:
            scene.force()
        second.wait("lost")
        heard.wait("lost")
        # each is logged after it was raised, the last one on a thread of its own
        until(lambda: len(failures()) == 6)
        assert (ends.call_count, fails.call_count) == (3, 3)
    assert heard.names == second.names
    for name in failing:
        assert any(name in record.getMessage() for record in failures()), name
    assert {record.lock_key for record in failures()} == {scene.key}


def test_log_filter_that_raises_hurts_neither_locks_nor_threads(
    scene, heard, clock, caplog, capsys
):
    """As one that asks a web framework for the request, on a thread that serves none."""
    on_lost, lives = OnLost(), held(scene.mutex())
    lost = held(Mutex.for_key("lost", model=scene.here, auto_renew=False, on_lost=on_lost))

    def raises(record):
        raise RuntimeError("no request")

    # what it is raised about is logged, on the thread that sends all signals of renewals
    fails = Mock(side_effect=RuntimeError)
    with caplog.filtering(raises), signals.renewed.connected_to(fails):
        clock.advance(11)
        for count in range(1, 10):  # more than there are workers
            scene.proxy.next(refuse("ValidationException"), op="renew")
            clock.advance(1)
            until(lambda: lives.remaining > 25)
            heard.wait("renewed", count)
            clock.advance(9)
        assert on_lost.wait()[0] is lost
        assert "no request" in capsys.readouterr().err
    lives.release()


def test_slow_log_delays_neither_renewals_nor_the_report_of_a_loss(scene, heard, caplog):
    lives, on_lost = held(scene.mutex()), OnLost()
    key = f"{scene.key}.lost"
    held(Mutex.for_key(key, model=scene.here, lease=2, max_hold=0.1, on_lost=on_lost))

    def blocks(record):
        time.sleep(60)
        return True

    with caplog.filtering(blocks):
        time.sleep(45)
        assert (len(on_lost.calls), heard.keys("lost")) == (1, [key])
    lives.release()


def test_slow_log_of_failed_renewals_delays_no_renewal(scene, caplog):
    mutexes = [held(Mutex.for_key(f"{scene.key}.{n}", model=scene.here)) for n in range(3)]

    def blocks(record):
        time.sleep(60)
        return True

    with caplog.filtering(blocks):
        scene.proxy.always(throttle())
        time.sleep(15)
        scene.proxy.clear()
        time.sleep(30)
        assert [mutex.held for mutex in mutexes] == [True] * 3
    for mutex in mutexes:
        mutex.release()


def test_signal_that_cannot_be_sent_hurts_nothing(scene, heard, monkeypatch, caplog):
    async def receiver(sender, **fields):
        pass

    mutex = scene.mutex()
    with signals.acquired.connected_to(receiver, scene.here), mutex:
        pass
    assert "a coroutine function cannot receive signals" in caplog.text
    heard.events.clear()
    with signals.acquired.muted(), mutex:
        pass
    # blinker itself fails, for its tables have changed meanwhile
    monkeypatch.setattr(signals.acquired, "receivers_for", Mock(side_effect=RuntimeError))
    with mutex:
        pass
    assert "acquired of" in caplog.text
    assert heard.names == ["released"] * 2


def test_interrupted_receiver_leaves_no_lock_behind(scene, keys):
    interrupted = Mock(side_effect=KeyboardInterrupt)
    for lock in (scene.mutex(), keys.group()):
        with signals.acquired.connected_to(interrupted), pytest.raises(KeyboardInterrupt):
            lock.acquire()
        assert not lock.held
        assert not lock.locked()
    assert interrupted.call_count == 2


def test_slow_receiver_delays_neither_renewals_nor_the_report_of_a_loss(scene, heard, clock):
    slow, on_lost = Slow(scene.key), OnLost()
    with signals.renewed.connected_to(slow), signals.lost.connected_to(slow):
        mutex = held(scene.mutex(on_lost=on_lost))
        other = held(Mutex.for_key(f"{scene.key}.other", model=scene.here))
        clock.advance(11)
        assert slow.come.wait(60)
        for _ in range(3):  # more than may be under way for one lock
            until(lambda: min(mutex.remaining, other.remaining) > 25)
            clock.advance(10.5)
        until(lambda: min(mutex.remaining, other.remaining) > 25)
        scene.force()
        clock.advance(10.5)
        on_lost.wait()
        heard.wait("lost")
        assert other.held
        # nor that of another
        scene.there.force_release(other.key)
        with pytest.raises(MutexLostError):
            other.renew()
        until(lambda: other.key in heard.keys("lost"))
        slow.go.set()


def test_renewals_are_dropped_when_a_receiver_is_slow(scene, heard, monkeypatch, caplog):
    monkeypatch.setattr(notifications, "MOST_UNDELIVERED", 2)
    slow = Slow(scene.key)
    with scene.mutex() as mutex, signals.renewed.connected_to(slow):
        mutex.renew()
        assert slow.come.wait(60)
        for _ in range(4):
            mutex.renew()
        assert caplog.text.count("a receiver is too slow: renewed") == 2
        slow.go.set()
        heard.wait("renewed", 3)


@pytest.mark.real("embedded")
def test_receiver_that_forks_ends_the_emitting_in_the_child(table):
    calls = []
    me = os.getpid()

    def fork(sender, **_):
        if os.getpid() != me:
            os._exit(9)  # emitted in a child
        child = os.fork()
        if child:
            calls.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    fork_too = partial(fork)
    with signals.acquired.connected_to(fork), signals.acquired.connected_to(fork_too):
        Mutex.for_key("a").acquire()
        if os.getpid() != me:
            os._exit(0)
    assert calls == [0, 0]


def test_engine_that_is_left_ends_the_emitting(table):
    calls = []

    def leave(sender, **_):
        calls.append(1)
        forget_everything()

    leave_too = partial(leave)
    with signals.acquired.connected_to(leave), signals.acquired.connected_to(leave_too):
        Mutex.for_key("a").acquire()
    assert calls == [1]
    assert LockItem.force_release("a")


# -- drawn interleavings ---------------------------------------------------------------------------

RIGHT = re.compile(
    "acquired,(lost,won back,)*(?:(?P<lost>lost,)|(?P<ended>released,|handed_over,)|(?P<held>))$"
)


@pytest.mark.parametrize("receivers_do", ["note", "fail", "renew", "release"])
def test_signals_come_in_order_however_threads_interleave(
    scene, clock, pool, monkeypatch, receivers_do
):
    """Requests, deliveries and receivers take drawn times, in which other threads go on."""
    chance = random.Random(receivers_do)

    def rest():
        # what goes wrong needs few changes of threads as a rule, but at the wrong moments
        time.sleep(chance.choice((0.0, chance.random())))

    def meet(exchange):
        rest()
        reply = exchange.apply("drawn")
        rest()
        exchange.answer(reply)

    monkeypatch.setattr(run_on_thread, "deliver", lambda *args: rest() or deliver(*args))
    scene.proxy.always(Fault("drawn", meet))
    here = through(scene.proxy, scene.there, read_timeout=1000)  # longer than all pauses
    calls = {
        "pause": lambda mutex: clock.advance(31) or mutex.lost,
        "force": lambda mutex: scene.there.force_release(mutex.key),
        "renew": lambda mutex: mutex.renew(90),  # of which something is left after a pause
        "release": lambda mutex: mutex.release(),
        "detach": lambda mutex: mutex.detach(lease=90),
        "note": lambda mutex: None,
        "fail": lambda mutex: {}["a receiver's own"],
    }
    for round_ in range(250):
        mutex = Mutex.for_key(f"{scene.key}-{round_}", model=here, auto_renew=False)
        reported = []

        def receive(name, sender, *, key, won_back=False, mutex=mutex, reported=reported, **_):
            if key == mutex.key:
                rest()
                reported.append("won back" if won_back else name)
                rest()
                if name != "renewed" or won_back:  # others come in their own time
                    calls[receivers_do](mutex)

        def do(what, mutex=mutex):
            rest()
            with suppress(MutexNotHeldError):
                calls[what](mutex)

        work = chance.choices(
            ("pause", "pause", "force", "renew", "release", "detach"), k=chance.randint(1, 5)
        )
        with ExitStack() as stack:
            for name in ("acquired", "lost", "renewed", "released", "handed_over"):
                receiver = partial(receive, name)
                stack.enter_context(getattr(signals, name).connected_to(receiver, here))
            tasks = [pool.submit(mutex.acquire)]
            claim = until(lambda mutex=mutex: mutex._latest)
            tasks += [pool.submit(do, what) for what in work]
            for task in tasks:
                task.result(60)
            until(lambda claim=claim: claim.delivery == "none" and not claim.events)
        end = "ended" if claim.belief.state == "released" else "held"
        end = "lost" if claim.belief.loss is not None else end
        found = RIGHT.match("".join(f"{each}," for each in reported if each != "renewed"))
        assert found, (round_, work, reported)
        assert found[end] is not None, (round_, work, reported)
        assert reported[0] == "acquired"


def test_thread_that_acquires_does_not_deliver_what_another_thread_is_delivering(
    scene, monkeypatch, caplog
):
    """There is no receiver of `acquired`; the log of it is slow, and meanwhile the lock is lost, and won back."""
    caplog.set_level("DEBUG", "pynamodb_mutex")
    slow, mutex, order, threads = Slow(scene.key), scene.mutex(auto_renew=False), [], []

    def record_slowly(event, record_of=notifications._record_of):
        if event.name == "acquired":
            time.sleep(40)
            assert slow.come.wait(60)
            threads.append(threading.Thread(target=mutex.renew))
            threads[0].start()
            time.sleep(1)
        return record_of(event)

    def receive_loss(sender, **fields):
        slow(sender, **fields)
        order.append("lost")

    def receive_renewal(sender, **_):
        order.append("won back")

    monkeypatch.setattr(notifications, "_record_of", record_slowly)
    with (
        signals.lost.connected_to(receive_loss, scene.here),
        signals.renewed.connected_to(receive_renewal, scene.here),
    ):
        mutex.acquire()
        assert order == []
        slow.go.set()
        until(lambda: len(order) == 2)
    assert order == ["lost", "won back"]
    threads[0].join()
    mutex.release()


def test_child_of_a_receiver_that_forks_does_not_deliver_renewals(scene, monkeypatch):
    """Another thread of the parent may have held the notifier's lock."""
    post = Mock()
    monkeypatch.setattr(current_process().notifier, "post", post)
    mutex = scene.mutex()

    def fork(sender, **fields):
        mutex.renew()
        current_process().inherited = True

    with signals.acquired.connected_to(fork, scene.here), signals.renewed.connected_to(Mock()):
        mutex.acquire()
    current_process().inherited = False
    assert post.call_args_list == []
    mutex.release()
