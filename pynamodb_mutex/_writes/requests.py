"""The requests of guarded writes: the guard that a claim adds to a write, and the writes of a lock's own row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.dynamodb.layout import slot
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Template, Templates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.layout import Layout, Operand


def guarding(layout: Layout, value: Operand = slot) -> Condition:
    """Return the condition that the claim is ours, and that we know its last guarded write."""
    # Without `has_claim`, a write that is delayed until after our release would be applied: the tombstone keeps token and
    # version. Without `known`, a late copy of our first write would undo our second.
    last: Condition = layout.writes == value("N", "known")
    guarding: Condition = layout.mine(value) & layout.has_claim & last
    return guarding


def counted(layout: Layout, value: Operand = slot) -> Action:
    """Return the action that counts a guarded write."""
    return layout.writes.set(value("N", "next"))


def tombstone(layout: Layout, version: int) -> RawItem:
    """Return the lock attributes that a put without the lock writes: only a fencing token, from which the next one counts."""
    return {layout.version.attr_name: {"N": str(version)}}


def carried(layout: Layout, values: Mapping[str, Any], *, ended: bool) -> RawItem:
    """Return the lock attributes that a guarded put writes, of the claim or its tombstone: it replaces the whole row."""
    raw: RawItem = {
        layout.token.attr_name: {"S": values["mine"]},
        layout.version.attr_name: {"N": values["version"]},
        layout.writes.attr_name: {"N": values["next"]},
        # If it were absent, the previous holder, whose release DynamoDB refuses now, would take its lock for released.
        layout.abandoned_by.attr_name: {"S": values["abandoned_by"]},
    }
    if not ended:
        raw |= {
            layout.owner.attr_name: {"S": values["owner"]},
            layout.lease.attr_name: {"N": values["lease"]},
            layout.expires_at.attr_name: {"N": values["end"]},
        }
    return raw


class WriteTemplates(Templates):
    """The templates of guarded writes of a lock's own row, and of checks that nobody holds a lock."""

    def _guarded(self, *actions: Action) -> Template:
        layout = self._layout
        return self._template([counted(layout), *actions], guarding(layout))

    @Lazy
    def guard(self) -> Template:
        """Count a guarded write, only under our claim and only if we know the last write."""
        return self._guarded()

    @Lazy
    def guard_and_end(self) -> Template:
        """Count a guarded write in the same way, and end our claim."""
        return self._guarded(*self._layout.ending())

    @Lazy
    def save_data(self) -> Template:
        """Write the caller's payload, as a guarded write."""
        return self._guarded(self._layout.recorded())

    @Lazy
    def clear_data(self) -> Template:
        """Remove the caller's payload, as a guarded write."""
        return self._guarded(self._layout.data_attribute.remove())

    @Lazy
    def renew_with_data(self) -> Template:
        """Write the caller's payload as a guarded write, and move the end of our claim to a later time."""
        layout = self._layout
        actions = [counted(layout), layout.recorded(), *layout.new_end()]
        return self._template(actions, guarding(layout) & layout.ends_before())

    @Lazy
    def free(self) -> Template:
        """Check that the row carries no claim, running or expired."""
        layout = self._layout
        return Template(self._connection, condition=layout.expires_at.does_not_exist())

    @Lazy
    def end_dead(self) -> Template:
        """End the claim that was seen, if its end has certainly passed: it may have been renewed since."""
        layout = self._layout
        seen = layout.token == slot("S", "mine")
        return self._template(layout.ending(), seen & (layout.expires_at < slot("N", "now_low")))
