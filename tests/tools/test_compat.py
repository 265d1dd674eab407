"""The comparison with PynamoDB's own tests: what it runs, what it takes for a difference, what it says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pynamodb
import pytest

import dev.compat.__main__ as command
from dev.compat.__main__ import PAGE, CannotRunError, differing, fetched, main, names_in, table
from pynamodb_mutex.testing import Engine

TESTS = """
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model
from pynamodb_mutex import RowLockMixin

class Base(Model):
    pk = UnicodeAttribute(hash_key=True)

class Row(Base):
    pass

def test_same():
    assert Row("a").serialize() == {"pk": {"S": "a"}}

def test_other():
    assert Row.__mro__[1] is Base
    assert not issubclass(Row, RowLockMixin)
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a test that the mixin changes, and one that it does not."""
    folder = tmp_path / "repository"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "__init__.py").touch()
    (folder / "tests" / "test_rows.py").write_text(TESTS)
    by = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (
        ["init", "--quiet"],
        ["add", "."],
        [*by, "commit", "--quiet", "-m", "-"],
        ["tag", pynamodb.__version__],
    ):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


@contextmanager
def no_engine() -> Iterator[Engine]:
    """These tests need none."""
    yield Engine("none", "http://127.0.0.1:9")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page in place of that of the documentation, which names one test."""
    page = tmp_path / "page.rst"
    page.write_text("One differs:\n\n- ``tests/test_rows.py::test_other``\n")
    monkeypatch.setattr(command, "PAGE", page)
    return page


def test_mixin_is_on_every_model_of_the_tests(
    repository: Path,
    page: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "dynamodb_local", no_engine)
    folder = page.parent / "kept"
    assert main(["--repository", str(repository), "--folder", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "1 differ" in printed
    assert "tests/test_rows.py::test_other: passed -> failed\n" in printed
    assert "NOT DOCUMENTED" not in printed


@pytest.mark.parametrize("documented", ["", "``tests/test_rows.py::test_same``"])
def test_other_differences_than_the_documented_fail(
    page: Path, documented: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same, other = "tests/test_rows.py::test_same", "tests/test_rows.py::test_other"
    runs = iter([{same: "passed", other: "passed"}, {same: "passed", other: "failed"}])
    monkeypatch.setattr(command, "fetched", lambda *_: page.parent)
    monkeypatch.setattr(command, "outcomes", lambda *_: next(runs))
    page.write_text(documented)
    assert main([]) == 1
    assert f"{other}: passed -> failed, NOT DOCUMENTED" in capsys.readouterr().out


def test_page_in_the_documentation_names_tests() -> None:
    named = names_in(PAGE.read_text(encoding="utf-8"))
    assert "tests/test_model.py::test_delete[True]" in named
    assert len(named) > 5


def test_what_only_one_run_has_differs() -> None:
    plain = {"a": "passed", "b": "failed", "c": "passed", "d": "skipped"}
    with_mixin = {"a": "passed", "b": "failed", "c": "failed", "e": "passed"}
    assert differing(plain, with_mixin) == {"c", "d", "e"}
    said = table(plain, with_mixin, {"a", "c"})
    assert "c: passed -> failed\n" in said
    assert "d: skipped -> missing, NOT DOCUMENTED" in said
    assert "a: documented, and does not differ" in said


def test_repository_that_cannot_be_had_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(CannotRunError, match="nowhere"):
        fetched(nowhere, tmp_path, "6.1.0")
    assert main(["--repository", nowhere, "--folder", str(tmp_path)]) == 2
    assert "dev.compat: git clone" in capsys.readouterr().err
