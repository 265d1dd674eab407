"""Waits for oneself: what would never end is refused, and what only its deadline ends is warned of."""

from __future__ import annotations

import math
import sys
import warnings
from typing import TYPE_CHECKING

from pynamodb_mutex._messages import shown, shown_owner
from pynamodb_mutex.exceptions import MutexAlreadyHeldError

if TYPE_CHECKING:
    from pynamodb_mutex._wanted import Wanted


def refuse_wait(wanted: Wanted, stalled: Wanted, deadline: float) -> None:
    """Refuse a wait that keeps the holder, or one before it in line, from ever going on.

    A thread, or task, that waits for its own lock until a deadline is left alone: it gets the same as if
    another held it. One that blocks an event loop is warned, for it stops all the others' work as well.

    Args:
        wanted: What is waited for.
        stalled: The acquisition that cannot go on meanwhile.
        deadline: Local time at which the wait ends.

    Raises:
        MutexAlreadyHeldError: If it never does.
    """
    key = shown(stalled.terms.key)
    holder, waiter = shown_owner(stalled.owner), shown_owner(wanted.owner)
    ends = deadline < math.inf
    if stalled.caller == wanted.caller:
        if ends:
            return
        msg = (
            f"{key} is already held by this thread or task, by another mutex ({_kind(stalled)}, owner "
            f"{holder}): this one ({_kind(wanted)}, owner {waiter}) would wait for it for ever. Release "
            "that one first, enter it again (reentrant=True for both), or give a timeout"
        )
    else:
        until = "before the timeout" if ends else "at all"
        msg = (
            f"{key} is held, or waited for, by a task of the event loop on this thread (owner {holder}), "
            f"or by what runs the loop. A Mutex that waits for it here (owner {waiter}) blocks the loop, so "
            f"it cannot be given back {until}: use pynamodb_mutex.aio.AsyncMutex in coroutines"
        )
    if not ends:
        raise MutexAlreadyHeldError(msg, key=stalled.terms.key, owner=stalled.owner)
    warnings.warn(msg, RuntimeWarning, stacklevel=_users_level())


def _kind(wanted: Wanted) -> str:
    return "reentrant" if wanted.terms.reentrant else "not reentrant"


def _users_level() -> int:
    """Return the ``stacklevel`` by which whoever calls this names the nearest line that is not ours."""
    level, frame = 1, sys._getframe(1).f_back
    while frame is not None and frame.f_globals["__name__"].startswith(f"{__package__}."):
        level, frame = level + 1, frame.f_back
    return level + 1
