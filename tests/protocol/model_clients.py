"""Clients of one row whose requests stop on the way to it: each a process, its calls on greenlets.

Only one call runs at a time, so that a schedule is what a state machine makes of it.
"""

import copy
import functools
import math

from botocore.exceptions import ClientError, ReadTimeoutError
from greenlet import getcurrent, greenlet
from pynamodb.attributes import UnicodeAttribute
from pynamodb.models import Model
from this_process import store_for

from pynamodb_mutex import RowLockMixin
from pynamodb_mutex._lock.dynamodb.store import _Numbers
from pynamodb_mutex._lock.protocol.server_time import Bounds, ServerTime
from pynamodb_mutex._lock.runtime import process as _process
from pynamodb_mutex._lock.runtime.clock import LocalClock
from pynamodb_mutex._lock.runtime.process import Process

SERVER_TIME = Bounds(1_700_000_000.0, 0.0, 1_700_000_001.0, 0.0)
UNKNOWN = ReadTimeoutError(endpoint_url="model")


class Clock(LocalClock):
    """Stands still: it is never too late to repeat a request."""

    def now(self):
        return 0.0

    def acquire(self, lock, until):
        pass


class Row(RowLockMixin, Model):
    class Meta:
        table_name = "rows"
        region = "eu-west-1"
        max_retry_attempts = math.inf
        # a client without them is made anew for each request
        aws_access_key_id = aws_secret_access_key = "x"

    name = UnicodeAttribute(hash_key=True)
    text = UnicodeAttribute(null=True)


@functools.cache
def one_store():
    """Return a store whose requests stop in the network; a copy of it serves as a client's."""
    store = store_for(Row)
    for connection in (store.connection, store.without_lock.connection):
        connection.open()
        connection.pynamodb.dispatch = lambda *request: getcurrent().ask(*request)
    return store


class Crash(BaseException):
    """The process ends."""


class OwnClaim:
    """An acquisition, as the row went through it.

    Attributes:
        gone: How its claim ended, if it was not by a release.
        forced_by: The landing that broke it, if one did.
        last: The last of its holder's writes that landed.
        unlock_in_doubt: Whether a write that was to end it has an unknown outcome.
        numbers: Of the writes that landed, after the one before them.
    """

    def __init__(self, token, number):
        self.token, self.gone, self.forced_by = token, None, None
        self.numbers = [number]
        self.last, self.unlock_in_doubt = 0, False


class Client:
    """A process, and the lock that it holds or held last."""

    def __init__(self):
        self.process = Process()
        store = self.process.stores[Row] = copy.copy(one_store())
        patient = store.without_lock = copy.copy(store.without_lock)
        store._numbers = patient._numbers = _Numbers()
        server = ServerTime()
        server.bounds = SERVER_TIME
        for each in (store, patient):
            each.connection = copy.copy(each.connection)
            each.connection.server = server
            each.connection._server_times = {each.connection.endpoint: server}
        self.dead, self.calls = False, []  # under way: renewals, and at most one other
        self.drop()

    def take(self, lock, tenure):
        self.lock, self.tenure = lock, tenure

    def drop(self):
        self.lock, self.tenure, self.writes = None, None, 0

    @property
    def busy(self):
        return any(call.kind != "renew" for call in self.calls)


class Request:
    """On its way; made after a read had shown its call a row with a token, as far as one had."""

    def __init__(self, call, operation, kwargs):
        self.call, self.operation, self.kwargs, self.seen = call, operation, kwargs, call.seen


class Call(greenlet):
    """A call of the library.

    Attributes:
        request: For which it waits.
        doubt: Whether one that may have been applied had no answer.
        landed: Whether one was applied.
        tenures: What its requests acquired, by token.
        was: How the tenure had ended when this was begun.
        knew: Whether its loss had been reported by then.
        freed: The fencing token of the claim that it released; 0 if it has not.
    """

    def __init__(self, client, kind, act):
        super().__init__()
        self.client, self.kind, self.act = client, kind, act
        self.lock, self.tenure = client.lock, client.tenure
        self.was = self.tenure.gone if self.tenure else None
        self.knew = self.lock is not None and self.lock.lost
        self.request = self.answer = self.result = self.error = self.seen = None
        self.doubt = self.landed = self.reported_not_applied = self.done = False
        self.number, self.freed, self.tenures = 0, 0, {}

    def run(self):
        try:
            self.result = self.act(self)
        except BaseException as error:
            self.error = error
        self.done = True

    def resume(self, answer=None):
        """Run on to its next request, or to its end."""
        self.request, self.answer = None, answer
        _process._process = self.client.process
        self.parent = getcurrent()
        self.switch()

    def ask(self, operation, kwargs):
        if not self.client.dead:
            self.request, self.asked = Request(self, operation, kwargs), kwargs
            self.parent.switch()
        if self.client.dead:
            raise Crash
        if isinstance(self.answer, ClientError):
            self.answer.operation_name = operation
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def error(code, **more):
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}, **more}
    return ClientError(response, "model")
