"""Row locks under load: several processes with bad networks, some of them stopped, some killed.

Each adds numbers to shared rows by reading, changing and writing them back. In the end the rows hold exactly the
numbers that were reported as applied, and some of those of unknown outcome.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from row_writer import LEASE, ROWS, models

from dev import faultproxy as net

PROCESSES = 4
WRITES = int(os.environ.get("PYNAMODB_MUTEX_WORKLOAD", "100"))
LONGEST = 5 * WRITES  # seconds; without load it takes a twentieth


def faults(seed):
    """One request in eight meets a fault."""
    chance = random.Random(seed)
    # perhaps after the next write, perhaps after the lease
    later = net.late_by(lambda: chance.uniform(0, chance.choice([0.2, 2 * LEASE])))
    several = [
        net.drop_request(),
        net.drop_answer(),
        net.apply_then_500(),
        net.server_error(),
        net.throttle(),
    ]
    # Not the answer to the second of two copies: another may lock the row between an unlocking write and its copy, and the
    # refusal of the copy then looks like that of a write which came too late.
    several += [net.duplicate(), later, later, later, net.delay(LEASE / 2)]

    def meet(exchange):
        fault = chance.choice(several) if chance.random() < 1 / 8 else net.pass_on()
        fault.meet(exchange)

    return net.Fault("one in eight", meet)


class Writers:
    """The processes that run, and the journals of all that ran."""

    def __init__(self, start, folder):
        self._start, self._folder = start, folder
        self.running = {}

    def start(self, place):
        count = len(list(self._folder.iterdir())) + 1
        journal = self._folder / f"{count}.txt"
        journal.touch()
        self.running[place] = self._start(place, journal, 100_000 * count)

    def kill(self, place):
        self.running[place].kill()
        self.running.pop(place).wait()

    def disturb(self):
        """Stop and kill processes until enough is written."""
        chance = random.Random(1)
        for place in range(PROCESSES):
            self.start(place)
        ends = time.monotonic() + LONGEST
        while time.monotonic() < ends and len(self.numbers("ok")) < WRITES:
            time.sleep(chance.uniform(0.2, 0.8))
            place = chance.randrange(PROCESSES)
            if chance.random() < 1 / 3:
                self.kill(place)
                self.start(place)
            else:
                self.running[place].send_signal(signal.SIGSTOP)
                time.sleep(chance.uniform(0.5, 2) * LEASE)
                self.running[place].send_signal(signal.SIGCONT)
        for place in range(PROCESSES):
            self.kill(place)
        time.sleep(2.5 * LEASE)  # for what is still under way

    def numbers(self, word):
        """Return the numbers of which the journals have this word."""
        texts = [journal.read_text() for journal in self._folder.iterdir()]
        lines = [line.split() for text in texts for line in text.splitlines()]
        # the last line may be cut short by a kill
        return {int(line[1]) for line in lines if len(line) == 2 and line[0] == word}


@pytest.mark.real("local")
@pytest.mark.unmeasured
@pytest.mark.timeout(2 * LONGEST)
def test_rows_hold_exactly_what_was_reported_as_applied(engine, tmp_path):
    account, unguarded = models(f"accounts-{uuid.uuid4().hex}", engine.endpoint_url)
    account.create_table(wait=True)
    for row in ROWS:
        account(row).save()
    unguarded("unguarded").save()
    with ExitStack() as stack:
        proxies = [stack.enter_context(net.fault_proxy(engine)) for _ in range(PROCESSES)]
        for seed, proxy in enumerate(proxies):
            proxy.always(faults(seed))

        def start(place, journal, first):
            script = Path(__file__).with_name("row_writer.py")
            at = (account.Meta.table_name, proxies[place].url)
            return subprocess.Popen(
                [sys.executable, *map(str, (script, *at, journal, place, first))]
            )

        writers = Writers(start, tmp_path)
        stack.callback(lambda: [writers.kill(place) for place in list(writers.running)])
        writers.disturb()
    rows = [account.get(name, consistent_read=True) for name in ROWS]
    written = set().union(*(row.numbers for row in rows))
    tried, applied, refused = (writers.numbers(word) for word in ("try", "ok", "no"))
    assert len(applied) >= WRITES
    assert applied - written == set(), "reported as applied, and not there"
    assert refused & written == set(), "reported as not applied, and there"
    assert written - applied <= tried - applied - refused
    assert sum(row.count for row in rows) == sum(len(row.numbers) for row in rows) == len(written)
    # the same without guards loses updates, which shows that there was something to lose
    assert writers.numbers("unguarded") - unguarded.get("unguarded", consistent_read=True).numbers
