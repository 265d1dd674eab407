"""The fixture `proxy` of the doctor's tests."""

import pytest
from proxy import fault_proxy


@pytest.fixture
def proxy(engine):
    """A proxy to each engine in turn."""
    with fault_proxy(engine) as proxy:
        yield proxy
