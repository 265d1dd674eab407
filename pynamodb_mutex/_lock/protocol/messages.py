"""Text from rows and callers for messages, log records and the command line: harmless, short, on one line.

Keys, owners and answers come from outside. A newline could forge a line of a log, an escape code could reach a terminal, and a
key may have 2048 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

LONGEST_TEXT = 80
"""Most characters shown of one key, owner or other text from outside."""

MOST = 3
"""Most values shown of several."""

_CUT = "..."
_END = (LONGEST_TEXT - len(_CUT)) // 2
_BEGIN = LONGEST_TEXT - len(_CUT) - _END


def shown(value: object) -> str:
    """Return a key, an owner, or another value from a row or a caller, as a message shows it.

    In the form of `repr`, so that a newline forges no line of a log and no escape code reaches a terminal.
    Shortened to `LONGEST_TEXT` characters by leaving out the middle, because keys often differ only at the end.
    """
    text = escaped(repr(value))
    return text if len(text) <= LONGEST_TEXT else f"{text[:_BEGIN]}{_CUT}{text[-_END:]}"


def shown_owner(owner: str | None) -> str:
    """Return the label of a holder, as a message shows it; None or empty if the holder has no label."""
    return shown(owner) if owner else "an unnamed owner"


def shown_all(values: Collection[object]) -> str:
    """Return several values, as a message shows them: the first few, and how many there are in all."""
    first = ", ".join(shown(value) for value, _ in zip(values, range(MOST), strict=False))
    return first if len(values) <= MOST else f"{first}, ... ({len(values)} in all)"


def escaped(text: str) -> str:
    """Return a text with control characters and the like spelt out, so that it does nothing to a terminal."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def one_line(said: object) -> str:
    """Return the text of an exception or an answer, for one line of a log or a terminal.

    Errors of botocore and PynamoDB quote the other end of the connection, which may be any program.
    """
    return escaped(" ".join(str(said).split()))
