"""The signals of one acquisition, whatever happens to it and in whichever order threads run.

Each thread runs up to its next lock, request or receiver; then a drawn one goes on. So what is found can
be played again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from interleaving import Lock, Turns

from pynamodb_mutex import LockItem, Mutex, MutexNotHeldError, _events, signals
from pynamodb_mutex._acquire import Effort
from pynamodb_mutex._answers import Answer
from pynamodb_mutex._claim import Claim, Tenure
from pynamodb_mutex._hold import Hold
from pynamodb_mutex._release import release
from pynamodb_mutex._ticket import detach
from pynamodb_mutex.testing import FakeClock

LEASE = 30.0
LONG = 3 * LEASE
"""A renewal during which the process pauses has still something left of it."""


class Model(LockItem):
    """The sender of the signals."""

    class Meta:
        table_name = "never asked"


class Row:
    """In place of a store: one row, whose writes take a turn there and one back."""

    def __init__(self, turns: Turns) -> None:
        self.claim = Claim(token="mine", version=1, expires_at=1.0, lease=LEASE)
        self.rows = SimpleNamespace(renew=self._renew, release=self._release)
        self.server = SimpleNamespace(bounds=None)
        self.connection = SimpleNamespace(table_name="never asked")
        self.region = None
        self._turns = turns

    def ttl(self, *_: float) -> str:
        return "0"

    ttl_from_now = ttl

    def write(self, what: Callable[..., bool], row: Any, values: dict[str, Any]) -> Answer:
        self._turns.turn()
        applied = self.claim.token == "mine" and self.claim.expires_at is not None and what(values)
        answer = Answer(applied, self.claim, {}, 0.0, 0.0)
        self._turns.turn()
        return answer

    def _renew(self, values: dict[str, Any]) -> bool:
        end = float(values["end"])
        if end <= (self.claim.expires_at or 0.0):
            return False
        self.claim = self.claim._replace(expires_at=end)
        return True

    def _release(self, values: dict[str, Any]) -> bool:
        self.claim = self.claim._replace(expires_at=None)
        return True


class Play:
    """One acquisition, what is done with it, and what is reported of it."""

    def __init__(self, turns: Turns, clock: FakeClock, receivers_do: str) -> None:
        self.turns = turns
        self.clock = clock
        self.row = Row(turns)
        self.reported: list[str] = []
        self.teller: list[str] = []
        self._receivers_do = receivers_do
        threads = SimpleNamespace(put=lambda name, run: turns.spawn(run, name), start=lambda: None)
        nothing = SimpleNamespace(
            add=self.note, remove=self.note, refresh=self.note, took=self.note, left=self.note,
            next_in_line=self.note,
        )  # fmt: skip
        process: Any = SimpleNamespace(
            threads=threads, renewer=nothing, left_behind=False, teller=self
        )
        wanted: Any = SimpleNamespace(
            terms=Mutex.for_key("k", model=Model, lease=LEASE, auto_renew=False)._terms,
            process=process, store=self.row, queue=nothing, owner="me", on_lost=None, log_fields={},
        )  # fmt: skip
        self.hold = hold = Hold(wanted, Tenure("mine", LEASE), self.row.claim, {}, clock.now())
        lock: Any = Lock(turns)
        hold._lock = hold.events._changing = lock
        hold.changing, hold.writing = Lock(turns), Lock(turns)

    def note(self, *_: object) -> None:
        """Do nothing: neither a queue nor renewals in the background belong to this."""

    def put(self, signal: Any, wanted: Any, fields: dict[str, Any]) -> None:
        """As the teller: it reports in its own time."""
        assert "acquired" in self.reported
        self.teller.append(signal.name)

    # -- what threads do

    def acquired(self) -> None:
        _events.acquired(self.hold, Effort())

    def pause(self) -> None:
        self.clock.advance(LEASE + 1)
        self.hold.note_end()

    def force(self) -> None:
        self.row.claim = Claim(token="forced-by-somebody", version=2)

    def renew(self) -> None:
        with suppress(MutexNotHeldError):
            self.hold.renew(LONG)

    def save(self) -> None:
        with suppress(MutexNotHeldError), self.hold.writing:
            self.hold.check("save")
            self.hold.renewed(self.hold.propose_renewal())

    def release(self) -> None:
        with suppress(MutexNotHeldError):
            release(self.hold)

    def detach(self) -> None:
        with suppress(MutexNotHeldError):
            detach(self.hold, LONG, None)

    # -- what receivers do besides

    def fail(self) -> None:
        raise LookupError("a receiver's own")

    def receiver(self, name: str) -> Callable[..., None]:
        def receive(sender: object, **told: Any) -> None:
            self.turns.turn()
            self.reported.append("won back" if told.get("won_back") else name)
            self.turns.turn()
            getattr(self, self._receivers_do)()

        return receive


RIGHT = re.compile(
    "acquired,(lost,won back,)*(?:(?P<lost>lost,)|(?P<ended>released,|handed_over,)|(?P<held>))$"
)
WORK = ("pause", "pause", "force", "renew", "save", "release", "detach")
RECEIVERS_DO = ("note", "fail", "renew", "save", "release")
REPORTED = ("acquired", "lost", "renewed", "released", "handed_over")


@settings(max_examples=2000, deadline=None)
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
    with FakeClock() as clock, ExitStack() as stack:
        play = Play(turns, clock, receivers_do)
        for name in REPORTED:
            signal = getattr(signals, name)
            stack.enter_context(signal.connected_to(play.receiver(name), sender=Model))
        turns.spawn(play.acquired)
        for what in work:
            turns.spawn(getattr(play, what))
        turns.run()
    hold, told = play.hold, "".join(f"{name}," for name in play.reported)
    found = RIGHT.match(told)
    assert found, told
    if hold.cause is not None:
        assert found["lost"], told
    elif hold.finished:
        assert found["ended"], told
    else:
        assert found["held"] is not None, told
    assert hold.events._noted == ()
