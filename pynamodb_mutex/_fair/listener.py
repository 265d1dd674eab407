"""The listener: the UDP sockets at which other processes call waiters of this process; sends the datagrams to others.

The first wait with hints opens a socket, and it is closed once there has been no such wait for a while. If the system refuses a
socket, there are no hints but a log record: waiters then poll. `hints` has the meaning of a hint.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pynamodb_mutex._fair.hints import NEXT, Calls
from pynamodb_mutex._fair.waiting_line import address_of, id_of, in_line
from pynamodb_mutex._lock.operations.events import Do
from pynamodb_mutex._lock.runtime.threads import log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pynamodb_mutex._fair.hints import Hints
    from pynamodb_mutex._lock.dynamodb.connection import Connection
    from pynamodb_mutex._lock.operations.process_state import ProcessState
    from pynamodb_mutex._lock.protocol.claim import Claim
    from pynamodb_mutex._lock.runtime.process import Process

    Place = tuple[str | None, int]

LINGER = 5.0
"""Seconds without a waiter after which a socket is closed. The next waiter often comes before that."""

LONGEST_DATAGRAM = 64
"""Bytes of a datagram that are read. An id with its mark has 17."""


class Listener:
    """The sockets of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._calls = process.of(Calls)
        process.at_fork.append(self.close)
        # by the address and port that the caller asked for: the socket, and the packed address at which others reach it
        self._open: dict[Place, tuple[socket.socket, bytes]] = {}
        self._was_refused = False

    def address(self, connection: Connection, hints: Hints) -> bytes | None:
        """Return the packed address and port at which this process is called; None if the system refuses a socket.

        Called outside the monitor, for it may have to resolve the endpoint's name.
        """
        found = self._open.get(hints.place)
        if found is not None:
            return found[1]
        try:
            local = local_address(connection.endpoint)
            opened = socket.socket(family_of(local), socket.SOCK_DGRAM)
            try:
                opened.bind(("" if hints.address else local, hints.port))
                opened.settimeout(LINGER)
                port: int = opened.getsockname()[1]
                packed = _packed(hints.address or local) + port.to_bytes(2, "big")
            except BaseException:
                opened.close()
                raise
        except (OSError, ValueError) as error:
            if not self._was_refused:
                self._was_refused = True
                text = "no hints for %r, so waiters poll: %r"
                log(logging.WARNING, text, hints, error)
            return None
        with self._process.monitor:
            first = self._open.setdefault(hints.place, (opened, packed))
        if first[0] is not opened:  # another thread was faster
            opened.close()
            return first[1]
        self._process.threads.put("pynamodb-mutex-hints", partial(self._listen, hints, opened))
        self._process.threads.start()
        return packed

    def _listen(self, hints: Hints, opened: socket.socket) -> None:
        """Note the datagrams that arrive, until nobody has waited for a while."""
        used = self._process.read_clock()
        with opened:
            while not self._process.inherited:
                text = b""
                # some systems raise for a datagram that is too long: no reason to stop
                with suppress(OSError):
                    text, _ = opened.recvfrom(LONGEST_DATAGRAM)
                with self._process.monitor:
                    self._calls.note(text.decode("ascii", "replace"))
                    now = self._process.read_clock()
                    if self._calls.waiters:
                        used = now
                    # by the clock: a sender of a byte now and then would put off the end of the wait above for ever
                    elif now >= used + LINGER:
                        # inside the monitor: a wait that asks for the address after that opens another socket
                        del self._open[hints.place]
                        return

    def send(self, address: tuple[str, int], text: str) -> None:
        """Send a hint, if that can be done at once. Nobody relies on it."""
        # a socket that stayed would be open to datagrams from everywhere: sending binds it to all addresses
        with suppress(OSError), socket.socket(family_of(address[0]), socket.SOCK_DGRAM) as sending:
            sending.setblocking(False)
            sending.sendto(text.encode("ascii", "replace"), address)

    def close(self) -> None:
        """Close all sockets, in a forked child: they are the parent's, which goes on to use them."""
        for opened, _ in self._open.values():
            opened.close()


def call_first(process: ProcessState, claim: Claim) -> None:
    """Call the first in line at a lock that is free, as a row shows it."""
    if claim.waiting:
        call(process, claim.waiting)


def call(process: ProcessState, waiting: Sequence[str], *, is_free: bool = True) -> None:
    """Call the first in line, and let the second know that it is next; if the lock is not free, only let the first know that.

    ``waiting`` has the entries in the list, first come first.
    """
    # Without the second hint, a waiter that polls rarely does not know that it stands first now: if its call gets lost, it would
    # wait until its next poll.
    marks = ("", NEXT) if is_free else (NEXT,)
    for entry, mark in zip(in_line(waiting), marks, strict=False):
        address = address_of(entry)
        if address is not None:
            process.emit(Do(partial(process.of(Listener).send, address, id_of(entry) + mark)))


def local_address(endpoint: str) -> str:
    """Return the local address of connections to an endpoint; raise OSError if there is none."""
    host = urlsplit(endpoint).hostname
    # by the address alone the system chooses: any port will do
    family, _, _, _, address = socket.getaddrinfo(host, 443, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        local: str = probe.getsockname()[0]
    return local


def family_of(address: str) -> int:
    """Return the family of sockets for an IPv4 or IPv6 address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _packed(address: str) -> bytes:
    return socket.inet_pton(family_of(address), address)
