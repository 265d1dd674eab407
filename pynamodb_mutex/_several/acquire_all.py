"""Acquire several locks at once, all or none of them, by one transaction.

Nobody holds some locks while it waits for others: so there is no deadlock, in whatever order the keys are given. Once
acquired, each lock is a claim like any other; `group.HeldGroup` keeps them together.
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
        store: Store by whose connection the request is sent.
        rows: Model and primary key of each row.
        until: Local time until which a failure is retried.
        consistent: Whether to read consistently, for twice the read units.
        about: What log records are about.
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
    # DynamoDB returns the rows in any order, and a number in a key perhaps in another notation than it was sent in,
    # such as 1 for 1.0. `row_name` is the same for both.
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
    """An acquisition of one of the locks to acquire together: what is known of its row, and its part of the transaction."""

    def __init__(self, contender: Contender) -> None:
        super().__init__(contender, 0.0)
        self.store = contender.store

    def start_anew(self) -> None:
        """Make a new claim, with a new token, for another transaction.

        The last transaction was refused. With the same token, a late copy of it, with earlier ends, could
        pass for this one.
        """
        store, seen = self.store, self.observed.claim or Claim()
        # Not in `__init__`: the version depends on server time and on the row, which are read after that.
        self.own = OwnClaim(self.process.new_token(store), self.contender.options.lease)
        self.own.version = max(store.next_version(self.process.now), seen.version + 1)
        self._first_end = 0.0

    @property
    def free_at(self) -> float:
        """Local time from which the lock may be acquired, as far as is known; minus infinity if no row was seen."""
        return -math.inf if self.observed.claim is None else super().free_at

    def update(self) -> dict[str, Any]:
        """Return the update that acquires the row, for an attempt that is about to be sent.

        The answer to a transaction does not show what it wrote. So the fencing token is not counted up in the row, as
        for a single lock, but chosen beforehand, and the update requires that the one in the row is lower.
        """
        now, own = self.process.now, self.own
        end, lease = own.propose(now, self.store.bounds, own.lease)
        self._first_end = self._first_end or end
        values = self.contender.values(lease, end) | {"new_version": str(own.version)}
        return self._request(own, values, now).kwargs

    def held(self, sent: float) -> HeldClaim:
        """Return the confirmed acquisition, by whichever of the attempts it was made.

        Args:
            sent: Local time before the first attempt that may have made it was sent.
        """
        contender, own = self.contender, self.own
        # Suppose the first attempt was applied and its answer lost. The retry, which proposes a later end, is then
        # refused, and the row keeps the first end. A transaction that is applied does not show which end it wrote, so
        # the holder believes in the earliest end that an attempt proposed.
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
    """An attempt to acquire several locks.

    Attributes:
        contenders: The contenders, one for each of the locks.
    """

    def __init__(
        self, contenders: Sequence[Contender], timeout: float, poll: tuple[float, float]
    ) -> None:
        """Make an attempt.

        Args:
            contenders: The contenders, one for each of the locks.
            timeout: Seconds to wait; 0 for a single try, infinity to wait for ever.
            poll: Shortest and longest wait between two polls, in seconds.
        """
        super().__init__(contenders[0].process, timeout)
        self.contenders = contenders
        self._members = [_Member(each) for each in contenders]
        self._poll = poll
        self._waited = 0.0
        # the attempts at the last transaction, and what it has acquired
        self._writes = Attempts()
        self._claims: Sequence[HeldClaim] = ()

    @property
    def last_blocked(self) -> Acquisition:
        """The attempt at the lock that will be free last: it keeps this one from success."""
        return max(self._members, key=lambda member: member.free_at)

    def _undoing(self) -> Sequence[Callable[[], Operation[None]]]:
        return (self._undo,)

    def _reported(self) -> Sequence[Contender]:
        return self.contenders

    def _undo(self) -> Operation[None]:
        """Take back what this attempt has done, or may have done. If that is interrupted, it can be called again."""
        if any(is_handed_out(claim) for claim in self._claims):
            with suppress(PynamoDBException):
                yield from release(self._claims[0].whole, at_least=False)
        elif self._writes.maybe_applied:
            yield from self._take_back()

    def _emit_contended(self) -> None:
        """Emit ``contended`` for each lock that is known to be held; called until that is known of one."""
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
        # Older waiters of this process come first. Suppose a release wakes one of them: an attempt that begins at
        # that moment could be faster than the woken thread, again and again. So this one waits first, as after a try.
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
        # If others come first there has been no try yet: so there is one in any case, even at the deadline.
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
        """Return whether the locks may all be free; read those whose claims were in the way.

        A read costs half a read unit for each of them, a transaction two write units for each lock even if refused.
        """
        process = self.process
        self.check_process()
        for member in self._members:
            if not member.store.connection.is_open:
                yield Outside(member.store.connection.open)
        # The tables that Meta names no region for are where the environment says, which is known only now. All rows would
        # be locked in the region of the first, where the others may have namesakes: another process locks the real ones.
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
            # Each attempt has a ClientRequestToken of its own: it proposes other ends than the one before, and DynamoDB
            # refuses a token that comes again with another content. So a retry is not recognised by that token, but
            # by ours in the rows.
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
                # An attempt was applied and its answer lost, one of its claims was broken by force, and another may
                # hold that lock: the caller must not. Nobody else would release the other locks.
                yield from self._take_back()
                attempts.first_sent = math.inf
                continue
            # None of the attempts has been applied, and a late one cannot be prevented: see `Acquisition.take`.
            attempts.first_sent = math.inf
            refused = {self._members[place]: item for place, item in answer.refused.items()}
            if self._is_blocked(refused, answer.received) or answer.refused == before:
                return None
            # No row shows a running claim: it was refused for a fencing token that is not lower than ours, or for
            # an end that we did not know to have passed. Both are known now, so the next transaction may be
            # applied. If the same rows refuse it again, whatever the reason, it is left to the next poll: this
            # loop checks neither the timeout nor blocking=False.
            before = dict(answer.refused)

    def _ours(self, answer: Answer) -> list[bool]:
        """Return for each row that refused the transaction whether it carries our claim; none if it was applied.

        One row of ours proves that an earlier attempt was applied. Then each row refuses a retry, by our token or, if its
        claim was broken since, by its fencing token.
        """
        return [
            is_mine(self._members[place].own, self._members[place].store.layout.claim(item))
            for place, item in answer.refused.items()
        ]

    def _is_blocked(self, rows: dict[_Member, RawItem], received: float) -> bool:
        """See rows as an answer showed them; return whether another holds one of them.

        Args:
            rows: The rows, by lock; {} for one that does not exist.
            received: Local time at which the answer was received.
        """
        blocked = changed = False
        for member, item in rows.items():
            member.see_row(item, member.store.layout.claim(item), received)
            changed |= member.observed.changed_hands
            blocked |= received < member.free_at
        if changed:
            # It is held for short times: a waiter that polls seldom would find it held by the next holder each time.
            self._waited = 0.0
        return blocked

    def _begin(self, attempts: Attempts, sent: float) -> Operation[HeldGroup | None]:
        # The lease counts from the first attempt that may have been applied: see `Acquisition.take`.
        sent = min(attempts.first_sent, sent)
        claims = [member.held(sent) for member in self._members]
        held = HeldGroup(claims)
        # Not in a variable of this step: after Ctrl-C within it, those that have begun would be held by nobody for ever.
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
            # Suppose DynamoDB does not answer: each of these requests hangs for seconds, with 100 locks for minutes in
            # all, and the caller's error, Ctrl-C or cancellation comes only after them. So the rest is left to expire.
            if self.process.now < until:
                yield from member.contender.disown(member.own)
