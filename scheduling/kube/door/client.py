"""The door's HTTP calls to an API server: time-outs, fresh credentials, errors in plain words.

Lists and watches are streamed; every other call sends and receives one small JSON document.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec

from scheduling.kube.door.config import Endpoint, load_endpoint
from scheduling.kube.door.http import BUFFER, Broken
from scheduling.kube.door.loop import aside
from scheduling.kube.door.pool import (
    ConnectionPool,
    HttpAnswer,
    Unreachable,
    Untrusted,
    header_lines,
)
from scheduling.kube.seam import KubeError
from scheduling.kube.translate.objects import Status

logger = logging.getLogger(__name__)

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

CALL_TIMEOUT_S = 30.0
# Reading credentials may run files and programs that others wrote.
ACCESS_TIMEOUT_S = 60.0
AUTHORIZATION_AGE_S = 30.0
# After a 401 the credentials are reloaded, but not more often than this.
RELOAD_PAUSE_S = 5.0

NO_REPLY = (Unreachable, Broken, TimeoutError)

_status = msgspec.json.Decoder(Status)


class NoReply(Exception):
    """The API server did not answer. `sent` False: the request certainly never reached it."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Reply(NamedTuple):
    """An answer: HTTP status, body, and the seconds of its Retry-After header (0 = none)."""

    code: int
    body: bytes
    retry_after: float

    @property
    def status(self) -> Status:
        """The error's Status object, or one made of the raw text if the body is no Status."""
        try:
            return _status.decode(self.body)
        except msgspec.MsgspecError:
            return Status(code=self.code, message=self.body[:200].decode(errors="replace"))


class Client:
    """HTTP calls to one API server. Lives on the event loop that opened it."""

    def __init__(self, access: Mapping[str, Any]) -> None:
        self._access = access
        self._endpoint: Endpoint
        self._pool: ConnectionPool | None = None
        self._headers = ""
        self._read_at = 0.0  # when the Authorization header was last read
        self._loaded_at = 0.0  # when the whole endpoint was last loaded
        self._lock = asyncio.Lock()
        self.heard_at = 0.0  # when the server last sent anything, by the monotonic clock

    @property
    def server(self) -> str:
        return self._endpoint.server

    @property
    def origin(self) -> str:
        return self._endpoint.origin

    async def open(self) -> None:
        """Read the access configuration. Raises KubeError. Connects only at the first call."""
        endpoint = await _aside(lambda: load_endpoint(self._access))
        authorization = await _aside(endpoint.authorization)
        self._endpoint = endpoint
        self._read_at = self._loaded_at = time.monotonic()
        if self._pool is not None:
            self._pool.retire()
        self._pool = ConnectionPool(endpoint.server, endpoint.tls, endpoint.tls_name, self._hear)
        self._set_authorization(authorization)

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _hear(self, at: float) -> None:
        self.heard_at = at

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        silence: float | None = None,
    ) -> Reply:
        """Send one request and return the Reply, whatever its HTTP status.

        Raises NoReply if there was no answer, and KubeError if the credentials can no longer be
        read. The whole answer has to arrive within CALL_TIMEOUT_S. With `silence` it may take any
        time, as long as no pause in it exceeds that many seconds.
        """
        reply = await self._send(method, path, body, content_type, silence)
        if reply.code == 401 and await self._reload():
            reply = await self._send(method, path, body, content_type, silence)
        return reply

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        content_type: str,
        silence: float | None,
    ) -> Reply:
        pool, headers = await self._ready()
        if body is not None:
            headers = f"{headers}Content-Type: {content_type}\r\n"
        whole = silence is None
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S if whole else None):
                answer = await pool.ask(
                    *(method, path, headers, body), whole=whole, silence=silence
                )
                try:
                    refused = answer.status >= 300
                    text = await (answer.refusal() if refused else answer.read())
                    return Reply(answer.status, text, retry_after(answer))
                finally:
                    answer.close()
        except NO_REPLY as error:
            raise self._no_reply(error) from error

    @asynccontextmanager
    async def stream(
        self, path: str, read_timeout: float | None, *, buffer: int = BUFFER
    ) -> AsyncIterator[HttpAnswer]:
        """Start a long GET whose body the caller reads.

        `read_timeout` limits each pause in the body, in seconds (None = no limit). `buffer`: how
        many bytes are read ahead before the server has to wait.
        """
        pool, headers = await self._ready()
        try:
            answer = await pool.ask("GET", path, headers, buffer=buffer, silence=read_timeout)
            try:
                if answer.status == 401:
                    await self._reload()
                yield answer
            finally:
                answer.close()
        except NO_REPLY as error:
            raise self._no_reply(error) from error

    # --- credentials --------------------------------------------------------------------------
    async def _ready(self) -> tuple[ConnectionPool, str]:
        if time.monotonic() - self._read_at > AUTHORIZATION_AGE_S:
            self._read_at = time.monotonic()
            try:
                self._set_authorization(await _aside(self._endpoint.authorization))
            except KubeError as error:
                # The current header may still be good; if it is not, a 401 will say so.
                logger.warning("credentials were not renewed: %s", error)
        if self._pool is None:
            raise NoReply("the gateway is stopped", sent=False)
        return self._pool, self._headers

    def _set_authorization(self, value: str) -> None:
        headers = {"Accept": JSON, "Accept-Encoding": "identity", "User-Agent": "kant"}
        try:
            self._headers = header_lines(headers | ({"Authorization": value} if value else {}))
        except ValueError as error:
            raise KubeError(
                f"{self._endpoint.origin}: {error}", "put only the token there"
            ) from None

    async def _reload(self) -> bool:
        """Reload the whole access configuration; False if that was done just before."""
        async with self._lock:
            if time.monotonic() - self._loaded_at < RELOAD_PAUSE_S:
                return False
            self._loaded_at = time.monotonic()
            await self.open()
            return True

    # --- errors -------------------------------------------------------------------------------
    def _no_reply(self, error: Exception) -> NoReply:
        server = self._endpoint.server
        if isinstance(error, Untrusted):
            reason = (
                f"the TLS certificate of {server} is not trusted ({error}): "
                "name its CA in the cluster's access, and the host it was made for"
            )
            return NoReply(reason, sent=False)
        if isinstance(error, Unreachable):
            return NoReply(
                f"no connection to {server} ({error}): check that the API server runs, the address "
                "and the network",
                sent=False,
            )
        if isinstance(error, TimeoutError):
            return NoReply(f"{server} did not answer in time", sent=True)
        return NoReply(f"the connection to {server} broke ({error})", sent=True)

    def problem(self, reply: Reply, what: str) -> KubeError:
        """Turn an HTTP error into one line with a remedy; `what` completes "may not ..."."""
        status = reply.status
        if reply.code == 401:
            return KubeError(
                f"{self.server} does not accept the credentials (401; {self.origin})",
                "renew the token or certificate, or mend the exec plugin",
                code=401,
            )
        if reply.code == 403:
            return KubeError(
                f"{self.server} does not allow Kant to {what} (403; {status.message})",
                "grant that right to Kant's account (operator guide, RBAC)",
                code=403,
            )
        return KubeError(
            f"{self.server} answered {reply.code} when Kant wanted to {what} ({status.message})",
            "see the API server's log" if reply.code >= 500 else "check address and version",
            code=reply.code,
        )


T = TypeVar("T")


async def _aside(work: Callable[[], T]) -> T:
    """Run blocking work beside the event loop; raises KubeError after ACCESS_TIMEOUT_S."""
    try:
        return await aside(work, ACCESS_TIMEOUT_S)
    except TimeoutError:
        raise KubeError(
            f"the cluster's access is not read within {ACCESS_TIMEOUT_S:.0f} s",
            "see what holds up its files or its exec plugin",
        ) from None


def retry_after(answer: HttpAnswer) -> float:
    value = answer.headers.get("retry-after", "")
    # The API server sends seconds. HTTP also allows a date, which proxies hardly use.
    return min(float(value), 60.0) if value.isdigit() else 0.0
