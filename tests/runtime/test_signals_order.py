"""Each acquisition's signals come in the order in which things happened, whatever the threads do."""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
from driving import Driven
from greenlet import getcurrent, greenlet
from hearing import Slow, until
from refusals import refusing

from dev.faultproxy import after
from pynamodb_mutex import LockItem, Mutex, MutexLostError, MutexNotHeldError, signals
from pynamodb_mutex._dynamodb.answers import Answer
from pynamodb_mutex._operations.acquire import delivered
from pynamodb_mutex._operations.attach import detach
from pynamodb_mutex._operations.contender import Caller, Contender
from pynamodb_mutex._operations.effects import Send, Wait
from pynamodb_mutex._operations.held import Held, HeldClaim, State
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._operations.renew import renew
from pynamodb_mutex._operations.shared import Shared
from pynamodb_mutex._protocol.claim import Claim, OwnClaim
from pynamodb_mutex._runtime.notifications import RECEIVERS, deliver
from pynamodb_mutex._runtime.process import current_process


@pytest.fixture
def delayed():
    """The threads that report losses start when the test calls this."""
    kept = []
    with refusing() as refusals:
        start = refusals.started

        def keep(thread):
            is_kept = thread.name.endswith("-lost") and not thread.name.endswith("-on-lost")
            (kept.append if is_kept else start)(thread)

        def go():
            for thread in kept:
                start(thread)
                thread.join(60)

        refusals.started = keep
        yield go


def course(heard, key=""):
    """The signals of a key, without the renewals that may come at any time."""
    return [
        "won back" if event.told.get("won_back") else event.name
        for event in heard.events
        if key in event.told["key"] and (event.name != "renewed" or event.told["won_back"])
    ]


@pytest.fixture
def lost(scene, clock, heard):
    """A lock whose lease has ended, as was reported."""
    mutex = scene.mutex(auto_renew=False)
    assert mutex.acquire()
    clock.advance(31)
    assert mutex.lost
    heard.wait("lost")
    return mutex


# -- lost and won back -----------------------------------------------------------------------------


@pytest.mark.parametrize("several", [False, True])
def test_win_back_is_reported_after_the_loss(keys, clock, delayed, heard, several):
    lock = (keys.group if several else keys.scene.mutex)(auto_renew=False)
    assert lock.acquire()
    for _ in range(2):
        clock.advance(31)
        assert lock.lost
        lock.renew()
        assert lock.held
    delayed()
    lock.release()
    for key in keys.keys if several else [keys.scene.key]:
        until(lambda k=key: len(course(heard, k)) == 6)
        assert course(heard, key) == ["acquired", *["lost", "won back"] * 2, "released"]


def test_end_is_reported_after_a_loss_whose_receiver_is_slow(scene, clock, heard):
    slow = Slow(scene.key)
    other = Mutex.for_key(f"{scene.key}.other", model=scene.here, auto_renew=False)
    with signals.lost.connected_to(slow):
        mutex = scene.mutex(auto_renew=False)
        assert mutex.acquire()
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
