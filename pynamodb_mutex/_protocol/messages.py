"""Text from rows and callers, as messages and log records show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

LONGEST = 80
"""Characters of what is shown of one key, owner or other text from outside."""

MOST = 3
"""Of several keys, how many are shown."""

_CUT = "..."
_END = (LONGEST - len(_CUT)) // 2
_BEGIN = LONGEST - len(_CUT) - _END


def shown(value: object) -> str:
    """Return a key, an owner, or anything else that a row or a caller gave, for a message.

    As `repr` has it, so that a newline forges no line of a log, and no escape code reaches a terminal.
    Shortened to `LONGEST` characters, without its middle: keys often differ at the end alone.
    """
    text = escaped(repr(value))
    return text if len(text) <= LONGEST else f"{text[:_BEGIN]}{_CUT}{text[-_END:]}"


def shown_owner(owner: str | None) -> str:
    """Return the label of a holder, who may have none."""
    return shown(owner) if owner else "an unnamed owner"


def shown_all(values: Collection[object]) -> str:
    """Return several of them: the first few, and how many there are."""
    first = ", ".join(shown(value) for value, _ in zip(values, range(MOST), strict=False))
    return first if len(values) <= MOST else f"{first}, ... ({len(values)} in all)"


def escaped(text: str) -> str:
    """Return a text that does nothing to a terminal: control characters, and the like, spelt out."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def one_line(said: object) -> str:
    """Return what an exception or an answer says, for a line of a log or a terminal.

    What botocore and PynamoDB raise quotes whatever is at the other end of a connection.
    """
    return escaped(" ".join(str(said).split()))
