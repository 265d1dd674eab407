"""Who asks for a lock: with which options, from which thread or task, and where the lock's row is."""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING, Any

from pynamodb_mutex._dynamodb.keys import row_name
from pynamodb_mutex._dynamodb.layout import seconds
from pynamodb_mutex._operations.local_queue import LocalQueue
from pynamodb_mutex._protocol.messages import shown, shown_owner
from pynamodb_mutex.exceptions import MutexAlreadyHeldError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.keys import RawItem
    from pynamodb_mutex._dynamodb.store import Store
    from pynamodb_mutex._operations.options import LockOptions
    from pynamodb_mutex._operations.shared import Queue, Shared


class Caller:
    """A thread or task that calls a lock.

    Attributes:
        number: That no other thread or task of this process ever had.
        thread: The number of the thread: of a task, that of its event loop.
        label: What people call it: host, process, and the name of the thread or task.
    """

    __slots__ = ("label", "number", "thread")

    def __init__(self, number: int, thread: int, label: str) -> None:
        self.number = number
        self.thread = thread
        self.label = label


class Contender:
    """Who asks for one lock, and holds it after that.

    Attributes:
        shared: What the locks of its process share.
        caller: The thread or task that asks, and then holds it.
        blocks: Whether nothing else runs on the caller's thread while it waits.
        on_lost: To be called when the lock is lost.
        owner: A label for people.
    """

    __slots__ = (
        "_initial",
        "_waits_for",
        "blocks",
        "caller",
        "on_lost",
        "options",
        "owner",
        "shared",
        "store",
    )

    def __init__(
        self,
        shared: Shared,
        store: Store,
        options: LockOptions,
        caller: Caller,
        *,
        blocks: bool = True,
        on_lost: Callable[[], object] | None = None,
        waits_for: frozenset[str] | None = None,
    ) -> None:
        """Make a contender.

        Args:
            shared: What the locks of the process share.
            store: In which the row is.
            options: Of the lock.
            caller: Who asks.
            blocks: Whether the wait blocks the caller's thread.
            on_lost: To be called when the lock is lost.
            waits_for: The keys any of which would do, if there are several.
        """
        self.shared = shared
        self.store = store
        self.options = options
        self.caller = caller
        self.blocks = blocks
        self.on_lost = on_lost
        self.owner = options.owner or caller.label
        self._waits_for = waits_for
        # now, and not while a request is built: the defaults of a subclass's attributes are user code
        self._initial = store.layout.initial_values(options.key)

    @property
    def key(self) -> str:
        """The lock's key."""
        return self.options.key

    @property
    def model(self) -> type[Model]:
        """The model of the lock's row."""
        return self.options.model

    @property
    def queue(self) -> Queue:
        """The queue of those who would take what is released here."""
        if self._waits_for is None:
            return self.shared.queue(self.store, self.options.key)
        return self.shared.queue(self.store, self._waits_for, QueueForAny)

    @property
    def key_queue(self) -> Queue:
        """The queue of those who want this very key. The same, unless another key would do as well."""
        return self.shared.queue(self.store, self.options.key)

    @property
    def log_fields(self) -> dict[str, Any]:
        """What a record in the log says of the lock."""
        return {"lock_key": self.key, "lock_owner": self.owner, "fencing_token": None}

    def at(self, key: str) -> Contender:  # noqa: ARG002 - there is but one
        """Return who asks for the key that a local holder hands over."""
        return self

    def stalls(self, other: Contender) -> bool:
        """Say whether a wait of this one keeps whoever made another acquisition from going on.

        The thread, or task, that waits can do nothing else. A thread blocks all that would run on it
        besides: when it runs an event loop, all its tasks.
        """
        if other.caller.number == self.caller.number:
            return True
        return self.blocks and other.caller.thread == self.caller.thread

    def stalled_holder(self) -> Contender | None:
        """Return who holds the row here, if a wait for it keeps that one from releasing it."""
        for claim in self.shared.holders(self.store, self.options.key):
            other: Contender = claim.contender
            if other is not self and claim.held and self._is_row(other.model, other.options.row):
                return other if self.stalls(other) else None
        return None

    def _is_row(self, model: type[Model], row: RawItem) -> bool:
        own = self.options
        return model is own.model or row_name(model, row) == row_name(own.model, own.row)

    def values(self, lease: float, end: float) -> dict[str, Any]:
        """Serialise what a row carries under this contender's claim."""
        values = {
            "owner": self.owner,
            "lease": seconds(lease + 0.0005),
            "end": seconds(end),
            "ttl": self.store.ttl(end),
            **self._initial,
        }
        if self.options.data is not None:
            values["data"] = self.options.data
        return values


class QueueForAny(LocalQueue[Any, Contender]):
    """Local waiters for one set of keys. Several of the keys can be held at once, so `holder` stays None.

    Who holds a key is noted in the queue of that key, for those who want no other.
    """

    __slots__ = ()

    def acquired_by(self, claim: Any) -> None:
        """Note that somebody of this process holds one of the keys now."""
        claim.contender.key_queue.acquired_by(claim)

    def forget(self, claim: Any) -> bool:
        """Forget a holder; return whether its key is now held by nobody here."""
        queue = claim.contender.key_queue
        was_the_holder: bool = queue.holder is claim
        queue.released_by(claim)
        return was_the_holder


# -- waits that could never end --------------------------------------------------------------------


def refuse_wait(contender: Contender, stalled: Contender, deadline: float) -> None:
    """Refuse a wait that keeps the holder, or one before it in line, from ever going on.

    A thread, or task, that waits for its own lock until a deadline is left alone: it gets the same as if
    another held it. One that blocks an event loop is warned, for it stops all the others' work as well.

    Args:
        contender: Who waits.
        stalled: Who cannot go on meanwhile.
        deadline: Local time at which the wait ends.

    Raises:
        MutexAlreadyHeldError: If it never does.
    """
    key = shown(stalled.key)
    holder, waiter = shown_owner(stalled.owner), shown_owner(contender.owner)
    ends = deadline < math.inf
    if stalled.caller.number == contender.caller.number:
        if ends:
            return
        msg = (
            f"{key} is already held by this thread or task, by another mutex ({_kind(stalled)}, owner "
            f"{holder}): this one ({_kind(contender)}, owner {waiter}) would wait for it for ever. Release "
            "that one first, enter it again (reentrant=True for both), or give a timeout"
        )
    else:
        until = "before the timeout" if ends else "at all"
        msg = (
            f"{key} is held, or waited for, by a task of the event loop on this thread (owner {holder}), "
            f"or by what runs the loop. A Mutex that waits for it here (owner {waiter}) blocks the loop, so "
            f"it cannot be released {until}: use pynamodb_mutex.aio.AsyncMutex in coroutines"
        )
    if not ends:
        raise MutexAlreadyHeldError(msg, key=stalled.key, owner=stalled.owner)
    warnings.warn(msg, RuntimeWarning, stacklevel=_users_level())


def _kind(contender: Contender) -> str:
    return "reentrant" if contender.options.reentrant else "not reentrant"


def _users_level() -> int:
    """Return the ``stacklevel`` by which whoever calls this names the nearest line that is not ours."""
    level, frame = 1, sys._getframe(1).f_back
    while frame is not None and frame.f_globals["__name__"].startswith("pynamodb_mutex."):
        level, frame = level + 1, frame.f_back
    return level + 1
