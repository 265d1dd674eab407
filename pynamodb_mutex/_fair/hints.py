"""Hints: waiters with ``fair=Hints(...)`` are called when they may take the lock, instead of finding out by a poll.

A holder that releases sees in the answer which entry stands first in line, and its address, and sends one datagram with the id
of that entry. The waiter takes the lock by the same write as always, under the same conditions. So a hint decides nothing: if it
is lost, late, doubled or forged, it costs a poll, or a refused write.

`listener` has the sockets and sends the datagrams; `waiting_line` has the entries.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from pynamodb_mutex._fair.waiting_line import id_of, is_a_hosts
from pynamodb_mutex._lock.protocol.messages import shown

if TYPE_CHECKING:
    from pynamodb_mutex._lock.operations.effects import Wakeup
    from pynamodb_mutex._lock.operations.process_state import ProcessState

NEXT = "+"
"""Follows the id in a hint to a waiter that is next, but not called yet."""

SHORTEST = 0.2
"""Fewest seconds from one take by a hint to the next: anybody who can read the row can send any number of hints."""


class Hints:
    """Where others call your process, by a datagram, when they release a lock for which you wait first in line.

    For ``fair`` of `~pynamodb_mutex.Mutex.for_key`. Your process opens a UDP port while it waits, and calls others when it
    releases. Not guaranteed: that a hint arrives. Without one you poll.

    Args:
        address: The IPv4 or IPv6 address at which other processes reach your process; None for the address of its connection to
            DynamoDB. If you give one, your process listens at all of its addresses.
        port: The UDP port; 0 for any free port.

    Raises:
        TypeError: The address is no str, or the port is no int.
        ValueError: The address does not belong to one host, or there is no such port.
    """

    __slots__ = ("address", "port")

    def __init__(self, *, address: str | None = None, port: int = 0) -> None:
        if address is not None:
            if not isinstance(address, str):
                raise TypeError(f"address must be a str, not {shown(address)}")
            if not is_a_hosts(ipaddress.ip_address(address)):
                raise ValueError(f"{shown(address)} is not the address of one host")
        if isinstance(port, bool) or not isinstance(port, int):
            raise TypeError(f"port must be an int, not {shown(port)}")
        if not 0 <= port < 2**16:
            raise ValueError(f"port must be from 0 to 65535, not {port}")
        self.address = address
        self.port = port

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hints) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)

    def __repr__(self) -> str:
        return f"Hints(address={self.address!r}, port={self.port})"

    @property
    def place(self) -> tuple[str | None, int]:
        """Address and port."""
        return self.address, self.port


def checked_fair(fair: object, environment: str) -> bool | Hints:
    """Return the option ``fair``; True stands for hints if the environment asks for them.

    Args:
        fair: The caller's value.
        environment: The value of PYNAMODB_MUTEX_HINTS; empty if there is none.

    Raises:
        TypeError: If ``fair`` has another type.
        ValueError: If the environment has another value than the documented ones.
    """
    if isinstance(fair, Hints):
        return fair
    if not isinstance(fair, bool):
        raise TypeError(f"fair must be True, False or Hints(...), not {shown(fair)}")
    if environment not in {"", "0", "1"}:
        raise ValueError(f"PYNAMODB_MUTEX_HINTS is 1 or 0, not {shown(environment)}")
    return Hints() if environment == "1" else True


class Calls:
    """The waiters of one process that can be called.

    Attributes:
        waiters: The waiters, by the ids of their entries.
        was_called: Whether a hint has arrived, and no poll has found an unannounced release since.
    """

    def __init__(self, _: ProcessState) -> None:
        self.waiters: dict[str, Called] = {}
        self.was_called = False

    def note(self, text: str) -> None:
        """Note a datagram that has arrived, if it is for a waiter of this process. Called inside the monitor."""
        waiter = self.waiters.get(text.removesuffix(NEXT))
        if waiter is not None:
            waiter.note(text)


class Called:
    """A waiter that can be called.

    Attributes:
        hint: The last hint that it has not followed yet: its id, with `NEXT` if it is only next; empty if there is none.
    """

    def __init__(self, process: ProcessState, entry: str, wakeup: Wakeup) -> None:
        self.hint = ""
        self._process = process
        self._calls = process.of(Calls)
        self._id = id_of(entry)
        self._wakeup = wakeup
        self._taken_at = -SHORTEST
        self._calls.waiters[self._id] = self

    def note(self, hint: str) -> None:
        """Note a hint that has arrived, and wake the waiter."""
        # a late "next" of an earlier release does not undo a call
        self.hint = hint if not self.hint else min(hint, self.hint)
        self._calls.was_called = True
        self._wakeup.ring()

    def follow(self) -> str | None:
        """Return how to follow the last hint: "take", "poll" or, if there is none, None."""
        hint, self.hint = self.hint, ""
        if not hint:
            return None
        now = self._process.now
        if hint != self._id or now < self._taken_at + SHORTEST:
            return "poll"
        self._taken_at = now
        return "take"

    def end(self) -> None:
        """Wait no longer."""
        self._calls.waiters.pop(self._id, None)
