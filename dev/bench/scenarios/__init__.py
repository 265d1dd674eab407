"""One module for each scenario: how it is measured, and the tables of what was found."""

NAMES = ("cycle", "row", "hand_over", "waiting", "threads", "many", "start", "memory")
