"""A real bash that can do no harm: one sandbox per episode, without root, started in milliseconds.

Its system is this machine's /usr, a root file system in a folder, or an image of Docker's (`env.sandbox`). Every
command is a fresh ``bash -c`` in the home folder: files persist, directory, variables and background processes do not.

Inside, a supervisor of a few lines is process 1, which nothing from inside ends or reads: neither what it is told next
nor the mark that ends an answer can be read or forged. After each command it kills whatever is left, so nothing is
running while an episode is evaluated. Time and output are watched from outside.

Limits hold for every process (`Limits`); a sandbox as a whole takes at most processes x memory, and `disk` for each of
its file systems. Without cgroups, which need root, nothing closer can be said; should memory run out all the same, the
kernel is asked to end sandboxes first, unless a command inside takes that back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import resource
import secrets
import selectors
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from lfo.envs.shell import bubblewrap, containers
from lfo.envs.shell.systems import AS_USUAL, GRACE, Desk, Limits, SandboxError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Ran:
    """What came of a command. status: 0 to 255, as a shell has it. output: stdout and stderr as they came.

    ended: why it was ended from outside, "time" or "output"; "" if it came to its own end.
    """

    status: int
    output: str
    ended: str = ""


class Sandbox:
    """Runs commands. Use as a context manager, or `close`.

    tools: names of house tools, which `desk` answers. system: as `env.sandbox` has it.

    Raises (on construction):
        SandboxError: this system cannot be had here.
    """

    def __init__(
        self, limits: Limits = AS_USUAL, tools: Sequence[str] = (), desk: Desk | None = None, system: str = ""
    ):
        require_system(system)
        self.limits, self._desk = limits, desk
        image = system.removeprefix(containers.PREFIX)
        kind = bubblewrap if image == system else containers
        self._gone = threading.Event()
        self._started, self._line = _in_a_thread(functools.partial(kind.start, image, limits, tools), self._gone)
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._started.output, selectors.EVENT_READ, self._hear)
        self._selector.register(self._line, selectors.EVENT_READ, self._serve)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def run(self, command: str) -> Ran:
        """A command's output and status; nothing that it started is still running afterwards.

        Raises:
            SandboxError: the sandbox has ended.
        """
        if self._closed:  # its descriptors may be others' by now
            raise SandboxError("the sandbox has ended; make another one.")
        mark = secrets.token_hex(16).encode()
        text = command.replace("\0", "").encode(errors="replace")
        try:
            self._line.forget()
            self._started.process.stdin.write(mark + b"\0" + text + b"\0")
            self._started.process.stdin.flush()
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
                self._started.send(signal.SIGUSR1)
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
        process = self._started.process
        self._started.send(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        process.kill()
        process.wait()
        with contextlib.suppress(OSError):
            process.stdin.close()
        self._selector.close()
        os.close(self._started.output)
        self._started.close()
        self._line.close()
        self._gone.set()

    # --- while a command runs -----------------------------------------------------------------

    def _hear(self) -> None:
        heard = os.read(self._started.output, 65536)
        if not heard:
            self.close()
            raise SandboxError("the sandbox has ended; make another one.")
        self._heard += heard

    def _serve(self) -> None:
        """Answer house tools."""
        try:
            heard = self._line.hear()
        except BlockingIOError:
            return
        if not heard:
            self._selector.unregister(self._line)
        for words in _questions(heard):
            status, text = self._desk(words) if self._desk else (1, "")
            with contextlib.suppress(OSError):  # nobody reads
                self._line.say(f"{status} {text}".encode(errors="replace")[:60_000])


def _in_a_thread(start: Callable[[], T], gone: threading.Event) -> T:
    """What `start` returns, called in a thread that goes on until `gone`, since bubblewrap ends with its thread."""
    found: Future[T] = Future()

    def keep() -> None:
        try:
            found.set_result(start())
        except BaseException as error:
            found.set_exception(error)
        else:
            gone.wait()

    threading.Thread(target=keep, name="sandbox", daemon=True).start()
    try:
        return found.result()
    except BaseException:
        gone.set()  # interrupted: what was started meanwhile ends with its thread
        raise


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
    image = system.removeprefix(containers.PREFIX)
    return bubblewrap.problem(system, bwrap) if image == system else containers.problem(image)


def _questions(heard: bytes) -> Iterator[list[str]]:
    """What house tools ask: how many words, then the words. Whatever comes in was written by anybody inside."""
    words = heard.decode(errors="replace").split("\0")[:-1]
    while words and len(words[0]) < 6 and words[0].isdecimal() and 0 < int(words[0]) < len(words):
        count = int(words[0])
        yield words[1 : count + 1]
        words = words[count + 1 :]
