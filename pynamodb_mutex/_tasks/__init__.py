"""Locks for asyncio: the runner that executes operations for tasks, and the handles that use it."""
