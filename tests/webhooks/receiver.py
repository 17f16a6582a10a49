"""A real HTTP server on loopback that receives webhooks and behaves as a test asks."""

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]  # names in lower case
    body: str


class Receiver:
    """A receiver. `/CODE` answers with that code. `/redirect` redirects to `/200`. `/slow`
    answers once all of `slow_until` have arrived, or the server ends. `/silent` closes without
    an answer, `/endless` never ends its answer, `/lies` promises a longer answer than it sends,
    `/garbage` does not speak HTTP, `/busy` asks the client to return in an hour."""

    def __init__(self):
        self.requests: list[Received] = []
        self._coming = threading.Lock()
        self.ended = threading.Event()
        self.slow_until = {}  # {path: number of requests}; {} = until the server ends
        self.answered_as = {}  # {path: code} that overrides the code in the path

    def __enter__(self):
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver._began(Received(self.path, headers, body))
                with suppress(BrokenPipeError, ConnectionResetError):
                    receiver._answer(self)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()

    def url(self, path="/200"):
        return f"http://127.0.0.1:{self._server.server_address[1]}{path}"

    @property
    def paths(self):
        return [request.path for request in self.requests]

    def _began(self, request):
        with self._coming:
            self.requests.append(request)
            until = self.slow_until
            if until and all(self.paths.count(path) >= most for path, most in until.items()):
                self.ended.set()

    def _answer(self, handler):
        path = handler.path.strip("/")
        if path == "slow":
            self.ended.wait(60)
        elif path == "silent":
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        elif path == "garbage":
            handler.wfile.write(b"\x00\xff no HTTP\r\n\r\n")
        elif path == "endless":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            while not self.ended.is_set():
                handler.wfile.write(b"4\r\nmore\r\n")
        elif path == "lies":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nshort")
            handler.close_connection = True
        else:
            more = {"redirect": (302, "Location", "/200"), "busy": (503, "Retry-After", "3600")}
            code, *header = more.get(path) or (self.answered_as.get(handler.path, path),)
            handler.send_response(int(code))
            if header:
                handler.send_header(*header)
            handler.end_headers()
            handler.wfile.write(f"answer {code}".encode())
