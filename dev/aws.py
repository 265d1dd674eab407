"""Tries the library on DynamoDB itself, for somebody with an account: ``make aws``. It takes ten minutes at most, and cents.

It sends requests of simulated schedules and compares the answers, as `dev.simulation.replay` does with DynamoDB Local; makes a
trial as `dev.chaos` does; and compares the ``Date`` of many answers, to see how far DynamoDB's hosts disagree. It asks before
it begins, uses tables of its own with a random name, and deletes them whatever happens. Its output is to be pasted into an issue.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import count
from typing import Any

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.httpsession import URLLib3Session
from pynamodb.exceptions import PynamoDBException

import pynamodb_mutex
from dev.chaos.__main__ import parsed, trial
from dev.faultproxy import Exchange, FaultProxy, Reply
from dev.simulation.models import create_tables
from dev.simulation.recording import Applied, recorded
from dev.simulation.replay import (
    ABOUT_TABLES,
    READS,
    client_of,
    compared,
    is_any_answer_right,
    requests_of,
)
from dev.simulation.schedule import KINDS, Size
from dev.simulation.table import Tables
from pynamodb_mutex.testing import Engine, use
from pynamodb_mutex.testing.engines import when_parent_ends

PREFIX = "pynamodb-mutex-aws-"
MOST_SECONDS = 600
ANSWERS, ON_ONE_CONNECTION, CONNECTIONS = 10_000, 25, 16
"""Answers whose Date is compared, how many come on one connection, and how many connections are open at a time."""

LATE_SECONDS = 5.0
"""Seconds after which a read that need not be consistent must show what was written before it."""

THROTTLED = {
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
}
MISSING = "ResourceNotFoundException"
UNKNOWN = {"InternalServerError", "NoAnswer", "ServiceUnavailable"}
"""Errors after which a write may have been applied, and not."""

UNITS = {"TransactWriteItems": 8, "BatchGetItem": 4}
"""Request units of an operation, at most; the others take one. Requests about tables are free."""

WRITES = {"DeleteItem", "PutItem", "TransactWriteItems", "UpdateItem"}
DOLLARS = {True: 0.625e-6, False: 0.125e-6}
"""Price of a unit of a write, and of a read: on demand, us-east-1, November 2024."""

EXPECTED = {"TransactWriteItems": 3_000, "UpdateItem": 20_000, "GetItem": 40_000}
"""Requests for the estimate: what a run sends to DynamoDB Local, doubled."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunError(Exception):
    """The run cannot go on; the message is for the user."""


class Aws:
    """DynamoDB in one region, for the credentials that botocore finds.

    Attributes:
        client: A client of botocore.
        requests: Number of requests, by operation.
        errors: Number of errors in answers, by their code.
    """

    def __init__(self, endpoint: str | None) -> None:
        session = botocore.session.get_session()
        self.region = session.get_config_variable("region") or os.environ.get("AWS_REGION")
        self._credentials = session.get_credentials()
        if self._credentials is None:
            names = "AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            raise RunError(f"there are no credentials: set {names}")
        if self.region is None:
            raise RunError("there is no region: set AWS_REGION")
        self.client = session.create_client("dynamodb", self.region, endpoint_url=endpoint)
        self.requests, self.errors = Counter[str](), Counter[str]()

    def send(self, http: URLLib3Session, target: str, raw: bytes) -> AWSResponse:
        """Sign a request, send it once, and count it."""
        kind = "application/x-amz-json-1.0"
        headers = {"X-Amz-Target": target, "Content-Type": kind, "Accept-Encoding": "identity"}
        request = AWSRequest("POST", self.client.meta.endpoint_url, headers, raw)
        signer = SigV4Auth(self._credentials.get_frozen_credentials(), "dynamodb", self.region)
        signer.add_auth(request)
        self.requests[target.rpartition(".")[2]] += 1
        return http.send(request.prepare())


def http_session(connections: int) -> URLLib3Session:
    """Return what sends requests, on so many connections at most."""
    # at once, as botocore's clients do: otherwise a body may wait for the acknowledgement of its head
    at_once = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    return URLLib3Session(max_pool_connections=connections, timeout=10, socket_options=at_once)


class Gateway(FaultProxy):
    """An endpoint on this machine that signs requests anew, and passes them on to DynamoDB.

    The trial's proxies and clients use it as they use an engine. They need no credentials: a signature is for one host, and
    would not outlive their proxies.
    """

    def __init__(self, aws: Aws) -> None:
        super().__init__(aws.client.meta.endpoint_url)
        self._aws, self._http = aws, http_session(50)

    def forward(self, exchange: Exchange, fault: str | None) -> Reply:
        """Pass a request on; several at a time, for nobody reads the order of a log here."""
        try:
            found = self._aws.send(self._http, exchange.headers["X-Amz-Target"], exchange.raw)
            reply = Reply(found.status_code, found.content, (*found.headers.items(),))
        except HTTPClientError as error:
            content = json.dumps({"__type": "#NoAnswer", "message": str(error)})
            reply = Reply(503, content.encode())
        if reply.error:
            self._aws.errors[reply.error] += 1
        return reply


# -- before and after ------------------------------------------------------------------------------


def names_of(run: str) -> list[str]:
    """Return the names of all tables that a run creates."""
    return [f"{run}-{name}" for name in (*created_tables(), "trial-locks", "trial-rows")]


def created_tables() -> dict[str, dict[str, Any]]:
    """Return the parameters of CreateTable of the tables of schedules, by name."""
    with recorded() as requests:
        create_tables(Tables())
    created = [each.kwargs for each in requests if each.operation == "CreateTable"]
    return {each["TableName"]: each for each in created}


def check_permissions(aws: Aws, run: str) -> None:
    """Ask for a table that does not exist: AWS checks the permission first. So nothing is created that cannot be deleted.

    Raises:
        RunError: With all permissions that are missing, but for CreateTable, which cannot be tried.
    """
    key, absent = {"k": {"S": "-"}}, {"TableName": f"{run}-absent"}
    keyed, values = {**absent, "Key": key}, {"ExpressionAttributeValues": {":k": key["k"]}}
    check = {**keyed, **values, "ConditionExpression": "k = :k"}
    ttl = {"Enabled": True, "AttributeName": "ttl"}
    probes: dict[str, dict[str, Any]] = {
        **dict.fromkeys(("GetItem", "UpdateItem", "DeleteItem"), keyed),
        **dict.fromkeys(("Scan", "DescribeTable", "DescribeTimeToLive", "DeleteTable"), absent),
        "PutItem": {**absent, "Item": key},
        "Query": {**absent, **values, "KeyConditionExpression": "k = :k"},
        "BatchGetItem": {"RequestItems": {absent["TableName"]: {"Keys": [key]}}},
        "ConditionCheckItem": {"TransactItems": [{"ConditionCheck": check}]},
        "UpdateTimeToLive": {**absent, "TimeToLiveSpecification": ttl},
    }
    missing = []
    for permission, kwargs in probes.items():
        operation = permission.replace("ConditionCheckItem", "TransactWriteItems")
        try:
            aws.client._make_api_call(operation, kwargs)
        except ClientError as error:
            if error.response["Error"]["Code"] == "AccessDeniedException":
                missing.append(f"dynamodb:{permission}")
    if missing:
        raise RunError(f"missing permissions on table/{PREFIX}*: {', '.join(missing)}")


def delete(aws: Aws, run: str) -> None:
    """Delete the tables of a run, and wait until they are gone.

    Twice none must be found: suppose the run was interrupted while it asked for a table, and AWS has not heard of it yet.
    """
    names, found_none = names_of(run), 0
    for _ in range(180):
        left = [name for name in names if not _is_gone(aws, name)]
        found_none = 0 if left else found_none + 1
        if found_none == 2:
            print("all tables are deleted")
            return
        time.sleep(1)
    raise RunError(f"NOT DELETED after three minutes: {', '.join(left)}")


def _is_gone(aws: Aws, name: str) -> bool:
    try:
        aws.client.delete_table(TableName=name)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        # others: it is being created or deleted, or many are
        if code not in {MISSING, "ResourceInUseException", "LimitExceededException"}:
            raise
        return code == MISSING
    return False


def supervise(command: list[str]) -> int:
    """Run a command until it ends, or somebody interrupts or ends this process, or the time is over; return its exit code.

    The run has a process of its own, which is killed with its clients. Suppose it had not: the exception that a signal
    raises may come inside a finalizer, which loses it, and the run would go on.

    Raises:
        KeyboardInterrupt: If it was stopped; from then on this process cannot be interrupted.
    """
    for each in SIGNALS:
        signal.signal(each, signal.default_int_handler)
    child = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        return child.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        raise KeyboardInterrupt from None
    finally:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# -- the run ---------------------------------------------------------------------------------------


def compare_answers(aws: Aws, engine: Engine, run: str, seconds: float) -> str:
    """Replay schedules of each kind, as many as fit into a time.

    Raises:
        RunError: If an answer differs from the simulated one.
    """
    client, until = client_of(engine.endpoint_url), time.monotonic() + seconds
    found = Counter[str]()
    for turn in count():
        seed, kind = divmod(turn, len(KINDS))
        schedule = uuid.uuid4().hex
        for applied in requests_of(seed, Size.of(seed, KINDS[kind])):
            if time.monotonic() > until:
                shown = ", ".join(f"{name} {number:,}" for name, number in found.most_common())
                return f"requests answered as simulated: {found.total():,} ({shown})"
            if applied.operation in ABOUT_TABLES or is_any_answer_right(applied):
                continue
            outcome = _compared(client, applied, f"{run}-", schedule)
            found[outcome] += 1
            if outcome == "unknown":
                break  # what follows depends on it
        _empty(aws, f"{run}-")
    raise AssertionError


def _compared(client: Any, applied: Applied, prefix: str, schedule: str) -> str:
    """Compare an answer, and send a late or throttled request again; return the operation, or what became of it else."""
    outcome, until = applied.operation, time.monotonic() + LATE_SECONDS
    may_be_late = outcome in READS and "'ConsistentRead': True" not in repr(applied.kwargs)
    while True:
        found, wanted = compared(client, applied, prefix, schedule)
        if found == wanted:
            return outcome
        code = found.get("Error", {}).get("Code")
        if code in UNKNOWN:
            return "unknown"
        if not (may_be_late or code in THROTTLED) or time.monotonic() > until:
            raise RunError(f"{applied.operation} {applied.kwargs}: answered {found}, not {wanted}")
        outcome = "throttled" if code in THROTTLED else "late read"
        time.sleep(0.05)


def _empty(aws: Aws, prefix: str) -> None:
    """Delete the rows of the tables of schedules."""
    for name, table in created_tables().items():
        place = {"TableName": prefix + name}
        keys = [each["AttributeName"] for each in table["KeySchema"]]
        for row in aws.client.scan(**place, ConsistentRead=True)["Items"]:
            aws.client.delete_item(**place, Key={key: row[key] for key in keys})


def compare_dates(aws: Aws, run: str, seconds: float) -> str:
    """Read many times, and say how far the answers contradict each other about the time.

    An answer's ``Date`` is that of its host's clock at some instant between sending and receiving, cut to whole seconds. So each
    bounds how far its host is ahead of the local clock. If a lower bound is above an upper one, two hosts differ.
    """
    until = time.monotonic() + seconds
    raw = json.dumps({"TableName": f"{run}-locks", "Key": {"key": {"S": "nobody"}}}).encode()

    def read(_: int) -> list[tuple[float, float]]:
        http, bounds = http_session(1), []
        with suppress(HTTPClientError):
            while len(bounds) < ON_ONE_CONNECTION and time.monotonic() < until:
                sent = time.monotonic()
                answer = aws.send(http, "DynamoDB_20120810.GetItem", raw)
                received = time.monotonic()
                date = parsedate_to_datetime(answer.headers["Date"]).timestamp()
                bounds.append((date - received, date + 1 - sent))
        http.close()
        return bounds

    pool = ThreadPoolExecutor(CONNECTIONS)
    try:
        parts = [*pool.map(read, range(ANSWERS // ON_ONE_CONNECTION))]
    finally:
        pool.shutdown(cancel_futures=True)
    found = [each for part in parts for each in part]
    apart = max(lower for lower, _ in found) - min(upper for _, upper in found)
    said = f"none contradicts another (by {-apart:.3f} s)"
    if apart > 0:
        said = f"hosts disagree by {apart:.3f} s at least"
    return f"Date of {len(found):,} answers: {said}; the library allows for 0.1 s"


def cents(requests: dict[str, int]) -> float:
    """Return the price of requests, at most."""
    units = {name: UNITS.get(name, 1) * number for name, number in requests.items()}
    return 100 * sum(number * DOLLARS[name in WRITES] for name, number in units.items())


def make_run(aws: Aws, run: str, seconds: float) -> int:
    """Create the tables, and do everything; return 1 if something is wrong."""
    for name, table in created_tables().items():
        aws.client.create_table(**{**table, "TableName": f"{run}-{name}"})
    for name in created_tables():
        exists = aws.client.get_waiter("table_exists")
        exists.wait(TableName=f"{run}-{name}", WaiterConfig={"Delay": 1, "MaxAttempts": 120})
    with Gateway(aws).serving() as gateway, use(engine := Engine("aws", gateway.url)):
        print(compare_answers(aws, engine, run, seconds), flush=True)
        options = parsed(["--clients=3", "--lease=3", f"--seconds={seconds}"])
        wrong = trial(options, engine, f"{run}-trial")
    print(compare_dates(aws, run, seconds))
    throttled = sum(aws.errors[code] for code in THROTTLED)
    print(f"throttled: {throttled:,}; price: {cents(aws.requests):.1f} cents at most")
    if denied := aws.errors["AccessDeniedException"]:
        raise RunError(f"{denied:,} requests were refused for a permission that is missing")
    return wrong


def main() -> int:
    """Run the command line; return 1 if something is wrong, or not begun."""
    parser = argparse.ArgumentParser(prog="make aws", description=__doc__)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each of the three parts")
    parser.add_argument("--endpoint-url", help="for a rehearsal")
    parser.add_argument("--delete", metavar="NAME", help="delete the tables of a killed run")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    options = parser.parse_args()
    run = options.delete or options.within or PREFIX + uuid.uuid4().hex[:8]
    try:
        if not run.startswith(PREFIX):
            raise RunError(f"runs are called {PREFIX}...")
        aws = Aws(options.endpoint_url)
        if options.delete:
            delete(aws, run)
            return 0
        if options.within:
            when_parent_ends(partial(os.killpg, 0, signal.SIGKILL))
            return make_run(aws, run, options.seconds)
        flag = f" --endpoint-url={options.endpoint_url}" if options.endpoint_url else ""
        again = f"AWS_REGION={aws.region} make aws ARGS='--delete {run}{flag}'"
        print(f"if this is killed: {again}", flush=True)
        print(f"{len(names_of(run))} tables in {aws.region}, ten minutes at most,", end=" ")
        print(f"about {cents(EXPECTED):.0f} cents by the prices of us-east-1")
        if not options.yes and input("Begin? [y/N] ").strip().lower() != "y":
            return 1
        versions = f"{pynamodb_mutex.__version__}, botocore {botocore.__version__}"
        today = time.strftime("%Y-%m-%d")
        print(f"pynamodb-mutex {versions}, Python {platform.python_version()}, {today}", flush=True)
        check_permissions(aws, run)
        try:
            command = [sys.executable, "-m", "dev.aws", *sys.argv[1:], f"--within={run}"]
            return supervise(command)
        finally:
            delete(aws, run)
    except (RunError, BotoCoreError, ClientError, PynamoDBException) as error:
        print(f"FAILED: {error}", file=sys.stderr)
    except (KeyboardInterrupt, EOFError):
        print("STOPPED", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
