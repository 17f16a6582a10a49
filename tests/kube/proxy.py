"""A TCP proxy that loses what a network can lose: connections, replies, everything."""

import selectors
import socket
import threading
from typing import Self


class Proxy:
    """Forwards to `port` on loopback. A context manager.

    `refusing`: new connections are closed at once. `mute`: the server's bytes are thrown away (the
    request arrives, the reply does not). `frozen`: nothing moves and nothing closes.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.refusing = self.mute = self.frozen = False
        self.accepted = 0
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Break all connections."""
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for each in pair:
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue  # its peer was quicker

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs.add((client, server))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        frozen_for_good = False
        with selectors.DefaultSelector() as selector, client, server:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(timeout=0.05):
                    # A connection that was frozen once stays frozen, as after a lost route.
                    frozen_for_good = frozen_for_good or self.frozen
                    if frozen_for_good:
                        selector.unregister(key.fileobj)
                        continue
                    source, sink = (client, server) if key.fileobj is client else (server, client)
                    try:
                        data = source.recv(1 << 16)
                        if not data:
                            return
                        if source is client or not self.mute:
                            sink.sendall(data)
                    except OSError:
                        return
                frozen_for_good = frozen_for_good or self.frozen
                with self._lock:
                    if (client, server) not in self._pairs:
                        return
