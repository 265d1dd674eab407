"""Keys: checks the name that a caller gives a lock, and returns the primary key of the lock's row.

Users can lock rows of their own tables, too: `row_key` serialises their keys, and `row_name` gives each such row a name.
`layout` has the other attributes.
"""

from __future__ import annotations

import base64
import hashlib
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.dynamodb.pynamodb_private import hash_key_name, range_key_name
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex.exceptions import InvalidKeyError

if TYPE_CHECKING:
    from pynamodb.models import Model

LONGEST_KEY = 2048
"""Most bytes that DynamoDB accepts in a hash key; for a string, in UTF-8."""

LONGEST_RANGE_KEY = 1024
"""Most bytes that DynamoDB accepts in a range key."""

RawItem = dict[str, dict[str, Any]]
"""Attribute values by stored name, as botocore sends and returns them: ``{"key": {"S": "invoice-42"}}``."""


def check_key(key: object, longest: int = LONGEST_KEY) -> str:
    """Return the key if a lock can have it; ``longest`` is in bytes.

    Raises:
        InvalidKeyError: If it is not a string, is empty, has lone surrogates, or is too long.
    """
    if not isinstance(key, str):
        msg = f"a key must be a str, not {type(key).__name__}"
        raise InvalidKeyError(msg)
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        msg = f"the key {shown(key)} cannot be written in UTF-8: {error.reason}"
        raise InvalidKeyError(msg, error, key=key) from error
    if not 1 <= size <= longest:
        msg = f"a key takes 1 to {longest} bytes of UTF-8, this one {size}"
        raise InvalidKeyError(msg, key=key)
    return key


def key_of(model: type[Model], key: str, range_key: object = None) -> RawItem:
    """Return the primary key of a lock's row; raise as `hash_key_of` and `range_of`."""
    return hash_key_of(model, key) | range_of(model, key, range_key)


def hash_key_of(model: type[Model], key: str) -> RawItem:
    """Return the hash key of a lock's row.

    Raises:
        InvalidKeyError: If the model's attribute serialises it as something that is no key.
    """
    return _part(model, hash_key_name(model), key, LONGEST_KEY)


def range_of(model: type[Model], key: str, range_key: object = None) -> RawItem:
    """Return the range key of a lock's row, or the attribute's default if None is given; empty if the model has no range key.

    Raises:
        InvalidKeyError: If rows of the model cannot have it, or None is given and there is no default.
    """
    name = range_key_name(model)
    if range_key is None:
        if name is None:
            return {}
        range_key = model(key).attribute_values.get(name)
        if range_key is None:
            msg = f"{model.__name__}.{name} is a range key: give range_key (of several keys, to a Mutex for each), or the attribute a default"
            raise InvalidKeyError(msg, key=key)
    return _part(model, name, range_key, LONGEST_RANGE_KEY)


def row_key(model: type[Model], hash_key: object, range_key: object = None) -> RawItem:
    """Return the primary key of a row in a user's table.

    Raises:
        InvalidKeyError: If rows of the model cannot have such a key.
    """
    raw, name = _part(model, hash_key_name(model), hash_key, LONGEST_KEY), range_key_name(model)
    if name is not None or range_key is not None:
        raw |= _part(model, name, range_key, LONGEST_RANGE_KEY)
    return raw


def _part(model: type[Model], name: str | None, value: object, longest: int) -> RawItem:
    """Return one attribute of a primary key; ``longest`` is in bytes.

    Raises:
        InvalidKeyError: If no row of the model can have this value.
    """
    if name is None:
        msg = f"{model.__name__} has no range key, but one was given: {shown(value)}"
        raise InvalidKeyError(msg)
    attribute, called = model.get_attributes()[name], f"{model.__name__}.{name}"
    if value is None:
        msg = f"{called} is None, but it is part of a row's key: give its value"
        raise InvalidKeyError(msg)
    try:
        serialized = serialize(model, name, value)
        size = len(serialized.encode() if isinstance(serialized, str) else serialized)
    except (TypeError, ValueError) as error:
        raise InvalidKeyError(str(error)) from error
    if not 1 <= size <= longest:
        msg = f"{called} takes 1 to {longest} bytes, not the {size} of {shown(value)}"
        raise InvalidKeyError(msg)
    return {attribute.attr_name: {attribute.attr_type: serialized}}


def serialize(model: type[Model], name: str, value: Any) -> Any:
    """Return the value of an attribute as DynamoDB stores it.

    Raises:
        TypeError: If the attribute takes no value of this type.
        ValueError: If the attribute cannot have this value.
    """
    attribute = model.get_attributes()[name]
    kind = attribute.attr_type
    try:
        serialized = attribute.serialize(value)
        fits = isinstance(value if kind == "BOOL" else serialized, _PYTHON_TYPES.get(kind, list))
        if value is None or not fits or (kind == "N" and not Decimal(serialized).is_finite()):
            # PynamoDB would send a number, unchanged, in place of a string
            raise TypeError(f"it is stored as {kind}")  # noqa: TRY301 - said as PynamoDB's own are
        if kind == "S":
            serialized.encode()
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        wrong = TypeError if isinstance(error, (TypeError, AttributeError)) else ValueError
        # decimal's message for a text that is no number is no sentence
        why = f"it is stored as {kind}" if isinstance(error, ArithmeticError) else one_line(error)
        msg = f"{model.__name__}.{name} cannot be {shown(value)}: {why}"
        raise wrong(msg) from error
    return serialized


_PYTHON_TYPES: dict[str, type] = {"S": str, "N": str, "B": bytes, "BOOL": bool, "M": dict}
"""Python types of serialised values, by DynamoDB's types; lists and sets, which are missing here, have list."""


def row_name(model: type[Model], raw_key: RawItem) -> str:
    """Return the name of a user's row: the key of its lock in a lock table, and its name in messages.

    Different rows have different names. A row has one name, however a caller writes a number in its key.
    """
    values = [pair for typed in raw_key.values() for pair in typed.items()]
    *first, last = model.Meta.table_name, *(_text(kind, value) for kind, value in values)
    # People read and type the name: so only the characters are replaced that could join two parts before the last.
    first = [part.replace("%", "%25").replace("/", "%2F") for part in first]
    name = "/".join([*first, last])
    if len(name.encode()) > LONGEST_KEY:
        # a shorter name has a slash in place of this colon
        return f"{first[0]}:sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def lock_name(model: type[Model], key: str, row: RawItem) -> str:
    """Return the name of a lock's row among those of its model: the lock's key, or with a range key the row's name.

    Suppose the range key's default is a function of the user's, which returns the tenant of the present request. If the name were
    the key alone, a holder of one tenant would hand its lock over to a waiter of another, which would believe in a row that
    somebody else holds.
    """
    return key if len(row) == 1 else row_name(model, row)


def _text(kind: str, value: Any) -> str:
    if kind == "N":
        number = Decimal(value)
        # Zero has one name, because a negative zero is the same row. The default context would round to 28 digits,
        # fewer than a key may have, and give two rows one name.
        return str(Context(prec=LONGEST_KEY).normalize(number)) if number else "0"
    if kind == "B":
        return base64.urlsafe_b64encode(value).decode()
    return str(value)
