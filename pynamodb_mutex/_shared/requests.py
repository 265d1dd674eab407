"""The requests of readers that share a claim, and of a writer that waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.constants import EXPRESSION_ATTRIBUTE_NAMES
from pynamodb.expressions.condition import size
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._lock.dynamodb.layout import SLOT, seconds, slot
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Template, Templates, by_kind
from pynamodb_mutex._lock.protocol.claim import MARK_FAR
from pynamodb_mutex._shared.readers import MOST, cut, to_bury

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.layout import Layout
    from pynamodb_mutex._lock.dynamodb.store import Request, Store
    from pynamodb_mutex._lock.protocol.claim import Claim
    from pynamodb_mutex._shared.readers import Form, SharedClaim

_TICK = Value({"N": "0.001"})


class _NamedTemplate(Template):
    """A template with slots for names, too: a claim's and its readers', which are keys of a map."""

    def fill(self, key: RawItem, values: Mapping[str, Any]) -> dict[str, Any]:
        request = super().fill(key, values)
        names = request[EXPRESSION_ATTRIBUTE_NAMES].items()
        request[EXPRESSION_ATTRIBUTE_NAMES] = {
            short: values[name[len(SLOT) :]] if name.startswith(SLOT) else name
            for short, name in names
        }
        return request


def _not_marked(layout: Layout) -> Condition:
    """Return the condition that no writer waits: there is no mark, or it has ended, or no writer of ours has made it."""
    until = layout.wanted_until
    free: Condition = until.does_not_exist() | (until < slot("N", "now_low"))
    free |= until > slot("N", "far")
    return free


class Begin(NamedTuple):
    """The first reader's addition to the acquiring write."""

    def free(self, layout: Layout) -> Condition:
        """Return the condition that nobody holds the lock."""
        return layout.not_held()

    def add(self, layout: Layout, actions: list[Action]) -> Condition:
        """Add the reader's entry, and return the condition that no writer waits."""
        actions.append(layout.shared_by.set(slot("M", "readers")))
        return _not_marked(layout)


class SharedTemplates(Templates):
    """The templates of readers' and waiting writers' requests."""

    def __init__(self, layout: Layout, connection: Any) -> None:
        super().__init__(layout, connection)
        self._of_claim = Path([layout.shared_by.attr_name, f"{SLOT}claim"])
        self._me = self._of_claim[f"{SLOT}me"]
        self._size: Any = size(self._of_claim)  # type: ignore[no-untyped-call]  # PynamoDB's
        self._is_claim: Condition = (layout.token == slot("S", "claim")) & (
            layout.version == slot("N", "version")
        )

    def _named(self, actions: list[Action], condition: Condition) -> Template:
        parts = {"actions": actions, "condition": condition, "return_values": "ALL_NEW"}
        return _NamedTemplate(self._connection, **parts)

    def _moved(self, form: Form) -> tuple[list[Action], Condition]:
        """Return the actions that give the reader's entry an end, and the row an end not before that; and their condition."""
        layout = self._layout
        ends, lease, end = layout.expires_at, layout.lease, slot("N", "end")
        moved = end if form == "far" else Path(ends) + _TICK
        actions: list[Action] = [SetAction(self._me, end), SetAction(Path(ends), moved)]
        # The row's lease never falls: a watcher that knows no server time waits for the lease in the row.
        actions += [lease.set(slot("N", "lease")), *layout.dated()]
        later: Condition = (ends < end) if form == "far" else (ends >= end)
        return actions, later & (lease <= slot("N", "lease"))

    @by_kind
    def join(self, kind: tuple[Form, bool, bool]) -> Template:
        """Join a claim that was seen. The reader's entry or, once it has left, the claim makes DynamoDB refuse a late copy."""
        form, is_nested, buries = kind
        layout = self._layout
        actions, moves = self._moved(form)
        condition = self._is_claim & self._of_claim.exists() & self._me.does_not_exist()
        condition &= moves
        if not is_nested:
            condition &= _not_marked(layout)
        if buries:
            dead = self._of_claim[f"{SLOT}dead"]
            actions.append(dead.remove())
            # Suppose the dead reader's renewal is on its way, and is applied first: it lives, and must not be removed.
            condition &= dead == slot("N", "dead_end")
        elif not is_nested:
            condition &= self._size < Value({"N": str(MOST)})
        return self._named(actions, condition)

    @by_kind
    def renew(self, form: Form) -> Template:
        """Move the end of the own entry to a later time."""
        actions, moves = self._moved(form)
        # Without the comparison of the entry, a late copy would move its end back, while the holder believes in the later end.
        return self._named(actions, self._is_claim & (self._me < slot("N", "end")) & moves)

    @by_kind
    def leave(self, is_last: bool) -> Template:
        """Remove the own entry; the last reader ends the claim."""
        layout = self._layout
        condition = self._is_claim & self._me.exists()
        if not is_last:
            # Suppose the other readers are dead: then the lock is free from now on, not since the last of their ends, and the
            # first in line, which lives, has its full time.
            left = layout.free_since.set(slot("N", "free_since"))
            return self._named([self._me.remove(), left], condition & (self._size > _ONE))
        condition &= (self._size == _ONE) & layout.has_claim
        return self._named([*layout.ending(), layout.shared_by.remove()], condition)

    @Lazy
    def mark(self) -> Template:
        """Mark the row of a claim that readers share, so that no other readers join it; a mark never becomes shorter."""
        layout = self._layout
        until, by = layout.wanted_until, layout.wanted_by
        mark = slot("N", "until")
        condition = (layout.token == slot("S", "claim")) & self._of_claim.exists()
        is_new = until.does_not_exist() | (until < mark) | (until > slot("N", "far"))
        actions = [until.set(mark), by.set(slot("S", "label"))]
        return self._named(actions, condition & layout.has_claim & is_new)

    @Lazy
    def unmark(self) -> Template:
        """Remove the own mark, and no other."""
        until, by = self._layout.wanted_until, self._layout.wanted_by
        return self._template([until.remove(), by.remove()], until == slot("N", "until"))


_ONE = Value({"N": "1"})


def _values(own: SharedClaim) -> dict[str, Any]:
    return {"claim": own.seen.token, "version": str(own.version), "me": own.name}


def _moved(store: Store, own: SharedClaim, end: float, lease: float) -> dict[str, Any]:
    """Return the values of a request that gives the own entry an end; the row keeps the longest lease."""
    return _values(own) | {
        "end": seconds(end),
        # rounded up: see `HeldClaim.propose_renewal`
        "lease": seconds(max(lease + 0.0005, own.seen.lease)),
        "ttl": store.ttl(max(end, own.seen.expires_at or 0.0) + 1),
    }


def join(  # noqa: PLR0917 - as for a renewal, and the time
    store: Store,
    row: RawItem,
    own: SharedClaim,
    end: float,
    lease: float,
    now: float,
    *,
    nested: bool,
) -> Request:
    """Return the request by which a reader joins a claim, and removes a dead reader if there are many.

    Args:
        store: Where the row is.
        row: Its primary key.
        own: The reader's claim, with the claim to join as it was seen.
        end: End of its entry, in server time.
        lease: Seconds until that end.
        now: Local time.
        nested: Whether the thread or task that joins is in the claim already.
    """
    values = _moved(store, own, end, lease) | not_marked(store, now)
    dead = to_bury(own.seen, now, store.bounds)
    if dead is not None:
        values |= {"dead": dead, "dead_end": seconds((own.seen.readers or {})[dead])}
    template = store.of(SharedTemplates).join[own.form(end), nested, dead is not None]
    return store.update(template, row, values)


def renew(store: Store, row: RawItem, own: SharedClaim, end: float, lease: float) -> Request:
    """Return the request that renews a reader's entry: see `join`."""
    values = _moved(store, own, end, lease)
    return store.update(store.of(SharedTemplates).renew[own.form(end)], row, values)


def not_marked(store: Store, now: float) -> dict[str, str]:
    """Return the values of the condition that no writer waits."""
    return {"now_low": store.now_low(now), "far": seconds(store.highest(now) + MARK_FAR)}


def leave(store: Store, row: RawItem, own: SharedClaim, now: float) -> Request:
    """Return the request by which a reader leaves; if no other reader was seen, it ends the claim."""
    is_last = len(own.seen.readers or ()) == 1
    values = _values(own) | store.ending(now)
    return store.update(store.of(SharedTemplates).leave[is_last], row, values)


def mark(  # noqa: PLR0917 - as for a join
    store: Store, row: RawItem, seen: Claim, until: str, label: str, now: float
) -> Request:
    """Return the request by which a writer that waits marks a claim that was seen, until a server time."""
    values = {"claim": seen.token, "until": until, "label": cut(label), **not_marked(store, now)}
    return store.update(store.of(SharedTemplates).mark, row, values)


def unmark(store: Store, row: RawItem, until: str) -> Request:
    """Return the request that removes a mark by its end."""
    return store.update(store.of(SharedTemplates).unmark, row, {"until": until})
