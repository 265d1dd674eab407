"""One key of `once`, and two clients of it, as in two processes: the network of `here` fails as a test says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from two_clients import forget_holds

from dev.faultproxy import FaultProxy, fault_proxy, through
from pynamodb_mutex import LockItem, Once, OnceItem
from pynamodb_mutex.runs import Known, Run
from pynamodb_mutex.testing import Engine

DAY = 86400.0


class SpecialError(Exception):
    """What the work raises."""


def failing(*_: object) -> None:
    """Do work that raises."""
    raise SpecialError


def never() -> None:
    """Do work that is not to be done."""
    raise AssertionError("the work is done a second time")


class There(OnceItem):
    """OnceItem with a connection and local queues of its own, as in another process."""

    class Meta(LockItem.Meta):
        pass


@dataclass
class OnceScene:
    """A key of `once`.

    Attributes:
        engine: Answers the requests of both clients.
        proxy: Between `here` and the engine.
        here: The client whose network fails.
        key: The key.
        done: What the work was called with, in order, by both.
    """

    engine: Engine
    proxy: FaultProxy
    here: type[OnceItem]
    key: str = "a"
    done: list[Any] = field(default_factory=list)

    def once(self, **options: Any) -> Once:
        """Return the once of the key by `here`."""
        return Once.for_key(self.key, model=self.here, **options)

    def other(self, **options: Any) -> Once:
        """Return the once of the key by `there`."""
        return Once.for_key(self.key, model=There, owner="other", **options)

    def work(self, result: Any = "result") -> Any:
        """Do the work."""
        self.done.append(result)
        return result

    def call(self, result: Any = "result", **options: Any) -> Any:
        """Call the work by `here`."""
        return self.once(**options).call(self.work, result)

    def elsewhere(self, result: Any = "other", **options: Any) -> Any:
        """Call the work by `there`."""
        return self.other(**options).call(self.work, result)

    @property
    def known(self) -> Known:
        """What is known of the key."""
        return Once.peek(self.key, model=There)

    @property
    def raw(self) -> dict[str, Any]:
        """All attributes of the row as it is stored; none if there is no row."""
        answer = There._get_connection().get_item(f"once#{self.key}", consistent_read=True)
        item: dict[str, Any] = answer.get("Item", {})
        return item

    def begun(self, run: Once) -> Run:
        """Begin a run; the test ends it, or nobody does."""
        return run.__enter__()

    def ended(self, run: Once, error: BaseException) -> None:
        """End a run that was begun."""
        run.__exit__(type(error), error, None)


@pytest.fixture
def scene_of_once(engine: Engine, table: type[LockItem]) -> Iterator[OnceScene]:
    """One key of `once`, and two clients of it."""
    There._connection = None
    with fault_proxy(engine) as proxy:
        scene = OnceScene(engine, proxy, through(proxy, OnceItem))
        try:
            yield scene
        finally:
            forget_holds(scene.here, There)


def died(scene: OnceScene, error: BaseException | None = None) -> None:
    """Let a run with ``on_abandoned="raise"`` end without a result."""
    once = scene.once(on_abandoned="raise", owner="dead", lease=10, auto_renew=False)
    scene.begun(once)
    if error is not None:
        scene.ended(once, error)
