"""The shell world of the experiments."""

import pytest

from lfo.envs.shell import World, draw_world


@pytest.fixture(scope="session")
def shell_world() -> World:
    return draw_world(0)
