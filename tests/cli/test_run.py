"""``pynamodb-mutex run``: the lock, the command's environment, and exit codes."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from run_scene import RUN, free, outcome, run_here, running, text_in

from dev.faultproxy import drop_request, fault_proxy, throttle
from pynamodb_mutex import LockItem
from pynamodb_mutex._protocol import schedule
from pynamodb_mutex._protocol.claim import Claim
from pynamodb_mutex.cli import _run
from pynamodb_mutex.cli._run import describe
from pynamodb_mutex.testing import held_elsewhere

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="sends signals"),
]


def test_the_command_has_the_lock_and_learns_of_it(table, tmp_path):
    seen = tmp_path / "seen"
    told = run_here("k", "--verbose", "--", "sh", "-c", f"env >{seen}; exit 7")
    assert told.exit_code == 7
    assert told.stdout == ""
    item = LockItem.get("k")
    fence = int(item.version)
    env = dict(line.split("=", 1) for line in seen.read_text().splitlines() if "=" in line)
    assert env["PYNAMODB_MUTEX_KEY"] == "k"
    assert env["PYNAMODB_MUTEX_FENCING_TOKEN"] == str(fence)
    assert env["PYNAMODB_MUTEX_TOKEN"] == item.token
    assert env["PYNAMODB_MUTEX_OWNER"].endswith(f":{os.getpid()}:sh")
    assert env["PYNAMODB_MUTEX_TABLE"] == table.Meta.table_name
    # there may be a line about an answer that was waited for, on a busy machine
    assert told.stderr.splitlines()[-2:] == [
        f"pynamodb-mutex run: took 'k', fencing token {fence}",
        "pynamodb-mutex run: gave 'k' back",
    ]
    assert free()


def test_a_command_that_was_killed(embedded):
    assert run_here("k", "--", "sh", "-c", "kill -9 $$").exit_code == 128 + 9


def test_what_is_inherited_passes_through(embedded):
    data = bytes(range(256)) * 1000
    done = subprocess.run(
        [*RUN, "k", "--owner", "me", "--", "sh", "-c", "cat; printenv PYNAMODB_MUTEX_OWNER >&2"],
        input=data,
        capture_output=True,
        check=True,
        timeout=60,
        start_new_session=True,
    )
    assert done.stdout == data
    assert done.stderr == b"me\n"


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--if-locked", "skip"], 0, ""),
        (["--if-locked", "skip", "--verbose"], 0, "'k' is locked: held by 'night shift' since 20"),
        (["--if-locked", "fail"], 75, "'k' is locked: held by 'night shift' since 20"),
        (["--timeout", "3", "--verbose"], 75, "'k' is locked after 3 s: held by 'night shift'"),
    ],
)
def test_another_has_the_lock(table, tmp_path, options, code, says):
    with held_elsewhere("k", owner="night shift"):
        told = run_here("k", *options, "--", "touch", tmp_path / "ran")
        assert LockItem.get("k").owner == "night shift"
    assert told.exit_code == code
    assert says in told.stderr if says else told.stderr == ""
    assert ("waiting for 'k': held by 'night shift'" in told.stderr) == ("--timeout" in options)
    assert not (tmp_path / "ran").exists()


def test_a_row_that_says_little_about_its_holder(embedded):
    with held_elsewhere("k"):
        item = LockItem.get("k")
        item.update([LockItem.token.set("made by hand"), LockItem.owner.remove()])
        told = run_here("k", "--if-locked", "fail", "--", "true")
        assert told.stderr == "pynamodb-mutex run: 'k' is locked: held by an unnamed owner\n"


def test_who_gives_it_back_just_now_is_not_named():
    # seen free, and taken by another before this process's write
    assert describe(Claim(token="t", owner=None)) == "it was free a moment ago"


def test_it_waits_for_its_turn(table, tmp_path):
    with held_elsewhere("k") as item, running("k", "--", "touch", tmp_path / "ran") as process:
        assert process.poll() is None
        assert not (tmp_path / "ran").exists()
        assert item.owner == "elsewhere"
        threading.Timer(0.5, LockItem.force_release, ["k"]).start()
        assert outcome(process)[0] == 0
    assert (tmp_path / "ran").exists()


def test_long_wait_is_reported_in_one_line_where_there_is_no_terminal(embedded, tmp_path):
    with (
        held_elsewhere("k", owner="night shift"),
        running("k", "--", "touch", tmp_path / "ran") as process,
    ):
        line = process.stderr.readline()
        assert line.startswith(
            "pynamodb-mutex run: waiting for 'k': held by 'night shift' since 20"
        )
        time.sleep(1.5)  # more polls, and no more lines
        assert LockItem.force_release("k")
        assert outcome(process) == (0, "")
    assert (tmp_path / "ran").exists()


def test_endpoint_that_never_answers_is_reported_and_given_up(embedded, monkeypatch):
    monkeypatch.setattr(schedule, "UNANSWERED_PATIENCE", 4.0)
    monkeypatch.setattr(_run, "_LONG", 0.0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    told = run_here("k", "--endpoint-url", url, "--region", "eu-wst-1", "--", "true")
    assert told.exit_code == 125
    first, last = told.stderr.splitlines()
    assert first == (
        f"pynamodb-mutex run: waiting for 'k': no answer from DynamoDB yet, in eu-wst-1 at {url}"
    )
    assert last.startswith(
        f"Error: GetItem failed: DynamoDB has not answered yet in eu-wst-1 at {url} (wrong region or "
        "endpoint?): Could not connect to the endpoint URL"
    )


def test_each_reason_of_a_long_wait_is_reported_once(embedded, embedded_engine, monkeypatch):
    # nothing answers until that is said; then another holds the lock, until that is said
    monkeypatch.setattr(schedule, "UNANSWERED_PATIENCE", 60.0)
    said = []

    def say(text):
        said.append(text)
        proxy.clear()
        if len(said) == 2:
            LockItem.force_release("k")

    monkeypatch.setattr(_run, "say", say)
    with fault_proxy(embedded_engine) as proxy, held_elsewhere("k", owner="night shift"):
        proxy.always(drop_request())
        told = run_here("k", "--endpoint-url", proxy.url, "--", "true")
    assert told.exit_code == 0
    assert [text.partition(" since ")[0] for text in said] == [
        f"waiting for 'k': no answer from DynamoDB yet, in us-east-1 at {proxy.url}",
        "waiting for 'k': held by 'night shift'",
    ]


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (None, "DynamoDB is throttling or failing, in us-east-1 at "),
        ("acquire", "it was free a moment ago"),
    ],
)
def test_long_failure_of_dynamodb_is_reported(embedded, embedded_engine, monkeypatch, op, reason):
    monkeypatch.setattr(_run, "_LONG", 0.0)
    with fault_proxy(embedded_engine) as proxy:
        proxy.always(throttle(), op=op)
        told = run_here("k", "--endpoint-url", proxy.url, "--timeout", "3", "--", "true")
    assert told.exit_code == 125
    first, last = told.stderr.splitlines()
    assert first.startswith(f"pynamodb-mutex run: waiting for 'k': {reason}")
    assert "(ThrottlingException)" in last


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["k"], "Missing argument"),
        (["k", "true"], "put -- before the command"),
        (["k", "--lease", "0.1", "--", "true"], "a lease under 0.5 s"),
        (["k", "--lease", "nan", "--", "true"], "lease must be a finite number"),
        (["k", "--timeout", "-2", "--", "true"], "timeout must be -1"),
        (["k", "--grace", "-1", "--", "true"], "cannot be negative"),
        (["k", "--grace", "inf", "--", "true"], "finite number"),
        (["k", "--deadline", "0", "--", "true"], "must be above 0"),
        (["k", "--if-locked", "steal", "--", "true"], "steal"),
        (["", "--", "true"], "1 to 2048 bytes"),
        (["k", "--model", "nix", "--", "true"], "--model"),
    ],
)
def test_wrong_usage(arguments, says):
    told = run_here(*arguments)
    assert told.exit_code == 2
    assert says in told.stderr


def test_options_from_the_environment(embedded, monkeypatch):
    monkeypatch.setenv("PYNAMODB_MUTEX_RUN_LEASE", "0.2")
    assert "a lease under 0.5 s" in run_here("k", "--", "true").stderr
    monkeypatch.setenv("PYNAMODB_MUTEX_RUN_LEASE", "5")
    assert run_here("k", "--", "true").exit_code == 0
    # what the command is told is no option of a command line inside of it
    for name in ("KEY", "FENCING_TOKEN", "TOKEN", "OWNER"):
        monkeypatch.setenv(f"PYNAMODB_MUTEX_{name}", "x")
    monkeypatch.setenv("PYNAMODB_MUTEX_RUN_OWNER", "me")
    owner = 'test "$PYNAMODB_MUTEX_OWNER-$PYNAMODB_MUTEX_KEY" = me-k'
    assert run_here("k", "--", "sh", "-c", owner).exit_code == 0


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("./no-such-command", 127, "./no-such-command: command not found"),
        ("", 127, ": command not found"),
        ("plain", 126, "plain: cannot be executed"),
        ("./plain", 126, "./plain: cannot be executed"),
    ],
)
def test_no_such_command_asks_for_no_lock(tmp_path, monkeypatch, command, code, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "plain").write_text("")
    told = run_here("k", "--endpoint-url", "http://127.0.0.1:9", "--", command)
    assert told.exit_code == code
    assert says in told.stderr


@pytest.mark.parametrize(("line", "code"), [("", 126), ("#!/no/such/interpreter\n", 127)])
def test_what_cannot_be_started_gives_the_lock_back(embedded, tmp_path, line, code):
    script = tmp_path / "script"
    script.write_text(line)
    script.chmod(0o755)
    told = run_here("k", "--verbose", "--", script)
    assert told.exit_code == code
    assert "gave 'k' back" in told.stderr
    assert free()


def test_the_lock_cannot_be_asked_for(table, monkeypatch):
    told = run_here("k", "--table", "locks-nowhere", "--", "true")
    assert told.exit_code == 125
    assert "there is no table locks-nowhere" in told.stderr
    nowhere = ["--endpoint-url", "http://127.0.0.1:9", "--timeout", "0", "--verbose"]
    told = run_here("k", *nowhere, "--", "true")
    assert told.exit_code == 125
    assert "waiting for 'k': no answer from DynamoDB yet" in told.stderr
    monkeypatch.delattr(os, "posix_spawn")
    told = run_here("k", "--", "true")
    assert told.exit_code == 125
    assert "POSIX" in told.stderr


def test_an_error_of_ours_ends_the_command_and_leaves_the_lock_to_its_lease(
    embedded, tmp_path, monkeypatch
):
    def fail(*_):
        text_in(tmp_path / "pid")
        raise OSError("made up")

    started = select.select
    monkeypatch.setattr(select, "select", lambda *args: fail() if args[3] else started(*args))
    command = f"echo $$ >{tmp_path}/pid; exec sleep 60"
    told = run_here("k", "--grace", "0.2", "--", "sh", "-c", command)
    assert isinstance(told.exception, OSError)
    os.waitpid(int(text_in(tmp_path / "pid")), 0)  # it has ended
    assert LockItem.get("k").is_held


def test_what_it_leaves_in_the_background_goes_on(embedded, tmp_path):
    command = f"(sleep 1; echo on >{tmp_path}/late) & exit 0"
    assert run_here("k", "--", "sh", "-c", command).exit_code == 0
    assert free()
    assert not (tmp_path / "late").exists()
    assert text_in(tmp_path / "late") == "on\n"


def test_only_one_at_a_time(table, tmp_path):
    count = tmp_path / "count"
    count.write_text("0")
    command = f"n=$(cat {count}); sleep 0.05; echo $((n + 1)) >{count}"
    processes = [
        subprocess.Popen([*RUN, "k", "--", "sh", "-c", command], start_new_session=True)
        for _ in range(4)
    ]
    assert [process.wait(100) for process in processes] == [0] * 4
    assert count.read_text() == "4\n"
    assert free()
