"""What the locks of one process share, as plain data: the state that the process's monitor guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._dynamodb.store import Store
from pynamodb_mutex._operations.local_queue import LocalQueue
from pynamodb_mutex._operations.renewal_schedule import RenewalSchedule
from pynamodb_mutex._protocol.claim import FORCED_MARK, new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pynamodb.models import Model

    from pynamodb_mutex._operations.events import Event
    from pynamodb_mutex._protocol.schedule import Uniform
    from pynamodb_mutex._protocol.server_time import ServerTime

Queue = LocalQueue[Any, Any]


class Shared:
    """Connections, knowledge of server time, local queues, and the schedule of renewals of one process.

    Attributes:
        now: Local time at which the present step of an operation began: the one reading of the clock in it.
        read_clock: Reads the local clock, outside of a step.
        uniform: The source of randomness.
        random_bits: Returns 80 random bits or more, in hexadecimal digits, never the same in two processes.
        receivers: By type of event, those who receive its signal.
        inherited: Whether this is the state of a parent process, seen from its forked child.
        outbox: Events that the runner is to deliver when it has left the monitor.
        schedule: Of renewals.
    """

    def __init__(
        self,
        read_clock: Callable[[], float],
        uniform: Uniform,
        random_bits: Callable[[], str],
        receivers: Mapping[type, Mapping[Any, Any]],
    ) -> None:
        self.now = read_clock()
        self.read_clock = read_clock
        self.uniform = uniform
        self.random_bits = random_bits
        self.receivers = receivers
        self.inherited = False
        self.outbox: list[Event] = []
        self.schedule = RenewalSchedule()
        self.stores: dict[type[Model], Store] = {}
        self.server_times: dict[str, ServerTime] = {}
        self._queues: dict[tuple[Store, str | frozenset[str]], Queue] = {}
        self._holders: dict[tuple[str, str], list[Any]] = {}

    def emit(self, event: Event) -> None:
        """Let the runner deliver an event after this step."""
        self.outbox.append(event)

    def new_token(self, store: Store) -> str:
        """Return a token that no other acquisition has."""
        return new_token(store.server_now(self.now), self.random_bits())

    def forced_token(self, store: Store) -> str:
        """Return a token for a row whose claim is broken by force."""
        return FORCED_MARK + self.new_token(store)

    def new_request_token(self) -> str:
        """Return a ClientRequestToken: up to 36 characters."""
        return self.random_bits()[:36]

    @property
    def waits_for_threads(self) -> bool:
        """Whether something waits for a thread that the system refuses."""
        return False

    # -- stores ---------------------------------------------------------------------------------

    def known_store(self, model: type[Model]) -> Store | None:
        """Return the store of a model, if there is one for the table that its Meta names now."""
        store = self.stores.get(model)
        return store if store is not None and store.address == Store.address_of(model) else None

    # -- local queues and holders ---------------------------------------------------------------

    def queue(
        self, store: Store, key: str | frozenset[str], kind: type[Queue] = LocalQueue
    ) -> Queue:
        """Return the queue in which the waiters of this process wait for a key, or for any of several.

        It is kept as long as somebody waits in it, or holds the key. Ask for it again in each step.
        """
        place = (store, key)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = kind(lambda _: self._queues.pop(place, None))
        return queue

    def note_holder(self, store: Store, key: str, claim: Any) -> None:
        """Note that a key is held here by a `HeldClaim`, until `forget_holder`."""
        self._holders.setdefault((store.connection.table_name, key), []).append(claim)

    def forget_holder(self, store: Store, key: str, claim: Any) -> None:
        """Note that it is not held by that any more."""
        place = (store.connection.table_name, key)
        claims = self._holders.get(place, [])
        if claim in claims:
            claims.remove(claim)
            if not claims:
                del self._holders[place]

    def holders(self, store: Store, key: str) -> Iterator[Any]:
        """Yield each `HeldClaim` on a key that is held here, by whatever model of the table."""
        for claim in self._holders.get((store.connection.table_name, key), ()):
            other = claim.store
            if other is store or other.connection.shares_table_with(store.connection):
                yield claim
