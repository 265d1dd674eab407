"""The state that the locks of one process share, as plain data, and the schedule of their renewals.

The process's monitor guards all of it: operations use it between two effects, when the runner has entered the monitor.
So nothing here has a lock of its own. The monitor and the threads are in `runtime.process`, which completes `ProcessState`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb_mutex._lock.dynamodb.store import Store
from pynamodb_mutex._lock.operations.effects import Wakeup
from pynamodb_mutex._lock.operations.local_queue import LocalQueue
from pynamodb_mutex._lock.protocol.claim import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from pynamodb.models import Model

    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.events import Event
    from pynamodb_mutex._lock.protocol.schedule import Uniform
    from pynamodb_mutex._lock.protocol.server_time import ServerTime

    class Scheduled(Protocol):
        """Claims that are renewed and lost as one, in the schedule: for renewal, or so that their loss is reported in time."""

        def due(self) -> float:
            """Return the local time at which to handle it next; infinity for never again."""


T = TypeVar("T")

Queue = LocalQueue[Any, Any]


class ProcessState(ABC):
    """Connections, knowledge of server time, local queues, and the schedule of renewals of one process.

    Attributes:
        now: Local time at which the present step of an operation began; the runner reads the clock once for each step.
        blocks: Whether the operation of the present step blocks its thread while it waits; that of a task does not.
        read_clock: Reads the local clock, for use outside of a step.
        uniform: The source of randomness.
        random_bits: Returns 80 random bits or more, in hexadecimal digits, never the same in two processes.
        receivers: The receivers of each signal, by its name.
        logs_details: Returns whether log records of level debug are written.
        inherited: Whether this is the state of a parent process, seen from its forked child.
        outbox: Events that the runner is to deliver when it has left the monitor.
        schedule: The schedule of renewals.
        stores: The store of each model that was used.
        server_times: What is known of each endpoint's time, by its URL.
        queues: The local queues with a waiter, and those of keys that this process holds.
        at_fork: Functions to call in a forked child: they close the parent's sockets and the like.
    """

    def __init__(
        self,
        read_clock: Callable[[], float],
        uniform: Uniform,
        random_bits: Callable[[], str],
        receivers: Mapping[str, Mapping[Any, Any]],
        logs_details: Callable[[], bool],
    ) -> None:
        self.now = read_clock()
        self.blocks = True
        self.read_clock = read_clock
        self.uniform = uniform
        self.random_bits = random_bits
        self.receivers = receivers
        self.logs_details = logs_details
        self.inherited = False
        self.outbox: list[Event] = []
        self.schedule = RenewalSchedule()
        self.stores: dict[type[Model], Store] = {}
        self.server_times: dict[str, ServerTime] = {}
        self.queues: dict[tuple[Store, str | frozenset[str]], Queue] = {}
        self.at_fork: list[Callable[[], object]] = []
        self._of_rooms: dict[Callable[[Any], Any], Any] = {}
        self._holders: dict[tuple[str, str], list[Any]] = {}
        self._notes_left = 0

    def of(self, kind: Callable[[Any], T]) -> T:
        """Return a room's state for this process, made when it is first asked for."""
        found: T | None = self._of_rooms.get(kind)
        # two threads that ask at the same time get the same object
        return self._of_rooms.setdefault(kind, kind(self)) if found is None else found

    @property
    def runner(self) -> tuple[int, bool]:
        """The thread of the present step, and whether the operation blocks it while it waits."""
        return (self.this_thread(), self.blocks)

    def stalls(self, runner: tuple[int, bool]) -> bool:
        """Return whether a wait in the present step would keep another operation from going on.

        It would if both run on one thread, and one of them blocks it: this one, or the other, which this one has interrupted.
        ``runner`` is the value of `runner` in a step of the other operation.
        """
        thread, blocks = runner
        return thread == self.this_thread() and (blocks or self.blocks)

    def hears(self, name: str) -> bool:
        """Return whether anybody receives a signal, or logs details; if not, the operation need not make the event."""
        return bool(self.receivers[name]) or self.logs_details()

    def emit(self, event: Event) -> None:
        """Queue an event for delivery after this step."""
        self.outbox.append(event)

    def new_token(self, store: Store) -> str:
        """Return a token that no other acquisition has."""
        return new_token(store.server_now(self.now), self.random_bits())

    def new_request_token(self) -> str:
        """Return a new ClientRequestToken. DynamoDB takes up to 36 characters."""
        return self.random_bits()[:36]

    @abstractmethod
    def this_thread(self) -> int:
        """Return the number of the thread on which the present step runs; no other thread has it as long as this one lives."""

    @property
    @abstractmethod
    def waits_for_threads(self) -> bool:
        """Whether work waits for a thread that the system has refused to start."""

    # -- stores ---------------------------------------------------------------------------------

    def known_store(self, model: type[Model]) -> Store | None:
        """Return the store of a model; None if there is none for the table that its Meta names now."""
        store = self.stores.get(model)
        return store if store is not None and store.address == Store.address_of(model) else None

    # -- local queues and holders ---------------------------------------------------------------

    def queue(
        self, store: Store, key: str | frozenset[str], kind: type[Queue] = LocalQueue
    ) -> Queue:
        """Return the queue in which the waiters of this process wait for a key, or for any of several.

        The process keeps it only while somebody waits in it or holds the key: get it again in each step, since after a wait
        the other waiters may use a new one.

        Args:
            store: Where the row is.
            key: The key, or the set of keys if the waiter takes any of them.
            kind: The type of the queue, if it must be made.
        """
        place = (store, key)
        queue = self.queues.get(place)
        return kind(self.queues, place) if queue is None else queue

    def note_holder(self, claim: Any) -> None:
        """Note that a `HeldClaim` holds its key in this process, until `forget_holder`."""
        self._notes_left -= 1
        if self._notes_left < 0:
            self._forget_ended()
        # by the table's name: two models can reach one table, and each has a store of its own
        place = (claim.store.connection.table_name, claim.contender.row_name)
        self._holders.setdefault(place, []).append(claim)

    def _forget_ended(self) -> None:
        """Forget the holders whose leases ended long ago. It runs so seldom that it costs each of them little.

        Suppose a holder does not renew its lock, and drops the object without a release: the schedule does not have the
        claim, and nothing else would note its end. This does not note the loss: if a caller still has the object, its next
        call does.
        """
        holders = [claim for claims in self._holders.values() for claim in claims]
        self._notes_left = max(64, len(holders))
        for claim in holders:
            # A lease after its end, not at its end. Suppose a renewal is sent just before the end, and its answer comes
            # after it: the claim is held again, and a call with force in this process must find it here.
            if claim.ends + claim.lease < self.now:
                claim.leave_queue()

    def forget_holder(self, claim: Any) -> None:
        """Note that a `HeldClaim` does not hold its key any more."""
        place = (claim.store.connection.table_name, claim.contender.row_name)
        claims = self._holders.get(place, [])
        if claim in claims:
            claims.remove(claim)
            if not claims:
                del self._holders[place]

    def all_held(self) -> Sequence[Any]:
        """Return each `Held` of this process whose lease has not ended, without runs of `once`, oldest first."""
        now = self.read_clock()
        every = [claim for claims in self._holders.values() for claim in claims]
        claims = [claim for claim in every if not claim.contender.is_run]
        claims.sort(key=lambda claim: claim.since)
        return [
            held for held in dict.fromkeys(claim.whole for claim in claims) if held.stands_at(now)
        ]

    def holders(self, store: Store, key: str) -> Sequence[Any]:
        """Return each `HeldClaim` of this process on a key, whichever model of the table acquired it."""
        claims = self._holders.get((store.connection.table_name, key))
        if claims is None:
            return ()
        return [
            claim
            for claim in claims
            if claim.store is store or claim.store.connection.shares_table_with(store.connection)
        ]


# -- renewals --------------------------------------------------------------------------------------


_TAKEN_OUT = -math.inf
"""Stands for the due time of a member that was taken out and is being handled."""


class RenewalSchedule:
    """The claims to be renewed or watched, called members, by the local time at which they are due.

    A member's due time is in a dict, and an entry for it in a heap. When the time changes, the old entry stays in the
    heap, but is void: `_is_valid` compares it with the dict.

    Attributes:
        loop: The renewal loop that runs or is about to; None if there is none. The runner sets it, and the loop resets it as
            it ends.
        wakes_at: Local time until which the loop waits; minus infinity if it does not wait. Only a member that is due earlier
            wakes it, not each new member: that would cost a tenth of an acquire and release of a short lock.
        wakeup: Ends the loop's wait.
    """

    def __init__(self) -> None:
        self.loop: Operation[None] | None = None
        self.wakes_at = -math.inf
        self.wakeup = Wakeup()
        self._due: dict[Scheduled, float] = {}
        self._heap: list[tuple[float, int, Scheduled]] = []
        self._serial = itertools.count()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is scheduled."""
        return not self._due

    @property
    def needs_loop(self) -> bool:
        """Whether something is scheduled and there is no loop: the runner then starts one."""
        return self.loop is None and bool(self._due)

    def add(self, member: Scheduled, due: float) -> None:
        """Schedule a member, or set its due time anew; infinity takes it out."""
        if due == self._due.get(member):
            return
        if due == math.inf:
            self._due.pop(member, None)
            return
        # Only if the loop would wake too late for it. A loop that does not wait finds it before the next wait.
        if due < self.wakes_at:
            self.wakeup.ring()
        self._due[member] = due
        heapq.heappush(self._heap, (due, next(self._serial), member))

    def remove(self, member: Scheduled) -> None:
        """Forget a member; a renewal that is under way for it goes on."""
        self._due.pop(member, None)
        # Most holders release long before they are due. Remove their void entries soon: objects that live longer make each
        # garbage collection slower.
        if len(self._heap) > 2 * len(self._due) + 8:
            self._heap = [entry for entry in self._heap if self._is_valid(entry)]
            heapq.heapify(self._heap)

    def refresh(self, member: Scheduled) -> None:
        """Get a member's due time anew, if it is still scheduled."""
        if member in self._due:
            self.add(member, member.due())

    def refresh_all(self) -> None:
        """Get the due time of each member anew, because an answer has moved ends of leases nearer."""
        for member in list(self._due):
            self.add(member, member.due())

    def next_due(self) -> float:
        """Return a local time before which no member is due; infinity if none is scheduled."""
        return self._heap[0][0] if self._heap else math.inf

    def take_due(self, now: float) -> Scheduled | None:
        """Take out a member that is due at a local time; None if none is. The caller puts it back by `put_back`."""
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._is_valid(entry):
                # Now no entry is valid for it, and so the next `add` makes a new entry, even for the same time.
                self._due[entry[2]] = _TAKEN_OUT
                return entry[2]
        return None

    def put_back(self, member: Scheduled, due: float) -> None:
        """Put back a member that was taken out, at the time at which it is due next."""
        # If it was removed, or its due time was set anew, while it was handled, the time given here is out of date.
        if self._due.get(member) == _TAKEN_OUT:
            self.add(member, due)

    def _is_valid(self, entry: tuple[float, int, Scheduled]) -> bool:
        return self._due.get(entry[2]) == entry[0]
