"""The conditional requests of the protocol, prebuilt as templates from the layout of a row.

PynamoDB takes about 50 µs to build an expression, and locks send the same few requests again and again. So each is built once,
with slots for its values, and filled in for each attempt. Conditions come from `layout`; `store` supplies values and makes the
request that is sent; `pynamodb_mutex._lock.protocol.outcome` decides what a refusal means.
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
        """The addition of one kind of acquisition to the acquiring write, such as conditions about the waiting line.

        Equal clauses make the same text, and share a template.
        """

        def free(self, layout: Any) -> Condition:
            """Return the condition under which the lock counts as free; by default `Layout.not_held`."""

        def add(self, layout: Any, actions: list[Action]) -> Condition:
            """Add actions to the write, and return a further condition for it."""


T = TypeVar("T")

_OPTIONAL = frozenset({"data", "must_exist", "new_version", "readers"})
"""Names of values whose presence changes the text of an acquiring write."""

# -- templates -------------------------------------------------------------------------------------


class Template:
    """A request with slots for its key and values. If DynamoDB refuses it, the refusal shows the row, and so the holder."""

    def __init__(self, connection: TableConnection, **parts: Any) -> None:
        kwargs = connection.get_operation_kwargs(
            "", **parts, return_values_on_condition_failure="ALL_OLD"
        )
        values = kwargs.pop(EXPRESSION_ATTRIBUTE_VALUES, {})
        del kwargs[KEY]
        self._fixed = kwargs
        self._constants: RawItem = {}
        self._slots: list[tuple[str, str, str]] = []
        # A value that is no slot is a constant of the expression, such as the 1 that is added to the version.
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
        # From now on Python finds the value in the instance and does not come here: this class has no `__set__`.
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value


class Kinds(dict[Any, "Template"]):
    """The templates of one request, by the kinds whose texts differ. The first use of a kind builds its template."""

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
    """The templates of the requests that acquire, renew, hand over and release a lock."""

    def acquire(
        self,
        values: Mapping[str, Any],
        *,
        watched: bool,
        clause: Clause | None = None,
    ) -> Template:
        """Acquire a row that is free, or whose claim has expired.

        The text depends on whether there is a payload, whether the row must exist, which extra attributes of a subclass have a
        given value or a default, and whether the fencing token was chosen beforehand, as for a transaction, whose answer does
        not show the token.

        Args:
            values: The values that will fill the template.
            watched: Whether it also accepts a claim that was watched for its whole lease and is therefore dead, even if server
                time does not show that.
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
            # With the end that the waiter saw: the holder may renew just before this write arrives.
            takeable |= (layout.token == slot("S", "seen")) & (
                layout.expires_at == slot("N", "seen_until")
            )
        # Our own token refuses this write, in two cases. Suppose the first attempt was applied and its answer lost: the retry
        # is refused, and the row in the refusal shows that the lock is ours. Or suppose a late copy arrives after our release,
        # and finds the token in the tombstone: if it were applied, it would make a claim that nobody knows of.
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
            # Kept, not reset: DynamoDB now refuses a guarded write of the previous holder, which then learns from this number
            # whether an earlier copy of the write was applied.
            number = Path(layout.writes) | Value({"N": "0"})
        actions: list[Action] = [
            # If an owner is still in the row, that holder never released. It is copied before the new owner is set: DynamoDB
            # reads the row as it was, but another engine may go action by action.
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
        """Hand our claim over to another acquisition of this process; or take by force the place of a claim that was seen."""
        return self._hand_over[kind_of_successor(self._layout, values)]

    @by_kind
    def _hand_over(self, kind: tuple[bool, tuple[str, ...]]) -> Template:
        layout = self._layout
        # The tombstone keeps token and version: if a copy of this write arrives after a release, it must not revive the claim
        # for a waiter that does not know of it.
        mine = layout.mine() & layout.has_claim
        return self._template(layout.succeeding(*kind), mine, return_values="ALL_NEW")

    @Lazy
    def renew(self) -> Template:
        """Move the end of our claim to a later time, never to an earlier one."""
        layout = self._layout
        return self._template(layout.new_end(), layout.mine() & layout.ends_before())

    @by_kind
    def end(self, kind: tuple[bool, bool]) -> Template:
        """End our claim, and leave the tombstone or a reserved claim, which nobody holds; with data, write the payload.

        DynamoDB refuses it if our claim has ended before.
        """
        reserves, data = kind
        layout = self._layout
        actions = layout.ending()
        if reserves:
            actions = [
                # Another token, so that DynamoDB refuses our late renewals and guarded writes: nothing moves the end of the
                # reserved claim.
                layout.token.set(slot("S", "token")),
                # Suppose this write is applied, its answer is lost, and force breaks the reserved claim: the retry finds a
                # forced token. If the version were not raised here, it would be the one after ours, and the retry would take
                # that for a loss before the release.
                SetAction(Path(layout.version), Path(layout.version) + Value({"N": "1"})),
                # the next holder copies an owner to `abandoned_by`, but this holder has released
                layout.owner.remove(),
                *layout.new_end(),
            ]
        if data:
            actions.append(layout.recorded())
        # `has_claim` refuses a retry if an earlier attempt was applied. Otherwise it would be applied again, and the lock would
        # seem to be free for less time than it is.
        return self._template(actions, layout.mine() & layout.has_claim)

    @Lazy
    def delete(self) -> Template:
        """Delete the row with our claim. DynamoDB refuses it if the claim has ended before, or somebody waits in line."""
        layout = self._layout
        condition = layout.mine() & layout.has_claim & layout.nobody_waits
        return Template(self._connection, condition=condition)

    @Lazy
    def disown(self) -> Template:
        """End the claim of an acquisition by its token alone: its outcome, and so its version, is unknown."""
        layout = self._layout
        return self._template(layout.ending(), layout.token == slot("S", "mine"))


def kind_of_successor(layout: Layout, values: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """Return the kind of a write that replaces one claim by another: its text depends on the next holder's options."""
    given = tuple(name for name in values if name.startswith(GIVEN)) if layout.initial else ()
    return "data" in values, given
