"""What the documentation shows runs, and prints what it says.

A page's Python is run from top to bottom in one namespace; that of a page FOR_A_PROMPT is pasted into one.
``.. hidden: python`` is a comment to everyone but this file: set-up and assertions that readers need not see.
``.. code-block:: output`` is what the snippet above it prints. A snippet with ``def test_`` is a test module, and
pytest runs it. Other languages are parsed; what JSON says is ``shown`` to the Python below it. A block that
nothing here understands is a failure.

The examples in the docstrings of a class or function run likewise, below what ``api.rst`` begins with.

An output shows real values. Those that differ from run to run (times, ports, tokens) are compared by
their form alone, see ``comparable``; a line of three dots stands for lines left out.
"""

import ast
import builtins
import code
import configparser
import doctest
import io
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import symtable
import sys
import textwrap
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import boto3
import pytest
import yaml
from command_line import run_cli

from pynamodb_mutex import LockItem, OnceItem
from pynamodb_mutex._called_once import _functions
from pynamodb_mutex.cli._app import app
from pynamodb_mutex.cli._run import run
from pynamodb_mutex.testing import use

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.rst",
    *sorted(page for page in (ROOT / "docs").rglob("*.rst") if page.parent.name != "speed"),
]
FOR_A_PROMPT = [ROOT / "README.rst", ROOT / "docs" / "tutorial.rst"]
"""Pages that are run by pasting them into Python's prompt."""

_BLOCK = re.compile(
    r"(?m)^(?P<indent> *)\.\. (?:(?P<hidden>hidden: )|(?P<directive>[\w-]+):: ?)(?P<language>\S*)\n"
    r"(?: +:[\w-]+:.*\n)*(?: *\n)*"  # options
    r"(?=(?P<text>(?: *\n|(?P=indent) +\S.*\n)*))"
)
_CODE = {"code-block", "code", "sourcecode"}
_NOT_RUN = re.compile(
    r"(?m)^ *\.\. (literalinclude|doctest|testcode|parsed-literal|raw|highlight)::"
    r"|^ *>>>.*|^(?! *\.\. ).*:: *$"  # doctests, and literal blocks, which do not say what they are
)
_VARYING = {
    "<time>": r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC|[+-]\d\d:?\d\d)?|\b\d\d:\d\d:\d\d\b",
    "<id>": r"\b(?=[0-9a-f-]*\d)[0-9a-f]{8,}(-[0-9a-f]{4,})*\b",
    "<duration>": r"\b(\d+[dhm] \d+[hms]|\d+\.\d+s|\d+(\.\d+)? m?s)\b",
    "<number>": r"\b\d{5,}(\.\d+)?\b|\b\d+\.\d{3,}\b",
}


def comparable(text):
    """Replace values that differ from run to run by the names of their kinds."""
    for name, pattern in _VARYING.items():
        text = re.sub(pattern, name, text)
    return text


class Block(NamedTuple):
    where: str
    line: int  # of its first line of text, from 1
    language: str
    hidden: bool
    text: str


def blocks_of(page):
    written, blocks = page.read_text(encoding="utf-8"), []
    not_run = _NOT_RUN.search(written)
    assert not_run is None, f"{page}: {not_run[0]!r} is not run by this test"
    for found in _BLOCK.finditer(written):
        line = written.count("\n", 0, found.start("text")) + 1
        if found["directive"] in _CODE or found["hidden"]:
            text = textwrap.dedent(found["text"]).rstrip() + "\n"
            where = f"{page.relative_to(ROOT)}:{line}"
            blocks.append(Block(where, line, found["language"], bool(found["hidden"]), text))
    return blocks


# -- running -------------------------------------------------------------------------------------


class Prompt(code.InteractiveConsole):
    """Python's prompt as it is up to 3.12: it reads line by line, and a blank line ends a block."""

    def paste(self, text):
        for line in [*text.splitlines(), ""]:
            unfinished = self.push(line)
        assert not unfinished, text

    def write(self, data):
        raise AssertionError(data)


class Page:
    """One page's namespace, and what its last snippet printed. Its methods run_... take a block of a language."""

    def __init__(self, path, tmp_path):
        self.path, self.tmp_path = path, tmp_path
        self.namespace = {"__name__": f"docs_{path.stem}"}
        self.prompt = Prompt(self.namespace) if path in FOR_A_PROMPT else None
        self.printed = ""
        self.ran = 0
        self.tests = []

    def run(self):
        try:
            for block in blocks_of(self.path):
                step = getattr(self, f"run_{block.language}", None)
                assert step is not None, f"{block.where}: what is {block.language!r}?"
                try:
                    step(block)
                except Exception as error:
                    kind = type(error).__name__
                    raise AssertionError(f"{block.where}: {kind}: {error}") from error
        finally:
            # what a broken page leaves open must not be closed in the middle of another test
            for value in self.namespace.values():
                if isinstance(value, ExitStack):
                    value.close()
        if self.tests:
            self.run_tests()
        # counted by other means, so that a snippet cannot slip through the parser
        written = self.path.read_text(encoding="utf-8")
        assert self.ran == len(re.findall(r"(?m):: *python\d? *$|^ *\.\. hidden: ", written))

    def run_python(self, block):
        self.ran += 1
        if re.search(r"(?m)^def test_", block.text):
            self.tests.append(block)
            self.printed = ""
            return
        if "aws_cdk" in block.text:  # it needs Node.js; the tests of ``template`` read it
            ast.parse(block.text)
            return
        with redirect_stdout(io.StringIO()) as output, pytest.MonkeyPatch.context() as patch:
            if self.prompt is None:
                # blank lines in front: tracebacks then show the line in the page
                source = "\n" * (block.line - 1) + block.text
                exec(compile(source, str(self.path), "exec", dont_inherit=True), self.namespace)
            else:
                patch.setattr(sys, "displayhook", lambda _: None)  # what a prompt shows of itself
                self.prompt.paste(block.text)
        if not block.hidden:
            self.printed = output.getvalue()

    def run_tests(self):
        """Run all test modules of the page in one process."""
        for block in self.tests:
            module = self.tmp_path / f"test_line_{block.line}.py"
            module.write_text(block.text, encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["--rootdir", str(self.tmp_path), str(self.tmp_path)]
        done = self.process(command, PYTEST_ADDOPTS="", PYTHONDONTWRITEBYTECODE="1")
        tests = sum(len(re.findall(r"(?m)^def test_", block.text)) for block in self.tests)
        assert f"\n{tests} passed in " in done.stdout, done.stdout + done.stderr

    def process(self, command, **environment):
        options = {"cwd": self.tmp_path, "stdin": subprocess.DEVNULL, "capture_output": True}
        env = os.environ | environment
        return subprocess.run(command, **options, env=env, check=False, text=True)

    def run_output(self, block):
        # dots within a line would hide values that a reader wants to see
        assert not re.search(r"\S.*\.\.\.|\.\.\..*\S", block.text), "dots within a line"
        expected, printed = comparable(block.text), comparable(self.printed)
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        fits = doctest.OutputChecker().check_output(expected, printed, flags)
        assert fits, f"shown:\n{expected}\nprinted:\n{printed}"
        self.printed = ""  # each output belongs to one snippet

    def run_yaml(self, block):
        assert yaml.safe_load(block.text)

    def run_json(self, block):
        self.namespace["shown"] = json.loads(block.text)
        assert self.namespace["shown"]

    def run_terraform(self, block):
        """What a command prints; the command's own tests read that."""
        assert block.text == run_cli("template", "terraform").stdout

    def run_console(self, block):
        """Our command runs; of others what they name is there."""
        if re.search("(?m)^pynamodb-mutex ", block.text):
            if "| jq " in block.text and shutil.which("jq") is None:
                pytest.skip("needs jq")
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
            done = self.process(["bash", "-euc", block.text], PATH=path)
            assert done.returncode == 0, done.stderr
            self.printed = done.stdout
            return
        known = re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text())
        settings = configparser.ConfigParser()
        settings.read(ROOT / "setup.cfg", encoding="utf-8")
        for line in block.text.splitlines():
            if make := re.match(r"make (\w+)", line):
                assert make[1] in known, line
                continue
            package = r"'?pynamodb-mutex(?:\[(\w+)\])?'?"
            pip = re.fullmatch(f"pip install {package}(?: opentelemetry-sdk)?", line)
            assert pip is not None, f"{line}: a command this test knows nothing of"
            assert pip[1] in (None, *settings["options.extras_require"]), line

    def run_py(self, block):
        """Python for other libraries, which are not installed here."""
        ast.parse(block.text)
        theirs = (
            r"(?m)^from (python_dynamodb_lock|dynamodblock|dyndbmutex|aws_lambda_powertools"
            r"|fastmcp|strands|langgraph\.prebuilt)\b"  # tests/frameworks runs these three
        )
        assert re.search(theirs, block.text), "this could run"

    def run_text(self, block):
        """Drawings and the like; Python does not hide there."""
        with pytest.raises(SyntaxError):
            ast.parse(block.text)


@pytest.fixture
def embedded(embedded_engine):
    """The embedded engine in use, with no table of the default name on it."""
    with use(embedded_engine):
        client = boto3.client("dynamodb")

        def clean():
            # PynamoDB keeps a connection, also to an engine that has gone
            LockItem._connection = OnceItem._connection = None
            _functions.clear()  # each page is a program of its own
            # there may be more than one answer has room for
            for page in client.get_paginator("list_tables").paginate():
                for table in page["TableNames"]:
                    if not table.startswith("locks-"):  # those of conftest's
                        client.update_table(TableName=table, DeletionProtectionEnabled=False)
                        client.delete_table(TableName=table)

        clean()
        level = logging.getLogger().level
        yield
        logging.getLogger().setLevel(level)  # a worker of Celery changes it
        clean()


each_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)


@each_page
def test_page_runs(path, tmp_path, embedded):
    Page(path, tmp_path).run()


def names_of(source):
    """Return the names that Python binds, in whatever scope, and those that it uses."""
    binds, uses = set(dir(builtins)) | {"__name__", "__class__"}, set()
    scopes = [symtable.symtable(source, "page", "exec")]
    for scope in scopes:
        scopes += scope.get_children()
        for name in scope.get_symbols():
            is_bound = name.is_assigned() or name.is_imported() or name.is_parameter()
            (binds if is_bound else uses).add(name.get_name())
    return binds, uses


@each_page
def test_visible_snippets_need_no_hidden_name(path):
    """A reader who pastes a page's snippets in order has all the names that they use."""
    known = set()
    for block in blocks_of(path):
        assert not (block.hidden and path in FOR_A_PROMPT), block.where
        if block.language == "python" and not block.hidden:
            binds, uses = names_of(block.text)
            missing = uses - binds - known
            assert missing == set(), f"{block.where}: {', '.join(sorted(missing))}"
            known |= binds


def test_name_that_is_missing_is_noticed():
    binds, uses = names_of("import a.b, c as d\nfor e in d(a): f = lambda g: g + h + len(e)")
    assert uses - binds == {"h"}
    assert {"a", "d", "e", "f", "g"} <= binds


def test_values_that_vary_are_compared_by_their_form():
    first = "held by a since 2026-11-23 10:00 UTC, 12 s, token 1763895600123, 3f2a9c4be1d04a5f, port 40219"
    other = "held by a since 2027-01-02 11:59 UTC, 0.5 s, token 1763899999999, 00ff9c4be1d04a5f, port 51000"
    assert comparable(first) == comparable(other)
    assert comparable("held by a, 80 of 100") != comparable("held by a, 90 of 100")
    assert comparable("a deadbeef") == "a deadbeef"


def test_readme_starts_with_short_examples():
    """The part that the documentation begins with, too: a lock and once, how to install it, an engine, a lock."""
    overview = (ROOT / "README.rst").read_text("utf-8").split(".. end of the overview")[0]
    length = overview.count("\n")
    blocks = [block for block in blocks_of(ROOT / "README.rst") if block.line <= length]
    languages = [block.language for block in blocks if block.language != "output"]
    assert languages == ["python", "console", "python", "python"]
    assert blocks[0].line <= 10
    assert re.search("(?s)Mutex.*@once", blocks[0].text)
    assert max(len(block.text.splitlines()) for block in blocks) <= 20
    assert length <= 100


def test_readme_has_the_figures_of_the_evidence():
    root = Path(__file__).parents[2]
    readme, proof = (
        " ".join((root / name).read_text().split()) for name in ("README.rst", "docs/proof.rst")
    )
    summary = re.search(
        r"([\d,]+) random schedules of faults, with ([\d,]+) acquisitions in (\d+) hours", proof
    )
    schedules, acquisitions, hours = summary.groups()
    assert f"In {hours} hours of virtual time, in which {schedules} schedules" in readme
    assert f"{acquisitions} locks were acquired" in readme


def test_contributing_shows_a_test_as_it_is():
    shown = (
        (ROOT / "CONTRIBUTING.rst").read_text("utf-8").partition(".. code-block:: python\n\n")[2]
    )
    shown = textwrap.dedent(re.split(r"(?m)^(?=\S)", shown)[0])
    tests = (ROOT / "tests/faults/test_repeated_requests.py").read_text("utf-8")
    assert shown.startswith("def test_")
    assert shown in tests


def test_broken_page_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "Makefile").write_text("test:\n")
    (tmp_path / "setup.cfg").write_text("[options.extras_require]\n")
    page = tmp_path / "page.rst"
    for text, message in (
        (".. code-block:: python\n\n   1 / 0\n", "division by zero"),
        (".. code-block:: python\n\n   print(1)\n\n.. code-block:: output\n\n   2\n", "printed:"),
        (".. code-block:: ruby\n\n   puts 1\n", "what is 'ruby'"),
        (".. code-block::\n\n   print(1)\n", "what is ''"),
        (".. code-block:: text\n\n   x = 1\n", "DID NOT RAISE"),
        (".. code-block:: py\n\n   1 / 0\n", "this could run"),
        (".. code-block:: console\n\n   make love\n", "make love"),
        (".. code-block:: console\n\n   pynamodb-mutex --nothing\n", "No such option"),
        ("* nested\n\n  .. code-block:: python\n\n     1 / 0\n", "division by zero"),
        (".. literalinclude:: x.py\n", "not run"),
        (">>> 1\n1\n", "not run"),
        ("Thus::\n\n   1 / 0\n", "not run"),
        (".. code-block:: json\n\n   {'a': 1}\n", "JSONDecodeError"),
        (".. code-block:: terraform\n\n   a = [\n", "assert 'a = ["),
        (".. code-block:: python\n\n   def test_x(): assert 0\n", "1 failed"),
        # where the parser does not see it
        (".. code-block::  python\n\n   1 / 0\n", "assert 0 == 1"),
    ):
        page.write_text(text)
        with pytest.raises((AssertionError, pytest.fail.Exception), match=re.escape(message)):
            Page(page, tmp_path).run()


# -- docstrings --------------------------------------------------------------------------------------

_EXAMPLE = re.compile(r"(?m)^Example::\n\n((?: {4}.*(?:\n|$)|\n)+)")
MODULES = [path.relative_to(ROOT) for path in (ROOT / "pynamodb_mutex").rglob("*.py")]


def examples_in(module):
    """Yield the classes and functions of a module whose docstrings have examples, with these; first the module itself."""
    tree = ast.parse((ROOT / module).read_text("utf-8"))
    kinds = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    each = [(module.stem, [tree])]
    each += [(top.name, ast.walk(top)) for top in tree.body if isinstance(top, kinds)]
    for name, nodes in each:
        docstrings = [
            ast.get_docstring(n) or "" for n in nodes if isinstance(n, (*kinds, ast.Module))
        ]
        found = [textwrap.dedent(e) for text in docstrings for e in _EXAMPLE.findall(text)]
        if found:
            yield f"{module}: {name}", found


EXAMPLES = {name: found for module in MODULES for name, found in examples_in(module)}


def test_examples_are_found():
    """Also those of 25 names at least."""
    written = sum((ROOT / module).read_text("utf-8").count("Example::") for module in MODULES)
    assert sum(map(len, EXAMPLES.values())) == written >= 25


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples_in_docstrings_run(name, embedded):
    beginning = [block.text for block in blocks_of(ROOT / "docs" / "api.rst")]
    namespace, known = {"__name__": "docs_example"}, set()
    for text in beginning + EXAMPLES[name]:
        binds, uses = names_of(text)
        assert uses - binds - known == set(), text
        known |= binds
        with redirect_stdout(io.StringIO()):
            exec(compile(text, name, "exec", dont_inherit=True), namespace)
    # A receiver of a signal and these globals refer to each other: it would print in tests to come.
    namespace.clear()


# -- what manifests and crontabs run -----------------------------------------------------------------


def commands_of(part):
    """Yield what a manifest says a container is to run."""
    members = part if isinstance(part, list) else []
    if isinstance(part, dict):
        members = part.values()
        first, more = ("entryPoint", "command") if "entryPoint" in part else ("command", "args")
        if first in part:
            yield [*part[first], *part.get(more, [])]
    for member in members:
        yield from commands_of(member)


def test_every_run_in_a_manifest_or_crontab_can_be_run():
    ran = []
    for block in (block for page in PAGES for block in blocks_of(page)):
        commands = []
        if block.language in {"yaml", "json"}:  # YAML has all of JSON
            commands = commands_of(yaml.safe_load(block.text))
        elif block.language == "text":
            runs = re.findall("pynamodb-mutex run (.*)", block.text)
            commands = [["pynamodb-mutex", "run", *shlex.split(arguments)] for arguments in runs]
        ran += [(block.where, c[2:]) for c in commands if c[:2] == ["pynamodb-mutex", "run"]]
    assert len(ran) >= 6
    for where, arguments in ran:
        # a command remembers its help option, as it was made by its first context
        with run.make_context("run", arguments, **app.context_settings) as context:
            assert context.params["command"], where
