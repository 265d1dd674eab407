"""Calls by which people create the lock table, and list, break, repair and release locks."""
