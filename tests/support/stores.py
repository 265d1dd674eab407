"""The stores and local queues of this process, for tests that look inside."""

from pynamodb_mutex._runtime.process import current_process


def store_for(model):
    """Return the store of a model."""
    return current_process().store(model)


class QueueFor:
    """The queue for a key, or any of several, as it is whenever it is looked at: an idle one is not kept."""

    def __init__(self, model, key):
        self._place = (store_for(model), key)

    def __getattr__(self, name):
        return getattr(current_process().queue(*self._place), name)
