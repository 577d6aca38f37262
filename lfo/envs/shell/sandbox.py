"""A real bash that can do no harm: one bubblewrap sandbox per episode, without root, started in milliseconds.

The host's /usr is there to read; /home, /etc, /tmp, /var, /srv and /run are small file systems in memory that end with
the sandbox; there is no network and no other process. Every command is a fresh ``bash -c`` in /home: files
persist, directory, variables and background processes do not.

Inside, a supervisor of a few lines is process 1, which no signal from inside reaches. It holds one capability that
commands do not have, so that the kernel lets none of them look into it (ptrace(2), "Ptrace access mode checking"):
neither what it is told next nor the mark that ends an answer can be read or forged. After each command it kills
whatever is left, so nothing is running while an episode is evaluated. Time and output are watched from outside.

Limits hold for every process (`Limits`); a sandbox as a whole takes at most processes x memory, and `disk` for each of
its file systems. Without cgroups, which need root, nothing closer can be said; should memory run out all the same, the
kernel is asked to end sandboxes first.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import resource
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MIB = 2**20
TOOLS = "/opt/house"  # read-only, first in PATH
SUPERVISOR = "/opt/.supervisor"
WRITABLE = ("/home", "/etc", "/tmp", "/var", "/srv", "/run", "/root", "/dev/shm")
GRACE = 5.0  # seconds in which a supervisor must answer once its command was ended
NOBODY = "65534"
WITHOUT_ROOT = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

# Its arguments: the desk's file descriptor, the options of prlimit(1).
_SUPERVISOR = r"""
echo 1000 > /proc/self/oom_score_adj
exec 9<&$1 2> /dev/null
mkdir -m 1777 /var/tmp
echo "user:x:1000:1000:user:/home:/bin/bash" > /etc/passwd; echo "user:x:1000:" > /etc/group
clean=(/usr/bin/env -i HOME=/home USER=user LANG=C.UTF-8 PATH=/opt/house:/usr/bin:/bin
       /usr/bin/setpriv --ambient-caps=-all --inh-caps=-all /usr/bin/prlimit "${@:2}" /usr/bin/bash -c)
echo ready
while IFS= read -r -d "" mark && IFS= read -r -d "" command; do
  cd /home
  "${clean[@]}" "$command" bash < /dev/null 2>&1
  status=$?
  kill -KILL -1
  printf "%s%d\n" "$mark" "$status"
done
"""

# What a house tool is inside: it hands its arguments to the desk outside and says what was answered.
_CLIENT = r"""#!/bin/bash
printf "%s\0" "${0##*/}" "$@" >&9
answer=$(dd bs=65536 count=1 <&9 2> /dev/null)
status=${answer%% *}
[ "$status" = 0 ] || exec >&2
printf "%s\n" "${answer#* }"
exit "$status"
"""

Desk = Callable[[Sequence[str]], tuple[int, str]]  # name and arguments of a tool -> exit status, what it prints


class SandboxError(OSError):
    """There can be no sandbox here, or one has ended before its time. The message names the remedy."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a command may take. seconds: of the clock. memory: bytes of address space of one process. file, disk: bytes
    of a file and of each writable file system. output: bytes; a command that says more is ended."""

    seconds: float = 20.0
    processes: int = 64
    memory: int = 512 * MIB
    file: int = 16 * MIB
    disk: int = 32 * MIB
    output: int = 256 * 1024

    def options(self) -> list[str]:
        """Of prlimit(1)."""
        sizes = [f"--nproc={self.processes}", f"--as={self.memory}", f"--fsize={self.file}", "--nofile=256", "--core=0"]
        return [*sizes, f"--cpu={int(self.seconds) + 1}"]


AS_USUAL = Limits()


@dataclasses.dataclass(frozen=True)
class Ran:
    """What came of a command. status: 0 to 255, as a shell has it. output: stdout and stderr as they came.

    ended: why it was ended from outside, "time" or "output"; "" if it came to its own end.
    """

    status: int
    output: str
    ended: str = ""


class Sandbox:
    """Runs commands. tools: names of house tools, which `desk` answers. Use as a context manager, or `close`.

    Start it in a thread that outlives it: it ends with the thread that it was started in.

    Raises (on construction):
        SandboxError: bubblewrap is missing or cannot work here.
    """

    def __init__(self, limits: Limits = AS_USUAL, tools: Sequence[str] = (), desk: Desk | None = None):
        require_bubblewrap()
        self.limits, self._desk = limits, desk
        self._outside, self._inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._outside.setblocking(False)
        try:
            self._process, self._pid, self._output = _start(limits, tools, self._inside)
            self._supervisor = os.pidfd_open(self._pid)
        except BaseException:
            self._outside.close()
            self._inside.close()
            raise
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ, self._hear)
        self._selector.register(self._outside, selectors.EVENT_READ, self._serve)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def run(self, command: str) -> Ran:
        """A command's output and status; nothing that it started is still running afterwards.

        Raises:
            SandboxError: the sandbox has ended.
        """
        mark = secrets.token_hex(16).encode()
        text = command.replace("\0", "").encode(errors="replace")
        try:
            self._forget()
            self._process.stdin.write(mark + b"\0" + text + b"\0")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise SandboxError("the sandbox has ended; make another one.") from None
        self._heard, ended = bytearray(), ""
        deadline = time.monotonic() + self.limits.seconds
        while (at := self._heard.find(mark)) < 0 or self._heard[-1:] != b"\n":
            late = time.monotonic() > deadline
            if ended and late:
                self.close()
                raise SandboxError("the sandbox did not answer any more and was ended; make another one.")
            if late or (len(self._heard) > self.limits.output and not ended):
                ended, deadline = "time" if late else "output", time.monotonic() + GRACE
                self._interrupt()
            for key, _ in self._selector.select(max(0.0, deadline - time.monotonic())):
                key.data()
        status = int(self._heard[at + len(mark) :])
        output = bytes(self._heard[: min(at, self.limits.output)])
        return Ran(status, output.decode(errors="replace"), ended)

    def close(self) -> None:
        """End everything in it and wait until it is gone; may be called again."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._supervisor, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        for descriptor in (self._output, self._supervisor):
            os.close(descriptor)
        for held in (self._selector, self._outside, self._inside):
            held.close()

    # --- while a command runs -----------------------------------------------------------------

    def _hear(self) -> None:
        heard = os.read(self._output, 65536)
        if not heard:
            self.close()
            raise SandboxError("the sandbox has ended; make another one.")
        self._heard += heard

    def _serve(self) -> None:
        """Answer a house tool. Whatever comes in was written by anybody inside."""
        words = self._outside.recv(65536).decode(errors="replace").split("\0")[:-1]
        status, text = self._desk(words) if self._desk and words else (1, "")
        with contextlib.suppress(OSError):  # nobody reads
            self._outside.send(f"{status} {text}".encode(errors="replace")[:60_000])

    def _forget(self) -> None:
        """What an earlier command asked and was not answered, and what it was answered and has not read."""
        for end in (self._outside, self._inside):
            with contextlib.suppress(OSError):
                while True:
                    end.recv(1, socket.MSG_DONTWAIT)

    def _interrupt(self) -> None:
        """Kill the command, whose process is a child of the supervisor, which then kills all others."""
        with contextlib.suppress(OSError):  # it may have ended by itself
            for pid in Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)


def require_bubblewrap() -> None:
    """Raises SandboxError where no sandbox can be made, and says what to install or to allow.

    This process may have as many files open as it is allowed to from then on: a sandbox holds six descriptors, and
    there are as many sandboxes as episodes are played at once.
    """
    if problem := _problem(shutil.which("bwrap")):
        raise SandboxError(problem)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@functools.lru_cache(maxsize=1)
def _problem(bwrap: str | None) -> str:
    """Why there can be no sandbox, "" if there can."""
    remedy = "on Debian and Ubuntu: apt-get install bubblewrap"
    if not bwrap:
        return f"shell tasks run in a sandbox, and bubblewrap (0.8 or newer) is missing; {remedy}."
    tried = subprocess.run(
        [
            *_unprivileged(),
            bwrap,
            *ISOLATION,
            "--ro-bind",
            "/usr",
            "/usr",
            *_links(),
            "--proc",
            "/proc",
            "/usr/bin/true",
        ],
        capture_output=True,
        text=True,
    )
    if tried.returncode == 0:
        return ""
    return (
        f"bubblewrap cannot make a sandbox here ({tried.stderr.strip()}): it must be 0.8 or newer ({remedy}), and the"
        " kernel must allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu also"
        " kernel.apparmor_restrict_unprivileged_userns=0; in a container --security-opt seccomp=unconfined)."
    )


ISOLATION = [
    *"--unshare-user --unshare-all --disable-userns --die-with-parent --new-session --as-pid-1".split(),
    *"--cap-add CAP_KILL --uid 1000 --gid 1000 --hostname sandbox --clearenv".split(),
]


def _unprivileged() -> list[str]:
    """Whoever is root becomes nobody first: the kernel counts no processes of root."""
    return WITHOUT_ROOT if os.geteuid() == 0 else []


def _links() -> list[str]:
    """/bin, /lib and the like, which are links into /usr on every host that is younger than ten years."""
    options = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        place = Path("/", name)
        if place.is_symlink():
            options += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    return options


def _file_system(limits: Limits, files: Mapping[str, int], tools: Sequence[str]) -> list[str]:
    """What is seen inside. files: place -> a file descriptor from which its text is read."""
    options = ["--ro-bind", "/usr", "/usr", *_links(), "--proc", "/proc", "--dev", "/dev"]
    for place in (*WRITABLE, "/opt", *_hidden()):
        options += ["--size", str(limits.disk), "--tmpfs", place]
    options += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]  # awk and others are links through it
    options += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind", "/dev/null", "/etc/ld.so.preload"]
    for place, descriptor in files.items():
        options += ["--perms", "0555", "--file", str(descriptor), place]
    for name in tools:
        options += ["--symlink", ".client", f"{TOOLS}/{name}"]
    for place in ("/opt", *_hidden(), "/dev", "/"):
        options += ["--remount-ro", place]
    return options


def _hidden() -> list[str]:
    """What of /usr nobody inside needs; lfo itself, with all that is hidden, may be installed there."""
    return [place for place in ("/usr/local", "/usr/src") if os.path.isdir(place)]


def _start(limits: Limits, tools: Sequence[str], desk: socket.socket) -> tuple[subprocess.Popen, int, int]:
    """A sandbox whose supervisor is ready for commands: bubblewrap, the supervisor's process id as it is outside, and
    the descriptor from which output is read."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as undo:
        output, theirs = _pipe(ours, undo)
        info, told = _pipe(ours, undo)
        files = {f"{TOOLS}/.client": _memory(_CLIENT, ours), SUPERVISOR: _memory(_SUPERVISOR, ours)}
        command = [*_unprivileged(), "bwrap", *ISOLATION, "--info-fd", str(told), *_file_system(limits, files, tools)]
        process = subprocess.Popen(
            [*command, "--", "/usr/bin/bash", SUPERVISOR, str(desk.fileno()), *limits.options()],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
            pass_fds=(told, desk.fileno(), *files.values()),
        )
        undo.callback(process.communicate)  # gives back its pipes, and waits for it
        undo.callback(process.kill)
        ours.close()
        with open(info, closefd=False) as lines:
            said = lines.read()
        if not said or os.read(output, 6) != b"ready\n":
            reason = process.stderr.read().decode(errors="replace").strip()
            raise SandboxError(f"bubblewrap made no sandbox: {reason}")
        undo.pop_all()
        os.close(info)
        process.stderr.close()
        return process, json.loads(said)["child-pid"], output


def _pipe(ours: contextlib.ExitStack, undo: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose end for writing is the sandbox's own: /dev/stderr is opened by name, which asks who owns it."""
    reads, writes = os.pipe()
    undo.callback(os.close, reads)
    ours.callback(os.close, writes)
    if os.geteuid() == 0:
        os.fchown(writes, int(NOBODY), int(NOBODY))
    return reads, writes


def _memory(text: str, ours: contextlib.ExitStack) -> int:
    """A descriptor from which a text can be read."""
    descriptor = os.memfd_create("lfo")
    ours.callback(os.close, descriptor)
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
