"""A server that accepts connections but never responds, like a catalog that hangs."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Silent:
    """The server's port on loopback, and its open connections."""

    def __init__(self, port: int, held: list[socket.socket]) -> None:
        self.port, self._held = port, held

    def waiting(self) -> int:
        """Return how many clients are still connected."""
        gone = select.poll()
        for one in list(self._held):
            gone.register(one, select.POLLRDHUP)
        return len(self._held) - len(gone.poll(0))


@contextmanager
def silent_server() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield Silent(server.getsockname()[1], held)
        server.shutdown(socket.SHUT_RDWR)
        for one in held:
            one.close()
        for thread in threading.enumerate():
            if thread.name.startswith("with_timeout"):  # an abandoned call, which logs until it ends
                thread.join(60)
