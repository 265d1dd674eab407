"""The rows of one model, as one process reaches them: its layout, its requests, its connection."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._dynamodb.answers import Answer, Failure, instant_of
from pynamodb_mutex._dynamodb.connection import CallersConnection, Connection
from pynamodb_mutex._dynamodb.layout import Layout, seconds
from pynamodb_mutex._dynamodb.requests import Requests
from pynamodb_mutex._protocol.claim import NO_SERVER_TIME, TICK, YEAR_10000
from pynamodb_mutex._protocol.server_time import HOST_SKEW

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pynamodb.connection import Connection as PynamoDBConnection
    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.answers import Reply
    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.requests import Template
    from pynamodb_mutex._protocol.claim import Claim, OwnClaim
    from pynamodb_mutex._protocol.server_time import Bounds, ServerTime
    from pynamodb_mutex._protocol.waiting_line import Take

SHORTEST_RETENTION = 3600.0
"""Seconds from the end of a claim to its row's TTL, at least: never near a live claim."""


class Request:
    """A request that is about to be sent.

    Attributes:
        store: By which it is sent.
        operation: DynamoDB's name.
        kwargs: As botocore's client takes them.
    """

    __slots__ = ("kwargs", "operation", "store")

    def __init__(self, store: Store, operation: str, kwargs: dict[str, Any]) -> None:
        self.store = store
        self.operation = operation
        self.kwargs = kwargs

    def send(self) -> Answer | Failure:
        """Send it, once. The only I/O of the protocol."""
        store = self.store
        reply = store.connection.send(self.operation, self.kwargs)
        if type(reply) is Answer and not reply.refused:
            data = reply.data
            reply.item = reply.item or data.get("Attributes") or data.get("Item") or {}
            if reply.item:
                reply.claim = store.layout.claim(reply.item)
        return reply


class Store:
    """The rows of one model.

    Attributes:
        batches: Whether to send batches: until one turns out not to be understood, or not allowed.
    """

    def __init__(
        self,
        model: type[Model],
        server_times: dict[str, ServerTime],
        now: Callable[[], float],
    ) -> None:
        self.model = model
        self.address = self.address_of(model)
        self.connection = Connection(model, server_times, now)
        self.layout = Layout(model)
        self.requests = Requests(self.layout, self.connection.table)
        self.batches = True
        self._numbers = _Numbers()
        self._date: tuple[str | None, float] = (None, 0.0)
        self._through: Store | None = None

    @staticmethod
    def address_of(model: type[Model]) -> tuple[str, str | None, str | None]:
        """Return what makes a connection another one when it changes."""
        meta = model.Meta
        return meta.table_name, meta.region, meta.host

    def through(self, pynamodb: PynamoDBConnection) -> Store:
        """Return the same rows as they are reached by a caller's connection."""
        through = self._through
        if through is None or through.connection.pynamodb is not pynamodb:
            through = copy.copy(self)
            through.connection = CallersConnection(pynamodb, self.connection)
            self._through = through
        return through

    # -- server time --------------------------------------------------------------------------------

    @property
    def bounds(self) -> Bounds | None:
        """The bounds of server time; None as long as no answer had a ``Date``."""
        return self.connection.server.bounds

    def learn(self, reply: Reply, sent: float, received: float) -> bool:
        """Note that DynamoDB answered, if it did, and learn server time from the reply's Date header.

        Args:
            reply: The reply.
            sent: Local time before the request was sent, unless the reply says so itself.
            received: Local time after the reply was received.

        Returns:
            Whether ends of leases have come nearer.
        """
        reply.sent, reply.received = reply.sent or sent, received
        if not reply.is_dynamodbs:
            return False
        server = self.connection.server
        server.answered = True
        if reply.date is None:
            return False
        text, instant = self._date
        if reply.date != text:
            try:
                instant = instant_of(reply.date)
            except ValueError:
                return False
            self._date = (reply.date, instant)
        return server.observe(instant, reply.sent, received)

    def knows_time(self, lease: float, now: float) -> bool:
        """Say whether server time is known well enough to propose the end of a lease."""
        bounds = self.connection.server.bounds
        return bounds is not None and bounds.suffices(lease, now)

    def server_now(self, now: float) -> float | None:
        """Return server time as the latest answer showed it; None if no answer did."""
        bounds = self.connection.server.bounds
        return None if bounds is None else bounds.estimate(now)

    # -- values -------------------------------------------------------------------------------------

    def next_version(self, now: float) -> int:
        """Return a number from which a row without fencing tokens counts them; higher at each call.

        Server time in milliseconds, so that it is above the tokens of a row of the same key that was
        deleted. Another row's version has no part in it: a single huge one would spread to every row
        made from then on, in other processes too, until there is no higher number. Nor has a wall clock:
        where no answer has a ``Date``, the number starts from 1.
        """
        return self._numbers.next(int((self.server_now(now) or 0.0) * 1000))

    def now_low(self, now: float) -> str:
        """Serialise the end before which a claim has surely expired."""
        return self._low(now)

    def _low(self, now: float, ago: float = 0.0) -> str:
        """Serialise a server time that was surely passed so many seconds ago."""
        bounds = self.connection.server.bounds
        return seconds(0.0 if bounds is None else bounds.lowest(now) - HOST_SKEW - TICK - ago)

    @staticmethod
    def seen(watched: Claim) -> dict[str, Any]:
        """Serialise what makes a claim that was watched still the same."""
        return {"seen": watched.token, "seen_until": seconds(watched.expires_at or 0.0)}

    @staticmethod
    def mine(own: OwnClaim) -> dict[str, Any]:
        """Serialise what makes a claim ours: token and version."""
        return {"mine": own.token, "version": str(own.version)}

    def ending(self, now: float, end: float | None = None) -> dict[str, str]:
        """Serialise what a row says whose claim is ended now.

        Args:
            now: Local time.
            end: At which the claim would have ended, if the row is kept for as long after that.
        """
        ended = self._highest(now)
        return {"ttl": self.ttl(ended if end is None else end), "free_since": seconds(ended)}

    def _highest(self, now: float) -> float:
        """Return what server time is at most."""
        return NO_SERVER_TIME if self.bounds is None else self.bounds.highest(now)

    def ttl(self, end: float) -> str:
        """Return when DynamoDB may delete a row whose claim ends or ended at ``end``."""
        # in a user's row nothing expires, and an attribute of that name is the user's
        retention = 0.0 if self.layout.must_exist else getattr(self.model, "retention", 0.0)
        # PynamoDB could not read a row whose TTL is no date
        return str(int(min(end + max(retention, SHORTEST_RETENTION), YEAR_10000 - 2)) + 1)

    # -- requests -----------------------------------------------------------------------------------

    def read(self, key: RawItem, *, consistent: bool) -> Request:
        """Read a row."""
        kwargs = {
            "TableName": self.connection.table_name,
            "Key": key,
            "ConsistentRead": consistent,
        }
        return Request(self, "GetItem", kwargs)

    def read_all(self, keys: Mapping[str, Any]) -> Request:
        """Read up to 100 rows of one or more tables, given as BatchGetItem takes them."""
        return Request(self, "BatchGetItem", {"RequestItems": keys})

    def update(self, template: Template, key: RawItem, values: Mapping[str, Any]) -> Request:
        """Send one of the prebuilt updates."""
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
        """Acquire a row.

        Args:
            key: Of the row.
            own: The claim to be made.
            values: What it carries.
            now: Local time.
            watched: A claim that is dead because it stayed unchanged for its whole lease.
            take: On which condition about those who wait in line; ``values`` then has what that compares.
        """
        values = {
            **values,
            "token": own.token,
            "seed": str(self.next_version(now)),
            "now_low": self.now_low(now),
        }
        if watched is not None:
            values |= self.seen(watched)
        found = {"watched": watched is not None, "data": "data" in values}
        if take is None:
            return self.update(self.requests.acquire(**found), key, values)
        values["past"] = self._low(now, take.past)
        return self.update(self.requests.acquire_in_line(take, **found), key, values)

    def join(self, key: RawItem, entry: str, seen: str | None) -> Request:
        """Stand in line for a lock whose row was seen with a token."""
        values = {"entry": entry, "entries": [{"S": entry}], "seen": seen}
        return self.update(self.requests.join, key, values)

    def leave(self, key: RawItem, entry: str, place: int, now: float) -> Request:
        """Leave the line, from a place."""
        values = {"entry": entry, "free_since": seconds(self._highest(now))}
        return self.update(self.requests.leave(place), key, values)

    def release(self, key: RawItem, own: OwnClaim, now: float, *, delete: bool) -> Request:
        """End our claim, and keep the tombstone or delete the row."""
        if delete:
            return Request(self, "DeleteItem", self.requests.delete.fill(key, self.mine(own)))
        values = self.mine(own) | self.ending(now)
        return self.update(self.requests.release, key, values)

    def force(self, key: RawItem, seen: Claim, token: str, now: float) -> Request:
        """Break the claim that was seen, and write a token that no holder has."""
        values = self.ending(now, seen.expires_at) | {"seen": seen.token, "token": token}
        return self.update(self.requests.force, key, values)

    def put_right(self, key: RawItem, seen: RawItem, token: str, now: float) -> Request:
        """Break the claim in a row whose lock attributes cannot be right, if they still are as they were seen.

        The fencing token grows where there was one to count from.
        """
        version = self.layout.version_above(seen) or self.next_version(now)
        template, values = self.requests.put_right(seen)
        values |= self.ending(now) | {"token": token, "new_version": str(version)}
        return self.update(template, key, values)

    def transact(self, items: list[dict[str, Any]], options: Mapping[str, str]) -> Request:
        """Send several writes that are applied all or none."""
        for item in items:
            for kwargs in item.values():
                # what single writes may ask for
                kwargs.pop("ReturnValues", None)
        return Request(self, "TransactWriteItems", {"TransactItems": items, **options})

    def execute(self, statements: list[dict[str, Any]]) -> Request:
        """Send up to 25 statements, each with an outcome of its own."""
        return Request(self, "BatchExecuteStatement", {"Statements": statements})

    def scan(self, start: RawItem | None = None, limit: int | None = None) -> Request:
        """Read the rows that carry a claim, dead or alive, from one page of the table.

        Args:
            start: The end of the page before; None for the first.
            limit: Rows to read, whatever they carry.
        """
        names: dict[str, str] = {}
        kwargs: dict[str, Any] = {
            "TableName": self.connection.table_name,
            "FilterExpression": self.layout.has_claim.serialize(names, {}),
            "ConsistentRead": True,
        }
        kwargs["ExpressionAttributeNames"] = {short: name for name, short in names.items()}
        if start is not None:
            kwargs["ExclusiveStartKey"] = start
        if limit is not None:
            kwargs["Limit"] = limit
        return Request(self, "Scan", kwargs)


class _Numbers:
    """Numbers that only grow, for all by which one process reaches the same rows."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, least: int) -> int:
        """Return the next one."""
        self._last = max(self._last + 1, least)
        return self._last
