"""Several keys: all of them or none, or any that is free first."""
