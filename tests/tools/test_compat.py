"""The comparison with PynamoDB's own tests: what it runs, what it takes for a difference, what it says."""

import subprocess
from contextlib import nullcontext

import pynamodb
import pytest

import dev.compat.__main__ as command
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
SAME, OTHER = "tests/test_rows.py::test_same", "tests/test_rows.py::test_other"


def test_mixin_is_on_every_model_and_only_documented_tests_may_differ(
    tmp_path, monkeypatch, capsys
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
    no_engine = Engine("none", "http://127.0.0.1:9")
    monkeypatch.setattr(command, "dynamodb_local", lambda: nullcontext(no_engine))
    monkeypatch.setattr(command, "PAGE", page)
    page.write_text(f"One differs:\n\n- ``{OTHER}``\n")
    # one of the two tests notices the mixin
    folder = str(tmp_path / "kept")
    assert command.main(["--repository", str(repository), "--folder", folder]) == 0
    printed = capsys.readouterr().out
    assert "1 differ" in printed
    assert f"{OTHER}: passed -> failed\n" in printed
    monkeypatch.setattr(command, "fetched", lambda *_: tmp_path)
    for documented in ("", f"``{SAME}``"):
        runs = iter([{SAME: "passed", OTHER: "passed"}, {SAME: "passed", OTHER: "failed"}])
        monkeypatch.setattr(command, "outcomes", lambda *_, runs=runs: next(runs))
        page.write_text(documented)
        assert command.main([]) == 1
        assert f"{OTHER}: passed -> failed, NOT DOCUMENTED" in capsys.readouterr().out


def test_page_in_the_documentation_names_tests():
    named = command.names_in(command.PAGE.read_text(encoding="utf-8"))
    assert "tests/test_model.py::test_delete[True]" in named
    assert len(named) > 5


def test_what_only_one_run_has_differs():
    plain = {"a": "passed", "b": "failed", "c": "passed", "d": "skipped"}
    with_mixin = {"a": "passed", "b": "failed", "c": "failed", "e": "passed"}
    assert command.differing(plain, with_mixin) == {"c", "d", "e"}
    said = command.table(plain, with_mixin, {"a", "c"})
    assert "c: passed -> failed\n" in said
    assert "d: skipped -> missing, NOT DOCUMENTED" in said
    assert "a: documented, and does not differ" in said


def test_repository_that_cannot_be_had_says_why(tmp_path, capsys):
    nowhere = str(tmp_path / "nowhere")
    with pytest.raises(command.CannotRunError, match="nowhere"):
        command.fetched(nowhere, tmp_path, "6.1.0")
    assert command.main(["--repository", nowhere, "--folder", str(tmp_path)]) == 2
    assert "dev.compat: git clone" in capsys.readouterr().err
