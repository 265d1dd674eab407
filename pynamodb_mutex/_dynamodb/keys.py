"""Keys: checks what a caller names a lock, and returns the primary key of the lock's row.

Rows of users' tables can be locked, too: `row_key` serialises their keys, and `row_name` gives each such row a name.
Attributes other than keys are the concern of `layout`.
"""

from __future__ import annotations

import base64
import hashlib
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pynamodb_mutex._dynamodb.pynamodb_private import hash_key_name, range_key_name
from pynamodb_mutex._protocol.messages import one_line, shown
from pynamodb_mutex.exceptions import InvalidKeyError

if TYPE_CHECKING:
    from pynamodb.models import Model

LONGEST_KEY = 2048
"""Bytes that DynamoDB accepts in a hash key, at most; of a string in UTF-8."""

LONGEST_RANGE_KEY = 1024
"""Bytes that DynamoDB accepts in a range key, at most."""

RawItem = dict[str, dict[str, Any]]
"""Attribute values by stored name, as botocore sends and returns them: ``{"key": {"S": "invoice-42"}}``."""


def check_key(key: object) -> str:
    """Return the key if a lock can have it.

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
    if not 1 <= size <= LONGEST_KEY:
        msg = f"a key takes 1 to {LONGEST_KEY} bytes of UTF-8, this one {size}"
        raise InvalidKeyError(msg, key=key)
    return key


def key_of(model: type[Model], key: str) -> RawItem:
    """Return the primary key of a lock's row.

    Raises:
        InvalidKeyError: If the model has a range key without a default.
    """
    attribute = model.get_attributes()[hash_key_name(model)]
    return {attribute.attr_name: {attribute.attr_type: attribute.serialize(key)}} | range_of(
        model, key
    )


def range_of(model: type[Model], key: str) -> RawItem:
    """Return the range key of a lock's row, which is its attribute's default; empty if the model has none.

    Raises:
        InvalidKeyError: If it has no default.
    """
    name = range_key_name(model)
    if name is None:
        return {}
    attribute = model.get_attributes()[name]
    value = model(key).attribute_values.get(name)
    if value is None:
        msg = f"{model.__name__}.{name} is a range key: give it a default"
        raise InvalidKeyError(msg, key=key)
    return {attribute.attr_name: {attribute.attr_type: attribute.serialize(value)}}


def row_key(model: type[Model], hash_key: object, range_key: object = None) -> RawItem:
    """Return the primary key of a row in a user's table.

    Raises:
        InvalidKeyError: If rows of the model cannot have such a key.
    """
    raw: RawItem = {}
    range_name = range_key_name(model)
    parts: list[tuple[str | None, object, int]] = [(hash_key_name(model), hash_key, LONGEST_KEY)]
    if range_name is not None or range_key is not None:
        parts.append((range_name, range_key, LONGEST_RANGE_KEY))
    for name, value, longest in parts:
        if name is None:
            msg = f"{model.__name__} has no range key, but one was given: {shown(value)}"
            raise InvalidKeyError(msg)
        attribute = model.get_attributes()[name]
        if value is None:
            msg = f"{model.__name__}.{name} is None, but it is part of a row's key: give its value"
            raise InvalidKeyError(msg)
        try:
            serialized = attribute.serialize(value)
            size = _size(attribute.attr_type, serialized)
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            msg = f"{model.__name__}.{name} cannot be {shown(value)}: {one_line(error)}"
            raise InvalidKeyError(msg) from error
        if not 1 <= size <= longest:
            msg = f"{model.__name__}.{name} takes 1 to {longest} bytes, not the {size} of {shown(value)}"
            raise InvalidKeyError(msg)
        raw[attribute.attr_name] = {attribute.attr_type: serialized}
    return raw


def _size(kind: str, serialized: object) -> int:
    """Return the bytes of a serialised key; raise TypeError for a value that no key can have."""
    if kind == "S" and isinstance(serialized, str):
        return len(serialized.encode())
    if kind == "N" and isinstance(serialized, str) and Decimal(serialized).is_finite():
        return len(serialized)
    if kind == "B" and isinstance(serialized, bytes):
        return len(serialized)
    raise TypeError(f"not a key of type {kind}")


def row_name(model: type[Model], raw_key: RawItem) -> str:
    """Return the name of a user's row: the key of its lock in a lock table, and its name in messages.

    Different rows have different names, and a row has the same name however a number in its key is written.
    """
    values = [pair for typed in raw_key.values() for pair in typed.items()]
    parts = [model.Meta.table_name, *(_text(kind, value) for kind, value in values)]
    name = "/".join(quote(part, safe=" :@+=,;!*'()[]") for part in parts)
    if len(name.encode()) > LONGEST_KEY:
        # Two adjacent slashes, which no shorter name has: slashes within its parts are quoted.
        return f"{parts[0]}//sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    return name


def lock_name(model: type[Model], key: str, row: RawItem) -> str:
    """Return the name of a lock's row among those of its model: the lock's key, or with a range key the row's name.

    The range key's default may be the user's function, which returns the tenant that is served. By the key alone, a lock of
    one tenant would be handed over to a waiter of another, who would believe in a row that a third one holds.
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
