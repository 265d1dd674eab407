"""Locks that readers share: how they join one claim, renew and leave it, and how a writer that waits holds new ones back."""
