"""Keys: what a caller may name a lock, and how the row of that lock is addressed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex.exceptions import InvalidKeyError

if TYPE_CHECKING:
    from pynamodb.models import Model

LONGEST_KEY = 2048
"""Bytes of UTF-8 that DynamoDB takes in a hash key."""

RawItem = dict[str, dict[str, Any]]
"""Attribute values by stored name, as botocore has them."""


def check_key(key: object) -> str:
    """Return the key, if a lock can have it.

    Raises:
        InvalidKeyError: If it is not a string, is empty, has lone surrogates, or is too long.
    """
    if not isinstance(key, str):
        msg = f"a key must be a str, not {type(key).__name__}"
        raise InvalidKeyError(msg)
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        msg = f"the key {key!r} cannot be written in UTF-8: {error.reason}"
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
    attributes = model.get_attributes()
    hash_attribute = attributes[model._hash_keyname or ""]
    raw: RawItem = {
        hash_attribute.attr_name: {hash_attribute.attr_type: hash_attribute.serialize(key)}
    }
    if model._range_keyname is not None:
        range_attribute = attributes[model._range_keyname]
        value = model(key).attribute_values.get(model._range_keyname)
        if value is None:
            msg = f"{model.__name__}.{model._range_keyname} is a range key: give it a default"
            raise InvalidKeyError(msg, key=key)
        raw[range_attribute.attr_name] = {
            range_attribute.attr_type: range_attribute.serialize(value)
        }
    return raw
