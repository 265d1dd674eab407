"""What is public is called in random schedules, with each option: see the table of `python -m dev.simulation --calls`."""

from collections import Counter

import pytest

from dev.simulation.calls import counted, public_calls
from dev.simulation.schedule import Size, play

LOCKS = ("lock_otherwise", "lock_and_delete", "lock_until_all_is_released", "lock_rows")
OTHERS = ("lock_one", "lock_kept", "lock_fair", "lock_shard", "lock_by_force", "lock_and_record")
ONCE = ("once_otherwise", "once_call", "once_in_a_transaction")


@pytest.mark.lengthy
@pytest.mark.timeout(1000)
def test_each_public_call_is_made_and_each_option_given():
    counts, seed, missing = Counter(), 0, public_calls()
    with counted(counts):
        while missing and seed < 400:
            if seed < 32:
                # few give the options that no other way gives
                ways = ONCE if seed % 4 == 1 else OTHERS if seed % 8 == 2 else LOCKS
            else:
                # what is left is read or called seldom, by one way of each kind
                of_once = [kind for kind, _ in missing if kind.startswith(("Once", "AsyncOnce"))]
                is_turn = seed % 2 or len(of_once) == len(missing)
                ways = ONCE[:1] if of_once and is_turn else LOCKS[:1]
            assert play(seed, Size(3, 2, 20, 2, 2, ways, {}, 4, 60.0)).violation is None
            seed += 1
            missing = [call for call in missing if not counts[call]]
    assert missing == []
