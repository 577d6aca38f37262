"""Where a sandbox's bash lives: three systems, each started by what its host has, with the same supervisor in all.

- the host's own (``""``), by bubblewrap: its /usr is there to read; /home, /etc, /tmp, /var, /srv and /run are small
  file systems in memory; whoever acts is user 1000.
- a folder (`unpack` fills one): a whole root file system, by bubblewrap in a user namespace of 65,536 ids, under an
  overlay in memory. Whoever acts is root in there, for tasks with users, groups and owners; /usr is read-only.
- ``docker:IMAGE``: an image of the local Docker engine (or Podman, which takes the same commands), read-only, with
  small file systems in memory in /home, /tmp, /srv and the like; whoever acts is nobody.

Whatever the system, the supervisor is process 1 and holds capabilities that commands do not have, so that the kernel
lets none of them look into it (ptrace(2), "Ptrace access mode checking"); what evaluations run with cannot be changed.
Knows nothing of tasks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pwd
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

MIB = 2**20
TOOLS = "/opt/house"  # read-only, first in PATH
SUPERVISOR = "/opt/.supervisor"
WRITABLE = ("/home", "/etc", "/tmp", "/var", "/srv", "/run", "/root", "/dev/shm")
CONTAINED = ("/home", "/tmp", "/var/tmp", "/srv", "/run", "/root", "/dev/shm")  # an image has files in /etc and /var
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # into /usr, on every system younger than ten years
NOBODY = "65534"
WITHOUT_ROOT = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
DOCKER = "docker:"

# Its arguments: the desk's file descriptor or "", the home folder, what runs a command's text. USR1 ends a command.
_SUPERVISOR = r"""
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

# Its arguments: the folder, bytes of the overlay, what is run then. Links into /usr become places that nobody moves.
_OVERLAY = r"""
set -e
cd "$1"
mount -t tmpfs -o "size=$2,mode=755" tmpfs /mnt
mkdir /mnt/upper /mnt/work /mnt/root
mount -t overlay overlay -o lowerdir=.,upperdir=/mnt/upper,workdir=/mnt/work,userxattr /mnt/root
for link in LINKS; do
  [ ! -L /mnt/root/$link ] || { rm /mnt/root/$link; mkdir /mnt/root/$link; }
done
echo 0 > /proc/sys/user/max_user_namespaces
exec "${@:3}"
""".replace("LINKS", " ".join(LINKS))

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
        return self._outside.recv(65536)

    def say(self, text: bytes) -> None:
        self._outside.send(text)

    def forget(self) -> None:
        """What was asked and not answered, and what was answered and not read."""
        for end in (self._outside, self.inside):
            with contextlib.suppress(OSError):
                while True:
                    end.recv(1, socket.MSG_DONTWAIT)

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


def client(line: Socket | Fifos | type) -> str:
    return _CLIENT.replace("ASK", line.ASK).replace("ANSWER", line.ANSWER)


# --- which system, and whether it works -----------------------------------------------------------


def require_system(system: str = "") -> None:
    """Raises SandboxError where no sandbox of this system can be made, and says what to install or to allow.

    This process may have as many files open as it is allowed to from then on: a sandbox holds six descriptors, and
    there are as many sandboxes as episodes are played at once.
    """
    if problem := _problem(system, shutil.which("bwrap")):
        raise SandboxError(problem)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@functools.lru_cache(maxsize=8)
def _problem(system: str, bwrap: str | None) -> str:
    """Why there can be no sandbox, "" if there can."""
    if system.startswith(DOCKER):
        return _docker_problem(system.removeprefix(DOCKER))
    remedy = "on Debian and Ubuntu: apt-get install bubblewrap"
    if not bwrap:
        return f"shell tasks run in a sandbox, and bubblewrap (0.8 or newer) is missing; {remedy}."
    if system:
        return _folder_problem(Path(system), bwrap)
    usr = ["--ro-bind", "/usr", "/usr", *_links(), "--proc", "/proc"]
    tried = _tried([*_unprivileged(), bwrap, *ISOLATION, *usr, "/usr/bin/true"])
    if tried.returncode == 0:
        return ""
    return (
        f"bubblewrap cannot make a sandbox here ({tried.stderr.strip()}): it must be 0.8 or newer ({remedy}), and the"
        " kernel must allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu also"
        " kernel.apparmor_restrict_unprivileged_userns=0; in a container --security-opt seccomp=unconfined)."
    )


def _tried(command: Sequence[str]) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)


ISOLATION = [
    *"--unshare-user --unshare-all --disable-userns --die-with-parent --new-session --as-pid-1".split(),
    *"--cap-add CAP_KILL --uid 1000 --gid 1000 --hostname sandbox --clearenv".split(),
]
# What follows is root of a user namespace with 65,536 ids. Its users together, and all other sandboxes of this user,
# may have so many processes (user_namespaces(7): the limits of whoever makes one hold for all in it).
AS_ROOT = "prlimit --nproc=16384 unshare --user --map-auto --map-root-user --mount".split()
# The user namespace is there already, and nobody inside can make another one.
ISOLATED_ROOT = [
    *"--unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try --die-with-parent".split(),
    *"--new-session --as-pid-1 --cap-add ALL --hostname sandbox --clearenv".split(),
]
# What root may do in there.
ROOT_MAY = "chown dac_override fowner fsetid kill setgid setuid setpcap setfcap net_bind_service sys_chroot audit_write"


def _unprivileged() -> list[str]:
    """Whoever is root becomes nobody first: the kernel counts no processes of root."""
    return WITHOUT_ROOT if os.geteuid() == 0 else []


def _acting(home: str, user: str, path: str, rights: Sequence[str], limits: Sequence[str]) -> list[str]:
    """What runs a command's text: with a clean environment, and without the supervisor's rights."""
    clean = ["/usr/bin/env", "-i", "--default-signal=INT,QUIT", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8"]
    drop = ["/usr/bin/setpriv", "--inh-caps=-all", *rights]
    return [*clean, f"PATH={TOOLS}:{path}", *drop, "/usr/bin/prlimit", *limits, "/usr/bin/bash", "-c"]


def start(system: str, limits: Limits, tools: Sequence[str]) -> tuple[Started, Socket | Fifos]:
    """A sandbox of a system, and the line on which its house tools ask."""
    if system.startswith(DOCKER):
        return _start_container(system.removeprefix(DOCKER), limits, tools)
    line = Socket()
    try:
        inside = str(line.inside.fileno())
        files = {f"{TOOLS}/.client": client(Socket), SUPERVISOR: _SUPERVISOR}
        if system:
            rights = ["--bounding-set=-all," + ",".join(f"+{name}" for name in ROOT_MAY.split())]
            path = "/usr/sbin:/usr/bin:/sbin:/bin"
            acting = ["/root", *_acting("/root", "root", path, rights, limits.options())]
            before, seen = _in_overlay(Path(system), limits), _folder_file_system(Path(system), limits)
        else:
            acting = ["/home", *_acting("/home", "user", "/usr/bin:/bin", ["--ambient-caps=-all"], limits.options())]
            before, seen = ["bwrap", *ISOLATION], _host_file_system(limits)
        links = [part for name in tools for part in ("--symlink", ".client", f"{TOOLS}/{name}")]
        sealed = [*links, *_sealed(system)]
        return _start_bubblewrap([*_unprivileged(), *before, *seen], files, sealed, [inside, *acting], line), line
    except BaseException:
        line.close()
        raise


# --- the host's own, and a folder ------------------------------------------------------------------


def _start_bubblewrap(
    command: Sequence[str], files: Mapping[str, str], sealed: Sequence[str], arguments: Sequence[str], line: Socket
) -> Started:
    """files: place -> text, read-only and executable. sealed: options after them. arguments: the supervisor's."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as undo:
        output, theirs = _pipe(ours, undo)
        info, told = _pipe(ours, undo)
        held = {place: _memory(text, ours) for place, text in files.items()}
        written = [part for place, fd in held.items() for part in ("--perms", "0555", "--file", str(fd), place)]
        inside = ["--info-fd", str(told), "--", "/usr/bin/bash", SUPERVISOR, *arguments]
        process = subprocess.Popen(
            [*command, *written, *sealed, *inside],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
            pass_fds=(told, line.inside.fileno(), *held.values()),
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
        pid = json.loads(said)["child-pid"]
        supervisor = os.pidfd_open(pid)

        def send(sent: signal.Signals) -> None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(supervisor, sent)

        return Started(process, output, send, pid, functools.partial(os.close, supervisor))


def _links() -> list[str]:
    """/bin, /lib and the like of the host."""
    options = []
    for place in (Path("/", name) for name in LINKS):
        if place.is_symlink():
            options += ["--symlink", os.readlink(place), str(place)]
        elif place.is_dir():
            options += ["--ro-bind", str(place), str(place)]
    return options


def _host_file_system(limits: Limits) -> list[str]:
    """What is seen inside, options of bubblewrap's."""
    options = ["--ro-bind", "/usr", "/usr", *_links(), "--proc", "/proc", "--dev", "/dev"]
    for place in (*WRITABLE, "/opt", *_hidden()):
        options += ["--size", str(limits.disk), "--tmpfs", place]
    return [*options, *_of_the_loader("")]


def _of_the_loader(root: str) -> list[str]:
    """What decides which file a command is: not to be changed by who is to be evaluated."""
    options = ["--ro-bind", "/dev/null", "/etc/ld.so.preload"]
    for place in ("/etc/alternatives", "/etc/ld.so.cache"):  # awk and others are links through the first
        options += ["--ro-bind-try", f"{root}{place}", place]
    return options


def _sealed(system: str) -> list[str]:
    """What nobody writes to any more once the supervisor and the house tools lie there."""
    places = ["/opt", "/dev"] if system else ["/opt", *_hidden(), "/dev", "/"]
    return [part for place in places for part in ("--remount-ro", place)]


def _hidden() -> list[str]:
    """What of /usr nobody inside needs; lfo itself, with all that is hidden, may be installed there."""
    return [place for place in ("/usr/local", "/usr/src") if os.path.isdir(place)]


def _in_overlay(folder: Path, limits: Limits) -> list[str]:
    """What is written is held in memory."""
    size = str(limits.disk * len(WRITABLE))
    return [*AS_ROOT, "bash", "-c", _OVERLAY, "bash", str(folder), size, "bwrap", *ISOLATED_ROOT]


def _folder_file_system(folder: Path, limits: Limits) -> list[str]:
    """/usr, and what leads into it, is the folder's own; everything else is the overlay's."""
    options = ["--bind", "/mnt/root", "/", "--bind", "/mnt/root/etc", "/etc", "--ro-bind", f"{folder}/usr", "/usr"]
    for name in LINKS:
        if (folder / name).is_symlink() and (folder / name).exists():
            options += ["--ro-bind", f"{folder}/{os.readlink(folder / name).lstrip('/')}", f"/{name}"]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/run", "/opt", "/dev/shm"):
        options += ["--size", str(limits.disk), "--tmpfs", place]
    return [*options, *_of_the_loader(str(folder))]


def _folder_problem(folder: Path, bwrap: str) -> str:
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    if not folder.is_absolute():
        return f"env.sandbox '{folder}' is no absolute path and no docker:IMAGE; write {folder.resolve()}."
    if not (folder / "usr/bin/bash").is_file():
        return f"{folder} holds no root file system (usr/bin/bash is missing); make one with `lfo shell root`."
    inside = ["/usr/bin/prlimit", "/usr/bin/setpriv", "/usr/bin/bash", "-c", ":"]
    way = [*_unprivileged(), *_in_overlay(folder, AS_USUAL), *_folder_file_system(folder, AS_USUAL)]
    tried = _tried([*way, *inside])
    if tried.returncode == 0:
        return ""
    return (
        f"the root file system {folder} cannot be used ({tried.stderr.strip()}): it takes uidmap (on Debian and Ubuntu:"
        " apt-get install uidmap), ids (usermod --add-subuids 100000-165535 --add-subgids 100000-165535"
        f" {user}),"
        f" a folder that {user} may read, with bash and util-linux in it, and Linux 5.11 or newer."
    )


DECOMPRESSED = {".gz": "--gzip", ".tgz": "--gzip", ".xz": "--xz", ".zst": "--zstd"}


def unpack(archive: Path, folder: Path) -> Path:
    """A root file system from an archive (debootstrap's folder, mmdebstrap, ``docker export``), for `env.sandbox`.

    Its owners are ids of the user namespace that sandboxes are made in.

    Raises:
        SandboxError: the folder is not empty, or it cannot be unpacked or used. FileNotFoundError: there is no archive.
    """
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        raise SandboxError(f"{folder} is not empty; choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, int(NOBODY), int(NOBODY))
    way = [DECOMPRESSED[archive.suffix]] if archive.suffix in DECOMPRESSED else []
    skipped = ["--exclude=./dev/*", "--exclude=dev/*"]  # devices cannot be made, and are made anew
    with archive.open("rb") as packed:
        tried = subprocess.run(
            [
                *_unprivileged(),
                *AS_ROOT,
                "tar",
                "--extract",
                *way,
                "--file=-",
                f"--directory={folder}",
                "--numeric-owner",
                *skipped,
            ],
            stdin=packed,
            capture_output=True,
            text=True,
        )
    _problem.cache_clear()
    if problem := _problem(str(folder), shutil.which("bwrap")):
        raise SandboxError(f"{problem} tar said: {tried.stderr.strip()[-500:] or 'nothing'}")
    return folder


# --- an image of Docker's --------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _engine() -> str:
    """Docker, or Podman where Docker is missing or only a client; "" where there is none."""
    return next(
        (name for name in ("docker", "podman") if shutil.which(name) and not _tried([name, "info"]).returncode), ""
    )


def _docker_problem(image: str) -> str:
    if not _engine():
        return "there is no Docker engine here (`docker info` fails), nor Podman: install one, or set no env.sandbox."
    needed = (
        "for x in env setpriv prlimit dd chmod chown; do command -v $x > /dev/null || { echo no $x; exit 1; }; done"
    )
    tried = _tried([_engine(), "run", "--rm", "--network=none", "--entrypoint=/usr/bin/bash", image, "-c", needed])
    if tried.returncode == 0:
        return ""
    said = (tried.stdout + tried.stderr).strip()[-500:]
    return (
        f"the image {image} cannot be used by {_engine()} ({said}): it takes bash, coreutils (8.31 or newer) and"
        " util-linux (2.33) in /usr/bin, as debian:stable-slim has them."
    )


def _container(image: str, name: str, limits: Limits, folder: str) -> list[str]:
    """Read-only but for `CONTAINED`. Processes and memory are bounded for all of it together."""
    supervisor = "KILL SETUID SETGID SETPCAP CHOWN".split()
    fenced = ["--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--user=0"]
    sizes = [f"--pids-limit={limits.processes + 8}", f"--memory={2 * limits.memory}"]
    places = [f"--tmpfs={place}:rw,exec,size={limits.disk},mode=1777" for place in CONTAINED]
    mounted = [f"--mount=type=bind,src={folder},dst={TOOLS},readonly", f"--name={name}", "--hostname=sandbox"]
    rights = [*fenced, *(f"--cap-add={right}" for right in supervisor)]
    return [
        _engine(),
        "run",
        "--rm",
        "--interactive",
        *rights,
        *sizes,
        *places,
        *mounted,
        "--entrypoint=/usr/bin/bash",
        image,
    ]


def _start_container(image: str, limits: Limits, tools: Sequence[str]) -> tuple[Started, Fifos]:
    name = f"lfo-{secrets.token_hex(8)}"
    rights = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]
    acting = _acting("/home", "nobody", "/usr/bin:/bin", rights, limits.options(processes=False))
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="lfo-sandbox-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        line = undo.enter_context(contextlib.closing(Fifos(folder)))
        folder.chmod(0o755)
        for file, text in ((".client", client(Fifos)), (".supervisor", _SUPERVISOR)):
            (folder / file).write_text(text)
            (folder / file).chmod(0o555)
        for tool in tools:
            (folder / tool).symlink_to(".client")
        output, theirs = _pipe(ours, undo)
        # Podman gives the places the image's modes; what is said goes through a pipe, which /dev/stderr opens by name
        opened = f'chmod 1777 {" ".join(CONTAINED)}; chown {NOBODY} /dev/stdout; exec bash {TOOLS}/.supervisor "$@"'
        process = subprocess.Popen(
            [*_container(image, name, limits, str(folder)), "-c", opened, "bash", "", "/home", *acting],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
        )
        undo.callback(process.communicate)
        undo.callback(process.kill)
        ours.close()
        if os.read(output, 6) != b"ready\n":
            raise SandboxError(f"{_engine()} made no sandbox: {process.stderr.read().decode(errors='replace').strip()}")
        undo.pop_all()

    def send(sent: signal.Signals) -> None:
        _tried([_engine(), "kill", f"--signal={sent.name}", name])

    def close() -> None:
        process.stderr.close()
        shutil.rmtree(folder, ignore_errors=True)

    return Started(process, output, send, 0, close), line


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
