"""Scenarios of the benchmark, one module each: ``measure`` returns the figures, ``tables`` shows them.

Sizes for ``--quick`` and for a usual run are constants of the module.
"""

NAMES = ("cycle", "instructions", "row", "hand_over", "waiting", "threads", "many", "start")
