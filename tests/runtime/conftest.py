import pytest
from hearing import hearing


@pytest.fixture
def heard(scene):
    """The signals of the scene's key."""
    with hearing(scene.key) as heard:
        yield heard
