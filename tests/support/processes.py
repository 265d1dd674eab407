"""Processes that tests start: workers that run code, forked children, and scripts; and a system that refuses threads.

Run as a script this is a worker. Its wall clock is as wrong as the test says, from before botocore is imported: so nothing
here imports that.
"""

import asyncio
import datetime as dt
import json
import math
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from contextlib import ExitStack, contextmanager, suppress
from unittest.mock import patch

# -- in the worker's process

_steps = []
step = _steps.append
"""Move the wall clock of this process by some seconds."""
_true_time, _true_time_ns = time.time, time.time_ns


def falsify_wall_clock():
    """Let `step` move the time of day in this process, and no other time."""

    class Datetime(dt.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(time.time(), tz)

        @classmethod
        def utcnow(cls):
            return cls.now(dt.timezone.utc).replace(tzinfo=None)

    time.time = lambda: _true_time() + sum(_steps)
    time.time_ns = lambda: _true_time_ns() + int(sum(_steps) * 1e9)
    dt.datetime = Datetime


def compete(key, seconds, lease, *, expected=(), **options):
    """Acquire and release a lock repeatedly; some sections last longer than the lease.

    Args:
        expected: Errors, besides the loss of the lock, after which it goes on.

    Returns:
        Of each section, between which times the lock was surely held, by the clock that processes of one host share.
    """
    from pynamodb_mutex import Mutex, MutexLostError

    sections = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or not sections:
        mutex = Mutex.for_key(key, lease=lease, poll=(0.01, 0.1), **options)
        with suppress(MutexLostError, *expected), mutex:
            leaves = time.monotonic() + random.choice([0, 0, 0.005, 0.02, 0.02, 1.2 * lease])
            since = until = now = time.monotonic()
            # the time is taken before the question: it was held at least until then
            while mutex.held and until < leaves:
                until, now = now, time.monotonic()
                time.sleep(0.002)
            sections.append([since, until])
        time.sleep(random.uniform(0, 0.02))
    return sections


def count_up(tasks, sections):
    """Let tasks count in a row that only their lock guards; return their fencing tokens."""
    from pynamodb_mutex import LockItem
    from pynamodb_mutex.aio import AsyncMutex

    tokens = []

    def count():
        row = LockItem.get("counter", consistent_read=True)
        row.writes = int(row.writes) + 1
        time.sleep(0.01)
        row.save(add_version_condition=False)

    async def work():
        mutex = AsyncMutex.for_key("shared", lease=20, timeout=60, poll=(0.01, 0.1))
        for _ in range(sections):
            async with mutex:
                tokens.append(mutex.fencing_token)
                await asyncio.to_thread(count)

    async def main():
        await asyncio.gather(*(work() for _ in range(tasks)))

    asyncio.run(main())
    return tokens


def hold_by_a_task(key, lease):
    """Acquire a lock by a task, and never release it."""
    from pynamodb_mutex.aio import AsyncMutex

    return asyncio.run(AsyncMutex.for_key(key, lease=lease).acquire())


def _serve():
    import pynamodb_mutex
    from pynamodb_mutex import testing

    names = {**globals(), **vars(pynamodb_mutex), "testing": testing}
    for line in sys.stdin:
        code = json.loads(line)
        reply = {"value": None}
        try:
            try:
                reply["value"] = eval(code, names)
            except SyntaxError:
                exec(code, names)
        except Exception as error:
            reply = {"error": type(error).__name__, "text": traceback.format_exc()}
        print(json.dumps(reply, default=str), flush=True)


# -- in the test's process


class Worker:
    """A process that runs one piece of code after another.

    Args:
        wall_clock: Seconds by which its time of day is wrong.
    """

    def __init__(self, wall_clock=0.0):
        command, pipe = [sys.executable, __file__, str(wall_clock)], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0)

    def send(self, code):
        self._process.stdin.write(json.dumps(code).encode() + b"\n")

    def answer(self, timeout=60.0, *, of="value"):
        """Return the value of the next piece of code that was sent, or with ``of="error"`` the name of what it raised."""
        ready, _, _ = select.select([self._process.stdout], [], [], timeout)
        assert ready, "the worker does not answer"
        reply = json.loads(self._process.stdout.readline())
        assert of in reply, reply
        return reply[of]

    def ask(self, code):
        self.send(code)
        return self.answer()

    def stop(self):
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self):
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def end(self):
        with suppress(OSError):
            self.go_on()
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()


@contextmanager
def workers(*wall_clocks):
    """Run workers whose wall clocks are wrong by so many seconds."""
    with ExitStack() as stack:
        started = [Worker(offset) for offset in wall_clocks]
        for worker in started:
            stack.callback(worker.end)
        yield started


class Fork:
    """A forked child of this process that runs one function."""

    def __init__(self, function):
        self._result, write = os.pipe()
        self._pid = os.fork()
        if self._pid:
            os.close(write)
            return
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # nobody is left behind, whatever becomes of the test
        try:
            reply = {"value": function()}
        except BaseException:
            reply = {"error": traceback.format_exc()}
        os.write(write, json.dumps(reply).encode())
        os._exit(0)

    def value(self, timeout=40.0):
        """Wait for the child, and return what its function returned; kill it if it hangs."""
        ready, _, _ = select.select([self._result], [], [], timeout)
        with suppress(ProcessLookupError):
            if not ready:
                os.kill(self._pid, signal.SIGKILL)
        with os.fdopen(self._result, "rb") as result:
            text = result.read()
        os.waitpid(self._pid, 0)
        assert ready, "the forked child hangs"
        reply = json.loads(text)
        assert "error" not in reply, reply["error"]
        return reply["value"]


def forked(function):
    """Return what a function returns in a forked child."""
    return Fork(function).value()


def run_script(script, *arguments):
    """Run a script in a process of its own to its end."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def is_there(pid):
    """Return whether a process runs: one that has ended and was not waited for does not."""
    asked = ["ps", "-o", "state=", "-p", str(pid)]
    state = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return state.strip()[:1] not in {"", "Z"}


# -- threads that the system refuses


class Refusals:
    """A system that refuses threads to the library, as one does at a limit or without memory.

    Attributes:
        left: The number of threads that are still refused, of those whose names end with `only`.
        error: Raised for each that is refused.
        refused: The names of the refused threads.
        started: Starts a thread that is not refused.
    """

    def __init__(self, start):
        self.left, self.only, self.refused, self.started = 0, "", [], start
        self.error = RuntimeError("can't start new thread")

    def all(self, only=""):
        """Refuse all from now on, or all whose names end so."""
        self.left, self.only = math.inf, only

    def none(self):
        """Refuse none from now on."""
        self.left = 0

    def start(self, thread):
        is_ours = thread.name.startswith("pynamodb-mutex") and thread.name.endswith(self.only)
        if self.left > 0 and is_ours:
            self.left -= 1
            self.refused.append(thread.name)
            raise self.error
        self.started(thread)


@contextmanager
def refusing():
    """Let the system refuse threads inside the block, as its `Refusals` say."""
    refusals = Refusals(threading.Thread.start)
    with patch.object(threading.Thread, "start", lambda thread: refusals.start(thread)):  # noqa: PLW0108 - a method would not get the thread
        yield refusals


if __name__ == "__main__":
    falsify_wall_clock()
    step(float(sys.argv[1]))
    _serve()
