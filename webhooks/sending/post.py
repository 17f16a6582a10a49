"""One try: a request to a receiver, and what became of it."""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import aiohttp

from webhooks.sending.addresses import refusal

TIMEOUT_S = 10.0  # of a whole try; who needs longer should answer first and work later
CONNECT_S = 5.0
# Of an answer so much is looked at, for so long: it says what a receiver dislikes.
KEPT_BYTES, READ_S = 300, 2.0
HEADERS = {"User-Agent": "Kant-Webhooks/1", "Content-Type": "application/json"}
GONE = 410


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a try. `status`: of the answer, None = there was none. `outcome`: how the
    answer begins, or what was wrong. `retry_s`: how long the receiver asks to wait."""

    status: int | None
    outcome: str
    took_ms: int
    retry_s: int | None = None

    @property
    def taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class _Refused(OSError):
    """An address that Kant does not connect to."""


def session() -> aiohttp.ClientSession:
    """For many tries at once, in a running loop. Neither proxies of the environment nor cookies nor
    kept connections: each try looks its receiver up and is judged anew."""
    connector = aiohttp.TCPConnector(
        limit=0, force_close=True, use_dns_cache=False, socket_factory=_socket
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_S),
        auto_decompress=False,
        trust_env=False,
    )


async def post(
    client: aiohttp.ClientSession, url: str, body: str, headers: Mapping[str, str]
) -> Tried:
    """Send a body. Never raises for what a receiver does."""
    began = time.monotonic()

    def tried(status: int | None, outcome: str, retry_s: int | None = None) -> Tried:
        return Tried(status, outcome, round(1000 * (time.monotonic() - began)), retry_s)

    try:
        async with client.post(
            url, data=body.encode(), headers={**HEADERS, **headers}, allow_redirects=False
        ) as answer:
            status = answer.status
            if 300 <= status < 400:
                text = "It redirects, and Kant does not follow redirects. Set the final address."
                return tried(status, text)
            text = await _beginning(answer)
            return tried(status, text, _seconds(answer.headers.get("Retry-After", "")))
    except TimeoutError:
        return tried(None, f"No answer within {TIMEOUT_S:.0f} seconds.")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return tried(None, _said(error))


def _socket(info: Any) -> socket.socket:
    """The socket of a connection; aiohttp asks for it with the very address that it connects to."""
    family, kind, protocol, _, address = info
    if why := refusal(ip_address(str(address[0]).partition("%")[0])):
        raise _Refused(why)
    return socket.socket(family, kind, protocol)


async def _beginning(answer: aiohttp.ClientResponse) -> str:
    try:
        async with asyncio.timeout(READ_S):
            found = await answer.content.read(KEPT_BYTES)
    except (TimeoutError, aiohttp.ClientError, OSError):
        return ""  # its status has told what matters
    return "".join(c for c in found.decode(errors="replace") if c.isprintable() or c == "\n")


def _seconds(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _said(error: Exception) -> str:
    """What is wrong, without what Python calls it."""
    inner: BaseException = error
    while not isinstance(inner, _Refused) and isinstance(
        cause := getattr(inner, "os_error", None) or inner.__cause__, OSError
    ):
        inner = cause
    if isinstance(inner, _Refused):
        return str(inner)
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"Its TLS certificate is not trusted: {inner.verify_message}."
    if isinstance(inner, socket.gaierror):
        return f"Its host name cannot be resolved: {inner.strerror}."
    if isinstance(inner, OSError) and inner.errno and not isinstance(inner, ssl.SSLError):
        return f"No connection: {os.strerror(inner.errno)}."
    text = str(error) or type(error).__name__
    return f"{text[0].upper()}{text[1:]}"[:KEPT_BYTES]
