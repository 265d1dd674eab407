"""An acquisition that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._templates import seconds
from pynamodb_mutex._threads import this_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._process import Process
    from pynamodb_mutex._store import Store
    from pynamodb_mutex._terms import Terms
    from pynamodb_mutex._waiting import LocalQueue

    Queue = LocalQueue["Wanted", Hold]


class Wanted:
    """An acquisition that is asked for: its terms, where its row is, and who will hold it."""

    def __init__(
        self,
        terms: Terms,
        store: Store,
        process: Process,
        on_lost: Callable[[], object] | None,
    ) -> None:
        self.terms = terms
        self.store = store
        self.process = process
        self.queue: Queue = process.queue(store, terms.key)
        self.on_lost = on_lost
        self.thread = this_thread()
        self.owner = terms.label()

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
