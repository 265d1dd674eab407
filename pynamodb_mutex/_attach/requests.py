"""The requests that detach and attach a lock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb_mutex._lock.dynamodb.layout import slot
from pynamodb_mutex._lock.dynamodb.requests import (
    Lazy,
    Template,
    Templates,
    by_kind,
    kind_of_successor,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class TicketTemplates(Templates):
    """The templates of detach and attach."""

    def attach(self, values: Mapping[str, Any]) -> Template:
        """Take over the claim that a ticket names, unless its end has certainly passed."""
        return self._attach[kind_of_successor(self._layout, values)]

    @by_kind
    def _attach(self, kind: tuple[bool, tuple[str, ...]]) -> Template:
        layout = self._layout
        # The comparison also fails for a row without an end: nobody can attach a released lock.
        runs = layout.expires_at >= slot("N", "now_low")
        return self._template(
            layout.succeeding(*kind), layout.mine() & runs, return_values="ALL_NEW"
        )

    @Lazy
    def end_sooner(self) -> Template:
        """Move the end of our claim to an earlier time: only if nobody believes in it any more."""
        layout = self._layout
        return self._template(layout.new_end(), layout.mine() & layout.has_claim)
