"""What the library keeps in this process: stores, local queues, and locks that are to be renewed.

The one door to the library's private state for tests that need it.
"""

from pynamodb_mutex._lock.runtime.process import (
    RENEWAL_WORKERS,
    TASK_WORKERS,
    Process,
    current_process,
    forget_everything,
)

__all__ = ["RENEWAL_WORKERS", "TASK_WORKERS", "Process", "current_process", "forget_everything"]


def store_for(model):
    """Return the store of a model."""
    return current_process().store(model)


class QueueFor:
    """The local queue for a key, or any of several; looked up at each use, for an idle one is not kept."""

    def __init__(self, model, key):
        self._place = (store_for(model), key)

    @property
    def is_idle(self):
        return self._place not in current_process().queues

    def __getattr__(self, name):
        return getattr(current_process().queue(*self._place), name)


def scheduled():
    """Return the held locks that are scheduled for renewal."""
    return list(current_process().schedule._due)


def forget_holds(*clients):
    """Stop the renewal of all locks that these clients still hold."""
    with current_process().monitor:
        for claim in [claim for held in scheduled() for claim in held.unreleased]:
            if claim.store.model in clients:
                claim.forget()
