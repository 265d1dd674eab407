"""The counter of code lines."""

import re

import pytest

from dev import weight


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("", 0),
        ('"""Of a module,\n\nin lines."""\n\n# a comment\nx = 1  # and another\n"""Of an attribute."""\n', 1),
        ('class A:\n    """Of a class."""\n\n    def f(self):\n        """Of a function."""\n', 2),
        ("x = [\n    1,\n\n    # a comment\n    2,\n]\n", 4),
        ('x = """a\n\nb"""\n', 3),
    ],
)  # fmt: skip
def test_lines_with_code_count(source, lines):
    assert weight.code_lines(source) == lines


def test_folders_add_up(tmp_path, monkeypatch, capsys):
    for path in ("pynamodb_mutex/a", "pynamodb_mutex/b/c/d", "pynamodb_mutex/cli/e", "tests/f", "dev/g"):  # fmt: skip
        module = tmp_path / f"{path}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("x = 1\n")
    monkeypatch.setattr(weight, "ROOT", tmp_path)
    weight.main()
    printed = re.findall(r"^ +(\d) {2}(.*)$", capsys.readouterr().out, re.MULTILINE)
    assert printed == [
        ("1", "pynamodb_mutex/"), ("1", "pynamodb_mutex/b"), ("1", "pynamodb_mutex/cli"), ("3", "pynamodb_mutex"),
        ("2", "pynamodb_mutex without cli, receivers, testing: the core"),
        ("1", "tests/"), ("1", "tests"), ("1", "dev/"), ("1", "dev"),
    ]  # fmt: skip
