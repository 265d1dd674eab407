"""Checks the signals of locks, as `pynamodb_mutex.signals` documents them: their number, their order, and what they say.

The judge receives them in half of the schedules. In the others nobody does, but for `clocks_disagree`: with receivers, more losses are noticed in the
background, and tasks wait for a worker. What a signal says of a claim must have been in its row.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from typing import Any

from dev.simulation.handles import DRIFT, REPORTED_WITHIN
from dev.simulation.promises import PromiseJudge
from dev.simulation.world import World
from pynamodb_mutex._lock.runtime.notifications import SIGNALS

_LATE = "((renewed|renewal_failed|danger) )*"
"""Signals that come on a thread of their own, perhaps after the end."""

_END = f"(lost|released|handed_over) {_LATE}"

_ORDER = f"acquired {_LATE}(lost {_LATE}won_back {_LATE})*({_END})?"
"""Signals of an acquisition; ``won_back`` is a renewal that wins it back."""


class SignalJudge(PromiseJudge):
    """Judges the signals of locks, in addition to what calls return."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._receives = world.seed % 4 > 1
        # claims as they were in their rows, with the table and the last letter of the key, which tells keys apart; and the ends
        # of each, by its token
        self._claims: set[tuple[Any, ...]] = set()
        self._ends: defaultdict[str | None, set[Any]] = defaultdict(set)
        # names of the signals of a process: by the token of an acquisition, and by the name of a thread or task in its section
        self._told: defaultdict[Any, str] = defaultdict(str)

    def receiving(self) -> ExitStack:
        """Return a context in which the signals of locks are received, if they are in this schedule."""
        stack = ExitStack()
        for name in {*SIGNALS} - {"once_called"} if self._receives else {"clocks_disagree"}:
            stack.enter_context(SIGNALS[name].connected_to(partial(self._heard, name)))
        return stack

    def _note_term(self, exchange: Any, place: Any, old: Any, new: Any, **more: Any) -> None:
        # the signals of a lock that is deleted on release have no fencing token
        said, last = (new.token, new.owner or None), (place[0], place[1][-1][-1])
        self._claims |= {(*said, version, *last) for version in (new.version, None)}
        self._ends[new.token].add(new.end)
        super()._note_term(exchange, place, old, new, **more)

    def _heard(self, name: str, sender: Any, **event: Any) -> None:
        """Check a signal: this is its receiver."""
        if name == "clocks_disagree":
            # DynamoDB's hosts agree well enough here: only the process's own clock can be to blame
            self._ask("signal clocks", self._world.running.process in self._jumps, f"{event}")
            return
        process, now, own = self._world.running.process, self._world.now, self._in_use()
        token, what, is_free = event.get("token", ""), f"{name} {event}", not event.get("error")
        place = sender.Meta.table_name, event["key"][-1]
        me, watch = (process, event["owner"].rpartition(":")[2]), self._given.get(token)
        for part, owner in (("", "owner"), ("holder_", "holder"), ("to_", "to")):
            said = [event.get(each) for each in (f"{part}token", owner, f"{part}fencing_token")]
            if said[0]:
                self._ask(f"signal {owner}", (*said, *place) in self._claims, what)
        self._told[me] += f"{name}{'' if is_free else '!'} "
        self._told[process, token] += f"{'won_back' if event.get('won_back') else name} "
        told, ends, term = self._told[process, token], self._ends[token], self._terms.get(token)
        since, began = watch.since if watch else 0.0, min((w.began for w in own), default=0.0)
        held, waited = (now - since) * (1 - DRIFT) - REPORTED_WITHIN, (now - began) * (1 + DRIFT)
        is_one = name == "contended" and any(each.is_single for each in own)
        is_late = process in self._late_clocks | self._jumps.keys() or not self._runs(process)
        for rule, is_asked, is_kept in (
            # each danger is one of another end, and a claim that is in its row after its release was made anew by a late copy
            ("order", token, re.fullmatch(_ORDER, told)),
            ("renewal", name == "renewed", event.get("expires_at") in ends),
            ("danger", name == "danger", told.count("danger") <= len(ends)),
            ("detached", name == "handed_over", event.get("to") or token in self.detached),
            ("released", name == "released" and is_free, not (term and term.since <= since <= now)),
            ("held", watch and "held_for" in event, is_late or event.get("held_for", 0) >= held),
            ("once", is_one, not self._told[me].endswith("contended contended ")),
            ("waited", "waited" in event, is_late or event.get("waited", 0) <= waited),
        ):
            if is_asked:
                self._ask(f"signal {rule}", bool(is_kept), f"{what}, {told}")

    def section_ends(self, *, is_released: bool) -> None:
        """Check that receivers were told of a call that has failed, unless it may have been cut off."""
        for watch in self._in_use() if self._receives else ():
            told = self._told.pop((watch.process, watch.name), "")
            waits = watch.is_single and watch.options.get("timeout", 0) >= 30
            is_told = "contended" in told if waits and "not_acquired " in told else "acq" in told
            # a task may be cancelled while what it has begun is taken back, and then nothing is reported
            is_cut = watch.name.startswith("T") or not self._runs(watch.process)
            if watch.options and watch.since < watch.began and not is_cut:
                self._ask("signal failure", is_told, f"a call for {watch.keys}: {told}")
        super().section_ends(is_released=is_released)

    def check_signals(self) -> None:
        """Check at the end of a schedule that each acquisition in which somebody has believed was reported to its end."""
        for token, watch in self._given.items() if self._receives else ():
            told = self._told[watch.process, token]
            # a loss or a renewal is reported on a thread of its own, once the system does not refuse it any more
            is_cut = watch.since == math.inf or not watch.process.lives
            is_over = re.search(f"{_END}$", told)
            # a renewal that is sent again leaves several ends, and a detach says nothing of the one that it begins with
            is_told = len(self._ends[token]) < 7 or re.search("renew|lost|handed_over", told)
            is_right = is_cut or bool(is_over and is_told)
            self._ask("signal end", is_right, f"{watch.keys}: {told}")
