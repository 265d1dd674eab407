"""Mutex: a lock on one key, on the first free one of several keys (`AnyOf`), or on several keys together.

These classes check what the caller asks for and remember who has which acquisition. How a lock is acquired, renewed
and released is in the modules of `pynamodb_mutex._lock.operations` that have these names; properties and calls that all
locks share are in `pynamodb_mutex._lock.handles`. `pynamodb_mutex.groups` exports the locks on several keys, and adds `Semaphore`.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.dynamodb.keys import check_key, key_of, row_key, row_name
from pynamodb_mutex._lock.handles import HandleOfOne, Lock, timeout_error
from pynamodb_mutex._lock.operations.acquire import Acquisition
from pynamodb_mutex._lock.operations.contender import Contender
from pynamodb_mutex._lock.operations.options import (
    OPTIONS,
    LockOptions,
    check_lease,
    checked,
    made,
)
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.messages import shown
from pynamodb_mutex._lock.runtime.callers import caller, waits_block
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._several.handles import MOST_KEYS, KeyGroup, OneOfSeveral, members
from pynamodb_mutex.exceptions import MutexAlreadyHeldError, MutexTimeoutError
from pynamodb_mutex.models import LockItem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta
    from typing import TypedDict

    from pynamodb.models import Model
    from pynamodb.transactions import TransactWrite
    from typing_extensions import Self, Unpack

    from pynamodb_mutex._attach.ticket import Ticket
    from pynamodb_mutex._fair.acquire import FairAcquisition
    from pynamodb_mutex._fair.hints import Hints
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim

    class CommonOptions(TypedDict, total=False):
        """The options of `Mutex.for_key` without the functions to call."""

        timeout: float | timedelta | None
        poll: tuple[float | timedelta, float | timedelta]
        fair: bool | Hints
        lease: float | timedelta
        auto_renew: bool
        max_hold: float | timedelta | None
        owner: str | None
        data: Any
        attributes: Mapping[str, Any] | None
        must_exist: bool
        delete_on_release: bool
        reentrant: bool
        shared: bool
        hold_at_least: float | timedelta | None

    class Options(CommonOptions, total=False):
        """The options of `Mutex.for_key`."""

        on_lost: Callable[[Mutex], object] | None
        on_danger: Callable[[Mutex], object] | None


def options_of(
    key: str, options: Mapping[str, Any], range_key: Any = None, model: type[LockItem] = LockItem
) -> LockOptions:
    """Return the options of a lock in a lock table, checked: what `Mutex.for_key` makes a mutex of."""
    if not (isinstance(model, type) and issubclass(model, LockItem)):
        msg = f"model must be LockItem or a subclass of it, not {model!r}"
        raise TypeError(msg)
    row, given = key_of(model, check_key(key), range_key), checked(model, options)
    if given.get("fair", False) is not False:
        from pynamodb_mutex._fair.hints import checked_fair  # noqa: PLC0415 - seldom needed

        given["fair"] = checked_fair(given["fair"], os.environ.get("PYNAMODB_MUTEX_HINTS", ""))
    return LockOptions(key, row, model, range_key, **given)


class Mutex(HandleOfOne, Lock["HeldClaim"]):
    """A lock on one key, held by at most one thread or task at a time, in whichever process.

    Use it like `threading.Lock`, as a context manager, or as a decorator. With ``shared=True`` several hold it together.

    Threads may share a mutex. A thread that has called `acquire`, or entered ``with``, sees its own latest attempt alone:
    if that was refused, the lock is not held for it, and `release` raises. Any other thread sees the latest acquisition.

    Not guaranteed: that what the holder does outside DynamoDB ends before its lease does, because a process can be paused
    at any time. `transaction`, `save_data`, and a resource that compares `fencing_token` are safe from that.
    """

    _makers = frozenset({"for_key", "for_row", "for_keys", "any_of", "attach"})

    _latest: HeldClaim | None = None  # for an object whose making has failed

    _raw_key: RawItem | None = None
    """Primary key of the user's row, if this is the lock of a row; `detach` puts it into the ticket."""

    def __init__(self, options: LockOptions) -> None:
        """Use `for_key`."""
        super().__init__(options)
        # what `attach` acquired, until the first ``with`` uses it
        self._attached: HeldClaim | None = None
        self._in_line: FairAcquisition | None = None

    def __del__(
        self, _warn: Any = warnings.warn, _is_ending: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        """Warn that the lock is held and nobody can release it any more."""
        claim = self._latest
        # while Python ends, the modules are no longer complete
        if claim is None or claim.is_released or _is_ending():
            return
        # Not if another object has acquired a reentrant lock, which this one has entered; nor inside a block that waits in
        # a generator: the garbage collector closes that as well, and so leaves the block.
        lock = claim.contender.lock()
        if claim.held and not claim.whole.open_blocks and (lock is None or lock is self):
            msg = f"{shown(claim.key)} is held, and the {type(self).__name__} that acquired it is gone: it was not released"
            _warn(msg, ResourceWarning, stacklevel=2, source=self)

    @property
    def position(self) -> int | None:
        """Number of waiters in line before the latest `acquire`, as of its last answer; None if in no line. Sends no request."""
        return None if self._in_line is None else self._in_line.position

    @classmethod
    def for_key(
        cls,
        key: str,
        *,
        range_key: Any = None,
        model: type[LockItem] = LockItem,
        **options: Unpack[Options],
    ) -> Mutex:
        """Return a mutex for a key, not yet held. Sends no request.

        Args:
            key: 1 to 2048 bytes of UTF-8.
            range_key: The range key of the lock's row, of the type of the model's attribute; by default the default
                of that. Two locks that differ in it alone are two locks.
            model: The lock table.

        Waiting:
            timeout (float | timedelta | None): Seconds to wait for the lock; -1, the default, or None waits for ever.
            poll (tuple[float | timedelta, float | timedelta]): Shortest and longest wait between two polls of a held lock.
            fair (bool | Hints): Acquire the lock in the order of arrival, among all waiters that set this, in whichever
                process: see `position`. Not guaranteed: an order relative to waiters that do not set it. See `Hints`; with
                PYNAMODB_MUTEX_HINTS=1 in the environment, True means these.

        Lease and loss:
            lease (float | timedelta): Seconds until the lock expires unless it is renewed, at least 0.5 and at most 100
                years; 30 by default. The lock of a dead holder is free after about this time.
            auto_renew (bool): Renew the lock in the background, each time a third of the lease has passed.
            max_hold (float | timedelta | None): Seconds after which these renewals end, in case the holder hangs; None for never.
            on_danger (Callable | None): Called with the mutex, on a thread of its own, when less than a third of the lease
                is left, and renewal has not helped, or there is none; not before half of the lease has passed. Once, and
                again after a renewal that was applied. Not guaranteed: that it precedes the loss if the process stands still.
            on_lost (Callable | None): Called with the mutex, on a thread of its own, when the lock is lost.

        The row:
            owner (str | None): A label for people; by default host, process and thread. The protocol never compares it.
            data (Any): JSON payload, written into the row with the claim; None, the default, leaves the stored one.
            attributes (Mapping[str, Any] | None): Values of extra attributes of the model, by name, written with the
                claim in place of the defaults. What is not given keeps its value, also one of another holder.
            must_exist (bool): Acquire the lock only if its row exists; otherwise `acquire` raises the model's
                DoesNotExist. Each use leaves a row for the model's ``retention``.
            delete_on_release (bool): Delete the row at release. Fencing tokens could then fall, and a late copy of a
                guarded write could be applied again: `fencing_token`, `transaction` and `save_data` raise MutexError.

        Special kinds:
            reentrant (bool): A thread that holds the key by a reentrant mutex may acquire it again.
            hold_at_least (float | timedelta | None): Seconds from the acquisition for which nobody else gets the lock,
                also if it is released sooner: such a release keeps the claim in the row, held by nobody, until then.
                With ``delete_on_release`` the TTL deletes the row then. Not guaranteed: anything if the holder dies or its
                release meets no answer: the lock is free after its lease then.
            shared (bool): Up to 100 that set this, *readers*, hold the key together; who does not, a *writer*, holds it
                alone, and may read under its lock. A waiting writer holds new readers back until the longest one has left.
                Readers have one fencing token, which orders writers only, and write nothing under the lock. Not with other
                special kinds, ``fair``, ``data``, ``attributes`` or ``delete_on_release``. Not guaranteed: that copies of a
                process exclude a writer.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not accept; for a range key that the model cannot have; or
                without a range key where the model has one without a default.
            TypeError: For an option of a wrong type, or that another one excludes; for data that is not JSON; for an
                attribute that the model does not have, or a value that it cannot have.
            ValueError: For a duration that is negative, infinite, NaN or over 100 years; for a lease under 0.5 s; for NaN
                or infinity in the data, or data over 400 KB.
        """
        cls._called("for_key", options)
        return made(cls, options_of(key, options, range_key=range_key, model=model))

    @classmethod
    def for_row(
        cls,
        model: type[Model],
        hash_key: Any,
        range_key: Any = None,
        *,
        lock_model: type[LockItem] = LockItem,
        **options: Unpack[Options],
    ) -> Mutex:
        """Return a mutex in the lock table that is named after a row, which need not exist. Sends no request.

        It is the lock of `RowLockMixin.locked` if the model has this ``lock_model``; otherwise it is another one.

        Args:
            model: The row's model; any PynamoDB model.
            hash_key: The row's hash key.
            range_key: The row's range key, if the model has one.
            lock_model: The lock table.
            **options: Those of `for_key`.

        Raises:
            InvalidKeyError: For a key that the model cannot have.
        """
        cls._called("for_row", options)
        name = row_name(model, row_key(model, hash_key, range_key))
        return cls.for_key(name, model=lock_model, **options)

    @classmethod
    def for_keys(
        cls,
        keys: Iterable[str | Mutex],
        *,
        model: type[LockItem] = LockItem,
        **options: Unpack[Options],
    ) -> MutexGroup:
        """Return the locks of several keys, to be acquired together: all or none. Sends no request.

        Args:
            keys: 1 to 100 keys; a repeated key counts once. A Mutex among them, such as one in another lock table of the
                region, keeps its own options.
            model: The lock table of the keys that are strings.
            **options: Those of `for_key`. ``timeout`` and ``poll`` are the group's. ``on_lost`` is called once, with the
                mutex, also one among the keys, whose lock was lost first; ``on_danger`` once, with one of them.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not accept.
            TypeError: If the keys are a single string, or not iterable; for a mutex on any of several keys, such as a
                semaphore, or one that is fair or shared; and as `for_key`.
            ValueError: For no key, more than 100, a key that is repeated with different options, or tables in different
                regions or at different hosts; and as `for_key`.
        """
        cls._called("for_keys", options)
        locks = members("for_keys", keys, partial(Mutex.for_key, model=model, **options))
        for mutex in locks:
            mutex._options.check_several()
        # the group's own options: only timeout and poll are used, so any key serves
        return made(MutexGroup, locks, options_of("keys", options, model=model))

    @classmethod
    def attach(
        cls, ticket: str, *, model: type[LockItem] = LockItem, **options: Unpack[Options]
    ) -> Mutex:
        """Continue to hold a lock that another process detached. The mutex is held when this returns.

        The lock gets a new fencing token, and DynamoDB refuses each guarded write, renewal and release that the previous
        holder still sends. Not guaranteed: that its work outside DynamoDB has ended; compare fencing tokens. The first
        ``with`` uses this acquisition and releases it at its end.

        Args:
            ticket: What `detach` returned. It is good once.
            model: The lock table.
            **options: Those of `for_key`, for this holder. The default lease is that of the detached mutex. ``timeout``
                limits how long failed requests are retried, to one lease at most.

        Raises:
            InvalidTicketError: If it is not a ticket, or one for another table or region.
            MutexLostError: If the ticket was used or has expired, or the lock was broken or acquired since: see ``loss``.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request, or cannot be reached: the ticket may be used
                up. GetError if that happens to the read before it: the ticket is still good.
        """
        from pynamodb_mutex._attach.ticket import parse_ticket  # noqa: PLC0415 - seldom needed

        cls._called("attach", options)
        if options.get("shared"):
            raise TypeError("a ticket is for a lock that is held alone: leave out shared=True")
        read = parse_ticket(ticket)
        mutex = cls._for_ticket(read, model, **options)
        execute(current_process(), mutex._attaching(read, blocks=waits_block()))
        return mutex

    @classmethod
    def _for_ticket(cls, ticket: Ticket, model: Any, **options: Unpack[Options]) -> Mutex:
        own: Options = {"lease": ticket.lease, **options}
        return cls.for_key(ticket.key, range_key=ticket.range_value(model), model=model, **own)

    @classmethod
    def any_of(
        cls,
        keys: Iterable[str | Mutex],
        *,
        model: type[LockItem] = LockItem,
        **options: Unpack[Options],
    ) -> AnyOf:
        """Return a mutex on whichever of several keys is free first, not yet held. Sends no request.

        Args:
            keys: 1 to 100 keys of one lock table; a repeated key counts once. A Mutex among them keeps its own options.
            model: The lock table of the keys that are strings.
            **options: Those of `for_key`. ``timeout``, ``poll`` and ``reentrant`` are this object's; with ``reentrant``, only
                this object can acquire its key again. ``on_lost`` and ``on_danger`` are called whichever key it gets.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not accept.
            TypeError: As `for_keys`.
            ValueError: For no key, more than 100, a key that is repeated with different options, or keys in different tables.
        """
        cls._called("any_of", options)
        mutexes = members("any_of", keys, partial(Mutex.for_key, model=model, **options))
        each = [mutex._options for mutex in mutexes]
        if not 1 <= len(each) <= MOST_KEYS:
            msg = f"any_of takes 1 to {MOST_KEYS} keys, not {len(each)}"
            raise ValueError(msg)
        one: Any = each[0]
        if any(other.model is not one.model for other in each):
            raise ValueError("any_of takes keys of one lock table, all by the same model")
        own = options_of(one.key, options, range_key=one.range_key, model=one.model)
        return AnyOf._of(own, each)

    def acquire(
        self,
        blocking: bool = True,
        timeout: float | timedelta | None = None,
        *,
        force: bool = False,
    ) -> bool:
        """Acquire the lock.

        Args:
            blocking: Wait for the lock; otherwise try once.
            timeout: Seconds to wait, -1 for ever; None for the mutex's own timeout.
            force: Take the place of the holder, also of one that lives, or of all readers: the acquiring write breaks the
                claim that this call found first, and who held it learns the loss, with the cause FORCED, at the next
                request. If yet another was faster, this waits for that one. Not guaranteed: that the work of who was
                displaced has ended outside DynamoDB.

        Returns:
            Whether the lock was acquired. False only if DynamoDB said that another holder has it.

        Raises:
            MutexAlreadyHeldError: If this thread or task holds the lock by this mutex, which is not reentrant; or if it
                shares the lock and asks for it alone. Without a timeout, also if the wait would never end: it holds the
                lock, which is renewed without end, by another mutex, or would block the event loop of a task that does, or
                that is before it in line (with a timeout, the latter is a RuntimeWarning).
            MutexError: If the lock is shared, and DynamoDB's answers have no ``Date``.
            TypeError: For ``force`` with a shared lock, or one on any of several keys, such as a semaphore.
            ValueError: For a timeout with ``blocking=False``, or a negative one other than -1.
            InvalidRowError: If the row under the key is not a lock's, or has impossible attributes.
            pynamodb.exceptions.DoesNotExist: With ``must_exist``, if there is no row.
            pynamodb.exceptions.TableDoesNotExist: If the table is missing; names table and region.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request; or if it throttled, failed, answered later than
                the lease allows, or was unreachable until the timeout, or for 10 s at an endpoint that has never answered
                this process. GetError for a read: the first request to an endpoint, or a poll.
        """
        return self._acquire(blocking, timeout, force)

    def _contender(self, who: Caller, *, blocks: bool) -> Contender:
        process, options = current_process(), self._options
        store, kind = process.store(options.model), Contender
        if options.shared:
            from pynamodb_mutex._shared.acquire import SharedContender  # noqa: PLC0415 - seldom needed

            kind = SharedContender
        contender = kind(process, store, options, who, lock=self, blocks=blocks)
        # True does not call anybody
        if options.fair and options.fair is not True:
            from pynamodb_mutex._fair.listener import call_first  # noqa: PLC0415 - seldom needed

            contender.on_freed = call_first
        return contender

    def _acquisition(self, who: Caller, timeout: float, *, blocks: bool) -> Acquisition:
        contender = self._contender(who, blocks=blocks)
        if self._options.shared:
            from pynamodb_mutex._shared.acquire import SharedAcquisition  # noqa: PLC0415 - as above

            return SharedAcquisition(contender, timeout)
        acquisition = Acquisition(contender, timeout)
        if self._options.fair:
            from pynamodb_mutex._fair.acquire import FairAcquisition  # noqa: PLC0415 - as above

            acquisition = self._in_line = FairAcquisition(contender, timeout)
        acquisition.on_readers = _meet_readers
        return acquisition

    def _reentered(self, acquisition: Acquisition, me: Caller) -> HeldClaim | None:
        mine = self._acquired.get(me)
        if self._options.reentrant:
            # The acquisition may have been made by another mutex of this process, on the same key. Not `key_queue`: the
            # key of a semaphore, "gpu", may also be that of a mutex, and whoever holds that one has no permit.
            local = acquisition.contender.queue.holder
            if local is not None and local.reenters(me.number):
                mine = local
        now = acquisition.process.now
        if mine is None or not mine.stands_at(now):
            if mine is not None and mine.depth:
                mine.note_left()
            self._acquired[me] = None
            return None
        # It stands, but is not held, while a write with ``unlock=True`` is under way or after that write's answer was
        # lost: the lock may be released at any moment, so nothing can begin under it.
        if not (self._options.reentrant and mine.held_at(now)):
            msg = (
                f"{shown(self._options.name)} is already held by this thread or task, by this mutex"
            )
            raise MutexAlreadyHeldError(msg, key=self._options.name, owner=mine.contender.owner)
        mine.depth += 1
        return mine

    @property
    def _to_enter(self) -> HeldClaim | None:
        """The acquisition of `attach`, if the next block uses it; None if that acquires the lock by itself."""
        attached = self._attached
        if attached is None or attached.is_released or attached is not self._latest:
            return None
        return attached

    def _entering(self, acquisition: Any, me: Caller, frame: int) -> Operation[HeldClaim]:
        # taken out in this step: of two threads that enter, one gets it, and the other acquires the lock for itself
        attached, self._attached = self._to_enter, None
        if attached is None:
            return (yield from super()._entering(acquisition, me, frame))
        attached.check("with")
        # The block may run on another thread than `attach` did. That thread is the holder from now on: it is the one
        # that may enter again, and whose wait for this lock would never end.
        self._acquired[me] = attached
        contender = attached.contender
        contender.caller, contender.thread, contender.who = me.number, me.thread, me.of
        contender.is_pinned = me.is_pinned
        return self._begin_block(attached, me, frame)

    def __enter__(self) -> Self:
        """Acquire the lock, as `acquire` does; after `attach`, use that acquisition.

        Raises:
            MutexTimeoutError: If the lock was not free within the timeout.
            MutexLostError: After `attach`, if the lock has been lost since.
        """
        self._enter()
        return self

    def _attaching(self, ticket: Ticket, *, blocks: bool) -> Operation[HeldClaim | None]:
        """Acquire the lock that a ticket names; the next ``with`` block uses that acquisition."""
        from pynamodb_mutex._attach.attach import Attachment  # noqa: PLC0415 - seldom needed

        who = caller()

        def note(claim: HeldClaim) -> None:
            self._attached = claim
            self._note(who, claim)

        return Attachment(self._contender(who, blocks=blocks), ticket).acquire(note)

    def detach(self, lease: float | timedelta | None = None) -> str:
        """End the acquisition here; return a ticket, compact ASCII JSON, for one `attach` elsewhere.

        Until `attach`, nobody holds the lock and nobody else can acquire it. It is renewed once more, and then expires with
        the ticket. Waits for a guarded write that is being sent. If the lock would have expired later than the ticket, a
        second request moves its end; it is sent once, and if it fails the key stays locked until that later time. Anyone who
        has the ticket and may write to the table can use it. Not guaranteed: that anybody does; then the key is locked until it expires.

        Args:
            lease: Seconds from now for which the ticket is good; the mutex's lease by default.

        Raises:
            MutexLostError: If the lock is lost.
            MutexNotHeldError: If it is not held here, or a write of unknown outcome may have released it.
            MutexAlreadyHeldError: If this thread or task has acquired a reentrant lock more than once.
            MutexError: If it was acquired together with other locks.
            TypeError: If it is shared.
            pynamodb.exceptions.UpdateError: If DynamoDB cannot be reached within 5 s. The lock is held as before.
        """
        return execute(current_process(), self._detaching(lease))

    def _detaching(self, lease: float | timedelta | None) -> Operation[str]:
        if lease is not None:
            lease = check_lease(lease)
        if self._options.shared:
            raise TypeError("a shared lock cannot be detached: others hold the same claim")
        from pynamodb_mutex._attach.attach import detach  # noqa: PLC0415 - seldom needed

        return detach(self._current("detach"), lease, self._raw_key)

    def release(self, *, data: Any = None) -> None:
        """Release the lock.

        In a signal handler or finaliser that interrupted a step of this library on the same thread, the lock is released
        right after that step, and errors are logged.

        Args:
            data: JSON payload, written by the same request; None leaves the stored one. If the lock is handed over to a thread
                of this process that has ``data`` of its own, that is written instead.

        Raises:
            MutexLostError: If it had been lost. The payload is not written then.
            MutexNotHeldError: If it is not held here: never acquired, refused, released already, or acquired by the parent
                of this forked process.
            MutexAlreadyHeldError: For data, if this thread or task has acquired a reentrant lock more than once.
            MutexError: For data with ``delete_on_release`` or ``shared``.
            TypeError: For data that is not JSON, or with the lock of a row that has no ``lock_model``.
            ValueError: For NaN or infinity in the data, or if it is over 400 KB.
            pynamodb.exceptions.PynamoDBException: If DynamoDB cannot be reached; the lock then expires with its lease.
                UpdateError or, with ``delete_on_release``, DeleteError.
        """
        held = self._current("release")
        serialized = None if data is None else self._payload("release", data)
        execute(current_process(), release(held, data=serialized), may_be_deferred=True)

    def renew(self, lease: float | timedelta | None = None, *, data: Any = None) -> None:
        """Renew now, by one request. The new end counts from now and is never before the old one.

        An expired lock is won back if nobody has acquired it since; not with data.

        Args:
            lease: Seconds, for this renewal alone; the lock's own lease by default.
            data: JSON payload, written by the same request as `save_data` does; None leaves the stored one.

        Raises:
            MutexLostError: If the lock is lost; ``applied`` says whether data was written.
            MutexNotHeldError: If it is not held here.
            MutexError: For data with ``delete_on_release`` or ``shared``.
            TypeError: For data that is not JSON, or with the lock of a row that has no ``lock_model``.
            ValueError: For NaN or infinity in the data, or if it is over 400 KB.
            pynamodb.exceptions.UpdateError: If DynamoDB cannot be reached until the lease ends; data may have been written.
        """
        execute(current_process(), self._renewing(lease, data))

    def _renewing(self, lease: float | timedelta | None, data: Any = None) -> Operation[None]:
        if data is None:
            return super()._renewing(lease)
        from pynamodb_mutex._writes.guarded_write import save_data  # noqa: PLC0415 - as below

        serialized = self._payload("renew", data)
        return save_data(
            self._current("renew"),
            serialized,
            self._present.lease if lease is None else check_lease(lease),
        )

    def _payload(self, what: str, data: Any) -> str | None:
        """Return a payload that a call writes with its request, serialised; ``what`` names the call."""
        from pynamodb_mutex._writes.guarded_write import payload_with_request  # noqa: PLC0415 - seldom needed

        return payload_with_request(self._current(what), what, data)

    def save_data(self, data: Any) -> None:
        """Write the payload into the row by a guarded write: only if the lock is still held in DynamoDB.

        Args:
            data: The payload, any JSON value; None removes the stored one.

        Raises:
            MutexLostError: If the lock is lost; ``applied`` says whether the payload was written.
            MutexNotHeldError: If it is not held here.
            MutexError: With ``delete_on_release`` or ``shared``, because nothing can be guarded then.
            TypeError: If the payload is not JSON.
            ValueError: For NaN or infinity in it, or if it is over 400 KB.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request; or cannot be reached: it may have been written.
        """
        execute(current_process(), self._saving_data(data))

    def _saving_data(self, data: Any) -> Operation[None]:
        from pynamodb_mutex._writes.guarded_write import (  # noqa: PLC0415 - seldom needed
            payload,
            save_data,
        )

        claim = self._current("save_data")
        return save_data(claim, payload(claim, data))

    def transaction(self) -> TransactWrite:
        """Return a PynamoDB TransactWrite that is applied only if the lock is still held in DynamoDB.

        It is applied at most once, in the order of this holder's writes. The guard is one of its 100 items. Leaving its
        ``with`` block raises MutexLostError if the lock is lost (``applied`` says whether the rows were written),
        ``pynamodb.exceptions.TransactWriteError`` if another of its conditions does not hold (nothing was written) or
        DynamoDB cannot be reached (the outcome is unknown), and ``TableDoesNotExist`` for a missing table.

        Not guaranteed: that nothing *will be* written after that refusal, if an earlier attempt was delayed on the way and the
        refusing row is not locked. Once that row changes, it may be applied, until the next write or release under this lock.

        Raises:
            MutexLostError: If the lock is lost already.
            MutexNotHeldError: If it is not held here.
            MutexError: As `save_data`.
        """
        claim = self._current("transaction")
        from pynamodb_mutex._writes import transact_write  # noqa: PLC0415 - seldom needed, slow to load

        return transact_write.GuardedTransactWrite([claim])

    def force_release(self) -> bool:
        """Break the claim that is on this key now, and no later one: see `LockItem.force_release`.

        Returns:
            Whether a claim was broken, or a row repaired.

        Raises:
            InvalidRowError: If the row under the key is not a lock's.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request or cannot be reached; GetError if that
                happens to the read before it.
        """
        return execute(current_process(), self._forcing())

    def _forcing(self) -> Operation[bool]:
        from pynamodb_mutex._admin.force import force  # noqa: PLC0415 - seldom needed

        process, options = current_process(), self._options
        return force(process, process.store(options.model), options.row, options.key)

    def _another(self) -> Mutex:
        return made(Mutex, self._options)

    def _asking(self) -> Operation[bool]:
        process, options = current_process(), self._options
        store = process.store(options.model)
        read = store.read(options.row, consistent=True)
        answer = yield from retrying(process, lambda: read, 0.0)
        claim, seen = answer.claim, (answer.received, store.bounds)
        is_kept_out = options.shared and claim.marked_until(*seen) is not None
        return is_kept_out or claim.is_held(*seen)

    def _timeout_error(self, acquisition: Acquisition) -> MutexTimeoutError:
        return timeout_error("{} was not free", self._options.name, acquisition)


def _meet_readers(acquisition: Acquisition) -> None:
    from pynamodb_mutex._shared.acquire import meet_readers  # noqa: PLC0415 - seldom needed

    meet_readers(acquisition)


def _signature() -> inspect.Signature:
    """Return the signature of `Mutex.for_key` for people, with the defaults of its options, which it hands on."""
    plain = inspect.signature(Mutex.for_key.__func__)  # type: ignore[attr-defined]  # a class method has one
    *own, _ = plain.parameters.values()
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(LockOptions, name))
        for name in OPTIONS
    ]
    return plain.replace(parameters=[*own, *options])


Mutex.for_key.__func__.__signature__ = _signature()  # type: ignore[attr-defined]  # as above


# -- several keys ----------------------------------------------------------------------------------


class AnyOf(OneOfSeveral, Mutex):
    """A mutex on whichever of several keys is free first: see `Mutex.any_of <pynamodb_mutex.Mutex.any_of>`.

    Once acquired, it is a mutex on the key that it got. Threads and tasks of one process that wait for the same set of keys
    get one in the order of their calls. Not guaranteed: an order between processes, or between different sets of keys.
    Fencing tokens can be compared only within one key.
    """

    _made_by = "Mutex.any_of([...])"
    _makers = frozenset({"any_of"})


class MutexGroup(KeyGroup):
    """The locks of several keys, acquired, renewed and released together: all or none.

    Use it like a ``Mutex``, as a context manager or as a decorator. Acquiring, renewing and releasing take one request each,
    so no order of keys is needed, and there is no deadlock. Losing one lock is losing all: ``on_lost`` is called once, and
    the other claims remain until ``release``, or until they expire.

    Not guaranteed: that waiters for fewer of the keys, or readers of one, do not overtake a group again and again; and what
    ``Mutex`` does not guarantee.
    """

    _made_by = "Mutex.for_keys([...])"

    @property
    def members(self) -> tuple[Mutex, ...]:
        """A Mutex for each lock, in the order of `keys`.

        Its ``abandoned_by`` is None, and so is its ``data`` until `save_data <pynamodb_mutex.Mutex.save_data>`, whatever
        the row has: DynamoDB's answer to a transaction shows no rows.
        """
        return tuple(self._locks)
