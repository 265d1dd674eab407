"""``pynamodb-mutex run``: when the command is ended, by what, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")

from run_scene import free, is_there, outcome, run_here, running, text_in, until, watched

from dev.faultproxy import fault_proxy, stall
from pynamodb_mutex import LockItem
from pynamodb_mutex.cli._child import Child
from pynamodb_mutex.testing import held_elsewhere

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="sends signals"),
]

STUBBORN = "trap '' TERM INT HUP; echo $$ >{0}; while :; do sleep 0.05; done"


def stubborn(path):
    """Return a command that ignores what asks it to end, and writes its process id."""
    return ["sh", "-c", STUBBORN.format(path)]


def is_held(key="k"):
    return LockItem.get(key, consistent_read=True).is_held


@contextmanager
def meanwhile(path, action):
    """Do something, on a thread, as soon as the command has written its process id."""
    thread = threading.Thread(target=lambda: action(int(text_in(path))))
    thread.start()
    yield
    thread.join()


# -- signals -----------------------------------------------------------------------------------------


def test_a_signal_is_passed_on_and_the_lock_released_after_the_command(table, tmp_path):
    # what it starts is told too, and the lock is there until it has cleaned up
    command = (
        f"trap 'echo hup >{tmp_path}/hup' HUP; trap 'sleep 1; echo done >{tmp_path}/done; exit 3' TERM;"
        f"echo $$ >{tmp_path}/pid; while :; do sleep 0.05; done"
    )
    with running("k", "--", "sh", "-c", command) as process:
        text_in(tmp_path / "pid")
        process.send_signal(signal.SIGHUP)
        assert text_in(tmp_path / "hup") == "hup\n"
        assert is_held()
        process.send_signal(signal.SIGTERM)
        while True:
            held = is_held()
            if (tmp_path / "done").exists():
                break  # and the lock may have been released since
            assert held
        assert outcome(process)[0] == 3
    assert free()


def test_a_command_that_ignores_signals_is_killed_with_all_its_group(embedded, tmp_path):
    command = f"({STUBBORN.format(tmp_path / 'grandchild')}) & exec sleep 60"
    with meanwhile(tmp_path / "grandchild", lambda _: os.kill(os.getpid(), signal.SIGTERM)):
        told = run_here("k", "--grace", 0.5, "--", "sh", "-c", command)
    assert told.exit_code == 128 + signal.SIGTERM
    assert told.stderr == "pynamodb-mutex run: the command has not ended in time: killing it\n"
    assert not is_there(int(text_in(tmp_path / "grandchild")))
    assert free()


def test_a_stopped_command_is_ended(embedded, tmp_path):
    def stop_and_ask(pid):
        os.kill(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGINT)

    with meanwhile(tmp_path / "pid", stop_and_ask):
        told = run_here("k", "--", "sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 60")
    assert (told.exit_code, told.stderr) == (128 + signal.SIGINT, "")


def test_what_was_ignored_stays_ignored(embedded, tmp_path):
    command = f"echo $$ >{tmp_path}/pid; exec sleep 1"
    nohup = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    with running("k", "--", "sh", "-c", command, **nohup) as process:
        pid = int(text_in(tmp_path / "pid"))
        process.send_signal(signal.SIGHUP)
        os.kill(pid, signal.SIGHUP)
        assert outcome(process) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_it_waits_leaves_nothing_held(embedded, tmp_path, number):
    with held_elsewhere("k") as item:
        with running("k", "--verbose", "--", "touch", tmp_path / "ran") as process:
            assert "waiting for 'k': held by 'elsewhere' since 20" in process.stderr.readline()
            process.send_signal(signal.SIGUSR1)  # for a command, if there were one
            process.send_signal(number)
            assert outcome(process) == (128 + number, "")
        assert LockItem.get("k").token == item.token
    assert not (tmp_path / "ran").exists()
    assert free()


def test_a_signal_before_the_command_is_started(embedded, tmp_path):
    def on_sight():
        until(lambda: LockItem.count("k") and LockItem.get("k").is_held)
        os.kill(os.getpid(), signal.SIGTERM)

    # it comes between the taking of the lock and the start of the command, or just before or after
    thread = threading.Thread(target=on_sight)
    thread.start()
    told = run_here("k", "--", "sleep", "60")
    thread.join()
    assert told.exit_code == 128 + signal.SIGTERM
    assert free()


def test_who_is_asked_to_end_has_its_grace_beyond_the_deadline(embedded, tmp_path):
    with meanwhile(tmp_path / "pid", lambda _: os.kill(os.getpid(), signal.SIGTERM)):
        told = run_here("k", "--deadline", 0.5, "--grace", 1, "--", *stubborn(tmp_path / "pid"))
    assert told.exit_code == 128 + signal.SIGKILL
    assert told.stderr == "pynamodb-mutex run: the command has not ended in time: killing it\n"


# -- deadline ----------------------------------------------------------------------------------------


def test_the_deadline(embedded, tmp_path):
    told = run_here("k", "--deadline", 0.3, "--grace", 0.3, "--", *stubborn(tmp_path / "pid"))
    assert told.exit_code == 124
    assert told.stderr.splitlines() == [
        "pynamodb-mutex run: the command has run for 0.3 s: ending the command",
        "pynamodb-mutex run: the command has not ended in time: killing it",
    ]
    assert not is_there(int(text_in(tmp_path / "pid")))
    assert free()


def test_the_deadline_of_a_command_of_another_user(embedded, monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "killpg", refuse)
    told = run_here("k", "--deadline", 0.1, "--grace", 0.1, "--", "sleep", "1")
    assert told.exit_code == 124
    assert "it runs as another user and cannot be ended: waiting for it" in told.stderr


# -- loss --------------------------------------------------------------------------------------------


def test_a_broken_lock_ends_the_command(table, tmp_path):
    with running("k", "--lease", 9, "--grace", 0.5, "--", *stubborn(tmp_path / "pid")) as process:
        pid = int(text_in(tmp_path / "pid"))
        assert LockItem.force_release("k")
        code, error = outcome(process)
    assert code == 76
    assert "the lock was lost: its claim was broken by force: ending the command" in error
    assert "killing it" in error
    assert not is_there(pid)


def test_a_lock_broken_while_the_command_ends_by_itself(table, tmp_path):
    command = f"echo 1 >{tmp_path}/started; read line"
    with running("k", "--", "sh", "-c", command, stdin=subprocess.PIPE) as process:
        text_in(tmp_path / "started")
        assert LockItem.force_release("k")
        code, error = outcome(process)
    assert code == 76
    assert "the lock had been lost when the command ended: its claim was broken by force" in error


def test_without_dynamodb_the_command_is_over_before_the_lease(engine, table, tmp_path):
    command = (
        f"trap 'date +%s.%N >{tmp_path}/told; trap \"\" TERM' TERM; echo $$ >{tmp_path}/pid;"
        f"while :; do date +%s.%N >{tmp_path}/now; mv {tmp_path}/now {tmp_path}/alive; sleep 0.02; done"
    )
    # the grace is longer than a machine stalls, or the signals would come when the lease is over
    options = ["--lease", 9, "--grace", 4]
    with (
        fault_proxy(engine) as proxy,
        running("k", "--endpoint-url", proxy.url, *options, "--", "sh", "-c", command) as process,
    ):
        text_in(tmp_path / "pid")
        proxy.always(stall())
        code, error = outcome(process)
        ended = LockItem.get("k", consistent_read=True).expires_at
        alive = float((tmp_path / "alive").read_text())
    assert code == 76
    assert "could not be renewed and is about to end: ending the command" in error
    assert "the lock was lost: DynamoDB could not be reached until its lease ended" in error
    # SIGTERM with notice, SIGKILL when the lease ends: both clocks are this machine's
    assert float((tmp_path / "told").read_text()) < ended - 0.3
    assert alive < ended


def test_a_lock_that_cannot_be_released(engine, table, tmp_path):
    command = f"echo 1 >{tmp_path}/started; read line"
    with (
        fault_proxy(engine) as proxy,
        running(
            "k",
            "--endpoint-url",
            proxy.url,
            "--lease",
            9,
            "--",
            "sh",
            "-c",
            f"{command}; exit 5",
            stdin=subprocess.PIPE,
        ) as process,
    ):
        text_in(tmp_path / "started")
        proxy.always(stall(), op="release")
        code, error = outcome(process)
    assert code == 5
    assert "the lock could not be released, and expires with its lease" in error


# -- the watchdog ------------------------------------------------------------------------------------


def test_killed_it_leaves_no_command(embedded, tmp_path):
    with running("k", "--lease", 30, "--grace", 0.5, "--", *stubborn(tmp_path / "pid")) as process:
        pid = watched(tmp_path / "pid")
        process.kill()
        until(lambda: not is_there(pid))
        assert is_held()
        assert "gone or stopped: ending its command" in outcome(process)[1]


def test_stopped_it_leaves_no_command_beyond_the_lease(embedded, tmp_path):
    with running("k", "--lease", 3, "--grace", 0.3, "--", *stubborn(tmp_path / "pid")) as process:
        pid = watched(tmp_path / "pid")
        process.send_signal(signal.SIGSTOP)
        until(lambda: not is_there(pid))
        process.send_signal(signal.SIGCONT)
        assert outcome(process)[0] == 76


def test_the_watchdog_can_be_missed(embedded, tmp_path):
    with running("k", "--lease", 30, "--", "sh", "-c", f"echo 1 >{tmp_path}/1; sleep 2") as process:
        text_in(tmp_path / "1")
        listed = subprocess.run(
            ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process.pid)],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        (watchdog,) = (line.split()[0] for line in listed.splitlines() if "_watchdog.py" in line)
        os.kill(int(watchdog), signal.SIGKILL)
        assert outcome(process) == (0, "")


# -- a container's first process ---------------------------------------------------------------------


@pytest.mark.parametrize("own_group", [True, False])
def test_a_command_that_has_ended_can_be_asked_to(own_group):
    child = Child("/bin/sh", ["sh", "-c", ":"], os.environ, own_group=own_group, adopts=False)
    while child.exit_code is None:
        child.look()
    assert child.end()
    assert not child.leaves_others


ADOPTS = """
import ctypes, os, sys, time
from pynamodb_mutex.cli._child import Child
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # a subreaper: orphans come to it, as to process 1
script = "(sh -c 'echo $$ >orphan; sleep 0.2' &) ; sleep 1; exit 4"
child = Child("/bin/sh", ["sh", "-c", script], os.environ, own_group=True, adopts=True)
while child.exit_code is None:
    child.look()
    time.sleep(0.02)
    if os.path.exists("orphan") and child.exit_code is None:
        orphan = int(open("orphan").read() or 0)
child.look()
try:
    os.kill(orphan, 0)
except ProcessLookupError:
    sys.exit(child.exit_code)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux has subreapers")
def test_orphans_are_waited_for(tmp_path):
    done = subprocess.run([sys.executable, "-c", ADOPTS], cwd=tmp_path, check=False, timeout=60)
    assert done.returncode == 4
