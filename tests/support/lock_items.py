"""LockItem as another process has it, and the requests that this process sends."""

from __future__ import annotations

import time

from botocore.client import BaseClient

from pynamodb_mutex import LockItem
from pynamodb_mutex._runtime.process import forget_everything


class Elsewhere(LockItem):
    """The same table with another connection and another queue, as in another process."""

    class Meta(LockItem.Meta):
        pass


class Wire:
    """The requests that go out, by local time too, and what is done before one, or to its answer."""

    def __init__(self, monkeypatch):
        self.sent = []
        self.instants = []
        self.before = {}
        self.after = {}
        original = BaseClient._make_api_call

        def send(client, operation, kwargs):
            self.sent.append(operation)
            self.instants.append(time.monotonic())
            if operation in self.before:
                self.before.pop(operation)()
            answer = original(client, operation, kwargs)
            if operation in self.after:
                self.after[operation](answer)
            return answer

        monkeypatch.setattr(BaseClient, "_make_api_call", send)

    def drop_dates(self, *operations):
        """Let no answer to these operations have a Date, and forget what earlier ones showed."""
        forget_everything()
        for operation in operations:
            self.after[operation] = lambda answer: answer["ResponseMetadata"]["HTTPHeaders"].pop(
                "date"
            )
