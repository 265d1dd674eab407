"""``make aws``, in front of DynamoDB Local as if that were AWS."""

import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack

import boto3
import pytest

from dev.faultproxy import deny, fault_proxy
from pynamodb_mutex.testing import environment

PERMISSIONS = {
    **{
        f"dynamodb:{name}": name
        for name in (
            *("GetItem", "UpdateItem", "DeleteItem", "PutItem", "Query", "Scan", "BatchGetItem"),
            *("DescribeTable", "DescribeTimeToLive", "UpdateTimeToLive", "DeleteTable"),
        )
    },
    "dynamodb:ConditionCheckItem": "TransactWriteItems",
    "the CreateTable operation": "CreateTable",
}
"""The operations that each permission is for, by what the message of a missing one says."""


def started(engine, url, *arguments, **settings):
    """Start the command as somebody with these credentials, by default some."""
    env = {**environment(engine), **settings}
    del env["AWS_ENDPOINT_URL"], env["AWS_ENDPOINT_URL_DYNAMODB"]
    env = {name: value for name, value in env.items() if value}
    command = [sys.executable, "-m", "dev.aws", f"--endpoint-url={url}", *arguments]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=env, text=True, **pipes)


def tables_of(engine, run):
    client = boto3.client(
        "dynamodb", endpoint_url=engine.endpoint_url, region_name="us-east-1",
        aws_access_key_id="testing", aws_secret_access_key="testing",
    )  # fmt: skip
    pages = client.get_paginator("list_tables").paginate()
    return [name for page in pages for name in page["TableNames"] if name.startswith(run)]


def run_of(said):
    """Return the name of a run, of which its first line says how to delete it."""
    return re.match(r"if this is killed: .* make aws ARGS='--delete (\S+)", said)[1]


def read_until(process, wanted):
    """Read the output until a line that begins so; return all of it."""
    lines = []
    while not lines or not lines[-1].startswith(wanted):
        lines.append(process.stdout.readline())
        assert lines[-1], process.stderr.read()
    return lines


@pytest.mark.local
def test_nothing_begins_without_credentials_a_region_or_a_yes(local_engine):
    url = local_engine.endpoint_url
    for settings, said in (
        ({"AWS_ACCESS_KEY_ID": ""}, "there are no credentials: set AWS_PROFILE"),
        ({"AWS_REGION": "", "AWS_DEFAULT_REGION": ""}, "there is no region: set AWS_REGION"),
    ):
        process = started(local_engine, url, **settings)
        out, err = process.communicate("y\n")
        assert (process.returncode, out, said in err) == (1, "", True)
    process = started(local_engine, url)
    out, err = process.communicate("no\n")
    assert (process.returncode, err) == (1, "")
    assert "10 tables in us-east-1, ten minutes at most, about " in out
    assert tables_of(local_engine, run_of(out)) == []


@pytest.mark.local
def test_only_tables_of_a_run_are_deleted(local_engine):
    process = started(local_engine, local_engine.endpoint_url, "--delete=production")
    assert process.communicate() == ("", "FAILED: runs are called pynamodb-mutex-aws-...\n")


@pytest.mark.local
def test_each_missing_permission_is_named_and_nothing_is_left(local_engine):
    with ExitStack() as stack:
        runs = {}
        for said, operation in PERMISSIONS.items():
            proxy = stack.enter_context(fault_proxy(local_engine))
            proxy.always(deny(), op=operation)
            runs[said] = proxy, started(local_engine, proxy.url, "--yes", "--seconds=1")
        for said, (proxy, process) in runs.items():
            out, err = process.communicate()
            assert process.returncode == 1
            assert err.startswith("FAILED: ")
            assert said in err
            created = [seen.applied for seen in proxy.of("CreateTable")]
            assert created == [False] * ("CreateTable" in said), said
            assert tables_of(local_engine, run_of(out)) == []


@pytest.mark.lengthy
@pytest.mark.local
def test_run_that_is_interrupted_killed_or_left_alone_leaves_no_table(local_engine):
    url = local_engine.endpoint_url
    runs = [started(local_engine, url, "--yes", "--seconds=3") for _ in range(3)]
    said = [read_until(run, "requests answered as simulated: ") for run in runs]
    names = [run_of(lines[0]) for lines in said]
    assert all(tables_of(local_engine, name) for name in names)
    runs[0].send_signal(signal.SIGINT)
    runs[1].kill()
    out, err = runs[0].communicate()
    assert (runs[0].returncode, err) == (1, "STOPPED\n")
    assert tables_of(local_engine, names[0]) == []

    runs[1].communicate()
    assert tables_of(local_engine, names[1])
    (again,) = re.findall("ARGS='(.*)'", said[1][0])
    started(local_engine, url, *shlex.split(again)).communicate()
    assert tables_of(local_engine, names[1]) == []

    out, err = runs[2].communicate()
    assert (runs[2].returncode, err) == (0, "")
    for line in ("acquire: ", "Date of ", "throttled: 0; price: 0.", "all tables are deleted"):
        assert line in out
    assert tables_of(local_engine, names[2]) == []
