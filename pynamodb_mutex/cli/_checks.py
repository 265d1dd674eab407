"""What can be wrong between a process and its lock table. Showing it is `_doctor`'s part."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pynamodb_mutex._runtime import clock as _clock
from pynamodb_mutex.cli._asking import MISSING, UNSENT, Asker, Reply
from pynamodb_mutex.cli._findings import Finding, Verdict, ok, problem, unchecked, warning
from pynamodb_mutex.cli._place import IF_NO_TABLE
from pynamodb_mutex.cli._probes import Probes
from pynamodb_mutex.cli._rows_seen import SAMPLE, rows_seen
from pynamodb_mutex.cli._table_checks import table_findings, ttl_finding
from pynamodb_mutex.exceptions import InvalidKeyError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pynamodb_mutex.models import LockItem

SIGNED_FOR = 300
"""Seconds for which AWS takes a signature that was made by another clock."""

NOTABLE_OFFSET = 60.0
"""Seconds between the clocks that somebody should know of."""

_NOT_WHO_YOU_SAY = {
    "ExpiredTokenException",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationTokenException",
    "UnrecognizedClientException",
}  # fmt: skip
_DEPENDENT = ("table", "ttl", "rows", "permissions")


def examine(model: type[LockItem], key: str) -> list[Finding]:
    """Check everything. Changes nothing, and ends within seconds.

    Args:
        model: The lock table.
        key: With which permissions are tried; its row need not exist.
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
        rest = list(_missing(asker))
    else:
        rest = list(_of_the_table(model, asker, described))
        if _misfit(rest):
            rest.append(unchecked("permissions", "the keys of the table are others"))
        else:
            rest += _permissions(model, asker, key)
    # these after the rest, for they are judged by all the answers
    return [*_reached(asker, described), _clocks(asker), _local_clock(), *rest]


def _reached(asker: Asker, described: Reply) -> Iterator[Finding]:
    """Judge credentials and endpoint by the first answer."""
    if described.code == UNSENT:
        advice = "check --region, --profile and --endpoint-url, and AWS's variables and files"
        yield problem("access", described.told, advice)
        return
    method = asker.client._request_signer._credentials.method
    found = "credentials given by the model" if method == "explicit" else f"credentials: {method}"
    if described.code in _NOT_WHO_YOU_SAY:
        yield problem("access", f"{found}, but {described.told}", "renew them, or use other ones")
    else:
        yield ok("access", found)
    meta = asker.client.meta
    where = f"{meta.endpoint_url} ({meta.region_name})"
    if described.answered:
        fastest = 1000 * (asker.fastest or 0.0)
        yield ok("endpoint", f"{where} answers within {fastest:.0f} ms")
    else:
        advice = "check the network, VPC endpoints and proxies on the way, and --endpoint-url"
        yield problem("endpoint", f"{where}: {described.told}", advice)


def _clocks(asker: Asker) -> Finding:
    if asker.offset is None:
        advice = "without dates a dead holder's lock is free only after another whole lease"
        return unchecked("clock", "no answer had a date", advice)
    low, high = asker.offset
    if low <= 0.0 <= high:
        most = math.ceil(10 * max(-low, high)) / 10
        return ok("clock", f"within {most:.1f} s of DynamoDB's; locks do not depend on it")
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
    if _clock._SUSPEND_AWARE is None:
        what = (
            "does not count suspension: a holder that was suspended believes for as long as it was"
        )
        return warning("local clock", what, "hold no locks where machines are suspended")
    return ok("local clock", "counts suspension")


def _missing(asker: Asker) -> Iterator[Finding]:
    what = f"there is no {asker.table} in {asker.where}"
    yield problem("table", what, IF_NO_TABLE)
    for check in _DEPENDENT[1:]:
        yield unchecked(check, "there is no table")


def _of_the_table(model: type[LockItem], asker: Asker, described: Reply) -> Iterator[Finding]:
    name = asker.table
    table = described.data.get("Table", {})
    if table:
        yield from table_findings(model, asker.client.meta.region_name, table)
    else:
        yield unchecked("table", described.told)
    yield ttl_finding(model, table, asker.ask("DescribeTimeToLive", {"TableName": name}))
    yield from rows_seen(model, asker.ask("Scan", {"TableName": name, "Limit": SAMPLE}))


def _misfit(findings: Sequence[Finding]) -> bool:
    return any(each.check == "keys" and each.verdict is Verdict.PROBLEM for each in findings)


def _permissions(model: type[LockItem], asker: Asker, key: str) -> Iterator[Finding]:
    try:
        probes = Probes(model, asker, key)
    except InvalidKeyError as error:
        advice = "give the range key a default, or --key a key that locks can have"
        yield problem("permissions", str(error), advice)
        return
    yield from probes.findings()
