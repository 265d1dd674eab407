"""Checks what `once` promises in a simulated world, O1 to O7: by the rows, the requests and what callers got.

O1: One result per key and keep-period; it does not change. O2: Who gets a result gets a recorded one, which counted during
the call. O3: A run that lost the key records nothing. O4: No clock and no TTL ends a result early. O5: An effect and the
record of the same transaction: both or neither, at most once. O6: What callers learn is true. O7: With "raise" no run
begins after one of unknown outcome until somebody decides.

Whose run a claim is, a row says by its owner: each call has one of its own. A claim that a run makes is judged as that of a
lock, in `judge`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from dev.simulation.claims import FORCED_MARK, Claim, values_on
from dev.simulation.handles import DRIFT, LONGEST_HANG
from dev.simulation.judge import Judge
from dev.simulation.network import HOST_SKEW
from dev.simulation.world import EPOCH
from pynamodb_mutex import NotRecordedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dev.simulation.claims import Place
    from dev.simulation.judge import Watched
    from dev.simulation.network import Exchange
    from dev.simulation.world import Process, World
    from pynamodb_mutex import MutexLostError, OutcomeUnknownError, ResultUnavailableError

COUNTS_BEYOND = 2.5
"""Longest time in seconds for which a result counts beyond ``done_until``: clients know server time to a second or two, and to the
drift since their last answer with a Date."""


class Row(NamedTuple):
    """What is in the row of a key from some time on.

    Attributes:
        since: True time from which it is there.
        version: Fencing token; 0 if there is no row.
        result: The result, or the reason why there is none, and until when it counts, in true time; None if there is none.
        payload_hash: Hash of the payload; None if there is none.
        unknown: Owner of the run whose outcome somebody has to decide; None if there is none.
        by: The request that has made it so; None for the TTL.
    """

    since: float
    version: int
    result: tuple[str, float] | None
    payload_hash: str | None
    unknown: str | None
    by: Exchange | None


class Call:
    """A call of `once`, or a question or decision of a person: what its caller knows, and reports to the judge.

    Attributes:
        process: The process that makes it.
        owner: Its label, which no other call has.
        key: The stored key.
        since: True time of its begin.
        is_decided: Whether it is one with ``on_abandoned="raise"``.
        is_awaited: Whether it is a decision by an `AsyncOnce`.
        payload: Its payload.
        keep: For how long its result is to count.
        lease: Its lease.
        values: What it has tried to record, as everybody else is to get it.
        unstorable: What its work returned, if that cannot be stored; else None.
        has_begun: Whether its work has begun.
        has_failed: Whether its work has ended with an exception.
        is_over: Whether it has ended.
        has_returned: Whether its work has ended with a result, which is not to be recorded by a transaction.
        learned: Whether each of its values is recorded, as far as its caller has learned; None if that is unknown.
    """

    def __init__(self, judge: OnceJudge, process: Process, owner: str, key: str) -> None:
        self._judge = judge
        self.process = process
        self.owner = owner
        self.key = key
        self.since = judge.now
        self.is_decided = self.is_awaited = False
        self.payload: Any = None
        self.keep = math.inf
        self.lease = 0.0
        self.values: list[Any] = []
        self.unstorable: Any = None
        self.has_begun = self.has_failed = self.has_returned = self.is_over = False
        self.learned: dict[str, bool | None] = {}
        judge.calls[owner] = self

    @property
    def payload_hash(self) -> str | None:
        """The hash of its payload."""
        text = json.dumps(self.payload, separators=(",", ":"), sort_keys=True)
        return None if self.payload is None else hashlib.sha256(text.encode()).hexdigest()

    def begins(self) -> None:
        """Note that its work begins."""
        self.has_begun = True
        self._judge.count("works")

    def fails(self) -> None:
        """Note that its work ends with an exception."""
        self.has_failed = True

    @contextmanager
    def transacting(self) -> Iterator[None]:
        """Note what becomes of a transaction with its record: one that raises leaves the work undone, or done as a whole."""
        try:
            yield
        except Exception as error:
            self.has_failed = True
            self.learned[_text(self.values[-1])] = getattr(error, "applied", None)
            raise

    def got(self, value: Any) -> None:
        """Check the result that the caller has got."""
        self._judge.check_result(self, value)
        if value in self.values:
            self.learned[_text(value)] = True

    def got_reason(self, error: ResultUnavailableError) -> None:
        """Check the reason that the caller has got in place of a result."""
        self._judge.check_result(self, error.reason)
        if error.value is not self.unstorable and list(error.value or ()) not in self.values:
            self._judge.fail(f"O6: {self.owner} got the value {error.value!r} of {self.key}")

    def got_nothing(self) -> None:
        """Check that there was nothing to get."""
        self._judge.check_absence(self)

    def mismatched(self) -> None:
        """Check that there was another payload."""
        self._judge.check_mismatch(self)

    def is_unknown(self, error: OutcomeUnknownError) -> None:
        """Check that somebody has to decide about a run."""
        self._judge.check_unknown(self, error)
        self.got_nothing()

    def was_lost(self, error: MutexLostError) -> None:
        """Check that its run has lost its key. A transaction is refused once the lease has ended: then nothing is done."""
        if isinstance(error, NotRecordedError) and self.has_returned:
            self.learned[_text(error.value)] = error.applied
        if isinstance(error, NotRecordedError) or self.has_returned:
            self._judge.check_loss(self, error)

    def decided(self, *, is_done: bool) -> None:
        """Check that the decision of a person was made, or not, as it is said."""
        self._judge.check_decision(self, is_done=is_done)


class OnceJudge(Judge):
    """Watches the rows of `once` and the effects of its runs, in addition to their claims.

    Attributes:
        calls: All calls, by their owner.
        counts: How often each thing was done.
    """

    def __init__(self, world: World, tables: Mapping[str, Watched]) -> None:
        super().__init__(world, tables)
        self.calls: dict[str, Call] = {}
        self.counts: Counter[str] = Counter()
        self._rows: dict[str, list[Row]] = {}
        # tokens of runs that had their key, and of which another one, a person or the TTL has taken it
        self._lost: set[str] = set()
        # the token of the last run of each call, and the call of each token, by their owner
        self._tokens: dict[str, str] = {}
        self._owners_of: dict[str, str] = {}
        # the call of the last run of each key, while somebody has to decide about it
        self._open: dict[str, Call] = {}
        # results and effects of calls, by their owner; all results, as texts
        self._recorded: Counter[str] = Counter()
        self._effects: Counter[str] = Counter()
        self._texts: set[str] = set()

    @property
    def now(self) -> float:
        """True time."""
        return self._world.now

    def count(self, what: str) -> None:
        """Count what was done."""
        self.counts[what] += 1

    # -- rows ---------------------------------------------------------------------------------------

    def _changed(self, table: str, key: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
        super()._changed(table, key, old, new)
        if table == "effects":
            owner = new["data"]["S"]
            self._effects[owner] += 1
            self._ask("O5", self._effects[owner] == 1, f"the effect of {owner} was made twice")
        elif table == "receipts":
            self._check_row(key[0], old, new)

    def _check_claim(self, exchange: Exchange, place: Place, old: Claim, new: Claim) -> None:
        if _is_decision(old, new) and place[0] == "receipts":
            # A person may force this; the run that goes on cannot know of it.
            self._end_term(place, old, None, breaks=True)
            if self._is_alive(old) and exchange.thread.name != "forced":
                self.fail(f"I5: {exchange.thread} decided about {place}, whose run is under way")
            return
        super()._check_claim(exchange, place, old, new)

    def _check_row(self, key: str, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Check a change of a row of `once`."""
        before, after = Claim(old, ""), Claim(new, "")
        rows = self._rows.setdefault(key, [Row(-1.0, 0, None, None, None, None)])
        last, exchange = rows[-1], None if self.deletes else self._world.network.applying
        row = _row_of(new, self.now, exchange)
        self._check_end_of_result(key, last, row, before, after, is_stored="unstored" not in old)
        if before.token != after.token:
            self._lost.add(before.token or "")
        if exchange is None:
            pass
        elif _is_decision(before, after):
            self._decided(key, last, row)
        elif after.token != before.token and after.end is not None:
            self._begun(key, last, row, new)
        elif row.result != last.result and row.result is not None:
            self._completed(key, row, old, new)
        elif after.end is None and before.end is not None and after.token == before.token:
            self._released(key, old["owner"]["S"])
        rows.append(row)
        to_decide = self._open[key].owner if key in self._open else None
        what = f"{key} says that {row.unknown} is unknown, and {to_decide} is"
        self._ask("O6 unknown", row.unknown == to_decide, what)

    def _check_end_of_result(
        self, key: str, last: Row, row: Row, before: Claim, after: Claim, *, is_stored: bool
    ) -> None:
        """Check that a result which counts stays, unless a person who has seen it forgets it or, if it is not stored, records one."""
        if last.result is None or row.result == last.result:
            return
        if row.by is not None and row.by.thread.process in self._jumps:
            return  # it takes the result for one that has ended
        value, until = last.result
        counts = self.now + HOST_SKEW < until
        if _is_decision(before, after):
            assert row.by is not None
            may = row.result is None or not is_stored
            seen = may and self._recorded_at(key, last) <= row.by.sent
            what = f"a decision about {key} removed {value}, which it had not seen"
            self._ask("O1", seen or not counts, what)
        elif row.result is None:
            what = "a run" if row.by is not None else "the TTL"
            what = f"{what} removed {value} of {key} {until - self.now:.1f} s early"
            self._ask("O4", not counts, what)
        else:
            self._ask("O1", not counts, f"the result {value} of {key} became {row.result[0]}")

    def _recorded_at(self, key: str, last: Row) -> float:
        """Return when the result in the last row was recorded."""
        rows = self._rows[key]
        first = len(rows) - 1
        while first and rows[first - 1].result == last.result:
            first -= 1
        return rows[first].since

    def _begun(self, key: str, last: Row, row: Row, new: dict[str, Any]) -> None:
        """Check the beginning of a run."""
        assert row.by is not None
        call, token = self.calls[new["owner"]["S"]], new["token"]["S"]
        self.count("begun")
        if not call.has_begun:
            # A proxy has repeated the request, and the claim was broken in between: the answer is that to the second one.
            self._lost.discard(token)
        self._tokens[call.owner] = token
        self._owners_of[token] = call.owner
        is_late = call.is_decided and self._row_at(key, row.by.sent).version != last.version
        what = f"{call.owner} began on {key} where {self._open.get(key, call).owner} is unknown"
        self._ask("O7", key not in self._open, what)
        self._ask("O7", not is_late, f"{call.owner} began on {key}, which it had not seen so")
        what = f"the payload of {call.owner} in {key} is another one's"
        self._ask("O6", row.payload_hash == call.payload_hash, what)
        if call.is_decided:
            self._open[key] = call

    def _completed(self, key: str, row: Row, old: dict[str, Any], new: dict[str, Any]) -> None:
        """Check the record of a result by its run."""
        assert row.by is not None
        assert row.result is not None
        exchange, (text, until) = row.by, row.result
        token = new["token"]["S"]
        owner = self._owners_of[token]
        call = self.calls[owner]
        self.count("recorded")
        self._ask("O3", "expires_at" in old, f"{owner} recorded on {key} without a claim")
        is_mine = token in values_on(exchange, None)
        self._ask("O3", is_mine, f"{exchange.thread} recorded on {key} under the claim of {owner}")
        self._ask("O3", token not in self._lost, f"{owner} recorded on {key}, which it had lost")
        self._recorded[owner] += 1
        self._ask("O1", self._recorded[owner] == 1, f"{owner} recorded twice on {key}")
        if "unstored" in new:
            text = _text(call.unstorable)
        self._texts.add(text)
        is_own = text in map(_text, call.values) or "unstored" in new
        self._ask("O2", is_own, f"{owner} recorded {text} on {key}")
        self._check_keep(call, key, exchange, until)
        self._open.pop(key, None)

    def _check_keep(self, call: Call, key: str, exchange: Exchange, until: float) -> None:
        """Check until when a result counts. A process whose clock stood still may not know how late it is."""
        process = exchange.thread.process
        # a transaction is sent again as it was
        since = exchange.sent - LONGEST_HANG * (exchange.operation == "TransactWriteItems")
        least = since + call.keep - HOST_SKEW
        is_late = self._is_sent_late(exchange)
        # without threads a request of a task waits for those before it, after its end was counted
        is_late |= process.refuses_threads
        if not is_late and not self._is_excused(process):
            what = f"{call.owner} recorded on {key} until {until:.1f}, not {least:.1f}"
            self._ask("O4", until >= min(least, 1e9) - 0.01, what)

    def _decided(self, key: str, last: Row, row: Row) -> None:
        """Check the decision of a person: about what that person has seen."""
        assert row.by is not None
        is_open = self._open.pop(key, None) is not None
        seen = self._row_at(key, row.by.sent)
        what = f"a decision about {key} was made about a run that it had not seen"
        self._ask("O7", not is_open or seen.version == last.version, what)
        if row.result is not None:
            self.count("recorded by a person")
            text = row.result[0]
            made = (each for each in self.calls.values() if text in map(_text, each.values))
            call = next(made, None)
            self._ask("O2", call is not None, f"a person has recorded {text} on {key}")
            if call is None:
                return
            self._texts.add(text)
            self._check_keep(call, key, row.by, row.result[1])
        else:
            self.count("forgotten")

    def _released(self, key: str, owner: str) -> None:
        """Check that a run is ended without a result only if it has failed, or has not begun."""
        call = self.calls[owner]
        self._ask(
            "O1",
            # a late copy of another begin of it may make a claim, and a late release ends that
            not call.has_returned or call.has_failed or self._recorded[owner] > 0,
            f"{owner} released {key} without its result",
        )
        if self._open.get(key) is call:
            is_settled = call.has_failed or not call.has_begun
            self._ask("O7", is_settled, f"{owner} released {key}, and its outcome is unknown")
            del self._open[key]

    # -- what callers get ---------------------------------------------------------------------------

    def _row_at(self, key: str, when: float) -> Row:
        """Return what was in the row of a key at some time."""
        return next(row for row in reversed(self._rows[key]) if row.since <= when)

    def _rows_during(self, call: Call) -> list[Row]:
        """Return what was in the row of a key during a call."""
        rows = self._rows.get(call.key, [])
        first = next((n for n in reversed(range(len(rows))) if rows[n].since <= call.since), 0)
        return rows[first:]

    def check_result(self, call: Call, value: Any) -> None:
        """Check that what a caller has got was recorded, and counted at some time during the call (O2)."""
        text = value if isinstance(value, str) else _text(value)
        if isinstance(value, str):
            is_own = call.unstorable is not None and _text(call.unstorable) in self._texts
        else:
            is_own = value in call.values and text in self._texts
        beyond = self._counts_beyond(call.process)

        def counted(row: Row) -> bool:
            if row.result is None or row.result[0] != text:
                return False
            return row.result[1] + beyond >= max(call.since, row.since)

        rows = [row for row in self._rows_during(call) if counted(row)]
        # whoever has done the work gets what it has recorded itself
        rule = "O2 own" if call.has_begun else "O2"
        is_right = is_own or (bool(rows) and not call.has_begun)
        self._ask(rule, is_right, f"{call.owner} got {value!r} of {call.key}")
        if call.payload is not None and not is_own:
            fits = any(row.payload_hash in {None, call.payload_hash} for row in rows)
            self._ask("O6 payload", fits, f"{call.owner} got a result for another payload")
        self._ask(
            "O6", not isinstance(value, tuple), f"{call.owner} got {value!r}, not as recorded"
        )

    def _counts_beyond(self, process: Process) -> float:
        """Return for how many seconds a result may count for a process beyond its end: for ever if it has learned no server time since its clock stood still."""
        dated = self._dated_last.get(process, -math.inf)
        if self._is_excused(process) or self._resumed.get(process, -math.inf) > dated:
            return math.inf
        return COUNTS_BEYOND + DRIFT * (self.now - dated)

    def check_absence(self, call: Call) -> None:
        """Check that no result counted from the begin of a call to its end, which got none (O6)."""
        # one that waits behind another of its process relies on the polls of that one
        same = [e for e in self.calls.values() if (e.process, e.key) == (call.process, call.key)]
        waits = any(each.since < call.since and not each.is_over for each in same)
        if self._was_disturbed(call) or waits or call.process in self._jumps:
            return
        rows = self._rows_during(call)
        results = [row.result for row in rows]
        counted = bool(rows) and results[0] is not None and self.now + HOST_SKEW < results[0][1]
        is_same = counted and all(result == results[0] for result in results)
        self._ask("O6", not is_same, f"{call.owner} did not get the result of {call.key}")
        if call.payload is not None and rows and not any(row.unknown for row in rows):
            # What is known of another payload ends a call at once, whether it is a run or a result.
            is_other = {None, call.payload_hash}.isdisjoint(row.payload_hash for row in rows)
            self._ask("O6 mismatch", not is_other, f"{call.owner} got no mismatch on {call.key}")

    def _was_disturbed(self, call: Call) -> bool:
        """Return whether a process stood still, or its requests met faults, during a call.

        A request that was sent before may hang: a waiter behind it in line relies on what it showed last.
        """
        since = call.since - LONGEST_HANG
        failed = any(when >= since for when in self._failures.get(call.process, []))
        return failed or self._disturbed.get(call.process, -1.0) >= call.since

    def check_mismatch(self, call: Call) -> None:
        """Check that the row had another payload during a call (O6)."""
        hashes = {row.payload_hash for row in self._rows_during(call)} - {None, call.payload_hash}
        what = f"{call.owner} got a mismatch on {call.key}, which has its payload"
        self._ask("O6", bool(hashes) and call.payload is not None, what)

    def check_unknown(self, call: Call, error: OutcomeUnknownError) -> None:
        """Check that somebody had to decide about a run during a call (O6)."""
        marks = {row.unknown for row in self._rows_during(call)}
        self._ask(
            "O6", error.owner in marks, f"{call.owner}: {error.owner} is unknown, not {marks}"
        )

    def check_loss(self, call: Call, error: MutexLostError) -> None:
        """Check that a run which reports a loss has lost its key, and did not only think so (O6)."""
        token = self._tokens.get(call.owner, "")
        was_lost = token in self._lost or error.loss.name == "UNREACHABLE"
        what = f"{call.owner} got an error that it had lost {call.key}: {error.loss.name}"
        self._ask("O6", was_lost, what)

    def check_decision(self, call: Call, *, is_done: bool) -> None:
        """Check whether the decision of a person was made, if that is reported, and undone, if not (O6)."""
        thread = self._world.running
        made = [
            row.by is not None
            and row.by.sent >= call.since
            # what is awaited is sent by one of the process's workers
            and (
                row.by.thread is thread
                or (call.is_awaited and row.by.thread.process is call.process)
            )
            for row in self._rows_during(call)
        ]
        # An attempt was applied, its answer was lost, and another has changed the row since: then it is not done any more.
        is_right = any(made) if is_done else call.is_awaited or made[-1:] != [True]
        self._ask("O6", is_right, f"{call.owner} on {call.key}: reported {is_done}, is {made}")

    def check_end(self) -> None:
        """Check, at the end of a schedule, that effects have their records, and that reports have come true."""
        # a network that repeats a record, and returns the second answer, hides that the first one was applied
        requests = [each for each in self._world.network.log if each.met == "repeated"]
        repeated = {value for each in requests for value in values_on(each, None)}
        for call in self.calls.values():
            recorded = self._recorded[call.owner]
            for text, is_recorded in call.learned.items():
                if is_recorded or (is_recorded is False and text not in repeated):
                    what = f"{call.owner} learned {is_recorded} of {text} on {call.key}"
                    self._ask("O6", (text in self._texts) is is_recorded, what)
            moved = any(value[0] == "moved" for value in call.values)
            if recorded or self._effects[call.owner]:
                what = f"{call.owner} has {self._effects[call.owner]} effects, {recorded} records"
                self._ask("O5", self._effects[call.owner] == (recorded if moved else 0), what)


def _text(value: Any) -> str:
    """Return the text of a result; of one that cannot be stored any other one of its own."""
    if isinstance(value, set):
        return repr(value)
    return json.dumps(value, separators=(",", ":"))


def _is_decision(old: Claim, new: Claim) -> bool:
    """Return whether a person has changed a row: all others that write a new token make a claim, but for force."""
    is_forced = (new.token or "").startswith(FORCED_MARK)
    return new.token not in {None, old.token} and new.end is None and not is_forced


def _row_of(row: dict[str, Any], since: float, by: Exchange | None) -> Row:
    result = None
    if "done_until" in row:
        text = row["unstored" if "unstored" in row else "result"]["S"]
        result = text, float(row["done_until"]["N"]) - EPOCH
    return Row(
        since,
        int(row.get("version", {"N": "0"})["N"]),
        result,
        row.get("payload_hash", {}).get("S"),
        row.get("unknown", {}).get("S"),
        by,
    )
