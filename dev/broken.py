"""Broken variants of the library: each undoes one of its rules, and the trial, the simulation or a test must catch it.

They are changes of lines, in ``broken.txt``: after a comment with the variant's name and what it does wrong, a function, the
lines of it that go, and those that take their place. `broken` applies them by name. A change whose lines are not in the
function, or not once, or that changes nothing is an error, and so is a block that is neither a variant nor the heading of a
section: no variant loses its teeth, or is left out, unnoticed. A table's request templates are built once, so a variant that
changes them must be applied before the first use of the table.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    Changes = dict[str, list[str]]
    """The lines that go and come, by the function."""


def _variants(text: str) -> Iterator[tuple[str, str, str, Changes]]:
    """Yield section, name, description and changes of each variant of a text, whose first block says what the others are.

    Raises:
        ValueError: If a block is neither a variant nor the heading of a section.
    """
    section = place = ""
    for block in text.split("\n\n")[1:]:
        comment, *lines = block.strip().splitlines()
        changes: Changes = {}
        for line in lines:
            if line[0] in "-+":
                changes[place].append(line)
            elif line[0] != "#":
                place = line
                changes.setdefault(place, [])
        head = re.match("# ([a-z-]+): (.*)", comment)
        if head and changes:
            yield section, head[1], head[2].rstrip("."), changes
        elif comment.startswith("# --") and not lines:
            section = comment.strip("# -")
        else:
            raise ValueError(f"neither a variant nor a section:\n{block}")


_ALL = [*_variants(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))]

BROKEN = {name: changes for _, name, _, changes in _ALL}
"""The changes of each variant, by its name."""
assert len(BROKEN) == len(_ALL), "two variants of one name"

MEANING = {name: meaning for _, name, meaning, _ in _ALL}
"""What each variant does wrong, by its name."""

KIND = {name: section if section in {"once", "shared"} else "locks" for section, name, _, _ in _ALL}
"""The kind of schedules that shows each variant, by its name."""

NOT_OF_THE_TRIAL = {name for name, kind in KIND.items() if kind == "once"}
"""Variants that undo a rule of `once`, which the trial does not call."""


def _function(name: str) -> FunctionType:
    """Return the function of a dotted name, without what decorates it."""
    first, *parts = name.split(".")
    found: Any = import_module(first)
    for part in parts:
        is_package = hasattr(found, "__path__")
        found = import_module(f"{found.__name__}.{part}") if is_package else vars(found)[part]
    for inner in ("fget", "_compute", "__wrapped__"):
        found = getattr(found, inner, found)
    assert isinstance(found, FunctionType), name
    return found


def _changed(source: list[str], changes: list[str]) -> list[str]:
    """Return the lines of a function with the changes made.

    Raises:
        ValueError: If lines that are to go are not there, or not once.
    """
    groups = [
        (sign, [line[2:] for line in lines])
        for sign, lines in groupby(changes, lambda line: line[0])
    ]
    for (_, old), (_, new) in zip(groups[::2], groups[1::2], strict=True):
        places = [
            at
            for at in range(len(source))
            if textwrap.dedent("\n".join(source[at : at + len(old)])) == "\n".join(old)
        ]
        if len(places) != 1:
            raise ValueError(f"{len(places)} times in it, not once:\n" + "\n".join(old))
        (at,) = places
        margin = source[at].removesuffix(old[0])
        source = [*source[:at], *(margin + line for line in new), *source[at + len(old) :]]
    return source


@cache
def _codes(name: str) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions of a variant, each with its changed code."""
    found = []
    for place, changes in BROKEN[name].items():
        try:
            function = _function(place)
            lines, first = inspect.getsourcelines(function)
            new = _changed([line.rstrip() for line in lines], changes)
        except (LookupError, ValueError) as error:
            raise ValueError(f"{name}: {place}: {error}") from error
        text = inspect.getsource(import_module(function.__module__))
        module = text.splitlines()
        module[first - 1 : first - 1 + len(lines)] = new
        if ast.dump(ast.parse("\n".join(module))) == ast.dump(ast.parse(text)):
            raise ValueError(f"{name}: {place}: changes nothing")
        # the whole module, so that the code has its lines, and around it what it refers to
        codes = [compile("\n".join(module), f"<{name}>", "exec")]
        for code in codes:
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        it = function.__name__, first
        (code,) = (each for each in codes if (each.co_name, each.co_firstlineno) == it)
        found.append((function, code))
    return found


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Apply a broken variant inside the block."""
    before = [(function, function.__code__) for function, _ in _codes(name)]
    try:
        for function, code in _codes(name):
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code
