"""The words that the documentation avoids: pages, README, docstrings, and the help of the command line.

The words of the field say the same more plainly; the right column has them.
"""

import ast
import re
from pathlib import Path

import click
import pytest

from dev.words import prose_of_page
from pynamodb_mutex.cli._app import app

ROOT = Path(__file__).parents[2]

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

EXCEPTIONS = ("look up", "looks like", "looks the same", "in terms of")
"""Phrases that contain such a word with another meaning, and may stay."""

_LITERAL = re.compile(r"``[^`]+``|(?m: <[\w/]+>$)|:\w+(?::\w+)?:`[^`]+`|<[^>\s]+>`_|`[\w.~<> ]+`")


def docstrings(path):
    """Return all docstrings of a module, those of variables among them."""
    statements = (
        n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Expr)
    )
    values = (each.value.value for each in statements if isinstance(each.value, ast.Constant))
    return "\n\n".join(value for value in values if isinstance(value, str))


def help_of(command, name):
    """Return the help of a command, and of those below it."""
    texts = [command.help, command.short_help, command.epilog]
    texts += [getattr(parameter, "help", None) for parameter in command.params]
    found = {f"help of {name}": "\n\n".join(filter(None, texts))}
    if isinstance(command, click.Group):
        for below, each in command.commands.items():
            found |= help_of(each, f"{name} {below}")
    return found


PAGES = [ROOT / "README.rst", *(ROOT / "docs").rglob("*.rst")]
SOURCES = {
    **{str(page.relative_to(ROOT)): prose_of_page(page.read_text("utf-8")) for page in PAGES},
    **{
        str(module.relative_to(ROOT)): docstrings(module)
        for module in (ROOT / "pynamodb_mutex").rglob("*.py")
    },
    **help_of(app, "pynamodb-mutex"),
}


def avoided(text):
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
    page = "One.\n\n.. code-block:: python\n\n   told = 1  # two\n\nThree.\n\n.. hidden: python\n\n   told\n"
    assert prose_of_page(page).split() == ["One.", "two", "Three."]


@pytest.mark.parametrize(
    ("is_avoided", "texts"),
    [
        (True, ["The holder is told.", "It gives the lock back.", "He gave it\nback."]),
        (True, ["on what terms", "Beside the others", "an attempt that comes to nothing"]),
        (False, ["``told``", ":doc:`cli/looking`", "`look`", "a look-up", "stole"]),
        (False, ["It looks like a key.", "I look up."]),
    ],
)
def test_word_is_found(is_avoided, texts):
    assert [bool(avoided(text)) for text in texts] == [is_avoided] * len(texts)
