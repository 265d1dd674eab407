"""Locks that readers share: how they join one claim, renew and leave it, and how a waiting writer holds new readers back."""
