"""The documentation is whole: its links lead somewhere, its reference leaves out no public name."""

from __future__ import annotations

import importlib.util
import re
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.unmeasured

ROOT = Path(__file__).parent.parent
PUBLIC = [
    "pynamodb_mutex",
    "pynamodb_mutex.aio",
    "pynamodb_mutex.groups",
    "pynamodb_mutex.testing",
]


@pytest.mark.parametrize("module", PUBLIC)
def test_reference_has_every_public_name(module):
    documented = {
        name.rpartition(".")[2]
        for name in re.findall(
            r"^\.\. auto(?:class|function|exception):: ([\w.]+)",
            (ROOT / "docs" / "api.rst").read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    assert set(import_module(module).__all__) - documented == set()


def test_links_of_the_readme_lead_somewhere():
    """They are relative, for the repository's own page."""
    links = re.findall(r"`[^`<]+ <([^>]+)>`_", (ROOT / "README.rst").read_text(encoding="utf-8"))
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://") or (ROOT / link).is_file(), link


def test_diagrams_are_as_drawn():
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "docs" / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    diagrams = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(diagrams)
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.rst")]
    for name, drawn in diagrams.DIAGRAMS.items():
        picture = ROOT / "docs" / "pictures" / f"{name}.svg"
        assert picture.read_text(encoding="utf-8") == drawn().svg(), f"{name}: draw it anew"
        assert any(f"pictures/{name}.svg" in page for page in pages), f"{name} is on no page"
