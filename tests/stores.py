"""The stores of this process, for tests that look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pynamodb_mutex._runtime.process import current_process

if TYPE_CHECKING:
    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.store import Store


def store_for(model: type[Model]) -> Store:
    """Return the store of a model."""
    return current_process().store(model)
