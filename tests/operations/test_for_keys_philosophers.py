"""The dining philosophers: each takes both forks or none, so nobody starves, whoever sits beside him."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from worker import dine, workers

SEATS = 5
MEALS = 8


@pytest.mark.real
def test_processes_all_eat_and_never_two_neighbours_at_once(table):
    with workers(*[0.0] * SEATS) as philosophers:
        for philosopher in philosophers:
            # all are there, and know the endpoint, before the first eats
            philosopher.ask("Mutex.for_key('warm').locked()")
        for seat, philosopher in enumerate(philosophers):
            philosopher.send(f"dine({seat}, {SEATS}, {MEALS})")
        assert_well_served([philosopher.answer(90) for philosopher in philosophers])


def test_threads_all_eat_and_never_two_neighbours_at_once(table):
    with ThreadPoolExecutor(SEATS) as pool:
        dining = [pool.submit(dine, seat, SEATS, MEALS) for seat in range(SEATS)]
        assert_well_served([each.result(90) for each in dining])


def assert_well_served(meals):
    """See that each fork was in one hand at a time, and passed on with a greater fencing token."""
    # all of them had what they wanted before their timeout; how even was it?
    first_done = min(each[-1][1] for each in meals)
    eaten = [sum(until <= first_done for _, until, _ in each) for each in meals]
    print(f"when one had eaten {max(eaten)} times, the slowest had {min(eaten)} times")
    for fork in range(SEATS):
        key = f"fork-{fork}"
        uses = sorted(
            (since, until, tokens[key])
            for each in (meals[fork], meals[fork - 1])
            for since, until, tokens in each
        )
        for before, after in itertools.pairwise(uses):
            assert before[1] <= after[0]
            assert before[2] < after[2]
