"""A real Prometheus on loopback that scrapes a test's GPU samples."""

import shutil
import socket
import subprocess
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

from tests.requirements import missing
from tests.waiting import until


def program() -> str:
    """Return the path of `prometheus`. Without it, skip the test, or fail it in CI."""
    found = shutil.which("prometheus")
    if found is None:
        missing("Prometheus", "apt-get install prometheus")
    return found


class Exporter:
    """Stands in for NVIDIA's exporter: `text` is what Prometheus scrapes, `scrapes` counts how
    often."""

    def __init__(self):
        self.text, self.scrapes = "", 0
        outer = self

        class Page(BaseHTTPRequestHandler):
            def do_GET(self):
                body = outer.text.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                outer.scrapes += 1

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def port(self):
        return self._server.server_port

    def end(self):
        self._server.shutdown()
        self._server.server_close()


class RealPrometheus:
    """Scrape the exporter each second until `end`. `folder`: an empty folder for the data."""

    def __init__(self, folder, exporter):
        scraped = {
            "job_name": "dcgm",
            "scrape_interval": "1s",
            "static_configs": [{"targets": [f"127.0.0.1:{exporter.port}"]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump({"scrape_configs": [scraped]}))
        # Another process rarely takes the port that was just free; then try another port.
        for attempt in range(3):
            self._start(folder / str(attempt), folder / "prometheus.yml")
            until(lambda: self._is_over() or self._is_ready(), 120)
            if not self._is_over():
                return
            self._said.close()
        raise AssertionError((folder / str(attempt) / "log").read_text()[-2000:])

    def _start(self, folder, settings):
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._said = (folder / "log").open("w")
        self._process = subprocess.Popen(
            [
                program(),
                f"--config.file={settings}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._said,
            stderr=subprocess.STDOUT,
        )

    def _is_over(self):
        return self._process.poll() is not None

    def _is_ready(self):
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def end(self):
        self._process.terminate()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._said.close()
