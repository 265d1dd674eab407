"""Row locks: locks on single rows of any PynamoDB model, with writes that need the lock.

`RowLockMixin` gives a model the lock's attributes and the methods that make locks, and replaces the methods that write
a row. The locks themselves are in `_row_locks`. Which conditions a write gets is in
`pynamodb_mutex._writes.row_write`; how a write is sent, and what a refusal means, in `guarded_write` and
`transaction` next to it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from pynamodb.attributes import Attribute, NumberAttribute, UnicodeAttribute
from pynamodb.constants import ATTRIBUTES, TRANSACT_DELETE, TRANSACT_PUT, TRANSACT_UPDATE
from pynamodb.exceptions import GetError, PynamoDBException
from pynamodb.models import BatchWrite, Model

from pynamodb_mutex._lock.dynamodb.keys import row_key
from pynamodb_mutex._lock.dynamodb.pynamodb_private import forget_connection
from pynamodb_mutex._lock.operations.options import check_options, check_several, made
from pynamodb_mutex._lock.operations.retry import retrying
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.runtime.process import current_process, lock_models
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._row_locks import RowLock, RowLocks, options_of_row
from pynamodb_mutex._writes.row_write import (
    GuardedRow,
    GuardOnly,
    NobodyHolds,
    PlainRow,
    RowWrite,
    UnlockedRow,
    checked,
    checking,
    key_of,
    name_of,
    refuse_if_released,
    same,
)
from pynamodb_mutex._writes.transaction import ProtectedItem, write_alone, write_together
from pynamodb_mutex.exceptions import InvalidRowError, MutexError, MutexNotHeldError
from pynamodb_mutex.models import LockItem, check_stored_names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from typing_extensions import Self, Unpack

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.runtime.process import Process
    from pynamodb_mutex.aio import AsyncOptions, AsyncRowLock, AsyncRowLocks
    from pynamodb_mutex.mutex import Options

M = TypeVar("M", bound="RowLockMixin")
V = TypeVar("V")

__all__ = ["RowLock", "RowLockMixin"]

_RESERVED = (
    *("held", "locked", "locked_all", "row_lock", "is_locked", "lock_model", "lock_enforced"),
    *("aheld", "alocked", "alocked_all", "asave", "aupdate", "adelete", "arefresh"),
)
"""Names of the mixin that no attribute of a model may have."""


class RowLockMixin(Model):
    """Adds row locks to your PynamoDB model: ``class Account(RowLockMixin, Model)``.

    A row gets the lock's attributes at its first lock; you need no migration. Only the protocol writes them: it ignores values
    that you assign to them on an instance.

    Not guaranteed: protection from writes that do not check the lock, as `batch_write` and programs without the mixin make
    them.

    Attributes:
        lock_model: Lock table that keeps the locks, so that your rows carry no attribute of a lock; None (the default) keeps
            them in the rows. With a lock table each write of a row is a transaction, at twice the price. It must be in the
            rows' region.
        lock_enforced: Refuse `save`, `update` and `delete` without the lock while another holder has the row (default True). If
            you set False, the lock is advisory; a `save` or `delete` without it then ends the holder's claim, unless there is a
            ``lock_model``.
        lock_version: The fencing token, as read with the row. This and the next six attributes mean nothing with a
            ``lock_model``.
        lock_token: Random id of the last acquisition.
        lock_owner: Label of the holder; None when free.
        lock_lease: Seconds that the claim lasts without a renewal; None when free.
        lock_expires_at: End of the claim, in seconds of DynamoDB's time since the epoch; None when free.
        lock_writes: Random number of the last guarded write.
        lock_abandoned_by: Label of the previous holder if it never released the lock, or empty.
    """

    _claim_prefix: ClassVar[str] = "lock_"
    lock_model: ClassVar[type[LockItem] | None] = None
    lock_enforced: ClassVar[bool] = True

    lock_version = NumberAttribute(null=True)
    lock_token = UnicodeAttribute(null=True)
    lock_owner = UnicodeAttribute(null=True)
    lock_lease = NumberAttribute(null=True)
    lock_expires_at = NumberAttribute(null=True)
    lock_writes = NumberAttribute(null=True)
    lock_abandoned_by = UnicodeAttribute(null=True)

    _row_lock: RowLock[Any] | None = None
    """The lock under which this instance is, or was; None if it was read or made without one."""

    _row_claim: HeldClaim | None = None
    """The acquisition under which it is, or was. A later acquisition does not guard its writes: others may have written since."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a model whose attributes conflict with the lock's, or whose ``lock_model`` is not a lock table.

        Raises:
            TypeError: If it is such a model.
        """
        super().__init_subclass__(**kwargs)
        if "Meta" in vars(cls):
            # PynamoDB would use the parent's connection where the tables have the same name, even in different regions
            forget_connection(cls)
        for base in cls.__mro__:
            for name in _RESERVED:
                if isinstance(base.__dict__.get(name), Attribute):
                    msg = f"{cls.__name__}.{name}: row locks need the name; use another, with attr_name={name!r}"
                    raise TypeError(msg)
        lock_model: Any = cls.lock_model
        is_model = isinstance(lock_model, type) and issubclass(lock_model, LockItem)
        if not (lock_model is None or is_model):
            msg = f"{cls.__name__}.lock_model must be LockItem or a subclass of it, or None"
            raise TypeError(msg)
        if lock_model is None:
            check_stored_names(cls)
        for name, ours in RowLockMixin.get_attributes().items():
            cls._check_redefined(name, ours)
        lock_models.add(cls)

    @classmethod
    def _check_redefined(cls, name: str, ours: Attribute[Any]) -> None:
        """Refuse a model's own attribute that has the name of one of the lock's attributes.

        With another stored name it is allowed: so a model chooses the name under which the lock's attribute is
        stored. With the same stored name it would silently become the lock's: its values would be read as a claim,
        and never be written.

        Args:
            name: Name of an attribute of the lock.
            ours: The mixin's attribute of that name.

        Raises:
            TypeError: If the model has such an attribute, or one of another type.
        """
        used: Any = getattr(cls, name)
        own = [base for base in cls.__mro__ if base is not RowLockMixin and name in vars(base)]
        if own and used is ours:
            msg = f"{cls.__name__}: the lock's {name} hides that of {own[0].__name__}: put RowLockMixin after it"
            raise TypeError(msg)
        if cls.lock_model is not None:
            return
        if getattr(used, "attr_type", None) != ours.attr_type:
            msg = f"{cls.__name__}.{name} belongs to the lock, and has another type there"
            raise TypeError(msg)
        if own and used.attr_name == ours.attr_name:
            msg = (
                f"{cls.__name__}.{name} belongs to the lock: use another name for an attribute of your own; "
                f"to store the lock's under another name, give that as attr_name; "
                f"or keep the locks in a lock_model"
            )
            raise TypeError(msg)

    @classmethod
    def locked(
        cls, hash_key: Any, range_key: Any = None, **options: Unpack[Options]
    ) -> RowLock[Self]:
        """Return the lock of a row. You do not hold it yet, and this sends no request.

        Args:
            hash_key: The row's hash key.
            range_key: The row's range key, if the model has one.
            **options: The options of `Mutex.for_key <pynamodb_mutex.Mutex.for_key>` except ``hold_at_least`` and ``shared``.
                ``fair`` and the options of the row, except ``owner``, need a ``lock_model``; with ``delete_on_release`` you
                cannot write the row under the lock.

        Raises:
            InvalidKeyError: The model cannot have the key.
            TypeError: An option has a wrong type, or these locks cannot have it.
            ValueError: `Mutex.for_key <pynamodb_mutex.Mutex.for_key>` would refuse a value.

        Example::

            with Account.locked("alice", timeout=10) as account:
                account.balance -= 10
                account.save()  # DynamoDB refuses it if you have lost the lock
        """
        check_options(f"{cls.__name__}.locked", options)
        raw_key = row_key(cls, hash_key, range_key)
        return made(RowLock, options_of_row(cls, raw_key, options), cls, raw_key)

    @classmethod
    def locked_all(cls, keys: Iterable[Any], **options: Unpack[Options]) -> RowLocks[Self]:
        """Return the locks of several rows: you acquire all of them together, or none. Sends no request.

        Args:
            keys: 1 to 100 hash keys, or tuples of hash and range key. For a row of another model, give the result of that
                model's `locked`, which keeps its own options.
            **options: As for `locked`.

        Raises:
            InvalidKeyError: The model cannot have a key.
            TypeError: You gave one key that is not in a list.
            ValueError: You gave no key, more than 100, or a repeated key.

        Example::

            with Account.locked_all(["alice", "bob"]) as rows:
                with rows.transaction() as transaction:
                    transaction.update(rows[0], [Account.balance.add(-10)])
                    transaction.update(rows[1], [Account.balance.add(10)])
        """
        check_options(f"{cls.__name__}.locked_all", options)
        check_several(f"{cls.__name__}.locked_all", keys)
        locks: list[RowLock[Any]] = []
        for key in keys:
            if isinstance(key, RowLock):
                locks.append(key)
            else:
                locks.append(cls.locked(*(key if isinstance(key, tuple) else (key,)), **options))
        return made(RowLocks, locks)

    @classmethod
    def held(cls) -> Iterator[Self]:
        """Iterate over the rows whose locks are held now, in no particular order. Reads the whole table.

        Not guaranteed: that all rows are from one instant. Your iteration reads a page when it reaches it.

        It skips rows that this model cannot read, or with impossible lock attributes, with a warning in the log.

        Raises:
            TypeError: The model has a ``lock_model``, whose own `held <pynamodb_mutex.LockItem.held>` lists the locks.
            pynamodb.exceptions.ScanError: DynamoDB refuses the request, or you cannot reach it.
            pynamodb.exceptions.TableDoesNotExist: The table is missing.
        """
        if cls.lock_model is not None:
            other = cls.lock_model.__name__
            msg = f"{cls.__name__} keeps its locks in {other}: {other}.held() lists them"
            raise TypeError(msg)
        from pynamodb_mutex._admin.listing import held_rows  # noqa: PLC0415 - seldom needed

        return held_rows(cls)

    @property
    def row_lock(self) -> RowLock[Any]:
        """The lock that this instance is or was under.

        Raises:
            MutexNotHeldError: You have read it without a lock.
        """
        if self._row_lock is None:
            msg = f"{shown(name_of(self))} was read without its lock"
            raise MutexNotHeldError(msg, key=name_of(self))
        return self._row_lock

    @property
    def is_locked(self) -> bool:
        """Whether this instance is under its lock now or, without a lock, shows a running claim. Sends no request."""
        claim = self._row_claim
        # The second case: this process has released the lock, but the instance still shows the claim as it was read, whose end
        # may lie ahead. After a `refresh` it may show another holder's claim, which is judged below.
        if claim is not None and (not claim.is_released or self.lock_token == claim.own.token):
            return claim.held
        if type(self).lock_model is not None or self.lock_expires_at is None:
            return False
        process = current_process()
        store = process.store(type(self))
        store.connection.open()
        bounds = store.bounds
        return bounds is None or process.read_clock() < bounds.passes(self.lock_expires_at)

    def save(
        self,
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
        unlock: bool = False,
    ) -> dict[str, Any]:
        """Save the row: under its lock, only if you still hold the lock; without it, only if nobody holds it.

        Under the lock it also renews the lease.

        Not guaranteed: that nothing was written, if you lost an answer *without* the lock, another program has written the row
        since, and a condition does not hold at the retry.

        Args:
            condition: A condition that must hold in addition.
            add_version_condition: As in PynamoDB.
            unlock: Release the lock in the same request.

        Raises:
            MutexLostError: You have lost the lock; ``applied`` says whether the row was written.
            MutexError: The lock has ``delete_on_release``: nothing can be guarded.
            RowLockedError: You write without the lock, and another holder has the row; ``applied`` as above.
            InvalidRowError: You write without the lock, and the row has impossible lock attributes.
            MutexNotHeldError: You have released the lock; you have left its block, and not refreshed the instance; or you set
                ``unlock`` without the lock.
            pynamodb.exceptions.PutError: Your condition or the model's version does not hold (nothing was written), or you
                cannot reach DynamoDB (the outcome is unknown). TransactWriteError with a ``lock_model``.

        Example::

            with Account.locked("bob") as account:
                account.balance += 5
                account.save(unlock=True)  # one request writes and releases
        """
        write = RowWrite(self, TRANSACT_PUT, condition, versioned=add_version_condition)
        return self._row_write(write, "save", unlock=unlock)

    def update(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
        unlock: bool = False,
    ) -> Any:
        """Update the row: under its lock, only if you still hold the lock; without it, only if nobody holds it.

        Not guaranteed: that DynamoDB applies an update *without* the lock only once, if its answer is lost and the library
        retries it; and that nothing was written, if a condition does not hold at the retry.

        Args:
            actions: Update actions of PynamoDB.
            condition: A condition that must hold in addition.
            add_version_condition: As in PynamoDB.
            unlock: Release the lock in the same request.

        Raises:
            MutexError: As for `save`: MutexLostError, MutexNotHeldError, RowLockedError and others.
            InvalidRowError: Also: DynamoDB has applied your update, but PynamoDB cannot read the row.
            pynamodb.exceptions.UpdateError: As PutError of `save`. With a ``lock_model`` TransactWriteError, and GetError for
                the read after an applied update.
        """
        actions = checked(actions)
        write = RowWrite(self, TRANSACT_UPDATE, condition, actions, versioned=add_version_condition)
        return self._row_write(write, "update", unlock=unlock)

    def delete(
        self, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> Any:
        """Delete the row: under its lock, only if you still hold the lock; without it, only if nobody holds it.

        A lock in the row ends with the row. If an answer was lost, and the row is missing at the retry while your lease still
        runs, it counts as deleted by this call.

        Not guaranteed: that nothing was deleted, if you lost an answer *without* the lock, and a condition does not hold at the
        retry.

        Args:
            condition: A condition that must hold in addition.
            add_version_condition: As in PynamoDB.

        Raises:
            MutexError: As for `save`: MutexLostError, MutexNotHeldError, RowLockedError and others.
            pynamodb.exceptions.DeleteError: As PutError of `save`; TransactWriteError with a ``lock_model``.
        """
        write = RowWrite(self, TRANSACT_DELETE, condition, versioned=add_version_condition)
        return self._row_write(write, "delete")

    def refresh(self, consistent_read: bool = False) -> None:
        """Read the row again, as PynamoDB does; under its lock always consistently.

        If you call it after the lock's block, the instance becomes an ordinary one.

        Args:
            consistent_read: Read consistently without the lock, too.
        """
        # Suppose A writes the row and releases, B locks it and refreshes. An eventually consistent read may show B
        # the row from before A's write; B computes from it and saves, its guard holds, and A's write is lost.
        claim = self._row_claim
        # asked before: suppose the block ends while the row is read, and another locks and writes it
        ended = None if claim is None or not claim.is_released else claim.whole
        was_left = ended is not None and ended.open_blocks == 0 and not ended.is_unaware
        super().refresh(consistent_read or (claim is not None and not claim.is_released))
        if was_left:
            # the instance no longer shows values that were read under the lock
            self._row_lock = self._row_claim = None

    def _row_write(self, write: RowWrite, what: str, *, unlock: bool = False) -> dict[str, Any]:
        """Send a write, and return what PynamoDB's method would return.

        Args:
            write: The write.
            what: The call, for messages.
            unlock: Whether it also releases the lock.
        """
        process = current_process()
        members = self._row_members(write, what, unlock=unlock)
        data, row = execute(process, self._writing(process, members, what))
        if row is None and write.kind == TRANSACT_UPDATE:
            row = execute(process, self._reading_again(process, write, what))
        return _Applied(self._written(write, what, data, row))

    @staticmethod
    def _writing(
        process: Process, members: list[Any], what: str
    ) -> Operation[tuple[dict[str, Any], RawItem | None]]:
        """Send a write; return the answer, and the row as it is then; None if a transaction has written it."""
        if len(members) == 1:
            answer = yield from write_alone(process, members[0], what)
            return answer.data, answer.item
        return (yield from write_together(process, members, what)), None

    def _written(
        self, write: RowWrite, what: str, data: dict[str, Any], row: RawItem | None
    ) -> dict[str, Any]:
        """Note in the instance that a write was applied; return what PynamoDB's method would return."""
        before = self.attribute_values
        try:
            write.done(row)
        except Exception as error:
            self.attribute_values = before  # the key among them
            msg = f"{what}: the row was written, but cannot be read: {one_line(error)}"
            raise InvalidRowError(msg, key=name_of(self)) from error
        return data | {ATTRIBUTES: row} if write.kind == TRANSACT_UPDATE else data

    def _reading_again(self, process: Process, write: RowWrite, what: str) -> Operation[RawItem]:
        """Read the row that a transaction has updated, whose answer does not show it."""
        read = process.store(type(write.row)).read(key_of(self), consistent=True)
        try:
            answer = yield from retrying(process, lambda: read, 0.0)
        except PynamoDBException as error:
            msg = f"{what}: {shown(name_of(self))} was written, but could not be read again: refresh() it"
            raise GetError(msg, error) from error
        return answer.item

    def _row_members(self, write: RowWrite, what: str, *, unlock: bool = False) -> list[Any]:
        """Return a write and its guard: one member if both are in the same row, else those of a transaction.

        Args:
            write: The write.
            what: The call, for messages.
            unlock: Whether the write also releases the lock.

        Raises:
            MutexLostError: If the row's lock was lost.
            MutexNotHeldError: See `refuse_if_released`; with ``unlock``, without the lock; or if the
                instance has another key than the row that is locked.
            MutexError: If the ``lock_model`` is in another region than the row.
        """
        claim = self._row_claim
        guarded = claim is not None and execute(current_process(), checking(claim, what))
        return self._members(write, what, claim if guarded else None, unlock=unlock)

    def _members(
        self, write: RowWrite, what: str, claim: HeldClaim | None, *, unlock: bool = False
    ) -> list[Any]:
        """Return the members under a claim; None for a write without the lock: see `_row_members`."""
        process, lock_model = current_process(), type(self).lock_model
        if claim is not None:
            # The caller may have changed the instance's key, to copy the row. With a lock_model the guard would hold,
            # and the write would go to a row that is not locked.
            if not same(key_of(self), self.row_lock._raw_key):
                msg = f"{what}: {shown(name_of(self))} is not the row that is locked, {shown(self.row_lock.key)}"
                raise MutexNotHeldError(msg, key=name_of(self))
            if claim.store.layout.must_exist:
                return [GuardedRow(write, claim, unlock=unlock)]
            store = process.store(type(self))
            _refuse_two_regions(store, claim.store)
            # the write comes first: in a caller's transaction it takes the place of the caller's item; the guard comes last
            return [PlainRow(write, store), GuardOnly(claim, unlock=unlock)]
        if unlock:
            msg = f"{what}(unlock=True): {shown(name_of(self))} is not locked here"
            raise MutexNotHeldError(msg, key=name_of(self))
        # With the timeouts and retries of the model's Meta: this library's short timeouts serve to keep a lease, and a write
        # without the lock has none.
        store, enforced = process.store(type(self)).without_lock, type(self).lock_enforced
        if lock_model is None:
            return [UnlockedRow(write, store, enforced=enforced)]
        plain = PlainRow(write, store)
        if not enforced:
            return [plain]
        locks = process.store(lock_model)
        _refuse_two_regions(store, locks)
        return [plain, NobodyHolds(self, locks)]

    # -- for tasks -------------------------------------------------------------------------------

    async def asave(
        self,
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
        unlock: bool = False,
    ) -> dict[str, Any]:
        """Save the row: see `save`. If your model has a ``save`` of its own, this calls it on a worker thread.

        If your task is cancelled, it ends after the answer to its last request, and sends nothing again. If DynamoDB applied
        the write, the instance shows it.

        Not guaranteed: that you know whether the write was applied, if your task is cancelled and the answer was lost.
        """
        options = (condition, add_version_condition, unlock)
        done: dict[str, Any] = await _tasks().write(self, RowLockMixin.save, TRANSACT_PUT, options)
        return done

    async def aupdate(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
        unlock: bool = False,
    ) -> Any:
        """Update the row: see `update` and `asave`."""
        options = (condition, add_version_condition, unlock)
        ours = RowLockMixin.update
        return await _tasks().write(self, ours, TRANSACT_UPDATE, options, actions)

    async def adelete(
        self, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> Any:
        """Delete the row: see `delete` and `asave`."""
        options = (condition, add_version_condition, False)
        return await _tasks().write(self, RowLockMixin.delete, TRANSACT_DELETE, options)

    async def arefresh(self, consistent_read: bool = False) -> None:
        """Read the row again: see `refresh`. If your task is cancelled, it reads the row first."""
        refresh = partial(self.refresh, consistent_read=True) if consistent_read else self.refresh
        await _tasks().on_worker(refresh)

    @classmethod
    def alocked(
        cls,
        hash_key: Any,
        range_key: Any = None,
        *,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> AsyncRowLock[Self]:
        """Return the lock of a row for tasks: see `locked`. ``async with`` returns the row. Sends no request.

        Args:
            hash_key: The row's hash key.
            range_key: The row's range key, if the model has one.
            cancel_on_loss: See `AsyncMutex.for_key <pynamodb_mutex.aio.AsyncMutex.for_key>`.
            **options: The options of `locked`; ``on_lost`` and ``on_danger`` as for `AsyncMutex.for_key
                <pynamodb_mutex.aio.AsyncMutex.for_key>`.

        Example::

            import asyncio

            async def deposit():
                async with Account.alocked("alice") as account:
                    account.balance += 10
                    await account.asave()

            asyncio.run(deposit())
        """
        from pynamodb_mutex import aio  # noqa: PLC0415 - loads asyncio

        check_options(f"{cls.__name__}.alocked", options)
        make = partial(cls.locked, hash_key, range_key)
        return aio.AsyncRowLock._made(make, cancel_on_loss, options)

    @classmethod
    def alocked_all(
        cls,
        keys: Iterable[Any],
        *,
        cancel_on_loss: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> AsyncRowLocks[Self]:
        """Return the locks of several rows for tasks: see `locked_all` and `alocked`.

        ``async with`` acquires the locks, and reads the rows by one more request.
        """
        from pynamodb_mutex import aio  # noqa: PLC0415 - see above

        check_options(f"{cls.__name__}.alocked_all", options)
        make = partial(cls.locked_all, aio._listed(keys))
        return aio.AsyncRowLocks._made(make, cancel_on_loss, options)

    @classmethod
    def aheld(cls) -> AsyncIterator[Self]:
        """Iterate over the rows whose locks are held now: see `held`."""
        rows: AsyncIterator[Self] = _tasks().iterate(cls.held())
        return rows

    # -- in PynamoDB's transactions and batches -------------------------------------------------

    def get_save_kwargs_from_instance(
        self,
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
    ) -> dict[str, Any]:
        """Return the save of this row in a `TransactWrite`, with its guard; PynamoDB calls this."""
        write = RowWrite(self, TRANSACT_PUT, condition)
        members = self._row_members(write, "transaction")
        return ProtectedItem(members, return_values_on_condition_failure)

    def get_update_kwargs_from_instance(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> dict[str, Any]:
        """Return the update of this row in a `TransactWrite`, with its guard; PynamoDB calls this."""
        write = RowWrite(self, TRANSACT_UPDATE, condition, actions, versioned=add_version_condition)
        members = self._row_members(write, "transaction")
        return ProtectedItem(members, return_values_on_condition_failure)

    def get_delete_kwargs_from_instance(
        self,
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> dict[str, Any]:
        """Return the deletion of this row in a `TransactWrite`, with its guard; PynamoDB calls this."""
        write = RowWrite(self, TRANSACT_DELETE, condition, versioned=add_version_condition)
        members = self._row_members(write, "transaction")
        return ProtectedItem(members, return_values_on_condition_failure)

    @classmethod
    def batch_write(cls, auto_commit: bool = True) -> BatchWrite[Self]:
        """Return PynamoDB's batch; its `save` and `delete` raise MutexError for an instance under its lock.

        Not guaranteed: that your batch respects the locks of other holders. It cannot carry conditions, so it overwrites rows
        that others hold, and the fencing tokens of these rows may fall.
        """
        return _Batch(cls, auto_commit=auto_commit)

    # -- the row without its lock, as other code sees it ----------------------------------------

    def serialize(
        self, null_check: bool = True, *, with_lock: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Serialise the row for botocore, by stored names of the attributes; without the lock's by default.

        Args:
            null_check: Raise if a required attribute is missing.
            with_lock: Include the lock's attributes, as they were read.
        """
        raw: RawItem = super().serialize(null_check=null_check)
        return raw if with_lock else self._without_lock(raw)

    def to_dynamodb_dict(self, *, with_lock: bool = False) -> dict[str, dict[str, Any]]:
        """Return the row as JSON with DynamoDB's types, as PynamoDB does.

        Args:
            with_lock: Include the lock's attributes, as they were read.
        """
        typed: RawItem = super().to_dynamodb_dict()
        return typed if with_lock else self._without_lock(typed)

    def to_simple_dict(self, *, force: bool = False, with_lock: bool = False) -> dict[str, Any]:
        """Return the row as plain JSON, as PynamoDB does.

        Args:
            force: Also convert values that have no equivalent in JSON.
            with_lock: Include the lock's attributes, as they were read.
        """
        simple = super().to_simple_dict(force=force)
        return simple if with_lock else self._without_lock(simple)

    @classmethod
    def _without_lock(cls, by_stored_name: dict[str, V]) -> dict[str, V]:
        """Return the row's own attributes, of values by stored name."""
        ours = RowLockMixin.get_attributes()
        # With a lock_model the mixin's attributes have no meaning, and a model may have its own attributes of the same names.
        # Without a lock_model, each attribute of such a name belongs to the lock, whatever its stored name.
        own = {
            attribute.attr_name
            for name, attribute in cls.get_attributes().items()
            if (name not in ours if cls.lock_model is None else attribute is not ours.get(name))
        }
        return {name: value for name, value in by_stored_name.items() if name in own}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy or a pickle: without the lock, for only the instance itself is under it."""
        state = dict(self.__dict__)
        state.pop("_row_lock", None)
        state.pop("_row_claim", None)
        return state


class _Applied(dict[str, Any]):
    """The result of a blocking write: if you write ``await row.save()``, the error says that the write was applied."""

    def __await__(self) -> NoReturn:
        """Refuse."""
        raise TypeError(
            "it was applied, and blocked the event loop: await asave(), aupdate() or adelete()"
        )


def _tasks() -> Any:
    """Return the module of the calls for tasks, which loads asyncio."""
    from pynamodb_mutex._tasks import rows  # noqa: PLC0415 - see above

    return rows


def _refuse_two_regions(rows: Store, locks: Store) -> None:
    """Raise if rows and their locks are in different regions.

    A write is a transaction of both, which reaches the tables of one region. If the rows' region has a lock table of
    the same name, nobody holds anything there: DynamoDB would apply a write without the lock while another holds it, and refuse a
    write under the lock as if the lock had been lost.

    Raises:
        MutexError: If they are.
    """
    if rows.model.Meta.region == locks.model.Meta.region:
        return
    regions = []
    for store in (rows, locks):
        store.connection.open()  # where Meta names no region, only the client knows it
        regions.append(store.connection.region)
    # None if the client cannot be made: the next request raises the reason
    if None not in regions and regions[0] != regions[1]:
        msg = f"a row and its lock must be in one region, not in {regions[0]} and {regions[1]}"
        raise MutexError(msg)


class _Batch(BatchWrite[M]):
    """PynamoDB's batch, which refuses instances under their lock."""

    def save(self, put_item: M) -> None:
        _refuse_in_batch(put_item)
        super().save(put_item)

    def delete(self, del_item: M) -> None:
        _refuse_in_batch(del_item)
        super().delete(del_item)


def _refuse_in_batch(row: RowLockMixin) -> None:
    claim = row._row_claim
    if claim is None:
        return
    refuse_if_released(claim, "batch_write")
    # even if the lock was lost: others may have written since this instance was read
    if not (claim.is_released and claim.loss is None):
        msg = f"{shown(name_of(row))} is locked: a batch cannot be guarded, use save, update or delete"
        raise MutexError(msg, key=name_of(row))
