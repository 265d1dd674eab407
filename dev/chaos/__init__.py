"""Trial of the library with real processes: they lock and write, on a bad network, and are stopped and killed.

What the clients called, were answered and believed is judged by Porcupine, a checker that this project did not write
(``porcupine/main.go``, which needs Go; without it the trial runs, and is not judged).

    python -m dev.chaos --seed 1 --seconds 60 --engine local

`run` makes one run. `client`, `worker` and `sections` are the clients, `injector` causes the faults, and `history` is what a
run records. The judge is tested by broken variants of the library: `dev.broken`.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
