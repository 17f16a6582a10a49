"""Logs read through the API server: their text, and the reason why there is none."""

import asyncio
import http.server
import ssl
import threading
from pathlib import Path

import pytest

from metrics.benches.apiserver import TOKENS
from scheduling.kube.door.logs import (
    ContainerRef,
    LogOptions,
    LogReader,
    NoContainer,
    NodeFailed,
    NotReady,
    PodLogGone,
    Stopped,
)
from scheduling.kube.seam import KubeError
from tests.kube.api import eventually

READER = LogReader()


def opened(place, name, uid=None, access=None, container="", reader=READER, **options):
    uid = uid or place.get(name)["metadata"]["uid"]
    of = ContainerRef(place.namespace, name, uid, container)
    return reader.open(access or place.server.access(), of, LogOptions(**options))


def refused(kind, place, name, *args, **options):
    with pytest.raises(kind) as caught:
        opened(place, name, *args, **options)
    return caught.value


# --- on both servers ------------------------------------------------------------------------------
def test_a_pod_that_is_gone_has_no_log(place):
    assert "not found" in str(refused(PodLogGone, place, "absent", "some-uid"))
    uid = place.make_pod("p")["metadata"]["uid"]
    place.api.ok("DELETE", f"{place.pods}/p?gracePeriodSeconds=0")
    refused(PodLogGone, place, "p", uid)


def test_another_pod_of_the_same_name_is_not_read(place):
    place.make_pod("p")
    assert "another pod is called p now" in str(refused(PodLogGone, place, "p", "the-old-uid"))


def test_a_pod_without_a_node_is_not_ready(place, monkeypatch):
    monkeypatch.setattr("scheduling.kube.door.logs.SILENT_AFTER_S", 60.0)  # slow answers count
    place.make_pod("p")
    for options in ({}, {"follow": True}):
        assert str(refused(NotReady, place, "p", **options)) == "it has no node yet"
    said = str(refused(NoContainer, place, "p", container="side"))
    assert said == "no container “side”; it has main"


def test_a_node_that_is_not_there_is_named(place):
    place.make_pod("p")
    place.bind("p", f"{place.node}-lost")
    assert refused(NodeFailed, place, "p").node == f"{place.node}-lost"


def test_an_api_server_that_does_not_answer_is_told(place):
    error = refused(KubeError, place, "p", "uid", {"server": "http://127.0.0.1:9"})
    assert (error.code, "no connection to http://127.0.0.1:9" in str(error)) == (0, True)


def test_credentials_that_are_refused_are_told(place, tmp_path):
    token = tmp_path / "token"
    token.write_text("wrong")
    place.make_pod("p")
    error = refused(
        KubeError, place, "p", access={**place.server.access(), "token_file": str(token)}
    )
    assert error.code == 401


def test_credentials_that_were_renewed_are_read_again(place, tmp_path):
    """A cached client once read an old token."""
    token = tmp_path / "token"
    token.write_text("wrong")
    access = {**place.server.access(), "token_file": str(token)}
    place.make_pod("p")
    assert refused(KubeError, place, "p", access=access).code == 401
    token.write_text(Path(place.server.access()["token_file"]).read_text())
    [client] = [c for c in READER._clients.values() if c._access == access]
    client._loaded_at = 0.0  # as if half a minute had passed
    refused(NotReady, place, "p", access=access)


# --- what is in it: the embedded cluster, whose containers print something -----------------------
EMBEDDED = pytest.mark.parametrize("server", ["embedded"], indirect=True)


def run(place, name="p", **annotations):
    """A pod that runs on a node of its own."""
    place.make_node(f"{place.node}-{name}")
    notes = {f"sim.kant.io/{k.replace('_', '-')}": v for k, v in annotations.items()}
    body = place.manifest(name)
    body["metadata"]["annotations"] = notes
    place.api.ok("POST", place.pods, body)
    place.bind(name, f"{place.node}-{name}")
    eventually(lambda: place.get(name)["status"]["phase"] not in ("Pending",))


LINES = b"started main of p on %b-p, image busybox\nno GPUs\nended with exit code 0\n"


@EMBEDDED
def test_a_log_is_read_whole_or_in_part(place):
    run(place, run_seconds="0.1")
    eventually(lambda: place.get("p")["status"]["phase"] == "Succeeded")
    whole = LINES % place.node.encode()
    assert opened(place, "p").read() == whole
    assert opened(place, "p", tail=1).read() == b"ended with exit code 0\n"
    assert opened(place, "p", limit_bytes=7).read() == whole[:7]
    assert opened(place, "p", since_s=3600, container="main").read() == whole
    assert opened(place, "p", since="2100-01-01T00:00:00Z").read() == b""
    assert opened(place, "p", tail=1, timestamps=True).read().split(b" ")[0].endswith(b"Z")
    assert "previous terminated" in str(refused(NotReady, place, "p", previous=True))


async def gathered(log):
    return b"".join([piece async for piece in log.pieces()])


@EMBEDDED
def test_a_log_is_followed_to_its_end_on_any_event_loop(place):
    run(place, run_seconds="1.5")
    log = opened(place, "p", follow=True)
    assert asyncio.run(gathered(log)) == LINES % place.node.encode()
    assert not log.is_open


def requests():
    return [task for task in asyncio.all_tasks(READER._loop) if "_Request.run" in repr(task)]


@EMBEDDED
@pytest.mark.parametrize("how", ["closed", "left", "forgotten"])
def test_a_log_that_nobody_reads_any_more_ends_its_request(place, how):
    run(place)
    log = opened(place, "p", follow=True)
    eventually(lambda: len(requests()) == 1)

    async def one():
        return await anext(log.pieces())

    if how == "closed":
        log.close()
    elif how == "left":
        assert b"started main" in asyncio.run(one())
    else:
        del log
    eventually(lambda: not requests())


@EMBEDDED
def test_what_is_followed_ends_when_the_process_is_told_to_end(place):
    run(place)
    reader = LogReader()
    before = opened(place, "p", reader=reader, follow=True)
    reader.stop()
    after = opened(place, "p", reader=reader, follow=True)
    for log in (before, after):
        with pytest.raises(Stopped):
            log.read()
        assert not log.is_open
    assert opened(place, "p", reader=reader, tail=1).read() == b"no GPUs\n"


# --- kube-apiserver, and a kubelet that is not one ------------------------------------------------
AT_ONCE = threading.Event()
AT_ONCE.set()


class Kubelet(http.server.BaseHTTPRequestHandler):
    """Answers as the server's `replies` say by path: (status, pieces, what to wait for)."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append(self.path)
        code, pieces, word = self.server.replies[self.path.partition("?")[0].rpartition("/")[0]]
        assert word.wait(60)
        self.send_response(code)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in (*pieces, b""):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.flush()
        except OSError:
            self.server.left.set()

    def log_message(self, *_):
        pass


@pytest.fixture
def kubelet(place):
    """An HTTPS server where kube-apiserver asks for the logs of a node."""
    pki = place.server.pair.folder / "pki"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pki / "apiserver.crt", pki / "apiserver.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.replies, server.asked, server.left = {}, [], threading.Event()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def placed(place, name, port):
    """Make a pod on a node whose kubelet is at that port; return the path of its logs there."""
    node = f"{place.node}-{name}"
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    place.api.ok("POST", "/api/v1/nodes", {"metadata": {"name": node}, "status": status})
    place.make_pod(name)
    place.bind(name, node)
    return f"/containerLogs/{place.namespace}/{name}"


@pytest.mark.parametrize("server", [pytest.param("kube-apiserver", marks=pytest.mark.apiserver)],
                         indirect=True)  # fmt: skip
class TestBehindKubeApiserver:
    def test_a_kubelet_that_does_not_answer_is_named_with_why(self, place):
        placed(place, "p", 9)
        error = refused(NodeFailed, place, "p")
        assert (error.node, "connection refused" in str(error)) == (f"{place.node}-p", True)

    def test_the_missing_right_is_told(self, place):
        assert "nobody" in TOKENS
        placed(place, "p", 9)
        error = refused(KubeError, place, "p", access=place.server.pair.access("nobody"))
        assert error.code == 403
        assert "pods" in str(error)

    def test_what_a_kubelet_gives_with_what_was_asked_for(self, place, kubelet):
        path = placed(place, "p", kubelet.server_port)
        kubelet.replies[path] = (200, [b"one\n", b"two\n"], AT_ONCE)
        assert opened(place, "p").read() == b"one\ntwo\n"
        options = {"tail": 5, "since_s": 60, "limit_bytes": 100, "timestamps": True}
        assert opened(place, "p", **options, follow=True).read() == b"one\ntwo\n"
        asked = kubelet.asked[-1].partition("?")[2].split("&")
        wanted = {"tailLines=5", "sinceSeconds=60", "limitBytes=100", "timestamps=true"}
        assert {*wanted, "follow=true"} <= set(asked)

    def test_what_a_kubelet_refuses_is_told_in_its_words(self, place, kubelet):
        path = placed(place, "p", kubelet.server_port)
        said = b'container "main" in pod "p" is waiting to start: ImagePullBackOff'
        kubelet.replies[path] = (400, [said], AT_ONCE)
        assert str(refused(NotReady, place, "p")) == said.decode()
        kubelet.replies[path] = (500, [b"rotated"], AT_ONCE)
        assert "rotated" in str(refused(NodeFailed, place, "p"))

    def test_a_container_that_prints_nothing_for_long_can_be_followed(self, place, kubelet):
        path = placed(place, "p", kubelet.server_port)
        word = threading.Event()
        kubelet.replies[path] = (200, [b"late\n"], word)
        log = opened(place, "p", follow=True)
        word.set()
        assert log.read() == b"late\n"
        word.clear()
        kubelet.replies[path] = (400, [b"never"], word)
        log = opened(place, "p", follow=True)
        word.set()
        with pytest.raises(KubeError, match="never"):
            log.read()

    def test_memory_is_bounded_and_leaving_reaches_the_kubelet(self, place, kubelet):
        path = placed(place, "p", kubelet.server_port)
        kubelet.replies[path] = (200, [b"x" * (1 << 20)] * 400, AT_ONCE)
        log = opened(place, "p", follow=True)
        pieces = log._pieces
        eventually(pieces.full)
        assert pieces.qsize() == 2
        log.close()
        assert kubelet.left.wait(60)
