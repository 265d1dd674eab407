"""Runs of `once`: begin one unless a result counts, record its result, and decide by hand about one.

A run is an acquisition whose acquiring write is refused as long as a result counts; what it leaves in the row is a result,
in place of a claim. What makes it different from a lock that is held is this:

- Whoever is refused by a result has what it asked for. A result counts only as a consistent answer shows it, and is judged
  by the bounds of server time after that answer.
- The result is sent even if the lease has ended by the local clock. The store decides, by token and version: otherwise a
  process that stood still for a moment would throw away the record of work that nobody else has begun.
- Once the work is done, its claim is not released without a record. A release that overtakes the record of which no
  answer came would let the next caller do the work again.

The requests are in `rows`; the handles that users see are in `runs` and `_async_runs`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._admin.requests import put_right
from pynamodb_mutex._lock.dynamodb.layout import seconds
from pynamodb_mutex._lock.dynamodb.store import Request
from pynamodb_mutex._lock.operations.acquire import Acquisition
from pynamodb_mutex._lock.operations.contender import Contender
from pynamodb_mutex._lock.operations.events import WARNED, LockEvent
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.operations.retry import Attempts, retrying
from pynamodb_mutex._lock.protocol.claim import NO_SERVER_TIME, Claim, date_of, token_time
from pynamodb_mutex._lock.protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex._lock.protocol.outcome import Verdict
from pynamodb_mutex._lock.protocol.schedule import RELEASE_PATIENCE
from pynamodb_mutex._once.rows import Begin, OnceRow
from pynamodb_mutex._writes.guarded_write import Guard, Refusal, write
from pynamodb_mutex._writes.row_write import GuardOnly
from pynamodb_mutex.exceptions import (
    Loss,
    MutexAlreadyHeldError,
    MutexError,
    MutexNotHeldError,
    NotRecordedError,
    OutcomeUnknownError,
    PayloadMismatchError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.local_queue import Turn
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex._lock.protocol.claim import OwnClaim
    from pynamodb_mutex._lock.protocol.server_time import Bounds
    from pynamodb_mutex._once.rows import OnceRequests

    KnownState = Literal["recorded", "running", "unknown", "abandoned", "nothing"]

LARGE = 4096
"""Characters of a result beyond which a row is read before it is written: a refused write is billed by the row's size."""


# -- beginning a run -------------------------------------------------------------------------------


class RunContender(Contender):
    """Whoever asks for a run of one key, and then does it."""

    __slots__ = ()

    is_run = True

    def next_holder(self, claim: HeldClaim) -> None:
        """Return None: whoever waits begins a run of its own, for the row says whose payload this one had."""


class SettledError(Exception):
    """Ends the attempt at a run, because a result counts.

    Attributes:
        claim: The row with the result.
    """

    def __init__(self, claim: Claim) -> None:
        super().__init__()
        self.claim = claim


class Beginning(Acquisition):
    """An attempt to begin a run, until a deadline.

    Attributes:
        found: The row with a result that counts, after `begin_run`; None if there was none in time, or a run has begun.
    """

    def __init__(
        self,
        contender: Contender,
        timeout: float,
        payload_hash: str | None,
        *,
        is_decided: bool,
    ) -> None:
        """Make an attempt.

        Args:
            contender: The contender that asks for the run.
            timeout: Seconds to wait; 0 for a single try, infinity to wait for ever.
            payload_hash: Hash of what the run is about; None if it does not matter.
            is_decided: Whether somebody has to decide about this run if it ends without a result.
        """
        super().__init__(contender, timeout)
        self._payload_hash = payload_hash
        self._is_decided = is_decided
        self._reads_first = is_decided or contender.store.reads_first
        self.found: Claim | None = None

    def begin_run(self, note: Callable[[HeldClaim], object]) -> Operation[HeldClaim | None]:
        """Begin a run, and return its claim; None if a result counts, or another run has not ended in time.

        Args:
            note: Called with the claim before ``acquired`` is emitted.

        Raises:
            MutexAlreadyHeldError: If this thread or task does a run of this key.
            PayloadMismatchError: If the run or the result is one of another payload.
            OutcomeUnknownError: If a run ended without a result, and somebody has to decide.
            MutexError: If DynamoDB's answers have no ``Date``.
        """
        stalled = self.contender.stalled_holder()
        if stalled is not None and stalled.contender.caller == self.contender.caller:
            key = self.contender.key
            msg = f"{shown(key)} is called within its own run: it would wait for itself"
            raise MutexAlreadyHeldError(msg, key=key, owner=stalled.contender.owner)
        try:
            return (yield from self.acquire(note))
        except SettledError as settled:
            self.found = settled.claim
            if len(self.found.of(OnceRow).result or "") > LARGE:
                self.contender.store.reads_first = True
            emit_called(self.contender, "waited" if self._contended else "repeated")
            return None
        except (PayloadMismatchError, OutcomeUnknownError) as error:
            is_unknown = isinstance(error, OutcomeUnknownError)
            emit_called(self.contender, "unknown" if is_unknown else "mismatched")
            raise

    def _emit_not_acquired(self, error: BaseException | None) -> None:
        if not isinstance(error, SettledError):
            super()._emit_not_acquired(error)

    def _read(self, *, consistent: bool) -> Operation[Answer]:
        answer = yield from super()._read(consistent=consistent)
        if not consistent and self._verdict(answer.claim, answer.received) is not None:
            # A poll may be served by a replica that lags behind. Suppose a result is forgotten, another run begins
            # and is waited for; the poll shows the result that nobody was to get any more. One consistent read serves
            # all who wait here by now.
            waiting = list(self.contender.queue.turns)
            answer = yield from super()._read(consistent=True)
            for turn in waiting:
                turn.settle(answer.claim)
        return answer

    def see(self, claim: Claim, received: float) -> None:
        """See the row that was received at a local time.

        Raises:
            SettledError: If it has a result that counts.
            PayloadMismatchError: If its run or its result is one of another payload.
            OutcomeUnknownError: If somebody has to decide about its last run.
            InvalidRowError: If the row is not a lock's.
        """
        self.observed.see(claim, received)
        error = self._verdict(claim, received)
        if error is not None:
            raise error
        super().see(claim, received)

    def _verdict(self, claim: Claim, received: float) -> Exception | None:
        """Return what a row says if it ends this attempt. The result comes first: a dead claim may stand next to it."""
        bounds, key = self.contender.store.bounds, self.contender.key
        if claim.fault is not None:
            return None  # `ObservedClaim.see` raises it
        known = claim.of(OnceRow)
        is_done, is_run = known.counts(received, bounds), claim.is_held(received, bounds)
        hashes = {known.payload_hash, self._payload_hash} - {None}
        if (is_done or is_run) and len(hashes) > 1:
            what = "result" if is_done else "run"
            msg = f"{shown(key)} has a {what} for another payload than this call's"
            return PayloadMismatchError(msg, key=key, owner=claim.owner)
        if is_done:
            return SettledError(claim)
        if known.unknown is None or is_run:
            return None
        msg = (
            f"{shown(key)}: it is unknown what became of the run by {shown_owner(known.unknown)}. "
            "forget lets it be done again, record says that it is done"
        )
        since = date_of(token_time(claim.token))
        return OutcomeUnknownError(msg, key=key, owner=known.unknown, since=since)

    def _request(self, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        if self.contender.store.bounds is None:
            raise _undated(self.contender.key)
        if self._payload_hash is not None:
            values["payload_hash"] = self._payload_hash
        seen = self.observed.claim if self._is_decided else None
        found = None
        if seen is not None:
            found = seen.token is not None
            values |= {"unknown": self.contender.owner, "seen_version": str(seen.version)}
        self._clause = Begin(self._payload_hash is not None, found)
        return super()._request(own, values, now)


def _undated(key: str) -> MutexError:
    msg = f"{shown(key)}: DynamoDB's answers have no Date, so no result could be dated"
    return MutexError(msg, key=key)


def emit_called(contender: Contender, outcome: str) -> None:
    """Emit that a call of `once` has ended, and how."""
    process = contender.process
    if outcome in WARNED or process.hears("once_called"):
        process.emit(LockEvent("once_called", contender, None, {"outcome": outcome}))


# -- its result ------------------------------------------------------------------------------------


class Recording(Guard):
    """The guard of the write that records a run's result: it releases the claim, and the store alone decides about it.

    Attributes:
        recorded: The row with the result that was recorded; None before that.
        proposed: That row, as the last attempt would make it.
        in_transaction: Whether other writes are made together with it.
        in_doubt: Whether it may have been recorded, though the write failed.
    """

    def __init__(self, claim: HeldClaim) -> None:
        super().__init__(claim, ends=True)
        self.recorded: Claim | None = None
        self.proposed = Claim()
        self.in_transaction = False
        self.in_doubt = False
        self._waiting: list[Turn[Any, Contender]] = []

    def check(self, what: str) -> None:
        """Raise if the run has ended here, or is that of the parent process; a lease that has ended does not count."""
        if self.claim.is_released or self.claim.process.inherited:
            self.claim.check(what)

    def begin(self, what: str) -> None:
        """Begin the write; see `Guard.begin`."""
        super().begin(what)
        # Not those who come later. Suppose its answer is lost, and the result is forgotten: they have to do the work
        # anew.
        self._waiting = list(self.claim.contender.queue.turns)

    def judge(self, row: RawItem, *, maybe_applied: bool) -> Verdict:
        """Return what a row shows about this write; an earlier result of this run is *the* result."""
        claim = self.claim.store.layout.claim(row)
        own = self.claim.own
        is_ours = (claim.token, claim.version) == (own.token, own.version)
        if is_ours and claim.of(OnceRow).done_until:
            # The first attempt of an earlier call was applied, and its caller got an error. Its number or ours.
            self.recorded = claim
            # But the writes of a transaction are made with its own record, or not at all.
            is_other = self.in_transaction and claim.writes != self.number
            return "not applied" if is_other else "applied"
        verdict = super().judge(row, maybe_applied=maybe_applied)
        # With a number that we do not know another run has recorded, and ours was never the result: it would count still.
        is_lost = verdict == "lost" and not maybe_applied
        return "not applied" if is_lost else verdict

    def error(self, what: str, *, applied: bool | None) -> MutexNotHeldError:
        """Return the error for a result that was not recorded, or perhaps not."""
        if self.recorded is not None:
            msg = f"{what}: {shown(self.claim.key)} has a result already, of an earlier attempt: this one wrote nothing"
            return MutexNotHeldError(msg, applied=applied, key=self.claim.key)
        lost, loss = super().error(what, applied=applied), self.claim.loss or Loss.EXPIRED
        about = {"owner": lost.owner, "expires_at": lost.expires_at}
        return self.not_recorded(self.claim.why, loss, applied=applied, **about)

    def not_recorded(
        self, why: str, loss: Loss, *, applied: bool | None, **about: Any
    ) -> NotRecordedError:
        """Return the error for a result that was not recorded, or perhaps not."""
        key = self.claim.key
        whether = "was not recorded" if applied is False else "may not have been recorded"
        msg = f"{shown(key)}: the result {whether}: {why}"
        return NotRecordedError(msg, loss=loss, applied=applied, key=key, **about)

    def applied(self) -> None:
        """Note that the result is recorded, and give it to those who wait for it in this process."""
        self.recorded = self.recorded or self.proposed
        for turn in self._waiting:
            turn.settle(self.recorded)
        super().applied()
        emit_called(self.claim.contender, "ran")

    def failed(self, *, in_doubt: bool) -> None:
        """Note that the write failed; ``in_doubt`` says whether it may have been applied all the same."""
        self.in_doubt = in_doubt
        super().failed(in_doubt=in_doubt)


class Result(NamedTuple):
    """What is to be recorded of a run.

    Attributes:
        text: The encoded result; None if it could not be stored.
        unstored: Why not; None if it could.
        keep: Seconds for which it counts; infinity for ever.
        payload_hash: Hash of what the run is about; None if it does not matter.
    """

    text: str | None
    unstored: str | None
    keep: float
    payload_hash: str | None

    def values(
        self, store: Store, now: float, at_least: float = 0.0
    ) -> tuple[float, dict[str, Any]]:
        """Return until when the result counts if it is recorded now, in server time, and its serialised values."""
        # from the upper bound of server time: a result may count for longer than it was asked for, never for less
        until = store.bounds.highest(now) + self.keep if store.bounds else 0.0
        until = min(max(until, at_least), NO_SERVER_TIME)
        values = {"done_until": seconds(until), "result": self.text, "unstored": self.unstored}
        values["ttl"] = store.ttl(until) if until < NO_SERVER_TIME else None
        return until, {name: value for name, value in values.items() if value is not None}


class Record(GuardOnly):
    """The write of a run's result, by itself or as an item of a transaction."""

    def __init__(self, claim: HeldClaim, result: Result) -> None:
        super().__init__(claim)
        self.guard: Recording = Recording(claim)
        self._result = result

    def request(self, now: float) -> dict[str, Any]:
        """Return the request for an attempt that is about to be sent."""
        guard = self.guard
        requests: OnceRequests = self.store.requests  # type: ignore[assignment]  # those of `once`
        until, values = self._result.values(self.store, now)
        own, result = guard.claim.own, self._result
        # with the hash: another payload's call may wait in this process, and has not read the row yet
        known = OnceRow(until, result.text, result.unstored, result.payload_hash)
        guard.proposed = Claim(own.token, own.version, of_room=known._asdict())
        return requests.record[frozenset(values)].fill(self.row, guard.values() | values)


def complete(record: Record) -> Operation[None]:
    """Record the result of a run, and end it: the guard has the row with the result that is recorded.

    Raises:
        NotRecordedError: If it was not recorded, or that is unknown.
        MutexNotHeldError: If the run has ended.
    """
    guard, store = record.guard, record.store
    process = guard.claim.process

    def build() -> Request:
        return Request(store, "UpdateItem", record.request(process.now))

    def refusal(answer: Answer) -> Refusal:
        return Refusal([(guard, answer.item)], answer.refusal)

    guard.check("complete")
    try:
        yield from write(process, [guard], build, refusal, "complete")
    except PynamoDBException as error:
        emit_called(guard.claim.contender, "not_recorded")
        if isinstance(error, NotRecordedError):
            raise
        applied = None if guard.in_doubt else False
        raise guard.not_recorded(one_line(error), Loss.UNREACHABLE, applied=applied) from error


def fail(claim: HeldClaim) -> Operation[None]:
    """End a run without a result, so that another one may begin at once."""
    emit_called(claim.contender, "failed")
    yield from release(claim, at_least=False)


def leave_to_expire(claim: HeldClaim, error: BaseException) -> None:
    """Leave a run whose outcome is not to be undone: its claim ends by itself, with its lease."""
    has_ended = claim.is_over  # which was reported then
    claim.forget()
    if not has_ended:
        claim.emit("released", held_for=claim.held_for, error=error)


# -- by people -------------------------------------------------------------------------------------


def peek(
    process: ProcessState, store: Store, row: RawItem, *, forces: bool = False
) -> Operation[Answer]:
    """Read a row consistently.

    Raises:
        InvalidRowError: If it is not a lock's, or has impossible attributes, unless these are to be forgotten by force.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    until = process.now + RELEASE_PATIENCE
    answer = yield from retrying(process, lambda: store.read(row, consistent=True), until)
    if not (forces and store.layout.was_a_locks(answer.item)):
        answer.claim.check()
    return answer


def state_of(claim: Claim, received: float, bounds: Bounds | None) -> KnownState:
    """Return the state of a key, as its row showed it when it was received."""
    known = claim.of(OnceRow)
    if known.counts(received, bounds):
        return "recorded"
    if claim.is_held(received, bounds):
        return "running"
    if known.unknown is not None:
        return "unknown"
    return "nothing" if claim.expires_at is None else "abandoned"


def decide(
    process: ProcessState,
    store: Store,
    row: RawItem,
    key: str,
    result: Result | None,
    *,
    answer: Answer,
    forces: bool,
) -> Operation[bool]:
    """Forget what `peek` has shown of a key, and nothing later; or, with a result, record that instead.

    Returns:
        Whether it was done. False if there was nothing to forget, or the row has changed since it was read.

    Raises:
        MutexError: If a run of the key is under way, unless this is forced; if a result that counts is to be replaced; or if
            it is unknown whether it was done.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    seen, known, bounds = answer.claim, answer.claim.of(OnceRow), store.bounds
    if bounds is None:
        raise _undated(key)
    # of a row that cannot be read, everything is forgotten
    state = "unknown" if seen.fault else state_of(seen, answer.received, bounds)
    if result is None and state == "nothing":
        return False
    if state == "running" and not forces:
        msg = f"{shown(key)}: a run by {shown_owner(seen.owner)} is under way"
        raise MutexError(msg, key=key, owner=seen.owner, expires_at=date_of(seen.expires_at))
    is_kept = state == "recorded" and known.unstored is None and not forces
    if is_kept and result is not None:
        raise MutexError(f"{shown(key)} has a result: forget it first", key=key)
    # What replaces a result that could not be stored is for the same payload, and for no shorter time.
    replaced = known if state == "recorded" and result is not None else OnceRow()
    token, until = process.new_token(store), process.now + RELEASE_PATIENCE
    requests: OnceRequests = store.requests  # type: ignore[assignment]  # those of `once`

    attempts = Attempts()

    def build() -> Request:
        now = process.now
        if seen.fault is not None:
            return put_right(store, row, answer.item, token, now)
        values = {"token": token, "seed": str(store.next_version(now))}
        values["now_low"] = store.now_low(now)
        at_least = replaced.done_until or 0.0
        values |= store.ending(now) if result is None else result.values(store, now, at_least)[1]
        values |= {"payload_hash": replaced.payload_hash} if replaced.payload_hash else {}
        if seen.token is not None:
            values |= {"seen": seen.token, "seen_version": str(seen.version)}
        if known.done_until is not None:
            values["seen_done"] = seconds(known.done_until)
        return store.update(requests.decide(values, forces=forces), row, values)

    reply = yield from retrying(process, build, until, attempts=attempts)
    # refused by our own token, too, if the answer to an earlier attempt was lost
    is_done = reply.applied or reply.claim.token == token
    if attempts.maybe_applied and not is_done:
        msg = f"{shown(key)} has changed meanwhile, and it is unknown whether this was done before: see Once.peek(key)"
        raise MutexError(msg, key=key)
    return is_done
