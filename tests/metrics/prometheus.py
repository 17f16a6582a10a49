"""A stand-in for Prometheus: answers `/api/v1/query` in the real one's JSON."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit


def gpu(hostname, index, value, **labels):
    """Return a sample as Prometheus has it after scraping the DCGM exporter."""
    return {"gpu": str(index), "Hostname": hostname, "instance": "10.0.0.7:9400", **labels}, value


class StandIn:
    """`told`: samples by metric; `status` and `body`: what to answer instead. `asked`: the queries
    received, with their times."""

    def __init__(self):
        self.told, self.status, self.body, self.headers, self.asked = {}, 200, None, {}, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                outer.asked.append((url.path, query))
                body = outer.body or outer.answer(query)
                self.send_response(outer.status)
                self.send_header("Content-Type", "application/json")
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, query):
        samples = next((s for name, s in self.told.items() if name in query["query"]), [])
        at = float(query["time"])
        found = [{"metric": labels, "value": [at, str(value)]} for labels, value in samples]
        told = {"status": "success", "data": {"resultType": "vector", "result": found}}
        return json.dumps(told).encode()

    def end(self):
        self._server.shutdown()
        self._server.server_close()
