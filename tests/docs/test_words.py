"""The words that the documentation avoids: pages, README, docstrings, and the help of the command line.

The words of the field say the same more plainly; the right column has them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dev.words import prose_of_page
from pynamodb_mutex.cli._app import app

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pynamodb_mutex"

INSTEAD = {
    r"tells?|told|untold|tellers?|telling": "say, report, learn",
    r"(?:come|comes|came|coming) to nothing": "fail",
    r"looks?|looked|looking": "poll, read, see",
    r"beside": "next to, in addition to",
    r"tends?|tended|tending": "handle, renew",
    r"heirs?": "next holder",
    r"thaw|thaws|thawed|thawing": "resume",
    r"(?:leave|leaves|left|leaving) behind": "leave",
    r"terms": "options",
    r"wanted": "requested",
    r"(?:give|gives|gave|given|giving)(?: [\w'`]+){0,3} back": "release",
    r"troupe": "processes",
    r"the show|a show": "run",  # as a verb it is plain English
    r"nemesis": "fault injection",
    r"rages?|raging": "fault injection",
    r"twins?": "counterpart",
}
"""Words to avoid, as regular expressions, with the words of the field."""

EXCEPTIONS = {
    "look up": "the verb for finding an entry, as in a dictionary",
    "looks like": "means resemblance",
    "looks the same": "means resemblance",
    "in terms of": "a fixed phrase, not a word for options",
}
"""Phrases that contain such a word and may stay, each with its reason."""

_LITERAL = re.compile(r"``[^`]+``|(?m: <[\w/]+>$)|:\w+(?::\w+)?:`[^`]+`|<[^>\s]+>`_|`[\w.~<> ]+`")


def docstrings(path: Path) -> str:
    """Return all docstrings of a module, those of variables among them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return "\n\n".join(found)


def help_of(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    """Return the help of a command, and of those below it."""
    texts = [command.help, command.short_help, command.epilog]
    texts += [getattr(parameter, "help", None) for parameter in command.params]
    yield f"help of {name}", "\n\n".join(text for text in texts if text)
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            yield from help_of(each, f"{name} {below}")


def sources() -> dict[str, str]:
    pages = [ROOT / "README.rst", *sorted((ROOT / "docs").rglob("*.rst"))]
    found = {
        page.relative_to(ROOT).as_posix(): prose_of_page(page.read_text(encoding="utf-8"))
        for page in pages
    }
    for module in sorted(PACKAGE.rglob("*.py")):
        found[module.relative_to(ROOT).as_posix()] = docstrings(module)
    found.update(help_of(app, "pynamodb-mutex"))
    return found


SOURCES = sources()


def avoided(text: str) -> list[str]:
    """Return the words to avoid that a text has, each with what to write instead."""
    plain = " ".join(_LITERAL.sub("", text).split())
    for phrase in EXCEPTIONS:
        plain = re.sub(rf"\b{phrase}\b", "", plain, flags=re.IGNORECASE)
    return [
        f"{found[0]!r} in '...{plain[max(0, found.start() - 40) : found.end() + 30]}...': write {instead}"
        for words, instead in INSTEAD.items()
        for found in re.finditer(rf"\b(?:{words})\b(?!-)", plain, re.IGNORECASE)
    ]


@pytest.mark.parametrize("source", sorted(SOURCES))
def test_words_of_the_field(source):
    assert not avoided(SOURCES[source])


def test_sources_are_there():
    """An empty text would be no test."""
    assert len(SOURCES["docs/locks.rst"].split()) > 500
    assert "acquire" in SOURCES["pynamodb_mutex/mutex.py"]
    assert "Run a command" in SOURCES["help of pynamodb-mutex run"]


@pytest.mark.parametrize(
    "text",
    [
        "The holder is told.",
        "It gives the lock back.",
        "He gave it\nback.",
        "on what terms",
        "Beside the others",
        "an attempt that comes to nothing",
    ],
)
def test_avoided_word_is_found(text):
    assert avoided(text)


@pytest.mark.parametrize(
    "text",
    ["``told``", ":doc:`cli/looking`", "`look`", "a look-up", "It looks like a key.", "stole"],
)
def test_other_word_is_not_found(text):
    assert not avoided(text)


def test_prose_of_a_page():
    page = "One.\n\n.. code-block:: python\n\n   told = 1  # two\n\nThree.\n\n.. hidden: python\n\n   told\n"
    assert prose_of_page(page).split() == ["One.", "two", "Three."]
