"""The layout of a row: reads the claim in it, and builds the expressions and attributes that concern the claim.

No stored attribute name is spelled here: all come from the model's attributes. `requests` puts the expressions
together; what a claim means is decided in `pynamodb_mutex._lock.protocol.claim`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._lock.dynamodb.keys import range_of, row_name, serialize
from pynamodb_mutex._lock.dynamodb.pynamodb_private import hash_key_name, range_key_name
from pynamodb_mutex._lock.protocol.claim import HIGHEST_VERSION, YEAR_10000, Claim
from pynamodb_mutex._lock.protocol.messages import one_line, shown, shown_all
from pynamodb_mutex.exceptions import InvalidKeyError, InvalidRowError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.keys import RawItem

    Operand = Callable[[str, str], Value]
    """Returns the operand for a value, by the value's type and name: a slot, or the value itself."""

EXTRA = "extra:"
"""Prefix of the slot of a subclass's extra attribute: its name may equal a slot of ours, such as ``end``."""

GIVEN = f"{EXTRA}="
"""Prefix of such a slot if the caller gave the value, which replaces the stored value. No name begins with ``=``."""

CLAIM = ("token", "version", "owner", "lease", "expires_at", "writes", "abandoned_by")
"""The attributes of a claim, without the prefix that they have in a user's row."""

SHARING = ("shared_by", "wanted_until", "wanted_by")
"""The attributes of readers that share a claim, and of a writer that waits for them."""

OF_TABLES = ("free_since", "waiting", *SHARING)
"""Further attributes of a claim, such as the line of fair waiters. Only rows of a lock table have them."""

SHARED_MARK = "shared: "
"""Prefix of the owner of a claim that readers share."""

SLOT = "$"
"""First character of a string that stands for a value to be filled in."""

_JAVA_MARK = "recordVersionNumber"
"""An attribute in the rows of the DynamoDB Lock Client for Java and its relatives, which ignore our claims."""


# For the error about a row that cannot be read: the fault, and the advice.
_BROKEN = ("cannot be right", "Find out what wrote it; {} puts it right")
_FOREIGN = ("is not a lock's", "Give locks a table, or keys, of their own")
_DATA = ("has a payload that cannot be read", "Find out what wrote it; save_data() writes over it")


def slot(kind: str, name: str) -> Value:
    """Return an operand that stands for a value to be filled in."""
    return Value({kind: SLOT + name})


def operands(values: Mapping[str, Any]) -> Operand:
    """Return a function that gives these values as operands, for expressions that are used for one request only."""
    return lambda kind, name: Value({kind: values[name]})


def seconds(value: float) -> str:
    """Serialise an instant or a duration in seconds, rounded to the millisecond."""
    return f"{value:.3f}"


def read_text(value: dict[str, Any]) -> str:
    if "S" not in value:
        raise ValueError("is not a string")
    text: str = value["S"]
    return text


def _former(value: dict[str, Any]) -> str:
    if "S" not in value:
        raise ValueError("is not a string")
    # readers that died leave nothing to repair
    return "" if value["S"].startswith(SHARED_MARK) else str(value["S"])


def _count(value: dict[str, Any]) -> int:
    # Decimal, because float rounds whole numbers above 2**53, and a fencing token must be exact.
    number = Decimal(value["N"]) if "N" in value else Decimal(-1)
    if not (0 <= number <= HIGHEST_VERSION and number % 1 == 0):
        raise ValueError(f"is not a whole number from 0 to {HIGHEST_VERSION}")
    return int(number)


def read_seconds(value: dict[str, Any]) -> float:
    number = float(value["N"]) if "N" in value else -1.0
    if number >= YEAR_10000:
        raise ValueError("is not in seconds: it is after the year 9999")
    if not number >= 0:  # true for NaN as well
        raise ValueError("is not a number of seconds")
    return number


def _entries(value: dict[str, Any]) -> tuple[str, ...]:
    if "L" not in value:
        raise ValueError("is not a list")
    return tuple(read_text(entry) for entry in value["L"])


def _sharing(value: dict[str, Any]) -> dict[str, dict[str, float]]:
    if not all("M" in each for each in (value, *value.get("M", {}).values())):
        raise ValueError("is not a map of maps")
    return {
        token: {name: read_seconds(end) for name, end in sorted(readers["M"].items())}
        for token, readers in value["M"].items()
    }


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "token": read_text,
    "version": _count,
    "owner": read_text,
    "lease": read_seconds,
    "expires_at": read_seconds,
    "writes": _count,
    "abandoned_by": _former,
    "free_since": read_seconds,
    "waiting": _entries,
    "shared_by": _sharing,
    "wanted_until": read_seconds,
    "wanted_by": read_text,
}


def serialize_data(model: type[Model], data: Any) -> str | None:
    """Serialise a caller's payload by the model's attribute; None stays None.

    Raises:
        TypeError: If it is not JSON.
        ValueError: If it has NaN or an infinity, which JSON cannot express, or is longer than DynamoDB's limit for a row.
    """
    attribute = model.get_attributes()["data"]
    serialized: str | None = None if data is None else attribute.serialize(data)
    if isinstance(serialized, str) and ("NaN" in serialized or "Infinity" in serialized):
        # Python writes these as numbers and reads them back, but they are not JSON. A string may contain them, too, so only
        # parsing shows whether there is such a number.
        json.loads(serialized, parse_constant=_no_json)
    if isinstance(serialized, str) and len(serialized) > 400 * 1024:
        raise ValueError(f"data has {len(serialized)} bytes of JSON: a row has 400 KB at most")
    return serialized


def room_attributes(model: type[Model]) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
    """Return the attributes that a room has added to the rows of its model, each with the function that reads its value."""
    declared: Mapping[str, Callable[[dict[str, Any]], Any]] = getattr(model, "_of_room", {})
    return declared


def extra_attributes(model: type[Model]) -> dict[str, Attribute[Any]]:
    """Return a lock table's extra attributes, which the protocol does not use, by name."""
    keys = {hash_key_name(model), range_key_name(model)}
    protocol = {*CLAIM, *OF_TABLES, *room_attributes(model), "ttl", "data"} | keys
    return {n: each for n, each in model.get_attributes().items() if n not in protocol}


def serialize_attributes(model: type[Model], given: Mapping[str, Any]) -> dict[str, Any]:
    """Serialise values of a lock table's extra attributes, by the names of their slots.

    Raises:
        TypeError: If the model has no such extra attribute, or the value is of another type.
        ValueError: If the attribute cannot have the value.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"attributes must be a dict of values by name, not {shown(given)}")
    extra, serialized = extra_attributes(model), {}
    for name, value in given.items():
        if name not in extra:
            names = shown_all(extra) or "none; declare it in a subclass"
            msg = f"{model.__name__} has no attribute {shown(name)} of its own: it has {names}"
            raise TypeError(msg)
        serialized[GIVEN + name] = serialize(model, name, value)
    return serialized


def _no_json(name: str) -> None:
    msg = f"data must be JSON, which has no {name}"
    raise ValueError(msg)


class Layout:
    """Where the claim is in the rows of one model, a lock table or a user's table.

    A row of a lock table exists for its lock alone, and is created by its first acquisition. In a user's table the
    attributes of the claim have a prefix, and a row must exist to be locked.

    Attributes:
        put_right_by: The call that makes a free lock of a row whose attributes are invalid.
        must_exist: Whether a row must exist to be locked: true for a user's table.
        exists: The condition that a row exists.
        initial: A subclass's extra attributes, each with its name. A row's first claim writes their defaults.
    """

    put_right_by = "force_release()"

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        attributes = model.get_attributes()
        prefix: str = getattr(model, "_claim_prefix", "")
        self.must_exist = bool(prefix)
        self._hash_key = attributes[hash_key_name(model)]
        self.exists: Condition = self._hash_key.exists()
        (
            self.token,
            self.version,
            self.owner,
            self.lease,
            self.expires_at,
            self.writes,
            self.abandoned_by,
        ) = (attributes[prefix + name] for name in CLAIM)
        # In a user's row, attributes with these names belong to the user.
        self.ttl_attribute: Any = None if prefix else attributes["ttl"]
        self.data_attribute: Any = None if prefix else attributes["data"]
        more: Any = [None if prefix else attributes[name] for name in OF_TABLES]
        self.free_since, self.waiting, *sharing = more
        self.shared_by, self.wanted_until, self.wanted_by = sharing
        self.sharing: list[Any] = [] if prefix else sharing
        self._of_a_room = room_attributes(model)
        readers = {**_READERS, **self._of_a_room}
        self._readers = [
            (name, attributes[prefix + name].attr_name, readers[name])
            for name in (CLAIM if prefix else (*CLAIM, *OF_TABLES, *self._of_a_room))
        ]
        self.initial = [] if prefix else [*extra_attributes(model).items()]

    def claim(self, raw: RawItem | None) -> Claim:
        """Return the claim in a row: none if the row is absent, one with a fault if it cannot be a lock's."""
        if not raw:
            return Claim()
        read = self._read(raw)
        if isinstance(read, Claim):
            return read
        token = raw.get(self.token.attr_name, {}).get("S")
        kind = _BROKEN if self.was_a_locks(raw) else _FOREIGN
        return Claim(token=token, fault=self._invalid(raw, *read, kind))

    def _read(self, raw: RawItem) -> Claim | tuple[str, str]:
        """Return the claim in a row; if the row cannot be a lock's, the attribute that shows it, and why.

        Nothing else decides this. If this reads a row as a free lock, the row must also satisfy the condition of the acquiring
        write (see `is_a_locks`). Otherwise a waiter would send that write again and again: each time DynamoDB refuses it, and
        the row in the refusal says that the lock is free.
        """
        values: dict[str, Any] = {}
        for name, stored, read in self._readers:
            if stored in raw:
                try:
                    values[name] = read(raw[stored])
                except (ValueError, ArithmeticError) as error:
                    return stored, str(error)
        if not self.must_exist and _JAVA_MARK in raw:
            return _JAVA_MARK, "is another lock library's"
        # A row that was ever locked keeps token and version. If a row of a lock table lacks them, it belongs to another
        # application; a user's row lacks them until it is first locked, but not while it carries a claim.
        if not self.must_exist or "expires_at" in values:
            for attribute in (self.token, self.version):
                if attribute.attr_name not in raw:
                    return attribute.attr_name, "is missing"
        if self._of_a_room:
            values["of_room"] = {n: values.pop(n) for n in self._of_a_room.keys() & values.keys()}
        return Claim(**values)

    def fault(self, raw: RawItem) -> str | None:
        """Return why a row cannot be a lock's; None if it can. Rows with the same fault have the same text."""
        read = self._read(raw)
        return None if isinstance(read, Claim) else f"{read[0]!r} {read[1]}"

    def was_a_locks(self, raw: RawItem) -> bool:
        """Return whether a row is a lock's, even if its attributes are invalid. Force may change only such a row.

        In a user's row the attributes of the claim have names that nothing else uses. If a row of a lock table lacks a token or
        a version, and has attributes that a lock does not have, it counts as another application's: force would give it a TTL,
        and DynamoDB would delete it.
        """
        if self.must_exist:
            return True
        names = [self.token.attr_name, self.version.attr_name, self.expires_at.attr_name]
        token, version, ends = (name in raw for name in names)
        ours = {attribute.attr_name for attribute in self.model.get_attributes().values()}
        lost = (token or ends) and raw.keys() <= ours
        return ((token and version) or lost) and _JAVA_MARK not in raw

    def key(self, raw: RawItem) -> str:
        """Return the key of a row's lock, for messages."""
        if not self.must_exist:
            # A made-up answer, such as a test's, may show only a part of the row.
            return str(*raw.get(self._hash_key.attr_name, {"S": "?"}).values())
        names = filter(None, (hash_key_name(self.model), range_key_name(self.model)))
        stored = [self.model.get_attributes()[name].attr_name for name in names]
        return row_name(self.model, {name: raw[name] for name in stored})

    @property
    def is_listed(self) -> Condition:
        """The condition that a listing shows a row: it has a claim, running or expired."""
        return self.has_claim

    def is_the_models(self, raw: RawItem) -> bool:
        """Return whether a row can be one of this model's locks.

        If its range key has a default, rows under other range keys may belong to other models.
        """
        return self.must_exist or self.range_is_default(raw) is not False

    def range_is_default(self, raw: RawItem) -> bool | None:
        """Return whether a row has the default range key, or the model has no range key; None if there is no default."""
        try:
            # Any hash key will do. The lock's own is not known: a user's attribute may store it in another form, such as with a
            # prefix.
            own = range_of(self.model, "-")
        except InvalidKeyError:
            return None
        # Compared by name, because a number may be stored in another notation.
        found = {name: raw[name] for name in own}
        return row_name(self.model, found) == row_name(self.model, own)

    def _invalid(
        self, raw: RawItem, attribute: str, why: str, kind: tuple[str, str]
    ) -> InvalidRowError:
        key = self.key(raw)
        found = f": {shown(raw[attribute])}" if attribute in raw else f"; it has {shown_all(raw)}"
        msg = (
            f"the row of {shown(key)} in table {self.model.Meta.table_name} {kind[0]}: "
            f"its {attribute!r} {why}{found}. {kind[1].format(self.put_right_by)}"
        )
        return InvalidRowError(msg, attribute=attribute, key=key)

    def data(self, raw: RawItem | None) -> Any:
        """Return the caller's payload in a row; None if there is none, or the row is a user's.

        Raises:
            InvalidRowError: If the payload cannot be read.
        """
        typed = (
            None if self.data_attribute is None else (raw or {}).get(self.data_attribute.attr_name)
        )
        if typed is None or "NULL" in typed:
            return None
        try:
            return self.data_attribute.deserialize(self.data_attribute.get_value(typed))
        except (ValueError, TypeError) as error:
            why = f"cannot be read: {one_line(error)}"
            raise self._invalid(raw or {}, self.data_attribute.attr_name, why, _DATA) from error

    def ttl(self, raw: RawItem | None) -> float | None:
        """Return when DynamoDB may delete a row, in seconds since the epoch; None for never, such as for a user's row."""
        value = (
            None
            if self.ttl_attribute is None
            else (raw or {}).get(self.ttl_attribute.attr_name, {}).get("N")
        )
        return None if value is None else float(value)

    def with_data(self, raw: RawItem, serialized: str | None) -> RawItem:
        """Return a copy of a row with another serialised payload, or without one if it is None."""
        name = self.data_attribute.attr_name
        if serialized is None:
            return {other: value for other, value in raw.items() if other != name}
        return {**raw, name: {self.data_attribute.attr_type: serialized}}

    def initial_values(self, key: str, given: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return serialised values of a subclass's extra attributes, by the names of their slots.

        These are the values in ``given``, from the caller, and the defaults of the other attributes, for a new row.
        """
        if not self.initial:
            return {}
        # PynamoDB calls a default that is a function for each instance. It may return None now and a value later, such as the
        # user of the present request. None is not stored, and neither is a value that serialises to None, such as an empty set.
        values = self.model(key).attribute_values
        serialized = {
            EXTRA + name: attribute.serialize(values[name])
            for name, attribute in self.initial
            if values.get(name) is not None and name not in (given or ())
        }
        stored = {name: value for name, value in serialized.items() if value is not None}
        return stored | serialize_attributes(self.model, given or {})

    # -- conditions and actions -----------------------------------------------------------------

    def mine(self, value: Operand = slot) -> Condition:
        """Return the condition that token and version are those of our acquisition."""
        # The token alone is not enough. Suppose A's acquiring request is applied (version 5), and a copy of it is delayed. A's
        # lease expires, B acquires (6) and releases; the copy arrives and writes A's token again, with version 7. That claim
        # came after B's, so a late write of A's must not pass under it.
        mine: Condition = (self.token == value("S", "mine")) & (
            self.version == value("N", "version")
        )
        return mine

    def recorded(self) -> Action:
        recorded: Action = self.data_attribute.set(slot(self.data_attribute.attr_type, "data"))
        return recorded

    def ends_before(self, value: Operand = slot) -> Condition:
        """Return the condition that the claim ends before the new end: an end only ever moves later."""
        # Suppose renewal 1 (new end 100) is delayed; renewal 2 (new end 110) is applied, and its holder believes until
        # 110. If renewal 1 then arrived and moved the end back to 100, another could acquire the lock in between. The
        # comparison also fails for a row without an end: a late renewal revives no claim that was released.
        return self.expires_at < value("N", "end")

    def not_held(self, value: Operand = slot) -> Condition:
        """Return the condition that there is no claim, or that its end has certainly passed."""
        free: Condition = self.expires_at.does_not_exist() | (
            self.expires_at < value("N", "now_low")
        )
        return free

    @property
    def nobody_waits(self) -> Condition:
        """The condition that nobody stands in line in a row of a lock table."""
        # Not by `size`: if the list does not exist, some engines refuse `size` and some return 0.
        return Path(self.waiting)[0].does_not_exist()

    def version_below(self, value: Operand = slot) -> Condition:
        """Return the condition that the fencing token is lower than the one to be written, or absent."""
        below: Condition = self.version.does_not_exist() | (
            self.version < value("N", "new_version")
        )
        return below

    def is_a_locks(self) -> Condition:
        """Return the condition that the acquiring write can compute with the values in the row: see `_read`.

        A row of a lock table may be absent, a user's row may not. The acquiring write overwrites all other invalid values in a
        free row.
        """
        # The write adds one to the version. A fraction, and the highest version, pass this condition: the acquisition then
        # finds a version in the answer that no lock can have, and gives up.
        fit: Condition = self.version.between(0, HIGHEST_VERSION)
        if self.must_exist:
            fit = self.exists & (self.version.does_not_exist() | fit)
        else:
            fit = Path(self.token).is_type("S") & fit
            fit = self._hash_key.does_not_exist() | fit
            fit &= Path([_JAVA_MARK]).does_not_exist()
        # The write copies the owner to `abandoned_by`, which is a string.
        fit &= self.owner.does_not_exist() | Path(self.owner).is_type("S")
        return fit

    @property
    def has_claim(self) -> Condition:
        """The condition that the row carries a claim, running or expired."""
        return self.expires_at.exists()

    def ending(self) -> list[Action]:
        """Return the actions that end a claim and leave the tombstone; in a user's row they only remove attributes."""
        # Token and version stay: the token makes DynamoDB refuse a late copy of the acquiring write, and the next fencing token
        # counts from the version.
        actions = [self.expires_at.remove(), self.owner.remove(), self.lease.remove()]
        if self.free_since is not None:
            actions.append(self.free_since.set(slot("N", "free_since")))
        return [*actions, *self.dated()]

    def cleared(self) -> list[Action]:
        """Return the actions that remove a claim and all other attributes that may be invalid in a row."""
        others = (self.writes, self.abandoned_by, self.waiting, *self.sharing)
        return [each.remove() for each in others if each is not None]

    def new_end(self) -> list[Action]:
        """Return the actions that give the claim another end, and the row another TTL."""
        lease = self.lease.set(slot("N", "lease"))
        return [self.expires_at.set(slot("N", "end")), lease, *self.dated()]

    def dated(self) -> list[Action]:
        """Return the action that sets the row's TTL; none for a user's row."""
        if self.ttl_attribute is None:
            return []
        return [self.ttl_attribute.set(slot("N", "ttl"))]

    def claiming(self, *, data: bool) -> list[Action]:
        """Return the actions that write a new claim, all but ``version``, ``abandoned_by`` and ``writes``."""
        actions: list[Action] = [
            self.token.set(slot("S", "token")),
            self.owner.set(slot("S", "owner")),
            self.lease.set(slot("N", "lease")),
            self.expires_at.set(slot("N", "end")),
            *self.dated(),
        ]
        if data and self.data_attribute is not None:
            actions.append(self.recorded())
        return actions

    def succeeding(self, data: bool, given: Collection[str]) -> list[Action]:
        """Return the actions that put another claim in the place of one that has not ended."""
        return [
            *self.claiming(data=data),
            self.abandoned_by.set(Value({"S": ""})),
            SetAction(Path(self.version), Path(self.version) + Value({"N": "1"})),
            *self.extras(given),
        ]

    def extras(self, slots: Collection[str]) -> list[Action]:
        """Return the actions that write a subclass's extra attributes: the caller's values, and defaults of a new row."""
        actions: list[Action] = []
        for name, attribute in self.initial:
            kind = attribute.attr_type
            if GIVEN + name in slots:
                actions.append(attribute.set(slot(kind, GIVEN + name)))
            elif EXTRA + name in slots:
                actions.append(attribute.set(Path(attribute) | slot(kind, EXTRA + name)))
        return actions
