"""Typed values as DynamoDB stores, compares and measures them, and its refusals.

Each value of a request is brought into a canonical form at once: numbers without superfluous zeros, sets in order. In
this form two values are equal for DynamoDB if and only if they are equal in Python. Documents and paths are in
`documents`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow, Subnormal
from typing import Any

Value = dict[str, Any]
"""A typed value, such as ``{"S": "x"}``."""
Item = dict[str, Value]

SETS = frozenset({"SS", "NS", "BS"})
_FLAT = frozenset({"S", "N", "B", "BOOL", "NULL"})
"""Kinds whose content is immutable, so that a shallow copy of the value is enough."""

LARGEST_ITEM = 400 * 1024


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """DynamoDB's refusal of a request.

    Attributes:
        code: DynamoDB's name of the error.
        message: Its message.
        item: The row whose condition did not hold, if the request asked for it; else None.
        reasons: The reasons for which a transaction was cancelled, one for each of its parts; else None.
    """

    def __init__(
        self,
        code: str,
        message: str,
        item: Item | None = None,
        reasons: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.item = item
        self.reasons = reasons


class UnfitError(Refusal):
    """Refusal of a write that is well formed, but does not fit its table or the present row."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationException", message)


def invalid(message: str) -> Refusal:
    return Refusal("ValidationException", message)


def check_known(operation: str, request: Mapping[str, Any], known: set[str]) -> None:
    """Raise NotImplementedError for parameters that are not supported here; to ignore them would be a guess."""
    if not request.keys() <= known:
        strange = sorted(request.keys() - known)
        raise NotImplementedError(f"{operation} is not known with {', '.join(strange)}")


# -- numbers ------------------------------------------------------------------------------------

_PRECISE = Context(
    prec=38, Emax=125, Emin=-130, traps=[InvalidOperation, Inexact, Overflow, Subnormal]
)
_ROUNDING = Context(prec=38, traps=[InvalidOperation, Overflow])


@functools.lru_cache(maxsize=1 << 14)
def decimal_of(text: str) -> Decimal:
    return Decimal(text)


def _written(number: Decimal) -> str:
    """Return a number as DynamoDB writes it: 1.50 as 1.5, 1E+2 as 100, and -0 as 0."""
    return format(number.normalize(_ROUNDING), "f") if number else "0"


@functools.lru_cache(maxsize=1 << 14)
def canonical_number(text: str) -> str:
    try:
        number = _PRECISE.create_decimal(text)
    except Inexact:
        raise invalid("Attempting to store more than 38 significant digits in a Number") from None
    except Overflow:
        raise invalid("Number overflow. Attempting to store a number that is too large") from None
    except Subnormal:
        raise invalid("Number underflow. Attempting to store a number that is too small") from None
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise invalid(f"The parameter cannot be converted to a numeric value: {text}")
    return _written(number)


def added(one: str, other: str) -> Value:
    return {"N": _written(_ROUNDING.add(decimal_of(one), decimal_of(other)))}


def subtracted(one: str, other: str) -> Value:
    return {"N": _written(_ROUNDING.subtract(decimal_of(one), decimal_of(other)))}


# -- values -------------------------------------------------------------------------------------


def canonical(value: Value) -> Value:
    """Return a copy of a value in canonical form, in which equal values are equal dicts."""
    if len(value) != 1:
        raise invalid("Supplied AttributeValue must contain exactly one of the supported datatypes")
    [(kind, content)] = value.items()
    # the most frequent kinds first
    if kind == "S":
        return {"S": content}
    if kind == "N":
        return {"N": canonical_number(content)}
    if kind in {"B", "BOOL", "NULL"}:
        return {kind: bytes(content) if kind == "B" else content}
    if kind == "L":
        return {"L": [canonical(each) for each in content]}
    if kind == "M":
        return {"M": canonical_item(content)}
    return _canonical_set(kind, content)


def _canonical_set(kind: str, content: Any) -> Value:
    if kind not in SETS:
        raise invalid(f"Supplied AttributeValue has an unknown datatype {kind}")
    if not content:
        raise invalid("One or more parameter values were invalid: a set may not be empty")
    made = set_of(kind, map(canonical_number, content) if kind == "NS" else content)
    if len(made[kind]) < len(content):
        raise invalid("One or more parameter values were invalid: Input collection has duplicates")
    return made


def canonical_item(item: Mapping[str, Value]) -> Item:
    return {name: canonical(value) for name, value in item.items()}


def set_of(kind: str, members: Iterable[Any]) -> Value:
    return {kind: sorted(set(members), key=decimal_of if kind == "NS" else None)}


def copy_value(value: Value) -> Value:
    """Return a copy of a value in canonical form, so that a caller cannot change a stored row."""
    ((kind, content),) = value.items()
    if kind == "L":
        return {"L": [copy_value(each) for each in content]}
    if kind == "M":
        return {"M": copy_item(content)}
    return {kind: [*content] if kind in SETS else content}


def copy_item(item: Mapping[str, Value]) -> Item:
    # most values are flat, and a call of `copy_value` for each of them would cost more than the copy
    return {
        name: value.copy() if _FLAT.issuperset(value) else copy_value(value)
        for name, value in item.items()
    }


# -- comparisons --------------------------------------------------------------------------------


def _ordering(compare: Callable[[Any, Any], bool]) -> Callable[[Value | None, Value | None], bool]:
    """Return an ordering of values; a value that is absent, or of another type, is neither smaller nor greater."""

    def ordered(one: Value | None, other: Value | None) -> bool:
        if one is None or other is None:
            return False
        if "N" in one:
            return "N" in other and compare(decimal_of(one["N"]), decimal_of(other["N"]))
        # DynamoDB orders strings by their bytes in UTF-8, which is the order of their code points
        return any(
            kind in one and kind in other and compare(one[kind], other[kind]) for kind in "SB"
        )

    return ordered


COMPARISONS: dict[str, Callable[[Value | None, Value | None], bool]] = {
    "=": lambda one, other: one is not None and one == other,
    # unlike the others this holds for an attribute that is absent
    "<>": lambda one, other: one is None or one != other,
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
}


# -- sizes --------------------------------------------------------------------------------------


def size_of(value: Value) -> int:
    """Return the size of a value in canonical form as DynamoDB counts it, in bytes."""
    ((kind, content),) = value.items()
    if kind == "S":
        return len(content) if content.isascii() else len(content.encode())
    if kind == "N":
        return _size_of_number(content)
    if kind == "L":
        return 3 + sum(1 + size_of(each) for each in content)
    if kind == "M":
        return 3 + size_of_item(content) + len(content)
    if kind in SETS:
        return sum(size_of({kind[0]: each}) for each in content)
    return len(content) if kind == "B" else 1


def size_of_item(item: Mapping[str, Value]) -> int:
    size = 0
    for name, value in item.items():
        size += (len(name) if name.isascii() else len(name.encode())) + size_of(value)
    return size


@functools.lru_cache(maxsize=1 << 14)
def _size_of_number(text: str) -> int:
    """Return the size of a number in bytes: one for each pair of significant digits, one more, and one for a minus.

    Pairs are counted from the decimal point in both directions.
    """
    whole, _, fraction = text.removeprefix("-").partition(".")
    digits = "0" * (len(whole) % 2) + whole + fraction + "0" * (len(fraction) % 2)
    pairs = [digits[at : at + 2] for at in range(0, len(digits), 2)]
    significant = [at for at, pair in enumerate(pairs) if pair != "00"]
    if not significant:
        return 1
    return significant[-1] - significant[0] + 2 + text.startswith("-")
