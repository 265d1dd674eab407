"""Contenders: who asks for a lock, with which options, from which thread or task, and where the lock's row is.

A contender belongs to one call of ``acquire``, and stays with the claim that the call acquires. This module also
recognises waits that could never end, because the waiting thread or task is the one that would have to release the
lock. How a lock is acquired is in `acquire`; the queue of a process's contenders is in `local_queue`.
"""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ref

from pynamodb.constants import ALL_NEW, RETURN_VALUES

from pynamodb_mutex._lock.dynamodb.answers import Failure
from pynamodb_mutex._lock.dynamodb.keys import lock_name
from pynamodb_mutex._lock.dynamodb.layout import seconds
from pynamodb_mutex._lock.operations.events import Log
from pynamodb_mutex._lock.operations.retry import send
from pynamodb_mutex._lock.protocol.claim import date_of, token_time
from pynamodb_mutex._lock.protocol.messages import one_line, shown, shown_owner
from pynamodb_mutex.exceptions import MutexAlreadyHeldError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType

    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.store import Store
    from pynamodb_mutex._lock.operations.effects import Operation
    from pynamodb_mutex._lock.operations.options import LockOptions
    from pynamodb_mutex._lock.operations.process_state import ProcessState, Queue
    from pynamodb_mutex._lock.protocol.claim import Claim, OwnClaim

PASSED_OVER = ("pynamodb_mutex.", "contextlib")
"""Beginnings of the names of modules whose frames are not user code."""


class Caller:
    """A task, or a thread in one context, that calls a lock: one object for each, which ends with it.

    Attributes:
        number: Number that no other caller of this process ever had.
        thread: Number of the thread; for a task, of the thread that runs its event loop.
        label: Label for people: host, process, and name of the thread or task.
        of: Weak reference to an object that ends with the thread or task.
        is_pinned: Whether no other thread can go on with its work; another thread can go on with a generator that is suspended
            in a block. True for tasks, and for callbacks of an event loop.
    """

    __slots__ = ("__weakref__", "is_pinned", "label", "number", "of", "thread")

    def __init__(self, number: int, thread: int, label: str, of: ref[Caller] | None = None) -> None:
        self.number = number
        self.thread = thread
        self.label = label
        self.of = of or ref(self)
        self.is_pinned = True


class Contender:
    """One caller that asks for one lock, and then holds it.

    Attributes:
        caller: Number of the thread or task that asks for the lock, and then holds it.
        thread: Number of its thread: see `Caller`.
        is_pinned: Whether no other thread can go on with its work: see `Caller`.
        who: Weak reference that returns None once the thread or task has ended.
        lock: Weak reference to the object by which the caller asks for the lock, and can release it.
        blocks: Whether nothing else runs on the caller's thread while it waits. False only for tasks that await.
        is_warned: Whether the library has warned that this wait lasts until the end of a lease, or blocks a loop.
        warns_at: Local time of the next warning that this wait goes on; 0 before the wait.
        on_lost: Functions to call with the lock's object when the lock is lost.
        on_danger: Functions to call when it may soon be lost.
        on_freed: Function to call, inside the monitor, with the row of the lock once the lock is free; None if there is none.
        owner: Label for people.
        key: What messages and signals call the lock: its key, with its range key if the caller gave one.
        row_name: Name of the lock's row among those of its table: see `lock_name`.
    """

    __slots__ = (
        "_initial",
        "blocks",
        "caller",
        "is_pinned",
        "is_warned",
        "key",
        "lock",
        "on_danger",
        "on_freed",
        "on_lost",
        "options",
        "owner",
        "process",
        "row_name",
        "store",
        "thread",
        "warns_at",
        "who",
    )

    is_run = False
    """Whether it asks for a run of `once`.

    `release_all` does not release it: its work may be done already.
    """

    def __init__(
        self,
        process: ProcessState,
        store: Store,
        options: LockOptions,
        caller: Caller,
        *,
        lock: object,
        blocks: bool = True,
    ) -> None:
        self.process = process
        self.store = store
        self.options = options
        # A weak reference: handles keep a claim for as long as the caller lives (`handles.Lock`). If the claim referred to the
        # caller, it would be kept for ever.
        self.caller, self.thread, self.is_pinned = caller.number, caller.thread, caller.is_pinned
        self.who = caller.of
        self.lock = ref(lock)
        self.blocks = blocks
        self.is_warned = False
        self.warns_at = 0.0
        self.on_lost = (partial(options.on_lost, lock),) if options.on_lost else ()
        self.on_danger = (partial(options.on_danger, lock),) if options.on_danger else ()
        self.on_freed: Callable[[ProcessState, Claim], object] | None = None
        self.owner = options.owner or caller.label
        self.key = options.key if options.range_key is None else options.name
        self.row_name = lock_name(options.model, options.key, options.row)
        # Now, and not while a request is built: that is inside the monitor, where no function of the user's may run, and the
        # defaults of extra attributes may be such functions.
        self._initial = store.layout.initial_values(options.key, options.attributes)

    @property
    def model(self) -> type[Model]:
        return self.options.model

    @property
    def queue(self) -> Queue:
        """The local queue in which this contender waits, and whose next waiter gets the lock at its release."""
        return self.process.queue(self.store, self.row_name)

    @property
    def key_queue(self) -> Queue:
        """The local queue of the lock's own key; the same as `queue`, unless the caller takes any of several keys."""
        return self.process.queue(self.store, self.row_name)

    @property
    def log_fields(self) -> dict[str, Any]:
        """Fields of log records about this contender and its lock."""
        return {"lock_key": self.key, "lock_owner": self.owner, "fencing_token": None}

    def next_holder(self, claim: Any) -> Any:
        """Return the turn that takes the lock over from this contender's claim; None if the claim is to be released."""
        process = self.process
        return self.queue.next_in_line(claim, self.options.poll, process.now, process.uniform)

    def at(self, row_name: str) -> Contender:  # noqa: ARG002 - there is but one
        """Return the contender for the row that a local holder hands over: this one, unless the caller takes any of several."""
        return self

    def disown(self, own: OwnClaim) -> Operation[None]:
        """Try to end a claim of ours that nobody will use. It may be in its row or not."""
        # Suppose a signal handler forks while the acquiring write is under way, and the child ends by an exception: the
        # claim is the parent's, which goes on with the same token, and believes in it.
        if not self.process.inherited:
            yield from self._disown(own)

    def _disown(self, own: OwnClaim) -> Operation[None]:
        """Send the request that ends such a claim.

        If the claim is in the row, this leaves a tombstone with our token, by which later copies of the acquire are
        refused. If the acquire is applied after this request, its claim stays until its lease ends.
        """
        process, store = self.process, self.store
        values = store.ending(process.now) | {"mine": own.token}
        request = store.update(store.requests.disown, self.options.row, values)
        if self.on_freed is not None:
            request.kwargs[RETURN_VALUES] = ALL_NEW
        reply = yield from send(request)
        if isinstance(reply, Failure):
            text = "%s may be held by nobody for up to a lease: %s"
            shown_values = (shown(self.key), one_line(reply.error))
            process.emit(Log("warning", text, shown_values, self.log_fields))
        elif reply.applied and self.on_freed is not None:
            self.on_freed(process, reply.claim)

    def stalls(self, other: Contender) -> bool:
        """Return whether a wait of this contender keeps another contender from going on.

        It does if both are the same caller, which can do nothing else while it waits. If it blocks its thread, it also stops
        all work that only this thread can do: on the thread of an event loop, all tasks, and the code that runs the loop. If a
        pool's thread has begun a job and left it, as a generator, another thread may go on with it.
        """
        in_the_way = self.blocks and other.thread == self.thread
        return other.caller == self.caller or (in_the_way and (self.is_pinned or other.is_pinned))

    def stalled_holder(self, sought: Callable[[Any], bool] | None = None) -> Any:
        """Return the local holder's `HeldClaim` on the row, if a wait of this contender keeps it from being released.

        With ``sought``, return the first `HeldClaim` of which ``sought`` is true instead.
        """
        for claim in self.process.holders(self.store, self.row_name):
            other: Contender = claim.contender
            # other rows may have the same key, with another range key
            if other is self or not claim.held or other.row_name != self.row_name:
                continue
            # if readers share the claim, there are several
            if sought(claim) if sought else self.stalls(other):
                return claim
        return None

    @property
    def whose(self) -> str:
        """Who of this process holds the lock, for a message; empty if nobody here does."""
        holders = [claim.contender for claim in self.process.holders(self.store, self.row_name)]
        callers = {each.caller for each in holders if each.row_name == self.row_name}
        if self.caller in callers:
            return "this thread or task holds it itself: "
        return "another thread or task of this process holds it: " if callers else ""

    def warn_of_wait(self, since: float, claim: Claim | None) -> None:
        """Log that a wait goes on, after a lease and each time that it has doubled; earlier if nobody will release the lock.

        Args:
            since: Local time at which the wait began.
            claim: The claim in the way; None if none was seen.
        """
        self._warn_of_holder()
        now = self.process.now
        self.warns_at = self.warns_at or since + self.options.lease
        if now < self.warns_at:
            return
        self.warns_at = now + (now - since)
        if claim is None:
            return
        began = date_of(token_time(claim.token))
        held = "" if began is None else f", acquired at {began.isoformat(timespec='seconds')}"
        values = (
            shown_owner(self.owner),
            shown(self.key),
            now - since,
            self.whose,
            claim.described,
        )
        text = "%s has waited for %s for %.0f s: %s%s%s"
        self.process.emit(Log("warning", text, (*values, held), self.log_fields))

    def _may_be_inside(self, claim: Any) -> bool:
        """Return whether this caller may be inside the block of a reentrant lock, though its context hides that."""
        other: Contender = claim.contender
        would_enter = self.blocks and self.options.reentrant and other.options.reentrant
        return would_enter and self.thread == other.thread and not self.stalls(other)

    def _warn_of_holder(self) -> None:
        """Log, once in a wait, why it may never end: nobody will release the lock, or only the waiting caller would."""
        if self.is_warned:
            return
        claim = self.stalled_holder(lambda each: each.is_orphaned or self._may_be_inside(each))
        if claim is not None:
            self.is_warned = True
            other: Contender = claim.contender
            how = "a thread or task of this process that has ended without releasing it"
            if other.who() is not None:
                how = "by a mutex of this process that is gone"
            text = "%s is held by %s, %s: it stays held as long as it is renewed"
            if not claim.is_orphaned:
                text = "%s is held by %s, %s: if that block is around this wait, the wait never ends. Use AsyncMutex for both"
                how = "by a block that this thread began in another context (contextvars)"
            values = (shown(claim.key), shown_owner(other.owner), how)
            self.process.emit(Log("warning", text, values, self.log_fields))

    def values(self, lease: float, end: float) -> dict[str, Any]:
        """Return the serialised values of a claim of this contender, except token and version.

        Args:
            lease: Seconds that the row says the claim lives without being renewed.
            end: End of the claim in server time.
        """
        values = {
            "owner": self.owner,
            # rounded up, as in `HeldClaim.propose_renewal`
            "lease": seconds(lease + 0.0005),
            "end": seconds(end),
            "ttl": self.store.ttl(end),
            **self._initial,
        }
        if self.options.data is not None:
            values["data"] = self.options.data
        if self.options.must_exist:
            values["must_exist"] = True  # it chooses the template: see `Requests.acquire`
        return values


# -- waits that could never end --------------------------------------------------------------------


def refuse_wait(contender: Contender, stalled: Contender, expires: float, deadline: float) -> None:
    """Refuse a wait during which the holder, or a waiter ahead in the queue, cannot go on; or warn of it.

    If the holder's lease is not renewed for ever, the wait goes on until the lease ends, and a warning in the log says so.

    If the wait has a deadline, it goes on, too. If a thread or task waits for its own lock, nothing is reported: its wait ends
    as if another held the lock. But a reader that asks for the lock alone is refused: other waiting writers would wait with
    it. A thread that blocks an event loop gets a RuntimeWarning, because it stops the work of all tasks of that loop.

    Args:
        contender: The contender that waits.
        stalled: The contender that cannot go on meanwhile.
        expires: Local time by which the stalled holder's lease ends; infinity if it is renewed, or a waiter is stalled.
        deadline: Local time at which the wait ends; infinity for never.

    Raises:
        MutexAlreadyHeldError: If the wait would never end, or a reader asks for the lock alone.
    """
    key = shown(stalled.key)
    if stalled.options.shared and stalled.caller == contender.caller:
        msg = f"{key} is shared by this thread or task: release the shared lock first, then acquire, and read again"
        raise MutexAlreadyHeldError(msg, key=stalled.key, owner=stalled.owner)
    holder, waiter = shown_owner(stalled.owner), shown_owner(contender.owner)
    if expires < deadline:
        if not contender.is_warned:
            contender.is_warned = True
            text = "%s is held by %s, who cannot release it while %s waits here: free in %.1f s, when the lease ends"
            values = (key, holder, waiter, expires - contender.process.now)
            contender.process.emit(Log("warning", text, values, contender.log_fields))
        return
    ends = deadline < math.inf
    if stalled.caller == contender.caller:
        if ends:
            return
        advice = "Release that one, enter it again (reentrant=True for both), or give a timeout"
        if stalled.lock() is None:
            advice = "That one is gone, and only force_release() frees it: keep what you acquire by"
        msg = (
            f"{key} is already held by this thread or task, by another mutex ({_kind(stalled)}, owner "
            f"{holder}): this one ({_kind(contender)}, owner {waiter}) would wait for it for ever. {advice}"
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
    contender.is_warned = True
    warnings.warn(msg, RuntimeWarning, stacklevel=_users_level())


def warn_of_blocked_loop(contenders: Sequence[Contender]) -> None:
    """Warn that a wait for locks, which begins in a task, blocks the task's event loop; not if `refuse_wait` has warned.

    A cell of a notebook gets no warning: it runs in a task of the kernel, and nothing else waits for that loop.
    """
    one = contenders[0]
    if not (one.blocks and one.is_pinned) or any(each.is_warned for each in contenders):
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_flags & inspect.CO_COROUTINE:
        frame = frame.f_back
    # None on a worker that acts for the task. The code of a cell that awaits has no name; IPython's own coroutine runs any
    # other cell.
    if (
        frame is None
        or frame.f_code.co_name.startswith("<")
        or frame.f_globals.get("__name__", "").startswith("IPython")
    ):
        return
    # without the key: Python remembers each text that it has shown, and shows it once for each place
    msg = (
        "a lock for threads waits here in a coroutine, and blocks the event loop with all its tasks: "
        "use AsyncMutex, AsyncOnce, the model's alocked(...), or asyncio.to_thread"
    )
    warnings.warn(msg, RuntimeWarning, stacklevel=_users_level())


def _kind(contender: Contender) -> str:
    return "reentrant" if contender.options.reentrant else "not reentrant"


def _users_level() -> int:
    """Return the ``stacklevel`` with which the caller's warning names the nearest line outside this library."""
    level, frame = 1, sys._getframe(1).f_back
    # code that `exec` runs may have no name
    while frame is not None and frame.f_globals.get("__name__", "").startswith(PASSED_OVER):
        level, frame = level + 1, frame.f_back
    return level + 1
