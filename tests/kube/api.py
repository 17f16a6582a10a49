"""A small synchronous Kubernetes client for tests, independent of the code under test."""

import http.client
import json
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"

T = TypeVar("T")


class Answer(NamedTuple):
    code: int
    body: Any
    headers: dict[str, str]

    @property
    def reason(self) -> str:
        """Return `reason` of the Status object."""
        return self.body.get("reason", "")

    @property
    def message(self) -> str:
        return self.body.get("message", "")


class Api:
    """Calls as one user; returns an answer for every HTTP status."""

    def __init__(self, url: str, token: str = "", ca_file: str = "") -> None:
        self._url = urlsplit(url)
        self._token = token
        self._tls = ssl.create_default_context(cafile=ca_file) if ca_file else None

    def call(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Answer:
        connection = self._connect(timeout=60)
        try:
            self._send(connection, method, path, body, content_type)
            response = connection.getresponse()
            text = response.read()
            headers = {key.lower(): value for key, value in response.getheaders()}
            return Answer(response.status, json.loads(text) if text[:1] == b"{" else text, headers)
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, content_type: str = JSON) -> Any:
        """Return the body of a call that must succeed."""
        answer = self.call(method, path, body, content_type)
        assert answer.code in (200, 201, 202), (method, path, answer)
        return answer.body

    def watch(self, path: str, timeout: float = 60) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it or nothing arrives for `timeout`."""
        connection = self._connect(timeout)
        try:
            self._send(connection, "GET", path, None, JSON)
            response = connection.getresponse()
            assert response.status == 200, (response.status, response.read())
            for line in response:
                yield json.loads(line)
        except TimeoutError:
            return
        finally:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, kind: str
    ) -> None:
        headers = {"Content-Type": kind, "Accept": JSON}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        connection.request(method, path, body=data, headers=headers)


def eventually(look: Callable[[], T], timeout: float = 60.0) -> T:
    """Return the first truthy result of `look`; fail if there is none in time."""
    deadline = time.monotonic() + timeout
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout} s: {look}"
        time.sleep(0.02)
