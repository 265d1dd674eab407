"""The ticket that the process which detaches a lock passes to the process which attaches it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from pynamodb_mutex._lock.dynamodb.keys import check_key, row_name
from pynamodb_mutex._lock.dynamodb.pynamodb_private import hash_key_name, range_key_name
from pynamodb_mutex._lock.operations.options import check_lease, check_number
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex.exceptions import InvalidTicketError

if TYPE_CHECKING:
    from pynamodb.attributes import Attribute
    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.keys import RawItem

_FORMAT = 1
"""The format of tickets: the library writes this one, and reads no other."""


class Ticket(NamedTuple):
    """The values that a process needs to continue to hold a lock.

    Attributes:
        table: Name of the table that the claim is in.
        region: Region of the table; None if it is not known.
        key: The lock's key.
        token: Token of the acquisition that was detached.
        version: Fencing token of that acquisition.
        expires_at: End of its claim in server time. For people only: the end in the row counts.
        lease: Lease of the detached mutex, in seconds.
        row: The primary key of the user's row that is locked; None for a lock that is not a row's.
        range_key: The range key of the lock's row, as it is stored; None if the caller gave none.
    """

    table: str
    region: str | None
    key: str
    token: str
    version: int
    expires_at: float
    lease: float
    row: RawItem | None
    range_key: dict[str, Any] | None = None

    def write(self) -> str:
        """Return the ticket as JSON, in ASCII alone because not every queue accepts other characters."""
        fields = {name: value for name, value in self._asdict().items() if value is not None}
        return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":"), default=_base64)

    def row_key(self, model: type[Model]) -> RawItem:
        """Return the primary key of the user's row.

        Raises:
            InvalidTicketError: If the ticket is not for a row of the model.
        """
        given: Any = self.row
        raw: RawItem = {}
        try:
            for name in filter(None, (hash_key_name(model), range_key_name(model))):
                attribute = model.get_attributes()[name]
                raw[attribute.attr_name] = _read_value(attribute, given[attribute.attr_name])
            # The key of a row's lock contains the table and the primary key: a ticket for another row does not fit.
            fits = row_name(model, raw) == self.key
        except (LookupError, TypeError, ValueError, ArithmeticError):
            fits = False
        if not fits:
            msg = f"the ticket for {shown(self.key)} is not one for a row of {model.__name__}"
            raise InvalidTicketError(msg, key=self.key)
        return raw

    def range_value(self, model: type[Model]) -> Any:
        """Return the range key of the lock's row, as the model has it; None if it is the default.

        Raises:
            InvalidTicketError: If the model has no such range key.
        """
        if self.range_key is None:
            return None
        try:
            attribute = model.get_attributes()[range_key_name(model) or ""]
            stored = _read_value(attribute, self.range_key)
            return attribute.deserialize(attribute.get_value(stored))
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            msg = f"the ticket for {shown(self.key)} has a range key that {model.__name__} cannot have"
            raise InvalidTicketError(msg, key=self.key) from error


def _read_value(attribute: Attribute[Any], given: Any) -> dict[str, Any]:
    kind = attribute.attr_type
    value = _str(given[kind])
    return {kind: base64.b64decode(value) if kind == "B" else value}


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def parse_ticket(text: str) -> Ticket:
    """Return the ticket in a text.

    Raises:
        InvalidTicketError: If the text is not a ticket, or has a format that is not known here.
    """
    try:
        fields = json.loads(text)
        ticket = _read(fields) if fields["format"] == _FORMAT else None
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        why = f"{type(error).__name__}: {one_line(error)}"
        msg = f"this is not a ticket: give the text that detach() returned ({why})"
        raise InvalidTicketError(msg) from error
    if ticket is None:
        msg = f"a ticket of format {shown(fields['format'])}; known here: {_FORMAT}"
        raise InvalidTicketError(msg)
    return ticket


def _read(fields: dict[str, Any]) -> Ticket:
    return Ticket(
        table=_str(fields["table"]),
        region=_str(fields["region"]) if "region" in fields else None,
        key=check_key(fields["key"]),
        token=_str(fields["token"]),
        version=_int(fields["version"]),
        expires_at=check_number("expires_at", fields["expires_at"]),
        lease=check_lease(fields["lease"]),
        row=fields.get("row"),
        range_key=fields.get("range_key"),
    )


def _int(value: object) -> int:
    # Checked and not converted: int() would turn an altered version, such as 7.5, into the right one.
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"an int is expected, not {shown(value)}"
        raise TypeError(msg)
    return value


def _str(value: object) -> str:
    if not isinstance(value, str):
        msg = f"a str is expected, not {shown(value)}"
        raise TypeError(msg)
    return value
