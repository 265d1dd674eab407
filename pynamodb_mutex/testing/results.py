"""Keys of `~pynamodb_mutex.once` for tests: one with a result, one whose run died, and one that another process seems to work on."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pynamodb.exceptions import TableDoesNotExist

from pynamodb_mutex._lock.operations.options import made
from pynamodb_mutex._lock.operations.release import release
from pynamodb_mutex._lock.runtime.callers import caller
from pynamodb_mutex._lock.runtime.process import Process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex.exceptions import MutexLostError
from pynamodb_mutex.runs import PREFIX, Once, OnceItem, Run
from pynamodb_mutex.testing.holders import expire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta


def recorded(
    key: str, result: Any, *, keep: float | timedelta = 86400.0, model: type[OnceItem] = OnceItem
) -> None:
    """Record a result of a key of `~pynamodb_mutex.once`, as if another process had done the work. Replaces a result, and any run.

    Args:
        key: The key.
        result: The result, as JSON.
        keep: For how long it counts.
        model: The model of the row.
    """
    terms = Once.for_key(key, keep=keep, model=model)._terms
    Once._decide(terms, terms.encoded(result), forces=True)


def unknown_run(key: str, *, owner: str = "elsewhere", model: type[OnceItem] = OnceItem) -> None:
    """Leave a run of a key of `~pynamodb_mutex.once` that died long ago, with ``on_abandoned="raise"``. Replaces a result, and any run.

    Args:
        key: The key.
        owner: The label of the run.
        model: The model of the row.
    """
    _begun(key, model, owner=owner, on_abandoned="raise")
    expire(PREFIX + key, model)


@contextmanager
def run_elsewhere(
    key: str,
    *,
    payload: Any = None,
    owner: str = "elsewhere",
    lease: float = 30.0,
    model: type[OnceItem] = OnceItem,
) -> Iterator[None]:
    """Let a run of a key of `~pynamodb_mutex.once` be under way for the length of your block. Replaces a result, and any run.

    The run fails at the end of your block, unless you end it with a result by `recorded`.

    Args:
        key: The key.
        payload: Its payload, as for `Once.for_key <pynamodb_mutex.Once.for_key>`.
        owner: The label of the run.
        lease: Seconds until it is abandoned; nothing renews it.
        model: The model of the row.
    """
    elsewhere, began = _begun(key, model, payload=payload, owner=owner, lease=lease)
    try:
        yield
    finally:
        # the test may have ended the run, let it expire, or deleted the table
        with suppress(MutexLostError, TableDoesNotExist):
            execute(elsewhere, release(began._last("release")))


def _begun(key: str, model: type[OnceItem], **options: Any) -> tuple[Process, Run]:
    """Begin a run as another process does, with connections and local queues of its own."""
    Once.forget(key, force=True, model=model)
    elsewhere = Process()
    began = made(Run, Once.for_key(key, model=model, auto_renew=False, timeout=0, **options)._terms)
    execute(elsewhere, began._beginning(caller(), blocks=True, process=elsewhere))
    return elsewhere, began
