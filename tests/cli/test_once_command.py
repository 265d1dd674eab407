"""``once``: a command that is run one time, its output as the result, and exit codes."""

import fcntl
import json
import math
import os
import select
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import COMMAND, cli, client, json_of, on_terminal, run_cli
from processes import is_there
from waits import LONG, until

from dev.faultproxy import deny
from pynamodb_mutex import LockItem, Once, OnceItem, ResultUnavailableError
from pynamodb_mutex.cli import _child, _once, _run
from pynamodb_mutex.testing import held_elsewhere, recorded, run_elsewhere, unknown_run

pytestmark = [
    pytest.mark.real("embedded"),
    pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="sends signals"),
]

PID = Path("pid")
SLEEPER = ["sh", "-c", "echo half; echo $$ >pid; exec sleep 50"]
"""Prints something, writes its process id, and sleeps."""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Let files of the test be in a folder of its own, and no wait be long on a machine that is slow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_run, "_LONG", 60.0)


@pytest.fixture
def once(table, capfdbinary):
    """Runs ``once``; returns what it has printed, if the exit code is as expected, and sets `said`."""

    def call(*arguments, code=0):
        done = run_cli("once", *arguments, code=code)
        call.said = done.stderr
        return capfdbinary.readouterr().out + done.stdout_bytes

    return call


def known(key="k"):
    """Return the state of a key and its result."""
    return Once.peek(key)[:2]


@pytest.mark.real
def test_command_is_run_once_and_its_output_printed_again(once):
    script = 'echo "$PYNAMODB_MUTEX_KEY $PYNAMODB_MUTEX_FENCING_TOKEN"; echo x >>done; echo y >&2'
    first = once("k", "sh", "-c", script)
    number = Once.peek("k").fencing_token
    assert first == f"k {number}\n".encode() == once("k", "sh", "-c", script)
    assert Path("done").read_text() == "x\n"
    assert known() == ("recorded", first.decode())
    assert once.said == ""


def test_failure_is_passed_on_and_not_recorded(once):
    assert once("k", "sh", "-c", "echo half; exit 3", code=3) == b"half\n"
    assert known() == ("nothing", None)
    assert once("k", "echo", "whole") == b"whole\n" == once("k", "echo", "other")


def test_output_is_bytes_of_any_kind(once):
    data = bytes(range(256)) + "é€😀".encode()
    Path("data").write_bytes(data)
    assert once("k", "cat", "data") == data == once("k", "false")
    assert once("none", "true") == b"" == once("none", "false")


@pytest.mark.parametrize(
    ("result", "printed"), [("a\n", b"a\n"), (None, b""), ({"id": 7}, b'{"id": 7}\n')]
)
def test_result_of_a_function_of_python_is_printed(once, result, printed):
    recorded("k", result)
    assert once("k", "false") == printed


def test_output_that_is_too_long_is_passed_on_and_not_kept(once):
    script = f"head -c {_once.LONGEST_RESULT + 1} /dev/zero"
    assert once("k", "sh", "-c", script) == bytes(_once.LONGEST_RESULT + 1)
    reason = "ValueError: the result has over 358400 bytes, the most that are kept"
    said = f"pynamodb-mutex once: 'k' is done, but its result is not available: {reason}\n"
    assert once.said == said
    assert once("k", "echo", "again", code=69) == b""
    assert once.said == said
    assert f"unstored:       {reason}\n" in cli("show", "k", "--once").stdout


def test_keep(once):
    once("k", "--keep", "2h", "--", "true")
    found = json_of("show", "k", "--once")
    assert (found["state"], found["result"], 7100 < found["remaining"] < 7300) == (
        "recorded",
        '""',
        True,
    )
    once("ever", "--keep", "forever", "--", "true")
    assert (json_of("show", "ever", "--once")["until"], Once.peek("ever").until) == (None, None)
    assert "until:          for ever\n" in cli("show", "ever", "--once").stdout
    for keep in ("nan", "soon", "-1"):
        assert once("k", "--keep", keep, "--", "true", code=2) == b""
    assert once.said.endswith("Error: keep must be above 0 seconds, not -1.0\n")


@pytest.mark.parametrize("arguments", [("",), ("k" * 2048,), ("k", "--lease", "0.1")])
def test_wrong_usage(once, arguments):
    once(*arguments, "--", "true", code=2)
    assert "Usage: " in once.said


def test_payload(once):
    assert once("k", "--payload", "5 EUR", "--", "echo", "5") == b"5\n"
    assert once("k", "echo", "any") == b"5\n" == once("k", "--payload", "5 EUR", "--", "false")
    assert once("k", "--payload", "6 EUR", "--", "echo", "6", code=65) == b""
    assert (
        once.said == "pynamodb-mutex once: 'k' has a result for another payload than this call's\n"
    )


def test_another_run_does_not_end_in_time(once):
    with run_elsewhere("k", owner="night shift"):
        assert once("k", "--timeout", "0", "--", "echo", "x", code=75) == b""
    assert "another run of 'k' did not end within 0.0 s: held by 'night shift'" in once.said


def test_another_run_is_waited_for_and_a_signal_ends_the_wait(once, monkeypatch):
    def say(text):
        assert text.startswith("waiting for 'k': held by 'elsewhere' since 20")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(_run, "say", say)
    monkeypatch.setattr(_run, "_LONG", 0.0)
    with run_elsewhere("k"):
        assert once("k", "echo", "x", code=128 + signal.SIGTERM) == b""
        monkeypatch.setattr(_run, "say", lambda _: recorded("k", "theirs"))
        assert once("k", "echo", "x") == b"theirs"


@pytest.mark.parametrize("how", ["run", "raise"])
def test_run_of_unknown_outcome_is_for_people(once, how):
    unknown_run("k", owner="worker-7")
    assert once("k", "--on-abandoned", how, "--", "echo", "x", code=70) == b""
    decide = "forget lets it be done again, record says that it is done\n"
    assert once.said.endswith(f"unknown what became of the run by 'worker-7'. {decide}")
    cli("record", "k", '"sent\\n"', "--yes")
    assert once("k", "--on-abandoned", how, "--", "false") == b"sent\n"


def test_command_that_cannot_be_started_leaves_the_key_free(once, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    once("k", "--on-abandoned", "raise", "--", "true", code=126)
    assert known() == ("nothing", None)
    once("k", "no-such-command", code=127)
    once("k", "--endpoint-url", "http://127.0.0.1:9", "--timeout", "0", "--", "true", code=125)


def meanwhile(monkeypatch, action):
    """Do something once the command has written its process id, between two checks of its lock."""
    check = _child.Supervisor._check_lock

    def checked(supervisor):
        if PID.exists() and PID.read_text() and supervisor not in acted:
            acted.append(supervisor)
            action(int(PID.read_text()))
        check(supervisor)

    acted = []
    monkeypatch.setattr(_child.Supervisor, "_check_lock", checked)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL], ids=["forwarded", "sent to the command"]
)
@pytest.mark.parametrize(("how", "state"), [("run", "nothing"), ("raise", "running")])
def test_command_that_a_signal_ends_has_an_unknown_outcome(once, monkeypatch, number, how, state):
    code = 128 + number
    forwarded = number == signal.SIGTERM
    meanwhile(monkeypatch, lambda pid: os.kill(os.getpid() if forwarded else pid, number))
    assert once("k", "--on-abandoned", how, "--", *SLEEPER, code=code) == b"half\n"
    assert known()[0] == state
    if how == "raise":  # its claim ends with its lease
        OnceItem("once#k").update([OnceItem.expires_at.set(1.0)], add_version_condition=False)
        assert known()[0] == "unknown"


def test_command_that_a_signal_reaches_and_that_succeeds_is_recorded(once, monkeypatch):
    meanwhile(monkeypatch, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    script = "trap 'echo whole; exit 0' TERM; echo half; echo $$ >pid; while :; do sleep 0.05; done"
    assert once("k", "sh", "-c", script) == b"half\nwhole\n" == once("k", "false")


@pytest.mark.parametrize("ends", [True, False])
def test_key_that_is_lost_meanwhile(once, monkeypatch, ends):
    """A person forgets the run; it succeeds before that is noticed, or is ended because of it."""

    def lose(_pid):
        cli("forget", "k", "--force", "--yes")
        Path("go").touch()

    meanwhile(monkeypatch, lose)
    waits = "while [ ! -e go ]; do sleep 0.02; done; echo whole" if ends else "exec sleep 50"
    # the renewal notices it, each third of a lease; on a busy machine one of a second may end before that
    lease = ["--lease", "600" if ends else "6"]
    script = f"echo half; echo $$ >pid; {waits}"
    printed = once("k", *lease, "--", "sh", "-c", script, code=76)
    assert printed == (b"half\nwhole\n" if ends else b"half\n")
    assert ("'k': the result was not recorded: " in once.said) == ends
    assert ("the lock was lost: " in once.said) == (not ends)
    assert known() == ("nothing", None)


def test_key_that_was_lost_before_the_command_was_started(once, monkeypatch, fake_clock):
    def suspended(signals):
        fake_clock.advance(31)

    monkeypatch.setattr(_run, "wait_or_raise", suspended)
    assert once("k", "touch", "go", code=76) == b""
    assert "lost before the command was started" in once.said
    assert not Path("go").exists()


def test_failure_that_cannot_be_reported_to_the_table(once, proxy):
    proxy.always(deny(), op="release")
    once("k", "--endpoint-url", proxy.url, "--", "sh", "-c", "exit 3", code=3)
    assert "could not be released and will expire: " in once.said
    assert known()[0] == "running"


def test_error_of_ours_after_the_start_releases_nothing(table, monkeypatch):
    def fail(supervisor):
        wait(supervisor)
        raise LookupError("ours")

    wait = _child.Supervisor.wait
    monkeypatch.setattr(_child.Supervisor, "wait", fail)
    with pytest.raises(LookupError, match="ours"):
        run_cli("once", "k", "true")
    assert known()[0] == "running"


# -- standard output -------------------------------------------------------------------------------


def unread(pipe):
    """Return the number of bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def started(*arguments, **streams):
    command = [*COMMAND, "once", *arguments]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **streams)


def interrupted(process):
    """Interrupt a process, give it time to end, and return its exit code if it has."""
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(5)
    return process.returncode


PIPE = 65536
"""Bytes that a pipe holds."""


def printing(number):
    """Return a shell command that prints so many letters."""
    return f"head -c {number} /dev/zero | tr '\\0' x"


def test_who_reads_slowly_gets_all_and_the_command_is_supervised_meanwhile(table):
    script = f"echo $$ >pid; {printing(5 * PIPE)}"
    with started("k", "--lease", "1", "--", "sh", "-c", script, stdout=subprocess.PIPE) as process:
        until(lambda: unread(process.stdout) > PIPE - select.PIPE_BUF)
        # of what is ahead a part has room now: a write of all of it would wait
        read = os.read(process.stdout.fileno(), 2 * select.PIPE_BUF)
        until(lambda: unread(process.stdout) > PIPE - select.PIPE_BUF)
        # the watchdog, which is given each new end of the lease, ends the command if it is given none
        end = OnceItem.get("once#k").expires_at
        until(lambda: OnceItem.get("once#k").expires_at > end + 3)
        assert is_there(int(PID.read_text()))
        read += process.stdout.read()
        assert (len(read), process.wait(LONG)) == (5 * PIPE, 0)


def test_result_is_recorded_before_the_last_of_it_is_read(table):
    # what a pipe holds, and what is ahead of it: the command need not wait
    script = f"{printing(2 * PIPE)}; sleep 0.5; echo end"
    with started("k", "--", "sh", "-c", script, stdout=subprocess.PIPE) as process:
        until(lambda: Once.peek("k").state == "recorded")
        # ends the wait for who reads; before the answer to the record it is for the command, which has ended
        until(lambda: interrupted(process) is not None)
        assert process.returncode == 130
    assert known()[1].endswith("end\n")


def test_standard_output_that_does_not_block_gets_all(table):
    """Another program has made the pipe that is our standard output non-blocking."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    script = f"{printing(2 * PIPE)}; sleep 0.5; echo end"
    with (
        started("k", "--", "sh", "-c", script, stdout=writes) as process,
        os.fdopen(reads, "rb") as read,
    ):
        os.close(writes)
        until(lambda: Once.peek("k").state == "recorded")
        assert (len(read.read()), process.wait(LONG)) == (2 * PIPE + 4, 0)


def test_output_that_is_too_long_takes_no_memory():
    output = _once.Output()
    for _ in range(2 * _once.LONGEST_RESULT // PIPE):
        assert os.write(output.end, bytes(PIPE)) == PIPE
        output.read()
    assert len(output._kept) == _once.LONGEST_RESULT


def test_without_a_reader_the_command_goes_on(table):
    script = f"echo a; {printing(5 * PIPE)}; touch go"
    with started("k", "--", "sh", "-c", script, stdout=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(LONG) == 0
    assert (Path("go").exists(), len(known()[1])) == (True, 5 * PIPE + 2)


def test_watchdog_names_the_command(table):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started("k", *SLEEPER, **streams) as process:
        assert process.stdout.readline() == b"half\n"  # passed on, so the watchdog has its target
        process.kill()
        said = process.stderr.read()
    message = b"once was killed or stopped: the watchdog has ended the command\n"
    assert said == b"pynamodb-mutex " + message


def test_standard_output_that_was_closed_gets_nothing(once, monkeypatch):
    monkeypatch.setattr(sys, "__stdout__", None)
    assert once("k", "echo", "a") == b""
    assert known() == ("recorded", "a\n")


def test_process_in_the_background_does_not_delay_the_result(once):
    script = "echo a; (exec sleep 50) & echo $! >pid; echo b"
    try:
        assert once("k", "sh", "-c", script) == b"a\nb\n"
    finally:
        os.kill(int(PID.read_text()), signal.SIGKILL)
    assert known() == ("recorded", "a\nb\n")


# -- ls, show, forget, record ----------------------------------------------------------------------


@pytest.fixture
def keys(table):
    """One key of `once` in each state, and a lock of another name."""
    recorded("done", {"id": 7}, keep=math.inf)
    unknown_run("lost", owner="worker-7")
    with (
        Once.for_key("open", owner="worker-8", lease=600) as run,
        run_elsewhere("dead", owner="worker-9"),
    ):
        OnceItem("once#dead").update([OnceItem.expires_at.set(1.0)], add_version_condition=False)
        Once.record("over", 1)
        Once.forget("over")
        with held_elsewhere("lock"):
            yield
        run.complete(1)


STATES = {"dead": "abandoned", "done": "recorded", "lost": "unknown", "open": "running"}


def test_keys_are_listed(keys, monkeypatch):
    found = json_of("ls", "--once")
    assert {each["key"]: each["state"] for each in found} == STATES
    assert [each["owner"] for each in found] == ["worker-9", None, "worker-7", "worker-8"]
    assert [each["lease"] for each in found] == [30, None, 30, 600]
    states = [each["state"] for each in json_of("ls", "--once", "done", "over", "none")]
    assert states == ["recorded", "nothing", "nothing"]
    # claims of runs are claims as any
    assert {each["key"]: each["state"] for each in json_of("ls")} == {
        "once#dead": "abandoned", "once#lost": "unknown", "once#open": "held", "lock": "held",
    }  # fmt: skip


def test_keys_are_listed_on_a_terminal(keys):
    _, shown = on_terminal("ls", "--once")
    assert shown.splitlines()[-1] == "recorded: 1   running: 1   unknown: 1   abandoned: 1"


def test_key_is_shown(keys):
    def shown(key):
        lines = cli("show", key, "--once").stdout.splitlines()
        return dict(line.split(":", 1) for line in lines)

    done = shown("done")
    assert (done["result"].strip(), done["until"].strip(), "owner" in done) == (
        '{"id":7}',
        "for ever",
        False,
    )
    assert (shown("lost")["owner"].strip(), "unknown: " in shown("lost")["state"]) == (
        "worker-7",
        True,
    )
    assert ", unless renewed)" in shown("open")["until"]
    assert "nothing: " in shown("over")["state"]
    found = json_of("show", "done", "--once")
    assert (found["result"], found["unstored"]) == ('{"id":7}', None)


def test_forget(keys):
    for arguments, says in (
        (["open"], "nothing was done: 'open' is running"),
        (["done"], "nothing was done: there is no terminal to ask on; see --yes"),
    ):
        assert says in cli("forget", *arguments, code=1).stderr
    assert cli("forget", "done", code=1, typed="n\n").stderr.endswith("not confirmed\n")
    assert known("done") == ("recorded", {"id": 7})
    done = cli("forget", "done", typed="y\n")
    assert "Forget this in table " in done.stderr
    assert "state:          recorded: " in done.stderr
    assert done.stderr.endswith("'done': nothing\n")
    for key in ("done", "over", "none"):
        assert json_of("forget", key)["state"] == "nothing"
    for key in ("lost", "dead"):
        assert json_of("forget", key, "--yes")["state"] == "nothing"
    for key in STATES:
        row = client().get_item(
            TableName=LockItem.Meta.table_name, Key={"key": {"S": f"once#{key}"}}
        )["Item"]
        assert ("ttl" in row) == (key != "open")


def test_forget_by_force_takes_a_row_that_cannot_be_right(table):
    recorded("k", 7)
    client().update_item(
        TableName=table.Meta.table_name,
        Key={"key": {"S": "once#k"}},
        UpdateExpression="SET done_until = :wrong",
        ExpressionAttributeValues={":wrong": {"S": "x"}},
    )
    said = cli("forget", "k", "--yes", code=1).stderr
    assert said.endswith("Find out what wrote it; forget --force puts it right\n")
    assert cli("forget", "k", "--force", "--yes").stderr.endswith("'k': nothing\n")


def test_forget_keeps_what_was_recorded_during_the_question(keys):
    said = cli("forget", "lost", code=1, meanwhile=lambda: recorded("lost", "late")).stderr
    assert said.endswith("nothing was done: 'lost' has changed meanwhile, and is recorded\n")
    assert known("lost") == ("recorded", "late")


def test_record(keys):
    for arguments, says in (
        (["open"], "nothing was done: 'open' is running"),
        (["done", "1"], "nothing was done: 'done' is recorded"),
        (["lost"], "nothing was done: there is no terminal to ask on; see --yes"),
    ):
        assert says in cli("record", *arguments, code=1).stderr
    for result in ("sent", "NaN", json.dumps("x" * _once.LONGEST_RESULT)):
        assert (
            "RESULT is JSON, in which a text has quotes"
            in cli("record", "lost", result, code=2).stderr
        )
    cli("record", "lost", "1", "--keep", "0", "--yes", code=2)
    done = cli("record", "lost", '{"id": [1, "é"]}', "--keep", "forever", typed="y\n")
    assert "Record this result in table " in done.stderr
    assert known("lost") == ("recorded", {"id": [1, "é"]})
    assert Once.peek("lost").until is None
    assert json_of("record", "dead", "--yes")["state"] == "recorded"
    assert known("dead") == ("recorded", None)
    assert cli("record", "none", "1", code=1, meanwhile=lambda: recorded("none", 2)).exit_code == 1
    assert known("none") == ("recorded", 2)
    with pytest.raises(ResultUnavailableError):
        Once.for_key("odd").call(object)
    assert json_of("record", "odd", "3", "--yes")["state"] == "recorded"
    assert known("odd") == ("recorded", 3)


class Results(OnceItem):
    Meta = type("Meta", (), {"table_name": "results-of-once"})


def test_model(made, table):
    made(Results)
    recorded("k", 1, model=Results)
    name = f"{__name__}:Results"
    assert json_of("ls", "--once", "--model", name)[0]["key"] == "k"
    assert run_cli("once", "k", "--model", name, "--", "false", code=0).stdout == "1\n"
    assert cli("ls", "--once").stderr.startswith("no key is recorded or running in table")
    error = cli("ls", "--once", "--model", "pynamodb_mutex:LockItem", code=2).stderr
    assert "LockItem is a model of locks; this needs one of once, an OnceItem" in error


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("release --force --yes", 1, "'once#lost' is a key of once: see show and forget"),
        ("run", 2, "'once#lost' is a key of once"),
    ],
)
def test_commands_that_change_locks_refuse_keys_of_once(keys, command, code, says):
    before = OnceItem.get("once#lost").attribute_values
    name, *options = command.split()
    more = ["true"] if name == "run" else []
    assert says in cli(name, "once#lost", *options, *more, code=code).stderr
    assert OnceItem.get("once#lost").attribute_values == before


@pytest.mark.parametrize("key", ["lost", "once#lost"])
def test_key_of_once_that_an_error_or_ls_prints_is_found(keys, key):
    """As a lock's key it would be free, which nobody must believe who looks for the run."""
    said = "" if key.startswith("once#") else "'lost' is a key of once: no lock has it\n"
    shown = cli("show", key)
    assert (shown.stderr, "state:          unknown: a run ended" in shown.stdout) == (said, True)
    unknown = "unknown: a run ended without a result; forget or record decides about it"
    assert cli("wait", key, code=75).stderr == f"{said}'{key}' is {unknown}\n"
    assert "is a key of once" in cli("release", key, "--force", "--yes", code=1).stderr
    assert known("lost")[0] == "unknown"
    assert cli("forget", f"once#{key}".removeprefix("once#once#"), "--yes")
    assert known("lost")[0] == "nothing"


def test_keys_as_ls_prints_them(keys):
    assert [each["state"] for each in json_of("ls", "once#done", "once#open")] == [
        "recorded",
        "running",
    ]
    assert "begin with once#" in cli("ls", "once#done", "lock", code=2).stderr
    assert run_cli("once", "once#done", "--", "false", code=0).stdout == '{"id": 7}\n'
    assert "is running" in cli("record", "once#open", "1", code=1).stderr
    assert cli("wait", "once#done").stderr == ""
    assert "still held by" in cli("wait", "once#open", "--timeout", "0", code=75).stderr


def test_lock_of_the_same_name_as_a_key_of_once_comes_first(keys):
    assert (json_of("show", "lock")["state"], json_of("show", "lock")["key"]) == ("held", "lock")
    unknown_run("lock")
    assert json_of("show", "lock")["state"] == "held"
    LockItem.force_release("lock")
    free = cli("show", "lock")
    assert free.stderr == "'lock' is a key of once: see show --once\n"
    assert "state:          free" in free.stdout
    # a model that has no keys of once
    missing = cli("show", "lost", "--model", "pynamodb_mutex:LockItem").stdout
    assert "state:          free" in missing


def test_run_that_is_broken_by_force_gets_no_ttl(keys):
    OnceItem.force_release("once#lost")
    row = OnceItem.get("once#lost")
    assert (row.ttl, row.unknown, known("lost")[0]) == (None, "worker-7", "unknown")
