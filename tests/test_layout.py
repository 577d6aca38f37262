"""The repository is what it says: import layers, what the core may know, its size, environments, no developer paths."""

import ast
import fnmatch
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import lfo

ROOT = Path(__file__).resolve().parents[1]


# ---------------------------------------------------------------- import layers

# "    1  runs  distributed       a run folder; ..." in the docstring of lfo/__init__.py
LAYER_LINE = re.compile(r"^\s*(\d)  +(\w+(?: {1,3}\w+)*) {4,}\S", re.MULTILINE)
LAYERS = {name: int(layer) for layer, names in LAYER_LINE.findall(lfo.__doc__) for name in names.split()}
ORDER = list(LAYERS)  # also the order within a layer
FILES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in ROOT.glob("lfo/**/*.py")}
MODELS = {"torch", "transformers", "peft", "accelerate", "vllm", "tokenizers", "safetensors"}
TABLES = {"pandas", "seaborn", "matplotlib"}


def component(path: str) -> str:
    """The name in the layer table that a file belongs to, "" for the package itself."""
    return path.removesuffix(".py").split("/")[1].removeprefix("__init__")


def is_allowed(module: str, imported: str) -> bool:
    """May `module` import `imported`? Both are names of the layer table, "" is the package itself, below all."""
    if {module, imported} == {"rollout", "learn"}:
        return False
    return module == imported or (module != "" and ORDER.index(imported) < ORDER.index(module))


def imported_names(node: ast.AST, package: list[str]) -> list[str]:
    """The dotted names that an import statement inside `package` asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else []
        base = [*base, *(node.module.split(".") if node.module else [])]
        return [".".join([*base, alias.name]) for alias in node.names]
    return []


def running(node: ast.AST, functions: bool) -> list[ast.AST]:
    """`node` and everything in it that may run; without `functions`: that runs when the module is imported."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return []
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not functions:
        return []
    return [node, *(inner for child in ast.iter_child_nodes(node) for inner in running(child, functions))]


def violations(path: str, source: str) -> list[str]:
    """What is wrong with the imports of the file at `path` (relative to the repository, as in lfo/runs.py)."""
    package, module = path.removesuffix(".py").split("/")[:-1], component(path)
    if module and module not in LAYERS:
        return [f"{path} is not in the layer table of lfo/__init__.py"]
    tree, found = ast.parse(source), []
    for node in running(tree, functions=True):
        for name in imported_names(node, package):
            top, *rest = name.split(".")
            where = f"{path}:{getattr(node, 'lineno', 0)} imports"
            if top == "lfo" and rest and rest[0] in LAYERS and not is_allowed(module, rest[0]):
                found.append(f"{where} lfo.{rest[0]}, which is not below it")
            if top in MODELS and (LAYERS.get(module) == 0 or module == "envs"):
                found.append(f"{where} {top}; layer 0 and environments do without models")
            if top in TABLES and module not in ("lab", "cli"):
                found.append(f"{where} {top}; only the laboratory draws")
    for node in running(tree, functions=False):
        for name in imported_names(node, package):
            top = name.split(".")[0]
            late = top in MODELS and module in ("runs", "cli")
            late |= top == "sklearn" and module not in ("lab", "cli")  # only whoever recalls needs it
            if top == "vllm" or late:
                found.append(f"{path}:{node.lineno} imports {top} at module level; import it where it is needed")
    return found


def test_the_layer_table_is_read_whole():
    assert sorted(set(LAYERS.values())) == list(range(9))
    assert set(LAYERS) == {component(path) for path in FILES} - {""}
    assert {name for name, layer in LAYERS.items() if layer == 4} == {"rollout", "learn"}


@pytest.mark.parametrize("path", FILES)
def test_imports_follow_the_layers(path):
    assert violations(path, FILES[path]) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lfo/runs.py", "from lfo.envs import make_environment"),
        ("lfo/types.py", "from lfo import config"),  # same layer, listed later
        ("lfo/types.py", "import lfo.config as c"),
        ("lfo/envs/base.py", "from .. import text"),
        ("lfo/envs/phone/csr.py", "from ...text.codec import Codec"),
        ("lfo/envs/phone/csr.py", "def f():\n    from lfo.train import train"),
        ("lfo/learn/learner.py", "from lfo.rollout import make_engine"),
        ("lfo/rollout/play.py", "import lfo.learn"),
        ("lfo/rollout/torch_engine.py", "from ..learn.learner import Learner"),
        ("lfo/evaluate.py", "from lfo.train import Run"),
        ("lfo/train.py", "from lfo.lab import figures"),
        ("lfo/train.py", "def f():\n    import pandas as pd"),
        ("lfo/couplings/memory.py", "from sklearn import svm"),
        ("lfo/envs/phone/classifier.py", "import sklearn.svm"),
        ("lfo/envs/phone/world.py", "import torch.nn"),
        ("lfo/config.py", "def f():\n    from transformers import AutoTokenizer"),
        ("lfo/runs.py", "import torch"),
        ("lfo/cli.py", "import torch"),
        ("lfo/rollout/vllm/engine.py", "import vllm"),
        ("lfo/rollout/vllm/engine.py", "try:\n    from vllm import LLM\nexcept ImportError:\n    pass"),
        ("lfo/rollout/vllm/engine.py", "class Engine:\n    import vllm"),
        ("lfo/helpers.py", ""),
        ("lfo/__init__.py", "from lfo.types import Task"),
    ],
)
def test_a_violation_is_found(path, source):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("lfo/config.py", "from lfo.types import Task\nfrom lfo import __version__, types"),
        ("lfo/protocols.py", "if TYPE_CHECKING:\n    from lfo.rollout.play import Row"),
        ("lfo/text/base.py", "import torch"),
        ("lfo/runs.py", "def save():\n    import torch"),
        ("lfo/couplings/memory.py", "def f():\n    from sklearn import svm"),
        ("lfo/lab/tables.py", "from sklearn import svm"),
        ("lfo/envs/phone/csr.py", "from . import phrasings\nfrom lfo.envs.base import Tool"),
        ("lfo/rollout/vllm/engine.py", "from ..engine import Prompt\ndef f():\n    import vllm"),
        ("lfo/lab/figures.py", "import pandas, torch\nfrom lfo.train import train"),
        ("lfo/cli.py", "import lfo\nfrom lfo.lab import figures\nfrom lfo import learn, rollout, train"),
    ],
)
def test_a_lawful_import_passes(path, source):
    assert violations(path, source) == []


# ---------------------------------------------------------------- what the core knows, and how large it is

IN_THE_CORE = [
    path
    for path in FILES
    if component(path) not in ("lab", "cli") and not re.match(r"lfo/(envs/\w+|rollout/vllm)/", path)
]
# 360 of them for later attempts that read feedback on earlier ones, 140 for PPO, 20 for episodes that are played
# elsewhere, folders of epochs and trackers, 7 for a cache that fits the machine and for other sandboxes, 21 for
# world models that vote, 11 for folders whose metrics would be lost and what changed while a run waited, 33 for a world
# model that reads, 50 for settings that would do nothing, folders that two processes would write, what lies there
# damaged, metrics that have no checkpoint, and YAML that says a thing twice
MOST_LINES = 3_910


@pytest.mark.parametrize("path", [p for p in IN_THE_CORE if LAYERS.get(component(p), 0) >= 4])
def test_loop_rollouts_learning_and_couplings_name_no_tool(path):
    assert not re.findall(r"make_phone_call|auth_info|search_company|phone|\bbash\b|\bshell\b", FILES[path])


def lines_of_code(source: str) -> int:
    """Lines that are neither blank nor a comment nor (part of) a docstring."""
    told: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        first = node.body[0] if isinstance(getattr(node, "body", None), list) and node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            told |= set(range(first.lineno, first.end_lineno + 1))
    lines = enumerate(map(str.strip, source.splitlines()), start=1)
    return sum(bool(line) and not line.startswith("#") and number not in told for number, line in lines)


def test_lines_of_code_are_counted():
    source = (
        '"""Two\nlines."""\n\nimport os  # counts\n\n\ndef f():\n    """One."""\n    # none\n    return """\ntext"""\n'
    )
    assert lines_of_code(source) == 4  # import, def, and the two lines of what is returned


def test_the_core_is_small():
    """Lines of code: what explains them is not held against it."""
    assert len(IN_THE_CORE) > 20 and {"lfo/train.py", "lfo/envs/base.py"} <= set(IN_THE_CORE)
    assert not [path for path in IN_THE_CORE if "phone" in path or "vllm" in path]
    assert sum(lines_of_code(FILES[path]) for path in IN_THE_CORE) <= MOST_LINES


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
    assert pip == ["-e .[cpu,dev,twc]"]
    conda_python = next(entry for entry in conda if str(entry).startswith("python=")).removeprefix("python=")

    docker = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    docker_python = re.search(r"^FROM python:([\d.]+)-slim-\w+$", docker, re.MULTILINE)[1]
    assert project["requires-python"] == f">={conda_python}" == f">={docker_python}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(r"^ARG EXTRA=(\S+)$", docker, re.MULTILINE)[1] in extras
    assert re.search(r"^EXTRA +\?= (\S+)$", makefile, re.MULTILINE)[1] in extras
    covered_apart = re.search(r"^NO_CORE +:= (.*)$", makefile, re.MULTILINE)[1]
    assert covered_apart == "lfo/lab/**,lfo/cli.py,lfo/rollout/vllm/**", "`make test` covers other modules"


def test_every_extra_is_tried_by_a_line():
    """By `make test-extras`; those that exclude each other alone, all others beside cpu."""
    script = runpy.run_path(str(ROOT / "scripts" / "extras.py"))
    assert set(script["LINES"]) == {*script["extras"](), "bare"}
    for name, line in script["LINES"].items():
        compile(line, name, "exec")
    assert script["installations"]("bare")[0] == ["--no-deps", "-e", "."]
    for name in script["extras"]():
        assert script["installations"](name) == [["-e", f".[{name}]" if name in script["ALONE"] else f".[cpu,{name}]"]]
    assert all((ROOT / path).is_dir() for path, *_ in script["TESTS"].values())


@pytest.mark.parametrize(
    ("name", "package"), [("server", "fastapi"), ("server", "uvicorn"), ("twc", "textworld_express")]
)
def test_the_line_of_an_extra_fails_without_it(name, package):
    """`lfo` imports these two only when they are needed: a line that imports `lfo` alone would pass anywhere."""
    line = runpy.run_path(str(ROOT / "scripts" / "extras.py"))["LINES"][name]
    hidden = [sys.executable, "-c", f"import sys; sys.modules['{package}'] = None; {line}"]
    done = subprocess.run(hidden, capture_output=True, text=True, check=False)
    assert done.returncode and package in done.stderr.replace("-", "_")


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
    """Each of the two files installs the repository with an extra, and nothing that a pyproject.toml does not pin."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    apart = {"Dockerfile": [], "Makefile": ["-e", ".[cpu]", "-e", "integrations/verifiers_lfo[test]", "$(DOCS)"]}
    assert installed((ROOT / name).read_text(encoding="utf-8"), extra) == ["-e", f".[{extra},dev,twc]", *apart[name]]
    assert {extra, "dev", "twc", "docs"} <= set(extras)


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


def test_citation_names_this_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == lfo.__version__


# ---------------------------------------------------------------- developer paths


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
