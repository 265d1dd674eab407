"""Judges a simulated world: the invariants of the protocol at every step, and what callers were promised.

It sees each write as DynamoDB applies it, with the row before and after, and each step of each process. What
it knows of a lock it takes from the rows, not from the library: the library is what is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dev.simulation.world import EPOCH
from pynamodb_mutex._protocol.claim import FORCED_MARK

if TYPE_CHECKING:
    from dev.simulation.world import Process, World
    from pynamodb_mutex._dynamodb.store import Request
    from pynamodb_mutex._operations.held import HeldClaim

HOST_SKEW = 0.1
"""Seconds by which the clocks of DynamoDB's hosts may differ."""


class ViolationError(AssertionError):
    """Something happened that must not happen."""


class Judge:
    """Watches one lock table.

    Attributes:
        acquisitions: How many were believed in.
        guarded: Guarded writes by their payload: how often each was applied.
        detached: Tokens of acquisitions for which there is a ticket.
    """

    def __init__(self, world: World, table: str) -> None:
        self._world = world
        self._table = table
        self._believed: dict[str, list[tuple[Process, HeldClaim]]] = {}
        self._frozen: dict[Process, int] = {}
        self._versions: dict[str, int] = {}
        self._broken: set[str] = set()
        self._rows: dict[str, dict[str, Any]] = {}
        self._ours: dict[str, Process] = {}
        self.detached: set[str] = set()
        self.acquisitions = 0
        self.guarded: dict[str, int] = {}
        world.judge = self

    def fail(self, what: str) -> None:
        """Report a violation.

        Raises:
            ViolationError: Always.
        """
        self._world.note("JUDGE", what)
        raise ViolationError(f"seed {self._world.seed}, {self._world.now:.6f} s: {what}")

    # -- rows ---------------------------------------------------------------------------------------

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return all rows of the lock table by their keys."""
        items = self._world.tables.apply("Scan", {"TableName": self._table, "ConsistentRead": True})
        return {item["key"]["S"]: item for item in items["Items"]}

    def applied(self, process: Process, request: Request) -> None:
        """Compare the rows with what they were before a request of a process."""
        if request.operation in {"GetItem", "BatchGetItem", "Scan"}:
            return
        before, after = self._rows, self.rows()
        self._rows = after
        for key in sorted(before.keys() | after.keys()):
            old, new = before.get(key, {}), after.get(key, {})
            if old != new:
                self._changed(process, key, old, new)

    def changed_by_hand(self, key: str) -> None:
        """Excuse whoever held a key whose row somebody has changed, and the fencing token that begins anew."""
        self._broken.add(self._rows.get(key, {}).get("token", {}).get("S", ""))
        self._versions.pop(key, None)
        self._rows = self.rows()

    def _changed(
        self, process: Process, key: str, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        old_token, new_token = (row.get("token", {}).get("S") for row in (old, new))
        old_end, new_end = (_number(row, "expires_at") for row in (old, new))
        if (new_token or "").startswith(FORCED_MARK) and old_token is not None:
            self._broken.add(old_token)
            return
        if new_token != old_token and new_end is not None:
            self._acquired(process, key, old, new)
        elif new_end is not None and old_end is None and old:
            self.fail(f"I5: the ended claim of {old_token} on {key} stands again")
        elif old_end is not None and new_end is not None and new_end < old_end:
            self.fail(f"I1: the end of {new_token} on {key} moved back")
        owner = self._ours.get(old_token or "")
        if old_end is not None and new_end is None and owner not in {None, process}:
            self.fail(f"I5: {process.name} ended the claim of {owner.name} on {key}")
        old_data, new_data = (row.get("data", {}).get("S") for row in (old, new))
        if new_data != old_data and new_data is not None and new_token == old_token:
            self.guarded[new_data] = self.guarded.get(new_data, 0) + 1
            if self.guarded[new_data] > 1:
                self.fail(f"I2: the write {new_data} on {key} was applied twice")
            if owner not in {None, process}:
                self.fail(f"I2: {process.name} wrote under the claim of {owner.name} on {key}")

    def _acquired(
        self, process: Process, key: str, old: dict[str, Any], new: dict[str, Any]
    ) -> None:
        self._ours[new["token"]["S"]] = process
        version = int(new["version"]["N"])
        if version <= self._versions.get(key, 0):
            self.fail(f"I3: the fencing token of {key} did not grow: {version}")
        self._versions[key] = version
        end = _number(old, "expires_at")
        handed_over = self._ours.get(old.get("token", {}).get("S")) is process
        detached = old.get("token", {}).get("S") in self.detached
        if end is None or handed_over or detached:
            return
        now = EPOCH + self._world.now
        if now < end - HOST_SKEW and not self._was_watched(end):
            self.fail(f"I1: {process.name} took {key} {end - now:.3f} s before its end")

    @staticmethod
    def _was_watched(end: float) -> bool:
        """Say whether a claim may be dead by observation alone: its end was proposed without server time."""
        return end > EPOCH + 1e8

    # -- belief -------------------------------------------------------------------------------------

    def believes(self, process: Process, claim: HeldClaim) -> None:
        """Note an acquisition that was handed out."""
        self.acquisitions += 1
        self._believed.setdefault(claim.key, []).append((process, claim))

    def froze(self, process: Process) -> None:
        """Excuse what a process believes until it has had an answer: its clock stood still."""
        self._frozen[process] = process.requests_answered

    def stepped(self, process: Process) -> None:
        """Check that nobody else believes in what this process believes in."""
        for key, claims in self._believed.items():
            if len(claims) > 1:
                self._check(key, claims)

    def _check(self, key: str, claims: list[tuple[Process, HeldClaim]]) -> None:
        alive = [(process, claim) for process, claim in claims if self._may_believe(process, claim)]
        self._believed[key] = alive
        believers = [
            (process, claim)
            for process, claim in alive
            if claim.held_at(process.clock()) and not self._is_excused(process)
        ]
        if len(believers) > 1:
            names = ", ".join(f"{p.name} ({c.own.version})" for p, c in believers)
            self.fail(f"I1: {names} believe that they hold {key}")

    def _may_believe(self, process: Process, claim: HeldClaim) -> bool:
        if not process.lives or claim.is_released or claim.own.token in self._broken:
            return False
        return not claim.is_over or claim.loss is None or claim.loss.can_be_won_back

    def _is_excused(self, process: Process) -> bool:
        if process.frozen_at is not None:
            return True
        answered = self._frozen.get(process)
        if answered is not None and process.requests_answered > answered:
            del self._frozen[process]
            return False
        return answered is not None


def _number(row: dict[str, Any], name: str) -> float | None:
    value = row.get(name)
    return None if value is None else float(value["N"])
