"""The command line: see the package."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pynamodb

from dev import compat
from dev import dynamodb_local as local
from dev.compat.plugin import FORMS, LOCK_MODEL
from dev.dynamodb_local import dynamodb_local
from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import EngineError, environment, use

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
DIFFERING = ROOT / "docs" / "compatibility.csv"
REPOSITORY = "https://github.com/pynamodb/PynamoDB"

Outcomes = dict[str, str]
"""Outcomes of tests, by their names."""


class CannotRunError(Exception):
    """What is needed is not there."""


def main(arguments: list[str] | None = None) -> int:
    """Compare, print a table for each form of row locks; return the exit code."""
    parser = argparse.ArgumentParser("dev.compat", description=compat.__doc__)
    parser.add_argument("--repository", default=REPOSITORY, help="where git finds PynamoDB")
    folder = ROOT / "build" / "compat"
    parser.add_argument("--folder", type=Path, default=folder, help="where its tests are kept")
    parser.add_argument("tests", nargs="*", default=["tests"], help="files of its tests")
    options = parser.parse_args(arguments)
    # one of the tests expects that tables of different regions are separate
    local.LOCAL_OPTIONS.remove("-sharedDb")
    try:
        checkout = fetched(options.repository, options.folder.resolve(), pynamodb.__version__)
        plain, *others = (outcomes(checkout, options.tests, form) for form in (None, *FORMS))
    except (CannotRunError, EngineError) as error:
        print(f"dev.compat: {error}", file=sys.stderr)
        return 2
    finally:
        local.LOCAL_OPTIONS.append("-sharedDb")
    written = DIFFERING.read_text(encoding="utf-8")
    print(f"PynamoDB {pynamodb.__version__}")
    failed = False
    for form, found in zip(FORMS, others, strict=True):
        documented = names_in(written, form)
        print(f"\n{table(form, plain, found, documented)}")
        failed |= differing(plain, found) != documented
    return int(failed)


def fetched(repository: str, folder: Path, version: str) -> Path:
    """Return a checkout of a version of PynamoDB: the tests are not all in what PyPI has.

    Raises:
        CannotRunError: If git cannot fetch it.
    """
    checkout = folder / f"PynamoDB-{version}"
    if checkout.exists():
        return checkout
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        clone = f"clone --quiet --no-checkout --depth 1 --branch {version}"
        git(*clone.split(), repository, unfinished)
        # without the package, or its tests would try that in place of the installed one
        git("-C", unfinished, "checkout", "--quiet", "HEAD", "--", "tests")
        Path(unfinished).rename(checkout)
        Path(unfinished).mkdir()
    return checkout


def git(*arguments: str) -> None:
    """Run git.

    Raises:
        CannotRunError: If it fails.
    """
    try:
        subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    except OSError as error:
        raise CannotRunError(f"git: {error}") from None
    except subprocess.CalledProcessError as error:
        raise CannotRunError(f"git {' '.join(arguments)}: {error.stderr.strip()}") from None


def outcomes(checkout: Path, tests: list[str], form: str | None) -> Outcomes:
    """Run tests, on a DynamoDB Local of their own; return the outcome of each.

    Args:
        checkout: Folder with PynamoDB's tests.
        tests: Those to run.
        form: One of `FORMS`; None for models without row locks.

    Raises:
        CannotRunError: If they could not be run.
    """
    with dynamodb_local() as engine, tempfile.TemporaryDirectory() as folder:
        if form == LOCK_MODEL:
            with use(engine):
                LockItem.create_table()
        result = Path(folder) / "outcomes.json"
        env = environment(engine) | {
            "PYNAMODB_INTEGRATION_TEST_DDB_URL": engine.endpoint_url,
            "PYTHONPATH": str(ROOT),
        }
        # in place of what both projects have in their configuration, and without our own plugin
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(checkout)]
        command += ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "no:pynamodb_mutex"]
        command += ["-p", "dev.compat.plugin", "--outcomes", str(result), *tests]
        command += ["--locks", form] if form else []
        ended = subprocess.run(
            command, cwd=checkout, env=env, check=False, stdout=subprocess.PIPE, text=True
        )
        if not result.exists() or ended.returncode not in {0, 1}:
            raise CannotRunError(f"pytest ended with {ended.returncode}:\n{ended.stdout}")
        (checkout.parent / f"{form or 'plain'}.txt").write_text(ended.stdout)
        found: Outcomes = json.loads(result.read_text())
        return found


def names_in(text: str, form: str) -> set[str]:
    """Return the tests that a text names: all that differ in one form of row locks.

    Those that differ in one form only have it next to their name, as in "(``lock_model`` only)".
    """
    named = re.findall(r"``(tests/\S+?::\S+?)``(?: \(``(\w+)`` only\))?", text)
    return {name for name, only in named if only in {"", form}}


def differing(plain: Mapping[str, str], found: Mapping[str, str]) -> set[str]:
    """Return the tests whose outcomes differ, and those that only one run has."""
    return {name for name in {*plain, *found} if plain.get(name) != found.get(name)}


def table(form: str, plain: Outcomes, found: Outcomes, documented: set[str]) -> str:
    """Say how many tests passed, and which outcomes differ."""
    runs = {"plain": plain, form: found}
    counts = {name: Counter(run.values()) for name, run in runs.items()}
    lines = ["  ".join([" " * 10, *(f"{name:>14}" for name in runs)])]
    for outcome in ("passed", "failed", "skipped"):
        numbers = (f"{counts[name][outcome]:>14}" for name in runs)
        lines.append("  ".join([f"{outcome:10}", *numbers]))
    differs = differing(plain, found)
    lines.append(f"\n{len(differs)} differ:")
    for name in sorted(differs | documented):
        if name not in differs:
            said = "documented, and does not differ"
        else:
            said = f"{plain.get(name, 'missing')} -> {found.get(name, 'missing')}"
            said += "" if name in documented else ", NOT DOCUMENTED"
        lines.append(f"  {name}: {said}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
