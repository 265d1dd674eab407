"""The layout of a row: where a claim is in it, how it is read, and the expressions about it.

No stored attribute name is spelled here: all come from the model.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Path, Value

from pynamodb_mutex._dynamodb.keys import key_of, row_name
from pynamodb_mutex._dynamodb.pynamodb_private import hash_key_name, range_key_name
from pynamodb_mutex._protocol.claim import HIGHEST_VERSION, YEAR_10000, Claim
from pynamodb_mutex._protocol.messages import one_line, shown, shown_all
from pynamodb_mutex.exceptions import InvalidRowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.attributes import Attribute
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.keys import RawItem

    Given = Callable[[str, str], Value]
    """Gives the operand for a value by its type and name: a slot, or what is to stand there."""

OWN = "own:"
"""How the slot of a subclass's own attribute begins, which may have the name of one of ours."""

CLAIM = ("token", "version", "owner", "lease", "expires_at", "writes", "abandoned_by")
"""The attributes of a claim, without the prefix that they have in a user's row."""

LINE = ("free_since", "waiting")
"""The attributes of those who wait in line, in the lock table alone."""

SLOT = "$"
"""How a string begins that stands for a value to be filled in."""

_JAVA_MARK = "recordVersionNumber"
"""In the rows of the DynamoDB Lock Client for Java and its relatives, which take no notice of our claims."""


_BROKEN = ("cannot be right", "Find out what wrote it; force_release() puts it right")
_FOREIGN = ("is not a lock's", "Give locks a table, or keys, of their own")
_DATA = ("has a payload that cannot be read", "Find out what wrote it; save_data() writes over it")


def slot(kind: str, name: str) -> Value:
    """Return an operand that stands for a value to be filled in."""
    return Value({kind: SLOT + name})


def given(values: Mapping[str, Any]) -> Given:
    """Return what gives these values as operands, for expressions that are built but once."""
    return lambda kind, name: Value({kind: values[name]})


def seconds(value: float) -> str:
    """Serialise an instant or a duration, to the millisecond."""
    return f"{value:.3f}"


def _text(value: dict[str, Any]) -> str:
    if "S" not in value:
        raise ValueError("is not a string")
    text: str = value["S"]
    return text


def _count(value: dict[str, Any]) -> int:
    # Decimal, not float: a fencing token must come out exact
    number = Decimal(value["N"]) if "N" in value else Decimal(-1)
    if not (0 <= number <= HIGHEST_VERSION and number % 1 == 0):
        raise ValueError(f"is not a whole number from 0 to {HIGHEST_VERSION}")
    return int(number)


def _seconds(value: dict[str, Any]) -> float:
    number = float(value["N"]) if "N" in value else -1.0
    if number >= YEAR_10000:
        raise ValueError("is not in seconds: it is after the year 9999")
    if not number >= 0:
        raise ValueError("is not a number of seconds")
    return number


def _entries(value: dict[str, Any]) -> tuple[str, ...]:
    if "L" not in value:
        raise ValueError("is not a list")
    return tuple(_text(entry) for entry in value["L"])


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "token": _text,
    "version": _count,
    "owner": _text,
    "lease": _seconds,
    "expires_at": _seconds,
    "writes": _count,
    "abandoned_by": _text,
    "free_since": _seconds,
    "waiting": _entries,
}


def serialize_data(model: type[Model], data: Any) -> str | None:
    """Serialise a caller's payload as a model has it; None stays None.

    Raises:
        TypeError: If it is not JSON.
        ValueError: If JSON has no name for a number in it.
    """
    attribute = model.get_attributes()["data"]
    serialized: str | None = None if data is None else attribute.serialize(data)
    if isinstance(serialized, str) and ("NaN" in serialized or "Infinity" in serialized):
        # Python would read back what it writes here, and no other program
        json.loads(serialized, parse_constant=_no_json)
    return serialized


def _no_json(name: str) -> None:
    msg = f"data must be JSON, which has no {name}"
    raise ValueError(msg)


class Layout:
    """Where a claim is in the rows of one model.

    Rows of the lock table carry nothing else, and are made by their first claim. In a user's table
    the claim's attributes have a prefix, and a row must exist to be locked.

    Attributes:
        must_exist: Whether a row must exist to be locked: in a user's table.
        initial: Attributes of a subclass that have a default: written with a row's first claim.
    """

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        attributes = model.get_attributes()
        prefix: str = getattr(model, "_claim_prefix", "")
        self.must_exist = bool(prefix)
        self._hash_key = attributes[hash_key_name(model)]
        (
            self.token,
            self.version,
            self.owner,
            self.lease,
            self.expires_at,
            self.writes,
            self.abandoned_by,
        ) = (attributes[prefix + name] for name in CLAIM)
        # a user's row may have attributes of these names, which are the user's
        self.ttl_attribute: Any = None if prefix else attributes["ttl"]
        self.data_attribute: Any = None if prefix else attributes["data"]
        self.free_since: Any = None if prefix else attributes["free_since"]
        self.waiting: Any = None if prefix else attributes["waiting"]
        self._readers = [
            (name, attributes[prefix + name].attr_name, _READERS[name])
            for name in (CLAIM if prefix else CLAIM + LINE)
        ]
        self.initial: list[tuple[str, Attribute[Any]]] = []
        if not prefix:
            protocol = {*CLAIM, *LINE, "ttl", "data", hash_key_name(model), range_key_name(model)}
            blank = model("-")
            self.initial = [
                (name, attribute)
                for name, attribute in attributes.items()
                if name not in protocol and blank.attribute_values.get(name) is not None
            ]

    def claim(self, raw: RawItem | None) -> Claim:
        """Read the claim in a row; an absent row carries none."""
        if not raw:
            return Claim()
        read = self._read(raw)
        if isinstance(read, Claim):
            return read
        token = raw.get(self.token.attr_name, {}).get("S")
        kind = _BROKEN if self.was_a_locks(raw) else _FOREIGN
        return Claim(token=token, fault=self._invalid(raw, *read, kind))

    def _read(self, raw: RawItem) -> Claim | tuple[str, str]:
        """Read the claim in a row; return the attribute for which it cannot be a lock's, and why, if it cannot.

        The one place that decides that. What this takes for a lock's, and for free, the acquiring write must
        take (see `is_a_locks`), or a waiter would send it again and again.
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
        # what was ever locked keeps both; a user's row begins without
        if not self.must_exist or "expires_at" in values:
            for attribute in (self.token, self.version):
                if attribute.attr_name not in raw:
                    return attribute.attr_name, "is missing"
        return Claim(**values)

    def fault(self, raw: RawItem) -> str | None:
        """Say why a row cannot be a lock's, in words that are the same for all such rows."""
        read = self._read(raw)
        return None if isinstance(read, Claim) else f"{read[0]!r} {read[1]}"

    def was_a_locks(self, raw: RawItem) -> bool:
        """Say whether a row is a lock's, though its attributes may not be right: only then force may change it.

        In a user's row they have names of their own. In the lock table a row that lacks a token or a version
        is taken for another application's if it has more than a lock has: force would make DynamoDB delete
        it, by its TTL.
        """
        if self.must_exist:
            return True
        names = [self.token.attr_name, self.version.attr_name, self.expires_at.attr_name]
        token, version, ends = (name in raw for name in names)
        ours = {attribute.attr_name for attribute in self.model.get_attributes().values()}
        lost = (token or ends) and raw.keys() <= ours
        return ((token and version) or lost) and _JAVA_MARK not in raw

    def version_above(self, raw: RawItem) -> int | None:
        """Return a fencing token above that in a row whose attributes may not be right; None if it has none."""
        number = Decimal(raw.get(self.version.attr_name, {}).get("N", "-1"))
        return int(number) + 1 if 0 <= number < HIGHEST_VERSION else None

    def key(self, raw: RawItem) -> str:
        """Return the key of a row's lock, for messages."""
        if not self.must_exist:
            # an answer that is made up, as for a test, may show a part of a row
            return str(*raw.get(self._hash_key.attr_name, {"S": "?"}).values())
        names = filter(None, (hash_key_name(self.model), range_key_name(self.model)))
        stored = [self.model.get_attributes()[name].attr_name for name in names]
        return row_name(self.model, {name: raw[name] for name in stored})

    def is_the_models(self, raw: RawItem) -> bool:
        """Say whether a row stands where this model has its locks: under other range keys stand other rows."""
        if self.must_exist or range_key_name(self.model) is None:
            return True
        place = key_of(self.model, self.key(raw))
        # by name, for a number may stand there spelt otherwise
        found = {name: raw[name] for name in place}
        return row_name(self.model, found) == row_name(self.model, place)

    def _invalid(
        self, raw: RawItem, attribute: str, why: str, kind: tuple[str, str]
    ) -> InvalidRowError:
        key = self.key(raw)
        found = f": {shown(raw[attribute])}" if attribute in raw else f"; it has {shown_all(raw)}"
        msg = (
            f"the row of {shown(key)} in table {self.model.Meta.table_name} {kind[0]}: "
            f"its {attribute!r} {why}{found}. {kind[1]}"
        )
        return InvalidRowError(msg, attribute=attribute, key=key)

    def end(self, raw: RawItem) -> float | None:
        """Read the end of a claim in a part of a row."""
        value = raw.get(self.expires_at.attr_name, {}).get("N")
        return None if value is None else float(value)

    def data(self, raw: RawItem | None) -> Any:
        """Read the caller's payload in a row.

        Raises:
            InvalidRowError: If it is none.
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
        """Read when DynamoDB may delete a row of the lock table."""
        value = (
            None
            if self.ttl_attribute is None
            else (raw or {}).get(self.ttl_attribute.attr_name, {}).get("N")
        )
        return None if value is None else float(value)

    def serialize_data(self, data: Any) -> str | None:
        """Serialise a caller's payload; None stays None.

        Raises:
            TypeError: If it is not JSON.
            ValueError: If JSON has no name for a number in it.
        """
        return serialize_data(self.model, data)

    def with_data(self, raw: RawItem, serialized: str | None) -> RawItem:
        """Return a row with another serialised payload in it; with None without any."""
        name = self.data_attribute.attr_name
        if serialized is None:
            return {other: value for other, value in raw.items() if other != name}
        return {**raw, name: {self.data_attribute.attr_type: serialized}}

    def initial_values(self, key: str) -> dict[str, Any]:
        """Serialise the defaults of a subclass's own attributes for a new row."""
        if not self.initial:
            return {}
        values = self.model(key).attribute_values
        return {OWN + name: attribute.serialize(values[name]) for name, attribute in self.initial}

    # -- parts of expressions -------------------------------------------------------------------

    def mine(self, value: Given = slot) -> Condition:
        """Token and version are those of one acquisition."""
        mine: Condition = (self.token == value("S", "mine")) & (
            self.version == value("N", "version")
        )
        return mine

    def guarding(self, value: Given = slot) -> Condition:
        """The claim is ours, and the last guarded write under it was the one we know."""
        last: Condition = self.writes == value("N", "known")
        guarding: Condition = self.mine(value) & self.has_claim & last
        return guarding

    def counted(self, value: Given = slot) -> Action:
        """Count a guarded write."""
        return self.writes.set(value("N", "next"))

    def ends_before(self, value: Given = slot) -> Condition:
        """The claim's end is before the new one: it only ever moves later."""
        before: Condition = self.expires_at < value("N", "end")
        return before

    def not_held(self, value: Given = slot) -> Condition:
        """There is no claim, or its end has surely passed."""
        free: Condition = self.expires_at.does_not_exist() | (
            self.expires_at < value("N", "now_low")
        )
        return free

    def long_free(self, value: Given = slot) -> Condition:
        """The lock has surely been free since before a time: released then, or its claim expired then.

        ``free_since`` is read only where there is no claim: under one it still says when the claim before it ended.
        """
        released = self.expires_at.does_not_exist() & (self.free_since < value("N", "past"))
        free: Condition = (self.expires_at < value("N", "past")) | released
        return free

    def nobody_waits(self, place: int = 0) -> Condition:
        """Nobody stands in line at a place, nor behind it.

        Not by ``size``, which is refused, or 0, for a list that does not exist: engines differ.
        """
        nobody: Condition = Path(self.waiting)[place].does_not_exist()
        return nobody

    def stands_at(self, place: int, value: Given = slot) -> Condition:
        """An entry stands in line at a place."""
        stands: Condition = Path(self.waiting)[place] == value("S", "entry")
        return stands

    def version_below(self, value: Given = slot) -> Condition:
        """The fencing token is lower than the one to be written, or absent."""
        below: Condition = self.version.does_not_exist() | (
            self.version < value("N", "new_version")
        )
        return below

    def is_a_locks(self) -> Condition:
        """The row is absent, or has what the acquiring write computes with: see `claim`.

        What else may be wrong in a row that is free is overwritten.
        """
        fit: Condition = self.version.between(0, HIGHEST_VERSION)
        if self.must_exist:
            fit = self._hash_key.exists() & (self.version.does_not_exist() | fit)
        else:
            fit = Path(self.token).is_type("S") & fit
            fit = self._hash_key.does_not_exist() | fit
            fit &= Path([_JAVA_MARK]).does_not_exist()
        # it becomes `abandoned_by`
        fit &= self.owner.does_not_exist() | Path(self.owner).is_type("S")
        return fit

    @property
    def has_claim(self) -> Condition:
        """Whether a row carries a claim, dead or alive."""
        return self.expires_at.exists()

    def ending(self, value: Given = slot) -> list[Action]:
        """End a claim and keep the tombstone."""
        actions = [self.expires_at.remove(), self.owner.remove(), self.lease.remove()]
        if self.free_since is not None:
            actions.append(self.free_since.set(value("N", "free_since")))
        return [*actions, *self.dated(value)]

    def dated(self, value: Given = slot) -> list[Action]:
        return [] if self.ttl_attribute is None else [self.ttl_attribute.set(value("N", "ttl"))]

    def claiming(self, *, data: bool) -> list[Action]:
        actions: list[Action] = [
            self.token.set(slot("S", "token")),
            self.owner.set(slot("S", "owner")),
            self.lease.set(slot("N", "lease")),
            self.expires_at.set(slot("N", "end")),
            *self.dated(),
            self.writes.set(Value({"N": "0"})),
        ]
        if data and self.data_attribute is not None:
            actions.append(self.data_attribute.set(slot(self.data_attribute.attr_type, "data")))
        return actions

    # -- whole rows -----------------------------------------------------------------------------

    def tombstone(self, version: int) -> RawItem:
        """Return what a row that nobody ever claimed carries: a fencing token to count from."""
        return {self.version.attr_name: {"N": str(version)}}

    def carried(self, values: Mapping[str, Any], *, ended: bool) -> RawItem:
        """Return the claim, or the tombstone it leaves, as a whole row carries it."""
        raw: RawItem = {
            self.token.attr_name: {"S": values["mine"]},
            self.version.attr_name: {"N": values["version"]},
            self.writes.attr_name: {"N": values["next"]},
        }
        if not ended:
            raw |= {
                self.owner.attr_name: {"S": values["owner"]},
                self.lease.attr_name: {"N": values["lease"]},
                self.expires_at.attr_name: {"N": values["end"]},
                self.abandoned_by.attr_name: {"S": values["abandoned_by"]},
            }
        return raw
