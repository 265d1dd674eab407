"""The report of the checker: the properties P1 to P8, one verdict for each, violations and figures.

`checker` fills reports; `figures` defines the figures.
"""

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
"""Number of outages of clients from which on the unguarded controls must have lost a write (P5)."""


@dataclass
class Violation:
    """A violation of a property.

    Attributes:
        property: The property, P1 to P8.
        t: Its time, in nanoseconds of the history's clock.
        text: Description, for people.
    """

    property: str
    t: int
    text: str


@dataclass
class Report:
    """The outcome of a check of one or several runs.

    Attributes:
        violations: The violations.
        checked: Number of times that each property was checked.
        figures: The figures, by name.
        seeds: Seeds of the runs, with their engines.
    """

    violations: list[Violation] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    seeds: list[str] = field(default_factory=list)

    def violate(self, prop: str, t: int, text: str) -> None:
        """Add a violation of a property."""
        self.violations.append(Violation(prop, t, text))

    def count(self, prop: str, times: int = 1) -> None:
        """Note that a property was checked so many times."""
        self.checked[prop] = self.checked.get(prop, 0) + times

    def of(self, prop: str) -> list[Violation]:
        """Return the violations of a property."""
        return [violation for violation in self.violations if violation.property == prop]

    def found(self) -> set[str]:
        """Return the properties that were violated."""
        return {violation.property for violation in self.violations}

    def lines(self) -> list[str]:
        """Return the verdicts, figures and violations as lines of text."""
        figures = [f"    {name}: {value}" for name, value in self.figures.items()]
        found = [f"{v.property} at {v.t / 1e9:.3f}: {v.text}" for v in self.violations[:20]]
        seeds = ", ".join(self.seeds)
        return [*self.verdicts(), f"    seed: {seeds}", *figures, *found]

    def verdicts(self) -> list[str]:
        """Return one line for each property.

        Without a violation in n checks, its probability in one is below 3/n with a confidence of 95 %.
        """
        lines = []
        for prop, text in PROPERTIES.items():
            bad, tried = len(self.of(prop)), self.checked.get(prop, 0)
            verdict = "VIOLATED" if bad else "holds" if tried else "not tried"
            bound = f", < {3 / tried:.2g} at 95 %" if tried and not bad else ""
            lines.append(f"{prop}  {verdict:9} {bad} of {tried}{bound}  {text}")
        return lines


def in_all(reports: list[Report]) -> Report:
    """Return one report on several runs, from the reports on each."""
    whole = Report()
    for report in reports:
        whole.violations += report.violations
        for prop, times in report.checked.items():
            whole.count(prop, times)
        whole.seeds += report.seeds
    whole.figures = added_up(report.figures for report in reports)
    if not whole.checked.get("P5"):
        # No single run had enough outages to judge the controls; all of them together may have.
        judge_control(whole)
    return whole


def judge_control(report: Report, t: int = 0) -> None:
    """Judge P5 by the figures: if enough clients were stopped, the unguarded controls must have lost a write."""
    injector, controls = report.figures["injector"], report.figures[CONTROLS]
    assert isinstance(injector, Counts)
    assert isinstance(controls, Counts)
    if injector["stop_client"] + injector["stand_still"] >= PAUSES:
        report.count("P5")
        if not controls["lost"]:
            report.violate("P5", t, "the unguarded control lost nothing")
