"""Tasks of several processes want one lock, whose holder was killed."""

from __future__ import annotations

import pytest
from worker import workers

from pynamodb_mutex import LockItem

TASKS, SECTIONS = 4, 5


@pytest.mark.real
def test_tasks_of_several_processes_take_turns_after_a_killed_one(table: type[LockItem]) -> None:
    LockItem("counter", writes=0).save()
    with workers(*[0.0] * 3) as (dying, *others):
        assert dying.ask("hold_by_a_task('shared', 1.5)")
        first = LockItem.get("shared").version
        for other in others:
            other.send(f"count_up({TASKS}, {SECTIONS})")
        dying.kill()
        tokens = [token for other in others for token in other.answer(90)]
    count = LockItem.get("counter", consistent_read=True).writes
    # none was lost, for nobody else was there between reading and writing
    assert (len(tokens), count) == (len(set(tokens)), 2 * TASKS * SECTIONS)
    assert min(tokens) > first
