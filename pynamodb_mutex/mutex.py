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
    """A lock on one key. Only one thread or task at a time holds it, in all of your processes together.

    Use it like `threading.Lock`, as a context manager, or as a decorator. With ``shared=True`` several readers hold it
    together.

    Your threads may share a mutex. If your thread has called `acquire`, or entered ``with``, it sees its own latest attempt
    alone: after a refusal, the lock is not held for your thread, and `release` raises. Any other thread sees the latest
    acquisition.

    Not guaranteed: that your work outside DynamoDB ends before your lease does, because the system can pause your process at
    any time. `transaction`, `save_data`, and a resource that compares `fencing_token` are safe from that.

    Example::

        from pynamodb_mutex import Mutex

        with Mutex.for_key("invoice-42", timeout=10) as mutex:
            print("you hold it", mutex.held)
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
        # Not if this object has entered a reentrant lock that another object acquired; nor inside a block in a suspended
        # generator: the garbage collector closes the generator as well, and so leaves the block.
        lock = claim.contender.lock()
        if claim.held and not claim.whole.open_blocks and (lock is None or lock is self):
            msg = f"{shown(claim.key)} is held, and the {type(self).__name__} that acquired it is gone: it was not released"
            _warn(msg, ResourceWarning, stacklevel=2, source=self)

    @property
    def position(self) -> int | None:
        """Number of waiters before you in line, as of the last answer to `acquire`; None outside of a line. Sends no request."""
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
        """Return a mutex for a key. You do not hold it yet, and this sends no request.

        Args:
            key: 1 to 2048 bytes of UTF-8.
            range_key: The range key of the lock's row, of the type of the model's attribute; the attribute's default if you
                give none. If two of your locks differ in the range key alone, they are two locks.
            model: The lock table.

        Waiting:
            timeout (float | timedelta | None): Seconds that you wait for the lock; -1, the default, or None waits for ever.
            poll (tuple[float | timedelta, float | timedelta]): Shortest and longest wait between two polls of a held lock.
            fair (bool | Hints): You get the lock in the order of arrival, among all waiters with this option, in all processes:
                see `position`. Not guaranteed: an order relative to waiters without it. If you set PYNAMODB_MUTEX_HINTS=1 in
                the environment, True means `Hints`.

        Lease and loss:
            lease (float | timedelta): Seconds that the lock lasts without a renewal, at least 0.5 and at most 100 years; 30
                by default. If your process dies, others get the lock after about this time.
            auto_renew (bool): A thread of the library renews the lock each time a third of the lease has passed.
            max_hold (float | timedelta | None): Seconds after which these renewals end, in case your function hangs; None for
                never.
            on_danger (Callable | None): Your function, which the library calls with the mutex, on a thread of its own, when
                less than a third of the lease is left, and renewal has not helped, or is off; not in the first half of the
                lease. You get one call, and another one only after a successful renewal. Not guaranteed: that the call precedes
                the loss, if your process stands still.
            on_lost (Callable | None): Your function, which the library calls with the mutex, on a thread of its own, when you
                have lost the lock.

        The row:
            owner (str | None): Your label for people; by default host, process and thread. The protocol never compares it.
            data (Any): JSON that you write into the row with the claim; None, the default, leaves the stored payload.
            attributes (Mapping[str, Any] | None): Values of your model's extra attributes, by name. You write them with the
                claim, in place of the defaults. An attribute that you leave out keeps its value, also a value from another
                holder.
            must_exist (bool): You acquire the lock only if its row exists; otherwise `acquire` raises the model's DoesNotExist.
                Each use leaves a row for the model's ``retention``.
            delete_on_release (bool): Your release deletes the row. Fencing tokens could then fall, and DynamoDB could apply a
                late copy of a guarded write again: `fencing_token`, `transaction` and `save_data` raise MutexError.

        Special kinds:
            reentrant (bool): A thread that holds the key by a reentrant mutex may acquire it again.
            hold_at_least (float | timedelta | None): Seconds from the acquisition for which nobody else gets the lock. If you
                release it sooner, your release keeps the claim in the row, without a holder, for the rest of that time. With
                ``delete_on_release`` the TTL deletes the row afterwards. Not guaranteed: anything if your process dies or your
                release meets no answer: the lock is free after its lease then.
            shared (bool): You become a *reader*: up to 100 readers hold the key together. A holder without this option, a
                *writer*, holds the key alone, and may read under its lock. A waiting writer holds new readers back until the
                longest reader has left. Readers have one fencing token, which orders writers only, and write nothing under the
                lock. Not with other special kinds, ``fair``, ``data``, ``attributes`` or ``delete_on_release``. Not guaranteed:
                that copies of a process exclude a writer.

        Raises:
            InvalidKeyError: DynamoDB would not accept the key; the model cannot have the range key, or needs a range key that
                you did not give.
            TypeError: An option has a wrong type, or two options exclude each other; the data is not JSON; the model has no
                such attribute, or cannot have its value.
            ValueError: A duration is negative, infinite, NaN or over 100 years; the lease is under 0.5 s; the data has NaN or
                infinity, or over 400 KB.

        Example::

            mutex = Mutex.for_key("report-7", lease=60, timeout=5, owner="nightly job")
            with mutex:
                print(mutex.owner, "writes the report")
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
        """Return a mutex in the lock table, named after a row, which need not exist. Sends no request.

        If the model has this ``lock_model``, you get the lock of `RowLockMixin.locked`; otherwise you get a different lock.

        Args:
            model: The row's model; any PynamoDB model.
            hash_key: The row's hash key.
            range_key: The row's range key, if the model has one.
            lock_model: The lock table.
            **options: The options of `for_key`.

        Raises:
            InvalidKeyError: The model cannot have the key.
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
        """Return the locks of several keys: you acquire all of them together, or none. Sends no request.

        Args:
            keys: 1 to 100 keys; a repeated key counts once. A Mutex among them keeps its own options, and may be in another
                lock table of the region.
            model: The lock table of your keys that are strings.
            **options: The options of `for_key`. ``timeout`` and ``poll`` are the group's. The library calls ``on_lost`` once,
                with the mutex that was lost first, which may be one of your keys; and ``on_danger`` once, with any of them.

        Raises:
            InvalidKeyError: DynamoDB would not accept a key.
            TypeError: You gave a single string, or nothing to iterate over; a mutex on any of several keys, as a semaphore is;
                a fair or shared mutex; and as `for_key`.
            ValueError: You gave no key, more than 100, one key with different options, or tables in different regions or at
                different hosts; and as `for_key`.

        Example::

            with Mutex.for_keys(["account-a", "account-b"], timeout=10) as both:
                print("you hold", both.keys)
        """
        cls._called("for_keys", options)
        locks = members("for_keys", keys, partial(Mutex.for_key, model=model, **options))
        for mutex in locks:
            mutex._options.check_several()
        # the group's own options: only timeout and poll are used, so any key will do
        return made(MutexGroup, locks, options_of("keys", options, model=model))

    @classmethod
    def attach(
        cls, ticket: str, *, model: type[LockItem] = LockItem, **options: Unpack[Options]
    ) -> Mutex:
        """Continue to hold a lock that another process detached. You hold the mutex when this returns.

        The lock gets a new fencing token, and DynamoDB refuses each guarded write, renewal and release that the previous holder
        still sends. Not guaranteed: that the previous holder's work outside DynamoDB has ended; compare fencing tokens. Your
        first ``with`` uses this acquisition and releases it at its end.

        Args:
            ticket: The text that `detach` returned. You can use it once.
            model: The lock table.
            **options: The options of `for_key`, for you as the holder. The default lease is the detached mutex's. ``timeout``
                limits the retries of failed requests, to one lease at most.

        Raises:
            InvalidTicketError: The text is not a ticket, or a ticket for another table or region.
            MutexLostError: The ticket was used or has expired, or somebody broke or acquired the lock since: see ``loss``.
            pynamodb.exceptions.UpdateError: DynamoDB refuses the request, or you cannot reach it: the ticket may be used up.
                GetError for the preceding read: your ticket is still good.
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
        """Return a mutex on the first of several keys that is free. You do not hold it yet, and this sends no request.

        Args:
            keys: 1 to 100 keys of one lock table; a repeated key counts once. A Mutex among them keeps its own options.
            model: The lock table of your keys that are strings.
            **options: The options of `for_key`. ``timeout``, ``poll`` and ``reentrant`` are this object's; with ``reentrant``,
                only this object can acquire its key again. The library calls ``on_lost`` and ``on_danger`` for the key that you
                got.

        Raises:
            InvalidKeyError: DynamoDB would not accept a key.
            TypeError: As `for_keys`.
            ValueError: You gave no key, more than 100, one key with different options, or keys in different tables.

        Example::

            with Mutex.any_of(["printer-1", "printer-2"], timeout=10) as mutex:
                print("you got", mutex.key)
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
            timeout: Seconds that you wait, -1 for ever; None for the mutex's own timeout.
            force: Take the place of the holder, even of a living one, or of all readers: your acquiring write breaks the claim
                that this call found first, and its holders learn of the loss, with the cause FORCED, at their next request. If
                somebody else was faster, this waits for the new holder. Not guaranteed: that the work of the displaced holder
                has ended outside DynamoDB.

        Returns:
            Whether you acquired the lock. False only if DynamoDB said that another holder has it.

        Raises:
            MutexAlreadyHeldError: Your thread or task holds the lock by this mutex, which is not reentrant; or it shares the
                lock and asks for it alone. Without a timeout, also if your wait would never end: your thread or task holds the
                lock, which is renewed without end, by another mutex; or it would block the event loop of a task that holds the
                lock, or of a task before it in line (with a timeout, the library warns of such a task by RuntimeWarning).
            MutexError: The lock is shared, and DynamoDB's answers have no ``Date``.
            TypeError: You gave ``force`` for a shared lock, or for any of several keys, as a semaphore has.
            ValueError: You gave a timeout with ``blocking=False``, or a negative timeout other than -1.
            InvalidRowError: The row under the key is not a lock's, or has impossible attributes.
            pynamodb.exceptions.DoesNotExist: There is no row, and you set ``must_exist``.
            pynamodb.exceptions.TableDoesNotExist: The table is missing; the message names table and region.
            pynamodb.exceptions.UpdateError: DynamoDB refuses the request; or it throttled, failed, answered later than the
                lease allows, or you could not reach it until the timeout, or for 10 s at an endpoint that has never answered
                your process. GetError for a read: the first request to an endpoint, or a poll.

        Example::

            mutex = Mutex.for_key("backup")
            if mutex.acquire(timeout=0):
                try:
                    print("you back up")
                finally:
                    mutex.release()
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
            # Another mutex of this process may have made the acquisition, on the same key. Not `key_queue`: a mutex may have the
            # key of a semaphore, "gpu", and the holder of that mutex has no permit.
            local = acquisition.contender.queue.holder
            if local is not None and local.reenters(me.number):
                mine = local
        now = acquisition.process.now
        if mine is None or not mine.stands_at(now):
            if mine is not None and mine.depth:
                mine.note_left()
            self._acquired[me] = None
            return None
        # While a write with ``unlock=True`` is under way, or after its answer was lost, the claim stands, but is not held: the
        # lock may be released at any moment, so nothing can begin under it.
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
        # taken out in this step: if two threads enter, one gets it, and the other acquires the lock for itself
        attached, self._attached = self._to_enter, None
        if attached is None:
            return (yield from super()._entering(acquisition, me, frame))
        attached.check("with")
        # The block may run on another thread than `attach` did. That thread is the holder from now on: it may enter again, and
        # its own wait for this lock would never end.
        self._acquired[me] = attached
        contender = attached.contender
        contender.caller, contender.thread, contender.who = me.number, me.thread, me.of
        contender.is_pinned = me.is_pinned
        return self._begin_block(attached, me, frame)

    def __enter__(self) -> Self:
        """Acquire the lock, as `acquire` does; after `attach`, use that acquisition.

        Raises:
            MutexTimeoutError: The lock was not free within your timeout.
            MutexLostError: You have lost the attached lock.
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

        Between your call and `attach`, nobody holds the lock and nobody else can acquire it. The lock is renewed once more, and
        then expires with the ticket. This waits for a guarded write that you are sending. If the lock would have expired later
        than the ticket, a second request moves its end; the library sends it once, and if it fails, the key stays locked for
        that longer time. Anybody who has the ticket and may write to the table can use it. Not guaranteed: that anybody does;
        your key is then locked until the ticket expires.

        Args:
            lease: Seconds from now for which the ticket is good; the mutex's lease by default.

        Raises:
            MutexLostError: You have lost the lock.
            MutexNotHeldError: You do not hold it, or a write of unknown outcome may have released it.
            MutexAlreadyHeldError: Your thread or task has acquired a reentrant lock more than once.
            MutexError: You acquired it together with other locks.
            TypeError: The lock is shared.
            pynamodb.exceptions.UpdateError: You could not reach DynamoDB within 5 s. You hold the lock as before.

        Example::

            mutex = Mutex.for_key("import-9")
            mutex.acquire()
            ticket = mutex.detach(lease=600)  # send it to another process, which calls:
            with Mutex.attach(ticket) as mutex:
                print("you continue with", mutex.key)
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

        If your signal handler or finaliser interrupted a step of this library on the same thread, the library releases the lock
        right after that step, and logs errors.

        Args:
            data: JSON that the same request writes; None leaves the stored payload. If a waiting thread of your process gets
                the lock, and has ``data`` of its own, the request writes that thread's data instead.

        Raises:
            MutexLostError: You had lost the lock. Your payload is not written then.
            MutexNotHeldError: You do not hold it: you never acquired it, were refused, have released it already, or the parent
                of your forked process acquired it.
            MutexAlreadyHeldError: You gave data, and your thread or task has acquired a reentrant lock more than once.
            MutexError: You gave data with ``delete_on_release`` or ``shared``.
            TypeError: The data is not JSON, or this is the lock of a row without a ``lock_model``.
            ValueError: The data has NaN or infinity, or over 400 KB.
            pynamodb.exceptions.PynamoDBException: You cannot reach DynamoDB; the lock then expires with its lease. UpdateError
                or, with ``delete_on_release``, DeleteError.
        """
        held = self._current("release")
        serialized = None if data is None else self._payload("release", data)
        execute(current_process(), release(held, data=serialized), may_be_deferred=True)

    def renew(self, lease: float | timedelta | None = None, *, data: Any = None) -> None:
        """Renew now, by one request. The new end counts from now and is never earlier than the old end.

        You win an expired lock back if nobody has acquired it since; not with data.

        Args:
            lease: Seconds, for this renewal alone; the lock's own lease by default.
            data: JSON that the same request writes, as `save_data` does; None leaves the stored payload.

        Raises:
            MutexLostError: You have lost the lock; ``applied`` says whether your data was written.
            MutexNotHeldError: You do not hold it.
            MutexError: You gave data with ``delete_on_release`` or ``shared``.
            TypeError: The data is not JSON, or this is the lock of a row without a ``lock_model``.
            ValueError: The data has NaN or infinity, or over 400 KB.
            pynamodb.exceptions.UpdateError: You could not reach DynamoDB until the lease ended; your data may have been
                written.
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
        """Write the payload into the row by a guarded write: DynamoDB applies it only if you still hold the lock.

        Args:
            data: The payload, any JSON value; None removes the stored payload.

        Raises:
            MutexLostError: You have lost the lock; ``applied`` says whether the payload was written.
            MutexNotHeldError: You do not hold it.
            MutexError: The lock has ``delete_on_release`` or ``shared``: nothing can be guarded.
            TypeError: The payload is not JSON.
            ValueError: The payload has NaN or infinity, or over 400 KB.
            pynamodb.exceptions.UpdateError: DynamoDB refuses the request; or you cannot reach it: the payload may have been
                written.

        Example::

            with Mutex.for_key("crawl") as mutex:
                print("the last holder got to", mutex.data)
                mutex.save_data({"page": 12})
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
        """Return a PynamoDB TransactWrite that DynamoDB applies only if you still hold the lock.

        DynamoDB applies it at most once, in the order of your writes. The guard is one of its 100 items. At the end of its
        ``with`` block you get MutexLostError if you have lost the lock (``applied`` says whether the rows were written),
        ``pynamodb.exceptions.TransactWriteError`` if another of its conditions does not hold (nothing was written) or you
        cannot reach DynamoDB (the outcome is unknown), and ``TableDoesNotExist`` for a missing table.

        Not guaranteed: that nothing *will be* written after such a refusal, if an earlier attempt was delayed on the way and
        the refusing row is not locked. Once that row changes, DynamoDB may apply the attempt, until your next write or release
        under this lock.

        Raises:
            MutexLostError: You have lost the lock already.
            MutexNotHeldError: You do not hold it.
            MutexError: As `save_data`.

        Example::

            with Mutex.for_key("stock") as mutex, mutex.transaction() as transaction:
                transaction.update(Account("alice"), [Account.balance.add(10)])
        """
        claim = self._current("transaction")
        from pynamodb_mutex._writes import transact_write  # noqa: PLC0415 - seldom needed, slow to load

        return transact_write.GuardedTransactWrite([claim])

    def force_release(self) -> bool:
        """Break the claim that is on this key now, and no later claim: see `LockItem.force_release`.

        Returns:
            Whether it broke a claim, or repaired a row.

        Raises:
            InvalidRowError: The row under the key is not a lock's.
            pynamodb.exceptions.UpdateError: DynamoDB refuses the request, or you cannot reach it; GetError for the read before
                it.
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
    """Return the signature that help() shows: the parameters of `Mutex.for_key` and each option with its default."""
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
    """A mutex on the first of several keys that is free: see `Mutex.any_of <pynamodb_mutex.Mutex.any_of>`.

    Once you have acquired it, it is a mutex on the key that you got. If threads and tasks of your process wait for the same set
    of keys, they get keys in the order of their calls. Not guaranteed: an order between processes, or between different sets of
    keys. Compare fencing tokens only within one key.
    """

    _made_by = "Mutex.any_of([...])"
    _makers = frozenset({"any_of"})


class MutexGroup(KeyGroup):
    """The locks of several keys. You acquire, renew and release them together: all or none.

    Use it like a ``Mutex``, as a context manager or as a decorator. You acquire, renew and release by one request each, so your
    keys need no order, and there is no deadlock. If you lose one lock, you lose all: the library calls ``on_lost`` once, and
    the other claims remain until your ``release``, or until they expire.

    Not guaranteed: that waiters for fewer of the keys, or readers of one key, do not overtake a group again and again; nor the
    points that ``Mutex`` does not guarantee.
    """

    _made_by = "Mutex.for_keys([...])"

    @property
    def members(self) -> tuple[Mutex, ...]:
        """A Mutex for each lock, in the order of `keys`.

        Its ``abandoned_by`` is always None, and so is its ``data`` until you call `save_data <pynamodb_mutex.Mutex.save_data>`:
        DynamoDB's answer to a transaction shows no rows.
        """
        return tuple(self._locks)
