"""How engines start and end, and how processes find them."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import boto3
import pytest
from processes import is_there
from tables import create_plain_table
from waits import until

from dev.dynamodb_local import LOCAL_VARIABLE, dynamodb_local, why_no_dynamodb_local
from dev.supervise import answers
from pynamodb_mutex.testing import Engine, EngineError, embedded_dynamodb, engines, environment, use

ROOT = Path(__file__).parents[2]
NO_LOCAL = why_no_dynamodb_local()
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
started_here = pytest.mark.skipif(
    NO_LOCAL is not None or os.environ.get(LOCAL_VARIABLE, "").startswith("http"),
    reason=NO_LOCAL or "DynamoDB Local runs elsewhere",
)
both = pytest.mark.parametrize(
    "start", [embedded_dynamodb, pytest.param(dynamodb_local, marks=started_here)]
)


def does_not_start(message, start, *port):
    with pytest.raises(EngineError, match=message), start(*port):
        pass


# How engines start and end

OWNER = """
import os, sys, time
from dev.dynamodb_local import dynamodb_local
from pynamodb_mutex.testing import embedded_dynamodb
with globals()[sys.argv[1]]() as engine:
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
