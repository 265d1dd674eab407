"""The requests of the waiting line: join and leave it, and what it adds to the write that takes the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._lock.dynamodb.layout import seconds, slot
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Template, Templates, by_kind
from pynamodb_mutex._lock.protocol.claim import MOST_WAITING

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamodb_mutex._fair.waiting_line import Take
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.layout import Layout
    from pynamodb_mutex._lock.dynamodb.store import Request, Store


def _entry_at(layout: Layout, place: int) -> Condition:
    """Return the condition that our entry stands in line at a place."""
    stands: Condition = Path(layout.waiting)[place] == slot("S", "entry")
    return stands


def _nobody_from(layout: Layout, place: int) -> Condition:
    """Return the condition that nobody stands in line at a place, nor behind it: see `Layout.nobody_waits`."""
    nobody: Condition = Path(layout.waiting)[place].does_not_exist()
    return nobody


class Passing(NamedTuple):
    """What a take adds to the acquiring write: conditions about the line, and the actions that remove entries from it.

    How many seconds it waits for is a value to be filled in. Only whether there are any is part of the text.
    """

    place: int | None
    size: int
    ahead: bool
    unchanged: bool
    is_long: bool

    @classmethod
    def by(cls, take: Take) -> Passing:
        """Return the clause for a take."""
        return cls(take.place, take.size, take.ahead, take.unchanged, take.past > 0)

    def free(self, layout: Layout) -> Condition:
        """Return the condition that the lock is free; for dead waiters, that it was free since before a given time.

        ``free_since`` counts only where there is no claim: under one it says when the claim before it ended. Or when a
        first in line left since then: `WaitingLine.passes_at` sees to that, as it would make this condition longer.
        """
        if not self.is_long:
            return layout.not_held()
        past = slot("N", "past")
        released = layout.expires_at.does_not_exist() & (layout.free_since < past)
        free: Condition = (layout.expires_at < past) | released
        return free

    def add(self, layout: Layout, actions: list[Action]) -> Condition:
        """Add the actions that remove entries, and return the condition about the line."""
        place = self.place
        if place is None:
            # The whole line is removed, so it must still be the one that was judged: its last entry stands at its
            # place, and nobody has joined behind it.
            nobody_behind: Condition = _nobody_from(layout, self.size)
            if self.size:
                actions.append(layout.waiting.remove())
                nobody_behind = _entry_at(layout, self.size - 1) & nobody_behind
            return nobody_behind
        stands = _entry_at(layout, place)
        if self.unchanged:
            stands &= layout.token == slot("S", "seen")
        # All places in one update count as they were before it: to remove 0 and 1 removes the first two.
        removed = range(place + 1) if self.ahead else [place]
        actions += [Path(layout.waiting)[each].remove() for each in removed]
        return stands


class LineTemplates(Templates):
    """The templates of the requests that change the line alone."""

    @Lazy
    def join(self) -> Template:
        """Join the line at its end, once, and only while the fencing token is within bounds.

        So a copy that arrives late, when its waiter may be gone, is refused if the lock has changed hands since.
        """
        layout = self._layout
        stands = Path(layout.waiting).contains(slot("S", "entry"))
        condition = layout.version.between(slot("N", "version"), slot("N", "highest"))
        condition &= ~stands & _nobody_from(layout, MOST_WAITING - 1)
        longer = (Path(layout.waiting) | Value({"L": []})).append(slot("L", "entries"))
        return self._template(
            [SetAction(Path(layout.waiting), longer)], condition, return_values="ALL_NEW"
        )

    @by_kind
    def leave(self, place: int) -> Template:
        """Leave the line, from the place where our entry was seen last. Refused if another entry stands there."""
        layout = self._layout
        actions = [Path(layout.waiting)[place].remove()]
        if place == 0:
            # If the lock is free, it counts as free only from now on, so that the others have their full time
            # with whoever stands first next. Otherwise, when one first waiter after the other hangs and gives up,
            # the next one would be passed before it had time for a request that hangs.
            actions.append(layout.free_since.set(slot("N", "free_since")))
        return self._template(actions, _entry_at(layout, place))


def join(store: Store, row: RawItem, entry: str, version: int, changes: int) -> Request:
    """Return the request that joins the line, if the lock has changed hands since a version at most so many times."""
    values = {"entry": entry, "entries": [{"S": entry}]}
    values |= {"version": str(version), "highest": str(version + changes)}
    return store.update(store.of(LineTemplates).join, row, values)


def leave(store: Store, row: RawItem, entry: str, place: int, now: float) -> Request:
    """Return the request by which an entry leaves the line, from a place."""
    values = {"entry": entry, "free_since": seconds(store.highest(now))}
    return store.update(store.of(LineTemplates).leave[place], row, values)
