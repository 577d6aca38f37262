"""What every sandbox has in common, whatever system its bash lives on: limits, the supervisor, how house tools ask.

A system is started by `lfo.envs.shell.bubblewrap` (this machine's /usr, or a whole root file system in a folder) or by
`lfo.envs.shell.containers` (an image of Docker's). In each of them a supervisor of a few lines is process 1 and holds
rights that commands do not have, so that the kernel lets none of them look into it (ptrace(2), "Ptrace access mode
checking"). Knows nothing of tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

MIB = 2**20
GRACE = 5.0  # seconds in which a supervisor must answer once its command was ended
TOOLS = "/opt/house"  # read-only, first in PATH
NOBODY = "65534"

# Its arguments: the desk's file descriptor or "", the home folder, what runs a command's text. USR1 ends a command.
SUPERVISOR = r"""
echo 1000 > /proc/self/oom_score_adj
[ -z "$1" ] || exec 9<&"$1"
mkdir -p -m 1777 /var/tmp
[ -s /etc/passwd ] || { echo "user:x:1000:1000:user:/home:/bin/bash" > /etc/passwd; echo "user:x:1000:" > /etc/group; }
trap 'kill -KILL -1' USR1
echo ready
exec 2> /dev/null
while IFS= read -r -d "" mark && IFS= read -r -d "" command; do
  cd "$2"
  "${@:3}" "$command" bash < /dev/null 2>&1 &
  wait $!
  kill -KILL -1
  wait $!
  printf "%s%d\n" "$mark" $?
done
"""

# What a house tool is inside: it hands its arguments, counted, to the desk outside and says what was answered.
_CLIENT = r"""#!/bin/bash
printf "%s\0" $(($# + 1)) "${0##*/}" "$@" ASK
answer=$(dd bs=65536 count=1 ANSWER 2> /dev/null)
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

    def options(self, processes: bool = True) -> list[str]:
        """Of prlimit(1). processes: of the user, as the kernel counts them."""
        sizes = [
            f"--as={self.memory}",
            f"--fsize={self.file}",
            "--nofile=256",
            "--core=0",
            f"--cpu={int(self.seconds) + 1}",
        ]
        return [*([f"--nproc={self.processes}"] if processes else []), *sizes]


AS_USUAL = Limits()


@dataclasses.dataclass(frozen=True)
class Started:
    """A supervisor that is ready for commands.

    process: takes commands at its stdin, and ends with the sandbox. output: the descriptor from which is read what they
    say. send: a signal to the supervisor. pid: its process id as it is outside; 0 where that is not known. close: gives
    back what else was taken.
    """

    process: subprocess.Popen
    output: int
    send: Callable[[signal.Signals], None]
    pid: int
    close: Callable[[], None]


def tried(command: Sequence[str], **options) -> subprocess.CompletedProcess:
    """What came of a command that is soon over. Nothing raises: one that takes a minute has failed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def acting(user: str, home: str, path: str, rights: Sequence[str], limits: Sequence[str]) -> list[str]:
    """What runs a command's text: with a clean environment, and without the supervisor's rights.

    SHELL: bash looks it up otherwise. PYTHONNOUSERSITE: nobody's modules run with an evaluation's.
    """
    clean = ["/usr/bin/env", "-i", "--default-signal=INT,QUIT", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8"]
    clean += ["SHELL=/usr/bin/bash", "PYTHONNOUSERSITE=1", f"PATH={TOOLS}:{path}"]
    return [*clean, "/usr/bin/setpriv", "--inh-caps=-all", *rights, "/usr/bin/prlimit", *limits, "/usr/bin/bash", "-c"]


# --- how house tools and their desk talk ---------------------------------------------------------


class Socket:
    """A pair of sockets that keep messages apart; one of them is handed in. A message that finds no room is lost."""

    ASK, ANSWER = ">&9", "<&9"

    def __init__(self):
        self._outside, self.inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._outside.setblocking(False)

    def fileno(self) -> int:
        return self._outside.fileno()

    def hear(self) -> bytes:
        """What was asked; nothing, once nobody will ask any more. BlockingIOError: somebody else has heard it."""
        return self._outside.recv(65536)

    def say(self, text: bytes) -> None:
        self._outside.send(text)

    def forget(self) -> None:
        """What was asked and not answered, and what was answered and not read."""
        for end in (self._outside, self.inside):
            with contextlib.suppress(OSError):
                while end.recv(1, socket.MSG_DONTWAIT):  # nothing: somebody inside has shut it down
                    pass

    def close(self) -> None:
        self._outside.close()
        self.inside.close()


class Fifos:
    """Two named pipes in a folder that is mounted inside, where no descriptor can be handed in."""

    ASK, ANSWER = f"> {TOOLS}/.ask", f"< {TOOLS}/.answer"

    def __init__(self, folder: Path):
        self._ends = []
        for name in (".ask", ".answer"):
            os.mkfifo(folder / name)
            (folder / name).chmod(0o666)
            self._ends.append(os.open(folder / name, os.O_RDWR | os.O_NONBLOCK))

    def fileno(self) -> int:
        return self._ends[0]

    def hear(self) -> bytes:
        """As `Socket.hear`."""
        return os.read(self._ends[0], 65536)

    def say(self, text: bytes) -> None:
        os.write(self._ends[1], text)

    def forget(self) -> None:
        for end in self._ends:
            with contextlib.suppress(BlockingIOError):
                while os.read(end, 65536):
                    pass

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


def client(line: type[Socket] | type[Fifos]) -> str:
    """The program that all house tools are inside."""
    return _CLIENT.replace("ASK", line.ASK).replace("ANSWER", line.ANSWER)


def pipe(ours: contextlib.ExitStack, undo: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose end for writing is the sandbox's own: /dev/stderr is opened by name, which asks who owns it."""
    reads, writes = os.pipe()
    undo.callback(os.close, reads)
    ours.callback(os.close, writes)
    if os.geteuid() == 0:
        os.fchown(writes, int(NOBODY), int(NOBODY))
    return reads, writes
