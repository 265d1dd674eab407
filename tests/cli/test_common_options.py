"""Where the locks are, what the command line says when they are not there, and its other commands."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import types

import pytest
from cli import COMMAND, run_cli
from pynamodb.signals import pre_dynamodb_send

from pynamodb_mutex.cli import INTERRUPTED, main
from pynamodb_mutex.cli._app import app
from pynamodb_mutex.testing import environment, held_elsewhere

pytestmark = pytest.mark.real

COMMANDS = sorted(app.commands)


def failure(*args, **more):
    """Run a command that fails, and return the one line that it says."""
    done = run_cli(*args, **more)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    (line,) = done.stderr.splitlines()
    return line


def test_the_place_may_stand_before_or_after_the_command(table, engine):
    name = table.Meta.table_name
    with held_elsewhere("a"):
        for args in (("--table", name, "ls"), ("ls", "--table", name)):
            assert "\nelsewhere" not in run_cli(*args).stdout
            assert "a\telsewhere\t" in run_cli(*args).stdout
        # the later one counts
        assert "a\t" in run_cli("--table", "nothing", "ls", "--table", name).stdout
        env = {"PYNAMODB_MUTEX_REGION": "!"}
        assert "region_name '!' doesn't match" in run_cli("ls", env=env).stderr
        assert run_cli("--region", "us-east-1", "ls", env=env).exit_code == 0
        done = run_cli("--endpoint-url", engine.endpoint_url, "--region", "us-east-1", "ls")
        assert "a\t" in done.stdout


def test_a_missing_table_is_reported_with_what_makes_it(engine):
    for args in (("ls",), ("show", "a"), ("wait", "a"), ("watch",), ("release", "a")):
        line = failure("--table", "no-such-table", *args)
        assert line == (
            f"Error: there is no table no-such-table in us-east-1 at {engine.endpoint_url}: wrong region or "
            "profile? If not, pynamodb-mutex create-table makes it"
        )
    # what create-table does not make
    for args in (("delete-table", "--yes"), ("--model", "cli_models:Order", "ls")):
        line = failure("--table", "no-such-table", *args)
        assert line.startswith("Error: there is no table no-such-table in us-east-1")
        assert line.endswith(": wrong region or profile?")


@pytest.mark.real("embedded")
def test_an_endpoint_that_does_not_answer_is_reported_within_seconds(table):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        begun = time.monotonic()
        assert "Could not connect to the endpoint URL" in failure("--endpoint-url", url, "ls")
        assert time.monotonic() - begun < 30
        assert "Could not connect" in failure("--endpoint-url", url, "delete-table")


def test_a_profile_that_is_asked_for_comes_before_the_environment(table, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_PROFILE", "")  # put back afterwards, as are these
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "theenvironments")
    credentials = tmp_path / "credentials"
    credentials.write_text("[ops]\naws_access_key_id = theprofiles\naws_secret_access_key = x\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    used = set()

    def note(sender: object, **_: object) -> None:
        used.add(sender.session.get_credentials().access_key)

    with pre_dynamodb_send.connected_to(note):
        assert run_cli("--profile", "ops", "--region", "us-east-1", "ls").exit_code == 0
    assert used == {"theprofiles"}


def test_credentials_that_there_are_not(table, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "")  # put back afterwards, as are these
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "nobodys")
    assert "The config profile (nobody) could not be found" in failure("--profile", "nobody", "ls")
    monkeypatch.delenv("AWS_PROFILE")
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    told = failure("--region", "us-east-1", "ls")
    assert "Unable to locate credentials. Give credentials as boto3 finds them" in told


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--endpoint-url", "localhost:8000", "ls"), "no URL as in http://localhost:8000"),
        (("--endpoint-url", "http://", "ls"), "no URL as in http://localhost:8000"),
        (("--table", " ", "ls"), "is empty"),
        (("ls", "--region", ""), "is empty"),
        (("nothing",), "No such command"),
    ],
)
def test_wrong_usage(args, message):
    done = run_cli(*args)
    assert done.exit_code == 2
    assert message in done.stderr


def test_what_the_environment_names_is_no_endpoint(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "nonsense")
    told = "Invalid endpoint: nonsense"
    for args, request in ((("ls",), "Scan"), (("show", "k"), "GetItem")):
        assert failure("--region", "us-east-1", *args) == f"Error: {request} failed: {told}"
    for name in ("create-table", "delete-table"):
        assert failure("--region", "us-east-1", name) == f"Error: {told}"
    done = run_cli("--region", "us-east-1", "run", "k", "--", "true")
    assert (done.exit_code, done.stderr) == (125, f"Error: GetItem failed: {told}\n")


@pytest.mark.parametrize("command", ["ls", "create-table", "delete-table"])
def test_region_that_there_is_not(monkeypatch, tmp_path, command):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "nothing"))
    assert "You must specify a region. Set the region: " in failure(command)


def test_a_mistake_of_our_own_is_not_reported_as_the_users(monkeypatch):
    monkeypatch.setattr("pynamodb_mutex.cli._listing.Locks", lambda _: int("ours"))
    with pytest.raises(ValueError, match="ours"):
        app(["ls"], standalone_mode=False)


def test_amazons_own_endpoint_is_not_spelt_out(engine, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_ENDPOINT_URL_DYNAMODB")
    from pynamodb_mutex.cli._place import Place

    place = Place()
    place.chosen = {"table": "mine", "region": "eu-west-1"}
    assert str(place) == "table mine in eu-west-1"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_examples_and_exit_codes(name):
    first, second = run_cli(name, "-h"), run_cli(name, "--help")
    assert (first.exit_code, first.stdout) == (0, second.stdout)
    assert "\n  Examples:\n    " in first.stdout
    if name != "completion":
        assert "\n  Exit codes:\n    0 " in first.stdout
        assert "--endpoint-url" in first.stdout


def test_it_runs_as_a_module():
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("pynamodb-mutex, version ")


@pytest.mark.parametrize("args", [["ls"], ["ls", "--json"], ["policy"], ["show", "--help"]])
def test_a_closed_pipe_ends_it_quietly(table, args):
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes) as pipe, held_elsewhere("a"):
        done = subprocess.run(
            [*COMMAND, *args], stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=100
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_without_the_extra_one_line_names_it():
    hidden = "import sys; sys.modules['click'] = None; from pynamodb_mutex.cli import main; "
    hide = "import importlib.util as u; f = u.find_spec; "
    hide += "u.find_spec = lambda n, *a: None if n in ('click', 'rich') else f(n, *a); "
    done = subprocess.run(
        [sys.executable, "-c", f"{hide}{hidden}main()"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "pynamodb-mutex needs click and rich: pip install 'pynamodb-mutex[cli]'\n"
    )


# -- completion ---------------------------------------------------------------------------------


def completed(engine, *words):
    """What a shell is told when the last word is completed."""
    env = {
        **environment(engine),
        "_PYNAMODB_MUTEX_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["pynamodb-mutex", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = run_cli_completing(env)
    return [line.partition(",")[2] for line in done.splitlines() if line]


def run_cli_completing(env):
    code = "from pynamodb_mutex.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell):
    done = run_cli("completion", shell)
    assert done.exit_code == 0
    assert "_PYNAMODB_MUTEX_COMPLETE" in done.stdout
    assert "pynamodb-mutex" in done.stdout


def test_keys_are_completed_from_the_table(table, engine):
    with held_elsewhere("deploy"), held_elsewhere("debug"), held_elsewhere("other one"):
        assert completed(engine, "show", "de") == ["debug", "deploy"]
        if engine.name == "local":
            return
        assert completed(engine, "watch", "debug", "o") == []
        assert "show" in completed(engine, "s")
        url = ("--endpoint-url", "http://127.0.0.1:9")
        assert completed(engine, *url, "show", "de") == []


def test_interrupted_before_it_could_begin(monkeypatch):
    class Slow(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "pynamodb_mutex.cli._app", Slow("_app"))
    with pytest.raises(SystemExit) as exited:
        main()
    assert exited.value.code == INTERRUPTED
