"""The repository is what its documents say: import layers, README, environments, no developer paths."""

import argparse
import ast
import fnmatch
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import lfo

ROOT = Path(__file__).resolve().parents[1]


# ---------------------------------------------------------------- import layers

# "    1  world   tools              hidden rules, public tools" in the docstring of lfo/__init__.py
LAYER_LINE = re.compile(r"^\s*(\d)  +(\w+(?: {1,3}\w+)*) {4,}\S", re.MULTILINE)
LAYERS = {name: int(layer) for layer, names in LAYER_LINE.findall(lfo.__doc__) for name in names.split()}
ORDER = list(LAYERS)  # also the order within a layer
MODEL_LIBRARIES = {"torch", "transformers", "peft", "accelerate", "vllm"}


def is_allowed(module: str, imported: str) -> bool:
    """May `module` import `imported`? Both are names of the layer table, or `__main__`."""
    if module == imported or module == "__main__":
        return True
    if {module, imported} == {"rollout", "learner"}:
        return False
    return ORDER.index(imported) < ORDER.index(module)  # lower layers come first in the table


def imported_names(node: ast.AST, package: list[str]) -> list[str]:
    """The dotted names that an import statement inside `package` asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        base = [*base, *(node.module.split(".") if node.module else [])]
        return [".".join([*base, alias.name]) for alias in node.names]
    return []


def outside_functions(node: ast.AST) -> list[ast.AST]:
    """`node` and everything in it that runs when the module is imported."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return []
    return [node, *(inner for child in ast.iter_child_nodes(node) for inner in outside_functions(child))]


def violations(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at `path` (relative to the repository, as in lfo/env.py)."""
    parts = path.removesuffix(".py").split("/")
    package, module = parts[:-1], parts[1]
    if module == "__init__":
        module = ""  # the package itself: below every layer
    elif module not in LAYERS and module != "__main__":
        return [f"{path} is not in the layer table of lfo/__init__.py"]
    tree, found = ast.parse(source), []
    for node in ast.walk(tree):
        for name in imported_names(node, package):
            top, *rest = name.split(".")
            if top == "lfo" and rest and rest[0] in LAYERS and (not module or not is_allowed(module, rest[0])):
                found.append(f"{path}:{node.lineno} imports lfo.{rest[0]}, which is not below it")
            if top in MODEL_LIBRARIES and LAYERS.get(module, 0) <= 2 and module != "__main__":
                found.append(f"{path}:{node.lineno} imports {top}; layers 0-2 do without models")
    for node in outside_functions(tree):
        if any(name.split(".")[0] == "vllm" for name in imported_names(node, package)):
            found.append(f"{path}:{node.lineno} imports vllm at module level; import it in the function that needs it")
    return found


def test_layer_table_is_read_whole():
    assert sorted(set(LAYERS.values())) == list(range(8))
    assert [name for name, layer in LAYERS.items() if layer <= 2] == [
        "config", "records", "statistics", "world", "tools", "simulator", "env"
    ]  # fmt: skip
    assert {name for name, layer in LAYERS.items() if layer == 5} == {"rollout", "learner"}


@pytest.mark.parametrize("path", sorted(ROOT.glob("lfo/**/*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_follow_the_layers(path):
    assert violations(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lfo/world.py", "from lfo.env import Env"),
        ("lfo/world.py", "from lfo import tools"),  # same layer, listed later
        ("lfo/world.py", "import lfo.tools as t"),
        ("lfo/world.py", "from . import env"),
        ("lfo/world.py", "from .env import Env"),
        ("lfo/world.py", "def f():\n    from lfo.train import run"),
        ("lfo/learner.py", "from lfo.rollout import Engine"),
        ("lfo/rollout.py", "import lfo.learner"),
        ("lfo/rollout/torch_engine.py", "from ..learner import Learner"),
        ("lfo/rollout/torch_engine.py", "from .. import train"),
        ("lfo/env.py", "import torch.nn"),
        ("lfo/config.py", "def f():\n    from transformers import AutoTokenizer"),
        ("lfo/rollout/vllm_engine.py", "import vllm"),
        ("lfo/rollout/vllm_engine.py", "try:\n    from vllm import LLM\nexcept ImportError:\n    pass"),
        ("lfo/rollout/vllm_engine.py", "class Engine:\n    import vllm"),
        ("lfo/helpers.py", ""),
        ("lfo/__init__.py", "from lfo.env import Env"),
    ],
)
def test_a_violation_is_found(path, source):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lfo/tools.py", "from lfo.world import FIELDS\nfrom lfo import __version__, records"),
        ("lfo/tokens.py", "import torch"),
        ("lfo/rollout/__init__.py", "from .torch_engine import TorchEngine\nfrom lfo.rollout.base import Engine"),
        ("lfo/rollout/vllm_engine.py", "from ..tokens import Codec\ndef f():\n    import vllm"),
        ("lfo/cli.py", "import lfo\nfrom lfo import figures, learner, rollout, train"),
        ("lfo/__main__.py", "from lfo.cli import main"),
    ],
)
def test_a_lawful_import_passes(path, source):
    assert violations(path, source) == []


# ---------------------------------------------------------------- README

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


def tracked_files() -> list[str]:
    """What git tracks; without git (an archive, a container) everything that .gitignore does not name."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        listed = ""
    if listed:
        return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    ignored = [".git", *((line.strip().strip("/")) for line in (ROOT / ".gitignore").read_text().splitlines())]
    files = []
    for folder, subfolders, names in os.walk(ROOT):
        here = Path(folder).relative_to(ROOT)

        def keep(name, here=here):
            path = (here / name).as_posix()
            return not any(fnmatch.fnmatch(name, rule) or fnmatch.fnmatch(path, rule) for rule in ignored)

        subfolders[:] = filter(keep, subfolders)
        files += [(here / name).as_posix() for name in filter(keep, names)]
    return files


def tree_paths(block: str) -> list[str]:
    """The paths of a layout block, one a line, folders ending in a slash, nested by indentation or `|--` strokes."""
    paths, parents = [], []
    for line in filter(str.strip, block.splitlines()):
        indent = len(line) - len(line.lstrip(" │├└─|+-`"))
        name = line[indent:].split()[0]
        while parents and parents[-1][0] >= indent:
            parents.pop()
        path = (parents[-1][1] if parents else "") + name
        paths.append(path)
        if name.endswith("/"):
            parents.append((indent, path))
    return paths


def shell_commands(text: str) -> list[list[str]]:
    """The commands of shell blocks and inline code as words, without comments and leading assignments."""
    lines = [block.replace("\\\n", " ") for language, block in FENCE.findall(text) if language in {"bash", "sh"}]
    lines += re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    commands = []
    for command in re.split(r"&&|\|\||[;|\n]", "\n".join(re.sub(r"(?:^|\s)#.*", "", t, flags=re.M) for t in lines)):
        words = command.split()
        while words and (words[0] in {"$", "time"} or re.match(r"[A-Z_]\w*=", words[0])):
            words.pop(0)
        if words:
            commands.append([words[0].rsplit("/", 1)[-1], *words[1:]])
    return commands


@pytest.fixture(scope="module")
def readme() -> str:
    assert (ROOT / "README.md").is_file(), "README.md is missing"
    return (ROOT / "README.md").read_text(encoding="utf-8")


def test_layout_block_is_parsed():
    assert tree_paths("lfo/      library\n  env.py  x\n  rollout/\n    a.py\nMakefile") == [
        "lfo/", "lfo/env.py", "lfo/rollout/", "lfo/rollout/a.py", "Makefile"
    ]  # fmt: skip
    assert tree_paths("├── lfo/\n│   └── env.py\n└── data/base/") == ["lfo/", "lfo/env.py", "data/base/"]


def test_shell_commands_are_parsed():
    text = "`A=1 make test`\n```bash\n$ cd x && .venv/bin/lfo train --steps 2  # make it so\n```\nmake sure\n"
    assert shell_commands(text) == [["cd", "x"], ["lfo", "train", "--steps", "2"], ["make", "test"]]


def test_readme_layout_matches_the_tree(readme):
    section = re.search(r"^## Layout\n(.*?)(?=^## |\Z)", readme, re.MULTILINE | re.DOTALL)
    assert section, "README.md has no section '## Layout'"
    block = FENCE.search(section[1])
    assert block, "the section '## Layout' of README.md has no fenced block"
    paths = tree_paths(block[2])
    wrong = [path for path in paths if not ((ROOT / path).is_dir() if path[-1] == "/" else (ROOT / path).is_file())]
    assert not wrong, "README.md names paths that do not exist"
    # .gitignore and its like are housekeeping; folders such as .ci/ are not.
    tops = {name.split("/")[0] for name in tracked_files() if "/" in name or not name.startswith(".")}
    assert not tops - {path.split("/")[0] for path in paths}, "the layout block of README.md lacks top-level entries"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def test_readme_names_make_targets_that_exist(readme):
    named = {
        word
        for command, *words in shell_commands(readme)
        if command == "make"
        for word in words
        if "=" not in word and not word.startswith("-")
    }
    assert named <= make_targets()
    assert {"results", "test"} <= named


def test_readme_names_lfo_commands_that_exist(readme):
    from lfo.cli import build_parser

    (subparsers,) = [a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)]
    for command, *words in shell_commands(readme):
        if command != "lfo" or not words or words[0].startswith("-"):
            continue
        assert words[0] in subparsers.choices, f"README.md names `lfo {words[0]}`, which does not exist"
        known = subparsers.choices[words[0]]._option_string_actions
        unknown = [word for word in words if word.startswith("--") and word.split("=")[0] not in known]
        assert not unknown, f"README.md gives `lfo {words[0]}` options that do not exist"


def test_readme_links_resolve(readme):
    text = FENCE.sub("", readme)
    links = re.findall(r"\]\(<?([^)\s>]+)", text) + re.findall(r"^\[[^\]]+\]:\s+(\S+)", text, re.MULTILINE)
    headings = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        if path:
            assert (ROOT / path).exists(), f"README.md links to {path}, which does not exist"
        else:
            assert anchor in anchors, f"README.md links to #{anchor}, a section it does not have"


# ---------------------------------------------------------------- environments


def test_environments_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {"cpu", "gpu", "vllm-cpu", "dev"} <= set(extras)

    # Every package has exactly one version: in the dependencies, or else in each of the extras that run models.
    assert all("==" in pin for pins in extras.values() for pin in pins)
    for pin in project["dependencies"]:
        name = re.match(r"[\w-]+", pin)[0]
        for extra in ("cpu", "gpu", "vllm-cpu"):
            assert "==" in pin or any(p.startswith(f"{name}==") for p in extras[extra]), f"{name} is not pinned"

    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    pip = next(entry["pip"] for entry in conda if isinstance(entry, dict))
    assert pip == ["-e .[cpu,dev]"]
    conda_python = next(entry for entry in conda if str(entry).startswith("python=")).removeprefix("python=")

    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    docker_python = re.search(r"^FROM python:([\d.]+)-slim-\w+$", docker, re.MULTILINE)[1]
    assert project["requires-python"] == f">={conda_python}" == f">={docker_python}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^ARG EXTRA=(\S+)$", docker, re.MULTILINE)[1] in extras
    assert re.search(r"^EXTRA +\?= (\S+)$", makefile, re.MULTILINE)[1] in extras
    core = re.search(r"^CORE +:= (.*)$", makefile, re.MULTILINE)[1].split()
    assert core == [name for name, layer in LAYERS.items() if layer <= 4], "`make test` covers other modules"


INSTALL = re.compile(r"\bpip install ((?:[^&|;\n]|\\\n)+)")


def installed(text: str, extra: str) -> list[str]:
    """What the pip commands of a text install, `extra` put in for its variable; options without a value left out."""
    found = []
    for command in INSTALL.findall(text):
        words = [word.strip("\"'") for word in re.sub(r"\$[({]EXTRA[)}]", extra, command).split()]
        found += [word for word in words if word == "-e" or not word.startswith("-")]
    return found


@pytest.mark.parametrize("extra", ["cpu", "gpu", "vllm-cpu"])
@pytest.mark.parametrize("name", ["Dockerfile", "Makefile"])
def test_what_is_installed_is_what_pyproject_pins(name, extra):
    """Each of the two files installs the repository with an extra, and nothing that pyproject.toml does not pin."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert installed((ROOT / name).read_text(encoding="utf-8"), extra) == ["-e", f".[{extra},dev]"]
    assert {extra, "dev"} <= set(extras)


def test_an_unpinned_installation_is_seen():
    text = 'RUN pip install --no-cache-dir -e ".[${EXTRA},dev]" && pip install --quiet wheel'
    assert installed(text, "gpu") == ["-e", ".[gpu,dev]", "wheel"]


def docker_problems(text: str) -> list[str]:
    """What hadolint's rules of the same intent would say to a Dockerfile."""
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    steps = [line.split(maxsplit=1) for line in lines if line.strip()]
    found = []
    for word, rest in steps:
        if word == "FROM" and not re.search(r":[\d.]*\d[\w.-]*$", rest):
            found.append(f"{rest}: the image has no pinned tag")
        if word == "ADD":
            found.append("ADD: use COPY")
        if word == "RUN" and re.search(r"\bsudo\b", rest):
            found.append("sudo")
        if word == "RUN" and "apt-get install" in rest:
            needed = ("apt-get update", "--yes", "--no-install-recommends", "rm -rf /var/lib/apt/lists/*")
            found += [f"apt-get install without {part}" for part in needed if part not in rest]
        if word == "RUN" and "pip install" in rest and "--no-cache-dir" not in rest:
            found.append("pip install without --no-cache-dir")
        if word in ("CMD", "ENTRYPOINT") and not rest.startswith("["):
            found.append(f"{word} in shell form")
    users = [rest.strip() for word, rest in steps if word == "USER"]
    if not users or users[-1] in ("root", "0"):
        found.append("the container runs as root")
    return found


def test_the_dockerfile_keeps_the_rules():
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert docker_problems(text) == []
    assert re.search(r"^ARG EXTRA=cpu$", text, re.MULTILINE)
    assert "models" in (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    stamp = re.search(r"^STAMP +:= \$\(VENV\)(\S+)\$\(EXTRA\)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert f'touch ".venv{stamp}${{EXTRA}}"' in text  # else make installs everything again


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("FROM python", "no pinned tag"),
        ("FROM python:latest", "no pinned tag"),
        ("FROM python:slim", "no pinned tag"),
        ("RUN apt-get update && apt-get install --yes make && rm -rf /var/lib/apt/lists/*", "no-install-recommends"),
        ("RUN apt-get update \\\n && apt-get install --yes --no-install-recommends make", "/var/lib/apt/lists"),
        ("RUN pip install numpy==1", "no-cache-dir"),
        ("RUN sudo make", "sudo"),
        ("ADD . .", "use COPY"),
        ("CMD make results", "shell form"),
        ("USER root", "runs as root"),
    ],
)
def test_a_dockerfile_that_breaks_a_rule_is_found(line, problem):
    (found,) = docker_problems(f"FROM python:3.11-slim\n# sudo\nUSER lfo\n{line}\n")
    assert problem in found


def test_readme_names_extras_that_exist(readme):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra.strip() for group in re.findall(r"(?:\.|\blfo)\[([\w, -]+)\]", readme) for extra in group.split(",")}
    assert named <= set(extras)


def test_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == lfo.__version__


# ---------------------------------------------------------------- developer paths


PLACES = "|".join(["work", "root", "home", "Users"])
DEVELOPER_PATH = re.compile(r"(?<![\w.})~-])/(?:" + PLACES + ")/")


def developer_paths(text: str) -> list[str]:
    """Absolute paths below the usual places; in notebooks they may follow an escaped line end or colour."""
    return DEVELOPER_PATH.findall(re.sub(r"\\[nrt]|\\u001b\[[\d;]*m", " ", text))


def test_developer_paths_are_found():
    root, work = "/" + "root/", "/" + "work/"
    for text in (f'File "{root}x.py"', f"at\\n{root}x", f"\\u001b[0;32m{root}x", f"file://{work}x"):
        assert developer_paths(text), text
    for text in (f"net{work}x", f"..{work}", f"~{work}", f"https://site.org{root}x"):
        assert not developer_paths(text), text


def test_no_file_names_a_developer_machine():
    found = []
    for name in tracked_files():
        try:
            found += [(name, path) for path in developer_paths((ROOT / name).read_text(encoding="utf-8"))]
        except UnicodeDecodeError:
            continue  # a binary file
    assert not found
