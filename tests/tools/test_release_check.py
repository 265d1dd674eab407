"""What ``make release-check`` finds wrong in the changelog, the tag and the README."""

from importlib.metadata import version

import pytest

from dev.release import ROOT, notes, run_snippets

CHANGELOG = """\
Changelog
=========

2030-02-01 / 1.10.0
-------------------

- **New.** ``once`` (`why <https://example.org/why>`_).

Unreleased / 1.1.0
------------------

Old.
"""


def test_notes_are_the_section_of_the_version():
    wanted = "- **New.** ``once`` ([why](https://example.org/why))."
    assert notes("1.10.0", CHANGELOG) == notes("1.10.0", CHANGELOG, "v1.10.0") == wanted
    assert notes("1.1.0", CHANGELOG) == "Old."


@pytest.mark.parametrize(
    ("of", "tag", "said"),
    [
        ("1.2.0", "", "no section of 1.2.0"),
        ("1.10", "", "no section of 1.10"),
        ("1.10.0", "v1.1.0", "the tag is v1.1.0, the version 1.10.0"),
        ("1.1.0", "v1.1.0", "its section Unreleased"),
    ],
)
def test_release_is_refused(of, tag, said):
    with pytest.raises(SystemExit, match=said):
        notes(of, CHANGELOG, tag)


def test_version_of_this_package_is_in_its_changelog():
    assert notes(version("pynamodb-mutex"), (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8"))


def test_snippet_that_prints_something_else_is_found():
    block = ".. code-block:: {}\n\n   {}\n\n"
    right = block.format("python", "print('at', 1763895600123)") + block.format(
        "output", "at 1763895600999"
    )
    run_snippets(right)
    with pytest.raises(SystemExit, match="prints\nat N\n"):
        run_snippets(right.replace("at 1763895600999", "off"))
