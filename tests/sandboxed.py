"""Which tests need a sandbox: they are left out where bubblewrap is not installed, and nowhere else."""

import shutil

import pytest

needs_sandbox = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed (apt-get install bubblewrap)"
)
