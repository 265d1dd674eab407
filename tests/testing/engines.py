"""Which engines can be started here."""

import os

import pytest

from pynamodb_mutex.testing import dynamodb_local, embedded_dynamodb, why_no_dynamodb_local
from pynamodb_mutex.testing.engines import LOCAL_VARIABLE

NO_LOCAL = why_no_dynamodb_local()
STARTED_HERE = pytest.mark.skipif(
    NO_LOCAL is not None or os.environ.get(LOCAL_VARIABLE, "").startswith("http"),
    reason=NO_LOCAL or "DynamoDB Local runs elsewhere",
)
BOTH = [embedded_dynamodb, pytest.param(dynamodb_local, marks=STARTED_HERE)]
