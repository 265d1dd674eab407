"""Each acquisition's signals come in the order in which things happened, whatever the threads do."""

import random
import re
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import pytest
from driving import Driven
from hearing import until

from dev.faultproxy import after
from pynamodb_mutex import Mutex, MutexLostError, MutexNotHeldError, signals
from pynamodb_mutex._dynamodb.store import Request
from pynamodb_mutex._operations.renew import renew
from pynamodb_mutex._runtime import run_on_thread
from pynamodb_mutex._runtime.process import current_process


def course(heard):
    """The signals that were heard, without the renewals that may come at any time."""
    return [
        "won back" if event.told.get("won_back") else event.name
        for event in heard.events
        if event.name != "renewed" or event.told["won_back"]
    ]


def test_win_back_by_a_renewal_that_was_overtaken_is_reported(scene, clock, heard):
    lost = scene.mutex(auto_renew=False)
    assert lost.acquire()
    clock.advance(31)
    assert lost.lost
    held = lost._latest.together
    earlier, later = Driven(renew(held)), Driven(renew(held))
    requests = [driven.step().request for driven in (earlier, later)]
    # the later one is applied first, and refuses the earlier one
    applied, refused = requests[1].send(), requests[0].send()
    later.step(applied)
    assert lost.held
    earlier.step(refused)
    heard.wait("renewed")
    assert course(heard) == ["acquired", "lost", "won back"]


@pytest.mark.parametrize("writes", [False, True])
def test_detach_that_wins_the_lock_back_reports_it(scene, heard, writes):
    """Also if a receiver writes under the lock, which must not hang."""

    def write(sender, **told):
        if told["key"] == scene.key:
            with suppress(MutexLostError):
                mutex.save_data("mine")

    # as the renewal of `detach` is under way, the lease ends
    mutex = scene.mutex(lease=3, auto_renew=False)
    assert mutex.acquire()
    scene.proxy.next(after(lambda: until(lambda: mutex.lost)), op="renew")
    with ExitStack() as stack:
        for signal in (signals.lost, signals.renewed) if writes else ():
            stack.enter_context(signal.connected_to(write))
        ticket = mutex.detach(lease=60)
        heard.wait("handed_over")
    assert course(heard) == ["acquired", "lost", "won back", "handed_over"]
    Mutex.attach(ticket, model=scene.here).release()


@pytest.mark.parametrize("several", [False, True])
def test_claim_whose_lease_ends_before_it_is_handed_out_is_not_reported_as_lost(
    scene, keys, clock, heard, several
):
    calls = []
    make = keys.group if several else scene.mutex
    lock = make(auto_renew=False, on_lost=calls.append)
    assert not lock.locked()
    op = "TransactWriteItems" if several else "acquire"
    scene.proxy.next(after(lambda: clock.advance(31)), op=op)
    assert lock.acquire(blocking=False)
    assert lock.held
    assert lock.loss is None
    lock.release()
    until(lambda: "released" in course(heard))
    assert set(course(heard)) == {"acquired", "released"}
    assert calls == []
    assert not [key for _, key in current_process()._holders if key.startswith(scene.key)]


def nothing(mutex):
    """Let a receiver do nothing else."""


def fail(mutex):
    raise LookupError("a receiver's own")


def interrupt(mutex):
    raise KeyboardInterrupt


def renew_for_long(mutex):
    mutex.renew(lease=90)


def drawn_calls(scene, pool, pause, receivers_do):
    """Let threads use a lock at random; return it, and what was reported of it."""
    reported = []
    key = f"{scene.key}.{uuid.uuid4()}"
    make = partial(Mutex.for_key, key, model=scene.here, lease=3, auto_renew=False)
    giver, mutex = make(owner="giver"), make(owner="taker")

    def run(call):
        with pause(), suppress(MutexLostError, MutexNotHeldError, KeyboardInterrupt):
            call()

    def receive(name, sender, *, owner, won_back=False, **told):
        is_ours = (told["key"], owner) == (key, "taker")
        if is_ours and name == "renewed" and not won_back:
            assert reported
        elif is_ours:
            with pause():
                reported.append("won back" if won_back else name)
            receivers_do(mutex)

    calls = [
        *(partial(time.sleep, 3), partial(time.sleep, 3), partial(mutex.detach, 90)),
        *(partial(renew_for_long, mutex), mutex.release),
        *(partial(model.force_release, key) for model in (scene.here, scene.there)),
    ]
    with ExitStack() as stack:
        for name in ("acquired", "lost", "renewed", "released", "handed_over"):
            receiver = partial(receive, name)
            stack.enter_context(getattr(signals, name).connected_to(receiver, scene.here))
        giver.acquire()
        running = [pool.submit(run, mutex.acquire), pool.submit(run, giver.release)]
        time.sleep(random.random() * random.choice([0, 1, 3]))
        running += [
            pool.submit(run, call) for call in random.choices(calls, k=random.randint(1, 5))
        ]
        for each in running:
            each.result(600)
        time.sleep(9)
    return mutex, reported


RIGHT = re.compile(
    "acquired,(lost,won back,)*(?:(?P<lost>lost,)|(?P<ended>released,|handed_over,)|(?P<held>))$"
)


@pytest.mark.parametrize("receivers_do", [nothing, fail, interrupt, renew_for_long, Mutex.release])
def test_signals_come_in_order_however_threads_interleave(scene, pool, monkeypatch, receivers_do):
    """What goes wrong needs few pauses of a thread as a rule, but at the wrong moments."""
    chance = 0.0

    @contextmanager
    def pause():
        """Sleep before the block or after it, or neither."""
        time.sleep(random.random() * (random.random() < chance))
        yield
        time.sleep(random.random() * (random.random() < chance))

    def paused(call, *args):
        with pause():
            return call(*args)

    send, sleep = Request.send, run_on_thread.ThreadSleeper.sleep
    monkeypatch.setattr(Request, "send", lambda *args: paused(send, *args))
    monkeypatch.setattr(run_on_thread.ThreadSleeper, "sleep", lambda *args: paused(sleep, *args))
    monkeypatch.setattr(run_on_thread, "deliver", partial(paused, run_on_thread.deliver))
    for _ in range(150):
        chance = random.choice([0.02, 0.1, 0.3])
        mutex, reported = drawn_calls(scene, pool, pause, receivers_do)
        end = "lost" if mutex.lost else "held" if mutex.held else "ended"
        found = RIGHT.match("".join(f"{name}," for name in reported))
        assert found, reported
        assert found[end] is not None, reported
