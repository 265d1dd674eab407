"""Once: work that is done one time, and whose result is kept and given to everybody who asks again.

A `Once` is for one key. Whoever calls it first does the work, under a claim that is renewed as a lock is, and records the
result in the row; whoever calls it later gets that result, by one request. `once` decorates functions in this way, and
`pynamodb_mutex.aio.AsyncOnce` is for tasks. What is sent, and what an answer means, is decided in
`pynamodb_mutex._once.run`.
"""

from __future__ import annotations

import hashlib
import json
import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from pynamodb.attributes import NumberAttribute, UnicodeAttribute

from pynamodb_mutex._lock.decorated import check_function, check_result, is_async
from pynamodb_mutex._lock.dynamodb.keys import LONGEST_KEY, check_key
from pynamodb_mutex._lock.handles import (
    HandleOfOne,
    note_not_released,
    timeout_error,
    warn_of_suspension,
)
from pynamodb_mutex._lock.operations.options import (
    Made,
    as_seconds,
    check_callable,
    check_duration,
    made,
)
from pynamodb_mutex._lock.protocol.claim import date_of
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.runtime.callers import Blocks, caller, calling_frame, waits_block
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._once.rows import ATTRIBUTES, OnceLayout, OnceRequests, OnceRow
from pynamodb_mutex._once.run import (
    Beginning,
    Record,
    Result,
    RunContender,
    complete,
    decide,
    fail,
    leave_to_expire,
    peek,
    state_of,
)
from pynamodb_mutex.exceptions import MutexError, NotRecordedError, ResultUnavailableError
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.mutex import options_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Literal, ParamSpec, TypedDict

    from pynamodb.transactions import TransactWrite
    from typing_extensions import Self, Unpack

    from pynamodb_mutex._lock.operations.acquire import Acquisition
    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.protocol.claim import Claim
    from pynamodb_mutex._lock.runtime.process import Process
    from pynamodb_mutex._once.run import Recording

    P = ParamSpec("P")

    class OnceOptions(TypedDict, total=False):
        """The options of `Once.for_key` that `once` has, too."""

        keep: float | timedelta
        on_abandoned: Literal["run", "raise"]
        timeout: float | timedelta | None
        encode: Callable[[Any], str]
        decode: Callable[[str], Any]
        model: type[OnceItem]
        lease: float | timedelta
        auto_renew: bool
        max_hold: float | timedelta | None
        owner: str | None
        on_lost: Callable[[Any], object] | None
        poll: tuple[float | timedelta, float | timedelta]


__all__ = ["Known", "Once", "OnceItem", "Run"]

R = TypeVar("R")

PREFIX = "once#"
"""Beginning of the stored keys: a key of `once` and a lock of the same name are two rows of one table."""

NONE = "null"
"""The record of None, for any ``encode`` and ``decode``."""

LONGEST_RESULT = 350 * 1024
"""Most bytes of an encoded result. A row has 400 KB, and the claim takes some of them."""

LONGEST_REASON = 1000
"""Most characters of the reason why a result could not be stored."""


class OnceItem(LockItem):
    """The row of one key of `once`, as a PynamoDB model. By default it is in the table of `LockItem`.

    Subclass it as you would `LockItem`. `Once.peek` interprets its attributes for you.

    Attributes:
        result (str | None): The encoded result; None if there is none, or it could not be stored.
        done_until (float | None): Until when it counts, in seconds of DynamoDB's time since the epoch.
        unstored (str | None): Why the result of work that is done could not be stored.
        payload_hash (str | None): SHA-256 of the payload, in hexadecimal digits.
        unknown (str | None): Label of a run with ``on_abandoned="raise"`` that has not ended with a result.
    """

    _rows = (OnceLayout, OnceRequests)
    _of_room = ATTRIBUTES

    result = UnicodeAttribute(null=True)
    done_until = NumberAttribute(null=True)
    unstored = UnicodeAttribute(null=True)
    payload_hash = UnicodeAttribute(null=True)
    unknown = UnicodeAttribute(null=True)


class Known(NamedTuple):
    """The knowledge about a key of `~pynamodb_mutex.once`.

    Attributes:
        state: ``"recorded"``; ``"running"``; ``"unknown"``, if you have to decide about the last run; ``"abandoned"``, if the
            last run ended without a result, so that the next call does the work; or ``"nothing"``.
        result: The decoded result, or None.
        unstored: Why the result of work that is done could not be stored; None if it could.
        until: Until when the result counts, or the run's claim, in DynamoDB's time (UTC); None for ever, or without a result or
            run.
        owner: Label of the run that is under way or has ended without a result, or None.
        fencing_token: Number of the last run, or None.
    """

    state: Literal["recorded", "running", "unknown", "abandoned", "nothing"]
    result: Any = None
    unstored: str | None = None
    until: datetime | None = None
    owner: str | None = None
    fencing_token: int | None = None


class Terms(NamedTuple):
    """What a `Once` asks for, checked.

    Attributes:
        key: The key, as the caller has given it.
        options: The options of the claim, on the stored key.
        keep: Seconds for which a result counts; infinity for ever.
        payload_hash: Hash of the payload; None for none.
        is_decided: Whether somebody has to decide about a run that ends without a result.
        encode: Makes text of a result other than None.
        decode: Makes a result of text.
    """

    key: str
    options: LockOptions
    keep: float
    payload_hash: str | None
    is_decided: bool
    encode: Callable[[Any], str]
    decode: Callable[[str], Any]

    def encoded(self, value: Any) -> Result:
        """Return what is to be recorded for a result.

        Raises:
            TypeError, ValueError: If it cannot be stored; or what ``encode`` raises.
        """
        text = NONE if value is None else self.encode(value)
        if not isinstance(text, str):
            raise TypeError(f"encode must return a str, not {shown(text)}")
        if len(text.encode()) > LONGEST_RESULT:
            raise ValueError(f"the result has over {LONGEST_RESULT} bytes, the most that are kept")
        return Result(text, None, self.keep, self.payload_hash)

    def decoded(self, claim: Claim) -> Any:
        """Return the result in a row.

        Raises:
            ResultUnavailableError: If it could not be stored, or cannot be read.
        """
        known = claim.of(OnceRow)
        reason, cause = known.unstored, None
        if reason is None:
            try:
                return None if known.result == NONE else self.decode(known.result or "")
            except Exception as error:  # noqa: BLE001 - the caller's function
                reason, cause = f"{type(error).__name__}: {one_line(error)}", error
        why = one_line(reason)[:LONGEST_REASON]
        msg = f"{shown(self.key)} is done, but its result is not available: {why}"
        raise ResultUnavailableError(msg, reason=reason, key=self.key) from cause


def _json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{one_line(error)}: give an encode= and a decode=") from error


def hash_of(payload: Any) -> str | None:
    """Return the hash of a payload; None if there is none.

    Raises:
        TypeError: If it is not JSON.
        ValueError: If it contains NaN or infinity.
    """
    if payload is None:
        return None
    try:
        text = json.dumps(payload, allow_nan=False, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"payload must be JSON: {one_line(error)}") from error
    return hashlib.sha256(text.encode()).hexdigest()


_OF_LOCKS = frozenset({"lease", "timeout", "auto_renew", "max_hold", "owner", "on_lost", "poll"})
"""The options of a `Mutex` that a `Once` has, too. It is never fair or reentrant, and its row is not deleted."""


def _terms(
    key: str,
    *,
    payload: Any = None,
    keep: float | timedelta = 86400.0,
    on_abandoned: str = "run",
    encode: Callable[[Any], str] = _json,
    decode: Callable[[str], Any] = json.loads,
    model: type[OnceItem] = OnceItem,
    **options: Any,
) -> Terms:
    for name in options.keys() - _OF_LOCKS:
        raise TypeError(f"Once.for_key() got an unexpected keyword argument {name!r}")
    if not (isinstance(model, type) and issubclass(model, OnceItem)):
        msg = f"model must be OnceItem or a subclass of it, not {model!r}"
        raise TypeError(msg)
    if on_abandoned not in ("run", "raise"):
        msg = f"on_abandoned is 'run' or 'raise', not {shown(on_abandoned)}"
        raise ValueError(msg)
    for name, function in (("encode", encode), ("decode", decode)):
        check_callable(name, function)
    stored = PREFIX + check_key(key, LONGEST_KEY - len(PREFIX))
    return Terms(
        key,
        options_of(stored, options, model=model),
        check_keep(keep),
        hash_of(payload),
        on_abandoned == "raise",
        encode,
        decode,
    )


def check_keep(keep: object) -> float:
    """Return for how many seconds a result counts; infinity for ever.

    Raises:
        TypeError: If it is not a number, nor a timedelta. Not None either, which could mean ever or never.
        ValueError: If it is not above 0, or NaN, or over 100 years without being infinite.
    """
    value = as_seconds(keep)
    if value == math.inf:
        return math.inf
    if check_duration("keep", value) <= 0:
        msg = f"keep must be above 0 seconds, not {value}"
        raise ValueError(msg)
    return float(value)


class Run(HandleOfOne):
    """One call of a `Once`: the run that it has begun, or the result that it has found.

    Its properties ``held``, ``remaining``, ``lost``, ``loss``, ``token``, ``fencing_token``, ``owner`` and ``abandoned_by``
    describe the claim under which you work, as in a `~pynamodb_mutex.Mutex`.
    """

    _made_by = "Once.for_key(...)"
    _makers: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, terms: Terms) -> None:
        """Use `Once.for_key`, and a ``with`` block."""
        self._terms = terms
        self._options = terms.options
        self._seen: Acquisition | None = None  # shows the claim in the way
        self._claim: HeldClaim | None = None
        self._found: Claim | None = None
        self._recordings: list[Recording] = []  # of which one can have recorded
        self._is_work_done = False

    def _mine(self) -> HeldClaim | None:
        return self._claim

    @property
    def key(self) -> str:
        """Your key, without the prefix that its row has."""
        return self._terms.key

    @property
    def _done(self) -> Claim | None:
        recorded = (each.recorded for each in self._recordings if each.recorded is not None)
        return next(recorded, self._found)

    @property
    def done(self) -> bool:
        """Whether there is a result, which you have found or recorded. Sends no request."""
        return self._done is not None

    @property
    def result(self) -> Any:
        """The recorded result, decoded anew at each access.

        Raises:
            MutexError: You have not recorded one.
            ResultUnavailableError: The work is done, but its result could not be stored, or cannot be decoded.
        """
        done = self._done
        if done is None:
            msg = f"{shown(self.key)} has no result yet: do the work, and call complete()"
            raise MutexError(msg, key=self.key)
        return self._terms.decoded(done)

    # -- operations ---------------------------------------------------------------------------------

    def _beginning(
        self, who: Caller, *, blocks: bool, process: Process | None = None
    ) -> Operation[None]:
        """Begin a run, or find a result; a test may act as another ``process``."""
        process, terms = process or current_process(), self._terms
        store, options = process.store(terms.options.model), terms.options
        contender = RunContender(process, store, options, who, lock=self, blocks=blocks)
        contender.key = terms.key
        acquisition = self._seen = Beginning(
            contender,
            options.seconds_to_wait(True, None),
            terms.payload_hash,
            is_decided=terms.is_decided,
        )
        claim = yield from acquisition.begin_run(self._note)
        self._found = acquisition.found
        if claim is None and self._found is None:
            raise timeout_error("another run of {} did not end", terms.key, acquisition)

    def _note(self, claim: HeldClaim) -> None:
        self._claim = claim

    def _completing(self, value: Any) -> Operation[None]:
        """Record a result of work that is done; if it cannot be encoded or stored, record the reason in its place."""
        claim, terms = self._undone("complete"), self._terms
        try:
            result = terms.encoded(value)
        except Exception as error:  # noqa: BLE001 - the caller's function
            # If this only raised, the next caller would do the work again, and so would every later one; a row that is too large
            # for DynamoDB has the same effect.
            reason = f"{type(error).__name__}: {one_line(error)}"[:LONGEST_REASON]
            result = Result(None, reason, terms.keep, terms.payload_hash)
        return self._recorded(Record(claim, result), value)

    def _returned(self, value: Any) -> Any:
        """Return the result as every caller gets it: decoded from its record, not the function's own object."""
        try:
            return self.result
        except ResultUnavailableError as error:
            error.value = value
            raise

    def _undone(self, what: str) -> HeldClaim:
        """Return the claim of a run that has no result yet; ``what`` names the call."""
        if self._claim is None or self.done:
            raise MutexError(f"{what}: {shown(self.key)} has a result already", key=self.key)
        return self._claim

    def _recorded(self, record: Record, value: Any) -> Operation[None]:
        self._recordings.append(record.guard)
        self._is_work_done = True
        try:
            yield from complete(record)
        except NotRecordedError as error:
            error.value = value
            raise

    def _ending(self, error: BaseException | None) -> Operation[None]:
        """End the call: without a result, another run may begin."""
        claim = self._claim
        if claim is None or self.done:
            return
        warn_of_suspension(claim.process, f"once {shown(self.key)}", error)
        if self._is_work_done or not (
            error is None or isinstance(error, Exception) or not self._terms.is_decided
        ):
            # The record had no answer, and a release could overtake it. Or a person must decide: the mark stays in the row, and
            # every caller gets an error from it once the claim has ended.
            leave_to_expire(
                claim, error or NotRecordedError("complete: the result was not recorded")
            )
            return
        yield from fail(claim)
        if error is None:
            msg = f"the block of {shown(self.key)} ended without complete(): nothing is recorded"
            raise MutexError(msg, key=self.key)

    # -- calls --------------------------------------------------------------------------------------

    def complete(self, value: Any) -> Any:
        """Record the result of your work, which gives up the claim; return it as everybody else will get it.

        The result is recorded if no other run has begun since, even if your lease has ended meanwhile.

        Args:
            value: The result.

        Returns:
            The recorded result as it is decoded; with JSON a tuple has become a list.

        Raises:
            NotRecordedError: Your run has lost the key, or you cannot reach DynamoDB: ``value`` is the value, and ``applied``
                says whether that is certain.
            ResultUnavailableError: The value could not be stored, and then the reason is recorded, or cannot be decoded.
            MutexError: There was a result before this call.
            MutexNotHeldError: Your run has ended.
        """
        execute(current_process(), self._completing(value))
        return self._returned(value)

    def transaction(self, *, result: Any) -> TransactWrite:
        """Return a PynamoDB TransactWrite that writes your rows together with the record of the result: all, or nothing.

        For effects in DynamoDB, that is exactly once. The record is one of its 100 items. If the end of its block raises,
        nothing was written, unless the error says that this is unknown.

        Args:
            result: The result to record.

        Raises:
            TypeError: The result cannot be stored; ValueError likewise.
            MutexLostError: Your run has lost the key.
            MutexError: There was a result before this call.

        Example::

            from pynamodb_mutex import Once

            with Once.for_key("invoice-8") as run:
                if not run.done:
                    with run.transaction(result="paid") as transaction:
                        transaction.update(Account("alice"), [Account.balance.add(10)])
        """
        from pynamodb_mutex._writes import transact_write  # noqa: PLC0415 - seldom needed, slow to load

        record = Record(self._undone("transaction"), self._terms.encoded(result))
        self._recordings.append(record.guard)
        transaction = transact_write.GuardedTransactWrite([record.guard.claim])
        record.guard.in_transaction = True
        transaction._guards = [record]
        return transaction


class Once(Made):
    """Work of one key that is done one time: its result is kept, and everybody who calls again gets it.

    Not guaranteed: that your function runs at most once. Your process may die between the effect and its record; with
    ``on_abandoned="raise"`` you then have to decide, and `Run.transaction <pynamodb_mutex.runs.Run.transaction>` makes both or
    neither. Nor that a result is gone after ``keep``: it may count for about two seconds more.
    """

    _made_by = "{}.for_key(...)"
    _makers = frozenset({"for_key"})

    def __init__(self, terms: Terms) -> None:
        """Use `for_key`."""
        self._terms = terms
        self._runs: Blocks[Run] = Blocks()

    @classmethod
    def for_key(cls, key: str, *, payload: Any = None, **options: Unpack[OnceOptions]) -> Self:
        """Return the once of a key. Sends no request.

        Args:
            key: 1 to 2043 bytes of UTF-8.
            payload: Any JSON value that describes the work; the row gets its SHA-256. A call with another payload raises
                PayloadMismatchError, unless one of the two has none.
            **options: See below.

        Keyword Args:
            keep: For how long a result counts: seconds of DynamoDB's time, or a timedelta; a day by default, ``math.inf`` for
                ever.
            on_abandoned: If your run dies, ``"run"``, the default, lets the next call do the work again; after ``"raise"`` every
                call raises OutcomeUnknownError until you decide by `forget` or `record`.
            timeout: Seconds that you wait for another run; 0 to try once, -1, the default, or None to wait for ever.
            encode: Your function that makes text of a result; JSON by default. None is always recorded as ``null``, without it
                and ``decode``.
            decode: Your function that makes a result of that text.
            model: The model of the rows.
            lease: As for `Mutex.for_key <pynamodb_mutex.Mutex.for_key>`; so are auto_renew, max_hold, owner, on_lost (which
                gets the `~pynamodb_mutex.runs.Run`) and poll.

        Raises:
            InvalidKeyError: DynamoDB would not accept the key.
            TypeError: An option has a wrong type, or the payload is not JSON.
            ValueError: A value is out of range.

        Example::

            from pynamodb_mutex import Once

            with Once.for_key("invoice-7", timeout=60) as run:
                if not run.done:
                    run.complete({"sent": True})  # you do the work before
            print(run.result)
        """
        cls._called("for_key", ())
        return made(cls, _terms(key, payload=payload, **options))

    @property
    def key(self) -> str:
        """Your key."""
        return self._terms.key

    def __repr__(self) -> str:
        """Describe the key and its table, without a request."""
        table = self._terms.options.model.Meta.table_name
        return f"<{type(self).__name__} {shown(self.key)} in {table}>"

    def call(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call your function, unless a result counts; return the result.

        Args:
            function: Your function. Its result is recorded; if it raises an `Exception`, another call may do the work at once.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Returns:
            The recorded result as it is decoded; the first caller gets the same as all others.

        Raises:
            MutexTimeoutError: Another run did not end in time.
            MutexAlreadyHeldError: You call it within a run of this key.
            PayloadMismatchError: The run or the result has another payload.
            OutcomeUnknownError: A run with ``on_abandoned="raise"`` died.
            NotRecordedError: Your function has returned, and its result was or may be not recorded.
            ResultUnavailableError: The work is done, but its result could not be stored, or cannot be decoded.
            TypeError: You gave a coroutine or generator function.
            pynamodb.exceptions.PynamoDBException: As `Mutex.acquire <pynamodb_mutex.Mutex.acquire>`.

        Example::

            print(Once.for_key("total-2026").call(sum, [1, 2, 3]))
        """
        check_function(function)
        if is_async(function):
            raise TypeError("an async function needs an AsyncOnce, or the decorator once")
        with self as began:
            result: R = (
                began.result
                if began.done
                else began.complete(check_result(function(*args, **kwargs)))
            )
        return result

    def __enter__(self) -> Run:
        """Begin a run, or find a result; raises the errors of `call`."""
        began, who = made(Run, self._terms), caller()
        execute(current_process(), began._beginning(who, blocks=waits_block()))
        self._runs.begin(who, began, id(calling_frame()))
        return began

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End your run; without a result another run may begin. Never replaces an exception of your block.

        Raises:
            MutexError: Your block did not raise, and did not call `~pynamodb_mutex.runs.Run.complete`.
        """
        _, run = self._runs.leave(error)
        try:
            execute(current_process(), run._ending(error), may_be_deferred=True)
        except Exception as failure:
            if error is None:
                raise
            note_not_released(error, failure)

    # -- by people ----------------------------------------------------------------------------------

    @classmethod
    def peek(
        cls,
        key: str,
        *,
        model: type[OnceItem] = OnceItem,
        decode: Callable[[str], Any] = json.loads,
    ) -> Known:
        """Return the knowledge about a key, by one consistent read.

        Raises:
            InvalidKeyError: No row can have the key.
            ResultUnavailableError: The stored result cannot be decoded.
            InvalidRowError: The row does not belong to `once`.
            pynamodb.exceptions.GetError: DynamoDB refuses the request, or you cannot reach it.

        Example::

            known = Once.peek("invoice-7")
            print(known.state, known.result)
        """
        process, terms = current_process(), _terms(key, model=model, decode=decode)
        store = process.store(model)
        answer = execute(process, peek(process, store, terms.options.row))
        claim, known, received = answer.claim, answer.claim.of(OnceRow), answer.received
        number = claim.version if claim.token else None
        state = state_of(claim, received, store.bounds)
        if state == "recorded":
            result = None if known.unstored else terms.decoded(claim)
            return Known(state, result, known.unstored, date_of(known.done_until), None, number)
        until = date_of(claim.expires_at) if state == "running" else None
        owner = known.unknown if state == "unknown" else claim.owner
        return Known(state, until=until, owner=owner, fencing_token=number)

    @classmethod
    def forget(cls, key: str, *, force: bool = False, model: type[OnceItem] = OnceItem) -> bool:
        """Forget the result of a key, or the run that died: your next call does the work again.

        Args:
            key: The key.
            force: Forget a run that is under way, too. It records nothing then, but does not learn of it before. You also
                forget a row whose attributes cannot be right.
            model: The model of the row.

        Returns:
            Whether it was forgotten. False if nothing was known, or somebody recorded or began something else meanwhile.

        Raises:
            MutexError: A run is under way, and you did not set ``force``; or no answer came, and somebody has used the key
                since, so that you cannot know whether it was forgotten.
            InvalidRowError: The row does not belong to `once` or, without ``force``, cannot be right.
            InvalidKeyError: No row can have the key.
            pynamodb.exceptions.PynamoDBException: DynamoDB refuses a request, or you cannot reach it.

        Example::

            Once.forget("invoice-7")  # the next call sends it again
        """
        return cls._decide(_terms(key, model=model), None, forces=force)

    @classmethod
    def record(
        cls,
        key: str,
        result: Any,
        *,
        keep: float | timedelta = 86400.0,
        encode: Callable[[Any], str] = _json,
        model: type[OnceItem] = OnceItem,
    ) -> bool:
        """Record the result of work that you did elsewhere, or of a run that died.

        Args:
            key: The key.
            result: The result.
            keep: For how long it counts, as for `for_key`.
            encode: Your function that makes text of it; JSON by default.
            model: The model of the row.

        Returns:
            Whether it was recorded. False if somebody recorded or began something else meanwhile.

        Raises:
            MutexError: A run is under way, or a stored result counts; or you cannot know whether it was recorded, as for
                `forget`.
            InvalidRowError: The row does not belong to `once`.
            TypeError: The result cannot be stored; ValueError likewise.
            InvalidKeyError: No row can have the key.
            pynamodb.exceptions.PynamoDBException: DynamoDB refuses a request, or you cannot reach it.

        Example::

            Once.record("invoice-9", {"sent": True})  # you sent it by hand
        """
        terms = _terms(key, model=model, keep=keep, encode=encode)
        return cls._decide(terms, terms.encoded(result), forces=False)

    @staticmethod
    def _decide(terms: Terms, result: Result | None, *, forces: bool) -> bool:
        process, options = current_process(), terms.options
        store = process.store(options.model)
        row, key = options.row, terms.key
        answer = execute(process, peek(process, store, row, forces=forces and not result))
        return execute(
            process, decide(process, store, row, key, result, answer=answer, forces=forces)
        )
