"""The signals of one acquisition, whatever happens to it and in whichever order things are done.

Operations and deliveries go on one at a time, from effect to effect and from receiver to receiver; a drawn one is next. So
what is found can be played again.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from interleaving import Turns

from pynamodb_mutex import LockItem, Mutex, MutexNotHeldError, signals
from pynamodb_mutex._dynamodb.answers import Answer
from pynamodb_mutex._operations.acquire import delivered
from pynamodb_mutex._operations.attach import detach
from pynamodb_mutex._operations.contender import Caller, Contender
from pynamodb_mutex._operations.effects import Operation, Send, Wait
from pynamodb_mutex._operations.held import Held, HeldClaim, State
from pynamodb_mutex._operations.release import release
from pynamodb_mutex._operations.renew import renew
from pynamodb_mutex._operations.shared import Shared
from pynamodb_mutex._protocol.claim import Claim, OwnClaim
from pynamodb_mutex._runtime.notifications import RECEIVERS, deliver
from pynamodb_mutex._runtime.process import current_process

LEASE = 30.0
LONG = 3 * LEASE
"""A renewal during which the process pauses has still something left of it."""


class Model(LockItem):
    """The sender of the signals."""

    class Meta:
        table_name = "never asked"
        region = "us-east-1"


class Play:
    """One acquisition, what is done with it, and what is reported of it."""

    def __init__(self, turns: Turns, receivers_do: str) -> None:
        self.turns = turns
        self.time = 1000.0
        self.row = Claim(token="mine", version=1, expires_at=1.0, lease=LEASE)
        self.reported: list[str] = []
        self._receivers_do = receivers_do
        self.shared: Any = Shared(lambda: self.time, random.uniform, lambda: "f" * 30, RECEIVERS)
        self.shared.monitor = threading.RLock()
        self.shared.threads = SimpleNamespace(
            put=lambda name, run: turns.spawn(run, name), start=lambda: None
        )
        self.shared.notifier = SimpleNamespace(put=self.put)
        options = Mutex.for_key("k", model=Model, lease=LEASE, auto_renew=False)._options
        store = current_process().store(Model)
        caller = Caller(1, 1, "me")
        contender = Contender(self.shared, store, options, caller)
        self.claim = HeldClaim(contender, OwnClaim("mine", LEASE), self.row, {}, self.time)
        Held((self.claim,), is_group=False)
        self.claim.begin()

    def put(self, _: Any, event: Any) -> None:
        """As the notifier, which reports renewals in its own time."""
        assert "acquired" in self.reported

    def note(self) -> None:
        """Do nothing."""

    # -- what threads do

    def run(self, operation: Operation[Any]) -> None:
        """Run an operation; before and after each request it is another's turn."""
        resume, value = operation.send, None
        while True:
            self.shared.now = self.time
            outbox: list[Any]
            try:
                effect = resume(value)
            except StopIteration:
                effect = None
            except MutexNotHeldError:
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

    def answer(self, send: Send) -> Answer:
        values = send.request.kwargs["ExpressionAttributeValues"]
        numbers = [float(value["N"]) for value in values.values() if "N" in value]
        applied = self.row.token == "mine" and self.row.expires_at is not None
        is_renewal = "REMOVE" not in send.request.kwargs["UpdateExpression"]
        if applied and is_renewal:
            ends = [number for number in numbers if number > 10**9]
            applied = max(ends) > (self.row.expires_at or 0.0)
        if applied:
            end = max(numbers) if is_renewal else None
            self.row = self.row._replace(expires_at=end)
        error = None if applied else Exception("refused")
        answer = Answer({}, claim=self.row, error=error)  # type: ignore[arg-type]  # as the row was
        answer.sent = answer.received = self.time
        return answer

    def acquired(self) -> None:
        def announcing() -> Operation[None]:
            self.claim.emit_acquired(0.0, 1)
            yield from delivered([self.claim], release, self.claim)

        self.run(announcing())

    def pause(self) -> None:
        self.time += LEASE + 1

        def noting() -> Operation[None]:
            self.claim.note_end()
            yield Wait(0.0)

        self.run(noting())

    def force(self) -> None:
        self.row = Claim(token="forced-by-somebody", version=2)

    def renew(self) -> None:
        self.run(renew(self.claim.together, LONG))

    def release(self) -> None:
        with suppress(MutexNotHeldError):
            self.run(release(self.claim))

    def detach(self) -> None:
        self.run(detach(self.claim, LONG, None))

    # -- what receivers do besides

    def fail(self) -> None:
        raise LookupError("a receiver's own")

    def receiver(self, name: str) -> Callable[..., None]:
        def receive(sender: object, **fields: Any) -> None:
            self.turns.turn()
            self.reported.append("won back" if fields.get("won_back") else name)
            self.turns.turn()
            getattr(self, self._receivers_do)()

        return receive


RIGHT = re.compile(
    "acquired,(lost,won back,)*(?:(?P<lost>lost,)|(?P<ended>released,|handed_over,)|(?P<held>))$"
)
WORK = ("pause", "pause", "force", "renew", "release", "detach")
RECEIVERS_DO = ("note", "fail", "renew", "release")
REPORTED = ("acquired", "lost", "renewed", "released", "handed_over")


@settings(max_examples=1000, deadline=None)
@given(
    work=st.lists(st.sampled_from(WORK), min_size=1, max_size=5),
    receivers_do=st.sampled_from(RECEIVERS_DO),
    seed=st.integers(0, 2**32),
    stays=st.sampled_from([0.0, 0.5, 0.8, 0.9, 0.95]),
)
def test_signals_come_in_the_order_in_which_things_happened(
    work: list[str], receivers_do: str, seed: int, stays: float
) -> None:
    turns = Turns(seed, stays)
    with ExitStack() as stack:
        play = Play(turns, receivers_do)
        for name in REPORTED:
            signal = getattr(signals, name)
            stack.enter_context(signal.connected_to(play.receiver(name), sender=Model))
        turns.spawn(play.acquired)
        for what in work:
            turns.spawn(getattr(play, what))
        turns.run()
    claim, reported = play.claim, "".join(f"{name}," for name in play.reported)
    found = RIGHT.match(reported)
    assert found, reported
    if claim.belief.loss is not None:
        assert found["lost"], reported
    elif claim.belief.state is State.RELEASED:
        assert found["ended"], reported
    else:
        assert found["held"] is not None, reported
    assert claim.events == ()
