"""The documentation is whole, and in the words of the field.

The reference has all public names, fields and arguments, and links lead somewhere. Pages, docstrings and the help of
the command line avoid some words: those of the field, in the right column, say the same more plainly.
"""

import ast
import configparser
import inspect
import pkgutil
import re
import runpy
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest
from pynamodb.attributes import UnicodeAttribute

import pynamodb_mutex
from dev.words import prose_of_page
from pynamodb_mutex import LockItem, Mutex, RowLockMixin, exceptions, signals
from pynamodb_mutex._lock.operations.options import OPTIONS, LockOptions
from pynamodb_mutex.cli._app import app
from pynamodb_mutex.cli._doctor import _MULTI_REGION

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.rst").read_text("utf-8")
PAGES = {page: page.read_text("utf-8") for page in sorted((ROOT / "docs").rglob("*.rst"))}
MODULES = [module.name for module in pkgutil.iter_modules(pynamodb_mutex.__path__)]
SIGNALS = [kind for kind in map(vars(signals).get, signals.__all__) if inspect.isclass(kind)]


@pytest.mark.parametrize("name", ["", *(f".{name}" for name in MODULES if name[0] != "_")])
def test_reference_has_every_public_name(name):
    pages, module = "\n".join(PAGES.values()), f"pynamodb_mutex{name}"
    directive = r"(?m)^\.\. auto(?:class|data|exception|function):: (?:\w+\.)*(\w+)"
    whole = rf"(?m)^\.\. automodule:: {re.escape(module)}\n(?:   .+\n)*   :members:$"
    if not re.search(whole, pages):
        documented = re.findall(directive, pages)
        assert set(getattr(import_module(module), "__all__", ())) <= set(documented)


def described(kind):
    """Return the names below ``Attributes:`` in the docstring of a class."""
    fields = inspect.getdoc(kind).partition("Attributes:\n")[2]
    return set(re.findall(r"^    (\w+)(?: \([^)]*\))?: ", fields, re.MULTILINE))


def test_fields_of_rows():
    assert described(LockItem) == set(LockItem.get_attributes())
    options = {"lock_model", "lock_enforced"}
    assert described(RowLockMixin) == set(RowLockMixin.get_attributes()) | options


def test_options_are_described_in_the_groups_of_their_source():
    """`LockOptions` has each group below a comment, the reference below a heading, in the same order."""
    source, groups, group = inspect.getsource(LockOptions).partition("# waiting")[2], {}, []
    for line in f"    # waiting{source.partition('@property')[0]}".splitlines():
        if heading := re.match("    # (.+)", line):
            group = groups[heading[1].capitalize()] = []
        elif name := re.match(r"    (\w+): ", line):
            group.append(name[1])
    assert tuple(name for names in groups.values() for name in names) == OPTIONS
    text = inspect.getdoc(Mutex.for_key)
    for heading, names in groups.items():
        below = text.partition(f"\n\n{heading}:\n")[2].partition("\n\n")[0]
        assert re.findall(r"(?m)^    (\w+) \(.+?\): ", below) == names


VALUES = {
    "timeout": 1, "poll": (1, 2), "fair": True, "lease": 9, "auto_renew": False, "max_hold": 9,
    "on_danger": print, "on_lost": print, "owner": "a", "data": 1, "attributes": {"extra": "a"},
    "must_exist": True, "delete_on_release": True, "reentrant": True, "hold_at_least": 4, "shared": True,
}  # fmt: skip
"""A value for each option that is not its default."""


class Extended(LockItem):
    extra = UnicodeAttribute(null=True)


class Row(RowLockMixin):
    class Meta:
        table_name = "rows"

    key = UnicodeAttribute(hash_key=True)


class Elsewhere(Row):
    lock_model = Extended


def accepts(make, *args, **options):
    try:
        make(*args, **options)
    except TypeError:
        return False
    return True


def test_table_of_options_has_their_defaults_and_the_locks_that_refuse_them():
    text = PAGES[ROOT / "docs" / "api" / "lock.rst"]
    rows = [re.findall(r'"([^"]*)"', line) for line in re.findall(r"(?m)^   (\"``.*)$", text)]
    assert tuple(row[0].strip("`") for row in rows) == OPTIONS == tuple(VALUES)
    for name, default, _, several, of_rows in rows:
        option = name.strip("`")
        assert ast.literal_eval(default.strip("`")) == getattr(LockOptions, option)
        given = {option: VALUES[option]}
        keys, any_of, row, elsewhere = (
            accepts(Mutex.for_keys, ["a"], model=Extended, **given),
            accepts(Mutex.any_of, ["a"], model=Extended, **given),
            accepts(Row.locked, "a", **given),
            accepts(Elsewhere.locked, "a", **given),
        )
        assert several == {(True, True): "yes", (True, False): "for_keys"}.get((keys, any_of), "no")
        assert of_rows == {(True, True): "yes", (False, True): "lock_model"}.get(
            (row, elsewhere), "no"
        )


@pytest.mark.parametrize("name", sorted(set(exceptions.__all__) - {"Loss"}))  # an enum
def test_fields_of_exception(name):
    kind = getattr(exceptions, name)
    inherited = set(vars(kind.__mro__[1]())) if kind is not exceptions.MutexError else set()
    assert described(kind) == set(vars(kind())) - inherited - {"msg", "cause"}


@pytest.mark.parametrize("kind", SIGNALS)
def test_arguments_of_signal(kind):
    arguments, of_a_hold = set(get_type_hints(kind)), set(signals._OfAHold.__annotations__)
    if kind is not signals.Acquired and of_a_hold <= arguments:
        arguments -= of_a_hold  # described there
    assert described(kind) == arguments


def test_links_of_readme_and_doctor_lead_to_pages_of_the_documentation():
    """They are absolute, for whoever installs the package; setup.cfg says where the documentation is."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = dict(re.findall(r"^(\w+) = (\S+)$", settings["metadata"]["project_urls"], re.MULTILINE))
    links = re.findall(r"`[^`<]+\s<([^>]+)>`_", README)
    assert README.count("://") == len(links) > 10
    assert "https://" in _MULTI_REGION
    for link in [*links, *re.findall(r"https://\S+", _MULTI_REGION)]:
        page = re.fullmatch(rf"{re.escape(urls['Documentation'])}/page/([\w/]+)\.html", link)
        assert page is not None, link
        assert (ROOT / "docs" / f"{page[1]}.rst").is_file(), link


def test_diagrams_are_as_drawn():
    shown = "\n".join(PAGES.values())
    for name, drawn in runpy.run_path(str(ROOT / "docs" / "diagrams.py"))["DIAGRAMS"].items():
        picture = ROOT / "docs" / "pictures" / f"{name}.svg"
        assert picture.read_text(encoding="utf-8") == drawn().svg(), f"{name}: draw it anew"
        assert f"pictures/{name}.svg" in shown, f"{name} is on no page"


# -- words ------------------------------------------------------------------------------------------

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
    for below, each in getattr(command, "commands", {}).items():
        found |= help_of(each, f"{name} {below}")
    return found


SOURCES = help_of(app, "pynamodb-mutex")
SOURCES |= {str(page.relative_to(ROOT)): prose_of_page(text) for page, text in PAGES.items()}
for name in ("README.rst", "CHANGELOG.rst", "CONTRIBUTING.rst", "tests/GUARANTEES.rst"):
    SOURCES[name] = prose_of_page((ROOT / name).read_text("utf-8"))
for module in (ROOT / "pynamodb_mutex").rglob("*.py"):
    SOURCES[str(module.relative_to(ROOT))] = docstrings(module)


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


def test_word_is_found():
    found = ["The holder is told.", "It gives the lock back.", "He gave it\nback."]
    found += ["on what terms", "Beside the others", "an attempt that comes to nothing"]
    others = ["``told``", ":doc:`cli/looking`", "`look`", "a look-up", "stole"]
    others += ["It looks like a key.", "I look up."]
    assert [text for text in found + others if avoided(text)] == found
