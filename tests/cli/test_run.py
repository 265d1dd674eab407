"""``run``: the lock, the command and its environment, signals, the end of the command, and exit codes."""

import fcntl
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from command_line import COMMAND, change, cli, entry, json_of, run_here
from processes import is_there, run_script
from pynamodb.attributes import UnicodeAttribute
from two_clients import Elsewhere, on_thread
from waits import LONG, until

from dev.faultproxy import drop_request, server_error, throttle
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex._lock.operations import release
from pynamodb_mutex._lock.protocol import schedule
from pynamodb_mutex._lock.protocol.claim import Claim
from pynamodb_mutex.cli import _output, _run, _watchdog
from pynamodb_mutex.cli._child import Child
from pynamodb_mutex.cli._watchdog import Watchdog
from pynamodb_mutex.testing import expire, held_elsewhere

pytestmark = [
    pytest.mark.real("embedded"),
    pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="sends signals"),
]


class Shard(LockItem):
    Meta = type("Meta", (), {"table_name": "shards-to-run"})
    shard = UnicodeAttribute(range_key=True)


PID, GO = Path("pid"), Path("go")
PATIENT = ["sh", "-c", "echo $$ >pid; while [ ! -e go ]; do sleep 0.02; done"]
"""Writes its process id, and ends as soon as there is a file "go"."""

STUBBORN = ["sh", "-c", "trap '' TERM INT HUP; echo $$ >pid; while :; do sleep 0.05; done"]
"""Writes its process id, and ignores signals."""

SAYS = "pynamodb-mutex run: "
KILLED = f"{SAYS}the command did not end in time: killing it"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Let files of the test be in a folder of its own, and no wait be long on a machine that is slow."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_run, "_LONG", 60.0)


@contextmanager
def running(*arguments):
    """Run the command line in a process without a terminal."""
    command = [*COMMAND, "run", *map(str, arguments)]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, start_new_session=True, text=True, **streams) as process:
        try:
            yield process
        finally:
            process.kill()


def outcome(process):
    """Wait for the end; return exit code and standard error."""
    error = process.communicate(timeout=LONG)[1]
    return process.returncode, error


def text_in(path):
    """Wait for a file that is written at once, and return what it says."""
    return until(lambda: path.exists() and path.read_text())


def watched():
    """Wait until the command has written its process id, and the watchdog knows of it; return it."""
    pid = int(text_in(PID))
    time.sleep(1.0)  # the watchdog gets the process id right after the command has started
    return pid


@contextmanager
def meanwhile(action):
    """Do something, on a thread, as soon as the command has written its process id."""
    with ThreadPoolExecutor() as pool:
        acted = pool.submit(lambda: action(int(text_in(PID))))
        yield
    acted.result()


def unread(pipe):
    """Return the number of bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def fill(pipe):
    """Fill a pipe, so that the next write to it waits until somebody reads."""
    end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(end, b" ")
    os.close(end)


def signal_us(number):
    os.kill(os.getpid(), number)


def end_this(_pid):
    signal_us(signal.SIGTERM)


def free():
    """Whether the lock can be acquired at once."""
    with Mutex.for_key("k", timeout=0) as mutex:
        return mutex.held


@pytest.mark.real
def test_the_command_has_the_lock_and_variables_that_describe_it(table):
    done = run_here("k", "--verbose", "--", "sh", "-c", "env >env; exit 7")
    assert (done.exit_code, done.stdout) == (7, "")
    item, lines = LockItem.get("k"), Path("env").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    names = ("KEY", "FENCING_TOKEN", "TOKEN", "TABLE")
    expected = ["k", str(int(item.version)), item.token, table.Meta.table_name]
    assert [env[f"PYNAMODB_MUTEX_{name}"] for name in names] == expected
    assert env["PYNAMODB_MUTEX_OWNER"].endswith(f":{os.getpid()}:sh")
    acquired = f"{SAYS}acquired 'k', fencing token {item.version}\n"
    # a slow answer is reported first
    assert done.stderr.endswith(f"{acquired}{SAYS}released 'k'\n")
    assert free()


@pytest.mark.parametrize("mark", [(), ("--",)])
@pytest.mark.parametrize(
    "ours",
    [
        ["k"],
        ["--lease", "9", "k"],
        ["k", "--lease", "9"],
        ["--table", "{table}", "k", "--if-locked", "fail", "--verbose"],
    ],
)
def test_first_word_after_the_key_begins_the_command(table, ours, mark, capfd):
    printing = ["sh", "-c", 'printf "%s;" "$PYNAMODB_MUTEX_KEY" "$@"', "sh"]
    ours = [each.format(table=table.Meta.table_name) for each in ours]
    for arguments in (["--lease", "1"], ["--", "x"], ["-h"]):
        cli("run", *ours, *mark, *printing, *arguments)
        assert capfd.readouterr().out == ";".join(["k", *arguments, ""])


def test_mark_before_the_key_ends_the_options(table, capfd):
    cli("run", "--", "k", "printf", "%s;", "-h")
    assert capfd.readouterr().out == "-h;"


def test_standard_streams_belong_to_the_command(table):
    data = bytes(range(256)) * 1000
    script = "cat; printenv PYNAMODB_MUTEX_OWNER >&2; kill -9 $$"
    command = [*COMMAND, "run", "k", "--owner", "me", "--", "sh", "-c", script]
    options = {"input": data, "capture_output": True, "timeout": 60, "start_new_session": True}
    done = subprocess.run(command, check=False, **options)
    assert (done.returncode, done.stdout, done.stderr) == (128 + 9, data, b"me\n")


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--if-locked", "skip"], 0, ""),
        (["--if-locked", "skip", "--verbose"], 0, "'k' is locked: held by 'night shift' since 20"),
        (["--if-locked", "fail"], 75, "'k' is locked: held by 'night shift' since 20"),
        (["--timeout", "3", "--verbose"], 75, "'k' is locked after 3 s: held by 'night shift'"),
    ],
)
def test_if_locked(table, options, code, says):
    with held_elsewhere("k", owner="night shift"):
        done = run_here("k", *options, "--", "touch", "go")
        assert LockItem.get("k").owner == "night shift"
    assert (done.exit_code, GO.exists()) == (code, False)
    assert says in done.stderr if says else done.stderr == ""
    assert ("waiting for 'k': held by 'night shift'" in done.stderr) == ("--timeout" in options)


def test_a_holder_without_a_name_and_a_lock_that_was_free(table):
    with held_elsewhere("k"):
        LockItem.get("k").update([LockItem.token.set("made by hand"), LockItem.owner.set("")])
        done = run_here("k", "--if-locked", "fail", "--", "true")
    assert done.stderr == f"{SAYS}'k' is locked: held by an unnamed owner\n"
    # read as free, and acquired by another process before this one's write
    assert _run.describe(Claim(token="t", owner=None)) == "it was free a moment ago"


def test_each_reason_of_a_long_wait_is_reported_once(proxy, monkeypatch):
    said = []
    monkeypatch.setattr(_run, "say", said.append)
    monkeypatch.setattr(schedule, "UNANSWERED_PATIENCE", 60.0)
    monkeypatch.setattr(_run, "_LONG", 0.1)

    def answer_then_release():
        until(lambda: len(said) == 1)
        proxy.clear()
        until(lambda: len(said) == 2)
        polls = len(proxy.log)
        until(lambda: len(proxy.log) > polls + 3)
        LockItem.force_release("k")

    with held_elsewhere("k", owner="night shift"), ThreadPoolExecutor() as pool:
        proxy.always(drop_request())
        released = pool.submit(answer_then_release)
        done = run_here("k", "--endpoint-url", proxy.url, "--", "touch", "go")
        released.result()
    assert (done.exit_code, GO.exists()) == (0, True)
    unanswered, held = said
    unreached = f"no answer from DynamoDB yet, in us-east-1 at {proxy.url}"
    assert unanswered == f"waiting for 'k': {unreached}"
    assert held.startswith("waiting for 'k': held by 'night shift' since ")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"fault": drop_request()}, "no answer from DynamoDB yet, in us-east-1 at "),
        ({"fault": throttle()}, "DynamoDB is throttling or failing, in us-east-1 at "),
        ({"fault": throttle(), "op": "acquire"}, "it was free a moment ago"),
    ],
)
def test_a_long_failure_is_reported(proxy, monkeypatch, fake_clock, fault, reason):
    said = []

    def say(text):
        said.append(text)
        fake_clock.advance(schedule.UNANSWERED_PATIENCE)  # time passes only after the report

    monkeypatch.setattr(_run, "say", say)
    monkeypatch.setattr(_run, "_LONG", 0.0)
    proxy.always(**fault)
    options = [] if reason.startswith("no answer") else ["--timeout", "5"]
    done = run_here("k", "--endpoint-url", proxy.url, *options, "--", "true", code=125)
    assert ("(ThrottlingException)" if options else "DynamoDB has not answered yet") in done.stderr
    (first,) = said
    assert first.startswith(f"waiting for 'k': {reason}")


@pytest.mark.parametrize(("options", "place"), [([], ""), (["--fair"], ", number 1 in line")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_wait_with_nothing_held(table, monkeypatch, number, options, place):
    def say(text):
        assert text.startswith(f"waiting for 'k'{place}: held by 'elsewhere' since 20")
        signal_us(signal.SIGUSR1)  # has no meaning before the command is started
        signal_us(number)

    monkeypatch.setattr(_run, "say", say)
    with held_elsewhere("k") as held:
        done = run_here("k", "--verbose", *options, "--", "touch", "go")
        item = LockItem.get("k")
        assert (item.token, item.waiters) == (held.token, [])
    assert (done.exit_code, done.stderr, GO.exists()) == (128 + number, "", False)
    assert free()


def test_fair_reports_its_place_and_does_not_pass_who_waits(table):
    def say(text):
        assert text.startswith("waiting for 'k', number 2 in line: held by 'night shift' since 20")
        signal_us(signal.SIGTERM)

    with held_elsewhere("k", owner="night shift"):
        change("k", waiting=[entry("first")])
        with patch.object(_run, "say", say):
            run_here("k", "--fair", "--verbose", "--", "touch", "go", code=128 + signal.SIGTERM)
        assert LockItem.get("k").waiters == ["first"]
        LockItem.force_release("k")
    done = run_here("k", "--fair", "--if-locked", "fail", "--", "touch", "go")
    turn = f"{SAYS}'k' is locked: it is the turn of 'first', who waits in line\n"
    assert (done.exit_code, done.stderr, GO.exists()) == (75, turn, False)
    run_here("k", "--if-locked", "fail", "--", "true", code=0)


def test_shared_lock_is_shared_with_others_and_held_by_the_command(table):
    on_thread(Mutex.for_key("k", shared=True, owner="reader").acquire)
    run_here("k", "--shared", "--", "sh", "-c", 'test -n "$PYNAMODB_MUTEX_TOKEN"', code=0)
    assert "leave out --shared" in run_here("k", "--shared", "--force", "--", "true", code=2).stderr
    done = run_here("k", "--if-locked", "fail", "--", "true", code=75)
    assert "'k' is locked: held by 1 reader(s): 'reader'" in done.stderr


def test_options_from_the_environment(table):
    env = {"PYNAMODB_MUTEX_RUN_LEASE": "0.2"}
    assert "a lease under 0.5 s" in run_here("k", "--", "true", env=env).stderr
    # the variables that describe the lock are no options of a command line inside the command
    env = {f"PYNAMODB_MUTEX_{name}": "outer" for name in ("KEY", "FENCING_TOKEN", "TOKEN", "OWNER")}
    script = 'test "$PYNAMODB_MUTEX_OWNER" != outer'
    env["PYNAMODB_MUTEX_RUN_LEASE"] = "5"
    run_here("k", "--", "sh", "-c", script, env=env, code=0)


def test_for_a_missing_command_no_lock_is_requested(tmp_path, monkeypatch):
    # Like a folder that only its owner may search, one with too long a name cannot be searched.
    places = [str(tmp_path), "x" * 300, os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(places))
    Path("plain").touch()
    for command, code, says in (
        ("no-such-command", 127, "command not found"),
        ("./no-such-command", 127, "command not found"),
        ("", 127, "command not found"),
        ("plain", 126, "cannot be executed"),
        ("./plain", 126, "cannot be executed"),
    ):
        done = run_here("k", "--endpoint-url", "http://127.0.0.1:9", "--", command, code=code)
        assert f"{command}: {says}" in done.stderr


@pytest.mark.parametrize(("line", "code"), [("", 126), ("#!/no/such/interpreter\n", 127)])
def test_a_command_that_cannot_be_started_leaves_the_lock_free(table, line, code):
    script = Path("script").absolute()
    script.write_text(line)
    script.chmod(0o755)
    assert "released 'k'" in run_here("k", "--verbose", "--", script, code=code).stderr
    assert free()


def test_no_command_is_started_if_the_system_refuses_the_watchdog(table, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    done = run_here("k", "--verbose", "--", "touch", "go", code=126)
    assert done.stderr.endswith(
        f"{SAYS}released 'k'\nError: cannot start the watchdog: No such file or directory\n"
    )
    assert (free(), GO.exists()) == (True, False)


def test_the_lock_cannot_be_requested(table, monkeypatch):
    def refusal(*options):
        return run_here("k", *options, "--", "true", code=125).stderr

    assert "there is no table locks-nowhere" in refusal("--table", "locks-nowhere")
    nowhere = "http://127.0.0.1:9"
    error = refusal("--endpoint-url", nowhere, "--region", "eu-wst-1", "--timeout", "0")
    assert error.startswith(
        f"Error: GetItem failed: DynamoDB has not answered yet in eu-wst-1 at {nowhere} (wrong "
        "region or endpoint?): Could not connect to the endpoint URL"
    )
    monkeypatch.delattr(os, "posix_spawn")
    assert "POSIX" in refusal()


def test_a_signal_before_the_command_is_started(table):
    def on_sight():
        until(lambda: LockItem.count("k") and LockItem.get("k").is_held)
        end_this(None)

    # it arrives between the acquire and the start of the command, or just before or after
    with ThreadPoolExecutor() as pool:
        seen = pool.submit(on_sight)
        run_here("k", "--", "sleep", "60", code=128 + signal.SIGTERM)
        seen.result()
    assert free()


def test_no_command_is_started_after_a_stop_that_outlasted_the_lease(
    table, monkeypatch, fake_clock
):
    def stopped(name):
        fake_clock.advance(30)
        return Watchdog(name)

    monkeypatch.setattr(_run, "Watchdog", stopped)
    monkeypatch.setattr(_run, "Child", pytest.fail)
    done = run_here("k", "--", "true", code=76)
    says = f"{SAYS}the lock was lost before the command was started: its lease ended before it was renewed\n"
    assert done.stderr.endswith(says)


def test_signals_are_forwarded_and_the_lock_is_released_after_the_command(table):
    command = (
        "trap 'echo hup >hup' HUP; trap 'sleep 0.5; echo done >done; exit 3' TERM;"
        "echo $$ >pid; while :; do sleep 0.05; done"
    )
    with running("k", "--", "sh", "-c", command) as process:
        text_in(PID)
        process.send_signal(signal.SIGHUP)
        assert text_in(Path("hup")) == "hup\n"
        assert LockItem.get("k").is_held
        process.send_signal(signal.SIGTERM)
        while True:
            held = LockItem.get("k", consistent_read=True).is_held
            if Path("done").exists():
                break  # and the lock may have been released since
            assert held
        assert outcome(process)[0] == 3
    assert free()


def stop_and_interrupt(pid):
    os.kill(pid, signal.SIGSTOP)
    signal_us(signal.SIGINT)


def hang_up(pid):
    signal_us(signal.SIGHUP)
    os.kill(pid, signal.SIGHUP)
    GO.touch()


def kill_the_watchdog(_pid):
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    (watchdog,) = (int(line.split()[0]) for line in listed.splitlines() if "_watchdog.py" in line)
    os.kill(watchdog, signal.SIGKILL)
    until(lambda: not is_there(watchdog))
    GO.touch()


def break_and_end(_pid):
    # this process would notice it at once
    done = run_script("from pynamodb_mutex import LockItem; LockItem.force_release('k')")
    assert done.returncode == 0, done.stderr
    GO.touch()


GROUP = ["sh", "-c", 'sh -c "$0" & exec sleep 60', STUBBORN[2]]
LOST = f"{SAYS}the lock was lost while the command ran: its claim was broken by force\n"


@pytest.mark.parametrize(
    ("event", "command", "code", "says"),
    [
        # one that ignores signals is killed with all its group
        (end_this, ["--grace", 0.5, "--", *GROUP], 128 + signal.SIGTERM, f"{KILLED}\n"),
        # one that was asked to end has its grace beyond the deadline
        (end_this, ["--deadline", 2, "--grace", 3, "--", *STUBBORN], 128 + 9, f"{KILLED}\n"),
        (stop_and_interrupt, ["--", *PATIENT], 128 + signal.SIGINT, ""),
        # a signal that was ignored before stays so
        (hang_up, ["--", *PATIENT], 0, ""),
        (kill_the_watchdog, ["--", *PATIENT], 0, ""),
        # it has ended by itself before the loss is noticed
        (break_and_end, ["--", *PATIENT], 76, LOST),
    ],
)
def test_end_of_the_command_after(table, event, command, code, says):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with meanwhile(event):
            done = run_here("k", *command)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.exit_code, done.stderr) == (code, says)
    until(lambda: not is_there(int(text_in(PID))))
    assert free()


def test_a_broken_lock_ends_the_command(table, monkeypatch):
    monkeypatch.setattr(schedule, "RENEWALS_PER_LEASE", 60)  # so the loss is noticed soon
    with meanwhile(lambda _: Elsewhere.force_release("k")):
        done = run_here("k", "--grace", 0.5, "--", *STUBBORN, code=76)
    broken = f"{SAYS}the lock was lost: its claim was broken by force: ending the command"
    assert done.stderr.splitlines() == [broken, KILLED]
    assert not is_there(int(text_in(PID)))


def test_the_deadline(table, monkeypatch):
    done = run_here("k", "--deadline", 0.3, "--grace", 0.3, "--", *STUBBORN, code=124)
    over = f"{SAYS}the command has run for 0.3 s: ending the command"
    assert done.stderr.splitlines() == [over, KILLED]
    assert not is_there(int(text_in(PID)))
    assert free()

    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)  # as for a command of another user
    done = run_here("k", "--deadline", 0.1, "--grace", 0.1, "--", "sleep", "0.5", code=124)
    says = "the command runs as another user and cannot be signalled: waiting for its end"
    assert says in done.stderr


def test_after_an_error_of_ours_the_command_ends_and_the_lock_expires(table, monkeypatch):
    def fail():
        text_in(PID)
        raise OSError("made up")

    started = select.select
    monkeypatch.setattr(select, "select", lambda *args: fail() if args[3] else started(*args))
    with pytest.raises(OSError, match="made up"):
        run_here("k", "--grace", "0.2", "--", *PATIENT)
    os.waitpid(int(text_in(PID)), 0)  # it has ended
    assert LockItem.get("k").is_held


def test_background_processes_run_on_without_the_lock(table):
    run_here("k", "--", "sh", "-c", f"({PATIENT[2]}; echo on >late) & exit 0", code=0)
    assert free()
    GO.touch()
    assert text_in(Path("late")) == "on\n"


def test_without_dynamodb_the_command_ends_before_the_lease(proxy, fake_clock):
    command = "trap 'echo 1 >notice' TERM; echo $$ >pid; while :; do sleep 0.02; done"

    def outage(pid):
        proxy.always(drop_request())
        fake_clock.advance(26)  # the lease has less left than the grace
        until(lambda: any(seen.kind == "renew" for seen in proxy.log))
        text_in(Path("notice"))
        assert is_there(pid)
        fake_clock.advance(3.8)  # the lease is over, the grace is not

    with meanwhile(outage):
        options = ["--endpoint-url", proxy.url, "--lease", 30, "--grace", 4]
        done = run_here("k", *options, "--", "sh", "-c", command, code=76)
    danger, lost, *killed = done.stderr.splitlines()
    assert "could not be renewed and is about to expire: ending the command" in danger
    assert "the lock was lost: its renewals failed, or had no answer, until" in lost
    assert "UpdateItem failed" in lost
    assert killed == [KILLED]


def test_a_lock_that_cannot_be_released(proxy, monkeypatch):
    monkeypatch.setattr(release, "RELEASE_PATIENCE", 0.2)
    proxy.always(drop_request(), op="release")
    done = run_here("k", "--endpoint-url", proxy.url, "--", "sh", "-c", "exit 5", code=5)
    assert "the lock could not be released and will expire" in done.stderr


@pytest.mark.parametrize(("number", "lease"), [(signal.SIGKILL, 30), (signal.SIGSTOP, 1.5)])
def test_watchdog_ends_the_command_when_run_is_killed_or_stopped(table, number, lease):
    with running("k", "--lease", lease, "--grace", 0.3, "--", *STUBBORN) as process:
        pid = watched()
        process.send_signal(number)
        until(lambda: not is_there(pid))  # for a stopped one after the lease
        process.send_signal(signal.SIGCONT)
        code, error = outcome(process)
    if number == signal.SIGSTOP:
        assert code == 76
    else:
        assert LockItem.get("k", consistent_read=True).is_held
        assert "run was killed or stopped: the watchdog has ended the command" in error


@pytest.mark.parametrize("reader", ["gone", "stuck"])
def test_watchdog_ends_the_command_though_nobody_reads_its_message(table, reader):
    with running("k", "--grace", 0.3, "--", *STUBBORN) as process:
        pid = watched()
        if reader == "gone":
            process.stderr.close()
        else:
            fill(Path(f"/proc/{process.pid}/fd/2"))
        process.kill()
        until(lambda: not is_there(pid))


def test_watchdog_has_a_deadline_before_the_first_check(table, monkeypatch):
    def wait_for_ever(child, *_, **__):
        until(lambda: child.poll() or child.exit_code)
        raise OSError("made up")

    monkeypatch.setattr(_run, "Supervisor", wait_for_ever)
    with pytest.raises(OSError, match="made up"):
        run_here("k", "--lease", 0.5, "--", *PATIENT)


@pytest.mark.parametrize("error", [None, OSError])
def test_stopped_watchdog_delays_nothing_and_obeys_no_old_deadline(error):
    command = subprocess.Popen(["sleep", "60"])
    with suppress(OSError), Watchdog("run") as watchdog:
        process, pipe = watchdog._process, watchdog._pipe
        watchdog.guard(command.pid, 0.0, math.inf)
        watchdog.extend(-math.inf)  # the lock is lost: `run`, which works, ends the command
        until(lambda: unread(pipe) == 0)
        process.send_signal(signal.SIGSTOP)
        for ago in range(1000, 0, -1):
            watchdog.extend(_watchdog.now() - ago)
        watchdog.extend(_watchdog.now() + 1000)
        process.send_signal(signal.SIGCONT)
        until(lambda: unread(pipe) == 0)
        process.send_signal(signal.SIGSTOP)
        if error is not None:
            raise error
        for later in range(10_000):  # the pipe is full before the last one
            watchdog.extend(_watchdog.now() + later)
        assert process.wait(LONG) == -signal.SIGKILL
    if error is None:
        assert command.poll() is None
        command.kill()
    # with a grace of 0 s SIGKILL may come before the command has ended by SIGTERM
    assert command.wait(LONG) in {-signal.SIGTERM, -signal.SIGKILL}


@pytest.mark.parametrize("own_group", [True, False])
def test_a_command_that_has_ended_can_be_asked_to_end(own_group):
    child = Child("/bin/sh", ["sh", "-c", ":"], os.environ, own_group=own_group, adopts=False)
    while child.exit_code is None:
        child.poll()
    assert child.end()
    assert not child.leaves_others


ADOPTS = """
import ctypes, os, sys, time
from pynamodb_mutex.cli._child import Child
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # a subreaper: orphans come to it, as to process 1
script = "(sh -c 'echo $$ >orphan; sleep 0.2' &) ; sleep 1; exit 4"
child = Child("/bin/sh", ["sh", "-c", script], os.environ, own_group=True, adopts=True)
while child.exit_code is None:
    child.poll()
    time.sleep(0.02)
    if os.path.exists("orphan") and child.exit_code is None:
        orphan = int(open("orphan").read() or 0)
child.poll()
try:
    os.kill(orphan, 0)
except ProcessLookupError:
    sys.exit(child.exit_code)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has subreapers")
def test_orphans_are_reaped():
    done = subprocess.run([sys.executable, "-c", ADOPTS], check=False, timeout=60)
    assert done.returncode == 4


def test_terminal_shows_holder_place_in_line_and_log_records_until_ctrl_c(proxy, spawn):
    with held_elsewhere("k", owner="night shift"):
        change("k", waiting=[entry("first"), entry("second")])
        options = ("--fair", "--verbose", "--endpoint-url", proxy.url)
        process = spawn("run", "k", *options, "--", "true")
        held = "held by 'night shift' since 20..-..-.."
        process.expect(rf"waiting for 'k' for \d+ s, number 3 in line: {held}")
        process.expect(r"waiting for 'k' for [1-9]")
        change("k", waiting=[*LockItem.get("k").waiting][1:])
        process.expect(rf"waiting for 'k' for \d+ s, number 2 in line: {held}")
        proxy.always(server_error(), op="GetItem")
        process.expect("GetItem failed")
        # the line of the spinner was cleared before, and drawn anew after
        _, cleared, line = process.before.rpartition("\x1b[2K")
        assert (bool(cleared), line) == (True, "pynamodb-mutex run: ")
        proxy.clear()
        process.expect("waiting for 'k' for")
        process.sendintr()
        assert process.end()[0] == 130
        assert LockItem.get("k").waiters == ["second"]
        assert LockItem.get("k").owner == "night shift"


def test_terminal_belongs_to_the_command_after_the_wait(table, spawn):
    script = "import time\ntry: print('got', input()); time.sleep(60)\n"
    script += "except KeyboardInterrupt: time.sleep(1); exit(9)"
    with held_elsewhere("k"):
        process = spawn("run", "k", "--grace", 0.2, "--", sys.executable, "-c", script)
        process.expect("waiting for 'k'")
        assert LockItem.force_release("k")
        process.sendline("it")
        process.expect("got it")
        process.sendintr()
        # the command takes longer than the grace, which does not apply to what is typed
        assert process.end()[0] == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_at_a_terminal_a_signal_ends_the_command_alone(table, spawn, number):
    process = spawn("run", "k", "--grace", 0.2, "--", *PATIENT)
    killed = number == signal.SIGKILL
    pid = watched() if killed else int(text_in(PID))
    process.kill(number)
    if not killed:
        assert process.end()[0] == 128 + signal.SIGTERM
        assert not LockItem.get("k", consistent_read=True).is_held
    until(lambda: not is_there(pid))  # after SIGKILL the watchdog ends it


# -- hold at least ---------------------------------------------------------------------------------


def test_lock_is_held_at_least_for_a_time(table):
    run_here("k", "--hold-at-least", "1h", "--", "true", code=0)
    assert run_here("k", "--if-locked", "skip", "--", "false", code=0).stderr == ""
    said = run_here("k", "--if-locked", "fail", "--", "false", code=75).stderr
    assert re.search("is locked: held by nobody .*kept until .* by hold_at_least.* since", said)
    assert json_of("show", "k")["state"] == "held"
    assert "nobody (released, and kept until " in cli("show", "k").stdout
    assert [each["owner"] for each in json.loads(cli("ls", "--json").stdout)] == [None]
    expire("k")
    assert json_of("show", "k")["state"] == "free"
    assert "no lock is held" in cli("ls").stderr
    assert Mutex.for_key("k", model=Elsewhere).acquire(blocking=False)


def test_lock_is_taken_by_force_and_its_holder_is_named(table, monkeypatch):
    monkeypatch.setenv("PYNAMODB_MUTEX_RUN_FORCE", "1")
    with held_elsewhere("k", owner="other"):
        run_here("k", "--if-locked", "fail", "--", "true", code=75)
        done = run_here("k", "--force", "--if-locked", "fail", "--", "true", code=0)
    assert done.stderr.startswith(f"{SAYS}took 'k' by force: held by 'other' since 20")
    assert run_here("k", "--force", "--", "true", code=0).stderr == ""


def test_command_that_cannot_be_started_keeps_nothing(table, monkeypatch):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Watchdog, "__init__", refuse)
    run_here("k", "--hold-at-least", "1h", "--", "true", code=126)
    assert Mutex.for_key("k", model=Elsewhere).acquire(blocking=False)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("50", 50), ("0.5", 0.5), ("50s", 50), ("5m", 300), ("2h", 7200), ("1d", 86400), ("1.5m", 90)],
)
def test_durations(text, seconds):
    assert _output.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5x", "5 weeks", "1h30m", "0", "-1", "inf", "nan"])
def test_what_is_no_duration_is_refused(text):
    assert run_here("k", "--hold-at-least", text, "--", "true", code=2).stderr


# -- range keys ------------------------------------------------------------------------------------


def test_lock_with_a_range_key(engine):
    Shard.create_table()
    where = ("--model", f"{__name__}:Shard", "run", "a", "--range-key", "s1")
    with held_elsewhere(("a", "s1"), model=Shard), held_elsewhere(("a", "s2"), model=Shard):
        done = cli(*where, "--if-locked", "fail", "--", "true", code=75)
        assert done.stderr.startswith(f"{SAYS}'a s1' is locked")
    with held_elsewhere(("a", "s2"), model=Shard):
        cli(*where, "--", "true")
    assert Shard.get("a", "s1").expires_at is None
    with held_elsewhere(("a", "s1"), model=Shard):
        done = cli(*where, "--force", "--", "true")
        assert done.stderr.startswith(f"{SAYS}took 'a s1' by force: held by ")
