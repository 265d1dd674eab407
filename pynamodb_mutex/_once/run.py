"""Runs of `once`: begin one unless a result counts, record its result, and decide by hand about one.

A run is an acquisition whose acquiring write DynamoDB refuses as long as a result counts; at its end it leaves a result in the
row, in place of a claim. A run differs from a held lock:

- If a result refuses a caller, the caller has what it asked for. A result counts only if a consistent answer shows it, judged by
  the bounds of server time after that answer.
- A run sends its result even if the lease has ended by the local clock. DynamoDB decides, by token and version: otherwise a
  process that stood still for a moment would throw away the record of work that nobody else has begun.
- Once the work is done, the run does not release its claim without a record. Suppose the record has no answer, and a release
  overtakes it: the next caller would do the work again.

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
    """A caller that asks for a run of one key, and then does it."""

    __slots__ = ()

    is_run = True

    def next_holder(self, claim: HeldClaim) -> None:
        """Return None: a waiter begins its own run, because the row has the payload hash of this run."""


class SettledError(Exception):
    """Ends the acquisition of a run, because a result counts.

    Attributes:
        claim: The row with the result.
    """

    def __init__(self, claim: Claim) -> None:
        super().__init__()
        self.claim = claim


class Beginning(Acquisition):
    """The acquisition of a run.

    Attributes:
        found: After `begin_run`, the row with a result that counts; None if there was none in time, or a run has begun.
    """

    def __init__(
        self,
        contender: Contender,
        timeout: float,
        payload_hash: str | None,
        *,
        is_decided: bool,
    ) -> None:
        """Make an acquisition.

        Args:
            contender: The contender that asks for the run.
            timeout: Seconds to wait; 0 for a single try, infinity to wait for ever.
            payload_hash: Hash of the run's payload; None if it does not matter.
            is_decided: Whether a person must decide about this run if it ends without a result.
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
            PayloadMismatchError: If the run or the result has another payload.
            OutcomeUnknownError: If a run ended without a result, and a person must decide.
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
            # A replica that lags behind may serve a poll. Suppose a person forgets a result, and another run begins, for which
            # callers wait: the poll shows the forgotten result. One consistent read serves all callers that wait here by now.
            waiting = list(self.contender.queue.turns)
            answer = yield from super()._read(consistent=True)
            for turn in waiting:
                turn.settle(answer.claim)
        return answer

    def see(self, claim: Claim, received: float) -> None:
        """Observe the row that was received at a local time.

        Raises:
            SettledError: If it has a result that counts.
            PayloadMismatchError: If its run or its result has another payload.
            OutcomeUnknownError: If a person must decide about its last run.
            InvalidRowError: If the row is not a lock's.
        """
        self.observed.see(claim, received)
        error = self._verdict(claim, received)
        if error is not None:
            raise error
        super().see(claim, received)

    def _verdict(self, claim: Claim, received: float) -> Exception | None:
        """Return the exception by which a row ends this acquisition. The result comes first: a dead claim may be next to it."""
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
    """The guard of the write that records a run's result and releases the claim; DynamoDB alone decides whether it may.

    Attributes:
        recorded: The row with the result that was recorded; None before that.
        proposed: The row as the last attempt would make it.
        in_transaction: Whether the write is part of a transaction with other writes.
        in_doubt: Whether the result may have been recorded, though the write failed.
    """

    def __init__(self, claim: HeldClaim) -> None:
        super().__init__(claim, ends=True)
        self.recorded: Claim | None = None
        self.proposed = Claim()
        self.in_transaction = False
        self.in_doubt = False
        self._waiting: list[Turn[Any, Contender]] = []

    def check(self, what: str) -> None:
        """Raise if the run has ended here, or belongs to the parent process; the end of its lease does not count."""
        if self.claim.is_released or self.claim.process.inherited:
            self.claim.check(what)

    def begin(self, what: str) -> None:
        """Begin the write; see `Guard.begin`."""
        super().begin(what)
        # The result is for callers that wait now. Suppose its answer is lost, and a person forgets the result: later callers
        # have to do the work anew.
        self._waiting = list(self.claim.contender.queue.turns)

    def judge(self, row: RawItem, *, maybe_applied: bool) -> Verdict:
        """Return the outcome of this write from a row; an earlier result of this run is *the* result."""
        claim = self.claim.store.layout.claim(row)
        own = self.claim.own
        is_ours = (claim.token, claim.version) == (own.token, own.version)
        if is_ours and claim.of(OnceRow).done_until:
            # This write was applied, or an earlier call's, whose caller got an error.
            self.recorded = claim
            # But DynamoDB applies the writes of a transaction with their own record, or not at all.
            is_other = self.in_transaction and claim.writes != self.number
            return "not applied" if is_other else "applied"
        verdict = super().judge(row, maybe_applied=maybe_applied)
        # If we do not know the number, another run has recorded its result, and ours was never recorded: it would still count.
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
        """Note that the result is recorded, and give it to the callers in this process that wait for it."""
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
    """The result of a run, to be recorded.

    Attributes:
        text: The encoded result; None if it cannot be stored.
        unstored: Why it cannot be stored; None if it can.
        keep: Seconds for which it counts; infinity for ever.
        payload_hash: Hash of the run's payload; None if it does not matter.
    """

    text: str | None
    unstored: str | None
    keep: float
    payload_hash: str | None

    def values(
        self, store: Store, now: float, at_least: float = 0.0
    ) -> tuple[float, dict[str, Any]]:
        """Return until when the result counts if it is recorded now, in server time, and its serialised values."""
        # from the upper bound of server time: a result may count for longer than the caller asked for, never for less
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
    """Record the result of a run, and end it; the guard then has the row with the recorded result.

    Raises:
        NotRecordedError: If the result was not recorded, or perhaps not.
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
    """Leave a run whose work may be done: its claim ends by itself, with its lease."""
    has_ended = claim.is_over  # that was reported already
    claim.forget()
    if not has_ended:
        claim.emit("released", held_for=claim.held_for, error=error)


# -- by people -------------------------------------------------------------------------------------


def peek(
    process: ProcessState, store: Store, row: RawItem, *, forces: bool = False
) -> Operation[Answer]:
    """Read a row consistently.

    Raises:
        InvalidRowError: If it is not a lock's, or has impossible attributes and the caller does not force.
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
    """Forget the result or the run that was read, and nothing later; or, with a result, record that in its place.

    Returns:
        Whether it was done. False if there was nothing to forget, or the row has changed since it was read.

    Raises:
        MutexError: If a run of the key is under way and the caller does not force; if a result that counts would be replaced; or
            if it is unknown whether it was done.
        PynamoDBException: If DynamoDB refuses or cannot be reached.
    """
    seen, known, bounds = answer.claim, answer.claim.of(OnceRow), store.bounds
    if bounds is None:
        raise _undated(key)
    # if a row cannot be read, forget everything in it
    state = "unknown" if seen.fault else state_of(seen, answer.received, bounds)
    if result is None and state == "nothing":
        return False
    if state == "running" and not forces:
        msg = f"{shown(key)}: a run by {shown_owner(seen.owner)} is under way"
        raise MutexError(msg, key=key, owner=seen.owner, expires_at=date_of(seen.expires_at))
    is_kept = state == "recorded" and known.unstored is None and not forces
    if is_kept and result is not None:
        raise MutexError(f"{shown(key)} has a result: forget it first", key=key)
    # If the result replaces one that could not be stored, it keeps the payload hash, and counts for no shorter time.
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
    # our own token refuses it, too, if the answer to an earlier attempt was lost
    is_done = reply.applied or reply.claim.token == token
    if attempts.maybe_applied and not is_done:
        msg = f"{shown(key)} has changed meanwhile, and it is unknown whether this was done before: see Once.peek(key)"
        raise MutexError(msg, key=key)
    return is_done
