"""Tables of figures, for the terminal and as reStructuredText. Their contents are made by the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Table(NamedTuple):
    """A table.

    Attributes:
        title: Title of the table.
        columns: Heads of the columns.
        rows: Cells of each row, as they are shown.
        note: Text below the table that explains its figures; empty for none.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


Column = tuple[str, str | Callable[[Any], str]]
"""Head of a column, and the name of its figure; or a function that makes a cell of all figures of a row."""


def table(
    title: str,
    start: list[str],
    columns: list[Column],
    rows: Iterable[tuple[list[str], dict[str, Any]]],
    note: str,
) -> Table:
    """Return a table of figures.

    Args:
        title: Title of the table.
        start: Heads of the first columns.
        columns: The other columns.
        rows: The first cells of each row, and its figures.
        note: Text below the table.
    """

    def cells(found: dict[str, Any]) -> list[str]:
        return [
            number(found[show]) if isinstance(show, str) else show(found) for _, show in columns
        ]

    heads = [*start, *(head for head, _ in columns)]
    return Table(title, heads, [[*begin, *cells(found)] for begin, found in rows], note)


def named(libraries: dict[str, dict[str, Any]]) -> Iterable[tuple[list[str], dict[str, Any]]]:
    """Return rows that begin with the name of a library."""
    return (([name], found) for name, found in libraries.items())


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure as text, with some significant digits; a dash for None."""
    if value is None:
        return "-"
    shown = f"{value:.{digits}g}"
    if abs(float(shown)) >= 10**digits:
        return f"{value:,.0f}"
    return shown if "e" not in shown else f"{value:.6f}".rstrip("0")


def times(value: float | None) -> str:
    """Return a ratio as text; a dash for None."""
    return "-" if value is None else f"{value:.2f}x"


def as_text(table: Table) -> str:
    """Return a table for the terminal."""
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, "", *shown, *filter(None, [table.note]), ""])


def as_rst(table: Table) -> str:
    """Return a table as a list-table of reStructuredText, with its note below."""
    lines = [f".. list-table:: {_escaped(table.title)}", "   :header-rows: 1", ""]
    for row in [table.columns, *table.rows]:
        for place, cell in enumerate(row):
            start = "   * -" if place == 0 else "     -"
            lines.append(f"{start} {_escaped(cell)}".rstrip())
    note = [_escaped(table.note), ""] if table.note else []
    return "\n".join([*lines, "", *note])


def _escaped(text: str) -> str:
    """Return a text with the characters escaped that have a meaning in reStructuredText."""
    if text == "-":  # it would begin a list inside the cell
        return "\\-"
    return "".join(f"\\{letter}" if letter in "\\*`|_" else letter for letter in text)
