"""The lock of one row, as its users see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from pynamodb_mutex._keys import row_name
from pynamodb_mutex._messages import shown
from pynamodb_mutex._process import store_for
from pynamodb_mutex._repeat import persist
from pynamodb_mutex._terms import made
from pynamodb_mutex._ticket import parse_ticket
from pynamodb_mutex._waiting import AT_ONCE, Alarm, all_steps
from pynamodb_mutex.mutex import Mutex

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._terms import Options, Terms
    from pynamodb_mutex._ticket import Ticket
    from pynamodb_mutex._waiting import Steps
    from pynamodb_mutex.rows import RowLockMixin

M = TypeVar("M", bound="RowLockMixin")
N = TypeVar("N", bound="RowLockMixin")


class RowLock(Mutex, Generic[M]):
    """The lock of one row; entering it gives the row, as it stood when it was locked.

    All that `Mutex` has; ``data`` and ``save_data`` only if the lock stands in a lock table, for else
    they are the row's own matter.
    """

    _made_by = "locked(...) of the row's model"
    _makers = frozenset({"attach"})

    def __init__(self, terms: Terms, model: type[M], raw_key: RawItem) -> None:
        """Use `RowLockMixin.locked`."""
        super().__init__(terms)
        self._model = model
        self._raw_key: RawItem = raw_key

    @property
    def row(self) -> M:
        """The row under the lock, as the locking request read it.

        Raises:
            MutexNotHeldError: If the lock was never taken.
            pynamodb.exceptions.DoesNotExist: If the lock stands in the lock table, and the row is
                missing.
        """
        return self._row_of(self._current("row"))

    def _row_of(self, hold: Hold) -> M:
        if hold.row is None:
            self.bind(hold, hold.item if hold.store.rows.must_exist and hold.item else self._read())
        row: M = hold.row
        return row

    def bind(self, hold: Hold, item: RawItem) -> None:
        """Make the instance that stands for the row as long as it is locked."""
        row = self._model.from_raw_data(item)
        row._row_lock, row._row_hold = self, hold
        hold.row = row

    @classmethod
    def attach(  # type: ignore[override]  # a row lock is of the row's model
        cls, ticket: str, *, model: type[N], **options: Unpack[Options]
    ) -> RowLock[N]:
        """Go on with the lock of a row that another process detached: see `Mutex.attach`.

        The first ``with`` gives the row as the attaching request read it.

        Args:
            ticket: What `Mutex.detach` returned. It is good once.
            model: That of the row.
            **options: Those of `RowLockMixin.locked`.

        Raises:
            InvalidTicketError: If it is no ticket, or one for another model.
            MutexLostError: If it was used already, or has ended, or the lock was broken or taken
                meanwhile: ``loss`` says which.
            pynamodb.exceptions.UpdateError: If DynamoDB refuses the request at all, or cannot be
                reached. The ticket may then be used up; not with GetError, for a read that failed.
        """
        cls._called("attach", options)
        read = parse_ticket(ticket)
        lock: RowLock[N] = cls._for_ticket(read, model, **options)
        all_steps(lock._attaching(read), Alarm())
        return lock

    @classmethod
    def _for_ticket(cls, ticket: Ticket, model: Any, **options: Unpack[Options]) -> RowLock[Any]:
        raw_key = ticket.row_key(model)
        own: Options = {"lease": ticket.lease, **options}
        return made(RowLock, row_terms(model, raw_key, own), model, raw_key)

    def _read(self) -> RawItem:
        store = store_for(self._model)
        answer = persist(lambda: store.read(self._raw_key, consistent=True), 0.0)
        if not answer.item:
            raise self._model.DoesNotExist(f"{shown(self.key)}: there is no such row")
        return answer.item

    def __enter__(self) -> M:  # type: ignore[override]  # the row is what one wants; .row_lock is this
        """Take the lock and return the row.

        Raises:
            MutexTimeoutError: If it was not free within the timeout.
            pynamodb.exceptions.DoesNotExist: If there is no such row; nothing is created.
        """
        alarm = Alarm()
        row: M = all_steps(self._entering(alarm), alarm)
        return row

    def _entering(self, alarm: Alarm) -> Steps[M]:
        yield from super()._entering(alarm)
        # the row may have to be read
        yield AT_ONCE
        try:
            return self.row
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: an acquisition belongs to one process."""
        msg = f"a RowLock cannot be pickled: make it where it is used, {self._model.__name__}.locked()"
        raise TypeError(msg)

    def _another(self) -> Mutex:
        return made(type(self), self._terms, self._model, self._raw_key)


def row_terms(model: type[RowLockMixin], raw_key: RawItem, options: Options) -> Terms:
    """Return the terms of a row's lock: in the row itself, or in the lock table."""
    name = row_name(model, raw_key)
    lock_model = model.lock_model
    if lock_model is not None:
        return Mutex.for_key(name, model=lock_model, **options)._terms
    for option in ("data", "delete_on_release"):
        if options.get(option):
            msg = f"{option} needs a lock_model: the lock of {name} stands in the row itself"
            raise TypeError(msg)
    checked = Mutex.for_key(name[:64], **options)._terms
    return checked._replace(key=name, row=raw_key, model=model)
