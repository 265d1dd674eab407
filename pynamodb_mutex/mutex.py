"""Mutex: the lock as its users see it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb_mutex._acquire import Acquisition
from pynamodb_mutex._blocks import Blocks
from pynamodb_mutex._callers import this_caller
from pynamodb_mutex._expressions import serialize_data
from pynamodb_mutex._holder import Holder
from pynamodb_mutex._keys import check_key, key_of, row_key, row_name
from pynamodb_mutex._messages import shown
from pynamodb_mutex._process import current_process
from pynamodb_mutex._release import force
from pynamodb_mutex._repeat import persist
from pynamodb_mutex._terms import FOREVER, Made, Terms, made
from pynamodb_mutex._waiting import Alarm, all_steps
from pynamodb_mutex._wanted import Wanted
from pynamodb_mutex.exceptions import (
    MutexAlreadyHeldError,
    MutexTimeoutError,
    describe_holder,
)
from pynamodb_mutex.models import LockItem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import ParamSpec

    from pynamodb.models import Model
    from typing_extensions import Self, Unpack

    from pynamodb_mutex._any_of import AnyOf
    from pynamodb_mutex._claim import Claim
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._mutex_group import MutexGroup
    from pynamodb_mutex._terms import Options
    from pynamodb_mutex._ticket import Ticket
    from pynamodb_mutex._waiting import Steps

    P = ParamSpec("P")
    OnLost = Callable[[], object] | None

R = TypeVar("R")


class Mutex(Holder, Blocks["Hold"], Made):
    """A lock that at most one thread of one process holds, wherever they run.

    Used like `threading.Lock`, as a context manager, or as a decorator. A mutex may be shared by
    threads: each sees its own acquisition, and one that has none sees the latest.

    Not guaranteed: that what the holder does outside DynamoDB ends before the lease does. A process
    may be stopped between any two of its steps. `transaction` is safe from that, and so is any
    resource that compares `fencing_token`.
    """

    _makers = frozenset({"for_key", "for_row", "for_keys", "any_of", "attach"})

    def __init__(self, terms: Terms) -> None:
        """Use `for_key`."""
        super().__init__(terms)
        self._entered: dict[int, list[Hold]] = {}
        self._attached: Hold | None = None

    @classmethod
    def for_key(
        cls,
        key: str,
        *,
        model: type[LockItem] = LockItem,
        lease: float = 30.0,
        timeout: float | None = FOREVER,
        auto_renew: bool = True,
        max_hold: float | None = None,
        owner: str | None = None,
        on_lost: Callable[[Mutex], object] | None = None,
        data: Any = None,
        poll: tuple[float, float] = (0.05, 1.0),
        reentrant: bool = False,
        delete_on_release: bool = False,
    ) -> Mutex:
        """Return a mutex for a key, not yet held. Sends nothing.

        Args:
            key: 1 to 2048 bytes of UTF-8.
            model: The lock table.
            lease: Seconds the lock lives without being renewed, from 0.5 to 100 years. A dead holder's
                lock is free after about this time.
            timeout: Seconds to wait for the lock; -1 waits for ever, and so does None, which is as if it
                were not given.
            auto_renew: Renew in the background, each third of the lease.
            max_hold: Seconds after which it is not renewed any more, for a holder that hangs.
            owner: A label for people; host, process and thread by default.
            on_lost: Called with the mutex, on a thread of its own, when the lock is lost.
            data: Any JSON, written into the row with the claim; None leaves what is there.
            poll: Shortest and longest wait between two looks at a held lock, in seconds.
            reentrant: A thread that holds the key by a reentrant mutex may acquire it again.
            delete_on_release: Delete the row at release. Then fencing tokens could fall, and late copies
                of requests could apply a guarded write again: `fencing_token`, `transaction` and
                `save_data` raise MutexError.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not take.
            TypeError: For an option of a wrong type, or data that is not JSON.
            ValueError: For a negative, infinite or NaN duration, one of more than 100 years, or a lease too
                short to renew; or for NaN or infinity in the data.
        """
        cls._called("for_key", {})
        if not (isinstance(model, type) and issubclass(model, LockItem)):
            msg = f"model must be LockItem or a subclass of it, not {model!r}"
            raise TypeError(msg)
        terms = Terms(
            key=check_key(key),
            row=key_of(model, key),
            model=model,
            lease=lease,
            timeout=FOREVER if timeout is None else timeout,
            auto_renew=auto_renew,
            max_hold=max_hold,
            owner=owner,
            on_lost=on_lost,
            data=serialize_data(model, data),
            poll=poll,
            reentrant=reentrant,
            delete_on_release=delete_on_release,
        )
        terms.check()
        return made(cls, terms)

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
        """Return a mutex in the lock table, named after a row that need not exist.

        It is that of `RowLockMixin.locked` for a model whose ``lock_model`` is the same.

        Args:
            model: Whose table the row is in. Any PynamoDB model.
            hash_key: Of the row.
            range_key: Of the row, if the model has one.
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
        """Return the locks of several keys, to be taken together: all or none. Sends nothing.

        Args:
            keys: Up to 100, of which one that comes twice counts once. Mutexes, such as those of
                other lock tables in the region, keep their own options.
            model: The lock table of the keys that are strings.
            **options: Those of `for_key`. The ``timeout`` and ``poll`` are the group's.
                ``on_lost`` is called once, with the mutex whose lock was lost first.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not take.
            TypeError: If the keys are one string, or for an option of a wrong type.
            ValueError: For no key, more than 100, one that comes twice with different options, or
                tables in different regions or at different hosts; and as `for_key`.
        """
        from pynamodb_mutex._mutex_group import mutex_group  # noqa: PLC0415 - seldom needed

        cls._called("for_keys", options)
        return mutex_group(keys, {"model": model, **options})

    @classmethod
    def attach(
        cls, ticket: str, *, model: type[LockItem] = LockItem, **options: Unpack[Options]
    ) -> Mutex:
        """Go on with a lock that another process detached. It is held when this returns.

        One conditional write gives the lock a new token, so nothing that the giver still sends is
        applied. The first ``with`` of the mutex does not take the lock again, but gives it back.

        Not guaranteed: that what the giver did outside DynamoDB has ended. Compare fencing tokens.

        Args:
            ticket: What `detach` returned. It is good once.
            model: The lock table.
            **options: Those of `for_key`, for this holder; the lease is the giver's by default, and
                ``timeout`` is for how long a failing DynamoDB is asked again, a lease at most.

        Raises:
            InvalidTicketError: If it is no ticket, or one for another table or region.
            MutexLostError: If it was used already, or has ended, or the lock was broken or taken
                meanwhile: ``loss`` says which.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request at all, or cannot be
                reached. The ticket may then be used up; not with GetError, for a read that failed.
        """
        from pynamodb_mutex._ticket import parse_ticket  # noqa: PLC0415 - seldom needed

        cls._called("attach", options)
        read = parse_ticket(ticket)
        mutex = cls._for_ticket(read, model, **options)
        all_steps(mutex._attaching(read), Alarm())
        return mutex

    @classmethod
    def _for_ticket(cls, ticket: Ticket, model: Any, **options: Unpack[Options]) -> Mutex:
        own: Options = {"lease": ticket.lease, **options}
        return cls.for_key(ticket.key, model=model, **own)

    @classmethod
    def any_of(
        cls, keys: Iterable[str], *, model: type[LockItem] = LockItem, **options: Unpack[Options]
    ) -> AnyOf:
        """Return a mutex on whichever of several keys is free first, not yet held. Sends nothing.

        Args:
            keys: 1 to 100 keys, those that come twice counted once.
            model: The lock table.
            **options: Those of `for_key`. A reentrant one is entered again by the same object only.

        Raises:
            InvalidKeyError: For a key that DynamoDB would not take.
            TypeError: If the keys are not an iterable, or a single str.
            ValueError: If there are none, or more than 100.
        """
        from pynamodb_mutex._any_of import AnyOf  # noqa: PLC0415 - seldom needed

        cls._called("any_of", options)
        return AnyOf.of(keys, model, options)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock.

        Args:
            blocking: Wait for it.
            timeout: Seconds to wait, -1 for ever. None is as if it were not given: the mutex's own.

        Returns:
            Whether it was taken; False only if the store said that another holds it.

        Raises:
            MutexAlreadyHeldError: If this thread or task holds it by this mutex, which is not reentrant. Or
                if the wait would never end: without a timeout, when it holds it by another one, or when
                the wait would block the event loop of a task that holds it, or comes before it. The last of
                these is a RuntimeWarning if there is a timeout.
            ValueError: For a timeout with ``blocking=False``, or a negative one other than -1.
            InvalidRowError: If the row under the key is not a lock's, or its lock attributes cannot be right.
            pynamodb.exceptions.TableDoesNotExist: If there is no table there; it says where.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request at all, or could not be
                reached, or was throttling, until the timeout; GetError if that was a read, as a first
                request or a poll is. Both are PynamoDBConnectionError. After 10 s, whatever the timeout, if
                nothing has answered this process there yet.
        """
        return self._acquire(blocking, timeout) is None

    def _acquire(self, blocking: bool, timeout: float | None) -> Acquisition | None:
        """Take the lock; return the failed attempt if it was not free."""
        alarm = Alarm()
        return all_steps(self._acquiring(blocking, timeout, alarm), alarm)

    def _acquiring(
        self, blocking: bool, timeout: float | None, alarm: Alarm
    ) -> Steps[Acquisition | None]:
        waits, deadline = self._terms.patience(blocking, timeout)
        me = this_caller()
        mine = self._holds.get(me)
        acquisition = self._acquisition(deadline)
        local = acquisition.wanted.queue.holder
        if self._terms.reentrant and local is not None and local.reenters(me):
            mine = local
        if mine is not None and mine.stands:
            if not (self._terms.reentrant and mine.held):
                msg = f"{shown(self._terms.key)} is already held by this thread or task, by this mutex"
                raise MutexAlreadyHeldError(msg, key=self._terms.key, owner=self.owner)
            mine.depth += 1
            self._holds[me] = self._latest = mine
            return None
        hold = yield from acquisition.told(acquisition.run(alarm, blocking=waits))
        if hold is None:
            return acquisition
        self._holds[me] = self._latest = hold
        acquisition.tell(hold)
        return None

    def _acquisition(self, deadline: float) -> Acquisition:
        return Acquisition(self._wanted(), deadline)

    def _wanted(self) -> Wanted:
        process = current_process()
        return Wanted(self._terms, process.store(self._terms.model), process, self._teller())

    def _teller(self) -> OnLost:
        return functools.partial(self._terms.on_lost, self) if self._terms.on_lost else None

    def _attaching(self, ticket: Ticket) -> Steps[None]:
        """Go on with the acquisition that a ticket names; the next ``with`` block takes it over."""
        from pynamodb_mutex._ticket import Attachment  # noqa: PLC0415 - seldom needed

        attachment = Attachment(self._wanted(), ticket)
        hold = yield from attachment.told(attachment.attach())
        self._holds[this_caller()] = self._latest = self._attached = hold
        attachment.tell(hold)

    def force_release(self) -> bool:
        """Break whatever claim stands on this key now, and no later one.

        Returns:
            Whether a claim was broken, or a row put right. See `LockItem.force_release`.

        Raises:
            InvalidRowError: If the row under the key is not a lock's.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses or cannot be reached.
        """
        terms = self._terms
        return force(current_process().store(terms.model), terms.row, terms.key)

    def __enter__(self) -> Self:
        """Take the lock; after `attach`, go on with what it took.

        Raises:
            MutexTimeoutError: If it was not free within the timeout.
            MutexLostError: If the lock that was attached is lost already.
        """
        alarm = Alarm()
        entered: Self = all_steps(self._entering(alarm), alarm)
        return entered

    def _entering(self, alarm: Alarm) -> Steps[Any]:
        me = this_caller()
        attached, self._attached = self._attached, None
        if attached is None or attached.finished or attached is not self._latest:
            failed = yield from self._acquiring(True, None, alarm)
            if failed is not None:
                raise self._timeout_error(failed.holder)
        else:
            attached.check("with")
            self._holds[me] = attached
            attached.wanted.belongs_to_caller()
        self._enters()
        return self

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function: each call runs under the lock, by a mutex of its own."""
        from pynamodb_mutex._decorated import locked_calls  # noqa: PLC0415 - seldom needed

        return locked_calls(function, self._another)

    def _another(self) -> Mutex:
        return made(Mutex, self._terms)

    def locked(self) -> bool:
        """Whether anyone holds the lock, by one consistent read.

        Raises:
            InvalidRowError: If the row under the key is not a lock's, or its lock attributes cannot be right.
            pynamodb.exceptions.GetError: If DynamoDB refuses or cannot be reached.
        """
        store = current_process().store(self._terms.model)
        answer = persist(lambda: store.read(self._terms.row, consistent=True), 0.0)
        return answer.claim.is_held(answer.received, store.server.bounds)

    def _timeout_error(self, holder: Claim | None) -> MutexTimeoutError:
        owner, ends = (None, None) if holder is None else (holder.owner, holder.expires_at)
        return MutexTimeoutError(
            f"{shown(self._terms.key)} was not free within {self._terms.timeout} s: "
            f"{describe_holder(owner, ends)}",
            key=self._terms.key,
            owner=owner,
            expires_at=ends,
        )
