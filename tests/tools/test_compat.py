"""The comparison with PynamoDB's own tests: what it runs, what it takes for a difference, what it says."""

import subprocess
from contextlib import nullcontext

import pynamodb
import pytest

import dev.compat.__main__ as command
from dev.compat.plugin import FORMS
from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import use

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

def test_table():
    assert not getattr(Row, "lock_model", None)
"""
SAME, OTHER, TABLE = (f"tests/test_rows.py::test_{name}" for name in ("same", "other", "table"))


def test_mixin_is_on_every_model_and_only_documented_tests_may_differ(
    embedded_engine, tmp_path, monkeypatch, capsys
):
    repository, page = tmp_path / "repository", tmp_path / "page.rst"
    (repository / "tests").mkdir(parents=True)
    (repository / "tests" / "__init__.py").touch()
    (repository / "tests" / "test_rows.py").write_text(TESTS)
    by = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    for arguments in (
        ["init", "--quiet"],
        ["add", "."],
        [*by, "commit", "--quiet", "-m", "-"],
        ["tag", pynamodb.__version__],
    ):
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    monkeypatch.setattr(command, "dynamodb_local", lambda: nullcontext(embedded_engine))
    monkeypatch.setattr(command, "DIFFERING", page)
    page.write_text(f"Some differ:\n\n- ``{OTHER}``\n- ``{TABLE}`` (``lock_model`` only)\n")
    # one of the tests notices the mixin, and another one where it keeps its locks
    folder = str(tmp_path / "kept")
    assert command.main(["--repository", str(repository), "--folder", folder]) == 0
    printed = capsys.readouterr().out
    assert ["1 differ:" in printed, "2 differ:" in printed] == [True, True]
    assert printed.count(f"{OTHER}: passed -> failed\n") == 2
    assert f"{TABLE}: passed -> failed\n" in printed
    with use(embedded_engine):
        LockItem.delete_table(wait=True)
    monkeypatch.setattr(command, "fetched", lambda *_: tmp_path)
    plain, differs = {SAME: "passed", OTHER: "passed"}, {SAME: "passed", OTHER: "failed"}
    monkeypatch.setattr(command, "outcomes", lambda *run: differs if run[-1] else plain)
    for name, only in (
        ("", ""),
        (SAME, ""),
        (OTHER, " (``mixin`` only)"),
        (OTHER, " (``lock_model`` only)"),
    ):
        page.write_text(f"``{name}``{only}")
        assert command.main([]) == 1
        assert f"{OTHER}: passed -> failed, NOT DOCUMENTED" in capsys.readouterr().out


def test_page_in_the_documentation_names_tests():
    page = command.DIFFERING.with_suffix(".rst").read_text(encoding="utf-8")
    written = command.DIFFERING.read_text(encoding="utf-8")
    mixin, lock_model = (command.names_in(written, form) for form in FORMS)
    assert "tests/test_model.py::test_delete[True]" in mixin < lock_model
    assert f"**{408 - len(mixin)}** pass with the mixin;" in page
    assert f"**{408 - len(lock_model)}** pass with the mixin and ``lock_model``" in page


def test_what_only_one_run_has_differs():
    plain = {"a": "passed", "b": "failed", "c": "passed", "d": "skipped"}
    with_mixin = {"a": "passed", "b": "failed", "c": "failed", "e": "passed"}
    assert command.differing(plain, with_mixin) == {"c", "d", "e"}
    said = command.table("mixin", plain, with_mixin, {"a", "c"})
    assert "c: passed -> failed\n" in said
    assert "d: skipped -> missing, NOT DOCUMENTED" in said
    assert "a: documented, and does not differ" in said


def test_repository_that_cannot_be_had_says_why(tmp_path, capsys):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(command.CannotRunError, match="nowhere"):
        command.fetched(nowhere, tmp_path, "6.1.0")
    assert command.main(["--repository", nowhere, "--folder", str(tmp_path)]) == 2
    assert "dev.compat: git clone" in capsys.readouterr().err
