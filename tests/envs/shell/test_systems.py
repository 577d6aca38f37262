"""A whole root file system and an image of Docker's hold what the host's own system holds, and what it cannot."""

import io
import json
import os
import pwd
import shutil
import signal
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest
from sandboxed import needs_sandbox
from test_sandbox import (
    AT_HOUSE_TOOLS,
    hostile,
    house_tools_answer,
    namespace,
    snapshot,
    still_running,
    too_much_is_ended,
)

from lfo.cli import main
from lfo.config import EnvConfig
from lfo.envs import make_environment
from lfo.envs.shell import bubblewrap, containers, sandbox
from lfo.envs.shell.sandbox import Sandbox, _questions
from lfo.envs.shell.systems import MIB, Fifos, Limits, SandboxError, Socket
from lfo.types import Call

SMALL = Limits(seconds=10.0, memory=256 * MIB, file=4 * MIB, disk=4 * MIB, output=20_000)
SHORT = Limits(1.0, 32, 128 * MIB, MIB, 4 * MIB, 20_000)
PROGRAMS = """bash env setpriv prlimit dd cat ls id mkdir rm mv cp ln chmod chown chgrp touch head tail seq sleep yes wc
    sort stat mount umount unshare kill timeout useradd groupadd usermod find grep sed readlink mkfifo setsid
    cmp tee""".split()
IMAGE = "lfo-test-systems"


def bash(script: str) -> dict:
    return {"command_name": "bash", "script": script}


def with_libraries(program: Path) -> set[Path]:
    """A program and what its loader loads."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return {program, *(Path(word) for word in said.split() if word.startswith("/"))}


@pytest.fixture(scope="session")
def archive(tmp_path_factory) -> Path:
    """A root file system in small: programs of this machine, and the files in which users and groups stand."""
    found = [shutil.which(name, path="/usr/bin:/usr/sbin") for name in PROGRAMS]
    if not all(found) or not Path("/bin").is_symlink():
        pytest.skip("this machine lacks programs of which a root file system is made here")
    whole = tmp_path_factory.mktemp("root") / "root.tar.gz"
    with tarfile.open(whole, "w:gz", compresslevel=1, dereference=False) as tar:

        def add(info: tarfile.TarInfo, data=None) -> None:
            info.uid = info.gid = 0
            tar.addfile(info, data)

        places = (
            "usr usr/bin usr/sbin usr/lib usr/lib64 usr/local usr/local/bin usr/local/lib etc home root tmp var srv"
        )
        for folder in f"{places} run mnt opt dev proc".split():
            info = tarfile.TarInfo(f"./{folder}")
            info.type, info.mode = tarfile.DIRTYPE, {"tmp": 0o1777, "root": 0o700}.get(folder, 0o755)
            add(info)
        for name in ("bin", "sbin", "lib", "lib64"):
            info = tarfile.TarInfo(f"./{name}")
            info.type, info.linkname = tarfile.SYMTYPE, f"usr/{name}"
            add(info)
        files = set().union(*(with_libraries(Path(program)) for program in found))
        for path in sorted({(*Path(f"/usr{p}" if not str(p).startswith("/usr") else p).parts,) for p in files}):
            place = Path(*path)
            info = tarfile.TarInfo(f".{place}")
            info.size, info.mode = place.stat().st_size, 0o755
            with place.open("rb") as data:
                add(info, data)
        texts = {"passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n"}
        texts |= {
            "group": "root:x:0:\nnogroup:x:65534:\nusers:x:100:\n",
            "shadow": "root:*:1::::::\n",
            "gshadow": "root:*::\n",
        }
        for name, text in texts.items():
            info = tarfile.TarInfo(f"./etc/{name}")
            info.size, info.mode = len(text), 0o644
            add(info, io.BytesIO(text.encode()))
    return whole


@pytest.fixture(scope="session")
def folder(archive) -> Path:
    user = "nobody" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    given = Path("/etc/subuid").read_text() if Path("/etc/subuid").exists() else ""
    if not shutil.which("newuidmap") or f"{user}:" not in given:
        pytest.skip(f"there are no ids for a user namespace (apt-get install uidmap; usermod --add-subuids ... {user})")
    place = Path("/var/tmp") / f"lfo-test-root-{os.getpid()}"  # where whoever runs sandboxes may read
    shutil.rmtree(place, ignore_errors=True)
    try:
        bubblewrap.unpack(archive, place)
        yield place
    finally:
        emptied = [
            *bubblewrap.unprivileged(),
            *bubblewrap.AS_ROOT,
            "bash",
            "-c",
            'rm -rf "$1"/* "$1"/.[!.]*',
            "bash",
            str(place),
        ]
        subprocess.run(emptied, capture_output=True)
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def image(archive) -> str:
    if not (engine := containers.engine()):
        pytest.skip("there is no Docker engine, nor Podman")
    subprocess.run([engine, "import", str(archive), IMAGE], check=True, capture_output=True)
    yield f"docker:{IMAGE}"
    subprocess.run([engine, "rmi", "--force", IMAGE], capture_output=True)


@pytest.fixture(params=["folder", "image"])
def system(request) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def box(system):
    with Sandbox(SMALL, ["stash"], lambda words: (3, f"{len(words)} words: {words[-1]}"), system) as made:
        yield made


# ---------------------------------------------------------------- a bash like any other


@needs_sandbox
def test_it_is_a_bash_like_any_other(box):
    assert box.run("cd /tmp; X=1; echo kept > ~/a; sleep 60 &").status == 0
    ran = box.run('cat a; echo "[$X]"; pwd; cd; pwd; cat /proc/[0-9]*/comm 2> /dev/null | grep -c sleep')
    kept, unset, here, home, sleeping = ran.output.splitlines()
    assert (kept, unset, sleeping) == ("kept", "[]", "0") and here == home
    ran = box.run("echo out; echo err >&2; echo named > /dev/stderr; exit 7")
    assert (ran.status, ran.output, ran.ended) == (7, "out\nerr\nnamed\n", "")
    assert box.run('read x; echo "[$x]"; printf "\\377"').output == "[]\n\ufffd"
    assert box.run("x" * 200_000).status == 126


@needs_sandbox
def test_what_takes_too_long_or_says_too_much_is_ended(system):
    with Sandbox(SHORT, system=system) as box:
        ran = box.run("trap '' TERM INT HUP USR1; echo begun; sleep 60")
        assert (ran.status, ran.output, ran.ended) == (137, "begun\n", "time")
        assert too_much_is_ended(box, ("yes", "trap '' PIPE; while :; do echo x; done"))


@needs_sandbox
def test_a_house_tool_is_answered_from_outside(box):
    assert house_tools_answer(box)
    for attempt in AT_HOUSE_TOOLS:
        assert box.run(attempt).status != 0
    for asked in (Socket.ASK, Fifos.ASK):  # asked and not read, in both ways
        box.run(f"printf '1\\0a\\0' {asked}; head -c 3000 /dev/urandom {asked}")
    assert box.run("stash mine").output == "2 words: mine\n"


def test_what_is_asked_is_taken_apart():
    def taken(heard: bytes) -> list[list[str]]:
        return list(_questions(heard))

    assert taken(b"3\0stash\0a b\0\0" + b"1\0tag\0") == [["stash", "a b", ""], ["tag"]]
    for nonsense in (
        b"",
        b"stash\0",
        b"0\0",
        b"2\0stash\0",
        b"-1\0a\0",
        b"9999999\0a\0",
        b"\xff\0a\0",
        b"1\0unended",
    ):
        assert taken(nonsense) == []


@needs_sandbox
def test_limits_hold(box):
    assert box.run("head -c 5000000 /dev/zero > big").status != 0
    filled = box.run("cd /tmp; for i in $(seq 20); do head -c 3000000 /dev/zero > f$i || exit 9; done")
    assert filled.status == 9 and "No space left" in filled.output
    box.run("rm -f ~/big /tmp/f*; for i in $(seq 200); do echo $i > n; sleep 20 & done")
    assert 0 < int(box.run("cat n").output) <= SMALL.processes + 8


# ---------------------------------------------------------------- nobody gets out


@needs_sandbox
def test_the_supervisor_can_neither_be_read_nor_ended(box):
    for file in ("environ", "mem", "fd/0", "fd/1", "maps", "cwd/."):
        assert "ermission denied" in box.run(f"cat /proc/1/{file}").output
    for sent in ("KILL", "STOP", "TERM", "SEGV", "USR1"):
        box.run(f"kill -{sent} 1; kill -{sent} -1; kill -{sent} 0")
        assert box.run("echo here").output == "here\n"


@needs_sandbox
def test_nothing_stands_behind_an_evaluation(box):
    """Neither what a command leaves running, nor the programs by which an evaluation judges."""
    box.run("(trap '' HUP; setsid bash -c 'while :; do echo 5 > ~/answer; done') & disown")
    box.run("echo 'echo forged' > ~/.bashrc; export BASH_ENV=~/.bashrc")
    for attempt in (
        *("echo > /usr/bin/cmp", "rm /usr/bin/cmp", "mv /usr /tmp/u", "rm /bin", "mv /bin /tmp/b", "mv /lib64 /tmp/l"),
        *("ln -sfn /tmp /lib", "echo /tmp/evil.so > /etc/ld.so.preload", "rm /etc/ld.so.preload", "mv /etc /tmp/etc"),
        *("mount -t tmpfs none /usr", "umount /usr", "umount -l /etc", "unshare --user --map-root-user true"),
    ):
        if "unshare" in attempt or box.run(attempt).status == 0:
            box.run(f"{attempt} && mount -t tmpfs none /usr/bin")
    ran = box.run("echo 1 > ~/answer; sleep 0.05; cat ~/answer; cmp /etc/passwd /etc/group > /dev/null; echo $?")
    assert ran.output == "1\n1\n"


@needs_sandbox
@pytest.mark.parametrize("of", ["host", "folder"])
def test_what_evaluations_run_with_cannot_be_changed(of, request):
    """By files that the loader, the C library, perl and python read, by limits of the supervisor's, by its line."""
    with Sandbox(
        SMALL, ["stash"], lambda words: (0, "yes"), "" if of == "host" else str(request.getfixturevalue(of))
    ) as box:
        for place in (
            "nsswitch.conf",
            "ld.so.cache",
            "ld.so.preload",
            "perl/strict.pm",
            "alternatives/awk",
            "pam.d/su",
        ):
            box.run(f"mkdir -p /etc/{Path(place).parent}; echo evil > /etc/{place}; rm -rf /etc/{place}")
            box.run(f"mv /etc/{place} /tmp; echo evil > /tmp/evil; ln -sf /tmp/evil /etc/{place}")
            assert "evil" not in box.run(f"cat /etc/{place}").output
        assert box.run("echo $SHELL $PYTHONNOUSERSITE").output == "/usr/bin/bash 1\n"
        before = Path(f"/proc/{box._started.pid}/limits").read_text()
        assert "not permitted" in box.run("prlimit --pid 1 --stack=24000:24000").output
        box.run("prlimit --pid 1 --fsize=0:0; prlimit --pid $PPID --nofile=3:3")
        assert Path(f"/proc/{box._started.pid}/limits").read_text() == before
        if of == "host" and shutil.which("perl"):
            box.run("perl -e 'open(S, \"+<&=9\"); shutdown(S, 2)'")  # nobody hears house tools any more
            assert box.run("echo here; stash > /dev/null 2>&1 && echo served").output == "here\n"


def test_the_filter_lets_through_what_is_not_named():
    """Run by hand, as seccomp(2) does: number, architecture and first argument -> what the kernel answers."""

    def answer(number: int, machine: str = "x86_64", first: int = 0, architecture: int | None = None) -> int:
        seen = {0: number, 4: bubblewrap.CALLS[machine][0] if architecture is None else architecture, 16: first}
        program, at, value = [*struct.iter_unpack("=HBBI", bubblewrap._filter(machine))], 0, 0
        while True:
            code, yes, no, k = program[at]
            if code == bubblewrap.RETURN:
                return k
            value = seen[k] if code == bubblewrap.LOAD else value
            met = value == k if code == bubblewrap.EQUAL else value >= k
            at += 1 + (0 if code == bubblewrap.LOAD else yes if met else no)

    for machine, (_, prlimit, denied) in bubblewrap.CALLS.items():
        assert [answer(number, machine) for number in denied] == [bubblewrap.NOT_PERMITTED] * len(denied)
        assert answer(prlimit, machine) == answer(0, machine) == answer(59, machine) == bubblewrap.ALLOW
        assert answer(prlimit, machine, first=1) == bubblewrap.NOT_PERMITTED
        assert answer(0, machine, architecture=3) == answer(2**30 + 1, machine) == bubblewrap.UNKNOWN
    assert bubblewrap._filter("riscv64") == struct.pack("=HBBI", bubblewrap.RETURN, 0, 0, bubblewrap.ALLOW)


@needs_sandbox
def test_a_folder_that_lacks_a_loader_cache_has_none_that_is_written(folder):
    """Whoever got rights that nobody has would still write into memory alone."""
    options = bubblewrap._folder_file_system(folder, SMALL)
    assert not [option for option in options if str(folder) in option]
    with Sandbox(SMALL, system=str(folder)) as box:
        for attempt in (
            "echo x > /etc/ld.so.cache",
            "rm /etc/ld.so.cache",
            "mv /etc/ld.so.cache /tmp",
            "cat /etc/ld.so.cache",
        ):
            assert box.run(attempt).status != 0


@needs_sandbox
def test_hostile_commands_change_nothing_outside(folder, tmp_path):
    """A third of those that the host's own system bears, as root of a whole file system."""
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("the ground truth")
    before, held = snapshot(canary), snapshot(folder / "usr/bin")
    names = {"{canary}": str(canary), "{victim}": "1", "@port@": "9"}
    batches = hostile()[::3]
    assert sum(map(len, batches)) > 300
    for start in range(0, len(batches), 40):
        with Sandbox(SHORT, system=str(folder)) as box:
            space = namespace(box._started.pid)
            for batch in batches[start : start + 40]:
                command = "\n".join(batch)
                for name, value in names.items():
                    command = command.replace(name, value)
                said = box.run(command).output
                assert "ground truth" not in said and "reached" not in said, command
            assert any(box.run("echo 0").output.endswith("0\n") for _ in range(20))
        assert space and still_running({space}) == []
    assert snapshot(canary) == before and snapshot(folder / "usr/bin") == held


@needs_sandbox
def test_an_ended_sandbox_leaves_nothing(system):
    with Sandbox(SHORT, ["stash"], system=system) as box:
        space = namespace(box._started.pid) if box._started.pid else ""
        with pytest.raises(SandboxError, match="has ended"):
            box._started.send(signal.SIGKILL)
            for _ in range(100):
                box.run("sleep 0.1")
    assert not space or still_running({space}) == []
    with pytest.raises(SandboxError, match="make another one"):
        box.run("echo x")


# ---------------------------------------------------------------- what a whole root file system is for


@needs_sandbox
def test_there_are_users_groups_and_owners(folder):
    with Sandbox(SMALL, system=str(folder)) as box:
        made = box.run("groupadd team && useradd -m --groups team ada && chown ada:team /srv && chmod 750 /srv")
        assert made.status == 0, made.output
        assert box.run("stat -c '%U %G %a' /srv; id -nG ada | grep -ow team; id -u").output == "ada team 750\nteam\n0\n"
        as_ada = "setpriv --reuid=ada --regid=team --init-groups bash -c"
        ran = box.run(f"{as_ada} 'echo hers > ~ada/x; stat -c %U ~ada/x; ls /root'")
        assert ran.status != 0 and ran.output.startswith("ada\n") and "ermission denied" in ran.output
    with Sandbox(SMALL, system=str(folder)) as box:  # another one knows nothing of it
        assert box.run("id ada; ls /home").output.splitlines()[1:] == []


@needs_sandbox
def test_it_takes_programs_of_its_own_which_no_evaluation_runs_by_name(folder):
    with Sandbox(SMALL, system=str(folder)) as box:
        made = "mkdir /opt/app && echo 'echo mine' | tee /opt/app/a /usr/local/bin/cmp && chmod +x /usr/local/bin/cmp"
        assert box.run(made).status == 0
        assert box.run("/usr/local/bin/cmp; bash /opt/app/a").output == "mine\nmine\n"
        assert box.run("command -v cmp").output == "/usr/bin/cmp\n"
        for place in ("/usr/local/lib/x", "/usr/local/x", "/usr/lib/x"):
            assert "Read-only" in box.run(f"touch {place}").output


@needs_sandbox
def test_public_tasks_that_need_users_are_certified_on_it(folder, tmp_path, capsys):
    task = {
        "instruction": "Let ada into the group team, and give /srv/plan to her.",
        "initialization_command_item": bash("groupadd team && useradd ada && touch /srv/plan"),
        "evaluation_info": {
            "evaluation_command_item": bash("id -nG ada | grep -qw team && [ $(stat -c %U /srv/plan) = ada ]"),
            "ground_truth_command_item": bash("usermod -aG team ada; chown ada /srv/plan"),
        },
        "skill_list": ["usermod", "chown"],
    }
    (tmp_path / "tasks.json").write_text(json.dumps([task]))
    assert main(["shell", "import", str(tmp_path / "tasks.json")]) == 0
    assert "initialization exits with 127" in (said := capsys.readouterr().out) and "0 of 1 tasks" in said
    assert main(["shell", "import", str(tmp_path / "tasks.json"), "--sandbox", str(folder)]) == 0
    assert "1 of 1 tasks certified" in capsys.readouterr().out


@needs_sandbox
def test_an_episode_is_played_on_it(folder):
    env = make_environment(EnvConfig(name="shell", levels=(1,), sandbox=str(folder)))
    task = next(task for task in env.tasks("train") if task.skill == "wc")
    episode = env.episode(task, seed=0)
    assert episode.step(Call("bash", {"command": task.ground_truth + "\nid -u"})) == "The output of the OS:\n0"
    assert episode.outcome().success
    episode.close()


def test_what_cannot_be_used_is_said(tmp_path, archive, monkeypatch, capsys):
    def problem(system: str) -> str:
        with pytest.raises(SandboxError) as caught:
            sandbox.require_system(system)
        return str(caught.value)

    if shutil.which("bwrap"):
        assert "is no absolute path and no docker:IMAGE" in problem("roots/debian")
        assert "lfo shell root" in problem(str(tmp_path))
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file"):
        assert main(["shell", "root", str(archive), str(place)]) != 0
        assert f"{place} is not empty; choose another folder" in capsys.readouterr().err
    containers.engine.cache_clear()
    monkeypatch.setattr(containers.shutil, "which", lambda name, **_: None)
    assert "there is no Docker engine here" in problem("docker:debian")
    containers.engine.cache_clear()
    sandbox._problem.cache_clear()


def test_an_image_that_lacks_what_it_takes_is_refused(image):
    with pytest.raises(SandboxError, match=r"the image lfo-no-such-image:none cannot be used by (docker|podman)"):
        sandbox.require_system("docker:lfo-no-such-image:none")


@needs_sandbox
def test_what_cannot_be_unpacked_leaves_an_empty_folder(folder, archive, tmp_path):
    """An archive that was cut, and one that holds no root file system."""
    place = folder.with_name(f"{folder.name}-other")
    (tmp_path / "cut.tar.gz").write_bytes(archive.read_bytes()[:-2000])
    (tmp_path / "note").write_text("no root")
    with tarfile.open(tmp_path / "note.tar", "w") as tar:
        tar.add(tmp_path / "note", "./note")
    try:
        for name, said in (("cut.tar.gz", "cannot be unpacked"), ("note.tar", "holds no root file system")):
            with pytest.raises(SandboxError, match=said):
                bubblewrap.unpack(tmp_path / name, place)
            assert list(place.iterdir()) == []
    finally:
        shutil.rmtree(place, ignore_errors=True)
