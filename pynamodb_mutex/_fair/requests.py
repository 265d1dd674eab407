"""The requests of the waiting line: join it, leave it, and its addition to the write that takes the lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._fair.waiting_line import STRUCK_OUT, in_line
from pynamodb_mutex._lock.dynamodb.layout import seconds, slot
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Template, Templates, by_kind
from pynamodb_mutex._lock.protocol.claim import MOST_WAITING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamodb_mutex._fair.waiting_line import Take, WaitingLine
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.layout import Layout
    from pynamodb_mutex._lock.dynamodb.store import Request, Store
    from pynamodb_mutex._lock.protocol.claim import Claim

FEW = 4
"""Most waiters in line at which a waiter that leaves removes its entry: an older version of the library takes a struck-out entry
for a dead waiter, and would wait for it."""


def _stands(layout: Layout, index: int) -> Condition:
    """Return the condition that our entry stands in the list at an index."""
    stands: Condition = Path(layout.waiting)[index] == slot("S", "entry")
    return stands


def _as_seen(layout: Layout) -> Condition:
    """Return the condition that the list has not changed since we saw it."""
    as_seen: Condition = Path(layout.waiting) == slot("L", "line")
    return as_seen


class Passing(NamedTuple):
    """The addition of a take to the acquiring write: conditions about the line, and actions that remove entries from it.

    The seconds for which the lock must have been free are a slot; the text depends only on whether there are any.
    """

    at: int | None
    ahead: bool
    unchanged: bool
    is_long: bool

    @classmethod
    def by(cls, take: Take) -> Passing:
        """Return the clause for a take."""
        return cls(take.at, take.ahead, take.unchanged, take.past > 0)

    def free(self, layout: Layout) -> Condition:
        """Return the condition that the lock is free; for dead waiters, that it was free since before a given time.

        ``free_since`` counts only if there is no claim: under a claim it dates the end of the claim before, or a first in line
        that has left since. `WaitingLine.passes_at` considers that: here it would make the condition longer.
        """
        if not self.is_long:
            return layout.not_held()
        past = slot("N", "past")
        released = layout.expires_at.does_not_exist() & (layout.free_since < past)
        free: Condition = (layout.expires_at < past) | released
        return free

    def add(self, layout: Layout, actions: list[Action]) -> Condition:
        """Add the actions that remove entries, and return the condition about the line."""
        at = self.at
        if at is None and not self.ahead:
            return layout.nobody_waits
        if at is None:
            actions.append(layout.waiting.remove())
            return _as_seen(layout)
        stands = _stands(layout, at)
        if self.unchanged:
            stands &= layout.token == slot("S", "seen")
        # Indexes in one update refer to the list before it: removing 0 and 1 removes the first two.
        removed = range(at + 1) if self.ahead else [at]
        actions += [Path(layout.waiting)[each].remove() for each in removed]
        return stands


class LineTemplates(Templates):
    """The templates of the requests that change the line alone."""

    @by_kind
    def join(self, is_full: bool) -> Template:
        """Join the line at its end, once, and only while the fencing token is within bounds.

        So if a copy arrives late, when its waiter may be gone, DynamoDB refuses it once the lock has changed hands.
        """
        layout = self._layout
        condition = layout.version.between(slot("N", "version"), slot("N", "highest"))
        longer: Any = slot("L", "entries")
        if is_full:
            # struck-out entries fill the list: a list without them takes the place of the list that we saw
            condition &= _as_seen(layout)
        else:
            stands = Path(layout.waiting).contains(slot("S", "entry"))
            condition &= ~stands & Path(layout.waiting)[MOST_WAITING - 1].does_not_exist()
            longer = (Path(layout.waiting) | Value({"L": []})).append(longer)
        return self._template(
            [SetAction(Path(layout.waiting), longer)], condition, return_values="ALL_NEW"
        )

    @by_kind
    def leave(self, kind: tuple[int, bool, bool]) -> Template:
        """Leave the line, from the index at which our entry was seen last. DynamoDB refuses it if another entry stands there.

        Removing an entry moves all behind it: if many waiters leave at once, each would be refused until all before it have left.
        So among many, the entry is struck out.
        """
        layout, (index, is_first, removes) = self._layout, kind
        entry = Path(layout.waiting)[index]
        actions: list[Action] = [entry.remove() if removes else entry.set(Value({"S": STRUCK_OUT}))]
        if is_first:
            # If the lock is free, it counts as free only from now on, so that the next first in line has its full time. Suppose
            # one first waiter after the other hangs and gives up: otherwise the others would pass the next one before it had
            # time for a request that hangs.
            actions.append(layout.free_since.set(slot("N", "free_since")))
        return self._template(actions, _stands(layout, index), return_values="ALL_NEW")

    @Lazy
    def clear(self) -> Template:
        """Remove the whole list, if it has not changed since we saw it."""
        return self._template([self._layout.waiting.remove()], _as_seen(self._layout))


def entries(waiting: Sequence[str]) -> list[dict[str, str]]:
    """Serialise entries of the line."""
    return [{"S": entry} for entry in waiting]


def join(store: Store, row: RawItem, entry: str, seen: Claim, changes: int) -> Request:
    """Return the request that joins the line; refused after more than ``changes`` changes of hands since the row was seen."""
    is_full = len(seen.waiting) >= MOST_WAITING
    others = in_line(seen.waiting) if is_full else []
    values = {"entry": entry, "entries": entries([*others, entry]), "line": entries(seen.waiting)}
    values |= {"version": str(seen.version), "highest": str(seen.version + changes)}
    return store.update(store.of(LineTemplates).join[is_full], row, values)


def leave(store: Store, row: RawItem, line: WaitingLine, now: float) -> Request:
    """Return the request by which a waiter leaves the line, from the index at which it was seen last."""
    # if the index is unknown or has changed, the refusal shows the row, and the next round knows the right one
    index = len(line.waiting) if line.index is None else line.index
    values = {"entry": line.entry, "free_since": seconds(store.highest(now))}
    template = store.of(LineTemplates).leave[index, line.place == 0, line.size <= FEW]
    return store.update(template, row, values)


def clear(store: Store, row: RawItem, line: Sequence[str]) -> Request:
    """Return the request that removes the line, if it has not changed."""
    return store.update(store.of(LineTemplates).clear, row, {"line": entries(line)})
