"""The requests by which a person breaks a lock's claim, or puts its row right."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pynamodb.expressions.operand import Path, Value
from pynamodb.expressions.update import SetAction

from pynamodb_mutex._lock.dynamodb.layout import CLAIM, slot
from pynamodb_mutex._lock.dynamodb.requests import Lazy, Template, Templates
from pynamodb_mutex._lock.protocol.claim import HIGHEST_VERSION

if TYPE_CHECKING:
    from pynamodb.expressions.condition import Condition

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request, Store
    from pynamodb_mutex._lock.protocol.claim import Claim


class AdminTemplates(Templates):
    """The templates of force and repair."""

    @Lazy
    def force(self) -> Template:
        """Break the claim that was seen, even if it has been renewed since, but no later holder's."""
        layout = self._layout
        condition = (layout.token == slot("S", "seen")) & layout.has_claim
        actions = [
            layout.token.set(slot("S", "token")),
            SetAction(Path(layout.version), Path(layout.version) + Value({"N": "1"})),
            *layout.ending(),
        ]
        return self._template(actions, condition)

    def put_right(self, seen: RawItem) -> tuple[Template, dict[str, Any]]:
        """Turn a row whose lock attributes are invalid into a tombstone, if they are still as they were seen.

        Returns:
            The template, and the values that were seen, for its condition.
        """
        layout = self._layout
        attributes = layout.model.get_attributes()
        prefix: str = getattr(layout.model, "_claim_prefix", "")
        condition: Any = None
        values: dict[str, Any] = {}
        for name in CLAIM:
            attribute = attributes[prefix + name]
            path = Path(attribute)
            same: Condition = path.does_not_exist()
            for kind, value in seen.get(attribute.attr_name, {}).items():
                # As slots: a seen value may itself begin like a slot.
                values[f"seen {name}"] = value
                same = path == slot(kind, f"seen {name}")
            condition &= same  # PynamoDB's conditions take None for no condition
        actions = [
            layout.token.set(slot("S", "token")),
            layout.version.set(slot("N", "new_version")),
            *layout.ending(),
            *layout.cleared(),
        ]
        return self._template(actions, condition), values


def force(store: Store, key: RawItem, seen: Claim, token: str, now: float) -> Request:
    """Return the request that breaks the claim that was seen, and writes a token that no holder has."""
    values = store.ending(now, seen.expires_at) | {"seen": seen.token, "token": token}
    return store.update(store.of(AdminTemplates).force, key, values)


def put_right(store: Store, key: RawItem, seen: RawItem, token: str, now: float) -> Request:
    """Return the request that makes a row with invalid lock attributes a free lock, if they are still as seen.

    If the row has a valid fencing token, the new one counts from it; otherwise it starts anew.
    """
    stored = Decimal(seen.get(store.layout.version.attr_name, {}).get("N", "-1"))
    version = int(stored) + 1 if 0 <= stored < HIGHEST_VERSION else store.next_version(now)
    template, values = store.of(AdminTemplates).put_right(seen)
    values |= store.ending(now) | {"token": token, "new_version": str(version)}
    return store.update(template, key, values)
