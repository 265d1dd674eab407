"""Proof by trial: many processes lock, write, are stopped and killed on a bad network, and a checker judges
what they were told against what the store did.

    python -m proof --seed 1 --seconds 60 --engine local

The proxy that spoils the network is that of the tests.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests" / "support"

if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))
