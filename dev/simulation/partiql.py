"""Updates in PartiQL: a statement becomes an update and a condition, as UpdateItem has them."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from dev.simulation.expressions import Condition, Parser, Placeholders, Update
from dev.simulation.values import Refusal, invalid

_TOKEN = re.compile(r'"((?:[^"]|"")+)"|(\?)')
# also what begins with IS, and indexes
_LITERAL = re.compile(r"'|[\[{]|(?<![#:\w])\d|\b(?:IS|TRUE|FALSE|NULL)\b", re.IGNORECASE)
_UPDATE = re.compile(
    r"""\s* UPDATE \s+ (?P<table>\S+) \s+
    (?P<changes>(?:SET|REMOVE) \b .*?) \s+
    WHERE \s+ (?P<condition>.*?) \s*
    (?: RETURNING \s+ (?P<which>ALL|MODIFIED) \s+ (?P<when>OLD|NEW) \s* \* \s* )?""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_SECTION = re.compile(r"\b(SET|REMOVE)\b", re.IGNORECASE)


class Statement(NamedTuple):
    """An update of one row. Parameters are the placeholders ``:0``, ``:1`` and so on.

    Attributes:
        table: Its name.
        update: What it changes.
        condition: Comparisons with the row's key among others.
        parameters: How many it has.
        which: ALL or MODIFIED, what it returns; empty if nothing.
        when: OLD or NEW.
    """

    table: str
    update: Update
    condition: Condition
    parameters: int
    which: str
    when: str

    def equalities(self) -> dict[str, list[str]]:
        """Return the placeholders to which attributes must be equal, by their names."""
        equal: dict[str, list[str]] = {}
        for operator, name, placeholders in self.condition.conjuncts:
            if operator == "=":
                equal.setdefault(name, []).extend(placeholders)
        return equal


@functools.lru_cache(maxsize=256)
def statement_of(text: str, kinds: tuple[str, ...]) -> Statement:
    """Read a statement; of its parameters only the kinds are known.

    Raises:
        Refusal: It is not well formed.
        NotImplementedError: It is something other than an update, or has a literal.
    """
    names: dict[str, str] = {}
    parameters = 0

    def replaced(found: re.Match[str]) -> str:
        nonlocal parameters
        if found[2]:
            parameters += 1
            return f":{parameters - 1}"
        names[f"#{len(names)}"] = found[1].replace('""', '"')
        return f"#{len(names) - 1}"

    plain = _TOKEN.sub(replaced, text)
    if not re.match(r"\s*UPDATE\b", plain, re.IGNORECASE) or _LITERAL.search(plain):
        raise NotImplementedError(f"no PartiQL but UPDATE without literals is known here: {text}")
    broken = invalid(f"Statement wasn't well formed, can't be processed: {text}")
    found = _UPDATE.fullmatch(plain)
    if found is None:
        raise broken
    # a statement may have a SET for each change, an expression has one for all
    sections: dict[str, list[str]] = {}
    _, *parts = _SECTION.split(found["changes"])
    for section, change in zip(parts[::2], parts[1::2], strict=True):
        sections.setdefault(section.upper(), []).append(change.strip())
    changes = " ".join(f"{section} {', '.join(each)}" for section, each in sections.items())
    given = kinds + ("S",) * (parameters - len(kinds))
    placeholders = Placeholders(names, {f":{at}": kind for at, kind in enumerate(given)})
    try:
        update = Parser("", changes, placeholders).update()
        condition = Parser("", found["condition"], placeholders).condition()
    except Refusal:
        raise broken from None
    return Statement(
        names.get(found["table"], found["table"]),
        update,
        condition,
        parameters,
        (found["which"] or "").upper(),
        (found["when"] or "").upper(),
    )
