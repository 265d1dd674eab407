"""Shared locks in random schedules: readers that hold a key together, next to writers of every kind that wait for them.

`SharedCalls` has the ways, which `client.Client` inherits; a schedule whose ways are these is judged by `shared_judge`. A part of
the processes is of an older version, which knows of no readers: see `OldLock`.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from dev.simulation.models import Lock, OldLock
from dev.simulation.shared_judge import is_old
from pynamodb_mutex import Mutex, MutexAlreadyHeldError, MutexTimeoutError
from pynamodb_mutex._shared import readers, requests
from pynamodb_mutex.aio import AsyncMutex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dev.simulation.shared_judge import SharedJudge
    from dev.simulation.world import Process, World


class SharedCalls:
    """Ways in which a client shares a lock, or holds it alone. Each method ``share_...`` does so in one way."""

    _schedule: Any
    _process: Process
    _world: World
    _rng: random.Random

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Everything else is the client's."""

    @property
    def _judge(self) -> SharedJudge:
        judge: SharedJudge = self._schedule.judge
        return judge

    def share(self, way: str) -> None:
        """Do as a way says; a process that knows of no readers writes instead of sharing."""
        getattr(self, "share_write" if way in _READING and is_old(self._process) else way)()

    # -- readers ------------------------------------------------------------------------------------

    def share_read(self) -> None:
        """Share one key."""
        piece = self._number()
        options = self._shared_options(piece)
        with self._using(Mutex.for_key(self._key(), **options), options) as mutex:
            self._read_on(mutex, options, piece)

    def share_by_one_object(self) -> None:
        """Share a key by the object that the threads of the process share, each with an entry of its own."""
        shared = self._schedule.shared
        if self._process not in shared:
            options = self._shared_options(self._number())
            # which of the threads a call is about cannot be seen
            options = {name: each for name, each in options.items() if not name.startswith("on_")}
            shared[self._process] = Mutex.for_key(self._key(), **options), options
        mutex, options = shared[self._process]
        with self._using(mutex, options):
            self._read_on(mutex, options, "")

    def share_in_a_crowd(self) -> None:
        """Share a key in many threads; those of a process that crashes leave dead entries."""
        key = self._key()
        for number in range(self._rng.choice((3, 6, 12))):
            call = partial(self._read_as_one_of_many, key, self._rng.random() * 5)
            self._process.start_thread(f"crowd{number}", call)

    def _read_as_one_of_many(self, key: str, seconds: float) -> None:
        with self._failures():
            options = self._shared_options(self._number())
            with self._using(Mutex.for_key(key, **options), options):
                self._world.sleep(seconds)

    def share_in_child(self) -> None:
        """Share a key, and fork: the child must not take the entry for its own."""
        piece = self._number()
        options = self._shared_options(piece)
        with self._using(Mutex.for_key(self._key(), **options), options) as mutex:
            self._fork(mutex)
            self._read_on(mutex, options, piece)

    def _shared_options(self, piece: str, *, in_task: bool = False) -> dict[str, Any]:
        """Return random options; ``piece`` is the same for all that one thread or task holds one within the other."""
        options = {**self._options(in_task=in_task), "shared": True, "model": Lock}
        options["lease"] = self._rng.choice((2.0, 5.0, 10.0, 30.0, 60.0))
        if options["lease"] > 10:
            # the last renewal before it, which may have failed, would be long ago at the end of the lease
            options["max_hold"] = None
        return {**options, "owner": f"{piece}/{options['lease']}"}

    def _read_on(self, mutex: Mutex, options: dict[str, Any], piece: str) -> None:
        """Wait, renew and ensure the lease, share once more, or ask for the lock alone, in random order."""
        rng = self._rng
        for _ in range(rng.randrange(5)):
            what = rng.choice(
                ("wait", "wait", "renew", "ensure", "nest", "nest", "upgrade", "cut off")
            )
            if what == "renew":
                mutex.renew()
            elif what == "ensure":
                begun, at_least = self._world.now, options["lease"] * rng.random() * 0.9
                mutex.ensure_held(at_least)
                self._judge.ensured(mutex, at_least, begun)
            elif what == "nest" and piece and rng.random() < 0.7:
                self._nest(mutex, piece)
            elif what == "upgrade" and rng.random() < 0.3:
                self._ask_for_another(mutex, {"timeout": rng.choice((0, 5.0)), "poll": (0.05, 1.0)})
            elif what == "cut off" and rng.random() < 0.1 and self._in_time:
                self._schedule.cut_off(self._process, 3 * options["lease"])
            else:
                longest = rng.choice((0.05, 1.0, 3.0, options["lease"]))
                self._world.sleep(longest * rng.random() * 1.5)

    @property
    def _in_time(self) -> bool:
        return bool(self._world.now < self._schedule.size.seconds)

    def _nest(self, outer: Mutex, piece: str) -> None:
        """Share the same key once more, within the section."""
        options, begun = self._shared_options(piece), self._world.now
        inner = Mutex.for_key(outer.key, **options)
        stood = self._judge.stands(outer)
        self._using(inner, options)
        is_in = inner.acquire() or self._judge.timed_out()
        if stood:
            self._judge.nested(outer, inner, begun)
        with ExitStack() as stack:
            stack.callback(self._judge.leaves, inner)
            if is_in:
                stack.callback(inner.release)
                self._pause()

    def _ask_for_another(self, mutex: Mutex, options: dict[str, Any]) -> None:
        """Ask for a lock alone that is shared: refused at once, while it is."""
        stood = self._judge.stands(mutex)
        other = Mutex.for_key(mutex.key, **{"model": Lock, **options})
        is_refused = False
        self._using(other, options)
        try:
            other.acquire()
        except MutexAlreadyHeldError:
            is_refused = True
        except MutexTimeoutError:
            pass
        if stood:
            self._judge.asked_for_another(mutex, is_refused=is_refused)
        if other.held:
            other.release()
        self._judge.leaves(other)

    # -- writers ------------------------------------------------------------------------------------

    @property
    def _version(self) -> dict[str, Any]:
        in_task = asyncio._get_running_loop() is not None
        task = asyncio.current_task() if in_task else None
        name = self._world.running.name if task is None else task.get_name()
        model = OldLock if is_old(self._process) else Lock
        return {"model": model, "owner": f"{self._number()}:{name}"}

    def share_write(self) -> None:
        """Hold one key alone; sometimes ask to share it then."""
        self._write_under({})

    def share_write_in_line(self) -> None:
        """Hold one key alone, in the order of arrival."""
        self._write_under({} if is_old(self._process) else {"fair": self._fair})

    def _write_under(self, more: dict[str, Any]) -> None:
        options = {**self._options(), **self._version, **more}
        with self._using(Mutex.for_key(self._key(), **options), options) as mutex:
            self._work(mutex)
            if self._rng.random() < 0.2 and mutex.held and not is_old(self._process):
                self._read_under(mutex)

    def _read_under(self, outer: Mutex) -> None:
        """Share a key that this thread or task holds alone."""
        options = self._shared_options(self._number())
        inner = Mutex.for_key(outer.key, **{**options, "timeout": 0})
        is_in = inner.acquire()
        self._judge.covered(outer, inner, is_in=is_in)
        if is_in:
            inner.release()

    def share_write_several(self) -> None:
        """Hold all keys alone."""
        options = {**self._options(), **self._version}
        group = Mutex.for_keys(self._schedule._keys, **options)
        with self._using(group, options):
            self._work(self._rng.choice(group.members))

    def share_write_any(self) -> None:
        """Hold whichever key is free first alone."""
        options = {**self._options(), **self._version}
        with self._using(Mutex.any_of(self._schedule._keys, **options), options) as mutex:
            self._work(mutex)

    def share_write_by_force(self) -> None:
        """Hold one key alone, and break the claim of those who share it."""
        options = {**self._options(), **self._version}
        mutex = self._using(Mutex.for_key(self._key(), **options), options)
        if mutex.acquire(force=self._rng.random() < 0.5):
            try:
                self._work(mutex)
            finally:
                mutex.release()
        else:
            self._judge.timed_out()

    # -- tasks --------------------------------------------------------------------------------------

    async def _task_share(self) -> None:
        """Share a key, or hold it alone, as a task; it may be cancelled."""
        rng = self._rng
        options = {**self._options(in_task=True), **self._version}
        if rng.random() < 0.6 and not is_old(self._process):
            options = self._shared_options(self._number(), in_task=True)
        elif "share_write_in_line" in self._schedule.size.ways and not is_old(self._process):
            options["fair"] = self._fair
        mutex: Any = AsyncMutex.for_key(self._key(), **options)
        self._using(mutex, options)
        try:
            if not await mutex.acquire():
                self._judge.timed_out()
                return
        except asyncio.CancelledError:
            self._judge.gave_up()
            raise
        try:
            await asyncio.sleep(rng.random() * 3)
            if rng.random() < 0.3:
                await mutex.renew()
        finally:
            await mutex.release()


SHARED_WAYS = [name for name in vars(SharedCalls) if name.startswith("share_")]
"""Names of the methods by which a client shares a lock, or holds it alone next to readers."""

_READING = {way for way in SHARED_WAYS if "write" not in way}


def ways_of(rng: random.Random) -> tuple[str, ...]:
    """Return random ways: readers, and often those who wait for them in one or two ways."""
    others = [way for way in SHARED_WAYS if way != "share_read"]
    return ("share_read", *rng.sample(others, rng.choice((1, 2, 3, len(others)))))


@contextmanager
def few_readers(seed: int, ways: Sequence[str]) -> Iterator[None]:
    """Let fewer readers hold a key at a time inside the block, and remove the dead ones sooner, in some crowded schedules."""
    most, bury_from = (readers.MOST, readers.BURY_FROM)
    if "share_in_a_crowd" in ways:
        most, bury_from = random.Random(f"{seed} most").choice(((most, 2), (4, 2), (6, 4), (5, 50)))
    with (
        patch.object(readers, "MOST", most),
        patch.object(requests, "MOST", most),
        patch.object(readers, "BURY_FROM", bury_from),
    ):
        yield
