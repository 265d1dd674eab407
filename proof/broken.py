"""Ways to break the library: each undoes one of its rules, and the harness must notice.

Templates of requests are built once for each table, so what breaks them comes before its first use.
"""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pynamodb.exceptions import UpdateError
from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex import _acquire, _transaction
from pynamodb_mutex._answers import Answer
from pynamodb_mutex._claim import Claim, Tenure
from pynamodb_mutex._clock import Bounds, local_clock
from pynamodb_mutex._expressions import ClaimRows, slot
from pynamodb_mutex._guard import Part, Verdict
from pynamodb_mutex._hold import Hold
from pynamodb_mutex._store import Store
from pynamodb_mutex._templates import seconds

Patches = list[Any]

wall_offsets: dict[str, float] = {}
"""Seconds by which a client's time of day is off, by the address of its proxy; for one process's tests."""


def _exists(self: ClaimRows, value: Any = None) -> Any:
    return self._hash_key.exists()


def lease_from_receipt() -> Patches:
    """The lease counts from when the answer was received."""
    renewed = Tenure.renewed

    def late(self: Tenure, end: float, lease: float, sent: float, bounds: Any) -> None:
        renewed(self, end, lease, local_clock().now(), bounds)
        self._limit = math.inf

    return [patch.object(Tenure, "renewed", late)]


def release_by_key() -> Patches:
    """A release ends whatever claim there is."""

    def release(self: ClaimRows) -> Any:
        return self._template(self.ending(), self._hash_key.exists())

    return [patch.object(ClaimRows, "release", property(release))]


def token_per_client() -> Patches:
    """All acquisitions of a client have the same token."""
    client = threading.local()
    take = _acquire.Acquisition.take

    @functools.wraps(take)
    def named(self: Any) -> Any:
        client.token = f"client-{self.wanted.owner}"
        return take(self)

    return [
        patch.object(_acquire.Acquisition, "take", named),
        patch.object(_acquire, "new_token", lambda _: client.token),
    ]


def no_own_token() -> Patches:
    """A refused acquire is another's, also when the row carries our token."""
    acquire = Store.acquire

    def blind(self: Store, key: Any, tenure: Tenure, *args: Any, **more: Any) -> Answer:
        answer = acquire(self, key, tenure, *args, **more)
        if not answer.applied and answer.claim.token == tenure.token:
            return answer._replace(claim=answer.claim._replace(token="somebody"))
        return answer

    return [patch.object(Store, "acquire", blind)]


def guard_by_token() -> Patches:
    """A guarded write needs the claim alone, and no number."""

    def guarding(self: ClaimRows, value: Any = slot) -> Any:
        return self.mine(value) & self.has_claim

    return [patch.object(ClaimRows, "guarding", guarding)]


def no_guard() -> Patches:
    """A guarded write needs nothing."""
    return [patch.object(ClaimRows, "guarding", _exists)]


def fence_at_write() -> Patches:
    """A mutex's writes only compare fencing tokens, with what the row was last written with."""
    return [patch.object(_transaction.GuardedTransactWrite, "_commit", _transaction._plain_commit)]


def counter_reset() -> Patches:
    """A release resets the fencing token."""
    ending = ClaimRows.ending

    def from_zero(self: ClaimRows, value: Any = slot) -> Any:
        return [*ending(self, value), self._version.set(0)]

    return [
        patch.object(ClaimRows, "ending", from_zero),
        patch.object(Store, "next_version", lambda self, now: 0),
    ]


def save_moves_end_back() -> Patches:
    """A save carries the end that was read with the row."""
    values = Part.values

    def stale(self: Part) -> Any:
        made = values(self)
        if self.renews:
            stored = self.hold.item[self.hold.store.rows.expires_at.attr_name]["N"]
            made["end"] = seconds(float(stored))
        return made

    return [
        patch.object(Part, "values", stale),
        patch.object(ClaimRows, "ends_before", _exists),
    ]


def renewal_revives() -> Patches:
    """A renewal needs only to be ours: it may bring back what was given back."""
    return [patch.object(ClaimRows, "ends_before", _exists)]


def wall_clock() -> Patches:
    """The client's time of day stands for the server's."""

    def observe(self: Store, response: Any, sent: float, received: float) -> None:
        offset = wall_offsets.get(self.model.Meta.host, 0.0)
        self.server.observe(time.time() + offset, sent, received)

    return [patch.object(Store, "_observe", observe)]


def early_taker() -> Patches:
    """A taker goes by the upper bound of server time."""
    return [
        patch.object(Bounds, "lowest", Bounds.highest),
        patch.object(Bounds, "passes", Bounds.reaches),
    ]


def denied_swallowed() -> Patches:
    """An acquire that is denied counts as held."""
    acquire = Store.acquire

    def careless(self: Store, key: Any, tenure: Tenure, *args: Any, **more: Any) -> Answer:
        try:
            return acquire(self, key, tenure, *args, **more)
        except UpdateError as error:
            if error.cause_response_code != "AccessDeniedException":
                raise
            now = local_clock().now()
            claim = Claim(tenure.token, 1, tenure.proposed, tenure.lease)
            return Answer(True, claim, {}, now, now)

    return [patch.object(Store, "acquire", careless)]


def own_write_unknown() -> Patches:
    """A guarded write that was applied, and its answer lost, is made again."""
    judge = Part.judge

    def forgetful(self: Part, raw: Any, *, maybe_applied: bool) -> Verdict:
        verdict = judge(self, raw, maybe_applied=maybe_applied)
        if verdict is Verdict.APPLIED:
            self.hold.tenure.writes = self.claim(raw).writes
            return Verdict.AGAIN
        return verdict

    return [patch.object(Part, "judge", forgetful)]


def held_is_a_flag() -> Patches:
    """Who was told that it holds believes so until told otherwise."""

    def remaining(self: Hold) -> float:
        return 0.0 if self._finished or self._loss is not None else math.inf

    return [patch.object(Hold, "remaining", property(remaining))]


def unknown_is_no() -> Patches:
    """A write of unknown outcome is told as not applied."""
    lost_error = Hold.lost_error

    def sure(self: Hold, what: str, *, applied: bool | None = False) -> Any:
        return lost_error(self, what, applied=bool(applied))

    return [patch.object(Hold, "lost_error", sure)]


def force_breaks_any() -> Patches:
    """Force breaks whatever claim stands when it arrives."""

    def force(self: ClaimRows) -> Any:
        one_more = SetAction(Path(self._version), Path(self._version) + Value({"N": "1"}))
        actions = [self._token.set(slot("S", "token")), one_more, *self.ending()]
        return self._template(actions, self.has_claim)

    return [patch.object(ClaimRows, "force", property(force))]


def unlocking_believes() -> Patches:
    """Who unlocks by a write believes until the answer is there."""

    def remaining(self: Hold) -> float:
        return self.ends - local_clock().now() if self.stands else 0.0

    return [patch.object(Hold, "remaining", property(remaining))]


BROKEN: dict[str, Callable[[], Patches]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        lease_from_receipt,
        release_by_key,
        token_per_client,
        no_own_token,
        guard_by_token,
        no_guard,
        fence_at_write,
        counter_reset,
        save_moves_end_back,
        renewal_revives,
        wall_clock,
        early_taker,
        denied_swallowed,
        own_write_unknown,
        held_is_a_flag,
        unknown_is_no,
        force_breaks_any,
        unlocking_believes,
    )
}


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Break the library in a way, and mend it again."""
    with ExitStack() as stack:
        for each in BROKEN[name]():
            stack.enter_context(each)
        yield
