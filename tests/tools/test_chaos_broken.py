"""The chaos harness notices when a rule of the library is broken, and holds its peace when none is."""

import uuid
from pathlib import Path

import pytest

from dev.chaos.broken import BROKEN, broken
from dev.chaos.scenarios import CASES, Case, judged, scene
from dev.chaos.verdicts import Report
from pynamodb_mutex.testing import Engine

pytestmark = [pytest.mark.real, pytest.mark.lengthy]


def play(case: Case, engine: Engine, folder: Path) -> Report:
    with scene(engine, folder, f"chaos-{uuid.uuid4().hex}") as stage:
        case.schedule(stage)
    return judged(folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.broken)
def test_broken_library_is_caught(case: Case, engine: Engine, tmp_path: Path) -> None:
    with broken(case.broken):
        report = play(case, engine, tmp_path)
    assert case.finds in report.found(), "\n".join(report.lines())


@pytest.mark.real("embedded")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.schedule.__name__)
def test_library_as_it_is_stands_the_same(case: Case, engine: Engine, tmp_path: Path) -> None:
    report = play(case, engine, tmp_path)
    assert report.violations == [], "\n".join(report.lines())


def test_every_way_to_break_it_has_a_case() -> None:
    simulated_only = {"upper-bound-of-all", "lost-wake-up", "queued-twice", "renewal-forgotten"}
    # of the order of waiters, which the trial does not judge
    simulated_only |= {"join-compares-lists", "take-leaves-the-dead", "release-undated"}
    simulated_only |= {"skip-by-old-date", "impatient", "place-kept", "leave-trusts-a-read"}
    simulated_only |= {"no-own-watch"}
    assert {case.broken for case in CASES} == BROKEN.keys() - simulated_only
