"""What a release needs of its own files: ``make release-check``.

python -m dev.release notes TAG    # prints the changelog's section of the version, as Markdown
python -I dev/release.py readme    # runs the snippets of the README, in an environment with the wheel
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import pynamodb_mutex
from pynamodb_mutex.testing import embedded_dynamodb, use

ROOT = Path(__file__).parents[1]


def notes(version: str, changelog: str, tag: str = "") -> str:
    """Return the section of a version, as Markdown.

    Args:
        version: The version.
        changelog: The changelog, whose sections are titled "2030-12-31 / 1.2.3", or "Unreleased / 1.2.3".
        tag: The tag of the release; empty for a rehearsal.

    Raises:
        SystemExit: If the version is not in the changelog; if it is not the tag's, or has no date, though there is a tag.
    """
    title = rf"(?m)^(Unreleased|\d{{4}}-\d\d-\d\d) / {re.escape(version)}\n-+\n"
    _, *found = re.split(title, changelog)
    if not found:
        sys.exit(f"CHANGELOG.rst has no section of {version}")
    date, section = found
    if tag and (tag != f"v{version}" or date == "Unreleased"):
        sys.exit(f"the tag is {tag}, the version {version}, and its section {date}")
    section = re.split(r"(?m)^.*\n-+$", section)[0].strip()
    return re.sub(r"`([^`<]+) <([^>]+)>`_", r"[\1](\2)", section)


def run_snippets(page: str) -> None:
    """Run the Python of a page, block after block, and compare what each prints with the block of output after it.

    Raises:
        SystemExit: If a block prints something else; numbers of times and tokens may differ.
    """
    blocks = re.findall(r"\.\. code-block:: (\w+)\n\n((?:   .*\n|\n)+)", page)
    names: dict[str, Any] = {"__name__": "readme"}
    for (kind, text), (next_kind, wanted) in pairwise([*blocks, ("", "")]):
        if kind != "python":
            continue
        with redirect_stdout(io.StringIO()) as said:
            exec(dedent(text), names)
        shown, output = (re.sub(r"\d{9,}", "N", each) for each in (said.getvalue(), dedent(wanted)))
        if next_kind == "output" and shown.strip() != output.strip():
            sys.exit(f"{text}\nprints\n{shown}\nand not\n{output}")


if __name__ == "__main__":
    if sys.argv[1] == "notes":
        text = (ROOT / "CHANGELOG.rst").read_text(encoding="utf-8")
        print(notes(pynamodb_mutex.__version__, text, *sys.argv[2:]))
    else:
        # the README's first snippet stands above the engine that it starts
        with embedded_dynamodb() as engine, use(engine):
            run_snippets((ROOT / "README.rst").read_text(encoding="utf-8"))
        print(f"README: {sys.version.split()[0]}, {pynamodb_mutex.__file__}")
