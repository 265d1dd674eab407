"""Which thread calls: told apart also after one has ended and another was given its number."""

from __future__ import annotations

import itertools
import threading

_serial = itertools.count(1)


class _Caller(threading.local):
    def __init__(self) -> None:
        self.number = next(_serial)


_caller = _Caller()


def this_thread() -> int:
    """Return a number that no other thread of this process ever had.

    `threading.get_ident` gives a new thread the number of one that ended, perhaps as a holder.
    """
    return _caller.number
