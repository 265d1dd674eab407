"""The fixtures of the tests of faults."""

from subject_fixtures import subject, written

__all__ = ["subject", "written"]
