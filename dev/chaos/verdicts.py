"""What the checker says: one verdict for each property, and figures."""

from __future__ import annotations

from dataclasses import dataclass, field

from dev.chaos.figures import Counts, Figures, added_up

PROPERTIES = {
    "P1": "guarded exclusion: each write by the holder of that instant, tenures never interleave",
    "P2": "no lost update: what was reported as applied is there, once, on what its writer had read",
    "P3": "fencing tokens only grow",
    "P4": "one believer: no live claim taken, no end moved back, nobody else's belief overlaps",
    "P5": "the unguarded control loses updates: fault injection has teeth",
    "P6": "liveness: dead holders' locks are taken in time, everybody gets on",
    "P7": "no false answers: held, released, lost and errors are what the store says",
    "P8": "each effect on a lock lies within its call",
}


CONTROLS = "updates of the unguarded control reported as applied"

PAUSES = 15
"""Stopped clients from which on an unguarded row must have lost something."""


@dataclass
class Violation:
    """One that was found.

    Attributes:
        property: P1 to P8.
        t: When, as the history counts time.
        text: What happened.
    """

    property: str
    t: int
    text: str


@dataclass
class Report:
    """The outcome of a check.

    Attributes:
        checked: How often each property was put to the test.
        figures: By name.
        seeds: Of the runs that it is about, with their engines.
    """

    violations: list[Violation] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    seeds: list[str] = field(default_factory=list)

    def violate(self, prop: str, t: int, text: str) -> None:
        self.violations.append(Violation(prop, t, text))

    def count(self, prop: str, times: int = 1) -> None:
        self.checked[prop] = self.checked.get(prop, 0) + times

    def of(self, prop: str) -> list[Violation]:
        return [violation for violation in self.violations if violation.property == prop]

    def found(self) -> set[str]:
        return {violation.property for violation in self.violations}

    def lines(self) -> list[str]:
        """The verdicts, figures and violations, for people."""
        figures = [f"    {name}: {value}" for name, value in self.figures.items()]
        found = [f"{v.property} at {v.t / 1e9:.3f}: {v.text}" for v in self.violations[:20]]
        seeds = ", ".join(self.seeds)
        return [*self.verdicts(), f"    seed: {seeds}", *figures, *found]

    def verdicts(self) -> list[str]:
        """One line for each property."""
        lines = []
        for prop, text in PROPERTIES.items():
            bad, tried = len(self.of(prop)), self.checked.get(prop, 0)
            verdict = "VIOLATED" if bad else "holds" if tried else "not tried"
            bound = f", < {3 / tried:.2g} at 95 %" if tried and not bad else ""
            lines.append(f"{prop}  {verdict:9} {bad} of {tried}{bound}  {text}")
        return lines


def in_all(reports: list[Report]) -> Report:
    """Return the verdicts and figures of several runs taken together."""
    whole = Report()
    for report in reports:
        whole.violations += report.violations
        for prop, times in report.checked.items():
            whole.count(prop, times)
        whole.seeds += report.seeds
    whole.figures = added_up(report.figures for report in reports)
    if not whole.checked.get("P5"):
        # too few were stopped in each of them
        judge_control(whole)
    return whole


def judge_control(report: Report, t: int = 0) -> None:
    """Judge P5, the positive control, by the figures."""
    injector, controls = report.figures["injector"], report.figures[CONTROLS]
    assert isinstance(injector, Counts)
    assert isinstance(controls, Counts)
    if injector["stop_client"] + injector["stand_still"] >= PAUSES:
        report.count("P5")
        if not controls["lost"]:
            report.violate("P5", t, "the unguarded control lost nothing")
