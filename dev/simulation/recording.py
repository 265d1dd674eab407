"""Records what reaches the simulated DynamoDB, for an engine to answer the same."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from dev.simulation.table import Tables
from dev.simulation.values import Refusal


class Applied(NamedTuple):
    """A request that was evaluated.

    Attributes:
        tables: Which were asked.
        operation: Such as UpdateItem.
        kwargs: Its parameters.
        as_of: After how many writes it was answered, for a read that was late.
        at: Time by the clock of the tables.
        outcome: The answer, or the refusal.
    """

    tables: Tables
    operation: str
    kwargs: dict[str, Any]
    as_of: int | None
    at: float
    outcome: dict[str, Any] | Refusal


@contextmanager
def recorded() -> Iterator[list[Applied]]:
    """Record the requests that reach any `Tables` meanwhile, in the order in which they are applied."""
    requests: list[Applied] = []
    apply = Tables.apply

    def record(
        self: Tables, operation: str, kwargs: Mapping[str, Any], as_of: int | None = None
    ) -> dict[str, Any]:
        # what is sent may be made into the next request, and the answer into somebody's rows
        sent = copy.deepcopy(dict(kwargs))
        try:
            answer = apply(self, operation, kwargs, as_of)
        except Refusal as refusal:
            requests.append(Applied(self, operation, sent, as_of, self.clock(), refusal))
            raise
        requests.append(Applied(self, operation, sent, as_of, self.clock(), copy.deepcopy(answer)))
        return answer

    with patch.object(Tables, "apply", record):
        yield requests
