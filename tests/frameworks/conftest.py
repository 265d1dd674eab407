"""An embedded DynamoDB. The environment of these tests has none of the other tests' tools, so they do not share a conftest.py."""

import threading
from contextlib import contextmanager

import pytest

from pynamodb_mutex import LockItem
from pynamodb_mutex.testing import embedded_dynamodb, use


def pytest_configure(config):
    # the runner of durable functions leaves the event loop of its thread open
    config.addinivalue_line("filterwarnings", "ignore:unclosed event loop:ResourceWarning")


@pytest.fixture(scope="session")
def engine():
    with embedded_dynamodb() as engine, use(engine):
        yield engine


@pytest.fixture
def table(engine):
    LockItem.create_table()
    yield LockItem
    LockItem.delete_table()


@pytest.fixture(scope="session")
def configured_django(tmp_path_factory):
    """Django with a database that several threads can read while one writes."""
    import django
    from django.conf import settings
    from django.db import connection

    file = tmp_path_factory.mktemp("django") / "database.sqlite"
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
    settings.configure(ALLOWED_HOSTS=["*"], DATABASES={"default": database})
    django.setup()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("CREATE TABLE account (balance INTEGER)")
        cursor.execute("INSERT INTO account VALUES (100)")
    yield
    connection.close()


class Inside:
    """Counts who is inside a section at once."""

    def __init__(self):
        self.now = self.most = self.times = 0
        self._lock = threading.Lock()

    @contextmanager
    def section(self):
        with self._lock:
            self.now += 1
            self.times += 1
            self.most = max(self.most, self.now)
        yield
        with self._lock:
            self.now -= 1


@pytest.fixture
def inside():
    return Inside()
