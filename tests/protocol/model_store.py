"""A table of one row in memory, which evaluates the expressions that it is sent, and a clock that stands."""

from __future__ import annotations

import re
from decimal import Decimal
from functools import cache
from typing import Any

from pynamodb_mutex._runtime.clock import LocalClock

_EXISTS = re.compile(r"attribute_(not_)?exists \((\S+)\)")
_TYPE = re.compile(r"attribute_type \((#\d+), (:\d+)\)")
_BETWEEN = re.compile(r"(#\d+) BETWEEN (:\d+) AND (:\d+)")
_EQUALS = re.compile(r"(?<![<>]) = ")
_CLAUSES = re.compile(r"(?:SET (.*?))?(?: ?REMOVE (.*))?")


class Clock(LocalClock):
    """Stands still: it is never too late to repeat a request."""

    def now(self):
        return 0.0

    def wait(self, condition, until):
        pass


class _Absent:
    """No comparison with it holds, as with an attribute that a row does not have."""

    __hash__ = None

    def __eq__(self, other):
        return False

    __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __eq__


_ABSENT = _Absent()


def _value(raw):
    ((kind, value),) = raw.items()
    return Decimal(value) if kind == "N" else value


def _raw(value):
    return {"N": str(value)} if isinstance(value, Decimal) else {"S": value}


def _type_of(value):
    return None if value is _ABSENT else next(iter(_raw(value)))


def _python(expression):
    expression = _EXISTS.sub(lambda m: f"({m[2]} is {'' if m[1] else 'not '}absent)", expression)
    expression = _TYPE.sub(r"(type_of(\1) == \2)", expression)
    expression = _EQUALS.sub(" == ", expression).replace("<>", "!=")
    expression = _BETWEEN.sub(r"\2 <= \1 <= \3", expression)
    expression = expression.replace(" AND ", " and ").replace(" OR ", " or ")
    # names and values: #0, :0
    return re.sub(r"([#:])(\d+)", lambda m: f"{'n' if m[1] == '#' else 'v'}{m[2]}", expression)


@cache
def _condition(expression):
    return compile(_python(expression), expression, "eval")


@cache
def _update(expression):
    """Return what is set, and the names of what is removed."""
    sets, removed = _CLAUSES.fullmatch(expression).groups()
    targets = [each.split(" = ", 1) for each in re.split(r", (?=#\d+ = )", sets)] if sets else []
    code = [(name, compile(_python(right), right, "eval")) for name, right in targets]
    return code, removed.split(", ") if removed else []


class OneRow:
    """The row; a request is applied to it in one step."""

    def __init__(self, raw):
        self.row = {name: _value(value) for name, value in raw.items()}

    @property
    def raw(self) -> dict[str, Any]:
        return {name: _raw(value) for name, value in self.row.items()}

    def apply(self, operation: str, request: dict[str, Any], in_place_of: dict[Any, Any]) -> bool:
        """Apply a request if its condition holds; return whether it did.

        Args:
            operation: UpdateItem, PutItem or GetItem.
            request: As botocore takes it.
            in_place_of: Values that the condition is to be evaluated with instead of the request's.
        """
        names = request.get("ExpressionAttributeNames", {})
        values = {k: _value(v) for k, v in request.get("ExpressionAttributeValues", {}).items()}
        scope = {f"n{k[1:]}": self.row.get(v, _ABSENT) for k, v in names.items()}
        scope |= {
            "type_of": _type_of,
            "absent": _ABSENT,
            "if_not_exists": lambda a, b: b if a is _ABSENT else a,
        }
        if "ConditionExpression" in request:
            told = {f"v{k[1:]}": in_place_of.get(v, v) for k, v in values.items()}
            told |= scope
            if not eval(_condition(request["ConditionExpression"]), told):
                return False
        scope |= {f"v{k[1:]}": v for k, v in values.items()}
        if operation == "PutItem":
            self.row = {name: _value(value) for name, value in request["Item"].items()}
        elif operation == "UpdateItem":
            code, removed = _update(request["UpdateExpression"])
            new = {names[name]: eval(right, scope) for name, right in code}
            gone = {names[name] for name in removed}
            self.row = {k: v for k, v in (self.row | new).items() if k not in gone}
        else:
            assert operation == "GetItem", operation
        return True
