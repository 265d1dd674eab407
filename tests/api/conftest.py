"""Fixtures of the tests of locks and rows."""

import pytest


@pytest.fixture
def silence(sent):
    """Fail a test that sends a request."""
    yield
    assert sent == []
