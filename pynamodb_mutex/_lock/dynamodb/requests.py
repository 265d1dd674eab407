"""The conditional requests of the protocol, prebuilt as templates from the layout of a row.

PynamoDB takes about 50 µs to build an expression, and locks send the same few requests again and again. So each is
built once, with slots for its values, and filled in for each attempt. Conditions come from `layout`; `store` supplies
values and makes the request that is sent; what a refusal means is decided in `pynamodb_mutex._lock.protocol.outcome`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pynamodb.constants import (
    EXPRESSION_ATTRIBUTE_VALUES,
    KEY,
)
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._lock.dynamodb.layout import CLAIM, GIVEN, OWN, SLOT, slot
from pynamodb_mutex._lock.protocol.claim import MOST_WAITING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pynamodb.connection.table import TableConnection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamodb_mutex._fair.waiting_line import Take
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.layout import Layout

T = TypeVar("T")

# -- templates -------------------------------------------------------------------------------------


class Template:
    """A request with slots for its key and values. A refusal of it shows the row, and so who holds the lock."""

    def __init__(self, connection: TableConnection, **parts: Any) -> None:
        kwargs = connection.get_operation_kwargs(
            "", **parts, return_values_on_condition_failure="ALL_OLD"
        )
        values = kwargs.pop(EXPRESSION_ATTRIBUTE_VALUES, {})
        del kwargs[KEY]
        self._fixed = kwargs
        self._constants: RawItem = {}
        self._slots: list[tuple[str, str, str]] = []
        # What is no slot is a constant of the expression, such as the 1 that is added to the version.
        for placeholder, ((kind, value),) in ((p, v.items()) for p, v in values.items()):
            if isinstance(value, str) and value.startswith(SLOT):
                self._slots.append((placeholder, kind, value[len(SLOT) :]))
            else:
                self._constants[placeholder] = {kind: value}

    def fill(self, key: RawItem, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request for one key, each slot filled with its serialised value."""
        filled = {placeholder: {kind: values[name]} for placeholder, kind, name in self._slots}
        request = {**self._fixed, KEY: key}
        if self._constants or filled:
            request[EXPRESSION_ATTRIBUTE_VALUES] = {**self._constants, **filled}
        return request


class Lazy(Generic[T]):
    """A property that is computed at its first use.

    Not `functools.cached_property`: before Python 3.12 that takes a lock, and a child that is forked while another
    thread holds it would wait for ever. Two threads may compute this one twice, which does no harm.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        # From now on Python finds the value there and does not come here: this class has no `__set__`.
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value


# -- the requests ----------------------------------------------------------------------------------


class Requests:
    """The templates of the requests that change claims, for the rows of one model.

    With ``data``, a template also writes the caller's payload. With ``watched``, it also accepts a claim that was
    watched for its whole lease and is therefore dead, whatever server time says.
    """

    _varies: ClassVar[Collection[str]] = ()
    """Names of further values by which `acquire` chooses."""

    def __init__(self, layout: Layout, connection: TableConnection) -> None:
        self._layout = layout
        self._connection = connection
        # Their arguments, such as a place in line, are part of an expression's text: each is built when first needed.
        self._acquires: dict[tuple[bool, bool, bool, Take | None, tuple[str, ...]], Template] = {}
        self._passes: dict[tuple[object, ...], Template] = {}
        self._leaves: dict[int, Template] = {}

    def _template(self, actions: Sequence[Action], condition: Condition, **parts: Any) -> Template:
        return Template(self._connection, actions=actions, condition=condition, **parts)

    def acquire(
        self,
        values: Mapping[str, Any],
        *,
        watched: bool,
        exactly: bool = False,
        take: Take | None = None,
    ) -> Template:
        """Acquire a row that is free, whose claim has expired, or whose watched claim is dead.

        The values say whether there is a payload, whether the row must exist, and which of a subclass's own attributes
        are given, or have a default now.
        With ``exactly``, the fencing token is one that was chosen beforehand. For transactions: their answers do not
        show which token was written. With a take, on a condition about the waiters in line in addition; those that the
        take names are removed.
        """
        if take is not None:
            # How many seconds it waits for is a value to be filled in. Only whether there are any is part of the text.
            take = take._replace(past=float(take.past > 0))
        own: tuple[str, ...] = ()
        if self._varies or self._layout.initial:
            own = tuple(name for name in values if name in self._varies or name.startswith(OWN))
        if "must_exist" in values:
            own += ("must_exist",)
        kind = (watched, "data" in values, exactly, take, own)
        if kind not in self._acquires:
            self._acquires[kind] = self._acquire(*kind)
        return self._acquires[kind]

    def _acquire(
        self, watched: bool, data: bool, exactly: bool, take: Take | None, own: tuple[str, ...]
    ) -> Template:
        actions, condition = self._acquiring(watched, data, exactly, take, own)
        return self._template(actions, condition, return_values="ALL_NEW")

    def _acquiring(
        self, watched: bool, data: bool, exactly: bool, take: Take | None, own: tuple[str, ...]
    ) -> tuple[list[Action], Condition]:
        layout = self._layout
        takeable = layout.long_free() if take is not None and take.past else layout.not_held()
        if watched:
            # With the end that was seen: the holder may renew just before this write arrives.
            takeable |= (layout.token == slot("S", "seen")) & (
                layout.expires_at == slot("N", "seen_until")
            )
        # Refused by our own token, in two cases. The first attempt was applied and its answer lost: the retry is
        # refused, and the row in the refusal shows that the lock is ours. Or a late copy arrives after our release, and
        # finds the token in the tombstone: applied, it would make a claim of which nobody knows.
        fresh = layout.token.does_not_exist() | (layout.token != slot("S", "token"))
        condition = takeable & fresh & layout.is_a_locks()
        if "must_exist" in own:
            condition &= layout.exists
        if exactly:
            # The row may have changed since the fencing token was chosen.
            condition &= layout.version_below()
            version: Any = slot("N", "new_version")
            number: Any = version
        else:
            version = (Path(layout.version) | slot("N", "seed")) + Value({"N": "1"})
            # Kept, not reset: the holder before, whose guarded write is refused now, finds out whether an earlier copy of
            # that write was applied.
            number = Path(layout.writes) | Value({"N": "0"})
        actions: list[Action] = [
            # An owner that is still in the row is that of a holder that never released. Copied before the new owner is
            # set: DynamoDB reads the row as it was, but another engine may go action by action.
            layout.abandoned_by.set(Path(layout.owner) | Value({"S": ""})),
            *layout.claiming(data=data),
            SetAction(Path(layout.version), version),
            SetAction(Path(layout.writes), number),
            *layout.own(own),
        ]
        if take is not None:
            in_line, removed = self._passing(take)
            condition &= in_line
            actions += removed
        return actions, condition

    def _passing(self, take: Take) -> tuple[Condition, list[Action]]:
        """Return the condition of a take about the line, and the actions that remove entries from it."""
        layout, place = self._layout, take.place
        if place is None:
            # The whole line is removed, so it must still be the one that was judged: its last entry stands at its
            # place, and nobody has joined behind it.
            nobody_behind = layout.nobody_waits(take.size)
            if not take.size:
                return nobody_behind, []
            return layout.stands_at(take.size - 1) & nobody_behind, [layout.waiting.remove()]
        stands = layout.stands_at(place)
        if take.unchanged:
            stands &= layout.token == slot("S", "seen")
        # All places in one update count as they were before it: to remove 0 and 1 removes the first two.
        removed = range(place + 1) if take.ahead else [place]
        return stands, [Path(layout.waiting)[each].remove() for each in removed]

    @Lazy
    def join(self) -> Template:
        """Join the line at its end, once, and only while the fencing token is within bounds.

        So a copy that arrives late, when its waiter may be gone, is refused if the lock has changed hands since.
        """
        layout = self._layout
        stands = Path(layout.waiting).contains(slot("S", "entry"))
        condition = layout.version.between(slot("N", "version"), slot("N", "highest"))
        condition &= ~stands & layout.nobody_waits(MOST_WAITING - 1)
        longer = (Path(layout.waiting) | Value({"L": []})).append(slot("L", "entries"))
        return self._template(
            [SetAction(Path(layout.waiting), longer)], condition, return_values="ALL_NEW"
        )

    def leave(self, place: int) -> Template:
        """Leave the line, from the place where our entry was seen last. Refused if another entry stands there."""
        if place not in self._leaves:
            layout = self._layout
            actions = [Path(layout.waiting)[place].remove()]
            if place == 0:
                # If the lock is free, it counts as free only from now on, so that the others have their full patience
                # with whoever stands first next. Otherwise, when one first waiter after the other hangs and gives up,
                # the next one would be passed before it had time for a request that hangs.
                actions.append(layout.free_since.set(slot("N", "free_since")))
            self._leaves[place] = self._template(actions, layout.stands_at(place))
        return self._leaves[place]

    def hand_over(self, values: Mapping[str, Any]) -> Template:
        """Hand our claim over to another acquisition of this process, in place of release, poll and acquire.

        Or take by force the place of another's claim, the one that was seen.
        """
        layout = self._layout
        # The tombstone keeps token and version. A copy of this write that arrives after a release must not revive the
        # claim for a waiter that does not know of it. A closed key has no next holder.
        mine = layout.mine() & layout.has_claim
        if layout.closed is not None:
            mine &= layout.is_open
        return self._passed_on("hand over", mine, values)

    def attach(self, values: Mapping[str, Any]) -> Template:
        """Take over the claim that a ticket names, unless its end has certainly passed."""
        layout = self._layout
        # The comparison also fails for a row without an end: a lock that was released cannot be attached.
        runs = layout.expires_at >= slot("N", "now_low")
        return self._passed_on("attach", layout.mine() & runs, values)

    def _passed_on(self, how: str, condition: Condition, values: Mapping[str, Any]) -> Template:
        """Return the update that replaces one claim by another, with what the next holder gave of the rest of the row."""
        layout, data = self._layout, "data" in values
        given = tuple(name for name in values if name.startswith(GIVEN)) if layout.initial else ()
        kind = (how, data, given)
        if kind not in self._passes:
            one_more = Path(layout.version) + Value({"N": "1"})
            actions = [
                *layout.claiming(data=data),
                layout.abandoned_by.set(Value({"S": ""})),
                SetAction(Path(layout.version), one_more),
                *layout.own(given),
            ]
            self._passes[kind] = self._template(actions, condition, return_values="ALL_NEW")
        return self._passes[kind]

    @Lazy
    def renew(self) -> Template:
        """Move the end of our claim to a later time, never to an earlier one."""
        layout = self._layout
        return self._template(self._new_end(), layout.mine() & layout.ends_before())

    @Lazy
    def end_sooner(self) -> Template:
        """Move the end of our claim to an earlier time: only if nobody believes in it any more."""
        layout = self._layout
        return self._template(self._new_end(), layout.mine() & layout.has_claim)

    def _new_end(self) -> list[Action]:
        layout = self._layout
        lease = layout.lease.set(slot("N", "lease"))
        return [layout.expires_at.set(slot("N", "end")), lease, *layout.dated()]

    @Lazy
    def release(self) -> Template:
        """End our claim and leave the tombstone. Refused if the claim has ended before."""
        return self._ended(self._layout.ending())

    @Lazy
    def release_with_data(self) -> Template:
        """End our claim in the same way, and write the caller's payload."""
        return self._ended([*self._layout.ending(), self._layout.recorded()])

    @Lazy
    def keep(self) -> Template:
        """End our claim, and put one in its place that nobody holds. Refused if our claim has ended before."""
        return self._ended(self._keeping())

    @Lazy
    def keep_with_data(self) -> Template:
        """Put a claim that nobody holds in place of ours, and write the caller's payload."""
        return self._ended([*self._keeping(), self._layout.recorded()])

    def _keeping(self) -> list[Action]:
        layout = self._layout
        return [
            # Another token, so that our late renewals and guarded writes are refused: nothing moves the end of this claim.
            layout.token.set(slot("S", "token")),
            # If this write is applied, its answer is lost, and force breaks the kept claim, then the repeat finds a forced
            # token. Without this it would find the version after ours, and take that for a loss before the release.
            SetAction(Path(layout.version), Path(layout.version) + Value({"N": "1"})),
            # the next holder copies it to `abandoned_by`, and this lock was released
            layout.owner.remove(),
            *self._new_end(),
        ]

    def _ended(self, actions: list[Action]) -> Template:
        # With `has_claim`, a retry is refused if an earlier attempt was applied. Otherwise it would be applied again,
        # and the lock would seem to be free for less time than it is.
        return self._template(actions, self._layout.mine() & self._layout.has_claim)

    @Lazy
    def delete(self) -> Template:
        """Delete the row with our claim. Refused if the claim has ended before, somebody waits in line, or it is closed."""
        layout = self._layout
        condition = layout.mine() & layout.has_claim & layout.nobody_waits() & layout.is_open
        return Template(self._connection, condition=condition)

    @Lazy
    def disown(self) -> Template:
        """End the claim of an acquisition by its token alone: its outcome, and so its version, is unknown."""
        layout = self._layout
        return self._template(layout.ending(), layout.token == slot("S", "mine"))

    @Lazy
    def force(self) -> Template:
        """Break the claim that was seen, even if it has been renewed since, but no later holder's."""
        layout = self._layout
        condition = (layout.token == slot("S", "seen")) & layout.has_claim
        actions = [
            layout.token.set(slot("S", "token")),
            SetAction(Path(layout.version), Path(layout.version) + Value({"N": "1"})),
            *layout.ending(),
        ]
        return self._template(actions, condition)

    def put_right(self, seen: RawItem) -> tuple[Template, dict[str, Any]]:
        """Turn a row whose lock attributes are invalid into a tombstone, if they are still as they were seen.

        Returns:
            The template, and the values that were seen, for its condition.
        """
        layout = self._layout
        attributes = layout.model.get_attributes()
        prefix: str = getattr(layout.model, "_claim_prefix", "")
        condition: Any = None
        values: dict[str, Any] = {}
        for name in CLAIM:
            attribute = attributes[prefix + name]
            path = Path(attribute)
            same: Condition = path.does_not_exist()
            for kind, value in seen.get(attribute.attr_name, {}).items():
                # As slots: a value that was seen may itself begin like a slot.
                values[f"seen {name}"] = value
                same = path == slot(kind, f"seen {name}")
            condition &= same  # PynamoDB's conditions take None for no condition
        actions = [
            layout.token.set(slot("S", "token")),
            layout.version.set(slot("N", "new_version")),
            *layout.ending(),
            *layout.cleared(),
        ]
        return self._template(actions, condition), values

    def set_closed(self, *, closed: bool) -> Template:
        """Close or open a lock, whoever holds it. A row that does not exist is made as a tombstone."""
        layout = self._layout
        actions = [
            SetAction(Path(layout.token), Path(layout.token) | slot("S", "token")),
            SetAction(Path(layout.version), Path(layout.version) | slot("N", "seed")),
        ]
        kept, ttl = layout.kept_until, layout.ttl_attribute
        if closed:
            forever = slot("N", "kept")
            actions += [layout.closed.set(slot("S", "reason")), kept.set(forever), ttl.set(forever)]
        else:
            # The TTL that it kept stays until the lock's next use: another one could be earlier than a holder's end.
            actions += [layout.closed.remove(), kept.remove()]
            if layout.dated():
                actions += [ttl.set(Path(ttl) | slot("N", "ttl"))]
        fit = Path(layout.token).is_type("S") & layout.version.exists()
        return self._template(actions, ~layout.exists | fit)

    @Lazy
    def guard(self) -> Template:
        """Count a guarded write, only under our claim and only if the previous one is the last that was applied."""
        layout = self._layout
        return self._template([layout.counted()], layout.guarding())

    @Lazy
    def guard_and_end(self) -> Template:
        """Count a guarded write in the same way, and end our claim."""
        layout = self._layout
        return self._template([layout.counted(), *layout.ending()], layout.guarding())

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

    @Lazy
    def save_data(self) -> Template:
        """Write the caller's payload, as a guarded write."""
        layout = self._layout
        return self._template([layout.counted(), layout.recorded()], layout.guarding())

    @Lazy
    def renew_with_data(self) -> Template:
        """Write the caller's payload as a guarded write, and move the end of our claim to a later time."""
        layout = self._layout
        actions = [layout.counted(), layout.recorded(), *self._new_end()]
        return self._template(actions, layout.guarding() & layout.ends_before())

    @Lazy
    def clear_data(self) -> Template:
        """Remove the caller's payload, as a guarded write."""
        layout = self._layout
        return self._template([layout.counted(), layout.data_attribute.remove()], layout.guarding())
