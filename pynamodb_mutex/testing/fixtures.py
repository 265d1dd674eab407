"""pytest fixtures for projects that use the library, as a plugin.

Every start of pytest loads this module, so what a fixture needs is imported when it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pynamodb_mutex.models import LockItem
    from pynamodb_mutex.testing.engines import Engine
    from pynamodb_mutex.testing.fake_clock import FakeClock


@pytest.fixture(scope="session")
def mutex_dynamodb() -> Iterator[Engine]:
    """An embedded DynamoDB for the session; the environment directs boto3 and PynamoDB to it."""
    from pynamodb_mutex.testing.engines import embedded_dynamodb, use  # noqa: PLC0415 - see above

    with embedded_dynamodb() as engine, use(engine):
        yield engine


@pytest.fixture
def lock_table(mutex_dynamodb: Engine) -> Iterator[type[LockItem]]:  # noqa: ARG001 - in use meanwhile
    """LockItem with an empty table on the embedded DynamoDB."""
    from pynamodb_mutex._lock.runtime.process import forget_everything  # noqa: PLC0415 - see above
    from pynamodb_mutex.models import LockItem  # noqa: PLC0415 - see above

    LockItem.create_table()
    yield LockItem
    forget_everything()  # a lock that the test did not release
    if LockItem.exists():  # the test may have deleted it, to see what is done without it
        LockItem.delete_table(wait=True)


@pytest.fixture
def fake_clock() -> Iterator[FakeClock]:
    """The local clock, which moves only by `FakeClock.advance`."""
    from pynamodb_mutex.testing.fake_clock import FakeClock  # noqa: PLC0415 - see above

    with FakeClock() as clock:
        yield clock
