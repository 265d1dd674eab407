"""Which engines can be started here."""

import os

import pytest

from pynamodb_mutex import _engines
from pynamodb_mutex._engines import dynamodb_local, embedded_dynamodb, why_no_dynamodb_local

NO_LOCAL = why_no_dynamodb_local()
STARTED_HERE = pytest.mark.skipif(
    NO_LOCAL is not None or os.environ.get(_engines.LOCAL_VARIABLE, "").startswith("http"),
    reason=NO_LOCAL or "DynamoDB Local runs elsewhere",
)
BOTH = [
    embedded_dynamodb,
    pytest.param(dynamodb_local, marks=STARTED_HERE),
]
