"""The fixture `subject`: a lock of each kind."""

from subject_fixtures import subject

__all__ = ["subject"]
