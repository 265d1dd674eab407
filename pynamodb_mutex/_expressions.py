"""The conditional requests of the protocol, prebuilt from a model's attributes.

PynamoDB builds an expression in about 50 µs; a lock sends the same few again and again. Each is
built once with slots in place of values, and filled in at each request. No stored attribute name is
spelt here: all come from the model.
"""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._claim import HIGHEST_VERSION, YEAR_10000, Claim
from pynamodb_mutex._keys import key_of, row_name
from pynamodb_mutex._messages import one_line, shown, shown_all
from pynamodb_mutex._templates import Once, Statement, Template, slot
from pynamodb_mutex.exceptions import InvalidRowError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pynamodb.attributes import Attribute
    from pynamodb.connection.table import TableConnection
    from pynamodb.expressions.condition import Condition
    from pynamodb.expressions.update import Action
    from pynamodb.models import Model

    from pynamodb_mutex._keys import RawItem
    from pynamodb_mutex._templates import Given

_OWN = "own:"  # a subclass may call an attribute as we call a slot

CLAIM = ("token", "version", "owner", "lease", "expires_at", "writes", "abandoned_by")
"""The attributes of a claim, without the prefix that they have in a user's row."""


_JAVA_MARK = "recordVersionNumber"
"""In the rows of the DynamoDB Lock Client for Java and its relatives, which take no notice of our claims."""


_BROKEN = ("cannot be right", "Find out what wrote it; force_release() puts it right")
_FOREIGN = ("is not a lock's", "Give locks a table, or keys, of their own")
_DATA = ("has a payload that cannot be read", "Find out what wrote it; save_data() writes over it")


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


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "token": _text,
    "version": _count,
    "owner": _text,
    "lease": _seconds,
    "expires_at": _seconds,
    "writes": _count,
    "abandoned_by": _text,
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


class ClaimRows:
    """The rows of one model: where a claim stands in them, and the requests that change it.

    Rows of the lock table carry nothing else, and are made by their first claim. In a user's table
    the claim's attributes have a prefix, and a row must be there to be locked.
    """

    def __init__(self, model: type[Model], connection: TableConnection) -> None:
        self._connection = connection
        attributes = model.get_attributes()
        prefix: str = getattr(model, "_claim_prefix", "")
        self.must_exist = bool(prefix)
        self._hash_key = attributes[model._hash_keyname or ""]
        (
            self._token,
            self._version,
            self._owner,
            self._lease,
            self.expires_at,
            self._writes,
            self._abandoned_by,
        ) = (attributes[prefix + name] for name in CLAIM)
        # a user's row may have attributes of these names, which are the user's
        self._ttl: Any = None if prefix else attributes["ttl"]
        self._data: Any = None if prefix else attributes["data"]
        self._model = model
        self._readers = [
            (name, attributes[prefix + name].attr_name, read) for name, read in _READERS.items()
        ]
        self.initial: list[tuple[str, Attribute[Any]]] = []
        """Attributes of a subclass that have a default: written with a row's first claim."""
        if not prefix:
            protocol = {*CLAIM, "ttl", "data", model._hash_keyname, model._range_keyname}
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
        token = raw.get(self._token.attr_name, {}).get("S")
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
            for attribute in (self._token, self._version):
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
        names = [self._token.attr_name, self._version.attr_name, self.expires_at.attr_name]
        token, version, ends = (name in raw for name in names)
        ours = {attribute.attr_name for attribute in self._model.get_attributes().values()}
        lost = (token or ends) and raw.keys() <= ours
        return ((token and version) or lost) and _JAVA_MARK not in raw

    def version_above(self, raw: RawItem) -> int | None:
        """Return a fencing token above that in a row whose attributes may not be right; None if it has none."""
        number = Decimal(raw.get(self._version.attr_name, {}).get("N", "-1"))
        return int(number) + 1 if 0 <= number < HIGHEST_VERSION else None

    def key(self, raw: RawItem) -> str:
        """Return the key of a row's lock, for messages."""
        if not self.must_exist:
            # an answer that is made up, as for a test, may show a part of a row
            return str(*raw.get(self._hash_key.attr_name, {"S": "?"}).values())
        names = filter(None, (self._model._hash_keyname, self._model._range_keyname))
        stored = [self._model.get_attributes()[name].attr_name for name in names]
        return row_name(self._model, {name: raw[name] for name in stored})

    def is_the_models(self, raw: RawItem) -> bool:
        """Say whether a row stands where this model has its locks: under other range keys stand other rows."""
        if self.must_exist or self._model._range_keyname is None:
            return True
        place = key_of(self._model, self.key(raw))
        # by name, for a number may stand there spelt otherwise
        found = {name: raw[name] for name in place}
        return row_name(self._model, found) == row_name(self._model, place)

    def _invalid(
        self, raw: RawItem, attribute: str, why: str, kind: tuple[str, str]
    ) -> InvalidRowError:
        key = self.key(raw)
        found = f": {shown(raw[attribute])}" if attribute in raw else f"; it has {shown_all(raw)}"
        msg = (
            f"the row of {shown(key)} in table {self._connection.table_name} {kind[0]}: "
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
        typed = None if self._data is None else (raw or {}).get(self._data.attr_name)
        if typed is None or "NULL" in typed:
            return None
        try:
            return self._data.deserialize(self._data.get_value(typed))
        except (ValueError, TypeError) as error:
            why = f"cannot be read: {one_line(error)}"
            raise self._invalid(raw or {}, self._data.attr_name, why, _DATA) from error

    def ttl(self, raw: RawItem | None) -> float | None:
        """Read when DynamoDB may delete a row of the lock table."""
        value = None if self._ttl is None else (raw or {}).get(self._ttl.attr_name, {}).get("N")
        return None if value is None else float(value)

    def serialize_data(self, data: Any) -> str | None:
        """Serialise a caller's payload; None stays None.

        Raises:
            TypeError: If it is not JSON.
            ValueError: If JSON has no name for a number in it.
        """
        return serialize_data(self._model, data)

    def with_data(self, raw: RawItem, serialized: str | None) -> RawItem:
        """Return a row with another serialised payload in it; with None without any."""
        name = self._data.attr_name
        if serialized is None:
            return {other: value for other, value in raw.items() if other != name}
        return {**raw, name: {self._data.attr_type: serialized}}

    def initial_values(self, key: str) -> dict[str, Any]:
        """Serialise the defaults of a subclass's own attributes for a new row."""
        if not self.initial:
            return {}
        values = self._model(key).attribute_values
        return {_OWN + name: attribute.serialize(values[name]) for name, attribute in self.initial}

    # -- parts of expressions -------------------------------------------------------------------

    def mine(self, value: Given = slot) -> Condition:
        """Token and version are those of one acquisition."""
        mine: Condition = (self._token == value("S", "mine")) & (
            self._version == value("N", "version")
        )
        return mine

    def guarding(self, value: Given = slot) -> Condition:
        """The claim is ours, and the last guarded write under it was the one we know."""
        last: Condition = self._writes == value("N", "known")
        guarding: Condition = self.mine(value) & self.has_claim & last
        return guarding

    def counted(self, value: Given = slot) -> Action:
        """Count a guarded write."""
        return self._writes.set(value("N", "next"))

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

    def version_below(self, value: Given = slot) -> Condition:
        """The fencing token is lower than the one to be written, or absent."""
        below: Condition = self._version.does_not_exist() | (
            self._version < value("N", "new_version")
        )
        return below

    def is_a_locks(self) -> Condition:
        """The row is absent, or has what the acquiring write computes with: see `claim`.

        What else may be wrong in a row that is free is overwritten.
        """
        fit: Condition = self._version.between(0, HIGHEST_VERSION)
        if self.must_exist:
            fit = self._hash_key.exists() & (self._version.does_not_exist() | fit)
        else:
            fit = Path(self._token).is_type("S") & fit
            fit = self._hash_key.does_not_exist() | fit
            fit &= Path([_JAVA_MARK]).does_not_exist()
        # it becomes `abandoned_by`
        fit &= self._owner.does_not_exist() | Path(self._owner).is_type("S")
        return fit

    @property
    def has_claim(self) -> Condition:
        """Whether a row carries a claim, dead or alive."""
        return self.expires_at.exists()

    def ending(self, value: Given = slot) -> list[Action]:
        """End a claim and keep the tombstone."""
        removed = [self.expires_at.remove(), self._owner.remove(), self._lease.remove()]
        return [*removed, *self._dated(value)]

    def _dated(self, value: Given = slot) -> list[Action]:
        return [] if self._ttl is None else [self._ttl.set(value("N", "ttl"))]

    def _claiming(self, *, data: bool) -> list[Action]:
        actions: list[Action] = [
            self._token.set(slot("S", "token")),
            self._owner.set(slot("S", "owner")),
            self._lease.set(slot("N", "lease")),
            self.expires_at.set(slot("N", "end")),
            *self._dated(),
            self._writes.set(Value({"N": "0"})),
        ]
        if data and self._data is not None:
            actions.append(self._data.set(slot(self._data.attr_type, "data")))
        return actions

    def _template(self, actions: Sequence[Action], condition: Condition, **parts: Any) -> Template:
        return Template(self._connection, actions=actions, condition=condition, **parts)

    # -- whole rows -----------------------------------------------------------------------------

    def tombstone(self, version: int) -> RawItem:
        """Return what a row that nobody ever claimed carries: a fencing token to count from."""
        return {self._version.attr_name: {"N": str(version)}}

    def carried(self, values: Mapping[str, Any], *, ended: bool) -> RawItem:
        """Return the claim, or the tombstone it leaves, as a whole row carries it."""
        raw: RawItem = {
            self._token.attr_name: {"S": values["mine"]},
            self._version.attr_name: {"N": values["version"]},
            self._writes.attr_name: {"N": values["next"]},
        }
        if not ended:
            raw |= {
                self._owner.attr_name: {"S": values["owner"]},
                self._lease.attr_name: {"N": values["lease"]},
                self.expires_at.attr_name: {"N": values["end"]},
                self._abandoned_by.attr_name: {"S": values["abandoned_by"]},
            }
        return raw

    # -- requests -------------------------------------------------------------------------------

    def acquire(self, *, watched: bool, data: bool) -> Template:
        """Take a row that is free, whose claim ended, or whose watched claim is dead."""
        return self._acquires[watched, data]

    @Once
    def _acquires(self) -> dict[tuple[bool, bool], Template]:
        return {
            (watched, data): self._acquire(watched=watched, data=data)
            for watched in (False, True)
            for data in (False, True)
        }

    def _acquire(self, *, watched: bool, data: bool, exactly: bool = False) -> Template:
        takeable = self.not_held()
        if watched:
            takeable |= (self._token == slot("S", "seen")) & (
                self.expires_at == slot("N", "seen_until")
            )
        fresh = self._token.does_not_exist() | (self._token != slot("S", "token"))
        condition = takeable & fresh & self.is_a_locks()
        if exactly:
            condition &= self.version_below()
            version: Any = slot("N", "new_version")
        else:
            version = (Path(self._version) | slot("N", "seed")) + Value({"N": "1"})
        actions: list[Action] = [
            # before the owner is set: an engine may evaluate in order
            self._abandoned_by.set(Path(self._owner) | Value({"S": ""})),
            *self._claiming(data=data),
            SetAction(Path(self._version), version),
            *(
                attribute.set(Path(attribute) | slot(attribute.attr_type, _OWN + name))
                for name, attribute in self.initial
            ),
        ]
        return self._template(actions, condition, return_values="ALL_NEW")

    @Once
    def _exact_acquires(self) -> dict[tuple[bool, bool], Template]:
        return {
            (watched, data): self._acquire(watched=watched, data=data, exactly=True)
            for watched in (False, True)
            for data in (False, True)
        }

    def acquire_exactly(self, *, watched: bool, data: bool) -> Template:
        """Take a row under a fencing token that is chosen beforehand.

        For transactions, whose answer does not tell which one it became.
        """
        return self._exact_acquires[watched, data]

    def hand_over(self, *, data: bool) -> Template:
        """Give our claim to another acquisition, in place of release, poll and acquire."""
        return self._hand_overs[data]

    @Once
    def _hand_overs(self) -> dict[bool, Template]:
        # without "exists" a late one would revive what was released
        return self._passed_on(self.mine() & self.has_claim)

    def attach(self, *, data: bool) -> Template:
        """Take over the claim that a ticket names, unless its end has surely passed."""
        return self._attaches[data]

    @Once
    def _attaches(self) -> dict[bool, Template]:
        # nor does it exist where it has no end
        return self._passed_on(self.mine() & (self.expires_at >= slot("N", "now_low")))

    def _passed_on(self, condition: Condition) -> dict[bool, Template]:
        one_more = Path(self._version) + Value({"N": "1"})
        return {
            data: self._template(
                [
                    *self._claiming(data=data),
                    self._abandoned_by.set(Value({"S": ""})),
                    SetAction(Path(self._version), one_more),
                ],
                condition,
                return_values="ALL_NEW",
            )
            for data in (False, True)
        }

    @Once
    def renew(self) -> Template:
        """Move the end of our claim, only ever later."""
        actions = [
            self.expires_at.set(slot("N", "end")),
            self._lease.set(slot("N", "lease")),
            *self._dated(),
        ]
        return self._template(actions, self.mine() & self.ends_before())

    @Once
    def renew_in_batch(self) -> Statement:
        """The same, as one of several in a request."""
        key = (self._model._hash_keyname, self._model._range_keyname)
        attributes = self._model.get_attributes()
        return Statement(self.renew, [attributes[name].attr_name for name in key if name])

    @Once
    def release(self) -> Template:
        """End our claim, and keep the tombstone. Refused if it has ended: nothing need be returned."""
        return self._template(self.ending(), self.mine() & self.has_claim)

    @Once
    def delete(self) -> Template:
        """End our claim and the row with it. Refused if it has ended."""
        return Template(self._connection, condition=self.mine() & self.has_claim)

    @Once
    def disown(self) -> Template:
        """End the claim of an acquisition whose outcome, and so its version, is unknown."""
        return self._template(self.ending(), self._token == slot("S", "mine"))

    @Once
    def force(self) -> Template:
        """Break the claim that was seen, and no later one."""
        condition = (self._token == slot("S", "seen")) & self.has_claim
        actions = [
            self._token.set(slot("S", "token")),
            SetAction(Path(self._version), Path(self._version) + Value({"N": "1"})),
            *self.ending(),
        ]
        return self._template(actions, condition)

    def put_right(self, seen: RawItem) -> tuple[Template, dict[str, Any]]:
        """Make a tombstone of a row whose attributes cannot be right, if they still are as they were seen.

        Returns:
            The request, and the values in it that were seen.
        """
        attributes = self._model.get_attributes()
        prefix: str = getattr(self._model, "_claim_prefix", "")
        condition: Any = None
        values: dict[str, Any] = {}
        for name in CLAIM:
            attribute = attributes[prefix + name]
            path = Path(attribute)
            same: Condition = path.does_not_exist()
            for kind, value in seen.get(attribute.attr_name, {}).items():
                # slots, for what is seen is not ours to read
                values[f"seen {name}"] = value
                same = path == slot(kind, f"seen {name}")
            condition = same if condition is None else condition & same
        actions = [
            self._token.set(slot("S", "token")),
            self._version.set(slot("N", "new_version")),
            *self.ending(),
            self._writes.remove(),
            self._abandoned_by.remove(),
        ]
        return self._template(actions, condition), values

    @Once
    def guard(self) -> Template:
        """Count a guarded write: only under our claim, and only after the one before it."""
        return self._template([self.counted()], self.guarding())

    @Once
    def guard_and_end(self) -> Template:
        """Count a guarded write that is the last one under our claim."""
        return self._template([self.counted(), *self.ending()], self.guarding())

    @Once
    def free(self) -> Template:
        """Check that there is no claim, dead or alive."""
        return Template(self._connection, condition=self.expires_at.does_not_exist())

    @Once
    def end_dead(self) -> Template:
        """End a claim that was seen, and whose end has passed."""
        seen = self._token == slot("S", "mine")
        return self._template(self.ending(), seen & (self.expires_at < slot("N", "now_low")))

    @Once
    def save_data(self) -> Template:
        """Write the caller's payload, guarded."""
        return self._template(
            [self.counted(), self._data.set(slot(self._data.attr_type, "data"))], self.guarding()
        )

    @Once
    def clear_data(self) -> Template:
        """Take the caller's payload out, guarded."""
        return self._template([self.counted(), self._data.remove()], self.guarding())
