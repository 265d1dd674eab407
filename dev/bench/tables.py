"""What was found, as tables: on the terminal and as reStructuredText."""

from __future__ import annotations

from typing import Any, NamedTuple


class Table(NamedTuple):
    """A table.

    Attributes:
        title: What it is about.
        columns: Their heads.
        rows: Their cells, as they are shown.
        note: What one has to know to read it.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def number(value: float | None, digits: int = 3) -> str:
    """Show a figure with so many significant digits; a dash if there is none."""
    if value is None:
        return "-"
    shown = f"{value:.{digits}g}"
    if abs(float(shown)) >= 10**digits:
        return f"{value:,.0f}"
    return shown if "e" not in shown else f"{value:.6f}".rstrip("0")


def times(value: float | None) -> str:
    """Show a ratio."""
    return "-" if value is None else f"{value:.2f}x"


def rows_of(libraries: dict[str, dict[str, Any]], cells: Any, columns: int) -> list[list[str]]:
    """Return a row for each library; one that failed says so instead."""
    return [
        [name, f"failed: {found['failed']}", *[""] * (columns - 2)]
        if "failed" in found
        else [name, *cells(found)]
        for name, found in libraries.items()
    ]


def as_text(table: Table) -> str:
    """Return a table for the terminal."""
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    note = [table.note] if table.note else []
    return "\n".join([table.title, "", shown[0], rule, *shown[1:], *note, ""])


def as_rst(table: Table) -> str:
    """Return a table as a list-table, with its note below."""
    lines = [f".. list-table:: {_escaped(table.title)}", "   :header-rows: 1", ""]
    for row in [table.columns, *table.rows]:
        for place, cell in enumerate(row):
            start = "   * -" if place == 0 else "     -"
            lines.append(f"{start} {_escaped(cell)}".rstrip())
    note = [_escaped(table.note), ""] if table.note else []
    return "\n".join([*lines, "", *note])


def _escaped(text: str) -> str:
    """Take from characters what they mean in reStructuredText."""
    if text == "-":  # in a list it would begin another
        return "\\-"
    return "".join(f"\\{letter}" if letter in "\\*`|_" else letter for letter in text)
