"""Where DynamoDB Local comes from, and how it starts."""

import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from dev import dynamodb_local as local
from dev import supervise
from dev.dynamodb_local import dynamodb_local, why_no_dynamodb_local
from pynamodb_mutex.testing import Engine, EngineError

NO_LOCAL = why_no_dynamodb_local()
started_here = pytest.mark.skipif(
    NO_LOCAL is not None or os.environ.get(local.LOCAL_VARIABLE, "").startswith("http"),
    reason=NO_LOCAL or "DynamoDB Local runs elsewhere",
)


def does_not_start(message):
    with pytest.raises(EngineError, match=message), dynamodb_local():
        pass


@started_here
def test_local_tries_another_port(monkeypatch):
    original = local._reserved
    with socket.socket() as taken:
        taken.bind(("", 0))
        ports = [taken.getsockname()[1]]

        @contextmanager
        def reserved(port):
            with original(port) as free:
                yield ports.pop() if ports else free

        monkeypatch.setattr(local, "_reserved", reserved)
        with dynamodb_local() as engine:
            assert f":{taken.getsockname()[1]}" not in engine.endpoint_url
    assert not ports


@started_here
def test_local_that_does_not_start_shows_its_output(monkeypatch, tmp_path):
    (tmp_path / "DynamoDBLocal.jar").touch()
    monkeypatch.setenv(local.LOCAL_VARIABLE, str(tmp_path))
    does_not_start("ServerRunner")


def test_server_is_killed_if_the_supervisor_is_ended_while_it_starts_it(monkeypatch):
    started = []

    def start(*_args, **_options):
        started.append(subprocess.Popen(["sleep", "60"]))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(supervise, "Popen", start)
    monkeypatch.setattr(supervise, "when_parent_ends", Mock())
    before = signal.getsignal(signal.SIGTERM)
    try:
        supervise.supervise("http://127.0.0.1:9", "server")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].returncode == -signal.SIGKILL


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """A PATH of its own, to which a test adds programs; no jars anywhere."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def add(name, script):
        program = folder / name
        program.write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
        program.chmod(0o755)
        local._java_version.cache_clear()

    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(local.LOCAL_VARIABLE, raising=False)
    local._java_version.cache_clear()
    yield add
    local._java_version.cache_clear()


JAVA_17 = """echo 'openjdk version "17.0.15" 2025-04-15' >&2"""
MAVEN = """
for argument; do case $argument in -DoutputDirectory=*) jars=${argument#*=};; esac; done
mkdir "$jars" && touch "$jars/DynamoDBLocal-3.jar"
"""
TWO_AT_ONCE = """
echo run >> "$0.log"
until [ "$(wc -l < "$0.log")" -ge 2 ]; do sleep 0.01; done
"""


def test_local_needs_java_and_jars_or_maven(programs, monkeypatch, tmp_path):
    for java, reason in (
        (None, "there is no Java on the PATH"),
        ("echo no runtime >&2; exit 1", "there is no Java on the PATH"),
        ("""echo 'java version "1.8.0_392"' >&2""", "Java 8 is too old on the PATH"),
        (JAVA_17, "no mvn"),
    ):
        if java:
            programs("java", java)
        assert reason in why_no_dynamodb_local()
        does_not_start(reason)
    monkeypatch.setenv(local.LOCAL_VARIABLE, str(tmp_path))
    assert "neither a URL nor a directory" in why_no_dynamodb_local()
    (tmp_path / "DynamoDBLocal.jar").touch()
    assert why_no_dynamodb_local() is None


def test_local_is_fetched_once(programs, tmp_path):
    """By two processes at once: both fetch, one folder stays, and none that is half full."""
    programs("java", JAVA_17)
    programs("mvn", TWO_AT_ONCE + MAVEN)
    assert why_no_dynamodb_local() is None
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: local.fetched_jars(), range(2))
    assert first == second == local.fetched_jars()
    assert [jar.name for jar in first.iterdir()] == ["DynamoDBLocal-3.jar"]
    assert list(first.parent.iterdir()) == [first]
    assert (tmp_path / "bin/mvn.log").read_text() == "run\nrun\n"


def test_local_that_cannot_be_fetched_or_kept(programs, monkeypatch):
    programs("java", JAVA_17)
    programs("mvn", "echo 'no such artifact'; exit 1")
    does_not_start("no such artifact")
    assert not local.jar_cache().exists()
    programs("mvn", MAVEN)
    monkeypatch.setattr(Path, "rename", Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):
        local.fetched_jars()


def test_local_may_run_elsewhere(programs, monkeypatch, embedded_engine):
    running = embedded_engine.endpoint_url
    monkeypatch.setenv(local.LOCAL_VARIABLE, running + "/")
    assert why_no_dynamodb_local() is None
    with dynamodb_local() as engine:
        assert engine == Engine("external", running, None)
    monkeypatch.setenv(local.LOCAL_VARIABLE, "http://127.0.0.1:9")
    does_not_start("nothing answers")
