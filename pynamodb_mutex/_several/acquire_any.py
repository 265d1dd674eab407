"""Acquire the first free lock of several: as in `pynamodb_mutex._lock.operations.acquire`, with one poll for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._lock.dynamodb.keys import lock_name
from pynamodb_mutex._lock.operations.acquire import Acquisition
from pynamodb_mutex._lock.operations.contender import Contender
from pynamodb_mutex._lock.operations.local_queue import LocalQueue
from pynamodb_mutex._lock.protocol.claim import Claim
from pynamodb_mutex._several.acquire_all import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb_mutex._lock.dynamodb.store import Store
    from pynamodb_mutex._lock.operations.contender import Caller
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.held import HeldClaim
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.operations.process_state import ProcessState, Queue


class QueueForAny(LocalQueue[Any, Contender]):
    """Local waiters for one set of keys. Several of the keys can be held at once, so `holder` stays None.

    The queue of a single key, in which callers wait that want no other key, has its holder.
    """

    __slots__ = ()

    def acquired_by(self, claim: Any) -> None:
        """Note the claim by which this process holds one of the keys now."""
        claim.contender.key_queue.acquired_by(claim)

    def forget(self, claim: Any) -> bool:
        """Forget a claim, and wake the waiters of its key; return whether this process no longer holds that key."""
        queue = claim.contender.key_queue
        was_the_holder: bool = queue.holder is claim
        queue.released_by(claim)
        return was_the_holder


class ContenderForOne(Contender):
    """A contender for one of several locks, of which the caller takes any."""

    __slots__ = ("_any",)

    def __init__(self, keys: frozenset[str], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._any = keys

    @property
    def queue(self) -> Queue:
        """The local queue of those who wait for the same set of keys."""
        return self.process.queue(self.store, self._any, QueueForAny)


class ContenderForAny(Contender):
    """A contender for any of several locks.

    Attributes:
        each: By name of its row, a contender of the same caller for that key.
    """

    __slots__ = ("_any", "each")

    def __init__(
        self,
        process: ProcessState,
        store: Store,
        options: LockOptions,
        alternatives: Sequence[LockOptions],
        caller: Caller,
        *,
        lock: object,
        blocks: bool = True,
    ) -> None:
        super().__init__(process, store, options, caller, lock=lock, blocks=blocks)
        self._any = frozenset(lock_name(each.model, each.key, each.row) for each in alternatives)
        self.each: dict[str, Contender] = {}
        for each in alternatives:
            contender = ContenderForOne(
                self._any, process, store, each, caller, lock=lock, blocks=blocks
            )
            self.each[contender.row_name] = contender
            for name in ("on_lost", "on_danger"):
                # a Mutex among the keys has its own functions: call those of this lock, too
                if getattr(each, name) != getattr(options, name):
                    setattr(contender, name, getattr(contender, name) + getattr(self, name))

    @property
    def queue(self) -> Queue:
        """The local queue of those who wait for the same set of keys."""
        return self.process.queue(self.store, self._any, QueueForAny)

    def at(self, row_name: str) -> Contender:
        return self.each[row_name]

    def stalled_holder(self, sought: Callable[[Any], bool] | None = None) -> Any:
        """Return the local holder's claim that ends first, if a wait of this contender keeps all of them from being released.

        If one lock has no such holder, it may become free, and the wait can end.
        """
        stalled = [each.stalled_holder(sought) for each in self.each.values()]
        return None if None in stalled else min(stalled, key=lambda claim: claim.ends_by)


class AcquisitionOfAny(Acquisition):
    """The acquisition of any one of several locks."""

    contender: ContenderForAny

    def __init__(self, contender: ContenderForAny, timeout: float) -> None:
        super().__init__(contender, timeout)
        self._parts = [Acquisition(each, timeout, self) for each in contender.each.values()]
        self._polled = False

    def by_force(self) -> None:
        """Raise TypeError: it is not clear which claim to break."""
        raise TypeError("force=True is for the lock of one key, not for any of several")

    def begin(self) -> None:
        """Start to count the timeout, also in the acquisitions of the single locks."""
        super().begin()
        for acquisition in self._parts:
            acquisition.begin()

    @property
    def blocker(self) -> Acquisition:
        """The acquisition of the lock whose claim ends first, of the claims that were seen."""
        return min(self._parts, key=lambda acquisition: acquisition.free_at)

    @property
    def holder(self) -> Claim | None:
        """The claim on the lock that will be free first; None if none was seen."""
        return self.blocker.holder

    def _frees_at(self, queue: Queue) -> float:  # noqa: ARG002 - nobody holds all of them
        return min(acquisition.free_at for acquisition in self._parts)

    def poll(self) -> Operation[HeldClaim | None]:
        """Try once: acquire one of the locks that may be free, usually by one request.

        The first poll begins with one of the locks, as `Acquisition.poll` does. If that lock is held, one request reads the rows
        of the others, and the poll tries each lock that seems free. Later polls read all rows.

        Returns:
            The claim; None if others hold all of the locks.
        """
        # In random order: otherwise callers that come at the same time all try the same lock first, and all but one fail.
        parts = self._shuffled()
        # Not if a waiter in this queue has seen that all are held: DynamoDB would probably refuse the write.
        if not self._polled and self.contender.queue.in_the_way is None:
            parts.sort(key=self._is_held_here)  # first those that this process does not hold
            first = parts.pop(0)
            claim = yield from first.poll()
            if claim is not None or not parts:
                self._polled = True
                return claim
        self.check_process()
        layout = self.contender.store.layout
        rows = yield from read_rows(
            self.process,
            self.contender.store,
            [(each.contender.model, each.contender.options.row) for each in parts],
            self._deadline,
            # The first read is consistent. A stale one could show a lock that was released already, and the caller
            # would wait for a free key.
            consistent=not self._polled,
            about=self.contender,
            attempts=self.attempts,
        )
        received = self.process.now
        self._polled = True
        for acquisition, row in zip(parts, rows, strict=True):
            acquisition.observed.see(layout.claim(row), received)
        for acquisition in parts:
            if received >= acquisition.free_at:
                claim = yield from acquisition.take()
                if claim is not None:
                    return claim
        return None

    def _shuffled(self) -> list[Acquisition]:
        uniform = self.process.uniform
        return sorted(self._parts, key=lambda _: uniform(0, 1))

    def _is_held_here(self, acquisition: Acquisition) -> bool:
        local = acquisition.contender.key_queue.holder
        return local is not None and local.held_at(self.process.now)
