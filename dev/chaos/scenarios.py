"""Directed schedules: two clients in one process, and exactly the fault that shows whether one rule is kept.

Each runs without a violation on the library as it is, and with one on the variant of `broken` that lacks the rule. So
they show that the checker notices each broken rule; random runs may take long to hit the schedule. `CASES` says which
schedule belongs to which variant. Tests run them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dev.chaos.broken import wall_offsets
from dev.chaos.checker import check
from dev.chaos.history import Recorder, read
from dev.chaos.network import store
from dev.chaos.sections import Section
from dev.chaos.verdicts import Report
from dev.chaos.worker import Worker
from dev.faultproxy import (
    Exchange,
    Fault,
    delay,
    delay_answer,
    deny,
    drop_answer,
    drop_request,
    late,
)
from pynamodb_mutex.testing import Engine

LEASE = 2.0
STALLED = 4.0
"""A lease in seconds that ends during a schedule, but not before the holder's write, even on a slow machine."""
LONG = 8.0


class First:
    """Replaces the random choices of a worker: it always chooses the same way to write.

    Args:
        way: The way, as a number: see `RowSection.write`.
    """

    def __init__(self, way: int) -> None:
        self._way = way

    def randrange(self, *_: int) -> int:
        return self._way

    def random(self) -> float:
        return 0.99


class Scene:
    """Two clients in one process, and an operator, each with a proxy of its own.

    Attributes:
        one: The first client, which meets the faults in most schedules.
        other: The second client.
        operator: A client that breaks claims by force.
        wire: The proxy of the first client.
        wire_of_other: The proxy of the second client.
        wire_of_operator: The proxy of the operator.
    """

    def __init__(self, engine: Engine, folder: Path, workers: list[Worker], proxies: Any) -> None:
        self.engine, self.folder = engine, folder
        self.one, self.other, self.operator = workers
        self.wire, self.wire_of_other, self.wire_of_operator = proxies

    def take(
        self, worker: Worker, key: str = "m0", lease: float = LONG, timeout: float = 10.0
    ) -> Section:
        """Acquire a lock without background renewal; it must succeed."""
        way = "mutex" if key.startswith("m") else "row"
        section = worker.take(way, [key], lease=lease, timeout=timeout, auto_renew=False)
        assert section is not None, "not taken"
        return section

    def work_on(self, key: str, **options: Any) -> Section:
        """Acquire a lock for the first client, and read its row."""
        section = self.take(self.one, key, **options)
        self.one.read(section)
        return section

    def try_for(self, worker: Worker, timeout: float) -> None:
        """Acquire the lock ``m0`` and release it; it may be held."""
        section = worker.take("mutex", ["m0"], timeout=timeout, auto_renew=False)
        if section is not None:
            worker.release(section)

    def lose_writes(self, op: str) -> Any:
        """Hold back the first client's next request of a kind, and drop its repetitions; return the fault.

        Calling `apply` of the returned fault delivers the request late.
        """
        kept = late()
        self.wire.next(kept, op=op)
        self.wire.always(drop_request(), op=op)
        return kept


@contextmanager
def scene(engine: Engine, folder: Path, prefix: str) -> Iterator[Scene]:
    """Make a scene for the block; its history is left in the folder."""
    names = ["c0", "c1", "operator"]
    with (
        closing(Recorder(folder / "run.jsonl", "run")) as record,
        store(engine, folder, prefix, record, names) as (_, wires),
    ):
        workers = []
        for wire in wires:
            config = {"folder": folder, "proc": f"{wire.client}.0", "prefix": prefix, "seed": 0}
            worker = Worker(config | {"url": wire.url, "lease": LONG, "read_timeout": 6.0})
            worker.chance = First(0)
            workers.append(worker)
        try:
            yield Scene(engine, folder, workers, wires)
        finally:
            for worker in workers:
                worker.beliefs.end()
                worker.record.close()


def judged(folder: Path) -> Report:
    """Return the report on a scene's history."""
    return check(read(folder), {"lease": LONG, "injector": False})


# -- schedules -----------------------------------------------------------------------------------------


def answer_comes_after_the_lease(scene: Scene) -> None:
    """The answer to an acquire comes after its lease has ended, and another holds the lock by then."""
    scene.wire.next(delay_answer(3.2), op="acquire")
    options: dict[str, Any] = {"lease": LEASE, "timeout": 4.0, "auto_renew": False}
    slow = threading.Thread(target=scene.one.take, args=("mutex", ["m0"]), kwargs=options)
    slow.start()
    scene.wire.wait(1, "acquire")
    section = scene.take(scene.other)
    slow.join()
    time.sleep(0.3)
    scene.other.release(section)
    scene.one.beliefs.stop()


def release_comes_late(scene: Scene) -> None:
    """A release is applied after the lease has ended and another has acquired the lock."""
    section = scene.take(scene.one, lease=STALLED)
    kept = scene.lose_writes("UpdateItem")
    scene.one.release(section)
    section = scene.take(scene.other)
    kept.apply()
    scene.other.release(section)


def lock_is_taken_again(scene: Scene) -> None:
    scene.one.release(scene.take(scene.one))
    scene.try_for(scene.one, timeout=2.0)


def answer_to_acquire_is_lost(scene: Scene) -> None:
    scene.wire.next(drop_answer(), op="acquire")
    scene.try_for(scene.one, timeout=4.0)


def write_comes_twice(scene: Scene) -> None:
    """A copy of a holder's first guarded write is applied after its second one."""
    kept: list[Exchange] = []

    def keep(exchange: Exchange) -> None:
        exchange.answer(exchange.apply(None))
        kept.append(exchange)

    section = scene.work_on("r0")
    scene.wire.next(Fault("late_duplicate", keep), op="update")
    scene.one.write(section)
    scene.one.write(section)
    kept[0].apply("late_duplicate")
    scene.one.release(section)


def write_comes_after_the_next_has_read(scene: Scene, key: str = "m0") -> None:
    """A guarded write is applied after the next holder has read the row, and before that one writes it.

    Its fencing token is not lower than the row's then, so a comparison of fencing tokens lets it through, and the
    update is lost.
    """
    section = scene.work_on(key, lease=STALLED)
    kept = scene.lose_writes("TransactWriteItems" if key == "m0" else "update")
    scene.one.write(section)
    after = scene.take(scene.other, key)
    scene.other.read(after)
    kept.apply()
    scene.other.write(after)
    scene.other.release(after)
    scene.one.release(section)


def locked_write_comes_after_the_next_has_read(scene: Scene) -> None:
    """The same for a row that carries its lock."""
    write_comes_after_the_next_has_read(scene, "r0")


def lock_changes_hands(scene: Scene) -> None:
    for worker in (scene.one, scene.other):
        worker.release(scene.take(worker))


def save_comes_after_a_renewal(scene: Scene) -> None:
    """A save of a row that was read before a renewal must not move the end of the lease back."""
    section = scene.work_on("r0")
    section.lock.renew(2 * LONG)
    scene.one.chance = First(3)
    scene.one.write(section)
    scene.one.release(section)


def renewal_comes_after_the_release(scene: Scene) -> None:
    """An attempt of a renewal is applied after the release, and must not revive the claim."""
    section = scene.take(scene.one)
    kept = late()
    scene.wire.next(kept, op="renew")
    section.lock.renew()
    scene.one.release(section)
    kept.apply()


def wall_clock_is_ahead(scene: Scene) -> None:
    wall_offsets[scene.wire_of_other.url] = 3600.0
    section = scene.take(scene.one)
    scene.try_for(scene.other, timeout=0.5)
    scene.one.release(section)


def holder_dies(scene: Scene) -> None:
    """A holder does not renew its lease, and another takes the lock over."""
    section = scene.take(scene.one, lease=LEASE)
    other = scene.take(scene.other)
    time.sleep(0.3)
    scene.other.release(other)
    scene.one.release(section)


def server_time_is_known_badly(scene: Scene) -> None:
    """The other client's upper bound of server time is 3.5 s too high, so a claim that it reads seems to have ended."""
    section = scene.take(scene.one, lease=5.0)
    scene.wire_of_other.next(delay(3.5), op="GetItem")
    other = scene.take(scene.other)
    scene.other.release(other)
    scene.one.release(section)


def acquire_is_denied(scene: Scene) -> None:
    scene.wire.always(deny(), op="acquire")
    scene.try_for(scene.one, timeout=0.5)


def answer_to_write_is_lost(scene: Scene) -> None:
    section = scene.work_on("r0")
    scene.wire.next(drop_answer(), op="update")
    scene.one.write(section)
    scene.one.release(section)


def another_takes_while_the_answer_is_lost(scene: Scene) -> None:
    """A guarded write is applied, its answer lost, and another has written the row before it is repeated: unknown."""
    section = scene.work_on("r0")

    def take() -> None:
        scene.operator.tables.row.locked("r0").force_release()
        after = scene.take(scene.other, "r0")
        scene.other.read(after)
        scene.other.write(after)
        scene.other.release(after)

    scene.wire.next(drop_answer(take), op="update")
    scene.one.write(section)
    scene.one.release(section)


def another_takes_what_a_write_unlocks(scene: Scene) -> None:
    """A write that unlocks is applied, its answer lost, and another holds the lock before the writer knows."""
    section = scene.work_on("r0")

    def take() -> None:
        after = scene.take(scene.other, "r0")
        time.sleep(0.5)
        scene.other.release(after)

    scene.wire.next(drop_answer(take), op="PutItem")
    scene.one.chance = First(2)
    scene.one.write(section)
    scene.one.release(section)


def force_comes_late(scene: Scene) -> None:
    """A force release is applied after the holder that it saw has released and another has acquired the lock."""
    section = scene.take(scene.one)
    kept = late()
    scene.wire_of_operator.next(kept, op="force")
    scene.wire_of_operator.always(drop_request(), op="force")

    def force() -> None:
        try:
            scene.operator.tables.locks.force_release("m0")
        except Exception as error:
            scene.operator.record("force", error=str(error))

    forcing = threading.Thread(target=force)
    forcing.start()
    assert kept.caught.wait(10)
    scene.wire_of_operator.clear()
    scene.wire_of_operator.always(deny(), op="force")
    forcing.join()
    scene.one.release(section)
    section = scene.take(scene.other)
    kept.apply()
    scene.other.release(section)


class Case(NamedTuple):
    """A broken variant, and the schedule that shows it.

    Attributes:
        broken: Name of the variant.
        schedule: The schedule.
        finds: The property that is violated.
    """

    broken: str
    schedule: Callable[[Scene], None]
    finds: str


CASES = [
    Case("lease-from-receipt", answer_comes_after_the_lease, "P4"),
    Case("release-by-key", release_comes_late, "P7"),
    Case("token-per-client", lock_is_taken_again, "P6"),
    Case("no-own-token", answer_to_acquire_is_lost, "P7"),
    Case("guard-by-token", write_comes_twice, "P2"),
    Case("no-guard", locked_write_comes_after_the_next_has_read, "P1"),
    Case("fence-at-write", write_comes_after_the_next_has_read, "P2"),
    Case("counter-reset", lock_changes_hands, "P3"),
    Case("save-moves-end-back", save_comes_after_a_renewal, "P4"),
    Case("renewal-revives", renewal_comes_after_the_release, "P4"),
    Case("wall-clock", wall_clock_is_ahead, "P4"),
    Case("early-taker", server_time_is_known_badly, "P4"),
    Case("denied-swallowed", acquire_is_denied, "P7"),
    Case("own-write-unknown", answer_to_write_is_lost, "P2"),
    Case("held-is-a-flag", holder_dies, "P4"),
    Case("unknown-is-no", another_takes_while_the_answer_is_lost, "P2"),
    Case("force-breaks-any", force_comes_late, "P7"),
    Case("unlocking-believes", another_takes_what_a_write_unlocks, "P4"),
]
