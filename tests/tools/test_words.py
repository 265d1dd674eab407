"""The counter of words."""

import re

import pytest

from dev import words


@pytest.mark.parametrize(
    ("source", "prose"),
    [
        ("One\n===\n\nTwo ``three``.\n", "One Two ``three``."),
        (":nosearch:\n\nOne :doc:`two`.\n:doc:`three` four\n", "One :doc:`two`. :doc:`three` four"),
        (".. _a label:\n\n.. index:: ! SIGTERM,\n   ! shutdown\n\nOne\n", "One"),
        (".. code-block:: python\n   :caption: no\n\n   x = 1  # two\n\n   y\n\nThree\n", "two Three"),
        (".. hidden: python\n\n   x = 1  # two\n\nThree\n", "Three"),
        ("* one\n\n  .. code-block:: output\n\n     two\n\n  three\n", "* one three"),
        (".. image:: a.svg\n   :alt: Two words\n      and more\n\nOne\n", "One"),
        (".. include:: a.txt\n   :end-before: x\n\nOne\n", "One"),
        (".. list-table:: Costs\n   :widths: 1 2\n\n   * - One\n     - 12\n     - 3.5 ms\n", ".. list-table:: Costs * - One - 3.5 ms"),
        ('.. csv-table::\n   :header-rows: 1\n\n   "One", "12", "1.5", "two 3"\n', '.. csv-table:: "One", , , "two 3"'),
        ("====  ====\none   12\n1     2 s\n====  ====\n", "one 2 s"),
        ("At 12 s, or 3.\n", "At 12 s, or 3."),
    ],
)  # fmt: skip
def test_prose_of_page(source, prose):
    assert words.prose_of_page(source).split() == prose.split()


def test_prose_of_article():
    page = (
        "<nav>no</nav><article><h1>One<a>¶</a></h1><p><code><span>two</span>.x</code></p>"
        "<pre>no <b>no</b></pre> three</article><p>no</p>"
    )
    assert words.prose_of_article(page).split() == ["One¶``two.x``", "three"]


def test_signature_of_the_reference_is_no_prose():
    page = '<article><dt class="sig py"><em>if</em> you</dt><dd>Wait.<dl><dt>If</dt></dl></dd></article>'
    assert words.prose_of_article(page) == "``if you``Wait.If"


def test_words():
    assert words.words("Take -- or `leave`_ * it = 3 ¶") == 5


@pytest.mark.parametrize(
    ("page", "group"),
    [
        ("once", "features"), ("concepts/order", "features"), ("howto/cron", "guides"), ("costs", "concepts"),
        ("concepts/lease_and_timeout", "concepts"), ("cli/once", "command line"), ("proof", "evidence"),
        ("proof/variants", "evidence"), ("README", words.OTHERS), ("upgrades", words.OTHERS),
    ],
)  # fmt: skip
def test_group_of_page(page, group):
    assert words.group_of(page) == group


def test_each_page_that_a_group_names_is_there():
    for _, patterns in words.GROUPS.values():
        for pattern in patterns.split():
            assert [*(words.ROOT / "docs").glob(f"{pattern}.rst")], pattern


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with pages of two groups, three words each, another page, and a reference of three words."""
    texts = {
        "README.rst": "one",
        "docs/api.rst": "not counted",
        "docs/api/lock.rst": "not counted",
        "docs/locks.rst": "one two three",
        "docs/cli/once.rst": "one",
        "docs/cli/run.rst": "two three",
        "build/docs/api.html": "<article>one</article>",
        "build/docs/api/lock.html": "<article>two three</article>",
    }
    for path, text in texts.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(words, "ROOT", tmp_path)
    monkeypatch.setattr(words, "API_BUDGET", 10)
    monkeypatch.setattr(words, "LEAST_YOU", 0)
    groups = {"features": (10, "locks"), "command line": (10, "cli/*")}
    monkeypatch.setattr(words, "GROUPS", groups)
    return tmp_path


def test_sums_of_groups(project, capsys):
    assert words.main() == 0
    printed = re.findall(r"^ +([\d,]+) +(?:(\d+) +)?(\S.*)$", capsys.readouterr().out, re.MULTILINE)
    assert printed == [
        ("3", "", "locks"), ("3", "", "features"), ("1", "", "cli/once"), ("2", "", "cli/run"),
        ("3", "", "command line"),
        ("1", "", "README"), ("1", "", "start and others"),
        ("3", "10", "features: 30%"), ("3", "10", "command line: 30%"), ("1", "", "start and others"),
        ("3", "10", "API as rendered: 30%"), ("10", "", "all"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "most", "group"),
    [
        ("docs/locks.rst", 11, "features"),
        ("docs/cli/run.rst", 10, "command line"),
        ("build/docs/api/lock.html", 10, "API as rendered"),
    ],
)
def test_group_over_110_percent_of_its_budget_is_an_error(project, capsys, path, most, group):
    page = project / path
    page.write_text("<article>" + "word " * most)
    assert words.main() == 0
    page.write_text("<article>" + "word " * (most + 1))
    assert words.main() == 1
    assert capsys.readouterr().err == f"over 110% of the budget: {group}\n"


PLAIN = "Your process dies, and DynamoDB keeps the row. You wait for it. " * 40


@pytest.mark.parametrize(
    ("page", "wrong"),
    [
        (PLAIN, []),
        # a literal, a role and a comment speak to nobody
        (PLAIN.replace("You", "``you``").replace("your", ":doc:`you`"), ["you"]),
        (PLAIN + "Whoever has that of those waits. " * 3, ["pro-forms", "page"]),
        (PLAIN + "You wait until it ends. " * 10, []),
        (PLAIN + "You wait until it ends. " * 11, ["subordinators"]),
    ],
)
def test_manual_that_does_not_speak_plainly_is_refused(page, wrong, capsys):
    assert words.unplain("a manual", {"page": page, "short": "Those."}) == wrong
    assert "a manual, in 1,000 words" in capsys.readouterr().out


def test_reference_that_does_not_speak_plainly_is_refused(project, capsys):
    page = project / "build/docs/api/lock.html"
    page.write_text("<article><code>whoever</code> waits</article>")
    assert words.main() == 0
    page.write_text("<article>whoever waits</article>")
    assert words.main() == 1
    assert capsys.readouterr().err == "not plain: pro-forms\n"
