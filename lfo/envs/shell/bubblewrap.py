"""Sandboxes by bubblewrap, of this machine's /usr or of a whole root file system in a folder; without root.

- this machine's: its /usr is there to read; `WRITABLE` and /opt are small file systems in memory; whoever acts is
  user 1000.
- a folder (`unpack` fills one): in a user namespace of 65,536 ids, under an overlay in memory. Whoever acts is root in
  there, for tasks with users, groups and owners.

In both, what evaluations run with cannot be changed: /usr, what leads into it, and what of /etc decides which code a
program loads (`_sealed`). A filter keeps all from the limits of other processes, and from what outlives them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pwd
import shutil
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lfo.envs.shell.systems import (
    AS_USUAL,
    NOBODY,
    SUPERVISOR,
    TOOLS,
    Limits,
    SandboxError,
    Socket,
    Started,
    acting,
    client,
    pipe,
    tried,
)

SUPERVISOR_FILE = f"{TOOLS}/.supervisor"
WRITABLE = ("/home", "/etc", "/tmp", "/var", "/srv", "/run", "/root", "/dev/shm")
HOUSED = (str(Path(TOOLS).parent), TOOLS)  # both mounted, so that neither can be moved away
OWN_PROGRAMS = "/usr/local/bin"  # a machine's own, which tasks add to
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")  # into /usr, on every system younger than ten years
WITHOUT_ROOT = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
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
# Where the C library looks users up; elsewhere it could be told to load a program's text from a home folder.
LOOKED_UP = "passwd: files\ngroup: files\nshadow: files\ngshadow: files\nhosts: files\n"
WHOLE = "/mnt/whole"  # where a folder's overlay is mounted before bubblewrap begins

# Its arguments: the folder, bytes of the overlay, what is run then. Links into /usr become places that nobody moves.
_OVERLAY = r"""
set -e
cd "$1"
mount -t tmpfs -o "size=$2,mode=755" tmpfs /mnt
mkdir /mnt/upper /mnt/work WHOLE
mount -t overlay overlay -o lowerdir=.,upperdir=/mnt/upper,workdir=/mnt/work,userxattr WHOLE
for link in LINKS; do
  [ ! -L WHOLE/$link ] || { rm WHOLE/$link; mkdir WHOLE/$link; }
done
echo 0 > /proc/sys/user/max_user_namespaces
exec "${@:3}"
""".replace("LINKS", " ".join(LINKS)).replace("WHOLE", WHOLE)


# --- whether it works ------------------------------------------------------------------------------


def problem(system: str, bwrap: str | None) -> str:
    """Why there can be no sandbox of this system ("": this machine's, or a folder) by this program, "" if there can."""
    remedy = "on Debian and Ubuntu: apt-get install bubblewrap"
    if not bwrap:
        return f"shell tasks run in a sandbox, and bubblewrap (0.8 or newer) is missing; {remedy}."
    if system:
        return _folder_problem(Path(system))
    usr = ["--ro-bind", "/usr", "/usr", *_links(), "--proc", "/proc"]
    done = tried([*unprivileged(), bwrap, *ISOLATION, *usr, "/usr/bin/true"], stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return ""
    return (
        f"bubblewrap cannot make a sandbox here ({done.stderr.strip()}): it must be 0.8 or newer ({remedy}), and the"
        " kernel must allow user namespaces (sysctl user.max_user_namespaces; on Ubuntu also"
        " kernel.apparmor_restrict_unprivileged_userns=0; in a container --security-opt seccomp=unconfined)."
    )


def _folder_problem(folder: Path) -> str:
    if not folder.is_absolute():
        return f"env.sandbox '{folder}' is no absolute path and no docker:IMAGE; write {folder.resolve()}."
    if not (folder / "usr/bin/bash").is_file():
        return f"{folder} holds no root file system (usr/bin/bash is missing); make one with `lfo shell root`."
    if any(folder.glob("lib/ld-musl-*")):
        return f"{folder} is a system with musl; take one with glibc, as Debian has it."
    inside = ["/usr/bin/prlimit", "/usr/bin/setpriv", "/usr/bin/bash", "-c", ":"]
    way = [*unprivileged(), *_in_overlay(folder, AS_USUAL), *_folder_file_system(folder, AS_USUAL)]
    done = tried([*way, *inside], stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        return ""
    return f"the root file system {folder} cannot be used ({done.stderr.strip()}): {_ids()}"


def _ids() -> str:
    """What a root file system takes."""
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    return (
        "it takes uidmap (on Debian and Ubuntu: apt-get install uidmap), 65,536 ids of its own"
        f" (usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}), a folder that {user} may read and"
        " `lfo shell root` made, with bash and util-linux in it, and Linux 5.11 or newer."
    )


def unprivileged() -> list[str]:
    """Whoever is root becomes nobody first: the kernel counts no processes of root."""
    return WITHOUT_ROOT if os.geteuid() == 0 else []


# --- starting one ------------------------------------------------------------------------------------


def start(system: str, limits: Limits, tools: Sequence[str]) -> tuple[Started, Socket]:
    """A sandbox of this machine's system, or of a folder, and the line on which its house tools ask.

    Raises:
        SandboxError: bubblewrap makes none.
    """
    line = Socket()
    try:
        if system:
            rights = ["--bounding-set=-all," + ",".join(f"+{name}" for name in ROOT_MAY.split())]
            acts = ["/root", *acting("root", "/root", "/usr/sbin:/usr/bin:/sbin:/bin", rights, limits.options())]
            way, seen = _in_overlay(Path(system), limits), _folder_file_system(Path(system), limits)
            last = (TOOLS, "/dev")
        else:
            acts = ["/home", *acting("user", "/home", "/usr/bin:/bin", ["--ambient-caps=-all"], limits.options())]
            way, seen = ["bwrap", *ISOLATION], _host_file_system(limits)
            last = (TOOLS, *_hidden(), "/dev", "/")
        links = [part for name in tools for part in ("--symlink", ".client", f"{TOOLS}/{name}")]
        sealed = [*links, *(part for place in last for part in ("--remount-ro", place))]
        files = {f"{TOOLS}/.client": client(Socket), SUPERVISOR_FILE: SUPERVISOR}
        return _started([*unprivileged(), *way, *seen], files, sealed, acts, line), line
    except BaseException:
        line.close()
        raise


def _started(
    command: Sequence[str], files: Mapping[str, str], sealed: Sequence[str], acts: Sequence[str], line: Socket
) -> Started:
    """files: place -> text, read-only and executable. sealed: options that come after them."""
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as undo:
        output, theirs = pipe(ours, undo)
        info, told = pipe(ours, undo)
        held = {place: _memory(text.encode(), ours) for place, text in files.items()}
        written = [part for place, fd in held.items() for part in ("--perms", "0555", "--file", str(fd), place)]
        users, allowed = _memory(LOOKED_UP.encode(), ours), _memory(_filter(os.uname().machine), ours)
        written += ["--ro-bind-data", str(users), "/etc/nsswitch.conf"]
        last = [*sealed, "--seccomp", str(allowed), "--info-fd", str(told)]
        asked = line.inside.fileno()
        process = subprocess.Popen(
            [*command, *written, *last, "--", "/usr/bin/bash", SUPERVISOR_FILE, str(asked), *acts],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.PIPE,
            pass_fds=(told, asked, users, allowed, *held.values()),
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
    for place in (*WRITABLE, *HOUSED, *_hidden()):
        options += ["--size", str(limits.disk), "--tmpfs", place]
    return [*options, *_sealed(Path("/"), "")]


def _sealed(root: Path, seen: str) -> list[str]:
    """What of /etc decides which code a program runs: not to be changed by who is to be evaluated. What the system has
    is read-only, what it has not stays empty. root: the system's, as this process sees it; seen: as bubblewrap does."""
    pythons = [f"/etc/{path.name}" for path in sorted((root / "usr/lib").glob("python3.[0-9]*"))]
    options = ["--ro-bind", "/dev/null", "/etc/ld.so.preload"]
    cache = f"{seen}/etc/ld.so.cache" if (root / "etc/ld.so.cache").exists() else "/dev/null"
    options += ["--ro-bind", cache, "/etc/ld.so.cache"]
    # alternatives: awk and others are links through it
    for place in ("/etc/alternatives", "/etc/perl", "/etc/pam.d", "/etc/security", *pythons):
        there = (root / place.lstrip("/")).is_dir()
        options += ["--ro-bind", f"{seen}{place}", place] if there else ["--tmpfs", place, "--remount-ro", place]
    return options


def _hidden() -> list[str]:
    """What of /usr nobody inside needs; lfo itself, with all that is hidden, may be installed there."""
    return [place for place in ("/usr/local", "/usr/src") if os.path.isdir(place)]


def _in_overlay(folder: Path, limits: Limits) -> list[str]:
    """What is written is held in memory."""
    size = str(limits.disk * len(WRITABLE))
    return [*AS_ROOT, "bash", "-c", _OVERLAY, "bash", str(folder), size, "bwrap", *ISOLATED_ROOT]


def _folder_file_system(folder: Path, limits: Limits) -> list[str]:
    """All of it is the overlay's; /usr and what leads to it is read-only, but for a folder that PATH does not have."""
    options = ["--bind", WHOLE, "/", "--bind", f"{WHOLE}/etc", "/etc", "--ro-bind", f"{WHOLE}/usr", "/usr"]
    options += ["--bind-try", f"{WHOLE}{OWN_PROGRAMS}", OWN_PROGRAMS]
    for place in (folder / name for name in LINKS):
        target = os.readlink(place).lstrip("/") if place.is_symlink() else place.name
        if (folder / target).is_dir():
            options += ["--ro-bind", f"{WHOLE}/{target}", f"/{place.name}"]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for place in ("/run", *HOUSED, "/dev/shm"):
        options += ["--size", str(limits.disk), "--tmpfs", place]
    return [*options, *_sealed(folder, WHOLE)]


def _memory(data: bytes, ours: contextlib.ExitStack) -> int:
    """A descriptor from which this can be read."""
    descriptor = os.memfd_create("lfo")
    ours.callback(os.close, descriptor)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


# --- what no process may ask the kernel for ----------------------------------------------------------

# architecture: as seccomp(2) names it; prlimit64; add_key, request_key, keyctl, shmget
CALLS = {"x86_64": (0xC000003E, 302, (248, 249, 250, 29)), "aarch64": (0xC00000B7, 261, (217, 218, 219, 194))}
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, NOT_PERMITTED, UNKNOWN = 0x7FFF0000, 0x00050001, 0x00050026
NUMBER, ARCHITECTURE, FIRST_ARGUMENT = 0, 4, 16  # where seccomp_data has them
FOREIGN = 0x4000_0000  # calls from here on are of another kind (x32)


def _filter(machine: str) -> bytes:
    """A program for seccomp(2). Nobody sets limits for other processes: prlimit(2) asks who owns them and not what they
    may do, and a supervisor's limits would hold for evaluations. Nobody leaves a key or shared memory behind. On
    machines that it does not know it lets all through."""
    if machine not in CALLS:
        return struct.pack("=HBBI", RETURN, 0, 0, ALLOW)
    architecture, prlimit, denied = CALLS[machine]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, UNKNOWN), (LOAD, 0, 0, NUMBER)]
    lines += [(AT_LEAST, 0, 1, FOREIGN), (RETURN, 0, 0, UNKNOWN)]
    for number in denied:
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, NOT_PERMITTED)]
    lines += [(EQUAL, 1, 0, prlimit), (RETURN, 0, 0, ALLOW)]
    lines += [(LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 1, 0, 0), (RETURN, 0, 0, NOT_PERMITTED), (RETURN, 0, 0, ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


# --- a folder's root file system -----------------------------------------------------------------

DECOMPRESSED = {".gz": "--gzip", ".tgz": "--gzip", ".xz": "--xz", ".zst": "--zstd"}
NO_DEVICES = ["--anchored", "--exclude=./dev/*", "--exclude=dev/*"]  # they cannot be made, and are made anew


def unpack(archive: Path, folder: Path) -> Path:
    """A root file system from an archive (debootstrap's folder, mmdebstrap, ``docker export``), for `env.sandbox`.

    Its owners are ids of the user namespace that sandboxes are made in. Where that fails, the folder is empty again.

    Raises:
        SandboxError: the folder is not empty, or it cannot be unpacked or used. FileNotFoundError: there is no archive.
    """
    folder = folder.resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SandboxError(f"{folder} is not empty; choose another folder.")
    way = ["--extract", "--file=-", f"--directory={folder}", "--numeric-owner", *NO_DEVICES]
    if archive.suffix in DECOMPRESSED:
        way.append(DECOMPRESSED[archive.suffix])
    as_root = [*unprivileged(), *AS_ROOT]
    with archive.open("rb") as packed:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(folder, int(NOBODY), int(NOBODY))
        done = subprocess.run([*as_root, "tar", *way], stdin=packed, capture_output=True, text=True)
    found = problem(str(folder), shutil.which("bwrap"))
    if done.returncode:
        found = f"{archive} cannot be unpacked ({done.stderr.strip()[-500:]}): {_ids()}"
    if found:
        tried([*as_root, "find", str(folder), "-mindepth", "1", "-delete"])
        raise SandboxError(found)
    return folder
