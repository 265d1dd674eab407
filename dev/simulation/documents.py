"""Operations of expressions on the values of a row: paths into documents, functions of conditions, updates of parts.

`expressions` parses expressions and applies these; `values` has the typed values and their comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dev.simulation.values import (
    SETS,
    Item,
    Refusal,
    UnfitError,
    Value,
    added,
    set_of,
)

Path = tuple[str | int, ...]
"""Path to a value in a row: the attribute's name, followed by names in maps and indexes in lists."""

# -- paths --------------------------------------------------------------------------------------


def value_at(path: Path, item: Mapping[str, Value]) -> Value | None:
    """Return the value at a path; None if there is none."""
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


def put(item: Item, path: Path, value: Value) -> None:
    """Set the value at a path; beyond the end of a list it is appended, whatever the index."""
    holder, step = _holder(item, path), path[-1]
    if isinstance(step, int) and step >= len(holder):
        holder.append(value)
    else:
        holder[step] = value


def drop(item: Item, path: Path) -> None:
    """Remove the value at a path, if there is one."""
    holder, step = _holder(item, path), path[-1]
    if isinstance(step, int):
        del holder[step : step + 1]
    else:
        holder.pop(step, None)


def _holder(item: Item, path: Path) -> Any:
    """Return the dict or list that contains the last step of a path.

    Raises:
        UnfitError: If there is none: an update creates no parents.
    """
    if len(path) == 1:
        return item
    found = (value_at(path[:-1], item) or {}).get("L" if isinstance(path[-1], int) else "M")
    if found is None:
        raise UnfitError(
            "The document path provided in the update expression is invalid for update"
        )
    return found


def projected(item: Item, paths: list[Path]) -> Item:
    """Return the parts of a row that a projection names, in the order of the row."""
    whole = _part({"M": item}, paths)
    return {} if whole is None else dict(whole["M"])


def _part(value: Value, paths: list[Path]) -> Value | None:
    """Return the parts of a value at some paths; None if there are none. An empty path stands for the whole value."""
    if () in paths:
        return value
    rest: dict[str | int, list[Path]] = {}
    for path in paths:
        rest.setdefault(path[0], []).append(path[1:])
    if "M" in value:
        parts = {name: _part(each, rest[name]) for name, each in value["M"].items() if name in rest}
        found = {name: part for name, part in parts.items() if part is not None}
        return {"M": found} if found else None
    members = [_part(each, rest[at]) for at, each in enumerate(value.get("L", ())) if at in rest]
    present = [part for part in members if part is not None]
    return {"L": present} if present else None


# -- functions of conditions --------------------------------------------------------------------


def size(value: Value | None) -> Value | None:
    """Return the result of ``size``: bytes or members; None for a value without a size, or no value."""
    if value is None:
        return None
    ((kind, content),) = value.items()
    if kind == "S":
        return {"N": str(len(content.encode()))}
    # a number, a boolean and null have no size, as if they were absent
    return None if kind in {"N", "BOOL", "NULL"} else {"N": str(len(content))}


def begins_with(value: Value | None, start: Value | None) -> bool:
    if value is None or start is None:
        return False
    return any(
        kind in value and kind in start and value[kind].startswith(start[kind]) for kind in "SB"
    )


def contains(value: Value | None, part: Value | None) -> bool:
    if value is None or part is None:
        return False
    ((kind, content),) = value.items()
    ((part_kind, part_content),) = part.items()
    if kind == "L":
        return part in content
    # a set contains a member of its kind, a string or binary value contains a part of it
    return (
        part_kind == kind.removesuffix("S" if kind in SETS else "")
        and (kind in SETS or kind in {"S", "B"})
        and part_content in content
    )


def is_type(value: Value | None, kind: Value | None) -> bool:
    return value is not None and kind is not None and kind.get("S") in value


# -- operators of updates -----------------------------------------------------------------------


def _wrong_type() -> Refusal:
    return UnfitError("An operand in the update expression has an incorrect data type")


def calculated(
    calculate: Callable[[str, str], Value], one: Value | None, other: Value | None
) -> Value:
    if one is None or other is None or "N" not in one or "N" not in other:
        raise _wrong_type()
    return calculate(one["N"], other["N"])


def appended(one: Value | None, other: Value | None) -> Value:
    if one is None or other is None or "L" not in one or "L" not in other:
        raise _wrong_type()
    return {"L": [*one["L"], *other["L"]]}


def combined(value: Value | None, more: Value) -> Value:
    """Return the result of ADD: a number or a set with more; if it was absent, the addition itself."""
    ((kind, content),) = more.items()
    if value is None:
        return more
    if kind not in value:
        raise _wrong_type()
    if kind == "N":
        return calculated(added, value, more)
    return set_of(kind, [*value[kind], *content])


def taken_out(value: Value | None, out: Value) -> Value | None:
    """Return the result of DELETE: a set without some members; None if none are left, or it was absent."""
    ((kind, content),) = out.items()
    if value is None:
        return None
    if kind not in value:
        raise _wrong_type()
    left = set_of(kind, set(value[kind]) - set(content))
    return left if left[kind] else None
