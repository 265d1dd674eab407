"""The conditional requests of the protocol, prebuilt from a model's attributes.

PynamoDB builds an expression in about 50 µs; a lock sends the same few again and again. Each is
built once with slots in place of values, and filled in at each request. No stored attribute name is
spelt here: all come from the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pynamodb.constants import EXPRESSION_ATTRIBUTE_VALUES, KEY
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._claim import Claim

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.connection.table import TableConnection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamodb_mutex._keys import RawItem

T = TypeVar("T")

_SLOT = "$"
_OWN = "own:"  # a subclass may call an attribute as we call a slot


def _slot(kind: str, name: str) -> Value:
    return Value({kind: _SLOT + name})


class Template:
    """A request with slots for its key and values."""

    def __init__(self, connection: TableConnection, **parts: Any) -> None:
        kwargs = connection.get_operation_kwargs(
            "", **parts, return_values_on_condition_failure="ALL_OLD"
        )
        values = kwargs.pop(EXPRESSION_ATTRIBUTE_VALUES)
        del kwargs[KEY]
        self._fixed = kwargs
        self._constants: RawItem = {}
        self._slots: list[tuple[str, str, str]] = []
        for placeholder, ((kind, value),) in ((p, v.items()) for p, v in values.items()):
            if isinstance(value, str) and value.startswith(_SLOT):
                self._slots.append((placeholder, kind, value[len(_SLOT) :]))
            else:
                self._constants[placeholder] = {kind: value}

    def fill(self, key: RawItem, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request for one key, each slot filled with its serialised value."""
        filled = {placeholder: {kind: values[name]} for placeholder, kind, name in self._slots}
        return {**self._fixed, KEY: key, EXPRESSION_ATTRIBUTE_VALUES: {**self._constants, **filled}}


class _Once(Generic[T]):
    """A property that is computed at its first use.

    Not `functools.cached_property`: before Python 3.12 that takes a lock, and a child that is forked
    while another thread holds it waits for ever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, instance: Any, owner: type) -> T:
        value = instance.__dict__[self._compute.__name__] = self._compute(instance)
        return value


def seconds(value: float) -> str:
    """Serialise an instant or a duration, to the millisecond."""
    return f"{value:.3f}"


class ClaimRows:
    """The rows of one model: where a claim stands in them, and the requests that change it."""

    def __init__(self, model: type[Model], connection: TableConnection) -> None:
        self._connection = connection
        attributes = model.get_attributes()
        names = ("token", "version", "owner", "lease", "expires_at", "writes", "abandoned_by")
        (
            self._token,
            self._version,
            self._owner,
            self._lease,
            self._expires_at,
            self._writes,
            self._abandoned_by,
        ) = (attributes[name] for name in names)
        self._ttl = attributes["ttl"]
        self._data = attributes["data"]
        protocol = {*names, "ttl", "data", model._hash_keyname, model._range_keyname}
        self._model = model
        blank = model("-")
        self.initial: list[tuple[str, Attribute[Any]]] = [
            (name, attribute)
            for name, attribute in attributes.items()
            if name not in protocol and blank.attribute_values.get(name) is not None
        ]
        """Attributes of a subclass that have a default: written with a row's first claim."""

    def claim(self, raw: RawItem | None) -> Claim:
        """Read the claim in a row; an absent row carries none."""
        if not raw:
            return Claim()

        def text(attribute: Attribute[Any]) -> str | None:
            value: str | None = raw.get(attribute.attr_name, {}).get("S")
            return value

        def number(attribute: Attribute[Any]) -> float:
            return float(raw.get(attribute.attr_name, {}).get("N", 0))

        ends = self._expires_at.attr_name in raw
        return Claim(
            token=text(self._token),
            # int, not float: a fencing token must come out exact
            version=int(raw.get(self._version.attr_name, {}).get("N", 0)),
            expires_at=number(self._expires_at) if ends else None,
            lease=number(self._lease),
            owner=text(self._owner),
            writes=int(number(self._writes)),
            abandoned_by=text(self._abandoned_by) or "",
        )

    def data(self, raw: RawItem | None) -> Any:
        """Read the caller's payload in a row."""
        value = (raw or {}).get(self._data.attr_name, {}).get(self._data.attr_type)
        return None if value is None else self._data.deserialize(value)

    def serialize_data(self, data: Any) -> str | None:
        """Serialise a caller's payload; None stays None."""
        serialized: str | None = self._data.serialize(data)
        return serialized

    def raw_data(self, serialized: str | None) -> RawItem:
        """Return serialised payload as it stands in a row."""
        return {self._data.attr_name: {self._data.attr_type: serialized}}

    def initial_values(self, key: str) -> dict[str, Any]:
        """Serialise the defaults of a subclass's own attributes for a new row."""
        if not self.initial:
            return {}
        values = self._model(key).attribute_values
        return {_OWN + name: attribute.serialize(values[name]) for name, attribute in self.initial}

    # -- parts of expressions -------------------------------------------------------------------

    @property
    def _mine(self) -> Condition:
        mine: Condition = (self._token == _slot("S", "mine")) & (
            self._version == _slot("N", "version")
        )
        return mine

    def _claiming(self, *, data: bool) -> list[Action]:
        actions: list[Action] = [
            self._token.set(_slot("S", "token")),
            self._owner.set(_slot("S", "owner")),
            self._lease.set(_slot("N", "lease")),
            self._expires_at.set(_slot("N", "end")),
            self._ttl.set(_slot("N", "ttl")),
            self._writes.set(Value({"N": "0"})),
        ]
        if data:
            actions.append(self._data.set(_slot(self._data.attr_type, "data")))
        return actions

    def _ending(self) -> list[Action]:
        return [
            self._expires_at.remove(),
            self._owner.remove(),
            self._lease.remove(),
            self._ttl.set(_slot("N", "ttl")),
        ]

    def _template(self, actions: Sequence[Action], condition: Condition, **parts: Any) -> Template:
        return Template(self._connection, actions=actions, condition=condition, **parts)

    @property
    def has_claim(self) -> Condition:
        """Whether a row carries a claim, dead or alive."""
        return self._expires_at.exists()

    # -- requests -------------------------------------------------------------------------------

    def acquire(self, *, watched: bool, data: bool) -> Template:
        """Take a row that is free, whose claim ended, or whose watched claim is dead."""
        return self._acquires[watched, data]

    @_Once
    def _acquires(self) -> dict[tuple[bool, bool], Template]:
        return {
            (watched, data): self._acquire(watched=watched, data=data)
            for watched in (False, True)
            for data in (False, True)
        }

    def _acquire(self, *, watched: bool, data: bool) -> Template:
        takeable = self._expires_at.does_not_exist() | (self._expires_at < _slot("N", "now_low"))
        if watched:
            takeable |= (self._token == _slot("S", "seen")) & (
                self._expires_at == _slot("N", "seen_until")
            )
        fresh = self._token.does_not_exist() | (self._token != _slot("S", "token"))
        seeded = Path(self._version) | _slot("N", "seed")
        actions: list[Action] = [
            # before the owner is set: an engine may evaluate in order
            self._abandoned_by.set(Path(self._owner) | Value({"S": ""})),
            *self._claiming(data=data),
            SetAction(Path(self._version), seeded + Value({"N": "1"})),
            *(
                attribute.set(Path(attribute) | _slot(attribute.attr_type, _OWN + name))
                for name, attribute in self.initial
            ),
        ]
        return self._template(actions, takeable & fresh, return_values="ALL_NEW")

    def hand_over(self, *, data: bool) -> Template:
        """Give our claim to another acquisition, in place of release, poll and acquire."""
        return self._hand_overs[data]

    @_Once
    def _hand_overs(self) -> dict[bool, Template]:
        one_more = Path(self._version) + Value({"N": "1"})
        return {
            data: self._template(
                [
                    *self._claiming(data=data),
                    self._abandoned_by.set(Value({"S": ""})),
                    SetAction(Path(self._version), one_more),
                ],
                # without "exists" a late one would revive what was released
                self._mine & self._expires_at.exists(),
                return_values="ALL_NEW",
            )
            for data in (False, True)
        }

    @_Once
    def renew(self) -> Template:
        """Move the end of our claim, only ever later."""
        actions = [
            self._expires_at.set(_slot("N", "end")),
            self._lease.set(_slot("N", "lease")),
            self._ttl.set(_slot("N", "ttl")),
        ]
        return self._template(actions, self._mine & (self._expires_at < _slot("N", "end")))

    @_Once
    def release(self) -> Template:
        """End our claim and keep the tombstone."""
        return self._template(self._ending(), self._mine, return_values="ALL_OLD")

    @_Once
    def delete(self) -> Template:
        """End our claim and the row with it."""
        return Template(self._connection, condition=self._mine, return_values="ALL_OLD")

    @_Once
    def disown(self) -> Template:
        """End the claim of an acquisition whose outcome, and so its version, is unknown."""
        return self._template(self._ending(), self._token == _slot("S", "mine"))

    @_Once
    def force(self) -> Template:
        """Break the claim that was seen, and no later one."""
        condition = (self._token == _slot("S", "seen")) & self._expires_at.exists()
        actions = [
            self._token.set(_slot("S", "token")),
            SetAction(Path(self._version), Path(self._version) + Value({"N": "1"})),
            *self._ending(),
        ]
        return self._template(actions, condition)

    @_Once
    def guard(self) -> Template:
        """Count a guarded write: only under our claim, and only after the one before it."""
        return self._template([self._counted], self._guarding)

    @_Once
    def save_data(self) -> Template:
        """Write the caller's payload, guarded."""
        return self._template(
            [self._counted, self._data.set(_slot(self._data.attr_type, "data"))], self._guarding
        )

    @_Once
    def clear_data(self) -> Template:
        """Take the caller's payload out, guarded."""
        return self._template([self._counted, self._data.remove()], self._guarding)

    @property
    def _counted(self) -> Action:
        return self._writes.set(_slot("N", "next"))

    @property
    def _guarding(self) -> Condition:
        last: Condition = self._writes == _slot("N", "known")
        guarding: Condition = self._mine & self._expires_at.exists() & last
        return guarding
