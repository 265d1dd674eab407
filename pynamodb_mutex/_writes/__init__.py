"""Guarded writes: of a payload, of a locked row, and of several rows in a transaction."""
