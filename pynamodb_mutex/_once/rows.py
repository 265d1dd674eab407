"""Rows of `once`: their attributes, and the requests that begin a run, record its result, and forget it.

A run's claim is a lock's claim, in a row of its own, and is renewed and broken as any other. This module has the differences: a
run makes a claim only if no result counts, a result takes the place of the claim, and no TTL ends either of them early.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._lock.dynamodb.layout import Layout, read_seconds, read_text, slot
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Requests, Template, by_kind
from pynamodb_mutex._lock.protocol.claim import TICK
from pynamodb_mutex._writes.requests import counted, guarding

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamodb_mutex._lock.protocol.server_time import Bounds


class OnceRow(NamedTuple):
    """The attributes of a row of `once` in addition to the claim of a run: ``claim.of(OnceRow)``.

    Attributes:
        done_until: Server time until which the result counts; None if there is none.
        result: The result, encoded; None if there is none, or it could not be stored.
        unstored: Why the result could not be stored; None if it is stored.
        payload_hash: Hash of the payload of the result or, under a claim, of the run.
        unknown: Label of a run whose outcome a person must decide, once its claim has ended; None if there is none.
    """

    done_until: float | None = None
    result: str | None = None
    unstored: str | None = None
    payload_hash: str | None = None
    unknown: str | None = None

    def counts(self, received: float, bounds: Bounds | None) -> bool:
        """Return whether the result counted when the row was received; true if server time is not known."""
        until = self.done_until
        # TICK, as in `ObservedClaim.free_at`
        return until is not None and (bounds is None or received < bounds.passes(until + TICK))


ATTRIBUTES = {**dict.fromkeys(OnceRow._fields, read_text), "done_until": read_seconds}
"""The attributes of an `OnceRow`, each with the function that reads it."""


class OnceLayout(Layout):
    """Where the claim of a run, and the result, are in a row of `once`."""

    put_right_by = "Once.forget(key, force=True)"

    def __init__(self, model: type[Model]) -> None:
        super().__init__(model)
        attributes = model.get_attributes()
        self.done_until, self.result, self.unstored, self.payload_hash, self.unknown = (
            attributes[name] for name in OnceRow._fields
        )

    def dated(self) -> list[Action]:
        """Return no action: neither a claim nor its end sets a TTL, and the beginning of a run removes it.

        The row of a run whose outcome is unknown must stay until a person has decided about it, and a run that takes longer than
        the model's ``retention`` must keep its row. Only a result, or a run that has failed, sets a TTL.
        """
        return []

    def expiring(self) -> list[Action]:
        """Return the action that sets the row's TTL."""
        return super().dated()

    def unclaimed(self) -> list[Action]:
        """Return the actions that remove a claim, and the mark of a run of unknown outcome."""
        attributes = (self.expires_at, self.owner, self.lease, self.unknown)
        return [attribute.remove() for attribute in attributes]

    def cleared(self) -> list[Action]:
        """Return the actions that remove a claim, and all that `once` has recorded about the key."""
        known = [self.unknown.remove(), self.payload_hash.remove(), *self.without_result()]
        return [*super().cleared(), *known, *self.expiring()]

    def without_result(self) -> list[Action]:
        """Return the actions that remove a result."""
        return [each.remove() for each in (self.done_until, self.result, self.unstored)]

    @property
    def is_listed(self) -> Condition:
        """The condition that a listing shows a row: it has a claim, a result, or a run of unknown outcome."""
        listed: Condition = super().is_listed | self.done_until.exists() | self.unknown.exists()
        return listed

    def no_result_counts(self) -> Condition:
        """Return the condition that there is no result, or that its time has certainly passed."""
        # By the lower bound of server time: by the upper bound, or a client's clock, a result would end early, and the work
        # would be done again.
        none: Condition = self.done_until.does_not_exist() | (
            self.done_until < slot("N", "now_low")
        )
        return none


class Begin(NamedTuple):
    """The addition of a run's beginning to the acquiring write: a run begins only if no result counts.

    Attributes:
        has_payload: Whether the run has a payload.
        found: For a run whose outcome must be known before another begins: whether a row was read, which must not have changed.
            None for any other run.
    """

    has_payload: bool
    found: bool | None

    def free(self, layout: OnceLayout) -> Condition:
        """Return the condition that no run is under way."""
        return layout.not_held()

    def add(self, layout: OnceLayout, actions: list[Action]) -> Condition:
        """Add the actions that begin a run, and return the condition that there is no result, and no run of unknown outcome."""
        # Another process's run may have done its work, and left no claim to show it. Until a person decides about it, neither
        # TTL nor force may hide it. So it is an attribute, which the conditions of all callers check.
        condition: Condition = layout.no_result_counts() & layout.unknown.does_not_exist()
        if self.found is False:
            condition &= ~layout.exists
        if self.found:
            # Suppose a late copy of this write arrives after the run has failed: it would make a claim that nobody holds, and mark
            # the key as unknown.
            condition &= layout.version == slot("N", "seen_version")
        payload = layout.payload_hash
        actions += [
            payload.set(slot("S", "payload_hash")) if self.has_payload else payload.remove(),
            # Otherwise each renewal would be billed for the size of a result that has ended.
            *layout.without_result(),
            layout.ttl_attribute.remove(),
        ]
        if self.found is not None:
            actions.append(layout.unknown.set(slot("S", "unknown")))
        return condition


class OnceRequests(Requests):
    """The templates of the requests that change rows of `once`; `acquire`, with the clause `Begin`, begins a run."""

    _layout: OnceLayout

    @by_kind
    def record(self, names: frozenset[str]) -> Template:
        """Put a result in place of our claim, as a guarded write.

        The text depends on whether there is a result, or the reason why it could not be stored, and on whether it has a TTL.
        """
        return self._template(self._recording(names), guarding(self._layout))

    def _recording(self, names: Container[str]) -> list[Action]:
        layout = self._layout
        actions: list[Action] = [
            counted(layout),
            *layout.unclaimed(),
            layout.done_until.set(slot("N", "done_until")),
        ]
        for name in ("result", "unstored"):
            attribute = getattr(layout, name)
            actions.append(attribute.set(slot("S", name)) if name in names else attribute.remove())
        expiring = layout.expiring() if "ttl" in names else [layout.ttl_attribute.remove()]
        return [*actions, *expiring]

    @by_kind
    def end(self, _: tuple[bool, bool]) -> Template:
        """End the claim of a run that has failed."""
        layout = self._layout
        actions = [*layout.unclaimed(), *layout.expiring()]
        return self._template(actions, layout.mine() & layout.has_claim)

    @Lazy
    def disown(self) -> Template:
        """End, by its token alone, the claim of a run that may have begun, and that nobody will do."""
        layout = self._layout
        condition = (layout.token == slot("S", "mine")) & layout.done_until.does_not_exist()
        return self._template([*layout.unclaimed(), *layout.expiring()], condition)

    def decide(self, values: Mapping[str, Any], *, forces: bool) -> Template:
        """Let a person forget a key's result or run or, with a result among the values, record a result."""
        layout = self._layout
        # A late copy of this request must not forget a later result: so it names the row that was read, and leaves another token
        # in it.
        condition = ~layout.exists
        if "seen" in values:
            seen = layout.token == slot("S", "seen")
            condition = seen & (layout.version == slot("N", "seen_version"))
            # Suppose a run that seemed dead was only slow, and has recorded its result since, with the token and version that
            # were read: without this condition the result would be forgotten, and the work done again.
            if "seen_done" in values:
                condition &= layout.done_until == slot("N", "seen_done")
            else:
                condition &= layout.done_until.does_not_exist()
        if not forces:
            condition &= layout.not_held()
        version = (Path(layout.version) | slot("N", "seed")) + Value({"N": "1"})
        payload = layout.payload_hash
        actions: list[Action] = [
            layout.token.set(slot("S", "token")),
            SetAction(Path(layout.version), version),
            payload.set(slot("S", "payload_hash"))
            if "payload_hash" in values
            else payload.remove(),
        ]
        if "result" in values:
            actions += self._recording(values)[1:]
        else:
            actions += [*layout.unclaimed(), *layout.without_result(), *layout.expiring()]
        return self._template(actions, condition)
