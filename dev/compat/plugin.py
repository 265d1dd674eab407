"""A pytest plugin: gives every model that tests define row locks, and writes down what passed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pynamodb.models import MetaModel, Model

if TYPE_CHECKING:
    import pytest

MIXIN, LOCK_MODEL = FORMS = "mixin", "lock_model"
"""The forms of row locks: the claim is in the row itself, or in the lock table."""

_FAILED = "failed"
_outcomes: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--locks", choices=FORMS, help="where every model keeps its row locks")
    parser.addoption("--outcomes", type=Path, help="file to write the outcome of each test to")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.locks:
        # before a test module is imported, and with it its models are made
        put_mixin_on_models("tests", in_lock_table=config.option.locks == LOCK_MODEL)


def put_mixin_on_models(package: str, *, in_lock_table: bool) -> None:
    """Let ``class X(Model)`` mean ``class X(RowLockMixin, Model)`` in the modules of a package.

    Args:
        package: The package.
        in_lock_table: Whether to add ``lock_model = LockItem`` too.
    """
    from pynamodb_mutex import LockItem, RowLockMixin

    plain_new = MetaModel.__new__

    def new(
        cls: Any, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **more: Any
    ) -> Any:
        if namespace.get("__module__", "").partition(".")[0] == package and Model in bases:
            at = bases.index(Model)
            bases = (*bases[:at], RowLockMixin, *bases[at:])
            if in_lock_table:
                namespace["lock_model"] = LockItem
        return plain_new(cls, name, bases, namespace, **more)

    MetaModel.__new__ = new  # type: ignore[assignment]  # on purpose


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # set-up, call and teardown each have one
    if _outcomes.get(report.nodeid) != _FAILED:
        _outcomes[report.nodeid] = report.outcome


def pytest_sessionfinish(session: pytest.Session) -> None:
    path: Path | None = session.config.option.outcomes
    if path is not None:
        path.write_text(json.dumps(_outcomes))
