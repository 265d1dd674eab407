"""Tests that are coroutine functions run on an event loop of the test's engine."""

import inspect

import pytest
from event_loop import run

__all__ = ["run"]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a coroutine function, and leave other tests to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    pyfuncitem._request.getfixturevalue("run")(pyfuncitem.obj(**arguments))
    return True
