"""The documentation is whole: its links lead somewhere, its reference leaves out no public name."""

from __future__ import annotations

import configparser
import importlib.util
import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import pynamodb_mutex

ROOT = Path(__file__).parents[2]
PAGES = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.rst"))]
PUBLIC = [
    "pynamodb_mutex",
    *(
        f"pynamodb_mutex.{module.name}"
        for module in pkgutil.iter_modules(pynamodb_mutex.__path__)
        if not module.name.startswith("_")
    ),
]


@pytest.mark.parametrize("name", PUBLIC)
def test_reference_has_every_public_name(name):
    directive = r"^\.\. auto(?:class|data|exception|function):: ([\w.]+)"
    documented = {
        found.rpartition(".")[2]
        for page in PAGES
        for found in re.findall(directive, page, re.MULTILINE)
    }
    whole = re.compile(
        rf"^\.\. automodule:: {re.escape(name)}\n(?:   .+\n)*   :members:$", re.MULTILINE
    )
    if not any(whole.search(page) for page in PAGES):
        assert set(getattr(import_module(name), "__all__", ())) <= documented


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
    assert spec is not None
    assert spec.loader is not None
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    for name, drawn in diagrams.DIAGRAMS.items():
        picture = ROOT / "docs" / "pictures" / f"{name}.svg"
        assert picture.read_text(encoding="utf-8") == drawn().svg(), f"{name}: draw it anew"
        assert any(f"pictures/{name}.svg" in page for page in PAGES), f"{name} is on no page"
