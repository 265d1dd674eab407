"""Attempts at a request that botocore repeats by itself, where a connection leaves that to it.

The outcome of such a request is that of its last attempt. Whether one before it may have been applied is
to be seen only in the events of the client.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from pynamodb_mutex._answers import outcome

if TYPE_CHECKING:
    from typing_extensions import Self


class _Seen(threading.local):
    maybe_applied = False


_seen = _Seen()


def watch(client: Any) -> None:
    """Let the attempts of a client be seen. Doing so again changes nothing."""
    service = client.meta.service_model.service_id.hyphenize()
    client.meta.events.register(f"needs-retry.{service}", _note, unique_id="pynamodb_mutex")


def _note(
    operation: Any = None, response: Any = None, caught_exception: Any = None, **_: Any
) -> None:
    """Take note of an attempt, as botocore is about to decide whether to repeat it."""
    error = caught_exception
    if response is not None and response[1].get("Error"):
        error = ClientError(response[1], operation.name)
    if error is not None and outcome(error) == (True, True):
        _seen.maybe_applied = True


class Watched:
    """A request whose attempts are watched: as a context manager, on the thread that sends it.

    Attributes:
        maybe_applied: Whether an attempt that failed for now may have been applied.
    """

    maybe_applied = False

    def __enter__(self) -> Self:
        # who listens to PynamoDB's signals may send requests of its own in between
        self._before, _seen.maybe_applied = _seen.maybe_applied, False
        return self

    def __exit__(self, *_: object) -> None:
        self.maybe_applied = _seen.maybe_applied
        _seen.maybe_applied = self._before
