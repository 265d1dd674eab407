"""Three keys of a scene, for the tests of `Mutex.for_keys`, and names for the transactions they send."""

from __future__ import annotations

from typing import Any

from scene import Scene

from dev.faultproxy import Body, Fault, FaultProxy, When, kind_of, refuse
from pynamodb_mutex import LockItem, Mutex
from pynamodb_mutex.groups import MutexGroup

TRANSACT = "TransactWriteItems"


def _parts(body: Body) -> list[str]:
    """What each operation of a transaction is in the lock protocol."""
    return [
        kind_of(f"{kind}Item", part)
        for item in body.get("TransactItems", ())
        for kind, part in item.items()
    ]


def that(kind: str) -> When:
    """Fit transactions of which a part is of this kind."""
    return lambda body: kind in _parts(body)


def kinds(proxy: FaultProxy) -> list[str]:
    """What came, in order, transactions by what they are made of."""
    return [
        seen.kind if seen.op != TRANSACT else f"{len(_parts(seen.body))} {_parts(seen.body)[0]}"
        for seen in proxy.log
    ]


def conflict() -> Fault:
    """Cancelled, for another transaction is under way on one of the rows."""
    reasons = [{"Code": "None"}, {"Code": "TransactionConflict"}, {"Code": "None"}]
    return refuse("TransactionCanceledException", CancellationReasons=reasons)


class Keys:
    """Three keys, by the clients of a scene."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.keys = [f"{scene.key}-{name}" for name in "abc"]

    def group(self, *places: int, **options: Any) -> MutexGroup:
        """The locks of all, or of those at some places, by the client with the bad network."""
        keys = [self.keys[at] for at in places or range(3)]
        return Mutex.for_keys(keys, **{"model": self.scene.here, "timeout": 20, **options})

    def other(self, place: int, **options: Any) -> Mutex:
        """The lock of one, by the other client, not renewed: as `Scene.other`."""
        others = {"model": self.scene.there, "owner": "other", "timeout": 20, "auto_renew": False}
        return Mutex.for_key(self.keys[place], **others | options)

    def taken(self, place: int, **options: Any) -> Mutex:
        """Take one for the other client."""
        other = self.other(place, **options)
        assert other.acquire()
        return other

    def force(self, place: int) -> None:
        """Break one."""
        assert self.scene.there.force_release(self.keys[place])

    def forced_and_taken(self, place: int) -> Mutex:
        """Break one, and take it for the other client."""
        self.force(place)
        return self.taken(place)

    def there(self, place: int) -> LockItem:
        """One row as it stands."""
        return self.scene.there.get(self.keys[place], consistent_read=True)

    @property
    def rows(self) -> list[LockItem]:
        """The rows as they stand."""
        return [self.there(place) for place in range(3)]

    @property
    def ends(self) -> list[float | None]:
        """The ends of the claims."""
        return [row.expires_at for row in self.rows]

    def free(self) -> list[bool]:
        """Say which are free."""
        return [not self.other(place).locked() for place in range(3)]
