"""The conditional requests of the protocol, prebuilt as templates from the layout of a row.

PynamoDB takes about 50 µs to build an expression, and locks send the same few requests again and again. So each is
built once, with slots for its values, and filled in for each attempt. Conditions come from `layout`; `store` supplies
values and makes the request that is sent; what a refusal means is decided in `pynamodb_mutex._lock.protocol.outcome`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb.constants import EXPRESSION_ATTRIBUTE_VALUES, KEY
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._lock.dynamodb.layout import EXTRA, GIVEN, SLOT, slot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from pynamodb.connection.table import TableConnection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.layout import Layout

    class Clause(Protocol):
        """What a kind of acquisition adds to the acquiring write, such as conditions about the waiting line.

        Equal clauses make the same text: a template is built once for them.
        """

        def free(self, layout: Any) -> Condition:
            """Return the condition under which the lock counts as free; by default `Layout.not_held`."""

        def add(self, layout: Any, actions: list[Action]) -> Condition:
            """Add actions, and return the further condition."""


T = TypeVar("T")

_OPTIONAL = frozenset({"data", "must_exist", "new_version", "readers"})
"""Names of values by whose presence the texts of acquiring writes differ."""

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


class Kinds(dict[Any, "Template"]):
    """The templates of one request, by what makes their texts differ. Each is built when it is first asked for."""

    def __init__(self, build: Callable[[Any], Template]) -> None:
        super().__init__()
        self._build = build

    def __missing__(self, kind: Any) -> Template:
        template = self[kind] = self._build(kind)
        return template


def by_kind(build: Callable[[Any, Any], Template]) -> Lazy[Kinds]:
    """Make a property of a method that builds a template for one kind: ``requests.end[reserves, data]``."""

    @functools.wraps(build)
    def kinds(instance: Any) -> Kinds:
        return Kinds(functools.partial(build, instance))

    return Lazy(kinds)


# -- the requests ----------------------------------------------------------------------------------


class Templates:
    """Templates of requests for the rows of one model. Each room has a class of its own: see `Store.of`."""

    def __init__(self, layout: Layout, connection: TableConnection) -> None:
        self._layout = layout
        self._connection = connection

    def _template(self, actions: Sequence[Action], condition: Condition, **parts: Any) -> Template:
        return Template(self._connection, actions=actions, condition=condition, **parts)


class Requests(Templates):
    """The templates of the requests by which a lock is acquired, renewed, handed over and released."""

    def acquire(
        self,
        values: Mapping[str, Any],
        *,
        watched: bool,
        clause: Clause | None = None,
    ) -> Template:
        """Acquire a row that is free, or whose claim has expired.

        The values say whether there is a payload, whether the row must exist, which of a subclass's extra attributes are
        given, or have a default now, and whether the fencing token was chosen beforehand: the answer to a transaction does
        not show which one was written.

        Args:
            values: The values that the template is to be filled with.
            watched: Whether it also accepts a claim that was watched for its whole lease and is therefore dead, whatever
                server time says.
            clause: What the kind of acquisition adds; None for nothing.
        """
        extra: tuple[str, ...] = ()
        if self._layout.initial:
            extra = tuple(name for name in values if name.startswith(EXTRA))
        return self._acquire[watched, _OPTIONAL.intersection(values), clause, extra]

    @by_kind
    def _acquire(
        self, kind: tuple[bool, frozenset[str], Clause | None, tuple[str, ...]]
    ) -> Template:
        watched, given, clause, extra = kind
        layout = self._layout
        takeable = layout.not_held() if clause is None else clause.free(layout)
        if watched:
            # With the end that was seen: the holder may renew just before this write arrives.
            takeable |= (layout.token == slot("S", "seen")) & (
                layout.expires_at == slot("N", "seen_until")
            )
        # Refused by our own token, in two cases. Suppose the first attempt was applied and its answer lost: the retry
        # is refused, and the row in the refusal shows that the lock is ours. Or suppose a late copy arrives after our
        # release, and finds the token in the tombstone: applied, it would make a claim of which nobody knows.
        fresh = layout.token.does_not_exist() | (layout.token != slot("S", "token"))
        condition = takeable & fresh & layout.is_a_locks()
        if "must_exist" in given:
            condition &= layout.exists
        if "new_version" in given:
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
            *layout.claiming(data="data" in given),
            SetAction(Path(layout.version), version),
            SetAction(Path(layout.writes), number),
            *layout.extras(extra),
        ]
        if "readers" not in given:
            actions += [each.remove() for each in layout.sharing]
        if clause is not None:
            condition &= clause.add(layout, actions)
        return self._template(actions, condition, return_values="ALL_NEW")

    def hand_over(self, values: Mapping[str, Any]) -> Template:
        """Hand our claim over to another acquisition of this process, in place of release, poll and acquire.

        Or take by force the place of another's claim, the one that was seen.
        """
        return self._hand_over[kind_of_successor(self._layout, values)]

    @by_kind
    def _hand_over(self, kind: tuple[bool, tuple[str, ...]]) -> Template:
        layout = self._layout
        # The tombstone keeps token and version. A copy of this write that arrives after a release must not revive the
        # claim for a waiter that does not know of it.
        mine = layout.mine() & layout.has_claim
        return self._template(layout.succeeding(*kind), mine, return_values="ALL_NEW")

    @Lazy
    def renew(self) -> Template:
        """Move the end of our claim to a later time, never to an earlier one."""
        layout = self._layout
        return self._template(layout.new_end(), layout.mine() & layout.ends_before())

    @by_kind
    def end(self, kind: tuple[bool, bool]) -> Template:
        """End our claim, and leave the tombstone or put a claim that nobody holds in its place; with data, write the payload.

        Refused if our claim has ended before.
        """
        reserves, data = kind
        layout = self._layout
        actions = layout.ending()
        if reserves:
            actions = [
                # Another token, so that our late renewals and guarded writes are refused: nothing moves the end of this
                # claim.
                layout.token.set(slot("S", "token")),
                # If this write is applied, its answer is lost, and force breaks the reserved claim, then the repeat
                # finds a forced token. Without this it would find the version after ours, and take that for a loss
                # before the release.
                SetAction(Path(layout.version), Path(layout.version) + Value({"N": "1"})),
                # the next holder copies it to `abandoned_by`, and this lock was released
                layout.owner.remove(),
                *layout.new_end(),
            ]
        if data:
            actions.append(layout.recorded())
        # With `has_claim`, a retry is refused if an earlier attempt was applied. Otherwise it would be applied again,
        # and the lock would seem to be free for less time than it is.
        return self._template(actions, layout.mine() & layout.has_claim)

    @Lazy
    def delete(self) -> Template:
        """Delete the row with our claim. Refused if the claim has ended before, or somebody waits in line."""
        layout = self._layout
        condition = layout.mine() & layout.has_claim & layout.nobody_waits
        return Template(self._connection, condition=condition)

    @Lazy
    def disown(self) -> Template:
        """End the claim of an acquisition by its token alone: its outcome, and so its version, is unknown."""
        layout = self._layout
        return self._template(layout.ending(), layout.token == slot("S", "mine"))


def kind_of_successor(layout: Layout, values: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """Return by what the texts of writes differ that replace one claim by another: by what the next holder gave."""
    given = tuple(name for name in values if name.startswith(GIVEN)) if layout.initial else ()
    return "data" in values, given
