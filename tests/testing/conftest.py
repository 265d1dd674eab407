"""The two engines, and a client of each; stores that hold the same rows: both, and the table in memory."""

import boto3
import pytest
from botocore.config import Config
from tables import stores

from pynamodb_mutex.testing import embedded_dynamodb, use

store = stores("memory", "embedded", "local")


@pytest.fixture(scope="session")
def embedded_engine(tmp_path_factory):
    """Unlike that of other folders, a process whose coverage is measured."""
    # threads that change places all the time: if the server had several, one would be in another's way
    site = tmp_path_factory.mktemp("site")
    (site / "sitecustomize.py").write_text("import sys; sys.setswitchinterval(1e-5)")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        with embedded_dynamodb() as engine:
            yield engine


@pytest.fixture(scope="session", params=["embedded", "local"])
def dynamodb(request):
    """A client that sends what it is given, once."""
    options = {"max_pool_connections": 200, "parameter_validation": False}
    config = Config(retries={"total_max_attempts": 1}, **options)
    with use(request.getfixturevalue(f"{request.param}_engine")):
        client = boto3.client("dynamodb", config=config)
    yield client
    client.close()
