"""Which tests need the game, or the sandbox: they are left out where it cannot be played, and nowhere else."""

import shutil

import pytest

from lfo.lab.public_world import unplayable

needs_game = pytest.mark.skipif(bool(unplayable()), reason=unplayable())
needs_sandbox = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
