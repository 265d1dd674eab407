"""Spans of time as pairs of nanoseconds: their union, difference and length."""

from __future__ import annotations

Span = tuple[int, int]


def union(spans: list[Span]) -> list[Span]:
    """Return the spans in order, with those that overlap or touch merged, and without empty ones."""
    found: list[Span] = []
    for since, until in sorted(spans):
        if found and since <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], until)
        elif until > since:
            found.append((since, until))
    return found


def without(spans: list[Span], others: list[Span]) -> list[Span]:
    """Return the parts of the spans that are in none of the others."""
    left: list[Span] = []
    for since, until in union(spans):
        start = since
        for begins, ends in union(others):
            if begins < until and ends > start:
                left.append((start, begins))
                start = max(start, ends)
        left.append((start, until))
    return [(since, until) for since, until in left if until > since]


def length(spans: list[Span]) -> int:
    """Return the total length of the spans, in nanoseconds."""
    return sum(until - since for since, until in union(spans))
