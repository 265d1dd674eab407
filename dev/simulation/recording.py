"""Records the requests that reach the simulated DynamoDB, with their answers, for `replay` to compare an engine's."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from dev.simulation.table import Tables
from dev.simulation.values import Refusal


class Applied(NamedTuple):
    """A request that the simulated DynamoDB has evaluated.

    Attributes:
        tables: The tables that evaluated it.
        operation: The operation, such as UpdateItem.
        kwargs: Its parameters.
        as_of: Number of writes as of which an eventually consistent read was answered; None for all.
        at: Time by the clock of the tables, in seconds.
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
    """Record the requests that reach any `Tables` inside the block, in the order in which they are applied."""
    requests: list[Applied] = []
    apply = Tables.apply

    def record(
        self: Tables, operation: str, kwargs: Mapping[str, Any], as_of: int | None = None
    ) -> dict[str, Any]:
        # Copies: the caller may change the parameters into its next request, and the answer's values into its own rows.
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
