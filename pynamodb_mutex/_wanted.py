"""An acquisition that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._callers import this_caller, this_thread
from pynamodb_mutex._keys import row_name
from pynamodb_mutex._templates import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._process import Process
    from pynamodb_mutex._store import Store
    from pynamodb_mutex._terms import Terms
    from pynamodb_mutex._waiting import Alarm, LocalQueue

    Queue = LocalQueue["Wanted", Hold]


class Wanted:
    """An acquisition that is asked for: its terms, where its row is, and who will hold it.

    Attributes:
        caller: The thread or task that asks, and then holds it.
        thread: On which it began to ask: of a task, that of its event loop.
        queue: Of those who would take what is released here.
        key_queue: Of those who want this very key. The same, unless another key would do as well.
    """

    def __init__(
        self,
        terms: Terms,
        store: Store,
        process: Process,
        on_lost: Callable[[], object] | None,
        queue: Queue | None = None,
    ) -> None:
        self.terms = terms
        self.store = store
        self.process = process
        self.key_queue: Queue = process.queue(store, terms.key)
        self.queue = self.key_queue if queue is None else queue
        self.on_lost = on_lost
        self.belongs_to_caller()
        self.owner = terms.label()

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a record in the log says of the lock, beside its message."""
        return {"lock_key": self.terms.key, "lock_owner": self.owner, "fencing_token": None}

    def at(self, other: Wanted) -> Wanted:  # noqa: ARG002 - there is but one row to want
        """Return what is wanted of the row that another of the same queue holds."""
        return self

    def belongs_to_caller(self) -> None:
        """Take note that it is this thread, or task, that holds it."""
        self.caller, self.thread = this_caller(), this_thread()

    @property
    def held_here(self) -> Hold | None:
        """The acquisition by which this process holds the row, by whatever model of its table.

        Not the one that this came to.
        """
        for hold in self.process.holders(self.store, self.terms.key):
            terms = hold.terms
            if hold.wanted is not self and hold.held and self._is_row(terms.model, terms.row):
                return hold
        return None

    def _is_row(self, model: type[Model], row: RawItem) -> bool:
        own = self.terms
        return model is own.model or row_name(model, row) == row_name(own.model, own.row)

    def stalls(self, other: Wanted, alarm: Alarm) -> bool:
        """Say whether a wait for this keeps whoever made the other acquisition from going on.

        The thread, or task, that waits can do nothing else. A thread blocks all that would run on it
        besides: when it runs an event loop, all its tasks.
        """
        if other.caller == self.caller:
            return True
        return alarm.blocks and other.thread == this_thread()

    def stalled_holder(self, alarm: Alarm) -> Wanted | None:
        """Return what holds the row here, if a wait for it keeps that from giving it back."""
        hold = self.held_here
        return None if hold is None or not self.stalls(hold.wanted, alarm) else hold.wanted

    def values(self, lease: float, end: float) -> dict[str, Any]:
        """Serialise what a row carries under this acquisition."""
        terms = self.terms
        values = {
            "owner": self.owner,
            "lease": seconds(lease + 0.0005),
            "end": seconds(end),
            "ttl": self.store.ttl(end),
            **self.store.rows.initial_values(terms.key),
        }
        if terms.data is not None:
            values["data"] = terms.data
        return values
