"""Rows of `once`: their attributes, and the requests that begin a run, record its result, and forget it.

A run's claim is that of a lock, in a row of its own, and is renewed and broken as any other. What differs is here: a claim
is made only where no result counts, a result takes the place of the claim, and no TTL ends either of them early.
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
    """What a row of `once` says in addition to the claim of a run: ``claim.of(OnceRow)``.

    Attributes:
        done_until: Server time until which the result counts; None if there is none.
        result: That result, encoded; None if there is none, or it could not be stored.
        unstored: Why it could not be stored; None if it is.
        payload_hash: Hash of the payload of that result or, under a claim, of the run.
        unknown: Label of a run whose outcome somebody has to decide, unless its claim runs; None if there is none.
    """

    done_until: float | None = None
    result: str | None = None
    unstored: str | None = None
    payload_hash: str | None = None
    unknown: str | None = None

    def counts(self, received: float, bounds: Bounds | None) -> bool:
        """Return whether the result counted when the row was received, as far as server time is known."""
        until = self.done_until
        # TICK, as in `ObservedClaim.free_at`
        return until is not None and (bounds is None or received < bounds.passes(until + TICK))


ATTRIBUTES = {**dict.fromkeys(OnceRow._fields, read_text), "done_until": read_seconds}
"""The attributes of an `OnceRow` in a row, each with what reads it."""


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
        """Return no action: neither a claim nor the end of one sets a TTL, and the beginning of a run removes it.

        A run whose outcome is unknown must stay known for as long as nobody has decided about it, and a run that takes
        longer than the model's ``retention`` must keep its row. The TTL is that of a result, or of a run that has failed.
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
        """Return the actions that remove all that is known of a key, in addition to a claim."""
        known = [self.unknown.remove(), self.payload_hash.remove(), *self.without_result()]
        return [*super().cleared(), *known, *self.expiring()]

    def without_result(self) -> list[Action]:
        """Return the actions that remove a result."""
        return [each.remove() for each in (self.done_until, self.result, self.unstored)]

    @property
    def is_listed(self) -> Condition:
        """The condition that a row has something to list: in addition a result, or a run of unknown outcome."""
        listed: Condition = super().is_listed | self.done_until.exists() | self.unknown.exists()
        return listed

    def no_result_counts(self) -> Condition:
        """Return the condition that there is no result, or that its time has certainly passed."""
        # By the lower bound of server time: by the upper one, or a client's clock, a result would end early, and the effect
        # that it stands for be repeated.
        none: Condition = self.done_until.does_not_exist() | (
            self.done_until < slot("N", "now_low")
        )
        return none


class Begin(NamedTuple):
    """What the beginning of a run adds to the acquiring write: it begins where no result counts.

    Attributes:
        has_payload: Whether the run has a payload.
        found: Of a run whose outcome is to be known before another begins, whether there was a row when it was read, which
            must be as it was; None for any other run.
    """

    has_payload: bool
    found: bool | None

    def free(self, layout: OnceLayout) -> Condition:
        """Return the condition that nobody does a run."""
        return layout.not_held()

    def add(self, layout: OnceLayout, actions: list[Action]) -> Condition:
        """Add the actions that begin a run, and return the condition that there is none to be decided about, nor a result."""
        # Somebody else's run may have done its work, with no claim left to show it, and for as long as that is not decided no
        # TTL and no force makes it undone. So it is an attribute, which all callers' conditions ask for.
        condition: Condition = layout.no_result_counts() & layout.unknown.does_not_exist()
        if self.found is False:
            condition &= ~layout.exists
        if self.found:
            # A late copy of this write, after the run has failed, would make a claim of nobody, and mark the key as unknown.
            condition &= layout.version == slot("N", "seen_version")
        payload = layout.payload_hash
        actions += [
            payload.set(slot("S", "payload_hash")) if self.has_payload else payload.remove(),
            # Otherwise each renewal would be charged for the size of a result that has ended.
            *layout.without_result(),
            layout.ttl_attribute.remove(),
        ]
        if self.found is not None:
            actions.append(layout.unknown.set(slot("S", "unknown")))
        return condition


class OnceRequests(Requests):
    """The templates of the requests that change rows of `once`. A run is begun by `acquire`, with the clause `Begin`."""

    _layout: OnceLayout

    @by_kind
    def record(self, names: frozenset[str]) -> Template:
        """Put a result in place of our claim, as a guarded write.

        The names of the values say whether there is a result or the reason why it could not be stored, and whether it has
        a TTL.
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
        """End the claim of a run that may have begun, and that nobody will do; by its token alone."""
        layout = self._layout
        condition = (layout.token == slot("S", "mine")) & layout.done_until.does_not_exist()
        return self._template([*layout.unclaimed(), *layout.expiring()], condition)

    def decide(self, values: Mapping[str, Any], *, forces: bool) -> Template:
        """Let a person forget what is known of a key or, with a result among the values, record one."""
        layout = self._layout
        # A late copy of this request must not forget what was recorded since: so it names the row that was read, and leaves
        # another token in it.
        condition = ~layout.exists
        if "seen" in values:
            seen = layout.token == slot("S", "seen")
            condition = seen & (layout.version == slot("N", "seen_version"))
            # Suppose a run that seemed dead was only slow, and has recorded its result since, with the token and
            # version that were read: that would be forgotten, and its effect repeated.
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
