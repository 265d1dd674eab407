"""The rows of one model as one process reaches them: their layout, their requests and the connection to them.

A `Store` supplies the values of a request, such as bounds of server time, and learns server time from each reply. It
decides nothing: operations yield its requests to a runner, which sends them, and judge the answers.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from pynamodb_mutex._lock.dynamodb.answers import Answer, Failure, instant_of
from pynamodb_mutex._lock.dynamodb.connection import Connection
from pynamodb_mutex._lock.dynamodb.layout import Layout, seconds
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Requests
from pynamodb_mutex._lock.protocol.claim import NO_SERVER_TIME, TICK, YEAR_10000
from pynamodb_mutex._lock.protocol.server_time import HOST_SKEW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.answers import Reply
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.requests import Clause, Template, Templates
    from pynamodb_mutex._lock.protocol.claim import Claim, OwnClaim
    from pynamodb_mutex._lock.protocol.server_time import Bounds, ServerTime

T = TypeVar("T", bound="Templates")

SHORTEST_RETENTION = 3600.0
"""Fewest seconds from the end of a claim to its row's TTL, so that DynamoDB deletes no row near a live claim."""


class Request:
    """A request that can be sent.

    Attributes:
        store: Store whose connection sends it.
        operation: DynamoDB's name of the operation.
        kwargs: Parameters, as botocore's client takes them.
    """

    __slots__ = ("kwargs", "operation", "store")

    def __init__(self, store: Store, operation: str, kwargs: dict[str, Any]) -> None:
        self.store = store
        self.operation = operation
        self.kwargs = kwargs

    def send(self) -> Answer | Failure:
        """Send the request, once. The only I/O of the protocol."""
        store = self.store
        reply = store.connection.send(self.operation, self.kwargs)
        # A transaction that was refused shows several rows, perhaps of other models. The operation reads them.
        if type(reply) is Answer and not reply.refused:
            data = reply.data
            reply.item = reply.item or data.get("Attributes") or data.get("Item") or {}
            if reply.item:
                reply.claim = store.layout.claim(reply.item)
        return reply


class Store:
    """The rows of one model, as this process reaches them.

    Attributes:
        reads_first: Whether this process saw a result of `once` in them that is so large that a read is cheaper than a
            refused write.
    """

    def __init__(
        self,
        model: type[Model],
        server_times: dict[str, ServerTime],
        now: Callable[[], float],
    ) -> None:
        self.model = model
        self.address = self.address_of(model)
        self._connect = partial(Connection, model, server_times, now)
        self.connection = self._connect()
        layout, requests = getattr(model, "_rows", (Layout, Requests))
        self.layout: Layout = layout(model)
        self.requests: Requests = requests(self.layout, self.connection.table)
        self._of_rooms: dict[type[Templates], Any] = {}
        self._numbers = _Numbers()
        self.reads_first = False
        self._date: tuple[str | None, float] = (None, 0.0)

    @staticmethod
    def address_of(model: type[Model]) -> tuple[str, str | None, str | None]:
        """Return table name, region and host in a model's Meta. If one of them changes, the model needs a new store."""
        meta = model.Meta
        return meta.table_name, meta.region, meta.host

    def of(self, kind: type[T]) -> T:
        """Return a room's templates for these rows; the first call makes them."""
        found: T | None = self._of_rooms.get(kind)
        if found is None:
            found = self._of_rooms[kind] = kind(self.layout, self.connection.table)
        return found

    @Lazy
    def without_lock(self) -> Store:
        """A store of the same rows for writes without a lock, which sends by a connection with Meta's timeouts and retries."""
        # Shallow, so that both stores number versions in one sequence, and share their templates.
        other = copy.copy(self)
        other.connection = self._connect(by_meta=True)
        return other

    # -- server time --------------------------------------------------------------------------------

    @property
    def bounds(self) -> Bounds | None:
        """The bounds of server time; None as long as no answer had a ``Date``."""
        return self.connection.server.bounds

    def learn(self, reply: Reply, sent: float, received: float) -> bool:
        """Note that DynamoDB answered, if it did, and learn server time from the reply's ``Date``.

        Args:
            reply: The reply.
            sent: Local time before the request was sent, unless the reply has its own such time.
            received: Local time after the reply was received.

        Returns:
            Whether ends of leases have moved nearer, so that the process must plan its renewals anew.
        """
        reply.sent, reply.received = reply.sent or sent, received
        if not reply.is_dynamodbs:
            return False
        server = self.connection.server
        server.answered += 1
        if reply.date is None:
            return False
        # Many replies in a row have the same Date, because it counts whole seconds: parse it once.
        text, instant = self._date
        if reply.date != text:
            try:
                instant = instant_of(reply.date)
            except ValueError:
                return False
            self._date = (reply.date, instant)
        return server.learn(instant, reply.sent, received)

    def knows_time(self, lease: float, now: float) -> bool:
        """Return whether server time is known well enough to propose an end for a lease of so many seconds."""
        bounds = self.connection.server.bounds
        return bounds is not None and bounds.suffices(lease, now)

    def server_now(self, now: float) -> float | None:
        """Return an estimate of server time, by the latest answer with a ``Date``; None if there was none."""
        bounds = self.connection.server.bounds
        return None if bounds is None else bounds.estimate(now)

    # -- values -------------------------------------------------------------------------------------

    def next_version(self, now: float) -> int:
        """Return a number from which a row without a fencing token counts; higher at each call.

        It is server time in milliseconds, so that it is above the fencing tokens of an earlier row of the same key that was
        deleted. It does not depend on the versions of other rows: a single huge version would spread to every new row, in
        other processes too, until no number is higher. It does not depend on a wall clock either: if no answer has a ``Date``,
        the numbers start from 1.
        """
        return self._numbers.next(int((self.server_now(now) or 0.0) * 1000))

    def now_low(self, now: float, ago: float = 0.0) -> str:
        """Serialise a server time that has certainly passed: a claim that ends before it has expired.

        With ``ago``, a time that had passed so many seconds before ``now``. 0 if server time is unknown.
        """
        bounds = self.connection.server.bounds
        # HOST_SKEW, because the ends in rows may come from other hosts of DynamoDB. TICK, because serialising may round up.
        return seconds(0.0 if bounds is None else bounds.lowest(now) - HOST_SKEW - TICK - ago)

    @staticmethod
    def seen(watched: Claim) -> dict[str, Any]:
        """Serialise token and end of a claim that was watched: if the row still has both, it has not changed."""
        return {"seen": watched.token, "seen_until": seconds(watched.expires_at or 0.0)}

    @staticmethod
    def mine(own: OwnClaim | Claim) -> dict[str, Any]:
        """Serialise token and version, which identify a claim, as a rule ours."""
        return {"mine": own.token, "version": str(own.version)}

    def ending(self, now: float, end: float | None = None) -> dict[str, str]:
        """Serialise the values for a row whose claim ends now: its TTL, and since when the lock is free.

        Args:
            now: Local time.
            end: Server time from which the row is kept for its retention, such as the end that the claim had; None for
                now.
        """
        # The upper bound of server time: if the lock seemed free for longer than it is, fair waiters would pass the first in
        # line too soon.
        ended = self.highest(now)
        return {"ttl": self.ttl(ended if end is None else end), "free_since": seconds(ended)}

    def highest(self, now: float) -> float:
        """Return the upper bound of server time; NO_SERVER_TIME if there is none."""
        return NO_SERVER_TIME if self.bounds is None else self.bounds.highest(now)

    def ttl(self, end: float) -> str:
        """Serialise when DynamoDB may delete a row whose claim ends or ended at ``end``, in server time."""
        # A user's rows do not expire, and an attribute `retention` of the user's model has another meaning.
        retention = 0.0 if self.layout.must_exist else getattr(self.model, "retention", 0.0)
        # PynamoDB could not read a row whose TTL is beyond the year 9999.
        return str(int(min(end + max(retention, SHORTEST_RETENTION), YEAR_10000 - 2)) + 1)

    # -- requests -----------------------------------------------------------------------------------

    def read(self, key: RawItem, *, consistent: bool) -> Request:
        kwargs = {
            "TableName": self.connection.table_name,
            "Key": key,
            "ConsistentRead": consistent,
        }
        return Request(self, "GetItem", kwargs)

    def read_all(self, keys: Mapping[str, Any]) -> Request:
        """Return the request that reads up to 100 rows of one or more tables; ``keys`` as BatchGetItem takes them."""
        return Request(self, "BatchGetItem", {"RequestItems": keys})

    def update(self, template: Template, key: RawItem, values: Mapping[str, Any]) -> Request:
        """Return the request that a template makes with these values."""
        return Request(self, "UpdateItem", template.fill(key, values))

    def acquire(
        self,
        key: RawItem,
        own: OwnClaim,
        values: dict[str, Any],
        *,
        now: float,
        watched: Claim | None,
        clause: Clause | None = None,
    ) -> Request:
        """Return the request that acquires a row.

        Args:
            key: Primary key of the row.
            own: The claim that the request makes.
            values: Serialised attributes of the claim, and values for the clause, by the names of their slots. A
                ``new_version`` is the fencing token; without it DynamoDB counts the token in the row up.
            now: Local time.
            watched: A claim that is dead because it stayed unchanged for its whole lease; None if there is none.
            clause: What the kind of acquisition adds; None for nothing.
        """
        values = {**values, "token": own.token, "now_low": self.now_low(now)}
        if "new_version" not in values:
            values["seed"] = str(self.next_version(now))
        if watched is not None:
            values |= self.seen(watched)
        template = self.requests.acquire(values, watched=watched is not None, clause=clause)
        return self.update(template, key, values)

    def end(
        self,
        key: RawItem,
        own: OwnClaim,
        values: dict[str, str],
        now: float,
        rest: float,
    ) -> Request:
        """Return the request that ends our claim, and leaves the tombstone or a reserved claim, which nobody holds.

        Args:
            key: Primary key of the row.
            own: Our claim.
            values: The serialised payload, if one is to be written, and the token of a reserved claim.
            now: Local time.
            rest: Seconds until the end of the reserved claim; 0 or less for none.
        """
        template = self.requests.end[rest > 0, "data" in values]
        if rest <= 0:
            return self.update(template, key, {**self.mine(own), **self.ending(now), **values})
        end = NO_SERVER_TIME if self.bounds is None else self.bounds.nominal(now) + rest
        # rounded up: see `HeldClaim.propose_renewal`
        values |= {"end": seconds(end), "lease": seconds(rest + 0.0005), "ttl": self.ttl(end)}
        return self.update(template, key, {**self.mine(own), **values})

    def delete(self, key: RawItem, own: OwnClaim) -> Request:
        """Return the request that ends our claim by deleting the row."""
        return Request(self, "DeleteItem", self.requests.delete.fill(key, self.mine(own)))

    def hand_over(
        self, key: RawItem, before: OwnClaim | Claim, own: OwnClaim, values: dict[str, Any]
    ) -> Request:
        """Return the request that puts our claim in the place of another claim, however often its holder has renewed it."""
        template = self.requests.hand_over(values)
        return self.update(template, key, {**values, **self.mine(before), "token": own.token})

    def transact(self, items: list[dict[str, Any]], options: Mapping[str, str]) -> Request:
        """Return the request that makes several writes, all or none of them."""
        for item in items:
            for kwargs in item.values():
                # Templates ask for it, for single writes. An item of a transaction has no such parameter.
                kwargs.pop("ReturnValues", None)
        return Request(self, "TransactWriteItems", {"TransactItems": items, **options})


class _Numbers:
    """A sequence of numbers that only grow; all stores by which a process reaches the same rows share it."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, least: int) -> int:
        """Return a number above all earlier ones, and not below ``least``."""
        self._last = max(self._last + 1, least)
        return self._last
