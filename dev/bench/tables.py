"""Tables of figures, for the terminal and as reStructuredText. Their contents are made by the scenarios."""

from __future__ import annotations

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


def rows_of(libraries: dict[str, dict[str, Any]], cells: Any, columns: int) -> list[list[str]]:
    """Return a row of cells for each library; for one that failed, a row with the reason.

    Args:
        libraries: Figures by the name of the library.
        cells: Returns the cells after the name, for the figures of a library.
        columns: Number of columns.
    """
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
