"""Where the examples find a DynamoDB: the one that is configured, or one of their own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from pynamodb_mutex.testing import embedded_dynamodb, use


@contextmanager
def dynamodb() -> Iterator[None]:
    """Use the DynamoDB of AWS_ENDPOINT_URL_DYNAMODB or AWS_ENDPOINT_URL, else start one for the block.

    Processes that are started inside find the same.
    """
    if os.environ.get("AWS_ENDPOINT_URL_DYNAMODB") or os.environ.get("AWS_ENDPOINT_URL"):
        yield
    else:
        with embedded_dynamodb() as engine, use(engine):
            yield
