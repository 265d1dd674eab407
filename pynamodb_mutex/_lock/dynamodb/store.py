"""The rows of one model as one process reaches them: their layout, their requests and the connection to them.

A `Store` supplies the values of a request, such as bounds of server time, and learns server time from each reply. It
decides nothing: operations yield its requests to a runner, which sends them, and judge the answers.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Path, Value

from pynamodb_mutex._lock.dynamodb.answers import Answer, Failure, instant_of
from pynamodb_mutex._lock.dynamodb.connection import Connection
from pynamodb_mutex._lock.dynamodb.layout import Layout, seconds
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Requests
from pynamodb_mutex._lock.protocol.claim import NO_SERVER_TIME, TICK, YEAR_10000
from pynamodb_mutex._lock.protocol.server_time import HOST_SKEW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.expressions.condition import Condition
    from pynamodb.models import Model

    from pynamodb_mutex._fair.waiting_line import Take
    from pynamodb_mutex._lock.dynamodb.answers import Reply
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.requests import Template
    from pynamodb_mutex._lock.protocol.claim import Claim, OwnClaim
    from pynamodb_mutex._lock.protocol.server_time import Bounds, ServerTime

SHORTEST_RETENTION = 3600.0
"""Seconds from the end of a claim to its row's TTL, at least, so that DynamoDB deletes no row near a live claim."""


class Request:
    """A request that can be sent.

    Attributes:
        store: Store by whose connection it is sent.
        operation: DynamoDB's name of the operation.
        kwargs: Parameters, as botocore's client takes them.
    """

    __slots__ = ("kwargs", "operation", "store")

    def __init__(self, store: Store, operation: str, kwargs: dict[str, Any]) -> None:
        self.store = store
        self.operation = operation
        self.kwargs = kwargs

    def send(self) -> Answer | Failure:
        """Send the request, once, and return what came of it. The only I/O of the protocol."""
        store = self.store
        reply = store.connection.send(self.operation, self.kwargs)
        # A transaction that was refused shows several rows, perhaps of other models. The operation reads those.
        if type(reply) is Answer and not reply.refused:
            data = reply.data
            reply.item = reply.item or data.get("Attributes") or data.get("Item") or {}
            if reply.item:
                reply.claim = store.layout.claim(reply.item)
        return reply


class Store:
    """The rows of one model, as this process reaches them.

    Attributes:
        reads_first: Whether a result of `once` was seen in them that is cheaper to read than to be refused by.
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
        self._numbers = _Numbers()
        self.reads_first = False
        self._date: tuple[str | None, float] = (None, 0.0)

    @staticmethod
    def address_of(model: type[Model]) -> tuple[str, str | None, str | None]:
        """Return table name, region and host in a model's Meta. If one changes, the model needs a new store."""
        meta = model.Meta
        return meta.table_name, meta.region, meta.host

    @Lazy
    def patient(self) -> Store:
        """A store of the same rows for writes without a lock, which sends by a connection with Meta's patience."""
        # Shallow, so that both stores number versions in one sequence.
        patient = copy.copy(self)
        patient.connection = self._connect(patient=True)
        return patient

    # -- server time --------------------------------------------------------------------------------

    @property
    def bounds(self) -> Bounds | None:
        """The bounds of server time; None as long as no answer had a ``Date``."""
        return self.connection.server.bounds

    def learn(self, reply: Reply, sent: float, received: float) -> bool:
        """Note that DynamoDB answered, if it did, and learn server time from the reply's ``Date``.

        Args:
            reply: The reply.
            sent: Local time before the request was sent; not used if the reply has one of its own.
            received: Local time after the reply was received.

        Returns:
            Whether ends of leases have moved nearer, so that what was planned for them must be planned anew.
        """
        reply.sent, reply.received = reply.sent or sent, received
        if not reply.is_dynamodbs:
            return False
        server = self.connection.server
        server.answered += 1
        if reply.date is None:
            return False
        # Many replies in a row have the same Date, which counts whole seconds: it is parsed once.
        text, instant = self._date
        if reply.date != text:
            try:
                instant = instant_of(reply.date)
            except ValueError:
                return False
            self._date = (reply.date, instant)
        return server.observe(instant, reply.sent, received)

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

        It is server time in milliseconds, so that it is above the fencing tokens of an earlier row of the same key that
        was deleted. It does not depend on the versions of other rows: a single huge one would spread to every row that
        is created from then on, by other processes too, until no number is higher. Nor does it depend on a wall clock:
        where no answer has a ``Date``, the numbers start from 1.
        """
        return self._numbers.next(int((self.server_now(now) or 0.0) * 1000))

    def now_low(self, now: float, ago: float = 0.0) -> str:
        """Serialise a server time that has certainly passed: a claim that ends before it has expired.

        With ``ago`` one that had passed so many seconds before ``now``. 0 if server time is unknown.
        """
        bounds = self.connection.server.bounds
        # HOST_SKEW, because the ends in rows may count by the time of other hosts of DynamoDB's. TICK, because
        # serialising may round up.
        return seconds(0.0 if bounds is None else bounds.lowest(now) - HOST_SKEW - TICK - ago)

    @staticmethod
    def seen(watched: Claim) -> dict[str, Any]:
        """Serialise what shows that a claim that was watched has not changed: its token and its end."""
        return {"seen": watched.token, "seen_until": seconds(watched.expires_at or 0.0)}

    @staticmethod
    def mine(own: OwnClaim | Claim) -> dict[str, Any]:
        """Serialise what identifies a claim, as a rule ours: token and version."""
        return {"mine": own.token, "version": str(own.version)}

    def ending(self, now: float, end: float | None = None) -> dict[str, str]:
        """Serialise what a row says once its claim is ended now: its TTL, and since when the lock is free.

        Args:
            now: Local time.
            end: Server time from which the row is kept for its retention, such as the end that the claim had; None for
                now.
        """
        # The upper bound of server time: if the lock seemed free for longer than it is, fair waiters would pass the one
        # that stands first too soon.
        ended = self._highest(now)
        return {"ttl": self.ttl(ended if end is None else end), "free_since": seconds(ended)}

    def _highest(self, now: float) -> float:
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
        """Return the request that reads a row."""
        kwargs = {
            "TableName": self.connection.table_name,
            "Key": key,
            "ConsistentRead": consistent,
        }
        return Request(self, "GetItem", kwargs)

    def read_all(self, keys: Mapping[str, Any]) -> Request:
        """Return the request that reads up to 100 rows of one or more tables, by keys as BatchGetItem takes them."""
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
        take: Take | None = None,
    ) -> Request:
        """Return the request that acquires a row.

        Args:
            key: Primary key of the row.
            own: The claim that the request makes.
            values: Serialised attributes of the claim, by the names of their slots.
            now: Local time.
            watched: A claim that is dead because it stayed unchanged for its whole lease; None if there is none.
            take: Condition about the line of fair waiters; None for none. With it, ``values`` contains ``entry``, and
                ``seen`` if the take compares it.
        """
        values = {
            **values,
            "token": own.token,
            "seed": str(self.next_version(now)),
            "now_low": self.now_low(now),
        }
        if watched is not None:
            values |= self.seen(watched)
        if take is not None:
            values["past"] = self.now_low(now, take.past)
        template = self.requests.acquire(values, watched=watched is not None, take=take)
        return self.update(template, key, values)

    def join(self, key: RawItem, entry: str, version: int, changes: int) -> Request:
        """Return the request that joins the line, if the lock has changed hands since a version at most so many times."""
        values = {"entry": entry, "entries": [{"S": entry}]}
        values |= {"version": str(version), "highest": str(version + changes)}
        return self.update(self.requests.join, key, values)

    def leave(self, key: RawItem, entry: str, place: int, now: float) -> Request:
        """Return the request by which an entry leaves the line, from a place."""
        values = {"entry": entry, "free_since": seconds(self._highest(now))}
        return self.update(self.requests.leave(place), key, values)

    def release(
        self, key: RawItem, own: OwnClaim, now: float, *, delete: bool, data: dict[str, str]
    ) -> Request:
        """Return the request that ends our claim, and leaves the tombstone or deletes the row."""
        if delete:
            return Request(self, "DeleteItem", self.requests.delete.fill(key, self.mine(own)))
        values = self.mine(own) | self.ending(now)
        template = self.requests.release_with_data if data else self.requests.release
        return self.update(template, key, values | data)

    def keep(
        self, key: RawItem, own: OwnClaim, values: dict[str, str], now: float, rest: float
    ) -> Request:
        """Return the request that ends our claim, and puts one that nobody holds in its place.

        Args:
            key: Primary key of the row.
            own: Our claim.
            values: Token of the new one, and the serialised payload if one is to be written.
            now: Local time.
            rest: Seconds until its end.
        """
        end = NO_SERVER_TIME if self.bounds is None else self.bounds.nominal(now) + rest
        # rounded up: see `HeldClaim.propose_renewal`
        template = self.requests.keep_with_data if "data" in values else self.requests.keep
        values |= {"end": seconds(end), "lease": seconds(rest + 0.0005), "ttl": self.ttl(end)}
        return self.update(template, key, {**self.mine(own), **values})

    def hand_over(
        self, key: RawItem, before: OwnClaim | Claim, own: OwnClaim, values: dict[str, Any]
    ) -> Request:
        """Return the request that puts our claim in the place of another one, however often that was renewed."""
        template = self.requests.hand_over(values)
        return self.update(template, key, {**values, **self.mine(before), "token": own.token})

    def force(self, key: RawItem, seen: Claim, token: str, now: float) -> Request:
        """Return the request that breaks the claim that was seen, and writes a token that no holder has."""
        values = self.ending(now, seen.expires_at) | {"seen": seen.token, "token": token}
        return self.update(self.requests.force, key, values)

    def set_closed(self, key: RawItem, reason: str | None, token: str, now: float) -> Request:
        """Return the request that closes a lock, or opens it without a reason. The token is for a row that does not exist."""
        values = {"token": token, "seed": str(self.next_version(now)), "reason": reason}
        values |= {"ttl": self.ttl(self._highest(now)), "kept": self.ttl(YEAR_10000)}
        return self.update(self.requests.set_closed(closed=reason is not None), key, values)

    def put_right(self, key: RawItem, seen: RawItem, token: str, now: float) -> Request:
        """Return the request that makes a row with invalid lock attributes a free lock, if they are still as seen.

        The fencing token grows if there was one to count from; otherwise it starts anew.
        """
        version = self.layout.version_above(seen) or self.next_version(now)
        template, values = self.requests.put_right(seen)
        values |= self.ending(now) | {"token": token, "new_version": str(version)}
        return self.update(template, key, values)

    def transact(self, items: list[dict[str, Any]], options: Mapping[str, str]) -> Request:
        """Return the request that makes several writes, all or none of them."""
        for item in items:
            for kwargs in item.values():
                # Templates ask for it as single writes. An item of a transaction has no such parameter.
                kwargs.pop("ReturnValues", None)
        return Request(self, "TransactWriteItems", {"TransactItems": items, **options})

    def scan(
        self,
        start: RawItem | None = None,
        limit: int | None = None,
        hash_key: RawItem | None = None,
    ) -> Request:
        """Return the request that reads the rows that have something to list, such as a claim, from one page of the table.

        Args:
            start: The ``LastEvaluatedKey`` of the previous page; None for the first page.
            limit: Number of rows to read at most, with or without a claim; None for as many as a page has.
            hash_key: The hash key of the rows to read, by a Query; None for all rows.
        """
        names: dict[str, str] = {}
        kwargs: dict[str, Any] = {
            "TableName": self.connection.table_name,
            "FilterExpression": self.layout.is_listed.serialize(names, {}),
            "ConsistentRead": True,
        }
        for name, value in (hash_key or {}).items():
            condition: Condition = Path([name]) == Value(value)
            values = kwargs["ExpressionAttributeValues"] = {}
            kwargs["KeyConditionExpression"] = condition.serialize(names, values)
        kwargs["ExpressionAttributeNames"] = {short: name for name, short in names.items()}
        if start is not None:
            kwargs["ExclusiveStartKey"] = start
        if limit is not None:
            kwargs["Limit"] = limit
        return Request(self, "Scan" if hash_key is None else "Query", kwargs)


class _Numbers:
    """A sequence of numbers that only grow, shared by all stores by which a process reaches the same rows."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, least: int) -> int:
        """Return a number above all that were returned before, and not below ``least``."""
        self._last = max(self._last + 1, least)
        return self._last
