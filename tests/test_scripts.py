"""scripts/: bubblewrap is installed where that takes no question; the guide's positions are the commands' options."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lfo.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("bash", "env", "true")


def machine(folder: Path, **programs: str) -> dict[str, str]:
    """An environment whose PATH has these programs, as lines of shell, and what every machine has."""
    for name in NEEDED:
        (folder / name).symlink_to(shutil.which(name))
    for name, body in programs.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
        path.chmod(0o755)
    return {"PATH": str(folder), "LOG": str(folder / "log")}


APT = 'echo "apt-get $*" >> "$LOG"'
ALLOWED = {"unshare": "exit 0", "id": "echo 0"}


def bubblewrap(env: dict[str, str]) -> tuple[str, list[str]]:
    """What scripts/bubblewrap.sh says, and what it asked apt for. It never fails."""
    done = subprocess.run([ROOT / "scripts" / "bubblewrap.sh"], env=env, capture_output=True, text=True)
    assert done.returncode == 0
    log = Path(env["LOG"])
    return done.stdout, log.read_text().splitlines() if log.exists() else []


INSTALL = "apt-get install --yes --no-install-recommends bubblewrap uidmap"
THERE = {"bwrap": "exit 0", "newuidmap": "exit 0"}
IDS = "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 nobody"
USERMOD = APT.replace("apt-get", "usermod")


@pytest.mark.parametrize(
    ("programs", "said", "asked"),
    [
        (THERE | {"apt_get": APT} | ALLOWED, "", []),
        (
            {"bwrap": "exit 0", "apt_get": APT} | ALLOWED,
            "installing uidmap with apt",
            [INSTALL.replace("bubblewrap ", "")],
        ),
        ({"apt_get": APT} | ALLOWED, "installing bubblewrap uidmap with apt", [INSTALL]),
        (
            {"apt_get": APT, "sudo": 'shift; "$@"'} | ALLOWED | {"id": "echo 1000"},
            "installing bubblewrap uidmap with apt",
            [INSTALL],
        ),
        ({"apt_get": APT, "sudo": "exit 1"} | ALLOWED | {"id": "echo 1000"}, "this is not root", []),
        ({"apt_get": APT} | ALLOWED | {"unshare": "exit 1"}, "allows no user namespaces", []),
        (ALLOWED, "there is no apt-get here", []),
        ({"apt_get": f"{APT}; exit 100"} | ALLOWED, "apt failed (as root:", [INSTALL, "apt-get update"]),
        (
            {"apt_get": f'{APT}; mapfile -t asked < "$LOG"; [ "$1" = update ] || [ "${{#asked[@]}}" = 3 ]'} | ALLOWED,
            "installing bubblewrap uidmap with apt",
            [INSTALL, "apt-get update", INSTALL],
        ),
    ],
    ids=["there", "half", "root", "sudo", "nobody", "no namespaces", "no apt", "apt fails", "old lists"],
)
def test_bubblewrap_is_installed_where_that_takes_no_question(tmp_path, programs, said, asked):
    told, log = bubblewrap(machine(tmp_path, **programs))
    assert log == asked and said in told
    assert ("are left out" in told) == (said != "" and "installing" not in said)


@pytest.mark.parametrize(
    ("given", "user", "asked"),
    [
        (None, "0", [IDS]),
        ("ada:300000:65536\n", "0", [IDS]),
        ("ada:100000:65536\n", "0", []),
        ("nobody:500000:65536\n", "0", []),
        (None, "1000", []),
    ],
)
def test_nobody_is_given_ids_unless_they_are_taken(tmp_path, given, user, asked):
    env = machine(tmp_path, **THERE, usermod=USERMOD, id=f"echo {user}") | {"SUBUID": str(tmp_path / "subuid")}
    if given:
        (tmp_path / "subuid").write_text(given)
    told, log = bubblewrap(env)
    assert log == asked and ("100000 to 165535" in told) == bool(asked)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        (
            "train_lora_rl",
            ["c.yaml", "out", "3", "8", "--device", "cuda"],
            "shell train --config_path c.yaml --output_dir out --num_epochs 3 --samples_per_epoch 8 --device cuda",
        ),
        (
            "train_lora_rl",
            [],
            "shell train --config_path configs/qwen25_32b_os.yaml --output_dir lora_checkpoints --num_epochs 10"
            " --samples_per_epoch 50",
        ),
        (
            "evaluate_lora",
            ["c.yaml", "out/epoch_2", "both"],
            "shell evaluate --config_path c.yaml --lora_weights_path out/epoch_2 --mode both",
        ),
        (
            "evaluate_lora",
            ["c.yaml", "out/epoch_2", "merge", "9", "--merged_model_path", "m"],
            "shell evaluate --config_path c.yaml --lora_weights_path out/epoch_2 --mode merge --merged_model_path m",
        ),
        (
            "evaluate_lora",
            ["c.yaml", "out/epoch_2", "evaluate", "9", "--device", "cuda"],
            "shell evaluate --config_path c.yaml --lora_weights_path out/epoch_2 --mode evaluate --num_samples 9"
            " --device cuda",
        ),
    ],
)
def test_the_guides_positions_are_options(tmp_path, name, given, expected):
    said = tmp_path / "lfo"
    said.write_text('#!/bin/sh\necho "$*"\n')
    said.chmod(0o755)
    command = [ROOT / "scripts" / f"{name}.sh", *given]
    done = subprocess.run(command, env=os.environ | {"LFO": str(said)}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected
    build_parser().parse_args(expected.split())


def test_ci_runs_the_readmes_test_command_and_nothing_else():
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[-1] == "exec make test" and len(lines) == 3  # and: stop at errors, go to the root
    assert "make test " in (ROOT / "README.md").read_text(encoding="utf-8")
