"""Trial of the library with real processes: they lock and write, on a bad network, and are stopped and killed.

A checker compares what the clients were answered with what the store did.

    python -m dev.chaos --seed 1 --seconds 60 --engine local

`run` makes one run. `worker` and `sections` are the clients, `network` and `injector` cause the faults, and `history`
is what a run records. `checker`, `beliefs` and `liveness` judge the history by the properties P1 to P8 of `verdicts`;
`page` and `timeline` show the result. `scenarios` has directed runs that show each broken variant of `broken`.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
