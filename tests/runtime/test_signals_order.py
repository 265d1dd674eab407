"""How signals are delivered: in the order in which things happened, whatever threads and receivers do."""

import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace

import pytest
from driving import Driven
from greenlet import getcurrent, greenlet
from hearing import OnLost, Slow, hearing, until
from refusals import refusing
from scene import held

from dev.faultproxy import after
from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError, MutexNotHeldError, signals
from pynamodb_mutex._dynamodb.answers import Answer
from pynamodb_mutex._operations.acquire import delivered
from pynamodb_mutex._operations.attach import detach
from pynamodb_mutex._operations.contender import Caller, Contender
from pynamodb_mutex._operations.effects import Send, Wait
from pynamodb_mutex._operations.events import LockEvent
from pynamodb_mutex._operations.held import Held, HeldClaim, State
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._operations.renew import renew
from pynamodb_mutex._operations.shared import Shared
from pynamodb_mutex._protocol.claim import Claim, OwnClaim
from pynamodb_mutex._runtime import notifications
from pynamodb_mutex._runtime.notifications import RECEIVERS, deliver
from pynamodb_mutex._runtime.process import current_process, forget_everything


def course(heard, key=""):
    """The signals of a key, without the renewals that may come at any time."""
    return [
        "won back" if event.told.get("won_back") else event.name
        for event in heard.events
        if key in event.told["key"] and (event.name != "renewed" or event.told["won_back"])
    ]


@pytest.fixture
def lost(scene, clock, heard):
    """A lock whose lease has ended, as was reported although nothing renews it."""
    mutex = held(scene.mutex(auto_renew=False))
    clock.advance(31)
    assert mutex.lost
    event = heard.wait("lost")
    assert event.thread.name == "pynamodb-mutex-lost"
    assert event.told["loss"] is Loss.EXPIRED
    assert event.told["held_for"] >= 0
    return mutex


# -- lost and won back -----------------------------------------------------------------------------


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
    heard.events = [event for event in heard.events if event.told["key"] == scene.key]
    assert course(heard) == ["acquired", "lost", "won back", "released"]


def test_win_back_by_a_renewal_that_was_overtaken_is_reported(lost, heard):
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
    lost.release()


def test_interrupted_receiver_does_not_keep_back_what_comes_after_it(scene, lost, heard):
    slow = Slow(scene.key)

    def interrupted(sender, **told):
        if told["won_back"]:
            slow(sender, **told)
            raise KeyboardInterrupt

    until(lambda: not lost._latest.delivering)
    with signals.renewed.connected_to(interrupted, scene.here), ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(lost.renew)
        assert slow.come.wait(60)
        lost.release()
        slow.go.set()
        assert isinstance(renewing.exception(60), KeyboardInterrupt)
    # receivers are called in no order: this one may have heard of the win-back before the other raised
    reported = [each for each in course(heard) if each != "won back"]
    assert reported == ["acquired", "lost", "released"]


# -- detached, and answered late -------------------------------------------------------------------


@pytest.mark.parametrize("writes", [False, True])
def test_detach_that_wins_the_lock_back_reports_it(scene, heard, writes):
    """Also if a receiver writes under the lock, which must not hang."""

    def write(sender, **told):
        if told["key"] == scene.key:
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
    assert (lock.held, lock.loss) == (True, None)
    lock.release()
    until(lambda: "released" in course(heard))
    assert set(course(heard)) == {"acquired", "released"}
    assert calls == []
    assert not [key for _, key in current_process()._holders if key.startswith(scene.key)]


# -- receivers -------------------------------------------------------------------------------------


class Failing:
    """A receiver that raises, for one key and those that begin with it."""

    def __init__(self, key, error):
        self.key, self.error, self.count = key, error, 0

    def __call__(self, sender, **fields):
        if self.key in fields["key"]:
            self.count += 1
            raise self.error("a receiver's own")


def test_what_a_receiver_raises_hurts_neither_the_lock_nor_others_nor_our_threads(
    scene, heard, caplog
):
    def failures():
        return [r for r in caplog.records if "a receiver of the signal" in r.getMessage()]

    # that would end a thread of the library's
    ends, fails = Failing(scene.key, SystemExit), Failing(scene.key, ValueError)
    failing = {"acquired": fails, "renewed": ends, "lost": ends, "released": fails}
    with ExitStack() as stack:
        for name, receiver in failing.items():
            stack.enter_context(getattr(signals, name).connected_to(receiver))
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
        assert (ends.count, fails.count) == (3, 3)
    assert heard.names == second.names
    for name in failing:
        assert any(name in record.getMessage() for record in failures()), name
    assert {record.lock_key for record in failures()} == {scene.key}


def test_signal_that_cannot_be_sent_hurts_nothing(scene, heard, monkeypatch, caplog):
    async def receiver(sender, **fields):
        pass

    def changed(_):
        raise RuntimeError("changed during iteration")

    mutex = scene.mutex()
    with signals.acquired.connected_to(receiver, scene.here), mutex:
        pass
    assert "a coroutine function cannot receive signals" in caplog.text
    heard.events.clear()
    with signals.acquired.muted(), mutex:
        pass
    # blinker itself fails
    monkeypatch.setattr(signals.acquired, "receivers_for", changed)
    with mutex:
        pass
    assert "acquired of" in caplog.text
    assert heard.names == ["released"] * 2


def test_interrupted_receiver_leaves_no_lock_behind(scene, keys):
    failing = Failing(scene.key, KeyboardInterrupt)
    mutex, group = scene.mutex(), keys.group()
    for lock in (mutex, group):
        with signals.acquired.connected_to(failing), pytest.raises(KeyboardInterrupt):
            lock.acquire()
        assert not lock.held
        assert not lock.locked()
    assert failing.count == 2


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


def test_renewals_are_dropped_not_piled_up_when_a_receiver_is_slow(
    scene, heard, monkeypatch, caplog
):
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


def test_thread_that_shows_ends_when_there_is_nothing_to_show(scene, heard, monkeypatch):
    monkeypatch.setattr(notifications, "LINGER", 0.05)
    process = current_process()
    notifier = notifications.Notifier(process.threads)
    with scene.mutex() as mutex:
        for count in (1, 2):
            fields = {"expires_at": 1.0, "won_back": False}
            event = LockEvent("renewed", mutex._latest.contender, mutex._latest, fields)
            notifier.put(process, event)
            heard.wait("renewed", count)
            until(lambda: not notifier._runs)


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
#
# Operations and deliveries go on one at a time, from effect to effect and from receiver to receiver; a drawn one
# is next. So what is found can be played again.

LEASE = 30.0
LONG = 3 * LEASE
"""A renewal during which the process pauses has still something left of it."""


class Turns:
    """Lets tasks run, one at a time. Stands for the monitor, too: nobody waits for it, as no turn ends inside.

    Args:
        seed: Of what is chosen.
        stays: How likely the one that ran goes on. What goes wrong needs few changes as a rule, but at
            the wrong moments.
    """

    def __init__(self, seed, stays):
        self.tasks = []
        self.inside_monitor = 0
        self._main = getcurrent()
        self._random = random.Random(seed)
        self._stays = stays

    def spawn(self, run):
        """Add a task; it runs when it is its turn."""
        self.tasks.append(greenlet(run, self._main))

    def run(self):
        """Run all to their ends; raise what one of them raises."""
        task = None
        while left := [task for task in self.tasks if not task.dead]:
            if task not in left or self._random.random() > self._stays:
                task = self._random.choice(left)
            task.switch()

    def __enter__(self):
        self.inside_monitor += 1

    def __exit__(self, *_):
        self.inside_monitor -= 1

    def turn(self):
        """Let others run."""
        assert not self.inside_monitor
        self._main.switch()


class Model(LockItem):
    """The sender of the signals."""

    class Meta:
        table_name = "never asked"
        region = "us-east-1"


class Alone(Shared):
    """The state of a process of which nothing runs but what a play runs."""

    waits_for_threads = False


class Play:
    """One acquisition, what is done with it, and what is reported of it."""

    def __init__(self, turns, receivers_do):
        self.turns = turns
        self.time = 1000.0
        self.row = Claim(token="mine", version=1, expires_at=1.0, lease=LEASE)
        self.reported = []
        self._receivers_do = receivers_do
        self.shared = Alone(lambda: self.time, random.uniform, lambda: "f" * 30, RECEIVERS)
        self.shared.monitor = turns
        self.shared.threads = SimpleNamespace(
            put=lambda _, run: turns.spawn(run), start=lambda: None
        )
        self.shared.notifier = SimpleNamespace(put=self.put)
        options = Mutex.for_key("k", model=Model, lease=LEASE, auto_renew=False)._options
        contender = Contender(
            self.shared, current_process().store(Model), options, Caller(1, 1, "me")
        )
        self.claim = HeldClaim(contender, OwnClaim("mine", LEASE), self.row, {}, self.time)
        Held((self.claim,), is_group=False)
        self.claim.begin()

    def put(self, _, event):
        """As the notifier, which reports renewals in its own time."""
        assert "acquired" in self.reported

    def note(self):
        """Do nothing."""

    # -- what threads do

    def run(self, operation):
        """Run an operation; before and after each request it is another's turn."""
        resume, value = operation.send, None
        while True:
            self.shared.now = self.time
            try:
                effect = resume(value)
            except (StopIteration, MutexNotHeldError):
                effect = None
            outbox, self.shared.outbox = self.shared.outbox, []
            self.turns.turn()
            deliver(self.shared, outbox)
            if effect is None:
                return
            value = self.answer(effect) if isinstance(effect, Send) else None
            if isinstance(effect, Wait):
                self.time = max(self.time, min(effect.until, self.time + 1))
            self.turns.turn()

    def answer(self, send):
        values = send.request.kwargs["ExpressionAttributeValues"]
        numbers = [float(value["N"]) for value in values.values() if "N" in value]
        applied = self.row.token == "mine" and self.row.expires_at is not None
        is_renewal = "REMOVE" not in send.request.kwargs["UpdateExpression"]
        if applied and is_renewal:
            ends = [number for number in numbers if number > 10**9]
            applied = max(ends) > (self.row.expires_at or 0.0)
        if applied:
            self.row = self.row._replace(expires_at=max(numbers) if is_renewal else None)
        # as the row was
        answer = Answer({}, claim=self.row, error=None if applied else Exception("refused"))
        answer.sent = answer.received = self.time
        return answer

    def acquired(self):
        def announcing():
            self.claim.emit_acquired(0.0, 1)
            yield from delivered([self.claim], release, self.claim)

        self.run(announcing())

    def pause(self):
        self.time += LEASE + 1

        def noting():
            self.claim.note_end()
            yield Wait(0.0)

        self.run(noting())

    def force(self):
        self.row = Claim(token="forced-by-somebody", version=2)

    def renew(self):
        self.run(renew(self.claim.together, LONG))

    def release(self):
        with suppress(MutexNotHeldError):
            self.run(release(self.claim))

    def detach(self):
        self.run(detach(self.claim, LONG, None))

    # -- what receivers do besides

    def fail(self):
        raise LookupError("a receiver's own")

    def receiver(self, name):
        def receive(sender, **fields):
            self.turns.turn()
            self.reported.append("won back" if fields.get("won_back") else name)
            self.turns.turn()
            getattr(self, self._receivers_do)()

        return receive


RIGHT = re.compile(
    "acquired,(lost,won back,)*(?:(?P<lost>lost,)|(?P<ended>released,|handed_over,)|(?P<held>))$"
)


@pytest.mark.parametrize("receivers_do", ["note", "fail", "renew", "release"])
def test_signals_come_in_order_however_threads_interleave(receivers_do):
    for seed in range(250):
        chance = random.Random(seed)
        work = chance.choices(
            ("pause", "pause", "force", "renew", "release", "detach"), k=chance.randint(1, 5)
        )
        turns = Turns(seed, stays=chance.choice([0.0, 0.5, 0.8, 0.9, 0.95]))
        with ExitStack() as stack:
            play = Play(turns, receivers_do)
            for name in ("acquired", "lost", "renewed", "released", "handed_over"):
                signal = getattr(signals, name)
                stack.enter_context(signal.connected_to(play.receiver(name), sender=Model))
            turns.spawn(play.acquired)
            for what in work:
                turns.spawn(getattr(play, what))
            turns.run()
        belief = play.claim.belief
        end = "ended" if belief.state is State.RELEASED else "held"
        end = "lost" if belief.loss is not None else end
        reported = "".join(f"{name}," for name in play.reported)
        found = RIGHT.match(reported)
        assert found, (seed, work, reported)
        assert found[end] is not None, (seed, work, reported)
        assert play.claim.events == ()
