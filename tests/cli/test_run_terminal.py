"""``pynamodb-mutex run`` at a terminal: what a person sees and types."""

from __future__ import annotations

import os
import signal
import sys

import pytest

pytest.importorskip("click")
pytest.importorskip("rich")
pytest.importorskip("pexpect")

import pexpect
from run_scene import GENEROUS, RUN, is_there, text_in, until, watched

from dev.faultproxy import fault_proxy, server_error
from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import held_elsewhere

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="needs a terminal")


@pytest.fixture
def typed():
    started = []

    def start(*arguments, endpoint=None):
        moved = {} if endpoint is None else {"AWS_ENDPOINT_URL_DYNAMODB": endpoint}
        started.append(
            pexpect.spawn(
                RUN[0],
                [*RUN[1:], *map(str, arguments)],
                dimensions=(24, 100),
                encoding="utf-8",
                timeout=GENEROUS,
                env=os.environ | {"TERM": "xterm"} | moved,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.close(force=True)


def code(process):
    process.expect(pexpect.EOF)
    process.close()
    return process.exitstatus


def test_who_is_waited_for_is_shown_until_it_is_free(embedded, typed):
    with held_elsewhere("k", owner="night shift"):
        process = typed("k", "--", "sh", "-c", "read line; echo got $line")
        process.expect(r"waiting for 'k' for \d+ s: held by 'night shift' since 20..-..-..")
        process.expect("waiting for 'k' for [1-9]")
        assert LockItem.force_release("k")
        # the command reads from the terminal
        process.sendline("it")
        process.expect("got it")
        assert code(process) == 0


def test_log_records_stand_on_lines_of_their_own(embedded, embedded_engine, typed):
    with fault_proxy(embedded_engine) as proxy, held_elsewhere("k"):
        process = typed("k", "--verbose", "--", "true", endpoint=proxy.url)
        process.expect("waiting for 'k' for [1-9]")
        proxy.always(server_error(), op="GetItem")
        process.expect("GetItem failed")
        # the line of the spinner was cleared before, and drawn anew after
        _, cleared, line = process.before.rpartition("\x1b[2K")
        assert cleared
        assert line == "pynamodb-mutex run: "
        proxy.clear()
        process.expect("waiting for 'k' for")
        process.sendintr()
        assert code(process) == 130


def test_ctrl_c_while_it_waits(embedded, typed):
    with held_elsewhere("k") as item:
        process = typed("k", "--", "true")
        process.expect("waiting for 'k'")
        process.sendintr()
        assert code(process) == 130
        assert LockItem.get("k").token == item.token


def test_ctrl_c_is_the_commands(embedded, typed):
    script = "import time\ntry: print('on'); time.sleep(60)\nexcept KeyboardInterrupt: time.sleep(1); exit(9)"
    process = typed("k", "--grace", 0.2, "--", sys.executable, "-c", script)
    process.expect("on")
    process.sendintr()
    # it takes longer than the grace, which is not for what is typed
    assert code(process) == 9


def test_asked_to_end_it_signals_the_command_alone(embedded, typed, tmp_path):
    process = typed("k", "--", "sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 60")
    text_in(tmp_path / "pid")
    process.kill(signal.SIGTERM)
    assert code(process) == 128 + signal.SIGTERM
    assert not LockItem.get("k", consistent_read=True).is_held


def test_killed_it_leaves_no_command(embedded, typed, tmp_path):
    process = typed(
        "k", "--grace", 0.2, "--", "sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 60"
    )
    pid = watched(tmp_path / "pid")
    process.kill(signal.SIGKILL)
    until(lambda: not is_there(pid))
