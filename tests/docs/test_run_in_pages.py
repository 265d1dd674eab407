"""What pages show of ``pynamodb-mutex run`` in manifests and crontabs is right usage."""

from __future__ import annotations

import json
import shlex

import pytest
import yaml

pytest.importorskip("click")
pytest.importorskip("rich")

from test_docs import PAGES, blocks_of

from pynamodb_mutex.cli._run import run


def containers(part):
    """Yield what a manifest says a container is to run."""
    if isinstance(part, list):
        for member in part:
            yield from containers(member)
    elif isinstance(part, dict):
        first, more = ("entryPoint", "command") if "entryPoint" in part else ("command", "args")
        if first in part:
            yield [*part[first], *part.get(more, [])]
        for member in part.values():
            yield from containers(member)


def shown():
    readers = {"yaml": yaml.safe_load, "json": json.loads}
    for block in (block for page in PAGES for block in blocks_of(page)):
        if block.language in readers:
            for command in containers(readers[block.language](block.text)):
                yield block.where, command
        elif block.language == "text":
            for line in block.text.splitlines():
                _, found, rest = line.partition("pynamodb-mutex run ")
                if found:
                    yield block.where, ["pynamodb-mutex", "run", *shlex.split(rest)]


def test_every_run_on_a_page_can_be_run():
    ran = [
        (where, command) for where, command in shown() if command[:2] == ["pynamodb-mutex", "run"]
    ]
    assert len(ran) >= 6
    for where, (_, _, *arguments) in ran:
        with run.make_context("run", arguments) as context:
            assert context.params["command"], where
