"""A large cluster whose API server lists it as slowly as with 1 % of a core comes up late, and
never fails because of that."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from scheduling.kube.door import client, gateway, watch
from scheduling.kube.door.gateway import STOP_WITHIN_S, Gateway
from scheduling.kube.seam import NodeSeen

NODES = 12_500
PIECES = 50  # of the list of nodes
# The gateway's time bounds, scaled down from their real values.
BOUND_S, PAUSE_S = 3.0, 0.2
MARGIN_S = 30.0  # for a busy machine; the list takes longer than this


def node(number):
    name = f"n{number:05}"
    amounts = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8"}
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": str(number + 1)},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


class Slow(BaseHTTPRequestHandler):
    """Sends a piece, then is silent for PAUSE_S. `streams`: whether it supports lists as
    watches."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        of_nodes = url.path == "/api/v1/nodes"
        if "sendInitialEvents" in query:
            if not self.server.streams:
                self._whole({"kind": "Status", "code": 422}, 422)
            else:
                self._stream(NODES if of_nodes else 0)
        elif "watch" in query:
            self._stream(None)
        elif of_nodes:
            self._page(int(query.get("continue", 0)), int(query.get("limit", NODES)))
        else:
            self._whole({"items": [], "metadata": {"resourceVersion": "1"}})

    do_POST = do_GET

    def log_message(self, *_):
        pass

    def _page(self, start, size):
        items = [node(n) for n in range(start, min(start + size, NODES))]
        left = str(start + size) if start + size < NODES else ""
        meta = {"resourceVersion": str(NODES), "continue": left}
        time.sleep(2 * PAUSE_S)
        self._whole({"items": items, "metadata": meta})

    def _whole(self, body, code=200):
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, count):
        """Send the objects and the end of the list (None = only news), then nothing more."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in range(PIECES if count else 0):
            time.sleep(PAUSE_S)
            part = range(piece * count // PIECES, (piece + 1) * count // PIECES)
            self._piece([{"type": "ADDED", "object": node(n)} for n in part])
        if count is not None:
            ended = {"resourceVersion": str(NODES), "annotations": {watch.INITIAL_END: "true"}}
            self._piece([{"type": "BOOKMARK", "object": {"metadata": ended}}])
        self.server.ending.wait(60)

    def _piece(self, events):
        text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()


class SlowServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """The client has gone."""


@pytest.fixture(params=["streamed", "in pages"])
def slow(request, monkeypatch):
    """Return the access to such a server, with the gateway's bounds as short as the pauses
    require."""
    for owner, name in (
        (gateway, "UNHEARD_S"),
        (gateway, "ASK_S"),
        (client, "CALL_TIMEOUT_S"),
    ):
        monkeypatch.setattr(owner, name, BOUND_S)
    monkeypatch.setattr(gateway, "LOOK_S", 0.05)
    server = SlowServer(("127.0.0.1", 0), Slow)
    server.streams, server.ending = request.param == "streamed", threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield {"server": f"http://127.0.0.1:{server.server_port}"}
    server.ending.set()
    server.shutdown()
    server.server_close()


def opened(access):
    made = Gateway(access, namespace="n", label_map={})
    made.start()
    return made


def own_threads():
    """Return the threads that are not the server's."""
    return {each for each in threading.enumerate() if "process_request" not in each.name}


def test_it_comes_up_late_and_never_fails(slow):
    made, began = opened(slow), time.monotonic()
    made.wait_synced()  # raises if the gateway gives up
    # The list takes longer than any bound on silence.
    assert time.monotonic() - began > 2 * BOUND_S
    seen = [each for each in made.drain() if isinstance(each, NodeSeen)]
    assert {each.facts.node.name for each in seen} == {f"n{n:05}" for n in range(NODES)}
    assert made.stop()


def test_who_does_not_wait_for_it_ends_at_once_and_leaves_no_thread(slow):
    before = own_threads()
    made = opened(slow)
    while not made._client.heard_at:
        time.sleep(0.01)
    time.sleep(2 * PAUSE_S)
    assert not made.is_synced()
    began = time.monotonic()
    assert made.stop()
    assert time.monotonic() - began < STOP_WITHIN_S + MARGIN_S
    assert not made.is_alive
    assert own_threads() <= before
