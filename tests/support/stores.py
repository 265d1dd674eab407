"""The stores and local queues of this process, for tests that look inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pynamodb_mutex._runtime.process import current_process

if TYPE_CHECKING:
    from pynamodb.models import Model

    from pynamodb_mutex._dynamodb.store import Store


def store_for(model: type[Model]) -> Store:
    """Return the store of a model."""
    return current_process().store(model)


class QueueFor:
    """The queue for a key, or any of several, as it is whenever it is looked at: an idle one is not kept."""

    def __init__(self, model: type[Model], key: str | frozenset[str]) -> None:
        self._place = (store_for(model), key)

    def __getattr__(self, name: str) -> Any:
        return getattr(current_process().queue(*self._place), name)
