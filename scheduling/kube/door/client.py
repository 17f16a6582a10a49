"""The door's HTTP: one connection pool with keep-alive, time-outs, and credentials kept fresh.

aiohttp on the loop of loop.py. Lists and watches are streamed, everything else is one small JSON
in and out.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from scheduling.kube.door.config import Endpoint, load_endpoint
from scheduling.kube.door.loop import aside
from scheduling.kube.seam import KubeError
from scheduling.kube.translate.objects import Status

logger = logging.getLogger(__name__)

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

CALL_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
# Credentials come from files and from programs that others wrote.
ACCESS_TIMEOUT_S = 60.0
AUTHORIZATION_AGE_S = 30.0
BROKEN_AFTER_S = 0.5
# Not more often than that are the credentials read anew because the server refused them.
RELOAD_PAUSE_S = 5.0

# A body that breaks off is no ClientError where its encoding is wrong.
BROKEN = (aiohttp.ClientError, HttpProcessingError, TimeoutError, OSError)

_status = msgspec.json.Decoder(Status)


class NoReply(Exception):
    """No answer arrived. `sent` False: the request surely never reached the server."""

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
        """The Status object of an error; one made of the raw text where it is none."""
        try:
            return _status.decode(self.body)
        except msgspec.MsgspecError:
            return Status(code=self.code, message=self.body[:200].decode(errors="replace"))


class Client:
    """Calls of one API server. Lives on the event loop that opened it."""

    def __init__(self, access: Mapping[str, Any]) -> None:
        self._access = access
        self._endpoint: Endpoint
        self._session: aiohttp.ClientSession | None = None
        self._headers: dict[str, str] = {}
        self._read_at = 0.0  # when the Authorization header was read
        self._loaded_at = 0.0  # when the whole endpoint was
        self._lock = asyncio.Lock()
        self.heard_at = 0.0  # when the server last sent anything, by the monotonic clock

    @property
    def server(self) -> str:
        return self._endpoint.server

    @property
    def origin(self) -> str:
        return self._endpoint.origin

    async def open(self) -> None:
        """Read the access configuration; raises KubeError. Connects only at the first call."""
        self._endpoint = await _aside(lambda: load_endpoint(self._access))
        self._set_authorization(await _aside(self._endpoint.authorization))
        self._read_at = self._loaded_at = time.monotonic()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, keepalive_timeout=60, socket_factory=_keepalive_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        silence: float | None = None,
    ) -> Reply:
        """One request. Any HTTP status is a Reply; raises NoReply when there was none, and
        KubeError when the credentials can no longer be read. The whole answer has to arrive within
        CALL_TIMEOUT_S; with `silence` it may take any time, but no pause in it more seconds."""
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
        session, headers = await self._ready()
        if body is not None:
            headers = {**headers, "Content-Type": content_type}
        try:
            async with (
                session.request(
                    method,
                    URL(self._endpoint.server + path, encoded=True),
                    data=body,
                    headers=headers,
                    timeout=_call_timeout if silence is None else _patient(silence),
                    allow_redirects=False,
                    ssl=self._endpoint.tls or True,
                    server_hostname=self._endpoint.tls_name,
                ) as response,
                _broken_is_told(response),
            ):
                chunks = [chunk async for chunk in self.chunks(response)]
                return Reply(response.status, b"".join(chunks), retry_after(response))
        except BROKEN as error:
            raise self._no_reply(error) from error

    @asynccontextmanager
    async def stream(
        self, path: str, read_timeout: float | None, *, buffer: int = 1 << 20
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A long GET whose body the caller reads. `read_timeout` bounds each silence in it, in
        seconds (None = a silence may last); `buffer`: bytes read ahead before the server waits."""
        session, headers = await self._ready()
        timeout = _patient(read_timeout)
        try:
            async with (
                session.get(
                    URL(self._endpoint.server + path, encoded=True),
                    headers=headers,
                    timeout=timeout,
                    allow_redirects=False,
                    read_bufsize=buffer,
                    ssl=self._endpoint.tls or True,
                    server_hostname=self._endpoint.tls_name,
                ) as response,
                _broken_is_told(response),
            ):
                self.heard_at = time.monotonic()
                if response.status == 401:
                    await self._reload()
                yield response
        except BROKEN as error:
            raise self._no_reply(error) from error

    async def chunks(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The body of an answer as it arrives."""
        self.heard_at = time.monotonic()
        async for chunk in response.content.iter_any():
            self.heard_at = time.monotonic()
            yield chunk

    # --- credentials --------------------------------------------------------------------------
    async def _ready(self) -> tuple[aiohttp.ClientSession, dict[str, str]]:
        if time.monotonic() - self._read_at > AUTHORIZATION_AGE_S:
            self._read_at = time.monotonic()
            try:
                self._set_authorization(await _aside(self._endpoint.authorization))
            except KubeError as error:
                # The one in use may still be good; if it is not, the 401 says so.
                logger.warning("credentials were not renewed: %s", error)
        if self._session is None:
            raise NoReply("the gateway is stopped", sent=False)
        return self._session, self._headers

    def _set_authorization(self, value: str) -> None:
        self._headers = {
            "Accept": JSON,
            "Accept-Encoding": "identity",
            "User-Agent": "kant",
            **({"Authorization": value} if value else {}),
        }

    async def _reload(self) -> bool:
        """Read the whole access configuration anew; False when that was done just before."""
        async with self._lock:
            if time.monotonic() - self._loaded_at < RELOAD_PAUSE_S:
                return False
            self._loaded_at = time.monotonic()
            await self.open()
            return True

    # --- words --------------------------------------------------------------------------------
    def _no_reply(self, error: Exception) -> NoReply:
        server = self._endpoint.server
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientSSLError):
            reason = (
                f"the TLS certificate of {server} is not trusted ({error}): "
                "name its CA in the cluster's access, and the host it was made for"
            )
            return NoReply(reason, sent=False)
        if isinstance(error, aiohttp.ClientConnectorError):
            cause = error.strerror or error
            return NoReply(
                f"no connection to {server} ({cause}): check that the API server runs and the "
                "address is right",
                sent=False,
            )
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return NoReply(
                f"no connection to {server} within {CONNECT_TIMEOUT_S:.0f} s: check the address "
                "and the network",
                sent=False,
            )
        if isinstance(error, TimeoutError):
            return NoReply(f"{server} did not answer in time", sent=True)
        return NoReply(
            f"the connection to {server} broke ({type(error).__name__}: {error})", sent=True
        )

    def problem(self, reply: Reply, what: str) -> KubeError:
        """An HTTP error in one line with its remedy; `what` completes "may not ..."."""
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


_call_timeout = aiohttp.ClientTimeout(total=CALL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)


@asynccontextmanager
async def _broken_is_told(response: aiohttp.ClientResponse) -> AsyncIterator[None]:
    """aiohttp 3.14 closes a connection whose body is not as HTTP has it, and leaves whoever reads
    the body waiting for ever, without a time-out. Most answers have come whole by now."""
    if response.content.is_eof():
        yield
        return

    async def tell() -> None:
        body = response.content
        while True:
            await asyncio.sleep(BROKEN_AFTER_S)
            connection = response.connection
            lost = connection is not None and connection.closed
            if lost and not body.is_eof() and not body._buffer and body.exception() is None:
                body.set_exception(aiohttp.ClientPayloadError("the body broke off"))

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()


def _patient(silence: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=silence)


T = TypeVar("T")


async def _aside(work: Callable[[], T]) -> T:
    """What may block, beside the event loop. Raises KubeError where it takes longer than
    ACCESS_TIMEOUT_S."""
    try:
        return await aside(work, ACCESS_TIMEOUT_S)
    except TimeoutError:
        raise KubeError(
            f"the cluster's access is not read within {ACCESS_TIMEOUT_S:.0f} s",
            "see what holds up its files or its exec plugin",
        ) from None


def retry_after(response: aiohttp.ClientResponse) -> float:
    value = response.headers.get("Retry-After", "")
    # The API server sends seconds; HTTP also allows a date, which proxies hardly use.
    return min(float(value), 60.0) if value.isdigit() else 0.0


def _keepalive_socket(address: Any) -> socket.socket:
    """A socket that finds out within half a minute that its peer is gone without a word."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):  # macOS has only some of them
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
