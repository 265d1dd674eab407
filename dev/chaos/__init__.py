"""Proof by trial: many processes lock, write, are stopped and killed on a bad network, and a checker judges
what they were answered against what the store did.

    python -m dev.chaos --seed 1 --seconds 60 --engine local
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
