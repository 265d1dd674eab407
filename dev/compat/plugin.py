"""A pytest plugin: puts the mixin on every model that tests define, and writes down what passed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pynamodb.models import MetaModel, Model

if TYPE_CHECKING:
    import pytest

_FAILED = "failed"
_outcomes: dict[str, str] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--with-mixin", action="store_true", help="put the mixin on every model")
    parser.addoption("--outcomes", type=Path, help="file to write the outcome of each test to")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.with_mixin:
        # before a test module is imported, and with it its models are made
        put_mixin_on_models("tests")


def put_mixin_on_models(package: str) -> None:
    """Let ``class X(Model)`` mean ``class X(RowLockMixin, Model)`` in the modules of a package."""
    from pynamodb_mutex import RowLockMixin

    plain_new = MetaModel.__new__

    def new(
        cls: Any, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **more: Any
    ) -> Any:
        if namespace.get("__module__", "").partition(".")[0] == package and Model in bases:
            at = bases.index(Model)
            bases = (*bases[:at], RowLockMixin, *bases[at:])
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
