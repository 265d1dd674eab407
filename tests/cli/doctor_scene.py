"""What the doctor told, and the tables that its tests show it."""

from __future__ import annotations

import json
import uuid

import boto3
import pytest
from click.testing import CliRunner

from pynamodb_mutex import LockItem
from pynamodb_mutex.cli._app import app

on_one_engine = pytest.mark.real("embedded")
"""For what is made up, or read from rows: an engine has no part in it."""

ON_TABLES = ("table", "ttl", "rows", "permissions")


class Found:
    """What the doctor told."""

    def __init__(self, *args: str, env: dict[str, str | None] | None = None) -> None:
        done = CliRunner().invoke(app, ["doctor", "--json", *args], env=env)
        assert isinstance(done.exception, SystemExit | None), done.exception
        told = json.loads(done.stdout)
        self.all = told["checks"]
        assert done.exit_code == bool(told["problems"]) == bool(self.of("problem"))

    def __getitem__(self, check: str) -> tuple[str, str]:
        """Return verdict and reason."""
        (found,) = self.told(check)
        return found

    def told(self, check: str) -> list[tuple[str, str]]:
        found = [each for each in self.all if each["check"] == check]
        assert all(each["advice"] or each["verdict"] in ("ok", "unchecked") for each in found)
        return [(each["verdict"], each["what"]) for each in found]

    def of(self, verdict: str) -> set[str]:
        return {each["check"] for each in self.all if each["verdict"] == verdict}


def through(proxy, *args: str, **more) -> Found:
    return Found("--endpoint-url", proxy.url, *args, **more)


def create(monkeypatch, key: str = "key", kind: str = "S", **more) -> None:
    """Create a table by hand, and let it be LockItem's."""
    name = f"locks-{uuid.uuid4().hex}"
    monkeypatch.setattr(LockItem.Meta, "table_name", name)
    client = boto3.client("dynamodb")
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": kind}],
        **({"BillingMode": "PAY_PER_REQUEST"} | more),
    )
    client.get_waiter("table_exists").wait(TableName=name)
