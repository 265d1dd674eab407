"""The command ``doctor``: checks everything that locks depend on.

`examine` makes the checks, in the order in which one depends on another, and returns a `Finding` for each; the rest of
the module judges what DynamoDB says about the table, its TTL and its rows, and prints the findings. The requests
that try clocks and permissions, and change nothing, are in `_probes`.
"""

from __future__ import annotations

import math
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from pynamodb_mutex._admin.create_table import keys_needed, keys_of
from pynamodb_mutex._fair.listener import family_of, local_address
from pynamodb_mutex._lock.dynamodb.pynamodb_private import credentials_of
from pynamodb_mutex._lock.protocol.claim import YEAR_10000
from pynamodb_mutex._lock.protocol.messages import one_line, shown
from pynamodb_mutex._lock.protocol.server_time import HOST_SKEW
from pynamodb_mutex._lock.runtime import clock as _clock
from pynamodb_mutex._lock.runtime.process import current_process
from pynamodb_mutex.cli._exit_codes import FAILED
from pynamodb_mutex.cli._output import json_option, on_terminal, print_json
from pynamodb_mutex.cli._place import IF_NO_TABLE, AppCommand, Place, pass_place
from pynamodb_mutex.cli._probes import (
    MISSING,
    UNSENT,
    Asker,
    Finding,
    Probes,
    Reply,
    Verdict,
    ok,
    problem,
    unchecked,
    warning,
)
from pynamodb_mutex.exceptions import InvalidKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamodb_mutex._lock.dynamodb.keys import RawItem
    from pynamodb_mutex.models import LockItem

_STYLES = {
    Verdict.OK: "green",
    Verdict.WARNING: "yellow",
    Verdict.PROBLEM: "bold red",
    Verdict.UNCHECKED: "dim",
}
"""Styles of the verdicts on a terminal."""

SIGNED_FOR = 300
"""Seconds by which the clock of the machine that signs a request may differ from that of AWS."""

NOTABLE_OFFSET = 60.0
"""Seconds by which the clocks must surely differ for a warning."""

_NOT_WHO_YOU_SAY = {
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}  # fmt: skip
"""Error codes of credentials or signatures that AWS does not accept."""

_WAITS_FOR_HINT = 2.0
"""Seconds for which `doctor` waits for a datagram of another process."""

_DEPENDENT = ("table", "ttl", "rows", "permissions")
"""Checks that need valid credentials and, but for the first, a table."""

LOW_CAPACITY = 5
"""Capacity units below which there is a warning: an acquire and a release are two writes."""

_THROTTLED = "a throttled request delays an acquire, or loses a lock that it should renew"
"""Reason for an advice about capacity."""

_MULTI_REGION = "see https://pynamodb-mutex.readthedocs.io/page/howto/multi_region.html"
"""Page about tables in several regions."""

SAMPLE = 500
"""Most rows of the table that are checked."""

_SHOWN = 3
"""Most keys that a finding about rows names."""

_OTHERS = {
    "python-dynamodb-lock": {"owner_name", "lease_duration", "record_version_number"},
    "the DynamoDB Lock Client for Java, dynamolock (Go) or a relative": {
        "ownerName",
        "recordVersionNumber",
    },
    "dynamodblock": {"owner_id", "ttl_precise"},
    "dyndb-mutex": {"holder", "expire_ts"},
    "ShedLock": {"lockUntil", "lockedAt", "lockedBy"},
}
"""Attributes by which rows of other libraries are recognised: their keys may have any name."""


@click.command(cls=AppCommand)
@click.option(
    "--key",
    metavar="KEY",
    default="pynamodb-mutex doctor",
    show_default=True,
    help="The key with which permissions are tried; give one if a policy allows only some keys.",
)
@json_option
@click.pass_context
@pass_place
def doctor(place: Place, context: click.Context, key: str, as_json: bool) -> None:
    """Check credentials, endpoint, clocks, table and permissions.

    Changes nothing, and ends within seconds. Permissions are tried by requests whose conditions are never met.
    Permissions to create, change and delete tables cannot be tried like that, and are not checked. Reads the first
    500 rows.

    \b
    Examples:
      pynamodb-mutex doctor
      pynamodb-mutex doctor --json | jq '.checks[] | select(.verdict != "ok")'

    \b
    Exit codes:
      0    no problem; warnings and unchecked items may exist
      1    at least one problem
    """
    model = place.lock_model()
    findings = examine(model, key)
    if as_json:
        print_json(_document(model.Meta.table_name, findings))
    elif on_terminal():
        _print_table(findings)
    else:
        for finding in findings:
            click.echo(f"{finding.verdict.value:9}  {finding.check:19}  {finding.what}")
            if finding.advice:
                click.echo(f"{'':9}  {'':19}  -> {finding.advice}")
        click.echo(_summary(findings))
    if _count(findings, Verdict.PROBLEM):
        context.exit(FAILED)


def _document(table: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the findings as a JSON document."""
    checks = [
        {
            "check": finding.check,
            "verdict": finding.verdict.value,
            "what": finding.what,
            "advice": finding.advice or None,
        }
        for finding in findings
    ]
    problems = _count(findings, Verdict.PROBLEM)
    return {"table": table, "problems": problems, "checks": checks}


def _print_table(findings: Sequence[Finding]) -> None:
    """Print the findings as a table that fits the terminal."""
    from rich.console import Console  # noqa: PLC0415 - only for a terminal
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    grid = Table.grid(padding=(0, 2))
    for finding in findings:
        what = Text(finding.what)
        if finding.advice:
            what.append(f"\n-> {finding.advice}", "bold")
        verdict = Text(finding.verdict.value, _STYLES[finding.verdict])
        grid.add_row(verdict, Text(finding.check, no_wrap=True), what)
    console = Console(highlight=False)
    console.print(grid)
    console.print(Text(_summary(findings)))


def _count(findings: Sequence[Finding], verdict: Verdict) -> int:
    return sum(finding.verdict is verdict for finding in findings)


def _summary(findings: Sequence[Finding]) -> str:
    """Return a line with the numbers of problems, warnings and unchecked items."""
    problems, warnings = _count(findings, Verdict.PROBLEM), _count(findings, Verdict.WARNING)
    unsure = _count(findings, Verdict.UNCHECKED)
    text = f"{problems or 'no'} problem{'' if problems == 1 else 's'}"
    text += f", {warnings or 'no'} warning{'' if warnings == 1 else 's'}"
    return text + (f", {unsure} unchecked" if unsure else "")


def examine(model: type[LockItem], key: str) -> list[Finding]:
    """Check everything, and return the findings. Changes nothing, and ends within seconds.

    Args:
        model: The lock table.
        key: Key with which permissions are tried; its row need not exist.
    """
    asker = Asker(model)
    described = asker.ask("DescribeTable", {"TableName": asker.table})
    if not described.answered:
        why = "DynamoDB was not reached"
        rest = [unchecked(check, why) for check in ("clock", *_DEPENDENT)]
        return [*_reached(asker, described), _local_clock(), *rest]
    if described.code in _NOT_WHO_YOU_SAY:
        rest = [unchecked(check, "the credentials are not valid") for check in _DEPENDENT]
    elif described.code == MISSING:
        what = f"there is no {asker.table} in {asker.store.connection.where}"
        rest = [problem("table", what, IF_NO_TABLE)]
        rest += [unchecked(check, "there is no table") for check in _DEPENDENT[1:]]
    else:
        rest = list(_of_the_table(model, asker, described))
        if any(each.check == "keys" and each.verdict is Verdict.PROBLEM for each in rest):
            rest.append(unchecked("permissions", "the table has other keys"))
        else:
            rest += _permissions(model, asker, key)
    # After the other checks, because each answer narrows the bounds of the clock's offset.
    return [*_reached(asker, described), _clocks(asker), _local_clock(), _hints(asker), *rest]


def _reached(asker: Asker, described: Reply) -> Iterator[Finding]:
    """Judge credentials and endpoint by the reply to the first request."""
    if described.code == UNSENT:
        advice = "check --region, --profile and --endpoint-url, and AWS's variables and files"
        yield problem("access", described.described, advice)
        return
    method = credentials_of(asker.client).method
    found = "credentials given by the model" if method == "explicit" else f"credentials: {method}"
    if described.code in _NOT_WHO_YOU_SAY:
        yield problem("access", f"{found}, but {described.described}", "renew them, or use others")
    else:
        yield ok("access", found)
    where = f"{asker.store.connection.url} ({asker.store.connection.region})"
    if described.answered:
        fastest = 1000 * (asker.fastest or 0.0)
        yield ok("endpoint", f"{where} answers within {fastest:.0f} ms")
    else:
        advice = "check the network, VPC endpoints, proxies and --endpoint-url"
        yield problem("endpoint", f"{where}: {described.described}", advice)


def _clocks(asker: Asker) -> Finding:
    """Judge the wall clock of this machine, compared with that of DynamoDB, and DynamoDB's clocks, compared with each other."""
    if asker.server.contradictions:
        what = f"answers contradict each other about the time by {asker.server.behind:.2f} s"
        advice = (
            f"if clocks of DynamoDB's differ by more than {HOST_SKEW} s, a lock may have two holders; "
            "other causes: a local clock that runs wrong, a proxy that writes its own Date"
        )
        return problem("clock", what, advice)
    if asker.offset is None:
        advice = "without dates a waiter must watch a dead holder's lock for a whole lease before it takes over"
        return unchecked("clock", "no answer had a date", advice)
    low, high = asker.offset
    if low <= 0.0 <= high:
        most = math.ceil(10 * max(-low, high)) / 10
        return ok("clock", f"within {most:.1f} s of DynamoDB's; locks do not depend on it")
    # The bounds exclude zero, so the clocks surely differ: by the middle of the bounds, more or less the margin.
    offset, margin = abs(low + high) / 2, (high - low) / 2
    side = "ahead of" if low > 0.0 else "behind"
    what = (
        f"{offset:.1f} s {side} DynamoDB's, give or take {margin:.1f} s; "
        "locks do not depend on it, signatures do"
    )
    if offset - margin > NOTABLE_OFFSET:
        advice = f"set the clock: AWS refuses signatures that are {SIGNED_FOR} s off"
        return warning("clock", what, advice)
    return ok("clock", what)


def _local_clock() -> Finding:
    """Judge the clock by which leases run in this process."""
    if _clock._SUSPEND_AWARE is None:
        what = "does not count suspension: a holder that was suspended may believe for that long after its lease"
        return warning("local clock", what, "hold no locks where machines are suspended")
    return ok("local clock", "counts suspension")


_SENDS = """import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
socket.socket(family, socket.SOCK_DGRAM).sendto(b"hint", (sys.argv[1], int(sys.argv[2])))"""
"""What another process runs to call this one."""


def _hints(asker: Asker) -> Finding:
    """Try whether a datagram of another process of this host arrives where this one would be called."""
    try:
        local = local_address(asker.client.meta.endpoint_url)
    except OSError as error:
        return unchecked("hints", f"the endpoint's address is not known: {one_line(error)}")
    try:
        with socket.socket(family_of(local), socket.SOCK_DGRAM) as opened:
            opened.bind((local, 0))
            opened.settimeout(_WAITS_FOR_HINT)
            port = str(opened.getsockname()[1])
            subprocess.run([sys.executable, "-c", _SENDS, local, port], check=True, timeout=10)
            opened.recv(4)
    except (OSError, subprocess.SubprocessError) as error:
        what = f"a datagram to this process did not arrive: {one_line(error)}"
        return warning("hints", what, "waiters with fair=Hints() poll; Hints(address=...) may help")
    return ok("hints", f"with fair=Hints() a waiter of this host is called at {local}")


def _of_the_table(model: type[LockItem], asker: Asker, described: Reply) -> Iterator[Finding]:
    """Judge the table, its TTL and its rows."""
    name = asker.table
    table = described.data.get("Table", {})
    if table:
        yield from table_findings(model, asker.client.meta.region_name, table)
    else:
        yield unchecked("table", described.described)
    yield ttl_finding(model, table, asker.ask("DescribeTimeToLive", {"TableName": name}))
    yield from rows_seen(model, asker.ask("Scan", {"TableName": name, "Limit": SAMPLE}))


def _permissions(model: type[LockItem], asker: Asker, key: str) -> Iterator[Finding]:
    """Try the permissions with a key, if the model can have it."""
    try:
        probes = Probes(model, asker, key)
    except InvalidKeyError as error:
        advice = "give the range key a default, or --key a key that locks can have"
        yield problem("permissions", str(error), advice)
        return
    yield from probes.findings()


def table_findings(model: type[LockItem], region: str, table: dict[str, Any]) -> Iterator[Finding]:
    """Judge a table by its description.

    Args:
        model: The lock table.
        region: Region that has described the table.
        table: Description of the table, as DescribeTable returns it.
    """
    yield _status(table)
    yield _keys(model, table)
    yield _billing(table)
    yield _protection(table)
    yield _replicas(region, table)
    yield _stream(table)


def _status(table: dict[str, Any]) -> Finding:
    name, status = table["TableName"], table["TableStatus"]
    if status in ("ACTIVE", "UPDATING"):
        return ok("table", f"{name} is {status}")
    advice = f"aws dynamodb describe-table --table-name {name} says more; locks need it ACTIVE"
    return problem("table", f"{name} is {status}", advice)


def _keys(model: type[LockItem], table: dict[str, Any]) -> Finding:
    needed, found = keys_needed(model), keys_of(table)
    if needed == found:
        return ok("keys", found)
    advice = "give a --model with these names, or another --table"
    return problem("keys", f"the table has {found}, {model.__name__} needs {needed}", advice)


def _billing(table: dict[str, Any]) -> Finding:
    if table.get("BillingModeSummary", {}).get("BillingMode") == "PAY_PER_REQUEST":
        limits = table.get("OnDemandThroughput", {})
        most = (limits.get("MaxReadRequestUnits", -1), limits.get("MaxWriteRequestUnits", -1))
        if any(0 <= units < LOW_CAPACITY for units in most):
            what = f"on demand, but at most {most[0]} reads and {most[1]} writes a second (-1: any number)"
            return warning("billing", what, f"raise the limits: {_THROTTLED}")
        return ok("billing", "on demand")
    provisioned = table["ProvisionedThroughput"]
    reads, writes = provisioned["ReadCapacityUnits"], provisioned["WriteCapacityUnits"]
    what = f"{reads} read and {writes} write capacity units"
    if min(reads, writes) < LOW_CAPACITY:
        return warning("billing", what, f"raise them, or bill on demand: {_THROTTLED}")
    return ok("billing", what)


def _protection(table: dict[str, Any]) -> Finding:
    if table.get("DeletionProtectionEnabled"):
        return ok("deletion protection", "on")
    name = table["TableName"]
    advice = f"aws dynamodb update-table --table-name {name} --deletion-protection-enabled"
    what = "off: deleting the table ends every lock in it"
    return warning("deletion protection", what, advice)


def _replicas(region: str, table: dict[str, Any]) -> Finding:
    version = table.get("GlobalTableVersion")
    others = sorted({each["RegionName"] for each in table.get("Replicas", ())} - {region})
    places = ", ".join(others) or "other regions"
    if _is_strong(table):
        what = (
            f"a global table with {places}, strongly consistent: DynamoDB has neither transactions (for_keys, "
            "transaction, lock_model) nor TTL there, and this library has not been tried on one"
        )
        return warning("replicas", what, _MULTI_REGION)
    if others or version == "2017.11.29":
        what = f"a global table with {places}, eventually consistent: two regions can each grant the same lock"
        advice = (
            f"lock each key in one region only, or use a table without replicas; {_MULTI_REGION}"
        )
        return problem("replicas", what, advice)
    return ok("replicas", "none: the table is in one region")


def _is_strong(table: dict[str, Any]) -> bool:
    return table.get("MultiRegionConsistency") == "STRONG"


def _stream(table: dict[str, Any]) -> Finding:
    stream = table.get("StreamSpecification", {})
    if stream.get("StreamEnabled"):
        view = stream.get("StreamViewType")
        return ok("stream", f"on ({view}): each write of a lock, including renewals, is a record")
    return ok("stream", "off")


def ttl_finding(model: type[LockItem], table: dict[str, Any], reply: Reply) -> Finding:
    """Judge a table's TTL.

    Args:
        model: The lock table.
        table: Description of the table, as DescribeTable returns it; empty if that failed.
        reply: Reply to DescribeTimeToLive.
    """
    name = model.Meta.table_name
    attribute = model.ttl.attr_name
    if reply.code is not None:
        return unchecked("ttl", reply.described)
    found = reply.data["TimeToLiveDescription"]
    status, on = found["TimeToLiveStatus"], found.get("AttributeName", attribute)
    if status in ("DISABLED", "DISABLING"):
        what = f"{status}: rows of unused keys stay for ever"
        advice = "pynamodb-mutex create-table enables it, also on an existing table"
        if _is_strong(table):
            advice = "DynamoDB has no TTL on such a table: delete old rows yourself"
        return warning("ttl", what, advice)
    if on != attribute:
        what = f"{status} on {on!r}, not on {attribute!r}"
        advice = (
            f"aws dynamodb update-time-to-live --table-name {name} "
            f"--time-to-live-specification Enabled=false,AttributeName={on}, and enable the other"
        )
        return problem("ttl", what, advice)
    return ok("ttl", f"{status} on {attribute!r}")


def rows_seen(model: type[LockItem], reply: Reply) -> Iterator[Finding]:
    """Judge rows by the reply to a Scan: find those that other libraries use, and invalid ones of this library."""
    if reply.code is not None:
        yield unchecked("rows", reply.described)
        return
    reader = _Reader(model)
    items = reply.data["Items"]
    more = "LastEvaluatedKey" in reply.data
    seen = f"{'the first ' if more else ''}{len(items)} row{'' if len(items) == 1 else 's'}"
    broken: dict[str, list[RawItem]] = {}
    others: dict[str, list[RawItem]] = {}
    shared: dict[str, list[RawItem]] = {}
    for item in items:
        library = next((name for name, marks in _OTHERS.items() if marks <= set(item)), None)
        ours = reader.is_ours(item)
        if library is not None:
            (shared if ours else others).setdefault(library, []).append(item)
        elif ours:
            for fault in reader.faults(item):
                broken.setdefault(fault, []).append(item)
    locks = sum(map(reader.is_ours, items))
    if not (broken or others or shared):
        yield ok("rows", f"{seen} read: {locks} of locks, nothing wrong")
    for library, found in shared.items():
        what = f"{reader.count(found)} locked by {library} too: the two libraries do not exclude each other"
        yield problem(
            "rows", what, "use one library per key; delete these rows when neither uses them"
        )
    for library, found in others.items():
        what = f"{reader.count(found)} in the format of {library}: the two libraries do not see each other's locks"
        advice = "use separate tables; delete these rows if nothing writes them any more"
        yield warning("rows", what, advice)
    for fault, found in broken.items():
        what = f"{reader.count(found)} {fault}"
        yield warning(
            "rows",
            what,
            "find the program that writes them; pynamodb-mutex show KEY prints such a row",
        )


class _Reader:
    """Reads rows as DynamoDB returns them, by the stored names of a model's attributes."""

    def __init__(self, model: type[LockItem]) -> None:
        self._fault = current_process().store(model).layout.fault
        self._key = model.key.attr_name
        self._token = model.token.attr_name
        self._version = model.version.attr_name
        self._lease = model.lease.attr_name
        self._ends = model.expires_at.attr_name
        self._ttl = model.ttl.attr_name

    def is_ours(self, item: RawItem) -> bool:
        """Return whether a row has the attributes of a claim, of a tombstone, or of a broken one."""
        return (self._token in item and self._version in item) or self._ends in item

    def faults(self, item: RawItem) -> Iterator[str]:
        """Return the faults of a row of this library: values that it would not have written."""
        fault = self._fault(item)
        if fault is not None:
            yield f"whose {fault}: no mutex acquires such a row"
            return
        claimed = self._ends in item
        if claimed and self._lease not in item:
            yield f"with a claim, but without {self._lease!r}"
        if self._ttl not in item:
            return
        if "N" not in item[self._ttl]:
            yield f"whose {self._ttl!r} is not a number"
            return
        ttl = float(item[self._ttl]["N"])
        if ttl >= YEAR_10000:
            yield f"whose {self._ttl!r} is not in seconds: it is after the year 9999"
        elif claimed and ttl < float(item[self._ends]["N"]):
            yield f"whose {self._ttl!r} is before {self._ends!r}: DynamoDB may delete a lock that is held"

    def count(self, items: list[RawItem]) -> str:
        """Return the number of rows, and their first keys if the table has a key of that name, as text for people."""
        text = f"{len(items)} row{'' if len(items) == 1 else 's'}"
        keys = [shown(*item[self._key].values()) for item in items[:_SHOWN] if self._key in item]
        more = [] if len(items) <= _SHOWN else ["..."]
        return f"{text} ({', '.join(keys + more)})" if keys else text
