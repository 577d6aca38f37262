"""Task servers for tests, reached over real HTTP: in a thread of this process, or as the command in one of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from lfo.envs.server.app import listen, task_app
from lfo.envs.server.sessions import Sessions

ROOT = Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def serving(sessions: Sessions, token: str = "") -> Iterator[str]:
    """The address of a task server in a thread."""
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(task_app(sessions, token), log_level="warning"))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Command:
    """``lfo task-server``. url, history: its addresses; the ports stay the same when it is started again."""

    def __init__(self, config: Path | str, *settings: str):
        self.config, self.settings, self.port, self.history_port = str(config), settings, 0, 0
        self.start()

    def start(self) -> None:
        ports = ["--port", str(self.port), "--history-port", str(self.history_port)]
        command = [sys.executable, "-m", "lfo.cli", "task-server", "--config", self.config, *ports]
        command += ["--set", *self.settings] if self.settings else []
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )
        said = self.process.stdout.readline()
        self.port, self.history_port = map(int, re.findall(r"127\.0\.0\.1:(\d+)/api", said))
        self.url, self.history = (f"http://127.0.0.1:{port}" for port in (self.port, self.history_port))

    def kill(self) -> None:
        self.process.kill()  # SIGKILL: it cannot clean up
        self.process.wait()
        self.process.stdout.close()

    def stop(self) -> int:
        self.process.terminate()
        status = self.process.wait(timeout=30)
        self.process.stdout.close()
        return status
