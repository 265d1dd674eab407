"""The formal models and the state machines call the same step by the same name."""

import re
from pathlib import Path

import pytest
from hypothesis.stateful import RULE_MARKER
from test_claim_model import LockMachine
from test_write_model import WriteMachine

MODELS = Path(__file__).parents[2] / "dev" / "models"

ONLY_IN_THE_MODEL = {
    "time": {
        "delayed": "what is under way stays so until a rule lets it land",
        "lands_late": "any request may, by `lands`",
        "clock_goes_on": "one step with `clock_stands_still`",
    },
    "claim": {"disown": "the library sends it by itself, when an acquire ends by a failure"},
}
ONLY_IN_THE_MACHINE = {
    "time": {
        "acquire_in_the_end": "several steps in a row that chance would seldom string together",
        "a_dead_holders_lock_is_free_for_a_newcomer": "property 70, checked in any state",
    },
    "claim": {},
}


@pytest.mark.parametrize(("model", "machine"), [("time", LockMachine), ("claim", WriteMachine)])
def test_a_model_and_its_machine_have_the_same_steps(model, machine):
    text = (MODELS / f"{model}.pml").read_text(encoding="utf-8")
    steps = set(re.findall(r"STEP\((\w+)\)", text)) - {"name"}
    rules = {name for name, value in vars(machine).items() if hasattr(value, RULE_MARKER)}
    assert steps - rules == set(ONLY_IN_THE_MODEL[model])
    assert rules - steps == set(ONLY_IN_THE_MACHINE[model])
