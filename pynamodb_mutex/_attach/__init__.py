"""Detaching a lock here, and attaching it in another process by a ticket."""
