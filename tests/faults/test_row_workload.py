"""Row locks under load: several processes with bad networks, some of them stopped, some killed.

Each adds numbers to shared rows by reading, changing and writing them back. In the end the rows hold just
the numbers that were told as applied, and of the unknown ones some.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from teller import LEASE, ROWS, models

from dev.faultproxy import (
    Exchange,
    Fault,
    FaultProxy,
    apply_then_500,
    delay,
    drop_answer,
    drop_request,
    duplicate,
    fault_proxy,
    late_by,
    pass_on,
    server_error,
    throttle,
)
from pynamodb_mutex.testing import Engine

TELLERS = 4
WRITES = int(os.environ.get("PYNAMODB_MUTEX_WORKLOAD", "200"))
LONGEST = 5 * WRITES  # seconds; without load it takes a twentieth


def applied_later(chance: random.Random) -> Fault:
    """Reset at once, and applied by and by: perhaps after the next write, perhaps after the lease."""
    return late_by(lambda: chance.uniform(0, chance.choice([0.2, 2 * LEASE])))


def trouble(seed: int) -> Fault:
    """One request in eight meets a fault."""
    chance = random.Random(seed)
    faults = [
        drop_request(),
        drop_answer(),
        apply_then_500(),
        server_error(),
        throttle(),
        duplicate(),
        duplicate("second"),
        *[applied_later(chance)] * 3,
        delay(LEASE / 2),
    ]

    def meet(exchange: Exchange) -> None:
        fault = chance.choice(faults) if chance.random() < 1 / 8 else pass_on()
        fault.meet(exchange)

    return Fault("trouble", meet)


class Teller:
    """A process that writes, and what it wrote."""

    def __init__(self, place: int, table: str, proxy: FaultProxy, folder: Path) -> None:
        self.journal = folder / f"{place}.txt"
        script = str(Path(__file__).with_name("teller.py"))
        first = 100_000 * (place + 1)
        arguments = [table, proxy.url, str(self.journal), str(place), str(first)]
        self.process = subprocess.Popen([sys.executable, script, *arguments])

    def said(self) -> list[list[str]]:
        text = self.journal.read_text() if self.journal.exists() else ""
        return [line.split() for line in text.splitlines() if not line.startswith("#")]

    def numbers(self, word: str) -> set[int]:
        # the last line may be cut short by a kill
        return {int(words[1]) for words in self.said() if len(words) == 2 and words[0] == word}


class Nemesis:
    """Stops and kills tellers until enough was written."""

    def __init__(self, table: str, proxies: list[FaultProxy], folder: Path) -> None:
        self._table, self._proxies, self._folder = table, proxies, folder
        self._chance = random.Random(1)
        self.tellers: list[Teller] = []
        self.running: list[Teller] = []
        self.done: Counter[str] = Counter()

    def start(self, proxy: FaultProxy) -> None:
        teller = Teller(len(self.tellers), self._table, proxy, self._folder)
        self.tellers.append(teller)
        self.running.append(teller)

    def rage(self) -> None:
        for proxy in self._proxies:
            self.start(proxy)
        ends = time.monotonic() + LONGEST
        while time.monotonic() < ends and len(self.told("ok")) < WRITES:
            time.sleep(self._chance.uniform(0.5, 1.5))
            place = self._chance.randrange(TELLERS)
            teller = self.running[place]
            if self._chance.random() < 1 / 3:
                teller.process.kill()
                teller.process.wait()
                self.done["killed"] += 1
                self.running.remove(teller)
                self.start(self._proxies[place])
            else:
                teller.process.send_signal(signal.SIGSTOP)
                time.sleep(self._chance.uniform(0.5, 3) * LEASE)
                teller.process.send_signal(signal.SIGCONT)
                self.done["stopped"] += 1

    def end(self) -> None:
        for teller in self.running:
            teller.process.kill()
            teller.process.wait()
        time.sleep(2.5 * LEASE)  # for what is still under way

    def told(self, word: str) -> set[int]:
        return set().union(*(teller.numbers(word) for teller in self.tellers))


@pytest.fixture
def nemesis(engine: Engine, tmp_path: Path) -> Iterator[Nemesis]:
    account, twin = models(f"accounts-{uuid.uuid4().hex}", engine.endpoint_url)
    account.create_table(wait=True)
    for row in ROWS:
        account(row).save()
    twin("twin").save()
    with ExitStack() as stack:
        proxies = [stack.enter_context(fault_proxy(engine)) for _ in range(TELLERS)]
        for seed, proxy in enumerate(proxies):
            proxy.always(trouble(seed))
        nemesis = Nemesis(account.Meta.table_name, proxies, tmp_path)
        try:
            yield nemesis
        finally:
            for teller in nemesis.running:
                teller.process.kill()


@pytest.mark.real
@pytest.mark.unmeasured
@pytest.mark.timeout(2 * LONGEST)
def test_rows_hold_just_what_was_reported_as_applied(engine: Engine, nemesis: Nemesis) -> None:
    nemesis.rage()
    nemesis.end()
    account, twin = models(nemesis._table, engine.endpoint_url)
    rows = [account.get(name, consistent_read=True) for name in ROWS]
    written = set().union(*(row.numbers for row in rows))
    tried, applied, refused = (nemesis.told(word) for word in ("try", "ok", "no"))
    unknown = tried - applied - refused
    print(f"{len(applied)} applied, {len(refused)} refused, {len(unknown)} unknown, {nemesis.done}")
    assert len(applied) >= WRITES, "too few to tell"
    assert applied - written == set(), "told as applied, and not there"
    assert refused & written == set(), "told as not applied, and there"
    assert written - applied <= unknown
    assert sum(row.count for row in rows) == sum(len(row.numbers) for row in rows) == len(written)
    # the same without guards loses updates, which shows that there was something to lose
    unguarded = nemesis.told("twin")
    lost = unguarded - twin.get("twin", consistent_read=True).numbers
    print(f"unguarded: {len(lost)} of {len(unguarded)} lost")
    assert lost
