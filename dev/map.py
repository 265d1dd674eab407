"""The map of the code: what a plain lock runs of each module, and what other features run of the same ones.

``python -m dev.map`` prints it, and with ``--lines _lock/operations/acquire`` that module with a mark at each line that a
plain lock runs. What runs is traced in a simulated world. Lines count as in `weight`, without imports; those that run when a
module is imported, such as signatures and fields, do not count as run.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import sys
import tokenize
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from pynamodb.attributes import UnicodeAttribute
from pynamodb.exceptions import PynamoDBException

import pynamodb_mutex
from dev.simulation.models import Account, Ledger, Lock, create_tables
from dev.simulation.network import Network, worlds
from dev.simulation.once import Receipt
from dev.simulation.threads import acting_as, installed, run_tasks
from dev.simulation.world import Process, World
from dev.weight import code_lines
from pynamodb_mutex import Hints, Mutex, Once, Semaphore, signals
from pynamodb_mutex.aio import AsyncMutex

ROOT = Path(pynamodb_mutex.__file__).parent

HEART = ("mutex", "_lock/handles", "_lock/operations", "_lock/protocol", "_lock/dynamodb", "_lock/runtime", "models", "exceptions")  # fmt: skip
"""Modules and folders that a plain lock needs, in the order in which to read them."""


# -- what locks go through -------------------------------------------------------------------------


def start(call: Any, process: Process | None = None) -> Process:
    """Let a thread, of another process unless one is given, make a call; a second later this one goes on."""
    process = process or Process(worlds[-1], "another", rate=1.0)
    process.start_thread("thread", call)
    worlds[-1].sleep(1)
    return process


def hold(make: Any, seconds: float = 0.0, **options: Any) -> None:
    """Hold a lock for some time, unless it is not acquired, or lost."""
    with suppress(PynamoDBException), make(**options):
        worlds[-1].sleep(seconds)


def play(make: Any) -> None:
    """Let a lock be renewed, be held by others when it is to be acquired, be lost, and be left by the dead."""
    world, here = worlds[-1], worlds[-1].running.process
    hold(make, 50)
    for process in (here, None):
        start(partial(hold, make, 5), process)
        hold(make, timeout=1)
        hold(make)
    # cut off when it is acquired, once in vain, when it is released, and until its lease has ended
    for begin, end, seconds in ((60, 63, 1), (60, 80, 1), (61, 90, 2), (61, 120, 90)):
        world.after(begin, partial(world.network.partitioned.add, here))
        world.after(end, world.network.partitioned.clear)
        world.sleep(60)
        hold(make, seconds, timeout=9)
    start(partial(hold, make, 50)).crash()
    hold(make)


def in_tasks(_: object) -> None:
    async def task() -> None:
        async with AsyncMutex.for_key("l", model=Lock):
            await asyncio.sleep(50)

    async def main() -> None:
        await asyncio.gather(task(), task())

    run_tasks(worlds[-1], main())


def with_signals(_: object) -> None:
    def hear(*_: Any, **__: Any) -> None:
        """Be connected until `with_signals` returns: signals keep no receiver."""

    for name in ("acquired", "contended", "renewed", "lost", "released", "handed_over"):
        getattr(signals, name).connect(hear)
    play(other)


key, other = (partial(Mutex.for_key, name, model=Lock) for name in "kl")
once = partial(Once.for_key, "k", model=Receipt)

PLAIN = key, Mutex.renew
FEATURES: dict[str, tuple[Any, Any]] = {
    "several keys": (partial(Mutex.for_keys, ["k", "l"], model=Lock), lambda lock: hold(lock.transaction)),
    "any of several": (partial(Mutex.any_of, ["k", "l"], model=Lock), id),
    "semaphore": (partial(Semaphore.for_key, "k", permits=1, model=Lock), id),
    "fair": (partial(key, fair=True), id),
    "hints": (partial(key, fair=Hints()), id),
    "rows": (partial(Account.locked, "r0"), lambda lock: (lock.row.update([Account.count.add(1)]), lock.row.save(unlock=True))),
    "rows, locked elsewhere": (partial(Ledger.locked, "r0"), lambda lock: lock.row.save(unlock=True)),
    "several rows": (partial(Account.locked_all, ["r0", "r1"]), lambda _: [*Account.held()]),
    "guarded writes": (key, lambda lock: (lock.save_data(1), hold(lock.transaction))),
    "once": (key, lambda _: (start(partial(once().call, worlds[-1].sleep, 50)), once().call(id, 1))),
    "attach": (key, lambda lock: hold(partial(Mutex.attach, lock.detach(), model=Lock), 50)),
    "asyncio": (key, in_tasks),
    "force": (key, lambda lock: (start(partial(key().acquire, force=True)), lock.force_release())),
    "list": (key, lambda _: [(e.is_held, e.remaining, e.since, e.waiters, e.expires) for e in [*Lock.held(), *Lock.held("k")]]),
    "hold_at_least": (partial(key, hold_at_least=60), id),
    "danger": (partial(key, on_danger=id), id),
    "max_hold": (partial(key, max_hold=5), id),
    "reentrant": (partial(key, reentrant=True), lambda lock: (lock.acquire(), lock.release())),
    "delete_on_release": (partial(key, delete_on_release=True), id),
    "must_exist": (partial(key, must_exist=True), id),
    "attributes": (partial(Mutex.for_key, "k", model=type("Noted", (Lock,), {"note": UnicodeAttribute()}), attributes={"note": "n"}), id),
    "payload": (partial(key, data=1), lambda lock: (lock.renew(data=lock.data), lock.release(data=2))),
    "release_all": (key, lambda _: pynamodb_mutex.release_all()),
    "signals": (key, with_signals),
}  # fmt: skip
"""How to make a lock, with which `play` plays, and how to use it while it is held."""


# -- what runs -------------------------------------------------------------------------------------


def run(make: Any, use: Any) -> dict[str, set[int]]:
    """Return the lines that run in a scenario, by module: its path in the package; those first that run first."""
    ran: dict[str, set[int]] = {}

    def trace(frame: Any, event: str, _: object) -> Any:
        code = frame.f_code
        # the bodies of modules and classes, which have no fast locals, run when they are imported
        if not (code.co_filename.startswith(f"{ROOT}/") and code.co_flags & inspect.CO_OPTIMIZED):
            return None
        if event == "line":
            name = code.co_filename[len(f"{ROOT}/") : -len(".py")]
            ran.setdefault(name, set()).update(statements(name).get(frame.f_lineno, ()))
        return trace

    world, before = World(), sys.gettrace()
    Network(world)
    create_tables(world.tables)
    # simulated threads are all of this one, and so is what they trace
    with installed(world), acting_as(world, Process(world, "here", rate=1.0)):
        hold(key)  # for `must_exist`
        sys.settrace(trace)
        try:
            play(make)
            with suppress(PynamoDBException):
                (lock := make()).acquire()
                use(lock)
                lock.release()
        finally:
            sys.settrace(before)
    return ran


@cache
def statements(name: str) -> dict[int, set[int]]:
    """Return for each line of code of a module all those of its statement."""
    source = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    code, found, first = code_lines(source, imports=False), {}, 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            statement = code & {*range(first, token.start[0] + 1)}
            found.update(dict.fromkeys(statement, statement))
            first = token.start[0] + 1
    return found


def print_map() -> None:
    """Print how many lines of each module a plain lock runs, and how many of the others each feature does."""
    ran = run(*PLAIN)
    modules = [name for part in HEART for name in ran if f"{name}/".startswith(f"{part}/")]
    for name in modules:
        print(f"{len(ran[name]):8,} of {len(statements(name)):5,}  {name}")
    total = sum(len(statements(name)) for name in modules)
    print(f"{sum(len(ran[name]) for name in modules):8,} of {total:5,}  a plain lock\n")
    counts = []
    for feature, scenario in FEATURES.items():
        also = run(*scenario)
        new = {name: also.get(name, set()) - ran[name] for name in modules}
        where = ", ".join(f"{name} {len(lines)}" for name, lines in new.items() if lines)
        counts.append(sum(map(len, new.values())))
        print(f"{counts[-1]:8,}  {feature}: {where}")
        ran = {name: ran[name] | new[name] for name in modules}
    print(f"{sum(counts):8,}  features inside the plain lock's modules")


def print_lines(name: str) -> None:
    """Print a module, with a mark at each line that a plain lock runs."""
    ran = run(*PLAIN).get(name, ())
    source = (ROOT / f"{name}.py").read_text(encoding="utf-8")
    for number, line in enumerate(source.splitlines(), 1):
        print(">" if number in ran else " ", line)


if __name__ == "__main__":
    print_lines(sys.argv[2]) if sys.argv[1:2] == ["--lines"] else print_map()
