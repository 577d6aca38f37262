"""What docs/ shows as code does what is said there: the toy environment, the coupling, the Gymnasium example."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from lfo.config import EnvConfig
from lfo.envs.base import parse_action
from lfo.protocols import Coupling, Environment, Episode, Knowledge
from lfo.types import Role, StopReason

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown(page: str, wanted: str) -> dict:
    """The names that the block of a page which mentions `wanted` defines."""
    (block,) = (block for block in BLOCK.findall((DOCS / page).read_text(encoding="utf-8")) if wanted in block)
    names: dict = {}
    exec(compile(block, page, "exec"), names)
    return names


def members(protocol: type) -> set[str]:
    """What a protocol asks for."""
    return {*protocol.__annotations__, *(name for name in vars(protocol) if not name.startswith("_"))}


@pytest.fixture(scope="module")
def env():
    return shown("environments.md", "class CounterEnvironment")["make"](EnvConfig())


def play(env, level: int, *texts: str):
    episode = env.episode(env.tasks("train")[level - 1], seed=0)
    return episode, [episode.step(parse_action(text, env.tools)) for text in texts]


def test_the_toy_environment_is_one(env):
    assert members(Environment) <= set(dir(env))
    assert members(Episode) <= set(dir(env.episode(env.tasks("train")[0], 0)))
    assert [task.task_id for task in env.tasks("test")] == ["test-1", "test-2", "test-3"]


def test_the_toy_environment_is_won_and_lost(env):
    press = "press<|args|>{}"
    episode, said = play(env, 2, press, press, "")
    assert said == ["It stands at 1.", "It stands at 2.", ""] and episode.stop is StopReason.SUCCESS
    assert episode.outcome().success and episode.outcome().metrics == {"presses": 2}
    with pytest.raises(RuntimeError):
        episode.step(parse_action(press, env.tools))
    assert play(env, 2, press, "")[0].stop is StopReason.AGENT_STOPPED
    assert play(env, 1, "shout")[1] == ["A call needs <|args|> between the tool and its arguments."]
    episode, _ = play(env, 3, *["nothing"] * 8)
    assert episode.stop is StopReason.MAX_TURNS and episode.outcome().reward == 0
    episode, _ = play(env, 3)
    episode.cut()
    assert episode.stop is StopReason.TOKEN_BUDGET


def test_the_coupling_sets_its_note_once():
    codec = SimpleNamespace(reply=lambda text: [ord(c) for c in text], note=lambda source, reply: [source, *reply])
    coupling = shown("environments.md", "class Told")["Told"](codec, "a")
    assert members(Coupling) <= set(dir(coupling)) and coupling.layout.listener == "world_model"
    added = []
    row = SimpleNamespace(noted=False, add=lambda ids, role: added.append((ids, role)))
    for _ in range(2):
        assert list(coupling.before_turn(row)) == []
    assert added == [(["somebody", ord("a")], Role.NOTE)]


def test_every_member_of_the_protocols_is_explained():
    """In a table of the page: what a world model is told and asked, and what a coupling does."""
    page = (DOCS / "environments.md").read_text(encoding="utf-8")
    explained = {
        name for cell in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", cell)
    }
    assert explained == members(Knowledge) | members(Coupling)


def test_the_gymnasium_example_runs():
    names = shown("use.md", "PhoneCallEnv(")
    assert names["observation"].startswith('{"departments"') and not names["terminated"]


def test_an_episode_for_trl_runs_by_hand():
    """The request is read, the directory answers, and a call that was never made is worth nothing."""
    names = shown("integrations.md", "generation.reset")
    assert names["request"].startswith("Please ") and names["answer"].startswith('{"departments": [{')
    assert names["reward"] == 0.0


def test_integrations_are_of_the_pinned_versions_and_shown_by_tests_that_exist():
    page = (DOCS / "integrations.md").read_text(encoding="utf-8")
    rows = r"^\| (\w+)[^|]* \| ([\d.]+) \|.*\| `([^`]+)` \| \d{4}-\d\d-\d\d \|$"
    found = re.findall(rows, page, re.MULTILINE)
    assert {name for name, _, _ in found} == {"TRL", "OpenEnv", "verifiers", "verl", "Gymnasium"} and len(found) == 6
    root = DOCS.parent
    pinned = ("pyproject.toml", "integrations/verifiers_lfo/pyproject.toml", "scripts/extras.py")
    pins = "".join((root / name).read_text(encoding="utf-8") for name in pinned)
    for name, version, command in found:
        paths = [word for word in command.split() if word.startswith(("tests/", "scripts/"))]
        assert f'"{name.lower()}=={version}"' in pins and paths and all((root / path).is_file() for path in paths)


def test_every_page_is_in_the_index():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"^\| \[([\w.]+)\]", index, re.MULTILINE))
