"""The sandbox is a bash like any other, and nobody gets out of it."""

import contextlib
import dataclasses
import itertools
import os
import shutil
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from sandboxed import needs_sandbox

from lfo.envs.shell import bubblewrap, sandbox
from lfo.envs.shell.sandbox import Sandbox
from lfo.envs.shell.systems import MIB, Limits, SandboxError

SMALL = Limits(seconds=10.0, memory=256 * MIB, file=4 * MIB, disk=4 * MIB, output=20_000)  # time enough when busy
SHORT = dataclasses.replace(SMALL, seconds=1.0)  # for what is only ended by time
AT_HOUSE_TOOLS = (  # by whoever wants their place, the first of PATH
    *("echo > /opt/house/stash", "rm /opt/house/stash", "mv /opt /tmp/opt", "mkdir -p /opt/house/grep"),
    *("mv /opt/house /opt/away", "mv /opt/house/.supervisor /tmp", "umount /opt/house", "chmod 777 /opt/house"),
)


@pytest.fixture
def box():
    with Sandbox(SMALL, ["stash"], lambda words: (3, f"{len(words)} words: {words[-1]}")) as made:
        yield made


def namespace(pid: int | str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def still_running(of: set[str], most: int = 0) -> list[str]:
    """The processes of these pid namespaces, once there are no more than that many: what was killed runs nothing any
    more, but takes a moment to go."""
    late = time.monotonic() + sandbox.GRACE
    while True:
        found = [pid for pid in os.listdir("/proc") if pid.isdigit() and namespace(pid) in of]
        if len(found) <= most or time.monotonic() > late:
            return found


def test_what_is_installed_is_used(monkeypatch):
    """Where bubblewrap is installed it must work, and no test is left out; where it is not, it says what to do."""
    if shutil.which("bwrap"):
        sandbox.require_system()
        assert needs_sandbox.args == (False,)
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        Sandbox()


def test_where_it_cannot_work_it_says_why(tmp_path, monkeypatch):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho No permissions to create new namespace >&2\nexit 1\n")
    for path in (tmp_path, *list(tmp_path.parents)[:2]):
        path.chmod(0o755)
    broken.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: str(broken))
    with pytest.raises(SandboxError, match=r"user namespaces \(sysctl"):
        sandbox.require_system()


# ---------------------------------------------------------------- a bash like any other


@needs_sandbox
def test_files_persist_and_nothing_else(box):
    assert box.run("cd /tmp; X=1; echo kept > ~/a; sleep 60 &").status == 0
    ran = box.run('cat a; echo "[$X]"; pwd; whoami; ps -e -o comm= | grep -c sleep')
    assert ran.output == "kept\n[]\n/home\nuser\n0\n"


@needs_sandbox
def test_status_and_both_streams_are_heard(box):
    ran = box.run("echo out; echo err >&2; echo named > /dev/stderr; exit 7")
    assert (ran.status, ran.output, ran.ended) == (7, "out\nerr\nnamed\n", "")
    assert box.run("awk 'BEGIN { print 6 * 7 }' | tee /dev/stderr").output == "42\n42\n"
    assert box.run("printf 'no line end'").output == "no line end"
    assert box.run('read x; echo "[$x]"').output == "[]\n"  # nobody types anything


@needs_sandbox
def test_any_text_is_a_command(box):
    assert box.run("echo a\0b; echo \ud800").output == "ab\n?\n"
    assert box.run("x" * 200_000).status == 126  # longer than the kernel takes
    assert box.run("").status == 0
    assert box.run("printf '\\377'").output == "\ufffd"


@needs_sandbox
def test_a_command_that_takes_too_long_is_ended():
    with Sandbox(SHORT) as box:
        ran = box.run("trap '' TERM INT HUP; echo begun; sleep 60")
        assert (ran.status, ran.output, ran.ended) == (137, "begun\n", "time")
        assert box.run("echo next").output == "next\n"


def too_much_is_ended(box: Sandbox, commands: Sequence[str]) -> bool:
    for endless in commands:
        ran = box.run(endless)
        if ran.ended != "output" or len(ran.output) != box.limits.output:
            return False
    return box.run("echo next").output == "next\n"


@needs_sandbox
def test_a_command_that_says_too_much_is_ended(box):
    assert too_much_is_ended(box, ("yes", "cat /dev/zero", "trap '' PIPE; while :; do echo x; done"))


def house_tools_answer(box: Sandbox) -> bool:
    ran = box.run("stash 'a b' --to /x; echo $?; stash c 2> /dev/null; (stash d; stash e) 2>&1 | tail -1")
    return ran.output == "4 words: /x\n3\n2 words: e\n"


@needs_sandbox
def test_a_house_tool_is_answered_from_outside(box):
    assert house_tools_answer(box)
    assert box.run("printf '1\\0a\\0' >&9").status == 0  # asked, and not read
    assert box.run("stash mine").output == "2 words: mine\n"
    box.run("for i in $(seq 2000); do printf 'x\\0' >&9; done")  # a flood that nobody reads
    assert box.run("head -c 9000 /dev/urandom >&9; stash still 2>&1 | wc -l").status == 0
    assert box.run("stash mine").output == "2 words: mine\n"


@needs_sandbox
def test_the_tools_are_nobodys_to_change(box):
    for attempt in AT_HOUSE_TOOLS:
        assert box.run(attempt).status != 0
    assert box.run("PATH=/tmp; printf '#!/bin/sh\\necho mine' > /tmp/ls; /bin/chmod +x /tmp/ls; ls").output == "mine\n"
    assert box.run("command -v ls").output == "/usr/bin/ls\n"  # PATH is as it was


@needs_sandbox
def test_it_outlives_the_thread_that_began_it():
    """A task server begins episodes in threads that end when nobody asked for ten seconds."""
    made: list[Sandbox] = []
    thread = threading.Thread(target=lambda: made.append(Sandbox(SMALL)))
    thread.start()
    thread.join()
    time.sleep(0.5)  # the kernel tells at once, and bubblewrap takes a moment to go
    with made[0] as box:
        assert box.run("echo x").output == "x\n"


@needs_sandbox
def test_a_child_of_this_process_begins_its_own(box):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException), Sandbox(SMALL) as own:
            os.write(writes, own.run("echo x").output.encode())
        os._exit(0)
    os.close(writes)
    assert os.waitpid(child, 0)[1] == 0 and os.read(reads, 9) == b"x\n"
    os.close(reads)


@needs_sandbox
def test_one_that_cannot_be_begun_says_so_to_whoever_asked(monkeypatch):
    def fails(*_):
        raise SandboxError("no room")

    monkeypatch.setattr(bubblewrap, "start", fails)
    with pytest.raises(SandboxError, match="no room"):
        Sandbox(SMALL)


@needs_sandbox
def test_an_ended_sandbox_says_so(box):
    box.close()
    box.close()
    box._line.forget = lambda: pytest.fail("its descriptors may be others' by now")
    with pytest.raises(SandboxError, match="make another one"):
        box.run("echo x")


# ---------------------------------------------------------------- nobody gets out


@needs_sandbox
def test_the_supervisor_can_neither_be_read_nor_ended(box):
    """Whoever could read its memory or its pipes would know the mark, and forge what an evaluation answers."""
    for file in ("environ", "mem", "fd/0", "fd/1", "maps", "cwd/."):
        assert "ermission denied" in box.run(f"cat /proc/1/{file}").output
    for sent in ("KILL", "STOP", "TERM", "SEGV"):
        box.run(f"kill -{sent} 1; kill -{sent} -1; kill -{sent} 0")
        assert box.run("echo here").output == "here\n"


@needs_sandbox
def test_nothing_stands_behind_an_evaluation(box):
    """What a command leaves to run, to preload or to find first does not reach the next one."""
    box.run("(trap '' HUP; setsid bash -c 'while :; do echo 5 > ~/answer; done') & disown")
    box.run("echo 'echo forged' > .bashrc; cp .bashrc .profile; export BASH_ENV=~/.bashrc; ln -s /bin/true cmp")
    assert box.run("echo /tmp/evil.so > /etc/ld.so.preload; rm -f /etc/ld.so.preload; mv /etc /tmp/etc").status != 0
    ran = box.run("echo 1 > answer; sleep 0.05; cat answer; cmp /etc/passwd /etc/group > /dev/null; echo $?")
    assert ran.output == "1\n1\n"


@needs_sandbox
def test_limits_hold(box):
    assert "annot allocate" in box.run("perl -e '$x = \"a\" x (400 << 20)' 2>&1 || echo cannot allocate").output
    assert box.run("head -c 5000000 /dev/zero > big").status != 0
    for place in bubblewrap.WRITABLE:
        assert (
            "No space left" in box.run(f"cd {place}; for i in 1 2 3; do head -c 3000000 /dev/zero > f$i; done").output
        )
        box.run(f"rm -f {place}/f?")
    forks = "perl -e 'for (1..100) { $p = fork // last; $p || exec qw(sleep 99); $n++ } print $n'"
    assert 0 < int(box.run(forks).output) < SMALL.processes


@needs_sandbox
def test_many_at_once(box):
    boxes = [Sandbox(SMALL) for _ in range(8)]
    for number, one in enumerate(boxes):
        one.run(f"echo {number} > n; echo {number} > /tmp/n")
    assert [one.run("cat n /tmp/n").output.split() for one in boxes] == [[str(n)] * 2 for n in range(8)]
    spaces = {namespace(one._started.pid) for one in boxes}
    assert len(spaces) == 8 and len(still_running(spaces, most=8)) == 8
    for one in boxes:
        one.close()
    assert still_running(spaces) == []


PLACES = [
    *("/", "/etc", "/home", "/opt", "/opt/house", "/var", "/tmp", "/dev", "/dev/shm", "/dev/null", "/sys", "/srv"),
    *("/usr/bin/env", "/usr/lib/os-release", "/bin/sh", "/usr/share/keyrings", "/proc/1", "/proc/sys/kernel"),
    *("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/proc/self/mem", "/proc/1/mem", "/proc/1/root"),
    *("/proc/1/cwd", "/proc/1/oom_score_adj", "/sys/fs/cgroup", "/run/docker.sock", "{canary}", "{canary}/file"),
]
DEEDS = [
    *("echo owned > {place}", "chmod -R 777 {place}", "mv {place} /tmp/taken", "truncate -s 0 {place}"),
    *("ln -sfn /etc/passwd {place}", "dd if=/dev/zero of={place} bs=64k count=9", "mount --bind /tmp {place}"),
    *("umount -l {place}", "unshare -rm mount -t tmpfs none {place}", "chroot {place} /bin/sh -c id"),
]
RUINOUS = ["rm -rf --no-preserve-root {place}", "find {place} -xdev -delete", "shred -u {place}"]
WAYS = ["{deed}", "({deed}) & disown", "setsid bash -c '{deed}'"]
KILLS = [
    f"{way} -{sent} {pid}"
    for way, sent, pid in itertools.product(
        ("kill", "/bin/kill", "env kill"),
        ("KILL", "TERM", "STOP", "HUP", "9"),
        ("1", "-1", "0", "2", "$PPID", "$$", "{victim}", "-- -{victim}"),
    )
]
CALLS_OUT = [
    way.format(host=host)
    for host, way in itertools.product(
        ("127.0.0.1", "localhost", "169.254.169.254", "10.0.0.1", "8.8.8.8", "[::1]", "host.docker.internal"),
        (
            "echo x > /dev/tcp/{host}/@port@",
            "echo x > /dev/udp/{host}/@port@",
            "perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(q({host}:@port@)) ? q(reached) : $!'",
            "(exec 5<> /dev/tcp/{host}/22) && echo reached",
        ),
    )
]
GREED = [
    *(":(){{ :|:& }};:", "while :; do sleep 9 & done 2> /dev/null", "yes | head -c 90m > /tmp/full", "yes"),
    *("perl -e 'fork while 1'", "perl -e '$x .= q(a) x 1e7 while 1'", "tail /dev/zero", "cat /dev/urandom"),
    *("nohup sleep 300 > /dev/null 2>&1 &", "setsid nohup perl -e 'sleep 1 while fork || 1' &", "exec sleep 300"),
    *("for i in $(seq 3000); do : > /tmp/n$i; done", "mkfifo /tmp/p; cat /tmp/p", "trap '' TERM; while :; do :; done"),
    *("ulimit -u unlimited; ulimit -f unlimited; ulimit -v unlimited", "prlimit --nproc=9999 --pid 1"),
    *("echo x > /proc/1/fd/1", "exec 0<&9; cat", "cat <&9 &", "echo -1000 > /proc/self/oom_score_adj", "su", "sudo id"),
    *("ln -sfn {canary}/file ~/answer; echo owned > ~/answer", "cat {canary}/file"),
    *("python3 -c 'import os; os.setuid(0)'", "dmesg", "reboot -f", "nsenter -t 1 -a id", "mknod /tmp/sda b 8 0"),
]


def hostile() -> list[list[str]]:
    """More than a thousand commands, some of them given together; {canary}, {victim} and @port@ are outside."""
    deeds = [deed.replace("{place}", place) for deed, place in itertools.product(DEEDS, PLACES)]
    together = [[way.replace("{deed}", deed) for way in WAYS] for deed in deeds]
    ruinous = [deed.replace("{place}", place) for deed, place in itertools.product(RUINOUS, PLACES)]
    greed = [command.replace("{{", "{").replace("}}", "}") for command in GREED]
    return together + [[command] for command in (*ruinous, *KILLS, *CALLS_OUT, *greed)]


def snapshot(folder: Path) -> list[tuple]:
    found = [(p, p.lstat()) for p in (folder, *sorted(folder.rglob("*")), Path("/etc/passwd"), Path("/usr/bin/env"))]
    return [(str(p), s.st_mode, s.st_ino, s.st_mtime_ns, s.st_size) for p, s in found]


@pytest.fixture
def outside(tmp_path):
    """What is outside, as open as can be: a file, a process and a port, in reach of whoever were not shut in."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("the ground truth")
    for path in (canary / "file", canary, *list(canary.parents)[:2]):
        path.chmod(path.stat().st_mode | stat.S_IRWXO)
    victim = subprocess.Popen([*bubblewrap.unprivileged(), "sleep", "600"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield canary, victim, server
    victim.kill()
    victim.wait()


@needs_sandbox
def test_a_thousand_hostile_commands_change_nothing_outside(outside):
    """And leave nothing running. The sandbox is made anew now and then; each one is used on when it is battered."""
    canary, victim, server = outside
    before, tight = snapshot(canary), Limits(0.3, 32, 128 * MIB, MIB, 2 * MIB, 20_000)
    names = {"{canary}": str(canary), "{victim}": str(victim.pid), "@port@": str(server.getsockname()[1])}
    batches = hostile()
    assert len({command for batch in batches for command in batch}) >= 1_000
    for start in range(0, len(batches), 40):
        with Sandbox(tight) as box:
            space = namespace(box._started.pid)
            for batch in batches[start : start + 40]:
                command = "\n".join(batch)
                for name, value in names.items():
                    command = command.replace(name, value)
                said = box.run(command).output
                assert "ground truth" not in said and "reached" not in said, command
            assert any(box.run("echo 0").output.endswith("0\n") for _ in range(20))  # .3 s are few when busy
            assert still_running({space}, most=1) == [str(box._started.pid)]
        assert space and still_running({space}) == []
    assert snapshot(canary) == before and (canary / "file").read_text() == "the ground truth"
    assert victim.poll() is None and Path(f"/proc/{victim.pid}/stat").read_text().split()[2] == "S"
    with pytest.raises(BlockingIOError):
        server.accept()
