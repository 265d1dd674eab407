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
    assert len(weight.code_lines(source)) == lines


def test_imports_can_be_left_out_wherever_they_stand():
    source = "import a\nif TYPE_CHECKING:\n    from b import (\n        c,\n    )\ndef f():\n    from d import e\n    return e\n"
    assert weight.code_lines(source) == {1, 2, 3, 4, 5, 6, 7, 8}
    assert weight.code_lines(source, imports=False) == {2, 6, 8}


def test_folders_add_up(tmp_path, monkeypatch, capsys):
    for path in ("pynamodb_mutex/_lock/a", "pynamodb_mutex/_lock/b/c", "pynamodb_mutex/cli/d", "tests/e", "dev/f"):  # fmt: skip
        module = tmp_path / f"{path}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("import a\nx = 1\n")
    monkeypatch.setattr(weight, "ROOT", tmp_path)
    weight.main()
    printed = re.findall(r"^ +(\d) +(\d) {2}(.*)$", capsys.readouterr().out, re.MULTILINE)
    assert printed == [
        ("2", "1", "pynamodb_mutex/_lock/"), ("2", "1", "pynamodb_mutex/_lock/b"), ("4", "2", "pynamodb_mutex/_lock"),
        ("2", "1", "pynamodb_mutex/_lock, its folders: the heart"),
        ("4", "2", "pynamodb_mutex/_lock"), ("2", "1", "pynamodb_mutex/cli"), ("6", "3", "pynamodb_mutex"),
        ("4", "2", "pynamodb_mutex without cli, receivers, testing: the core"),
        ("2", "1", "tests/"), ("2", "1", "tests"), ("2", "1", "dev/"), ("2", "1", "dev"),
    ]  # fmt: skip
