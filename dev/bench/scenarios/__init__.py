"""Scenarios of the benchmark, one module each: ``measure`` returns the figures, ``tables`` shows them.

``measure`` runs in the environment with the other libraries, ``tables`` in that of the command line; the figures pass
between them as JSON. Sizes for ``--quick``, for a usual run and for ``--full`` are constants of the module.
"""

NAMES = ("cycle", "row", "hand_over", "waiting", "threads", "many", "start")
