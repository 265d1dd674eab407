"""Parses updates in PartiQL into an update and a condition like those of UpdateItem, with the parser of `expressions`.

Renewals that are sent together are such statements. Other statements, and literals, raise NotImplementedError.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from dev.simulation.expressions import Condition, Parser, Placeholders, Update
from dev.simulation.values import Refusal, invalid

_TOKEN = re.compile(r'"((?:[^"]|"")+)"|(\?)')
# literals, and what the parser of expressions has no equivalent for: IS and indexes of lists
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
    """A parsed update of one row. Its parameters are the placeholders ``:0``, ``:1`` and so on.

    Attributes:
        table: Name of the table.
        update: Its changes.
        condition: Its WHERE clause: the row's key, and any further conditions.
        parameters: Number of parameters.
        which: Attributes that it returns: ALL, MODIFIED, or empty for none.
        when: State of the row that it returns: OLD, NEW, or empty for none.
    """

    table: str
    update: Update
    condition: Condition
    parameters: int
    which: str
    when: str

    def equalities(self) -> dict[str, list[str]]:
        """Return the placeholders to which each attribute must be equal, by the attribute's name."""
        equal: dict[str, list[str]] = {}
        for operator, name, placeholders in self.condition.conjuncts:
            if operator == "=":
                equal.setdefault(name, []).extend(placeholders)
        return equal


@functools.lru_cache(maxsize=256)
def statement_of(text: str, kinds: tuple[str, ...]) -> Statement:
    """Parse a statement.

    Args:
        text: The statement.
        kinds: The kinds of its parameters, in order. With the values left out, each statement is parsed once.

    Raises:
        Refusal: If it is not well formed.
        NotImplementedError: If it is no update, or has a literal.
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
    # a statement may repeat SET for each change; an update expression has one SET for all
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
