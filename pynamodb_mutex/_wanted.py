"""An acquisition that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._callers import this_caller
from pynamodb_mutex._templates import seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._process import Process
    from pynamodb_mutex._store import Store
    from pynamodb_mutex._terms import Terms
    from pynamodb_mutex._waiting import LocalQueue

    Queue = LocalQueue["Wanted", Hold]


class Wanted:
    """An acquisition that is asked for: its terms, where its row is, and who will hold it.

    Attributes:
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
        self.caller = this_caller()
        self.owner = terms.label()

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a record in the log says of the lock, beside its message."""
        return {"lock_key": self.terms.key, "lock_owner": self.owner, "fencing_token": None}

    def at(self, other: Wanted) -> Wanted:  # noqa: ARG002 - there is but one row to want
        """Return what is wanted of the row that another of the same queue holds."""
        return self

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
