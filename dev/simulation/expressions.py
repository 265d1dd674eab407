"""Values, conditions and updates, as DynamoDB evaluates them against one row.

Of what DynamoDB refuses, only that is refused which a correct caller can run into. Unchecked are reserved
words, placeholders that no expression uses, redundant parentheses, and types of literal operands that can
match nothing.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from itertools import combinations
from typing import Any, NamedTuple

Value = dict[str, Any]
"""A typed value, such as ``{"S": "x"}``."""
Item = dict[str, Value]
Path = tuple[str | int, ...]
"""An attribute's name, followed by names in maps and indexes of lists."""
Condition = Callable[[Mapping[str, Value], Mapping[str, Value]], bool]
"""Whether a row satisfies it, given the values of its placeholders."""
Operand = Callable[[Mapping[str, Value], Mapping[str, Value]], Value | None]
"""Gives its value in a row; None where there is none."""

_SETS = frozenset({"SS", "NS", "BS"})


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """DynamoDB's refusal of a request.

    Attributes:
        code: DynamoDB's name for the error.
        message: What it says.
        item: The row that refused, if the request asked for it.
        reasons: Why a transaction was cancelled, for each of its parts in order.
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
    """An update that is well formed, but not for the row that it met."""

    def __init__(self, message: str) -> None:
        super().__init__("ValidationException", message)


def invalid(message: str) -> Refusal:
    return Refusal("ValidationException", message)


# -- values -------------------------------------------------------------------------------------
#
# Whatever comes in is brought into one form at once: numbers without superfluous zeros, sets in order. In
# that form two values are equal for DynamoDB if they are equal for Python.

_PRECISE = Context(prec=38, Emax=125, Emin=-130, traps=[InvalidOperation, Inexact, Overflow])
_ROUNDING = Context(prec=38, traps=[InvalidOperation, Overflow])


@functools.lru_cache(maxsize=1 << 14)
def decimal_of(text: str) -> Decimal:
    return Decimal(text)


def _written(number: Decimal) -> str:
    """Write a number as DynamoDB does: 1.50 is 1.5, 1E+2 is 100, and -0 is 0."""
    return format(number.normalize(_ROUNDING), "f") if number else "0"


@functools.lru_cache(maxsize=1 << 14)
def canonical_number(text: str) -> str:
    try:
        number = _PRECISE.create_decimal(text)
    except Inexact:
        raise invalid("Attempting to store more than 38 significant digits in a Number") from None
    except Overflow:
        raise invalid("Number overflow. Attempting to store a number that is too large") from None
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        raise invalid(f"The parameter cannot be converted to a numeric value: {text}")
    return _written(number)


def canonical(value: Value) -> Value:
    """Return a copy of a value in the form in which equal values are equal dicts."""
    if len(value) != 1:
        raise invalid("Supplied AttributeValue must contain exactly one of the supported datatypes")
    ((kind, content),) = value.items()
    if kind == "N":
        return {"N": canonical_number(content)}
    if kind in {"S", "BOOL", "NULL"}:
        return {kind: content}
    if kind == "B":
        return {"B": bytes(content)}
    if kind == "L":
        return {"L": [canonical(each) for each in content]}
    if kind == "M":
        return {"M": canonical_item(content)}
    if kind not in _SETS:
        raise invalid(f"Supplied AttributeValue has an unknown datatype {kind}")
    if not content:
        raise invalid("One or more parameter values were invalid: a set may not be empty")
    members = map(canonical_number, content) if kind == "NS" else content
    made = _set(kind, members)
    if len(made[kind]) < len(content):
        raise invalid("One or more parameter values were invalid: Input collection has duplicates")
    return made


def canonical_item(item: Mapping[str, Value]) -> Item:
    return {name: canonical(value) for name, value in item.items()}


def _set(kind: str, members: Iterable[Any]) -> Value:
    return {kind: sorted(set(members), key=decimal_of if kind == "NS" else None)}


def _copy(value: Value) -> Value:
    """Copy a value in canonical form, so that nobody writes into a row from outside."""
    ((kind, content),) = value.items()
    if kind == "L":
        return {"L": [_copy(each) for each in content]}
    if kind == "M":
        return {"M": copy_item(content)}
    return {kind: [*content] if kind in _SETS else content}


def copy_item(item: Mapping[str, Value]) -> Item:
    return {name: _copy(value) for name, value in item.items()}


class _Values(dict[str, Value]):
    """The values of a request's placeholders."""

    def __missing__(self, placeholder: str) -> Value:
        raise invalid(
            "An expression attribute value used in expression is not defined; "
            f"attribute value: {placeholder}"
        )


def values_of(request: Mapping[str, Any]) -> _Values:
    given = request.get("ExpressionAttributeValues")
    return _Values(canonical_item(given)) if given else _Values()


# -- expressions --------------------------------------------------------------------------------
#
# An expression becomes a closure, once for each text and its names: what is sent again and again is
# parsed once.

_TOKEN = re.compile(r"\s*(?:([#:]?\w+)|(<>|<=|>=|[-=<>+(),.\[\]]))\s*")


class Update(NamedTuple):
    """What an update does, in the order in which it is done.

    Attributes:
        changes: What to set where. ADD and DELETE set, too, or remove where nothing is left.
        removed: What to remove.
        paths: All paths of both.
        nested: Names of the attributes of which it changes but a part.
    """

    changes: list[tuple[Path, Operand]]
    removed: list[Path]
    paths: list[Path]
    nested: set[Any]


NO_UPDATE = Update([], [], [], set())


def value_at(path: Path, item: Mapping[str, Value]) -> Value | None:
    """Return what stands at a path; None if nothing does."""
    value = item.get(path[0])  # type: ignore[arg-type]  # a path begins with a name
    for step in path[1:]:
        if value is None:
            return None
        if isinstance(step, int):
            members = value.get("L", ())
            value = members[step] if step < len(members) else None
        else:
            value = value.get("M", {}).get(step)
    return value


def _ordering(test: Callable[[Any, Any], bool]) -> Callable[[Value | None, Value | None], bool]:
    """Compare by size. What is absent, or of another type, is neither smaller nor greater."""

    def compare(one: Value | None, other: Value | None) -> bool:
        if one is None or other is None:
            return False
        if "N" in one:
            return "N" in other and test(decimal_of(one["N"]), decimal_of(other["N"]))
        # DynamoDB orders strings by their bytes in UTF-8, which is the order of their code points
        return any(kind in one and kind in other and test(one[kind], other[kind]) for kind in "SB")

    return compare


COMPARISONS: dict[str, Callable[[Value | None, Value | None], bool]] = {
    "=": lambda one, other: one is not None and one == other,
    # also true of an attribute that is absent
    "<>": lambda one, other: one is None or one != other,
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
}


def _size(value: Value | None) -> Value | None:
    if value is None:
        return None
    ((kind, content),) = value.items()
    if kind == "S":
        return {"N": str(len(content.encode()))}
    # a number, a boolean and null have no size, as if they were absent
    return None if kind in {"N", "BOOL", "NULL"} else {"N": str(len(content))}


def _begins_with(value: Value | None, start: Value | None) -> bool:
    if value is None or start is None:
        return False
    return any(
        kind in value and kind in start and value[kind].startswith(start[kind]) for kind in "SB"
    )


def _contains(value: Value | None, part: Value | None) -> bool:
    if value is None or part is None:
        return False
    ((kind, content),) = value.items()
    ((part_kind, part_content),) = part.items()
    if kind == "L":
        return part in content
    # a set of strings contains a string, a string a part of it
    return (
        part_kind == kind.removesuffix("S" if kind in _SETS else "")
        and (kind in _SETS or kind in {"S", "B"})
        and part_content in content
    )


class _Parser:
    """Reads one expression, from left to right."""

    def __init__(self, text: str, names: Mapping[str, str]) -> None:
        self._text = text
        self._names = names
        self._tokens: list[str] = []
        end = 0
        while end < len(text):
            found = _TOKEN.match(text, end)
            if found is None:
                raise invalid(f"Invalid expression: Syntax error; near: {text[end:]!r}")
            self._tokens.append(found[1] or found[2])
            end = found.end()
        self._tokens.append("")
        self._next = 0

    def _peek(self, ahead: int = 0) -> str:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _takes(self, *tokens: str) -> str:
        """Take the next token if it is one of these, keywords in any case; return which one."""
        token = self._peek().upper()
        if token not in tokens:
            return ""
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if not self._takes(token):
            raise self._error()

    def _error(self) -> Refusal:
        token = self._peek() or "<EOF>"
        return invalid(f"Invalid expression: Syntax error; token: {token!r}, in: {self._text!r}")

    def _is_function(self, *names: str) -> bool:
        return self._peek() in names and self._peek(1) == "("

    # -- operands -------------------------------------------------------------------------------

    def _path(self) -> Path:
        path: list[str | int] = [self._name()]
        while sign := self._takes(".", "["):
            if sign == ".":
                path.append(self._name())
                continue
            if not self._peek().isdecimal():
                raise self._error()
            path.append(int(self._take()))
            self._expect("]")
        return tuple(path)

    def _name(self) -> str:
        token = self._take()
        if token.startswith("#"):
            if token not in self._names:
                raise invalid(f"An expression attribute name used is not defined: {token}")
            return self._names[token]
        if not re.fullmatch(r"[A-Za-z]\w*", token):
            self._next -= 1
            raise self._error()
        return token

    def _operand(self) -> Operand:
        if self._peek().startswith(":"):
            placeholder = self._take()
            return lambda _, values: values[placeholder]
        path = self._path()
        if len(path) == 1:
            name: Any = path[0]
            return lambda item, _: item.get(name)
        return lambda item, _: value_at(path, item)

    # -- conditions -----------------------------------------------------------------------------

    def condition(self) -> Condition:
        whole = self._either()
        if self._peek():
            raise self._error()
        return whole

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._takes("OR"):
            parts.append(self._both())
        if len(parts) == 1:
            return parts[0]
        return lambda item, values: any([part(item, values) for part in parts])  # noqa: C419 - see _both

    def _both(self) -> Condition:
        parts = [self._negated()]
        while self._takes("AND"):
            parts.append(self._negated())
        if len(parts) == 1:
            return parts[0]
        # each part, whatever the first ones say: a placeholder without a value must not go unnoticed
        return lambda item, values: all([part(item, values) for part in parts])  # noqa: C419

    def _negated(self) -> Condition:
        if self._takes("NOT"):
            part = self._negated()
            return lambda item, values: not part(item, values)
        if self._takes("("):
            inner = self._either()
            self._expect(")")
            return inner
        if self._is_function("attribute_exists", "attribute_not_exists"):
            exists = self._take() == "attribute_exists"
            self._expect("(")
            path = self._path()
            self._expect(")")
            return lambda item, _: (value_at(path, item) is not None) is exists
        if self._is_function("attribute_type", "begins_with", "contains"):
            return self._function(self._take())
        return self._comparison()

    def _function(self, name: str) -> Condition:
        self._expect("(")
        one = self._sized()
        self._expect(",")
        other = self._sized()
        self._expect(")")
        if name == "attribute_type":
            return lambda item, values: _is_type(one(item, values), other(item, values))
        test = _begins_with if name == "begins_with" else _contains
        return lambda item, values: test(one(item, values), other(item, values))

    def _sized(self) -> Operand:
        """Read an operand that may be the size of something."""
        if not self._is_function("size"):
            return self._operand()
        self._take()
        self._expect("(")
        operand = self._operand()
        self._expect(")")
        return lambda item, values: _size(operand(item, values))

    def _comparison(self) -> Condition:
        one = self._sized()
        if sign := self._takes(*COMPARISONS):
            test, other = COMPARISONS[sign], self._sized()
            return lambda item, values: test(one(item, values), other(item, values))
        if self._takes("BETWEEN"):
            low = self._sized()
            self._expect("AND")
            high = self._sized()
            at_most = COMPARISONS["<="]

            def between(item: Mapping[str, Value], values: Mapping[str, Value]) -> bool:
                value = one(item, values)
                return at_most(low(item, values), value) and at_most(value, high(item, values))

            return between
        self._expect("IN")
        self._expect("(")
        options = [self._sized()]
        while self._takes(","):
            options.append(self._sized())
        self._expect(")")

        def among(item: Mapping[str, Value], values: Mapping[str, Value]) -> bool:
            value = one(item, values)
            return value is not None and value in [option(item, values) for option in options]

        return among

    # -- updates --------------------------------------------------------------------------------

    def update(self) -> Update:
        changes: list[tuple[Path, Operand]] = []
        removed: list[Path] = []
        seen: set[str] = set()
        while section := self._takes("SET", "REMOVE", "ADD", "DELETE"):
            if section in seen:
                raise invalid(f'Invalid UpdateExpression: "{section}" can only be used once')
            seen.add(section)
            while True:
                path = self._path()
                if section == "REMOVE":
                    removed.append(path)
                elif section == "SET":
                    self._expect("=")
                    changes.append((path, self._sum()))
                else:
                    combine = _added if section == "ADD" else _taken_out
                    changes.append((path, _combining(combine, path, self._operand())))
                if not self._takes(","):
                    break
        if self._peek() or not seen:
            raise self._error()
        paths = [*(path for path, _ in changes), *removed]
        _check_overlaps(paths)
        # Elements beyond a list's end are appended in the order of their indexes; removing begins at the
        # end, for indexes are those of the list as it was. Paths that do not overlap can be compared.
        changes.sort(key=lambda change: change[0])
        removed.sort(reverse=True)
        return Update(changes, removed, paths, {path[0] for path in paths if len(path) > 1})

    def _sum(self) -> Operand:
        one = self._term()
        sign = self._takes("+", "-")
        if not sign:
            return one
        other = self._term()
        calculate = _ROUNDING.add if sign == "+" else _ROUNDING.subtract
        return lambda item, values: _calculated(calculate, one(item, values), other(item, values))

    def _term(self) -> Operand:
        if self._takes("("):
            inner = self._sum()
            self._expect(")")
            return inner
        if self._is_function("if_not_exists"):
            self._take()
            self._expect("(")
            path = self._path()
            self._expect(",")
            default = self._sum()
            self._expect(")")

            def present(item: Mapping[str, Value], values: Mapping[str, Value]) -> Value | None:
                value = value_at(path, item)
                return default(item, values) if value is None else value

            return present
        if self._is_function("list_append"):
            self._take()
            self._expect("(")
            one = self._sum()
            self._expect(",")
            other = self._sum()
            self._expect(")")
            return lambda item, values: _appended(one(item, values), other(item, values))
        operand = self._operand()

        def required(item: Mapping[str, Value], values: Mapping[str, Value]) -> Value:
            value = operand(item, values)
            if value is None:
                raise UnfitError(
                    "The provided expression refers to an attribute that does not exist in the item"
                )
            return value

        return required


def _is_type(value: Value | None, kind: Value | None) -> bool:
    return value is not None and kind is not None and kind.get("S") in value


def _wrong_type() -> Refusal:
    return UnfitError("An operand in the update expression has an incorrect data type")


def _calculated(
    calculate: Callable[[Decimal, Decimal], Decimal], one: Value | None, other: Value | None
) -> Value:
    if one is None or other is None or "N" not in one or "N" not in other:
        raise _wrong_type()
    return {"N": _written(calculate(decimal_of(one["N"]), decimal_of(other["N"])))}


def _appended(one: Value | None, other: Value | None) -> Value:
    if one is None or other is None or "L" not in one or "L" not in other:
        raise _wrong_type()
    return {"L": [*one["L"], *other["L"]]}


def _combining(
    combine: Callable[[Value | None, Value], Value | None], path: Path, operand: Operand
) -> Operand:
    return lambda item, values: combine(value_at(path, item), operand(item, values) or {})


def _added(value: Value | None, more: Value) -> Value:
    ((kind, content),) = more.items()
    if kind != "N" and kind not in _SETS:
        raise invalid("Invalid UpdateExpression: Incorrect operand type for ADD")
    if value is None:
        return more
    if kind not in value:
        raise _wrong_type()
    if kind == "N":
        return _calculated(_ROUNDING.add, value, more)
    return _set(kind, [*value[kind], *content])


def _taken_out(value: Value | None, out: Value) -> Value | None:
    ((kind, content),) = out.items()
    if kind not in _SETS:
        raise invalid("Invalid UpdateExpression: Incorrect operand type for DELETE")
    if value is None:
        return None
    if kind not in value:
        raise _wrong_type()
    left = _set(kind, set(value[kind]) - set(content))
    return left if left[kind] else None


def _check_overlaps(paths: list[Path]) -> None:
    for one, other in combinations(paths, 2):
        shared = min(len(one), len(other))
        apart = next((at for at in range(shared) if one[at] != other[at]), None)
        if apart is None:
            raise invalid(
                "Invalid UpdateExpression: Two document paths overlap with each other; "
                f"path one: {[*one]}, path two: {[*other]}"
            )
        if type(one[apart]) is not type(other[apart]):
            raise invalid(
                "Invalid UpdateExpression: Two document paths conflict with each other; "
                f"path one: {[*one]}, path two: {[*other]}"
            )


Names = tuple[tuple[str, str], ...]


def names_of(request: Mapping[str, Any]) -> Names:
    return tuple((request.get("ExpressionAttributeNames") or {}).items())


@functools.lru_cache(maxsize=1024)
def condition_of(text: str, names: Names) -> Condition:
    return _Parser(text, dict(names)).condition()


@functools.lru_cache(maxsize=1024)
def update_of(text: str, names: Names) -> Update:
    return _Parser(text, dict(names)).update()


def updated(item: Item, update: Update, values: Mapping[str, Value]) -> Item:
    """Return the row after an update; the row itself stays as it is, but shares what has not changed."""
    # every operand is the row's as it was, whatever else the update changes
    new = [(path, operand(item, values)) for path, operand in update.changes]
    item = dict(item)
    for name in update.nested:
        if name in item:
            item[name] = _copy(item[name])
    gone = update.removed
    for path, value in new:
        if value is None:
            # from the end of a list, as in `removed`
            gone = sorted([*gone, path], reverse=True)
        else:
            _put(item, path, value)
    for path in gone:
        _drop(item, path)
    return item


def _put(item: Item, path: Path, value: Value) -> None:
    holder, step = _holder(item, path), path[-1]
    if isinstance(step, int) and step >= len(holder):
        holder.append(value)
    else:
        holder[step] = value


def _drop(item: Item, path: Path) -> None:
    holder, step = _holder(item, path), path[-1]
    if isinstance(step, int):
        del holder[step : step + 1]
    else:
        holder.pop(step, None)


def _holder(item: Item, path: Path) -> Any:
    """Return the dict or list in which a path's last step stands."""
    if len(path) == 1:
        return item
    found = (value_at(path[:-1], item) or {}).get("L" if isinstance(path[-1], int) else "M")
    if found is None:
        raise UnfitError(
            "The document path provided in the update expression is invalid for update"
        )
    return found
