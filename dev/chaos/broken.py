"""Broken variants of the library: each undoes one of its rules, and the trial or the simulation must catch it.

Each function returns the patches of one variant; its docstring says what the variant does wrong. `broken` applies them
by the variant's name. A table's request templates are built once, so a variant that changes them must be applied before
the first use of the table. The table in ``tests/simulation/test_schedules.py`` shows each variant caught.
"""

from __future__ import annotations

import functools
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex import _handles, _transactions
from pynamodb_mutex._dynamodb import store
from pynamodb_mutex._dynamodb.answers import Answer, Failure
from pynamodb_mutex._dynamodb.layout import Layout, seconds, slot
from pynamodb_mutex._dynamodb.once_rows import OnceLayout, OnceRequests
from pynamodb_mutex._dynamodb.requests import Requests
from pynamodb_mutex._dynamodb.store import Request, Store
from pynamodb_mutex._operations import acquire, acquire_several, held, local_queue, release
from pynamodb_mutex._operations.acquire_fairly import FairAcquisition
from pynamodb_mutex._operations.effects import Wakeup
from pynamodb_mutex._operations.guarded_write import Guard
from pynamodb_mutex._operations.held import Held, HeldClaim
from pynamodb_mutex._operations.hints import Called, call_first
from pynamodb_mutex._operations.local_queue import LocalQueue, Turn
from pynamodb_mutex._operations.once import Beginning, Recording, Result, RunContender, complete
from pynamodb_mutex._operations.release import Ending
from pynamodb_mutex._operations.retry import retrying
from pynamodb_mutex._operations.row_write import UnlockedRow
from pynamodb_mutex._operations.shared import Shared
from pynamodb_mutex._operations.states import State
from pynamodb_mutex._protocol import server_time, waiting_line
from pynamodb_mutex._protocol.claim import FORCED_MARK, Claim, Loss, OwnClaim, Term
from pynamodb_mutex._protocol.outcome import Verdict
from pynamodb_mutex._protocol.server_time import Bounds, ServerTime
from pynamodb_mutex._protocol.waiting_line import Take, WaitingLine
from pynamodb_mutex._runtime.clock import local_clock
from pynamodb_mutex._runtime.process import current_process
from pynamodb_mutex._runtime.run_on_thread import run
from pynamodb_mutex.runs import Run

Patches = list[Any]


def _exists(self: Layout, value: Any = None) -> Any:
    """Return a condition that each existing row satisfies, in place of one of the protocol."""
    return self._hash_key.exists()


def lease_from_receipt() -> Patches:
    """The lease counts from the receipt of the answer, not from before the request was sent."""
    renewed = OwnClaim.renewed

    def late(self: OwnClaim, end: float, lease: float, sent: float, bounds: Any) -> None:
        renewed(self, end, lease, local_clock().now(), bounds)
        self.term = Term(self.term.ends, math.inf)

    return [patch.object(OwnClaim, "renewed", late)]


def release_by_key() -> Patches:
    """A release ends any claim in the row, not only its own."""

    def release(self: Requests) -> Any:
        layout = self._layout
        return self._template(layout.ending(), layout._hash_key.exists())

    return [patch.object(Requests, "release", property(release))]


def token_per_client() -> Patches:
    """All acquisitions of a client use the same token."""
    client = threading.local()
    take = acquire.Acquisition.take

    @functools.wraps(take)
    def named(self: Any, *seen: Any) -> Any:
        client.token = f"client-{self.contender.owner}"
        return (yield from take(self, *seen))

    return [
        patch.object(acquire.Acquisition, "take", named),
        patch.object(Shared, "new_token", lambda *_: getattr(client, "token", "client")),
    ]


def no_own_token() -> Patches:
    """A refused acquire does not recognise its own token in the row: it misses that a lost attempt was applied."""
    send = Request.send

    def blind(self: Request) -> Answer | Failure:
        reply = send(self)
        mine = _acquiring_token(self)
        if isinstance(reply, Answer) and not reply.applied and mine == reply.claim.token:
            reply.claim = reply.claim._replace(token="somebody")
        return reply

    return [patch.object(Request, "send", blind)]


def _acquiring_token(request: Request) -> str | None:
    """Return the token of an acquiring write; None for any other request."""
    text = request.kwargs.get("ConditionExpression", "")
    if request.operation != "UpdateItem" or "<>" not in text:
        return None
    token = text[text.index("<>") + 2 :].split(")")[0].strip()
    value: str = request.kwargs["ExpressionAttributeValues"][token]["S"]
    return value


def guard_by_token() -> Patches:
    """A guarded write checks the claim, but not the number of the last guarded write."""

    def guarding(self: Layout, value: Any = slot) -> Any:
        return self.mine(value) & self.has_claim

    return [patch.object(Layout, "guarding", guarding)]


def closed_to_newcomers() -> Patches:
    """A closed key refuses those who come later, and not those who were waiting before."""
    is_a_locks, observe = Layout.is_a_locks, acquire.Acquisition.observe

    def also_closed(self: Layout) -> Any:
        either = property(lambda layout: layout.closed.exists() | layout.closed.does_not_exist())
        with patch.object(Layout, "is_open", either):
            return is_a_locks(self)

    def patient(self: Any, claim: Claim, received: float) -> None:
        if self.observed.claim is None:
            observe(self, claim, received)
        else:
            self.observed.see(claim._replace(closed=None), received)

    return [
        patch.object(Layout, "is_a_locks", also_closed),
        patch.object(acquire.Acquisition, "observe", patient),
    ]


def closed_is_handed_over() -> Patches:
    """A closed key is handed over to the next waiter of the holder's process."""
    hand_over = Requests.hand_over

    def also_closed(self: Requests, values: Any) -> Any:
        with patch.object(Layout, "is_open", property(lambda layout: layout.has_claim)):
            return hand_over(self, values)

    return [patch.object(Requests, "hand_over", also_closed)]


def closed_by_date() -> Patches:
    """The TTL of a closed key is that of its last release."""

    def dated(self: Layout) -> Any:
        attribute = self.ttl_attribute
        return [] if attribute is None else [attribute.set(slot("N", "ttl"))]

    return [patch.object(Layout, "dated", dated)]


def no_guard() -> Patches:
    """A guarded write checks nothing but that the row exists."""
    return [patch.object(Layout, "guarding", _exists)]


def fence_at_write() -> Patches:
    """A mutex's transaction has no guard: writes only compare their fencing token with that of the row's last write."""
    return [
        patch.object(_transactions.GuardedTransactWrite, "_commit", _transactions._plain_commit)
    ]


def counter_reset() -> Patches:
    """A release resets the fencing token."""
    ending = Layout.ending

    def from_zero(self: Layout) -> Any:
        return [*ending(self), self.version.set(0)]

    return [
        patch.object(Layout, "ending", from_zero),
        patch.object(Store, "next_version", lambda self, now: 0),
    ]


def new_row_from_one() -> Patches:
    """The fencing tokens of a new row start from 1, though the TTL may have deleted one with higher tokens."""
    return [patch.object(Store, "next_version", lambda self, now: 0)]


def save_moves_end_back() -> Patches:
    """A save writes the end of the lease that was read with the row, and so undoes later renewals."""
    values = Guard.values

    def stale(self: Guard) -> Any:
        made = values(self)
        if self.renews:
            claim = self.claim
            stored = claim.item.get(claim.store.layout.expires_at.attr_name)
            if stored is not None:
                made["end"] = seconds(float(stored["N"]))
        return made

    return [
        patch.object(Guard, "values", stale),
        patch.object(Layout, "ends_before", _exists),
    ]


def renewal_revives() -> Patches:
    """A renewal checks the token and version, but no running claim: it may revive a released one."""
    return [patch.object(Layout, "ends_before", _exists)]


def wall_clock() -> Patches:
    """The client's wall clock replaces server time."""

    def learn(self: Store, reply: Any, sent: float, received: float) -> bool:
        reply.sent, reply.received = reply.sent or sent, received
        server = self.connection.server
        server.answered += 1
        return server.observe(_wall_clock(), sent, received)

    return [patch.object(Store, "learn", learn)]


def _wall_clock() -> float:
    # a simulated process has one of its own
    now: float = getattr(current_process(), "time_of_day", time.time)()
    return now


def upper_bound_of_all() -> Patches:
    """The upper bound of server time is the lowest that any answer gave, as if no local clock ever stood still."""
    observe = ServerTime.observe

    def lowest(self: ServerTime, date: float, sent: float, received: float) -> bool:
        old = self.bounds
        rose = observe(self, date, sent, received)
        new = self.bounds
        if old is None or new is None or old.highest(sent) >= new.highest(sent):
            return rose
        self.bounds = Bounds(new.lower, new.lower_at, old.upper, old.upper_at)
        return False

    return [patch.object(ServerTime, "observe", lowest)]


def early_taker() -> Patches:
    """A taker uses the upper bound of server time in place of the lower one, and takes claims too early."""
    return [
        patch.object(Bounds, "lowest", Bounds.highest),
        patch.object(Bounds, "passes", Bounds.reaches),
    ]


def denied_swallowed() -> Patches:
    """An acquire that is denied counts as successful."""
    send = Request.send

    def careless(self: Request) -> Answer | Failure:
        reply = send(self)
        token = _acquiring_token(self)
        if token is None or not isinstance(reply, Failure):
            return reply
        code = getattr(reply.error, "cause_response_code", None)
        if code != "AccessDeniedException":
            return reply
        claim = Claim(token, 1, 253370764800.0, 30.0)
        return Answer({}, claim=claim)

    return [patch.object(Request, "send", careless)]


def own_write_unknown() -> Patches:
    """A guarded write that was applied is made again if its answer was lost."""
    judge = Guard.judge

    def forgetful(self: Guard, row: Any, *, maybe_applied: bool) -> Verdict:
        verdict = judge(self, row, maybe_applied=maybe_applied)
        if verdict is Verdict.APPLIED and not hasattr(self, "was_made_again"):
            self.was_made_again = True  # type: ignore[attr-defined]  # the variant's own
            self.claim.own.writes = self.claim.store.layout.claim(row).writes
            return Verdict.AGAIN
        return verdict

    return [patch.object(Guard, "judge", forgetful)]


def held_is_a_flag() -> Patches:
    """A holder believes until an answer says otherwise; the end of its lease ends nothing."""

    def remaining(self: HeldClaim) -> float:
        belief = self.belief
        is_over = belief.state is State.RELEASED or belief.loss is not None
        return 0.0 if is_over else math.inf

    return [
        patch.object(HeldClaim, "remaining", property(remaining)),
        patch.object(HeldClaim, "held", property(lambda self: remaining(self) > 0)),
    ]


def unknown_is_no() -> Patches:
    """A write of unknown outcome is reported as not applied."""
    lost_error = HeldClaim.lost_error

    def sure(self: HeldClaim, what: str, *, applied: bool | None = False) -> Any:
        return lost_error(self, what, applied=bool(applied))

    return [patch.object(HeldClaim, "lost_error", sure)]


def force_breaks_any() -> Patches:
    """A force release breaks any claim that is in the row when it arrives, not only the one that it has seen."""

    def force(self: Requests) -> Any:
        layout = self._layout
        one_more = SetAction(Path(layout.version), Path(layout.version) + Value({"N": "1"}))
        actions = [layout.token.set(slot("S", "token")), one_more, *layout.ending()]
        return self._template(actions, layout.has_claim)

    return [patch.object(Requests, "force", property(force))]


def force_takes_any() -> Patches:
    """An acquire by force takes the place of any claim that is in the row, not only of the one that it has seen."""
    hand_over = Store.hand_over

    def take(self: Store, key: Any, before: Any, own: Any, values: Any) -> Request:
        if not own.token.startswith(FORCED_MARK):
            return hand_over(self, key, before, own, values)
        template = self.requests._passed_on("force", self.layout.has_claim, values)
        return self.update(template, key, {**values, "token": own.token})

    return [patch.object(Store, "hand_over", take)]


def kept_is_renewed() -> Patches:
    """A claim that is kept after its release keeps its token, and so a late renewal moves its end."""

    def keeping(self: Requests) -> Any:
        return [self._layout.owner.remove(), *self._new_end()]

    return [patch.object(Requests, "_keeping", keeping)]


def kept_by_own_clock() -> Patches:
    """A claim that is kept after its release ends by the wall clock of its client."""
    keep = Store.keep

    def by_own_clock(self: Store, key: Any, own: Any, *args: Any) -> Any:
        values, now, rest = args
        # up to 10 s wrong, another time in each acquisition
        wrong = int(own.token[-2:], 16) / 12.8 - 10
        return keep(self, key, own, values, now, max(rest + wrong, 0.001))

    return [patch.object(Store, "keep", by_own_clock)]


def kept_is_handed_over() -> Patches:
    """A release before ``hold_at_least`` hands the lock over to the next waiter of its process."""
    next_in_line = release._hand_over_to_next

    def hand_over(ending: Any) -> Any:
        keeps_until, ending.keeps_until = ending.keeps_until, -math.inf
        done = yield from next_in_line(ending)
        ending.keeps_until = keeps_until
        return done

    return [patch.object(release, "_hand_over_to_next", hand_over)]


def unlocking_believes() -> Patches:
    """A holder that unlocks by a write believes until the answer arrives, not only until the write is sent."""

    def remaining(self: HeldClaim) -> float:
        now = local_clock().now()
        return self.ends - now if self.stands_at(now) else 0.0

    return [
        patch.object(HeldClaim, "remaining", property(remaining)),
        patch.object(HeldClaim, "held", property(lambda self: remaining(self) > 0)),
    ]


def lost_wake_up() -> Patches:
    """A release or hand-over wakes no waiter of the same process; each goes on at its next poll."""

    def silently(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def silent(self: Any, claim: Any) -> Any:
            with patch.object(Wakeup, "ring", lambda _: None):
                return call(self, claim)

        return silent

    return [
        patch.object(LocalQueue, "released_by", silently(LocalQueue.released_by)),
        patch.object(Turn, "grant", silently(Turn.grant)),
    ]


def queued_twice() -> Patches:
    """A waiter enters the local queue twice."""
    enter = Turn.enter

    def twice(self: Any, now: float, *, polls_first: bool) -> None:
        enter(self, now, polls_first=polls_first)
        self.queue.turns.append(self)

    return [patch.object(Turn, "enter", twice)]


def renewal_forgotten() -> Patches:
    """No renewal is planned."""
    return [patch.object(Held, "plan_renewal", lambda self, sent, ends: None)]


def danger_unnoticed() -> Patches:
    """Nobody notices that little is left of a lease."""
    return [patch.object(HeldClaim, "danger_at", math.inf)]


def danger_repeated() -> Patches:
    """The same danger is reported again and again."""
    forgotten = property(lambda self: False, lambda self, value: None)
    return [patch.object(Held, "in_danger", forgotten)]


def release_all_of_anyone() -> Patches:
    """`release_all` ends any claim in the rows of its locks, also one that another holds by now."""
    request, make_last = Ending.request, release._make_last
    last: list[Held] = []

    def noted(held: Held) -> None:
        last.append(held.together)
        make_last(held)

    def of_anyone(self: Ending) -> Request:
        made = request(self)
        if self.claim.together in last:
            names = made.kwargs["ExpressionAttributeNames"]
            token = next(name for name, stands_for in names.items() if stands_for.endswith("token"))
            condition = made.kwargs["ConditionExpression"]
            made.kwargs["ConditionExpression"] = f"({condition}) OR attribute_exists ({token})"
        return made

    return [
        patch.object(Ending, "request", of_anyone),
        patch.object(release, "_make_last", noted),
    ]


def watched_by_token() -> Patches:
    """Who has watched a claim for its lease takes it, also if it was renewed at the last moment."""
    acquire = Store.acquire

    def careless(self: Store, *args: Any, **options: Any) -> Request:
        made = acquire(self, *args, **options)
        text, names = made.kwargs["ConditionExpression"], made.kwargs["ExpressionAttributeNames"]
        end = next(name for name, stands_for in names.items() if stands_for.endswith("expires_at"))
        either = rf"({end} = :\d+)"
        made.kwargs["ConditionExpression"] = re.sub(
            either, rf"(\1 OR attribute_exists ({end}))", text
        )
        return made

    return [patch.object(Store, "acquire", careless)]


def hosts_agree() -> Patches:
    """The clocks of DynamoDB's hosts are taken for equal."""
    return [patch.object(module, "HOST_SKEW", 0.0) for module in (server_time, store)]


def late_taker() -> Patches:
    """A waiter waits 3 s longer for a dead holder's lock."""
    passes = Bounds.passes
    return [patch.object(Bounds, "passes", lambda self, instant: passes(self, instant) + 3.0)]


def rare_poller() -> Patches:
    """A waiter polls ten times as seldom as its options allow."""
    seldom = staticmethod(lambda previous, poll, uniform: 10 * poll[1])
    return [patch.object(module, "next_wait", seldom) for module in (local_queue, acquire_several)]


def older_upper_bound() -> Patches:
    """The upper bound of server time comes from the answer that was received last, not from the one that was sent last."""
    observe = ServerTime.observe

    def latest(self: ServerTime, date: float, sent: float, received: float) -> bool:
        rose = observe(self, date, sent, received)
        known = self.bounds
        if known is not None:
            self.bounds = Bounds(known.lower, known.lower_at, date + 1, sent)
        return rose

    return [patch.object(ServerTime, "observe", latest)]


def group_believes_proposed() -> Patches:
    """Locks that are held together count as renewed as soon as the renewal is sent."""
    propose = HeldClaim.propose_renewal

    def hopeful(self: HeldClaim, lease: float | None = None) -> Any:
        proposal = propose(self, lease)
        if self.group is not None:
            self.own.renewed(proposal.end, proposal.lease, proposal.sent, self.store.bounds)
        return proposal

    return [patch.object(HeldClaim, "propose_renewal", hopeful)]


def handed_over_blindly() -> Patches:
    """A hand-over gives away any claim that is in the row, not only the holder's own."""
    hand_over = Store.hand_over

    def give(self: Store, key: Any, before: Any, own: Any, values: Any) -> Request:
        if own.token.startswith(FORCED_MARK):
            return hand_over(self, key, before, own, values)
        template = self.requests._passed_on("blindly", self.layout.has_claim, values)
        return self.update(template, key, {**values, "token": own.token})

    return [patch.object(Store, "hand_over", give)]


def unlocked_whatever() -> Patches:
    """A write without the lock does not ask whether the claim in its row has expired."""
    request = UnlockedRow.request

    def blind(self: UnlockedRow, now: float) -> Any:
        with patch.object(Store, "now_low", lambda *_: seconds(1e12)):
            return request(self, now)

    return [patch.object(UnlockedRow, "request", blind)]


def clears_unguarded() -> Patches:
    """``save_data(None)`` has no guard."""

    def clear(self: Requests) -> Any:
        layout = self._layout
        actions = [layout.counted(), layout.data_attribute.remove()]
        return self._template(actions, layout._hash_key.exists())

    return [patch.object(Requests, "clear_data", property(clear))]


def max_hold_ignored() -> Patches:
    """A lock is renewed after ``max_hold``."""
    return [patch.object(HeldClaim, "is_over_max_hold", lambda *_: False)]


def loss_reported_twice() -> Patches:
    """``on_lost`` is called twice."""
    call = Held.call

    def twice(self: Held, name: str, claims: Any) -> None:
        for _ in range(1 + (name == "on_lost")):
            call(self, name, claims)

    return [patch.object(Held, "call", twice)]


def loss_unreported() -> Patches:
    """``on_lost`` is never called."""
    return [patch.object(Held, "call", lambda *_: None)]


def loss_by_force() -> Patches:
    """Each loss that a row shows is reported as one by force."""
    return [patch.object(held, "loss_of", lambda *_: Loss.FORCED)]


def lost_by_failure() -> Patches:
    """A lock counts as lost once a renewal has failed."""
    plan = Held.plan_after_failure

    def give_up(self: Held, error: BaseException) -> None:
        plan(self, error)
        for claim in self.unreleased:
            claim.lose(Loss.UNREACHABLE)

    return [patch.object(Held, "plan_after_failure", give_up)]


def release_unsent() -> Patches:
    """A release sends nothing, and the claim stands until its lease ends."""

    def forget(held: Held, **_: Any) -> Any:
        for claim in held.unreleased:
            claim.forget()
        return
        yield

    return [patch.object(_handles, "release", forget)]


def version_from_one() -> Patches:
    """The fencing tokens of a new row begin at 1."""
    return [patch.object(Store, "next_version", lambda self, now: 0)]


# -- fair waiters ----------------------------------------------------------------------------------


def join_compares_lists() -> Patches:
    """A join does not see that its waiter stands in line already: when it is repeated, the waiter stands there twice.

    It looks in the list of waiters for a list, which is never among its strings.
    """
    contains = Path.contains

    def of_list(self: Path, item: Any) -> Any:
        return contains(self, slot("L", "entries") if self.path == ["waiting"] else item)

    return [patch.object(Path, "contains", of_list)]


def take_leaves_the_dead() -> Patches:
    """A waiter that passes dead ones leaves them in line."""
    passing = Requests._passing

    def alone(self: Requests, take: Take) -> Any:
        return passing(self, take._replace(ahead=False))

    return [patch.object(Requests, "_passing", alone)]


def release_undated() -> Patches:
    """A release does not write ``free_since``, the time since which the lock is free."""

    def undated(self: Requests) -> Any:
        layout = self._layout
        actions = [each for each in layout.ending() if "free_since" not in str(each)]
        return self._template(actions, layout.mine() & layout.has_claim)

    return [patch.object(Requests, "release", property(undated))]


def skip_by_old_date() -> Patches:
    """A waiter counts the time for which the lock has been free from ``free_since`` of an earlier release."""

    def old(self: Layout) -> Any:
        return self.not_held() & (self.free_since < slot("N", "past"))

    def ended_long_ago(self: WaitingLine, bounds: Bounds | None) -> float:
        claim, ahead = self._claim, self.size if self.place is None else self.place
        if claim is None or bounds is None or not ahead or claim.free_since is None:
            return math.inf
        free = max(claim.free_since + waiting_line.patience(ahead), claim.expires_at or 0.0)
        return bounds.passes(free)

    return [
        patch.object(Layout, "long_free", old),
        patch.object(WaitingLine, "passes_at", ended_long_ago),
    ]


def impatient() -> Patches:
    """The first in line counts as dead after 2.5 s, not after PATIENCE."""
    return [patch.object(waiting_line, "PATIENCE", 2.5)]


def place_kept() -> Patches:
    """A waiter keeps the place at which it joined, whatever the row shows later."""
    see = WaitingLine.see

    def at_first_place(self: WaitingLine, claim: Claim, received: float, **how: Any) -> bool:
        before = self.place
        is_believed = see(self, claim, received, **how)
        self.place = self.place if before is None or self.place is None else before
        return is_believed

    return [patch.object(WaitingLine, "see", at_first_place)]


def leave_trusts_a_read() -> Patches:
    """A waiter that leaves the line trusts the place that it read last, and does not correct it after a refusal."""
    leave = FairAcquisition._leave

    def once(self: FairAcquisition) -> Any:
        self._line.see = lambda *_, **__: self._line.leave()
        yield from leave(self)

    return [patch.object(FairAcquisition, "_leave", once)]


def no_own_watch() -> Patches:
    """Waiters do not watch the line by their own clocks, and pass dead ones by ``free_since`` alone."""
    return [
        patch.object(WaitingLine, "_watched_at", lambda self, place, free_at: math.inf),
        patch.object(WaitingLine, "_is_passed_over", lambda self, now, place: False),
    ]


# -- hints -----------------------------------------------------------------------------------------


def _hinted_takes(change: Callable[[Request], Request]) -> Patches:
    """Return the patches by which the writes that follow a hint at once are changed."""
    follow, request = Called.follow, FairAcquisition._request
    takes: dict[Called | None, bool] = {}

    def followed(self: Called) -> str | None:
        how = follow(self)
        takes[self] = how == "take"
        return how

    def made(self: FairAcquisition, *args: Any) -> Request:
        sent = request(self, *args)
        return change(sent) if takes.get(self._called) else sent

    return [
        patch.object(Called, "follow", followed),
        patch.object(FairAcquisition, "_request", made),
    ]


def hinted_take_whatever() -> Patches:
    """A waiter that is called takes the lock without the conditions that it stands first and nobody holds it."""

    def whatever(request: Request) -> Request:
        names = request.kwargs["ExpressionAttributeNames"]
        token = next(name for name, stands_for in names.items() if stands_for.endswith("token"))
        condition = request.kwargs["ConditionExpression"]
        request.kwargs["ConditionExpression"] = f"({condition}) OR attribute_exists ({token})"
        return request

    return _hinted_takes(whatever)


def hint_is_a_release() -> Patches:
    """A waiter that is called counts the lock as its own, whatever the answer to its take says."""

    class Believed(Request):
        def send(self) -> Answer | Failure:
            reply, token = super().send(), _acquiring_token(self)
            if isinstance(reply, Failure) or reply.applied or token is None:
                return reply
            return Answer({}, claim=Claim(token, 1, 253370764800.0, 30.0))

    return _hinted_takes(lambda made: Believed(made.store, made.operation, made.kwargs))


def slow_polls_unearned() -> Patches:
    """A waiter that can be called polls rarely from the start, whether or not a hint has ever reached it."""
    always = property(lambda _: True, lambda *_: None)
    return [patch.object(Shared, "was_called", always, create=True)]


def hint_before_the_release() -> Patches:
    """The first in line is called before the release is sent, not when it is applied."""

    send = Ending.send

    def early(self: Ending, build: Any, is_done: Any = None) -> Any:
        claim = self.claim
        if claim.options.hints is not None:
            read = partial(claim.store.read, claim.options.row, consistent=True)
            answer = yield from retrying(claim.shared, read, self.until)
            call_first(claim.shared, answer.claim.waiting)
        return (yield from send(self, build, is_done))

    return [patch.object(Ending, "send", early)]


# -- once --------------------------------------------------------------------------------------------


def _on_another_condition(name: str, condition_of: Callable[[Any, Any], Any]) -> Any:
    """Return the patch by which a method of `OnceRequests` makes its template with another condition."""
    make, template = getattr(OnceRequests, name), Requests._template

    def made(self: Any, *args: Any, **how: Any) -> Any:
        def otherwise(self: Any, actions: Any, condition: Any, **parts: Any) -> Any:
            return template(self, actions, condition_of(self._layout, condition), **parts)

        with patch.object(OnceRequests, "_template", otherwise):
            return make(self, *args, **how)

    return patch.object(OnceRequests, name, made)


def _ends_at(
    now_of: Callable[[Store, float], float], counts: Callable[[Claim, float, Any], bool]
) -> Patches:
    """Return the patches with which a result ends by another time than the lower bound of server time.

    Args:
        now_of: Returns the time by which a run begins.
        counts: Returns whether a result that was read counts.
    """
    request = Beginning._request

    def ended(self: OnceLayout) -> Any:
        return self.done_until.does_not_exist() | (self.done_until < slot("N", "now_of_result"))

    def dated(self: Any, own: OwnClaim, values: dict[str, Any], now: float) -> Request:
        values["now_of_result"] = seconds(now_of(self.contender.store, now))
        return request(self, own, values, now)

    def has_result(self: Claim, received: float, bounds: Bounds | None) -> bool:
        return self.done_until is not None and (bounds is None or counts(self, received, bounds))

    return [
        patch.object(OnceLayout, "no_result_counts", ended),
        patch.object(Beginning, "_request", dated),
        patch.object(Claim, "has_result", has_result),
    ]


def result_overwritten() -> Patches:
    """A run begins whether or not a result counts."""
    return [patch.object(OnceLayout, "no_result_counts", _exists_or_not)]


def _exists_or_not(self: Layout) -> Any:
    return self._hash_key.exists() | self._hash_key.does_not_exist()


def result_by_upper_bound() -> Patches:
    """A result ends by the upper bound of server time."""

    def counts(claim: Claim, received: float, bounds: Bounds) -> bool:
        return received < bounds.reaches(claim.done_until or 0.0)

    def now(store: Store, now: float) -> float:
        return 0.0 if store.bounds is None else store.bounds.highest(now)

    return _ends_at(now, counts)


def result_by_host_clock() -> Patches:
    """A result ends by the clock of the host that asks for it."""
    return _ends_at(
        lambda *_: _wall_clock(), lambda claim, *_: _wall_clock() < (claim.done_until or 0.0)
    )


def result_by_old_bounds() -> Patches:
    """Whether a result counts is judged by the bounds of server time as they were before the answer that shows it."""
    learn, verdict = Store.learn, Beginning._verdict
    before: dict[ServerTime, Bounds | None] = {}

    def learned(self: Store, reply: Any, sent: float, received: float) -> bool:
        before[self.connection.server] = self.bounds
        return learn(self, reply, sent, received)

    def judged(self: Beginning, claim: Claim, received: float) -> Any:
        server = self.contender.store.connection.server
        bounds, server.bounds = server.bounds, before.get(server) or server.bounds
        try:
            return verdict(self, claim, received)
        finally:
            server.bounds = bounds

    return [patch.object(Store, "learn", learned), patch.object(Beginning, "_verdict", judged)]


def result_from_a_stale_poll() -> Patches:
    """A result is taken from any poll that shows one, however old the row is that it shows."""
    return [patch.object(Beginning, "_read", acquire.Acquisition._read)]


def refused_is_not_recorded() -> Patches:
    """A record that is refused counts as not made, though an earlier attempt may have been applied."""
    return [patch.object(Recording, "judge", lambda *_, **__: Verdict.NOT_APPLIED)]


def earlier_record_unseen() -> Patches:
    """A run that records again, after an error, does not see that its first result was recorded."""
    return [patch.object(Recording, "judge", Guard.judge)]


def record_by_token() -> Patches:
    """A result is recorded under a claim with the run's token, whatever its version."""

    def by_token(layout: Layout, _: Any) -> Any:
        mine, counted = layout.token == slot("S", "mine"), layout.writes == slot("N", "known")
        return mine & layout.has_claim & counted

    return [_on_another_condition("record", by_token)]


def record_without_claim() -> Patches:
    """A result is recorded though the run's claim has ended."""

    def by_version(layout: Layout, _: Any) -> Any:
        return layout.mine() & (layout.writes == slot("N", "known"))

    return [_on_another_condition("record", by_version)]


def record_unguarded() -> Patches:
    """A result is recorded on no condition."""
    return [_on_another_condition("record", lambda layout, _: _exists_or_not(layout))]


def record_only_in_time() -> Patches:
    """A result is not sent once the lease has ended by the local clock."""
    return [patch.object(Recording, "check", Guard.check)]


def released_unrecorded() -> Patches:
    """A run whose result may not have been recorded is released."""
    ending = Run._ending

    def released(self: Run, error: BaseException | None) -> Any:
        self._is_work_done = False
        return ending(self, error)

    return [patch.object(Run, "_ending", released)]


def unstorable_unrecorded() -> Patches:
    """A result that cannot be stored is an error, and nothing is recorded."""
    completing = Run._completing

    def strict(self: Run, value: Any) -> Any:
        self._terms.encoded(value)
        return completing(self, value)

    return [patch.object(Run, "_completing", strict)]


def own_value_returned() -> Patches:
    """The first caller gets what its function has returned, and not what all others get."""
    record = Run.complete

    def own(self: Run, value: Any) -> Any:
        record(self, value)
        return value

    return [patch.object(Run, "complete", own)]


def unknown_ended_by_force() -> Patches:
    """Force also ends that somebody has to decide about a run."""
    ending = OnceLayout.ending
    return [patch.object(OnceLayout, "ending", lambda self: [*ending(self), self.unknown.remove()])]


def unknown_ended_by_ttl() -> Patches:
    """A renewal sets a TTL, so that the row of a run that dies is deleted."""
    new_end = OnceRequests._new_end

    def dated(self: OnceRequests) -> Any:
        return [*new_end(self), *self._layout.expiring()]

    return [patch.object(OnceRequests, "_new_end", dated)]


def unknown_to_those_who_run() -> Patches:
    """A call with ``on_abandoned="run"`` begins where somebody has to decide about the last run."""
    acquiring, verdict = OnceRequests._acquiring, Beginning._verdict

    def whatever(self: OnceRequests, *args: Any) -> Any:
        layout, unknown = self._layout, self._layout.unknown
        if "unknown" not in args[-1]:
            layout.unknown = SimpleNamespace(does_not_exist=lambda: _exists_or_not(layout))
        try:
            return acquiring(self, *args)
        finally:
            layout.unknown = unknown

    def blind(self: Beginning, claim: Claim, received: float) -> Any:
        return verdict(self, claim if self._is_decided else claim._replace(unknown=None), received)

    return [
        patch.object(OnceRequests, "_acquiring", whatever),
        patch.object(Beginning, "_verdict", blind),
    ]


def decided_by_interruption() -> Patches:
    """A run with ``on_abandoned="raise"`` that is interrupted is released as one that has failed."""
    ending = Run._ending

    def as_failed(self: Run, error: BaseException | None) -> Any:
        return ending(self, error and Exception())

    return [patch.object(Run, "_ending", as_failed)]


def begins_unseen() -> Patches:
    """A run with ``on_abandoned="raise"`` begins whatever has become of the row since it was read."""
    begin = OnceRequests.acquire

    def blind(self: Any, values: Any, **how: Any) -> Any:
        unseen = {k: v for k, v in values.items() if k not in ("seen_version", "is_new")}
        return begin(self, unseen, **how)

    return [patch.object(OnceRequests, "acquire", blind)]


def begins_again() -> Patches:
    """A late copy of a begin makes a claim of nobody after its run has failed: it does not see its own token in the row."""
    send = Request.send

    def forgetful(self: Request) -> Answer | Failure:
        token = _acquiring_token(self)
        if token is not None:
            # a value of its own in the condition, as `_acquiring_token` reads it
            name = self.kwargs["ConditionExpression"].split("<>")[1].split(")")[0].strip()
            self.kwargs["ExpressionAttributeValues"][name] = {"S": "-"}
        return send(self)

    return [patch.object(Request, "send", forgetful)]


def ended_result_kept() -> Patches:
    """A run leaves a result that has ended in its row, and pays for its size with each renewal."""
    return [patch.object(OnceLayout, "without_result", lambda _: [])]


def run_handed_over() -> Patches:
    """A run that has failed is handed over to the next waiter of its process, with the hash of its payload."""
    return [patch.object(RunContender, "is_run", False)]


def result_dated_by_record() -> Patches:
    """The TTL of a result counts from when it is recorded, and not from when it ends."""
    values = Result.values

    def early(self: Result, store: Store, now: float) -> Any:
        until, made = values(self, store, now)
        return until, {**made, **({"ttl": store.ttl(until - self.keep)} if "ttl" in made else {})}

    return [patch.object(Result, "values", early)]


def forgets_whatever() -> Patches:
    """A person forgets what is in the row when the request arrives."""

    def any_row(layout: Layout, _: Any) -> Any:
        return layout._hash_key.exists() & layout.not_held()

    decide = OnceRequests.decide
    forget = _on_another_condition("decide", any_row)

    def made(self: OnceRequests, values: Any, *, forces: bool) -> Any:
        if "result" in values:
            return decide(self, values, forces=forces)
        with forget:
            return self.decide(values, forces=forces)

    return [patch.object(OnceRequests, "decide", made)]


def effect_apart() -> Patches:
    """The writes of a transaction are made first, and the result is recorded by a request of its own."""

    def apart(self: Any) -> Any:
        answer = _transactions._plain_commit(self)
        run(current_process(), complete(self._own[0]))
        return answer

    return [patch.object(_transactions.RecordingTransactWrite, "_commit", apart, create=True)]


OF_ONCE: tuple[Callable[[], Patches], ...] = (
    result_overwritten,
    result_by_upper_bound,
    result_by_host_clock,
    result_by_old_bounds,
    result_from_a_stale_poll,
    refused_is_not_recorded,
    earlier_record_unseen,
    record_by_token,
    record_without_claim,
    record_unguarded,
    record_only_in_time,
    released_unrecorded,
    unstorable_unrecorded,
    own_value_returned,
    unknown_ended_by_force,
    unknown_ended_by_ttl,
    unknown_to_those_who_run,
    decided_by_interruption,
    begins_unseen,
    begins_again,
    ended_result_kept,
    run_handed_over,
    result_dated_by_record,
    forgets_whatever,
    effect_apart,
)
"""Variants that undo a rule of `once`, which the trial does not call."""

OF_HINTS: tuple[Callable[[], Patches], ...] = (
    hinted_take_whatever,
    hint_is_a_release,
    slow_polls_unearned,
    hint_before_the_release,
)
"""Variants that undo a rule of hints, which the trial does not send."""

OF_JUDGE: tuple[Callable[[], Patches], ...] = (
    watched_by_token,
    hosts_agree,
    late_taker,
    rare_poller,
    older_upper_bound,
    group_believes_proposed,
    handed_over_blindly,
    unlocked_whatever,
    clears_unguarded,
    max_hold_ignored,
    loss_reported_twice,
    loss_unreported,
    loss_by_force,
    lost_by_failure,
    release_unsent,
    version_from_one,
)
"""Variants that each break one rule of the simulation's judge."""

BROKEN: dict[str, Callable[[], Patches]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        lease_from_receipt,
        release_by_key,
        token_per_client,
        no_own_token,
        guard_by_token,
        no_guard,
        closed_to_newcomers,
        closed_is_handed_over,
        closed_by_date,
        fence_at_write,
        counter_reset,
        new_row_from_one,
        save_moves_end_back,
        renewal_revives,
        wall_clock,
        early_taker,
        denied_swallowed,
        own_write_unknown,
        held_is_a_flag,
        unknown_is_no,
        force_breaks_any,
        force_takes_any,
        kept_is_renewed,
        kept_by_own_clock,
        kept_is_handed_over,
        unlocking_believes,
        upper_bound_of_all,
        lost_wake_up,
        queued_twice,
        renewal_forgotten,
        danger_unnoticed,
        danger_repeated,
        release_all_of_anyone,
        *OF_JUDGE,
        join_compares_lists,
        take_leaves_the_dead,
        release_undated,
        skip_by_old_date,
        impatient,
        place_kept,
        leave_trusts_a_read,
        no_own_watch,
        *OF_HINTS,
        *OF_ONCE,
    )
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Apply a broken variant inside the block."""
    with ExitStack() as stack:
        for each in BROKEN[name]():
            stack.enter_context(each)
        yield
