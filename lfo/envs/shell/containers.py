"""Sandboxes in images of the local Docker engine, or of Podman, which takes the same commands.

Read-only but for `WRITABLE`. Whoever acts is nobody; the supervisor is root of the container. Processes and memory are
bounded for all of it together.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lfo.envs.shell.systems import (
    GRACE,
    NOBODY,
    SUPERVISOR,
    TOOLS,
    Fifos,
    Limits,
    SandboxError,
    Started,
    acting,
    client,
    pipe,
    tried,
)

PREFIX = "docker:"  # of `env.sandbox`, before an image
WRITABLE = ("/home", "/tmp", "/var/tmp", "/srv", "/run", "/root", "/dev/shm")  # an image has files in /etc and /var
SUPERVISED = "KILL SETUID SETGID SETPCAP CHOWN".split()  # capabilities of the supervisor alone
NEEDED = "for x in env setpriv prlimit timeout dd chmod chown; do [ -x /usr/bin/$x ] || { echo no $x; exit 1; }; done"


@functools.lru_cache(maxsize=1)
def engine() -> str:
    """Docker, or Podman where Docker is missing or only a client; "" where there is none."""
    there = (name for name in ("docker", "podman") if shutil.which(name))
    return next((name for name in there if tried([name, "info"]).returncode == 0), "")


def problem(image: str) -> str:
    """Why there can be no sandbox of this image, "" if there can."""
    if not engine():
        return "there is no Docker engine here (`docker info` fails), nor Podman: install one, or set no env.sandbox."
    run = [engine(), "run", "--rm", "--pull=never", "--network=none", "--entrypoint=/usr/bin/bash"]
    done = tried([*run, image, "-c", NEEDED])
    if done.returncode == 0:
        return ""
    said = (done.stdout + done.stderr).strip()[-500:]
    return (
        f"the image {image} cannot be used by {engine()} ({said}): it must be there (`{engine()} pull {image}`), with"
        " bash, coreutils (8.31 or newer) and util-linux (2.33) in /usr/bin, as debian:stable-slim has them."
    )


def start(image: str, limits: Limits, tools: Sequence[str]) -> tuple[Started, Fifos]:
    """A sandbox of an image, and the line on which its house tools ask.

    Raises:
        SandboxError: the engine makes none.
    """
    name = f"lfo-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="lfo-sandbox-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        line = undo.enter_context(contextlib.closing(_filled(folder, tools)))
        output, theirs = pipe(ours, undo)
        process = subprocess.Popen(
            [*_container(image, name, limits, folder), *_supervised(limits)],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
        undo.callback(process.communicate)  # gives back its pipes, and waits for it
        undo.callback(process.kill)
        ours.close()
        if os.read(output, 6) != b"ready\n":
            raise SandboxError(f"{engine()} made no sandbox: {process.stderr.read().decode(errors='replace').strip()}")
        undo.pop_all()

    def send(sent: signal.Signals) -> None:
        last = sent == signal.SIGKILL
        tried([engine(), "rm", "--force", name] if last else [engine(), "kill", f"--signal={sent.name}", name])

    def close() -> None:
        process.stderr.close()
        shutil.rmtree(folder, ignore_errors=True)

    return Started(process, output, send, 0, close), line


def _filled(folder: Path, tools: Sequence[str]) -> Fifos:
    """A folder that is mounted inside: the supervisor, the house tools, and the line."""
    folder.chmod(0o755)
    for file, text in ((".client", client(Fifos)), (".supervisor", SUPERVISOR)):
        (folder / file).write_text(text)
        (folder / file).chmod(0o555)
    for tool in tools:
        (folder / tool).symlink_to(".client")
    return Fifos(folder)


def _container(image: str, name: str, limits: Limits, folder: Path) -> list[str]:
    fenced = ["--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=0"]
    rights = [f"--cap-add={right}" for right in SUPERVISED]
    sizes = [f"--pids-limit={limits.processes + 8}", f"--memory={2 * limits.memory}"]
    places = [f"--tmpfs={place}:rw,exec,size={limits.disk},mode=1777" for place in WRITABLE]
    mounted = [f"--mount=type=bind,src={folder},dst={TOOLS},readonly", f"--name={name}", "--hostname=sandbox"]
    begun = [engine(), "run", "--rm", "--interactive", "--pull=never", *fenced, *rights, *sizes, *places, *mounted]
    return [*begun, "--entrypoint=/usr/bin/bash", image]


def _supervised(limits: Limits) -> list[str]:
    """The supervisor's command line. A command ends by itself should nobody be there any more who ends it.

    Podman gives the places the image's modes; what is said goes through a pipe, which /dev/stderr opens by name.
    """
    rights = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
    acts = acting("nobody", "/home", "/usr/bin:/bin", rights, limits.options(processes=False))
    late = ["/usr/bin/timeout", "--signal=KILL", f"{limits.seconds + 2 * GRACE:g}"]
    opened = f'chmod 1777 {" ".join(WRITABLE)}; chown {NOBODY} /dev/stdout; exec bash {TOOLS}/.supervisor "$@"'
    return ["-c", opened, "bash", "", "/home", *late, *acts]
