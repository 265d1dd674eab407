"""For your tests: an embedded DynamoDB, a fake clock, and the locks and work of other processes.

Install the extra ``testing``. pytest then finds the fixtures ``mutex_dynamodb`` (an engine for the session), ``lock_table``
(LockItem with an empty table) and ``fake_clock`` (a `FakeClock`).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pynamodb_mutex.testing.engines import (
        Engine,
        EngineError,
        embedded_dynamodb,
        environment,
        use,
    )
    from pynamodb_mutex.testing.fake_clock import FakeClock
    from pynamodb_mutex.testing.holders import expire, held_elsewhere
    from pynamodb_mutex.testing.results import recorded, run_elsewhere, unknown_run

__all__ = [
    "Engine",
    "EngineError",
    "FakeClock",
    "embedded_dynamodb",
    "environment",
    "expire",
    "held_elsewhere",
    "recorded",
    "run_elsewhere",
    "unknown_run",
    "use",
]

_HOMES = {
    "FakeClock": "fake_clock",
    **dict.fromkeys(("expire", "held_elsewhere"), "holders"),
    **dict.fromkeys(("recorded", "run_elsewhere", "unknown_run"), "results"),
}


def __getattr__(name: str) -> Any:
    """Load a name's module when the name is first used.

    Every start of pytest loads this package, because it contains the plugin. That must cost no time in
    projects whose tests use no lock.
    """
    if name in __all__:
        return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'engines')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
