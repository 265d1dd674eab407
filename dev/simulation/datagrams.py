"""Datagrams of a simulated world: the hints that processes send each other, and those that others forge.

Each process is a host with an address of its own. `socket_of` makes what stands for the module `socket` in the library's
listener, so that this runs unchanged; `Datagrams` carries what its sockets send, or loses, delays, doubles and misdelivers it.
All chance comes from a generator of its own: without hints a seed plays the same schedule as if there were none of this.
"""

from __future__ import annotations

import errno
import itertools
import math
import random
import socket
import types
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from dev.simulation.world import Process, World

    Address = tuple[str, int]

KINDS = ("lost", "late", "doubled", "misdelivered")
"""Faults of a datagram. That some arrive in another order comes from their different times on the way."""


class Datagrams:
    """Carries datagrams between the processes of a world.

    Args:
        world: The world.

    Attributes:
        astray: Share of the datagrams that meet a fault, each of `KINDS` as often.
        script: Returns the fault of a datagram to an address; where it returns None, `astray` decides.
        refuses: Whether the system refuses sockets.
        bound: The sockets that have an address, by that.
        log: Address and content of each datagram that was sent, forged ones included.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.seed} datagrams")
        self.astray = 0.0
        self.script: Callable[[Address, bytes], str | None] = lambda *_: None
        self.refuses = False
        self.bound: dict[Address, Socket] = {}
        self.log: list[tuple[Address, bytes]] = []

    def send(self, data: bytes, address: Address, *, is_forged: bool = False) -> None:
        """Send a datagram to an address."""
        rng, judge = self._rng, self._world.judge
        self.log.append((address, data))
        fault = self.script(address, data)
        if fault is None and rng.random() < self.astray:
            fault = rng.choice(KINDS)
        self._world.note("", f"datagram {data.decode(errors='replace')} to {address[0]}, {fault}")
        if fault is not None or is_forged:
            judge.went_astray(data)
        if fault == "misdelivered":
            address = rng.choice(sorted(self.bound) or [address])
        after = rng.random() * 20 if fault == "late" else 0.0
        if fault != "lost":
            self._deliver(data, address, after)
        if fault == "doubled":
            self._deliver(data, address, rng.choice((0.0, rng.random() * 10)))

    def _deliver(self, data: bytes, address: Address, after: float) -> None:
        takes = self._world.network.takes(self._rng)
        self._world.after(after + takes, partial(self._arrive, data, address))

    def _arrive(self, data: bytes, address: Address) -> None:
        found = self.bound.get(address)
        if found is not None and found.process.lives:
            self._world.judge.reached(found.process, data)
            found.arrived.append(data)
            if found.wake is None:
                # the system has refused the thread that is to read it
                self._world.judge.went_astray(data)
            else:
                found.wake()


class Socket:
    """Stand-in for a UDP socket.

    Attributes:
        process: The process that has opened it.
        arrived: Datagrams that were not read yet.
        wake: Wakes the thread that reads them; None as long as none has begun.
    """

    def __init__(self, world: World, family: int, _: int) -> None:
        assert world.process is not None
        self._datagrams: Datagrams = world.network.datagrams
        if self._datagrams.refuses:
            raise OSError(errno.EMFILE, "Too many open files")
        self.process: Process = world.process
        self.arrived: deque[bytes] = deque()
        self.wake: Callable[..., object] | None = None
        self._world = world
        self._timeout: float | None = None
        self._name = (self.process.host, 0)
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def bind(self, address: Address) -> None:
        """Take an address; any free port for 0."""
        host, port = self.process.host, address[1]
        if not port:
            port = next(
                n for n in itertools.count(40_000) if (host, n) not in self._datagrams.bound
            )
        if (host, port) in self._datagrams.bound:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._name = (host, port)
        self._datagrams.bound[self._name] = self

    def connect(self, _: Address) -> None:
        """Do nothing: the local address is the same for all others."""

    def getsockname(self) -> Address:
        """Return the local address."""
        return self._name

    def settimeout(self, seconds: float | None) -> None:
        """Set after how many seconds `recvfrom` raises; None for never."""
        self._timeout = seconds

    def setblocking(self, _: bool) -> None:
        """Do nothing: a datagram can always be sent at once."""

    def recvfrom(self, _: int) -> tuple[bytes, Address]:
        """Return the next datagram, and an address."""
        thread = self._world.running
        until = math.inf if self._timeout is None else thread.process.clock() + self._timeout
        while not self.arrived:
            if self._is_closed:
                raise OSError(errno.EBADF, "Bad file descriptor")
            if thread.process.clock() >= until:
                raise TimeoutError
            self.wake = thread.waker()
            thread.park(until)
        return self.arrived.popleft(), self._name

    def sendto(self, data: bytes, address: Address) -> None:
        """Send a datagram."""
        self._datagrams.send(data, address)

    def close(self) -> None:
        """Give the address back."""
        self._is_closed = True
        if self._datagrams.bound.get(self._name) is self:
            del self._datagrams.bound[self._name]


def socket_of(world: World) -> Any:
    """Return the stand-in for the module `socket` in a world."""
    names = ("AF_INET", "AF_INET6", "SOCK_DGRAM", "inet_pton")
    return types.SimpleNamespace(
        socket=partial(Socket, world),
        getaddrinfo=lambda host, port, **_: [(socket.AF_INET, None, None, "", (host, port))],
        **{name: getattr(socket, name) for name in names},
    )
