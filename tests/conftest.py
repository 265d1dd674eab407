"""Both engines, and a table of its own for each test."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from contextlib import ExitStack
from dataclasses import astuple
from typing import TYPE_CHECKING

import botocore.loaders
import botocore.session
import greenlet
import hypothesis
import pytest
from simulated_engine import simulated_engine

from dev.dynamodb_local import dynamodb_local, why_no_dynamodb_local
from pynamodb_mutex import LockItem, models
from pynamodb_mutex._lock.dynamodb import connection
from pynamodb_mutex.testing import Engine, embedded_dynamodb, use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.workermanage import WorkerController

# Fixtures that several folders need; those of one folder are in its conftest.py.
# A module stands before those that import it: pytest rewrites the assertions of those that it imports itself.
pytest_plugins = [
    "sent_requests",
    "row_models",
    "two_clients",
    "signal_receivers",
    "kinds_of_locks",
    "once_scene",
]

# A suite started in the background of a shell ignores Ctrl-C, under nohup a hangup, and so would all
# that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # not on Windows
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Whose machine it is must not matter: their profile and region, or that their terminal has colours.
for _name in list(os.environ):
    if _name.startswith("AWS_") or _name in {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR"}:
        del os.environ[_name]
os.environ |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"

# Nearly every test has clients of its own. What botocore knows of DynamoDB is read once for all of them:
# anew for each it would take most of the time.
_loader = botocore.loaders.create_loader()
botocore.session.create_loader = lambda *_: _loader

# Coverage gives each thread a greenlet. When a thread has ended, its greenlet is destroyed by a pending call of the main
# thread, and a callback of coverage's runs in that. If another thread ends just then, Python 3.11, which traces the
# callback, goes round in it for ever: the next pending call is due, and cannot be made inside this one. So they stay,
# and greenlet does not look for what refers to them.
greenlet._greenlet.enable_optional_cleanup(False)
_greenlets = []
_bootstrap = threading.Thread._bootstrap_inner


def _keep_greenlet(thread: threading.Thread) -> None:
    _greenlets.append(greenlet.getcurrent())
    _bootstrap(thread)


threading.Thread._bootstrap_inner = _keep_greenlet

# An engine on a busy machine may stall for longer than locks wait for an answer, and what is sent again then is not
# what a test counts.
connection.READ_TIMEOUT = models._TIGHT["read_timeout_seconds"] = 8.0
LockItem.Meta.read_timeout_seconds = 8.0

# No example fails for being slow: the machine may be busy. One that fails can be had again.
hypothesis.settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("unhurried")


# with the real packages, in an environment of their own: make frameworks
collect_ignore = ["frameworks"]

UNMEASURED = ("docs", "simulation", "tools")
"""Folders of tests that coverage is measured without: they take long, and others cover what they cover."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what coverage is measured without, and begin with what may take longest."""
    for item in items:
        if item.path.parent.name in UNMEASURED:
            item.add_marker("unmeasured")
        callspec = getattr(item, "callspec", None)
        if callspec is not None and "local" in callspec.id.split("-"):
            item.add_marker("local")
    items.sort(key=_longest_first)


def _longest_first(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout")
    return 0 if limit is None else -limit.args[0]


@pytest.fixture(scope="session")
def embedded_engine() -> Iterator[Engine]:
    """Moto's DynamoDB in a process of its own."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            # measured, moto would be much slower; tests of the server start it themselves
            patch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
            engine = stack.enter_context(embedded_dynamodb())
        yield engine


_for_workers = pytest.StashKey[Engine]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Give the workers of pytest-xdist one DynamoDB Local: each of its own would compile itself anew."""
    if why_no_dynamodb_local() is not None:
        return
    if _for_workers not in node.config.stash:
        running = ExitStack()
        node.config.add_cleanup(running.close)
        node.config.stash[_for_workers] = running.enter_context(dynamodb_local())
    node.workerinput["local_engine"] = astuple(node.config.stash[_for_workers])


@pytest.fixture(scope="session")
def local_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Amazon's DynamoDB Local."""
    missing = why_no_dynamodb_local()
    if missing is not None:
        if os.environ.get("PYNAMODB_MUTEX_REQUIRE_LOCAL"):
            pytest.fail(f"DynamoDB Local is required here: {missing}")
        pytest.skip(f"left out on DynamoDB Local: {missing}")
    of_all_workers = getattr(request.config, "workerinput", {}).get("local_engine")
    if of_all_workers is not None:
        yield Engine(*of_all_workers)
        return
    with dynamodb_local() as engine:
        yield engine


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give a test of locks the simulated engine, or the real ones if it is marked ``real``."""
    if "engine_name" in metafunc.fixturenames:
        mark = next(metafunc.definition.iter_markers("real"), None)
        names = ["simulated"] if mark is None else mark.args or ("embedded", "local")
        metafunc.parametrize("engine_name", names)


@pytest.fixture
def engine(engine_name: str, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The simulated engine, or for a test that is marked ``real`` each of the real ones, in use."""
    if engine_name == "simulated":
        with simulated_engine() as engine:
            yield engine
    else:
        with use(request.getfixturevalue(f"{engine_name}_engine")) as engine:
            yield engine


@pytest.fixture
def table(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> type[LockItem]:
    """LockItem with a fresh table."""
    name = f"locks-{uuid.uuid4().hex}"
    monkeypatch.setattr(LockItem.Meta, "table_name", name)
    monkeypatch.setenv("PYNAMODB_MUTEX_TABLE", name)  # for the processes a test starts
    LockItem.create_table()
    return LockItem
