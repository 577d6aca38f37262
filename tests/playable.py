"""Which tests need the game: they are left out where it cannot be played, and nowhere else."""

import pytest

from lfo.lab.public_world import unplayable

needs_game = pytest.mark.skipif(bool(unplayable()), reason=unplayable())
