"""Locks as commands name, read and show them, in a lock table or in the rows of a user's model.

`Locks` reads the locks of a model, one, several or all, and returns each as a `Lock`: the claim in its row, and its
state by server time when the answer arrived. Nothing here changes a lock. Requests are sent once (`sent`) or with
retries (`retried`). The arguments and options that name locks, with their completion, are at the end.
"""

from __future__ import annotations

import base64
import binascii
import json
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import click
from pynamodb.exceptions import PynamoDBException

from pynamodb_mutex._admin.listing import scan
from pynamodb_mutex._fair.waiting_line import address_of, began_at, in_line, label_of
from pynamodb_mutex._lock.dynamodb.answers import Failure
from pynamodb_mutex._lock.dynamodb.keys import check_key, key_of
from pynamodb_mutex._lock.dynamodb.pynamodb_private import hash_key_name, range_key_name
from pynamodb_mutex._lock.operations.retry import retrying, send
from pynamodb_mutex._lock.protocol.claim import NO_SERVER_TIME, token_time
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.schedule import SCAN_PATIENCE
from pynamodb_mutex._lock.protocol.server_time import HOST_SKEW
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex._lock.runtime.run_on_thread import execute
from pynamodb_mutex._once.rows import OnceRow
from pynamodb_mutex._once.run import state_of
from pynamodb_mutex._several.acquire_all import read_rows
from pynamodb_mutex.cli._output import instant, iso, plain
from pynamodb_mutex.cli._place import Place, elsewhere, place_of, with_commands
from pynamodb_mutex.exceptions import InvalidKeyError, InvalidRowError
from pynamodb_mutex.models import LockItem
from pynamodb_mutex.runs import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pynamodb.attributes import Attribute
    from pynamodb.models import Model

    from pynamodb_mutex._lock.dynamodb.answers import Answer
    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex._lock.dynamodb.store import Request
    from pynamodb_mutex._lock.protocol.claim import Claim

PATIENCE = 3.0
"""Seconds for which a transient failure is retried."""

PAGE = 500
"""Rows for each Scan. A whole page of 1 MB may take longer than the short timeouts for requests of locks allow."""

MOST_READ = 100
"""Most rows that DynamoDB reads in one BatchGetItem."""

MOST_KEYS = 50
"""Most keys that a completion offers."""

_SECONDS = 0.5
"""Timeouts in seconds for connecting and reading while a person waits for a completion."""

FREE, HELD, ABANDONED, INVALID = "free", "held", "abandoned", "invalid"
"""States of a lock: no claim, a running one, one whose lease has expired, attributes that no lock has."""

RECORDED, RUNNING, UNKNOWN, NOTHING = "recorded", "running", "unknown", "nothing"
"""States of a key of `once`, which may also be ABANDONED or INVALID: see `pynamodb_mutex.runs.Known`."""


def _place_of(address: tuple[str, int] | None) -> str | None:
    """Return an address and port as people write them; None for none."""
    if address is None:
        return None
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TransientError(Exception):
    """A request failed, and a retry may succeed."""


def sent(request: Request) -> Answer:
    """Send a request once.

    Raises:
        TransientError: If it failed and a retry may succeed.
        PynamoDBException: If it failed otherwise.
    """
    reply = execute(current_process(), send(request))
    if not isinstance(reply, Failure):
        return reply
    if reply.transient:
        raise TransientError(str(reply.error)) from reply.error
    raise reply.error


def retried(request: Request, patience: float = PATIENCE) -> Answer:
    """Send a request, and retry transient failures.

    Args:
        request: The request.
        patience: Seconds after which nothing is retried.

    Raises:
        PynamoDBException: If it fails for good.
    """
    process = current_process()
    return execute(process, retrying(process, lambda: request, process.read_clock() + patience))


class Lock(NamedTuple):
    """One lock as an answer showed it.

    Attributes:
        key: Key of the lock; of a row lock, the hash key of its row.
        range_key: Range key of the row; None if it has none, or that which the locks of the table have by default.
        row: Primary key of the row.
        raw: The row as DynamoDB returned it; empty if there is none.
        claim: The claim in the row.
        state: FREE, HELD or ABANDONED by server time when the answer arrived, or INVALID; of a run of `once`
            also UNKNOWN; of a key of `once` one of its states.
        remaining: Seconds from the answer until the claim may be taken over; None if unknown.
        seen_at: Server time of the answer; None if unknown.
        received: Local time after the answer was received.
    """

    key: str
    range_key: str | None
    row: RawItem
    raw: RawItem
    claim: Claim
    state: str
    remaining: float | None
    seen_at: float | None
    received: float

    @property
    def name(self) -> str:
        """The key and the range key, for people."""
        return self.key if self.range_key is None else f"{self.key} {self.range_key}"

    @property
    def fencing_token(self) -> int | None:
        """The fencing token of the claim, or of the last one if the lock is free; None if it was never acquired.

        The version alone does not show whether it was: a save of a user's row without the lock writes one, too.
        """
        return None if self.claim.token is None else self.claim.version or None

    @property
    def since(self) -> float | None:
        """Server time at which the holder acquired the lock; None if it is free, or the token does not show it."""
        return token_time(self.claim.token) if self.claim.expires_at is not None else None

    @property
    def until(self) -> float | None:
        """Server time at which the lease expires; None if the lock is free, or its holder knows no server time."""
        end = self.claim.ends
        return None if end is None or end >= NO_SERVER_TIME else end

    @property
    def waiters(self) -> list[tuple[str, float | None, str | None]]:
        """Waiters in line, first come first: the label of each, when it began to wait, and where it can be called."""
        return [
            (label_of(entry), began_at(entry), _place_of(address_of(entry)))
            for entry in in_line(self.claim.waiting)
        ]

    @property
    def readers(self) -> list[tuple[str, float]]:
        """Those who share the lock: the label of each, and when its share ends."""
        return self.claim.shares

    def document(self) -> dict[str, Any]:
        """Return the JSON fields of the lock."""
        claim = self.claim
        rows = {} if self.range_key is None else {"range_key": self.range_key}
        return {
            "key": self.key,
            **rows,
            "state": self.state,
            "owner": claim.owner,
            "since": iso(instant(self.since)),
            "until": iso(instant(self.until)),
            "remaining": None if self.remaining is None else round(self.remaining, 3),
            "lease": None if claim.expires_at is None else claim.lease or None,
            "fencing_token": self.fencing_token,
            "abandoned_by": claim.abandoned_by or None,
            "readers": [
                {"owner": owner, "until": iso(instant(end))} for owner, end in self.readers
            ],
            "wanted_by": claim.wanted_by,
            "waiters": [
                {"owner": owner, "since": iso(instant(since)), "called_at": place}
                for owner, since, place in self.waiters
            ],
            "problem": None if claim.fault is None else str(claim.fault),
        }


class Locks:
    """The locks of a model.

    Attributes:
        odd: Rows that `all` left out because their claim is invalid.
        name: Name of the model's class.
        store: Requests for the rows of the model.
        in_rows: Whether the locks are in rows of a user's model, not in a lock table.
        of_once: Whether these are the keys of `once`.
    """

    def __init__(self, model: type[Model], *, of_once: bool = False) -> None:
        self.odd: list[Lock] = []
        self.name = model.__name__
        self.store = current_process().store(model)
        self.store.connection.open()
        self._model = model
        attributes, range_name = model.get_attributes(), range_key_name(model)
        self._hash = attributes[hash_key_name(model)]
        self._range = attributes[range_name] if range_name else None
        self.in_rows = self.store.layout.must_exist
        self.of_once = of_once

    def row(self, key: str, range_key: str | None = None) -> RawItem:
        """Return the primary key of a lock from the arguments of a command.

        Raises:
            click.BadParameter: If no lock can have this key.
        """
        if self.in_rows:
            if range_key is None and self._range is not None:
                key, range_key = self.named(key) or (key, None)
            if (range_key is None) != (self._range is None):
                has = "a range key: give it" if self._range else "no range key"
                msg = f"{self._model.__name__} has {has}"
                raise click.BadParameter(msg, param_hint="--range-key")
            given = zip(self._keys(), (key, range_key or ""), strict=False)
            return {
                name: value for each, text in given for name, value in _typed(each, text).items()
            }
        try:
            stored = PREFIX + key.removeprefix(PREFIX) if self.of_once and key else key
            return key_of(self._model, check_key(stored), self.range_value(range_key))
        except InvalidKeyError as error:
            raise click.BadParameter(str(error), param_hint="KEY") from error

    def named(self, name: str) -> list[str] | None:
        """Return the parts of a row's key from its name in errors, see `row_name`; None for any other text."""
        table, *parts = name.split("/", len(self._keys()))
        if unquote(table) != self._model.Meta.table_name or len(parts) < len(self._keys()):
            return None
        return [*map(unquote, parts[:-1]), parts[-1]]

    def range_value(self, text: str | None) -> Any:
        """Return a range key as the model has it, from the text of an argument; the text if the model has none.

        Raises:
            click.BadParameter: If the model cannot have this range key.
        """
        if text is None or self._range is None:
            return text
        (typed,) = _typed(self._range, text).values()
        return self._range.deserialize(self._range.get_value(typed))

    def read(self, row: RawItem) -> Lock:
        """Read one lock, strongly consistent."""
        answer = retried(self.store.read(row, consistent=True))
        return self.shown(row, answer.item, answer.received)

    def all(self, progress: Callable[[str], None]) -> Iterator[Lock]:
        """Read the held and abandoned locks page by page, with retries.

        Rows with an invalid claim are left out and added to `odd`; `warn` prints them.

        Args:
            progress: Called with a text for people, for each lock that was found.
        """
        patience = PATIENCE

        def page(start: RawItem | None) -> Answer:
            nonlocal patience
            answer = retried(scan(self.store, start, PAGE), patience)
            # DynamoDB has answered, so a later failure is most likely throttling, and worth a longer wait. The first
            # request may have been sent to an endpoint that does not exist.
            patience = SCAN_PATIENCE
            return answer

        for found, lock in enumerate(self._pages(page), 1):
            progress(f"reading the table: {found} locks so far")
            if lock.state == INVALID:
                self.odd.append(lock)
            else:
                yield lock

    def warn(self) -> None:
        """Print on standard error which rows `all` left out, and why."""
        for lock in self.odd:
            click.echo(f"left out: {lock.claim.fault}", err=True)

    def standing(self) -> Iterator[Lock]:
        """Read the held, abandoned and invalid locks without retries, for a caller who reads again anyway.

        Raises:
            TransientError: If a request failed and a retry may succeed.
            PynamoDBException: If a request failed otherwise.
        """
        return self._pages(lambda start: sent(scan(self.store, start, PAGE)))

    def _pages(self, ask: Callable[[RawItem | None], Answer]) -> Iterator[Lock]:
        start: RawItem | None = None
        while True:
            page = ask(start)
            yield from self.of_page(page.data["Items"], page.received)
            start = page.data.get("LastEvaluatedKey")
            if start is None:
                return

    def read_several(self, rows: list[RawItem]) -> list[Lock]:
        """Read up to MOST_READ locks, including free ones, strongly consistent; return them in the given order."""
        process = current_process()
        until = process.read_clock() + PATIENCE
        keys = [(self._model, row) for row in rows]
        raws = execute(process, read_rows(process, self.store, keys, until, consistent=True))
        received = process.read_clock()
        return [self.shown(row, raw, received) for row, raw in zip(rows, raws, strict=True)]

    def of_page(self, items: list[RawItem], received: float) -> Iterator[Lock]:
        """Return the locks of one page of the table."""
        for raw in items:
            # A table may be shared: a row with another range key is something else. Shown by its hash key alone, it
            # would pass for the lock of that key.
            if self.store.layout.is_the_models(raw):
                lock = self.shown(self._row_of(raw), raw, received)
                # a lock in the same table is none of once
                is_other = self.of_once and not self._text(self._hash, raw).startswith(PREFIX)
                # a reserved claim that has ended is no news
                if not (is_other or lock.state in (FREE, NOTHING)):
                    yield lock

    def was_a_locks(self, lock: Lock) -> bool:
        """Return whether a row belongs to a lock, even if its attributes are invalid: commands change no other rows."""
        return self.store.layout.was_a_locks(lock.raw)

    def ttl(self, raw: RawItem) -> float | None:
        """Return the time from which DynamoDB may delete a row, in seconds since the epoch; None if it has none."""
        return self.store.layout.ttl(raw)

    def data(self, raw: RawItem) -> Any:
        """Return the payload in a row, None if it has none, or a text that says why it cannot be read."""
        try:
            data = self.store.layout.data(raw)
            # Python reads NaN and infinity from JSON, where the standard has none: what we print must be standard.
            json.dumps(data, default=plain, allow_nan=False)
        except (InvalidRowError, ValueError, TypeError) as error:
            return f"cannot be read: {one_line(error)}"
        return data

    def attributes(self, raw: RawItem) -> dict[str, Any]:
        """Return the model's extra attributes in a row of a lock table, by name; as they are stored if they cannot be read."""
        found: dict[str, Any] = {}
        for name, attribute in self.store.layout.initial:
            if attribute.attr_name in raw:
                stored = raw[attribute.attr_name]
                try:
                    found[name] = attribute.deserialize(attribute.get_value(stored))
                    json.dumps(found[name], default=plain, allow_nan=False)
                except Exception:  # noqa: BLE001 - an attribute may raise anything for a foreign value
                    found[name] = stored
        return found

    def _row_of(self, raw: RawItem) -> RawItem:
        return {each.attr_name: raw[each.attr_name] for each in self._keys()}

    def _keys(self) -> list[Attribute[Any]]:
        return [each for each in (self._hash, self._range) if each is not None]

    def shown(self, row: RawItem, raw: RawItem, received: float) -> Lock:
        """Return the lock that an answer shows, with its state at the time of the answer.

        Args:
            row: Primary key of the row.
            raw: The row as DynamoDB returned it; empty if there is none.
            received: Local time after the answer was received.
        """
        claim, bounds = self.store.layout.claim(raw), self.store.bounds
        state, remaining = FREE, None
        if claim.fault is not None:
            state = INVALID
            claim = claim._replace(fault=ValueError(with_commands(str(claim.fault))))
        elif self.of_once:
            state, known = state_of(claim, received, bounds), claim.of(OnceRow)
            if state == RECORDED:
                claim = claim._replace(expires_at=known.done_until)
            claim = claim._replace(owner=known.unknown or claim.owner)
        elif claim.expires_at is not None:
            # a reserved claim leaves the lock free, not abandoned
            state = FREE if claim.is_reserved else ABANDONED
            if "unknown" in raw and self._text(self._hash, row).startswith(PREFIX):
                state = UNKNOWN  # a run of `once`, which the layout of a lock does not know
            if claim.is_held(received, bounds):
                state = HELD
            claim = claim._replace(owner=claim.holder if claim.readers else claim.owner)
        wanted_by = claim.wanted_by if claim.marked_until(received, bounds) else None
        claim = claim._replace(wanted_by=wanted_by)
        if claim.expires_at is not None:
            remaining = 0.0
            if state in (HELD, RUNNING, RECORDED) and bounds is not None:
                # As `Bounds.passes`, which decides when waiters take over, but without its margin for the drift of the
                # clock until then: this is an estimate for people.
                remaining = (claim.ends or 0.0) + HOST_SKEW - bounds.lowest(received)
            if claim.expires_at >= NO_SERVER_TIME:
                # A placeholder: the holder knows no server time. Waiters take such a claim over only after they have
                # seen it unchanged for its whole lease, and one read cannot show how long that has been so.
                remaining = None
        key, *more = (self._text(each, row) for each in self._keys())
        key = key.removeprefix(PREFIX) if self.of_once else key
        is_named = self.in_rows or not self.store.layout.range_is_default(row)
        range_key = more[0] if more and is_named else None
        seen_at = self.store.server_now(received)
        return Lock(key, range_key, row, raw, claim, state, remaining, seen_at, received)

    def _text(self, attribute: Attribute[Any], row: RawItem) -> str:
        value = row[attribute.attr_name][attribute.attr_type]
        if attribute is self._hash and not self.in_rows:
            return str(attribute.deserialize(value))
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


_STANDARD = str.maketrans("-_", "+/")
"""Makes the base64 of a row's name that which ``ls`` prints."""


def _typed(attribute: Attribute[Any], text: str) -> RawItem:
    """Return an attribute of a primary key as DynamoDB stores it, from the text of an argument.

    Raises:
        click.BadParameter: If the text is not of the attribute's type.
    """
    value: str | bytes = text
    try:
        if attribute.attr_type == "N":
            value = str(Decimal(text))
        if attribute.attr_type == "B":
            value = base64.b64decode(text.translate(_STANDARD), validate=True)
    except (InvalidOperation, binascii.Error) as error:
        kind = {"N": "a number", "B": "base64"}[attribute.attr_type]
        raise click.BadParameter(f"{shown(text)} is not {kind}") from error
    return {attribute.attr_name: {attribute.attr_type: value}}


def complete_keys(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return keys of held and abandoned locks that begin with a text, for a shell; none if anything fails."""
    try:
        model = place_of(context).model()
        names = ("connect_timeout_seconds", "read_timeout_seconds")
        locks = Locks(elsewhere(model, dict.fromkeys(names, _SECONDS)))
        # one page, with short timeouts: each press of the tab key costs read units, and a person waits
        page = sent(scan(locks.store, limit=PAGE))
        keys = {lock.key for lock in locks.of_page(page.data["Items"], page.received)}
    except Exception:  # noqa: BLE001 - a traceback in the middle of a command line helps nobody
        return []
    # A completion script may not quote what it inserts: a shell would take a key with a space for two arguments.
    good = (key for key in keys if key.startswith(incomplete) and key.isprintable())
    return sorted(key for key in good if " " not in key)[:MOST_KEYS]


key_argument = click.argument("key", shell_complete=complete_keys)


once_option = click.option("--once", is_flag=True, help="Keys of once, not locks.")

keys_argument = click.argument("keys", nargs=-1, shell_complete=complete_keys, metavar="[KEY]...")


def once_key(_: click.Context, __: click.Parameter, key: str) -> str:
    """Return a key of `once` from an argument: as its callers have it, or as ``ls`` prints it."""
    return key.removeprefix(PREFIX)


def locks_of(place: Place, keys: Iterable[str] = (), *, once: bool = False) -> Locks:
    """Return the locks that the options name; with ``--once``, or for keys as ``ls`` prints them, the keys of `once`."""
    kinds = {key.startswith(PREFIX) for key in keys}
    if once or (True in kinds and issubclass(place.model(), LockItem)):
        if False in kinds and not once:
            raise click.UsageError(
                f"give keys of locks, or keys of once: those begin with {PREFIX}"
            )
        return Locks(place.once_model(), of_once=True)
    return Locks(place.model())


def found(
    place: Place, key: str, range_key: str | None, *, once: bool = False
) -> tuple[Locks, Lock]:
    """Read a lock; if it has no row, the key of `once` of this name, and say so.

    Errors of `once` print the key that you gave it. As a lock's key it would be free: the wrong answer if you search for
    the run that is under way.
    """
    locks = locks_of(place, [key], once=once)
    named = locks.named(key) if locks.in_rows and range_key is None else None
    try:
        row = locks.row(key, range_key)
    except click.BadParameter:  # no row can have this key
        if named is None:
            raise
        row, named = locks.row(*named), None
    lock = locks.read(row)
    if named is not None and not lock.raw and (other := locks.row(*named)) != row:
        lock = locks.read(other)
    if locks.of_once or locks.in_rows or lock.state != FREE:
        return locks, lock
    with suppress(click.BadParameter, PynamoDBException):  # no such model, or it may not be read
        runs = Locks(place.once_model(), of_once=True)
        run = runs.read(runs.row(key, range_key))
        if run.raw:
            said = "see show --once" if lock.raw else "no lock has it"
            click.echo(f"{shown(key)} is a key of once: {said}", err=True)
            return (locks, lock) if lock.raw else (runs, run)
    return locks, lock


def rows_of(locks: Locks, keys: Iterable[str], range_key: str | None) -> list[RawItem]:
    """Return the primary keys of the named locks, each once; none if no KEY was given.

    Raises:
        click.UsageError: If a range key was given without a KEY, or more KEYs than one request reads.
    """
    unique = list(dict.fromkeys(keys))
    if range_key is not None and not unique:
        raise click.UsageError("give a KEY with --range-key")
    if len(unique) > MOST_READ:
        raise click.UsageError(f"give up to {MOST_READ} KEYs")
    return [locks.row(key, range_key) for key in unique]


range_option = click.option(
    "--range-key", metavar="TEXT", help="Range key of the lock's row, for a --model that has one."
)
