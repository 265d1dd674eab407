"""Several keys: all of them or none, and whichever of them is free first."""
