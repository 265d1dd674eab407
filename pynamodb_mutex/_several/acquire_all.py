"""Acquire several locks at once, all or none of them, by one transaction.

No caller holds some locks while it waits for others: so there is no deadlock, whatever the order of the keys. Once acquired, each
lock is a claim like any other; `group.HeldGroup` keeps them together.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pynamodb.constants import CLIENT_REQUEST_TOKEN, TRANSACT_UPDATE
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._lock.dynamodb.keys import row_name
from pynamodb_mutex._lock.operations.acquire import (
    Acquisition,
    BaseAcquisition,
    is_handed_out,
    raise_if_out_of_time,
    renew_if_short,
)
from pynamodb_mutex._lock.operations.contender import warn_of_blocked_loop
from pynamodb_mutex._lock.operations.effects import Outside, Wait, Wakeup
from pynamodb_mutex._lock.operations.events import contended
from pynamodb_mutex._lock.operations.held import HeldClaim
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.operations.retry import Attempts, retrying
from pynamodb_mutex._lock.protocol.claim import Claim, OwnClaim
from pynamodb_mutex._lock.protocol.messages import shown_all
from pynamodb_mutex._lock.protocol.outcome import is_mine
from pynamodb_mutex._lock.protocol.schedule import RELEASE_PATIENCE, next_wait, poll_at_end
from pynamodb_mutex._several.group import HeldGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request, Store
    from pynamodb_mutex._lock.operations.contender import Contender
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex._lock.operations.retry import Named


def read_rows(
    process: ProcessState,
    store: Store,
    rows: Sequence[tuple[type[Model], RawItem]],
    until: float,
    *,
    consistent: bool,
    about: Named | None = None,
    attempts: Attempts | None = None,
) -> Operation[list[RawItem]]:
    """Read up to 100 rows, usually by one request; return them in the same order, {} for a row that does not exist.

    Args:
        process: State of the process.
        store: Store whose connection sends the request.
        rows: Model and primary key of each row.
        until: Local time until which a failure is retried.
        consistent: Whether to read consistently, for twice the read units.
        about: The contender that log records are about.
        attempts: Count of the requests that are sent, continued.

    Raises:
        PynamoDBException: If the rows cannot be read until then.
    """
    keys: dict[str, list[RawItem]] = {}
    models = {}
    for model, key in rows:
        keys.setdefault(model.Meta.table_name, []).append(key)
        models[model.Meta.table_name] = model
    missing: dict[str, Any] = {
        table: {"Keys": several, "ConsistentRead": consistent} for table, several in keys.items()
    }
    # DynamoDB returns the rows in any order, and perhaps writes a number in a key in another way than we did, such as 1 for 1.0.
    # `row_name` is the same for both.
    by_name = {}
    while missing:
        request = store.read_all(missing)
        answer = yield from retrying(
            process,
            lambda: request,  # noqa: B023 - called before the next round
            until,
            about=about,
            attempts=attempts,
        )
        for table, items in answer.data["Responses"].items():
            for item in items:
                found = {name: item[name] for name in keys[table][0]}
                by_name[row_name(models[table], found)] = item
        # DynamoDB may answer for some of the keys only, for example if it throttles.
        missing = answer.data.get("UnprocessedKeys") or {}
    return [by_name.get(row_name(model, key), {}) for model, key in rows]


def are_held(
    process: ProcessState,
    locks: Sequence[tuple[Store, LockOptions]],
    judge: Callable[[Iterable[bool]], bool],
) -> Operation[bool]:
    """Return whether several locks are held, by one consistent read of their rows.

    Args:
        process: State of the process.
        locks: The store and the options of each lock.
        judge: Makes one truth value out of those of the locks: ``any`` or ``all``.
    """
    first = locks[0][0]
    keys = [(options.model, options.row) for _, options in locks]
    rows = yield from read_rows(process, first, keys, 0.0, consistent=True)
    claims = [store.layout.claim(row) for (store, _), row in zip(locks, rows, strict=True)]
    return judge(claim.is_held(process.now, first.bounds) for claim in claims)


# -- all or none -----------------------------------------------------------------------------------


class _Member(Acquisition):
    """The part of an acquisition for one of its locks: the last row that was seen, and an item of the transaction."""

    def __init__(self, contender: Contender) -> None:
        super().__init__(contender, 0.0)
        self.store = contender.store

    def start_anew(self) -> None:
        """Make a new claim, with a new token, for another transaction.

        The last transaction was refused. If the token stayed the same, a late copy of the last one, with earlier ends, could pass
        for this one.
        """
        store, seen = self.store, self.observed.claim or Claim()
        # Not in `__init__`: the version depends on server time and on the row, which are read later.
        self.own = OwnClaim(self.process.new_token(store), self.contender.options.lease)
        self.own.version = max(store.next_version(self.process.now), seen.version + 1)
        self._first_end = 0.0

    @property
    def free_at(self) -> float:
        """Local time from which the lock may be acquired; minus infinity if no row was seen."""
        return -math.inf if self.observed.claim is None else super().free_at

    def update(self) -> dict[str, Any]:
        """Return the update that acquires the row, for an attempt that is about to be sent.

        The answer to a transaction does not show the rows. So DynamoDB does not count the fencing token up, as for a single
        lock: the token is chosen beforehand, and the update requires a lower token in the row.
        """
        now, own = self.process.now, self.own
        end, lease = own.propose(now, self.store.bounds, own.lease)
        self._first_end = self._first_end or end
        values = self.contender.values(lease, end) | {"new_version": str(own.version)}
        return self._request(own, values, now).kwargs

    def held(self, sent: float) -> HeldClaim:
        """Return the confirmed claim; ``sent`` is the local time before the first attempt that may have made it."""
        contender, own = self.contender, self.own
        # Suppose the first attempt was applied and its answer lost. DynamoDB then refuses the retry, which proposes a later end,
        # and the row keeps the first end. The answer to a transaction does not show the end, so the holder believes in the
        # earliest end that an attempt proposed.
        claim = Claim(
            token=own.token,
            version=own.version,
            expires_at=self._first_end,
            lease=contender.options.lease,
            owner=contender.owner,
            writes=own.version,
        )
        return HeldClaim(contender, own, claim, {}, sent)


class AcquisitionOfSeveral(BaseAcquisition[HeldGroup]):
    """The acquisition of several locks.

    Attributes:
        contenders: The contenders, one for each of the locks.
    """

    def __init__(
        self, contenders: Sequence[Contender], timeout: float, poll: tuple[float, float]
    ) -> None:
        """Make an acquisition; ``poll`` has the shortest and the longest wait between two polls, in seconds."""
        super().__init__(contenders[0].process, timeout)
        self.contenders = contenders
        self._members = [_Member(each) for each in contenders]
        self._poll = poll
        self._waited = 0.0
        # the attempts at the last transaction, and the claims that it has acquired
        self._writes = Attempts()
        self._claims: Sequence[HeldClaim] = ()

    @property
    def last_blocked(self) -> Acquisition:
        """The part for the lock that will be free last: this acquisition waits for it."""
        return max(self._members, key=lambda member: member.free_at)

    def _undoing(self) -> Sequence[Callable[[], Operation[None]]]:
        return (self._undo,)

    def _reported(self) -> Sequence[Contender]:
        return self.contenders

    def _undo(self) -> Operation[None]:
        """Take back what this acquisition has done, or may have done. If this is interrupted, it can be called again."""
        if any(is_handed_out(claim) for claim in self._claims):
            with suppress(PynamoDBException):
                yield from release(self._claims[0].whole, at_least=False)
        elif self._writes.maybe_applied:
            yield from self._take_back()

    def _emit_contended(self) -> None:
        """Emit ``contended`` for each lock that is known to be held; called until one is."""
        now = self.process.now
        for member in self._members:
            claim = member.holder
            if claim is not None and (member.observed.claim is None or now < member.free_at):
                self._contended = True
                self.process.emit(contended(member.contender, claim))
        if self._contended and self.timeout:
            warn_of_blocked_loop(self.contenders)

    def _in_line(self) -> Operation[HeldGroup | None]:
        self._check_holders()
        # Older waiters of this process come first. Suppose a release wakes one of them: an acquisition that begins at that moment
        # could be faster than the woken thread, again and again. So this one waits first, as after a try.
        others_wait = any(member.contender.key_queue.watchers for member in self._members)
        held = None if others_wait else (yield from self.poll())
        if held is not None:
            return held
        self._emit_contended()
        wakeup = Wakeup()
        for member in self._members:
            member.contender.key_queue.watch(wakeup)
        try:
            return (yield from self._poll_until_deadline(wakeup, others_wait=others_wait))
        finally:
            for member in self._members:
                member.contender.key_queue.unwatch(wakeup)

    def _poll_until_deadline(
        self, wakeup: Wakeup, *, others_wait: bool
    ) -> Operation[HeldGroup | None]:
        process = self.process
        # If other waiters come first, there has been no try yet: so there is one even at the deadline.
        while others_wait or process.now < self._deadline:
            others_wait = False
            for member in self._members:
                member.contender.warn_of_wait(self._since, member.holder)
            if self._deadline == math.inf:
                self._check_holders()  # again in each round: see `Acquisition._report_wait`
            self._waited = next_wait(self._waited, self._poll, process.uniform)
            free_at = max(member.free_at for member in self._members)
            end = math.inf
            if free_at > -math.inf:
                end = poll_at_end(process.now, free_at, self._poll, process.uniform)
            yield Wait(min(process.now + self._waited, end, self._deadline), wakeup)
            held = yield from self.poll()
            if held is not None:
                return held
            if not self._contended:
                self._emit_contended()
        return None

    # -- one try ------------------------------------------------------------------------------------

    def poll(self) -> Operation[HeldGroup | None]:
        """Try once: acquire the locks if they seem free; return None if another holds one of them."""
        is_free = yield from self._seems_free()
        return (yield from self._take()) if is_free else None

    def _seems_free(self) -> Operation[bool]:
        """Return whether the locks may all be free, after reading the rows whose claims were in the way.

        A read costs half a read unit for each such row; a transaction costs two write units for each lock, even if refused.
        """
        process = self.process
        self.check_process()
        for member in self._members:
            if not member.store.connection.is_open:
                yield Outside(member.store.connection.open)
        # If a table's Meta names no region, the environment decides, and that is known only now. Suppose the regions differ: the
        # transaction would lock all rows in the region of the first table, perhaps in tables with the same names as the real
        # ones, which another process locks.
        regions = {member.store.connection.region or "" for member in self._members} - {""}
        if len(regions) > 1:
            places = shown_all(sorted(regions))
            msg = f"one transaction reaches the tables of one region only, not {places}"
            raise ValueError(msg)
        # At first contact, or after an idle time, all rows are read, and consistently: see `Acquisition.poll`.
        learns_time = self._members[0].observed.claim is None and not all(
            member.store.knows_time(member.contender.options.lease, process.now)
            for member in self._members
        )
        members = [
            member for member in self._members if learns_time or process.now < member.free_at
        ]
        if not members:
            return True
        rows = yield from read_rows(
            process,
            self.contenders[0].store,
            [(member.contender.model, member.contender.options.row) for member in members],
            self._deadline,
            consistent=learns_time,
            about=members[0].contender,
            attempts=self.attempts,
        )
        return not self._is_blocked(dict(zip(members, rows, strict=True)), process.now)

    def _take(self) -> Operation[HeldGroup | None]:
        """Send the transaction; return None if another holds one of the locks."""
        self._writes = attempts = Attempts()
        before: dict[int, RawItem] = {}

        def build() -> Request:
            # Each attempt has its own ClientRequestToken: it proposes other ends than the attempt before, and DynamoDB refuses a
            # ClientRequestToken that comes again with other content. So a retry is recognised by our token in the rows.
            self.attempts.count += 1
            items = [{TRANSACT_UPDATE: member.update()} for member in self._members]
            return self.contenders[0].store.transact(
                items, {CLIENT_REQUEST_TOKEN: self.process.new_request_token()}
            )

        while True:
            for member in self._members:
                member.start_anew()
            answer = yield from retrying(
                self.process,
                build,
                self._deadline,
                about=self._members[0].contender,
                attempts=attempts,
            )
            ours = self._ours(answer)
            if all(ours):
                return (yield from self._begin(attempts, answer.sent))
            if any(ours):
                # An attempt was applied and its answer lost, force has broken one of its claims, and another caller may hold
                # that lock: so ours must not hold them. Nobody else would release the other locks.
                yield from self._take_back()
                attempts.first_sent = math.inf
                continue
            # None of the attempts has been applied, and a late one cannot be prevented: see `Acquisition.take`.
            attempts.first_sent = math.inf
            refused = {self._members[place]: item for place, item in answer.refused.items()}
            if self._is_blocked(refused, answer.received) or answer.refused == before:
                return None
            # No row shows a running claim: a fencing token was not lower than ours, or we did not know that an end had passed.
            # We know both now, so DynamoDB may apply the next transaction. If the same rows refuse it again, for any reason, the
            # next poll tries: this loop checks neither the timeout nor blocking=False.
            before = dict(answer.refused)

    def _ours(self, answer: Answer) -> list[bool]:
        """Return for each row that refused the transaction whether it carries our claim; empty if it was applied.

        If one row does, an earlier attempt was applied. Then each row refuses a retry, by our token or, if its claim was broken
        since, by its fencing token.
        """
        return [
            is_mine(self._members[place].own, self._members[place].store.layout.claim(item))
            for place, item in answer.refused.items()
        ]

    def _is_blocked(self, rows: dict[_Member, RawItem], received: float) -> bool:
        """Note rows as an answer showed them, {} for a row that does not exist; return whether another holds one of them."""
        blocked = changed = False
        for member, item in rows.items():
            member.see_row(item, member.store.layout.claim(item), received)
            changed |= member.observed.changed_hands
            blocked |= received < member.free_at
        if changed:
            # Holders keep this lock for short times: if a waiter polled seldom, it would find another holder each time.
            self._waited = 0.0
        return blocked

    def _begin(self, attempts: Attempts, sent: float) -> Operation[HeldGroup | None]:
        # The lease counts from the first attempt that may have been applied: see `Acquisition.take`.
        sent = min(attempts.first_sent, sent)
        claims = [member.held(sent) for member in self._members]
        held = HeldGroup(claims)
        # Not in a variable of this step: after Ctrl-C within it, nobody would release the claims that have begun.
        self._claims = claims
        failure = yield from renew_if_short(held)
        if not held.stands_at(self.process.now):
            yield from self._take_back()
            attempts.first_sent = math.inf
            raise_if_out_of_time(failure, held, self._deadline)
            return None
        for claim in claims:
            claim.begin()
        held.start(sent)
        return held

    def _take_back(self) -> Operation[None]:
        for claim in self._claims:
            claim.forget()
        until = self.process.now + RELEASE_PATIENCE
        for member in self._members:
            # Suppose DynamoDB does not answer: each of these requests hangs for seconds, with 100 locks for minutes in all, and
            # the caller's error, Ctrl-C or cancellation comes only after them. So the remaining claims are left to expire.
            if self.process.now < until:
                yield from member.contender.disown(member.own)
