"""What a check found."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Verdict(enum.Enum):
    """How it stands."""

    OK = "ok"
    WARNING = "warning"
    """Locks work, but not everything does, or not for ever."""
    PROBLEM = "problem"
    """Locks do not work, or are not safe."""
    UNCHECKED = "unchecked"
    """It could not be told."""


class Finding(NamedTuple):
    """What one check found.

    Attributes:
        check: Its name.
        verdict: How it stands.
        what: In a line, why.
        advice: What to do, in a line; empty if nothing is to be done.
    """

    check: str
    verdict: Verdict
    what: str
    advice: str = ""


def ok(check: str, what: str) -> Finding:
    """Return that a check found nothing wrong."""
    return Finding(check, Verdict.OK, what)


def warning(check: str, what: str, advice: str) -> Finding:
    """Return what somebody should know."""
    return Finding(check, Verdict.WARNING, what, advice)


def problem(check: str, what: str, advice: str) -> Finding:
    """Return what must be changed."""
    return Finding(check, Verdict.PROBLEM, what, advice)


def unchecked(check: str, what: str, advice: str = "") -> Finding:
    """Return that nothing is known, and why."""
    return Finding(check, Verdict.UNCHECKED, what, advice)
