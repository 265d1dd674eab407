"""Several processes compete for one lock. One of them is killed while it holds the lock, another one is stopped.

Each process takes the lock again and again, and adds 1 to a counter before it releases the lock. In the end this
program shows who held the lock when, and checks that no two held it at once and that no addition was lost. Run it:
python examples/demo.py
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import NamedTuple

from playground import dynamodb
from pynamodb.signals import pre_dynamodb_send

from pynamodb_mutex import LockItem, Loss, Mutex, MutexLostError

NAMES = "ABCDEFGH"
KILLED, STOPPED = NAMES[0], NAMES[1]
LEASE = 2.0  # seconds: short, so that nobody waits long for the dead
REPORT_EVERY = 0.02
SECTION = (0.1, 0.4)  # seconds for which a process holds the lock
REST = 0.4  # seconds, at most, until it takes the lock again
PATIENCE = 30.0

INTRODUCTION = f"""\
Processes {{}} compete for one lock. Who has it adds 1 to a counter, which takes a moment.
If its holder dies, others can take it after its lease of {LEASE:g} s. They may wait up to 2.5 s more, to be sure:
DynamoDB shows the time in whole seconds.
"""


class Event(NamedTuple):
    """What a process did, and when: by a clock that all processes of one machine share.

    A process says every 20 ms that it "holds" the lock. The others are "ready", "sleeps", "stops", "writes" and
    "refused"; and of the parent, "kills", "continues" and "counts".
    """

    t: float
    who: str
    what: str
    fence: int = 0  # the fencing token of the lock that it is about
    value: int = 0  # that the counter is set to, or has
    text: str = ""  # why a write was refused


class Section(NamedTuple):
    """A time for which a process held the lock: from its first report to its last one."""

    who: str
    fence: int
    start: float
    end: float


# What a process does


class Worker:
    """One of the processes that compete."""

    def __init__(self, name: str, key: str, talk: Connection) -> None:
        self.name = name
        self.talk = talk
        self.mutex = Mutex.for_key(key, lease=LEASE, owner=name, poll=(0.05, 0.2))

    def say(self, what: str, t: float | None = None, value: int = 0, text: str = "") -> None:
        fence = self.mutex.fencing_token if what != "ready" else 0
        t = time.monotonic() if t is None else t
        self.talk.send(Event(t, self.name, what, fence, value, text))

    def compete(self) -> None:
        """Acquire and release the lock until the parent says that it is over."""
        self.mutex.locked()  # the first request takes long, for botocore is loaded
        self.say("ready")
        order = self.talk.recv()
        while order != "end":
            try:
                with self.mutex:
                    self.work(order)
            except MutexLostError as error:
                if error.applied is not False:
                    raise  # nobody could know what the counter has to be
            order = self.talk.recv() if self.talk.poll(random.uniform(0, REST)) else "go"

    def work(self, order: str) -> None:
        """Add 1 to the counter that the lock's row carries, and take time over it."""
        count = (self.mutex.data or 0) + 1
        self.hold(random.uniform(*SECTION))
        if order == "die":
            self.say("sleeps")
            self.hold(PATIENCE)  # it is killed here
        if order == "stop":
            pre_dynamodb_send.connect(self.stop)
        try:
            self.mutex.save_data(count)  # DynamoDB does it only if the lock is still ours
        except MutexLostError as error:
            self.say("refused", text=error.loss.value)
            self.report()  # says nothing if all is well: we hold the lock no more
            raise
        self.say("writes", value=count)
        self.report()

    def hold(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.report()
        while time.monotonic() < end:
            time.sleep(REPORT_EVERY)
            self.report()

    def report(self) -> None:
        """Say that we hold the lock, if we do."""
        t = time.monotonic()  # before the check: if it says yes, we held it at this time, too
        if self.mutex.held:
            self.say("holds", t)

    def stop(self, _: object, **__: object) -> None:
        """Stop this process. PynamoDB calls this right before it sends a request."""
        if threading.current_thread() is threading.main_thread():  # other threads send renewals
            pre_dynamodb_send.disconnect(self.stop)
            self.say("stops")
            os.kill(os.getpid(), signal.SIGSTOP)


def compete(name: str, key: str, talk: Connection) -> None:
    Worker(name, key, talk).compete()


# What the parent does


class Show:
    """Starts the processes, interferes with two of them, and notes what happens."""

    def __init__(self) -> None:
        self.key = f"demo-{uuid.uuid4().hex[:8]}"  # of this run alone
        self.events: list[Event] = []
        self.talks: dict[str, Connection] = {}
        self.processes: dict[str, SpawnProcess] = {}
        self.begin = time.monotonic()

    def start(self, names: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        # the processes inherit it: Ctrl-C is for us, who end them
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name in names:
            self.talks[name], theirs = spawn.Pipe()
            process = spawn.Process(target=compete, args=(name, self.key, theirs), daemon=True)
            process.start()
            theirs.close()
            self.processes[name] = process
        signal.signal(signal.SIGINT, before)

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()  # ends a stopped one, too
            process.join()

    def run(self, seconds: float) -> None:
        for name in self.processes:
            self.expect("ready", who=name)
        self.begin = time.monotonic()
        self.order("go", *self.processes)

        self.listen(until=0.2 * seconds)
        self.order("die", KILLED)
        fence = self.expect("sleeps", who=KILLED).fence
        self.processes[KILLED].kill()
        self.processes[KILLED].join()
        self.note(KILLED, "kills", fence)
        self.say(f"{KILLED} holds the lock, and is killed (SIGKILL): it cannot release the lock")
        self.wait_for_heir(KILLED, fence)

        self.listen(until=0.5 * seconds)
        self.order("stop", STOPPED)
        fence = self.expect("stops", who=STOPPED).fence
        self.say(
            f"{STOPPED} holds the lock, and is stopped (SIGSTOP) right before it sends a write"
        )
        self.wait_for_heir(STOPPED, fence)
        self.note(STOPPED, "continues", fence)
        os.kill(self.processes[STOPPED].pid or 0, signal.SIGCONT)
        self.say(f"{STOPPED} is continued (SIGCONT), and sends its write, too late")
        answer = self.expect("refused", "writes", who=STOPPED, above=fence - 1)
        outcome = f"refused: {answer.text}" if answer.what == "refused" else "applied"
        self.say(f"{STOPPED} learns that its write was {outcome}")

        self.listen(until=seconds)
        self.order("end", *self.talks)
        self.await_(lambda: not self.talks, "the processes end")
        self.note("", "counts", value=LockItem.get(self.key, consistent_read=True).data or 0)

    def wait_for_heir(self, name: str, fence: int) -> None:
        since = time.monotonic()
        next_holder = self.expect("holds", above=fence)
        gap = next_holder.t - since
        self.say(
            f"{next_holder.who} takes the lock over {gap:.1f} s later, as the lease of {name} is over"
        )

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begin:5.1f} s  {text}", flush=True)

    def note(self, who: str, what: str, fence: int = 0, value: int = 0) -> None:
        self.events.append(Event(time.monotonic(), who, what, fence, value))

    def order(self, what: str, *names: str) -> None:
        """Say to processes what to do when they have the lock next."""
        for name in names:
            self.talks[name].send(what)

    def listen(self, until: float) -> None:
        end = self.begin + until
        while (left := end - time.monotonic()) > 0:
            self.hear(left)

    def expect(self, *whats: str, who: str = "", above: int = -1) -> Event:
        """Listen until there is such an event, of a certain process or any, with a token above another one."""

        def found() -> list[Event]:
            return [
                event
                for event in self.events
                if event.what in whats and who in ("", event.who) and event.fence > above
            ]

        self.await_(found, f"{who or 'somebody'} {whats[0]}")
        return found()[0]

    def await_(self, condition: Callable[[], object], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                sys.exit(f"BROKEN: waited {PATIENCE:g} s in vain: {what}")
            self.hear(0.1)

    def hear(self, timeout: float) -> None:
        """Note what the processes say, and which of them end."""
        names = {talk: name for name, talk in self.talks.items()}
        for talk in wait(list(names), timeout):
            assert isinstance(talk, Connection)
            name = names[talk]
            try:
                self.events.append(talk.recv())
            except (EOFError, OSError):
                del self.talks[name]
                self.processes[name].join()
                if self.processes[name].exitcode not in (0, -signal.SIGKILL):
                    sys.exit(f"BROKEN: {name} failed")


# What came of it


def sections_of(events: Iterable[Event]) -> list[Section]:
    """Return who held the lock when, in the order of time."""
    times: dict[tuple[str, int], list[float]] = {}
    for event in events:
        if event.what == "holds":
            times.setdefault((event.who, event.fence), []).append(event.t)
    found = [Section(who, fence, min(seen), max(seen)) for (who, fence), seen in times.items()]
    return sorted(found, key=lambda section: section.start)


def judge(events: Iterable[Event]) -> list[str]:
    """Return what is wrong with a run, in words."""
    events = sorted(events)
    sections = sections_of(events)
    failures = []
    for before, after in pairwise(sections):
        if after.start <= before.end:
            failures.append(f"{before.who} and {after.who} held the lock at the same time")
        if after.fence <= before.fence:
            failures.append(f"the fencing token of {after.who} is not above that of {before.who}")
    failures += _judge_kill(events, sections)
    failures += _judge_stop(events, sections)
    writes = sorted((e for e in events if e.what == "writes"), key=lambda event: event.value)
    values = [write.value for write in writes]
    if values != list(range(1, len(writes) + 1)):
        failures.append(f"an addition was lost: the counter was set to {values}")
    if any(before.fence >= after.fence for before, after in pairwise(writes)):
        failures.append("a holder wrote after a later one")
    counted = sum(event.value for event in events if event.what == "counts")
    if counted != len(writes):
        failures.append(f"the counter is {counted} after {len(writes)} writes")
    return failures


def _judge_kill(events: list[Event], sections: list[Section]) -> list[str]:
    kill = next((event for event in events if event.what == "kills"), None)
    if kill is None or not any(section.fence == kill.fence for section in sections):
        return ["nobody was killed while it held the lock"]
    if not any(section.start > kill.t and section.who != kill.who for section in sections):
        return [f"nobody took the lock over from {kill.who}, which was killed"]
    return []


def _judge_stop(events: list[Event], sections: list[Section]) -> list[str]:
    stop = next((event for event in events if event.what == "stops"), None)
    if stop is None:
        return ["nobody was stopped while it held the lock"]
    about = {event.what: event for event in events if event.fence == stop.fence}
    if "continues" not in about:
        return [f"{stop.who} was stopped, and not continued"]
    if not any(stop.t < section.start < about["continues"].t for section in sections):
        return [f"nobody took the lock over while {stop.who} was stopped"]
    if "refused" not in about or about["refused"].text != Loss.TAKEN.value:
        return [f"the late write of {stop.who} was not refused"]
    return []


def table_of(events: list[Event], names: str, begin: float) -> list[str]:
    """Return a line for each section, with a column for each process."""
    did = {"kills": "killed", "refused": "refused"}
    cells = {event.fence: did[event.what] for event in events if event.what in did}
    cells |= {event.fence: str(event.value) for event in events if event.what == "writes"}
    lines = ["  from    till  fencing token" + "".join(f"{name:>9}" for name in names)]
    for who, fence, start, end in sections_of(events):
        columns = [cells.get(fence, "lost") if name == who else "." for name in names]
        row = "".join(f"{cell:>9}" for cell in columns)
        lines.append(f"{start - begin:6.2f}  {end - begin:6.2f}  {fence:13}{row}")
    return lines


def report(events: list[Event], names: str, begin: float) -> int:
    print("\nWho held the lock, in seconds since the start, and what it set the counter to:\n")
    print("\n".join(table_of(events, names, begin)), end="\n\n")
    failures = judge(events)
    for failure in failures:
        print(f"BROKEN: {failure}")
    if failures:
        return 1
    print("No two processes held the lock at the same time, and the fencing tokens only grow.")
    print(f"The counter is {events[-1].value}: each addition that was not refused is in it once.")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    numbers = range(3, len(NAMES) + 1)
    parser.add_argument("--processes", type=int, default=4, choices=numbers, help="how many")
    parser.add_argument("--seconds", type=float, default=10, help="how long, at least")
    options = parser.parse_args()
    names = NAMES[: options.processes]
    print(INTRODUCTION.format(", ".join(names)), flush=True)
    show = Show()
    try:
        with dynamodb():
            LockItem.create_table()
            try:
                show.start(names)
                show.run(options.seconds)
            finally:
                show.close()
    except KeyboardInterrupt:
        return 130
    return report(show.events, names, show.begin)


if __name__ == "__main__":
    sys.exit(main())
