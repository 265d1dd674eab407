"""How engines start and end, where they come from, and how processes find them."""

import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import Mock

import boto3
import pytest
from processes import is_there
from tables import create_plain_table
from waits import until

from pynamodb_mutex.testing import (
    Engine,
    EngineError,
    dynamodb_local,
    embedded_dynamodb,
    engines,
    environment,
    supervisor,
    use,
    why_no_dynamodb_local,
)
from pynamodb_mutex.testing.supervisor import answers

ROOT = Path(__file__).parents[2]
NO_LOCAL = why_no_dynamodb_local()
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
started_here = pytest.mark.skipif(
    NO_LOCAL is not None or os.environ.get(engines.LOCAL_VARIABLE, "").startswith("http"),
    reason=NO_LOCAL or "DynamoDB Local runs elsewhere",
)
both = pytest.mark.parametrize(
    "start", [embedded_dynamodb, pytest.param(dynamodb_local, marks=started_here)]
)


def does_not_start(message, start=dynamodb_local, *port):
    with pytest.raises(EngineError, match=message), start(*port):
        pass


# How engines start and end

OWNER = """
import os, sys, time
from pynamodb_mutex import testing
with getattr(testing, sys.argv[1])() as engine:
    if sys.argv[2] == "fork" and os.fork() == 0:
        os.close(1)
        time.sleep(300)
        os._exit(0)
    print(engine.pid, flush=True)
    time.sleep(60)
"""


@forks
@pytest.mark.parametrize("child", ["alone", "fork"])
@both
def test_engine_ends_when_its_owner_is_killed(start, child):
    """Also while a forked child of the owner keeps the pipe to the engine open."""
    command = [sys.executable, "-c", OWNER, start.__name__, child]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)
    pid = int(owner.stdout.readline())
    assert is_there(pid)
    owner.kill()
    until(lambda: not is_there(pid))
    with owner:
        if child == "fork":
            os.killpg(owner.pid, signal.SIGKILL)


@forks
@both
def test_engine_ends_with_its_block_and_not_with_a_forked_childs(start, monkeypatch, tmp_path):
    """And finds packages where we do, not in the working directory."""
    (tmp_path / "waitress.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    manager = start()
    with manager as engine:
        child = os.fork()
        if child == 0:
            manager.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert (is_there(engine.pid), answers(engine.endpoint_url)) == (True, True)
    assert (is_there(engine.pid), answers(engine.endpoint_url)) == (False, False)


@both
def test_port_that_is_taken(start):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        does_not_start("Address already in use", start, taken.getsockname()[1])


@started_here
def test_local_tries_another_port(monkeypatch):
    original = engines._reserved
    with socket.socket() as taken:
        taken.bind(("", 0))
        ports = [taken.getsockname()[1]]

        @contextmanager
        def reserved(port):
            with original(port) as free:
                yield ports.pop() if ports else free

        monkeypatch.setattr(engines, "_reserved", reserved)
        with dynamodb_local() as engine:
            assert f":{taken.getsockname()[1]}" not in engine.endpoint_url
    assert not ports


@started_here
def test_local_that_does_not_start_shows_its_output(monkeypatch, tmp_path):
    (tmp_path / "DynamoDBLocal.jar").touch()
    monkeypatch.setenv(engines.LOCAL_VARIABLE, str(tmp_path))
    does_not_start("ServerRunner")


def test_server_is_killed_if_the_supervisor_is_ended_while_it_starts_it(monkeypatch):
    started = []

    def start(*_args, **_options):
        started.append(subprocess.Popen(["sleep", "60"]))
        signal.raise_signal(signal.SIGTERM)
        return started[0]

    monkeypatch.setattr(supervisor, "Popen", start)
    monkeypatch.setattr(supervisor, "when_parent_ends", Mock())
    before = signal.getsignal(signal.SIGTERM)
    try:
        supervisor.supervise("http://127.0.0.1:9", "server")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert started[0].returncode == -signal.SIGKILL


def test_engine_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(engines, "_STOP_SECONDS", 0.1)
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    stubborn = f"{ignoring}; print('ready', flush=True); time.sleep(60)"
    with engines.run_server([sys.executable, "-c", stubborn]) as (process, line):
        assert line == "ready"
    assert process.returncode == -signal.SIGKILL


def test_embedded_names_what_is_missing(monkeypatch):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: name == "flask")
    does_not_start(r"moto and .*pip install 'pynamodb-mutex\[testing\]'", embedded_dynamodb)


# Where DynamoDB Local comes from


@pytest.fixture
def programs(monkeypatch, tmp_path):
    """A PATH of its own, to which a test adds programs; no jars anywhere."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def add(name, script):
        program = folder / name
        program.write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
        program.chmod(0o755)
        engines._java_version.cache_clear()

    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(engines.LOCAL_VARIABLE, raising=False)
    engines._java_version.cache_clear()
    yield add
    engines._java_version.cache_clear()


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
    monkeypatch.setenv(engines.LOCAL_VARIABLE, str(tmp_path))
    assert "neither a URL nor a directory" in why_no_dynamodb_local()
    (tmp_path / "DynamoDBLocal.jar").touch()
    assert why_no_dynamodb_local() is None


def test_local_is_fetched_once(programs, tmp_path):
    """By two processes at once: both fetch, one folder stays, and none that is half full."""
    programs("java", JAVA_17)
    programs("mvn", TWO_AT_ONCE + MAVEN)
    assert why_no_dynamodb_local() is None
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(lambda _: engines.fetched_jars(), range(2))
    assert first == second == engines.fetched_jars()
    assert [jar.name for jar in first.iterdir()] == ["DynamoDBLocal-3.jar"]
    assert list(first.parent.iterdir()) == [first]
    assert (tmp_path / "bin/mvn.log").read_text() == "run\nrun\n"


def test_local_that_cannot_be_fetched_or_kept(programs, monkeypatch):
    programs("java", JAVA_17)
    programs("mvn", "echo 'no such artifact'; exit 1")
    does_not_start("no such artifact")
    assert not engines.jar_cache().exists()
    programs("mvn", MAVEN)
    monkeypatch.setattr(Path, "rename", Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):
        engines.fetched_jars()


def test_local_may_run_elsewhere(programs, monkeypatch, embedded_engine):
    running = embedded_engine.endpoint_url
    monkeypatch.setenv(engines.LOCAL_VARIABLE, running + "/")
    assert why_no_dynamodb_local() is None
    with dynamodb_local() as engine:
        assert engine == Engine("external", running, None)
    monkeypatch.setenv(engines.LOCAL_VARIABLE, "http://127.0.0.1:9")
    does_not_start("nothing answers")


# How processes find the engine

ENGINE = Engine("external", "http://127.0.0.1:8000")


def test_environment_leads_nowhere_else_and_is_in_use_as_long_as_the_block(monkeypatch):
    for name in (
        "PROFILE",
        "SESSION_TOKEN",
        "IGNORE_CONFIGURED_ENDPOINT_URLS",
        "ROLE_ARN",
        "REGION",
    ):
        monkeypatch.setenv(f"AWS_{name}", "real")
    monkeypatch.setenv("NO_PROXY", "intranet")
    for name in ("no_proxy", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    found, before = environment(ENGINE), dict(os.environ)
    assert "real" not in found.values()
    assert found["AWS_REGION"] == found["AWS_DEFAULT_REGION"]
    assert found["AWS_ACCESS_KEY_ID"].isalnum()  # DynamoDB Local refuses others
    assert found["AWS_SECRET_ACCESS_KEY"]
    url, proxies = ENGINE.endpoint_url, {"NO_PROXY": "intranet,127.0.0.1", "no_proxy": "127.0.0.1"}
    expected = {"AWS_ENDPOINT_URL_DYNAMODB": url, "AWS_ENDPOINT_URL": url, **proxies}
    expected |= {"PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true"}
    assert found.items() >= expected.items()
    with use(ENGINE) as same:
        assert same is ENGINE
        assert dict(os.environ) == found
        monkeypatch.setenv("SET_MEANWHILE", "stays")
    assert dict(os.environ) == {**before, "SET_MEANWHILE": "stays"}


def test_embedded_engine_does_without_the_profile_that_the_environment_names(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "of nobody here")
    with embedded_dynamodb() as engine, use(engine):
        assert boto3.client("dynamodb").list_tables()["TableNames"] == []


def test_environment_is_enough_for_a_subprocess(monkeypatch, tmp_path, embedded_engine):
    table = "found-by-its-environment"
    with use(embedded_engine):
        client = boto3.client("dynamodb")
    create_plain_table(client, table, {"k": "S"})
    config = tmp_path / "config"
    config.write_text("[default]\nignore_configured_endpoint_urls = true\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    code = f"import boto3; boto3.client('dynamodb').describe_table(TableName='{table}')"
    command = [sys.executable, "-c", code]
    subprocess.run(command, env=environment(embedded_engine), capture_output=True, check=True)
    client.delete_table(TableName=table)
