"""What docs/ shows as code does what is said there: the tutorial, the coupling, the Gymnasium example."""

import contextlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from lfo.config import EnvConfig
from lfo.envs.base import parse_action
from lfo.protocols import Coupling, Environment, Episode, Knowledge
from lfo.runs import RunFolder
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
def tutorial(tmp_path_factory) -> dict:
    """The names that docs/add_an_environment.md ends with: all its blocks, in order, in a folder of their own."""
    page = "add_an_environment.md"
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    names: dict = {}
    with contextlib.chdir(tmp_path_factory.mktemp("tutorial")):
        for number, block in enumerate(blocks, start=1):
            exec(compile(block, f"{page}, block {number}", "exec"), names)
        names["rows"] = RunFolder(names["folder"]).metrics()
    return names


def test_the_tutorial_trains_a_policy_beside_a_world_model(tutorial):
    """A step of two tasks: something was heard and learned, and the examination of the world model was logged."""
    (step,) = (row for row in tutorial["rows"] if row["kind"] == "step")
    assert step["tasks"] == 2 and step["examples_seen"] > 0 and step["replay/world_model/grad_norm"] > 0
    rules = [row for row in tutorial["rows"] if row["kind"] == "rules"]
    assert rules and all(0 <= row["rule_accuracy"] <= 1 for row in rules)


def test_the_tutorial_makes_an_environment(tutorial):
    office = tutorial["make"](EnvConfig(world_seed=3))
    task = office.tasks("train")[1]
    assert members(Environment) <= set(dir(office)) and members(Episode) <= set(dir(office.episode(task, 0)))
    assert office.desks == tutorial["Office"](3).desks != tutorial["office"].desks
    assert [t.task_id for t in office.tasks("validation")][:2] == ["validation-A", "validation-B"]
    assert office.tasks("test") == []


def test_its_episodes_end_as_they_should(tutorial):
    office, played, right = tutorial["office"], tutorial["played"], tutorial["right"]
    task, going = office.tasks("train")[0], f'go<|args|>{{"desk": "{right}"}}'
    for texts, stop in (
        ([going], StopReason.SUCCESS),
        ([""], StopReason.AGENT_STOPPED),
        (["shout", "shout"], StopReason.MALFORMED),
        (["shout", f'go<|args|>{{"desk": "{tutorial["wrong"]}"}}'], StopReason.MAX_TURNS),
    ):
        episode, _ = played(office, task, *texts)
        assert episode.stop is stop and episode.outcome().success == (stop is StopReason.SUCCESS)
        with pytest.raises(RuntimeError):
            episode.step(parse_action(going, office.tools))
    episode, _ = played(office, task)
    episode.cut()
    assert episode.stop is StopReason.TOKEN_BUDGET


def test_its_world_model_is_asked_about_what_is_hidden(tutorial):
    """One who knows the truth is right about every form, one who always says the same about none."""
    knowledge, truths = tutorial["office"].knowledge, []

    def ask(questions):
        truths.extend(map(knowledge.truth, questions))
        return truths

    assert knowledge.examine(ask, "validation") == {"rule_accuracy": 1.0} and len(set(truths)) == 9
    assert knowledge.examine(lambda questions: ["?"] * len(questions), "validation") == {"rule_accuracy": 0.0}


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
    targets = re.findall(r"^([\w-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for name, version, command in found:
        words = command.split()
        paths = [word for word in words if word.startswith(("tests/", "scripts/"))]
        assert f'"{name.lower()}=={version}"' in pins and all((root / path).is_file() for path in paths)
        assert paths or (words[0] == "make" and words[1] in targets)


def test_the_issue_template_points_to_the_tutorial():
    template = (DOCS.parent / ".github" / "ISSUE_TEMPLATE" / "new_environment.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(\.\./blob/main/([\w./]+)\)", template)
    assert "docs/add_an_environment.md" in linked and all((DOCS.parent / path).is_file() for path in linked)


def test_every_page_is_in_the_index():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = {path.name for path in DOCS.glob("*.md")} - {"index.md"}
    assert pages == set(re.findall(r"^\| \[([\w.]+)\]", index, re.MULTILINE))
