"""What a mutex knows of its acquisitions, without asking anybody."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

from pynamodb_mutex._callers import this_caller
from pynamodb_mutex._messages import shown
from pynamodb_mutex._process import current_process
from pynamodb_mutex.exceptions import MutexError, MutexNotHeldError

if TYPE_CHECKING:
    from pynamodb_mutex._claim import Loss
    from pynamodb_mutex._hold import Hold
    from pynamodb_mutex._terms import Terms


class View:
    """The acquisitions that threads and tasks made by one object.

    Each sees its own, and one that has none sees the latest: so a holder that lost the lock is not
    told that it holds it because another took it by the same object.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._holds: dict[int, Hold] = {}
        self._latest: Hold | None = None

    def _mine(self) -> Hold | None:
        # while no thread of ours lives, and the system refuses one, the user's are all there is
        current_process().threads.start()
        return self._holds.get(this_caller()) or self._latest

    def _current(self, what: str) -> Hold:
        hold = self._mine()
        if hold is None:
            msg = f"{what}: {shown(self._terms.key)} is not held"
            raise MutexNotHeldError(msg, key=self._terms.key)
        return hold

    @property
    def key(self) -> str:
        """The key."""
        return self._terms.key

    @property
    def held(self) -> bool:
        """Whether the lock is held here, now, by the local clock. No I/O."""
        hold = self._mine()
        return hold is not None and hold.held

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, by the local clock; 0 if the lock is not held."""
        hold = self._mine()
        return 0.0 if hold is None else hold.remaining

    @property
    def deadline(self) -> float:
        """When the protected work must be over: the instant at which `held` becomes False.

        A reading of ``time.clock_gettime(time.CLOCK_BOOTTIME)`` on Linux, of ``time.monotonic()``
        elsewhere; of no other clock, and of no other machine. Each renewal moves it; beyond
        ``max_hold`` it stands still. It may also move nearer, when DynamoDB's answers show that the
        local clock stood still. Minus infinity if the lock is not held any more, or was taken by the
        parent of this forked process.

        Raises:
            MutexNotHeldError: If there never was an acquisition.
        """
        hold = self._current("deadline")
        return hold.ends if hold.held else -math.inf

    @property
    def lost(self) -> bool:
        """Whether the lock was held here and lost before it was given back. No I/O."""
        return self.loss is not None

    @property
    def loss(self) -> Loss | None:
        """Why the lock was lost; None if it was not."""
        hold = self._mine()
        return None if hold is None else hold.loss

    @property
    def token(self) -> str:
        """Random id of the last acquisition.

        Raises:
            MutexNotHeldError: If there was none.
        """
        return self._current("token").tenure.token

    @property
    def fencing_token(self) -> int:
        """Number of the last acquisition: greater than that of each one before it, on this key.

        Raises:
            MutexNotHeldError: If there was none.
            MutexError: With ``delete_on_release``, for then it may fall.
        """
        if self._terms.delete_on_release:
            msg = "no fencing token with delete_on_release: it could fall when the row is new"
            raise MutexError(msg, key=self._terms.key)
        return self._current("fencing_token").tenure.version

    @property
    def owner(self) -> str:
        """The label under which the lock is held, or would be."""
        hold = self._mine()
        return self._terms.label() if hold is None else hold.wanted.owner

    @property
    def abandoned(self) -> bool:
        """Whether the holder before never gave the lock back."""
        return bool(self.abandoned_by)

    @property
    def abandoned_by(self) -> str | None:
        """Label of the holder that never gave the lock back, or None."""
        hold = self._mine()
        return hold.abandoned_by or None if hold is not None else None

    @property
    def data(self) -> Any:
        """The payload in the row, as of the acquisition or the last `save_data`.

        Raises:
            InvalidRowError: If what another program wrote there is not JSON.
        """
        hold = self._mine()
        return None if hold is None else hold.data

    def __repr__(self) -> str:
        """Say what is known, without asking."""
        hold = self._mine()
        state = "not held"
        if hold is not None and hold.held:
            state = f"held, fencing token {hold.tenure.version}, {hold.remaining:.1f} s left"
        elif hold is not None and hold.loss is not None:
            state = f"lost: {hold.why}"
        return f"<{type(self).__name__} {shown(self.key)} in {self._terms.model.Meta.table_name}: {state}>"

    def __bool__(self) -> NoReturn:
        """Refuse: what would be asked is not clear."""
        msg = "a Mutex has no truth value: use .held, or the result of .acquire()"
        raise TypeError(msg)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: an acquisition belongs to one process."""
        msg = (
            f"a Mutex cannot be pickled: make it where it is used, Mutex.for_key({shown(self.key)})"
        )
        raise TypeError(msg)
