"""Requests and answers as `proxy` sees them."""

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
When = Callable[[Body], bool]


@dataclass(frozen=True)
class Reply:
    """An answer, as the engine gave it or as a fault made it up."""

    status: int
    content: bytes
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def body(self) -> Body:
        return json.loads(self.content)

    @property
    def error(self) -> str | None:
        """The code of the error, without its namespace."""
        return None if self.status < 400 else self.body.get("__type", "").rpartition("#")[2]


@dataclass
class Seen:
    """A request that reached the proxy.

    Attributes:
        op: As DynamoDB names it.
        kind: As the lock protocol names it: acquire, renew, release, hand_over, attach, save_data,
            force, disown, also where the claim stands in a user's row; update, of a user's row by its user,
            guarded or only if nobody holds it; else the operation.
        applied: Whether the engine did what was asked.
        status: The engine's answer; None if it was never asked.
        fault: The name of the fault that it met, or None.
        reply: The engine's answer, which need not be what the client got.
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
"""Of a claim's attributes in a user's row."""


def _changed(section: str, body: Body) -> set[str]:
    """Names of the attributes in one section of an update expression."""
    expression = body.get("UpdateExpression", "")
    found = re.search(rf"\b{section}\b(.*?)(?=\bSET\b|\bREMOVE\b|\bADD\b|\bDELETE\b|$)", expression)
    if found is None:
        return set()
    names = body.get("ExpressionAttributeNames", {})
    if section == "SET":
        return {names[name] for name in re.findall(r"(#\w+) = ", found[1])}
    return {names[name] for name in re.findall(r"#\w+", found[1])}


def kind_of(op: str, body: Body) -> str:  # noqa: PLR0911 - one for each kind
    """Name a request as the lock protocol does."""
    sets = {name.removeprefix(_PREFIX) for name in _changed("SET", body)}
    removes = {name.removeprefix(_PREFIX) for name in _changed("REMOVE", body)}
    condition = _spelt(body)
    if {"waiting"} in (sets, removes) and not sets & {"token", "expires_at"}:
        return "join" if "waiting" in sets else "leave"
    if "abandoned_by" in sets:
        passed_on = "attach" if "expires_at >=" in condition else "hand_over"
        return "acquire" if "attribute_not_exists" in condition else passed_on
    if "writes" in sets:
        return "save_data" if "writes" in _changed("SET", body) else "update"
    if "expires_at" in removes:
        if "token" in sets:
            return "force"
        if "version" in condition:
            return "release"
        return "disown" if "token" in condition else "update"
    return "renew" if "expires_at" in sets else op


def _spelt(body: Body) -> str:
    """The condition with its names spelt out."""
    names = body.get("ExpressionAttributeNames", {})
    return re.sub(r"#\w+", lambda m: names[m[0]], body.get("ConditionExpression", ""))


class Exchange:
    """One request under way, as a fault sees it."""

    def __init__(self, handler: BaseHTTPRequestHandler, op: str, raw: bytes) -> None:
        self.op, self.raw, self.body = op, raw, json.loads(raw)
        self.kind = kind_of(op, self.body)
        self.headers = {name: value for name, value in handler.headers.items() if name != "Host"}
        self.proxy = handler.server.proxy
        self.edits: list[Callable[[Reply], Reply]] = []
        self._handler = handler

    def apply(self, fault: str | None) -> Reply:
        """Forward it to the engine, and log it."""
        return self.proxy.forward(self, fault)

    def keep_from_engine(self, fault: str) -> None:
        """Log it as one that the engine never saw."""
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
        """Break the connection, as a host that knows nothing of it does."""
        linger = struct.pack("ii", 1, 0)
        self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._handler.close_connection = True
