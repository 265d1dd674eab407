"""The documentation is whole: the reference has all public names, fields and arguments, links lead somewhere."""

import configparser
import importlib.util
import inspect
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

import pynamodb_mutex
from pynamodb_mutex import LockItem, RowLockMixin, exceptions, signals

ROOT = Path(__file__).parents[2]
PAGES = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.rst"))]
MODULES = [module.name for module in pkgutil.iter_modules(pynamodb_mutex.__path__)]
PUBLIC = [name for name in MODULES if not name.startswith("_")]
SIGNALS = [kind for kind in map(vars(signals).get, signals.__all__) if inspect.isclass(kind)]


@pytest.mark.parametrize("name", ["pynamodb_mutex", *(f"pynamodb_mutex.{name}" for name in PUBLIC)])
def test_reference_has_every_public_name(name):
    pages = "\n".join(PAGES)
    directive = r"^\.\. auto(?:class|data|exception|function):: (?:\w+\.)*(\w+)"
    whole = rf"^\.\. automodule:: {re.escape(name)}\n(?:   .+\n)*   :members:$"
    if not re.search(whole, pages, re.MULTILINE):
        documented = re.findall(directive, pages, re.MULTILINE)
        assert set(getattr(import_module(name), "__all__", ())) <= set(documented)


def described(kind):
    """Return the names below ``Attributes:`` in the docstring of a class."""
    fields = inspect.getdoc(kind).partition("Attributes:\n")[2]
    return set(re.findall(r"^    (\w+)(?: \([^)]*\))?: ", fields, re.MULTILINE))


def test_fields_of_rows():
    options = {"lock_model", "lock_enforced"}
    assert described(LockItem) == set(LockItem.get_attributes())
    assert described(RowLockMixin) == set(RowLockMixin.get_attributes()) | options


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


def test_links_of_the_readme_lead_to_pages_of_the_documentation():
    """They are absolute, for the page of a package index; setup.cfg says where the documentation is."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    urls = dict(re.findall(r"^(\w+) = (\S+)$", settings["metadata"]["project_urls"], re.MULTILINE))
    readme = (ROOT / "README.rst").read_text(encoding="utf-8")
    links = re.findall(r"`[^`<]+\s<([^>]+)>`_", readme)
    assert len(links) > 10
    assert readme.count("://") == len(links)
    for link in links:
        page = re.fullmatch(rf"{re.escape(urls['Documentation'])}/page/([\w/]+)\.html", link)
        assert page is not None, link
        assert (ROOT / "docs" / f"{page[1]}.rst").is_file(), link


def test_diagrams_are_as_drawn():
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    for name, drawn in diagrams.DIAGRAMS.items():
        picture = ROOT / "docs" / "pictures" / f"{name}.svg"
        assert picture.read_text(encoding="utf-8") == drawn().svg(), f"{name}: draw it anew"
        assert any(f"pictures/{name}.svg" in page for page in PAGES), f"{name} is on no page"
