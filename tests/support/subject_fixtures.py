"""The fixtures `subject` and `written`."""

import pytest
from subjects import OF_KEYS, OF_ROWS, SUBJECTS, Subject, WrittenByKey, WrittenByRow


def _scene_for(name, request):
    fixture = "table_scene" if "table" in name else "row_scene" if "row" in name else "scene"
    return request.getfixturevalue(fixture)


@pytest.fixture(params=SUBJECTS)
def subject(request, engine):
    """A lock of each kind in turn; with `parametrize(..., indirect=True)`, of some kinds."""
    return Subject(request.param, _scene_for(request.param, request))


@pytest.fixture(params=[*OF_KEYS, *OF_ROWS])
def written(request, engine):
    """What is written under a lock, in each way in turn; or in some, as with `subject`."""
    made = WrittenByKey if request.param in OF_KEYS else WrittenByRow
    return made(request.param, _scene_for(request.param, request))
