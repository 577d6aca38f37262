"""A server of OpenEnv in this process, behind a real port."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


@contextlib.contextmanager
def serving(application):
    """The address of an application that uvicorn serves until the block ends."""
    import uvicorn

    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(application, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [port]})
        thread.start()
        while thread.is_alive() and not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
