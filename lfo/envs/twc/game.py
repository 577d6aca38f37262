"""The game itself: one Java process, in which any episode is played again up to where it stands.

A game is its fold, its seed and the commands so far, and a reset takes milliseconds. So many episodes share one
process, and none holds anything.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib.util
import re
import shutil
import threading
from collections.abc import Sequence

from lfo.config import ConfigError

SETTINGS = "numLocations=1,numItemsToPutAway=1"  # one room, one thing
MOST_STEPS = 1_000  # where the game itself would end; episodes end long before
FURNITURE = re.compile(r"\ba ([\w ]+?)( that is closed|, that has nothing on it)\.")  # a place, in what is seen first
UNREAD = "Unknown action"  # how the game answers what it does not understand
_one_at_a_time = threading.Lock()  # rollouts may be sampled in a thread beside another


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the game says last, and its score: 0, 0.5 with the thing in one's hands, 1 where it belongs."""

    text: str
    score: float


def require_game() -> None:
    """Raises ConfigError where the game cannot be run; the message names the remedy."""
    if importlib.util.find_spec("textworld_express") is None:
        raise ConfigError("env.name 'twc' needs textworld-express: pip install -e '.[cpu,twc]'.")
    if shutil.which("java") is None:
        raise ConfigError(
            "env.name 'twc' needs Java 8 or newer, and 'java' is not in PATH: apt-get install default-jre-headless."
        )


@functools.cache
def _process():
    """The Java process, which ends with this one."""
    require_game()
    from textworld_express import TextWorldExpressEnv

    process = TextWorldExpressEnv(envStepLimit=MOST_STEPS)
    atexit.register(_end, process)
    process.load("twc", SETTINGS)
    return process


def _end(process) -> None:
    """End the Java process, and close the pipe to it and a temporary file, which textworld-express leaves open."""
    process.close()
    process._obj_tree_tempfile.close()
    process._gateway.java_process.stdin.close()
    process._gateway.java_process.wait()


def replay(fold: str, seed: int, commands: Sequence[str]) -> tuple[Seen, Seen]:
    """What is seen before and after the last of these commands; without one, twice what is seen at the beginning.

    Always the same for the same arguments.
    """
    with _one_at_a_time:
        text, _ = _process().reset(seed=seed, gameFold=fold)
        before = after = Seen(_plain(text), 0.0)
        for command in commands:
            before, (text, _, _, told) = after, _process().step(command)
            after = Seen(_plain(text), told["score"])
        return before, after


def gold_path(fold: str, seed: int) -> list[str]:
    """The commands of the game's own solution, which begins by looking around."""
    with _one_at_a_time:
        _process().reset(seed=seed, gameFold=fold, generateGoldPath=True)
        return list(_process().getGoldActionSequence())


def seeds(fold: str) -> list[int]:
    """The seeds of a fold: train, dev or test."""
    return list(getattr(_process(), f"getValidSeeds{fold.title()}")())


def _plain(text: str) -> str:
    return " ".join(text.split())
