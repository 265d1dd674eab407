"""tenacity, loaded at first contention: it takes as long as the package itself."""

from __future__ import annotations

import importlib
import os
import threading

_loading = threading.Lock()
_done = False


def load_tenacity() -> None:
    """Load it, so that neither Ctrl-C nor a fork can come in the middle of that.

    An import that is broken off may stay broken until the process ends, and one that another thread
    has begun never ends in a forked child.
    """
    global _done  # noqa: PLW0603 - once for the process
    if _done:
        return
    with _loading:
        # Ctrl-C is raised in the main thread
        loader = threading.Thread(target=importlib.import_module, args=("tenacity",))
        loader.start()
        loader.join()
        _done = True


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows has no fork, nor a need for it
    os.register_at_fork(
        before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release
    )
