"""Row locks: any PynamoDB model, locked by the row, with writes that need the lock."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pynamodb.attributes import Attribute, NumberAttribute, UnicodeAttribute
from pynamodb.constants import ATTRIBUTES, TRANSACT_DELETE, TRANSACT_PUT, TRANSACT_UPDATE
from pynamodb.exceptions import GetError, PynamoDBException
from pynamodb.models import BatchWrite, Model

from pynamodb_mutex._dynamodb.keys import row_key
from pynamodb_mutex._dynamodb.pynamodb_private import connection_of, forget_connection
from pynamodb_mutex._operations.options import check_options, made
from pynamodb_mutex._operations.retry import retrying
from pynamodb_mutex._operations.row_write import (
    GuardedRow,
    GuardOnly,
    NobodyHolds,
    PlainRow,
    RowWrite,
    UnlockedRow,
    key_of,
    name_of,
    same,
)
from pynamodb_mutex._operations.transaction import ProtectedItem, write_alone, write_together
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex._row_locks import RowLock, RowLocks, options_of_row
from pynamodb_mutex._runtime.process import current_process, lock_models
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.exceptions import MutexError, MutexNotHeldError
from pynamodb_mutex.models import LockItem

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from typing_extensions import Self, Unpack

    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.store import Store
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.held import HeldClaim
    from pynamodb_mutex.mutex import Options

M = TypeVar("M", bound="RowLockMixin")
V = TypeVar("V")

__all__ = ["RowLock", "RowLockMixin"]

_RESERVED = ("locked", "locked_all", "row_lock", "is_locked", "lock_model", "lock_enforced")


class RowLockMixin(Model):
    """Gives a PynamoDB model locks by the row: ``class Account(RowLockMixin, Model)``.

    The lock's attributes join the row when it is first locked; no migration is needed. They are
    written by the lock's protocol alone, whatever an instance carries.

    Attributes:
        lock_model: Keep the locks in this lock table, and the rows without attributes of a lock.
            Guarded writes are transactions then, at twice the price.
        lock_enforced: Refuse `save`, `update` and `delete` of a row that another holds. If False the
            lock binds only those who take it; a `save` or `delete` without it still ends another's
            claim.
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
    _row_claim: HeldClaim | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse attributes that would be in the lock's way.

        Raises:
            TypeError: If there are such.
        """
        super().__init_subclass__(**kwargs)
        if "Meta" in vars(cls):
            # PynamoDB looks at the table's name alone, and would hand over the parent's connection
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
        stored: dict[str, str] = {}
        for name, attribute in inspect.getmembers(cls, lambda each: isinstance(each, Attribute)):
            other = stored.setdefault(attribute.attr_name, name)
            if other != name and cls.lock_model is None:
                msg = (
                    f"{cls.__name__}: {other} and {name} are both stored as {attribute.attr_name!r}"
                )
                raise TypeError(msg)
        for name, ours in RowLockMixin.get_attributes().items():
            cls._check_redefined(name, ours)
        lock_models.add(cls)

    @classmethod
    def _check_redefined(cls, name: str, ours: Attribute[Any]) -> None:
        """Refuse an attribute of a model's own that has the name of one of the lock's.

        One that is stored under another name says how the lock's is to be stored. One that is not would
        be taken over silently: what the model wrote there would be read as a claim, and never be written.

        Raises:
            TypeError: If it is one.
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
        """Return the lock of a row, not yet held. Sends nothing.

        Args:
            hash_key: Of the row.
            range_key: Of the row, if the model has one.
            **options: Those of `Mutex.for_key`. ``data`` and ``delete_on_release`` only with a
                ``lock_model``; with the latter the row cannot be written under the lock.

        Raises:
            InvalidKeyError: For a key that the model cannot have.
            TypeError: For an option of a wrong type.
            ValueError: For a duration that no lock can have.
        """
        check_options(f"{cls.__name__}.locked", options)
        raw_key = row_key(cls, hash_key, range_key)
        return made(RowLock, options_of_row(cls, raw_key, options), cls, raw_key)

    @classmethod
    def locked_all(cls, keys: Iterable[Any], **options: Unpack[Options]) -> RowLocks[Self]:
        """Return the locks of several rows, to be taken together: all or none. Sends nothing.

        Args:
            keys: Up to 100: hash keys, or tuples of hash and range key, or for a row of another model
                what its `locked` returns, whose options are then its own.
            **options: As for `locked`.

        Raises:
            InvalidKeyError: For a key that the model cannot have.
            ValueError: For no key, more than 100, or one that comes twice.
        """
        check_options(f"{cls.__name__}.locked_all", options)
        locks: list[RowLock[Any]] = []
        for key in keys:
            if isinstance(key, RowLock):
                locks.append(key)
            else:
                locks.append(cls.locked(*(key if isinstance(key, tuple) else (key,)), **options))
        return made(RowLocks, locks)

    @property
    def row_lock(self) -> RowLock[Any]:
        """The lock under which this instance was read.

        Raises:
            MutexNotHeldError: If it was read without.
        """
        if self._row_lock is None:
            msg = f"{shown(name_of(self))} was read without its lock"
            raise MutexNotHeldError(msg, key=name_of(self))
        return self._row_lock

    @property
    def is_locked(self) -> bool:
        """Whether the row is locked, by this instance now, or else as the instance shows it. No I/O."""
        claim = self._row_claim
        # a claim that this instance still shows may have been released by it
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
        """Save the row: under its lock only if that is still held, else only if nobody holds it.

        Args:
            condition: The caller's own.
            add_version_condition: As PynamoDB has it.
            unlock: Give the lock back in the same request.

        Raises:
            MutexLostError: If the lock is lost; ``applied`` says whether the row was written.
            MutexError: If the lock is used with ``delete_on_release``, for then nothing can be guarded.
            RowLockedError: If it is not locked here, and another holds it; ``applied`` as above.
            InvalidRowError: If it is not locked here, and the attributes of its lock cannot be right.
            MutexNotHeldError: With ``unlock``, if it is not locked here.
            pynamodb.exceptions.PutError: If the condition or the model's version does not hold, or
                DynamoDB cannot be reached. TransactWriteError with a ``lock_model``.
        """
        version = add_version_condition
        write = RowWrite(self, TRANSACT_PUT, condition, add_version_condition=version)
        return self._row_write(write, "save", unlock=unlock)

    def update(
        self,
        actions: list[Action],
        condition: Condition | None = None,
        *,
        add_version_condition: bool = True,
        unlock: bool = False,
    ) -> Any:
        """Update the row: under its lock only if that is still held, else only if nobody holds it.

        Args:
            actions: What to do.
            condition: The caller's own.
            add_version_condition: As PynamoDB has it.
            unlock: Give the lock back in the same request.

        Raises:
            MutexLostError: If the lock is lost; ``applied`` says whether the row was written.
            MutexError: If the lock is used with ``delete_on_release``, for then nothing can be guarded.
            RowLockedError: If it is not locked here, and another holds it; ``applied`` as above.
            InvalidRowError: If it is not locked here, and the attributes of its lock cannot be right.
            MutexNotHeldError: With ``unlock``, if it is not locked here.
            pynamodb.exceptions.UpdateError: If the condition or the model's version does not hold, or
                DynamoDB cannot be reached. With a ``lock_model`` TransactWriteError, and GetError if the
                update was applied and the row could not be read again.
        """
        if not isinstance(actions, list) or not actions:
            raise TypeError("the value of `actions` is expected to be a non-empty list")
        write = self._row_update(actions, condition, add_version_condition=add_version_condition)
        return self._row_write(write, "update", unlock=unlock)

    def delete(
        self, condition: Condition | None = None, *, add_version_condition: bool = True
    ) -> Any:
        """Delete the row: under its lock only if that is still held, else only if nobody holds it.

        A lock that stands in the row ends with it. If an answer was lost, and the row is then found
        gone while the lease still runs, it counts as deleted by this call.

        Args:
            condition: The caller's own.
            add_version_condition: As PynamoDB has it.

        Raises:
            MutexLostError: If the lock is lost; ``applied`` says whether the row was deleted.
            MutexError: If the lock is used with ``delete_on_release``, for then nothing can be guarded.
            RowLockedError: If it is not locked here, and another holds it; ``applied`` as above.
            InvalidRowError: If it is not locked here, and the attributes of its lock cannot be right.
            pynamodb.exceptions.DeleteError: If the condition or the model's version does not hold, or
                DynamoDB cannot be reached. TransactWriteError with a ``lock_model``.
        """
        version = add_version_condition
        write = RowWrite(self, TRANSACT_DELETE, condition, add_version_condition=version)
        return self._row_write(write, "delete")

    def _row_update(
        self, actions: list[Action], condition: Condition | None, *, add_version_condition: bool
    ) -> RowWrite:
        version = add_version_condition
        return RowWrite(
            self, TRANSACT_UPDATE, condition, actions=actions, add_version_condition=version
        )

    def _row_write(self, write: RowWrite, what: str, *, unlock: bool = False) -> dict[str, Any]:
        """Make a write; return what PynamoDB would of it."""
        members = self._row_members(write, what, unlock=unlock)
        process = current_process()
        row: RawItem = {}
        if len(members) == 1:
            answer = run(process, write_alone(process, members[0], what))
            data, row = answer.data, answer.item
        else:
            data = run(process, write_together(process, members, what))
            if write.kind == TRANSACT_UPDATE:
                row = run(process, self._reading_again(members[0].store, what))
        write.done(row)
        return data | {ATTRIBUTES: row} if write.kind == TRANSACT_UPDATE else data

    def _reading_again(self, store: Store, what: str) -> Operation[RawItem]:
        """Read what a transaction wrote, for its answer does not show it."""
        read = store.read(key_of(self), consistent=True)
        try:
            answer = yield from retrying(current_process(), lambda: read, 0.0)
        except PynamoDBException as error:
            msg = f"{what}: {shown(name_of(self))} was written, but could not be read again: refresh() it"
            raise GetError(msg, error) from error
        return answer.item

    def _row_members(self, write: RowWrite, what: str, *, unlock: bool = False) -> list[Any]:
        """Return a write and what protects it: parts of one request, or of one transaction."""
        claim, lock_model = self._row_claim, type(self).lock_model
        process = current_process()
        if claim is not None:
            run(process, _checking(claim, what))
        if claim is not None and not claim.is_released:
            if not same(key_of(self), self.row_lock._raw_key):
                msg = f"{what}: {shown(name_of(self))} is not the row that is locked, {shown(self.row_lock.key)}"
                raise MutexNotHeldError(msg, key=name_of(self))
            if claim.store.layout.must_exist:
                return [GuardedRow(write, claim, unlock=unlock)]
            return [
                PlainRow(write, process.store(type(self))),
                GuardOnly(claim, unlock=unlock),
            ]
        if unlock:
            msg = f"{what}(unlock=True): {shown(name_of(self))} is not locked here"
            raise MutexNotHeldError(msg, key=name_of(self))
        # as the model's Meta has it: patience, too
        connection = connection_of(type(self)).connection
        store, enforced = process.store(type(self)).through(connection), type(self).lock_enforced
        if lock_model is None:
            return [UnlockedRow(write, store, enforced=enforced)]
        plain = PlainRow(write, store)
        if not enforced:
            return [plain]
        return [plain, NobodyHolds(self, process.store(lock_model).through(connection))]

    # -- in PynamoDB's transactions and batches -------------------------------------------------

    def get_save_kwargs_from_instance(
        self,
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
    ) -> dict[str, Any]:
        """Return the row's part in a `TransactWrite`."""
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
        """Return the row's part in a `TransactWrite`."""
        write = self._row_update(actions, condition, add_version_condition=add_version_condition)
        members = self._row_members(write, "transaction")
        return ProtectedItem(members, return_values_on_condition_failure)

    def get_delete_kwargs_from_instance(
        self,
        condition: Condition | None = None,
        return_values_on_condition_failure: str | None = None,
        *,
        add_version_condition: bool = True,
    ) -> dict[str, Any]:
        """Return the row's part in a `TransactWrite`."""
        version = add_version_condition
        write = RowWrite(self, TRANSACT_DELETE, condition, add_version_condition=version)
        members = self._row_members(write, "transaction")
        return ProtectedItem(members, return_values_on_condition_failure)

    @classmethod
    def batch_write(cls, auto_commit: bool = True) -> BatchWrite[Self]:
        """Return PynamoDB's batch, which refuses a row that is locked here.

        A batch cannot carry conditions: it writes over what another has locked. Its `save` and
        `delete` raise MutexError for an instance that is locked.
        """
        return _Batch(cls, auto_commit=auto_commit)

    # -- what an instance shows of itself -------------------------------------------------------

    def serialize(
        self, null_check: bool = True, *, with_lock: bool = False
    ) -> dict[str, dict[str, Any]]:
        """Serialise the row: for botocore, with its attributes by their stored names.

        Args:
            null_check: Raise for an attribute that may not be absent, and is.
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
            force: Convert what has no equal in JSON, too.
            with_lock: Include the lock's attributes, as they were read.
        """
        simple = super().to_simple_dict(force=force)
        return simple if with_lock else self._without_lock(simple)

    @classmethod
    def _without_lock(cls, by_stored_name: dict[str, V]) -> dict[str, V]:
        """Return what belongs to the row itself."""
        ours = RowLockMixin.get_attributes()
        # With a lock_model the mixin's attributes have no meaning, and a model may have its own of the
        # same names. Without one each attribute of such a name is the lock's, however it is stored.
        own = {
            attribute.attr_name
            for name, attribute in cls.get_attributes().items()
            if (name not in ours if cls.lock_model is None else attribute is not ours.get(name))
        }
        return {name: value for name, value in by_stored_name.items() if name in own}

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy, or a pickle, has of the row: not its lock."""
        state = dict(self.__dict__)
        state.pop("_row_lock", None)
        state.pop("_row_claim", None)
        return state


class _Batch(BatchWrite[M]):
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
    _refuse_if_released_inside(claim, "batch_write")
    if not (claim.is_released and claim.loss is None):
        msg = f"{shown(name_of(row))} is locked: a batch cannot be guarded, use save, update or delete"
        raise MutexError(msg, key=name_of(row))


def _checking(claim: HeldClaim, what: str) -> Operation[None]:
    """Raise if a row was lost, or its block goes on although the lock was released.

    Raises:
        MutexLostError: If it was lost.
        MutexNotHeldError: If it was released.
    """
    claim.note_end()
    if claim.belief.loss is not None:
        raise claim.lost_error(what)
    _refuse_if_released_inside(claim, what)
    return
    yield  # an operation without an effect


def _refuse_if_released_inside(claim: HeldClaim, what: str) -> None:
    """Raise if the block under a lock goes on although the lock was released.

    What is written there was read under the lock. Without a guard it would be written over what another
    holder has written since, and nobody would notice. After the block an instance is an ordinary one.

    Raises:
        MutexNotHeldError: If it does.
    """
    if claim.is_released_inside:
        msg = f"{what}: the lock of {shown(claim.key)} was released inside its block: end the block, or lock the row again"
        raise MutexNotHeldError(msg, key=claim.key)
