"""Acquire one of several locks, or several at once: all or none of them, by one transaction.

No order of keys and no deadlock, for nobody holds some while waiting for others. Each lock is a claim
like any other from then on.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pynamodb.constants import CLIENT_REQUEST_TOKEN, TRANSACT_UPDATE
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._dynamodb.keys import row_name
from pynamodb_mutex._operations.acquire import Acquisition, claim_in_the_way, delivered, disown
from pynamodb_mutex._operations.contender import Contender, refuse_wait
from pynamodb_mutex._operations.effects import Open, Wait, Wakeup
from pynamodb_mutex._operations.events import contended, not_acquired
from pynamodb_mutex._operations.held import Held, HeldClaim
from pynamodb_mutex._operations.release import release_several
from pynamodb_mutex._operations.renew import renew
from pynamodb_mutex._operations.retry import Attempts, retrying
from pynamodb_mutex._protocol.claim import TOO_SHORT, Claim, ObservedClaim, OwnClaim
from pynamodb_mutex._protocol.messages import shown
from pynamodb_mutex._protocol.outcome import is_mine
from pynamodb_mutex._protocol.schedule import next_wait, poll_at_end
from pynamodb_mutex.exceptions import MutexError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.answers import Answer
    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.store import Request, Store
    from pynamodb_mutex._operations.contender import Caller
    from pynamodb_mutex._operations.effects import Operation
    from pynamodb_mutex._operations.options import LockOptions
    from pynamodb_mutex._operations.retry import Named
    from pynamodb_mutex._operations.shared import Queue, Shared


def read_rows(
    shared: Shared,
    store: Store,
    rows: Sequence[tuple[type[Model], RawItem]],
    until: float,
    *,
    consistent: bool,
    about: Named | None = None,
    attempts: Attempts | None = None,
) -> Operation[list[RawItem]]:
    """Read up to 100 rows by model and key, by one request as a rule; an empty one does not exist.

    Raises:
        PynamoDBException: If it cannot be done until then.
    """
    keys: dict[str, list[RawItem]] = {}
    models = {}
    for model, key in rows:
        keys.setdefault(model.Meta.table_name, []).append(key)
        models[model.Meta.table_name] = model
    missing: dict[str, Any] = {
        table: {"Keys": several, "ConsistentRead": consistent} for table, several in keys.items()
    }
    # by name, for a number may come back in another notation
    by_name = {}
    while missing:
        request = store.read_all(missing)
        answer = yield from retrying(
            shared,
            lambda: request,  # noqa: B023 - called before the next round
            until,
            about=about,
            attempts=attempts,
        )
        for table, items in answer.data["Responses"].items():
            for item in items:
                found = {name: item[name] for name in keys[table][0]}
                by_name[row_name(models[table], found)] = item
        missing = answer.data.get("UnprocessedKeys") or {}
    return [by_name.get(row_name(model, key), {}) for model, key in rows]


class _Member:
    """One of the locks, and what is known of its row."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.shared = contender.shared
        self.store = contender.store
        self.observed = ObservedClaim()

    def start_anew(self) -> None:
        """Begin another try, whose outcome is not to be confused with that of the last one."""
        store, seen = self.store, self.observed.claim or Claim()
        # not before what is known of the row and of server time was read
        self.own = OwnClaim(self.shared.new_token(store), self.contender.options.lease)
        self.own.version = max(store.next_version(self.shared.now), seen.version + 1)
        self._first_end = 0.0

    @property
    def free_at(self) -> float:
        """Local time from which the row may be acquired, as far as is known."""
        if self.observed.claim is None:
            return -math.inf
        return self.observed.free_at(self.store.bounds)

    def update(self) -> dict[str, Any]:
        """Return the update that acquires the row, for an attempt that is about to be sent.

        A transaction does not show what it wrote: the fencing token is chosen beforehand.
        """
        now, store, options = self.shared.now, self.store, self.contender.options
        end, lease = self.own.propose(now, store.bounds, options.lease)
        self._first_end = self._first_end or end
        values = self.contender.values(lease, end) | {
            "token": self.own.token,
            "new_version": str(self.own.version),
            "now_low": store.now_low(now),
        }
        watched = self.observed.claim if now >= self.observed.matures() else None
        if watched is not None:
            values |= store.seen(watched)
        template = store.requests.acquire_exactly(
            watched=watched is not None, data="data" in values
        )
        return template.fill(options.row, values)

    def see(self, claim: Claim, received: float) -> bool:
        """Note another's row; return whether it has changed hands since it was seen before."""
        before = self.observed.claim
        self.observed.see(claim, received)
        return before is not None and before.token != claim.token

    def held(self, sent: float) -> HeldClaim:
        """Return the acquisition, whichever of the attempts since ``sent`` made it."""
        contender, own = self.contender, self.own
        # The first attempt may have been applied and its answer lost. The retry, which proposes a later end,
        # is then refused, and the row keeps the first end. A transaction that is applied does not show which
        # end it wrote, so the holder believes in the earliest end that an attempt proposed.
        claim = Claim(
            token=own.token,
            version=own.version,
            expires_at=self._first_end,
            lease=contender.options.lease,
            owner=contender.owner,
        )
        return HeldClaim(contender, own, claim, {}, sent)


class AcquisitionOfSeveral:
    """An attempt to acquire several locks, until a deadline.

    Attributes:
        contenders: Who asks for each of the locks.
    """

    def __init__(
        self, contenders: Sequence[Contender], patience: float, poll: tuple[float, float]
    ) -> None:
        """Make an attempt.

        Args:
            contenders: Who asks for each of the locks.
            patience: Seconds for which to wait; 0 for not at all.
            poll: Shortest and longest wait between two polls, in seconds.
        """
        self.shared = contenders[0].shared
        self.contenders = contenders
        self._members = [_Member(each) for each in contenders]
        self._patience = patience
        self._deadline = math.inf
        self._since = math.inf
        self._poll = poll
        self._waited = 0.0
        self._store: Store = contenders[0].store
        self._requests = Attempts()
        self._contended = False

    @property
    def in_the_way(self) -> tuple[str, Claim]:
        """Key and claim of a lock that was not free."""
        blocked = max(self._members, key=lambda member: member.free_at)
        return blocked.contender.key, blocked.observed.claim or Claim()

    def run(self, note: Callable[[Held], object]) -> Operation[Held | None]:
        """Acquire all the locks, and report it; None if they were not free in time.

        Args:
            note: Called with them before they are reported: receivers may ask the locks.
        """
        self._since = self.shared.now
        self._deadline = self._since + self._patience
        try:
            held = yield from self._wait()
            if held is not None:
                note(held)
                yield from self._announce(held)
        except BaseException as error:
            self._emit_not_acquired(error)
            raise
        if held is None:
            self._emit_not_acquired(None)
        return held

    def _announce(self, held: Held) -> Operation[None]:
        """Report that the locks were acquired, before anything else is reported of them."""
        for claim in held.claims:
            claim.emit_acquired(self._since, self._requests.count)
        yield from delivered(list(held.claims), release_several, held)

    def _emit_not_acquired(self, error: BaseException | None) -> None:
        waited = max(0.0, self.shared.now - self._since)
        for member in self._members:
            self.shared.emit(not_acquired(member.contender, waited, self._requests.count, error))

    def _emit_contended(self) -> None:
        """Report each lock that is held, once: when it is first known of any."""
        now = self.shared.now
        for member in self._members:
            claim = claim_in_the_way(member.observed, member.contender)
            if claim is not None and (member.observed.claim is None or now < member.free_at):
                self._contended = True
                self.shared.emit(contended(member.contender, claim))

    def _wait(self) -> Operation[Held | None]:
        blocking = self._patience > 0
        if blocking:
            self._check_wait()
        # those of this process that have waited for longer come first
        others_wait = blocking and any(
            member.contender.key_queue.watchers for member in self._members
        )
        if not others_wait:
            held = yield from self._try()
            if held is not None:
                return held
        self._emit_contended()
        if not blocking:
            return None
        wakeup = Wakeup()
        for member in self._members:
            member.contender.key_queue.watch(wakeup)
        try:
            return (yield from self._poll_until_deadline(wakeup, others_wait=others_wait))
        finally:
            for member in self._members:
                member.contender.key_queue.unwatch(wakeup)

    def _poll_until_deadline(self, wakeup: Wakeup, *, others_wait: bool) -> Operation[Held | None]:
        shared = self.shared
        while others_wait or shared.now < self._deadline:
            others_wait = False
            if self._deadline == math.inf:
                self._check_wait()
            self._waited = next_wait(self._waited, self._poll, shared.uniform)
            free_at = max(member.free_at for member in self._members)
            end = math.inf
            if free_at > -math.inf:
                end = poll_at_end(shared.now, free_at, self._poll, shared.uniform)
            yield Wait(min(shared.now + self._waited, end, self._deadline), wakeup)
            held = yield from self._try()
            if held is not None:
                return held
            if not self._contended:
                self._emit_contended()
        return None

    def _check_wait(self) -> None:
        """Refuse a wait for what only the waiting thread, or task, could do: see `Acquisition`."""
        for member in self._members:
            stalled = member.contender.stalled_holder()
            if stalled is not None:
                refuse_wait(member.contender, stalled, self._deadline)

    # -- one try ------------------------------------------------------------------------------------

    def _try(self) -> Operation[Held | None]:
        """Acquire the locks if they are free, as far as is known."""
        is_free = yield from self._seems_free()
        return (yield from self._take()) if is_free else None

    def _seems_free(self) -> Operation[bool]:
        """Read what was in the way: half a read unit, where a transaction costs two writes each."""
        shared = self.shared
        if shared.inherited:
            raise MutexError(
                "the process was forked, or its engine left, while it waited for locks"
            )
        for member in self._members:
            if not member.store.connection.is_open:
                yield Open(member.store)
        # see `Acquisition.poll`
        learns_time = self._members[0].observed.claim is None and not all(
            member.store.knows_time(member.contender.options.lease, shared.now)
            for member in self._members
        )
        members = [member for member in self._members if learns_time or shared.now < member.free_at]
        if not members:
            return True
        rows = yield from read_rows(
            shared,
            self._store,
            [(member.contender.model, member.contender.options.row) for member in members],
            self._deadline,
            consistent=learns_time,
            about=members[0].contender,
            attempts=self._requests,
        )
        return not self._is_blocked(dict(zip(members, rows, strict=True)), shared.now)

    def _take(self) -> Operation[Held | None]:
        """Send the transaction; None if another holds one of the locks."""
        attempts = Attempts()
        before: dict[int, RawItem] = {}

        def build() -> Request:
            items = [{TRANSACT_UPDATE: member.update()} for member in self._members]
            return self._store.transact(
                items, {CLIENT_REQUEST_TOKEN: self.shared.new_request_token()}
            )

        try:
            while True:
                for member in self._members:
                    member.start_anew()
                answer = yield from retrying(
                    self.shared,
                    build,
                    self._deadline,
                    about=self._members[0].contender,
                    attempts=attempts,
                )
                if answer.applied or self._is_ours(answer):
                    return (yield from self._begin(min(attempts.first_sent, answer.sent)))
                attempts.first_sent = math.inf
                refused = {self._members[place]: item for place, item in answer.refused.items()}
                if self._is_blocked(refused, answer.received) or answer.refused == before:
                    return None
                # It was refused for a fencing token, or an end, that is known now. If the same rows refuse it
                # again, whatever the reason is, the next poll sends it again: this loop checks neither the
                # timeout nor blocking=False.
                before = dict(answer.refused)
        except BaseException:
            if attempts.maybe_applied:
                yield from self._give_up(None)
            raise
        finally:
            self._requests.count += attempts.count

    def _is_ours(self, answer: Answer) -> bool:
        """Say whether a row that refused shows that an earlier attempt was applied, and so as a whole."""
        return any(
            is_mine(self._members[place].own, self._members[place].store.layout.claim(item))
            for place, item in answer.refused.items()
        )

    def _is_blocked(self, rows: dict[_Member, RawItem], received: float) -> bool:
        """Note rows that may be another's; say whether one is held."""
        blocked = changed = False
        for member, item in rows.items():
            contender = member.contender
            if member.store.layout.must_exist and not item:
                raise contender.model.DoesNotExist(f"{shown(contender.key)}: no such row to lock")
            changed |= member.see(member.store.layout.claim(item), received)
            blocked |= received < member.free_at
        if changed:
            # it is held for short times: to poll seldom would be to find it held by the next one
            self._waited = 0.0
        return blocked

    def _begin(self, sent: float) -> Operation[Held | None]:
        claims = [member.held(sent) for member in self._members]
        held = Held(claims, is_group=True)
        now = self.shared.now
        if any(claim.ends - now < TOO_SHORT * claim.lease for claim in claims):
            # this process's clock may have stood still
            # it is reported; they are given up below, or are held for what is left
            with suppress(PynamoDBException):
                yield from renew(held)
        if not held.stands_at(self.shared.now):
            yield from self._give_up(claims)
            return None
        for claim in claims:
            claim.begin()
        held.start(sent)
        return held

    def _give_up(self, claims: Sequence[HeldClaim] | None) -> Operation[None]:
        for claim in claims or ():
            claim.forget()
        for member in self._members:
            yield from disown(member.contender, member.own)


# -- whichever is free first -----------------------------------------------------------------------


class ContenderForAny(Contender):
    """Who asks for any of several locks.

    Attributes:
        each: The same, asking for each single key.
    """

    __slots__ = ("each",)

    def __init__(
        self,
        shared: Shared,
        store: Store,
        options: LockOptions,
        alternatives: Sequence[LockOptions],
        caller: Caller,
        *,
        blocks: bool = True,
        on_lost: Callable[[], object] | None = None,
    ) -> None:
        keys = frozenset(each.key for each in alternatives)
        super().__init__(
            shared, store, options, caller, blocks=blocks, on_lost=on_lost, waits_for=keys
        )
        self.each = {
            each.key: Contender(
                shared, store, each, caller, blocks=blocks, on_lost=on_lost, waits_for=keys
            )
            for each in alternatives
        }

    def at(self, key: str) -> Contender:
        """Return who asks for the key that a local holder hands over."""
        return self.each[key]


class AcquisitionOfAny(Acquisition):
    """An attempt to acquire one of several locks, until a deadline."""

    contender: ContenderForAny

    def __init__(self, contender: ContenderForAny, patience: float) -> None:
        super().__init__(contender, patience)
        self._attempts = [
            Acquisition(each, patience, self.requests) for each in contender.each.values()
        ]
        self._polled = False

    def begin(self) -> None:
        """Count the patience from now."""
        super().begin()
        for attempt in self._attempts:
            attempt.begin()

    @property
    def blocker(self) -> Acquisition:
        """The attempt at the lock whose claim ends first, as far as they were seen."""
        return min(self._attempts, key=lambda attempt: attempt.free_at)

    @property
    def holder(self) -> Claim | None:
        """The claim on that lock."""
        return self.blocker.holder

    def _frees_at(self, queue: Queue) -> float:  # noqa: ARG002 - nobody holds all of them
        return min(attempt.free_at for attempt in self._attempts)

    def _stalled_holder(self) -> Contender | None:
        """Return one of the holders, if a wait keeps all of them from releasing the locks."""
        stalled = None
        for contender in self.contender.each.values():
            stalled = contender.stalled_holder()
            if stalled is None:
                break
        return stalled

    def poll(self) -> Operation[HeldClaim | None]:
        """Acquire one that is free, as far as is known; usually by one request."""
        # at random, or all that come at once would try the same
        attempts = self._shuffled()
        # unless somebody in line has seen that all are held
        if not self._polled and self.contender.queue.in_the_way is None:
            attempts.sort(key=self._is_held_here)
            first = attempts.pop(0)
            claim = yield from first.poll()
            if claim is not None or not attempts:
                self._polled = True
                return claim
        self.check_process()
        layout = self.contender.store.layout
        rows = yield from read_rows(
            self.shared,
            self.contender.store,
            [(each.contender.model, each.contender.options.row) for each in attempts],
            self._deadline,
            # the first is consistent, for nobody shall wait for an unlocked key
            consistent=not self._polled,
            about=self.contender,
            attempts=self.requests,
        )
        received = self.shared.now
        self._polled = True
        for attempt, row in zip(attempts, rows, strict=True):
            attempt.observed.see(layout.claim(row), received)
        for attempt in attempts:
            if received >= attempt.free_at:
                claim = yield from attempt.take()
                if claim is not None:
                    return claim
        return None

    def _shuffled(self) -> list[Acquisition]:
        uniform = self.shared.uniform
        return sorted(self._attempts, key=lambda _: uniform(0, 1))

    def _is_held_here(self, attempt: Acquisition) -> bool:
        local = attempt.contender.key_queue.holder
        return local is not None and local.held_at(self.shared.now)
