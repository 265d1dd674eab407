"""Requests and answers as the proxy and its faults see them, and the names of requests in the lock protocol.

`Exchange` is a request under way, on which a fault acts; `Seen` is the entry of a request in the log of the proxy.
`kind_of` recognises the requests of the protocol by the attributes that they change and compare.
"""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

Body = dict[str, Any]
"""The JSON of a request or an answer."""

When = Callable[[Body], bool]
"""Returns whether a rule applies to a request, by its body."""


@dataclass(frozen=True)
class Reply:
    """An answer, from the engine or made up by a fault.

    Attributes:
        status: HTTP status.
        content: Body as it is sent, often JSON.
        headers: Names and values.
    """

    status: int
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def body(self) -> Body:
        return json.loads(self.content)

    @property
    def error(self) -> str | None:
        """Code of the error, without its namespace; None if the answer is no error."""
        return None if self.status < 400 else self.body.get("__type", "").rpartition("#")[2]


@dataclass
class Seen:
    """A request that reached the proxy.

    Attributes:
        op: Name of the operation in DynamoDB.
        body: Body of the request.
        kind: Name in the lock protocol: acquire, renew, release, keep, hand_over, attach, save_data, force, disown,
            join or leave, also if the claim is in a user's row; update for a user's own write to its row, guarded or
            on condition that nobody holds it; otherwise the name of the operation.
        applied: Whether the engine applied the request.
        status: Status of the engine's answer; None if the request was not forwarded.
        fault: Name of the fault that the request met; None if it met none.
        reply: The engine's answer, which may differ from what the client got; None if the request was not forwarded.
        raw: Body as it was sent.
        headers: Headers of the request, for a replay.
    """

    op: str
    body: Body
    kind: str
    applied: bool
    status: int | None
    fault: str | None
    reply: Reply | None
    raw: bytes
    headers: dict[str, str] = field(repr=False)


_PREFIX = "lock_"
"""Beginning of the names of a claim's attributes in a user's row."""


def _changed(section: str, body: Body) -> set[str]:
    """Return the names of the attributes that one section of an update expression changes.

    Args:
        section: SET or REMOVE.
        body: Body of the request.
    """
    expression = body.get("UpdateExpression", "")
    found = re.search(rf"\b{section}\b(.*?)(?=\bSET\b|\bREMOVE\b|\bADD\b|\bDELETE\b|$)", expression)
    if found is None:
        return set()
    names = body.get("ExpressionAttributeNames", {})
    if section == "SET":
        return {names[name] for name in re.findall(r"(#\w+) = ", found[1])}
    return {names[name] for name in re.findall(r"#\w+", found[1])}


def kind_of(op: str, body: Body) -> str:  # noqa: PLR0911 - one for each kind
    """Return the name of a request in the lock protocol; for other requests, the name of the operation.

    Args:
        op: Name of the operation in DynamoDB.
        body: Body of the request.
    """
    sets = {name.removeprefix(_PREFIX) for name in _changed("SET", body)}
    removes = {name.removeprefix(_PREFIX) for name in _changed("REMOVE", body)}
    # that a key is open is a condition of a hand-over, too
    condition = _spelt(body).replace("attribute_not_exists (closed)", "")
    # a request that takes the lock may remove its own entry from the line, and is no "leave"
    if {"waiting"} in (sets, removes) and not sets & {"token", "expires_at"}:
        return "join" if "waiting" in sets else "leave"
    # Acquire, hand_over and attach set it: the writes by which a claim gets another holder. Only acquire may create the
    # row or find it free; only attach requires an end that has not passed.
    if "abandoned_by" in sets:
        passed_on = "attach" if "expires_at >=" in condition else "hand_over"
        return "acquire" if "attribute_not_exists" in condition else passed_on
    # The result of a run of `once` takes the place of its claim; by hand, with another token.
    if "done_until" in sets | removes:
        return "decide" if "token" in sets else "complete"
    # A guarded write counts itself: under this name in the lock table, with the prefix in a user's row.
    if "writes" in sets:
        return "save_data" if "writes" in _changed("SET", body) else "update"
    # The claim ends. Force writes a token of its own; release compares token and version; disown, for an acquisition
    # whose outcome is unknown, cannot know the version.
    if "expires_at" in removes:
        if "token" in sets:
            return "force"
        if "version" in condition:
            return "release"
        return "disown" if "token" in condition else "update"
    if "expires_at" in sets and "owner" in removes:
        return "keep"
    return "renew" if "expires_at" in sets else op


def _spelt(body: Body) -> str:
    """Return the condition of a request, with the names of attributes in place of the placeholders."""
    names = body.get("ExpressionAttributeNames", {})
    return re.sub(r"#\w+", lambda m: names[m[0]], body.get("ConditionExpression", ""))


class Exchange:
    """One request under way, on which a fault acts.

    Attributes:
        op: Name of the operation in DynamoDB.
        raw: Body as it was sent.
        body: Body of the request.
        kind: Name in the lock protocol: see `Seen`.
        headers: Headers of the request, but for the host.
        proxy: The proxy.
        edits: Functions that change the answer, in this order, before the client gets it.
    """

    def __init__(self, handler: BaseHTTPRequestHandler, op: str, raw: bytes) -> None:
        self.op, self.raw, self.body = op, raw, json.loads(raw)
        self.kind = kind_of(op, self.body)
        self.headers = {name: value for name, value in handler.headers.items() if name != "Host"}
        self.proxy = handler.server.proxy
        self.edits: list[Callable[[Reply], Reply]] = []
        self._handler = handler

    def apply(self, fault: str | None) -> Reply:
        """Forward the request to the engine, log it under a fault's name, and return the answer."""
        return self.proxy.forward(self, fault)

    def keep_from_engine(self, fault: str) -> None:
        """Log the request as one that was not forwarded."""
        self.proxy.note(self, fault, None)

    def answer(self, reply: Reply) -> None:
        """Answer the client; nothing happens if it has gone."""
        for edit in self.edits:
            reply = edit(reply)
        handler = self._handler
        with suppress(OSError):
            handler.send_response_only(reply.status)
            for name, value in reply.headers:
                if name.lower() not in {"content-length", "connection", "transfer-encoding"}:
                    handler.send_header(name, value)
            handler.send_header("Content-Length", str(len(reply.content)))
            handler.end_headers()
            handler.wfile.write(reply.content)
            handler.wfile.flush()

    def reset(self) -> None:
        """Let the connection end by a reset, as after a failure of the network; it ends when the fault has acted."""
        # with SO_LINGER at zero seconds, closing the socket sends RST; otherwise it would send FIN, an orderly end
        linger = struct.pack("ii", 1, 0)
        self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._handler.close_connection = True
